#!/usr/bin/env python3
"""Streaming over a network beside the same data on the disk: `remote.py DATASET`.

Makes a copy of the data set with one video file per camera and its episodes `--copies` times,
serves it by a stand-in Hub on loopback that waits before each reply and shares a bandwidth, and
reads it in turns, each run in a process of its own. Writes remote.json; docs/benchmarking.md says
what the columns mean.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python")]

import remote_set  # noqa: E402
from reelpool import env  # noqa: E402
from reelpool.bench import session  # noqa: E402

REPO = "bench/remote"
LEROBOT_BUFFER = 1000  # samples that its streaming class decodes and keeps
UNIT = 64  # frames of a unit: what is fetched for a frame of the streaming order


@dataclass(frozen=True)
class Row:
    """One way to read the set. `home`: whose caches it uses; fresh: emptied before each run."""

    name: str
    what: str
    order: str = "stream"
    remote: bool = True
    impl: str = "reelpool"
    disk_cache: bool = False
    home: str = "warm"
    fresh: bool = False
    faulty: bool = False
    base: str = "local"  # the row that its throughput is held against


ROWS = (
    Row("local", "Loader, streaming order, local files", remote=False),
    Row("remote", "the same over the network, no node cache"),
    Row("faulty", "the same, and requests meet faults", faulty=True, base="remote"),
    Row("cold", "nothing on this machine, node cache on", disk_cache=True, home="cold", fresh=True),
    Row("cached", "the same again: second run", disk_cache=True, home="cold"),
    Row("random_local", "Loader, uniform shuffle, local files", order="random", remote=False,
        base="random_local"),
    Row("random", "the same over the network, no node cache", order="random",
        base="random_local"),
    Row("lerobot", "LeRobot's streaming class, 1 worker", impl="lerobot", home="lerobot"),
)  # fmt: skip


class Server:
    """The stand-in in a process of its own. A context."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        program, options = HERE / "remote_server.py", ["--latency_ms", str(args.latency_ms)]
        self._process = subprocess.Popen(
            [sys.executable, str(program), f"{REPO}={folder}", *options,
             "--bandwidth", str(args.bandwidth)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.endpoint = self._read()["endpoint"]
        self._cpu = 0.0

    def _read(self) -> dict:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SystemExit("remote: the server did not start")
        return json.loads(line)

    def take(self, faults: float = 0.0) -> dict:
        """What was asked of it since the last call; cpu_s: of this time. faults: from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{faults}\n")
        self._process.stdin.flush()
        found = self._read()
        found["cpu_s"], self._cpu = found["cpu_s"] - self._cpu, found["cpu_s"]
        return found

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@dataclass
class Bench:
    """One run of the program."""

    args: argparse.Namespace
    folder: Path  # temporary: the set and the caches
    facts: remote_set.Facts
    server: Server
    runs: dict[str, list[dict]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def run(self, row: Row) -> None:
        """One run of a row; a failure is noted."""
        home = self.folder / "homes" / row.home
        if row.fresh and home.exists():
            shutil.rmtree(home)
        if row.home == "warm":
            # Metadata are known, where the videos are is not: each run asks for it anew.
            shutil.rmtree(home / "cache/url", ignore_errors=True)
        home.mkdir(parents=True, exist_ok=True)
        name = f"{row.name} ({row.what})"
        self.server.take(self.args.faults if row.faulty else 0.0)
        try:
            raw, watch = session.run_child(
                self._python(row), HERE / "remote_case.py", self._config(row), 0.5, name,
                self._variables(home),
            )  # fmt: skip
        except session.CaseFailed as error:
            self.failed[row.name] = str(error)
            return
        asked = self.server.take()
        run = figures(row, raw, asked, self.facts) | watch.peaks()
        self.runs.setdefault(row.name, []).append(run)

    def warm(self, row: Row) -> None:
        """Have the metadata of a row's home copied."""
        home = self.folder / "homes" / row.home
        home.mkdir(parents=True, exist_ok=True)
        config = self._config(row) | {"epochs": 0}
        python, name = self._python(row), f"metadata for {row.name}"
        try:
            session.run_child(
                python, HERE / "remote_case.py", config, 0.5, name, self._variables(home)
            )
        except session.CaseFailed as error:
            self.failed[row.name] = str(error)

    def _python(self, row: Row) -> str:
        return self.args.lerobot_python if row.impl == "lerobot" else sys.executable

    def _config(self, row: Row) -> dict[str, Any]:
        args = self.args
        return {
            "impl": row.impl, "order": row.order, "repo_id": REPO,
            "root": None if row.remote else str(self.folder / "set"),
            "disk_cache": 2 * self.facts.video_bytes if row.disk_cache else False,
            "seed": args.seed, "batch_size": args.batch_size, "num_threads": args.num_threads,
            "num_workers": 1, "epochs": 1, "limit_s": args.limit_s,
            "window_s": args.lerobot_s if row.impl == "lerobot" else None,
        }  # fmt: skip

    def _variables(self, home: Path) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self.server.endpoint, "HF_HOME": str(home / "hf"),
            "HF_LEROBOT_HOME": str(home / "lerobot"), "REELPOOL_CACHE": str(home / "cache"),
            "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0", "HF_TOKEN": "",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1", "no_proxy": "127.0.0.1,localhost",
        }  # fmt: skip


def figures(row: Row, raw: dict, asked: dict, facts: remote_set.Facts) -> dict[str, Any]:
    """Figures of one run, from arrivals and from what the server was asked."""
    arrivals, sizes = raw["arrivals"], raw["sizes"]
    samples, window = sum(sizes), arrivals[-1] - arrivals[0]
    whole = len(raw["ends"]) > 0
    pictures = samples if whole else samples + LEROBOT_BUFFER
    needed = facts.video_bytes * min(1.0, pictures / facts.frames)
    fetch = raw["stats"].get("fetch") or {}
    early = (raw["first_stats"].get("fetch") or {}).get("bytes_fetched")
    counters = {k: v for k, v in raw["stats"].items() if isinstance(v, int)}
    spans = {k: round(v, 3) for k, v in raw["stats"].items()
             if k.endswith("_s") and isinstance(v, float)}  # fmt: skip
    return {
        "samples_per_s": round((samples - sizes[0]) / window, 2) if window else None,
        "epoch_samples_per_s": round(samples / arrivals[-1], 2),
        "samples_measured": samples - sizes[0],
        "steady_window_s": round(window, 3),
        "whole_epoch": whole,
        "first_batch_latency_s": round(arrivals[0], 3),
        "construct_s": round(raw["construct_s"], 3),
        "import_s": round(raw["import_s"], 3),
        "cpu_ms_per_sample": round(raw["cpu_s"] / samples * 1e3, 4),
        "api_requests": asked["api_requests"] - asked["video_resolves"],
        "faults": asked["faults"],
        "resolves": asked["video_resolves"],
        "requests": asked["video_requests"],
        "bytes_fetched": asked["video_bytes"],
        "bytes_ratio": round(asked["video_bytes"] / needed, 4) if row.remote else None,
        "other_bytes": asked["other_bytes"],
        "first_batch_bytes": early,
        "server_cpu_s": round(asked["cpu_s"], 3),
        "server_cpu_pct": round(100 * asked["cpu_s"] / arrivals[-1], 1),
        "stage_s": spans,
        "counters": counters,
        "fetch": fetch,
        "versions": raw["versions"],
    }


def combine(runs: list[dict]) -> dict[str, Any]:
    """Medians with [min, max] under `range`; of what is no number, the last run's."""
    out, spread = dict(runs[-1]), {}
    for key in runs[0]:
        values = [r[key] for r in runs if isinstance(r[key], (int, float))]
        if len(values) == len(runs) and not isinstance(values[0], bool):
            out[key] = round(statistics.median(values), 4)
            spread[key] = [min(values), max(values)]
    return out | {"repeats": len(runs), "range": spread}


def records(bench: Bench) -> list[dict]:
    """One record per row that has runs, with its ratios."""
    args, out = bench.args, []
    for row in ROWS:
        runs = bench.runs.get(row.name)
        if not runs:
            continue
        base = bench.runs.get(row.base, [])
        # Run against run of the same turn: the machine drifts within minutes.
        pairs = [a["samples_per_s"] / b["samples_per_s"] for a, b in zip(runs, base)]
        cpu = [a["cpu_ms_per_sample"] / b["cpu_ms_per_sample"] for a, b in zip(runs, base)]
        out.append(
            {
                "scenario": "remote", "row": row.name, "what": row.what, "impl": row.impl,
                "loader": "workers" if row.impl == "lerobot" else "threads", "mode": "single",
                "order": row.order, "dtype": "uint8", "batch_size": args.batch_size,
                "num_workers": 1 if row.impl == "lerobot" else 0,
                "num_threads": args.num_threads, "device": "cpu", "remote": row.remote,
                "disk_cache": row.disk_cache, **combine(runs), "local_row": row.base,
                "local_ratio": round(statistics.median(pairs), 4) if pairs else None,
                "cpu_ratio": round(statistics.median(cpu), 4) if cpu else None,
            }
        )  # fmt: skip
    return out


def targets(rows: dict[str, dict], bench: Bench) -> list[dict]:
    """What remote streaming is to reach, and what it did, as far as the rows ran."""
    facts, args, found = bench.facts, bench.args, []
    latency = args.latency_ms / 1e3

    def add(what: str, value: float, limit: float, least: bool = False) -> None:
        met = value >= limit if least else value <= limit
        found.append({"what": what, "value": round(value, 4), "limit": round(limit, 4),
                      "at_least": least, "met": met})  # fmt: skip

    local, remote, cold = (rows.get(name) for name in ("local", "remote", "cold"))
    cached, lerobot = rows.get("cached"), rows.get("lerobot")
    # A first batch reads at most one unit for each of its samples; what came ahead is not its own.
    units = args.batch_size * UNIT * facts.video_bytes / facts.frames

    def on_link(count: float) -> float:
        return count / args.bandwidth if args.bandwidth else 0.0

    if local and remote:
        link = args.bandwidth * facts.frames / facts.video_bytes if args.bandwidth else 0.0
        ratio = remote["local_ratio"]
        if link and link < local["samples_per_s"]:
            ratio = remote["epoch_samples_per_s"] / link  # not what came before the first batch
        add("throughput / min(local, link)", ratio, 0.90, least=True)
        own = on_link(min(remote["first_batch_bytes"] or 0, units))
        add("first batch, metadata here, s", remote["first_batch_latency_s"],
            local["first_batch_latency_s"] + 6 * latency + own)  # fmt: skip
    if local and cold:
        own = on_link(min(cold["first_batch_bytes"] or 0, units) + cold["other_bytes"])
        add("start and first batch, nothing here, s",
            cold["construct_s"] + cold["first_batch_latency_s"],
            local["construct_s"] + local["first_batch_latency_s"] + 16 * latency + own)  # fmt: skip
    for name, row in (("no node cache", remote), ("node cache", cold)):
        if row:
            add(
                f"bytes fetched / bytes of the videos, {name}", row["range"]["bytes_ratio"][1], 1.05
            )
            low, high = (n / facts.files for n in row["range"]["resolves"])
            add(f"resolves per file, {name}", high, 1)
            add(f"resolves per file, {name}", low, 1, least=True)
    if "faulty" in rows and remote:
        ratio = rows["faulty"]["local_ratio"]
        add(f"throughput with {args.faults:.0%} of faults / without", ratio, 0.90, least=True)
    if cached:
        add("requests for videos, second run", cached["range"]["requests"][1], 0)
        add("resolves, second run", cached["range"]["resolves"][1], 0)
    if remote and lerobot:
        add("throughput / LeRobot's", remote["samples_per_s"] / lerobot["samples_per_s"], 1, True)
    return found


def table(rows: list[dict]) -> str:
    """The rows as text."""
    head = ("", "samples/s (min-max)", "x local", "CPU x", "start s", "1st batch s", "requests",
            "resolves", "bytes x", "server CPU %")  # fmt: skip
    lines = [head]
    for r in rows:
        low, high = r["range"]["samples_per_s"]
        ratio, cpu, size = r["local_ratio"], r["cpu_ratio"], r["bytes_ratio"]
        lines.append(
            (r["row"], f"{r['samples_per_s']:.0f} ({low:.0f}-{high:.0f})",
             "-" if ratio is None else f"{ratio:.3f}", "-" if cpu is None else f"{cpu:.3f}",
             f"{r['construct_s']:.2f}", f"{r['first_batch_latency_s']:.2f}", f"{r['requests']:.0f}",
             f"{r['resolves']:.0f}", "-" if size is None else f"{size:.3f}",
             f"{r['server_cpu_pct']:.0f}" if r["remote"] else "-")
        )  # fmt: skip
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        line[0].ljust(widths[0]) + "".join("  " + c.rjust(w) for c, w in zip(line[1:], widths[1:]))
        for line in lines
    )


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("dataset", type=Path, help="a local v3.0 data set")
    p.add_argument("--repeat", type=int, default=3, help="turns; figures are their medians")
    p.add_argument("--copies", type=int, default=10, help="how often its episodes are in the copy")
    p.add_argument("--latency_ms", type=float, default=50, help="before each reply")
    p.add_argument("--bandwidth", type=float, default=100e6, help="bytes/s shared by all; 0: any")
    p.add_argument("--faults", type=float, default=0.01, help="part of requests, in that row")
    p.add_argument("--batch_size", type=int, default=64)
    p.add_argument("--num_threads", type=int, default=env.granted_cpus(), help="decoding threads")
    p.add_argument("--rows", default=",".join(r.name for r in ROWS), help="which (all)")
    p.add_argument("--lerobot_python", help="an interpreter with LeRobot 0.6.1; else without it")
    p.add_argument("--lerobot_s", type=float, default=20, help="its seconds after the first batch")
    p.add_argument("--limit_s", type=float, default=600, help="for one run")
    p.add_argument("--seed", type=int, default=42)
    p.add_argument("--out_dir", type=Path, default=Path("bench_out"))
    p.add_argument("--check", action="store_true", help="exit 1 where a target is missed")
    args = p.parse_args(argv)
    args.rows = args.rows.split(",")
    unknown = set(args.rows) - {r.name for r in ROWS}
    if unknown:
        p.error(f"--rows: no {sorted(unknown)[0]!r}; there are {', '.join(r.name for r in ROWS)}")
    if not 0 <= args.faults <= 0.5:
        p.error("--faults must be 0 to 0.5")
    if "faulty" in args.rows and "remote" not in args.rows:
        p.error("--rows: faulty is held against remote")
    if "cached" in args.rows and "cold" not in args.rows:
        p.error("--rows: cached is the second run after cold")
    if args.repeat < 1 or args.copies < 1:
        p.error("--repeat and --copies must be 1 or more")
    return args


