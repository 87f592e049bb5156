"""A dataset whose `meta/` lies in one place and its data and videos in another."""

from __future__ import annotations

from typing import Any

from .remote_root import RemoteRoot, RemoteVideo
from .roots import LocalRoot


class SplitRoot:
    """A dataset whose `meta/` lies in one place and all else in another."""

    def __init__(self, meta: LocalRoot | RemoteRoot, files: LocalRoot | RemoteRoot) -> None:
        self._meta, self._rest = meta, files
        self.path = files.path

    @property
    def real(self) -> str:
        """Absolute path of the directory with `meta/`."""
        return self._meta.real  # type: ignore[union-attr]

    def _of(self, rel: str) -> LocalRoot | RemoteRoot:
        return self._meta if rel.startswith("meta/") else self._rest

    def video(self, rel: str) -> RemoteVideo | str:
        """As `RemoteRoot.video`."""
        return self._rest.video(rel)

    def client(self) -> Any:
        """As `RemoteRoot.client`."""
        return self._rest.client()  # type: ignore[union-attr]

    def remote_options(self) -> dict[str, Any]:
        """As `RemoteRoot.remote_options`."""
        return self._rest.remote_options()  # type: ignore[union-attr]

    def resolve(self, rel: str) -> str:
        """As `LocalRoot.resolve`."""
        return self._of(rel).resolve(rel)

    def exists(self, rel: str) -> bool:
        """As `LocalRoot.exists`."""
        return self._of(rel).exists(rel)

    def read_bytes(self, rel: str, limit: int | None = None) -> bytes:
        """As `LocalRoot.read_bytes`."""
        return self._of(rel).read_bytes(rel, limit)
