#!/usr/bin/env bash
#SBATCH --job-name=train_streaming
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@120
# Trains on all nodes of a job: one launcher per node, one process per GPU (without GPUs: one).
#   sbatch --output=logs/%x-%j.out [--nodes=N --gpus-per-node=8 --cpus-per-task=96 --account=...] \
#       benchmarks/slurm/train_streaming.sh --repo_id you/set --output_dir SHARED_FOLDER ...
# Options go to train_streaming_multinode.py. The job saves and stops two minutes before its time is up, when it
# is preempted, and when a process dies; it is then queued again, up to $RESTARTS times (default 3), and goes on
# at the next sample. Environment: PYTHON (default python3), LAUNCHER=torchrun|accelerate|srun (srun: each task of
# the job is a process), PROCESSES per node, RESTARTS, MASTER_PORT, EXAMPLE (where that script is).
set -uo pipefail

example=${EXAMPLE:-${SLURM_SUBMIT_DIR:-$PWD}/benchmarks/train_streaming_multinode.py}
[ -e "$example" ] || {
    echo "$example is missing: submit from the checkout, or set EXAMPLE" >&2
    exit 2
}
[ -n "${SLURM_JOB_ID:-}" ] || {
    echo "not in a SLURM job: use sbatch $0, or torchrun $example" >&2
    exit 2
}
python=${PYTHON:-python3}
gpus=${SLURM_GPUS_ON_NODE:-0}
processes=${PROCESSES:-$((gpus > 0 ? gpus : 1))}
nodes=$SLURM_JOB_NUM_NODES
tasks=$nodes # one launcher per node
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
if address=$(scontrol show node "$MASTER_ADDR" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p') && [ -n "$address" ]; then
    MASTER_ADDR=$address # where a node's name is none that every node can look up
fi
export MASTER_ADDR MASTER_PORT=${MASTER_PORT:-$((20000 + SLURM_JOB_ID % 20000))}
export TOKENIZERS_PARALLELISM=false

# The node's number is known inside the step only; "$@" are the script's own options.
# shellcheck disable=SC2016
case ${LAUNCHER:-torchrun} in
torchrun)
    launch='exec "$0" -m torch.distributed.run --nnodes "$1" --nproc_per_node "$2" --node_rank "$SLURM_NODEID" \
        --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" "${@:3}"'
    ;;
accelerate)
    launch='device=(--multi_gpu); [ "${SLURM_GPUS_ON_NODE:-0}" -gt 0 ] || device=(--cpu)
        exec "$0" -m accelerate.commands.launch "${device[@]}" --num_machines "$1" --num_processes $(($1 * $2)) \
        --machine_rank "$SLURM_NODEID" --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \
        --mixed_precision no --dynamo_backend no --num_cpu_threads_per_process 1 "${@:3}"'
    ;;
srun)
    tasks=$((nodes * ${SLURM_NTASKS_PER_NODE:-1}))
    launch='exec "$0" "${@:3}"'
    ;;
*)
    echo "LAUNCHER=${LAUNCHER:-} is not torchrun, accelerate or srun" >&2
    exit 2
    ;;
esac

# srun does not take over --cpus-per-task (since SLURM 22.05), and the variables still have the tasks of a job whose
# nodes were changed while it waited. -K: when a task dies, the others end, too.
srun -K --nodes="$nodes" --ntasks="$tasks" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" bash -c "$launch" \
    "$python" "$nodes" "$processes" "$example" --resume_from auto "$@"
status=$?
if [ $status != 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${RESTARTS:-3}" ]; then
    echo "training ended with status $status: job $SLURM_JOB_ID is queued again"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit $status
