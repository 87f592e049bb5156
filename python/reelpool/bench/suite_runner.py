"""One scenario in a process of its own: `python suite_runner.py CONFIG.json RESULT.json`.

Run as a file by the interpreter that has the classes under test; the parent (`suite.py`) watches
its memory and computes the figures. The work is a training script's: the class, an unmodified torch
DataLoader (or reelpool's `Loader`), and every tensor of every batch moved to the device.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

HERE = Path(__file__).resolve().parent


def _sibling(name: str) -> Any:
    """A module of this folder by its file: the package itself may be missing here."""
    alias = f"reelpool_suite_{name}"
    if alias not in sys.modules:
        spec = importlib.util.spec_from_file_location(alias, HERE / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[alias] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[alias])
    return sys.modules[alias]


runner = _sibling("runner")

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """A job that is killed loses its processes by group, and this one has its own."""
    with contextlib.suppress(OSError):  # no C library of that name: the parent's handler is left
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("the process that started this one is gone")


def facts_of(meta: Any) -> dict[str, Any]:
    """What the parent needs of a dataset's metadata, LeRobot's or ours."""
    features = {k: dict(f) for k, f in meta.features.items()}
    cameras = list(meta.video_keys)
    shapes = [list(features[c]["shape"]) for c in cameras]
    same = len({tuple(s) for s in shapes}) == 1
    return {
        "features": list(features),
        "cameras": cameras,
        "image_shape": shapes[0] if same else shapes or None,
        "fps": meta.fps,
        "lengths": [int(n) for n in meta.episodes["length"]],
    }


def metadata_of(config: dict) -> Any:
    """`LeRobotDatasetMetadata` of the classes under test."""
    if config["impl"] == "lerobot":
        from lerobot.datasets.dataset_metadata import LeRobotDatasetMetadata

        place = _lerobot_place(config)
    else:
        from reelpool import LeRobotDatasetMetadata

        place = {"repo_id": config["repo_id"], "root": config["root"]}
    return LeRobotDatasetMetadata(**place, revision=config["revision"])


def _lerobot_place(config: dict) -> dict[str, Any]:
    """Where LeRobot 0.6.1 finds it: it has no data_files_root, but reads buckets by their name."""
    place = {"repo_id": config["repo_id"], "root": config["root"]}
    data, bucket = config["data_files_root"], "hf://buckets/"
    if data is None or (config["root"] and Path(data).resolve() == Path(config["root"]).resolve()):
        return place
    if data.startswith(bucket):
        return {"repo_id": data.removeprefix(bucket), "root": None, "repo_type": "bucket"}
    raise SystemExit(f"LeRobot's class reads no data_files_root={data}")


def open_dataset(config: dict, facts: dict, alone: bool = False) -> Any:
    """The class under test. alone: without threads and at batches of one, for the probe."""
    place = {"repo_id": config["repo_id"], "root": config["root"], "revision": config["revision"]}
    options = {
        "delta_timestamps": runner.deltas(config | facts),
        "tolerance_s": config["tolerance_s"],
        "return_uint8": config["dtype"] == "uint8",
    }
    streaming = config["loader"] == "streaming"
    if config["impl"] == "lerobot":
        if config["video_decode_device"] != "cpu":
            raise SystemExit("LeRobot 0.6.1 has no video_decode_device")
        if streaming:
            from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset as Kind

            place |= _lerobot_place(config)
            options |= {"buffer_size": config["buffer_size"], "seed": config["seed"]}
        else:
            from lerobot.datasets.lerobot_dataset import LeRobotDataset as Kind

            options["episodes"] = config["episodes"]
        return Kind(**place, **options)
    import reelpool

    options["num_threads"] = 0 if alone else config["num_threads"]
    if not streaming:
        return reelpool.LeRobotDataset(**place, episodes=config["episodes"], **options)
    return reelpool.StreamingLeRobotDataset(
        **place,
        **options,
        seed=config["seed"],
        buffer_size=config["buffer_size"],
        data_files_root=config["data_files_root"],
        episode_pool_size=config["episode_pool_size"],
        max_buffer_input_shards=config["max_buffer_input_shards"],
        video_decoder_cache_size=config["video_decoder_cache_size"],
        video_decode_device=config["video_decode_device"],
        batch_size=1 if alone else config["batch_size"],
    )


class _Counted:
    """Leaves the counters of each DataLoader worker in `folder`, once per batch."""

    def __init__(self, dataset: Any, folder: str, batch_size: int) -> None:
        self.dataset, self.folder, self.batch_size = dataset, folder, batch_size

    def leave(self) -> None:
        """Write this process's counters."""
        worker = get_worker_info()
        if worker is None:
            return
        counters = {"stats": self.dataset.stats()}
        if hasattr(self.dataset, "video_decoder_cache_stats"):
            counters["cache"] = self.dataset.video_decoder_cache_stats()
        path = Path(self.folder) / f"{worker.id}.json"
        path.with_suffix(".part").write_text(json.dumps(counters))
        os.replace(path.with_suffix(".part"), path)


