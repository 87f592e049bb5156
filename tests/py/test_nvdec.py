"""NVDEC without a GPU: what the extension and `doctor` say of it.

Decoding itself is tested in C (tests/c/test_nvdec*.c) and, where there is a GPU, by check_nvdec.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from reelpool import _core
from reelpool.cli import gpu
from reelpool.errors import CudaError, ReelpoolError

ROOT = Path(__file__).resolve().parents[2]
CLIPS = Path(_core.__file__).parent / "_demo" / "clips"


@pytest.fixture(name="fakes", scope="module")
def fakes_fixture(tmp_path_factory) -> Path:
    """A folder with a libcuda.so.1 and a libnvcuvid.so.1 that need no GPU."""
    cc = shutil.which(os.environ.get("CC", "cc"))
    if cc is None:
        pytest.skip("no C compiler for the fake driver")
    folder = tmp_path_factory.mktemp("driver")
    for name, sources in (
        ("libcuda.so.1", ["fake_cuda.c", "fake_cuda_rest.c"]),
        ("libnvcuvid.so.1", ["fake_nvcuvid.c"]),
    ):
        subprocess.run(
            [cc, "-std=c11", "-D_GNU_SOURCE", "-O1", "-fPIC", "-shared", "-pthread", "-Icsrc",
             "-Itests/c", *(f"tests/c/{s}" for s in sources), "-o", folder / name],
            cwd=ROOT, check=True,
        )  # fmt: skip
    return folder


def say(fakes: Path, program: str, **environment: str):
    """What a Python prints, as JSON, that finds the fake libraries."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(fakes), **environment}
    program = f"import json; from reelpool import _core; from reelpool.cli import gpu\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, env=env
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


LOADERS = f"""
import logging, sys
sys.path[:0] = [{str(Path(__file__).parent)!r}]
from demo_sets import open_demo
from reelpool import Loader, device
device.KERNEL = b"an image"  # the fake takes any
said, handler = [], logging.Handler()
handler.emit = said.append
logging.getLogger("reelpool").addHandler(handler)
for _ in range(2):
    with Loader(open_demo(), 16, device="cuda", output="dlpack") as loader:
        taken = sum(1 for batch in loader)
        stats = loader.stats()
lines = [(record.levelname, record.getMessage()) for record in said]
print(json.dumps([taken, stats["decoded"], stats["decoded_on_gpu"], lines]))
"""


def test_a_loader_says_once_what_its_gpu_leaves_to_the_cpu(fakes):
    taken, decoded, on_gpu, lines = say(fakes, LOADERS)
    assert (taken, on_gpu) == (12, 0) and decoded >= 2 * 184
    (level, av1), (other, h264) = sorted(lines)
    assert level == other == "WARNING"
    assert av1 == "device='cuda': the CPU decodes av1 of 320x240: this GPU has no decoder for av1"
    assert h264.startswith(
        "device='cuda': the CPU decodes h264 of 192x144: NVDEC's pictures differ from the CPU's"
    )


def test_caps_of_each_codec(fakes):
    said = say(fakes, "print(json.dumps(_core.nvdec_caps()))", FAKE_NVDEC_CODECS="0x100")
    assert said == {"h264": None, "hevc": [3, [48, 16], [4096, 4096]], "vp9": None, "av1": None}


def test_pictures_decide_and_not_the_driver(fakes):
    """The fake knows none of these pictures: it claims to decode them, and gives others."""
    clips = tuple(str(CLIPS / f"{codec}.mp4") for codec in ("h264", "mpeg4", "av1"))
    h264, mpeg4, av1 = say(fakes, f"print(json.dumps(_core.nvdec_probe({clips!r})))")
    assert h264[:4] == ["h264", 192, 128, False]
    assert h264[4].startswith("NVDEC's pictures differ from the CPU's by up to ")
    assert mpeg4[3:] == [False, "mpeg4 is decoded on the CPU"]
    assert av1[3:] == [False, "this GPU has no decoder for av1"]


def test_doctor_goes_codec_by_codec(fakes):
    lines = say(fakes, "print(json.dumps(list(gpu.examine())))", FAKE_CUDA_DEVICES="1")
    assert {status for status, _, _ in lines} == {"ok"}
    text = [text for _, text, _ in lines if text.startswith("cuda:0 ")]
    assert text[1].startswith("cuda:0 h264, 3 engines, 48x16 to 4096x4096: on the CPU; NVDEC's")
    assert text[4] == "cuda:0 av1: on the CPU; this GPU has no decoder for av1"


def test_doctor_on_a_gpu_that_decodes(monkeypatch):
    caps = {"h264": (7, (48, 16), (4096, 4096)), "hevc": (7, (144, 144), (8192, 8192)),
            "vp9": None, "av1": None}  # fmt: skip
    tried = [("h264", 192, 128, True, "8 pictures were those of the CPU"),
             ("hevc", 192, 128, False, "this GPU decodes hevc from 144x144"),
             ("vp9", 192, 128, False, "none"), ("av1", 192, 128, False, "none")]  # fmt: skip
    devices = (13000, [("A GPU", (9, 0), 132, 1 << 37)])
    monkeypatch.setattr(_core, "cuda_devices", lambda: devices)
    monkeypatch.setattr(_core, "nvdec_caps", lambda ordinal: caps)
    monkeypatch.setattr(_core, "nvdec_probe", lambda clips, ordinal: tried)
    text = "\n".join(line[1] for line in gpu.examine())
    assert "h264, 7 engines, 48x16 to 4096x4096: NVDEC; 8 pictures were those of the CPU" in text
    assert "hevc, 7 engines, 144x144 to 8192x8192: NVDEC; not tried, the clip at hand" in text
    assert "cuda:0 av1: on the CPU; none" in text


def test_a_gpu_without_nvdec_is_in_order(fakes, tmp_path):
    shutil.copy(fakes / "libcuda.so.1", tmp_path)
    lines = say(tmp_path, "print(json.dumps(list(gpu.examine())))", FAKE_CUDA_DEVICES="1")
    assert {status for status, _, _ in lines} == {"ok"}
    assert any("cuda:0 decodes no video: no NVDEC here: libnvcuvid.so.1" in t for _, t, _ in lines)
    assert any("NVIDIA_DRIVER_CAPABILITIES" in text for _, text, _ in lines)


def test_bad_arguments_are_typed_errors():
    before = _core.live_objects()
    with pytest.raises(CudaError, match="no NVIDIA driver here: /nowhere"):
        _core.nvdec_caps(0, "/nowhere/libcuda.so.1")
    with pytest.raises(CudaError, match="no NVIDIA driver here: /nowhere"):
        _core.nvdec_probe((str(CLIPS / "h264.mp4"),), 0, "/nowhere/libcuda.so.1")
    with pytest.raises(ValueError, match="0 files"):
        _core.nvdec_probe(())
    with pytest.raises(TypeError):
        _core.nvdec_probe(["list.mp4"])
    with pytest.raises(TypeError):
        _core.nvdec_probe((3,))
    assert _core.live_objects() == before


def test_a_file_that_is_no_video_is_named(fakes, tmp_path):
    (tmp_path / "none.mp4").write_bytes(b"no video" * 100)
    program = (
        "from reelpool.errors import ReelpoolError\n"
        f"try: _core.nvdec_probe(({str(tmp_path / 'none.mp4')!r},))\n"
        "except ReelpoolError as error: print(json.dumps(str(error)))"
    )
    assert "none.mp4" in say(fakes, program)
    assert issubclass(CudaError, ReelpoolError)
