"""Remote data sets through the public classes: order and pixels as from a local copy, whatever
serves the bytes, in every order, with and without the cache of the node, under faults.
"""

import functools
import re
import sys
import threading
import time
from pathlib import Path

import pytest
from batches import digest
from demo_sets import FRAMES, FRONT, ROOT, WRIST, ids
from hub_sets import hub_fixture  # noqa: F401
from reelpool import LeRobotDataset, Loader, StreamingLeRobotDataset
from reelpool.errors import ClosedError, ReelpoolError
from test_remote_root_s3 import KEYS, moto  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))
from remote_things import OPTIONS, RETRYABLE, bare, digests, serve, storage, video_requests

STREAM, MAP = StreamingLeRobotDataset, LeRobotDataset
CACHE = "256MB"


@pytest.fixture(name="online", autouse=True)
def online_fixture(tmp_path, monkeypatch):
    """An environment without a trace of the user's."""
    bare(monkeypatch.setenv, lambda name: monkeypatch.delenv(name, raising=False), tmp_path)


@pytest.fixture(scope="module", name="shared")
def shared_fixture():
    with serve() as server:
        yield server


@pytest.fixture(name="server")
def server_fixture(shared):
    shared.reset()
    return shared


def run(kind, place, epochs=1, load=(), **options):
    """Digests of the batches of some epochs, as Loader gives them."""
    load = {"batch_size": 16, "num_threads": 1, **dict(load)}
    dataset = kind("t/x", place, **{**OPTIONS, **options})
    with Loader(dataset, **load) as loader:
        return [digests(loader) for _ in range(epochs)]


@functools.cache
def local(kind, epochs=1, load=(), options=()):
    return run(kind, str(ROOT), epochs, load, **dict(options))


def same(server, kind, epochs=1, load=(), options=(), **more):
    """Assert that a remote run equals the local one."""
    url = server.url("/set")
    got = run(kind, url, epochs, load, storage_options=storage(**more), **dict(options))
    assert got == local(kind, epochs, load, options)


# -- kinds of roots --


@pytest.mark.parametrize("cache", [0, CACHE])
@pytest.mark.parametrize("where", ["o/n", "hf://datasets/o/n@v3.0", "hf://buckets/o/b/in"])
def test_hub(hub, where, cache):
    hub.add_bucket("o/b", ROOT, "in/")
    options = {**OPTIONS, "storage_options": storage(disk_cache=cache)}
    dataset = STREAM(where, **options)
    assert dataset.reads_ranges
    with Loader(dataset, 16, num_threads=1) as loader:
        assert [digests(loader) for _ in range(2)] == local(STREAM, 2)
    assert not hub.leaks
    resolves = hub.requests(r"resolve/.*mp4")
    assert len(resolves) == len(set(resolves)) == 4  # once per file


@pytest.mark.parametrize("cache", [0, CACHE])
def test_s3(moto, cache):  # noqa: F811
    more = {"endpoint_url": moto[0], **KEYS}
    options = {"storage_options": storage(disk_cache=cache, **more)}
    assert run(STREAM, "s3://robots/some/where", **options) == local(STREAM)


def test_by_index(server):
    near = LeRobotDataset("t/x", ROOT, **OPTIONS)
    far = LeRobotDataset("t/x", server.url("/set"), storage_options=storage(), **OPTIONS)
    rows = [183, 0, 91, 92, 5, 5]
    assert [digest(far[i]) for i in rows] == [digest(near[i]) for i in rows]
    got = [digest(item) for item in far.__getitems__(rows)]
    assert got == [digest(item) for item in near.__getitems__(rows)]


# -- orders, threads, batches --

ORDERS = {
    "stream": (STREAM, {}, {}),
    "stream in order": (STREAM, {"shuffle": False}, {}),
    "stream, short units": (STREAM, {"unit": 8, "lanes": 4, "window": 32}, {}),
    "stream, whole episodes": (STREAM, {"unit": 0, "episode_pool_size": 2}, {}),
    "map in order": (MAP, {}, {}),
    "map uniform": (MAP, {}, {"shuffle": True, "seed": 5}),
    "map window": (MAP, {}, {"shuffle": True, "seed": 5, "window": 40, "unit": 8}),
    "map visits": (MAP, {}, {"shuffle": True, "seed": 5, "locality": (4, 2, 8)}),
}


@pytest.mark.parametrize(
    ("order", "cache"), [(o, 0) for o in ORDERS] + [("stream", CACHE), ("map uniform", CACHE)]
)
def test_orders(server, order, cache):
    kind, options, load = ORDERS[order]
    same(server, kind, 2, tuple(load.items()), tuple(options.items()), disk_cache=cache)


