"""Level "meta" of `verify`: what the metadata and the tables say, each against the other."""

from __future__ import annotations

import math
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np

from . import metadata_v21
from .errors import FormatError, NotFoundError, ReelpoolError
from .frame_rate import contradiction, rate_text
from .metadata_episodes import EPISODES_DIR, read_parquet
from .metadata_info import NUMBER_DTYPES
from .metadata_tasks import TASKS_FILE
from .roots import INFO_FILE, LocalRoot
from .tables import Table, load_table
from .verify import Fault, Report, collecting, fault_of

FILES_AT_ONCE = 64  # Parquet files whose rows are held together
BYTES_AT_ONCE = 32 << 20  # and about so many bytes of rows, or one episode
_WIDTHS = {"float64": 8, "int64": 8, "float16": 2, "bool": 1, "int8": 1, "uint8": 1, "image": 0.25}


def explain(error: ReelpoolError, root: Path, report: Report) -> None:
    """Faults for a dataset whose metadata cannot be read: the error, and episodes that lack."""
    fix = "fetch meta/ again, or correct it"
    consequence = "the dataset cannot be opened; nothing beyond this was checked"
    report.faults.append(fault_of(error, "meta", root, consequence=consequence, fix=fix))
    files = LocalRoot(root)
    try:
        index, source = _episode_numbers(files)
    except ReelpoolError:
        return  # that file is what the error is about
    missing = sorted(set(range(int(index.max(initial=-1)) + 1)) - set(index.tolist()))
    double = np.unique(index[np.diff(index, append=-1) == 0]).tolist()
    found = [(n, "is missing") for n in missing] + [(n, "is there twice") for n in double]
    for number, what in found:
        if number != error.episode:
            report.faults.append(
                Fault("meta", f"episode {number} {what}", consequence, fix, source, episode=number)
            )


def _episode_numbers(files: LocalRoot) -> tuple[np.ndarray, str]:
    if files.exists(metadata_v21.EPISODES_FILE):
        source = metadata_v21.EPISODES_FILE
        numbers: list = [row.get("episode_index") for row in metadata_v21.read_jsonl(files, source)]
    else:
        source, numbers = EPISODES_DIR, []
        for path in sorted((files.path / EPISODES_DIR).glob("*/*.parquet")):
            rel = path.relative_to(files.path).as_posix()
            table = read_parquet(
                files, rel, lambda names: [n for n in names if n == "episode_index"]
            )
            numbers += table.column("episode_index").to_pylist() if table.column_names else []
    return np.sort(np.array([n for n in numbers if type(n) is int], np.int64)), source


def check_meta(
    meta: Any, chosen: np.ndarray, level: str, report: Report, spot: int | None = None
) -> dict[int, np.ndarray]:
    """Check metadata and tables; {episode: float64 seconds of its rows} where they are readable.
    `spot`: all columns of so many episodes only, row numbers, times and tasks of the others.
    """
    _check_tasks(meta, chosen, report)
    _check_stats(meta, report)
    _check_ranges(meta, chosen, report)
    _check_segments(meta, chosen, report)
    missing = _missing_tables(meta, chosen, report)
    report.episodes = len(chosen)
    times: dict[int, np.ndarray] = {}
    columns = meta._columns
    whole = np.ones(len(chosen), bool) if spot is None else np.isin(chosen, spots(meta, spot))
    for some, all_columns in ((chosen[~whole], False), (chosen[whole], True)):
        for part in _parts(meta, some):
            present = part[~np.isin(columns.data_file_id[part], list(missing))]
            _check_rows(meta, present, level, report, times, all_columns)
    return dict(sorted(times.items()))


def spots(meta: Any, count: int) -> np.ndarray:
    """Numbers of `count` episodes, spread evenly."""
    return np.linspace(0, meta.total_episodes - 1, count).round()


def check_rate(meta: Any, times: dict[int, np.ndarray], tolerance_s: float, report: Report) -> None:
    """Whether fps is the rate of the rows; the first episode that contradicts is named."""
    for number, seconds in times.items():
        same = np.zeros(len(seconds), np.int64)
        step = contradiction(meta.fps, seconds.astype(np.float32), same, tolerance_s)
        if step is not None:
            report.faults.append(
                Fault("meta", rate_text(meta.fps, step),
                      "windows (delta_timestamps) hold rows of other times, or raise FormatError",
                      "correct fps, or fetch meta/ again", INFO_FILE, episode=number)
            )  # fmt: skip
            return