def command_line(args: argparse.Namespace) -> str:
    """The command without paths of this machine."""
    given = (f"--repeat {args.repeat} --copies {args.copies} --latency_ms {args.latency_ms:g} "
             f"--bandwidth {args.bandwidth:g} --faults {args.faults:g} "
             f"--batch_size {args.batch_size} --num_threads {args.num_threads}")  # fmt: skip
    if args.lerobot_python:
        given += f" --lerobot_python PYTHON --lerobot_s {args.lerobot_s:g}"
    return f"python benchmarks/remote.py {args.dataset.name} {given}"


def measure(bench: Bench, rows: list[Row]) -> None:
    """Warm, then all rows in turns."""
    for row in rows:
        if row.remote and row.home != "cold":
            print(f"metadata for {row.name}", file=sys.stderr, flush=True)
            bench.warm(row)
    for turn in range(bench.args.repeat):
        for row in rows:
            if row.name not in bench.failed:
                print(f"turn {turn + 1}: {row.name}", file=sys.stderr, flush=True)
                bench.run(row)


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write; the exit status."""
    args = parse(argv)
    rows = [row for row in ROWS if row.name in args.rows]
    if not args.lerobot_python:
        rows = [row for row in rows if row.impl != "lerobot"]
    with tempfile.TemporaryDirectory(prefix="reelpool-remote-") as name:
        folder = Path(name)
        print("copying the data set", file=sys.stderr, flush=True)
        facts = remote_set.make(args.dataset, folder / "set", args.copies)
        with Server(folder / "set", args) as server:
            bench = Bench(args, folder, facts, server)
            measure(bench, rows)
    found = records(bench)
    met = targets({r["row"]: r for r in found}, bench)
    about = {"dataset": args.dataset.name, **facts._asdict(), "latency_ms": args.latency_ms,
             "bandwidth_bytes_per_s": args.bandwidth}  # fmt: skip
    machine = session.machine(about, command_line(args))
    machine.pop("kernel")
    record = {"scenario": "remote", "rows": found, "targets": met, "failed": sorted(bench.failed),
              "env": machine}  # fmt: skip
    args.out_dir.mkdir(parents=True, exist_ok=True)
    (args.out_dir / "remote.json").write_text(json.dumps(record, indent=1) + "\n")
    print(table(found))
    for goal in met:
        sign = ">=" if goal["at_least"] else "<="
        verdict = "ok" if goal["met"] else "MISSED"
        print(f"{verdict:6}  {goal['what']}: {goal['value']:g} ({sign} {goal['limit']:g})")
    for row_name, text in bench.failed.items():
        print(f"FAILED  {row_name}: {text}", file=sys.stderr)
    missed = not all(goal["met"] for goal in met)
    return 1 if bench.failed or (args.check and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
