#!/usr/bin/env bash
# Jobs on several hosts, all of them on this machine: the numbers are those of one host, also when a host dies, falls
# silent and comes back, departs, comes late or never, and when the leader dies; keys that are missing, wrong or readable;
# another build.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"
# shellcheck source=test/daemon/hosts/hosts.bash
source "$here/hosts.bash"

# A step takes a millisecond: most jobs here only have to go on while hosts come and go.
cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 5}, "rollout": {"steps": 20}, "log": {"every": 1},
 "environment": {"plugin": "$(readlink -f "$BUILD")/test/preload/environment_toy.so", "name": "Slow-v0"}}
JSON

alone() { # KIND LAST [ARGUMENT]...: the run of one host, $scratch/KIND.one
    rm -rf "$scratch/$1.one" && run_job "$1" "$scratch/$1.one" "${@:2}" >/dev/null 2>&1
}
same_as_alone() { # KIND RUN
    diff <(numbers "$scratch/$1.one") <(numbers "$2")
}
# As far as both have come, and that is behind the last thing that the test did to the run.
agrees() { # RUN
    local lines
    numbers "$scratch/reinforce.one" >"$scratch/one.numbers"
    numbers "$1" >"$scratch/numbers"
    lines=$(cat "$scratch/one.numbers" "$scratch/numbers" | sort | uniq -d | wc -l)
    cmp <(head -n "$lines" "$scratch/one.numbers") <(head -n "$lines" "$scratch/numbers") &&
        { [[ $lines -eq $(wc -l <"$scratch/numbers") ]] || [[ $lines -eq $last ]]; }
}
# The job is stopped once it has got further.
stop_hosts() { # N RUN
    wait_for_number "$2" $(($(last_number "$2") + 5))
    kill -TERM "${host[0]}"
    end_hosts "$1"
}
endless=1000000
all_end_well() { # N
    local i
    for ((i = 0; i < $1; i++)); do
        [[ ${code[$i]} -eq 0 ]] || {
            printf 'host %d ended with code %d\n' "$i" "${code[$i]}"
            return 1
        }
    done
}

