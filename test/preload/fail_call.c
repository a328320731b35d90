/* A library to preload that fails one call of a program's own code.
 *
 *   FAIL_CALL_TRACE=trace LD_PRELOAD=build/release/test/preload/fail_call.so coalesced run …
 *   FAIL_CALL=pserver.1:52ad0a3d:2:28 FAIL_CALL_DONE=done LD_PRELOAD=… coalesced run …
 *
 * With FAIL_CALL_TRACE each call that can fail appends a line to that file: the pid, the process's role, the
 * class of the call ("memory", "write", …), the function, the number of the call's place, and the place
 * itself: the return addresses up to main, as addresses of the program's file. A role is "pserver.1" for a
 * worker, "fork" for a process between fork and exec, else the command ("run"). A place is thus a stack, so
 * that the allocations of one helper for two callers are two places.
 *
 * With FAIL_CALL=ROLE:PLACE:N:ERRNO the N-th call at that place, in a process of that role, fails with that
 * number in errno; with 0 for ERRNO it is a write that writes half. The call that fails writes its line to
 * the file FAIL_CALL_DONE, which it must itself create: where that file is already there nothing fails, so
 * that a worker's successor does not fail again. Threads make the order of calls differ from run to run;
 * counting by place keeps the N-th call the same one.
 *
 * A call is the program's own as in own_code.h. Allocations of libcjson, libpng, libjpeg and libz count too,
 * because each is reported to the program. Failing calls behave as the system's do: a FILE is marked as
 * failed, close closes. Calls on stderr and stdout's poll are left alone.
 *
 * Why not Debian's libfiu: its POSIX preload fails calls of libzmq and oneDNN too, which abort, and it cannot
 * say "the second call of this stack in the second server". Needs frame pointers in the program; not for
 * programs under a sanitizer. */
#include "test/preload/own_code.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

enum { DEPTH_MAX = 24, LINE_BYTES_MAX = 1024, ROLE_BYTES = 64 };

static const char own_plugins[] = "libcoalesced-";
static const char *const own_parts[] = {own_plugins, "libcjson", "libpng", "libjpeg", "libz.so", NULL};

static struct {
    bool on;
    char role[ROLE_BYTES];
    uint32_t place;
    uint32_t number; /* of the calls at that place */
    int error;       /* 0: write half */
    char done[4096];
    uint32_t calls; /* at that place, so far */
} armed;
static char role[ROLE_BYTES];
static int trace_fd = -1;

/* ---- start ---- */

static void name_role(void)
{
    char line[OWN_TITLE_BYTES_MAX];
    const char *words[6] = {0};
    const size_t length = own_command_line(line, sizeof line);
    size_t count = 0;
    for (size_t at = 0; at < length && count < 6; at += strlen(line + at) + 1)
        words[count++] = line + at;
    if (count == 6 && strcmp(words[1], "worker") == 0)
        snprintf(role, sizeof role, "%.32s.%.16s", words[3], words[5]);
    else
        snprintf(role, sizeof role, "%.32s", count > 1 ? words[1] : "none");
}

static void begin_child(void)
{
    snprintf(role, sizeof role, "fork");
    __atomic_store_n(&armed.calls, 0, __ATOMIC_RELAXED);
}

static void arm(void)
{
    const char *fault = getenv("FAIL_CALL"), *done = getenv("FAIL_CALL_DONE");
    if (fault == NULL)
        return;
    armed.on =
        sscanf(fault, "%63[^:]:%x:%u:%d", armed.role, &armed.place, &armed.number, &armed.error) == 4 &&
        done != NULL && strlen(done) < sizeof armed.done;
    if (armed.on)
        memcpy(armed.done, done, strlen(done) + 1);
    else
        dprintf(STDERR_FILENO, "fail_call: FAIL_CALL=%s: expected ROLE:PLACE:N:ERRNO, and FAIL_CALL_DONE\n",
                fault);
}

/* The number is out of the way of descriptors that tests and workers fix. */
static int keep_away(int fd)
{
    const int moved = fd < 0 ? -1 : (int)syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 900);
    if (fd >= 0)
        syscall(SYS_close, fd);
    return moved;
}

