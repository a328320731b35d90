#!/usr/bin/env bash
# The HTTP server of a run (daemon/watch/http/http.h) among strangers: random requests, idle connections and readers that stall do
# not stop the job; no path is one of the file system; without the token nothing is told; and where it may listen.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

requests=3000 idle=1000 stalled_s=10
if [[ -n $SAN ]]; then
    requests=600 idle=200 stalled_s=3
    export HTTP_LIMIT_S=10
fi
seeds=(1 2)

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
start() { # RUN METRICS [FILES]: its supervisor is $run, which may have so many files open
    local job
    job_arguments reinforce "$1" 1000000 "${calm[@]}" --set "/metrics=$2"
    (ulimit -n "${3:-$(ulimit -n)}" && exec "$COALESCED" run "${job[@]}" </dev/null >"$1.out" 2>&1) &
    run=$!
    wait_for_number "$1" 2
}
stop() {
    kill -TERM "$run"
    code=0 && { wait "$run" || code=$?; }
    check "$1 ends in good order" test "$code" = 0
}
fails() { # CODE TEXT COMMAND...
    local expected=$1 text=$2 got=0
    "${@:3}" >"$scratch/failed" 2>&1 </dev/null || got=$?
    [[ $got -eq $expected ]] && grep -q -- "$text" "$scratch/failed" && return
    printf 'expected %d and "%s", got %d and:\n' "$expected" "$text" "$got"
    cat "$scratch/failed"
    return 1
}
answers() { # CODE TARGET [OPTION OF CURL]...
    local got
    got=$(curl --silent --max-time 30 --path-as-is --dump-header "$scratch/head" --output "$scratch/body" --write-out '%{http_code}' \
        "${@:3}" "$2") || true
    [[ $got == "$1" ]] && return
    echo "$*: $got"
    cat "$scratch/head" "$scratch/body"
    return 1
}
head_has() {
    grep -qix -- "$1"$'\r' "$scratch/head" && return
    cat "$scratch/head"
    return 1
}
lacks() {
    ! grep -q -- "$1" "$2"
}
body_is() {
    [[ $(<"$scratch/body") == "$1" ]]
}

# ---- among strangers ----
address=127.0.0.1:$(free_port)
start "$scratch/open" "{\"listen\":\"$address\"}"
trouble() {
    python3 -B "$here/http_fuzz.py" "$address" "$run" "$@"
}
restarts() {
    curl --silent "http://$address/status.json" | jq '[.workers[].restarts] | add'
}
check "no path is one of the file system" trouble paths
check "headers may come byte by byte" trouble slow
check "$idle idle connections stop nothing, and are closed" trouble idle "$idle"
check "nor do streams that nobody reads" trouble streams "$stalled_s"
for seed in "${seeds[@]}"; do
    printf 'seed %d\n' "$seed"
    check "nor do $requests requests of the seed $seed" trouble fuzz "$seed" "$requests"
done
check "no worker has died of it" test "$(restarts)" = 0

