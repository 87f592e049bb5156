"""`Loader(device="cuda")` on a GPU, with torch and whatever else takes DLPack: `make test-gpu`.

Needs NumPy, pyarrow, nvcc, and the extension: installed, built in the tree, brought in
build/gpu-python, or built here, with the FFmpeg of build/gpu-ffmpeg if that is here. Skips and says
why; REELPOOL_REQUIRE=gpu makes the want of a GPU a failure.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
from pathlib import Path

import pytest
from extension import build, kernel, load

pytestmark = pytest.mark.gpu

FRONT, WRIST = "observation.images.front", "observation.images.wrist"


@pytest.fixture(name="reelpool", scope="module")
def reelpool_fixture(tmp_path_factory):
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        pytest.skip(f"no gpu: {error}")
    for package in ("numpy", "pyarrow"):
        pytest.importorskip(package)
    try:
        core = load()
    except ImportError:
        wrong = build()
        if wrong is not None:
            pytest.skip(f"the extension cannot be built here: {wrong}")
        core = load()
    try:
        core.cuda_devices()
    except importlib.import_module("reelpool.errors").CudaError as error:
        pytest.skip(f"no gpu: {error}")
    if not core.describe()["cuda"]:
        made = kernel(tmp_path_factory.mktemp("kernel"))
        if made is None:
            pytest.skip("no gpu compiler: nvcc is not found (NVCC, CUDA_HOME, PATH)")
        importlib.import_module("reelpool.device").KERNEL = made
    return importlib.import_module("reelpool")


@pytest.fixture(name="torch")
def torch_fixture(reelpool):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return torch


def open_demo(reelpool, **options):
    root = Path(reelpool.__file__).parent / "_demo/dataset"
    return reelpool.LeRobotDataset("reelpool/demo", root=root, **options)


OPTIONS = [
    {"return_uint8": True},
    {"return_uint8": False},
    {"return_uint8": False, "resize": (51, 71)},
    {"return_uint8": True, "delta_timestamps": {FRONT: [-0.2, 0.0, 0.1], "action": [0.0, 0.1]}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=["uint8", "float32", "resized", "windows"])
def test_bytes_are_those_of_the_cpu(reelpool, options):
    import numpy as np

    dataset = open_demo(reelpool, **options)
    how = {"shuffle": True, "seed": 4, "num_threads": 4}
    cpu = reelpool.Loader(dataset, 16, output="numpy", **how)
    gpu = reelpool.Loader(dataset, 16, device="cuda", output="dlpack", **how)
    for _ in range(3):
        for wanted, found in zip(cpu, gpu):
            for key, value in wanted.items():
                same = value == found[key] if isinstance(value, list) else None
                assert same or np.array_equal(found[key].numpy(), value), key
    stats = gpu.stats()
    assert stats["converted_on_gpu"] > stats["delivered"] // 2  # of resized ones not the first
    assert "resize" in options or stats["converted_on_gpu"] == stats["delivered"]
    cpu.close()
    gpu.close()


@pytest.mark.parametrize("stream", ["default", "own"])
def test_a_slow_consumer_that_drops_its_batches_early(reelpool, torch, stream):
    dataset = open_demo(reelpool, return_uint8=True)
    how = {"shuffle": True, "seed": 8, "num_threads": 4}
    with reelpool.Loader(dataset, 16, **how) as cpu:
        expected = [batch[FRONT].clone() for _ in range(2) for batch in cpu]
    side = torch.cuda.Stream() if stream == "own" else torch.cuda.current_stream()
    copies = []
    with reelpool.Loader(dataset, 16, device="cuda", **how) as gpu, torch.cuda.stream(side):
        for _ in range(2):
            for batch in gpu:
                assert batch[FRONT].device.type == batch["action"].device.type == "cuda"
                torch.cuda._sleep(20_000_000)  # some 10 ms: the batch is read long after
                copies.append(batch[FRONT].clone())
                del batch
        assert gpu.stats()["arena_grown"] <= 4
    torch.cuda.synchronize()
    for found, wanted in zip(copies, expected):
        assert torch.equal(found.cpu(), wanted)


def test_training_takes_the_batches(reelpool, torch):
    dataset = open_demo(reelpool, return_uint8=False)
    model = torch.nn.Conv2d(3, 4, 3).cuda()
    kept = []
    with reelpool.Loader(dataset, 8, device="cuda", shuffle=True) as gpu:
        for batch in gpu:
            model(batch[FRONT]).square().mean().backward()
            kept.append(batch["index"])
    assert sorted(torch.cat(kept).tolist()) == list(range(184))
    assert torch.isfinite(model.weight.grad).all()


def check_items(found, expected, torch):
    """Items or batches: pictures on the GPU, all else in host memory, values the CPU's."""
    assert list(found) == list(expected)
    for key, value in expected.items():
        if not isinstance(value, torch.Tensor):
            assert found[key] == value, key
            continue
        assert found[key].device.type == ("cuda" if key in (FRONT, WRIST) else "cpu"), key
        assert torch.equal(found[key].cpu(), value), key


