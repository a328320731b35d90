/* A library to preload that does to a process what scripts/chaos orders, in the middle of a call.
 *
 *   CHAOS_RUN=DIR CHAOS_ORDER=FILE LD_PRELOAD=build/release/test/preload/chaos.so coalesced run … --run-dir
 * DIR
 *
 * FILE holds one struct order. All processes of the job map it, so that an order reaches those that live and
 * those that are not forked yet. The calls at an order's point are counted over all processes: `skip` of them
 * pass, the `count` calls after these are faults. A fault is a signal that the process sends to itself, or an
 * error that the call returns.
 *
 * The points, and their calls:
 *
 *   FILE         a call that changes a file or folder of DIR
 *   CHECKPOINT   the same in DIR/checkpoints
 *   LINE         a write to DIR/episodes.jsonl or DIR/episodes.log
 *   MESSAGE      a worker sends a message through ZeroMQ or takes one
 *   START        the supervisor makes a worker, or a worker opens its sockets
 *
 * Not for programs under a sanitizer. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum point { POINT_NONE, POINT_FILE, POINT_CHECKPOINT, POINT_LINE, POINT_MESSAGE, POINT_START };
enum call { CALL_WRITES, CALL_MAKES, CALL_CHANGES, CALL_SYNCS };
enum moment { MOMENT_BEFORE, MOMENT_HALF, MOMENT_AFTER };

/* scripts/chaos writes and reads these as eight little-endian words. `point` is written last. */
static struct order {
    uint32_t point;
    int32_t skip, count;
    int32_t signal; /* 0: the call fails with `error` */
    int32_t error;  /* 0: a write writes half */
    uint32_t moment;
    uint32_t hits; /* faults since the file was made */
    int32_t pid;   /* of the last fault */
} * order;
static char run[PATH_MAX];

/* The symbol after this library's; a wrapper asks once. */
#define NEXT(name)                                                                                           \
    static __typeof__(name) *next;                                                                           \
    if (next == NULL)                                                                                        \
    *(void **)&next = dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void chaos_begin(void)
{
    const char *file = getenv("CHAOS_ORDER"), *dir = getenv("CHAOS_RUN");
    const int fd = file == NULL || dir == NULL ? -1 : open(file, O_RDWR | O_CLOEXEC);
    void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *order, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0)
        close(fd);
    if (map == MAP_FAILED) {
        dprintf(STDERR_FILENO, "chaos: CHAOS_RUN and CHAOS_ORDER: expected a folder and a file of orders\n");
        abort();
    }
    snprintf(run, sizeof run, "%s/", dir);
    order = map;
}

/* ---- an order ---- */

/* Whether this call at the point is a fault. */
static bool is_fault(void)
{
    if (__atomic_fetch_sub(&order->skip, 1, __ATOMIC_RELAXED) > 0 ||
        __atomic_fetch_sub(&order->count, 1, __ATOMIC_RELAXED) <= 0)
        return false;
    __atomic_store_n(&order->pid, (int32_t)getpid(), __ATOMIC_RELAXED);
    __atomic_fetch_add(&order->hits, 1, __ATOMIC_RELEASE);
    return true;
}

static uint32_t ordered_point(void)
{
    return order == NULL ? POINT_NONE : __atomic_load_n(&order->point, __ATOMIC_ACQUIRE);
}

/* A stopped process goes on from here when it is continued. */
static void strike(void)
{
    const int saved = errno;
    kill(getpid(), order->signal);
    errno = saved;
}

/* What becomes of a call: `fails` at once with errno set; or it runs, and a signal comes before or after. */
struct fate {
    bool fails, halves, strikes_after;
};

static struct fate fate_of_fault(bool can_halve)
{
    struct fate fate = {0};
    const bool half = can_halve && (order->signal == 0 ? order->error == 0 : order->moment == MOMENT_HALF);
    if (order->signal == 0) {
        fate.fails = order->error != 0;
        fate.halves = half;
        errno = fate.fails ? order->error : errno;
    } else if (half || order->moment == MOMENT_AFTER) {
        fate.halves = half;
        fate.strikes_after = true;
    } else {
        strike();
    }
    return fate;
}

static struct fate fate_at(enum point point)
{
    return ordered_point() == point && is_fault() ? fate_of_fault(false) : (struct fate){0};
}

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), bytes = strlen(end);
    return length >= bytes && strcmp(text + length - bytes, end) == 0;
}

/* A full disk still renames and removes, and a file system that is read-only syncs. */
static bool can_fail(enum call call)
{
    if (order->signal != 0)
        return true;
    switch (order->error) {
    case 0:
        return call == CALL_WRITES;
    case ENOSPC:
        return call == CALL_WRITES || call == CALL_MAKES;
    case EROFS:
        return call != CALL_SYNCS;
    default:
        return true;
    }
}

static bool is_at_point(const char *path, enum call call)
{
    if (strncmp(path, run, strlen(run)) != 0 || !can_fail(call))
        return false;
    switch (ordered_point()) {
    case POINT_FILE:
        return true;
    case POINT_CHECKPOINT:
        return strstr(path, "/checkpoints/") != NULL;
    case POINT_LINE:
        return call == CALL_WRITES &&
               (ends_with(path, "/episodes.jsonl") || ends_with(path, "/episodes.log"));
    default:
        return false;
    }
}

