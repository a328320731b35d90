#!/usr/bin/env bash
# Each call of the daemon's own code that can fail, fails once: faults.py says what is judged. A sample, the same one every
# time; with FAULTS=all every fault, which takes hours. FAULTS=12 is a sample of 12 of each scenario.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

if [[ -n ${SAN:-} ]]; then
    skip "the library that fails calls is not for a sanitizer's build"
fi

# A library that lists the calls and fails none.
fails_nothing() {
    local said code=0 compiler
    read -ra compiler <<<"${CC:-gcc}"
    mkdir -p "$scratch/build/test/preload"
    ln -s "$(realpath "$BUILD/coalesced")" "$(realpath "$BUILD")"/libcoalesced-* "$scratch/build"
    sed 's/if (!armed.on ||/if (true ||/' "$here/../preload/fail_call.c" |
        "${compiler[@]}" -std=gnu17 -D_GNU_SOURCE -fno-omit-frame-pointer -shared -fPIC -w -I"$here/../.." -x c - \
            -o "$scratch/build/test/preload/fail_call.so"
    said=$(BUILD=$scratch/build "$here/faults.py" help --sample 3 2>&1) || code=$?
    printf '%s\n' "$said"
    [[ $code -eq 1 && $said == *"more than half of the faults were not reached"* ]]
}
check "faults that are not injected are an error" fails_nothing

how=(--sample "${FAULTS:-3}" --jobs 2)
if [[ ${FAULTS:-} == all ]]; then
    how=(--all)
fi
while read -r scenario; do
    check "$scenario: a call that fails ends the command or is borne" "$here/faults.py" "$scenario" "${how[@]}"
done < <("$here/faults.py" --list)
finish
