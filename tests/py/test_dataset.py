"""LeRobotDataset: what an index gives, how arguments are taken, where objects travel."""

import logging
import os
import pickle
import sys

import numpy as np
import pyarrow as pa
import pytest
import reelpool
from batches import digest, stacked
from demo_sets import DEMO, FRAMES, FRONT, ROOT, STARTS, WRIST, array, copy_demo, open_demo, truth
from reelpool.errors import MissingExtraError, NotFoundError, OfflineError
from written_datasets import NUMBERS, STATE, edit_info, rows, write_v2, write_v30

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

KEYS = [FRONT, WRIST, "observation.state", "action", *NUMBERS, "task"]


@pytest.fixture(scope="module")
def demo():
    dataset = open_demo()
    yield dataset
    dataset.close()


# -- items --


def test_an_item(demo):
    item = demo[50]
    assert list(item) == KEYS and isinstance(item, dict)
    assert item[FRONT].shape == (3, 240, 320) and item[FRONT].dtype == torch.uint8
    assert item["observation.state"].shape == (3,) and item["action"].dtype == torch.float32
    for key, dtype in [("timestamp", torch.float32), ("index", torch.int64)]:
        assert item[key].shape == () and item[key].dtype == dtype
    assert (int(item["index"]), int(item["frame_index"]), int(item["episode_index"])) == (50, 2, 1)
    assert isinstance(item["task"], str) and item["task"]
    assert np.array_equal(array(item[WRIST]), truth()[WRIST][50])


def test_float_pictures_are_divided_by_255():
    item = open_demo(return_uint8=False)[7]
    for camera in (FRONT, WRIST):
        assert item[camera].dtype == torch.float32
        want = truth()[camera][7].astype(np.float32) / np.float32(255)
        assert array(item[camera]).tobytes() == want.tobytes()


@pytest.mark.parametrize(
    "index, frame",
    [(0, 0), (-1, FRAMES - 1), (-FRAMES, 0), (np.int64(5), 5), (np.uint8(200 - 24), 176),
     (torch.tensor(3), 3)],
)  # fmt: skip
def test_indices(demo, index, frame):
    assert int(demo[index]["index"]) == frame


@pytest.mark.parametrize("index", [FRAMES, -FRAMES - 1, 10**12, -(10**30)])
def test_indices_outside(demo, index):
    with pytest.raises(IndexError, match="out of range"):
        demo[index]
    with pytest.raises(IndexError):
        demo.__getitems__([0, index])
    with pytest.raises(IndexError):
        demo.get_raw_item(index)


@pytest.mark.parametrize("index", [True, False, np.True_, 1.0, "0", None, [0], (0,)])
def test_what_is_no_index(demo, index):
    with pytest.raises(TypeError):
        demo[index]


@pytest.mark.parametrize(
    "part, want",
    [
        (slice(2, 6, 2), [2, 4]),
        (slice(3, 0, -1), [3, 2, 1]),
        (slice(FRAMES - 2, FRAMES + 9), [FRAMES - 2, FRAMES - 1]),
        (slice(5, 5), []),
    ],
)
def test_slices(demo, part, want):
    items = demo[part]
    assert isinstance(items, list) and [int(i["index"]) for i in items] == want


def test_lists_are_single_items_together(demo):
    order = [9, -1, 9, 130, 48, 47]
    assert digest(stacked(demo.__getitems__(order))) == digest(stacked([demo[i] for i in order]))
    assert demo.__getitems__([]) == []


def test_iteration_ends(demo):
    dataset = open_demo(cameras=[], episodes=[1])
    assert [int(item["index"]) for item in dataset] == list(range(STARTS[1], STARTS[2]))


def test_items_are_writable_and_their_own(demo):
    first = demo[3]
    for value in first.values():
        if isinstance(value, torch.Tensor):
            value.zero_()
    again = demo[3]
    assert np.array_equal(array(again[FRONT]), truth()[FRONT][3]) and int(again["index"]) == 3


