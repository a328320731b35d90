#!/usr/bin/env bash
# Under each limit on processes (ulimit -u) and on memory (ulimit -v) a job runs, or ends with a sentence and an exit code of
# the table. libzmq would abort where it cannot start its threads.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

[[ -z ${SAN:-} ]] || skip "a sanitizer needs memory and processes of its own"

# ends_well CODES COMMAND...: the exit code is one of CODES, and nothing was aborted.
ends_well() {
    local code=0
    "${@:2}" >"$scratch/out" 2>&1 </dev/null || code=$?
    cat "$scratch/out" >>"$scratch/all"
    [[ " $1 " == *" $code "* ]] && ! grep -E 'signal|Assertion|abort' "$scratch/out" && return 0
    printf 'exit %d\n' "$code"
    cat "$scratch/out"
    return 1
}

with_memory() {
    (ulimit -v "$1" && exec "${@:2}")
}

# Threads that do not start, or room that is looked for before they do.
says() {
    grep -qE "(cannot start the threads of ZeroMQ|ZeroMQ needs room for [0-9]+ MiB more) \(limits: .*$1\)" "$scratch/all"
}

job_arguments reinforce "$scratch/run" 2 --set /observers/count=1
for ((kib = 12000; kib <= 150000; kib += 6000)); do
    with_memory "$kib" "$COALESCED" --version >/dev/null 2>&1 || continue # the loader's own failure
    check "$kib KiB of memory" ends_well "0 70 74" with_memory "$kib" "$COALESCED" run "${job[@]}"
done
check "a job that had too little memory said so" says "KiB of memory"

if [[ $(id -u) -eq 0 ]]; then
    # The limit does not bind root. Nobody else has this number.
    chmod 755 "$scratch"
    mkdir -m 777 "$scratch/open"
    install -m 755 "$COALESCED" "$scratch/program"
    job_arguments reinforce "$scratch/open/run" 2 --set /observers/count=1
    as_another() {
        setpriv --reuid=54321 --regid=54321 --clear-groups prlimit --nproc="$1:$1" \
            env XDG_RUNTIME_DIR="$scratch/open" "$scratch/program" run "${job[@]}"
    }
    for count in {2..12}; do
        check "$count processes" ends_well "0 74" as_another "$count"
    done
    check "a job that had too few processes said so" says "processes"
fi

finish
