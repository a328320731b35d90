#!/usr/bin/env bash
# A loss of power: a job runs on a file system of its own, an ext4 in an image file. While all its processes are stopped the
# image is copied: the copy is what a disk has when the power fails. It is mounted, which recovers its journal, and the run
# in it is resumed. Needs loop mounts, which few containers permit.
#
#   - the copy's job.json is whole;
#   - its newest checkpoint is not ahead of its log;
#   - the resumed run ends with the log of a run that was never interrupted.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

failures_of_power=2

place=$scratch/mounted
mkdir "$place"

# The last process of a killed run may still be on its way out.
unmount() {
    while mountpoint -q "$place" && ! umount "$place" 2>/dev/null; do sleep 0.05; done
}
trap 'unmount; rm -rf "$scratch"' EXIT

command -v mkfs.ext4 >/dev/null || skip "there is no mkfs.ext4"
truncate -s 64M "$scratch/disk"
mkfs.ext4 -q -F "$scratch/disk"
mount -o loop "$scratch/disk" "$place" 2>"$scratch/why" || skip "loop mounts are not permitted: $(head -1 "$scratch/why")"
unmount

export XDG_RUNTIME_DIR=$scratch
cat >"$scratch/ps.json" <<'JSON'
{"kind": "parameter-server", "device": "cpu", "model": {"name": "resnet18", "classes": 10, "width": 8},
 "trainers": {"count": 2, "batch": 4, "threads": 1}, "data": {"size": 16},
 "optimizer": {"lr": 0.01, "momentum": 0.9}, "log": {"every": 1}}
JSON
cat >"$scratch/mp.json" <<'JSON'
{"kind": "model-parallel", "device": "cpu", "model": {"name": "rnn", "tokens": 10, "embedding": 2, "hidden": 3},
 "trainers": {"count": 1, "batch": 3, "threads": 1}, "data": {"kind": "synthetic", "steps": 5, "updates": 5},
 "optimizer": {"name": "sgd", "lr": 0.05}, "log": {"every": 1}}
JSON

cat >"$scratch/reinforce.json" <<'JSON'
{"kind": "reinforce", "device": "cpu", "observers": {"count": 2}, "rollout": {"steps": 20}, "log": {"every": 1}}
JSON

# run_job JOB RUN UPDATES-OR-EPISODES CHECKPOINT-EVERY [--resume]
run_job() {
    local unit=updates
    [[ $1 != */reinforce.json ]] || unit=episodes
    "$COALESCED" run "$1" --run-dir "$2" --set "/stop={\"$unit\":$3}" --set "/checkpoint={\"every\":$4,\"keep\":2}" \
        "${@:5}" </dev/null >"$scratch/out" 2>&1
}

numbers() {
    grep -av '^{"event"' "$1" | sed 's/,"timing".*//'
}

# Runs the job on the image `disk` until its log has so many updates, and copies the image meanwhile to `frozen`.
freeze_a_run() {
    local job=$1 update=$2 run=$place/run supervisor processes
    mkfs.ext4 -q -F "$scratch/disk" && mount -o loop "$scratch/disk" "$place" || return 1
    run_job "$job" "$run" 1000000000 2 2>/dev/null &
    until grep -Eaq "\"(update|episode)\":$update," "$run/episodes.jsonl" 2>/dev/null; do sleep 0.02; done
    supervisor=$(cat "$run/lock")
    read -r -a processes <<<"$supervisor $(pgrep -P "$supervisor" | tr '\n' ' ')"
    kill -STOP "${processes[@]}"
    cp "$scratch/disk" "$scratch/frozen"
    kill -KILL "${processes[@]}"
    wait || true
    unmount
    mount -o loop "$scratch/frozen" "$place"
}

job_is_whole() {
    "$COALESCED" check "$place/run/job.json"
}

last_update() {
    grep -Eao '^[{]"(update|episode)":[0-9]+' "$1" | tail -1 | grep -o '[0-9]*'
}

log_is_not_behind() {
    local newest last
    newest=$(find "$place/run/checkpoints" -maxdepth 1 -regex '.*/[0-9]+' -printf '%f\n' | sort | tail -1)
    last=$(last_update "$place/run/episodes.jsonl")
    printf 'checkpoint %s, log %s\n' "$newest" "$last"
    [[ -n $newest && -n $last ]] && ((10#$newest <= last))
}

# The resumed run goes on to the end of an epoch of five updates, so that both logs have the same lines up to there.
ends_as_undisturbed() {
    local last
    last=$(($(last_update "$place/run/episodes.jsonl") / 5 * 5 + 10))
    run_job "$1" "$place/run" "$last" 2 --resume || {
        cat "$scratch/out"
        return 1
    }
    numbers "$place/run/episodes.jsonl" >"$scratch/resumed"
    diff "$scratch/resumed" <(numbers "$2/episodes.jsonl" | head -n "$(wc -l <"$scratch/resumed")")
}

for job in reinforce ps mp; do
    updates=$([[ $job == reinforce ]] && echo 2000 || echo 300) # more than a run makes before its power fails
    check "$job: an undisturbed run" run_job "$scratch/$job.json" "$scratch/$job" "$updates" 1000
    for ((i = 1; i <= failures_of_power; i++)); do
        freeze_a_run "$scratch/$job.json" $((6 * i))
        check "$job, failure $i: job.json is whole" job_is_whole
        check "$job, failure $i: the log is not behind the newest checkpoint" log_is_not_behind
        check "$job, failure $i: the resumed run ends as the undisturbed one" \
            ends_as_undisturbed "$scratch/$job.json" "$scratch/$job"
        unmount
    done
done

finish
