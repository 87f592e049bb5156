"""A scenario from options to result files, each implementation in a process and folder of its own.

Result names are those of LeRobot's benchmarks; docs/benchmarking.md explains every key.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..distributed import resolve_rank
from . import scenarios, session, targets
from .floor import Floor, warm_page_cache
from .merge import last_words
from .suite_options import SCENARIOS
from .suite_record import Plan, figures, write

CHILD = Path(__file__).with_name("suite_runner.py")
WARM_LIMIT = 4 << 30


class SuiteUnusable(Exception):
    """Nothing can be measured; the text says why and what to do."""


class Terminated(Exception):
    """The scheduler ends this job."""


# -- what to measure --


def select_node_episodes(meta: Any, num_partitions: int, index: int, cap: int) -> list[int]:
    """A node's share: episodes grouped by shared video files (data files where there is no video;
    single episodes when there are fewer groups than nodes), the longest group first to the
    lightest node; the first `cap` of them (0: all). ValueError for more nodes than episodes."""
    from ..sampler import group_episodes_by_files, partition_episodes

    if not 0 <= index < num_partitions:
        raise ValueError(f"partition {index} of {num_partitions} is not possible")
    table, keys = meta.episodes, list(meta.video_keys)
    prefixes = [f"videos/{k}" for k in keys] or ["data"]
    files = [
        list(zip([p] * meta.total_episodes, table[f"{p}/chunk_index"], table[f"{p}/file_index"]))
        for p in prefixes
    ]
    groups = group_episodes_by_files([list(ids) for ids in zip(*files)])
    if len(groups) < num_partitions:
        groups = [[i] for i in range(meta.total_episodes)]
    lengths = [int(n) for n in table["length"]]
    bins = partition_episodes([sum(lengths[i] for i in g) for g in groups], num_partitions)
    chosen = sorted(i for g in bins[index] for i in groups[g])
    return chosen[:cap] if cap else chosen


def _config(args: argparse.Namespace, impl: str, streaming: bool) -> dict[str, Any]:
    """What both benchmarks tell suite_runner.py."""
    own = impl == "reelpool_loader"
    return {
        "impl": impl,
        "loader": "streaming" if streaming else "map_style",
        "mode": getattr(args, "mode", "single"),
        "dtype": args.dtype,
        "device": args.device,
        "video_decode_device": args.video_decode_device,
        "batch_size": args.batch_size,
        "num_workers": 0 if own else args.num_workers,
        "num_threads": args.num_threads,
        "maxworkers": False,
        "prefetch_factor": args.prefetch_factor,
        "buffer_size": args.buffer_size,
        "episode_pool_size": args.episode_pool_size,
        "max_buffer_input_shards": args.max_buffer_input_shards,
        "video_decoder_cache_size": args.video_decoder_cache_size,
        "duration_s": args.duration_s,
        "num_batches": args.num_batches,
        "warmup_batches": args.warmup_batches,
        "probe_samples": args.probe_samples,
        "probe_warmup": args.probe_warmup,
        "seed": args.seed,
        "tolerance_s": 1e-3,
        "limit_s": None,
        "episodes": None,
        "repo_id": args.repo_id,
        "root": str(args.root) if args.root else None,
        "revision": args.revision,
        "data_files_root": None,
    }


def _plan(scenario: str, args: argparse.Namespace, impl: str, config: dict, tag: str) -> Plan:
    python = args.lerobot_python if impl == "lerobot" and args.lerobot_python else sys.executable
    variables = {"TOKENIZERS_PARALLELISM": "false"}
    remote = config["root"] is None or _is_remote(config["data_files_root"])
    config["node_cache"] = args.node_cache if remote and impl != "lerobot" else None
    if config["video_decoder_cache_size"]:
        variables["LEROBOT_VIDEO_DECODER_CACHE_SIZE"] = str(config["video_decoder_cache_size"])
    labels = {
        "scenario": scenario,
        "impl": impl,
        **{k: config[k] for k in ("loader", "mode", "dtype", "repo_id", "data_files_root")},
        **{k: config[k] for k in ("batch_size", "num_workers", "prefetch_factor", "device")},
        **{k: config[k] for k in ("video_decode_device", "video_decoder_cache_size", "seed")},
        **{k: config[k] for k in ("warmup_batches", "node_cache")},
        "targets": targets.recorded(args.minimum, args.maximum),
    }
    folder = args.out_dir / impl
    return Plan(scenario, impl, labels, config, tag, folder, python, variables)


def dataloading_tag(scenario: str, batch: int, workers: int, rank: int, world: int) -> str:
    """Base name of a result of benchmark_dataloading.py."""
    return f"{scenario}_bs{batch}_w{workers}_r{rank}of{world}"


def plan_dataloading(args: argparse.Namespace, rank: int, world: int) -> list[Plan]:
    """One plan per implementation. Raises SuiteUnusable."""
    kind = SCENARIOS[args.scenario]
    episodes = None
    if kind.kind == "map_style":
        if args.local_root is None:
            raise SuiteUnusable(
                f"{args.scenario} needs --local_root: the folder of a local LeRobotDataset copy"
            )
        if not (args.local_root / "meta/info.json").is_file():
            raise SuiteUnusable(f"--local_root {args.local_root}: no meta/info.json in it")
        episodes = _node_share(args)
    plans = []
    for impl in args.impl:
        config = _config(args, impl, kind.kind == "streaming")
        if kind.kind == "map_style":
            place = {"repo_id": args.map_repo_id, "root": str(args.local_root), "revision": None}
            config |= place | {"episodes": episodes, "maxworkers": kind.maxworkers}
            config["video_decode_device"] = "cpu"  # LeRobot's map-style class knows no other
        elif kind.bucket:
            config["data_files_root"] = args.data_files_root
        tag = dataloading_tag(args.scenario, args.batch_size, config["num_workers"], rank, world)
        plans.append(_plan(args.scenario, args, impl, config, tag))
    return plans


def _node_share(args: argparse.Namespace) -> list[int]:
    from ..metadata import LeRobotDatasetMetadata

    meta = LeRobotDatasetMetadata(args.map_repo_id, root=args.local_root)
    try:
        return select_node_episodes(
            meta, args.num_partitions, args.partition_index, args.max_episodes
        )
    except ValueError as error:
        raise SuiteUnusable(f"{error}: see --num_partitions and --partition_index") from None


def plan_streaming(args: argparse.Namespace) -> list[Plan]:
    """One plan per implementation of benchmark_streaming.py."""
    plans = []
    for impl in args.impl:
        config = _config(args, impl, True) | {"data_files_root": args.data_files_root}
        device = args.video_decode_device.replace(":", "")
        size = f"bs{args.batch_size}_w{config['num_workers']}"
        plan = _plan("stream", args, impl, config, f"{args.source}_{args.mode}_{size}_{device}")
        plan.labels |= {"source": args.source, "buffer_size": args.buffer_size}
        plans.append(plan)
    return plans


# -- measuring --


class SchedulerSignal:
    """SIGTERM as an exception between two looks: never in the midst of starting a process."""

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> SchedulerSignal:
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def _note(self, _: int, __: Any) -> None:
        self.came = True

    def look(self) -> None:
        """Raise Terminated if it came."""
        if self.came:
            raise Terminated("SIGTERM: cancelled, or out of time")

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTERM, self._before)


def run_plans(plans: list[Plan], args: argparse.Namespace, command: str) -> list[dict]:
    """All implementations in turn; a record for each, with `failed` where there are no figures.

    Raises SuiteUnusable if none can run here, Terminated after writing what there is.
    """
    plans = _importable(plans)
    _check_devices(plans)
    rank, world = resolve_rank()
    for plan in plans:
        try:
            _prepare(plan)
        except OSError as error:
            raise SuiteUnusable(
                f"--out_dir {args.out_dir} cannot be written: {error.filename}: {error.strerror}"
            ) from None
    floor = _Floor(plans[0].config, args.floor_s)
    records = []
    try:
        with SchedulerSignal() as scheduler:
            for plan in plans:
                print(f"{plan.name}: rank {rank} of {world}", file=sys.stderr, flush=True)
                plan.labels |= {"rank": rank, "world_size": world}
                records.append(_run(plan, floor, command, scheduler.look))
    finally:
        floor.close()
    return records


def _importable(plans: list[Plan]) -> list[Plan]:
    found = []
    for plan in plans:
        module = "lerobot" if plan.impl == "lerobot" else "torch"
        if scenarios._importable(plan.python, sys.executable, module):
            found.append(plan)
        else:
            hint = "; --lerobot_python EXE" if module == "lerobot" else ": pip install torch"
            print(f"not measured: {plan.impl}: no {module} here{hint}", file=sys.stderr)
    if not found:
        raise SuiteUnusable("nothing to measure: no implementation can be imported")
    return found


def _check_devices(plans: list[Plan]) -> None:
    """SuiteUnusable for a CUDA device that is not here; torch is asked only where one is wanted."""
    for plan in plans:
        for option in ("device", "video_decode_device"):
            wanted = plan.config[option]
            if wanted is None or not wanted.startswith("cuda"):
                continue
            count, version = _cuda_devices(plan.python)
            if int(wanted.partition(":")[2] or 0) >= count:
                raise SuiteUnusable(
                    f"--{option} {wanted}: torch {version} of {plan.python} finds "
                    f"{count or 'no'} CUDA device{'s' * (count > 1)}; use --{option} cpu"
                )


@functools.cache
def _cuda_devices(python: str) -> tuple[int, str]:
    """How many an interpreter's torch finds, and its version."""
    program = "import torch; print(torch.cuda.device_count(), torch.__version__)"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True)
    count, _, version = done.stdout.strip().rpartition("\n")[2].partition(" ")
    if done.returncode or not count.isdigit():
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise SuiteUnusable(f"torch of {python} tells nothing of CUDA devices: {said}")
    return int(count), version


