#!/usr/bin/env bash
# coalesced try: good plug-ins and the built-in environments keep environment.h; of each fault of environment_broken.c it
# names the environment, the call and the fault. Nothing hangs.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"

good=$BUILD/test/preload/environment_toy.so
broken=$BUILD/test/preload/environment_broken.so

# try_fails CODE PHRASE ARG...: the command fails with the code, and its last line has the phrase.
try_fails() {
    local expected=$1 phrase=$2 code=0 output
    shift 2
    output=$("$COALESCED" try "$@" --limit-s "$limit_s" 2>&1) || code=$?
    [[ $code == "$expected" && $(tail -1 <<<"$output") == *"$phrase"* ]] || { echo "$code: $(tail -1 <<<"$output")"; return 1; }
}
limit_s=60

# ---- what is good ----
keeps_the_contract() {
    "$COALESCED" try "$@" >"$scratch/good" 2>&1 && ! grep -v '^  ok\|^  --\|^      \|^[A-Za-z0-9-]*: [0-9]' "$scratch/good"
}
check "a good plug-in keeps the contract in all its environments" keeps_the_contract "$good"
check "all fifteen environments were tried" test "$(grep -c '^[A-Z][a-z]*-v0: ' "$scratch/good")" == 15
for name in CartPole-v1 Acrobot-v1 MountainCar-v0 MountainCarContinuous-v0 Pendulum-v1 CartPoleNoVel-v1 PendulumNoVel-v1; do
    check "$name keeps the contract" keeps_the_contract "$name" --steps 300
done
check "a plug-in without faults is good, though it has the means" keeps_the_contract "$broken" --name none

# ---- files and tables ----
check "a file that is not there" try_fails 66 "nofile.so: No such file or directory" nofile.so
check "a name that is none" try_fails 66 "MountainCarContinuousNoVel-v0, PendulumNoVel-v1)" CartPole-v2
check "a file that is no shared object" try_fails 78 "cannot be loaded" "$0"
check "a shared object that is no plug-in" try_fails 78 "has no function environment_plugin()" \
    "$BUILD/test/preload/plugin_tiny.so"
check "an environment that the plug-in lacks" try_fails 78 "has no environment Nothing-v0" "$good" --name Nothing-v0

table_fault() {
    local fault=$1 code=$2 phrase=$3
    BROKEN_TABLE=$fault try_fails "$code" "$phrase" "$broken" --name none
}
check "another version" table_fault version 78 "was built for version 3 of environment.h: expected version 2"
is_taken() {
    BROKEN_TABLE=older keeps_the_contract "$broken" --name none
}
check "version 1, which knows no parts" is_taken
check "another size" table_fault size 78 "has a struct environment_plugin of size"
check "no names" table_fault names 78 "has no names: expected at least one environment"
check "no table" table_fault table 78 "environment_plugin() returned NULL"
check "a crash while it is loaded" table_fault crashes 70 "in dlopen or environment_plugin(): crashed with signal"
for call in open close reset step; do
    check "no $call" table_fault $call 78 "has no function $call"
done
check "save without load" table_fault load 78 "has save or load: expected both or none"

# ---- faults of environments: name, exit code, and a part of the last line ----
while IFS='|' read -r name code phrase; do
    check "$name" try_fails "$code" "$phrase" "$broken" --name "$name" --steps 600
