#!/usr/bin/env python3
"""Copy a v3.0 dataset with one video file per camera: `one_file.py SOURCE TARGET`.

LeRobot 0.6.1's streaming class takes a frame's place in the whole dataset for its place in its
video file, so it reads no dataset whose cameras have a second file. The packets are copied as they
are (the ffmpeg program, `-c copy`); the episodes' places in the files are written anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def stop(text: str) -> None:
    """End with a message."""
    raise SystemExit(f"one_file: {text}")


def source_files(info: dict, table: pa.Table, camera: str) -> dict[str, int]:
    """Frames by relative path of a camera's files, in the order of episodes; stops at a dataset
    whose files do not hold the episodes' frames one behind the other."""
    chunks, numbers, begins = (
        table[f"videos/{camera}/{part}"].to_pylist()
        for part in ("chunk_index", "file_index", "from_timestamp")
    )
    files: dict[str, int] = {}
    for chunk, number, begin, length in zip(chunks, numbers, begins, table["length"].to_pylist()):
        path = info["video_path"].format(video_key=camera, chunk_index=chunk, file_index=number)
        at = files.setdefault(path, 0)
        if list(files)[-1] != path or round(begin * info["fps"]) != at:
            stop(f"{camera}: the episodes do not lie one behind the other in {path}")
        files[path] += length
    return files


def join(source: Path, files: dict[str, int], fps: float, target: Path) -> None:
    """Write the files' packets one behind the other into `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listing:
        for path, frames in files.items():
            name = str((source / path).resolve()).replace("'", "'\\''")
            # The duration that a file tells of itself is rounded up to a millisecond.
            listing.write(f"file '{name}'\nduration {frames / fps:.6f}\n")
        listing.flush()
        command = ["ffmpeg", "-v", "error", "-f", "concat", "-safe", "0", "-i", listing.name]
        done = subprocess.run([*command, "-c", "copy", "-y", str(target)])
    if done.returncode:
        stop(f"ffmpeg ended with status {done.returncode}")


def move_episodes(table: pa.Table, camera: str, fps: float) -> pa.Table:
    """The episodes' table with a camera's episodes in one file."""
    firsts, ends, at = [], [], 0
    for length in table["length"].to_pylist():
        firsts.append(at / fps)
        at += length
        ends.append(at / fps)
    zeros = [0] * table.num_rows
    for part, values in (
        ("chunk_index", zeros), ("file_index", zeros), ("from_timestamp", firsts),
        ("to_timestamp", ends),
    ):  # fmt: skip
        name = f"videos/{camera}/{part}"
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(values, table.schema.field(name).type))
    return table


def main() -> None:
    """Copy, join, rewrite."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    args = parser.parse_args()
    if args.target.exists():
        stop(f"{args.target} exists")
    if shutil.which("ffmpeg") is None:
        stop("the ffmpeg program is missing")
    info = json.loads((args.source / "meta/info.json").read_text())
    if not str(info["codebase_version"]).startswith("v3"):
        stop(f"{args.source} is {info['codebase_version']}, v3.0 is needed")
    cameras = [key for key, f in info["features"].items() if f["dtype"] == "video"]
    parts = sorted((args.source / "meta/episodes").rglob("*.parquet"))
    table = pa.concat_tables([pq.read_table(path) for path in parts]).sort_by("episode_index")
    files = {camera: source_files(info, table, camera) for camera in cameras}
    (args.target / "meta/episodes/chunk-000").mkdir(parents=True)
    for path in [*args.source.glob("meta/*.*"), *args.source.glob("data/*/*.parquet")]:
        copy = args.target / path.relative_to(args.source)
        copy.parent.mkdir(exist_ok=True, parents=True)
        shutil.copyfile(path, copy)
    for camera in cameras:
        name = info["video_path"].format(video_key=camera, chunk_index=0, file_index=0)
        join(args.source, files[camera], info["fps"], args.target / name)
        table = move_episodes(table, camera, info["fps"])
    pq.write_table(table, args.target / "meta/episodes/chunk-000/file-000.parquet")
    print(f"{args.target}: {len(cameras)} cameras, {table.num_rows} episodes", file=sys.stderr)


if __name__ == "__main__":
    main()
