#!/usr/bin/env bash
# Installs this build below a scratch folder, as a packager does, and looks at what came to lie there.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/shell.bash"

unset MAKEFLAGS MAKELEVEL
stage=$scratch/stage
unit=$stage/usr/lib/systemd/system/coalesced@.service

install_it() {
    make -s -C "$here/.." install SAN="${SAN:-}" PREFIX=/usr DESTDIR="$stage"
}

# The names of what was installed, sorted, a job's and a schema's aside.
only_what_belongs() {
    diff - <(cd "$stage" && find . -type f ! -path './usr/share/coalesced/*.json' | sort) <<'LIST'
./usr/bin/coalesced
./usr/lib/systemd/system/coalesced@.service
LIST
}

the_version() {
    local version said
    version=$(sed -n 's/^VERSION := //p' "$here/../Makefile") && said=$("$stage/usr/bin/coalesced" --version) &&
        printf '%s\n' "$said" && [[ -n $version && $said == *"$version"* ]]
}

the_jobs() {
    diff <(cd "$here/../config" && sha256sum -- *.json) <(cd "$stage/usr/share/coalesced" && sha256sum -- *)
}

# The unit starts the program where it will lie at last, not where it was staged.
the_place() {
    grep -qx 'ExecStart=/usr/bin/coalesced run /etc/coalesced/%i.json' "$unit" &&
        ! grep -F -e '@PREFIX@' -e "$stage" "$unit"
}

# modes MODE FILE: everyone may read it, only root may change it.
modes() {
    [[ $(stat -c %a "$2") == "$1" ]]
}

check "make install" install_it
check "nothing else is installed" only_what_belongs
check "the program tells its version" the_version
check "the job files are the checkout's" the_jobs
check "the unit names the installed program" the_place
check "the program's mode" modes 755 "$stage/usr/bin/coalesced"
check "the unit's mode" modes 644 "$unit"
finish
