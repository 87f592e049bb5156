"""The first start of a dataset of the Hub: few requests, those that do not need each other at once.

Asked with reelpool's own HTTP client, so huggingface_hub's is not even imported. Nothing here has
the last word on a failure: what does not come this way is None, and is asked for by huggingface_hub
(`hub.py`), whose answer makes the error. What comes is checked against the hashes of the commit's
list, and put where huggingface_hub puts it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import os
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from . import env
from .errors import FormatError, ReelpoolError, RemoteError, make_error
from .hub_calls import IN_A_ROW
from .remote_files import CHUNK, RemoteFiles
from .remote_manifest import Entry, Manifests, folder_of, make_entry
from .remote_options import client_keywords, origin_of
from .remote_root import ClientBox, RemoteVideo, shared_box
from .roots import INFO_FILE, check_path

if TYPE_CHECKING:
    from .hub import Hub

logger = logging.getLogger("reelpool")

QUIET_S = 10.0  # without a byte: then huggingface_hub is asked
PAGE_BYTES = 64 << 20
FILE_BYTES = 64 << 20  # of a metadata file
MAX_PAGES = 10_000
AT_ONCE = 16
FEW = 16  # video files that are looked up before one is wanted
NEWEST = "v3.0"

_NEXT = re.compile(r'<([^<>\s]+)>\s*;\s*rel="?next"?')
_GUESSES = {  # what a dataset of a version has, asked for before it is listed
    "v2.0": ("meta/info.json", "meta/stats.json", "meta/tasks.jsonl", "meta/episodes.jsonl"),
    "v2.1": ("meta/info.json", "meta/episodes_stats.jsonl", "meta/tasks.jsonl",
             "meta/episodes.jsonl"),
}  # fmt: skip
_GUESSES_V3 = ("meta/info.json", "meta/stats.json", "meta/tasks.parquet",
               "meta/episodes/chunk-000/file-000.parquet")  # fmt: skip


def client_key(hub: Hub) -> tuple[Any, ...]:
    """What roots and starts that may share an HTTP client have in common."""
    return ("hub", hub.endpoint, hub.token(), hub.options, *env.proxies().items())


def api_client_keywords(url: str, hub: Hub) -> dict[str, Any]:
    """Keywords of an HTTP client for files behind the Hub's API."""
    keywords = client_keywords(url, hub.options)
    token = hub.token()
    if token is not None:
        keywords |= {"token": token, "token_origin": origin_of(hub.endpoint)}
    return keywords


def commit_url(hub: Hub, commit: str) -> str:
    """What the files of a commit are below."""
    return f"{hub.endpoint}/datasets/{hub.repo_id}/resolve/{commit}"


def entry_of(item: Any, where: str) -> tuple[str, Entry] | None:
    """(path, Entry) of a file as the API lists it, None for a folder. FormatError for one without
    path or size.
    """
    if not isinstance(item, dict) or not isinstance(item.get("path"), str):
        raise make_error(FormatError, f"{where} lists something without a path")
    if item.get("type") != "file":
        return None
    size, version = item.get("size"), f"git-{item.get('oid', '')}"
    lfs, xet = item.get("lfs"), item.get("xetHash")
    if isinstance(lfs, dict):
        size, version = lfs.get("size"), f"sha256-{lfs.get('oid', '')}"
    elif xet:
        version = f"xet-{xet}"
    entry = make_entry(size, version)
    if entry is None:
        raise make_error(FormatError, f"{where} lists {item['path'][:200]!r} without a size")
    return check_path(item["path"], where), entry


def digest_of(entry: Entry) -> str | None:
    """The hex digits that an entry promises of the content; None where it promises none."""
    kind, _, text = entry.version.partition("-")
    length = {"git": 40, "sha256": 64}.get(kind)
    return text if length and re.fullmatch(rf"[0-9a-f]{{{length}}}", text) else None


def hasher_of(entry: Entry) -> Any:
    """A hash object that ends in `digest_of(entry)` over the right bytes."""
    if entry.version.startswith("git-"):
        return hashlib.sha1(b"blob %d\0" % entry.size, usedforsecurity=False)
    return hashlib.sha256()


