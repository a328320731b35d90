#!/usr/bin/env bash
# A run whose job.json is missing or damaged goes on, where a checkpoint has the numbers of the job that is given, and its
# logs are those of an undisturbed run. Another job's start is refused, and nothing of the run changes.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

# goes_on KIND NAME WORD: the run, whose job.json is as WORD says, ends like the whole one and has a job.json again.
goes_on() {
    local run=$scratch/$1-$2 said
    said=$(run_job "$1" "$run" 12 --resume 2>&1) || { printf '%s\n' "$said" && return 1; }
    printf '%s\n' "$said"
    [[ $said == *"job.json is $3, and is written anew: a checkpoint of the run is of this job"* ]] &&
        diff <(numbers "$run") <(numbers "$scratch/$1-whole") && "$COALESCED" check "$run/job.json"
}

# is_refused CODE KIND NAME [ARGUMENT]...: the start ends with CODE, and leaves the run as it was.
is_refused() {
    local wanted=$1 run=$scratch/$2-$3 code=0 before
    before=$(sha256sum "$run"/episodes.* "$run/job.json" 2>&1 || true)
    run_job "$2" "$run" 12 --resume "${@:4}" || code=$?
    [[ $code -eq $wanted && $before == "$(sha256sum "$run"/episodes.* "$run/job.json" 2>&1 || true)" ]]
}

for kind in reinforce parameter-server model-parallel; do
    run_job "$kind" "$scratch/$kind-whole" 12 >/dev/null 2>&1
    run_job "$kind" "$scratch/$kind-missing" 6 >/dev/null 2>&1
    cp -r "$scratch/$kind-missing" "$scratch/$kind-damaged"
    rm "$scratch/$kind-missing/job.json"
    truncate -s 20 "$scratch/$kind-damaged/job.json"
    check "$kind: without job.json another seed is refused" is_refused 66 "$kind" missing --set /seed=8
    check "$kind: with a damaged one another seed is refused" is_refused 65 "$kind" damaged --set /seed=8
    check "$kind: without job.json the run goes on" goes_on "$kind" missing missing
    check "$kind: with a damaged one the run goes on" goes_on "$kind" damaged "damaged and now job.json.damaged"
    check "$kind: the damaged one is kept" test -s "$scratch/$kind-damaged/job.json.damaged"
done

finish
