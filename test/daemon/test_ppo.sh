#!/usr/bin/env bash
# Jobs that learn by PPO, and by A2C, its special case: the same numbers however environments are spread over observers and groups, when observers and
# the agent are killed, when the run is resumed, and on every instruction set; and what the log says.
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

ppo='{"name": "ppo", "n_steps": 32, "batch_size": 50, "n_epochs": 2, "ent_coef": 0.01, "clip_range_vf": 0.5}'
sde='{"name": "ppo", "n_steps": 32, "batch_size": 50, "n_epochs": 2, "use_sde": true, "sde_sample_freq": 5}'
a2c='{"name": "a2c", "n_steps": 32, "gae_lambda": 0.9, "ent_coef": 0.01}'
algorithm=$ppo
policy='{"hidden": [16, 16]}'

# world ENVIRONMENT: the job of the kind reinforce plays it by $algorithm and $policy; ENVIRONMENT is the job's object.
world() {
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 6}, "environment": $1,
 "algorithm": $algorithm,
 "normalize": {"norm_obs": true, "norm_reward": true}, "policy": $policy,
"evaluation": {"every": 5, "episodes": 3, "steps": 600}, "log": {"every": 1}}
JSON
}

on_baseline() {
    COALESCED_ISA=baseline plays other && same whole other
}

# refuses PHRASE ARGUMENT...: the job ends with an error that has the phrase.
refuses() {
    ! plays faulty "${@:2}" >"$scratch/words" 2>&1 && grep -qF "$1" "$scratch/words"
}

ratios_begin_at_one() {
    plays first --set /algorithm/n_epochs=1 --set /algorithm/batch_size=100000 &&
        jq -e -s 'map(select(.episode)) | all(.approx_kl == 0 and .clip_fraction == 0)' "$scratch/first/episodes.jsonl" >/dev/null
}

last_evaluation() {
    tail -2 "$scratch/$1/episodes.jsonl" | head -1 | jq -r '.eval | "\(.mean_reward) \(.std_reward)"'
}

evaluates_alike() {
    local checkpoint mean deviation
    checkpoint=$scratch/whole/checkpoints/$(newest_checkpoint "$scratch/whole")
    read -r mean deviation < <(last_evaluation whole)
    "$COALESCED" evaluate "$checkpoint" "$scratch/reinforce.json" --episodes 3 |
        grep -F "$(printf 'Mean reward: %.2f\tStandard deviation: %.2f\t' "$mean" "$deviation")"
}

# ---- the same numbers ----
spread='{"count": 2, "environments": 3, "groups": 2}'
while read -r title deaths environment; do
    world "$environment"
    rollout_rows=192
    [[ $title != Pair-v0 ]] || rollout_rows=384 # of two agents each
    check "$title" plays whole
    check "$title: two observers of two groups" same_numbers --set /observers="$spread"
    check "$title: six observers, unbatched" same_numbers --set /observers='{"count": 6}' --set /coalesce/mode=off
    check "$title: in the agent's process, by one thread" same_numbers --set /observers/count=0 --set /policy/threads=1
    check "$title: in groups there" same_numbers --set /observers='{"count": 0, "environments": 6, "groups": 3}'
    check "$title: without vector instructions" on_baseline
    check "$title: resumed" is_resumed
    [[ $deaths == with-deaths ]] || continue
    check "$title: a hundred" with_episodes 100 plays long --set /observers="$spread"
    check "$title: observers are killed" kills_observers 3 100 --set /observers="$spread"
    check "$title: and leave no trace" same long killed
    check "$title: in the agent's process, resumed" is_resumed_in_process
    check "$title: in the agent's process, which is killed" kills_the_agent --set /observers='{"count": 0, "environments": 6}'
    check "$title: and leaves no trace" same long killed
    check "$title: the agent is killed" kills_the_agent --set /observers="$spread"
    check "$title: and leaves no trace" same long killed
done <<WORLDS
CartPole-v1 with-deaths {"name":"CartPole-v1"}
MountainCarContinuous-v0 - {"name":"MountainCarContinuous-v0"}
Pendulum-v1 - {"name":"Pendulum-v1"}
Again-v0 - {"plugin":"$toy","name":"Again-v0"}
Lives-v0 - {"plugin":"$toy","name":"Lives-v0","clip_reward":true}
Pair-v0 - {"plugin":"$toy","name":"Pair-v0"}
WORLDS