# ---- methods and documents ----
origin=http://$address
get_is_all() {
    local method
    for method in POST PUT DELETE OPTIONS PATCH; do
        answers 405 "$origin/metrics" --request "$method" && body_is "expected GET" || return
    done
    for method in GET HEAD PUT DELETE OPTIONS; do
        answers 405 "$origin/stop" --request "$method" --max-time 5 || return
    done
    answers 405 "$origin/" --data "a body" && answers 405 "$origin/" --data "a body" --header "Transfer-Encoding: chunked" &&
        answers 405 "$origin/" --upload-file "$COALESCED"
}
check "any method but GET and HEAD is refused, with a body too" get_is_all
head_is_get() {
    local path
    for path in / /metrics /status.json; do
        answers 200 "$origin$path" --head || return
    done
}
check "HEAD is answered" head_is_get
documents() {
    answers 200 "$origin/metrics" && head_has "content-type: text/plain; version=0.0.4; charset=utf-8" && head_has "cache-control: no-store" &&
        answers 200 "$origin/status.json" && jq -e ".pid == $run" <"$scratch/body" &&
        answers 200 "$origin/" && head_has "content-type: text/html; charset=utf-8" && head_has "content-security-policy: default-src 'none';.*" &&
        answers 200 "$origin/run.js" && head_has "content-type: text/javascript; charset=utf-8" && answers 200 "$origin/page.css" &&
        head_has "content-type: text/css; charset=utf-8" && answers 200 "$origin/dygraph.js" && grep -q "dygraphs/blob/.*LICENSE.txt (MIT)" "$scratch/body" &&
        answers 404 "$origin/runs.json" && answers 404 "$origin/run.json?id=0" && answers 404 "$origin/runs.js"
}
check "documents have their types" documents
no_token_no_order() {
    answers 403 "$origin/stop" --request POST && grep -q "an order needs /metrics/token" "$scratch/body" &&
        answers 403 "$origin/stop" --request POST --header "Origin: $origin" && answers 403 "$origin/checkpoint" --request POST --user :any
}
check "without a token no order is taken" no_token_no_order
# Prometheus' own header is the longest; a browser's names no format of metrics.
formats() {
    local accept text='text/plain; version=0.0.4; charset=utf-8' open='application/openmetrics-text; version=1.0.0; charset=utf-8'
    for accept in 'text/plain' '*/*' 'text/html,application/xhtml+xml,*/*;q=0.8' '' 'application/openmetrics-text;q=0,*/*' \
        'application/openmetrics-text;q=0.2,text/plain;version=0.0.4;q=0.5' 'application/openmetrics-text;q=nan,*/*' \
        'application/openmetrics-texts' 'x/application/openmetrics-text'; do
        answers 200 "$origin/metrics" --header "Accept: $accept" && head_has "content-type: $text" && ! grep -q '# EOF' "$scratch/body" || return
    done
    for accept in 'application/openmetrics-text' 'Application/OpenMetrics-Text; version=1.0.0 , text/plain' \
        'application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.1'; do
        answers 200 "$origin/metrics" --header "Accept: $accept" && head_has "content-type: $open" && grep -q '# EOF' "$scratch/body" || return
    done
}
check "metrics have the format that was asked for" formats
connections() {
    [[ $(curl --silent --output /dev/null --output /dev/null --write-out '%{num_connects}' "$origin/metrics" "$origin/status.json") == 10 ]]
}
check "a connection serves several requests" connections
other_names() {
    answers 403 "$origin/metrics" --header "Host: elsewhere.example" && answers 403 "$origin/" --header "Host: 127.0.0.1.example" &&
        answers 403 "$origin/" --header "Host: localhost.example" && answers 403 "$origin/" --header "Host: [::1].example" &&
        answers 200 "$origin/metrics" --header "Host: LOCALHOST:1" && answers 200 "$origin/metrics" --header "Host: [::1]:1" &&
        answers 403 "$origin/metrics" --header "Host;" && answers 403 "$origin/" --header "Host: localhost:80.evil.com" &&
        answers 403 "$origin/" --header "Host: localhost:80:evil" && answers 403 "$origin/" --header "Host: 127.0.0.1:80:90" &&
        answers 403 "$origin/" --header "Host: 127.999.0.1" && answers 200 "$origin/metrics" --header "Host: 127.0.0.2:80"
}
check "without a token, another host's name is refused" other_names
first=$run
start "$scratch/second" "{\"listen\":\"$address\"}"
second=$run
serves() { # PID: the run of this supervisor answers, within a minute
    local try
    for ((try = 0; try < 600; try++)); do
        [[ $(curl --silent --max-time 5 "$origin/status.json" | jq .pid) != "$1" ]] || return 0
        sleep 0.1
    done
    return 1
}
check "a job trains, though its address is in use" grep -q "another program listens at $address .* the job goes on without its page" \
    "$scratch/second.out"
