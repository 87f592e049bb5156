"""Merging: figures of ranks and repeats, what is missing, the page, and targets."""

from __future__ import annotations

import csv
import json
import os
import re
import xml.etree.ElementTree as ElementTree

import pytest
from reelpool import __main__ as command
from reelpool.bench import merge, quality, session
from reelpool.cli import console


def record(**changes) -> dict:
    """A result as the suite writes it."""
    rate = changes.get("samples_per_s", 100.0)
    base = {
        "scenario": "stream_bucket_2node", "impl": "reelpool", "loader": "streaming",
        "mode": "single", "dtype": "float32", "repo_id": "you/set", "batch_size": 8,
        "num_workers": 2, "rank": 0, "world_size": 2, "samples_per_s": rate,
        "decoded_frames_per_s": 2 * rate, "frames_per_s_node": rate, "floor_ratio": 0.5,
        "floor_frames_per_s": 4 * rate, "p50_sample_latency_ms": 1.0,
        "p95_sample_latency_ms": 2.0, "p99_sample_latency_ms": 3.0, "first_batch_latency_s": 0.5,
        "peak_rss_gb": 1.0, "wait_pct": 99.0, "move_pct": 1.0, "fetch_pct": None,
        "stage_s": {"read_s": 1.0, "decode_s": 3.0, "convert_s": 0.5, "plan_s": 0.5},
        "order": {"C": 64}, "versions": {"torch": "2"}, "env": {"cpu": "A <b> CPU"},
        "command": "python x --y '<z>'",
        "series": {
            "latency_ms_at_percent": [p / 10 for p in range(101)],
            "samples_per_s": [[0.1, 90.0], [0.2, 110.0]],
            "rss_gb": [[0.5, 0.4], [1.0, 1.0]],
        },
    }  # fmt: skip
    return base | changes


@pytest.fixture
def folder(tmp_path):
    """A function that writes records into a folder, and the folder."""

    def write(*records: dict):
        for number, each in enumerate(records):
            path = tmp_path / f"node{number}" / f"{number}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(each))
        return tmp_path

    return write


def test_ranks_add_up_and_the_worst_counts(folder):
    slow = record(rank=1, samples_per_s=60.0, p99_sample_latency_ms=9.0, peak_rss_gb=2.0,
                  floor_ratio=0.3, p50_sample_latency_ms=3.0)  # fmt: skip
    (group,) = merge.read(folder(record(), slow)).groups
    found = group.figures
    assert found["samples_per_s"] == 160.0
    assert found["decoded_frames_per_s"] == 320.0
    assert found["samples_per_s_node"] == found["frames_per_s_node"] == 80.0
    assert found["slowest_rank_ratio"] == 0.75
    assert (found["p99_sample_latency_ms"], found["peak_rss_gb"]) == (9.0, 2.0)
    assert found["p50_sample_latency_ms"] == 2.0
    assert found["floor_ratio"] == pytest.approx(0.4)
    assert found["stage_s"]["decode_s"] == 6.0
    assert found["fetch_pct"] is None
    assert (found["ranks"], found["world_size"], group.missing) == (2, 2, [])


def test_repeats_of_a_rank_are_their_median(folder):
    runs = [record(world_size=1, samples_per_s=rate) for rate in (50.0, 70.0, 400.0)]
    (group,) = merge.read(folder(*runs)).groups
    assert group.figures["samples_per_s"] == 70.0
    assert (group.figures["ranks"], group.figures["repeats"]) == (1, 3)
    assert merge.spread(group, "samples_per_s") == (50.0, 400.0)


def test_peers_meet_in_the_same_work_only(folder):
    other = record(world_size=1, impl="lerobot", samples_per_s=25.0, num_workers=4)
    ours = record(world_size=1)
    elsewhere = record(world_size=1, mode="sarm")
    groups = merge.read(folder(ours, other, elsewhere)).groups
    ratios = {(g.impl, g.first["mode"]): g.figures.get("baseline_ratio") for g in groups}
    assert ratios == {
        ("reelpool", "single"): 4.0,
        ("lerobot", "single"): 1.0,
        ("reelpool", "sarm"): None,
    }


