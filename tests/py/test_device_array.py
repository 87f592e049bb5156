"""`DeviceArray`: how a batch in a GPU's memory leaves by DLPack, read here as a consumer does."""

import ctypes
import gc

import numpy as np
import pytest
from demo_sets import FRONT, array, open_demo
from fake_driver import fake_fixture  # noqa: F401
from reelpool import Loader, _core, device
from reelpool.errors import CudaError

CAPSULE = ctypes.pythonapi
CAPSULE.PyCapsule_GetName.restype = ctypes.c_char_p
CAPSULE.PyCapsule_GetName.argtypes = [ctypes.py_object]
CAPSULE.PyCapsule_GetPointer.restype = ctypes.c_void_p
CAPSULE.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
CAPSULE.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
NAMES = {False: (b"dltensor", b"used_dltensor"),
         True: (b"dltensor_versioned", b"used_dltensor_versioned")}  # fmt: skip
TYPES = {"uint8": (1, 8), "float32": (2, 32), "int64": (0, 64), "bool": (6, 8)}


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Legacy(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", DELETER), ("flags", ctypes.c_uint64), ("tensor", Tensor),
    ]  # fmt: skip


class Consumer:
    """Another library: it takes a capsule, reads from it, and lets go when it is told to."""

    def __init__(self, capsule):
        self.versioned = CAPSULE.PyCapsule_GetName(capsule) == NAMES[True][0]
        name, used = NAMES[self.versioned]
        self.used = used  # the capsule borrows the name
        self.address = CAPSULE.PyCapsule_GetPointer(capsule, name)
        assert CAPSULE.PyCapsule_SetName(capsule, used) == 0
        kind = Versioned if self.versioned else Legacy
        self.managed = kind.from_address(self.address)

    def numpy(self):
        t = self.managed.tensor
        shape = [t.shape[i] for i in range(t.ndim)]
        strides = [t.strides[i] * t.bits // 8 for i in range(t.ndim)]
        kind = {0: "i", 1: "u", 2: "f", 6: "b"}[t.code]
        dtype = np.dtype("?" if kind == "b" else f"{kind}{t.bits // 8}")
        length = max(1, int(np.prod(shape))) * dtype.itemsize
        memory = (ctypes.c_uint8 * length).from_address(t.data + t.byte_offset)
        return np.ndarray(shape, dtype, memory, 0, strides)

    def let_go(self):
        self.managed.deleter(self.address)


def first_batch(name="cuda:1", size=6, **options):
    dataset = open_demo(delta_timestamps={"action": [0.0, 0.1]}, **options)
    with Loader(dataset, size, device=name, output="dlpack", num_threads=1) as gpu:
        batch = next(iter(gpu))
    with Loader(dataset, size, num_threads=1) as cpu:
        return batch, next(iter(cpu))


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 3), (2, 0)])
def test_what_a_capsule_says(version):
    batch, expected = first_batch()
    for key, value in batch.items():
        if isinstance(value, list):
            continue
        assert value.__dlpack_device__() == (2, 1)
        consumer = Consumer(value.__dlpack__(stream=1, max_version=version))
        assert consumer.versioned is (version is not None and version >= (1, 0))
        t = consumer.managed.tensor
        assert (t.device_type, t.device_id, t.lanes) == (2, 1, 1)
        assert (t.code, t.bits) == TYPES[value.dtype]
        assert t.data % 64 == 0 and t.byte_offset == 0
        if consumer.versioned:
            assert (consumer.managed.major, consumer.managed.flags) == (1, 0)  # writable
        found = consumer.numpy()
        assert found.shape == value.shape and np.array_equal(found, array(expected[key])), key
        consumer.let_go()


def test_memory_is_held_by_who_took_it_and_shared():
    batch, expected = first_batch()
    consumers = [Consumer(batch[FRONT].__dlpack__(stream=s)) for s in (None, 2, 7777, -1)]
    used = batch[FRONT]
    consumers[0].numpy()[0, 0, 0] = 77
    assert (used.numpy()[0, 0, 0] == 77).all()  # one memory
    consumers[0].numpy()[:] = array(expected[FRONT])
    del batch, used
    gc.collect()
    for consumer in consumers:
        assert np.array_equal(consumer.numpy(), array(expected[FRONT]))
        consumer.let_go()


