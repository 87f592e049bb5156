"""What huggingface_hub keeps on this machine, without loading all of it: the stored token, and the
lock of a node's downloads; and its progress bars."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import env

if TYPE_CHECKING:
    from .hub_calls import Beat

NO_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK)
REFRESHED = b"refresh_token"  # in the file of stored tokens: they run out, and are renewed by code


def stored_token() -> str | None:
    """As `huggingface_hub.get_token()`; where that would look into the environment and one file
    only, its modules of HTTP are not loaded for it.
    """
    from huggingface_hub import constants

    if "huggingface_hub.utils" not in sys.modules and not env.hub_token_is_made():
        given = env.hub_token()
        if given:
            return given
        with suppress(FileNotFoundError, NotADirectoryError):
            if REFRESHED in Path(getattr(constants, "HF_STORED_TOKENS_PATH", "")).read_bytes():
                return _asked_token()
        try:
            text = Path(constants.HF_TOKEN_PATH).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        return text.replace("\r", "").replace("\n", "").strip() or None
    return _asked_token()


def _asked_token() -> str | None:
    from huggingface_hub import get_token

    return get_token()


def switched_off() -> bool:
    """Whether huggingface_hub was switched off in this process."""
    constants = sys.modules.get("huggingface_hub.constants")
    return bool(getattr(constants, "HF_HUB_OFFLINE", False))


@contextmanager
def _held(file: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(file)


def alone(name: str) -> object:
    """A context that one process of a node is in at a time, per `name`. Waits. OSError if there can
    be no file for it; without flock there it is no lock.
    """
    locks = env.cache_dir() / "lock"
    locks.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = hashlib.sha256(name.encode()).hexdigest()[:32]
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    file = os.open(locks / f"{key}.lock", flags, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except BaseException as error:
        if getattr(error, "errno", None) not in NO_LOCKS:
            os.close(file)
            raise
    return _held(file)


def bar_class(beat: Beat, show: bool) -> type:
    """A progress bar that tells `beat` of every step."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            if not show:
                kwargs["disable"] = True
            self._counts_bytes = kwargs.get("unit") == "B"  # a silent bar keeps no unit
            super().__init__(*args, **kwargs)

        def update(self, n: float | None = 1) -> bool | None:
            if self._counts_bytes:
                beat(size=int(n or 0))
            else:
                beat(files=int(n or 0))
            return super().update(n)

    return Bar


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name."""
    return host in ("localhost", "::1") or bool(re.fullmatch(r"127(\.\d{1,3}){3}", host))


def escaped(rel: str) -> str:
    """A path as a pattern that matches it alone."""
    return re.sub(r"([*?\[])", r"[\1]", rel)
