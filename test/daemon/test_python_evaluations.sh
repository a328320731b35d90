#!/usr/bin/env bash
# Evaluations of jobs whose environments are in Python: the same numbers however environments are spread, when observers
# die while they evaluate or train, and when the run is resumed; the numbers that the episodes' seeds give; and what
# evaluations are for: the best checkpoint, and the end of the job.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/runs.bash"
# shellcheck source=test/daemon/worlds.bash
source "$here/worlds.bash"
# shellcheck source=test/daemon/python_worlds.bash
source "$here/python_worlds.bash"
modules=$(readlink -f "$here/../../worker/python")

episodes=12
rollout_rows=128 # 4 environments, 32 steps
normalizes=true
policy='{"hidden": [16]}'

# world MEMBERS: the job plays this environment by PPO; MEMBERS are the object's.
world() {
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 4},
 "environment": {"python": "$python", $1}, "policy": $policy,
 "algorithm": {"name": "ppo", "n_steps": 32, "batch_size": 64, "n_epochs": 2},
 "normalize": {"norm_obs": $normalizes, "norm_reward": true}, "seed": 7,
 "evaluation": {"every": 4, "episodes": 7, "steps": 30}, "log": {"every": 1}, "supervise": {"hang_s": 30}}
JSON
}

# seed_of N: the seed of the evaluation's episode N.
seed_of() {
    PYTHONPATH=$modules "$python" -c "import environments as o; print(o.seed_of(7, $1, 0, 0))"
}

evaluates_every_fourth() {
    jq -e -s 'map(select(.eval) | .episode) == [4, 8, 12]' "$scratch/whole/episodes.jsonl" >/dev/null
}

# Without evaluations the log is the same, but for their figures.
disturbs_nothing() {
    plays none --set /evaluation/every=null "$@" && ! grep -q '"eval"' "$scratch/none/episodes.jsonl" &&
        diff <(numbers "$scratch/whole" | sed 's/,"eval":{[^}]*}//') <(numbers "$scratch/none")
}

resumes_with_states() { # N
    resumes_after "$1" "$episodes" && ! grep "saves no states" "$scratch/parts.out"
}

# ---- the same numbers ----
spread='{"count": 2, "environments": 2, "groups": 2}'
while read -r title states members; do
    normalizes=true
    [[ $members != *Sights* ]] || normalizes=false # of bytes
    world "$members"
    check "$title" plays whole
    check "$title: an evaluation follows each fourth update" evaluates_every_fourth
    check "$title: two observers of two groups" same_numbers --set /observers="$spread"
    check "$title: four observers, unbatched" same_numbers --set /observers='{"count": 4, "environments": 1}' --set /coalesce/mode=off
    check "$title: evaluations change nothing" disturbs_nothing
    [[ $states == states ]] || continue
    check "$title: resumed after an evaluation" resumes_with_states 8
    check "$title: resumed before one" resumes_with_states 7
done <<'WORLDS'
CartPole-v1 states "gymnasium": "CartPole-v1"
Pendulum-v1 states "gymnasium": "Pendulum-v1"
Masked states "class": "worlds:Masked"
Frames states "class": "worlds:Sights", "frames": 3
Corridors - "class": "worlds:Corridors"
WORLDS
normalizes=true
vector_is_alike() {
    plays one --set /environment/class=worlds:Corridor && same whole one
}
check "Corridors: as single environments" vector_is_alike

world '"class": "worlds:Corridor"'
check "fewer episodes than observers" plays whole --set /evaluation/episodes=3
check "fewer episodes than observers: spread" same_numbers --set /evaluation/episodes=3 --set /observers='{"count": 4, "environments": 1}'
check "drawn actions" plays whole --set /evaluation/deterministic=false
check "drawn actions: spread" same_numbers --set /evaluation/deterministic=false --set /observers="$spread"
draws() {
    plays other && ! same whole other
}
check "drawn actions are others than the most probable ones" draws

