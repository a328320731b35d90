#!/usr/bin/env bash
# scripts/hosts/kubernetes.yaml: against the schemas of Kubernetes where they are installed; what its parts say of each
# other; and the commands of its containers, run here.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
manifest=$(readlink -f "$here/../../scripts/hosts/kubernetes.yaml")
validate=$here/../../build/kubernetes-venv/bin/kubernetes-validate

[[ -z ${SAN:-} ]] || skip "a manifest is no sanitizer's build"

has_the_schema() {
    "$validate" --strict --kubernetes-version "$1" "$manifest" && [[ $("$validate" --strict --kubernetes-version "$1" \
        "$manifest" 2>&1 | grep -c passed) -eq 4 ]]
}
wrong_is_found() {
    sed 's/completions: 3/completions: three/' "$manifest" >"$scratch/wrong.yaml" &&
        ! "$validate" --strict --kubernetes-version 1.37.0 "$scratch/wrong.yaml"
}

# value PATTERN: the only text that is in the pattern's group.
value() {
    sed -nE "s/^ *$1.*/\1/p" "$manifest"
}
counts_agree() {
    local completions
    completions=$(value 'completions: ([0-9]+)') && [[ $completions -gt 1 ]] &&
        [[ $(value 'parallelism: ([0-9]+)') == "$completions" ]] &&
        [[ $(value '- \{name: HOSTS, value: "([0-9]+)"\}') == "$completions" ]] &&
        grep -q "coalesced keygen keys --hosts $completions\$" "$manifest"
}
# A pod's name in the DNS: JOB-INDEX.SUBDOMAIN, where the subdomain is the service's name.
leader_is_pod_0() {
    local name
    name=$(value 'subdomain: (.+)') && [[ $(grep -c "^  name: $name\$" "$manifest") -eq 3 ]] &&
        [[ $(value '- \{name: LEADER, value: "([^:]+):4711"\}') == "$name-0.$name" ]] &&
        grep -q '^  clusterIP: None' "$manifest"
}
volumes_agree() {
    cmp <(sed -nE 's/^            - \{name: ([a-z]+), mountPath.*/\1/p' "$manifest" | sort -u) \
        <(sed -n '/^      volumes:/,$s/^        - name: //p' "$manifest" | sort)
}

# ---- the commands ----
mkdir "$scratch/bin" "$scratch/keys" "$scratch/secret"
sed -n "s/.*command: \[sh, -c, '\(.*\)'\]\$/\1/p" "$manifest" | sed "s,/secret/,$scratch/secret/,g; s,/keys/,$scratch/keys/,g" \
    >"$scratch/copy.sh"
sed -n '/^            - |$/,/^            - coalesced$/s/^              //p' "$manifest" >"$scratch/supervise.sh"
cat >"$scratch/bin/coalesced" <<'PROGRAM'
#!/usr/bin/env bash
printf '%s\n' "$*" >"$SCRATCH/arguments"
trap 'sleep 0.3; exit 0' TERM
if [[ -n ${CODE:-} ]]; then exit "$CODE"; fi
: >"$SCRATCH/runs"
while :; do sleep 0.05; done
PROGRAM
chmod +x "$scratch/bin/coalesced"
export PATH=$scratch/bin:$PATH SCRATCH=$scratch JOB_COMPLETION_INDEX=1 HOSTS=3 LEADER=coalesced-0.coalesced:4711

copies_its_key() {
    "$COALESCED" keygen "$scratch/made" --hosts 3 && cp "$scratch"/made/* "$scratch/secret/" && chmod 444 "$scratch"/secret/* &&
        sh "$scratch/copy.sh" && [[ $(cd "$scratch/keys" && echo *) == "host-1.secret hosts" ]] &&
        [[ $(stat -c %a "$scratch/keys/host-1.secret") == [46]00 ]]
}
gives_the_code() {
    local code=0
    CODE=$1 sh "$scratch/supervise.sh" job.json --resume || code=$?
    [[ $code -eq $1 && $(cat "$scratch/arguments") == \
        "run job.json --resume --node 1/3 --leader coalesced-0.coalesced:4711 --keys /keys" ]]
}
is_no_success() {
    local pid code=0
    sh "$scratch/supervise.sh" job.json &
    pid=$!
    until [[ -e $scratch/runs ]]; do
        sleep 0.05
    done
    kill -TERM "$pid"
    wait "$pid" || code=$?
    [[ $code -eq 75 ]]
}

if [[ -x $validate ]]; then
    check "the schemas of 1.37" has_the_schema 1.37.0
    check "the schemas of 1.33, the oldest with a success policy" has_the_schema 1.33.0
    check "a wrong manifest" wrong_is_found
else
    printf '%s: not checked against the schemas, which are not installed (scripts/deps kubernetes)\n' "$(basename "$0")"
fi
check "the numbers of hosts agree" counts_agree
check "the leader is pod 0" leader_is_pod_0
check "every volume is mounted" volumes_agree
check "a pod sees its own secret key" copies_its_key
check "the supervisor's success" gives_the_code 0
check "the supervisor's failure" gives_the_code 69
check "a stop is no success" is_no_success

finish
