"""Streams that stop and go on: exactly, elsewhere, in DataLoader workers. Embedded set."""

import itertools
import json
import pickle

import pytest
import reelpool
from batches import digest
from demo_sets import ROOT, WRIST
from reelpool.errors import StateError

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from torch.utils.data import DataLoader  # noqa: E402


def stream(**options):
    """Two episodes, 84 frames, numbers only unless `cameras` says more."""
    options = {"cameras": [], "episodes": [1, 3], "num_threads": 1, "return_uint8": True} | options
    return reelpool.StreamingLeRobotDataset("reelpool/demo", ROOT, **options)


def indices(items):
    return [int(item["index"]) for item in items]


def batches(loader):
    return [batch["index"].tolist() for batch in loader]


def through_json(state):
    text = json.dumps(state)
    assert len(text) <= 256
    return json.loads(text)


ORDERS = [{}, {"window": 20, "unit": 5}, {"shuffle": False}, {"window": 84}]


@pytest.mark.parametrize("batch_size", [8, None])
@pytest.mark.parametrize("options", ORDERS)
def test_resume_at_any_item(options, batch_size):
    options = {**options, "batch_size": batch_size}
    dataset = stream(**options)
    states, items = [through_json(dataset.state_dict())], []
    for item in dataset:
        items.append(int(item["index"]))
        states.append(through_json(dataset.state_dict()))
    following = indices(dataset)
    for done, state in list(enumerate(states))[:: 1 if options == {"batch_size": 8} else 5]:
        assert ("part" in state) == (0 < done < 84 and done % (batch_size or 64) != 0)
        other = stream(**options)
        other.load_state_dict(state)
        assert through_json(other.state_dict()) == state
        found = []
        for item in other:
            found.append(int(item["index"]))
            assert len(found) > 2 or other.state_dict() == states[done + len(found)]
        assert found == items[done:]
        assert indices(other) == following


def test_pixels_of_a_resumed_pass():
    dataset = stream(batch_size=6, cameras=[WRIST])
    whole = [digest(item) for item in dataset]
    dataset.load_state_dict(dataset.state_for_step(5))
    assert [digest(item) for item in dataset] == whole[30:]


@pytest.mark.parametrize("options", ORDERS)
def test_resume_with_other_ranks_and_batches(options):
    dataset = stream(batch_size=8, **options)
    taken = indices(itertools.islice(dataset, 24))
    state = through_json(dataset.state_dict())
    assert state["samples_done"] == 24
    for world, batch in ((1, 5), (2, 3), (3, 8)):
        parts = []
        for rank in range(world):
            other = stream(batch_size=batch, rank=rank, world_size=world, **options)
            other.load_state_dict(state)
            parts.append(indices(other))
            assert other.state_dict()["C"] == state["C"] and other._epoch == 1
        rest = list(itertools.chain.from_iterable(parts))
        assert sorted(taken + rest) == sorted(indices(stream(**options)))
    with reelpool.Loader(stream(**options), 10, num_threads=1) as loader:
        loader.load_state_dict(state)
        resumed = [i for batch in loader for i in batch["index"].tolist()]
        assert sorted(taken + resumed) == sorted(indices(stream(**options)))


