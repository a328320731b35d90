#!/usr/bin/env bash
# coalesced sweep: a run for each combination of values, a table and a figure of all; what is stopped, killed or has
# failed goes on with --resume; no process outlives the sweep. Optuna's part is tested where python3 has it.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"
if /usr/bin/python3 -c "import matplotlib" 2>/dev/null; then
    PATH=/usr/bin:$PATH # the Python that has what scripts/deps installs
fi

command -v python3 >/dev/null || skip "python3 is missing"
root=$(cd "$here/../../.." && pwd)

cd "$scratch"
job=$scratch/reinforce.json
short=(--set '/stop={"episodes":8}')
long=(--set '/stop={"episodes":1000000}')

says() {
    grep -qF -- "$1" "$2" && return 0
    cat "$2"
    return 1
}

# sweeps CODE DIR ARG...
sweeps() {
    local expected=$1 dir=$2 code=0
    shift 2
    "$COALESCED" sweep "$job" --run-dir "$dir" "$@" >said 2>&1 </dev/null || code=$?
    [[ $code == "$expected" ]] && return 0
    echo "exit code $code"
    cat said
    return 1
}

# states DIR: the states of all runs, in the order of the table.
states() {
    jq -r 'map(.state) | join(" ")' "$1/sweep.json"
}

# begins DIR ARG...: starts a sweep of long runs; $sweep is its process.
begins() {
    local dir=$1
    shift
    "$COALESCED" sweep "$job" --run-dir "$dir" "${long[@]}" "$@" >said 2>&1 </dev/null &
    sweep=$!
}

