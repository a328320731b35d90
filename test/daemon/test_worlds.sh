#!/usr/bin/env bash
# Jobs with environments of a plug-in: every space trains, and gives the same numbers however its environments are spread,
# grouped and batched, on every instruction set, when its observers are killed, and when the run is resumed. A plug-in's
# fault ends the job with the environment's name, and ends nothing else.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/runs.bash"
# shellcheck source=test/daemon/worlds.bash
source "$here/worlds.bash"

good=$(readlink -f "$BUILD/test/preload/environment_toy.so")
broken=$(readlink -f "$BUILD/test/preload/environment_broken.so")

# world PLUGIN NAME: the job of the kind reinforce plays the plug-in's environment.
world() {
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 6},
 "environment": {"plugin": "$1", "name": "$2"}, "rollout": {"steps": 60}, "policy": {"hidden": [24]},
 "returns": {"gamma": 0.9, "normalize": true}, "log": {"every": 1}, "supervise": {"hang_s": 4}}
JSON
}

same_as_plain() {
    plays other "$@" && diff <(numbers "$scratch/plain") <(numbers "$scratch/other")
}

other_than_plain() {
    plays other "$@" && ! diff -q <(numbers "$scratch/plain") <(numbers "$scratch/other")
}

on_the_oldest_instruction_set() {
    COALESCED_ISA=baseline same_numbers "$@"
}

is_evaluated() {
    "$COALESCED" evaluate "$scratch/whole/checkpoints/$(newest_checkpoint "$scratch/whole")" "$scratch/reinforce.json" \
        --episodes 3
}

# has_metrics [NAME]...: each of the five episodes has these metrics and the toy's two, and one has ended in some of them.
has_metrics() {
    [[ $(jq -c 'select(.episode) | .metrics | keys' "$scratch/whole/episodes.jsonl") == \
        "$(printf "[\"place\",$(printf %s "$@")\"steps\"]\n%.0s" {1..5})" ]] &&
        jq -e -s 'map(.metrics.steps // 0) | add > 0' "$scratch/whole/episodes.jsonl" >"$scratch/words" &&
        [[ $(grep -c $'\tplace: .*\tsteps: ' "$scratch/whole/episodes.log") == 5 ]]
}

has_no_metrics() {
    ! numbers "$scratch/whole" | grep metrics
}

# ---- every space ----
for name in Walk-v0 Push-v0 Pair-v0 Picture-v0 Again-v0 Frail-v0 Lives-v0; do
    world "$good" $name
    check "$name trains" plays whole
    check "$name has five episodes" test "$(numbers "$scratch/whole" | wc -l)" == 5
    check "$name: two observers of two groups" same_numbers --set /observers='{"count": 2, "environments": 3, "groups": 2}'
    if [[ -z ${SAN:-} ]]; then # the same code runs in the two runs above
        check "$name: six observers, unbatched" same_numbers --set /observers='{"count": 6}' --set /coalesce/mode=off
        check "$name: the oldest instruction set" on_the_oldest_instruction_set
    fi
    check "$name: greedy play" is_evaluated
    case $name in
        Pair-v0) check "$name: metrics, and each agent's reward" has_metrics '"reward/agent_0",' '"reward/agent_1",' ;;
        Walk-v0 | Push-v0) check "$name: metrics of ended episodes" has_metrics ;;
        *) check "$name: no metrics" has_no_metrics ;;
    esac
done

# ---- stacks of frames ----
for name in Picture-v0 Pair-v0 Again-v0; do
    world "$good" $name
    check "$name: three frames train" plays whole --set /environment/frames=3
    check "$name: three frames of two observers of two groups" same_numbers --set /environment/frames=3 \
        --set /observers='{"count": 2, "environments": 3, "groups": 2}'
done
world "$good" Push-v0
plays plain >/dev/null
check "one frame is no stack" same_as_plain --set /environment/frames=1
check "two frames give other numbers" other_than_plain --set /environment/frames=2

# ---- whole episodes ----
refuses_whole_episodes() {
    ! plays whole --set /rollout/mode=episode >"$scratch/words" &&
        grep -q 'an episode of Walk-v0 has no greatest length, and /rollout/mode "episode" keeps whole ones' "$scratch/words"
}
world "$good" Push-v0
check "whole episodes, of at most 50 steps" plays whole --set /rollout/mode=episode
check "whole episodes: metrics" has_metrics
check "whole episodes of two observers" same_numbers --set /rollout/mode=episode \
    --set /observers='{"count": 2, "environments": 3, "groups": 3}'
world "$good" Walk-v0
check "whole episodes without a limit are refused by name" refuses_whole_episodes

same_after_kills() {
    kills_observers 3 100 "$@" && rm -rf "$scratch/whole" && run_job reinforce "$scratch/whole" 100 "$@" >/dev/null 2>&1 &&
        same whole killed
}
world "$good" Pair-v0
check "killed observers of a plug-in leave no trace" same_after_kills --set /observers='{"count": 2, "environments": 3, "groups": 2}'
world "$good" Wild-v0
check "what cannot be seeded goes on when its observer is killed" kills_observers 3 100 --set /observers='{"count": 2, "environments": 3}'

