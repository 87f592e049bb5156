#!/usr/bin/env python3
"""Frames/s per node on one and on two nodes of one core each: `two_nodes.py DATASET [--min 0.9]`.

Starts a SLURM of two nodes on this machine (cluster.sh), each node's ranks bound to a core of its
own, and runs the streaming launcher on one node and on two, in turn, `--repeat` times. Prints the
medians, and their ratio for each mode; exits 1 where a ratio is below --min. The machine should be
idle otherwise. The floor of each run tells how fast its core was: cores that share a clock, a cache
or the memory slow each other down, whatever reads; floor_ratio leaves that out. The ratio by CPU
time tells, on a busy machine too, whether a node of two does more work per sample than one alone.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
LAUNCHER = REPO / "benchmarks/slurm/benchmark_streaming.sh"
FIGURES = ("frames_per_s_node", "floor_ratio", "cpu_ms_per_sample", "reuse")


def measure(args: argparse.Namespace, nodes: int, mode: str, out: Path) -> list[dict]:
    """Results of each node."""
    environment = {
        **os.environ, "OUT_DIR": str(out), "PYTHON": str(HERE / "one_core.sh"),
        "REAL_PYTHON": sys.executable, "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [
        "sbatch", "--wait", "--quiet", f"--nodes={nodes}", "--cpus-per-task=1",
        "--mem=3G", "--time=30", f"--output={out}.log", LAUNCHER,
        "--repo_id", "you/set", "--root", args.dataset,
        "--source", "local", "--mode", mode, "--impl", args.impl, "--device", "cpu",
        "--num_workers", 1, "--batch_size", args.batch_size, "--num_batches", 1_000_000,
        "--duration_s", args.duration_s, "--probe_samples", 0, "--floor_s", args.floor_s,
        "--warmup_batches", args.warmup_batches,
    ]  # fmt: skip
    done = subprocess.run([str(word) for word in command], env=environment, cwd=REPO)
    if done.returncode:
        sys.exit(f"the job on {nodes} nodes failed:\n" + Path(f"{out}.log").read_text())
    return [json.loads(p.read_text()) for p in sorted(out.glob(f"node*/{args.impl}/*.json"))]


def main() -> int:
    """Measure in turn, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path, help="folder of a data set")
    parser.add_argument("--modes", default="single,sarm")
    parser.add_argument("--impl", default="reelpool", choices=("reelpool", "reelpool_loader"))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--duration_s", type=float, default=10.0)
    parser.add_argument("--warmup_batches", type=int, default=20)
    parser.add_argument("--floor_s", type=float, default=1.0)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--min", type=float, default=0.0)
    args = parser.parse_args()
    args.dataset = args.dataset.resolve()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("two cores are needed, one for each node")
    missed = False
    with tempfile.TemporaryDirectory(prefix="two-nodes-") as folder:
        cluster = [HERE / "cluster.sh", "up", f"/run/reelpool-two-nodes-{os.getpid()}"]
        up = subprocess.run(cluster, check=True, capture_output=True, text=True)
        os.environ["SLURM_CONF"] = up.stdout.strip()
        try:
            for mode in args.modes.split(","):
                found: dict[int, list[dict]] = {1: [], 2: []}
                for number in range(args.repeat):
                    for nodes in (1, 2):
                        out = Path(folder) / f"{mode}-{nodes}-{number}"
                        found[nodes] += measure(args, nodes, mode, out)
                missed = told(mode, found, args.min) or missed
        finally:
            cluster[1] = "down"
            subprocess.run(cluster, check=True)
    return 1 if missed else 0


def told(mode: str, found: dict[int, list[dict]], least: float) -> bool:
    """Print a mode's figures; True if two nodes are slower per node than they may be."""
    middle = {
        nodes: {
            key: statistics.median(v) if (v := [r[key] for r in runs if r[key]]) else None
            for key in FIGURES
        }
        for nodes, runs in found.items()
    }
    ratio = middle[2]["frames_per_s_node"] / middle[1]["frames_per_s_node"]
    for nodes, runs in found.items():
        rates = [r["frames_per_s_node"] for r in runs]
        print(
            f"{mode}, {nodes} node{'s' * (nodes > 1)}: {middle[nodes]['frames_per_s_node']:.0f} "
            f"frames/s per node ({min(rates):.0f}-{max(rates):.0f}), "
            f"x floor {middle[nodes]['floor_ratio'] or 0:.2f}, "
            f"CPU {middle[nodes]['cpu_ms_per_sample']:.2f} ms/sample, "
            f"pictures delivered / decoded {middle[nodes]['reuse'] or 0:.2f}"
        )
    work = middle[1]["cpu_ms_per_sample"] / middle[2]["cpu_ms_per_sample"]
    print(f"{mode}: two nodes / one node = {ratio:.3f}; by CPU time {work:.3f}", flush=True)
    return ratio < least


if __name__ == "__main__":
    sys.exit(main())
