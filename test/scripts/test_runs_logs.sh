#!/usr/bin/env bash
# Runs the command of config/RUNS.md that compares two logs. It must print nothing for two runs of a job, one of them
# resumed, and something for two seeds.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

command -v jq >/dev/null || skip "jq is not installed"
job=$here/../../config/rnn.json
# The command's lines: each but the last ends with a backslash.
command=$(sed -n '/^    diff <(jq /,/[^\\]$/s/^    //p' "$here/../../config/RUNS.md")

# run FOLDER [OPTION]...: runs the job in FOLDER, a or b in the command.
run() {
    "$COALESCED" run "$job" --set /device=cpu --set /checkpoint/every=1000 --run-dir "$scratch/$1" "${@:2}"
}

says_nothing() {
    (cd "$scratch" && bash -c "$command")
}

says_something() {
    ! says_nothing
}

check "RUNS.md has one such command" test "$(grep -c '^diff <(jq ' <<<"$command")" = 1
check "a run ends" run a
check "another run ends halfway" run b --set /stop/epochs=5
check "the command prints a difference" says_something
check "the second run resumes" run b --resume
check "its log has the event of the resume" grep -q '"event":"resumed"' "$scratch/b/episodes.jsonl"
check "the command prints nothing" says_nothing
check "a run with another seed ends" run b --set /seed=1
check "the command prints a difference again" says_something
finish
