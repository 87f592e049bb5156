"""One benchmark case in a process of its own: `python runner.py CONFIG.json RESULT.json`.

Run as a file by any interpreter that has the reader under test, so nothing of this package is
imported unless the case is about it. It pulls batches, looks at none, and writes down when each
arrived; the parent computes every figure, and watches memory from outside.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

Batches = Iterator[tuple[int, Any]]  # (samples, episode numbers or None)
SHAPE: list[int] = []  # shape of the first image tensor of a batch, for the report
PROBE_LIMIT_S = 5.0


@dataclass
class Reader:
    """What a case gives to the clock."""

    epochs: Callable[[int], Batches]
    stats: Callable[[], dict] = dict
    alone: Callable[[], tuple[Iterator[Any], Callable[[], dict]]] | None = None  # see `probe`
    close: Callable[[], None] | None = None


def tree_cpu_s() -> float:
    """User and system seconds of this process and of all that descend from it."""
    tick = os.sysconf("SC_CLK_TCK")
    parents, used = {}, {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it ended while the list was read
        parents[int(entry)] = int(fields[1])
        used[int(entry)] = (int(fields[11]) + int(fields[12])) / tick
    mine, grown = {os.getpid()}, True
    while grown:
        more = {p for p, parent in parents.items() if parent in mine} - mine
        mine |= more
        grown = bool(more)
    return sum(used.get(p, 0.0) for p in mine)


def measure(epochs: Callable[[int], Batches], config: dict) -> dict:
    """Pull batches until window or count is full; arrival times are seconds after iter()."""
    arrivals: list[float] = []
    sizes: list[int] = []
    episodes: list[int] = []
    warmup, steady, epoch = config["warmup_batches"], None, 0
    cpu = faults = 0.0
    start = time.perf_counter()
    while True:
        before = len(sizes)
        for size, numbers in epochs(epoch):
            now = time.perf_counter() - start
            arrivals.append(now)
            sizes.append(size)
            if numbers is not None:
                episodes.append(len(set(numbers)))
            if len(sizes) == warmup + 1:
                steady = now
                cpu, faults = tree_cpu_s(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            done = steady is not None and now - steady >= config["duration_s"]
            if (
                (done and len(sizes) > warmup + 1)
                or len(sizes) >= config["num_batches"]
                or now > config["limit_s"]
            ):
                return {
                    "arrivals": arrivals,
                    "sizes": sizes,
                    "episodes": episodes,
                    "epochs": epoch + 1,
                    "steady_cpu_s": tree_cpu_s() - cpu,
                    "minor_faults": resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults,
                }
        if len(sizes) == before:
            raise SystemExit("an epoch gave no batch: the dataset is smaller than one batch")
        epoch += 1


def probe(reader: Reader, config: dict) -> dict:
    """Samples one after the other in this process: no loader, no workers, nothing read ahead.

    `reader.alone()` gives fresh samples and the counters of what reads them, if it has any.
    """
    count, warmup = config["probe_samples"], config["probe_warmup"]
    if reader.alone is None or count == 0:
        return {}
    samples, stats = reader.alone()
    done, begun, before = 0, time.perf_counter(), {}
    for number, _ in enumerate(samples):
        if number == warmup:
            done, begun, before = -1, time.perf_counter(), stats()
        done += 1
        spent = time.perf_counter() - begun
        if number > warmup and (done >= count or spent > PROBE_LIMIT_S):
            break
    spent = time.perf_counter() - begun
    if done < 1:
        return {}
    after = stats()
    return {
        "samples_per_s": done / spent,
        "stages": {
            k: (after[k] - before.get(k, 0)) / spent for k in after if k in ("read_s", "decode_s")
        },
    }


def numbers_of(batch: dict) -> list[int] | None:
    """Episode numbers of a batch, and the shape of its first picture for the report."""
    if not SHAPE:
        shapes = (v.shape for v in batch.values() if hasattr(v, "shape") and len(v.shape) >= 4)
        SHAPE.extend(int(n) for n in next(shapes, ()))
    value = batch.get("episode_index")
    return value.reshape(-1).tolist() if hasattr(value, "reshape") else None


def deltas(config: dict) -> dict[str, list[float]] | None:
    """delta_timestamps of the mode: `sarm` is 8 steps 1 s apart, ending now."""
    steps = [float(s) for s in range(-7, 1)]
    if config["mode"] == "single":
        return None
    keys = ["action"] if "action" in config["features"] else []
    return dict.fromkeys(keys + (config["cameras"] if config["mode"] == "sarm" else []), steps)


def torch_epochs(dataset: Any, config: dict, **options: Any) -> Callable[[int], Batches]:
    """A plain torch DataLoader over a map-style dataset."""
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(config["seed"])
    workers = config["num_workers"]
    loader = DataLoader(
        dataset,
        batch_size=config["batch_size"],
        num_workers=workers,
        shuffle=None if is_stream(dataset) else config["order"] != "sequential",
        prefetch_factor=config["prefetch_factor"] if workers else None,
        persistent_workers=workers > 0,
        **options,
    )

    def epoch(_: int) -> Batches:
        for batch in loader:
            yield len(batch["index"]), numbers_of(batch)

    return epoch


def is_stream(dataset: Any) -> bool:
    """Whether a dataset has no length, so that a DataLoader cannot shuffle it."""
    return not hasattr(dataset, "__len__")


def at_random(dataset: Any, config: dict) -> Iterator[Any]:
    """Items of a map-style dataset, without end."""
    import random

    draw, count = random.Random(config["seed"]), len(dataset)
    while True:
        yield dataset[draw.randrange(count)]


def reelpool_dataset(config: dict, **options: Any) -> Any:
    """Our streaming class for order "stream", else the map-style one."""
    import reelpool

    kind = reelpool.LeRobotDataset
    if config["order"] == "stream":
        kind = reelpool.StreamingLeRobotDataset
        options |= {"seed": config["seed"], "batch_size": config["batch_size"]}
        if config["window"] is not None:
            options["window"] = config["window"]
    return kind(
        config["repo_id"],
        root=config["root"],
        episodes=config["episodes"],
        delta_timestamps=deltas(config),
        return_uint8=config["dtype"] == "uint8",
        tolerance_s=config["tolerance_s"],
        **options,
    )


def reelpool_case(config: dict) -> Reader:
    """Our classes: `Loader` threads, or a torch DataLoader with workers."""
    if importlib.util.find_spec("torch"):
        import torch  # noqa: F401  a training script has it, so the first batch need not wait for it

    import reelpool

    def alone() -> tuple[Iterator[Any], Callable[[], dict]]:
        # A streaming class makes whole batches ahead: one by one means batches of one.
        fresh = reelpool_dataset(config | {"batch_size": 1}, num_threads=1)
        return iter(fresh) if is_stream(fresh) else at_random(fresh, config), fresh.stats

    streaming, options = config["order"] == "stream", {}
    if config["loader"] == "workers":
        if streaming:
            options["num_threads"] = max(1, config["num_threads"] // max(1, config["num_workers"]))
        dataset = reelpool_dataset(config, **options)
        return Reader(torch_epochs(dataset, config), dataset.stats, alone)
    dataset = reelpool_dataset(config)
    if not streaming:
        options |= {"shuffle": config["order"] != "sequential", "seed": config["seed"]}
    if config["order"] == "gop":
        options["locality"] = tuple(config["locality"])
    loader = reelpool.Loader(
        dataset,
        config["batch_size"],
        num_threads=config["num_threads"],
        prefetch_batches=config["prefetch_factor"],
        **options,
    )

    def epoch(_: int) -> Batches:
        for batch in loader:
            yield len(batch["index"]), numbers_of(batch)

    return Reader(epoch, loader.stats, alone, loader.close)


def lerobot_case(config: dict) -> Reader:
    """LeRobot's own classes under a torch DataLoader: streaming with its defaults for order
    "stream" unless the case asks for the map-style class."""
    options: dict[str, Any] = {}
    if config["dtype"] == "uint8":
        options["return_uint8"] = True
    streaming = config["order"] == "stream" and config["variant"] != "map"
    if streaming:
        from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset as Kind

        options |= {"buffer_size": config["buffer_size"], "seed": config["seed"]}
    else:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset as Kind
    dataset = Kind(
        config["repo_id"],
        root=config["root"],
        episodes=config["episodes"],
        delta_timestamps=deltas(config),
        tolerance_s=config["tolerance_s"],
        **options,
    )
    epochs = torch_epochs(dataset, config)
    # Its streaming class decodes a whole buffer before the first sample: no probe of single ones.
    return Reader(epochs, dict, None if streaming else lambda: (at_random(dataset, config), dict))


class FrameTable:
    """Where each frame of each camera lies, for the readers that know only video files."""

    def __init__(self, config: dict) -> None:
        self.config = config
        self.episode_of: list[int] = []
        self.start_of: list[int] = []
        self.frames: dict[str, list[tuple[str, int]]] = {c: [] for c in config["cameras"]}
        for row in config["episode_rows"]:
            first = len(self.episode_of)
            for i in range(row["length"]):
                self.episode_of.append(row["episode_index"])
                self.start_of.append(first)
                for camera, (path, start) in row["videos"].items():
                    self.frames[camera].append((path, start + i))
        self.ends = {row["episode_index"]: row["length"] for row in config["episode_rows"]}

    def wanted(self, samples: list[int], camera: str) -> list[tuple[str, int]]:
        """(file, frame number) of every picture that the samples need, in order."""
        steps = [0]
        if self.config["mode"] == "sarm":
            steps = [round(s * self.config["fps"]) for s in range(-7, 1)]
        out = []
        for s in samples:
            first = self.start_of[s]
            last = first + self.ends[self.episode_of[s]] - 1
            out += [self.frames[camera][min(max(s + step, first), last)] for step in steps]
        return out


def grouped(wanted: list[tuple[str, int]]) -> dict[str, list[int]]:
    """Positions of `wanted` by file."""
    files: dict[str, list[int]] = {}
    for position, (path, _) in enumerate(wanted):
        files.setdefault(path, []).append(position)
    return files


class TorchcodecReader:
    """Batched `get_frames_at`, one FFmpeg thread per decoder, one decoder per thread and file."""

    def __init__(self, config: dict) -> None:
        import torch
        import torchcodec.decoders

        torch.set_num_threads(1)
        self.torch, self.opened = torch, torchcodec.decoders.VideoDecoder
        self.local, self.float32 = threading.local(), config["dtype"] == "float32"

    def decode(self, wanted: list[tuple[str, int]]) -> Any:
        """(len(wanted), 3, H, W)."""
        cache = self.local.__dict__.setdefault("decoders", {})
        out: list[Any] = [None] * len(wanted)
        for path, positions in grouped(wanted).items():
            if path not in cache:
                cache[path] = self.opened(path, seek_mode="approximate", num_ffmpeg_threads=1)
            frames = cache[path].get_frames_at([wanted[p][1] for p in positions]).data
            for position, frame in zip(positions, frames):
                out[position] = frame
        batch = self.torch.stack(out)
        return batch / 255 if self.float32 else batch


class AvReader:
    """PyAV: seek to the key frame before, decode to the wanted one, convert to RGB."""

    def __init__(self, config: dict) -> None:
        import av
        import numpy

        self.av, self.np = av, numpy
        self.fps, self.local = config["fps"], threading.local()
        self.float32 = config["dtype"] == "float32"

    def decode(self, wanted: list[tuple[str, int]]) -> Any:
        """(len(wanted), 3, H, W)."""
        cache = self.local.__dict__.setdefault("containers", {})
        out: list[Any] = [None] * len(wanted)
        for path, positions in grouped(wanted).items():
            if path not in cache:
                container = self.av.open(path)
                container.streams.video[0].codec_context.thread_count = 1
                cache[path] = container
            container, last, frames = cache[path], None, None
            stream = container.streams.video[0]
            for position in sorted(positions, key=lambda p: wanted[p][1]):
                number = wanted[position][1]
                target = round(number / self.fps / stream.time_base)
                if last is None or number != last[0] + 1:
                    container.seek(target, stream=stream)
                    frames = container.decode(stream)
                if last is None or number != last[0]:
                    half = 0.5 / self.fps / stream.time_base
                    frame = next(f for f in frames if f.pts >= target - half)
                    last = (number, frame.to_ndarray(format="rgb24").transpose(2, 0, 1))
                out[position] = last[1]
        batch = self.np.stack(out)
        return batch.astype("float32") / 255 if self.float32 else batch


def decoder_case(config: dict) -> Reader:
    """torchcodec or PyAV under a thread pool: a batch is cut into one run of samples per thread."""
    import random

    reader = (TorchcodecReader if config["impl"] == "torchcodec" else AvReader)(config)
    table, threads, size = FrameTable(config), config["num_threads"], config["batch_size"]
    count, pool = len(table.episode_of), ThreadPoolExecutor(config["num_threads"])

    def submit(samples: list[int]) -> tuple[list[int], list[Any]]:
        share = -(-len(samples) // threads)
        parts = [samples[i : i + share] for i in range(0, len(samples), share)]
        jobs = [
            pool.submit(reader.decode, table.wanted(part, camera))
            for part in parts
            for camera in config["cameras"]
        ]
        return samples, jobs

    def epoch(number: int) -> Batches:
        order = list(range(count))
        if config["order"] == "random":
            random.Random(config["seed"] + number).shuffle(order)
        batches = [order[i : i + size] for i in range(0, count, size)]
        queue, ahead = [], config["prefetch_factor"] + 1
        for samples in batches:
            queue.append(submit(samples))
            if len(queue) > ahead:
                yield finish(*queue.pop(0))
        for samples, jobs in queue:
            yield finish(samples, jobs)

    def finish(samples: list[int], jobs: list[Any]) -> tuple[int, list[int]]:
        parts = [job.result() for job in jobs]
        cameras = len(config["cameras"])
        for c in range(cameras):
            column = parts[c::cameras]
            joined = (
                reader.torch.cat(column)
                if hasattr(reader, "torch")
                else reader.np.concatenate(column)
            )
            if not SHAPE:
                SHAPE.extend(joined.shape)
        return len(samples), [table.episode_of[s] for s in samples]

    return Reader(epoch)


def versions() -> dict[str, str]:
    """Versions of what this interpreter has of the readers under test."""
    found = {"python": platform.python_version()}
    for name in ("reelpool", "numpy", "torch", "torchcodec", "av", "lerobot", "pyarrow"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # not installed here, so not part of the environment
    return found


def run(config: dict) -> dict:
    """The whole case; see `metrics.summarize` for what becomes of the fields."""
    begun = time.perf_counter()
    make = {"reelpool": reelpool_case, "lerobot": lerobot_case}.get(config["impl"], decoder_case)
    reader = make(config)
    ready = time.perf_counter()
    result = measure(reader.epochs, config)
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    result |= {
        "construct_s": ready - begun,
        "measured_until": time.monotonic(),
        "own_peak_rss_bytes": peak * 1024,
        "batch_shape": SHAPE,
        "stats": {k: v for k, v in reader.stats().items() if isinstance(v, (int, float))},
        "versions": versions(),
    }
    if reader.close is not None:
        reader.close()
    return result | {"probe": probe(reader, config)}


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: its modules are the parent's
    outcome = run(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(outcome))
    sys.stdout.flush()
    os._exit(0)  # worker processes and pools of readers under test are not waited for
