"""The page and the chart of merged results."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from .. import pictures
from . import report, targets
from .merge import Group, Merged, spread
from .quality_plot import stack

KEY = "decoded_frames_per_s"
COLUMNS = [  # title, key, factor
    ("frames/s", KEY, 1.0),
    ("samples/s", "samples_per_s", 1.0),
    ("samples/s per node", "samples_per_s_node", 1.0),
    ("x floor", "floor_ratio", 1.0),
    ("x floor CPU", "cpu_floor_ratio", 1.0),
    ("x LeRobot", "baseline_ratio", 1.0),
    ("slowest rank", "slowest_rank_ratio", 1.0),
    ("first batch s", "first_batch_latency_s", 1.0),
    ("CPU ms/sample", "cpu_ms_per_sample", 1.0),
    ("peak RSS MB", "peak_rss_gb", 1e3),
    ("episodes/B", "shuffle_randomness_frac", 1.0),
]
LATENCIES = [(f"{p} ms/sample", f"{p}_sample_latency_ms", 1.0) for p in ("p50", "p95", "p99")]
STALLS = [
    ("% waiting for a batch", "wait_pct", 1.0),
    ("% moving to the device", "move_pct", 1.0),
    ("alone, samples/s", "single_proc_samples_per_s", 1.0),
    ("alone, % fetch", "fetch_pct", 1.0),
    ("alone, % decode", "decode_pct", 1.0),
    ("frames stepped over", "probe_skipped", 1.0),
]
STAGES = (("read_s", "reading"), ("decode_s", "decoding"), ("convert_s", "converting"),
          ("plan_s", "planning"))  # fmt: skip
MAX_LINES = 8  # of pictures.COLOURS: more are not told apart


def table_of(
    groups: Sequence[Group], columns: list, with_work: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Head and rows; columns that nobody has are left out."""
    used = [c for c in columns if any(g.figures.get(c[1]) is not None for g in groups)]
    if all(g.world == 1 for g in groups):
        used = [c for c in used if c[1] not in ("slowest_rank_ratio", "samples_per_s_node")]
    rows = [
        [g.work] * with_work
        + [g.label, *[report.plain(g.figures, key, scale) for _, key, scale in used]]
        for g in groups
    ]
    return ["work"] * with_work + ["reader", *[c[0] for c in used]], rows


def _table(groups: Sequence[Group], columns: list) -> str:
    head, rows = table_of(groups, columns, False)
    return report.card(report.table(head, rows)) if len(head) > 1 else ""


