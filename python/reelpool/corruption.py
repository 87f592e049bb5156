"""`on_corrupt="substitute"`: a good sample in the place of one whose pictures cannot be decoded.

The core chooses the substitute (docs/reliability.md, "Substitution"), this module counts, caps and
records, and does for image columns, which Python decodes, what the core does for video.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import env
from .engine_paths import name_of
from .errors import (
    DecodeError,
    ReelpoolError,
    TooManyBadSamplesError,
    UnsupportedMediaError,
    make_error,
    redact,
)

logger = logging.getLogger("reelpool")

_TEXT = 500  # characters of an error that go into the ledger
_CONTENT = (DecodeError, UnsupportedMediaError)  # pure functions of an image's bytes

# (place in the batch, wanted row, row delivered, what was wrong)
Substitute = tuple[int, int, int, Exception]
_FURTHER = 4096  # rows of other episodes tried in the place of one, as in the core


def check_on_corrupt(on_corrupt: str, max_bad_fraction: float) -> bool:
    """Whether to substitute. ValueError for values that mean nothing."""
    if on_corrupt not in ("raise", "substitute"):
        raise ValueError(f"on_corrupt must be 'raise' or 'substitute', not {on_corrupt!r}")
    number = isinstance(max_bad_fraction, (int, float)) and not isinstance(max_bad_fraction, bool)
    if not (number and 0 <= max_bad_fraction <= 1):
        raise ValueError(f"max_bad_fraction must be a number of 0..1, not {max_bad_fraction!r}")
    return on_corrupt == "substitute"


class Substitutions:
    """Counts the substitutes of one process, warns once per file, writes the ledger, and caps.

    samples: what max_bad_fraction counts against, the rank's samples of the epoch (a worker's
    share of them). distinct: a row counts once however often it is read, for access by index,
    where samples is the length of the dataset. Thread: any. It holds no lock, so a fork is safe.
    """

    def __init__(
        self, layout: Any, max_bad_fraction: float, samples: int, *, distinct: bool = False
    ) -> None:
        self.layout, self.max_bad_fraction = layout, float(max_bad_fraction)
        self.distinct = distinct
        self.total = 0  # since construction
        self._warned: set[tuple[str, str]] = set()
        self.begin(samples)

    def begin(self, samples: int) -> None:
        """A new epoch of `samples` samples: counting for the cap starts again."""
        self.samples = int(samples)
        self._bad: list[int] = []
        self._seen: set[int] = set()

    def note(self, substitutes: list[Substitute]) -> None:
        """Take note of a batch's substitutes. TooManyBadSamplesError once there are too many."""
        if not substitutes:
            return
        records = [_record(self.layout, *found[1:]) for found in substitutes]
        append_ledger(records)
        for (_, wanted, _, _), record in zip(substitutes, records):
            self.total += 1
            if self.distinct and wanted in self._seen:
                continue
            self._seen.add(wanted)
            self._bad.append(wanted)
            self._warn(record)
        if len(self._bad) > self.max_bad_fraction * self.samples:
            self._refuse(records[-1])

    def _warn(self, record: dict[str, Any]) -> None:
        file = (record["dataset"], record["file"] or "")
        if file in self._warned:
            return
        self._warned.add(file)
        logger.warning(
            "%s: episode %d, frame %d of %s cannot be decoded, another frame takes its place "
            "(on_corrupt='substitute'); further ones of this file go to %s only: %s",
            record["dataset"], record["episode"], record["frame"], record["file"], ledger_path(),
            record["error"],
        )  # fmt: skip

    def _refuse(self, record: dict[str, Any]) -> None:
        text = (
            f"{len(self._bad)} of {self.samples} samples cannot be decoded, more than "
            f"max_bad_fraction={self.max_bad_fraction:g}; the last: episode {record['episode']}, "
            f"frame {record['frame']} of {record['file']}: {record['error']}\n"
            f"  See: {ledger_path()}     Or: fetch the files again, or leave their episodes out "
            "(episodes=)"
        )
        known = ("dataset", "revision", "file", "camera", "episode", "frame")
        raise make_error(TooManyBadSamplesError, text, **{name: record[name] for name in known})


def _record(layout: Any, wanted: int, taken: int, error: Exception) -> dict[str, Any]:
    """A line of the ledger."""
    part, row = layout.part_of(wanted)
    table = part.table
    camera = getattr(error, "camera", None)
    what = " ".join(str(error).partition("\n  ")[0].split())  # without what to do about it
    other, at = layout.part_of(taken)
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "dataset": part.meta.repo_id,
        "revision": part.meta.revision,
        "file": _file_of(part, camera, row),
        "camera": camera,
        "episode": int(table.episode_index[row]),
        "frame": int(table.frame_index[row]),
        "replaced_by": {
            "episode": int(other.table.episode_index[at]),
            "frame": int(other.table.frame_index[at]),
        },
        "error": redact(what)[:_TEXT],
    }  # fmt: skip


