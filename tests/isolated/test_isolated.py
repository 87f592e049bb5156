"""Each script of this folder in its own process group, with a watchdog; no orphan may be left.

A script that does not use torch itself runs without it; with it under the mark `soak`. Scripts
named *_soak.py are run by hand.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FILES = sorted(
    path
    for path in HERE.glob("*.py")
    if not path.name.startswith(("_", "test_", "conftest")) and not path.stem.endswith("_soak")
)


def cases():
    """(script, its last argument) for each way to run each script."""
    for path in FILES:
        if path.stem == "worker_exception":
            yield pytest.param(path.name, "fork", id="worker_exception-fork")
            yield pytest.param(
                path.name, "spawn", id="worker_exception-spawn", marks=pytest.mark.soak
            )
        elif re.search("^ *(from|import) torch", path.read_text(), re.MULTILINE):
            yield pytest.param(path.name, "", id=path.stem)
        else:
            yield pytest.param(path.name, "without_torch", id=f"{path.stem}-without_torch")
            yield pytest.param(path.name, "", id=f"{path.stem}-torch", marks=pytest.mark.soak)


WATCHDOG_S = 60


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


@pytest.mark.parametrize(("script", "argument"), list(cases()))
def test_script(script, argument, data_root):
    if not (data_root / "cam3").is_dir():
        pytest.skip("no test data: cam3")
    if argument != "without_torch":
        pytest.importorskip("torch", reason="needs the extra `torch`")
    before = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", HERE / script, data_root / "cam3", argument],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=WATCHDOG_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # faulthandler prints every thread's stack
        out, err = process.communicate()
        pytest.fail(f"{script} hung\n{err[-4000:]}")
    assert process.returncode == 0, err[-4000:]
    assert out.splitlines()[-1:] == ["ok"], (out, err[-4000:])

    # Workers may need a moment to see that their parent is gone.
    deadline = time.monotonic() + 10
    while (orphans := group_members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if orphans:
        os.killpg(process.pid, signal.SIGKILL)
    assert not orphans
    left = {name for name in set(os.listdir("/dev/shm")) - before if f"_{process.pid}_" in name}
    assert not left
