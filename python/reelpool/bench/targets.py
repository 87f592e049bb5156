"""`--min METRIC=VALUE` and `--max METRIC=VALUE`: figures that a run is held against."""

from __future__ import annotations

import argparse
import math


def parse(text: str) -> tuple[str, float]:
    """(metric, bound) of "METRIC=VALUE"."""
    name, _, value = text.partition("=")
    try:
        bound = float(value)
    except ValueError:
        bound = math.nan
    if not name.strip() or not math.isfinite(bound):
        raise argparse.ArgumentTypeError(f"{text!r} is not METRIC=VALUE")
    return name.strip(), bound


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--min` and `--max`: args.minimum, args.maximum."""
    for name, dest, less in (("--min", "minimum", "less"), ("--max", "maximum", "more")):
        parser.add_argument(
            name,
            dest=dest,
            type=parse,
            action="append",
            default=[],
            metavar="METRIC=VALUE",
            help=f"exit 1 if a figure of reelpool's is {less}; may be repeated",
        )


def missed(
    named: list[tuple[str, dict]],
    minimum: list[tuple[str, float]],
    maximum: list[tuple[str, float]],
) -> list[str]:
    """One line per (name, figures) and bound that was not kept, or whose figure is not there."""
    out = []
    for bounds, sign, word in ((minimum, 1, "below"), (maximum, -1, "above")):
        for key, bound in bounds:
            for name, figures in named:
                found = figures.get(key)
                if not isinstance(found, (int, float)) or sign * (found - bound) < 0:
                    shown = found if found is not None else "not measured"
                    out.append(f"{name}: {key} = {shown}, {word} {bound:g}")
    return out