def test_windows_are_clamped_to_the_episode_and_padded():
    deltas = {FRONT: [-0.2, -0.1, 0.0, 0.1], "action": [0.0, 0.1], WRIST: [-0.1], "timestamp": [0]}
    dataset = open_demo(delta_timestamps=deltas)
    assert list(dataset[0]) == [*KEYS[:-1], *(f"{k}_is_pad" for k in deltas), "task"]
    state = open_demo(cameras=[]).hf_dataset["action"]
    for row in (STARTS[1], STARTS[1] + 1, STARTS[2] - 1, 60):
        item = dataset[row]
        wanted = [min(max(row + d, STARTS[1]), STARTS[2] - 1) for d in (-2, -1, 0, 1)]
        assert np.array_equal(array(item[FRONT]), truth()[FRONT][wanted])
        assert item[f"{FRONT}_is_pad"].tolist() == [
            not STARTS[1] <= row + d < STARTS[2] for d in (-2, -1, 0, 1)
        ]
        assert item[WRIST].shape == (3, 144, 192)  # one delta: no window dimension
        assert np.array_equal(array(item[WRIST]), truth()[WRIST][max(row - 1, STARTS[1])])
        assert item["timestamp"].shape == (1,)
        assert torch.equal(item["action"][1], state[min(row + 1, STARTS[2] - 1)])


# -- selections --


def test_episodes_keep_the_callers_order_and_dataset_order_of_rows(caplog):
    with caplog.at_level(logging.WARNING, "reelpool"):
        dataset = open_demo(episodes=[3, 1, 9, 1, -1], cameras=[])
    assert dataset.episodes == [3, 1] and dataset.num_episodes == 2
    assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
    assert len(dataset) == dataset.num_frames == 84
    got = [int(item["index"]) for item in dataset[:]]
    assert got == [*range(STARTS[1], STARTS[2]), *range(STARTS[3], STARTS[4])]
    assert dataset.absolute_to_relative_idx == {index: row for row, index in enumerate(got)}
    assert open_demo(cameras=[]).absolute_to_relative_idx is None
    assert dataset.meta.total_frames == FRAMES


def test_pixels_of_a_selection():
    dataset = open_demo(episodes=[2])
    for row in (0, 51):
        assert np.array_equal(array(dataset[row][WRIST]), truth()[WRIST][STARTS[2] + row])


@pytest.mark.parametrize("episodes", [[], [4], [-1, 99]])
def test_no_episode_left(episodes):
    with pytest.raises(ValueError, match="episodes"):
        open_demo(episodes=episodes)


@pytest.mark.parametrize("episodes", [[1.5], ["1"], [True]])
def test_episodes_that_are_no_numbers(episodes):
    with pytest.raises(TypeError, match="integers"):
        open_demo(episodes=episodes)


def test_episode_filter():
    def longer(row):
        return row["length"] > 44

    assert open_demo(episode_filter=longer).episodes == [0, 2]
    assert open_demo(episodes=[3, 2, 1], episode_filter=longer).episodes == [2]
    with pytest.raises(ValueError, match="filter"):
        open_demo(episodes=[3], episode_filter=longer)


def test_cameras():
    dataset = open_demo(cameras=[WRIST])
    assert list(dataset[0]) == [WRIST, *KEYS[2:]]
    assert list(open_demo(cameras=[])[0]) == KEYS[2:]
    assert list(open_demo(cameras=[WRIST, FRONT])[0]) == KEYS
    with pytest.raises(ValueError, match="unknown"):
        open_demo(cameras=["top"])
    with pytest.raises(ValueError, match="cameras="):
        open_demo(cameras=[WRIST], delta_timestamps={FRONT: [0.0]})


def test_resize():
    dataset = open_demo(resize=(60, 80))
    item = dataset[20]
    assert item[FRONT].shape == item[WRIST].shape == (3, 60, 80)
    mean = truth()[FRONT][20].reshape(3, 60, 4, 80, 4).mean((2, 4))
    assert np.abs(array(item[FRONT]) - mean).mean() < 4
    one = open_demo(resize={FRONT: (60, 80)})
    assert torch.equal(one[20][FRONT], item[FRONT]) and one[20][WRIST].shape == (3, 144, 192)
    floats = open_demo(resize=(60, 80), return_uint8=False)[20][FRONT]
    assert np.abs(array(floats) * 255 - array(item[FRONT])).max() <= 0.51
    same = open_demo(resize={WRIST: (144, 192)})[20][WRIST]
    assert np.array_equal(array(same), truth()[WRIST][20])


