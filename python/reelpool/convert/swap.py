"""The new dataset takes the old one's name; at no moment is there none.

A journal beside the dataset says what is to become what. It is written first and removed last, and
`recover` goes on from any state in between: with an atomic exchange of two names where the file
system has it, else with two renames.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

from ..errors import ReelpoolError, StateError, make_error
from .durable import read_json, storing, sync, write_json
from .source import read_version

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP}


def journal_of(target: Path) -> Path:
    """Where a swap of `target` under way is noted."""
    return target.with_name(f"{target.name}.swap.json")


def exchange(one: Path, two: Path) -> bool:
    """Exchange two names at once. False where kernel or file system cannot. Raises OSError."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is None:
        return False
    done = call(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(two), _RENAME_EXCHANGE)
    if done == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(two))


def swap(target: Path, built: Path, old: Path) -> None:
    """Put `built` in the place of `target`, which becomes `old`. All three have one parent.

    Blocks until it is on disk. Raises StorageError; StateError if `old` exists.
    """
    if old.exists():
        text = f"{old} exists: it may be the only copy of the older dataset\n  Move it away first"
        raise make_error(StateError, text, file=str(old))
    journal = {"target": target.name, "built": built.name, "old": old.name}
    write_json(journal_of(target), journal)
    recover(target)


def recover(target: Path) -> bool:
    """Finish a swap that was begun; False if none was. Safe to run in several processes at once."""
    journal = read_json(journal_of(target))
    if journal is None:
        return False
    built, old = (target.with_name(Path(journal[key]).name) for key in ("built", "old"))
    with storing(target):
        for _ in range(8):  # each turn makes one step, or sees that another process made it
            if _step(target, built, old):
                break
        else:
            text = f"{journal_of(target)}: {target}, {built} and {old} do not fit it"
            raise make_error(StateError, text, file=str(target))
        sync(target.parent)
        journal_of(target).unlink(missing_ok=True)
        sync(target.parent)
    return True


def _step(target: Path, built: Path, old: Path) -> bool:
    """One step from the state on disk; True when the swap is complete."""
    try:
        if _is_new(target):
            if not built.exists():
                return True
            os.rename(built, old)  # the old one, after an exchange
        elif target.exists():
            if not exchange(built, target):
                os.rename(target, old)
        elif built.exists():
            os.rename(built, target)
    except FileNotFoundError:
        pass  # another process was faster: look again
    return False


def _is_new(path: Path) -> bool:
    try:
        return read_version(path)[0] >= 3
    except ReelpoolError:
        return False
