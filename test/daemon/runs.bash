# Sourced by the shell tests that break runs and resume them, behind test/shell.bash: a small job of each kind as
# $scratch/KIND.json, and words for their runs. A RUN is a run directory.
#
#   run_job KIND RUN N [ARGUMENT]...   runs the job up to update or episode N, with checkpoints as $checkpoint says
#   job_arguments KIND RUN N [ARGUMENT]...   $job: what follows `coalesced run` there
#   numbers RUN                        the log without events and `timing`
#   last_number RUN                    its last update or episode
#   wait_for_number RUN N              returns when the log has it
#   newest_checkpoint RUN              the checkpoint's name
#   leaves_nobody PATTERN              no process of this test's jobs whose command line has the pattern is left
#   $calm                              arguments for a job of kind reinforce that only has to go on: a step of its environments
#                                      takes a millisecond, and leaves the processors to others
#   whole_epochs RUN                   a number behind the last one, at the end of an epoch of each kind: two runs up to
#                                      there have the same lines

# shellcheck disable=SC2154 # test/shell.bash makes the folder
export XDG_RUNTIME_DIR=$scratch
checkpoint='{"every": 2, "keep": 2}'
# shellcheck disable=SC2034 # for the tests
calm=(--set "/environment={\"plugin\": \"$(readlink -f "$BUILD")/test/preload/environment_toy.so\", \"name\": \"Slow-v0\"}")
rollout_rows=0 # of a job of kind reinforce whose end is a number of steps

cat >"$scratch/reinforce.json" <<'JSON'
{"kind": "reinforce", "device": "cpu", "observers": {"count": 2}, "rollout": {"steps": 20}, "log": {"every": 1}}
JSON
cat >"$scratch/parameter-server.json" <<'JSON'
{"kind": "parameter-server", "device": "cpu", "model": {"name": "resnet18", "classes": 10, "width": 8},
 "trainers": {"count": 2, "batch": 4, "threads": 1}, "data": {"size": 16}, "server": {"count": 2},
 "optimizer": {"lr": 0.01, "momentum": 0.9}, "log": {"every": 1}}
JSON
cat >"$scratch/model-parallel.json" <<'JSON'
{"kind": "model-parallel", "device": "cpu", "model": {"name": "rnn", "tokens": 10, "embedding": 2, "hidden": 3},
 "trainers": {"count": 1, "batch": 3, "threads": 1}, "data": {"kind": "synthetic", "steps": 5, "updates": 5},
 "optimizer": {"name": "sgd", "lr": 0.05}, "log": {"every": 1}}
JSON

job_arguments() {
    local unit=updates last=$3
    [[ $1 != reinforce ]] || unit=episodes
    [[ $1 != reinforce || $rollout_rows -eq 0 ]] || unit=steps last=$((last * rollout_rows))
    job=("$scratch/$1.json" --run-dir "$2" --set "/stop={\"$unit\":$last}" --set "/checkpoint=$checkpoint" "${@:4}")
}

run_job() {
    local job
    job_arguments "$@"
    "$COALESCED" run "${job[@]}" </dev/null
}

numbers() {
    grep -av '^{"event"' "$1/episodes.jsonl" | sed 's/,"timing".*//'
}

last_number() {
    awk -F '[:,]' '/^{"(update|episode)":/ { n = $2 } END { if (n == "") exit 1; print n }' "$1/episodes.jsonl"
}

wait_for_number() {
    until grep -Eaq "\"(update|episode)\":$2," "$1/episodes.jsonl" 2>/dev/null; do sleep 0.02; done
}

newest_checkpoint() {
    find "$1/checkpoints" -maxdepth 1 -regex '.*/[0-9]+' -printf '%f\n' | sort | tail -1
}

whole_epochs() {
    echo $(($(last_number "$1") / 5 * 5 + 10))
}

# Other jobs of this machine have other folders for their sockets.
leaves_nobody() {
    local pid
    for pid in $(pgrep -f "$1"); do
        if tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qx "XDG_RUNTIME_DIR=$scratch"; then
            echo "process $pid is left"
            return 1
        fi
    done
}
