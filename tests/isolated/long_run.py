"""Ten thousand batches take no more memory, descriptors and threads than the first thousand.

long_run.py WAY BATCHES; WAY: loader (reelpool.Loader, two threads), persistent or workers (a
DataLoader with two workers, kept or forked anew each epoch), over the streaming class, epoch after
epoch. Every few epochs, at the same place in the epoch: the memory of all processes together (PSS:
what is shared counts once), their descriptors and threads. Prints the curve.
"""

import gc
import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))

import reelpool
from demo_sets import FRAMES, ROOT
from torch.utils.data import DataLoader

BATCH = 4
EPOCH = FRAMES // BATCH
EVERY = 5 * EPOCH  # batches between two looks
SETTLED = 10  # of the batches, 1/10 is the time in which allocators fill their pools
GROWTH = 2 << 20  # bytes per process, between medians of many looks: 300 bytes per batch


class Look(NamedTuple):
    """What all processes use at one moment."""

    batch: int
    processes: int
    pss: int  # bytes
    descriptors: int
    threads: int


def tree():
    """Pids of this process and of what it started, living ones."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                parents[int(entry.name)] = int(parent)
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def pss(pid):
    """Bytes that a process uses, its share of what is shared. Not files: who else on the machine
    has mapped a library decides about those.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kinds = [line.split()[1] for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
    assert len(kinds) == 2, lines
    return sum(map(int, kinds)) << 10


def look(batch):
    gc.collect()
    pids = tree()
    count = {kind: sum(len(os.listdir(f"/proc/{pid}/{kind}")) for pid in pids)
             for kind in ("fd", "task")}  # fmt: skip
    return Look(batch, len(pids), sum(map(pss, pids)), count["fd"], count["task"])


def source(way):
    dataset = reelpool.StreamingLeRobotDataset(
        "reelpool/demo", root=ROOT, return_uint8=True, batch_size=BATCH, seed=5,
        num_threads=2 if way == "loader" else 1,
    )  # fmt: skip
    if way == "loader":
        return reelpool.Loader(dataset, BATCH, num_threads=2)
    return DataLoader(
        dataset, batch_size=BATCH, num_workers=2, multiprocessing_context="fork",
        persistent_workers=way == "persistent",
    )  # fmt: skip


def main(way, count):
    batches, looks, taken = source(way), [], 0
    while taken < count:
        seen = set()
        for batch in batches:
            taken += 1
            seen.update(batch["index"].tolist())
            if taken % EVERY == EPOCH // 2:
                looks.append(look(taken))
                print(*looks[-1])
        assert len(seen) == FRAMES
    settled = [one for one in looks if one.batch >= count // SETTLED]
    third = len(settled) // 3
    first, last = settled[:third], settled[-third:]
    assert len({one.processes for one in looks}) == 1, looks
    processes = looks[0].processes
    grown = statistics.median(x.pss for x in last) - statistics.median(x.pss for x in first)
    print(f"grown {grown / 2**20:.2f} MiB, {processes} processes, {taken} batches")
    assert grown < GROWTH * processes, grown
    for field in ("descriptors", "threads"):
        early, late = ([getattr(one, field) for one in part] for part in (first, last))
        # Blocks that a worker has lent come and go; one left behind per epoch would be 100.
        assert statistics.median(late) <= max(early), (field, early, late)
    print("ok")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