algorithm=$sde
world '{"name": "MountainCarContinuous-v0"}'
check "state-dependent exploration" plays whole
check "state-dependent exploration: two observers of two groups" same_numbers --set /observers="$spread"
check "state-dependent exploration: in the agent's process" same_numbers --set /observers/count=0
check "state-dependent exploration: without vector instructions" on_baseline
check "state-dependent exploration: resumed" is_resumed
draws_anew() {
    plays other --set /algorithm/sde_sample_freq=null && ! same whole other
}
check "state-dependent exploration: drawn anew or not" draws_anew
check "state-dependent exploration: of a choice" refuses "/algorithm/use_sde: expected false: the environment's action" \
    --set /environment/name=CartPole-v1
check "state-dependent exploration: without a hidden layer" refuses "/algorithm/use_sde: expected false: /policy/hidden" \
    --set '/policy={"hidden": []}'

algorithm=$ppo
world '{"name": "Pendulum-v1"}'
shared='/policy={"hidden": [16], "activation": "relu", "value_network": "shared"}'
check "a shared value network" plays whole --set "$shared"
check "a shared value network: two observers of two groups" same_numbers --set "$shared" --set /observers="$spread"
check "a shared value network: in the agent's process" same_numbers --set "$shared" --set /observers/count=0

algorithm=$sde
policy='{"hidden": {"pi": [8], "vf": [16, 4]}}'
world '{"name": "Pendulum-v1"}'
check "layers of the value's own" plays whole
check "layers of the value's own: two observers of two groups" same_numbers --set /observers="$spread"
check "layers of the value's own: in the agent's process, by one thread" same_numbers --set /observers/count=0 \
    --set /policy/threads=1
check "layers of the value's own: without vector instructions" on_baseline
check "layers of the value's own: resumed" is_resumed
check "layers of the value's own: a shared value network" \
    refuses '/policy/hidden: expected the same layers in "pi" and "vf"' --set /policy/value_network=shared

# ---- a memory ----
whole='{"name": "ppo", "n_steps": 32, "batch_size": 64, "n_epochs": 2, "ent_coef": 0.01}'
padded='{"name": "ppo", "n_steps": 32, "batch_size": 50, "sequences": "padded", "n_epochs": 2}'
explores='{"name": "ppo", "n_steps": 32, "batch_size": 50, "sequences": "padded", "n_epochs": 2, "use_sde": true}'
while read -r title deaths environment memory; do
    [[ $title == whole:* ]] && algorithm=$whole || algorithm=$padded
    [[ $title != *sde* ]] || algorithm=$explores
    [[ $title != *a2c* ]] || algorithm=$a2c
    [[ $title == *apart ]] && policy="{$memory}" || policy="{\"hidden\": [16], $memory}"
    world "$environment"
    rollout_rows=192
    [[ $environment != *Pair-v0* ]] || rollout_rows=384
    check "$title" plays whole
    check "$title: two observers of two groups" same_numbers --set /observers="$spread"
    check "$title: requests as they come" same_numbers --set /observers='{"count": 3, "environments": 2}' \
        --set /coalesce='{"mode": "dynamic", "max_batch": 3}'
    check "$title: in the agent's process, by one thread" same_numbers --set /observers/count=0 --set /policy/threads=1
    check "$title: without vector instructions" on_baseline
    check "$title: resumed" is_resumed
    check "$title: in the agent's process, resumed" is_resumed_in_process
    [[ $title == *a2c* ]] || check "$title: ratios of the first minibatch are exactly 1" ratios_begin_at_one
    [[ $deaths == with-deaths ]] || continue
    check "$title: a hundred" with_episodes 100 plays long --set /observers="$spread"
    check "$title: observers are killed" kills_observers 3 100 --set /observers="$spread"
    check "$title: and leave no trace" same long killed
    check "$title: the agent is killed" kills_the_agent --set /observers="$spread"
    check "$title: and leaves no trace" same long killed
