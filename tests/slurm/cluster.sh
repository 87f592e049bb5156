#!/usr/bin/env bash
# A SLURM cluster of two nodes on this machine, on loopback: `cluster.sh up|down|packages [FOLDER]`.
#   up        start munged, slurmctld and two slurmd; returns when both nodes are idle; a running one is kept
#   down      end what `up` started, by its pid files, and remove FOLDER
#   packages  install Debian's packages for it
# Needs root. FOLDER (default /run/reelpool-slurm) holds all state: keys, sockets, logs, slurm.conf. Nothing of
# a SLURM or munge that this machine runs itself is touched. Use it by  export SLURM_CONF=FOLDER/slurm.conf
# Environment: SLURM_TEST_PORT, first of three ports (default 17000).
# Exit status 2: wrong usage; 3: it cannot run here (not root, packages missing); 1: it did not start, with logs.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin

folder=${2:-/run/reelpool-slurm}
port=${SLURM_TEST_PORT:-17000}
host=$(hostname -s)
wanted=(slurmctld slurmd slurm-client munge)
nodes=(n1 n2)
export SLURM_CONF=$folder/slurm.conf

cannot() {
    echo "slurm cluster: $*" >&2
    exit 3
}

need_root() {
    [ "$(id -u)" = 0 ] || cannot "root is needed: slurmd starts tasks as their owner"
}

packages() {
    need_root
    # No daemon starts by itself: what runs here is what `up` starts.
    local deny=/usr/sbin/policy-rc.d own=
    if [ ! -e "$deny" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$deny" && chmod 755 "$deny" && own=$deny
    fi
    # shellcheck disable=SC2064
    trap "rm -f $own" EXIT
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${wanted[@]}" >/dev/null
}

need_programs() {
    local program lacking=()
    for program in munged munge slurmctld slurmd sinfo srun sbatch; do
        command -v "$program" >/dev/null || lacking+=("$program")
    done
    [ ${#lacking[@]} = 0 ] || cannot "missing: ${lacking[*]}; install with: apt-get install ${wanted[*]}"
    [ -d /sys/fs/cgroup ] || cannot "/sys/fs/cgroup is missing"
}

write_config() {
    cat >"$folder/slurm.conf" <<CONF
ClusterName=reelpool
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
MpiDefault=none
KillWait=5
SlurmdParameters=config_overrides
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
NodeName=n1,n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1))-$((port + 2)) CPUs=2 RealMemory=4000
PartitionName=debug Nodes=n1,n2 Default=YES
CONF
    echo CgroupPlugin=autodetect >"$folder/cgroup.conf"
}

idle() { # both nodes are
    [ "$(sinfo -h -N -o '%N %t' 2>/dev/null | grep -c ' idle$')" = ${#nodes[@]} ]
}

failed() {
    echo "slurm cluster: $*" >&2
    sinfo -R >&2 2>/dev/null || true
    tail -n 15 "$folder"/*.log >&2 || true
    down
    exit 1
}

up() {
    need_root
    need_programs
    if [ -e "$folder/slurmctld.pid" ] && sinfo -h >/dev/null 2>&1; then
        echo "$SLURM_CONF"
        return
    fi
    down
    install -d -m 755 "$folder"
    install -d -m 700 "$folder/state" "$folder/spool-n1" "$folder/spool-n2"
    (umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
    write_config
    munged --key-file "$folder/munge.key" --socket "$folder/munge.socket" --pid-file "$folder/munged.pid" \
        --log-file "$folder/munged.log" --seed-file "$folder/munge.seed" || failed "munged did not start"
    munge -n --socket "$folder/munge.socket" | unmunge --socket "$folder/munge.socket" >/dev/null ||
        failed "munge does not answer"
    slurmctld -f "$SLURM_CONF" || failed "slurmctld did not start"
    local node try
    for node in "${nodes[@]}"; do
        slurmd -f "$SLURM_CONF" -N "$node" || failed "slurmd $node did not start"
    done
    for ((try = 0; try < 150; try++)); do
        if idle; then
            echo "$SLURM_CONF"
            return
        fi
        sleep 0.2
    done
    failed "the nodes are not idle after 30 s: $(sinfo -h -N -o '%N %t' 2>&1 | tr '\n' ' ')"
}

# end PIDFILE PROGRAM: TERM, after 5 s KILL; only where that process is that program
end() {
    local pid try
    pid=$(cat "$1" 2>/dev/null) || return 0
    for ((try = 0; try < 60; try++)); do
        [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] || return 0
        if [ $try = 0 ]; then kill "$pid"; fi
        if [ $try = 50 ]; then kill -9 "$pid"; fi
        sleep 0.1
    done
}

down() {
    [ -e "$folder/slurm.conf" ] || return 0
    need_root
    if [ -e "$folder/slurmctld.pid" ]; then # running jobs first: their tasks outlive a slurmd
        scancel --full --signal=KILL --state=RUNNING 2>/dev/null || true
        scancel --state=PENDING 2>/dev/null || true
        local try
        for ((try = 0; try < 25; try++)); do
            [ -n "$(squeue -h 2>/dev/null)" ] || break
            sleep 0.2
        done
    fi
    end "$folder/slurmd-n1.pid" slurmd
    end "$folder/slurmd-n2.pid" slurmd
    end "$folder/slurmctld.pid" slurmctld
    end "$folder/munged.pid" munged
    rm -rf "$folder"
}

case ${1:-} in
up) up ;;
down) down ;;
packages) packages ;;
*)
    echo "usage: $0 up|down|packages [FOLDER]" >&2
    exit 2
    ;;
esac
