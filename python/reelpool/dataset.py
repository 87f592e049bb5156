"""`LeRobotDataset`: LeRobot's map-style dataset on the C engine. v3.0, v2.1 and v2.0 layouts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import env
from .collation import Item, register_default_collate
from .distributed import default_memory_budget
from .engine import (
    FRAME_CACHE_BYTES,
    INDEX_BYTES,
    TIMEOUT_S,
    BatchData,
    EngineHandle,
    Layout,
    Options,
    torch_wanted,
)
from .errors import ReelpoolError, name_dataset
from .hf_view import HfView, Reader
from .metadata import LeRobotDatasetMetadata
from .selection import delta_rows, select_cameras, select_episodes, target_sizes
from .tables import Table, load_table
from .writing import WriteMode

_BACKENDS = (None, "torchcodec", "pyav", "video_reader")


class LeRobotDataset(WriteMode):
    """Samples of a LeRobot dataset by index: LeRobot 0.6.1's items, decoded by the C engine.

    `ds[i]` is a dict: video cameras first, then the other features, both in info.json's order,
    `K_is_pad` per key of `delta_timestamps`, `task` (str). RGB pictures are (3, H, W) float32 in
    [0, 1] (uint8 with `return_uint8`), windows (T, 3, H, W); depth is float32 (1, H, W) in
    `depth_output_unit`; floats are float32, integers int64. Values are torch tensors if torch is
    installed, else NumPy arrays.

    Arguments are those of LeRobot 0.6.1, and: `cameras` (keys to deliver), `resize` ((height,
    width), or a dict by key, for RGB video), `on_corrupt` ("raise"), `num_threads` (None: the CPUs
    granted; 0: the calling thread works; in a DataLoader worker None means the worker's own
    thread), `memory_budget` (bytes, or text such as "2GiB"; shared equally by DataLoader workers:
    batch memory beyond it is given back when it is free).

    Raises: ValueError or TypeError for an argument that cannot be honoured; NotFoundError,
    FormatError, CompatibilityError and their kin of `reelpool.errors` for the dataset.
    """

    def __init__(
        self,
        repo_id: str,
        root: str | os.PathLike[str] | None = None,
        episodes: list[int] | None = None,
        episode_filter: Callable[[dict], bool] | None = None,
        image_transforms: Callable | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        download_videos: bool = True,
        video_backend: str | None = None,
        return_uint8: bool = False,
        depth_output_unit: str = "mm",
        batch_encoding_size: int = 1,
        rgb_encoder: Any = None,
        depth_encoder: Any = None,
        encoder_threads: int | None = None,
        streaming_encoding: bool = False,
        encoder_queue_maxsize: int = 30,
        *,
        token: str | bool | None = None,
        cameras: Sequence[str] | None = None,
        resize: tuple[int, int] | Mapping[str, tuple[int, int]] | None = None,
        on_corrupt: str = "raise",
        num_threads: int | None = None,
        memory_budget: int | str | None = None,
        storage_options: dict | None = None,
    ) -> None:
        if video_backend not in _BACKENDS:
            raise ValueError(
                f"video_backend={video_backend!r}: use None, 'torchcodec', 'pyav' or "
                "'video_reader'; each means reelpool's decoder with torchcodec's pixels"
            )
        if depth_output_unit not in ("m", "mm"):
            raise ValueError(f"depth_output_unit must be 'm' or 'mm', not {depth_output_unit!r}")
        if on_corrupt != "raise":
            raise ValueError(f"on_corrupt={on_corrupt!r}: this version knows 'raise' only")
        if not (isinstance(tolerance_s, (int, float)) and tolerance_s >= 0):
            raise ValueError(f"tolerance_s must be a number of seconds >= 0, not {tolerance_s!r}")
        if num_threads is not None and num_threads < 0:
            raise ValueError(f"num_threads must be >= 0, not {num_threads}")
        self._check_write_arguments(batch_encoding_size, streaming_encoding)
        self.set_image_transforms(image_transforms)
        self.meta = LeRobotDatasetMetadata(
            repo_id, root, revision, force_cache_sync, token=token, storage_options=storage_options
        )
        self.repo_id, self.root, self.revision = repo_id, self.meta.root, self.meta.revision
        self.delta_timestamps, self.tolerance_s = delta_timestamps, float(tolerance_s)
        self.episodes = select_episodes(self.meta, episodes, episode_filter)
        videos, skipped = select_cameras(self.meta, cameras)
        delivered = [*videos, *(k for k in self.meta.image_keys if k not in skipped)]
        self._options = Options(
            cameras=videos,
            return_uint8=bool(return_uint8),
            depth_unit=depth_output_unit,
            resize=target_sizes(self.meta, resize, videos),
            tolerance_s=float(tolerance_s),
            deltas=delta_rows(self.meta, delta_timestamps, tolerance_s, delivered),
            skipped=skipped,
        )
        self._num_threads = num_threads
        self._memory_budget = None if memory_budget is None else env.parse_bytes(memory_budget)
        self.meta.rescale_depth_stats(depth_output_unit)
        self._reset()
        _ = self._table  # a broken table is an error of the constructor

    # -- state that does not travel --

    def _reset(self) -> None:
        self._table_cache: Table | None = None
        self._layout_cache: Layout | None = None
        self._handle: EngineHandle | None = None
        self._relative: dict[int, int] | None = None
        self._reader: Reader | None = None

    def __getstate__(self) -> dict[str, Any]:
        volatile = ("_table_cache", "_layout_cache", "_handle", "_relative", "_reader")
        return {k: v for k, v in self.__dict__.items() if k not in volatile}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def _table(self) -> Table:
        if self._table_cache is None:
            self._require_readable()
            chosen = None if self.episodes is None else sorted(self.episodes)
            self._table_cache = load_table(self.meta, chosen)
        return self._table_cache

    @property
    def _layout(self) -> Layout:
        if self._layout_cache is None:
            self._layout_cache = Layout(self.meta, self._table, self._options)
        return self._layout_cache

    def _engine(self) -> Any:
        handle = self._handle
        if handle is None or handle.pid != os.getpid():
            workers = self._workers()
            threads = self._num_threads
            if threads is None:
                threads = 0 if workers else env.granted_cpus()
            budget = self._memory_budget
            if budget is None:
                budget = default_memory_budget()
            keep = max(0, budget // max(1, workers) - FRAME_CACHE_BYTES - INDEX_BYTES)
            self._handle = handle = EngineHandle(
                self._layout, num_threads=threads, shared=workers > 0, keep_bytes=keep
            )
        return handle.engine

    @staticmethod
    def _workers() -> int:
        """Workers of the DataLoader that this process works for; 0 in any other process."""
        if not torch_wanted(None):
            return 0
        from .torch_bridge import workers

        return workers()

    # -- reading --

    def __len__(self) -> int:
        return self.num_frames

    def _row(self, index: Any) -> int:
        if isinstance(index, (bool, np.bool_)) or not hasattr(index, "__index__"):
            raise TypeError(f"an index must be an integer or a slice, not {index!r}")
        self._require_readable()
        row, count = index.__index__(), len(self)
        if not -count <= row < count:
            raise IndexError(f"index {row} is out of range for {count} frames of {self.repo_id}")
        return row + count if row < 0 else row

    def _get(self, rows: Sequence[int]) -> BatchData:
        use_torch = torch_wanted(None)
        try:
            batch = self._engine().get(np.array(rows, np.int64), TIMEOUT_S)
            return BatchData(self._layout, batch, use_torch, use_torch and self._workers() > 0)
        except ReelpoolError as error:
            name_dataset(error, self.repo_id, self.root)
            raise

    def __getitem__(self, index: Any) -> Any:
        """One item, or for a slice the list of its items. IndexError outside the dataset."""
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        data = self._get([self._row(index)])
        item = Item({k: v[0] if isinstance(v, list) else v[0, ...] for k, v in
                     data.tensors().items()})  # fmt: skip
        return self._transformed(item)

    def __getitems__(self, indices: Sequence[Any]) -> list[Item]:
        """Items of several indices in one call of the engine: what torch's DataLoader asks for."""
        rows = [self._row(index) for index in indices]
        if not rows:
            return []
        data = self._get(rows)
        values = {k: _rows_of(v) for k, v in data.tensors().items()}
        items = []
        if torch_wanted(None):
            register_default_collate()
        for position in range(len(rows)):
            item = Item({k: v[position] for k, v in values.items()})
            if self.image_transforms is None:
                item._batch, item._pos = data, position
            items.append(self._transformed(item))
        return items

    def _transformed(self, item: Item) -> Item:
        if self.image_transforms is not None:
            for key in self.meta.camera_keys:
                if key in item and key not in self.meta.depth_keys:
                    item[key] = self.image_transforms(item[key])
        return item

    def get_raw_item(self, idx: Any) -> dict[str, Any]:
        """The stored row `idx`: no video, no windows, no `task`."""
        return self.hf_dataset[self._row(idx)]

    def select_columns(self, column_names: str | list[str]) -> Any:
        """`hf_dataset.select_columns(column_names)`."""
        return self.hf_dataset.select_columns(column_names)

    def stats(self) -> dict[str, Any]:
        """Counters of this process's engine (empty before its first use); see docs/design.md."""
        if self._handle is None or self._handle.pid != os.getpid():
            return {}
        stats = self._handle.engine.stats()
        stats["reuse"] = stats["delivered"] / max(1, stats["decoded"])
        return stats

    def set_image_transforms(self, image_transforms: Callable | None) -> None:
        """Replace the transform of RGB pictures; TypeError if it is not callable."""
        if image_transforms is not None and not callable(image_transforms):
            raise TypeError("image_transforms must be callable or None.")
        self.image_transforms = image_transforms

    def clear_image_transforms(self) -> None:
        """Remove the transform."""
        self.image_transforms = None

    # -- facts --

    @property
    def fps(self) -> int:
        """Frames per second of the dataset."""
        return self.meta.fps

    @property
    def features(self) -> dict[str, dict]:
        """All features by key, as in info.json."""
        return self.meta.features

    @property
    def num_frames(self) -> int:
        """Frames of the selected episodes."""
        return self.meta.total_frames if self.episodes is None else self._table.num_rows

    @property
    def num_episodes(self) -> int:
        """Selected episodes."""
        return self.meta.total_episodes if self.episodes is None else len(self.episodes)

    @property
    def depth_output_unit(self) -> str:
        """Unit of depth values, "m" or "mm"."""
        return self._options.depth_unit

    @property
    def hf_dataset(self) -> Any:
        """The stored rows as a view with the commonly used part of `datasets.Dataset`."""
        return self._ensure_reader().hf_dataset

    @property
    def absolute_to_relative_idx(self) -> dict[int, int] | None:
        """`index` -> position in this selection, if `episodes` is set; else None."""
        if self.episodes is None:
            return None
        if self._relative is None:
            index = self._table.index.tolist()
            self._relative = dict(zip(index, range(len(index))))
        return self._relative

    @property
    def reader(self) -> Reader:
        """LeRobot's private reader, the part that policies use."""
        return self._ensure_reader()

    def _ensure_reader(self) -> Reader:
        if self._reader is None:
            self._reader = Reader(self, HfView(self))
        return self._reader

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({{\n"
            f"    Repository ID: '{self.repo_id}',\n"
            f"    Number of selected episodes: '{self.num_episodes}',\n"
            f"    Number of selected samples: '{self.num_frames}',\n"
            f"    Features: '{list(self.features)}',\n"
            "})"
        )

    def close(self) -> None:
        """Stop this process's threads and free their memory. Reading starts them again."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None


def _rows_of(value: Any) -> Sequence[Any]:
    """The rows of a stacked value; rows of a 1-d array stay 0-d arrays."""
    if isinstance(value, list):
        return value
    if isinstance(value, np.ndarray):
        return [value[i, ...] for i in range(len(value))]
    return value.unbind(0)
