"""`Loader(device="cuda")` against a driver without a GPU: bytes, order, errors, leftovers.

What the C side guarantees by itself (late work, consumers far ahead, every allocation) is tested in
tests/c/test_loader_cuda.c; what needs a GPU in tests/gpu.
"""

import gc
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import fake_driver
import numpy as np
import pytest
from demo_sets import FRONT, ROOT, WRIST, array, copy_demo, open_demo, video
from fake_driver import fake_fixture  # noqa: F401
from reelpool import LeRobotDataset, Loader, StreamingLeRobotDataset, _core, device
from reelpool.errors import CudaError, DecodeError, MissingExtraError
from written_datasets import NUMBERS, STATE, write_v30

NARROW = {"delta_timestamps": {FRONT: [-0.2, 0.0, 0.1], "action": [0.0, 0.1]}}


def gpu_loader(dataset, size, **options):
    return Loader(dataset, size, **{"device": "cuda", "output": "dlpack", **options})


def host(value):
    """A value of a batch in the process's own memory."""
    if isinstance(value, _core.DeviceArray):
        found = value.numpy()
        assert found.shape == value.shape == (len(value), *found.shape[1:])
        assert found.dtype == value.dtype and found.nbytes == value.nbytes
        return found
    return value


def check_same(found, expected):
    """A batch of a GPU holds what one of the CPU does, and all but lists lies there."""
    assert list(found) == list(expected)
    for key, value in expected.items():
        if isinstance(value, list):
            assert found[key] == value
            continue
        assert isinstance(found[key], _core.DeviceArray), key
        assert found[key].device == "cuda:0"
        got, wanted = host(found[key]), array(value)
        assert got.dtype == wanted.dtype and np.array_equal(got, wanted), key


def check_loaders(dataset, size, count=None, **options):
    """Both deliver the same batches; the GPU's statistics."""
    with (
        Loader(dataset, size, output="numpy", **options) as cpu,
        gpu_loader(dataset, size, **options) as gpu,
    ):
        expected, found = iter(cpu), iter(gpu)
        n = 0
        for wanted in expected:
            check_same(next(found), wanted)
            assert cpu.state_dict() == gpu.state_dict()
            n += 1
            if n == count:
                break
        else:
            with pytest.raises(StopIteration):
                next(found)
        assert n == len(gpu) if count is None else n == count
        return gpu.stats()


# -- bytes --


@pytest.mark.parametrize("threads", [0, 1, 4])
@pytest.mark.parametrize("uint8", [True, False])
def test_batches_are_those_of_the_cpu(threads, uint8):
    dataset = open_demo(return_uint8=uint8)
    for options in (
        {"shuffle": True, "seed": 3},
        {"drop_last": True, "prefetch_batches": 4},
        {"shuffle": True, "window": 40, "unit": 8, "rank": 1, "world_size": 2},
    ):
        stats = check_loaders(dataset, 24, num_threads=threads, **options)
        assert stats["converted_on_gpu"] == stats["delivered"] > 0


@pytest.mark.parametrize(
    "options",
    [NARROW, {"resize": (50, 71)}, {"resize": {WRIST: (288, 300)}}, {"cameras": [WRIST]}],
)
def test_windows_sizes_and_cameras(options):
    check_loaders(open_demo(**options), 9, 6, shuffle=True, num_threads=2)
    check_loaders(open_demo(**options, return_uint8=False), 9, 3, num_threads=2)


def test_streams_and_mixtures():
    stream = StreamingLeRobotDataset("reelpool/demo", root=ROOT, num_threads=2, return_uint8=True)
    check_loaders(stream, 20)
    sets = [open_demo(), open_demo(episodes=[1, 3])]
    check_loaders(sets, 8, 12, weights=[3, 1], shuffle=True, num_threads=2)
    check_loaders(open_demo(), 8, sampler=[7, 3, 3, 180, 12, 0, 55, 90, 91])


@pytest.mark.parametrize("name", ["g1_small_v30", "g1_small_v21", "cam3"])
def test_real_data(data_root, name):
    dataset = LeRobotDataset(name, root=data_root / name, return_uint8=True, num_threads=2)
    stats = check_loaders(dataset, 16, 3, shuffle=True)
    pictures = 3 * 16 * len(dataset.meta.video_keys)
    assert stats["converted_on_gpu"] >= pictures  # every one of those that came, and what is ahead
    del dataset


