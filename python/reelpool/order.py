"""The sample order of a dataset, as the C core computes it: its parameters, and its feeds."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .engine import load_core

if TYPE_CHECKING:
    from .engine import Layout
    from .tables import Table

VERSION = 1
MAX_LANES = 65536
_LANES = 64  # at least so many, where the mode has lanes
_UNIT = 64
_WINDOW = 65536
_SPAN = 16


@dataclasses.dataclass(frozen=True)
class OrderParams:
    """C lanes, U frames per unit, R frames of window, (k, g, J) of a visit; `None` order: ids."""

    C: int
    U: int
    R: int
    k: int = 1
    g: int = 1
    J: int = 0


SEQUENTIAL_PARAMS = OrderParams(C=1, U=0, R=1)  # what a state says of ascending ids


@dataclasses.dataclass(frozen=True)
class Request:
    """What was asked of an order. None: the default of the mode.

    mode: "uniform" (one permutation unless `window` is below the frames) or "lanes" (unless it is
    not). locality: (g, k, J), None or "auto". at_least: lanes at least; lanes: exactly.
    """

    shuffle: bool = True
    seed: int = 0
    mode: str = "uniform"
    window: int | None = None
    episode_pool_size: int | None = None
    frame_shuffle_buffer_size: int | None = None
    at_least: int | None = None
    lanes: int | None = None
    unit: int | None = None
    locality: Any = None

    def check(self) -> None:
        """ValueError naming the argument that is outside its limits."""
        counts = (
            ("window", self.window),
            ("episode_pool_size", self.episode_pool_size),
            ("frame_shuffle_buffer_size", self.frame_shuffle_buffer_size),
        )
        for name, value in counts:
            if value is not None and not (is_int(value) and value >= 1):
                raise ValueError(f"{name} must be an integer >= 1, not {value!r}")
        for name, value in (("max_buffer_input_shards", self.at_least), ("lanes", self.lanes)):
            if value is not None and not (is_int(value) and 1 <= value <= MAX_LANES):
                raise ValueError(f"{name} must be an integer of 1..{MAX_LANES}, not {value!r}")
        if self.unit is not None and not (is_int(self.unit) and 0 <= self.unit < 2**31):
            raise ValueError(f"unit must be a number of frames >= 0, not {self.unit!r}")
        if self.locality is None or (self.locality == "auto" and self.mode == "lanes"):
            return
        found = self.locality
        fits = isinstance(found, (tuple, list)) and len(found) == 3 and all(map(is_int, found))
        if not (fits and found[0] >= 1 and 1 <= found[1] <= found[0] and found[2] >= 0):
            raise ValueError(f"locality must be (g, k, J), 1 <= k <= g, J >= 0, not {found!r}")


class Facts(NamedTuple):
    """What the defaults follow from: frames, episodes, the longest GOP that info.json tells (0: it
    tells none; None: no video), and the frames that video deltas span.
    """

    count: int
    runs: int
    gop: int | None
    span: int

    @property
    def mean(self) -> int:
        """Frames of an episode on average, rounded up."""
        return max(1, -(-self.count // max(1, self.runs)))


def is_int(value: Any) -> bool:
    """Whether a value counts as an integer: anything with `__index__` but bool."""
    return hasattr(value, "__index__") and not isinstance(value, bool)


def facts_of(layout: Layout) -> Facts:
    """The facts of a dataset. They follow from metadata, episodes and deltas alone, so that each
    process finds the same.
    """
    meta, table = layout.meta, layout.table
    gops = [_declared_gop(meta.features[key]) for key in meta.video_keys]
    deltas = [layout.options.deltas.get(key) for key in meta.video_keys]
    spans = [max(rows) - min(rows) for rows in deltas if rows is not None]
    gop = max(gops) if gops else None
    return Facts(table.num_rows, len(table.lengths), gop, max(spans, default=0))


def _declared_gop(feature: dict) -> int:
    info = feature.get("info") or feature.get("video_info") or {}
    value = info.get("video.g") if isinstance(info, dict) else None
    return int(value) if is_int(value) and 0 < value < 2**31 else 0


def resolve(request: Request, facts: Facts, global_batch: int | None) -> OrderParams | None:
    """The parameters of an order; None for ascending ids. ValueError for too many lanes.

    global_batch: samples of all ranks per step; None where nobody said.
    """
    if not request.shuffle:
        return None
    k, g, span = _visits(request, facts)
    uniform = request.mode == "uniform" if request.window is None else False
    if request.window is not None and request.window >= facts.count:
        uniform = True
    if uniform and request.lanes is None:
        unit = _UNIT if request.unit is None else request.unit
        explicit = request.locality not in (None, "auto")
        if not explicit:
            k, g, span = 1, 1, 0
        return OrderParams(C=1, U=unit, R=max(1, facts.count), k=k, g=g, J=span)
    lanes = _lanes(request, global_batch)
    unit = request.unit
    if unit is None:
        unit = _UNIT
        if request.mode == "lanes" and facts.span:
            unit = max(_UNIT, 4 * facts.span)
            unit = 0 if 4 * facts.span >= facts.mean else unit
    window = _window(request, facts, lanes, unit)
    return OrderParams(C=lanes, U=unit, R=window, k=k, g=g, J=span)


def _visits(request: Request, facts: Facts) -> tuple[int, int, int]:
    """(k, g, J)."""
    if request.locality == "auto":
        if facts.gop is None:
            return 1, 1, 0
        g = facts.gop or 2
        k, span = (g if g <= 4 else -(-g // 4)), _SPAN
    elif request.locality is None:
        return 1, 1, 0
    else:
        g, k, span = map(int, request.locality)
    return (1, 1, 0) if k == 1 else (k, g, span)


def _lanes(request: Request, global_batch: int | None) -> int:
    if request.lanes is not None:
        return int(request.lanes)
    least = max(_LANES, request.at_least or 0)
    lanes = least if global_batch is None else -(-least // global_batch) * global_batch
    if lanes > MAX_LANES:
        raise ValueError(
            f"a global batch of {global_batch} samples needs {lanes} lanes, more than {MAX_LANES}: "
            "give lanes="
        )
    return lanes


def _window(request: Request, facts: Facts, lanes: int, unit: int) -> int:
    if request.window is not None:
        return int(request.window)
    if request.episode_pool_size is not None:
        return max(1, min(facts.count, int(request.episode_pool_size) * facts.mean))
    if request.frame_shuffle_buffer_size is not None:
        return max(1, min(facts.count, int(request.frame_shuffle_buffer_size)))
    if request.mode == "uniform":
        return max(1, facts.count)
    return max(_WINDOW, 4 * lanes * (unit or facts.mean))


def runs_of(table: Table) -> np.ndarray:
    """int64 (runs, 3): id of the first frame, its frame_index, frames; ascending by id."""
    first = table.starts
    runs = np.stack([table.index[first], table.frame_index[first], table.lengths], axis=1)
    return np.ascontiguousarray(runs, np.int64)


def fingerprint(runs: np.ndarray) -> str:
    """16 hex digits that name the selection: which frames, in which runs."""
    digest = hashlib.sha256(b"reelpool-order-1" + runs.astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def feed_set(runs: np.ndarray, seed: int, params: OrderParams | None, first_row: int = 0) -> tuple:
    """One dataset as `_core.Feed` takes it; params None: ascending ids."""
    if params is None:
        return (runs, 0, 0, 0, 1, 1, 1, 0, first_row)
    return (runs, seed % 2**64, params.C, params.U, params.R, params.k, params.g, params.J,
            first_row)  # fmt: skip


def ahead_batches(params: OrderParams | None, global_batch: int, workers: int = 1) -> int:
    """A worker's batches within which all frames of a visit come: J rows by their keys, and as many
    again, since keys lie unevenly.
    """
    if params is None or params.k == 1:
        return 0
    return -(-2 * params.J * params.C // (global_batch * workers))


class Share(NamedTuple):
    """Whose batches a feed holds: `batch` samples for rank `rank` of `world`, and of its batches
    those of DataLoader worker `worker` of `workers`.
    """

    batch: int
    rank: int = 0
    world: int = 1
    worker: int = 0
    workers: int = 1

    @property
    def size(self) -> int:
        """Samples of a global batch."""
        return self.batch * self.world

    @property
    def whose(self) -> tuple[int, int, int, int]:
        """What a worker's state must have in common with who loads it."""
        return self.world, self.batch, self.workers, self.worker


