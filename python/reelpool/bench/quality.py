"""How well an order mixes a data set, from episode lengths alone: nothing is read or decoded.

Our own orders come from the core; the others are simulated as their loaders draw (see `peers`).
Every figure is computed over one whole epoch; docs/benchmarking.md defines them.
"""

from __future__ import annotations

import dataclasses
import heapq
from pathlib import Path
from typing import Any

import numpy as np

from .. import order

LENGTHS = Path(__file__).with_name("episode_lengths.txt")
WINDOW = 75_454  # frames that bounded methods hold of the test set: 256 mean episodes, 12.8 %
LEROBOT_BUFFER, LEROBOT_SHARDS = 1000, 16  # defaults of LeRobot 0.6.1
NEAR = 30  # frames: nearer ones of the same episode are near-duplicates
LAGS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
FIGURES = ("frac", "nd1_pct", "eff16_episodes", "ks", "acts_like", "var", "v100", "ac1", "burst",
           "live")  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Layout:
    """Episodes as the orders see them: rows are numbered through the episodes."""

    name: str
    lengths: np.ndarray  # int64 (episodes,), all >= 1
    gop: int | None = 2  # frames per GOP; None: no video
    file_of: np.ndarray | None = None  # data file of each episode, ascending; None: 16 equal ones

    @property
    def count(self) -> int:
        """All frames."""
        return int(self.lengths.sum())

    @property
    def starts(self) -> np.ndarray:
        """First row of each episode."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def episode(self) -> np.ndarray:
        """Episode of each row."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


@dataclasses.dataclass(frozen=True)
class Epoch:
    """One epoch of an order: rows in order, and what is held in memory meanwhile."""

    rows: np.ndarray
    admitted: tuple[np.ndarray, np.ndarray] | None  # (positions, frames); None: all from the start
    live: int  # most frames held at once


def test_set() -> Layout:
    """The committed test set: 2,000 episodes, 589,485 frames."""
    text = [t for t in LENGTHS.read_text().splitlines() if not t.startswith("#")]
    return Layout("test set", np.array(" ".join(text).split(), np.int64))


def layout_of(name: str, meta: Any) -> Layout:
    """The layout of a data set, from its metadata (LeRobotDatasetMetadata)."""
    episodes = meta.episodes
    files = np.asarray(episodes["data/chunk_index"]) * (1 << 32)
    files = np.unique(files + np.asarray(episodes["data/file_index"]), return_inverse=True)[1]
    gops = [f.get("info", {}).get("video.g") for f in map(dict, meta.features.values())]
    gop = max((int(g) for g in gops if g), default=2) if meta.video_keys else None
    return Layout(name, np.asarray(episodes["length"], np.int64), gop, files.reshape(-1))


# ---- orders ------------------------------------------------------------------------------------


def lane_params(
    layout: Layout, batch: int, window: int | None, locality: bool
) -> order.OrderParams:
    """Parameters of the streaming order for one rank: its defaults, with or without locality."""
    facts = order.Facts(layout.count, len(layout.lengths), layout.gop, 0)
    request = order.Request(mode="lanes", window=window, locality="auto" if locality else None)
    params = order.resolve(request, facts, batch)
    assert params is not None  # None is the order without shuffle
    return params


