"""From a dataset's metadata and table to the C engine, and from its batches to dicts.

`Layout` says what an item holds and where it comes from; `EngineHandle` owns one `_core.Engine` per
process, made at first use: construction, pickling and forking start nothing.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import device as gpu
from . import env
from .depth import depth_table
from .device_notices import tell
from .engine_paths import (
    FETCH_COUNTERS,
    RemotePath,
    client_counters,
    engine_paths,
    fetch_threads,
)
from .errors import FormatError, MissingExtraError, NotFoundError, StorageError, make_error
from .live import LiveLine

if TYPE_CHECKING:
    from .metadata import LeRobotDatasetMetadata
    from .mixture_layout import MixtureLayout
    from .tables import Table

U8, F32, U16 = 0, 1, 2  # enum rp_pixel_type
_KIND = {np.dtype(np.float32): "f", np.dtype(np.int64): "q", np.dtype(bool): "?"}

FRAME_CACHE_BYTES = 16 << 20
INDEX_BYTES = 64 << 20  # at most
SAMPLE_BYTES = 48  # of an index, per picture: a file without any regularity
DECODERS_PER_THREAD = 8
TIMEOUT_S = 120.0
MAX_THREADS = 1024
MAX_PREFETCH = 1024  # batches


def load_core() -> Any:
    """The extension module, with the CPU tier of REELPOOL_CPU. ImportError says what to do."""
    try:
        from . import _core
    except ImportError as error:
        raise ImportError(
            f"reelpool's extension module does not load: {error}\n"
            "  Run: pip install --force-reinstall --no-binary reelpool reelpool"
        ) from error
    tier = env.cpu_tier()
    if tier is not None:
        _core.limit_cpu(tier)
    return _core


@dataclasses.dataclass(frozen=True)
class Entry:
    """One key of an item: `source` says what serves it, `at` which field of the batch it is."""

    key: str
    source: str  # "field", "image", "cells", "task"
    at: int = -1
    deltas: tuple[int, ...] | None = None


def picture_size(feature: dict, key: str) -> tuple[int, int]:
    """(height, width) that info.json declares for a video feature. FormatError if it does not."""
    shape = tuple(feature["shape"] or ())
    names = feature.get("names") or ()
    if len(shape) == 3:
        if isinstance(names, (list, tuple)) and names and str(names[0]).startswith("channel"):
            return int(shape[1]), int(shape[2])
        if shape[2] in (1, 3, 4):
            return int(shape[0]), int(shape[1])
        if shape[0] in (1, 3, 4):
            return int(shape[1]), int(shape[2])
    what = f"features[{key!r}]: shape {shape} is no picture's"
    raise make_error(FormatError, what, file="meta/info.json", camera=key)


@dataclasses.dataclass(frozen=True)
class Options:
    """What a dataset's user chose about its items."""

    cameras: tuple[str, ...]  # video cameras to deliver
    return_uint8: bool
    depth_unit: str
    resize: dict[str, tuple[int, int]]
    tolerance_s: float
    deltas: dict[str, tuple[int, ...]]  # rows, by key, in the order given
    skipped: frozenset[str]  # image-dtype cameras not to deliver
    substitute: bool = False  # a good sample takes the place of one that cannot be decoded


