#!/usr/bin/env bash
# Runs $REAL_PYTHON on one core, another one for each node of a job: nodes of one machine must not share them.
# For PYTHON of benchmarks/slurm/*.sh.
exec taskset -c "${SLURM_NODEID:-0}" "${REAL_PYTHON:-python3}" "$@"
