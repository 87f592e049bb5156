"""Sample order outside the core: LeRobot's sampler, and two ways to share episodes out.

`EpisodeAwareSampler(shuffle=True)` needs torch for its permutation; nothing else here does.
"""

from __future__ import annotations

import heapq
import logging
import math
import operator
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .errors import MissingExtraError, StateError, make_error

logger = logging.getLogger("reelpool")

_BLOCK = 8192  # positions mapped to frames at once


class EpisodeAwareSampler:
    """Indices of the frames of chosen episodes, without some of the first and last frames of each.

    With `shuffle`, each epoch is torch.randperm seeded by (seed, epoch): the same on all ranks,
    bit-identical to LeRobot 0.6.1. `iter()` runs the current epoch and advances the counter. Memory
    is per episode, but the permutation of a running epoch.

    dataset_from_indices, dataset_to_indices: first frame of each episode, and one past its last.
    episode_indices_to_use: None means all. absolute_to_relative_idx: maps the indices that are
    handed out. Raises ValueError for a negative drop count, unequal lengths, or when no frame
    remains.
    """

    def __init__(
        self,
        dataset_from_indices: Sequence[int],
        dataset_to_indices: Sequence[int],
        episode_indices_to_use: Sequence[int] | None = None,
        drop_n_first_frames: int = 0,
        drop_n_last_frames: int = 0,
        shuffle: bool = False,
        seed: int = 0,
        absolute_to_relative_idx: dict[int, int] | None = None,
    ) -> None:
        for name, count in (("first", drop_n_first_frames), ("last", drop_n_last_frames)):
            if count < 0:
                raise ValueError(f"drop_n_{name}_frames must be >= 0, not {count}")
        start = np.asarray(dataset_from_indices, dtype=np.int64)
        end = np.asarray(dataset_to_indices, dtype=np.int64)
        if start.shape != end.shape:
            raise ValueError(
                "dataset_from_indices and dataset_to_indices must have the same length, "
                f"not {len(start)} and {len(end)}"
            )
        used = np.ones(len(start), dtype=bool)
        if episode_indices_to_use is not None:
            used[:] = False
            used[np.asarray(episode_indices_to_use, dtype=np.int64)] = True
        first = start + drop_n_first_frames
        count = end - drop_n_last_frames - first
        empty = np.flatnonzero(used & (count <= 0))
        if len(empty):
            logger.warning(
                "%d episodes have no frame left with drop_n_first_frames=%d, "
                "drop_n_last_frames=%d: %s%s",
                len(empty),
                drop_n_first_frames,
                drop_n_last_frames,
                ", ".join(map(str, empty[:10].tolist())),
                ", ..." if len(empty) > 10 else "",
            )
        used &= count > 0
        if not used.any():
            raise ValueError(
                "no frame remains: check episode_indices_to_use and the numbers of dropped frames"
            )
        self._starts = first[used]
        self._ends = np.cumsum(count[used])  # positions one past each episode
        self._num_frames = int(self._ends[-1])
        self.shuffle = shuffle
        self.seed = seed
        self._epoch = 0
        self._start_index = 0
        self._resumed = False
        self._absolute_to_relative = absolute_to_relative_idx

    def __len__(self) -> int:
        """Frames of a whole epoch, also while a resumed one runs."""
        return self._num_frames

    @property
    def indices(self) -> list[int]:
        """All frame indices, unshuffled."""
        return list(self._frames(np.arange(self._num_frames)))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next `iter()`. After `load_state_dict`, one at or below the counter
        is ignored.
        """
        if self._resumed and epoch <= self._epoch:
            return
        self._epoch = epoch
        self._start_index = 0

    def state_dict(self) -> dict[str, int]:
        """{"epoch", "start_index"}: where the next `iter()` begins."""
        return {"epoch": self._epoch, "start_index": self._start_index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at `state`. StateError names the field that is missing or out of range."""
        values = []
        for name in ("epoch", "start_index"):
            value = state.get(name) if isinstance(state, dict) else None
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
                raise make_error(
                    StateError, f"sampler state: {name} is {value!r}, not an integer >= 0"
                )
            values.append(int(value))
        if values[1] > self._num_frames:
            what = f"start_index {values[1]} lies past this sampler's {self._num_frames} frames"
            raise make_error(StateError, f"sampler state: {what}")
        self._epoch, self._start_index = values
        self._resumed = True

    def __iter__(self) -> Iterator[int]:
        epoch, start = self._epoch, self._start_index
        self._epoch += 1
        self._start_index = 0
        return self._run(epoch, start)

    def _run(self, epoch: int, start: int) -> Iterator[int]:
        order = self._permutation(epoch) if self.shuffle else None
        for block in range(start, self._num_frames, _BLOCK):
            stop = min(block + _BLOCK, self._num_frames)
            yield from self._frames(np.arange(block, stop) if order is None else order[block:stop])

    def _permutation(self, epoch: int) -> np.ndarray:
        try:
            from .torch_bridge import permutation
        except ImportError:
            raise make_error(
                MissingExtraError,
                "EpisodeAwareSampler(shuffle=True) needs torch\n  Run: pip install torch",
            ) from None
        seed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1, dtype=np.uint64)[0])
        return permutation(self._num_frames, seed)

    def _frames(self, positions: np.ndarray) -> Iterator[int]:
        episode = np.searchsorted(self._ends, positions, side="right")
        before = np.concatenate([[0], self._ends[:-1]])
        frames = (self._starts[episode] + positions - before[episode]).tolist()
        if self._absolute_to_relative is None:
            yield from frames
        else:
            for frame in frames:
                yield self._absolute_to_relative[frame]


