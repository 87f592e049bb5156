"""What a dataset's user selects: episodes, delta timestamps, cameras, sizes. Checked here, once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .order import is_int

if TYPE_CHECKING:
    from .metadata import LeRobotDatasetMetadata

logger = logging.getLogger("reelpool")


def select_episodes(
    meta: LeRobotDatasetMetadata,
    episodes: Iterable[int] | None,
    episode_filter: Callable[[dict], bool] | None,
) -> list[int] | None:
    """The caller's episodes without those out of range and without repeats; with a filter, sorted.

    None: all. Drops with one warning; raises ValueError when nothing is left.
    """
    chosen: list[int] | None = None
    if episodes is not None:
        given = [_episode_number(e) for e in episodes]
        seen: set[int] = set()
        chosen = []
        for episode in given:
            if 0 <= episode < meta.total_episodes and episode not in seen:
                seen.add(episode)
                chosen.append(episode)
        if len(chosen) != len(given):
            bad = sorted({e for e in given if not 0 <= e < meta.total_episodes})
            what = f"out of range (0..{meta.total_episodes - 1}): {bad[:10]}" if bad else "repeated"
            logger.warning(
                "%s: %d of %d episodes dropped, %s", meta.repo_id, len(given) - len(chosen),
                len(given), what,
            )  # fmt: skip
        if not chosen:
            raise ValueError(
                f"episodes= leaves nothing of {meta.repo_id}, which has episodes "
                f"0..{meta.total_episodes - 1}"
            )
    if episode_filter is not None:
        chosen = meta.filter_episodes(episode_filter, candidates=chosen)
        if not chosen:
            raise ValueError(
                f"The episode filter did not match any episode of {meta.repo_id}: check it and "
                "the episodes list"
            )
    return chosen


def _episode_number(value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"episodes must be integers, not {value!r}")
    return value.__index__()


def delta_rows(
    meta: LeRobotDatasetMetadata,
    delta_timestamps: Mapping[str, Sequence[float]] | None,
    tolerance_s: float,
    delivered: Sequence[str],
) -> dict[str, tuple[int, ...]]:
    """Row offsets per key: round(seconds * fps), half to even. ValueError for what has none."""
    rows: dict[str, tuple[int, ...]] = {}
    if delta_timestamps is not None and not isinstance(delta_timestamps, Mapping):
        kind = type(delta_timestamps).__name__
        raise TypeError(f"delta_timestamps must be a dict of lists of seconds, not {kind}")
    for key, seconds in (delta_timestamps or {}).items():
        feature = meta.features.get(key)
        if feature is None:
            known = ", ".join(meta.features)
            raise ValueError(f"delta_timestamps[{key!r}]: no such feature; there are {known}")
        if feature["dtype"] in ("string", "language") or key.startswith("language_"):
            raise ValueError(f"delta_timestamps[{key!r}]: a {feature['dtype']} has no window")
        if key in meta.camera_keys and key not in delivered:
            raise ValueError(f"delta_timestamps[{key!r}]: cameras= leaves this camera out")
        values = [float(s) for s in seconds]
        if not values:
            raise ValueError(f"delta_timestamps[{key!r}] is empty")
        fps = meta.fps
        # The sum of fractions is compared in seconds, as LeRobot does.
        off = [
            s for s in values
            if not (
                math.isfinite(s) and abs(s * fps) < 2**31
                and abs(s * fps - round(s * fps)) / fps <= tolerance_s
            )
        ]  # fmt: skip
        if off:
            raise ValueError(
                f"delta_timestamps[{key!r}]: {off} are no multiples of 1/{fps} s within "
                f"tolerance_s={tolerance_s}"
            )
        rows[key] = tuple(round(s * fps) for s in values)
    return rows


def select_cameras(
    meta: LeRobotDatasetMetadata, cameras: Sequence[str] | None
) -> tuple[tuple[str, ...], frozenset[str]]:
    """(video cameras to deliver, image-dtype cameras to leave out), in info.json's order."""
    if cameras is None:
        return tuple(meta.video_keys), frozenset()
    wanted = [cameras] if isinstance(cameras, str) else list(cameras)
    unknown = [key for key in wanted if key not in meta.camera_keys]
    if unknown:
        raise ValueError(f"cameras={unknown}: unknown; there are {', '.join(meta.camera_keys)}")
    skipped = frozenset(key for key in meta.image_keys if key not in wanted)
    return tuple(key for key in meta.video_keys if key in wanted), skipped


def target_sizes(
    meta: LeRobotDatasetMetadata, resize: Any, cameras: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """(height, width) per resized RGB camera."""
    if resize is None:
        return {}
    rgb = [key for key in cameras if key not in meta.depth_keys]
    sizes = dict(resize) if isinstance(resize, Mapping) else dict.fromkeys(rgb, resize)
    for key, size in sizes.items():
        if key not in rgb:
            raise ValueError(f"resize[{key!r}]: no RGB video camera; there are {', '.join(rgb)}")
        if (
            not isinstance(size, (tuple, list))
            or len(size) != 2
            or not all(is_int(n) and 0 < n <= 16384 for n in size)
        ):
            raise ValueError(f"resize[{key!r}] must be (height, width) in pixels, not {size!r}")
        sizes[key] = (int(size[0]), int(size[1]))
    return sizes
