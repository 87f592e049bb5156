"""The border to torch: tensors over our memory, DataLoader workers, batches lent between processes.

A DataLoader worker decodes into shared memory. What its collation returns is a `LentBatch`: when it
is pickled for the parent, the memory itself is lent, not copied; the parent maps each block once
and gives it back when the last tensor of the batch is gone.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

__all__ = ["IterableDataset", "LentBatch", "from_numpy", "seeded", "workers"]

_maps: dict[tuple[int, int, int], Any] = {}  # (pid, start time, block id) -> BlockMap
_maps_lock = threading.Lock()


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """A tensor over the same memory; uint16 and other rare dtypes as torch has them."""
    return torch.from_numpy(array)


def lacks_cuda() -> str | None:
    """Version of a torch that is built without CUDA; None: it is built with it."""
    return None if torch.version.cuda is not None else str(torch.__version__)


def current_device() -> int:
    """Number of torch's current GPU."""
    return torch.cuda.current_device()


def initialized_device() -> int | None:
    """Number of torch's current GPU; None where torch has not begun with CUDA. Begins nothing."""
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


def from_device(array: Any) -> torch.Tensor:
    """A tensor over the memory of a `DeviceArray`; work on torch's current stream waits for it."""
    return torch.from_dlpack(array)


def to_device(array: np.ndarray, ordinal: int) -> torch.Tensor:
    """A copy in the memory of a GPU."""
    return torch.from_numpy(array).to(f"cuda:{ordinal}")


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same in torch's own memory, of which alone torch gives other processes a handle."""
    return tensor.clone()


def why_unshared(ordinal: int) -> str | None:
    """What torch says where this process cannot give memory of a GPU to another; None: it can.

    Where it cannot, a DataLoader's batches are lost in the thread that sends them, and their taker
    waits for ever: it has to be known before.
    """
    try:
        torch.empty(1, device=f"cuda:{ordinal}").untyped_storage()._share_cuda_()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


class DeviceBatch(dict):
    """A batch of which some tensors lie in a GPU's memory, where nothing is to be pinned."""

    def pin_memory(self) -> DeviceBatch:
        """What a DataLoader with pin_memory=True asks for: the other tensors are pinned."""
        return DeviceBatch({key: _pinned(value) for key, value in self.items()})


def _pinned(value: Any) -> Any:
    on_host = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    return value.pin_memory() if on_host else value


def workers() -> int:
    """Workers of the DataLoader that this process works for; 0 in any other process."""
    info = torch.utils.data.get_worker_info()
    return 0 if info is None else info.num_workers


def _start_time(pid: int) -> int:
    """When a process began, in ticks since boot; 0 if there is none: pids are used again."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            return int(stream.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


class LentBatch(dict):
    """A worker's batch. Unchanged tensors travel as memory of the worker, all else by pickle."""

    def __init__(self, values: dict[str, Any], data: Any = None) -> None:
        super().__init__(values)
        self._data = data  # BatchData

    def __reduce_ex__(self, protocol: Any) -> tuple:
        lent = self._lend()
        if lent is None:
            return dict, (dict(self),)
        return lent

    def _lend(self) -> tuple | None:
        data = self._data
        if data is None:
            return None
        layout, batch = data.layout, data.core_batch
        own = data.tensors()
        fields = {e.key: e.at for e in layout.entries if e.source == "field"}
        refs = {key: fields[key] for key in self if key in fields and self[key] is own.get(key)}
        if not refs or not all(_exclusive(own[key]) for key in fields):
            return None
        try:
            fd, block, size, samples, offsets = batch.lend()
        except RuntimeError:
            return None  # lent before: this is a second pickle of the same batch
        rest = {key: value for key, value in self.items() if key not in refs}
        pid = os.getpid()
        sender = (pid, _start_time(pid), block)
        handle = None
        if sender not in _sent:
            from multiprocessing.reduction import DupFd

            handle = DupFd(fd)
            _sent.add(sender)
        return _receive, (sender, handle, size, samples, layout.fields, offsets, list(self), refs,
                          rest)  # fmt: skip