CLIPS = {  # pixel format, size: what the kernel does not take is converted on the CPU
    "odd": ("yuv444p", "libx264", (51, 33)),
    "thin": ("yuv422p", "libx264", (64, 48)),
    "deep": ("yuv420p10le", "libx265", (96, 64)),
    "plain": ("yuv420p", "libx264", (98, 66)),
    "full": ("yuvj420p", "libx264", (96, 64)),
}


@pytest.fixture(name="clips", scope="module")
def clips_fixture(tmp_path_factory):
    """{name: root} of small sets whose pictures have other formats and sizes."""
    if shutil.which("ffmpeg") is None:
        pytest.skip("needs ffmpeg")
    roots = {}
    for name, (pixels, encoder, (width, height)) in CLIPS.items():
        root = tmp_path_factory.mktemp(name) / "set"
        feature = {"dtype": "video", "shape": [height, width, 3],
                   "names": ["height", "width", "channels"]}  # fmt: skip
        write_v30(root, features={"cam": feature, "state": STATE, **NUMBERS}, cameras=["cam"])
        path = root / "videos/cam/chunk-000/file-000.mp4"
        path.parent.mkdir(parents=True)
        quiet = ["-x265-params", "log-level=none"] if encoder == "libx265" else []
        subprocess.run(
            ["ffmpeg", "-v", "error", "-f", "lavfi", "-i",
             "testsrc2=size=160x120:rate=10:duration=1.2", "-vf", f"scale={width}:{height}",
             "-c:v", encoder, *quiet,
             "-pix_fmt", pixels, "-g", "3", str(path)], check=True,
        )  # fmt: skip
        roots[name] = root
    return roots


@pytest.mark.parametrize("name", list(CLIPS))
@pytest.mark.parametrize("uint8", [True, False])
def test_formats_and_sizes(clips, name, uint8):
    dataset = open_demo(clips[name], return_uint8=uint8)
    stats = check_loaders(dataset, 5, shuffle=True)
    taken = stats["delivered"] if name in ("plain", "full") else 0
    assert stats["converted_on_gpu"] == taken
    smaller = open_demo(clips[name], return_uint8=uint8, resize=(20, 27))
    check_loaders(smaller, 5, shuffle=True)


def test_depth(tmp_path):
    if shutil.which("ffmpeg") is None:
        pytest.skip("needs ffmpeg")
    root = tmp_path / "set"
    feature = {"dtype": "video", "shape": [64, 96, 1], "names": ["height", "width", "channels"],
               "info": {"is_depth_map": True, "video.is_depth_map": True}}  # fmt: skip
    write_v30(root, features={"depth": feature, "state": STATE, **NUMBERS}, cameras=["depth"])
    path = root / "videos/depth/chunk-000/file-000.mp4"
    path.parent.mkdir(parents=True)
    codes = np.random.default_rng(1).integers(0, 4096, (12, 64, 96), np.uint16)
    done = subprocess.run(
        ["ffmpeg", "-v", "error", "-f", "rawvideo", "-pix_fmt", "gray12le", "-s", "96x64", "-r",
         "10", "-i", "-", "-c:v", "libx265", "-x265-params", "lossless=1:keyint=2:log-level=none",
         "-pix_fmt", "gray12le", str(path)], input=codes.tobytes(), capture_output=True,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"this ffmpeg writes no 12-bit HEVC: {done.stderr[-200:]!r}")
    assert check_loaders(open_demo(root), 5, shuffle=True)["converted_on_gpu"] == 0


def test_resume_as_on_the_cpu():
    dataset = open_demo()
    options = {"shuffle": True, "seed": 9, "num_threads": 2}
    with gpu_loader(dataset, 16, **options) as gpu:
        batches = iter(gpu)
        for _ in range(5):
            next(batches)
        state = gpu.state_dict()
    with (
        Loader(dataset, 16, output="numpy", **options) as cpu,
        gpu_loader(dataset, 16, **options) as gpu,
    ):
        cpu.load_state_dict(state)
        gpu.load_state_dict(state)
        rest = 0
        for wanted, found in zip(cpu, gpu):
            check_same(found, wanted)
            rest += 1
        assert rest == len(gpu) - 5
        assert len(list(gpu)) == len(gpu)  # and the next epoch


# -- the end, and errors --


def test_batches_outlive_their_loader(fake):
    dataset = open_demo()
    with Loader(dataset, 8, output="numpy", num_threads=1) as cpu:
        expected = list(cpu)
    gpu = gpu_loader(dataset, 8, num_threads=2)
    kept = list(gpu)
    grown = gpu.stats()["arena_grown"]
    assert grown >= len(kept)  # one more for each that is kept
    gpu.close()
    for found, wanted in zip(kept, expected):
        check_same(found, wanted)
    one = kept[3][FRONT]
    del kept, found
    assert np.array_equal(one.numpy(), expected[3][FRONT])
    assert fake.live[fake_driver.THINGS.index("memory")] > 0


