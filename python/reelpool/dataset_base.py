"""What the map-style and the streaming dataset share: arguments, metadata, table, items, facts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from . import device as gpu
from . import env
from .collation import Item, register_default_collate
from .corruption import Substitutions, check_on_corrupt
from .distributed import default_memory_budget
from .engine import (
    FRAME_CACHE_BYTES,
    MAX_THREADS,
    BatchData,
    EngineHandle,
    Layout,
    Options,
    batch_bytes,
    load_core,
    torch_wanted,
)
from .engine_paths import read_ahead_bytes
from .errors import CudaError, NotFoundError, ReelpoolError, make_error, name_dataset
from .frame_rate import check_rate
from .hf_view import HfView
from .hub_files import bring_files, needed_files
from .metadata import LeRobotDatasetMetadata
from .remote_options import parse_options
from .remote_root import RemoteRoot, RemoteVideo
from .remote_root_hub import HubRoot
from .remote_roots import open_remote
from .roots import LocalRoot, is_url, parse_hub_url, resolve_root
from .selection import delta_rows, select_cameras, select_episodes, target_sizes
from .split_root import SplitRoot
from .tables import Table, load_table
from .worker_end import end_with_parent

_SAMPLE_TAG = 4  # RP_TAG_SAMPLE: seeds image_transforms


class DatasetBase:
    """A LeRobot dataset: which samples are selected and what an item of them holds."""

    repo_id: str
    root: Any
    meta: LeRobotDatasetMetadata
    episodes: list[int] | None
    _data_root: LocalRoot | RemoteRoot | None = None
    video_decode_device: str = "cpu"
    _gpu: int | None = None  # `device.parse_device` of it
    _gpu_here: int | None = None  # torch's current one where this was pickled

    def _open(
        self,
        repo_id: str,
        root: str | os.PathLike[str] | None,
        revision: str | None,
        force_cache_sync: bool,
        *,
        repo_type: str = "dataset",
        data_files_root: str | os.PathLike[str] | None = None,
        download_videos: bool = False,
        episodes: list[int] | None,
        episode_filter: Callable[[dict], bool] | None,
        image_transforms: Callable | None,
        delta_timestamps: Mapping[str, Sequence[float]] | None,
        tolerance_s: float,
        return_uint8: bool,
        depth_output_unit: str,
        token: str | bool | None,
        cameras: Sequence[str] | None,
        resize: tuple[int, int] | Mapping[str, tuple[int, int]] | None,
        on_corrupt: str,
        max_bad_fraction: float,
        num_threads: int | None,
        memory_budget: int | str | None,
        video_decode_device: Any,
        storage_options: dict | None,
    ) -> None:
        """Check the arguments, read metadata and columns. download_videos: those of the Hub are
        downloaded, not read by ranges."""
        self._gpu = gpu.check_video_device(video_decode_device)
        self.video_decode_device = str(video_decode_device)
        if depth_output_unit not in ("m", "mm"):
            raise ValueError(f"depth_output_unit must be 'm' or 'mm', not {depth_output_unit!r}")
        if not (isinstance(tolerance_s, (int, float)) and tolerance_s >= 0):
            raise ValueError(f"tolerance_s must be a number of seconds >= 0, not {tolerance_s!r}")
        check_threads(num_threads)
        substitute = check_on_corrupt(on_corrupt, max_bad_fraction)
        if substitute and not hasattr(load_core().Batch, "substitutes"):
            raise ValueError(f"on_corrupt={on_corrupt!r}: this version knows 'raise' only")
        self._max_bad_fraction = float(max_bad_fraction)
        self.set_image_transforms(image_transforms)
        self.meta = LeRobotDatasetMetadata(
            repo_id, root, revision, force_cache_sync, repo_type=repo_type, token=token,
            storage_options=storage_options,
        )  # fmt: skip
        self.repo_id, self.revision = self.meta.repo_id, self.meta.revision
        self.delta_timestamps, self.tolerance_s = delta_timestamps, float(tolerance_s)
        self.episodes = select_episodes(self.meta, episodes, episode_filter)
        videos, skipped = select_cameras(self.meta, cameras)
        try:
            if data_files_root is None:
                bring_files(self.meta, self.episodes, videos, download_videos, force_cache_sync)
            else:
                self._data_root = self._other_root(data_files_root, videos, token, storage_options)
        except ReelpoolError as error:
            name_dataset(error, self.repo_id, self.meta.root)
            raise
        self.root = self.meta.root
        images = [key for key in self.meta.image_keys if key not in skipped]
        if self._gpu is not None:
            gpu.check_cameras(videos, images, substitute, self.repo_id)
        delivered = [*videos, *images]
        self._options = Options(
            cameras=videos,
            return_uint8=bool(return_uint8),
            depth_unit=depth_output_unit,
            resize=target_sizes(self.meta, resize, videos),
            tolerance_s=float(tolerance_s),
            deltas=delta_rows(self.meta, delta_timestamps, tolerance_s, delivered),
            skipped=skipped,
            substitute=substitute,
        )
        self._num_threads = num_threads
        self._memory_budget = None if memory_budget is None else env.parse_bytes(memory_budget)
        self.meta.rescale_depth_stats(depth_output_unit)
        self._reset()
        table = self._table  # a broken table is an error of the constructor
        try:
            check_rate(self.meta, table, delta_timestamps, float(tolerance_s))
        except ReelpoolError as error:
            self._named(error)
            raise

    def _other_root(
        self,
        location: str | os.PathLike[str],
        videos: Sequence[str],
        token: str | bool | None,
        storage_options: dict | None,
    ) -> LocalRoot | RemoteRoot:
        """Where `data_files_root` leads; what the dataset needs of it is there, or a URL."""
        place = os.fspath(location)
        data, files = needed_files(self.meta, self.episodes, videos)
        root: LocalRoot | RemoteRoot
        if parse_hub_url(place) is not None:
            found = resolve_root(place, token=token, storage_options=storage_options)
            root = LocalRoot(found.path)
            if found.hub is not None and found.revision is not None:
                root = HubRoot(found.hub, found.revision, Path(found.path))
        elif is_url(place):
            root = open_remote(place, token, parse_options(storage_options), data[0])
        else:
            root = LocalRoot(_data_root(place, self.repo_id))
        if isinstance(root, RemoteRoot):
            root.prepare(data, files)
        return root

    @property
    def reads_ranges(self) -> bool:
        """Whether some of the videos stay where they are, and are read by byte ranges."""
        root = self._data_root or self.meta._remote
        if not isinstance(root, RemoteRoot):
            return False
        videos = needed_files(self.meta, self.episodes, list(self._options.cameras))[1]
        return any(isinstance(root.video(rel), RemoteVideo) for rel in videos)

    # -- state that does not travel --

    def _reset(self) -> None:
        self._table_cache: Table | None = None
        self._layout_cache: Layout | None = None
        self._handle: EngineHandle | None = None
        self._view: HfView | None = None
        self._substitutions: Substitutions | None = None

    def _volatile(self) -> tuple[str, ...]:
        """Attributes that a pickle leaves out; `_reset` makes them."""
        return ("_table_cache", "_layout_cache", "_handle", "_view", "_substitutions")

    def __getstate__(self) -> dict[str, Any]:
        volatile = self._volatile()
        state = {k: v for k, v in self.__dict__.items() if k not in volatile}
        state["root"] = self.meta.__getstate__()["root"]
        if self._gpu == gpu.CURRENT:
            state["_gpu_here"] = gpu.current_if_any()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _require_readable(self) -> None:
        """RuntimeError while the dataset is being recorded."""

    @property
    def _table(self) -> Table:
        if self._table_cache is None:
            self._require_readable()
            if self._data_root is not None:
                self.meta.ensure_readable()
                own = self.meta._remote or LocalRoot(self.root)
                self.meta._files = SplitRoot(own, self._data_root)
            chosen = None if self.episodes is None else sorted(self.episodes)
            try:
                self._table_cache = load_table(self.meta, chosen)
            except ReelpoolError as error:
                self._named(error)
                raise
        return self._table_cache

    def _require_rows(self) -> None:
        """NotFoundError for a dataset that has no episode yet."""
        if self._table.num_rows == 0:
            error = make_error(
                NotFoundError,
                f"{self.repo_id} has no episode: there is nothing to read\n"
                "  Record into it first, or check the folder: DATASET",
                file="meta/info.json",
            )
            self._named(error)  # type: ignore[arg-type]
            raise error

    @property
    def _layout(self) -> Layout:
        if self._layout_cache is None:
            self._require_rows()
            self._layout_cache = Layout(self.meta, self._table, self._options)
        return self._layout_cache

    # -- the engine --

    @staticmethod
    def _workers() -> int:
        """Workers of the DataLoader that this process works for; 0 in any other process."""
        if not torch_wanted(None):
            return 0
        from .torch_bridge import workers

        return workers()

    def _budget(self) -> int:
        """Bytes that this process may take: the rank's, or a DataLoader worker's share of it."""
        budget = self._memory_budget
        if budget is None:
            budget = default_memory_budget()
        return budget // max(1, self._workers())

    def _live_handle(self) -> EngineHandle | None:
        """This process's engine, if there is one."""
        handle = self._handle
        return handle if handle is not None and handle.pid == os.getpid() else None

    def _new_handle(self, workers: int) -> EngineHandle:
        """An engine for this process; workers: of the DataLoader it works for. Each class's own."""
        raise NotImplementedError

    def _engine(self) -> EngineHandle:
        handle = self._live_handle()
        if handle is None:
            workers = self._workers()
            if workers > 0:
                end_with_parent()
            try:
                self._handle = handle = self._new_handle(workers)
            except CudaError as error:
                self._named(error)
                raise
        return handle

    def _make_handle(self, workers: int, keep_bytes: int, staged: int, **options: Any) -> Any:
        """An engine of this dataset, on its GPU if it has one; staged: bytes kept for uploads."""
        options |= {"read_ahead": self._read_ahead(), "processes": max(1, workers)}
        if not self._on_gpu:
            options["shared"] = workers > 0
            return EngineHandle(self._layout, keep_bytes=keep_bytes, **options)
        from .device_items import ItemHandle

        ordinal = gpu.item_ordinal(self._gpu, workers, self._gpu_here)
        return ItemHandle(
            self._layout, keep_bytes=keep_bytes, device=ordinal, stage_bytes=staged, **options
        )

    @property
    def _on_gpu(self) -> bool:
        """Whether pictures are delivered in a GPU's memory."""
        return self._gpu is not None and bool(self._options.cameras)

    def _batch_bytes(self, samples: int) -> int:
        """Bytes of a batch."""
        return batch_bytes(self._layout.fields, samples)

    def _staged_bytes(self, samples: int) -> int:
        """Bytes of a batch on its way to a GPU: so many pinned, and as many there."""
        return gpu.staged_bytes(self._layout, samples) + gpu.PAGES if self._on_gpu else 0

    def _read_ahead(self) -> int:
        """Bytes of remote files in memory, out of the budget."""
        return read_ahead_bytes(self._layout.paths, self._budget())

    def _free_bytes(self) -> int:
        """What of the budget is left for batches and waiting pictures."""
        return max(0, self._budget() - self._caches() - self._read_ahead())

    def _caches(self) -> int:
        """Bytes that are no batches, pictures or remote files."""
        return FRAME_CACHE_BYTES + self._layout.index_bytes

    def _batch_data(self, batch: Any, samples: int, distinct: bool) -> BatchData:
        """A core batch as items see it. samples: what substitutions are counted against."""
        use_torch = torch_wanted(None)
        in_worker = use_torch and self._workers() > 0
        data = BatchData(
            self._layout, batch, use_torch, in_worker,
            self._engine().get if self._options.substitute else None,
            wrap=gpu.item_wrapper(in_worker) if self._on_gpu else None,
        )  # fmt: skip
        if data.substitutes:
            if self._substitutions is None:
                self._substitutions = Substitutions(
                    self._layout, self._max_bad_fraction, samples, distinct=distinct
                )
            self._substitutions.note(data.substitutes)
        return data

    def _named(self, error: ReelpoolError) -> None:
        """Say in an error which dataset it is about."""
        name_dataset(error, self.repo_id, self.root)
        if isinstance(error, CudaError) and self._workers() > 0:
            gpu.advise_worker(error)

    def stats(self) -> dict[str, Any]:
        """Counters of this process's engine (empty before its first use); see docs/design.md."""
        handle = self._live_handle()
        return {} if handle is None else handle.stats()

    def close(self) -> None:
        """Stop this process's threads and free their memory. Reading starts them again."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    # -- items --

    def _items(self, data: BatchData) -> list[Item]:
        """The items of a batch: views of it, untransformed."""
        if torch_wanted(None):
            register_default_collate()
        values = {key: rows_of(value) for key, value in data.tensors().items()}
        items = []
        for position in range(len(data)):
            item = Item({key: value[position] for key, value in values.items()})
            item._batch, item._pos = data, position
            items.append(item)
        return items

    def _transformed(self, item: Item, seed: int | None = None) -> Item:
        """The item with `image_transforms` run on its RGB pictures; seed: of torch's generator."""
        if self.image_transforms is not None:
            with seeded(seed):
                for key in self._picture_keys():
                    if key in item:
                        item[key] = self.image_transforms(item[key])
        return item

    def _picture_keys(self) -> list[str]:
        """Cameras that transforms see."""
        return [key for key in self.meta.camera_keys if key not in self.meta.depth_keys]

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
        if self._view is None:
            self._view = HfView(self)  # type: ignore[arg-type]
        return self._view

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({{\n"
            f"    Repository ID: '{self.repo_id}',\n"
            f"    Number of selected episodes: '{self.num_episodes}',\n"
            f"    Number of selected samples: '{self.num_frames}',\n"
            f"    Features: '{list(self.features)}',\n"
            "})"
        )


def _data_root(location: str, repo_id: str) -> Path:
    """The local directory that holds `data/`. NotFoundError, UnsupportedMediaError as `root`."""
    from .roots import _local

    path = _local(location)
    if not (path / "data").is_dir():
        raise make_error(
            NotFoundError,
            f"no data files in {path}: it has no directory data/\n"
            "  Run: pass data_files_root=DIR, the directory that holds data/ and videos/",
            dataset=repo_id,
        )
    return path


def sample_seed(seed: int, epoch: int, index: int) -> int:
    """What torch's generator is seeded with for the transforms of one sample."""
    return load_core().hash64(seed % 2**64, epoch % 2**32, _SAMPLE_TAG, index)


def seeded(seed: int | None) -> AbstractContextManager:
    """Context: torch's generator seeded, and restored at the end. None, or no torch: nothing."""
    if seed is None or not torch_wanted(None):
        return nullcontext()
    from .torch_bridge import seeded as seeded_torch

    return seeded_torch(seed)


def rows_of(value: Any) -> Sequence[Any]:
    """The rows of a stacked value; rows of a 1-d array stay 0-d arrays."""
    if isinstance(value, list):
        return value
    if isinstance(value, np.ndarray):
        return [value[i, ...] for i in range(len(value))]
    return value.unbind(0)


__all__ = ["DatasetBase", "rows_of", "sample_seed", "seeded"]


def check_threads(num_threads: Any) -> None:
    """ValueError unless `num_threads` is None or a number that the engine takes."""
    if num_threads is None:
        return
    if not hasattr(num_threads, "__index__") or not 0 <= num_threads <= MAX_THREADS:
        raise ValueError(
            f"num_threads must be an integer of 0..{MAX_THREADS} or None, not {num_threads!r}"
        )
