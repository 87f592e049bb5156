"""A conversion as array jobs of SLURM or as tasks of Ray, by datatrove's executors."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError, StateError, make_error
from .job import Options
from .run import help_along


@dataclasses.dataclass(frozen=True)
class Share:
    """One task: a step of a datatrove pipeline. Idempotent, and the same for every rank."""

    options: Options
    threads: int
    at_end: bool

    def __call__(self, data: Any, rank: int = 0, world_size: int = 1) -> Any:
        """Work until nothing is left; with `at_end` put the dataset in place."""
        help_along(self.options, self.threads, self.at_end)
        return data


@dataclasses.dataclass(frozen=True)
class SlurmOptions:
    """What sbatch is told. `time` as H:MM:SS; `qos` "" leaves the cluster's default."""

    tasks: int = 4
    partition: str = ""
    time: str = "4:00:00"
    cpus_per_task: int = 1
    mem_per_cpu_gb: int = 2
    account: str = ""
    qos: str = ""


def slurm_executors(options: Options, slurm: SlurmOptions) -> tuple[Any, Any]:
    """(array of workers, last job) as executors of datatrove, not launched.

    The last job waits for the array however that ends, does what it left over, and finishes.
    Raises MissingExtraError without datatrove.
    """
    try:
        from datatrove.executor.slurm import SlurmPipelineExecutor
    except ImportError as error:
        text = "--engine slurm needs datatrove\n  Run: pip install 'reelpool[cluster]'"
        raise make_error(MissingExtraError, text) from error
    activate = Path(sys.prefix) / "bin/activate"
    logs = options.work / "slurm" / time.strftime("%Y%m%d-%H%M%S")
    common = {
        "time": slurm.time,
        "partition": slurm.partition,
        "cpus_per_task": slurm.cpus_per_task,
        "mem_per_cpu_gb": slurm.mem_per_cpu_gb,
        "qos": slurm.qos,
        "venv_path": str(activate) if activate.is_file() else None,
        "sbatch_args": {
            # datatrove's job of statistics would wait for ever for an array that was cancelled
            "kill-on-invalid-dep": "yes",
            **({"account": slurm.account} if slurm.account else {}),
        },
        "skip_completed": False,  # tasks see for themselves what is left
    }
    array = SlurmPipelineExecutor(
        pipeline=[Share(options, slurm.cpus_per_task, at_end=False)],
        tasks=slurm.tasks,
        job_name="reelpool-convert",
        logging_dir=str(logs / "work"),
        **common,
    )
    last = SlurmPipelineExecutor(
        pipeline=[Share(options, slurm.cpus_per_task, at_end=True)],
        tasks=1,
        job_name="reelpool-finish",
        logging_dir=str(logs / "finish"),
        depends=array,
        run_on_dependency_fail=True,
        **common,
    )
    return array, last


def run_on_ray(options: Options, tasks: int, cpus_per_task: int, mem_per_cpu_gb: int) -> None:
    """Let tasks of a Ray cluster do the work: that of RAY_ADDRESS, else one on this machine.

    Blocks until they have ended, however that is: a conversion of the same options does what is
    left over, and finishes. Raises MissingExtraError without datatrove or ray, StateError where no
    cluster can be reached.
    """
    try:
        import ray
        from datatrove.executor.ray import RayPipelineExecutor
    except ImportError as error:
        text = "--engine ray needs datatrove and ray\n  Run: pip install 'reelpool[cluster]' ray"
        raise make_error(MissingExtraError, text) from error
    try:
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as error:
        text = f"no Ray cluster: {error}\n  Check RAY_ADDRESS"
        raise make_error(StateError, text) from error
    try:
        RayPipelineExecutor(
            pipeline=[Share(options, cpus_per_task, at_end=False)],
            tasks=tasks,
            cpus_per_task=cpus_per_task,
            mem_per_cpu_gb=mem_per_cpu_gb,
            logging_dir=str(options.work / "ray" / time.strftime("%Y%m%d-%H%M%S")),
            skip_completed=False,  # tasks see for themselves what is left
        ).run()
    finally:
        ray.shutdown()


def submit(options: Options, slurm: SlurmOptions) -> tuple[str, str]:
    """Launch both jobs; their ids. Raises MissingExtraError, and what sbatch fails with."""
    array, last = slurm_executors(options, slurm)
    last.run()
    return str(array.job_id), str(last.job_id)
