"""The same conversion as tasks of a cluster: datatrove's executors, and what sbatch is given."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from convert_sets import tree, write_clips
from reelpool.__main__ import main
from reelpool.convert import engines
from reelpool.convert.job import Options
from reelpool.convert.run import convert, help_along
from reelpool.errors import MissingExtraError

# What SLURM does here: an array task after the other, then the job that depends on them.
FAKE_SBATCH = """#!{python}
import os, re, subprocess, sys
here = os.path.dirname(os.path.abspath(__file__))
script = open(sys.argv[-1]).read()
number = len([n for n in os.listdir(here) if n.endswith(".script")]) + 1
open(f"{{here}}/{{number}}.script", "w").write(" ".join(sys.argv[1:-1]) + "\\n" + script)
if "merge_stats" not in script:
    last = int(re.search(r"--array=0-(\\d+)", script).group(1))
    for task in range(last + 1):
        extra = dict(SLURM_ARRAY_TASK_ID=str(task), SLURM_JOB_ID=str(number), SLURM_NODELIST="n1")
        done = subprocess.run(["bash", sys.argv[-1]], env={{**os.environ, **extra}},
                              capture_output=True, text=True)
        open(f"{{here}}/{{number}}.{{task}}.log", "w").write(done.stdout + done.stderr)
print(f"Submitted batch job {{number}}")
"""
FAKE_SRUN = """#!{python}
import subprocess, sys
words = sys.argv[1:]
sys.exit(subprocess.run(words[words.index("launch_pickled_pipeline"):]).returncode)
"""


@pytest.fixture
def arm(tmp_path):
    """(dataset, files of its conversion)."""
    root = write_clips(tmp_path / "arm")
    convert(Options(root=root, name="arm", out=tmp_path / "wanted"))
    wanted = tree(tmp_path / "wanted")
    shutil.rmtree(tmp_path / "wanted")
    return root, wanted


def test_a_share_does_all_that_is_left(arm):
    """Any number of shares one after the other; the last one finishes."""
    root, wanted = arm
    chosen = Options(root=root, name="arm", episodes_per_batch=2)
    before = tree(root)
    for _ in range(2):
        assert engines.Share(chosen, threads=2, at_end=False)(None, 0, 2) is None
    assert tree(root) == before
    for _ in range(2):
        help_along(chosen, threads=1, at_end=True)
    assert tree(root) == wanted
    assert sorted(p.name for p in root.parent.iterdir()) == ["arm", "arm_old"]


def test_tasks_of_datatrove(arm):
    executor = pytest.importorskip("datatrove.executor", reason="needs the extra `cluster`")
    root, wanted = arm
    chosen = Options(root=root, name="arm", episodes_per_batch=1)
    logs = root.parent / "logs"
    for at_end, tasks in ((False, 3), (True, 1)):
        executor.LocalPipelineExecutor(
            pipeline=[engines.Share(chosen, 1, at_end)], tasks=tasks, workers=tasks,
            logging_dir=str(logs / str(at_end)),
        ).run()  # fmt: skip
    assert tree(root) == wanted


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_jobs_of_slurm(arm, tmp_path, monkeypatch, capsys):
    """With commands that stand for SLURM's: the jobs are run as they were submitted."""
    pytest.importorskip("datatrove", reason="needs the extra `cluster`")
    if shutil.which("launch_pickled_pipeline") is None:
        pytest.skip("needs the extra `cluster`, its scripts on PATH")
    root, wanted = arm
    fake = tmp_path / "fake"
    fake.mkdir()
    hosts = "#!{python}\nprint('n1')\n"
    for name, text in (("sbatch", FAKE_SBATCH), ("srun", FAKE_SRUN), ("scontrol", hosts)):
        path = fake / name
        path.write_text(text.format(python=sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    words = ["--engine", "slurm", "--tasks", "2", "--partition", "debug", "--account", "lab"]
    work = tmp_path / "work"
    assert main(["convert", str(root), *words, "--work-dir", str(work), "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    logs = "\n".join(p.read_text()[-2000:] for p in fake.glob("*.log"))
    assert tree(root) == wanted, logs
    first, last = ((fake / f"{job}.script").read_text() for job in jobs)
    for line in ("--array=0-1", "--partition=debug", "--account=lab", "--cpus-per-task=1"):
        assert f"#SBATCH {line}\n" in first
    assert "--qos" not in first
    assert re.search(rf"--dependency=afterany:{jobs[0]}\b", last)
    assert Path(work / "slurm").is_dir()


@pytest.mark.soak
@pytest.mark.timeout(360)
def test_tasks_of_ray(arm, tmp_path):
    """A cluster of this machine: the command waits for its tasks, then finishes."""
    pytest.importorskip("ray", reason="needs ray")
    pytest.importorskip("datatrove", reason="needs the extra `cluster`")
    root, wanted = arm
    words = [sys.executable, "-m", "reelpool", "convert", root, "--json", "--engine", "ray"]
    words += ["--tasks", "2", "--mem-per-cpu-gb", "1", "--work-dir", tmp_path / "work"]
    with open(tmp_path / "out", "w") as out:  # Ray's processes keep it open
        assert subprocess.run(words, stdout=out, timeout=300).returncode == 0
    assert json.loads((tmp_path / "out").read_text())["files"] == 10
    assert tree(root) == wanted
    (logs,) = (tmp_path / "work/ray").iterdir()
    assert len(list((logs / "completions").iterdir())) == 2


def test_without_ray(arm, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["convert", str(arm[0]), "--engine", "ray"]) == 3
    assert "pip install 'reelpool[cluster]' ray" in capsys.readouterr().err


def test_without_datatrove(arm, monkeypatch):
    monkeypatch.setitem(sys.modules, "datatrove", None)
    monkeypatch.setitem(sys.modules, "datatrove.executor.slurm", None)
    with pytest.raises(MissingExtraError, match=r"reelpool\[cluster\]"):
        engines.submit(Options(root=arm[0], name="arm"), engines.SlurmOptions())
    assert main(["convert", str(arm[0]), "--engine", "slurm"]) == 3
