"""`python -m reelpool.bench.suite_main`: benchmark_dataloading.py without a checkout."""

import sys

from .suite_cli import dataloading

if __name__ == "__main__":
    sys.exit(dataloading())
