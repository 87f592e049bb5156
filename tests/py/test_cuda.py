"""CUDA without a GPU: what the build, the border to the driver and `doctor` say of it.

The kernel's values and the memory are tested in C (tests/c/test_cuda.c, test_convert_cuda.c), what
needs a GPU in tests/gpu.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fake_driver
import pytest
from reelpool import _core
from reelpool.cli import doctor, gpu
from reelpool.errors import CudaError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "csrc" / "cuda"))

import compile_kernel  # noqa: E402


@pytest.fixture(name="fake", scope="module")
def fake_fixture() -> Path:
    """A libcuda.so.1 that needs no GPU."""
    return fake_driver.build()


def say(fake: Path, program: str, **environment: str) -> str:
    """What a Python prints that finds the fake driver."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(fake.parent), **environment}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, env=env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SECTION = "import json; from reelpool.cli import gpu; print(json.dumps(list(gpu.examine())))"


def test_devices_of_the_driver(fake):
    version, devices = _core.cuda_devices(str(fake))
    assert version == 13000
    assert devices == [
        ("Fake GPU 0", (9, 0), 132, 1 << 33),
        ("Fake GPU 1", (9, 0), 132, 2 << 33),
    ]


def test_no_driver_is_a_cuda_error_with_advice():
    before = _core.live_objects()
    with pytest.raises(CudaError) as caught:
        _core.cuda_devices("/nowhere/libcuda.so.1")
    assert "no NVIDIA driver here: /nowhere/libcuda.so.1" in str(caught.value)
    assert "device='cpu'" in str(caught.value)
    with pytest.raises(CudaError, match="too old"):
        _core.cuda_devices("libm.so.6")
    with pytest.raises(TypeError):
        _core.cuda_devices(3)
    assert _core.live_objects() == before


def test_doctor_names_devices_and_paths(fake):
    program = "from reelpool.__main__ import main; main(['doctor', '--json'])"
    findings = json.loads(say(fake, program))["findings"]
    lines = [line for line in findings if line["section"] == "gpu"]
    assert {line["status"] for line in lines} == {"ok"}
    text = "\n".join(line["text"] for line in lines)
    assert text.startswith("built with")
    assert "speaks CUDA 13.0" in text
    assert "cuda:1 Fake GPU 1, compute capability 9.0, 132 multiprocessors, 16.0 GiB" in text
    assert "Loader(device='cuda') decodes as said above, and converts on the GPU" in text
    assert "cuda:0 decodes no video: no NVDEC here: libnvcuvid.so.1" in text


@pytest.mark.parametrize(
    "environment, text",
    [
        ({"FAKE_CUDA_VERSION": "11040"}, "it speaks CUDA 11.4, 12.0 is the oldest"),
        ({"FAKE_CUDA_DEVICES": "0"}, "see nvidia-smi and CUDA_VISIBLE_DEVICES"),
        ({"FAKE_CUDA_FAIL": "cuInit:999"}, "see dmesg"),
        ({"FAKE_CUDA_FAIL": "cuDeviceGetName:1"}, "asking what cuda:0 is"),
    ],
)
def test_doctor_says_why_no_gpu_is_used(fake, environment, text):
    lines = json.loads(say(fake, SECTION, **environment))
    assert len(lines) == 2
    assert text in lines[1][1]


def test_doctor_warns_of_a_gpu_that_cannot_be_used(monkeypatch):
    def refuse():
        raise CudaError("starting the NVIDIA driver: it fell over\n  Use device='cpu'")

    monkeypatch.setattr(_core, "cuda_devices", refuse)
    monkeypatch.setattr(gpu.os.path, "exists", lambda path: path == "/dev/nvidiactl")
    _, line = gpu.examine()
    assert line[0] == "WARN" and line[1].endswith("it fell over") and "nvidia-smi" in line[2]
    monkeypatch.setattr(_core, "cuda_devices", lambda: (12020, [("Old", (7, 0), 80, 1 << 34)]))
    _, _, line, *_ = gpu.examine()
    assert line[0] == "WARN" and "too old" in line[1]