def targets_table(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    """What runs were held against, LeRobot's beside ours: head and rows, none without targets."""
    rows = []
    for group in groups:
        for key, kind, bound in group.targets:
            met = targets.is_met(group.per_rank(), key, kind, bound)
            found = report.plain(group.per_rank(), key)
            wanted = f"at {'least' if kind == 'min' else 'most'} {pictures.number(bound)}"
            ratio = report.plain(group.figures, "baseline_ratio")
            words = [group.work, group.label, key, found, wanted, "met" if met else "missed"]
            rows.append([*words, ratio])
    return ["work", "reader", "figure of a rank", "found", "target", "", "x LeRobot"], rows


def _bars(work: str, groups: list[Group], width: int = 760) -> str:
    bars, floors = [], []
    for colour, group in enumerate(groups):
        colour += sum(len(g.runs) - 1 for g in groups[:colour])  # as its first line below
        bars.append((group.label, group.figures[KEY], *spread(group, KEY), colour))
        if group.figures.get("floor_frames_per_s"):
            floors.append(group.figures["floor_frames_per_s"] * len(group.runs))
    marks = []
    if floors:
        floor = sum(floors) / len(floors)
        marks.append((f"decode floor, mean {pictures.number(floor)}", floor))
    return pictures.svg_bars(work, "delivered frames/s, all cameras and ranks", bars, marks, width)


def chart(merged: Merged) -> str:
    """All throughput bars as one SVG."""
    panels = [_bars(work, same) for work, same in _works(merged)]
    env = merged.groups[0].first.get("env", {}) if merged.groups else {}
    line = ", ".join(str(env[k]) for k in ("cpu", "system", "date") if env.get(k))
    return stack(panels, line) if panels else pictures.svg_lines("no results", "", "", [])


def _works(merged: Merged) -> list[tuple[str, list[Group]]]:
    works: dict[str, list[Group]] = {}
    for group in merged.groups:
        works.setdefault(group.work, []).append(group)
    return list(works.items())


def _series(groups: list[Group], key: str) -> list[tuple[str, list]]:
    """(name, values) of every rank and repeat that has them."""
    out = []
    for group in groups:
        for rank, runs in sorted(group.runs.items()):
            for number, record in enumerate(runs):
                values = (record.get("series") or {}).get(key)
                if values:
                    name = group.label + (f", rank {rank}" if group.world > 1 else "")
                    out.append((name + (f", run {number + 1}" if number else ""), values))
    return out[:MAX_LINES]


def _lines(groups: list[Group]) -> list[str]:
    """Latency CDF, throughput and memory over time of one work."""
    cdf = [
        # Beyond 99 % single gaps would take most of the width; p99 is in the table.
        (name, [(ms, float(percent)) for percent, ms in enumerate(values[:100])])
        for name, values in _series(groups, "latency_ms_at_percent")
    ]
    rates = [(n, [tuple(p) for p in v]) for n, v in _series(groups, "samples_per_s")]
    memory = [(n, [tuple(p) for p in v]) for n, v in _series(groups, "rss_gb")]
    if not (cdf or rates or memory):
        return []
    seconds = "seconds after iter()"
    charts = (
        (
            "Latency: share of the gaps between batches that are no longer",
            "gap / batch size, ms per sample (up to 99 %)",
            "% of gaps",
            cdf,
        ),
        ("Throughput", seconds, "samples/s", rates),
        ("Memory of the process tree (RSS)", "seconds after the process started", "GB", memory),
    )
    return [report.card(pictures.svg_lines(*chart)) for chart in charts]


def _stages(groups: Sequence[Group]) -> list[str]:
    """Thread time by stage, as shares."""
    rows = []
    for group in groups:
        times = group.figures.get("stage_s") or {}
        whole = sum(times.get(k, 0.0) for k, _ in STAGES)
        if whole > 0:
            shares = [f"{100 * times.get(k, 0.0) / whole:.1f}" for k, _ in STAGES]
            rows.append([group.label, f"{whole:.1f}", *shares])
    if not rows:
        return []
    head = ["reader", "thread seconds", *[f"% {name}" for _, name in STAGES]]
    return [report.card(report.table(head, rows))]


def build(merged: Merged, command: str) -> str:
    """The page."""
    groups = merged.groups
    body = []
    notes = merged.notes()
    if notes:
        text = "<br>".join(html.escape(n) for n in notes)
        body.append(report.card(f"<p><b>Not complete</b><br>{text}</p>"))
    body.append(
        "<p class='faint'>Ranks of a job are added up; the whisker spans its slowest and its "
        "fastest rank or repeat, each times the number of ranks. Repeats: median. p95, p99, first "
        "batch and memory are those of the worst rank. x floor: against the bare decoder on the "
        "same node, before and after; x LeRobot: against its classes in the same work. alone: one "
        "process, sample by sample, after the run.</p>"
    )
    head, rows = targets_table(groups)
    if rows:
        body += ["<h2>Targets</h2>", report.card(report.table(head, rows, "works"))]
    for work, same in _works(merged):
        body += [f"<h2>{html.escape(work)}</h2>", report.card(_bars("Throughput", same))]
        body += [_table(same, COLUMNS), _table(same, LATENCIES)]
        stalls = [_table(same, STALLS), *_stages(same)]
        body += ["<h3>Where the time goes</h3>", *stalls] if any(stalls) else []
        body += _lines(same)
    body += _environment(groups)
    body += _commands(groups, command)
    shown = ", ".join(dict.fromkeys(str(g.first.get("repo_id", "")) for g in groups))
    ranks = sum(len(g.runs) for g in groups)
    subtitle = f"{shown}: {len(groups)} results of {ranks} ranks"
    return report.page("reelpool bench, merged", subtitle, body)


def _environment(groups: Sequence[Group]) -> list[str]:
    rows: list[list[str]] = []
    for group in groups:
        for record in group.records():
            env: dict[str, Any] = record.get("env") or {}
            facts = [[k, str(v)] for k, v in env.items() if k not in ("command", "date")]
            found = ", ".join(f"{k} {v}" for k, v in (record.get("versions") or {}).items())
            facts.append([f"{record['impl']} ran with", found])
            rows += [f for f in facts if f not in rows]
    names = dict.fromkeys(r[0] for r in rows)
    merged = [[n, "; ".join(r[1] for r in rows if r[0] == n)] for n in names]
    return ["<h2>Environment</h2>", report.card(report.table(["", ""], merged, "facts"))]


def _commands(groups: Sequence[Group], command: str) -> list[str]:
    commands = [
        r.get("command") or (r.get("env") or {}).get("command") for g in groups for r in g.records()
    ]
    lines = [str(c) for c in dict.fromkeys(commands) if c]
    text = html.escape("\n".join([*lines, command]))
    return ["<h2>Commands</h2>", f"<pre>{text}</pre>"]
