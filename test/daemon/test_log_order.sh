#!/usr/bin/env bash
# A run whose log has a wrong line is resumed from the newest checkpoint that the log covers: the first wrong line is named,
# what stands behind it is kept beside the log, and the run ends with the log of a run that nothing happened to. The lines
# are taken away, doubled and swapped in turn; and the log ends long before the newest checkpoint.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/runs.bash"

checkpoint='{"every": 4, "keep": 9}'
sed -i 's/"log": {"every": 1}/"log": {"every": 2}/' "$scratch/model-parallel.json"

words() {
    sed 's/\t\(Samples\|Tokens\)\/s.*//' "$1/episodes.log"
}

# is_whole KIND RUN: both logs are those of the run that nothing happened to.
is_whole() {
    diff <(numbers "$2") <(numbers "$scratch/$1-whole") && diff <(words "$2") <(words "$scratch/$1-whole")
}

# resume KIND RUN
resume() {
    local code=0
    run_job "$1" "$2" 30 --resume >"$scratch/said" 2>&1 || code=$?
    cat "$scratch/said"
    return "$code"
}

# wrong KIND NAME FILE EDIT LINE: resumes a copy of the run whose FILE was edited by sed; the message names LINE.
wrong() {
    local run=$scratch/$1-$2
    cp -r "$scratch/$1-begun" "$run" && sed -i "$4" "$run/$3" && resume "$1" "$run" &&
        grep -q "/$3:$5: found .*, expected " "$scratch/said" && [[ -s $run/$3.cut ]] && is_whole "$1" "$run"
}

# The log ends before the newest checkpoints: they are set aside.
short() {
    local run=$scratch/$1-short
    cp -r "$scratch/$1-begun" "$run" && sed -i '8,$d' "$run/episodes.jsonl" && sed -i '7,$d' "$run/episodes.log" &&
        resume "$1" "$run" && grep -q "00000020 is ahead of the log" "$scratch/said" &&
        [[ -d $run/checkpoints/00000020.ahead ]] && is_whole "$1" "$run"
}

for kind in reinforce parameter-server model-parallel; do
    check "$kind: a run that nothing happens to" run_job "$kind" "$scratch/$kind-whole" 30
    check "$kind: a run up to its twentieth update" run_job "$kind" "$scratch/$kind-begun" 20
    check "$kind: a line is missing" wrong "$kind" missing episodes.jsonl 8d 8
    check "$kind: a line is there twice" wrong "$kind" twice episodes.jsonl 8p 9
    check "$kind: two lines are swapped" wrong "$kind" swapped episodes.jsonl '8{h;d};9{G}' 8
    check "$kind: a line of episodes.log is there twice" wrong "$kind" text episodes.log 7p 8
    check "$kind: the log ends before the newest checkpoints" short "$kind"
done

finish
