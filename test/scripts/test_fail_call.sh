#!/usr/bin/env bash
# Tests test/preload/fail_call.c with a small program whose calls are known. The program is compiled here without a
# sanitizer, in every build, because the library is not for sanitized programs.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

preload=${BUILD:?names the build folder}/test/preload/fail_call.so

cat >"$scratch/calls.c" <<'SOURCE'
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *volatile kept;

static void __attribute__((noinline)) take(const char *who)
{
    kept = malloc(10);
    printf("%s: %s\n", who, kept != NULL ? "memory" : strerror(errno));
}

static void __attribute__((noinline)) first(void)
{
    take("first");
    kept = NULL;
}

static void __attribute__((noinline)) second(void)
{
    take("second");
    kept = NULL;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IONBF, 0);
    first();
    for (int i = 0; i < 3; i++)
        second();
    fclose(fopen("/dev/null", "r")); /* allocates, in the C library's name */
    if (argc > 1 && strcmp(argv[1], "spawn") == 0) {
        if (fork() == 0) {
            take("child");
            execl(argv[0], argv[0], "worker", "--role", "clerk", "--index", "7", (char *)NULL);
        }
        wait(NULL);
    }
    printf("wrote %zd\n", write(STDOUT_FILENO, "12345678\n", 9));
    return 0;
}
SOURCE
read -ra compiler <<<"${CC:-gcc}"
"${compiler[@]}" -O0 -fno-builtin -w -o "$scratch/calls" "$scratch/calls.c"

# Lists the calls of one class: role, function and place of each.
traced() {
    rm -f "$scratch/trace"
    FAIL_CALL_TRACE=$scratch/trace LD_PRELOAD=$preload "$scratch/calls" "${@:2}" >/dev/null &&
        awk -v class="$1" '$3 == class { print $2, $4, $5 }' "$scratch/trace"
}

# The place of the N-th call of a class.
place_of() {
    traced "$1" "${@:3}" | awk -v n="$2" 'NR == n { print $3 }'
}

# failing FAULT [ARG]...: the program's output under that fault.
failing() {
    FAIL_CALL=$1 FAIL_CALL_DONE=$scratch/done LD_PRELOAD=$preload "$scratch/calls" "${@:2}"
}

own_calls() {
    [[ $(traced memory run | wc -l) -eq 4 && $(traced memory run | sort -u | wc -l) -eq 2 ]]
}

roles() {
    diff <(printf '%s\n' clerk.7 fork spawn) <(traced memory spawn | cut -d ' ' -f 1 | sort -u)
}

nth_call() {
    rm -f "$scratch/done"
    failing "run:$(place_of memory 2 run):2:28" run >"$scratch/out"
    diff - "$scratch/out" <<'OUT' && grep -q ' run memory malloc ' "$scratch/done"
first: memory
second: memory
second: No space left on device
second: memory
12345678
wrote 9
OUT
}

only_once() {
    : >"$scratch/done"
    failing "run:$(place_of memory 1 run):1:12" run >"$scratch/out"
    ! grep -q memory: "$scratch/out" && grep -q '^first: memory' "$scratch/out"
}

half_write() {
    rm -f "$scratch/done"
    failing "run:$(place_of write 1 run):1:0" run | tail -1 | diff - <(printf '1234wrote 4\n')
}

wrong_fault() {
    [[ $(failing "run:nonsense" run 2>&1 >/dev/null) == *"FAIL_CALL=run:nonsense: expected ROLE:PLACE:N:ERRNO"* ]]
}

check "the program's own calls are listed, those of one function for two callers as two places" own_calls
check "a process between fork and exec, and a worker, have roles of their own" roles
check "the N-th call at a place fails with the errno that is asked for, and the others do not" nth_call
check "nothing fails where a fault has been before" only_once
check "a write can write half" half_write
check "a fault that cannot be read is reported" wrong_fault
finish
