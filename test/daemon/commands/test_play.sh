#!/usr/bin/env bash
# coalesced play: the episodes are those that evaluate plays, drawn or in letters; what it cannot play or show, it names.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

run_job reinforce "$scratch/run" 6 >/dev/null 2>&1
model=$scratch/run/checkpoints/$(newest_checkpoint "$scratch/run")

play() {
    "$COALESCED" play "$model" "$@"
}

# The rewards of four episodes, least first, and what evaluate says of them.
plays_what_evaluate_plays() {
    play --episodes 4 >"$scratch/played" && [[ $(wc -l <"$scratch/played") == 4 ]] &&
        "$COALESCED" evaluate "$model" "$scratch/reinforce.json" --episodes 4 >"$scratch/evaluated" &&
        [[ $(grep -o 'Reward: [0-9.]*' "$scratch/played" | cut -d' ' -f2 | sort -n | sed -n '1p;$p' | tr '\n' ' ') == \
            "$(sed -E 's/.*Minimum: ([0-9.]*).*Maximum: ([0-9.]*).*/\1 \2/' "$scratch/evaluated") " ]]
}

# CartPole's reward is its number of steps.
rewards_are_steps() {
    ! grep -vE '^Episode [1-4]	Reward: ([0-9]+)\.00	Steps: \1$' "$scratch/played"
}

draws_actions() {
    play --episodes 4 --sample >"$scratch/drawn" && play --episodes 4 --sample | cmp - "$scratch/drawn" &&
        ! cmp -s "$scratch/played" "$scratch/drawn"
}

# A state before each step and one at the end, each with its line.
shows_every_state() {
    local steps
    steps=$(play | sed 's/.*Steps: //') && play --render text >"$scratch/text" &&
        [[ $(grep -c '	Step: ' "$scratch/text") == $((steps + 1)) ]] && grep -q '|' "$scratch/text"
}

makes_a_film() {
    play --render "$scratch/pole.gif" && play --render "$scratch/pole.png" &&
        [[ $(head -c 6 "$scratch/pole.gif") == GIF89a && $(head -c 4 "$scratch/pole.png" | tail -c 3) == PNG ]]
}

# fails CODE PHRASE ARG...
fails() {
    local expected=$1 phrase=$2 code=0
    shift 2
    "$COALESCED" play "$@" >"$scratch/failed" 2>&1 || code=$?
    [[ $code == "$expected" ]] && grep -qF -- "$phrase" "$scratch/failed" && return 0
    echo "$code: $(tail -1 "$scratch/failed")"
    return 1
}

check "the episodes are those of evaluate" plays_what_evaluate_plays
check "a line for each episode" rewards_are_steps
check "drawn actions are others, and the same each time" draws_actions
check "each state in letters" shows_every_state
check "a GIF and a PNG" makes_a_film

toy=$(readlink -f "$BUILD/test/preload/environment_toy.so")
cp "$scratch/reinforce.json" "$scratch/cartpole.json"
jq --arg toy "$toy" '.environment = {plugin: $toy, name: "Pair-v0"}' "$scratch/cartpole.json" >"$scratch/reinforce.json"
run_job reinforce "$scratch/toy" 4 >/dev/null 2>&1
check "a plug-in's environment of two agents" play --episodes 2
plugin_model=$scratch/toy/checkpoints/$(newest_checkpoint "$scratch/toy")
echo precious >"$scratch/x.gif"
check "what draws no pictures is named" fails 69 "Pair-v0 draws no pictures" "$plugin_model" --render "$scratch/x.gif"
check "and leaves an earlier film as it was" test "$(cat "$scratch"/x.gif*)" = precious

# Tiny-v0 fails a step where denormal numbers are kept.
denormals_are_flushed() {
    local run=$scratch/tiny
    jq '.environment.name = "Tiny-v0"' "$scratch/reinforce.json" >"$scratch/tiny.json" &&
        cp "$scratch/tiny.json" "$scratch/reinforce.json" && run_job reinforce "$run" 4 >/dev/null &&
        "$COALESCED" evaluate "$run/checkpoints/$(newest_checkpoint "$run")" "$scratch/reinforce.json" --episodes 2 &&
        "$COALESCED" play "$run/checkpoints/$(newest_checkpoint "$run")"
}
check "denormals are flushed in run, evaluate and play" denormals_are_flushed
run_job model-parallel "$scratch/words" 4 >/dev/null 2>&1
check "a checkpoint of another kind" fails 78 'expected a "reinforce", whose policy plays' \
    "$scratch/words/checkpoints/$(newest_checkpoint "$scratch/words")"
check "a checkpoint that is not there" fails 66 "No such file or directory" "$scratch/nowhere"
check "a film of another kind" fails 64 "--render: expected text, or a path that ends in .gif or .png" "$model" --render x.jpg
finish
