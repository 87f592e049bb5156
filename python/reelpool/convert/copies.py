"""Proof that a joined video holds the coded pictures of its sources, without decoding any."""

from __future__ import annotations

import importlib
import os
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, StorageError, make_error

_CLOSE_S = 1e-6  # pictures' times are exact; their seconds are rounded
_SYNCS = 8
_SIZE, _FLAGS = 1, 3  # columns of the core's table of samples


def video_digest(path: str, header: int) -> str:
    """What tells a version of a video from another without reading all of it: the CRC-32C of its
    `moov`, which names the size and place of every coded picture, and when it was changed (ms).

    `header`: that sum, as `video_info` gives it. Raises OSError.
    """
    return f"{header:08x}-{os.stat(path).st_mtime_ns // 1_000_000:x}"


def check_joined(
    part: Path,
    final: str,
    sources: list[str],
    planned: list[list],
    joined: list[dict],
    read_back: bool,
) -> bytes:
    """Compare a new video with its sources; its check sums, in the name of the file `final`.

    `sources`: paths; `planned`: their [name, bytes, `video_digest`]; `joined`: what
    `concat_videos` says of each. Every picture must have its size, order, key flag and time; its
    bytes have the check sum that was taken between reading and writing them. With `read_back` the
    new file is read and its sums compared with those. Raises StorageError where a source is another
    one than the plan's, or the disk gave other bytes; FormatError for the index.
    """
    core: Any = importlib.import_module("reelpool._core")
    new = core.video_info(os.fspath(part), True)
    rows, order, times = _samples(new)
    first = shown = 0
    for path, (rel, _, digest), entry in zip(sources, planned, joined):
        info = core.video_info(path, True)
        if video_digest(path, info["header"]) != digest:
            raise changed(rel)
        theirs, theirs_order, seconds = _samples(info)
        end, shown_end = first + len(theirs), shown + len(theirs_order)
        seconds = seconds + float(Fraction(*entry["offset"]) - Fraction(*entry["start"]))
        mine = times[shown:shown_end]
        same = (
            np.array_equal(rows[first:end, _SIZE], theirs[:, _SIZE])
            and np.array_equal(rows[first:end, _FLAGS], theirs[:, _FLAGS])
            and np.array_equal(order[shown:shown_end], theirs_order + first)
            and len(mine) == len(seconds)
            and bool((np.abs(mine - seconds) <= _CLOSE_S).all())
        )
        if not same:
            text = f"{part.name}: its index differs from that of {rel}; nothing was replaced"
            raise make_error(FormatError, text, file=rel)
        first, shown = end, shown_end
    if first != len(rows) or shown != len(order):
        text = f"{part.name}: it holds {len(rows)} pictures, its sources {first}"
        raise make_error(FormatError, text, file=part.name)
    sums = b"".join(entry["sums"] for entry in joined)
    if read_back and core.parse_sums(core.video_sums(os.fspath(part), final))[4] != sums:
        text = f"{final}: the disk gave back other bytes than were written\n  Check the disk"
        raise make_error(StorageError, text, file=final)
    return core.write_sums(os.fspath(part), final, sums)


def keep_sums(places: list[tuple[Path, Path]]) -> list[str]:
    """Keep check sums of new videos for readers to compare with: [(file of sums, new file)].
    A note where that failed. A table has none; one lost with the power is no failure.
    """
    from .. import sums

    def keep(place: tuple[Path, Path]) -> str | None:
        try:
            found = sums.parse(place[0].read_bytes())
            if found.is_of(place[1]):
                sums.store(found)
        except (FileNotFoundError, FormatError):
            pass  # `reelpool verify` can make them
        except (OSError, StorageError) as error:
            return f"check sums are not kept: {error}"
        return None

    with ThreadPoolExecutor(_SYNCS) as threads:  # the file system joins their commits
        return [note for note in threads.map(keep, places) if note][:1]


def _samples(info: dict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(int64 (n, 4) samples in decode order; int64 (shown,) places there in presentation order;
    float64 (shown,) seconds) of `video_info`.
    """
    return (
        np.frombuffer(info["rows"], np.int64).reshape(-1, 4),
        np.frombuffer(info["order"], np.int64),
        np.frombuffer(info["times"], np.float64),
    )


def changed(rel: str) -> StorageError:
    """The error for an input that is not what it was when the plan was made."""
    text = f"{rel} has changed since the plan was made\n  Remove the work folder, start again"
    return make_error(StorageError, text, file=rel)