def test_doctor_has_the_section():
    assert [line.section for line in doctor.examine()].count("gpu") >= 2


def test_the_extension_needs_no_library_of_cuda():
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    said = subprocess.run(
        ["readelf", "-d", _core.__file__], capture_output=True, text=True, check=True
    ).stdout
    needed = re.findall(r"NEEDED.*\[(.*)\]", said)
    assert any("libavcodec" in name for name in needed)
    assert not [name for name in needed if re.search(r"cuda|nv", name)]


# -- the build --


def build(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess:
    """The start of a build: far enough to see whether the kernel is wanted and can be made."""
    ours = {k: v for k, v in os.environ.items() if k not in ("NVCC", "CUDA_HOME", "CUDA_PATH")}
    env = {**ours, "REELPOOL_CUDA": "", **environment}
    program = (
        "import sys; sys.argv = ['setup.py', '--version']; sys.path.insert(0, '.')\n"
        "import pathlib, setup\n"
        f"print(setup.compile_cuda(pathlib.Path({str(tmp_path)!r})))"
    )
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, env=env
    )


def nvcc_that(tmp_path: Path, script: str) -> dict[str, str]:
    path = tmp_path / "nvcc-of-test"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"NVCC": str(path)}


SOUND = """case "$1" in
--version) echo "Cuda compilation tools, release 12.9, V12.9.1" ;;
--list-gpu-code) echo sm_75; echo sm_80; echo sm_90; echo sm_100 ;;
*) while [ "$1" != -o ]; do shift; done; echo kernel >"$2" ;;
esac"""


def test_a_build_with_a_compiler_that_works(tmp_path):
    done = build(tmp_path, **nvcc_that(tmp_path, SOUND))
    assert done.returncode == 0, done.stderr
    what = "nvcc 12.9, sm_80 sm_90 sm_100 compute_75"
    assert f'-DRP_WITH_CUDA="{what}"' in done.stdout
    array = (tmp_path / "cuda" / "convert_kernel.inc").read_text()
    assert bytes(map(int, array.split(","))) == b"kernel\n"


def test_a_build_that_wants_cuda_stops_where_it_cannot_be(tmp_path):
    done = build(tmp_path, REELPOOL_CUDA="1", CUDA_HOME=str(tmp_path))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"REELPOOL_CUDA=1, but CUDA_HOME={tmp_path}: there is no nvcc" in done.stderr
    assert "REELPOOL_CUDA=0" in done.stderr
    broken = nvcc_that(tmp_path, "echo 'nvcc fatal error: cicc is missing' >&2; exit 3")
    done = build(tmp_path, REELPOOL_CUDA="1", **broken)
    assert done.returncode == 1 and "cicc is missing" in done.stderr
    done = build(tmp_path, REELPOOL_CUDA="yes")
    assert done.returncode == 1 and "REELPOOL_CUDA=yes is neither" in done.stderr


def test_a_build_goes_on_without_cuda_and_says_so(tmp_path):
    broken = nvcc_that(tmp_path, "echo 'nvcc fatal error: cicc is missing' >&2; exit 3")
    done = build(tmp_path, **broken)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "([], [])"
    assert "built without CUDA" in done.stderr and "cicc is missing" in done.stderr
    done = build(tmp_path, REELPOOL_CUDA="0", **nvcc_that(tmp_path, SOUND))
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "([], [])" and not done.stderr


def test_a_kernel_is_compiled_again_when_the_compiler_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("NVCC", nvcc_that(tmp_path, SOUND)["NVCC"])
    array = tmp_path / "cuda" / "convert_kernel.inc"
    compile_kernel.compile_kernel(tmp_path)
    array.write_text("7")
    compile_kernel.compile_kernel(tmp_path)
    assert array.read_text() == "7"
    nvcc_that(tmp_path, SOUND.replace("12.9", "13.0"))
    assert compile_kernel.compile_kernel(tmp_path).startswith("nvcc 13.0")
    assert array.read_text() != "7"
