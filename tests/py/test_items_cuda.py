"""`video_decode_device="cuda"` against a driver without a GPU: items, streams, single frames.

What of it runs in DataLoader workers is tested in test_items_cuda_workers.py.
"""

import gc
import io
import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import fake_driver
import numpy as np
import pyarrow as pa
import pytest
from demo_sets import FRONT, ROOT, WRIST, array, copy_demo, open_demo, video
from fake_driver import fake_fixture  # noqa: F401
from reelpool import (
    LeRobotDataset,
    Loader,
    StreamingLeRobotDataset,
    VideoDecoderCache,
    _core,
    decode_video_frames,
    device,
)
from reelpool import video as video_module
from reelpool.errors import CudaError, DecodeError, MissingExtraError
from written_datasets import NUMBERS, STATE, rows, write_v30

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from fake_torch import cuda_torch_fixture, where  # noqa: E402, F401
from reelpool import torch_bridge  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data._utils.pin_memory import pin_memory  # noqa: E402

pytestmark = pytest.mark.usefixtures("cuda_torch", "no_decoders")


@pytest.fixture(name="no_decoders")
def no_decoders_fixture(fake):
    """Nothing stays in the cache that `decode_video_frames` has of its own."""
    yield
    video_module._shared_cache().clear()


WINDOWS = {"delta_timestamps": {FRONT: [-0.2, 0.0, 0.1], "action": [0.0, 0.1]}}


def both(**options):
    """The same set on the CPU, and with its pictures on a GPU."""
    return open_demo(**options), open_demo(**options, video_decode_device="cuda")


def check_item(found, expected, cameras=(FRONT, WRIST), name="cuda:0"):
    """An item is the CPU's, bit for bit, and its pictures alone lie on the GPU."""
    assert list(found) == list(expected)
    for key, value in expected.items():
        if not isinstance(value, torch.Tensor):
            assert found[key] == value, key
            continue
        assert found[key].dtype == value.dtype and torch.equal(found[key], value), key
        assert where(found[key]) == (name if key in cameras else None), key


# -- values --


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize(
    "options",
    [{}, {"return_uint8": False}, WINDOWS, {"resize": (50, 71)}, {"cameras": [WRIST]}],
    ids=["uint8", "float32", "windows", "resize", "one camera"],
)
def test_items_are_those_of_the_cpu(options, threads):
    cpu, gpu = both(**options, num_threads=threads)
    cameras = options.get("cameras", (FRONT, WRIST))
    for index in (0, 47, 48, -1):
        check_item(gpu[index], cpu[index], cameras)
    indices = [7, 3, 3, 180, 12, 0, 91]
    for found, expected in zip(gpu.__getitems__(indices), cpu.__getitems__(indices), strict=True):
        check_item(found, expected, cameras)
    assert gpu.__getitems__([]) == []
    check_item(gpu[90:93][1], cpu[91], cameras)
    assert gpu.stats()["converted_on_gpu"] > 0 and "converted_on_gpu" not in cpu.stats()


@pytest.mark.parametrize("batch_size", [None, 8])
def test_streams_are_those_of_the_cpu(batch_size):
    options = {"root": ROOT, "num_threads": 2, "return_uint8": True, "batch_size": batch_size}
    cpu = StreamingLeRobotDataset("reelpool/demo", **options)
    gpu = StreamingLeRobotDataset("reelpool/demo", **options, video_decode_device="cuda")
    n = 0
    for found, expected in zip(gpu, cpu, strict=True):
        check_item(found, expected)
        n += 1
        if n % 60 == 1:
            assert gpu.state_dict() == cpu.state_dict()
    assert n == 184
    row = next(iter(gpu._pipeline))
    check_item(gpu._finalize_sample(row), cpu._finalize_sample(row))


def test_real_data(data_root):
    roots = {"repo_id": "g1", "root": data_root / "g1_small_v30", "num_threads": 2}
    cpu, gpu = LeRobotDataset(**roots), LeRobotDataset(**roots, video_decode_device="cuda:1")
    for found, expected in zip(gpu[100:104], cpu[100:104], strict=True):
        check_item(found, expected, cpu.meta.video_keys, "cuda:1")


