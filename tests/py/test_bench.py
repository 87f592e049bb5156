"""The benchmark's arithmetic, its choice of cases, and one whole run on the embedded data set."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import itertools
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from reelpool.bench import floor, metrics, runner, scenarios, session
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
    assert figures["counters"] == {"delivered": 30, "decoded": 20}
    assert figures["single_proc_samples_per_s"] is None


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
    seen = len(watch.samples)
    watch.forget_after(time.monotonic())
    assert len(watch.samples) == seen
    session.os.killpg(process.pid, session.signal.SIGKILL)
    process.wait()
    assert watch.peaks()["peak_rss_gb"] >= 0.08
    assert watch.peaks()["peak_pss_gb"] >= 0.08
    assert watch.peaks(own_peak=int(9e9))["peak_rss_gb"] == 9.0
    watch.forget_after(watch.begun)
    assert watch.peaks()["peak_rss_gb"] == 0


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


def _streams(facts, monkeypatch, *words: str) -> tuple[list, list]:
    """(label, floor) of the cases of order stream, and what is not measured."""
    monkeypatch.setattr(scenarios, "_importable", lambda *_: True)
    args = options("--order", "stream", "--lerobot_python", "other", *words)
    cases, absent = scenarios.build(args, facts, "own")
    assert len({c.tag("x") for c in cases}) == len(cases)
    return [(c.label, c.floor) for c in cases], absent


def _one_file(facts: scenarios.Facts) -> scenarios.Facts:
    """As if every camera had one video file."""
    videos = dict.fromkeys(facts.cameras, ("one.mp4", 0))
    episodes = [e | {"videos": videos} for e in facts.episodes]
    return dataclasses.replace(facts, episodes=episodes)


def test_streaming_cases(facts, monkeypatch):
    found, absent = _streams(_one_file(facts), monkeypatch, "--num_workers", "2,4")
    assert found == [
        ("reelpool threads", "seq"),
        ("reelpool workers (2)", "seq"),
        ("reelpool workers (4)", "seq"),
        ("lerobot workers (1)", "seq"),  # its data files feed one worker
    ]
    assert len(absent) == 2
    many = dataclasses.replace(_one_file(facts), data_files=64)
    found, _ = _streams(many, monkeypatch, "--num_workers", "2,8", "--impl", "lerobot")
    assert [label for label, _ in found] == ["lerobot workers (2)", "lerobot workers (4)"]


def test_streaming_windows_meet_both_of_lerobots_classes(facts, monkeypatch):
    words = ("--mode", "sarm", "--loader", "workers", "--impl", "reelpool,lerobot")
    monkeypatch.setattr(bench, "_fill", lambda args, _: _filled(args, 2))
    found, _ = _streams(_one_file(facts), monkeypatch, *words)
    assert [label for label, _ in found] == [
        "reelpool workers (1)", "reelpool workers (2)", "lerobot workers (1)",
        "lerobot map workers (2)",
    ]  # fmt: skip


def _filled(args: argparse.Namespace, cpus: int) -> None:
    args.workers_given, args.num_workers, args.num_threads = False, (cpus,), cpus
    args.batch_size, args.duration_s = 4, 1.0


def test_lerobots_streaming_is_left_out_where_it_cannot_read(facts, monkeypatch):
    words = ("--impl", "lerobot")
    found, absent = _streams(facts, monkeypatch, *words)  # a camera of it has two files
    assert found == []
    assert "one_file.py" in absent[0]
    found, absent = _streams(_one_file(facts), monkeypatch, *words, "--max_episodes", "2")
    assert found == []
    assert "--max_episodes" in absent[0]


def test_ratios_to_lerobots_best_case(facts, monkeypatch):
    def result(impl, variant, workers, rate):
        case = scenarios.Case(impl, "workers", "sarm", "stream", "uint8", 4, workers, "p")
        case.variant = variant
        return session.Result(case, [{"samples_per_s": rate}])

    results = [result("reelpool", "", 2, 60.0), result("lerobot", "", 1, 5.0),
               result("lerobot", "", 2, 6.0), result("lerobot", "map", 2, 20.0)]  # fmt: skip
    session._finish(results)
    assert results[0].figures["baseline_ratio"] == 10.0
    assert results[0].figures["map_ratio"] == 3.0
    assert results[3].figures["baseline_ratio"] == pytest.approx(20 / 6, abs=1e-3)


class Ticking:
    """Samples and counters of a reader; a sample moves the clock by a tenth."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(runner.time, "perf_counter", lambda: self.now)

    def alone(self):
        def samples():
            while True:
                self.now += 0.1
                yield {}

        return samples(), lambda: {"decode_s": 0.6 * self.now, "read_s": 0.1 * self.now, "runs": 3}


