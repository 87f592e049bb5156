"""A dataset in a bucket of the Hugging Face Hub. Buckets have no commits: what is listed when the
dataset is opened is what must be served."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from . import env
from .errors import redact
from .hub_cold import api_client_keywords
from .remote_manifest import Entry
from .remote_options import Options
from .remote_root import RemoteRoot
from .remote_root_hub import entries_of

if TYPE_CHECKING:
    from .hub import Hub

_URL = re.compile(r"(?i:hf://buckets/)([\w.-]{1,96}/[\w.-]{1,96})(?:/([^?#]*))?", re.ASCII)


class BucketRoot(RemoteRoot):
    """`bucket` is OWNER/NAME, `prefix` the folder in it that holds meta/; "" for the top."""

    def __init__(
        self, bucket: str, prefix: str, token: str | bool | None, options: Options
    ) -> None:
        from .hub import Hub

        self.bucket, self.prefix = bucket, prefix
        self.endpoint = env.hf_endpoint()
        self._hub: Hub | None = Hub(bucket, None, None, token, options, kind="buckets")
        self._token_wanted = self._hub.token_wanted
        url = f"{self.endpoint}/buckets/{bucket}/resolve"
        super().__init__(f"{url}/{quote(prefix)}" if prefix else url, options)

    @classmethod
    def of_url(cls, url: str, token: str | bool | None, options: Options) -> BucketRoot:
        """The root at hf://buckets/OWNER/NAME[/PREFIX]. ValueError for a malformed URL."""
        form = _URL.fullmatch(url.rstrip("/"))
        prefix = (form.group(2) or "") if form else ""
        parts = prefix.split("/") if prefix else []
        if form is None or ".." in url or not url.isprintable() or "" in parts or "." in parts:
            raise ValueError(f"root={redact(url)!r}: use hf://buckets/OWNER/NAME[/PREFIX]")
        return cls(form.group(1), prefix, token, options)

    def _secrets(self) -> tuple[str, ...]:
        return ("_hub",)

    @property
    def hub(self) -> Hub:
        """The Hub as it is asked here: in another process with that process's own token."""
        if self._hub is None:
            from .hub import Hub

            self._hub = Hub(self.bucket, None, None, self._token_wanted, self.options,
                            kind="buckets")  # fmt: skip
        return self._hub

    def _keywords(self) -> dict[str, Any]:
        return api_client_keywords(self.url, self.hub)

    def _file_url(self, rel: str) -> str:
        return f"{self.url}/{quote(rel)}"

    def _list(self, folder: str) -> dict[str, Entry]:
        below = f"{self.prefix}/" if self.prefix else ""
        found = entries_of(self.hub.bucket_files(f"{below}{folder}/"), "the Hub")
        return {p[len(below) :]: e for p, e in found.items() if p.startswith(f"{below}{folder}/")}

    def fetch_command(self, missing: Sequence[str]) -> str:
        """The command that copies the dataset to this machine."""
        place = f"{self.bucket}/{self.prefix}".rstrip("/")
        return f"HF_HUB_OFFLINE=0 hf buckets sync hf://buckets/{place} DIR     then pass root=DIR"
