#!/usr/bin/env bash
# Jobs that learn from a replay buffer: DQN, SAC and TD3. The same numbers, and the same buffer, however environments are
# spread over observers and groups, when observers and the agent are killed, when the run is resumed, and on every
# instruction set; and what the log says.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/runs.bash"
# shellcheck source=test/daemon/worlds.bash
source "$here/worlds.bash"

episodes=20
rollout_rows=192
toy=$(readlink -f "$BUILD/test/preload/environment_toy.so")

# The rate of exploration stays, for it falls with /stop/steps, which a resumed run changes here.
declare -A learners
learners[dqn]='{"name": "dqn", "learning_starts": 100, "batch_size": 32, "train_freq": 4, "gradient_steps": 2, "buffer_size": 600,
      "target_update_interval": 60, "exploration_initial_eps": 0.3, "exploration_final_eps": 0.3, "learning_rate": 0.002}'
learners[sac]='{"name": "sac", "learning_starts": 200, "batch_size": 32, "train_freq": 8, "gradient_steps": -1, "buffer_size": 900,
      "target_update_interval": 2}'
learners[prioritized]='{"name": "dqn", "learning_starts": 100, "batch_size": 32, "train_freq": 4, "gradient_steps": 2, "buffer_size": 600,
      "target_update_interval": 60, "exploration_initial_eps": 0.3, "exploration_final_eps": 0.3, "prioritized_replay": true,
      "prioritized_replay_beta": 1}'
learners[ahead]='{"name": "sac", "learning_starts": 200, "batch_size": 32, "train_freq": 2, "gradient_steps": 3, "buffer_size": 900,
        "overlap": 2}'
learners[behind]='{"name": "dqn", "learning_starts": 100, "batch_size": 32, "train_freq": 4, "gradient_steps": 2, "buffer_size": 600,
         "target_update_interval": 60, "exploration_initial_eps": 0.3, "exploration_final_eps": 0.3, "overlap": 1,
         "prioritized_replay": true, "prioritized_replay_beta": 1}'
learners[td3]='{"name": "td3", "learning_starts": 200, "batch_size": 32, "train_freq": 8, "gradient_steps": 3, "buffer_size": 900,
      "noise_type": "ornstein-uhlenbeck", "noise_std": 0.3}'

[[ -z ${SAN:-} ]] || disturbed_episodes=50

# world ALGORITHM ENVIRONMENT: the job of the kind reinforce; both are the job's objects.
world() {
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 6}, "environment": $2,
 "algorithm": $1, "policy": {"hidden": [16, 16]}, "rollout": {"steps": 32},
 "evaluation": {"every": 5, "episodes": 3, "steps": 600}, "log": {"every": 1}}
JSON
}

on_baseline() {
    COALESCED_ISA=baseline plays other && alike whole other
}

# ---- the same numbers ----
spread='{"count": 2, "environments": 3, "groups": 2}'
while read -r title deaths environment; do
    # Under a sanitizer one of each kind, and under the thread sanitizer what learns on a thread.
    [[ -z ${SAN:-} || $deaths == with-deaths ]] || continue
    [[ ${SAN:-} != thread || $title == behind:* ]] || continue
    world "${learners[${title%%:*}]}" "$environment"
    rollout_rows=192
    [[ $title != *Pair-v0 ]] || rollout_rows=384 # of two agents each
    check "$title" plays whole
    check "$title: two observers of two groups" alike_with --set /observers="$spread"
    check "$title: in the agent's process" alike_with --set /observers/count=0
    check "$title: resumed" resumed_alike
    if [[ $deaths == with-deaths ]]; then
        check "$title: undisturbed" with_episodes "$disturbed_episodes" plays long --set /observers="$spread"
        check "$title: observers are killed" kills_observers 3 "$disturbed_episodes" --set /observers="$spread"
        check "$title: and leave no trace" alike long killed
        check "$title: the agent is killed" kills_the_agent --set /observers="$spread"
        check "$title: and leaves no trace" alike long killed
    fi
    [[ -z ${SAN:-} ]] || continue # the further ways are other numbers of the same calls
    check "$title: six observers, unbatched" alike_with --set /observers='{"count": 6}' --set /coalesce/mode=off
    check "$title: requests as they come" alike_with --set /observers='{"count": 3, "environments": 2}' \
        --set /coalesce='{"mode": "dynamic", "max_batch": 3}'
    check "$title: in groups there" alike_with --set /observers='{"count": 0, "environments": 6, "groups": 3}'
    check "$title: without vector instructions" on_baseline
    check "$title: in the agent's process, resumed" resumed_alike_in_process
    [[ $deaths == with-deaths ]] || continue
    check "$title: in the agent's process, which is killed" kills_the_agent --set /observers='{"count": 0, "environments": 6}'
    check "$title: and leaves no trace" alike long killed
