"""Metadata of the formats v2.0 and v2.1: jsonl files, one data and video file per episode."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import FormatError, make_error
from .metadata_episodes import EpisodeColumns, VideoColumns
from .roots import LocalRoot, PathTemplate

if TYPE_CHECKING:
    import pyarrow as pa

EPISODES_FILE = "meta/episodes.jsonl"
TASKS_FILE = "meta/tasks.jsonl"
EPISODE_STATS_FILE = "meta/episodes_stats.jsonl"
FIELDS = ("episode_chunk", "episode_index")


def read_jsonl(root: LocalRoot, rel: str) -> list[dict]:
    """The objects of a file with one JSON object per line. FormatError names file and line."""
    lines = [line for line in root.read_bytes(rel).splitlines() if line.strip()]
    try:
        rows = json.loads(
            b"[" + b",".join(lines) + b"]"
        )  # one call: 100,000 lines in a fraction of a second
    except (ValueError, RecursionError):
        rows = []
    if len(rows) == len(lines) and all(type(row) is dict for row in rows):
        return rows
    for number, line in enumerate(lines, 1):
        try:
            sound = isinstance(json.loads(line), dict)
        except (ValueError, RecursionError):
            sound = False
        if not sound:
            raise make_error(FormatError, f"{rel}: entry {number} is not a JSON object", file=rel)
    raise make_error(FormatError, f"{rel} is not one JSON object per line", file=rel)


def _integers(rows: list[dict], name: str, rel: str) -> np.ndarray:
    try:
        values = [row[name] for row in rows]
    except KeyError:
        number = next(i for i, row in enumerate(rows, 1) if name not in row)
        raise make_error(FormatError, f"{rel}: entry {number} has no {name}", file=rel) from None
    bad = [i for i, v in enumerate(values, 1) if type(v) is not int or not 0 <= v < 2**53]
    if bad:
        what = f"{rel}: {name} of entry {bad[0]} is {values[bad[0] - 1]!r}"
        raise make_error(FormatError, what, file=rel)
    return np.asarray(values, dtype=np.int64)


def load_episode_rows(root: LocalRoot, total: int) -> list[dict]:
    """The rows of `episodes.jsonl` in episode order. Raises FormatError for a gap, a repeat or a
    wrong count.
    """
    rows = read_jsonl(root, EPISODES_FILE)
    index = _integers(rows, "episode_index", EPISODES_FILE)
    order = np.argsort(index, kind="stable")
    wrong = np.flatnonzero(index[order] != np.arange(len(rows)))
    if len(wrong):
        what = f"{EPISODES_FILE}: episode {wrong[0]} is missing or twice there"
        raise make_error(FormatError, what, file=EPISODES_FILE, episode=int(wrong[0]))
    if len(rows) != total:
        what = f"{EPISODES_FILE} holds {len(rows)} episodes, meta/info.json says {total}"
        raise make_error(FormatError, what, file=EPISODES_FILE)
    return [rows[i] for i in order.tolist()]


def episode_columns(rows: list[dict], info: Any, video_keys: list[str]) -> EpisodeColumns:
    """The flat columns of rows in episode order: a file per episode and camera, times from 0."""
    count = len(rows)
    index = np.arange(count, dtype=np.int64)
    chunk = index // info.chunks_size
    length = _integers(rows, "length", EPISODES_FILE)
    end = np.cumsum(length)
    numbers = {"episode_chunk": chunk.tolist(), "episode_index": index.tolist()}
    video: dict[str, VideoColumns] = {}
    files: list[str] = []
    for key in video_keys:
        template = PathTemplate(info.video_path, "video_path", FIELDS, video_key=key)
        video[key] = VideoColumns(
            file_id=np.arange(len(files), len(files) + count, dtype=np.int32),
            from_timestamp=np.zeros(count),
            to_timestamp=length / info.fps,
        )
        files += template.format_many(**numbers)
    return EpisodeColumns(
        length=length,
        from_index=end - length,
        to_index=end,
        data_chunk=chunk,
        data_file=index,
        data_file_id=np.arange(count, dtype=np.int32),
        data_files=PathTemplate(info.data_path, "data_path", FIELDS).format_many(**numbers),
        video=video,
        video_files=files,
    )


def episode_table(rows: list[dict], columns: EpisodeColumns) -> pa.Table:
    """The rows as a table with v3.0's columns, and whatever else the rows hold."""
    import pyarrow as pa

    out: dict[str, Any] = {"episode_index": columns.data_file}
    names = dict.fromkeys(name for row in rows for name in row if not name.startswith("stats"))
    for name in ("tasks", *names):
        if name not in out:
            try:
                out[name] = pa.array([row.get(name) for row in rows])
            except pa.ArrowException as error:
                what = f"{EPISODES_FILE}: {name} has values of several types: {error}"
                raise make_error(FormatError, what, file=EPISODES_FILE) from error
    out |= {"length": columns.length, "data/chunk_index": columns.data_chunk}
    out |= {"data/file_index": columns.data_file}
    out |= {"dataset_from_index": columns.from_index, "dataset_to_index": columns.to_index}
    for key, camera in columns.video.items():
        out[f"videos/{key}/chunk_index"] = columns.data_chunk
        out[f"videos/{key}/file_index"] = columns.data_file
        out[f"videos/{key}/from_timestamp"] = camera.from_timestamp
        out[f"videos/{key}/to_timestamp"] = camera.to_timestamp
    return pa.table(out)


