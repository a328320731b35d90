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

# power_fails KIND WHAT NUMBERS: a run makes fewer NUMBERS before its power fails.
power_fails() {
    check "$2: an undisturbed run" run_job "$1" "$scratch/$1" "$3" --set /checkpoint/every=1000
    for ((i = 1; i <= failures_of_power; i++)); do
        freeze_a_run "$1" $((RANDOM % 60 + 4))
        check "$2, failure $i: job.json is whole" job_is_whole
        check "$2, failure $i: the log is not behind the newest checkpoint" log_is_not_behind
        check "$2, failure $i: the resumed run ends as the undisturbed one" ends_as_undisturbed "$1"
        unmount
    done
}

power_fails reinforce reinforce 2000
power_fails parameter-server parameter-server 300
power_fails model-parallel model-parallel 300

# The ring has 600 rows to draw from: a run goes through it several times, and what the disk has of it is of several laps.
cat >"$scratch/reinforce.json" <<'JSON'
{"kind": "reinforce", "device": "cpu", "observers": {"count": 2, "environments": 3}, "environment": {"name": "CartPole-v1"},
 "algorithm": {"name": "dqn", "learning_starts": 100, "batch_size": 32, "train_freq": 4, "gradient_steps": 2, "buffer_size": 600,
 "target_update_interval": 60, "exploration_initial_eps": 0.3, "exploration_final_eps": 0.3},
 "policy": {"hidden": [16, 16]}, "rollout": {"steps": 32}, "log": {"every": 1}}
JSON
rollout_rows=192
checkpoint='{"every": 3, "keep": 2}'
power_fails reinforce 'a replay buffer' 300

finish
