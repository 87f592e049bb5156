"""What is measured: the dataset's facts, and the cases that a command line asks for."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

IMPLS = ("reelpool", "lerobot", "torchcodec", "av")
LOADERS = ("threads", "workers")
MODES = ("single", "sarm", "sarm_action")
ORDERS = ("sequential", "random", "gop", "stream")
DTYPES = ("uint8", "float32")
DEMO = Path(__file__).resolve().parent.parent / "_demo"


@dataclass
class Case:
    """One line of the table."""

    impl: str
    loader: str
    mode: str
    order: str
    dtype: str
    batch_size: int
    num_workers: int
    python: str
    floor: str = "random"
    variant: str = ""  # "map": LeRobot's map-style class, beside streaming ones
    skipped: str | None = None
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Short name in the table."""
        reader = f"{self.impl} {self.variant}".rstrip()
        return f"{reader} {self.loader}" + (
            f" ({self.num_workers})" if self.loader == "workers" else ""
        )

    @property
    def what(self) -> str:
        """The work that it is compared in: cases that share it may be compared."""
        return f"{self.mode}, {self.order}, {self.dtype}"

    def tag(self, scenario: str) -> str:
        """Base name of its result files."""
        reader = self.impl + self.variant
        parts = (scenario, reader, self.loader, self.mode, self.order, self.dtype)
        return "_".join(parts) + f"_bs{self.batch_size}_w{self.num_workers}_r0of1"

    def labels(self) -> dict[str, Any]:
        """Its own keys in the result file."""
        out = asdict(self)
        for name in ("config", "skipped", "python"):
            del out[name]
        return out


@dataclass
class Facts:
    """What the benchmark knows of a local v3.0 or v2.1 dataset without decoding anything."""

    name: str
    root: Path
    fps: int
    cameras: list[str]
    features: dict[str, Any]
    episodes: list[dict]  # {"episode_index", "length", "videos": {camera: (path, first frame)}}
    data_files: int = 1

    @property
    def lengths(self) -> list[int]:
        """Frames per episode."""
        return [e["length"] for e in self.episodes]

    def files(self, camera: str) -> list[str]:
        """Video files of a camera, in order."""
        return list(dict.fromkeys(e["videos"][camera][0] for e in self.episodes))

    def gop(self) -> int:
        """Frames per GOP as info.json records it; 2, LeRobot's default, where it does not."""
        values = (f.get("info", {}).get("video.g") for f in self.features.values())
        return next((int(v) for v in values if v), 2)


class DatasetUnusable(Exception):
    """The dataset cannot be benchmarked; the text says why and what to do."""


def read_facts(name: str, root: Path) -> Facts:
    """Read `meta/` of a local dataset. Raises DatasetUnusable."""
    path = root / "meta/info.json"
    if not path.is_file():
        raise DatasetUnusable(
            f"{root} holds no meta/info.json\n  Give the folder of a LeRobot dataset"
        )
    try:
        return _facts(name, root, json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError, AttributeError, OSError, pa.ArrowException) as error:
        raise DatasetUnusable(
            f"{root} cannot be read: {type(error).__name__}: {error}\n"
            f"  Run: reelpool verify {shlex.quote(str(root))}"
        ) from error


def _facts(name: str, root: Path, info: dict) -> Facts:
    cameras = [k for k, f in info["features"].items() if f["dtype"] == "video"]
    if not cameras:
        raise DatasetUnusable(f"{root} has no video camera: nothing to decode")
    if str(info["codebase_version"]).startswith("v2"):
        episodes = _episodes_v2(root, info, cameras)
    else:
        episodes = _episodes_v3(root, info, cameras)
    for file in {path: None for e in episodes for path, _ in e["videos"].values()}:
        os.stat(file)  # a missing one is told here
    tables = len(list((root / "data").rglob("*.parquet")))
    return Facts(name, root, info["fps"], cameras, info["features"], episodes, tables)


