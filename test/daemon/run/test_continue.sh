#!/usr/bin/env bash
# Jobs whose episodes go on where the one before has left the environments (/rollout/begin "continue"): rewards are those
# of the environments' own episodes, and the numbers are the same however environments are spread, when observers are
# killed, when all workers start again, and when the run is resumed.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"
# shellcheck source=test/daemon/worlds.bash
source "$here/../worlds.bash"

episodes=20
toy=$(readlink -f "$BUILD/test/preload/environment_toy.so")
broken=$(readlink -f "$BUILD/test/preload/environment_broken.so")

# world ENVIRONMENT: the job of the kind reinforce plays it; ENVIRONMENT is the job's object.
world() {
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 6}, "environment": $1,
 "rollout": {"steps": 32, "begin": "continue"}, "policy": {"hidden": [16]}, "log": {"every": 1}}
JSON
}

# ---- rewards: an episode of MountainCar-v0 takes 200 steps here, each of reward -1, so that it ends in rollout 7 ----
objects() {
    numbers "$scratch/whole" | sed 's/$/}/'
}
rewards_are() {
    diff <(objects | jq -c '.reward') <(printf '%s\n' "$@")
}
world '{"name": "MountainCar-v0"}'
check "episodes that span rollouts" with_episodes 14 plays whole
check "their rewards" rewards_are -32 -64 -96 -128 -160 -192 -200 -200 -200 -200 -200 -200 -200 -200
running_is() {
    objects | jq -e -s '[.[5].running_reward, .[6].running_reward, .[11].running_reward] ==
        [0, -100, -100]' >/dev/null
}
check "the running reward follows finished episodes alone" running_is
check "without it each episode begins anew" with_episodes 3 plays whole --set /rollout/begin=reset
check "their rewards" rewards_are -32 -32 -32

begins_anew() {
    grep -q "saves no states (functions save and load)" "$1"
}

# ---- the same numbers ----
spread='{"count": 2, "environments": 3, "groups": 2}'
long=$([[ -n ${SAN:-} ]] && echo 50 || echo 100)
disturbed_episodes=$long
while read -r title deaths environment; do
    # One code steps all built-in environments: a sanitizer sees one of them, and those of the plug-in.
    [[ -z ${SAN:-} || $title == CartPole-v1 || $environment == *plugin* ]] || continue
    world "$environment"
    check "$title" plays whole
    check "$title: two observers of two groups" same_numbers --set /observers="$spread"
    check "$title: six observers, unbatched" same_numbers --set /observers='{"count": 6}' --set /coalesce/mode=off
    check "$title: resumed" is_resumed
    [[ $deaths == with-deaths ]] || continue
    check "$title: undisturbed" with_episodes "$long" plays long --set /observers="$spread"
    check "$title: observers are killed" kills_observers 3 "$long" --set /observers="$spread"
    check "$title: and leave no trace" same long killed
done <<WORLDS
CartPole-v1 with-deaths {"name":"CartPole-v1"}
Acrobot-v1 - {"name":"Acrobot-v1"}
MountainCar-v0 - {"name":"MountainCar-v0"}
MountainCarContinuous-v0 - {"name":"MountainCarContinuous-v0"}
Pendulum-v1 - {"name":"Pendulum-v1"}
Frail-v0 - {"plugin":"$toy","name":"Frail-v0"}
Again-v0 with-deaths {"plugin":"$toy","name":"Again-v0"}
Pair-v0 with-deaths {"plugin":"$toy","name":"Pair-v0"}
WORLDS
check "the agent is killed" kills_the_agent --set /observers="$spread"
check "and leaves no trace" same long killed

# ---- what cannot be saved or seeded ----
world "{\"plugin\": \"$broken\", \"name\": \"save-empty\"}"
check "without save: plays" plays whole
check "without save: two observers of two groups" same_numbers --set /observers="$spread"
check "without save: goes on when its observer is killed" kills_observers 3 "$long" --set /observers="$spread"
check "without save: says that it begins anew" begins_anew "$scratch/killed.out"
resumes_anew() {
    ! is_resumed >/dev/null && begins_anew "$scratch/parts.out" && [[ $(numbers "$scratch/parts" | wc -l) == 20 ]]
}
check "without save: a resumed run says so, and goes on" resumes_anew
world "{\"plugin\": \"$toy\", \"name\": \"Wild-v0\"}"
check "without seeds: goes on when its observer is killed" kills_observers 3 "$long" --set /observers="$spread"

# ---- faults ----
refuses_episodes() {
    ! with_episodes 3 plays whole --set /rollout/mode=episode >"$scratch/words" && grep -q '/rollout/begin' "$scratch/words"
}
check "whole episodes always begin anew" refuses_episodes

# A checkpoint's states are checked like the rest of it.
world '{"name": "CartPole-v1"}'
checkpoint='{"every": 2, "keep": 1}'
refuses_damage() {
    with_episodes 4 plays whole && printf x >>"$(echo "$scratch"/whole/checkpoints/0*/environments.bin)" || return 1
    run_job reinforce "$scratch/whole" 8 --resume >"$scratch/words" 2>&1
    grep -q ' is skipped: .*environments.bin' "$scratch/words"
}
check "a damaged file of states is told and skipped" refuses_damage

finish
