#!/usr/bin/env bash
# Jobs on several machines (test/daemon/hosts/machines.bash) whose network or power fails: whatever happens, the log has the
# numbers of a job on one machine, each once and in order. So a worker that was cut off has added nothing to it.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/daemon/hosts/machines.bash
source "$here/machines.bash"
machines_enter "$0" "$@"
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

# A step takes a millisecond: most jobs here only have to go on while machines fail.
cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 2}, "rollout": {"steps": 20}, "log": {"every": 1},
 "environment": {"plugin": "$(readlink -f "$BUILD")/test/preload/environment_toy.so", "name": "Slow-v0"}}
JSON
hosts=3
declare -a supervisor=()
"$COALESCED" keygen "$scratch/keys" --hosts 3

# ---- words ----

# host_start N KIND RUN [ARGUMENT]...: starts the supervisor of host N on machine N. Its output goes to RUN.N. The job has
# no end unless the arguments name one.
host_start() {
    local n=$1 unit=updates
    [[ $2 != reinforce ]] || unit=episodes
    mkdir -p "$scratch/machine$n"
    XDG_RUNTIME_DIR=$scratch/machine$n machine_run "$n" "$COALESCED" run "$scratch/$2.json" --run-dir "$3" \
        --node "$n/$hosts" --leader 10.78.1.1:4711 --keys "$scratch/keys" \
        --set "/checkpoint=$checkpoint" --set "/stop={\"$unit\":1000000}" "${@:4}" </dev/null >>"$3.$n" 2>&1 &
    supervisor[n]=$!
}

# job_start KIND RUN [ARGUMENT]...: starts the job on all machines.
job_start() {
    local n
    for ((n = 0; n < hosts; n++)); do
        host_start "$n" "$@"
    done
}

# await_until RUN WHAT COMMAND...: until the command succeeds, while a supervisor runs, a minute at most.
await_until() {
    local limit=$((SECONDS + 60))
    until "${@:3}"; do
        if [[ $SECONDS -ge $limit ]] || [[ -z $(jobs -rp) ]]; then
            echo "$2 has not come"
            tail -n 20 "$1".?
            return 1
        fi
        sleep 0.02
    done
}

# await_words N RUN WORDS: in the output of host N.
await_words() {
    await_until "$2" "\"$3\" of host $1" grep -q -- "$3" "$2.$1"
}

has_number() {
    [[ $(last_number "$1" 2>/dev/null) -ge $2 ]]
}

# await_more RUN N: N more numbers in the log.
await_more() {
    local goal
    goal=$(($(last_number "$1" 2>/dev/null || echo 0) + $2))
    await_until "$1" "number $goal" has_number "$1" "$goal"
}

has_no_workers() {
    [[ -z $(machine_pids "$1" '--role (observer|trainer)') ]]
}

# await_no_workers RUN N...: on these machines.
await_no_workers() {
    local n
    for n in "${@:2}"; do
        await_until "$1" "the end of machine $n's workers" has_no_workers "$n" || return 1
    done
}

are_gone() {
    local pid
    for pid in "$@"; do
        [[ ! -e /proc/$pid ]] || return 1
    done
}

# Seconds since the time $1.
seconds_since() {
    awk -v since="$1" -v now="$(date +%s%N)" 'BEGIN { printf "%.1f\n", (now - since) / 1e9 }'
}

# note WORDS...: a line at the end of the test.
note() {
    printf '%s\n' "$*" >>"$scratch/notes"
}

# Ends the job, which has no end of its own, and waits for these hosts.
job_end() {
    local n
    kill -TERM "$(machine_pids 0 'coalesced run')" || return 1
    for n in "$@"; do
        wait "${supervisor[n]}" || { echo "host $n: exit code $?"; tail -n 20 "$run".?; return 1; }
    done
}