def _prepare(plan: Plan) -> None:
    """The folder, before anything is measured, without results of an earlier run."""
    plan.folder.mkdir(parents=True, exist_ok=True)
    for suffix in (".json", ".csv", ".failed.json"):
        (plan.folder / f"{plan.tag}{suffix}").unlink(missing_ok=True)
    probe = plan.folder / f".{plan.tag}.writable"
    probe.touch()
    probe.unlink()


class _Floor:
    """The bare decoder on the files that are read, where they are local; `why` where not."""

    def __init__(self, config: dict, seconds: float) -> None:
        self.kind = "seq" if config["loader"] == "streaming" else "random"
        self.floor: Floor | None = None
        self.why = "--floor_s 0" if seconds <= 0 else None
        root = Path(config["root"]) if config["root"] else None
        if self.why is None and (root is None or _is_remote(config["data_files_root"])):
            self.why = "the files are remote"
        if self.why is not None or root is None:
            return
        try:
            facts = scenarios.read_facts(config["repo_id"], root)
        except scenarios.DatasetUnusable as error:
            self.why = str(error).splitlines()[0]
            return
        files = _files_read(facts, config["episodes"])
        missing = next((f for f in files if not Path(f).is_file()), None)
        if missing is not None:
            self.why = "the video files are not local"
            return
        from ..env import granted_cpus

        warm_page_cache(files, WARM_LIMIT)
        first = [next(f for f in files if f in facts.files(c)) for c in facts.cameras]
        self.floor = Floor(first, granted_cpus(), seconds)

    def measure(self) -> dict[str, Any] | None:
        """Frames/s and CPU time now; None where there is no floor."""
        if self.floor is None:
            return None
        try:
            return self.floor.measure(self.kind)
        except RuntimeError as error:  # the files are at fault: the readers will say it better
            self.close()
            self.floor, self.why = None, str(error)
            return None

    def close(self) -> None:
        """Remove what was built."""
        if self.floor is not None:
            self.floor.close()


