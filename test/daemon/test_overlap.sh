#!/usr/bin/env bash
# Jobs of PPO and A2C that play the next rollout while the policy learns (/algorithm/overlap): the same numbers however
# environments are spread, whoever is faster or killed, and in a run that was stopped or killed and goes on; and acting is
# exactly one update behind.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/runs.bash"
# shellcheck source=test/daemon/worlds.bash
source "$here/worlds.bash"

episodes=20
toy=$(readlink -f "$BUILD/test/preload/environment_toy.so")
disturbed_episodes=$([[ -n ${SAN:-} ]] && echo 60 || echo 150)
spread='{"count": 2, "environments": 3, "groups": 2}'

# world ENVIRONMENT ALGORITHM POLICY: objects of the job.
world() {
    local normalizes=true
    [[ $3 != *cnn* ]] || normalizes=false
    rollout_rows=192
    [[ $1 != *Pair-v0* ]] || rollout_rows=384 # of two agents each
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 6}, "environment": $1,
 "algorithm": $2, "normalize": {"norm_obs": $normalizes, "norm_reward": true}, "policy": $3,
 "evaluation": {"every": 5, "episodes": 3, "steps": 600}, "log": {"every": 1}}
JSON
}

# goes_on SIGNAL [ARGUMENT]...: a run that is ended by the signal, and resumed, has the numbers of the run `long`; so has
# its policy.
goes_on() {
    local run=$scratch/parts job
    rm -rf "$run"
    run_job reinforce "$run" "$disturbed_episodes" "${@:2}" >"$run.out" 2>&1 &
    job=$!
    wait_for_some "$run" 11 "$job"
    kill "-$1" "$(cat "$run/lock")" || true
    wait "$job" || true
    [[ $(last_number "$run") -lt $disturbed_episodes ]] || { echo "nothing was left to do"; return 1; }
    for _ in $(seq 100); do # the workers of a killed supervisor end by themselves
        run_job reinforce "$run" "$disturbed_episodes" --resume "${@:2}" >"$run.out" 2>&1 && break
        grep -q 'is in use\|another' "$run.out" || break
        sleep 0.1
    done
    same long parts && same_policy long parts
}
same_policy() {
    local file
    for file in model.safetensors optimizer.safetensors; do
        cmp "$scratch/$1/checkpoints/$(newest_checkpoint "$scratch/$1")/$file" \
            "$scratch/$2/checkpoints/$(newest_checkpoint "$scratch/$2")/$file" || return 1
    done
}

# ---- the same numbers ----
ppo='"name": "ppo", "n_steps": 32, "batch_size": 64, "n_epochs": 2, "clip_range_vf": 0.5, "overlap": 1'
a2c='"name": "a2c", "n_steps": 32, "gae_lambda": 0.9, "overlap": 1'
while IFS='|' read -r title deaths environment algorithm policy; do
    # Under a sanitizer one of each kind of policy.
    [[ -z ${SAN:-} || $title == ppo || $title == "a memory" || $title == images ]] || continue
    world "$environment" "{$algorithm}" "$policy"
    check "$title" plays whole
    check "$title: two observers of two groups" same_numbers --set /observers="$spread"
    check "$title: six observers, unbatched" same_numbers --set /observers='{"count": 6}' --set /coalesce/mode=off
    check "$title: in the agent's process, by one thread" same_numbers --set /observers/count=0 --set /policy/threads=1
    [[ $deaths == deaths && (-z ${SAN:-} || $title == ppo) ]] || continue
    check "$title: undisturbed" with_episodes "$disturbed_episodes" plays long --set /observers="$spread" --set /checkpoint/every=7
    check "$title: observers are killed" kills_observers 3 "$disturbed_episodes" --set /observers="$spread"
    check "$title: and leave no trace" same long killed
    check "$title: the agent is killed" kills_the_agent --set /observers="$spread" --set /checkpoint/every=7
    check "$title: and leaves no trace" same long killed
    check "$title: stopped, and resumed" goes_on TERM --set /observers="$spread" --set /checkpoint/every=7
    check "$title: killed, and resumed" goes_on KILL --set /observers="$spread" --set /checkpoint/every=7
    check "$title: in the agent's process, stopped, and resumed" \
        goes_on TERM --set /observers='{"count": 0, "environments": 6}' --set /checkpoint/every=7
done <<WORLDS
ppo|deaths|{"name":"CartPole-v1"}|$ppo|{"hidden": [16, 16]}
two agents|-|{"plugin":"$toy","name":"Pair-v0"}|$ppo|{"hidden": [16]}
truncated episodes|-|{"name":"Pendulum-v1"}|$ppo, "use_sde": true, "sde_sample_freq": 5|{"hidden": [16]}
a memory|deaths|{"name":"CartPoleNoVel-v1"}|$ppo|{"hidden": [16], "recurrent": "lstm", "lstm_hidden_size": 12}
a2c|-|{"name":"CartPole-v1"}|$a2c|{"hidden": [16]}
failures|-|{"plugin":"$toy","name":"Frail-v0"}|$ppo|{"hidden": [16]}
images|-|{"plugin":"$toy","name":"Middle-v0"}|$ppo|{"network": "cnn", "threads": 1}
WORLDS

# ---- exactly one update behind ----
world '{"name":"CartPole-v1"}' '{"name": "ppo", "n_steps": 32, "batch_size": 64, "n_epochs": 20, "learning_rate": 0.05}' \
    '{"hidden": [16]}'
episodes=6
learn=(--set '/normalize={"norm_obs": false, "norm_reward": false}' --set /evaluation/every=null)
# A step of almost no length leaves the parameters as they began.
check "updates in turn" plays turns "${learn[@]}"
check "overlapping updates" plays overlapping "${learn[@]}" --set /algorithm/overlap=1
check "overlapping, without learning" plays still "${learn[@]}" --set /algorithm/overlap=1 --set /algorithm/learning_rate=1e-30
# field NAME FIELD: of each episode of the run, as a list.
field() {
    jq -sc "map(select(.episode) | .$2)" "$scratch/$1/episodes.jsonl"
}
# rewards NAME EPISODE: what the rollout of this episode has earned.
rewards() {
    jq -c "select(.episode == $2) | [.reward, .ep_rew_mean, .ep_len_mean]" "$scratch/$1/episodes.jsonl"
}
one_behind() {
    [[ $(rewards overlapping 1) == "$(rewards still 1)" && $(rewards overlapping 2) == "$(rewards still 2)" ]] &&
        [[ $(rewards overlapping 3) != "$(rewards still 3)" && $(rewards turns 2) != "$(rewards still 2)" ]]
}
check "the second rollout is played by the first parameters, and the third one is not" one_behind
first() {
    numbers "$scratch/$1" | head -1
}
same_begin() {
    [[ $(first turns) == "$(first overlapping)" ]]
}
check "the first update is that of updates in turn" same_begin
ratio_moves() { # without overlap the first epoch's ratios are 1
    local one=(--set /algorithm/n_epochs=1 --set /algorithm/batch_size=192)
    plays ratios "${learn[@]}" "${one[@]}" && field ratios approx_kl | jq -e 'all(. == 0)' &&
        plays ratios "${learn[@]}" "${one[@]}" --set /algorithm/overlap=1 &&
        field ratios approx_kl | jq -e '.[0] == 0 and (.[1:] | all(. > 0))'
}
check "the ratio is to the parameters that acted" ratio_moves

finish
