"""Arrow numbers as NumPy arrays, without the pandas that pyarrow's own conversion loads (45 MB)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def flat_numbers(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """The values of a column of integers, floats or bools that holds no null, (n,).

    A view of Arrow's memory, read-only, where that is possible.
    """
    chunks = getattr(column, "chunks", None)
    if chunks is None:
        return _values(column)
    parts = [_values(chunk) for chunk in chunks]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return np.empty(0, _dtype(column.type))
    return np.concatenate(parts)


def _dtype(kind: pa.DataType) -> np.dtype:
    return np.dtype(kind.to_pandas_dtype())


def _values(array: pa.Array) -> np.ndarray:
    dtype, count, offset = _dtype(array.type), len(array), array.offset
    data = array.buffers()[1]
    if count == 0 or data is None:
        return np.empty(0, dtype)
    if dtype.kind == "b":  # a bit each
        first = offset // 8
        packed = np.frombuffer(data, np.uint8, (offset + count + 7) // 8 - first, first)
        bits = np.unpackbits(packed, bitorder="little")
        return bits[offset % 8 : offset % 8 + count].view(bool)
    return np.frombuffer(data, dtype, count, offset * dtype.itemsize)


def list_items(lists: pa.Array) -> pa.Array:
    """The items of all lists of a list column that holds no null list, one behind the other.

    As `flatten()`, but without the compute module that it loads (9 MB).
    """
    width = getattr(lists.type, "list_size", None)
    if width is not None:
        return lists.values.slice(lists.offset * width, len(lists) * width)
    ends = flat_numbers(lists.offsets)
    if len(lists) == 0:
        return lists.values.slice(0, 0)
    return lists.values.slice(int(ends[0]), int(ends[-1] - ends[0]))


def release_arrow_memory() -> None:
    """Give the memory that Arrow keeps after reading (15 MB and more) back to the system."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
