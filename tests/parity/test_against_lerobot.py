"""Random windows, selections and indices: an item of reelpool is LeRobot's item, bit for bit."""

import os
import random
import shutil

import lerobot.datasets.lerobot_dataset as theirs
import lerobot.datasets.streaming_dataset
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reelpool
import torch
from compare import assert_same_item, assert_same_value

CASES = int(os.environ.get("REELPOOL_PARITY_CASES", "10"))


def open_both(root, **options):
    """(reelpool's, LeRobot's) dataset of one root, or the exception that each raised."""
    ours = reelpool.LeRobotDataset("parity/x", root=root, **options)
    other = theirs.LeRobotDataset("parity/x", root=root, **options)
    return ours, other


def random_deltas(rng, meta):
    """Random windows over random keys; None now and then."""
    if rng.random() < 0.2:
        return None
    # LeRobot itself fails on windows over its task column, and with video over its time column.
    keys = [
        key
        for key, feature in meta.features.items()
        if feature["dtype"] not in ("string", "language") and key not in ("timestamp", "task_index")
    ]
    deltas = {}
    for key in rng.sample(keys, rng.randint(1, min(4, len(keys)))):
        reach = rng.choice([1, 4, 40])
        steps = [rng.randint(-reach, reach) for _ in range(rng.choice([1, 2, 5]))]
        noise = rng.choice([0.0, 3e-6])
        deltas[key] = [step / meta.fps + noise for step in steps]
    return deltas


def random_selection(rng, meta):
    """`episodes` and `episode_filter` arguments."""
    everything = list(range(meta.total_episodes))
    options = {}
    if rng.random() < 0.5:
        options["episodes"] = rng.sample(everything, rng.randint(1, len(everything)))
    if rng.random() < 0.3:
        wanted = set(options.get("episodes", everything)[:2])
        options["episode_filter"] = lambda row: row["episode_index"] in wanted
    return options


def flip(picture):
    return picture.flip(-1)


@pytest.mark.parametrize("seed", range(CASES))
def test_random_items(root, seed):
    rng = random.Random(f"{root.name} {seed}")
    meta = reelpool.LeRobotDatasetMetadata("parity/x", root=root)
    options = {
        "delta_timestamps": random_deltas(rng, meta),
        "return_uint8": rng.random() < 0.5,
        "depth_output_unit": rng.choice(["m", "mm"]),
        "image_transforms": rng.choice([None, None, flip]),
        **random_selection(rng, meta),
    }
    ours, other = open_both(root, **options)
    assert len(ours) == len(other) == ours.num_frames == other.num_frames
    assert ours.num_episodes == other.num_episodes
    assert ours.episodes == other.episodes
    assert ours.absolute_to_relative_idx == other.absolute_to_relative_idx

    count = len(other)
    indices = [rng.randrange(-count, count) for _ in range(5)] + [0, count - 1]
    batch = ours.__getitems__(indices)
    for index, from_batch in zip(indices, batch):
        want = other[index]
        where = (root.name, options, index)
        assert_same_item(ours[index], want, (*where, "getitem"))
        assert_same_item(from_batch, want, (*where, "getitems"))


def test_every_frame_of_the_small_sets(made):
    for name in ("av1", "h264", "stills"):
        ours, other = open_both(made / name, return_uint8=name != "av1")
        batch = ours.__getitems__(list(range(len(other))))
        for index, item in enumerate(batch):
            assert_same_item(item, other[index], (name, index))


def test_slices_and_indices(made):
    ours, other = open_both(made / "h264")
    count = len(other)
    for cut in (slice(2, 9, 3), slice(None, None, -30), slice(-2, None), slice(count, None)):
        got, want = ours[cut], other[cut]
        assert len(got) == len(want)
        for a, b in zip(got, want):
            assert_same_item(a, b, (cut,))
    for index in (np.int64(3), torch.tensor(3)):
        assert_same_item(ours[index], other[3], (type(index),))
    for index in (count, -count - 1):
        with pytest.raises(IndexError):
            other[index]
        with pytest.raises(IndexError):
            ours[index]


def test_raw_items_and_columns(root):
    ours, other = open_both(root)
    for index in (0, 5, len(other) - 1, -1):
        got, want = ours.get_raw_item(index), other.get_raw_item(index)
        assert set(got) == set(want)
        for key in want:
            assert_same_value(got[key], want[key], (root.name, index, key))
    for key in ("action", "timestamp"):
        if key not in other.features:
            continue
        got, want = ours.select_columns(key), other.select_columns([key])
        assert len(got) == len(want)
        assert_same_value(got[3][key], want[3][key], (root.name, key))
    got = ours.hf_dataset.data.column("task_index").to_numpy()
    assert np.array_equal(got, other.hf_dataset.data.column("task_index").to_numpy())
    assert set(ours.hf_dataset.column_names) == set(other.hf_dataset.column_names)


