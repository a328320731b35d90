#!/usr/bin/env bash
# Plants defects in the GPU backend, one at a time, and requires that the stand-in for a GPU (test/gpu/gpu.h) finds each
# one: by the stand-in's own sentence, "gpu: …", or by a wrong number. A defect is an edit of one place in a copy of a file
# of kernels/cuda. The copy is compiled by the Makefile's own command and linked with the other files' objects. The same
# tests must pass on the plug-in without a defect.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

if [[ ! -e $BUILD/gpu/libcoalesced-cuda.so ]]; then
    skip "no stand-in for a GPU: the headers of CUDA and cuDNN are not installed"
fi
cd "$here/../.."
ulimit -c 0
export GPU_SEED=1

# The commands that compile each file and link the plug-in in $scratch/gpu. Below `make check`, make warns on stderr.
gpu=$scratch/gpu
make --no-print-directory -n GPU="$gpu" "$gpu/libcoalesced-cuda.so" >"$scratch/commands" 2>"$scratch/said" ||
    { cat "$scratch/said"; exit 1; }

# tries FOLDER PROGRAM CASE [OPERATION]: runs a case of a test program with the plug-in in FOLDER, in one process, which
# ends at the first misuse.
tries() {
    COALESCED_PLUGINS=$1 TEST_BACKEND=cuda TEST_OPERATION=${4:-} CK_RUN_CASE=$3 CK_FORK=no CK_DEFAULT_TIMEOUT=300 \
        "$BUILD/test/$2" >"$scratch/said" 2>&1
}

passes() {
    tries "$BUILD/gpu" "$@" || { tail -5 "$scratch/said"; return 1; }
    grep -q '^100%: Checks: [1-9]' "$scratch/said" || { tail -5 "$scratch/said"; return 1; }
}

# builds FILE: $gpu/libcoalesced-cuda.so from the copy $scratch/FILE and the objects of the other files.
builds() {
    local object=$gpu/kernels/cuda/${1%.cu}.o
    rm -rf "$gpu"
    mkdir -p "$gpu/kernels/cuda"
    ln -s "$BUILD"/gpu/kernels/cuda/*.o "$gpu/kernels/cuda/"
    rm "$object"
    eval "$(grep -F -e "-o $object " "$scratch/commands" | sed "s| kernels/cuda/$1\$| $scratch/$1|")" &&
        eval "$(grep -F -e "-o $gpu/libcoalesced-cuda.so " "$scratch/commands")"
}

# finds FILE EDIT SENTENCE PROGRAM CASE [OPERATION]: with sed's EDIT of kernels/cuda/FILE the case fails, and says
# SENTENCE, an extended regular expression.
finds() {
    local file=$1 edit=$2 sentence=$3 places
    sed "$edit" "kernels/cuda/$file" >"$scratch/$file"
    places=$(diff -U0 "kernels/cuda/$file" "$scratch/$file" | grep -c '^@@')
    [[ $places -eq 1 ]] || { printf 'the edit changes %d places of %s, expected 1\n' "$places" "$file"; return 1; }
    builds "$file" || return 1
    if tries "$gpu" "${@:4}"; then
        printf 'the test passes\n'
        return 1
    fi
    grep -Eq "$sentence" "$scratch/said" || { tail -5 "$scratch/said"; return 1; }
}

check "memory, without a defect" passes test_conformance_slab memory
check "the captured policy, without a defect" passes test_cuda cuda
for operation in linear embedding lstm tanh; do
    check "$operation, without a defect" passes test_conformance operations "$operation"
done

check "a wait that is missing" finds cuda_memory.cu \
    's/^    CUDA_TRY(about, cudaStreamSynchronize, cuda->stream);$/    (void)cuda, (void)about, (void)error;/' \
    'square sum of [0-9]+: .* expected' test_conformance_slab memory
check "an index that is off by one" finds cuda_elements.cu \
    's/y\[i\] = is_tanh/y[i + 1] = is_tanh/' \
    '^gpu: .*writes 4 bytes outside of memory' test_conformance operations tanh
check "a wrong offset" finds cuda_lstm.cu \
    's/(const char \*)gradients + piece->to,/(const char *)gradients + piece->from,/' \
    'gradient of weight_hh: deviates' test_conformance operations lstm
check "a barrier in a branch" finds cuda_rows.cu \
    's/^            keys\[base + i\] = held\[i\];$/&\n        if (threadIdx.x > 0)\n            __syncthreads();/' \
    '^gpu: .*threads of block .* wait at the barrier in .* have returned' test_conformance operations embedding
check "a barrier that is missing" finds cuda_rows.cu \
    '/^        __syncthreads();$/d' \
    '^gpu: .*a race: ' test_conformance operations embedding
check "a read of freed memory" finds cuda_memory.cu \
    's/^    TRY(fetch(cuda, cuda->memory->partial,/    cudaFree(cuda->memory->partial);\n&/' \
    '^gpu: .*from no device memory: byte 0 of a freed allocation' test_conformance_slab memory
check "a graph that captured a stale pointer" finds cuda_policy.cu \
    '/^    void \*workspace = /,/^    launch->workspace_bytes = /c\    (void)cuda, (void)launch;' \
    '^gpu: .*workSpace was freed after the call' test_cuda cuda
check "a descriptor with swapped sizes" finds cuda_conv.cu \
    's/cuda_describe(&plan->x, s->n, s->c,/cuda_describe(\&plan->x, s->c, s->n,/' \
    'the filter has 7 channels, and the images 1' test_conformance operations linear
check "half a workspace" finds cuda_conv.cu \
    's/cuda_workspace(cuda, choice->bytes, error)/cuda_workspace(cuda, choice->bytes \/ 2, error)/' \
    '^gpu: .*workSpace: [0-9]+ bytes at .* are not within one allocation' test_conformance operations linear
check "memory that is not set to zero" finds cuda_rows.cu \
    '/^    CUDA_TRY(dtable, cudaMemsetAsync, /,/;$/d' \
    'gradient of weight: deviates by inf' test_conformance operations embedding
check "a read of device memory by the host" finds cuda_memory.cu \
    's/= {staged, to, bytes, widens};/= {from, to, bytes, widens};/' \
    '^gpu: the host touches device memory: ' test_conformance_slab memory
check "a staging buffer that is filled while in use" finds cuda_memory.cu \
    's/^        CUDA_TRY(about, cudaEventSynchronize, .*$//' \
    'an_upload_leaves_its_source' test_cuda cuda
check "a descriptor that is never destroyed" finds cuda_backend.cu \
    's/^        cudnnDestroyFilterDescriptor(plan->weight);$/        plan->weight = NULL;/' \
    '^gpu: alive at exit: [0-9]+ of cudnnFilterDescriptor_t' test_conformance operations linear

finish
