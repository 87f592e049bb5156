#!/usr/bin/env python3
"""Loading by reelpool and LeRobot, made to run on a SLURM cluster. Orchestrator and worker in one.

    ACCOUNT=a PARTITION=p QOS=q python benchmarks/benchmark_dataloading.py --local_root COPY
    python benchmarks/benchmark_dataloading.py --scenario mmap_local --local_root COPY

Without --scenario it submits a chain of jobs, one scenario after the other; with it, it measures
that one here. Scenarios: mmap_local (map-style, local files), mmap_local_maxworkers (workers to the
node's cores), stream_hub, stream_bucket, stream_bucket_2node. The work is done by
python/reelpool/bench; docs/benchmarking.md explains options and figures.
"""

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).resolve()
if importlib.util.find_spec("reelpool") is None:  # not installed: this checkout's
    sys.path.insert(0, str(HERE.parents[1] / "python"))

from reelpool.bench.suite_cli import dataloading  # noqa: E402

if __name__ == "__main__":
    sys.exit(dataloading(script=HERE))
