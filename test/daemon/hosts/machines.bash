# Sourced first by tests and benchmarks whose jobs run on several machines. Each machine is a set of namespaces: it has its
# own network, host name and processes, and shares the files. Machine N has the address 10.78.1.N+1 and a cable to a
# bridge.
#
#   machines_enter COMMAND [ARG]...  runs the command in namespaces of its own, with a bridge; in there it returns at once.
#                                    Exit 77 with one line: this machine has no namespaces, or no `ip`
#   machine_start N                  starts machine N
#   machine_run N COMMAND...         runs the command on it
#   machine_crash N                  ends all its processes at once, as a power failure does
#   machine_cut N, machine_join N    pulls its cable; puts it back
#   on_machines COUNT COMMAND...     starts machines 0 to COUNT - 1, runs the command, and ends them
#   machine_pids N PATTERN           the processes there whose command line matches, numbered as outside

machines_enter() {
    local how=(unshare --net --uts --mount)
    [[ -z ${MACHINES_INSIDE:-} ]] || { machines_bridge; return; }
    [[ $EUID -eq 0 ]] || how+=(--map-root-user)
    if ! command -v ip >/dev/null; then
        printf '%s: skipped: no ip here (scripts/deps test)\n' "$(basename "$1")"
        exit 77
    fi
    if ! "${how[@]}" sh -c 'ip link add br0 type bridge && ip link add ve0 type veth peer name eth0' 2>/dev/null; then
        printf '%s: skipped: no network namespaces with a bridge here\n' "$(basename "$1")"
        exit 77
    fi
    MACHINES_INSIDE=yes exec "${how[@]}" "$@"
}

machines_bridge() {
    declare -ga machine_init=() machine_shell=()
    ip link set lo up
    ip link add br0 type bridge
    ip addr add 10.78.1.100/24 dev br0
    ip link set br0 up
}

# The first process of a machine ends with this shell, ends all others there, and reaps those that have lost their parent.
machine_start() {
    local n=$1 init
    setpriv --pdeathsig KILL unshare --net --uts --mount --pid --fork --kill-child --mount-proc bash -c "
        hostname machine$n
        ip link set lo up
        until ip addr add 10.78.1.$((n + 1))/24 dev eth0 2>/dev/null; do sleep 0.02; done
        ip link set eth0 up
        sleep infinity & wait" </dev/null >/dev/null 2>&1 &
    machine_shell[n]=$!
    disown
    until init=$(pgrep -P "${machine_shell[$n]}"); do sleep 0.02; done
    until [[ $(readlink "/proc/$init/ns/net") != "$(readlink /proc/self/ns/net)" ]]; do sleep 0.02; done
    machine_init[n]=$init
    # The end of a machine before it may still be going.
    until ip link add "ve$n" type veth peer name eth0 address "02:00:0a:4e:01:$(printf %02x "$n")" \
        netns "/proc/$init/ns/net" 2>/dev/null; do sleep 0.02; done
    ip link set "ve$n" master br0 up
    until machine_run "$n" ip -brief addr show dev eth0 | grep -q 'UP.*10\.78'; do sleep 0.02; done
}

machine_run() {
    local n=$1
    shift
    nsenter --target "${machine_init[$n]}" --net --uts --mount --pid "$@"
}

machine_crash() {
    kill -9 "${machine_init[$1]}"
    unset "machine_init[$1]"
    ip link delete "ve$1" 2>/dev/null || true # it goes with its other end
    until [[ ! -e /proc/${machine_shell[$1]} ]]; do sleep 0.02; done
}

machine_cut() {
    ip link set "ve$1" down
}

machine_join() {
    ip link set "ve$1" up
}

on_machines() {
    local n code=0
    for ((n = 0; n < $1; n++)); do
        machine_start "$n"
    done
    "${@:2}" || code=$?
    for n in "${!machine_init[@]}"; do
        machine_crash "$n"
    done
    return "$code"
}

machine_pids() {
    local pid space
    space=$(readlink "/proc/${machine_init[$1]}/ns/pid") || return 0
    for pid in $(pgrep -f -- "$2"); do
        [[ $(readlink "/proc/$pid/ns/pid") != "$space" ]] || echo "$pid"
    done
}