def is_content(data: bytes, entry: Entry) -> bool:
    """Whether these are the bytes of an entry."""
    if len(data) != entry.size:
        return False
    hasher = hasher_of(entry)
    hasher.update(data)
    return hasher.hexdigest() == digest_of(entry)


class Place:
    """Files of a commit in huggingface_hub's cache: contents in blobs/, links in snapshots/."""

    def __init__(self, cache: Path, repo_id: str, commit: str) -> None:
        self.base = cache / f"datasets--{repo_id.replace('/', '--')}"
        self.folder = self.base / "snapshots" / commit

    def blob(self, entry: Entry) -> Path:
        """Where the bytes of an entry lie, there or not. ValueError for one without digest."""
        digest = digest_of(entry)
        if digest is None:
            raise ValueError(f"no digest: {entry}")
        return self.base / "blobs" / digest

    def put(self, rel: str, data: bytes, entry: Entry) -> None:
        """Write a file and name it. OSError."""
        blob = self.blob(entry)
        if not (blob.is_file() and blob.stat().st_size == entry.size):
            blob.parent.mkdir(parents=True, exist_ok=True)
            part = blob.with_name(f".{blob.name}.{uuid.uuid4().hex}.part")
            try:
                with open(part, "xb") as stream:
                    stream.write(data)
                os.replace(part, blob)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        self.name(rel, entry)

    def name(self, rel: str, entry: Entry) -> None:
        """Link a file to its bytes, in the place of another link. OSError."""
        link = self.folder / rel
        link.parent.mkdir(parents=True, exist_ok=True)
        part = link.with_name(f".{link.name}.{uuid.uuid4().hex}")
        try:
            part.symlink_to(os.path.relpath(self.blob(entry), link.parent))
            os.replace(part, link)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


class Blobs(RemoteFiles):
    """Files of a commit on their way into blobs/: by ranges, gone on with after a broken start."""

    mode = 0o666  # as huggingface_hub's

    def __init__(self, hub: Hub, commit: str, client: Any) -> None:
        super().__init__(
            commit_url(hub, commit), client=lambda: client, close=lambda: None,
            url_of=lambda rel: f"{commit_url(hub, commit)}/{quote(rel)}",
        )  # fmt: skip
        self.hub, self.commit, self.place = hub, commit, Place(hub.cache, hub.repo_id, commit)

    def _target(self, name: str, entry: Entry) -> Path:
        return self.place.blob(entry)

    def _fill(self, file: int, url: str, entry: Entry) -> None:
        for _ in range(IN_A_ROW):
            super()._fill(file, url, entry)
            if _is_content_of(file, entry):
                return
            os.ftruncate(file, 0)
        raise self.hub.other_bytes(unquote(url.rpartition(f"/{self.commit}/")[2]), self.commit)

    def bring(self, rel: str, entry: Entry) -> bool:
        """Fetch a file and name it. As `fetch`."""
        self.fetch(rel, entry)
        self.place.name(rel, entry)
        return True


def _is_content_of(file: int, entry: Entry) -> bool:
    hasher, at = hasher_of(entry), 0
    while data := os.pread(file, CHUNK, at):
        hasher.update(data)
        at += len(data)
    return at == entry.size and hasher.hexdigest() == digest_of(entry)


