"""Small datasets written with pyarrow, for what the real ones do not show. No videos are made."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUMBERS = {
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    "frame_index": {"dtype": "int64", "shape": [1], "names": None},
    "episode_index": {"dtype": "int64", "shape": [1], "names": None},
    "index": {"dtype": "int64", "shape": [1], "names": None},
    "task_index": {"dtype": "int64", "shape": [1], "names": None},
}
STATE = {"dtype": "float32", "shape": [2], "names": None}
CAMERA = {"dtype": "video", "shape": [4, 4, 3], "names": ["height", "width", "channels"]}
V21_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
V21_VIDEO = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"


def rows(lengths, state=True, fps=10):
    """Columns of all frames; `state` counts 0, 1, 2, ..."""
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.concatenate([np.arange(n) for n in lengths])
    count = len(frame)
    out = {"state": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(2.0 * count), "float"), 2)}
    out |= {
        "timestamp": pa.array(frame / fps, pa.float32()),
        "frame_index": pa.array(frame),
        "episode_index": pa.array(episode),
        "index": pa.array(np.arange(count)),
        "task_index": pa.array(episode % 2),
    }
    return out if state else {k: v for k, v in out.items() if k != "state"}


def _info(root, version, lengths, features, changes):
    info = {
        "codebase_version": version,
        "fps": 10,
        "features": {"state": STATE, **NUMBERS} if features is None else features,
        "total_episodes": len(lengths),
        "total_frames": sum(lengths),
        "total_tasks": 2,
        "chunks_size": 1000,
    }
    if version.startswith("v2"):
        info |= {"data_path": V21_DATA, "video_path": V21_VIDEO}
    info |= changes or {}
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    return info


def write_v30(
    root,
    lengths=(3, 4, 5),
    *,
    features=None,
    columns=None,
    info=None,
    files=None,
    row_group_size=None,
    cameras=(),
):
    """A v3.0 dataset. `files`: the data file of each episode. `columns`: {name: pa.Array}."""
    root = Path(root)
    _info(root, "v3.0", lengths, features, info)
    table = pa.table(rows(lengths) if columns is None else columns)
    files = [0] * len(lengths) if files is None else files
    ends = np.cumsum(lengths)
    for file in sorted(set(files)):
        parts = [table.slice(e - n, n) for e, n, f in zip(ends, lengths, files) if f == file]
        path = root / f"data/chunk-000/file-{file:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(parts), path, row_group_size=row_group_size)
    zeros = np.zeros(len(lengths), np.int64)
    episodes = {
        "episode_index": np.arange(len(lengths)),
        "tasks": pa.array([[f"task {i % 2}"] for i in range(len(lengths))]),
        "length": np.asarray(lengths),
        "data/chunk_index": zeros,
        "data/file_index": np.asarray(files),
        "dataset_from_index": ends - lengths,
        "dataset_to_index": ends,
    }
    for key in cameras:
        episodes |= {f"videos/{key}/chunk_index": zeros, f"videos/{key}/file_index": zeros}
        episodes[f"videos/{key}/from_timestamp"] = (ends - lengths) / 10
        episodes[f"videos/{key}/to_timestamp"] = ends / 10
    write_episodes(root, episodes)
    tasks = pa.table({"task_index": [1, 0], "task": ["task 1", "task 0"]})
    pq.write_table(tasks, root / "meta/tasks.parquet")
    return root


def write_episodes(root, columns, file=0):
    path = Path(root) / f"meta/episodes/chunk-000/file-{file:03d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def write_v2(root, version="v2.1", lengths=(3, 4, 5), *, features=None, info=None, columns=None):
    """A v2.x dataset: one Parquet file per episode, jsonl metadata."""
    root = Path(root)
    _info(root, version, lengths, features, info)
    table = pa.table(rows(lengths) if columns is None else columns)
    start = 0
    (root / "data/chunk-000").mkdir(parents=True)
    for i, length in enumerate(lengths):
        path = root / f"data/chunk-000/episode_{i:06d}.parquet"
        pq.write_table(table.slice(start, length), path)
        start += length
    write_jsonl(root / "meta/tasks.jsonl", [{"task_index": i, "task": f"task {i}"} for i in (0, 1)])
    write_jsonl(
        root / "meta/episodes.jsonl",
        [{"episode_index": i, "tasks": ["task 0"], "length": n} for i, n in enumerate(lengths)],
    )
    return root


def write_jsonl(path, entries):
    Path(path).write_text("".join(json.dumps(entry) + "\n" for entry in entries))


def edit_info(root, **changes):
    path = Path(root) / "meta/info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
