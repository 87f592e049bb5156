"""Ranks that are processes: each frame exactly once, in one order, whoever launched how many."""

import functools
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest
from demo_sets import FRAMES, open_demo
from samples import check

ISOLATED = Path(__file__).resolve().parents[1] / "isolated"
sys.path.append(str(ISOLATED))

from _watchdog import finish, start  # noqa: E402

WATCHDOG_S = 60
GLOBAL_BATCH = 12
LAUNCHERS = ("RANK", "WORLD_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK",
             "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS",
             "LOCAL_WORLD_SIZE")  # fmt: skip
CLEAN = dict.fromkeys(LAUNCHERS)
need_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="needs the extra `torch`"
)


@functools.cache
def expected(way):
    """The indices of each global batch, read by one rank here."""
    import reelpool

    if way == "map":
        loader = reelpool.Loader(open_demo(), GLOBAL_BATCH, shuffle=True, seed=9, rank=0,
                                 world_size=1)  # fmt: skip
    else:
        dataset = reelpool.StreamingLeRobotDataset(
            "reelpool/demo", root=open_demo().root, return_uint8=True, seed=9
        )
        loader = reelpool.Loader(dataset, GLOBAL_BATCH, rank=0, world_size=1, num_threads=1)
    with loader:
        return [batch["index"].tolist() for batch in loader]


def check_job(out, way, world):
    """The ranks' files together are the epoch that one rank reads, each frame once."""
    files = sorted(out.glob(f"{way}-*.json"))
    parts = [json.loads(path.read_text()) for path in files]
    assert [(part["rank"], part["world"]) for part in parts] == [(r, world) for r in range(world)]
    steps = [part["steps"] for part in parts]
    assert len({len(one) for one in steps}) == 1, "ranks differ in their number of steps"
    found = [sample for one in steps for batch in one for sample in batch]
    assert sorted(index for index, _ in found) == list(range(FRAMES))
    check([tuple(sample) for sample in found])
    joined = [[index for part in step for index, _ in part] for step in zip(*steps)]
    assert joined == expected(way)


def run_ranks(out, ways, environments):
    """Start a process per environment, all at once, and wait for all."""
    running = [
        start(ISOLATED / "_rank.py", out, *ways, **{**CLEAN, **environment})
        for environment in environments
    ]
    for process in running:
        finish(process, WATCHDOG_S)


@need_torch
@pytest.mark.parametrize("world", [2, 3])
def test_subprocesses_with_rank_and_world_size(tmp_path, world):
    ways = ["map", "stream", "workers0", "workers2"]
    environments = [{"RANK": rank, "WORLD_SIZE": world} for rank in range(world)]
    run_ranks(tmp_path, ways, environments)
    for way in ways:
        check_job(tmp_path, way, world)


def test_mpi(tmp_path):
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    run_ranks(tmp_path, ["stream"], [dict(zip(names, (rank, 2))) for rank in range(2)])
    check_job(tmp_path, "stream", 2)


def test_a_slurm_step(tmp_path):
    step = {"SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": 2, "SLURM_NTASKS": 2}
    run_ranks(tmp_path, ["stream", "map"], [{**step, "SLURM_PROCID": rank} for rank in range(2)])
    check_job(tmp_path, "stream", 2)
    check_job(tmp_path, "map", 2)


def test_the_batch_shell_of_a_slurm_job_reads_everything(tmp_path):
    shell = {"SLURM_PROCID": 0, "SLURM_NTASKS": 2, "SLURM_STEP_NUM_TASKS": 2}
    run_ranks(tmp_path, ["stream"], [shell])
    check_job(tmp_path, "stream", 1)


@need_torch
def test_torchrun(tmp_path):
    ways = ["gloo", "stream", "workers2"]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", 2]
    finish(start(*command, ISOLATED / "_rank.py", tmp_path, *ways, **CLEAN,
                 OMP_NUM_THREADS=1), WATCHDOG_S)  # fmt: skip
    for way in ways[1:]:
        check_job(tmp_path, way, 2)


def test_a_rank_that_does_not_come_is_seen(tmp_path):
    run_ranks(tmp_path, ["stream"], [{"RANK": 0, "WORLD_SIZE": 2}])
    with pytest.raises(AssertionError):
        check_job(tmp_path, "stream", 2)
    assert os.listdir(tmp_path) == ["stream-0.json"]
