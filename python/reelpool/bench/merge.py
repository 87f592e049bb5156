"""Results of all ranks and runs in a folder, put together: figures, CSV, JSON, page, chart."""

from __future__ import annotations

import csv
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import metrics, targets

# How a figure of several ranks follows from theirs; what is not named is the mean.
SUMMED = ("samples_per_s", "decoded_frames_per_s", "samples_measured", "frames_measured")
WORST = (
    "p95_sample_latency_ms", "p99_sample_latency_ms", "first_batch_latency_s", "construct_s",
    "total_time_s", "wallclock_s", "peak_rss_gb", "peak_pss_gb",
)  # fmt: skip
LABELS = ("scenario", "source", "mode", "dtype", "order", "impl", "loader")
SKIPPED = ("series", "env", "versions", "range", "null_reasons", "counters", "stage_s", "command")


class MergeFailed(Exception):
    """There is nothing to merge; the text says why."""


@dataclass
class Group:
    """All ranks and repeats of one piece of work by one implementation."""

    key: tuple
    work: str
    label: str
    runs: dict[int, list[dict]] = field(default_factory=dict)  # by rank
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def impl(self) -> str:
        """Whose reader it is."""
        return self.first["impl"]

    @property
    def first(self) -> dict:
        """One of its records, for what all have in common."""
        return next(iter(self.runs.values()))[0]

    @property
    def world(self) -> int:
        """Ranks that there should be."""
        return int(self.first.get("world_size", 1))

    @property
    def missing(self) -> list[int]:
        """Ranks that left no result."""
        return [r for r in range(self.world) if r not in self.runs]

    @property
    def targets(self) -> list[list]:
        """[metric, "min" or "max", bound] that its runs were held against."""
        return list(self.first.get("targets") or [])

    def per_rank(self) -> dict[str, Any]:
        """The figures as a rank has them, to be held against `targets`: a mean for what adds up."""
        mean = {
            k: round(v / len(self.runs), 3)
            for k, v in self.figures.items()
            if k in SUMMED and _number(v)
        }
        return self.figures | mean

    def records(self) -> list[dict]:
        """All records, by rank."""
        return [record for rank in sorted(self.runs) for record in self.runs[rank]]


@dataclass
class Merged:
    """What was found in a folder."""

    groups: list[Group]
    failed: list[dict]
    unreadable: list[str]

    def notes(self) -> list[str]:
        """What is not complete, one line each."""
        out = [
            f"INCOMPLETE: {g.work}, {g.label}: of {g.world} ranks "
            f"{', '.join(map(str, g.missing))} left no result"
            for g in self.groups
            if g.missing
        ]
        out += [
            f"FAILED: {f['scenario']}, {f['impl']}, rank {f.get('rank', 0)}: {why}"
            for f in self.failed
            for why in last_words(f["failed"])[:1]
        ]
        return out + [f"UNREADABLE: {u}" for u in self.unreadable]

    def missed(self) -> list[str]:
        """Targets of their own runs that results of reelpool miss once they are put together."""
        return [
            line
            for g in self.groups
            if g.impl != "lerobot"
            for line in targets.unmet(f"{g.label}, {g.work}", g.per_rank(), g.targets)
        ]


