"""The benchmark's arithmetic, its choice of cases, and one whole run on the embedded data set."""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import subprocess
import sys
import time

import pytest
from reelpool.bench import metrics, scenarios, session
from reelpool.cli import bench

DEMO = scenarios.DEMO / "dataset"


def options(*words: str) -> argparse.Namespace:
    """The options of a command line, defaults filled in."""
    parser = argparse.ArgumentParser()
    bench.add_options(parser)
    args = parser.parse_args(list(words))
    bench._fill(args, True)
    return args


@pytest.fixture(scope="module")
def facts() -> scenarios.Facts:
    return scenarios.read_facts("demo", DEMO)


def test_nearest_rank():
    values = [float(v) for v in range(1, 101)]
    assert metrics.nearest_rank(values, 50) == 50
    assert metrics.nearest_rank(values, 99) == 99
    assert metrics.nearest_rank([3.0], 95) == 3.0
    assert metrics.nearest_rank([], 50) != metrics.nearest_rank([], 50)  # NaN


def test_uniform_episodes_is_the_mean_over_all_batches():
    lengths, size = [3, 1, 4], 3
    owners = [e for e, n in enumerate(lengths) for _ in range(n)]
    batches = list(itertools.combinations(owners, size))
    mean = sum(len(set(b)) for b in batches) / len(batches) / size
    assert metrics.uniform_episodes(lengths, size) == pytest.approx(mean)


def _raw(**changes) -> dict:
    """Ten batches of 4, one each 0.1 s, the first after 1 s."""
    return {
        "arrivals": [1.0 + 0.1 * i for i in range(10)],
        "sizes": [4] * 10,
        "episodes": [2] * 10,
        "steady_cpu_s": 0.8,
        "minor_faults": 14,
        "construct_s": 0.25,
        "stats": {"delivered": 30, "decoded": 20, "decode_s": 0.5},
    } | changes


def test_summary_counts_from_the_batch_after_the_warm_up():
    case = {"warmup_batches": 2, "batch_size": 4, "mode": "sarm", "cameras": ["a", "b"]}
    figures = metrics.summarize(_raw(), case, [10, 10])
    assert figures["samples_measured"] == 28
    assert figures["steady_window_s"] == pytest.approx(0.7)
    assert figures["samples_per_s"] == pytest.approx(40.0)
    assert figures["frames_per_s_node"] == pytest.approx(40.0 * 8)
    assert figures["decoded_frames_per_s"] == pytest.approx(40.0 * 8 * 2)
    assert figures["first_batch_latency_s"] == 1.0
    assert figures["p99_sample_latency_ms"] == pytest.approx(25.0)
    assert figures["cpu_ms_per_sample"] == pytest.approx(0.8 / 28 * 1e3, abs=1e-3)
    assert figures["minor_faults_per_batch"] == 2
    assert figures["shuffle_randomness_frac"] == 0.5
    assert figures["reuse"] == 1.5
    assert figures["stage_s"] == {"decode_s": 0.5}


def test_a_run_that_ended_in_the_warm_up_says_so():
    case = {"warmup_batches": 20, "batch_size": 4, "mode": "single", "cameras": ["a"]}
    with pytest.raises(ValueError, match="lower --warmup_batches"):
        metrics.summarize(_raw(), case, [10])


def test_combine_gives_median_and_range():
    runs = [{"samples_per_s": v, "name": "x"} for v in (3.0, 1.0, 2.0)]
    combined = metrics.combine(runs)
    assert combined["samples_per_s"] == 2.0
    assert combined["range"]["samples_per_s"] == [1.0, 3.0]
    assert combined["repeats"] == 3
    assert combined["name"] == "x"


def test_series_holds_every_sample():
    points = metrics.series(_raw(), points=4)
    width = points[1][0] - points[0][0]
    assert sum(rate * width for _, rate in points) == pytest.approx(40)


def test_memory_of_children_counts():
    """A child of the watched process holds 80 MB."""
    hold = "b = bytearray(b'x') * 80_000_000; import time; time.sleep(30)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {hold!r}])"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    watch = metrics.MemoryWatch(process.pid, 0.05)
    deadline = time.monotonic() + 60
    while watch.peaks()["peak_pss_gb"] < 0.08 and time.monotonic() < deadline:
        time.sleep(0.05)
    watch.stop()
    session.os.killpg(process.pid, session.signal.SIGKILL)
    process.wait()
    assert watch.peaks()["peak_rss_gb"] >= 0.08
    assert watch.peaks()["peak_pss_gb"] >= 0.08
    assert watch.peaks(own_peak=int(9e9))["peak_rss_gb"] == 9.0


def test_facts_of_the_embedded_set(facts):
    assert facts.lengths == [48, 44, 52, 40]
    assert facts.gop() == 2
    camera = "observation.images.wrist"
    assert len(facts.files(camera)) == 2
    starts = [e["videos"][camera][1] for e in facts.episodes]
    assert starts == [0, 48, 92, 0]