@pytest.fixture(name="mixed", scope="module")
def mixed_fixture(tmp_path_factory):
    """A set with a video camera, an image camera and a depth camera."""
    if shutil.which("ffmpeg") is None:
        pytest.skip("needs ffmpeg")
    image = pytest.importorskip("PIL.Image")
    root = tmp_path_factory.mktemp("mixed") / "set"
    rgb = {"dtype": "video", "shape": [64, 96, 3], "names": ["height", "width", "channels"]}
    depth = {**rgb, "shape": [64, 96, 1],
             "info": {"is_depth_map": True, "video.is_depth_map": True}}  # fmt: skip
    features = {"cam": rgb, "depth": depth, "still": {**rgb, "dtype": "image"}, "state": STATE}
    cells = []
    for i in range(12):
        file = io.BytesIO()
        image.fromarray(np.full((64, 96, 3), 20 * i, np.uint8)).save(file, "PNG")
        cells.append({"bytes": file.getvalue(), "path": None})
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    write_v30(root, features={**features, **NUMBERS}, cameras=["cam", "depth"],
              columns={**rows((3, 4, 5)), "still": pa.array(cells, kind)})  # fmt: skip
    codes = np.random.default_rng(1).integers(0, 4096, (12, 64, 96), np.uint16).tobytes()
    raw = ["-f", "rawvideo", "-pix_fmt", "gray12le", "-s", "96x64", "-r", "10", "-i", "-", "-c:v",
           "libx265", "-x265-params", "lossless=1:keyint=2:log-level=none"]  # fmt: skip
    drawn = ["-f", "lavfi", "-i", "testsrc2=size=96x64:rate=10:duration=1.2", "-c:v", "libx264",
             "-pix_fmt", "yuv420p"]  # fmt: skip
    for camera, source in {"cam": drawn, "depth": raw}.items():
        path = video(root, camera)
        path.parent.mkdir(parents=True)
        done = subprocess.run(
            ["ffmpeg", "-v", "error", *source, str(path)], input=codes, capture_output=True
        )
        if done.returncode != 0:
            pytest.skip(f"this ffmpeg cannot write the clips: {done.stderr[-200:]!r}")
    return root


def test_depth_goes_there_and_image_columns_do_not(mixed):
    cpu, gpu = open_demo(mixed), open_demo(mixed, video_decode_device="cuda")
    for index in (0, 5, 11):
        check_item(gpu[index], cpu[index], ("cam", "depth"))
    with pytest.raises(ValueError, match="video_decode_device='cpu'"):
        open_demo(mixed, video_decode_device="cuda", on_corrupt="substitute")


def test_without_video_nothing_is_done(mixed, caplog, fake):
    with caplog.at_level(logging.INFO, "reelpool"):
        dataset = open_demo(mixed, video_decode_device="cuda", cameras=["still"])
    assert "no effect of video_decode_device" in caplog.text
    assert where(dataset[3]["still"]) is None and fake.calls == 0


@pytest.fixture(name="damaged", scope="module")
def damaged_fixture(tmp_path_factory):
    """A copy of the demo set in which a coded picture of the wrist camera is zeros."""
    root = copy_demo(tmp_path_factory.mktemp("damaged") / "set")
    path = video(root, WRIST)
    data = bytearray(path.read_bytes())
    samples = np.frombuffer(_core.video_samples(os.fsencode(path))[0], np.int64).reshape(-1, 4)
    offset, size = samples[20, :2].tolist()
    data[offset : offset + size] = bytes(size)
    path.write_bytes(data)
    return root


def test_samples_are_replaced_with_all_their_numbers(damaged):
    options = {"on_corrupt": "substitute", "max_bad_fraction": 1.0}
    cpu = open_demo(damaged, **options)
    gpu = open_demo(damaged, **options, video_decode_device="cuda")
    marks = 0
    for found, expected in zip(gpu.__getitems__(range(30)), cpu.__getitems__(range(30))):
        check_item(found, expected)
        marks += bool(found["is_substitute"])
    assert marks > 0
    with pytest.raises(DecodeError) as raised:
        open_demo(damaged, video_decode_device="cuda").__getitems__(range(30))
    with pytest.raises(DecodeError) as wanted:
        open_demo(damaged).__getitems__(range(30))
    assert str(raised.value) == str(wanted.value)


def test_transforms_get_the_tensors_there():
    seen = []

    def transform(picture):
        seen.append(where(picture))
        return picture.float() * 2

    cpu, gpu = both(image_transforms=transform)
    found = gpu[4][FRONT]
    assert seen == ["cuda:0"] * 2 and torch.equal(found, cpu[4][FRONT])


# -- batches, memory --


def test_a_batch_is_collated_without_a_copy():
    cpu, gpu = both()
    loaders = [DataLoader(dataset, 16, sampler=range(40)) for dataset in (gpu, cpu)]
    for found, expected in zip(*loaders, strict=True):
        check_item(found, expected)


