/* Writes Events into TFRecords, encoded by protobuf-c. Supervisor process; its only thread. */
#include "daemon/log/event_file.h"

#include "kernels/base/crc32c.h"
#include "kernels/base/file.h"
#include "kernels/base/monotime.h"

#include <assert.h>
#include <errno.h>
#include <events.pb-c.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    BUFFER_BYTES = 65536,
    HEADER_BYTES = sizeof(uint64_t) + sizeof(uint32_t),
    FOOTER_BYTES = sizeof(uint32_t),
    /* A scalar: two fields with their keys and lengths. An event: the time, the step, the summary's key. */
    EVENT_BYTES_MAX = 64 + EVENT_SCALARS_MAX * (EVENT_TAG_BYTES + 16),
    FLUSH_US = 1000000,
};

_Static_assert(HEADER_BYTES + EVENT_BYTES_MAX + FOOTER_BYTES <= BUFFER_BYTES,
               "an event fits an empty buffer");

struct event_file {
    const char *path;
    int fd;
    char name[EVENT_NAME_BYTES];
    off_t written; /* bytes of whole events in the file */
    bool failed;
    struct monotime flush_due;
    size_t count; /* bytes in the buffer */
    uint8_t buffer[BUFFER_BYTES];
};

/* ---- encoding ---- */

static void put_little_endian(uint8_t *to, uint64_t number, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        to[i] = (uint8_t)(number >> 8 * i);
}

static uint32_t masked_crc(const void *bytes, size_t count)
{
    const uint32_t crc = crc32c(bytes, count);
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static double time_of_day(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Adds the event's record to the buffer, which has room for it. */
static void buffer_event(struct event_file *file, const Events__Event *event)
{
    const size_t length = events__event__get_packed_size(event);
    uint8_t *record = file->buffer + file->count, *body = record + HEADER_BYTES;
    assert(length <= EVENT_BYTES_MAX);
    put_little_endian(record, length, sizeof(uint64_t));
    put_little_endian(record + sizeof(uint64_t), masked_crc(record, sizeof(uint64_t)), sizeof(uint32_t));
    events__event__pack(event, body);
    put_little_endian(body + length, masked_crc(body, length), sizeof(uint32_t));
    file->count += HEADER_BYTES + length + FOOTER_BYTES;
}

static void buffer_version(struct event_file *file)
{
    char version[] = "brain.Event:2";
    Events__Event event = EVENTS__EVENT__INIT;
    event.wall_time = time_of_day();
    event.what_case = EVENTS__EVENT__WHAT_FILE_VERSION;
    event.file_version = version;
    buffer_event(file, &event);
}

static void buffer_scalars(struct event_file *file, uint64_t step, const struct event_scalar *scalars,
                           size_t count)
{
    Events__Value values[EVENT_SCALARS_MAX], *pointers[EVENT_SCALARS_MAX];
    char tags[EVENT_SCALARS_MAX][EVENT_TAG_BYTES]; /* protobuf-c takes no const text */
    Events__Summary summary = EVENTS__SUMMARY__INIT;
    Events__Event event = EVENTS__EVENT__INIT;
    for (size_t i = 0; i < count; i++) {
        snprintf(tags[i], sizeof tags[i], "%s", scalars[i].tag);
        events__value__init(&values[i]);
        values[i].tag = tags[i];
        values[i].value_case = EVENTS__VALUE__VALUE_SIMPLE_VALUE;
        values[i].simple_value = (float)scalars[i].value;
        pointers[i] = &values[i];
    }
    summary.n_value = count;
    summary.value = pointers;
    event.wall_time = time_of_day();
    event.step = (int64_t)step;
    event.what_case = EVENTS__EVENT__WHAT_SUMMARY;
    event.summary = &summary;
    buffer_event(file, &event);
}

/* ---- the file ---- */

/* The lowest free number, so that a process that opens two files in one second keeps both. */
static enum status create_file(struct event_file *file, int folder_fd, struct error *error)
{
    enum { FILES_MAX = 10000 };
    char host[64] = "";
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        snprintf(host, sizeof host, "localhost");
    for (unsigned n = 0; n < FILES_MAX; n++) {
        struct timespec
            now; /* in parts of a second, too: TensorBoard reads the files in order of their names */
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(file->name, sizeof file->name, "events.out.tfevents.%lld.%06ld.%s.%ld.%u",
                 (long long)now.tv_sec, now.tv_nsec / 1000, host, (long)getpid(), n);
        file->fd = openat(folder_fd, file->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file->fd >= 0)
            return STATUS_OK;
        if (errno != EEXIST)
            break;
    }
    return error_set_errno(error, errno, "cannot make %s/tensorboard/%s", file->path, file->name);
}

static enum status flush(struct event_file *file, struct error *error)
{
    if (file->failed || file->count == 0)
        return STATUS_OK;
    file->flush_due = monotime_add_us(monotime_now(), FLUSH_US);
    if (file_write(file->fd, file->buffer, file->count)) {
        file->written += (off_t)file->count;
        file->count = 0;
        return STATUS_OK;
    }
    error_set_errno(error, errno, "cannot write %s/tensorboard/%s", file->path, file->name);
    file->failed = true;
    const bool cut = ftruncate(file->fd, file->written) == 0;
    (void)cut; /* TensorBoard reads a file up to half an event, too */
    return error->status;
}

enum status event_file_open(struct event_file **out, int folder_fd, const char *path, struct error *error)
{
    struct event_file *file = calloc(1, sizeof *file);
    if (file == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an event file of %s", path);
    file->path = path;
    file->flush_due = monotime_now();
    const enum status status = create_file(file, folder_fd, error);
    if (status != STATUS_OK) {
        free(file);
        return status;
    }
    buffer_version(file);
    *out = file;
    return STATUS_OK;
}

enum status event_file_add(struct event_file *file, uint64_t step, const struct event_scalar *scalars,
                           size_t count, struct error *error)
{
    enum status status = STATUS_OK;
    assert(count >= 1 && count <= EVENT_SCALARS_MAX);
    if (BUFFER_BYTES - file->count < HEADER_BYTES + EVENT_BYTES_MAX + FOOTER_BYTES)
        status = flush(file, error);
    if (status != STATUS_OK || file->failed)
        return status;
    buffer_scalars(file, step, scalars, count);
    return monotime_before(monotime_now(), file->flush_due) ? STATUS_OK : flush(file, error);
}

enum status event_file_close(struct event_file *file, struct error *error)
{
    if (file == NULL)
        return STATUS_OK;
    enum status status = flush(file, error);
    if (close(file->fd) != 0 && status == STATUS_OK)
        status = error_set_errno(error, errno, "cannot write %s/tensorboard/%s", file->path, file->name);
    free(file);
    return status;
}
