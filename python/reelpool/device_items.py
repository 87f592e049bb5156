"""Batches whose pictures lie in a GPU's memory and all else in the process's own.

What LeRobot's `video_decode_device` means: an item's numbers, strings and image columns stay where
they are. Two engines make a batch, one the pictures, the other the rest of the same rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .engine import EngineHandle, Layout

_REST = 8 << 20  # bytes of free blocks of columns


class _Part:
    """The pictures of a layout, or all else, as an engine is told of them."""

    def __init__(self, layout: Layout, pictures: bool) -> None:
        self._layout, self._pictures = layout, pictures
        self.paths = layout.paths if pictures else []
        self.index_bytes = layout.index_bytes
        self.substitute = layout.substitute and pictures

    def engine_arguments(self) -> tuple:
        """As `Layout.engine_arguments`."""
        *table, cameras, columns, pads, fields = self._layout.engine_arguments()
        n = len(cameras)
        if self._pictures:
            return (*table, cameras, [], [], fields[:n])
        return ([], *table[1:], [], columns, pads, fields[n:])


class ItemHandle(EngineHandle):
    """As `EngineHandle`; its batches are `SplitBatch`es. The counters are those of the pictures."""

    def __init__(self, layout: Layout, **options: Any) -> None:
        self._rest = EngineHandle(_Part(layout, False), num_threads=0, keep_bytes=_REST)  # type: ignore[arg-type]
        super().__init__(_Part(layout, True), **options)  # type: ignore[arg-type]

    def next(self, timeout_s: float) -> tuple[Any, int] | None:
        """The stream's next batch, as `EngineHandle.next`."""
        found = super().next(timeout_s)
        return None if found is None else (SplitBatch(found[0], self._rest), found[1])

    def get(self, rows: np.ndarray) -> SplitBatch:
        """A batch of given rows, beside the stream."""
        return SplitBatch(super().get(rows), self._rest)

    def close(self) -> None:
        """Stop the threads, as `EngineHandle.close`."""
        super().close()
        self._rest.close()


class SplitBatch:
    """A core batch of pictures, to which the rest of its rows is added."""

    def __init__(self, batch: Any, rest: EngineHandle) -> None:
        self._batch, self._rest = batch, rest

    @property
    def rows(self) -> np.ndarray:
        """Row numbers, int64 (n,), a copy; of substitutes the rows that are delivered."""
        return self._batch.rows

    @property
    def done(self) -> int:
        """As a core batch's."""
        return self._batch.done

    def substitutes(self) -> list[tuple[int, int, int, Exception]]:
        """As a core batch's."""
        return self._batch.substitutes()

    def arrays(self) -> list[Any]:
        """`DeviceArray`s of the pictures, NumPy arrays of the rest, in the order of the fields."""
        return [*self._batch.arrays(), *self._rest.get(self.rows).arrays()]
