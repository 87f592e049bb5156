"""The extension and the kernel on a machine with a GPU, where reelpool need not be installed."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BROUGHT, FFMPEG = ROOT / "build/gpu-python", ROOT / "build/gpu-ffmpeg"
sys.path[:0] = [str(ROOT / "csrc" / "cuda"), str(ROOT / "python")]


def load() -> Any:
    """The extension, from wherever it is; ImportError says what is wrong with the last one."""
    package = importlib.import_module("reelpool")
    try:
        return importlib.import_module("reelpool._core")
    except ImportError:
        for library in FFMPEG.glob("lib/libdav1d.so.*"):  # found by its name from now on
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
        if str(BROUGHT / "reelpool") not in package.__path__:
            package.__path__.append(str(BROUGHT / "reelpool"))
        importlib.invalidate_caches()
        return importlib.import_module("reelpool._core")


def build() -> str | None:
    """Build it into BROUGHT; what went wrong, or None."""
    env = {**os.environ, "REELPOOL_CUDA": "0", "PATH": f"{FFMPEG / 'bin'}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(BROUGHT)],
        cwd=ROOT, capture_output=True, text=True, env=env,
    )  # fmt: skip
    said = done.stderr.strip().splitlines() or ["no word"]
    return None if done.returncode == 0 else said[0]


def kernel(folder: Path) -> bytes | None:
    """The kernel for an extension that was built without it; None: there is no nvcc."""
    compile_kernel = importlib.import_module("compile_kernel")
    if compile_kernel.find_nvcc() is None:
        return None
    compile_kernel.compile_kernel(folder)
    numbers = (folder / "cuda" / "convert_kernel.inc").read_text().split(",")
    return bytes(int(number) for number in numbers if number.strip())
