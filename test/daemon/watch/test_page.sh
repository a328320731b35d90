#!/usr/bin/env bash
# The page of a run (daemon/watch/http/page.html) in headless Chromium: it follows the run, shows what dies, asks no other host, and
# can be read on a phone, in light and in dark.
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

# The page's own checks have their own summary line.
read_page() { # KIND VICTIM
    local job address run code=0 end=0
    local folder=$scratch/a-long-name-that-has-no-space-where-a-line-could-break-$1
    address=127.0.0.1:$(free_port)
    job_arguments "$1" "$folder" 1000000 --set "/metrics={\"listen\":\"$address\"}"
    "$COALESCED" run "${job[@]}" </dev/null >"$scratch/$1.out" 2>&1 &
    run=$!
    wait_for_number "$folder" 3
    mkdir "$scratch/chromium-$1"
    HOME=$scratch /usr/bin/python3 -B "$here/page.py" "http://$address/" "$run" "$2" "$scratch/chromium-$1" || code=$?
    [[ $code -eq 0 ]] || kill -TERM "$run" 2>/dev/null || true
    wait "$run" || end=$?
    check "the $1 job ends in good order" test "$end" = 0
    check "and its page could be read" test "$code" = 0
}

read_page reinforce observer
read_page parameter-server trainer
finish
