#!/usr/bin/env bash
# Runs the installed unit under a real systemd (test/scripts/systemd.bash): start, status, reload, stop, restarts and
# watchdog, as the unit's own comments promise them.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/scripts/systemd.bash
source "$here/systemd.bash"

[[ -z ${SAN:-} ]] || skip "a sanitizer wants system calls that the unit refuses"
systemd_require

readonly ENDLESS='{"kind": "reinforce", "name": "cartpole", "device": "cpu", "observers": {"count": 2},
 "stop": {"episodes": 1000000000}, "log": {"every": 1000}}'

# The job files as each check wants them; the watchdog's patience is shorter than the unit's.
tree=$scratch/tree
env -u MAKEFLAGS -u MAKELEVEL make -s -C "$here/../.." install SAN= PREFIX=/usr/local DESTDIR="$tree"
mkdir -p "$tree/etc/coalesced" "$tree/etc/systemd/system/coalesced@hung.service.d"
printf '%s\n' "$ENDLESS" | tee "$tree/etc/coalesced/"{cartpole,killed,hung}.json >/dev/null
printf '{"kind": "reinforce", "observers": {"count": 0}}\n' >"$tree/etc/coalesced/bad.json"
cp "$here/../../config/rnn.json" "$tree/etc/coalesced/rnn.json"
printf '[Service]\nWatchdogSec=4\n' >"$tree/etc/systemd/system/coalesced@hung.service.d/watchdog.conf"

systemd_boot "$tree"

# property INSTANCE NAME: a property's value.
property() {
    systemd_run systemctl show --value -p "$2" "coalesced@$1"
}

# has INSTANCE NAME VALUE: the property has the value, or shows what it has instead.
has() {
    local value
    value=$(property "$1" "$2")
    [[ $value == "$3" ]] || { printf '%s is %s, expected %s\n' "$2" "$value" "$3" && return 1; }
}

# said INSTANCE TEXT: the instance has written this to the journal.
said() {
    systemd_run journalctl -q --no-pager -o cat -u "coalesced@$1" | grep -qF -- "$2"
}

# systemd_said INSTANCE TEXT: systemd itself has written this about the instance.
systemd_said() {
    systemd_run journalctl -q --no-pager -o cat UNIT="coalesced@$1.service" | grep -qF -- "$2"
}

start() {
    systemd_run systemctl start "coalesced@$1" || { systemd_run journalctl -q --no-pager -u "coalesced@$1" && return 1; }
}

status_tells_of_episodes() {
    [[ $(property cartpole StatusText) == 'episode '*'  running reward '* ]]
}

reload() {
    systemd_run sh -c "cat >/etc/coalesced/cartpole.json" <<<"$1" && systemd_run systemctl reload coalesced@cartpole &&
        until_true 20 said cartpole "$2" && has cartpole ActiveState active
}

# fails COMMAND [ARG]...
fails() {
    ! "$@"
}

# found_by TEXT MATCH...: an entry with these fields of the journal has the text.
found_by() {
    local text=$1
    shift
    systemd_run journalctl -q --no-pager -o cat "$@" | grep -qF -- "$text"
}

stop() {
    systemd_run systemctl stop coalesced@cartpole && has cartpole ActiveState inactive && has cartpole Result success &&
        grep -q '"event":"stopped"' "$systemd_root/var/lib/private/coalesced/cartpole/cartpole/episodes.jsonl"
}

# is_back INSTANCE PID: another process than this one is ready. The unit has process 0 until it is started again.
is_back() {
    local pid
    pid=$(property "$1" MainPID)
    [[ $pid -gt 1 && $pid != "$2" && $(property "$1" ActiveState) == active ]]
}

# comes_back INSTANCE SIGNAL: after the signal to the supervisor the unit is started again.
comes_back() {
    local before
    before=$(property "$1" MainPID)
    [[ $before -gt 1 ]] && systemd_run kill "-$2" "$before" && until_true 60 is_back "$1" "$before"
}