# The processes of the runs, and of their workers, by the run's sockets.
pids_of() {
    cat "$1"/*/lock
}

ends() {
    local pid
    for pid in "$@"; do
        while [[ -d /proc/$pid && $(awk '{print $3}' "/proc/$pid/stat" 2>/dev/null) != Z ]]; do sleep 0.02; done
    done
}

makes_every_run() {
    sweeps 0 all "${short[@]}" --over /optimizer/lr=0.001,0.01 --over /seed=1..2 --parallel 2 &&
        [[ $(states all) == "finished finished finished finished" ]] &&
        [[ $(jq -c '.[2] | [.run, .values, .episode]' all/sweep.json) == \
            '["lr=0.01,seed=1",{"/optimizer/lr":0.01,"/seed":1},8]' ]] &&
        says "lr=0.001,seed=2: finished	episode: 8	running_reward: " said && says "Best: lr=0" said
}

same_numbers_as_run() {
    "$COALESCED" run "$job" --run-dir alone "${short[@]}" --set /optimizer/lr=0.01 --set /seed=2 >/dev/null 2>&1 </dev/null &&
        diff <(numbers alone) <(numbers all/lr=0.01,seed=2)
}

draws_them() {
    says "all/sweep.svg: 2 curves of 4 runs" said && says "lr 0.001, 2 seeds" all/sweep.svg
}

refuses_a_second_sweep() {
    cp all/sweep.json before.json && sweeps 64 all "${short[@]}" --over /optimizer/lr=0.001,0.01 --over /seed=1..2 &&
        says "all has the runs of a sweep: expected --resume, or another --run-dir" said && cmp before.json all/sweep.json
}

# A third seed begins, and nothing else.
leaves_finished_runs_alone() {
    touch now && sweeps 0 all "${short[@]}" --over /optimizer/lr=0.001,0.01 --over /seed=1..3 --resume &&
        [[ $(states all) == "finished finished finished finished finished finished" ]] &&
        [[ $(find all -name job.json -newer now | sort | tr '\n' ' ') == \
            "all/lr=0.001,seed=3/job.json all/lr=0.01,seed=3/job.json " ]]
}

goes_on_to_a_later_end() {
    sweeps 0 all --set '/stop={"episodes":10}' --over /optimizer/lr=0.001 --over /seed=1..2 --resume &&
        [[ $(jq -c 'map(.episode)' all/sweep.json) == "[10,10,8,8,8,8]" ]]
}

# sweep.json keeps the runs of the earlier command lines, each once, behind those of this one.
keeps_other_rows() {
    jq -c '.[]' all/sweep.json >before.jsonl
    sed -i '/"lr=0.01,seed=3"/s/"finished"/"running"/' all/sweep.json
    sweeps 0 all "${short[@]}" --over /returns/gamma=0.9 --resume && ! says "lr=0.01" said >/dev/null &&
        [[ $(jq -c '.[0] | [.run, .values, .state]' all/sweep.json) == '["gamma=0.9",{"/returns/gamma":0.9},"finished"]' ]] &&
        diff <(sed '/"lr=0.01,seed=3"/s/"finished"/"stopped"/' before.jsonl) <(jq -c '.[1:][]' all/sweep.json) &&
        sweeps 0 all "${short[@]}" --over /returns/gamma=0.9 --resume && [[ $(jq length all/sweep.json) == 7 ]]
}

wrong_values() {
    sweeps 78 none "${short[@]}" --over /seed=1..3 --over /optimizer/lr=0.1,fast && [[ ! -e none ]] &&
        says 'seed=1,lr=fast: --set /optimizer/lr=fast: expected a number in' said &&
        sweeps 64 none --over optimizer/lr=1 && says "--over optimizer/lr=1: expected /POINTER=VALUES" said &&
        sweeps 64 none && says "the following arguments are required: --over" said && sweeps 64 none --over /seed=1 --stop best &&
        says "--stop: invalid choice: 'best' (choose from 'median', 'halving')" said && sweeps 64 none --over /seed=1 --parallel 0 &&
        says "--parallel: expected an integer in 1..256, got 0" said && [[ ! -e none ]]
}

# As root, too, nobody may make a folder there.
a_folder_that_cannot_be_made() {
    sweeps 77 /sys/none "${short[@]}" --over /seed=1 && says "/sys/none: " said
}

# A program whose checks warn stands for `coalesced`.
warnings_are_shown_once() {
    # shellcheck disable=SC2016 # the wrapper expands them
    printf '#!/bin/sh\n[ "$1" != check ] || echo "coalesced: a warning" >&2\nexec "%s" "$@"\n' "$COALESCED" >warns &&
        chmod +x warns && COALESCED=$scratch/warns python3 "$root/scripts/coalesced-sweep" "$job" --run-dir warned "${short[@]}" \
        --over /seed=1..3 >said 2>&1 && [[ $(grep -c "coalesced: a warning" said) == 1 ]]
}

# SIGTERM ends the running runs in order; the others wait. Resumed, all reach their end, with the numbers of runs that
# were never stopped.
stops_in_order() {
    local code=0
    begins stopped --over /seed=1..3 --parallel 2
    wait_for_number stopped/seed=1 3 && wait_for_number stopped/seed=2 3 && kill "$sweep"
    wait "$sweep" || code=$?
    [[ $code == 0 && $(states stopped) == "stopped stopped waiting" ]] && says "stopping: the running runs" said &&
        last=$(($(last_number stopped/seed=1) + $(last_number stopped/seed=2))) &&
        sweeps 0 stopped --set "/stop={\"episodes\":$last}" --over /seed=1..3 --resume &&
        [[ $(states stopped) == "finished finished finished" ]] &&
        "$COALESCED" run "$job" --run-dir whole --set "/stop={\"episodes\":$last}" --set /seed=2 >/dev/null 2>&1 </dev/null &&
        diff <(numbers whole) <(numbers stopped/seed=2)
}

# Ctrl-C reaches the sweep's process group; the runs hear of it from the sweep, once. exec: a shell in between would get
# the signal, too, and some shells end at once.
ctrl_c() {
    local code=0 pid
    command -v script >/dev/null || return 0
    {
        wait_for_number keyed/seed=1 3
        pid=$(<keyed/sweep.lock)
        printf '\003'
        ends "$pid"
    } | script -qec "exec '$COALESCED' sweep '$job' --run-dir keyed --set '/stop={\"episodes\":1000000}' --over /seed=1..2" \
        /dev/null >screen || code=$?
    [[ $code == 0 && $(states keyed) == "stopped waiting" ]] && says "seed=1  " screen &&
        says "stopping: the running round is finished first" keyed/seed=1/messages.log &&
        ! grep -q hurrying keyed/seed=1/messages.log
}

no_child_is_left() {
    local pids workers pid
    begins killed --over /seed=1..2 --parallel 2
    wait_for_number killed/seed=1 3 && wait_for_number killed/seed=2 3
    pids=$(pids_of killed)
    # shellcheck disable=SC2086 # several words
    workers=$(for pid in $pids; do pgrep -P "$pid"; done)
    kill -9 "$sweep"
    wait "$sweep" || true
    # shellcheck disable=SC2086
    [[ $(wc -w <<<"$workers") == 6 ]] && ends $pids $workers &&
        sweeps 0 killed --set "/stop={\"episodes\":$(($(last_number killed/seed=1) + $(last_number killed/seed=2)))}" \
            --over /seed=1..2 --resume &&
        [[ $(states killed) == "finished finished" ]]
}

# The run that is killed has failed; the next one starts.
others_go_on() {
    local code=0
    begins failed --over /seed=1..2
    wait_for_number failed/seed=1 3 && kill -9 "$(cat failed/seed=1/lock)"
    wait_for_number failed/seed=2 3 && kill "$sweep"
    wait "$sweep" || code=$?
    [[ $code == 70 && $(states failed) == "failed stopped" ]] && says "1 of 2 runs failed" said &&
        ! grep "^Best:" said &&
        [[ $(jq -r '.[0].reason' failed/sweep.json) == "killed by signal 9 (Killed)" ]]
}

# Another process has the run's directory.
a_run_that_cannot_start() {
    "$COALESCED" run "$job" --run-dir busy/seed=1 "${long[@]}" >/dev/null 2>&1 </dev/null &
    local other=$! good=0
    wait_for_number busy/seed=1 3
    sweeps 75 busy "${short[@]}" --over /seed=1..2 --resume && [[ $(states busy) == "failed finished" ]] &&
        says "seed=1: failed" said && says "busy/seed=1 is in use by process $other" said && says "Best: seed=2" said && good=1
    kill "$other" && wait "$other"
    [[ $good == 1 ]]
}

one_sweep_at_a_time() {
    local good=0
    begins locked --over /seed=1
    wait_for_number locked/seed=1 3
    sweeps 75 locked "${short[@]}" --over /seed=1 --resume && says "locked is in use by process $sweep" said && good=1
    kill "$sweep" && wait "$sweep"
    [[ $good == 1 ]]
}

# With next to no learning rate the policy stays as bad as it begins, and such a run would never end.
stops_the_hopeless() {
    local job
    job=$(readlink -f "$root/config/cartpole.json")
    local over=(--set '/stop={"running_reward":150,"episodes":null}' --set /log/every=1 --over '/optimizer/lr=0.01,1e-9' --over /seed=1..3)
    sweeps 0 median "${over[@]}" --parallel 3 --stop median &&
        [[ $(states median) == "solved solved solved stopped by the median rule stopped by the median rule stopped by the median rule" ]] &&
        [[ $(jq '[.[3:][].episode | select(. < 100)] | length' median/sweep.json) == 0 ]] &&
        sweeps 0 median "${over[@]}" --stop median --resume && ! says ": running" said >/dev/null
}

# A run draws its values by itself. --resume finds the same ones, and more of them.
draws_at_random() {
    local over=(--sampler random --over /optimizer/lr=log:1e-4..1e-2 --over /seed=1..1000)
    sweeps 0 random "${short[@]}" "${over[@]}" --runs 2 && [[ $(states random) == "finished finished" ]] &&
        jq -e 'all(.[].values; .["/optimizer/lr"] > 1e-4 and .["/optimizer/lr"] < 1e-2 and .["/seed"] <= 1000)' random/sweep.json &&
        jq -c '.[]' random/sweep.json >before.jsonl && sweeps 0 random "${short[@]}" "${over[@]}" --runs 3 --resume &&
        diff before.jsonl <(jq -c '.[:2][]' random/sweep.json) && [[ $(jq length random/sweep.json) == 3 ]]
}

wrong_draws() {
    sweeps 64 none --over /seed=1..3 --runs 2 && says "--runs belongs to --sampler random and --sampler tpe" said &&
        sweeps 64 none --over /seed=1 --sampler best && says "--sampler: invalid choice: 'best'" said &&
        sweeps 64 none --over /optimizer/lr=log:0..1 --sampler random &&
        says "--over /optimizer/lr: log:0..1 has no value: expected A..B with A <= B, and 0 < A with log:" said &&
        sweeps 78 none "${short[@]}" --over /optimizer/lr=-1..0.5 --sampler random && [[ ! -e none ]]
}

# without MODULE ARG...: a sweep in whose Python the module is missing.
without() {
    mkdir -p "hidden/$1" && echo 'raise ImportError("hidden")' >"hidden/$1/__init__.py"
    PYTHONPATH=$scratch/hidden sweeps "${@:2}"
}

without_matplotlib() {
    without matplotlib 0 plain "${short[@]}" --over /seed=1 && [[ ! -e plain/sweep.svg ]] &&
        says "matplotlib, which draws the figures, is missing: apt install python3-matplotlib" said
}

without_optuna() {
    local option
    for option in '--sampler tpe' '--stop halving' '--storage sqlite:///trials.db'; do
        # shellcheck disable=SC2086 # two words
        without optuna 69 none "${short[@]}" --over /seed=1..3 $option && says "is missing: pip install optuna" said || return 1
    done
    [[ ! -e none ]]
}

without_python() {
    local code=0
    env PATH="$scratch" "$COALESCED" sweep "$job" --over /seed=1 >said 2>&1 || code=$?
    [[ $code == 69 ]] && says "sweep needs python3, which is not in PATH: apt install python3" said
}

# ---- with Optuna ----

# The sampler goes on where it was, by its storage and by sweep.json.
proposes_values() {
    local over=(--sampler tpe --over /optimizer/lr=log:1e-4..1e-1 --over '/returns/gamma=0.9,0.99')
    sweeps 0 tpe "${short[@]}" "${over[@]}" --runs 4 --parallel 2 --storage "sqlite:///$scratch/trials.db" &&
        [[ $(states tpe) == "finished finished finished finished" ]] && jq -c '.[]' tpe/sweep.json >before.jsonl &&
        sweeps 0 tpe "${short[@]}" "${over[@]}" --runs 6 --resume --storage "sqlite:///$scratch/trials.db" &&
        [[ $(jq length tpe/sweep.json) == 6 ]] && diff before.jsonl <(jq -c '.[:4][]' tpe/sweep.json) &&
        python3 - "$scratch/trials.db" <<'PYTHON'
import optuna, sys
study, = optuna.get_all_study_summaries(f"sqlite:///{sys.argv[1]}")
sys.exit(study.n_trials != 6 or study.study_name != "tpe")
PYTHON
}

halves() {
    local job
    job=$root/config/cartpole.json
    sweeps 0 halved --set '/stop={"running_reward":150,"episodes":1600}' --set /log/every=1 --stop halving --parallel 2 \
        --over '/optimizer/lr=0.01,1e-9' --over /seed=1..2 &&
        says "stopped by successive halving" said && [[ $(states halved) == *solved* ]]
}

check "a run for each combination" makes_every_run
if python3 -c 'import matplotlib' 2>/dev/null; then
    check "a figure" draws_them
else
    echo 'test_sweep.sh: Python has no matplotlib: no figure is checked'
fi
check "the numbers of run" same_numbers_as_run
check "runs that are there are kept" refuses_a_second_sweep
check "--resume leaves finished runs alone" leaves_finished_runs_alone
check "--resume with a later end" goes_on_to_a_later_end
check "--resume with other axes" keeps_other_rows
check "a wrong value is found before anything starts" wrong_values
check "a folder that cannot be made" a_folder_that_cannot_be_made
check "warnings of a check are shown once" warnings_are_shown_once
check "SIGTERM, and --resume" stops_in_order
check "ctrl-C on a terminal" ctrl_c
check "kill -9 leaves no child" no_child_is_left
check "a run that is killed" others_go_on
check "a run that cannot start" a_run_that_cannot_start
check "one sweep at a time" one_sweep_at_a_time
check "the median rule" stops_the_hopeless
check "values that are drawn at random" draws_at_random
check "what cannot be drawn" wrong_draws
check "without matplotlib" without_matplotlib
check "without Optuna" without_optuna
check "without Python" without_python
if python3 -c 'import optuna, sqlalchemy' 2>/dev/null; then
    check "values that Optuna proposes" proposes_values
    check "successive halving" halves
else
    echo 'test_sweep.sh: Python has no Optuna: its samplers and pruners are not tested'
fi
check "the parts" python3 "$here/sweep_parts.py"
# A reader that leaves ends no run: all of them finish, sweep.json says so, and the exit code is that of lost output.
reader_leaves() {
    local code=0
    { "$COALESCED" sweep "$scratch/reinforce.json" --run-dir "$scratch/left" --over /seed=1..3 --set /stop/episodes=3 || code=$?
        printf '%d\n' "$code" >"$scratch/left.code"; } 2>/dev/null | head -1 >/dev/null
    [[ $(<"$scratch/left.code") -eq 74 && $(jq -c '[.[].state] | unique' "$scratch/left/sweep.json") == '["finished"]' ]]
}
check "a reader that leaves ends no run" reader_leaves

finish
