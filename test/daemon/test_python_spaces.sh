#!/usr/bin/env bash
# Environments in Python with nested spaces, with images of several forms, and with several agents: they train, with the
# same numbers however they are spread, when an observer is killed, and when the run is resumed. The commands evaluate,
# play and export take their policies. What the program cannot take is named.
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

# world AGENTS ENVIRONMENT [POLICY]: the latter two are members of the job's objects. Sets $episodes: convolutions are dear.
world() {
    local epochs=10
    episodes=20
    [[ ${3:-} != *cnn* ]] || epochs=1 episodes=10
    rollout_rows=$((4 * 16 * $1))
    cat >"$scratch/reinforce.json" <<JSON
{"kind": "reinforce", "device": "cpu", "observers": {"count": 1, "environments": 4},
 "environment": {"python": "$python", $2}, "algorithm": {"name": "ppo", "n_steps": 16, "n_epochs": $epochs},
 "policy": {"hidden": [16]${3:-}},
 "evaluation": {"every": $((episodes / 2)), "episodes": 5, "steps": 80}, "log": {"every": 1}, "supervise": {"hang_s": 15}}
JSON
}

# The last evaluation of the log, as `evaluate` prints it.
logged_evaluation() {
    sed -n 's/.*Evaluation: \([-0-9.]*\) +- \([0-9.]*\).*/Mean reward: \1\tStandard deviation: \2/p' "$scratch/whole.out" | tail -1
}
evaluates() {
    "$COALESCED" evaluate "$scratch/whole" --episodes 5 >"$scratch/evaluated" 2>"$scratch/words" || { cat "$scratch/words"; return 1; }
    cat "$scratch/evaluated"
    logged_evaluation
    [[ -n $(logged_evaluation) ]] && grep -qF "$(logged_evaluation)" "$scratch/evaluated"
}

predicts() { # CLASS, with a quote behind it
    "$python" predicts.py "$scratch/whole" "${1%\"}"
}

# ---- every space, and several agents ----
while IFS='|' read -r title agents environment policy; do
    [[ -z ${SAN:-} || $title == "parts" || $title == "several agents" ]] || continue
    world "$agents" "$environment" "$policy"
    check "$title" plays whole
    [[ $title != *parts || $title == *frames* ]] || check "$title: load_policy takes the observations" predicts "${environment##*:}"
    check "$title: evaluate finds the log's evaluation again" evaluates
    check "$title: two observers of two groups" same_numbers --set /observers='{"count": 2, "environments": 2, "groups": 2}'
    [[ $title != "parts of a vector" ]] || continue # it saves no states
    check "$title: resumed" is_resumed
    [[ $title == "parts" || $title == "several agents" ]] || continue
    check "$title: undisturbed" with_episodes 40 plays whole
    check "$title: an observer is killed" kills_observers 1 40
    check "$title: and leaves no trace" same whole killed
done <<'WORLDS'
parts|1|"class": "nested:Parts"
parts of a vector|1|"class": "nested:some_walks"
images among parts|1|"class": "nested:Mixed"|, "network": "cnn"
frames of parts|1|"class": "nested:Parts", "frames": 3
choices|1|"class": "nested:Choices"
forces|1|"class": "nested:Forces"
channels first|1|"class": "nested:ChannelsFirst"|, "network": "cnn"
several agents|3|"pettingzoo": "nested:chase"
keyword arguments|1|"class": "nested:any_options", "options": {"render_mode": null}
several agents, metrics|3|"pettingzoo": "nested:measured"
several agents, frames|3|"pettingzoo": "nested:chase", "frames": 2
agents that take turns|2|"pettingzoo": "nested:turns"
WORLDS

# An image is the same in each form.
world 1 '"class": "nested:Picture"' ', "network": "cnn"'
check "channels last" plays whole
for form in ChannelsFirst NoChannels; do
    world 1 "\"class\": \"nested:$form\"" ', "network": "cnn"'
    check "$form is the same" same_numbers
done
# A vector of Parts is stepped as single ones are.
world 1 '"class": "nested:Parts"'
check "single ones" plays whole
world 1 '"class": "nested:Walks"'
check "a class of a vector is the same" same_numbers

# A game of lives without ALE: flags, FIRE, rewards and frames.
plays_lives() {
    PYTHONPATH=$here/../../worker/python "$python" atari_stub.py
}
check "lives" plays_lives

# ---- the commands ----
world 1 '"class": "nested:Walk"'
check "a run to watch" plays whole
plays_for_people() {
    "$COALESCED" play "$scratch/whole" --episodes 2 >"$scratch/played" 2>"$scratch/words" &&
        grep -qP '^Episode 2\tReward: ' "$scratch/played" &&
        [[ $(cat "$scratch/words") == "$scratch"/whole/checkpoints/00000020 ]]
}
draws() {
    "$COALESCED" play "$scratch/whole" --render "$scratch/film.$1" && file "$scratch/film.$1" | grep -q "$2"
}
shows_text() {
    "$COALESCED" play "$scratch/whole" --render text >"$scratch/played" && grep -q '^\.*@\.*$' "$scratch/played"
}
fails() {
    local code=0
    "${@:3}" >"$scratch/words" 2>&1 || code=$?
    cat "$scratch/words"
    [[ $code -eq $1 ]] && grep -qF "$2" "$scratch/words"
}
check "play" plays_for_people
if command -v file >/dev/null; then
    check "a film" draws gif 'GIF image data, version 89a, 72 x 8'
    check "a picture" draws png 'PNG image data, 72 x 8'
