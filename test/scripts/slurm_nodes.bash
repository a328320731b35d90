# Sourced by the tests of jobs on several nodes, after slurm.bash: a cluster of four nodes, each with a network, a host name
# and processes of its own, so that it can crash, and lose its cable; and a job on three of them.
#
#   node_up N, node_crash N   a node comes, or all its processes are gone at once
#   node_of HOST              the node of that host of the job
#   trains                    submits the job; it trains on three nodes when this returns
#   goes_on, goes_on_anew     the job, or its second start, makes 60 episodes, and runs out of time; its log is sound

need_slurm
command -v ip >/dev/null || skip "there is no ip (Debian's iproute2)"
apart=(unshare --net --uts --mount --pid --fork --kill-child --mount-proc)
if [[ -z ${TEST_IS_APART:-} ]]; then
    "${apart[@]}" ip link add br0 type bridge 2>/dev/null || skip "no network namespaces, or no bridges in them"
    rm -rf "$scratch"
    TEST_IS_APART=yes exec "${apart[@]}" "$0"
fi
# In memory: slurmctld syncs its state to the disk, and while the disk is busy it hears no node.
mount -t tmpfs scratch "$scratch"
trap 'umount --lazy "$scratch"; rm -rf "$scratch"' EXIT

# ---- a cluster of four nodes on a bridge ----
# The head has 10.78.1.100, node N 10.78.1.N. Folders are shared, but for $scratch/local.
hostname head
ip link set lo up
ip link add br0 type bridge
ip addr add 10.78.1.100/24 dev br0
ip link set br0 up
mkdir -p "$scratch/submit/build/release" "$scratch/local"
export TMPDIR=$scratch/local XDG_RUNTIME_DIR=$scratch/local
nodes=()
for n in 1 2 3 4; do
    nodes+=("NodeName=node$n NodeHostname=node$n NodeAddr=10.78.1.$n Port=16818 CPUs=2")
done
configure_slurm "SlurmctldHost=head(10.78.1.100)" "SlurmctldPort=16817" "${nodes[@]}" \
    "PartitionName=all Nodes=node[1-4] Default=YES MaxTime=INFINITE State=UP"

init_of() {
    cat "$scratch/init-$1"
}

# The processes of a node end with its first one.
node_up() {
    local n=$1 pid init=''
    ip link delete "ve$n" 2>/dev/null || true
    "${apart[@]}" bash -c "hostname node$n; mount -t tmpfs local '$scratch/local'; ip link set lo up
        until ip link show eth0; do sleep 0.02; done
        ip addr add 10.78.1.$n/24 dev eth0; ip link set eth0 up
        slurmd -D -N node$n & wait" >"$cluster/node$n.out" 2>&1 &
    pid=$!
    until init=$(pgrep -P "$pid") && [[ $(readlink "/proc/$init/ns/net") != "$(readlink /proc/self/ns/net)" ]]; do
        sleep 0.02
    done
    ip link add "ve$n" type veth peer name eth0 netns "/proc/$init/ns/net"
    ip link set "ve$n" master br0 up
    echo "$init" >"$scratch/init-$n"
}
node_crash() {
    kill -9 "$(init_of "$1")"
}
begins() {
    begin_controller && node_up 1 && node_up 2 && node_up 3 && node_up 4 && wait_for yes are_idle &&
        timeout 60 srun -N4 true
}
# ---- jobs ----
cd "$scratch/submit"
ln -s "$COALESCED" build/release/coalesced
cat >job.json <<'JSON'
{"kind": "reinforce", "name": "run", "device": "cpu", "rollout": {"steps": 20}, "log": {"every": 100},
 "observers": {"count": 3}, "hosts": {"patience_s": 12}, "stop": {"episodes": 1000000}, "checkpoint": {"every": 20}}
JSON

# The node of host N of the job.
node_of() {
    scontrol show hostnames "$(squeue -h -j "$(cat "$scratch/job")" -o %N)" | sed -n "$(($1 + 1))s/node//p"
}
says_yes() {
    ! says "$1" || echo yes
}
# The log has every episode once, and the numbers of one machine.
is_sound() {
    local both
    numbers runs/run >ours
    both=$(cat ours whole.numbers | cut -d, -f1 | sort | uniq -d | wc -l)
    [[ $both -gt 0 ]] && cmp <(head -n "$both" ours) <(head -n "$both" whole.numbers) &&
        cmp <(cut -d, -f1 ours) <(seq -f '{"episode":%.0f' "$(wc -l <ours)")
}
queue_is_empty() {
    [[ -n $(squeue -h) ]] || are_idle
}
trains() {
    scancel --user=root && wait_for yes queue_is_empty && rm -rf runs && submits -N3 "$script" job.json &&
        wait_for yes says_yes 'host 1 takes part' && wait_for yes says_yes 'host 2 takes part' &&
        wait_for yes is_training runs/run
}
trains_on() {
    wait_for yes is_training runs/run $(($(wc -l <runs/run/episodes.jsonl) + 60))
}
# The job goes on for 60 episodes, and runs out of time.
goes_on() {
    trains_on && scancel --signal=USR1 --batch "$(cat "$scratch/job")" && wait_for yes has_stopped && is_sound &&
        wait_for yes says_yes 'goes back to the queue'
}
goes_on_anew() {
    wait_for yes says_yes 'start 1 on' && wait_for yes says_yes 'going on from' && goes_on
}

is_alone() {
    "$COALESCED" run job.json --run-dir whole --set /stop/episodes=800 && numbers whole >whole.numbers &&
        [[ $(wc -l <whole.numbers) -eq 800 ]]
}

check "a cluster begins" begins
check "a job on one machine" is_alone
