"""Every number of ranks and DataLoader workers gives each frame once, in one order.

exactly_once.py: worlds of 1, 2, 3, 4, 6 and 8 ranks, each rank with 0, 1, 2, 4 and 8 workers that
are processes, with and without `drop_last`, two epochs; workers 0 also by `reelpool.Loader`. Joined
rank by rank and step by step, what they deliver is the order that one rank reads alone.
"""

import itertools
import sys
import warnings
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))

import reelpool
from demo_sets import FRAMES, ROOT
from torch.utils.data import DataLoader

SIZE = 24  # samples of a global batch: divided by every world
WORLDS = (1, 2, 3, 4, 6, 8)
WORKERS = (-1, 0, 1, 2, 4, 8)  # -1: reelpool.Loader
EPOCHS = 2


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def passes(rank, world, workers, drop_last):
    """The indices of each batch of one rank, epoch by epoch."""
    batch = SIZE // world
    dataset = reelpool.StreamingLeRobotDataset(
        "reelpool/demo", root=ROOT, cameras=[], return_uint8=True, seed=3, batch_size=batch,
        rank=rank, world_size=world, num_threads=1,
    )  # fmt: skip
    if workers < 0:
        loader = reelpool.Loader(dataset, batch, num_threads=1, drop_last=drop_last)
    else:
        loader = DataLoader(
            dataset, batch_size=batch, num_workers=workers, drop_last=drop_last,
            multiprocessing_context="fork" if workers else None,
            persistent_workers=workers in (2, 8),
        )  # fmt: skip
    return [[one["index"].tolist() for one in loader] for _ in range(EPOCHS)]


def main():
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than CPUs
    frames, tail = list(range(FRAMES)), FRAMES % SIZE
    cells = missing = repeated = 0
    want = passes(0, 1, -1, False)
    assert [sorted(flat(epoch)) for epoch in want] == [frames] * EPOCHS
    assert want[0] != want[1]
    for world in WORLDS:
        for workers in WORKERS:
            for drop_last in (False, True):
                ranks = [passes(rank, world, workers, drop_last) for rank in range(world)]
                for epoch in range(EPOCHS):
                    steps = [rank[epoch] for rank in ranks]
                    assert len({len(one) for one in steps}) == 1, "ranks differ in their steps"
                    joined = [flat(step) for step in zip(*steps)]
                    assert joined == want[epoch][: len(joined)], (world, workers, drop_last)
                    found = flat(joined)
                    cells += 1
                    missing += FRAMES - (tail if drop_last else 0) - len(set(found))
                    repeated += len(found) - len(set(found))
        print(f"world {world}: {cells} cells, missing {missing}, repeated {repeated}")
        sys.stdout.flush()
    assert missing == repeated == 0
    print("ok")


if __name__ == "__main__":
    main()
