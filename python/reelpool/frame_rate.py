"""Whether `fps` of info.json is the rate of the rows: by it seconds of windows become rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .errors import FormatError, make_error

if TYPE_CHECKING:
    from .metadata import LeRobotDatasetMetadata
    from .tables import Table

logger = logging.getLogger("reelpool")

_ROWS = 4096  # the first ones are enough to see it
_SLACK = 0.01  # of the time of a frame: clocks are uneven, and 29.97 is often written as 30


def seconds_per_row(timestamp: np.ndarray, episode: np.ndarray) -> float | None:
    """The median time from a row to the next one of its episode, of the first rows.

    timestamp: float32 seconds (rows,); episode: the number of each row's episode (rows,). None
    where no two rows of an episode have times, or these do not rise.
    """
    times = timestamp[:_ROWS].astype(np.float64)
    with np.errstate(invalid="ignore"):
        steps = np.diff(times)[np.diff(episode[:_ROWS]) == 0]
    steps = np.sort(steps[np.isfinite(steps)])
    step = float(steps[len(steps) // 2]) if len(steps) else 0.0
    return step if step > 0 else None


def contradiction(
    fps: float, timestamp: np.ndarray, episode: np.ndarray, tolerance_s: float
) -> float | None:
    """`seconds_per_row`, if it differs from 1 / fps by more than the tolerance, 1 % of a frame and
    what float32 cannot tell; else None.
    """
    step = seconds_per_row(timestamp, episode)
    if step is None:
        return None
    times = timestamp[:_ROWS]
    grain = 2 * float(np.spacing(np.abs(times[np.isfinite(times)]).max()))
    allowed = max(tolerance_s, _SLACK / fps) + grain
    return step if abs(step - 1 / fps) > allowed else None


def rate_text(fps: float, step: float) -> str:
    """What is wrong."""
    return f"fps is {fps:g}, but the rows' timestamps are {step:.4g} s apart, {1 / step:.4g} fps"


def check_rate(
    meta: LeRobotDatasetMetadata,
    table: Table,
    delta_timestamps: Mapping[str, Sequence[float]] | None,
    tolerance_s: float,
) -> None:
    """FormatError if a window would hold other rows than those nearest to its times, since `fps` is
    not the rows' rate; a warning if it is not, and no window shows it.
    """
    step = contradiction(meta.fps, table.timestamp, table.episode_index, tolerance_s)
    if step is None:
        return
    what = f"meta/info.json: {rate_text(meta.fps, step)}"
    for key, seconds in (delta_timestamps or {}).items():
        wrong = [float(s) for s in seconds if round(s * meta.fps) != round(s / step)]
        if wrong:
            advice = (
                f"Run: reelpool verify DATASET     Or: correct fps there; tolerance_s="
                f"{math.ceil(abs(step - 1 / meta.fps) * 1e4) / 1e4:g} takes rows by their number"
            )
            raise make_error(
                FormatError,
                f"{what}: delta_timestamps[{key!r}] would hold other rows than those of its times, "
                f"{wrong[:4]} s\n  {advice}",
                file="meta/info.json",
            )
    logger.warning("%s: %s", meta.repo_id, what)