# ---- keys ----
check "keys are made" make_keys 3
secrets_are_private() {
    [[ $(stat -c %a "$scratch/keys" "$scratch"/keys/host-?.secret | sort -u | tr '\n' ' ') == "600 700 " ]]
}
check "only their owner can read the secret ones" secrets_are_private
refuses() { # CODE TEXT ARGUMENT...
    local expected=$1 text=$2 got=0
    timeout 60 "$COALESCED" "${@:3}" >"$scratch/refusal" 2>&1 </dev/null || got=$?
    [[ $got -eq $expected ]] && grep -q -- "$text" "$scratch/refusal" && return
    printf 'expected %d and "%s", got %d and:\n' "$expected" "$text" "$got"
    cat "$scratch/refusal"
    return 1
}
file=$scratch/reinforce.json
on=(--leader "127.0.0.1:$port")
check "keys that are there stay" refuses 75 "is there already" keygen "$scratch/keys"
check "a host without keys is refused" refuses 78 "only with keys" run "$file" --node 0/2 "${on[@]}"
check "so is a host of no number" refuses 64 "expected I/N" run "$file" --node 2/2 "${on[@]}" --keys "$scratch/keys"
check "and flags that have no node" refuses 64 "belong to a start with --node" run "$file" "${on[@]}"
check "and a leader without a port" refuses 78 "expected HOST:PORT" run "$file" --node 1/2 --leader here --keys "$scratch/keys"
check "and more hosts than keys" refuses 78 "has the keys of 3 hosts" run "$file" --node 0/4 "${on[@]}" --keys "$scratch/keys"
cp -r "$scratch/keys" "$scratch/open" && chmod 644 "$scratch/open/host-1.secret"
check "a secret key that others may read" refuses 78 "other users may read" run "$file" --node 1/2 "${on[@]}" --keys "$scratch/open"
cp -r "$scratch/keys" "$scratch/mixed" && cp "$scratch/keys/host-2.secret" "$scratch/mixed/host-1.secret"
check "a secret key of another host" refuses 78 "does not belong to host 1" run "$file" --node 1/2 "${on[@]}" --keys "$scratch/mixed"
sed 's/^1 ../1 zz/' "$scratch/keys/hosts" >"$scratch/mixed/hosts"
check "a public key that is none" refuses 78 "hosts:2: expected \"1 KEY\"" run "$file" --node 1/2 "${on[@]}" --keys "$scratch/mixed"
check "an interface that is not there" refuses 78 "no network interface" run "$file" --node 0/2 "${on[@]}" --keys "$scratch/keys" --set /listen=nowhere9
check "a leader that is not there" refuses 70 "no leader has answered" run "$file" --node 1/2 "${on[@]}" --keys "$scratch/keys" --set /hosts/patience_s=1
# A leader that cannot start says so to the others, and a host hears at once that its key is not known.
echo blocked >"$scratch/blocked"
hears_of_failure() {
    local status=0 pid
    start_host 1 2 reinforce "$scratch/waiting" 12 --set /hosts/patience_s=50
    pid=${host[1]}
    timeout 60 "$COALESCED" run "$file" --node 0/2 "${on[@]}" --keys "$scratch/keys" --run-dir "$scratch/blocked/run" \
        </dev/null >"$scratch/leader" 2>&1 || status=$?
    [[ $status -eq 74 ]] || { cat "$scratch/leader"; return 1; }
    says "$scratch/waiting.1" "the leader refuses host 1: cannot make the directory" || return 1
    status=0
    wait "$pid" || status=$?
    [[ $status -eq 74 ]]
}
check "a leader that cannot start tells the others" hears_of_failure
"$COALESCED" keygen "$scratch/other" --hosts 3 >/dev/null
cp -r "$scratch/keys" "$scratch/foreign" && cp "$scratch/other/host-1.secret" "$scratch/foreign/"
{ grep ^0 "$scratch/keys/hosts"; grep '^[12]' "$scratch/other/hosts"; } >"$scratch/foreign/hosts"
cp -r "$scratch/keys" "$scratch/mistaken"
{ grep ^0 "$scratch/other/hosts"; grep '^[12]' "$scratch/keys/hosts"; } >"$scratch/mistaken/hosts"
# is_told KEYS TEXT: host 1 with these keys says why the leader does not take it, while the leader waits.
is_told() {
    local pid
    "$COALESCED" run "$file" --node 1/2 "${on[@]}" --keys "$scratch/$1" --run-dir "$scratch/stranger" </dev/null >"$scratch/$1.out" 2>&1 &
    pid=$!
    says "$scratch/$1.out" "$2" || return 1
    kill "$pid"
    wait "$pid" || true
}
start_host 0 2 reinforce "$scratch/lonely" 12 --set /hosts/patience_s=1000
check "a host whose key the leader does not list is told so" is_told foreign 'refuses the key of host 1: expected the line "1 KEY"'
check "a host with another key of the leader's, too" is_told mistaken 'ends the handshake: expected the line "0 KEY"'
kill -9 "${host[0]}"
wait "${host[0]}" || true

# ---- the same numbers ----
for kind in reinforce parameter-server model-parallel; do
    arguments=(--set /hosts/patience_s=60)
    [[ $kind != model-parallel ]] || arguments+=(--set /hosts/trainers=others)
    check "$kind: one host" alone "$kind" 12 "${arguments[@]}"
    start_hosts 3 "$kind" "$scratch/$kind.three" 12 "${arguments[@]}"
    end_hosts 3
    check "$kind: three hosts end" all_end_well 3
    check "$kind: and have the same numbers" same_as_alone "$kind" "$scratch/$kind.three"
done

# ---- messages alone, servers on all hosts, workers in Python ----
alike() { # NAME KIND [ARGUMENT]...
    check "$1: one host" alone "$2" 12 "${@:3}"
    start_hosts 3 "$2" "$scratch/alike" 12 "${@:3}"
    end_hosts 3
    check "$1: three hosts end" all_end_well 3
    check "$1: and have the same numbers" same_as_alone "$2" "$scratch/alike"
}
alike "gradients in messages" parameter-server --set /transport=inline
alike "servers on all hosts" parameter-server --set /hosts/servers=even
python=$(readlink -m "$here/../../../build/gymnasium-venv/bin")/python
if [[ -x $python ]]; then
    alike "observers in Python" reinforce --set /environment="{\"gymnasium\": \"CartPole-v1\", \"python\": \"$python\"}"
