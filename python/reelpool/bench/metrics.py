"""From arrival times and memory samples to the figures of a benchmark, and the watch on memory."""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from typing import Any

IMAGE_STEPS = {"single": 1, "sarm": 8, "sarm_action": 1}
LATENCIES = (("p50", 50), ("p95", 95), ("p99", 99))


def nearest_rank(values: list[float], percent: float) -> float:
    """The value at `percent` of the sorted list, nearest rank; NaN for an empty one."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, math.ceil(percent / 100 * len(ordered)) - 1))]


def uniform_episodes(lengths: list[int], batch_size: int) -> float:
    """Distinct episodes / batch size that a uniform draw without repetition gives on average."""
    total = sum(lengths)
    size = min(batch_size, total)

    def missed(length: int) -> float:
        rest = total - length
        if rest < size:
            return 0.0
        logs = (
            math.lgamma(rest + 1)
            - math.lgamma(rest - size + 1)
            - math.lgamma(total + 1)
            + math.lgamma(total - size + 1)
        )
        return math.exp(logs)

    return sum(1 - missed(n) for n in lengths) / size


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None or math.isnan(value) else round(value, digits)


def summarize(raw: dict, case: dict, lengths: list[int]) -> dict[str, Any]:
    """Figures of one run. `raw` is what `runner.run` wrote, `lengths` frames per episode."""
    arrivals, sizes = raw["arrivals"], raw["sizes"]
    warmup, batch_size = case["warmup_batches"], case["batch_size"]
    steady = arrivals[warmup + 1 :]
    samples = sum(sizes[warmup + 1 :])
    if not samples:
        raise ValueError(
            f"{len(sizes)} batches in {arrivals[-1]:.1f} s, none after {warmup} of warm-up: raise "
            "--duration_s or --num_batches, lower --warmup_batches or --batch_size"
        )
    window = steady[-1] - arrivals[warmup]
    gaps = [(b - a) / n * 1e3 for a, b, n in zip(arrivals[warmup:], steady, sizes[warmup + 1 :])]
    rate, steps, cameras = samples / window, IMAGE_STEPS[case["mode"]], len(case["cameras"])
    stats = raw["stats"]
    full = [n for n, size in zip(raw["episodes"], sizes) if size == batch_size]
    out = {
        "samples_per_s": _round(rate, 2),
        "samples_measured": samples,
        "steady_window_s": _round(window, 3),
        "decoded_frames_per_s": _round(rate * steps * cameras, 2),
        "frames_per_s_node": _round(rate * steps, 2),
        "first_batch_latency_s": _round(arrivals[0], 3),
        "construct_s": _round(raw["construct_s"], 3),
        "total_time_s": _round(arrivals[-1], 2),
        "wallclock_s": _round(arrivals[-1], 2),
        "cpu_ms_per_sample": _round(raw["steady_cpu_s"] / samples * 1e3, 3),
        "minor_faults_per_batch": _round(raw["minor_faults"] / len(steady), 1),
        "shuffle_randomness_frac": _round(sum(full) / len(full) / batch_size, 4) if full else None,
        "shuffle_randomness_uniform": _round(uniform_episodes(lengths, batch_size), 4),
    }
    for name, percent in LATENCIES:
        out[f"{name}_sample_latency_ms"] = _round(nearest_rank(gaps, percent), 4)
    found = raw.get("probe") or {}
    out["single_proc_samples_per_s"] = _round(found.get("samples_per_s"), 2)
    for key, stage in (("fetch_pct", "read_s"), ("decode_pct", "decode_s")):
        share = found.get("stages", {}).get(stage)
        out[key] = None if share is None else _round(100 * share, 1)
    if stats:
        out["counters"] = {k: _round(v, 4) for k, v in stats.items() if not k.endswith("_s")}
        out["reuse"] = (
            _round(stats["delivered"] / stats["decoded"], 3) if stats.get("decoded") else None
        )
        out["bytes_read"] = stats.get("bytes_read")
        out["stage_s"] = {k: _round(v, 3) for k, v in stats.items() if k.endswith("_s")}
    return out


def series(raw: dict, points: int = 40) -> list[tuple[float, float]]:
    """(seconds after iter(), samples/s) over the whole run, in at most `points` bins."""
    arrivals, sizes = raw["arrivals"], raw["sizes"]
    count = min(points, max(1, len(arrivals) // 3))
    width = arrivals[-1] / count
    bins: dict[int, int] = {}
    for at, size in zip(arrivals, sizes):
        place = min(int(at / width), count - 1)
        bins[place] = bins.get(place, 0) + size
    return [((i + 0.5) * width, bins.get(i, 0) / width) for i in range(max(bins) + 1)]


def combine(runs: list[dict]) -> dict[str, Any]:
    """Median of every figure over the repeats, with [min, max] under `range`."""
    out: dict[str, Any] = {}
    spread: dict[str, list[float]] = {}
    for key in runs[0]:
        values = [r[key] for r in runs]
        if all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
            middle = statistics.median(values)
            out[key] = round(middle, 4)
            spread[key] = [min(values), max(values)]
        else:
            out[key] = values[len(values) // 2]
    return out | {"repeats": len(runs), "range": spread}


def _tree(root: int) -> list[int]:
    """`root` and all processes that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", encoding="ascii", errors="replace") as stream:
                parent = int(stream.read().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it ended while the list was read
        children.setdefault(parent, []).append(int(entry))
    found, todo = [], [root]
    while todo:
        process = todo.pop()
        found.append(process)
        todo += children.get(process, [])
    return found


_PAGE = os.sysconf("SC_PAGE_SIZE")
_PSS_EVERY = 8  # samples: the kernel walks all page tables for it, which slows what is measured


def _rss(process: int) -> int:
    """Resident bytes; 0 for a process that is gone."""
    try:
        with open(f"/proc/{process}/statm", encoding="ascii") as stream:
            return int(stream.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _pss(process: int) -> int:
    """Proportional bytes (shared pages by share); 0 for a process that is gone or not ours."""
    try:
        with open(f"/proc/{process}/smaps_rollup", encoding="ascii") as stream:
            fields = {k: v for k, _, v in (line.partition(":") for line in stream)}
        return int(fields["Pss"].split()[0]) * 1024
    except (OSError, KeyError):
        return 0


class MemoryWatch:
    """Samples a process tree's RSS every `interval_s`, its PSS every 8th time, until stopped."""

    def __init__(self, process: int, interval_s: float = 0.5) -> None:
        self.process, self.interval_s = process, interval_s
        self.samples: list[tuple[float, int, int]] = []  # seconds, RSS, PSS
        self.begun = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self.interval_s):
            tree = _tree(self.process)
            pss = 0
            if len(self.samples) % _PSS_EVERY == _PSS_EVERY - 1:
                pss = sum(_pss(p) for p in tree)
            now = time.monotonic() - self.begun
            self.samples.append((now, sum(_rss(p) for p in tree), pss))

    def stop(self) -> None:
        """End the thread; `samples` is complete afterwards."""
        self._stop.set()
        self._thread.join()

    def forget_after(self, moment: float) -> None:
        """Drop what was sampled after `moment` of the monotonic clock. The watch is stopped."""
        self.samples = [s for s in self.samples if s[0] + self.begun <= moment]

    def peaks(self, own_peak: int = 0) -> dict[str, float]:
        """Peaks in GB; `own_peak` is the kernel's mark of the first process, in bytes."""
        rss = max([own_peak, *(s[1] for s in self.samples)])
        pss = max((s[2] for s in self.samples), default=0)
        return {"peak_rss_gb": round(rss / 1e9, 4), "peak_pss_gb": round(pss / 1e9, 4)}
