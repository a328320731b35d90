#!/usr/bin/env bash
# scripts/chaos on tiny jobs of each kind, and of PPO: nothing is lost. test_chaos_finds.sh tests that a loss would be found.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
chaos=$here/../../scripts/chaos

if [[ -n ${SAN:-} ]]; then
    skip "the library that strikes inside calls is not for a sanitizer's build"
fi
export TMPDIR=$scratch

cat >"$scratch/reinforce.json" <<'JSON'
{"kind": "reinforce", "device": "cpu", "observers": {"count": 2, "environments": 2}, "rollout": {"mode": "steps", "steps": 100},
 "stop": {"episodes": 60, "running_reward": null}, "checkpoint": {"every": 7}}
JSON
cat >"$scratch/ppo.json" <<'JSON'
{"kind": "reinforce", "device": "cpu", "observers": {"count": 2, "environments": 2}, "environment": {"name": "Pendulum-v1"},
 "algorithm": {"name": "ppo", "n_steps": 50, "batch_size": 60, "n_epochs": 2}, "policy": {"hidden": [16]},
 "normalize": {"norm_obs": true, "norm_reward": true}, "evaluation": {"every": 10, "episodes": 3},
 "stop": {"steps": 12000}, "log": {"every": 1}, "checkpoint": {"every": 7, "best": true}}
JSON
cat >"$scratch/ps.json" <<'JSON'
{"kind": "parameter-server", "device": "cpu", "model": {"name": "resnet18", "classes": 10, "width": 8},
 "trainers": {"count": 2, "batch": 4, "threads": 1}, "server": {"count": 2}, "data": {"size": 16},
 "optimizer": {"lr": 0.01, "momentum": 0.9}, "stop": {"updates": 60}, "checkpoint": {"every": 7}}
JSON
cat >"$scratch/mp.json" <<'JSON'
{"kind": "model-parallel", "device": "cpu", "model": {"name": "rnn", "tokens": 10, "embedding": 2, "hidden": 3},
 "trainers": {"count": 1, "batch": 3, "threads": 1}, "data": {"kind": "synthetic", "steps": 5, "updates": 20},
 "optimizer": {"name": "sgd", "lr": 0.05}, "log": {"every": 3}, "stop": {"updates": 150}, "checkpoint": {"every": 7}}
JSON

# run WANTED ARGUMENT...: chaos with so many faults that it is over in seconds; its report must end with "lost: WANTED".
run() {
    local want=$1 said code=0
    shift
    said=$(timeout 150 "$chaos" --minutes 1 --every 0.2 "$@" 2>&1) || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    [[ $code -eq $((want > 0)) && $said == *$'\n'"lost: $want" ]]
}

# has TEXT COMMAND...: the command succeeds, and TEXT is in what it prints.
has() {
    local text=$1 said
    shift
    said=$("$@") || { printf '%s\n' "$said" && return 1; }
    printf '%s\n' "$said"
    [[ $said == *"$text"* ]]
}

for kind in reinforce ppo ps mp; do
    check "$kind: faults of every kind lose nothing" run 0 "$scratch/$kind.json" --faults 8
done
check "a short write is continued: no run ends" has "resumes: 0" run 0 "$scratch/reinforce.json" --kinds short --faults 3
check "SIGKILL inside the writing of a checkpoint" has "(kill 6)" \
    run 0 "$scratch/ps.json" --kinds kill --points checkpoint --faults 6

finish