def test_what_lies_on_the_host_is_pinned_and_nothing_else(monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    elsewhere = torch.empty(2, device="meta")  # of this torch's devices the one that is not here
    there = torch_bridge.DeviceBatch({"a": elsewhere, "b": torch.ones(1), "task": ["x"]})
    found = pin_memory(there)  # what a DataLoader calls
    assert dict(found) == dict(there) and found["a"] is elsewhere
    assert len(pinned) == 1 and pinned[0] is there["b"]
    _, gpu = both()
    (batch,) = DataLoader(gpu, 4, sampler=range(4))
    assert type(batch) is torch_bridge.DeviceBatch


def test_memory_goes_round(fake):
    _, gpu = both(num_threads=2)
    for _ in range(3):
        for first in range(0, 160, 16):
            gpu.__getitems__(range(first, first + 16))
    assert gpu.stats()["arena_grown"] <= 2
    kept = gpu[3:9]
    expected = [item[FRONT].clone() for item in kept]
    gpu.close()
    assert all(torch.equal(item[FRONT], wanted) for item, wanted in zip(kept, expected))
    assert fake.live[fake_driver.THINGS.index("memory")] > 0
    del kept
    gc.collect()
    assert fake.leftovers() == {}


def test_a_budget_limits_what_is_kept_and_is_refused_when_short():
    least = {"batch_size": 8, "root": ROOT, "return_uint8": True}
    one = 8 * 3 * (240 * 320 + 144 * 192)
    budget = 2 * one + (17 << 20) + (1 << 17)
    StreamingLeRobotDataset("reelpool/demo", memory_budget=budget, **least)
    with pytest.raises(ValueError, match="holds no two batches"):
        StreamingLeRobotDataset(
            "reelpool/demo", memory_budget=budget, video_decode_device="cuda", **least
        )
    small = open_demo(memory_budget=18 << 20, video_decode_device="cuda")
    kept = [small.__getitems__(range(16)) for _ in range(4)]
    most = small.stats()["device_bytes"]
    del kept
    small[0]
    assert small.stats()["device_bytes"] < most / 2


def test_threads_read_at_once():
    cpu, gpu = both(num_threads=2)
    expected = cpu.__getitems__(range(24))
    wrong = []

    def read(first):
        for index in range(first, 24, 3):
            try:
                check_item(gpu[index], expected[index])
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=read, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# -- when CUDA begins, and what goes wrong --


def test_nothing_of_cuda_begins_before_the_first_item(fake):
    _, gpu = both()
    other = pickle.loads(pickle.dumps(gpu))
    stream = StreamingLeRobotDataset("reelpool/demo", root=ROOT, video_decode_device="cuda")
    assert len(gpu) == 184 and gpu.hf_dataset[3]["index"] == 3 and gpu.stats() == {}
    assert stream.num_frames == 184 and gpu.get_raw_item(3)["index"] == 3
    VideoDecoderCache(device="cuda")
    assert fake.calls == 0
    gpu[0]
    assert fake.live[fake_driver.THINGS.index("context")] == 1
    assert other.video_decode_device == "cuda" and where(other[1][FRONT]) == "cuda:0"


def test_no_driver_and_no_such_gpu(monkeypatch, fake):
    gone = open_demo(video_decode_device="cuda:2")
    with pytest.raises(CudaError, match="there is no cuda:2: devices are cuda:0 to cuda:1"):
        gone[0]
    monkeypatch.setattr(device, "DRIVER", "/nowhere/libcuda.so.1")
    for use in (
        lambda: open_demo(video_decode_device="cuda")[0],
        lambda: next(iter(StreamingLeRobotDataset("d", root=ROOT, video_decode_device="cuda"))),
        lambda: decode_video_frames(video(ROOT, FRONT), [0.0], 0.01, device="cuda"),
    ):
        with pytest.raises(CudaError) as caught:
            use()
        assert "no NVIDIA driver here: /nowhere" in str(caught.value)
        assert "device='cpu'" in str(caught.value) and "num_workers" not in str(caught.value)


def test_every_call_of_the_driver_fails_once(fake):
    failures, nth, reached = 0, 1, True
    while reached:
        fake.reset()
        fake.fail_code, fake.fail_nth = (2, 999)[nth % 2], nth
        gpu = open_demo(video_decode_device="cuda", num_threads=nth % 3)
        try:
            for first in range(0, 20, 5):
                gpu.__getitems__(range(first, first + 5))
        except CudaError as error:
            failures += 1
            assert "cuda:" in str(error) or "NVIDIA driver" in str(error)
        finally:
            gpu.close()
        reached = fake.calls >= nth
        fake.fail_nth = 0
        nth += 3
        gc.collect()
        assert fake.leftovers() == {}, nth
    assert failures > 8


def test_a_torch_that_cannot_take_them(monkeypatch):
    monkeypatch.setattr(torch_bridge, "lacks_cuda", lambda: "2.0+cpu")
    for make in (open_demo, lambda **options: StreamingLeRobotDataset("d", root=ROOT, **options)):
        with pytest.raises(MissingExtraError, match=r"this torch, 2\.0\+cpu, is built") as caught:
            make(video_decode_device="cuda")
        assert "Loader(dataset, batch_size, device='cuda', output='dlpack')" in str(caught.value)
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="needs torch"):
        open_demo(video_decode_device="cuda:1")
    with pytest.raises(MissingExtraError, match="device='cuda' needs torch"):
        VideoDecoderCache(device="cuda")


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", None, "cuda:01"])
def test_devices_that_mean_nothing(name):
    with pytest.raises(ValueError, match="video_decode_device must be 'cpu', 'cuda' or 'cuda:N'"):
        open_demo(video_decode_device=name)
    with pytest.raises(ValueError, match=r"^device must be 'cpu'"):
        VideoDecoderCache(device=name)


