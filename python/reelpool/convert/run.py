"""Runs a conversion on this machine: threads of this process, or several processes.

Any number of these may work on one conversion, on any number of hosts that share its folders.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import functools
import importlib
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import env, verify
from ..errors import NotFoundError, ReelpoolError, StateError, make_error
from . import plan
from .ending import Ending
from .head_start import FILES
from .job import Job, Options, Outdated

_POLL_S = 0.1
_STALE_S = 65.0  # names that another host has changed are seen by then: NFS's acdirmax is 60 s
_ATTEMPTS = 3  # phases are run again when inputs or outputs turn out to have changed meanwhile
_PR_SET_PDEATHSIG = 1
_LATE = (  # what every conversion loads at some time: before workers are forked
    "reelpool._core",
    "reelpool.metadata",
    "reelpool.sums",
    "reelpool.verify",
    "reelpool.verify_meta",
    "reelpool.verify_video",
)

Progress = Callable[[str, int, int], None]  # (phase, done, in all): episodes, bytes, steps


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of it. `already`: the dataset was v3.0, nothing was done."""

    target: Path
    old: Path | None
    already: bool
    episodes: int = 0
    frames: int = 0
    files: int = 0
    input_bytes: int = 0
    seconds: float = 0.0
    workers: int = 1  # threads or processes of a phase that ran at once here, at most
    notes: tuple[str, ...] = ()
    phases: dict[str, float] = dataclasses.field(default_factory=dict)  # seconds of each


