#!/usr/bin/env bash
# A checkpoint names its place in the logs. Here lines of the logs are damaged, cut and renamed, and checkpoints of other
# runs are put in. The resumed run says what it found, goes on, and has every line once: in its logs, in files that a
# rotation renamed, or in files that it set aside and named.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

checkpoint='{"every": 4, "keep": 2}'
sed -i 's/"log": {"every": 1}/"log": {"every": 2}/' "$scratch/model-parallel.json"

words() {
    sed '/^Continued: /d; s/\t\(Samples\|Tokens\)\/s.*//' "$@"
}

# is_whole KIND RUN [END]: both logs are those of the run that nothing happened to. END: .damaged or .1, of the files that
# have the first lines.
is_whole() {
    local json=("$2/episodes.jsonl") text=("$2/episodes.log")
    [[ -z ${3:-} || ! -e $2/episodes.jsonl$3 ]] || json=("$2/episodes.jsonl$3" "${json[@]}")
    [[ -z ${3:-} || ! -e $2/episodes.log$3 ]] || text=("$2/episodes.log$3" "${text[@]}")
    diff <(sed '/^{"event"/d; s/,"timing".*//' "${json[@]}") <(numbers "$scratch/$1-whole") &&
        diff <(words "${text[@]}") <(words "$scratch/$1-whole/episodes.log")
}

# resume KIND RUN PHRASE: goes on up to 30; a line of the daemon's has the phrase.
resume() {
    local code=0
    run_job "$1" "$2" 30 --resume >"$scratch/said" 2>&1 || code=$?
    [[ $code == 0 ]] && grep -q -- "$3" "$scratch/said" && return 0
    cat "$scratch/said"
    return 1
}

# copied KIND NAME: $run, a run of 20 updates whose newest checkpoints are 16 and 20.
copied() {
    run=$scratch/$1-$2
    cp -r "$scratch/$1-begun" "$run"
}

# damaged KIND NAME FILE EDIT: no checkpoint's place is confirmed. The newest one is taken, and FILE is kept as it was. Its
# epoch's line, which is behind the checkpoint, is computed again.
damaged() {
    local run edited=$scratch/edited
    copied "$1" "$2" && sed -i "$4" "$run/$3" && ! cmp -s "$run/$3" "$scratch/$1-begun/$3" && cp "$run/$3" "$edited" &&
        resume "$1" "$run" "$3 is damaged: .* it is now .*$3.damaged" && cmp "$run/$3.damaged" "$edited" &&
        ! grep -q 'starts again from its beginning' "$scratch/said" &&
        cp "$scratch/$1-begun/$3" "$run/$3.damaged" && sed -i '/"epoch":4,/,$d; /^Epoch 4/d' "$run/$3.damaged" &&
        is_whole "$1" "$run" .damaged
}

# behind KIND NAME FILE EDIT: the damage is behind the older checkpoint's place, which is confirmed.
behind() {
    local run
    copied "$1" "$2" && sed -i "$4" "$run/$3" && ! cmp -s "$run/$3" "$scratch/$1-begun/$3" &&
        resume "$1" "$run" "going on from .*/00000016" && grep -q "00000020 is skipped: .*$3" "$scratch/said" &&
        grep -q "lines behind the checkpoint are cut" "$scratch/said" && [[ -s $run/$3.cut ]] &&
        [[ -d $run/checkpoints/00000020.ahead ]] && is_whole "$1" "$run"
}

# renamed KIND NAME: the log was renamed, and the process killed before its next line.
renamed() {
    local run file
    copied "$1" "$2" && rm -r "$run/checkpoints/00000020" &&
        for file in episodes.jsonl episodes.log; do mv "$run/$file" "$run/$file.1" || return 1; done
    resume "$1" "$run" "going on from .*/00000016" && is_whole "$1" "$run" .1 && [[ -s $run/episodes.jsonl.cut ]] &&
        head -1 "$run/episodes.jsonl" | grep -q '^{"event":"continued","lines":'
}

# elsewhere KIND: the logs were moved to another folder. The new ones begin behind them.
elsewhere() {
    local run file
    copied "$1" elsewhere &&
        for file in episodes.jsonl episodes.log; do mv "$run/$file" "$scratch/$file" || return 1; done
    resume "$1" "$run" "episodes.jsonl is empty or missing" || return 1
    for file in episodes.jsonl episodes.log; do mv "$scratch/$file" "$run/$file.1" || return 1; done
    sed -i '/"event":"finished"/,$d' "$run/episodes.jsonl.1" && is_whole "$1" "$run" .1
}

# foreign KIND NAME FROM PHRASE: the checkpoint of another run is passed over.
foreign() {
    local run
    copied "$1" "$2" && cp -r "$scratch/$1-$3/checkpoints/00000024" "$run/checkpoints/" &&
        resume "$1" "$run" "00000024 is skipped: $4" && grep -q "going on from .*/00000020" "$scratch/said" &&
        is_whole "$1" "$run"
}

# foreign_and_damaged KIND: the log that is whole tells the run's own checkpoint.
foreign_and_damaged() {
    local run
    copied "$1" foreign-damaged && cp -r "$scratch/$1-other/checkpoints/00000024" "$run/checkpoints/" &&
        sed -i '1s/"run"/"rum"/' "$run/episodes.jsonl" && resume "$1" "$run" "episodes.jsonl is damaged" &&
        grep -q "going on from .*/00000020" "$scratch/said" && [[ ! -e $run/episodes.log.damaged ]]
}