done <<MEMORIES
whole:lstm with-deaths {"name":"CartPoleNoVel-v1"} "recurrent": "lstm", "lstm_hidden_size": 20
padded:gru with-deaths {"plugin":"$toy","name":"Pair-v0"} "recurrent": "gru", "lstm_hidden_size": 16, "n_lstm_layers": 2
whole:pair - {"plugin":"$toy","name":"Pair-v0"} "recurrent": "lstm", "lstm_hidden_size": 8, "enable_critic_lstm": false
whole:apart - {"name":"CartPoleNoVel-v1"} "recurrent": "gru", "lstm_hidden_size": 8, "hidden": {"pi": [], "vf": [16, 4]}
padded:sde - {"name":"PendulumNoVel-v1"} "recurrent": "lstm", "lstm_hidden_size": 8, "enable_critic_lstm": false, "shared_lstm": true
whole:a2c - {"name":"MountainCarContinuousNoVel-v0"} "recurrent": "lstm", "lstm_hidden_size": 8, "value_network": "shared"
whole:failures - {"plugin":"$toy","name":"Frail-v0"} "recurrent": "gru", "lstm_hidden_size": 8
MEMORIES
algorithm=$whole
policy='{"hidden": [16], "recurrent": "lstm", "lstm_hidden_size": 20}'
world '{"name": "CartPoleNoVel-v1"}'
check "a memory" plays whole
check "a memory: the command evaluate finds the same in the checkpoint" evaluates_alike
is_of_use() {
    plays none --set /policy/recurrent=null && ! same whole none
}
check "a memory changes the numbers" is_of_use
check "a memory: minibatches of whole sequences" refuses 'expected a multiple of /algorithm/n_steps, the nearest are 32 and 64' \
    --set /algorithm/batch_size=50 --set /algorithm/sequences=whole
remembers() {
    with_episodes 120 plays long --set /algorithm/n_epochs=10 --set /algorithm/learning_rate=0.003 &&
        with_episodes 120 plays forgetful --set /algorithm/n_epochs=10 --set /algorithm/learning_rate=0.003 --set /policy/recurrent=null &&
        jq -e -s --slurpfile other "$scratch/forgetful/episodes.jsonl" \
            'map(select(.eval).eval.mean_reward) as $with | ($other | map(select(.eval).eval.mean_reward)) as $without |
             ($with | max) > 2 * ($without | max)' "$scratch/long/episodes.jsonl"
}
check "a memory balances a pole without its velocities, and a policy without one does not" remembers
policy='{"hidden": [16, 16]}'

algorithm=$a2c
world '{"name": "Pendulum-v1"}'
check "A2C" plays whole
check "A2C: two observers of two groups" same_numbers --set /observers="$spread"
check "A2C: in the agent's process" same_numbers --set /observers/count=0
check "A2C: without vector instructions" on_baseline
check "A2C: resumed" is_resumed
names_the_loss() {
    jq -e -s 'map(select(.episode)) | all(has("policy_loss") and has("std") and .n_updates == .episode and
              (has("policy_gradient_loss") or has("approx_kl") or has("clip_fraction") or has("clip_range") | not))' \
        "$scratch/whole/episodes.jsonl" >/dev/null
}
check "A2C: the log has its figures" names_the_loss
by_adam() {
    plays other --set /algorithm/use_rms_prop=false && ! same whole other
}
check "A2C: Adam learns something else than RMSprop" by_adam
algorithm=$ppo

# ---- the log ----
rollout_rows=192
world '{"name": "CartPole-v1"}'
check "a log" plays whole
keys='total_timesteps n_updates ep_rew_mean ep_len_mean policy_gradient_loss value_loss entropy_loss approx_kl
      clip_fraction explained_variance learning_rate clip_range std'
has_every_key() {
    local key
    for key in $keys; do
        head -2 "$scratch/whole/episodes.jsonl" | tail -1 | jq -e --arg key "$key" 'has($key)' >/dev/null || { echo "$key"; return 1; }
    done
}
check "each line has Stable-Baselines3's figures" has_every_key
counts_steps() {
    tail -2 "$scratch/whole/episodes.jsonl" | head -1 |
        jq -e '.episode == 20 and .total_timesteps == 3840 and .n_updates == 40 and .timing.fps > 0' >/dev/null
}
check "steps and epochs are counted" counts_steps
rises() {
    jq -e -s 'map(select(.episode)) | .[-1].ep_rew_mean > 1.5 * .[0].ep_rew_mean' "$scratch/whole/episodes.jsonl" >/dev/null
}
check "CartPole's episodes grow" rises
check "ratios of the first minibatch are exactly 1" ratios_begin_at_one
falls() {
    plays linear --set /algorithm/learning_rate_schedule=linear --set /algorithm/clip_range_schedule=linear &&
        jq -e -s 'map(select(.episode)) | .[0].learning_rate == 0.0003 and .[10].learning_rate == 0.00015 and
                  .[10].clip_range == 0.1' "$scratch/linear/episodes.jsonl" >/dev/null
}
check "schedules fall from update to update" falls
stops_early() {
    plays early --set /algorithm/target_kl=1e-6 --set /algorithm/n_epochs=10 &&
        [[ $(tail -2 "$scratch/early/episodes.jsonl" | head -1 | jq .n_updates) -lt 100 ]]
}
check "an update that has moved far enough ends" stops_early

