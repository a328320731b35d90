# Sourced by every shell test: named checks, a scratch folder, and a summary line in the form of the library Check, which
# scripts/check counts.
#
#   check NAME COMMAND [ARG]...   runs the command in a subshell; any exit code but 0 is a failure. Its
#                                 output is shown only then.
#   skip REASON                   ends the test program as skipped, with one line that says why
#   finish                        prints the summary and exits: 0 when all checks passed, else 1
#   $scratch                      an empty folder that is removed when the test ends
#   $first_port                   the first of 40 TCP ports that no other program of this scripts/check has
#
# A function given to check runs where `set -e` has no effect, as in any condition: join its commands with &&.

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck disable=SC2034 # for the tests
first_port=${CHECK_PORT:-$((31000 + $$ % 25 * 40))}
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
