#!/usr/bin/env bash
# coalesced list and clean: each end of a real run, a run that was killed and goes on, previous runs, a sweep, a long log,
# damage; the group that may ask a service; and what a cleaning removes and leaves.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

endless=1000000
cd "$scratch"
list() {
    "$COALESCED" list "$@"
}
# Another test of this machine may have a run too, whose path is no short one.
mine() {
    "$COALESCED" list "$@" | grep -v '^/'
}
# The members of a run's object, as jq's filter joins them.
member() { # RUN FILTER
    list --json | jq -r ".runs[] | select(.run == \"$(readlink -f "$1")\") | [$2] | join(\" \")"
}
is() { # EXPECTED COMMAND...
    local expected=$1 got
    got=$("${@:2}")
    [[ $got == "$expected" ]] || { printf 'expected %s, got %s\n' "$expected" "$got" && return 1; }
}
start() { # RUN [ARGUMENT]...: its supervisor is $run
    local job
    job_arguments reinforce "$1" "$endless" "${calm[@]}" "${@:2}"
    "$COALESCED" run "${job[@]}" </dev/null >"$scratch/out" 2>&1 &
    run=$!
    wait_for_number "$1" 3
}

# ---- each end ----
run_job reinforce runs/finished 4 >/dev/null
run_job reinforce runs/finished 6 >/dev/null
run_job reinforce runs/solved 50 --set '/stop/running_reward=0.1' >/dev/null
start runs/stopped
kill -INT "$run"
wait "$run"
start runs/killed
{ kill -9 "$run" && wait "$run"; } 2>/dev/null || true
start runs/failed --set /supervise/restart=false
pkill -9 -P "$run" -f -- '--role agent'
code=0 && { wait "$run" || code=$?; }
check "a worker's death ends a run" test "$code" -ne 0

# A start that fails before a worker begins: another program has the port.
cat >holds.py <<'PY'
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", int(sys.argv[1])))
s.listen()
print("held", flush=True)
sys.stdin.read()
PY
"$COALESCED" keygen keys --hosts 2
coproc python3 holds.py "$first_port"
read -r _ <&"${COPROC[0]}"
job_arguments reinforce runs/begins 4
code=0 && { "$COALESCED" run "${job[@]}" --node 0/2 --leader "127.0.0.1:$first_port" --keys keys >"$scratch/out" 2>&1 || code=$?; }
kill "$COPROC_PID"
check "a start fails" test "$code" = 75
check "its run says why" is "failed true" member runs/begins '.state, (.reason | endswith("the address is in use"))'

check "finished" is "finished episode 6 6 false false" member runs/finished '.state, .progress.unit, .progress.done, .progress.total, .resumable, .previous'
check "an earlier run in its folder" is "finished 4 true" member runs/finished/previous-1 '.state, .progress.done, .previous'
check "solved" is "solved true" member runs/solved '.state, (.progress.value > 0.1)'
check "stopped by ctrl-C" is "stopped true" member runs/stopped '.state, .resumable'
check "killed" is "died no line says how it ended" member runs/killed '.state, .reason[0:25]'
check "failed, with the reason of the log" is "failed $(tail -1 runs/failed/episodes.jsonl | jq -r 'select(.event == "failed").reason')" \
    member runs/failed '.state, .reason'
check "which names the worker" grep -q $'^runs/failed\tfailed\t.*agent 0' <(list)
check "the kind, the size, the times" is "reinforce true true" member runs/stopped '.kind, (.bytes > 1000), (.ended_unix_s >= .began_unix_s)'
in_order() {
    list --json | jq "[.runs[] | select(.run | startswith(\"$(readlink -f "$scratch")/\"))]" >all &&
        jq -e '[.[].ended_unix_s] == ([.[].ended_unix_s] | sort)' all &&
        diff <(mine | cut -f1) <(jq -r .[].run all | sed "s|^$(readlink -f "$scratch")/||")
}
check "the newest is last, and a path is short" in_order

# ---- a run goes on ----
job_arguments reinforce runs/killed "$endless" "${calm[@]}"
"$COALESCED" run "${job[@]}" --resume </dev/null >"$scratch/out" 2>&1 &
run=$!
until list --running 2>/dev/null | grep -q '^runs/killed'; do
    kill -0 "$run" || { cat "$scratch/out"; exit 1; }
    sleep 0.1
done
check "a run that was killed goes on" is "running $run" member runs/killed '.state, .pid'
check "it is last" is runs/killed eval "mine | tail -1 | cut -f1"
check "with --running it is alone" is 1 eval "mine --running | wc -l"
kill -TERM "$run"
wait "$run"
check "and is stopped" is stopped member runs/killed .state

