"""From a list of items to a batch: no copy where they are one batch already, stacked elsewhere.

`LeRobotDataset.__getitems__` decodes a whole batch into one block of memory and hands out `Item`
views of it. `collate`, and through a hook also torch's own ``default_collate``, recognise such a
list and return the block's tensors. An item that was changed in any way has left its batch and is
stacked like any other mapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .errors import MissingExtraError

__all__ = ["Item", "ItemBatch", "collate", "register_default_collate"]

# What stays a list of Python objects: language columns and what LeRobot's recipes render from them.
_LIST_KEYS = frozenset(
    (
        "language_persistent",
        "language_events",
        "messages",
        "message_streams",
        "target_message_indices",
    )
)


class ItemBatch(Protocol):
    """The batch that items of one ``__getitems__`` call came from: ``Item._batch`` points to it."""

    def __len__(self) -> int:
        """Number of items made from this batch."""

    def tensors(self) -> dict[str, Any]:
        """Key -> tensor (B, ...) or list of B, in the items' key order; the items are its views."""

    def hand_over(self, values: dict[str, Any]) -> dict[str, Any]:
        """The collated batch as it leaves: `values`, in a DataLoader worker able to lend itself."""


class Item(dict):
    """One sample: a plain dict that remembers of which batch (`_batch`) it is which row (`_pos`).

    Assigning, deleting or adding a key makes it forget the batch, so that collation sees the
    change. Writing into a tensor in place needs no such care: the tensor is a view of the batch.
    Copies and pickles are items without a batch; a pickle holds this row only.
    """

    __slots__ = ("_batch", "_pos")

    _batch: ItemBatch | None
    _pos: int

    def __setitem__(self, key: str, value: Any) -> None:
        self._batch = None
        super().__setitem__(key, value)

    def __delitem__(self, key: str) -> None:
        self._batch = None
        super().__delitem__(key)

    def update(self, *args: Any, **kwargs: Any) -> None:
        self._batch = None
        super().update(*args, **kwargs)

    def __ior__(self, other: Any) -> Item:  # type: ignore[override,misc]
        self._batch = None
        super().update(other)
        return self

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self._batch = None
        return super().setdefault(key, default)

    def pop(self, *args: Any) -> Any:
        self._batch = None
        return super().pop(*args)

    def popitem(self) -> tuple[str, Any]:
        self._batch = None
        return super().popitem()

    def clear(self) -> None:
        self._batch = None
        super().clear()

    def __copy__(self) -> Item:
        return Item(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return Item, ({key: _own_memory(value) for key, value in self.items()},)


def _own_memory(value: Any) -> Any:
    """A tensor that is a view of more, as a copy: torch pickles the whole memory behind a view."""
    storage = getattr(value, "untyped_storage", None)
    if storage is not None and storage().nbytes() > value.nbytes:
        return value.clone()
    return value


def collate(batch: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Stack samples into one batch, the keys in the order of the first sample.

    Tensors, arrays and numbers become tensors of shape (B, ...); strings become a list of B.
    Language columns, ``messages``, ``message_streams`` and ``target_message_indices`` stay lists of
    B and must be in all samples or in none. None samples are dropped; None is returned if nothing
    is left. All items of one ``__getitems__`` call, in order, yield the tensors of their batch
    without a copy.

    Raises:
        ValueError: a list key is in some samples only.
        MissingExtraError: torch is not installed.
    """
    try:
        from torch.utils.data import default_collate
    except ImportError as exc:
        raise MissingExtraError("collate needs torch. Run: pip install 'reelpool[torch]'") from exc

    samples = [sample for sample in batch if sample is not None]
    if not samples:
        return None
    whole = _whole_batch(samples)
    if whole is not None:
        return whole

    lists = set()
    for key in _LIST_KEYS:
        present = sum(key in sample for sample in samples)
        if present not in (0, len(samples)):
            raise ValueError(
                f"{present} of {len(samples)} samples of a batch carry {key!r}; all or none must"
            )
        if present:
            lists.add(key)
    return {
        key: [sample[key] for sample in samples]
        if key in lists
        else default_collate([sample[key] for sample in samples])
        for key in samples[0]
    }


def _whole_batch(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The tensors of the batch whose items are exactly `samples`, in order; None for all else."""
    first = samples[0]
    if type(first) is not Item:
        return None
    origin: ItemBatch | None = getattr(first, "_batch", None)
    if origin is None or len(origin) != len(samples):
        return None
    if not all(_is_row(sample, origin, position) for position, sample in enumerate(samples)):
        return None
    # Lists are rebuilt from the items: an element changed in place is theirs, not the batch's.
    whole = {
        key: [sample[key] for sample in samples] if isinstance(value, list) else value
        for key, value in origin.tensors().items()
    }
    return origin.hand_over(whole)


def _is_row(sample: Any, origin: ItemBatch, position: int) -> bool:
    """Whether `sample` is the unchanged item `position` of a batch."""
    return (
        type(sample) is Item
        and getattr(sample, "_batch", None) is origin
        and sample._pos == position
    )


def _collate_items(batch: Any, *, collate_fn_map: Any = None) -> Any:
    return collate(batch)


def register_default_collate() -> None:
    """Teach torch's ``default_collate`` (a DataLoader's ``collate_fn=None``) about `Item`.

    Idempotent; needs torch.
    """
    from torch.utils.data._utils.collate import default_collate_fn_map

    default_collate_fn_map[Item] = _collate_items
