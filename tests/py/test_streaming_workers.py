"""StreamingLeRobotDataset in DataLoader workers and forked ranks, with real processes."""

import itertools
import json
import logging
import multiprocessing
import os
import pickle
import socket
import subprocess
import sys

import pytest
import reelpool
from batches import digest
from demo_sets import ROOT, WRIST

torch = pytest.importorskip("torch", reason="needs the extra `torch`")

from reelpool import passes, torch_bridge  # noqa: E402
from torch.utils.data import DataLoader, get_worker_info  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:This DataLoader will create:UserWarning",
)


def stream(**options):
    """Two episodes, 84 frames, numbers only unless `cameras` says more."""
    options = {"cameras": [], "episodes": [1, 3], "batch_size": 8, "return_uint8": True} | options
    return reelpool.StreamingLeRobotDataset("reelpool/demo", ROOT, **options)


def loader_of(dataset, workers=2, method="fork", **options):
    options.setdefault("batch_size", 8)
    return DataLoader(
        dataset, num_workers=workers, multiprocessing_context=method if workers else None, **options
    )


def batches(loader):
    return [batch["index"].tolist() for batch in loader]


def epochs_of(count, **options):
    """The batches of the first epochs, as `Loader` gives them."""
    with reelpool.Loader(stream(**options), 8, num_threads=1) as loader:
        return [batches(loader) for _ in range(count)]


@pytest.mark.parametrize(
    ("method", "workers", "persistent"),
    [("fork", 1, False), ("fork", 2, False), ("fork", 2, True), ("spawn", 2, True),
     ("forkserver", 1, False)],
)  # fmt: skip
def test_workers_build_the_loaders_batches(method, workers, persistent):
    options = {"cameras": [WRIST]} if method == "fork" else {}
    with reelpool.Loader(stream(**options), 8, num_threads=1) as reference:
        want = [[digest(batch) for batch in reference] for _ in range(2)]
    dataset = stream(**options)
    loader = loader_of(dataset, workers, method, persistent_workers=persistent)
    assert [[digest(batch) for batch in loader] for _ in range(2)] == want
    assert dataset._epoch == 2


def test_a_parent_that_has_streamed_forks_workers():
    dataset = stream(cameras=[WRIST])
    want = [digest(batch) for batch in DataLoader(dataset, batch_size=8)]
    dataset.set_epoch(0)
    half = iter(dataset)
    next(half)
    dataset.set_epoch(0)
    assert [digest(batch) for batch in loader_of(dataset)] == want
    assert len(list(half)) == 83  # its own pass goes on


def test_batches_of_workers_are_lent():
    before = len(torch_bridge._maps)
    kept = list(loader_of(stream(cameras=[WRIST]), 1))
    assert len(torch_bridge._maps) > before
    copies = [digest(batch) for batch in kept]
    assert copies == [digest(batch) for batch in DataLoader(stream(cameras=[WRIST]), batch_size=8)]


def test_set_epoch_reaches_workers_that_run():
    want = epochs_of(4)
    dataset = stream()
    loader = loader_of(dataset, persistent_workers=True)
    for epoch in (2, 0, 3):
        dataset.set_epoch(epoch)
        assert batches(loader) == want[epoch]
    dataset.set_epoch(1)
    given_up = iter(loader)
    assert next(given_up)["index"].tolist() == want[1][0]
    dataset.set_epoch(2)
    assert batches(loader) == want[2]
    assert batches(loader) == want[3]


def test_the_same_torch_seed_every_epoch():
    want = epochs_of(3)
    loader = loader_of(stream())
    for epoch in range(3):
        torch.manual_seed(0)  # the DataLoader draws its own seed from this generator
        assert batches(loader) == want[epoch]


def test_two_loaders_over_one_dataset():
    want = epochs_of(2)
    dataset = stream()
    one, two = iter(loader_of(dataset, 2)), iter(loader_of(dataset, 2))
    found = [batches(one), batches(two)]
    assert sorted(found) == sorted(want) and dataset._epoch == 2


def test_more_workers_than_batches():
    dataset = stream(batch_size=42)
    loader = loader_of(dataset, 4, batch_size=42)
    for _ in range(2):
        found = batches(loader)
        assert [len(batch) for batch in found] == [42, 42]
        assert len(set(itertools.chain.from_iterable(found))) == 84
    assert dataset._epoch == 2


def test_without_a_batch_size_each_sample_comes_once(caplog):
    want = [int(item["index"]) for item in stream(batch_size=None)]
    dataset = stream(batch_size=None)
    with caplog.at_level(logging.WARNING, logger="reelpool"):
        assert batches(loader_of(dataset, 1)) == [want[i : i + 8] for i in range(0, 84, 8)]
        assert dataset.stats()["order_exact"]
        found = list(itertools.chain.from_iterable(batches(loader_of(dataset, 2))))
        assert sorted(found) == sorted(want)
    assert not dataset.stats()["order_exact"]
    assert not dataset._passes.once(1)  # a worker warned
    assert not caplog.records  # in its own process


def test_threads_of_a_worker(monkeypatch):
    made = []
    monkeypatch.setattr("reelpool.streaming.current_worker", lambda: passes.Worker(1, 4, 7))
    monkeypatch.setattr("reelpool.streaming.env.granted_cpus", lambda: 10)
    monkeypatch.setattr(
        "reelpool.dataset_base.EngineHandle", lambda layout, **options: made.append(options)
    )
    stream()._new_handle(4)
    stream(num_threads=0, video_decoder_cache_size=3)._new_handle(4)
    stream(num_threads=2, video_decoder_cache_size=5)._new_handle(0)
    assert [m["num_threads"] for m in made] == [2, 0, 2]
    assert [m["max_decoders"] for m in made] == [8, 3, 2]
    assert [m["shared"] for m in made] == [True, True, False]
    assert made[1]["prefetch_batches"] == 0