done <<'FAULTS'
open-fails|65|open of 1 environments failed: the licence has expired
open-fails-silently|65|returned 1 without a sentence in error
open-without-spec|65|open succeeded without a spec
open-takes-any-name|65|open with an unknown name succeeded
open-takes-any-option|65|open with an unknown option succeeded
open-refuses-silently|65|without a sentence in error
open-crashes|70|in open of 1 environments: crashed with signal
error-overflows|65|wrote beyond the 400 bytes of its error
spec-size|65|expected sizeof(struct environment_spec)
spec-limits|65|limits is 0x40
spec-agents|65|agents is 0: expected 1..1024
observation-rank|65|observation.rank is 4: expected at most 3
observation-shape|65|observation.shape[0] is 0
observation-dtype|65|observation.dtype is 2
observation-bounds|65|expected low < high
action-rank|65|action.rank is 2
action-without-choices|65|action.choices is NULL
action-no-choice|65|action.choices[0] is 0
action-dtype|65|action.dtype is 77
action-infinite|65|expected finite ones
action-reversed|65|low[0] = 9 and high[0] = -9
mask-without-choices|65|has_mask is 1
metric-without-name|65|metrics[0] has no name
metric-long-name|65|metrics[0] has a name of more than 63 bytes
metric-twice|65|metrics[1] has the name of metrics[0]
observation-nan|65|environment 0: element 0 of its observation is nan: expected a finite number
observation-out-of-bounds|65|is 10: expected -9..9
observation-unwritten|65|did not write element 0 of the observation
reward-infinite|65|environment 0: element 0 of its reward is inf
part-unwritten|65|did not write element 0 of the part place of environment
part-out-of-bounds|65|element 0 of its place is 10: expected -9..9
reward-unwritten|65|did not write element 0 of the reward
flags-unknown|65|bits without a meaning
flags-unwritten|65|did not write the flags
flags-restarted|65|say RESTARTED, and neither
flags-life|65|its flags say ABSENT, and LIFE_LOST
flags-absent|65|environment 0: no agent is present
mask-empty|65|allows no choice of element 0
mask-two|65|expected 0 or 1
metric-nan|65|environment 4: element 0 of its metrics is nan
agent-stays|65|in the step after its end, while others go on: expected ABSENT
writes-before|65|wrote in front of the buffer
writes-behind|65|wrote behind the buffer
writes-next-row|65|which was not among its environments
writes-action|65|changed the buffer `action`
writes-which|65|changed the list `which`
reset-writes-reward|65|changed the buffer `reward`
reset-resets-all|65|the bits depend on no count
draws-clock|65|a reset depends on its seed alone
draws-second|65|equal seeds
draws-rand|65|a reset depends on its seed alone
depends-on-neighbour|65|the bits depend on no count
depends-on-row|65|the bits depend on no count
depends-on-count|65|the bits depend on no count
depends-on-past|65|a reset depends on its seed alone
depends-on-calls|65|a reset depends on its seed alone
shares-state|65|a reset depends on its seed alone
always-fails|65|episodes that ended has failed (FAILED): nothing can be learned
save-forgets|65|a saved state continues with the same bits
save-grows|65|with so much room
save-overflows|65|wrote beyond its 17 bytes
save-empty|65|expected save = NULL
load-takes-anything|65|load of 0 bytes that are no state succeeded
load-shows-nothing|65|did not write element 0 of the observation
render-moves|65|render draws, and changes nothing
render-not-utf8|65|is not UTF-8
step-fails|65|failed: the joint 4 came off
step-fails-silently|65|without a sentence in error
step-crashes|70|in step of 5 environments: crashed with signal
step-aborts|70|crashed with signal 6
step-exits|70|ended the process with exit status 3
reset-crashes|70|in reset of 5 environments: crashed with signal
close-crashes|70|in close: crashed with signal
FAULTS

# ---- what is no breach ----
warns() {
    "$COALESCED" try "$broken" --name "$1" >"$scratch/warned" 2>&1 && grep -q "$2" "$scratch/warned"
}
check "what it prints" warns prints '  !!  it prints on standard output, where a run has its log: "hello from the joint"$'
[[ -n ${SAN:-} ]] || # a sanitizer's allocator counts nothing
    check "what it keeps" warns leaks '  !!  it keeps 112 bytes more with each step of 256 environments'
check "nothing of a good one" test -z "$(grep '!!' "$scratch/good")"

# ---- what does not come back ----
limit_s=1
check "an open that hangs" try_fails 70 "in open of 1 environments: did not come back within 1 s" "$broken" --name open-hangs
check "a step that hangs" try_fails 70 "in step of 5 environments: did not come back within 1 s" "$broken" --name step-hangs
check "a file that hangs while it is loaded" table_fault hangs 70 "in dlopen or environment_plugin(): did not come back"

finish
