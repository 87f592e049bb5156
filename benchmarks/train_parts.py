"""What train_streaming_multinode.py stands on: processes, checkpoints, its log."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from reelpool.distributed import resolve_rank
from torch import nn


class UnusableError(Exception):
    """What the user gave cannot be worked with: its text is all that is printed."""


# -- processes --


class Processes:
    """This process among all: device, collectives, DDP; by Accelerate, or by torch alone.

    Every method but `tensor` is collective: all processes call it in the same order.
    """

    def __init__(self, backend: str, unused_parameters: bool) -> None:
        self.rank, self.world = resolve_rank()
        self.unused_parameters = unused_parameters
        if self.world > 1:
            self._check_environment()
        cuda = torch.cuda.is_available()
        self.accelerator = None
        if backend != "torch":
            self.accelerator = _accelerator(cuda, unused_parameters, backend == "accelerate")
        if self.accelerator is not None:
            found = self.accelerator.process_index, self.accelerator.num_processes
            if found != (self.rank, self.world):
                raise UnusableError(
                    f"Accelerate sees process {found[0]} of {found[1]}, the launcher started "
                    f"{self.rank} of {self.world}: use torchrun, or --backend torch"
                )
            self.device = self.accelerator.device
            return
        self.device = torch.device("cpu")
        if cuda:
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(self.device)
        if self.world > 1:
            dist.init_process_group("nccl" if cuda else "gloo")

    def _check_environment(self) -> None:
        """What torch's env:// needs, from whichever launcher this is."""
        os.environ.setdefault("RANK", str(self.rank))
        os.environ.setdefault("WORLD_SIZE", str(self.world))
        os.environ.setdefault("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0"))
        lacking = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if lacking:
            raise UnusableError(
                f"{self.world} processes, but {' and '.join(lacking)} not set: start it with "
                "torchrun, accelerate launch, or sbatch benchmarks/slurm/train_streaming.sh"
            )

    def prepare(self, model: nn.Module, optimizer: Any) -> tuple[nn.Module, Any]:
        """The model whose gradients are means over all processes."""
        if self.accelerator is not None:
            return self.accelerator.prepare(model, optimizer)
        if self.world == 1:
            return model, optimizer
        ids = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(
            model, device_ids=ids, find_unused_parameters=self.unused_parameters
        ), optimizer

    def backward(self, loss: torch.Tensor) -> None:
        if self.accelerator is not None:
            self.accelerator.backward(loss)
        else:
            loss.backward()

    def clip(self, model: nn.Module, norm: float) -> None:
        if self.accelerator is not None:
            self.accelerator.clip_grad_norm_(model.parameters(), norm)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), norm)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """(world, n) of every process's (n,), by rank, on the CPU."""
        if self.world == 1:
            return values[None]
        mine = values.to(self.device)
        parts = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(parts, mine)
        return torch.stack(parts).cpu()

    def gather_objects(self, value: Any) -> list[Any]:
        """Every process's value, by rank."""
        if self.world == 1:
            return [value]
        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value)
        return out

    def first(self, value: Any) -> Any:
        """The value of process 0."""
        return self.gather_objects(value)[0]

    def end(self) -> None:
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def _accelerator(cuda: bool, unused_parameters: bool, required: bool) -> Any:
    try:
        from accelerate import Accelerator
        from accelerate.utils import DistributedDataParallelKwargs
    except ImportError as error:
        if required:
            raise UnusableError(f"{error}\n  Run: pip install accelerate") from None
        return None
    # cpu=True: without it and without a GPU, Accelerate takes each process for the only one.
    ddp = DistributedDataParallelKwargs(find_unused_parameters=unused_parameters)
    return Accelerator(cpu=not cuda, kwargs_handlers=[ddp])


# -- checkpoints: complete under their name, or not there --


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(path: Path, write: Any) -> None:
    """`write(file)` under a temporary name; the name once the bytes are on the disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def checkpoints(output: Path) -> list[Path]:
    """Complete ones, oldest first."""
    return sorted((output / "checkpoints").glob("step_*.pt"))


def random_state() -> dict[str, Any]:
    state = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


# -- the log: one line per step, cut back to the checkpoint at a resume --


class Log:
    """OUTPUT_DIR/log.jsonl of process 0; nothing on the others."""

    def __init__(self, path: Path, rank: int, start: int) -> None:
        self.file = None
        if rank != 0:
            return
        lines = []
        if path.exists():
            lines = path.read_text().splitlines(keepends=True)
        kept = [line for line in lines if step_of(line) <= start]
        write_whole(path, lambda file: file.write("".join(kept).encode()))
        self.file = open(path, "a", buffering=1)  # noqa: SIM115

    def line(self, values: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.write(json.dumps(values) + "\n")

    def sync(self) -> None:
        """Before a checkpoint that counts on these lines."""
        if self.file is not None:
            os.fsync(self.file.fileno())

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def step_of(line: str) -> float:
    """The step of a line of the log; of a torn one, infinite."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
