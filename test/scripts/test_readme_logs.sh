#!/usr/bin/env bash
# Holds the README's command that compares two logs: nothing for two runs of a job, one of them resumed; something for
# two seeds.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

command -v jq >/dev/null || skip "jq is not installed"
job=$here/../../config/rnn.json
command=$(sed -n 's/^    \(diff <(jq .*\)/\1/p' "$here/../../README.md")

# run FOLDER [OPTION]...: into a or b, of which the README speaks.
run() {
    "$COALESCED" run "$job" --set /device=cpu --set /checkpoint/every=1000 --run-dir "$scratch/$@"
}

says_nothing() {
    (cd "$scratch" && bash -c "$command")
}

says_something() {
    ! says_nothing
}

check "the README has one such command" test "$(wc -l <<<"$command")" = 1
check "a run is whole" run a
check "another stops halfway" run b --set /stop/epochs=5
check "the command tells them apart" says_something
check "that one goes on" run b --resume
check "the log tells of the resume" grep -q '"event":"resume"' "$scratch/b/episodes.jsonl"
check "the command says nothing" says_nothing
check "a run has another seed" run b --set /seed=1
check "the command tells them apart again" says_something
finish
