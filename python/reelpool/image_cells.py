"""Image-dtype cells: PNG, JPEG or TIFF bytes, or a path below the root, to arrays. Needs Pillow."""

from __future__ import annotations

import bisect
import io
import threading
import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import (
    DecodeError,
    FormatError,
    MissingExtraError,
    NotFoundError,
    UnsupportedMediaError,
    make_error,
)
from .roots import LocalRoot

if TYPE_CHECKING:
    import pyarrow as pa

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
    cell: Any,
    root: LocalRoot,
    *,
    camera: str | None = None,
    episode: int | None = None,
    frame: int | None = None,
) -> np.ndarray:
    """The picture of one cell, channels first.

    RGB, RGBA, L and P (palette indices): float32 u8/255 with 3, 4, 1, 1 channels. 16-bit grey and
    float: float32 (1, H, W) in native units; 32-bit integer: int32 (1, H, W). An EXIF orientation
    is applied. Raises DecodeError for damaged bytes, UnsupportedMediaError for another mode,
    FormatError for an empty cell or a path that leaves the root, NotFoundError for a missing file,
    MissingExtraError without Pillow.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise make_error(
            MissingExtraError, "image columns need Pillow\n  Run: pip install pillow"
        ) from None
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
    except (
        OSError,
        ValueError,
        SyntaxError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise make_error(DecodeError, f"image: {error}, {place}", **where) from error
    mode = picture.mode
    if mode in _CHANNELS:
        pixels = np.asarray(picture, dtype=np.uint8).reshape(
            picture.height, picture.width, _CHANNELS[mode]
        )
        return np.ascontiguousarray(pixels.transpose(2, 0, 1)).astype(np.float32) / np.float32(255)
    if mode in ("I;16", "I;16B", "I;16L", "F"):
        return np.asarray(picture).astype(np.float32)[None]
    if mode == "I":
        return np.asarray(picture).astype(np.int32)[None]
    what = f"image: Pillow's mode {mode!r} is not read, {place}"
    raise make_error(UnsupportedMediaError, what, **where)


def scale_depth(picture: np.ndarray, stored_unit: str | None, output_unit: str) -> np.ndarray:
    """A depth picture from its recorded unit to `output_unit` ("m" or "mm"); as it is without a
    recorded one.
    """
    if stored_unit is None or stored_unit == output_unit:
        return picture
    factor = np.float32(1000)
    return picture * factor if stored_unit == "m" else picture / factor


class RowGroupCache:
    """Image columns of row groups, read when a cell is wanted; the latest `limit` bytes stay.

    Any thread; no file stays open.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._groups: OrderedDict[tuple[str, int, str], pa.ChunkedArray] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str, rel: str, group: int, column: str) -> pa.ChunkedArray:
        """One column of one row group of a file. FormatError, NotFoundError naming `rel`."""
        key = (path, group, column)
        with self._lock:
            if key in self._groups:
                self._groups.move_to_end(key)
                return self._groups[key]
        values = self._read(path, rel, group, column)
        with self._lock:
            if key not in self._groups:
                self._groups[key] = values
                self.held += values.nbytes
                while self.held > self.limit and len(self._groups) > 1:
                    self.held -= self._groups.popitem(last=False)[1].nbytes
        return values

    @staticmethod
    def _read(path: str, rel: str, group: int, column: str) -> pa.ChunkedArray:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(path) as file:
                return file.read_row_group(group, columns=[column], use_threads=False).column(
                    column
                )
        except FileNotFoundError:
            raise make_error(NotFoundError, f"{rel} is gone", file=rel) from None
        except (pa.ArrowException, OSError, KeyError, IndexError) as error:
            what = f"{rel}: column {column!r} cannot be read: {error}"
            raise make_error(FormatError, what, file=rel) from error


class ImageColumn:
    """The image cells of a table's rows; `cell(row)` gives {"bytes", "path"} as stored."""

    dtype = "image"

    def __init__(self, name: str, cache: RowGroupCache) -> None:
        self.name = name
        self._cache = cache
        self._parts: list[tuple[str, str, int, int]] = []  # path, rel, row group, first row there
        self._ends: list[int] = []

    def add(self, path: str, rel: str, group: int, first: int, rows: int) -> None:
        """The next `rows` rows of the table are rows first, first + 1, ... of this row group."""
        self._parts.append((path, rel, group, first))
        self._ends.append(len(self) + rows)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def cell(self, row: int) -> Any:
        """The stored cell of table row `row` (0 <= row < len). IndexError if there is none."""
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        place = bisect.bisect_right(self._ends, row)
        path, rel, group, first = self._parts[place]
        before = self._ends[place - 1] if place else 0
        return self._cache.get(path, rel, group, self.name)[first + row - before].as_py()
