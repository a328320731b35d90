# Sourced by the tests of trainers in Python, behind test/shell.bash and test/daemon/runs.bash: skips where PyTorch is not
# installed, goes to the folder of the classes, test/daemon/worlds, and has words for runs. A NAME is a run, $scratch/NAME.
#
#   images DATA                    the job learns from /data DATA; the class is trainer_data:Images
#   trains NAME [ARGUMENT]...      runs the job for $updates updates
#   same NAME NAME                 both logs have the same numbers
#   killed NAME COMMAND [ARGUMENT]...   runs the job; the worker whose command line has COMMAND is killed after the sixth
#                                  update
#   fails_with TEXT [ARGUMENT]...  a run of one trainer fails, and says TEXT
#   refuses NAME <CASES            a trainer of the run's job says why it does not take these classes (refusals.py)
#   clothes FOLDER                 makes a folder of FashionMNIST's files with the first 500 images of each; fails where the
#                                  files are not installed
#   $python                        the interpreter

# shellcheck disable=SC2154 # test/shell.bash makes the folder, and runs.bash has the jobs
python=$here/../../build/python-venv/bin/python
has_packages='import importlib.util as it, sys; sys.exit(not all(map(it.find_spec, ("torch", "torchvision", "zmq"))))'
if ! { [[ -x $python ]] && "$python" -c "$has_packages"; }; then
    skip "PyTorch or pyzmq is not installed (scripts/deps python)"
fi
python=$(cd "$(dirname "$python")" && pwd)/python
COALESCED=$(readlink -f "$COALESCED")
cd "$here/worlds"
export PYTHONDONTWRITEBYTECODE=1
updates=4

images() {
    cat >"$scratch/parameter-server.json" <<JSON
{"kind": "parameter-server", "device": "cpu", "transport": "inline", "seed": 3,
 "model": {"name": "resnet18", "classes": 10, "width": 8}, "loss": {"name": "cross_entropy"}, "data": $1,
 "trainers": {"count": 2, "batch": 8, "threads": 1, "class": "trainer_data:Images", "python": "$python"},
 "optimizer": {"lr": 0.0001, "momentum": 0.9}, "log": {"every": 1}, "supervise": {"hang_s": 60}}
JSON
}

trains() {
    local run=$scratch/$1
    rm -rf "$run"
    run_job parameter-server "$run" "$updates" "${@:2}" >"$run.out" 2>&1 || { cat "$run.out"; return 1; }
}

same() {
    diff <(numbers "$scratch/$1") <(numbers "$scratch/$2") | head -4
    [[ -n $(numbers "$scratch/$1") ]] && cmp -s <(numbers "$scratch/$1") <(numbers "$scratch/$2")
}

killed() {
    local run=$scratch/$1 job
    rm -rf "$run"
    run_job parameter-server "$run" "$updates" "${@:3}" >"$run.out" 2>&1 &
    job=$!
    wait_for_number "$run" 6
    pkill -9 -P "$(cat "$run/lock")" -f "$2" || true
    if ! wait "$job" || ! grep -q 'killed by signal 9' "$run.out"; then
        cat "$run.out"
        return 1
    fi
}

fails_with() {
    rm -rf "$scratch/wrong"
    if run_job parameter-server "$scratch/wrong" 2 --set /trainers/count=1 "${@:2}" >"$scratch/wrong.out" 2>&1 || ! grep -qF "$1" "$scratch/wrong.out"; then
        tail -3 "$scratch/wrong.out"
        return 1
    fi
}

clothes() {
    local source=/usr/share/datasets/fashion-mnist part
    [[ -d $source ]] || { echo "not run with FashionMNIST: $source is missing (scripts/deps data)"; return 1; }
    mkdir -p "$1"
    # The headers say 500 images of 28 x 28, and 500 labels.
    for part in train t10k; do
        {
            printf '\0\0\10\3\0\0\1\364\0\0\0\34\0\0\0\34'
            head -c $((16 + 500 * 28 * 28)) < <(gzip -dc "$source/$part-images-idx3-ubyte.gz") | tail -c +17
        } >"$1/$part-images-idx3-ubyte"
        {
            printf '\0\0\10\1\0\0\1\364'
            head -c $((8 + 500)) < <(gzip -dc "$source/$part-labels-idx1-ubyte.gz") | tail -c +9
        } >"$1/$part-labels-idx1-ubyte"
    done
}

refuses() {
    "$python" refusals.py "$scratch/$1"
}