def _parts(meta: Any, chosen: np.ndarray) -> list[np.ndarray]:
    """The episodes cut where FILES_AT_ONCE files or BYTES_AT_ONCE are full."""
    if not len(chosen):
        return []
    columns = meta._columns
    file_ids = columns.data_file_id[chosen]
    number = np.concatenate([[0], np.cumsum(np.diff(file_ids) != 0)]) // FILES_AT_ONCE
    held = np.cumsum(columns.length[chosen]) * _row_bytes(meta) // BYTES_AT_ONCE
    return np.split(chosen, np.flatnonzero(np.diff(number) + np.diff(held)) + 1)


def _row_bytes(meta: Any) -> float:
    """About what a row takes in memory."""
    numbers = [f for f in meta.features.values() if f["dtype"] != "video"]
    return sum(_WIDTHS.get(f["dtype"], 4) * math.prod(f.get("shape") or [1]) for f in numbers)


def _check_tasks(meta: Any, chosen: np.ndarray, report: Report) -> None:
    names, total = meta._task_names, meta.info.total_tasks
    rel = TASKS_FILE if meta.is_v3 else metadata_v21.TASKS_FILE
    if len(names) != total:
        report.faults.append(
            Fault("meta", f"{len(names)} tasks, meta/info.json says {total}",
                  "counts of the dataset are wrong", "correct total_tasks, or fetch meta/ again",
                  rel)
        )  # fmt: skip
    known = set(names.values())
    episodes = meta.episodes
    if episodes is None or "tasks" not in episodes.column_names:
        return
    named = episodes["tasks"]  # all of them: taking some by number loads pandas
    for number in chosen.tolist():
        tasks = named[number]
        for task in tasks if isinstance(tasks, list) else []:
            if task not in known:
                report.faults.append(
                    Fault("meta", f"task {task!r} is not in the list of tasks",
                          "its episode's task has no number", "fetch meta/ again", rel,
                          episode=number)
                )  # fmt: skip


def _check_stats(meta: Any, report: Report) -> None:
    rel = "meta/stats.json"
    if meta._format == (2, 1):
        rel = metadata_v21.EPISODE_STATS_FILE
    fix = "compute the statistics again with LeRobot, or fetch meta/ again"
    before = len(report.faults)
    with collecting(report.faults, "meta", meta.root, fix=fix, file=rel,
                    consequence="policies cannot normalise its data"):  # fmt: skip
        stats = meta.stats
        if meta._format == (2, 1) and stats is not None and rel == metadata_v21.EPISODE_STATS_FILE:
            _check_episode_stats(meta, rel, report)
    if len(report.faults) > before:
        return
    wanted = [
        k for k, f in meta.features.items() if f["dtype"] in NUMBER_DTYPES | {"video", "image"}
    ]
    lacking = wanted if stats is None else [k for k in wanted if k not in stats]
    incomplete = [] if stats is None else [
        k for k in wanted if k in stats and {"min", "max", "mean", "std"} - set(stats[k])
    ]  # fmt: skip
    if stats is None:
        what = "there are no statistics"
    elif lacking:
        what = "no statistics of " + ", ".join(lacking)
    elif incomplete:
        what = "min, max, mean or std is missing for " + ", ".join(incomplete)
    else:
        return
    report.faults.append(Fault("meta", what, "policies cannot normalise these features", fix, rel))


def _check_episode_stats(meta: Any, rel: str, report: Report) -> None:
    if not meta._files.exists(rel):
        return
    there = {row.get("episode_index") for row in metadata_v21.read_jsonl(meta._files, rel)}
    for number in range(meta.total_episodes):
        if number not in there:
            report.faults.append(
                Fault("meta", f"no statistics of episode {number}",
                      "the dataset's statistics leave it out", "compute them again with LeRobot",
                      rel, episode=number)
            )  # fmt: skip


