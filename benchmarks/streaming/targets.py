#!/usr/bin/env python3
"""Hold the streaming class against the targets of LeRobot's streaming benchmark, in one command.

    python benchmarks/streaming/targets.py DATASET --lerobot_python PYTHON

Copies DATASET with one video file per camera (LeRobot's class reads no other), runs
benchmark_streaming.py in each mode with all implementations in turn, merges the results into
OUT_DIR/report.html and prints which targets are met. Exit status 1: one of reelpool's is missed, or
something failed. Needs the ffmpeg program. Measure on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
TARGETS = {"single": 120.0, "sarm": 320.0}  # frames/s per node of LeRobot's benchmark


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("dataset", type=Path, help="folder of a v3.0 data set; the targets are for three cameras")
    add("--lerobot_python", metavar="EXE", help="interpreter that has LeRobot")
    add("--impl", default="reelpool,reelpool_loader,lerobot", help="readers (all three)")
    for mode, least in TARGETS.items():
        add(f"--min_{mode}", type=float, default=least, help=f"frames/s per node ({least:g})")
    add("--repeat", type=int, default=1, help="runs of each mode, in turn; their median counts (1)")
    add("--duration_s", type=float, default=20.0, help="steady window (20)")
    add("--num_workers", type=int, default=1, help="DataLoader workers (1)")
    add("--batch_size", type=int, default=16, help="(16: a batch of windows has some 1 GB)")
    add("--buffer_size", type=int, default=64, help="decoded samples LeRobot's class holds (64)")
    add("--dtype", choices=("float32", "uint8"), default="float32", help="of the pictures")
    add("--floor_s", type=float, default=1.0, help="of each measurement of the bare decoder (1)")
    fresh = HERE / f"results/targets-{time.strftime('%Y%m%d-%H%M%S')}"
    add("--out_dir", type=Path, default=fresh, help="a folder that is not there yet")
    return parser.parse_args()


def measure(args: argparse.Namespace, copy: Path, mode: str, number: int) -> None:
    """One run of a mode; a missed target is told at the end, by the median of all runs."""
    command = [
        sys.executable, HERE / "benchmark_streaming.py", "--quiet", "--root", copy,
        "--repo_id", args.dataset.name, "--mode", mode, "--source", "local", "--impl", args.impl,
        "--device", "cpu", "--num_workers", args.num_workers, "--batch_size", args.batch_size,
        "--buffer_size", args.buffer_size, "--dtype", args.dtype, "--num_batches", 1_000_000,
        "--duration_s", args.duration_s, "--floor_s", args.floor_s, "--probe_samples", 32, "--min",
        f"frames_per_s_node={getattr(args, f'min_{mode}'):g}",
        "--out_dir", os.path.relpath(args.out_dir / f"{mode}{number}", REPO),
    ]  # fmt: skip
    if args.lerobot_python:
        here = os.path.exists(args.lerobot_python)  # else a name on PATH
        python = os.path.relpath(args.lerobot_python, REPO) if here else args.lerobot_python
        command += ["--lerobot_python", python]
    done = subprocess.run([str(word) for word in command], cwd=REPO, stdout=subprocess.DEVNULL)
    if done.returncode not in (0, 1):
        sys.exit(done.returncode)


def main() -> int:
    """Copy, measure in turn, merge."""
    args = options()
    args.dataset, args.out_dir = args.dataset.resolve(), args.out_dir.resolve()
    if args.out_dir.exists():
        sys.exit(f"--out_dir {args.out_dir} exists: its results would be taken for this run's")
    with tempfile.TemporaryDirectory(prefix="targets-") as folder:
        copy = Path(folder) / "copy"
        program = [sys.executable, HERE.parent / "one_file.py", args.dataset, copy]
        if subprocess.run([str(word) for word in program]).returncode:
            return 3
        for number in range(args.repeat):
            for mode in TARGETS:
                measure(args, copy, mode, number)
    merge = [
        sys.executable,
        "-m",
        "reelpool",
        "bench",
        "--merge",
        os.path.relpath(args.out_dir, REPO),
    ]
    return subprocess.run(merge, cwd=REPO).returncode


if __name__ == "__main__":
    sys.exit(main())
