"""What needs a GPU, or NVIDIA's compiler: `make test-gpu`. The extension is not used.

FFmpeg is for NVDEC's check alone, which brings its own (`make gpu-kit`).

On a machine without a GPU these skip and say so; REELPOOL_REQUIRE=gpu makes that a failure.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "csrc" / "cuda"))

import compile_kernel  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(name="nvcc", scope="module")
def nvcc_fixture() -> str:
    found = compile_kernel.find_nvcc()
    if found is None:
        pytest.skip("no gpu compiler: nvcc is not found (NVCC, CUDA_HOME, PATH)")
    return found


def test_the_kernel_compiles_without_a_warning(nvcc, tmp_path):
    what = compile_kernel.compile_kernel(tmp_path, werror=True)
    assert "sm_80 sm_90" in what and "compute_75" in what
    assert (tmp_path / "cuda" / "convert_kernel.inc").stat().st_size > 10_000


def test_the_declared_calls_are_those_of_cuda_h(nvcc, tmp_path):
    probe = tmp_path / "probe.cu"
    probe.write_text("#include <cuda.h>\n")
    done = subprocess.run([nvcc, "-M", probe], capture_output=True, text=True)
    headers = re.findall(r"\S+/cuda\.h\b", done.stdout)
    if not headers:
        pytest.skip(f"no gpu header: {nvcc} finds no cuda.h")
    done = subprocess.run(
        ["g++", "-std=c++17", "-D_GNU_SOURCE", "-Wall", "-Werror", "-fsyntax-only", "-Icsrc",
         "-isystem", Path(headers[0]).parent, "tests/gpu/driver_api.cpp"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_gpu(nvcc):
    """tests/c/check_gpu.c: values, memory, refusals, fork, a thousand times open and close."""
    done = subprocess.run(
        [sys.executable, "tests/build_c.py", "-v", "gpu"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    said = done.stdout + done.stderr
    print(said)
    assert done.returncode == 0
    skipped = re.search(r"skipped: (no gpu.*)", said)
    if skipped:
        pytest.skip(skipped.group(1))
    assert re.search(r"[1-9]\d* passed, 0 failed, 0 skipped", said)


def test_nvdec():
    """tests/c/check_nvdec.c: planes against the CPU's, sessions, damage, fork."""
    program = ROOT / "build" / "c-gpu" / "check_nvdec"
    if not program.exists():
        pytest.skip("no gpu kit: make gpu-kit, on a machine with a network")
    env = {**os.environ, "REELPOOL_TEST_CLIPS": "build/gpu-clips"}

    def check(*names: str) -> str:
        done = subprocess.run([program, *names], cwd=ROOT, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    skipped = re.search(r"skipped: (no gpu.*)", check("there_is_a_gpu"))
    if skipped:
        pytest.skip(skipped.group(1))
    said = check()
    print(said)
    assert re.search(r"[1-9]\d* passed, 0 failed, 0 skipped", said)
