#!/usr/bin/env python3
"""The streaming class alone: single frames or windows, from the Hub, a bucket or a folder.

    python benchmarks/streaming/benchmark_streaming.py --repo_id OWNER/NAME --mode sarm \
        --batch_size 64 --num_workers 12 --num_batches 200 --source hub

Several nodes: benchmarks/slurm/benchmark_streaming.sh. The work is done by python/reelpool/bench;
docs/benchmarking.md explains options and figures.
"""

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("reelpool") is None:  # not installed: this checkout's
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

from reelpool.bench.suite_cli import streaming

if __name__ == "__main__":
    sys.exit(streaming())
