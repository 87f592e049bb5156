"""The data set that `remote.py` reads: one video file per camera, its episodes several times."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import one_file  # noqa: E402

DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"


class Facts(NamedTuple):
    """What the figures need to know of the set."""

    frames: int
    episodes: int
    fps: float
    files: int
    video_bytes: int


def make(source: Path, target: Path, copies: int) -> Facts:
    """Write the set below `target`, which must not exist. SystemExit with what is wrong."""
    once = target.with_name(target.name + "-once")
    command = [sys.executable, str(HERE / "one_file.py"), str(source), str(once)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.stderr.strip())
    _repeat(once, target, copies)
    shutil.rmtree(once)
    info = json.loads((target / "meta/info.json").read_text())
    videos = list(target.glob("videos/**/*.mp4"))
    return Facts(info["total_frames"], info["total_episodes"], info["fps"], len(videos),
                 sum(path.stat().st_size for path in videos))  # fmt: skip


def _repeat(once: Path, target: Path, copies: int) -> None:
    """The set `once` with its episodes `copies` times, as further episodes."""
    info = json.loads((once / "meta/info.json").read_text())
    frames, episodes, fps = info["total_frames"], info["total_episodes"], info["fps"]
    cameras = [key for key, f in info["features"].items() if f["dtype"] == "video"]
    for name in (DATA, EPISODES):
        (target / name).parent.mkdir(parents=True)
    for path in once.glob("meta/*.*"):
        shutil.copyfile(path, target / path.relative_to(once))
    info |= {"total_frames": frames * copies, "total_episodes": episodes * copies,
             "splits": {"train": f"0:{episodes * copies}"}}  # fmt: skip
    (target / "meta/info.json").write_text(json.dumps(info))
    rows = pa.concat_tables([pq.read_table(p) for p in sorted(once.glob("data/*/*.parquet"))])
    steps: dict[str, float] = {"index": frames, "episode_index": episodes}
    _write(rows, steps, copies, target / DATA)
    steps = {"episode_index": episodes, "dataset_from_index": frames, "dataset_to_index": frames}
    for camera in cameras:
        for part in ("from_timestamp", "to_timestamp"):
            steps[f"videos/{camera}/{part}"] = frames / fps
        name = info["video_path"].format(video_key=camera, chunk_index=0, file_index=0)
        # The same file under so many names: `join` takes each name once.
        one_file.join(once, {"./" * i + name: frames for i in range(copies)}, fps, target / name)
    table = pq.read_table(once / EPISODES)
    zeros = {n: pa.array([0] * table.num_rows, table.schema.field(n).type)
             for n in ("data/chunk_index", "data/file_index")}  # fmt: skip
    for name, column in zeros.items():
        table = table.set_column(table.column_names.index(name), name, column)
    _write(table, steps, copies, target / EPISODES)


def _write(table: pa.Table, steps: dict[str, float], copies: int, path: Path) -> None:
    """The table `copies` times; the columns of `steps` grow by so much from one to the next."""
    parts = []
    for number in range(copies):
        part = table
        for name, step in steps.items():
            place, kind = table.column_names.index(name), table.schema.field(name).type
            values = [value + step * number for value in table[name].to_pylist()]
            part = part.set_column(place, table.schema.field(name), pa.array(values, kind))
        parts.append(part)
    pq.write_table(pa.concat_tables(parts), path)
