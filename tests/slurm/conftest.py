"""A SLURM of two nodes for the tests of this folder, and what they do with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from on_cluster import REPO, WAIT_S, free_ports, wait_until

CLUSTER = Path(__file__).with_name("cluster.sh")


@pytest.fixture(scope="session")
def torch_here():
    pytest.importorskip("torch", reason="needs the extra `torch`")


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
