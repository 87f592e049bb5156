#!/usr/bin/env python3
"""One run of `remote.py` in a process of its own: `remote_case.py CONFIG.json RESULT.json`.

Run by the interpreter that has the reader; nothing of reelpool is imported for another's. It reads
whole epochs, or so many seconds after the first batch (window_s), and drops the batches unseen; the
parent computes every figure.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

Reader = tuple[Callable[[], Iterable[Any]], Callable[[], dict]]  # an epoch's batches; counters


def reelpool_case(config: dict) -> Reader:
    """`Loader` over the streaming class, or over the map-style one in uniform shuffle."""
    import reelpool

    stream = config["order"] == "stream"
    kind = reelpool.StreamingLeRobotDataset if stream else reelpool.LeRobotDataset
    options: dict[str, Any] = {"seed": config["seed"]} if stream else {"download_videos": False}
    if config["root"] is not None:
        options = {"root": config["root"]} | ({"seed": config["seed"]} if stream else {})
    else:
        options["storage_options"] = {"disk_cache": config["disk_cache"]}
    dataset = kind(config["repo_id"], return_uint8=True, **options)
    order = {} if stream else {"shuffle": True, "seed": config["seed"]}
    loader = reelpool.Loader(
        dataset, config["batch_size"], num_threads=config["num_threads"], **order
    )
    return lambda: loader, loader.stats


def lerobot_case(config: dict) -> Reader:
    """LeRobot's streaming class under a torch DataLoader, as its own benchmark runs it."""
    import torch
    from lerobot.datasets.streaming_dataset import StreamingLeRobotDataset

    torch.manual_seed(config["seed"])
    root = config["root"]
    dataset = StreamingLeRobotDataset(
        config["repo_id"], root=root, return_uint8=True, seed=config["seed"]
    )
    workers = config["num_workers"]
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=config["batch_size"],
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    return lambda: loader, dict


# What a training script has before it makes a data set; timed by itself.
IMPORTS = {
    "reelpool": ("torch", "huggingface_hub", "reelpool"),
    "lerobot": ("torch", "lerobot.datasets.streaming_dataset"),
}


def versions() -> dict[str, str]:
    """Versions of what this interpreter has of the readers."""
    found = {}
    names = "reelpool numpy torch torchcodec lerobot datasets huggingface_hub pyarrow"
    for name in names.split():
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue  # not installed here, so not part of the environment
    return found


def tree_cpu_s() -> float:
    """User and system seconds of this process and of the workers that it has waited for or has."""
    tick, own = os.sysconf("SC_CLK_TCK"), str(os.getpid())
    total = sum(os.times()[:4])
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it ended while the list was read
        if fields[1] == own:
            total += (int(fields[11]) + int(fields[12])) / tick
    return total


def run(config: dict) -> dict:
    """Arrival times in seconds since iter(), batch sizes, where epochs end, counters."""
    make = {"reelpool": reelpool_case, "lerobot": lerobot_case}[config["impl"]]
    begun = time.perf_counter()
    for name in IMPORTS[config["impl"]]:
        importlib.import_module(name)
    ready = time.perf_counter()
    epoch, stats = make(config)
    result: dict[str, Any] = {"import_s": ready - begun}
    result["construct_s"] = time.perf_counter() - ready
    arrivals: list[float] = []
    sizes: list[int] = []
    ends: list[int] = []
    window, early = config["window_s"], {}
    cpu, start = tree_cpu_s(), time.perf_counter()
    for _ in range(config["epochs"]):
        for batch in epoch():
            arrivals.append(time.perf_counter() - start)
            sizes.append(len(batch["index"]))
            early = early or stats()
            if window is not None and arrivals[-1] - arrivals[0] >= window:
                break
        else:
            ends.append(len(sizes))
            continue
        break
    result |= {"arrivals": arrivals, "sizes": sizes, "ends": ends, "first_stats": early}
    result |= {"stats": stats(), "cpu_s": tree_cpu_s() - cpu, "versions": versions()}
    return result


if __name__ == "__main__":
    outcome = run(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(outcome))
    sys.stdout.flush()
    os._exit(0)  # worker processes of readers under test are not waited for
