"""What remote reading is doing, for the log: why a batch is late, and now and then how it goes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from .engine_paths import RemotePath

logger = logging.getLogger("reelpool")

LATE_S = 5.0  # a batch that takes longer is explained, as a WARNING
EVERY_S = 30.0  # between lines
KINDS = {  # of stats()["fetch"]["retries"]
    "busy": "the server was busy or out of order",
    "limited": "the server asked for a pause",
    "network": "the connection broke or gave no answer",
    "short": "the answer was cut short",
    "refused": "the signed URL was refused",
    "odd": "the answer was not what was asked for",
    "changed": "the file was another one",
    "denied": "access was denied",
}


def origins_of(paths: Sequence[bytes | RemotePath]) -> str:
    """Where remote files are asked for, without any path or query."""
    found = {
        "{0.scheme}://{0.hostname}{1}".format(at, f":{at.port}" if at.port else "")
        for at in (urlsplit(p.video.url) for p in paths if isinstance(p, RemotePath))
    }
    return ", ".join(sorted(found))


class LiveLine:
    """Log lines about one engine's remote files. `counters` gives its `stats()`."""

    def __init__(
        self, paths: Sequence[bytes | RemotePath], counters: Callable[[], dict[str, Any]]
    ) -> None:
        self._paths, self._counters = paths, counters
        self._last = time.monotonic()  # an INFO line
        self._next = 0.0  # a WARNING is due, of the wait under way
        self._since, self._looked = 0.0, -LATE_S
        self._before: dict[str, Any] = {}

    def begins(self) -> None:
        """A caller asks for a batch."""
        self._since = time.monotonic()
        self._next = self._since + LATE_S
        if self._since > self._looked + LATE_S / 2:  # not at every batch
            self._looked, self._before = self._since, self._counters()

    def waits(self) -> None:
        """It is not there yet: told every fraction of a second."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_S
        stats, before = self._counters(), self._before
        fetch, fetched = stats["fetch"], before["fetch"]["bytes_fetched"]
        if fetch["bytes_fetched"] > fetched or stats["decoded"] > before["decoded"]:
            return  # slow, but there is nothing wrong
        roots = [p.root for p in self._paths if isinstance(p, RemotePath)]
        limit = min(root.options.network_timeout for root in roots)
        logger.warning(
            "waiting for %s for %.0f s: %s. An error comes after %g s without a new byte "
            "(storage_options={'network_timeout': seconds})",
            origins_of(self._paths), now - self._since, _cause(fetch, before["fetch"]), limit,
        )  # fmt: skip

    def ends(self) -> None:
        """A batch is there."""
        now = time.monotonic()
        if now - self._last < EVERY_S or not logger.isEnabledFor(logging.INFO):
            return
        self._last = now
        stats = self._counters()
        fetch = stats["fetch"]
        logger.info(
            "%s: %.1f MB wanted, %.1f MB fetched by %d requests, %.1f MB from the disk cache, "
            "%.1f MB ahead; %d resolves, %d retries; batches waited %.1f s, %.1f s of it for bytes",
            origins_of(self._paths), fetch["bytes_wanted"] / 1e6, fetch["bytes_fetched"] / 1e6,
            fetch["requests"], fetch["bytes_cached"] / 1e6, fetch["bytes_ahead"] / 1e6,
            fetch["resolves"], sum(fetch["retries"].values()), stats["wait_s"], fetch["wait_s"],
        )  # fmt: skip


def _cause(fetch: dict[str, Any], before: dict[str, Any]) -> str:
    """What has gone wrong between two looks at the counters."""
    met = [
        f"{words} ({count} times)"
        for kind, words in KINDS.items()
        if (count := fetch["retries"].get(kind, 0) - before["retries"].get(kind, 0)) > 0
    ]
    if fetch["gate_s"] > before["gate_s"]:
        met.append("its rate limit holds requests back")
    if fetch["down_s"] > before["down_s"]:
        met.append("it is out of order, and asked again every few seconds")
    return "; ".join(met) or "no answer yet"
