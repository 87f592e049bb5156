"""kill -9 of a DataLoader worker: worker_killed.py METHOD.

The parent gets an error instead of waiting; batches that it holds stay what they were though their
memory was the worker's; nothing is left in /dev/shm; a new pass reads on.
"""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))

import reelpool
from demo_sets import ROOT
from samples import check, samples
from torch.utils.data import DataLoader


def open_loader(method, workers=2):
    dataset = reelpool.StreamingLeRobotDataset(
        "reelpool/demo", root=ROOT, return_uint8=True, batch_size=6, seed=3
    )
    return DataLoader(
        dataset,
        batch_size=6,
        num_workers=workers,
        multiprocessing_context=method if workers else None,
    )


def main(method):
    before = set(os.listdir("/dev/shm"))
    want = [samples(batch) for batch in open_loader(method, 0)]
    loader = open_loader(method)
    for victim in (0, 1):
        loader.dataset.set_epoch(0)
        iterator = iter(loader)
        kept = [next(iterator), next(iterator)]
        worker = iterator._workers[victim]
        os.kill(worker.pid, signal.SIGKILL)
        try:
            kept.extend(iterator)
        except RuntimeError as error:
            assert "worker" in str(error), error
        else:
            raise AssertionError("the pass ended as if nothing had happened")
        with contextlib.suppress(RuntimeError):  # torch's handler of SIGCHLD raises where we are
            worker.join()
            time.sleep(0.1)
        found = [samples(batch) for batch in kept]
        assert found == want[: len(found)]
        check([sample for batch in found for sample in batch])
        del iterator
    loader.dataset.set_epoch(0)
    assert [samples(batch) for batch in loader] == want
    new = {name for name in set(os.listdir("/dev/shm")) - before if f"_{os.getpid()}_" in name}
    assert not new, new
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
