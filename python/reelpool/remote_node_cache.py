"""Where the processes of a node keep ranges of remote files, and how many bytes of them."""

from __future__ import annotations

import os
import re
import shutil
import stat
from pathlib import Path

from . import env

LEAST_FREE = 20 * 10**9  # bytes on the disk below which "auto" keeps nothing
SHARE_OF_FREE = 4  # "auto" takes one part in so many

_FAR = frozenset(
    "9p afs autofs beegfs ceph cifs fuse.cephfs fuse.gcsfuse fuse.glusterfs fuse.juicefs fuse.s3fs "
    "fuse.sshfs glusterfs gpfs lustre nfs nfs4 orangefs panfs pvfs2 smb3 smbfs wekafs".split()
)


def node_cache(disk_cache: int | str) -> tuple[str | None, int]:
    """(folder, most bytes) of the cache of ranges; (None, 0) for none.

    "auto": none on a file system of the network or with less than 20 GB free, else a quarter of
    what is free.
    """
    if disk_cache == 0:
        return None, 0
    place = env.cache_dir() / "obj"
    if disk_cache != "auto":
        return str(place), int(disk_cache)
    there = _nearest(place)
    if there is None or file_system(there) in _FAR:
        return None, 0
    try:
        free = shutil.disk_usage(there).free
    except OSError:
        return None, 0
    return (str(place), free // SHARE_OF_FREE) if free >= LEAST_FREE else (None, 0)


def _nearest(place: Path) -> Path | None:
    """The folder, or the one that it would be made in."""
    place = Path(os.path.abspath(place))
    for folder in (place, *place.parents):
        try:
            if stat.S_ISDIR(folder.stat().st_mode):
                return folder
        except OSError:
            continue  # made later
    return None


def file_system(folder: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """The type of the file system that a folder lies on; "" where the system does not tell."""
    real = os.path.realpath(folder)
    try:
        lines = Path(mounts).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""  # no Linux
    best, kind = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, kind = len(point), right.split()[0]
    return kind


def kept_keys(disk_cache: int | str) -> set[str]:
    """Names of the files of which the node's cache holds something."""
    place, _ = node_cache(disk_cache)
    if place is None:
        return set()
    return {path.name for path in Path(place).glob("v1/*/*")}
