"""`verify.check`: whether a dataset is whole, down to every picture if asked.

Levels, each with all before it: "meta" (counts, indices, tasks, statistics, files there), "index"
(each video file opens; a picture for each row's time; durations; first and last picture of each
episode decode; every byte against its check sum), "decode" (every picture decoded once).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import env
from .errors import (
    CompatibilityError,
    NotFoundError,
    ReelpoolError,
    is_lfs_pointer,
)

LEVELS = ("meta", "index", "decode")
SHOWN = 40  # faults in the text of a report


@dataclasses.dataclass(frozen=True)
class Fault:
    """One defect: `what` is wrong, where, what follows (`consequence`), and what to do (`fix`).

    `file` is relative to the dataset's root; `frame` counts from the episode's start, `frames` is
    how many are concerned; `offset` and `length` are bytes in `file`. None where it has no meaning.
    """

    level: str
    what: str
    consequence: str
    fix: str
    file: str | None = None
    camera: str | None = None
    episode: int | None = None
    frame: int | None = None
    frames: int | None = None
    offset: int | None = None
    length: int | None = None

    def place(self) -> str:
        """File, camera, episode, frames, bytes, as far as known."""
        parts = []
        if self.file is not None:
            parts.append(self.file)
        if self.camera is not None and self.camera not in (self.file or ""):
            parts.append(f"camera {self.camera}")
        if self.episode is not None:
            parts.append(f"episode {self.episode}")
        if self.frame is not None:
            many = self.frames is not None and self.frames > 1
            last = f"-{self.frame + (self.frames or 1) - 1}" if many else ""
            parts.append(f"frame{'s' if many else ''} {self.frame}{last}")
        if self.offset is not None:
            end = "" if self.length is None else f"-{self.offset + self.length - 1}"
            parts.append(f"bytes {self.offset}{end}")
        return ", ".join(parts) or "the dataset"

    def text(self) -> str:
        """Three lines for people."""
        return f"{self.place()}: {self.what}\n    {self.consequence}\n    {self.fix}"


@dataclasses.dataclass
class Report:
    """What `check` found. `ok`: no fault. `notes`: remarks that are no fault."""

    dataset: str
    root: str
    level: str
    version: str = ""
    episodes: int = 0  # looked at
    frames: int = 0  # rows looked at
    files: int = 0  # video files looked at
    bytes: int = 0  # compared with check sums, or summed up
    pictures: int = 0  # decoded
    sums_known: int = 0  # files that had check sums of their present version
    sums_written: int = 0  # files that got them
    seconds: float = 0.0
    faults: list[Fault] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No fault was found."""
        return not self.faults

    def add(self, other: Report) -> None:
        """Add what a check of further files of the dataset found."""
        for name in ("files", "bytes", "pictures", "sums_known", "sums_written", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults = sorted([*self.faults, *other.faults], key=_order)
        self.notes += other.notes

    def to_dict(self) -> dict[str, Any]:
        """JSON-serialisable; faults without the places that do not apply."""
        out = dataclasses.asdict(self)
        out["faults"] = [{k: v for k, v in f.items() if v is not None} for f in out["faults"]]
        return {"ok": self.ok, **out, "seconds": round(self.seconds, 3)}

    def text(self) -> str:
        """The report for people."""
        lines = [f"{f.text()}\n" for f in self.faults[:SHOWN]]
        if len(self.faults) > SHOWN:
            lines.append(f"... and {len(self.faults) - SHOWN} more: --json lists all\n")
        lines += [f"note: {note}" for note in self.notes]
        seen = [f"{self.episodes} episodes, {self.frames} frames"]
        if self.files:
            seen.append(f"{self.files} video files ({self.bytes / 1e6:,.1f} MB read)")
        if self.pictures:
            seen.append(f"{self.pictures} pictures decoded")
        if self.sums_known or self.sums_written:
            seen.append(f"check sums of {self.sums_known} files compared, of "
                        f"{self.sums_written} written")  # fmt: skip
        verdict = "no fault" if self.ok else f"{len(self.faults)} faults"
        lines.append(f"{self.dataset} ({self.version or 'unread'}), level {self.level}: "
                     f"{'; '.join(seen)}; {self.seconds:.1f} s")  # fmt: skip
        lines.append(verdict)
        return "\n".join(lines)


class Progress:
    """What `check` tells about its steps: this one nothing."""

    def set_description_str(self, what: str, refresh: bool = True) -> None:
        """Name the step at work."""

    def update(self) -> None:
        """A step was done."""

    def close(self) -> None:
        """No more steps."""


def fault_of(error: BaseException, level: str, root: Path, **known: Any) -> Fault:
    """A typed error as a fault; `known` are coordinates that it lacks, or `consequence`, `fix`."""
    where = {
        name: getattr(error, name, None)
        for name in ("file", "camera", "episode", "frame", "offset", "length")
    }
    if where["file"] is not None:
        where["file"] = relative(where["file"], root)
    consequence = known.pop("consequence", "reading it raises " + type(error).__name__)
    fix = known.pop("fix", f"fetch {where['file'] or known.get('file') or 'the dataset'} again")
    if is_lfs_pointer(where["file"], root):
        fix = "it is only a pointer of Git LFS: git lfs pull"
    where.update({k: v for k, v in known.items() if where.get(k) is None})
    what = str(error).split("\n")[0]
    return Fault(level, what, consequence, fix, **where)


def relative(file: str, root: Path) -> str:
    """A path of the core as one below the dataset's root, if it lies there."""
    for base in (str(root), os.path.realpath(root)):
        if file.startswith(base.rstrip("/") + "/"):
            return file[len(base.rstrip("/")) + 1 :]
    return file


@contextlib.contextmanager
def collecting(faults: list[Fault], level: str, root: Path, **known: Any) -> Iterator[None]:
    """Typed errors of the block become faults; errors of the machine (memory, Ctrl-C) do not."""
    try:
        yield
    except ReelpoolError as error:
        faults.append(fault_of(error, level, root, **known))


class Check:
    """A check in two steps, for whoever has the tables before the videos. Arguments as `check`.

    Thread: one at a time. Raises as `check`.
    """

    def __init__(
        self,
        root_or_repo: str | os.PathLike[str],
        level: str = "index",
        episodes: Iterable[int] | None = None,
        jobs: int | None = None,
        *,
        root: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        tolerance_s: float = 1e-4,
        sums: bool = True,
        write_sums: bool = False,
        spot: int | None = None,
    ) -> None:
        from .verify_video import Choices

        if level not in LEVELS:
            raise ValueError(f"level={level!r}: use {', '.join(LEVELS)}")
        if tolerance_s <= 0:
            raise ValueError(f"tolerance_s={tolerance_s}: must be positive")
        name, self._place = _place(root_or_repo, root)
        self.report = Report(name, str(self._place or ""), level)  # sorted after `videos`
        self._revision, self._episodes = revision, episodes
        self._choices = Choices(
            decode=level == "decode", tolerance_s=tolerance_s, sums=sums or write_sums,
            write_sums=write_sums, jobs=jobs or env.granted_cpus(), spot=spot,
        )  # fmt: skip
        self._meta: Any = None  # None: it cannot be opened
        self._chosen = np.zeros(0, np.int64)
        self._times: dict[int, np.ndarray] = {}  # of the rows, by episode

    def tables(self) -> None:
        """Metadata and rows; no video need be there."""
        from . import verify_meta
        from .metadata import LeRobotDatasetMetadata

        began, report = time.monotonic(), self.report
        try:
            meta = LeRobotDatasetMetadata(report.dataset, root=self._place, revision=self._revision)
        except (NotFoundError, CompatibilityError) as error:
            if error.file in (None, "meta/info.json"):
                raise  # there is no dataset that could be checked
            verify_meta.explain(error, Path(self._place or "."), report)
        except ReelpoolError as error:
            if self._place is None or isinstance(error, NotImplementedError):
                raise
            verify_meta.explain(error, Path(self._place), report)
        else:
            _bring(meta, self._episodes, report.level)
            report.root, report.version = str(meta.root), str(meta.info.codebase_version)
            self._chosen = _chosen(meta, self._episodes)
            self._times = verify_meta.check_meta(
                meta, self._chosen, report.level, report, self._choices.spot
            )
            verify_meta.check_rate(meta, self._times, self._choices.tolerance_s, report)
            self._meta = meta
        report.seconds += time.monotonic() - began

    def rows(self, times: dict[int, np.ndarray]) -> None:
        """In place of `tables`, for whoever has another check of them: {episode: float64 seconds of
        its rows}. Raises what opening the dataset raises.
        """
        from .metadata import LeRobotDatasetMetadata

        meta = LeRobotDatasetMetadata(self.report.dataset, root=self._place)
        self._chosen, self._times, self._meta = _chosen(meta, self._episodes), times, meta

    def videos(
        self, progress: Callable[[int], Any] | None = None, files: Container[str] | None = None
    ) -> None:
        """After `tables`: that the videos are there, and above "meta" what is in them. `files`:
        only these, relative to the root; call it again for others.
        """
        from . import verify_meta, verify_video

        began, report = time.monotonic(), self.report
        if self._meta is not None:
            found = verify_meta.find_videos(self._meta, self._chosen, files, report)
            if report.level != "meta":
                verify_video.check_files(
                    self._meta, self._chosen, found, self._times, report, self._choices,
                    progress or (lambda total: Progress()),
                )  # fmt: skip
        report.faults.sort(key=_order)
        report.seconds += time.monotonic() - began


def check(
    root_or_repo: str | os.PathLike[str],
    level: str = "index",
    episodes: Iterable[int] | None = None,
    jobs: int | None = None,
    *,
    root: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    tolerance_s: float = 1e-4,
    sums: bool = True,
    write_sums: bool = False,
    spot: int | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Report:
    """Check a local dataset (v2.0, v2.1, v3.0) and list every fault.

    `root_or_repo`: its folder, or a repo id with local files. `episodes`: only these. `jobs`:
    threads (None: the CPUs granted). `sums`: compare all bytes with the check sums that are there;
    `write_sums`: and write those of files without any and without fault: reads are compared with
    them from then on, so this vouches that the files are good now. `spot`: decode the first and
    last picture of only so many episodes of each camera, spread evenly, and of each file, and read
    all columns of those episodes; of the others row numbers, times and tasks.
    `progress(total)` gives an object with the methods of `Progress`.

    Raises what says that there is nothing to check: NotFoundError (no dataset), CompatibilityError
    (its version), StorageError, the errors of a remote root, ValueError for a wrong argument. Files
    of a remote dataset are copied to this machine first; for "meta" those of its tables.
    """
    one = Check(root_or_repo, level, episodes, jobs, root=root, revision=revision,
                tolerance_s=tolerance_s, sums=sums, write_sums=write_sums, spot=spot)  # fmt: skip
    one.tables()
    one.videos(progress)
    return one.report


def _order(fault: Fault) -> tuple:
    return (LEVELS.index(fault.level), fault.episode if fault.episode is not None else -1,
            fault.file or "", fault.frame or 0)  # fmt: skip


def _place(
    root_or_repo: str | os.PathLike[str], root: str | os.PathLike[str] | None
) -> tuple[str, Path | None]:
    if root is not None:
        return str(root_or_repo), Path(root)
    if "://" in str(root_or_repo):
        return str(root_or_repo), None
    path = Path(root_or_repo)
    if path.is_dir():
        return path.resolve().name, path
    return str(root_or_repo), None


def _bring(meta: Any, episodes: Iterable[int] | None, level: str) -> None:
    """Copy what is to be read of a remote dataset: its tables, and above "meta" its videos."""
    if meta._remote is None and meta._hub is None:
        return
    from .hub_files import bring_files
    from .remote_root_hub import HubRoot

    chosen = None if episodes is None else _chosen(meta, episodes).tolist()
    if isinstance(meta._files, HubRoot) or meta._remote is None:
        bring_files(meta, chosen, meta.video_keys, level != "meta")
    else:
        bring_files(meta, chosen, [], False)  # videos are copied as they are opened


def _chosen(meta: Any, episodes: Iterable[int] | None) -> np.ndarray:
    total = meta.total_episodes
    if episodes is None:
        return np.arange(total)
    chosen = np.unique(np.fromiter((int(e) for e in episodes), np.int64))
    bad = chosen[(chosen < 0) | (chosen >= total)]
    if len(bad):
        raise ValueError(f"episode {bad[0]}: {meta.repo_id} has episodes 0..{total - 1}")
    return chosen