def units_of(layout: Layout, params: order.OrderParams) -> np.ndarray:
    """Unit of each row: the cuts of the order, which do not depend on seed or epoch."""
    edge = np.zeros(layout.count + 1, np.int64)
    edge[layout.starts] = 1
    if params.U:
        lengths = layout.lengths
        pieces = np.maximum(1, (2 * lengths + params.U) // (2 * params.U))
        owner = np.repeat(np.arange(len(lengths)), pieces)
        i = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        cut = i * lengths[owner] // pieces[owner] // params.g * params.g
        edge[layout.starts[owner] + cut] = 1
    return np.cumsum(edge[:-1]) - 1


def ours(layout: Layout, params: order.OrderParams, seed: int, epoch: int) -> Epoch:
    """Our order. A unit is held from the first to the last of its frames, lane by lane."""
    runs = np.stack([layout.starts, np.zeros_like(layout.lengths), layout.lengths], 1)
    rows = order.epoch_rows(np.ascontiguousarray(runs), seed, epoch, params)
    if params.C == 1 and layout.count <= params.R:
        return Epoch(rows, None, layout.count)
    lane = np.arange(layout.count) % params.C
    first, last, frames = _spans(units_of(layout, params)[rows] * params.C + lane)
    return Epoch(rows, (first, frames), _most_live(first, last, frames))


def lerobot_stream(layout: Layout, rng: np.random.Generator) -> Epoch:
    """LeRobot 0.6.1 streaming: the next frame of a shard drawn at random, a buffer of 1,000 frames.

    Shards are at most 16 stretches of the data files. One process.
    """
    file_of = layout.file_of
    if file_of is None:
        middle = layout.starts + layout.lengths / 2
        file_of = (middle * LEROBOT_SHARDS / layout.count).astype(np.int64)
    files = int(file_of[-1]) + 1
    shards = min(files, LEROBOT_SHARDS)
    ends = np.cumsum([len(part) for part in np.array_split(np.arange(files), shards)])
    shard = np.searchsorted(ends, file_of, "right")
    # Drawing shards evenly is merging Poisson processes of equal rate: exact, and in one sort.
    times = [
        np.cumsum(rng.exponential(size=n))
        for n in np.bincount(shard, layout.lengths, shards).astype(np.int64)
    ]
    stream = np.argsort(np.concatenate(times), kind="stable")
    return _through_buffer(layout, stream, LEROBOT_BUFFER, rng)


def frame_buffer(layout: Layout, size: int, rng: np.random.Generator) -> Epoch:
    """Episodes in random order, read through a buffer of `size` frames (tf.data, WebDataset)."""
    picked = rng.permutation(len(layout.lengths))
    lengths = layout.lengths[picked]
    shift = layout.starts[picked] - (np.cumsum(lengths) - lengths)
    stream = np.arange(layout.count) + np.repeat(shift, lengths)
    return _through_buffer(layout, stream, size, rng)


def episode_pool(layout: Layout, size: int, rng: np.random.Generator) -> Epoch:
    """LeRobot #3917: `size` whole episodes resident, each draw even over their frames left.

    An episode makes room for the next when its last frame was drawn.
    """
    # Even draws over a changing set are its exponential clocks of equal rate: exact.
    times = np.empty(layout.count)
    begun = np.zeros(len(layout.lengths))
    resident: list[float] = []  # when each resident episode ends
    for episode in rng.permutation(len(layout.lengths)):
        now = heapq.heappop(resident) if len(resident) == size else 0.0
        first, frames = layout.starts[episode], layout.lengths[episode]
        drawn = now + rng.exponential(size=frames)
        times[first : first + frames] = drawn
        begun[episode] = now
        heapq.heappush(resident, drawn.max())
    rows = np.argsort(times, kind="stable")
    at = np.searchsorted(times[rows], begun)
    _, last, _ = _spans(layout.episode[rows])
    return Epoch(rows, (at, layout.lengths), _most_live(at, last, layout.lengths))


def _through_buffer(
    layout: Layout, stream: np.ndarray, size: int, rng: np.random.Generator
) -> Epoch:
    """Each step gives a random slot's frame and puts the stream's next one there; the rest is
    shuffled. An episode is fetched when its first frame comes to the buffer."""
    steps = max(0, len(stream) - size)
    slot = rng.integers(0, size, steps)
    by_slot = np.argsort(slot, kind="stable")
    again = slot[by_slot][1:] == slot[by_slot][:-1]
    taken = slot.copy()  # number, in the stream, of the frame given at each step
    taken[by_slot[1:][again]] = by_slot[:-1][again] + size
    left = np.ones(len(stream), bool)
    left[taken] = False
    rows = stream[np.concatenate([taken, rng.permutation(np.flatnonzero(left))])]
    entered, _, frames = _spans(layout.episode[stream])
    late = entered >= size
    return Epoch(rows, (entered[late] - size, frames[late]), min(size, layout.count))


def _spans(group: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(first position, last position, members) of each group, by ascending group."""
    by = np.argsort(group, kind="stable")
    edge = np.flatnonzero(np.diff(group[by], prepend=-1))
    ends = np.append(edge[1:], len(group))
    return by[edge], by[ends - 1], ends - edge


def _most_live(first: np.ndarray, last: np.ndarray, frames: np.ndarray) -> int:
    """Most frames held at once if each group is held from `first` to `last`."""
    end = int(last.max()) + 2
    change = np.bincount(first, frames, end) - np.bincount(last + 1, frames, end)
    return int(np.cumsum(change).max())


# ---- figures -----------------------------------------------------------------------------------


class _Batches:
    """Counts of episodes in stretches of consecutive batches."""

    def __init__(self, layout: Layout, rows: np.ndarray, batch: int) -> None:
        self.batch, self.count = batch, len(rows) // batch
        if self.count < 2:
            raise ValueError(f"{len(rows)} frames are not two batches of {batch}")
        self.rows = rows[: self.count * batch]
        self.of_row = layout.episode
        self.episodes = len(layout.lengths)
        self.number = np.repeat(np.arange(self.count), batch)
        self.evenness = float(((layout.lengths / layout.count) ** 2).sum())  # of the data set
        self.keys, self.counts = self._pairs(1)

    def _pairs(self, stretch: int) -> tuple[np.ndarray, np.ndarray]:
        used = self.count // stretch * stretch * self.batch
        key = self.number[:used] // stretch * self.episodes + self.of_row[self.rows[:used]]
        return np.unique(key, return_counts=True)

    def concentration(self, stretch: int) -> np.ndarray:
        """Sum over episodes of (share of a stretch)^2, for every stretch of so many batches."""
        keys, counts = (self.keys, self.counts) if stretch == 1 else self._pairs(stretch)
        shares = (counts / (stretch * self.batch)) ** 2
        return np.bincount(keys // self.episodes, shares, self.count // stretch)

    def variance(self, stretch: int) -> float:
        """Variance of the mean of an episode feature over stretches, over that of independent
        samples: the expectation over all Gaussian features. NaN for fewer than two stretches."""
        if self.count // stretch < 2 or self.evenness == 1:
            return float("nan")
        own = self.concentration(stretch).mean() - self.evenness
        return float(own * stretch * self.batch / (1 - self.evenness))

    def correlation(self, lag: int) -> float:
        """Autocorrelation of batch means at a lag, in batches; NaN where there is none."""
        spread = self.concentration(1).mean() - self.evenness
        if self.count <= lag or spread <= 0:
            return float("nan")
        at = np.searchsorted(self.keys, self.keys + lag * self.episodes)
        both = at < len(self.keys)
        both[both] = self.keys[at[both]] == self.keys[both] + lag * self.episodes
        shared = (self.counts[both] * self.counts[at[both]]).sum() / self.batch**2
        return float((shared / (self.count - lag) - self.evenness) / spread)

    def near_duplicates(self) -> float:
        """Share of samples with another of their episode within NEAR frames in their batch."""
        apart = self.rows + (NEAR + 1) * self.of_row[self.rows]
        key = np.sort(self.number * (int(apart.max()) + NEAR + 1) + apart)
        near = np.diff(key) <= NEAR
        return float((np.append(near, False) | np.append(False, near)).mean())


def spread(layout: Layout, rows: np.ndarray) -> float:
    """KS distance between an episode's epoch positions and an even spread, mean over episodes."""
    by = np.argsort(layout.episode[rows], kind="stable")
    position = (by + 0.5) / len(rows)
    rank = np.arange(len(rows)) - np.repeat(layout.starts, layout.lengths)
    even = (rank + 0.5) / np.repeat(layout.lengths, layout.lengths)
    return float(np.maximum.reduceat(np.abs(position - even), layout.starts).mean())


def burst(admitted: tuple[np.ndarray, np.ndarray], count: int, batch: int) -> float | None:
    """Peak / mean frames admitted per 100 batches, without the epoch's outer tenths."""
    step = 100 * batch
    amounts = np.bincount(admitted[0] // step, admitted[1], count // step + 1)[: count // step]
    outer = len(amounts) // 10
    amounts = amounts[outer : len(amounts) - outer]
    if not len(amounts) or not amounts.sum():
        return None
    return float(amounts.max() / amounts.mean())


def measure(layout: Layout, epoch: Epoch, batch: int) -> dict[str, Any]:
    """All figures of one epoch; NaN or None where the epoch is too short for one."""
    counted = _Batches(layout, epoch.rows, batch)
    var = counted.variance(1)
    effective = float((1 / counted.concentration(16)).mean()) if counted.count >= 16 else None
    return {
        "frac": len(counted.keys) / (counted.count * batch),
        "nd1_pct": 100 * counted.near_duplicates(),
        "eff16_episodes": effective,
        "ks": spread(layout, epoch.rows),
        "acts_like": batch / var if var > 0 else None,
        "var": var,
        "v100": counted.variance(100),
        "ac1": counted.correlation(1),
        "burst": burst(epoch.admitted, layout.count, batch) if epoch.admitted else None,
        "live": epoch.live,
        "live_pct": 100 * epoch.live / layout.count,
        "lags": [[lag, counted.correlation(lag)] for lag in LAGS if lag < counted.count],
    }


# ---- the comparison ----------------------------------------------------------------------------


def orders(layout: Layout, batch: int, window: int | None) -> list[tuple[str, bool, Any]]:
    """(name, whether it is ours, function of (seed, epoch) that gives an Epoch), in table order."""
    plain, local = (lane_params(layout, batch, window, locality) for locality in (False, True))
    held = min(plain.R, layout.count)
    pool = max(1, round(held * len(layout.lengths) / layout.count))
    uniform = order.OrderParams(C=1, U=64, R=layout.count)

    def own(params: order.OrderParams) -> Any:
        return lambda seed, epoch: ours(layout, params, seed, epoch)

    def peer(make: Any, *size: int) -> Any:
        return lambda seed, epoch: make(layout, *size, np.random.default_rng([seed, epoch]))

    found = [("uniform shuffle", False, own(uniform)), ("reelpool stream, k = 1", True, own(plain))]
    if local != plain:
        name = f"reelpool stream, default (k = {local.k}, g = {local.g})"
        found.append((name, True, own(local)))
    files = LEROBOT_SHARDS if layout.file_of is None else int(layout.file_of[-1]) + 1
    shards = min(files, LEROBOT_SHARDS)
    found += [
        (f"shuffle buffer, {held:,} frames", False, peer(frame_buffer, held)),
        (f"episode pool, {pool:,} episodes", False, peer(episode_pool, pool)),
        (f"LeRobot 0.6.1 stream, {shards} shards", False, peer(lerobot_stream)),
    ]
    return found


def compare(
    layout: Layout, batch: int, window: int | None, seed: int, epochs: int, tick: Any = None
) -> list[dict[str, Any]]:
    """One record per order: its figures over `epochs` epochs, mean, with their `range`."""
    records = []
    for name, own, make in orders(layout, batch, window):
        runs = []
        for number in range(epochs):
            if tick is not None:
                tick(name)
            runs.append(measure(layout, made := make(seed, number), batch))
        record: dict[str, Any] = {"order": name, "ours": own}
        for key in (*FIGURES, "live_pct"):
            values = [r[key] for r in runs if r[key] is not None and not np.isnan(r[key])]
            record[key] = float(np.mean(values)) if values else None
            record.setdefault("range", {})[key] = [min(values), max(values)] if values else None
        record["lags"] = [
            [lag, float(np.mean([r["lags"][i][1] for r in runs]))]
            for i, (lag, _) in enumerate(runs[0]["lags"])
        ]
        record["places"] = _places(layout, made.rows)
        records.append(record)
    return records


def _places(layout: Layout, rows: np.ndarray, shown: int = 4) -> list[list[float]]:
    """Where in the epoch, 0..1, the frames of a few episodes come, for the picture."""
    episodes = len(layout.lengths)
    chosen = [(2 * i + 1) * episodes // (2 * shown) for i in range(min(shown, episodes))]
    return [
        [round(float(p), 5) for p in np.flatnonzero(layout.episode[rows] == e) / len(rows)]
        for e in dict.fromkeys(chosen)
    ]
