"""The sample order of a dataset, as the C core computes it, and the state that resumes it."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from .engine import load_core
from .errors import StateError

if TYPE_CHECKING:
    from .tables import Table

VERSION = 1
SEQUENTIAL, SHUFFLED = "sequential", "shuffled"


@dataclasses.dataclass(frozen=True)
class OrderParams:
    """C lanes, U frames per unit, R frames of window, (k, g, J) of a visit; `None` order: ids."""

    C: int
    U: int
    R: int
    k: int = 1
    g: int = 1
    J: int = 0


def runs_of(table: Table) -> np.ndarray:
    """int64 (runs, 3): id of the first frame, its frame_index, frames; ascending by id."""
    first = table.starts
    runs = np.stack([table.index[first], table.frame_index[first], table.lengths], axis=1)
    return np.ascontiguousarray(runs, np.int64)


def fingerprint(runs: np.ndarray) -> str:
    """16 hex digits that name the selection: which frames, in which runs."""
    digest = hashlib.sha256(b"reelpool-order-1" + runs.astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def default_params(
    count: int, *, window: int | None, unit: int | None,
    locality: tuple[int, int, int] | None, global_batch: int,
) -> OrderParams:  # fmt: skip
    """The parameters of a shuffled map-style order: uniform unless `window` is below the frames."""
    g, k, j = locality if locality is not None else (1, 1, 0)
    if k == 1:
        g, j = 1, 0
    if window is None or window >= count:
        return OrderParams(C=1, U=64 if unit is None else unit, R=count, k=k, g=g, J=j)
    lanes = -(-64 // global_batch) * global_batch
    return OrderParams(C=lanes, U=64 if unit is None else unit, R=window, k=k, g=g, J=j)


def check_arguments(window: Any, unit: Any, locality: Any) -> None:
    """ValueError for a window, unit or locality outside its limits."""
    if window is not None and not (_is_int(window) and window >= 1):
        raise ValueError(f"window must be a number of frames >= 1, not {window!r}")
    if unit is not None and not (_is_int(unit) and 0 <= unit < 2**31):
        raise ValueError(f"unit must be a number of frames >= 0, not {unit!r}")
    if locality is None:
        return
    fits = isinstance(locality, (tuple, list)) and len(locality) == 3
    fits = fits and all(map(_is_int, locality))
    if not (fits and locality[0] >= 1 and 1 <= locality[1] <= locality[0] and locality[2] >= 0):
        raise ValueError(f"locality must be (g, k, J), 1 <= k <= g, J >= 0, not {locality!r}")


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def adopted(state: dict[str, Any], own: dict[str, Any], unit: int | None) -> tuple[int, int] | None:
    """(C, U) that a windowed order takes over from a state: its lanes, which followed the batch
    size of the run that made it, and its unit unless `unit` is given. None: nothing to take over.
    """
    lanes, cut, count = state.get("C"), state.get("U"), own["R"]
    if own["C"] == 1 or state.get("R") != count or not (_is_int(lanes) and 1 < lanes <= 65536):
        return None
    if unit is not None or not (_is_int(cut) and 0 <= cut < 2**31):
        cut = own["U"]
    return int(lanes), int(cut)


def epoch_rows(runs: np.ndarray, seed: int, epoch: int, params: OrderParams | None) -> np.ndarray:
    """Row numbers of one epoch in order, int64; params None: ascending."""
    count = int(runs[:, 2].sum())
    if params is None:
        return np.arange(count, dtype=np.int64)
    out = np.empty(count, np.int64)
    load_core().order_rows(
        runs, seed % 2**64, epoch, params.C, params.U, params.R, params.k, params.g, params.J, out
    )
    return out


def rank_rows(
    rows: np.ndarray, lanes: int, start: int, batch: int, rank: int, world: int, drop_last: bool
) -> tuple[np.ndarray, int]:
    """(rows of this rank from position `start` on, positions repeated in the tail).

    Batches are [p, p + batch * world); the last one may be shorter, and is left out by drop_last.
    """
    count, size = len(rows), batch * world
    if world == 1 and (lanes == 1 or start >= count):
        return rows[start:], 0
    core = load_core()
    parts, repeated = [], 0
    slots = np.empty(size // world + 1, np.int64)
    for p in range(start, count, size):
        q = min(p + size, count)
        if drop_last and q - p < size:
            break
        if q - p < world:
            repeated = world - (q - p)
        taken = core.order_slice(lanes, p, q, rank, world, slots)
        parts.append(rows[slots[:taken]])
    return (np.concatenate(parts) if parts else np.empty(0, np.int64)), repeated


def check_state(state: dict[str, Any], own: dict[str, Any]) -> None:
    """StateError naming the first field in which a state does not fit this order."""
    if not isinstance(state, dict) or "samples_done" not in state:
        found = sorted(map(str, state)) if isinstance(state, dict) else state
        raise StateError(f"this is no state of a Loader, it lacks field 'samples_done': {found!r}")
    if state.get("v") != VERSION:
        raise StateError(f"state field 'v' is {state.get('v')!r}, this version reads {VERSION}")
    for field, value in own.items():
        if field in ("epoch", "samples_done", "v"):
            continue
        if field not in state:
            raise StateError(f"state field {field!r} is missing: it was made by another order")
        if state[field] != value:
            raise StateError(
                f"state field {field!r} is {state[field]!r}, this loader has {value!r}: load it "
                "into the same dataset, selection, seed and order"
            )
    extra = [f for f in state if f not in own]
    if extra:
        raise StateError(f"state field {extra[0]!r} is unknown here: it was made by another order")
    for field, limit in (("epoch", 2**32), ("samples_done", 2**63)):
        if field not in state or not (_is_int(state[field]) and 0 <= state[field] < limit):
            raise StateError(f"state field {field!r} is {state.get(field)!r}, no count")
