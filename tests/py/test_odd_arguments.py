"""Arguments that nobody means, and places that change under a dataset: typed errors, or right."""

import os
import pickle
import shutil

import numpy as np
import pytest
import reelpool
from demo_sets import DEMO, open_demo
from reelpool.errors import ClosedError


@pytest.fixture(scope="module")
def dataset():
    opened = open_demo(episodes=[1], return_uint8=True)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_threads": 2**40},
        {"batch_size": 2**62},
        {"memory_budget": 2**80},
        {"timeout_s": None},
        {"timeout_s": "1"},
        {"num_threads": 1.5},
        {"seed": 1.5},
        {"seed": "1"},
    ],
)
def test_numbers_out_of_range(dataset, arguments):
    with pytest.raises((ValueError, TypeError)):
        reelpool.Loader(dataset, **{"batch_size": 4, **arguments})


@pytest.mark.parametrize("seconds", [1e300, 2.0**40, -(2.0**40)])
def test_deltas_out_of_range(seconds):
    with pytest.raises(ValueError, match="delta_timestamps"):
        open_demo(delta_timestamps={"action": [seconds]})


def test_deltas_must_be_a_dict():
    with pytest.raises(TypeError, match="delta_timestamps"):
        open_demo(delta_timestamps=[1])


def test_numpy_integers_are_integers():
    dataset = open_demo(episodes=[1], resize=(np.int64(24), np.int32(32)))
    camera = dataset.meta.video_keys[0]
    assert dataset[0][camera].shape == (3, 24, 32)
    with reelpool.Loader(dataset, np.int64(4), num_threads=np.int8(1)) as loader:
        assert len(next(iter(loader))["index"]) == 4


def test_very_many_batches_ahead_are_what_the_engine_takes(dataset):
    with reelpool.Loader(dataset, 1, prefetch_batches=10**6, num_threads=1) as loader:
        assert len(list(loader)) == len(dataset)


def test_an_iterator_is_no_sampler(dataset):
    with pytest.raises(TypeError, match="one epoch"):
        reelpool.Loader(dataset, 4, sampler=iter(range(8)))


def test_a_closed_loader_says_so(dataset):
    loader = reelpool.Loader(dataset, 4, shuffle=True)
    batches = iter(loader)
    next(batches)
    loader.close()
    with pytest.raises(ClosedError):
        next(batches)


def test_a_relative_root_travels(tmp_path, monkeypatch):
    shutil.copytree(DEMO / "dataset", tmp_path / "set")
    monkeypatch.chdir(tmp_path)
    dataset = reelpool.LeRobotDataset("demo", root="set")
    assert str(dataset.root) == "set"
    data = pickle.dumps(dataset)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    other = pickle.loads(data)
    assert list(other[3]) == list(dataset[3])
    assert os.path.samefile(other.root, tmp_path / "set")
    again = pickle.loads(pickle.dumps(dataset))
    assert int(again[3]["index"]) == 3
