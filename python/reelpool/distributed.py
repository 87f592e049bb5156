"""Which rank of how many this process is: resolved at first iteration, logged with its source."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from . import env

logger = logging.getLogger("reelpool")

_PAIRS = (
    ("RANK", "WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
)


def _checked(rank: int, world: int, source: str) -> tuple[int, int]:
    if not (world >= 1 and 0 <= rank < world):
        raise ValueError(f"rank {rank} of world size {world} (from {source}) is not possible")
    if world > 1:
        logger.info("rank %d of %d (from %s)", rank, world, source)
    return rank, world


def resolve_rank(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """(rank, world size): the arguments; torch.distributed if initialised; the launcher's variables
    (RANK and WORLD_SIZE, PMI_, OMPI_COMM_WORLD_, MV2_COMM_WORLD_); SLURM's inside a step; else
    (0, 1). Raises ValueError for one argument without the other, or an impossible pair.
    """
    if (rank is None) != (world_size is None):
        raise ValueError("rank= and world_size= go together")
    if rank is not None and world_size is not None:
        return _checked(rank, world_size, "the arguments")
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is not None and dist.is_available() and dist.is_initialized():
        return _checked(dist.get_rank(), dist.get_world_size(), "torch.distributed")
    pairs = list(_PAIRS)
    if os.environ.get("SLURM_STEP_ID"):
        pairs.append(("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))
    for rank_name, world_name in pairs:
        found = os.environ.get(rank_name), os.environ.get(world_name)
        if found[0] is not None and found[1] is not None:
            source = f"{rank_name}, {world_name}"
            try:
                numbers = int(found[0]), int(found[1])
            except ValueError:
                raise ValueError(f"{source}: {found[0]!r}, {found[1]!r} are no integers") from None
            return _checked(*numbers, source)
    return 0, 1


def job_store() -> Any:
    """The key-value store of torch.distributed, which all ranks see; None before it is initialised,
    or where there is none (MPI).
    """
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None)
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return None
    find = getattr(dist.distributed_c10d, "_get_default_store", None)
    store = None if find is None else find()
    return store if hasattr(store, "compare_set") else None


def job_name() -> str | None:
    """A name that the ranks of a job have in common and other jobs do not: SLURM's step, the
    launcher's run, else the process that started them; None where they have no launcher.
    """
    step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    if all(step):
        return "slurm {} {}".format(*step)
    run = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    if run != "none":
        return f"run {run} {place}"
    try:
        with open(f"/proc/{os.getppid()}/stat", encoding="utf-8", errors="replace") as stream:
            began = stream.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None  # no /proc
    return f"child {os.uname().nodename} {os.getppid()} {began} {place}"


def scheduler_defaults() -> dict[str, str | None]:
    """ACCOUNT, PARTITION and QOS of the environment, for jobs that are submitted from here."""
    return {name.lower(): os.environ.get(name) or None for name in ("ACCOUNT", "PARTITION", "QOS")}


def local_world_size() -> int:
    """Ranks on this node (LOCAL_WORLD_SIZE), at least 1."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "").strip()
    return max(1, int(text)) if text.isdigit() else 1


def default_memory_budget() -> int:
    """Bytes that a rank's reading may take unless told: 4 GiB or a quarter of the granted memory,
    whichever is less, divided by the ranks of this node."""
    return min(4 << 30, env.granted_memory() // 4) // local_world_size()


def sharded_by_accelerate(dataset: Any) -> str | None:
    """What of Accelerate shares this dataset's samples out to several processes right now: the name
    of its class; None if nothing does.

    A prepared DataLoader over an IterableDataset reads it on rank 0 for all, or has each rank read
    all of it and keep 1/W: either way the dataset must act as the only rank. With one process
    Accelerate passes everything through.
    """
    module = sys.modules.get("accelerate.state")
    if module is None:
        return None
    active = module.GradientState().active_dataloader
    inner = getattr(active, "base_dataloader", None)
    if inner is None:
        return None
    name = type(active).__name__  # its __class__ says DataLoader
    splits = False
    if name == "DataLoaderDispatcher":
        splits = active.state.num_processes > 1
    at = getattr(inner, "dataset", None)
    for _ in range(16):  # wrappers around wrappers
        if at is None or at is dataset:
            break
        if type(at).__name__ == "IterableDatasetShard" and at.num_processes > 1:
            name, splits = "IterableDatasetShard", True
        at = getattr(at, "dataset", None)
    return name if splits and at is dataset else None
