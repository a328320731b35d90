#!/usr/bin/env bash
# A run directory that is renamed while its job runs, with another folder put in its place: the logs and the checkpoints all
# go on in the renamed directory, the other folder stays empty, and the run is resumed under the new name. Another run may
# begin in the old place meanwhile, and ends without a word from the first.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

checkpoint='{"every": 4, "keep": 2}'

# Has the run end in order; its supervisor holds the lock until then.
stop() {
    kill -TERM "$(cat "$1/lock")" && flock -w 100 "$1/lock" true
}

# Starts the job of a kind in $scratch/KIND/run, renames the directory to moved/ and makes run/ anew.
rename_a_run() {
    local place=$scratch/$1
    mkdir "$place"
    run_job "$1" "$place/run" 1000000000 >"$place/out" 2>&1 &
    wait_for_number "$place/run" 6
    mv "$place/run" "$place/moved"
    mkdir "$place/run"
}

# It ends in order: with a checkpoint of its last update.
goes_on_in_the_renamed() {
    local place=$scratch/$1 seen
    seen=$(last_number "$place/moved")
    wait_for_number "$place/moved" $((seen + 10)) && stop "$place/moved"
    ((10#$(newest_checkpoint "$place/moved") == $(last_number "$place/moved"))) && [[ -z $(ls -A "$place/run") ]]
}

is_resumed_under_the_new_name() {
    local place=$scratch/$1 last
    last=$(whole_epochs "$place/moved")
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
    wait_for_number "$place/run" 3
    mv "$place/run" "$place/moved"
    run_job parameter-server "$place/run" 8 >"$place/out-2" 2>&1 && wait_for_number "$place/moved" $(($(last_number "$place/moved") + 3)) &&
        [[ -n $(find "$XDG_RUNTIME_DIR/coalesced" -type s) ]] && stop "$place/moved" &&
        [[ -z $(find "$XDG_RUNTIME_DIR/coalesced" -type s) ]]
}
check "another run in the old place leaves the first alone" another_run_in_the_old_place

finish
