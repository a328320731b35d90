#!/usr/bin/env bash
# The GPU backend on the stand-in for a GPU (test/gpu/gpu.h): every operation beside the oracle, PyTorch's records, and the
# captured policy under several seeds of the stand-in. GPU_SEEDS: how many seeds (5; 2 under a sanitizer). PyTorch's large
# language model takes a minute on the stand-in: scripts/gpu-check --stand-in runs it.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/gpu/stand_in.bash
source "$here/stand_in.bash"

# passes PROGRAM CASE: a case of a test program passes with the GPU as the one backend.
passes() {
    TEST_BACKEND=cuda CK_RUN_CASE=$2 CK_DEFAULT_TIMEOUT=300 "$BUILD/test/$1" >"$scratch/said" 2>&1 || { tail -5 "$scratch/said"; return 1; }
    grep -q '^100%: Checks: [1-9]' "$scratch/said" || { tail -5 "$scratch/said"; return 1; }
}
check "every operation, beside the oracle" passes test_conformance operations
check "memory of one slab" passes test_conformance_slab memory
check "chains of operations" passes test_conformance_chain chains
check "the policy's loss" passes test_conformance_policy policy
check "PyTorch's policy" passes test_policy_mlp_gpu_golden pytorch
check "PyTorch's small language model" passes test_rnn pytorch
check "policies of dense layers, beside the CPU" passes test_policy_tape_dense policy_tape_dense
if [[ -z $SAN ]]; then # numbers are no matter of a sanitizer
    check "policies with memory, beside the CPU" passes test_policy_tape_memory policy_tape_memory
    check "PyTorch's DQN of images" passes test_policy_dqn_images_golden policy_dqn_images_golden
    check "PyTorch's PPO of images, parts and memories" passes test_policy_images_golden policy_images_golden
    check "PyTorch's ResNets" passes test_resnet pytorch
fi
captured() {
    local seed
    for seed in $(seq "${GPU_SEEDS:-$([[ -n $SAN ]] && echo 2 || echo 5)}"); do
        GPU_SEED=$seed passes test_cuda cuda || { printf 'GPU_SEED=%s\n' "$seed"; return 1; }
    done
}
check "the captured policy and the optimizers, under every seed" captured

finish
