"""What all verbs share: options, streams, exit codes. Results go to stdout, the rest to stderr."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

OK, CHECK_FAILED, USAGE, UNUSABLE, INTERRUPTED = 0, 1, 2, 3, 130


class Unusable(Exception):
    """Input or environment that a verb cannot work with; the text says what to do (exit 3)."""


class Parser(argparse.ArgumentParser):
    """argparse with `-` and `_` equal in the names of long options."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args([plain(w) for w in words], namespace)


def plain(word: str) -> str:
    """`--num-workers=3` as `--num_workers=3`; anything but a long option unchanged."""
    if not word.startswith("--") or word == "--":
        return word
    name, equals, value = word[2:].partition("=")
    return "--" + name.replace("-", "_") + equals + value


def common_options() -> argparse.ArgumentParser:
    """The options that every verb has."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--json", action="store_true", help="exactly one JSON document on stdout")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no notes")
    parser.add_argument("-v", "--verbose", action="store_true", help="log and tracebacks")
    return parser


def dataset_options(parser: argparse.ArgumentParser, required: bool, urls: bool = False) -> None:
    """DATASET, --root, --revision. urls: any URL is taken."""
    more = ", hf://buckets/..., http(s)://..., s3://..." if urls else ""
    parser.add_argument("dataset", metavar="DATASET", nargs=None if required else "?",
                        help=f"folder, repo id, hf://datasets/OWNER/NAME[@REV]{more}")  # fmt: skip
    parser.add_argument("--root", type=Path, help="the dataset's folder, if DATASET is a repo id")
    parser.add_argument("--revision", help="branch, tag or commit")


def place(dataset: str | None, root: Path | None, urls: bool = False) -> tuple[str, Path | None]:
    """(repo id or URL, local root or None) of the options. Raises Unusable for a missing folder;
    urls: any URL is taken.
    """
    if root is not None:
        if not root.is_dir():
            raise Unusable(f"--root {root}: no such folder")
        return dataset or root.resolve().name, root
    if dataset is None:
        raise Unusable("no DATASET")
    path = Path(dataset)
    if path.is_dir():
        return path.resolve().name, path
    if dataset.startswith("hf://datasets/"):
        return dataset, None
    if urls and "://" in dataset:
        if dataset.lower().startswith("file://"):
            return place(dataset, Path(unquote(urlsplit(dataset).path)))
        return dataset, None
    if dataset.count("/") != 1 or dataset.startswith((".", "/", "~")):
        raise Unusable(f"{dataset}: no such folder, and not a repo id (owner/name)")
    return dataset, None


def prepare(out: Path) -> None:
    """Make the folder of the results: that it cannot be written is told before the work."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise Unusable(f"--out_dir {out} cannot be written: {error.strerror}") from None


def write(path: Path, text: str) -> None:
    """Write a result. Raises Unusable naming the file."""
    try:
        path.write_text(text)
    except OSError as error:
        raise Unusable(f"{path} cannot be written: {error.strerror}") from None


def note(args: argparse.Namespace, text: str) -> None:
    """A line for people, on stderr, unless -q."""
    if not args.quiet:
        print(text, file=sys.stderr, flush=True)


def show(args: argparse.Namespace, text: str, document: Any) -> None:
    """The verb's result on stdout: `document` with --json, else `text`."""
    print(json.dumps(document, indent=1, default=str) if args.json else text, flush=True)


def count(low: int) -> Callable[[str], int]:
    """A parser of integers from `low` on."""

    def parse(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"{text} is below {low}")
        return value

    parse.__name__ = "int"
    return parse


def seconds(text: str) -> float:
    """A parser of a time in seconds, more than 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time: use seconds, more than 0")
    return value


class Lines:
    """Progress without a terminal: one line per 30 s on stderr."""

    def __init__(self, total: int, silent: bool) -> None:
        self.total, self.silent, self.done, self.what = total, silent, 0, ""
        self.begun = self.said = time.monotonic()

    def set_description_str(self, what: str, refresh: bool = True) -> None:
        """Name the step at work."""
        self.what = what

    def update(self) -> None:
        """One step was begun."""
        self.done += 1
        now = time.monotonic()
        if not self.silent and now - self.said >= 30:
            self.said = now
            spent = now - self.begun
            print(
                f"{self.done}/{self.total} after {spent:.0f} s: {self.what}",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        """Nothing to tidy."""


def progress(args: argparse.Namespace, total: int) -> Any:
    """A tqdm bar on stderr: silent with -q, `Lines` without a terminal."""
    from .. import env

    silent = args.quiet or env.progress_disabled()
    if silent or not sys.stderr.isatty():
        return Lines(total, silent)
    from tqdm import tqdm

    form = "{desc:<44.44} {percentage:3.0f}%|{bar}| {n}/{total} {elapsed}<{remaining}"
    return tqdm(total=total, file=sys.stderr, leave=False, ncols=100, bar_format=form)


def columns(head: list[str], rows: list[list[str]], left: int = 2) -> str:
    """A table for the terminal; the first `left` columns are left-aligned."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: list[str]) -> str:
        cells = [
            c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *map(line, rows)])