def _file_of(layout: Any, camera: str | None, row: int) -> str | None:
    """The video file of a camera at a table row, relative to the dataset's root."""
    for key, *rest in layout.cameras:
        if key == camera:
            run = int(np.searchsorted(layout.table.starts, row, side="right")) - 1
            path = os.fsdecode(name_of(layout.paths[int(rest[5][run])]))
            root = f"{layout.meta._files.path}{os.sep}"
            return redact(path[len(root) :] if path.startswith(root) else path)
    return str(layout.meta.get_data_file_path(int(layout.table.episode_index[row])))


# -- the ledger --


def ledger_path() -> Path:
    """CACHE/ledger.jsonl: one JSON object per substitution, of all processes."""
    return env.cache_dir() / "ledger.jsonl"


def append_ledger(records: list[dict[str, Any]]) -> bool:
    """Append records as lines, by one write, so that lines of other processes stay whole. An empty
    line can come between: where a line was torn, or where another process was just writing.

    False, after one warning per call, where the ledger cannot be written: the samples are still
    delivered. Files are 0600; a folder of another owner, or that others can write, is refused.
    """
    path = ledger_path()
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.stat(path.parent)
        if folder.st_uid != os.geteuid() or stat.S_IMODE(folder.st_mode) & 0o022:
            raise PermissionError(f"{path.parent} belongs to, or can be written by, others")
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path, flags, 0o600)
        try:
            data = lines.encode()
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                data = b"\n" + data  # a torn line (disk full, power cut) must not eat this one
            if os.write(fd, data) != len(data):
                raise OSError("only a part was written")
        finally:
            os.close(fd)
    except OSError as error:
        logger.warning("substitutions are not recorded in %s: %s", path, error)
        return False
    return True


# -- image columns --


def substitute_rows(layout: Any, row: int) -> Iterator[int]:
    """Rows that may take the place of `row`, best first: those after it in its episode, those
    before it, then the next episodes' from their first, and from the first episode on (up to
    4,096).
    """
    part, local = layout.part_of(row)
    table, shift = part.table, row - local
    run = int(np.searchsorted(table.starts, local, side="right")) - 1
    first = int(table.starts[run])
    yield from range(row + 1, shift + first + int(table.lengths[run]))
    yield from range(row - 1, shift + first - 1, -1)
    left = _FURTHER
    for other in itertools.chain(range(run + 1, len(table.starts)), range(run)):
        start, length = shift + int(table.starts[other]), min(left, int(table.lengths[other]))
        yield from range(start, start + length)
        left -= length


def sound_pictures(
    layout: Any,
    rows: np.ndarray,
    arrays: list[np.ndarray],
    substitutes: list[Substitute],
    fetch: Callable[[np.ndarray], Any],
) -> dict[str, list[np.ndarray]]:
    """Pictures of the image columns by key, one per row of a batch; bad samples are substituted.

    rows, arrays (the batch's fields) and substitutes are changed where a sample is replaced as a
    whole. fetch: a core batch of given rows. An error that no row can mend is raised.
    """
    entries = [entry for entry in layout.entries if entry.source == "image"]
    if not entries:
        return {}
    wanted = {found[0]: found[1] for found in substitutes}
    out: dict[str, list[np.ndarray]] = {entry.key: [] for entry in entries}

    def pictures(row: int) -> list[np.ndarray]:
        return [layout.images(entry, np.array([row]))[0] for entry in entries]

    for place, row in enumerate(rows.tolist()):
        try:
            found = pictures(row)
        except _CONTENT as error:
            origin = wanted.get(place, row)
            taken, found = _replacement(layout, origin, pictures, arrays, place, fetch, error)
            rows[place] = taken
            substitutes[:] = [s for s in substitutes if s[0] != place]
            substitutes.append((place, origin, taken, error))
        for entry, picture in zip(entries, found):
            out[entry.key].append(picture)
    substitutes.sort(key=lambda found: found[0])
    return out


def _replacement(
    layout: Any,
    row: int,
    pictures: Callable[[int], list[np.ndarray]],
    arrays: list[np.ndarray],
    place: int,
    fetch: Callable[[np.ndarray], Any],
    error: ReelpoolError,
) -> tuple[int, list[np.ndarray]]:
    """The first row all of whose cameras are good: its fields go into arrays[...][place]."""
    for candidate in substitute_rows(layout, row):
        try:
            found = pictures(candidate)
        except _CONTENT:
            continue
        other = fetch(np.array([candidate], np.int64))
        if other.substitutes():
            continue
        for mine, theirs in zip(arrays, other.arrays()):
            mine[place] = theirs[0]
        return candidate, found
    raise error
