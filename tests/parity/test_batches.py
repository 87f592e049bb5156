"""Batches of a DataLoader over reelpool are those over LeRobot's class, whatever collates them."""

import pytest
import reelpool
import torch
from compare import assert_same_item
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.utils.collate import lerobot_collate_fn
from torch.utils.data import DataLoader

ORDER = [3, 40, 7, 19, 3, 77, 60, 33]


def loader(dataset_class, root, collate, workers=0):
    deltas = {"action": [-0.1, 0.0, 0.1]}
    dataset = dataset_class("parity/x", root=root, delta_timestamps=deltas, return_uint8=True)
    return DataLoader(dataset, batch_size=3, sampler=ORDER, collate_fn=collate, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_language_columns_stay_lists(made, workers):
    pairs = zip(
        loader(reelpool.LeRobotDataset, made / "av1", reelpool.collate, workers),
        loader(LeRobotDataset, made / "av1", lerobot_collate_fn),
        strict=True,
    )
    for position, (ours, theirs) in enumerate(pairs):
        # LeRobot 0.6.1 drops the language columns from batches; here they stay, a list each.
        for key in ("language_persistent", "language_events"):
            column = ours.pop(key)
            assert len(column) == len(theirs["index"])
            assert all(isinstance(rows, list) for rows in column)
        assert_same_item(ours, theirs, (position,))


@pytest.mark.parametrize("collate", [None, lerobot_collate_fn, reelpool.collate])
@pytest.mark.parametrize("workers", [0, 2])
def test_any_collate_function(made, collate, workers):
    root = made / "h264"
    ours = loader(reelpool.LeRobotDataset, root, collate, workers)
    theirs = loader(LeRobotDataset, root, None)
    count = 0
    for position, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert_same_item(a, b, (position,))
        assert all(isinstance(v, (torch.Tensor, list)) for v in a.values())
        count += 1
    assert count == 3
