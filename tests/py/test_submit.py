"""The chain of jobs: what sbatch is told, what happens when it refuses, and one chain run through.

sbatch, srun and squeue are stand-ins on PATH: they record their arguments, and run what they get
where a test asks for it.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from pathlib import Path

import pytest
from reelpool import __main__ as command
from reelpool.bench import slurm, suite_options
from reelpool.bench.scenarios import DEMO
from reelpool.cli import console

ROOT = Path(__file__).resolve().parents[2]
DATA = DEMO / "dataset"

SBATCH = """#!{python}
import json, os, subprocess, sys
folder = os.environ["FAKE_SLURM"]
log = os.path.join(folder, "sbatch.jsonl")
done = sum(1 for _ in open(log)) if os.path.exists(log) else 0
if str(done) == os.environ.get("FAKE_REFUSE"):
    sys.exit("sbatch: error: invalid partition specified: nowhere")
with open(log, "a") as stream:
    stream.write(json.dumps(sys.argv[1:]) + "\\n")
if os.environ.get("FAKE_RUN"):
    with open(os.path.join(folder, "job.out"), "a") as out:
        subprocess.run(["sh", "-c", sys.argv[-1]], stdout=out, stderr=out)
print("%d;cluster" % (100 + done))
"""
SRUN = """#!{python}
import os, subprocess, sys
words = [w for w in sys.argv[1:] if not w.startswith("--")]
ranks = [dict(os.environ, SLURM_PROCID=str(i), SLURM_NTASKS="2") for i in range(2)]
jobs = [subprocess.Popen(words, env=env) for env in ranks]
sys.exit(max(job.wait() for job in jobs))
"""
SQUEUE = """#!{python}
import os
path = os.path.join(os.environ["FAKE_SLURM"], "looks")
looks = int(open(path).read()) if os.path.exists(path) else 0
open(path, "w").write(str(looks + 1))
if looks == 1:
    raise SystemExit("slurm_load_jobs error: Unable to contact slurm controller")
if looks < 3:
    print("100\\n101\\n7")
"""


@pytest.fixture
def fake(tmp_path, monkeypatch) -> Path:
    """Stand-ins on PATH; the folder where they leave their records."""
    folder = tmp_path / "fake"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN), ("squeue", SQUEUE)):
        path = folder / name
        path.write_text(text.format(python=sys.executable))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    for name in ("ACCOUNT", "PARTITION", "QOS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: None)
    return folder


def submit(tmp_path: Path, *words: str) -> int:
    """`reelpool submit` with its logs and results in a folder of the test's."""
    out = ["--out_dir", str(tmp_path / "out"), "--log_dir", str(tmp_path / "logs"), "--quiet"]
    return command.main(["submit", "--local_root", str(DATA), *out, *words])


def calls(fake: Path) -> list[list[str]]:
    """Arguments of every call of sbatch."""
    return [json.loads(line) for line in (fake / "sbatch.jsonl").read_text().splitlines()]


