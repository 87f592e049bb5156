"""Each script of this folder in its own process group, with a watchdog; no orphan may be left.

A script that does not use torch itself runs without it; with it under the mark `soak`.
"""

import re
from pathlib import Path

import pytest
from _watchdog import finish, start

HERE = Path(__file__).resolve().parent
WATCHDOG_S = 60
START_METHODS = {  # those of a push; the rest of the matrix is `soak`
    "fork decoded yes", "fork streamed no", "spawn streamed yes",
    "forkserver streamed no",
}  # fmt: skip
MATRIX = [
    f"{method} {parent} {persistent}"
    for method in ("fork", "spawn", "forkserver")
    for parent in ("unused", "decoded", "streamed")
    for persistent in ("no", "yes")
]
ON_DEMO = {  # scripts that read the embedded set: arguments -> (seconds, whether it is a soak)
    "start_method.py": {cell: (90, cell not in START_METHODS) for cell in MATRIX},
    "worker_killed.py": {"fork": (60, False), "spawn": (120, True), "forkserver": (120, True)},
    "parent_killed.py": {"forkserver": (60, False), "fork": (120, True), "spawn": (120, True)},
    "remote_disk_full.py": {"": (60, False)},
    "remote_ends.py": {"": (60, False)},
    "remote_fork_rounds.py": {"3": (60, False), "100": (300, True)},
    "convert_kill_soak.py": {"1 5": (120, False), "2 100": (600, True)},
    "long_run.py": {f"{way} 10000": (600, True) for way in ("loader", "persistent", "workers")},
    "exactly_once.py": {"": (600, True)},
    "kill_soak.py": {"1 5": (120, False), "1 every": (120, True), "3 50": (600, True)},
}
FILES = sorted(
    path
    for path in HERE.glob("*.py")
    if not path.name.startswith(("_", "test_", "conftest")) and path.name not in ON_DEMO
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


@pytest.mark.parametrize(("script", "argument"), list(cases()))
def test_script(script, argument, data_root):
    if not (data_root / "cam3").is_dir():
        pytest.skip("no test data: cam3")
    if argument != "without_torch":
        pytest.importorskip("torch", reason="needs the extra `torch`")
    out, err = finish(start(HERE / script, data_root / "cam3", argument), WATCHDOG_S)
    assert out.splitlines()[-1:] == ["ok"], (out, err[-4000:])


def cases_on_demo():
    """(script, arguments, seconds)"""
    for script, cells in ON_DEMO.items():
        for arguments, (seconds, soak) in cells.items():
            yield pytest.param(
                script,
                arguments.split(),
                seconds,
                id=f"{Path(script).stem}-{arguments.replace(' ', '-')}",
                marks=[pytest.mark.soak] if soak else [],
            )


@pytest.mark.parametrize(("script", "arguments", "seconds"), list(cases_on_demo()))
@pytest.mark.timeout(700)
def test_script_on_the_embedded_set(script, arguments, seconds):
    pytest.importorskip("torch", reason="needs the extra `torch`")
    out, err = finish(start(HERE / script, *arguments), seconds)
    assert out.splitlines()[-1:] == ["ok"], (out[-4000:], err[-4000:])
