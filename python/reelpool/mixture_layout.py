"""What the batches of several datasets hold: one layout over the layouts of each."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from .engine import INDEX_BYTES, Entry, Layout
from .engine_paths import name_of
from .errors import ReelpoolError, name_dataset

_DTYPES = {"B": "uint8", "f": "float32", "q": "int64", "?": "bool", "H": "uint16"}


def _text(what: tuple) -> str:
    return " ".join(str(part) for part in what)


class MixtureLayout:
    """The layouts of a mixture's datasets as one. Rows count through the datasets."""

    def __init__(self, datasets: Sequence[Any]) -> None:
        self.datasets = tuple(datasets)
        self.parts: list[Layout] = [d._layout for d in datasets]
        self._check_options()
        sizes = [part.table.num_rows for part in self.parts]
        self.first_rows = np.cumsum([0, *sizes[:-1]])
        self.num_rows = int(sum(sizes))
        self.substitute = self.parts[0].substitute
        self.entries: list[Entry] = []
        self.fields: list[tuple[str, tuple[int, ...]]] = []
        self.cameras: list[tuple] = []
        self.columns: list[tuple] = []
        self.pads: list[np.ndarray] = []
        self.paths = [path for part in self.parts for path in part.paths]
        self._path_ends = np.cumsum([len(part.paths) for part in self.parts])
        self._by_key = [{entry.key: entry for entry in part.entries} for part in self.parts]
        common = [
            e for e in self.parts[0].entries
            if e.key != "dataset_index" and all(e.key in by for by in self._by_key)
        ]  # fmt: skip
        for entry in common:
            self._check_key(entry.key)
        at = self._add_fields([e for e in common if e.source == "field"])
        for entry in common:
            self.entries.append(dataclasses.replace(entry, at=at.get(entry.key, -1)))
        self.entries.append(Entry("dataset_index", "field", at["dataset_index"]))

    @property
    def index_bytes(self) -> int:
        """As a part's."""
        return min(INDEX_BYTES, sum(part.index_bytes for part in self.parts))

    def _check_options(self) -> None:
        first = self.parts[0]
        for d, part in enumerate(self.parts):
            if part.substitute != first.substitute:
                raise ValueError(
                    f"on_corrupt differs between {self._name(0)} and {self._name(d)}: "
                    "give all datasets of a mixture the same"
                )

    def _name(self, d: int) -> str:
        return f"dataset {d} ({self.datasets[d].repo_id})"

    def _describe(self, d: int, key: str) -> tuple:
        """What must agree between datasets for `key`."""
        part, entry = self.parts[d], self._by_key[d][key]
        if entry.source == "field":
            kind, shape = part.fields[entry.at]
            unit = part.options.depth_unit if key in part.meta.depth_keys else None
            what: tuple = (_DTYPES[kind], shape, *([] if unit is None else [unit]))
        elif entry.source == "image":
            steps = () if entry.deltas is None else (len(entry.deltas),)
            depth = [part.options.depth_unit] if key in part.meta.depth_keys else []
            what = ("image", steps, tuple(part.meta.features[key]["shape"] or ()), *depth)
        else:
            cells = part.table.cells
            what = (entry.source, cells[key].dtype if key in cells else "string")
        return what

    def _check_key(self, key: str) -> None:
        first = self._describe(0, key)
        for d in range(1, len(self.parts)):
            other = self._describe(d, key)
            if other != first:
                if key in self.parts[0].meta.camera_keys:
                    remedy = (
                        "give both the same resize=, return_uint8=, depth_output_unit= and number "
                        "of delta_timestamps, or leave the camera out with cameras="
                    )
                else:
                    remedy = "give both the same number of delta_timestamps, or mix other datasets"
                raise ValueError(
                    f"{key!r} is {_text(first)} in {self._name(0)} and {_text(other)} in "
                    f"{self._name(d)}: {remedy}"
                )

    def _add_fields(self, common: list[Entry]) -> dict[str, int]:
        """Merge the common fields: cameras, columns with `dataset_index`, pads, as C lays out."""
        first = self.parts[0]
        n_cameras, n_columns = len(first.cameras), len(first.columns)
        at: dict[str, int] = {}

        def field(key: str, kind: str, shape: tuple[int, ...]) -> None:
            at[key] = len(self.fields)
            self.fields.append((kind, shape))

        for entry in common:
            if entry.at < n_cameras:
                field(entry.key, *first.fields[entry.at])
                self.cameras.append(self._camera(entry.key))
        for entry in common:
            if n_cameras <= entry.at < n_cameras + n_columns:
                field(entry.key, *first.fields[entry.at])
                self.columns.append(self._column(entry.key))
        field("dataset_index", "q", ())
        numbers = np.arange(len(self.parts), dtype=np.int64)
        sizes = [part.table.num_rows for part in self.parts]
        self.columns.append((np.repeat(numbers, sizes), 8, np.zeros(len(self.parts), np.int64)))
        for entry in common:
            if entry.at >= n_cameras + n_columns:
                field(entry.key, *first.fields[entry.at])
                pads = [
                    part.pads[by[entry.key].at - len(part.cameras) - len(part.columns)]
                    for part, by in zip(self.parts, self._by_key)
                ]
                self.pads.append(np.concatenate(pads))
        return at

    def _camera(self, key: str) -> tuple:
        found = [part.cameras[by[key].at] for part, by in zip(self.parts, self._by_key)]
        name, height, width, channels, pixel_type, *_ = found[0]
        before = [0, *self._path_ends[:-1].tolist()]
        tables = [camera[8] for camera in found]
        return (
            name, height, width, channels, pixel_type,
            np.concatenate([camera[5] for camera in found]),
            np.concatenate([c[6] + np.int32(n) for c, n in zip(found, before)]).astype(np.int32),
            np.concatenate([camera[7] for camera in found]),
            None if tables[0] is None else np.concatenate(tables),
            any(camera[9] for camera in found),
        )  # fmt: skip

    def _column(self, key: str) -> tuple:
        found = [
            part.columns[by[key].at - len(part.cameras)]
            for part, by in zip(self.parts, self._by_key)
        ]
        return (
            np.concatenate([array for array, _, _ in found]),
            found[0][1],
            np.concatenate([window for _, _, window in found]),
        )

    def engine_arguments(self) -> tuple:
        """The part of Engine's arguments that describes the data."""
        tables = [part.table for part in self.parts]
        starts = [t.starts + first for t, first in zip(tables, self.first_rows)]
        runs = [len(t.starts) for t in tables]
        return (
            self.paths,
            np.concatenate([*starts, [self.num_rows]]).astype(np.int64),
            np.concatenate([t.episodes for t in tables]).astype(np.int64),
            np.repeat(np.arange(len(tables), dtype=np.int32), runs),
            np.concatenate([t.index for t in tables]),
            np.concatenate([t.timestamp for t in tables]),
            np.array([part.options.tolerance_s for part in self.parts], np.float64),
            self.cameras, self.columns, self.pads, self.fields,
        )  # fmt: skip

    # -- what batches ask for --

    def place(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(number of the dataset, row in it) of rows, int64."""
        rows = np.asarray(rows, np.int64)
        sets = np.searchsorted(self.first_rows, rows, side="right") - 1
        return sets, rows - self.first_rows[sets]

    def part_of(self, row: int) -> tuple[Layout, int]:
        """The layout of the dataset that serves a row, and the row in it."""
        d = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        return self.parts[d], row - int(self.first_rows[d])

    def cells(self, entry: Entry, rows: np.ndarray) -> list:
        """As `Layout.cells`."""
        return self._gather("cells", entry.key, rows)

    def images(self, entry: Entry, rows: np.ndarray) -> list[np.ndarray]:
        """As `Layout.images`."""
        return self._gather("images", entry.key, rows)

    def _gather(self, method: str, key: str, rows: np.ndarray) -> list:
        sets, local = self.place(rows)
        out: list[Any] = [None] * len(rows)
        for d in np.unique(sets).tolist():
            mine = np.flatnonzero(sets == d)
            values = getattr(self.parts[d], method)(self._by_key[d][key], local[mine])
            for at, value in zip(mine.tolist(), values):
                out[at] = value
        return out

    def name_error(self, error: ReelpoolError) -> None:
        """Give an error of the core its dataset: the one that its file belongs to."""
        if error.file is None:
            return
        for d, part in enumerate(self.parts):
            if os.fsencode(error.file) in map(name_of, part.paths):
                dataset = self.datasets[d]
                name_dataset(error, dataset.repo_id, dataset.root)
                return