def test_the_step_count_is_enough():
    dataset = stream(batch_size=8)
    steps = []
    for _ in range(2):
        for n, _ in enumerate(dataset):
            if n % 8 == 0:
                steps.append(dataset.state_dict())
    assert len(steps) == 22 and "part" in steps[1]
    loader = reelpool.Loader(dataset, 8, num_threads=1)
    for step in range(24):
        state = dataset.state_for_step(step)
        assert state == loader.state_for_step(step)
        assert (state["epoch"], state["samples_done"]) == (step // 11, step % 11 * 8)
    with pytest.raises(ValueError, match="batch_size"):
        stream().state_for_step(3)
    with pytest.raises(ValueError, match="step"):
        dataset.state_for_step(-1)


def test_a_state_brings_its_order():
    given = {"window": 20, "unit": 5, "locality": (4, 2, 8), "lanes": 7}
    made = stream(batch_size=8, **given)
    taken = indices(itertools.islice(made, 16))
    state = made.state_dict()
    other = stream(batch_size=8)
    other.load_state_dict(state)
    assert indices(other) == _rest(given, taken)
    assert {k: other.state_dict()[k] for k in "CURkgJ"} == {k: state[k] for k in "CURkgJ"}
    for field, options in {"R": {"window": 21}, "U": {"unit": 6}, "k": {"locality": None},
                           "C": {"lanes": 8}}.items():  # fmt: skip
        with pytest.raises(StateError, match=f"'{field}'"):
            stream(batch_size=8, **options).load_state_dict(state)


def _rest(options, taken):
    whole = indices(stream(batch_size=8, **options))
    assert whole[: len(taken)] == taken
    return whole[len(taken) :]


def test_states_that_do_not_fit_name_the_field():
    dataset = stream(batch_size=8)
    good = dataset.state_dict()
    wrong = {"v": 2, "dataset": "0" * 16, "seed": 1, "epoch": -1, "samples_done": 85, "C": 0,
             "U": -1, "R": 0, "k": 0, "g": 0, "J": -1}  # fmt: skip
    for field, value in wrong.items():
        with pytest.raises(StateError, match=f"'{field}'"):
            dataset.load_state_dict(good | {field: value})
    for field in good:
        with pytest.raises(StateError, match=f"'{field}'"):
            dataset.load_state_dict({k: v for k, v in good.items() if k != field})
    foreign = {
        "reshuffling": {"shards": [], "exhausted": False, "rng": 1},
        "pipeline": {"pipeline": {}, "epoch": 0},
        "episode pool": {"epoch": 0, "offset": 3, "batch_size": 4},
        "Sampler": {"epoch": 1, "start_index": 4},
    }
    for maker, state in foreign.items():
        with pytest.raises(StateError, match=maker):
            dataset.load_state_dict(state)
    for state in (None, [], good | {"extra": 1}, good | {"part": [1, 8, 2, 0, 0]},
                  good | {"part": 3}, good | {"part": [1, 8, 1, 0, 8]}):  # fmt: skip
        with pytest.raises(StateError):
            dataset.load_state_dict(state)
    assert dataset.state_dict() == good
    with pytest.raises(StateError):
        stream(batch_size=8, shuffle=False).load_state_dict(good)
    with pytest.raises(StateError):
        dataset.load_state_dict(stream(batch_size=8, shuffle=False).state_dict())
    with reelpool.Loader(dataset, 8) as loader, pytest.raises(StateError, match="part"):
        loader.load_state_dict(good | {"part": [1, 8, 1, 0, 3]})


def test_set_epoch_is_ignored_behind_a_loaded_state():
    dataset = stream(batch_size=8)
    epochs = [indices(dataset) for _ in range(5)]
    dataset = stream(batch_size=8)
    dataset.load_state_dict(dataset.state_for_step(3 * 11 + 2))
    got = []
    for epoch in range(2):  # what Accelerate's and Lightning's wrappers do
        dataset.set_epoch(epoch)
        got.append(indices(dataset))
    assert got == [epochs[3][16:], epochs[4]]
    dataset.set_epoch(8)
    assert dataset.state_dict()["epoch"] == 8
    for bad in (-1, 2**32, 1.5, True, "1"):
        with pytest.raises(ValueError, match="epoch"):
            dataset.set_epoch(bad)


def test_a_resumed_pass_that_gave_nothing_is_not_lost():
    dataset = stream(batch_size=8)
    whole = [indices(dataset) for _ in range(2)]
    dataset.load_state_dict(dataset.state_for_step(3))
    iter(dataset)  # as a loader that restores twice
    assert indices(dataset) == whole[0][24:]
    assert indices(dataset) == whole[1]


def test_pickles_carry_the_place_of_the_next_pass():
    dataset = stream(batch_size=8)
    dataset.load_state_dict(dataset.state_for_step(13))
    copy = pickle.loads(pickle.dumps(dataset))
    assert indices(copy) == indices(dataset)
    assert dataset._epoch == copy._epoch == 2
    copy.set_epoch(9)
    assert dataset._epoch == 2  # they count apart


# -- DataLoader workers --


def test_the_parent_of_workers_does_not_know_their_place():
    dataset = stream(batch_size=8)
    whole = batches(DataLoader(dataset, batch_size=8))
    loader = DataLoader(dataset, batch_size=8, num_workers=2, multiprocessing_context="fork")
    found = iter(loader)
    next(found)
    with pytest.raises(StateError, match=r"StatefulDataLoader.*state_for_step"):
        dataset.state_dict()
    del found
    dataset.load_state_dict(dataset.state_for_step(4))
    assert dataset.state_dict()["samples_done"] == 32
    assert batches(loader) == whole[4:]  # the workers see it
    dataset.set_epoch(1)
    with pytest.raises(StateError):
        dataset.state_dict()  # ignored: nothing is known of that pass
    indices(dataset)
    assert dataset.state_dict()["epoch"] == 2


def test_persistent_workers_see_a_loaded_state():
    dataset = stream(batch_size=8, window=20, unit=5)
    made = stream(batch_size=8, window=20, unit=5, lanes=7)
    whole = [batches(DataLoader(made, batch_size=8)) for _ in range(3)]
    loader = DataLoader(dataset, batch_size=8, num_workers=2, persistent_workers=True,
                        multiprocessing_context="fork")  # fmt: skip
    assert len(batches(loader)) == 11
    dataset.load_state_dict(made.state_for_step(14))
    assert batches(loader) == whole[1][3:]
    assert batches(loader) == whole[2]


STATEFUL = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")


@STATEFUL
@pytest.mark.parametrize(("workers", "batch"), [(0, 8), (0, 5), (2, 8), (2, 5)])
def test_stateful_dataloader(workers, batch):
    pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    def loader():
        context = "fork" if workers else None
        return StatefulDataLoader(
            stream(batch_size=8), batch_size=batch, num_workers=workers,
            multiprocessing_context=context,
        )  # fmt: skip

    reference = loader()
    whole = [batches(reference) for _ in range(3)]
    assert sorted(itertools.chain.from_iterable(whole[0])) == sorted(indices(stream()))
    count = len(whole[0])
    for stop in (0, 1, 4, count):
        one = loader()
        found = iter(one)
        taken = [next(found)["index"].tolist() for _ in range(stop)]
        if stop == count:
            assert next(found, None) is None
        state = one.state_dict()
        del found, one
        again = loader()
        again.load_state_dict(state)
        if stop == count:
            assert batches(again) == whole[1] and batches(again) == whole[2]
        else:
            assert taken + batches(again) == whole[0]
            assert batches(again) == whole[1]


@STATEFUL
def test_a_workers_state_is_small():
    pytest.importorskip("torchdata.stateful_dataloader", reason="needs torchdata")
    from torchdata.stateful_dataloader import StatefulDataLoader

    one = StatefulDataLoader(stream(batch_size=8), batch_size=8, num_workers=1,
                             multiprocessing_context="fork")  # fmt: skip
    next(iter(one))
    (worker,) = one.state_dict()["_snapshot"]["_worker_snapshots"].values()
    state = worker["dataset_state"]
    assert state["part"] == [1, 8, 1, 0, 0] and len(json.dumps(state)) <= 256
    alone = stream(batch_size=8)
    alone.load_state_dict(state)  # the only worker's place is its rank's
    assert indices(alone) == indices(stream(batch_size=8))[8:]
    alone.load_state_dict(state | {"samples_done": 88})  # it had nothing left
    assert alone.state_dict()["samples_done"] == 84 and indices(alone) == []
    with pytest.raises(StateError, match="part"):
        stream(batch_size=9).load_state_dict(state)
