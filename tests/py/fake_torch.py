"""A torch with CUDA for tests: its tensors of a GPU lie in the fake driver's memory.

torch here is built without CUDA, and its part of the way is small: it takes a DLPack capsule. So
the capsule is told that its memory, which is the process's own, lies there, and torch takes it: a
tensor over the memory that the driver was asked for, which gives it back when it dies.
"""

import ctypes

import fake_driver
import pytest
import torch
from reelpool import device, torch_bridge

_POINTER = ctypes.pythonapi.PyCapsule_GetPointer
_POINTER.restype = ctypes.c_void_p
_POINTER.argtypes = [ctypes.py_object, ctypes.c_char_p]

taken = []  # (address, end, name of the GPU) of what lies on one


def from_device(array):
    """As `torch_bridge.from_device`."""
    capsule = array.__dlpack__(stream=1)
    where = _POINTER(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)  # DLTensor's DLDevice
    place = (ctypes.c_int32 * 2).from_address(where)
    assert place[0] == 2
    place[0], place[1] = 1, 0
    tensor = torch.utils.dlpack.from_dlpack(capsule)
    taken.append((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, array.device))
    return tensor


def where(value):
    """The GPU that a tensor was put on; None: none."""
    found = [name for first, end, name in reversed(taken) if first <= value.data_ptr() < end]
    return found[0] if found else None


REPLACED = {
    "lacks_cuda": lambda: None,
    "current_device": lambda: 0,
    "initialized_device": lambda: None,
    "from_device": from_device,
    "why_unshared": lambda ordinal: None,
}


def install(library):
    """The same in another process, for good."""
    device.DRIVER, device.KERNEL = library, fake_driver.KERNEL
    for name, value in REPLACED.items():
        setattr(torch_bridge, name, value)


@pytest.fixture(name="cuda_torch")
def cuda_torch_fixture(monkeypatch, fake):
    """The stand-in in this process; the driver's state."""
    for name, value in REPLACED.items():
        monkeypatch.setattr(torch_bridge, name, value)
    taken.clear()
    return fake