else
    printf '%s: skipped: observers in Python: no Gymnasium (scripts/deps gymnasium)\n' "$(basename "$0")"
fi

# ---- hosts that find each other: through a run directory that they share, and by PMI ----
alone reinforce 12
run=$scratch/folder
job_arguments reinforce "$run" 12 --set /listen=lo
for i in 0 1 2; do
    SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=$i SLURM_JOB_ID=7 "$COALESCED" run "${job[@]}" </dev/null >"$run.$i" 2>&1 &
    host[$i]=$!
done
end_hosts 3
check "a shared run directory: three hosts end" all_end_well 3
check "all of them were there" says "$run.0" "host 2 (.*) is here, from 127.0.0.1"
check "they have the numbers of one host" same_as_alone reinforce "$run"
check "what they found each other by is gone" test ! -e "$run/hosts"
run=$scratch/pmi
job_arguments reinforce "$run" 12 --set /listen=lo
check "PMI: three hosts end" env TASK_OUTPUT="$run" python3 "$here/pmi_server.py" 3 "$COALESCED" run "${job[@]}"
check "all of them were there" says "$run.0" "host 2 (.*) is here, from 127.0.0.1"
check "they have the numbers of one host" same_as_alone reinforce "$run"
check "one task is a job of one host" env TASK_OUTPUT="$run" python3 "$here/pmi_server.py" 1 "$COALESCED" run "${job[@]}"

# ---- a host dies; the job goes on without it, and the next one to come takes its place ----
last=$([[ -n ${SAN:-} ]] && echo 300 || echo 600)
check "a longer run" alone reinforce "$last"
run=$scratch/dies
start_hosts 3 reinforce "$run" $endless
says "$run.0" "^Episode 20"
kill -9 "${host[1]}"
wait "${host[1]}" 2>/dev/null || true
check "the leader misses a host that is killed" says "$run.0" "host 1 (.*) is lost: nothing was heard of it for 3 s"
check "its workers start elsewhere" says "$run.0" "incarnation 2 takes its place"
start_host 1 3 reinforce "$run" $endless
check "the host comes again" says "$run.0" "host 1 (.*) is back"
stop_hosts 3 "$run"
check "all three end" all_end_well 3
check "the numbers are those of one host" agrees "$run"

# ---- a host is silent for a while: its workers end themselves, and it comes back ----
run=$scratch/silent
start_hosts 2 reinforce "$run" $endless
says "$run.0" "^Episode 20"
observers=$(workers_of "${host[1]}" observer)
links=$(workers_of "${host[1]}" link)
# shellcheck disable=SC2086 # numbers
kill -STOP "${host[1]}" $observers $links
check "the leader misses it" says "$run.0" "host 1 (.*) is lost"
# shellcheck disable=SC2086
kill -CONT "${host[1]}" $observers $links
check "the host notices that it was cut off" says "$run.1" "nothing was heard of the leader for 3 s: the workers of this host end"
check "it comes back" says "$run.0" "host 1 (.*) is back"
are_gone() {
    local worker
    for worker in $observers; do
        ! kill -0 "$worker" 2>/dev/null || return 1
    done
}
check "its workers are gone by then" are_gone
stop_hosts 2 "$run"
check "both end" all_end_well 2
check "the numbers are those of one host" agrees "$run"

# ---- two hosts with one number; the end of a job while a host is cut off ----
run=$scratch/twins
start_hosts 2 reinforce "$run" $endless
says "$run.0" "^Episode 20"
check "a second host of the same number is not taken" refuses 70 "host 1 is here already, at 127.0.0.1" run "$file" \
    --node 1/2 --leader "127.0.0.1:$port" --keys "$scratch/keys" --set /hosts/patience_s=3
