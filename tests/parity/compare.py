"""Equality of items, bit for bit, with a message that names the key."""

import numpy as np
import torch


def assert_same_value(ours, theirs, where):
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, torch.Tensor), (where, type(ours))
        assert ours.dtype == theirs.dtype, (where, ours.dtype, theirs.dtype)
        assert ours.shape == theirs.shape, (where, ours.shape, theirs.shape)
        if not torch.equal(ours, theirs):
            a, b = ours.numpy(), theirs.numpy()
            if a.tobytes() == b.tobytes():  # NaN
                return
            wrong = np.argwhere(a != b)
            first = tuple(wrong[0]) if len(wrong) else ()
            raise AssertionError(
                f"{where}: {len(wrong)} of {a.size} values differ, first at {first}: "
                f"{a[first]!r} for {b[first]!r}"
            )
    else:
        assert type(ours) is type(theirs), (where, type(ours), type(theirs))
        assert ours == theirs, (where, ours, theirs)


def assert_same_item(ours, theirs, where):
    assert list(ours) == list(theirs), (where, list(ours), list(theirs))
    for key in theirs:
        assert_same_value(ours[key], theirs[key], (*where, key))
