#!/usr/bin/env bash
# Holds scripts/arrows against this checkout, which must pass, and against small trees in which one include
# runs backwards, each of which must fail and name the file. Compiles nothing; any build may run it.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
arrows=$here/../../scripts/arrows

# A tree in which each include is allowed, in the folder named by the argument.
good_tree() {
    mkdir -p "$1"/{kernels/{base,onednn,cuda},worker/{net,environment,reference,autograd,reinforce,data_parallel},daemon/supervise,test}
    (
        cd "$1"
        printf '#include <stdint.h>\n' >kernels/base/status.h
        printf '#include "kernels/base/status.h"\n' >kernels/kernels.h
        printf '#include <oneapi/dnnl/dnnl.h>\n#include <dnnl.h>\n' >kernels/onednn/conv.c
        printf '#include <cudnn.h>\n#include "kernels/kernels.h"\n' >kernels/cuda/conv.cu
        printf '#include "kernels/base/status.h"\n' >worker/net/wire.h
        printf '#include "worker/net/wire.h"\n' >worker/net/endpoint.h
        printf '#include "worker/net/endpoint.h"\n#include <zmq.h>\n' >worker/net/endpoint.c
        printf '#include "worker/net/endpoint.h"\n' >worker/net/rpc.h
        printf '#include "worker/net/rpc.h"\n' >worker/net/rpc_internal.h
        printf '#include "worker/net/rpc_internal.h"\n' >worker/net/rpc.c
        printf '#include "worker/net/rpc.h"\n' >worker/reference/rref.h
        printf '#include "worker/reference/rref.h"\n' >worker/autograd/dist.h
        printf '#include "kernels/base/status.h"\n' >worker/environment/cartpole.h
        printf '#include "worker/net/rpc.h"\n' >worker/worker.h
        printf '#include "worker/environment/cartpole.h"\n#include "worker/worker.h"\n' >worker/reinforce/agent.c
        printf '#include "worker/worker.h"\n' >worker/data_parallel/round.h
        printf '#include "worker/worker.h"\n#  include "worker/net/wire.h"\n' >daemon/supervise/supervise.h
        printf '#include <zmq.h>\n#include <check.h>\n#include "daemon/supervise/supervise.h"\n' >test/test_wire.c
        printf '#include "worker/net/rpc_internal.h"\n' >test/test_rpc.c
    )
}

# backwards FILE LINE: the good tree with LINE in FILE besides must fail, and name FILE.
backwards() {
    local tree=$scratch/bad output code=0
    rm -rf "$tree"
    good_tree "$tree"
    mkdir -p "$(dirname "$tree/$1")"
    printf '%s\n' "$2" >>"$tree/$1"
    output=$("$arrows" "$tree") || code=$?
    [[ $code -eq 1 && $output == "$1:"* ]]
}

empty_tree() {
    local code=0
    mkdir -p "$scratch/empty"
    "$arrows" "$scratch/empty" 2>/dev/null || code=$?
    [[ $code -eq 66 ]]
}

# Two modules that include each other: one's source the other's header, and the other way round.
circle() {
    local tree=$scratch/circle output code=0
    rm -rf "$tree"
    good_tree "$tree"
    printf '#include "worker/data_parallel/shards.h"\n' >"$tree/worker/data_parallel/round.c"
    printf '#include "worker/data_parallel/round.h"\n' >"$tree/worker/data_parallel/shards.h"
    output=$("$arrows" "$tree") || code=$?
    [[ $code -eq 1 && $output == *"worker/data_parallel/"*"which includes it"* ]]
}

good_tree "$scratch/good"
check "this checkout" "$arrows"
check "a tree without fault" "$arrows" "$scratch/good"
check "a tree without sources" empty_tree
check "two modules that include each other" circle
check "kernels include worker" backwards kernels/kernels.h '#include "worker/net/wire.h"'
check "kernels include daemon" backwards kernels/kernels.h '#include "daemon/supervise/supervise.h"'
check "base includes kernels" backwards kernels/base/log.c '#include "kernels/kernels.h"'
check "worker includes daemon" backwards worker/worker.c '#include "daemon/supervise/supervise.h"'
check "worker includes test" backwards worker/worker.c '#include "test/test_wire.c"'
check "net includes reference" backwards worker/net/rpc.c '#include "worker/reference/rref.h"'
check "reference includes autograd" backwards worker/reference/rref.c '#include "worker/autograd/dist.h"'
check "reference includes what is rpc's own" backwards worker/reference/rref.c '#include "worker/net/rpc_internal.h"'
check "a job kind includes another" backwards worker/reinforce/agent.c '#include "worker/data_parallel/round.h"'
check "rpc includes ZeroMQ" backwards worker/net/rpc.c '#include <zmq.h>'
check "endpoint's header includes ZeroMQ" backwards worker/net/endpoint.h '#include <zmq.h>'
check "daemon includes ZeroMQ" backwards daemon/supervise/supervise.c '#include <zmq.h>'
check "worker includes oneDNN" backwards worker/worker.c '#include <dnnl.h>'
check "oneDNN includes CUDA" backwards kernels/onednn/conv.c '#include <cuda_runtime.h>'
check "environment includes the net" backwards worker/environment/cartpole.c '#include "worker/net/wire.h"'
check "supervisor includes rpc" backwards daemon/hosts/child.c '#include "worker/net/rpc.h"'
check "angle brackets hide nothing" backwards worker/worker.c '#include <daemon/supervise/supervise.h>'
check "blanks hide nothing" backwards worker/worker.c '  #  include   "daemon/supervise/supervise.h"  /* so */'
check "a path that climbs" backwards worker/net/wire.h '#include "../../daemon/supervise/supervise.h"'
check "a header beside the file" backwards worker/net/wire.h '#include "endpoint.h"'
check "a computed include" backwards worker/worker.c '#include HEADER'
check "a file in no room" backwards worker/stray/stray.c '#include "worker/worker.h"'
finish
