"""Datasets that stay where they are: metadata and Parquet files are copied whole, videos are named
as URLs for the engine, which reads ranges of them.

`RemoteRoot` is what `LocalRoot` is for a directory. One subclass per kind of source says where a
file is and what is there; this module knows caches, copies and errors.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from . import env
from .errors import (
    ClosedError,
    DatasetChangedError,
    FormatError,
    NotFoundError,
    OfflineError,
    ReelpoolError,
    StorageError,
    UnsupportedMediaError,
    make_error,
    name_dataset,
)
from .hub_calls import FIRST_ANSWER_S
from .remote_manifest import Entry, Manifest, folder_of, pin_of
from .remote_node_cache import kept_keys, node_cache
from .remote_options import Options, check_amount, client_keywords
from .roots import INFO_FILE, check_path

if TYPE_CHECKING:
    from ._core import HttpClient

logger = logging.getLogger("reelpool")

READ_AHEAD_BYTES = 256 << 20
AT_ONCE = 16
LEFT_BEHIND_S = 2.0  # how long a failed call waits for its threads
LARGEST_WHOLE = 64 << 20  # bytes of a file from a server without ranges

T = TypeVar("T")


class RemoteVideo(NamedTuple):
    """A video file as the engine reads it: URL, bytes, the version that every answer must have
    (neither: any, the same always), its name in the node's cache, and whether its server serves no
    ranges.
    """

    url: str
    size: int
    etag: str | None
    last_modified: str | None
    key: str
    whole: bool = False


class RootUrl(str):
    """A root's URL where a directory's path is expected: `root / "meta/info.json"`."""

    __slots__ = ()
    auth_advice: str | None = None  # what to do where access is refused; None: as of the Hub

    def __truediv__(self, rel: object) -> RootUrl:
        return type(self)(f"{self}/{rel}")

    def is_absolute(self) -> bool:
        """True."""
        return True


def cache_key(url: str, entry: Entry) -> str:
    """The name of a file in the node's cache: by its content where that is known, so that copies of
    it elsewhere are the same; else by place and version.
    """
    kind, _, text = entry.version.partition("-")
    if kind in ("sha256", "xet") and text.isalnum() and text.islower() and len(text) == 64:
        return f"{kind}-{text}"
    if kind in ("sha256", "xet") and text.isdigit() and len(text) == 64:
        return f"{kind}-{text}"
    name = f"{url}\0{entry.version}\0{entry.size}"
    return f"loc-{hashlib.sha256(name.encode()).hexdigest()}"


def at_once(
    function: Callable[[Any], T], items: Sequence[Any], close: Callable[[], Any], count: int
) -> list[T]:
    """`function` of each item, `count` at once. At the first error, or on Ctrl-C, `close()` ends
    what is under way; threads that do not heed it are left behind.
    """
    if len(items) < 2 or count < 2:
        return [function(item) for item in items]
    results: list[Any] = [None] * len(items)
    errors: list[tuple[int, BaseException]] = []
    numbers, lock, stop = iter(range(len(items))), threading.Lock(), threading.Event()

    def work() -> None:
        while not stop.is_set():
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                results[number] = function(items[number])
            except BaseException as error:  # raised again below
                errors.append((number, error))
                stop.set()

    threads = [
        threading.Thread(target=work, name="reelpool-remote", daemon=True)
        for _ in range(min(count, len(items)))
    ]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive() and not stop.is_set():
                thread.join(0.1)
    except BaseException:
        stop.set()
        raise
    finally:
        if stop.is_set():
            close()
    for thread in threads:
        thread.join(LEFT_BEHIND_S)
    if errors:  # ClosedError: only of what another one's failure ended
        raise min(errors, key=lambda pair: (isinstance(pair[1], ClosedError), pair[0]))[1]
    return results


class ClientBox:
    """An HTTP client, made at first use, and the root's way to it."""

    def __init__(self, keywords: dict[str, Any]) -> None:
        self._keywords = keywords
        self._client: HttpClient | None = None
        self._lock = threading.Lock()

    def get(self) -> HttpClient:
        """The client of this process."""
        with self._lock:
            if self._client is None:
                from .engine import load_core

                self._client = load_core().HttpClient(**self._keywords)
            return self._client

    def close(self) -> None:
        """End its calls; the next use makes a new one."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


_boxes: weakref.WeakValueDictionary[Any, ClientBox] = weakref.WeakValueDictionary()


def shared_box(key: Any, keywords: Callable[[], dict[str, Any]]) -> tuple[ClientBox, bool]:
    """The client that roots with this key have in common, for as long as one of them keeps it; and
    whether it was made now, with the given keywords.
    """
    box = _boxes.get(key)
    if box is not None:
        return box, False
    given = keywords() | {"url_cache": str(env.cache_dir() / "url")}
    box = _boxes[key] = ClientBox({k: v for k, v in given.items() if v is not None})
    return box, True


class RemoteRoot:
    """A dataset behind a URL. `url` is canonical and holds no secret; `path` says the same to
    whoever joins file names to it. Nothing is asked before a method needs it.

    A pickle holds no client, token or key. Methods raise NotFoundError, AuthError, OfflineError,
    StorageError, RemoteError, RemoteTimeoutError, DatasetChangedError, FormatError.
    """

    _opening = False
    path_type = RootUrl
    immutable = False  # a pin is enough to know the files: a kept manifest is never out of date

    def __init__(self, url: str, options: Options, pin: str | None = None) -> None:
        self.url, self.options = url, options
        self.path = self.path_type(url)
        self._given_pin = pin
        self._reset()

    def _reset(self) -> None:
        self._box: ClientBox | None = None
        self._manifest = Manifest(self.url, self._given_pin)
        self._copies: Any = None
        self._cache_place: tuple[str | None, int] | None = None
        self._lock, self._listing = threading.Lock(), threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        volatile = ("_box", "_manifest", "_copies", "_cache_place", "_lock", "_listing",
                    *self._secrets())  # fmt: skip
        state = {k: v for k, v in self.__dict__.items() if k not in volatile}
        state["_given_pin"] = self._manifest.pin
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(dict.fromkeys(self._secrets()), **state)
        self._reset()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    # -- what subclasses say --

    def _secrets(self) -> tuple[str, ...]:
        """Attributes that no pickle holds; None there."""
        return ()

    def _file_url(self, rel: str) -> str:
        """URL of a file."""
        raise NotImplementedError

    def _list(self, folder: str) -> dict[str, Entry]:
        """What is below a folder; {} where it is not there."""
        raise NotImplementedError

    def _keywords(self) -> dict[str, Any]:
        """Keywords of this root's HTTP client."""
        return client_keywords(self.url, self.options)

    def _shared(self) -> Any:
        """What roots with the same client have in common; None: this one's own."""
        return None

    def fetch_command(self, missing: Sequence[str]) -> str:
        """The command that copies the dataset to this machine."""
        raise NotImplementedError

    # -- the network --

    def client(self) -> HttpClient:
        """The HTTP client of this process, made at first use."""
        with self._lock:
            if self._box is None:
                key = self._shared()
                if key is not None:
                    self._box = shared_box(key, self._keywords)[0]
                else:
                    keywords = self._keywords()
                    keywords["url_cache"] = str(env.cache_dir() / "url")
                    if self._opening:
                        timeout = keywords["network_timeout"]
                        keywords["network_timeout"] = min(timeout, FIRST_ANSWER_S)
                    self._box = ClientBox({k: v for k, v in keywords.items() if v is not None})
            return self._box.get()

    def close(self) -> None:
        """End the calls under way and close the connections, if they are this root's alone; the
        next use opens new ones.
        """
        if self._box is not None and self._shared() is None:
            self._box.close()

    def remote_options(self) -> dict[str, Any]:
        """What the engine is told: cache_dir (None: no cache), cache_bytes, read_ahead_bytes,
        max_connections (None: its own choice), offline. The same at every call: the disk is looked
        at once.
        """
        if self._cache_place is None:
            self._cache_place = node_cache(self.options.disk_cache)
        place, size = self._cache_place
        return {
            "cache_dir": place, "cache_bytes": size, "read_ahead_bytes": READ_AHEAD_BYTES,
            "max_connections": self.options.max_connections, "offline": self.options.is_offline,
        }  # fmt: skip

    def need_online(self, missing: Sequence[str]) -> None:
        """OfflineError if `missing` cannot be fetched because the network is switched off."""
        if missing and self.options.is_offline:
            what = f"{missing[0]} of {self.url} is"
            if len(missing) > 1:
                what = f"{len(missing)} files of {self.url} are ({missing[0]})"
            raise make_error(
                OfflineError,
                f"{what} not on this machine, and the network is switched off (HF_HUB_OFFLINE, "
                f"TRANSFORMERS_OFFLINE or storage_options)\n  Run: {self.fetch_command(missing)}",
                dataset=self.url, file=missing[0],
            )  # fmt: skip

    # -- what is there --

    @property
    def pin(self) -> str | None:
        """The commit, or a hash of what was there at the start; None before `open`."""
        return self._manifest.pin

    def open(self, probe: str = INFO_FILE) -> RemoteRoot:
        """Pin the root to what is in the folder of `probe` now. NotFoundError without that file."""
        if self.options.is_offline:
            if not self._manifest.load_latest():
                self.need_online([probe])
            return self
        self._opening = True  # a mistaken host is told soon
        try:
            self._pin(probe)
        finally:
            self.close()
            self._opening, self._box = False, None
        return self

    def _pin(self, probe: str) -> None:
        """List the folder of `probe`, and make that list the pin."""
        folder = folder_of(probe)
        listed = self._list(folder)
        if probe not in listed:
            raise self.no_dataset(probe)
        self._manifest.put({folder: listed})
        self._manifest.pin_to(pin_of([listed]))

    def no_dataset(self, probe: str) -> BaseException:
        """That there is no dataset below the URL."""
        return make_error(
            NotFoundError,
            f"no dataset at {self.url}: {probe} is missing\n"
            "  Check the URL: it names the folder that holds meta/, data/ and videos/",
            dataset=self.url, file=probe,
        )  # fmt: skip

    def _listed(self, folder: str) -> dict[str, Entry]:
        """The files of a folder, as kept or asked for."""
        with self._listing:
            found = self._manifest.folder(folder)
            if found is None:
                self._know([folder])
                found = self._manifest.folder(folder) or {}
            return found

    def _know(self, folders: Iterable[str]) -> None:
        """List those of some folders that were not listed yet."""
        unknown = [name for name in folders if self._manifest.folder(name) is None]
        if not unknown:
            return
        self.need_online([f"{name}/" for name in unknown])
        found = at_once(self._list, unknown, self.close, AT_ONCE)
        pinned = self._given_pin if "meta" in unknown and not self.immutable else None
        if pinned is not None and pin_of([found[unknown.index("meta")]]) != pinned:
            raise make_error(
                DatasetChangedError,
                f"{self.url} is not what it was when it was opened\n  Open the dataset again",
                dataset=self.url, file=INFO_FILE,
            )  # fmt: skip
        self._manifest.put(dict(zip(unknown, found)))

    def entry(self, rel: str) -> Entry:
        """Size and version of a file. NotFoundError if there is none."""
        check_path(rel, "file")
        found = self._listed(folder_of(rel)).get(rel)
        if found is None:
            raise make_error(
                NotFoundError, f"{rel} is missing in {self.url}", dataset=self.url, file=rel
            )
        return found

    def files_in(self, folder: str) -> list[str]:
        """The files below a folder, sorted."""
        below = folder.rstrip("/") + "/"
        return sorted(rel for rel in self._listed(folder_of(below)) if rel.startswith(below))

    def video(self, rel: str) -> RemoteVideo | str:
        """A video file: on this machine (its path), or where it is. As `entry`."""
        entry, url = self.entry(rel), self._file_url(rel)
        return RemoteVideo(
            url, entry.size, entry.etag, entry.last_modified, cache_key(url, entry),
            not entry.ranges,
        )  # fmt: skip

    # -- whole files --

    def resolve(self, rel: str) -> str:
        """The path of a copy of the file `rel` on this machine, fetched if need be."""
        entry = self.entry(rel)
        files = self._files()
        try:
            copy = files.copy_of(rel, entry)
            if copy is None:
                self.need_online([rel])
                copy = files.fetch(rel, entry)
            return str(copy)
        except ReelpoolError as error:
            raise self.named(error, rel) from None

    def named(self, error: ReelpoolError, rel: str) -> ReelpoolError:
        """An error about a file, which it names as the dataset does, not percent-encoded."""
        name_dataset(error, self.url, self.path)
        coded, plain = self._file_url(rel), f"{self.path}/{rel}"
        if error.file in (None, coded):
            error.file = rel
        if error.args and isinstance(error.args[0], str):
            error.args = (error.args[0].replace(coded, plain), *error.args[1:])
        return error

    def _files(self) -> Any:
        with self._lock:
            if self._copies is None:
                from .remote_files import RemoteFiles

                self._copies = RemoteFiles(
                    self.url, client=self.client, close=self.close, url_of=self._file_url
                )
            return self._copies

    def exists(self, rel: str) -> bool:
        """True if there is such a file."""
        try:
            self.entry(rel)
        except NotFoundError:
            return False
        return True

    def read_bytes(self, rel: str, limit: int | None = None) -> bytes:
        """The whole file. FormatError above `limit` bytes, else as `resolve`."""
        if limit is not None and self.entry(rel).size > limit:
            raise make_error(FormatError, f"{rel} is larger than {limit} bytes", file=rel)
        path = self.resolve(rel)
        try:
            with open(path, "rb") as stream:
                return stream.read()
        except OSError as error:
            raise make_error(
                StorageError, f"{path}: {error.strerror}", file=rel, status=error.errno
            ) from error

    # -- before the first sample --

    def foresee(self, rels: Sequence[str], folder: str) -> None:
        """Copy files, and those below `folder`, at once that would be read one after the other.
        One that is missing is left to its reader.
        """
        if self.options.is_offline:
            return
        found = [rel for rel in dict.fromkeys([*rels, *self.files_in(folder)]) if self.exists(rel)]
        count = min(AT_ONCE, self.options.max_connections or AT_ONCE)
        at_once(self.resolve, self._missing(found), self.close, count)

    def prepare(self, data: Sequence[str], videos: Sequence[str]) -> None:
        """Copy Parquet files and look for video files; NotFoundError names one that is missing.

        UnsupportedMediaError if data/ is larger than may be copied.
        """
        self._know(dict.fromkeys(folder_of(rel) for rel in [*data, *videos]))
        self._check_ranges(videos)
        missing = self._missing(data)
        self.need_online(missing)
        check_amount(self.url, sum(self.entry(rel).size for rel in missing), self.options)
        count = min(AT_ONCE, self.options.max_connections or AT_ONCE)
        at_once(self.resolve, missing, self.close, count)
        if self.options.is_offline:
            check_kept(self, videos)

    def _check_ranges(self, videos: Sequence[str]) -> None:
        """UnsupportedMediaError for large files of a server without ranges; small ones are read
        whole, with a word about it.
        """
        found = [(rel, self.entry(rel)) for rel in videos]
        whole = [(rel, entry.size) for rel, entry in found if not entry.ranges]
        large = [rel for rel, size in whole if size > LARGEST_WHOLE]
        if large:
            raise make_error(
                UnsupportedMediaError,
                f"{self.url} serves no byte ranges, and {large[0]} is too large to be read whole\n"
                "  Use a server with ranges, or copy the dataset here and pass root=DIR",
                dataset=self.url, file=large[0],
            )  # fmt: skip
        if whole:
            logger.warning("%s serves no byte ranges: video files are read whole", self.url)

    def _missing(self, rels: Sequence[str]) -> list[str]:
        return [rel for rel in rels if self._files().copy_of(rel, self.entry(rel)) is None]


def check_kept(root: RemoteRoot, videos: Iterable[str]) -> None:
    """OfflineError for video files of which the node's cache has nothing."""
    kept = kept_keys(root.options.disk_cache)
    found = [(rel, root.video(rel)) for rel in videos]
    root.need_online([r for r, v in found if isinstance(v, RemoteVideo) and v.key not in kept])