# worker_comes_back INSTANCE NAME: an observer that is killed is started again within the run.
worker_comes_back() {
    local log=$systemd_root/var/lib/private/coalesced/$1/$2/episodes.jsonl
    systemd_run kill -KILL "$(systemd_run pgrep -P "$(property "$1" MainPID)" | tail -n 1)" &&
        until_true 20 grep -q '"event":"restarted"' "$log"
}

# A run that another process holds.
busy() {
    local run=$systemd_root/var/lib/private/coalesced/killed/cartpole
    systemd_run systemctl stop coalesced@killed &&
        flock "$run/lock" nsenter -t "$systemd_init" -m -u -i -n -p -C -r -w -- systemctl start coalesced@killed
    has killed ExecMainStatus 75 && has killed SubState failed && has killed NRestarts 0
}

stays_down() {
    ! systemd_run systemctl start coalesced@bad && has bad ExecMainStatus 78 && has bad SubState failed &&
        has bad NRestarts 0 && said bad '/observers/count: expected an integer in 1..1024, got 0'
}

finishes() {
    start "$1" && until_true 60 has "$1" ActiveState inactive && has "$1" Result success
}

# went_on INSTANCE NAME: the log of the instance's run has a resume, and no earlier run was moved away.
went_on() {
    local run=$systemd_root/var/lib/private/coalesced/$1/$2
    grep -q '"event":"resumed"' "$run/episodes.jsonl" && [[ ! -e $run/previous-1 ]]
}

# stays_over INSTANCE NAME
stays_over() {
    local run=$systemd_root/var/lib/private/coalesced/$1/$2
    [[ $(grep -c '"event":"finished"' "$run/episodes.jsonl") -eq 1 && ! -e $run/previous-1 ]]
}

check "a CartPole job starts and is ready" start cartpole
check "its status line tells of episodes" until_true 20 status_tells_of_episodes
check "a good job file is read again" reload "${ENDLESS/1000\}/500\}}" '/log is in force'
check "a bad one is an error of the reload" fails reload '{"kind": "reinforce", "observers": {"count": 0}}' ''
check "which says what is wrong" said cartpole '/observers/count: expected an integer in 1..1024, got 0'
check "and changes nothing" has cartpole ActiveState active
check "a message of the supervisor is found by the run, the priority and the unit" found_by 'is read again' \
    COALESCED_RUN=cartpole PRIORITY=6 _SYSTEMD_UNIT=coalesced@cartpole.service
check "and not by another run" fails found_by 'is read again' COALESCED_RUN=rnn
check "it stops in good order" stop
check "a model-parallel job, whose kernels are written at run time, runs to its end" finishes rnn
check "a worker's messages are found by the worker" found_by 'device: ' COALESCED_RUN=rnn 'COALESCED_WORKER=trainer 1'
check "the lines of standard output are found by the run, too" found_by 'Update 10' COALESCED_RUN=rnn
check "started again, the finished job ends at once" finishes rnn
# By the message's own field: of a process that has exited already journald cannot find the unit.
check "it says so" found_by 'has ended, and /stop asks for no more' COALESCED_RUN=rnn
check "its run has one end, and none began anew" stays_over rnn rnn
check "a bad job is not started again" stays_down
check "a job to be killed starts" start killed
check "after a killed supervisor it is started again" comes_back killed KILL
check "that was a restart" has killed NRestarts 1
check "the run went on" went_on killed cartpole
check "a killed worker is started again by its supervisor" worker_comes_back killed cartpole
check "the unit is not" has killed NRestarts 1
check "a run that another process holds is not tried again and again" busy
check "a job to be hung starts" start hung
check "after a watchdog's timeout it is started again" comes_back hung STOP
check "that was the watchdog" systemd_said hung 'Watchdog timeout'
finish
