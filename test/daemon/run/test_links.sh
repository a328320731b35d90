#!/usr/bin/env bash
# Links, fifos and folders in place of a run's files: a start, a resume and SIGUSR1 follow no link, leave the link's target as
# it is byte for byte, and name the file. A run of another user's files is refused, and so is a file that two names have.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../../shell.bash"
# shellcheck source=test/daemon/runs.bash
source "$here/../runs.bash"

all_files=(--set '/log={"every":1,"tensorboard":true,"profile":true}')
resume() {
    run_job reinforce "$run" 8 "${all_files[@]}" "$@" >"$scratch/out" 2>&1
}
victim=$scratch/victim

# A file or folder as a text: names, kinds and contents.
fingerprint() {
    (cd "$(dirname "$1")" && find "$(basename "$1")" -printf '%p %y\n' | sort &&
        find "$(basename "$1")" -type f -exec sha256sum {} + | sort)
}

# plant KIND FILE: puts something else in place of $run/FILE, which becomes the victim.
plant() {
    local file=$run/$2
    rm -rf "$victim"
    if [[ -e $file ]]; then mv "$file" "$victim"; else echo "precious" >"$victim"; fi
    case $1 in
    symlink) ln -s "$victim" "$file" ;;
    dangling) ln -s "$scratch/nowhere" "$file" ;;
    hardlink) ln "$victim" "$file" ;;
    fifo) mkfifo "$file" ;;
    folder) mkdir "$file" ;;
    esac
    before=$(fingerprint "$victim")
}
victim_is_whole() {
    [[ $(fingerprint "$victim") == "$before" && ! -e $scratch/nowhere ]]
}
says() {
    grep -F -- "$run/$1: found $2" "$scratch/out"
}
declare -A found=([symlink]="a symbolic link" [dangling]="a symbolic link" [fifo]="a fifo" [folder]="a directory"
    [hardlink]="a regular file with 2 names")

# A whole run, with a line behind its last checkpoint that a resume moves to episodes.jsonl.cut.
whole=$scratch/whole
run=$whole resume --set '/stop={"episodes":4}'
newest=$(newest_checkpoint "$whole")
echo '{"episode":5}' >>"$whole/episodes.jsonl"
echo 'a line' >>"$whole/episodes.log"
fresh() {
    run=$scratch/run
    rm -rf "$run"
    cp -r "$whole" "$run"
}
check "the run is there" test "$newest" = 00000004

# ---- --resume ----
# is_refused KIND FILE: the resume ends with the code of an I/O error.
is_refused() {
    local code=0
    fresh && plant "$1" "$2" || return 1
    resume --resume || code=$?
    cat "$scratch/out"
    [[ $code -eq 74 ]] && victim_is_whole && says "$2" "${found[$1]}"
}
for file in episodes.jsonl episodes.log episodes.jsonl.cut episodes.log.cut lock job.json.tmp; do
    for kind in symlink dangling hardlink fifo folder; do
        check "a resume with $kind as $file" is_refused $kind $file
    done
done
for kind in symlink dangling fifo folder; do
    check "a resume with $kind as job.json" is_refused $kind job.json
done
for kind in symlink dangling fifo; do
    check "a resume with $kind as checkpoints" is_refused $kind checkpoints
done

# goes_on KIND FILE: the resume ends well, and names the file.
goes_on() {
    fresh && plant "$1" "$2" || return 1
    resume --resume || { cat "$scratch/out" && return 1; }
    cat "$scratch/out"
    victim_is_whole && says "$2" "${found[$1]}" && [[ $(last_number "$run") -eq 8 ]]
}
for kind in symlink dangling fifo; do
    check "a resume with $kind as a checkpoint takes another" goes_on $kind "checkpoints/$newest"
    for file in manifest.json model.safetensors; do
        check "a resume with $kind as a checkpoint's $file takes another" goes_on $kind "checkpoints/$newest/$file"
    done
    check "a resume with $kind as tensorboard" goes_on $kind tensorboard
    check "a resume with $kind as profile.txt" goes_on $kind profile.txt
