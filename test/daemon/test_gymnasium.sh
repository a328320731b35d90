#!/usr/bin/env bash
# Jobs whose observers are processes of Python: Gymnasium's environments and classes of one's own train, with the same
# numbers however they are spread and when their observers are killed; each fault ends the job with a sentence that names
# the environment, and leaves no process behind.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/runs.bash"
# shellcheck source=test/daemon/worlds.bash
source "$here/worlds.bash"
# shellcheck source=test/daemon/python_worlds.bash
source "$here/python_worlds.bash"

# world MEMBERS: the job of the kind reinforce plays this environment; MEMBERS are the object's.
world() {
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 4},
 "environment": {"python": "$python", $1}, "rollout": {"steps": 40}, "policy": {"hidden": [16]},
 "log": {"every": 1}, "supervise": {"hang_s": 15}}
JSON
}

# ---- what takes long ----
export SLOW_MODULE=worlds SLOW_IMPORT=0 SLOW_MARK=$scratch/mark
world '"class": "slow:Corridor"'
# A worker that starts may be silent for 30 s more than /supervise/hang_s. This one goes on beside the checks below.
SLOW_IMPORT=33 run_job reinforce "$scratch/slow" 1 --set /supervise/hang_s=1 >"$scratch/slow.out" 2>&1 &
slow=$!
imports_for_long() {
    wait "$slow" && ! grep killed "$scratch/slow.out"
}
# The teardown of the modules would take longer than an observer may be silent; an exit handler runs.
ends_at_once() {
    rm -f "$SLOW_MARK"
    plays other --set /supervise/hang_s=5 && ! grep killed "$scratch/other.out" && grep -qx exit "$SLOW_MARK"
}
ends_within_an_import() {
    rm -f "$SLOW_MARK"
    SLOW_IMPORT=1000 plays other &
    until grep -qsx import "$SLOW_MARK"; do sleep 0.1; done
    kill "$(cat "$scratch/other/lock")"
    wait "$!" && ! grep killed "$scratch/other.out"
}
check "a job ends before the interpreter does" ends_at_once
check "a job is stopped while an observer imports" ends_within_an_import

# ---- every space, and every form of job ----
spread='{"count": 2, "environments": 2, "groups": 2}'
while read -r title members; do
    world "$members"
    check "$title trains" plays whole
    check "$title has five episodes" test "$(numbers "$scratch/whole" | wc -l)" == 5
    check "$title: two observers of two groups" same_numbers --set /observers="$spread"
done <<'WORLDS'
CartPole-v1 "gymnasium": "CartPole-v1"
Pendulum-v1 "gymnasium": "Pendulum-v1", "options": {"g": 9.81}
Corridor "class": "worlds:Corridor", "options": {"length": 9}
Masked "class": "worlds:Masked"
Doors "class": "worlds:Doors"
Screens "class": "worlds:Screens"
Frames "class": "worlds:Doors", "frames": 3
WORLDS
world '"class": "worlds:Corridor"'
check "one after the other" plays whole
world '"class": "worlds:Corridors"'
check "all at once: the same numbers" same_numbers
check "all at once: two observers of two groups" same_numbers --set /observers="$spread"
world '"gymnasium": "CartPole-v1"'
check "whole episodes" plays whole --set /rollout/mode=episode
check "whole episodes of two groups" same_numbers --set /rollout/mode=episode --set /observers="$spread"
check "episodes that go on" plays whole --set /rollout/begin=continue
check "episodes of two groups that go on" same_numbers --set /rollout/begin=continue --set /observers="$spread"
world '"class": "worlds:Corridor"'
check "metrics" plays whole
has_metrics() {
    grep -q '"metrics":{"is_home":[01]' "$scratch/whole/episodes.jsonl"
}
check "metrics are in the log" has_metrics

