"""The quality report: the table for the terminal, the charts, one HTML page."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from .. import pictures
from . import report

GREY, OWN = 6, 0  # of pictures.COLOURS
COLUMNS = [  # title, key, digits
    ("episodes/B", "frac", 3),
    ("near dup. %", "nd1_pct", 2),
    ("eff. episodes", "eff16_episodes", 0),
    ("KS", "ks", 3),
    ("acts like", "acts_like", 1),
    ("var", "var", 2),
    ("var 100", "v100", 1),
    ("lag 1", "ac1", 2),
    ("burst", "burst", 2),
    ("frames held", "live", 0),
    ("% held", "live_pct", 1),
]
MEANING = [
    ("episodes/B", "distinct episodes of a batch / batch size"),
    ("near dup. %", "samples with another of their episode within 30 frames in the same batch"),
    ("eff. episodes", "1 / sum of squared episode shares of 16 consecutive batches"),
    ("KS", "largest distance of an episode's places in the epoch from an even spread"),
    (
        "acts like",
        "independent samples that tell as much of an episode feature as a batch: B / var",
    ),
    ("var", "variance of batch means of an episode feature / that of independent samples"),
    ("var 100", "the same for means over 100 consecutive batches"),
    ("lag 1", "correlation of the means of neighbouring batches"),
    ("burst", "peak / mean frames fetched per 100 batches"),
    ("frames held", "most frames held at once: compressed with reelpool and pool, else decoded"),
]


def rows_of(records: list[dict]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table that terminal and page share."""

    def cell(value: float | None, digits: int) -> str:
        if value is None:
            return "-"
        return f"{round(value, digits) + 0.0:,.{digits}f}"  # + 0.0: no minus before a zero

    rows = [[r["order"], *[cell(r[key], digits) for _, key, digits in COLUMNS]] for r in records]
    return ["order", *[c[0] for c in COLUMNS]], rows


def _colour(records: list[dict], i: int) -> int:
    if records[i]["ours"]:
        return OWN
    return GREY if i == 0 else 1


def _bars(records: list[dict], key: str, title: str, unit: str, marks: Any = ()) -> str:
    bars = []
    for i, record in enumerate(records):
        if record[key] is not None:
            low, high = record["range"][key]
            bars.append((record["order"], record[key], low, high, _colour(records, i)))
    return pictures.svg_bars(title, unit, bars, marks) if bars else ""


def _places(records: list[dict], width: int = 760) -> str:
    """A row per order: where in the epoch the frames of a few episodes come, one colour each."""
    left = max(110.0, max(len(r["order"]) for r in records) * 12 * 0.6 + 18)
    plot, top, row = width - left - 16, 46.0, 34.0
    end = top + row * len(records)
    title = "Where in an epoch the frames of four episodes come"
    text = f'<text fill="{pictures.INK}"'
    place = 'font-size="15" font-weight="600" x="12" y="22" text-anchor="start"'
    parts = [f"{text} {place}>{title}</text>"]
    for i, record in enumerate(records):
        y = top + row * i
        name = html.escape(record["order"])
        place = f'font-size="12" x="{left - 10:.1f}" y="{y + 17:.1f}" text-anchor="end"'
        parts.append(f"{text} {place}>{name}</text>")
        parts.append(
            f'<rect x="{left:.1f}" y="{y:.1f}" width="{plot:.1f}" height="{row - 8:.0f}" '
            'fill="#f0f2f4"/>'
        )
        for e, places in enumerate(record["places"]):
            ticks = "".join(f"M{left + p * plot:.1f} {y + 6.5 * e:.1f}v6.5" for p in places)
            colour = pictures.COLOURS[e % len(pictures.COLOURS)]
            parts.append(f'<path d="{ticks}" stroke="{colour}" stroke-width="0.6"/>')
    for i in range(5):
        at = left + plot * i / 4
        anchor = ("start", "middle", "middle", "middle", "end")[i]
        parts.append(
            f'<text x="{at:.1f}" y="{end + 12:.1f}" text-anchor="{anchor}" font-size="11" '
            f'fill="{pictures.FAINT}">{25 * i} %</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {end + 24:.0f}" '
        f'width="{width}" height="{end + 24:.0f}" role="img" aria-label="{title}" '
        f'{pictures.FONT}>\n<rect width="100%" height="100%" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def charts(records: list[dict], batch: int) -> list[str]:
    """The charts as SVG texts, most telling first."""
    correlations = [(r["order"], [tuple(point) for point in r["lags"]]) for r in records]
    found = [
        _bars(
            records, "acts_like", f"A batch of {batch} acts like so many independent samples",
            "independent samples", [(f"independent: {batch}", float(batch))],
        ),
        _bars(records, "frac", "Distinct episodes in a batch", "distinct episodes / batch size"),
        _places(records),
        pictures.svg_lines(
            "How alike neighbouring batches are", "batches apart", "autocorrelation of batch means",
            correlations,
        ),
        _bars(records, "nd1_pct", "Near-duplicates in a batch", "% of samples"),
    ]  # fmt: skip
    return [chart for chart in found if chart]


def stack(charts: Sequence[str], footer: str) -> str:
    """The charts one below the other, in one SVG."""
    y, parts = 0.0, []
    for chart in charts:
        parts.append(chart.replace("<svg ", f'<svg y="{y:.0f}" ', 1))
        y += float(re.search(r'height="(\d+)"', chart).group(1))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {y + 26:.0f}" width="760" '
        f'height="{y + 26:.0f}" {pictures.FONT}>\n<rect width="100%" height="100%" fill="#ffffff"/>'
        f'\n{"".join(parts)}<text x="12" y="{y + 14:.0f}" font-size="11" '
        f'fill="{pictures.FAINT}">{html.escape(footer)}</text>\n</svg>\n'
    )


def page(records: list[dict], about: dict[str, Any]) -> str:
    """The report as one HTML file. `about`: what the command prints as JSON, without the orders."""
    head, rows = rows_of(records)
    body = [report.card(chart) for chart in charts(records, about["batch_size"])]
    body += ["<h2>All figures</h2>", report.card(report.table(head, rows))]
    body.append(report.card(report.table(["figure", "meaning"], list(map(list, MEANING)), "facts")))
    facts = [[key, f"{value:,}" if isinstance(value, int) else str(value)]
             for key, value in about.items() if key not in ("command", "files")]  # fmt: skip
    body += ["<h2>What was compared</h2>", report.card(report.table(["", ""], facts, "facts"))]
    body.append(f"<pre>{html.escape(about['command'])}</pre>")
    return report.page("reelpool bench --quality", subtitle(about), body)


def subtitle(about: dict[str, Any]) -> str:
    """One line that names what was compared."""
    return (
        f"{about['dataset']}: {about['episodes']:,} episodes, {about['frames']:,} frames; "
        f"batch {about['batch_size']}; window {about['window']:,} frames "
        f"({100 * min(1.0, about['window'] / about['frames']):.1f} %)"
    )
