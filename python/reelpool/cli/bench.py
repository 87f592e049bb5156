"""`reelpool bench`: the options, the table, the files."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from ..bench import targets
from ..bench.suite_options import names
from . import console

MAX_SHEET_ROWS = 6
_count = console.count


def _counts(text: str) -> tuple[int, ...]:
    try:
        found = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        found = (-1,)
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"{text!r}: use one or more counts, as 1,2,4")
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `bench`."""
    impls = ("reelpool", "lerobot", "torchcodec", "av")
    console.dataset_options(parser, required=False)
    add = parser.add_argument
    add(
        "--scenario",
        choices=("demo", "local"),
        default="demo",
        help="demo: two orders beside the other readers; local: all orders, windows, dtypes",
    )
    add(
        "--quality",
        action="store_true",
        help="compare how orders mix DATASET (none: the test set of 2,000 episodes); no decoding",
    )
    add(
        "--merge",
        type=Path,
        metavar="DIR",
        help="measure nothing: put all results below DIR together, of all ranks and runs",
    )
    add("--impl", type=names(impls), default=impls, help=f"readers: {','.join(impls)}")
    add(
        "--loader",
        type=names(("threads", "workers")),
        default=("threads", "workers"),
        help="threads: Loader; workers: torch DataLoader (default: both)",
    )
    add(
        "--mode",
        type=names(("single", "sarm", "sarm_action")),
        help="single frames; sarm: 8 steps 1 s apart of action and cameras; sarm_action: of action",
    )
    add(
        "--order",
        type=names(("sequential", "random", "gop", "stream")),
        help="sequential; random: uniform shuffle; gop: shuffled by whole GOPs; stream: the order "
        "of StreamingLeRobotDataset",
    )
    add("--dtype", type=names(("uint8", "float32")), help="of the pictures (default: uint8)")
    add("--lerobot_python", metavar="EXE", help="interpreter that runs the other readers")
    add("--batch_size", type=_count(1), help="samples per batch (default: 64; embedded set: 16)")
    add(
        "--num_workers",
        type=_counts,
        help="DataLoader workers, one or more counts: 1,2,4 (default: CPUs granted; stream: 1 too)",
    )
    add("--num_threads", type=_count(1), help="decoding threads (default: CPUs granted)")
    add("--prefetch_factor", type=_count(1), default=2, help="batches ready ahead (default: 2)")
    add(
        "--duration_s",
        type=console.seconds,
        help="steady window in seconds (default: 10; embedded: 1.5)",
    )
    add("--num_batches", type=_count(1), default=1_000_000, help="end after so many batches")
    add("--warmup_batches", type=_count(0), default=5, help="before the window (default: 5)")
    add("--repeat", "--repeats", type=_count(1), default=1, help="interleaved repeats (default: 1)")
    add("--max_episodes", type=_count(0), default=0, help="use the first so many episodes")
    add("--seed", type=int, default=0, help="of the shuffle")
    add("--window", type=_count(1), help="frames that streaming mixes (default: the class's own)")
    add(
        "--buffer_size",
        type=_count(1),
        default=1000,
        help="decoded samples that LeRobot's streaming class holds (default: its own, 1000)",
    )
    add(
        "--probe_samples",
        type=_count(0),
        default=100,
        help="samples read one by one afterwards, without threads or workers (default: 100)",
    )
    add("--probe_warmup", type=_count(0), default=10, help="of those, before the clock starts")
    targets.add_options(parser)
    add("--out_dir", type=Path, help="for the results (default: bench_out; --merge: DIR)")


def _fill(args: argparse.Namespace, embedded: bool) -> None:
    """Defaults that depend on the dataset and the machine."""
    from .. import env

    cpus = env.granted_cpus()
    args.num_threads = args.num_threads or cpus
    args.workers_given = args.num_workers is not None
    args.num_workers = args.num_workers or (cpus,)
    args.batch_size = args.batch_size or (16 if embedded else 64)
    args.duration_s = args.duration_s or (1.5 if embedded else 10.0)
    args.out_dir = args.out_dir or Path("bench_out")
    args.floor_s = 0.4 if embedded else min(5.0, max(0.5, args.duration_s / 8))


