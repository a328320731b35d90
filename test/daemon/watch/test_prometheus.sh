#!/usr/bin/env bash
# A Prometheus scrapes a job of each kind, once a second: what it stores is what the dashboard and the alert rules of config/
# ask for. A Prometheus that stalls stops no job, and the textfile is whole whenever it is read.
#
# PROMETHEUS_S=60 has it scrape for that many seconds (8 otherwise) before it is asked.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"
config=$here/../../../config
helper=(/usr/bin/python3 "$here/prometheus.py")
scraped_s=${PROMETHEUS_S:-8}

[[ -z ${SAN:-} ]] || skip "a sanitizer's build serves the same text, slowly"
for tool in prometheus promtool prometheus-node-exporter; do
    command -v "$tool" >/dev/null || skip "$tool is not installed (scripts/deps prometheus)"
done
/usr/bin/python3 -c 'import prometheus_client.openmetrics.parser' 2>/dev/null ||
    skip "Prometheus' client for Python is not installed (scripts/deps prometheus)"
[[ -e $(dirname "$COALESCED")/libcoalesced-http.so ]] || skip "the HTTP server's plug-in is not built"

processes=()
end() {
    kill -CONT "${processes[@]}" 2>/dev/null || true
    kill -TERM "${processes[@]}" 2>/dev/null || true
    wait
    rm -rf "$scratch"
}
trap end EXIT

# ---- a job of each kind ----
endless=1000000
read -ra port < <("${helper[@]}" ports 6)
server=http://127.0.0.1:${port[4]}
declare -A of=([pole]="127.0.0.1:${port[0]}" [images]="127.0.0.1:${port[1]}" [text]="127.0.0.1:${port[2]}" [ppo]="127.0.0.1:${port[3]}")
"${helper[@]}" data "$scratch/data"
mkdir "$scratch/textfiles"
(umask 077 && echo "a-token-of-the-test" >"$scratch/token")
ppo='{"kind": "reinforce", "device": "cpu", "observers": {"count": 0, "environments": 2},
 "algorithm": {"name": "ppo", "n_steps": 32, "batch_size": 32, "n_epochs": 1}, "evaluation": {"every": 5, "episodes": 1},
 "log": {"every": 1}}'
echo "$ppo" >"$scratch/ppo.json"
start() { # KIND NAME [ARGUMENT]...: its supervisor is $run
    local job
    job_arguments "$1" "$scratch/$2" "$endless" --set "/metrics/listen=${of[$2]}" --set "/name=$2" \
        --set "/metrics/textfile=$scratch/textfiles/$2.prom" "${@:3}"
    [[ $1 != reinforce ]] || job+=("${calm[@]}")
    "$COALESCED" run "${job[@]}" </dev/null >"$scratch/$2.out" 2>&1 &
    run=$!
    processes+=("$run")
}
start parameter-server images --set '/server/count=1' --set '/server/round=async 4' --set "/metrics/token=$scratch/token" \
    --set /evaluation/batch=10 --set '/data={"kind":"idx","size":16,"path":"'"$scratch/data"'"}'
start model-parallel text --set /model/tokens=null --set /evaluation/batch=1 \
    --set '/data={"kind":"text","path":"'"$scratch/data/words.txt"'"}'
job=("$scratch/ppo.json" --run-dir "$scratch/ppo" --set '/stop={"steps":100000000}' --set "/checkpoint=$checkpoint" "${calm[@]}")
"$COALESCED" run "${job[@]}" --set "/metrics/listen=${of[ppo]}" --set /name=ppo </dev/null >"$scratch/ppo.out" 2>&1 &
processes+=("$!")
start reinforce pole
pole=$run
for name in images text ppo pole; do
    wait_for_number "$scratch/$name" 1
done
"${helper[@]}" watch "$scratch/textfiles/pole.prom" "$scratch/enough" >"$scratch/watched" 2>&1 &
watching=$!

# ---- Prometheus ----
cat >"$scratch/prometheus.yml" <<YAML
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: ["$config/alerts.yml"]
scrape_configs:
  - job_name: coalesced
    static_configs: [{targets: ["${of[pole]}", "${of[text]}", "${of[ppo]}"]}]
  - job_name: with-token
    authorization: {credentials_file: "$scratch/token"}
    static_configs: [{targets: ["${of[images]}"]}]
YAML
check "Prometheus takes the configuration and the rules" promtool check config "$scratch/prometheus.yml"
check "each alert fires when it should, and only then" promtool test rules "$here/alerts_test.yml"
prometheus --config.file="$scratch/prometheus.yml" --storage.tsdb.path="$scratch/tsdb" \
    --web.listen-address="${server#http://}" --log.level=debug >"$scratch/prometheus.out" 2>&1 &
prometheus=$!
processes+=("$prometheus")