# ---- evaluations ----
evaluates_every_fifth() {
    jq -e -s 'map(select(.eval) | .episode) == [5, 10, 15, 20] and
              (map(select(.eval).eval) | all(.mean_reward > 0 and .mean_ep_length > 0 and .success_rate == null))' \
        "$scratch/whole/episodes.jsonl" >/dev/null
}
check "an evaluation follows each fifth update" evaluates_every_fifth
check "the command evaluate finds the same in the checkpoint" evaluates_alike
keeps_the_best() {
    local most
    plays best --set /checkpoint/best=true || return 1
    most=$(jq -s 'map(select(.eval).eval.mean_reward) | max' "$scratch/best/episodes.jsonl")
    jq -e --argjson most "$most" '.evaluation_reward == $most' "$scratch/best/checkpoints/best/manifest.json" >/dev/null
}
check "the best evaluation's checkpoint is kept" keeps_the_best
ends_solved() {
    plays solved --set /stop="{\"steps\": 1000000, \"evaluation_reward\": $1}" &&
        grep -q "^Solved! The evaluation's mean reward is now" "$scratch/solved/episodes.log" &&
        jq -e -s --argjson at "$1" 'map(select(.eval).eval.mean_reward) | (.[:-1] | all(. < $at)) and .[-1] >= $at' \
            "$scratch/solved/episodes.jsonl" >/dev/null
}
check "an evaluation that is good enough ends the job" ends_solved 60
stays_solved() {
    local lines
    lines=$(wc -l <"$scratch/solved/episodes.log")
    "$COALESCED" run "$scratch/reinforce.json" --run-dir "$scratch/solved" \
        --set /stop='{"steps": 1000000, "evaluation_reward": 60}' --resume >/dev/null 2>&1 &&
        [[ $(wc -l <"$scratch/solved/episodes.log") -eq $lines ]]
}
check "which stays over when it is resumed" stays_solved
tells_not_solved() {
    plays unsolved --set /stop='{"steps": 2000, "evaluation_reward": 500}' &&
        grep -q "^Not solved: the evaluation's mean reward is .* after 11 updates, expected at least 500.00" \
            "$scratch/unsolved/episodes.log"
}
check "and one that never is says so" tells_not_solved
needs_no_more() {
    run_job reinforce "$scratch/unsolved" 11 --set /stop='{"steps": 2000, "evaluation_reward": 5}' --resume >/dev/null 2>&1 &&
        grep -q "^Solved! The evaluation's mean reward is now" "$scratch/unsolved/episodes.log"
}
check "resumed with a lower goal, it is solved" needs_no_more
evaluates_the_last() { # ARGUMENT...
    plays last "$@" --set '/stop={"steps": 600, "evaluation_reward": 500}' --set /log/every=3 &&
        jq -e -s 'map(select(.eval) | .episode) == [4]' "$scratch/last/episodes.jsonl" >/dev/null &&
        grep -q "^Not solved: the evaluation's mean reward is .* after 4 updates, expected at least 500.00" "$scratch/last/episodes.log" &&
        [[ $(grep -o '^Episode [0-9]*' "$scratch/last/episodes.log") == $'Episode 3\nEpisode 4' ]]
}
check "an evaluation follows the last update, which has a line" evaluates_the_last
is_evaluated_once() {
    cp "$scratch/last/episodes.log" "$scratch/log" && numbers "$scratch/last" >"$scratch/before" &&
        sed -i '$d' "$scratch/last/episodes.jsonl" && # its last event
        run_job reinforce "$scratch/last" 4 --set '/stop={"steps": 600, "evaluation_reward": 500}' --set /log/every=3 --resume &&
        diff "$scratch/before" <(numbers "$scratch/last") && diff "$scratch/log" "$scratch/last/episodes.log"
}
check "a finished run that is resumed is not evaluated again" is_evaluated_once
judges_the_last() {
    evaluates_the_last --set /checkpoint/best=true &&
        jq -e '.update == 4' "$scratch/last/checkpoints/best/manifest.json" >/dev/null
}
check "the checkpoint behind the last evaluation may be the best" judges_the_last
no_episode_has_ended() {
    plays long --set /algorithm/n_steps=4 && ! grep -i nan "$scratch/long/episodes.log" &&
        grep -q $'^Episode 1\tSteps: 24\tReward: -\tLength: -' "$scratch/long/episodes.log"
}
check "no figures of episodes before one has ended" no_episode_has_ended
# The loss is no number in the same update again and again.
diverges() {
    refuses 'failed 5 times in a row in the same way without an episode or update that is new' \
        --set /environment='{"name": "Pendulum-v1"}' --set /algorithm/learning_rate=10 --set /algorithm/max_grad_norm=null
}
check "a job that diverges ends" diverges
no_evaluation() {
    plays none --set /evaluation/every=null && ! grep -q '"eval"' "$scratch/none/episodes.jsonl" &&
        diff <(numbers "$scratch/whole" | sed 's/,"eval":{[^}]*}//') <(numbers "$scratch/none")
}
check "evaluations change nothing" no_evaluation

