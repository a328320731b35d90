# Sourced behind test/daemon/runs.bash by the tests of jobs that step environments; $scratch/reinforce.json is the job.
#
#   plays NAME [ARGUMENT]...            plays $episodes episodes in the run directory $scratch/NAME
#   with_episodes N COMMAND...          the same with another number of episodes
#   same NAME NAME                      the numbers of both runs are the same; else their first difference
#   same_numbers [ARGUMENT]...          plays again with these arguments, and compares with the run `whole`
#   kills_observers N E [ARGUMENT]...   plays E episodes as the run `killed`, and kills observer 1 N times meanwhile
#   kills_the_agent [ARGUMENT]...       plays $disturbed_episodes (100) as the run `killed`, and kills the agent once
#                                       meanwhile: all workers start again from a checkpoint
#   resumes_after N M [ARGUMENT]...     a run of N episodes, resumed up to M, has the numbers of the run `whole`, but for
#                                       the evaluation at the earlier end
#   is_resumed [ARGUMENT]...            resumes_after, first up to the middle of $episodes, where no checkpoint is due
#   same_buffer NAME NAME               both runs have drawn from the same rows of their replay buffers
#   alike NAME NAME                     same and same_buffer
#   alike_with [ARGUMENT]...            same_numbers, and the same buffer
#   resumed_alike                       is_resumed, and the same buffer
#   is_resumed_in_process               is_resumed, stepped in the agent's process
#   resumed_alike_in_process            the same, and the same buffer
#   fails_with PHRASE [ARGUMENT]...     the job fails by itself, and its last line has the phrase

# shellcheck disable=SC2154 # test/shell.bash makes the folder
episodes=5
disturbed_episodes=100
faulty_stop='{"episodes": 5}'

plays() {
    local run=$scratch/$1
    rm -rf "$run"
    run_job reinforce "$run" "$episodes" "${@:2}" >"$run.out" 2>&1 || { cat "$run.out"; return 1; }
}

with_episodes() {
    local episodes=$1
    "${@:2}"
}

same() {
    local lines
    lines=$(diff <(numbers "$scratch/$1") <(numbers "$scratch/$2")) || { head -4 <<<"$lines"; return 1; }
}

same_numbers() {
    plays other "$@" && same whole other
}

# wait_for_some RUN N JOB: returns when the log has episode N, or the job's process has ended.
wait_for_some() {
    until [[ $(last_number "$1" 2>/dev/null) -ge $2 ]] || ! kill -0 "$3" 2>/dev/null; do sleep 0.02; done
}

kills_observers() {
    local run=$scratch/killed job i
    rm -rf "$run"
    run_job reinforce "$run" "$2" "${@:3}" >"$run.out" 2>&1 &
    job=$!
    wait_for_some "$run" 3 "$job"
    for ((i = 0; i < $1; i++)); do
        pkill -9 -P "$(cat "$run/lock")" -f 'observer --index 1' || true
        wait_for_some "$run" $(($(last_number "$run") + 3)) "$job"
    done
    wait "$job" || { cat "$run.out"; return 1; }
    grep -q "takes its place" "$run.out" || { echo "nobody was killed"; cat "$run.out"; return 1; }
    # Deaths that recur are summed up.
    [[ $(grep -c "^coalesced: observer 1 .*takes its place" "$run.out") -lt 2 ]] ||
        grep -q "workers were started again [0-9]* times in this run, observer 1 most often: [0-9]* times" "$run.out" ||
        { echo "the deaths are not summed up"; cat "$run.out"; return 1; }
}

kills_the_agent() {
    local run=$scratch/killed job
    rm -rf "$run"
    run_job reinforce "$run" "$disturbed_episodes" "$@" >"$run.out" 2>&1 &
    job=$!
    wait_for_some "$run" 11 "$job"
    until [[ -n $(newest_checkpoint "$run" 2>/dev/null) ]] || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done
    pkill -9 -P "$(cat "$run/lock")" -f 'agent --index 0' || true
    wait "$job" || { cat "$run.out"; return 1; }
    grep -q "going on from .*/checkpoints/" "$run.out" || { echo "nobody was killed"; cat "$run.out"; return 1; }
}

resumes_after() {
    local run=$scratch/parts first
    rm -rf "$run" && run_job reinforce "$run" "$1" "${@:3}" >/dev/null 2>&1 && first=$(last_number "$run") &&
        run_job reinforce "$run" "$2" "${@:3}" --resume >"$run.out" 2>&1 &&
        diff <(not_evaluated_at "$first" whole) <(not_evaluated_at "$first" parts)
}

is_resumed() {
    resumes_after $(((episodes / 2 - 1) | 1)) "$episodes" "$@"
}

not_evaluated_at() { # EPISODE NAME
    numbers "$scratch/$2" | sed "/^{\"episode\":$1,/s/,\"eval\":{[^}]*}//"
}

fails_with() {
    local phrase=$1 code=0
    shift
    rm -rf "$scratch/faulty"
    timeout 100 "$COALESCED" run "$scratch/reinforce.json" --run-dir "$scratch/faulty" --set /stop="$faulty_stop" \
        --set /supervise/restart=false "$@" >"$scratch/faulty.out" 2>&1 || code=$?
    [[ $code -ne 0 && $code -ne 124 ]] && tail -1 "$scratch/faulty.out" | grep -qF "$phrase" && return 0
    tail -2 "$scratch/faulty.out"
    return 1
}

same_buffer() {
    cmp "$scratch/$1/replay.bin" "$scratch/$2/replay.bin"
}

alike() {
    same "$1" "$2" && same_buffer "$1" "$2"
}

alike_with() {
    plays other "$@" && alike whole other
}

resumed_alike() {
    is_resumed && same_buffer whole parts
}

is_resumed_in_process() {
    is_resumed --set '/observers={"count": 0, "environments": 6}'
}

resumed_alike_in_process() {
    is_resumed_in_process && same_buffer whole parts
}
