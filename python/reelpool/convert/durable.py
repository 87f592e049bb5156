"""Files that are whole or absent after a power cut: written beside, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import StorageError, make_error

PART = ".part"  # ends the name of every file that is not finished
_BLOCK = 1 << 20
_ADVICE = {
    errno.ENOSPC: "Free some space and run the same command again: finished files are kept",
    errno.EDQUOT: "Free some space and run the same command again: finished files are kept",
    errno.EACCES: "Check the permissions of the folder",
    errno.EPERM: "Check the permissions of the folder",
    errno.EFBIG: "No larger files may be made here (ulimit -f?): raise that, or lower "
    "--video-file-size-in-mb and --data-file-size-in-mb",
    errno.EROFS: "The file system is read-only: choose another place by --out-dir or --work-dir",
}


def storage_error(error: OSError, path: object) -> StorageError:
    """A StorageError that names `path` and says what to do."""
    advice = _ADVICE.get(error.errno or 0, "Check the disk")
    what = os.strerror(error.errno) if error.errno else error  # pyarrow's own words are long
    text = f"{path}: {what}\n  {advice}"
    return make_error(StorageError, text, file=str(path), status=error.errno)


@contextlib.contextmanager
def storing(path: object) -> Iterator[None]:
    """Turn an OSError of the body into a StorageError that names `path`."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise storage_error(error, path) from error


def sync(path: str | os.PathLike[str]) -> None:
    """Bring a file's bytes, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_below(root: Path, folder: Path) -> None:
    """Make a folder and those between it and `root`; FileNotFoundError where `root` is gone, which
    others may have put in its place meanwhile: it must not come back.
    """
    at = root
    for name in folder.relative_to(root).parts:
        at /= name
        at.mkdir(exist_ok=True)


def publish(part: Path, path: Path, named: bool = True, synced: bool = False) -> None:
    """Give a finished file its name. Both must lie in one folder. Blocks until it is on disk;
    with `named` False its name may be lost with the power, never found on an unfinished file.
    `synced`: its bytes are on the disk already, or the caller brings them there.
    """
    if not synced:
        sync(part)
    os.replace(part, path)
    if named:
        sync(path.parent)


def name_early(part: Path, path: Path) -> bool:
    """Give a whole file its name before its bytes are on the disk, beside the name it has. In
    nobody's place: False where that name is taken, perhaps by one that is on the disk, and where
    the file system has no links. Raises FileNotFoundError without `part`.
    """
    try:
        os.link(part, path)
    except FileNotFoundError:
        raise
    except OSError:
        return False
    return True


def write_bytes(path: Path, data: bytes, named: bool = True, synced: bool = False) -> None:
    """Make or replace a file in one step, `named` and `synced` as in `publish`. Raises
    StorageError.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}{PART}")
    with storing(path):
        try:
            with open(part, "wb") as stream:
                stream.write(data)
            publish(part, path, named, synced)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def write_json(
    path: Path, document: Any, indent: int | None = None, named: bool = True, synced: bool = False
) -> None:
    """Make or replace a JSON file in one step, `named` and `synced` as in `publish`. Raises
    StorageError.
    """
    separators = None if indent else (",", ":")
    text = json.dumps(document, indent=indent, separators=separators, ensure_ascii=False)
    write_bytes(path, text.encode() + b"\n", named, synced)


def read_json(path: Path) -> Any:
    """The document, or None where the file is absent."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def file_digest(path: str | os.PathLike[str]) -> tuple[int, str]:
    """(bytes, SHA-256 in hex) of a file. Works without the GIL for most of its time."""
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as stream:
        block = bytearray(min(_BLOCK, os.fstat(stream.fileno()).st_size + 1))
        view = memoryview(block)
        while count := stream.readinto(block):
            digest.update(view[:count])
            size += count
    return size, digest.hexdigest()
