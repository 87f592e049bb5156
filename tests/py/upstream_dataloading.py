# Copyright 2025 The HuggingFace Inc. team. All rights reserved.
# Licensed under the Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0
"""The measuring part of LeRobot's examples/scaling/benchmark_dataloading.py on reelpool's classes.

Changed: the two import lines; repository names and the bucket are options, so that it runs on local
copies; the SLURM chain is left out. Everything else, private names too, is as it was written for
LeRobot's classes. tests/py/test_upstream_dataloading.py runs it.
"""

import argparse
import csv
import json
import os
import random
import statistics
import threading
import time
from pathlib import Path

import torch
from reelpool import (
    LeRobotDataset,
    LeRobotDatasetMetadata,
    StreamingLeRobotDataset,
    group_episodes_by_files,
    partition_episodes,
)
from torch.utils.data import DataLoader

MOLMO_REVISION = "main"


def _tree_rss_bytes() -> int:
    try:
        children: dict[int, list[int]] = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/stat") as f:
                    ppid = int(f.read().split(") ", 1)[1].split()[1])
                children.setdefault(ppid, []).append(int(entry))
            except (OSError, ValueError, IndexError):
                pass
        total, stack = 0, [os.getpid()]
        while stack:
            cur = stack.pop()
            try:
                with open(f"/proc/{cur}/statm") as f:
                    total += int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            except (OSError, ValueError, IndexError):
                pass
            stack.extend(children.get(cur, []))
        return total
    except OSError:
        return 0


class PeakRSSSampler:
    def __init__(self, interval_s: float = 0.5):
        self.interval_s = interval_s
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.peak_bytes = max(self.peak_bytes, _tree_rss_bytes())
            self._stop.wait(self.interval_s)

    def __enter__(self) -> "PeakRSSSampler":
        self._thread.start()
        return self

    def __exit__(self, *exc) -> None:
        self._stop.set()
        self._thread.join(timeout=2)


def percentile(values: list[float], pct: float) -> float:
    if not values:
        return float("nan")
    ordered = sorted(values)
    k = max(0, min(len(ordered) - 1, round((pct / 100.0) * (len(ordered) - 1))))
    return ordered[k]


class _TimedStreaming(StreamingLeRobotDataset):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.fetch_s = 0.0
        self.decode_s = 0.0

    def __iter__(self):
        self._in_flight_epoch = self._epoch
        self._pipeline.set_epoch(self._in_flight_epoch)
        self._epoch += 1
        self.video_decoder_cache = self._make_video_decoder_cache()
        iterator = iter(self._pipeline)
        while True:
            t0 = time.perf_counter()
            try:
                row = next(iterator)
            except StopIteration:
                return
            t1 = time.perf_counter()
            sample = self._finalize_sample(row)
            t2 = time.perf_counter()
            self.fetch_s += t1 - t0
            self.decode_s += t2 - t1
            yield sample


def select_node_episodes(
    meta: LeRobotDatasetMetadata, num_partitions: int, index: int, cap: int
) -> list[int]:
    episodes = list(range(meta.total_episodes))
    from_idx = meta.episodes["dataset_from_index"]
    to_idx = meta.episodes["dataset_to_index"]
    lengths = [int(to_idx[ep] - from_idx[ep]) for ep in episodes]
    if meta.video_keys:
        file_columns = {
            key: (
                meta.episodes[f"videos/{key}/chunk_index"],
                meta.episodes[f"videos/{key}/file_index"],
            )
            for key in meta.video_keys
        }
    else:
        file_columns = {
            "data": (meta.episodes["data/chunk_index"], meta.episodes["data/file_index"])
        }
    episode_file_ids = [
        [(key, chunks[ep], files[ep]) for key, (chunks, files) in file_columns.items()]
        for ep in episodes
    ]
    groups = group_episodes_by_files(episode_file_ids)
    if len(groups) < num_partitions:
        groups = [[i] for i in range(len(episodes))]
    group_lengths = [sum(lengths[i] for i in g) for g in groups]
    bins = partition_episodes(group_lengths, num_partitions)
    chosen = sorted(episodes[i] for g in bins[index] for i in groups[g])
    return chosen[:cap] if cap and len(chosen) > cap else chosen


