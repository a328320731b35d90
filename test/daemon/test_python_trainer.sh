#!/usr/bin/env bash
# Trainers in Python: the numbers of our own trainers, with one server and with two; classes of one's own; trainers and
# servers that die; the orders to stop; and what a wrong class, batch or model is told.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/runs.bash"

# shellcheck source=test/daemon/python_trainers.bash
source "$here/python_trainers.bash"

# alike NAME NAME: every number of both logs differs by less than 1e-4 of itself.
alike() {
    jq -e -n --slurpfile a <(numbers_as_json "$1") --slurpfile b <(numbers_as_json "$2") \
        '($a | length) > 0 and ($a | length) == ($b | length) and
         all(range($a | length); ($a[.] - $b[.] | fabs) <= 1e-4 * ($a[.] | fabs))' >/dev/null ||
        { diff <(numbers_as_json "$1") <(numbers_as_json "$2") | head -6; return 1; }
}

numbers_as_json() {
    jq -c 'select(.event | not) | del(.timing) | [.. | numbers] | .[]' "$scratch/$1/episodes.jsonl"
}

# As our own trainers, whose run is `ours`.
like_ours() {
    trains ours --set /trainers/class=null "$@" && trains theirs "$@" && alike ours theirs
}

# ---- the numbers ----
images '{"size": 16}'
check "random images: the losses of our own trainers" like_ours
check "mse, two servers" like_ours --set /loss/name=mse --set /server/count=2
# A step of a ResNet-50 this small moves its next loss by more than the order of sums may: 1e-3 between two instruction sets.
check "a ResNet-50, all but unmoved" like_ours --set /model/name=resnet50 --set /data/size=32 --set /optimizer/lr=1e-10 \
    --set /trainers/count=1
