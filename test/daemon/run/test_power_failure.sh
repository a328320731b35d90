#!/usr/bin/env bash
# A loss of power: a job runs on a file system of its own, an ext4 in an image file. While all its processes are stopped the
# image is copied: the copy is what a disk has when the power fails. It is mounted, which recovers its journal, and the run
# in it is resumed. Needs loop mounts, which few containers permit. The moments are random.
#
#   - the copy's job.json is whole;
#   - its newest checkpoint is not ahead of its log;
#   - the resumed run ends with the log of a run that was never interrupted.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

failures_of_power=${POWER_FAILURES:-2} # of each kind of job

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

# freeze_a_run KIND N: runs the job on the image `disk` until its log has update or episode N, and copies the image meanwhile
# to `frozen`.
freeze_a_run() {
    local run=$place/run supervisor processes
    mkfs.ext4 -q -F "$scratch/disk" && mount -o loop "$scratch/disk" "$place" || return 1
    run_job "$1" "$run" 1000000000 >"$scratch/out" 2>&1 &
    wait_for_number "$run" "$2"
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

log_is_not_behind() {
    local newest last
    newest=$(newest_checkpoint "$place/run")
    last=$(last_number "$place/run")
    printf 'checkpoint %s, log %s\n' "$newest" "$last"
    [[ -n $newest && -n $last ]] && ((10#$newest <= last))
}

ends_as_undisturbed() {
    run_job "$1" "$place/run" "$(whole_epochs "$place/run")" --resume || return 1
    numbers "$place/run" >"$scratch/resumed"
    diff "$scratch/resumed" <(numbers "$scratch/$1" | head -n "$(wc -l <"$scratch/resumed")")
}

for kind in reinforce parameter-server model-parallel; do
    numbers=$([[ $kind == reinforce ]] && echo 2000 || echo 300) # more than a run makes before its power fails
    check "$kind: an undisturbed run" run_job "$kind" "$scratch/$kind" "$numbers" --set /checkpoint/every=1000
    for ((i = 1; i <= failures_of_power; i++)); do
        freeze_a_run "$kind" $((RANDOM % 60 + 4))
        check "$kind, failure $i: job.json is whole" job_is_whole
        check "$kind, failure $i: the log is not behind the newest checkpoint" log_is_not_behind
        check "$kind, failure $i: the resumed run ends as the undisturbed one" ends_as_undisturbed "$kind"
        unmount
    done
done

finish
