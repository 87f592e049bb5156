"""Several datasets as one: which share of the samples each gives, and what their batches hold.

docs/design.md, "Mixtures". Rows of a mixture are those of its datasets, one set after the other.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from .engine import load_core
from .errors import ReelpoolError, StateError
from .mixture_layout import MixtureLayout
from .order import (
    MAX_LANES,
    SEQUENTIAL_PARAMS,
    VERSION,
    OrderParams,
    feed_set,
    fingerprint,
    is_int,
    runs_of,
)
from .order_state import REV, check_rev, rev_field, rev_of

_SET_TAG = 5  # RP_TAG_SET: seeds each set's order
_FIELDS = ("C", "U", "R", "k", "g", "J")
_LIMITS = {"C": (1, MAX_LANES), "U": (0, 2**31 - 1), "R": (1, 2**63 - 1), "k": (1, 2**31 - 1),
           "g": (1, 2**31 - 1), "J": (0, 2**31 - 1)}  # fmt: skip


def pattern(lanes: Sequence[int]) -> list[int]:
    """Set number of each of sum(lanes) positions, which then repeat.

    Sample n of set d is due at (2 n + 1) / lanes[d]; the lower set first where two are due at once.
    """
    due = [(Fraction(2 * n + 1, count), d) for d, count in enumerate(lanes) for n in range(count)]
    return [d for _, d in sorted(due)]


def share_out(weights: Sequence[int | float], lanes: int) -> list[int]:
    """`lanes` shared out by weight: largest remainder (tie: lower set), each at least 1.

    What a set gets beyond its share, because it must have one, comes from those with most too many.
    ValueError for more sets than lanes.
    """
    if lanes < len(weights):
        raise ValueError(
            f"{len(weights)} datasets cannot share {lanes} lanes: use fewer datasets, or a larger "
            "batch_size or lanes="
        )
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    quota = [lanes * weight / total for weight in exact]
    out = [max(1, math.floor(share)) for share in quota]
    missing = lanes - sum(out)
    if missing > 0:  # fewer than there are sets
        for _, d in sorted((out[d] - quota[d], d) for d in range(len(out)))[:missing]:
            out[d] += 1
    heap = [(quota[d] - out[d], -d) for d in range(len(out)) if out[d] > 1]
    heapq.heapify(heap)
    for _ in range(-missing):
        spare, minus_d = heapq.heappop(heap)
        out[-minus_d] -= 1
        if out[-minus_d] > 1:
            heapq.heappush(heap, (spare + 1, minus_d))
    return out


class Mixture:
    """Datasets of one kind (all map-style, or all streaming) that fill batches together.

    weights: one number > 0 per dataset, its share of the samples; None: its number of frames, so
    that every frame comes about once per `samples_per_epoch`. samples_per_epoch: samples of all
    ranks after which `iter()` ends; None: the sum of the datasets' frames.

    Items hold the keys common to all, in the first one's order, and `dataset_index` (int64): the
    place of the sample's dataset in the list. Raises TypeError for other things than datasets or
    for mixed kinds, ValueError for weights that are none, and for a common key whose shape, dtype
    or unit differs between datasets.
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Sequence[float] | None = None,
        samples_per_epoch: int | None = None,
    ) -> None:
        self.datasets = tuple(datasets)
        _check_kind(self.datasets)
        self._layout_cache: MixtureLayout | None = None
        self.sizes = [d._layout.table.num_rows for d in self.datasets]
        for dataset, size in zip(self.datasets, self.sizes):
            if size == 0:
                raise ValueError(f"{dataset.repo_id} has no frames to mix")
        self.explicit_weights = weights is not None
        self.weights = list(self.sizes) if weights is None else _checked_weights(weights)
        if len(self.weights) != len(self.datasets):
            raise ValueError(
                f"weights= has {len(self.weights)} numbers for {len(self.datasets)} datasets"
            )
        if samples_per_epoch is not None and not (is_int(samples_per_epoch) and
                                                  samples_per_epoch >= 1):  # fmt: skip
            raise ValueError(f"samples_per_epoch must be an int >= 1, not {samples_per_epoch!r}")
        self.samples_per_epoch = int(samples_per_epoch or sum(self.sizes))
        _ = self.layout  # datasets that do not fit together are an error of the constructor

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_layout_cache": None}

    @property
    def layout(self) -> MixtureLayout:
        """Keys and tables of all sets together, as `EngineHandle` and `BatchData` take them."""
        if self._layout_cache is None:
            self._layout_cache = MixtureLayout(self.datasets)
        return self._layout_cache

    # -- order --

    def sets(self) -> list[tuple[np.ndarray, int, int]]:
        """Per dataset: its runs (int64 (n, 3), by its own `index`), its first row, its frames."""
        first = self.layout.first_rows
        return [
            (runs_of(d._layout.table), int(at), size)
            for d, at, size in zip(self.datasets, first, self.sizes)
        ]

    def fingerprints(self) -> list[str]:
        """Per dataset the 16 hex digits that name its selection."""
        return [fingerprint(runs) for runs, _, _ in self.sets()]

    def lanes(self, count: int) -> list[int]:
        """How many of `count` lanes each dataset fills. ValueError for fewer than datasets."""
        return share_out(self.weights, count)

    def effective_weights(self, count: int) -> list[float]:
        """Share of the samples that each dataset has with `count` lanes; their sum is 1."""
        return [share / count for share in self.lanes(count)]

    def params(
        self, count: int, window: int | None, own: Sequence[OrderParams] | None = None
    ) -> list[OrderParams]:
        """Each dataset's order with its share of `count` lanes and of `window` frames.

        own: U, k, g and J per dataset (None: single frames, or GOPs, are shuffled). window None: an
        exact uniform permutation of each dataset, of its GOPs where k > 1.
        """
        out = []
        for d, share in enumerate(self.lanes(count)):
            base = own[d] if own is not None else OrderParams(C=1, U=1, R=1)
            unit, frames = (1, self.sizes[d]) if window is None else (
                base.U, max(1, window * share // count))  # fmt: skip
            out.append(dataclasses.replace(base, C=share, U=unit, R=frames))
        return out

    def feed_sets(self, seed: int, params: Sequence[OrderParams] | None) -> list[tuple]:
        """What `_core.Feed` takes as sets; start and stop count samples over all epochs.

        params None (`shuffle=False`): all rows in order, one dataset after the other.
        """
        if params is None:
            rows = np.array([[0, 0, sum(self.sizes)]], np.int64)
            return [feed_set(rows, 0, None)]
        return [
            feed_set(runs, self.set_seed(seed, d), p, first)
            for d, ((runs, first, _), p) in enumerate(zip(self.sets(), params))
        ]

    @staticmethod
    def set_seed(seed: int, d: int) -> int:
        """Seed of the order of dataset `d`."""
        return load_core().hash64(seed % 2**64, 0, _SET_TAG, d)

    def place(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(number of the dataset, row in it) of rows of the mixture, int64."""
        return self.layout.place(rows)

    # -- state: samples are counted over all epochs --

    def span(self, epoch: int) -> tuple[int, int]:
        """First sample of an epoch, and one past its last: what one `iter()` delivers."""
        return epoch * self.samples_per_epoch, (epoch + 1) * self.samples_per_epoch

    def state(
        self, seed: int, samples_done: int, params: Sequence[OrderParams] | None
    ) -> dict[str, Any]:
        """The loader's state as JSON: one entry per dataset, and the samples done."""
        params = [SEQUENTIAL_PARAMS] * len(self.datasets) if params is None else params
        sets = [
            {"dataset": name, **rev_field(rev_of(d)), "weight": weight,
             **{f: getattr(p, f) for f in _FIELDS}}
            for d, name, weight, p in zip(self.datasets, self.fingerprints(), self.weights, params)
        ]  # fmt: skip
        return {"v": VERSION, "seed": seed, "samples_done": samples_done, "sets": sets}

    def load(
        self,
        state: Any,
        seed: int,
        *,
        shuffle: bool,
        lanes: int | None = None,
        window: int | None = None,
        unit: int | None = None,
        locality: tuple[int, int, int] | None = None,
    ) -> tuple[int, list[OrderParams] | None]:
        """(samples done, each dataset's order) of a state; a state brings its own orders.

        lanes, window, unit, locality (g, k, J): what the caller was given explicitly, which the
        state must have too. Raises StateError naming the field that differs.
        """
        sets = self._checked_state(state, seed)
        orders = [_order_of(entry, d) for d, entry in enumerate(sets)]
        if not shuffle:
            for d, own in enumerate(orders):
                _same(f"sets[{d}]", own, SEQUENTIAL_PARAMS)
            return int(state["samples_done"]), None
        total = sum(p.C for p in orders)
        if all(p == SEQUENTIAL_PARAMS for p in orders) or total < len(orders):
            raise StateError("state field 'sets' is of shuffle=False, this loader shuffles")
        _same("sets: sum of C", total, total if lanes is None else lanes)
        for d, (own, share) in enumerate(zip(orders, self.lanes(total))):
            want = dataclasses.replace(own, C=share)
            if window is not None:
                want = dataclasses.replace(want, R=max(1, window * share // total))
            if unit is not None:
                want = dataclasses.replace(want, U=unit)
            if locality is not None:
                g, k, span = locality if locality[1] > 1 else (1, 1, 0)
                want = dataclasses.replace(want, g=g, k=k, J=span)
            for field in _FIELDS:
                _same(f"sets[{d}].{field}", getattr(own, field), getattr(want, field))
        return int(state["samples_done"]), orders

    def _checked_state(self, state: Any, seed: int) -> list[dict[str, Any]]:
        if not isinstance(state, dict) or "samples_done" not in state or "sets" not in state:
            found = sorted(map(str, state)) if isinstance(state, dict) else state
            raise StateError(
                f"this is no state of a Loader over several datasets, it lacks field 'sets': "
                f"{found!r}"
            )
        _same("v", state.get("v"), VERSION)
        _same("seed", state.get("seed"), seed)
        done, sets = state["samples_done"], state["sets"]
        if not (is_int(done) and 0 <= done < 2**63):
            raise StateError(f"state field 'samples_done' is {done!r}, no count")
        if not isinstance(sets, list) or not all(isinstance(entry, dict) for entry in sets):
            raise StateError("state field 'sets' is no list of datasets")
        _same("sets: number of datasets", len(sets), len(self.datasets))
        for d, (entry, name) in enumerate(zip(sets, self.fingerprints())):
            _same(f"sets[{d}].dataset", entry.get("dataset"), name)
            check_rev(f"sets[{d}].{REV}", entry, rev_of(self.datasets[d]))
            _same(f"sets[{d}].weight", entry.get("weight"), self.weights[d])
        return sets

    def name_error(self, error: ReelpoolError) -> None:
        """Give an error of the core its dataset: the one that its file belongs to."""
        self.layout.name_error(error)


def _same(field: str, found: Any, own: Any) -> None:
    if found != own:
        raise StateError(
            f"state field {field!r} is {found!r}, this loader has {own!r}: load it into the same "
            "datasets, weights, seed and order"
        )


def _order_of(entry: dict[str, Any], d: int) -> OrderParams:
    values = {}
    for field in _FIELDS:
        value, (low, high) = entry.get(field), _LIMITS[field]
        if value is None or not (is_int(value) and low <= value <= high):
            raise StateError(f"state field 'sets[{d}].{field}' is {value!r}, no number it can be")
        values[field] = int(value)
    if values["k"] > values["g"]:
        raise StateError(f"state field 'sets[{d}].k' is above g")
    return OrderParams(**values)


def _checked_weights(weights: Sequence[float]) -> list[int | float]:
    out: list[int | float] = []
    for weight in weights:
        number = isinstance(weight, (int, float, np.integer, np.floating))
        if not number or isinstance(weight, bool) or not 0 < weight < math.inf:
            raise ValueError(f"weights must be numbers > 0, not {weight!r}")
        out.append(int(weight) if is_int(weight) else float(weight))
    return out


def _check_kind(datasets: tuple) -> None:
    from .dataset import LeRobotDataset

    if not datasets:
        raise ValueError("a mixture needs at least one dataset")
    for dataset in datasets:
        if not hasattr(dataset, "_layout"):
            raise TypeError(
                f"a mixture takes reelpool's datasets, not {type(dataset).__name__}; wrap other "
                "datasets in torch's DataLoader"
            )
    if len({isinstance(dataset, LeRobotDataset) for dataset in datasets}) > 1:
        raise TypeError("a mixture takes map-style or streaming datasets, not both kinds")
