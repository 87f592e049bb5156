"""Remote data sets in several processes of a node: DataLoader workers, ranks, forks of a parent
that has streamed; how often the server is asked.
"""

import multiprocessing
import os
import pickle
import sys
from pathlib import Path

import pytest
from batches import digest
from demo_sets import FRONT, ROOT
from hub_sets import hub_fixture  # noqa: F401
from reelpool import LeRobotDataset, Loader, StreamingLeRobotDataset
from test_remote_engine import (
    local,
    online_fixture,  # noqa: F401
    run,
    server_fixture,  # noqa: F401
    shared_fixture,  # noqa: F401
)

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from torch.utils.data import DataLoader  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))
from remote_things import (  # noqa: E402
    OPTIONS,
    digests,
    is_video,
    serve,
    storage,
    unique_bytes,
    video_requests,
)

STREAM, MAP = StreamingLeRobotDataset, LeRobotDataset
CACHE = "256MB"
pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings(
        "ignore:This process .* is multi-threaded:DeprecationWarning",
        "ignore:This DataLoader will create:UserWarning",
    ),
]


def stream(place, cache=CACHE, batch_size=16, **options):
    given = storage(disk_cache=cache)
    return STREAM("t/x", place, batch_size=batch_size, storage_options=given, **OPTIONS, **options)


def workers_of(dataset, workers=2, method="fork", batch_size=16, **options):
    return DataLoader(
        dataset, num_workers=workers, multiprocessing_context=method, batch_size=batch_size,
        **options,
    )  # fmt: skip


# -- DataLoader workers --


@pytest.mark.parametrize("cache", [0, CACHE])
@pytest.mark.parametrize(
    "method", ["fork", pytest.param("spawn", marks=pytest.mark.soak),
               pytest.param("forkserver", marks=pytest.mark.soak)],
)  # fmt: skip
def test_workers_stream(server, method, cache):
    dataset = stream(server.url("/set"), cache)
    loader = workers_of(dataset, 2, method, persistent_workers=True)
    assert [digests(loader) for _ in range(2)] == local(STREAM, 2)


def test_workers_read_by_index(server):
    near = LeRobotDataset("t/x", ROOT, **OPTIONS)
    far = LeRobotDataset("t/x", server.url("/set"), storage_options=storage(), **OPTIONS)
    seed = torch.Generator().manual_seed
    want, got = (digests(workers_of(d, shuffle=True, generator=seed(3))) for d in (near, far))
    assert got == want


def test_workers_resolve_each_file_once(hub):
    dataset = STREAM("o/n", batch_size=16, storage_options=storage(), **OPTIONS)
    assert digests(workers_of(dataset, 4)) == local(STREAM)[0]
    resolves = hub.requests(r"resolve/.*mp4")
    assert len(resolves) == len(set(resolves)) == 4
    assert not hub.leaks


def test_workers_find_the_ranges_of_others(server):
    """With the node's cache hardly a byte comes twice, and none in the second epoch or run."""
    dataset = stream(server.url("/set"))
    loader = workers_of(dataset, 4)
    assert digests(loader) == local(STREAM, 2)[0]
    since = len(server.log)
    assert digests(loader) == local(STREAM, 2)[1]
    again = stream(server.url("/set"))  # asks which versions there are, of one byte
    assert digests(workers_of(again)) == local(STREAM)[0]
    assert video_requests(server, since) == []


def test_an_error_in_a_worker(server):
    given = storage(network_timeout=1.0)
    url = server.url("/set")
    dataset = STREAM("t/x", url, batch_size=16, storage_options=given, **OPTIONS)
    server.fault("s404", None)
    with pytest.raises(Exception, match="no such file") as caught:
        digests(workers_of(dataset))
    assert type(caught.value).__name__ == "NotFoundError"
    assert str(url) in str(caught.value)


# -- bytes and requests --


def fetched_share(server, batches, apart=0):
    """Bytes asked for by a pass over bytes needed. apart: so many requests do not count that lie in
    another one: GOPs of first batches, which come once more with their units.
    """
    since = len(server.log)
    for _ in batches:
        pass
    parts = video_requests(server, since)
    inner = [
        (file, first, last)
        for file, first, last in parts
        if any(f == file and a <= first and last <= b and (a, b) != (first, last)
               for f, a, b in parts)
    ]  # fmt: skip
    assert len(inner) <= apart
    counted = sum(last - first + 1 for _, first, last in parts)
    counted -= sum(last - first + 1 for _, first, last in inner)
    return counted / unique_bytes(parts)


@pytest.mark.parametrize("workers", [0, pytest.param(4, marks=pytest.mark.soak)])
def test_bytes_fetched_and_needed(data_root, workers):
    if not (data_root / "cam3").is_dir():
        pytest.skip("no test data: cam3")
    with serve(data_root / "cam3") as server:
        dataset = stream(
            server.url("/set"), CACHE if workers else 0, cameras=["observation.images.wrist_left"]
        )
        if workers:
            assert fetched_share(server, workers_of(dataset, workers), workers * 16) <= 1.05
            return
        with Loader(dataset, 16, num_threads=1) as loader:
            assert fetched_share(server, loader, 16) <= 1.05
            assert unique_bytes(video_requests(server)) > 9_000_000