query() { # EXPRESSION: a JSON array of samples
    promtool query instant -o json "$server" "$1"
}
# Waits until jq's FILTER is true of what EXPRESSION gives.
becomes() { # EXPRESSION FILTER
    local until=$((SECONDS + 60))
    until query "$1" | jq -e "$2" >/dev/null; do
        if [[ $SECONDS -ge $until ]]; then
            query "$1"
            return 1
        fi
        sleep 0.2
    done
}
is() { # EXPRESSION FILTER
    local got
    got=$(query "$1") && jq -e "$2" <<<"$got" >/dev/null && return
    printf '%s: %s\n' "$1" "$got"
    return 1
}
until query up >/dev/null 2>&1; do sleep 0.1; done
check "each target is up" becomes 'up == 1' 'length == 4'
sleep "$scraped_s"

# ---- what it has scraped ----
no_errors() {
    "${helper[@]}" get "$server/api/v1/targets" >"$scratch/targets" &&
        jq -e '[.data.activeTargets[] | select(.health == "up" and .lastError == "")] | length == 4' "$scratch/targets"
}
no_errors_soon() { # on a loaded machine a scrape may take longer than the second that it has
    local until=$((SECONDS + 30))
    until no_errors; do
        [[ $SECONDS -lt $until ]] && sleep 0.3 || return
    done
}
check "a scrape has no error" no_errors_soon
check "the targets were up" becomes "avg_over_time(up[5m]) >= 0.7" 'length == 4'
check "many scrapes" becomes "sum_over_time(up[5m]) >= $((scraped_s / 2))" 'length == 4'
quiet() {
    ! grep -E 'level=(warn|error)|Scrape failed|Append failed' "$scratch/prometheus.out" | grep -v 'deadline exceeded'
}
check "Prometheus complains of nothing, a late scrape aside" quiet

wanted=(coalesced_episodes_total coalesced_environment_steps_total coalesced_running_reward
    coalesced_coalescer_batch_rows_bucket coalesced_coalescer_wait_seconds_bucket coalesced_round_wait_seconds_bucket
    'coalesced_worker_restarts_total{role!=""}' coalesced_staleness_versions_bucket coalesced_checkpoint_age_seconds
    'coalesced_dropped_messages_total{reason!=""}')
for series in "${wanted[@]}"; do
    check "$series" is "$series" 'length > 0'
done
for counter in episodes environment_steps updates samples tokens learning_seconds worker_cpu_seconds worker_work; do
    check "$counter grow" is "increase(coalesced_${counter}_total[${scraped_s}s]) > 0" 'length > 0'
    check "$counter never fall" is "sum(resets(coalesced_${counter}_total[10m])) == 0" 'length == 1'
done
for histogram in coalescer_batch_rows coalescer_wait_seconds round_wait_seconds staleness_versions; do
    name=coalesced_$histogram
    check "$histogram has samples" is "${name}_count > 0" 'length > 0'
    check "$histogram: the count is the last bucket" is \
        "${name}_count != ignoring(le) ${name}_bucket{le=\"+Inf\"}" 'length == 0'
    check "$histogram has a quantile" is "histogram_quantile(0.5, rate(${name}_bucket[${scraped_s}s])) >= 0" 'length > 0'
done
check "as many launches as the histogram's sum has rows, at least" is \
    'coalesced_coalescer_batch_rows_sum >= coalesced_coalescer_batch_rows_count' 'length == 2'
check "the time of a start does not change" is "changes(coalesced_start_time_seconds[10m]) == 0" 'length == 4'
check "the run is named" is 'coalesced_run_info{name="images",state="training"}' 'length == 1'

# ---- the text itself ----
names() { # NAME: the samples of its /metrics, read strictly
    PROMETHEUS_TOKEN=$(<"$scratch/token") "${helper[@]}" get "http://${of[$1]}/metrics" >"$scratch/$1.text" &&
        "${helper[@]}" strict "$scratch/$1.text" >"$scratch/$1.names"
}
for name in pole images text ppo; do
    check "the text of $name is OpenMetrics" names "$name"
done
older() { # NAME: what a client gets that asks for no format
    PROMETHEUS_TOKEN=$(<"$scratch/token") PROMETHEUS_ACCEPT='*/*' "${helper[@]}" get "http://${of[$1]}/metrics" >"$scratch/$1.older" &&
        promtool check metrics <"$scratch/$1.older"
}
for name in pole images text ppo; do
    check "promtool finds nothing to say of the older text of $name" older "$name"
done
without_token() {
    ! "${helper[@]}" get "http://${of[images]}/metrics" 2>"$scratch/refused" && grep -q 401 "$scratch/refused"
}
check "without the token there is none" without_token