__attribute__((constructor)) static void fail_call_begin(void)
{
    const char *trace = getenv("FAIL_CALL_TRACE");
    name_role();
    own_code_note(own_parts);
    pthread_atfork(NULL, NULL, begin_child);
    arm();
    if (trace != NULL)
        trace_fd = keep_away(
            (int)syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
}

/* ---- a call ---- */

struct call {
    const char *class, *function;
    const struct own_segment *segments[DEPTH_MAX];
    uintptr_t places[DEPTH_MAX];
    size_t depth;
    uint32_t place;
};

/* FNV-1a. */
static uint32_t hash_word(uint32_t hash, uint64_t word)
{
    for (unsigned i = 0; i < 8; i++)
        hash = (hash ^ (uint8_t)(word >> 8 * i)) * 16777619U;
    return hash;
}

/* Walks the frames of the program's own code. Debian's libraries have no frame pointers: the walk ends there.
 */
static bool call_find(struct call *call, void *const *frame)
{
    const struct own_segment *segment;
    call->place = 2166136261U;
    for (call->depth = 0; call->depth < DEPTH_MAX; frame = frame[0]) {
        const uintptr_t from = (uintptr_t)frame[1];
        segment = own_segment_of(from);
        if (segment == NULL)
            break;
        call->segments[call->depth] = segment;
        call->places[call->depth++] = from - segment->base;
        call->place = hash_word(call->place, from - segment->base);
        if (segment->part[0] != '\0' && segment->part != own_plugins)
            break;
    }
    for (const char *c = call->function; *c != '\0'; c++)
        call->place = hash_word(call->place, (uint8_t)*c);
    return call->depth > 0;
}

/* One write, so that lines of several processes do not mix. */
static void call_write(const struct call *call, int fd)
{
    char line[LINE_BYTES_MAX];
    int length = snprintf(line, sizeof line, "%ld %s %s %s %x", (long)getpid(), role, call->class,
                          call->function, call->place);
    for (size_t i = 0; i < call->depth && length < LINE_BYTES_MAX - 64; i++)
        length += snprintf(line + length, sizeof line - (size_t)length, " %s+%lx", call->segments[i]->part,
                           (unsigned long)call->places[i]);
    line[length++] = '\n';
    syscall(SYS_write, fd, line, (size_t)length);
}

/* Whether this call is the one that fails. The first process to get here makes the file. */
static bool call_is_chosen(const struct call *call)
{
    if (!armed.on || call->place != armed.place || strcmp(role, armed.role) != 0)
        return false;
    if (__atomic_add_fetch(&armed.calls, 1, __ATOMIC_RELAXED) != armed.number)
        return false;
    const int fd =
        (int)syscall(SYS_openat, AT_FDCWD, armed.done, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0)
        return false;
    call_write(call, fd);
    syscall(SYS_close, fd);
    return true;
}

/* True: the call must fail, and errno is set. */
static __attribute__((noinline)) bool fails(const char *class, const char *function, void *const *frame)
{
    struct call call = {.class = class, .function = function};
    const int saved = errno;
    if ((trace_fd < 0 && !armed.on) || own_segment_of((uintptr_t)frame[1]) == NULL ||
        !call_find(&call, frame))
        return false;
    if (trace_fd >= 0)
        call_write(&call, trace_fd);
    const bool chosen = call_is_chosen(&call);
    errno = chosen ? armed.error : saved;
    return chosen;
}

#define FAILS(class) fails(class, __func__, __builtin_frame_address(0))

/* The function of this name that the program would have called. */
#define NEXT(name)                                                                                           \
    static __typeof__(&(name)) next;                                                                         \
    if (next == NULL)                                                                                        \
    *(void **)&next = dlsym(RTLD_NEXT, #name)

/* A function that does nothing but fail or go on. */
#define CALL(class, type, failure, name, parameters, ...)                                                    \
    type name parameters                                                                                     \
    {                                                                                                        \
        NEXT(name);                                                                                          \
        return FAILS(class) ? (failure) : next(__VA_ARGS__);                                                 \
    }

/* ---- memory ---- */

void *malloc(size_t bytes)
{
    return FAILS("memory") ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    return FAILS("memory") ? NULL : __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return FAILS("memory") ? NULL : __libc_realloc(memory, bytes);
}

void *reallocarray(void *memory, size_t count, size_t bytes)
{
    size_t product;
    if (__builtin_mul_overflow(count, bytes, &product)) {
        errno = ENOMEM;
        return NULL;
    }
    return FAILS("memory") ? NULL : __libc_realloc(memory, product);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return FAILS("memory") ? NULL : __libc_memalign(alignment, bytes);
}

CALL("memory", char *, NULL, strdup, (const char *text), text)
CALL("memory", char *, NULL, strndup, (const char *text, size_t bytes), text, bytes)
CALL("memory", char *, NULL, realpath, (const char *path, char *resolved), path, resolved)
CALL("memory", FILE *, NULL, open_memstream, (char **text, size_t *bytes), text, bytes)
CALL("memory", int, -1, setenv, (const char *name, const char *value, int replace), name, value, replace)
CALL("memory", int, -1, scandir,
     (const char *path, struct dirent ***list, int (*take)(const struct dirent *),
      int (*compare)(const struct dirent **, const struct dirent **)),
     path, list, take, compare)
CALL("memory", int, -1, scandirat,
     (int folder, const char *path, struct dirent ***list, int (*take)(const struct dirent *),
      int (*compare)(const struct dirent **, const struct dirent **)),
     folder, path, list, take, compare)
CALL("memory", int, -1, nftw, (const char *path, __nftw_func_t visit, int descriptors, int flags), path,
     visit, descriptors, flags)

/* A memory stream and a file fail alike: the stream is marked. The C library's getline does not mark the
 * stream when its line's memory cannot grow (Debian 12's glibc). */
static void stream_mark(FILE *stream)
{
    stream->_flags |= _IO_ERR_SEEN;
}

ssize_t __getdelim(char **line, size_t *capacity, int end, FILE *stream) /* getline calls it */
{
    NEXT(__getdelim);
    if (!FAILS("read"))
        return next(line, capacity, end, stream);
    if (errno != ENOMEM)
        stream_mark(stream);
    return -1;
}

/* ---- writing ---- */

static ssize_t half(ssize_t whole)
{
    return whole > 1 ? whole / 2 : whole;
}

ssize_t write(int fd, const void *bytes, size_t count)
{
    NEXT(write);
    if (fd == STDERR_FILENO || !FAILS("write"))
        return next(fd, bytes, count);
    return armed.error == 0 ? next(fd, bytes, (size_t)half((ssize_t)count)) : -1;
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at)
{
    NEXT(pwrite);
    if (!FAILS("write"))
        return next(fd, bytes, count, at);
    return armed.error == 0 ? next(fd, bytes, (size_t)half((ssize_t)count), at) : -1;
}

#define STREAM_CALL(type, failure, name, parameters, ...)                                                    \
    type name parameters                                                                                     \
    {                                                                                                        \
        NEXT(name);                                                                                          \
        if (stream == stderr || !FAILS("stream"))                                                            \
            return next(__VA_ARGS__);                                                                        \
        stream_mark(stream);                                                                                 \
        return failure;                                                                                      \
    }

STREAM_CALL(int, EOF, fputs, (const char *text, FILE *stream), text, stream)
STREAM_CALL(int, EOF, fputc, (int c, FILE *stream), c, stream)
STREAM_CALL(int, EOF, putc, (int c, FILE *stream), c, stream)
STREAM_CALL(size_t, 0, fwrite, (const void *items, size_t size, size_t count, FILE *stream), items, size,
            count, stream)
STREAM_CALL(int, EOF, fflush, (FILE * stream), stream)

int puts(const char *text)
{
    NEXT(puts);
    if (!FAILS("stream"))
        return next(text);
    stream_mark(stdout);
    return EOF;
}

int fprintf(FILE *stream, const char *format, ...)
{
    va_list list;
    if (stream != stderr && FAILS("stream")) {
        stream_mark(stream);
        return -1;
    }
    va_start(list, format);
    const int length = vfprintf(stream, format, list);
    va_end(list);
    return length;
}

int printf(const char *format, ...)
{
    va_list list;
    if (FAILS("stream")) {
        stream_mark(stdout);
        return -1;
    }
    va_start(list, format);
    const int length = vfprintf(stdout, format, list);
    va_end(list);
    return length;
}

/* ---- files ---- */

CALL("sync", int, -1, fsync, (int fd), fd)
CALL("sync", int, -1, fdatasync, (int fd), fd)
CALL("sync", int, -1, msync, (void *at, size_t bytes, int flags), at, bytes, flags)
CALL("rename", int, -1, rename, (const char *from, const char *to), from, to)
CALL("rename", int, -1, renameat, (int from_fd, const char *from, int to_fd, const char *to), from_fd, from,
     to_fd, to)
CALL("rename", int, -1, renameat2,
     (int from_fd, const char *from, int to_fd, const char *to, unsigned int flags), from_fd, from, to_fd, to,
     flags)
CALL("rename", int, -1, link, (const char *from, const char *to), from, to)
CALL("rename", int, -1, linkat, (int from_fd, const char *from, int to_fd, const char *to, int flags),
     from_fd, from, to_fd, to, flags)
CALL("remove", int, -1, unlink, (const char *path), path)
CALL("remove", int, -1, unlinkat, (int folder, const char *path, int flags), folder, path, flags)
CALL("remove", int, -1, rmdir, (const char *path), path)
CALL("remove", int, -1, remove, (const char *path), path)
CALL("make", int, -1, mkdir, (const char *path, mode_t mode), path, mode)
CALL("make", int, -1, mkdirat, (int folder, const char *path, mode_t mode), folder, path, mode)
CALL("size", int, -1, ftruncate, (int fd, off_t bytes), fd, bytes)
CALL("size", int, -1, fallocate, (int fd, int mode, off_t at, off_t bytes), fd, mode, at, bytes)
CALL("stat", int, -1, stat, (const char *path, struct stat *info), path, info)
CALL("stat", int, -1, lstat, (const char *path, struct stat *info), path, info)
CALL("stat", int, -1, fstat, (int fd, struct stat *info), fd, info)
CALL("stat", int, -1, fstatat, (int folder, const char *path, struct stat *info, int flags), folder, path,
     info, flags)
CALL("stat", int, -1, access, (const char *path, int mode), path, mode)
CALL("stat", ssize_t, -1, readlink, (const char *path, char *text, size_t bytes), path, text, bytes)
CALL("read", ssize_t, -1, read, (int fd, void *bytes, size_t count), fd, bytes, count)
CALL("read", ssize_t, -1, pread, (int fd, void *bytes, size_t count, off_t at), fd, bytes, count, at)
CALL("read", struct dirent *, NULL, readdir, (DIR * folder), folder)
CALL("open", DIR *, NULL, opendir, (const char *path), path)
CALL("open", DIR *, NULL, fdopendir, (int fd), fd)
CALL("open", FILE *, NULL, fopen, (const char *path, const char *mode), path, mode)
CALL("open", FILE *, NULL, fdopen, (int fd, const char *mode), fd, mode)
CALL("open", int, -1, dup2, (int from, int to), from, to)
CALL("open", int, -1, memfd_create, (const char *name, unsigned int flags), name, flags)
CALL("open", int, -1, eventfd, (unsigned int count, int flags), count, flags)
CALL("open", int, -1, signalfd, (int fd, const sigset_t *set, int flags), fd, set, flags)
CALL("open", int, -1, flock, (int fd, int operation), fd, operation)
CALL("open", int, -1, setrlimit, (__rlimit_resource_t resource, const struct rlimit *limit), resource, limit)
CALL("open", int, -1, getrlimit, (__rlimit_resource_t resource, struct rlimit *limit), resource, limit)

/* The third argument stands in the same place whether a function takes it as one of `...` or not. */
typedef int open_function(const char *path, int flags, mode_t mode);
typedef int openat_function(int folder, const char *path, int flags, mode_t mode);
typedef int fcntl_function(int fd, int command, void *value);

int open(const char *path, int flags, ...)
{
    static open_function *next;
    va_list list;
    va_start(list, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "open");
    return FAILS("open") ? -1 : next(path, flags, mode);
}

int openat(int folder, const char *path, int flags, ...)
{
    static openat_function *next;
    va_list list;
    va_start(list, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(list, mode_t) : 0;
    va_end(list);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "openat");
    return FAILS("open") ? -1 : next(folder, path, flags, mode);
}

int fcntl(int fd, int command, ...)
{
    static fcntl_function *next;
    va_list list;
    va_start(list, command);
    void *value = va_arg(list, void *);
    va_end(list);
    if (next == NULL)
        *(void **)&next = dlsym(RTLD_NEXT, "fcntl");
    return FAILS("open") ? -1 : next(fd, command, value);
}

int close(int fd)
{
    const bool failed = FAILS("close");
    const int error = errno;
    const int result = (int)syscall(SYS_close, fd);
    if (failed)
        errno = error;
    return failed ? -1 : result;
}

int fclose(FILE *stream)
{
    NEXT(fclose);
    const bool failed = FAILS("close");
    const int error = errno;
    const int result = next(stream);
    if (failed)
        errno = error;
    return failed ? EOF : result;
}

/* ---- mappings, processes, sockets ---- */

CALL("map", void *, MAP_FAILED, mmap,
     (void *at, size_t bytes, int protection, int flags, int fd, off_t offset), at, bytes, protection, flags,
     fd, offset)
CALL("socket", int, -1, socket, (int domain, int type, int protocol), domain, type, protocol)
CALL("socket", int, -1, socketpair, (int domain, int type, int protocol, int pair[2]), domain, type, protocol,
     pair)
CALL("socket", ssize_t, -1, sendmsg, (int fd, const struct msghdr *message, int flags), fd, message, flags)
CALL("socket", ssize_t, -1, recvmsg, (int fd, struct msghdr *message, int flags), fd, message, flags)
CALL("wait", int, -1, poll, (struct pollfd * waits, nfds_t count, int ms), waits, count, ms)
CALL("wait", int, -1, ppoll,
     (struct pollfd * waits, nfds_t count, const struct timespec *time, const sigset_t *mask), waits, count,
     time, mask)
CALL("process", pid_t, -1, fork, (void), )
CALL("process", int, -1, sched_setscheduler, (pid_t pid, int policy, const struct sched_param *values), pid,
     policy, values)

int pthread_create(pthread_t *thread, const pthread_attr_t *settings, void *(*run)(void *), void *arg)
{
    NEXT(pthread_create);
    return FAILS("process") ? armed.error : next(thread, settings, run, arg);
}

/* The program executes itself with at most so many arguments. */
int execl(const char *path, const char *first, ...)
{
    enum { ARGUMENTS_MAX = 15 };
    char *words[ARGUMENTS_MAX + 1] = {(char *)(uintptr_t)first};
    va_list list;
    if (FAILS("process"))
        return -1;
    va_start(list, first);
    for (size_t i = 1; i < ARGUMENTS_MAX && words[i - 1] != NULL; i++)
        words[i] = va_arg(list, char *);
    va_end(list);
    return execv(path, words);
}

/* A plug-in's code is the program's own. */
void *dlopen(const char *path, int flags)
{
    NEXT(dlopen);
    void *library = next(path, flags);
    own_code_note(own_parts);
    return library;
}

/* ---- libzmq's functions that take memory and descriptors ---- */

typedef struct zmq_msg_t zmq_msg_t;
void *zmq_ctx_new(void);
void *zmq_socket(void *context, int type);
int zmq_bind(void *socket, const char *address);
int zmq_connect(void *socket, const char *address);
int zmq_setsockopt(void *socket, int option, const void *value, size_t bytes);
int zmq_msg_init_size(zmq_msg_t *message, size_t bytes);

CALL("zmq", void *, NULL, zmq_ctx_new, (void), )
CALL("zmq", void *, NULL, zmq_socket, (void *context, int type), context, type)
CALL("zmq", int, -1, zmq_bind, (void *socket, const char *address), socket, address)
CALL("zmq", int, -1, zmq_connect, (void *socket, const char *address), socket, address)
CALL("zmq", int, -1, zmq_setsockopt, (void *socket, int option, const void *value, size_t bytes), socket,
     option, value, bytes)

/* A message of so few bytes lies in its zmq_msg_t, and cannot fail. */
int zmq_msg_init_size(zmq_msg_t *message, size_t bytes)
{
    enum { INLINE_BYTES = 33 };
    NEXT(zmq_msg_init_size);
    return bytes > INLINE_BYTES && FAILS("zmq") ? -1 : next(message, bytes);
}
