"""A dataset's Parquet files as flat columns.

Numbers become contiguous arrays with LeRobot's item dtypes; strings, language columns and image
cells stay Arrow columns and are read cell by cell.
"""

from __future__ import annotations

import bisect
import json
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import env
from .errors import FormatError, make_error
from .image_cells import ImageColumn, RowGroupCache
from .metadata_info import NUMBER_DTYPES, OBJECT_DTYPES
from .tables_arrow import flat_numbers, list_items, release_arrow_memory

if TYPE_CHECKING:
    import pyarrow as pa

    from .metadata import LeRobotDatasetMetadata

logger = logging.getLogger("reelpool")

REQUIRED = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_READ_BYTES = 64 << 20  # Parquet is decoded in pieces of about this size
_MAX_WIDTH = 1 << 31


class CellColumn:
    """A column of Arrow cells: strings (str) or language rows (list of dict)."""

    def __init__(self, name: str, dtype: str, chunks: list[pa.Array]) -> None:
        self.name = name
        self.dtype = dtype
        self._chunks = chunks
        self._ends = np.cumsum([len(c) for c in chunks], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def cell(self, row: int) -> Any:
        """The cell of table row `row` (0 <= row < len) as Python objects. IndexError if there is
        none.
        """
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        place = int(np.searchsorted(self._ends, row, side="right"))
        first = int(self._ends[place - 1]) if place else 0
        value = self._chunks[place][row - first].as_py()
        if self.dtype == "language":
            return [] if value is None else [_language_row(entry) for entry in value]
        if self.dtype == "string" and isinstance(value, list) and len(value) == 1:
            return value[0]
        return value


def _language_row(row: dict) -> dict:
    """A language row with its tool calls, stored as JSON text, decoded."""
    calls = row.get("tool_calls")
    if calls:
        row["tool_calls"] = [json.loads(call) if isinstance(call, str) else call for call in calls]
    return row


class Table:
    """Rows of the selected episodes, in dataset order. Arrays are read-only and C-contiguous.

    columns: {feature: array (rows, *shape)}, float32, int64 or bool; shape (1,): (rows,).
    cells: {feature: CellColumn or ImageColumn}. keys: the features of both, in info.json's order.
    index, timestamp, episode_index, frame_index, task_index: (rows,), int64, but timestamp
    float32 seconds; there whether declared or not.
    episodes, starts, lengths: int64 (episodes,): which, their first row here, their rows.
    """

    def __init__(
        self,
        keys: list[str],
        arrays: dict[str, np.ndarray],
        cells: dict[str, CellColumn | ImageColumn],
        episodes: np.ndarray,
        lengths: np.ndarray,
    ) -> None:
        self.keys = keys
        self.columns = {key: arrays[key] for key in keys if key in arrays}
        self.cells = cells
        self.index, self.timestamp = arrays["index"], arrays["timestamp"]
        self.episode_index, self.frame_index = arrays["episode_index"], arrays["frame_index"]
        self.task_index = arrays["task_index"]
        self.episodes = episodes
        self.lengths = lengths
        self.starts = np.cumsum(lengths) - lengths
        self.num_rows = int(lengths.sum())

    def __len__(self) -> int:
        return self.num_rows

    @property
    def row_episode(self) -> np.ndarray:
        """int32 (rows,): per row the place of its episode in `episodes`."""
        return np.repeat(np.arange(len(self.episodes), dtype=np.int32), self.lengths)

    @property
    def nbytes(self) -> int:
        """Bytes of the number columns."""
        return sum(a.nbytes for a in self.columns.values())


class _Spec:
    """What is wanted of one number column."""

    def __init__(self, key: str, feature: dict) -> None:
        self.key = key
        declared = np.dtype(feature["dtype"])
        self.dtype = {"f": np.dtype(np.float32), "b": np.dtype(bool)}.get(
            declared.kind, np.dtype(np.int64)
        )
        self.half = declared == np.float16
        self.shape: tuple[int, ...] = tuple(feature["shape"]) or (1,)
        if int(np.prod(self.shape, dtype=object)) >= _MAX_WIDTH:
            raise make_error(FormatError, f"features[{key!r}]: shape {self.shape} is too large")
        self.item = () if self.shape == (1,) else self.shape


def _fail(spec: _Spec, rel: str, what: str) -> FormatError:
    return make_error(FormatError, f"{rel}: column {spec.key!r} {what}", file=rel)


def _values(chunk: pa.Array, spec: _Spec, rel: str) -> np.ndarray:
    """The chunk as an array (rows, *item) of the wanted dtype; a view where nothing needs to
    change.
    """
    import pyarrow as pa

    rows = len(chunk)
    depth = 0
    while True:
        if isinstance(chunk, pa.ExtensionArray):
            chunk = chunk.storage
        if chunk.null_count:
            raise _fail(spec, rel, "holds a null where a number is declared")
        kind = chunk.type
        if not (
            pa.types.is_list(kind)
            or pa.types.is_large_list(kind)
            or pa.types.is_fixed_size_list(kind)
        ):
            break
        if depth == len(spec.shape):
            raise _fail(spec, rel, f"is nested deeper than its declared shape {spec.shape}")
        width = spec.shape[depth]
        if pa.types.is_fixed_size_list(kind):
            even = kind.list_size == width
        else:
            even = bool((np.diff(flat_numbers(chunk.offsets)) == width).all())
        if not even:
            raise _fail(
                spec, rel, f"has lists of another size than its declared shape {spec.shape}"
            )
        chunk = list_items(chunk)
        depth += 1
    if depth != len(spec.shape) and not (depth == 0 and spec.item == ()):
        raise _fail(spec, rel, f"has {depth} dimensions, its declared shape is {spec.shape}")
    kind = chunk.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise _fail(spec, rel, f"has type {kind} where {spec.dtype} is declared")
    flat = flat_numbers(chunk)
    return _cast(flat, spec, rel).reshape((rows, *spec.item))


def _cast(flat: np.ndarray, spec: _Spec, rel: str) -> np.ndarray:
    if flat.dtype == spec.dtype:
        return flat
    if spec.dtype.kind == "f":
        return (flat.astype(np.float16) if spec.half else flat).astype(np.float32)
    if flat.dtype.kind == "f" and not np.array_equal(flat, np.rint(flat)):
        raise _fail(spec, rel, f"holds fractions where {spec.dtype} is declared")
    if spec.dtype.kind == "b" and flat.size and (flat.min() < 0 or flat.max() > 1):
        raise _fail(spec, rel, "holds other numbers than 0 and 1 where bool is declared")
    if (
        flat.size
        and flat.dtype.kind in "uf"
        and not (flat.min() >= -(2.0**63) and flat.max() < 2.0**63)
    ):
        raise _fail(spec, rel, "holds numbers beyond int64")
    return flat.astype(spec.dtype)


def _pieces(file: Any, ranges: list[tuple[int, int]], columns: list[str]) -> Iterator[pa.Table]:
    """The rows [start, stop) of each range, in order; only their row groups are read."""
    meta = file.metadata
    sizes = np.array(
        [meta.row_group(g).num_rows for g in range(meta.num_row_groups)], dtype=np.int64
    )
    ends = np.cumsum(sizes)
    for start, stop in ranges:
        group = int(np.searchsorted(ends, start, side="right"))
        while start < stop:
            first = int(ends[group] - sizes[group])
            groups, held = [], 0
            while group < len(sizes) and ends[group] - sizes[group] < stop and held < _READ_BYTES:
                held += meta.row_group(group).total_byte_size
                groups.append(group)
                group += 1
            end = min(stop, int(ends[group - 1]))
            yield file.read_row_groups(groups, columns=columns, use_threads=False).slice(
                start - first, end - start
            )
            start = end


def _groups(meta: Any, ranges: list[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """(row group, first row in it, rows) of the rows [start, stop) of each range, in order."""
    ends = np.cumsum([meta.row_group(g).num_rows for g in range(meta.num_row_groups)]).tolist()
    for start, stop in ranges:
        group = bisect.bisect_right(ends, start)
        while start < stop:
            before = ends[group - 1] if group else 0
            rows = min(stop, ends[group]) - start
            yield group, start - before, rows
            start += rows
            group += 1


def _ranges(rows: np.ndarray, lengths: np.ndarray) -> list[tuple[int, int]]:
    """[start, stop) of the runs, neighbours merged."""
    out: list[tuple[int, int]] = []
    for start, length in zip(rows.tolist(), lengths.tolist()):
        if out and out[-1][1] == start:
            out[-1] = (out[-1][0], start + length)
        else:
            out.append((start, start + length))
    return out


class _Reader:
    """Collects the columns, file after file."""

    def __init__(self, meta: LeRobotDatasetMetadata, rows: int, all_columns: bool = True) -> None:
        self.meta = meta
        self.rows = rows
        self.specs: dict[str, _Spec] = {}
        self.cells: dict[str, str] = {}
        self.images: dict[str, ImageColumn] = {}
        cache = RowGroupCache(min(1 << 30, env.granted_memory() // 8))
        for key, feature in meta.features.items() if all_columns else ():
            dtype = (
                "language"
                if key in ("language_persistent", "language_events")
                else feature["dtype"]
            )
            if dtype in NUMBER_DTYPES:
                self.specs[key] = _Spec(key, feature)
            elif dtype == "image":
                self.images[key] = ImageColumn(key, cache)
            elif dtype in OBJECT_DTYPES:
                self.cells[key] = dtype
            elif dtype != "video":
                what = f"meta/info.json: features[{key!r}] has the unknown dtype {dtype!r}"
                raise make_error(FormatError, what, file="meta/info.json")
        self.keys = [k for k in meta.features if k in {**self.specs, **self.cells, **self.images}]
        for key in REQUIRED:
            dtype = "float32" if key == "timestamp" else "int64"
            if (
                key not in self.specs
                or self.specs[key].item
                or self.specs[key].dtype != np.dtype(dtype)
            ):
                self.specs[key] = _Spec(key, {"dtype": dtype, "shape": (1,)})
        self.arrays: dict[str, np.ndarray] = {}
        self.chunks: dict[str, list[pa.Array]] = {key: [] for key in self.cells}
        self.filled = 0
        self.dropped: set[str] = set()

    def read(self, rel: str, held: int, ranges: list[tuple[int, int]]) -> None:
        """Rows `ranges` of the file `rel`, which must hold `held` rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.meta._files.resolve(rel)
        try:
            with pq.ParquetFile(path) as file:
                names = file.schema_arrow.names
                wanted = [*self.specs, *self.cells]
                for key in (*wanted, *self.images):
                    if names.count(key) != 1:
                        state = "there twice" if key in names else "declared but missing"
                        raise make_error(FormatError, f"{rel}: column {key!r} is {state}", file=rel)
                self.dropped.update(set(names) - set(wanted) - {*self.images, *self.meta.features})
                if file.metadata.num_rows != held:
                    what = f"{rel} has {file.metadata.num_rows} rows, its episodes have {held}"
                    raise make_error(FormatError, what, file=rel)
                for piece in _pieces(file, ranges, wanted):
                    self._take(piece, rel)
                for group, first, rows in _groups(file.metadata, ranges) if self.images else ():
                    for image in self.images.values():
                        image.add(path, rel, group, first, rows)
        except (pa.ArrowException, OSError) as error:
            raise make_error(
                FormatError, f"{rel} is not a readable Parquet file: {error}", file=rel
            ) from error

    def _take(self, piece: pa.Table, rel: str) -> None:
        stop = self.filled + piece.num_rows
        for key, spec in self.specs.items():
            chunks = piece.column(key).chunks
            if (
                piece.num_rows == self.rows and len(chunks) == 1
            ):  # all there is: no copy where types agree
                self.arrays[key] = np.ascontiguousarray(_values(chunks[0], spec, rel))
                continue
            if key not in self.arrays:
                self.arrays[key] = np.empty((self.rows, *spec.item), spec.dtype)
            place = self.filled
            for chunk in chunks:
                self.arrays[key][place : place + len(chunk)] = _values(chunk, spec, rel)
                place += len(chunk)
        for key in self.cells:
            self.chunks[key] += [c for c in piece.column(key).chunks if len(c)]
        self.filled = stop


def _check_order(
    reader: _Reader, want: np.ndarray, got: np.ndarray, name: str, episode: np.ndarray
) -> None:
    wrong = np.flatnonzero(want != got)
    if len(wrong):
        row = int(wrong[0])
        number = int(episode[row])
        rel = str(reader.meta.get_data_file_path(number))
        what = f"{rel}: {name} is {got[row]} where episode {number} has {want[row]} by the metadata"
        raise make_error(FormatError, what, file=rel, episode=number, dataset=reader.meta.repo_id)


def load_table(
    meta: LeRobotDatasetMetadata,
    episodes: Sequence[int] | None = None,
    all_columns: bool = True,
) -> Table:
    """The data rows of `episodes` (ascending, in range; None: all), read from the Parquet files
    they lie in; else only the numbers that every dataset has (`REQUIRED`).

    Only the row groups needed are decoded; the memory is about one copy of the selected rows.
    Undeclared columns are dropped with one INFO line. Raises FormatError naming file and column for
    a declared column that is missing, holds a null or another shape, and for rows that are not
    those of the metadata; NotFoundError for a missing file.
    """
    columns = meta._columns
    total = len(columns.length)
    chosen = (
        np.arange(total) if episodes is None else np.asarray(episodes, dtype=np.int64).reshape(-1)
    )
    if len(chosen) and (chosen[0] < 0 or chosen[-1] >= total or (np.diff(chosen) <= 0).any()):
        raise ValueError("episodes must be ascending, without repeats, and in range")
    lengths = columns.length[chosen]
    reader = _Reader(meta, int(lengths.sum()), all_columns)

    # A file holds its episodes one after the other in the order of their frames.
    order = np.lexsort((columns.from_index, columns.data_file_id))
    ids = columns.data_file_id[order]
    ends = np.cumsum(columns.length[order])
    file_start = np.zeros(len(columns.data_files) + 1, np.int64)
    file_start[1:] = np.cumsum(np.bincount(ids, columns.length[order], len(columns.data_files)))
    row_in_file = np.empty(total, np.int64)
    row_in_file[order] = ends - columns.length[order] - file_start[ids]
    held = np.diff(file_start)

    chosen_ids = columns.data_file_id[chosen]
    cuts = np.flatnonzero(np.diff(chosen_ids)) + 1
    for part in np.split(np.arange(len(chosen)), cuts) if len(chosen) else []:
        file_id = int(chosen_ids[part[0]])
        runs = _ranges(row_in_file[chosen[part]], lengths[part])
        reader.read(columns.data_files[file_id], int(held[file_id]), runs)
    for key, spec in reader.specs.items():
        array = reader.arrays.setdefault(key, np.empty((0, *spec.item), spec.dtype))
        array.flags.writeable = False
    if reader.dropped:
        logger.info(
            "%s: undeclared columns are dropped: %s",
            meta.repo_id,
            ", ".join(sorted(reader.dropped)),
        )

    episode = np.repeat(chosen, lengths)
    frame = np.arange(reader.rows) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    _check_order(reader, episode, reader.arrays["episode_index"], "episode_index", episode)
    expected = frame + np.repeat(columns.from_index[chosen], lengths)
    _check_order(reader, expected, reader.arrays["index"], "index", episode)
    cells: dict[str, CellColumn | ImageColumn] = dict(reader.images)
    cells |= {k: CellColumn(k, dtype, reader.chunks[k]) for k, dtype in reader.cells.items()}
    release_arrow_memory()
    return Table(reader.keys, reader.arrays, cells, chosen, lengths)


def arrow_column(values: Any) -> pa.ChunkedArray:
    """A column's values (array, or list of cells) as Arrow data."""
    import pyarrow as pa

    nested = isinstance(values, np.ndarray) and values.ndim > 1
    return pa.chunked_array([pa.array(values.tolist() if nested else values)])
