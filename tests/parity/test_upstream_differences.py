"""Where LeRobot 0.6.1 errs and reelpool does not follow: the error there, the behaviour here.

The numbers in the names are rows of the table in tests/py/test_upstream_bugs.py.
"""

import json
import logging
import os
import shutil

import lerobot.datasets.lerobot_dataset as upstream
import lerobot.datasets.sampler
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reelpool
import torch
from compare import assert_same_item
from lerobot.datasets.video_utils import decode_video_frames
from lerobot.utils.collate import lerobot_collate_fn


def open_upstream(root, **options):
    return upstream.LeRobotDataset("parity/x", root=root, **options)


def open_ours(root, **options):
    return reelpool.LeRobotDataset("parity/x", root=root, **options)


def edited(made, name, folder, edit):
    """A copy of a made dataset with `edit(table)` applied to each data file."""
    shutil.copytree(made / name, folder)
    for path in sorted(folder.glob("data/*/*.parquet")):
        pq.write_table(edit(pq.read_table(path)), path)
    return folder


def test_09_decoders_survive_a_fork(made):
    dataset = open_ours(made / "av1", return_uint8=True)
    want = [dataset[i] for i in (3, 20, 70)]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for i, item in zip((3, 20, 70), want):
                assert_same_item(dataset[i], item, (i,))
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_10_a_negative_time_is_not_the_last_frame(made):
    path = sorted((made / "h264/videos/observation.images.front").rglob("*.mp4"))[0]
    with pytest.raises(ValueError):
        reelpool.decode_video_frames(path, [-1 / 30], 1e-4)
    with pytest.raises(ValueError):
        reelpool.decode_video_frames(path, [], 1e-4)


def test_11_the_tolerance_is_inclusive(made):
    """A frame exactly tolerance_s away is accepted; LeRobot 0.6.1 demands less than it."""
    path = sorted((made / "av1/videos/observation.images.front").rglob("*.mp4"))[0]
    away = 1 / 32
    with pytest.raises(ValueError):
        decode_video_frames(path, [0.5 + away], away, "pyav")
    with pytest.raises(ValueError):
        reelpool.decode_video_frames(path, [0.5 + away], away - 1e-6)
    far = reelpool.decode_video_frames(path, [0.5 + away], away)
    assert torch.equal(far, reelpool.decode_video_frames(path, [0.5], 0.0))


@pytest.mark.parametrize("episodes", [[2, 2, 0], [0, 99, 2], [2, -1, 0, 0]])
def test_12_episodes_out_of_range_or_repeated(made, caplog, episodes):
    with caplog.at_level(logging.WARNING, "reelpool"):
        dataset = open_ours(made / "av1", episodes=episodes)
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
    clean = open_upstream(made / "av1", episodes=[2, 0])
    assert dataset.num_episodes == 2
    assert len(dataset) == len(clean)
    assert sorted(dataset.episodes) == [0, 2]
    for index in (0, 20, len(clean) - 1):
        assert_same_item(dataset[index], clean[index], (index,))
    with pytest.raises(ValueError):
        open_ours(made / "av1", episodes=[99])


def test_13_an_undeclared_column_is_dropped(made, tmp_path):
    def edit(table):
        return table.append_column("surplus", pa.array([1] * table.num_rows))

    root = edited(made, "stills", tmp_path / "surplus", edit)
    with pytest.raises(Exception, match=r"(?i)generat|column|cast"):
        open_upstream(root)
    assert_same_item(open_ours(root)[4], open_upstream(made / "stills")[4], (4,))


def test_13_a_missing_column_is_an_error_that_names_it(made, tmp_path):
    root = edited(made, "stills", tmp_path / "missing", lambda table: table.drop(["precise"]))
    with pytest.raises(reelpool.errors.FormatError, match=r"precise"):
        open_ours(root)[0]


def test_13_windows_over_the_time_column(made):
    deltas = {"timestamp": [-0.1, 0.0, 0.1]}
    with pytest.raises(RuntimeError):
        open_upstream(made / "av1", delta_timestamps=deltas)[5]
    item = open_ours(made / "av1", delta_timestamps=deltas)[5]
    assert torch.allclose(item["timestamp"], torch.tensor([0.4, 0.5, 0.6]))
    assert torch.equal(
        item["observation.images.front"], open_ours(made / "av1")[5]["observation.images.front"]
    )


def test_14_the_task_is_found_by_its_number(made, tmp_path):
    root = tmp_path / "reordered"
    shutil.copytree(made / "stills", root)
    path = root / "meta" / "tasks.parquet"
    table = pq.read_table(path)
    assert table.num_rows == 2
    pq.write_table(table.take([1, 0]), path)
    right = open_upstream(made / "stills")
    tasks = [right[i]["task"] for i in range(len(right))]
    assert len(set(tasks)) == 2
    wrong = open_upstream(root)
    assert wrong[0]["task"] != tasks[0]
    ours = open_ours(root)
    assert [ours[i]["task"] for i in range(len(ours))] == tasks


def test_14_language_columns_stay_in_batches(made):
    items = open_ours(made / "av1").__getitems__([0, 20, 4])
    assert "language_events" not in lerobot_collate_fn([dict(item) for item in items])
    batch = reelpool.collate(items)
    assert batch["language_events"] == [item["language_events"] for item in items]
    assert any(batch["language_events"])


def test_16_set_epoch_does_not_undo_a_loaded_state():
    """Wrappers send set_epoch(0) first, after a restore too."""
    bounds = ([0, 10], [10, 25])
    options = {"shuffle": True, "seed": 5}
    whole = reelpool.EpisodeAwareSampler(*bounds, **options)
    passes = [[int(i) for i in whole] for _ in range(4)]
    theirs = lerobot.datasets.sampler.EpisodeAwareSampler(*bounds, **options)
    ours = reelpool.EpisodeAwareSampler(*bounds, **options)
    for sampler in (theirs, ours):
        sampler.load_state_dict({"epoch": 2, "start_index": 7})
        sampler.set_epoch(0)
    assert list(theirs) == passes[0][7:]
    assert [int(i) for i in ours] == passes[2][7:]
    ours.set_epoch(1)
    assert [int(i) for i in ours] == passes[3]


def test_a_rate_that_is_not_the_rows_own(made, tmp_path):
    """LeRobot takes rows of other times without a word."""
    root = tmp_path / "fast"
    shutil.copytree(made / "av1", root)
    path = root / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fps": 20}))
    deltas = {"timestamp": [0.0, 0.1]}
    item = open_upstream(root, delta_timestamps={"action": [0.1]})[0]
    assert torch.equal(item["action"][0], open_upstream(made / "av1")[2]["action"])  # of 0.2 s
    with pytest.raises(reelpool.errors.FormatError, match=r"fps is 20.* 10 fps"):
        open_ours(root, delta_timestamps=deltas)
    assert_same_item(open_ours(root)[3], open_ours(made / "av1")[3], (3,))
