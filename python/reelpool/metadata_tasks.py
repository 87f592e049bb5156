"""The tasks of a dataset: their names by task_index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import FormatError, make_error
from .metadata_episodes import read_parquet
from .roots import LocalRoot

TASKS_FILE = "meta/tasks.parquet"


class _TaskRow:
    """One task: `name`, `task_index`; also by key."""

    def __init__(self, name: str, task_index: int) -> None:
        self.name = name
        self.task_index = task_index

    def __getitem__(self, key: str) -> int:
        if key != "task_index":
            raise KeyError(key)
        return self.task_index


class _Lookup:
    def __init__(self, function: Callable[[Any], _TaskRow]) -> None:
        self._function = function

    def __getitem__(self, key: Any) -> _TaskRow:
        return self._function(key)


class TaskTable:
    """The tasks without pandas: `.index`, `["task_index"]`, `.iloc[i].name`,
    `.loc[name].task_index`, `len`.
    """

    def __init__(self, numbers: list[int], names: list[str]) -> None:
        self.index = list(names)
        self._numbers = np.asarray(numbers, dtype=np.int64)
        self._by_name = dict(zip(names, numbers))
        self.iloc = _Lookup(lambda i: _TaskRow(self.index[i], int(self._numbers[i])))
        self.loc = _Lookup(lambda name: _TaskRow(name, self._by_name[name]))

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: str) -> np.ndarray:
        if key != "task_index":
            raise KeyError(key)
        return self._numbers


def load_tasks(root: LocalRoot) -> tuple[list, list, str]:
    """(task indices, names, file) of `tasks.parquet`, as stored; the name is the index of a pandas
    frame.
    """
    table = read_parquet(root, TASKS_FILE)
    others = [n for n in table.column_names if n != "task_index"]
    named = [n for n in ("task", "__index_level_0__") if n in others] or others
    if "task_index" not in table.column_names or not named:
        what = f"{TASKS_FILE}: column task_index or task is missing"
        raise make_error(FormatError, what, file=TASKS_FILE)
    return table.column("task_index").to_pylist(), table.column(named[0]).to_pylist(), TASKS_FILE


def task_names(numbers: list, names: list, rel: str) -> dict[int, str]:
    """{task_index: name} in the order of the indices. FormatError for wrong types and repeated
    indices.
    """
    if not all(type(n) is int for n in numbers) or not all(type(n) is str for n in names):
        raise make_error(FormatError, f"{rel} holds a null or a wrong type", file=rel)
    out = dict(sorted(zip(numbers, names)))
    if len(out) != len(numbers):
        raise make_error(FormatError, f"{rel}: a task_index is there twice", file=rel)
    return out