# The policy's dynamics are those of the built-in environment: one that always pushes to the right is over at the same
# time. The first states differ, so the lengths do a little.
world '"gymnasium": "CartPole-v1"'
is_cartpole() {
    plays whole --set /rollout/mode=episode --set /observers='{"count": 1, "environments": 16}' &&
        numbers "$scratch/whole" | head -1 | sed 's/$/}/' | jq -e '.reward > 12 and .reward < 50' >/dev/null
}
check "an untrained policy balances the pole for some twenty steps" is_cartpole

same_after_kills() {
    kills_observers 2 40 --set /observers="$spread" && rm -rf "$scratch/whole" && run_job reinforce "$scratch/whole" 40 --set /observers="$spread" \
        >/dev/null 2>&1 && same whole killed
}
check "killed observers leave no trace" same_after_kills
go_on=(--set /rollout/begin=continue --set /observers="$spread")
same_after_kills_between() {
    kills_observers 2 50 "${go_on[@]}" && rm -rf "$scratch/whole" && run_job reinforce "$scratch/whole" 50 "${go_on[@]}" \
        >/dev/null 2>&1 && same whole killed && ! grep "saves no states (functions save and load)" "$scratch/killed.out"
}
check "killed observers of episodes that go on leave no trace" same_after_kills_between

begins_anew() {
    kills_observers 2 50 "${go_on[@]}" && grep -q "saves no states (functions save and load)" "$scratch/killed.out"
}
world '"class": "worlds:Clock"'
check "one that cannot be seeded begins anew" begins_anew
world '"class": "worlds:Elastic"'
check "a run to be resumed" with_episodes 20 plays whole --set /rollout/begin=continue
sed -i 's/"rollout": {/&"begin": "continue", /' "$scratch/reinforce.json"
check "resumed episodes that go on" with_episodes 20 is_resumed
takes_another_course() {
    CORRIDOR=2 run_job reinforce "$scratch/parts" 30 --resume --set /supervise/restart=false >"$scratch/words" 2>&1 &&
        [[ $(grep -c "takes another course up to its saved state" "$scratch/words") == 1 ]]
}
check "resumed in a world that has changed" takes_another_course

# ---- faults: of the environment, and a part of what the job's last line says ----
while IFS='|' read -r name phrase; do
    world "\"class\": \"worlds:$name\""
    check "$name" fails_with "$phrase"
