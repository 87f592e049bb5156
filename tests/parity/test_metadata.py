"""LeRobotDatasetMetadata: what LeRobot's class says of a dataset, attribute by attribute."""

import copy
import pickle
import shutil

import numpy as np
import pytest
import reelpool
from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata

SAME = (
    "repo_id fps robot_type data_path video_path image_keys video_keys depth_keys camera_keys "
    "names shapes tools has_language_columns total_episodes total_frames total_tasks chunks_size "
    "data_files_size_in_mb video_files_size_in_mb _version features root"
).split()


@pytest.fixture
def both(root):
    return (
        reelpool.LeRobotDatasetMetadata("parity/x", root=root),
        LeRobotDatasetMetadata("parity/x", root=root),
    )


def equal(a, b):
    if isinstance(b, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in b)
    if isinstance(b, np.ndarray):
        return isinstance(a, np.ndarray) and a.shape == b.shape and np.array_equal(a, b)
    return a == b


@pytest.mark.parametrize("name", SAME)
def test_attribute(both, name):
    ours, other = (getattr(meta, name) for meta in both)
    assert equal(ours, other), (ours, other)


def test_info(both):
    ours, other = both
    for name in ("codebase_version", "fps", "features", "total_frames", "splits", "chunks_size"):
        assert getattr(ours.info, name) == getattr(other.info, name), name


def test_stats_are_a_dict_of_arrays_to_write_to(both):
    ours, other = both
    assert set(ours.stats) == set(other.stats)
    for key, stats in other.stats.items():
        assert set(ours.stats[key]) == set(stats)
        for name, value in stats.items():
            got = np.asarray(ours.stats[key][name])
            assert got.shape == np.asarray(value).shape, (key, name)
            assert np.array_equal(got, value), (key, name)
    key = next(iter(ours.stats))
    ours.stats[key]["mean"] = np.zeros(1)
    assert ours.stats[key]["mean"].tolist() == [0.0]


@pytest.mark.parametrize("unit", ["m", "mm"])
def test_depth_stats(root, unit):
    ours = reelpool.LeRobotDatasetMetadata("parity/x", root=root)
    other = LeRobotDatasetMetadata("parity/x", root=root)
    for meta in (ours, other):
        meta.rescale_depth_stats(unit)
    for key in other.depth_keys:
        for name, value in other.stats[key].items():
            assert np.array_equal(np.asarray(ours.stats[key][name]), value), (key, name)


def test_tasks(both):
    ours, other = both
    assert list(ours.tasks.index) == list(other.tasks.index)
    assert list(ours.tasks["task_index"]) == list(other.tasks["task_index"])
    for position, task in enumerate(other.tasks.index):
        assert ours.tasks.iloc[position].name == task
        assert ours.tasks.loc[task].task_index == other.tasks.loc[task].task_index
        assert ours.get_task_index(task) == other.get_task_index(task)
    assert ours.get_task_index("no such task") == other.get_task_index("no such task") is None


def test_episodes(both):
    ours, other = both
    assert len(ours.episodes) == len(other.episodes)
    columns = [name for name in other.episodes.column_names if not name.startswith("stats/")]
    assert set(columns) <= set(ours.episodes.column_names)
    for name in columns:
        want = other.episodes[name][:]
        assert [as_plain(v) for v in ours.episodes[name]] == [as_plain(v) for v in want], name
    for index in (0, -1):
        for name in columns:
            got = ours.episodes[index][name]
            assert as_plain(got) == as_plain(other.episodes[index][name]), (index, name)
    assert isinstance(ours.episodes["tasks"][0], list)
    frame = ours.episodes.to_pandas()
    assert list(frame["dataset_from_index"]) == list(other.episodes["dataset_from_index"])
    want = np.asarray(other.episodes["dataset_to_index"], dtype=np.int64)
    assert np.array_equal(np.asarray(ours.episodes["dataset_to_index"], dtype=np.int64), want)


def as_plain(value):
    if isinstance(value, (list, tuple, np.ndarray)):
        return [as_plain(element) for element in value]
    return value.item() if hasattr(value, "item") else value


def test_paths(both):
    ours, other = both
    for episode in range(other.total_episodes):
        assert ours.get_data_file_path(episode) == other.get_data_file_path(episode)
        for key in other.video_keys:
            assert ours.get_video_file_path(episode, key) == other.get_video_file_path(episode, key)


def test_filter_episodes(both):
    ours, other = both

    def long(row):
        return row["length"] > 20 and not any(name.startswith("stats/") for name in row)

    assert ours.filter_episodes(long) == other.filter_episodes(long)
    assert ours.filter_episodes(long, candidates=[0, 1]) == other.filter_episodes(
        long, candidates=[0, 1]
    )


def test_it_is_true_and_can_be_copied(both):
    meta = both[0]
    assert bool(meta)
    for clone in (copy.deepcopy(meta), pickle.loads(pickle.dumps(meta))):
        assert clone.total_frames == meta.total_frames
        assert clone.features == meta.features
        assert len(clone.episodes) == len(meta.episodes)


def test_what_lerobots_class_writes(made, tmp_path):
    """Ours lets LeRobot write, and sees what it wrote."""
    tool = [{"type": "function", "function": {"name": "wave"}}]
    files = []
    for cls in (LeRobotDatasetMetadata, reelpool.LeRobotDatasetMetadata):
        root = tmp_path / cls.__module__
        shutil.copytree(made / "h264", root)
        meta = cls("lab/set", root=root)
        meta.tools = tool
        meta.update_chunk_settings(chunks_size=7)
        assert (meta.tools, meta.chunks_size) == (tool, 7)
        assert meta.episodes.sort("length")["length"] == sorted(meta.episodes["length"])
        meta.finalize()
        files.append((root / "meta/info.json").read_text())
    assert files[0] == files[1] and "wave" in files[0]
    new = reelpool.LeRobotDatasetMetadata.create("lab/new", 10, {}, root=tmp_path / "new")
    assert new.fps == 10
