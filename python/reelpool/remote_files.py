"""Whole files of an `http(s)://` root, fetched into reelpool's own cache.

A copy is known by what the server says of the file: URL, size and ETag (or Last-Modified). It is
written under another name, gets its own once it is whole, and goes on where an earlier try ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from . import env
from .errors import OfflineError, StorageError, UnsupportedMediaError, make_error, redact
from .remote_manifest import Entry
from .remote_root import LARGEST_WHOLE, at_once
from .roots import check_path

if TYPE_CHECKING:
    from ._core import HttpClient

CHUNK = 8 << 20  # bytes of one range
READERS = 4


class RemoteFiles:
    """The files below an http(s) root, as local copies below `cache` (default: `env.cache_dir()`).

    `options` are those of `_core.HttpClient`; or `client` and `close` give and end a client that is
    somebody else's, and `url_of` says where a file is. One object serves any number of threads;
    processes that share the cache fetch a file once. Pickles without its client, and not at all
    with somebody else's.
    """

    mode = 0o600  # of copies, and of the folders they are in with x for r

    def __init__(
        self,
        root: str,
        cache: Path | None = None,
        *,
        client: Callable[[], HttpClient] | None = None,
        close: Callable[[], None] | None = None,
        url_of: Callable[[str], str] | None = None,
        **options: Any,
    ) -> None:
        if client is None:
            if not root.startswith(("http://", "https://")):
                raise ValueError(f"{redact(root)!r} is no http or https root")
            if "?" in root or "#" in root or "@" in root.split("/", 3)[2]:
                raise ValueError(f"{redact(root)!r}: a root has no query, fragment or user name")
        self.root = root.rstrip("/")
        self.cache = cache if cache is not None else env.cache_dir() / "http"
        self._options = options
        self._borrowed, self._end, self._url_of = client, close, url_of
        self._client: HttpClient | None = None
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"RemoteFiles({self.root!r})"

    def __getstate__(self) -> dict[str, Any]:
        secret = ("token", "proxy")
        kept = {k: v for k, v in self._options.items() if k not in secret}
        return {"root": self.root, "cache": self.cache, "_options": kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _client=None, _lock=threading.Lock())
        self._borrowed = self._end = self._url_of = None

    @property
    def client(self) -> HttpClient:
        """The HTTP client, made at its first use."""
        if self._borrowed is not None:
            return self._borrowed()
        with self._lock:
            if self._client is None:
                from ._core import HttpClient

                self._client = HttpClient(**self._options)
            return self._client

    def close(self) -> None:
        """End the calls under way and close the connections; the next use opens new ones."""
        if self._end is not None:
            self._end()
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def url(self, name: str) -> str:
        """URL of a file; raises FormatError for a name that could leave the root."""
        check_path(name, self.root)
        return f"{self.root}/{quote(name)}" if self._url_of is None else self._url_of(name)

    def _target(self, name: str, entry: Entry) -> Path:
        """Where the copy of a version of a file lies, there or not."""
        version = entry.version.partition("-")[2]
        key = hashlib.sha256(f"{self.url(name)}\0{version}\0{entry.size}".encode()).hexdigest()
        return self.cache / key[:2] / key / Path(name).name

    def copy_of(self, name: str, entry: Entry) -> Path | None:
        """The local copy of a version of a file, if there is one."""
        target = self._target(name, entry)
        try:
            return target if target.stat().st_size == entry.size else None
        except OSError:
            return None  # not here

    def ask(self, name: str) -> Entry:
        """Size and version of a file, asked of the server. As `_core.HttpClient.size`."""
        info = self.client.size(self.url(name))
        version = f"date-{info['last_modified']}" if info["last_modified"] else ""
        if info["etag"]:
            version = f"etag-{info['etag']}"
        return Entry(info["size"], version, info["accepts_ranges"])

    def fetch(self, name: str, entry: Entry | None = None) -> Path:
        """Path of a local copy of the file `name` (relative to the root), fetched if need be.
        entry: the version to take; None: whichever the server has.

        Raises the errors of `_core.HttpClient.read`, StorageError when the disk fails,
        UnsupportedMediaError for a large file of a server without ranges, OfflineError where the
        network is switched off.
        """
        url = self.url(name)
        if env.hub_offline():
            raise make_error(OfflineError, f"the network is switched off: {url} is remote",
                             file=url)  # fmt: skip
        info = entry or self.ask(name)
        target = self._target(name, info)
        if self.copy_of(name, info) is not None:
            return target
        if not info.ranges and info.size > LARGEST_WHOLE:
            raise make_error(
                UnsupportedMediaError,
                f"the server serves no ranges, and the file has {info.size} bytes",
                file=url,
            )
        try:
            folders = self.mode | (self.mode & 0o444) >> 2
            target.parent.mkdir(mode=folders, parents=True, exist_ok=True)
            with _unfinished(target, self.mode) as file:
                if file is not None:
                    self._fill(file, url, info)
                    os.replace(target.parent / _part(target), target)
        except OSError as error:
            if isinstance(error, StorageError) or error.errno is None:
                raise
            raise make_error(
                StorageError, f"cannot write the copy of {url}: {error.strerror}",
                file=str(target), status=error.errno,
            ) from error  # fmt: skip
        return target

    def _fill(self, file: int, url: str, entry: Entry) -> None:
        """Append what is missing; the bytes that are there came in order."""
        size, client = entry.size, self.client
        if not entry.ranges:
            _write(file, client.read(url, 0, size, size, entry.etag, entry.last_modified, True), 0)
            return
        done = os.fstat(file).st_size
        if done > size:
            os.ftruncate(file, 0)
            done = 0
        starts = range(done, size, CHUNK)

        def part(at: int) -> bytearray:
            count = min(CHUNK, size - at)
            return client.read(url, at, count, size, entry.etag, entry.last_modified)

        for first in range(0, len(starts), READERS):  # so many are in memory
            group = starts[first : first + READERS]
            for at, data in zip(group, at_once(part, group, self.close, READERS)):
                _write(file, data, at)


def _part(target: Path) -> str:
    return f".{target.name}.part"


def _write(file: int, data: bytearray, at: int) -> None:
    view = memoryview(data)
    while view:
        put = os.pwrite(file, view, at)
        view, at = view[put:], at + put


@contextlib.contextmanager
def _unfinished(target: Path, mode: int) -> Iterator[int | None]:
    """A descriptor of the copy in the making, held by this process alone; None: another was faster
    and the copy is there.
    """
    path = target.parent / _part(target)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if target.is_file():
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()  # made since; whoever waits for it finds the copy
                yield None
                return
            if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
                yield file
                return
        finally:
            os.close(file)
