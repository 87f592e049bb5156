"""The `meta/` folder of the new dataset, and the loose files beside it."""

from __future__ import annotations

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .. import metadata_v21
from ..metadata_info import DATA_TEMPLATE, VIDEO_TEMPLATE, parse_json
from ..roots import INFO_FILE
from .data_files import describe
from .durable import PART, make_below, publish, storing, write_json
from .plan import Output
from .source import STATS_FILE, Source

EPISODES_TEMPLATE = "meta/episodes/chunk-{chunk:03d}/file-{file:03d}.parquet"
_MAX_EPISODES_FILE = 100 << 20  # bytes in memory, as LeRobot's limit
_CARRIED = ("README.md", "LICENSE*", "NOTICE*", ".gitattributes")


def write_meta(
    source: Source, root: Path, outputs: list[Output], records: dict[str, Any], sizes: dict
) -> None:
    """Write all of `meta/` below `root`: `records` of the video items by name. The caller brings
    files and folders to the disk. Raises StorageError.
    """
    with storing(root):
        make_below(root, root / "meta")
        write_json(root / INFO_FILE, new_info(source, sizes), indent=4, named=False, synced=True)
        _write_table(_tasks_table(source), root, "meta/tasks.parquet")
        _write_episodes(source, root, outputs, records)
        stats = new_stats(source)
        if stats is not None:
            write_json(root / STATS_FILE, stats, indent=4, named=False, synced=True)
        for pattern in _CARRIED:
            for path in sorted(source.files.path.glob(pattern)):
                if path.is_file():
                    part = root / (path.name + PART)
                    shutil.copyfile(path, part)
                    publish(part, root / path.name, named=False, synced=True)


def new_info(source: Source, sizes: dict) -> dict:
    """`info.json` of the new dataset: LeRobot's fields in LeRobot's order."""
    info = source.info.to_dict()
    fps = int(info["fps"]) if float(info["fps"]).is_integer() else info["fps"]
    info |= {"codebase_version": "v3.0", "fps": fps, **sizes}
    info["data_path"] = DATA_TEMPLATE
    info["video_path"] = None if info["video_path"] is None else VIDEO_TEMPLATE
    for feature in info["features"].values():
        if feature["dtype"] != "video":  # a video's rate stands in its own description
            feature["fps"] = fps
    return info


def new_stats(source: Source) -> dict | None:
    """Statistics of the whole set: pooled over episodes; of v2.0 as they are; None without any."""
    if source.stats_rows is not None:
        pooled = metadata_v21.pool(source.stats_rows)
        return {k: {n: v.tolist() for n, v in s.items()} for k, s in pooled.items()}
    if source.files.exists(STATS_FILE):
        return parse_json(source.files.read_bytes(STATS_FILE), STATS_FILE)
    return None


def _tasks_table(source: Source) -> pa.Table:
    """The tasks, sorted; `task` is the index that pandas restores."""
    table = pa.table(
        {
            "task_index": column([n for n, _ in source.tasks]),
            "task": column([t for _, t in source.tasks]),
        }
    )
    text = {"metadata": None, "numpy_type": "object", "pandas_type": "unicode"}
    number = {"metadata": None, "numpy_type": "int64", "pandas_type": "int64"}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [text | {"name": None, "field_name": None}],
        "columns": [
            number | {"name": "task_index", "field_name": "task_index"},
            text | {"name": "task", "field_name": "task"},
        ],
        "pandas_version": "2.2.0",
    }
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


def column(values: list | np.ndarray) -> pa.Array:
    """`pa.array(values)`, which would load pandas; an array of numbers must be int64."""
    if isinstance(values, np.ndarray):
        return _numbers(values.astype(np.int64, copy=False))
    kinds = set(map(type, values))
    if kinds == {str}:
        builder = pa.lib.StringBuilder()
        builder.append_values(values)
        return builder.finish()
    if kinds == {list}:
        ends = np.cumsum([0, *map(len, values)])
        inner = column([v for row in values for v in row])
        if ends[-1] and ends[-1] < 1 << 31 and inner.type != pa.null():
            return pa.ListArray.from_arrays(_numbers(ends.astype(np.int32)), inner)
    if kinds == {int} and max(map(abs, values)) < 1 << 63:
        return _numbers(np.array(values, np.int64))
    if kinds == {float}:
        return _numbers(np.array(values, np.float64))
    return pa.array(values)


