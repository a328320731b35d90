#!/usr/bin/env bash
# Holds scripts/arrows against this checkout, which must pass, and against small trees in which one include
# runs backwards, each of which must fail and name the file. Compiles nothing; any build may run it.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/shell.bash"
arrows=$here/../scripts/arrows

# A tree in which each include is allowed, in the folder named by the argument.
good_tree() {
    mkdir -p "$1"/{kernels/{base,onednn,cuda,ref},worker/{net,env,model},daemon,test}
    (
        cd "$1"
        printf '#include <stdint.h>\n' >kernels/base/status.h
        printf '#include "kernels/base/status.h"\n' >kernels/mlp.h
        printf '#include <oneapi/dnnl/dnnl.h>\n#include <dnnl.h>\n' >kernels/onednn/mlp.c
        printf '#include <cudnn.h>\n#include "kernels/mlp.h"\n' >kernels/cuda/mlp.c
        printf '#include "kernels/base/status.h"\n' >worker/net/wire.h
        printf '#include "worker/net/wire.h"\n' >worker/net/endpoint.h
        printf '#include "worker/net/endpoint.h"\n#include <zmq.h>\n' >worker/net/endpoint.c
        printf '#include "worker/net/endpoint.h"\n' >worker/net/endpoint_internal.h
        printf '#include "worker/net/endpoint_internal.h"\n#include <zmq.h>\n' >worker/net/endpoint_pair.c
        printf '#include "worker/net/endpoint.h"\n' >worker/net/rpc.h
        printf '#include "worker/net/rpc.h"\n' >worker/net/rpc_internal.h
        printf '#include "worker/net/rpc_internal.h"\n' >worker/net/future.c
        printf '#include "worker/net/rpc.h"\n' >worker/net/rref.h
        printf '#include "worker/net/rref.h"\n' >worker/net/dist.h
        printf '#include "kernels/mlp.h"\n' >worker/model/policy.h
        printf '#include "kernels/base/status.h"\n' >worker/coalescer.h
        printf '#include "worker/net/rpc.h"\n#include "worker/coalescer.h"\n' >worker/agent.c
        printf '#include "kernels/base/status.h"\n' >worker/env/cartpole.h
        printf '#include "worker/coalescer.h"\n#  include "worker/net/wire.h"\n' >daemon/supervise.h
        printf '#include <zmq.h>\n#include <check.h>\n#include "daemon/supervise.h"\n' >test/test_wire.c
    )
}

# backwards FILE LINE: the good tree with LINE in FILE besides must fail, and name FILE.
backwards() {
    local tree=$scratch/bad output code=0
    rm -rf "$tree"
    good_tree "$tree"
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

good_tree "$scratch/good"
check "this checkout" "$arrows"
check "a tree without fault" "$arrows" "$scratch/good"
check "a tree without sources" empty_tree
check "kernels include worker" backwards kernels/ref/mlp.c '#include "worker/net/wire.h"'
check "kernels include daemon" backwards kernels/mlp.h '#include "daemon/supervise.h"'
check "base includes kernels" backwards kernels/base/log.c '#include "kernels/mlp.h"'
check "worker includes daemon" backwards worker/agent.c '#include "daemon/supervise.h"'
check "worker includes test" backwards worker/agent.c '#include "test/test_wire.c"'
check "wire includes endpoint" backwards worker/net/wire.h '#include "worker/net/endpoint.h"'
check "wire includes rpc" backwards worker/net/wire.c '#include "worker/net/rpc.h"'
check "endpoint includes rpc" backwards worker/net/endpoint.c '#include "worker/net/rpc.h"'
check "rpc includes rref" backwards worker/net/rpc_future.c '#include "worker/net/rref.h"'
check "futures include rref" backwards worker/net/future.c '#include "worker/net/rref.h"'
check "rref includes dist" backwards worker/net/rref.c '#include "worker/net/dist.h"'
check "rpc includes ZeroMQ" backwards worker/net/rpc.c '#include <zmq.h>'
check "endpoint's header includes ZeroMQ" backwards worker/net/endpoint.h '#include <zmq.h>'
check "rpc includes what is endpoint's own" backwards worker/net/rpc.c '#include "worker/net/endpoint_internal.h"'
check "daemon includes ZeroMQ" backwards daemon/supervise.c '#include <zmq.h>'
check "worker includes oneDNN" backwards worker/agent.c '#include <dnnl.h>'
check "reference includes oneDNN" backwards kernels/ref/mlp.c '#include <oneapi/dnnl/dnnl.h>'
check "oneDNN includes CUDA" backwards kernels/onednn/mlp.c '#include <cuda_runtime.h>'
check "coalescer includes the net" backwards worker/coalescer.c '#include "worker/net/wire.h"'
check "coalescer includes kernels" backwards worker/coalescer.c '#include "kernels/mlp.h"'
check "environment includes the net" backwards worker/env/cartpole.c '#include "worker/net/wire.h"'
check "supervisor includes rpc" backwards daemon/child.c '#include "worker/net/rpc.h"'
check "angle brackets hide nothing" backwards worker/agent.c '#include <daemon/supervise.h>'
check "blanks hide nothing" backwards worker/agent.c '  #  include   "daemon/supervise.h"  /* so */'
check "a path that climbs" backwards worker/net/wire.h '#include "../../daemon/supervise.h"'
check "a header beside the file" backwards worker/net/wire.h '#include "endpoint.h"'
check "a computed include" backwards worker/agent.c '#include HEADER'
finish
