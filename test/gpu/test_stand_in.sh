#!/usr/bin/env bash
# Jobs of each kind on the stand-in for a GPU (test/gpu/gpu.h), with /device "gpu": twice with equal logs, with a worker
# killed, and resumed; and how often a step copies and waits.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../daemon/runs.bash"
# shellcheck source=test/gpu/stand_in.bash
source "$here/stand_in.bash"

on_gpu() {
    run_job "$1" "$scratch/$2" "$3" --set /device=gpu "${@:4}" >"$scratch/$2.out" 2>&1 || { tail -5 "$scratch/$2.out"; return 1; }
}
same() {
    diff <(numbers "$scratch/$1") <(numbers "$scratch/$2") | head -4
    cmp -s <(numbers "$scratch/$1") <(numbers "$scratch/$2")
}
# twice KIND NAME N [ARGUMENT]...: two runs that only the stand-in's order tells apart.
twice() {
    GPU_SEED=1 on_gpu "$1" "$2-1" "${@:3}" && GPU_SEED=2 on_gpu "$1" "$2-2" "${@:3}" && same "$2-1" "$2-2"
}
check "REINFORCE" twice reinforce reinforce 6
check "a parameter server" twice parameter-server images 4 --set /server/count=1
check "two parameter servers, inline" twice parameter-server two 4 --set /transport=inline
check "a language model" twice model-parallel words 5

# ---- copies and waits ----

# grows NAME COUNT: by how much the count is larger in the run NAME-11 than in NAME-3.
grows() {
    awk -v name="$2" '{for (i = 2; i <= NF; i++) if (split($i, a, "=") == 2 && a[1] == name) sum[FILENAME] += a[2]}
                      END {print sum[ARGV[2]] - sum[ARGV[1]]}' "$scratch/$1-3.counts" "$scratch/$1-11.counts"
}
# few NAME UPLOADS [ARGUMENT]...: in a parameter server of one trainer, eight more steps copy at most UPLOADS times to the
# device and 3 times from it, and wait 4 times at most, each. The trainer may begin one step more before the job ends, so
# either run may have the copies of a step more; one copy too many in each of eight steps is more than those.
few() {
    local n uploads downloads waits
    for n in 3 11; do
        GPU_SEED=4 GPU_COUNTS=$scratch/$1-$n.counts on_gpu parameter-server "$1-$n" "$n" --set /trainers/count=1 "${@:3}" || return 1
    done
    uploads=$(grows "$1" to_device) downloads=$(grows "$1" to_host) waits=$(grows "$1" waits)
    printf 'uploads %s, downloads %s, waits %s in 8 steps\n' "$uploads" "$downloads" "$waits"
    [[ $uploads -le $((9 * $2)) && $uploads -gt 8 && $downloads -le 27 && $downloads -gt 8 && $waits -le 36 && $waits -ge 4 ]]
}
check "a step of a parameter server" few step 4 --set /server/count=1
check "a step of ResNet-50" few deep 4 --set /server/count=1 --set /model/name=resnet50
check "a wider model's step, where the GPU is found" few wide 4 --set /server/count=1 --set /model/width=16 --set /device=auto
check "a step with two servers, inline" few step-inline 5 --set /transport=inline

# A limit of locked memory: cudaHostRegister fails, and copies are staged.
unpinned() {
    GPU_FAULT=cudaHostRegister:1:2 on_gpu parameter-server images-unpinned 4 --set /server/count=1 && same images-1 images-unpinned &&
        [[ $(grep -c 'cudaHostRegister of .* failed: out of memory' "$scratch/images-unpinned.out") -eq 2 ]]
}
check "memory cannot be pinned" unpinned

