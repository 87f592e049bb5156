"""GPUs: what `device="cuda"` means, what batches there are made of, and what they need."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from .errors import MissingExtraError

DRIVER: str | None = None  # libcuda.so.1; tests load another
KERNEL: bytes | None = None  # this build's; likewise
CURRENT = -1  # the GPU that torch has as its current one
STATS = ("device_bytes", "pinned_bytes", "uploaded_bytes", "converted_on_gpu")


def parse_device(device: Any) -> int | None:
    """Number of the GPU that "cuda:N" names, CURRENT for "cuda", None for "cpu". ValueError."""
    text = str(device)  # torch.device, too
    found = re.fullmatch(r"cuda(?::(0|[1-9]\d{0,3}))?", text)
    if text != "cpu" and found is None:
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', not {device!r}")
    if found is None:
        return None
    return CURRENT if found[1] is None else int(found[1])


def refuse_device(name: str, device: Any) -> None:
    """ValueError unless a dataset's or decoder's `device` is the CPU."""
    if parse_device(device) is not None:
        raise ValueError(
            f"{name}={str(device)!r}: single items and decoders deliver on 'cpu' only; batches in "
            "a GPU's memory come from reelpool.Loader(dataset, batch_size, device='cuda')"
        )


def check_output(output: str | None) -> bool:
    """Whether batches on a GPU hold tensors of torch, else what carries `__dlpack__`. ValueError;
    MissingExtraError where torch is wanted and none that knows CUDA is there.
    """
    if output not in (None, "torch", "numpy", "dlpack"):
        raise ValueError(f"output must be 'torch', 'numpy', 'dlpack' or None, not {output!r}")
    if output == "dlpack":
        return False
    if output == "numpy":
        raise ValueError(
            "output='numpy': NumPy's arrays do not lie in a GPU's memory. Use output='torch' or "
            "'dlpack'"
        )
    way_out = "or output='dlpack' for arrays that other libraries take (from_dlpack)"
    if find_spec("torch") is None:
        raise MissingExtraError(
            f"device='cuda' needs torch. Run: pip install 'reelpool[torch]', {way_out}"
        )
    from .torch_bridge import lacks_cuda

    version = lacks_cuda()
    if version is not None:
        raise MissingExtraError(
            f"device='cuda': this torch, {version}, is built without CUDA. Install one that is "
            f"built with it, {way_out}"
        )
    return True


def check_datasets(datasets: Sequence[Any], layout: Any, use_torch: bool) -> None:
    """ValueError for what batches on a GPU cannot have."""
    if not use_torch:
        check_transforms(datasets)
    if layout.substitute and any(entry.source == "image" for entry in layout.entries):
        raise ValueError(
            "on_corrupt='substitute' with image columns puts samples together on the CPU: "
            "device='cpu', or leave those cameras out (cameras=)"
        )


def check_transforms(datasets: Sequence[Any]) -> None:
    """ValueError for transforms of pictures that are no tensors."""
    if any(dataset.image_transforms is not None for dataset in datasets):
        raise ValueError("image_transforms on a GPU work on tensors: output='torch'")


def ordinal_of(device: int, use_torch: bool) -> int:
    """The GPU's number. CURRENT is torch's current one, without torch the first. CudaError where
    there is no driver.
    """
    if device != CURRENT:
        return device
    if not use_torch:
        return 0
    from .engine import load_core
    from .torch_bridge import current_device

    load_core().cuda_devices(DRIVER)  # it says better what is wrong
    return current_device()


def staged_bytes(layout: Any, samples: int) -> int:
    """Bytes of a batch on its way to the GPU: planes of pictures, all else as it will be."""
    from .engine import batch_bytes, picture_size

    n = len(layout.cameras)
    total = batch_bytes(layout.fields[n:], samples)
    for (kind, shape), (key, *_, resized) in zip(layout.fields, layout.cameras):
        *steps, channels, height, width = shape
        sizes = [(height, width)]
        if resized:
            parts = getattr(layout, "parts", (layout,))
            sizes = [picture_size(part.meta.features[key], key) for part in parts]
        pixels = max(h * w for h, w in sizes)
        planes = channels == 3 and all(h % 2 == w % 2 == 0 for h, w in sizes)
        element = 4 if kind == "f" else 2 if kind == "H" else 1
        one = pixels * 3 // 2 if planes else channels * height * width * element
        total += samples * (steps[0] if steps else 1) * ((one + 63) // 64 * 64)
    return total