def _is_remote(place: str | None) -> bool:
    return place is not None and "://" in place


def _files_read(facts: scenarios.Facts, episodes: list[int] | None) -> list[str]:
    chosen = None if episodes is None else set(episodes)
    rows = [e for e in facts.episodes if chosen is None or e["episode_index"] in chosen]
    return list(dict.fromkeys(e["videos"][c][0] for e in rows for c in facts.cameras))


def _run(plan: Plan, floor: _Floor, command: str, look: Callable[[], None]) -> dict:
    """Measure, write; the record. Raises Terminated after writing that it failed."""
    record: dict[str, Any]
    try:
        before = floor.measure()
        with _node_cache(plan) as variables:
            raw, watch = session.run_child(
                plan.python, CHILD, plan.config, _interval(plan), plan.name, variables, look
            )
        record = figures(plan, raw, watch)
        after = floor.measure()
        if before is not None and after is not None and floor.floor is not None:
            record |= session.against_floor(record, before, after)
            record["floor_source"] = floor.floor.source
        else:
            lost = ("floor_frames_per_s", "floor_ratio", "cpu_floor_ratio")
            record |= dict.fromkeys(lost)
            record["null_reasons"] |= dict.fromkeys(lost, floor.why)
    except (session.CaseFailed, ValueError) as error:
        record = plan.labels | {"failed": str(error)}
        why = "\n  ".join(last_words(str(error)))
        print(f"FAILED: {why}\n  all of it: {plan.tag}.failed.json", file=sys.stderr, flush=True)
    except (Terminated, KeyboardInterrupt) as error:
        write(plan, plan.labels | {"failed": str(error) or "interrupted", "command": command})
        raise
    facts = record.pop("facts", None)
    record["env"] = session.machine(facts or {"dataset": plan.config["repo_id"]}, command)
    record["command"] = command
    write(plan, record)
    return record


@contextlib.contextmanager
def _node_cache(plan: Plan) -> Iterator[dict[str, str]]:
    """Variables of the child: an empty folder of its own for what it fetches, unless told."""
    if plan.config["node_cache"] != "cold":
        yield plan.variables
        return
    with tempfile.TemporaryDirectory(prefix="reelpool-bench-cache-") as folder:
        yield plan.variables | {"REELPOOL_CACHE": folder}


def _interval(plan: Plan) -> float:
    return min(0.5, max(0.05, plan.config["duration_s"] / 8))
