#!/usr/bin/env python3
"""Time `reelpool convert` over a grid of episodes per batch and worker processes.

    python benchmarks/convert_grid.py DATASET [--scratch DIR] [--copies N] [--repeats N]
        [--lerobot PYTHON]

DATASET is of format v2.1; it is copied to DIR (default: beside the system's temporary files) and
converted there afresh for each cell, warm: links to the copy's files, which no converter changes.
`--copies` repeats its episodes to make it larger.
`--lerobot` is the interpreter of an environment with LeRobot: its converter is the reference then,
with and without the time of its imports; else the first row is. All cells and `cp -r` take turns
`--repeats` times; medians are shown. One line per cell: seconds of the whole command, seconds
without interpreter and imports, both as speed-up over the reference, peak memory (PSS of all its
processes, MB), and the speed without imports as part of that of `cp -r` of the same files, which
does not wait for the disk, and of `cp -r` followed by `sync -f`, which does as `reelpool` does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PLACES = 3  # times its size: the source, what it becomes, and some room
LEROBOT = (
    "import json,sys,time;"
    "from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset;"
    "t=time.perf_counter();convert_dataset('bench/x',root=sys.argv[1],push_to_hub=False);"
    "print(json.dumps({'seconds':time.perf_counter()-t}))"
)


def enlarge(source: Path, out: Path, copies: int) -> None:
    """Write `source` with its episodes `copies` times, numbered through."""
    shutil.copytree(source, out)
    for path in [out, *out.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    info = json.loads((out / "meta/info.json").read_text())
    count, frames = info["total_episodes"], info["total_frames"]
    if count * copies > info["chunks_size"]:
        raise SystemExit(f"--copies {copies}: at most {info['chunks_size'] // count} here")
    for name in ("episodes", "episodes_stats"):
        path = out / f"meta/{name}.jsonl"
        rows = sorted((json.loads(x) for x in path.read_text().splitlines()),
                      key=lambda row: row["episode_index"])  # fmt: skip
        again = [r | {"episode_index": r["episode_index"] + count * c}
                 for c in range(copies) for r in rows]  # fmt: skip
        path.write_text("".join(json.dumps(row) + "\n" for row in again))
    for path in sorted(out.glob("*/**/episode_*")):
        number = int(path.stem.rpartition("_")[2])
        for copy in range(1, copies):
            target = path.with_name(f"episode_{number + count * copy:06d}{path.suffix}")
            if path.suffix == ".parquet":
                renumber(path, target, count * copy, frames * copy)
            else:
                shutil.copyfile(path, target)
    info |= {"total_episodes": count * copies, "total_frames": frames * copies}
    (out / "meta/info.json").write_text(json.dumps(info))


def renumber(path: Path, target: Path, episodes: int, frames: int) -> None:
    """Copy a table with other episode and row numbers."""
    table = pq.read_table(path)
    for name, more in (("episode_index", episodes), ("index", frames)):
        values = pa.array(
            [v + more for v in table[name].to_pylist()], table.schema.field(name).type
        )
        table = table.set_column(table.column_names.index(name), name, values)
    pq.write_table(table, target)


def family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                found += family(int(child))
        except OSError:
            continue
    return found


def memory_mb(pid: int) -> float:
    """Proportional set size of a process and all below it."""
    total = 0
    for member in family(pid):
        try:
            text = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue  # it has ended
        total += int(text.split("\nPss:")[1].split()[0])
    return total / 1024


def timed(words: list[str]) -> tuple[float, float, dict]:
    """(seconds, peak MB, its JSON document) of a command."""
    begun, peak = time.perf_counter(), 0.0
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    with subprocess.Popen(words, stdout=-1, stderr=-1, text=True, env=env) as process:
        while process.poll() is None:
            peak = max(peak, memory_mb(process.pid))
            time.sleep(0.05)
        seconds = time.perf_counter() - begun
        out, err = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{err[-2000:]}")
    return seconds, peak, json.loads(out[out.index("{") :])


def copy_seconds(source: Path, root: Path) -> tuple[float, float]:
    """Seconds of `cp -r`, which does not wait for the disk, and with `sync -f` after it."""
    clear(root)
    begun = time.perf_counter()
    subprocess.run(["cp", "-r", source, root], check=True)
    copied = time.perf_counter()
    subprocess.run(["sync", "-f", root], check=True)
    return copied - begun, time.perf_counter() - begun


def clear(root: Path) -> None:
    """Remove what a cell left; nothing is on its way to the disk then."""
    for path in (root, root.with_name(f"{root.name}_old")):
        shutil.rmtree(path, ignore_errors=True)
    os.sync()


def main() -> None:
    """Print the grid."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--scratch", type=Path)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lerobot", metavar="PYTHON")
    parser.add_argument("--batches", type=int, nargs="+", default=[25, 50, 75, 100])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 6])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
        grid(args, Path(folder))


def grid(args: argparse.Namespace, folder: Path) -> None:
    """Measure all cells in turn, and print one line for each."""
    source, root = folder / "source", folder / "set"
    enlarge(args.dataset, source, args.copies)
    size = sum(p.stat().st_size for p in source.rglob("*") if p.is_file())
    if shutil.disk_usage(folder).free < (PLACES - 1) * size:
        raise SystemExit(f"{folder}: {PLACES * size / 1e9:.1f} GB are needed")
    command = [sys.executable, "-m", "reelpool", "convert", str(root), "--json", "-q"]
    cells = {"LeRobot": [args.lerobot, "-c", LEROBOT, str(root)]} if args.lerobot else {}
    cells["threads (default)"] = command
    for batch in args.batches:
        for workers in args.workers:
            more = ["--orchestrate", f"--episodes-per-batch={batch}", f"--num-workers={workers}"]
            cells[f"batch {batch:>3}, workers {workers}"] = command + more
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in cells}
    copied: list[tuple[float, float]] = []
    for turn in range(args.repeats):
        for name, words in cells.items():
            print(f"turn {turn + 1} of {args.repeats}: {name}", file=sys.stderr)
            copied.append(copy_seconds(source, root))
            clear(root)
            # Links: a copy would have used up what a rate-limited disk takes at once.
            shutil.copytree(source, root, copy_function=os.link)
            os.sync()
            seconds, peak, document = timed(words)
            found[name].append((seconds, document["seconds"], peak))
    clear(root)
    plain, synced = (statistics.median(column) for column in zip(*copied))
    print(f"{size / 1e6:.0f} MB; {os.cpu_count()} CPUs; medians of {args.repeats}; "
          f"cp -r {plain:.2f} s, with sync {synced:.2f} s")  # fmt: skip
    print(f"{'':<24}{'s':>8}{'s inside':>10}{'speed-up':>10}{'inside':>8}{'MB':>7}{'of cp':>7}"
          f"{'of cp+sync':>12}")  # fmt: skip
    first: tuple[float, float] | None = None
    for name, rows in found.items():
        seconds, inside, peak = (statistics.median(column) for column in zip(*rows))
        first = first or (seconds, inside)
        print(f"{name:<24}{seconds:>8.2f}{inside:>10.2f}{first[0] / seconds:>9.2f}x"
              f"{first[1] / inside:>7.2f}x{peak:>7.0f}{plain / inside:>7.2f}"
              f"{synced / inside:>12.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
