"""A v2.0 or v2.1 dataset as the converter sees it: metadata checked, every episode's files judged.

Nothing here writes. Faults of episodes are collected, so that one error names them all.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .. import metadata_v21
from ..errors import CompatibilityError, FormatError, ReelpoolError, make_error
from ..metadata_info import load_info, parse_json, parse_version
from ..roots import INFO_FILE, LocalRoot, check_path
from ..tables_arrow import flat_numbers
from .copies import changed, video_digest
from .durable import file_digest

STATS_FILE = "meta/stats.json"
_META_FILES = (
    INFO_FILE,
    metadata_v21.EPISODES_FILE,
    metadata_v21.TASKS_FILE,
    metadata_v21.EPISODE_STATS_FILE,
    STATS_FILE,
)
_WHOLE = 8 << 20  # bytes of a table that are read at once
_BUFFER = 1 << 20  # else, of each column
_NUMBERS = ("timestamp", "frame_index", "episode_index", "index")
_SHOWN = 100  # episodes named in one error


def bad_episodes(name: str, faults: list[tuple[int, str]]) -> FormatError:
    """The error that lists every episode that cannot be converted."""
    faults = sorted(faults)
    count = len({episode for episode, _ in faults})
    lines = [f"episode {episode}: {text}" for episode, text in faults[:_SHOWN]]
    if len(faults) > _SHOWN:
        lines.append(f"and {len(faults) - _SHOWN} more faults")
    head = f"{name}: {count} episode{'s' * (count > 1)} cannot be converted; nothing was changed"
    return make_error(FormatError, "\n  ".join([head, *lines]), dataset=name, episode=faults[0][0])


def read_version(root: Path) -> tuple[int, int]:
    """(major, minor) of the dataset in `root`. Raises NotFoundError, FormatError."""
    files = LocalRoot(root)
    info = parse_json(files.read_bytes(INFO_FILE), INFO_FILE)
    return parse_version(
        info.get("codebase_version") if isinstance(info, dict) else None, root.name
    )


class Source:
    """The dataset to convert. Raises FormatError, NotFoundError, CompatibilityError."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.files = LocalRoot(root)
        self._paths: dict[str, str] = {}
        self.info = load_info(self.files)
        self.version = parse_version(self.info.codebase_version, name)
        if self.version[0] != 2:
            text = f"{name} has format {self.info.codebase_version}; v2.0 and v2.1 are converted"
            raise make_error(CompatibilityError, text, dataset=name, file=INFO_FILE)
        if self.info.total_episodes == 0:
            raise make_error(FormatError, f"{name} has no episodes", dataset=name, file=INFO_FILE)
        keys = self.info.features
        self.cameras = sorted(k for k, f in keys.items() if f["dtype"] == "video")
        self.images = [k for k, f in keys.items() if f["dtype"] == "image"]
        if self.cameras and self.info.video_path is None:
            text = f"{INFO_FILE}: video_path is null, but {self.cameras[0]} is a video"
            raise make_error(FormatError, text, file=INFO_FILE, camera=self.cameras[0])
        self.rows = self._episode_rows()
        self.columns = metadata_v21.episode_columns(self.rows, self.info, self.cameras)
        frames = int(self.columns.length.sum())
        if frames != self.info.total_frames:
            text = f"total_frames is {self.info.total_frames}, the episodes have {frames}"
            raise make_error(FormatError, f"{INFO_FILE}: {text}", file=INFO_FILE)
        self.tasks = self._tasks()

    def __len__(self) -> int:
        """Episodes."""
        return len(self.rows)

    # -- metadata --

    def _episode_rows(self) -> list[dict]:
        """Rows in episode order; every gap and repeat is named."""
        rows = metadata_v21.read_jsonl(self.files, metadata_v21.EPISODES_FILE)
        total, seen, faults = self.info.total_episodes, {}, []
        for row in rows:
            number = row.get("episode_index")
            if type(number) is not int or number < 0:
                text = f"{metadata_v21.EPISODES_FILE}: episode_index {number!r} is no number"
                raise make_error(FormatError, text, file=metadata_v21.EPISODES_FILE)
            if number in seen:
                faults.append((number, "listed twice in episodes.jsonl"))
            if number >= total:
                faults.append((number, f"meta/info.json says there are {total} episodes"))
            if type(row.get("length")) is not int or row["length"] < 1:
                faults.append((number, f"length {row.get('length')!r} in episodes.jsonl"))
            seen[number] = row
        faults += [(i, "missing in episodes.jsonl") for i in range(total) if i not in seen]
        if faults:
            raise bad_episodes(self.name, faults)
        return [seen[i] for i in range(total)]

    def _tasks(self) -> list[tuple[int, str]]:
        """(task_index, name), sorted by index."""
        numbers, names, file = metadata_v21.load_tasks(self.files)
        sound = all(type(n) is int and n >= 0 for n in numbers) and all(
            type(t) is str for t in names
        )
        if not sound or len(set(numbers)) != len(numbers) or len(set(names)) != len(names):
            text = f"{file}: task_index and task must be a number and a name, each once"
            raise make_error(FormatError, text, file=file)
        return sorted(zip(numbers, names))

    @functools.cached_property
    def stats_rows(self) -> list[dict] | None:
        """Statistics of each episode (v2.1); None for v2.0, which has those of the set only. Raises
        FormatError.
        """
        file = metadata_v21.EPISODE_STATS_FILE
        if self.version == (2, 0) and not self.files.exists(file):
            return None
        found = {}
        for row in metadata_v21.read_jsonl(self.files, file):
            stats = row.get("stats")
            if isinstance(stats, dict) and all(isinstance(v, dict) for v in stats.values()):
                found[row.get("episode_index")] = stats
        missing = [(i, f"no statistics in {file}") for i in range(len(self)) if i not in found]
        if missing:
            raise bad_episodes(self.name, missing)
        return [found[i] for i in range(len(self))]

    def meta_digests(self) -> dict[str, str]:
        """SHA-256 of each metadata file: what makes this dataset another one."""
        there = [rel for rel in _META_FILES if self.files.exists(rel)]
        return {rel: file_digest(self.files.resolve(rel))[1] for rel in there}

    # -- files of an episode --

    def data_file(self, episode: int) -> str:
        """The episode's Parquet file, relative to the root."""
        return self.columns.data_files[self.columns.data_file_id[episode]]

    def video_file(self, episode: int, camera: str) -> str:
        """The episode's video of one camera, relative to the root."""
        return self.columns.video_files[self.columns.video[camera].file_id[episode]]

    def episode_files(self, episode: int) -> list[str]:
        """Data file, then the videos in the order of `cameras`."""
        return [
            self.data_file(episode),
            *(self.video_file(episode, camera) for camera in self.cameras),
        ]

    def input_sizes(self, first: int, stop: int) -> list[list[int]]:
        """Bytes of the files of episodes [first, stop); -1 where one is missing."""
        return [[self._size(rel) for rel in self.episode_files(e)] for e in range(first, stop)]

    def _size(self, rel: str) -> int:
        try:
            return self.locate(rel)[1]
        except ReelpoolError:
            return -1

    def locate(self, rel: str) -> tuple[str, int]:
        """(absolute path, bytes) of a file; its path is judged once. Raises as `resolve`."""
        path = self._paths.get(rel)
        if path is not None:
            try:
                return path, os.stat(path).st_size
            except OSError:
                del self._paths[rel]  # resolve says what is wrong
        path = self._paths[rel] = self.files.resolve(rel)
        return path, os.stat(path).st_size

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """Columns of the data files, as the first episode has them."""
        rel = self.data_file(0)
        try:
            self._first = pq.read_metadata(self.files.resolve(rel))
            found = self._first.schema.to_arrow_schema().remove_metadata()
        except (pa.ArrowException, OSError) as error:
            raise bad_episodes(self.name, [(0, f"{rel}: {error}")]) from error
        wanted = [k for k, f in self.info.features.items() if f["dtype"] != "video"]
        missing = [k for k in wanted if k not in found.names]
        if missing:
            text = f"{rel}: no column {', '.join(missing)}"
            raise make_error(FormatError, text, file=rel, dataset=self.name)
        return found

    def _as_first(self, meta: pq.FileMetaData) -> bool:
        """Whether a table's columns are those of `schema`, in a quick way: no may mean yes."""
        _ = self.schema  # sets _first
        same = meta.schema.equals(self._first.schema)
        return same and _arrow_types(meta) == _arrow_types(self._first)

    def open_table(self, episode: int) -> tuple[pq.ParquetFile, int, str]:
        """(the episode's table, its bytes, their SHA-256); a small file is read once."""
        path, size = self.locate(self.data_file(episode))
        if size > _WHOLE:
            file = pq.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER)
            return file, *file_digest(path)
        with open(path, "rb", buffering=0) as stream:
            data = stream.read()
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)  # it is in memory already
        return file, len(data), hashlib.sha256(data).hexdigest()

    def rows_of(self, file: pq.ParquetFile) -> pa.Table:
        """All rows of an episode's table in the columns of `schema`, pictures embedded."""
        table = file.read(use_threads=False).select(self.schema.names)
        table = table.replace_schema_metadata()
        if table.schema != self.schema:
            table = table.cast(self.schema)
        for key in self.images:
            table = self._embedded(table, key)
        return table

    def is_whole(self, episode: int) -> bool:
        """Whether the episode's table holds all of its pictures itself; no may mean yes, or that
        it cannot be read: `rows_of` says why then. Raises as `resolve`.
        """
        if not self.images:
            return True
        try:
            meta = pq.read_metadata(self.locate(self.data_file(episode))[0])
        except (pa.ArrowException, OSError):
            return False
        groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
        columns = [g.column(i) for g in groups for i in range(g.num_columns)]
        held = {f"{key}.bytes" for key in self.images}
        stored = [c.statistics for c in columns if c.path_in_schema in held]
        known = len(stored) == len(held) * len(groups)
        return known and all(
            s is not None and s.has_null_count and s.null_count == 0 for s in stored
        )

    def _embedded(self, table: pa.Table, key: str) -> pa.Table:
        """Cells that hold a path only get the bytes of the file below the root."""
        kind = table.schema.field(key).type
        names = [kind.field(i).name for i in range(kind.num_fields)]
        if not pa.types.is_struct(kind) or sorted(names) != ["bytes", "path"]:
            return table
        column = table.column(key)
        held = names.index("bytes")
        if not any(chunk.flatten()[held].null_count for chunk in column.chunks):
            return table
        cells = column.to_pylist()
        for cell in cells:
            if cell is not None and cell["bytes"] is None and cell["path"]:
                rel = check_path(cell["path"], key)
                cell |= {"bytes": self.files.read_bytes(rel), "path": os.path.basename(rel)}
        index = table.schema.get_field_index(key)
        return table.set_column(index, table.schema.field(key), pa.array(cells, kind))

    # -- judging --

    def scan(self, episode: int, tolerance_s: float) -> dict:
        """What the plan needs of one episode, or its faults: {"data", "videos"} or {"faults"}.

        Every row must have its picture within `tolerance_s` seconds: else rate or count is wrong.
        """
        faults: list[str] = []
        data, stamps = self._scan_data(episode, faults)
        videos = [self._scan_video(episode, c, stamps, tolerance_s, faults) for c in self.cameras]
        return {"faults": faults} if faults else {"data": data, "videos": videos}

    def _scan_data(self, episode: int, faults: list[str]) -> tuple[list, np.ndarray | None]:
        """[bytes, SHA-256, size in memory] and the rows' timestamps."""
        rel = self.data_file(episode)
        try:
            file, size, digest = self.open_table(episode)
            meta = file.metadata
            length = int(self.columns.length[episode])
            if meta.num_rows != length:
                raise _Fault(f"{meta.num_rows} rows, episodes.jsonl says {length}")
            if not self._as_first(meta):
                found = file.schema_arrow.remove_metadata()
                if sorted(found.names) != sorted(self.schema.names):
                    odd = sorted(set(found.names) ^ set(self.schema.names))
                    raise _Fault(f"other columns than episode 0: {', '.join(odd)}")
                if found != self.schema:
                    self.rows_of(file)  # other types: can they be cast?
            groups = (meta.row_group(i) for i in range(meta.num_row_groups))
            # What LeRobot counts when it fills files.
            memory = sum(
                g.column(i).total_uncompressed_size for g in groups for i in range(g.num_columns)
            )
            if memory <= _WHOLE:
                stamps = self._check_numbers(file.read(use_threads=False), episode)
            else:
                names = [n for n in _NUMBERS if n in self.schema.names]
                stamps = self._check_numbers(file.read(columns=names, use_threads=False), episode)
                for _ in file.iter_batches(1 + length * _WHOLE // memory, use_threads=False):
                    pass  # all of it can be decoded: it may be copied as it is
        except (_Fault, ReelpoolError, pa.ArrowException, OSError) as error:
            faults.append(self._fault(rel, error))
            return [], None
        return [size, digest, memory], stamps

    def _check_numbers(self, table: pa.Table, episode: int) -> np.ndarray | None:
        names = [n for n in _NUMBERS if n in table.column_names]
        length, first = int(self.columns.length[episode]), int(self.columns.from_index[episode])
        count = np.arange(length)
        wanted = {
            "frame_index": count,
            "episode_index": count * 0 + episode,
            "index": first + count,
        }
        found = {n: numbers(table.column(n)) for n in names}
        for name, values in wanted.items():
            if name not in found:
                continue
            wrong = np.flatnonzero(found[name] != values)
            if len(wrong):
                row = int(wrong[0])
                raise _Fault(f"{name} of row {row} is {found[name][row]}, not {values[row]}")
        return found.get("timestamp")

    def _scan_video(
        self,
        episode: int,
        camera: str,
        stamps: np.ndarray | None,
        tolerance_s: float,
        faults: list[str],
    ) -> list:
        """As `video_record`; empty with a fault."""
        rel = self.video_file(episode, camera)
        try:
            found, record = self.video_record(episode, camera)
            shape = self.info.features[camera].get("shape") or ()
            if None not in shape and not {found["width"], found["height"]} <= set(shape):
                size_text = f"{found['width']} x {found['height']}"
                raise _Fault(f"pictures of {size_text}, meta/info.json says {list(shape)}")
            if stamps is not None:
                _check_times(np.frombuffer(found["times"], np.float64), stamps, tolerance_s)
        except (_Fault, ReelpoolError, OSError, MemoryError) as error:
            faults.append(self._fault(rel, error))
            return []
        return record

    def video_record(self, episode: int, camera: str) -> tuple[dict, list]:
        """What the core says of an episode's video, and what the plan needs of it: [bytes,
        `video_digest`, signature, pictures]. Raises as `resolve`, FormatError, OSError.
        """
        core: Any = importlib.import_module("reelpool._core")
        path, size = self.locate(self.video_file(episode, camera))
        found = core.video_info(path, True)
        digest = video_digest(path, found["header"])
        return found, [size, digest, found["signature"].hex(), found["samples"]]

    def _fault(self, rel: str, error: BaseException) -> str:
        """The file and what is wrong with it in one line, its name once."""
        text = (str(error).splitlines() or [""])[0] or type(error).__name__
        for more in (f", {self._paths.get(rel)}", f" below {self.files.path}"):
            text = text.replace(more, "")
        return text if text.startswith(rel) else f"{rel}: {text}"


class _Fault(Exception):
    """Something wrong with one file of one episode."""


def _arrow_types(meta: pq.FileMetaData) -> bytes | None:
    """What tells columns of Arrow apart that Parquet stores alike."""
    return (meta.metadata or {}).get(b"ARROW:schema")


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    """One number per row; lists of one are accepted."""
    if column.null_count:
        raise _Fault("a null among its numbers")
    if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
        flat = [chunk.flatten() for chunk in column.chunks]
        column = pa.chunked_array(flat, column.type.value_type)
    return flat_numbers(column)


def _check_times(times: np.ndarray, stamps: np.ndarray, tolerance_s: float) -> None:
    if not len(times):
        raise _Fault("no pictures")
    right = np.clip(np.searchsorted(times, stamps), 1, max(1, len(times) - 1))
    after, before = times[np.minimum(right, len(times) - 1)], times[right - 1]
    near = np.minimum(np.abs(after - stamps), np.abs(before - stamps))
    wrong = np.flatnonzero(~(near <= tolerance_s))
    if len(wrong):
        frame = int(wrong[0])
        what = f"frame {frame} at {stamps[frame]:.6f} s has no picture"
        why = f"nearest {near[frame]:.6f} s off; {len(times)} pictures for {len(stamps)} rows"
        raise _Fault(f"{what} ({why})")


def check_sizes(source: Source, inputs: list[list]) -> list[str]:
    """Absolute paths of input files whose sizes must be as planned. Raises StorageError."""
    paths = []
    for rel, planned, _ in inputs:
        path, size = source.locate(rel)
        if size != planned:
            raise changed(rel)
        paths.append(path)
    return paths
