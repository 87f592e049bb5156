"""A fork while Loader's threads are decoding: the child reads afresh, the parent loses nothing."""

import os
import sys

import reelpool
from _common import indices, open_dataset, pixels

dataset = open_dataset()
order = indices(dataset, 6)
want = [pixels(dataset[i]) for i in order]
with reelpool.Loader(dataset, 8, shuffle=True, seed=1, num_threads=2) as loader:
    expected = [batch["index"].tolist() for _, batch in zip(range(6), loader)]
    iterator = iter(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    got = [next(iterator)["index"].tolist()]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if [pixels(i) for i in dataset.__getitems__(order)] == want else 2
        finally:
            sys.stderr.flush()
            os._exit(status)
    got += [next(iterator)["index"].tolist() for _ in range(5)]
    assert got == expected, (got, expected)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print("ok")