def compute_sampler_state(
    step: int, num_frames: int, batch_size: int, num_processes: int
) -> dict[str, int]:
    """The sampler's state after `step` optimisation steps of `num_processes` ranks, for an exact
    resume.

    Accelerate shares out whole batches, padded evenly: ceil(ceil(num_frames / batch_size) /
    num_processes) an epoch. Raises ValueError for a negative step or a count below 1.
    """
    if step < 0 or min(num_frames, batch_size, num_processes) < 1:
        raise ValueError("step must be >= 0; num_frames, batch_size and num_processes >= 1")
    batches = math.ceil(num_frames / batch_size)
    per_epoch = math.ceil(batches / num_processes)
    epoch, done = divmod(step, per_epoch)
    return {"epoch": epoch, "start_index": min(done * batch_size * num_processes, num_frames)}


def group_episodes_by_files(episode_file_ids: Sequence[Iterable[Hashable]]) -> list[list[int]]:
    """Groups of episodes that share files, directly or through others.

    `episode_file_ids[i]`: the ids (anything hashable) of the files of episode i. Each group is
    sorted, the groups are ordered by their least episode.
    """
    parent = list(range(len(episode_file_ids)))

    def find(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    owner: dict[Hashable, int] = {}
    for i, files in enumerate(episode_file_ids):
        for file in files:
            a, b = find(owner.setdefault(file, i)), find(i)
            parent[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = {}
    for i in range(len(parent)):
        groups.setdefault(find(i), []).append(i)
    return [groups[root] for root in sorted(groups)]


def partition_episodes(lengths: Sequence[int], num_partitions: int) -> list[list[int]]:
    """Episodes shared out to `num_partitions` bins of nearly equal length.

    The longest first (tie: lower index) goes to the lightest bin (tie: lower bin); each bin is
    sorted. Raises ValueError for fewer than one bin, fewer episodes than bins, or a length below 1.
    """
    sizes = [operator.index(length) for length in lengths]  # unsigned arrays cannot be negated
    if num_partitions < 1:
        raise ValueError(f"num_partitions must be >= 1, not {num_partitions}")
    if len(sizes) < num_partitions:
        raise ValueError(f"{len(sizes)} episodes cannot fill {num_partitions} partitions")
    if any(size <= 0 for size in sizes):
        raise ValueError("every length must be >= 1")
    bins: list[list[int]] = [[] for _ in range(num_partitions)]
    heap = [(0, b) for b in range(num_partitions)]
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        load, lightest = heap[0]
        bins[lightest].append(i)
        heapq.heapreplace(heap, (load + sizes[i], lightest))
    return [sorted(b) for b in bins]
