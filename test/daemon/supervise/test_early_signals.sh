#!/usr/bin/env bash
# An order to stop ends a run with 0 from its first instants on: while the job is checked, the run's directory and the data
# are opened, and the workers start.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

# catches PID NUMBER: whether it is our program and has a handler for the signal, as from the beginning of main on.
catches() {
    local mask
    [[ $(<"/proc/$1/comm") == coalesced ]] || return 1
    mask=$(sed -n 's/^SigCgt:\t//p' "/proc/$1/status") && (((16#$mask >> ($2 - 1)) & 1))
}

# stops SIGNAL NUMBER SECONDS: that long after the beginning of main.
stops() {
    local run=$scratch/run job code=0
    rm -rf "$run"
    run_job reinforce "$run" 2000 >"$run.out" 2>&1 &
    job=$!
    until catches "$job" "$2" 2>/dev/null || ! kill -0 "$job" 2>/dev/null; do :; done
    sleep "$3"
    kill -"$1" "$job" || return 1
    wait "$job" || code=$?
    [[ $code -eq 0 ]] || { echo "exit $code"; cat "$run.out"; return 1; }
}

# run_job in place of the shell's copy of itself, which would be what the signal ends.
run_job() {
    local job
    job_arguments "$@"
    exec "$COALESCED" run "${job[@]}" </dev/null
}

for after in 0 0.002 0.005 0.01 0.02 0.04 0.08 0.15 0.3 0.5; do
    check "SIGTERM after $after s" stops TERM 15 "$after"
    check "SIGINT after $after s" stops INT 2 "$after"
done

finish
