/* A library to preload that counts the allocations of a program's own code.
 *
 *   COUNT_ALLOCATIONS_FILE=counts LD_PRELOAD=build/release/test/preload/count_allocations.so coalesced run …
 *
 * Each process appends one line to the file when it exits: its command line, its pid, and the number of calls
 * of malloc, calloc, realloc, reallocarray, aligned_alloc, memalign, posix_memalign, strdup and strndup from
 * the program's own code. Two runs of different length with equal counts show that a steady state allocates
 * nothing. own_code.h says which calls are the program's own; here only those of the main program are.
 *
 * Calls may come from any thread, so the counter is atomic; everything else is written once, before main.
 * A process that a signal ends writes no line, nor does one between fork and exec, whose count is its
 * parent's. A file that cannot be written is reported on stderr, since a missing line must not count as zero.
 *
 * Not for programs under the address or thread sanitizer, whose allocators must be loaded first. The C
 * library's allocator is called by the names that it exports for such libraries (__libc_malloc), because a
 * lookup of a function would itself allocate. */
#include "test/preload/own_code.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

void *memalign(size_t alignment, size_t bytes);

enum { LINE_BYTES_MAX = OWN_TITLE_BYTES_MAX + 64 };

static char title[OWN_TITLE_BYTES_MAX]; /* the command line, its arguments separated by blanks */
static char file[PATH_MAX];             /* empty: write nothing */
static bool child_before_exec;
static uint64_t calls;

static inline void count_call(const void *from)
{
    if (own_segment_of((uintptr_t)from) != NULL)
        __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
}

static void note_title(void)
{
    size_t length = own_command_line(title, sizeof title);
    while (length > 0 && title[length - 1] == '\0')
        length--;
    for (size_t i = 0; i < length; i++)
        if (title[i] == '\0' || title[i] == '\n')
            title[i] = ' ';
}

static void forget_parent(void)
{
    child_before_exec = true;
}

/* Reads the environment at start, because the program may change it later. */
__attribute__((constructor)) static void count_allocations_begin(void)
{
    const char *name = getenv("COUNT_ALLOCATIONS_FILE");
    if (name != NULL) {
        snprintf(file, sizeof file, "%s", name);
    }
    note_title();
    own_code_note((const char *const[]){NULL});
    pthread_atfork(NULL, NULL, forget_parent);
}

/* One write, so that lines of processes that end at the same time do not mix. */
__attribute__((destructor)) static void count_allocations_end(void)
{
    static bool written;
    if (file[0] == '\0' || child_before_exec || __atomic_exchange_n(&written, true, __ATOMIC_RELAXED)) {
        return;
    }
    char line[LINE_BYTES_MAX];
    int length = snprintf(line, sizeof line, "%s %ld %llu\n", title, (long)getpid(),
                          (unsigned long long)__atomic_load_n(&calls, __ATOMIC_RELAXED));
    int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, (size_t)length) != length) {
        dprintf(STDERR_FILENO, "count_allocations: %s: %s\n", file, strerror(errno));
    }
    if (fd >= 0) {
        close(fd);
    }
}

/* Writes the line before _exit too, which runs no destructors. */
void _exit(int status)
{
    count_allocations_end();
    syscall(SYS_exit_group, status);
    __builtin_unreachable();
}

void _Exit(int status)
{
    _exit(status);
}

void *malloc(size_t bytes)
{
    count_call(__builtin_return_address(0));
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    count_call(__builtin_return_address(0));
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    count_call(__builtin_return_address(0));
    return __libc_realloc(memory, bytes);
}

void *reallocarray(void *memory, size_t count, size_t bytes)
{
    count_call(__builtin_return_address(0));
    size_t product;
    if (__builtin_mul_overflow(count, bytes, &product)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(memory, product);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    count_call(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    count_call(__builtin_return_address(0));
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    count_call(__builtin_return_address(0));
    if (alignment % sizeof(void *) != 0 || alignment == 0 || (alignment & (alignment - 1)) != 0) {
        return EINVAL;
    }
    void *block = __libc_memalign(alignment, bytes);
    if (block == NULL) {
        return ENOMEM;
    }
    *memory = block;
    return 0;
}

static char *copy_string(const char *text, size_t length)
{
    char *copy = __libc_malloc(length + 1);
    if (copy != NULL) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

char *strdup(const char *text)
{
    count_call(__builtin_return_address(0));
    return copy_string(text, strlen(text));
}

char *strndup(const char *text, size_t length_max)
{
    count_call(__builtin_return_address(0));
    return copy_string(text, strnlen(text, length_max));
}