def test_the_chain_is_what_the_cluster_needs(fake, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCOUNT", "lab")
    monkeypatch.setenv("PARTITION", "gpu")
    monkeypatch.setenv("QOS", "high")
    assert submit(tmp_path, "--lerobot_python", "other python") == console.OK
    found = calls(fake)
    assert len(found) == 6  # five scenarios and the report
    for number, (scenario, words) in enumerate(zip(suite_options.SCENARIOS, found)):
        shape = suite_options.SCENARIOS[scenario]
        assert words[0] == "--parsable"
        assert f"--job-name=dlbench_{scenario}" in words
        assert f"--nodes={shape.nodes}" in words
        assert f"--mem={shape.mem}" in words
        assert f"--time={shape.time}" in words
        assert f"--output={tmp_path / 'logs'}/%x-%j.out" in words
        assert {"--account=lab", "--partition=gpu", "--qos=high"} <= set(words)
        assert (f"--dependency=afterany:{99 + number}" in words) == (number > 0)
        assert words[-2] == "--wrap"
        assert f"cd {ROOT} && export TOKENIZERS_PARALLELISM=false && " in words[-1]
        assert f"benchmarks/benchmark_dataloading.py --scenario {scenario} " in words[-1]
    one, most, two = found[0], found[1], found[4]
    assert {"--ntasks=1", "--gpus=1", "--cpus-per-task=12"} <= set(one)
    assert {"--ntasks=1", "--gpus=1", "--cpus-per-task=92"} <= set(most)
    assert " --num_workers 30 " in most[-1]
    assert {"--ntasks-per-node=1", "--gpus-per-node=1", "--cpus-per-task=12"} <= set(two)
    assert two[-1].startswith("srun --export=ALL ")
    step = shlex.split(two[-1])
    assert "--cpus-per-task=12" in step  # srun does not inherit it
    assert "--kill-on-bad-exit=0" in step  # a rank that dies leaves the others at work
    assert step[-3:-1] == ["bash", "-c"]
    assert step[-1].startswith("export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS && cd ")
    assert "--lerobot_python 'other python'" in step[-1]  # quoted for both shells
    assert f"bench --merge {tmp_path / 'out'}" in found[5][-1]
    assert "--dependency=afterany:104" in found[5]


def test_a_small_cluster_gets_small_jobs(fake, tmp_path):
    words = ("--mem", "4G,mmap_local_maxworkers=2G", "--time", "00:05:00", "--cpus", "1")
    more = ("--gpus", "0", "--maxworkers", "3", "--num_workers", "2", "--no_report")
    chosen = ("--scenarios", "mmap_local_maxworkers,stream_hub")
    assert submit(tmp_path, *words, *more, *chosen) == console.OK
    most, hub = calls(fake)
    assert {"--mem=2G", "--time=00:05:00", "--cpus-per-task=1"} <= set(most)
    assert {"--mem=4G", "--time=00:05:00", "--cpus-per-task=1"} <= set(hub)
    assert " --num_workers 3 " in most[-1]
    assert " --num_workers 2 " in hub[-1]
    assert not [w for w in most + hub if w.startswith("--gpus")]


def test_dry_run_prints_the_commands_and_submits_nothing(fake, tmp_path, capsys):
    assert submit(tmp_path, "--dry-run") == console.OK
    printed = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    assert not (fake / "sbatch.jsonl").exists()
    assert not (tmp_path / "logs").exists()
    assert submit(tmp_path) == console.OK
    real = [["sbatch", *words] for words in calls(fake)]
    for number, words in enumerate(real):
        shown = [w.replace("$PREVIOUS", str(99 + number)) for w in printed[number]]
        assert shown == words


def test_every_option_of_the_worker_reaches_it(fake, tmp_path):
    parser = console.Parser()
    suite_options.dataloading_options(parser)
    words = (
        "--map_repo_id a/b --repo_id c/d --revision r --num_partitions 3 --partition_index 2 "
        "--max_episodes 0 --batch_size 5 --prefetch_factor 4 --duration_s 0.5 --num_batches 77 "
        "--warmup_batches 1 --probe_samples 9 --probe_warmup 0 --device cpu --buffer_size 11 "
        "--impl reelpool --dtype uint8 --num_threads 3 --seed 6 --floor_s 0.25 --root x/y "
        "--data_files_root hf://buckets/a/b --episode_pool_size 12 --max_buffer_input_shards 13 "
        "--video_decoder_cache_size 14 --video_decode_device cuda --lerobot_python z --num_workers "
        "2 --node_cache kept --min samples_per_s=9 --min floor_ratio=0.5 "
        "--max p99_sample_latency_ms=50.5"
    ).split()
    assert submit(tmp_path, *words, "--scenarios", "stream_hub") == console.OK
    job = shlex.split(calls(fake)[0][-1])
    told = parser.parse_args(job[job.index("stream_hub") + 1 :])
    out = ["--local_root", str(DATA), "--out_dir", str(tmp_path / "out")]
    assert vars(told) == vars(parser.parse_args([*out, *words]))


def test_jobs_run_in_the_given_environment(fake, tmp_path, capsys):
    chosen = ("--scenarios", "stream_hub", "--dry-run")
    assert submit(tmp_path, *chosen, "--conda_env", "robots") == console.OK
    scenario, report = capsys.readouterr().out.splitlines()
    for line in (scenario, report):
        assert "conda run --no-capture-output -n robots python " in line
    assert submit(tmp_path, *chosen, "--venv", sys.prefix) == console.OK
    assert f"{sys.prefix}/bin/python benchmarks/" in capsys.readouterr().out
    assert submit(tmp_path, *chosen, "--venv", sys.prefix, "--conda_env", "x") == console.USAGE


def test_a_refused_job_names_the_cause_and_what_was_submitted(fake, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_REFUSE", "1")
    assert submit(tmp_path, "--partition", "nowhere") == console.UNUSABLE
    said = capsys.readouterr().err
    assert "dlbench_mmap_local_maxworkers: sbatch refused it" in said
    assert "invalid partition specified: nowhere" in said
    assert "sinfo lists the partitions" in said
    assert "dlbench_mmap_local 100 (scancel" in said


def test_without_slurm_or_a_local_copy_nothing_is_submitted(fake, tmp_path, monkeypatch, capsys):
    assert command.main(["submit"]) == console.UNUSABLE
    assert "mmap_local needs --local_root" in capsys.readouterr().err
    assert command.main(["submit", "--scenarios", "mmap"]) == console.USAGE
    assert "'mmap': use one or more of mmap_local," in capsys.readouterr().err
    assert command.main(["submit", "--mem", "mmap=4G"]) == console.USAGE
    assert "SCENARIO=VALUE" in capsys.readouterr().err
    assert submit(tmp_path, "--venv", str(tmp_path)) == console.UNUSABLE
    assert "no bin/python in it" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert submit(tmp_path) == console.UNUSABLE
    assert "no sbatch here" in capsys.readouterr().err
    assert not (fake / "sbatch.jsonl").exists()


def test_wait_asks_again_and_names_missing_results(fake, tmp_path, capsys):
    words = ("--scenarios", "stream_bucket_2node", "--impl", "reelpool,lerobot", "--wait")
    assert submit(tmp_path, *words) == console.CHECK_FAILED
    assert int((fake / "looks").read_text()) == 4  # the second of them failed
    missing = [x for x in capsys.readouterr().out.splitlines() if x.startswith("MISSING")]
    expected = [
        tmp_path / f"out/reelpool/stream_bucket_2node_bs64_w8_r{rank}of2.json" for rank in (0, 1)
    ]
    assert missing == [f"MISSING: {p}" for p in [*expected, tmp_path / "out/report.html"]]


def test_a_chain_runs_through_with_two_ranks_and_a_report(fake, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs the extra `torch`")
    monkeypatch.setenv("FAKE_RUN", "1")
    words = (
        f"--scenarios stream_bucket_2node --root {DATA} --data_files_root {DATA} --repo_id demo "
        "--impl reelpool_loader --batch_size 4 --duration_s 0.1 --probe_samples 4 --floor_s 0 "
        "--wait --device cpu"
    ).split()
    assert submit(tmp_path, *words) == console.OK, (fake / "job.out").read_text()
    merged = json.loads((tmp_path / "out/merged.json").read_text())
    assert [(r["ranks"], r["world_size"]) for r in merged["results"]] == [(2, 2)]
    assert merged["notes"] == []
    records = [
        json.loads((tmp_path / f"out/reelpool_loader/stream_bucket_2node_bs4_w0_r{r}of2.json")
                   .read_text())
        for r in (0, 1)
    ]  # fmt: skip
    assert [r["rank"] for r in records] == [0, 1]
    assert records[0]["order"] == records[1]["order"]
    assert set(records[0]["order"]) == set("CURkgJ")


def test_a_dry_run_tells_what_the_real_one_would_refuse(fake, tmp_path, capsys):
    words = ["submit", "--scenarios", "mmap_local", "--dry_run", "--out_dir", str(tmp_path)]
    assert command.main(words) == console.OK
    said = capsys.readouterr()
    assert said.out.startswith("sbatch ") and "mmap_local needs --local_root" in said.err
    assert not (fake / "sbatch.jsonl").exists()
