"""Recorded LeRobot items, and the check of a dataset class against them.

`data/expected/*.json` holds items of LeRobot's own class: key order, dtypes, shapes, values,
and the SHA-256 of the uint8 frames. Run as a script, this file checks them with NumPy arrays only:
``python expected_items.py DATA_FOLDER WORD`` reads the files with WORD in their names (torch is
made unimportable first).
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np

DATA = Path(
    os.environ.get(
        "REELPOOL_TEST_DATA", Path(__file__).resolve().parents[2].parent / "shared" / "data"
    )
)

# The v2.1 set is the v3.0 set as it was before LeRobot's converter: its items are the same.
ALIASES = {"g1_small_v30": ("g1_small_v30", "g1_small_v21"), "cam3": ("cam3",)}


def recordings(data=DATA):
    """(file, root) of each recording and each dataset that must reproduce it."""
    return [
        (path, root)
        for path in sorted((Path(data) / "expected").glob("*.json"))
        for stem, roots in ALIASES.items()
        if path.stem.startswith(stem)
        for root in roots
    ]


def load(path):
    return json.loads(Path(path).read_text())


def as_array(value):
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def dtype_name(value):
    return "str" if isinstance(value, str) else str(value.dtype).removeprefix("torch.")


def sha256(value):
    return hashlib.sha256(np.ascontiguousarray(as_array(value)).tobytes()).hexdigest()


def check_item(got, want):
    """`got`: the uint8 item of a dataset. `want`: {"order": [...], "item": {key: record}}."""
    assert list(got) == want["order"]
    for key, record in want["item"].items():
        value = got[key]
        assert dtype_name(value) == record["dtype"], key
        if record["dtype"] == "str":
            assert type(value) is str and value == record["value"], key
            continue
        assert list(value.shape) == record["shape"], key
        if "sha256" in record:
            assert sha256(value) == record["sha256"], key
        else:
            want_value = np.asarray(record["value"], dtype=record["dtype"])
            assert as_array(value).tobytes() == want_value.tobytes(), key


def check_float_item(got, uint8_item):
    """`got`: the float32 item of the frame whose uint8 item is given, already checked."""
    assert list(got) == list(uint8_item)
    for key, value in got.items():
        other = uint8_item[key]
        if isinstance(value, str):
            assert value == other
        elif dtype_name(other) == "uint8":
            assert dtype_name(value) == "float32", key
            want = as_array(other).astype(np.float32) / np.float32(255)
            assert as_array(value).tobytes() == want.tobytes(), key
        else:
            assert dtype_name(value) == dtype_name(other), key
            assert as_array(value).tobytes() == as_array(other).tobytes(), key


def check_recording(dataset_class, path, root):
    """All items of one recording, by __getitem__ and by __getitems__, uint8 and float32."""
    recording = load(path)

    def open_dataset(uint8):
        return dataset_class(
            f"test/{Path(root).name}",
            root=root,
            delta_timestamps=recording["delta_timestamps"],
            return_uint8=uint8,
        )

    exact, floats = open_dataset(True), open_dataset(False)
    indices = [want["i"] for want in recording["items"]]
    assert len(indices) >= 10
    batch, float_batch = exact.__getitems__(indices), floats.__getitems__(indices)
    assert len(batch) == len(float_batch) == len(indices)
    for want, item, float_item in zip(recording["items"], batch, float_batch):
        check_item(item, want)
        check_item(exact[want["i"]], want)
        check_float_item(float_item, item)
        check_float_item(floats[want["i"]], item)


if __name__ == "__main__":
    sys.modules["torch"] = None  # import torch raises ImportError
    import reelpool

    for path, root in recordings(sys.argv[1]):
        if sys.argv[2] not in path.stem:
            continue
        check_recording(reelpool.LeRobotDataset, path, Path(sys.argv[1]) / root)
        print("ok", path.stem, root)
    example = reelpool.LeRobotDataset("test/x", root=Path(sys.argv[1]) / "cam3")[0]
    assert all(isinstance(v, (str, np.ndarray, np.generic)) for v in example.values())
    assert "torch" not in sys.modules or sys.modules["torch"] is None