def test_memory_goes_round(fake):
    with gpu_loader(open_demo(), 8, num_threads=2, shuffle=True) as gpu:
        for _ in gpu:
            pass
        first = gpu.stats()
        for _ in range(2):
            for _ in gpu:
                pass
        stats = gpu.stats()
    assert stats["arena_grown"] == first["arena_grown"] <= 4
    assert stats["device_bytes"] == first["device_bytes"] >= stats["arena_bytes"]
    assert stats["pinned_bytes"] == first["pinned_bytes"] > 0
    assert 2.9 < stats["uploaded_bytes"] / first["uploaded_bytes"] < 3.1
    cpu = Loader(open_demo(), 8)
    next(iter(cpu))
    assert not set(device.STATS) & set(cpu.stats())
    cpu.close()


def test_closing_while_work_is_under_way(fake):
    for lazy in (False, True):
        fake.lazy = lazy
        gpu = gpu_loader(open_demo(), 16, num_threads=4, prefetch_batches=4, shuffle=True)
        batches = iter(gpu)
        kept = next(batches)
        batches = iter(gpu)  # ends the pass before
        next(batches)
        gpu.close()
        assert host(kept["index"]).shape == (16,)
        fake.lazy = False
        del kept


@pytest.fixture(name="damaged", scope="module")
def damaged_fixture(tmp_path_factory):
    """A copy of the demo set in which a coded picture of the wrist camera is zeros."""
    root = copy_demo(tmp_path_factory.mktemp("damaged") / "set")
    path = video(root, WRIST)
    data = bytearray(path.read_bytes())
    rows = np.frombuffer(_core.video_samples(os.fsencode(path))[0], np.int64).reshape(-1, 4)
    offset, size = rows[20, :2].tolist()
    data[offset : offset + size] = bytes(size)
    path.write_bytes(data)
    return root


@pytest.mark.parametrize("threads", [0, 2])
def test_a_damaged_picture_ends_the_pass_as_on_the_cpu(damaged, threads, fake):
    dataset = open_demo(damaged)
    said = []
    for options in ({"output": "numpy"}, {"output": "dlpack", "device": "cuda"}):
        with Loader(dataset, 8, num_threads=threads, **options) as loader:
            batches = iter(loader)
            with pytest.raises(DecodeError) as caught:
                while True:
                    kept = next(batches)
            said.append((str(caught.value), host(kept["index"]).tolist()))
            with pytest.raises(StopIteration):
                next(batches)
            assert len(next(iter(loader))["task"]) == 8  # a new pass begins
    assert said[0] == said[1]


def test_samples_are_replaced_as_on_the_cpu(damaged):
    options = {"on_corrupt": "substitute", "max_bad_fraction": 1.0}
    dataset = open_demo(damaged, **options)
    with Loader(dataset, 8, output="numpy") as cpu, gpu_loader(dataset, 8) as gpu:
        for wanted, found in zip(cpu, gpu):
            marks = found.pop("is_substitute")  # made in Python, it stays there without torch
            assert np.array_equal(marks, wanted.pop("is_substitute"))
            check_same(found, wanted)
        assert gpu.stats()["substituted"] == cpu.stats()["substituted"] > 0


def test_every_call_of_the_driver_fails_once(fake):
    failures = 0
    for name, codes in ((None, (2, 999)), (b"cuEventRecord", (719,)), (b"cuLaunchKernel", (1,))):
        nth = 1
        reached = True
        while reached:
            fake.reset()
            fake.fail_name, fake.fail_code, fake.fail_nth = name, codes[nth % len(codes)], nth
            gpu = gpu_loader(open_demo(), 40, num_threads=2, shuffle=True)
            try:
                for batch in gpu:
                    batch[FRONT].__dlpack__(stream=7777)
            except CudaError as error:
                failures += 1
                assert "cuda:0" in str(error) or "NVIDIA driver" in str(error)
            finally:
                gpu.close()
            batch = None
            reached = fake.calls >= nth
            fake.fail_nth = 0
            nth += 41 if name is None else 5
            gc.collect()
            assert fake.leftovers() == {}, (name, nth)
    fake.reset()
    assert failures > 8


