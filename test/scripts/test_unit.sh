#!/usr/bin/env bash
# systemd-analyze on the installed unit: verify must print nothing, and the exposure must stay under 2.0. Worse copies
# must fail both. test_unit_live.sh runs the unit.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

if ! command -v systemd-analyze >/dev/null; then
    skip "systemd-analyze is not installed (scripts/deps lint)"
fi
# Everything is installed below the prefix, because verify looks for the program that the unit starts.
prefix=$scratch/usr
unit=$prefix/lib/systemd/system/coalesced@.service
man=$(command -v man >/dev/null && echo yes || echo no) # its pages are looked up with man
env -u MAKEFLAGS -u MAKELEVEL make -s -C "$here/../.." install SAN="${SAN:-}" PREFIX="$prefix" DESTDIR=

# verify exits 0 also after an unknown key: it must be silent, too.
verifies() {
    local said
    said=$(MANPATH=$prefix/share/man systemd-analyze verify --man="$man" "$1" 2>&1) && printf '%s\n' "$said" && [[ -z $said ]]
}

# The threshold is in tenths.
is_safe() {
    systemd-analyze security --no-pager --offline=true --threshold=20 "$1"
}

# worse SED JUDGE: a copy of the unit, changed by the sed script, fails the judge.
worse() {
    local copy=$scratch/worse/coalesced@.service
    mkdir -p "$scratch/worse" && sed -E "$1" "$unit" >"$copy" && ! cmp -s "$unit" "$copy" && ! "$2" "$copy"
}

# The unit with the settings that its first comment lists for a GPU, as a drop-in would add them.
with_gpu() {
    local copy=$scratch/gpu/coalesced@.service settings
    settings=$(sed -nE 's/^#   a GPU +//p' "$unit" | sed 's/, */\n/g')
    mkdir -p "$scratch/gpu" && [[ $settings == *DeviceAllow=char-nvidia* ]] &&
        { cat "$unit" && printf '[Service]\n%s\n' "$settings"; } >"$copy" && verifies "$copy" && is_safe "$copy"
}

check "the unit verifies" verifies "$unit"
check "a misspelt key does not" worse 's/^WatchdogSec=/WatchdogSecs=/' verifies
check "a program that is not there does not" worse 's|^ExecStart=|&/nowhere|' verifies
check "the exposure is under 2.0" is_safe "$unit"
check "with a GPU let in it is too" with_gpu
check "without its sandbox it is not" worse '/^(Private|Protect|Restrict|SystemCall|Capability)/d' is_safe
finish
