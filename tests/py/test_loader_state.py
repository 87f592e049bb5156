"""Loader: exact resume, epochs, clean ends. Embedded set."""

import json
import os
import pickle
import signal
import subprocess
import sys

import pytest
from batches import digest
from demo_sets import (
    FRAMES,
    ORDERS,
    ROOT,
    SMALL,
    WRIST,
    all_ids,
    epoch_ids,
    ids,
    loader_of,
    open_demo,
)
from hub_sets import hub_fixture  # noqa: F401
from reelpool import LeRobotDataset, Loader, StreamingLeRobotDataset
from reelpool.errors import ClosedError, StateError

pytest.importorskip("torch", reason="needs the extra `torch`")


@pytest.fixture(scope="module")
def small():
    """Two episodes of one camera: 84 quick frames."""
    dataset = open_demo(episodes=[1, 3], cameras=[WRIST])
    yield dataset
    dataset.close()


# -- state --


def through_json(state):
    text = json.dumps(state)
    assert len(text) <= 256
    return json.loads(text)


@pytest.mark.parametrize("name", ORDERS)
def test_resume_at_every_batch(small, name):
    options = ORDERS[name]
    with loader_of(small, 11, **options) as loader:
        states, batches = [through_json(loader.state_dict())], []
        for batch in loader:
            batches.append(digest(batch))
            states.append(through_json(loader.state_dict()))
            assert states[-1]["samples_done"] == min(SMALL, 11 * len(batches))
        following = ids(loader)
    for done, state in enumerate(states):
        with loader_of(small, 11, **options) as other:
            other.load_state_dict(state)
            assert len(other) == len(batches)
            assert through_json(other.state_dict()) == state
            assert [digest(batch) for batch in other] == batches[done:]
            assert ids(other) == following


@pytest.mark.parametrize("name", ORDERS)
def test_resume_with_another_batch_size_and_world(small, name):
    options = ORDERS[name]
    with loader_of(small, 12, **options) as loader:
        stream = iter(loader)
        done = ids([next(stream) for _ in range(3)])
        state = through_json(loader.state_dict())
    rest = set(all_ids(small)) - set(done)
    with loader_of(small, 7, **options) as other:
        other.load_state_dict(state)
        seven = ids(other)
        assert set(seven) == rest and len(seven) == len(rest)
        # The next epoch keeps the loaded order, whatever this loader's own defaults are.
        later = ids(other)
    shares = []
    for rank in range(3):
        with loader_of(small, 4, rank=rank, world_size=3, **options) as other:
            other.load_state_dict(state)
            mine = [ids([b]) for b in other]
            shares.append(mine)
            assert through_json(other.state_dict())["epoch"] == 1
    united = [i for step in zip(*shares) for part in step for i in part]
    assert sorted(united) == sorted(rest)
    with loader_of(small, 12, **options) as loader:
        loader.set_epoch(1)
        uninterrupted = ids(loader)
    if name in ("sequential", "uniform", "uniform visits"):
        assert seven == [i for i in epoch_ids(small, 1, **options) if i in rest]
        assert later == uninterrupted
    else:
        assert sorted(later) == sorted(uninterrupted)


def test_the_state_is_where_consumers_stand_not_the_prefetch(small):
    with loader_of(small, 5, prefetch_batches=4) as loader:
        assert loader.state_dict()["samples_done"] == 0
        for position, _ in enumerate(loader, 1):
            assert loader.state_dict()["samples_done"] == min(SMALL, 5 * position)
            if position == 3:
                break
    state = loader.state_dict()  # closed by now
    assert (state["epoch"], state["samples_done"]) == (0, 15)


def test_equal_on_all_ranks_and_state_for_step(small):
    options = {"shuffle": True, "window": 30, "unit": 8, "seed": 2}
    for world in (1, 2):
        states = []
        for rank in range(world):
            with loader_of(small, 9, rank=rank, world_size=world, **options) as loader:
                steps = [loader.state_dict()]
                for _ in range(2):
                    for _batch in loader:
                        steps.append(loader.state_dict())
                per_epoch = len(loader)
                for step, state in enumerate(steps):
                    if step % per_epoch:
                        assert loader.state_for_step(step) == state
                assert loader.state_for_step(per_epoch) | {"epoch": 0} == steps[0]
                states.append(steps)
        assert all(s == states[0] for s in states)


