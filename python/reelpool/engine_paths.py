"""What the engine is told of video files: where each lies, local or remote, and who reads it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .distributed import local_world_size

if TYPE_CHECKING:
    from .remote_root import RemoteVideo

MAX_CONNECTIONS = 32  # per process
NODE_CONNECTIONS = 64  # of all processes of a node together
MIN_CONNECTIONS = 4


FETCH_COUNTERS = {  # of stats()["fetch"]: the engine's own
    "bytes_wanted": "fetch_wanted",
    "bytes_fetched": "fetch_bytes",
    "bytes_cached": "fetch_cached",
    "bytes_ahead": "read_ahead_bytes",
    "parts": "fetches",
    "pending": "fetch_pending",
    "foreseen": "fetch_foreseen",
    "evicted": "fetch_evicted",
    "again": "fetch_again",
    "fetch_s": "fetch_s",
    "wait_s": "starved_s",
    "others_s": "fetch_wait_s",
}


class RemotePath(NamedTuple):
    """A remote video file: the name that messages use, where it lies, and its root."""

    name: bytes
    video: RemoteVideo
    root: Any


def name_of(path: bytes | RemotePath) -> bytes:
    """The file's name in messages."""
    return path.name if isinstance(path, RemotePath) else path


def engine_paths(paths: Sequence[bytes | RemotePath]) -> list[Any]:
    """The files as `_core.Engine` takes them: local ones with the place of their check sums, remote
    ones with their facts, their root's HttpClient, and a NodeCache unless it has none."""
    from .sums import with_places

    local = iter(with_places([p for p in paths if not isinstance(p, RemotePath)], real=True))
    caches: dict[tuple[str, int], Any] = {}
    return [
        _remote(path, caches) if isinstance(path, RemotePath) else next(local) for path in paths
    ]


def _remote(path: RemotePath, caches: dict[tuple[str, int], Any]) -> tuple[Any, ...]:
    options = path.root.remote_options()
    cache, folder = None, options["cache_dir"]
    if folder is not None:
        from ._core import NodeCache

        at = (folder, options["cache_bytes"])
        if at not in caches:
            caches[at] = NodeCache(*at)
        cache = caches[at]
    url, size, etag, last_modified, key, whole = path.video
    client = None if options.get("offline") else path.root.client()
    return (path.name, url, size, etag, last_modified, key, whole, client, cache)


def _roots(paths: Sequence[bytes | RemotePath]) -> list[Any]:
    return list({id(p.root): p.root for p in paths if isinstance(p, RemotePath)}.values())


def client_counters(paths: Sequence[bytes | RemotePath]) -> dict[str, Any]:
    """Sums over the HTTP clients of these files' roots: `requests`, `resolves`, `retries`, ..."""
    clients = {id(root.client()): root.client() for root in _roots(paths)}
    total: dict[str, Any] = {}
    for client in clients.values():
        for name, value in client.stats().items():
            if isinstance(value, dict):
                kinds = total.setdefault(name, {})
                for kind, count in value.items():
                    kinds[kind] = kinds.get(kind, 0) + count
            else:
                total[name] = total.get(name, 0) + value
    return total


def read_ahead_bytes(
    paths: Sequence[bytes | RemotePath], budget: int, rest: int | None = None
) -> int:
    """Bytes of remote files that may be in memory; 0: none is remote.

    At most a quarter of `budget`, or `rest`, what the budget leaves once all else has its part:
    units of the order's window that are in use stay in memory.
    """
    options = [root.remote_options() for root in _roots(paths)]
    most = min(max((o["read_ahead_bytes"] for o in options), default=0), budget // 4)
    return most if rest is None or most == 0 else max(most, rest)


def fetch_threads(paths: Sequence[bytes | RemotePath], processes: int) -> int:
    """Connections of this process: a node's share of NODE_CONNECTIONS, unless the root's
    `max_connections` says less or more."""
    roots = _roots(paths)
    chosen = [n for n in (r.remote_options().get("max_connections") for r in roots) if n]
    if chosen:
        return min(chosen)
    share = NODE_CONNECTIONS // max(1, processes * local_world_size())
    return min(MAX_CONNECTIONS, max(MIN_CONNECTIONS, share))


__all__ = [
    "FETCH_COUNTERS",
    "RemotePath",
    "client_counters",
    "engine_paths",
    "fetch_threads",
    "name_of",
    "read_ahead_bytes",
]
