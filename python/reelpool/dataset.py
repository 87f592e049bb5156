"""`LeRobotDataset`: LeRobot's map-style dataset on the C engine. v3.0, v2.1 and v2.0 layouts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import env
from .collation import Item
from .dataset_base import DatasetBase
from .engine import BatchData, EngineHandle
from .errors import ReelpoolError
from .hf_view import Reader
from .writing import WriteMode

_BACKENDS = (None, "torchcodec", "pyav", "video_reader")


class LeRobotDataset(WriteMode, DatasetBase):
    """Samples of a LeRobot dataset by index: LeRobot 0.6.1's items, decoded by the C engine.

    `ds[i]` is a dict: video cameras first, then the other features, both in info.json's order,
    `K_is_pad` per key of `delta_timestamps`, `task` (str). RGB pictures are (3, H, W) float32 in
    [0, 1] (uint8 with `return_uint8`), windows (T, 3, H, W); depth is float32 (1, H, W) in
    `depth_output_unit`; floats are float32, integers int64. Values are torch tensors if torch is
    installed, else NumPy arrays.

    Arguments are those of LeRobot 0.6.1, and: `cameras` (keys to deliver), `resize` ((height,
    width), or a dict by key, for RGB video), `on_corrupt` ("raise", or "substitute": a good
    frame takes the place of one that cannot be decoded, TooManyBadSamplesError above
    `max_bad_fraction` of them), `num_threads` (None: the CPUs
    granted; 0: the calling thread works; in a DataLoader worker None means the worker's own
    thread), `memory_budget` (bytes, or text such as "2GiB"; shared equally by DataLoader workers:
    batch memory beyond it is given back when it is free), `video_decode_device` ("cuda" or
    "cuda:N": pictures of video cameras are tensors in that GPU's memory; docs/gpu.md).

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
        max_bad_fraction: float = 1e-3,
        num_threads: int | None = None,
        memory_budget: int | str | None = None,
        video_decode_device: str = "cpu",
        storage_options: dict | None = None,
    ) -> None:
        if video_backend not in _BACKENDS:
            raise ValueError(
                f"video_backend={video_backend!r}: use None, 'torchcodec', 'pyav' or "
                "'video_reader'; each means reelpool's decoder with torchcodec's pixels"
            )
        self._check_write_arguments(batch_encoding_size, streaming_encoding)
        self._open(
            repo_id, root, revision, force_cache_sync, download_videos=bool(download_videos),
            episodes=episodes, episode_filter=episode_filter, image_transforms=image_transforms,
            delta_timestamps=delta_timestamps, tolerance_s=tolerance_s, return_uint8=return_uint8,
            depth_output_unit=depth_output_unit, token=token, cameras=cameras, resize=resize,
            on_corrupt=on_corrupt, max_bad_fraction=max_bad_fraction, num_threads=num_threads,
            memory_budget=memory_budget, video_decode_device=video_decode_device,
            storage_options=storage_options,
        )  # fmt: skip

    # -- state that does not travel --

    def _reset(self) -> None:
        super()._reset()
        self._relative: dict[int, int] | None = None
        self._reader: Reader | None = None

    def _volatile(self) -> tuple[str, ...]:
        return (*super()._volatile(), "_relative", "_reader")

    def _new_handle(self, workers: int) -> EngineHandle:
        threads = self._num_threads
        if threads is None:
            threads = 0 if workers else env.granted_cpus()
        free = self._free_bytes()
        if self._on_gpu:  # a quarter each: blocks there, and planes both pinned and there
            free //= 4
        return self._make_handle(workers, free, free, num_threads=threads)

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
        try:
            batch = self._engine().get(np.array(rows, np.int64))
            return self._batch_data(batch, len(self), distinct=True)
        except ReelpoolError as error:
            self._named(error)
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
        items = self._items(self._get(rows))
        return [self._transformed(item) for item in items]

    def get_raw_item(self, idx: Any) -> dict[str, Any]:
        """The stored row `idx`: no video, no windows, no `task`."""
        return self.hf_dataset[self._row(idx)]

    def select_columns(self, column_names: str | list[str]) -> Any:
        """`hf_dataset.select_columns(column_names)`."""
        return self.hf_dataset.select_columns(column_names)

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
            self._reader = Reader(self, super().hf_dataset)
        return self._reader
