"""What a batch of the embedded data set holds, sample by sample, against what was recorded with it;
a module of its own, so that processes of tests can import it."""

import functools
import hashlib
import json

from demo_sets import DEMO, FRONT, WRIST, array


def samples(batch):
    """[(index, hash of its pictures)] of a batch with uint8 pictures."""
    rows = [int(i) for i in batch["index"]]
    return [
        (row, "".join(digest(array(batch[camera][i])) for camera in (FRONT, WRIST)))
        for i, row in enumerate(rows)
    ]


def digest(picture):
    return hashlib.sha256(picture.tobytes()).hexdigest()[:16]


@functools.cache
def _frames():
    return json.loads((DEMO / "frames.json").read_text())["frames"]


def recorded(index):
    """The hash that `samples` must give for a frame."""
    return _frames()[FRONT][index] + _frames()[WRIST][index]


def check(found):
    """Every sample's pictures are the recorded ones."""
    wrong = [index for index, pictures in found if pictures != recorded(index)]
    assert not wrong, f"wrong pictures at {wrong}"