def test_reader_names_that_lerobot_uses(made):
    deltas = {"action": [0.0, 0.1, 0.2]}
    ours, other = open_both(made / "av1", delta_timestamps=deltas, episodes=[2, 4])
    a, b = ours._ensure_reader(), other._ensure_reader()
    assert a.delta_indices == b.delta_indices
    assert a._absolute_to_relative_idx == b._absolute_to_relative_idx
    index = int(other.hf_dataset[28]["index"])
    episode = int(other.hf_dataset[28]["episode_index"])
    (query, pads), (want_query, want_pads) = (
        reader._get_query_indices(index, episode) for reader in (a, b)
    )
    assert query == want_query
    assert list(pads) == list(want_pads)
    for key in want_pads:
        assert_same_value(pads[key], want_pads[key], key)
    got, want = a._query_hf_dataset(query), b._query_hf_dataset(want_query)
    for key in want:
        assert_same_value(got[key], want[key], key)


def test_transforms_can_be_set_and_cleared(made):
    ours, other = open_both(made / "av1", return_uint8=True)
    for dataset in (ours, other):
        dataset.set_image_transforms(flip)
    assert_same_item(ours[4], other[4], ("set",))
    assert_same_item(ours.__getitems__([4])[0], other[4], ("set",))
    for dataset in (ours, other):
        dataset.clear_image_transforms()
    assert_same_item(ours[4], other[4], ("clear",))
    for dataset in (ours, other):
        with pytest.raises(TypeError):
            dataset.set_image_transforms(3)


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_everything_public_is_there(made):
    """But for what a stream of decoded samples in a buffer needs."""
    ours, other = open_both(made / "av1")
    assert public(other) <= public(ours)
    assert public(other.reader) <= public(ours.reader)
    assert public(other.meta) <= public(ours.meta)
    ours, other = (
        module.StreamingLeRobotDataset("parity/x", root=made / "av1", buffer_size=7)
        for module in (reelpool, lerobot.datasets.streaming_dataset)
    )
    assert public(other) - public(ours) == {"make_frame", "rng"}
    assert ours.buffer_size == other.buffer_size == 7


@pytest.mark.parametrize("episodes", [None, [0], [4, 2]])
def test_files_and_loading_by_the_reader(made, tmp_path, episodes):
    root = shutil.copytree(made / "av1", tmp_path / "set")
    ours, other = open_both(root, episodes=episodes)
    a, b = ours.reader, other.reader
    assert a.root == b.root and (a.num_frames, a.num_episodes) == (b.num_frames, b.num_episodes)
    paths = a.get_episodes_file_paths()
    assert sorted(paths) == sorted(b.get_episodes_file_paths())
    assert a.try_load() is b.try_load() is True
    a.load_and_activate()
    (root / next(path for path in paths if path.endswith(".mp4"))).unlink()
    assert a.try_load() is b.try_load() is False


def test_transforms_by_the_reader(made):
    ours, other = open_both(made / "av1", return_uint8=True)
    for dataset in (ours, other):
        dataset.reader.set_image_transforms(flip)
    assert_same_item(ours[4], other[4], ("set",))
    assert_same_item(ours.reader.get_item(4), other.reader.get_item(4), ("set",))
    for dataset in (ours, other):
        dataset.reader.clear_image_transforms()
        with pytest.raises(TypeError):
            dataset.reader.set_image_transforms(3)
    assert_same_item(ours[4], other[4], ("clear",))


BAD_WINDOWS = [
    {"action": [0.5 / 30]},
    {"observation.images.front": [0.0, 0.01]},
    {"action": [0.0], "observation.images.front": [1e-3]},
]


@pytest.mark.parametrize("deltas", BAD_WINDOWS)
def test_windows_off_the_frame_grid_are_refused(made, deltas):
    for dataset_class in (theirs.LeRobotDataset, reelpool.LeRobotDataset):
        with pytest.raises(ValueError):
            dataset_class("parity/x", root=made / "h264", delta_timestamps=deltas)


def shift_timestamps(root, copy, seconds):
    """A copy of a dataset in which row 7 claims to be `seconds` later than it was."""
    shutil.copytree(root, copy)
    path = sorted(copy.glob("data/*/*.parquet"))[0]
    table = pq.read_table(path)
    times = table["timestamp"].to_numpy().copy()
    times[7] += seconds
    position = table.schema.get_field_index("timestamp")
    table = table.set_column(position, "timestamp", pa.array(times, pa.float32()))
    pq.write_table(table, path)


