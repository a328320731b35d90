#!/usr/bin/env bash
# A run directory that is renamed while its job runs, with another folder put in its place: the logs and the checkpoints all
# go on in the renamed directory, the other folder stays empty, and the run is resumed under the new name. Another run may
# begin in the old place meanwhile, and ends without a word from the first.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

export XDG_RUNTIME_DIR=$scratch
cat >"$scratch/parameter-server.json" <<'JSON'
{"kind": "parameter-server", "device": "cpu", "model": {"name": "resnet18", "classes": 10, "width": 8},
 "trainers": {"count": 2, "batch": 4, "threads": 1}, "data": {"size": 16},
 "optimizer": {"lr": 0.01, "momentum": 0.9}, "log": {"every": 1}, "server": {"count": 2}}
JSON
cat >"$scratch/model-parallel.json" <<'JSON'
{"kind": "model-parallel", "device": "cpu", "model": {"name": "rnn", "tokens": 10, "embedding": 2, "hidden": 3},
 "trainers": {"count": 1, "batch": 3, "threads": 1}, "data": {"kind": "synthetic", "steps": 5, "updates": 5},
 "optimizer": {"name": "sgd", "lr": 0.05}, "log": {"every": 1}}
JSON

cat >"$scratch/reinforce.json" <<'JSON'
{"kind": "reinforce", "device": "cpu", "observers": {"count": 2}, "rollout": {"steps": 20}, "log": {"every": 1}}
JSON

# run_job KIND RUN UPDATES-OR-EPISODES [ARGUMENT]...
run_job() {
    local unit=updates
    [[ $1 != reinforce ]] || unit=episodes
    "$COALESCED" run "$scratch/$1.json" --run-dir "$2" --set "/stop={\"$unit\":$3}" \
        --set '/checkpoint={"every":4,"keep":2}' "${@:4}" </dev/null
}

wait_for_update() {
    until grep -Eaq "\"(update|episode)\":$2," "$1/episodes.jsonl" 2>/dev/null; do sleep 0.02; done
}

last_update() {
    grep -Eo '^[{]"(update|episode)":[0-9]+' "$1/episodes.jsonl" | tail -1 | grep -o '[0-9]*'
}

# Has the run end in order; its supervisor holds the lock until then.
stop() {
    kill -TERM "$(cat "$1/lock")" && flock -w 100 "$1/lock" true
}

newest_checkpoint() {
    find "$1/checkpoints" -maxdepth 1 -regex '.*/[0-9]+' -printf '%f\n' | sort | tail -1
}

numbers() {
    grep -v '^{"event"' "$1/episodes.jsonl" | sed 's/,"timing".*//'
}

# Starts the job of a kind in $scratch/KIND/run, renames the directory to moved/ and makes run/ anew.
rename_a_run() {
    local place=$scratch/$1
    mkdir "$place"
    run_job "$1" "$place/run" 1000000000 >"$place/out" 2>&1 &
    wait_for_update "$place/run" 6
    mv "$place/run" "$place/moved"
    mkdir "$place/run"
}

# It ends in order: with a checkpoint of its last update.
goes_on_in_the_renamed() {
    local place=$scratch/$1 seen
    seen=$(last_update "$place/moved")
    wait_for_update "$place/moved" $((seen + 10)) && stop "$place/moved"
    ((10#$(newest_checkpoint "$place/moved") == $(last_update "$place/moved"))) && [[ -z $(ls -A "$place/run") ]]
}

is_resumed_under_the_new_name() {
    local place=$scratch/$1 last
    last=$(($(last_update "$place/moved") / 5 * 5 + 10))
    run_job "$1" "$place/moved" "$last" --resume && run_job "$1" "$place/whole" "$last" &&
        diff <(numbers "$place/moved" | grep -v '^{"epoch"') <(numbers "$place/whole" | grep -v '^{"epoch"') &&
        cmp "$place/moved/checkpoints/$(newest_checkpoint "$place/moved")/model.safetensors" \
            "$place/whole/checkpoints/$(newest_checkpoint "$place/whole")/model.safetensors"
}

for kind in reinforce parameter-server model-parallel; do
    rename_a_run "$kind"
    check "$kind: everything goes to the renamed directory" goes_on_in_the_renamed "$kind"
    check "$kind: the run is resumed under the new name" is_resumed_under_the_new_name "$kind"
done

# The sockets belong to the directory and not to its path.
another_run_in_the_old_place() {
    local place=$scratch/two
    mkdir "$place"
    run_job parameter-server "$place/run" 1000000000 >"$place/out" 2>&1 &
    wait_for_update "$place/run" 3
    mv "$place/run" "$place/moved"
    run_job parameter-server "$place/run" 8 >"$place/out-2" 2>&1 && wait_for_update "$place/moved" $(($(last_update "$place/moved") + 3)) &&
        [[ -n $(find "$XDG_RUNTIME_DIR/coalesced" -type s) ]] && stop "$place/moved" &&
        [[ -z $(find "$XDG_RUNTIME_DIR/coalesced" -type s) ]]
}
check "another run in the old place leaves the first alone" another_run_in_the_old_place

finish
