#!/usr/bin/env bash
# new-environment: its folder builds with a C compiler alone, keeps environment.h, trains, and can be changed; from a
# checkout and from an installed tree. Bad names and folders are refused by name.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

unset MAKEFLAGS MAKELEVEL
export XDG_RUNTIME_DIR=$scratch
script=$here/../../scripts/new-environment
cd "$scratch"

writes_a_folder() {
    "$script" corridor && [[ $(find corridor -type f | sort | tr '\n' ' ') == \
        "corridor/Makefile corridor/corridor.c corridor/corridor.json corridor/environment.h " ]]
}

# Its own check: what coalesced try says, and a job that is solved.
passes_its_check() {
    make -C "$1" check COALESCED="$COALESCED" >"$1.out" 2>&1 || { cat "$1.out"; return 1; }
    grep -q "rows, neighbours, turns, and resets of neighbours change no bit" "$1.out" && grep -q "^Solved!" "$1.out"
}

# All warnings are errors.
builds_strictly() {
    cc -std=c11 -Wall -Wextra -Wpedantic -Werror -fPIC -shared -o strict.so corridor/corridor.c
}

tells_a_mistake() {
    cp -r corridor wrong && sed -i 's|/ LENGTH;|/ (LENGTH / 2);|' wrong/corridor.c && ! make -C wrong check COALESCED="$COALESCED" >wrong.out 2>&1 &&
        grep -q "corridor: random steps: .*environment [0-9]: element 0 of its observation is .*: expected 0\.\.1" wrong.out
}

works_when_installed() {
    make -s -C "$here/../.." install SAN="${SAN:-}" PREFIX=/usr DESTDIR="$scratch/stage" &&
        stage/usr/bin/coalesced-new-environment hall && make -C hall && cmp hall/environment.h corridor/environment.h
}

refuses() {
    local phrase=$1
    shift
    ! "$script" "$@" 2>refused && grep -q "$phrase" refused
}

check "it writes a source, a header, a Makefile and a job" writes_a_folder
check "the folder's own check passes: the contract, and a job that is solved" passes_its_check corridor
check "the example compiles without a warning" builds_strictly
check "a mistake in the example is told" tells_a_mistake
check "it works from an installed tree" works_when_installed
check "a folder that is there stays as it is" refuses "corridor is there already" corridor
check "a name that is none" refuses "'Two Words' is no name" "Two Words"
check "no name" refuses "expected NAME"
finish
