#!/usr/bin/env bash
# Measures jobs on several machines, which are namespaces of this one (test/daemon/hosts/machines.bash), beside the same on one.
#
#   [BUILD=build/release] test/bench/hosts.sh [cartpole|resnet|floods|observers|overlap]...      (none named: all)
#
# cartpole   config/cartpole-batch.json, ten observers: µs per batch on one host; on two machines, the observers apart from
#            the agent; and the same with a cable that delays frames by 10 ms each way
# resnet     resnet18 with inline transport: ms per update on one host, and on two machines with the trainer apart
# floods     the second, while a third machine makes 6,000 connections a minute to each of the leader's sockets, or does
#            not. The flooding processes have a low priority, because they would run elsewhere
# observers  200 observers on four machines, all of which are killed once: the numbers of a run on one host
# overlap    seconds of jobs whose environments wait, with /algorithm/overlap 0 and 1: a plug-in that sleeps 1 ms a step,
#            LunarLander in Python (scripts/deps python sb3), and observers behind 10 ms each way
#
# Figures are medians of TURNS (7) runs in turn, with the least and the greatest. Needs root, or user namespaces; iproute2,
# jq, and for the delay python3 and /dev/net/tun.
set -euo pipefail
export LC_ALL=C

root=$(dirname "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")")
# shellcheck source=test/daemon/hosts/machines.bash
source "$root/test/daemon/hosts/machines.bash"
machines_enter "$0" "$@"
readonly coalesced=$root/${BUILD:-build/release}/coalesced turns=${TURNS:-7}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$coalesced" keygen "$scratch/keys" --hosts 4

# alone JOB RUN [ARGUMENT]...: runs the job on one host.
alone() {
    XDG_RUNTIME_DIR=$scratch "$coalesced" run "$1" --run-dir "$2" "${@:3}" </dev/null >"$2.out" 2>&1 ||
        { tail -n 3 "$2.out"; return 1; }
}

# together COUNT LEADER JOB RUN [ARGUMENT]...: runs it on machines 0 to COUNT - 1; LEADER is machine 0's address.
together() {
    local n pids=()
    for ((n = 0; n < $1; n++)); do
        mkdir -p "$scratch/$n"
        XDG_RUNTIME_DIR=$scratch/$n machine_run "$n" "$coalesced" run "$3" --run-dir "$4" --node "$n/$1" \
            --leader "$2:4711" --keys "$scratch/keys" "${@:5}" </dev/null >"$4.out.$n" 2>&1 &
        pids+=($!)
    done
    for n in "${!pids[@]}"; do
        wait "${pids[n]}" || { tail -n 3 "$4.out.$n"; return 1; }
    done
}

# Median (least..greatest) of the numbers on standard input.
spread() {
    sort -g | awk '{ of[NR] = $1 } END { printf "%.4g (%.4g..%.4g)\n", of[int((NR + 1) / 2)], of[1], of[NR] }'
}

# What one run gives: the median over its episodes or updates, without the first.
us_per_batch() {
    jq -r 'select(.episode > 1) | .timing | .episode_s / .launches * 1e6' "$1/episodes.jsonl" | spread | cut -d' ' -f1
}
ms_per_update() {
    jq -r 'select(.update > 2) | .timing.round_s * 1e3' "$1/episodes.jsonl" | spread | cut -d' ' -f1
}

# turn WHAT FIGURE COMMAND...: one run in the folder $scratch/run; its figure is added to those of WHAT.
turn() {
    rm -rf "$scratch/run"
    "${@:3}"
    "$2" "$scratch/run" >>"$scratch/figures.$1"
}

print() {
    printf '%-44s %s\n' "$2" "$(spread <"$scratch/figures.$1")"
}

# Median (least..greatest) of the ratios of runs that were made in the same turn.
print_ratio() {
    printf '%-44s %s\n' "$3" "$(paste "$scratch/figures.$1" "$scratch/figures.$2" | awk '{ print $1 / $2 }' | spread)"
}

# ---- cartpole ----

