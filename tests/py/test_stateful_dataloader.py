"""torchdata's StatefulDataLoader over the streaming class: a state of any batch goes on there."""

import copy
import json

import pytest
import reelpool
from demo_sets import ROOT, SMALL
from samples import check, samples

pytest.importorskip("torch", reason="needs the extra `torch`")
stateful = pytest.importorskip(
    "torchdata.stateful_dataloader", reason="needs torchdata beside torch"
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
BATCH = 6
BATCHES = SMALL // BATCH


def open_loader(workers, **options):
    dataset = reelpool.StreamingLeRobotDataset(
        "reelpool/demo", root=ROOT, episodes=[1, 3], return_uint8=True, seed=4, window=60, unit=8,
        num_threads=1, batch_size=options.pop("own_batch", BATCH), rank=0, world_size=1,
    )  # fmt: skip
    return stateful.StatefulDataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
        **options,
    )


def read_all(loader):
    return [samples(batch) for batch in loader]


@pytest.fixture(scope="module", params=[0, 2], ids=["workers0", "workers2"])
def epochs(request):
    """(workers, samples of each batch of epochs 0 and 1, the state after each batch of epoch 0)."""
    loader = open_loader(request.param)
    found, states = [], []
    for batch in loader:
        found.append(samples(batch))
        states.append(copy.deepcopy(loader.state_dict()))
    second = read_all(loader)
    with reelpool.Loader(open_loader(0).dataset, BATCH) as own:
        assert [[i for i, _ in batch] for batch in found] == [
            batch["index"].tolist() for batch in own
        ]
    check([sample for batch in found + second for sample in batch])
    assert len(found) == BATCHES and found != second
    return request.param, [found, second], states


def test_the_state_of_every_batch(epochs):
    workers, (first, second), states = epochs
    for done, state in enumerate(states, start=1):
        loader = open_loader(workers)
        loader.load_state_dict(state)
        assert read_all(loader) == first[done:]
        if done in (1, BATCHES - 1, BATCHES):
            assert read_all(loader) == second


def test_a_resume_of_a_resume(epochs):
    workers, (first, second), states = epochs
    state, found = states[2], first[:3]
    for steps in (4, 1, 3):
        loader = open_loader(workers)
        loader.load_state_dict(state)
        for _, batch in zip(range(steps), loader):
            found.append(samples(batch))
            state = copy.deepcopy(loader.state_dict())
    loader = open_loader(workers)
    loader.load_state_dict(state)
    assert found + read_all(loader) == first
    assert read_all(loader) == second


def test_a_state_of_the_second_epoch(epochs):
    workers, (_, second), _ = epochs
    loader = open_loader(workers)
    read_all(loader)
    for _, batch in zip(range(3), loader):
        samples(batch)
        state = loader.state_dict()
    again = open_loader(workers)
    again.load_state_dict(state)
    assert read_all(again) == second[3:]


def test_persistent_workers(epochs):
    workers, (first, second), _ = epochs
    loader = open_loader(workers, persistent_workers=workers > 0)
    assert read_all(loader) == first
    for _, batch in zip(range(5), loader):
        samples(batch)
        state = loader.state_dict()
    again = open_loader(workers, persistent_workers=workers > 0)
    again.load_state_dict(state)
    assert read_all(again) == second[5:]
    assert len(read_all(again)) == BATCHES


def test_states_every_few_steps_only(epochs):
    """torchdata then replays the batches since the last one that it asked for."""
    workers, (first, _), _ = epochs
    loader = open_loader(workers, snapshot_every_n_steps=4)
    for _, batch in zip(range(6), loader):
        samples(batch)
    again = open_loader(workers, snapshot_every_n_steps=4)
    again.load_state_dict(loader.state_dict())
    assert read_all(again) == first[6:]


def test_a_batch_size_that_the_dataset_does_not_know():
    whole = read_all(open_loader(0, own_batch=None))
    loader = open_loader(0, own_batch=None)
    for _, batch in zip(range(5), loader):
        samples(batch)
        state = loader.state_dict()
    again = open_loader(0, own_batch=None)
    again.load_state_dict(state)
    assert read_all(again) == whole[5:]


def test_other_workers_are_refused(epochs):
    """By torchdata itself; `state_for_step` is the way there."""
    _, _, states = epochs
    loader = open_loader(1)
    loader.load_state_dict(states[3])
    with pytest.raises((reelpool.errors.StateError, AssertionError), match=r"worker|_snapshot"):
        read_all(loader)


def test_the_step_number_is_enough_under_other_workers(epochs):
    workers, (first, second), _ = epochs
    loader = open_loader(2 - workers)
    loader.dataset.load_state_dict(loader.dataset.state_for_step(5))
    assert read_all(loader) == first[5:]
    assert read_all(loader) == second


def test_states_are_small(epochs):
    _, _, states = epochs
    assert all(len(json.dumps(state)) < 3000 for state in states)
