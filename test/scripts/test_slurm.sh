#!/usr/bin/env bash
# scripts/slurm/job.sbatch under a real Slurm, whose daemons this test starts: a job that is finished, out of time,
# cancelled, on a node that is lost, and wrong.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/scripts/slurm.bash
source "$here/slurm.bash"
need_slurm

# ---- a cluster of two nodes on this machine ----
port=$first_port
configure_slurm "SlurmctldHost=localhost(127.0.0.1)" "SlurmctldPort=$port" \
    "NodeName=node[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((port + 1))-$((port + 2)) CPUs=2" \
    "PartitionName=all Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP"
end_cluster() {
    local file
    for file in "$cluster"/*.pid; do
        kill -9 "$(cat "$file")" 2>/dev/null || true
    done
    rm -rf "$scratch"
}
trap end_cluster EXIT

begins() {
    begin_controller && slurmd -N node1 && slurmd -N node2 && wait_for yes are_idle && timeout 60 srun -N2 true
}

# ---- jobs ----
mkdir -p "$scratch/submit/build/release"
cd "$scratch/submit"
export XDG_RUNTIME_DIR=$scratch
ln -s "$COALESCED" build/release/coalesced
cat >job.json <<'JSON'
{"kind": "reinforce", "name": "run", "device": "cpu", "rollout": {"steps": 50}, "log": {"every": 100},
 "stop": {"episodes": 4000}, "checkpoint": {"every": 50}}
JSON

same_as_whole() {
    diff <(numbers runs/run) <(numbers whole) | head -4
    cmp -s <(numbers runs/run) <(numbers whole)
}

finishes() {
    rm -rf runs && submits "$script" job.json && wait_for COMPLETED state && says 'start 0 on' && mv runs/run whole
}

# is_out_of_time: the signal that comes two minutes before the time limit.
is_out_of_time() {
    rm -rf runs && submits "$script" job.json && wait_for yes is_training runs/run &&
        scancel --signal=USR1 --batch "$job" && wait_for PENDING state &&
        says 'out of time: the job goes back to the queue' && tail -1 runs/run/episodes.jsonl | grep -q '"event":"stopped"'
}

goes_on() {
    wait_for COMPLETED state && says 'start 1 on' && says 'going on from' && same_as_whole
}

# Another Slurm on this machine may have a job of the same number.
is_of_this_slurm() {
    grep -qzxF "SLURM_CONF=$SLURM_CONF" "/proc/$1/environ"
}

# All processes of the node are gone at once.
loses_a_node() {
    local node pid
    # Episode 101 comes after the checkpoint of episode 50.
    rm -rf runs && submits "$script" job.json && wait_for yes is_training runs/run 101 || return 1
    node=$(squeue -h -j "$job" -o %N)
    kill -9 "$(cat "$cluster/$node.pid")"
    for pid in $(pgrep -f "slurmstepd: \[$job\." || true) $(pgrep -f "spool-$node/job0*$job/slurm_script" || true) \
        $(cat runs/run/lock); do
        ! is_of_this_slurm "$pid" || kill -9 "$pid" || true
    done
    wait_for PENDING state
}

is_cancelled() {
    rm -rf runs && submits "$script" job.json && wait_for yes is_training runs/run && scancel "$job" &&
        wait_for CANCELLED state && wait_for yes has_stopped && ! says 'goes back to the queue' && ! says hurrying
}

fails() {
    submits "$script" job.json --set /observers/cuont=2 && wait_for FAILED state && says 'did you mean "count"' &&
        scontrol show job "$job" | grep -q 'ExitCode=78:0'
}
has_no_daemon() {
    mv build/release/coalesced away && submits "$script" job.json && wait_for FAILED state &&
        mv away build/release/coalesced && says 'there is no coalesced in PATH'
}
needs_a_job() {
    ! "$script" job.json 2>"$scratch/usage" && grep -q '^usage: sbatch' "$scratch/usage"
}

check "a cluster begins" begins
check "a job is finished" finishes
check "a job that is out of time goes back to the queue" is_out_of_time
check "and goes on to the log of one piece" goes_on
check "a node is lost" loses_a_node
check "the job goes on, on the other one" goes_on
check "a job is cancelled: the round is finished" is_cancelled
check "a wrong job fails" fails
check "the daemon is missing" has_no_daemon
check "outside of Slurm" needs_a_job

finish