class ColdStart:
    """Asks one Hub about one dataset. Methods return None where something did not come: then it is
    huggingface_hub's turn. `seconds`: how long was waited in vain.
    """

    def __init__(self, hub: Hub) -> None:
        self.hub, self.seconds, self.broken = hub, 0.0, False
        self._box: ClientBox | None = None
        self._own = False

    def _client(self) -> Any:
        if self._box is None:
            hub = self.hub
            _prepare_tables()
            self._box, self._own = shared_box(
                client_key(hub), lambda: api_client_keywords(hub.endpoint + "/", hub)
            )
        return self._box.get()

    def together(self, jobs: Sequence[Callable[[Any], Any]]) -> list[Any]:
        """Each of `jobs` called with the client, all at once; None for those that failed."""
        client, results = self._client(), [None] * len(jobs)
        numbers, lock = iter(range(len(jobs))), threading.Lock()
        left = threading.Semaphore(0)
        failures: list[BaseException] = []

        def work() -> None:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    results[number] = jobs[number](client)
                except (ReelpoolError, ValueError, OSError) as error:
                    if isinstance(error, RemoteError) and error.dataset == self.hub.repo_id:
                        failures.append(error)  # it came, and is wrong
                    logger.debug("%s: %s", self.hub.what, error)  # huggingface_hub's turn
                except BaseException as error:  # raised again below
                    failures.append(error)
                left.release()

        try:
            for _ in range(min(AT_ONCE, len(jobs))):
                threading.Thread(target=work, name="reelpool-remote", daemon=True).start()
            for _ in jobs:
                if not self._wait(left, client):
                    break
        except BaseException:  # Ctrl-C
            if self._own and self._box is not None:
                self._box.close()
            raise
        if failures:
            raise failures[0]
        return results

    def _wait(self, left: threading.Semaphore, client: Any) -> bool:
        """Whether one more job ended; False after QUIET_S without a byte."""
        begun, seen = time.monotonic(), -1
        while not left.acquire(timeout=0.2):
            count = client.stats().get("bytes_fetched", 0)
            if count != seen:
                begun, seen = time.monotonic(), count
            elif time.monotonic() - begun > QUIET_S:
                self.broken, self.seconds = True, QUIET_S
                return False  # the threads end by themselves, at network_timeout
        return True

    # -- what is asked --

    def _json(self, path: str) -> Callable[[Any], Any]:
        url = f"{self.hub.endpoint}/api/datasets/{self.hub.repo_id}/{path}"
        return lambda client: json.loads(client.get(url, PAGE_BYTES))

    def _info(self, name: str) -> Callable[[Any], Any]:
        return self._json(f"revision/{quote(name, safe='')}?expand=sha")

    def pin(self, revision: str | None, choose: Callable[[set[str]], str]) -> Any:
        """(name, sha, id) of a revision; None: of the one that `choose` takes of all names."""
        jobs = [self._info(revision or NEWEST)]
        if revision is None:
            jobs.append(self._json("refs"))
        info, *refs = self.together(jobs)
        name = revision or NEWEST
        if revision is None:
            names = _names(refs[0])
            if names is None:
                return None
            name = choose(names)
            if name != NEWEST:
                (info,) = self.together([self._info(name)])
        if not isinstance(info, dict) or not isinstance(info.get("sha"), str):
            return None
        return name, info["sha"], info.get("id")

    def listing(self, commit: str, folder: str) -> dict[str, Entry] | None:
        """The files below a folder of a commit, all pages of them."""
        (found,) = self.together([lambda client: self._pages(client, commit, folder)])
        return found

    def _tree_url(self, commit: str, folder: str) -> str:
        below = f"/{quote(folder, safe='')}" if folder else ""
        hub = self.hub
        return f"{hub.endpoint}/api/datasets/{hub.repo_id}/tree/{commit}{below}?recursive=true"

    def _pages(self, client: Any, commit: str, folder: str, most: int = MAX_PAGES) -> Any:
        """{path: Entry}; None if there are more pages than `most`."""
        url: str | None = self._tree_url(commit, folder)
        found: dict[str, Entry] = {}
        seen: set[str] = set()
        for _ in range(most):
            body, headers = client.get(url, PAGE_BYTES, headers=True)
            listed = json.loads(body)
            if not isinstance(listed, list):
                raise ValueError("no list")
            found |= dict(filter(None, (entry_of(item, "the Hub") for item in listed)))
            after = _NEXT.search(headers.get("link", ""))
            if after is None:
                return found
            url = after.group(1)
            if url in seen or not url.startswith(self.hub.endpoint + "/"):
                raise ValueError("the list leads elsewhere")
            seen.add(url)
        return None

    # -- metadata --

    def place(self, commit: str) -> Place:
        """Where files of a commit go."""
        return Place(self.hub.cache, self.hub.repo_id, commit)

    def metadata(self, commit: str, name: str | None) -> bool:
        """Put all of meta/ into huggingface_hub's cache, info.json last; keep the list of the
        commit. False where not all of it came.
        """
        base, guesses = commit_url(self.hub, commit), _GUESSES.get(name or "", _GUESSES_V3)

        def get(rel: str) -> Callable[[Any], Any]:
            return lambda client: client.get(f"{base}/{quote(rel)}", FILE_BYTES)

        # The list of everything is one page for most datasets; of others only meta/ is wanted now.
        jobs = [lambda client: self._pages(client, commit, "", 1), *map(get, guesses)]
        listed, *bodies = self.together(jobs)
        whole = listed is not None
        if not whole:
            listed = self.listing(commit, "meta") if not self.broken else None
        if not listed or INFO_FILE not in listed:
            return False
        meta = {rel: entry for rel, entry in listed.items() if folder_of(rel) == "meta"}
        if any(digest_of(e) is None or e.size > FILE_BYTES for e in meta.values()):
            return False
        came = {rel: body for rel, body in zip(guesses, bodies) if rel in meta and body is not None}
        good = {rel: body for rel, body in came.items() if is_content(body, meta[rel])}
        for _ in range(IN_A_ROW):
            wanted = [rel for rel in meta if rel not in good]
            if not wanted or self.broken:
                break
            came |= dict(zip(wanted, self.together([get(rel) for rel in wanted])))
            good |= {r: came[r] for r in wanted if came[r] and is_content(came[r], meta[r])}
        for rel, entry in meta.items():
            if rel not in good and came.get(rel) and len(came[rel]) == entry.size:
                raise self.hub.other_bytes(rel, commit)
        if len(good) < len(meta):
            return False
        place = self.place(commit)
        for rel in sorted(good, key=lambda rel: rel == INFO_FILE):
            place.put(rel, good[rel], meta[rel])
        if whole:
            self._keep(commit, listed)
        return True

    def bring(
        self, commit: str, wanted: Mapping[str, Entry], videos: Sequence[RemoteVideo]
    ) -> bool:
        """Put files of a commit into huggingface_hub's cache, and find out where a few video files
        are meanwhile. False where not all of them came.
        """
        if any(digest_of(entry) is None for entry in wanted.values()):
            return False
        blobs = Blobs(self.hub, commit, self._client())

        def fetch(rel: str, entry: Entry) -> Callable[[Any], Any]:
            return lambda client: blobs.bring(rel, entry)

        def find(video: RemoteVideo) -> Callable[[Any], Any]:
            return lambda client: client.size(video.url, video.size, video.etag)

        jobs = [fetch(*item) for item in wanted.items()]
        few = [find(video) for video in videos] if len(videos) <= FEW else []
        return all(self.together([*jobs, *few])[: len(jobs)])

    def _keep(self, commit: str, listed: dict[str, Entry]) -> None:
        """The list of a commit, for `remote_root_hub`."""
        folders: dict[str, dict[str, Entry]] = {"data": {}}
        for rel, entry in listed.items():
            if rel.split("/")[0] in ("data", "videos") and "/" in rel:
                folders.setdefault(folder_of(rel), {})[rel] = entry
        Manifests(commit_url(self.hub, commit)).store(commit, folders)


def _names(refs: Any) -> set[str] | None:
    """Names of branches and tags in the API's answer; None if it is no such answer."""
    try:
        return {ref["name"] for kind in ("branches", "tags") for ref in refs[kind]}
    except (KeyError, TypeError):
        return None


def _prepare_tables() -> None:
    """Load what the metadata will be read with, while the network is slow."""

    def load() -> None:
        with suppress(ImportError):  # told where it is used
            importlib.import_module("pyarrow.parquet")

    if "pyarrow.parquet" not in sys.modules:
        threading.Thread(target=load, name="reelpool-import", daemon=True).start()
