"""Section `gpu` of `reelpool doctor`: what this build and this machine have of CUDA."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator

from ..errors import CudaError

OLDEST = (7, 5)  # compute capability that the kernel is made for


def examine() -> Iterator[tuple[str, str, str | None]]:
    """Findings (status, text, fix). A machine without a GPU is in order."""
    try:
        core = importlib.import_module("reelpool._core")
    except ImportError as error:
        yield "FAIL", f"unknown: {error}", "see section native"
        return
    built = core.describe()["cuda"]
    if built:
        yield "ok", f"built with CUDA: {built}", None
    else:
        yield "ok", "built without CUDA (no nvcc, or REELPOOL_CUDA=0)", None
    try:
        version, devices = core.cuda_devices()
    except CudaError as error:
        text, _, _ = str(error).partition("\n")
        if os.path.exists("/dev/nvidiactl"):
            yield "WARN", f"a GPU is here, but cannot be used: {text}", "run: nvidia-smi"
        else:
            yield "ok", f"no GPU is used: {text}", None
        return
    yield "ok", f"the NVIDIA driver speaks CUDA {version // 1000}.{version % 1000 // 10}", None
    for ordinal, (name, capability, processors, size) in enumerate(devices):
        text = (
            f"cuda:{ordinal} {name}, compute capability {'.'.join(map(str, capability))}, "
            f"{processors} multiprocessors, {size / 2**30:.1f} GiB"
        )
        if capability < OLDEST:
            yield "WARN", f"{text}: too old, 7.5 is needed", "use device='cpu'"
        else:
            yield "ok", text, None
    yield "ok", "every codec is decoded on the CPU; Loader(device='cuda') converts on the GPU", None
    yield "ok", "which codecs these GPUs could decode is unknown: nothing has tried", None
