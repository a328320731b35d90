#!/usr/bin/env bash
# Tests test/preload/count_allocations.c with a small program whose allocations are known. The program is compiled here
# without a sanitizer, in every build, because the library is not for sanitized programs.
set -euo pipefail

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
# shellcheck source=test/shell.bash
source "$here/../shell.bash"

: "${COUNT_ALLOCATIONS_SO:?names the library to test}"
counts=$scratch/counts

cat >"$scratch/allocate.c" <<'SOURCE'
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *volatile kept;

static void once_each(void)
{
    void *moved = malloc(10);
    kept = moved;
    moved = realloc(moved, 10000);
    kept = calloc(3, 5);
    kept = reallocarray(moved, 4, 10000);
    kept = aligned_alloc(64, 128);
    if (((size_t)kept & 63) != 0 || posix_memalign((void **)&moved, 4096, 8192) != 0) {
        abort();
    }
    kept = moved;
    kept = strdup("a");
    kept = strndup("long", 2);
    if (strcmp(kept, "lo") != 0) {
        abort();
    }
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 0;
    for (int i = 0; i < rounds; i++) {
        once_each();
    }
    if (strcmp(argv[1], "library") == 0) { /* fopen allocates, in the C library's name */
        for (int i = 0; i < 100; i++) {
            fclose(fopen("/dev/null", "r"));
        }
    }
    if (strcmp(argv[1], "fork") == 0) {
        if (fork() == 0) {
            _exit(0);
        }
        if (fork() == 0) {
            execl(argv[0], argv[0], "child", "2", (char *)NULL);
        }
        while (wait(NULL) > 0) {
        }
    }
    if (strcmp(argv[1], "_exit") == 0) {
        _exit(3);
    }
    return 0;
}
SOURCE
read -ra compiler <<<"${CC:-gcc}"
"${compiler[@]}" -O0 -w -o "$scratch/allocate" "$scratch/allocate.c"

allocate() {
    rm -f "$counts"
    COUNT_ALLOCATIONS_FILE=$counts LD_PRELOAD=$COUNT_ALLOCATIONS_SO "$scratch/allocate" "$@"
}

# The file must hold exactly the lines named by the arguments, pids aside, in any order.
counted() {
    diff <(printf '%s\n' "$@" | sort) <(sed -E "s|^$scratch/||; s/ [0-9]+ ([0-9]+)$/ \1/" "$counts" | sort)
}

nothing() {
    allocate plain && counted "allocate plain 0"
}

each_once() {
    allocate plain 1 && counted "allocate plain 1 8"
}

ten_times() {
    allocate plain 10 && counted "allocate plain 10 80"
}

library() {
    allocate library 1 && counted "allocate library 1 8"
}

by_exit() {
    local code=0
    allocate _exit 5 || code=$?
    [[ $code -eq 3 ]] && counted "allocate _exit 5 40"
}

children() {
    allocate fork 1 && counted "allocate fork 1 8" "allocate child 2 16"
}

unwritable() {
    local words
    words=$(COUNT_ALLOCATIONS_FILE=/nowhere/counts LD_PRELOAD=$COUNT_ALLOCATIONS_SO \
        "$scratch/allocate" plain 2>&1) && [[ $words == *"/nowhere/counts: No such file or directory" ]]
}

check "a program that allocates nothing" nothing
check "each function counts once" each_once
check "ten rounds count tenfold" ten_times
check "what the C library allocates does not count" library
check "a process that ends by _exit is counted" by_exit
check "a child before exec writes no line, one after exec its own" children
check "a file that cannot be written is told" unwritable
finish
