"""`reelpool convert`: a v2.0 or v2.1 dataset to v3.0, in place or beside it."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import env
from ..errors import ReelpoolError, name_dataset
from . import console

if TYPE_CHECKING:
    from ..convert.job import Options
    from ..convert.run import Result

MIB = 1 << 20
_SAY_S = 30.0
_UNITS = {"read": "episodes", "check": "steps"}  # of phases that do not copy bytes
_OF_RAY = ("tasks", "cpus_per_task", "mem_per_cpu_gb")


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r}: use true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


_count.__name__ = "int"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `convert`; those of LeRobot's converter have its names and defaults."""
    parser.usage = "%(prog)s [DATASET] [options]"
    add = parser.add_argument
    add("dataset", metavar="DATASET", nargs="?", help="folder of the dataset, or its repo id")
    add("--repo_id", help="name on the Hub; fetched at v2.1 where there is no local copy")
    add("--root", type=Path, help="the dataset's folder (default: $HF_LEROBOT_HOME/REPO_ID)")
    add("--out_dir", type=Path, help="where to put the v3.0 dataset (default: in place of the old)")
    add(
        "--data_file_size_in_mb",
        type=_count,
        default=100,
        metavar="MB",
        help="of 2^20 bytes (default: 100)",
    )
    add(
        "--video_file_size_in_mb",
        type=_count,
        default=200,
        metavar="MB",
        help="of 2^20 bytes (default: 200)",
    )
    add("--validate", choices=("quick", "full"), default="quick",
        help="quick: counts, times, indexes; full: decode every frame")  # fmt: skip
    add("--tolerance_s", type=console.seconds, default=1e-4, metavar="S",
        help="largest distance from a row's time to its picture (default: 0.0001)")  # fmt: skip
    add(
        "--dry_run",
        action="store_true",
        help="read and check everything, show the plan, write nothing",
    )
    add(
        "--max_workers",
        type=_count,
        metavar="N",
        help="threads per process (default: the CPUs and one more; 1 with --orchestrate)",
    )
    many = parser.add_argument_group("several processes or hosts")
    add = many.add_argument
    add("--orchestrate", action="store_true",
        help="work by processes; the same command on further hosts joins in")  # fmt: skip
    add("--num_workers", type=_count, metavar="N",
        help="most processes at once here; never more than the CPUs or the items of work "
        "(default: the CPUs)")  # fmt: skip
    add("--episodes_per_batch", type=_count, default=25, metavar="N",
        help="episodes read and checked as one item of work (default: 25)")  # fmt: skip
    add("--work_dir", type=Path, help="plan and state (default: _work/NAME beside the dataset)")
    add("--engine", choices=("local", "slurm", "ray"), default="local",
        help="who runs the work (default: local)")  # fmt: skip
    for name, kind, value in (("tasks", int, 4), ("partition", str, ""), ("time", str, "4:00:00"),
                              ("cpus_per_task", int, 1), ("mem_per_cpu_gb", int, 2),
                              ("account", str, ""), ("qos", str, "")):  # fmt: skip
        of = "of SLURM and Ray" if name in _OF_RAY else "of SLURM"
        add(f"--{name}", type=kind, default=value, help=f"{of} (default: {value or 'none'})")
    add = parser.add_argument_group("the Hub").add_argument
    add("--push_to_hub", type=_flag, default=False, metavar="true|false",
        help="push after the conversion, as one commit (default: false)")  # fmt: skip
    add("--no_push", action="store_true", help="never push (the default)")
    add("--branch", help="branch that is pushed to (default: main)")
    add("--force_conversion", action="store_true", help="fetch v2.1 though the Hub has v3.0")


