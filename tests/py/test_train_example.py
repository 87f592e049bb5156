"""benchmarks/train_streaming_multinode.py: killed, stopped, and going on with other processes."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from demo_sets import ROOT

pytest.importorskip("torch", reason="needs the extra `torch`")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "train_streaming_multinode.py"
STEPS = 36
GLOBAL_BATCH = 8
WAIT_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def options(output, *more, steps=STEPS):
    return [
        SCRIPT, "--repo_id", "reelpool/demo", "--root", ROOT, "--output_dir", output,
        "--n_action_steps", 4, "--num_workers", 1, "--save_freq", 4, "--log_freq", 8,
        "--steps", steps, *more,
    ]  # fmt: skip


@pytest.fixture
def launch():
    """launch(*python arguments, **environment) -> Popen; what still runs at the end is killed."""
    running = []

    def start(*arguments, **environment):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "MASTER_"))}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            clean.pop(name, None)
        clean.update(OMP_NUM_THREADS="1", **{k: str(v) for k, v in environment.items()})
        running.append(
            subprocess.Popen(
                [sys.executable, *map(str, arguments)], env=clean, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            )
        )  # fmt: skip
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def two_ranks(launch, output, *more, **kwargs):
    port = free_port()
    return [
        launch(*options(output, "--backend", "torch", *more, **kwargs), RANK=rank, WORLD_SIZE=2,
               LOCAL_RANK=rank, LOCAL_WORLD_SIZE=2, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        for rank in range(2)
    ]  # fmt: skip


def ended(process, status=0):
    text, _ = process.communicate(timeout=WAIT_S)
    assert process.returncode == status, text
    return text


def wait_for_steps(output, process, count):
    """Until so many steps are logged by a process that runs on."""
    deadline = time.monotonic() + WAIT_S
    while len(lines(output)) < count:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "no steps"
        time.sleep(0.01)


def lines(output):
    """The log's complete lines."""
    path = output / "log.jsonl"
    text = path.read_text() if path.exists() else ""
    return text.splitlines()[: text.count("\n")]


def log(output):
    return [json.loads(line) for line in lines(output)]


def check_log(output, whole):
    """The same samples at every step, and, to rounding, the same loss."""
    found = log(output)
    assert [(x["step"], x["sha256"]) for x in found] == [(x["step"], x["sha256"]) for x in whole]
    assert [x["loss"] for x in found] == pytest.approx([x["loss"] for x in whole], rel=1e-4)


@pytest.fixture(scope="module")
def example():
    """The script as a module."""
    sys.path.insert(0, str(BENCHMARKS))
    import train_streaming_multinode

    yield train_streaming_multinode
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def run_here(example):
    """run_here(output, *options, steps=) -> exit status, in this process with one torch thread"""
    import torch

    threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
    torch.set_num_threads(1)
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_STEP_ID")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.delenv(name, raising=False)
        yield lambda *more, steps: example.main(
            [str(x) for x in options(*more, "--backend", "torch", steps=steps)[1:]]
        )
    torch.set_num_threads(threads)
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, run_here):
    """The log of the run that nothing stops."""
    output = tmp_path_factory.mktemp("whole")
    assert run_here(output, "--batch_size", GLOBAL_BATCH, steps=STEPS) == 0
    found = log(output)
    assert [line["step"] for line in found] == list(range(1, STEPS + 1))
    assert len({line["sha256"] for line in found}) == STEPS
    assert json.loads((output / "result.json").read_text())["frames_per_s"] > 0
    return found


def newest(output):
    """Step of the newest checkpoint, which lies within the run that nothing stops."""
    names = [path.stem for path in (output / "checkpoints").glob("step_*.pt")]
    step = max(int(name.removeprefix("step_")) for name in names)
    assert step < STEPS, "the machine was too fast: nothing is left to resume"
    return step


