"""The rates that `make bench-gpu` prints, against a driver without a GPU: all paths."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from demo_sets import ROOT, WRIST, video
from fake_driver import fake_fixture  # noqa: F401
from reelpool import LeRobotDataset, VideoDecoderCache, device

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from fake_torch import cuda_torch_fixture  # noqa: E402, F401

sys.path.append(str(Path(__file__).parents[1] / "gpu"))
import bench_batches  # noqa: E402

SMALL = ("--threads", "1", "--pixels", "1")
DMON = """#!/bin/sh
echo "$@" >{said}
echo "# gpu     sm    mem    enc    dec    jpg    ofa"
echo "# Idx      %      %      %      %      %      %"
while :; do echo "    0     40     12      0     -      0      0"; sleep 0.05; done
"""


@pytest.fixture(name="clips")
def clips_fixture(tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    (folder / "bench_wrist.mp4").symlink_to(video(ROOT, WRIST).resolve())
    return folder


@pytest.fixture(name="args")
def args_fixture():
    return types.SimpleNamespace(threads=1, batch_size=16, seconds=0.05, driver=device.DRIVER)


def test_the_dataset_is_the_clip(tmp_path, clips):
    from reelpool import _core

    clip = clips / "bench_wrist.mp4"
    about = bench_batches.write_set(clip, tmp_path / "set", _core)
    assert (about["codec"], about["size"]) == ("h264", "192x144")
    dataset = LeRobotDataset("bench", root=tmp_path / "set", return_uint8=True, num_threads=1)
    assert len(dataset) == bench_batches.COPIES * about["frames"]
    pixels = 10 * about["frames"] * 192 * 144 - 1
    bench_batches.write_set(clip, tmp_path / "more", _core, pixels)
    assert len(LeRobotDataset("bench", root=tmp_path / "more")) == 10 * about["frames"]
    decoder = VideoDecoderCache().get_decoder(clip)
    for place in (0, 7, about["frames"] + 7):
        found = dataset[place]["camera"].numpy()
        wanted = decoder.get_frames_at([place % about["frames"]]).data[0].numpy()
        assert np.array_equal(found, wanted)


def test_the_table(tmp_path, clips, monkeypatch, capsys):
    program = tmp_path / "nvidia-smi"
    program.write_text(DMON.format(said=tmp_path / "said"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7,GPU-8")
    target = tmp_path / "out.json"
    options = ["--clips", str(clips), "--seconds", "1.2", *SMALL, "--json", str(target)]
    assert bench_batches.main(options) == 0
    found = json.loads(target.read_text())
    assert found["machine"]["gpu"] == "Fake GPU 0"
    rows = {row["path"]: row for row in found["rows"]}
    assert list(rows) == ["floor", "Loader cpu", "Loader cuda", "items cuda",
                          "torchcodec cuda, 1", "torchcodec cuda, 4"]  # fmt: skip
    for path in ("floor", "Loader cpu", "Loader cuda"):
        assert rows[path]["frames/s"] > 0 and rows[path]["codec"] == "h264"
    cuda = rows["Loader cuda"]
    assert cuda["share_of_floor"] == pytest.approx(
        cuda["frames/s"] / rows["floor"]["frames/s"], abs=0.01
    )
    assert "1.00 converted there" in cuda["note"] and "decoded per frame" in cuda["note"]
    assert (cuda["sm_%"], cuda["dec_%"]) == (40.0, None)
    assert cuda["busy_us_per_frame"] == pytest.approx(0.4e6 / cuda["frames/s"], rel=0.01)
    for path in ("items cuda", "torchcodec cuda, 1"):
        assert rows[path]["note"] == "this torch has no CUDA" and rows[path]["frames/s"] is None
    assert (tmp_path / "said").read_text().split() == "dmon -i GPU-7 -s u -d 1".split()
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(rows) + 1


def test_what_is_missing_is_said(tmp_path, clips, monkeypatch, capsys):
    assert bench_batches.main(["--clips", str(tmp_path)]) == 3
    assert "make gpu-kit" in capsys.readouterr().err
    monkeypatch.setattr(device, "DRIVER", "/nowhere/libcuda.so.1")
    options = ["--clips", str(clips), "--seconds", "0.05", *SMALL]
    assert bench_batches.main(options) == 0
    said = capsys.readouterr().out
    assert said.count("no NVIDIA driver here: /nowhere") == 2  # in its line, and of the machine


def fake_cuda(synchronized):
    cuda = types.SimpleNamespace(synchronize=lambda: synchronized.append(1))
    return types.SimpleNamespace(cuda=cuda, utils=torch.utils)


@pytest.mark.usefixtures("cuda_torch")
def test_items(tmp_path, clips, args):
    from reelpool import _core

    bench_batches.write_set(clips / "bench_wrist.mp4", tmp_path / "set", _core)
    synchronized = []
    found = bench_batches.of_items(tmp_path / "set", args, fake_cuda(synchronized))
    assert found["frames/s"] > 0 and len(synchronized) == 2


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("n", [1, 4])
def test_torchcodec(clips, args, monkeypatch, n, beta):
    opened, ranges = [], []

    class VideoDecoder:
        def __init__(self, path, device):
            opened.append((path, device))

        def __len__(self):
            return 40

        def get_frames_in_range(self, first, last):
            ranges.append((first, last))
            return types.SimpleNamespace(data=[None] * (last - first))

    module = types.ModuleType("torchcodec.decoders")
    module.VideoDecoder = VideoDecoder
    if beta:
        import contextlib

        module.set_cuda_backend = lambda name: contextlib.nullcontext(ranges.append(name))
    monkeypatch.setitem(sys.modules, "torchcodec", types.ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", module)
    clip = clips / "bench_wrist.mp4"
    found = bench_batches.of_torchcodec(clip, args, fake_cuda([]), n)
    assert found["frames/s"] > 0 and ("beta" in found["note"]) is beta
    assert opened == [(str(clip), "cuda")] * n
    assert {(0, 16), (16, 32), (32, 40)} == set(ranges) - {"beta"}

    def broken(self, first, last):
        raise RuntimeError("no decoder")

    VideoDecoder.get_frames_in_range = broken
    with pytest.raises(RuntimeError, match="no decoder"):
        bench_batches.of_torchcodec(clip, args, fake_cuda([]), n)


def test_a_path_that_fails_leaves_the_others(clips, monkeypatch, capsys):
    def fails(*args):
        raise ValueError("broken\nand more")

    monkeypatch.setattr(bench_batches, "of_loader", fails)
    options = ["--clips", str(clips), "--seconds", "0.05", *SMALL]
    assert bench_batches.main(options) == 0
    said = capsys.readouterr().out
    assert said.count("ValueError: broken |") == 2 and "| floor |" in said


def test_without_a_floor_there_are_rates(clips, monkeypatch, capsys):
    from reelpool.bench import floor

    def broken(self, kind):
        raise RuntimeError("decode_floor failed on bench: no libdav1d")

    monkeypatch.setattr(floor.Floor, "measure", broken)
    options = ["--clips", str(clips), "--seconds", "0.05", *SMALL]
    assert bench_batches.main(options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].endswith("| decode_floor failed on bench: no libdav1d |")
    assert lines[3].startswith("| Loader cpu | h264 |") and lines[3].split("|")[5].strip() == "-"


def test_frames_are_counted_after_the_start():
    """What is made before the clock starts does not count, and the end is waited for."""
    log = []

    def step():
        log.append("step")
        return 10

    counters = iter([{"decoded": 7, "other": 1}, {"decoded": 12, "other": 5}])
    found = bench_batches.timed(step, lambda: log.append("done"), 0.02, lambda: next(counters))
    assert found["decoded"] == 5 and "other" not in found
    first = log.index("done")
    assert log[-1] == "done" and log.count("done") == 2 and first > 0
    counted = log[first:].count("step") * 10
    assert found["frames/s"] == pytest.approx(counted / (found["ended"] - found["begun"]))
