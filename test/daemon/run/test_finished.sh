#!/usr/bin/env bash
# `coalesced run --resume` of a run that has ended: it exits 0 and changes nothing, also where the run's lock or port is
# another's; and it goes on where /stop asks for more, or where the log does not say that the run has ended.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

said=$scratch/said
resumes() { # KIND N [ARGUMENT]...
    run_job "$1" "$scratch/$1" "${@:2}" --resume >"$said" 2>&1
}
files() {
    (cd "$scratch/$1" && find . -type f -exec sha256sum {} + | sort)
}
is_over() { # KIND [ARGUMENT]...
    files "$1" >"$scratch/before" && resumes "$1" 4 "${@:2}" && diff "$scratch/before" <(files "$1") &&
        grep -q 'has ended, and /stop asks for no more' "$said"
}
with_lock_taken() {
    local job
    job_arguments "$1" "$scratch/$1" 4 --resume
    flock "$scratch/$1/lock" "$COALESCED" run "${job[@]}"
}
tells_the_service_manager() {
    local socket=$scratch/notify
    python3 -c 'import socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
listener.bind(sys.argv[1])
print("there", flush=True)
listener.settimeout(60)
sys.exit("READY=1" not in listener.recv(4096).decode().split("\n"))' "$socket" >"$scratch/listens" &
    until [[ -s $scratch/listens ]]; do sleep 0.02; done
    NOTIFY_SOCKET=$socket resumes reinforce 4 && wait $!
}
goes_on() { # KIND N LAST
    resumes "$1" "$2" && [[ $(last_number "$scratch/$1") -eq $3 ]] && grep -q '"event":"resumed"' "$scratch/$1/episodes.jsonl"
}
is_another_job() {
    local got=0
    resumes "$1" 4 --set /seed=9 || got=$?
    [[ $got -eq 78 ]]
}

for kind in reinforce parameter-server model-parallel; do
    check "$kind: a run" run_job "$kind" "$scratch/$kind" 4
    check "$kind: resumed, it is over, and no file changes" is_over "$kind"
    check "$kind: its lock is not wanted" with_lock_taken "$kind"
    check "$kind: nor are sockets and ports" is_over "$kind" --set '/metrics={"listen":"/nowhere/page.sock"}'
    check "$kind: a job of other keys is refused as ever" is_another_job "$kind"
done
check "the service manager learns that it was ready" tells_the_service_manager
for kind in reinforce parameter-server model-parallel; do
    check "$kind: a later stop goes on" goes_on "$kind" 6 6
    sed -i '$d' "$scratch/$kind/episodes.jsonl" # its last event
    check "$kind: without its last event it is not over" goes_on "$kind" 6 6
    check "$kind: then it is" grep -q '"event":"finished"' <(tail -1 "$scratch/$kind/episodes.jsonl")
done

# ---- the last line ----
lines_are() { # RUN NUMBER...
    diff <(sed -En 's/^(Episode|Update) ([0-9]+)\t.*/\2/p' "$scratch/$1/episodes.log") <(printf '%s\n' "${@:2}")
}
sixth() { # RUN
    numbers "$scratch/$1" | grep -E '^\{"(episode|update)":6,'
}
# A later stop leaves the line of the earlier one where it is, and changes no other.
has_a_last_line() { # KIND
    run_job "$1" "$scratch/part" 4 --set /log/every=3 && lines_are part 3 4 &&
        run_job "$1" "$scratch/part" 6 --set /log/every=3 --resume && lines_are part 3 4 6 &&
        run_job "$1" "$scratch/whole" 6 --set /log/every=3 && lines_are whole 3 6 &&
        diff <(sixth part) <(sixth whole)
}
for kind in reinforce parameter-server model-parallel; do
    check "$kind: the last line is there, whatever /log/every is" has_a_last_line "$kind"
    rm -rf "$scratch/part" "$scratch/whole"
done
finish
