"""A libcuda.so.1 without a GPU (tests/c/fake_cuda.c) for tests in this process, and its controls.

Its device memory is the process's own, so what lies "on the GPU" can be read and compared.
"""

import ctypes
import functools
import gc
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from reelpool import _core, device

ROOT = Path(__file__).resolve().parents[2]
THINGS = ("context", "memory", "host", "stream", "event", "module")
KERNEL = b"an image"  # the fake takes any


class Controls(ctypes.Structure):
    """struct fake_cuda of tests/c/fake_cuda.h."""

    _fields_ = [
        ("version", ctypes.c_int), ("devices", ctypes.c_int), ("limit", ctypes.c_size_t),
        ("lazy", ctypes.c_bool), ("fail_nth", ctypes.c_long), ("fail_code", ctypes.c_int),
        ("fail_name", ctypes.c_char_p), ("lost", ctypes.c_int), ("calls", ctypes.c_long),
        ("live", ctypes.c_long * len(THINGS)), ("launches", ctypes.c_long),
        ("copies", ctypes.c_long), ("bytes", ctypes.c_size_t), ("depth", ctypes.c_int),
        ("misuse", ctypes.c_long), ("run", ctypes.CFUNCTYPE(None)),
        ("run_but", ctypes.CFUNCTYPE(None, ctypes.c_void_p)), ("reset", ctypes.CFUNCTYPE(None)),
    ]  # fmt: skip

    def leftovers(self):
        """What was not given back, and what was done wrongly."""
        found = {name: count for name, count in zip(THINGS, self.live) if count}
        for name in ("misuse", "depth", "bytes"):
            if getattr(self, name):
                found[name] = getattr(self, name)
        return found


@functools.cache
def build():
    """Path of the library; skips where there is no C compiler."""
    cc = shutil.which(os.environ.get("CC", "cc"))
    if cc is None:
        pytest.skip("no C compiler for the fake driver")
    path = Path(tempfile.mkdtemp(prefix="reelpool-driver-")) / "libcuda.so.1"
    subprocess.run(
        [cc, "-std=c11", "-D_GNU_SOURCE", "-O1", "-fPIC", "-shared", "-pthread", "-Icsrc",
         "-Itests/c", "tests/c/fake_cuda.c", "-o", path], cwd=ROOT, check=True,
    )  # fmt: skip
    return path


def controls():
    """The library's state in this process, as at the start."""
    library = ctypes.CDLL(str(build()))
    library.fake_cuda.restype = ctypes.POINTER(Controls)
    state = library.fake_cuda().contents
    state.reset()
    return state


@pytest.fixture(name="fake", autouse=True)
def fake_fixture(monkeypatch):
    """The fake driver in the place of libcuda.so.1; afterwards nothing of it is left in use."""
    state = controls()
    monkeypatch.setattr(device, "DRIVER", str(build()))
    monkeypatch.setattr(device, "KERNEL", KERNEL)
    gc.collect()
    alive = _core.live_objects()
    yield state
    gc.collect()
    assert state.leftovers() == {}
    assert _core.live_objects() <= alive
