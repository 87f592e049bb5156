"""Loader: every sample once, batches as items, memory that is the taker's. Embedded set."""

import math
import random
import threading

import numpy as np
import pytest
import reelpool
from batches import digest, stacked
from demo_sets import (
    FRONT,
    ORDERS,
    SMALL,
    STARTS,
    WRIST,
    all_ids,
    array,
    check_pixels,
    epoch_ids,
    ids,
    loader_of,
    open_demo,
    truth,
)

torch = pytest.importorskip("torch", reason="needs the extra `torch`")


@pytest.fixture(scope="module")
def small():
    """Two episodes of one camera: 84 quick frames."""
    dataset = open_demo(episodes=[1, 3], cameras=[WRIST])
    yield dataset
    dataset.close()


# -- which samples --


@pytest.mark.parametrize("threads", [0, 2])
def test_threads_that_share_an_iterator_get_each_batch_once(small, threads):
    taken = []
    with loader_of(small, 2, shuffle=True, num_threads=threads) as loader:
        batches = iter(loader)

        def take():
            for batch in batches:
                taken.append(batch)  # noqa: PERF402: atomic

        takers = [threading.Thread(target=take) for _ in range(4)]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join()
    assert sorted(ids(taken)) == all_ids(small)
    for batch in taken:
        check_pixels(batch, [WRIST])


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("batch_size", [1, 7, 100])
def test_every_sample_once_with_its_pixels(small, name, batch_size):
    with loader_of(small, batch_size, **ORDERS[name]) as loader:
        batches = list(loader)
        assert len(batches) == len(loader) == math.ceil(SMALL / batch_size)
    assert [len(b["index"]) for b in batches[:-1]] == [batch_size] * (len(batches) - 1)
    assert sorted(ids(batches)) == all_ids(small)
    for batch in batches:
        check_pixels(batch, [WRIST])


def test_sequential_is_the_default_and_ascending(small):
    assert epoch_ids(small, 10) == all_ids(small)


@pytest.mark.parametrize("name", list(ORDERS)[1:])
def test_seeds_and_epochs(small, name):
    options = ORDERS[name]
    with loader_of(small, 20, **options) as loader:
        epochs = [ids(loader) for _ in range(3)]
        loader.set_epoch(1)
        assert ids(loader) == epochs[1]
    assert len({tuple(e) for e in epochs}) == 3
    assert epoch_ids(small, 13 if name.startswith("uniform") else 20, **options) == epochs[0]
    assert epoch_ids(small, 20, **options | {"seed": 6}) != epochs[0]
    assert epoch_ids(small, 20, **options | {"seed": -1}) != epochs[0]


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("drop_last", [False, True])
def test_ranks_share_the_epoch(small, name, world, drop_last):
    batch_size = 5
    parts, lengths = [], []
    for rank in range(world):
        with loader_of(
            small, batch_size, rank=rank, world_size=world, drop_last=drop_last, **ORDERS[name]
        ) as loader:
            batches = list(loader)
            lengths.append(len(batches))
            assert len(batches) == len(loader)
            parts.append(batches)
    assert len(set(lengths)) == 1
    united = [i for part in parts for i in ids(part)]
    if drop_last:
        assert len(united) == len(set(united)) == SMALL // (batch_size * world) * batch_size * world
        assert {len(b["index"]) for part in parts for b in part} == {batch_size}
    else:
        assert sorted(united) == all_ids(small)


def test_a_tail_smaller_than_the_world_is_repeated_and_counted():
    dataset = open_demo(episodes=[0], cameras=[])  # 48 frames = 47 + 1
    seen = []
    for rank in range(47):
        with loader_of(dataset, 1, rank=rank, world_size=47, num_threads=0) as loader:
            seen.append(ids(loader))
            assert loader.stats()["repeated_tail"] == 46
    assert [s[1] for s in seen] == [47] * 47
    assert sorted(s[0] for s in seen) == list(range(47))


def test_drop_last_drops_other_frames_each_epoch(small):
    with loader_of(small, 50, shuffle=True, drop_last=True) as loader:
        assert len(loader) == 1
        first, second = ids(loader), ids(loader)
    assert len(first) == len(second) == 50 and set(first) != set(second)