readonly job=$root/config/cartpole-batch.json run=$scratch/run
readonly apart=(--set /device=cpu --set /hosts/observers=others)

# Between machines 0 and 1, with 10 ms each way; its process is then $cable.
lay_slow_cable() {
    local n
    "$root/test/bench/slow_cable.py" "${machine_init[0]}" "${machine_init[1]}" eth1 10 >"$scratch/cable" &
    cable=$!
    until grep -q ready "$scratch/cable"; do sleep 0.1; done
    for n in 0 1; do
        machine_run "$n" ip addr add "10.78.2.$((n + 1))/24" dev eth1
        machine_run "$n" ip link set eth1 up
    done
}

cartpole() {
    local i cable
    lay_slow_cable
    for ((i = 0; i < turns; i++)); do
        turn one us_per_batch alone "$job" "$run" "${apart[@]}"
        turn two us_per_batch together 2 10.78.1.1 "$job" "$run" "${apart[@]}"
        turn far us_per_batch together 2 10.78.2.1 "$job" "$run" "${apart[@]}" --set /rollout/steps=50 --set /stop/episodes=4
    done
    kill "$cable"
    print one 'one host, µs per batch'
    print two 'two machines, CURVE'
    print_ratio two one '  times one host'
    print far 'two machines, 10 ms each way, CURVE'
}

# ---- resnet ----

resnet() {
    local i width
    for width in 8 32; do
        cat >"$scratch/resnet.json" <<JSON
{"kind": "parameter-server", "device": "cpu", "model": {"name": "resnet18", "classes": 10, "width": $width},
 "trainers": {"count": 1, "batch": 32, "threads": 1}, "data": {"size": 64}, "server": {"count": 1},
 "transport": "inline", "hosts": {"trainers": "others"}, "optimizer": {"lr": 0.01, "momentum": 0.9}, "log": {"every": 1},
 "stop": {"updates": 12}}
JSON
        rm -f "$scratch/figures.inline" "$scratch/figures.keys"
        for ((i = 0; i < turns; i++)); do
            turn inline ms_per_update alone "$scratch/resnet.json" "$run"
            turn keys ms_per_update together 2 10.78.1.1 "$scratch/resnet.json" "$run"
        done
        print inline "resnet18, width $width: ipc inline, ms per update"
        print keys '  two machines, CURVE'
        print_ratio inline keys '  the rate, times that of ipc'
    done
}

# ---- floods ----

ports() {
    machine_run 0 ss --no-header --listening --tcp --numeric | awk '{ sub(".*:", "", $4); print $4 }'
}

flooded() {
    local flooding=() port
    together "$@" &
    until [[ $(ports | wc -l) -eq 2 ]]; do sleep 0.02; done
    for port in $(ports); do
        machine_run 2 nice -n 19 "$root/test/bench/flood.py" 10.78.1.1 "$port" 100 2>/dev/null &
        flooding+=($!)
    done
    wait %1
    kill "${flooding[@]}" || true
}

floods() {
    local i long=(--set /stop/episodes=12)
    for ((i = 0; i < turns; i++)); do
        turn calm us_per_batch together 2 10.78.1.1 "$job" "$run" "${apart[@]}" "${long[@]}"
        turn flooded us_per_batch flooded 2 10.78.1.1 "$job" "$run" "${apart[@]}" "${long[@]}"
    done
    print calm 'two machines, µs per batch'
    print flooded 'two machines, flooded'
    print_ratio calm flooded '  the rate, times that without a flood'
    grep -h strangers "$run".out.0 || true
}

# ---- observers ----