def test_items_have_their_pictures_there(reelpool, torch):
    gpu, cpu = open_demo(reelpool, video_decode_device="cuda"), open_demo(reelpool)
    for index in (0, 47, 183):
        check_items(gpu[index], cpu[index], torch)
    for found, expected in zip(gpu[20:60], cpu[20:60]):
        check_items(found, expected, torch)
    path = Path(reelpool.__file__).parent / f"_demo/dataset/videos/{WRIST}/chunk-000/file-000.mp4"
    frames = [
        reelpool.decode_video_frames(path, [0.0, 0.4], 1e-3, device=d) for d in ("cpu", "cuda")
    ]
    assert frames[1].is_cuda and torch.equal(frames[0], frames[1].cpu())


class Begin:
    """`worker_init_fn`: a spawned worker has the extension and the kernel of this process."""

    def __init__(self):
        self.kernel = importlib.import_module("reelpool.device").KERNEL

    def __call__(self, worker):
        load()
        importlib.import_module("reelpool.device").KERNEL = self.kernel


@pytest.mark.parametrize("pin", [False, True])
def test_spawned_workers_send_their_batches(reelpool, torch, pin):
    order = [(i * 71 + 3) % 184 for i in range(96)]
    gpu, cpu = open_demo(reelpool, video_decode_device="cuda"), open_demo(reelpool)
    loaders = [
        torch.utils.data.DataLoader(gpu, 16, sampler=order, num_workers=2, pin_memory=pin,
                                    multiprocessing_context="spawn", worker_init_fn=Begin(),
                                    persistent_workers=True),
        torch.utils.data.DataLoader(cpu, 16, sampler=order),
    ]  # fmt: skip
    for _ in range(2):
        for found, expected in zip(*loaders, strict=True):
            check_items(found, expected, torch)
            assert found["action"].is_pinned() is pin


def test_forked_workers_are_refused(reelpool, torch):
    gpu = open_demo(reelpool, video_decode_device="cuda")
    loader = torch.utils.data.DataLoader(gpu, 4, num_workers=1, multiprocessing_context="fork")
    errors = importlib.import_module("reelpool.errors")
    with pytest.raises(errors.CudaError, match="spawn"):
        next(iter(loader))


@pytest.mark.parametrize("name", ["cupy", "jax"])
def test_other_libraries_take_them(reelpool, name):
    import numpy as np

    library = pytest.importorskip(name)
    dataset = open_demo(reelpool, return_uint8=True)
    with reelpool.Loader(dataset, 8, device="cuda", output="dlpack") as gpu:
        batch = next(iter(gpu))
    take = (
        library.from_dlpack if name == "cupy" else importlib.import_module("jax.dlpack").from_dlpack
    )
    taken = take(batch[WRIST])
    got = library.asnumpy(taken) if name == "cupy" else np.asarray(taken)
    assert np.array_equal(got, batch[WRIST].numpy())


def test_nothing_is_left_behind(reelpool, torch):
    dataset = open_demo(reelpool, return_uint8=True)
    free = []
    for i in range(60):
        with reelpool.Loader(dataset, 16, device="cuda", shuffle=True) as gpu:
            kept = next(iter(gpu))
        del kept
        gc.collect()
        if i >= 10:
            torch.cuda.synchronize()
            free.append(torch.cuda.mem_get_info()[0])
    assert max(free) - min(free) < 64 << 20
    assert reelpool._core.live_objects() < 10_000
