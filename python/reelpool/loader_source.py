"""Where a Loader's samples come from: one dataset, a mixture, or a sampler's indices.

A source turns (epoch, samples done) into a feed and into a state, and back. Its order is what
`params` gives: opaque to the Loader.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from . import order
from .errors import ReelpoolError, StateError
from .order import OrderParams, Request, Share, is_int
from .order_state import DatasetOrder, check_counts, rev_of


class DatasetSource:
    """All selected frames of one dataset, in its own order."""

    def __init__(self, dataset: Any, request: Request) -> None:
        self.dataset, self.request, self.seed = dataset, request, request.seed
        layout = dataset._layout
        runs, facts = order.runs_of(layout.table), order.facts_of(layout)
        self.order = DatasetOrder(runs, facts, request, rev_of(dataset))

    @property
    def total(self) -> int:
        """Samples of an epoch."""
        return self.order.count

    @property
    def layout(self) -> Any:
        """What the engine reads."""
        return self.dataset._layout

    def params(self, size: int, loaded: Any) -> Any:
        """The order in force; loaded: the one that a state brought."""
        return self.order.params(size, loaded)

    def feed(self, epoch: int, done: int, params: Any, share: Share, drop_last: bool,
             repeat: bool) -> Any:  # fmt: skip
        """The batches of one rank from `done` on."""
        stop = -1 if repeat else None
        return self.order.feed(epoch, done, params, share, drop_last=drop_last, stop=stop)

    def done(self, epoch: int, found: int) -> int:
        """What a feed's `done` means in samples of that epoch."""
        return found

    def ahead(self, params: Any, size: int) -> int:
        """Batches within which all frames of a visit come."""
        return order.ahead_batches(params, size)

    def state(self, epoch: int, done: int, params: Any) -> dict[str, Any]:
        """The state as JSON."""
        return self.order.state(epoch, done, params)

    def load(self, state: Any, size: int) -> tuple[int, int, Any]:
        """(epoch, samples done, order) of a state. StateError."""
        return self.order.load(state, size)

    def samples(self, rows: np.ndarray) -> list[tuple[Any, int, int]]:
        """Per row: the dataset it is of, its row there, the seed of that dataset's order."""
        return [(self.dataset, row, self.seed) for row in rows.tolist()]

    def datasets(self) -> Sequence[Any]:
        """All datasets."""
        return (self.dataset,)

    def name_error(self, error: ReelpoolError) -> None:
        """Say in an error which dataset it is about."""
        self.dataset._named(error)


class SamplerSource(DatasetSource):
    """Frames of a map-style dataset in the order of somebody's indices."""

    def __init__(self, dataset: Any, sampler: Iterable[int], seed: int) -> None:
        if iter(sampler) is sampler:
            raise TypeError(
                "sampler= is an iterator, which serves one epoch only: give a list or a Sampler"
            )
        super().__init__(dataset, Request(shuffle=False, seed=seed))
        self.sampler = sampler

    @property
    def total(self) -> int:
        """Indices of an epoch."""
        return len(self.sampler)  # type: ignore[arg-type]

    def params(self, size: int, loaded: Any) -> Any:
        """A sampler has no parameters."""
        return None

    def feed(self, epoch: int, done: int, params: Any, share: Share, drop_last: bool,
             repeat: bool) -> Any:  # fmt: skip
        """The sampler is iterated at once, after its `set_epoch`."""
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)
        rows = np.array([self.dataset._row(i) for i in self.sampler], np.int64)
        mine, _ = order.rank_rows(rows, 1, done, share.batch, share.rank, share.world, drop_last)
        feed = order.load_core().Feed
        return feed.of_rows(np.ascontiguousarray(mine), share.batch, drop_last)

    def state(self, epoch: int, done: int, params: Any) -> dict[str, Any]:
        """The state as JSON."""
        return {"v": order.VERSION, "epoch": epoch, "samples_done": done}

    def load(self, state: Any, size: int) -> tuple[int, int, Any]:
        """(epoch, samples done, None) of a state. StateError."""
        check_counts(state, self.state(0, 0, None))
        return int(state["epoch"]), int(state["samples_done"]), None


