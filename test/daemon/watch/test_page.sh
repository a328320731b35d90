#!/usr/bin/env bash
# The pages (daemon/watch/http/page/) in headless Chromium: of a run, which the page follows to its end, and of many runs. They show
# what dies, ask no other host, and can be read on a phone, in light and in dark.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

[[ -z $SAN ]] || skip "a browser takes long, and the page is no code of a sanitizer's"
for program in /usr/bin/chromium /usr/bin/chromedriver /usr/bin/python3; do
    [[ -x $program ]] || skip "$program is not installed (scripts/deps page)"
done
/usr/bin/python3 -c 'import selenium' 2>/dev/null || skip "python3-selenium is not installed (scripts/deps page)"

free_port() {
    /usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

read_page() { # NAME RUN|RUNS URL PID [VICTIM]: its own checks have their own summary line
    mkdir "$scratch/chromium-$1"
    HOME=$scratch /usr/bin/python3 -B "$here/page.py" "$scratch/chromium-$1" "${@:2}"
}
read_run() { # KIND VICTIM END [TOKEN]
    local job address run code=0 end=0 metrics user=
    local folder=$scratch/a-long-name-that-has-no-space-where-a-line-could-break-$1
    address=127.0.0.1:$(free_port)
    metrics="{\"listen\":\"$address\"}"
    if [[ -n ${4:-} ]]; then
        (umask 077 && echo "$4" >"$scratch/token")
        metrics="{\"listen\":\"$address\",\"token\":\"$scratch/token\"}" user=reader:$4@
    fi
    job_arguments "$1" "$folder" 1000000 --set "/metrics=$metrics"
    [[ $1 != reinforce ]] || job+=("${calm[@]}")
    "$COALESCED" run "${job[@]}" </dev/null >"$scratch/$1.out" 2>&1 &
    run=$!
    wait_for_number "$folder" 3
    read_page "$1" run "http://$user$address/" "$run" "$2" || code=$?
    [[ $code -eq 0 ]] || kill -TERM "$run" 2>/dev/null || true
    wait "$run" || end=$?
    check "the $1 job ends as it should" test "$end" = "$3"
    check "and its page could be read" test "$code" = 0
}
read_run reinforce observer 0 s3cret
read_run parameter-server trainer 137

# ---- many runs ----
runs=$scratch/runs code=0
for rate in 0.001 0.01; do
    for seed in 1 2; do
        run_job reinforce "$runs/night/lr=$rate,seed=$seed" 30 --set /optimizer/lr=$rate --set /seed=$seed --set /name=night >>"$scratch/runs.out" 2>&1
    done
done
start_run() { # NAME: its supervisor is $run
    local job
    job_arguments reinforce "$runs/$1" 1000000 "${calm[@]}" --set "/name=$1"
    "$COALESCED" run "${job[@]}" </dev/null >"$scratch/$1.out" 2>&1 &
    run=$!
    wait_for_number "$runs/$1" 3
}
start_run died
kill -KILL "$run"
wait "$run" 2>/dev/null || true
start_run running
address=127.0.0.1:$(free_port)
"$COALESCED" page "$runs" --listen "$address" </dev/null >"$scratch/page.out" 2>&1 &
server=$!
for ((try = 0; try < 600; try++)); do
    grep -q "the page of 6 runs is at http://$address" "$scratch/page.out" && break
    sleep 0.1
done
read_page runs runs "http://$address/" "$server" || code=$?
check "the page of many runs could be read" test "$code" = 0
kill -TERM "$server" 2>/dev/null || true
code=0 && { wait "$server" || code=$?; }
check "and its server ends in good order" test "$code" = 0
kill -TERM "$run"
code=0 && { wait "$run" || code=$?; }
check "so does the run" test "$code" = 0
finish
