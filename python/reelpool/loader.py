"""`Loader`: shuffled batches of a dataset straight from the C engine's threads."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from . import env, order
from .dataset import LeRobotDataset
from .distributed import default_memory_budget, resolve_rank
from .engine import (
    FRAME_CACHE_BYTES,
    INDEX_BYTES,
    TIMEOUT_S,
    BatchData,
    EngineHandle,
    load_core,
    torch_wanted,
)
from .errors import ReelpoolError, StateError, name_dataset

logger = logging.getLogger("reelpool")

_PAGES = 1 << 16  # what a block may have beyond its batch
_SAMPLE_TAG = 4  # RP_TAG_SAMPLE: seeds image_transforms


class Loader:
    """Batches of `batch_size` samples per rank, in dicts like an item's with a first dimension B.

    Scalars (B,), vectors (B, n), windows (B, T, ...), RGB (B, 3, H, W) or (B, T, 3, H, W), pads
    (B, T); `task`, strings and language columns are lists of B. The memory of a batch is writable
    and the taker's alone until its last view is gone; then it is used again.

    `shuffle=True` is an exact uniform permutation of all frames per epoch (`window` below the
    number of frames: frames are spread over that many only; `locality=(g, k, J)`: up to k frames of
    a GOP of g lie within J samples, so that each GOP is decoded once). `sampler` gives the indices
    instead. With several ranks each takes its share of every global batch. `num_threads` and
    `memory_budget` as in LeRobotDataset; a budget never changes the order, it lowers
    `prefetch_batches`.

    `iter()` runs the current epoch and advances the counter; a new iterator ends the one before.
    """

    def __init__(
        self,
        dataset: LeRobotDataset,
        batch_size: int,
        *,
        device: str = "cpu",
        output: str | None = None,
        num_threads: int | None = None,
        timeout_s: float = TIMEOUT_S,
        prefetch_batches: int = 2,
        drop_last: bool = False,
        memory_budget: int | str | None = None,
        shuffle: bool | None = None,
        seed: int | None = None,
        window: int | None = None,
        unit: int | None = None,
        locality: tuple[int, int, int] | None = None,
        sampler: Iterable[int] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        if not isinstance(dataset, LeRobotDataset):
            raise TypeError(
                f"Loader reads a reelpool.LeRobotDataset, not {type(dataset).__name__}; "
                "wrap other datasets in torch's DataLoader"
            )
        _check_counts(batch_size, prefetch_batches, num_threads, timeout_s)
        if device != "cpu":
            raise ValueError(f"device={device!r}: this version delivers on 'cpu' only")
        if sampler is not None and shuffle:
            raise ValueError("sampler= and shuffle=True exclude each other")
        if not shuffle and not (window is None and unit is None and locality is None):
            raise ValueError("window=, unit= and locality= need shuffle=True")
        order.check_arguments(window, unit, locality)
        self.dataset, self.batch_size, self.drop_last = dataset, int(batch_size), bool(drop_last)
        self.shuffle, self.sampler, self.timeout_s = bool(shuffle), sampler, float(timeout_s)
        self.seed = 0 if seed is None else int(seed)
        self._torch = torch_wanted(output)
        self._num_threads = dataset._num_threads if num_threads is None else num_threads
        self._prefetch = int(prefetch_batches)
        budget = dataset._memory_budget if memory_budget is None else env.parse_bytes(memory_budget)
        self._explicit_budget = budget is not None
        self._budget = budget
        self._window, self._unit, self._locality = window, unit, locality
        self._rank_arguments = (rank, world_size)
        if rank is not None or world_size is not None:
            resolve_rank(rank, world_size)
        self._frozen_rank: tuple[int, int] | None = None
        self._epoch, self._resume, self._pinned = 0, 0, False
        self._loaded: tuple[int, int] | None = None  # lanes and unit of a loaded state
        self._handle: EngineHandle | None = None
        self._iterator: _Batches | None = None
        self._closed = False
        self._repeated = 0
        if self._explicit_budget:
            self._fitting_prefetch()

    # -- order --

    def _rank(self) -> tuple[int, int]:
        if self._frozen_rank is None:
            self._frozen_rank = resolve_rank(*self._rank_arguments)
        return self._frozen_rank

    @property
    def _runs(self) -> np.ndarray:
        return order.runs_of(self.dataset._table)

    def _params(self) -> order.OrderParams | None:
        if not self.shuffle:
            return None
        params = order.default_params(
            int(self._runs[:, 2].sum()), window=self._window, unit=self._unit,
            locality=self._locality, global_batch=self.batch_size * self._rank()[1],
        )  # fmt: skip
        if self._loaded is None:
            return params
        return dataclasses.replace(params, C=self._loaded[0], U=self._loaded[1])

    def _rows(self, epoch: int, done: int) -> np.ndarray:
        rank, world = self._rank()
        if self.sampler is not None:
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(epoch)
            indices = [self.dataset._row(i) for i in self.sampler]
            rows, lanes = np.array(indices, np.int64), 1
        else:
            params = self._params()
            rows = order.epoch_rows(self._runs, self.seed, epoch, params)
            lanes = 1 if params is None else params.C
        mine, self._repeated = order.rank_rows(
            rows, lanes, done, self.batch_size, rank, world, self.drop_last
        )
        return np.ascontiguousarray(mine)

    def __len__(self) -> int:
        """This rank's batches per epoch."""
        count = len(self.sampler) if self.sampler is not None else len(self.dataset)  # type: ignore[arg-type]
        size = self.batch_size * self._rank()[1]
        return count // size if self.drop_last else -(-count // size)

    # -- iteration --

    def _engine(self) -> Any:
        if self._closed:
            from .errors import ClosedError

            raise ClosedError("this Loader was closed. Make a new one")
        if self._handle is None or self._handle.pid != os.getpid():
            layout = self.dataset._layout
            threads = env.granted_cpus() if self._num_threads is None else self._num_threads
            prefetch = self._fitting_prefetch() if threads > 0 else 0
            # Free memory beyond what is in flight goes back: a consumer may have held many batches.
            keep = (prefetch + 2) * (self._batch_bytes() + _PAGES)
            self._handle = EngineHandle(
                layout, num_threads=threads, prefetch_batches=prefetch, keep_bytes=keep
            )
        return self._handle.engine

    def _batch_bytes(self) -> int:
        """Bytes of one batch."""
        sizes = {"B": 1, "?": 1, "H": 2, "f": 4, "q": 8}
        fields = self.dataset._layout.fields
        return sum(
            (self.batch_size * sizes[kind] * int(np.prod(shape, dtype=np.int64)) + 63) // 64 * 64
            for kind, shape in fields
        )

    def _fitting_prefetch(self) -> int:
        """`prefetch_batches`, lowered to what the memory budget holds."""
        budget = self._budget
        if budget is None:
            budget = default_memory_budget()
        one = self._batch_bytes()
        free = budget - FRAME_CACHE_BYTES - INDEX_BYTES
        fits = free // max(1, one) - 1
        if fits < 1 and self._explicit_budget:
            need = 2 * one + FRAME_CACHE_BYTES + INDEX_BYTES
            raise ValueError(
                f"memory_budget={budget} holds no two batches of {one} bytes: "
                f"at least {need} is needed, or a smaller batch_size"
            )
        fits = max(1, fits)
        if fits < self._prefetch:
            logger.info("prefetch_batches=%d instead of %d: memory budget", fits, self._prefetch)
        return min(self._prefetch, fits)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        engine = self._engine()
        if self._iterator is not None:
            self._iterator.ended = True
        epoch, done = self._epoch, self._resume
        self._epoch, self._resume = epoch + 1, 0
        engine.begin(self._rows(epoch, done), self.batch_size, self.drop_last)
        self._iterator = _Batches(self, epoch, done, engine)
        return self._iterator

    def _deliver(self, batch: Any, epoch: int) -> dict[str, Any]:
        data = BatchData(self.dataset._layout, batch, self._torch)
        values = data.tensors()
        transform = self.dataset.image_transforms
        if transform is not None:
            values = self._transformed(values, data.rows, epoch, transform)
        return values

    def _transformed(
        self, values: dict[str, Any], rows: np.ndarray, epoch: int, transform: Callable
    ) -> dict[str, Any]:
        meta, table = self.dataset.meta, self.dataset._table
        keys = [k for k in meta.camera_keys if k in values and k not in meta.depth_keys]
        done: dict[str, list] = {key: [] for key in keys}
        for position, row in enumerate(rows.tolist()):
            seed = load_core().hash64(self.seed % 2**64, epoch, _SAMPLE_TAG, int(table.index[row]))
            if self._torch:
                from .torch_bridge import seeded

                with seeded(seed):
                    for key in keys:
                        done[key].append(transform(values[key][position]))
            else:
                for key in keys:
                    done[key].append(transform(values[key][position]))
        if self._torch:
            from .torch_bridge import stack as join
        else:
            join = np.stack
        return {k: join(done[k]) if k in done else v for k, v in values.items()}

    # -- epochs, state --

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next `iter()`. After `load_state_dict`, one at or below the counter is
        ignored: wrappers send 0, 1, ... to a resumed run too.
        """
        if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or not 0 <= epoch < 2**32:
            raise ValueError(f"epoch must be an integer of 0..2^32 - 1, not {epoch!r}")
        if self._pinned and epoch <= self._epoch:
            return
        self._epoch, self._resume = int(epoch), 0

    def _order_fields(self) -> dict[str, Any]:
        """Every field of the state, at the start of the counter's epoch."""
        own: dict[str, Any] = {"v": order.VERSION}
        if self.sampler is None:
            own["dataset"] = order.fingerprint(self._runs)
            own["seed"] = self.seed
        own["epoch"], own["samples_done"] = self._epoch, self._resume
        if self.sampler is None:
            params = self._params() or order.OrderParams(C=1, U=0, R=1)
            own.update(C=params.C, U=params.U, R=params.R, k=params.k, g=params.g, J=params.J)
        return own

    def state_dict(self) -> dict[str, Any]:
        """Where the consumers of all ranks stand: JSON of at most 256 bytes, equal on all ranks."""
        state = self._order_fields()
        state["epoch"], state["samples_done"] = self._position()
        return state

    def _position(self) -> tuple[int, int]:
        """(epoch, samples of it that all ranks have): of the latest pass, unless it is complete."""
        live = self._iterator
        return (self._epoch, self._resume) if live is None else (live.epoch, live.samples_done())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at `state` with the next `iter()`. StateError names the field that differs."""
        own = self._order_fields()
        adopted = None
        if self.shuffle and isinstance(state, dict):
            adopted = order.adopted(state, own, self._unit)
            if adopted is not None:
                own["C"], own["U"] = adopted
        order.check_state(state, own)
        total = len(self.sampler) if self.sampler is not None else len(self.dataset)  # type: ignore[arg-type]
        if state["samples_done"] > total:
            raise StateError(f"state field 'samples_done' is beyond the epoch's {total} samples")
        if self._iterator is not None:
            self._iterator.ended = True
            self._iterator = None
        self._loaded = adopted
        self._epoch, self._resume = int(state["epoch"]), int(state["samples_done"])
        self._pinned = True

    def state_for_step(self, step: int) -> dict[str, Any]:
        """The state after `step` batches of every rank, counted from epoch 0."""
        if not hasattr(step, "__index__") or step < 0:
            raise ValueError(f"step must be an integer >= 0, not {step!r}")
        per_epoch = max(1, len(self))
        state = self._order_fields()
        state["epoch"] = step // per_epoch
        state["samples_done"] = step % per_epoch * self.batch_size * self._rank()[1]
        return state

    # -- end --

    def stats(self) -> dict[str, Any]:
        """Counters of the engine; empty before the first `iter()`. Keys: docs/design.md."""
        if self._handle is None or self._handle.pid != os.getpid():
            return {}
        stats = self._handle.engine.stats()
        stats["reuse"] = stats["delivered"] / max(1, stats["decoded"])
        stats["repeated_tail"] = self._repeated
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
        state.update(_handle=None, _iterator=None, _frozen_rank=None)
        state["_epoch"], state["_resume"] = self._position()
        return state


class _Batches:
    """Iterator over the rest of one epoch."""

    def __init__(self, loader: Loader, epoch: int, start: int, engine: Any) -> None:
        self.loader, self.epoch, self.start, self.engine = loader, epoch, start, engine
        self.batches = 0
        self.ended = False
        self._pid = os.getpid()

    def __iter__(self) -> _Batches:
        return self

    def samples_done(self) -> int:
        """Positions of the epoch that all ranks' consumers have."""
        loader = self.loader
        total = len(loader.sampler) if loader.sampler is not None else len(loader.dataset)  # type: ignore[arg-type]
        return min(total, self.start + self.batches * loader.batch_size * loader._rank()[1])

    def __next__(self) -> dict[str, Any]:
        if self.ended:
            raise StopIteration
        if self._pid != os.getpid():
            self._continue_in_child()
        try:
            batch = self.engine.next(self.loader.timeout_s)
            values = None if batch is None else self.loader._deliver(batch, self.epoch)
        except Exception as error:  # an error is this batch's, and the last thing of this pass
            self.ended = True
            if isinstance(error, ReelpoolError):
                name_dataset(error, self.loader.dataset.repo_id, self.loader.dataset.root)
            raise
        if values is None:
            self.ended = True
            self.loader._iterator = None
            raise StopIteration
        self.batches += 1
        return values

    def _continue_in_child(self) -> None:
        """After a fork: a new engine, at this iterator's position."""
        loader = self.loader
        self.start, self.batches, self._pid = self.samples_done(), 0, os.getpid()
        self.engine = loader._engine()
        self.engine.begin(loader._rows(self.epoch, self.start), loader.batch_size, loader.drop_last)


def _check_counts(batch_size: Any, prefetch: Any, threads: Any, timeout_s: Any) -> None:
    if isinstance(batch_size, bool) or not hasattr(batch_size, "__index__") or batch_size < 1:
        raise ValueError(f"batch_size must be an integer >= 1, not {batch_size!r}")
    if not hasattr(prefetch, "__index__") or prefetch < 0:
        raise ValueError(f"prefetch_batches must be an integer >= 0, not {prefetch!r}")
    if threads is not None and (not hasattr(threads, "__index__") or threads < 0):
        raise ValueError(f"num_threads must be an integer >= 0 or None, not {threads!r}")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be a number of seconds > 0, not {timeout_s!r}")
