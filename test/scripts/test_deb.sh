#!/usr/bin/env bash
# Builds the Debian package, has lintian judge it, and installs, uses, upgrades and purges it in a clean Debian that
# mmdebstrap makes from this machine's own sources; then again under a systemd of its own (test/scripts/systemd.bash).
# test_unit_live.sh has more of the unit itself.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/scripts/debian.bash
source "$here/debian.bash"
# shellcheck source=test/scripts/systemd.bash
source "$here/systemd.bash"

[[ -z ${SAN:-} ]] || skip "the package is a release build"
for tool in dpkg-shlibdeps lintian mmdebstrap; do
    command -v "$tool" >/dev/null || skip "$tool is not installed (scripts/deps package)"
done
[[ $EUID -eq 0 ]] || skip "no Debian can be made without root"
cd "$here/../.."

readonly ENDLESS='{"kind": "reinforce", "name": "pole", "device": "cpu", "stop": {"episodes": 1000000000}, "log": {"every": 1000},
 "checkpoint": {"every": 100}, "metrics": {"listen": "127.0.0.1:9477"}}'
root=$scratch/root
version=$(sed -n 's/^VERSION := //p' Makefile)
file=coalesced_${version}_$(dpkg --print-architecture).deb

package() {
    scripts/package/deb "$version" "$1" 2> >(tee "$scratch/progress" >&2) && [[ -s $1/$file ]]
}

same_bytes() {
    package "$scratch/again" && cmp "$scratch/build/$file" "$scratch/again/$file"
}

judge() {
    lintian --allow-root --fail-on error,warning "$scratch/build/$file"
}

says_what_it_does() {
    grep -q '^scripts/package/deb: installing' "$scratch/progress" && grep -q '^scripts/package/deb: packing' "$scratch/progress"
}

# Each relative link of a document that is installed leads to a file.
links_lead_somewhere() {
    local doc=$scratch/unpacked/usr/share/doc/coalesced document link links=0
    dpkg-deb -x "$scratch/build/$file" "$scratch/unpacked"
    while read -r document; do
        while read -r link; do
            links=$((links + 1))
            [[ -e $(dirname "$document")/$link ]] || { echo "$document: $link" && return 1; }
        done < <(grep -oP '\]\(\K(?!https?:)[^)#]+' "$document")
    done < <(find "$doc" -name '*.md')
    [[ $links -gt 10 ]]
}