@pytest.mark.parametrize("order", ["stream", "map uniform"])
@pytest.mark.parametrize(("threads", "batch", "prefetch"), [(0, 16, 2), (2, 16, 2), (1, 5, 6),
                                                            (2, 184, 1)])  # fmt: skip
def test_threads_and_batches(server, order, threads, batch, prefetch):
    kind, options, load = ORDERS[order]
    load = {
        **load, "num_threads": threads, "batch_size": batch, "prefetch_batches": prefetch
    }  # fmt: skip
    same(server, kind, 1, tuple(load.items()), tuple(options.items()))


@pytest.mark.parametrize("cache", [0, CACHE])
@pytest.mark.parametrize("kind", [STREAM, MAP])
def test_windows(server, kind, cache):
    deltas = {FRONT: [-0.5, 0.0, 0.2], WRIST: [0.0, 1.0], "action": [0.0, 0.1]}
    load = {"batch_size": 8, "num_threads": 2} | ({"shuffle": True} if kind is MAP else {})
    options = {"storage_options": storage(disk_cache=cache), "delta_timestamps": deltas}
    got = run(kind, server.url("/set"), 1, load, **options)
    assert got == run(kind, str(ROOT), 1, load, delta_timestamps=deltas)


@pytest.mark.parametrize("read_ahead", [1, 3000, 20000])
@pytest.mark.parametrize("order", ["stream", "map uniform", "map window"])
def test_small_read_ahead(server, order, read_ahead, monkeypatch):
    """A budget that holds less than one part of a file, one, or a few."""
    monkeypatch.setattr(Loader, "_read_ahead", lambda self, rest=None: read_ahead)
    kind, options, load = ORDERS[order]
    load = {**load, "num_threads": 2}
    same(server, kind, 2, tuple(load.items()), tuple(options.items()), max_connections=3)


@pytest.mark.parametrize("place", ["near", "far"])
def test_the_least_budget(server, place):
    """The number that the refusal of a smaller one names."""
    root = server.url("/set") if place == "far" else str(ROOT)
    dataset = MAP("t/x", root, storage_options=storage(), **OPTIONS)
    with pytest.raises(ValueError, match="at least") as caught:
        Loader(dataset, 16, memory_budget=1)
    least = int(re.search(r"at least (\d+)", str(caught.value)).group(1))
    with pytest.raises(ValueError, match="at least"):
        Loader(dataset, 16, memory_budget=least - 2)
    with Loader(dataset, 16, num_threads=1, memory_budget=least) as loader:
        assert digests(loader) == local(MAP)[0]


@pytest.mark.parametrize("cache", [0, CACHE])
def test_a_server_without_ranges(server, cache):
    server.accept_ranges = False
    same(server, MAP, 2, (), (), disk_cache=cache)


@pytest.mark.parametrize("order", ["stream", "map uniform"])
def test_one_connection(server, order):
    kind, options, load = ORDERS[order]
    same(server, kind, 1, tuple(load.items()), tuple(options.items()), max_connections=1)


def test_one_camera_and_some_episodes(server):
    options = (("cameras", (WRIST,)), ("episodes", (3, 1)))
    same(server, STREAM, 2, (("batch_size", 8),), options)
    assert {path for path, _, _ in video_requests(server)} <= {
        f"/set/videos/{WRIST}/chunk-000/file-{n:03d}.mp4" for n in (0, 1)
    }


@pytest.mark.parametrize("kind", [STREAM, MAP])
def test_mixtures_of_local_and_remote(server, hub, kind):
    def mixed(*places):
        sets = [
            kind(repo, root, storage_options=storage(), seed=3, **OPTIONS)
            if kind is STREAM
            else kind(repo, root, storage_options=storage(), **OPTIONS)
            for repo, root in places
        ]
        more = {} if kind is STREAM else {"shuffle": True, "seed": 3}
        with Loader(sets, 16, weights=[3, 1, 1], num_threads=2, **more) as loader:
            return [digests(loader) for _ in range(2)]

    far = ("t/x", server.url("/set"))
    there = ("o/n", None)
    near = ("t/x", str(ROOT))
    if kind is MAP:
        hub.delay = 0.0
    assert mixed(near, far, there) == mixed(near, near, near)


# -- faults --


@pytest.mark.parametrize("cache", [0, CACHE])
@pytest.mark.parametrize("order", ["stream", "map uniform"])
def test_mixed_faults(server, order, cache, monkeypatch):
    """5 % of the requests fail, each in one of 21 ways, the same ones in every run."""
    # A 429 opens a gate for 1 to 6 s: the deadline is beyond that, and such waits are few.
    kinds = [name for name in RETRYABLE if name not in ("limited", "busy_later", "wrong_total")]
    kind, options, load = ORDERS[order]
    local(kind, 2, tuple(load.items()), tuple(options.items()))
    server.mix(seed=11, share=0.05, kinds=kinds, most=1)  # three in a row are an error
    same(server, kind, 2, tuple(load.items()), tuple(options.items()), disk_cache=cache)
    assert order == "stream" or [seen for seen in server.log if seen.fault]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("order", ORDERS)
