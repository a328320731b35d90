#!/usr/bin/env bash
# coalesced run --profile: a table whose shares are a worker's whole time, a trace with what a trace viewer needs, words for a
# worker without figures; and nothing at all without the option.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"
# shellcheck source=test/daemon/hosts/hosts.bash
source "$here/../hosts/hosts.bash"

# share RUN WORKER KIND: of the table, in per cent; "": the worker has none, or no worker spends time on that. The titles
# begin with six words that are no kinds.
share() {
    awk -v worker="$2" -v kind="$3" '
        NR == 1 { for (i = 7; i <= NF; i++) if ($i == kind) from_end = NF - i }
        NR > 1 && $1 " " $2 == worker && from_end != "" { print $(NF - from_end) }' "$1/profile.txt"
}
# spends RUN WORKER KIND: a share, or a span in the trace where a busy machine has left a share of 0.0.
spends() {
    awk -v share="$(share "$@")" 'BEGIN { exit !(share > 0) }' ||
        jq -e --arg worker "$2" --arg kind "$3" '
            (.traceEvents[] | select(.name == "process_name" and .args.name == $worker).pid) as $pid |
            any(.traceEvents[]; .ph == "X" and .pid == $pid and .name == $kind)' "$1/profile.json" >/dev/null || {
        cat "$1/profile.txt"
        return 1
    }
}
# N workers have figures: shares that make 100, as far as they are rounded.
whole() {
    awk -v workers="$2" '
        NR == 1 { kinds = NF - 6 }
        NR > 1 && !/: / && $NF != "-" { sum = 0; for (i = NF - kinds + 1; i <= NF; i++) sum += $i; rows++; bad += sum < 99 || sum > 101 }
        END { exit bad > 0 || rows != workers }' "$1/profile.txt" || {
        cat "$1/profile.txt"
        return 1
    }
}
# The trace: a name for each worker, spans of kinds that there are, in order, none of them longer than the run.
is_trace() {
    jq -e --argjson workers "$2" '
        (.traceEvents | map(select(.ph == "M" and .name == "process_name")) | length == $workers and
            all(.[]; (.args.name | type == "string") and .pid > 0)) and
        (.traceEvents | map(select(.ph == "X")) | length > 0 and
            all(.[]; (.name | IN("other", "environment", "data", "transport", "waiting", "inference", "learning", "update",
                "checkpoint")) and .ts > 0 and .dur >= 10 and .dur < 600e6 and .pid > 0 and .tid == .pid)) and
        ([.traceEvents[] | select(.ph == "X")] | group_by(.pid) | all(.[]; [.[].ts] | . == sort and length <= 4096)) and
        (.traceEvents | all(.[]; .ph == "M" or .ph == "X"))' "$1/profile.json" >/dev/null
}

# ---- reinforce ----
one=$scratch/one
busy=(--set /observers/count=3 --set /observers/environments=100 --set /rollout/steps=200)
run_job reinforce "$one" 40 --profile "${busy[@]}" >"$one.out" 2>"$one.err"
check "a reinforce job: the shares of each worker make 100" whole "$one" 4
check "the agent infers" spends "$one" "agent 0" inference
check "and learns" spends "$one" "agent 0" learning
check "an observer steps environments" spends "$one" "observer 3" environment
check "and waits" spends "$one" "observer 3" waiting
check "the trace has every worker" is_trace "$one" 4
check "the table is printed" grep -qFf "$one/profile.txt" "$one.err"
check "the run says where the profile is" grep -q "the profile is in $one/profile.txt" "$one.err"
check "the option is the key" test "$(jq .log.profile "$one/job.json")" = true

# ---- off ----
off=$scratch/off
run_job reinforce "$off" 40 "${busy[@]}" >"$off.out" 2>"$off.err"
check "without it there is no file" test -z "$(find "$off" -name 'profile*')"
check "and no table" test -z "$(grep -i -e profile -e '% of the time' "$off.err" || true)"
same_lines() {
    diff <(numbers "$one") <(numbers "$off")
}
check "the numbers are the same" same_lines
check "another command does not take it" test "$("$COALESCED" check --profile "$scratch/reinforce.json" 2>&1)" = \
    "coalesced: --profile belongs to run; see coalesced --help"

