"""What the scripts of this folder share: each runs alone in a process, on one dataset."""

import hashlib
import sys

if "without_torch" in sys.argv:  # arrays instead of tensors, and no seconds of import
    sys.modules["torch"] = None

import numpy as np
import reelpool


def open_dataset(root=None, **options):
    """The dataset named on the command line, as uint8."""
    return reelpool.LeRobotDataset("test/x", root=root or sys.argv[1], return_uint8=True, **options)


def indices(dataset, count):
    """`count` frames, spread over the dataset and out of order."""
    return [(i * 389 + 7) % len(dataset) for i in range(count)]


def pixels(item):
    """SHA-256 over all values of an item."""
    sha = hashlib.sha256()
    for key, value in item.items():
        sha.update(key.encode())
        sha.update(value.encode() if isinstance(value, str) else np.asarray(value).tobytes())
    return sha.hexdigest()