def test_capsules_that_nobody_takes():
    batch, _ = first_batch()
    for version in (None, (1, 0)):
        for _ in range(50):
            batch["index"].__dlpack__(max_version=version)


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"stream": 0}, ValueError, "could be either"),
        ({"stream": -2}, ValueError, "stream=-2"),
        ({"stream": "1"}, TypeError, "stream must be an integer"),
        ({"stream": 1 << 80}, OverflowError, "too (big|large)|out of range"),
        ({"max_version": 1}, TypeError, "max_version"),
        ({"max_version": ("a", 0)}, TypeError, "int"),
        ({"copy": True}, BufferError, "copy=True"),
        ({"dl_device": (1, 0)}, BufferError, "lies on"),
        ({"dl_device": (2, 0)}, BufferError, "lies on"),
        ({"dl_device": 2}, TypeError, "dl_device"),
        ({"device": 2}, TypeError, "keyword"),
    ],
)
def test_what_is_refused(arguments, error, text):
    batch, _ = first_batch()
    with pytest.raises(error, match=text):
        batch[FRONT].__dlpack__(**arguments)
    Consumer(batch[FRONT].__dlpack__(copy=False, dl_device=(2, 1))).let_go()
    with pytest.raises(TypeError):
        batch[FRONT].__dlpack__(1)
    with pytest.raises(TypeError):
        _core.DeviceArray()


def test_a_driver_that_refuses_is_told_of(fake):
    batch, _ = first_batch()
    for name in (b"cuEventCreate", b"cuStreamWaitEvent"):
        fake.fail_name, fake.fail_nth, fake.fail_code, fake.calls = name, 1, 1, 0
        with pytest.raises(CudaError, match="cuda:1"):
            batch[FRONT].__dlpack__(stream=4242)
        fake.fail_nth = 0
    fake.fail_name, fake.fail_nth, fake.calls = b"cuMemcpyDtoHAsync", 1, 0
    with pytest.raises(CudaError, match="copying from the GPU"):
        batch[FRONT].numpy()
    fake.fail_nth = 0
    assert batch[FRONT].numpy().any()
    fake.fail_name = None


def test_how_it_looks():
    batch, _ = first_batch("cuda:0", 4)
    value = batch["observation.state"]
    assert repr(value) == "DeviceArray(shape=(4, 3), dtype=float32, device='cuda:0')"
    assert (len(value), value.shape, value.dtype, value.device) == (4, (4, 3), "float32", "cuda:0")
    assert value.nbytes == 48 and batch["action_is_pad"].dtype == "bool"


# -- torch --


@pytest.fixture(name="torch_of_test")
def torch_fixture(monkeypatch):
    """torch as if it were built with CUDA: its tensors lie in the process's own memory."""
    torch = pytest.importorskip("torch")
    from reelpool import torch_bridge

    asked = []
    monkeypatch.setattr(torch_bridge, "lacks_cuda", lambda: None)
    monkeypatch.setattr(torch_bridge, "current_device", lambda: 1)
    monkeypatch.setattr(torch_bridge, "from_device", lambda a: torch.from_numpy(a.numpy()))

    def to_device(values, ordinal):
        asked.append(ordinal)
        return torch.from_numpy(values)

    monkeypatch.setattr(torch_bridge, "to_device", to_device)
    return asked


def test_tensors_and_transforms(torch_of_test, fake):
    import torch

    def transform(picture):
        assert picture.shape == (3, 240, 320) or picture.shape == (3, 144, 192)
        return picture * torch.rand(1)

    dataset = open_demo(return_uint8=False, on_corrupt="substitute", image_transforms=transform)
    options = {"shuffle": True, "num_threads": 1}
    with Loader(dataset, 8, device="cuda", **options) as gpu, Loader(dataset, 8, **options) as cpu:
        for found, wanted, _ in zip(gpu, cpu, range(4)):
            assert list(found) == list(wanted)
            for key, value in wanted.items():
                same = torch.equal if isinstance(value, torch.Tensor) else list.__eq__
                assert same(found[key], value), key
        assert gpu._device == 1  # torch's current one
    assert set(torch_of_test) == {1}  # is_substitute
    with pytest.raises(ValueError, match="output='torch'"):
        Loader(dataset, 8, device="cuda", output="dlpack")
    fresh = open_demo()
    with Loader(fresh, 8, device="cuda", output="dlpack") as gpu:
        fresh.set_image_transforms(transform)
        with pytest.raises(ValueError, match="output='torch'"):
            next(iter(gpu))


def test_torchs_current_gpu_is_asked_after_the_driver(torch_of_test, monkeypatch):
    monkeypatch.setattr(device, "DRIVER", "/nowhere/libcuda.so.1")
    with Loader(open_demo(), 8, device="cuda") as gpu, pytest.raises(CudaError, match="/nowhere"):
        iter(gpu)
