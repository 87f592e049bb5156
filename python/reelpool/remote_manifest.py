"""What a remote root holds: path -> size and version, listed once and kept in reelpool's cache.

A manifest belongs to a root and a *pin*: a commit, or for roots without commits a hash of what
`meta/` was when they were opened. Processes that got a dataset by pickle find the manifest of its
pin, so they read the same versions without asking. A manifest that cannot be kept is no error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import stat
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from . import env
from .roots import check_path

logger = logging.getLogger("reelpool")

MAX_BYTES = 256 << 20
_VERSION = re.compile(r"(?:(?:sha256|xet|git|etag|date)-[\x20-\x7e]{1,120})?")


class Entry(NamedTuple):
    """A file: bytes, version ("sha256-", "xet-", "git-", "etag-" or "date-" and its text; "" where
    the server tells none), whether its server serves ranges."""

    size: int
    version: str
    ranges: bool = True

    @property
    def etag(self) -> str | None:
        """What the HTTP client compares: the ETag, or what a redirect of the Hub names."""
        kind, _, text = self.version.partition("-")
        return text if kind in ("sha256", "xet", "etag") else None

    @property
    def last_modified(self) -> str | None:
        """The date that stands for a version where there is no ETag."""
        kind, _, text = self.version.partition("-")
        return text if kind == "date" else None


def make_entry(size: Any, version: str, ranges: bool = True) -> Entry | None:
    """An entry of what a server said; None if that is no size and version."""
    if type(size) is not int or not 0 <= size < 2**62 or not _VERSION.fullmatch(version):
        return None
    return Entry(size, version, bool(ranges))


def folder_of(rel: str) -> str:
    """The part of a dataset that is listed at once: meta, data, videos/NAME."""
    parts = rel.split("/")
    return "/".join(parts[:2]) if parts[0] == "videos" and len(parts) > 2 else parts[0]


def pin_of(folders: Iterable[dict[str, Entry]]) -> str:
    """40 digits that tell these listings from others."""
    text = json.dumps([sorted([rel, *entry] for rel, entry in f.items()) for f in folders])
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _own(folder: Path) -> bool:
    """Whether nobody but this user can write to a folder that is there."""
    found = os.stat(folder, follow_symlinks=False)
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


class Manifests:
    """The manifests of one root, below `env.cache_dir()`/manifest."""

    def __init__(self, url: str) -> None:
        self.url = url
        name = hashlib.sha256(url.encode()).hexdigest()[:40]
        self.folder = env.cache_dir() / "manifest" / name

    def load(self, pin: str | None) -> tuple[str, dict[str, dict[str, Entry]]] | None:
        """(pin, {folder: {path: Entry}}) as kept; pin None: the latest. None where there is none,
        or it is damaged.
        """
        try:
            if not _own(self.folder):
                return None
            if pin is None:
                found = [p for p in self.folder.iterdir() if p.suffix == ".json"]
                if not found:
                    return None
                pin = max(found, key=lambda p: p.stat().st_mtime_ns).stem
            path = self.folder / f"{pin}.json"
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except OSError:
            return None  # not kept
        digest, _, body = data.partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() != digest:
            return None
        kept = json.loads(body)
        if kept["url"] != self.url:
            return None
        return pin, {
            folder: {check_path(rel, "a kept list"): Entry(*entry) for rel, entry in files.items()}
            for folder, files in kept["folders"].items()
        }

    def store(self, pin: str, folders: dict[str, dict[str, Entry]]) -> None:
        """Keep a manifest, in the place of an older one of the same pin."""
        body = json.dumps({"url": self.url, "folders": folders}, separators=(",", ":")).encode()
        part = None
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _own(self.folder):
                logger.warning("%s can be written by others: nothing is kept there", self.folder)
                return
            handle, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=self.folder)
            with open(handle, "wb") as stream:
                stream.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
            os.replace(part, self.folder / f"{pin}.json")
        except OSError as error:
            logger.warning(
                "%s: %s: the list of %s is not kept", self.folder, error.strerror, self.url
            )
            if part is not None:
                with contextlib.suppress(OSError):
                    os.unlink(part)


class Manifest:
    """The listings of one pin, in memory and kept. pin None: not known yet (`pin_to` says it)."""

    def __init__(self, url: str, pin: str | None = None) -> None:
        self.url, self.pin = url, pin
        self._folders: dict[str, dict[str, Entry]] = {}
        self._lock = threading.Lock()
        if pin is not None:
            self._load(pin)

    def _load(self, pin: str | None) -> bool:
        kept = Manifests(self.url).load(pin)
        if kept is not None:
            self.pin, self._folders = kept
        return kept is not None

    def load_latest(self) -> bool:
        """Take what was kept last; whether there was anything."""
        return self._load(None)

    def pin_to(self, pin: str) -> None:
        """Say which pin the listings belong to, and keep them."""
        self.pin = pin
        self._store()

    def folder(self, name: str) -> dict[str, Entry] | None:
        """{path: Entry} of a folder; None if it was not listed yet."""
        return self._folders.get(name)

    def entry(self, rel: str) -> Entry | None:
        """The entry of a file, if its folder was listed and has it."""
        return self._folders.get(folder_of(rel), {}).get(rel)

    def put(self, folders: dict[str, dict[str, Entry]], add: bool = False) -> None:
        """Take listings. add: to those that are there."""
        with self._lock:
            for name, files in folders.items():
                old = self._folders.get(name, {}) if add else {}
                self._folders[name] = {**old, **files}
        if self.pin is not None:
            self._store()

    def _store(self) -> None:
        if self.pin is not None:
            with self._lock:
                Manifests(self.url).store(self.pin, self._folders)
