"""The suite's scenarios, and the options of its two scripts and of `reelpool submit`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..cli import console
from ..cli.console import count
from . import targets

ROBOCASA_REPO = "pepijn223/robocasa_pretrain_human300_v4"
MOLMO_REPO = "allenai/MolmoAct2-BimanualYAM-Dataset"
MOLMO_BUCKET = "hf://buckets/pepijn223/MolmoAct2-BimanualYAM-Dataset-bucket"
MOLMO_REVISION = "main"  # published without a tag of its version

_PLACES = ("local_root", "root", "data_files_root")
IMPLS = ("reelpool", "reelpool_loader", "lerobot")
DATALOADING_OUT = Path("benchmarks/streaming/results_dataloading")
STREAMING_OUT = Path("benchmarks/streaming/results")


@dataclass(frozen=True)
class Scenario:
    """One scenario and the job that runs it. cpus None: workers + 4."""

    kind: str  # "map_style" or "streaming"
    nodes: int
    mem: str
    time: str
    bucket: bool = False
    maxworkers: bool = False
    cpus: int | None = None


SCENARIOS = {
    "mmap_local": Scenario("map_style", 1, "64G", "01:00:00"),
    "mmap_local_maxworkers": Scenario("map_style", 1, "128G", "01:00:00", False, True, 92),
    "stream_hub": Scenario("streaming", 1, "250G", "03:00:00"),
    "stream_bucket": Scenario("streaming", 1, "250G", "03:00:00", True),
    "stream_bucket_2node": Scenario("streaming", 2, "250G", "03:00:00", True),
}


def names(allowed: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """A parser of lists such as "a,b"."""

    def parse(text: str) -> tuple[str, ...]:
        chosen = tuple(dict.fromkeys(p.strip() for p in text.split(",") if p.strip()))
        wrong = [p for p in chosen if p not in allowed]
        if wrong or not chosen:
            raise argparse.ArgumentTypeError(f"{text!r}: use one or more of {','.join(allowed)}")
        return chosen

    return parse


def device(text: str) -> str:
    """A parser of "cpu", "cuda" and "cuda:N"."""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        raise argparse.ArgumentTypeError(f"{text!r}: use cpu, cuda or cuda:N")
    return text


def per_scenario(text: str) -> dict[str, str]:
    """{scenario or "": value} of "VALUE" or "SCENARIO=VALUE,SCENARIO=VALUE"."""
    out: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.rpartition("=")
        name, value = name.strip(), value.strip()
        if not value or (equals and name not in SCENARIOS):
            raise argparse.ArgumentTypeError(
                f"{text!r}: use VALUE or SCENARIO=VALUE,..., scenarios: {', '.join(SCENARIOS)}"
            )
        out[name] = value
    return out


def _common_options(parser: argparse.ArgumentParser, num_batches: int, out_dir: Path) -> None:
    """What both benchmarks have."""
    add = parser.add_argument
    add("--batch_size", type=count(1), default=64, help="samples per batch and rank (64)")
    add("--num_workers", type=count(0), default=8, help="DataLoader workers (8)")
    add("--prefetch_factor", type=count(1), default=2, help="batches ready ahead (2)")
    add(
        "--duration_s",
        type=console.seconds,
        default=60.0,
        help="steady window: it ends after so many seconds or --num_batches (60)",
    )
    add(
        "--num_batches",
        type=count(1),
        default=num_batches,
        help=f"end after so many batches ({num_batches})",
    )
    add("--warmup_batches", type=count(0), default=5, help="batches before the window (5)")
    add("--probe_samples", type=count(0), default=100, help="samples read one by one (100)")
    add("--probe_warmup", type=count(0), default=10, help="further ones before the clock (10)")
    add(
        "--device",
        type=device,
        metavar="{cpu,cuda,cuda:N}",
        help="where tensors are moved (default: cuda where there is one, else cpu)",
    )
    add(
        "--video_decode_device",
        type=device,
        default="cpu",
        metavar="{cpu,cuda,cuda:N}",
        help="where video is decoded",
    )
    add(
        "--buffer_size",
        type=count(1),
        default=2000,
        help="decoded samples that LeRobot's streaming class holds; no effect on reelpool (2000)",
    )
    add(
        "--impl",
        type=names(IMPLS),
        default=IMPLS,
        help="reelpool: its classes in a DataLoader; reelpool_loader: Loader; lerobot: LeRobot's "
        "classes in a DataLoader (default: all that can be imported)",
    )
    add("--lerobot_python", metavar="EXE", help="interpreter that has LeRobot")
    add("--dtype", choices=("float32", "uint8"), default="float32", help="of the pictures")
    add("--num_threads", type=count(0), help="decoding threads per process (the class's default)")
    add("--seed", type=int, default=0, help="of the order")
    add(
        "--node_cache",
        choices=("cold", "kept"),
        default="cold",
        help="of remote files: an empty one for each run, or the user's own (cold)",
    )
    add(
        "--floor_s",
        type=float,
        default=1.0,
        help="seconds per measurement of the bare decoder on local files; 0: none (1)",
    )
    add("--out_dir", type=Path, default=out_dir, help=f"for the results ({out_dir})")
    targets.add_options(parser)


def dataloading_options(parser: argparse.ArgumentParser) -> None:
    """Options of a worker of benchmark_dataloading.py; `submit` passes them on."""
    add = parser.add_argument
    add("--local_root", type=Path, help="local copy of the map-style dataset (mmap_local*)")
    add("--map_repo_id", default=ROBOCASA_REPO, help="map-style dataset")
    add("--repo_id", default=MOLMO_REPO, help="streamed dataset")
    add("--revision", default=MOLMO_REVISION, help="of the streamed dataset (main)")
    add("--root", type=Path, help="local folder of the streamed dataset, or of its meta/")
    add(
        "--data_files_root",
        default=MOLMO_BUCKET,
        help="data/ and videos/ in stream_bucket*: hf://buckets/OWNER/NAME or a folder",
    )
    add("--num_partitions", type=count(1), default=8, help="nodes that share mmap_local (8)")
    add("--partition_index", type=count(0), default=0, help="this node's part")
    add("--max_episodes", type=count(0), default=512, help="cap of mmap_local; 0: none (512)")
    add("--episode_pool_size", type=count(1), default=1024, help="mean episodes mixed (1024)")
    add(
        "--max_buffer_input_shards",
        type=count(1),
        help="lanes of the order (default: the least multiple of the global batch >= 64)",
    )
    add("--video_decoder_cache_size", type=count(1), default=32, help="open decoders (32)")
    _common_options(parser, 1_000_000, DATALOADING_OUT)


def streaming_options(parser: argparse.ArgumentParser) -> None:
    """Options of benchmark_streaming.py."""
    add = parser.add_argument
    add("--repo_id", default=ROBOCASA_REPO, help="dataset")
    add("--revision", help="branch, tag or commit")
    add("--root", type=Path, help="local folder of the dataset, or of its meta/")
    add("--data_files_root", help="data/ and videos/: hf://buckets/OWNER/NAME or a folder")
    add(
        "--mode",
        choices=("single", "sarm", "sarm_action"),
        default="single",
        help="one frame of every camera; 8 steps 1 s apart of action and cameras; of action",
    )
    add(
        "--source",
        default="hub",
        metavar="{hub,bucket,warmed_bucket,local}",
        choices=("hub", "bucket", "warmed_bucket", "local"),
        help="a label only: what is read is what --repo_id, --root, --data_files_root name",
    )
    add("--episode_pool_size", type=count(1), help="mean episodes mixed (the class's own window)")
    add("--max_buffer_input_shards", type=count(1), help="lanes of the order")
    add("--video_decoder_cache_size", type=count(1), help="open decoders (8 per thread)")
    _common_options(parser, 200, STREAMING_OUT)


def submit_options(parser: argparse.ArgumentParser) -> None:
    """What only the orchestrator has."""
    from ..distributed import scheduler_defaults

    add = parser.add_argument
    add(
        "--scenarios",
        type=names(tuple(SCENARIOS)),
        default=tuple(SCENARIOS),
        help=f"which, in this order (default: {','.join(SCENARIOS)})",
    )
    for name, value in scheduler_defaults().items():
        add(f"--{name}", default=value, help=f"of the jobs (default: ${name.upper()})")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--venv", type=Path, help="virtual environment the jobs run in")
    where.add_argument("--conda_env", help="conda environment the jobs run in")
    add("--gpus", type=count(0), default=1, help="per node; 0: the jobs ask for none (1)")
    add("--maxworkers", type=count(0), default=30, help="workers of mmap_local_maxworkers (30)")
    for name, what in (("mem", "250G"), ("time", "03:00:00"), ("cpus", "8")):
        add(
            f"--{name}",
            type=per_scenario,
            default={},
            metavar="VALUE|SCENARIO=VALUE,...",
            help=f"of all jobs or of some, as {what}",
        )
    add("--log_dir", type=Path, help="for the jobs' output (logs/ in the checkout)")
    add("--no_report", action="store_true", help="no last job that merges the results")
    add("--dry_run", action="store_true", help="print the sbatch commands, submit nothing")
    add("--wait", action="store_true", help="wait for the jobs, then look for their results")
    add("--poll_s", type=float, default=10.0, help="seconds between looks at the queue (10)")


def passed_on(args: argparse.Namespace, num_workers: int) -> list[str]:
    """The worker's options on a command line; those at None are left out."""
    parser = argparse.ArgumentParser()
    dataloading_options(parser)
    out = []
    for action in parser._actions:
        value: Any = getattr(args, action.dest, None)
        if action.dest == "help" or value is None:
            continue
        if isinstance(value, list):  # of --min and --max
            out += [
                w for key, bound in value for w in (action.option_strings[0], f"{key}={bound:g}")
            ]
            continue
        if action.dest == "num_workers":
            value = num_workers
        if action.dest in _PLACES and Path(value).exists():
            value = Path(value).absolute()  # the job runs in another folder
        if isinstance(value, float):
            value = f"{value:g}"
        text = ",".join(value) if isinstance(value, tuple) else str(value)
        out += [action.option_strings[0], text]
    return out