def load_tasks(root: LocalRoot) -> tuple[list, list, str]:
    """(task indices, names, file) of `tasks.jsonl`, as stored."""
    rows = read_jsonl(root, TASKS_FILE)
    return [row.get("task_index") for row in rows], [row.get("task") for row in rows], TASKS_FILE


def pooled_stats(root: LocalRoot) -> dict[str, dict[str, np.ndarray]]:
    """Statistics of the whole set from those of its episodes (v2.1), weighted by their counts, in
    float64.
    """
    rows = read_jsonl(root, EPISODE_STATS_FILE)
    order = np.argsort(_integers(rows, "episode_index", EPISODE_STATS_FILE), kind="stable")
    found = []
    for i in order.tolist():
        stats = rows[i].get("stats")
        if not isinstance(stats, dict):
            raise make_error(
                FormatError,
                f"{EPISODE_STATS_FILE}: entry {i + 1} has no stats",
                file=EPISODE_STATS_FILE,
            )
        found.append(stats)
    return pool(found)


def pool(episodes: list[dict]) -> dict[str, dict[str, np.ndarray]]:
    """`pooled_stats` of the episodes' {key: {name: values}}, in their order. Raises FormatError."""
    by_key: dict[str, list[dict]] = {}
    for stats in episodes:
        for key, values in stats.items():
            by_key.setdefault(key, []).append(values)
    try:
        return {key: _pool(entries) for key, entries in by_key.items()}
    except (KeyError, TypeError, ValueError) as error:
        what = f"{EPISODE_STATS_FILE}: statistics of different shape or kind: {error}"
        raise make_error(FormatError, what, file=EPISODE_STATS_FILE) from error


def _pool(entries: list[dict]) -> dict[str, np.ndarray]:
    def stacked(name: str) -> np.ndarray:
        values = np.asarray([e[name] for e in entries])
        if values.dtype == object:
            raise TypeError(f"{name} is no number")
        return values if values.ndim > 1 else values[:, None]

    mean, std, count = stacked("mean"), stacked("std"), stacked("count")
    total = count.sum(axis=0)
    weight = count.reshape(count.shape + (1,) * (mean.ndim - count.ndim))
    pooled_mean = (mean * weight).sum(axis=0) / total
    variance = ((std**2 + (mean - pooled_mean) ** 2) * weight).sum(axis=0) / total
    out = {
        "min": stacked("min").min(axis=0),
        "max": stacked("max").max(axis=0),
        "mean": pooled_mean,
        "std": np.sqrt(variance),
        "count": total,
    }
    for name in entries[0]:  # quantiles: their weighted mean, as LeRobot's converter has it
        if name.startswith("q") and name[1:].isdigit() and all(name in e for e in entries):
            out[name] = (stacked(name) * weight).sum(axis=0) / total
    return out
