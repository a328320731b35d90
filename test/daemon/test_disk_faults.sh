#!/usr/bin/env bash
# A disk that is full, and a folder that may not be changed, while a job runs: the job ends with a message that names the file
# and the reason, no file is torn, and once there is room again the run is resumed and ends as one that nothing happened to.
# The disk is a file system of its own, an ext4 in an image file; needs loop mounts, which few containers permit.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

place=$scratch/mounted
mkdir "$place"

unmount() {
    chattr -R -i "$place" 2>/dev/null || true
    while mountpoint -q "$place" && ! umount "$place" 2>/dev/null; do sleep 0.05; done
}
trap 'unmount; rm -rf "$scratch"' EXIT

command -v mkfs.ext4 >/dev/null || skip "there is no mkfs.ext4"
truncate -s 32M "$scratch/disk"
mkfs.ext4 -q -F -m 0 "$scratch/disk"
mount -o loop "$scratch/disk" "$place" 2>"$scratch/why" || skip "loop mounts are not permitted: $(head -1 "$scratch/why")"

export XDG_RUNTIME_DIR=$scratch
cat >"$scratch/reinforce.json" <<'JSON'
{"kind": "reinforce", "device": "cpu", "observers": {"count": 2}, "rollout": {"steps": 20}, "log": {"every": 1}}
JSON
cat >"$scratch/parameter-server.json" <<'JSON'
{"kind": "parameter-server", "device": "cpu", "model": {"name": "resnet18", "classes": 10, "width": 8},
 "trainers": {"count": 2, "batch": 4, "threads": 1}, "data": {"size": 16}, "server": {"count": 2},
 "optimizer": {"lr": 0.01, "momentum": 0.9}, "log": {"every": 1}}
JSON
cat >"$scratch/model-parallel.json" <<'JSON'
{"kind": "model-parallel", "device": "cpu", "model": {"name": "rnn", "tokens": 10, "embedding": 2, "hidden": 3},
 "trainers": {"count": 1, "batch": 3, "threads": 1}, "data": {"kind": "synthetic", "steps": 5, "updates": 5},
 "optimizer": {"name": "sgd", "lr": 0.05}, "log": {"every": 1}}
JSON

# run_job KIND RUN UPDATES-OR-EPISODES [ARGUMENT]...
run_job() {
    local unit=updates
    [[ $1 != reinforce ]] || unit=episodes
    "$COALESCED" run "$scratch/$1.json" --run-dir "$2" --set "/stop={\"$unit\":$3}" \
        --set '/checkpoint={"every":2,"keep":2}' "${@:4}" </dev/null
}

numbers() {
    grep -v '^{"event"' "$1/episodes.jsonl" | sed 's/,"timing".*//'
}

last_number() {
    grep -Eo '^[{]"(update|episode)":[0-9]+' "$1/episodes.jsonl" | tail -1 | grep -o '[0-9]*$'
}

# begin KIND FAULT: an endless run in $place/run; the fault comes after its sixth line; the exit code in $scratch/code.
begin() {
    local run=$place/run code=0
    rm -rf "$run"
    run_job "$1" "$run" 1000000000 >"$scratch/said" 2>&1 &
    until grep -Eaq '"(update|episode)":6,' "$run/episodes.jsonl" 2>/dev/null; do sleep 0.02; done
    "$2"
    wait $! || code=$?
    echo "$code" >"$scratch/code"
}

fill_disk() {
    dd if=/dev/zero of="$place/filler" bs=4096 2>/dev/null || true
}

protect_checkpoints() {
    chattr +i "$place/run/checkpoints"
}

# ended_with CODE WORDS: the message names a file of the run, and the reason.
ended_with() {
    grep -v '^\(Update\|Episode\|Epoch\)' "$scratch/said"
    [[ $(cat "$scratch/code") -eq $1 ]] && grep -Eq "/run/[^ ]+.*$2" "$scratch/said"
}

is_whole() {
    local file
    for file in episodes.jsonl episodes.log; do
        [[ -z $(tail -c 1 "$place/run/$file" | tr -d '\n') ]] || return 1
    done
    [[ -z $(find "$place/run/checkpoints" -name '*.tmp') ]]
}

ends_as_undisturbed() {
    local last
    rm -f "$place/filler"
    chattr -i "$place/run/checkpoints"
    last=$(($(last_number "$place/run") / 5 * 5 + 10))
    run_job "$1" "$place/run" "$last" --resume && run_job "$1" "$scratch/$1-$last" "$last" &&
        diff <(numbers "$place/run" | grep -v '^{"epoch"') <(numbers "$scratch/$1-$last" | grep -v '^{"epoch"')
}

for kind in reinforce parameter-server model-parallel; do
    begin "$kind" fill_disk
    check "$kind: a full disk ends the job" ended_with 74 "No space left on device"
    check "$kind: a full disk tears no file" is_whole
    check "$kind: the run goes on where there is room" ends_as_undisturbed "$kind"
    begin "$kind" protect_checkpoints
    check "$kind: a protected folder ends the job" ended_with 77 "Operation not permitted"
    check "$kind: the run goes on where it is permitted" ends_as_undisturbed "$kind"
done

finish
