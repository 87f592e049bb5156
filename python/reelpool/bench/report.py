"""The page of a benchmark: one HTML file, inline SVG, nothing fetched from anywhere."""

from __future__ import annotations

import html
from typing import Any

from .. import pictures
from .session import Result

STYLE = """
body{font:15px/1.5 system-ui,'DejaVu Sans',sans-serif;color:#1b2430;background:#f5f6f7;margin:0}
main{max-width:1040px;margin:0 auto;padding:28px 20px 60px}
h1{font-size:26px;margin:0 0 4px}h2{font-size:19px;margin:34px 0 10px}
.card{overflow-x:auto;background:#fff;border:1px solid #dfe3e8;border-radius:8px;
padding:14px;margin:14px 0}
table{border-collapse:collapse;font-size:13px;width:100%}
th,td{padding:5px 7px;text-align:right;border-bottom:1px solid #e8ebee;white-space:nowrap}
.works th:nth-child(2),.works td:nth-child(2),
th:first-child,td:first-child,.facts td,.facts th{text-align:left}.facts td{white-space:normal}
th{color:#5c6773;font-weight:600;white-space:normal;vertical-align:bottom}
small,.faint{color:#5c6773}svg{width:100%;height:auto;display:block}
pre{background:#f0f2f4;padding:10px;border-radius:6px;font-size:13px;white-space:pre-wrap;
overflow-wrap:anywhere}
.works td:nth-child(-n+2){white-space:normal}
@media(max-width:860px){main{padding:20px 10px 40px}.card{padding:10px 6px}
th,td{padding:4px 3px;font-size:11px}td{white-space:normal}}
img{max-width:100%;height:auto}.thumbs th{white-space:normal}.thumb{width:92px;display:block}
"""


def page(title: str, subtitle: str, body: list[str]) -> str:
    """A whole HTML document."""
    inner = "\n".join(body)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n<body><main>"
        f'<h1>{html.escape(title)}</h1><p class="faint">{html.escape(subtitle)}</p>\n'
        f"{inner}\n</main></body></html>\n"
    )


def card(*parts: str) -> str:
    """A framed block."""
    return '<div class="card">' + "\n".join(parts) + "</div>"


def table(head: list[str], rows: list[list[str]], kind: str = "figures") -> str:
    """An HTML table; cells are escaped. `kind` is "figures" (right-aligned but for the first
    column), "works" (but for two) or "facts" (left-aligned)."""
    top = "".join(f"<th>{html.escape(h)}</th>" for h in head)
    top = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows
    )
    return f'<table class="{kind}">' + f"{top}<tbody>{body}</tbody></table>"


def plain(figures: dict[str, Any], key: str, scale: float = 1.0) -> str:
    """The median alone."""
    return "-" if figures.get(key) is None else pictures.number(figures[key] * scale)


def with_range(figures: dict[str, Any], key: str) -> str:
    """`median (min-max)`, without the bracket for a single repeat."""
    if figures.get(key) is None:
        return "-"
    text = pictures.number(figures[key])
    low, high = figures.get("range", {}).get(key, (None, None))
    if low is None or low == high:
        return text
    return f"{text} ({pictures.number(low)}-{pictures.number(high)})"


RANGED = ("decoded_frames_per_s", "floor_ratio")
COLUMNS = [  # title, key, factor
    ("frames/s", "decoded_frames_per_s", 1.0),
    ("x floor", "floor_ratio", 1.0),
    ("x floor CPU", "cpu_floor_ratio", 1.0),
    ("x LeRobot", "baseline_ratio", 1.0),
    ("x LeRobot map", "map_ratio", 1.0),
    ("p99 ms/sample", "p99_sample_latency_ms", 1.0),
    ("first batch s", "first_batch_latency_s", 1.0),
    ("CPU ms/sample", "cpu_ms_per_sample", 1.0),
    ("peak RSS MB", "peak_rss_gb", 1e3),
    ("episodes/B", "shuffle_randomness_frac", 1.0),
]


