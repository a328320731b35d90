# Sourced by every shell test: named checks, a scratch folder, and a summary line in the form of the library Check, which
# scripts/check counts.
#
#   check NAME COMMAND [ARG]...   runs the command in a subshell; any exit code but 0 is a failure. Its
#                                 output is shown only then.
#   skip REASON                   ends the test program as skipped, with one line that says why
#   finish                        prints the summary and exits: 0 when all checks passed, else 1
#   $scratch                      an empty folder that is removed when the test ends
#   $first_port                   the first of 40 TCP ports that no other program of scripts/check has, below those that the
#                                 system hands out
#
# A function given to check runs where `set -e` has no effect, as in any condition: join its commands with &&.

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A test that is run by hand is no neighbour of those that scripts/check runs.
if [[ -n ${CHECK_PLACE:-} ]]; then
    # shellcheck disable=SC2034 # for the tests
    first_port=$((20000 + CHECK_PLACE % 275 * 40))
else
    # shellcheck disable=SC2034
    first_port=$((31000 + $$ % 25 * 40))
fi
checks=0
failures=0

check() {
    local name=$1 output
    shift
    checks=$((checks + 1))
    if ! output=$("$@" 2>&1); then
        failures=$((failures + 1))
        printf '%s:F: %s\n' "$(basename "$0")" "$name"
        if [[ -n $output ]]; then
            printf '%s\n' "$output"
        fi
    fi
}

skip() {
    printf '%s: skipped: %s\n' "$(basename "$0")" "$*"
    exit 77
}

finish() {
    local percent=0
    if [[ $checks -gt 0 ]]; then
        percent=$(((checks - failures) * 100 / checks))
    fi
    printf '%d%%: Checks: %d, Failures: %d, Errors: 0\n' "$percent" "$checks" "$failures"
    [[ $failures -eq 0 && $checks -gt 0 ]] || exit 1
    exit 0
}
