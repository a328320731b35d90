#!/usr/bin/env bash
# Jobs whose episodes go on where the one before has left the environments (/rollout/begin "continue"): rewards are those
# of the environments' own episodes, and the numbers are the same however environments are spread, when observers are
# killed, when all workers start again, and when the run is resumed.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/runs.bash"

toy=$(readlink -f "$BUILD/test/preload/environment_toy.so")
broken=$(readlink -f "$BUILD/test/preload/environment_broken.so")

# world ENVIRONMENT: the job of the kind reinforce plays it; ENVIRONMENT is the job's object.
world() {
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 6}, "environment": $1,
 "rollout": {"steps": 32, "begin": "continue"}, "policy": {"hidden": [16]}, "log": {"every": 1}}
JSON
}

# plays NAME N ARGUMENT...: N episodes in the run directory $scratch/NAME.
plays() {
    local run=$scratch/$1
    rm -rf "$run"
    run_job reinforce "$run" "$2" "${@:3}" >"$run.out" 2>&1 || { cat "$run.out"; return 1; }
}

# same RUN RUN: the first lines in which their logs differ.
same() {
    local lines
    lines=$(diff <(numbers "$scratch/$1") <(numbers "$scratch/$2")) || { head -4 <<<"$lines"; return 1; }
}

same_numbers() {
    plays other 20 "$@" && same whole other
}

# ---- rewards: an episode of MountainCar-v0 takes 200 steps here, each of reward -1, so that it ends in rollout 7 ----
objects() {
    numbers "$scratch/whole" | sed 's/$/}/'
}
rewards_are() {
    diff <(objects | jq -c '.reward') <(printf '%s\n' "$@")
}
world '{"name": "MountainCar-v0"}'
check "episodes that span rollouts" plays whole 14
check "their rewards" rewards_are -32 -64 -96 -128 -160 -192 -200 -200 -200 -200 -200 -200 -200 -200
running_is() {
    objects | jq -e -s '[.[5].running_reward, .[6].running_reward, .[11].running_reward] ==
        [0, -100, -100]' >/dev/null
}
check "the running reward follows finished episodes alone" running_is
check "without it each episode begins anew" plays whole 3 --set /rollout/begin=reset
check "their rewards" rewards_are -32 -32 -32

# ---- the same numbers ----
# Kills observer 1 three times while the job plays 100 episodes.
kills_observers() {
    local run=$scratch/killed job seen
    rm -rf "$run"
    run_job reinforce "$run" 100 "$@" >"$run.out" 2>&1 &
    job=$!
    until [[ $(last_number "$run" 2>/dev/null) -ge 3 ]] || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done
    for _ in 1 2 3; do
        pkill -9 -P "$(cat "$run/lock")" -f 'observer --index 1' || true
        seen=$(last_number "$run")
        while kill -0 "$job" 2>/dev/null && (($(last_number "$run") < seen + 3)); do sleep 0.02; done
    done
    wait "$job" || { cat "$run.out"; return 1; }
    grep -q "takes its place" "$run.out" || { echo "nobody was killed"; cat "$run.out"; return 1; }
}

# Kills the agent once while the job plays 100 episodes: all workers start again from a checkpoint.
kills_the_agent() {
    local run=$scratch/killed job
    rm -rf "$run"
    run_job reinforce "$run" 100 "$@" >"$run.out" 2>&1 &
    job=$!
    until [[ $(last_number "$run" 2>/dev/null) -ge 11 ]] || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done
    pkill -9 -P "$(cat "$run/lock")" -f 'agent --index 0' || true
    wait "$job" || { cat "$run.out"; return 1; }
    grep -q "going on from .*/checkpoints/" "$run.out" || { echo "nobody was killed"; cat "$run.out"; return 1; }
}

is_resumed() {
    rm -rf "$scratch/parts" && run_job reinforce "$scratch/parts" 9 >/dev/null 2>&1 &&
        run_job reinforce "$scratch/parts" 20 --resume >"$scratch/parts.out" 2>&1 &&
        same whole parts
}

begins_anew() {
    grep -q "saves no states, by which they could go on" "$1"
}

spread='{"count": 2, "environments": 3, "groups": 2}'
while read -r title deaths environment; do
    world "$environment"
    check "$title" plays whole 20
    check "$title: two observers of two groups" same_numbers --set /observers="$spread"
    check "$title: six observers, unbatched" same_numbers --set /observers='{"count": 6}' --set /coalesce/mode=off
    check "$title: resumed" is_resumed
    [[ $deaths == with-deaths ]] || continue
    check "$title: a hundred" plays long 100 --set /observers="$spread"
    check "$title: observers are killed" kills_observers --set /observers="$spread"
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
check "without save: plays" plays whole 20
check "without save: two observers of two groups" same_numbers --set /observers="$spread"
check "without save: goes on when its observer is killed" kills_observers --set /observers="$spread"
check "without save: says that it begins anew" begins_anew "$scratch/killed.out"
resumes_anew() {
    ! is_resumed >/dev/null && begins_anew "$scratch/parts.out"
}
check "without save: a resumed run says so" resumes_anew
world "{\"plugin\": \"$toy\", \"name\": \"Wild-v0\"}"
check "without seeds: goes on when its observer is killed" kills_observers --set /observers="$spread"

# ---- faults ----
refuses_episodes() {
    ! plays whole 3 --set /rollout/mode=episode >"$scratch/words" && grep -q '/rollout/begin' "$scratch/words"
}
check "whole episodes always begin anew" refuses_episodes

# A checkpoint's states are checked like the rest of it.
world '{"name": "CartPole-v1"}'
checkpoint='{"every": 2, "keep": 1}'
refuses_damage() {
    plays whole 4 && printf x >>"$(echo "$scratch"/whole/checkpoints/0*/environments.bin)" || return 1
    run_job reinforce "$scratch/whole" 8 --resume >"$scratch/words" 2>&1
    grep -q 'environments.bin.*damaged\|is damaged and skipped: .*environments.bin' "$scratch/words"
}
check "a damaged file of states is told and skipped" refuses_damage

finish