def test_set_epoch_is_ignored_behind_a_loaded_state(small):
    options = {"shuffle": True, "seed": 1}
    with loader_of(small, 20, **options) as loader:
        epochs = [ids(loader) for _ in range(5)]
        state = loader.state_for_step(3 * len(loader) + 2)
    with loader_of(small, 20, **options) as loader:
        loader.load_state_dict(state)
        got = []
        for epoch in range(2):  # what Accelerate's and Lightning's wrappers do
            loader.set_epoch(epoch)
            got.append(ids(loader))
        assert got == [epochs[3][40:], epochs[4]]
        loader.set_epoch(2)
        assert loader.state_dict()["epoch"] == 5
        loader.set_epoch(8)
        assert loader.state_dict()["epoch"] == 8


@pytest.mark.parametrize("bad", [-1, 2**32, 1.5, True, "1"])
def test_set_epoch_refuses(small, bad):
    with loader_of(small, 20) as loader, pytest.raises(ValueError, match="epoch"):
        loader.set_epoch(bad)


def test_states_that_do_not_fit_name_the_field(small):
    options = ORDERS["window"]
    with loader_of(small, 4, **options) as loader:
        good = loader.state_dict()
        assert set(good) == set("v dataset seed epoch samples_done C U R k g J".split())
        wrong = {
            "v": 2, "dataset": "0" * 16, "seed": 6, "U": 9, "R": 41, "k": 2, "g": 3, "J": 1,
            "samples_done": 85, "epoch": -1, "C": 0,
        }  # fmt: skip
        for field, value in wrong.items():
            with pytest.raises(StateError, match=f"'{field}'"):
                loader.load_state_dict(good | {field: value})
        for field in good:
            with pytest.raises(StateError, match=f"'{field}'"):
                loader.load_state_dict({k: v for k, v in good.items() if k != field})
        for foreign in (
            {"epoch": 1, "start_index": 4},
            {"shards": [], "exhausted": False, "rng": 1},
            {"pipeline": {}, "epoch": 0},
            {"epoch": 0, "offset": 3, "batch_size": 4},
            good | {"extra": 1},
            good | {"samples_done": "3"},
            good | {"epoch": True},
            None,
        ):
            with pytest.raises(StateError):
                loader.load_state_dict(foreign)
        assert loader.state_dict() == good
    for other in (ORDERS["sequential"], ORDERS["uniform"]):
        with loader_of(small, 4, **other) as loader, pytest.raises(StateError):
            loader.load_state_dict(good)
    other = loader_of(open_demo(episodes=[1, 2], cameras=[]), 4, **options)
    with pytest.raises(StateError, match="dataset"):
        other.load_state_dict(good)


def of_hub(kind, commit):
    """A dataset of the stand-in at that commit."""
    options = {"storage_options": {"network_timeout": 60}, "cameras": [], "num_threads": 1}
    return kind("o/n", revision=commit, **options)


def sets_of(kind, commits):
    """One dataset, or a list for a mixture; None: the local copy that the Hub's was made of."""
    made = [
        of_hub(kind, commit) if commit else kind("o/n", ROOT, cameras=[], num_threads=1)
        for commit in commits
    ]
    return made[0] if len(made) == 1 else made


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("kind", [LeRobotDataset, StreamingLeRobotDataset])
def test_a_state_of_another_commit_is_refused(hub, kind, several):
    """Its frames are the same, its bytes may differ."""
    repo = hub.repos["o/n"]
    old = repo.branches["main"]
    files = repo.commits[old]
    new = repo.commit({**files, "README.md": files["meta/info.json"]})
    assert new != old
    options = {"num_threads": 1} | ({"shuffle": True} if kind is LeRobotDataset else {})

    def state_at(*commits):
        with Loader(sets_of(kind, commits), 8, **options) as loader:
            next(iter(loader))
            return through_json(loader.state_dict()) if not several else loader.state_dict()

    def load(state, *commits):
        with Loader(sets_of(kind, commits), 8, **options) as loader:
            loader.load_state_dict(state)
            return ids(loader)

    def entry(state):
        return state["sets"][1] if several else state

    near = [None] if several else []
    state = state_at(*near, old)
    name = r"sets\[1\].rev" if several else "rev"
    assert entry(state)["rev"] == old[:12]
    with pytest.raises(StateError, match=f"'{name}' is '{old[:12]}'.*commit '{new[:12]}'"):
        load(state, *near, new)
    rest = load(state, *near, old)
    assert load(state, *near, None) == rest  # a folder does not know its commit
    entry(state)["rev"] = "main"
    with pytest.raises(StateError, match=name):
        load(state, *near, None)
    del entry(state)["rev"]  # as in states of local folders, and of earlier versions
    assert load(state, *near, new) == rest
    if kind is StreamingLeRobotDataset and not several:
        dataset = of_hub(kind, old)
        with pytest.raises(StateError, match="'rev'"):
            of_hub(kind, new).load_state_dict(dataset.state_dict())
        of_hub(kind, old).load_state_dict(pickle.loads(pickle.dumps(dataset)).state_dict())