done
check "a resume with a second name of profile.json" goes_on hardlink profile.json

# A checkpoint is read, and its files may have two names.
hard_links_in_a_checkpoint() {
    fresh && plant hardlink "checkpoints/$newest/model.safetensors" && resume --resume && victim_is_whole &&
        ! grep damaged "$scratch/out"
}
check "a checkpoint of hard links" hard_links_in_a_checkpoint

# ---- a start ----
start_moves_the_link() {
    fresh && plant symlink "$1" && resume && victim_is_whole && [[ -L $run/previous-1/$1 && $(last_number "$run") -eq 8 ]]
}
for file in episodes.jsonl episodes.log job.json checkpoints tensorboard profile.txt; do
    check "a start with a link as $file" start_moves_the_link $file
done
start_is_refused() {
    local code=0
    fresh && plant "$1" "$2" || return 1
    resume || code=$?
    [[ $code -eq 74 ]] && victim_is_whole && says "$2" "${found[$1]}"
}
check "a start with a link as the lock" start_is_refused symlink lock
check "a start with a second name of the lock" start_is_refused hardlink lock

# ---- commands that read a run ----
plot_is_refused() {
    fresh && plant symlink "$1" || return 1
    ! "$COALESCED" plot "$run" --output "$scratch/plot.svg" >"$scratch/out" 2>&1 && says "$1" "a symbolic link"
}
check "plot with a link as episodes.jsonl" plot_is_refused episodes.jsonl
check "plot with a link as job.json" plot_is_refused job.json
play_is_refused() {
    fresh && plant symlink "$1" || return 1
    ! "$COALESCED" play "$run/checkpoints/$newest" >"$scratch/out" 2>&1 && says "$1" "a symbolic link"
}
check "play with a link as job.json" play_is_refused job.json
check "play with a link as the model" play_is_refused "checkpoints/$newest/model.safetensors"

# ---- a live run ----
begin_live() {
    run=$scratch/live
    rm -rf "$run"
    "$COALESCED" run "$scratch/reinforce.json" --run-dir "$run" --set '/stop={"episodes":1000000000}' \
        --set "/checkpoint=$1" </dev/null >/dev/null 2>"$scratch/out" &
    live=$!
    wait_for_number "$run" 4
}
wait_for_word() {
    local end=$((SECONDS + 60))
    until grep -Fq -- "$1" "$scratch/out"; do
        [[ $SECONDS -lt $end ]] || return 1
        sleep 0.02
    done
}
# The lines go on in the file that was moved away.
rotation_onto() {
    local last code=0
    begin_live '{"every":1000000}'
    mv "$run/$2" "$scratch/moved"
    plant "$1" "$2"
    kill -USR1 "$live"
    wait_for_word "$run/$2: found ${found[$1]}" || code=1
    last=$(wc -l <"$scratch/moved")
    kill -TERM "$live" && wait "$live" && victim_is_whole && [[ $code -eq 0 && $(wc -l <"$scratch/moved") -ge $last ]]
}
for file in episodes.jsonl episodes.log; do
    for kind in symlink dangling hardlink folder; do
        check "SIGUSR1 with $kind as $file" rotation_onto $kind $file
    done
done

# The checkpoint fails; nothing is made or removed behind the link.
# A checkpoint that is under way meets the folder's absence or the link within a path: there the kernel refuses.
link_in_place_of_live_checkpoints() {
    local other=$scratch/other code=0
    begin_live '{"every":2,"keep":1}'
    rm -rf "$other" && cp -r "$whole/checkpoints" "$other" && mkdir "$other/00000009.tmp"
    before=$(fingerprint "$other")
    mv "$run/checkpoints" "$scratch/moved-checkpoints" && ln -s "$other" "$run/checkpoints"
    wait "$live" || code=$?
    cat "$scratch/out"
    [[ $code -ne 0 && $(fingerprint "$other") == "$before" ]] &&
        { says checkpoints "a symbolic link" ||
            grep -F "$run/checkpoints" "$scratch/out" | grep -E ': (Not a directory|No such file or directory)$'; }
}
check "a link in place of a live run's checkpoints" link_in_place_of_live_checkpoints

