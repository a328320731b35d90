#!/usr/bin/env bash
# scripts/hosts/ssh with an ssh that runs the command on this machine: a host is a folder, in which its process starts.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
hosts_ssh=$(readlink -f "$here/../../scripts/hosts/ssh")
COALESCED=$(readlink -f "$COALESCED")

# The last two arguments are the host and the command.
mkdir -p "$scratch/bin" "$scratch/run" "$scratch/memory"
cat >"$scratch/bin/ssh" <<'SSH'
#!/usr/bin/env bash
printf '%s\n' "$*" >>"$SSH_ARGUMENTS"
host=${*: -2:1}
if [[ $host == away ]]; then
    echo "ssh: connect to host away port 22: No route to host" >&2
    exit 255
fi
exec bash -c "${*: -1}"
SSH
chmod +x "$scratch/bin/ssh"
export PATH=$scratch/bin:$PATH SSH_ARGUMENTS=$scratch/arguments XDG_RUNTIME_DIR=$scratch/memory
cd "$scratch"
printf '# three hosts\none\nuser@two # the second\n\nthree\n' >hosts
printf 'one\ntwo\naway\n' >hosts-away
cat >job.json <<'JSON'
{"kind": "reinforce", "name": "run", "device": "cpu", "rollout": {"steps": 50}, "log": {"every": 100},
 "observers": {"count": 3}, "stop": {"episodes": 300}, "checkpoint": {"every": 50}}
JSON

# launch HOSTS-FILE [OPTION]...: the exit code is in $code, what was said in the file out.
launch() {
    code=0
    "$hosts_ssh" --leader "127.0.0.1:$((first_port + RANDOM % 40))" --program "$COALESCED" "$1" job.json "${@:2}" >out 2>&1 ||
        code=$?
}
numbers() {
    grep -av '^{"event"' "$1/episodes.jsonl" | sed 's/,"timing".*//'
}
nothing_is_left() {
    find memory -name 'coalesced-*-*'
    [[ -z $(find memory -name 'coalesced-*-*' -print -quit) ]] && ! pgrep -f "$scratch/memory/coalesced-keys" >/dev/null
}
until_there() {
    local i
    for ((i = 0; i < 600; i++)); do
        ! grep -q "$1" out || return 0
        sleep 0.1
    done
    cat out
    return 1
}

trains() {
    launch hosts
    cat out
    [[ $code -eq 0 ]] && grep -q '^one: coalesced: host 2 .* is here' out &&
        grep -q '^two: coalesced: host 1 takes part' out && grep -q '^one: Episode 300' out && nothing_is_left
}
same_as_alone() {
    "$COALESCED" run job.json --run-dir alone && cmp <(numbers runs/run) <(numbers alone)
}
shows_no_secret() {
    "$COALESCED" keygen keys --hosts 1 && grep -q 'exec bash -s' arguments &&
        ! grep -qE '[0-9a-f]{64}' arguments
}
names_the_host() {
    rm -rf runs
    launch hosts-away && [[ $code -eq 69 ]] && grep -q '^away: ssh: connect to host' out &&
        grep -q 'away cannot be reached' out && [[ ! -e runs ]] && nothing_is_left
}
has_no_program() {
    code=0
    "$hosts_ssh" --program /no/program hosts job.json >out 2>&1 || code=$?
    [[ $code -eq 69 ]] && grep -q '^one: no coalesced in PATH, and no /no/program' out && nothing_is_left
}
gives_the_code() {
    launch hosts --set /observers/cuont=2
    [[ $code -eq 78 ]] && grep -q '^one: .*did you mean "count"' out && nothing_is_left
}
# stops SIGNAL COUNT
stops() {
    local pid i
    rm -rf runs out
    "$hosts_ssh" --leader "127.0.0.1:$((first_port + RANDOM % 40))" --program "$COALESCED" hosts job.json \
        --set /stop/episodes=1000000 >out 2>&1 &
    pid=$!
    until_there '^one: Episode 100' || return 1
    for ((i = 0; i < $1; i++)); do
        kill -TERM "$pid"
        until_there "$([[ $i -eq 0 ]] && echo 'one: coalesced: stopping' || echo 'one: coalesced: \(hurrying\|.*over\)')"
    done
    code=0
    wait "$pid" || code=$?
    while kill -0 "$pid" 2>/dev/null; do
        code=0
        wait "$pid" || code=$?
    done
    [[ $code -eq 0 ]] && tail -1 runs/run/episodes.jsonl | grep -q '"event":"stopped"' && nothing_is_left
}
is_killed() {
    local pid i
    rm -rf runs out
    "$hosts_ssh" --leader "127.0.0.1:$((first_port + RANDOM % 40))" --program "$COALESCED" hosts job.json \
        --set /stop/episodes=1000000 >out 2>&1 &
    pid=$!
    until_there '^one: Episode 100' && kill -KILL "$pid"
    for ((i = 0; i < 300; i++)); do
        if [[ -z $(find memory -name 'coalesced-keys-*' -print -quit) ]]; then
            break
        fi
        sleep 0.1
    done
    tail -1 runs/run/episodes.jsonl | grep -q '"event":"stopped"' && ! pgrep -f "$scratch/memory/coalesced-keys" >/dev/null
}
needs_arguments() {
    code=0
    "$hosts_ssh" hosts 2>usage || code=$?
    [[ $code -eq 64 ]] && grep -q '^usage: scripts/hosts/ssh' usage && "$hosts_ssh" --help | grep -q HOSTS-FILE
}

check "a job on three hosts" trains
check "its log is that of one" same_as_alone
check "no key on a command line" shows_no_secret
check "a host that cannot be reached" names_the_host
check "a host without the program" has_no_program
check "a wrong job: the leader's exit code" gives_the_code
check "one signal: the round is finished" stops 1
check "two signals hurry" stops 2
check "the launcher is killed: the supervisors end" is_killed
check "usage" needs_arguments

finish