@pytest.mark.parametrize("kind", [STREAM, MAP])
def test_second_epoch_and_second_run_ask_nothing(server, kind):
    url, load = server.url("/set"), (() if kind is STREAM else (("shuffle", True), ("seed", 5)))
    given = {"storage_options": storage(disk_cache=CACHE)}
    dataset = kind("t/x", url, **given, **OPTIONS)
    with Loader(dataset, 16, num_threads=1, **dict(load)) as loader:
        got = [digests(loader)]
        since = len(server.log)
        got.append(digests(loader))
        assert [seen for seen in server.log[since:] if is_video(seen.path)] == []
    assert got == local(kind, 2, load)
    assert run(kind, url, 2, load, **given) == got
    assert video_requests(server, since) == []


def test_second_run_of_the_hub_asks_nothing(hub):
    given, place = {"storage_options": storage(disk_cache=CACHE)}, "hf://datasets/o/n@v3.0"
    assert run(STREAM, place, 1, **given) == local(STREAM)
    before = len(hub.log)
    assert run(STREAM, place, 1, **given) == local(STREAM)
    assert hub.requests()[before:] == []


# -- ranks --


def one_rank(data, rank, start, results):
    """A rank's digests, in a process of its own."""
    dataset = pickle.loads(data)
    start.wait(60)
    with Loader(dataset, 8, num_threads=1, rank=rank, world_size=2) as loader:
        results.put((rank, digests(loader), asked_again(loader.stats()["fetch"])))


def asked_again(stats):
    """What makes a process resolve a file that another one has resolved, and how often it was."""
    found = {kind: stats["retries"][kind] for kind in ("busy", "network", "refused", "odd")}
    for name in ("leases_waited_out", "targets_expired", "url_cache_errors"):
        found[name] = stats[name]
    return found


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.soak)])
def test_ranks_resolve_each_file_once(hub, method):
    want = []
    for rank in range(2):
        dataset = STREAM("t/x", ROOT, **OPTIONS)
        with Loader(dataset, 8, num_threads=1, rank=rank, world_size=2) as loader:
            want.append(digests(loader))
    given = storage(network_timeout=90)  # half of it is what a rank waits for another's answer
    dataset = STREAM("o/n", storage_options=given, **OPTIONS)
    data, again = pickle.dumps(dataset), [asked_again(dataset.meta._files.client().stats())]
    context = multiprocessing.get_context(method)
    start, results = context.Barrier(2), context.Queue()
    ranks = [
        context.Process(target=one_rank, args=(data, rank, start, results)) for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    got = {}
    for _ in ranks:
        rank, got[rank], causes = results.get(timeout=90)
        again.append(causes)
    for rank in ranks:
        rank.join()
    assert [got[0], got[1]] == want
    resolves = hub.requests(r"resolve/.*mp4")
    assert len(set(resolves)) == 4
    # 8 or 12 if processes shared nothing
    assert len(resolves) <= 4 + sum(sum(causes.values()) for causes in again), (resolves, again)


# -- forks --


def ports(server, since=0):
    return {seen.port for seen in server.log[since:]}


@pytest.mark.parametrize("cache", [0, CACHE])
def test_a_parent_that_has_streamed_forks_workers(server, cache):
    """In mid-epoch, with connections open and threads that fetch."""
    url = server.url("/set")
    dataset = stream(url, cache, cameras=[FRONT])
    want = run(STREAM, str(ROOT), 2, cameras=[FRONT])
    mine = Loader(dataset, 16, num_threads=2)
    batches = iter(mine)
    got = [digest(next(batches))]
    dataset.set_epoch(0)
    half = iter(dataset)
    next(half)
    dataset.set_epoch(0)
    before, since = ports(server), len(server.log)
    assert digests(workers_of(dataset)) == want[0]
    if not cache:
        assert ports(server, since) and not ports(server, since) & before
    assert got + digests(batches) == want[0]  # the parent's own pass goes on
    assert len(list(half)) == 183
    assert digests(mine) == want[1]
    mine.close()


@pytest.mark.soak
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_parent_that_has_streamed_starts_workers(server, method):
    dataset = stream(server.url("/set"))
    with Loader(dataset, 16, num_threads=2) as loader:
        batches = iter(loader)
        got = [digest(next(batches))]
        dataset.set_epoch(0)
        assert digests(workers_of(dataset, 2, method)) == local(STREAM)[0]
        assert got + digests(batches) == local(STREAM)[0]


def test_a_fork_while_the_parent_waits_for_the_server(server):
    """Its threads are inside calls that never return in the child."""
    url = server.url("/set")
    dataset = stream(url, 0, cameras=[FRONT])
    want = run(STREAM, str(ROOT), cameras=[FRONT])[0]
    loader = Loader(dataset, 16, num_threads=2)
    batches = iter(loader)
    server.latency_s = 0.3
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if digests(Loader(stream(url, 0, cameras=[FRONT]), 16)) == want else 2
            dataset.set_epoch(0)
            status = status or (0 if digests(Loader(dataset, 16)) == want else 3)
        finally:
            os._exit(status)
    server.latency_s = 0.02
    assert digests(batches) == want
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    loader.close()


def test_a_parents_iterator_in_its_child(server):
    """It goes on there too, from its place, by an engine and connections of the child's own."""
    dataset = stream(server.url("/set"), 0, cameras=[FRONT])
    want = run(STREAM, str(ROOT), cameras=[FRONT])[0]
    loader = Loader(dataset, 16, num_threads=1)
    batches = iter(loader)
    assert [digest(next(batches)) for _ in range(3)] == want[:3]
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if digests(batches) == want[3:] else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert digests(batches) == want[3:]
    loader.close()
