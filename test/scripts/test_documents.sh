#!/usr/bin/env bash
# The documents: those that are generated are as the table of job keys has them, the manual pages are good pages and say
# what --help says, the schema judges the test's job files as `coalesced check` does, and bash completes.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

root=$(cd "$here/../.." && pwd)
daemon=$(readlink -f "${BUILD:-$root/build/release}/coalesced")

# generated FILE [FORMAT]
generated() {
    "$daemon" schema "${@:2}" | diff - "$root/config/$1" || {
        printf '%s: make documents writes it\n' "$1"
        return 1
    }
}

the_same_page() {
    mandoc -I os=coalesced -T markdown "$root/config/coalesced-job.5" | diff - "$root/config/JOBS.md"
}

# Cross references to pages that are not installed are no fault of the page.
good_page() {
    local said
    if command -v mandoc >/dev/null; then
        said=$(mandoc -T lint "$1" | grep -v -e 'referenced manual not found' -e 'outdated mandoc.db') || true
    else
        said=$(man --warnings -l "$1" 2>&1 >/dev/null) || true
    fi
    printf '%s' "$said"
    [[ -z $said ]]
}

# words_of PATTERN: the words on standard input that match, each once.
words_of() {
    grep -oE -- "$1" | sort -u
}

# Of this program, and of the commands that are programs of their own.
options_of_help() {
    { "$daemon" --help && "$daemon" plot --help && "$daemon" sweep --help && "$daemon" forward --help; } | words_of '--[a-z][a-z-]*'
}

options_of_page() {
    sed -nE 's/.*Fl -([a-z][a-z-]*).*/--\1/p; s/.*Fl -[a-z-]+ \| -([a-z-]+).*/--\1/p' "$root/scripts/package/coalesced.1" | sort -u
}

commands_of_help() {
    "$daemon" --help | sed -nE 's/^  coalesced ([a-z]+).*/\1/p' | sort -u
}

commands_of_page() {
    sed -nE 's/^\.It Cm ([a-z]+)$/\1/p' "$root/scripts/package/coalesced.1" | sort -u
}

codes_of_help() {
    "$daemon" --help | sed -n '/^Exit status:/,$p' | words_of '\b[0-9]+\b'
}

codes_of_page() {
    sed -nE '/^\.Sh EXIT STATUS/,/^\.Sh EXAMPLES/s/^\.It ([0-9]+)$/\1/p' "$root/scripts/package/coalesced.1" | sort -u
}

# same WHAT: what --help and the page say of it.
same() {
    diff <("$1_of_help") <("$1_of_page")
}

# ---- the schema ----

# Prints the job files of the tests that the schema and the check judge differently, those aside that no schema can judge.
schema_judges() {
    python3 - "$root" "$daemon" <<'PYTHON'
import glob, json, re, subprocess, sys
import jsonschema

root, daemon = sys.argv[1:]
beyond = re.compile(r"(^|/)(My job|deep|server-paths-hidden|recurrent-(small-)?batch\S*|\S*too-(large|many)\S*)\.json$")


def once(pairs):
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


schema = json.load(open(f"{root}/config/job.schema.json"))
jsonschema.Draft202012Validator.check_schema(schema)
validator = jsonschema.Draft202012Validator(schema)
judged = wrong = 0
for path in sorted(glob.glob(f"{root}/test/job/*.json")):
    try:
        job = json.load(open(path, encoding="utf-8"), object_pairs_hook=once)
    except ValueError:
        continue
    judged += 1
    good = subprocess.run([daemon, "check", path], capture_output=True).returncode != 78
    if validator.is_valid(job) != good and not (beyond.search(path) and not good):
        print(f"{path}: the check calls it {'good' if good else 'bad'}, the schema does not")
        wrong += 1
sys.exit(wrong > 0 or judged < 60)
PYTHON
}

# ---- completion ----

# completes WORD... : prints what bash offers for the last word.
completes() (
    PATH=$(dirname "$daemon"):$PATH
    # shellcheck source=scripts/package/coalesced.bash
    source "$root/scripts/package/coalesced.bash"
    COMP_WORDS=(coalesced "$@")
    COMP_CWORD=$#
    COMPREPLY=()
    _coalesced
    printf '%s\n' "${COMPREPLY[@]}"
)

offers() {
    local expected=$1 got
    got=$(completes "${@:2}" | paste -sd ' ')
    [[ $got == "$expected" ]] || {
        printf 'expected %s\ngot      %s\n' "$expected" "$got"
        return 1
    }
}

# Each pointer of the table, one that a kind does not share with the others too.
offers_pointers() {
    diff <(completes run a.json --set / | sort) <("$daemon" schema pointers | sed 's/ .*//; s/$/=/' | sort)
}

mkdir "$scratch/files" && touch "$scratch/files/a.json" "$scratch/files/b.txt" && mkdir "$scratch/files/runs"

check "the schema is the table's" generated job.schema.json
check "coalesced-job(5) is the table's" generated coalesced-job.5 man
if command -v mandoc >/dev/null; then
    check "JOBS.md is coalesced-job(5)" the_same_page
else
    echo 'test_documents.sh: no mandoc: config/JOBS.md is not compared with coalesced-job(5)'
fi
if command -v mandoc >/dev/null || command -v man >/dev/null; then
    check "coalesced(1) is a good page" good_page "$root/scripts/package/coalesced.1"
    check "coalesced-job(5) is a good page" good_page "$root/config/coalesced-job.5"
    check "coalesced-new-environment(1) is a good page" good_page "$root/scripts/package/coalesced-new-environment.1"
fi
check "coalesced(1) has the options of --help" same options
check "coalesced(1) has the commands of --help" same commands
check "coalesced(1) has the exit codes of --help" same codes
if python3 -c 'import jsonschema' 2>/dev/null; then
    check "the schema judges as the check does" schema_judges
else
    echo 'test_documents.sh: Python has no jsonschema: the schema is not compared with the check'
fi
check "commands" offers "run keygen join check evaluate generate play export try status list stop clean page plot sweep forward schema --help --version" ''
check "a command's beginning" offers "check" ch
check "a command's options" offers "--set --run-dir --resume --profile --node --leader --keys --help" run --
check "the options of evaluate" offers "--set --episodes --help" evaluate --
check "another command's options" offers "--words --seed --temperature --help" generate --
check "the options of try" offers "--name --options --steps --seed --limit-s --help" try --
check "the options of list" offers "--running --json --help" list --
check "the options of clean" offers "--older-than --all --dry-run --help" clean --
check "the options of plot" offers "--output --x --y --help" plot --
check "the options of forward" offers "--mlflow --wandb --once --help" forward --
check "the options of sweep" offers "--over --sampler --runs --parallel --stop --storage --set --run-dir --resume --help" sweep --
check "pointers" offers_pointers
check "a pointer's beginning" offers "/stop/episodes= /stop/epochs=" run a.json --set /stop/ep
check "a pointer of a sweep" offers "/stop/episodes= /stop/epochs=" sweep a.json --over /stop/ep
check "a key's names" offers "auto cpu gpu" run a.json --set /device '='
check "a name's beginning" offers "gpu" run a.json --set /device '=' g
check "job files and folders" offers "$scratch/files/runs $scratch/files/a.json" run "$scratch/files/"
finish