# killed KIND NAME N COMMAND: the same job as NAME-1, whose worker COMMAND is killed after its second number.
killed() {
    local run=$scratch/$2-killed job
    run_job "$1" "$run" "$3" --set /device=gpu "${@:5}" >"$run.out" 2>&1 &
    job=$!
    wait_for_number "$run" 2
    pkill -9 -P "$(cat "$run/lock")" -f "$4" || true
    wait "$job" || { tail -5 "$run.out"; return 1; }
    same "$2-1" "$2-killed"
}
check "an agent is killed" killed reinforce reinforce 6 'agent --index 0'
check "a trainer is killed" killed parameter-server images 4 'trainer --index 1' --set /server/count=1
# An evaluation follows the end at 2, which the whole run does not have.
resumed() {
    on_gpu "$1" "$2-resumed" 2 "${@:4}" && on_gpu "$1" "$2-resumed" "$3" --resume "${@:4}" &&
        diff <(not_evaluated_at_2 "$2-1") <(not_evaluated_at_2 "$2-resumed")
}
not_evaluated_at_2() {
    numbers "$scratch/$1" | sed '/^{"episode":2,/s/,"eval":{[^}]*}//'
}
check "REINFORCE goes on" resumed reinforce reinforce 6
check "a parameter server goes on" resumed parameter-server images 4 --set /server/count=1
check "a language model goes on" resumed model-parallel words 5

# ---- a trained policy ----

# plays RUN COMMAND [ARGUMENT]...: with the run's last checkpoint.
plays() {
    "$COALESCED" "$2" "$scratch/$1/checkpoints/$(newest_checkpoint "$scratch/$1")" "${@:3}" --episodes 2 >"$scratch/$2.out" 2>&1 ||
        { cat "$scratch/$2.out"; return 1; }
}
check "it is evaluated" plays reinforce-1 evaluate "$scratch/reinforce-1/job.json"
check "it plays" plays reinforce-1 play

# ---- PPO and A2C of dense layers ----
rollout_rows=256
cp "$here/../../config/ppo-cartpole.json" "$scratch/reinforce.json"
ppo=(--set /algorithm/n_epochs=3 --set /algorithm/learning_rate_schedule=constant --set /algorithm/clip_range_schedule=constant
    --set '/evaluation={"every": 3, "episodes": 3}' --set /log/every=1)
check "PPO" twice reinforce ppo 6 "${ppo[@]}"
check "PPO: the agent is killed" killed reinforce ppo 6 'agent --index 0' "${ppo[@]}"
check "PPO goes on" resumed reinforce ppo 6 "${ppo[@]}"
spread() {
    on_gpu reinforce ppo-spread 6 "${ppo[@]}" --set '/observers={"count": 2, "environments": 4, "groups": 2}' && same ppo-1 ppo-spread
}
check "PPO: two observers of two groups" spread
check "PPO: it is evaluated" plays ppo-1 evaluate "$scratch/ppo-1/job.json"
check "PPO: it plays" plays ppo-1 play

memory=("${ppo[@]}" --set /policy/recurrent=lstm --set /policy/lstm_hidden_size=16 --set /policy/hidden=[16]
    --set /algorithm/batch_size=128)
check "PPO with a memory" twice reinforce memory 6 "${memory[@]}"
check "PPO with a memory goes on" resumed reinforce memory 6 "${memory[@]}"

cat >"$scratch/reinforce.json" <<'JSON'
{"kind": "reinforce", "observers": {"count": 2, "environments": 4}, "environment": {"name": "Pendulum-v1"},
 "algorithm": {"name": "a2c", "n_steps": 32, "use_sde": true, "sde_sample_freq": 5},
 "normalize": {"norm_obs": true, "norm_reward": true}, "policy": {"hidden": [16, 16]}, "log": {"every": 1}}
JSON
check "A2C that explores by the state" twice reinforce a2c 6
check "A2C goes on" resumed reinforce a2c 6

# ---- DQN of images ----
rollout_rows=8
toy=$(readlink -f "$BUILD/test/preload/environment_toy.so")
cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "observers": {"count": 1, "environments": 2}, "environment": {"plugin": "$toy", "name": "Middle-v0"},
 "algorithm": {"name": "dqn", "learning_starts": 8, "batch_size": 4, "train_freq": 4, "gradient_steps": 1,
               "buffer_size": 100, "target_update_interval": 8, "tau": 0.5, "exploration_initial_eps": 0.3,
               "exploration_final_eps": 0.3},
 "policy": {"network": "cnn"}, "rollout": {"steps": 4}, "log": {"every": 1}}
JSON
check "DQN of images" twice reinforce dqn 6
check "DQN of images goes on" resumed reinforce dqn 6
check "DQN of images: it is evaluated" plays dqn-1 evaluate "$scratch/dqn-1/job.json"

finish