# ---- folders ----
mkdir -p sweep/lr=1 sweep/lr=2 big broken
cp -r runs/stopped/job.json runs/stopped/episodes.jsonl sweep/lr=1
cp -r runs/stopped/job.json runs/stopped/episodes.jsonl sweep/lr=2
ln -s ../sweep sweep/circle
check "a sweep's runs" is "sweep/lr=1 sweep/lr=2" eval "mine sweep | cut -f1 | sort | paste -sd ' '"
head -c 20 runs/stopped/job.json >broken/job.json
cp runs/stopped/episodes.jsonl broken
check "a damaged job.json" is "broken stopped" eval "mine broken | cut -f1,2 | tr '\t' ' '"
cp runs/finished/job.json big
line=$(grep '^{"episode"' runs/finished/episodes.jsonl | tail -1)
{ yes "$line" || true; } | head -n 300000 >big/episodes.jsonl
check "a log of 300,000 lines" is "big died" eval "mine big | cut -f1,2 | tr '\t' ' '"
narrow() {
    script -qec "stty cols 40; '$COALESCED' list runs" /dev/null | tr -d '\r' >narrow
    cat narrow
    grep -q '^RUN  *STATE' narrow && [[ $(grep -c '^runs/' narrow) -eq $(mine runs | wc -l) ]] &&
        [[ $(awk 'length > most { most = length } END { print most }' narrow) -le 40 ]]
}
if command -v script >/dev/null; then
    check "a narrow terminal cuts lines" narrow
fi
not_readable() {
    mkdir -p locked/inner && cp broken/episodes.jsonl locked/inner && chown -R 65534 locked && chmod 700 locked/inner &&
        ! setpriv --reuid 65533 --clear-groups "$COALESCED" list "$scratch/locked/inner" 2>said
    grep -q 'inner: Permission denied' said && mkdir -m 700 locked/second &&
        setpriv --reuid 65533 --clear-groups "$COALESCED" list "$scratch/locked" 2>said &&
        grep -q 'Permission denied; in all 2 folders cannot be read' said
}
# Other users may not reach the build's folder: a home is often closed to them.
if [[ $EUID -eq 0 ]]; then
    chmod 755 "$scratch"
    mkdir program
    cp "$COALESCED" "$BUILD"/libcoalesced-onednn.so program
    export COALESCED=$scratch/program/coalesced
    check "what cannot be read is named" not_readable
fi

# ---- a service of another user ----
# In a mount namespace of its own there is a group coalesced, as the package makes it.
group=64999
cat >service.sh <<'SH'
set -e
mount --bind "$1/group" /etc/group
mkdir -p "$1/run" "$1/state"
chown 64998:$2 "$1/run" "$1/state"
chmod 750 "$1/run"
as() { # UID GROUPS COMMAND...
    setpriv --reuid "$1" --regid "$1" --groups "$2" "${@:3}"
}
cd "$1/state"
umask 002
setpriv --reuid 64998 --regid 64998 --groups "$2" env RUNTIME_DIRECTORY="$1/run" "$COALESCED" run "$1/reinforce.json" --run-dir one \
    --set '/stop={"episodes":1000000}' >/dev/null 2>&1 &
run=$!
until [ "$(find "$1/run" -name '*.sock.status')" ] && grep -qs '"episode":3,' one/episodes.jsonl; do
    kill -0 $run # else it has failed
    sleep 0.1
done
chmod 700 "$1/state"
cd /
export RUNTIME_DIRECTORY=$1/run
find "$1/run" -type s -printf '%m %f\n' | sed 's/ .*sock/ /' | sort -u >"$1/modes"
as 64997 "$2" "$COALESCED" list --running >"$1/member" 2>&1
as 64997 "$2" "$COALESCED" stop "$1/state/one" >"$1/stop" 2>&1 || true
as 64997 64997 "$COALESCED" list --running >"$1/stranger" 2>&1
kill -TERM $run
wait $run
SH
serves_the_group() {
    sed '/^coalesced:/d' /etc/group >group && echo "coalesced:x:$group:" >>group && unshare -m bash service.sh "$scratch" "$group"
}
if [[ $EUID -eq 0 ]] && unshare -m true 2>/dev/null; then
    check "a service runs" serves_the_group
    check "its status socket is the group's, others are not" is "660 .status" eval "grep -v '^700 ' modes"
    check "a member sees it" grep -q "/state/one	running	episode [0-9]*/1000000" member
    check "and cannot stop it" grep -q "cannot stop process" stop
    check "another user sees that there is one" grep -Eq '[0-9]+ runs? of other users (is|are) not shown: expected root, or a member of the group coalesced$' stranger
    check "and no more" bash -c '! grep -q state/one stranger'
fi