# ---- other users ----
if [[ $(id -u) -ne 0 ]] || ! command -v setpriv >/dev/null; then
    echo "test_links.sh: other users are not tried: that needs root and setpriv"
    finish
fi
user=12001
stranger=12002
bin=$scratch/bin
mkdir "$bin"
cp "$COALESCED" "$(dirname "$COALESCED")"/libcoalesced-*.so "$bin"
chmod -R a+rX "$bin"
chmod a+rx "$scratch" && chmod a+r "$scratch/reinforce.json"

as() {
    setpriv --reuid "$1" --regid "$1" --clear-groups env XDG_RUNTIME_DIR="$scratch/home-$1" "${@:2}"
}
for each in 0 "$user" "$stranger"; do install -d -o "$each" -g "$each" "$scratch/home-$each"; done

# resume_as USER N: resumes the run in $shared/run up to episode N.
shared=$scratch/shared
resume_as() {
    local job
    job_arguments reinforce "$shared/run" "$2" --resume
    as "$1" "$bin/coalesced" run "${job[@]}" </dev/null >"$scratch/out" 2>&1
}
new_shared() {
    rm -rf "$shared"
    install -d -m 0777 "$shared"
    (umask 022 && resume_as "$user" 4) && echo "a diary" >"$victim" && chown "$user:$user" "$victim"
}
diary_is_whole() {
    [[ $(cat "$victim") == "a diary" ]]
}
is_refused_as_user() {
    local code=0
    resume_as "$user" 8 || code=$?
    cat "$scratch/out"
    [[ $code -eq 74 ]] && diary_is_whole && grep -F -- "$1" "$scratch/out"
}

# Another folder in the run's place, of someone who may write in the parent.
another_folder() {
    new_shared && as "$stranger" mv "$shared/run" "$shared/old" &&
        as "$stranger" cp -r "$shared/old" "$shared/run" && as "$stranger" chmod -R a+w "$shared/run" &&
        as "$stranger" ln -sf "$victim" "$shared/run/$1" && is_refused_as_user "$shared/run/$1: found a symbolic link"
}
for file in episodes.jsonl episodes.log; do
    check "a stranger's folder with a link as $file" another_folder $file
done

strangers_file() {
    new_shared && chmod a+w "$shared/run" && as "$stranger" cp "$shared/run/$1" "$shared/theirs" &&
        as "$stranger" mv -f "$shared/theirs" "$shared/run/$1" && as "$stranger" chmod a+w "$shared/run/$1" &&
        is_refused_as_user "$shared/run/$1: found a regular file of user $stranger, expected one of user $user"
}
for file in episodes.jsonl episodes.log job.json lock; do
    check "a stranger's $file" strangers_file $file
done
strangers_checkpoints() {
    new_shared && chmod a+w "$shared/run" && as "$stranger" cp -r "$shared/run/checkpoints" "$shared/theirs" &&
        as "$stranger" mv "$shared/run/checkpoints" "$shared/run/old" && as "$stranger" mv "$shared/theirs" "$shared/run/checkpoints" &&
        is_refused_as_user "$shared/run/checkpoints: found a directory of user $stranger, expected one of user $user"
}
check "a stranger's checkpoints" strangers_checkpoints

second_name() {
    new_shared && ln -f "$victim" "$shared/run/$1" && is_refused_as_user "$shared/run/$1: found a regular file with 2 names"
}
check "a second name of the user's own file" second_name episodes.jsonl

# Root resumes a user's run, and the user goes on with it.
root_and_user() {
    new_shared && resume_as 0 6 && resume_as "$user" 8
    cat "$scratch/out"
    [[ $(last_number "$shared/run") -eq 8 ]]
}
checkpoint='{"every": 2, "keep": 10}'
check "root resumes a user's run, and the user goes on" root_and_user

finish
