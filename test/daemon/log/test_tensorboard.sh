#!/usr/bin/env bash
# A run's event files, read by TensorBoard's own loader: tags, steps and values are those of episodes.jsonl, for each kind
# of job, also when the run was resumed or its agent was killed.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"
# shellcheck source=test/daemon/worlds.bash
source "$here/../worlds.bash"

python=$here/../../../build/tensorboard-venv/bin/python
[[ -x $python ]] || skip "TensorBoard is not installed (scripts/deps tensorboard)"
export PYTHONDONTWRITEBYTECODE=1
episodes=12
on=(--set '/log={"tensorboard": true}')

# reads RUN: its events are its log's.
reads() {
    "$python" "$here/tensorboard_reader.py" "$scratch/$1" 2>"$scratch/warnings" || {
        cat "$scratch/warnings"
        return 1
    }
}

# trains KIND RUN N [ARGUMENT]...
trains() {
    run_job "$1" "$scratch/$2" "$3" "${on[@]}" "${@:4}" >"$scratch/$2.out" 2>&1 || {
        cat "$scratch/$2.out"
        return 1
    }
}

files_are() {
    [[ $(find "$scratch/$1/tensorboard" -name 'events.out.tfevents.*' | wc -l) -eq $2 ]]
}

for kind in reinforce parameter-server model-parallel; do
    check "$kind trains" trains "$kind" "$kind" 6
    check "$kind: TensorBoard reads its log's figures" reads "$kind"
    check "$kind goes on" trains "$kind" "$kind" 12 --resume
    check "$kind: and no update is there twice" reads "$kind"
    check "$kind: each start has its own file" files_are "$kind" 2
done
check "a new run in the same directory" trains reinforce reinforce 3
check "begins with no events but its own" reads reinforce
check "the older ones were moved with their log" test -d "$scratch/reinforce/previous-1/tensorboard"

check "off" run_job reinforce "$scratch/off" 3
check "makes no folder" test ! -e "$scratch/off/tensorboard"

# The key is turned on in the job file of a running job.
obeys_sighup() {
    local run=$scratch/live tries=0
    run_job reinforce "$run" 1000000 >"$run.out" 2>&1 &
    wait_for_number "$run" 3
    [[ ! -e $run/tensorboard ]] || return 1
    sed -i 's/"log": {"every": 1}/"log": {"tensorboard": true}/' "$scratch/reinforce.json"
    kill -HUP "$(<"$run/lock")"
    until files_are live 1 2>/dev/null || ((++tries == 500)); do sleep 0.02; done
    kill -TERM "$(<"$run/lock")"
    wait && files_are live 1
}
check "SIGHUP turns it on" obeys_sighup

rollout_rows=192
for algorithm in '{"name": "ppo", "n_steps": 32, "batch_size": 50, "n_epochs": 2}' '{"name": "a2c", "n_steps": 32}'; do
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 2, "environments": 3},
 "environment": {"name": "MountainCarContinuous-v0"}, "algorithm": $algorithm,
 "evaluation": {"every": 5, "episodes": 3, "steps": 600}}
JSON
    check "$algorithm" trains reinforce ppo 12
    check "$algorithm: TensorBoard reads its log's figures" reads ppo
done
check "the agent is killed" kills_the_agent "${on[@]}"
check "and no update is there twice" reads killed

finish
