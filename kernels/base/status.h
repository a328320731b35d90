/* The room of what everyone uses: status, log, clock, arena, random numbers, files, text, processors. It
 * includes nothing else of the project; every other room includes it.
 *
 *     status    the kind of a result; 0 is success
 *     error     a failure's status, and its sentence for a person
 *     arena     blocks of memory from a source, which it keeps for reuse
 *     key       the numbers from which a random draw is computed
 *     stream    one use of random numbers, whose draws depend on no other's
 *     team      threads that share the pieces of one computation
 *     output    a file that takes its name once it is whole
 *     note      which call of a plug-in a process is in, for another process to read
 *     span      a stretch of the profiled thread's time with one kind of work
 *
 * This header: the result of a call that can fail. Such a function returns an `enum status`. Where a person
 * reads of the failure, it also takes a `struct error *` and fills it with one sentence that names the object
 * (file, key, peer, shape) and the expected value. Nothing here allocates or blocks; all of it is safe from
 * any thread. */
#ifndef KERNELS_BASE_STATUS_H
#define KERNELS_BASE_STATUS_H

#include <stddef.h>

/* The numbers cross the wire in replies (worker/net/PROTOCOL.md): add at the end, never renumber. */
enum status {
    STATUS_OK = 0,
    STATUS_AGAIN = 1,        /* nothing now; ask later. Never crosses the wire. */
    STATUS_INVALID = 2,      /* an argument, a key or a message that breaks its contract */
    STATUS_NOT_FOUND = 3,    /* no such method, peer or file */
    STATUS_PERMISSION = 4,   /* the caller may not do this, or the file may not be opened */
    STATUS_TIMEOUT = 5,      /* the deadline passed first; the effect may still happen, at most once */
    STATUS_PEER_DIED = 6,    /* the peer ended, said BYE, or lost its session */
    STATUS_SHUTDOWN = 7,     /* the job is ending */
    STATUS_BUSY = 8,         /* a limit on what may be outstanding is reached, or another holds the thing */
    STATUS_NO_MEMORY = 9,    /* the allocator said no */
    STATUS_IO = 10,          /* the system said no: disk, socket */
    STATUS_CORRUPT = 11,     /* data that should be whole is not */
    STATUS_UNAVAILABLE = 12, /* the device or facility is not on this machine */
    STATUS_INTERNAL = 13,    /* our own mistake, or a worker that ended without a reason */
    STATUS_COUNT
};

enum { ERROR_TEXT_BYTES = 480 };

/* One failure, told to a person. `status` is STATUS_OK and `text` empty until something failed. */
struct error {
    enum status status;
    char text[ERROR_TEXT_BYTES];
};

/* The status's name in lower case ("peer died"); "unknown status" for a number that is none. */
const char *status_name(enum status status);

/* The exit code (sysexits.h) with which a process ends that failed with `status`. */
int status_exit_code(enum status status);

/* Fills `error` (which may be NULL) and returns `status`, so that a function can end with
 * `return error_set(error, STATUS_INVALID, "…")`. A text too long for the struct is cut. */
enum status error_set(struct error *error, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Like error_set, with ": " and the system's words for `errnum` behind the text; chooses the status from
 * `errnum` (ENOENT: not found, EACCES and EPERM: permission, ENOMEM: no memory, otherwise I/O). */
enum status error_set_errno(struct error *error, int errnum, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* After a failure to make a file: turns STATUS_NOT_FOUND into STATUS_IO, because the exit code of "not found"
 * tells of a missing input. Returns the error's status. */
enum status error_of_output(struct error *error);

#ifdef __clang_analyzer__
/* The analyzer does not see into another file's function. Unless it is told that a failure is never OK, it
 * follows every failure on as a success. */
#define error_set(error, status, ...) ((error_set)(error, status, __VA_ARGS__), (status))
#define error_set_errno(error, errnum, ...) ((error_set_errno)(error, errnum, __VA_ARGS__), STATUS_IO)
#endif

#endif
