"""Check sums of video files: one CRC-32C per coded picture, in a small file of reelpool's cache.

Video codecs carry no check sums: a flipped bit can decode to other, valid pixels. Where a file's
sums are known, every read compares the packets it takes with them, before they are decoded.

Sums lie in `env.cache_dir()`/sums/v1, never beside the data. A file of sums belongs to one real
path and names its size and modification time: after a change of either it is *stale* and has no
effect. `reelpool verify` and the converter write them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from . import env
from .engine import load_core
from .errors import FormatError, StorageError, make_error

logger = logging.getLogger("reelpool")

MAX_BYTES = 48 + 4096 + 4 * (16 << 20)


@dataclasses.dataclass(frozen=True)
class Sums:
    """The sums of one version of a file.

    `path` (real), `size` (bytes), `mtime_ns` name the version; `header` is the sum of the MP4's
    `moov` box, `values` uint32 (samples,) those of the samples in decode order; `data` is all of
    it as stored.
    """

    path: str
    size: int
    mtime_ns: int
    header: int
    values: np.ndarray
    data: bytes

    def is_of(self, path: str | os.PathLike[str]) -> bool:
        """Whether the file at `path` is the version that these sums describe."""
        real = os.path.realpath(path)
        try:
            found = os.stat(real)
        except OSError:
            return False
        return (self.path, self.size, self.mtime_ns) == (real, found.st_size, found.st_mtime_ns)


def parse(data: bytes) -> Sums:
    """Sums as stored. FormatError for anything else."""
    path, size, mtime_ns, header, values = load_core().parse_sums(data)
    return Sums(os.fsdecode(path), size, mtime_ns, header, np.frombuffer(values, "<u4"), data)


def compute(path: str | os.PathLike[str]) -> Sums:
    """The sums of a file as it is now: reads all of it, without the GIL.

    NotFoundError, StorageError, FormatError (no readable MP4, or cut off), DatasetChangedError.
    """
    real = os.path.realpath(path)
    return parse(load_core().video_sums(real, real))


def folder() -> Path:
    """Where sums lie, there or not."""
    return env.cache_dir() / "sums" / "v1"


def stored_at(path: str | os.PathLike[str]) -> Path:
    """The file that holds the sums of a video file, there or not."""
    return Path(os.fsdecode(_place(os.fsencode(folder()), os.fsencode(os.path.realpath(path)))))


def _place(base: bytes, real: bytes) -> bytes:
    name = hashlib.sha256(real).hexdigest().encode()
    return base + b"/" + name[:2] + b"/" + name


def is_safe(place: Path) -> bool:
    """Whether nobody but this user can write to a folder of sums; False if there is none."""
    try:
        found = os.stat(place, follow_symlinks=False)
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def with_places(
    paths: list[bytes], real: bool = False
) -> list[bytes] | list[bytes | tuple[bytes, bytes]]:
    """Video files as the engine takes them: each with the place where its sums would lie. The paths
    alone where no sums were ever stored, or where others could have written them.

    `real`: the paths hold no links, which saves asking the system about each.
    """
    base = folder()
    if not is_safe(base):
        if base.exists():
            logger.warning("%s can be written by others: check sums are not used", base)
        return paths
    place = os.fsencode(base)
    return [
        path if b"://" in path else (path, _place(place, path if real else os.path.realpath(path)))
        for path in paths
    ]


def load(path: str | os.PathLike[str]) -> Sums | None:
    """The stored sums of a video file; None where there are none.

    FormatError if they are damaged. They may be of an older version: ask `is_of`.
    """
    if not is_safe(folder()):
        return None
    place = stored_at(path)
    try:
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise make_error(
            StorageError, f"{place}: {error.strerror}", file=str(place), status=error.errno
        ) from error
    sums = parse(data)
    if sums.path != os.path.realpath(path):
        raise make_error(FormatError, f"{place} holds the check sums of another file: {sums.path}")
    return sums


def store(sums: Sums) -> Path:
    """Keep sums, in the place of older ones: a reader sees the old or the new. StorageError."""
    place = stored_at(sums.path)
    try:
        base = folder()
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_safe(base):
            what = f"{base} is another user's, or can be written by others"
            raise make_error(StorageError, what, file=str(base))
        place.parent.mkdir(mode=0o700, exist_ok=True)
        handle, part = tempfile.mkstemp(prefix=".", suffix=".part", dir=place.parent)
        try:
            with open(handle, "wb") as stream:
                stream.write(sums.data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(part, place)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
    except StorageError:
        raise
    except OSError as error:
        raise make_error(
            StorageError, f"{place}: {error.strerror}", file=str(place), status=error.errno
        ) from error
    return place


def keep(paths: Iterable[str | os.PathLike[str]]) -> int:
    """Sum up and keep files that are known to be good, just written for example; how many.

    As `compute` and `store`.
    """
    count = 0
    for path in paths:
        store(compute(path))
        count += 1
    return count


def forget(path: str | os.PathLike[str]) -> bool:
    """Remove the stored sums of a video file; whether there were any."""
    try:
        stored_at(path).unlink()
    except FileNotFoundError:
        return False
    return True