def _episodes_v3(root: Path, info: dict, cameras: list[str]) -> list[dict]:
    parts = ["chunk_index", "file_index", "from_timestamp"]
    columns = ["episode_index", "length"] + [f"videos/{c}/{p}" for c in cameras for p in parts]
    rows = []
    for path in sorted((root / "meta/episodes").rglob("*.parquet")):
        rows += pq.read_table(path, columns=columns).to_pylist()
    out = []
    for row in sorted(rows, key=lambda r: r["episode_index"]):
        videos = {}
        for camera in cameras:
            chunk, number, start = (row[f"videos/{camera}/{p}"] for p in parts)
            relative = info["video_path"].format(
                video_key=camera, chunk_index=chunk, file_index=number
            )
            videos[camera] = (str(root / relative), round(start * info["fps"]))
        entry = {"episode_index": row["episode_index"], "length": row["length"], "videos": videos}
        out.append(entry)
    return out


def _episodes_v2(root: Path, info: dict, cameras: list[str]) -> list[dict]:
    out = []
    for line in (root / "meta/episodes.jsonl").read_text().splitlines():
        row = json.loads(line)
        number = row["episode_index"]
        chunk = number // info["chunks_size"]
        videos = {}
        for camera in cameras:
            relative = info["video_path"].format(
                video_key=camera, episode_chunk=chunk, episode_index=number
            )
            videos[camera] = (str(root / relative), 0)
        out.append({"episode_index": number, "length": row["length"], "videos": videos})
    return out


def _importable(python: str, own: str, module: str) -> bool:
    if python == own:
        return importlib.util.find_spec(module) is not None
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", probe], capture_output=True).returncode == 0


def _why_not(case: Case, facts: Facts, own: str, seen: dict[tuple[str, str], bool]) -> str | None:
    """Why a combination cannot run, or None."""
    if case.impl in ("lerobot",) and case.loader == "threads":
        return "has no threads loader"
    if case.impl in ("torchcodec", "av") and case.loader == "workers":
        return "is measured under a thread pool"
    if case.impl in ("torchcodec", "av") and case.order == "stream":
        return "has no streaming order"
    if case.order == "gop" and (case.impl != "reelpool" or case.loader == "workers"):
        return "order gop needs reelpool's Loader"
    if case.impl == "lerobot" and case.order == "stream" and not case.variant:
        if any(len(facts.files(camera)) > 1 for camera in facts.cameras):
            return (
                "streaming reads one video file per camera: benchmarks/one_file.py writes such a "
                "copy of a dataset"
            )
        if case.config["episodes"] is not None:
            return "streaming does not heed --max_episodes"
    needs = {"lerobot": ("lerobot", "torch"), "torchcodec": ("torch", "torchcodec"), "av": ("av",)}
    modules = needs.get(case.impl, ("torch",) if case.loader == "workers" else ())
    for module in modules:
        key = (case.python, module)
        if key not in seen:
            seen[key] = _importable(case.python, own, module)
        if not seen[key]:
            return f"{module} is not importable"
    return None


