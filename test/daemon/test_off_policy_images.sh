#!/usr/bin/env bash
# DQN from images, with convolutions on the CPU's backend: the same numbers, and the same replay buffer, however
# environments are spread over observers and groups, when observers and the agent are killed, and when the run is
# resumed; stacked frames; and something is learned.
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
rollout_rows=96
toy=$(readlink -f "$BUILD/test/preload/environment_toy.so")
# The rate of exploration stays, for it falls with /stop/steps, which a resumed run changes here.
dqn='"name": "dqn", "learning_starts": 100, "batch_size": 16, "train_freq": 4, "gradient_steps": 1, "buffer_size": 400,
     "target_update_interval": 60, "exploration_initial_eps": 0.3, "exploration_final_eps": 0.3, "learning_rate": 0.001'

# world NAME FRAMES ALGORITHM POLICY: the latter two are more keys of the job's objects.
world() {
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 6},
 "environment": {"plugin": "$toy", "name": "$1", "frames": $2}, "algorithm": {$dqn$3},
 "policy": {"network": "cnn", "threads": 1$4}, "rollout": {"steps": 16},
 "evaluation": {"every": 5, "episodes": 3, "steps": 50}, "log": {"every": 1}}
JSON
}

# ---- the same numbers ----
spread='{"count": 2, "environments": 3, "groups": 2}'
while IFS='|' read -r title name frames algorithm policy; do
    [[ -z ${SAN:-} || $title == frames ]] || continue
    world "$name" "$frames" "$algorithm" "$policy"
    check "$title" plays whole
    check "$title: two observers of two groups" alike_with --set /observers="$spread"
    check "$title: six observers, unbatched" alike_with --set /observers='{"count": 6}' --set /coalesce/mode=off
    check "$title: in the agent's process, in groups" alike_with \
        --set /observers='{"count": 0, "environments": 6, "groups": 3}'
    check "$title: resumed" resumed_alike
    check "$title: in the agent's process, resumed" resumed_alike_in_process
    [[ $title == frames ]] || continue
    check "$title: undisturbed" with_episodes "$disturbed_episodes" plays long --set /observers="$spread"
    check "$title: observers are killed" kills_observers 3 "$disturbed_episodes" --set /observers="$spread"
    check "$title: and leave no trace" alike long killed
    check "$title: the agent is killed" kills_the_agent --set /observers="$spread"
    check "$title: and leaves no trace" alike long killed
done <<'WORLDS'
images|Middle-v0|1||
parts|Camera-v0|1||, "hidden": [16]
frames|Middle-v0|4|, "double_q": true, "prioritized_replay": true, "prioritized_replay_beta": 1|, "dueling": true
WORLDS

# ---- the buffer ----
world Middle-v0 1 '' ''
keeps_single_frames() {
    plays whole && plays other --set /environment/frames=4 &&
        [[ $(stat -c %s "$scratch/other/replay.bin") -lt $((2 * $(stat -c %s "$scratch/whole/replay.bin"))) ]]
}
check "a row has one frame, whatever an observation has" keeps_single_frames

# ---- what is learned ----
# A token that drifts: without a look at the image an episode earns about 220, of at most 450.
learns() {
    rollout_rows=384 with_episodes 40 plays learned --set /rollout/steps=64 --set /algorithm/batch_size=32 \
        --set /algorithm/buffer_size=10000 --set /algorithm/train_freq=2 --set /algorithm/gradient_steps=1 \
        --set /algorithm/gamma=0.9 &&
        jq -e -s 'map(select(.eval)) | .[-1].eval.mean_reward > 350' "$scratch/learned/episodes.jsonl" >/dev/null
}
[[ -n ${SAN:-} ]] || check "the token is kept in the middle" learns
evaluates_alike() {
    local checkpoint mean deviation
    checkpoint=$scratch/whole/checkpoints/$(newest_checkpoint "$scratch/whole")
    read -r mean deviation < <(tail -2 "$scratch/whole/episodes.jsonl" | head -1 | jq -r '.eval | "\(.mean_reward) \(.std_reward)"')
    "$COALESCED" evaluate "$checkpoint" "$scratch/reinforce.json" --episodes 3 |
        grep -F "$(printf 'Mean reward: %.2f\tStandard deviation: %.2f\t' "$mean" "$deviation")"
}
check "the command evaluate finds the same in the checkpoint" evaluates_alike


# ---- what does not fit ----
refuses() {
    ! plays faulty "${@:2}" >"$scratch/words" 2>&1 && grep -F "$1" "$scratch/words"
}
check "acting does not overlap learning" refuses '/algorithm/overlap: expected 0, got 1' --set /algorithm/overlap=1

finish