def test_many_mixed_faults(server, order, seed):
    kind, options, load = ORDERS[order]
    kinds = [name for name in RETRYABLE if name != "wrong_total"]  # the first one is believed
    server.mix(seed=seed, share=0.2, kinds=kinds, most=1)
    same(server, kind, 2, tuple(load.items()), tuple(options.items()), network_timeout=60.0)


# -- passes that end early --


@pytest.mark.parametrize("order", ["stream", "map uniform"])
def test_early_stop(server, order):
    """What was under way when a pass is given up disturbs no later one."""
    kind, options, load = ORDERS[order]
    want = local(kind, 2, tuple(load.items()), tuple(options.items()))
    server.latency_s = 0.01
    dataset = kind("t/x", server.url("/set"), storage_options=storage(), **options, **OPTIONS)
    with Loader(dataset, 16, num_threads=1, **load) as loader:
        for taken in (0, 1, 3):
            loader.set_epoch(0)
            batches = iter(loader)
            assert [digest(next(batches)) for _ in range(taken)] == want[0][:taken]
        loader.set_epoch(1)
        assert digests(loader) == want[1]


@pytest.mark.parametrize("threads", [0, 2])
def test_close_while_fetching(server, threads):
    dataset = STREAM("t/x", server.url("/set"), storage_options=storage(), **OPTIONS)
    server.latency_s = 0.2
    for taken in (0, 1):
        with Loader(dataset, 4, num_threads=threads) as loader:
            batches = iter(loader)
            assert len([next(batches) for _ in range(taken)]) == taken


@pytest.mark.parametrize("threads", [0, 2])
def test_close_ends_a_wait_for_the_server(server, threads):
    """At once, not when the server's time of 200 s is over."""
    options = storage(network_timeout=200.0)
    dataset = STREAM("t/x", server.url("/set"), storage_options=options, **OPTIONS)
    server.fault("silent", None)
    loader, got = Loader(dataset, 4, num_threads=threads), []

    def take():
        try:
            next(iter(loader))
        except ReelpoolError as error:
            got.append(type(error))

    thread = threading.Thread(target=take)
    thread.start()
    while not any(seen.fault == "silent" for seen in server.log):
        thread.join(0.02)
    loader.close()
    thread.join(60)
    assert got == [ClosedError]


def test_state_goes_on_where_it_was(server):
    url = server.url("/set")
    with Loader(STREAM("t/x", url, storage_options=storage(), **OPTIONS), 16) as loader:
        batches = iter(loader)
        head = [digest(next(batches)) for _ in range(4)]
        state = loader.state_dict()
    with Loader(STREAM("t/x", str(ROOT), **OPTIONS), 16) as loader:
        loader.load_state_dict(state)
        assert head + digests(loader) == local(STREAM)[0]


@pytest.mark.parametrize("order", ["stream, short units", "map uniform"])
def test_the_end_of_an_epoch_reads_ahead(server, order):
    """The next epoch's first batch needs no server, though only one batch was read before."""
    kind, options, load = ORDERS[order]
    data = {**OPTIONS, **options, "storage_options": storage(network_timeout=1.0)}
    want = run(kind, str(ROOT), 2, {**load, "batch_size": 4}, **options)[1][0]
    dataset = kind("t/x", server.url("/set"), **data)
    with Loader(dataset, 4, num_threads=1, prefetch_batches=1, **load) as loader:
        loader.load_state_dict(loader.state_for_step(len(loader) - 1))
        batches = iter(loader)
        next(batches)
        assert next(batches, None) is None
        while not loader.stats()["fetch"]["foreseen"] or loader.stats()["fetch"]["pending"]:
            time.sleep(0.01)
        server.fault("s503", None)
        assert digest(next(iter(loader))) == want


def test_a_set_that_is_read_twice_at_once(server):
    """Two loaders of one process share the connections, and not their fates."""
    dataset = MAP("t/x", server.url("/set"), storage_options=storage(disk_cache=CACHE), **OPTIONS)
    first, second = (Loader(dataset, 16, num_threads=1) for _ in range(2))
    one, other = iter(first), iter(second)
    next(one)
    next(other)
    first.close()
    assert ids(other) == list(range(16, FRAMES))
    second.close()
    assert int(dataset[7]["index"]) == 7