# ---- cleaning ----
checkpoint='{"every": 2, "keep": 3, "best": true}'
for _ in 1 2; do run_job reinforce old/a 6 >/dev/null; done
before=$(cd old && find . | sort)
check "what is young stays" is "0 previous runs cleaned, 0.0 MiB" "$COALESCED" clean old
dry() {
    "$COALESCED" clean old --older-than 0h --dry-run | grep -Eq '^old/a/previous-1: [23] checkpoints would be removed, [0-9.]+ MiB; the best one stays$' &&
        [[ $(cd old && find . | sort) == "$before" ]]
}
check "a dry run changes nothing" dry
ln -s ../../../finished old/a/previous-1/checkpoints/link
mkdir -p elsewhere/previous-1
touch elsewhere/previous-1/episodes.jsonl elsewhere/previous-1/keep
ln -s ../../elsewhere/previous-1 old/a/previous-2
cleans() {
    "$COALESCED" clean old --older-than 0h | tee cleaned | grep -Eq '^old/a/previous-1: [34] checkpoints removed, [0-9.]+ MiB; the best one stays$' &&
        is best ls old/a/previous-1/checkpoints && [[ -s old/a/previous-1/job.json && -s old/a/previous-1/episodes.jsonl && -d runs/finished ]] &&
        [[ -e elsewhere/previous-1/keep ]] && is "3" eval "find old/a/checkpoints -maxdepth 1 -regex '.*/[0-9]*' | wc -l"
}
check "the checkpoints of a previous run go but the best" cleans
check "the bytes are those that are gone" is "0 previous runs cleaned, 0.0 MiB" "$COALESCED" clean old --older-than 0h
# A person has moved a previous run aside; and a clock was wrong when the newest line was written.
spares() {
    mkdir -p old/archive/deep && cp -a old/a/previous-1 old/archive/previous-1 &&
        is "0 previous runs cleaned, 0.0 MiB" "$COALESCED" clean old/archive --older-than 0h --all && [[ -s old/archive/previous-1/job.json ]] && rm -r old/archive
}
check "a previous-1 that lies in no run's folder stays" spares
future() {
    cp -a old/a/previous-1 old/a/previous-3 && tail -1 old/a/previous-3/episodes.jsonl | sed 's/"unix_s":1/"unix_s":9/' >line &&
        cat line >>old/a/previous-3/episodes.jsonl && touch -d '40 days ago' old/a/previous-3/episodes.jsonl &&
        "$COALESCED" clean old --all | tee cleaned | grep -q '^old/a/previous-3: removed' && [[ ! -e old/a/previous-3 && -e old/a/previous-1 ]]
}
check "a line of the future is as old as its file" future
# Somebody puts a link in the place of the folder above, while a run is judged.
swapped() {
    local code=0
    mkdir mallory victim && cp -a old/a mallory/a && cp -a old/a victim/a &&
        mkdir -p victim/a/previous-1/checkpoints/00000002 || return 1
    SWAP_AT=previous-1 SWAP_FOLDER=mallory/a SWAP_LINK=../victim/a LD_PRELOAD=$BUILD/test/preload/swap_folder.so \
        "$COALESCED" clean mallory --older-than 0h "$@" >cleaned 2>said || code=$?
    cat cleaned said
    [[ $code -eq 74 && -L mallory/a && -d victim/a/previous-1/checkpoints/00000002 && -s victim/a/previous-1/job.json ]] &&
        grep -q 'mallory/a/previous-1 is not cleaned: expected a folder that stays in its place' said && rm -r mallory victim
}
if [[ -z ${SAN:-} ]]; then # a sanitizer's own library must be loaded first
    check "a link above the run is not followed" swapped
    check "nor with --all" swapped --all
fi
partly() {
    local code=0
    rm old/a/previous-2 && mkdir old/a/previous-2 && cp old/a/previous-1/episodes.jsonl old/a/previous-2 && chattr +i old/a/previous-1/episodes.jsonl || return 1
    "$COALESCED" clean old --older-than 0h --all >cleaned 2>said || code=$?
    chattr -i old/a/previous-1/episodes.jsonl
    [[ $code -eq 74 && ! -e old/a/previous-2 && -e old/a/previous-1 ]] && grep -q 'cannot remove .*previous-1: Operation not permitted' said &&
        grep -q '^old/a/previous-2: removed' cleaned
}
if touch flag && chattr +i flag 2>/dev/null; then
    chattr -i flag
    check "a failure is named, and the rest goes on" partly
fi
all_go() {
    "$COALESCED" clean old --older-than 0h --all >/dev/null && is "" eval "find old -name 'previous-*'" && [[ -s old/a/job.json ]]
}
check "with --all they go as a whole" all_go
wrong_age() {
    local code=0
    "$COALESCED" clean --older-than 30 >said 2>&1 || code=$?
    [[ $code -eq 64 ]] && grep -q 'expected a number of hours, days or weeks, as 12h, 30d or 6w, got 30' said
}
check "an age has a unit" wrong_age
finish
