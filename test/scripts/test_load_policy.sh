#!/usr/bin/env bash
# The Python module's load_policy gives what the ONNX file of the same checkpoint gives, of every kind of policy: with NumPy
# alone, and as a torch.nn.Module.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

[[ -z ${SAN:-} ]] || skip "the module is Python's; the release build makes its checkpoints"
reader=$here/../../build/onnx-venv/bin/python
[[ -x $reader ]] || skip "onnxruntime is not installed (scripts/deps onnx)"
toy=$(readlink -f "$BUILD/test/preload/environment_toy.so")
export XDG_RUNTIME_DIR=$scratch PYTHONDONTWRITEBYTECODE=1
runs=()

# makes NAME ENVIRONMENT POLICY ALGORITHM: a short run, and its policy as ONNX; all are members of the job's objects.
makes() {
    local observers=0 stop='"steps": 768'
    [[ -n $4 ]] || observers=1 stop='"episodes": 3'
    cat >"$scratch/$1.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": $observers, "environments": 4}, "environment": {$2},
 "policy": {$3}${4:+, $4}, "stop": {$stop}}
JSON
    if ! "$COALESCED" run "$scratch/$1.json" --run-dir "$scratch/$1" >"$scratch/words" 2>&1 ||
        ! "$COALESCED" export "$scratch/$1" --onnx "$scratch/$1.onnx" >>"$scratch/words" 2>&1; then
        cat "$scratch/words"
        return 1
    fi
    runs+=("$scratch/$1")
}

ppo='"algorithm": {"name": "ppo", "n_steps": 64, "n_epochs": 1}'
declare -A environments=([pole]='"name": "CartPole-v1"' [pendulum]='"name": "Pendulum-v1"'
    [camera]="\"plugin\": \"$toy\", \"name\": \"Camera-v0\"" [gauges]="\"plugin\": \"$toy\", \"name\": \"Gauges-v0\""
    [walk]="\"plugin\": \"$toy\", \"name\": \"Walk-v0\"" [picture]="\"plugin\": \"$toy\", \"name\": \"Middle-v0\"")
memory='"lstm_hidden_size": 8, "recurrent"'
off='"learning_starts": 100, "train_freq": 16'
while IFS='|' read -r name environment policy algorithm; do
    check "$name trains" makes "$name" "${environments[$environment]}" "$policy" "${algorithm/PPO/$ppo}"
done <<JOBS
ppo|pole||PPO
gaussian|pendulum|"activation": "relu", "value_network": "shared"|PPO
sde|pendulum|"hidden": {"pi": [8, 8], "vf": [16]}|"algorithm": {"name": "ppo", "n_steps": 64, "n_epochs": 1, "use_sde": true}, "normalize": {"norm_obs": true}
choices|walk||PPO
cnn|picture|"network": "cnn"|PPO
cnn-apart|picture|"network": "cnn", "value_network": "separate"|PPO
parts|camera|"network": "cnn", "hidden": [16]|PPO, "normalize": {"norm_obs": true}
parts-apart|camera|"network": "cnn", "value_network": "separate", "hidden": [16], "activation": "tanh"|PPO
parts-shared|camera|"network": "cnn", "hidden": {"pi": [8], "vf": [16]}|PPO
parts-lstm|camera|"network": "cnn", "hidden": [16], $memory: "lstm"|PPO
parts-dqn|camera|"network": "cnn", "hidden": [16]|"algorithm": {"name": "dqn", $off}
gauges|gauges|"hidden": [16]|PPO, "normalize": {"norm_obs": true}
lstm|pole|$memory: "lstm", "n_lstm_layers": 2|PPO
gru|pole|$memory: "gru", "enable_critic_lstm": false|PPO
lstm-shared|pole|$memory: "lstm", "shared_lstm": true, "enable_critic_lstm": false|PPO
lstm-cleanrl|pole|$memory: "lstm", "value_network": "shared", "enable_critic_lstm": false|PPO
tutorial|pole||
reinforce|pole|"hidden": [8, 8]|
dqn|pole|"hidden": [16, 16]|"algorithm": {"name": "dqn", $off}
dueling|pole|"hidden": [16], "dueling": true|"algorithm": {"name": "dqn", $off}
dqn-cnn|picture|"network": "cnn"|"algorithm": {"name": "dqn", $off}
sac|pendulum|"hidden": [16, 16]|"algorithm": {"name": "sac", $off}
sac-sde|pendulum|"hidden": [16, 16]|"algorithm": {"name": "sac", $off, "use_sde": true}
td3|pendulum|"hidden": [16, 16]|"algorithm": {"name": "td3", $off}
JOBS

check "NumPy computes what ONNX does" "$reader" "$here/load_policy.py" onnx "$scratch" "${runs[@]}"
torch=
for python in python3 "$here/../../build/sb3-venv/bin/python"; do
    ! "$python" -c 'import torch' 2>/dev/null || torch=$python
done
if [[ -n $torch ]]; then
    check "PyTorch does, too" "$torch" "$here/load_policy.py" torch "$scratch" "${runs[@]}"
else
    echo "skipped: PyTorch is not installed (scripts/deps sb3)"
fi
refuses() {
    ! "$reader" -c "import sys; sys.path.insert(0, '$here/../../scripts/package/wheel'); import coalesced
coalesced.load_policy('$1')" >"$scratch/words" 2>&1 && grep -qF "$2" "$scratch/words"
}
mkdir "$scratch/empty"
check "a folder without checkpoints" refuses "$scratch/empty" "expected a run with checkpoints, or a checkpoint"

finish
