"""`reelpool submit`: the scenarios of benchmark_dataloading.py as a chain of SLURM jobs."""

from __future__ import annotations

import argparse

from . import console


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `submit`."""
    from ..bench import suite_options

    suite_options.submit_options(parser)
    suite_options.dataloading_options(parser)


def run(args: argparse.Namespace) -> int:
    """Submit, or print with --dry_run."""
    from ..bench import slurm

    try:
        return slurm.submit(args)
    except slurm.SubmitFailed as error:
        raise console.Unusable(str(error)) from None
