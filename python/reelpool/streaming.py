"""`StreamingLeRobotDataset`: LeRobot's iterable dataset, shared out by rank and worker."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import device as gpu
from . import env, order
from .collation import Item
from .dataset_base import DatasetBase, sample_seed
from .distributed import resolve_rank, sharded_by_accelerate
from .engine import DECODERS_PER_THREAD, EngineHandle
from .errors import ReelpoolError, StateError
from .order import OrderParams, Request, Share, is_int
from .order_state import PART, DatasetOrder, check_epoch, position_of_step, rev_of
from .passes import Pass, Passes, current_worker
from .stream import Position, Rows, Stream, in_cache_words
from .streaming_arguments import check_arguments, decoders_of, gib, note_no_effect, one_of
from .video import VideoDecoderCache

try:
    from .torch_bridge import IterableDataset
except ImportError:  # without torch: a plain iterable of NumPy items
    IterableDataset = object  # type: ignore[assignment,misc]

logger = logging.getLogger("reelpool")

_PREFETCH = 2
_PART = 8  # samples made at once where the batch size is not known


class StreamingLeRobotDataset(DatasetBase, IterableDataset):
    """Samples of a LeRobot dataset in a shuffled order, each exactly once per epoch.

    Items are those of `LeRobotDataset`. Iterating gives this rank's items, in a DataLoader worker
    the worker's share of them; give the DataLoader's `batch_size` here too, then the workers build
    the batches that `Loader` would. `iter()` runs the current epoch and advances the counter, once
    per pass however many workers there are; a new iterator ends the one before.

    Arguments are those of LeRobot 0.6.1, of its episode-pool branches (their `buffer_size`,
    `max_num_shards` and thread counts have no effect: memory is set in bytes), and ours: `window`
    (frames mixed, over the whole job), `unit` (frames shuffled as one), `locality` ((g, k, J), None
    or "auto"), `lanes`, `rank` and `world_size` (both or neither), `batch_size`, `repeat` (epochs
    without end), `cameras`, `resize`, `on_corrupt`, `num_threads` (None: the CPUs granted, shared
    by DataLoader workers; 0: the calling thread works), `memory_budget`. docs/design.md, "Sample
    order", says what they do.

    Raises: as LeRobotDataset; ValueError or TypeError for what cannot be honoured.
    """

    def __init__(
        self,
        repo_id: str,
        root: str | os.PathLike[str] | None = None,
        episodes: list[int] | None = None,
        image_transforms: Callable | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        streaming: bool = True,
        buffer_size: int = 1000,
        max_num_shards: int = 16,
        seed: int = 42,
        rng: np.random.Generator | None = None,
        shuffle: bool = True,
        return_uint8: bool = False,
        depth_output_unit: str = "mm",
        *,
        repo_type: str = "dataset",
        token: str | bool | None = None,
        episode_filter: Callable[[dict], bool] | None = None,
        cameras: Sequence[str] | None = None,
        resize: tuple[int, int] | Mapping[str, tuple[int, int]] | None = None,
        on_corrupt: str = "raise",
        max_bad_fraction: float = 1e-3,
        storage_options: dict | None = None,
        window: int | None = None,
        episode_pool_size: int | None = None,
        frame_shuffle_buffer_size: int | None = None,
        max_buffer_input_shards: int | None = None,
        lanes: int | None = None,
        unit: int | None = None,
        locality: tuple[int, int, int] | str | None = "auto",
        rank: int | None = None,
        world_size: int | None = None,
        data_files_root: str | os.PathLike[str] | None = None,
        data_root: str | os.PathLike[str] | None = None,
        video_decoder_cache_size: int | None = None,
        max_open_decoders: int | None = None,
        video_decode_device: str = "cpu",
        validate_row_groups: bool = False,
        memory_budget: int | str | None = None,
        byte_budget_gb: float | None = None,
        video_byte_cache_gb: float | None = None,
        num_threads: int | None = None,
        decode_threads: int | None = None,
        repeat: bool = False,
        batch_size: int | None = None,
        **no_effect: Any,
    ) -> None:
        note_no_effect(type(self).__name__, buffer_size, max_num_shards, no_effect)
        check_arguments(streaming, batch_size, rng)
        budget = one_of(
            memory_budget=None if memory_budget is None else env.parse_bytes(memory_budget),
            byte_budget_gb=gib(byte_budget_gb), video_byte_cache_gb=gib(video_byte_cache_gb),
        )  # fmt: skip
        open_decoders = one_of(
            video_decoder_cache_size=video_decoder_cache_size, max_open_decoders=max_open_decoders
        )
        self._open_decoders = decoders_of(open_decoders)
        if rng is not None:
            seed = int(rng.integers(0, 2**63))
        if not is_int(seed):
            raise ValueError(f"seed must be an integer, not {seed!r}")
        self._request = Request(
            bool(shuffle), int(seed), "lanes", window, episode_pool_size,
            frame_shuffle_buffer_size, max_buffer_input_shards, lanes, unit, locality,
        )  # fmt: skip
        self._request.check()
        self._rank_arguments = (rank, world_size)
        if rank is not None or world_size is not None:
            resolve_rank(rank, world_size)
        self.repo_type, self.streaming, self.buffer_size = repo_type, True, buffer_size
        self.seed, self.shuffle, self.repeat = int(seed), bool(shuffle), bool(repeat)
        self.batch_size = None if batch_size is None else int(batch_size)
        self._passes = Passes()
        self._open(
            repo_id, root, revision, force_cache_sync, repo_type=repo_type,
            data_files_root=one_of(data_files_root=data_files_root, data_root=data_root),
            episodes=episodes, episode_filter=episode_filter, image_transforms=image_transforms,
            delta_timestamps=delta_timestamps, tolerance_s=tolerance_s, return_uint8=return_uint8,
            depth_output_unit=depth_output_unit, token=token, cameras=cameras, resize=resize,
            on_corrupt=on_corrupt, max_bad_fraction=max_bad_fraction, memory_budget=budget,
            num_threads=one_of(num_threads=num_threads, decode_threads=decode_threads),
            video_decode_device=video_decode_device, storage_options=storage_options,
        )  # fmt: skip
        self._require_rows()
        self.streaming_from_local = not self.reads_ranges
        if validate_row_groups:
            from .tables_row_groups import check_row_groups

            check_row_groups(self.meta, self._table.episodes)
        if budget is not None:
            self._fitting_prefetch(self.batch_size or 1, budget)

    # -- state that does not travel --

    def _reset(self) -> None:
        super()._reset()
        self.video_decoder_cache: VideoDecoderCache | None = None
        self._order_cache: DatasetOrder | None = None
        self._live: Stream | None = None
        self._frozen: tuple[int, tuple[int, int]] | None = None  # (pid, (rank, world))
        self._resuming = False  # the next pass goes on from a loaded state
        self._skip = 0  # items of the next pass's first batch that a state says were given
        self._in_flight_epoch = 0
        self._pipeline = Rows(self)

    def _volatile(self) -> tuple[str, ...]:
        return (
            *super()._volatile(), "video_decoder_cache", "_order_cache", "_live", "_frozen",
            "_skip", "_resuming", "_in_flight_epoch", "_pipeline", "_parent",
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        # A spawned worker cannot see what its parent sees: torch.distributed, Accelerate.
        wrapped = sharded_by_accelerate(self)
        found = None
        if wrapped is None and self._rank_arguments == (None, None):
            found = resolve_rank()
        elif wrapped is not None:
            self._warn_of(wrapped)
        state["_parent"] = (os.getpid(), wrapped, found)
        return state

    _parent: tuple[int, str | None, tuple[int, int] | None] | None = None

    # -- whose samples --

    def _rank(self) -> tuple[int, int]:
        """(rank, world size), frozen at the first pass."""
        frozen = self._frozen
        if frozen is not None and frozen[0] in _own_pids():
            return frozen[1]
        wrapped, found = sharded_by_accelerate(self), None
        parent = self._parent
        if current_worker() is not None and parent is not None and parent[0] == os.getppid():
            wrapped, found = wrapped or parent[1], parent[2]
        if wrapped is not None:
            if self._rank_arguments != (None, None):
                raise ValueError(
                    f"rank= and world_size= are given, but Accelerate's {wrapped} shares the "
                    "samples out too: do not prepare() the DataLoader"
                )
            self._warn_of(wrapped)
            return 0, 1
        return found or resolve_rank(*self._rank_arguments)

    def _warn_of(self, wrapper: str) -> None:
        if self._passes.once(0):
            logger.warning(
                "%s: Accelerate's %s shares the samples out to the processes, so each of them "
                "reads the samples of all: better do not prepare() the DataLoader",
                self.repo_id, wrapper,
            )  # fmt: skip

    def _freeze_rank(self) -> None:
        self._frozen = (os.getpid(), self._rank())

    @property
    def rank(self) -> int:
        """This process's rank."""
        return self._rank()[0]

    @property
    def world_size(self) -> int:
        """Ranks that share an epoch."""
        return self._rank()[1]

    @property
    def _order(self) -> DatasetOrder:
        if self._order_cache is None:
            runs, facts = order.runs_of(self._table), order.facts_of(self._layout)
            self._order_cache = DatasetOrder(runs, facts, self._request, rev_of(self))
        return self._order_cache

    def _global_batch(self, world: int) -> int | None:
        return None if self.batch_size is None else self.batch_size * world

    def _params(self) -> OrderParams | None:
        return self._order.params(self._global_batch(self._rank()[1]), self._passes.params)

    def _share(self) -> Share:
        """This process's part. Without `batch_size` a global batch is the least multiple of the
        ranks that holds all lanes.
        """
        rank, world = self._rank()
        batch = self.batch_size
        if batch is None:
            params = self._params()
            batch = -(-max(1 if params is None else params.C, 64) // world)
        worker = current_worker()
        if worker is None:
            return Share(batch, rank, world)
        return Share(batch, rank, world, worker.id, worker.count)

    def _feed(self, place: Position) -> Any:
        """This process's batches from a place on."""
        share, stop = self._share(), None
        if self.repeat:
            stop = -1
        elif self.batch_size is None:
            stop = self._order.count // share.world * share.world
        params, part = self._params(), self._at_once()
        return self._order.feed(place.epoch, place.done, params, share, stop=stop, part=part)

    def _ahead(self) -> int:
        return self._order.ahead(self._params(), self._share(), self._at_once())

    def _at_once(self) -> int:
        """Samples that the engine makes as one: a batch, or a part of what `_share` calls one."""
        batch = self._share().batch
        if self.batch_size is not None:
            return batch
        one = self._batch_bytes(1) + 2 * self._staged_bytes(1)
        return max(1, min(batch, _PART, self._free_bytes() // ((_PREFETCH + 1) * max(1, one))))

    def num_frames_for_rank(
        self, rank: int | None = None, world_size: int | None = None, num_workers: int = 0
    ) -> int:
        """Samples that a rank (None: this one) gets per epoch, whatever its number of workers."""
        if rank is None and world_size is None:
            rank, world_size = self._rank()
        if rank is None or world_size is None or not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} of world size {world_size} is not possible")
        world = world_size
        count = self._order.count
        if self.batch_size is None or self.repeat:
            return count // world
        whole, tail = divmod(count, self.batch_size * world)
        last = (rank + 1) * tail // world - rank * tail // world
        return whole * self.batch_size + (1 if 0 < tail < world else last)

    @property
    def num_shards(self) -> int:
        """Selected episodes: into so many parts the data could be cut."""
        return self.num_episodes

    @property
    def delta_indices(self) -> dict[str, list[int]] | None:
        """Row offsets per key of `delta_timestamps`."""
        if self.delta_timestamps is None:
            return None
        return {key: list(rows) for key, rows in self._options.deltas.items()}

    # -- the engine --

    def _new_handle(self, workers: int) -> EngineHandle:
        threads = self._num_threads
        if threads is None:
            threads = max(1, env.granted_cpus() // max(1, workers))
        wanted = self._open_decoders
        decoders = DECODERS_PER_THREAD if wanted is None else max(1, wanted // max(1, threads))
        batch = self._at_once()
        prefetch = 0 if threads == 0 else self._fitting_prefetch(batch, None, threads)
        one, staged = self._batch_bytes(batch), (prefetch + 2) * self._staged_bytes(batch)
        free = max(0, self._free_bytes() - 2 * staged)
        parked = max(0, min(self._budget() // 4, free - (prefetch + 1) * one))
        keep = min(free - parked, (prefetch + 2) * (one + gpu.PAGES) if self._on_gpu else free)
        return self._make_handle(
            workers, keep, staged, num_threads=threads, prefetch_batches=prefetch,
            parked_bytes=parked, max_decoders=decoders,
        )  # fmt: skip

    def _fitting_prefetch(self, batch: int, budget: int | None, threads: int = 0) -> int:
        """Batches under way that the budget holds; ValueError if a given one holds no two.
        threads: of parts of batches, as many as they may work on.
        """
        one = self._batch_bytes(batch) + 2 * self._staged_bytes(batch)
        need = 2 * one + self._caches()
        if budget is not None and budget < need:
            raise ValueError(
                f"memory_budget={budget} holds no two batches of {one} bytes: "
                f"at least {need} is needed, or a smaller batch_size"
            )
        wanted = 1 if self._workers() else _PREFETCH  # a DataLoader asks its workers ahead, too
        wanted = max(wanted, -(-2 * threads // batch) if self.batch_size is None else 0)
        return max(1, min(wanted, self._free_bytes() // max(1, one) - 1))

    # -- iteration --

    def __iter__(self) -> Stream:
        live, worker = self._own_live(), current_worker()
        if live is not None:
            live.ended = True
            if worker is None and live.resumed and live.untouched:
                self._passes.give_back(Pass(live.epoch, live.base))  # nothing was resumed yet
                self._skip, self._resuming = live.position().items, True
        self._freeze_rank()
        count = 1 if worker is None else worker.count
        if count > 1 and self.batch_size is None and self._passes.once(1):
            logger.warning(
                "%s: %d DataLoader workers and no batch_size= of the dataset: each sample comes "
                "once, but which samples make a batch depends on the number of workers",
                self.repo_id, count,
            )  # fmt: skip
        begin = self._passes.claim()
        resumed, self._resuming = self._resuming, False
        skip, self._skip = self._skip, 0
        self._in_flight_epoch = begin.epoch
        self._live = None
        self._live = Stream(self, begin, skip, resumed)
        if self._substitutions is not None:
            self._substitutions.begin(self.num_frames_for_rank())
        return self._live

    def _own_live(self) -> Stream | None:
        """This process's latest pass."""
        live = self._live
        if live is None or (live.pid != os.getpid() and current_worker() is not None):
            return None
        return live

    def _finished(self, stream: Stream) -> None:
        """A pass is complete: from now on the next epoch's start is where we stand.

        A DataLoader worker still stands at the end of its part: others may not be done.
        """
        if current_worker() is None and self._live is stream:
            self._live = None

    def _make_video_decoder_cache(self) -> VideoDecoderCache:
        """A cache of the size that was asked for; the engine itself does without."""
        if self._open_decoders is None:
            return VideoDecoderCache()
        return VideoDecoderCache(max_size=self._open_decoders)

    def _finalize_sample(self, row: Mapping[str, Any]) -> Item:
        """The item of a row of `_pipeline`."""
        number = getattr(row, "row", None)
        if number is None:
            number = int(np.searchsorted(self._table.index, int(row["index"])))
        try:
            batch = self._engine().get(np.array([number], np.int64))
            data = self._batch_data(batch, self.num_frames, distinct=True)
        except ReelpoolError as error:
            self._named(error)
            raise
        (item,) = self._items(data)
        seed = sample_seed(self.seed, self._in_flight_epoch, int(item["index"]))
        return self._transformed(item, seed)

    # -- epochs, state --

    @property
    def _epoch(self) -> int:
        return self._passes.epoch

    @_epoch.setter
    def _epoch(self, value: int) -> None:
        # A subclass that iterates by itself advances the counter so, in each of its workers.
        if current_worker() is not None and value == self._passes.epoch + 1:
            self._passes.claim()
        else:
            self._passes.set(value)

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next pass, in workers that run already too. After `load_state_dict`, one
        at or below the counter is ignored: wrappers send 0, 1, ... to a resumed run too.
        """
        check_epoch(epoch)
        self._passes.set(int(epoch))

    def state_dict(self) -> dict[str, Any]:
        """Where the consumers of all ranks stand: JSON of at most 256 bytes, equal on all ranks.

        In a DataLoader worker, or in the middle of a batch, it has a field `part` and resumes this
        worker only: torchdata's StatefulDataLoader keeps such states.

        Raises:
            StateError: a DataLoader's workers read, and this is their parent, which does not know
                how far they are.
        """
        worker = current_worker()
        if worker is None and self._passes.workers > 0:
            raise StateError(
                f"{self._passes.workers} DataLoader workers read this dataset, and the parent does "
                "not know what was taken of them: use reelpool.Loader, torchdata's "
                "StatefulDataLoader, or state_for_step(step)"
            )
        live = self._own_live()
        if live is None:
            place = Position(self._passes.epoch, self._passes.start, self._skip)
        else:
            place = live.position()
        share = self._share()
        exact = worker is not None
        state = self._order.state(place.epoch, place.done, self._params(), exact)
        if exact or place.items:
            state[PART] = [*share.whose, place.items]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at `state` with the next pass. StateError names the field that differs."""
        share = self._share()
        epoch, done, params = self._order.load(state, self._global_batch(share.world))
        part = state.get(PART)
        if part is not None and not (
            isinstance(part, (list, tuple)) and len(part) == 5 and all(map(is_int, part))
            and tuple(part[:4]) == share.whose and 0 <= part[4] < share.batch
        ):  # fmt: skip
            raise StateError(
                f"state field {PART!r} is {part!r}: the middle of a batch, or one DataLoader "
                "worker's place, [world, batch, workers, worker, items]. Load it into the same "
                f"(here {list(share.whose)}), or use state_for_step(step)"
            )
        live = self._own_live()
        if live is not None:
            live.ended = True
        self._live = None
        self._skip = 0 if part is None else int(part[4])
        self._resuming = True
        if not self.repeat:  # a worker counts on where its part is at its end
            done = min(done, self._order.count)
        self._passes.load(Pass(epoch, done), params or order.SEQUENTIAL_PARAMS)

    def state_for_step(self, step: int) -> dict[str, Any]:
        """The state after `step` batches of every rank, counted from epoch 0. ValueError without
        `batch_size`.
        """
        if self.batch_size is None:
            raise ValueError("state_for_step() needs the dataset's batch_size=")
        size = self.batch_size * self._rank()[1]
        found = position_of_step(step, self._order.count, size, False, self.repeat)
        return self._order.state(*found, self._params())

    # -- counters --

    def stats(self) -> dict[str, Any]:
        """Counters of this process's engine, and `order_exact`; see docs/design.md."""
        stats = super().stats()
        stats["order_exact"] = not (self._passes.workers > 1 and self.batch_size is None)
        stats["substituted"] = 0 if self._substitutions is None else self._substitutions.total
        return stats

    def video_decoder_cache_stats(self) -> dict[str, Any]:
        """Video files opened by this process's engine, in the words of a decoder cache."""
        return in_cache_words(super().stats(), len(self._layout.paths))


def _own_pids() -> tuple[int, ...]:
    """This process, and the one that a DataLoader worker works for."""
    return (os.getpid(),) if current_worker() is None else (os.getpid(), os.getppid())
