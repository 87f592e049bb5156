"""The benchmark suite on a real SLURM of two nodes: every scenario and mode, a rank that dies, a job refused."""  # noqa: E501

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from demo_sets import ROOT
from hub_stand_in import StandIn
from on_cluster import ENDED, REPO, WAIT_S, job_facts, wait_until
from reelpool.bench import suite_options

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from test_suite import DATALOADING_KEYS, STREAMING_KEYS, check_record  # noqa: E402

DATALOADING = REPO / "benchmarks" / "benchmark_dataloading.py"
STREAMING = REPO / "benchmarks" / "slurm" / "benchmark_streaming.sh"
SHORT = [
    "--impl", "reelpool", "--device", "cpu", "--num_workers", 1, "--num_threads", 1,
    "--batch_size", 8, "--num_batches", 6, "--warmup_batches", 1, "--probe_samples", 4,
    "--probe_warmup", 1, "--floor_s", 0,
]  # fmt: skip

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def copy():
    """A data set of three cameras, or the embedded one."""
    data = Path(os.environ.get("REELPOOL_TEST_DATA", REPO.parent / "shared" / "data"))
    return data / "cam3" if (data / "cam3").is_dir() else ROOT


@pytest.fixture
def remote(copy, tmp_path, cluster):
    """Environment of jobs that find the Hub on loopback, with the set as you/set and a bucket."""
    with StandIn() as hub:
        hub.add("you/set", copy)
        hub.add_bucket("you/set-bucket", copy)
        own = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": tmp_path / "home", "HF_HUB_OFFLINE": "0",
               "HF_LEROBOT_HOME": tmp_path / "lerobot", "HF_HUB_DISABLE_TELEMETRY": "1",
               "REELPOOL_CACHE": tmp_path / "cache"}  # fmt: skip
        yield {**cluster, **{name: str(value) for name, value in own.items()}}


def run(words, environment, status=0):
    """What a command printed, its status being as expected."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, env=environment,
        timeout=2 * WAIT_S, cwd=REPO,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_every_scenario_runs_as_a_chain_of_jobs(remote, copy, tmp_path):
    """By the script alone, as on a login node: account, partition, QOS from the environment."""
    out, logs = tmp_path / "out", tmp_path / "logs"
    command = [
        sys.executable, DATALOADING, "--json", "--wait", "--poll_s", 0.3, "--gpus", 0,
        "--mem", "2G,mmap_local=1G", "--time", 5, "--cpus", 1, "--maxworkers", 2,
        "--local_root", copy, "--map_repo_id", "you/local", "--repo_id", "you/set",
        "--data_files_root", "hf://buckets/you/set-bucket", "--num_partitions", 2,
        "--out_dir", out, "--log_dir", logs, "--venv", sys.prefix, *SHORT,
    ]  # fmt: skip
    done = run(command, {**remote, "PARTITION": "debug", "QOS": "", "ACCOUNT": ""})
    text = done.stderr + "".join(path.read_text() for path in logs.glob("*.out"))
    answer = json.loads(done.stdout)
    scenarios = list(suite_options.SCENARIOS)
    assert list(answer["jobs"]) == [f"dlbench_{name}" for name in [*scenarios, "report"]]
    assert answer["missing"] == [], text
    ranks = {}
    for path in (out / "reelpool").glob("*.json"):
        found = check_record(path, DATALOADING_KEYS)
        ranks.setdefault(found["scenario"], []).append((found["rank"], found["world_size"]))
        assert found["num_cameras"] >= 2
        if found["loader"] == "streaming":
            assert found["requests"] > 0 and found["bytes_fetched"] > 0
            assert found["node_cache"] == "cold"
    assert {name: sorted(found) for name, found in ranks.items()} == {
        name: [(0, 1)] if name != "stream_bucket_2node" else [(0, 2), (1, 2)] for name in scenarios
    }
    assert (out / "report.html").stat().st_size > 0


@pytest.fixture
def streaming(slurm, tmp_path):
    """streaming(nodes, *options, **environment) -> number of a job of the launcher."""

    def submit(nodes, *options, **environment):
        return slurm(
            "sbatch", "--parsable", f"--nodes={nodes}", "--cpus-per-task=1", "--mem=2G",
            "--time=5", f"--output={tmp_path}/%j.out", STREAMING, "--repo_id", "you/set",
            *SHORT, *options, OUT_DIR=str(tmp_path / "out"), **environment,
        ).strip()  # fmt: skip

    return submit


def ended(slurm, number, tmp_path):
    """State of a job once it has ended, and what it printed."""
    state = wait_until(
        lambda: (now := job_facts(slurm, number)["JobState"]) in ENDED and now, "it ends", every=0.3
    )
    return state, (tmp_path / f"{number}.out").read_text()


WORK = [
    (1, "single", "local"), (2, "sarm", "local"), (1, "sarm", "hub"), (2, "single", "bucket"),
    (1, "sarm_action", "warmed_bucket"),
]  # fmt: skip


@pytest.mark.parametrize("nodes, mode, source", WORK)
def test_the_streaming_launcher_leaves_a_folder_per_node(
    slurm, streaming, remote, copy, tmp_path, nodes, mode, source
):
    place = {"local": ["--root", copy], "hub": []}
    bucket = ["--data_files_root", "hf://buckets/you/set-bucket"]
    options = ["--mode", mode, "--source", source, *place.get(source, bucket)]
    state, text = ended(slurm, streaming(nodes, *options, **remote), tmp_path)
    assert state == "COMPLETED", text
    for node in range(nodes):
        path = tmp_path / f"out/node{node}/reelpool/{source}_{mode}_bs8_w1_cpu.json"
        found = check_record(path, STREAMING_KEYS)
        assert (found["rank"], found["world_size"]) == (node, nodes)
        assert found["frames_measured"] == 4 * 8 * (8 if mode == "sarm" else 1)
        assert (found["requests"] is None) == (source == "local")
    assert (tmp_path / "out/report.html").stat().st_size > 0


def test_a_rank_that_dies_costs_its_own_results_only(slurm, streaming, copy, tmp_path):
    long = ["--num_batches", 100000, "--duration_s", 8, "--mode", "single", "--source", "local"]
    long += ["--root", copy]
    number = streaming(2, *long)

    def runner():
        """Pid of the second node's benchmark."""
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except (OSError, UnicodeDecodeError):
                continue
            if f"{tmp_path}/out/node1" in words and "srun" not in words[0]:
                return int(entry.name)
        return None

    os.kill(wait_until(runner, "the second node is at work"), signal.SIGKILL)
    state, text = ended(slurm, number, tmp_path)
    assert state == "FAILED", text
    check_record(tmp_path / "out/node0/reelpool/local_single_bs8_w1_cpu.json", STREAMING_KEYS)
    merged = json.loads((tmp_path / "out/merged.json").read_text())
    assert len(merged["notes"]) == 1 and "of 2 ranks 1 left no result" in merged["notes"][0]
    assert "INCOMPLETE: stream" in text


def test_what_sbatch_refuses_is_told_with_what_to_do(cluster, copy, tmp_path):
    def refused(*more):
        base = [sys.executable, "-m", "reelpool", "submit", "--local_root", copy, "--log_dir"]
        return run([*base, tmp_path, *more], cluster, status=3).stderr

    said = refused("--partition", "nowhere", "--gpus", 0)
    assert "dlbench_mmap_local: sbatch refused it" in said
    assert "invalid partition specified: nowhere" in said and "--partition NAME" in said
    said = refused("--partition", "debug")  # a cluster without GPUs
    assert "--gpus 0 asks for no GPU" in said