@pytest.mark.parametrize(
    "resize",
    [
        (0, 5),
        (5,),
        (5, 5.5),
        "5x5",
        5,
        {"top": (5, 5)},
        {"action": (5, 5)},
        (True, 5),
        (1 << 20, 4),
    ],
)
def test_sizes_that_cannot_be(resize):
    with pytest.raises(ValueError, match="resize"):
        open_demo(resize=resize)


@pytest.mark.parametrize(
    "deltas, match",
    [
        ({"nothing": [0.0]}, "no such"),
        ({"action": []}, "empty"),
        ({"action": [0.05]}, "multiples"),
        ({"action": [0.0, 0.1002]}, "multiples"),
        ({"action": [float("nan")]}, "."),
        ({"action": [float("inf")]}, "."),
    ],
)
def test_delta_timestamps_that_cannot_be(deltas, match):
    with pytest.raises(ValueError, match=match):
        open_demo(delta_timestamps=deltas)


def test_the_tolerance_of_deltas():
    open_demo(delta_timestamps={"action": [0.10005]})
    dataset = open_demo(delta_timestamps={"action": [0.101]}, tolerance_s=0.002, cameras=[])
    assert dataset.reader.delta_indices == {"action": [1]}


@pytest.mark.parametrize(
    "options, error",
    [
        ({"camera": []}, TypeError),
        ({"video_backend": "decord"}, ValueError),
        ({"depth_output_unit": "cm"}, ValueError),
        ({"on_corrupt": "ignore"}, ValueError),
        ({"tolerance_s": -1}, ValueError),
        ({"tolerance_s": float("nan")}, ValueError),
        ({"num_threads": -1}, ValueError),
        ({"memory_budget": "lots"}, ValueError),
        ({"image_transforms": 5}, TypeError),
    ],
)
def test_arguments_that_cannot_be_honoured(options, error):
    with pytest.raises(error):
        open_demo(**options)


def test_video_backends_are_accepted():
    for backend in (None, "torchcodec", "pyav", "video_reader"):
        item = open_demo(video_backend=backend, cameras=[WRIST])[1]
        assert np.array_equal(array(item[WRIST]), truth()[WRIST][1])


def test_missing_folders(tmp_path):
    with pytest.raises(OfflineError, match=r"no copy of reelpool/demo in .*none"):
        open_demo(tmp_path / "none")
    (tmp_path / "others").touch()
    with pytest.raises(NotFoundError, match="no dataset in"):
        open_demo(tmp_path)


def test_a_dataset_without_episodes(tmp_path):
    """It is one that is going to be recorded into: nothing can be read of it yet."""
    root = copy_demo(tmp_path / "set")
    edit_info(root, total_episodes=0, total_frames=0, total_tasks=0)
    dataset = open_demo(root)
    assert len(dataset) == dataset.num_episodes == 0 and dataset[:] == list(dataset) == []
    with pytest.raises(IndexError):
        dataset[0]
    words = rf"demo has no episode: .*\n.*check the folder: {root}"
    with pytest.raises(NotFoundError, match=words):
        reelpool.StreamingLeRobotDataset("reelpool/demo", root)
    with pytest.raises(NotFoundError, match=words):
        reelpool.Loader(dataset, 2)


# -- facts --


def test_attributes(demo):
    assert (demo.fps, demo.num_frames, demo.num_episodes, len(demo)) == (10, FRAMES, 4, FRAMES)
    assert demo.repo_id == "reelpool/demo" and demo.root == ROOT and demo.revision is None
    assert demo.episodes is None and demo.image_transforms is None
    assert demo.delta_timestamps is None and demo.tolerance_s == 1e-4
    assert list(demo.features) == KEYS[2:4] + KEYS[:2] + KEYS[4:-1]
    assert demo.meta.camera_keys == [FRONT, WRIST] and demo.depth_output_unit == "mm"
    assert demo.writer is None
    text = repr(demo)
    assert "reelpool/demo" in text and str(FRAMES) in text