check "the first one goes on" kill -0 "${host[1]}"
wait_for_number "$run" $(($(last_number "$run") + 5))
links=$(workers_of "${host[0]}" link)
# shellcheck disable=SC2086 # numbers
kill -9 $links
kill -TERM "${host[0]}"
end_hosts 2
check "a host that was cut off hears that the job is over" all_end_well 2
check "the numbers are those of one host" agrees "$run"

# ---- a host whose workers cannot run ----
run=$scratch/unfit
port=$((port + 1))
start_host 0 2 reinforce "$run" $endless
(ulimit -n 20 && exec "$COALESCED" run "$file" --node 1/2 --leader "127.0.0.1:$port" --keys "$scratch/keys" >"$run.1" 2>&1 </dev/null) &
host[1]=$!
check "a host that cannot run workers is named" says "$run.0" "host 1 (.*) cannot run workers"
stop_hosts 2 "$run"
check "the job goes on without it" all_end_well 2
check "the numbers are those of one host" agrees "$run"

# ---- a host departs ----
run=$scratch/departs
start_hosts 3 reinforce "$run" $endless
says "$run.0" "^Episode 20"
kill -TERM "${host[2]}"
check "the leader moves the workers of a host that departs" says "$run.0" "host 2 (.*) departs"
check "the host ends" says "$run.2" "this host has left the job"
stop_hosts 3 "$run"
check "all three end" all_end_well 3
check "the numbers are those of one host" agrees "$run"

# ---- a host joins a running job, and brings observers ----
run=$scratch/joined
start_hosts 1 reinforce "$run" $endless
says "$run.0" "^Episode 20"
at=tcp://127.0.0.1:$port
mkdir "$scratch/one" && cp "$scratch/keys/hosts" "$scratch/keys/host-2.secret" "$scratch/one"
check "to join needs a key" refuses 64 "expected --keys DIR" join "$at" --observers 2
check "and a number of workers" refuses 64 "expected --keys DIR, and --observers N" join "$at" --keys "$scratch/one"
check "and to know which key is one's own" refuses 78 "3 files host-N.secret" join "$at" --keys "$scratch/keys" --observers 2
check "and not the leader's" refuses 78 "host 0 leads" join "$at" --keys "$scratch/keys" --node 0/1 --observers 2
check "a job of observers gets no trainers" refuses 78 "the job has observers" join "$at" --keys "$scratch/one" --trainers 2
check "and not more than it may have" refuses 78 "/observers/count: expected an integer" join "$at" --keys "$scratch/one" --observers 1024
join_host() { # ARGUMENT...
    "$COALESCED" join "$at" --keys "$scratch/one" "$@" >"$run.2" 2>&1 </dev/null &
    host[1]=$!
}
# The run's log says that the job goes on with so many, and each number comes once.
goes_on_with() { # KEY N
    says "$run/episodes.jsonl" "\"event\":\"resumed\".*\"reason\":\"the number of $1 changes.*\"$1\":$2,"
}
has_each_once() {
    numbers "$run" | grep -Eo '^[{]"(episode|update)":[0-9]+' | grep -o '[0-9]*$' >"$scratch/each"
    cmp "$scratch/each" <(seq "$(wc -l <"$scratch/each")")
}
has_workers() { # ROLE N
    local end=$((SECONDS + 60))
    until [[ $(workers_of "${host[1]}" "$1" | wc -l) -eq $2 ]]; do
        [[ $SECONDS -lt $end ]] || return 1
        sleep 0.05
    done
}
join_host --observers 2
check "the host that joins brings two observers" goes_on_with observers 7
check "they run there" has_workers observer 2
wait_for_number "$run" $(($(last_number "$run") + 5))
kill -TERM "${host[1]}"
check "the host departs" says "$run.2" "this host has left the job"
check "and they with it" goes_on_with observers 5
wait_for_number "$run" $(($(last_number "$run") + 5))
join_host --observers 3
check "it joins again" goes_on_with observers 8
check "with three" has_workers observer 3

