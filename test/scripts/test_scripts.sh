#!/usr/bin/env bash
# Tests scripts/: scripts/check with programs that hide a failure, scripts/deps on machines that lack packages, and what
# scripts/run, data, bench and gpu-check do before they start a program. dpkg-query, apt-get, sudo, make and other tools
# are small stand-ins in a folder of their own, so that no test changes the machine's packages.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"
scripts=$here/../../scripts

# ---- --help ----

help_of() {
    local said
    said=$("$scripts/$1" --help 2>&1 </dev/null) || { printf '%s\n' "$said" && return 1; }
    printf '%s\n' "$said"
    [[ $said == *"scripts/$1"* && $said != *"set -"* ]]
}

for script in run test bench data deps lint seeds bench-batching gpu-check chaos; do
    check "scripts/$script --help prints its usage and exits 0" help_of "$script"
done

# ---- scripts/check ----

# program NAME: a test program of that name whose body comes from stdin.
program() {
    mkdir -p "$scratch/programs"
    { printf '#!/bin/sh\n' && cat; } >"$scratch/programs/$1"
    chmod +x "$scratch/programs/$1"
}

# judged EXIT SUM NAME...: scripts/check of the programs must exit with EXIT, and its last line must be SUM.
judged() {
    local want_code=$1 want_sum=$2 code=0 said
    shift 2
    said=$(cd "$scratch/programs" && CHECK_LIMIT_S=${limit_s:-60} CHECK_TALLY='' BUILD=$scratch SAN='' \
        "$scripts/check" "${@/#/$scratch/programs/}") || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    [[ $code -eq $want_code && ${said##*$'\n'} == "$want_sum" ]]
}

program good <<'BODY'
echo "100%: Checks: 3, Failures: 0, Errors: 0"
BODY
program two_runners <<'BODY'
echo "100%: Checks: 3, Failures: 0, Errors: 0"
echo "100%: Checks: 4, Failures: 0, Errors: 0"
BODY
program broken <<'BODY'
echo "test_broken.c:12:F:core:adds:0: Assertion '1 == 2' failed"
echo "60%: Checks: 5, Failures: 1, Errors: 1"
exit 1
BODY
program broken_but_content <<'BODY'
echo "60%: Checks: 5, Failures: 1, Errors: 1"
BODY
program silent <<'BODY'
exit 0
BODY
program empty <<'BODY'
echo "100%: Checks: 0, Failures: 0, Errors: 0"
BODY
program dies_after_summary <<'BODY'
echo "100%: Checks: 3, Failures: 0, Errors: 0"
kill -ABRT $$
BODY
program hangs <<'BODY'
echo "100%: Checks: 3, Failures: 0, Errors: 0"
exec sleep 600
BODY
program skips <<'BODY'
echo "no device here"
exit 77
BODY
program skips_without_a_word <<'BODY'
exit 77
BODY
program leaves_a_child <<'BODY'
sleep 5 &
echo "100%: Checks: 1, Failures: 0, Errors: 0"
BODY

# Has scripts/check fail to write the program's result, as on a full disk: its files are in TMPDIR.
program leaves_no_result <<'BODY'
(cd "$TMPDIR"/tmp.* && mkdir 0.new)
echo "100%: Checks: 3, Failures: 0, Errors: 0"
BODY

program has_the_callers_descriptor <<'BODY'
echo "100%: Checks: 1, Failures: 0, Errors: 0"
[ ! -e /proc/$$/fd/5 ]
BODY

descriptors() {
    judged 0 "1 passed, 0 failed, 0 skipped" has_the_callers_descriptor 5</dev/null
}

hang() {
    limit_s=1 judged 1 "3 passed, 1 failed, 0 skipped" hangs
}

# The timeout ends a scripts/check that waits for ever.
result_lost() {
    local said code=0
    mkdir "$scratch/kept"
    said=$(cd "$scratch/programs" && TMPDIR=$scratch/kept BUILD=$scratch SAN='' CHECK_TALLY='' \
        timeout 30 "$scripts/check" "$scratch/programs/"{leaves_no_result,good}) || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    [[ $code -eq 1 && ${said##*$'\n'} == "3 passed, 1 failed, 0 skipped" ]] &&
        [[ $said == *"FAILED leaves_no_result: its result was not written to $scratch/kept/"* ]]
}

tally() {
    local file=$scratch/tally said
    said=$(CHECK_TALLY=$file BUILD=$scratch SAN='' "$scripts/check" "$scratch/programs/"{good,broken,skips})
    [[ $(cat "$file") == "6 2 1
failed: broken: 2 of 5 checks
    test_broken.c:12:F:core:adds:0: Assertion '1 == 2' failed" ]] &&
        [[ $said == *"$(tail -n 2 "$file")
6 passed, 2 failed, 1 skipped" ]]
}

check "passed checks are summed" judged 0 "3 passed, 0 failed, 0 skipped" good
check "each summary of a program counts" judged 0 "7 passed, 0 failed, 0 skipped" two_runners
check "failures and errors count" judged 1 "3 passed, 2 failed, 0 skipped" broken
check "failures count when the program exits 0" judged 1 "3 passed, 2 failed, 0 skipped" broken_but_content
check "a failure does not stop the next program" judged 1 "6 passed, 2 failed, 0 skipped" broken good
check "no summary is a failure" judged 1 "3 passed, 1 failed, 0 skipped" good silent
check "no check is a failure" judged 1 "3 passed, 1 failed, 0 skipped" good empty
check "a crash after the summary is a failure" judged 1 "3 passed, 1 failed, 0 skipped" dies_after_summary
check "a hang is ended and is a failure" hang
check "a result that cannot be written is a failure" result_lost
check "a skip is counted" judged 0 "3 passed, 0 failed, 1 skipped" skips good
check "only skips is a failure" judged 1 "0 passed, 0 failed, 1 skipped" skips
check "a skip without a reason is a failure" judged 1 "3 passed, 1 failed, 0 skipped" skips_without_a_word good
check "a missing program is a failure" judged 1 "3 passed, 1 failed, 0 skipped" nowhere good
check "a child left behind delays nothing" judged 0 "1 passed, 0 failed, 0 skipped" leaves_a_child
check "a program gets no descriptor of the caller" descriptors
check "the sum, and what failed, are appended to CHECK_TALLY" tally

# ---- scripts/deps ----

# A machine whose installed packages are the lines of $scratch/installed. Its apt-get adds to them and records its
# arguments. With NO_SUDO set, sudo fails, as it does where it would ask for a password.
machine() {
    local installed=("$@")
    rm -rf "$scratch/machine" "$scratch/installed" "$scratch/apt" "$scratch/venv"
    mkdir -p "$scratch/machine"
    printf '%s\n' "${installed[@]}" >"$scratch/installed"
    touch "$scratch/apt"
    cat >"$scratch/machine/dpkg-query" <<'TOOL'
#!/usr/bin/env bash
for package in "${@:3}"; do
    if grep -qx "$package" "$MACHINE/installed"; then
        printf 'installed %s\n' "$package"
    else
        printf 'dpkg-query: no packages found matching %s\n' "$package" >&2
        code=1
    fi
done
exit "${code:-0}"
TOOL
    cat >"$scratch/machine/apt-get" <<'TOOL'
#!/usr/bin/env bash
printf '%s\n' "$DEBIAN_FRONTEND: $*" >>"$MACHINE/apt"
for word; do
    case $word in
        -* | DPkg*) ;;
        update) exit "${UPDATE_CODE:-0}" ;;
        install) [[ -z ${INSTALL_CODE:-} ]] || { echo "E: out of order"; exit "$INSTALL_CODE"; } ;;
        *) printf '%s\n' "$word" >>"$MACHINE/installed" ;;
    esac
done
TOOL
    cat >"$scratch/machine/sudo" <<'TOOL'
#!/usr/bin/env bash
[[ -z ${NO_SUDO:-} && $1 == -n ]] || exit 1
shift
exec "$@"
TOOL
    cat >"$scratch/machine/venv" <<'TOOL'
#!/usr/bin/env bash
printf '%s\n' "$*" >>"$MACHINE/venv"
exit "${VENV_CODE:-0}"
TOOL
    cp "$scripts/deps" "$scratch/machine/deps"
    chmod -R a+rwx "$scratch"
}

# Runs scripts/deps on that machine as a user without privileges. The script is a copy, because that user may not be
# able to enter the folder of this checkout.
deps() {
    local as=()
    if [[ $EUID -eq 0 ]]; then
        as=(setpriv --reuid=65534 --regid=65534 --clear-groups)
    fi
    MACHINE=$scratch PATH=$scratch/machine:$PATH "${as[@]}" "$scratch/machine/deps" "$@" 2>&1
}

build=(gcc make libc6-dev libzmq3-dev libcjson-dev libsodium-dev librandom123-dev libdnnl-dev libjpeg62-turbo-dev
    libpng-dev zlib1g-dev libgif-dev libprotobuf-c-dev protobuf-c-compiler libmicrohttpd-dev libjs-dygraphs)
python=(python3 python3-torch python3-torchvision python3-venv python3-zmq)

# says EXIT WORDS GROUP...: deps must exit with EXIT, and the pattern WORDS must match its output.
says() {
    local want_code=$1 want=$2 code=0 said
    shift 2
    said=$(deps "$@") || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    # shellcheck disable=SC2053 # a pattern on the right is what is wanted
    [[ $code -eq $want_code && $said == $want ]]
}

apt_was_not_called() {
    [[ ! -s $scratch/apt ]]
}

complete() {
    machine "${build[@]}" && says 0 "" build && apt_was_not_called
}

installs_what_is_missing() {
    machine "${build[@]:2}" && says 0 "*installing: gcc make" build && [[ $(wc -l <"$scratch/apt") -eq 2 ]] &&
        grep -q '^noninteractive: .*install -y --no-install-recommends gcc make$' "$scratch/apt"
}

second_call() {
    machine gcc && says 0 "*installing: *" build && rm "$scratch/apt" && says 0 "" build &&
        [[ ! -e $scratch/apt ]]
}

without_rights() {
    machine "${build[@]:1}" && NO_SUDO=1 says 69 "*missing: gcc"$'\n'"*nothing was installed: *" build &&
        apt_was_not_called
}

update_fails() {
    machine "${build[@]:1}" && UPDATE_CODE=100 says 0 "*installing: gcc*going on*" build
}

install_fails() {
    machine "${build[@]:1}" && INSTALL_CODE=100 says 69 "*out of order*could not install: gcc" build
}

groups_add_up() {
    machine && says 0 "*installing: check curl dataset-fashion-mnist gcc gnuplot-nox iproute2 jq *" test batching build
}

text_alone() {
    machine gcc && says 0 "*installing: bible-kjv bible-kjv-text" bible && ! grep -q libc6-dev "$scratch/apt"
}

data_alone() {
    machine gcc && says 0 "*installing: dataset-fashion-mnist" data && ! grep -q libc6-dev "$scratch/apt"
}

with_pypi() {
    machine "${python[@]}" && says 0 "" python && apt_was_not_called &&
        grep -qE '/build/python-venv safetensors==[0-9.]+$' "$scratch/venv"
}

without_pypi() {
    machine "${python[@]}" && VENV_CODE=69 says 69 "*installing: gcc *" build python
}

pypi_only_for_python() {
    machine "${build[@]}" && says 0 "" build && [[ ! -e $scratch/venv ]]
}

pypi_over_another() {
    machine "${python[@]}" python3-numpy && says 0 "" cleanrl &&
        grep -qE '/build/sb3-venv .*torch==' <(head -n 1 "$scratch/venv") &&
        grep -qE '/build/cleanrl-venv --over [^ ]*/build/sb3-venv .* --bare cleanrl==[0-9.]+$' <(tail -n 1 "$scratch/venv")
}

no_such_group() {
    machine && says 64 "*no such group: tset (*" test tset && apt_was_not_called
}

check "nothing is installed on a complete machine" complete
check "missing packages are installed without a question" installs_what_is_missing
check "a second call installs nothing" second_call
check "without root and sudo the packages are named" without_rights
check "a failed apt-get update is no failure" update_fails
check "a failed installation is reported" install_fails
check "several groups are installed together" groups_add_up
check "data is a group of its own" data_alone
check "so is bible" text_alone
check "python installs from PyPI what Debian lacks" with_pypi
check "and fails when PyPI cannot be reached" without_pypi
check "no other group uses PyPI" pypi_only_for_python
check "CleanRL's environment lies over that of Stable-Baselines3" pypi_over_another
check "an unknown group" no_such_group

# ---- scripts/venv ----

venv_usage() {
    local code=0
    "$scripts/venv" "$scratch/venv" 2>&1 || code=$?
    [[ $code -eq 64 ]]
}

# An environment whose Python has the packages once pip has been called CALLS times. Both record their arguments.
environment() {
    rm -rf "$scratch/environment"
    mkdir -p "$scratch/environment/bin"
    cat >"$scratch/environment/bin/pip" <<'TOOL'
#!/bin/sh
echo "$*" >>"$(dirname "$0")/pips"
TOOL
    cat >"$scratch/environment/bin/python" <<TOOL
#!/bin/sh
cd "\$(dirname "\$0")" && echo "\$*" >>pythons && touch pips && [ "\$(wc -l <pips)" -ge $1 ]
TOOL
    chmod +x "$scratch/environment/bin"/*
}

venv_ready() {
    environment 0 && "$scripts/venv" "$scratch/environment" --over elsewhere one==1 two==2 --bare three==3 &&
        grep -qx -- '- one==1 two==2 three==3' "$scratch/environment/bin/pythons" &&
        [[ ! -s $scratch/environment/bin/pips ]]
}

venv_completed() {
    environment 2 && "$scripts/venv" "$scratch/environment" one==1 --bare two==2 3==3 2>&1 &&
        [[ $(head -n 1 "$scratch/environment/bin/pips") == install*' one==1' ]] &&
        [[ $(tail -n 1 "$scratch/environment/bin/pips") == install*' --no-deps --ignore-requires-python two==2 3==3' ]]
}

check "scripts/venv without a package" venv_usage
check "an environment with all packages is left alone" venv_ready
check "what an environment lacks is added to it, bare packages last" venv_completed

# ---- scripts/seeds ----

# A checkout whose daemon ends a run of seed S after S updates, with the mean reward 100 * S at the last.
seeds_checkout() {
    rm -rf "$scratch/seeds"
    mkdir -p "$scratch/seeds/scripts" "$scratch/seeds/build/release" "$scratch/seeds/tools"
    cp "$scripts/seeds" "$scratch/seeds/scripts/seeds"
    printf '#!/bin/sh\nexit 0\n' | tee "$scratch/seeds/scripts/deps" >"$scratch/seeds/tools/make"
    cat >"$scratch/seeds/build/release/coalesced" <<'TOOL'
#!/usr/bin/env bash
case $1 in
    check) exit "${CHECK_CODE:-0}" ;;
    evaluate) [[ $2 == */00000002 ]] && echo "Mean reward: 7.50	Standard deviation: 0.50	(10 episodes)" ;;
    run)
        for ((i = 1; i <= $#; i++)); do
            case ${!i} in
                /seed=*) seed=${!i#*=} ;;
                --run-dir) next=$((i + 1)) run=${!next} ;;
            esac
        done
        mkdir -p "$run/checkpoints/00000001" "$run/checkpoints/best"
        [[ $seed -ne 2 ]] || mkdir "$run/checkpoints/00000002"
        echo '{"evaluation": {"every": 1, "episodes": 10}}' >"$run/job.json"
        for ((i = 1; i <= seed; i++)); do
            printf '{"reward": 1, "env_steps": 8, "ep_rew_mean": %d, "eval": {"mean_reward": -1, "std_reward": 2}}\n' $((100 * i))
        done >"$run/episodes.jsonl"
        ;;
esac
TOOL
    chmod +x "$scratch/seeds"/{scripts/deps,tools/make,build/release/coalesced}
}

# The columns of a table but the times.
seeds_table() {
    PATH=$scratch/seeds/tools:$PATH "$scratch/seeds/scripts/seeds" "$@" | awk '{ print $1, $2, $3, $4, $5, $6 }'
}

seeds_of_ours() {
    local said
    seeds_checkout
    said=$(seeds_table --reward 200 job.json 3) || return
    printf '%s\n' "$said"
    [[ $said == "seed steps reached evaluation deviation training
1 8 - -1 2 100
2 16 16 7.50 0.50 200
3 24 16 -1 2 300
mean 16 16 1.83 1.50 200.00
+- 8 0 4.91 0.87 100.00
median 16 16 -1.00 2.00 200.00
least 8 16 -1.00 0.50 100.00
most 24 16 7.50 2.00 300.00" ]]
}

seeds_of_a_bad_job() {
    local code=0
    seeds_checkout
    CHECK_CODE=78 seeds_table job.json || code=$?
    [[ $code -eq 78 ]]
}

seeds_usage() {
    local code=0
    "$scripts/seeds" job.json none 2>&1 || code=$?
    [[ $code -eq 64 ]]
}

check "scripts/seeds: a row for each seed, and their statistics" seeds_of_ours
check "scripts/seeds of a bad job" seeds_of_a_bad_job
check "scripts/seeds with a wrong number" seeds_usage

# ---- scripts/run ----

usage_of_run() {
    local code=0 said
    said=$("$scripts/run" 2>&1) || code=$?
    [[ $code -eq 64 && $said == "usage: scripts/run JOB.json"* ]]
}

check "scripts/run without a job" usage_of_run

# A checkout in which nothing is to be built, whose scripts/deps, scripts/data and daemon print their arguments.
checkout() {
    rm -rf "$scratch/checkout"
    mkdir -p "$scratch/checkout/scripts" "$scratch/checkout/build/release" "$scratch/checkout/tools"
    cp "$scripts/run" "$scratch/checkout/scripts/run"
    cat >"$scratch/checkout/scripts/deps" <<'TOOL'
#!/bin/sh
echo "deps $*"
exit "${DEPS_CODE:-0}"
TOOL
    cat >"$scratch/checkout/scripts/data" <<'TOOL'
#!/bin/sh
echo "data $*"
exit "${DATA_CODE:-0}"
TOOL
    cat >"$scratch/checkout/build/release/coalesced" <<'TOOL'
#!/bin/sh
echo "daemon $*"
TOOL
    printf '#!/bin/sh\nexit 0\n' >"$scratch/checkout/tools/make"
    chmod +x "$scratch/checkout"/{scripts/deps,scripts/data,tools/make,build/release/coalesced}
}

# runs GROUPS ARGUMENT...: scripts/run with the arguments must ask for those groups of packages and start the daemon.
runs() {
    local want=$1 said
    shift
    said=$(PATH=$scratch/checkout/tools:$PATH "$scratch/checkout/scripts/run" "$@")
    printf '%s\n' "$said"
    [[ $said == "deps $want"$'\n'"daemon run $*" ]]
}

without_data() {
    checkout && runs build "$scripts/../config/cartpole.json" --set /name=x
}

with_data() {
    checkout && runs "build data" "$scripts/../config/fashion-mnist.json"
}

data_from_elsewhere() {
    checkout && runs build "$scripts/../config/fashion-mnist.json" --set /data/path=/srv/mnist
}

data_by_command() {
    checkout && runs "build data" "$scripts/../config/resnet50-ps.json" --set /data/kind=idx \
        --set /data/path=/srv/mnist --set /data/path=/usr/share/datasets/fashion-mnist
}

data_in_any_order() {
    checkout && runs "build data" --set /name=x "$scripts/../config/fashion-mnist.json" --run-dir "$scratch"
}

job_that_is_not_there() {
    checkout && runs build "$scratch/nowhere.json"
}

data_cannot_be_had() {
    local code=0 said
    checkout
    said=$(DEPS_CODE=69 PATH=$scratch/checkout/tools:$PATH "$scratch/checkout/scripts/run" \
        "$scripts/../config/fashion-mnist.json") || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    [[ $code -eq 69 && $said == "deps build data" ]]
}

# runs_on_text WORDS ARGUMENT...: scripts/run must call scripts/data as WORDS says, and pass the text's path on.
runs_on_text() {
    local words=$1 said file=$scratch/checkout/build/data/kjv.txt
    shift
    said=$(cd / && PATH=$scratch/checkout/tools:$PATH "$scratch/checkout/scripts/run" "$@")
    printf '%s\n' "$said"
    [[ $said == "deps build"$'\n'"${words}daemon run $* --set /data/path=$file" ]]
}

text_by_job() {
    checkout && runs_on_text "data kjv"$'\n' "$scripts/../config/rnn-text.json" --run-dir "$scratch"
}

text_is_there() {
    checkout && mkdir "$scratch/checkout/build/data" && touch "$scratch/checkout/build/data/kjv.txt" &&
        runs_on_text "" "$scripts/../config/rnn-text.json"
}

text_by_command() {
    checkout && runs_on_text "data kjv"$'\n' "$scratch/nowhere.json" --set /data/path=/srv/x \
        --set "/data/path=$scratch/checkout/build/data/kjv.txt" &&
        runs_on_text "data kjv"$'\n' "$scratch/nowhere.json" \
            --set '/data={"kind": "text", "path": "build/data/kjv.txt"}'
}

text_from_elsewhere() {
    checkout && runs build "$scripts/../config/rnn-text.json" --set /data/path=/srv/build/data/kjv.txt
}

text_cannot_be_had() {
    local code=0 said
    checkout
    said=$(DATA_CODE=70 PATH=$scratch/checkout/tools:$PATH "$scratch/checkout/scripts/run" "$scripts/../config/rnn-text.json") ||
        code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    [[ $code -eq 70 && $said == "deps build"$'\n'"data kjv" ]]
}

# A make that has two files to write, and says so.
something_to_build() {
    checkout && cat >"$scratch/checkout/tools/make" <<'TOOL'
#!/bin/sh
case $* in *--question*) exit 1 ;; esac
echo 'mkdir build; gcc -c -o build/a.o a.c'
echo 'gcc -o build/a build/a.o'
echo 'a line without a file'
exit "${MAKE_CODE:-0}"
TOOL
}
tells_of_building() {
    local said
    something_to_build && said=$(PATH=$scratch/checkout/tools:$PATH "$scratch/checkout/scripts/run" job.json 2>&1)
    printf '%s\n' "$said"
    [[ $said == *$'\nscripts/run: building 2 files\ndaemon run job.json' ]]
}
counts_on_a_terminal() {
    local said
    something_to_build && said=$(PATH=$scratch/checkout/tools:$PATH script -qec "$scratch/checkout/scripts/run job.json" /dev/null </dev/null)
    printf '%s\n' "$said"
    [[ $said == *'1 of 2 files'*'2 of 2 files'*'daemon run job.json'* ]]
}
tells_why_a_build_failed() {
    local code=0 said
    something_to_build && said=$(MAKE_CODE=2 PATH=$scratch/checkout/tools:$PATH "$scratch/checkout/scripts/run" job.json 2>&1) || code=$?
    [[ $code -eq 70 && $said == *'a line without a file'*'the build failed' ]]
}
check "scripts/run says how much is built" tells_of_building
check "and counts on a terminal" counts_on_a_terminal
check "scripts/run shows a build that failed" tells_why_a_build_failed
check "scripts/run installs no data that the job does not name" without_data
check "scripts/run installs the package whose folder the job names" with_data
check "scripts/run installs none when --set names another folder" data_from_elsewhere
check "--set can name that folder too" data_by_command
check "the job need not be the first argument" data_in_any_order
check "a missing job is left to the daemon" job_that_is_not_there
check "data that cannot be installed fails" data_cannot_be_had
check "scripts/run writes the text that the job names, and passes its path" text_by_job
check "the text is written once" text_is_there
check "--set can name the text too" text_by_command
check "scripts/run writes no text when --set names another" text_from_elsewhere
check "a text that cannot be written fails" text_cannot_be_had

# ---- scripts/data ----

# data ARGUMENT...: scripts/data in a checkout whose `bible` prints BIBLE_VERSES lines and exits with BIBLE_CODE.
data() {
    local code=0 said
    checkout
    cp "$scripts/data" "$scratch/checkout/scripts/data"
    cat >"$scratch/checkout/tools/bible" <<'TOOL'
#!/bin/sh
seq "${BIBLE_VERSES:-31102}" | sed 's/.*/1Ki1:& Now  king David: was 1:1/'
exit "${BIBLE_CODE:-0}"
TOOL
    chmod +x "$scratch/checkout/tools/bible"
    said=$(PATH=$scratch/checkout/tools:$PATH "$scratch/checkout/scripts/data" "$@" 2>&1) || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    return "$code"
}

data_code() {
    local want=$1 code=0
    shift
    data "$@" || code=$?
    [[ $code -eq $want ]]
}

data_kjv() {
    local file=$scratch/checkout/build/data/kjv.txt
    data_code 0 kjv && [[ $(sort -u "$file") == 'Now  king David: was 1:1' && $(wc -l <"$file") -eq 31102 ]] &&
        [[ $(ls "$scratch/checkout/build/data") == kjv.txt && $(stat -c %a "$file") == 644 ]]
}

data_elsewhere() {
    data_code 0 kjv "$scratch/some/where.txt" && [[ $(wc -l <"$scratch/some/where.txt") -eq 31102 ]]
}

data_incomplete() {
    BIBLE_VERSES=31101 data_code 70 kjv && [[ -z $(ls "$scratch/checkout/build/data") ]] &&
        BIBLE_CODE=1 data_code 70 kjv && [[ -z $(ls "$scratch/checkout/build/data") ]]
}

data_no_place() {
    data_code 73 kjv /dev/null/kjv.txt && mkdir "$scratch/folder" && data_code 73 kjv "$scratch/folder" &&
        [[ -z $(ls "$scratch/folder") ]]
}

data_without_package() {
    DEPS_CODE=69 data_code 69 kjv && [[ ! -e $scratch/checkout/build/data ]]
}

data_usage() {
    data_code 64 && data_code 64 koran && data_code 64 kjv a b
}

check "scripts/data writes the verses without their references" data_kjv
check "scripts/data writes to a named file" data_elsewhere
check "an incomplete text leaves no file" data_incomplete
check "scripts/data to a place that cannot be written" data_no_place
check "scripts/data without its package" data_without_package
check "scripts/data's usage" data_usage

# ---- scripts/bench ----

# bench EXIT WORDS ARGUMENT...: scripts/bench in a checkout where nothing is built must exit with EXIT, and the pattern
# WORDS must match its output. Its `make` prints its arguments, builds a daemon, and exits with MAKE_CODE.
bench() {
    local want_code=$1 want=$2 code=0 said
    shift 2
    checkout
    rm "$scratch/checkout/build/release/coalesced"
    cp "$scripts/bench" "$scratch/checkout/scripts/bench"
    cat >"$scratch/checkout/tools/make" <<'TOOL'
#!/bin/sh
echo "make $*"
printf '#!/bin/sh\necho "coalesced 0"\n' >build/release/coalesced
chmod +x build/release/coalesced
exit "${MAKE_CODE:-0}"
TOOL
    said=$(PATH=$scratch/checkout/tools:$PATH "$scratch/checkout/scripts/bench" "$@" 2>&1) || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    # shellcheck disable=SC2053 # a pattern on the right is what is wanted
    [[ $code -eq $want_code && $said == $want ]]
}

bench_without_build() {
    MAKE_CODE=2 bench 70 "*scripts/bench: the build failed" steps
}

check "scripts/bench builds what it runs" bench 0 "deps bench*make *all benches*machine *coalesced 0, *" steps
check "scripts/bench fails when the build does" bench_without_build
check "scripts/bench's usage" bench 64 "usage: scripts/bench *" nonsense

# ---- a checkout below a private folder; Python without packages ----

# Tests that change user, with the daemon below a folder that only this user can enter.
below_private_folder() {
    local private=$scratch/private
    mkdir -m 700 "$private" && cp "$BUILD/coalesced" "$private/coalesced" && cd "$private" &&
        COALESCED=$private/coalesced CK_RUN_CASE=user "$BUILD/test/test_run" &&
        "$BUILD/test/test_checkpoint_failures"
}

# build/python-venv with a Python that finds no package, as scripts/venv leaves it when PyPI cannot be reached.
python_without_packages() {
    local bare=$scratch/bare said
    mkdir -p "$bare/build/python-venv/bin"
    ln -s "$(realpath "$here/../..")/test" "$bare/test"
    printf '#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n' >"$bare/build/python-venv/bin/python"
    chmod +x "$bare/build/python-venv/bin/python"
    said=$(cd "$bare" && "$BUILD/test/test_safetensors_file") || { printf '%s\n' "$said" && return 1; }
    printf '%s\n' "$said"
    [[ $said == *"python_reads_ours: skipped: "*"No module named "* ]]
}

if [[ -n ${BUILD:-} && $EUID -eq 0 ]]; then
    check "tests that change user work below a private folder" below_private_folder
fi
if [[ -n ${BUILD:-} && -x /usr/bin/python3 ]]; then
    check "a test that needs a package of PyPI is skipped without it" python_without_packages
fi

# ---- scripts/gpu-check ----

# A machine whose nvidia-smi finds no driver: one line, and nothing is built.
no_gpu() {
    local code=0 said
    mkdir -p "$scratch/no-gpu" && printf '#!/bin/sh\necho "it found no driver"\nexit 9\n' >"$scratch/no-gpu/nvidia-smi" &&
        chmod +x "$scratch/no-gpu/nvidia-smi"
    said=$(PATH=$scratch/no-gpu:$PATH "$scripts/gpu-check" 2>&1) || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    [[ $code -eq 77 && $said == 'scripts/gpu-check: no GPU here: nvidia-smi says "it found no driver"' ]]
}
check "gpu-check without a GPU says so" no_gpu

# A machine with a GPU, whose `make` prints where gcc and the loader look, and fails.
gpu_libraries() {
    local libs=$scratch/libs code=0 said
    checkout
    cp "$scripts/gpu-check" "$scratch/checkout/scripts/gpu-check"
    touch "$scratch/checkout/build/release/libcoalesced-cuda.so"
    printf '#!/bin/sh\necho "GPU, 1"\n' >"$scratch/checkout/tools/nvidia-smi"
    cat >"$scratch/checkout/tools/make" <<'TOOL'
#!/bin/sh
case "$*" in
    *print-cudnn*) echo /usr/lib/libcudnn.so.9 ;;
    *) echo "headers $CPATH" && ls "${LD_LIBRARY_PATH%%:*}" && exit 2 ;;
esac
TOOL
    chmod +x "$scratch/checkout/tools"/*
    mkdir -p "$libs/include/x86_64-linux-gnu" "$libs/lib/x86_64-linux-gnu" "$libs/bin" "$libs/proto/include/protobuf-c"
    touch "$libs/include/jpeglib.h" "$libs/include/x86_64-linux-gnu/jconfig.h" "$libs/bin/protoc-c"
    chmod +x "$libs/bin/protoc-c"
    touch "$libs/lib/x86_64-linux-gnu/"{libjpeg.so.62,libc.so.6,libresolv.so.2,libstdc++.so.6,libzmq.a} "$libs/libc6-dev_2.deb"
    said=$(env -u CPATH -u LD_LIBRARY_PATH PATH="$scratch/checkout/tools:$PATH" LIBS="$libs" \
        "$scratch/checkout/scripts/gpu-check" 2>&1) || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    [[ $code -eq 1 && $said == *"headers $libs/include:$libs/include/x86_64-linux-gnu:$libs/proto/include"$'\n'"libjpeg.so"$'\n'"libjpeg.so.62"$'\n'"libzmq.a"$'\n'* ]]
}
check "gpu-check finds the headers and libraries of LIBS, and no C library" gpu_libraries

# Without nvidia-smi and nvcc. `make` prints its targets, and fails.
gpu_stand_in() {
    local code=0 said
    checkout
    cp "$scripts/gpu-check" "$scratch/checkout/scripts/gpu-check"
    printf '#!/bin/sh\necho "$@"\nexit 2\n' >"$scratch/checkout/tools/make"
    printf '#!/bin/sh\necho "it found no driver"\nexit 9\n' >"$scratch/checkout/tools/nvidia-smi"
    chmod +x "$scratch/checkout/tools"/*
    said=$(PATH="$scratch/checkout/tools:$PATH" "$scratch/checkout/scripts/gpu-check" --stand-in 2>&1) || code=$?
    printf '%s\nexit code %d\n' "$said" "$code"
    [[ $code -eq 1 && $said == *" COVERAGE=1 "*" build/release/gpu-coverage/libcoalesced-cuda.so "*"build/release/test/test_cuda "* && $said != *bench_gpu* ]] || return 1
    code=0
    "$scripts/gpu-check" --stand_in >/dev/null 2>&1 || code=$?
    [[ $code -eq 64 ]]
}
check "gpu-check --stand-in needs no GPU and no nvcc" gpu_stand_in

finish