@pytest.mark.parametrize(
    ("seconds", "tolerance_s", "accepted"),
    [(0.02, 1e-4, False), (0.02, 0.03, True), (-0.03, 0.031, True), (3e-4, 1e-4, False)],
)
def test_frame_time_tolerance(made, tmp_path, seconds, tolerance_s, accepted):
    shift_timestamps(made / "av1", tmp_path / "shifted", seconds)
    ours, other = open_both(tmp_path / "shifted", tolerance_s=tolerance_s)
    if accepted:
        assert_same_item(ours[7], other[7], (seconds, tolerance_s))
        return
    with pytest.raises(ValueError):
        other[7]
    with pytest.raises(reelpool.errors.FrameTimestampError) as caught:
        ours[7]
    assert isinstance(caught.value, ValueError)
    with pytest.raises(reelpool.errors.FrameTimestampError):
        ours.__getitems__([6, 7, 8])
    assert_same_item(ours[6], other[6], ("neighbour",))


@pytest.mark.parametrize("seed", range(6))
def test_sampler_order(seed):
    from lerobot.datasets.sampler import EpisodeAwareSampler, compute_sampler_state

    rng = random.Random(seed)
    lengths = [rng.randint(1, 40) for _ in range(rng.randint(2, 30))]
    ends = np.cumsum(lengths)
    starts = ends - lengths
    options = {
        "episode_indices_to_use": rng.choice([None, rng.sample(range(len(lengths)), 2)]),
        "drop_n_first_frames": rng.choice([0, 0, 3]),
        "drop_n_last_frames": rng.choice([0, 5]),
        "shuffle": seed % 3 != 0,
        "seed": rng.randint(0, 2**32 - 1),
    }
    try:
        other = EpisodeAwareSampler(starts, ends, **options)
    except ValueError:
        with pytest.raises(ValueError):
            reelpool.EpisodeAwareSampler(starts, ends, **options)
        return
    ours = reelpool.EpisodeAwareSampler(starts, ends, **options)
    assert len(ours) == len(other)
    assert list(ours.indices) == other.indices
    for _ in range(3):
        assert [int(i) for i in ours] == list(other)
    assert ours.state_dict() == other.state_dict()
    for sampler in (ours, other):
        sampler.load_state_dict({"epoch": 4, "start_index": len(other) // 2})
    assert [int(i) for i in ours] == list(other)
    for step in (0, 1, 17, 1000):
        arguments = (step, len(other), rng.randint(1, 9), rng.randint(1, 5))
        assert reelpool.compute_sampler_state(*arguments) == compute_sampler_state(*arguments)


@pytest.mark.parametrize("uint8", [True, False])
def test_decode_video_frames(root, uint8):
    from lerobot.datasets.video_utils import decode_video_frames

    rng = random.Random(root.name)
    meta = theirs.LeRobotDataset("parity/x", root=root).meta
    if not meta.video_keys:
        pytest.skip("no video in this dataset")
    for key in meta.video_keys:
        depth = key in meta.depth_keys
        path = root / meta.get_video_file_path(0, key)
        length = meta.episodes[0]["length"]
        times = [rng.randrange(length) / meta.fps for _ in range(6)]
        times.append(times[0])
        got = reelpool.decode_video_frames(path, times, 1e-4, return_uint8=uint8, is_depth=depth)
        backend = "pyav" if depth else "torchcodec"
        want = decode_video_frames(path, times, 1e-4, backend, return_uint8=uint8, is_depth=depth)
        assert_same_value(got, want, (root.name, key))
        for bad in ([1e6], [0.4 / meta.fps]):
            with pytest.raises(ValueError):
                reelpool.decode_video_frames(path, bad, 1e-4)


def test_decoder_cache(made):
    from lerobot.datasets.video_utils import VideoDecoderCache

    paths = sorted((made / "av1/videos/observation.images.front").rglob("*.mp4"))
    ours, other = reelpool.VideoDecoderCache(max_size=2), VideoDecoderCache(max_size=2)
    for path in [paths[0], paths[1], paths[0], paths[2], paths[1]]:
        a, b = ours.get_decoder(str(path)), other.get_decoder(str(path))
        for name in ("average_fps", "num_frames", "width", "height", "codec"):
            assert getattr(a.metadata, name) == getattr(b.metadata, name), name
        got, want = a.get_frames_at(indices=[1, 0, 1]), b.get_frames_at(indices=[1, 0, 1])
        assert_same_value(got.data, want.data, path)
        assert torch.allclose(got.pts_seconds, want.pts_seconds, atol=1e-9, rtol=0)
        assert ours.size() == other.size()
        assert [p in ours for p in paths] == [p in other for p in paths]
    stats = ours.stats()
    assert (stats["hits"], stats["misses"], stats["evictions"]) == (1, 4, 2)
    ours.clear()
    assert ours.size() == 0
    for bad in (0, -1):
        with pytest.raises(ValueError):
            reelpool.VideoDecoderCache(max_size=bad)
