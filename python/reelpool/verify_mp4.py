"""What an MP4 file says about its own duration, box by box: two places that must agree."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

_PARENTS = {b"moov", b"trak", b"mdia", b"minf", b"stbl"}
_MAX_MOOV = 64 << 20


class Durations(NamedTuple):
    """Of the video track, in ticks of `timescale` per second.

    `stated`: the length that its header gives. `summed`: that of all its pictures. `usual`: the
    duration that most pictures have.
    """

    stated: int
    summed: int
    usual: int
    timescale: int


def _boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    while start + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1 and start + 16 <= end:
            (size,) = struct.unpack_from(">Q", data, start + 8)
            head = 16
        stop = end if size == 0 else start + size
        if stop > end or stop < start + head:
            return
        yield kind, start + head, stop
        if kind in _PARENTS:
            yield from _boxes(data, start + head, stop)
        start = stop


def _read_moov(path: str | os.PathLike[str]) -> bytes:
    with open(path, "rb") as stream:
        end = os.fstat(stream.fileno()).st_size
        at = 0
        while at + 8 <= end:
            stream.seek(at)
            head = stream.read(16)
            size, kind = struct.unpack_from(">I4s", head)
            if size == 1 and len(head) == 16:
                (size,) = struct.unpack_from(">Q", head, 8)
            elif size == 0:
                size = end - at
            if kind == b"moov" and 8 <= size <= _MAX_MOOV:
                stream.seek(at)
                return stream.read(size)
            if size < 8:
                break
            at += size
    return b""


def _sum(rows: Iterator[tuple[int, ...]]) -> tuple[int, int]:
    """(sum of all durations, the one that most pictures have) of (count, duration) rows."""
    counts: dict[int, int] = {}
    for count, delta in rows:
        counts[delta] = counts.get(delta, 0) + count
    total = sum(count * delta for delta, count in counts.items())
    return total, max(counts, key=counts.__getitem__, default=0)


def durations(path: str | os.PathLike[str]) -> Durations | None:
    """The durations of a file's video track; None where a box that says so is missing.

    For files that the core's index accepts: what that refuses may give nonsense here.
    """
    moov = _read_moov(path)
    stated = timescale = summed = usual = -1
    video = False
    try:
        for kind, start, end in _boxes(moov, 0, len(moov)):
            if kind == b"trak":
                if video:
                    break
                stated = summed = -1
            elif kind == b"mdhd":
                form, at = (">IQ", 20) if moov[start] == 1 else (">II", 12)
                timescale, stated = struct.unpack_from(form, moov, start + at)
            elif kind == b"hdlr":
                video = moov[start + 8 : start + 12] == b"vide"
            elif kind == b"stts":
                (rows,) = struct.unpack_from(">I", moov, start + 4)
                table = moov[start + 8 : min(end, start + 8 + 8 * rows)]
                summed, usual = _sum(struct.iter_unpack(">II", table))
    except (struct.error, IndexError):
        return None
    if not video or stated < 0 or summed < 0 or timescale <= 0:
        return None
    return Durations(stated, summed, usual, timescale)