def run(args: argparse.Namespace) -> int:
    """Measure, write the files, print the table."""
    from ..bench import report, scenarios, session

    if args.merge:
        return _merge(args)
    if args.quality:
        return _quality(args)
    embedded = args.dataset is None and args.root is None
    if embedded:
        name, root = "reelpool-demo", scenarios.DEMO / "dataset"
    else:
        name, root = console.place(args.dataset, args.root)
        if root is None:
            raise console.Unusable(f"{name}: give the local folder with --root")
    python = args.lerobot_python
    if python and shutil.which(python) is None:
        raise console.Unusable(f"--lerobot_python {python}: no such program")
    _fill(args, embedded)
    try:
        facts = scenarios.read_facts(name, root)
    except scenarios.DatasetUnusable as error:
        raise console.Unusable(str(error)) from None
    cases, absent = scenarios.build(args, facts, sys.executable)
    if not cases:
        raise console.Unusable("nothing to measure:\n  " + "\n  ".join(absent))
    kinds = len({c.floor for c in cases})
    console.prepare(args.out_dir)
    bar = console.progress(args, args.repeat * (2 * len(cases) + kinds))

    def tick(what: str) -> None:
        bar.set_description_str(what, refresh=False)
        bar.update()

    try:
        results, floors = session.run_all(cases, facts, args, tick)
    finally:
        bar.close()
    env = session.environment(facts, session.command_line())
    written = session.write_results(results, facts, floors, env, args)
    sheet = _sheet(args, facts)
    page = args.out_dir / "report.html"
    page.write_text(report.build(results, floors, env, absent, _data_uri(sheet)))
    written += [page, *([sheet] if sheet else [])]
    return _finish(args, facts, results, floors, env, absent, written)


def _merge(args: argparse.Namespace) -> int:
    """Put results together; CHECK_FAILED for missing ranks, failures of ours, missed targets."""
    from ..bench import merge, merge_page, session

    try:
        merged = merge.read(args.merge)
    except merge.MergeFailed as error:
        raise console.Unusable(str(error)) from None
    out = args.out_dir or args.merge
    console.prepare(out)
    page = merge_page.build(merged, session.command_line())
    written = merge.write(merged, out, page, merge_page.chart(merged))
    own = [g for g in merged.groups if g.impl.startswith("reelpool")]
    named = [(f"{g.label}, {g.work}", g.figures) for g in own]
    missed = [*merged.missed(), *targets.missed(named, args.minimum, args.maximum)]
    if not named and (args.minimum or args.maximum):
        missed.append("no result of reelpool to hold against --min and --max")
    head, rows = merge_page.table_of(merged.groups, merge_page.COLUMNS[:6])
    held_head, held_rows = merge_page.targets_table(merged.groups)
    held = [console.columns(held_head, held_rows, left=3), ""] if held_rows else []
    lines = [
        console.columns(head, rows) if rows else "no result with figures",
        "",
        *held,
        *merged.notes(),
        *[f"MISSED: {m}" for m in missed],
        f"written: {written[0]} and {len(written) - 1} files beside it",
    ]
    document = {
        "results": [g.figures for g in merged.groups],
        "notes": merged.notes(),
        "missed": missed,
        "files": [str(p) for p in written],
    }
    console.show(args, "\n".join(lines), document)
    lost = any(g.missing for g in merged.groups) or merged.unreadable
    lost = lost or any(f["impl"] != "lerobot" for f in merged.failed)
    return console.CHECK_FAILED if missed or lost else console.OK


