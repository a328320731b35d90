#!/usr/bin/env bash
# coalesced status and stop: what they say of runs is true, a reader that stalls stops nothing, and a run is found by its
# directory and by its name, also when it has ended.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

endless=1000000
start() { # KIND RUN [ARGUMENT]...: its supervisor is $run
    local job
    job_arguments "$1" "$2" "$endless" "${@:3}"
    [[ $1 != reinforce ]] || job+=("${calm[@]}")
    "$COALESCED" run "${job[@]}" </dev/null >"$2.out" 2>&1 &
    run=$!
    wait_for_number "$2" 3
}
status() {
    "$COALESCED" status "$@"
}
fails() { # CODE TEXT ARGUMENT...
    local expected=$1 text=$2 got=0
    "$COALESCED" "${@:3}" >"$scratch/failed" 2>&1 </dev/null || got=$?
    [[ $got -eq $expected ]] && grep -q -- "$text" "$scratch/failed" && return
    printf 'expected %d and "%s", got %d and:\n' "$expected" "$text" "$got"
    cat "$scratch/failed"
    return 1
}
# Waits until jq's FILTER is true of the run's status.
becomes() { # RUN FILTER
    local end=$((SECONDS + 60))
    until status "$1" --json | jq -e "$2" >/dev/null; do
        if [[ $SECONDS -ge $end ]]; then
            status "$1" --json
            return 1
        fi
        sleep 0.1
    done
}

# ---- one run ----
one=$scratch/one
start reinforce "$one" --set /observers/count=3
check "the document says what runs" becomes "$one" '.kind == "reinforce" and .state == "training" and .pid == '"$run"' and
    .generation == 1 and (.progress.episode >= 3) and (.progress.running_reward != null) and (.workers | length) == 4'
check "each worker has its process, its time and its memory" becomes "$one" \
    '[.workers[] | select(.pid > 0 and .cpu_s > 0 and .resident_bytes > 1e6 and .state == "running")] | length == 4'
check "and its rate" becomes "$one" '[.workers[] | select(.work_per_s > 0)] | length == 4'
processes() {
    diff <(status "$one" --json | jq -r '.workers[].pid' | sort) <(pgrep -P "$run" | sort)
}
check "the processes are the supervisor's" processes
path_is_named() {
    [[ $(status "$one" --json | jq -r .run) == "$(readlink -f "$one")" ]]
}
check "the run is named by its directory" path_is_named
called=$(status "$one" --json | jq -r .name)
found_by_name() {
    status "$called" | grep -q "^observer 3  *running"
}
check "its name finds it too" found_by_name
list_has_it() {
    (cd "$scratch" && "$COALESCED" list --running) | grep -Eq "^one	running	episode [0-9]+/$endless  0 %	running reward [0-9.-]+	(ETA [^	]*)?	[0-9.]+ MiB	$"
}
check "list has it on a line" list_has_it
only_the_user_may_ask() {
    [[ $(find "$scratch" -name '*.sock.status' -type s -printf '%m %h\n') == "600 $scratch/coalesced" ]]
}
check "only the user may ask" only_the_user_may_ask

# ---- a worker dies ----
old=$(status "$one" --json | jq '.workers[2].pid')
kill -9 "$old"
check "a worker that died is another process, and has restarted once" becomes "$one" \
    ".workers[2].pid != null and .workers[2].pid != $old and .workers[2].restarts == 1 and .workers[2].incarnation == 2"
kill -9 "$(status "$one" --json | jq '.workers[0].pid')"
check "with the agent all begin again" becomes "$one" \
    '.generation == 2 and .state == "training" and ([.workers[] | select(.restarts >= 1)] | length == 4)'

# ---- readers that stall ----
cat >"$scratch/stall.py" <<'PY'
import socket, sys, time
held = []
for _ in range(50):
    s = socket.socket(socket.AF_UNIX)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    s.connect(sys.argv[1])
    held.append(s)
print("connected", flush=True)
time.sleep(60)
PY
python3 "$scratch/stall.py" "$(find "$scratch/coalesced" -name '*.sock.status')" >"$scratch/stalled" &
stalled=$!
until grep -qs connected "$scratch/stalled"; do sleep 0.05; done
goes_on() {
    local number
    number=$(last_number "$one") && wait_for_number "$one" $((number + 3)) && status "$one" --json | jq -e .pid >/dev/null
}
check "fifty readers that do not read stop nothing" goes_on
kill "$stalled"

# ---- a run that hangs ----
kill -STOP "$run"
check "a run that does not answer is named" fails 66 "the run of process $run does not answer within 2 s" status "$one"
kill -CONT "$run"
check "and answers again" becomes "$one" ".pid == $run"

