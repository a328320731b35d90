#!/usr/bin/env bash
# A disk that is full, and a folder that may not be changed, while a job runs: the job ends with a message that names the file
# and the reason, no file is torn, and once there is room again the run is resumed and ends as one that nothing happened to.
# The disk is a file system of its own, an ext4 in an image file; needs loop mounts, which few containers permit.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

place=$scratch/mounted
mkdir "$place"

unmount() {
    chattr -R -i "$place" 2>/dev/null || true
    while mountpoint -q "$place" && ! umount "$place" 2>/dev/null; do sleep 0.05; done
}
trap 'umount "$scratch/small" 2>/dev/null || true; unmount; rm -rf "$scratch"' EXIT

command -v mkfs.ext4 >/dev/null || skip "there is no mkfs.ext4"
truncate -s 32M "$scratch/disk"
mkfs.ext4 -q -F -m 0 "$scratch/disk"
mount -o loop "$scratch/disk" "$place" 2>"$scratch/why" || skip "loop mounts are not permitted: $(head -1 "$scratch/why")"

# begin KIND FAULT: an endless run in $place/run; the fault comes after its sixth line; the exit code in $scratch/code.
begin() {
    local run=$place/run code=0
    rm -rf "$run"
    run_job "$1" "$run" 1000000000 >"$scratch/said" 2>&1 &
    wait_for_number "$run" 6
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
    last=$(whole_epochs "$place/run")
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

# Two blocks: the lock and job.json fit, the log's first line does not.
mkdir "$scratch/small"
mount -t tmpfs -o size=8k none "$scratch/small"
cannot_start() {
    local code=0
    run_job reinforce "$scratch/small/run" 4 >"$scratch/said" 2>&1 || code=$?
    cat "$scratch/said"
    [[ $code -eq 74 && $(grep -c 'episodes.jsonl: No space left on device' "$scratch/said") -eq 1 ]]
}
check "a start that fails says so once" cannot_start

finish
