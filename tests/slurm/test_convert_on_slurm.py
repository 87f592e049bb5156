"""Conversions as jobs of datatrove on a real SLURM of two nodes: `make test-slurm`."""

import json
import shutil
import sys

import pytest
from convert_sets import tree, write_clips
from on_cluster import wait_until
from reelpool.convert.job import Options
from reelpool.convert.run import convert

pytestmark = pytest.mark.slurm


@pytest.fixture(name="arm")
def arm_fixture(tmp_path):
    """(dataset, files of its conversion)."""
    pytest.importorskip("datatrove", reason="needs the extra `cluster`")
    root = write_clips(tmp_path / "arm", repeat=4)
    convert(Options(root=root, name="arm", out=tmp_path / "wanted"))
    wanted = tree(tmp_path / "wanted")
    shutil.rmtree(tmp_path / "wanted")
    return root, wanted


def submit(slurm, root):
    """Numbers of both jobs: the array, whose tasks take a node each, and the last one."""
    words = ["--engine", "slurm", "--tasks", 2, "--cpus-per-task", 2, "--mem-per-cpu-gb", 1]
    words += ["--partition", "debug", "--time", "0:10:00", "--episodes-per-batch", 1]
    words += ["--work-dir", root.parent / "work", "--json"]
    return json.loads(slurm(sys.executable, "-m", "reelpool", "convert", root, *words))["jobs"]


def check_end(slurm, root, wanted):
    """Both jobs end, and the dataset is in place."""
    wait_until(lambda: not slurm("squeue", "-h"), "both jobs end", every=0.3)
    logs = [p.read_text()[-2000:] for p in (root.parent / "work").rglob("*.out")]
    assert tree(root) == wanted, "\n".join(logs)
    assert sorted(p.name for p in root.parent.iterdir()) == ["arm", "arm_old", "work"]


def test_two_nodes_convert_one_dataset(slurm, arm):
    """Each by its own task of the array."""
    root, wanted = arm
    before = tree(root)
    array, last = submit(slurm, root)
    nodes = set()

    def over():
        nodes.update(slurm("squeue", "-h", "-j", f"{array},{last}", "-o", "%N").split())
        return {"n1", "n2"} <= nodes

    assert wait_until(over, "both nodes are at work", every=0.05)
    check_end(slurm, root, wanted)
    assert tree(root.with_name("arm_old")) == before


def test_the_last_job_does_what_a_cancelled_array_left(slurm, arm):
    root, wanted = arm
    array, _ = submit(slurm, root)
    slurm("scancel", array)
    check_end(slurm, root, wanted)