observers() {
    local many=(--set /device=cpu --set /observers/count=200 --set /rollout/steps=20 --set /stop/episodes=30) i
    alone "$job" "$scratch/alone" "${many[@]}"
    together 4 10.78.1.1 "$job" "$run" "${many[@]}" &
    for ((i = 0; i < 4; i++)); do
        until grep -q "\"episode\":$((4 * i + 4))," "$run/episodes.jsonl" 2>/dev/null; do sleep 0.05; done
        mapfile -t pids < <(machine_pids "$i" '--role observer')
        kill -9 "${pids[@]}"
        printf '%d observers of machine %d were killed after episode %s\n' "${#pids[@]}" "$i" \
            "$(grep -c '"episode"' "$run/episodes.jsonl")"
    done
    wait %1
    cmp <(sed '/"event"/d; s/,"timing".*//' "$scratch/alone/episodes.jsonl") \
        <(sed '/"event"/d; s/,"timing".*//' "$run/episodes.jsonl") && echo 'the numbers are those of one host'
    grep -ho '"job_s":[0-9.]*' "$scratch/alone/episodes.jsonl" "$run/episodes.jsonl"
}

# ---- overlap ----

seconds() {
    jq 'select(.event == "finished") | .timing.job_s' "$1/episodes.jsonl"
}

# waits TITLE ALGORITHM WIDTH STEPS ENVIRONMENT COMMAND...: a job of this algorithm, with two hidden layers of this width.
waits() {
    local environments=8 keys='"name": "ppo", "n_steps": 128'
    [[ $2 == ppo ]] || environments=1 keys='"name": "sac"'
    cat >"$scratch/waits.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": $environments}, "environment": $5,
 "algorithm": {$keys}, "policy": {"hidden": [$3, $3], "threads": 1}, "stop": {"steps": $4}}
JSON
    print_overlap "$1, $2, ${3}x$3" "$scratch/waits.json" "${@:6}"
}

# print_overlap TITLE JOB COMMAND...: COMMAND is `alone`, or `together` with its machines; $arguments has the job's.
print_overlap() {
    local i overlap
    rm -f "$scratch"/figures.overlap*
    for ((i = 0; i < turns; i++)); do
        for overlap in 0 1; do
            turn "overlap$overlap" seconds "${@:3}" "$2" "$run" "${arguments[@]}" --set "/algorithm/overlap=$overlap"
        done
    done
    print overlap0 "$1"
    print overlap1 '  with overlap'
    print_ratio overlap0 overlap1 '  times as fast'
}

alone_for() {
    alone "${@:2}" --set "/stop/steps=$1"
}

overlap() {
    local toy=$root/${BUILD:-build/release}/test/preload/environment_toy.so python=$root/build/sb3-venv/bin/python width
    local slow="{\"plugin\": \"$toy\", \"name\": \"Slow-v0\"}" far='{"name": "Pendulum-v1"}' cable arguments=()
    for width in 64 256; do
        waits '1 ms a step' ppo "$width" 8192 "$slow" alone
        waits '1 ms a step' sac "$width" 1000 "$slow" alone
    done
    arguments=(--set "/environment/python=$python" --set /evaluation/every=null --set /policy/threads=1)
    if [[ -x $python ]]; then
        print_overlap 'LunarLander in Python, ppo' "$root/config/ppo-lunarlander.json" alone_for 98304
        print_overlap 'LunarLander in Python, dqn' "$root/config/dqn-lunarlander.json" alone_for 8000
    else
        echo 'LunarLander: skipped: no Gymnasium with Box2D (scripts/deps python sb3)'
    fi
    lay_slow_cable
    arguments=(--set /hosts/observers=others)
    waits '10 ms each way' ppo 256 4096 "$far" together 2 10.78.2.1
    waits '10 ms each way' sac 256 1000 "$far" together 2 10.78.2.1
    kill "$cable"
}

[[ $# -gt 0 ]] || set -- cartpole resnet floods observers overlap
printf '%s cores, libzmq %s\n' "$(nproc)" "$(dpkg-query -W -f='${Version}' libzmq5 2>/dev/null || echo unknown)"
for section; do
    case $section in
        cartpole | resnet | floods | observers | overlap)
            rm -rf "$scratch"/figures.* "$scratch"/run*
            on_machines 4 "$section"
            ;;
        *)
            printf 'usage: test/bench/hosts.sh [cartpole|resnet|floods|observers|overlap]...\n' >&2
            exit 64
            ;;
    esac
done