class Layout:
    """Keys of an item in order, and the engine arguments that serve them."""

    def __init__(self, meta: LeRobotDatasetMetadata, table: Table, options: Options) -> None:
        self.meta, self.table, self.options = meta, table, options
        self.substitute = options.substitute
        self.entries: list[Entry] = []
        self.cameras: list[tuple] = []
        self.columns: list[tuple] = []
        self.pads: list[np.ndarray] = []
        self.fields: list[tuple[str, tuple[int, ...]]] = []
        self.paths: list[bytes | RemotePath] = []
        self._now = np.zeros(1, np.int64)
        self._add_cameras()
        self._add_columns()
        for key in options.deltas:
            self._field(f"{key}_is_pad", "?", (len(options.deltas[key]),))
            self.pads.append(np.array(options.deltas[key], np.int64))
        self.entries.append(Entry("task", "task"))

    def _field(self, key: str, kind: str, shape: tuple[int, ...]) -> None:
        self.entries.append(Entry(key, "field", len(self.fields)))
        self.fields.append((kind, shape))

    def _add_cameras(self) -> None:
        meta, options = self.meta, self.options
        columns, chosen = meta._columns, self.table.episodes
        used: dict[int, int] = {}
        for key in options.cameras:
            depth = key in meta.depth_keys
            declared = picture_size(meta.features[key], key)
            size = options.resize.get(key, declared)
            deltas = options.deltas.get(key)
            window = self._now if deltas is None else np.array(deltas, np.int64)
            video = columns.video[key]
            for file_id in np.unique(video.file_id[chosen]).tolist():
                used.setdefault(file_id, len(used))
            numbers = np.array([used[i] for i in video.file_id[chosen].tolist()], np.int32)
            kind, channels = ("f", 1) if depth else ("B" if options.return_uint8 else "f", 3)
            table = None
            if depth:
                info = meta.features[key].get("info")
                table = depth_table(info, options.depth_unit, key)
            self.cameras.append(
                (key, *size, channels, U8 if kind == "B" else F32, window, numbers,
                 np.ascontiguousarray(video.from_timestamp[chosen], np.float64), table,
                 key in options.resize)
            )  # fmt: skip
            shape = (channels, *size)
            self._field(key, kind, shape if len(window) == 1 else (len(window), *shape))
        self.paths = [self._path(columns.video_files[i]) for i in used]

    def _path(self, rel: str) -> bytes | RemotePath:
        try:
            found = self.meta._files.video(rel)
            if isinstance(found, str):
                return os.fsencode(found)
            return RemotePath(
                os.fsencode(str(self.meta._files.path / rel)), found, self.meta._files
            )
        except (NotFoundError, StorageError):
            pass  # reported at the sample that needs it
        except FormatError:
            if not (self.meta._files.path / rel).is_dir():  # of no harm: it cannot be read
                raise
        return os.fsencode(str(self.meta._files.path / rel))

    def _add_columns(self) -> None:
        table, options = self.table, self.options
        for key in table.keys:
            deltas = options.deltas.get(key)
            if key in table.columns:
                array = table.columns[key]
                window = self._now if deltas is None else np.array(deltas, np.int64)
                shape = array.shape[1:]
                self._field(
                    key, _KIND[array.dtype], shape if deltas is None else (len(deltas), *shape)
                )
                width = array.itemsize * int(np.prod(shape, dtype=np.int64))
                self.columns.append((array.view(np.uint8) if array.dtype == bool else array,
                                     width, window))  # fmt: skip
            elif table.cells[key].dtype == "image":
                if key not in options.skipped:
                    self.entries.append(Entry(key, "image", deltas=deltas))
            else:
                self.entries.append(Entry(key, "cells"))

    @property
    def index_bytes(self) -> int:
        """What the MP4 indexes of all its files may take: more than most files need."""
        samples = self.meta.total_frames * len(self.cameras)
        return min(INDEX_BYTES, (1 << 20) + SAMPLE_BYTES * samples)

    def engine_arguments(self) -> tuple:
        """The part of Engine's arguments that describes the data."""
        table = self.table
        first = np.append(table.starts, table.num_rows).astype(np.int64)
        # Fields are numbered cameras, columns, pads, as the engine lays them out.
        return (
            self.paths, first, np.ascontiguousarray(table.episodes, np.int64), None,
            np.ascontiguousarray(table.index), np.ascontiguousarray(table.timestamp),
            np.array([self.options.tolerance_s], np.float64), self.cameras, self.columns,
            self.pads, self.fields,
        )  # fmt: skip

    def part_of(self, row: int) -> tuple[Layout, int]:
        """The layout of the data set that serves a row, and the row in it."""
        return self, row

    def cells(self, entry: Entry, rows: np.ndarray) -> list:
        """The tasks, strings or language rows of table rows, one element each."""
        if entry.source == "task":
            names = self.meta._task_names
            numbers = self.table.task_index[rows].tolist()
            try:
                return [names[n] for n in numbers]
            except KeyError as error:
                what = f"meta/tasks has no task_index {error.args[0]}, which data rows name"
                raise make_error(
                    FormatError, what, dataset=self.meta.repo_id, file="meta/tasks.parquet"
                ) from None
        column = self.table.cells[entry.key]
        return [column.cell(row) for row in rows.tolist()]

    def images(self, entry: Entry, rows: np.ndarray) -> list[np.ndarray]:
        """Pictures of an image-dtype camera, (C, H, W) or (T, C, H, W) per table row."""
        if entry.deltas is None:
            return [self.image(entry.key, row) for row in rows.tolist()]
        return [
            np.stack([self.image(entry.key, at) for at in self.window_rows(row, entry.deltas)])
            for row in rows.tolist()
        ]

    def window_rows(self, row: int, deltas: Sequence[int]) -> list[int]:
        """Table rows of a window around `row`, clamped to its episode."""
        table = self.table
        run = int(np.searchsorted(table.starts, row, side="right")) - 1
        first, last = int(table.starts[run]), int(table.starts[run] + table.lengths[run]) - 1
        return [min(max(row + delta, first), last) for delta in deltas]

    def image(self, key: str, row: int) -> np.ndarray:
        """The picture of an image-dtype camera in one table row, (C, H, W)."""
        from .image_cells import decode_image_cell

        table, meta = self.table, self.meta
        picture = decode_image_cell(
            table.cells[key].cell(row),
            meta._files,
            camera=key,
            episode=int(table.episode_index[row]),
            frame=int(table.frame_index[row]),
        )
        if key in meta.depth_keys:
            stored = meta._stored_depth_unit(key)
            unit = self.options.depth_unit
            if stored is not None and stored != unit:
                picture = picture.astype(np.float32)
                picture = (
                    picture * np.float32(1000) if stored == "m" else picture / np.float32(1000)
                )
        return picture


