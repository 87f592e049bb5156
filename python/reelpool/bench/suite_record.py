"""The record of a run of the suite: from what suite_runner.py wrote to TAG.json and TAG.csv."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import metrics

COUNTED = (
    "counters",
    "reuse",
    "bytes_read",
    "stage_s",
    "substituted",
)  # by reelpool's readers only
ASKED = ("bytes_fetched", "bytes_cached", "requests", "resolves")  # of servers and the node cache


@dataclass
class Plan:
    """One scenario of one implementation on this rank."""

    scenario: str
    impl: str
    labels: dict[str, Any]  # keys of the record that are known before
    config: dict[str, Any]  # for suite_runner.py
    tag: str
    folder: Path
    python: str
    variables: dict[str, str]

    @property
    def name(self) -> str:
        """In messages."""
        return f"{self.scenario}, {self.impl}"


def latency_quantiles(raw: dict, warmup: int) -> list[float]:
    """Milliseconds per sample at 0, 1, ... 100 % of the gaps of the window, nearest rank."""
    arrivals, sizes = raw["arrivals"], raw["sizes"]
    steady = zip(arrivals[warmup:], arrivals[warmup + 1 :], sizes[warmup + 1 :])
    gaps = sorted((b - a) / n * 1e3 for a, b, n in steady)
    return [round(metrics.nearest_rank(gaps, percent), 4) for percent in range(101)]


def figures(plan: Plan, raw: dict, watch: metrics.MemoryWatch) -> dict[str, Any]:
    """The record of a run; every key that is None has its reason in `null_reasons`."""
    facts, config = raw["facts"], plan.config
    lengths = facts["lengths"]
    if config["episodes"] is not None:
        lengths = [lengths[e] for e in config["episodes"]]
    case = {**config, "cameras": facts["cameras"]}
    summary = metrics.summarize(raw | {"probe": {}}, case, lengths)
    watch.forget_after(raw["measured_until"])
    streaming, order = config["loader"] == "streaming", raw["order"]
    steps = metrics.IMAGE_STEPS[config["mode"]]
    record = plan.labels | {
        "device": raw["device"],
        "episode_pool_size": config["episode_pool_size"] if streaming else None,
        "max_buffer_input_shards": _lanes(config, order) if streaming else None,
        "loaded_episodes": len(lengths),
        "num_shards": raw["num_shards"] if streaming else None,
        "num_cameras": len(facts["cameras"]),
        "image_shape": facts["image_shape"],
        "fps": facts["fps"],
        "num_threads": raw["threads"],
        "order": order or None,
        "epochs": raw["epochs"],
        "frames_measured": summary["samples_measured"] * steps,
        **dict.fromkeys(COUNTED),
        **summary,
        **watch.peaks(raw["own_peak_rss_bytes"]),
        **_probe_figures(raw["probe"]),
        "video_decoder_cache": raw["cache"],
        "substituted": raw["stats"].get("substituted"),
        "fetch": raw["fetch"] or None,
        **{key: raw["fetch"].get(key) for key in ASKED},
        **_waits(raw),
        "batch_shape": raw["batch_shape"],
        "versions": raw["versions"],
    }
    record["null_reasons"] = _reasons(record, config, raw["probe"])
    record["series"] = {
        "latency_ms_at_percent": latency_quantiles(raw, config["warmup_batches"]),
        "samples_per_s": [[round(t, 3), round(v, 2)] for t, v in metrics.series(raw)],
        "rss_gb": [[round(t, 2), round(rss / 1e9, 4)] for t, rss, _ in watch.samples if rss],
    }
    record["facts"] = {
        "dataset": config["repo_id"],
        "fps": facts["fps"],
        "episodes": len(lengths),
        "frames": sum(lengths),
    }
    return record


def _lanes(config: dict, order: dict) -> int | None:
    return config["max_buffer_input_shards"] or order.get("C")


def _probe_figures(found: dict) -> dict[str, Any]:
    fetch, read = found.get("fetch_pct"), found.get("read_pct")
    rate = found.get("samples_per_s")
    return {
        "single_proc_samples_per_s": None if rate is None else round(rate, 2),
        "fetch_pct": None if fetch is None else round(fetch, 1),
        "decode_pct": None if fetch is None else round(100 - fetch, 1),
        "read_pct": None if read is None else round(read, 1),
        "probe_skipped": found.get("skipped"),
        "probe_error": found.get("error"),
    }


def _waits(raw: dict) -> dict[str, Any]:
    """Share of the consumer's time that it waited for a batch, and moved one to the device."""
    both = raw["wait_s"] + raw["move_s"]
    if both <= 0:
        return {"wait_pct": None, "move_pct": None}
    wait = 100 * raw["wait_s"] / both
    return {"wait_pct": round(wait, 2), "move_pct": round(100 - wait, 2)}


def _reasons(record: dict, config: dict, probe: dict) -> dict[str, str]:
    """Why a key is None, for all that are."""
    streaming = config["loader"] == "streaming"
    sampler = "the DataLoader's sampler makes the order"
    known = {
        "data_files_root": "the data lies beside its meta/",
        "episode_pool_size": "the class's own window" if streaming else "map-style",
        "max_buffer_input_shards": "LeRobot's own shards" if streaming else "map-style",
        "num_shards": "the class does not tell" if streaming else "map-style",
        "video_decoder_cache_size": "the class's own",
        "num_threads": "LeRobot's own",
        "order": "LeRobot's own order" if config["impl"] == "lerobot" and streaming else sampler,
        "video_decoder_cache": "LeRobot 0.6.1 counts nothing"
        if config["impl"] == "lerobot"
        else "counted by the streaming class in a DataLoader",
        "read_pct": probe.get("reason") or "LeRobot does not tell reading from decoding",
        "image_shape": "no camera",
        "shuffle_randomness_frac": "no episode_index in the batches",
        "probe_error": "every frame could be read",
        "wait_pct": "no batch after the warm-up",
        "move_pct": "no batch after the warm-up",
        "reuse": "no picture was decoded",
        **dict.fromkeys(("fetch", *ASKED), "no file is remote"),
        "node_cache": "LeRobot has none" if config["impl"] == "lerobot" else "the files are local",
    }
    if config["impl"] == "lerobot":
        known |= dict.fromkeys((*COUNTED, "fetch", *ASKED), "LeRobot 0.6.1 counts nothing")
    for key in ("single_proc_samples_per_s", "fetch_pct", "decode_pct", "probe_skipped"):
        known[key] = probe.get("reason", "")
    if "reason" in probe and not probe.get("error"):
        known["probe_error"] = probe["reason"]
    return {k: known.get(k) or "not measured" for k, v in record.items() if v is None}


def write(plan: Plan, record: dict) -> None:
    """TAG.json and TAG.csv, or TAG.failed.json."""
    name = f"{plan.tag}.failed.json" if "failed" in record else f"{plan.tag}.json"
    path = plan.folder / name
    part = path.with_suffix(".part")
    part.write_text(json.dumps(_finite(record), indent=1) + "\n")
    part.replace(path)
    if "failed" in record:
        return
    flat = {
        k: json.dumps(v) if isinstance(v, (dict, list)) else v
        for k, v in record.items()
        if k != "series"
    }
    with open(path.with_suffix(".csv"), "w", newline="") as stream:
        writer = csv.DictWriter(stream, list(flat))
        writer.writeheader()
        writer.writerow(flat)


def _finite(value: Any) -> Any:
    """NaN and infinity are no JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
