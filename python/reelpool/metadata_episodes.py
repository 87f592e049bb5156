"""Per-episode metadata: the table that users see and the flat columns that the reader uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import FormatError, MissingExtraError, NotFoundError, make_error
from .roots import LocalRoot
from .tables_arrow import flat_numbers

if TYPE_CHECKING:
    import pyarrow as pa

EPISODES_DIR = "meta/episodes"


@dataclasses.dataclass
class VideoColumns:
    """One camera: per episode its file and the time of its first frame there."""

    file_id: np.ndarray  # int32 (episodes,), into EpisodeColumns.video_files
    from_timestamp: np.ndarray  # float64 (episodes,), seconds
    to_timestamp: np.ndarray  # float64 (episodes,), seconds


@dataclasses.dataclass
class EpisodeColumns:
    """All episodes, as flat arrays in episode order. Invariants: length = to - from >= 1; ids are
    in range.
    """

    length: np.ndarray  # int64 (episodes,), frames
    from_index: np.ndarray  # int64, first `index` of the episode
    to_index: np.ndarray  # int64, one past the last
    data_chunk: np.ndarray  # int64
    data_file: np.ndarray  # int64
    data_file_id: np.ndarray  # int32, into data_files
    data_files: list[str]  # unique, relative to the root
    video: dict[str, VideoColumns]
    video_files: list[str]  # unique, relative to the root, of all cameras


class Episodes:
    """The episodes' metadata rows: `e[i]` a dict, `e["column"]` an array or list, slices dicts of
    columns.
    """

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    @property
    def column_names(self) -> list[str]:
        return self._table.column_names

    @property
    def num_rows(self) -> int:
        return self._table.num_rows

    def __len__(self) -> int:
        return self._table.num_rows

    def __repr__(self) -> str:
        return f"Episodes(num_rows={len(self)}, columns={self.column_names})"

    def _column(self, name: str) -> Any:
        column = self._table.column(name)
        kind = str(column.type)
        if column.null_count == 0 and (
            kind.startswith(("int", "uint", "float")) or kind in ("double", "bool")
        ):
            return flat_numbers(column)
        return column.to_pylist()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self._table.column_names:
                raise KeyError(f"no column {key!r}; there are: {', '.join(self.column_names)}")
            return self._column(key)
        if isinstance(key, slice):
            return Episodes(self._take(range(len(self))[key]))._as_dict()
        if hasattr(key, "__index__"):
            index = key.__index__()
            if not -len(self) <= index < len(self):
                raise IndexError(f"episode {index} is out of range: there are {len(self)}")
            return self._table.slice(index % len(self), 1).to_pylist()[0]
        rows = [range(len(self))[int(i)] for i in key]
        return Episodes(self._take(rows))._as_dict()

    def _take(self, rows: Any) -> pa.Table:
        return self._table.take(np.asarray(rows, dtype=np.int64))

    def _as_dict(self) -> dict[str, list]:
        return self._table.to_pydict()

    def __iter__(self) -> Iterator[dict]:
        for batch in self._table.to_batches(max_chunksize=1024):
            yield from batch.to_pylist()

    def filter(self, function: Callable[[dict], bool], **_: Any) -> Episodes:
        """The rows for which `function(row)` is true. Arguments beside it have no effect."""
        return Episodes(self._take([i for i, row in enumerate(self) if function(row)]))

    def select_columns(self, names: str | list[str]) -> Episodes:
        """Only the named columns."""
        return Episodes(self._table.select([names] if isinstance(names, str) else list(names)))

    def __getattr__(self, name: str) -> Any:
        """Whatever else `datasets.Dataset` has, by an installed `datasets`."""
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            import datasets
        except ImportError as error:
            raise MissingExtraError(
                f"episodes.{name} needs the datasets package. Run: pip install datasets"
            ) from error
        return getattr(datasets.Dataset(self._table), name)

    def to_pandas(self) -> Any:
        """A pandas DataFrame (needs pandas)."""
        return self._table.to_pandas()


def read_parquet(
    root: LocalRoot, rel: str, columns: Callable[[list[str]], list[str]] | None = None
) -> pa.Table:
    """The table of one small Parquet file; `columns` picks from the top-level names. FormatError if
    damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = root.resolve(rel)
    try:
        with pq.ParquetFile(path, memory_map=False) as stream:
            names = None if columns is None else columns(stream.schema_arrow.names)
            return stream.read(columns=names, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise make_error(
            FormatError, f"{rel} is not a readable Parquet file: {error}", file=rel
        ) from error


def load_episode_table(root: LocalRoot, total: int) -> pa.Table:
    """All of `meta/episodes` (v3.0) but its statistics, in episode order, `total` rows.

    Raises NotFoundError without files, FormatError for missing columns, gaps or a wrong count.
    """
    import pyarrow as pa

    rels = [r for r in root.files_in(EPISODES_DIR) if r.endswith(".parquet") and r.count("/") == 3]
    if not rels:
        raise make_error(NotFoundError, f"{EPISODES_DIR} holds no Parquet file", file=EPISODES_DIR)

    def wanted(names: list[str]) -> list[str]:
        return [n for n in names if not n.startswith("stats/")]

    tables = [read_parquet(root, rel, wanted).replace_schema_metadata() for rel in rels]
    for rel, table in zip(rels, tables):
        for name in ("episode_index", "length", "dataset_from_index", "dataset_to_index"):
            if name not in table.column_names:
                raise make_error(FormatError, f"{rel}: column {name} is missing", file=rel)
    try:
        table = pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise make_error(
            FormatError, f"{EPISODES_DIR}: the files' columns differ: {error}"
        ) from error
    index = number_column(table, "episode_index")
    if not np.array_equal(index, np.arange(len(index))):
        order = np.argsort(index, kind="stable")
        wrong = np.flatnonzero(index[order] != np.arange(len(index)))
        if len(wrong):
            what = f"{EPISODES_DIR}: episode {wrong[0]} is missing or twice there"
            raise make_error(FormatError, what, file=EPISODES_DIR, episode=int(wrong[0]))
        table = table.take(order)
    if len(index) != total:
        what = f"{EPISODES_DIR} holds {len(index)} episodes, meta/info.json says {total}"
        raise make_error(FormatError, what, file=EPISODES_DIR)
    return table


def number_column(table: pa.Table, name: str, dtype: type = np.int64) -> np.ndarray:
    """A metadata column as a flat array. Raises FormatError if missing, null, not a number, or
    negative.
    """
    import pyarrow as pa

    if name not in table.column_names:
        raise make_error(
            FormatError, f"{EPISODES_DIR}: column {name} is missing", file=EPISODES_DIR
        )
    column = table.column(name)
    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        what = "holds a null" if column.null_count else f"has type {kind}"
        raise make_error(FormatError, f"{EPISODES_DIR}: column {name} {what}", file=EPISODES_DIR)
    values = flat_numbers(column)
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if len(bad):
        what = f"{EPISODES_DIR}: column {name} is {values[bad[0]]} for episode {bad[0]}"
        raise make_error(FormatError, what, file=EPISODES_DIR, episode=int(bad[0]))
    flat = np.ascontiguousarray(values, dtype=dtype)
    if not np.array_equal(flat, values):
        raise make_error(
            FormatError, f"{EPISODES_DIR}: column {name} is not integer", file=EPISODES_DIR
        )
    return flat


def unique_files(chunk: np.ndarray, file: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(chunks, files, ids): the distinct pairs in order, and per row its pair as int32."""
    pairs = np.stack([chunk, file], axis=1)
    if len(pairs) == 0 or not (np.diff(chunk) | np.diff(file)).any():
        first = pairs[:1]
        return first[:, 0], first[:, 1], np.zeros(len(pairs), np.int32)
    order = np.lexsort((file, chunk))
    ranked = pairs[order]
    fresh = np.concatenate([[True], (np.diff(ranked, axis=0) != 0).any(axis=1)])
    ids = np.empty(len(pairs), np.int32)
    ids[order] = np.cumsum(fresh) - 1
    distinct = ranked[fresh]
    return distinct[:, 0], distinct[:, 1], ids


def check_lengths(columns: EpisodeColumns, source: str) -> None:
    """FormatError unless each episode has at least one frame and length = to - from."""
    bad = np.flatnonzero(
        (columns.to_index - columns.from_index != columns.length) | (columns.length < 1)
    )
    if len(bad):
        i = int(bad[0])
        what = (
            f"{source}: episode {i} has length {columns.length[i]} and frames "
            f"{columns.from_index[i]} to {columns.to_index[i]}"
        )
        raise make_error(FormatError, what, file=source, episode=i)