# Whether the run has the numbers of one machine. That one may have an epoch more: it stops by itself.
as_on_one() {
    local kind=$1 alone=$2.alone lines
    run_job "$kind" "$alone" "$(last_number "$2")" "${@:3}" >"$alone.out" 2>&1 || { cat "$alone.out"; return 1; }
    lines=$(numbers "$2" | wc -l)
    diff <(numbers "$alone" | head -n "$lines") <(numbers "$2") | head -n 4
    cmp <(numbers "$alone" | head -n "$lines") <(numbers "$2")
}

# The log and its events without `timing`.
without_timing() {
    sed 's/,"timing".*//' "$1/episodes.jsonl"
}

# ---- undisturbed jobs ----

# same_log KIND N [ARGUMENT]...
same_log() {
    local kind=$1 run=$scratch/$1-$checks unit=updates n
    local alone=$run.alone
    [[ $kind != reinforce ]] || unit=episodes
    run_job "$kind" "$alone" "$2" "${@:3}" >"$alone.out" 2>&1 || { cat "$alone.out"; return 1; }
    job_start "$kind" "$run" --set "/stop={\"$unit\":$2}" "${@:3}"
    for ((n = 0; n < hosts; n++)); do
        wait "${supervisor[n]}" || { echo "host $n: exit code $?"; tail -n 20 "$run".?; return 1; }
    done
    grep -q 'host 2 (machine2) is here, from 10.78.1.3' "$run.0" && diff <(without_timing "$alone") <(without_timing "$run")
}

# ---- machines that fail ----

# Four observers on two machines; the leader has the agent alone.
readonly played=(reinforce)
readonly apart=(--set /observers/count=4 --set /hosts/observers=others)

crashes() {
    local run=$scratch/crash since
    job_start "${played[@]}" "$run" "${apart[@]}"
    await_more "$run" 20 || return 1
    since=$(date +%s%N)
    machine_crash 1
    await_words 0 "$run" 'host 1 (machine1) is lost' || return 1
    note "a machine that crashed was missed after $(seconds_since "$since") s"
    await_more "$run" 20 || return 1
    machine_start 1
    host_start 1 "${played[@]}" "$run" "${apart[@]}"
    await_words 0 "$run" 'host 1 (machine1) is back' && await_more "$run" 20 && job_end 0 1 2 &&
        as_on_one reinforce "$run" "${apart[@]}"
}

# What was cut off ends itself. Then the other machine is cut off, so that the first one gets workers again.
loses_its_cable() {
    local run=$scratch/cut since
    job_start "${played[@]}" "$run" "${apart[@]}"
    await_more "$run" 20 || return 1
    since=$(date +%s%N)
    machine_cut 1
    await_words 0 "$run" 'host 1 (machine1) is lost' || return 1
    note "a machine whose cable was pulled was missed after $(seconds_since "$since") s"
    await_no_workers "$run" 1 || return 1
    note "its workers had ended after $(seconds_since "$since") s"
    await_more "$run" 20 || return 1
    machine_join 1
    await_words 0 "$run" 'host 1 (machine1) is back' || return 1
    note "it took part again after $(seconds_since "$since") s"
    machine_cut 2
    await_words 0 "$run" 'host 2 (machine2) is lost' || return 1
    await_more "$run" 20 || return 1
    [[ $(machine_pids 1 '--role observer' | wc -l) -eq 4 ]] || { echo "machine 1 has not got all workers"; return 1; }
    machine_join 2
    await_words 0 "$run" 'host 2 (machine2) is back' && await_more "$run" 20 && job_end 0 1 2 &&
        as_on_one reinforce "$run" "${apart[@]}"
}