def test_cases_that_cannot_run_are_named(facts, monkeypatch):
    monkeypatch.setattr(scenarios, "_importable", lambda *_: False)
    cases, absent = scenarios.build(options(), facts, sys.executable)
    assert {(c.impl, c.loader) for c in cases} == {("reelpool", "threads")}
    assert len(absent) == 1
    assert absent[0].startswith("lerobot, torchcodec, av: not importable")


def test_gop_order_is_only_for_our_threads(facts, monkeypatch):
    monkeypatch.setattr(scenarios, "_importable", lambda *_: True)
    cases, _ = scenarios.build(options("--order", "gop"), facts, sys.executable)
    assert [(c.impl, c.loader, c.floor) for c in cases] == [("reelpool", "threads", "seq")]
    assert cases[0].config["locality"] == [2, 2, 16]


def test_other_readers_run_in_the_given_interpreter(facts, monkeypatch):
    monkeypatch.setattr(scenarios, "_importable", lambda *_: True)
    args = options("--lerobot_python", "other-python", "--order", "random")
    cases, _ = scenarios.build(args, facts, "this-python")
    assert {(c.impl, c.python) for c in cases} == {
        ("reelpool", "this-python"),
        ("lerobot", "other-python"),
        ("torchcodec", "other-python"),
        ("av", "other-python"),
    }


def test_a_failing_case_hands_over_its_last_words(facts):
    args = options("--impl", "reelpool", "--loader", "threads", "--order", "random")
    cases, _ = scenarios.build(args, facts, sys.executable)
    cases[0].config["root"] = str(DEMO / "missing")
    cases[0].config["impl"] = "av"  # needs no core, and fails on the empty table or the import
    with pytest.raises(session.CaseFailed, match="ended with status"):
        session.run_case(cases[0], 0.1)


def test_ratios_to_the_floor():
    """Two pictures a sample, 4 ms of processor time; the floor gives one in 1.8 ms."""
    run = {"decoded_frames_per_s": 900.0, "samples_per_s": 450.0, "cpu_ms_per_sample": 4.0}
    before, after = ({"frames_per_s": v, "cpu_ms": 1.8} for v in (900.0, 1100.0))
    found = session.against_floor(run, before, after)
    assert found["floor_frames_per_s"] == 1000.0
    assert found["floor_ratio"] == 0.9
    assert found["cpu_floor_ratio"] == 0.9
    without = session.against_floor(run, before | {"cpu_ms": None}, after)
    assert "cpu_floor_ratio" not in without


def test_targets(facts):
    case = scenarios.build(options("--impl", "reelpool", "--loader", "threads"), facts, "p")[0][0]
    result = session.Result(case, figures={"floor_ratio": 0.8})
    assert bench.missed_targets([result], [("floor_ratio", 0.7)]) == []
    assert len(bench.missed_targets([result], [("floor_ratio", 0.9)])) == 1
    assert "not measured" in bench.missed_targets([result], [("baseline_ratio", 1.0)])[0]


def test_a_whole_run(tmp_path):
    """`reelpool bench` of our own loader: files, keys, exit status 1 for a target out of reach."""
    command = [
        sys.executable,
        "-m",
        "reelpool",
        "bench",
        "--impl",
        "reelpool",
        "--loader",
        "threads",
    ]
    command += [
        "--duration-s",
        "0.2",
        "--warmup-batches",
        "1",
        "--order",
        "random,gop",
        "--json",
        "-q",
    ]
    command += ["--min", "samples_per_s=1e12", "--out-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["failed"] == {}
    assert len(document["results"]) == len(document["missed"]) == 2
    records = sorted(tmp_path.glob("demo_reelpool_threads_*.json"))
    assert len(records) == 2
    for path in records:
        record = json.loads(path.read_text())
        wanted = {
            "samples_per_s", "samples_measured", "steady_window_s", "decoded_frames_per_s",
            "frames_per_s_node", "p50_sample_latency_ms", "p95_sample_latency_ms",
            "p99_sample_latency_ms", "first_batch_latency_s", "total_time_s", "wallclock_s",
            "peak_rss_gb", "peak_pss_gb", "shuffle_randomness_frac", "shuffle_randomness_uniform",
            "floor_ratio", "cpu_ms_per_sample", "env", "scenario", "rank", "world_size", "loader",
            "batch_size", "num_workers", "num_cameras", "image_shape", "fps", "repo_id", "mode",
            "device", "loaded_episodes",
        }  # fmt: skip
        assert wanted <= record.keys()
        assert record["samples_per_s"] > 0
        assert record["decoded_frames_per_s"] == pytest.approx(
            2 * record["samples_per_s"], rel=1e-3
        )
        assert 0.02 < record["peak_rss_gb"] < 4
        with open(path.with_suffix(".csv"), newline="") as stream:
            rows = list(csv.DictReader(stream))
        assert len(rows) == 1
        assert float(rows[0]["samples_per_s"]) == record["samples_per_s"]
    assert (tmp_path / "contact_sheet.png").stat().st_size > 10_000
    page = (tmp_path / "report.html").read_text()
    assert "decode floor" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