/* The path of a descriptor, or of a name below it; "" if there is none. */
static void find_path(char path[PATH_MAX], int fd, const char *name)
{
    char link[32];
    ssize_t length = 0;
    if (name == NULL || (name[0] != '/' && fd != AT_FDCWD)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        length = readlink(link, path, PATH_MAX - 1);
    }
    path[length > 0 ? length : 0] = '\0';
    if (name != NULL)
        snprintf(path + strlen(path), PATH_MAX - strlen(path), "%s%s", length > 0 ? "/" : "", name);
}

static struct fate fate_of_file(int fd, const char *name, enum call call)
{
    const uint32_t point = ordered_point();
    char path[PATH_MAX];
    const int saved = errno;
    if (point != POINT_FILE && point != POINT_CHECKPOINT && point != POINT_LINE)
        return (struct fate){0};
    find_path(path, fd, name);
    errno = saved;
    return is_at_point(path, call) && is_fault() ? fate_of_fault(call == CALL_WRITES) : (struct fate){0};
}

/* ---- calls ---- */

/* Defines a function that calls the system's, with its fate. */
#define CALL(fate_, result, failure, name, parameters, ...)                                                  \
    result name parameters;                                                                                  \
    result name parameters                                                                                   \
    {                                                                                                        \
        NEXT(name);                                                                                          \
        const struct fate fate = fate_;                                                                      \
        if (fate.fails)                                                                                      \
            return failure;                                                                                  \
        result got = next(__VA_ARGS__);                                                                      \
        if (fate.strikes_after)                                                                              \
            strike();                                                                                        \
        return got;                                                                                          \
    }

/* Writes; a write that a signal halves is completed when the process is continued. */
static ssize_t write_with_fate(int fd, const void *from, size_t bytes, struct fate fate)
{
    static __typeof__(write) *next;
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "write");
    const size_t half = fate.halves && bytes > 1 ? bytes / 2 : bytes;
    if (fate.fails)
        return -1;
    const ssize_t got = next(fd, from, half);
    if (!fate.strikes_after)
        return got;
    strike();
    const ssize_t rest =
        got == (ssize_t)half && half < bytes ? next(fd, (const char *)from + half, bytes - half) : 0;
    return rest < 0 ? got : got + rest;
}

ssize_t write(int fd, const void *from, size_t bytes)
{
    return write_with_fate(fd, from, bytes, fate_of_file(fd, NULL, CALL_WRITES));
}

CALL(fate_of_file(fd, NULL, CALL_SYNCS), int, -1, fsync, (int fd), fd)
CALL(fate_of_file(fd, NULL, CALL_SYNCS), int, -1, fdatasync, (int fd), fd)
CALL(fate_of_file(fd, NULL, CALL_CHANGES), int, -1, ftruncate, (int fd, off_t bytes), fd, bytes)
CALL(fate_of_file(fd, NULL, CALL_MAKES), int, -1, fallocate, (int fd, int mode, off_t at, off_t bytes), fd,
     mode, at, bytes)
CALL(fate_of_file(AT_FDCWD, path, CALL_MAKES), int, -1, mkdir, (const char *path, mode_t mode), path, mode)
CALL(fate_of_file(fd, path, CALL_MAKES), int, -1, mkdirat, (int fd, const char *path, mode_t mode), fd, path,
     mode)
CALL(fate_of_file(fd, path, CALL_CHANGES), int, -1, unlinkat, (int fd, const char *path, int flags), fd, path,
     flags)
CALL(fate_of_file(to_fd, to, CALL_MAKES), int, -1, linkat,
     (int from_fd, const char *from, int to_fd, const char *to, int flags), from_fd, from, to_fd, to, flags)
CALL(fate_of_file(to_fd, to, CALL_CHANGES), int, -1, renameat,
     (int from_fd, const char *from, int to_fd, const char *to), from_fd, from, to_fd, to)
CALL(fate_of_file(to_fd, to, CALL_CHANGES), int, -1, renameat2,
     (int from_fd, const char *from, int to_fd, const char *to, unsigned flags), from_fd, from, to_fd, to,
     flags)

/* The third argument stands in the same place whether a function takes it as one of `...` or not. */
typedef int openat_function(int fd, const char *path, int flags, mode_t mode);

int openat(int fd, const char *path, int flags, ...)
{
    static openat_function *next;
    va_list list;
    va_start(list, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "openat");
    struct fate fate = {0};
    if ((flags & (O_WRONLY | O_RDWR | O_CREAT)) != 0)
        fate = fate_of_file(fd, path, (flags & O_CREAT) != 0 ? CALL_MAKES : CALL_CHANGES);
    if (fate.fails)
        return -1;
    const int got = next(fd, path, flags, mode);
    if (fate.strikes_after)
        strike();
    return got;
}

CALL(fate_at(POINT_START), pid_t, -1, fork, (void), )
CALL(fate_at(POINT_START), int, -1, socketpair, (int domain, int type, int protocol, int pair[2]), domain,
     type, protocol, pair)
CALL(fate_at(POINT_START), int, -1, memfd_create, (const char *name, unsigned flags), name, flags)
CALL(fate_at(POINT_START), int, -1, zmq_bind, (void *socket, const char *address), socket, address)
CALL(fate_at(POINT_START), int, -1, zmq_connect, (void *socket, const char *address), socket, address)

typedef struct zmq_msg_t zmq_msg_t;

CALL(fate_at(POINT_MESSAGE), int, -1, zmq_msg_send, (zmq_msg_t * message, void *socket, int flags), message,
     socket, flags)
CALL(fate_at(POINT_MESSAGE), int, -1, zmq_msg_recv, (zmq_msg_t * message, void *socket, int flags), message,
     socket, flags)