# ---- the other kinds ----
two=$scratch/two
run_job parameter-server "$two" 12 --profile >"$two.out" 2>"$two.err"
check "a parameter-server job: the shares of each worker make 100" whole "$two" 4
check "a trainer learns" spends "$two" "trainer 2" learning
check "a server updates" spends "$two" "pserver 0" update
check "its trace has every worker" is_trace "$two" 4
three=$scratch/three
run_job model-parallel "$three" 60 --profile --set '/model={"name": "rnn", "tokens": 200, "embedding": 128, "hidden": 128}' >"$three.out" 2>"$three.err"
check "a model-parallel job: the shares of each worker make 100" whole "$three" 2
check "its server learns, called by the trainer" spends "$three" "pserver 0" learning
check "and updates its parameters" spends "$three" "pserver 0" update

# ---- two hosts ----
five=$scratch/five
make_keys 2
start_hosts 2 reinforce "$five" 30 --profile --set /observers/count=4
end_hosts 2
both_end_well() {
    [[ ${code[0]}${code[1]} == 00 ]] || { cat "$five.0" "$five.1" && return 1; }
}
check "two hosts end well" both_end_well
check "workers of another host are profiled" whole "$five" 5
check "and say where they were" grep -q '^observer [1-4] on host 1 ' "$five/profile.txt"
check "their trace is of the same time" is_trace "$five" 5

# ---- workers in Python ----
python=$(readlink -f "$here/../../..")/build/gymnasium-venv/bin/python
python_has_a_line() {
    (cd "$here/../worlds" && PYTHONDONTWRITEBYTECODE=1 run_job reinforce "$scratch/six" 3 --profile --set "/environment/python=$python" \
        --set /environment/class=worlds:Corridor) && grep -q '^observer 2: not profiled: it runs in Python$' "$scratch/six/profile.txt"
}
if [[ -x $python ]]; then
    check "a worker in Python has a line that says so" python_has_a_line
else
    echo 'test_profile_jobs.sh: no Python with pyzmq (scripts/deps gymnasium): its workers are not tried'
fi

# ---- deaths, and a resume ----
four=$scratch/four
job=()
job_arguments reinforce "$four" 1000000 --profile --set /observers/count=3
"$COALESCED" run "${job[@]}" </dev/null >"$four.out" 2>"$four.err" &
run=$!
wait_for_number "$four" 3
kill -9 "$("$COALESCED" status "$four" --json | jq '.workers[2].pid')"
until "$COALESCED" status "$four" --json | jq -e '.workers[2] | .incarnation == 2 and .state == "running"' >/dev/null; do
    sleep 0.05
done
kill -TERM "$run"
exit_code=0 && { wait "$run" || exit_code=$?; }
check "a run that was stopped has a profile too" test "$exit_code" = 0
check "with all workers" whole "$four" 4
check "the table says which has started again" grep -q '^observer 2: started 2 times: figures of the last start only$' \
    "$four/profile.txt"

job_arguments reinforce "$four" 1000000 --profile --resume --set /observers/count=3
"$COALESCED" run "${job[@]}" </dev/null >"$four.out" 2>"$four.err" &
run=$!
wait_for_number "$four" $(($(last_number "$four") + 3))
stopped=$("$COALESCED" status "$four" --json | jq '.workers[1].pid')
kill -STOP "$stopped"
kill -TERM "$run"
sleep 0.2
kill -TERM "$run"
wait "$run" || true
check "a worker that was killed has no figures" grep -q '^observer 1: no figures: observer 1 .*killed by signal 9' "$four/profile.txt"
check "the table says that the run was resumed" grep -q '^the run was resumed' "$four/profile.txt"
again=$scratch/four
run_job reinforce "$again" 3 >"$again.out" 2>&1
check "a new run in its place has none" test ! -e "$again/profile.txt" -a -e "$again/previous-1/profile.txt" -a \
    -e "$again/previous-1/profile.json"
finish