def test_no_driver_no_such_gpu_no_kernel(monkeypatch, fake):
    dataset = open_demo()
    gone = "there is no cuda:2: devices are cuda:0 to cuda:1"
    with gpu_loader(dataset, 4, device="cuda:2") as gpu, pytest.raises(CudaError, match=gone):
        iter(gpu)
    if not _core.describe()["cuda"]:
        monkeypatch.setattr(device, "KERNEL", None)
        with gpu_loader(dataset, 4) as gpu, pytest.raises(CudaError, match="REELPOOL_CUDA=1"):
            iter(gpu)
    monkeypatch.setattr(device, "DRIVER", "/nowhere/libcuda.so.1")
    with gpu_loader(dataset, 4) as gpu, pytest.raises(CudaError) as caught:
        iter(gpu)
    assert "no NVIDIA driver here: /nowhere" in str(caught.value)
    assert "device='cpu'" in str(caught.value) and "reelpool doctor" in str(caught.value)


def test_memory_is_short(fake):
    fake.limit = 10 << 20
    short = pytest.raises(CudaError, match="prefetch_batches")
    with gpu_loader(open_demo(return_uint8=False), 16) as gpu, short:
        next(iter(gpu))


CHILD = """
import os, sys
sys.path[:0] = {path!r}
import fake_driver
from demo_sets import open_demo
from reelpool import Loader, device
from reelpool.errors import CudaError
device.DRIVER, device.KERNEL = {driver!r}, fake_driver.KERNEL
loader = Loader(open_demo(), 8, device="cuda", output="dlpack", num_threads=2)
batches = iter(loader)
kept = next(batches)
kept["index"].__dlpack__(stream=-1)
child = os.fork()
if child == 0:
    said = []
    for use in (lambda: next(batches), lambda: next(iter(loader)),
                lambda: kept["index"].numpy(), lambda: kept["index"].__dlpack__(),
                lambda: kept["index"].__dlpack__(stream=-1)):
        try:
            use()
        except CudaError as error:
            said.append("spawn" in str(error))
    del kept, batches
    loader.close()
    os._exit(0 if said == [True] * 5 else 1 + len(said))
status = os.waitpid(child, 0)[1]
assert status == 0, status
assert kept["index"].numpy().tolist() == list(range(8))
assert next(batches)["index"].numpy().tolist() == list(range(8, 16))
loader.close()
"""


def test_a_forked_child_is_told_to_spawn():
    program = CHILD.format(path=[str(Path(__file__).parent)], driver=str(fake_driver.build()))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


# -- arguments --


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cuda:x", "CUDA", "", None, "cuda:01"])
def test_devices_that_mean_nothing(name):
    with pytest.raises(ValueError, match="'cpu', 'cuda' or 'cuda:N'"):
        Loader(open_demo(), 4, device=name)


def test_outputs():
    dataset = open_demo()
    with pytest.raises(ValueError, match="'dlpack'"):
        Loader(dataset, 4, device="cuda", output="numpy")
    with pytest.raises(ValueError, match="'dlpack' or None"):
        Loader(dataset, 4, device="cuda", output="cupy")
    with Loader(dataset, 4, output="dlpack") as cpu:  # the same words serve both devices
        assert all(
            hasattr(v, "__dlpack__") or isinstance(v, list) for v in next(iter(cpu)).values()
        )


def test_a_torch_without_cuda_is_told_of():
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None:
        pytest.skip("this torch is built with CUDA")
    for output in (None, "torch"):
        with pytest.raises(MissingExtraError, match="built without CUDA") as caught:
            Loader(open_demo(), 4, device="cuda", output=output)
        assert torch.__version__ in str(caught.value) and "'dlpack'" in str(caught.value)


def test_no_torch_at_all(monkeypatch):
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="needs torch"):
        Loader(open_demo(), 4, device="cuda")


def test_a_budget_counts_the_memory_of_the_gpu():
    dataset = open_demo(return_uint8=True)
    one = 8 * 3 * (240 * 320 + 144 * 192)
    least = 2 * one + (17 << 20) + (1 << 17)
    Loader(dataset, 8, memory_budget=least).close()
    with pytest.raises(ValueError, match="holds no two batches"):
        gpu_loader(dataset, 8, memory_budget=least)
    gpu_loader(dataset, 8, memory_budget=2 * least).close()


def test_pickles_carry_the_device():
    gpu = gpu_loader(open_demo(), 8, device="cuda:1", shuffle=True)
    next(iter(gpu))
    with pickle.loads(pickle.dumps(gpu)) as other:
        assert next(iter(other))["index"].device == "cuda:1"
    gpu.close()
