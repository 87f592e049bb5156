"""A benchmark from start to end: floors and cases in turn, then the figures of each case."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from . import metrics
from .floor import Floor, warm_page_cache
from .scenarios import Case, Facts

RUNNER = Path(__file__).with_name("runner.py")
LOOK_S = 0.25


class CaseFailed(Exception):
    """A case ended without figures; the text is the last of what it said."""


@dataclass
class Result:
    """All repeats of one case."""

    case: Case
    runs: list[dict] = field(default_factory=list)
    failed: str | None = None
    rates: list[tuple[float, float]] = field(default_factory=list)  # of the last repeat
    memory: list[tuple[float, int, int]] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


def run_case(case: Case, interval_s: float) -> tuple[dict, metrics.MemoryWatch]:
    """One case in its own process group: (what it wrote, its memory). Raises CaseFailed."""
    name = f"{case.label} ({case.what})"
    return run_child(case.python, RUNNER, case.config, interval_s, name)


def run_child(
    python: str,
    program: Path,
    config: dict,
    interval_s: float,
    name: str,
    variables: dict[str, str] | None = None,
    look: Callable[[], None] | None = None,
) -> tuple[dict, metrics.MemoryWatch]:
    """`program` with a configuration in its own process group, ended with all its children.

    config["limit_s"] and two minutes end it; None: no limit. `variables` are put into its
    environment. `look` is called while it runs and ends it by an exception. Raises CaseFailed with
    the last of what it said.
    """
    given = [f"{k}={v}" for k, v in (variables or {}).items()]
    with tempfile.TemporaryDirectory(prefix="reelpool-bench-") as folder:
        path, out = Path(folder) / "config.json", Path(folder) / "result.json"
        counters = Path(folder) / "counters"
        counters.mkdir()
        path.write_text(json.dumps(config | {"counters": str(counters), "parent": os.getpid()}))
        with open(Path(folder) / "log", "w+b") as log:
            process = subprocess.Popen(
                [*(["env", *given] if given else []), python, str(program), str(path), str(out)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            watch = metrics.MemoryWatch(process.pid, interval_s)
            limit = config["limit_s"]
            try:
                code = _wait(process, None if limit is None else limit + 120, look)
            finally:
                watch.stop()
                with contextlib.suppress(ProcessLookupError):  # nobody of the group is left
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if code != 0 or not out.exists():
                log.seek(0)
                said = log.read().decode(errors="replace").strip().splitlines()[-12:]
                how = "did not end in time" if code is None else f"ended with status {code}"
                raise CaseFailed("\n".join([f"{name} {how}", *said]))
        return json.loads(out.read_text()), watch


def _wait(
    process: subprocess.Popen, limit_s: float | None, look: Callable[[], None] | None
) -> int | None:
    """Its exit status; None where it did not end in time."""
    end = None if limit_s is None else time.monotonic() + limit_s
    while end is None or time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):  # not ended yet: look, wait on
            return process.wait(timeout=LOOK_S)
        if look is not None:
            look()
    return None


def run_all(
    cases: list[Case], facts: Facts, args: Any, tick: Callable[[str], None]
) -> tuple[list[Result], dict]:
    """Floor, case, floor, case ... for every repeat. `tick(what)` is called before each step."""
    results = [Result(case) for case in cases]
    files = [facts.files(camera)[0] for camera in facts.cameras]
    warm_page_cache([f for camera in facts.cameras for f in facts.files(camera)])
    kinds = list(dict.fromkeys(c.floor for c in cases))
    floor = Floor(files, args.num_threads, args.floor_s)
    floors: dict[str, list[float]] = {kind: [] for kind in kinds}
    interval = min(0.5, args.duration_s / 8)
    try:
        for _ in range(args.repeat):
            before = _floors(floor, floors, kinds, tick)
            for result in results:
                tick(f"{result.case.label}, {result.case.what}")
                done = _one(result, facts, interval)
                kind = result.case.floor
                # A floor of the other kind is not needed on this side of the case.
                after = _floors(floor, floors, [kind], tick)
                if done is not None:
                    done |= against_floor(done, before[kind], after[kind])
                before = before | after
    finally:
        floor.close()
    _finish(results)
    return results, {"source": floor.source, "threads": args.num_threads, "frames_per_s": floors}


def against_floor(run: dict, before: dict, after: dict) -> dict[str, float]:
    """Keys that set a run in relation to the floors measured before and after it.

    `floor_ratio` compares throughput; `cpu_floor_ratio` processor time per picture, which holds on
    a busy machine too.
    """
    rate = (before["frames_per_s"] + after["frames_per_s"]) / 2
    out = {
        "floor_frames_per_s": round(rate, 1),
        "floor_ratio": round(run["decoded_frames_per_s"] / rate, 4),
    }
    if before["cpu_ms"] and after["cpu_ms"] and run["cpu_ms_per_sample"]:
        pictures = run["decoded_frames_per_s"] / run["samples_per_s"]
        own = run["cpu_ms_per_sample"] / pictures
        out["floor_cpu_ms_per_frame"] = round((before["cpu_ms"] + after["cpu_ms"]) / 2, 4)
        out["cpu_floor_ratio"] = round(out["floor_cpu_ms_per_frame"] / own, 4)
    return out


def _floors(
    floor: Floor, floors: dict[str, list[float]], kinds: list[str], tick: Callable[[str], None]
) -> dict[str, dict]:
    measured = {}
    for kind in kinds:
        tick(f"decode floor, {kind}")
        measured[kind] = floor.measure(kind)
        floors[kind].append(round(measured[kind]["frames_per_s"], 1))
    return measured


def _one(result: Result, facts: Facts, interval: float) -> dict | None:
    """One run of one case; None and a reason in `result` where it failed."""
    case = result.case
    try:
        raw, watch = run_case(case, interval)
        run = metrics.summarize(raw, case.config, _lengths(facts, case))
    except (CaseFailed, ValueError) as error:
        result.failed = str(error)
        return None
    watch.forget_after(raw["measured_until"])
    run |= watch.peaks(raw["own_peak_rss_bytes"])
    run["batch_shape"], run["versions"] = raw["batch_shape"], raw["versions"]
    result.runs.append(run)
    result.rates, result.memory = metrics.series(raw), watch.samples
    return run


def _lengths(facts: Facts, case: Case) -> list[int]:
    chosen = case.config["episodes"]
    return [e["length"] for e in facts.episodes if chosen is None or e["episode_index"] in chosen]


def _finish(results: list[Result]) -> None:
    """Combine repeats, then divide by LeRobot's best figure for the same work."""
    for result in results:
        if result.runs:
            result.figures = metrics.combine(result.runs)
    for result in results:
        if not result.figures:
            continue
        for key, variant in (("baseline_ratio", ""), ("map_ratio", "map")):
            rates = [
                other.figures["samples_per_s"]
                for other in results
                if other.figures
                and (other.case.impl, other.case.variant) == ("lerobot", variant)
                and other.case.what == result.case.what
            ]
            if rates:
                result.figures[key] = round(result.figures["samples_per_s"] / max(rates), 3)


