"""Which rank of how many: arguments, torch, launchers' variables, in this order."""

import sys
import types

import pytest
from reelpool.distributed import local_world_size, resolve_rank

NAMES = [
    "RANK", "WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_ID", "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "LOCAL_WORLD_SIZE",
]  # fmt: skip


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def set_env(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


def test_alone():
    assert resolve_rank() == (0, 1)


@pytest.mark.parametrize("pair", [0, 2, 4, 6])
def test_launchers(monkeypatch, pair):
    set_env(monkeypatch, **{NAMES[pair]: 2, NAMES[pair + 1]: 3})
    assert resolve_rank() == (2, 3)
    assert resolve_rank(0, 2) == (0, 2)


def test_torchrun_before_mpi_and_halves_are_no_pair(monkeypatch):
    set_env(monkeypatch, PMI_RANK=1, PMI_SIZE=2)
    monkeypatch.setenv("RANK", "5")
    assert resolve_rank() == (1, 2)
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert resolve_rank() == (5, 6)


def test_slurm_only_inside_a_step(monkeypatch):
    set_env(monkeypatch, SLURM_PROCID=0, SLURM_STEP_NUM_TASKS=8, SLURM_NTASKS=8)
    assert resolve_rank() == (0, 1)  # an allocation's shell
    set_env(monkeypatch, SLURM_STEP_ID=0, SLURM_PROCID=3)
    assert resolve_rank() == (3, 8)


def test_torch_distributed_before_variables(monkeypatch):
    set_env(monkeypatch, RANK=1, WORLD_SIZE=2)
    dist = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: 6,
        get_world_size=lambda: 7,
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(distributed=dist))
    assert resolve_rank() == (6, 7)
    dist.is_initialized = lambda: False
    assert resolve_rank() == (1, 2)


@pytest.mark.parametrize("rank, world", [(1, None), (None, 2), (2, 2), (-1, 2), (0, 0)])
def test_arguments_that_cannot_be(rank, world):
    with pytest.raises(ValueError):
        resolve_rank(rank, world)


@pytest.mark.parametrize("rank, world", [("x", "2"), ("2", "2"), ("0", "")])
def test_variables_that_cannot_be_name_themselves(monkeypatch, rank, world):
    set_env(monkeypatch, RANK=rank, WORLD_SIZE=world)
    with pytest.raises(ValueError, match="WORLD_SIZE"):
        resolve_rank()


def test_local_world_size(monkeypatch):
    assert local_world_size() == 1
    for text, size in [("4", 4), ("", 1), ("x", 1), ("0", 1)]:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
        assert local_world_size() == size