def _check_ranges(meta: Any, chosen: np.ndarray, report: Report) -> None:
    """Episodes follow each other without gap: dataset_from_index .. dataset_to_index."""
    columns = meta._columns
    if not len(columns.length):
        return
    expected = np.cumsum(columns.length) - columns.length
    for number in chosen[columns.from_index[chosen] != expected[chosen]].tolist():
        report.faults.append(
            Fault("meta", f"its frames begin at {columns.from_index[number]}, those before it end "
                  f"at {expected[number]}", "frame numbers have gaps or repeats",
                  "fetch meta/ again, or convert the dataset again", EPISODES_DIR, episode=number)
        )  # fmt: skip


def _check_segments(meta: Any, chosen: np.ndarray, report: Report) -> None:
    """v3.0: the stretch of video that an episode names is as long as it, and its own."""
    if not meta.is_v3:
        return
    columns, step = meta._columns, 1.0 / meta.fps
    for key, video in columns.video.items():
        start, stop = video.from_timestamp, video.to_timestamp
        named = f"videos/{key}/to_timestamp" in meta.episodes.column_names
        length = columns.length / meta.fps
        wrong = np.abs(stop - start - length) > 1.5 * step if named else np.zeros(len(start), bool)
        for number in chosen[wrong[chosen]].tolist():
            report.faults.append(
                Fault("meta", f"its video runs from {start[number]:.4f} to {stop[number]:.4f} s, "
                      f"its {columns.length[number]} frames take {length[number]:.4f} s",
                      "pictures may be those of another moment",
                      "convert the dataset again, or correct from_timestamp and to_timestamp",
                      EPISODES_DIR, camera=key, episode=number)
            )  # fmt: skip
        order = np.lexsort((start, video.file_id))
        ends = start[order] + length[order]
        same = np.diff(video.file_id[order]) == 0
        over = np.flatnonzero(same & (start[order][1:] < ends[:-1] - 0.5 * step))
        for at in over.tolist():
            number, other = int(order[at + 1]), int(order[at])
            if number in chosen or other in chosen:
                report.faults.append(
                    Fault("meta", f"its video begins at {start[number]:.4f} s, where episode "
                          f"{other} still runs (to {ends[at]:.4f} s)",
                          "two episodes show the same pictures",
                          "convert the dataset again, or correct from_timestamp", EPISODES_DIR,
                          camera=key, episode=number)
                )  # fmt: skip


def _missing_tables(meta: Any, chosen: np.ndarray, report: Report) -> set[int]:
    """The numbers of the data files that are not there."""
    columns = meta._columns
    missing = set()
    for file_id in distinct(columns.data_file_id[chosen]):
        numbers = chosen[columns.data_file_id[chosen] == file_id]
        if not _is_there(meta, columns.data_files[file_id], numbers, None, report):
            missing.add(file_id)
    return missing


def find_videos(
    meta: Any, chosen: np.ndarray, files: Container[str] | None, report: Report
) -> list[tuple[str, int]]:
    """(camera, number) of the chosen episodes' video files (or of those in `files`) that are there;
    a fault for each other one.
    """
    columns = meta._columns
    found = []
    for key, video in columns.video.items():
        for file_id in distinct(video.file_id[chosen]):
            rel = columns.video_files[file_id]
            if files is None or rel in files:
                numbers = chosen[video.file_id[chosen] == file_id]
                if _is_there(meta, rel, numbers, key, report):
                    found.append((key, file_id))
    return found


def _is_there(meta: Any, rel: str, numbers: np.ndarray, camera: str | None, report: Report) -> bool:
    try:
        (meta._files.resolve if camera is None else meta._files.video)(rel)
    except ReelpoolError as error:
        what = "the file is missing" if isinstance(error, NotFoundError) else str(error)
        report.faults.append(
            Fault("meta", what, f"{span(numbers)} cannot be read",
                  f"fetch {rel} again, or leave these episodes out (episodes=)", rel, camera,
                  episode=int(numbers[0]))
        )  # fmt: skip
        return False
    return True


def distinct(ids: np.ndarray) -> list[int]:
    """The numbers of files among `ids`, ascending: np.unique would load numpy.ma for them."""
    return np.flatnonzero(np.bincount(ids)).tolist()


def span(numbers: np.ndarray) -> str:
    """ "episode 3", "episodes 3-7", "episodes 3-9 (5)": ascending numbers."""
    first, last, count = int(numbers[0]), int(numbers[-1]), len(numbers)
    if count == 1:
        return f"episode {first}"
    return f"episodes {first}-{last}" + (f" ({count})" if count != last - first + 1 else "")


