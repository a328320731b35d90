#!/usr/bin/env bash
# DQN and SAC whose environments are in Python: the same numbers, and the same replay buffer, however environments are
# spread, when observers and the agent are killed, and when the run is resumed.
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

episodes=20
rollout_rows=64 # 4 environments, 16 steps
disturbed_episodes=50
spread='{"count": 2, "environments": 2, "groups": 2}'
# Rates that fall with /stop/steps stay, for a resumed run changes it here.
learns='"learning_starts": 100, "batch_size": 16, "buffer_size": 600'
dqn="\"name\": \"dqn\", $learns, \"exploration_initial_eps\": 0.3, \"exploration_final_eps\": 0.3, \"target_update_interval\": 60"
sac="\"name\": \"sac\", $learns"

# world ENVIRONMENT ALGORITHM: members of the job's objects.
world() {
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 4},
 "environment": {"python": "$python", $1}, "policy": {"hidden": [16]}, "algorithm": {$2}, "rollout": {"steps": 16},
 "seed": 7, "evaluation": {"every": 5, "episodes": 3, "steps": 30}, "log": {"every": 1}}
JSON
}

while IFS='|' read -r title environment algorithm; do
    world "$environment" "$algorithm"
    check "$title" plays whole
    check "$title: two observers of two groups" alike_with --set /observers="$spread"
    check "$title: four observers, unbatched" alike_with --set /observers='{"count": 4}' --set /coalesce/mode=off
    check "$title: resumed" resumed_alike
    check "$title: fifty" with_episodes "$disturbed_episodes" plays long --set /observers="$spread"
    check "$title: observers are killed" kills_observers 3 "$disturbed_episodes" --set /observers="$spread"
    check "$title: and leave no trace" alike long killed
    check "$title: the agent is killed" kills_the_agent --set /observers="$spread"
    check "$title: and leaves no trace" alike long killed
done <<WORLDS
dqn|"gymnasium": "CartPole-v1"|$dqn
masks|"class": "worlds:Masked"|$dqn, "prioritized_replay": true, "prioritized_replay_beta": 1
sac|"gymnasium": "Pendulum-v1", "options": {"max_episode_steps": 30}|$sac, "overlap": 1
WORLDS

finish