else
    echo "skipped: there is no program file"
fi
check "text" shows_text
# A fault of render is told; and so is a Python that ends, also where a process of the user's holds its socket.
breaks() {
    sed -i "s|nested:[A-Za-z]*|nested:$1|" "$scratch/whole/job.json"
    fails "$2" "$3" "$COALESCED" play "$scratch/whole" "${@:4}"
}
check "a render that fails" breaks RenderRaises 78 "nested:RenderRaises, evaluation: environment 0: render: OSError: no screen" \
    --render "$scratch/no.gif"
check "a render that gives something else" breaks RenderGives 65 "render returned no str, and no uint8 array" \
    --render "$scratch/no.gif"
check "no such pictures" breaks Corner 69 "nested:Corner draws no rgb_array: its metadata['render_modes'] is []" \
    --render "$scratch/no.gif"
check "a Python that is killed" breaks Killed 69 "Python has ended with signal 9"
check "a close that hangs" breaks CloseHangs 0 "Episode 1"
world 3 '"pettingzoo": "nested:chase"'
check "several agents to watch" plays several
plays_several() {
    "$COALESCED" play "$scratch/several" --render "$scratch/several.gif" | grep -qP '^Episode 1\tReward: '
}
check "play of several agents" plays_several
sed -i "s|nested:[A-Za-z]*|nested:Walk|" "$scratch/whole/job.json"
is_exported_without_python() {
    "$COALESCED" export "$scratch/whole" --onnx "$scratch/policy.onnx" && [[ -s $scratch/policy.onnx ]]
}
sed -i 's|"python": "[^"]*"|"python": "/bin/false"|' "$scratch/whole/job.json"
check "export needs no Python: the checkpoint knows the spaces" is_exported_without_python
check "evaluate with no interpreter" fails 69 "Python has ended with exit code 1" "$COALESCED" evaluate "$scratch/whole"
sed -i "s|\"python\": \"[^\"]*\"|\"python\": \"nowhere3\"|" "$scratch/whole/job.json"
check "nor with none" fails 66 "nowhere3: expected a Python interpreter" "$COALESCED" play "$scratch/whole"
sed -i "s|\"python\": \"[^\"]*\"|\"python\": \"$python\"|; s|nested:Walk|nested:Parts|" "$scratch/whole/job.json"
check "evaluate notices that the class has changed" fails 78 \
    "the environment has changed since: its observation is float32 (23): it was float32 (9)" "$COALESCED" evaluate "$scratch/whole"
# What a class sees follows the environment's variable ELASTIC.
world 1 '"class": "nested:Elastic"'
check "a run of a class that will change" plays whole
check "so does --resume" fails 78 "the environment has changed since: its action's element 0 has 3 choices: it had 2" \
    env ELASTIC=3 "$COALESCED" run "$scratch/reinforce.json" --run-dir "$scratch/whole" --resume --set /stop/steps=3000

# ---- what cannot be taken: at once, with a reason ----
faulty_stop='{"steps": 1000}'
while IFS='|' read -r source name phrase; do
    world 1 "\"$source\": \"nested:$name\""
    check "$name" fails_with "$phrase"
done <<'FAULTS'
class|Mixed|/policy/network: expected "cnn", got "mlp": the observation's part camera is an image among other parts
class|SameNames|nested:SameNames: the observation space is Dict(
class|LongName|expected names of parts of 1..63 bytes, and not 'xxx
class|Endless|nested:Endless: the observation's part words: its space is Text(
class|ForgetsPart|nested:ForgetsPart: environment 0: its observation has no part flags
class|BadPart|nested:BadPart: environment 0: its observation has a part where.speed that has the shape (3,), expected (2, 2)
class|OldGym|nested:OldGym: expected a gymnasium.Env, whose reset takes a seed; shimmy
class|walks_without_count|nested:walks_without_count: it returned a VectorEnv: expected that it has an argument num_envs
class|chase|nested:chase: an environment of PettingZoo: expected it under "pettingzoo" in place of "class"
pettingzoo|unequal|the agents runner_0 and runner_1 have different spaces, Discrete(2) and Discrete(3)
pettingzoo|Walk|nested:Walk: expected a pettingzoo.ParallelEnv or AECEnv
class|MaskForgets|nested:MaskForgets: environment 0: its action_mask has no part 1.turn
class|MaskShort|nested:MaskShort: environment 0: its action_mask has 1 numbers in part 1.turn: expected 3
pettingzoo|late|nested:late: environment 0: reset begins with the agents ['runner_0', 'runner_1']: expected all of
pettingzoo|nothing|/environment/pettingzoo: nested:nothing: AttributeError: module 'nested' has no attribute 'nothing'
FAULTS
world 1 '"class": "nested:Mixed", "frames": 2' ', "network": "cnn"'
check "frames of images among parts" fails_with "/environment/frames: expected 1, got 2: its observation has parts, and an image among them"
world 1 '"gymnasium": "ALE/Nothing-v5"'
check "Atari without ale_py" fails_with "No module named 'ale_py': expected the package ale_py"
check "no process of Python is left" leaves_nobody "observer.py --role"
# What the user's code has forked ends by itself.
leaves_no_command() {
    local tries=100
    until leaves_nobody command_environments.py; do
        ((--tries > 0)) || return 1
        sleep 0.1
    done
}
check "nor one of a command" leaves_no_command

finish