def test_get_raw_item(demo):
    raw = demo.get_raw_item(-1)
    assert set(raw) == set(KEYS[2:-1]) and int(raw["index"]) == FRAMES - 1
    assert torch.equal(raw["action"], demo[FRAMES - 1]["action"])


def test_stats_count_work():
    dataset = open_demo()
    assert dataset.stats() == {}
    dataset.__getitems__([0, 1, 2])
    stats = dataset.stats()
    assert stats["delivered"] == 6 and stats["samples"] == 3 and stats["reuse"] > 0
    dataset.close()
    assert dataset.stats() == {}
    assert int(dataset[3]["index"]) == 3  # reading starts the threads again
    dataset.close()


def test_image_transforms(demo):
    dataset = open_demo(image_transforms=lambda x: x[:, ::2])
    assert dataset[0][FRONT].shape == (3, 120, 320) and dataset[0]["action"].shape == (3,)
    assert dataset.__getitems__([0, 1])[1][WRIST].shape == (3, 72, 192)
    dataset.clear_image_transforms()
    assert dataset[0][FRONT].shape == (3, 240, 320)
    dataset.set_image_transforms(lambda x: x + 1)
    assert torch.equal(dataset[0][WRIST], demo[0][WRIST] + 1)
    with pytest.raises(TypeError, match="callable"):
        dataset.set_image_transforms("flip")


def test_recording_needs_lerobot(demo, monkeypatch):
    monkeypatch.setitem(sys.modules, "lerobot", None)
    for call in (reelpool.LeRobotDataset.create, reelpool.LeRobotDataset.resume):
        with pytest.raises(MissingExtraError, match="lerobot"):
            call("a/b", fps=10, features={})
    for name in ("add_frame", "save_episode", "clear_episode_buffer"):
        with pytest.raises(RuntimeError, match="create"):
            getattr(demo, name)(*[{}] * (name == "add_frame"))
    assert demo.has_pending_frames() is False
    demo.finalize()


# -- journeys --


def test_pickles(demo):
    demo[0]
    data = pickle.dumps(open_demo(episodes=[3, 1], delta_timestamps={"action": [0.0]}))
    assert len(data) < 65536 and str(ROOT / "data").encode() not in data
    copy = pickle.loads(data)
    assert copy.episodes == [3, 1] and digest(stacked([copy[1]])) == digest(
        stacked([open_demo(episodes=[3, 1], delta_timestamps={"action": [0.0]})[1]])
    )
    assert digest(stacked([pickle.loads(pickle.dumps(demo))[9]])) == digest(stacked([demo[9]]))


def test_a_forked_child_reads_too(demo):
    want = digest(stacked([demo[i] for i in (3, 100)]))
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        status = 1
        try:
            status = int(digest(stacked([demo[i] for i in (3, 100)])) != want)
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert digest(stacked([demo[i] for i in (3, 100)])) == want


def test_construction_opens_and_starts_nothing(tmp_path):
    threads = len(os.listdir("/proc/self/task"))
    files = len(os.listdir("/proc/self/fd"))
    dataset = open_demo()
    len(dataset), dataset.episodes, dataset.meta.tasks, repr(dataset)
    assert len(os.listdir("/proc/self/task")) <= threads
    assert len(os.listdir("/proc/self/fd")) <= files


# -- other kinds of columns --


