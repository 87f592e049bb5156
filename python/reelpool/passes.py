"""Which epoch the next pass over a stream runs, for all processes that share the dataset.

A DataLoader calls `iter()` once in each of its workers, and those calls are one pass: the first to
come takes the counter and advances it, the others find what it took. The numbers lie in memory that
forked, spawned and persistent workers share (without torch: in this process only). A process that
got a copy and is no DataLoader worker, such as a rank forked after construction, counts alone.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .order import OrderParams

MAX_WORKERS = 256
_KEPT = 3  # passes that a worker's slot remembers
# Header: counter, first position of its pass, whether a state pins it, workers of the last pass,
# whether a state brought an order, that order, and which warnings were given (bits).
_EPOCH, _START, _PINNED, _WORKERS, _LOADED, _PARAMS, _SAID, _HEAD = 0, 1, 2, 3, 4, 5, 11, 12
# A slot's entry: what identifies a pass (seed that a DataLoader draws per iterator, how often this
# seed came before, the pass's number in its worker; 0: none), its epoch and start, when it came.
_KEY, _TAKEN, _STAMP, _ENTRY = slice(0, 3), slice(3, 5), 5, 6


class Worker(NamedTuple):
    """A DataLoader worker: number `id` of `count`; `seed` is that of its iterator."""

    id: int
    count: int
    seed: int


class Pass(NamedTuple):
    """What one `iter()` runs: its epoch, and the position of that epoch where it starts."""

    epoch: int
    start: int


def current_worker() -> Worker | None:
    """The DataLoader worker that this process is, or None."""
    try:
        from .torch_bridge import worker_info
    except ImportError:
        return None
    found = worker_info()
    return None if found is None else Worker(*found)


def _new_memory(values: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
    """(what travels to workers, its int64 numbers)."""
    size = _HEAD + MAX_WORKERS * _KEPT * _ENTRY
    try:
        from .torch_bridge import shared_int64
    except ImportError:
        memory = cells = np.zeros(size, np.int64)
    else:
        memory, cells = shared_int64(size)
    if values is not None:
        cells[:_HEAD] = values[:_HEAD]
    return memory, cells


class Passes:
    """The counter of epochs. `before_workers` runs in a process about to fork or pickle."""

    def __init__(self) -> None:
        self._memory, self._cells = _new_memory()
        self._owner = os.getpid()
        self._calls = (0, 0, 0)  # (pid, passes of this worker, how often its seed came before)
        self._forced: Pass | None = None  # a worker's own next pass
        _alive.add(self)

    # -- whose memory it is --

    def _take(self) -> None:
        """Have memory of our own, unless we are a worker of who has it."""
        if self._owner != os.getpid() and current_worker() is None:
            self._memory, self._cells = _new_memory(self._cells)
            self._cells[_WORKERS] = 0
            self._owner = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        self._take()
        return {"memory": self._memory, "owner": self._owner}

    def __setstate__(self, state: dict[str, Any]) -> None:
        memory, self._owner = state["memory"], state["owner"]
        self._calls, self._forced = (0, 0, 0), None
        shared = getattr(memory, "is_shared", None)
        if shared is not None and shared():
            self._memory, self._cells = memory, memory.numpy()
        else:  # a plain pickle: a copy
            self._memory, self._cells = _new_memory(np.asarray(memory))
            self._owner = os.getpid()
        _alive.add(self)

    # -- passes --

    def claim(self) -> Pass:
        """Begin a pass: its epoch, counted once however many workers call this for it."""
        self._take()
        worker, cells = current_worker(), self._cells
        if worker is None:
            found = Pass(int(cells[_EPOCH]), int(cells[_START]))
            cells[_WORKERS] = 0
        else:
            found = self._find(worker, record=True)
            cells[_WORKERS] = worker.count
        if int(cells[_EPOCH]) <= found.epoch or self._forced is not None:
            cells[_START] = 0
            cells[_EPOCH] = found.epoch + 1
        self._forced = None
        return found

    def _find(self, worker: Worker, record: bool) -> Pass:
        """A worker's pass: as another worker of it has it, else what the counter says."""
        if worker.count > MAX_WORKERS:
            raise ValueError(f"{worker.count} DataLoader workers: at most {MAX_WORKERS} are served")
        slots = self._cells[_HEAD:].reshape(MAX_WORKERS, _KEPT, _ENTRY)
        own = slots[worker.id]
        pid, number, again = self._calls
        if pid != os.getpid():
            # What an earlier process left under the same seed was another pass.
            number, same = 0, own[(own[:, 0] == worker.seed) & (own[:, 2] > 0)]
            again = int(same[:, 1].max()) + 1 if len(same) else 0
        number += 1
        key = (worker.seed, again, number)
        counter = Pass(int(self._cells[_EPOCH]), int(self._cells[_START]))
        # The counter is read before the slots: who advances it has written its slot by then.
        taken = slots[(slots[:, :, _KEY] == key).all(axis=2)]
        found = Pass(*map(int, taken[0, _TAKEN])) if len(taken) else counter
        if self._forced is not None:
            found = self._forced
        if record:
            entry = own[int(own[:, _STAMP].argmin())]
            entry[2] = 0  # no pass while it is written
            entry[_TAKEN], entry[_STAMP] = found, time.monotonic_ns()
            entry[:2] = key[:2]
            entry[2] = number
            self._calls = (os.getpid(), number, again)
        return found

    def give_back(self, found: Pass) -> None:
        """Undo a `claim` of a process that is no worker, unless the counter was set since."""
        if int(self._cells[_EPOCH]) == found.epoch + 1:
            self._cells[_START], self._cells[_EPOCH] = found.start, found.epoch

    @property
    def epoch(self) -> int:
        """Epoch of the next pass of this process."""
        self._take()
        worker = current_worker()
        return int(self._cells[_EPOCH]) if worker is None else self._find(worker, False).epoch

    @property
    def start(self) -> int:
        """Position of its epoch where the next pass starts; for who is no worker."""
        return int(self._cells[_START])

    @property
    def workers(self) -> int:
        """DataLoader workers of the last pass; 0: it ran in this process, or none did."""
        return int(self._cells[_WORKERS])

    def set(self, epoch: int) -> None:
        """The next pass runs `epoch`, unless a state was loaded and it lies at or below the
        counter. In a worker: its own next pass."""
        self._take()
        if current_worker() is not None:
            self._forced = Pass(epoch, 0)
        elif not (self._cells[_PINNED] and epoch <= self._cells[_EPOCH]):
            self._cells[_START], self._cells[_WORKERS] = 0, 0
            self._cells[_EPOCH] = epoch

    def load(self, found: Pass, params: OrderParams) -> None:
        """The next pass starts at `found` in the order `params`; in a worker: its own pass."""
        self._take()
        cells = self._cells
        cells[_PARAMS:_SAID] = (params.C, params.U, params.R, params.k, params.g, params.J)
        cells[_LOADED] = cells[_PINNED] = 1
        if current_worker() is not None:
            self._forced = found
        else:
            cells[_START], cells[_WORKERS] = found.start, 0
            cells[_EPOCH] = found.epoch

    def once(self, what: int) -> bool:
        """Whether no process that counts with this one asked for `what` (0..62) before."""
        said = int(self._cells[_SAID])
        self._cells[_SAID] = said | 1 << what
        return not said >> what & 1

    @property
    def params(self) -> OrderParams | None:
        """The order that a loaded state brought."""
        if not self._cells[_LOADED]:
            return None
        return OrderParams(*map(int, self._cells[_PARAMS:_SAID]))


_alive: weakref.WeakSet[Passes] = weakref.WeakSet()


def _before_fork() -> None:
    """A forked worker finds the counter of its parent, not of the process before it."""
    for passes in list(_alive):
        passes._take()


def register_fork_hook(register: Callable[..., None] = os.register_at_fork) -> None:
    """Called once, when this module is loaded."""
    register(before=_before_fork)


register_fork_hook()