# ---- the numbers themselves ----
# expects FIGURE MAP: the figure of each evaluation is the mean over the episodes of MAP, of its seed.
expects() {
    local expected
    expected=$(PYTHONPATH=$modules "$python" -c "
from environments import seed_of
seeds = [seed_of(7, i, 0, 0) for i in range(7)]
print(sum($2 for seed in seeds) / 7)")
    jq -e -s --argjson expected "$expected" \
        "map(select(.eval).eval.$1) | length == 3 and all(. - \$expected | fabs < 1e-12)" "$scratch/whole/episodes.jsonl" >/dev/null
}
world '"class": "worlds:Drawn"'
check "rewards that follow from the seeds" plays whole
check "their mean reward" expects mean_reward "(1 + seed % 7) * (seed % 11 / 4)"
check "their mean length" expects mean_ep_length "1 + seed % 7"
check "their success rate" expects success_rate "(seed % 3 == 0)"
check "episodes that are cut" plays whole --set /evaluation/steps=4
check "their mean reward" expects mean_reward "min(1 + seed % 7, 4) * (seed % 11 / 4)"
check "their mean length" expects mean_ep_length "min(1 + seed % 7, 4)"

# ---- deaths ----
marker=$scratch/marker
world "\"class\": \"worlds:Marked\", \"options\": {\"seed\": $(seed_of 5), \"marker\": \"$marker\", \"then\": \"die\"}"
touch "$marker"
check "an observer that lives" plays whole
dies() {
    rm -f "$marker"
    plays other "$@" && [[ -e $marker ]] && grep -q "takes its place" "$scratch/other.out" && same whole other
}
check "an observer that is killed while it evaluates leaves no trace" dies
check "nor does one of two" dies --set /observers="$spread"
policy='{"hidden": [16], "recurrent": "lstm", "lstm_hidden_size": 12}'
world "\"class\": \"worlds:Marked\", \"options\": {\"seed\": $(seed_of 5), \"marker\": \"$marker\", \"then\": \"die\"}"
touch "$marker"
check "a memory" plays whole
check "a memory: spread" same_numbers --set /observers="$spread"
check "a memory: an observer that is killed while it evaluates leaves no trace" dies
policy='{"hidden": [16]}'
world '"gymnasium": "CartPole-v1"'
long=(--set /observers="$spread" --set /evaluation/every=2)
disturbed_episodes=50
check "fifty" with_episodes 50 plays long "${long[@]}"
check "observers are killed at any time" kills_observers 4 50 "${long[@]}"
check "and leave no trace" same long killed
check "the agent is killed" kills_the_agent "${long[@]}"
check "and leaves no trace" same long killed

# ---- faults and orders ----
world "\"class\": \"worlds:Marked\", \"options\": {\"seed\": $(seed_of 5), \"marker\": \"$marker\", \"then\": \"raise\"}"
tells_the_fault() {
    rm -f "$marker"
    ! plays faulty --set /supervise/restart=false >"$scratch/words" 2>&1 &&
        grep -qF "worlds:Marked, evaluation: environment 5: step: ValueError: the joint 4 came off" "$scratch/words"
}
check "a fault names the evaluation's environment" tells_the_fault

world "\"class\": \"worlds:Marked\", \"options\": {\"seed\": $(seed_of 5), \"marker\": \"$marker\", \"then\": \"dawdle\"}"
# stops N: N times SIGTERM while the first evaluation is played; the job ends in good order.
stops() {
    local run=$scratch/stopped job i
    rm -rf "$marker" "$run"
    run_job reinforce "$run" 3000 --set /evaluation/steps="$2" --set /observers="$spread" >"$run.out" 2>&1 &
    job=$!
    for ((i = 0; i < 600; i++)); do
        [[ ! -e $marker ]] || break
        sleep 0.05
    done
    [[ -e $marker ]] || { echo "no evaluation began"; return 1; }
    for ((i = 0; i < $1; i++)); do
        kill -TERM "$(cat "$run/lock")"
        sleep 0.1
    done
    timeout 30 tail --pid="$job" -f /dev/null && wait "$job" && [[ $(last_number "$run") == "$3" ]]
}
check "SIGTERM ends the job behind the evaluation" stops 1 20 4
check "a second one cuts the evaluation" stops 2 100000 3

# ---- what evaluations are for ----
world '"gymnasium": "CartPole-v1"'
keeps_the_best() {
    local most
    plays best --set /checkpoint/best=true || return 1
    most=$(jq -s 'map(select(.eval).eval.mean_reward) | max' "$scratch/best/episodes.jsonl")
    jq -e --argjson most "$most" '.evaluation_reward == $most' "$scratch/best/checkpoints/best/manifest.json" >/dev/null
}
check "the best evaluation's checkpoint is kept" keeps_the_best
stop='{"steps": 1000000, "evaluation_reward": 60}'
ends_solved() {
    plays solved --set /stop="$stop" --set /evaluation/steps=1000 &&
        grep -q "^Solved! The evaluation's mean reward is now" "$scratch/solved/episodes.log" &&
        jq -e -s 'map(select(.eval).eval.mean_reward) | (.[:-1] | all(. < 60)) and .[-1] >= 60' \
            "$scratch/solved/episodes.jsonl" >/dev/null
}
check "an evaluation that is good enough ends the job" ends_solved
stays_solved() {
    local lines
    lines=$(wc -l <"$scratch/solved/episodes.log")
    "$COALESCED" run "$scratch/reinforce.json" --run-dir "$scratch/solved" --set /stop="$stop" --set /evaluation/steps=1000 \
        --resume >/dev/null 2>&1 && [[ $(wc -l <"$scratch/solved/episodes.log") -eq $lines ]]
}
check "which stays over when it is resumed" stays_solved

finish
