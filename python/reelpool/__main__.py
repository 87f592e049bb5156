"""`reelpool VERB`, also `python -m reelpool VERB`."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import traceback
from collections.abc import Sequence

from . import env, errors
from .cli import console

VERBS = {
    "doctor": "check this machine, and optionally a dataset, and say what to fix",
    "inspect": "describe a dataset and write pictures of a real batch",
    "convert": "turn a v2.0 or v2.1 dataset into v3.0, in place",
    "verify": "check a dataset and list every fault, down to each picture if asked",
    "bench": "measure loading beside other readers and the bare decoder",
    "submit": "submit the benchmark's scenarios to SLURM, one after the other",
}


def parser(words: Sequence[str] = tuple(VERBS)) -> argparse.ArgumentParser:
    """The command line; of the verbs among `words` with their options, whose modules are loaded."""
    top = console.Parser(prog="reelpool", description="Batches from LeRobot video datasets.")
    top.add_argument("--version", action="store_true", help="print the version and exit")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=console.Parser)
    for name, text in VERBS.items():
        verb = verbs.add_parser(name, help=text, description=text.capitalize() + ".",
                                parents=[console.common_options()])  # fmt: skip
        if name in words:
            importlib.import_module(f".cli.{name}", __package__).add_options(verb)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb. The exit status: 0 ok, 1 check failed, 2 usage, 3 unusable, 130 Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = parser(words).parse_args(words)
    except SystemExit as end:  # argparse: 0 after --help, 2 on a wrong option
        return int(end.code or 0)
    if args.version:
        print(version())
        return console.OK
    if args.verb is None:
        parser(()).print_help(sys.stderr)
        return console.USAGE
    level = logging.INFO if args.verbose else env.log_level() or logging.WARNING
    own = logging.getLogger("reelpool")
    own.handlers.clear()  # REELPOOL_LOG's, which scripts use
    own.propagate = True
    logging.basicConfig(level=level, stream=sys.stderr, format="%(name)s: %(message)s")
    try:
        return importlib.import_module(f".cli.{args.verb}", __package__).run(args)
    except KeyboardInterrupt:
        return console.INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()  # the reader of stdout is gone: nothing more can be said
        return console.OK
    except Exception as error:  # every failure ends as one message and a status
        if args.verbose:
            traceback.print_exc()
        known = isinstance(error, (console.Unusable, errors.ReelpoolError, OSError, ImportError))
        known = known or (type(error) is ValueError and _is_ours(error))
        kind = "" if isinstance(error, console.Unusable) else f"{type(error).__name__}: "
        print(f"reelpool {args.verb}: {kind}{error}", file=sys.stderr)
        if not known and not args.verbose:
            print("  This is unexpected. Run it again with -v and report it.", file=sys.stderr)
        return console.UNUSABLE


def _is_ours(error: Exception) -> bool:
    """Whether reelpool itself raised it: a value that it refuses, and names."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    module = "" if at is None else at.tb_frame.f_globals.get("__name__", "")
    return module.partition(".")[0] == "reelpool"


def version() -> str:
    """The installed version, or "unknown" in a bare source tree."""
    from importlib import metadata

    try:
        return metadata.version("reelpool")
    except metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