def _workers(args: argparse.Namespace, facts: Facts, reader: str, order: str) -> tuple[int, ...]:
    """The numbers of DataLoader workers that a reader ("impl variant") is measured with."""
    if order != "stream":
        return args.num_workers
    if reader == "lerobot ":
        # 0.6.1 gives a worker nothing unless each of its shards (16 at most) holds several files.
        most = max(1, facts.data_files // 16)
        return tuple(dict.fromkeys(min(n, most) for n in args.num_workers))
    if reader == "reelpool " and not args.workers_given:
        return tuple(dict.fromkeys((1, *args.num_workers)))
    return args.num_workers


def _candidates(args: argparse.Namespace, facts: Facts, own: str) -> list[Case]:
    """Every combination that was asked for, possible or not."""
    cases = []
    for order, mode, dtype in _work(args):
        readers = [(impl, "") for impl in args.impl]
        if order == "stream" and mode == "sarm" and "lerobot" in args.impl:
            readers.append(("lerobot", "map"))
        for impl, variant in readers:
            python = args.lerobot_python if impl != "reelpool" and args.lerobot_python else own
            for loader in args.loader:
                counts = (0,)
                if loader == "workers":
                    counts = _workers(args, facts, f"{impl} {variant}", order)
                for workers in counts:
                    case = Case(
                        impl, loader, mode, order, dtype, args.batch_size, workers, python,
                        "random" if order == "random" else "seq", variant,
                    )  # fmt: skip
                    case.config = _config(args, facts, case)
                    cases.append(case)
    return cases


def build(args: argparse.Namespace, facts: Facts, own: str) -> tuple[list[Case], list[str]]:
    """The cases that can run, and lines that say which readers cannot."""
    cases = _candidates(args, facts, own)
    seen: dict[tuple[str, str], bool] = {}
    for case in cases:
        case.skipped = _why_not(case, facts, own, seen)
    chosen = [c for c in cases if c.skipped is None]
    missing, other = [], []
    for impl in dict.fromkeys(c.impl for c in cases):
        reasons = [c.skipped for c in cases if c.impl == impl]
        streaming = [r for r in reasons if r and r.startswith("streaming")]
        if streaming:
            other.append(f"{impl} {streaming[0]}")
        if None in reasons or streaming:
            continue
        if any("importable" in r for r in reasons):
            missing.append(impl)
        else:
            other.append(f"{impl} {reasons[0]}")
    if missing:
        hint = "" if args.lerobot_python else "; --lerobot_python EXE runs them elsewhere"
        other.append(f"{', '.join(missing)}: not importable here{hint}")
    return chosen, other


def _work(args: argparse.Namespace) -> list[tuple[str, str, str]]:
    """(order, mode, dtype) of the scenario, or the product of what was asked for."""
    asked = any((args.order, args.mode, args.dtype))
    if args.scenario == "demo" and not asked:
        return [("random", "single", "uint8"), ("gop", "single", "uint8")]
    orders = args.order or ORDERS
    modes = args.mode or (MODES[:2] if args.scenario == "local" and not asked else MODES[:1])
    dtypes = args.dtype or (DTYPES if args.scenario == "local" and not asked else DTYPES[:1])
    if args.scenario == "demo" and not args.order:
        orders = ("random",)
    work = [(o, m, d) for o in orders for m in modes for d in dtypes]
    if asked:
        return work
    return [w for w in work if w[1] == "single" or w[2] == "uint8"]  # windows once per order


def _config(args: argparse.Namespace, facts: Facts, case: Case) -> dict[str, Any]:
    """What the runner is told."""
    gop = facts.gop()
    chosen = facts.episodes[: args.max_episodes] if args.max_episodes else facts.episodes
    return {
        "repo_id": facts.name,
        "root": str(facts.root),
        "episodes": [e["episode_index"] for e in chosen] if args.max_episodes else None,
        "episode_rows": chosen if case.impl in ("torchcodec", "av") else [],
        "impl": case.impl,
        "variant": case.variant,
        "loader": case.loader,
        "mode": case.mode,
        "order": case.order,
        "dtype": case.dtype,
        "batch_size": args.batch_size,
        "num_workers": case.num_workers,
        "num_threads": args.num_threads,
        "prefetch_factor": args.prefetch_factor,
        "window": args.window,
        "buffer_size": args.buffer_size,
        "probe_samples": args.probe_samples,
        "probe_warmup": args.probe_warmup,
        "locality": [gop, gop if gop <= 4 else -(-gop // 4), 16],
        "duration_s": args.duration_s,
        "num_batches": args.num_batches,
        "warmup_batches": args.warmup_batches,
        "limit_s": max(120.0, 10 * args.duration_s),
        "seed": args.seed,
        "tolerance_s": 1e-3,
        "fps": facts.fps,
        "cameras": facts.cameras,
        "features": list(facts.features),
    }