# renamed_twice KIND: the logs were renamed twice since the checkpoint, and the process was killed each time.
renamed_twice() {
    local run file
    rm -rf "$scratch/older"
    copied "$1" renamed-twice && rm -r "$run/checkpoints/00000020" &&
        for file in episodes.jsonl episodes.log; do mv "$run/$file" "$run/$file.2" || return 1; done
    cp -r "$run/checkpoints/00000016" "$scratch/older" && run_job "$1" "$run" 24 --resume >/dev/null 2>&1 || return 1
    for file in episodes.jsonl episodes.log; do mv "$run/$file" "$run/$file.1" || return 1; done
    rm -r "$run/checkpoints"/* && cp -r "$scratch/older" "$run/checkpoints/00000016" &&
        resume "$1" "$run" "going on from .*/00000016" && [[ ! -s $run/episodes.jsonl.1 && ! -s $run/episodes.log.1 ]] &&
        is_whole "$1" "$run" .2
}

# only_foreign KIND: a run that has only those of another is not begun anew.
only_foreign() {
    local run code=0
    copied "$1" only-foreign && rm -r "$run/checkpoints" && cp -r "$scratch/$1-seed/checkpoints" "$run/" || return 1
    cp "$run/episodes.jsonl" "$scratch/before"
    run_job "$1" "$run" 30 --resume >"$scratch/said" 2>&1 || code=$?
    [[ $code == 78 ]] && grep -q "has no checkpoint of this run, but another run's: its run had the seed 8" "$scratch/said" &&
        cmp "$run/episodes.jsonl" "$scratch/before"
}

for kind in reinforce parameter-server model-parallel; do
    check "$kind: a run that nothing happens to" run_job "$kind" "$scratch/$kind-whole" 30
    check "$kind: a run up to its twentieth update" run_job "$kind" "$scratch/$kind-begun" 20
    check "$kind: the first line is damaged" damaged "$kind" first episodes.jsonl '1s/seed/sead/'
    check "$kind: a digit is another one" damaged "$kind" digit episodes.jsonl '5s/[0-8]\(.*timing\)/9\1/'
    check "$kind: the first line for people is damaged" damaged "$kind" text episodes.log '1s/^./X/'
    check "$kind: a line behind the checkpoint is damaged" behind "$kind" behind episodes.jsonl '/^{"[a-z]*":20,/s/timing/tining/'
    # shellcheck disable=SC2016 # sed's last line
    check "$kind: the log ends before the newest checkpoint" behind "$kind" short episodes.jsonl '/^{"[a-z]*":20,/,$d'
    check "$kind: renamed, and killed before the next line" renamed "$kind" renamed
done

kind=reinforce
check "a run of another seed" run_job "$kind" "$scratch/$kind-seed" 24 --set /seed=8
check "another run of the same job" run_job "$kind" "$scratch/$kind-other" 24
check "a line is missing" damaged "$kind" missing episodes.jsonl 8d
check "a line is there twice" damaged "$kind" twice episodes.jsonl 8p
check "two lines are swapped" damaged "$kind" swapped episodes.jsonl '8{h;d};9{G}'
check "two objects are on one line" damaged "$kind" glued episodes.jsonl '8{N;s/\n//}'
check "bytes that are no UTF-8" damaged "$kind" bytes episodes.jsonl $'5s/reward/rew\xffard/'
check "the logs lie elsewhere" elsewhere "$kind"
check "the run's id is another one" damaged "$kind" id episodes.jsonl '1s/"run":"./"run":"x/'
check "renamed twice since the checkpoint" renamed_twice "$kind"
check "a checkpoint of another seed" foreign "$kind" of-seed seed "its run had the seed 8, expected 543"
check "a checkpoint of another run" foreign "$kind" of-other other "it comes from another run of this job"
check "the same, where a log is damaged" foreign_and_damaged "$kind"
check "no other checkpoints than another run's" only_foreign "$kind"

# ---- SIGUSR1 in a live run ----
# rotates KIND: no line is lost or there twice, and the renamed files need not be cut when the run is killed.
rotates() {
    local run=$scratch/$1-rotated pid file
    rm -rf "$run"
    job_arguments "$1" "$run" 1000000 --set /checkpoint/every=1000000
    "$COALESCED" run "${job[@]}" >"$scratch/said" 2>&1 &
    pid=$!
    wait_for_number "$run" 6
    for file in episodes.jsonl episodes.log; do mv "$run/$file" "$run/$file.1"; done
    kill -USR1 "$pid"
    until [[ -s $run/episodes.jsonl && -s $run/episodes.log ]]; do sleep 0.05; done
    sha256sum "$run"/*.1 >"$scratch/sums"
    wait_for_number "$run" $(($(last_number_of "$run/episodes.jsonl.1") + 4))
    kill -KILL "$pid"
    wait "$pid" 2>/dev/null || true
    job_arguments "$1" "$run" $(($(last_number "$run") + 4))
    "$COALESCED" run "${job[@]}" --resume >"$scratch/said" 2>&1 || { cat "$scratch/said"; return 1; }
    sha256sum --quiet -c "$scratch/sums" &&
        grep -q "going on from" "$scratch/said" &&
        cmp <(sed '/^{"event"/d; s/[,}].*//' "$run"/episodes.jsonl.1 "$run"/episodes.jsonl | grep -v epoch | grep -o '[0-9]*$') \
            <(seq "$(step_of "$1")" "$(step_of "$1")" "$(last_number "$run")")
}
last_number_of() {
    grep -o '^{"\(episode\|update\)":[0-9]*' "$1" | tail -1 | grep -o '[0-9]*$'
}
step_of() {
    [[ $1 == model-parallel ]] && echo 2 || echo 1
}
for kind in reinforce parameter-server model-parallel; do
    check "$kind: SIGUSR1, and a kill" rotates "$kind"
done

finish
