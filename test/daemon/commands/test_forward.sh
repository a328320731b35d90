#!/usr/bin/env bash
# coalesced forward: every number of a log is in MLflow's file store, once, while the run goes on, after the command was
# killed, and when the run was resumed. Faults are sentences.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"

[[ -z ${SAN:-} ]] || skip "the command is Python's"
python=$here/../../../build/mlflow-venv/bin/python
[[ -x $python ]] || skip "MLflow is not installed (scripts/deps mlflow)"
export PYTHONDONTWRITEBYTECODE=1 XDG_RUNTIME_DIR=$scratch
# Its newest versions ask for a word before they write files.
export MLFLOW_TRACKING_URI=file://$scratch/store MLFLOW_ALLOW_FILE_STORE=true
command=$here/../../../scripts/coalesced-forward
run=$scratch/pole

forwards() {
    "$python" "$command" "$@" >"$scratch/words" 2>&1 || { cat "$scratch/words"; return 1; }
}
fails() { # CODE WORDS ARGUMENT...
    local code=0
    "$python" "$command" "${@:3}" >"$scratch/words" 2>&1 || code=$?
    cat "$scratch/words"
    [[ $code -eq $1 ]] && grep -qF -- "$2" "$scratch/words"
}
# trains STEPS [ARGUMENT]...: the run ends, or goes on to, so many steps.
trains() {
    "$COALESCED" run "$scratch/job.json" --run-dir "$run" --set "/stop/steps=$1" "${@:2}" >"$scratch/words" 2>&1 || {
        cat "$scratch/words"
        return 1
    }
}
cat >"$scratch/job.json" <<'JSON'
{"kind": "reinforce", "environment": {"name": "CartPole-v1"}, "observers": {"count": 0, "environments": 4},
 "algorithm": {"name": "ppo", "n_steps": 32}, "evaluation": {"every": 10, "episodes": 3}, "checkpoint": {"every": 10}}
JSON
# has_all STATUS: MLflow has one run, whose numbers and steps are those of the log.
has_all() {
    "$python" - "$run" "$1" <<'PYTHON'
import json
import math
import sys

import mlflow

run, status = sys.argv[1:]
lines = [line for line in map(json.loads, open(f"{run}/episodes.jsonl")) if "event" not in line]
[there] = mlflow.search_runs(experiment_names=["poles"], output_format="list")
assert there.info.status == status and there.info.run_name == "pole", there.info
assert there.data.params["algorithm.n_steps"] == "32" and there.data.params["environment.name"] == "CartPole-v1"
for name, of in {"reward": lambda line: line["reward"], "eval.mean_reward": lambda line: line.get("eval", {}).get("mean_reward")}.items():
    expected = [(line["total_timesteps"], of(line)) for line in lines if of(line) is not None]
    found = [(one.step, one.value) for one in mlflow.MlflowClient().get_metric_history(there.info.run_id, name)]
    assert expected and found == expected, (name, len(expected), len(found))
assert "std" not in there.data.metrics and all(map(math.isfinite, there.data.metrics.values()))
PYTHON
}

check "a run" trains 2560
check "is forwarded" forwards "$run" --mlflow poles
check "all of it is there" has_all FINISHED
check "forwarded again" forwards "$run/" --mlflow poles
check "it is there once" has_all FINISHED
# The command waits for more; it is killed, and another goes on.
check "the run goes on" trains 3840 --resume
sed -i '/"event":"finished"/d' "$run/episodes.jsonl"
"$python" "$command" "$run" --mlflow poles >"$scratch/waits" 2>&1 &
waiting=$!
has_all_soon() {
    local end=$((SECONDS + 60))
    until has_all RUNNING 2>/dev/null; do
        [[ $SECONDS -lt $end ]] || { has_all RUNNING; return 1; }
        sleep 0.5
    done
}
check "what a run adds comes by itself" has_all_soon
kill -9 "$waiting"
wait "$waiting" || true
check "a run that was resumed" trains 5120 --resume
check "is forwarded by another command" forwards "$run" --mlflow poles
check "all of it is there, once" has_all FINISHED

check "neither side" fails 64 "expected --mlflow EXPERIMENT or --wandb PROJECT" "$run"
check "no run" fails 66 "nowhere/episodes.jsonl" "$scratch/nowhere" --mlflow poles
check "a package that is not there" fails 69 "expected the package wandb (pip install wandb)" "$run" --wandb poles
mkdir "$scratch/other" && echo '{"event":"start"}' >"$scratch/other/episodes.jsonl"
check "a log of something else" fails 65 "expected a log that begins with a run's start" "$scratch/other" --mlflow poles
export MLFLOW_TRACKING_URI=http://127.0.0.1:9 MLFLOW_HTTP_REQUEST_MAX_RETRIES=0
check "a server that is not there" fails 69 "coalesced: Mlflow: " "$run" --mlflow poles

finish