# -- lives --


def test_a_new_iterator_ends_the_one_before(small):
    with loader_of(small, 10) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        assert list(first) == []
        assert ids(second) == all_ids(small)


def test_close(small):
    loader = loader_of(small, 10)
    stream = iter(loader)
    batch = next(stream)
    before = digest(batch)
    loader.close()
    loader.close()
    assert digest(batch) == before
    assert loader.stats() == {}
    for use in (next, lambda _: iter(loader)):
        with pytest.raises(ClosedError):
            use(stream)
    assert loader.state_dict()["samples_done"] == 10
    assert len(small[0][WRIST]) == 3  # the dataset lives on


def test_two_loaders_at_once(small):
    want = epoch_ids(small, 9, shuffle=True), epoch_ids(small, 9, shuffle=True, seed=1)
    with loader_of(small, 9, shuffle=True) as a, loader_of(small, 9, shuffle=True, seed=1) as b:
        pairs = list(zip(a, b))
    assert (ids(x for x, _ in pairs), ids(y for _, y in pairs)) == want


def test_an_exception_in_the_consumers_loop(small):
    loader = loader_of(small, 4, shuffle=True, num_threads=2)
    for _ in range(3):
        with pytest.raises(KeyError):
            for batch in loader:
                raise KeyError(len(batch))
    assert loader.state_dict() | {"epoch": 2, "samples_done": 4} == loader.state_dict()
    assert sorted(ids(loader)) == all_ids(small)


def test_construction_starts_nothing(small):
    before = set(os.listdir("/proc/self/task"))
    loader = loader_of(small, 4, num_threads=2)
    len(loader), loader.state_dict(), loader.stats()
    assert set(os.listdir("/proc/self/task")) <= before
    loader.close()


def test_pickles_carry_the_place(small):
    loader = loader_of(small, 10, shuffle=True, seed=9)
    whole = ids(loader)
    stream = iter(loader)
    first = ids([next(stream)])
    data = pickle.dumps(loader)
    assert len(data) < 65536
    copy = pickle.loads(data)
    rest = ids(copy)
    assert rest == ids(stream) and sorted(first + rest) == sorted(whole)
    copy.close()
    loader.close()


def test_fork_in_the_middle_of_an_epoch(small):
    with loader_of(small, 10, shuffle=True) as loader:
        stream = iter(loader)
        first = ids([next(stream), next(stream)])
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:  # pragma: no cover
            status = 1
            try:
                os.write(write, json.dumps(ids(stream) + ids(loader)).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        with os.fdopen(read) as pipe:
            theirs = json.loads(pipe.read() or "null")
        assert os.waitpid(pid, 0)[1] == 0
        mine = ids(stream) + ids(loader)
    assert theirs == mine
    assert sorted(first + mine[: SMALL - 20]) == all_ids(small)


INTERRUPTED = """
import os, signal, sys, threading, time
import reelpool
from demo_sets import open_demo

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
dataset = open_demo(cameras=[])
loader = reelpool.Loader(dataset, 2, shuffle=True, num_threads=1)
try:
    print("ready", flush=True)
    while True:
        for batch in loader:
            pass
except KeyboardInterrupt:
    state = loader.state_dict()
    rest = sum(len(b["index"]) for b in iter(loader))
    print("interrupted", rest, flush=True)
    sys.exit(7)
"""


def test_keyboard_interrupt():
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(__file__),
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    try:
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert (process.returncode, out) == (7, f"interrupted {FRAMES}\n")
