#!/usr/bin/env bash
# What a person sees of a run in a terminal: tmux is the terminal, of four widths. The progress line fits, an evaluation is
# on it, and it is gone when the run has ended.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

[[ -x $(command -v tmux) ]] || skip "expected tmux (scripts/deps test)"

export TMUX_TMPDIR=$scratch
terminal() { # COMMAND...
    env -u TMUX tmux -L terminal -f /dev/null "$@"
}
trap 'terminal kill-server 2>/dev/null || true; rm -rf "$scratch"' EXIT

# Updates and evaluations take turns, and both last for many redraws.
cat >"$scratch/job.json" <<'JSON'
{"kind": "reinforce", "device": "cpu", "observers": {"count": 0, "environments": 8}, "environment": {"name": "CartPole-v1"},
 "algorithm": {"name": "ppo", "n_steps": 32, "batch_size": 64, "n_epochs": 1000}, "policy": {"threads": 1},
 "evaluation": {"every": 2, "episodes": 4000, "steps": 300}, "log": {"every": 4}, "stop": {"steps": 1792}}
JSON

readonly progress='^(step [0-9]|evaluating [0-9])'

# Shows the run in a terminal of $1 columns. Each picture of it goes to a file of its own, up to the end.
films() {
    local pictures=$scratch/pictures.$1 number=0 picture
    mkdir "$pictures"
    terminal new-session -d -x "$1" -y 40 "cd $scratch; '$COALESCED' run job.json --run-dir run.$1; touch ended.$1; exec sleep 1000"
    until [[ -e $scratch/ended.$1 ]]; do
        picture=$pictures/$((++number))
        terminal capture-pane -p | sed '/^$/d' >"$picture"
    done
    terminal capture-pane -p -J | sed '/^$/d' >"$scratch/end.$1"
    terminal kill-server
}
# The line is the last one of its picture: a longer one would have wrapped, and its pieces would stand below and above.
fits() {
    local picture
    for picture in "$scratch/pictures.$1"/*; do
        awk -v columns="$1" -v progress="$progress" '
            seen { print "behind the progress line: " $0; exit 1 }
            $0 ~ progress { seen = 1; if (length($0) >= columns) { print "too long: " $0; exit 1 } }' "$picture" ||
            { cat "$picture"; return 1; }
    done
}
shows() { # COLUMNS PATTERN
    grep -Eqh "$2" "$scratch/pictures.$1"/* || { tail -n 3 "$scratch/pictures.$1"/*; return 1; }
}
ends() {
    cat "$scratch/end.$1"
    ! grep -Eq "$progress" "$scratch/end.$1" && grep -Eq $'^Episode 7[ \t]' "$scratch/end.$1" &&
        tail -1 "$scratch/end.$1" | grep -Eq "^finished: 1792 steps, .* \(coalesced play run\.$1\) *$"
}

for columns in 20 44 80 200; do
    films "$columns"
    check "$columns columns: the progress line fits" fits "$columns"
    check "$columns columns: it says how far the run has come" shows "$columns" '^step [0-9]+/1792'
    check "$columns columns: it says how far an evaluation has come" shows "$columns" 'evaluating [0-9]+/4000$'
    check "$columns columns: nothing of it is left at the end" ends "$columns"
done
check "a wide terminal has both" shows 200 '^step [0-9]+/1792  .*  evaluating [0-9]+/4000$'

# ---- the hint, for people alone ----
has_a_hint() {
    grep -qF "coalesced: see more with \`coalesced status run.200\`, or a page with --set /metrics/listen=127.0.0.1:9477" "$scratch/end.200"
}
check "a person learns how to see more" has_a_hint
is_silent() {
    "$COALESCED" run "$scratch/job.json" --run-dir "$scratch/silent" --set /evaluation/every=null </dev/null >/dev/null 2>"$scratch/said" &&
        ! grep "see more" "$scratch/said"
}
check "a log does not" is_silent
finish