def rows_of(results: list[Result]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table that terminal and page share; empty columns are left out."""
    done = [r for r in results if r.figures]
    columns = [c for c in COLUMNS if any(r.figures.get(c[1]) is not None for r in done)]
    rows = []
    for result in done:
        cells = [
            with_range(result.figures, key) if key in RANGED else plain(result.figures, key, scale)
            for _, key, scale in columns
        ]
        rows.append([result.case.label, result.case.what, *cells])
    return ["case", "work", *[c[0] for c in columns]], rows


def build(
    results: list[Result], floors: dict, env: dict, absent: list[str], sheet_png: str | None = None
) -> str:
    """The report; `sheet_png` is a data URI of the contact sheet."""
    done = [r for r in results if r.figures]
    body = []
    body.append("<h2>Throughput</h2>")
    for what in dict.fromkeys(r.case.what for r in done):
        same = [r for r in done if r.case.what == what]
        body.append(card(_bars(what, same)))
    head, rows = rows_of(done)
    body += ["<h2>All figures</h2>", card(table(head, rows, "works"))]
    repeats = max((r.figures["repeats"] for r in done), default=0)
    notes = [f"Median of {repeats} interleaved repeats, (min-max) in brackets." if repeats > 1 else
             "One run per case: figures vary by some per cent."]  # fmt: skip
    notes.append(f"Floor: {floors['source']}; {floors['threads']} decoders side by side.")
    notes += [f"Not measured: {reason}" for reason in absent]
    notes += [f"Failed: {r.failed.splitlines()[0]}" for r in results if r.failed]
    body.append("<p class='faint'>" + "<br>".join(html.escape(n) for n in notes) + "</p>")
    body += _scaling(done) + _alone(done)
    body.append("<h2>Over time</h2>")
    for what in dict.fromkeys(r.case.what for r in done):
        body += _over_time(what, [r for r in done if r.case.what == what])
    body.append("<h2>Gaps between batches</h2>")
    percentiles = ("p50", "p95", "p99")
    gaps = [
        [
            f"{r.case.label}, {r.case.what}",
            *[with_range(r.figures, f"{p}_sample_latency_ms") for p in percentiles],
        ]
        for r in done
    ]
    body.append(card(table(["case", *[f"{p} ms/sample" for p in percentiles]], gaps)))
    body.append("<h2>Floor</h2>")
    measured = [
        [kind, ", ".join(pictures.number(v) for v in values)]
        for kind, values in floors["frames_per_s"].items()
    ]
    body.append(card(table(["floor", "frames/s, each measurement"], measured, "facts")))
    if sheet_png:
        body.append("<h2>One batch</h2>")
        body.append(card(f'<img alt="frames of one batch" src="{sheet_png}">'))
    body.append("<h2>Environment</h2>")
    facts = [[k, str(v)] for k, v in env.items() if k != "command"]
    for result in done:
        versions = result.figures["versions"]
        line = [f"{result.case.impl} ran with", ", ".join(f"{k} {v}" for k, v in versions.items())]
        if line not in facts:
            facts.append(line)
    body.append(card(table(["", ""], facts, "facts")))
    body.append(f"<pre>{html.escape(env['command'])}</pre>")
    subtitle = f"{env['dataset']} on {env['cpu']}, {env['cpus_granted']} CPUs, {env['date']}"
    return page("reelpool bench", subtitle, body)


def _over_time(what: str, results: list[Result]) -> list[str]:
    """Throughput and memory of the cases that do the same work."""
    rates = [(r.case.label, r.rates) for r in results]
    memory = [(r.case.label, [(t, rss / 1e6) for t, rss, _ in r.memory if rss]) for r in results]
    axis = "seconds after the process started"
    return [
        card(pictures.svg_lines(title, unit, of, lines))
        for title, unit, of, lines in (
            (f"Throughput: {what}", "seconds after iter()", "samples/s", rates),
            (f"Memory of the process tree (RSS): {what}", axis, "MB", memory),
        )
    ]


def _scaling(results: list[Result]) -> list[str]:
    """Throughput by DataLoader workers, for the readers measured with several numbers of them."""
    key = "decoded_frames_per_s"
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        if result.case.loader == "workers":
            reader = f"{result.case.impl} {result.case.variant}".rstrip()
            groups.setdefault((reader, result.case.what), []).append(result)
    charts = []
    for (reader, what), same in groups.items():
        if len(same) < 2:
            continue
        bars = []
        for result in sorted(same, key=lambda r: r.case.num_workers):
            value, count = result.figures[key], result.case.num_workers
            low, high = result.figures.get("range", {}).get(key, (value, value))
            bars.append((f"{count} worker{'s' * (count != 1)}", value, low, high, 0))
        title = f"{reader}, {what}"
        charts.append(card(pictures.svg_bars(title, "delivered frames/s, all cameras", bars)))
    return ["<h2>Worker scaling</h2>", *charts] if charts else []


def _alone(results: list[Result]) -> list[str]:
    """What one process does sample by sample."""
    key = "single_proc_samples_per_s"
    rows = [
        [r.case.label, r.case.what, with_range(r.figures, key), plain(r.figures, "fetch_pct"),
         plain(r.figures, "decode_pct")]
        for r in results if r.figures.get(key) is not None
    ]  # fmt: skip
    head = ["reader", "work", "samples/s", "% reading", "% decoding"]
    title = "<h2>One process, sample by sample</h2>"
    return [title, card(table(head, rows, "works"))] if rows else []


def _bars(what: str, results: list[Result]) -> str:
    key, bars, floors = "decoded_frames_per_s", [], []
    for colour, result in sorted(enumerate(results), key=lambda r: -r[1].figures[key]):
        # The colour is that of its line in the charts over time.
        low, high = result.figures["range"].get(key, (result.figures[key],) * 2)
        bars.append((result.case.label, result.figures[key], low, high, colour))
        floors.append(result.figures["floor_frames_per_s"])
    floor = sum(floors) / len(floors)
    return pictures.svg_bars(
        what,
        "delivered frames/s, all cameras",
        bars,
        [(f"decode floor, mean {pictures.number(floor)}", floor)],
    )
