"""GPUs: what `device="cuda"` means, what batches there are made of, and what they need."""

from __future__ import annotations

import logging
import multiprocessing
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

from .errors import CudaError, MissingExtraError, advise, make_error

logger = logging.getLogger("reelpool")

DRIVER: str | None = None  # libcuda.so.1; tests load another
KERNEL: bytes | None = None  # this build's; likewise
CURRENT = -1  # the GPU that torch has as its current one
STATS = ("device_bytes", "pinned_bytes", "uploaded_bytes", "converted_on_gpu", "decoded_on_gpu")


def parse_device(device: Any) -> int | None:
    """Number of the GPU that "cuda:N" names, CURRENT for "cuda", None for "cpu". ValueError."""
    text = str(device)  # torch.device, too
    found = re.fullmatch(r"cuda(?::(0|[1-9]\d{0,3}))?", text)
    if text != "cpu" and found is None:
        raise ValueError(f"device must be 'cpu', 'cuda' or 'cuda:N', not {device!r}")
    if found is None:
        return None
    return CURRENT if found[1] is None else int(found[1])


def same_device(one: int | None, other: int | None) -> bool:
    """Whether both can mean one GPU: CURRENT may be any."""
    return one == other or (None not in (one, other) and CURRENT in (one, other))


_DLPACK = "or output='dlpack' for arrays that other libraries take (from_dlpack)"
_LOADER = "or use reelpool.Loader(dataset, batch_size, device='cuda', output='dlpack')"


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
    _require_torch("device='cuda'", _DLPACK)
    return True


def _require_torch(what: str, way_out: str) -> None:
    if find_spec("torch") is None:
        raise MissingExtraError(
            f"{what} needs torch. Run: pip install 'reelpool[torch]', {way_out}"
        )
    from .torch_bridge import lacks_cuda

    version = lacks_cuda()
    if version is not None:
        raise MissingExtraError(
            f"{what}: this torch, {version}, is built without CUDA. Install one that is built with "
            f"it, {way_out}"
        )


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


# -- items: dataset[i], and what a DataLoader makes of it --


def check_video_device(device: Any, name: str = "video_decode_device") -> int | None:
    """As `parse_device`, of an argument for single frames and items. ValueError; MissingExtraError
    where no torch that knows CUDA is there.
    """
    try:
        number = parse_device(device)
    except ValueError as error:
        raise ValueError(f"{name.removesuffix('device')}{error}") from None
    if number is not None:
        _require_torch(f"{name}={str(device)!r}", _LOADER)
    return number


def check_cameras(
    videos: Sequence[str], images: Sequence[str], substitute: bool, name: str
) -> None:
    """ValueError for what items with pictures on a GPU cannot have; a word where they have none."""
    if videos and images and substitute:
        raise ValueError(
            "on_corrupt='substitute' with image columns puts samples together on the CPU: "
            "video_decode_device='cpu', or leave those cameras out (cameras=)"
        )
    if not videos:
        logger.info("%s: no effect of video_decode_device: there is no video camera", name)


def check_loader(datasets: Sequence[Any], device: Any) -> int | None:
    """As `parse_device`, of a Loader's `device`. ValueError where its datasets want another."""
    number = parse_device(device)
    for dataset in datasets:
        wanted = getattr(dataset, "_gpu", None)
        if wanted is not None and not same_device(wanted, number):
            raise ValueError(
                f"{dataset.repo_id} has video_decode_device={dataset.video_decode_device!r} and "
                f"this Loader device={str(device)!r}: give Loader the dataset's, or open the "
                "dataset with 'cpu'"
            )
    return number


def current_if_any() -> int | None:
    """Torch's current GPU, if torch has begun with CUDA in this process."""
    from .torch_bridge import initialized_device

    return initialized_device()


def item_ordinal(device: int | None, workers: int, parents: int | None = None) -> int:
    """The GPU that a dataset's pictures go to. parents: what was torch's current one in the process
    that a DataLoader's worker works for. CudaError: a forked worker, no driver, no way to share.
    """
    assert device is not None
    if workers > 0 and _start_method() == "fork":
        raise make_error(
            CudaError,
            "pictures on a GPU: this DataLoader worker is a forked process, in which CUDA does not "
            "work\n"
            "  Pass multiprocessing_context='spawn' to the DataLoader, num_workers=0, or use "
            "reelpool.Loader(dataset, batch_size, device='cuda')",
        )
    if device == CURRENT and workers > 0 and parents is not None:
        device = parents
    ordinal = ordinal_of(device, True)
    if workers > 0:
        _check_sharing(ordinal)
    return ordinal


def _check_sharing(ordinal: int) -> None:
    from .engine import load_core
    from .torch_bridge import why_unshared

    load_core().cuda_devices(DRIVER)  # it says better what is wrong
    said = why_unshared(ordinal)
    if said is not None:
        raise make_error(
            CudaError,
            f"a DataLoader worker cannot send memory of cuda:{ordinal} to its parent: {said}\n"
            f"  {_FEWER}",
        )


def _start_method() -> str | None:
    """How this process was started, if by multiprocessing, which sets it in every child."""
    return multiprocessing.get_start_method(allow_none=True)


_FEWER = (
    "Give the DataLoader fewer workers (each has a CUDA context and sessions of its own), "
    "num_workers=0, or use reelpool.Loader(dataset, batch_size, device='cuda'), which needs none"
)


def advise_worker(error: CudaError) -> None:
    """Say in an error of a DataLoader worker what helps there."""
    if "num_workers=0" not in str(error):
        advise(error, _FEWER)


def item_wrapper(in_worker: bool) -> Callable[[Any], Any]:
    """What makes an item's tensors of the core's arrays, on a GPU or not."""
    import numpy as np

    from . import torch_bridge

    def wrap(array: Any) -> Any:
        if isinstance(array, np.ndarray):
            return torch_bridge.from_numpy(array)
        tensor = torch_bridge.from_device(array)
        return torch_bridge.own_copy(tensor) if in_worker else tensor

    return wrap


PAGES = 1 << 16  # what a block may have beyond its batch


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
