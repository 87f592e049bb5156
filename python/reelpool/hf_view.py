"""`dataset.hf_dataset` and `dataset.reader`: the parts of LeRobot's internals that others use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import MissingExtraError, NotFoundError
from .hub_files import needed_files
from .tables import arrow_column

if TYPE_CHECKING:
    from .dataset import LeRobotDataset


class _Data:
    """`hf_dataset.data`: columns as pyarrow arrays."""

    def __init__(self, view: HfView) -> None:
        self._view = view

    def column(self, name: str) -> Any:
        """The column as a pyarrow ChunkedArray."""
        return arrow_column(self._view._column(name))


class HfView:
    """The stored rows of a dataset: `len`, `[int]`, `[slice]`, `[list]`, `["column"]`,
    `column_names`, `features`, `select_columns`, `data.column(name)`.

    Any other attribute builds the real `datasets.Dataset` (MissingExtraError without `datasets`).
    """

    def __init__(self, dataset: LeRobotDataset, names: Sequence[str] | None = None) -> None:
        self._dataset = dataset
        table = dataset._table
        self._names = list(table.keys if names is None else names)
        self._real: Any = None

    @property
    def column_names(self) -> list[str]:
        return list(self._names)

    @property
    def features(self) -> dict[str, dict]:
        return {name: self._dataset.features[name] for name in self._names}

    @property
    def num_rows(self) -> int:
        return self._dataset._table.num_rows

    @property
    def data(self) -> _Data:
        return _Data(self)

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        return f"Dataset(features={self._names}, num_rows={len(self)})"

    def _is_cells(self, name: str) -> bool:
        return name in self._dataset._table.cells

    def _column(self, name: str) -> Any:
        table = self._dataset._table
        if name not in self._names:
            raise KeyError(f"no column {name!r}; there are: {', '.join(self._names)}")
        if name in table.cells:
            return [table.cells[name].cell(row) for row in range(len(self))]
        return table.columns[name]

    def _value(self, name: str, row: int) -> Any:
        table = self._dataset._table
        if name in table.cells:
            cell = table.cells[name]
            if cell.dtype == "image":
                return _tensor(self._dataset._layout.image(name, row))
            return cell.cell(row)
        return _tensor(table.columns[name][row, ...])

    def _item(self, row: int) -> dict[str, Any]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"index {row} is out of range for {len(self)} rows")
        return {name: self._value(name, row % len(self)) for name in self._names}

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self._names:
                raise KeyError(f"no column {key!r}; there are: {', '.join(self._names)}")
            return [self._value(key, row) for row in range(len(self))]
        if isinstance(key, slice):
            key = range(*key.indices(len(self)))
        if hasattr(key, "__index__"):
            return self._item(key.__index__())
        rows = [self._item(int(row)) for row in key]
        return {name: [row[name] for row in rows] for name in self._names}

    def __iter__(self) -> Any:
        return (self._item(row) for row in range(len(self)))

    def select_columns(self, column_names: str | Sequence[str]) -> HfView:
        """A view of some columns."""
        names = [column_names] if isinstance(column_names, str) else list(column_names)
        for name in names:
            if name not in self._names:
                raise KeyError(f"no column {name!r}; there are: {', '.join(self._names)}")
        return HfView(self._dataset, names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        if self._real is None:
            self._real = self._build()
        return getattr(self._real, name)

    def _build(self) -> Any:
        try:
            import datasets
        except ImportError as error:
            raise MissingExtraError(
                "this part of hf_dataset needs the datasets package. Run: pip install datasets"
            ) from error
        rows = {
            name: list(self._column(name)) if self._is_cells(name) else self._column(name).tolist()
            for name in self._names
        }
        return datasets.Dataset.from_dict(rows).with_format("torch")


def _tensor(value: np.ndarray) -> Any:
    from .engine import torch_wanted

    if torch_wanted(None):
        import_copy = np.array(value)  # stored rows are read-only
        from .torch_bridge import from_numpy

        return from_numpy(import_copy)
    return value


class Reader:
    """LeRobot's DatasetReader as far as its policies and scripts reach into it."""

    def __init__(self, dataset: LeRobotDataset, view: HfView) -> None:
        self._dataset = dataset
        self.hf_dataset = view

    @property
    def delta_indices(self) -> dict[str, list[int]] | None:
        deltas = self._dataset._options.deltas
        return {key: list(rows) for key, rows in deltas.items()} if deltas else None

    @property
    def root(self) -> Path:
        return self._dataset.root

    @property
    def episodes(self) -> list[int] | None:
        return self._dataset.episodes

    @property
    def num_frames(self) -> int:
        return self._dataset.num_frames

    @property
    def num_episodes(self) -> int:
        return self._dataset.num_episodes

    @property
    def _absolute_to_relative_idx(self) -> dict[int, int] | None:
        return self._dataset.absolute_to_relative_idx

    def load_and_activate(self) -> None:
        """Read the rows, if they are not in memory yet."""
        self._dataset._require_readable()

    def try_load(self) -> bool:
        """Read the rows; whether they and the videos of the selected episodes can be read without
        a download: from this machine, or by byte ranges.
        """
        dataset = self._dataset
        try:
            _ = dataset._table
            for rel in needed_files(dataset.meta, self.episodes, dataset._options.cameras)[1]:
                dataset.meta._files.video(rel)
        except NotFoundError:
            return False
        return True

    def get_episodes_file_paths(self) -> list[str]:
        """The data and video files of the selected episodes, below the root, each once."""
        dataset = self._dataset
        data, videos = needed_files(dataset.meta, self.episodes, dataset._options.cameras)
        return data + videos

    def set_image_transforms(self, image_transforms: Callable | None) -> None:
        """`dataset.set_image_transforms(image_transforms)`."""
        self._dataset.set_image_transforms(image_transforms)

    def clear_image_transforms(self) -> None:
        """`dataset.clear_image_transforms()`."""
        self._dataset.clear_image_transforms()

    def get_item(self, idx: int) -> dict[str, Any]:
        """`dataset[idx]`."""
        return self._dataset[idx]

    def _get_query_indices(self, abs_idx: int, ep_idx: int) -> tuple[dict, dict]:
        columns = self._dataset.meta._columns
        first, end = int(columns.from_index[ep_idx]), int(columns.to_index[ep_idx])
        deltas = self._dataset._options.deltas
        query = {
            key: [max(first, min(end - 1, abs_idx + d)) for d in rows]
            for key, rows in deltas.items()
        }
        pads = {
            f"{key}_is_pad": _tensor(
                np.array([not first <= abs_idx + d < end for d in rows], dtype=bool)
            )
            for key, rows in deltas.items()
        }
        return query, pads

    def _query_hf_dataset(self, query_indices: dict[str, list[int]]) -> dict[str, Any]:
        relative = self._absolute_to_relative_idx
        out = {}
        for key, indices in query_indices.items():
            if key in self._dataset.meta.video_keys:
                continue
            rows = indices if relative is None else [relative[i] for i in indices]
            values = [self.hf_dataset._value(key, row) for row in rows]
            out[key] = _stack(values)
        return out


def _stack(values: list) -> Any:
    if values and hasattr(values[0], "untyped_storage"):
        from .torch_bridge import stack

        return stack(values)
    return np.stack(values)