class EngineHandle:
    """One `_core.Engine` per process and use, made when first asked for."""

    def __init__(
        self, layout: Layout | MixtureLayout, *, num_threads: int, prefetch_batches: int = 0,
        shared: bool = False, keep_bytes: int, parked_bytes: int = 0,
        max_decoders: int = DECODERS_PER_THREAD, read_ahead: int = 0, processes: int = 1,
        device: int | None = None, stage_bytes: int = 0,
    ) -> None:  # fmt: skip
        """read_ahead: bytes of remote files; processes: those of this rank that read at once;
        device: number of the GPU in whose memory batches lie, stage_bytes: kept for uploads.
        """
        core = load_core()
        self.layout = layout
        self.pid = os.getpid()
        self.num_threads, self.prefetch_batches = num_threads, prefetch_batches
        self.parked_bytes = parked_bytes
        self.device = device
        paths, *rest = layout.engine_arguments()
        self.engine = core.Engine(
            engine_paths(paths), *rest, num_threads, prefetch_batches, shared, keep_bytes,
            FRAME_CACHE_BYTES, parked_bytes, layout.index_bytes, max_decoders, layout.substitute,
            read_ahead, fetch_threads(paths, processes),
            None if device is None else (device, gpu.DRIVER, gpu.KERNEL, stage_bytes, processes),
        )  # fmt: skip

        self._live = LiveLine(paths, self.stats) if self.is_remote else None

    def begin(self, feed: Any, ahead: int) -> None:
        """Stream the batches of a `_core.Feed`, which is used up. Ends the stream before.

        ahead: batches beyond those under way whose pictures are located, so that a decode run
        serves them too.
        """
        self.engine.begin(feed, ahead)

    def next(self, timeout_s: float) -> tuple[Any, int] | None:
        """The stream's next core batch, and the positions that all ranks have with it."""
        if self._live is None:
            batch = self.engine.next(timeout_s)
        else:
            self._live.begins()
            batch = self.engine.next(timeout_s, self._live.waits)
            self._live.ends()
        self._tell()
        return None if batch is None else (batch, batch.done)

    def expect(self, rows: np.ndarray) -> None:
        """Rows that the stream after this one begins with: their remote bytes come ahead."""
        self.engine.expect(rows)

    @property
    def is_remote(self) -> bool:
        """Whether a file is read over the network."""
        return any(isinstance(path, RemotePath) for path in self.layout.paths)

    def get(self, rows: np.ndarray) -> Any:
        """A core batch of given rows, beside the stream."""
        batch = self.engine.get(rows, TIMEOUT_S)
        self._tell()
        return batch

    def _tell(self) -> None:
        """Warn of videos that the GPU leaves to the CPU."""
        if self.device is not None:
            tell(self.engine.notices())

    def stats(self) -> dict[str, Any]:
        """The engine's counters, `reuse`, and where files are remote `fetch`."""
        stats = self.engine.stats()
        fetch = {name: stats.pop(at) for name, at in FETCH_COUNTERS.items()}
        if self.device is None:
            for name in gpu.STATS:
                del stats[name]
        if self.is_remote:
            stats["fetch"] = {**client_counters(self.layout.paths), **fetch}
        stats["reuse"] = stats["delivered"] / max(1, stats["decoded"])
        return stats

    def close(self) -> None:
        """Stop the threads. In a forked child: let go of the parent's engine."""
        self.engine.close()