def new_feed(
    sets: list[tuple], epoch: int, start: int, stop: int, share: Share, drop_last: bool,
    part: int = 0,
) -> Any:  # fmt: skip
    """A `_core.Feed`: the batches of `share`, positions [start, stop) (stop < 0: without end).
    part: of one dataset, batches come in parts of at most so many rows; 0: whole.
    """
    return load_core().Feed(sets, epoch, start, stop, *share, drop_last, part)


def epoch_rows(runs: np.ndarray, seed: int, epoch: int, params: OrderParams | None) -> np.ndarray:
    """Row numbers of one epoch in order, int64; params None: ascending."""
    count = int(runs[:, 2].sum())
    if params is None:
        return np.arange(count, dtype=np.int64)
    out = np.empty(count, np.int64)
    load_core().order_rows(
        runs, seed % 2**64, epoch, params.C, params.U, params.R, params.k, params.g, params.J, out
    )
    return out


def rank_rows(
    rows: np.ndarray, lanes: int, start: int, batch: int, rank: int, world: int, drop_last: bool
) -> tuple[np.ndarray, int]:
    """(rows of this rank from position `start` on, positions repeated in the tail).

    Batches are [p, p + batch * world); the last one may be shorter, and is left out by drop_last.
    """
    count, size = len(rows), batch * world
    if world == 1 and (lanes == 1 or start >= count):
        return rows[start:], 0
    core = load_core()
    parts, repeated = [], 0
    slots = np.empty(size // world + 1, np.int64)
    for p in range(start, count, size):
        q = min(p + size, count)
        if drop_last and q - p < size:
            break
        if q - p < world:
            repeated = world - (q - p)
        taken = core.order_slice(lanes, p, q, rank, world, slots)
        parts.append(rows[slots[:taken]])
    return (np.concatenate(parts) if parts else np.empty(0, np.int64)), repeated
