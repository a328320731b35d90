#!/usr/bin/env bash
# Exported models, judged by ONNX's checker and computed by onnxruntime: their outputs are ours, their constants the
# checkpoint's; and what `coalesced export` refuses.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../../daemon/runs.bash"

python=$here/../../../build/onnx-venv/bin/python
[[ -x $python ]] || skip "onnxruntime is not installed (scripts/deps onnx)"
export PYTHONDONTWRITEBYTECODE=1

reads() {
    "$python" "$here/onnx_reader.py" "$@"
}

writes_models() {
    mkdir "$scratch/models" && ONNX_OUTPUTS=$scratch/models "$BUILD/test/test_onnx"
}

# exports KIND N: a run of N updates or episodes, whose last checkpoint becomes a model with the same constants.
exports() {
    local run=$scratch/$1 newest
    run_job "$1" "$run" "$2" >"$run.out" 2>&1 || { cat "$run.out"; return 1; }
    newest=$run/checkpoints/$(newest_checkpoint "$run")
    "$COALESCED" export "$newest" --onnx "$run.onnx" && reads weights "$run.onnx" "$newest/model.safetensors"
}

# refuses EXIT PHRASE ARGUMENT...
refuses() {
    local code=0
    "$COALESCED" export "${@:3}" >"$scratch/words" 2>&1 || code=$?
    cat "$scratch/words"
    [[ $code -eq $1 ]] && grep -qF "$2" "$scratch/words"
}

check "the models are written" writes_models
check "onnxruntime's outputs are ours" reads compare "$scratch/models"

check "a policy" exports reinforce 3
check "a ResNet" exports parameter-server 2
check "a language model trains" run_job model-parallel "$scratch/language" 2
check "and is refused" refuses 78 'is of a job of the kind "model-parallel": expected a policy or a ResNet' \
    "$scratch/language/checkpoints/$(newest_checkpoint "$scratch/language")" --onnx "$scratch/no.onnx"
check "without a file" refuses 64 'expected --onnx FILE' "$scratch/language"
check "without a checkpoint" refuses 64 'expected one run or checkpoint' --onnx "$scratch/no.onnx"
check "a folder that is none" refuses 66 "expected a run's folder" "$scratch" --onnx "$scratch/no.onnx"
newest=$scratch/reinforce/checkpoints/$(newest_checkpoint "$scratch/reinforce")
check "a file that cannot be made" refuses 66 "cannot write $scratch/none/no.onnx" "$newest" --onnx "$scratch/none/no.onnx"
check "nothing is left of these" test ! -e "$scratch/no.onnx"

sed -i 's/"rollout": {"steps": 20}/"algorithm": {"name": "ppo", "n_steps": 32}, "normalize": {"norm_obs": true}/' \
    "$scratch/reinforce.json"
rollout_rows=64
check "a policy of PPO, which normalizes" exports reinforce 2

# A policy with memory: its constants are the checkpoint's too, whatever order ONNX has its gates in.
cp "$scratch/reinforce.json" "$scratch/plain.json"
for memory in '"lstm", "n_lstm_layers": 2' '"gru", "enable_critic_lstm": false' \
    '"lstm", "enable_critic_lstm": false, "shared_lstm": true'; do
    sed "s/\"normalize\"/\"policy\": {\"recurrent\": $memory, \"lstm_hidden_size\": 9}, &/" "$scratch/plain.json" \
        >"$scratch/reinforce.json"
    rm -rf "$scratch/reinforce"
    check "a policy with memory: $memory" exports reinforce 2
    check "its state is an output" grep -qa h_out "$scratch/reinforce.onnx"
done

finish
