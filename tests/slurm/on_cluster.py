"""What the tests on a SLURM share; importing it makes the modules of tests/py importable."""

import contextlib
import socket
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
WAIT_S = 120
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")
for folder in ("py", "net"):
    sys.path.append(str(REPO / "tests" / folder))


def free_ports(count=3):
    """The first of so many neighbouring free ports."""
    for first in range(17100, 32000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


def wait_until(done, what=None, seconds=WAIT_S, every=0.02):
    """What `done` gives once it is true; after so long False, or, with `what`, a failure."""
    deadline = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > deadline:
            assert what is None, f"waited too long until {what}"
            return False
        time.sleep(every)
    return found


def job_facts(slurm, number):
    """What scontrol says of a job."""
    words = slurm("scontrol", "show", "job", number).split()
    return dict(word.split("=", 1) for word in words if "=" in word)