# The half with the leader goes on by itself; the others wait for it.
leaves_the_leader_alone() {
    local run=$scratch/leader since
    job_start "${played[@]}" "$run" "${apart[@]}"
    await_more "$run" 20 || return 1
    since=$(date +%s%N)
    machine_cut 0
    await_no_workers "$run" 1 2 || return 1
    note "the workers of machines that had lost the leader had ended after $(seconds_since "$since") s"
    await_words 0 "$run" 'host 2 (machine2) is lost' && await_more "$run" 20 || return 1
    [[ $(machine_pids 0 '--role observer' | wc -l) -eq 4 ]] || { echo "machine 0 has not got all workers"; return 1; }
    machine_join 0
    await_words 0 "$run" 'host 1 (machine1) is back' && await_words 0 "$run" 'host 2 (machine2) is back' &&
        await_more "$run" 20 && job_end 0 1 2 && as_on_one reinforce "$run" "${apart[@]}"
}

# Its supervisor and link stop, its workers do not: while the leader replaces them, they are there still.
stands_still() {
    local run=$scratch/still stopped workers
    job_start "${played[@]}" "$run" "${apart[@]}"
    await_more "$run" 20 || return 1
    mapfile -t stopped < <(machine_pids 1 'coalesced run|--role link')
    mapfile -t workers < <(machine_pids 1 '--role observer')
    kill -STOP "${stopped[@]}"
    await_words 0 "$run" 'host 1 (machine1) is lost' && await_more "$run" 20 || return 1
    kill -CONT "${stopped[@]}"
    pkill -CONT -P "${supervisor[1]}" # nsenter stops with what it has started
    await_words 0 "$run" 'host 1 (machine1) is back' &&
        await_until "$run" "the end of the workers that machine 1 had" are_gone "${workers[@]}" && await_more "$run" 20 &&
        job_end 0 1 2 && as_on_one reinforce "$run" "${apart[@]}"
}

# Host 2 comes when the job has begun, and then takes the workers of a machine that crashes.
comes_late() {
    local run=$scratch/late
    host_start 0 "${played[@]}" "$run" "${apart[@]}" --set /hosts/patience_s=2
    host_start 1 "${played[@]}" "$run" "${apart[@]}"
    await_words 0 "$run" 'host 2 of 3 has not come within 2 s' && await_more "$run" 20 || return 1
    host_start 2 "${played[@]}" "$run" "${apart[@]}"
    await_words 0 "$run" 'host 2 (machine2) is here' || return 1
    machine_crash 1
    await_words 0 "$run" 'host 1 (machine1) is lost' && await_more "$run" 20 || return 1
    [[ $(machine_pids 2 '--role observer' | wc -l) -eq 4 ]] || { echo "machine 2 has not got all workers"; return 1; }
    job_end 0 2 && as_on_one reinforce "$run" "${apart[@]}"
}

# The leader's machine crashes; it goes on from its checkpoint, and the others, which still look for it, come.
loses_the_leader() {
    local run=$scratch/resumed since
    job_start "${played[@]}" "$run" "${apart[@]}"
    await_more "$run" 20 || return 1
    since=$(date +%s%N)
    machine_crash 0
    await_no_workers "$run" 1 2 || return 1
    note "the workers of machines whose leader had crashed had ended after $(seconds_since "$since") s"
    machine_start 0
    : >"$run.0"
    host_start 0 "${played[@]}" "$run" "${apart[@]}" --resume
    await_words 0 "$run" 'going on from' && await_more "$run" 20 && job_end 0 1 2 &&
        as_on_one reinforce "$run" "${apart[@]}"
}

# A host that has lost the leader for longer than /hosts/patience_s ends, and nothing of it is left.
gives_up() {
    local run=$scratch/given-up code=0
    host_start 0 "${played[@]}" "$run" "${apart[@]}" --set /hosts/patience_s=2
    host_start 1 "${played[@]}" "$run" "${apart[@]}"
    await_more "$run" 5 || return 1
    machine_crash 0
    wait "${supervisor[1]}" || code=$?
    if [[ $code -ne 69 || -n $(machine_pids 1 coalesced) ]] ||
        ! grep 'the leader is gone: it has not answered for [0-9][0-9]* s' "$run.1"; then
        echo "exit code $code"
        cat "$run.1"
        return 1
    fi
}

