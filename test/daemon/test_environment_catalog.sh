#!/usr/bin/env bash
# Environments that people have, of Gymnasium, ALE, PettingZoo and EnvPool: each trains. Some lose an observer, are
# resumed, and have the numbers of an undisturbed run.
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
python=$(readlink -m "$here/../../build/environments-venv/bin")/python
[[ -x $python ]] || skip "the packages of environments are not installed (scripts/deps environments)"
[[ -z ${SAN:-} ]] || skip "the environments are other people's; test_python_spaces.sh has our own under the address sanitizer"

# entry ALGORITHM ENVIRONMENT: little is learned, for images are dear; and the run's end changes no draw.
entry() {
    local -A learns=([ppo]='"n_epochs": 1' [a2c]='"gae_lambda": 0.9' [dqn]='"exploration_initial_eps": 0.05, "train_freq": 40'
        [sac]='"train_freq": 8' [td3]='"train_freq": 8')
    local steps='"n_steps": 25}'
    [[ $1 == ppo || $1 == a2c ]] || steps='"learning_starts": 1000, "buffer_size": 5000}, "rollout": {"steps": 25}'
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 4},
 "environment": {"python": "$python", $2}, "algorithm": {"name": "$1", ${learns[$1]}, $steps, "log": {"every": 1}}
JSON
}

# Rollouts of 100 steps; the disturbed run is stopped before its end. Where it is over before the kill, it plays again.
begins_again() {
    local stop=$((episodes * 4 / 5))
    kills_observers 1 "$stop" || kills_observers 1 "$stop" || kills_observers 1 "$stop" || return 1
    run_job reinforce "$scratch/killed" "$episodes" --resume >"$scratch/killed.out" 2>&1 || { cat "$scratch/killed.out"; return 1; }
}

rollout_rows=100
# `dies`: an observer is killed, and the run is resumed. One row has that for each package and each kind of state.
while IFS='|' read -r deaths algorithm title environment; do
    [[ -z ${ONLY:-} || $title == "$ONLY"* ]] || continue
    entry "$algorithm" "$environment"
    [[ $environment == *ALE* || $environment == *atari* || $environment == *envpool* ]] && episodes=10 || episodes=20
    check "$title, $algorithm" plays whole
    [[ $deaths == dies || -n ${ONLY:-} ]] || continue
    check "$title: an observer is killed, and the run is resumed" begins_again
    # EnvPool draws from one seed: its environments are not the same again.
    [[ $title == EnvPool* ]] || check "$title: the same numbers" same whole killed
done <<'CATALOG'
dies|ppo|CartPole|"gymnasium": "CartPole-v1"
lives|dqn|MountainCar|"gymnasium": "MountainCar-v0"
lives|td3|MountainCarContinuous|"gymnasium": "MountainCarContinuous-v0"
lives|sac|Pendulum|"gymnasium": "Pendulum-v1"
lives|a2c|Acrobot|"gymnasium": "Acrobot-v1"
lives|dqn|LunarLander|"gymnasium": "LunarLander-v3"
dies|sac|LunarLander, continuous|"gymnasium": "LunarLander-v3", "options": {"continuous": true}
lives|ppo|BipedalWalker|"gymnasium": "BipedalWalker-v3", "renew": true
lives|ppo|FrozenLake|"gymnasium": "FrozenLake-v1"
dies|dqn|Taxi|"gymnasium": "Taxi-v4"
lives|ppo|CliffWalking|"gymnasium": "CliffWalking-v1"
lives|ppo|Blackjack, a Tuple|"gymnasium": "Blackjack-v1"
dies|a2c|Pong|"gymnasium": "ALE/Pong-v5", "atari": true
lives|dqn|Breakout|"gymnasium": "BreakoutNoFrameskip-v4", "atari": true
lives|ppo|Pong's memory|"gymnasium": "ALE/Pong-v5", "options": {"obs_type": "ram"}
lives|ppo|MultiDiscrete|"class": "worlds:Doors"
lives|ppo|MultiBinary|"class": "nested:Choices"
dies|dqn|a mask|"class": "worlds:Masked"
dies|ppo|PettingZoo's spread|"pettingzoo": "mpe2.simple_spread_v3:parallel_env", "options": {"continuous_actions": false}
lives|sac|PettingZoo's spread, continuous|"pettingzoo": "mpe2.simple_spread_v3:parallel_env", "options": {"continuous_actions": true}
lives|ppo|PettingZoo's Rock, Paper, Scissors|"pettingzoo": "pettingzoo.classic.rps_v2:parallel_env"
dies|dqn|PettingZoo's Tic Tac Toe|"pettingzoo": "pettingzoo.classic.tictactoe_v3:env"
lives|ppo|PettingZoo's Connect Four|"pettingzoo": "pettingzoo.classic.connect_four_v3:env"
lives|ppo|EnvPool's CartPole|"gymnasium": "envpool/CartPole-v1"
dies|sac|EnvPool's Pendulum|"gymnasium": "envpool/Pendulum-v1"
lives|dqn|EnvPool's FrozenLake|"gymnasium": "envpool/FrozenLake-v1"
lives|ppo|EnvPool's Pong|"gymnasium": "envpool/Pong-v5"
CATALOG

# ---- what is no game ----
entry ppo '"gymnasium": "CartPole-v1", "atari": true'
faulty_stop='{"steps": 500}'
check "no game of ALE's" fails_with "/environment/atari: CartPole-v1 is no game of ALE's: expected an id such as ALE/Pong-v5"
finish
