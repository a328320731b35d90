# Sourced by the tests of packages, behind test/shell.bash: a bare Debian of this machine's release with systemd, logrotate
# and Python, which mmdebstrap makes from this machine's own sources.
#
#   make_debian FOLDER              makes it in FOLDER. build/test-debian.tar keeps it for a day, for all tests: most of a
#                                   run is its download. Skips where none can be made
#   within COMMAND [ARGUMENT]...    runs the command in the Debian of the folder $root

# shellcheck disable=SC2154 # test/shell.bash makes the folder

readonly DEBIAN=build/test-debian.tar

# The sources of Debian's packages on this machine, and no others.
# shellcheck disable=SC2016 # expanded by apt-get
own_sources() {
    apt-get indextargets --format 'deb $(SITE) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' 'Origin: Debian'
}

make_debian_archive() {
    local codename
    codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    own_sources >"$scratch/sources"
    [[ -n $codename && -s $scratch/sources ]] || skip "this machine has no sources of Debian's packages"
    mmdebstrap --verbose --variant=minbase --include=systemd,logrotate,python3,python3-venv --skip=cleanup/apt "$codename" \
        "$scratch/root.tar" "$scratch/sources" >"$scratch/mmdebstrap.out" 2>&1 ||
        skip "mmdebstrap makes no Debian here: $(grep '^E: ' "$scratch/mmdebstrap.out" | head -n 1)"
    mv "$scratch/root.tar" "$DEBIAN"
}

# Tests that run at the same time wait for the one that makes it.
make_debian() {
    local lock
    mkdir -p "$(dirname "$DEBIAN")" "$1"
    exec {lock}>>"$DEBIAN.lock"
    flock "$lock"
    if [[ -z $(find "$DEBIAN" -mmin -1440 2>/dev/null) ]]; then
        make_debian_archive
    fi
    exec {lock}>&-
    tar -xf "$DEBIAN" -C "$1"
}

# shellcheck disable=SC2016 # expanded in the namespace
within() {
    env PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive \
        unshare --mount --pid --fork --kill-child sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$root" "$@"
}
