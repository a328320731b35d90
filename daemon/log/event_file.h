/* Writes one event file, as TensorBoard reads it: scalars by tag and step.
 *
 * The file is a sequence of TFRecords. Each holds one Event (daemon/log/events.proto):
 *
 *     uint64 length | uint32 masked CRC-32C of the length | the Event | uint32 masked CRC-32C of the Event
 *
 * All numbers are little-endian. Masked: rotated right by 15 bits, plus 0xa282ead8. The first Event is the
 * file's version.
 *
 * Events gather in memory. They are written when the buffer is full, with the first event that comes a second
 * or more after the last write, and at the end. A process that is killed loses what it gathered since then.
 * Only a loss of power leaves half an event at a file's end. Nothing is synced. One thread; blocks on the
 * disk. */
#ifndef DAEMON_LOG_EVENT_FILE_H
#define DAEMON_LOG_EVENT_FILE_H

#include "kernels/base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { EVENT_SCALARS_MAX = 96, EVENT_TAG_BYTES = 80, EVENT_NAME_BYTES = 160 };

struct event_scalar {
    char tag[EVENT_TAG_BYTES]; /* UTF-8 */
    double value;              /* written as a float */
};

struct event_file;

/* Makes a new file in the folder `folder_fd`, named by the time, the host and the process:
 * events.out.tfevents.SECONDS.HOST.PID.N, with the lowest N that is free. Messages name it as
 * `path`/tensorboard/NAME; `path`, the run directory's, outlives the file, and `folder_fd` may be closed.
 * STATUS_IO and others by errno. */
enum status event_file_open(struct event_file **out, int folder_fd, const char *path, struct error *error);

/* Adds one event at the present time: `count` scalars (1..EVENT_SCALARS_MAX) of `step`. After an error, which
 * names the file, the file ends with the last whole event that it took, and takes no more. */
enum status event_file_add(struct event_file *file, uint64_t step, const struct event_scalar *scalars,
                           size_t count, struct error *error);

/* Writes what has gathered, and closes; NULL is allowed. The file is freed in any case. Errors as
 * event_file_add. */
enum status event_file_close(struct event_file *file, struct error *error);

#endif