check "the address is no other run's" serves "$first"
run=$first
stop "the job"
check "then the second job's page is served" serves "$second"
run=$second
stop "the second job"
check "the page is gone then" fails 7 "connect" curl --silent --show-error "$origin/"

# ---- few descriptors ----
address=127.0.0.1:$(free_port)
start "$scratch/few" "{\"listen\":\"$address\"}" 60
check "a full server leaves the job what it needs, and recovers" trouble full 300 "$scratch/few"
stop "a job with few descriptors"
start "$scratch/fewest" "{\"listen\":\"$address\"}" 37
check "a job with no descriptor to spare trains without a page, and says so" grep -q "leaves [0-9][0-9]* for /metrics/listen, which needs more than" \
    "$scratch/fewest.out"
stop "a job with no descriptor to spare"

# ---- the token ----
address=127.0.0.1:$(free_port)
origin=http://$address
token=$scratch/token
install -m 600 /dev/null "$token"
printf 's3cret:word\n' >"$token"
usual=$checkpoint checkpoint='{"every": 100000000, "keep": 2}'
start "$scratch/closed" "{\"listen\":\"$address\",\"token\":\"$token\"}"
checkpoint=$usual
strangers() {
    local path
    for path in / /metrics /status.json /events /none; do
        answers 401 "$origin$path" && head_has "www-authenticate: Basic realm=.*" && head_has "www-authenticate: Bearer realm=.*" &&
            body_is "expected the page's token" && answers 401 "$origin$path" --oauth2-bearer s3cret:wor &&
            answers 401 "$origin$path" --user "anyone:s3cret:worde" || return
    done
}
check "without the token nothing is told" strangers
near_misses() {
    local header
    for header in "Basic $(printf ':s3cret:word\0' | base64)" "Basic $(printf ':s3cret:word\0more' | base64)" \
        "Basic $(printf 's3cret' | base64)" "Basic Og==" "Bearer" "Bearer " "Bearer s3cret:word " "Bearer s3cret:wors3cret:wor" "Basic" "Basic AAAA" "Digest s3cret:word" "s3cret:word"; do
        answers 401 "$origin/metrics" --header "Authorization: $header" || return
    done
    answers 401 "$origin/metrics?token=s3cret:word"
}
check "nor with what is none" near_misses
with_token() {
    local path
    for path in / /metrics /status.json; do
        answers 200 "$origin$path" --oauth2-bearer s3cret:word && answers 200 "$origin$path" --user anyone:s3cret:word &&
            answers 200 "$origin$path" --user :s3cret:word || return
    done
    answers 404 "$origin/none" --oauth2-bearer s3cret:word && answers 200 "$origin/" --user :s3cret:word --header "Host: elsewhere.example"
}
check "the token opens, as bearer and as password, under any name" with_token
events() {
    answers 200 "$origin/events" "$@" --max-time 3
    grep -q '^event: tick$' "$scratch/body"
}
# A browser adds the password to requests of other servers' pages, too, but not a bearer's header.
strange_orders() {
    local order header
    for order in stop checkpoint; do
        answers 401 "$origin/$order" --request POST && answers 403 "$origin/$order" --request POST --user :s3cret:word || return
        for header in "Origin: http://elsewhere.example" "Origin: null" "Origin: $address" "Origin: $origin.evil.example" "Origin: http://x$address" "Origin;"; do
            answers 403 "$origin/$order" --request POST --user :s3cret:word --header "$header" || return
        done
    done
}
check "another server's page gives no order" strange_orders
checkpoints() {
    local try
    answers 200 "$origin/checkpoint" --request POST "$@" && body_is "the order is taken" || return
    for ((try = 0; try < 600; try++)); do
        [[ $(newest) == "$before" ]] || return 0
        sleep 0.1
    done
    return 1
}
newest() { curl --silent --user :s3cret:word "$origin/status.json" | jq .checkpoint; }
before=$(newest)
check "an order with the token takes a checkpoint" checkpoints --oauth2-bearer s3cret:word
before=$(newest)
check "so does the own page's" checkpoints --user :s3cret:word --header "Origin: $origin"
check "events too" events --oauth2-bearer s3cret:word
check "also to a browser" events --user :s3cret:word
# The end of the stream is an event, which says how the run ended.
curl --silent --user :s3cret:word --max-time 60 "$origin/events" >"$scratch/to-the-end" &
reader=$!
for ((try = 0; try < 600; try++)); do
    grep -q '^event: begin' "$scratch/to-the-end" && break
    sleep 0.1