# ---- sockets of others ----
# Listens as user UID. Answers with the text, or without a text sends a byte now and then.
cat >"$scratch/answers.py" <<'PY'
import os, socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.bind(sys.argv[1])
os.setuid(int(sys.argv[2]))
s.listen()
print("listens", flush=True)
while True:
    client = s.accept()[0]
    try:
        client.sendall(sys.argv[3].encode())
        while not sys.argv[3]:
            client.sendall(b" ")
            time.sleep(0.1)
    except OSError:
        pass
    client.close()
PY
answers() { # UID TEXT: its process is $answering
    rm -f "$scratch/coalesced/other.sock.status" "$scratch/answers"
    python3 "$scratch/answers.py" "$scratch/coalesced/other.sock.status" "$1" "$2" >"$scratch/answers" &
    answering=$!
    until grep -qs listens "$scratch/answers"; do sleep 0.05; done
}
ends() { # TEXT: list and status come to an end, and list says so
    timeout 300 "$COALESCED" list --running >"$scratch/listed" 2>"$scratch/said" && cat "$scratch/listed" "$scratch/said" &&
        grep -q "$1" "$scratch/said"
}
answers "$EUID" ""
check "a socket that sends a byte now and then holds nobody up" ends "the run of process $answering does not answer within 2 s"
kill "$answering"
claims() { # UID FOLDER
    answers "$1" "{\"run\": \"$scratch/$2\", \"name\": \"pole\"}"
}
lists() { # the paths and states below a/b
    (cd "$scratch" && "$COALESCED" list 2>/dev/null) | grep '^a/b/' | cut -f1,2 | sort | paste -sd ' ' >"$scratch/listed"
    cat "$scratch/listed"
    [[ $(cat "$scratch/listed") == "$1" ]]
}
# Deeper than list looks below the folder of a run of this user.
if [[ $EUID -eq 0 ]]; then
    chmod 755 "$scratch"
    mkdir -p "$scratch"/a/b/{root,strange}/{pole,beside}
    touch "$scratch"/a/b/{root,strange}/{pole,beside}/episodes.jsonl
    chown 65533 "$scratch/a/b/strange/pole"
    claims 65533 a/b/root/pole
    check "a stranger who names a folder of root's is not believed" \
        ends "process $answering of user 65533 is not shown: the process says that it runs $scratch/a/b/root/pole,"
    check "and nothing of it is listed" lists ""
    kill "$answering"
    claims 65533 a/b/strange/pole
    check "a stranger's own folder is listed, without those beside it" lists "a/b/strange/pole	running"
    kill "$answering"
    claims 0 a/b/root/pole
    check "a folder of this user is listed with those beside it" lists "a/b/root/beside	died a/b/root/pole	running"
    kill "$answering"
fi
rm -f "$scratch/coalesced/other.sock.status"