# ---- the agent's own environments: orders, faults, a state that cannot be saved ----
own='{"count": 0, "environments": 6}'
stops_and_goes_on() {
    local job
    rm -rf "$scratch/killed"
    run_job reinforce "$scratch/killed" 300000 --set /observers="$own" >"$scratch/killed.out" 2>&1 &
    job=$!
    wait_for_some "$scratch/killed" 3 "$job"
    kill -TERM "$(cat "$scratch/killed/lock")" && wait "$job" && grep -q stopping "$scratch/killed.out"
}
check "SIGTERM ends it after the update" stops_and_goes_on
hurries() {
    local job i
    rm -rf "$scratch/killed"
    run_job reinforce "$scratch/killed" 3000 --set /observers="$own" --set /algorithm/n_steps=100000 >"$scratch/killed.out" 2>&1 &
    job=$!
    for ((i = 0; i < 200; i++)); do
        [[ -s $scratch/killed/lock ]] && pgrep -P "$(cat "$scratch/killed/lock")" -f 'agent --index 0' >/dev/null && break
        sleep 0.05
    done
    sleep 0.3
    kill -TERM "$(cat "$scratch/killed/lock")"
    sleep 0.1
    kill -TERM "$(cat "$scratch/killed/lock")"
    timeout 20 tail --pid="$job" -f /dev/null
}
check "a second one cuts the rollout" hurries
broken=$(readlink -f "$BUILD/test/preload/environment_broken.so")
world "{\"plugin\": \"$broken\", \"name\": \"save-empty\"}"
check "without save: plays" plays whole
check "without save: in the agent's process" same_numbers --set /observers="$own"
resumes_anew() {
    ! is_resumed_in_process >/dev/null && [[ $(numbers "$scratch/parts" | wc -l) == 20 ]] &&
        grep -q "saves no states (functions save and load)" "$scratch/parts.out"
}
check "without save: a resumed run says so, and goes on" resumes_anew
world "{\"plugin\": \"$broken\", \"name\": \"observation-nan\"}"
tells_the_fault() {
    ! plays faulty --set /observers="$own" --set /supervise/restart=false >"$scratch/words" 2>&1 &&
        grep -q "observation-nan: environment .* of its observation is nan" "$scratch/words"
}
check "a fault names the environment" tells_the_fault

# ---- what does not fit ----
world '{"name": "CartPole-v1"}'
check "no convolutions over four numbers" refuses '/policy/network=cnn: expected "mlp"' --set /policy/network=cnn
misfits() {
    ! "$COALESCED" check "$scratch/reinforce.json" --set "$1" >"$scratch/words" 2>&1 && grep -qF -- "--set $1: $2" "$scratch/words"
}
check "check tells it without a run" misfits /algorithm/use_sde=true "expected false: the environment's action is a choice"
check "and what a built-in environment is not told" misfits '/environment/options={"g":5}' "CartPole-v1: open: "

finish
