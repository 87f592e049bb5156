#!/usr/bin/env python3
"""Frames per second of `Loader` on a GPU, on the CPU, and of torchcodec: part of `make bench-gpu`.

Per clip (build/gpu-clips/bench_*.mp4, `make gpu-kit`) a dataset of copies of it, read in the order
of `StreamingLeRobotDataset`, in which each picture is decoded once; beside it what libavcodec alone
gives on the same CPUs, the floor. Needs NumPy and pyarrow; torch and torchcodec where they are.
The share of time with a kernel running, and the decode engines', are nvidia-smi's (dmon).

    bench_batches.py [--clips FOLDER] [--seconds 4] [--threads N] [--batch_size 64] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from extension import FFMPEG, ROOT, kernel, load

COPIES = 8  # files of a dataset, at least, so that threads find several to decode
CAMERA = "camera"
COUNTERS = ("delivered", "decoded", "converted_on_gpu", "decoded_on_gpu")
HEAD = "path codec size frames/s share_of_floor busy_us_per_frame sm_% dec_% note".split()
NUMBERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")


class Watch:
    """`nvidia-smi dmon` beside a measurement; without it, all is unknown."""

    def __init__(self) -> None:
        self._rows: list[tuple[float, dict[str, str]]] = []
        self._process = None
        if shutil.which("nvidia-smi") is not None:
            gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"
            self._process = subprocess.Popen(
                ["nvidia-smi", "dmon", "-i", gpu, "-s", "u", "-d", "1"],
                stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            self._thread = threading.Thread(target=self._read, daemon=True)
            self._thread.start()

    def _read(self) -> None:
        names: list[str] = []
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            if words[:2] == ["#", "gpu"]:
                names = words[1:]
            elif words and not words[0].startswith("#"):
                self._rows.append((time.monotonic(), dict(zip(names, words))))

    def percent(self, name: str, begun: float, ended: float) -> float | None:
        """Mean of a column over the seconds that lie in the window as a whole."""
        values = [
            float(row[name])
            for at, row in list(self._rows)
            if begun + 1 <= at <= ended + 0.1 and row.get(name, "-").isdigit()
        ]
        return sum(values) / len(values) if values else None

    def close(self) -> None:
        """End the program."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._thread.join()
            self._process.stdout.close()  # type: ignore[union-attr]