def test_string_and_language_columns(tmp_path):
    features = {
        "state": STATE,
        **NUMBERS,
        "note": {"dtype": "string", "shape": [1], "names": None},
        "language_events": {"dtype": "language", "shape": [1], "names": None},
    }
    events = [[{"role": "user", "content": f"say {i}"}] if i % 2 else [] for i in range(12)]
    columns = rows((3, 4, 5)) | {
        "note": pa.array([f"note {i}" for i in range(12)]),
        "language_events": pa.array(events),
    }
    write_v30(tmp_path / "s", features=features, columns=columns)
    dataset = open_demo(tmp_path / "s")
    item = dataset[5]
    assert item["note"] == "note 5" and item["language_events"] == events[5]
    assert dataset.meta.has_language_columns
    with reelpool.Loader(dataset, 5, num_threads=1) as loader:
        batch = next(iter(loader))
    assert batch["note"] == [f"note {i}" for i in range(5)]
    assert batch["language_events"] == events[:5]
    assert batch["task"] == [dataset[i]["task"] for i in range(5)]
    items = dataset.__getitems__([0, 4])
    assert reelpool.collate(items)["language_events"] == [events[0], events[4]]
    for key in ("note", "language_events"):
        with pytest.raises(ValueError, match="window"):
            open_demo(tmp_path / "s", delta_timestamps={key: [0.0]})


def test_image_columns(tmp_path):
    pillow = pytest.importorskip("PIL.Image", reason="needs Pillow")
    import io

    cells, pictures = [], np.random.default_rng(0).integers(0, 256, (12, 6, 8, 3), np.uint8)
    for picture in pictures:
        stream = io.BytesIO()
        pillow.fromarray(picture).save(stream, "PNG")
        cells.append({"bytes": stream.getvalue(), "path": None})
    image = {"dtype": "image", "shape": [6, 8, 3], "names": ["height", "width", "channels"]}
    features = {"state": STATE, **NUMBERS, "cam": image, "other": image}
    columns = rows((3, 4, 5)) | {"cam": pa.array(cells), "other": pa.array(cells[::-1])}
    write_v30(tmp_path / "s", features=features, columns=columns)
    want = torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255
    dataset = open_demo(tmp_path / "s", delta_timestamps={"cam": [-0.1, 0.0]})
    assert dataset.meta.image_keys == ["cam", "other"]
    item = dataset[3]  # the first of its episode
    assert torch.equal(item["cam"], want[[3, 3]]) and torch.equal(item["other"], want[8])
    assert item["cam_is_pad"].tolist() == [True, False]
    with reelpool.Loader(dataset, 4, sampler=[5, 1], num_threads=1) as loader:
        (batch,) = loader
    assert torch.equal(batch["cam"], want[torch.tensor([[4, 5], [0, 1]])])
    only = open_demo(tmp_path / "s", cameras=["other"])
    assert "cam" not in only[0] and torch.equal(only.get_raw_item(0)["other"], want[11])
    dataset.set_image_transforms(lambda x: x * 0)
    assert not dataset[3]["other"].any()


@pytest.mark.parametrize("version", ["v2.0", "v2.1"])
def test_older_versions_of_generated_sets(tmp_path, version):
    old = open_demo(write_v2(tmp_path / "old", version), delta_timestamps={"state": [0.0, 0.1]})
    new = open_demo(write_v30(tmp_path / "new"), delta_timestamps={"state": [0.0, 0.1]})
    for row in range(len(new)):
        assert digest(stacked([old[row]])) == digest(stacked([new[row]]))
    assert len(old) == len(new) == 12 and old.meta.fps == new.meta.fps


def test_v21_and_v30_are_the_same_items(data_root):
    for name in ("g1_small_v21", "g1_small_v30"):
        if not (data_root / name).is_dir():
            pytest.skip(f"no test data: {name}")
    old, new = (
        reelpool.LeRobotDataset("t/g1", root=data_root / name, return_uint8=True)
        for name in ("g1_small_v21", "g1_small_v30")
    )
    assert len(old) == len(new) and old.num_episodes == new.num_episodes
    order = [(i * 389 + 7) % len(new) for i in range(8)] + [0, -1]
    assert digest(stacked(old.__getitems__(order))) == digest(stacked(new.__getitems__(order)))


def test_the_demo_folder_is_the_packages_own():
    assert DEMO.is_dir() and (DEMO / "SHA256SUMS").is_file()