def _numbers(values: np.ndarray) -> pa.Array:
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _write_table(table: pa.Table, root: Path, rel: str) -> None:
    path = root / rel
    part = path.with_name(path.name + PART)
    with storing(path):
        make_below(root, path.parent)
        pq.write_table(table, part, compression="snappy")
        publish(part, path, named=False, synced=True)


def _write_episodes(
    source: Source, root: Path, outputs: list[Output], records: dict[str, Any]
) -> None:
    """One row per episode, in files that stay below LeRobot's limit."""
    columns = episode_columns(source, outputs, records)
    table = pa.table(columns)
    files = 1 + table.nbytes // _MAX_EPISODES_FILE
    step = -(-len(source) // files)
    for number, first in enumerate(range(0, len(source), step)):
        piece = table.slice(first, step)
        place = np.full(piece.num_rows, 0, np.int64)
        piece = piece.append_column("meta/episodes/chunk_index", column(place))
        piece = piece.append_column("meta/episodes/file_index", column(place + number))
        piece = piece.replace_schema_metadata(describe(piece.schema).metadata)
        _write_table(piece, root, EPISODES_TEMPLATE.format(chunk=0, file=number))


def episode_columns(
    source: Source, outputs: list[Output], records: dict[str, Any]
) -> dict[str, pa.Array]:
    """All columns that LeRobot writes, in its order."""
    count, columns = len(source), source.columns
    out: dict[str, pa.Array] = {"episode_index": column(np.arange(count))}
    data = [o for o in outputs if o.camera is None]
    out["data/chunk_index"] = column(_spread(data, "chunk", count))
    out["data/file_index"] = column(_spread(data, "file", count))
    out["dataset_from_index"] = column(columns.from_index)
    out["dataset_to_index"] = column(columns.to_index)
    for camera in source.cameras:
        mine = [o for o in outputs if o.camera == camera]
        out[f"videos/{camera}/chunk_index"] = column(_spread(mine, "chunk", count))
        out[f"videos/{camera}/file_index"] = column(_spread(mine, "file", count))
        spans = [span for o in mine for span in records[o.item]["spans"]]
        out[f"videos/{camera}/from_timestamp"] = column([_seconds(s[0]) for s in spans])
        out[f"videos/{camera}/to_timestamp"] = column([_seconds(s[1]) for s in spans])
    legacy = dict.fromkeys(["tasks", "length", *(k for row in source.rows for k in row)])
    for name in legacy:
        if name not in out:
            out[name] = column([row.get(name) for row in source.rows])
    for name, values in _stats_columns(source).items():
        out[name] = column(values)
    return out


def _spread(outputs: list[Output], field: str, count: int) -> np.ndarray:
    values = np.zeros(count, np.int64)
    for output in outputs:
        values[output.first : output.stop] = getattr(output, field)
    return values


def _seconds(ratio: list[int]) -> float:
    """The float nearest to an exact time."""
    return float(Fraction(ratio[0], ratio[1]))


def _stats_columns(source: Source) -> dict[str, list]:
    """`stats/KEY/NAME`: a list per episode, at least one-dimensional; None where it has none."""
    rows = source.stats_rows or []
    names = dict.fromkeys((k, n) for row in rows for k, entry in row.items() for n in entry)
    out: dict[str, list] = {}
    for key, name in names:
        values = [row.get(key, {}).get(name) for row in rows]
        out[f"stats/{key}/{name}"] = [v if isinstance(v, list | None) else [v] for v in values]
    return out