def test_missing_ranks_failures_and_broken_files_are_told_and_fail(folder, capsys):
    root = folder(
        record(),
        {"scenario": "stream_hub", "impl": "reelpool", "rank": 0,
         "failed": "x ended\n  Traceback\nreelpool.errors.AuthError: no token\n  Run: login"},
    )  # fmt: skip
    (root / "broken.json").write_text("{")
    (root / "other.json").write_text("[1]")  # not a result: no matter
    assert command.main(["bench", "--merge", str(root)]) == console.CHECK_FAILED
    out = capsys.readouterr().out
    assert "reelpool (2 workers), 2 ranks: of 2 ranks 1 left no result" in out
    assert "FAILED: stream_hub, reelpool, rank 0: reelpool.errors.AuthError: no token" in out
    assert "UNREADABLE: broken.json" in out
    page = (root / "report.html").read_text()
    assert "left no result" in page
    assert "no token" in page


def test_a_folder_that_cannot_be_listed_is_told_and_fails(folder, monkeypatch, capsys):
    root = folder(record(world_size=1), record(world_size=1))
    listed = os.scandir

    def scandir(place):
        if os.fspath(place) == str(closed):
            raise PermissionError(13, "Permission denied", place)
        return listed(place)

    monkeypatch.setattr(os, "scandir", scandir)
    closed = root / "node1"
    assert command.main(["bench", "--merge", str(root)]) == console.CHECK_FAILED
    assert "UNREADABLE: node1: Permission denied" in capsys.readouterr().out
    closed = root
    assert command.main(["bench", "--merge", str(root)]) == console.UNUSABLE
    assert "holds no results of a benchmark; .: Permission denied" in capsys.readouterr().err


def test_a_failure_of_lerobot_is_told_but_is_not_ours(folder, capsys):
    failed = {"scenario": "stream_hub", "impl": "lerobot", "failed": "IndexError: past the end"}
    root = folder(record(world_size=1), failed)
    assert command.main(["bench", "--merge", str(root)]) == console.OK
    assert (
        "FAILED: stream_hub, lerobot, rank 0: IndexError: past the end" in capsys.readouterr().out
    )


def test_merging_again_gives_the_same(folder):
    root = folder(record(), record(rank=1))
    assert command.main(["bench", "--merge", str(root), "-q"]) == console.OK
    first = (root / "merged.json").read_text()
    assert command.main(["bench", "--merge", str(root), "-q"]) == console.OK
    assert (root / "merged.json").read_text() == first
    (row,) = csv.DictReader((root / "merged.csv").read_text().splitlines())
    assert float(row["samples_per_s"]) == 200.0


def test_targets_hold_merged_results_of_ours(folder, capsys):
    slow = record(impl="lerobot", world_size=1, samples_per_s=1.0, p99_sample_latency_ms=99.0)
    root = folder(record(), record(rank=1), slow)
    base = ["bench", "--merge", str(root)]
    assert command.main([*base, "--min", "samples_per_s=200", "--max",
                         "p99_sample_latency_ms=3"]) == console.OK  # fmt: skip
    capsys.readouterr()
    assert command.main([*base, "--min", "samples_per_s=201"]) == console.CHECK_FAILED
    assert "samples_per_s = 200.0, below 201" in capsys.readouterr().out
    assert command.main([*base, "--max", "p99_sample_latency_ms=2"]) == console.CHECK_FAILED
    assert command.main([*base, "--min", "fetch_pct=0"]) == console.CHECK_FAILED  # not measured
    assert "fetch_pct = not measured" in capsys.readouterr().out


