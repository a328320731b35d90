# A systemd of one's own, as the init of its own namespaces, for tests of the unit. Sourced behind test/shell.bash.
#
#   systemd_require     skips the test where no systemd can be booted
#   systemd_boot TREE [ROOT]   boots on a throw-away copy of the root folder ROOT, by default this machine's, with the
#                       files of TREE laid over it and none of its enabled services; or skips the test
#   systemd_run COMMAND [ARG]...   runs a command beside it
#   $systemd_root       its root folder, as seen from here
#
# The copy is an overlay in memory. The mounts live in a namespace of their own and end with it, the processes end
# with their init, which ends with this shell, and the cgroups are removed when the test ends. The kernel's settings
# and devices are not the new systemd's: /proc/sys and /sys are read-only, and it may load no module.

systemd_cgroup=
systemd_unshare=
systemd_init=

# Runs from the trap, where `set -e` still holds.
systemd_end() {
    local tries
    if [[ -n $systemd_unshare ]]; then
        kill -KILL "$systemd_unshare" || true # its child dies with it, and that one's namespace with the child
        wait "$systemd_unshare" || true
    fi
    for ((tries = 0; tries < 200; tries++)); do
        [[ -n $systemd_cgroup && -d $systemd_cgroup ]] || return 0
        find "$systemd_cgroup" -depth -type d -exec rmdir {} + || sleep 0.05
    done
} 2>/dev/null
# shellcheck disable=SC2154 # of test/shell.bash
trap 'systemd_end; rm -rf "$scratch"' EXIT

# Where the cgroup tree of version 2 is mounted; nothing where it is not.
systemd_find_cgroups() {
    awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts
}

# Becomes systemd: the last thing that runs outside of it. Arguments: an empty folder, TREE and ROOT.
# shellcheck disable=SC2016 # expanded in the namespace
systemd_become='
set -eu
room=$1
mount -t tmpfs -o mode=755 tmpfs "$room"
mkdir "$room/upper" "$room/work" "$room/root"
mount -t overlay -o "lowerdir=$3,upperdir=$room/upper,workdir=$room/work" overlay "$room/root"
cd "$room/root"
rm -rf etc/systemd/system/* etc/fstab
cp -a "$2/." .
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do
    touch "dev/$node"
    mount --bind "/dev/$node" "dev/$node"
done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
pivot_root . .
umount -l .
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=basic.target --log-target=journal --show-status=no'

systemd_run() {
    nsenter -t "$systemd_init" -m -u -i -n -p -C -r -w -- "$@"
}

systemd_is_up() {
    [[ $(systemd_run systemctl is-active basic.target 2>/dev/null) == active ]]
}

# until_true SECONDS COMMAND [ARG]...: repeats the command until it succeeds.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [[ $SECONDS -lt $end ]] || return 1
        sleep 0.05
    done
}

# The child of unshare is the init, once it has become systemd.
systemd_find_init() {
    kill -0 "$systemd_unshare" 2>/dev/null || skip "systemd cannot be booted here: $(tail -n 1 "$scratch/systemd.out")"
    systemd_init=$(cat "/proc/$systemd_unshare/task/$systemd_unshare/children" 2>/dev/null) || return 1
    systemd_init=${systemd_init%% *}
    [[ -n $systemd_init && $(cat "/proc/$systemd_init/comm" 2>/dev/null) == systemd ]]
}

systemd_require() {
    local tool cgroups
    for tool in unshare nsenter setpriv pivot_root /lib/systemd/systemd; do
        command -v "$tool" >/dev/null || skip "$tool is not there, so no systemd can be booted"
    done
    [[ $EUID -eq 0 ]] || skip "no systemd can be booted without root"
    cgroups=$(systemd_find_cgroups)
    mkdir "$cgroups/coalesced-test-$$" 2>/dev/null || skip "no systemd can be booted without a cgroup of its own"
    systemd_cgroup=$cgroups/coalesced-test-$$
    unshare --mount --uts --ipc --net --pid --cgroup --fork true 2>/dev/null ||
        skip "no systemd can be booted without namespaces"
}

systemd_boot() {
    mkdir "$scratch/systemd"
    (
        echo "$BASHPID" >"$systemd_cgroup/cgroup.procs" &&
            exec setpriv --pdeathsig KILL --bounding-set=-sys_module,-sys_time,-sys_rawio \
                unshare --mount --uts --ipc --net --pid --cgroup --fork --kill-child \
                bash -c "$systemd_become" bash "$scratch/systemd" "$1" "${2:-/}"
    ) </dev/null >"$scratch/systemd.out" 2>&1 &
    systemd_unshare=$!
    if ! until_true 30 systemd_find_init || ! until_true 60 systemd_is_up; then
        skip "systemd does not come up here: $(tail -n 1 "$scratch/systemd.out")"
    fi
    # shellcheck disable=SC2034 # for tests
    systemd_root=/proc/$systemd_init/root
}