def build_dataset(scenario: str, args: argparse.Namespace):
    if scenario.startswith("mmap_local"):
        if not args.local_root:
            raise SystemExit("mmap_local needs --local_root pointing at a local copy.")
        meta = LeRobotDatasetMetadata(args.map_repo, root=args.local_root)
        episodes = select_node_episodes(
            meta, args.num_partitions, args.partition_index, args.max_episodes
        )
        dataset = LeRobotDataset(
            args.map_repo, root=args.local_root, episodes=episodes, tolerance_s=1e-3
        )
        return dataset, meta, True, {"loaded_episodes": len(episodes)}
    data_files_root = args.bucket if scenario.startswith("stream_bucket") else None
    meta = LeRobotDatasetMetadata(args.stream_repo, revision=MOLMO_REVISION)
    dataset = _TimedStreaming(
        args.stream_repo,
        revision=MOLMO_REVISION,
        data_files_root=data_files_root,
        episode_pool_size=args.episode_pool_size,
        max_buffer_input_shards=args.max_buffer_input_shards,
        video_decoder_cache_size=args.video_decoder_cache_size,
        tolerance_s=1e-3,
        validate_row_groups=False,
    )
    return (
        dataset,
        meta,
        False,
        {"num_shards": dataset.num_shards, "data_files_root": data_files_root},
    )


def _split(fetch_s: float, decode_s: float, getitem_s: float, n_probe: int) -> dict:
    stage = fetch_s + decode_s
    return {
        "single_proc_samples_per_s": round(n_probe / getitem_s, 2) if getitem_s else None,
        "fetch_pct": round(100 * fetch_s / stage, 1) if stage else None,
        "decode_pct": round(100 * decode_s / stage, 1) if stage else None,
    }


def measure_fetch_decode_stream(dataset: _TimedStreaming, n_probe: int, warmup: int) -> dict:
    it = iter(dataset)
    for _ in range(warmup):
        next(it)
    dataset.fetch_s = dataset.decode_s = 0.0
    t0 = time.perf_counter()
    for _ in range(n_probe):
        next(it)
    return _split(dataset.fetch_s, dataset.decode_s, time.perf_counter() - t0, n_probe)


def measure_fetch_decode_map(dataset: LeRobotDataset, n_probe: int, warmup: int) -> dict:
    rng = random.Random(0)
    n = len(dataset)
    fetch_s = getitem_s = 0.0
    warmed = measured = skipped = attempts = 0
    while measured < n_probe and attempts < (warmup + n_probe) * 10:
        attempts += 1
        i = rng.randrange(n)
        try:
            t0 = time.perf_counter()
            dataset.get_raw_item(i)
            t1 = time.perf_counter()
            dataset[i]
            t2 = time.perf_counter()
        except Exception:
            skipped += 1
            continue
        if warmed < warmup:
            warmed += 1
            continue
        fetch_s += t1 - t0
        getitem_s += t2 - t1
        measured += 1
    if skipped:
        print(f"map fetch/decode probe skipped {skipped} undecodable frame(s)", flush=True)
    return _split(fetch_s, max(0.0, getitem_s - fetch_s), getitem_s, measured)


