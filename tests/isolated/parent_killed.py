"""kill -9 of the process that reads from DataLoader workers: they end, leaving nothing behind.

parent_killed.py METHOD. The parent is a forked child of this script, which adopts its orphans.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))

from samples import samples
from worker_killed import open_loader

PR_SET_CHILD_SUBREAPER = 36
GONE_S = 30  # torch's workers look for their parent every 5 seconds


def read(method, pipe):
    """Read, tell the workers' pids, read on until killed."""
    loader = open_loader(method)
    while True:
        iterator = iter(loader)
        for number, batch in enumerate(iterator):
            samples(batch)
            if number == 3:
                pids = " ".join(str(worker.pid) for worker in iterator._workers)
                os.write(pipe, pids.encode())
                time.sleep(1000)


def main(method):
    before = set(os.listdir("/dev/shm"))
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(reading)
        try:
            read(method, writing)
        finally:
            os._exit(1)
    os.close(writing)
    workers = [int(pid) for pid in os.read(reading, 100).split()]
    assert len(workers) == 2
    os.kill(parent, signal.SIGKILL)
    assert os.waitpid(parent, 0)[1] == signal.SIGKILL
    deadline = time.monotonic() + GONE_S
    left = set(workers)
    while left:
        assert time.monotonic() < deadline, f"workers {left} go on without their parent"
        for pid in list(left):
            with contextlib.suppress(ChildProcessError):  # a forkserver has reaped it
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    continue
            left.discard(pid)
        time.sleep(0.02)
    tags = [f"_{pid}_" for pid in (parent, *workers)]
    new = [n for n in set(os.listdir("/dev/shm")) - before if any(tag in n for tag in tags)]
    assert not new, new
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
