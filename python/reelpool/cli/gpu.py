"""Section `gpu` of `reelpool doctor`: what this build and this machine have of CUDA."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import CudaError, ReelpoolError

OLDEST = (7, 5)  # compute capability that the kernel is made for
CODECS = ("h264", "hevc", "vp9", "av1")  # that NVDEC is asked for
CLIPS = Path(__file__).resolve().parent.parent / "_demo" / "clips"


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
            yield from _decoders(core, ordinal)
    yield "ok", "Loader(device='cuda') decodes as said above, and converts on the GPU", None


def _decoders(core: Any, ordinal: int) -> Iterator[tuple[str, str, str | None]]:
    """What the GPU's video engine decodes, codec by codec, tried on the clips of the demo."""
    clips = tuple(str(CLIPS / f"{codec}.mp4") for codec in CODECS)
    try:
        caps = core.nvdec_caps(ordinal)
        tried = core.nvdec_probe(clips, ordinal)
    except ReelpoolError as error:
        yield "ok", f"cuda:{ordinal} decodes no video: {str(error).partition(chr(10))[0]}", None
        return
    for codec, width, height, good, why in tried:
        what, path = f"cuda:{ordinal} {codec}", "NVDEC" if good else "on the CPU"
        if caps[codec] is not None:
            engines, least, most = caps[codec]
            what += f", {engines} engines, {least[0]}x{least[1]} to {most[0]}x{most[1]}"
            if not good and (width < least[0] or height < least[1]):
                path, why = "NVDEC", f"not tried, the clip at hand is {width}x{height}"
        yield "ok", f"{what}: {path}; {why}", None
