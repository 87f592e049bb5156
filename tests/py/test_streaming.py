"""StreamingLeRobotDataset in one process: items, order, arguments. Embedded set."""

import hashlib
import inspect
import itertools
import json
import logging
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
import reelpool
from batches import digest, stacked
from demo_sets import FRAMES, FRONT, ROOT, WRIST, all_ids, copy_demo, ids, open_demo, video
from reelpool.errors import NotFoundError, ReelpoolError, UnsupportedMediaError
from reelpool.order import Share

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from torch.utils.data import DataLoader, IterableDataset, default_collate  # noqa: E402


def stream(**options):
    options.setdefault("return_uint8", True)
    options.setdefault("num_threads", 1)
    return reelpool.StreamingLeRobotDataset("reelpool/demo", options.pop("root", ROOT), **options)


def fast(**options):
    """Numbers only: no pictures to decode."""
    return stream(cameras=[], **options)


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


def indices(items):
    return [int(item["index"]) for item in items]


# -- items --


@pytest.mark.parametrize("uint8", [True, False])
def test_items_are_those_of_the_map_style_class(uint8):
    deltas = {FRONT: [-0.1, 0.0], "action": [0.0, 0.1, 0.2], "observation.state": [0.0]}
    options = {"return_uint8": uint8, "delta_timestamps": deltas}
    dataset, reference = stream(batch_size=8, **options), open_demo(**options)
    for item in itertools.islice(dataset, 40):
        want = reference[int(item["index"])]
        assert list(item) == list(want)
        assert digest(item) == digest(want)
        assert type(item) is reelpool.Item


def test_every_picture_of_an_epoch():
    dataset, reference = stream(cameras=[WRIST], batch_size=16), open_demo(cameras=[WRIST])
    seen = {int(item["index"]): digest(item) for item in dataset}
    want = {i: digest(item) for i, item in enumerate(reference.__getitems__(range(FRAMES)))}
    assert seen == want


def test_the_selection_and_its_facts():
    dataset = fast(episodes=[3, 1])
    assert dataset.episodes == [3, 1] and dataset.num_shards == dataset.num_episodes == 2
    assert sorted(indices(dataset)) == all_ids(dataset) == all_ids(open_demo(episodes=[1, 3]))
    assert dataset.num_frames == 84 and dataset.fps == dataset.meta.fps
    assert dataset.delta_indices is None
    assert stream(delta_timestamps={"action": [0.0, 0.1]}).delta_indices == {"action": [0, 1]}
    assert isinstance(dataset, IterableDataset) and not hasattr(dataset, "__len__")
    assert dataset.streaming_from_local and dataset.repo_type == "dataset"
    assert "StreamingLeRobotDataset" in repr(dataset)
    assert dataset.hf_dataset.column_names


def test_a_batch_is_handed_over_without_a_copy():
    items = list(itertools.islice(stream(cameras=[WRIST], batch_size=8), 8))
    for collate in (default_collate, reelpool.collate):
        batch = collate(items)
        assert batch[WRIST][3].data_ptr() == items[3][WRIST].data_ptr()
        assert digest(batch) == digest(stacked(items))
    assert default_collate(items[:7])[WRIST].data_ptr() != items[0][WRIST].data_ptr()


def test_transforms_are_seeded_as_by_the_loader():
    def noisy(picture):
        return picture + torch.rand(1)

    dataset = stream(
        cameras=[WRIST], batch_size=8, return_uint8=False, image_transforms=noisy, episodes=[1]
    )
    state = torch.random.get_rng_state()
    mine = {int(item["index"]): item[WRIST] for item in dataset}
    assert torch.equal(torch.random.get_rng_state(), state)
    with reelpool.Loader(dataset, 5, num_threads=1) as loader:
        for batch in loader:
            for index, picture in zip(batch["index"].tolist(), batch[WRIST]):
                assert torch.equal(picture, mine[index])
    assert not torch.equal(mine[48], next(iter(dataset))[WRIST])  # another epoch: other noise


# -- order --


def rows_of_feed(feed):
    out = []
    while (found := feed.next()) is not None:
        out.append(found[0].tolist())
    return out