def run_scenario(scenario: str, args: argparse.Namespace) -> None:
    rank = int(os.environ.get("RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device(args.device)
    dataset, meta, is_map_style, info = build_dataset(scenario, args)
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        num_workers=args.num_workers,
        shuffle=is_map_style,
        pin_memory=device.type == "cuda",
        drop_last=True,
        prefetch_factor=args.prefetch_factor if args.num_workers > 0 else None,
        persistent_workers=args.num_workers > 0,
    )
    sample_latencies_ms: list[float] = []
    episodes_per_batch: list[int] = []
    samples = 0
    first_batch_latency_s = None
    steady_start = None
    t_start = time.perf_counter()
    t_prev = t_start
    with PeakRSSSampler() as rss:
        for i, batch in enumerate(loader):
            for value in batch.values():
                if torch.is_tensor(value):
                    value.to(device, non_blocking=device.type == "cuda")
            now = time.perf_counter()
            if first_batch_latency_s is None:
                first_batch_latency_s = now - t_start
            if i == args.warmup_batches:
                steady_start = now
            elif i > args.warmup_batches:
                sample_latencies_ms.append((now - t_prev) / args.batch_size * 1000.0)
                samples += args.batch_size
                ep = batch.get("episode_index")
                if torch.is_tensor(ep):
                    episodes_per_batch.append(int(torch.unique(ep).numel()))
            t_prev = now
            if steady_start is not None and (now - steady_start) >= args.duration_s:
                break
            if i + 1 >= args.num_batches:
                break
        peak_rss_gb = round(rss.peak_bytes / 1e9, 2) if rss.peak_bytes else None
    now = time.perf_counter()
    elapsed = now - t_start
    steady_elapsed_s = (now - steady_start) if steady_start is not None else elapsed
    if samples == 0:
        raise SystemExit(f"FAILED: 0 samples in {args.duration_s}s for scenario={scenario}")
    del loader
    if is_map_style:
        fetch_decode = measure_fetch_decode_map(dataset, args.probe_samples, args.probe_warmup)
    else:
        fetch_decode = measure_fetch_decode_stream(dataset, args.probe_samples, args.probe_warmup)
    image_shape = list(meta.features[meta.video_keys[0]]["shape"]) if meta.video_keys else None
    num_cameras = len(meta.video_keys)
    rate = samples / steady_elapsed_s if steady_elapsed_s else 0.0
    results = {
        "scenario": scenario,
        "rank": rank,
        "world_size": world_size,
        "loader": "map_style" if is_map_style else "streaming",
        "batch_size": args.batch_size,
        "num_workers": args.num_workers,
        "episode_pool_size": None if is_map_style else args.episode_pool_size,
        "max_buffer_input_shards": None
        if is_map_style
        else (args.max_buffer_input_shards or args.episode_pool_size),
        **info,
        "num_cameras": num_cameras,
        "image_shape": image_shape,
        "fps": meta.fps,
        "peak_rss_gb": peak_rss_gb,
        "samples_measured": samples,
        "steady_window_s": round(steady_elapsed_s, 2),
        "first_batch_latency_s": round(first_batch_latency_s or float("nan"), 3),
        "samples_per_s": round(rate, 2),
        "decoded_frames_per_s": round(rate * num_cameras, 2),
        **fetch_decode,
        "shuffle_randomness_frac": round(statistics.mean(episodes_per_batch) / args.batch_size, 3)
        if episodes_per_batch
        else None,
        "p50_sample_latency_ms": round(statistics.median(sample_latencies_ms), 3)
        if sample_latencies_ms
        else None,
        "p95_sample_latency_ms": round(percentile(sample_latencies_ms, 95), 3),
        "p99_sample_latency_ms": round(percentile(sample_latencies_ms, 99), 3),
        "total_time_s": round(elapsed, 2),
    }
    out_dir = Path(args.out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    tag = f"{scenario}_bs{args.batch_size}_w{args.num_workers}_r{rank}of{world_size}"
    (out_dir / f"{tag}.json").write_text(json.dumps(results, indent=2))
    flat = {k: (json.dumps(v) if isinstance(v, (dict, list)) else v) for k, v in results.items()}
    with open(out_dir / f"{tag}.csv", "w", newline="") as f:
        writer = csv.DictWriter(f, fieldnames=list(flat))
        writer.writeheader()
        writer.writerow(flat)
    print(json.dumps(results, indent=2), flush=True)


def parse_args() -> argparse.Namespace:
    p = argparse.ArgumentParser()
    p.add_argument("--scenario", required=True)
    p.add_argument("--map_repo", default="pepijn223/robocasa_pretrain_human300_v4")
    p.add_argument("--stream_repo", default="allenai/MolmoAct2-BimanualYAM-Dataset")
    p.add_argument("--bucket", required=True)
    p.add_argument("--local_root", type=str, default=None)
    p.add_argument("--num_partitions", type=int, default=8)
    p.add_argument("--partition_index", type=int, default=0)
    p.add_argument("--max_episodes", type=int, default=512)
    p.add_argument("--batch_size", type=int, default=64)
    p.add_argument("--num_workers", type=int, default=8)
    p.add_argument("--prefetch_factor", type=int, default=2)
    p.add_argument("--episode_pool_size", type=int, default=1024)
    p.add_argument("--max_buffer_input_shards", type=int, default=None)
    p.add_argument("--video_decoder_cache_size", type=int, default=32)
    p.add_argument("--duration_s", type=float, default=60.0)
    p.add_argument("--num_batches", type=int, default=1_000_000)
    p.add_argument("--warmup_batches", type=int, default=5)
    p.add_argument("--probe_samples", type=int, default=100)
    p.add_argument("--probe_warmup", type=int, default=10)
    p.add_argument("--device", type=str, default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--out_dir", type=str, required=True)
    return p.parse_args()


if __name__ == "__main__":
    arguments = parse_args()
    run_scenario(arguments.scenario, arguments)