done <<'FAULTS'
WrongShape|worlds:WrongShape: environment 0: its observation has the shape (2,), expected (1,)
NotANumber|worlds:NotANumber: environment 0: its observation has the value nan, expected finite ones
Text|worlds:Text: environment 0: its observation has the dtype
Nothing|worlds:Nothing: environment 0: its observation has the shape (), expected (1,)
RewardNothing|worlds:RewardNothing: environment 0: its reward is None: expected a number
RewardText|worlds:RewardText: environment 0: its reward is 'much': expected a number
RewardNaN|worlds:RewardNaN: environment 0: its reward is nan: expected a finite float32
RewardHuge|worlds:RewardHuge: environment 0: its reward is 1e+300: expected a finite float32
StepRaises|worlds:StepRaises: environment 0: step: ValueError: the joint 4 came off (
StepForgets|worlds:StepForgets: environment 0: step returned no tuple of observation, reward, terminated
StepHangs|sent no heartbeat for 15 s, in step of environment 0: killed
StepCrashes|was killed by signal 11 (Segmentation fault) in step of environment 0
StepExits|exited with code 3 in step of environment 0
MetricMissing|worlds:MetricMissing: environment 0: the metrics of its episode: KeyError: 'is_home'
MaskEmpty|worlds:MaskEmpty: environment 0: its action_mask is [0, 0]: expected 2 of 0 and 1, not all 0
ResetRaises|worlds:ResetRaises: environment 0: reset: OSError: no such level (
ResetForgets|worlds:ResetForgets: environment 0: reset returned no pair of an observation and a dict
InitRaises|worlds:InitRaises: environment 0: making it: RuntimeError: the licence has expired (
EndlessActions|worlds:EndlessActions: the action space is Box(-inf, inf, (2,), float32): expected finite bounds
NoSpaces|worlds:NoSpaces: it has no observation_space
Resetting|worlds:Resetting: metadata['autoreset_mode'] is NEXT_STEP: expected DISABLED
Absent|/environment/class: worlds:Absent: AttributeError: module 'worlds' has no attribute 'Absent'
FAULTS
check "no observer is left" leaves_nobody "observer.py --role"
world '"class": "nowhere:World"'
check "a module that is not there" fails_with "/environment/class: nowhere:World: ModuleNotFoundError: No module named 'nowhere'"
world '"gymnasium": "CartPole-v9"'
check "an id that Gymnasium does not know" fails_with "CartPole-v9: environment 0: making it: VersionNotFound"
world '"class": "worlds:Corridor", "options": {"width": 4}'
check "an option that the class does not know" fails_with "unexpected keyword argument 'width'"
world '"gymnasium": "CartPole-v1"'
printf '#!/bin/sh\nexec /usr/bin/python3 -I -S "$@"\n' >"$scratch/bare"
chmod +x "$scratch/bare"
check "an interpreter that is not there" fails_with "nowhere3: expected a Python interpreter" \
    --set /environment/python=nowhere3
check "an interpreter without the packages" fails_with "expected the packages pyzmq, numpy and gymnasium" \
    --set /environment/python="$scratch/bare"
check "a program that is no interpreter" fails_with "exited with code" --set /environment/python=/bin/false
check "two sources" fails_with "an environment comes from one place" --set /environment/class=worlds:Corridor

world '"class": "worlds:Corridors"'
check "whole episodes of a vector" fails_with '"steps" for /rollout/mode' --set /rollout/mode=episode --set /observers/environments=8
world '"gymnasium": "envpool/Nothing-v1"'
check "an id that EnvPool does not know, or no EnvPool" fails_with "envpool/Nothing-v1: "

# ---- a policy becomes an ONNX file ----
is_exported() {
    plays whole && "$COALESCED" export "$scratch/whole" --onnx "$scratch/policy.onnx" </dev/null &&
        grep -q observations "$scratch/policy.onnx" && grep -q "$1" "$scratch/policy.onnx"
}
world '"gymnasium": "Pendulum-v1"'
check "a policy of Gymnasium's Pendulum is exported" is_exported log_std
world '"class": "worlds:Screens"'
check "a policy of a class of one's own" is_exported logits
# refuses_evaluate FROM TO EXIT PHRASE: after this change of the run's job.
refuses_evaluate() {
    local code=0
    sed -i "s|$1|$2|" "$scratch/whole/job.json"
    "$COALESCED" evaluate "$scratch/whole" --episodes 3 >"$scratch/words" 2>&1 </dev/null || code=$?
    cat "$scratch/words"
    [[ $code -eq $3 ]] && tail -1 "$scratch/words" | grep -qF "$4"
}
check "not evaluated with other spaces" refuses_evaluate worlds:Screens worlds:Corridor 78 "the environment has changed since"
check "nor with a class that is gone" refuses_evaluate worlds:Corridor worlds:Absent 78 \
    "/environment/class: worlds:Absent: AttributeError: module 'worlds' has no attribute"
unset PYTHONUNBUFFERED # what is printed comes late
check "what a class prints, and its threads, hide no failure" refuses_evaluate worlds:Absent worlds:Loud 78 \
    "worlds:Loud, evaluation: environment 0: making it: ValueError: the loud one fails"
world '"class": "worlds:Corridor"'
check "a policy of a corridor" plays whole
check "nor with one that fails in a step" refuses_evaluate worlds:Corridor worlds:StepRaises 78 \
    "coalesced: worlds:StepRaises, evaluation: environment 0: step: ValueError: the joint 4 came off ("
check "nor with one that ends Python" refuses_evaluate worlds:StepRaises worlds:StepExits 69 \
    "Python has ended with exit code 3"

# A fault within a running job costs the observer; the fifth in a row ends the job.
world '"class": "worlds:StepRaises"'
check "an exception that comes again and again" fails_with "died 5 times in a row" --set /supervise/restart=true
check "an import that takes longer than a silent start may" imports_for_long

finish
