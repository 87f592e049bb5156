"""The chain of jobs: one `sbatch` per scenario, each after the one before, then a report.

No two scenarios run at the same time, so that none takes the network or the disk of another.
"""

from __future__ import annotations

import argparse
import os
import pwd
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ..cli import console
from .suite import dataloading_tag
from .suite_options import IMPLS, SCENARIOS, passed_on

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path("benchmarks/benchmark_dataloading.py")
QUEUE_TRIES = 5


class SubmitFailed(Exception):
    """The chain cannot be submitted or watched; the text says why and what to do."""


@dataclass
class Job:
    """One call of sbatch; `dependency` is filled in at submission."""

    name: str
    command: list[str]
    body: str
    nodes: int = 1
    id: str = ""

    def words(self, after: str | None) -> list[str]:
        """The whole command line."""
        wait = [f"--dependency=afterany:{after}"] if after else []
        return [*self.command, *wait, "--wrap", self.body]


def checkout(script: Path | None) -> Path:
    """The folder that jobs run in: the checkout, else where we are."""
    if script is not None:
        return script.resolve().parents[1]
    return ROOT if (ROOT / SCRIPT).is_file() else Path.cwd()


def _python(args: argparse.Namespace) -> list[str]:
    """The interpreter of the jobs."""
    if args.venv:
        python = args.venv.absolute() / "bin/python"
        if not python.is_file():
            raise SubmitFailed(f"--venv {args.venv}: no bin/python in it")
        return [str(python)]
    if args.conda_env:
        return ["conda", "run", "--no-capture-output", "-n", args.conda_env, "python"]
    return [sys.executable]


def _option(given: dict[str, str], scenario: str, default: str) -> str:
    return given.get(scenario, given.get("", default))


def _command(args: argparse.Namespace, name: str, logs: Path, shape: dict[str, str]) -> list[str]:
    """sbatch and its options, without dependency and body. `shape`: option -> value."""
    out = ["sbatch", "--parsable", f"--job-name={name}"]
    out += [f"--{option}={value}" for option, value in shape.items()]
    out.append(f"--output={logs}/%x-%j.out")
    for option in ("account", "partition", "qos"):
        if getattr(args, option):
            out.append(f"--{option}={getattr(args, option)}")
    return out


def jobs(args: argparse.Namespace, script: Path | None = None) -> list[Job]:
    """The chain. Scenario jobs are `dlbench_{scenario}`, the last one is `dlbench_report`."""
    home = checkout(script)
    logs = (args.log_dir or home / "logs").absolute()
    python, worker = _python(args), _worker(home)
    prefix = f"cd {shlex.quote(str(home))} && export TOKENIZERS_PARALLELISM=false && "
    chain = []
    for scenario in args.scenarios:
        shape = SCENARIOS[scenario]
        workers = args.maxworkers if shape.maxworkers else args.num_workers
        cpus = _option(args.cpus, scenario, str(shape.cpus or workers + 4))
        options = ["--scenario", scenario, *passed_on(args, workers)]
        run = prefix + shlex.join([*python, *worker, *options])
        many = shape.nodes > 1
        wanted = {"nodes": str(shape.nodes), ("ntasks-per-node" if many else "ntasks"): "1"}
        if args.gpus:
            wanted["gpus-per-node" if many else "gpus"] = str(args.gpus)
        wanted |= {
            "cpus-per-task": cpus,
            "mem": _option(args.mem, scenario, shape.mem),
            "time": _option(args.time, scenario, shape.time),
        }
        if many:
            # srun has not inherited --cpus-per-task since SLURM 22.05; a rank that dies must not
            # take the others' results with it.
            inner = f"export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS && {run}"
            run = (
                f"srun --export=ALL --kill-on-bad-exit=0 --cpus-per-task={cpus} "
                f"bash -c {shlex.quote(inner)}"
            )
        name = f"dlbench_{scenario}"
        chain.append(Job(name, _command(args, name, logs, wanted), run, shape.nodes))
    if not args.no_report:
        chain.append(_report_job(args, logs, prefix, python))
    return chain


def _worker(home: Path) -> list[str]:
    """How a job starts a scenario: the checkout's script, else the installed package."""
    if (home / SCRIPT).is_file():
        return [str(SCRIPT)]
    return ["-m", "reelpool.bench.suite_main"]


def _report_job(args: argparse.Namespace, logs: Path, prefix: str, python: list[str]) -> Job:
    shape = {"nodes": "1", "ntasks": "1", "cpus-per-task": "1", "mem": "2G", "time": "00:10:00"}
    run = shlex.join([*python, "-m", "reelpool", "bench", "--merge", str(args.out_dir)])
    return Job("dlbench_report", _command(args, "dlbench_report", logs, shape), prefix + run)