done
check "an order to stop is taken" answers 200 "$origin/stop" --request POST --oauth2-bearer s3cret:word
kill -TERM "$run" 2>/dev/null || true
code=0 && { wait "$run" || code=$?; }
check "and ends the job in good order" test "$code" = 0
check "a signal behind it hurries nothing" lacks hurrying "$scratch/closed.out"
code=0 && { wait "$reader" || code=$?; }
check "its readers see a whole stream" test "$code" = 0
last_event() {
    grep -A1 '^event: end$' "$scratch/to-the-end" | sed -n 's/^data: //p' | jq -e '.state == "stopped" and .reason == "" and (.sum | test("episodes"))'
}
check "whose last event is the end" last_event

# ---- a socket's path ----
socket=$scratch/page.sock
by_path() {
    [[ $(stat -c '%a %F' "$socket") == "600 socket" ]] && answers 200 http://localhost/metrics --unix-socket "$socket" &&
        answers 200 http://elsewhere.example/ --unix-socket "$socket"
}
start "$scratch/by-path" "{\"listen\":\"$socket\"}"
check "a socket is served, to this user alone" by_path
warns() { # TEXT RUN: a run of one episode says so, and trains all the same
    run_job reinforce "$2" 1 --set "/metrics={\"listen\":\"$socket\"}" >"$2.out" 2>&1 && grep -q "$1.*: the job goes on without its page" "$2.out"
}
check "one in use is no other run's" warns "another program listens at $socket" "$scratch/third"
check "and is served still" by_path
kill -KILL "$run"
wait "$run" 2>/dev/null || true
start "$scratch/again" "{\"listen\":\"$socket\"}"
check "a killed run's socket is replaced" by_path
stop "a job with a socket"
check "which takes it along" test ! -e "$socket"
echo precious >"$socket"
check "a file is not replaced" warns "$socket is in the way" "$scratch/fourth"
check "but left as it is" test "$(<"$socket")" = precious

# ---- what `coalesced check` says ----
judge() { # KEY TEXT METRICS
    fails 78 "$1.*$2" "$COALESCED" check "$scratch/reinforce.json" --set "/metrics=$3"
}
chmod 640 "$token"
check "a token that others may read" judge /metrics/token "other users may read it" "{\"listen\":\"$address\",\"token\":\"$token\"}"
chmod 600 "$token"
: >"$token"
check "an empty token" judge /metrics/token "expected a token of" "{\"listen\":\"$address\",\"token\":\"$token\"}"
check "no token" fails 66 "/metrics/token: $scratch/none" "$COALESCED" check "$scratch/reinforce.json" \
    --set "/metrics={\"listen\":\"$address\",\"token\":\"$scratch/none\"}"
for address in 0.0.0.0:9477 '[::]:9477' 192.0.2.7:9477; do
    check "$address without a token" judge /metrics/listen "others can reach" "{\"listen\":\"$address\"}"
done
check "a name" judge /metrics/listen "expected an IP address and a port" '{"listen":"localhost:9477"}'
check "a textfile of another name" judge /metrics/textfile "ends in .prom" '{"textfile":"run.txt"}'
finish