done <<WORLDS
dqn:CartPole-v1 with-deaths {"name":"CartPole-v1"}
dqn:Pair-v0 - {"plugin":"$toy","name":"Pair-v0"}
dqn:Again-v0 - {"plugin":"$toy","name":"Again-v0"}
dqn:Lives-v0 - {"plugin":"$toy","name":"Lives-v0","frames":3,"clip_reward":true}
prioritized:CartPole-v1 - {"name":"CartPole-v1"}
dqn:Frail-v0 - {"plugin":"$toy","name":"Frail-v0"}
sac:Pendulum-v1 - {"name":"Pendulum-v1"}
sac:frames - {"name":"MountainCarContinuous-v0","frames":3}
ahead:Pendulum-v1 with-deaths {"name":"Pendulum-v1"}
behind:CartPole-v1 with-deaths {"name":"CartPole-v1"}
td3:Pendulum-v1 with-deaths {"name":"Pendulum-v1"}
WORLDS

[[ ${SAN:-} != thread ]] || finish
# ---- what it learns ----
world "${learners[dqn]}" '{"name": "CartPole-v1"}'
check "a run" plays whole
changes_the_numbers() {
    plays other "$@" && ! same whole other
}
check "double Q-learning is another learner" changes_the_numbers --set /algorithm/double_q=true
check "acting behind learning is another course" changes_the_numbers --set /algorithm/overlap=1
check "errors weigh in the draws" changes_the_numbers --set /algorithm/prioritized_replay=true
check "dueling outputs are another network" changes_the_numbers --set /policy/dueling=true
check "an action's draws follow the seed" changes_the_numbers --set /seed=7
world "${learners[dqn]}" "{\"plugin\": \"$toy\", \"name\": \"Lives-v0\"}"
check "a run of rewards" plays whole
check "signs of rewards are others" changes_the_numbers --set /environment/clip_reward=true
episode_frequency() {
    plays other --set /algorithm/train_freq='[2, "episode"]' --set /algorithm/gradient_steps=-1 --set /observers/environments=1 &&
        jq -e -s 'map(select(.episode)) | .[-1].n_updates > 100' "$scratch/other/episodes.jsonl"
}
rollout_rows=32
check "a training after every second episode" episode_frequency
rollout_rows=192

# ---- the log ----
has_figures() {
    jq -e -s --argjson keys "$1" 'map(select(.episode)) | .[-1] as $last | $keys | all(. as $key | $last | has($key))' \
        "$scratch/whole/episodes.jsonl" >/dev/null
}
check "DQN's figures" has_figures '["total_timesteps", "n_updates", "ep_rew_mean", "ep_len_mean", "loss", "exploration_rate", "learning_rate"]'
counts_steps() {
    jq -e -s 'map(select(.episode)) | .[-1] | .total_timesteps == 3840 and .n_updates == 312' \
        "$scratch/whole/episodes.jsonl" >/dev/null || { tail -2 "$scratch/whole/episodes.jsonl"; return 1; }
}
check "steps and gradient steps are counted" counts_steps
evaluates_every_fifth() {
    jq -e -s 'map(select(.eval) | .episode) == [5, 10, 15, 20]' "$scratch/whole/episodes.jsonl" >/dev/null
}
check "an evaluation follows each fifth rollout" evaluates_every_fifth
evaluates_alike() {
    local mean deviation
    read -r mean deviation < <(tail -2 "$scratch/whole/episodes.jsonl" | head -1 | jq -r '.eval | "\(.mean_reward) \(.std_reward)"')
    "$COALESCED" evaluate "$scratch/whole/checkpoints/$(newest_checkpoint "$scratch/whole")" "$scratch/reinforce.json" --episodes 3 |
        grep -F "$(printf 'Mean reward: %.2f\tStandard deviation: %.2f\t' "$mean" "$deviation")"
}
check "the command evaluate finds the same in the checkpoint" evaluates_alike
learns() {
    with_episodes 150 plays long --set /observers='{"count": 0, "environments": 1}' --set /rollout/steps=200 --set /algorithm='{"name": "dqn",
        "learning_rate": 0.0023, "batch_size": 64, "buffer_size": 100000, "learning_starts": 1000, "target_update_interval": 10,
        "train_freq": 256, "gradient_steps": 128, "exploration_fraction": 0.16, "exploration_final_eps": 0.04}' --set '/policy/hidden=[64,64]' &&
        jq -e -s 'map(select(.episode)) | (map(.ep_rew_mean) | max) > 120' "$scratch/long/episodes.jsonl" >/dev/null
}
rollout_rows=200
[[ -n ${SAN:-} ]] || check "DQN learns to balance a pole" learns
rollout_rows=192
world "${learners[sac]}" '{"name": "Pendulum-v1"}'
check "a run of SAC" plays whole
check "SAC's figures" has_figures '["actor_loss", "critic_loss", "ent_coef", "ent_coef_loss", "learning_rate", "n_updates"]'
check "SAC: the command evaluate finds the same in the checkpoint" evaluates_alike