def _exclusive(tensor: torch.Tensor) -> bool:
    """Whether nobody but the batch being sent holds the tensor or a view of its memory.

    What somebody keeps (a dataset that caches its items, say) must not be lent: the receiver's
    release would let new pictures overwrite it. Where torch does not tell, the answer is no.
    """
    count = getattr(torch._C, "_storage_Use_Count", None)
    if count is None:
        return False
    storage = tensor.untyped_storage()
    # The tensor and `storage` share the memory; the tensor is held by the two dicts, this
    # function's argument and the caller's expression.
    return count(storage._cdata) <= 2 and sys.getrefcount(tensor) <= _HOLDERS


_HOLDERS = 4  # two dicts, the parameter, getrefcount's own
_sent: set[tuple[int, int, int]] = set()  # blocks whose descriptor went out


def _receive(
    sender: tuple[int, int, int], handle: Any, size: int, samples: int, fields: list,
    offsets: tuple, keys: list[str], refs: dict[str, int], rest: dict[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """In the parent: tensors over the lent block."""
    from .engine import load_core

    with _maps_lock:
        block = _maps.get(sender)
        if handle is not None:
            _forget_dead_workers()
            try:
                fd = handle.detach()
            except (OSError, EOFError) as error:  # torch may not have seen yet that it is gone
                raise RuntimeError(
                    f"DataLoader worker (pid {sender[0]}) ended while it handed over a batch"
                ) from error
            try:
                block = _maps[sender] = load_core().BlockMap(fd, size)
            finally:
                os.close(fd)
    if block is None:
        raise RuntimeError("a batch arrived whose shared memory was never announced")
    arrays = block.lease(fields, offsets, samples)
    return {key: torch.from_numpy(arrays[refs[key]]) if key in refs else rest[key] for key in keys}


def _forget_dead_workers() -> None:
    """Unmap blocks whose worker is gone and whose batches are gone too."""
    for key in [k for k in _maps if _start_time(k[0]) != k[1] and _maps[k].leases == 0]:
        del _maps[key]


class seeded:
    """Context: torch's CPU generator seeded with `seed`, restored at the end."""

    def __init__(self, seed: int) -> None:
        self.seed = seed % 2**64

    def __enter__(self) -> None:
        self.state = torch.random.get_rng_state()
        torch.random.default_generator.manual_seed(self.seed - 2**63)

    def __exit__(self, *exc: Any) -> None:
        torch.random.set_rng_state(self.state)


def stack(values: list[torch.Tensor]) -> torch.Tensor:
    """`torch.stack` along a new first dimension."""
    return torch.stack(values)


def permutation(count: int, seed: int) -> np.ndarray:
    """`torch.randperm(count)` by a generator of its own, int64 (count,)."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()


def depth_values(
    codes: int, scale: float, offset: float, shift: float | None, low: float, high: float, mm: bool
) -> np.ndarray:
    """float32 (codes,): each code's depth, by torch's float32 steps in LeRobot's order."""
    table = torch.arange(codes, dtype=torch.float32).mul_(scale).add_(offset)
    if shift is not None:
        table.exp_().sub_(shift)
    table.clamp_(low, high)
    if mm:
        table.mul_(1000.0).round_().clamp_(0.0, 65535.0)
    return table.numpy()


def worker_info() -> tuple[int, int, int] | None:
    """(number, workers, seed that they have in common) of this DataLoader worker; else None."""
    info = torch.utils.data.get_worker_info()
    return None if info is None else (info.id, info.num_workers, (info.seed - info.id) % 2**63)


def shared_int64(count: int) -> tuple[torch.Tensor, np.ndarray]:
    """Zeros in memory that travels to other processes as itself: the tensor, and its array."""
    # Not share_memory_(): it copies, by threads that a forked process does not have.
    storage = torch.UntypedStorage._new_shared(8 * count)
    memory = torch.empty(0, dtype=torch.int64).set_(storage, 0, (count,), (1,))
    return memory, memory.numpy()
