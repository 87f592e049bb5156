#!/usr/bin/env bash
#SBATCH --job-name=bench_streaming
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=250G
#SBATCH --time=03:00:00
#SBATCH --output=logs/%x-%j.out
# The streaming benchmark on one or more nodes, submitted from the checkout:
#   mkdir -p logs
#   sbatch benchmarks/slurm/benchmark_streaming.sh --repo_id OWNER/NAME --mode sarm --source hub
#   sbatch --nodes=2 --mem=64G benchmarks/slurm/benchmark_streaming.sh --mode single ...
# Arguments go to benchmark_streaming.py. Each node writes into a folder of its own, since the names of its results
# hold no rank; then all are merged into OUT_DIR/report.html.
# Environment: PYTHON (default: .venv/bin/python here, else python3),
#   OUT_DIR (default: benchmarks/streaming/results/jobJOBID).
set -uo pipefail
cd "${SLURM_SUBMIT_DIR:?submit this script with sbatch}" || exit
script=benchmarks/streaming/benchmark_streaming.py
[ -f "$script" ] || { echo "submit it from the checkout: no $script in $PWD" >&2; exit 2; }

python=${PYTHON:-.venv/bin/python}
[ -n "${PYTHON:-}" ] || [ -x "$python" ] || python=python3
export OUT_DIR=${OUT_DIR:-benchmarks/streaming/results/job$SLURM_JOB_ID}
export TOKENIZERS_PARALLELISM=false

# srun has not inherited --cpus-per-task since SLURM 22.05; a node that fails must not end the others.
# shellcheck disable=SC2016
srun --export=ALL --kill-on-bad-exit=0 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" bash -c '
    export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS
    exec "$@" --out_dir "$OUT_DIR/node$SLURM_NODEID"
' _ "$python" "$script" "$@"
status=$?
"$python" -m reelpool bench --merge "$OUT_DIR" || status=$?
exit "$status"