def write_set(clip: Path, root: Path, core: Any, pixels: int = 0) -> dict[str, Any]:
    """A v3.0 dataset of copies of a clip, an episode each, of so many pixels or more. Its codec,
    size and frames.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    info = core.video_info(str(clip))
    times = np.frombuffer(info["times"], np.float64)
    n = len(times)
    copies = max(COPIES, -(-pixels // (n * info["height"] * info["width"])))
    count = n * copies
    fps = round((n - 1) / (times[-1] - times[0])) if n > 1 else 1
    shape = [info["height"], info["width"], 3]
    camera = {"dtype": "video", "shape": shape, "names": ["height", "width", "channels"]}
    features = {CAMERA: camera}
    features |= {k: {"dtype": "int64", "shape": [1], "names": None} for k in NUMBERS}
    features["timestamp"]["dtype"] = "float32"
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    said = {"codebase_version": "v3.0", "fps": fps, "features": features, "total_frames": count,
            "total_episodes": copies, "total_tasks": 1, "chunks_size": 1000}  # fmt: skip
    (root / "meta/info.json").write_text(json.dumps(said))
    each = np.arange(copies)
    zeros = np.zeros(copies, np.int64)
    pq.write_table(
        pa.table({
            "timestamp": pa.array(np.tile(times - times[0], copies), pa.float32()),
            "frame_index": np.tile(np.arange(n), copies), "episode_index": np.repeat(each, n),
            "index": np.arange(count), "task_index": np.zeros(count, np.int64),
        }), root / "data/chunk-000/file-000.parquet",
    )  # fmt: skip
    pq.write_table(
        pa.table({
            "episode_index": each, "tasks": pa.array([["none"]] * copies), "length": zeros + n,
            "data/chunk_index": zeros, "data/file_index": zeros,
            "dataset_from_index": each * n, "dataset_to_index": (each + 1) * n,
            f"videos/{CAMERA}/chunk_index": zeros, f"videos/{CAMERA}/file_index": each,
            f"videos/{CAMERA}/from_timestamp": zeros + times[0],
            f"videos/{CAMERA}/to_timestamp": zeros + times[-1] + 1 / fps,
        }), root / "meta/episodes/chunk-000/file-000.parquet",
    )  # fmt: skip
    pq.write_table(pa.table({"task_index": [0], "task": ["none"]}), root / "meta/tasks.parquet")
    folder = root / f"videos/{CAMERA}/chunk-000"
    folder.mkdir(parents=True)
    for i in range(copies):
        shutil.copyfile(clip, folder / f"file-{i:03d}.mp4")
    return {"codec": info["codec"], "size": f"{info['width']}x{info['height']}", "frames": n}


def timed(
    step: Callable[[], int],
    finish: Callable[[], object],
    seconds: float,
    stats: Callable[[], dict[str, Any]] = dict,
) -> dict[str, Any]:
    """Frames per second of `step`, which returns how many it made, after half of the time, and
    what the counters of `stats` went up by.
    """
    until = time.monotonic() + seconds / 2
    while step() and time.monotonic() < until:
        pass
    finish()
    before = stats()
    begun, frames = time.monotonic(), 0
    while time.monotonic() < begun + seconds:
        frames += step()
    finish()
    ended = time.monotonic()
    after = stats()
    grown = {name: after[name] - before[name] for name in COUNTERS if name in after}
    return {"frames/s": frames / (ended - begun), "begun": begun, "ended": ended, **grown}


def nothing() -> None:
    """Nothing is under way."""


def of_loader(root: Path, args: argparse.Namespace, device: str) -> dict[str, Any]:
    """`Loader`, uint8 pictures."""
    reelpool = importlib.import_module("reelpool")
    dataset = reelpool.StreamingLeRobotDataset(
        "bench", root=root, return_uint8=True, repeat=True, num_threads=args.threads
    )
    output = "numpy" if device == "cpu" else "dlpack"
    with reelpool.Loader(dataset, args.batch_size, device=device, output=output) as loader:
        batches = iter(loader)
        last: list[Any] = []

        def step() -> int:
            last[:] = [next(batches)["index"]]
            return args.batch_size

        # The copy waits for the batch, and what was made before it is done then.
        finish = nothing if device == "cpu" else lambda: last[0].numpy()
        found = timed(step, finish, args.seconds, loader.stats)
        last.clear()
    return found | {"note": told_of(found, f"{args.threads} threads")}


def told_of(found: dict[str, Any], first: str) -> str:
    """What the counters say of the frames that were delivered."""
    each = {name: found[name] / max(1, found["delivered"]) for name in COUNTERS if name in found}
    words = [first, f"{each['decoded']:.2f} decoded per frame"]
    if "decoded_on_gpu" in each:
        words.append(f"{each['decoded_on_gpu']:.2f} by the GPU")
    if "converted_on_gpu" in each:
        words.append(f"{each['converted_on_gpu']:.2f} converted there")
    return ", ".join(words)


def of_items(root: Path, args: argparse.Namespace, torch: Any) -> dict[str, Any]:
    """The same order through `video_decode_device="cuda"` and a DataLoader without workers."""
    reelpool = importlib.import_module("reelpool")
    dataset = reelpool.StreamingLeRobotDataset(
        "bench", root=root, return_uint8=True, repeat=True, num_threads=args.threads,
        batch_size=args.batch_size, video_decode_device="cuda",
    )  # fmt: skip
    batches = iter(torch.utils.data.DataLoader(dataset, args.batch_size))
    try:
        found = timed(
            lambda: len(next(batches)["index"]), torch.cuda.synchronize, args.seconds, dataset.stats
        )
    finally:
        dataset.close()
    return found | {"note": told_of(found, "DataLoader(num_workers=0)")}


def of_torchcodec(clip: Path, args: argparse.Namespace, torch: Any, n: int) -> dict[str, Any]:
    """torchcodec on the GPU, from start to end over and over, n decoders in as many threads."""
    decoders = importlib.import_module("torchcodec.decoders")
    backend = getattr(decoders, "set_cuda_backend", None)
    made = [0] * n
    wrong: list[BaseException] = []
    stop = threading.Event()

    def work(place: int) -> None:
        try:
            if backend is None:
                decoder = decoders.VideoDecoder(str(clip), device="cuda")
            else:
                with backend("beta"):
                    decoder = decoders.VideoDecoder(str(clip), device="cuda")
            count = len(decoder)
            while not stop.is_set():
                for first in range(0, count, args.batch_size):
                    last = min(first + args.batch_size, count)
                    made[place] += len(decoder.get_frames_in_range(first, last).data)
                    if stop.is_set():
                        break
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    before = 0

    def step() -> int:
        nonlocal before
        time.sleep(0.05)
        if wrong:
            raise wrong[0]
        now = sum(made)
        done, before = now - before, now
        return done

    try:
        until = time.monotonic() + 60
        while not step() and time.monotonic() < until:  # opening takes its time
            pass
        found = timed(step, torch.cuda.synchronize, args.seconds)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    which = "" if backend is None else ", beta backend"
    return found | {"note": f"{n} decoder{'s' * (n > 1)}{which}"}


def paths_of(clip: Path, root: Path, args: argparse.Namespace, core: Any) -> dict[str, Any]:
    """{path: what measures it, or why it cannot be}."""
    paths: dict[str, Any] = {"Loader cpu": lambda: of_loader(root, args, "cpu")}
    try:
        core.cuda_devices(args.driver)
        paths["Loader cuda"] = lambda: of_loader(root, args, "cuda")
    except RuntimeError as error:
        paths["Loader cuda"] = str(error).splitlines()[0]
    try:
        torch = importlib.import_module("torch")
        why = None if torch.cuda.is_available() else "this torch has no CUDA"
    except ImportError:
        why = "no torch"
    paths["items cuda"] = why or (lambda: of_items(root, args, torch))
    if why is None:
        try:
            importlib.import_module("torchcodec.decoders")
        except Exception as error:  # it raises what it likes where no FFmpeg suits it
            why = f"no torchcodec: {str(error).splitlines()[0]}"
    for n in (1, 4):
        paths[f"torchcodec cuda, {n}"] = why or (
            lambda n=n: of_torchcodec(clip, args, torch, n)  # type: ignore[misc]
        )
    return paths


def row(
    path: str, about: dict[str, Any], floor: float | None, found: Any, watch: Watch
) -> dict[str, Any]:
    """A line of the table: what was found, or why nothing was."""
    cells = dict.fromkeys(HEAD) | {"path": path, "codec": about["codec"], "size": about["size"]}
    if isinstance(found, str):
        return cells | {"note": found}
    rate = found["frames/s"]
    cells["frames/s"] = round(rate)
    cells["share_of_floor"] = None if floor is None else round(rate / floor, 3)
    if "begun" in found:
        sm, dec = (watch.percent(name, found["begun"], found["ended"]) for name in ("sm", "dec"))
        cells["sm_%"], cells["dec_%"] = sm, dec
        if sm is not None and rate and "cuda" in path:
            cells["busy_us_per_frame"] = round(sm / 100 / rate * 1e6, 2)
    return cells | {"note": found["note"]}


def floor_of(clip: Path, args: argparse.Namespace) -> tuple[float | None, Any]:
    """Frames per second of libavcodec alone, and its line; None, and why."""
    floor = importlib.import_module("reelpool.bench.floor").Floor(
        [str(clip)], args.threads, args.seconds
    )
    try:
        bare = floor.measure("seq")["frames_per_s"]
        return bare, {"frames/s": bare, "note": f"{args.threads} threads, {floor.source}"}
    except RuntimeError as error:  # without it there are no shares
        return None, str(error).splitlines()[0]
    finally:
        floor.close()


def measure(clip: Path, args: argparse.Namespace, core: Any, watch: Watch) -> list[dict[str, Any]]:
    """All lines of a clip."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="reelpool-bench-") as folder:
        root = Path(folder) / "set"
        about = write_set(clip, root, core, args.pixels)
        bare, found = floor_of(clip, args)
        rows.append(row("floor", about, bare, found, watch))
        tell(rows[-1])
        for name, found in paths_of(clip, root, args, core).items():
            if not isinstance(found, str):
                try:
                    found = found()
                except Exception as error:  # the others are measured all the same
                    found = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            rows.append(row(name, about, bare, found, watch))
            tell(rows[-1])
    for line in rows:
        line["clip"] = clip.stem
    return rows


