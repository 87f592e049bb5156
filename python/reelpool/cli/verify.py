"""`reelpool verify DATASET`: every fault of a dataset, where it is, what follows, what to do."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from .. import errors, verify
from . import console


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `verify`."""
    console.dataset_options(parser, required=True, urls=True)
    add = parser.add_argument
    add("--level", type=_level, default="index", metavar="LEVEL",
        help="meta: counts, tasks, statistics; index: and every file, a picture for each time,"
        " every byte against its check sum (default); decode: every picture decoded; of several"
        " (meta,index) the deepest, which has the others in it")  # fmt: skip
    add("--episode", type=int, action="append", metavar="N", help="only this one; may be repeated")
    add("--jobs", type=console.count(1), help="threads (default: the CPUs granted)")
    add("--out_dir", type=Path, help="write the report as verify.json here, too")
    add("--no_sums", action="store_true",
        help="neither compare nor write check sums: do not read whole files")  # fmt: skip


def _level(text: str) -> str:
    """A parser of levels: the deepest of those named."""
    named = [part.strip() for part in text.split(",")]
    if not set(named) <= set(verify.LEVELS):
        raise argparse.ArgumentTypeError(f"{text!r}: use one or more of {','.join(verify.LEVELS)}")
    return max(named, key=verify.LEVELS.index)


def run(args: argparse.Namespace) -> int:
    """Check, report, and keep the check sums of files without fault."""
    name, root = console.place(args.dataset, args.root, urls=True)
    if args.out_dir is not None:
        console.prepare(args.out_dir)
    try:
        report = verify.check(
            name, args.level, args.episode, args.jobs, root=root, revision=args.revision,
            sums=not args.no_sums, write_sums=not args.no_sums,
            progress=lambda total: _Steps(args, total),
        )  # fmt: skip
    except ValueError as error:
        if isinstance(error, errors.ReelpoolError):
            raise
        raise console.Unusable(str(error)) from error
    if report.sums_written:
        console.note(args, f"check sums of {report.sums_written} files were kept: reads are "
                     "compared with today's bytes from now on (--no_sums: do not)")  # fmt: skip
    console.show(args, report.text(), report.to_dict())
    if args.out_dir is not None:
        text = json.dumps(report.to_dict(), indent=1)
        console.write(args.out_dir / "verify.json", text + "\n")
    return console.OK if report.ok else console.CHECK_FAILED


class _Steps:
    """A bar that is shown only for what takes longer than two seconds."""

    def __init__(self, args: argparse.Namespace, total: int) -> None:
        self.args, self.total, self.done, self.what = args, total, 0, ""
        self.begun = time.monotonic()
        self.bar: Any = None

    def set_description_str(self, what: str, refresh: bool = True) -> None:
        """Name the step at work."""
        self.what = what
        if self.bar is not None:
            self.bar.set_description_str(what, refresh=False)

    def update(self) -> None:
        """A step was done."""
        self.done += 1
        if self.bar is not None:
            self.bar.update()
        elif time.monotonic() - self.begun > 2:
            self.bar = console.progress(self.args, self.total)
            self.bar.set_description_str(self.what, refresh=False)
            for _ in range(self.done):
                self.bar.update()

    def close(self) -> None:
        """No more steps."""
        if self.bar is not None:
            self.bar.close()