def _check_rows(
    meta: Any,
    part: np.ndarray,
    level: str,
    report: Report,
    times: dict[int, np.ndarray],
    all_columns: bool,
) -> None:
    """The tables of some episodes; a failing part is halved until one file is left."""
    if not len(part):
        return
    try:
        table = load_table(meta, part, all_columns)
    except ReelpoolError as error:
        ids = meta._columns.data_file_id[part]
        cuts = np.flatnonzero(np.diff(ids)) + 1
        if not len(cuts):
            report.faults.append(
                fault_of(error, "meta", meta.root, file=meta._columns.data_files[int(ids[0])],
                         episode=int(part[0]), consequence=f"{span(part)} cannot be read")
            )  # fmt: skip
            return
        cut = int(cuts[len(cuts) // 2])
        _check_rows(meta, part[:cut], level, report, times, all_columns)
        _check_rows(meta, part[cut:], level, report, times, all_columns)
        return
    report.frames += len(table)
    seconds = table.timestamp.astype(np.float64)
    with_pictures = level != "meta" and any(
        meta.features[k]["dtype"] == "image" for k in table.cells
    )
    for k, number in enumerate(part.tolist()):
        rows = slice(int(table.starts[k]), int(table.starts[k] + table.lengths[k]))
        times[number] = seconds[rows]
        if with_pictures:
            _check_images(meta, table, number, rows, level, report)
    _check_values(meta, table, part, report)


def _check_values(meta: Any, table: Table, part: np.ndarray, report: Report) -> None:
    """Row numbers, tasks and times of the episodes `part`, which are all that the table holds."""
    number = np.arange(len(table)) - np.repeat(table.starts, table.lengths)
    time = table.timestamp
    falls = np.diff(time, prepend=np.float32(-1e30)) <= 0
    checks = [
        ("frame_index", table.frame_index != number,
         "is not the frame's number in its episode", "frames of the episode are taken for others"),
        ("task_index", ~np.isin(table.task_index, list(meta._task_names)),
         "names no task", "reading the row raises FormatError"),
        ("timestamp", ~np.isfinite(time) | (falls & (number > 0)),
         "does not rise", "the picture of another moment is read, or none"),
    ]  # fmt: skip
    for column, bad, what, consequence in checks:
        for k in _holders(table, bad):
            rows = slice(int(table.starts[k]), int(table.starts[k] + table.lengths[k]))
            first, count = int(np.flatnonzero(bad[rows])[0]), int(bad[rows].sum())
            value = getattr(table, column)[rows][first]
            rel = str(meta.get_data_file_path(int(part[k])))
            report.faults.append(
                Fault("meta", f"{column} is {value}: {what} ({count} rows)", consequence,
                      f"fetch {rel} again, or leave the episode out (episodes=)", rel,
                      episode=int(part[k]), frame=first)
            )  # fmt: skip


def _holders(table: Table, rows: np.ndarray) -> list[int]:
    """Places in `table.starts` of the episodes that have one of the rows marked."""
    if not rows.any():
        return []
    ends = table.starts + table.lengths
    marked = np.concatenate([[0], np.cumsum(rows)])
    return np.flatnonzero(marked[ends] > marked[table.starts]).tolist()


def _check_images(
    meta: Any, table: Table, number: int, rows: slice, level: str, report: Report
) -> None:
    """Pictures kept in the tables: first and last of the episode, or all."""
    from .image_cells import decode_image_cell

    count = rows.stop - rows.start
    wanted = range(count) if level == "decode" else sorted({0, count - 1})
    for key in [k for k in table.cells if meta.features[k]["dtype"] == "image"]:
        for frame in wanted:
            with collecting(report.faults, level, meta.root, camera=key, episode=number,
                            frame=frame, file=str(meta.get_data_file_path(number))):  # fmt: skip
                try:
                    cell = table.cells[key].cell(rows.start + frame)
                except (OSError, ValueError) as error:
                    raise FormatError(f"the cell cannot be read: {error}") from error
                decode_image_cell(cell, meta._files, camera=key, episode=number, frame=frame)
                report.pictures += 1
