"""One conversion: its options, places and steps. Each step may run again in any process."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ReelpoolError, StateError, StorageError, make_error
from . import plan, swap
from .copies import check_joined, keep_sums
from .data_files import write_data
from .durable import PART, make_below, name_early, publish, storing, sync
from .head_start import HeadStart
from .source import Source, bad_episodes, check_sizes, read_version
from .work import LIFE_S, WorkFolder, refuse_object_storage

if TYPE_CHECKING:
    from .ending import Ending

_POLL_S = 0.1  # at most: the wait for another worker's item grows with its duration
_FIRST_POLL_S = 0.002
_TABLE_COST = 25
SPARE_BYTES = 64 << 20  # for metadata and the file system's own


@dataclasses.dataclass(frozen=True)
class Options:
    """What to convert, and how. `out` None: in place, the old dataset is kept as NAME_old."""

    root: Path
    name: str
    out: Path | None = None
    work_dir: Path | None = None
    data_mb: int = 100
    video_mb: int = 200
    episodes_per_batch: int = 25
    validate: str = "quick"
    tolerance_s: float = 1e-4  # from a row's time to its picture
    lease_s: float = LIFE_S

    @property
    def target(self) -> Path:
        """Where the v3.0 dataset will be."""
        return self.out or self.root

    @property
    def built(self) -> Path:
        """Where it is built: beside the target, so that it arrives by rename."""
        return self.target.with_name(f"{self.target.name}_v30")

    @property
    def old(self) -> Path:
        """Where the older dataset stays after a conversion in place."""
        return self.root.with_name(f"{self.root.name}_old")

    @property
    def work(self) -> Path:
        """The folder of the plan."""
        return self.work_dir or self.target.parent / "_work" / self.target.name


class Outdated(Exception):
    """An item that was done is not any more: another process found it outdated."""


class Job:
    """The steps of one conversion for this process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.folder = WorkFolder(options.work, options.lease_s)
        self.stopped = threading.Event()
        self.notes: list[str] = []  # what a user should know of the result
        self._source: Source | None = None
        self._scans: list[tuple[str, int, int]] = []
        self._manifest: dict | None = None
        self._outputs: list[plan.Output] = []
        self.head: HeadStart | None = None  # files that are copied before the plan
        self._made: dict[str, dict] = {}  # records of files whose bytes may not be on the disk yet
        self.when_made: Callable[[], Any] = lambda: None  # called when one is made, and when done

    @property
    def source(self) -> Source:
        """The dataset to convert, read at first use."""
        if self._source is None:
            self._source = Source(self.options.root, self.options.name)
        return self._source

    def complete(self) -> bool:
        """True when the v3.0 dataset is in place, with no swap under way."""
        target = self.options.target
        if swap.journal_of(target).exists():
            return False
        try:
            return read_version(target)[0] >= 3
        except ReelpoolError:
            return False

    # -- before the work --

    def begin(self) -> bool:
        """Finish what an earlier run left, check that the rest can be done. False: all is done.

        Raises StateError where something is in the way, and what `Source` raises.
        """
        planned = (self.options.work / "request.json").exists()
        try:
            if not self._begin(planned):
                return False
        except (ReelpoolError, OSError):
            if not self.complete() or not (planned or self.options.out is None):
                raise
        return not self.overtaken()  # what was read may be half of the old and half of the new one

    def overtaken(self) -> bool:
        """Whether another process has put the dataset in place meanwhile; tidies up then."""
        if not self.complete():
            return False
        self._tidy()
        return True

    def _begin(self, planned: bool) -> bool:
        options = self.options
        recovered = swap.recover(options.target)
        if recovered or (self.complete() and (planned or options.out is None)):
            self._tidy()
            return False
        if options.out is not None and options.out.exists():
            text = f"{options.out} exists already\n  Choose another --out-dir, or remove it"
            raise make_error(StateError, text, file=str(options.out))
        if options.out is None and options.old.exists():
            text = f"{options.old} exists: it may hold an older copy of this dataset"
            raise make_error(StateError, f"{text}\n  Move it away first", file=str(options.old))
        _ = self.source
        if options.built.exists() and not (options.work / "request.json").exists():
            text = (
                f"{options.built} exists, and its plan is not in {options.work}\n  Remove it first"
            )
            raise make_error(StateError, text, file=str(options.built))
        refuse_object_storage(options.target.parent)
        self.folder.prepare()
        wanted = {
            "format": 1,
            "dataset": options.name,
            "target": options.target.name,
            "metadata": self.source.meta_digests(),
            "options": {"data": options.data_mb, "video": options.video_mb},
            "episodes_per_batch": options.episodes_per_batch,
        }
        found = self.folder.settle("request.json", wanted)
        for key in ("format", "dataset", "target", "metadata", "options"):
            if found.get(key) != wanted[key]:
                text = f"{options.work} holds another conversion: not the same {key}"
                advice = "Run that one to its end, remove the folder, or choose another --work-dir"
                raise make_error(StateError, f"{text}\n  {advice}", file=str(options.work))
        self._scans = plan.scan_items(len(self.source), found["episodes_per_batch"])
        return True

    def scan_steps(self) -> list[str]:
        """Items of the first phase."""
        return [item for item, _, _ in self._scans]

    def scan_sizes(self) -> dict[str, int]:
        """Episodes of each of them."""
        return {item: stop - first for item, first, stop in self._scans}

    def scan(self, item: str) -> None:
        """Read and judge one batch of episodes."""
        _, first, stop = self._scans[int(item.rpartition("-")[2])]
        found = [self.source.scan(e, self.options.tolerance_s) for e in range(first, stop)]
        self.folder.finish(item, found)

    @contextlib.contextmanager
    def head_start(self, wanted: bool) -> Iterator[None]:
        """Begin the first videos now, if `wanted` and sources are still to be judged; at the end of
        the body, what no `write` has taken is removed.
        """
        if wanted and not self.folder.done_items().issuperset(self.scan_steps()):
            self.head = HeadStart(self)
        try:
            yield
        finally:
            if self.head is not None:
                self.head.close()
                self.head = None

    # -- the plan --

    def scanned(self) -> list[dict]:
        """What all batches found. Raises FormatError that names every bad episode."""
        found: list[dict] = []
        faults: list[tuple[int, str]] = []
        outdated: list[str] = []
        for item, first, stop in self._scans:
            record = self.folder.done(item)
            if record is None:
                outdated.append(item)
                continue
            bad = [(first + i, text) for i, e in enumerate(record) for text in e.get("faults", ())]
            if bad:
                self.folder.forget(item)  # looked at again when the user has mended it
                faults += bad
            elif not self._same_sizes(record, first, stop):
                self.folder.forget(item)
                outdated.append(item)
            found += record
        if outdated:  # all of them are known: the phase runs again once, not once for each
            raise Outdated(outdated[0])
        if faults:
            raise bad_episodes(self.options.name, faults)
        return found

    def _same_sizes(self, record: list[dict], first: int, stop: int) -> bool:
        planned = [[p[0] for p in (e["data"], *e["videos"])] for e in record]
        return planned == self.source.input_sizes(first, stop)

    def settle_plan(self) -> dict:
        """The manifest: made once, the same for all. Checks the free space at first."""
        options = self.options
        manifest = plan.make_manifest(
            self.source, self.scanned(), options.data_mb, options.video_mb
        )
        found = self.folder.settle("manifest.json", manifest)
        if found != _as_json(manifest):
            text = f"{options.work}: the source has changed since the plan was made"
            raise make_error(StateError, f"{text}\n  Remove that folder and {options.built}")
        self._manifest, self._outputs = found, plan.outputs_of(found)
        with storing(options.built):
            options.built.mkdir(exist_ok=True)
        self._check_space()
        return found

    def outputs(self) -> list[plan.Output]:
        """The files to make; none before the plan is settled."""
        return self._outputs

    def write_steps(self) -> list[str]:
        """Items of the second phase, the longest first: the last to end should be short."""
        by_size = sorted(self.outputs(), key=lambda o: (-o.size * _cost(o), o.item))
        return [output.item for output in by_size]

    def _check_space(self) -> None:
        done = self.folder.done_items()
        needed = sum(o.size for o in self.outputs() if o.item not in done) + SPARE_BYTES
        needed -= self.under_way(done)  # has its room already
        disk = os.statvfs(self.options.built)
        free = disk.f_bavail * disk.f_frsize
        if free < needed:
            text = (
                f"{self.options.built}: {needed / 1e9:.2f} GB are needed, {free / 1e9:.2f} GB free"
            )
            advice = "Free some space and run the same command again"
            raise make_error(StorageError, f"{text}\n  {advice}", file=str(self.options.built))

    # -- the work --

    def under_way(self, done: set[str]) -> int:
        """Bytes of files that are being made, here or elsewhere; `done`: items that are not."""
        built = self.options.built
        total = 0
        for folder in {(built / o.path).parent for o in self.outputs() if o.item not in done}:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        total += entry.stat().st_size if entry.name.endswith(PART) else 0
        return total

    def intact(self, output: plan.Output) -> bool:
        """True if a finished file is there in its recorded size."""
        record = self.folder.done(output.item)
        try:
            size = (self.options.built / output.path).stat().st_size
        except FileNotFoundError:
            return False
        return record is not None and record["size"] == size

    def made(self) -> set[str]:
        """Items whose files are whole here, but may not be on the disk yet."""
        return set(self._made)

    def all_whole(self, whole: set[str]) -> bool:
        """Whether every new file is among those done or made."""
        return all(o.item in whole for o in self.outputs())

    def tables_whole(self, whole: set[str]) -> bool:
        """Whether every new table is."""
        return all(o.item in whole for o in self.outputs() if o.camera is None)

    def write(self, item: str) -> None:
        """Make one new file; the item stays pending if another worker took it over meanwhile.
        It has its name once it is whole, and is done once it is on the disk.

        Raises FormatError, StorageError, StateError; leaves no part.
        """
        output = next(o for o in self.outputs() if o.item == item)
        path = self.options.built / output.path
        part = path.with_name(f"{path.name}.{self.folder.token}{PART}")
        with storing(path):
            if not self.options.built.is_dir():
                return  # finished by others while this process stood still
            make_below(self.options.built, path.parent)
            for left in path.parent.glob(f"{path.name}.*{PART}"):
                if left != part:
                    left.unlink(missing_ok=True)  # of a worker whose lease ran out
            try:
                planned, paths = self._inputs(output)
                spans = self.head.take(output, planned) if self.head else None
                if spans is None:
                    spans = self.fill(output, part, planned, paths)
                if not part.exists():
                    return  # this worker's own lease ran out: another one has begun anew
                record = {"size": part.stat().st_size, "spans": spans}
                if name_early(part, path):
                    self._made[item] = record
                    self.when_made()
                    sync(part)
                else:
                    publish(part, path, named=False)
            except FileNotFoundError:
                self._made.pop(item, None)
                if part.exists():
                    raise
                return
            except BaseException:
                self._made.pop(item, None)
                raise
            finally:
                part.unlink(missing_ok=True)
            self.folder.secure("request.json", "manifest.json")
        self.folder.finish(item, record)
        self.when_made()

    def fill(self, output: plan.Output, part: Path, planned: list[list], paths: list[str]) -> list:
        """Write the file's bytes; [from, to] of each episode as exact fractions, for a video. What
        the plan says of its sources, and their paths.
        """
        if output.camera is None:
            write_data(self.source, output.first, planned, part)
            return []
        core: Any = importlib.import_module("reelpool._core")
        try:
            joined = core.concat_videos([os.fsencode(p) for p in paths], os.fsencode(part), True)
        except StorageError as error:
            if error.status and error.file == os.fspath(part):  # advice of this program's own
                raise OSError(error.status, os.strerror(error.status)) from error
            raise
        final = os.path.join(os.path.realpath(self.options.target), output.path)
        full = self.options.validate == "full"
        sums = check_joined(part, final, paths, planned, joined, read_back=full)
        self._sums_of(output.item).write_bytes(sums)
        return [_span(entry) for entry in joined]

    def _inputs(self, output: plan.Output) -> tuple[list[list], list[str]]:
        """What the plan says of the sources of a new file, and their paths."""
        column = 0 if output.camera is None else 1 + self.source.cameras.index(output.camera)
        inputs = (self._manifest or {})["inputs"][output.first : output.stop]
        planned = [files[column] for files in inputs]
        return planned, check_sizes(self.source, planned)

    def video_records(self) -> dict[str, dict]:
        """{item: record} of the new videos: as made, or as it is going to be."""
        core: Any = importlib.import_module("reelpool._core")
        found = {}
        for output in [o for o in self.outputs() if o.camera is not None]:
            record = self._made.get(output.item) or self.folder.done(output.item)
            if record is None:
                paths = [os.fsencode(path) for path in self._inputs(output)[1]]
                record = {"spans": [_span(entry) for entry in core.concat_videos(paths, None)]}
            found[output.item] = record
        return found

    def _sums_of(self, item: str) -> Path:
        """Where a new video's check sums wait for it to be in its place."""
        return self.folder.state / f"{item}.sums"

    def work_through(self, items: list[str], step: Callable[[str], None]) -> None:
        """Do items until all are done, here or elsewhere, or under way in another thread of this
        process. Returns early when `stopped` is set.
        """
        left, pause = list(items), _FIRST_POLL_S
        while left and not self.stopped.is_set():
            waiting = []
            for item in left:
                if self.stopped.is_set():
                    return
                if self.folder.is_done(item):
                    continue
                begun = self.head is not None and self.head.claim(item)
                if not begun and not self.folder.claim(item):
                    waiting.append(item)
                    continue
                try:
                    step(item)
                finally:
                    self.folder.release(item)
                waiting.append(item)
                pause = _FIRST_POLL_S
            left = [item for item in waiting if not self.folder.is_done(item)]
            if all(self.folder.holds(item) for item in left):
                return
            if left:
                if self.complete():  # another host finished and removed the work folder
                    return
                time.sleep(pause)
                pause = min(_POLL_S, 1.25 * pause)

    # -- the end --

    def finish(self, ending: Ending, rest: Callable[[], None]) -> None:
        """Metadata, validation, swap: by one process, the others wait. `rest` returns when no item
        is under way here, and raises what went wrong: until then files that are made need not be
        done. Raises FormatError.
        """
        while not self.complete():
            if self.folder.claim("finish"):
                try:
                    if not self.complete():
                        ending.prepare()
                        self._finish(ending, rest)
                        target, outputs = self.options.target, self.outputs()
                        new = [(self._sums_of(o.item), target / o.path) for o in outputs]
                        self.notes += keep_sums(new)
                finally:
                    self.folder.release("finish")
                self._tidy()
                return
            rest()
            if self.stopped.wait(_POLL_S):
                return

    def _check_intact(self, made: dict[str, dict], rest: Callable[[], None]) -> None:
        """Raises Outdated where a file is neither `made` nor done."""
        lost = [o for o in self.outputs() if o.item not in made and not self.intact(o)]
        if lost:
            rest()
            for output in lost:
                self.folder.forget(output.item)
            self._made.clear()
            raise Outdated(lost[0].path)

    def _finish(self, ending: Ending, rest: Callable[[], None]) -> None:
        options, built = self.options, self.options.built
        self._check_intact(dict(self._made), rest)
        ending.validate(self.video_records())  # while the disk works
        rest()
        self._check_intact({}, rest)
        with storing(built):
            for left in [p for p in built.rglob("*") if p.is_file()]:
                if left.name.endswith(PART):
                    left.unlink(missing_ok=True)
            ending.sync([built, *(p for p in built.rglob("*") if p.is_dir())])
            if options.out is None:
                swap.swap(options.target, built, options.old)
            else:
                os.rename(built, options.out)
                sync(options.out.parent)

    def _tidy(self) -> None:
        """Remove the plan: the dataset is in place. A folder named by the user stays, empty."""
        work, journal = self.options.work, swap.journal_of(self.options.target)
        with storing(work):
            for path in journal.parent.iterdir():
                if path.name.startswith(journal.name) and path.name.endswith(PART):
                    path.unlink(missing_ok=True)
            for path in (*work.glob(f"*{PART}"), work / "manifest.json", work / "request.json"):
                path.unlink(missing_ok=True)
        shutil.rmtree(work / "state", ignore_errors=True)  # others may remove it at this moment
        if self.options.work_dir is None:
            for folder in (work, work.parent):
                with contextlib.suppress(OSError):  # gone, or not empty: another dataset's plan
                    folder.rmdir()


def _cost(output: plan.Output) -> int:
    """Work per byte: tables are decoded and encoded, videos copied."""
    return _TABLE_COST if output.camera is None else 1


def _as_json(document: dict) -> dict:
    return json.loads(json.dumps(document))


def _span(entry: dict) -> list:
    """[from, to] of a source in the new file, as fractions: what its own time 0 has become, and
    the end of its last picture.
    """
    start, offset, length = (Fraction(*entry[key]) for key in ("start", "offset", "duration"))
    return [list((offset - start).as_integer_ratio()), list((offset + length).as_integer_ratio())]