# ---- the buffer ----
without_a_file() {
    plays other --set /replay/save=false && same whole other && [[ ! -e $scratch/other/replay.bin ]]
}
check "a buffer in memory alone gives the same numbers" without_a_file
begins_a_new_buffer() {
    run_job reinforce "$scratch/other" 25 --set /replay/save=false --resume >"$scratch/other.out" 2>&1 &&
        grep -q "the replay buffer was not saved" "$scratch/other.out"
}
check "and a resumed run says that it begins a new one" begins_a_new_buffer
names_the_damage() {
    local code=0
    rm -rf "$scratch/parts" && run_job reinforce "$scratch/parts" 9 >/dev/null 2>&1 || return 1
    printf 'damage' | dd of="$scratch/parts/replay.bin" bs=1 seek=60000 conv=notrunc status=none
    run_job reinforce "$scratch/parts" 20 --resume >"$scratch/parts.out" 2>&1 || code=$?
    cat "$scratch/parts.out"
    [[ $code -ne 0 ]] && grep -q 'replay.bin.*/replay/save=false' "$scratch/parts.out"
}
check "a damaged row is named, and the way on" names_the_damage
goes_on_without() {
    run_job reinforce "$scratch/parts" 20 --set /replay/save=false --resume >"$scratch/parts.out" 2>&1 &&
        [[ $(last_number "$scratch/parts") -eq 20 ]]
}
check "which is gone" goes_on_without
names_the_loss() {
    local code=0
    rm -rf "$scratch/parts" && run_job reinforce "$scratch/parts" 9 >/dev/null 2>&1 && rm "$scratch/parts/replay.bin" || return 1
    run_job reinforce "$scratch/parts" 20 --resume >"$scratch/parts.out" 2>&1 || code=$?
    [[ $code -ne 0 ]] && grep -q 'replay.bin.*No such file.*/replay/save=false' "$scratch/parts.out"
}
check "a file that is gone is named, and the way on" names_the_loss

# ---- what cannot be ----
refuses() {
    ! plays faulty "${@:2}" >"$scratch/words" 2>&1 && grep -F "$1" "$scratch/words"
}
check "SAC does not choose" refuses '"sac" and "td3" act by floats' --set /environment/name=CartPole-v1
check "no GPU learns from a buffer yet" refuses '/device: expected "auto" or "cpu"' --set /device=gpu
check "DQN has no floats" refuses '"dqn" has a value for each of one action' --set /algorithm/name=dqn --set /algorithm="${learners[dqn]}"

# ---- environments that cannot be played again ----
# An observer dies within a rollout, and its steps come again otherwise; the others wait for it at the newest step.
lives_on() {
    kills_observers 3 12 "$@" && [[ $(last_number "$scratch/killed") -eq 12 ]]
}
steps=$([[ -n ${SAN:-} ]] && echo 100 || echo 400)
rollout_rows=$((6 * steps))
for learner in dqn ahead; do
    world "${learners[$learner]}" "{\"plugin\": \"$toy\", \"name\": \"$([[ $learner == dqn ]] && echo Wild-v0 || echo Slow-v0)\"}"
    for count in 1 2; do
        check "$learner: observers die, $count of them" lives_on --set /rollout/steps="$steps" \
            --set /observers="{\"count\": $count, \"environments\": $((6 / count)), \"groups\": $count}"
    done
done

finish
