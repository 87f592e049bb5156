"""DataLoader workers over the streaming class: start_method.py METHOD PARENT PERSISTENT.

METHOD fork, spawn or forkserver; PARENT unused, decoded (a map-style dataset and a single item) or
streamed (a Loader and the dataset itself, both left in the middle); PERSISTENT yes or no. Three
passes, the last one left in the middle, twice over: the order and the pixels are right, the workers
end, and the second time leaves no descriptor and no thread more than the first.
"""

import gc
import multiprocessing
import os
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))

import reelpool
from demo_sets import ROOT, ids
from samples import check, samples
from torch.utils.data import DataLoader

BATCH = 6
EPISODES = [1, 3]


def open_stream():
    return reelpool.StreamingLeRobotDataset(
        "reelpool/demo", root=ROOT, episodes=EPISODES, return_uint8=True, batch_size=BATCH, seed=3
    )


def use(parent, dataset):
    """Have this process do what it may have done before; what to keep alive."""
    if parent == "decoded":
        other = reelpool.LeRobotDataset("reelpool/demo", root=ROOT)
        return other, other[100]
    if parent == "streamed":
        loader = iter(reelpool.Loader(open_stream(), BATCH, num_threads=2))
        own = iter(dataset)
        kept = next(loader), [next(own) for _ in range(BATCH + 2)]
        dataset.set_epoch(0)
        return loader, own, kept
    return None


def passes(dataset, method, persistent):
    """The samples of two epochs and a bit, read by two workers of that kind."""
    loader = DataLoader(
        dataset, batch_size=BATCH, num_workers=2, multiprocessing_context=method,
        persistent_workers=persistent,
    )  # fmt: skip
    found = [[samples(batch) for batch in loader] for _ in range(2)]
    dataset.set_epoch(2)
    for batch in loader:
        found.append([samples(batch)])
        break
    return found


def in_use():
    """Threads and descriptors, once the workers are gone."""
    gc.collect()
    deadline = time.monotonic() + 20
    while multiprocessing.active_children():
        assert time.monotonic() < deadline, "workers go on"
        time.sleep(0.01)
    least = sys.maxsize
    for _ in range(10):  # a thread of the last pass may be about to end
        least = min(least, sum(len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")))
        time.sleep(0.05)
    return least


def expected():
    """The indices that two epochs and a bit have."""
    with reelpool.Loader(open_stream(), BATCH, num_threads=1) as loader:
        want = [[batch["index"].tolist() for batch in loader] for _ in range(2)]
        return [*want, [next(iter(loader))["index"].tolist()]]


def main(method, parent, persistent):
    dataset = open_stream()
    kept = use(parent, dataset)
    if method == "forkserver":
        multiprocessing.set_forkserver_preload(["torch", "reelpool.streaming"])
    seen = []
    for _ in range(3 if method == "fork" else 1):
        found = passes(dataset, method, persistent == "yes")
        seen.append(in_use())
        want = expected()
        assert [[[i for i, _ in batch] for batch in one] for one in found] == want
        check([sample for one in found for batch in one for sample in batch])
        dataset.set_epoch(0)
    # What is made once may be made late; a leak grows with each pass.
    assert len(seen) < 3 or not seen[0] < seen[1] < seen[2], seen
    del kept
    assert len(ids(reelpool.Loader(open_stream(), BATCH))) == dataset.num_frames
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
