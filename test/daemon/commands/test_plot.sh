#!/usr/bin/env bash
# coalesced plot: a curve for each job over its seeds, in both formats; a run that is empty, torn or still running; what
# cannot be drawn is named.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"
if /usr/bin/python3 -c "import matplotlib" 2>/dev/null; then
    PATH=/usr/bin:$PATH # the Python that has what scripts/deps installs
fi

python3 -c 'import matplotlib' 2>/dev/null || skip "Python has no matplotlib"

cd "$scratch"
for seed in 1 2 3; do
    run_job reinforce "runs/$seed" 12 --set "/seed=$seed" >/dev/null 2>&1
    run_job reinforce "runs/fast-$seed" 12 --set "/seed=$seed" --set /optimizer/lr=0.05 >/dev/null 2>&1
done
run_job model-parallel words 10 >/dev/null 2>&1

# says PHRASE FILE
says() {
    grep -qF -- "$1" "$2" && return 0
    cat "$2"
    return 1
}

# plots PHRASE ARG...: the command succeeds and says so.
plots() {
    local phrase=$1
    shift
    "$COALESCED" plot "$@" >said 2>&1 && says "$phrase" said
}

# fails CODE PHRASE ARG...
fails() {
    local expected=$1 phrase=$2 code=0
    shift 2
    "$COALESCED" plot "$@" >said 2>&1 || code=$?
    [[ $code == "$expected" ]] && says "$phrase" said && return 0
    echo "exit code $code"
    return 1
}

seeds_are_a_curve() {
    plots "plot.svg: 2 curves of 6 runs" runs/* && says "lr 0.01, 3 seeds" plot.svg && says "lr 0.05, 3 seeds" plot.svg &&
        says ">running_reward<" plot.svg && says ">episode<" plot.svg
}

makes_a_png() {
    plots "it's a figure.png: 1 curve of 1 run" runs/1 --output "it's a figure.png" &&
        [[ $(head -c 4 "it's a figure.png" | tail -c 3) == PNG ]]
}

other_keys() {
    plots "2 curves of 2 runs" runs/1 words --y loss --x steps && says ">loss<" plot.svg && says ">steps<" plot.svg &&
        plots "1 curve" runs/1 --x seconds --y timing.env_steps_per_s && plots "1 curve" words && says ">update<" plot.svg
}

# Two episodes can end in one millisecond; here, in one second.
median_over_seconds() {
    local seed
    for seed in 1 2; do
        mkdir -p "whole/$seed" && cp "runs/$seed/job.json" "whole/$seed" &&
            jq -c '.timing.unix_s |= floor' "runs/$seed/episodes.jsonl" >"whole/$seed/episodes.jsonl"
    done
    plots "1 curve of 2 runs" whole/1 whole/2 --x seconds
}

# The number that both have.
two_algorithms() {
    echo '{"kind": "reinforce", "device": "cpu", "observers": {"count": 1}, "algorithm": {"name": "ppo", "n_steps": 64}}' >ppo.json
    "$COALESCED" run ppo.json --set '/stop={"steps":256}' --set /log/every=1 --run-dir ppo >/dev/null 2>&1 </dev/null &&
        plots "1 curve of 1 run" ppo && says ">ep_rew_mean<" plot.svg && says ">steps<" plot.svg &&
        plots "2 curves of 2 runs" ppo runs/1 && says ">running_reward<" plot.svg && says ">steps<" plot.svg
}

# A name may be anything; a formula, quotes and control characters are no more than letters.
strange_names() {
    local name=$'_it\'s $x^2$ `touch x` "$(touch x)"\a'
    cp -r runs/1 "$name" && plots "1 curve" "$name" && says "_it's \$x^2\$ \`touch x\`" plot.svg && [[ ! -e x ]]
}

leaves_nothing() {
    [[ -z $(find "$scratch" -newer plot.svg -name '*.tmp') && -z $(find "$scratch" -maxdepth 1 -name '*.pyc') ]]
}

half_a_line() {
    cp -r runs/1 torn && printf '{"episode":13,"rew' >>torn/episodes.jsonl && plots "1 curve of 1 run" torn &&
        [[ $(wc -l <said) == 1 ]] && printf 'ard"\nnonsense\n' >>torn/episodes.jsonl &&
        plots "torn/episodes.jsonl: 2 lines are no lines of a log and are left out, the first one is line" torn
}

# While a run goes on, and before it has begun.
runs_that_go_on() {
    local pid
    "$COALESCED" run "$scratch/reinforce.json" --set /stop/episodes=1000000 --set /seed=4 --run-dir goes >/dev/null 2>&1 &
    pid=$!
    wait_for_number goes 3
    plots "1 curve of 1 run" goes
    kill "$pid" && wait "$pid"
}

empty_runs() {
    mkdir empty && cp runs/1/job.json empty && plots "empty/episodes.jsonl is not there: the run is left out" runs/1 empty &&
        : >empty/episodes.jsonl && plots "plot.svg: 1 curve of 1 run" runs/1 empty &&
        says "empty/episodes.jsonl: no line has the numbers episode and running_reward" said
}

a_run_named_twice() {
    ln -s runs/1 link && plots "plot.svg: 1 curve of 1 run" runs/1 runs/1/ link &&
        says "runs/1/ is the same run as runs/1: the run counts once" said && ! grep -E "2 (runs|seeds)" plot.svg &&
        plots "1 curve of 2 runs" runs/1 link runs/2 && says ">reinforce<" plot.svg
}

a_sweep() {
    mkdir -p swept && echo '[]' >swept/sweep.json && cp -r runs/1 swept/seed=1 &&
        fails 66 "swept is the folder of a sweep: expected its runs, swept/*/" swept && plots "1 curve of 1 run" swept/*/
}

