"""kill -9 of the process that reads from DataLoader workers: they end, leaving nothing behind.

parent_killed.py METHOD. The parent is a forked child of this script.
"""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))

from samples import samples
from worker_killed import open_loader

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


def runs(pid):
    """Whether a process, ours or a forkserver's, is still there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def main(method):
    before = set(os.listdir("/dev/shm"))
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
    while left := [pid for pid in workers if runs(pid)]:
        assert time.monotonic() < deadline, f"workers {left} go on without their parent"
        time.sleep(0.02)
    tags = [f"_{pid}_" for pid in (parent, *workers)]
    new = [n for n in set(os.listdir("/dev/shm")) - before if any(tag in n for tag in tags)]
    assert not new, new
    print("ok")


if __name__ == "__main__":
    main(*sys.argv[1:])