# ---- large observations, which are lent: 660 environments, 128 bytes each ----
world "$good" Push-v0
large='{"count": 1, "environments": 660}'
small='{"count": 66, "environments": 10}'
short=(--set /environment/frames=16 --set /rollout/steps=20)

# While the job plays 200 episodes, the agent has mapped the observer's segment.
is_lent() {
    local run=$scratch/lent job agent mapped=no
    rm -rf "$run"
    run_job reinforce "$run" 200 --set /observers="$1" "${short[@]}" >"$run.out" 2>&1 &
    job=$!
    while kill -0 "$job" 2>/dev/null && [[ $mapped == no ]]; do
        agent=$(pgrep -P "$(cat "$run/lock" 2>/dev/null || echo "$job")" -f 'agent --index 0') || continue
        if grep -q memfd:coalesced-1 "/proc/$agent/maps" 2>/dev/null; then
            mapped=yes
        elif [[ $(last_number "$run" 2>/dev/null) -ge 3 ]]; then
            break
        fi
    done
    kill "$job" 2>/dev/null || true
    wait "$job" || true
    [[ $mapped == "$2" ]] || { echo "mapped: $mapped"; tail -3 "$run.out"; return 1; }
}
check "large observations are lent" is_lent "$large" yes
check "more than 64 observers lend nothing" is_lent "$small" no
for mode in steps episode; do
    check "large observations train ($mode)" plays whole --set /observers="$large" "${short[@]}" \
        --set /rollout/mode=$mode
    check "the same in two groups ($mode)" same_numbers "${short[@]}" \
        --set /rollout/mode=$mode --set /observers='{"count": 1, "environments": 660, "groups": 2}'
    # Sixty-six processes take a sanitizer long: it sees them once.
    [[ -z ${SAN:-} || $mode == steps ]] || continue
    check "the same when they travel ($mode)" same_numbers "${short[@]}" --set /rollout/mode=$mode \
        --set /observers="$small"
done
check "killed observers that lend leave no trace" same_after_kills --set /observers='{"count": 2, "environments": 600}' \
    --set /environment/frames=16 --set /rollout/steps=8

# ---- a resumed run ----
is_resumed() {
    rm -rf "$scratch/parts" && run_job reinforce "$scratch/parts" 6 >/dev/null 2>&1 &&
        run_job reinforce "$scratch/parts" 10 --resume >/dev/null 2>&1 && run_job reinforce "$scratch/ten" 10 >/dev/null 2>&1 &&
        diff <(numbers "$scratch/ten") <(numbers "$scratch/parts")
}
world "$good" Push-v0
check "a run that is resumed has the numbers of a whole one" is_resumed

while IFS='|' read -r name phrase; do
    world "$broken" "$name"
    check "$name" fails_with "$phrase"
done <<'FAULTS'
open-fails|open-fails: open: the licence has expired
open-fails-silently|open-fails-silently: open: it gave no reason
open-without-spec|open-without-spec: open wrote no spec
open-crashes|in open of environments 0 to 5
spec-agents|spec-agents: its spec: agents is 0
observation-rank|observation-rank: its spec: observation.rank is 4
action-no-choice|action-no-choice: its spec: action.choices[0] is 0
action-infinite|action-infinite: its spec: action has the bounds
observation-nan|observation-nan: environment
reward-infinite|reward-infinite: environment
flags-unknown|flags-unknown: environment
flags-restarted|flags-restarted: environment
mask-empty|mask-empty: environment
metric-nan|metric-nan: environment
step-fails|step-fails: step: the joint 4 came off
step-fails-silently|step-fails-silently: step: it gave no reason
step-crashes|in step of environments 0 to 5
step-aborts|in step of environments 0 to 5
step-exits|exited with code 3 in step of environments 0 to 5
step-hangs|sent no heartbeat for 4 s, in step of environments 0 to 5: killed
reset-crashes|in reset of environments 0 to 5
nothing-at-all|has no environment nothing-at-all
FAULTS
world "$scratch/nowhere.so" x
check "a plug-in that is not there" fails_with "/environment/plugin: $scratch/nowhere.so: No such file or directory"
world "$0" x
check "a plug-in that is none" fails_with "cannot be loaded"
world "$good" Walk-v0
check "an option that the plug-in does not know" fails_with "Walk-v0 of {}" --set /environment/options='{"length": 4}'
check "a built-in name that is none" fails_with "there is no built-in environment CartPole-v2: expected one of CartPole-v1" \
    --set /environment='{"name": "CartPole-v2"}'

# The agent steps its own environments.
cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "algorithm": {"name": "ppo"}, "observers": {"count": 0, "environments": 2},
 "environment": {"plugin": "$broken", "name": "step-crashes"}, "supervise": {"hang_s": 4}}
JSON
faulty_stop='{"steps": 100000}'
check "an agent's environment that crashes" fails_with "in step of environments 0 to 1"
check "an agent's environment that hangs" fails_with "for 4 s, in step of environments 0 to 1: killed" \
    --set /environment/name=step-hangs
check "one of one's own" fails_with "in step of environment 0" --set /observers/environments=1

finish
