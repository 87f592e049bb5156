"""A real SLURM of two nodes on this machine (cluster.sh): ranks of a step, a job's batch shell, and training that is
killed, preempted and cancelled. `make test-slurm`."""  # noqa: E501

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path.append(str(REPO / "tests" / "py"))

from demo_sets import ROOT  # noqa: E402
from test_processes import GLOBAL_BATCH, check_job  # noqa: E402

CLUSTER = Path(__file__).with_name("cluster.sh")
RANK = REPO / "tests" / "isolated" / "_rank.py"
EXAMPLE = REPO / "benchmarks" / "train_streaming_multinode.py"
LAUNCHER = REPO / "benchmarks" / "slurm" / "train_streaming.sh"
WAIT_S = 120
STEPS = 60

pytestmark = pytest.mark.slurm
need_torch = pytest.mark.usefixtures("torch_here")


@pytest.fixture(scope="session")
def torch_here():
    pytest.importorskip("torch", reason="needs the extra `torch`")


def free_ports(count=3):
    """The first of so many neighbouring free ports."""
    for first in range(17100, 32000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no free ports")


@pytest.fixture(scope="session", autouse=True)
def cluster(tmp_path_factory):
    """Environment of the cluster's commands; SLURM_CONF: of one that runs."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        clean.pop(name, None)
    clean.update(PYTHON=sys.executable, OMP_NUM_THREADS="1")
    if "SLURM_CONF" in os.environ:
        yield {**clean, "SLURM_CONF": os.environ["SLURM_CONF"]}
        return
    folder = f"/run/reelpool-slurm-{os.getpid()}"  # beside one that somebody works with
    clean["SLURM_TEST_PORT"] = str(free_ports())
    up = subprocess.run([CLUSTER, "up", folder], capture_output=True, text=True, env=clean)
    if up.returncode == 3:
        pytest.skip(f"slurm: {up.stderr.strip()}")
    assert up.returncode == 0, up.stderr
    yield {**clean, "SLURM_CONF": up.stdout.strip()}
    down = subprocess.run([CLUSTER, "down", folder], capture_output=True, text=True, env=clean)
    assert down.returncode == 0, down.stderr


@pytest.fixture
def slurm(cluster):
    """slurm(command, *arguments) -> its output; jobs left at the end are cancelled."""

    def call(*command, timeout=WAIT_S, **environment):
        done = subprocess.run(
            [str(word) for word in command], capture_output=True, text=True, timeout=timeout,
            env={**cluster, **environment}, cwd=REPO,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    yield call
    for job in call("squeue", "-h", "-o", "%i").split():
        call("scancel", job)
    wait_until(lambda: not call("squeue", "-h"), "cancelled jobs end", every=0.3)


def wait_until(done, what=None, seconds=WAIT_S, every=0.02):
    """What `done` gives once it is true; after so long False, or, with `what`, a failure."""
    deadline = time.monotonic() + seconds
    while not (found := done()):
        if time.monotonic() > deadline:
            assert what is None, f"waited too long until {what}"
            return False
        time.sleep(every)
    return found


# -- ranks --


@need_torch
def test_two_nodes_share_an_epoch(slurm, tmp_path):
    ways = ["stream", "map", "workers0", "workers2"]
    slurm("srun", "-N2", "--ntasks-per-node=1", sys.executable, RANK, tmp_path, *ways)
    for way in ways:
        check_job(tmp_path, way, 2)


def test_tasks_of_one_node_are_ranks_too(slurm, tmp_path):
    slurm("srun", "-N2", "--ntasks-per-node=2", sys.executable, RANK, tmp_path, "stream")
    assert GLOBAL_BATCH % 4 == 0
    check_job(tmp_path, "stream", 4)


def test_the_batch_shell_of_two_nodes_is_alone(slurm, tmp_path):
    body = f"env >{tmp_path}/env; {sys.executable} {RANK} {tmp_path} stream"
    slurm("sbatch", "--wait", "-N2", "--ntasks-per-node=1", f"--output={tmp_path}/out",
          "--wrap", body)  # fmt: skip
    found = dict(x.split("=", 1) for x in (tmp_path / "env").read_text().splitlines() if "=" in x)
    assert (found["SLURM_PROCID"], found["SLURM_NTASKS"]) == ("0", "2")  # what must not be believed
    assert "SLURM_STEP_ID" not in found
    check_job(tmp_path, "stream", 1)


# -- training --


def options(output):
    return [
        "--repo_id", "reelpool/demo", "--root", ROOT, "--output_dir", output, "--steps", STEPS,
        "--n_action_steps", 4, "--num_workers", 1, "--save_freq", 4, "--log_freq", 40,
    ]  # fmt: skip


def log(output):
    """The log's complete lines."""
    path = output / "log.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()[: text.count("\n")]]


@pytest.fixture(scope="module")
def whole(torch_here, tmp_path_factory, cluster):
    """The log of one process that nothing stops."""
    output = tmp_path_factory.mktemp("whole")
    command = [sys.executable, EXAMPLE, *options(output), "--batch_size", 8, "--backend", "torch"]
    subprocess.run([str(word) for word in command], check=True, timeout=WAIT_S, env=cluster)
    return log(output)


def check_log(output, whole):
    found = log(output)
    assert [(x["step"], x["sha256"]) for x in found] == [(x["step"], x["sha256"]) for x in whole]
    assert [x["loss"] for x in found] == pytest.approx([x["loss"] for x in whole], rel=1e-4)


class Job:
    """A training job of two nodes, and what can be done to it."""

    def __init__(self, slurm, output, *more, nodes=2, **environment):
        self.slurm, self.output, self.text = slurm, output, output / "job.out"
        output.mkdir(exist_ok=True)
        batch = ["--global_batch_size", 8] if nodes == 2 else []
        self.number = slurm(
            "sbatch", "--parsable", f"--nodes={nodes}", f"--output={self.text}", LAUNCHER,
            *options(output), *batch, *more, **environment,
        ).strip()  # fmt: skip

    def facts(self):
        words = self.slurm("scontrol", "show", "job", self.number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for_steps(self, count=10):
        enough = False
        for _ in range(WAIT_S):
            if enough or self.ended():
                break
            enough = wait_until(lambda: len(log(self.output)) >= count, seconds=1)
        assert enough and not self.ended(), self.text.read_text()

    def ended(self):
        return self.facts()["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")

    def begin_now(self, *changes, restarts=1):
        """A queued job begins in two minutes, says SLURM: now, and with these changes."""
        wait_until(
            lambda: self.facts()["JobState"] == "PENDING", "the job is queued again", every=0.3
        )
        assert self.facts()["Restarts"] == str(restarts)
        assert len(log(self.output)) < STEPS, "the machine was too fast: nothing is left"
        self.slurm("scontrol", "update", f"JobId={self.number}", *changes, "StartTime=now")

    def complete(self):
        wait_until(self.ended, "the job has ended", every=0.3)
        assert self.facts()["JobState"] == "COMPLETED", self.text.read_text()
        return self.text.read_text()

    def processes(self):
        """Pids of the processes that train."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().decode().split("\0")
            except (OSError, UnicodeDecodeError):
                continue
            if str(self.output) in words and str(EXAMPLE) in words[1:3]:
                found.append(int(entry.name))
        return found


@need_torch
def test_a_killed_task_is_queued_again_and_goes_on_with_one_node(slurm, tmp_path, whole):
    job = Job(slurm, tmp_path / "out")
    job.wait_for_steps()
    processes = job.processes()
    assert len(processes) == 2
    os.kill(processes[1], signal.SIGKILL)
    job.begin_now("NumNodes=1-1", "NumTasks=1", "NumCPUs=1")
    text = job.complete()
    assert "is queued again" in text and "2 -> 1 processes, 8 samples each" in text
    check_log(job.output, whole)


@need_torch
def test_a_job_that_is_warned_and_then_preempted_goes_on(slurm, tmp_path, whole):
    never = ["--save_freq", 1000, "--backend", "torch"]  # what is saved, is saved by the signal
    job = Job(slurm, tmp_path / "out", *never, LAUNCHER="srun")
    job.wait_for_steps()
    slurm("scancel", "--signal=TERM", job.number)  # what --signal=TERM@120 does before time is up
    job.begin_now()
    job.wait_for_steps(len(log(job.output)) + 10)
    text = job.text.read_text()
    assert "stopped by SIGTERM after step" in text and "is queued again" in text
    assert "2 -> 2 processes, 4 samples each" in text
    slurm("scontrol", "requeue", job.number)  # what PreemptMode=REQUEUE does
    job.begin_now(restarts=2)
    assert job.complete().count("2 -> 2 processes, 4 samples each") == 2
    check_log(job.output, whole)


@need_torch
def test_a_cancelled_job_stays_cancelled_and_one_node_goes_on(slurm, tmp_path, whole):
    job = Job(slurm, tmp_path / "out", "--backend", "torch", LAUNCHER="srun")
    job.wait_for_steps()
    slurm("scancel", job.number)
    wait_until(job.ended, "the job has ended", every=0.3)
    assert job.facts()["JobState"] == "CANCELLED" and job.facts()["Restarts"] == "0"
    wait_until(lambda: not slurm("squeue", "-h"), "nothing of it is left", every=0.3)
    assert not job.processes()
    text = Job(slurm, job.output, "--backend", "torch", nodes=1, LAUNCHER="srun").complete()
    assert "2 -> 1 processes, 8 samples each" in text
    check_log(job.output, whole)


@need_torch
def test_accelerate_launch_sees_both_nodes(slurm, tmp_path, whole):
    pytest.importorskip("accelerate", reason="needs accelerate")
    job = Job(slurm, tmp_path / "out", LAUNCHER="accelerate")
    assert "rank 0: " in (text := job.complete()) and "rank 1: " in text
    check_log(job.output, whole)


# -- the benchmark's chain --


@need_torch
def test_submit_runs_the_scenarios_one_after_the_other(cluster, tmp_path):
    scenarios = ["mmap_local", "stream_bucket_2node"]
    out, logs = tmp_path / "out", tmp_path / "logs"
    command = [
        sys.executable, "-m", "reelpool", "submit", "--json", "--wait", "--poll_s", 0.3,
        "--scenarios", ",".join(scenarios), "--gpus", 0, "--mem", "500M", "--time", 5, "--cpus", 1,
        "--local_root", ROOT, "--root", ROOT, "--data_files_root", ROOT, "--map_repo_id",
        "reelpool/demo", "--repo_id", "reelpool/demo", "--num_partitions", 1, "--impl", "reelpool",
        "--device", "cpu", "--num_workers", 0, "--num_threads", 1, "--batch_size", 8,
        "--duration_s", 0.5,
         "--warmup_batches", 1, "--probe_samples", 4, "--probe_warmup", 1, "--floor_s", 0,
        "--out_dir", out, "--log_dir", logs, "--venv", sys.prefix,
    ]  # fmt: skip
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=WAIT_S, env=cluster, cwd=REPO)  # fmt: skip
    text = done.stderr + "".join(path.read_text() for path in logs.glob("*.out"))
    assert done.returncode == 0, text
    answer = json.loads(done.stdout)
    assert list(answer["jobs"]) == [f"dlbench_{name}" for name in [*scenarios, "report"]]
    assert answer["missing"] == [], text
    ranks = {}
    for path in (out / "reelpool").glob("*.json"):
        found = json.loads(path.read_text())
        ranks.setdefault(found["scenario"], []).append((found["rank"], found["world_size"]))
        assert found["samples_per_s"] > 0
    assert {name: sorted(found) for name, found in ranks.items()} == {
        "mmap_local": [(0, 1)], "stream_bucket_2node": [(0, 2), (1, 2)]
    }  # fmt: skip
    assert (out / "report.html").stat().st_size > 0