def test_runs_are_held_to_their_own_targets_by_their_median(folder, capsys):
    bounds = [["frames_per_s_node", "min", 80.0], ["p99_sample_latency_ms", "max", 3.0]]
    runs = [record(world_size=1, samples_per_s=rate, targets=bounds) for rate in (70.0, 90, 100)]
    slow = record(impl="lerobot", world_size=1, samples_per_s=45.0, targets=bounds)
    root = folder(*runs, slow)  # one run of ours missed it, the median does not
    assert command.main(["bench", "--merge", str(root)]) == console.OK
    out = capsys.readouterr().out
    assert "MISSED" not in out
    page = (root / "report.html").read_text()
    (table,) = re.findall(r"<h2>Targets</h2>.*?</table>", page, re.DOTALL)
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>.*?</tr>", table)]
    assert [row[1:] for row in rows if row] == [
        ["reelpool (2 workers)", "frames_per_s_node", "90.0", "at least 80.0", "met", "2.00"],
        ["reelpool (2 workers)", "p99_sample_latency_ms", "3.00", "at most 3.00", "met", "2.00"],
        ["lerobot (2 workers)", "frames_per_s_node", "45.0", "at least 80.0", "missed", "1.00"],
        ["lerobot (2 workers)", "p99_sample_latency_ms", "3.00", "at most 3.00", "met", "1.00"],
    ]
    (root / "node0/0.json").write_text(json.dumps(record(world_size=1, targets=bounds) | {
        "frames_per_s_node": 10.0}))  # fmt: skip
    (root / "node1/1.json").unlink()
    (root / "node2/2.json").unlink()
    assert command.main(["bench", "--merge", str(root)]) == console.CHECK_FAILED
    assert "frames_per_s_node = 10.0, below 80" in capsys.readouterr().out


def test_a_target_of_a_run_is_one_of_each_rank(folder, capsys):
    bounds = [["samples_per_s", "min", 150.0]]
    root = folder(record(targets=bounds), record(rank=1, targets=bounds))
    assert command.main(["bench", "--merge", str(root)]) == console.CHECK_FAILED
    assert "samples_per_s = 100.0, below 150" in capsys.readouterr().out  # not 200, their sum


def test_targets_without_a_result_of_ours_are_missed(folder):
    root = folder(record(impl="lerobot", world_size=1))
    words = ["bench", "--merge", str(root), "--min", "samples_per_s=1"]
    assert command.main(words) == console.CHECK_FAILED


def test_the_page_is_one_file_of_well_formed_charts(folder, tmp_path):
    root = folder(record(), record(rank=1), record(world_size=1, impl="lerobot"))
    out = tmp_path / "page"
    assert command.main(["bench", "--merge", str(root), "--out_dir", str(out), "-q"]) == console.OK
    page = (out / "report.html").read_text()
    assert not re.search(r"(src|href)=|@import|url\(", page)
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    titles = " ".join(ElementTree.fromstring(c).get("aria-label") for c in charts)
    for title in ("Throughput", "Latency", "Memory"):
        assert title in titles
    assert "decode floor, mean" in page
    assert "% waiting for a batch" in page
    assert "A &lt;b&gt; CPU" in page
    assert "python x --y &#x27;&lt;z&gt;&#x27;" in page
    ElementTree.fromstring((out / "chart.svg").read_text())
    assert not (root / "report.html").exists()


def test_a_folder_that_cannot_be_written_is_said_at_once(folder, tmp_path, monkeypatch, capsys):
    (tmp_path / "file").touch()
    monkeypatch.setattr(quality, "compare", None)  # nothing is computed before
    monkeypatch.setattr(session, "run_all", None)
    for words in (["--merge", folder(record(world_size=1))], ["--quality"], ["--impl", "reelpool"]):
        command_line = ["bench", *words, "--out_dir", tmp_path / "file"]
        assert command.main([str(word) for word in command_line]) == console.UNUSABLE
        assert f"--out_dir {tmp_path}/file cannot be written: " in capsys.readouterr().err


def test_nothing_to_merge_is_said(tmp_path, capsys):
    assert command.main(["bench", "--merge", str(tmp_path)]) == console.UNUSABLE
    assert "holds no results" in capsys.readouterr().err
    assert command.main(["bench", "--merge", str(tmp_path / "none")]) == console.UNUSABLE
    assert "no such folder" in capsys.readouterr().err