def environment(facts: Facts, command: str) -> dict[str, Any]:
    """What the figures depend on; no path, no token."""
    about = {
        "dataset": facts.name,
        "fps": facts.fps,
        "episodes": len(facts.episodes),
        "frames": sum(facts.lengths),
    }
    return machine(about, command)


def machine(about: dict[str, Any], command: str) -> dict[str, Any]:
    """The machine and the versions, with `about` in their midst."""
    from .. import env

    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found: dict[str, Any] = {
        "cpu": model,
        "cpus_granted": env.granted_cpus(),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": platform.release(),
        "system": _system(),
        "python": platform.python_version(),
        **about,
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
    }
    with contextlib.suppress(metadata.PackageNotFoundError):  # run from a bare source tree
        found["reelpool"] = metadata.version("reelpool")
    return found


def _system() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()  # no os-release file: the kernel's name is all that is known


def write_results(
    results: list[Result], facts: Facts, floors: dict, env: dict, args: Any
) -> list[Path]:
    """One JSON and one one-row CSV per case; the paths written."""
    written = []
    args.out_dir.mkdir(parents=True, exist_ok=True)
    for result in results:
        if not result.figures:
            continue
        case = result.case
        shapes = [facts.features[c]["shape"] for c in facts.cameras]
        record = {
            "scenario": args.scenario,
            "rank": 0,
            "world_size": 1,
            **case.labels(),
            "device": "cpu",
            "window": args.window,
            "buffer_size": args.buffer_size,
            "prefetch_factor": args.prefetch_factor,
            "num_threads": args.num_threads,
            "num_cameras": len(facts.cameras),
            "image_shape": shapes[0] if len({tuple(s) for s in shapes}) == 1 else shapes,
            "fps": facts.fps,
            "repo_id": facts.name,
            "loaded_episodes": len(_lengths(facts, case)),
            **result.figures,
            "floor_source": floors["source"],
            "floor_threads": floors["threads"],
            "env": env,
        }
        path = args.out_dir / f"{case.tag(args.scenario)}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        flat = {k: json.dumps(v) if isinstance(v, (dict, list)) else v for k, v in record.items()}
        with open(path.with_suffix(".csv"), "w", newline="") as stream:
            writer = csv.DictWriter(stream, list(flat))
            writer.writeheader()
            writer.writerow(flat)
        written += [path, path.with_suffix(".csv")]
    return written


def command_line() -> str:
    """The command as typed, without the path of the program."""
    return "reelpool " + " ".join(sys.argv[1:])
