"""One version of a dataset for all ranks of a job, also while its branch moves.

Where torch.distributed is up, its store says what the first rank got; else a file in reelpool's
cache does, for the ranks that share it. Nobody waits for a rank that never comes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import env
from .distributed import job_name, job_store, resolve_rank
from .errors import DatasetChangedError, make_error
from .hub_place import alone

logger = logging.getLogger("reelpool")

LIFE_S = 24 * 3600.0  # of a file; names of jobs come again
LARGEST = 4096


def _ranks() -> int:
    try:
        return resolve_rank()[1]
    except ValueError:
        return 1  # told when it matters which samples are this rank's


def _name(kind: str, what: str) -> str:
    return f"reelpool/{kind}/{hashlib.sha256(what.encode()).hexdigest()[:32]}"


def _first(store: Any, name: str, value: str) -> str:
    """`value`, or what another rank set before."""
    return store.compare_set(name, "", value).decode()


def first_of_job(what: str, ask: Callable[[], tuple[str, str]]) -> tuple[str, str]:
    """`ask()`: two words without spaces; in a job of several ranks what the first rank's call gave
    about `what`. OSError of the file.
    """
    if _ranks() < 2:
        return ask()
    store = job_store()
    if store is not None:
        one, _, other = _first(store, _name("pin", what), " ".join(ask())).partition(" ")
        return one, other
    job = job_name()
    if job is None:
        return ask()
    name = _name("pin", f"{job} {what}")
    path = env.cache_dir() / "pin" / name.rpartition("/")[2]
    with alone(name):
        kept = _kept(path)
        if kept is None:
            kept = ask()
            _keep(path, kept)
        return kept


def _kept(path: Path) -> tuple[str, str] | None:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(file, encoding="utf-8") as stream:
        facts = os.fstat(file)
        words = stream.read(LARGEST).split()
    fresh = 0 <= time.time() - facts.st_mtime < LIFE_S and facts.st_uid == os.geteuid()
    return (words[0], words[1]) if fresh and len(words) == 2 else None


def _keep(path: Path, words: tuple[str, str]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in path.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another rank was faster
            if time.time() - old.stat().st_mtime > LIFE_S:
                old.unlink()
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with open(part, "w", encoding="utf-8", opener=lambda p, f: os.open(p, f, 0o600)) as stream:
        stream.write(" ".join(words))
    part.replace(path)


def check_same(dataset: str, asked: str | None, version: str | None) -> None:
    """DatasetChangedError if another rank of this job opened this dataset at another version; only
    a warning where it has a URL, not a commit.

    asked: the revision that was given. Nothing is compared before torch.distributed is initialised.
    """
    if version is None or version == asked or _ranks() < 2:
        return
    store = job_store()
    if store is None:
        return
    other = _first(store, _name("version", f"{dataset} {asked}"), version)
    if other != version and "://" in dataset:
        logger.warning(
            "%s changed between the starts of this job's ranks: another rank reads an older or a "
            "newer state", dataset,
        )  # fmt: skip
    elif other != version:
        raise make_error(
            DatasetChangedError,
            f"{dataset} is at {version[:12]} here, and at {other[:12]} on another rank of this job"
            f"\n  Give all ranks the same: revision={other!r}",
            dataset=dataset, revision=version,
        )  # fmt: skip
