"""Every recorded LeRobot item, reproduced: key order, dtypes, shapes, values, pixels."""

import subprocess
import sys
from pathlib import Path

import pytest
from expected_items import DATA, check_recording, load, recordings
from reelpool import LeRobotDataset

pytestmark = pytest.mark.skipif(
    not (DATA / "expected").is_dir(),
    reason="no recorded items (set REELPOOL_TEST_DATA to the folder that holds expected/)",
)

CASES = recordings()
KINDS = {"plain", "window", "future", "one_step"}


def test_the_recordings_are_all_there():
    assert {root for _, root in CASES} == {"cam3", "g1_small_v30", "g1_small_v21"}
    for root in ("cam3", "g1_small_v30", "g1_small_v21"):
        stems = [path.stem for path, name in CASES if name == root]
        assert all(any(stem.endswith(kind) for stem in stems) for kind in KINDS), root


@pytest.mark.parametrize(
    ("path", "root"), CASES, ids=[f"{path.stem}-as-{root}" for path, root in CASES]
)
def test_items_are_lerobots(path, root):
    pytest.importorskip("torch", reason="needs the extra `torch`")
    check_recording(LeRobotDataset, path, DATA / root)


@pytest.mark.parametrize("kind", ["one_step", pytest.param("", marks=pytest.mark.soak, id="all")])
def test_items_are_the_same_numpy_arrays_without_torch(kind):
    script = Path(__file__).with_name("expected_items.py")
    done = subprocess.run(
        [sys.executable, script, DATA, kind], capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr[-3000:]
    chosen = [root for path, root in recordings() if kind in path.stem]
    assert chosen and done.stdout.count("ok ") == len(chosen)


@pytest.mark.parametrize("root", ["cam3", "g1_small_v30", "g1_small_v21"])
def test_slices_and_negative_indices_are_items(root):
    pytest.importorskip("torch", reason="needs the extra `torch`")
    dataset = LeRobotDataset("test/x", root=DATA / root, return_uint8=True)
    n = len(dataset)
    assert n == load(DATA / root / "meta" / "info.json")["total_frames"]
    for got, index in ((dataset[-1], n - 1), (dataset[-n], 0), (dataset[3:6:2][1], 5)):
        assert got["index"].item() == index
    assert dataset[n:] == []
    assert len(dataset[-3:]) == 3
    for bad in (n, -n - 1):
        with pytest.raises(IndexError):
            dataset[bad]
    for bad in (True, 1.0, "1"):
        with pytest.raises(TypeError):
            dataset[bad]
