"""The state that resumes an order: what it says, and whether it fits."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import numpy as np

from . import order
from .errors import StateError
from .order import (
    SEQUENTIAL_PARAMS,
    VERSION,
    Facts,
    OrderParams,
    Request,
    Share,
    is_int,
)
from .remote_root_hub import HubRoot

_FIELDS = ("C", "U", "R", "k", "g", "J")
_COUNTS = {"epoch": 2**32, "samples_done": 2**63}
_LIMITS = {"C": (1, order.MAX_LANES), "U": (0, 2**31 - 1), "R": (1, 2**63 - 1),
           "k": (1, 2**31 - 1), "g": (1, 2**31 - 1), "J": (0, 2**31 - 1)}  # fmt: skip
REV = "rev"  # the first digits of a Hub dataset's commit; states of other datasets lack it
_REV_DIGITS = 12
PART = "part"  # a DataLoader worker's state: [world, batch, workers, worker, items of the batch]

# What the states of other streaming datasets look like.
_FOREIGN = (
    (("shards", "exhausted", "rng"), "LeRobot's reshuffling stream"),
    (("pipeline", "epoch"), "LeRobot's episode pipeline"),
    (("epoch", "offset", "batch_size"), "LeRobot's episode pool"),
    (("epoch", "start_index"), "EpisodeAwareSampler"),
)


class DatasetOrder:
    """The order of one dataset's selected frames, and its states. Cheap to make anew.

    `epoch` and position: samples of all ranks since that epoch's start. rev: of `rev_of`.
    """

    def __init__(
        self, runs: np.ndarray, facts: Facts, request: Request, rev: str | None = None
    ) -> None:
        self.runs, self.facts, self.request, self.rev = runs, facts, request, rev
        self.count = int(runs[:, 2].sum())
        self.name = order.fingerprint(runs)

    def params(
        self, global_batch: int | None, loaded: OrderParams | None = None
    ) -> OrderParams | None:
        """The parameters in force; `loaded`: those that a state brought."""
        if loaded is not None and self.request.shuffle:
            return loaded
        return order.resolve(self.request, self.facts, global_batch)

    def feed(
        self, epoch: int, done: int, params: OrderParams | None, share: Share, *,
        drop_last: bool = False, stop: int | None = None, part: int = 0,
    ) -> Any:  # fmt: skip
        """The batches of `share` from position `done` of an epoch on. stop: where they end, < 0
        never; None: with the epoch. part: rows of them that come at once; 0: all.
        """
        sets = [order.feed_set(self.runs, self.request.seed, params)]
        stop = self.count if stop is None else stop
        return order.new_feed(sets, epoch, done, stop, share, drop_last, part)

    def ahead(self, params: OrderParams | None, share: Share, part: int = 0) -> int:
        """Batches of `share`, or parts of them, within which all frames of a visit come."""
        return order.ahead_batches(params, (part or share.batch) * share.world, share.workers)

    def state(
        self, epoch: int, done: int, params: OrderParams | None, exact: bool = False
    ) -> dict[str, Any]:
        """The state as JSON. exact: `done` may lie beyond the epoch's end and says so."""
        if done > self.count > 0 and not exact:  # a stream without end ran on
            epoch, done = epoch + done // self.count, done % self.count
        found = SEQUENTIAL_PARAMS if params is None else params
        return {
            "v": VERSION, "dataset": self.name, **rev_field(self.rev), "seed": self.request.seed,
            "epoch": epoch, "samples_done": done,
            **{field: getattr(found, field) for field in _FIELDS},
        }  # fmt: skip

    def load(self, state: Any, global_batch: int | None) -> tuple[int, int, OrderParams | None]:
        """(epoch, position, order) of a state. StateError names the field that does not fit.

        A state brings its lanes, unit, window and locality with it, where they were not given.
        """
        own = self.state(0, 0, order.resolve(self.request, self.facts, global_batch))
        check_fields(state, own)
        found = OrderParams(**{field: int(state[field]) for field in _FIELDS})
        wanted = self._wanted(found, OrderParams(**{field: own[field] for field in _FIELDS}))
        for field in _FIELDS:
            _same(field, getattr(found, field), getattr(wanted, field))
        if state["samples_done"] > self.count and PART not in state:
            raise StateError(
                f"state field 'samples_done' is beyond the epoch's {self.count} samples"
            )
        params = found if self.request.shuffle else None
        return int(state["epoch"]), int(state["samples_done"]), params

    def _wanted(self, found: OrderParams, own: OrderParams) -> OrderParams:
        """The state's order with what was asked for here in its place."""
        request = self.request
        uniform_here = own.C == 1 and self.count <= own.R
        if not request.shuffle or found == SEQUENTIAL_PARAMS:
            return own
        if request.mode == "uniform":  # all but what follows from the batch size
            if uniform_here or found.C == 1:
                return own
            unit = found.U if request.unit is None else own.U
            lanes = found.C if request.lanes is None else own.C
            return dataclasses.replace(own, C=lanes, U=unit)
        given: dict[str, int] = {}
        windows = (request.window, request.episode_pool_size, request.frame_shuffle_buffer_size)
        if any(value is not None for value in windows):
            given["R"] = own.R
            if uniform_here or found.C == 1:
                given["C"] = own.C
        if request.lanes is not None:
            given["C"] = own.C
        if request.unit is not None:
            given["U"] = own.U
        if request.locality != "auto":
            given.update(k=own.k, g=own.g, J=own.J)
        return dataclasses.replace(found, **given)


