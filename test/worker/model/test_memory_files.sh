#!/usr/bin/env bash
# Checkpoints of policies with memory load strictly in PyTorch: as the modules of sb3-contrib's policy, and the recurrent
# layers by themselves as nn.LSTM and nn.GRU; so do the moments of Adam.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../../daemon/runs.bash"

python=$here/../../../build/python-venv/bin/python
[[ -x $python ]] || python=/usr/bin/python3
"$python" -c 'import torch, safetensors' 2>/dev/null || skip "PyTorch or safetensors is not installed (scripts/deps python)"
export PYTHONDONTWRITEBYTECODE=1

cat >"$scratch/reinforce.json" <<'JSON'
{"kind": "reinforce", "device": "cpu", "environment": {"name": "CartPoleNoVel-v1"},
 "observers": {"count": 0, "environments": 4},
 "algorithm": {"name": "ppo", "n_steps": 16, "batch_size": 32, "n_epochs": 2}, "log": {"every": 1}}
JSON
rollout_rows=64

# loads CELL UNITS LAYERS CRITIC KEYS: the checkpoint of a short run, whose /policy has these keys besides.
loads() {
    local run=$scratch/$1-$4
    run_job reinforce "$run" 2 --set "/policy={\"recurrent\":\"$1\",\"lstm_hidden_size\":$2,\"n_lstm_layers\":$3,
        \"hidden\":[8],$5}" >"$run.out" 2>&1 || { cat "$run.out"; return 1; }
    reads "$run" "${@:1:4}"
}

# reads RUN CELL UNITS LAYERS CRITIC: the run's newest checkpoint.
reads() {
    "$python" "$here/memory_files.py" "$1/checkpoints/$(newest_checkpoint "$1")" "${@:2}"
}

# refuses CELL UNITS LAYERS CRITIC: the checkpoint of the run above has other sizes.
refuses() {
    ! reads "$scratch/$1-$4" "$@" >"$scratch/words" 2>&1 && grep -q 'size mismatch for gru_actor.weight_ih_l0' "$scratch/words"
}

detached='"enable_critic_lstm": false, "shared_lstm": true'
linear='"enable_critic_lstm": false'
check "an LSTM, and one of the value's own" loads lstm 12 1 own '"ortho_init": false'
check "two layers of an LSTM that the value reads" loads lstm 5 2 detached "$detached"
check "an LSTM, and a linear layer for the value" loads lstm 16 1 linear "$linear"
check "an LSTM that policy and value share" loads lstm 16 1 shared "$detached, \"value_network\": \"shared\""
check "two layers of a GRU, and two of the value's own" loads gru 7 2 own '"ortho_init": true'
check "a GRU that the value reads" loads gru 16 1 detached "$detached"
check "another size is refused" refuses gru 8 2 own

finish