def test_a_loader_agrees_with_its_dataset():
    _, gpu = both()
    with pytest.raises(ValueError, match="video_decode_device='cuda' and this Loader device='cpu'"):
        Loader(gpu, 4)
    one = open_demo(video_decode_device="cuda:1")
    with pytest.raises(ValueError, match="open the dataset with 'cpu'"):
        Loader([one, open_demo()], 4, device="cuda:0", output="dlpack")
    for dataset, name in ((gpu, "cuda:1"), (one, "cuda:1"), (one, "cuda")):
        Loader(dataset, 4, device=name, output="dlpack").close()


CHILD = """
import os, sys
sys.path[:0] = {path!r}
import fake_driver, fake_torch
from demo_sets import FRONT, open_demo
from reelpool.errors import CudaError
fake_torch.install({driver!r})
gpu = open_demo(video_decode_device="cuda")
kept = gpu[3]
child = os.fork()
if child == 0:
    said = []
    for use in (lambda: gpu[4], lambda: open_demo(video_decode_device="cuda")[4]):
        try:
            use()
        except CudaError as error:
            said.append("spawn" in str(error))
    del kept
    gpu.close()
    os._exit(0 if said == [True] * 2 else 1 + len(said))
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert fake_torch.where(gpu[4][FRONT]) == "cuda:0"
"""


def test_a_forked_child_is_told_to_spawn():
    program = CHILD.format(path=[str(Path(__file__).parent)], driver=str(fake_driver.build()))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


# -- single files --


@pytest.mark.parametrize("camera", [FRONT, WRIST])
@pytest.mark.parametrize("uint8", [True, False])
def test_frames_of_a_file(camera, uint8):
    path, times = video(ROOT, camera), [0.5, 0.0, 0.3, 0.5]
    expected = decode_video_frames(path, times, 1e-3, return_uint8=uint8)
    found = decode_video_frames(path, times, 1e-3, return_uint8=uint8, device="cuda")
    assert where(found) == "cuda:0" and where(expected) is None
    assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_depth_codes_of_a_file(mixed):
    path = video(mixed, "depth")
    expected = decode_video_frames(path, [0.0, 0.7], 1e-3, is_depth=True)
    found = decode_video_frames(path, [0.0, 0.7], 1e-3, is_depth=True, device="cuda:1")
    assert where(found) == "cuda:1" and np.array_equal(array(found), array(expected))


def test_a_cache_has_a_device():
    path = video(ROOT, FRONT)
    cache = pickle.loads(pickle.dumps(VideoDecoderCache(device="cuda:1")))
    frames = cache.get_decoder(path).get_frames_at([5, -1])
    assert where(frames.data) == "cuda:1" and where(frames.pts_seconds) is None
    assert torch.equal(
        frames.data, VideoDecoderCache().get_decoder(path).get_frames_at([5, -1]).data
    )
    again = pickle.loads(pickle.dumps(cache.get_decoder(path)))
    assert where(again.get_frames_at([0]).data) == "cuda:1"
    for name in ("cpu", "cuda", "cuda:1"):
        found = decode_video_frames(path, [0.0], 1e-3, decoder_cache=cache, device=name)
        assert where(found) == ("cuda:0" if name == "cuda" else "cuda:1")
    with pytest.raises(ValueError, match="decoder_cache has device='cuda:1'"):
        decode_video_frames(path, [0.0], 1e-3, decoder_cache=cache, device="cuda:0")