def joined(dataset, batch, world, workers, epoch=0):
    """All samples in order: the slices of each global batch, rank by rank."""
    order, size = dataset._order, batch * world
    params = order.params(size)
    by_rank = []
    for rank in range(world):
        shares = [
            rows_of_feed(order.feed(epoch, 0, params, Share(batch, rank, world, v, workers)))
            for v in range(workers)
        ]
        # A DataLoader takes batch n from worker n mod K.
        steps = itertools.zip_longest(*shares)
        by_rank.append([rows for step in steps for rows in step if rows is not None])
    assert len({len(batches) for batches in by_rank}) == 1
    return [rows for step in zip(*by_rank) for rows in step]


@pytest.mark.parametrize("options", [{}, {"window": 40, "unit": 8}, {"shuffle": False},
                                     {"window": FRAMES}, {"locality": (10, 3, 16)}])  # fmt: skip
def test_one_order_for_every_world_and_every_number_of_workers(options):
    dataset = fast(**options)
    hashes = set()
    for world in (1, 2, 3, 4, 6, 8):
        for workers in (1, 2, 4, 8):
            rows = joined(dataset, 24 // world, world, workers)
            found = flat(rows)
            assert sorted(found) == list(range(FRAMES))
            hashes.add(hashlib.sha256(repr(found).encode()).hexdigest())
    assert len(hashes) == 1
    other = joined(dataset, 24, 1, 1, epoch=1)
    assert (flat(other) == found) == (options == {"shuffle": False})


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_each_batch(world):
    parts = [indices(fast(batch_size=24 // world, rank=r, world_size=world)) for r in range(world)]
    assert sorted(flat(parts)) == list(range(FRAMES))
    whole = indices(fast(batch_size=24))
    size = 24 // world
    for n in range(FRAMES // 24):
        united = flat(part[n * size : (n + 1) * size] for part in parts)
        assert united == whole[n * 24 : (n + 1) * 24]
    for rank, part in enumerate(parts):
        dataset = fast(batch_size=24 // world)
        assert dataset.num_frames_for_rank(rank, world, 4) == len(part)


def test_a_tail_smaller_than_the_world_repeats_samples():
    options = {"batch_size": 4, "world_size": 5, "episodes": [1]}  # 44 = 2 * 20 + 4
    parts = [indices(fast(rank=rank, **options)) for rank in range(5)]
    assert [len(part) for part in parts] == [9] * 5
    assert sorted(set(flat(parts))) == list(range(48, 92))
    dataset = fast(batch_size=4, episodes=[1])
    assert {dataset.num_frames_for_rank(rank, 5) for rank in range(5)} == {9}


def test_without_a_batch_size_the_tail_is_cut_to_the_ranks():
    parts = [indices(fast(rank=r, world_size=3)) for r in range(3)]
    assert [len(part) for part in parts] == [FRAMES // 3] * 3
    united = flat(parts)
    assert len(set(united)) == len(united) == FRAMES // 3 * 3
    assert fast().num_frames_for_rank(1, 3) == FRAMES // 3


def test_epochs_and_seeds():
    dataset = fast(batch_size=8)
    epochs = [indices(dataset) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    dataset.set_epoch(1)
    assert indices(dataset) == epochs[1]
    assert indices(fast(batch_size=8, seed=43)) != epochs[0]
    assert indices(fast(batch_size=8, num_threads=0)) == epochs[0]
    assert indices(fast(batch_size=8, shuffle=False)) == list(range(FRAMES))


def test_a_generator_gives_the_seed_by_one_draw():
    seeds = [fast(rng=np.random.default_rng(5)).seed for _ in range(2)]
    assert seeds[0] == seeds[1] != 42
    rng = np.random.default_rng(5)
    assert fast(rng=rng).seed != fast(rng=rng).seed


def test_a_stream_without_end():
    dataset = fast(batch_size=24, repeat=True)
    found = indices(itertools.islice(dataset, 3 * FRAMES))
    for n in range(3):
        assert sorted(found[n * FRAMES : (n + 1) * FRAMES]) == list(range(FRAMES)) or n
    assert len(set(map(tuple, np.reshape(found, (3, FRAMES)).tolist()))) == 3
    state = dataset.state_dict()
    done = state["epoch"] * FRAMES + state["samples_done"] + state.get("part", [0])[-1]
    assert done == 3 * FRAMES and state["epoch"] in (2, 3)
    with reelpool.Loader(dataset, 50, num_threads=1) as loader:
        sizes = [len(batch["index"]) for batch in itertools.islice(loader, 9)]
        assert sizes == [50] * 9 and loader.state_dict()["epoch"] == 9 * 50 // FRAMES


def test_a_new_iterator_ends_the_one_before():
    dataset = fast(batch_size=8)
    first = iter(dataset)
    next(first)
    second = iter(dataset)
    assert list(first) == []
    assert len(list(second)) == FRAMES


# -- Loader --


def test_the_loader_gives_the_datasets_batches():
    dataset = stream(cameras=[WRIST], batch_size=8, seed=9)
    with reelpool.Loader(dataset, 8, num_threads=2) as loader:
        for _ in range(2):
            batches = [digest(batch) for batch in DataLoader(dataset, batch_size=8)]
            assert [digest(batch) for batch in loader] == batches


@pytest.mark.parametrize("options", [{"shuffle": False}, {"seed": 1}, {"window": 9}, {"unit": 3}])
def test_the_loader_takes_the_order_of_the_dataset(options):
    dataset = fast()
    with pytest.raises(ValueError, match=next(iter(options))):
        reelpool.Loader(dataset, 8, **options)
    with pytest.raises(ValueError, match="sampler"):
        reelpool.Loader(dataset, 8, sampler=[1])
    reelpool.Loader(dataset, 8, shuffle=True, seed=42, rank=0, world_size=2).close()
    with pytest.raises(ValueError, match="rank"):
        reelpool.Loader(fast(rank=1, world_size=2), 8, rank=0, world_size=2)


def test_lanes_pin_the_order_for_another_world():
    dataset = fast(lanes=64)
    with reelpool.Loader(dataset, 10) as a, reelpool.Loader(dataset, 9) as b:
        assert a.state_dict() == b.state_dict()
    with reelpool.Loader(fast(), 10) as a, reelpool.Loader(fast(), 10, lanes=64) as b:
        assert (a.state_dict()["C"], b.state_dict()["C"]) == (70, 64)


# -- arguments --


def test_positions_of_the_arguments():
    names = list(inspect.signature(reelpool.StreamingLeRobotDataset).parameters)
    assert (
        names[:16]
        == (
            "repo_id root episodes image_transforms delta_timestamps tolerance_s revision "
            "force_cache_sync streaming buffer_size max_num_shards seed rng shuffle return_uint8 "
            "depth_output_unit"
        ).split()
    )


@pytest.mark.parametrize(
    ("options", "error", "word"),
    [
        ({"streaming": False}, ValueError, "LeRobotDataset"),
        ({"video_decode_device": "gpu"}, ValueError, "cuda:N"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"batch_size": True}, ValueError, "batch_size"),
        ({"rank": 1}, ValueError, "world_size"),
        ({"rank": 2, "world_size": 2}, ValueError, "rank"),
        ({"window": 0}, ValueError, "window"),
        ({"episode_pool_size": 0}, ValueError, "episode_pool_size"),
        ({"max_buffer_input_shards": 0}, ValueError, "max_buffer_input_shards"),
        ({"locality": (2, 3, 4)}, ValueError, "locality"),
        ({"video_decoder_cache_size": 0}, ValueError, "video_decoder_cache_size"),
        ({"repo_type": "model"}, ValueError, "repo_type"),
        ({"rng": 3}, TypeError, "rng"),
        ({"seed": "1"}, ValueError, "seed"),
        ({"typo": 3}, TypeError, "typo"),
        ({"num_threads": 2, "decode_threads": 3}, TypeError, "decode_threads"),
        ({"data_root": "a", "data_files_root": "b"}, TypeError, "data_root"),
        ({"max_open_decoders": 2, "video_decoder_cache_size": 3}, TypeError, "max_open_decoders"),
        ({"memory_budget": "1GiB", "byte_budget_gb": 2}, TypeError, "byte_budget_gb"),
        ({"memory_budget": "1MB", "batch_size": 64}, ValueError, "memory_budget"),
        ({"image_transforms": 3}, TypeError, "image_transforms"),
        ({"delta_timestamps": {"action": [0.033]}}, ValueError, "action"),
        ({"data_files_root": "gs://bucket/data"}, UnsupportedMediaError, "gs"),
        ({"data_files_root": "/nowhere"}, NotFoundError, "data_files_root"),
    ],
)
def test_arguments_that_cannot_be_honoured(options, error, word):
    options = {"num_threads": None} | options
    with pytest.raises(error, match=word):
        stream(**options)


def test_two_names_for_one_argument():
    dataset = fast(memory_budget="1GiB", byte_budget_gb=1, video_byte_cache_gb=1.0)
    assert dataset._memory_budget == 2**30
    assert stream(num_threads=None, decode_threads=3)._num_threads == 3
    dataset = fast(max_open_decoders=5)
    assert dataset._make_video_decoder_cache().max_size == 5


def test_arguments_without_effect_give_one_line(caplog):
    with caplog.at_level(logging.INFO, logger="reelpool"):
        fast(buffer_size=5, prefetch_episodes=2, native_http_threads=4, byte_index_cache=1)
    (record,) = [r for r in caplog.records if "no effect" in r.getMessage()]
    for name in ("buffer_size", "prefetch_episodes", "native_http_threads", "byte_index_cache"):
        assert name in record.getMessage()
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="reelpool"):
        fast()
    assert not [r for r in caplog.records if "no effect" in r.getMessage()]


def test_a_budget_changes_nothing_but_memory():
    want = indices(stream(cameras=[WRIST], batch_size=8, episodes=[1]))
    with pytest.raises(ValueError, match="at least") as caught:
        stream(cameras=[WRIST], batch_size=8, episodes=[1], memory_budget=1)
    need = int(str(caught.value).split("at least ")[1].split()[0])
    small = stream(cameras=[WRIST], batch_size=8, episodes=[1], memory_budget=need)
    assert indices(small) == want


def test_without_a_batch_size_memory_is_of_few_samples():
    """Not of as many as the order has lanes. What is made at once changes no order."""
    want = indices(stream(cameras=[WRIST]))
    with reelpool.Loader(fast(), 64, num_threads=1) as loader:
        assert want == ids(loader)
    one = open_demo(cameras=[WRIST])[0][WRIST].nbytes
    dataset = stream(cameras=[WRIST], num_threads=1)
    assert indices(dataset) == want and dataset.stats()["arena_bytes"] < 40 * one
    with pytest.raises(ValueError, match="at least") as caught:
        stream(cameras=[WRIST], memory_budget=1)
    least = int(str(caught.value).split("at least ")[1].split()[0])
    dataset = stream(cameras=[WRIST], num_threads=1, memory_budget=least)
    assert indices(dataset) == want and dataset.stats()["arena_bytes"] < 6 * one


def test_row_groups_are_checked_on_demand(tmp_path):
    import pyarrow.parquet as pq

    root = copy_demo(tmp_path / "set")
    fast(root=root, validate_row_groups=False)
    for path in root.glob("data/*/*.parquet"):
        table = pq.read_table(path)
        episodes = table.column("episode_index").to_pylist()
        with pq.ParquetWriter(path, table.schema) as writer:
            for episode in sorted(set(episodes)):
                first = episodes.index(episode)
                writer.write_table(table.slice(first, episodes.count(episode)))
    fast(root=root, validate_row_groups=True)
    path = next(root.glob("data/*/*.parquet"))
    pq.write_table(pq.read_table(path), path, row_group_size=7)
    with pytest.raises(ValueError, match=r"row groups for \d+ episodes"):
        fast(root=root, validate_row_groups=True)


def test_data_files_in_another_place(tmp_path):
    root = copy_demo(tmp_path / "set")
    for folder in ("data", "videos"):
        shutil.move(root / folder, tmp_path / "files" / folder)
    dataset = stream(root=root, data_files_root=tmp_path / "files", episodes=[1], batch_size=8)
    want = {int(item["index"]): digest(item) for item in stream(episodes=[1], batch_size=8)}
    for one in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert {int(item["index"]): digest(item) for item in one} == want
    alone = stream(root=root, data_root=str(tmp_path / "files"), episodes=[1])
    assert len(list(itertools.islice(alone, 3))) == 3


def test_remote_sets_are_refused_as_by_the_map_style_class():
    with pytest.raises(UnsupportedMediaError, match="root=DIR"):
        reelpool.StreamingLeRobotDataset("gs://some/bucket")


# -- what scripts written for other streaming datasets use --


def test_private_names_of_existing_scripts():
    class Timed(reelpool.StreamingLeRobotDataset):
        def __iter__(self):
            self._in_flight_epoch = self._epoch
            self._pipeline.set_epoch(self._in_flight_epoch)
            self._epoch += 1
            self.video_decoder_cache = self._make_video_decoder_cache()
            for row in iter(self._pipeline):
                yield self._finalize_sample(row)

    timed = Timed("reelpool/demo", ROOT, cameras=[WRIST], return_uint8=True, batch_size=8,
                  num_threads=0, episodes=[1])  # fmt: skip
    plain = stream(cameras=[WRIST], batch_size=8, episodes=[1])
    for epoch in range(2):
        assert timed._epoch == epoch
        assert [digest(item) for item in timed] == [digest(item) for item in plain]
    raw = next(iter(plain._pipeline))
    assert WRIST not in raw and raw["action"].shape == (3,)
    assert digest(plain._finalize_sample(dict(raw))) == digest(plain._finalize_sample(raw))
    assert [b["index"].tolist() for b in DataLoader(timed, batch_size=8, num_workers=2)] == [
        b["index"].tolist() for b in DataLoader(plain, batch_size=8)
    ]
    assert timed._epoch == 3


def test_counters():
    dataset = stream(cameras=[WRIST], batch_size=8, episodes=[1])
    assert dataset.stats() == {"order_exact": True, "substituted": 0}
    assert dataset.video_decoder_cache_stats()["misses"] == 0
    count = len(indices(dataset))
    stats = dataset.stats()
    assert stats["samples"] == stats["delivered"] == count and stats["order_exact"]
    cache = dataset.video_decoder_cache_stats()
    assert set(cache) == {"hits", "misses", "evictions", "hit_rate", "size"}
    assert cache["misses"] == cache["size"] == stats["indexed"] >= 1
    dataset.close()
    assert dataset.stats()["order_exact"] and len(indices(dataset)) == count


def test_pickles_are_small_and_carry_the_place():
    dataset = fast(batch_size=8)
    whole, second = indices(dataset), None
    data = pickle.dumps(dataset)
    assert len(data) < 64 * 1024
    second = indices(pickle.loads(data))
    assert second == indices(dataset) != whole


def test_damage_is_an_error_at_its_place(tmp_path):
    root = copy_demo(tmp_path / "set")
    path = video(root, WRIST)
    data = bytearray(path.read_bytes())
    at = data.index(b"mdat")
    data[at + 600 : at + 900] = bytes(300)
    path.write_bytes(data)
    dataset = stream(root=root, cameras=[WRIST], batch_size=4)
    taken = []
    with pytest.raises(ReelpoolError, match="episode") as caught:
        for item in dataset:
            taken.append(int(item["index"]))
    assert caught.value.dataset == "reelpool/demo" and caught.value.camera == WRIST
    state = dataset.state_dict()
    assert state["samples_done"] == len(taken) and len(taken) % 4 == 0
    assert taken == indices(fast(batch_size=4))[: len(taken)]


def test_without_torch():
    program = f"""
import sys
sys.modules["torch"] = None
import numpy as np, reelpool
dataset = reelpool.StreamingLeRobotDataset("reelpool/demo", {str(ROOT)!r}, episodes=[1],
                                           return_uint8=True, num_threads=1, batch_size=8)
items = list(dataset)
assert sorted(int(item["index"]) for item in items) == list(range(48, 92))
assert all(isinstance(v, (np.ndarray, np.generic, str)) for v in items[0].values())
dataset.load_state_dict(dataset.state_for_step(4))
assert len(list(dataset)) == 44 - 32 and dataset._epoch == 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_states_are_json_of_at_most_256_bytes():
    dataset = fast(batch_size=8, seed=2**63)
    dataset.set_epoch(2**32 - 2)
    next(iter(dataset))
    assert len(json.dumps(dataset.state_dict())) <= 256
    assert ids([reelpool.collate(list(dataset))]) != []


def test_a_stream_holds_no_more_batches_than_are_prefetched():
    dataset = stream(batch_size=8)
    with reelpool.Loader(dataset, 8, num_threads=2, prefetch_batches=2) as loader:
        for _ in range(4):
            for _batch in loader:  # the last one is still held when the next pass begins
                pass
        assert loader.stats()["arena_blocks"] == 2
