#!/usr/bin/env bash
# What scripts/chaos finds and refuses. A program that alters a line of the log, leaves a file or a process, hangs, or ends
# in a way that no fault explains stands in for the daemon, in disturbed runs alone.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
chaos=$here/../../scripts/chaos

if [[ -n ${SAN:-} ]]; then
    skip "the library that strikes inside calls is not for a sanitizer's build"
fi
export TMPDIR=$scratch
daemon=$COALESCED

cat >"$scratch/job.json" <<'JSON'
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1}, "rollout": {"mode": "steps", "steps": 20},
 "stop": {"episodes": 10, "running_reward": null}, "checkpoint": {"every": 5}}
JSON

# program NAME: the stand-in's first lines come from stdin. $run is the run directory; `daemon` runs the daemon.
program() {
    {
        cat <<SCRIPT
#!/bin/bash
preload=\$LD_PRELOAD run=\$CHAOS_RUN daemon=$daemon
if [[ -z \$preload ]]; then
    exec "\$daemon" "\$@"
fi
unset LD_PRELOAD
daemon() {
    LD_PRELOAD=\$preload "\$daemon" "\$@"
}
SCRIPT
        cat
    } >"$scratch/$1"
    chmod +x "$scratch/$1"
}

# finds TEXT NAME [ARGUMENT]...: chaos with this stand-in says TEXT, and exits 1.
finds() {
    local text=$1 name=$2 said code=0
    shift 2
    said=$(COALESCED=$scratch/$name timeout 150 "$chaos" "$scratch/job.json" --minutes 1 --every 0.2 --kinds short \
        --faults 1 "$@" 2>&1) || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    [[ $code -eq 1 && $said == *"$text"* ]]
}

program alters_a_line <<'BODY'
daemon "$@"
sed -i '2s/"loss":-*/"loss":8/' "$run/episodes.jsonl"
BODY
check "an altered line" finds 'episodes.jsonl, record 1: expected {"episode":1,' alters_a_line

program loses_a_line <<'BODY'
daemon "$@"
sed -i '4d' "$run/episodes.jsonl"
BODY
check "a lost line" finds 'episodes.jsonl, record 3: expected {"episode":3,' loses_a_line

program alters_text <<'BODY'
daemon "$@"
sed -i '1s/reward: /reward: 8/' "$run/episodes.log"
BODY
check "an altered line for people" finds "episodes.log, record 1: expected Episode 1" alters_text

program tears_a_line <<'BODY'
daemon "$@"
printf '{"event":"fini' >>"$run/episodes.jsonl"
BODY
check "half a line" finds "episodes.jsonl ends in half a line" tears_a_line

program damages_a_checkpoint <<'BODY'
daemon "$@"
printf x >>"$run/checkpoints/00000005/model.safetensors"
BODY
check "a damaged older checkpoint" finds "00000005/model.safetensors has not the hash of its manifest" damages_a_checkpoint

program adds_to_a_checkpoint <<'BODY'
daemon "$@"
touch "$run/checkpoints/00000010/other"
BODY
check "a newest checkpoint with another file" finds "checkpoints/00000010/other differs" adds_to_a_checkpoint

program finds_a_damaged_checkpoint <<'BODY'
echo "coalesced: the checkpoint 00000005 is skipped: no manifest" >&2
daemon "$@"
BODY
check "a checkpoint that no fault of chaos damaged" finds "00000005 is skipped" finds_a_damaged_checkpoint

program leaves_a_file <<'BODY'
daemon "$@"
touch "$run/left"
BODY
check "a file that is left" finds "the run directory: expected " leaves_a_file

program leaves_a_process <<'BODY'
daemon "$@"
sleep 60 >/dev/null 2>&1 &
BODY
check "a process that is left" finds "['sleep 60']" leaves_a_process

program leaves_a_socket <<'BODY'
daemon "$@"
touch "$RUNTIME_DIRECTORY/left"
BODY
check "a socket that is left" finds "sockets are left: ['left']" leaves_a_socket

program hangs <<'BODY'
exec sleep 60
BODY
check "a run without new lines" finds "no new line for 5.0 s; processes: ['sleep 60 is S']" hangs --patience 5

program ends_otherwise <<'BODY'
echo "the device is away" >&2
exit 69
BODY
check "an end that no fault explains" finds "the daemon ended with 69: the device is away" ends_otherwise

program ends_early <<'BODY'
[[ -e $run.began ]] || { touch "$run.began"; exit 0; }
daemon "$@"
BODY
check "success before the job's end" finds "the daemon ended with 0: " ends_early

program is_killed <<'BODY'
[[ -e $run.began ]] || { touch "$run.began"; kill -KILL $$; }
daemon "$@"
BODY
check "a SIGKILL that is not of chaos" finds "the daemon ended with -9: " is_killed

program garbles_a_line <<'BODY'
daemon "$@"
sed -i '3s/^/garbage /' "$run/episodes.jsonl"
BODY
check "a line that is not JSON" finds "run1: what it left cannot be read: " garbles_a_line

# A SIGTERM to chaos within the undisturbed run: the daemon goes with it, and the folder too.
ends_with_its_daemon() {
    local pid code=0
    mkdir "$scratch/own"
    TMPDIR=$scratch/own "$chaos" "$scratch/job.json" --set /stop/episodes=1000000 2>/dev/null &
    pid=$!
    until compgen -G "$scratch/own/chaos*/whole/run/episodes.jsonl" >/dev/null; do
        sleep 0.05
    done
    kill "$pid"
    wait "$pid" || code=$?
    pgrep -af "$scratch/own" && return 1
    [[ $code -eq 143 && -z $(ls "$scratch/own") ]]
}
check "chaos that is told to end leaves no process and no file" ends_with_its_daemon

# ---- usage ----

# refuses CODE TEXT ARGUMENT...
refuses() {
    local want=$1 text=$2 said code=0
    shift 2
    said=$("$chaos" "$@" 2>&1) || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    [[ $code -eq $want && $said == *"$text"* ]]
}

check "an unknown kind" refuses 64 "--kinds: murder: expected some of kill,stop," job.json --kinds kill,murder
check "a job that is not there" refuses 64 "absent.json: No such file" "$scratch/absent.json"
cat >"$scratch/ps.json" <<'JSON'
{"kind": "parameter-server", "device": "cpu", "model": {"name": "resnet18", "classes": 10, "width": 8},
 "trainers": {"count": 2, "batch": 4, "threads": 1}, "server": {"round": "async 2"}, "data": {"size": 16}, "stop": {"updates": 2}}
JSON
check "rounds that differ anyway" refuses 64 '/server/round is "async 2": two runs differ anyway' "$scratch/ps.json"
check "a job that does not run" refuses 70 "the undisturbed run ended with 78: " "$scratch/job.json" --set /stop/episodes=0

finish