class CountedMap(_Counted):
    """A map-style dataset with counters."""

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        items = self.dataset.__getitems__(indices)
        self.leave()
        return items


class _CountedItems:
    """An iterator that holds no item: what it gave may be lent to the parent process."""

    def __init__(self, owner: Any) -> None:
        self.owner, self.source, self.given = owner, iter(owner.dataset), 0

    def __iter__(self) -> _CountedItems:
        return self

    def __next__(self) -> Any:
        self.given += 1
        if self.given % self.owner.batch_size == 0:
            self.owner.leave()
        return next(self.source)


class CountedStream(_Counted, IterableDataset):  # type: ignore[misc]
    """A streaming dataset with counters."""

    def __iter__(self) -> Iterator[Any]:
        return _CountedItems(self)


def counted(dataset: Any, config: dict) -> Any:
    """`dataset` with counters if it is ours and workers read it."""
    if config["impl"] == "lerobot" or config["num_workers"] == 0:
        return dataset
    if config["loader"] != "streaming":
        return CountedMap(dataset, config["counters"], config["batch_size"])
    return CountedStream(dataset, config["counters"], config["batch_size"])


def left_counters(folder: str) -> list[dict]:
    """What the workers left."""
    return [json.loads(p.read_text()) for p in sorted(Path(folder).glob("*.json"))]


def total(parts: list[dict]) -> dict[str, float]:
    """Sums of numeric counters."""
    out: dict[str, float] = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                out[key] = out.get(key, 0) + value
    return out


def fetched(parts: list[dict]) -> dict[str, Any]:
    """What was asked of servers, by every process together: numbers, and numbers by kind."""
    asked = [part["fetch"] for part in parts if part.get("fetch")]
    kinds = dict.fromkeys(k for one in asked for k, v in one.items() if isinstance(v, dict))
    return total(asked) | {k: total([one.get(k, {}) for one in asked]) for k in kinds}


class Consumer:
    """Moves every tensor to the device, and notes how long it waited and how long moving took."""

    def __init__(self, config: dict) -> None:
        self.device = torch.device(config["device"])
        self.skip, self.seen = config["warmup_batches"] + 1, 0
        self.wait_s = self.move_s = 0.0

    def epochs(self, loader: Any) -> Callable[[int], Any]:
        """One pass over `loader` per call: (samples, episode numbers) of each batch."""

        def epoch(_: int) -> Any:
            source = iter(loader)
            while True:
                begun = time.perf_counter()
                batch = next(source, None)
                if batch is None:
                    return
                got = time.perf_counter()
                self.move(batch)
                self.seen += 1
                if self.seen > self.skip:
                    self.wait_s += got - begun
                    self.move_s += time.perf_counter() - got
                yield len(batch["index"]), runner.numbers_of(batch)

        return epoch

    def move(self, batch: dict) -> None:
        """Every tensor to the device."""
        for value in batch.values():
            if torch.is_tensor(value):
                value.to(self.device, non_blocking=self.device.type == "cuda")