def tell(line: dict[str, Any]) -> None:
    """Print a line of the table."""
    values = [line[name] for name in HEAD]
    words = ["-" if v is None else f"{v:g}" if isinstance(v, float) else str(v) for v in values]
    print(f"| {' | '.join(words)} |", flush=True)


def machine(core: Any, args: argparse.Namespace) -> dict[str, Any]:
    """What the figures were measured on."""
    found: dict[str, Any] = {"threads": args.threads, "cpu": core.describe()["cpu_tier"]}
    try:
        version, devices = core.cuda_devices(args.driver)
        found |= {"driver": f"CUDA {version // 1000}.{version % 1000 // 10}", "gpu": devices[0][0]}
    except RuntimeError as error:
        found["gpu"] = str(error).splitlines()[0]
    for name in ("torch", "torchcodec"):
        if name in sys.modules:
            found[name] = getattr(sys.modules[name], "__version__", "unknown")
    return found


def main(words: list[str] | None = None) -> int:
    """The table on stdout. 3: there is nothing to measure with."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clips", type=Path, default=ROOT / "build/gpu-clips")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--batch_size", type=int, default=64)
    # More than memory keeps of decoded pictures: from one pass to the next none is found there.
    parser.add_argument("--pixels", type=int, default=3 << 30, help="of a dataset, at least")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(words)
    clips = sorted(args.clips.glob("bench_*.mp4"))
    if not clips:
        print(f"no clips: {args.clips}/bench_*.mp4 (make gpu-kit)", file=sys.stderr)
        return 3
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as nvidia-smi counts
    if (FFMPEG / "bin").is_dir():
        os.environ["PATH"] = f"{FFMPEG / 'bin'}:{os.environ['PATH']}"
        os.environ["LD_LIBRARY_PATH"] = f"{FFMPEG / 'lib'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    try:
        core = load()
        for name in ("numpy", "pyarrow"):
            importlib.import_module(name)
    except ImportError as error:
        print(f"no rates of Loader: {error}", file=sys.stderr)
        return 3
    device = importlib.import_module("reelpool.device")
    args.driver = device.DRIVER
    with tempfile.TemporaryDirectory() as folder:
        if device.KERNEL is None and not core.describe()["cuda"]:
            device.KERNEL = kernel(Path(folder))
    print(f"| {' | '.join(HEAD)} |\n{'|---' * len(HEAD)}|")
    watch = Watch()
    try:
        rows = [line for clip in clips for line in measure(clip, args, core, watch)]
    finally:
        watch.close()
    about = machine(core, args)
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    if args.json is not None:
        args.json.write_text(json.dumps({"machine": about, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