# ---- several runs ----
two=$scratch/two
first=$run
start parameter-server "$two" --set /server/count=1 --set '/server/round=async 4'
check "trainers have a staleness" becomes "$two" '[.workers[] | select(.role == "trainer" and .staleness != null)] | length >= 1'
check "and the server a wait" becomes "$two" '.workers[0].role == "pserver" and .workers[0].wait_s != null and .progress.samples_per_s > 0'
# Another test of this machine may have a run too.
folder=$(readlink -f "$scratch")
check "without a name all runs are told" test "$(status --json | jq "[.runs[] | select(.run | startswith(\"$folder/\"))] | length")" = 2
check "list has two lines" test "$("$COALESCED" list --running | grep -c "^$folder/")" = 2
check "a run that is not there" fails 66 "no run is called" status "$scratch/none"
check "nor anything to stop" fails 66 "is not running" stop nobody
check "stop needs a run" fails 64 "expected one run" stop
check "list names a folder that is not there" fails 66 "cannot read none" list none
check "and what is no folder" fails 66 "cannot read .*/reinforce.json: Not a directory" list "$scratch/reinforce.json"
check "--running is one of list" fails 64 "belongs to list" status --running
check "a checkpoint's option is not one of status" fails 64 "belongs to" status --episodes 3
kill -TERM "$run" # what follows does not need it
wait "$run" || true
three=$scratch/other/one
mkdir "$scratch/other"
start reinforce "$three"
check "a name that two runs have" fails 78 "2 runs have the name" status "$called"
check "a directory is one run's alone" becomes "$three" ".pid == $run"
running_below() { # FOLDER EXPECTED: the paths
    [[ $("$COALESCED" list --running "$1" | cut -f1) == "$2" ]]
}
check "list --running with a folder has what runs there" running_below "$scratch/other" "$folder/other/one"
check "and nothing else" running_below "$scratch/other/one/checkpoints" ""

# ---- an agent that steps its environments itself ----
echo '{"kind": "reinforce", "observers": {"count": 0}, "algorithm": {"name": "ppo"}, "stop": {"steps": 1e9}}' >"$scratch/own.json"
"$COALESCED" run "$scratch/own.json" --run-dir "$scratch/own" </dev/null >"$scratch/own.out" 2>&1 &
wait_for_number "$scratch/own" 3
own=$!
check "its steps are its work" becomes "$scratch/own" '.workers[0].work_per_s > 100'
mv "$scratch/own" "$scratch/moved"
check "a run that was moved is found at its new place" becomes "$scratch/moved" ".pid == $own and .run == \"$folder/moved\""
listed_once() {
    "$COALESCED" list "$scratch" | cut -f1 >"$scratch/listed" && grep -qx "$folder/moved" "$scratch/listed" && ! grep -qx "$folder/own" "$scratch/listed"
}
check "and listed there alone" listed_once
"$COALESCED" stop "$scratch/moved" >/dev/null 2>&1
wait $own

# ---- an evaluation ----
echo '{"kind": "reinforce", "observers": {"count": 0}, "algorithm": {"name": "ppo"}, "evaluation": {"every": 1, "episodes": 10000},
    "stop": {"steps": 1e9}}' >"$scratch/own.json"
"$COALESCED" run "$scratch/own.json" --run-dir "$scratch/own" </dev/null >"$scratch/own.out" 2>&1 &
check "an evaluation says how far it has come" becomes "$scratch/own" '(.state | test("^evaluating [0-9]+/10000$")) and
    .progress.evaluating.done < .progress.evaluating.total and .progress.evaluating.total == 10000'
says_evaluating() {
    local end=$((SECONDS + 60))
    until "$COALESCED" status "$scratch/own" | grep -Eq ', evaluating [0-9]+/10000, up [0-9]'; do
        [[ $SECONDS -lt $end ]] || return 1
        sleep 0.1
    done
}
check "as words, too" says_evaluating
"$COALESCED" stop "$scratch/own" >/dev/null 2>&1
wait $!

# ---- watching and stopping ----
"$COALESCED" status "$three" --watch >"$scratch/watched" 2>&1 &
watching=$!
until [[ $(grep -c "^agent 0" "$scratch/watched") -ge 2 ]]; do sleep 0.1; done
check "stop ends the run" "$COALESCED" stop "$three"
code=0 && { wait "$run" || code=$?; }
check "in good order" test "$code" = 0
check "as its log says" grep -q '"event":"stopped"' "$three/episodes.jsonl"
code=0 && { wait "$watching" || code=$?; }
check "who watches ends then" test "$code" = 0
check "with the run's end" grep -q "^$three: reinforce, stopped on 20" "$scratch/watched"
check "behind the last state" grep -q "^agent 0" "$scratch/watched"
tells_the_end() { # RUN
    status "$1" >"$scratch/end" && grep -q "^$folder/other/one: reinforce, stopped on 20" "$scratch/end" &&
        grep -Eq '^[0-9]+ episodes, running reward ' "$scratch/end" && grep -q '^checkpoint [0-9]' "$scratch/end" &&
        grep -qF "coalesced run $folder/other/one/job.json --run-dir $folder/other/one --resume" "$scratch/end" &&
        grep -qF "coalesced play $folder/other/one" "$scratch/end"
}
check "a run that has ended tells how" tells_the_end "$three"
check "as a document, too" test "$(status "$three" --json | jq -r '[.state, .resumable, .pid] | join(" ")')" = "stopped true "
can_be_pasted() {
    local words place="$folder/it's \$here"
    cp -r "$three" "$place" && status "$place" >"$scratch/end" && cat "$scratch/end" &&
        eval "words=($(sed -n 's/^to go on: //p' "$scratch/end"))" && [[ ${words[2]} == "$place/job.json" && ${words[4]} == "$place" ]] &&
        eval "words=($(sed -n 's/^to use it: //p' "$scratch/end"))" && [[ ${words[2]} == "$place" ]]
}
check "its commands are a shell's words" can_be_pasted
tells_the_end_by_name() {
    mkdir "$scratch/usual" && ln -s usual "$scratch/link" && mv "$three" "$scratch/usual/other" &&
        STATE_DIRECTORY=$scratch/link status "$called" --json | jq -e '.pid == null and .state == "stopped"'
}
kill -TERM "$first"
wait "$first" || true
check "its job's name finds it too" tells_the_end_by_name
check "no socket is left" test -z "$(find "$scratch" -name '*.sock.status')"
finish
