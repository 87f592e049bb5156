#!/usr/bin/env python3
"""Draw the chart of the README from the committed results: `python benchmarks/chart.py`.

Reads benchmarks/results/*.json (files of `reelpool bench`) and writes benchmarks/results/chart.svg:
one panel per kind of work, delivered frames/s per reader, with the decode floor of the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))

from reelpool import pictures  # noqa: E402
from reelpool.bench.quality_plot import stack  # noqa: E402

READERS = ("reelpool", "lerobot", "torchcodec", "av")
TITLES = {
    "single": "single frames",
    "sarm": "windows of 8 frames 1 s apart",
    "sarm_action": "single frames, windows of actions",
    "sequential": "in file order",
    "random": "uniform shuffle",
    "gop": "shuffled by whole GOPs",
    "stream": "streaming order",
}


def read(folder: Path) -> list[dict]:
    """All result records of a folder."""
    records = [json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))]
    return [r for r in records if "decoded_frames_per_s" in r]


def panels(records: list[dict]) -> list[str]:
    """One SVG per (dataset, mode, order, dtype), most readers first."""
    groups: dict[tuple, list[dict]] = {}
    for record in records:
        key = tuple(record[k] for k in ("repo_id", "mode", "order", "dtype"))
        groups.setdefault(key, []).append(record)
    out = []
    for (name, mode, order, dtype), same in sorted(groups.items(), key=lambda g: -len(g[1])):
        bars = []
        for record in sorted(same, key=lambda r: -r["decoded_frames_per_s"]):
            value = record["decoded_frames_per_s"]
            low, high = record["range"].get("decoded_frames_per_s", (value, value))
            workers = f" ({record['num_workers']})" if record["loader"] == "workers" else ""
            reader = f"{record['impl']} {record.get('variant', '')}".rstrip()
            label = f"{reader} {record['loader']}{workers}"
            bars.append((label, value, low, high, READERS.index(record["impl"])))
        floor = sum(r["floor_frames_per_s"] for r in same) / len(same)
        title = f"{TITLES[mode]}, {TITLES[order]}, {dtype}, batch {same[0]['batch_size']}: {name}"
        mark = (f"decode floor, mean {pictures.number(floor)}", floor)
        out.append(pictures.svg_bars(title, "delivered frames/s, all cameras", bars, [mark]))
    return out


def main() -> None:
    """Write the chart, or say that there is nothing to draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--out", type=Path, default=HERE / "results/chart.svg")
    args = parser.parse_args()
    records = read(args.results)
    if not records:
        raise SystemExit(f"{args.results} holds no results: run `make bench` first")
    env = records[0]["env"]
    repeats = min(r["repeats"] for r in records)
    runs = "one run per case"
    if repeats > 1:
        runs = f"median of {repeats} interleaved repeats, whiskers min-max"
    footer = f"{env['cpu']}, {env['cpus_granted']} CPUs; {runs}; {env['date']}"
    args.out.write_text(stack(panels(records), footer))
    print(args.out)


if __name__ == "__main__":
    main()
