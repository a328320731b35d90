#!/usr/bin/env bash
# How many lines of the GPU backend run in the tests on the stand-in (test/gpu/gpu.h), as gcov counts them: at least 95 %.
# The lines that do not run are listed here, each with its reason.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

if [[ ! -e $BUILD/gpu/libcoalesced-cuda.so ]]; then
    skip "no stand-in for a GPU: the headers of CUDA and cuDNN are not installed"
fi
if ! command -v gcov >/dev/null; then
    skip "there is no gcov"
fi
cd "$here/../.."

# A part of the line, and the reason.
declare -A reasons=(
    ['"no memory for the CUDA backend"']='the host has no memory left'
    ['"no memory for a plan"']='the host has no memory left'
    ['"no memory for the lengths of']='the host has no memory left'
    ['"no memory for copies to and from a GPU"']='the host has no memory left'
    ['"no memory to pin memory"']='the host has no memory left'
    ['"no memory for a captured policy"']='the host has no memory left'
)

builds() {
    make --no-print-directory -s COVERAGE=1 "$(realpath --relative-to=. "$BUILD")/gpu-coverage/libcoalesced-cuda.so"
}

export COALESCED_PLUGINS=$BUILD/gpu-coverage TEST_BACKEND=cuda CK_DEFAULT_TIMEOUT=300
# runs PROGRAM [CASE [OPERATION]]: runs a test program, or a case of it, for one operation.
runs() {
    env ${2:+CK_RUN_CASE=$2} TEST_OPERATION="${3:-}" "$BUILD/test/$1" >"$scratch/said" 2>&1 ||
        { tail -5 "$scratch/said"; return 1; }
}

enough() {
    awk -v least="$1" '$1 == "kernels/cuda:" { exit !($2 + 0 >= least + 0) } END { if (NR == 0) exit 1 }' "$scratch/lines" ||
        { tail -1 "$scratch/lines"; return 1; }
}

explained() {
    sed '$d' "$scratch/lines" | grep -Fv "$(printf '%s\n' "${!reasons[@]}")" | head -20 | grep . && { printf 'no reason is listed\n'; return 1; }
    local text
    for text in "${!reasons[@]}"; do
        grep -Fq "$text" "$scratch/lines" || { printf '%s: has run, or is no line any more\n' "$text"; return 1; }
    done
}

check "the plug-in for gcov is built" builds
test/gpu/coverage "$BUILD" --reset
check "calls that fail" runs test_cuda_faults
check "the captured policy" runs test_cuda cuda
for operation in "batch norm" tanh add lstm gru "cross entropy" sum; do
    check "$operation" runs test_conformance operations "$operation"
done
test/gpu/coverage "$BUILD" >"$scratch/lines"
check "95 % of the lines run" enough 95
check "every other line has a reason" explained
tail -1 "$scratch/lines"

finish