def _quality(args: argparse.Namespace) -> int:
    """Compare orders without decoding: table, quality.json, quality.html, quality.svg."""
    from ..bench import quality, quality_plot, session

    batch, window = args.batch_size or 64, args.window
    if args.dataset is None and args.root is None:
        layout, window = quality.test_set(), window or quality.WINDOW
    else:
        from .. import LeRobotDatasetMetadata

        name, root = console.place(args.dataset, args.root)
        meta = LeRobotDatasetMetadata(name, root=root, revision=args.revision)
        layout = quality.layout_of(name, meta)
    if layout.count < 2 * batch:
        raise console.Unusable(
            f"{layout.name} has {layout.count} frames, less than two batches of {batch}: lower "
            "--batch_size"
        )
    out = args.out_dir or Path("bench_out")
    console.prepare(out)
    bar = console.progress(args, args.repeat * len(quality.orders(layout, batch, window)))

    def tick(what: str) -> None:
        bar.set_description_str(what, refresh=False)
        bar.update()

    try:
        records = quality.compare(layout, batch, window, args.seed, args.repeat, tick)
    finally:
        bar.close()
    about = {
        "dataset": layout.name,
        "episodes": len(layout.lengths),
        "frames": layout.count,
        "batch_size": batch,
        "window": quality.lane_params(layout, batch, window, False).R,
        "seed": args.seed,
        "epochs": args.repeat,
        "command": session.command_line(),
    }
    missed = targets.missed(
        [(r["order"], r) for r in records if r["ours"]], args.minimum, args.maximum
    )
    head, rows = quality_plot.rows_of(records)
    files = [out / f"quality.{kind}" for kind in ("json", "html", "svg")]
    document = about | {"orders": records, "missed": missed, "files": [str(f) for f in files]}
    files[0].write_text(json.dumps(about | {"orders": records}, indent=1) + "\n")
    files[1].write_text(quality_plot.page(records, about))
    line = quality_plot.subtitle(about)
    files[2].write_text(quality_plot.stack(quality_plot.charts(records, batch), line))
    lines = [
        line,
        "",
        console.columns(head, rows, left=1),
        "",
        *[f"{name}: {meaning}" for name, meaning in quality_plot.MEANING],
        *[f"MISSED: {m}" for m in missed],
        f"written: {files[1]} and {len(files) - 1} files beside it",
    ]
    console.show(args, "\n".join(lines), document)
    return console.CHECK_FAILED if missed else console.OK


def _sheet(args: argparse.Namespace, facts: Any) -> Path | None:
    """contact_sheet.png of one shuffled batch through Loader."""
    from . import batch_pictures

    path = args.out_dir / "contact_sheet.png"
    batch_pictures.contact_sheet_of(facts.name, facts.root, MAX_SHEET_ROWS).save(path)
    return path


def _data_uri(path: Path | None) -> str | None:
    import base64

    if path is None:
        return None
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _finish(args, facts, results, floors, env, absent, written) -> int:
    """Print, compare with --min; the exit status."""
    from ..bench import report

    missed = missed_targets(results, args.minimum, args.maximum)
    head, rows = report.rows_of(results)
    failed = [r for r in results if r.failed]
    lines = [
        f"{facts.name}: {len(facts.episodes)} episodes, {sum(facts.lengths)} frames, "
        f"{len(facts.cameras)} cameras; batch {args.batch_size}; {env['cpu']}, "
        f"{env['cpus_granted']} CPUs",
        "",
        console.columns(head, rows) if rows else "no case gave figures",
        "",
        f"floor: {floors['source']}",
        *[f"not measured: {reason}" for reason in absent],
        *[f"FAILED: {r.failed}" for r in failed],
        *[f"MISSED: {m}" for m in missed],
        f"written: {args.out_dir / 'report.html'} and {len(written) - 1} files beside it",
    ]
    document = {
        "results": [r.case.labels() | r.figures for r in results],
        "floors": floors,
        "env": env,
        "absent": absent,
        "failed": {f"{r.case.label}, {r.case.what}": r.failed for r in failed},
        "missed": missed,
        "files": [str(p) for p in written],
    }
    console.show(args, "\n".join(lines), document)
    return (
        console.CHECK_FAILED
        if missed or any(r.case.impl == "reelpool" for r in failed)
        else console.OK
    )


def missed_targets(
    results: list[Any],
    minimum: list[tuple[str, float]],
    maximum: list[tuple[str, float]] | None = None,
) -> list[str]:
    """One line per reelpool case and target that was not reached or not measured."""
    own = [r for r in results if r.case.impl == "reelpool"]
    named = [(f"{r.case.label}, {r.case.what}", r.figures) for r in own]
    return targets.missed(named, minimum, maximum or [])
