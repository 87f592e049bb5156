"""LeRobot's own dataloading benchmark (upstream_dataloading.py) runs on reelpool's classes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from demo_sets import ROOT
from reelpool import LeRobotDatasetMetadata
from reelpool.bench import suite

pytest.importorskip("torch", reason="needs the extra `torch`")

SCRIPT = Path(__file__).with_name("upstream_dataloading.py")
REPO = "you/streamed"


def run(home, out, scenario, *more, ranks=1):
    """Results of every rank of a scenario."""
    command = [
        sys.executable, SCRIPT, "--scenario", scenario, "--local_root", ROOT,
        "--bucket", home / REPO,
        "--map_repo", "you/local", "--stream_repo", REPO, "--num_partitions", 2, "--batch_size", 4,
        "--num_batches", 9, "--warmup_batches", 2, "--probe_samples", 6, "--probe_warmup", 2,
        "--device", "cpu", "--out_dir", out, *more,
    ]  # fmt: skip
    base = {**os.environ, "HF_LEROBOT_HOME": str(home), "OMP_NUM_THREADS": "1"}
    environments = [{**base, "RANK": str(r), "WORLD_SIZE": str(ranks)} for r in range(ranks)]
    jobs = [
        subprocess.Popen([str(word) for word in command], env=environment, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for environment in environments
    ]  # fmt: skip
    for job in jobs:
        text, _ = job.communicate(timeout=120)
        assert job.returncode == 0, text
    return [json.loads(p.read_text()) for p in sorted(out.glob(f"{scenario}*.json"))]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A LeRobot home with a copy of the streamed set."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copytree(ROOT, folder / REPO)
    return folder


def check(found):
    """Every figure is there and of the kind that it should be."""
    assert found["samples_measured"] == 6 * 4  # batches 4 to 9
    assert found["decoded_frames_per_s"] == pytest.approx(2 * found["samples_per_s"], abs=0.02)
    assert found["fetch_pct"] + found["decode_pct"] == pytest.approx(100, abs=0.11)
    assert 0 < found["shuffle_randomness_frac"] <= 1
    assert (found["num_cameras"], found["image_shape"], found["fps"]) == (2, [240, 320, 3], 10)
    for key in ("samples_per_s", "single_proc_samples_per_s", "first_batch_latency_s",
                "p50_sample_latency_ms", "p95_sample_latency_ms", "p99_sample_latency_ms",
                "peak_rss_gb", "steady_window_s", "total_time_s"):  # fmt: skip
        assert found[key] >= 0, key


@pytest.mark.parametrize("workers", [0, 2])
def test_map_style(home, tmp_path, workers):
    (found,) = run(home, tmp_path, "mmap_local", "--num_workers", workers)
    check(found)
    assert (found["loader"], found["loaded_episodes"]) == ("map_style", 2)


@pytest.mark.parametrize("scenario, workers", [("stream_hub", 0), ("stream_bucket", 2)])
def test_streaming(home, tmp_path, scenario, workers):
    (found,) = run(home, tmp_path, scenario, "--num_workers", workers)
    check(found)
    assert (found["loader"], found["num_shards"]) == ("streaming", 4)
    assert (found["data_files_root"] is None) == (scenario == "stream_hub")


def test_two_ranks(home, tmp_path):
    found = run(home, tmp_path, "stream_bucket_2node", "--num_workers", 1, ranks=2)
    assert [(f["rank"], f["world_size"]) for f in found] == [(0, 2), (1, 2)]
    for each in found:
        check(each)


def test_its_choice_of_episodes_is_the_suites():
    sys.path.append(str(SCRIPT.parent))
    import upstream_dataloading

    meta = LeRobotDatasetMetadata("you/local", root=ROOT)
    for parts in (1, 2, 4):
        for index in range(parts):
            for cap in (0, 1):
                theirs = upstream_dataloading.select_node_episodes(meta, parts, index, cap)
                assert theirs == suite.select_node_episodes(meta, parts, index, cap)
