# Sourced by the tests of scripts/slurm, after shell.bash: a Slurm of the test's own, and words for jobs. The daemons' files,
# ports and keys are none of a Slurm that the machine may have.
#
#   need_slurm             skips the test where it cannot run
#   configure_slurm LINE   writes the configuration; LINEs name the head and the nodes
#   submits OPTION...      submits a job; its number is in $job
#   wait_for WORD COMMAND  until the command prints the word, for three minutes at most

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
script=$(readlink -f "$here/../../scripts/slurm/job.sbatch")
COALESCED=$(readlink -f "$COALESCED")
cluster=$scratch/cluster

need_slurm() {
    local tool
    for tool in munged slurmctld slurmd sbatch; do
        command -v "$tool" >/dev/null || skip "Slurm is not installed: no $tool (scripts/deps slurm)"
    done
    [[ $(id -u) -eq 0 ]] || skip "not run as root, as which Slurm's daemons start"
    [[ -z ${SAN:-} ]] || skip "a script is no sanitizer's build"
}

configure_slurm() {
    mkdir -p "$cluster/state"
    head -c 128 /dev/urandom >"$cluster/key"
    chmod 400 "$cluster/key"
    cat - <(printf '%s\n' "$@") >"$cluster/slurm.conf" <<CONF
ClusterName=test
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$cluster/munge.socket,cred_expire=15
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
SchedulerParameters=sched_interval=2,bf_interval=2
CONF
    export SLURM_CONF=$cluster/slurm.conf
}

begin_controller() {
    munged --force --key-file="$cluster/key" --socket="$cluster/munge.socket" --pid-file="$cluster/munge.pid" \
        --log-file="$cluster/munge.log" --seed-file="$cluster/seed" && slurmctld -i -c
}

are_idle() {
    [[ $(sinfo -h -o %t) != idle ]] || echo yes
}

submits() {
    job=$(sbatch --parsable --time=10 "$@")
    echo "$job" >"$scratch/job"
}

wait_for() {
    local i
    for ((i = 0; i < 900; i++)); do
        [[ $("${@:2}" 2>/dev/null) != "$1" ]] || return 0
        sleep 0.2
    done
    echo "$* did not come; now: $("${@:2}" 2>&1)"
    output | grep -v 'Episode ' | tail -40
    return 1
}

state() {
    scontrol show job "$(cat "$scratch/job")" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'
}

# is_training RUN [LINES]
is_training() {
    [[ $(wc -l <"$1/episodes.jsonl") -gt ${2:-60} ]] && echo yes
}

has_stopped() {
    ! tail -1 runs/run/episodes.jsonl | grep -q '"event":"stopped"' || echo yes
}

output() {
    cat "$scratch/submit/coalesced-$(cat "$scratch/job").out"
}

says() {
    output | grep -q "$1"
}

numbers() {
    grep -av '^{"event"' "$1/episodes.jsonl" | sed 's/,"timing".*//'
}
