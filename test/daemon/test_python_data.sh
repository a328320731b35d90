#!/usr/bin/env bash
# A class's own data, /data/kind "class": its epochs, evaluations and best checkpoint; deaths and resumes; `coalesced
# evaluate`; Datasets of PyTorch and torchvision; and what is said of wrong sizes and samples.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/runs.bash"
# shellcheck source=test/daemon/python_trainers.bash
source "$here/python_trainers.bash"

images '{"kind": "class", "size": 16}'
class() {
    sed -i "s/\"class\": \"[^\"]*\"/\"class\": \"$1\"/; s/\"batch\": 8/\"batch\": 4/" "$scratch/parameter-server.json"
}
class batches:Sized
epochs=(--set '/stop={"epochs": 6}' --set /optimizer/schedule=linear --set /checkpoint/best=true)

# holds NAME FILTER: the lines of the run's log are as the filter of jq says, which gets an array of them.
holds() {
    jq -e -s "map(select(.event | not)) | $2" "$scratch/$1/episodes.jsonl" >/dev/null ||
        { cut -c 1-150 "$scratch/$1/episodes.jsonl"; return 1; }
}

# ---- a class that says its size: 36 samples for 2 trainers with batches of 4, and 11 held out ----
check "a job ends after its epochs" trains whole "${epochs[@]}"
check "an epoch is 4 updates" holds whole 'map(select(.epoch)) | map(.update) == [4, 8, 12, 16, 20, 24]'
check "each epoch is evaluated on all that is held out" holds whole 'map(select(.epoch)) | all(.evaluated == 11 and .test_loss > 0)'
check "the rate falls to the last epoch" holds whole '.[-2] | .update == 24 and (.lr * 24 / 0.0001 - 1 | fabs) < 1e-9'
the_best() {
    local best
    best=$(jq '.accuracy' "$scratch/whole/checkpoints/best/manifest.json")
    holds whole "map(select(.epoch).accuracy) | max == $best"
}
check "the best checkpoint is the most accurate" the_best

# like_the_log NAME [ARGUMENT]...: `evaluate` of the run's newest checkpoint prints the log's last numbers.
like_the_log() {
    local accuracy loss line
    line=$(jq -r -s 'map(select(.epoch)) | .[-1] | "\(.accuracy * 100) \(.test_loss) \(.correct) \(.evaluated)"' "$scratch/$1/episodes.jsonl")
    read -r accuracy loss line <<<"$line"
    diff <(printf 'Accuracy: %.2f %% (%s)\tLoss: %.4f\n' "$accuracy" "${line/ / of }" "$loss") <("$COALESCED" evaluate "$scratch/$1" "${@:2}" 2>/dev/null)
}
check "evaluate prints what the run has measured" like_the_log whole
check "two servers make the same numbers" trains two "${epochs[@]}" --set /server/count=2
check "two servers make the same numbers: they are the same" same whole two
check "an asynchronous round has epochs" trains async "${epochs[@]}" --set /server/round="async 2" --set '/stop={"epochs": 1}'
check "an asynchronous epoch has an update for each batch" holds async 'map(select(.epoch)) | map(.update) == [8]'
check "a class may say no size" trains sizeless --set /trainers/class=batches:Stripes
check "a class that says no size has no epochs" holds sizeless 'length == 4 and all(.update)'

# ---- deaths ----
check "a trainer is killed" killed trainer 'trainer --index 2' "${epochs[@]}"
check "a trainer is killed: the same numbers" same whole trainer
# resumes NAME N: a run of N updates goes on to the end of the epochs.
resumes() {
    local run=$scratch/$1
    rm -rf "$run"
    if ! run_job parameter-server "$run" "$2" >"$run.out" 2>&1 ||
        ! run_job parameter-server "$run" 0 --resume --set '/stop={"epochs": 6}' >>"$run.out" 2>&1; then
        cat "$run.out"
        return 1
    fi
}
check "a run without a break" trains steady --set '/stop={"epochs": 6}'
check "a run goes on in the middle of an epoch" resumes broken 10
check "a run goes on in the middle of an epoch: the same numbers" same steady broken
check "a run goes on at an epoch's end" resumes ended 8
check "a run goes on at an epoch's end: the same numbers" same steady ended
grown() {
    sed 's/train=36/train=44/' batches.py >"$scratch/batches.py"
    cd "$scratch"
    if run_job parameter-server "$scratch/broken" 0 --resume --set '/stop={"epochs": 9}' >"$scratch/grown.out" 2>&1 ||
        ! grep -qE 'trainer [12] has 44 training and 11 held-out samples: expected 36 and 11, as the checkpoint has' "$scratch/grown.out"; then
        cat "$scratch/grown.out"
        return 1
    fi
}
check "a class that has grown since the checkpoint" grown

# ---- Datasets ----
class datasets:Numbers
epochs=(--set '/stop={"epochs": 3}')
check "a Dataset's samples" trains dataset "${epochs[@]}"
check "a Dataset's samples: shuffled by the loader's formula" trains formula "${epochs[@]}" --set /trainers/class=datasets:NumbersByStep
check "a Dataset's samples: the same numbers" same dataset formula
check "the first samples alone" trains limit "${epochs[@]}" --set /trainers/count=1 --set /data/limit=16
check "the first samples alone: epochs of 4" holds limit 'map(select(.epoch)) | map(.update) == [4, 8, 12]'
check "evaluate of a Dataset" like_the_log dataset
check "a function that splits at random" trains split "${epochs[@]}" --set /trainers/class=datasets:split
check "a function that splits at random: all of it" holds split 'map(select(.epoch)) | map(.evaluated) == [9, 9, 9]'
check "a function that splits at random: evaluate" like_the_log split
epochs=(--set '/stop={"epochs": 5}' --set /trainers/class=datasets:Blobs)
check "a Dataset with random noise" trains noise "${epochs[@]}"
check "a Dataset with random noise: a trainer is killed" killed noisy 'trainer --index 2' "${epochs[@]}"
check "a Dataset with random noise: the same numbers" same noise noisy
check "a Dataset with random noise: evaluate" like_the_log noise
epochs=(--set '/stop={"epochs": 2}' --set /trainers/count=1)
check "torchvision's FakeData" trains fake "${epochs[@]}" --set /trainers/class=torchvision.datasets:FakeData \
    --set '/trainers/options={"size": 24, "image_size": [3, 16, 16]}'
