#!/usr/bin/env bash
# Jobs that learn by PPO and A2C from images, with convolutions on the CPU's backend: the same numbers however
# environments are spread over observers and groups, when observers and the agent are killed, and when the run is
# resumed; ratios that begin at 1; and something is learned.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/runs.bash"
# shellcheck source=test/daemon/worlds.bash
source "$here/worlds.bash"

episodes=20
disturbed_episodes=50
toy=$(readlink -f "$BUILD/test/preload/environment_toy.so")
n_steps=16
ppo='{"name": "ppo", "n_steps": '$n_steps', "batch_size": 40, "n_epochs": 2, "gamma": 0.9, "ent_coef": 0.01}'
declare -A algorithms=([ppo]=$ppo [padded]="${ppo%\}}, \"sequences\": \"padded\"}" [a2c]='{"name": "a2c", "n_steps": '$n_steps', "gamma": 0.9}')

# world NAME ALGORITHM NORMALIZE POLICY
world() {
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 6},
 "environment": {"plugin": "$toy", "name": "$1"}, "algorithm": $2, "normalize": $3,
 "policy": {"network": "cnn", "threads": 1, "value_network": $4},
 "evaluation": {"every": 5, "episodes": 3, "steps": 50}, "log": {"every": 1}}
JSON
}

# refuses PHRASE ARGUMENT...: the job ends with an error that has the phrase.
refuses() {
    ! plays faulty "${@:2}" >"$scratch/words" 2>&1 && grep -qF "$1" "$scratch/words"
}

# ---- the same numbers ----
rollout_rows=$((6 * n_steps))
spread='{"count": 2, "environments": 3, "groups": 2}'
declare -A memories=([memory]=', "recurrent": "lstm", "lstm_hidden_size": 16')
while read -r title name algorithm value normalize; do
    world "$name" "${algorithms[$algorithm]}" "$normalize" "\"$value\"${memories[$title]:-}"
    check "$title" plays whole
    check "$title: two observers of two groups" same_numbers --set /observers="$spread"
    check "$title: six observers, unbatched" same_numbers --set /observers='{"count": 6}' --set /coalesce/mode=off
    check "$title: in the agent's process, in groups" same_numbers \
        --set /observers='{"count": 0, "environments": 6, "groups": 3}'
    check "$title: resumed" is_resumed
    [[ $title == choices ]] || continue
    check "$title: undisturbed" with_episodes "$disturbed_episodes" plays long --set /observers="$spread"
    check "$title: observers are killed" kills_observers 3 "$disturbed_episodes" --set /observers="$spread"
    check "$title: and leave no trace" same long killed
    check "$title: the agent is killed" kills_the_agent --set /observers="$spread"
    check "$title: and leaves no trace" same long killed
done <<'WORLDS'
choices Middle-v0 ppo shared {"norm_reward":true}
floats Glide-v0 ppo separate {"norm_obs":true,"norm_reward":true}
a2c Middle-v0 a2c shared {"norm_reward":true}
memory Middle-v0 padded separate {"norm_reward":true}
parts Camera-v0 ppo shared {"norm_obs":true,"norm_reward":true}
WORLDS

# ---- what is learned ----
world Middle-v0 "$ppo" '{"norm_reward": true}' null
shares_by_default() {
    plays whole && plays other --set /policy/value_network=shared && same whole other &&
        plays other --set /policy/value_network=separate && ! same whole other
}
check "the value shares its features unless the job says otherwise" shares_by_default
ratios_begin_at_one() {
    plays first --set /algorithm/n_epochs=1 --set /algorithm/batch_size=100000 --set /algorithm/clip_range=1e-12 \
        --set /observers="$spread" &&
        jq -e -s 'map(select(.episode)) | all(.approx_kl == 0 and .clip_fraction == 0)' "$scratch/first/episodes.jsonl" >/dev/null
}
check "ratios of the first minibatch are exactly 1" ratios_begin_at_one
# A token that drifts: without a look at the image an episode earns about 220, of at most 450.
learns() {
    rollout_rows=384 with_episodes 30 plays learned --set /algorithm/n_steps=64 --set /algorithm/batch_size=64 \
        --set /algorithm/n_epochs=4 &&
        jq -e -s 'map(select(.episode)) | .[0].ep_rew_mean < 300 and .[-1].ep_rew_mean > 380' \
            "$scratch/learned/episodes.jsonl" >/dev/null
}
check "the token is kept in the middle" learns
evaluates_alike() {
    local checkpoint mean deviation
    checkpoint=$scratch/whole/checkpoints/$(newest_checkpoint "$scratch/whole")
    read -r mean deviation < <(tail -2 "$scratch/whole/episodes.jsonl" | head -1 | jq -r '.eval | "\(.mean_reward) \(.std_reward)"')
    "$COALESCED" evaluate "$checkpoint" "$scratch/reinforce.json" --episodes 3 |
        grep -F "$(printf 'Mean reward: %.2f\tStandard deviation: %.2f\t' "$mean" "$deviation")"
}
check "the command evaluate finds the same in the checkpoint" evaluates_alike

# ---- what does not fit ----
check "bytes are not normalized" refuses "/normalize/norm_obs: expected false: the environment's observations are bytes" \
    --set /normalize/norm_obs=true
check "no state-dependent exploration" refuses '/algorithm/use_sde: expected false: the network "cnn"' \
    --set /environment/name=Glide-v0 --set /algorithm/use_sde=true

finish