def test_killed_alone_goes_on_as_two_killed_goes_on_alone(tmp_path, whole, launch):
    alone = launch(
        *options(tmp_path, "--backend", "torch", "--batch_size", GLOBAL_BATCH, steps=10**6)
    )
    wait_for_steps(tmp_path, alone, 10)
    alone.kill()
    alone.wait()
    with open(tmp_path / "log.jsonl", "a") as file:
        file.write('{"step": 9')  # a torn line and a torn file, as a machine that dies leaves them
    torn = tmp_path / "checkpoints" / ".step_00000099.pt.1.tmp"
    torn.write_bytes(b"half")
    first = newest(tmp_path)

    ranks = two_ranks(launch, tmp_path, "--resume_from", "auto", steps=10**6)
    wait_for_steps(tmp_path, ranks[0], 20)
    ranks[1].kill()
    text, _ = ranks[0].communicate(timeout=WAIT_S)  # it does not wait for who is gone
    assert ranks[0].returncode not in (0, None)
    assert f"resumed after step {first}: 1 -> 2 processes, {GLOBAL_BATCH // 2} samples" in text
    assert not torn.exists()
    second = newest(tmp_path)
    assert second > first

    text = ended(launch(*options(tmp_path, "--backend", "torch", "--resume_from", "auto")))
    assert f"resumed after step {second}: 2 -> 1 processes, {GLOBAL_BATCH} samples each" in text
    check_log(tmp_path, whole)


def test_sigterm_saves_and_the_resumed_run_is_exact(tmp_path, whole, launch):
    process = launch(*options(tmp_path, "--backend", "torch", "--batch_size", GLOBAL_BATCH))
    wait_for_steps(tmp_path, process, 10)
    process.terminate()
    text = ended(process, 75)
    at = newest(tmp_path)
    assert f"stopped by SIGTERM after step {at}" in text
    assert log(tmp_path)[-1]["step"] == at
    ended(launch(*options(tmp_path, "--resume_from", tmp_path)))  # Accelerate where there is one
    assert log(tmp_path) == whole


def test_dummy_prints_frames_per_process(tmp_path, launch):
    ranks = two_ranks(launch, tmp_path, "--batch_size", 2, "--dummy", steps=16)
    text = [ended(rank) for rank in ranks]
    reports = [line for line in text[0].splitlines() if line.startswith("step ")]
    assert len(reports) == 2 and text[1] == ""
    for report in reports:
        words = report.replace(",", "").split()
        numbers = [int(word) for word in words if word.isdigit()][1:]
        assert len(numbers) == 3 and abs(sum(numbers[:2]) - numbers[2]) <= 2
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["world_size"] == 2 and result["loss"] is None
    assert len(result["frames_per_s_by_rank"]) == 2


# -- what cannot be worked with, in this process --


@pytest.fixture
def main(run_here):
    return lambda *more: run_here(*more, steps=2)


def test_an_earlier_run_is_not_overwritten(tmp_path, main, capsys):
    dummy = ["--dummy", "--batch_size", 4]
    assert main(tmp_path, *dummy) == 0
    assert main(tmp_path, *dummy) == 3
    assert "--resume_from auto" in capsys.readouterr().err
    assert main(tmp_path, *dummy, "--resume_from", "auto") == 0  # nothing left to do
    assert main(tmp_path, "--resume_from", "auto") == 3
    assert "needs --dummy" in capsys.readouterr().err
    assert main(tmp_path, *dummy, "--seed", 7, "--resume_from", "auto") == 3
    assert "'seed'" in capsys.readouterr().err


def test_a_global_batch_that_cannot_be_shared(example):
    training = example.Training.__new__(example.Training)
    training.args, training.world = SimpleNamespace(batch_size=None, global_batch_size=None), 2
    assert training._batch_size({"global_batch": 6}) == 3
    with pytest.raises(example.UnusableError, match="global batch of 3 cannot be shared by 2"):
        training._batch_size({"global_batch": 3})


@pytest.mark.parametrize("more, says", [
    (["--resume_from", "/nowhere"], "no checkpoints"),
    (["--repo_id", "x/y", "--root", "/nowhere"], "/nowhere"),
])  # fmt: skip
def test_unusable_input(tmp_path, main, capsys, more, says):
    assert main(tmp_path / "out", *more) == 3
    assert says in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named(tmp_path, main, capsys):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "step_00000001.pt").write_bytes(b"no checkpoint")
    assert main(tmp_path, "--dummy", "--resume_from", "auto") == 3
    assert "step_00000001.pt cannot be read" in capsys.readouterr().err


def test_processes_without_a_master_address(tmp_path, main, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(tmp_path, "--dummy") == 3
    assert "MASTER_ADDR and MASTER_PORT not set" in capsys.readouterr().err