def data_loader(dataset: Any, config: dict) -> Any:
    """The DataLoader of the benchmark: drop_last, persistent workers, pinned for a CUDA device."""
    torch.manual_seed(config["seed"])
    workers, on_gpu = config["num_workers"], config["video_decode_device"] != "cpu"
    return DataLoader(
        dataset,
        batch_size=config["batch_size"],
        num_workers=workers,
        shuffle=True if config["loader"] != "streaming" else None,
        pin_memory=torch.device(config["device"]).type == "cuda" and not on_gpu,
        drop_last=True,
        prefetch_factor=config["prefetch_factor"] if workers else None,
        persistent_workers=workers > 0,
        # CUDA cannot start in a forked process.
        multiprocessing_context="spawn" if on_gpu and workers else None,
    )


def own_loader(dataset: Any, config: dict) -> Any:
    """reelpool's `Loader` doing the same work without worker processes, moving included."""
    import reelpool
    from reelpool.engine import load_core

    options: dict[str, Any] = {}
    if config["loader"] != "streaming":
        options = {"shuffle": True, "seed": config["seed"]}
    if config["video_decode_device"] != "cpu":
        options["device"] = config["video_decode_device"]
    elif load_core().describe()["cuda"]:  # else the consumer moves the batches
        options["device"] = config["device"]
    return reelpool.Loader(
        dataset,
        config["batch_size"],
        num_threads=config["num_threads"],
        prefetch_batches=config["prefetch_factor"],
        drop_last=True,
        **options,
    )


def order_of(state: dict) -> dict[str, int]:
    """C, U, R, k, g, J of a state."""
    return {k: state[k] for k in ("C", "U", "R", "k", "g", "J") if k in state}


class Probe:
    """Samples one by one in this process: how fast, and what share is fetched, what is decoded.

    fetch is the row without pictures, decode the rest, as LeRobot's benchmark cuts it; read_s of
    our counters, the video bytes alone, is told apart. Frames that cannot be read are stepped
    over, counted, and the first one's error is kept.
    """

    def __init__(self, config: dict, stats: Callable[[], dict]) -> None:
        self.config, self.stats = config, stats
        self.fetch_s = self.whole_s = 0.0
        self.done = self.skipped = 0
        self.error: str | None = None

    def run(self, draw: Callable[[], tuple[float, float]]) -> dict[str, Any]:
        """`draw()` reads one sample: seconds of the row, of all of it."""
        count, warmup = self.config["probe_samples"], self.config["probe_warmup"]
        if count == 0:
            return {"reason": "--probe_samples 0"}
        before: dict = {}
        for _ in range((count + warmup) * 10):
            if self.done == warmup + count:
                break
            try:
                fetch_s, whole_s = draw()
            except StopIteration:
                break
            except Exception as error:  # counted and told: one bad frame must not end the benchmark
                self.skipped += 1
                self.error = self.error or f"{type(error).__name__}: {error}"
                continue
            self.done += 1
            if self.done > warmup:
                self.fetch_s += fetch_s
                self.whole_s += whole_s
            if self.done == warmup:
                before = self.stats()
        measured = max(0, self.done - warmup)
        out: dict[str, Any] = {"skipped": self.skipped, "error": self.error, "measured": measured}
        if not measured or not self.whole_s:
            return out | {
                "reason": f"the probe read no sample: {self.error or 'data set too small'}"
            }
        share = 100 * min(1.0, self.fetch_s / self.whole_s)
        out |= {"samples_per_s": measured / self.whole_s, "fetch_pct": share}
        read_s = self.stats().get("read_s")
        if read_s is not None:
            out["read_pct"] = 100 * min(1.0, (read_s - before.get("read_s", 0)) / self.whole_s)
        return out


