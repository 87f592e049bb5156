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


def recorded(minimum: list[tuple[str, float]], maximum: list[tuple[str, float]]) -> list[list]:
    """[metric, "min" or "max", bound] of each: what a result file holds under `targets`."""
    return [[key, kind, bound] for kind, bounds in (("min", minimum), ("max", maximum))
            for key, bound in bounds]  # fmt: skip


def is_met(figures: dict, key: str, kind: str, bound: float) -> bool:
    """Whether a figure is there and keeps its bound; `kind` is "min" or "max"."""
    found = figures.get(key)
    sign = 1 if kind == "min" else -1
    return isinstance(found, (int, float)) and sign * (found - bound) >= 0


def unmet(name: str, figures: dict, bounds: list[list]) -> list[str]:
    """One line per `recorded` bound that is not kept, or whose figure is not there."""
    out = []
    for key, kind, bound in bounds:
        if not is_met(figures, key, kind, bound):
            shown = figures.get(key) if figures.get(key) is not None else "not measured"
            word = "below" if kind == "min" else "above"
            out.append(f"{name}: {key} = {shown}, {word} {bound:g}")
    return out


def missed(
    named: list[tuple[str, dict]],
    minimum: list[tuple[str, float]],
    maximum: list[tuple[str, float]],
) -> list[str]:
    """One line per (name, figures) and bound that was not kept, or whose figure is not there."""
    bounds = recorded(minimum, maximum)
    return [line for name, figures in named for line in unmet(name, figures, bounds)]