# hides SENTENCE: puts a Matplotlib that fails so into the folder hidden.
hides() {
    mkdir -p hidden/matplotlib && echo "$1" >hidden/matplotlib/__init__.py && : >hidden/matplotlib/figure.py
}

without_matplotlib() {
    hides 'raise ImportError("hidden")' &&
        PYTHONPATH=$scratch/hidden fails 69 "is missing: apt install python3-matplotlib" runs/1
}

# A failure leaves the figure as it was.
keeps_the_old_figure() {
    hides 'rcParams = {}' && plots "1 curve" runs/1 && cp plot.svg before.svg &&
        PYTHONPATH=$scratch/hidden fails 70 "matplotlib drew no figure: AttributeError" runs/1 && cmp plot.svg before.svg
}

check "the seeds of a job are one curve" seeds_are_a_curve
check "a PNG" makes_a_png
check "other keys" other_keys
check "a median over seconds" median_over_seconds
check "two algorithms" two_algorithms
check "a strange name" strange_names
check "no file is left" leaves_nothing
check "a last line that is half written, and wrong ones" half_a_line
check "a run that goes on" runs_that_go_on
check "empty runs are left out" empty_runs
check "no run" fails 64 "the following arguments are required: RUN"
check "a run that is not there" fails 66 "nowhere/job.json: No such file" nowhere
check "a run that is named twice" a_run_named_twice
check "a sweep's folder" a_sweep
check "no run with a line" fails 66 "there is nothing to draw" empty
check "a key that no line has" fails 66 "no line has the numbers episode and nonsense" runs/1 --y nonsense
check "kinds that differ" fails 78 "words one of kind model-parallel: expected runs of one kind, or --y KEY" runs/1 words
check "another format" fails 64 "--output: expected a path that ends in .png or .svg, got x.pdf" runs/1 --output x.pdf
check "a folder that is not there" fails 74 "cannot write nowhere/x.svg" runs/1 --output nowhere/x.svg
check "a median over numbers that decrease" fails 78 "--x loss: the numbers of runs/1 decrease" runs/1 runs/2 --x loss
check "without Matplotlib" without_matplotlib
check "Matplotlib fails" keeps_the_old_figure
check "an option of another command" fails 64 "unrecognized arguments: --episodes 3" runs/1 --episodes 3
finish