def test_len_of_a_batch_larger_than_the_dataset(small):
    with loader_of(small, 1000, drop_last=True) as loader:
        assert len(loader) == 0 and list(loader) == []
    with loader_of(small, 1000) as loader:
        assert len(loader) == 1


def test_samplers_give_the_order():
    dataset = open_demo(episodes=[3, 1], cameras=[WRIST])

    def sampler():
        return reelpool.EpisodeAwareSampler(
            dataset.meta.episodes["dataset_from_index"],
            dataset.meta.episodes["dataset_to_index"],
            episode_indices_to_use=dataset.episodes,
            drop_n_last_frames=3,
            shuffle=True,
            seed=11,
            absolute_to_relative_idx=dataset.absolute_to_relative_idx,
        )

    reference = sampler()
    want = [[int(dataset[i]["index"]) for i in reference] for _ in range(2)]
    with loader_of(dataset, 8, sampler=sampler()) as loader:
        assert len(loader) == math.ceil(len(want[0]) / 8)
        first = []
        for batch in loader:
            first += ids([batch])
            if len(first) == 24:
                state = loader.state_dict()
        assert [first, ids(loader)] == want
    with loader_of(dataset, 8, sampler=sampler()) as loader:
        loader.load_state_dict(state)
        assert ids(loader) == want[0][24:]
        assert ids(loader) == want[1]
    shares = []
    for rank in range(2):
        with loader_of(dataset, 8, sampler=sampler(), rank=rank, world_size=2) as loader:
            shares.append([ids([batch]) for batch in loader])
    assert [x for pair in zip(*shares) for batch in pair for x in batch] == want[0]
    with loader_of(dataset, 4, sampler=[-1, 0, 0, 5]) as loader:
        assert ids(loader) == [STARTS[4] - 1, STARTS[1], STARTS[1], STARTS[1] + 5]


# -- what a batch is --


def test_batches_are_stacked_items_with_the_items_keys():
    dataset = open_demo(delta_timestamps={FRONT: [-0.1, 0.0], "action": [0.0, 0.1, 0.2]})
    order = [0, 47, 48, 183, 91, 92, 5]
    with loader_of(dataset, 7, sampler=order) as loader:
        (batch,) = loader
    want = stacked([dataset[i] for i in order])
    assert list(batch) == list(want)
    assert digest(batch) == digest(want)
    assert batch[FRONT].shape == (7, 2, 3, 240, 320) and batch[WRIST].shape == (7, 3, 144, 192)
    assert batch["action"].shape == (7, 3, 3) and batch["action_is_pad"].dtype == torch.bool
    assert batch["index"].shape == (7,) and isinstance(batch["task"], list)


@pytest.mark.parametrize("name", ["uniform", "locality"])
def test_threads_and_prefetch_change_nothing(name):
    dataset = open_demo(return_uint8=False, delta_timestamps={"action": [0.0, 0.1]})
    seen = set()
    for threads, prefetch in [(0, 2), (1, 0), (1, 2), (2, 4)]:
        with loader_of(
            dataset, 20, num_threads=threads, prefetch_batches=prefetch, **ORDERS[name]
        ) as loader:
            seen.add(tuple(digest(batch) for _, batch in zip(range(4), loader)))
            assert loader.stats()["threads"] == threads
    assert len(seen) == 1


def test_numpy_output(small):
    with loader_of(small, 9, output="numpy") as arrays, loader_of(small, 9) as tensors:
        for a, b in zip(arrays, tensors):
            assert all(isinstance(v, (np.ndarray, list)) for v in a.values())
            assert digest(a) == digest(b)


def test_dlpack_shares_memory(small):
    with loader_of(small, 4) as tensors, loader_of(small, 4, output="numpy") as arrays:
        tensor, array_ = next(iter(tensors))[WRIST], next(iter(arrays))[WRIST]
    assert np.from_dlpack(tensor).ctypes.data == tensor.data_ptr() == tensor.numpy().ctypes.data
    other = torch.from_dlpack(array_)
    other[0, 0, 0, 0] += 1
    assert array_[0, 0, 0, 0] == int(other[0, 0, 0, 0])
    assert array_.flags.writeable and array_.flags.c_contiguous and tensor.is_contiguous()