def submit(args: argparse.Namespace, script: Path | None = None) -> int:
    """Submit the chain; with --dry_run print it; with --wait see it through."""
    chain = jobs(args, script)
    home = checkout(script)
    if args.dry_run:
        lacking = _lacking(args)
        if lacking:
            console.note(args, f"note: {lacking}: without it nothing would be submitted")
        lines = [shlex.join(j.words("$PREVIOUS" if n else None)) for n, j in enumerate(chain)]
        console.show(args, "\n".join(lines), [j.words(None) for j in chain])
        return console.OK
    _check(args)
    (args.log_dir or home / "logs").mkdir(parents=True, exist_ok=True)
    before: str | None = None
    for job in chain:
        try:
            job.id = _sbatch(job.words(before))
        except SubmitFailed as error:
            done = ", ".join(f"{j.name} {j.id}" for j in chain if j.id)
            kept = f"\n  Submitted before it: {done} (scancel ends them)" if done else ""
            raise SubmitFailed(f"{job.name}: {error}{kept}") from None
        after = f" (after {before})" if before else ""
        console.note(args, f"submitted {job.id} {job.name}{after}")
        before = job.id
    ids = {job.name: job.id for job in chain}
    where = args.out_dir if args.out_dir.is_absolute() else home / args.out_dir
    if not args.wait:
        text = f"{len(chain)} jobs, one after the other. Results: {where}"
        console.show(args, text, {"jobs": ids, "out_dir": str(where)})
        return console.OK
    return _wait(args, chain, ids, where)


def _check(args: argparse.Namespace) -> None:
    """What would fail in every job, said here."""
    if shutil.which("sbatch") is None:
        raise SubmitFailed(
            "no sbatch here: run on a login node of a SLURM cluster, or with --dry_run; "
            "one scenario runs without SLURM with benchmark_dataloading.py --scenario"
        )
    lacking = _lacking(args)
    if lacking:
        raise SubmitFailed(f"{lacking}: the folder of a local copy")


def _lacking(args: argparse.Namespace) -> str | None:
    """An option that the scenarios need and nobody gave."""
    mapped = [s for s in args.scenarios if SCENARIOS[s].kind == "map_style"]
    return f"{mapped[0]} needs --local_root" if mapped and args.local_root is None else None


def _sbatch(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        hint = ""
        if "partition" in done.stderr.lower():
            hint = "\n  sinfo lists the partitions: --partition NAME or $PARTITION"
        elif "gres" in done.stderr.lower() or "node configuration" in done.stderr.lower():
            hint = "\n  --gpus 0 asks for no GPU; --cpus and --mem fit the jobs to the nodes"
        elif "config" in done.stderr.lower() or "controller" in done.stderr.lower():
            hint = "\n  no cluster answers here: run on a login node, or with --dry_run"
        raise SubmitFailed(f"sbatch refused it: {done.stderr.strip()}{hint}")
    number = done.stdout.strip().split(";")[0]  # id;cluster
    if not number.isdigit():
        raise SubmitFailed(f"sbatch gave no job id but {done.stdout.strip()!r}")
    return number


def _queued(ids: set[str]) -> set[str]:
    """Those of the jobs that wait or run. SubmitFailed if squeue keeps failing."""
    user = pwd.getpwuid(os.getuid()).pw_name
    said = ""
    for again in range(QUEUE_TRIES):
        if again:
            time.sleep(min(10.0, 2.0**again))  # the controller may be starting anew
        words = ["squeue", "--noheader", f"--user={user}", "--format=%i"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode == 0:
            return ids & set(done.stdout.split())
        said = done.stderr.strip()
    raise SubmitFailed(f"squeue fails: {said}\n  The jobs go on: {', '.join(sorted(ids))}")


def _wait(args: argparse.Namespace, chain: list[Job], ids: dict[str, str], where: Path) -> int:
    """Until no job is left; CHECK_FAILED names the results that are missing."""
    left: set[str] | None = None
    while True:
        now = _queued(set(ids.values()))
        for name, number in ids.items():
            if left is not None and number in left - now:
                console.note(args, f"ended: {number} {name}")
        left = now
        if not left:
            break
        time.sleep(args.poll_s)
    missing = missing_results(args, where)
    page = where / "report.html"
    if not args.no_report and not page.is_file():
        missing.append(str(page))
    logs = args.log_dir or "logs/"
    lines = [f"MISSING: {m}" for m in missing]
    lines.append(f"results: {where}" + (f"; the jobs' output is in {logs}" if missing else ""))
    console.show(args, "\n".join(lines), {"jobs": ids, "out_dir": str(where), "missing": missing})
    return console.CHECK_FAILED if missing else console.OK


def missing_results(args: argparse.Namespace, where: Path) -> list[str]:
    """What reelpool's own implementations should have written and have not."""
    out = []
    for scenario in args.scenarios:
        shape = SCENARIOS[scenario]
        for impl in (i for i in args.impl if i in IMPLS[:2]):
            workers = args.maxworkers if shape.maxworkers else args.num_workers
            workers = 0 if impl == "reelpool_loader" else workers
            for rank in range(shape.nodes):
                tag = dataloading_tag(scenario, args.batch_size, workers, rank, shape.nodes)
                if not (where / impl / f"{tag}.json").is_file():
                    out.append(str(where / impl / f"{tag}.json"))
    return out