# Other kinds: a trainer of a parameter server has a successor; a model over several workers goes on from a checkpoint.
loses_a_trainer() {
    local kind=$1 run=$scratch/$1-$checks
    shift
    job_start "$kind" "$run" "$@"
    await_more "$run" 5 || return 1
    machine_cut 1
    await_words 0 "$run" 'host 1 (machine1) is lost' && await_more "$run" 5 || return 1
    machine_join 1
    await_words 0 "$run" 'host 1 (machine1) is back' && await_more "$run" 5 && job_end 0 1 2 &&
        as_on_one "$kind" "$run" "$@"
}

# flood PORT: connections to the leader, a hundred at a time, of which each second one says something.
flood() {
    local fd held=() i
    for ((i = 0; ; i = (i + 1) % 100)); do
        [[ -z ${held[i]:-} ]] || eval "exec ${held[i]}>&-"
        until { exec {fd}<>"/dev/tcp/10.78.1.1/$1"; } 2>/dev/null; do sleep 0.01; done
        [[ $((i % 2)) -eq 0 ]] || { printf 'GET / HTTP/1.1\r\n\r\n' >&"$fd"; } 2>/dev/null || true
        held[i]=$fd
        [[ $((i % 10)) -ne 0 ]] || sleep 0.02
    done
}

# Machine 2 is no host of the job, and floods both sockets of the leader's machine: the link's and the agent's.
meets_strangers() {
    local run=$scratch/strangers ports port
    hosts=2
    job_start "${played[@]}" "$run" "${apart[@]}"
    await_more "$run" 20 || return 1
    mapfile -t ports < <(machine_run 0 ss --no-header --listening --tcp --numeric | awk '{ sub(".*:", "", $4); print $4 }')
    [[ ${#ports[@]} -eq 2 ]] || { echo "ports: ${ports[*]}"; return 1; }
    for port in "${ports[@]}"; do
        machine_run 2 bash -c "$(declare -f flood); flood $port" </dev/null &
        disown
    done
    await_words 0 "$run" 'link.*strangers at the link.s socket' &&
        await_words 0 "$run" 'agent 0.*strangers at this worker.s socket' || return 1
    sleep 4 # longer than a host may be silent
    await_more "$run" 20 && ! grep 'is lost' "$run.0" && job_end 0 1 && as_on_one reinforce "$run" "${apart[@]}"
}

readonly inline=(--set /transport=inline)
readonly trainers=(--set /hosts/trainers=others)

check "reinforce: the same log on three machines" on_machines 3 same_log reinforce 20 --set /observers/count=5
check "parameter-server: the same log on three machines" on_machines 3 same_log parameter-server 6 "${inline[@]}"
check "parameter-server: the same log with trainers elsewhere" on_machines 3 same_log parameter-server 6 "${inline[@]}" "${trainers[@]}"
check "model-parallel: the same log with the trainer elsewhere" on_machines 3 same_log model-parallel 10 "${trainers[@]}"
check "a machine that crashes" on_machines 3 crashes
check "a machine that loses its cable" on_machines 3 loses_its_cable
check "the leader's machine loses its cable" on_machines 3 leaves_the_leader_alone
check "a machine whose supervisor stands still" on_machines 3 stands_still
check "a machine that comes late" on_machines 3 comes_late
check "the leader's machine crashes" on_machines 3 loses_the_leader
check "a leader that does not come back" on_machines 3 gives_up
check "strangers at both sockets" on_machines 3 meets_strangers
check "parameter-server: a machine loses its cable" on_machines 3 loses_a_trainer parameter-server "${inline[@]}" "${trainers[@]}"
check "model-parallel: a machine loses its cable" on_machines 3 loses_a_trainer model-parallel "${trainers[@]}"
cat "$scratch/notes"
finish
