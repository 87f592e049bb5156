"""A DataLoader's workers over a dataset with `video_decode_device="cuda"`: spawned, forked, short.

Workers are real processes; the driver and the part of torch that takes its memory are stand-ins.
"""

import ctypes
import gc
import os
import pickle

import fake_driver
import pytest
from demo_sets import FRONT, ROOT, WRIST, open_demo, video
from fake_driver import fake_fixture  # noqa: F401
from reelpool import StreamingLeRobotDataset, VideoDecoderCache, device, engine
from reelpool.dataset_base import DatasetBase
from reelpool.errors import CudaError

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

import fake_torch  # noqa: E402
from batches import lerobot_like_collate  # noqa: E402
from fake_torch import cuda_torch_fixture  # noqa: E402, F401
from reelpool import torch_bridge  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

pytestmark = pytest.mark.usefixtures("cuda_torch")

CONTEXT = fake_driver.THINGS.index("context")


class Begin:
    """`worker_init_fn`: the stand-ins in the worker."""

    def __init__(self):
        self.library = str(fake_driver.build())

    def __call__(self, worker):
        fake_torch.install(self.library)


class Watched:
    """A user's dataset around ours that tells what it saw in its worker."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitems__(self, indices):
        items = self.dataset.__getitems__(indices)
        library = ctypes.CDLL(str(device.DRIVER))
        library.fake_cuda.restype = ctypes.POINTER(fake_driver.Controls)
        for item in items:
            item["contexts"] = library.fake_cuda().contents.live[CONTEXT]
            item["pid"] = os.getpid()
            item["theirs"] = sum(fake_torch.where(item[c]) is not None for c in (FRONT, WRIST))
            item["made_there"] = len(fake_torch.taken)
        return items


def loader_of(dataset, method, **options):
    options = {"batch_size": 8, "num_workers": 2, "worker_init_fn": Begin(), **options}
    return DataLoader(dataset, multiprocessing_context=method, **options)


def check_same(found, expected):
    assert [k for k in found if k in expected] == list(expected)
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[key].dtype == value.dtype and torch.equal(found[key], value), key
        else:
            assert found[key] == value, key


FORKSERVER = pytest.param("forkserver", marks=pytest.mark.soak)


@pytest.mark.parametrize("method", ["spawn", FORKSERVER])
def test_workers_deliver_what_the_cpu_does(method, fake):
    order = [(i * 71 + 3) % 184 for i in range(40)]
    gpu = Watched(open_demo(video_decode_device="cuda:1"))
    expected = list(DataLoader(open_demo(), batch_size=8, sampler=order))
    pids = set()
    for found, wanted in zip(loader_of(gpu, method, sampler=order), expected, strict=True):
        check_same(found, wanted)
        assert found["contexts"].tolist() == [1] * 8
        assert min(found["made_there"].tolist()) > 0  # its pictures lay on the GPU,
        assert found["theirs"].tolist() == [0] * 8  # and those that are sent are torch's own
        pids |= set(found["pid"].tolist())
    assert len(pids) == 2 and os.getpid() not in pids
    assert fake.calls == 0  # all that was done was done there


BY_PARTS = pytest.param(None, marks=pytest.mark.soak)


@pytest.mark.parametrize("batch_size", [8, BY_PARTS])
def test_streams_with_workers(batch_size):
    options = {"root": ROOT, "return_uint8": True, "batch_size": batch_size}
    gpu = StreamingLeRobotDataset("d", **options, video_decode_device="cuda")
    cpu = StreamingLeRobotDataset("d", **options)
    pairs = zip(loader_of(gpu, "spawn"), loader_of(cpu, "fork"), strict=True)
    n = 0
    for found, wanted in pairs:
        assert type(found) is torch_bridge.DeviceBatch
        check_same(found, wanted)
        n += 1
    assert n == 23


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_a_forked_worker_is_told_to_spawn(used, fake):
    gpu = open_demo(video_decode_device="cuda")
    if used:
        gpu[0]
    else:
        gpu = StreamingLeRobotDataset("d", root=ROOT, batch_size=8, video_decode_device="cuda")
    loader = loader_of(gpu, "fork", num_workers=1)
    with pytest.raises(CudaError, match="multiprocessing_context='spawn'") as caught:
        next(iter(loader))
    assert "num_workers=0" in str(caught.value)
    if used:
        assert torch.equal(gpu[5][FRONT], open_demo()[5][FRONT])  # the parent's is as it was
    else:
        assert fake.calls == 0
    del loader, caught
    gc.collect()


# -- what only some workers meet: here this process is taken for one --


@pytest.fixture(name="as_worker")
def as_worker_fixture(monkeypatch):
    """This process is a spawned worker of two."""
    monkeypatch.setattr(DatasetBase, "_workers", staticmethod(lambda: 2))
    monkeypatch.setattr(device, "_start_method", lambda: "spawn")
    monkeypatch.setattr("reelpool.dataset_base.end_with_parent", lambda: None)


def test_what_is_short_names_fewer_workers(as_worker, fake):
    fake.limit = 1 << 20
    with pytest.raises(CudaError, match="out of memory") as caught:
        open_demo(video_decode_device="cuda").__getitems__(range(16))
    for word in ("fewer workers", "num_workers=0", "Loader(dataset, batch_size, device='cuda')"):
        assert word in str(caught.value)
    fake.reset()
    fake.fail_name, fake.fail_code, fake.fail_nth = b"cuDevicePrimaryCtxRetain", 2, 1
    with pytest.raises(CudaError, match="fewer workers"):
        iter(StreamingLeRobotDataset("d", root=ROOT, video_decode_device="cuda"))
    fake.fail_nth = 0


def test_memory_that_cannot_be_shared_is_known_before_a_batch_is_lost(as_worker, monkeypatch):
    monkeypatch.setattr(torch_bridge, "why_unshared", lambda ordinal: f"no IPC on {ordinal}")
    for use in (
        lambda: open_demo(video_decode_device="cuda:1")[0],
        lambda: next(iter(StreamingLeRobotDataset("d", root=ROOT, video_decode_device="cuda:1"))),
    ):
        with pytest.raises(
            CudaError, match=r"cannot send memory of cuda:1 .* no IPC on 1"
        ) as caught:
            use()
        assert "fewer workers" in str(caught.value)
    assert open_demo()[0] is not None


def test_single_frames_in_forked_workers(as_worker, monkeypatch):
    monkeypatch.setattr(device, "_start_method", lambda: "fork")
    monkeypatch.setattr("reelpool.video.workers_here", lambda: 2)
    cache = VideoDecoderCache(device="cuda")
    with pytest.raises(CudaError, match="multiprocessing_context='spawn'"):
        cache.get_decoder(video(ROOT, FRONT)).get_frames_at([0])
    monkeypatch.setattr(device, "_start_method", lambda: "spawn")
    frames = cache.get_decoder(video(ROOT, FRONT)).get_frames_at([0]).data
    assert fake_torch.taken and fake_torch.where(frames) is None  # sent, they are torch's own


def test_what_torch_says_of_sharing(monkeypatch):
    said = {"cuda:0": None, "cuda:1": RuntimeError("CUDA error: invalid argument\nCompile with")}

    class Storage:
        def __init__(self, name):
            self.name = name

        def untyped_storage(self):
            return self

        def _share_cuda_(self):
            if said[self.name] is not None:
                raise said[self.name]

    monkeypatch.undo()  # the stand-in of the function itself
    monkeypatch.setattr(torch, "empty", lambda n, device: Storage(device))
    assert torch_bridge.why_unshared(0) is None
    assert torch_bridge.why_unshared(1) == "CUDA error: invalid argument"


def test_cuda_means_the_parents_gpu(as_worker, monkeypatch):
    """torch.cuda.set_device(1) in the parent: its workers' current one is 0."""
    monkeypatch.setattr(torch_bridge, "initialized_device", lambda: 1)
    for make in (open_demo, lambda **o: StreamingLeRobotDataset("d", root=ROOT, **o)):
        parents = make(video_decode_device="cuda")
        theirs = pickle.loads(pickle.dumps(parents))
        assert device.item_ordinal(theirs._gpu, 2, theirs._gpu_here) == 1
        assert device.item_ordinal(theirs._gpu, 0, theirs._gpu_here) == 0  # no worker: its own
        fixed = pickle.loads(pickle.dumps(make(video_decode_device="cuda:0")))
        assert device.item_ordinal(fixed._gpu, 2, fixed._gpu_here) == 0


