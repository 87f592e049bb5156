"""One dataset through torch's DataLoader in every way it is used: always the same batches."""

import pickle

import pytest
import reelpool
from batches import Wrapper, digest, lerobot_like_collate, stacked

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from torch.utils.data import DataLoader, Subset  # noqa: E402

BATCH = 5
COLLATES = {"default": None, "collate": reelpool.collate, "lerobot": lerobot_like_collate}
WINDOWS = {
    "plain": None,
    "window": {
        "observation.images.top": [-0.25, 0.0, 0.1],
        "observation.state": [0.0],
        "action": [0.0, 0.05, 0.1],
    },
}


def open_cam3(data_root, window="plain", **options):
    if not (data_root / "cam3").is_dir():
        pytest.skip("no test data: cam3")
    options.setdefault("return_uint8", True)
    return reelpool.LeRobotDataset(
        "test/cam3", root=data_root / "cam3", delta_timestamps=WINDOWS[window], **options
    )


def sample_order(dataset):
    """Frames of several episodes and files, out of order, one of them twice."""
    n = len(dataset)
    return [(i * 389 + 7) % n for i in range(12)] + [7]


def reference(dataset, order):
    """Digest of each batch, put together from single items; decoded in this process."""
    items = [dataset[i] for i in order]
    return [digest(stacked(items[i : i + BATCH])) for i in range(0, len(items), BATCH)]


def loader_of(dataset, order, **options):
    return DataLoader(dataset, batch_size=BATCH, sampler=order, **options)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("uint8", [True, False])
def test_in_the_main_process(data_root, window, uint8):
    dataset = open_cam3(data_root, window, return_uint8=uint8)
    order = sample_order(dataset)
    want = reference(dataset, order)
    for name, collate in COLLATES.items():
        loader = loader_of(dataset, order, collate_fn=collate)
        assert [digest(batch) for batch in loader] == want, name


SPAWN = pytest.param("spawn", "default", marks=pytest.mark.soak)  # the persistent workers spawn too


@pytest.mark.parametrize(
    ("method", "collate"),
    [*(("fork", name) for name in COLLATES), SPAWN, ("forkserver", "collate")],
)
def test_two_workers(data_root, method, collate):
    dataset = open_cam3(data_root, "window")
    order = sample_order(dataset)
    loader = loader_of(
        dataset,
        order,
        collate_fn=COLLATES[collate],
        num_workers=2,
        multiprocessing_context=method,
    )
    assert [digest(batch) for batch in loader] == reference(dataset, order)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_persistent_workers_over_three_epochs(data_root, method):
    dataset = open_cam3(data_root)
    order = sample_order(dataset)
    want = reference(dataset, order)  # decodes in this process before the workers start
    loader = loader_of(
        dataset, order, num_workers=2, persistent_workers=True, multiprocessing_context=method
    )
    for _ in range(3):
        assert [digest(batch) for batch in loader] == want


def test_new_workers_each_epoch(data_root):
    dataset = open_cam3(data_root)
    order = sample_order(dataset)
    loader = loader_of(dataset, order, num_workers=2, multiprocessing_context="fork")
    assert [[digest(batch) for batch in loader] for _ in range(2)] == 2 * [
        reference(dataset, order)
    ]


def test_two_loaders_interleaved(data_root):
    dataset = open_cam3(data_root)
    order = sample_order(dataset)
    want = reference(dataset, order)
    here = loader_of(dataset, order)
    there = loader_of(dataset, order, num_workers=1, multiprocessing_context="fork")
    both = list(zip(here, there))
    assert [digest(batch) for batch, _ in both] == want
    assert [digest(batch) for _, batch in both] == want


def test_batches_kept_by_the_consumer_do_not_change(data_root):
    dataset = open_cam3(data_root)
    order = sample_order(dataset) * 3
    kept = list(loader_of(dataset, order))
    assert [digest(batch) for batch in kept] == reference(dataset, order)


def test_batches_are_writable_and_their_own(data_root):
    dataset = open_cam3(data_root)
    order = sample_order(dataset)
    want = reference(dataset, order)
    for batch, expected in zip(loader_of(dataset, order), want):
        assert digest(batch) == expected
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
    assert [digest(batch) for batch in loader_of(dataset, order)] == want


def test_the_default_collate_copies_nothing(data_root):
    dataset = open_cam3(data_root)
    items = dataset.__getitems__([3, 900, 40])
    batch = torch.utils.data.default_collate(items)
    for key, value in batch.items():
        if isinstance(value, torch.Tensor):
            assert value[1].data_ptr() == items[1][key].data_ptr(), key


def test_subset_and_wrapper(data_root):
    dataset = open_cam3(data_root)
    order = sample_order(dataset)
    want = reference(dataset, order)
    subset = DataLoader(Subset(dataset, order), batch_size=BATCH)
    assert [digest(batch) for batch in subset] == want
    for workers in (0, 1):
        wrapped = loader_of(Wrapper(dataset), order, num_workers=workers)
        for batch, expected in zip(wrapped, want):
            assert torch.equal(batch.pop("twice"), batch["index"] * 2)
            assert digest(batch) == expected


def test_episode_aware_sampler_and_selection(data_root):
    dataset = open_cam3(data_root, episodes=[5, 1])
    sampler = reelpool.EpisodeAwareSampler(
        dataset.meta.episodes["dataset_from_index"],
        dataset.meta.episodes["dataset_to_index"],
        episode_indices_to_use=dataset.episodes,
        shuffle=True,
        seed=3,
        absolute_to_relative_idx=dataset.absolute_to_relative_idx,
    )
    order = [int(i) for i in sampler]
    assert sorted(order) == list(range(len(dataset)))
    short = order[: 2 * BATCH]
    assert [digest(b) for b in loader_of(dataset, short, num_workers=2)] == reference(
        dataset, short
    )


def test_pickled_dataset_is_small_and_equal(data_root):
    dataset = open_cam3(data_root, "window")
    order = sample_order(dataset)
    want = reference(dataset, order)  # opens files, decoders, tables
    data = pickle.dumps(dataset)
    assert len(data) < 64 * 1024
    assert [digest(b) for b in loader_of(pickle.loads(data), order)] == want