def run(args: argparse.Namespace) -> int:
    """Convert, and say what came of it."""
    from ..convert import hub, swap
    from ..convert.job import Options

    repo_id, root = _place(args)
    push = args.push_to_hub and not args.no_push
    if push and repo_id is None:
        raise console.Unusable("--push-to-hub needs --repo-id OWNER/NAME")
    if push and args.out_dir is not None and args.dry_run is False:
        console.note(args, f"pushing {args.out_dir} to {repo_id} at the end")
    target = (args.out_dir or root).absolute()
    swap.recover(target)
    if not root.exists():
        if repo_id is None or args.dry_run:
            raise console.Unusable(f"{root}: no such folder")
        console.note(args, f"fetching {repo_id} to {root}")
        root.parent.mkdir(parents=True, exist_ok=True)
        if not hub.fetch(repo_id, root, args.force_conversion):
            console.show(args, f"{repo_id} is v3.0 on the Hub: fetched to {root}",
                         {"target": str(root), "already": True})  # fmt: skip
            return console.OK
    options = Options(
        root=root.absolute(),
        name=root.absolute().name,
        out=args.out_dir and args.out_dir.absolute(),
        work_dir=args.work_dir and args.work_dir.absolute(),
        data_mb=args.data_file_size_in_mb,
        video_mb=args.video_file_size_in_mb,
        episodes_per_batch=args.episodes_per_batch,
        validate=args.validate,
        tolerance_s=args.tolerance_s,
    )
    try:
        return _run(args, options, repo_id, push)
    except ReelpoolError as error:
        name_dataset(error, options.name, options.root)
        raise


def _run(args: argparse.Namespace, options: Options, repo_id: str | None, push: bool) -> int:
    from ..convert import hub

    if args.dry_run:
        return _show_plan(args, options)
    if push and repo_id is not None:
        hub.check_access(repo_id)
    if args.engine == "slurm":
        return _submit(args, options, push)
    if args.engine == "ray":
        from ..convert import engines

        console.note(args, f"{args.tasks} tasks of Ray; logs in {options.work / 'ray'}")
        engines.run_on_ray(options, *(getattr(args, name) for name in _OF_RAY))
    result = _convert(args, options)
    document = {k: str(v) if isinstance(v, Path) else v for k, v in vars(result).items()}
    text = _summary(result, args.num_workers if args.orchestrate else None)
    if push and repo_id is not None:
        document["commit"] = hub.push(repo_id, result.target, args.branch)
        text += f"\nPushed to {repo_id}, commit {document['commit']}, tag v3.0"
    console.show(args, text, document)
    return console.OK


def _place(args: argparse.Namespace) -> tuple[str | None, Path]:
    """(repo id or None, folder of the dataset, which may not exist yet)."""
    if args.dataset is not None and args.repo_id is None and args.root is None:
        if Path(args.dataset).is_dir() or args.dataset.count("/") != 1 or args.dataset[0] in "./~":
            return None, Path(args.dataset)
        args.repo_id = args.dataset
    elif args.dataset is not None and args.root is None:
        return args.repo_id, Path(args.dataset)
    elif args.dataset is not None:
        raise console.Unusable("DATASET and --root both name a folder: give one")
    if args.root is not None:
        return args.repo_id, args.root
    if args.repo_id is None:
        raise console.Unusable("no DATASET: give a folder, or --repo-id OWNER/NAME")
    if args.repo_id.count("/") > 1 or ".." in args.repo_id or args.repo_id.startswith("/"):
        raise console.Unusable(f"--repo-id {args.repo_id}: use OWNER/NAME")
    return args.repo_id, env.hf_lerobot_home() / args.repo_id


def _convert(args: argparse.Namespace, options: Options) -> Result:
    from ..convert.run import convert

    cpus = env.granted_cpus()
    processes = (args.num_workers or cpus) if args.orchestrate else 0
    # One more than the CPUs: some wait for the disk.
    threads = args.max_workers or (1 if args.orchestrate else cpus + 1)
    bar = _Bar(args)
    try:
        return convert(options, threads, processes, bar.show)
    except KeyboardInterrupt:
        bar.close()
        console.note(args, "stopped: the same command goes on with what is left")
        raise
    finally:
        bar.close()


