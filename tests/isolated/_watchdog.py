"""How tests run a script: a process group of its own, a watchdog, nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

GONE_S = 20


def group_members(group):
    """Pids of the processes that still run in a process group; zombies do not count."""
    members = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            state, _parent, process_group = (
                (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            )
        except OSError:
            continue
        if int(process_group) == group and state != "Z":
            members.append(int(entry.name))
    return members


def start(*command, **environment):
    """A Python process at the head of its own group. None in `environment` removes a variable."""
    env = {**os.environ, **environment}
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={name: str(value) for name, value in env.items() if value is not None},
    )


def finish(process, seconds):
    """(stdout, stderr) of a process that must end by itself with status 0, leaving no other."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # faulthandler prints every thread's stack
        out, err = process.communicate()
        pytest.fail(f"{process.args} hung\n{err[-8000:]}")
    assert process.returncode == 0, err[-4000:]

    # Workers may need a moment to see that their parent is gone.
    deadline = time.monotonic() + GONE_S
    while (orphans := group_members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if orphans:
        os.killpg(process.pid, signal.SIGKILL)
    assert not orphans
    left = {name for name in os.listdir("/dev/shm") if f"_{process.pid}_" in name}
    assert not left
    return out, err
