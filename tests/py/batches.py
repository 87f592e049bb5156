"""Helpers of the DataLoader tests; a module of its own, so that worker processes can import it."""

import hashlib

import numpy as np


def digest(batch):
    """SHA-256 over keys, dtypes, shapes and bytes of a batch, in key order."""
    sha = hashlib.sha256()
    for key, value in batch.items():
        if isinstance(value, (list, tuple)):
            sha.update(repr((key, list(value))).encode())
            continue
        array = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        sha.update(repr((key, array.dtype.str, array.shape)).encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def stacked(items):
    """The batch that stacking single items gives: the reference."""
    batch = {}
    for key, first in items[0].items():
        values = [item[key] for item in items]
        if isinstance(first, (str, list)):
            batch[key] = values
        else:
            batch[key] = np.stack([np.asarray(value) for value in values])
    return batch


def lerobot_like_collate(batch):
    """LeRobot's collate function: plain dicts of each item's tensors through default_collate."""
    from torch.utils.data import default_collate

    batch = [sample for sample in batch if sample is not None]
    return default_collate([dict(sample.items()) for sample in batch])


class Wrapper:
    """A user's dataset around ours: adds a key to each item, knows nothing of batches."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        item = self.dataset[index]
        item["twice"] = item["index"] * 2
        return item
