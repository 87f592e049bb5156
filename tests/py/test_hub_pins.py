"""Ranks of a job, real processes: one commit for all of them, also while the branch moves, and a
typed error where they cannot agree."""

import itertools
import os
import socket
import subprocess
import sys

import pytest
from demo_sets import ROOT
from hub_sets import hub_fixture  # noqa: F401
from hub_stand_in import files_of
from reelpool import distributed, hub_pins

SCRIPT = """
import os, sys
rank, store, force = int(os.environ["RANK"]), sys.argv[1] == "store", sys.argv[2] == "force"
if store:
    import torch.distributed as dist
    dist.init_process_group("gloo")
from reelpool import LeRobotDatasetMetadata, errors
try:
    meta = LeRobotDatasetMetadata("o/n", revision="main", force_cache_sync=force)
    print(meta.revision, flush=True)
except errors.DatasetChangedError as error:
    print("refused", error, flush=True)
if store:
    dist.barrier()
    dist.destroy_process_group()
"""


def run_ranks(tmp_path, count, store=False, force=False, shared=True, variables=()):
    """What each rank printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in range(count):
        home = str(tmp_path / ("lerobot" if shared else f"home{rank}"))
        more = {"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "HF_LEROBOT_HOME": home, **dict(variables)}  # fmt: skip
        words = ["store" if store else "", "force" if force else ""]
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT, *words],
                env=os.environ | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    ended = [rank.communicate(timeout=120) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * count, ended
    return [said.strip() for said, _ in ended]


@pytest.fixture(name="moving")
def moving_fixture(hub):
    """The stand-in whose branch moves whenever somebody asks where it is."""
    hub.page = 1000
    repo, numbers = hub.repos["o/n"], itertools.count()
    files = files_of(ROOT)

    def move():
        repo.commit({**files, f"{next(numbers)}.md": files["meta/info.json"]})

    hub.fault("/revision/", "call", move)
    return hub


@pytest.mark.parametrize("force", [False, True])
def test_ranks_that_share_the_cache(moving, tmp_path, force):
    said = run_ranks(tmp_path, 3, force=force)
    assert len(set(said)) == 1 and len(said[0]) == 40
    assert len(moving.requests("/revision/")) == 1


def test_the_next_job_asks_again(moving, tmp_path):
    one = run_ranks(tmp_path, 2, force=True, variables={"TORCHELASTIC_RUN_ID": "one"})
    two = run_ranks(tmp_path, 2, force=True, variables={"TORCHELASTIC_RUN_ID": "two"})
    assert len(set(one)) == len(set(two)) == 1 and one[0] != two[0]


def test_ranks_without_a_common_folder(moving, tmp_path):
    torch = pytest.importorskip("torch")
    assert torch.distributed.is_available()
    said = run_ranks(tmp_path, 2, store=True, shared=False)
    assert len(set(said)) == 1 and len(said[0]) == 40
    assert len(moving.requests("/revision/")) == 2  # they did not agree by themselves


def test_copies_of_two_commits_are_refused(moving, tmp_path):
    pytest.importorskip("torch")
    for rank in range(2):  # old copies, one per node
        folder = tmp_path / f"home{rank}"
        subprocess.run(
            [sys.executable, "-c", SCRIPT, "", ""], check=True, stdout=subprocess.PIPE,
            env=os.environ | {"RANK": "0", "WORLD_SIZE": "1", "HF_LEROBOT_HOME": str(folder)},
        )  # fmt: skip
    said = run_ranks(tmp_path, 2, store=True, shared=False)
    (refused,) = [text for text in said if text.startswith("refused")]
    (taken,) = [text for text in said if not text.startswith("refused")]
    assert taken in refused and "on another rank" in refused and "revision=" in refused


def test_one_process_is_no_job(hub, tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    asked = []
    for _ in range(2):
        hub_pins.first_of_job("x", lambda: asked.append(1) or ("a", "b"))
    assert len(asked) == 2 and not (tmp_path / "lerobot/.reelpool/pin").exists()


def test_old_and_foreign_files_do_not_count(hub, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0"), monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(distributed, "job_store", lambda: None)
    monkeypatch.setattr(hub_pins, "job_store", lambda: None)
    numbers = itertools.count()
    ask = lambda: (str(next(numbers)), "main")  # noqa: E731
    assert hub_pins.first_of_job("x", ask) == hub_pins.first_of_job("x", ask) == ("0", "main")
    assert hub_pins.first_of_job("y", ask) == ("1", "main")
    (path, _) = sorted((tmp_path / "lerobot/.reelpool/pin").iterdir(), key=lambda p: p.read_text())
    os.utime(path, (1, 1))
    assert hub_pins.first_of_job("x", ask) == ("2", "main")
    path.write_text("\n")
    assert hub_pins.first_of_job("x", ask) == ("3", "main")


def test_names_of_jobs(monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    child = distributed.job_name()
    assert child == distributed.job_name() and str(os.getppid()) in child
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "r1")
    run = distributed.job_name()
    monkeypatch.setenv("SLURM_JOB_ID", "7"), monkeypatch.setenv("SLURM_STEP_ID", "0")
    assert len({child, run, distributed.job_name()}) == 3
