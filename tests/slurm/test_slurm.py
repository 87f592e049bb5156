"""A real SLURM of two nodes on this machine (cluster.sh): ranks of a step, a job's batch shell, and training that is
killed, preempted and cancelled. `make test-slurm`."""  # noqa: E501

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from demo_sets import ROOT
from on_cluster import ENDED, REPO, WAIT_S, job_facts, wait_until
from test_processes import GLOBAL_BATCH, check_job

RANK = REPO / "tests" / "isolated" / "_rank.py"
EXAMPLE = REPO / "benchmarks" / "train_streaming_multinode.py"
LAUNCHER = REPO / "benchmarks" / "slurm" / "train_streaming.sh"
STEPS = 60

pytestmark = pytest.mark.slurm
need_torch = pytest.mark.usefixtures("torch_here")


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
        return job_facts(self.slurm, self.number)

    def wait_for_steps(self, count=10):
        enough = False
        for _ in range(WAIT_S):
            if enough or self.ended():
                break
            enough = wait_until(lambda: len(log(self.output)) >= count, seconds=1)
        assert enough and not self.ended(), self.text.read_text()

    def ended(self):
        return self.facts()["JobState"] in ENDED

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
def test_a_killed_job_has_the_losses_of_one_that_nobody_stopped_to_the_bit(slurm, tmp_path):
    same = ["--backend", "torch"]
    calm = Job(slurm, tmp_path / "calm", *same, LAUNCHER="srun")
    assert "is queued again" not in calm.complete()
    job = Job(slurm, tmp_path / "killed", *same, LAUNCHER="srun")
    job.wait_for_steps()
    for process in job.processes():
        os.kill(process, signal.SIGKILL)
    job.begin_now()
    text = job.complete()
    assert "is queued again" in text and "2 -> 2 processes, 4 samples each" in text
    curves = [[(x["step"], x["sha256"], x["loss"]) for x in log(j.output)] for j in (calm, job)]
    assert len(curves[0]) == STEPS and curves[0] == curves[1]
    assert len({loss for _, _, loss in curves[0]}) > STEPS // 2


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