def probe(config: dict, facts: dict, dataset: Any) -> dict[str, Any]:
    """The probe of the class under test; {"reason"} where it has none."""
    if config["impl"] == "lerobot":
        if config["loader"] == "streaming":
            return {
                "reason": "LeRobot 0.6.1's streaming class does not read rows apart from pictures"
            }
        alone = dataset
    else:
        alone = open_dataset(config, facts, alone=True)
    found = Probe(config, getattr(alone, "stats", dict))
    if config["loader"] == "streaming":
        rows = iter(alone._pipeline)

        def draw() -> tuple[float, float]:
            begun = time.perf_counter()
            row = next(rows)
            fetched = time.perf_counter() - begun
            alone._finalize_sample(row)
            return fetched, time.perf_counter() - begun

        return found.run(draw)
    numbers, count = random.Random(config["seed"]), len(alone)

    def draw_row() -> tuple[float, float]:
        number = numbers.randrange(count)
        begun = time.perf_counter()
        alone.get_raw_item(number)
        fetched = time.perf_counter()
        alone[number]
        # get_raw_item is a part of what [] does, so that the two overlap.
        return fetched - begun, time.perf_counter() - fetched

    return found.run(draw_row)


def engine_threads(config: dict) -> int | None:
    """Decoding threads per process; None where they are LeRobot's."""
    if config["impl"] == "lerobot":
        return None
    if config["num_threads"] is not None:
        return config["num_threads"]
    from reelpool import env

    workers = config["num_workers"]
    if config["loader"] != "streaming" and workers:
        return 0  # the worker itself
    return max(1, env.granted_cpus() // max(1, workers))


def counters(config: dict, dataset: Any, loader: Any) -> dict[str, Any]:
    """Engine counters of all processes, and those of decoder caches."""
    parts = left_counters(config["counters"])
    if config["impl"] == "lerobot":
        return {"stats": {}, "cache": None, "fetch": {}}
    if config["impl"] == "reelpool_loader":
        stats = [loader.stats()]
    elif parts:
        stats = [part["stats"] for part in parts]
    else:
        stats = [dataset.stats()]
    cache = None
    if config["impl"] != "reelpool_loader" and hasattr(dataset, "video_decoder_cache_stats"):
        each = [part["cache"] for part in parts] or [dataset.video_decoder_cache_stats()]
        cache = total(each)
        asked = cache["hits"] + cache["misses"]
        cache["hit_rate"] = round(cache["hits"] / asked, 4) if asked else 0.0
    summed = total(stats)
    summed.pop("reuse", None)
    return {"stats": summed, "cache": cache, "fetch": fetched(stats)}


def run(config: dict) -> dict[str, Any]:
    """The whole scenario; `suite_record.figures` says what becomes of the fields."""
    begun = time.perf_counter()
    config["device"] = config["device"] or ("cuda" if torch.cuda.is_available() else "cpu")
    facts = facts_of(metadata_of(config))
    if config["maxworkers"] and config["num_threads"] is None:
        config["num_threads"] = max(1, len(facts["cameras"]))
    dataset = open_dataset(config, facts)
    own = config["impl"] == "reelpool_loader"
    loader = own_loader(dataset, config) if own else data_loader(counted(dataset, config), config)
    order = {}
    if own or (config["impl"] == "reelpool" and config["loader"] == "streaming"):
        order = order_of((loader if own else dataset).state_dict())
    consumer = Consumer(config)
    ready = time.perf_counter()
    limit = {"limit_s": math.inf}
    result = runner.measure(consumer.epochs(loader), config | limit)
    until = time.monotonic()
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    found = counters(config, dataset, loader)
    result |= {
        "construct_s": ready - begun,
        "measured_until": until,
        "own_peak_rss_bytes": peak * 1024,
        "batch_shape": runner.SHAPE,
        "stats": found["stats"],
        "cache": found["cache"],
        "fetch": found["fetch"],
        "wait_s": consumer.wait_s,
        "move_s": consumer.move_s,
        "order": order,
        "facts": facts,
        "device": config["device"],
        "threads": engine_threads(config),
        "num_shards": getattr(dataset, "num_shards", None),
        "versions": runner.versions(),
    }
    if own:
        loader.close()
    del loader  # the workers end: the probe's decoding is this process's alone
    return result | {"probe": probe(config, facts, dataset)}


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules are the parent's
    settings = json.loads(Path(sys.argv[1]).read_text())
    die_with_parent(settings["parent"])
    outcome = run(settings)
    Path(sys.argv[2]).write_text(json.dumps(outcome))
    sys.stdout.flush()
    os._exit(0)  # worker processes and pools of readers under test are not waited for