def last_words(text: str) -> list[str]:
    """What a traceback says at its end: the error and what follows it; without one, all."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()] or ["no message"]
    for at in range(len(lines) - 1, -1, -1):
        if re.match(r"\s*(\w+\.)*\w*(Error|Exception|Exit|Interrupt)\b", lines[at]):
            return [lines[at].strip(), *lines[at + 1 :]]
    return lines


def read(folder: Path) -> Merged:
    """All records below `folder`. Raises MergeFailed if there is none."""
    if not folder.is_dir():
        raise MergeFailed(f"{folder}: no such folder")
    groups: dict[tuple, Group] = {}
    failed = []
    paths, unreadable = _files(folder)
    for path in paths:
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            unreadable.append(f"{path.relative_to(folder)}: {error}")
            continue
        if not isinstance(record, dict) or not {"scenario", "impl"} <= record.keys():
            continue  # not a result, such as merged.json
        if "failed" in record:
            failed.append(record)
        elif "samples_per_s" in record:
            group = _group_of(record)
            group = groups.setdefault(group.key, group)
            group.runs.setdefault(int(record.get("rank", 0)), []).append(record)
    if not groups and not failed:
        found = f"; {unreadable[0]}" if unreadable else ""
        raise MergeFailed(f"{folder} holds no results of a benchmark{found}")
    merged = Merged(list(groups.values()), failed, unreadable)
    for group in merged.groups:
        group.figures = _figures(group)
    _compare(merged.groups)
    merged.groups.sort(key=lambda g: (g.work, -g.figures["decoded_frames_per_s"]))
    return merged


def _files(folder: Path) -> tuple[list[Path], list[str]]:
    """All JSON files below `folder`, and what is said of folders that cannot be listed."""
    errors: list[OSError] = []
    paths = [
        Path(place) / name
        for place, _, names in os.walk(folder, onerror=errors.append)
        for name in names
        if name.endswith(".json")
    ]
    said = [f"{os.path.relpath(str(e.filename), folder)}: {e.strerror}" for e in errors]
    return sorted(paths), said


def _group_of(record: dict) -> Group:
    order = record.get("order") if isinstance(record.get("order"), str) else None
    source, world = record.get("source"), int(record.get("world_size", 1))
    parts = [record["scenario"], source, record.get("mode"), order, record.get("dtype")]
    parts.append(f"batch {record['batch_size']}")
    # Two data sets are two works, in the same scenario too.
    work = ", ".join(str(p) for p in [*parts, record.get("repo_id")] if p)
    label = record["impl"] + (f" {record['variant']}" if record.get("variant") else "")
    label += " threads" if record.get("loader") == "threads" else ""
    workers = record["num_workers"]
    label += f" ({workers} worker{'s' * (workers != 1)})" if workers else ""
    if world > 1:
        label += f", {world} ranks"
    key = (work, label, world, record.get("loader"))
    return Group(key, work, label)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _figures(group: Group) -> dict[str, Any]:
    """The repeats of each rank by their median, then the ranks together."""
    ranks = [metrics.combine(runs) for _, runs in sorted(group.runs.items())]
    out: dict[str, Any] = {}
    for key, first in ranks[0].items():
        if key in SKIPPED or key in ("rank", "repeats", "range"):
            continue
        values = [r[key] for r in ranks if _number(r.get(key))]
        if len(values) < len(ranks):
            out[key] = first
        elif key in SUMMED:
            out[key] = round(sum(values), 3)
        elif key in WORST:
            out[key] = max(values)
        elif key in ("world_size", "seed", "batch_size", "num_workers", "fps"):
            out[key] = first
        else:
            out[key] = round(sum(values) / len(values), 4)
    rates = [r["samples_per_s"] for r in ranks]
    out["ranks"], out["repeats"] = len(ranks), max(len(r) for r in group.runs.values())
    out["samples_per_s_node"] = round(sum(rates) / len(rates), 3)
    out["slowest_rank_ratio"] = round(min(rates) * len(rates) / sum(rates), 4)
    out["stage_s"] = _summed([r.get("stage_s") or {} for r in group.records()])
    return out


def _summed(parts: list[dict[str, float]]) -> dict[str, float]:
    out: dict[str, float] = {}
    for part in parts:
        for key, value in part.items():
            out[key] = round(out.get(key, 0.0) + (value or 0.0), 3)
    return out


def _compare(groups: list[Group]) -> None:
    """`baseline_ratio`: samples/s over the best of LeRobot's in the same work."""
    best: dict[str, float] = {}
    for group in groups:
        if group.impl == "lerobot":
            rate = group.figures["samples_per_s"]
            best[group.work] = max(rate, best.get(group.work, 0.0))
    for group in groups:
        if group.work in best and best[group.work] > 0:
            ratio = group.figures["samples_per_s"] / best[group.work]
            group.figures["baseline_ratio"] = round(ratio, 3)


def spread(group: Group, key: str) -> tuple[float, float]:
    """Least and largest of a figure over all ranks and repeats, scaled as the group's own."""
    values = [r[key] for r in group.records() if _number(r.get(key))]
    if not values:
        return (group.figures[key],) * 2
    scale = len(group.runs) if key in SUMMED else 1
    return min(values) * scale, max(values) * scale


def write(merged: Merged, folder: Path, page: str, chart: str) -> list[Path]:
    """merged.json, merged.csv, report.html and chart.svg; the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f for f in ("report.html", "merged.csv", "merged.json", "chart.svg")]
    document = {"results": [g.figures for g in merged.groups], "notes": merged.notes()}
    paths[2].write_text(json.dumps(document, indent=1) + "\n")
    paths[0].write_text(page)
    paths[3].write_text(chart)
    keys = list(dict.fromkeys(k for g in merged.groups for k in g.figures))
    with open(paths[1], "w", newline="") as stream:
        writer = csv.DictWriter(stream, keys)
        writer.writeheader()
        for group in merged.groups:
            flat = {
                k: json.dumps(v) if isinstance(v, (dict, list)) else v
                for k, v in group.figures.items()
            }
            writer.writerow(flat)
    return paths
