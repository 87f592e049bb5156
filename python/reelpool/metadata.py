"""`LeRobotDatasetMetadata`: what `meta/` says about a dataset, in the formats v3.0, v2.1, v2.0."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from . import metadata_v21
from .errors import FormatError, NotFoundError, ReelpoolError, make_error, name_dataset
from .hub import COMMIT
from .metadata_episodes import (
    EPISODES_DIR,
    EpisodeColumns,
    Episodes,
    VideoColumns,
    check_lengths,
    load_episode_table,
    number_column,
    unique_files,
)
from .metadata_info import load_info, parse_json, parse_version
from .metadata_tasks import TASKS_FILE, TaskTable, load_tasks, task_names
from .remote_root_hub import HubRoot
from .roots import INFO_FILE, LocalRoot, PathTemplate, resolve_root
from .writing import MetaWriteMode

logger = logging.getLogger("reelpool")

STATS_FILE = "meta/stats.json"
LANGUAGE_COLUMNS = ("language_persistent", "language_events")
DEFAULT_TOOLS: list[dict] = [
    {
        "type": "function",
        "function": {
            "name": "say",
            "description": "Speak a short utterance to the user via the TTS executor.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "The verbatim text to speak."}
                },
                "required": ["text"],
            },
        },
    }
]


_UNREAD: Any = object()  # statistics not read yet (None = there are none)
_LOADED = frozenset(
    ["_files", "info", "_format", "_episodes", "_rows", "_tasks", "_task_names", "_columns_cache"]
)


def _arrays(value: Any) -> Any:
    """Statistics from JSON: nested dicts of arrays with at least one dimension."""
    if isinstance(value, dict):
        return {key: _arrays(v) for key, v in value.items()}
    try:
        array = np.atleast_1d(np.array(value))
    except ValueError:  # rows of different length
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        what = f"{STATS_FILE} holds something that is no array of numbers"
        raise make_error(FormatError, what, file=STATS_FILE)
    return array


class LeRobotDatasetMetadata(MetaWriteMode):
    """Metadata of a dataset, read from a local directory or copy, else downloaded from the Hub.

    Construction reads `info.json`, the tasks and the episodes' table; statistics follow at their
    first use. Raises NotFoundError, FormatError (naming file and field), CompatibilityError,
    UnsupportedMediaError for a remote root that is not the Hub's, and for the Hub AuthError,
    OfflineError, StorageError, RemoteError. A pickle carries the arguments and the statistics if
    they were used; the rest is read again where it is unpickled.
    """

    def __init__(
        self,
        repo_id: str,
        root: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        force_cache_sync: bool = False,
        metadata_buffer_size: int = 10,
        *,
        repo_type: str = "dataset",
        token: str | bool | None = None,
        storage_options: dict | None = None,
    ) -> None:
        found = resolve_root(
            repo_id, root, revision, repo_type, token=token, storage_options=storage_options,
            force=force_cache_sync,
        )  # fmt: skip
        self.repo_id = found.repo_id
        self.repo_type = repo_type
        self.root = found.path
        self.revision = found.revision
        self.latest_episode: dict | None = None
        self._hub = found.hub  # stays in this process: it knows the token
        self._remote = found.remote
        if self._hub is not None and self.revision is not None and COMMIT.fullmatch(self.revision):
            self._remote = HubRoot(self._hub, self.revision, Path(found.path))
        self._stats: Any = _UNREAD
        self._depth_unit: str | None = None
        try:
            try:
                self._load()
            except NotFoundError:
                if self._hub is None or self.revision is None:
                    raise
                self._move(self._hub.metadata(self.revision)[0])  # the copy lacks some of it
                self._load()
        except ReelpoolError as error:
            name_dataset(error, self.repo_id, self.root)
            raise

    # -- reading --

    def _load(self) -> None:
        self._files = self._remote or LocalRoot(self.root)
        self.info = load_info(self._files)
        self._format = parse_version(self.info.codebase_version, self.repo_id)
        self._episodes: Episodes | None = None
        self._rows: list[dict] = []
        self._tasks: Any = None
        self._task_names: dict[int, str] = {}
        self._columns_cache: EpisodeColumns | None = None
        if self.is_v3:
            self._files.foresee([TASKS_FILE], EPISODES_DIR)
        self._load_tasks()
        total = self.info.total_episodes
        if total == 0:
            return
        if self.is_v3:
            self._episodes = Episodes(load_episode_table(self._files, total))
        else:
            self._rows = metadata_v21.load_episode_rows(self._files, total)
        frames, told = int(self._columns.length.sum()), self.info.total_frames
        if frames != told:
            what = f"{INFO_FILE}: total_frames is {told}, the episodes have {frames}"
            raise make_error(FormatError, what, file=INFO_FILE, dataset=self.repo_id)

    def _move(self, root: Path) -> None:
        """Go on with another copy of the same commit."""
        self.root, self._files = root, LocalRoot(root)
        if isinstance(self._remote, HubRoot):
            self._remote = self._files = self._remote.move(root)

    @property
    def is_v3(self) -> bool:
        """True for the v3 layout, False for v2.0 and v2.1."""
        return self._format[0] >= 3

    def _load_tasks(self) -> None:
        if self.info.total_tasks == 0:
            return
        load = load_tasks if self.is_v3 else metadata_v21.load_tasks
        self._task_names = task_names(*load(self._files))

    def ensure_readable(self) -> None:
        """Read the metadata if the episodes are not in memory yet."""
        if self.info.total_episodes and self._episodes is None and not self._rows:
            self._load()

    def __getstate__(self) -> dict:
        keep = ("repo_id", "repo_type", "root", "revision", "latest_episode")
        state = {name: self.__dict__[name] for name in (*keep, "_depth_unit", "_remote")}
        if not self.root.is_absolute() and "_files" in self.__dict__:
            state["root"] = Path(self._files.real)  # who unpickles it may stand elsewhere
        if self._stats is not _UNREAD:
            state["_stats"] = self._stats
        return state

    def __setstate__(self, state: dict) -> None:
        self.__dict__.update({"_stats": _UNREAD, "_hub": None, **state})

    def __getattr__(self, name: str) -> Any:
        # Only for what an unpickled object has not read yet.
        if name in _LOADED and "root" in self.__dict__:
            self._load()
            return self.__dict__[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # -- episodes, tasks, statistics --

    @property
    def _columns(self) -> EpisodeColumns:
        """Flat per-episode columns; see `EpisodeColumns`."""
        if self._columns_cache is None:
            if self.is_v3:
                columns = self._columns_v3()
                check_lengths(columns, EPISODES_DIR)
            else:
                columns = metadata_v21.episode_columns(self._rows, self.info, self.video_keys)
                check_lengths(columns, metadata_v21.EPISODES_FILE)
            self._columns_cache = columns
        return self._columns_cache

    def _columns_v3(self) -> EpisodeColumns:
        if self._episodes is None:
            nothing = np.zeros(0, np.int64)
            return EpisodeColumns(*[nothing] * 5, nothing.astype(np.int32), [], {}, [])
        table = self._episodes._table
        fields = ("chunk_index", "file_index")
        template = PathTemplate(self.info.data_path, "data_path", fields)
        chunk, file = (number_column(table, f"data/{name}") for name in fields)
        chunks, files, data_id = unique_files(chunk, file)
        numbers = {"chunk_index": chunks.tolist(), "file_index": files.tolist()}
        data_files = template.format_many(**numbers)
        video: dict[str, VideoColumns] = {}
        video_files: list[str] = []
        for key in self.video_keys:
            template = PathTemplate(self.info.video_path, "video_path", fields, video_key=key)
            columns = [number_column(table, f"videos/{key}/{name}") for name in fields]
            chunks, files, ids = unique_files(*columns)
            start = number_column(table, f"videos/{key}/from_timestamp", np.float64)
            stop = start
            if f"videos/{key}/to_timestamp" in table.column_names:
                stop = number_column(table, f"videos/{key}/to_timestamp", np.float64)
            video[key] = VideoColumns(ids + np.int32(len(video_files)), start, stop)
            numbers = {"chunk_index": chunks.tolist(), "file_index": files.tolist()}
            video_files += template.format_many(**numbers)
        return EpisodeColumns(
            length=number_column(table, "length"),
            from_index=number_column(table, "dataset_from_index"),
            to_index=number_column(table, "dataset_to_index"),
            data_chunk=chunk,
            data_file=file,
            data_file_id=data_id,
            data_files=data_files,
            video=video,
            video_files=video_files,
        )

    @property
    def episodes(self) -> Episodes | None:
        """The metadata rows of all episodes; None for a dataset without any."""
        if self._episodes is None and self._rows:
            self._episodes = Episodes(metadata_v21.episode_table(self._rows, self._columns))
        return self._episodes

    @property
    def tasks(self) -> Any:
        """Tasks by name, sorted by task_index: a pandas DataFrame if pandas is installed, else a
        TaskTable.

        None if the dataset has no task.
        """
        if self._tasks is None and self._task_names:
            numbers, names = list(self._task_names), list(self._task_names.values())
            try:
                import pandas as pd
            except ImportError:
                self._tasks = TaskTable(numbers, names)
            else:
                self._tasks = pd.DataFrame(
                    {"task_index": numbers}, index=pd.Index(names, name="task")
                )
        return self._tasks

    @property
    def stats(self) -> dict[str, dict[str, np.ndarray]] | None:
        """Statistics per feature (min, max, mean, std, count, quantiles), arrays of at least one
        dimension.

        Mutable. v2.1: pooled over the episodes. None if the dataset has none.
        """
        if self._stats is _UNREAD:
            self._stats = self._read_stats()
            if self._depth_unit is not None and self._stats is not None:
                self._rescale(self._depth_unit)
        return self._stats

    @stats.setter
    def stats(self, value: dict | None) -> None:
        self._stats = value

    def _read_stats(self) -> dict | None:
        if self._format == (2, 1) and self._files.exists(metadata_v21.EPISODE_STATS_FILE):
            return metadata_v21.pooled_stats(self._files)
        if not self._files.exists(STATS_FILE):
            return None
        raw = parse_json(self._files.read_bytes(STATS_FILE), STATS_FILE)
        if not isinstance(raw, dict):
            raise make_error(FormatError, f"{STATS_FILE} is not an object", file=STATS_FILE)
        return _arrays(raw)

    def rescale_depth_stats(self, output_unit: str) -> None:
        """Convert the depth features' statistics from their recorded unit to `output_unit` ("m" or
        "mm").

        A feature without a recorded `depth_unit` stays as it is, with one warning.
        """
        if output_unit not in ("m", "mm"):
            raise ValueError(f"depth_output_unit must be 'm' or 'mm', not {output_unit!r}")
        missing = [key for key in self.depth_keys if self._stored_depth_unit(key) is None]
        if missing:
            logger.warning(
                "%s: no depth_unit in info.json for %s; values and statistics stay "
                "as recorded, not in %s",
                self.repo_id,
                ", ".join(missing),
                output_unit,
            )
        if not self.depth_keys:
            return
        if self._stats is _UNREAD:
            self._depth_unit = output_unit  # applied when they are read
        elif self._stats is not None:
            self._rescale(output_unit)

    def _stored_depth_unit(self, key: str) -> str | None:
        return (self.features[key].get("info") or {}).get("depth_unit")

    def _rescale(self, output_unit: str) -> None:
        for key in self.depth_keys:
            stored = self._stored_depth_unit(key)
            if stored is None or stored == output_unit or key not in self._stats:
                continue
            factor = 1000.0 if stored == "m" else 1.0 / 1000.0
            entry = self._stats[key]
            self._stats[key] = {k: v if k == "count" else v * factor for k, v in entry.items()}

    def get_task_index(self, task: str) -> int | None:
        """The index of the task with this name, or None."""
        return next((i for i, name in self._task_names.items() if name == task), None)

    def filter_episodes(
        self, predicate: Callable[[dict], bool], candidates: list[int] | None = None
    ) -> list[int]:
        """Sorted indices of the episodes (among `candidates`) whose metadata row satisfies
        `predicate`.
        """
        if not callable(predicate):
            raise TypeError(f"episode_filter must be callable, not {type(predicate).__name__}")
        episodes = self.episodes
        if episodes is None:
            return []
        if candidates is not None:
            rows = sorted({int(i) for i in candidates if 0 <= i < len(episodes)})
            episodes = Episodes(episodes._take(rows))
        return [row["episode_index"] for row in episodes if predicate(row)]

    def _episode(self, ep_index: int) -> int:
        count = len(self._columns.length)
        if not -count <= ep_index < count:
            raise IndexError(f"episode {ep_index} is out of range: there are {count}")
        return ep_index % count

    def get_data_file_path(self, ep_index: int) -> Path:
        """The episode's Parquet file, relative to the root. IndexError if there is none."""
        columns = self._columns
        return Path(columns.data_files[columns.data_file_id[self._episode(ep_index)]])

    def get_video_file_path(self, ep_index: int, vid_key: str) -> Path:
        """The episode's video file of one camera, relative to the root. IndexError, KeyError."""
        columns = self._columns
        if vid_key not in columns.video:
            raise KeyError(
                f"{vid_key!r} is no video feature; there are: {', '.join(self.video_keys)}"
            )
        return Path(columns.video_files[columns.video[vid_key].file_id[self._episode(ep_index)]])

    def get_chunk_settings(self) -> dict[str, int]:
        """chunks_size, data_files_size_in_mb and video_files_size_in_mb."""
        names = ("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb")
        return {name: getattr(self.info, name) for name in names}

    # -- info.json --

    @property
    def url_root(self) -> str:
        """The Hub's URL of this dataset, or the root's own."""
        if self._remote is not None and not isinstance(self._remote, HubRoot):
            return self._remote.url
        return f"hf://{self.repo_type}s/{self.repo_id}"

    @property
    def _version(self) -> Any:
        try:
            from packaging.version import Version
        except ImportError:
            return self._format
        return Version(self.info.codebase_version)

    @property
    def data_path(self) -> str:
        """Template of the Parquet files, as stored."""
        return self.info.data_path

    @property
    def video_path(self) -> str | None:
        """Template of the video files, as stored."""
        return self.info.video_path

    @property
    def robot_type(self) -> str | None:
        return self.info.robot_type

    @property
    def fps(self) -> int:
        """Frames per second."""
        return self.info.fps

    @property
    def features(self) -> dict[str, dict]:
        """Declared features: {name: {dtype, shape, names, ...}}."""
        return self.info.features

    def _keys(self, *dtypes: str) -> list[str]:
        return [key for key, feature in self.features.items() if feature["dtype"] in dtypes]

    @property
    def image_keys(self) -> list[str]:
        """Features stored as images in the Parquet files."""
        return self._keys("image")

    @property
    def video_keys(self) -> list[str]:
        """Features stored as videos."""
        return self._keys("video")

    @property
    def camera_keys(self) -> list[str]:
        """Features stored as videos or images."""
        return self._keys("video", "image")

    @property
    def depth_keys(self) -> list[str]:
        """Features marked as depth maps."""

        def is_depth(feature: dict) -> bool:
            info, old = feature.get("info") or {}, feature.get("video_info") or {}
            name = "video.is_depth_map"
            return bool(info.get("is_depth_map") or info.get(name) or old.get(name))

        return [key for key, feature in self.features.items() if is_depth(feature)]

    @property
    def has_language_columns(self) -> bool:
        """True if a language column is declared."""
        return any(name in self.features for name in LANGUAGE_COLUMNS)

    @property
    def tools(self) -> list[dict]:
        """Tool schemas of `info.json`, or the default one; a copy."""
        return copy.deepcopy(self.info.tools or DEFAULT_TOOLS)

    @tools.setter
    def tools(self, value: list[dict] | None) -> None:
        self._written(lambda writer: setattr(writer, "tools", value))

    @property
    def names(self) -> dict[str, Any]:
        """Names of the dimensions of each feature."""
        return {key: feature.get("names") for key, feature in self.features.items()}

    @property
    def shapes(self) -> dict[str, tuple]:
        """Declared shapes."""
        return {key: tuple(feature.get("shape") or ()) for key, feature in self.features.items()}

    @property
    def total_episodes(self) -> int:
        return self.info.total_episodes

    @property
    def total_frames(self) -> int:
        return self.info.total_frames

    @property
    def total_tasks(self) -> int:
        return self.info.total_tasks

    @property
    def chunks_size(self) -> int:
        """Files per chunk folder at most."""
        return self.info.chunks_size

    @property
    def data_files_size_in_mb(self) -> int:
        return self.info.data_files_size_in_mb

    @property
    def video_files_size_in_mb(self) -> int:
        return self.info.video_files_size_in_mb

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.repo_id!r}, {self.total_episodes} episodes, "
            f"{self.total_frames} frames, features={list(self.features)})"
        )
