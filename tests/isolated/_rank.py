"""One rank of a job: _rank.py OUT WAY... reads an epoch in each way and writes OUT/WAY-RANK.json.

What it is told of rank and world is what its launcher says. Ways: `map` (Loader over a map-style
dataset), `stream` (Loader over the streaming class), `workersN` (DataLoader with N workers).
First may stand `gloo`: the ranks form a torch.distributed group and forget the variables.
"""

import json
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))

if all(way in ("map", "stream") for way in sys.argv[2:]):
    sys.modules["torch"] = None  # not needed: no seconds of import

import reelpool
from demo_sets import ROOT
from reelpool.distributed import resolve_rank
from samples import samples

GLOBAL_BATCH = 12


def batches(way, size):
    """The batches of one epoch."""
    options = {"root": ROOT, "return_uint8": True}
    if way == "map":
        dataset = reelpool.LeRobotDataset("reelpool/demo", **options)
        return reelpool.Loader(dataset, size, shuffle=True, seed=9, num_threads=1)
    dataset = reelpool.StreamingLeRobotDataset(
        "reelpool/demo", **options, seed=9, batch_size=size, num_threads=1
    )
    if way == "stream":
        return reelpool.Loader(dataset, size)
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=size, num_workers=int(way.removeprefix("workers")))


def main(out, ways):
    if ways[0] == "gloo":
        import torch

        torch.distributed.init_process_group("gloo")
        del ways[0], os.environ["RANK"], os.environ["WORLD_SIZE"]
    rank, world = resolve_rank()
    for way in ways:
        steps = [samples(batch) for batch in batches(way, GLOBAL_BATCH // world)]
        found = {"rank": rank, "world": world, "steps": steps}
        (out / f"{way}-{rank}.json").write_text(json.dumps(found))
    if "torch.distributed" in sys.modules and sys.modules["torch"].distributed.is_initialized():
        sys.modules["torch"].distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