def test_batches_kept_by_the_consumer_never_change():
    dataset = open_demo(cameras=[WRIST])
    rng = random.Random(1)
    kept = []
    with loader_of(dataset, 3, shuffle=True, num_threads=2) as loader:
        for _ in range(3):
            for batch in loader:
                kept.append((batch, digest(batch)))
                if len(kept) > 50:
                    kept.pop(rng.randrange(50))
        held = loader.stats()["arena_blocks"]
        assert 50 <= held <= 51 + 2 + 2 + 1
    assert len(kept) == 50  # and the loader is closed
    for batch, before in kept:
        assert digest(batch) == before
        check_pixels(batch, [WRIST])


def test_what_the_consumer_writes_stays_in_its_batch(small):
    with loader_of(small, 6, shuffle=True) as loader:
        for _ in range(3):
            for batch in loader:
                check_pixels(batch, [WRIST])
                for value in batch.values():
                    if isinstance(value, torch.Tensor):
                        value.fill_(1)


def test_a_view_keeps_a_batch_alive(small):
    with loader_of(small, 6) as loader:
        stream = iter(loader)
        view = next(stream)[WRIST][2, 1]
        before = view.clone()
        for _ in stream:
            pass
    assert torch.equal(view, before)
    assert np.array_equal(array(view), truth()[WRIST][STARTS[1] + 2, 1])


def test_memory_in_flight_is_bounded(small):
    with loader_of(small, 5, shuffle=True, prefetch_batches=3) as loader:
        for _ in range(4):
            for _batch in loader:
                assert loader.stats()["arena_blocks"] <= 3 + 2
        del _batch
        grown = loader.stats()["arena_grown"]
        kept = list(loader)
        del kept
        list(loader)
        assert loader.stats()["arena_blocks"] <= 3 + 2
        assert grown <= 3 + 2


def test_batches_of_a_few_bytes_are_recycled_too():
    with loader_of(open_demo(cameras=[]), 1, prefetch_batches=2) as loader:
        for _batch in loader:
            pass
        assert loader.stats()["arena_grown"] <= 2 + 2


def test_memory_budget(small):
    needed = None
    with pytest.raises(ValueError, match="memory_budget") as caught:
        loader_of(small, 5, memory_budget="1MB")
    needed = int(str(caught.value).split("at least ")[1].split()[0])
    with loader_of(small, 5, memory_budget=needed, prefetch_batches=50) as loader:
        assert ids(loader) == all_ids(small)
        assert loader.stats()["arena_blocks"] <= 4
    with pytest.raises(ValueError, match="memory_budget"):
        loader_of(small, 5, memory_budget=needed - 1)
    same = epoch_ids(small, 5, shuffle=True, memory_budget=needed)
    assert same == epoch_ids(small, 5, shuffle=True)


def test_a_tight_budget_has_room_for_pictures_that_wait(small):
    """Before it has room for more batches; indexes of a small set take next to nothing of it."""
    with pytest.raises(ValueError, match="at least") as caught:
        loader_of(small, 5, memory_budget="1MB")
    least = int(str(caught.value).split("at least ")[1].split()[0])
    one = loader_of(small, 5)._batch_bytes()
    assert least - 2 * one < 18 << 20
    with loader_of(small, 5, memory_budget=least + 6 * one, num_threads=1) as loader:
        handle = loader._engine()
        assert handle.prefetch_batches == 1
        assert handle.parked_bytes >= 4 * one


# -- transforms --


