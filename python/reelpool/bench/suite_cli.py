"""What benchmarks/benchmark_dataloading.py and benchmarks/streaming/benchmark_streaming.py run."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import errors
from ..cli import console
from . import merge, slurm, suite, suite_options, targets

SHOWN = (
    "samples_per_s", "decoded_frames_per_s", "frames_per_s_node", "floor_ratio",
    "first_batch_latency_s", "p50_sample_latency_ms", "p95_sample_latency_ms",
    "p99_sample_latency_ms", "peak_rss_gb", "shuffle_randomness_frac",
    "single_proc_samples_per_s", "fetch_pct", "decode_pct", "video_decoder_cache",
)  # fmt: skip


def _parser(prog: str, text: str) -> argparse.ArgumentParser:
    return console.Parser(prog=prog, description=text, parents=[console.common_options()])


def command_line(script: str) -> str:
    """The command as typed, without the path of the program."""
    return shlex.join(["python", script, *sys.argv[1:]])


def _guarded(name: str, args: argparse.Namespace, work: Callable[[], int]) -> int:
    """Every failure ends as one message and a status, as in `reelpool VERB`."""
    try:
        return work()
    except KeyboardInterrupt:
        return console.INTERRUPTED
    except suite.Terminated as end:
        print(f"{name}: {end}; partial results are kept", file=sys.stderr)
        return 143
    except Exception as error:
        if args.verbose:
            traceback.print_exc()
        plain = (suite.SuiteUnusable, slurm.SubmitFailed)
        kind = "" if isinstance(error, plain) else f"{type(error).__name__}: "
        print(f"{name}: {kind}{error}", file=sys.stderr)
        known = isinstance(error, (*plain, errors.ReelpoolError, OSError, ValueError))
        if not known and not args.verbose:
            print("  This is unexpected. Run it again with -v and report it.", file=sys.stderr)
        return console.UNUSABLE


def dataloading(argv: Sequence[str] | None = None, script: Path | None = None) -> int:
    """benchmark_dataloading.py: one scenario, or without --scenario the chain of jobs."""
    name = "benchmark_dataloading.py"
    parser = _parser(name, "Measure loading: one --scenario, or submit all to SLURM.")
    parser.add_argument(
        "--scenario",
        choices=tuple(suite_options.SCENARIOS),
        help="run this one here (none: submit the chain)",
    )
    suite_options.dataloading_options(parser)
    suite_options.submit_options(parser)
    try:
        args = parser.parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)
    if args.scenario is None:
        return _guarded(name, args, lambda: slurm.submit(args, script))

    def work() -> int:
        plans = suite.plan_dataloading(args, *suite.resolve_rank())
        return _report(args, plans, command_line(f"benchmarks/{name}"))

    return _guarded(name, args, work)


def streaming(argv: Sequence[str] | None = None) -> int:
    """benchmark_streaming.py: the streaming class by --mode and --source."""
    name = "benchmark_streaming.py"
    parser = _parser(name, "Measure the streaming class: pictures and windows, by source.")
    suite_options.streaming_options(parser)
    try:
        args = parser.parse_args(argv)
    except SystemExit as end:
        return int(end.code or 0)

    def work() -> int:
        command = command_line(f"benchmarks/streaming/{name}")
        return _report(args, suite.plan_streaming(args), command)

    return _guarded(name, args, work)


def _report(args: argparse.Namespace, plans: list[suite.Plan], command: str) -> int:
    """Run, print; CHECK_FAILED if an implementation of ours gave no figures or missed a target."""
    records = suite.run_plans(plans, args, command)
    lines = []
    for record in records:
        head = f"{record['scenario']}, {record['impl']}"
        if "failed" in record:
            lines += [f"{head}: FAILED", *[f"  {x}" for x in merge.last_words(record["failed"])]]
            continue
        lines.append(f"{head}: {record['samples_measured']} samples")
        lines += [f"  {k:<28}{_shown(record[k])}" for k in SHOWN]
    missed = _missed(records, args)
    lines += [f"MISSED: {m}" for m in missed]
    lines.append(f"written: {args.out_dir}/{{{','.join(p.impl for p in plans)}}}/")
    document = [{k: v for k, v in r.items() if k != "series"} for r in records]
    console.show(args, "\n".join(lines), document)
    failed = [r for r in records if "failed" in r]
    lost = any(r["impl"] != "lerobot" for r in failed) or len(failed) == len(records)
    return console.CHECK_FAILED if lost or missed else console.OK


def _missed(records: list[dict], args: argparse.Namespace) -> list[str]:
    """Targets that reelpool's implementations missed."""
    own = [r for r in records if r["impl"] != "lerobot"]
    named = [(f"{r['scenario']}, {r['impl']}", r) for r in own]
    return targets.missed(named, args.minimum, args.maximum)


def _shown(value: Any) -> str:
    return "-" if value is None else json.dumps(value)
