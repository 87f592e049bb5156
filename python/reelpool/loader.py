"""`Loader`: shuffled batches of a dataset straight from the C engine's threads."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import device as gpu
from . import env
from .corruption import Substitutions
from .dataset import LeRobotDataset
from .dataset_base import check_threads, sample_seed, seeded
from .distributed import default_memory_budget, resolve_rank
from .engine import (
    FRAME_CACHE_BYTES,
    MAX_PREFETCH,
    TIMEOUT_S,
    BatchData,
    EngineHandle,
    batch_bytes,
    torch_wanted,
)
from .engine_paths import read_ahead_bytes
from .errors import ClosedError, ReelpoolError, StateError
from .loader_source import DatasetSource, MixtureSource, SamplerSource, request_of
from .order import Share, is_int
from .order_state import PART, check_epoch, position_of_step

if TYPE_CHECKING:
    from .streaming import StreamingLeRobotDataset

logger = logging.getLogger("reelpool")


class Loader:
    """Batches of `batch_size` samples per rank, in dicts like an item's with a first dimension B.

    Scalars (B,), vectors (B, n), windows (B, T, ...), RGB (B, 3, H, W) or (B, T, 3, H, W), pads
    (B, T); `task`, strings and language columns are lists of B. The memory of a batch is writable
    and the taker's alone until its last view is gone; then it is used again.

    Over a `LeRobotDataset`, `shuffle=True` is an exact uniform permutation of all frames per epoch
    (`window` below the number of frames: frames are spread over that many only; `locality=(g, k,
    J)`: up to k frames of a GOP of g lie within J samples, so that each GOP is decoded once).
    `sampler` gives the indices instead. Over a `StreamingLeRobotDataset` the order is the
    dataset's own. A list of datasets of one kind is mixed by `weights` (None: by their frames);
    `samples_per_epoch` (None: all their frames) ends a pass. `lanes` pins what otherwise follows
    from the batch and world size.

    With several ranks each takes its share of every global batch. `num_threads` and
    `memory_budget` as in the dataset; a budget never changes the order, it lowers
    `prefetch_batches`. `decoded_budget` (bytes; None: a quarter of the budget): decoded pictures
    that wait for their batch.

    `iter()` runs the current epoch and advances the counter; a new iterator ends the one before.
    """

    def __init__(
        self,
        dataset: LeRobotDataset | StreamingLeRobotDataset | Sequence[Any],
        batch_size: int,
        *,
        weights: Sequence[float] | None = None,
        samples_per_epoch: int | None = None,
        device: str = "cpu",
        output: str | None = None,
        num_threads: int | None = None,
        timeout_s: float = TIMEOUT_S,
        prefetch_batches: int = 2,
        drop_last: bool = False,
        memory_budget: int | str | None = None,
        decoded_budget: int | str | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        window: int | None = None,
        unit: int | None = None,
        locality: tuple[int, int, int] | None = None,
        lanes: int | None = None,
        sampler: Iterable[int] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        mixed = isinstance(dataset, (list, tuple))
        datasets: list[Any] = list(dataset) if mixed else [dataset]  # type: ignore[arg-type]
        _check_datasets(datasets)
        _check_counts(batch_size, prefetch_batches, num_threads, timeout_s)
        self.device = str(device)
        self._device = gpu.check_loader(datasets, device)
        if not mixed and not (weights is None and samples_per_epoch is None):
            raise ValueError("weights= and samples_per_epoch= need a list of datasets")
        request = request_of(
            datasets, shuffle=shuffle, seed=seed, window=window, unit=unit, locality=locality,
            lanes=lanes,
        )  # fmt: skip
        self._source: Any = None
        if sampler is not None:
            if shuffle:
                raise ValueError("sampler= and shuffle=True exclude each other")
            if mixed or not isinstance(dataset, LeRobotDataset):
                raise ValueError("sampler= gives indices of one LeRobotDataset")
            self._source = SamplerSource(dataset, sampler, request.seed)
        elif mixed:
            self._source = MixtureSource(datasets, weights, samples_per_epoch, request)
        else:
            self._source = DatasetSource(dataset, request)
        self.dataset, self.sampler = dataset, sampler
        self.batch_size, self.drop_last = int(batch_size), bool(drop_last)
        self.shuffle, self.seed = request.shuffle, request.seed
        self.timeout_s = float(timeout_s)
        self._repeat = any(getattr(d, "repeat", False) for d in datasets)
        self._torch = torch_wanted(output) if self._device is None else gpu.check_output(output)
        if self._device is not None:
            gpu.check_datasets(datasets, self._source.layout, self._torch)
        self._num_threads = datasets[0]._num_threads if num_threads is None else num_threads
        self._prefetch = int(prefetch_batches)
        budget = memory_budget
        if budget is None:
            budget = datasets[0]._memory_budget
        self._budget = None if budget is None else env.parse_bytes(budget)
        self._decoded = None if decoded_budget is None else env.parse_bytes(decoded_budget)
        self._rank_arguments = _rank_arguments(datasets, rank, world_size)
        self._frozen_rank: tuple[int, int] | None = None
        self._epoch, self._resume, self._pinned = 0, 0, False
        self._loaded: Any = None  # the order of a loaded state
        self._handle: EngineHandle | None = None
        self._substitutions: Substitutions | None = None
        self._iterator: _Batches | None = None
        self._closed = False
        self._repeated = 0
        if self._budget is not None:
            self._fitting_prefetch()

    # -- order --

    def _rank(self) -> tuple[int, int]:
        if self._frozen_rank is None:
            self._frozen_rank = resolve_rank(*self._rank_arguments)
        return self._frozen_rank

    @property
    def _size(self) -> int:
        """Samples of a global batch."""
        return self.batch_size * self._rank()[1]

    def _order(self) -> Any:
        return self._source.params(self._size, self._loaded)

    def __len__(self) -> int:
        """This rank's batches per epoch."""
        count, size = self._source.total, self._size
        return count // size if self.drop_last or self._repeat else -(-count // size)

    # -- iteration --

    def _engine(self) -> EngineHandle:
        if self._closed:
            raise ClosedError("this Loader was closed. Make a new one")
        if self._handle is None or self._handle.pid != os.getpid():
            threads = env.granted_cpus() if self._num_threads is None else self._num_threads
            prefetch = self._fitting_prefetch() if threads > 0 else 0
            # Free memory beyond what is in flight goes back: a consumer may have held many batches.
            batches = (prefetch + 2) * (self._batch_bytes() + gpu.PAGES)
            staged = (prefetch + 2) * self._staged_bytes()
            parked = self._parked_bytes(batches + 2 * staged)
            fixed = batches + 2 * staged + parked + self._caches()
            self._handle = EngineHandle(
                self._source.layout, num_threads=threads, prefetch_batches=prefetch,
                keep_bytes=batches, parked_bytes=parked,
                read_ahead=self._read_ahead(self._total_budget() - fixed),
                device=self._ordinal(), stage_bytes=staged,
            )  # fmt: skip
        return self._handle

    def _ordinal(self) -> int | None:
        """The GPU's number, from now on the same."""
        if self._device is not None:
            self._device = gpu.ordinal_of(self._device, self._torch)
        return self._device

    def _total_budget(self) -> int:
        return default_memory_budget() if self._budget is None else self._budget

    def _caches(self) -> int:
        """Bytes that are no batches, pictures or remote files."""
        return FRAME_CACHE_BYTES + self._source.layout.index_bytes

    def _parked_bytes(self, batches: int) -> int:
        """Bytes for decoded pictures that wait for their batch."""
        if self._decoded is not None:
            return self._decoded
        budget = self._total_budget()
        free = budget - batches - self._caches() - self._read_ahead()
        return max(0, min(budget // 4, free))

    def _read_ahead(self, rest: int | None = None) -> int:
        """Bytes of remote files in memory, out of the budget; rest: what is left of it."""
        return read_ahead_bytes(self._source.layout.paths, self._total_budget(), rest)

    def _batch_bytes(self) -> int:
        """Bytes of one batch."""
        return batch_bytes(self._source.layout.fields, self.batch_size)

    def _staged_bytes(self) -> int:
        """Bytes of one batch on its way to a GPU: so many pinned, and as many there."""
        if self._device is None:
            return 0
        return gpu.staged_bytes(self._source.layout, self.batch_size) + gpu.PAGES

    def _fitting_prefetch(self) -> int:
        """`prefetch_batches`, lowered to what the budget holds beside the pictures that wait:
        to decode those twice costs more than to work on one batch less.
        """
        budget, one = self._total_budget(), self._batch_bytes() + 2 * self._staged_bytes()
        free = budget - self._caches() - self._read_ahead()
        fits = free // max(1, one) - 1
        if fits < 1 and self._budget is not None:
            need = 2 * one + self._caches()
            ahead = read_ahead_bytes(self._source.layout.paths, 1 << 62)  # not more than a quarter
            need = min(need + ahead, need * 4 // 3 + 1)
            raise ValueError(
                f"memory_budget={budget} holds no two batches of {one} bytes: "
                f"at least {need} is needed, or a smaller batch_size"
            )
        pictures = budget // 4 if self._decoded is None else self._decoded
        fits = max(1, (free - pictures) // max(1, one) - 1)
        if fits < self._prefetch:
            logger.info("prefetch_batches=%d instead of %d: memory budget", fits, self._prefetch)
        return min(self._prefetch, fits, MAX_PREFETCH)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        handle = self._engine()
        if self._iterator is not None:
            self._iterator.ended = True
        epoch, done = self._epoch, self._resume
        iterator = _Batches(self, epoch, done, handle)
        self._epoch, self._resume = epoch + 1, 0
        self._iterator = iterator
        return iterator

    def _feed(self, epoch: int, done: int) -> Any:
        share = Share(self.batch_size, *self._rank())
        return self._source.feed(epoch, done, self._order(), share, self.drop_last, self._repeat)

    def _expect(self, handle: EngineHandle, epoch: int, done: int) -> bool:
        """Near the end of an epoch: tell what the next one begins with. True: it need not be told
        any more. A sampler is not asked before its epoch begins.
        """
        silent = self._repeat or isinstance(self._source, SamplerSource) or epoch + 1 >= 2**32
        if silent or not handle.is_remote:
            return True
        batches = handle.prefetch_batches + 1
        if done + batches * self._size < self._source.total:
            return False
        feed = self._feed(epoch + 1, 0)
        found = [feed.next() for _ in range(batches)]
        rows = [batch[0] for batch in found if batch is not None]
        if rows:
            handle.expect(np.concatenate(rows))
        return True

    def _begin(self, handle: EngineHandle, epoch: int, done: int) -> None:
        """Start the stream of one epoch's rest."""
        source, params, size = self._source, self._order(), self._size
        share = Share(self.batch_size, *self._rank())
        feed = self._feed(epoch, done)
        left = max(0, source.total - done) % size
        short = left and left < share.world and not (self.drop_last or self._repeat)
        self._repeated = share.world - left if short else 0
        handle.begin(feed, source.ahead(params, size))
        if self._substitutions is not None:
            self._substitutions.begin(source.total // share.world)

    def _deliver(self, batch: Any, epoch: int) -> dict[str, Any]:
        source = self._source
        fetch = self._engine().get if source.layout.substitute else None
        data = BatchData(
            source.layout, batch, self._torch, fetch=fetch, device=self._engine().device
        )
        if data.substitutes:
            if self._substitutions is None:
                self._substitutions = Substitutions(
                    source.layout, source.datasets()[0]._max_bad_fraction,
                    source.total // self._rank()[1],
                )  # fmt: skip
            self._substitutions.note(data.substitutes)
        values = data.tensors()
        if any(d.image_transforms is not None for d in source.datasets()):
            values = self._transformed(values, data.rows, epoch)
        return values

    def _transformed(self, values: dict[str, Any], rows: np.ndarray, epoch: int) -> dict[str, Any]:
        datasets = self._source.datasets()
        if not self._torch and self._device is not None:
            gpu.check_transforms(datasets)
        keys = [k for k in datasets[0]._picture_keys() if k in values]
        done: dict[str, list] = {key: [] for key in keys}
        for position, (dataset, row, seed) in enumerate(self._source.samples(rows)):
            transform = dataset.image_transforms or _unchanged
            number = sample_seed(seed, epoch, int(dataset._table.index[row]))
            with seeded(number if self._torch else None):
                for key in keys:
                    done[key].append(transform(values[key][position]))
        join: Any = np.stack
        if self._torch:
            from .torch_bridge import stack as join
        return {k: join(done[k]) if k in done else v for k, v in values.items()}

    # -- epochs, state --

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next `iter()`. After `load_state_dict`, one at or below the counter is
        ignored: wrappers send 0, 1, ... to a resumed run too.
        """
        check_epoch(epoch)
        if self._pinned and epoch <= self._epoch:
            return
        self._epoch, self._resume = int(epoch), 0

    def state_dict(self) -> dict[str, Any]:
        """Where the consumers of all ranks stand: JSON of at most 256 bytes for one dataset, equal
        on all ranks.
        """
        return self._source.state(*self._position(), self._order())

    def _position(self) -> tuple[int, int]:
        """(epoch, samples of it that all ranks have): of the latest pass, unless it is complete."""
        live = self._iterator
        return (self._epoch, self._resume) if live is None else (live.epoch, live.done)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at `state` with the next `iter()`. StateError names the field that differs."""
        if isinstance(state, dict) and PART in state:
            raise StateError(
                f"state field {PART!r}: it is one DataLoader worker's. Use state_for_step(step)"
            )
        epoch, done, params = self._source.load(state, self._size)
        if done > self._source.total:
            raise StateError(
                f"state field 'samples_done' is beyond the epoch's {self._source.total} samples"
            )
        if self._iterator is not None:
            self._iterator.ended = True
            self._iterator = None
        self._epoch, self._resume, self._loaded = epoch, done, params
        self._pinned = True

    def state_for_step(self, step: int) -> dict[str, Any]:
        """The state after `step` batches of every rank, counted from epoch 0."""
        epoch, done = position_of_step(
            step, self._source.total, self._size, self.drop_last, self._repeat
        )
        return self._source.state(epoch, done, self._order())

    # -- end --

    def stats(self) -> dict[str, Any]:
        """Counters of the engine; empty before the first `iter()`. Keys: docs/design.md."""
        if self._handle is None or self._handle.pid != os.getpid():
            return {}
        stats = self._handle.stats()
        stats["repeated_tail"] = self._repeated
        stats["substituted"] = 0 if self._substitutions is None else self._substitutions.total
        if isinstance(self._source, MixtureSource):
            params = self._order()
            lanes = 1 if params is None else sum(p.C for p in params)
            stats["weights"] = None if params is None else [p.C / lanes for p in params]
        return stats

    def close(self) -> None:
        """Stop the threads and free their memory. Batches handed out stay valid."""
        self._closed = True
        if self._iterator is not None:
            self._iterator.ended = True
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state.update(_handle=None, _iterator=None, _frozen_rank=None, _substitutions=None)
        state["_epoch"], state["_resume"] = self._position()
        state["_device"] = gpu.parse_device(self.device)
        return state


class _Batches:
    """Iterator over the rest of one epoch."""

    def __init__(self, loader: Loader, epoch: int, done: int, handle: EngineHandle) -> None:
        self.loader, self.epoch, self.handle = loader, epoch, handle
        self.done = done  # samples of the epoch that all ranks' consumers have
        self.ended = False
        self._told = False  # the engine knows what comes after this pass
        self._pid = os.getpid()
        loader._begin(handle, epoch, done)

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> dict[str, Any]:
        loader = self.loader
        if loader._closed:
            raise ClosedError("this Loader was closed. Make a new one")
        if self.ended:
            raise StopIteration
        if self._pid != os.getpid():  # after a fork: a new engine, at this iterator's position
            self._pid, self.handle = os.getpid(), loader._engine()
            loader._begin(self.handle, self.epoch, self.done)
        try:
            found = self.handle.next(loader.timeout_s)
            values = None if found is None else loader._deliver(found[0], self._epoch_of(found[1]))
        except Exception as error:  # an error is this batch's, and the last thing of this pass
            self.ended = True
            if isinstance(error, ReelpoolError):
                loader._source.name_error(error)
            raise
        if found is None or values is None:
            self.ended = True
            loader._iterator = None
            raise StopIteration
        source = loader._source
        if isinstance(source, SamplerSource):  # its feed knows this rank's rows only
            self.done = min(source.total, self.done + loader._size)
        else:
            self.done = source.done(self.epoch, found[1])
        self._told = self._told or loader._expect(self.handle, self.epoch, self.done)
        return values

    def _epoch_of(self, done: int) -> int:
        """The epoch of a batch: beyond this pass's own where the stream has no end."""
        loader = self.loader
        if not loader._repeat:
            return self.epoch
        return (
            self.epoch + max(0, loader._source.done(self.epoch, done) - 1) // loader._source.total
        )


def _unchanged(picture: Any) -> Any:
    return picture


def _check_datasets(datasets: list[Any]) -> None:
    if not datasets:
        raise ValueError("a list of datasets must hold at least one")
    for dataset in datasets:
        if not hasattr(dataset, "_layout"):
            raise TypeError(
                "Loader reads a reelpool.LeRobotDataset or StreamingLeRobotDataset, not "
                f"{type(dataset).__name__}; wrap other datasets in torch's DataLoader"
            )
    if len({isinstance(dataset, LeRobotDataset) for dataset in datasets}) > 1:
        raise TypeError("a list of datasets holds map-style or streaming ones, not both kinds")


def _rank_arguments(
    datasets: list[Any], rank: int | None, world_size: int | None
) -> tuple[int | None, int | None]:
    """The explicit rank: the Loader's, or the dataset's."""
    if rank is not None or world_size is not None:
        resolve_rank(rank, world_size)
    for dataset in datasets:
        own = getattr(dataset, "_rank_arguments", (None, None))
        if own == (None, None):
            continue
        if rank is not None and own != (rank, world_size):
            raise ValueError(
                f"rank={rank} of {world_size}, but the dataset has {own[0]} of {own[1]}"
            )
        rank, world_size = own
    return rank, world_size


def _check_counts(batch_size: Any, prefetch: Any, threads: Any, timeout_s: Any) -> None:
    if not is_int(batch_size) or not 1 <= batch_size < 2**31:
        raise ValueError(f"batch_size must be an integer of 1..2^31 - 1, not {batch_size!r}")
    if not hasattr(prefetch, "__index__") or prefetch < 0:
        raise ValueError(f"prefetch_batches must be an integer >= 0, not {prefetch!r}")
    check_threads(threads)
    if not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
        raise ValueError(f"timeout_s must be a number of seconds > 0, not {timeout_s!r}")
