/* The names, exit codes and messages of failures. Pure functions; any thread. */
#include "kernels/base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

/* Here are the functions themselves, whatever the analyzer is told in the header. */
#undef error_set
#undef error_set_errno

/* "Bad job file": the one exit code of ours that sysexits.h calls otherwise (EX_CONFIG). */
static const struct {
    const char *name;
    int exit_code;
} statuses[STATUS_COUNT] = {
    [STATUS_OK] = {"ok", 0},
    [STATUS_AGAIN] = {"again", EX_TEMPFAIL},
    [STATUS_INVALID] = {"invalid", EX_CONFIG},
    [STATUS_NOT_FOUND] = {"not found", EX_NOINPUT},
    [STATUS_PERMISSION] = {"permission", EX_NOPERM},
    [STATUS_TIMEOUT] = {"timeout", EX_SOFTWARE},
    [STATUS_PEER_DIED] = {"peer died", EX_SOFTWARE},
    [STATUS_SHUTDOWN] = {"shutdown", 0},
    [STATUS_BUSY] = {"busy", EX_TEMPFAIL},
    [STATUS_NO_MEMORY] = {"no memory", EX_SOFTWARE},
    [STATUS_IO] = {"i/o", EX_IOERR},
    [STATUS_CORRUPT] = {"corrupt", EX_DATAERR},
    [STATUS_UNAVAILABLE] = {"unavailable", EX_UNAVAILABLE},
    [STATUS_INTERNAL] = {"internal", EX_SOFTWARE},
};

const char *status_name(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? statuses[status].name : "unknown status";
}

int status_exit_code(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? statuses[status].exit_code : EX_SOFTWARE;
}

enum status error_set(struct error *error, enum status status, const char *format, ...)
{
    if (error != NULL) {
        va_list list;
        va_start(list, format);
        error->status = status;
        vsnprintf(error->text, sizeof error->text, format, list);
        va_end(list);
    }
    return status;
}

static enum status status_of_errno(int errnum)
{
    switch (errnum) {
    case ENOENT:
    case ENOTDIR:
        return STATUS_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return STATUS_PERMISSION;
    case ENOMEM:
        return STATUS_NO_MEMORY;
    default:
        return STATUS_IO;
    }
}

enum status error_set_errno(struct error *error, int errnum, const char *format, ...)
{
    enum status status = status_of_errno(errnum);
    if (error != NULL) {
        va_list list;
        va_start(list, format);
        error->status = status;
        int length = vsnprintf(error->text, sizeof error->text, format, list);
        va_end(list);
        if (length >= 0 && (size_t)length < sizeof error->text)
            snprintf(error->text + length, sizeof error->text - (size_t)length, ": %s", strerror(errnum));
    }
    return status;
}

enum status error_of_output(struct error *error)
{
    if (error->status == STATUS_NOT_FOUND)
        error->status = STATUS_IO;
    return error->status;
}
