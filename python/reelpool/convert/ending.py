"""What makes a dataset of new files: metadata, and proof that it can be read.

Metadata need only know where each picture will be, so they are written while the files are; tables
and videos are judged side by side, while further videos are on their way to the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import verify
from ..errors import FormatError, make_error
from . import metadata
from .data_files import row_times
from .durable import storing, sync
from .source import STATS_FILE

if TYPE_CHECKING:
    from .job import Job

_SYNCS = 8
_SPOT_EPISODES = 8  # whose first and last pictures a quick validation decodes


class Ending:
    """The last steps but the exchange of names. Thread: one. Close it."""

    def __init__(self, job: Job, steps: Callable[[int], Any], until: Callable[[Callable], None]):
        """`steps`: as `progress` of `verify.check`; `until` returns when a condition on the items
        made and done holds, or raises what went wrong meanwhile.
        """
        self._job, self._steps, self._until = job, steps, until
        self._threads = ThreadPoolExecutor(_SYNCS)  # the file system joins their commits
        self._syncs: list[Future] = []
        self._spans: dict[str, list] = {}
        self._tables: Future[verify.Report]
        self._check: verify.Check  # of videos
        self._seen: set[str] = set()  # those that it has judged

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(cancel_futures=True)

    def prepare(self) -> None:
        """All that can be done while files are made. Blocks until they are whole."""
        job = self._job
        self._describe(job.video_records())
        self._until(job.tables_whole)
        self._begin_checks()
        self._until(self._look)

    def _look(self, whole: set[str]) -> bool:
        """Judge the videos that have become whole; whether all are."""
        job = self._job
        new = {o.path for o in job.outputs() if o.camera is not None and o.item in whole}
        if job.all_whole(whole):
            return True
        if new - self._seen:
            self._check.videos(files=new - self._seen)
            self._seen |= new
        return False

    def validate(self, records: dict[str, dict]) -> None:
        """Check the dataset before it takes the other's place; `records` of its videos. Its
        metadata are on the disk then. Raises FormatError.
        """
        if {item: record["spans"] for item, record in records.items()} != self._spans:
            self._describe(records)  # another process made one of them in another way
            self._tables.result()
            self._begin_checks()
        videos = {o.path for o in self._job.outputs() if o.camera is not None}
        self._check.videos(self._steps, videos - self._seen)
        report = self._tables.result()
        report.add(self._check.report)
        self._judge(report)
        with storing(self._job.options.built):
            for one in self._syncs:
                one.result()

    def sync(self, paths: Iterable[Path]) -> None:
        """Bring files or folders to the disk."""
        list(self._threads.map(sync, paths))

    def _describe(self, records: dict[str, dict]) -> None:
        job = self._job
        built = job.options.built
        sizes = {
            "data_files_size_in_mb": job.options.data_mb,
            "video_files_size_in_mb": job.options.video_mb,
        }
        metadata.write_meta(job.source, built, job.outputs(), records, sizes)
        self._spans = {item: record["spans"] for item, record in records.items()}
        with storing(built):
            files = [p for p in (*(built / "meta").rglob("*"), *built.iterdir()) if p.is_file()]
        self._syncs += [self._threads.submit(sync, path) for path in files]

    def _begin_checks(self) -> None:
        self._tables = self._threads.submit(self._judge_tables)
        self._seen = set()
        self._check = self._new_check()
        job = self._job
        times = {}
        for output in [o for o in job.outputs() if o.camera is None]:
            rows = row_times(job.options.built / output.path)
            lengths = job.source.columns.length[output.first : output.stop]
            parts = np.split(rows, np.cumsum(lengths)[:-1])
            times.update(zip(range(output.first, output.stop), parts))
        self._check.rows(times)

    def _judge_tables(self) -> verify.Report:
        check = self._new_check()
        check.tables()
        return check.report

    def _new_check(self) -> verify.Check:
        options = self._job.options
        full = options.validate == "full"
        return verify.Check(
            options.built,
            "decode" if full else "index",
            tolerance_s=options.tolerance_s,
            sums=full,  # `write` has compared all bytes with the sources'
            spot=None if full else _SPOT_EPISODES,
        )

    def _judge(self, report: verify.Report) -> None:
        job = self._job
        if any(fault.file == STATS_FILE for fault in report.faults):
            # Statistics that the source lacks are no fault of the conversion.
            known = {fault.what for fault in verify.check(job.options.root, "meta").faults}
            for fault in [f for f in report.faults if f.file == STATS_FILE and f.what in known]:
                report.faults.remove(fault)
                job.notes.append(f"{fault.place()}: {fault.what}, as before")
        if not report.ok:
            name = job.options.name
            text = f"{name}: the converted dataset has faults; nothing was replaced"
            raise make_error(FormatError, f"{text}\n{report.text()}", dataset=name)
