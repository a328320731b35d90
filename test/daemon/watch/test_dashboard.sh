#!/usr/bin/env bash
# config/grafana-dashboard.json against Grafana's own types. test_prometheus.sh runs its expressions.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
dashboard=$here/../../../config/grafana-dashboard.json
python=$here/../../../build/prometheus-venv/bin/python
[[ -z ${SAN:-} ]] || skip "the dashboard is no part of a sanitizer's build"
"$python" -c 'import grafana_foundation_sdk' 2>/dev/null || skip "grafana-foundation-sdk is not installed (scripts/deps prometheus)"

schema() {
    "$python" "$here/dashboard.py" schema "$1"
}
# The check itself finds a fault: FILTER of jq makes one, which the check must name.
finds() { # TEXT FILTER
    jq "$2" "$dashboard" >"$scratch/wrong.json" && ! schema "$scratch/wrong.json" >"$scratch/said" 2>&1 &&
        grep -qF -- "$1" "$scratch/said" && return
    cat "$scratch/said"
    return 1
}
check "each field of the dashboard is Grafana's, and of its type" schema "$dashboard"
check "a field that is none is found" finds "titel: no such field" '.panels[1].titel = "Run"'
check "in a query too" finds "exrp: no such field" '.panels[1].targets[0].exrp = "up"'
check "in a line's style too" finds "draw: no such field" '.panels[8].fieldConfig.defaults.custom.draw = "line"'
check "a word that is none of the list is found" finds "'dots' is no" '.panels[8].fieldConfig.defaults.custom.drawStyle = "dots"'
check "a number as text is found" finds "decimals: '1' is no" '.panels[1].fieldConfig.defaults.decimals = "1"'
check "a panel that is none is found" finds "no panel timeserie" '.panels[8].type = "timeserie"'
check "an id twice is found" finds "another one has this id" '.panels[7].id = 1'
check "panels over each other are found" finds "is panel 2" '.panels[2].gridPos.x = 0'
finish
