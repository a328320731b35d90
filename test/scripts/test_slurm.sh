#!/usr/bin/env bash
# scripts/slurm/job.sbatch under a real Slurm, whose daemons this test starts: a job that is finished, out of time,
# cancelled, on a node that is lost, and wrong.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
script=$(readlink -f "$here/../../scripts/slurm/job.sbatch")
COALESCED=$(readlink -f "$COALESCED")

for tool in munged slurmctld slurmd sbatch; do
    command -v "$tool" >/dev/null || skip "Slurm is not installed: no $tool (scripts/deps slurm)"
done
[[ $(id -u) -eq 0 ]] || skip "not run as root, as which Slurm's daemons start"
[[ -z ${SAN:-} ]] || skip "a script is no sanitizer's build"

# ---- a cluster of two nodes on this machine ----
# The daemons are this test's own: their files, ports and keys are none of a Slurm that the machine may have.
cluster=$scratch/cluster
port=$((20000 + $$ % 20000))
mkdir -p "$cluster/state" "$scratch/submit/build/release"
head -c 128 /dev/urandom >"$cluster/key"
chmod 400 "$cluster/key"
cat >"$cluster/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$cluster/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation=$cluster/state
SlurmdSpoolDir=$cluster/spool-%n
SlurmctldPidFile=$cluster/controller.pid
SlurmdPidFile=$cluster/%n.pid
SlurmctldLogFile=$cluster/controller.log
SlurmdLogFile=$cluster/%n.log
SlurmdTimeout=6
KillWait=10
NodeName=node[1-2] NodeHostname=localhost NodeAddr=127.0.0.1 Port=$((port + 1))-$((port + 2)) CPUs=2
PartitionName=all Nodes=node[1-2] Default=YES MaxTime=INFINITE State=UP
CONF
export SLURM_CONF=$cluster/slurm.conf
end_cluster() {
    local file
    for file in "$cluster"/*.pid; do
        kill -9 "$(cat "$file")" 2>/dev/null || true
    done
    rm -rf "$scratch"
}
trap end_cluster EXIT

begins() {
    munged --force --key-file="$cluster/key" --socket="$cluster/munge.socket" --pid-file="$cluster/munge.pid" \
        --log-file="$cluster/munge.log" --seed-file="$cluster/seed" &&
        slurmctld -i -c && slurmd -N node1 && slurmd -N node2 && until_state "$(sinfo_states)" &&
        timeout 60 srun -N2 true
}
sinfo_states() {
    local i
    for ((i = 0; i < 100; i++)); do
        [[ $(sinfo -h -o %t) != idle ]] || break
        sleep 0.2
    done
    sinfo -h -o %t
}
until_state() {
    [[ $1 == idle ]]
}

# ---- jobs ----
cd "$scratch/submit"
export XDG_RUNTIME_DIR=$scratch
ln -s "$COALESCED" build/release/coalesced
cat >job.json <<'JSON'
{"kind": "reinforce", "name": "run", "device": "cpu", "rollout": {"steps": 50}, "log": {"every": 100},
 "stop": {"episodes": 4000}, "checkpoint": {"every": 50}}
JSON

numbers() {
    grep -av '^{"event"' "$1/episodes.jsonl" | sed 's/,"timing".*//'
}

# submits [SBATCH OPTION]...: its number is in $job.
submits() {
    job=$(sbatch --parsable --cpus-per-task=1 --time=10 "$@")
    echo "$job" >"$scratch/job"
}

# wait_for WORD COMMAND...: until the command prints the word, for a minute and a half at most.
wait_for() {
    local i
    for ((i = 0; i < 450; i++)); do
        [[ $("${@:2}" 2>/dev/null) != "$1" ]] || return 0
        sleep 0.2
    done
    echo "$* did not come; now: $("${@:2}" 2>&1)"
    cat "$scratch"/submit/*.out
    return 1
}

state() {
    scontrol show job "$(cat "$scratch/job")" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'
}

is_training() {
    [[ $(wc -l <"$1/episodes.jsonl") -gt ${2:-100} ]] && echo yes
}

says() {
    grep -q "$1" "$scratch/submit/coalesced-$(cat "$scratch/job").out"
}

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

# All processes of the node are gone at once.
loses_a_node() {
    local node pid
    rm -rf runs && submits "$script" job.json && wait_for yes is_training runs/run || return 1
    node=$(squeue -h -j "$job" -o %N)
    kill -9 "$(cat "$cluster/$node.pid")"
    for pid in $(pgrep -f "slurmstepd: \[$job\." || true) $(pgrep -f "spool-$node/job0*$job/slurm_script" || true) \
        $(cat runs/run/lock); do
        kill -9 "$pid" || true
    done
    wait_for PENDING state
}

is_cancelled() {
    rm -rf runs && submits "$script" job.json && wait_for yes is_training runs/run && scancel "$job" &&
        wait_for CANCELLED state && wait_for yes has_stopped && ! says 'goes back to the queue'
}
has_stopped() {
    ! tail -1 runs/run/episodes.jsonl | grep -q '"event":"stopped"' || echo yes
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