# ---- one host comes while another goes ----
mkdir "$scratch/two" && cp "$scratch/keys/hosts" "$scratch/keys/host-1.secret" "$scratch/two"
"$COALESCED" join "$at" --keys "$scratch/two" --observers 1 >"$run.1" 2>&1 </dev/null &
other=$!
check "a second host joins" says "$run.0" "goes on with 9 observers"
has_workers_of() { # PROCESS N
    local end=$((SECONDS + 60))
    until [[ $(workers_of "$1" observer | wc -l) -eq $2 ]]; do
        [[ $SECONDS -lt $end ]] || return 1
        sleep 0.05
    done
}
check "with one observer" has_workers_of "$other" 1
kill -TERM "${host[1]}"
wait "${host[1]}" || true
join_host --observers 2
kill -TERM "$other"
wait "$other" || true
check "one goes, one comes" goes_on_with observers 7
check "and the one that came has what it brings" has_workers observer 2
wait_for_number "$run" $(($(last_number "$run") + 5))
kill -9 "${host[1]}"
stop_hosts 1 "$run" 2>/dev/null
check "it is killed, and the job ends well all the same" all_end_well 1
check "each episode has one line" has_each_once
before_joining() {
    numbers "$scratch/reinforce.one" >"$scratch/one.numbers"
    cmp <(head -n 12 "$scratch/one.numbers") <(numbers "$run" | head -n 12)
}
check "the numbers before are those of one host" before_joining
start_hosts 1 reinforce "$run" $endless --resume
stop_hosts 1 "$run"
check "the run can be resumed without the host" all_end_well 1
check "and each episode has one line" has_each_once

# ---- the same with trainers ----
run=$scratch/trainers
start_hosts 1 parameter-server "$run" $endless --set /server/count=1 --set '/server/round=first 2'
at=tcp://127.0.0.1:$port
wait_for_number "$run" 5
join_host --trainers 2
check "the host that joins brings two trainers" goes_on_with trainers 4
check "they run there" has_workers trainer 2
takes_part() {
    local end=$((SECONDS + 60))
    until grep -aq '"losses":\[[^]]*,[^]]*,[^]]*[0-9][^]]*\]' "$run/episodes.jsonl"; do
        [[ $SECONDS -lt $end ]] || return 1
        sleep 0.05
    done
}
check "their gradients count" takes_part
kill -TERM "${host[1]}"
check "the host departs, and they with it" goes_on_with trainers 2
wait "${host[1]}" || true
wait_for_number "$run" $(($(last_number "$run") + 2))
resumed=$(grep -c '"event":"resumed"' "$run/episodes.jsonl")
COALESCED_PLUGINS=$scratch join_host --trainers 1
code[1]=0 && { wait "${host[1]}" || code[1]=$?; }
check "a host that cannot run workers is told so, and ends" test "${code[1]}" = 69
check "in words" grep -q "this host cannot run workers" "$run.2"
goes_on_alone() {
    local end=$((SECONDS + 60))
    until [[ $(grep -c '"event":"resumed"' "$run/episodes.jsonl") -gt $((resumed + 1)) ]] || [[ $SECONDS -ge $end ]]; do
        sleep 0.1
    done
    grep '"event":"resumed"' "$run/episodes.jsonl" | tail -1 | grep -q '"trainers":2,'
}
check "and the job goes on without it" goes_on_alone
stop_hosts 1 "$run"
check "the job ends well" all_end_well 1
check "each update has one line" has_each_once

# ---- a model on several workers cannot grow ----
run=$scratch/parallel
start_hosts 1 model-parallel "$run" $endless
at=tcp://127.0.0.1:$port
wait_for_number "$run" 5
check "a model-parallel job gets no trainers" refuses 78 "model-parallel" join "$at" --keys "$scratch/one" --trainers 1
stop_hosts 1 "$run"
check "and goes on" all_end_well 1

# ---- a host that comes late, and one that never comes ----
run=$scratch/late
start_host 0 3 reinforce "$run" $endless --set /hosts/patience_s=1
check "hosts that do not come are named" says "$run.0" "host 2 of 3 has not come within 1 s"
start_host 2 3 reinforce "$run" $endless
check "a late one is taken" says "$run.0" "host 2 (.*) is here"
wait_for_number "$run" $(($(last_number "$run") + 5))
kill -TERM "${host[0]}"
code[0]=0 && { wait "${host[0]}" || code[0]=$?; }
code[2]=0 && { wait "${host[2]}" || code[2]=$?; }
check "the job ends" test "${code[0]}${code[2]}" = 00
check "the numbers are those of one host" agrees "$run"