def convert(
    options: Options,
    threads: int = 1,
    processes: int = 0,
    progress: Progress = lambda phase, done, total: None,
) -> Result:
    """Convert a dataset, or help other processes to.

    `processes` 0: `threads` threads of this process; else up to that many processes of `threads`
    each: no more than the CPUs granted, as more only take turns, nor than a phase has items.
    Returns when the v3.0 dataset is in place, whoever put it there. Raises FormatError naming every
    bad episode, StateError, StorageError, DatasetChangedError; finished files are kept then.
    """
    for name in _LATE:
        importlib.import_module(name)
    begun = time.monotonic()
    phases: dict[str, float] = {}

    def timed(phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        if phase not in phases:
            phases[phase] = now
        progress(phase, done, total)

    job = Job(options)
    pool = _Pool(job, threads, min(processes, env.granted_cpus()))
    try:
        if job.begin():
            _run_phases(job, pool, timed, at_end=True)
        if not job.outputs():  # there was nothing to do, or another process was faster
            old = options.old if options.out is None and options.old.exists() else None
            return Result(options.target, old, already=True)
        ends = [*list(phases.values())[1:], time.monotonic()]
        source, outputs = job.source, job.outputs()
        return Result(
            target=options.target,
            old=options.old if options.out is None else None,
            already=False,
            episodes=len(source),
            frames=int(source.columns.length.sum()),
            files=len(outputs),
            input_bytes=sum(o.size for o in outputs),
            workers=pool.most,
            seconds=ends[-1] - begun,
            phases={name: end - phases[name] for name, end in zip(phases, ends)},
            notes=tuple(job.notes),
        )
    finally:
        job.folder.close()


def help_along(options: Options, threads: int, at_end: bool) -> None:
    """Do a share of the work; with `at_end` the last steps too. Nothing to do is no error."""
    job = Job(options)
    try:
        if not job.complete() and job.begin():
            _run_phases(job, _Pool(job, threads, 0), lambda phase, done, total: None, at_end)
    finally:
        job.folder.close()


def dry_run(options: Options, threads: int = 1) -> tuple[dict, list[plan.Output]]:
    """The plan, without writing anything: every source is read and judged. Raises FormatError."""
    from concurrent.futures import ThreadPoolExecutor

    from .source import Source, bad_episodes

    source = Source(options.root, options.name)
    _ = source.schema, source.stats_rows
    with ThreadPoolExecutor(threads) as pool:
        scans = list(pool.map(lambda e: source.scan(e, options.tolerance_s), range(len(source))))
    faults = [(i, text) for i, scan in enumerate(scans) for text in scan.get("faults", ())]
    if faults:
        raise bad_episodes(options.name, faults)
    manifest = plan.make_manifest(source, scans, options.data_mb, options.video_mb)
    return manifest, plan.outputs_of(manifest)


def _run_phases(job: Job, pool: _Pool, progress: Progress, at_end: bool) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            with job.head_start(pool.several):
                _run_once(job, pool, progress, at_end)
            return
        except Outdated as error:
            if job.overtaken():
                return
            if attempt == _ATTEMPTS - 1:
                text = f"{job.options.work}: {error} keeps changing; is the source being written?"
                raise make_error(StateError, text, dataset=job.options.name) from error
        except (ReelpoolError, OSError) as error:
            if not _overtaken(job, error):
                raise
            return


def _overtaken(job: Job, error: Exception) -> bool:
    """Whether another process has put the dataset in place, which explains the error. Network file
    systems show that late: where another command was seen at work and a file has gone, blocks for
    `_STALE_S` at most.
    """
    codes = {getattr(error, name, None) for name in ("errno", "status")}
    gone = isinstance(error, NotFoundError) or bool(codes & {errno.ENOENT, errno.ESTALE})
    deadline = time.monotonic() + (_STALE_S if gone and job.folder.met_others else 0)
    while not job.overtaken():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _run_once(job: Job, pool: _Pool, progress: Progress, at_end: bool) -> None:
    report = _reporter("read", job.scan_sizes(), progress)
    if job.head is not None:
        job.head.let_begin()
    fewer = 0 if job.head is None else FILES
    with pool.running(job.scan_steps(), job.scan, report, fewer) as under_way:
        _ = job.source.stats_rows  # the longest of the metadata, judged beside the rest
        under_way.until(lambda whole: False)
    if job.overtaken():
        return
    job.settle_plan()
    sizes = {o.item: o.size for o in job.outputs()}
    report = _reporter("write", sizes, progress, job.under_way)
    with pool.running(job.write_steps(), job.write, report) as under_way:
        if not at_end:
            under_way.rest()
        elif not job.overtaken():
            steps = functools.partial(_Steps, progress)
            with contextlib.closing(Ending(job, steps, under_way.until)) as ending:
                job.finish(ending, under_way.rest)


def _reporter(
    phase: str,
    sizes: dict[str, int],
    progress: Progress,
    under_way: Callable[[set[str]], int] = lambda done: 0,
) -> Callable[[set[str]], None]:
    total = sum(sizes.values())

    def report(done: set[str]) -> None:
        whole = sum(size for item, size in sizes.items() if item in done)
        progress(phase, min(total, whole + under_way(done)), total)

    return report


class _Steps(verify.Progress):
    """Tells of the last phase, whose steps are files, or stretches of pictures."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._done, self._total, self._progress = 0, total, progress
        progress("check", 0, total)

    def update(self) -> None:
        """A step was done."""
        self._done += 1
        self._progress("check", self._done, self._total)


class _Pool:
    """Runs the items of a phase here, and reports on those done here and elsewhere."""

    def __init__(self, job: Job, threads: int, processes: int) -> None:
        self._job = job
        self._threads = max(1, threads)
        self._processes = processes
        self.several = threads > 1 and processes == 0  # threads of this process
        self.most = 0  # workers of a phase so far

    @contextlib.contextmanager
    def running(
        self,
        items: list[str],
        step: Callable[[str], None],
        report: Callable[[set[str]], None],
        fewer: int = 0,
    ) -> Iterator[_UnderWay]:
        """Do the items while the body runs, which waits for them as it likes; at its end all are
        done. Raises what the first failing worker raised. `fewer`: by so many threads less, as
        others are at work.
        """
        job = self._job
        done = job.folder.done_items()
        left = sum(item not in done for item in items)
        count = max(1, min((self._processes or self._threads) - fewer, left))
        self.most = max(self.most, count)
        if self._processes:
            workers: Any = _Processes(job, items, step, count, self._threads)
        else:
            workers = _Threads(job, items, step, count)
        try:
            report(done)
            under_way = _UnderWay(job, workers, set(items), report)
            yield under_way
            under_way.rest()
        finally:
            workers.stop()


class _UnderWay:
    """Waits for items that workers do."""

    def __init__(
        self, job: Job, workers: Any, items: set[str], report: Callable[[set[str]], None]
    ) -> None:
        self._job, self._workers, self._items, self._report = job, workers, items, report

    def until(self, enough: Callable[[set[str]], bool]) -> None:
        """Return when `enough(items made or done)`, or all are done, and report meanwhile. Raises
        what a worker raised.
        """
        while not self._workers.wait(0):
            whole = self._job.folder.done_items() | self._job.made()
            self._report(whole)
            if enough(whole):
                return
            self._workers.wait(_POLL_S)
        self.rest()
        self._report(self._job.folder.done_items() | self._items)

    def rest(self) -> None:
        """Return when all are done. Raises what the first failing worker raised."""
        while not self._workers.wait(_POLL_S):
            pass
        self._workers.stop()
        self._workers.raise_first()


class _Threads:
    """Threads of this process; reading, hashing, copying and Parquet let go of the GIL."""

    def __init__(self, job: Job, items: list[str], step: Callable, count: int) -> None:
        self._job, self._items, self._step = job, items, step
        self._errors: list[BaseException] = []
        self._ended = threading.Semaphore(0)  # something to look at: perhaps the end
        self._over: list[None] = []  # one of each thread that has ended
        job.when_made = self._ended.release
        self._threads = [
            threading.Thread(target=self._work) for _ in range(max(1, min(count, len(items))))
        ]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        try:
            self._job.work_through(self._items, self._step)
        except BaseException as error:  # raised again by raise_first
            self._errors.append(error)
            self._job.stopped.set()
        finally:
            self._over.append(None)
            self._ended.release()

    def _all_over(self) -> bool:
        return len(self._over) == len(self._threads)

    def wait(self, timeout_s: float) -> bool:
        """True when all threads have ended. May return early."""
        if not self._all_over():
            self._ended.acquire(timeout=timeout_s)
        return self._all_over()

    def stop(self) -> None:
        """End them after the item at work."""
        if not self._all_over():
            self._job.stopped.set()
        for thread in self._threads:
            thread.join()

    def raise_first(self) -> None:
        """Raise what the first failing thread raised."""
        if self._errors:
            raise self._errors[0]


class _Processes:
    """Forked processes: they share what is loaded already, and end with this one."""

    def __init__(
        self, job: Job, items: list[str], step: Callable, count: int, threads: int
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._job = job
        self._errors: list[BaseException] = []
        self._workers: list[tuple[Any, Any]] = []
        for _ in range(count):
            ours, theirs = context.Pipe(duplex=False)
            arguments = (job, items, step, threads, theirs, os.getpid())
            process = context.Process(target=_process_main, args=arguments, daemon=True)
            with warnings.catch_warnings():
                # Python warns of any other thread; the child uses no lock that one may hold.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            theirs.close()
            self._workers.append((process, ours))

    def wait(self, timeout_s: float) -> bool:
        """True when all processes have ended, or one has failed."""
        from multiprocessing.connection import wait

        running = [(p, c) for p, c in self._workers if p.is_alive()]
        if running:  # for nothing it would wait all the time
            wait([p.sentinel for p, _ in running], timeout_s)
        for process, connection in self._workers:
            if process.is_alive():
                continue
            self._collect(process, connection)
        return bool(self._errors) or not any(p.is_alive() for p, _ in self._workers)

    def _collect(self, process: Any, connection: Any) -> None:
        with contextlib.suppress(EOFError, OSError):
            if not connection.closed and connection.poll():
                error, met_others = connection.recv()
                self._errors.append(error)
                self._job.folder.met_others |= met_others
            connection.close()
        if process.exitcode and not self._errors:
            text = f"a worker process ended with status {process.exitcode}"
            self._errors.append(make_error(StateError, f"{text}\n  Run the same command again"))

    def stop(self) -> None:
        """End those that still run."""
        for process, _ in self._workers:
            if process.is_alive():
                process.terminate()
            process.join()

    def raise_first(self) -> None:
        """Raise what the first failing process raised."""
        if self._errors:
            raise self._errors[0]


def _process_main(
    job: Job, items: list[str], step: Callable, threads: int, connection: Any, parent: int
) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # it died before the line above
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    job.folder.reopen()
    job.stopped = threading.Event()
    try:
        if threads == 1:
            job.work_through(items, step)
        else:
            workers = _Threads(job, items, step, threads)
            while not workers.wait(_POLL_S):
                pass
            workers.stop()
            workers.raise_first()
    except Exception as error:
        connection.send((error, job.folder.met_others))
    finally:
        connection.close()
