"""Charts and pages: well-formed, self-contained, nothing drawn outside the picture."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from reelpool import pictures
from reelpool.bench import report, scenarios, session

SVG = "{http://www.w3.org/2000/svg}"
LONG = "observation.images.wrist_left & <right>"


def _charts() -> dict[str, str]:
    return {
        "bars": pictures.svg_bars(
            "Work & <more>", "frames/s", [(LONG, 120.0, 100.0, 140.0, 0), ("b", 3.0, 3.0, 3.0, 1)],
            [("decode floor 131", 131.0)],
        ),
        "lines": pictures.svg_lines(
            "T", "s", "MB", [(LONG, [(0.0, 1.0), (2.0, 7e4)]), ("one", [(1.0, 5.0)]), ("none", [])]
        ),
        "constant": pictures.svg_lines("T", "s", "m", [("a", [(0, 0.0), (1, 0.0)])], zero=False),
        "negative": pictures.svg_lines("T", "s", "m", [("a", [(0, -3.0), (1, 2.0)])], zero=False),
        "stripes": pictures.svg_stripes("P", "step", [(LONG, [True, False, True]), ("b", [False])]),
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(_charts()))
def test_svg_is_well_formed_and_inside_its_frame(name):
    root = ElementTree.fromstring(_charts()[name])
    width, height = (float(root.get(k)) for k in ("width", "height"))
    texts = list(root.iter(f"{SVG}text"))
    assert texts
    for text in texts:
        x, y = float(text.get("x")), float(text.get("y"))
        reach = len(text.text) * float(text.get("font-size")) * 0.6
        left = {"start": x, "middle": x - reach / 2, "end": x - reach}[text.get("text-anchor")]
        assert left >= -1, text.text
        assert left + reach <= width + 1, text.text
        assert 0 < y <= height, text.text
    for path in root.iter(f"{SVG}path"):
        numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", path.get("d"))]
        assert min(numbers) >= 0
        assert max(numbers) <= max(width, height)


def test_no_mark_crosses_the_figure_of_a_bar():
    bars = [("a", value, value, value, 0) for value in (400.0, 700.0, 740.0, 760.0, 900.0)]
    root = ElementTree.fromstring(pictures.svg_bars("t", "u", bars, [("floor", 750.0)]))
    (mark,) = (e for e in root.iter(f"{SVG}path") if e.get("stroke-dasharray"))
    at = float(re.match(r"M([\d.]+)", mark.get("d")).group(1))
    figures = [e for e in root.iter(f"{SVG}text") if e.get("paint-order")]
    assert [e.text for e in figures] == ["400", "700", "740", "760", "900"]
    begins = [float(e.get("x")) for e in figures]
    assert begins[0] + 3 * 12 * 0.6 < at  # far from the mark: beside its bar
    assert all(begin > at for begin in begins[1:])


def test_ticks_are_round_and_reach_the_top():
    for high in (0.003, 1.0, 7.0, 99.0, 1310.0):
        ticks = pictures.nice_ticks(high)
        assert ticks[0] == 0
        assert ticks[-1] >= high * 0.999
        assert 3 <= len(ticks) <= 8


@pytest.mark.parametrize(
    "value, wanted",
    [
        (0, "0"),
        (1234.5, "1,234"),
        (12.34, "12.3"),
        (0.5, "0.50"),
        (0.0123, "0.0123"),
        (float("nan"), "-"),
    ],
)
def test_numbers_for_people(value, wanted):
    assert pictures.number(value) == wanted


def test_pictures_of_every_kind():
    colour = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    assert np.array_equal(pictures.to_rgb8(colour), colour.transpose(1, 2, 0))
    assert np.array_equal(pictures.to_rgb8(colour / np.float32(255)), colour.transpose(1, 2, 0))
    depth = np.linspace(200, 900, 20, dtype=np.float32).reshape(1, 4, 5)
    shown = pictures.to_rgb8(depth)
    assert (shown.min(), shown.max()) == (0, 255)
    with pytest.raises(ValueError, match="not"):
        pictures.to_rgb8(np.zeros((4, 5)))


def test_contact_sheet_places_every_picture():
    red = np.zeros((3, 48, 64), np.uint8)
    red[0] = 255
    sheet = np.asarray(pictures.contact_sheet("t", ["a", "b"], [("row", [red, red])] * 3, 64))
    is_red = (sheet == [255, 0, 0]).all(2)
    assert is_red.sum() == 6 * 48 * 64


def _result() -> session.Result:
    case = scenarios.Case("reelpool", "threads", "single", "random", "uint8", 16, 0, "python")
    figures = {
        "samples_per_s": 500.0, "decoded_frames_per_s": 1000.0, "floor_ratio": 0.92,
        "peak_rss_gb": 0.21, "p50_sample_latency_ms": 1.0, "p95_sample_latency_ms": 2.0,
        "p99_sample_latency_ms": 3.0, "floor_frames_per_s": 1087.0, "repeats": 2,
        "range": {"decoded_frames_per_s": [900.0, 1100.0], "floor_ratio": [0.9, 0.94],
                  "peak_rss_gb": [0.2, 0.22]},
        "versions": {"python": "3.11"},
    }  # fmt: skip
    memory = [(0.1, 10**8, 10**8), (0.2, 2 * 10**8, 10**8)]
    return session.Result(case, [{}], None, [(0.5, 500.0), (1.0, 490.0)], memory, figures)


def test_the_page_is_one_file_with_every_section():
    env = {
        "dataset": "<set>",
        "cpu": "CPU",
        "cpus_granted": 2,
        "date": "d",
        "command": "reelpool bench",
    }
    floors = {"source": "decode_floor", "threads": 2, "frames_per_s": {"random": [1080.0, 1094.0]}}
    page = report.build([_result()], floors, env, ["lerobot: lerobot is not importable"])
    for text in ("Throughput", "Memory of the process tree", "Gaps between batches", "Environment",
                 "reelpool bench", "not import", "&lt;set&gt;", "1,000 (900-1,100)"):  # fmt: skip
        assert text in page
    assert "<set>" not in page
    assert not re.search(r"(src|href)=['\"]?(?!data:)", page)
    assert "url(" not in page
    assert "@import" not in page
    for svg in re.findall(r"<svg.*?</svg>", page, re.S):
        ElementTree.fromstring(svg)


def test_worker_scaling_needs_several_counts():
    def measured(loader, workers, rate):
        case = scenarios.Case("reelpool", loader, "single", "stream", "uint8", 16, workers, "p")
        return session.Result(case, figures={"decoded_frames_per_s": rate})

    assert report._scaling([measured("threads", 0, 5.0), measured("workers", 2, 4.0)]) == []
    title, chart = report._scaling([measured("workers", n, 4.0 * n) for n in (4, 1, 2)])
    assert "Worker scaling" in title
    assert re.findall(r">(\d workers?)<", chart) == ["1 worker", "2 workers", "4 workers"]
    widths = re.findall(r'<rect x="[^"]*" y="[^"]*" width="([^"]*)"', chart)
    assert float(widths[2]) == pytest.approx(4 * float(widths[0]), rel=0.02)


def test_the_chart_is_drawn_from_result_files(tmp_path):
    result = _result()
    record = result.case.labels() | result.figures
    record |= {"repo_id": "set", "env": {"cpu": "CPU", "cpus_granted": 2, "date": "d"}}
    (tmp_path / "a.json").write_text(json.dumps(record))
    (tmp_path / "b.json").write_text(json.dumps(record | {"mode": "sarm"}))
    chart = Path(__file__).resolve().parents[2] / "benchmarks/chart.py"
    command = [sys.executable, str(chart), "--results", str(tmp_path)]
    subprocess.run([*command, "--out", str(tmp_path / "c.svg")], check=True, timeout=60)
    root = ElementTree.parse(tmp_path / "c.svg").getroot()
    panels = [e for e in root if e.tag == f"{SVG}svg"]
    assert len(panels) == 2
    assert float(panels[1].get("y")) == float(panels[0].get("height"))
    text = " ".join(e.text for e in root.iter(f"{SVG}text"))
    assert "windows of 8 frames" in text
    assert "median of 2" in text


def test_the_table_has_megabytes_and_ranges():
    head, rows = report.rows_of([_result()])
    row = dict(zip(head, rows[0]))
    assert row["peak RSS MB"] == "210"
    assert row["frames/s"] == "1,000 (900-1,100)"
    assert row["x floor"] == "0.92 (0.90-0.94)"
    assert "x LeRobot" not in row
