"""Levels "index" and "decode" of `verify`: the video files, side by side."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np

from . import sums
from .engine import load_core, picture_size
from .errors import FormatError, ReelpoolError, StorageError
from .verify import Fault, Report, collecting, fault_of
from .verify_meta import span, spots
from .verify_mp4 import durations
from .video import VideoDecoder

SAMPLES_AT_ONCE = 512  # coded pictures per step of level "decode"
_SPOT_BYTES = 4 << 20  # of pictures that are decoded together


@dataclasses.dataclass(frozen=True)
class Choices:
    """What `verify.check` was asked for."""

    decode: bool
    tolerance_s: float
    sums: bool
    write_sums: bool
    jobs: int
    spot: int | None = None  # episodes of a camera whose ends are decoded; None: all


class VideoFile:
    """One video file of one camera, and the episodes that it shows."""

    def __init__(self, meta: Any, camera: str, file_id: int, chosen: np.ndarray) -> None:
        columns = meta._columns
        self.meta, self.camera = meta, camera
        self.rel: str = columns.video_files[file_id]
        self.path: str = meta._files.resolve(self.rel)
        ids = columns.video[camera].file_id
        self.everyone = np.flatnonzero(ids == file_id)
        self.chosen = chosen[ids[chosen] == file_id]
        self.start = columns.video[camera].from_timestamp
        self.faults: list[Fault] = []
        self.bytes = self.pictures = 0
        self.known = self.opened = self.rotten = False
        # Per row of the chosen episodes that has a picture: the picture's sample, episode, frame.
        self.sample = self.episode = self.frame = np.zeros(0, np.int64)
        self._rows: dict[int, tuple[int, int]] | None = None  # by sample

    def fault(self, level: str, what: str, consequence: str, fix: str = "", **where: Any) -> None:
        """One more fault of this file."""
        where.setdefault("camera", self.camera)
        fix = fix or (f"fetch {self.rel} again, or leave {span(self.chosen)} out (episodes=)")
        self.faults.append(Fault(level, what, consequence, fix, self.rel, **where))

    # -- level "index" --

    def open(self, choices: Choices, times: dict[int, np.ndarray]) -> None:
        """Its index, its durations, a picture for each row."""
        core = load_core()
        try:
            info = core.video_info(self.path, True)
        except ReelpoolError as error:
            self.faults.append(
                fault_of(error, "index", self.meta.root, file=self.rel, camera=self.camera,
                         episode=int(self.chosen[0]),
                         consequence=f"{span(self.chosen)} cannot be read")
            )  # fmt: skip
            return
        self.opened = True
        self.samples = np.frombuffer(info["rows"], np.int64).reshape(-1, 4)
        self.shown = np.frombuffer(info["order"], np.int64)
        self.seconds = np.frombuffer(info["times"], np.float64)
        self._check_size(info)
        self._check_durations()
        self._check_end()
        self._match(choices, times)

    def _check_size(self, info: dict[str, Any]) -> None:
        with collecting(self.faults, "index", self.meta.root, camera=self.camera):
            wanted = picture_size(self.meta.features[self.camera], self.camera)
            if (info["height"], info["width"]) != wanted:
                self.fault(
                    "index", f"its pictures are {info['width']}x{info['height']}, meta/info.json "
                    f"declares {wanted[1]}x{wanted[0]}", "reading it raises FormatError",
                    "correct the shape in meta/info.json, or read with resize=",
                )  # fmt: skip

    def _check_durations(self) -> None:
        found = durations(self.path)
        if found is not None and abs(found.stated - found.summed) > 2 * max(found.usual, 1):
            self.fault(
                "index", f"its pictures last {found.summed / found.timescale:.3f} s, its header "
                f"says {found.stated / found.timescale:.3f} s", "times of its pictures have jumped",
                episode=int(self.chosen[0]),
            )  # fmt: skip
        rows = int(self.meta._columns.length[self.everyone].sum())
        if len(self.seconds) < rows:
            self.fault(
                "index", f"it holds {len(self.seconds)} pictures, its episodes have {rows} frames",
                f"frames of {span(self.everyone)} have no picture", episode=int(self.chosen[0]),
            )  # fmt: skip
        elif not self.meta.is_v3 and len(self.seconds) > rows:
            self.fault(
                "index", f"it holds {len(self.seconds)} pictures, its episode has {rows} frames",
                "the episode may show another moment: its table and its video differ",
                episode=int(self.chosen[0]),
            )  # fmt: skip

    def _check_end(self) -> None:
        """Pictures beyond the file's end."""
        size = os.stat(self.path).st_size
        self.beyond = self.samples[:, 0] + self.samples[:, 1] > size
        if self.beyond.any():
            first = int(np.flatnonzero(self.beyond)[0])
            self.fault(
                "index", f"cut off at byte {size}: {int(self.beyond.sum())} of {len(self.samples)} "
                "pictures lie behind it", "reading them raises FormatError",
                offset=int(self.samples[first, 0]), length=int(self.samples[first, 1]),
                episode=int(self.chosen[0]),
            )  # fmt: skip

    def _match(self, choices: Choices, times: dict[int, np.ndarray]) -> None:
        """The picture of each row, as a read finds it."""
        numbers = [n for n in self.chosen.tolist() if n in times]
        if not numbers:
            return
        lengths = np.array([len(times[n]) for n in numbers])
        ends = np.cumsum(lengths)
        episode = np.repeat(numbers, lengths)
        frame = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        wanted = self.start[episode] + np.concatenate([times[n] for n in numbers])
        place, bad, stored = nearest(self.seconds, wanted, choices.tolerance_s)
        twice = np.zeros(len(place), bool)
        if len(self.seconds) > 1:
            equal = np.flatnonzero(np.diff(self.seconds) == 0)
            twice = ~bad & (np.isin(place, equal) | np.isin(place, equal + 1))
        repeated = ~bad & ~twice & (np.diff(place, prepend=-1) == 0) & (frame > 0)
        faulty = np.flatnonzero(np.bincount(episode[bad | twice | repeated]))
        for number in faulty.tolist():
            at = numbers.index(number)
            rows = slice(ends[at] - lengths[at], ends[at])
            self._report_times(number, wanted[rows], stored[rows], bad[rows])
            for wrong, what in ((twice[rows], "two pictures have the time of a frame"),
                                (repeated[rows], "two frames show one picture")):  # fmt: skip
                if wrong.any():
                    first = int(np.flatnonzero(wrong)[0])
                    self.fault("index", f"{what} ({int(wrong.sum())} frames)",
                               "reading them raises FrameTimestampError, or gives another moment",
                               episode=number, frame=first)  # fmt: skip
        good = ~bad & ~twice
        self.sample, self.episode, self.frame = self.shown[place[good]], episode[good], frame[good]

    def _report_times(
        self, number: int, wanted: np.ndarray, stored: np.ndarray, bad: np.ndarray
    ) -> None:
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            self.fault(
                "index", f"no picture at {wanted[first]:.6f} s, nearest {stored[first]:.6f} s "
                f"({int(bad.sum())} of {len(bad)} frames)",
                "reading them raises FrameTimestampError",
                f"reelpool inspect shows stored times; fetch {self.rel} again, or leave the "
                "episode out (episodes=)", episode=number, frame=first,
            )  # fmt: skip

    def _spots(self, count: int | None) -> set[int]:
        """Places in `sample` of the pictures to decode: the ends of episodes, and of the file."""
        edges = np.flatnonzero(np.diff(self.episode, prepend=-1, append=-1))
        begins, ends = edges[:-1], edges[1:] - 1
        if count is None:
            return {*begins.tolist(), *ends.tolist()}
        taken = np.isin(self.episode[begins], spots(self.meta, count))
        return {0, len(self.sample) - 1, *begins[taken].tolist(), *ends[taken].tolist()}

    def check_ends(self, spot: int | None, threads: int) -> None:
        """First and last picture of each episode (or of some), read as a dataset reads them."""
        if not self.opened or not len(self.sample):
            return
        rank = np.full(len(self.samples), -1, np.int64)
        rank[self.shown] = np.arange(len(self.shown))
        # Those that are beyond its end are reported as cut off.
        spots = [at for at in sorted(self._spots(spot)) if not self.beyond[self.sample[at]]]
        parts = [part.tolist() for part in np.array_split(spots, threads) if len(part)]
        if len(parts) == 1:
            self.pictures += self._check_spots(parts[0], rank)
        elif parts:
            with ThreadPoolExecutor(len(parts), thread_name_prefix="rp-verify") as pool:
                self.pictures += sum(pool.map(self._check_spots, parts, [rank] * len(parts)))

    def _check_spots(self, spots: list[int], rank: np.ndarray) -> int:
        """Decode the pictures of these places in `sample`; how many could be."""
        decoder = VideoDecoder(self.path)
        picture = 3 * decoder.metadata.height * decoder.metadata.width
        some, good = max(1, _SPOT_BYTES // max(1, picture)), 0
        while spots and _readable(decoder, rank[self.sample[spots[:some]]]):
            good += len(spots[:some])
            spots = spots[some:]
        for at in spots:
            with collecting(self.faults, "index", self.meta.root, file=self.rel,
                            camera=self.camera, episode=int(self.episode[at]),
                            frame=int(self.frame[at])):  # fmt: skip
                self._read(decoder, int(rank[self.sample[at]]), at)
                good += 1
        return good

    def _read(self, decoder: VideoDecoder, number: int, at: int) -> None:
        try:
            decoder.read(np.array([number], np.int64))
        except ReelpoolError as error:
            error.episode, error.frame = int(self.episode[at]), int(self.frame[at])
            error.camera = self.camera
            raise

    # -- check sums --

    def check_sums(self, choices: Choices) -> sums.Sums | None:
        """Compare all bytes with known sums; the file's own if it may have new ones."""
        try:
            stored = sums.load(self.path)
        except ReelpoolError:
            stored = None  # damaged sums say nothing; they are written anew
        now = sums.compute(self.path)
        self.bytes = now.size
        self._compare_hub(now)
        if stored is None or not stored.is_of(now.path):
            return now
        self.known = True
        self.rotten = now.header != stored.header or not np.array_equal(now.values, stored.values)
        if len(stored.values) != len(now.values) or stored.header != now.header:
            self.fault("index", "its header is not the one that was summed up",
                       f"reading {span(self.chosen)} raises FormatError",
                       episode=int(self.chosen[0]))  # fmt: skip
            return None
        wrong = np.flatnonzero(stored.values != now.values)
        for run in np.split(wrong, np.flatnonzero(np.diff(wrong) != 1) + 1) if len(wrong) else []:
            shown = [self._who_shows(sample) for sample in run.tolist()]
            seen = sorted(place for place in shown if place is not None)
            episode, frame = seen[0] if seen else (None, None)
            offset, end = int(self.samples[run, 0].min()), int(self.samples[run, :2].sum(1).max())
            self.fault("index", "its bytes changed since they were summed up: check sum differs",
                       "reading these pictures, and those built on them, raises DecodeError",
                       episode=episode, frame=frame, frames=len(seen) or None, offset=offset,
                       length=end - offset)  # fmt: skip
        return None

    def _compare_hub(self, now: sums.Sums) -> None:
        """In the Hub's cache a file's name is its SHA-256."""
        name = os.path.basename(now.path)
        if os.path.basename(os.path.dirname(now.path)) != "blobs" or not re.fullmatch(
            r"[0-9a-f]{64}", name
        ):
            return
        digest = hashlib.sha256()
        with open(now.path, "rb") as stream:
            while piece := stream.read(1 << 20):
                digest.update(piece)
        if digest.hexdigest() != name:
            self.fault("index", "its SHA-256 is not the Hub's", "its pictures may be wrong",
                       f"remove {now.path} and fetch the file again",
                       episode=int(self.chosen[0]))  # fmt: skip

    def _who_shows(self, sample: int) -> tuple[int, int] | None:
        """(episode, frame) of the first row that shows a sample; None where none does."""
        if self._rows is None:
            rows = zip(self.sample.tolist(), self.episode.tolist(), self.frame.tolist())
            self._rows = {s: (e, f) for s, e, f in reversed(list(rows))}
        return self._rows.get(sample)

    # -- level "decode" --

    def steps(self) -> Iterator[tuple[int, int]]:
        """Sample ranges of level "decode"."""
        for first in range(0, len(self.samples) if self.opened else 0, SAMPLES_AT_ONCE):
            yield first, first + SAMPLES_AT_ONCE

    def add_bad(self, bad: list[tuple[int, str, str, int, int]], strict: bool) -> None:
        """Pictures that do not decode; neighbours that fail at the same bytes are one fault.
        `strict`: only the second, stricter decoder found them.
        """
        found = []
        for sample, code, what, offset, length in bad:
            if self.beyond[sample]:
                continue  # reported as cut off
            episode, frame = self._who_shows(sample) or (-1, -1)
            found.append((episode, frame, code, what, offset, length))
        found.sort()
        runs: list[list] = []
        for entry in found:
            last = runs[-1] if runs else None
            same = last and entry[0] == last[0] and list(entry[2:]) == last[2:6]
            if same and entry[1] in (-1, last[1] + last[6]):
                last[6] += 1
            else:
                runs.append([*entry, 1])
        for episode, frame, code, what, offset, length, count in runs:
            unused = episode < 0
            if unused and len(self.chosen) < len(self.everyone):
                continue  # of an episode that was not asked for
            if strict:
                self.fault(
                    "decode", f"{what}; the decoder of reads takes it without a sign",
                    "its pixels may be wrong, and no read says so",
                    episode=None if unused else episode, frame=None if unused else frame,
                    frames=count, offset=offset if offset >= 0 else None,
                    length=length if length >= 0 else None,
                )  # fmt: skip
                continue
            self.fault(
                "decode", f"{code.lower()}: {what}" + (" (no frame shows it)" if unused else ""),
                "none, until a frame shows it" if unused else "reading them raises an error"
                if count > 1 else "reading it raises an error",
                episode=None if unused else episode, frame=None if unused else frame, frames=count,
                offset=offset if offset >= 0 else None, length=length if length >= 0 else None,
            )  # fmt: skip


def _readable(decoder: VideoDecoder, numbers: np.ndarray) -> bool:
    """Whether all of these pictures can be read."""
    try:
        decoder.read(numbers)
    except ReelpoolError:
        return False
    return True


def nearest(
    stored: np.ndarray, wanted: np.ndarray, tolerance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(place in `stored`, whether beyond the tolerance, stored time) of the wanted seconds: the
    nearest, the earlier of two, compared in float64 or float32.
    """
    if not len(stored):
        return (
            np.zeros(len(wanted), np.int64),
            np.ones(len(wanted), bool),
            np.full(len(wanted), np.nan),
        )
    right = np.clip(np.searchsorted(stored, wanted), 0, len(stored) - 1)
    left = np.maximum(right - 1, 0)
    place = np.where(np.abs(wanted - stored[left]) <= np.abs(wanted - stored[right]), left, right)
    times = stored[place]
    single = np.abs(wanted.astype(np.float32) - times.astype(np.float32))
    with np.errstate(invalid="ignore"):
        good = (np.abs(wanted - times) <= tolerance) | (single <= np.float32(tolerance))
    return place, ~good, times


def _examine(
    file: VideoFile, choices: Choices, times: dict[int, np.ndarray], threads: int
) -> sums.Sums | None:
    """Level "index" of one file, decoding by so many threads; its sums if it may have new ones."""
    own: sums.Sums | None = None
    file.open(choices, times)
    with collecting(file.faults, "index", file.meta.root, file=file.rel, camera=file.camera,
                    episode=int(file.chosen[0])):  # fmt: skip
        if choices.sums and file.opened and not file.beyond.any():
            own = file.check_sums(choices)
        if not choices.decode and not file.rotten:
            file.check_ends(choices.spot, threads)  # what has lost its sums cannot be read anyway
    return own


def check_files(
    meta: Any,
    chosen: np.ndarray,
    found: list[tuple[str, int]],
    times: dict[int, np.ndarray],
    report: Report,
    choices: Choices,
    progress: Callable[[int], Any],
) -> None:
    """Check the video files `found` (camera, number) of the chosen episodes; adds to `report`."""
    files: list[VideoFile] = []
    for camera, file_id in found:
        with collecting(report.faults, "index", meta.root, camera=camera):
            files.append(VideoFile(meta, camera, file_id, chosen))
    threads = ThreadPoolExecutor(max(1, choices.jobs), thread_name_prefix="rp-verify")
    try:
        bar = progress(len(files))
        own: dict[VideoFile, sums.Sums | None] = {}
        each = max(1, choices.jobs // max(1, len(files)))  # where there are fewer files than CPUs
        waiting = {threads.submit(_examine, f, choices, times, each): f for f in files}
        for done in _each(waiting, bar):
            own[waiting[done]] = done.result()
        bar.close()
        if choices.decode:
            _decode(threads, files, progress)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    for file in files:
        report.files += 1
        report.bytes += file.bytes
        report.pictures += file.pictures
        report.sums_known += file.known
        report.faults += file.faults
        mine = own.get(file)
        if choices.write_sums and mine is not None and not file.faults and mine.is_of(mine.path):
            try:
                sums.store(mine)
            except StorageError as error:
                report.notes.append(f"check sums are not kept: {error}")
                choices = dataclasses.replace(choices, write_sums=False)
                continue
            report.sums_written += 1


def _each(waiting: dict[Future, VideoFile], bar: Any) -> Iterator[Future]:
    for done in as_completed(waiting):
        bar.set_description_str(waiting[done].rel)
        yield done
        bar.update()


def _decode(
    threads: ThreadPoolExecutor, files: list[VideoFile], progress: Callable[[int], Any]
) -> None:
    core = load_core()
    steps = [(file, *step) for file in files for step in file.steps()]
    bar = progress(2 * len(steps))
    waiting: dict[Future, tuple[VideoFile, bool]] = {}
    for strict in (False, True):
        for file, first, end in steps:
            done = threads.submit(core.check_pictures, file.path, first, end, strict)
            waiting[done] = (file, strict)
    bad: dict[tuple[VideoFile, bool], list] = {}
    for done in as_completed(waiting):
        file, strict = waiting[done]
        bar.set_description_str(file.rel)
        try:
            pictures, found = done.result()
        except FormatError:
            continue  # reported when it was opened
        except ReelpoolError as error:
            file.faults.append(fault_of(error, "decode", file.meta.root, camera=file.camera))
            continue
        file.pictures += 0 if strict else pictures - len(found)
        bad.setdefault((file, strict), []).extend(found)
        bar.update()
    bar.close()
    for file in files:
        plain = sorted(bad.get((file, False), []))
        known = {entry[0] for entry in plain}
        file.add_bad(plain, False)
        file.add_bad([e for e in sorted(bad.get((file, True), [])) if e[0] not in known], True)