# All relocations are done at the start, and the C library's checked functions are called.
is_hardened() {
    local program said
    for program in "$scratch"/unpacked/usr/{bin/coalesced,lib/coalesced/*.so}; do
        said=$(readelf -dlW --dyn-syms "$program")
        [[ $said == *BIND_NOW* && $said == *GNU_RELRO* && $said == *_chk@GLIBC* ]] || { echo "$program" && return 1; }
    done
}

# The same package, of a higher version.
make_newer() {
    dpkg-deb -R "$scratch/build/$file" "$scratch/newer" && sed -i 's/^Version: .*/&+1/' "$scratch/newer/DEBIAN/control" &&
        dpkg-deb --root-owner-group -b "$scratch/newer" "$1"
}

# A Debian with the files of the packages that this one depends on: a systemd of one's own has no network.
make_root() {
    make_debian "$root"
    mkdir "$root/packages"
    cp "$scratch/build/$file" "$root/packages/"
    within apt-get -qq install --download-only --yes --no-install-recommends "/packages/$file" ||
        skip "the packages that it depends on cannot be downloaded"
}

apt_install() {
    within apt-get -qq install --yes --no-install-recommends "$1"
}

# Every file and folder, but for those that apt, dpkg, ldconfig and the kernel keep for themselves, and the runs.
list() {
    (cd "$1" && find . \( -path './proc/*' -o -path './sys/*' -o -path './dev/*' -o -path './tmp/*' -o -path './run/*' \
        -o -path './var/lib/apt/*' -o -path './var/lib/dpkg/*' -o -path './var/cache/*' -o -path './var/log/*' \
        -o -path './var/lib/coalesced/*' -o -path './packages/*' \) -prune -o -print | sort)
}

tells_its_version() {
    [[ $(within coalesced --version) == *"$version"* ]]
}

is_good() {
    local said schema
    schema=$(jq -r '."$schema"' "$root/etc/coalesced/cartpole.json") && [[ -s $root$schema ]] || return 1
    said=$(within coalesced check /etc/coalesced/cartpole.json 2>&1) && printf '%s\n' "$said" && [[ -z $said ]]
}

# A short run of the job, as the unit's user and where the unit puts it.
runs() {
    within install -d -o coalesced -g coalesced -m 700 /var/lib/coalesced/cartpole &&
        within setpriv --reuid=coalesced --regid=coalesced --clear-groups coalesced run /etc/coalesced/cartpole.json \
            --set /stop/episodes=20 --set /stop/running_reward=1 --run-dir /var/lib/coalesced/cartpole/cartpole &&
        [[ -s $root/var/lib/coalesced/cartpole/cartpole/episodes.jsonl ]]
}

rotates() {
    local run=$root/var/lib/coalesced/cartpole/cartpole
    within logrotate --force --state /tmp/logrotate.state /etc/logrotate.d/coalesced &&
        [[ -s $run/episodes.jsonl.1 && -s $run/episodes.log.1 && ! -e $run/episodes.jsonl ]]
}

# is_newer COMMAND...: the package has the newer version where the command runs.
# shellcheck disable=SC2016 # expanded by dpkg-query
is_newer() {
    [[ $("$@" dpkg-query -W -f '${Version}' coalesced) == "$version+1" ]]
}

# An upgrade asks nothing, and the administrator's job stays.
upgrades() {
    sed -i 's/"seed": 1,/"seed": 7,/' "$root/etc/coalesced/cartpole.json" && apt_install /packages/newer.deb </dev/null &&
        is_newer within &&
        grep -q '"seed": 7,' "$root/etc/coalesced/cartpole.json"
}

purges() {
    within apt-get -qq purge --yes --autoremove coalesced >"$scratch/purge.out" 2>&1 || { cat "$scratch/purge.out" && return 1; }
}

keeps_ones_own_job() {
    [[ $(cat "$root/etc/coalesced/mine.json") == mine && ! -e $root/etc/coalesced/cartpole.json ]] &&
        grep -q 'the files in /etc/coalesced that are not the package.s stay' "$scratch/purge.out" && rm -r "$root/etc/coalesced"
}

keeps_the_runs() {
    [[ -s $root/var/lib/coalesced/cartpole/cartpole/episodes.jsonl.1 ]] &&
        [[ $(within stat -c %U /var/lib/coalesced/cartpole) == coalesced ]] &&
        grep -q 'the runs in /var/lib/coalesced stay' "$scratch/purge.out"
}

leaves_nothing() {
    diff <(grep -v '^\./var/lib/coalesced$' "$scratch/before") <(list "$1" | grep -v '^\./var/lib/coalesced$')
}

# Without runs the user goes too.
purges_without_runs() {
    rm -rf "${root:?}/var/lib/coalesced" && apt_install "/packages/$file" && within getent passwd coalesced && purges &&
        ! within getent passwd coalesced && ! within getent group coalesced && diff "$scratch/before" <(list "$root")
}

check "make deb" package "$scratch/build"
check "the same sources give the same bytes" same_bytes
check "it says what it does" says_what_it_does
check "lintian finds nothing" judge
check "the documents' links lead somewhere" links_lead_somewhere
check "programs are hardened" is_hardened

# What cannot be tested here does not hide what was.
skip() {
    printf 'test_deb.sh: the rest is not tested: %s\n' "$*"
    finish
}
make_root
make_newer "$root/packages/newer.deb" >/dev/null
cp "$scratch/build/$file" "$root/packages/"
list "$root" >"$scratch/before"
check "the package is installed with all that it depends on" apt_install "/packages/$file"
check "the program tells its version" tells_its_version
check "the installed job is good" is_good
check "it trains, as the package's user" runs
check "its logs are rotated" rotates
check "an upgrade keeps an edited job" upgrades
echo mine >"$root/etc/coalesced/mine.json"
check "a purge" purges
check "it keeps a job of one's own, and says so" keeps_ones_own_job
check "it keeps the runs, and says so" keeps_the_runs
check "and leaves nothing else" leaves_nothing "$root"
check "without runs it leaves nothing at all" purges_without_runs

# ---- under systemd ----

systemd_require
mkdir -p "$scratch/tree"
systemd_boot "$scratch/tree" "$root"

beside() {
    systemd_run env PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive "$@"
}

property() {
    beside systemctl show --value -p "$1" coalesced@pole
}

is_active() {
    [[ $(property ActiveState) == active ]]
}

# What a person does: a package, a file, a start.
starts() {
    beside apt-get -qq install --yes --no-install-recommends "/packages/$file" &&
        beside sh -c 'cat >/etc/coalesced/pole.json' <<<"$ENDLESS" && beside systemctl -q enable --now coalesced@pole && is_active
}

# From this host, through the unit's sandbox.
shows_its_page() {
    local said
    # shellcheck disable=SC2016  # the inner shell expands it
    said=$(beside bash -c 'exec 3<>/dev/tcp/127.0.0.1/9477 && printf "GET %s HTTP/1.0\r\n\r\n" "$1" >&3 && cat <&3' bash "$1")
    [[ $said == 'HTTP/1.'?' 200 '* && $said == *"$2"* ]] || { printf '%s\n' "${said:0:400}" && return 1; }
}

# The user, and the folder that logrotate knows.
is_the_users() {
    [[ $(beside stat -c %U "/proc/$(property MainPID)") == coalesced ]] &&
        [[ $(beside stat -c '%U %a' /var/lib/coalesced/pole) == 'coalesced 700' ]] &&
        [[ -s $run/episodes.jsonl && ! -L $systemd_root/var/lib/coalesced ]]
}

# Not root: with the package's group, and without.
shows_members_its_status() {
    local group
    group=$(beside getent group coalesced | cut -d: -f3)
    beside setpriv --reuid 4242 --regid 4242 --groups "$group" coalesced list --running | grep -q '/pole	running' &&
        beside setpriv --reuid 4242 --regid 4242 --clear-groups coalesced list --running 2>&1 | grep -q '^coalesced: 1 run of other users is not shown' &&
        [[ -z $(beside find /run/coalesced -type s ! -name '*.status' -perm /077) ]]
}

in_journal() {
    beside journalctl -q --no-pager -o cat COALESCED_RUN=pole | grep -qF -- "$1"
}

reloads() {
    beside sh -c 'cat >/etc/coalesced/pole.json' <<<"${ENDLESS/1000\}/500\}}" && beside systemctl reload coalesced@pole &&
        until_true 20 in_journal '/log is in force' && is_active
}

# The run writes on after its logs were moved.
rotates_while_it_runs() {
    beside logrotate --force --state /tmp/logrotate.state /etc/logrotate.d/coalesced && [[ -s $run/episodes.jsonl.1 ]] &&
        until_true 20 test -s "$run/episodes.jsonl"
}

# A unit that has failed does not fail the rotation.
rotates_beside_a_failure() {
    beside sh -c 'echo "{}" >/etc/coalesced/bad.json' && ! beside systemctl start coalesced@bad &&
        [[ $(beside systemctl is-failed coalesced@bad) == failed ]] && rm -f "$run"/episodes.jsonl.1 && rotates_while_it_runs &&
        rm "$systemd_root/etc/coalesced/bad.json" && beside systemctl reset-failed coalesced@bad
}

# A job of the same port, whose file is the package's own with another name.
trains_beside_it() {
    beside sh -c "sed 's|\"name\": \"cartpole\"|\"name\": \"second\"|' /etc/coalesced/cartpole.json >/etc/coalesced/second.json" &&
        beside systemctl start coalesced@second &&
        until_true 60 test -s "$systemd_root/var/lib/coalesced/second/second/episodes.log"
    beside journalctl -q --no-pager -o cat COALESCED_RUN=second | grep -q 'the job goes on without its page' &&
        beside systemctl stop coalesced@second && rm "$systemd_root/etc/coalesced/second.json"
}

has_checkpoint() {
    [[ -n $(find "$run/checkpoints" -name manifest.json) ]]
}

upgrades_while_it_runs() {
    local before
    before=$(property MainPID)
    until_true 60 has_checkpoint && beside apt-get -qq install --yes /packages/newer.deb && is_newer beside && is_active &&
        [[ $(property MainPID) != "$before" ]] && grep -q '"event":"resumed"' "$run"/episodes.jsonl*
}

leaves_the_job() {
    rm "$systemd_root/etc/coalesced/pole.json" && rmdir "$systemd_root/etc/coalesced" && leaves_nothing "$systemd_root"
}

purges_while_it_runs() {
    local pid
    pid=$(property MainPID)
    [[ $pid -gt 1 ]] && beside apt-get -qq purge --yes --autoremove coalesced && ! beside test -e "/proc/$pid" &&
        [[ $(property ActiveState) != active ]] && grep -q '"event":"stopped"' "$run/episodes.jsonl"
}

run=$systemd_root/var/lib/coalesced/pole/pole
list "$systemd_root" >"$scratch/before"
check "under systemd: installed, a job's file written, enabled and started" starts
check "its page can be opened" shows_its_page / '<h2>Workers</h2>'
check "and its metrics read" shows_its_page /metrics coalesced_training
check "it runs as the package's user in its folder" is_the_users
check "members of its group see it, others that it is there" shows_members_its_status
check "it is reloaded, and says so in the journal under its run" reloads
check "its logs are rotated while it runs" rotates_while_it_runs
check "also beside a unit that has failed" rotates_beside_a_failure
check "a second job whose page has the same address trains" trains_beside_it
check "an upgrade starts it again, and its run goes on" upgrades_while_it_runs
check "a purge stops it" purges_while_it_runs
check "and leaves nothing but the run and its job" leaves_the_job
finish
