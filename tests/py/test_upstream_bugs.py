"""Faults of LeRobot 0.6.1 and of the branches that stream its datasets, which reelpool must not
have: a test per row, named after it.

| row | what goes wrong there | more tests of the same |
|---|---|---|
| 1 | a stream looks for a picture at index / fps | `test_streaming.py` |
| 2 | a stream's window of video runs into the next episode | `test_dataset.py`, `test_loader.py` |
| 3 | a stream's `episodes` and `shuffle=False` do nothing, and each epoch is the first one | |
| 4 | fewer files than workers: only one worker yields | `test_streaming_workers.py` |
| 5 | every rank reads all; under Accelerate (W - 1) / W are lost | `test_processes.py` and
  `test_accelerate` of `test_streaming_workers.py`, with processes |
| 6 | a stream's float64, windows of shape (1,), windows beyond 100 frames | |
| 7 | a stream's transforms see depth, deltas are unchecked, remote depth fails, videos come from
  the branch `main` | `test_depth.py`, `test_hub.py` |
| 8 | 1,000 decoded samples before the first batch | `test_loader.py` |
| 9-14, 16 | decoders and forks, times, tolerance, selections, columns, tasks, `set_epoch` |
  `tests/parity/test_upstream_differences.py`, beside LeRobot itself |
| 15 | each item searches rows of metadata; opening looks at a file per episode and camera | |
| 17 | the converter loses row groups, order, times, statistics, the dataset itself |
  `test_convert.py`, `test_convert_swap.py`, `test_convert_hub.py` |
| 18 | a stream's state is stale in the parent, loses what was buffered; pads by float equality | |
| 19 | one worker per rank; resume in an equal world only; B-frames at wrong times |
  `test_concat.py`, `test_mp4_index_ffprobe.py` |
| 20 | a GPU that cannot decode is not noticed; a smoke test passes by skipping |
  `test_processes.py` |
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import reelpool
from batches import digest
from convert_sets import MIXED, write_clips
from demo_sets import (
    FRAMES,
    FRONT,
    ROOT,
    STARTS,
    WRIST,
    array,
    check_pixels,
    copy_demo,
    open_demo,
    truth,
)
from hub_sets import hub_fixture  # noqa: F401
from reelpool.convert.job import Options
from reelpool.convert.run import convert
from reelpool.errors import CudaError, MissingExtraError, StateError
from reelpool.roots import LocalRoot
from test_depth import depth_set  # noqa: F401
from written_datasets import CAMERA, NUMBERS, STATE, edit_info, rows, write_v30

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))
from remote_things import bare, serve, storage

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from torch.utils.data import DataLoader, default_collate, get_worker_info  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:This DataLoader will create:UserWarning",
)
REWARD = {"dtype": "float64", "shape": [1], "names": None}


def stream(root=ROOT, **options):
    options = {"return_uint8": True, "num_threads": 1} | options
    return reelpool.StreamingLeRobotDataset("reelpool/demo", root, **options)


def indices(items):
    return [int(item["index"]) for item in items]


def with_worker(items):
    return get_worker_info().id, indices(items)


def test_row_01_pictures_are_found_by_the_episodes_start():
    dataset = stream(batch_size=8)
    late = dataset.meta.episodes[3]
    assert late[f"videos/{FRONT}/file_index"] == 1  # index / fps lies beyond that file's end
    assert late[f"videos/{FRONT}/from_timestamp"] != late["dataset_from_index"] / dataset.fps
    seen = list(dataset)
    assert sorted(indices(seen)) == list(range(FRAMES))
    check_pixels(default_collate(seen))


def test_row_02_windows_end_with_the_episode():
    steps = [0, 1, 3]
    deltas = {FRONT: [s / 10 for s in steps], WRIST: [-s / 10 for s in steps]}
    seen = {int(item["index"]): item for item in stream(delta_timestamps=deltas)}
    for first, end in itertools.pairwise(STARTS):  # each file's last frame among them
        for row in (first, end - 2, end - 1):
            item = seen[row]
            after = [min(row + s, end - 1) for s in steps]
            before = [max(row - s, first) for s in steps]
            assert np.array_equal(array(item[FRONT]), truth()[FRONT][after])
            assert np.array_equal(array(item[WRIST]), truth()[WRIST][before])
            assert item[f"{FRONT}_is_pad"].tolist() == [row + s >= end for s in steps]
            assert item[f"{WRIST}_is_pad"].tolist() == [row - s < first for s in steps]


def test_row_03_episodes_shuffle_and_epochs_are_honoured():
    dataset = stream(cameras=[], episodes=[3, 1], batch_size=8)
    rows_of = [*range(48, 92), *range(144, 184)]
    assert (dataset.num_frames, dataset.num_episodes) == (len(rows_of), 2)
    assert indices(stream(cameras=[], episodes=[3, 1], shuffle=False)) == rows_of
    loader = DataLoader(dataset, batch_size=8, num_workers=2, collate_fn=indices)
    epochs = [list(itertools.chain.from_iterable(loader)) for _ in range(2)]  # new workers each
    assert sorted(epochs[0]) == sorted(epochs[1]) == rows_of
    assert epochs[0] != epochs[1] and rows_of not in epochs


@pytest.mark.parametrize("options", [{}, {"max_num_shards": 0}, {"max_num_shards": 1}])
def test_row_04_workers_are_not_bound_to_files(tmp_path, options):
    root = write_v30(tmp_path / "set", lengths=(40, 40))  # one file
    dataset = stream(root, batch_size=5, **options)
    found = list(DataLoader(dataset, batch_size=5, num_workers=3, collate_fn=with_worker))
    assert {worker for worker, _ in found} == {0, 1, 2}
    assert sorted(i for _, part in found for i in part) == list(range(80))


def test_row_05_ranks_and_their_workers_are_disjoint():
    parts = []
    for rank, workers in enumerate((0, 1, 2)):
        dataset = stream(cameras=[], batch_size=4, rank=rank, world_size=3)
        loader = DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=indices)
        parts.append(list(loader))
    assert len({len(part) for part in parts}) == 1
    assert sorted(i for part in parts for batch in part for i in batch) == list(range(FRAMES))


@pytest.mark.parametrize("kind", ["shape (1,)", "vector"])
def test_row_06_numbers_keep_their_types_and_windows_any_length(tmp_path, kind):
    length, far = 400, 150
    columns = rows((length, length))
    columns["reward"] = pa.array(np.arange(2.0 * length))
    root = write_v30(
        tmp_path / "set",
        (length, length),
        features={"reward": REWARD, "state": STATE, **NUMBERS},
        columns=columns,
    )
    key = "state" if kind == "vector" else "reward"
    dataset = stream(root, delta_timestamps={key: [-far / 10, 0.0, far / 10]})
    seen = list(dataset)
    for item in seen:
        row = int(item["index"])
        first = row // length * length
        wanted = [row - far, row, row + far]
        inside = [min(max(i, first), first + length - 1) for i in wanted]
        want = np.array(inside, np.float32) if key == "reward" else None
        if key == "state":
            want = np.array([[2 * i, 2 * i + 1] for i in inside], np.float32)
        assert np.array_equal(array(item[key]), want)
        assert item[f"{key}_is_pad"].tolist() == [a != b for a, b in zip(wanted, inside)]
    batch = default_collate(seen[:8])
    assert {batch[k].dtype for k in ("reward", "state", "timestamp")} == {torch.float32}
    assert {batch[k].dtype for k in ("index", "task_index")} == {torch.int64}


def test_row_07_depth_is_no_picture_and_deltas_are_checked(
    depth_set,  # noqa: F811
    tmp_path,
    monkeypatch,
):
    bare(monkeypatch.setenv, lambda name: monkeypatch.delenv(name, raising=False), tmp_path)
    root, codes = depth_set
    seen = []

    def transform(picture):
        seen.append(picture)
        return picture

    options = {"delta_timestamps": {"depth": [0.0, 0.1]}, "depth_output_unit": "m"}
    with serve(root) as server:  # remote depth, too
        far = stream(
            server.url("/set"), image_transforms=transform, storage_options=storage(), **options
        )
        found = {int(item["index"]): item for item in far}
    near = stream(root, **options)
    wanted = {int(item["index"]): item for item in near}
    assert len(found) == len(codes) and not seen
    assert {i: digest(item) for i, item in found.items()} == {
        i: digest(item) for i, item in wanted.items()
    }
    assert 0 < float(wanted[0]["depth"].max()) <= 4.0  # metres, as was asked for
    for wrong in ({"depth": [0.05]}, {"nothing": [0.0]}, {"depth": []}):
        with pytest.raises(ValueError, match="delta_timestamps"):
            stream(root, delta_timestamps=wrong)


def test_row_07_videos_are_those_of_the_revision(hub, tmp_path):
    repo = hub.repos["o/n"]
    tagged = repo.tags["v3.0"]
    hub.add("o/other", copy_demo(tmp_path / "other"))
    repo.commit({path: blob for path, blob in repo.commits[tagged].items() if "meta" in path})
    assert repo.branches["main"] != tagged  # and there are no videos
    dataset = reelpool.StreamingLeRobotDataset("o/n", num_threads=1, return_uint8=True)
    assert dataset.revision == tagged and dataset.reads_ranges
    check_pixels(default_collate(list(itertools.islice(dataset, 24))))
    asked = hub.requests(r"resolve/.*mp4")
    assert asked and all(tagged in request for request in asked)


@pytest.mark.parametrize("options", [{"batch_size": 8}, {}])
def test_row_08_the_first_sample_needs_few_pictures(options):
    dataset = stream(cameras=[WRIST], buffer_size=1000, num_threads=0, **options)
    next(iter(dataset))
    assert dataset.stats()["decoded"] <= 8 * 2  # a batch, each picture with its GOP of two
    dataset = stream(cameras=[WRIST], buffer_size=1000, **options)
    next(iter(dataset))
    assert dataset._live_handle().prefetch_batches <= 2  # so many of those may lie ahead


def test_row_15_items_and_opening_search_no_metadata(tmp_path, monkeypatch):
    looked = []

    def counting(real):
        def call(*args, **options):
            looked.append(args[0])
            return real(*args, **options)

        return call

    for name in ("stat", "lstat"):
        monkeypatch.setattr(os, name, counting(getattr(os, name)))
    for name in ("resolve", "exists"):
        monkeypatch.setattr(LocalRoot, name, counting(getattr(LocalRoot, name)))
    counts = []
    for episodes in (3, 300):
        root = write_v30(
            tmp_path / str(episodes),
            (4,) * episodes,
            features={"camera": CAMERA, "state": STATE, **NUMBERS},
            cameras=["camera"],
        )
        looked.clear()
        dataset = reelpool.LeRobotDataset(
            "reelpool/demo", root, num_threads=1, delta_timestamps={"state": [0.0, 0.1] * 25}
        )
        assert len(dataset) == 4 * episodes
        counts.append(len(looked))
    assert counts[0] == counts[1]

    plain = open_demo(cameras=[], delta_timestamps={"action": [0.0, 0.1]})
    monkeypatch.setattr(
        type(plain.meta), "episodes", property(lambda meta: pytest.fail("a row of metadata"))
    )
    assert plain[5]["action"].shape == (2, 3)
    assert len(list(reelpool.Loader(plain, 8, num_threads=1))) == FRAMES // 8


def test_row_17_a_conversion_loses_nothing(tmp_path):
    """Twelve episodes whose names sort otherwise than their numbers."""
    root = write_clips(tmp_path / "arm", repeat=2)
    shuffled = "data/chunk-{episode_chunk:03d}/{episode_index}.parquet"
    edit_info(root, data_path=shuffled)
    for episode in range(12):
        path = root / f"data/chunk-000/episode_{episode:06d}.parquet"
        path.rename(path.with_name(f"{episode}.parquet"))
    names = sorted(path.name for path in (root / "data/chunk-000").iterdir())
    assert names[:3] == ["0.parquet", "1.parquet", "10.parquet"]
    states = [item["observation.state"].tolist() for item in numbers_of(root)]
    stats = (root / "meta/episodes_stats.jsonl").read_text().splitlines()

    old = convert(Options(root=root, name="arm")).old
    assert old.is_dir()  # the old files are there until somebody removes them
    file = pq.ParquetFile(root / "data/chunk-000/file-000.parquet")
    assert file.num_row_groups == 12  # one per episode
    assert [item["observation.state"].tolist() for item in numbers_of(root)] == states
    table = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet")
    for camera in MIXED:
        kept = table[f"stats/{camera}/mean"].to_pylist()
        assert kept == [json.loads(line)["stats"][camera]["mean"] for line in stats]
    for new, was in zip(reelpool.LeRobotDataset("x", root), reelpool.LeRobotDataset("x", old)):
        assert digest(new) == digest(was)  # pictures at their times


def numbers_of(root):
    return reelpool.LeRobotDataset("test/arm", root, cameras=[])


def test_row_18_states_are_exact_and_the_parent_says_that_it_knows_none(tmp_path):
    root = write_v30(tmp_path / "set", (40, 44), info={"fps": 30}, columns=rows((40, 44), fps=30))
    file = pq.ParquetFile(root / "data/chunk-000/file-000.parquet")
    assert file.num_row_groups == 1  # for both episodes
    deltas = [s / 30 for s in range(-4, 5)]
    whole = list(stream(root, batch_size=6, delta_timestamps={"state": deltas}))
    for item in whole:  # k / 30 is no float: pads are told by whole numbers
        row = int(item["index"])
        first, end = (0, 40) if row < 40 else (40, 84)
        assert item["state_is_pad"].tolist() == [not first <= row + s < end for s in range(-4, 5)]

    taken = stream(root, batch_size=6)
    head = indices(itertools.islice(taken, 23))
    again = stream(root, batch_size=6)
    again.load_state_dict(taken.state_dict())
    assert head + indices(again) == indices(whole)

    parent = stream(root, batch_size=6)
    next(iter(DataLoader(parent, batch_size=6, num_workers=1, collate_fn=indices)))
    with pytest.raises(StateError, match=r"Loader.*StatefulDataLoader.*state_for_step"):
        parent.state_dict()


def test_row_19_workers_worlds_and_batches_are_free():
    first = stream(cameras=[], batch_size=12, lanes=24)
    loader = reelpool.Loader(first, 12, num_threads=1)
    batches = iter(loader)
    head = [i for _ in range(4) for i in next(batches)["index"].tolist()]
    state = loader.state_dict()
    loader.close()
    tail = []
    for rank in range(2):  # twice the ranks, three workers each, smaller batches
        part = stream(cameras=[], batch_size=4, lanes=24, rank=rank, world_size=2)
        part.load_state_dict(state)
        workers = DataLoader(part, batch_size=4, num_workers=3, collate_fn=indices)
        tail += list(itertools.chain.from_iterable(workers))
    assert sorted(head + tail) == list(range(FRAMES))


def test_row_19_pictures_out_of_order_have_their_own_times(tmp_path):
    if shutil.which("ffmpeg") is None:
        pytest.skip("needs ffmpeg")
    path = b_frames(tmp_path)
    order = [7, 0, 12, 3, 22, 1]
    frames = reelpool.decode_video_frames(path, [n / 10 for n in order], 1e-4, return_uint8=True)
    shades = array(frames).mean(axis=(1, 2, 3))
    assert np.abs(shades - [20 + 9 * n for n in order]).max() < 4


def b_frames(folder):
    """A clip whose picture n is about as grey as 20 + 9 n, with B-frames."""
    shades = np.repeat(np.arange(20, 20 + 9 * 24, 9, dtype=np.uint8), 64 * 96 * 3)
    path = folder / "clip.mp4"
    command = ["ffmpeg", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", "96x64",
               "-r", "10", "-i", "-", "-c:v", "libx264", "-bf", "3", "-b_strategy", "0", "-g", "12",
               "-pix_fmt", "yuv420p", str(path)]  # fmt: skip
    done = subprocess.run(command, input=shades.tobytes(), capture_output=True)
    if done.returncode != 0:
        pytest.skip(f"this ffmpeg writes no H.264: {done.stderr[-200:]!r}")
    return path


def test_row_20_a_gpu_that_is_not_there_is_not_replaced_unseen():
    if any(Path("/dev").glob("nvidia[0-9]*")):
        pytest.skip("there is a GPU")
    with pytest.raises((MissingExtraError, CudaError), match=r"CUDA|driver"):
        next(iter(stream(video_decode_device="cuda")))
    with pytest.raises(CudaError, match="cpu"):
        next(iter(reelpool.Loader(open_demo(), 2, device="cuda", output="dlpack")))


def test_row_20_a_missing_rank_is_a_failure_not_a_skip(tmp_path):
    from test_processes import check_job, run_ranks

    run_ranks(tmp_path, ["stream"], [{"RANK": 1, "WORLD_SIZE": 2}])
    with pytest.raises(AssertionError):
        check_job(tmp_path, "stream", 2)
