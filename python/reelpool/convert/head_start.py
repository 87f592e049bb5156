"""The first new videos, begun while sources are still judged: the disk would be idle meanwhile.

What is made here counts only once the plan stands and says the same: until then it has neither a
name nor a record, and after a fault it is removed. At most `FILES` files, so that a process that
is killed loses no more than one that is killed while it writes.
"""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ReelpoolError
from . import plan
from .durable import PART, make_below

if TYPE_CHECKING:
    from .job import Job

FILES = 2
_STEP = 16  # episodes
_PATIENCE_S = 0.05


def make_built(folder: Path) -> None:
    """Make the folder of the new dataset. It may be that of one which others have finished: then
    `close` removes it.
    """
    folder.mkdir(exist_ok=True)


class HeadStart:
    """Videos under way before the plan. Thread: `close` one, once; the others any."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._stopped = False
        self._lock = threading.Lock()
        self._begun: dict[str, tuple[plan.Output, list, Future]] = {}
        self._leased: set[str] = set()  # items whose lease waits for a worker of this process
        self._folders: list[Path] = []  # of the files
        self._threads = ThreadPoolExecutor(1 + FILES, thread_name_prefix="rp-head")
        self._looked = self._threads.submit(self._look)

    def let_begin(self) -> None:
        """Wait until the files are found, but not for long: other threads of Python would slow down
        what takes milliseconds alone.
        """
        wait([self._looked], _PATIENCE_S)

    def part_of(self, output: plan.Output) -> Path:
        """Where this process writes a new file."""
        path = self._job.options.built / output.path
        return path.with_name(f"{path.name}.{self._job.folder.token}{PART}")

    def claim(self, item: str) -> bool:
        """Take over the lease of an item that was begun here; True for one caller. May block."""
        self._looked.result()
        with self._lock:
            there = item in self._leased
            self._leased.discard(item)
        return there

    def take(self, output: plan.Output, inputs: list[list]) -> list | None:
        """What `Job.fill` gave for a file that was begun as the plan has it now; None: make it, its
        part is gone. Blocks until it is whole.
        """
        self._looked.result()
        with self._lock:
            begun, planned, future = self._begun.pop(output.item, (None, [], None))
        spans = None if future is None else future.result()
        if spans is None or begun != output or planned != inputs:
            self.part_of(output).unlink(missing_ok=True)
            return None
        return spans

    def close(self) -> None:
        """End it: what nobody took is removed. Blocks while a file is being copied."""
        self._stopped = True
        self._threads.shutdown(cancel_futures=True)
        with self._lock:
            left = [output for output, _, _ in self._begun.values()]
            leased, self._leased = self._leased, set()
            self._begun.clear()
        with contextlib.suppress(OSError):  # the next run, or the last step, removes them too
            for output in left:
                self.part_of(output).unlink(missing_ok=True)
        for item in leased:
            self._job.folder.release(item)
        for folder in self._folders:
            with contextlib.suppress(OSError):  # gone, or in use
                while folder != self._job.options.target.parent:
                    folder.rmdir()
                    folder = folder.parent

    # -- in threads --

    def _look(self) -> None:
        """Find the first files that can be begun, and begin them."""
        with contextlib.suppress(ReelpoolError, OSError, MemoryError):  # told when it is judged
            for output, inputs, paths in self._first_files():
                folder = self._job.folder
                if self._stopped or not folder.claim(output.item):
                    continue
                with self._lock:
                    self._leased.add(output.item)
                    copy = self._threads.submit(self._copy, output, inputs, paths)
                    self._begun[output.item] = output, inputs, copy

    def _first_files(self) -> list[tuple[plan.Output, list[list], list[str]]]:
        """(new file, its inputs as the plan will have them, their paths)."""
        job = self._job
        found: list[tuple[plan.Output, list[list], list[str]]] = []
        for number, camera in enumerate(job.source.cameras):
            records: list[list] = []
            cuts: list[plan.Output] = []
            while len(cuts) <= FILES - len(found) and len(records) < len(job.source):
                for episode in range(len(records), min(len(records) + _STEP, len(job.source))):
                    if self._stopped:
                        return []
                    records.append(job.source.video_record(episode, camera)[1])
                cuts = plan.video_outputs(job.source, records, number, job.options.video_mb)
            whole = len(records) == len(job.source)
            for output in (cuts if whole else cuts[:-1])[: FILES - len(found)]:
                span = range(output.first, output.stop)
                names = [job.source.video_file(e, camera) for e in span]
                inputs = [[rel, *records[e][:2]] for rel, e in zip(names, span)]
                found.append((output, inputs, [job.source.locate(rel)[0] for rel in names]))
            if len(found) == FILES:
                break
        disk = os.statvfs(job.options.target.parent)
        needed = sum(output.size for output, _, _ in found)
        return found if needed < disk.f_bavail * disk.f_frsize // 2 else []

    def _copy(self, output: plan.Output, inputs: list[list], paths: list[str]) -> list | None:
        """The file's part; None where it cannot be made: then its turn comes, and says why."""
        job = self._job
        part = self.part_of(output)
        try:
            if self._stopped or job.complete():
                return None
            self._folders.append(part.parent)
            make_built(job.options.built)
            make_below(job.options.built, part.parent)
            return job.fill(output, part, inputs, paths)
        except (ReelpoolError, OSError, MemoryError):
            part.unlink(missing_ok=True)  # others may need the room
            return None