class MixtureSource:
    """Samples of several datasets by weight; an epoch is `samples_per_epoch` of them."""

    def __init__(
        self, datasets: Sequence[Any], weights: Sequence[float] | None,
        samples_per_epoch: int | None, request: Request,
    ) -> None:  # fmt: skip
        from .mixture import Mixture

        if weights is not None and not request.shuffle:
            raise ValueError("weights= need shuffle=True: in order, dataset follows dataset")
        self.mixture = Mixture(datasets, weights, samples_per_epoch)
        if request.lanes is not None:
            self.mixture.lanes(request.lanes)  # too few for the datasets: an error of now
        self.request, self.seed = request, request.seed
        self.total = self.mixture.samples_per_epoch

    @property
    def layout(self) -> Any:
        """What the engine reads."""
        return self.mixture.layout

    def params(self, size: int, loaded: Any) -> list[OrderParams] | None:
        """Each dataset's order."""
        if not self.request.shuffle or loaded is not None:
            return loaded
        request, frames = self.request, sum(self.mixture.sizes)
        own = [order.resolve(self._own(d), order.facts_of(d._layout), size)
               for d in self.mixture.datasets]  # fmt: skip
        found = [params for params in own if params is not None]
        lanes = max((params.C for params in found), default=1)
        window = request.window
        if window is None and request.mode == "lanes":
            window = max(params.R for params in found)
        if window is not None and window >= frames:
            window = None
        return self.mixture.params(lanes, window, found)

    def _own(self, dataset: Any) -> Request:
        """A dataset's request with the mixture's lanes."""
        request = getattr(dataset, "_request", self.request)
        if request.mode == "uniform":  # its lanes are what is shared out
            request = dataclasses.replace(request, mode="lanes", window=1)
        elif request.window is not None:
            request = dataclasses.replace(request, window=1)
        return dataclasses.replace(request, lanes=self.request.lanes)

    def feed(self, epoch: int, done: int, params: Any, share: Share, drop_last: bool,
             repeat: bool) -> Any:  # fmt: skip
        """The batches of one rank from `done` on."""
        first, stop = self.mixture.span(epoch)
        sets = self.mixture.feed_sets(self.seed, params)
        return order.new_feed(sets, 0, first + done, -1 if repeat else stop, share, drop_last)

    def done(self, epoch: int, found: int) -> int:
        """What a feed's `done` means in samples of that epoch."""
        return found - self.mixture.span(epoch)[0]

    def ahead(self, params: Any, size: int) -> int:
        """Batches within which all frames of a visit come."""
        if params is None:
            return 0
        lanes = sum(p.C for p in params)
        return max(order.ahead_batches(dataclasses.replace(p, C=lanes), size) for p in params)

    def state(self, epoch: int, done: int, params: Any) -> dict[str, Any]:
        """The state as JSON: samples are counted over all epochs."""
        return self.mixture.state(self.seed, epoch * self.total + done, params)

    def load(self, state: Any, size: int) -> tuple[int, int, Any]:
        """(epoch, samples done, each dataset's order) of a state. StateError."""
        request = self.request
        locality = request.locality if isinstance(request.locality, (tuple, list)) else None
        done, params = self.mixture.load(
            state, self.seed, shuffle=request.shuffle, lanes=request.lanes, window=request.window,
            unit=request.unit, locality=None if locality is None else tuple(map(int, locality)),
        )  # fmt: skip
        epoch, done = divmod(done, self.total)
        if epoch >= 2**32:
            raise StateError(f"state field 'samples_done' lies in epoch {epoch}, beyond all")
        return epoch, done, params

    def samples(self, rows: np.ndarray) -> list[tuple[Any, int, int]]:
        """Per row: the dataset it is of, its row there, the seed of that dataset's order."""
        sets, local = self.mixture.place(rows)
        return [
            (self.mixture.datasets[d], row, self.mixture.set_seed(self.seed, d))
            for d, row in zip(sets.tolist(), local.tolist())
        ]

    def datasets(self) -> Sequence[Any]:
        """All datasets."""
        return self.mixture.datasets

    def name_error(self, error: ReelpoolError) -> None:
        """Say in an error which dataset it is about."""
        self.mixture.name_error(error)


def request_of(
    datasets: Sequence[Any], *, shuffle: bool | None, seed: int | None, window: int | None,
    unit: int | None, locality: Any, lanes: int | None,
) -> Request:  # fmt: skip
    """The order of a Loader: its arguments over map-style datasets, the datasets' own over
    streaming ones. ValueError for arguments that differ from those.
    """
    own = [getattr(dataset, "_request", None) for dataset in datasets]
    if own[0] is None:
        if not shuffle and any(v is not None for v in (window, unit, locality, lanes)):
            raise ValueError("window=, unit=, locality= and lanes= need shuffle=True")
        if seed is not None and not is_int(seed):
            raise ValueError(f"seed must be an integer, not {seed!r}")
        request = Request(bool(shuffle), 0 if seed is None else int(seed), "uniform", window,
                          lanes=lanes, unit=unit, locality=locality)  # fmt: skip
        request.check()
        return request
    first = own[0]
    given = {"shuffle": shuffle, "seed": seed, "window": window, "unit": unit,
             "locality": locality}  # fmt: skip
    for name, value in given.items():
        if value is not None and value != getattr(first, name):
            raise ValueError(
                f"{name}={value!r}: a streaming dataset brings its own, here "
                f"{getattr(first, name)!r}: give it to the dataset"
            )
    for request in own[1:]:
        for name in ("shuffle", "seed", "window"):
            if getattr(request, name) != getattr(first, name):
                raise ValueError(f"{name} differs between the datasets of a mixture: give all one")
    if lanes is not None:
        first = dataclasses.replace(first, lanes=lanes)
        first.check()
    return first
