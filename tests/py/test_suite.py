"""The suite: a node's share of episodes, whole short runs, their files, and what goes wrong."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from reelpool.bench import merge, suite, suite_cli, suite_options, suite_record
from reelpool.bench.scenarios import DEMO
from reelpool.cli import console

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from reelpool.bench import suite_runner  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
DATA = DEMO / "dataset"

# What LeRobot's benchmark_dataloading.py and benchmark_streaming.py write.
DATALOADING_KEYS = """
    scenario rank world_size loader batch_size num_workers episode_pool_size
    max_buffer_input_shards num_cameras image_shape fps peak_rss_gb samples_measured
    steady_window_s first_batch_latency_s samples_per_s decoded_frames_per_s
    single_proc_samples_per_s fetch_pct decode_pct shuffle_randomness_frac p50_sample_latency_ms
    p95_sample_latency_ms p99_sample_latency_ms total_time_s loaded_episodes num_shards
    data_files_root""".split()
STREAMING_KEYS = """
    frames_per_s_node samples_per_s first_batch_latency_s p50_sample_latency_ms
    p95_sample_latency_ms p99_sample_latency_ms wallclock_s video_decoder_cache source mode repo_id
    batch_size num_workers buffer_size device video_decode_device frames_measured""".split()
OURS = """
    impl num_threads order reuse stage_s floor_ratio wait_pct probe_skipped env command
    shuffle_randomness_uniform peak_pss_gb cpu_ms_per_sample read_pct substituted fetch
    bytes_fetched bytes_cached requests resolves node_cache""".split()


def metadata(files: list[tuple], lengths: list[int], cameras: int = 1) -> SimpleNamespace:
    """Metadata whose episode i lies in file files[i][c] of camera c (none: of data)."""
    table: dict = {"length": lengths}
    keys = [f"cam{c}" for c in range(cameras)]
    for column, prefix in enumerate([f"videos/{k}" for k in keys] or ["data"]):
        table[f"{prefix}/chunk_index"] = [0] * len(files)
        table[f"{prefix}/file_index"] = [f[column] for f in files]
    return SimpleNamespace(episodes=table, video_keys=keys, total_episodes=len(files))


def shares(meta, parts: int, cap: int = 0) -> list[list[int]]:
    return [suite.select_node_episodes(meta, parts, i, cap) for i in range(parts)]


def test_nodes_share_whole_files_the_longest_first():
    meta = metadata([(0,), (1,), (0,), (2,), (2,)], [10, 15, 10, 4, 5])
    assert shares(meta, 2) == [[0, 2], [1, 3, 4]]


def test_files_of_any_camera_tie_episodes_together():
    meta = metadata([(0, 0), (1, 0), (2, 1), (3, 1)], [1, 1, 1, 1], cameras=2)
    assert shares(meta, 2) == [[0, 1], [2, 3]]


def test_without_video_data_files_decide_and_few_files_are_split():
    meta = metadata([(0,), (0,), (1,)], [3, 3, 3], cameras=0)
    assert shares(meta, 2) == [[0, 1], [2]]
    assert shares(meta, 3) == [[0], [1], [2]]  # fewer groups than nodes: single episodes
    with pytest.raises(ValueError, match="3 episodes"):
        shares(meta, 4)
    with pytest.raises(ValueError, match="partition 2 of 2"):
        suite.select_node_episodes(meta, 2, 2, 0)


def test_the_cap_keeps_the_first_and_zero_keeps_all():
    meta = metadata([(0,)] * 6, [1] * 6)
    assert suite.select_node_episodes(meta, 1, 0, 4) == [0, 1, 2, 3]
    assert suite.select_node_episodes(meta, 1, 0, 0) == [0, 1, 2, 3, 4, 5]
    assert suite.select_node_episodes(meta, 1, 0, 100) == [0, 1, 2, 3, 4, 5]


def test_quantiles_are_of_the_gaps_after_the_warm_up():
    raw = {"arrivals": [5.0, 6.0, 6.1, 6.4], "sizes": [10, 10, 10, 10]}
    found = suite_record.latency_quantiles(raw, 1)
    assert len(found) == 101
    assert found[0] == found[50] == pytest.approx(10.0)
    assert found[51] == found[100] == pytest.approx(30.0)


def probed(outcomes: list, samples: int, warmup: int) -> dict:
    """The probe over a list of (fetch, whole) seconds and exceptions."""
    config = {"probe_samples": samples, "probe_warmup": warmup}
    todo = iter(outcomes)

    def draw():
        outcome = next(todo)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return suite_runner.Probe(config, dict).run(draw)


def test_the_probe_steps_over_bad_frames_and_counts_them():
    bad = RuntimeError("undecodable")
    found = probed([bad, (9.0, 9.0), (1.0, 4.0), bad, (1.0, 4.0), (9.0, 9.0)], 2, 1)
    assert (found["skipped"], found["measured"]) == (2, 2)
    assert found["samples_per_s"] == 0.25
    assert found["fetch_pct"] == 25.0
    assert found["error"] == "RuntimeError: undecodable"


def test_a_probe_without_a_sound_frame_says_why():
    found = probed([ValueError("all bad")] * 30, 2, 1)
    assert found["skipped"] == 30
    assert "all bad" in found["reason"]
    assert "samples_per_s" not in found


def test_what_servers_were_asked_is_summed_over_workers():
    one = {"requests": 2, "bytes_fetched": 10, "retries": {"reset": 1, "503": 2}}
    two = {"requests": 1, "bytes_fetched": 5, "retries": {"reset": 3}, "resolves": 1}
    found = suite_runner.fetched([{"fetch": one}, {"fetch": two}, {"samples": 3}])
    assert found == {
        "requests": 3, "bytes_fetched": 15, "resolves": 1, "retries": {"reset": 4, "503": 2}
    }  # fmt: skip
    assert suite_runner.fetched([{"samples": 3}]) == {}


def test_remote_runs_begin_with_an_empty_node_cache_unless_told(tmp_path):
    def variables(*words):
        parser = console.Parser()
        suite_options.streaming_options(parser)
        args = parser.parse_args([*words, "--out_dir", str(tmp_path), "--impl", "reelpool,lerobot"])
        return [suite._node_cache(plan) for plan in suite.plan_streaming(args)]

    bucket = ("--data_files_root", "hf://buckets/a/b")
    for words in ((), ("--root", "/data", *bucket)):
        ours, theirs = variables(*words)
        with ours as mine, theirs as others:
            assert not list(Path(mine["REELPOOL_CACHE"]).iterdir())
            assert "REELPOOL_CACHE" not in others
        assert not Path(mine["REELPOOL_CACHE"]).exists()
    for words in (("--node_cache", "kept"), ("--root", "/data")):
        with variables(*words)[0] as mine:
            assert "REELPOOL_CACHE" not in mine


def check_record(path: Path, keys: list[str]) -> dict:
    """A result file: every key there, none null without a reason, its CSV the same."""
    record = json.loads(path.read_text())
    assert [k for k in [*keys, *OURS] if k not in record] == []
    nulls = [k for k, v in record.items() if v is None]
    assert sorted(record["null_reasons"]) == sorted(nulls)
    assert all(record["null_reasons"].values())
    with path.with_suffix(".csv").open() as stream:
        (row,) = csv.DictReader(stream)
    assert set(row) == set(record) - {"series"}
    assert float(row["samples_per_s"]) == record["samples_per_s"] > 0
    assert len(record["series"]["latency_ms_at_percent"]) == 101
    assert record["series"]["rss_gb"]
    return record


def short(out: Path, *words: str) -> list[str]:
    """Options of a run of a moment."""
    base = ["--num_batches", "8", "--warmup_batches", "2", "--probe_samples", "4", "--floor_s"]
    return [*base, "0", "--device", "cpu", "--quiet", "--out_dir", str(out), *words]


def test_a_map_style_scenario_with_workers(tmp_path):
    words = ("--scenario", "mmap_local_maxworkers", "--local_root", str(DATA), "--batch_size", "4")
    parts = ("--num_partitions", "2", "--partition_index", "1", "--impl", "reelpool")
    options = short(tmp_path, *words, *parts, "--num_workers", "1", "--video_decode_device", "cuda")
    options += ["--min", "samples_per_s=0.001", "--max", "p99_sample_latency_ms=1e9"]
    assert suite_cli.dataloading(options) == console.OK
    found = check_record(
        tmp_path / "reelpool/mmap_local_maxworkers_bs4_w1_r0of1.json", DATALOADING_KEYS
    )
    assert (found["loader"], found["video_decode_device"]) == ("map_style", "cpu")
    assert found["samples_measured"] == 5 * 4  # batches 3 to 7
    assert found["num_threads"] == found["num_cameras"] == 2
    assert found["loaded_episodes"] == 2
    assert found["counters"]["delivered"] >= 8 * 4 * 2  # counted in the worker
    assert found["floor_ratio"] is None
    assert found["fetch_pct"] + found["decode_pct"] == pytest.approx(100.0)
    assert found["probe_skipped"] == found["substituted"] == 0
    assert "bs4" not in found["command"]


def test_windows_of_the_streaming_class_with_a_worker(tmp_path, capsys):
    words = f"--root {DATA} --repo_id demo --mode sarm --source bucket --batch_size 4".split()
    more = ("--impl", "reelpool", "--num_workers", "1", "--buffer_size", "7")
    options = short(tmp_path, *words, *more, "--max", "world_size=0.5")
    assert suite_cli.streaming(options) == console.CHECK_FAILED  # results are written all the same
    assert "MISSED: stream, reelpool: world_size = 1, above 0.5" in capsys.readouterr().out
    found = check_record(tmp_path / "reelpool/bucket_sarm_bs4_w1_cpu.json", STREAMING_KEYS)
    assert (found["source"], found["buffer_size"]) == ("bucket", 7)
    assert found["targets"] == [["world_size", "max", 0.5]]
    assert found["frames_measured"] == 5 * 4 * 8
    assert found["frames_per_s_node"] == pytest.approx(8 * found["samples_per_s"], rel=1e-3)
    cache = found["video_decoder_cache"]
    assert set(cache) == {"hits", "misses", "evictions", "hit_rate", "size"}
    assert cache["hits"] > 0  # counted in the worker
    assert 0 < cache["hit_rate"] < 1
    assert set(found["order"]) == set("CURkgJ")


@pytest.mark.parametrize("scenario", suite_options.SCENARIOS)
def test_every_scenario_has_every_key(tmp_path, monkeypatch, scenario):
    kind = suite_options.SCENARIOS[scenario]
    monkeypatch.setenv("RANK", str(kind.nodes - 1))
    monkeypatch.setenv("WORLD_SIZE", str(kind.nodes))
    words = ("--scenario", scenario, "--root", str(DATA), "--data_files_root", str(DATA))
    more = ("--local_root", str(DATA), "--num_partitions", "1", "--impl", "reelpool_loader")
    options = short(tmp_path, *words, *more, "--batch_size", "4", "--num_batches", "5")
    assert suite_cli.dataloading(options) == console.OK
    tag = f"{scenario}_bs4_w0_r{kind.nodes - 1}of{kind.nodes}"
    found = check_record(tmp_path / f"reelpool_loader/{tag}.json", DATALOADING_KEYS)
    assert (found["loader"], found["scenario"]) == (kind.kind, scenario)
    nulls = {k for k in DATALOADING_KEYS if found[k] is None}
    order = {"episode_pool_size", "max_buffer_input_shards", "num_shards"}
    if kind.kind == "map_style":
        assert nulls == order | {"data_files_root"}
    else:
        assert nulls == (set() if kind.bucket else {"data_files_root"})


@pytest.mark.parametrize("mode", ["single", "sarm", "sarm_action"])
def test_every_mode_has_every_key(tmp_path, mode):
    words = ("--root", str(DATA), "--repo_id", "demo", "--mode", mode, "--source", "local")
    more = ("--impl", "reelpool", "--num_workers", "0", "--batch_size", "4", "--num_batches", "5")
    assert suite_cli.streaming(short(tmp_path, *words, *more)) == console.OK
    found = check_record(tmp_path / f"reelpool/local_{mode}_bs4_w0_cpu.json", STREAMING_KEYS)
    assert [k for k in STREAMING_KEYS if found[k] is None] == []
    assert found["mode"] == mode


def test_an_implementation_that_fails_leaves_its_reason(tmp_path, capsys):
    words = ("--scenario", "stream_hub", "--root", str(DATA), "--repo_id", "demo")
    stale = tmp_path / "reelpool_loader/stream_hub_bs4000_w0_r0of1.json"
    stale.parent.mkdir()
    stale.write_text("{}")  # of an earlier run: it must not be taken for this one's
    options = short(tmp_path, *words, "--impl", "reelpool_loader", "--batch_size", "4000")
    assert suite_cli.dataloading(options) == console.CHECK_FAILED
    said = capsys.readouterr().err
    assert "smaller than one batch" in said and "Traceback" not in said
    assert not stale.exists()
    failed = json.loads(stale.with_suffix(".failed.json").read_text())
    assert "smaller than one batch" in failed["failed"]
    assert failed["scenario"] == "stream_hub"


def test_no_sample_within_the_window_says_so(tmp_path, capsys):
    words = ("--root", str(DATA), "--repo_id", "demo", "--impl", "reelpool,reelpool_loader")
    more = ("--num_workers", "0", "--batch_size", "4", "--num_batches", "2")
    assert suite_cli.streaming(short(tmp_path, *words, *more)) == console.CHECK_FAILED
    said = capsys.readouterr().err
    assert "none after 2 of warm-up: raise --duration_s or --num_batches" in said
    assert "Traceback" not in said
    for impl in ("reelpool", "reelpool_loader"):  # the second one has its turn all the same
        (left,) = (tmp_path / impl).glob("*.json")
        assert "none after 2 of warm-up: raise" in json.loads(left.read_text())["failed"]
        assert left.name == "hub_single_bs4_w0_cpu.failed.json"


def test_a_floor_that_cannot_be_measured_costs_no_result(monkeypatch):
    config = {"loader": "streaming", "root": str(DATA), "data_files_root": None,
              "repo_id": "demo", "episodes": None}  # fmt: skip

    def fails(self, kind):
        raise RuntimeError("decode_floor failed on a file")

    monkeypatch.setattr(suite.Floor, "measure", fails)
    floor = suite._Floor(config, 0.1)
    assert floor.measure() is None
    assert floor.why == "decode_floor failed on a file"
    assert suite._Floor(config | {"root": None}, 0.1).why == "the files are remote"
    assert suite._Floor(config | {"data_files_root": "hf://b"}, 0.1).why == "the files are remote"
    floor.close()


def test_bad_input_is_said_before_anything_is_measured(tmp_path, capsys):
    def said(*words: str) -> tuple[int, str]:
        status = suite_cli.dataloading([*words, "--impl", "reelpool", "--floor_s", "0"])
        return status, capsys.readouterr().err

    status, text = said("--scenario", "mmap_local")
    assert status == console.UNUSABLE
    assert "mmap_local needs --local_root" in text
    status, text = said("--scenario", "mmap_local", "--local_root", str(tmp_path))
    assert status == console.UNUSABLE
    assert "no meta/info.json" in text
    status, text = said("--scenario", "mmap_local", "--local_root", str(DATA))
    assert status == console.UNUSABLE
    assert "4 episodes cannot fill 8 partitions: see --num_partitions" in text
    status, text = said("--scenario", "mmap_remote")
    assert status == console.USAGE
    assert "invalid choice: 'mmap_remote'" in text
    (tmp_path / "file").touch()
    words = ("--scenario", "stream_hub", "--root", str(DATA))
    status, text = said(*words, "--out_dir", str(tmp_path / "file"))
    assert status == console.UNUSABLE
    assert f"--out_dir {tmp_path}/file cannot be written" in text
    for bound in ("p99_sample_latency_ms", "=3", "samples_per_s=nan"):
        status, text = said(*words, "--max", bound)
        assert status == console.USAGE
        assert f"'{bound}' is not METRIC=VALUE" in text
    status, text = said(*words, "--device", "tpu")
    assert status == console.USAGE
    assert "'tpu': use cpu, cuda or cuda:N" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
@pytest.mark.parametrize("option", ["--device", "--video_decode_device"])
def test_a_device_that_is_not_here_is_said_at_once(tmp_path, capsys, option):
    words = ("--root", str(DATA), "--repo_id", "demo", "--impl", "reelpool", option, "cuda:1")
    assert suite_cli.streaming(short(tmp_path, *words)) == console.UNUSABLE
    said = capsys.readouterr().err
    assert f"{option} cuda:1: torch {torch.__version__}" in said
    assert "finds no CUDA device" in said
    assert not list(tmp_path.iterdir())


def test_devices_are_counted_from_zero(monkeypatch):
    plans = [SimpleNamespace(python="p", config={"device": "cuda:1", "video_decode_device": "cpu"})]
    monkeypatch.setattr(suite, "_cuda_devices", lambda python: (2, "2.0"))
    suite._check_devices(plans)
    monkeypatch.setattr(suite, "_cuda_devices", lambda python: (1, "2.0"))
    with pytest.raises(suite.SuiteUnusable, match=r"torch 2\.0 of p finds 1 CUDA device;"):
        suite._check_devices(plans)


def test_a_cancelled_job_says_so_and_leaves_no_process(tmp_path):
    words = ["--scenario", "stream_hub", "--root", str(DATA), "--repo_id", "demo"]
    more = ["--impl", "reelpool_loader", "--batch_size", "4", "--floor_s", "0"]
    script = str(ROOT / "benchmarks/benchmark_dataloading.py")
    job = subprocess.Popen(
        [sys.executable, script, *words, *more, "--out_dir", str(tmp_path)],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with job:
        assert "rank 0 of 1" in job.stderr.readline()
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
        while not (child := children.read_text().split()):
            assert job.poll() is None
        job.send_signal(signal.SIGTERM)
        assert "cancelled, or out of time; partial results are kept" in job.stderr.read()
        assert job.wait() == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(child[0]), 0)
    failed = tmp_path / "reelpool_loader/stream_hub_bs4_w0_r0of1.failed.json"
    assert "SIGTERM" in json.loads(failed.read_text())["failed"]


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="no ffmpeg program")
def test_one_command_holds_both_modes_against_their_targets(tmp_path):
    out = tmp_path / "out"
    words = "--impl reelpool_loader --duration_s 0.2 --batch_size 4 --floor_s 0".split()
    command = [sys.executable, str(ROOT / "benchmarks/streaming/targets.py"), str(DATA), *words]
    command += ["--min_single", "0.001", "--min_sarm", "1e9", "--out_dir", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == console.CHECK_FAILED, done.stderr
    (missed,) = (line for line in done.stdout.splitlines() if line.startswith("MISSED"))
    assert "sarm" in missed and "below 1e+09" in missed
    merged = json.loads((out / "merged.json").read_text())["results"]
    assert {r["mode"]: r["targets"] for r in merged} == {
        "single": [["frames_per_s_node", "min", 0.001]],
        "sarm": [["frames_per_s_node", "min", 1e9]],
    }
    assert "<h2>Targets</h2>" in (out / "report.html").read_text()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and f"--out_dir {out} exists" in done.stderr


@pytest.fixture
def lerobot_python(tmp_path, monkeypatch):
    """An interpreter that has LeRobot: this one, or that of the comparison (tests/parity)."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    if importlib.util.find_spec("lerobot"):
        return sys.executable
    other = ROOT / ".venv-parity/bin/python"
    if not other.exists():
        pytest.skip("lerobot is not importable")
    return str(other)


