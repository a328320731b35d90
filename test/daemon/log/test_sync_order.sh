#!/usr/bin/env bash
# What a loss of power leaves: the order in which a run writes, syncs and renames its files, seen by a preloaded library
# (test/preload/file_order.c) and checked line by line.
#
#   - job.json is synced before it gets its name, and so is the folder behind the rename, before the first checkpoint;
#   - each folder that the run makes is synced into the folder that it lies in;
#   - a checkpoint becomes visible when both logs are on the disk as far as the checkpoint's line;
#   - a log that is left at SIGUSR1 is synced.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"

[[ -z ${SAN:-} ]] || skip "a sanitizer's own library must be loaded first"

export XDG_RUNTIME_DIR=$scratch
library=$BUILD/test/preload/file_order.so

# run_noted NAME ARGUMENT...: runs a job in $scratch/NAME/deep/run and writes the order to $scratch/NAME.order.
run_noted() {
    local name=$1
    shift
    mkdir -p "$scratch/$name"
    FILE_ORDER=$scratch/$name.order LD_PRELOAD=$library "$COALESCED" run "$@" --set /device=cpu \
        --run-dir "$scratch/$name/deep/run" >"$scratch/$name.out" 2>&1 </dev/null
}

parameter_server() {
    cat >"$scratch/ps.json" <<'JSON'
{"kind": "parameter-server", "model": {"name": "resnet18", "classes": 10, "width": 8},
 "trainers": {"count": 2, "batch": 4, "threads": 1}, "data": {"size": 16},
 "optimizer": {"lr": 0.01, "momentum": 0.9}, "log": {"every": 1}, "stop": {"updates": 9}, "checkpoint": {"every": 2, "keep": 2}}
JSON
    run_noted "$1" "$scratch/ps.json" "${@:2}"
}

# A line for every third update: a checkpoint's newest line may lie before its own update.
model_parallel() {
    run_noted "$1" config/rnn.json --set /log/every=3 --set '/checkpoint={"every":4,"keep":2}' \
        --set '/stop={"updates":25}' "${@:2}"
}

# checkpoints_follow_logs NAME EVERY: at each rename of N.tmp to N the newest line up to N was written and synced.
checkpoints_follow_logs() {
    awk -v every="$2" '
        function number(text) { gsub(/[^0-9]/, "", text); return text + 0 }
        $1 == "write" && $2 ~ /\/episodes\.jsonl$/ && /{"(update|episode)":/ { written["jsonl"] = number($NF) }
        $1 == "write" && $2 ~ /\/episodes\.log$/ && / (Update|Episode) / { written["log"] = number($NF) }
        $1 == "sync-begin" && $2 ~ /\/episodes\./ { sub(/.*\./, "", $2); begun[$2] = written[$2] }
        $1 == "sync-end" && $2 ~ /\/episodes\./ { sub(/.*\./, "", $2); synced[$2] = begun[$2] }
        $1 == "rename" && $2 ~ /\.tmp$/ && $3 ~ /\/[0-9]+$/ {
            sub(/.*\//, "", $3)
            line = $3 - $3 % every
            seen++
            for (file in written)
                if (synced[file] < line) {
                    printf "checkpoint %d: episodes.%s is synced up to %d\n", $3, file, synced[file]
                    bad = 1
                }
        }
        END { if (seen < 4) { print seen + 0, "checkpoints"; bad = 1 } exit bad }' "$scratch/$1.order"
}

# job_is_synced NAME: job.json.tmp is synced, renamed, and the folder synced, before a checkpoint is renamed.
job_is_synced() {
    awk '
        $1 == "sync-end" && $2 ~ /\/job\.json\.tmp$/ { file = 1 }
        $1 == "rename" && $3 ~ /job\.json$/ { named = file; if (!file) { print "job.json is renamed unsynced"; exit } }
        $1 == "sync-end" && $2 ~ /\/deep\/run$/ { folder = named }
        $1 == "rename" && $3 ~ /\/[0-9]+$/ { exit }
        END { exit !folder }' "$scratch/$1.order"
}

# parents_are_synced NAME: the new folders deep/ and deep/run/ are synced into the folders that they lie in.
parents_are_synced() {
    grep -q "^sync-end $scratch/$1 " "$scratch/$1.order" && grep -q "^sync-end $scratch/$1/deep " "$scratch/$1.order"
}

reinforce() {
    cat >"$scratch/reinforce.json" <<'JSON'
{"kind": "reinforce", "observers": {"count": 2}, "rollout": {"steps": 20}, "log": {"every": 1}, "stop": {"episodes": 9},
 "checkpoint": {"every": 2, "keep": 2}}
JSON
    run_noted "$1" "$scratch/reinforce.json" "${@:2}"
}

check "reinforce: the job runs" reinforce reinforce
check "reinforce: logs are on the disk before a checkpoint is visible" checkpoints_follow_logs reinforce 1
check "reinforce: job.json is on the disk before the first checkpoint" job_is_synced reinforce

for kind in parameter_server model_parallel; do
    for transport in shared inline; do
        name=$kind-$transport
        check "$name: the job runs" "$kind" "$name" --set "/transport=$transport"
        every=$([[ $kind == model_parallel ]] && echo 3 || echo 1)
        check "$name: logs are on the disk before a checkpoint is visible" checkpoints_follow_logs "$name" "$every"
        check "$name: job.json is on the disk before the first checkpoint" job_is_synced "$name"
        check "$name: new folders are on the disk" parents_are_synced "$name"
    done
done

# Renames both logs of a running job, which goes on in new ones.
rotate() {
    local run=$scratch/rotate/deep/run pid
    mkdir -p "$scratch/rotate"
    FILE_ORDER=$scratch/rotate.order LD_PRELOAD=$library "$COALESCED" run config/rnn.json --set /device=cpu \
        --set '/stop={"updates":1000000000}' --run-dir "$run" >"$scratch/rotate.out" 2>&1 </dev/null &
    pid=$!
    until grep -q '"update":20,' "$run/episodes.jsonl" 2>/dev/null; do sleep 0.05; done
    mv "$run/episodes.jsonl" "$run/old.jsonl" && mv "$run/episodes.log" "$run/old.log"
    kill -USR1 "$pid"
    until [[ -s $run/episodes.jsonl ]]; do sleep 0.05; done
    kill -TERM "$pid" && wait "$pid" && grep -q "^sync-end $run/old.jsonl" "$scratch/rotate.order" &&
        grep -q "^sync-end $run/old.log" "$scratch/rotate.order"
}
check "a log that is left is on the disk" rotate

finish
