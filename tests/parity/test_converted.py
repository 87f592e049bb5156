"""`reelpool convert` beside LeRobot's own converter: same items, metadata and statistics."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
import reelpool
from compare import assert_same_item
from conftest import DATA
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset
from reelpool.convert.job import Options
from reelpool.convert.run import convert

sys.path.append(str(Path(__file__).resolve().parents[1] / "py"))
from convert_sets import write_clips

SAME = {
    "observation.images.top": ("av1",) * 5,
    "observation.images.left": ("h264",) * 5,
    "observation.images.wrist": ("vp9",) * 5,
}


def ours(source, out, **changes):
    convert(Options(root=source, name=source.name, out=out, **changes), threads=2)
    return out


def theirs(source, folder, **sizes):
    copy = shutil.copytree(source, folder / source.name)
    for path in copy.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    convert_dataset("test/x", root=copy, push_to_hub=False, **sizes)
    return copy


@pytest.fixture(scope="module", params=["g1_small_v21", "clips", "pictures"])
def pair(request, tmp_path_factory):
    """(our conversion, theirs) of one v2.1 dataset, in several files."""
    folder = tmp_path_factory.mktemp("converted")
    sizes = (100, 200)
    if request.param == "g1_small_v21":
        source, sizes = DATA / "g1_small_v21", (1, 10)
        if not source.is_dir():
            pytest.skip("no g1_small_v21 (set REELPOOL_TEST_DATA to the folder that holds it)")
    else:
        images = request.param == "pictures"
        source = write_clips(folder / "source", {} if images else SAME, images=images)
    made = ours(source, folder / "ours", work_dir=folder / "work",
                data_mb=sizes[0], video_mb=sizes[1])  # fmt: skip
    other = theirs(source, folder / "theirs", data_file_size_in_mb=sizes[0],
                   video_file_size_in_mb=sizes[1])  # fmt: skip
    return made, other


def test_lerobot_reads_the_same(pair):
    one, other = (LeRobotDataset("test/x", root=root) for root in pair)
    assert len(one) == len(other) > 0
    for i in range(0, len(other), max(1, len(other) // 160)):
        assert_same_item(one[i], other[i], (i,))


def test_reelpool_reads_what_lerobot_reads(pair):
    mine, yours = reelpool.LeRobotDataset("test/x", root=pair[0]), LeRobotDataset("test/x", pair[1])
    for i in range(0, len(yours), max(1, len(yours) // 160)):
        assert_same_item(mine[i], yours[i], (i,))


def test_every_number_is_the_same(pair):
    """All rows of the table columns, not only some."""
    one, other = (
        LeRobotDataset("test/x", root=root).hf_dataset.with_format("numpy") for root in pair
    )
    for name in other.column_names:
        if name != "still":
            assert np.array_equal(one[:][name], other[:][name]), name


def test_metadata_is_the_same(pair):
    one, other = (LeRobotDataset("test/x", root=root).meta for root in pair)
    assert one.info.to_dict() == other.info.to_dict()
    pandas.testing.assert_frame_equal(one.tasks, other.tasks)
    assert set(one.stats) == set(other.stats)
    for key in other.stats:
        for name, value in other.stats[key].items():
            np.testing.assert_array_equal(one.stats[key][name], value)
    rows = [pandas.read_parquet(root / "meta/episodes/chunk-000/file-000.parquet") for root in pair]
    assert set(rows[0].columns) == set(rows[1].columns)
    for name in rows[1].columns:
        a, b = (json.loads(r[name].to_json()) for r in rows)
        if name.endswith("_timestamp"):
            np.testing.assert_allclose(list(a.values()), list(b.values()), rtol=0, atol=1e-9)
        else:
            assert a == b, name


def test_files_are_the_same(pair):
    one, other = ({p.relative_to(r) for p in r.rglob("*") if p.is_file()} for r in pair)
    assert one == other


def test_mixed_codecs(tmp_path):
    """Where LeRobot's converter would join what cannot be joined: the source is the judge."""
    source = write_clips(tmp_path / "mixed", repeat=2, images=True)
    root = ours(source, tmp_path / "out")
    before, after = (
        reelpool.LeRobotDataset("test/x", root=source),
        reelpool.LeRobotDataset("x", root),
    )
    read = LeRobotDataset("test/x", root=root)
    assert len(before) == len(after) == len(read) == 96
    for i in range(len(before)):
        assert_same_item(after[i], before[i], (i,))
        assert_same_item(after[i], read[i], (i,))
