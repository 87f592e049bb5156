"""Proof that a joined video holds the coded pictures of its sources, without decoding any."""

from __future__ import annotations

import hashlib
import importlib
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError, StorageError, make_error
from .durable import file_digest

_CLOSE_S = 1e-6  # pictures' times are exact; their seconds are rounded
_SIZE, _FLAGS = 1, 3  # columns of the core's table of samples


def video_digest(path: str) -> str:
    """What tells a video's content from another: the CRC-32C of its header, and the SHA-256 of
    those of its coded pictures. Reads all of the file. Raises what `sums.compute` does.
    """
    core: Any = importlib.import_module("reelpool._core")
    header, values = core.parse_sums(core.video_sums(path, path))[3:]
    return f"{header:08x}-{_digest(values)}"


def _digest(values: bytes) -> str:
    return hashlib.sha256(values).hexdigest()


def check_joined(
    part: Path, final: str, sources: list[str], planned: list[list], spans: list[list]
) -> bytes:
    """Compare a new video with its sources; its check sums, in the name of the file `final`.

    `sources`: paths; `planned`: their [name, bytes, `video_digest`] at the time of the plan;
    `spans`: [from, to] of each in the new file, seconds as (numerator, denominator). Every picture
    must have its bytes (by CRC-32C), its size, order, key flag and time. Raises StorageError where
    a source is another one than the plan's, or the disk gave other bytes; FormatError for the
    index.
    """
    core: Any = importlib.import_module("reelpool._core")
    data = core.video_sums(os.fspath(part), final)
    sums = core.parse_sums(data)[4]
    rows, order = _samples(core, os.fspath(part))
    times = np.frombuffer(core.video_info(os.fspath(part))["times"], np.float64)
    first = shown = 0
    for path, (rel, _, digest), span in zip(sources, planned, spans):
        theirs, theirs_order = _samples(core, path)
        end, shown_end = first + len(theirs), shown + len(theirs_order)
        if _digest(sums[4 * first : 4 * end]) != digest.partition("-")[2]:
            raise _other_bytes(path, rel, digest)
        seconds = np.frombuffer(core.video_info(path)["times"], np.float64)
        seconds = seconds + float(Fraction(*span[0]))
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
    return data


def _samples(core: Any, path: str) -> tuple[np.ndarray, np.ndarray]:
    """(int64 (n, 4) samples in decode order, int64 (shown,) in presentation order)."""
    rows, order = core.video_samples(path)
    return np.frombuffer(rows, np.int64).reshape(-1, 4), np.frombuffer(order, np.int64)


def _other_bytes(path: str, rel: str, digest: str) -> StorageError:
    if video_digest(path) != digest:
        return changed(rel)
    text = f"{rel}: the disk gave back other bytes than were written of it\n  Check the disk"
    return make_error(StorageError, text, file=rel)


def changed(rel: str) -> StorageError:
    """The error for an input that is not what it was when the plan was made."""
    text = f"{rel} has changed since the plan was made\n  Remove the work folder, start again"
    return make_error(StorageError, text, file=rel)


def check_unchanged(rel: str, path: str, digest: str) -> None:
    """Raise StorageError if a table is not the one of the plan. Reads all of it."""
    if file_digest(path)[1] != digest:
        raise changed(rel)