# -- who counts --


class Whereabouts(torch.utils.data.IterableDataset):
    """What each worker finds: its part, and the epoch it claims."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        share = self.dataset._share()
        yield get_worker_info().id, tuple(share), tuple(self.dataset._passes.claim())


def test_workers_take_the_rank_that_their_parent_has():
    dataset = stream()
    dataset._frozen = (os.getpid(), (1, 3))
    found = sorted(loader_of(Whereabouts(dataset), batch_size=None))
    assert found == [[v, [8, 1, 3, v, 2], [0, 0]] for v in range(2)]
    state = dataset.__getstate__()
    assert state["_parent"][0] == os.getpid() and state["_parent"][2] == (0, 1)
    assert "_frozen" not in state


def test_spawned_workers_take_the_rank_that_their_parent_has(monkeypatch):
    monkeypatch.setattr("reelpool.streaming.resolve_rank", lambda *_: (1, 2))
    dataset = stream()
    found = list(loader_of(Whereabouts(dataset), 1, "spawn", batch_size=None))
    assert found == [[0, [8, 1, 2, 0, 1], [0, 0]]]


def test_a_late_worker_runs_the_pass_of_the_others(monkeypatch):
    counter = passes.Passes()
    others = [pickle.loads(pickle.dumps(counter)) for _ in range(2)]
    for other in others:
        other._memory, other._cells, other._owner = counter._memory, counter._cells, -1

    def claim(number, seed):
        monkeypatch.setattr(passes, "current_worker", lambda: passes.Worker(number, 2, seed))
        return others[number].claim()

    assert claim(0, 5) == (0, 0) == claim(1, 5)
    assert claim(0, 5) == (1, 0)
    assert claim(0, 5) == (2, 0)
    counter_now = int(counter._cells[0])
    assert claim(1, 5) == (1, 0) and int(counter._cells[0]) == counter_now == 3
    assert claim(1, 5) == (2, 0)
    assert claim(1, 5) == (3, 0) == claim(0, 5)
    with pytest.raises(ValueError, match="256"):
        monkeypatch.setattr(passes, "current_worker", lambda: passes.Worker(0, 257, 1))
        others[0].claim()


def _rank(dataset, rank, queue):
    torch.manual_seed(0)
    out = []
    for _ in range(2):
        out.append(batches(loader_of(dataset[rank], 1 + rank)))
    queue.put((rank, out, dataset[rank]._epoch))


def test_ranks_forked_after_construction_count_apart():
    want = epochs_of(2)
    shared = [stream(batch_size=4, rank=r, world_size=2) for r in range(2)]
    shared[1]._passes = shared[0]._passes  # as if each rank had got the same object
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    ranks = [context.Process(target=_rank, args=(shared, r, queue)) for r in range(2)]
    for process in ranks:
        process.start()
    found = {r: (out, epoch) for r, out, epoch in (queue.get(timeout=60) for _ in ranks)}
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    for epoch in range(2):
        pairs = zip(found[0][0][epoch], found[1][0][epoch])
        assert len(found[0][0][epoch]) == 6  # of the DataLoader: 8 samples, two batches of ours
        united = [i for a, b in pairs for i in a + b]
        assert sorted(united) == sorted(itertools.chain.from_iterable(want[epoch]))
    assert found[0][1] == found[1][1] == 2
    assert shared[0]._epoch == 0


ACCELERATE = """
import json, sys, logging, warnings
warnings.simplefilter("ignore")
logging.basicConfig(level=logging.WARNING)
import reelpool
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

def numbers(items):
    batch = reelpool.collate(items)
    batch.pop("task")  # Accelerate's dispatcher joins tensors only
    return batch

def dataset_of(**options):
    return reelpool.StreamingLeRobotDataset(
        "reelpool/demo", sys.argv[1], cameras=[], episodes=[1, 3], batch_size=8, **options)

def epochs_of(prepare):
    dataset = dataset_of()
    loader = prepare(DataLoader(dataset, batch_size=8, num_workers=1, collate_fn=numbers))
    return [[b["index"].tolist() for b in loader] for _ in range(2)], dataset._epoch

out = {}
for mode in ("dispatch", "shard"):
    config = DataLoaderConfiguration(dispatch_batches=mode == "dispatch")
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    out[mode] = epochs_of(accelerator.prepare)
out["plain"] = epochs_of(lambda loader: loader)
own = dataset_of(rank=0, world_size=2)
try:
    next(iter(accelerator.prepare(DataLoader(own, batch_size=8))))
except ValueError as error:
    out["error"] = str(error)
accelerator.wait_for_everyone()
print(json.dumps(out))
"""


def test_accelerate():
    pytest.importorskip("accelerate", reason="needs accelerate")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = []
    for rank in "01":
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", ACCELERATE, str(ROOT)],
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        texts = [process.communicate(timeout=120) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [0, 0], texts[0][1] + texts[1][1]
    found = [json.loads(out.splitlines()[-1]) for out, _ in texts]
    for mode, count in {"dispatch": 84, "shard": 96, "plain": 84}.items():
        assert [part[mode][1] for part in found] == [2, 2]  # the counter
        for epoch in range(2):
            seen = [i for part in found for batch in part[mode][0][epoch] for i in batch]
            assert len(set(seen)) == 84, mode
            assert len(seen) == count, mode  # Accelerate's shards fill up their tail
    assert [err.count("shares the samples out") for _, err in texts] == [2, 2]
    assert all("Accelerate" in part["error"] for part in found)
