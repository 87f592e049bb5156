"""The embedded data set as tests use it: opened, copied, compared; no other data needed."""

import functools
import json
import shutil
from pathlib import Path

import numpy as np
import reelpool

DEMO = Path(reelpool.__file__).parent / "_demo"
ROOT = DEMO / "dataset"
FRONT, WRIST = "observation.images.front", "observation.images.wrist"  # AV1, H.264
STARTS = [0, 48, 92, 144, 184]  # first rows of the 4 episodes, and the end
FRAMES = STARTS[-1]


def open_demo(root=ROOT, **options):
    """The embedded set (or a copy), uint8 pictures, one decoding thread."""
    options.setdefault("return_uint8", True)
    options.setdefault("num_threads", 1)
    return reelpool.LeRobotDataset("reelpool/demo", root=root, **options)


def copy_demo(target):
    """A writable copy of the embedded set."""
    shutil.copytree(ROOT, target)
    for path in target.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return target


def video(root, camera, file=0):
    return Path(root) / f"videos/{camera}/chunk-000/file-{file:03d}.mp4"


def array(value):
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


@functools.cache
def truth():
    """{camera: uint8 (FRAMES, 3, H, W)}, checked against the hashes recorded with the set."""
    import hashlib

    items = open_demo().__getitems__(range(FRAMES))
    recorded = json.loads((DEMO / "frames.json").read_text())["frames"]
    out = {}
    for camera in (FRONT, WRIST):
        out[camera] = np.stack([array(item[camera]) for item in items])
        for index in range(FRAMES):
            digest = hashlib.sha256(out[camera][index].tobytes()).hexdigest()[:16]
            assert digest == recorded[camera][index]
    return out


def ids(batches):
    """`index` of every sample of some batches, in order."""
    return [int(i) for batch in batches for i in batch["index"]]


def check_pixels(batch, cameras=(FRONT, WRIST)):
    """Every picture of a plain uint8 batch is the recorded one of its `index`."""
    rows = array(batch["index"])
    for camera in cameras:
        assert np.array_equal(array(batch[camera]), truth()[camera][rows]), camera


# -- loaders --

ORDERS = {
    "sequential": {},
    "uniform": {"shuffle": True, "seed": 5},
    "window": {"shuffle": True, "seed": 5, "window": 40, "unit": 8},
    "locality": {"shuffle": True, "seed": 5, "window": 90, "unit": 16, "locality": (2, 2, 16)},
    "uniform visits": {"shuffle": True, "seed": 5, "locality": (4, 2, 8)},
}


SMALL = 84  # frames of episodes 1 and 3


def loader_of(dataset, batch_size, **options):
    options.setdefault("num_threads", 1)
    return reelpool.Loader(dataset, batch_size, **options)


def epoch_ids(dataset, batch_size, **options):
    with loader_of(dataset, batch_size, **options) as loader:
        return ids(loader)


def all_ids(dataset):
    return sorted(dataset.hf_dataset.data.column("index").to_pylist())