class _Bar:
    """Bytes or steps done, rate and time left, on stderr; without a terminal a line per phase, and
    one per 30 s.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._silent = args.quiet or env.progress_disabled()
        self._bar: Any = None
        self._at: tuple[str, int] = ("", 0)
        self._begun = self._said = 0.0

    def show(self, phase: str, done: int, total: int) -> None:
        """`done` of `total` of a phase: of "read" episodes, of "write" bytes; of "check" steps,
        whose number comes later.
        """
        if self._silent:
            return
        terminal = sys.stderr.isatty()
        if (phase, total) != self._at:
            self.close()
            if phase != self._at[0] and not terminal:
                size = f": {_amount(phase, total)}" if phase != "check" else ""
                console.note(self._args, f"{phase}{size}")
            self._at = (phase, total)
            self._begun = self._said = time.monotonic()
            if terminal and total:
                self._bar = _bar(phase, total)
        if self._bar is not None and done >= total // 200:  # less tells nothing of the time left
            self._bar.update(done - self._bar.n)
        elif not terminal and time.monotonic() - self._said >= _SAY_S:
            self._said = time.monotonic()
            console.note(self._args, _progress(phase, done, total, self._said - self._begun))

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _bar(phase: str, total: int) -> Any:
    from tqdm import tqdm

    size: dict[str, Any] = {"unit": "B", "unit_scale": True}
    if phase != "write":
        size = {"unit": f" {_UNITS[phase]}"}
    # A terminal without a size (serial lines, containers): tqdm would show nothing there.
    if not shutil.get_terminal_size((0, 0)).columns:
        size |= {"ncols": 79, "nrows": 24}
    return tqdm(total=total, desc=f"{phase:<5}", file=sys.stderr, leave=False, **size)


def _amount(phase: str, count: int) -> str:
    return f"{count / 1e6:.1f} MB" if phase == "write" else f"{count} {_UNITS[phase]}"


def _progress(phase: str, done: int, total: int, spent_s: float) -> str:
    """One line for logs: how much, how fast, how long yet."""
    left = f", {spent_s * (total - done) / done:.0f} s left" if done else ""
    if phase != "write":
        return f"{phase}: {done} of {total} {_UNITS[phase]}{left}"
    rate = f" at {done / 1e6 / spent_s:.0f} MB/s" if done else ""
    return f"{phase}: {done / 1e6:.0f} of {total / 1e6:.0f} MB{rate}{left}"


def _summary(result: Result, wanted: int | None) -> str:
    """What came of it; `wanted`: worker processes that were asked for."""
    if result.already:
        return f"{result.target} is v3.0"
    rate = result.input_bytes / 1e6 / max(result.seconds, 1e-9)
    lines = [
        f"{result.target} is v3.0 now: {result.episodes} episodes, {result.frames} frames",
        f"  {result.files} data and video files from {result.input_bytes / 1e6:.1f} MB "
        f"in {result.seconds:.2f} s ({rate:.0f} MB/s), checked",
    ]
    if wanted is not None and result.workers < wanted:
        lines.append(
            f"  Worker processes at once: {result.workers}, of {wanted} allowed "
            f"(CPUs here: {env.granted_cpus()}; each makes one file at a time)"
        )
    lines += [f"  Note: {note}" for note in result.notes]
    if result.old is not None:
        lines += [
            f"  The older dataset is kept: {result.old}",
            f"  Undo: rm -r {result.target} && mv {result.old} {result.target}",
        ]
    return "\n".join(lines)


def _show_plan(args: argparse.Namespace, options: Options) -> int:
    from ..convert.run import dry_run
    from ..convert.source import read_version

    if options.out is None and read_version(options.root)[0] >= 3:
        console.show(
            args, f"{options.root} is v3.0", {"target": str(options.root), "already": True}
        )
        return console.OK
    manifest, outputs = dry_run(options, args.max_workers or env.granted_cpus())
    rows = [[o.path, f"{o.first}..{o.stop - 1}", f"{o.size / MIB:.1f} MiB"] for o in outputs]
    total = sum(o.size for o in outputs)
    count = len(manifest["inputs"])
    head = f"{options.name}: {count} episodes, {total / MIB:.1f} MiB -> {options.target}"
    table = console.columns(["file", "episodes", "from"], rows, left=1)
    document = manifest | {"target": str(options.target)}
    document["outputs"] = [dataclasses.asdict(o) for o in outputs]
    console.show(args, f"{head}\n{table}\nNothing was written.", document)
    return console.OK


def _submit(args: argparse.Namespace, options: Options, push: bool) -> int:
    if push:
        raise console.Unusable(
            "--engine slurm does not push: run the same command with --push-to-hub true and "
            "without --engine when the jobs have ended"
        )
    from ..convert import engines

    slurm = engines.SlurmOptions(
        args.tasks, args.partition, args.time, args.cpus_per_task, args.mem_per_cpu_gb,
        args.account, args.qos,
    )  # fmt: skip
    work, last = engines.submit(options, slurm)
    text = f"submitted: {work} ({slurm.tasks} tasks), then {last}\n  Logs: {options.work / 'slurm'}"
    console.show(args, text, {"jobs": [work, last], "logs": str(options.work / "slurm")})
    return console.OK