def test_image_transforms_are_seeded_per_sample():
    def noisy(picture):
        return picture + torch.rand(1)

    dataset = open_demo(return_uint8=False, cameras=[WRIST], image_transforms=noisy)
    plain = open_demo(return_uint8=False, cameras=[WRIST])

    def noise(batch_size, sampler=None, **options):
        found = {}
        with loader_of(dataset, batch_size, sampler=sampler, **options) as loader:
            for batch in loader:
                for i, picture in zip(batch["index"].tolist(), batch[WRIST]):
                    found[i] = float((picture - plain[i][WRIST]).mean())
        return found

    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    some = list(range(0, 180, 20))
    first = noise(4, sampler=some)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(4)
    assert noise(3, sampler=some[::-1]) == pytest.approx(first, abs=1e-5)
    assert len({round(v, 4) for v in first.values()}) == len(some)
    other = noise(4, sampler=some, seed=1)
    assert all(abs(other[i] - first[i]) > 1e-6 for i in some)


def test_transforms_see_windows_and_spare_depth_and_numbers():
    shapes = []

    def record(picture):
        shapes.append(tuple(picture.shape))
        return picture[..., :10, :12]

    dataset = open_demo(image_transforms=record, delta_timestamps={FRONT: [-0.1, 0.0]})
    with loader_of(dataset, 2, sampler=[3, 4]) as loader:
        (batch,) = loader
    assert shapes == [(2, 3, 240, 320), (3, 144, 192)] * 2
    assert batch[FRONT].shape == (2, 2, 3, 10, 12) and batch[WRIST].shape == (2, 3, 10, 12)
    item = dataset[3]
    assert torch.equal(batch[FRONT][0], item[FRONT])


def test_an_error_of_a_transform_ends_the_pass_at_its_batch(small):
    dataset = open_demo(episodes=[1, 3], cameras=[WRIST])
    calls = []

    def failing(picture):
        calls.append(1)
        if len(calls) == 12:
            raise ZeroDivisionError("mine")
        return picture

    dataset.set_image_transforms(failing)
    with loader_of(dataset, 5) as loader:
        stream = iter(loader)
        assert ids([next(stream), next(stream)]) == all_ids(small)[:10]
        with pytest.raises(ZeroDivisionError, match="mine"):
            next(stream)
        assert list(stream) == []
        state = loader.state_dict()
        assert (state["epoch"], state["samples_done"]) == (0, 10)
        dataset.clear_image_transforms()
        loader.load_state_dict(state)
        assert ids(loader) == all_ids(small)[10:]


# -- arguments --


@pytest.mark.parametrize(
    "options, error",
    [
        ({"shufle": True}, TypeError),
        ({"device": "gpu"}, ValueError),
        ({"output": "jax"}, ValueError),
        ({"num_threads": -1}, ValueError),
        ({"prefetch_batches": -1}, ValueError),
        ({"timeout_s": 0}, ValueError),
        ({"memory_budget": "much"}, ValueError),
        ({"window": 10}, ValueError),
        ({"unit": 10}, ValueError),
        ({"locality": (2, 2, 16)}, ValueError),
        ({"shuffle": True, "window": 0}, ValueError),
        ({"shuffle": True, "locality": (2, 3, 16)}, ValueError),
        ({"shuffle": True, "sampler": [1]}, ValueError),
        ({"sampler": [1], "window": 4}, ValueError),
        ({"rank": 1}, ValueError),
        ({"world_size": 1}, ValueError),
        ({"rank": 2, "world_size": 2}, ValueError),
    ],
)
def test_arguments_that_cannot_be_honoured(small, options, error):
    with pytest.raises(error):
        reelpool.Loader(small, 4, **options)


@pytest.mark.parametrize("size", [0, -1, 2.0, None, True, "4"])
def test_batch_sizes_that_cannot_be(small, size):
    with pytest.raises(ValueError, match="batch_size"):
        reelpool.Loader(small, size)


def test_other_datasets_are_refused_with_advice():
    with pytest.raises(TypeError, match="DataLoader"):
        reelpool.Loader([1, 2], 1)


def test_the_launchers_rank_is_used(small, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with loader_of(small, 42) as loader:
        assert len(loader) == 1 and ids(loader) == all_ids(small)[42:]


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e300, 1e10])
def test_a_timeout_may_be_as_long_as_one_likes(small, timeout_s):
    with loader_of(small, 40, timeout_s=timeout_s) as loader:
        assert len(list(loader)) == len(loader)