def rev_of(dataset: Any) -> str | None:
    """The first digits of the commit that a dataset of the Hub is read at; None where it is not
    known, as in a folder that was not downloaded.
    """
    remote = dataset.meta._remote
    return remote.commit[:_REV_DIGITS] if isinstance(remote, HubRoot) else None


def rev_field(rev: str | None) -> dict[str, str]:
    """What a state says of `rev`."""
    return {} if rev is None else {REV: rev}


def check_rev(name: str, entry: dict[str, Any], own: str | None) -> None:
    """StateError if `entry` is of another commit than `own`. A state without one, or a dataset
    whose commit is not known, fits any.
    """
    if REV not in entry:
        return
    found = entry[REV]
    if not (isinstance(found, str) and re.fullmatch(f"[0-9a-f]{{{_REV_DIGITS}}}", found)):
        raise StateError(f"state field {name!r} is {found!r}, not {_REV_DIGITS} digits of a commit")
    if own is not None and found != own:
        raise StateError(
            f"state field {name!r} is {found!r}, here the dataset is at commit {own!r}: open it "
            f"with revision= the commit that begins with {found}, or take the field out of the "
            "state to go on with the files as they are here"
        )


def check_epoch(epoch: Any) -> None:
    """ValueError unless `epoch` is one."""
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or not 0 <= epoch < 2**32:
        raise ValueError(f"epoch must be an integer of 0..2^32 - 1, not {epoch!r}")


def position_of_step(
    step: Any, total: int, size: int, drop_last: bool, repeat: bool
) -> tuple[int, int]:
    """(epoch, samples of it done) after `step` global batches of `size`, counted from epoch 0."""
    if isinstance(step, bool) or not hasattr(step, "__index__") or step < 0:
        raise ValueError(f"step must be an integer >= 0, not {step!r}")
    if repeat:
        return divmod(int(step) * size, max(1, total))
    per_epoch = max(1, total // size if drop_last else -(-total // size))
    epoch, batches = divmod(int(step), per_epoch)
    return epoch, batches * size


def check_counts(state: Any, own: dict[str, Any]) -> None:
    """StateError unless `state` has the fields of `own` and its counts are counts."""
    if isinstance(state, dict) and "samples_done" not in state:
        for fields, maker in _FOREIGN:
            if all(field in state for field in fields):
                raise StateError(
                    f"this state is of {maker} (it has {', '.join(map(repr, fields))}): use "
                    "state_for_step(step) to go on from its step count"
                )
    if not isinstance(state, dict) or "samples_done" not in state:
        found = sorted(map(str, state)) if isinstance(state, dict) else state
        raise StateError(f"this is no state of reelpool, it lacks field 'samples_done': {found!r}")
    if state.get("v") != VERSION:
        raise StateError(f"state field 'v' is {state.get('v')!r}, this version reads {VERSION}")
    for field in own:
        if field not in state and field != REV:
            raise StateError(f"state field {field!r} is missing: it was made by another order")
    extra = [field for field in state if field not in own and field not in (PART, REV)]
    if extra:
        raise StateError(f"state field {extra[0]!r} is unknown here: it was made by another order")
    for field, limit in _COUNTS.items():
        if not (is_int(state[field]) and 0 <= state[field] < limit):
            raise StateError(f"state field {field!r} is {state[field]!r}, no count")


def check_fields(state: Any, own: dict[str, Any]) -> None:
    """StateError unless `state` has the fields of `own` with values they can have, and its
    dataset and seed.
    """
    check_counts(state, own)
    _same("dataset", state["dataset"], own["dataset"])
    check_rev(REV, state, own.get(REV))
    _same("seed", state["seed"], own["seed"])
    for field, (low, high) in _LIMITS.items():
        if not (is_int(state[field]) and low <= state[field] <= high):
            raise StateError(f"state field {field!r} is {state[field]!r}, no number it can be")


def _same(field: str, found: Any, own: Any) -> None:
    if found != own or isinstance(found, bool):
        raise StateError(
            f"state field {field!r} is {found!r}, here it is {own!r}: load it into the same "
            "dataset, selection, seed and order"
        )