def beside_lerobot(out, lerobot_python, *words):
    """Options of a run of ours and of LeRobot's classes."""
    more = ("--impl", "reelpool,lerobot", "--lerobot_python", lerobot_python, "--num_workers", "1")
    return short(out, *words, *more, "--batch_size", "4")


def compared(out, tag, keys):
    """The records of both, merged: LeRobot's is what ours is held against."""
    ours, theirs = (check_record(out / f"{i}/{tag}.json", keys) for i in ("reelpool", "lerobot"))
    assert theirs["versions"]["lerobot"]
    for key in ("samples_measured", "num_cameras", "image_shape", "fps", "loaded_episodes"):
        assert theirs[key] == ours[key], key
    best = {g.impl: g.figures["baseline_ratio"] for g in merge.read(out).groups}
    assert best["lerobot"] == 1.0 and best["reelpool"] > 0


def test_lerobots_map_style_class_runs_the_same_scenario(tmp_path, lerobot_python):
    words = ("--scenario", "mmap_local", "--local_root", str(DATA), "--num_partitions", "1")
    options = beside_lerobot(tmp_path, lerobot_python, *words)
    assert suite_cli.dataloading(options) == console.OK
    compared(tmp_path, "mmap_local_bs4_w1_r0of1", DATALOADING_KEYS)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["single", "sarm"])
