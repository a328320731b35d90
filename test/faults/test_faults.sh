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
how=(--sample "${FAULTS:-3}" --jobs 2)
if [[ ${FAULTS:-} == all ]]; then
    how=(--all)
fi
while read -r scenario; do
    check "$scenario: a call that fails ends the command or is borne" "$here/faults.py" "$scenario" "${how[@]}"
done < <("$here/faults.py" --list)
finish