# ---- the leader dies: the others end, and the next start goes on ----
run=$scratch/headless
start_hosts 2 reinforce "$run" $endless --set /hosts/patience_s=2
says "$run.0" "^Episode 20"
observers=$(workers_of "${host[1]}" observer)
kill -9 "${host[0]}"
wait "${host[0]}" 2>/dev/null || true
end_hosts 2
check "the other host ends with 69" test "${code[1]}" = 69
check "it says why" says "$run.1" "the leader is gone"
check "its workers are gone" are_gone
start_hosts 2 reinforce "$run" $endless --resume
says "$run.0" "going on from"
stop_hosts 2 "$run"
check "the next start ends" all_end_well 2
check "the numbers are those of one host" agrees "$run"

# ---- under Slurm a host without a leader has the job put back, but not one that is over ----
mkdir "$scratch/slurm"
printf '#!/bin/sh\necho "$*" >>"%s"\n' "$scratch/asked" >"$scratch/slurm/scontrol"
chmod +x "$scratch/slurm/scontrol"
run=$scratch/requeued
PATH=$scratch/slurm:$PATH SLURM_JOB_ID=4711 start_hosts 2 reinforce "$run" $endless --set /hosts/patience_s=1
says "$run.0" "^Episode 20"
kill -9 "${host[0]}"
wait "${host[0]}" 2>/dev/null || true
end_hosts 2
check "the job goes back into the queue" grep -qx "requeue 4711" "$scratch/asked"
check "the host ends with 69" test "${code[1]}" = 69
rm "$scratch/asked"
run=$scratch/over
PATH=$scratch/slurm:$PATH SLURM_JOB_ID=4711 start_hosts 2 reinforce "$run" $endless --set /hosts/patience_s=1
says "$run.0" "^Episode 20"
# shellcheck disable=SC2046 # numbers
kill -STOP "${host[1]}" $(workers_of "${host[1]}" link)
kill -TERM "${host[0]}"
code[0]=0 && { wait "${host[0]}" || code[0]=$?; }
# shellcheck disable=SC2046
kill -CONT "${host[1]}" $(workers_of "${host[1]}" link)
code[1]=0 && { wait "${host[1]}" || code[1]=$?; }
check "a host that was cut off at the end reads it in the log" says "$run.1" "the log says that the job is over: stopped"
check "both end" all_end_well 2
check "the job is not put back" test ! -e "$scratch/asked"

# ---- ctrl-C ----
run=$scratch/stopped
start_hosts 2 reinforce "$run" $endless
says "$run.0" "^Episode 20"
kill -INT "${host[0]}" "${host[1]}"
end_hosts 2
check "an interrupt at all hosts ends all" all_end_well 2
check "the round was finished" says "$run.0" "stopping: the running round is finished first"

# ---- strangers ----
run=$scratch/strangers
cp -r "$scratch/keys" "$scratch/before"
make_keys 3
mv "$scratch/keys" "$scratch/others" && mv "$scratch/before" "$scratch/keys"
start_host 0 2 reinforce "$run" $endless --set /hosts/patience_s=3
check "a host with other keys gets no answer" refuses 70 "knows the key of host 1" run "$file" --node 1/2 \
    --leader "127.0.0.1:$port" --keys "$scratch/others" --set /hosts/patience_s=2
cp "$COALESCED" "$scratch/rebuilt" && printf x >>"$scratch/rebuilt"
other_build_is_refused() {
    COALESCED=$scratch/rebuilt refuses 78 "it runs another build of coalesced than the leader" run "$file" --node 1/2 \
        --leader "127.0.0.1:$port" --keys "$scratch/keys"
}
check "another build is refused" other_build_is_refused
says "$run.0" "^Episode 20"
kill -TERM "${host[0]}"
code[0]=0 && { wait "${host[0]}" || code[0]=$?; }
check "the job goes on without them" test "${code[0]}" = 0

finish
