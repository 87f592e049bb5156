"""hf_dataset and reader: the parts of LeRobot's internals that policies and scripts use."""

import sys

import numpy as np
import pyarrow as pa
import pytest
from demo_sets import FRAMES, FRONT, STARTS, open_demo
from reelpool.errors import MissingExtraError
from written_datasets import NUMBERS, STATE, rows, write_v30

torch = pytest.importorskip("torch", reason="needs the extra `torch`")


@pytest.fixture(scope="module")
def part():
    return open_demo(
        episodes=[3, 1], cameras=[], delta_timestamps={"action": [-0.1, 0.0, 0.1], "index": [0.1]}
    )


def test_the_view(part):
    view = part.hf_dataset
    assert len(view) == view.num_rows == len(part) == 84
    assert view.column_names == ["observation.state", "action", *NUMBERS]
    assert list(view.features) == view.column_names and view is part.hf_dataset
    assert int(view[0]["index"]) == STARTS[1] and int(view[-1]["index"]) == FRAMES - 1
    assert view[np.int64(2)]["action"].dtype == torch.float32
    assert set(view[0:2]) == set(view.column_names) and len(view[0:2]["index"]) == 2
    assert [int(i) for i in view[[5, -1]]["index"]] == [STARTS[1] + 5, FRAMES - 1]
    assert torch.stack(view["index"]).tolist() == [int(i["index"]) for i in view]
    some = view.select_columns(["index", "task_index"])
    assert some.column_names == list(some[3]) == ["index", "task_index"]
    assert part.select_columns("index").column_names == ["index"]
    assert "84" in repr(view)


@pytest.mark.parametrize("index", [84, -85])
def test_rows_outside(part, index):
    with pytest.raises(IndexError):
        part.hf_dataset[index]


def test_columns_that_do_not_exist(part):
    for call in (part.hf_dataset.select_columns, part.hf_dataset.__getitem__,
                 part.hf_dataset.data.column):  # fmt: skip
        with pytest.raises(KeyError, match="nothing"):
            call("nothing")


def test_arrow_columns(part):
    tasks = part.hf_dataset.data.column("task_index")
    assert tasks.to_numpy().dtype == np.int64 and len(tasks) == 84
    assert part.hf_dataset.data.column("action").to_pylist()[7] == part[7]["action"][1].tolist()


def test_rows_are_copies(part):
    part.hf_dataset[3]["action"].fill_(99)
    assert not (part.hf_dataset[3]["action"] == 99).any()


def test_strings(tmp_path):
    features = {"state": STATE, **NUMBERS, "note": {"dtype": "string", "shape": [1]}}
    columns = rows((3, 4)) | {"note": pa.array(list("abcdefg"))}
    view = open_demo(
        write_v30(tmp_path / "s", (3, 4), features=features, columns=columns)
    ).hf_dataset
    assert view["note"] == list("abcdefg") and view[2]["note"] == "c"
    assert view.data.column("note").to_pylist() == list("abcdefg")


def test_other_attributes_need_datasets(part, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtraError, match="datasets"):
        _ = part.hf_dataset.train_test_split
    with pytest.raises(AttributeError):
        _ = part.hf_dataset.__array__


def test_the_reader(part):
    reader = part._ensure_reader()
    assert reader is part.reader and reader.hf_dataset is part.hf_dataset
    reader.load_and_activate()
    assert reader.delta_indices == {"action": [-1, 0, 1], "index": [1]}
    assert (reader.episodes, reader.num_frames, reader.num_episodes) == ([3, 1], 84, 2)
    assert reader._absolute_to_relative_idx == part.absolute_to_relative_idx
    assert open_demo(cameras=[]).reader.delta_indices is None
    for row in (0, 20, 43, 44, 83):
        item = part[row]
        index = int(part.hf_dataset[row]["index"])
        query, pads = reader._get_query_indices(index, int(item["episode_index"]))
        got = reader._query_hf_dataset(query)
        assert torch.equal(got["action"], item["action"])
        assert torch.equal(got["index"], item["index"])
        for key in ("action_is_pad", "index_is_pad"):
            assert torch.equal(pads[key], item[key])
    assert int(reader.get_item(3)["frame_index"]) == 3


def test_the_reader_leaves_videos_out():
    dataset = open_demo(delta_timestamps={FRONT: [0.0], "action": [0.0]})
    query, _ = dataset.reader._get_query_indices(50, 1)
    assert set(dataset.reader._query_hf_dataset(query)) == {"action"}