class BatchData:
    """A finished batch: NumPy arrays over the engine's memory, and what Python adds.

    Item protocol of `collate`: `len()`, `tensors()`. Lists (task, strings, language) hold one
    element per sample. rows: int64 (B,), the rows delivered. substitutes: per sample that another
    one took the place of (place in the batch, wanted row, row delivered, what was wrong). fetch:
    a core batch of other rows; without it a bad picture of an image column is an error. device:
    the GPU that all of the batch lies on. wrap: makes what is delivered of the core's arrays, where
    some lie on a GPU.
    """

    def __init__(
        self, layout: Layout | MixtureLayout, batch: Any, use_torch: bool, lendable: bool = False,
        fetch: Callable[[np.ndarray], Any] | None = None, device: int | None = None,
        wrap: Callable[[Any], Any] | None = None,
    ) -> None:  # fmt: skip
        self.core_batch = None if wrap is not None else batch  # its tensors hold what they need
        self.lendable = lendable and wrap is None
        self._device, self._wrap = device, wrap
        self.rows: np.ndarray = batch.rows
        self.substitutes: list[tuple[int, int, int, Exception]] = (
            batch.substitutes() if layout.substitute else []
        )
        for place, _, taken, _ in self.substitutes:
            self.rows[place] = taken
        self.layout = layout
        self._values = self._assemble(batch.arrays(), use_torch, fetch)

    def __len__(self) -> int:
        return len(self.rows)

    def tensors(self) -> dict[str, Any]:
        """Key -> tensor or array (B, ...), or list of B, in the items' key order."""
        return self._values

    def hand_over(self, values: dict[str, Any]) -> dict[str, Any]:
        """`values` as a DataLoader's collation returns them: lent, not copied, out of a worker."""
        if not self.lendable and self._wrap is None:
            return values
        from .torch_bridge import DeviceBatch, LentBatch

        if not self.lendable:
            return DeviceBatch(values)

        return LentBatch(values, self)

    def _assemble(
        self, arrays: list[np.ndarray], use_torch: bool, fetch: Callable[[np.ndarray], Any] | None
    ) -> dict[str, Any]:
        field, other = _wrappers(use_torch, self._device)
        field = self._wrap or field
        pictures: dict[str, list[np.ndarray]] = {}
        if self.layout.substitute and fetch is not None:
            from .corruption import sound_pictures

            pictures = sound_pictures(self.layout, self.rows, arrays, self.substitutes, fetch)
        values: dict[str, Any] = {}
        for entry in self.layout.entries:
            value: Any
            if entry.source == "field":
                value = field(arrays[entry.at])
            elif entry.source == "image":
                found = pictures.get(entry.key)
                value = other(_stacked(entry.key, found or self.layout.images(entry, self.rows)))
            else:
                value = self.layout.cells(entry, self.rows)
            values[entry.key] = value
        if self.layout.substitute:
            marks = np.zeros(len(self.rows), bool)
            marks[[place for place, *_ in self.substitutes]] = True
            values["is_substitute"] = other(marks)
        return values


def _wrappers(use_torch: bool, device: int | None) -> tuple[Callable, Callable]:
    """What makes of the engine's arrays, and of those made here, what a batch holds."""
    if not use_torch:
        return _as_it_is, _as_it_is
    from . import torch_bridge

    if device is None:
        return torch_bridge.from_numpy, torch_bridge.from_numpy
    return torch_bridge.from_device, lambda array: torch_bridge.to_device(array, device)


def _as_it_is(array: Any) -> Any:
    return array


def _stacked(key: str, pictures: list[np.ndarray]) -> np.ndarray:
    if len({picture.shape for picture in pictures}) > 1:
        sizes = sorted({picture.shape for picture in pictures})
        what = f"camera {key}: pictures of different shapes in a batch: {sizes}"
        raise make_error(FormatError, what, camera=key)
    return np.stack(pictures)


def batch_bytes(fields: Sequence[tuple[str, tuple[int, ...]]], samples: int) -> int:
    """Bytes of a batch of so many samples."""
    sizes = {"B": 1, "?": 1, "H": 2, "f": 4, "q": 8}
    return sum(
        (samples * sizes[kind] * int(np.prod(shape, dtype=np.int64)) + 63) // 64 * 64
        for kind, shape in fields
    )


def torch_wanted(output: str | None) -> bool:
    """Whether batches hold torch tensors: "torch", "numpy", "dlpack" (what carries `__dlpack__`:
    NumPy's arrays do), or None for torch if importable.
    """
    if output not in (None, "torch", "numpy", "dlpack"):
        raise ValueError(f"output must be 'torch', 'numpy', 'dlpack' or None, not {output!r}")
    if output in ("numpy", "dlpack"):
        return False
    from importlib.util import find_spec

    if find_spec("torch") is not None:
        return True
    if output == "torch":
        raise MissingExtraError("output='torch' needs torch. Run: pip install 'reelpool[torch]'")
    return False
