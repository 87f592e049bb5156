"""A dataset of the Hugging Face Hub at one commit: what is here is read here, of the other video
files ranges are read from the Hub."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from . import env
from .errors import FormatError, NotFoundError, make_error
from .hub_cold import api_client_keywords, client_key, commit_url
from .remote_manifest import Entry, folder_of, make_entry
from .remote_options import check_amount
from .remote_root import RemoteRoot, RemoteVideo, cache_key, check_kept
from .roots import LocalRoot, check_path

if TYPE_CHECKING:
    from .hub import Hub


def entries_of(listed: Sequence[Any], where: str) -> dict[str, Entry]:
    """{path: Entry} of files that huggingface_hub lists, folders left out. FormatError for an entry
    without size.
    """
    found = {}
    for item in listed:
        if not hasattr(item, "size"):
            continue  # a folder
        lfs, xet = getattr(item, "lfs", None), getattr(item, "xet_hash", None)
        size, version = item.size, f"git-{getattr(item, 'blob_id', '')}"
        if lfs is not None:
            size, version = lfs.size, f"sha256-{lfs.sha256}"
        elif xet:
            version = f"xet-{xet}"
        entry = make_entry(size, version)
        if entry is None:
            raise make_error(FormatError, f"{where} lists {item.path[:200]!r} without a size")
        found[check_path(item.path, where)] = entry
    return found


class HubRoot(LocalRoot, RemoteRoot):
    """`folder` holds the metadata and what else was downloaded of `commit`; video files that it
    lacks are looked for in other copies of the commit, then named by URL.
    """

    immutable = True

    def __init__(self, hub: Hub, commit: str, folder: Path) -> None:
        self.repo_id, self.commit = hub.repo_id, commit
        self.endpoint = hub.endpoint
        self._hub: Hub | None = hub
        self._token_wanted = hub.token_wanted
        RemoteRoot.__init__(self, commit_url(hub, commit), hub.options, commit)
        LocalRoot.__init__(self, folder)

    def _secrets(self) -> tuple[str, ...]:
        return ("_hub",)

    @property
    def hub(self) -> Hub:
        """The Hub as it is asked here: in another process with that process's own token."""
        if self._hub is None:
            from .hub import Hub

            self._hub = Hub(self.repo_id, self.commit, None, self._token_wanted, self.options)
        return self._hub

    def move(self, folder: Path) -> HubRoot:
        """The same with another folder."""
        return HubRoot(self.hub, self.commit, folder)

    # -- the network --

    def _keywords(self) -> dict[str, Any]:
        return api_client_keywords(self.url, self.hub)

    def _shared(self) -> Any:
        return client_key(self.hub)

    def need_online(self, missing: Sequence[str]) -> None:
        """OfflineError if `missing` cannot be fetched because the network is switched off."""
        self.hub.need_online(missing)

    # -- what is there --

    def _file_url(self, rel: str) -> str:
        return f"{self.url}/{quote(rel)}"

    def _list(self, folder: str) -> dict[str, Entry]:
        cold = self.hub.cold()
        listed = cold.listing(self.commit, folder) if cold is not None else None
        if listed is None:
            return entries_of(self.hub.tree(self.commit, folder), "the Hub")
        return listed

    def entry(self, rel: str) -> Entry:
        """Size and version of a file. NotFoundError if the commit has none such."""
        check_path(rel, "file")
        found = self._listed(folder_of(rel)).get(rel)
        if found is None:
            raise make_error(
                NotFoundError,
                f"{self.endpoint}, datasets/{self.repo_id}: commit {self.commit[:12]} has no "
                f"{rel}\n  Check the dataset; episodes= leaves episodes out",
                dataset=self.repo_id, revision=self.commit, file=rel,
            )  # fmt: skip
        return found

    def video(self, rel: str) -> RemoteVideo | str:
        """A video file: on this machine (its path), or where it is. As `entry`."""
        here = self._here(rel)
        if here is not None:
            return here
        entry = self.entry(rel)
        url = self._file_url(rel)
        etag = entry.etag if entry.version.startswith("sha256-") else None  # the commit is enough
        return RemoteVideo(url, entry.size, etag, None, cache_key(url, entry))

    def _here(self, rel: str) -> str | None:
        """The file on this machine: in `folder`, else in another copy of the commit. A copy must
        have the listed size; where nothing can be listed, snapshots of the commit are believed.
        """
        try:
            return self.resolve(rel)
        except NotFoundError:
            pass
        if self._manifest.folder(folder_of(rel)) is None and self.options.is_offline:
            return self._copy(rel, None)
        return self._copy(rel, self.entry(rel).size)

    def _copy(self, rel: str, size: int | None) -> str | None:
        """A copy of the file elsewhere on this machine: regular, of that size, inside its cache."""
        home, name = env.hf_lerobot_home(), "datasets--" + self.repo_id.replace("/", "--")
        own = home / self.repo_id
        bases = [(own, own)] if size is not None else []
        for cache in (home / "hub", env.hf_hub_cache()):
            bases.append((cache / name / "snapshots" / self.commit, cache / name))
        for base, inside in bases:
            real = os.path.realpath(base / rel)
            within = os.path.realpath(inside).rstrip("/") + "/"
            try:
                found = os.stat(real, follow_symlinks=False)
            except OSError:
                continue  # not there
            fits = stat.S_ISREG(found.st_mode) and size in (None, found.st_size)
            if fits and real.startswith(within) and not real.endswith(".incomplete"):
                return real
        return None

    def download(self, wanted: Sequence[str], whole: bool = False, again: bool = False) -> None:
        """Download those of `wanted` that are not here, and may move to the place of downloads.

        whole: `wanted` is all there is; again: ask for those that are here, too.
        """
        missing = [rel for rel in wanted if again or not (self.path / rel).exists()]
        if not missing:
            return
        hub = self.hub
        hub.need_online(missing)
        ours = os.path.realpath(hub.cache) + "/"
        if hub.folder is None and not self.real.startswith(ours):  # not to be written
            LocalRoot.__init__(self, hub.metadata(self.commit)[0])
        hub.files(self.commit, wanted, self.path, whole, again)

    def _bring(self, data: Sequence[str], videos: Sequence[str]) -> bool:
        """Parquet files the short way; False where it is not open, or did not bring them all."""
        hub = self.hub
        cold, ours = hub.cold(), os.path.realpath(hub.cache) + "/"
        if cold is None or not self.real.startswith(ours):
            return False
        known = [rel for rel in videos if self._manifest.entry(rel) and self._here(rel) is None]
        with hub.alone():
            missing = {r: self.entry(r) for r in data if not (self.path / r).exists()}
            found = [v for v in map(self.video, known) if isinstance(v, RemoteVideo)]
            return cold.bring(self.commit, missing, found)

    def prepare(self, data: Sequence[str], videos: Sequence[str]) -> None:
        """Download the Parquet files, list the videos that are not here. NotFoundError names one
        that the commit has not, UnsupportedMediaError says that data/ is too large.
        """
        missing = [rel for rel in data if not (self.path / rel).exists()]
        self.hub.need_online(missing)
        if missing:
            size = sum(self.entry(rel).size for rel in missing)
            check_amount(f"{self.endpoint}/datasets/{self.repo_id}", size, self.options)
            if not self._bring(missing, videos):
                self.download(data)
        absent = [rel for rel in videos if not self.exists(rel)]
        if self.options.is_offline:
            absent = [rel for rel in absent if self._here(rel) is None]
        if any(self._manifest.folder(folder_of(rel)) is None for rel in absent):
            self.need_online(absent)
        self._know(dict.fromkeys(map(folder_of, absent)))
        for rel in absent:
            self.entry(rel)
        if self.options.is_offline:
            check_kept(self, absent)