def test_workers_share_the_video_engines(as_worker, monkeypatch):
    """Each is told how many they are."""
    core, seen = engine.load_core(), []

    class Core:
        def __getattr__(self, name):
            return getattr(core, name)

        def Engine(self, *arguments):
            seen.append(arguments[-1])
            return core.Engine(*arguments)

    monkeypatch.setattr(engine, "load_core", Core)
    gpu = open_demo(video_decode_device="cuda")
    for workers in (0, 3):
        gpu._make_handle(workers, 0, 0, num_threads=0).close()
    assert [place and place[4] for place in seen] == [None, 1, None, 3]


def test_a_block_is_free_once_its_pictures_are_torchs(as_worker):
    gpu = open_demo(video_decode_device="cuda")
    kept = [gpu.__getitems__(range(first, first + 8)) for first in range(0, 40, 8)]
    assert gpu.stats()["arena_grown"] == 1 and len(kept) == 5
    gpu.close()


def test_items_that_users_collate(as_worker):
    """LeRobot's collate function stacks: of memory that is torch's own."""
    gpu, cpu = open_demo(video_decode_device="cuda"), open_demo()
    found = lerobot_like_collate(gpu.__getitems__(range(4)))
    check_same(found, lerobot_like_collate(cpu.__getitems__(range(4))))
