"""Image-dtype cells: PNG, JPEG or TIFF bytes, or a path below the root, to arrays. Needs Pillow."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np

from .errors import DecodeError, FormatError, MissingExtraError, UnsupportedMediaError, make_error
from .roots import LocalRoot

_ORIENTATION = 0x0112  # EXIF tag
_CHANNELS = {"RGB": 3, "RGBA": 4, "L": 1, "P": 1}


def _cell_bytes(cell: Any, root: LocalRoot, place: str) -> bytes:
    if isinstance(cell, (bytes, bytearray)):
        return bytes(cell)
    if isinstance(cell, str):
        return root.read_bytes(cell)
    if isinstance(cell, dict):
        if cell.get("bytes") is not None:
            return cell["bytes"]
        if cell.get("path"):
            return root.read_bytes(cell["path"])
    raise make_error(FormatError, f"{place}: the image cell has neither bytes nor a path")


def decode_image_cell(
    cell: Any, root: LocalRoot, *, camera: str | None = None, episode: int | None = None, frame: int | None = None
) -> np.ndarray:
    """The picture of one cell, channels first.

    RGB, RGBA, L and P (palette indices): float32 u8/255 with 3, 4, 1, 1 channels. 16-bit grey and float:
    float32 (1, H, W) in native units; 32-bit integer: int32 (1, H, W). An EXIF orientation is applied.
    Raises DecodeError for damaged bytes, UnsupportedMediaError for another mode, FormatError for an empty
    cell or a path that leaves the root, NotFoundError for a missing file, MissingExtraError without Pillow.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise make_error(MissingExtraError, "image columns need Pillow\n  Run: pip install pillow") from None
    where = {"camera": camera, "episode": episode, "frame": frame}
    place = f"camera {camera}, episode {episode}, frame {frame}"
    data = _cell_bytes(cell, root, place)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            picture = Image.open(io.BytesIO(data))
            picture.load()
            if picture.getexif().get(_ORIENTATION) is not None:
                picture = ImageOps.exif_transpose(picture)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise make_error(DecodeError, f"image: {error}, {place}", **where) from error
    mode = picture.mode
    if mode in _CHANNELS:
        pixels = np.asarray(picture, dtype=np.uint8).reshape(picture.height, picture.width, _CHANNELS[mode])
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype(np.float32) / np.float32(255)
    if mode in ("I;16", "I;16B", "I;16L", "F"):
        return np.asarray(picture).astype(np.float32)[None]
    if mode == "I":
        return np.asarray(picture).astype(np.int32)[None]
    what = f"image: Pillow's mode {mode!r} is not read, {place}"
    raise make_error(UnsupportedMediaError, what, **where)


def scale_depth(picture: np.ndarray, stored_unit: str | None, output_unit: str) -> np.ndarray:
    """A depth picture from its recorded unit to `output_unit` ("m" or "mm"); as it is without a recorded one."""
    if stored_unit is None or stored_unit == output_unit:
        return picture
    factor = np.float32(1000)
    return picture * factor if stored_unit == "m" else picture / factor