def test_lerobots_streaming_class_runs_the_same_mode(tmp_path, lerobot_python, mode):
    copy, out = tmp_path / "copy", tmp_path / "out"
    # It reads wrong frames, or fails, where a camera has a second file.
    program = [sys.executable, ROOT / "benchmarks/one_file.py", DATA, copy]
    subprocess.run(program, check=True, capture_output=True)
    words = ("--root", str(copy), "--repo_id", "demo", "--mode", mode, "--source", "local")
    options = beside_lerobot(out, lerobot_python, *words, "--buffer_size", "20")
    assert suite_cli.streaming(options) == console.OK
    compared(out, f"local_{mode}_bs4_w1_cpu", STREAMING_KEYS)


@pytest.mark.parametrize("built", ["", "nvcc 13.0, sm_90"])
def test_own_loader_makes_batches_on_the_device(monkeypatch, built):
    """A build without the kernel leaves moving them to the consumer."""
    import reelpool
    from reelpool import engine

    seen = {}
    monkeypatch.setattr(reelpool, "Loader", lambda *args, **options: seen.update(options))
    monkeypatch.setattr(
        engine, "load_core", lambda: SimpleNamespace(describe=lambda: {"cuda": built})
    )
    config = {"loader": "streaming", "batch_size": 2, "num_threads": 1, "prefetch_factor": 2}
    config |= {"device": "cuda:1", "video_decode_device": "cpu"}
    suite_runner.own_loader(None, config)
    assert seen.get("device") == ("cuda:1" if built else None)
    suite_runner.own_loader(None, config | {"video_decode_device": "cuda:0"})
    assert seen["device"] == "cuda:0"  # the dataset's
