#!/usr/bin/env bash
# Installs this build below a scratch folder, as a packager does, and checks the installed files.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

unset MAKEFLAGS MAKELEVEL
build=${BUILD:-$here/../../build/release}
stage=$scratch/stage
unit=$stage/usr/lib/systemd/system/coalesced@.service

install_it() {
    make -s -C "$here/../.." install SAN="${SAN:-}" PREFIX=/usr DESTDIR="$stage"
}

# What must have been installed, share/coalesced and MuJoCo's models aside; the GPU's and MuJoCo's plug-ins only where they
# were built.
what_belongs() {
    printf './usr/%s\n' bin/coalesced bin/coalesced-new-environment lib/coalesced/libcoalesced-onednn.so lib/coalesced/libcoalesced-http.so \
        lib/coalesced/{observer,environments,spaces,worker_session,coalesced_curves}.py \
        lib/coalesced/{command_{child,environments,evaluation},trainer{,_class,_data,_model}}.py \
        lib/coalesced/coalesced-{forward,plot,sweep} lib/systemd/system/coalesced@.service \
        share/man/man1/coalesced{,-new-environment}.1 share/man/man5/coalesced-job.5 share/doc/coalesced/config/RUNS.md \
        share/bash-completion/completions/coalesced include/coalesced/environment.h
    if [[ -e $build/libcoalesced-cuda.so ]]; then
        printf './usr/lib/coalesced/libcoalesced-cuda.so\n'
    fi
    if [[ -e $build/libcoalesced-mujoco.so ]]; then
        printf './usr/lib/coalesced/libcoalesced-mujoco.so\n'
    fi
}

only_what_belongs() {
    diff <(what_belongs | sort) <(cd "$stage" &&
        find . -type f ! -path './usr/share/coalesced/*' ! -path '*/mujoco-models/*.xml' | sort)
}

# A program that lies beside the daemon finds the plug-ins as the daemon does: one of the tests loads one.
loads_a_plugin() {
    cp "$build/test/test_params_file" "$stage/usr/bin/" &&
        (cd "$here/../.." && env -u COALESCED_PLUGINS "$stage/usr/bin/test_params_file")
}

misses_a_plugin() {
    rm "$stage/usr/lib/coalesced/libcoalesced-onednn.so" && ! loads_a_plugin
}

the_version() {
    local version said
    version=$(sed -n 's/^VERSION := //p' "$here/../../Makefile") && said=$("$stage/usr/bin/coalesced" --version) &&
        printf '%s\n' "$said" && [[ -n $version && $said == *"$version"* ]]
}

the_jobs() {
    diff <(cd "$here/../../config" && sha256sum -- *.json alerts.yml | sort -k 2) \
        <(cd "$stage/usr/share/coalesced" && sha256sum -- * | sort -k 2)
}

# The installed header is a C11 and a C++11 header that needs nothing else.
the_header() {
    printf '#include <coalesced/environment.h>\nconst struct environment_plugin *p;\n' >"$scratch/user.c" &&
        gcc -std=c11 -Wall -Wextra -pedantic -Werror -I "$stage/usr/include" -fsyntax-only "$scratch/user.c" &&
        g++ -std=c++11 -Wall -Wextra -pedantic -Werror -I "$stage/usr/include" -fsyntax-only -x c++ "$scratch/user.c"
}

# The unit starts the program where it will lie at last, not where it was staged.
the_place() {
    grep -qx 'ExecStart=/usr/bin/coalesced run /etc/coalesced/%i.json --resume' "$unit" &&
        ! grep -F -e '@PREFIX@' -e "$stage" "$unit"
}

# modes MODE FILE: everyone may read it, only root may change it.
modes() {
    [[ $(stat -c %a "$2") == "$1" ]]
}

runs_a_command() {
    env -C "$scratch" "$stage/usr/bin/coalesced" sweep --help | grep -q '^usage: coalesced sweep '
}

# The files of others stay: a command of one's own, and the program that loads_a_plugin has put there.
uninstalls() {
    touch "$stage/usr/lib/coalesced/coalesced-mine"
    make -s -C "$here/../.." uninstall SAN="${SAN:-}" PREFIX=/usr DESTDIR="$stage" &&
        diff <(printf './usr/%s\n' bin/test_params_file lib/coalesced/coalesced-mine) <(cd "$stage" && find . -type f | sort) &&
        [[ -d $stage/usr/lib/coalesced && ! -e $stage/usr/share/coalesced && ! -e $stage/usr/include/coalesced ]]
}

check "make install" install_it
check "nothing else is installed" only_what_belongs
check "the program tells its version" the_version
check "the job files are the checkout's" the_jobs
check "the plug-ins' header is one in C and in C++" the_header
check "the unit names the installed program" the_place
check "a plug-in's mode" modes 755 "$stage/usr/lib/coalesced/libcoalesced-onednn.so"
check "the program's mode" modes 755 "$stage/usr/bin/coalesced"
check "the unit's mode" modes 644 "$unit"
check "a command's mode" modes 755 "$stage/usr/lib/coalesced/coalesced-sweep"
check "a command in Python is found" runs_a_command
check "plug-ins are found where they are installed" loads_a_plugin
check "and nowhere else" misses_a_plugin
check "make uninstall" uninstalls
finish