folder=$scratch/fashion-mnist
if clothes "$folder"; then
    gzip "$folder"/*
    images "{\"kind\": \"idx\", \"path\": \"$folder\", \"size\": 32, \"fit\": \"pad\", \"channels\": 1, \"mean\": [0.286],
             \"std\": [0.353], \"crop\": 2, \"flip\": true, \"limit\": 70}"
    epochs=(--set '/stop={"epochs": 2}' --set '/evaluation={"every": 1, "batch": 100}')
    check "cropped and mirrored clothes, with evaluations: the losses and hits of our own trainers" like_ours "${epochs[@]}"
    check "enlarged clothes in three channels" like_ours --set /trainers/count=1 --set /data/fit=resize --set /data/size=40 --set /data/channels=3
fi

# ---- a class of one's own ----
images '{"size": 16}'
learns() {
    trains stripes --set /trainers/class=batches:Stripes --set /trainers/batch=16 --set /optimizer/lr=0.02 \
        --set /stop/updates=25 &&
        jq -e -s 'map(select(.update).loss) | (.[-3:] | add / 3) < 0.4 and .[0] > 1.5' "$scratch/stripes/episodes.jsonl" >/dev/null
}
check "a class's own images are learned" learns
check "a part of it is frozen" trains frozen --set /trainers/count=1 --set /trainers/class=batches:Frozen --set /model/width=64 --set /trainers/options='{"size": 16}'
check "a round of the first one" trains first --set /server/round="first 1"
check "an asynchronous round" trains async --set /server/round="async 2"
check "a class's own model" trains own --set /trainers/count=1 --set /trainers/class=batches:Own --set /model/width=64 --set /trainers/options='{"size": 16}'

# ---- deaths ----
updates=24
check "a run that nothing disturbs" trains whole

check "a trainer is killed" killed trainer 'trainer --index 1'
check "a trainer is killed: the same numbers" same whole trainer
check "the server is killed" killed server 'pserver --index 0'
check "the server is killed: the same numbers" same whole server
check "with two servers, a trainer is killed" killed two 'trainer --index 2' --set /server/count=2
check "with two servers, a trainer is killed: the same numbers" same whole two

stops() {
    local run=$scratch/stopped job
    rm -rf "$run"
    run_job parameter-server "$run" 100000 --set /trainers/count=1 >"$run.out" 2>&1 &
    job=$!
    wait_for_number "$run" 2
    kill -TERM "$(cat "$run/lock")"
    if ! wait "$job" || ! jq -e -s '.[-1] | .event == "stopped"' "$run/episodes.jsonl" >/dev/null; then
        cat "$run.out"
        return 1
    fi
}
check "SIGTERM ends the job" stops
resumes() {
    run_job parameter-server "$scratch/stopped" "$(($(last_number "$scratch/stopped") + 2))" --resume --set /trainers/count=1 >/dev/null 2>&1
}
check "the job goes on from there" resumes
# The teardown of the modules would take longer than a trainer may be silent; an exit handler runs.
ends_before_the_interpreter() {
    SLOW_MODULE=trainer_data SLOW_IMPORT=0 SLOW_MARK=$scratch/mark \
        trains slow --set /trainers/count=1 --set /trainers/class=slow:Images --set /supervise/hang_s=10 &&
        ! grep killed "$scratch/slow.out" && grep -qx exit "$scratch/mark"
}
check "a job ends before the interpreter does" ends_before_the_interpreter
check "no trainer is left" leaves_nobody "trainer.py --role"

# ---- what is wrong ----
check "a module that is not there" fails_with "nowhere:Batches: constructing it: ModuleNotFoundError: No module named 'nowhere'" \
    --set /trainers/class=nowhere:Batches
wrong() {
    check "$1" fails_with "$2" --set /supervise/restart=false --set /trainers/class=batches:Wrong --set "/trainers/options={\"what\": \"$1\"}" "${@:3}"
}
wrong raises "batches:Wrong: batch 0: OSError: no batch today"
check "wrong batches and models are told" refuses whole <<'CASES'
{"trainers/class": "batches:Wrong", "trainers/options": {"what": "none"}}	batches:Wrong: batch 0: it is a NoneType: expected a pair of images and labels
{"trainers/class": "batches:Wrong", "trainers/options": {"what": "rank"}}	expected float32 (n, channels, height, width) and (n,)
{"trainers/class": "batches:Wrong", "trainers/options": {"what": "label"}}	expected at least one, each a whole number in 0..9
{"trainers/class": "batches:Wrong", "trainers/options": {"what": "dtype"}}	each a whole number in 0..9
{"trainers/class": "batches:Wrong", "trainers/options": {"what": "size"}}	batches:Wrong: batch 0: it has 7 samples: expected /trainers/batch, 8
{"trainers/class": "batches:Wrong", "trainers/options": {"what": "nan"}}	batches:Wrong: batch 0: the loss is nan: expected a finite number
{"trainers/class": "batches:WrongModel", "trainers/options": {"what": "module"}}	batches:WrongModel: model gave a NoneType: expected a torch.nn.Module
{"trainers/class": "batches:WrongModel", "trainers/options": {"what": "width"}, "model/width": 32}	batches:WrongModel: model: bn1.weight is (64,): expected (32,) of /model
{"trainers/class": "batches:WrongModel", "trainers/options": {"what": "lacks"}, "model/width": 64}	batches:WrongModel: model: fc.weight is missing: expected (10, 512) of /model
{"trainers/class": "batches:WrongModel", "trainers/options": {"what": "surplus"}, "model/width": 64}	batches:WrongModel: model: scale, (3,), is not in /model
{"trainers/class": "batches:WrongModel", "trainers/options": {"what": "buffer"}, "model/width": 64}	batches:WrongModel: model: fc.bias is a buffer: expected a parameter, as in /model
{"trainers/class": "batches:WrongModel", "trainers/options": {"what": "order"}, "model/width": 64}	batches:WrongModel: model: fc.bias comes where /model has fc.weight: expected PyTorch's order
{"trainers/class": "batches:Stripes", "trainers/options": {"width": 4}}	unexpected keyword argument 'width'
CASES
wrong model "batches:WrongModel: model: fc.weight is (11, 512): expected (10, 512) of /model" --set /trainers/class=batches:WrongModel \
    --set /model/width=64
ends_at_once() {
    ! grep -q "takes its place" "$scratch/wrong.out"
}
check "another model: there is no second try" ends_at_once
if [[ -d $folder ]]; then
    check "held-out data that the class does not have" fails_with "batches:Stripes: expected a method held_out, or null for /evaluation/every" \
        --set /trainers/class=batches:Stripes --set "/data={\"kind\": \"idx\", \"path\": \"$folder\", \"size\": 32, \"fit\": \"pad\"}"
fi
check "shared memory" fails_with "trainers in Python have no shared memory with the servers" --set /transport=shared
check "an interpreter that is not there" fails_with "nowhere3: expected a Python interpreter" --set /trainers/python=nowhere3
printf '#!/bin/sh\nexec /usr/bin/python3 -I -S "$@"\n' >"$scratch/bare"
chmod +x "$scratch/bare"
check "an interpreter without the packages" fails_with "expected the packages pyzmq, numpy, torch and torchvision" \
    --set /trainers/python="$scratch/bare"
mkdir "$scratch/cifar"
for name in data_batch_{1,2,3,4,5} test_batch; do
    head -c $((20 * 3073)) /dev/zero >"$scratch/cifar/$name.bin"
done
check "data that the class does not read" fails_with "expected synthetic or idx, or a class of one's own" \
    --set "/data={\"kind\": \"cifar\", \"path\": \"$scratch/cifar\", \"size\": 32}"
check "no trainer is left" leaves_nobody "trainer.py --role"

finish