def test_probe_counts_after_its_warm_up(monkeypatch):
    config = {"probe_samples": 20, "probe_warmup": 4}
    reader = runner.Reader(None, alone=Ticking(monkeypatch).alone)
    found = runner.probe(reader, config)
    assert found["samples_per_s"] == pytest.approx(10.0)
    assert found["stages"] == pytest.approx({"decode_s": 0.6, "read_s": 0.1})
    figures = metrics.summarize(
        _raw(probe=found),
        {"warmup_batches": 2, "batch_size": 4, "mode": "single", "cameras": ["a"]},
        [10],
    )
    assert figures["single_proc_samples_per_s"] == pytest.approx(10.0)
    assert (figures["fetch_pct"], figures["decode_pct"]) == (10.0, 60.0)
    assert runner.probe(runner.Reader(None), config) == {}
    assert runner.probe(reader, config | {"probe_samples": 0}) == {}


def test_probe_of_an_epoch_shorter_than_it(monkeypatch):
    ticking = Ticking(monkeypatch)

    def alone():
        samples, stats = ticking.alone()
        return itertools.islice(samples, 7), stats

    found = runner.probe(runner.Reader(None, alone=alone), {"probe_samples": 20, "probe_warmup": 4})
    assert found["samples_per_s"] == pytest.approx(10.0)
    found = runner.probe(runner.Reader(None, alone=alone), {"probe_samples": 20, "probe_warmup": 9})
    assert found["samples_per_s"] == pytest.approx(10.0)


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg program")
def test_a_copy_with_one_file_per_camera_has_the_same_frames(tmp_path):
    from reelpool import LeRobotDataset

    script = Path(scenarios.__file__).parents[3] / "benchmarks/one_file.py"
    command = [sys.executable, str(script), str(DEMO), str(tmp_path / "copy")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    copied = scenarios.read_facts("copy", tmp_path / "copy")
    assert [len(copied.files(camera)) for camera in copied.cameras] == [1, 1]
    first, second = (
        LeRobotDataset("demo", root=root, return_uint8=True) for root in (DEMO, tmp_path / "copy")
    )
    assert len(first) == len(second) == 184
    for i in (0, 47, 48, 91, 92, 143, 144, 183):
        for camera in copied.cameras:
            assert (first[i][camera] == second[i][camera]).all(), (i, camera)
    again = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert again.returncode == 1
    assert "exists" in again.stderr


def test_a_failing_case_hands_over_its_last_words(facts):
    args = options("--impl", "reelpool", "--loader", "threads", "--order", "random")
    cases, _ = scenarios.build(args, facts, sys.executable)
    cases[0].config["root"] = str(DEMO / "missing")
    cases[0].config["impl"] = "av"  # needs no core, and fails on the empty table or the import
    with pytest.raises(session.CaseFailed, match="ended with status"):
        session.run_case(cases[0], 0.1)


def _can_build() -> bool:
    if shutil.which("gcc") is None or shutil.which("pkg-config") is None:
        return False
    asked = subprocess.run(["pkg-config", "--exists", "libavcodec"], capture_output=True)
    return asked.returncode == 0


@pytest.mark.skipif(not _can_build(), reason="no gcc, pkg-config or headers of libavcodec")
@pytest.mark.parametrize("kind", ["seq", "random"])
def test_the_floor_is_the_bare_decoder_where_it_can_be_built(facts, kind):
    bare = floor.Floor(facts.files(facts.cameras[0])[:1], 1, 0.1)
    try:
        assert bare.source.startswith("decode_floor: libavcodec alone")
        assert bare.measure(kind)["cpu_ms"] > 0
    finally:
        bare.close()


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
    assert bench.missed_targets([result], [], [("floor_ratio", 0.9)]) == []
    above = bench.missed_targets([result], [], [("floor_ratio", 0.7)])
    assert above == ["reelpool threads, single, random, uint8: floor_ratio = 0.8, above 0.7"]
    assert "not measured" in bench.missed_targets([result], [("baseline_ratio", 1.0)])[0]


@pytest.mark.parametrize("orders", ["gop", pytest.param("random,gop", marks=pytest.mark.soak)])
def test_a_whole_run(orders, tmp_path):
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
        orders,
        "--json",
        "-q",
    ]
    command += ["--min", "samples_per_s=1e12", "--out-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert document["failed"] == {}
    assert len(document["results"]) == len(document["missed"])
    count = orders.count(",") + 1
    assert len(document["results"]) == count
    records = sorted(tmp_path.glob("demo_reelpool_threads_*.json"))
    assert len(records) == count
    for path in records:
        record = json.loads(path.read_text())
        wanted = {
            "samples_per_s", "samples_measured", "steady_window_s", "decoded_frames_per_s",
            "frames_per_s_node", "p50_sample_latency_ms", "p95_sample_latency_ms",
            "p99_sample_latency_ms", "first_batch_latency_s", "total_time_s", "wallclock_s",
            "peak_rss_gb", "peak_pss_gb", "shuffle_randomness_frac", "shuffle_randomness_uniform",
            "floor_ratio", "cpu_ms_per_sample", "env", "scenario", "rank", "world_size", "loader",
            "batch_size", "num_workers", "num_cameras", "image_shape", "fps", "repo_id", "mode",
            "device", "loaded_episodes", "single_proc_samples_per_s", "fetch_pct", "decode_pct",
            "counters", "buffer_size", "window",
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