# ---- what asks for it ----
/usr/bin/python3 "$here/dashboard.py" expressions "$config/grafana-dashboard.json" >"$scratch/expressions"
mapfile -t expressions <"$scratch/expressions"
named_is_served() { # FILE: each metric that it names is one of the samples above
    local unknown
    unknown=$(comm -23 <(grep -o 'coalesced_[a-z_]*' "$1" | sort -u) <(cat "$scratch"/*.names | sort -u)) &&
        printf '%s\n' "$unknown" && [[ -z $unknown ]]
}
grep -v '^ *#' "$config/alerts.yml" >"$scratch/alerts"
check "the alerts name metrics that there are" named_is_served "$scratch/alerts"
check "the dashboard too" named_is_served "$scratch/expressions"
check "the dashboard has expressions" test "${#expressions[@]}" -ge 30
for expression in "${expressions[@]}"; do
    case $expression in
        *'> 0') check "an annotation: $expression" is "$expression" 'type == "array"' ;;
        *) check "a panel has data: $expression" is "$expression" 'length > 0' ;;
    esac
done
rules_are_well() {
    "${helper[@]}" get "$server/api/v1/rules" >"$scratch/rules" &&
        jq -e '[.data.groups[].rules[] | select(.health == "ok" and .state != "firing")] | length == 5' "$scratch/rules" &&
        return
    cat "$scratch/rules"
    return 1
}
check "the alerts are evaluated, and none fires" rules_are_well

# ---- a worker dies ----
check "no observer has restarted" is 'coalesced_worker_restarts_total{role="observer"} == 0' 'length > 0'
kill -9 "$("$COALESCED" status "$scratch/pole" --json | jq '[.workers[] | select(.role == "observer")][0].pid')"
check "a killed observer is a restart" becomes 'coalesced_worker_restarts_total{role="observer"} == 1' 'length == 1'

# ---- a Prometheus that stalls ----
goes_on() { # while Prometheus stands still, at several places of its second
    local number
    for pause_s in 0.3 0.35 0.45 0.55 2; do
        kill -STOP "$prometheus" && number=$(last_number "$scratch/pole") && wait_for_number "$scratch/pole" $((number + 3)) &&
            sleep "$pause_s" && number=$(last_number "$scratch/pole") &&
            wait_for_number "$scratch/pole" $((number + 3)) && kill -CONT "$prometheus" && sleep 0.2 || return
    done
}
check "a Prometheus that stands still stops nothing" goes_on
check "and goes on scraping after that" becomes 'up == 1' 'length == 4'

# ---- the textfile ----
versions() {
    find "$scratch/textfiles/pole.prom" -newer "$scratch/first"
}
touch "$scratch/first"
until [[ -n $(versions) ]]; do sleep 0.2; done # replaced once more, under the reader
cp "$scratch/textfiles/pole.prom" "$scratch/textfile"
touch "$scratch/enough"
code=0 && { wait "$watching" || code=$?; }
whole() {
    cat "$scratch/watched" && [[ $code -eq 0 ]]
}
check "the textfile is whole whenever it is read" whole
check "while it is replaced" test "$(cut -d' ' -f1 "$scratch/watched")" -ge 2
check "promtool finds nothing to say of it" promtool check metrics <"$scratch/textfile"
check "its samples are those of /metrics" diff <(grep -v '^#' "$scratch/textfile" | grep -o '^[a-z_]*' | sort -u) "$scratch/pole.names"

prometheus-node-exporter --collector.disable-defaults --collector.textfile \
    --collector.textfile.directory="$scratch/textfiles" --web.listen-address="127.0.0.1:${port[5]}" >"$scratch/node.out" 2>&1 &
processes+=("$!")
until "${helper[@]}" get "http://127.0.0.1:${port[5]}/metrics" >"$scratch/node" 2>/dev/null; do sleep 0.1; done
node_has_all() { # three runs, with the same metrics and others
    local name
    ! grep level=error "$scratch/node.out" && grep -q '^node_textfile_scrape_error 0$' "$scratch/node" || return
    for name in pole images text; do
        grep -q "^coalesced_training{run=\"$(readlink -f "$scratch/$name")\"} 1$" "$scratch/node" &&
            grep -q "^coalesced_loss{run=\"$(readlink -f "$scratch/$name")\"} " "$scratch/node" || return
    done
}
check "node_exporter takes the textfiles of all runs" node_has_all

# ---- the end ----
"$COALESCED" stop "$scratch/pole" >"$scratch/stopped" 2>&1
code=0 && { wait "$pole" || code=$?; }
check "the run ends in good order" test "$code" = 0
check "its textfile is gone" test -z "$(find "$scratch/textfiles" -name 'pole.prom*')"
check "its target is down" becomes "up{instance=\"${of[pole]}\"} == 0" 'length == 1'
check "an alert waits for it to come back" becomes 'ALERTS{alertname="CoalescedDown",alertstate="pending"}' 'length == 1'
finish
