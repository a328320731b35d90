#!/usr/bin/env bash
# Environments that cannot go on where their process died: a plug-in without save and load, and a class of Python that
# draws from a generator without a seed, and does not say so. Observers are killed, and the run is resumed: one warning
# says what is lost, the job goes on to its end, and no episode is missing or incomplete.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"
# shellcheck source=test/daemon/worlds.bash
source "$here/../worlds.bash"

unset MAKEFLAGS MAKELEVEL
COALESCED=$(readlink -f "$COALESCED")
python=$(readlink -m "$here/../../../build")/gymnasium-venv/bin/python
spread='{"count": 2, "environments": 3, "groups": 2}'
observers=$spread
keeps='after a death or a resume it begins new episodes'

# world ENVIRONMENT LEARNING: the job of the kind reinforce.
world() {
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": $observers, "environment": $1, $2, "policy": {"hidden": [16]},
 "log": {"every": 1}}
JSON
}
declare -A learning=(
    [REINFORCE]='"rollout": {"steps": 40}'
    [REINFORCE that goes on]='"rollout": {"steps": 40, "begin": "continue"}'
    [whole episodes]='"rollout": {"mode": "episode"}'
    [PPO]='"algorithm": {"name": "ppo", "n_steps": 40, "batch_size": 60, "n_epochs": 2}'
)
rows_are_known() {
    rollout_rows=0
    [[ $1 != PPO ]] || rollout_rows=240
}

# says RUN N PHRASE: in N of its lines.
says() {
    local found
    found=$(grep -cF "$3" "$scratch/$1.out") || true
    [[ $found == "$2" ]] || { echo "$found lines have: $3"; grep coalesced "$scratch/$1.out"; return 1; }
}

# is_whole RUN N [ROWS]: the log has the episodes 1 to N, each once, and each of ROWS steps.
is_whole() {
    cmp <(numbers "$scratch/$1" | grep -o '^{"episode":[0-9]*' | grep -o '[0-9]*$') <(seq "$2") &&
        { [[ -z ${3:-} ]] || [[ $(numbers "$scratch/$1" | grep -c "\"env_steps\":$3\b") == "$2" ]]; }
}

# resumes N: the run `killed` goes on up to episode N.
resumes() {
    run_job reinforce "$scratch/killed" "$1" --resume >"$scratch/killed.out" 2>&1
}

# ---- the template's plug-in, and the same without save and load ----
cd "$scratch"
builds() {
    "$here/../../../scripts/new-environment" maze && make -C maze && mkdir bare && cp maze/{environment.h,Makefile} bare &&
        sed 's/= corridor_save/= NULL/; s/= corridor_load/= NULL/; s/static .* corridor_\(save\|load\)/__attribute__((unused)) &/' \
            maze/maze.c >bare/maze.c && make -C bare
}
check "the template builds, with and without save" builds
tries() {
    "$COALESCED" try bare/libmaze.so >bare.out && says bare 1 "maze saves no states (functions save and load): $keeps" &&
        "$COALESCED" try maze/libmaze.so >maze.out && says maze 0 "$keeps" && says maze 1 "a saved state continues"
}
check "try says what is lost without save" tries
for how in "REINFORCE that goes on" PPO; do
    rows_are_known "$how"
    world "{\"plugin\": \"$scratch/bare/libmaze.so\", \"name\": \"maze\"}" "${learning[$how]}"
    check "without save, $how: goes on when observers are killed" kills_observers 2 100
    check "without save, $how: says it once" says killed 1 "maze saves no states (functions save and load): $keeps"
    check "without save, $how: whole episodes" is_whole killed 100 240
    check "without save, $how: resumes" resumes 110
    check "without save, $how: says it again, once" says killed 1 "maze saves no states"
    check "without save, $how: the log goes on" is_whole killed 110 240
    world "{\"plugin\": \"$scratch/maze/libmaze.so\", \"name\": \"maze\"}" "${learning[$how]}"
    check "with save, $how: goes on when observers are killed" kills_observers 2 100
    check "with save, $how: nothing is to be said" says killed 0 "$keeps"
    check "with save, $how: an undisturbed run" with_episodes 100 plays whole
    check "with save, $how: no trace is left" same whole killed
done

# ---- in the agent's process: an error and a crash of the environment are deaths of the agent ----
frail='    static int calls;\
    calls++;\
    if (calls == 600 \&\& remove("fail") == 0) {\
        snprintf(error, ENVIRONMENT_ERROR_BYTES, "the joint came off");\
        return 1;\
    }\
    if (calls == 900 \&\& remove("crash") == 0)\
        abort();'
builds_frail() {
    cp -r maze frail && sed "s/^    const int32_t \*action = .*/&\n$frail/" maze/maze.c >frail/maze.c && make -C frail
}
goes_on_twice() {
    plays whole && touch fail crash && plays killed && [[ ! -e fail && ! -e crash ]]
}
check "a plug-in that fails, and crashes" builds_frail
rows_are_known PPO
observers='{"count": 0, "environments": 6}'
world "{\"plugin\": \"$scratch/frail/libmaze.so\", \"name\": \"maze\"}" "${learning[PPO]}"
check "in the agent's process: goes on after an error and a crash" with_episodes 60 goes_on_twice
check "in the agent's process: the error is named" says killed 1 "maze: step: the joint came off; all workers start again"
check "in the agent's process: no trace is left" same whole killed
bare_frail() {
    cp -r frail frail-bare && sed -i 's/= corridor_save/= NULL/; s/= corridor_load/= NULL/; s/static .* corridor_\(save\|load\)/__attribute__((unused)) &/' \
        frail-bare/maze.c && make -C frail-bare
}
check "the same without save" bare_frail
world "{\"plugin\": \"$scratch/frail-bare/libmaze.so\", \"name\": \"maze\"}" "${learning[PPO]}"
fails_and_goes_on() {
    touch fail crash && plays killed && [[ ! -e fail && ! -e crash ]]
}
check "without save, in the agent's process: goes on after an error and a crash" with_episodes 60 fails_and_goes_on
check "without save, in the agent's process: the log goes on" is_whole killed 60 240
observers=$spread

# ---- a class that draws its first states from a generator without a seed, and kills its process twice ----
dies_twice() {
    rm -rf "$scratch/killed" && mkdir -p "$DICE" && touch "$DICE"/{1,2} &&
        run_job reinforce "$scratch/killed" 20 >"$scratch/killed.out" 2>&1 && [[ -z $(ls "$DICE") ]]
}
if [[ -x $python ]]; then
    cd "$here/../worlds"
    export PYTHONDONTWRITEBYTECODE=1 DICE=$scratch/dice
    for how in "${!learning[@]}"; do
        rows_are_known "$how"
        rows=240
        [[ $how != "whole episodes" ]] || rows=180
        world "{\"python\": \"$python\", \"class\": \"worlds:Dice\"}" "${learning[$how]}"
        check "without seeds, $how: goes on when observers die" dies_twice
        check "without seeds, $how: two have died" says killed 2 "was killed by signal 9"
        check "without seeds, $how: says it once" says killed 1 "takes another course"
        check "without seeds, $how: whole episodes" is_whole killed 20 $rows
        check "without seeds, $how: resumes" resumes 25
        [[ $how != PPO ]] || check "without seeds, $how: says it again" says killed 1 "takes another course up to its saved state"
        check "without seeds, $how: the log goes on" is_whole killed 25 $rows
    done
else
    echo "$(basename "$0"): a class of Python is not tried: Gymnasium is not installed (scripts/deps gymnasium)"
fi

finish