check "torchvision's FakeData: nothing is held out" holds fake 'map(select(.epoch)) | map([.update, .evaluated]) == [[6, 0], [12, 0]]'
folder=$scratch/FashionMNIST/raw # as torchvision has them
if clothes "$folder"; then
    keys='"size": 28, "channels": 1, "mean": [0.286], "std": [0.353], "limit": 64'
    epochs+=(--set /evaluation/batch=200)
    check "torchvision's FashionMNIST" trains torchvision "${epochs[@]}" --set "/data={\"kind\": \"class\", $keys}" \
        --set /trainers/class=torchvision.datasets:FashionMNIST --set "/trainers/options={\"root\": \"$scratch\"}"
    check "the files of FashionMNIST" trains files "${epochs[@]}" --set "/data={\"kind\": \"idx\", \"path\": \"$folder\", $keys}" \
        --set /trainers/class=trainer_data:Images
    check "torchvision's FashionMNIST: the numbers of the files" same torchvision files
fi

# ---- what is wrong ----
images '{"kind": "class", "size": 16}'
class batches:Sized
# wrong NAME TEXT OPTIONS [ARGUMENT]...
wrong() {
    check "$1" fails_with "$2" --set /supervise/restart=false --set "/trainers/options=$3" "${@:4}"
}
both=(--set /trainers/count=2 --set '/stop={"epochs": 1}')
different() {
    fails_with "held-out samples: expected" "${both[@]}" --set '/trainers/options={"other": 1}' &&
        grep -qE 'server 0 answered: trainer [12] has (36|40) training and 11 held-out samples: expected (36|40) and 11, as trainer [12] has' \
            "$scratch/wrong.out" && ! grep -q "takes its place" "$scratch/wrong.out"
}
check "trainers that say different numbers" different
wrong "too few samples" "7 training samples: one step of 2 trainers with batches of 4 takes 8" '{"train": 7}' "${both[@]}"
# Either trainer may be the first.
too_short() {
    fails_with "samples: expected" "${both[@]}" --set /supervise/restart=false --set '/trainers/options={"short": 1}' &&
        grep -qE 'held_out: share (0 of 2 has 4 samples: expected 5|1 of 2 has 5 samples: expected 6) of held_out_size, 11' \
            "$scratch/wrong.out"
}
check "a share that is too short" too_short
nothing_held_out() {
    ! "$COALESCED" evaluate "$scratch/fake" >"$scratch/wrong.out" 2>&1 &&
        grep -qF "torchvision.datasets:FakeData: nothing is held out to evaluate on" "$scratch/wrong.out"
}
check "evaluate without held-out samples" nothing_held_out
wrong "a sample that raises" "datasets:Wrong: batch 0: OSError: no sample today" '{"what": "raises"}' \
    --set /trainers/class=datasets:Wrong
check "wrong sizes and samples are told" refuses whole <<'CASES'
{"trainers/options": {"train": "many"}}	batches:Sized: train_size is many: expected a whole number in 1..4294967295
{"trainers/options": {"held": 0}}	batches:Sized: held_out_size is 0: expected a whole number in 1..4294967295
{"trainers/options": {"held": null}}	batches:Sized: it has held_out: expected held_out_size, too, or null for /evaluation/every
{"trainers/options": {"train": null}, "stop": {"updates": 2}}	evaluations come at the ends of epochs: expected train_size, or null for /evaluation/every
{"trainers/class": "batches:Stripes", "trainers/options": {}}	batches:Stripes: expected train_size, or a limit in /stop/updates
{"trainers/class": "datasets:Blobs", "data/kind": "synthetic"}	datasets:Blobs is no class with a method batch: expected "class" in /data/kind, got "synthetic"
{"trainers/class": "datasets:Stream"}	datasets:Stream: got a Stream: expected a Dataset of map style, with __len__ and __getitem__
{"trainers/class": "datasets:Wrong", "trainers/options": {"what": "raises"}, "trainers/count": 1}	datasets:Wrong: batch 0: OSError: no sample today
{"trainers/class": "datasets:Wrong", "trainers/options": {"what": "alone"}, "trainers/count": 1}	batch 0: sample 22 is a Tensor: expected a pair of an image and a label
{"trainers/class": "datasets:Wrong", "trainers/options": {"what": "bytes"}, "trainers/count": 1}	batch 0: sample 22: its image is uint8 (3, 16, 16): expected float32 (3, 16, 16) by /data/channels and /data/size; torchvision
{"trainers/class": "datasets:Wrong", "trainers/options": {"what": "shape"}, "trainers/count": 1}	batch 0: sample 22: its image is float32 (1, 16, 16): expected float32 (3, 16, 16)
{"trainers/class": "datasets:Wrong", "trainers/options": {"what": "list"}, "trainers/count": 1}	batch 0: sample 22: its image is a list: expected a tensor, a NumPy array or a PIL image
{"trainers/class": "datasets:Wrong", "trainers/options": {"what": "label"}, "trainers/count": 1}	batch 0: sample 22: its label is 2.0, a float: expected a whole number
CASES
check "no trainer is left" leaves_nobody "trainer.py --role"

finish
