/* Writes records as Events, encoded by protobuf-c, into TFRecords. Supervisor process; its only thread. */
#include "daemon/log/tensorboard.h"

#include "kernels/base/crc32c.h"
#include "kernels/base/monotime.h"
#include "kernels/base/text.h"

#include <assert.h>
#include <errno.h>
#include <events.pb-c.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SCALARS_MAX = 96,
    TAG_BYTES = 80,
    BUFFER_BYTES = 65536,
    HEADER_BYTES = sizeof(uint64_t) + sizeof(uint32_t),
    FOOTER_BYTES = sizeof(uint32_t),
    /* A scalar: two fields with their keys and lengths. An event: the time, the step, the summary's key. */
    RECORD_BYTES_MAX = HEADER_BYTES + 64 + SCALARS_MAX * (TAG_BYTES + 16) + FOOTER_BYTES,
    FLUSH_US = 1000000,
};

_Static_assert(CONTROL_METRICS_MAX + 24 <= SCALARS_MAX, "an update of PPO has fewer than 24 tags");
_Static_assert(RECORD_BYTES_MAX <= BUFFER_BYTES, "an event fits an empty buffer");

struct tensorboard {
    struct path run;
    bool failed; /* nothing is written until /log/tensorboard has been off */
    int fd;      /* the event file; -1: none is open */
    char name[160];
    off_t written; /* bytes of whole events in the file */
    struct monotime flush_due;
    size_t count; /* bytes in the buffer */
    uint8_t buffer[BUFFER_BYTES];
};

/* The scalars of one event. */
struct scalars {
    Events__Value values[SCALARS_MAX], *pointers[SCALARS_MAX];
    char tags[SCALARS_MAX][TAG_BYTES];
    size_t count;
};

/* ---- what a record has to show ---- */

static void add_named(struct scalars *scalars, const char *tag, size_t bytes, double value)
{
    if (!isfinite(value))
        return;
    const size_t i = scalars->count++;
    text_show(scalars->tags[i], TAG_BYTES, tag, bytes, TAG_BYTES);
    events__value__init(&scalars->values[i]);
    scalars->values[i].tag = scalars->tags[i];
    scalars->values[i].value_case = EVENTS__VALUE__VALUE_SIMPLE_VALUE;
    scalars->values[i].simple_value = (float)value;
    scalars->pointers[i] = &scalars->values[i];
}

static void add_scalar(struct scalars *scalars, const char *tag, double value)
{
    add_named(scalars, tag, strlen(tag), value);
}

static void add_rate(struct scalars *scalars, const char *tag, uint64_t count, double seconds)
{
    if (seconds > 0)
        add_scalar(scalars, tag, (double)count / seconds);
}

static void add_figures(struct scalars *scalars, const struct control_figures *r)
{
    for (size_t i = 0; i < control_figure_count; i++) {
        const struct control_figure *figure = &control_figure_list[i];
        char tag[64];
        snprintf(tag, sizeof tag, "%s/%s", figure->group, figure->name);
        if (control_figure_is_shown(figure, r, CONTROL_IN_EVENTS))
            add_scalar(scalars, tag, control_figure_value(figure, r));
    }
    if (r->has_evaluation) {
        add_scalar(scalars, "eval/mean_reward", r->evaluation.mean_reward);
        add_scalar(scalars, "eval/mean_ep_length", r->evaluation.mean_ep_length);
        add_scalar(scalars, "eval/success_rate", r->evaluation.success_rate);
    }
}

static uint64_t add_episode(struct scalars *scalars, const struct control_episode *r)
{
    if (r->has_figures) {
        add_figures(scalars, &r->figures);
    } else {
        add_scalar(scalars, "rollout/ep_rew_mean", r->running_reward);
        add_scalar(scalars, "rollout/ep_rew", r->reward);
        add_scalar(scalars, "train/loss", r->loss);
    }
    add_rate(scalars, "time/fps", r->env_steps, r->timing.episode_s);
    /* A plug-in names its metrics, so a name may be any text. */
    for (uint32_t i = 0; i < r->metrics.count && i < CONTROL_METRICS_MAX; i++)
        add_named(scalars, r->metrics.of[i].name, strnlen(r->metrics.of[i].name, CONTROL_METRIC_NAME_BYTES),
                  r->metrics.of[i].mean);
    return r->has_figures ? r->figures.total_timesteps : r->episode;
}

static uint64_t add_update(struct scalars *scalars, const struct control_update *r)
{
    add_scalar(scalars, "train/loss", r->loss);
    add_scalar(scalars, "train/learning_rate", r->lr);
    add_rate(scalars, "time/samples_per_second", r->samples - r->timing.samples_before, r->timing.round_s);
    return r->update;
}

/* The updates' own events show an epoch's mean loss. */
static uint64_t add_epoch(struct scalars *scalars, const struct control_epoch *r, bool is_language)
{
    if (r->evaluated == 0)
        return r->update;
    add_scalar(scalars, "eval/loss", r->evaluation_loss);
    if (is_language)
        add_scalar(scalars, "eval/perplexity", exp(r->evaluation_loss));
    else
        add_scalar(scalars, "eval/accuracy", (double)r->correct / (double)r->evaluated);
    return r->update;
}

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

/* Adds an event of the present time to the buffer, which has room for it. */
static void buffer_event(struct tensorboard *board, Events__Event *event)
{
    event->wall_time = unix_time_s();
    const size_t length = events__event__get_packed_size(event);
    uint8_t *record = board->buffer + board->count, *body = record + HEADER_BYTES;
    assert(HEADER_BYTES + length + FOOTER_BYTES <= RECORD_BYTES_MAX);
    put_little_endian(record, length, sizeof(uint64_t));
    put_little_endian(record + sizeof(uint64_t), masked_crc(record, sizeof(uint64_t)), sizeof(uint32_t));
    events__event__pack(event, body);
    put_little_endian(body + length, masked_crc(body, length), sizeof(uint32_t));
    board->count += HEADER_BYTES + length + FOOTER_BYTES;
}

/* ---- the event file ---- */

/* A process that opens two files within a microsecond keeps both. */
static enum status create_file(struct tensorboard *board, int folder_fd, struct error *error)
{
    enum { FILES_MAX = 10000 };
    char host[64] = "";
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        snprintf(host, sizeof host, "localhost");
    for (unsigned n = 0; n < FILES_MAX; n++) {
        struct timespec now; /* parts of a second, too: TensorBoard reads the files in order of their names */
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(board->name, sizeof board->name, "events.out.tfevents.%lld.%06ld.%s.%ld.%u",
                 (long long)now.tv_sec, now.tv_nsec / 1000, host, (long)getpid(), n);
        board->fd = openat(folder_fd, board->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (board->fd >= 0)
            return STATUS_OK;
        if (errno != EEXIST)
            break;
    }
    return error_set_errno(error, errno, "cannot make %s/tensorboard/%s", board->run.text, board->name);
}

static enum status open_file(struct tensorboard *board, struct error *error)
{
    char text[PATH_MAX];
    int folder;
    snprintf(text, sizeof text, "%s/tensorboard", board->run.text);
    const struct path path = path_below(board->run, text);
    if (!file_make_folder(path) && errno != EEXIST)
        return error_set_errno(error, errno, "cannot make %s", text);
    enum status status = file_open_folder(&folder, path, error);
    if (status != STATUS_OK)
        return status;
    status = create_file(board, folder, error);
    close(folder);
    board->written = 0;
    board->flush_due = monotime_now();
    if (status == STATUS_OK) {
        char version[] = "brain.Event:2"; /* protobuf-c takes no const text */
        Events__Event event = EVENTS__EVENT__INIT;
        event.what_case = EVENTS__EVENT__WHAT_FILE_VERSION;
        event.file_version = version;
        buffer_event(board, &event);
    }
    return status;
}

/* After an error the buffer is empty. */
static enum status flush(struct tensorboard *board, struct error *error)
{
    const size_t count = board->count;
    board->count = 0;
    board->flush_due = monotime_add_us(monotime_now(), FLUSH_US);
    if (file_write(board->fd, board->buffer, count)) {
        board->written += (off_t)count;
        return STATUS_OK;
    }
    error_set_errno(error, errno, "cannot write %s/tensorboard/%s", board->run.text, board->name);
    const bool cut = ftruncate(board->fd, board->written) == 0;
    (void)cut; /* TensorBoard reads a file up to half an event, too */
    return error->status;
}

/* Writes what has gathered, and closes the file in any case. */
static enum status close_file(struct tensorboard *board, struct error *error)
{
    if (board->fd < 0)
        return STATUS_OK;
    enum status status = board->count > 0 ? flush(board, error) : STATUS_OK;
    if (close(board->fd) != 0 && status == STATUS_OK)
        status =
            error_set_errno(error, errno, "cannot write %s/tensorboard/%s", board->run.text, board->name);
    board->fd = -1;
    return status;
}

static enum status add_event(struct tensorboard *board, uint64_t step, struct scalars *scalars,
                             struct error *error)
{
    enum status status = board->fd < 0 ? open_file(board, error) : STATUS_OK;
    if (status == STATUS_OK && BUFFER_BYTES - board->count < RECORD_BYTES_MAX)
        status = flush(board, error);
    if (status != STATUS_OK)
        return status;
    Events__Summary summary = EVENTS__SUMMARY__INIT;
    Events__Event event = EVENTS__EVENT__INIT;
    summary.n_value = scalars->count;
    summary.value = scalars->pointers;
    event.step = (int64_t)step;
    event.what_case = EVENTS__EVENT__WHAT_SUMMARY;
    event.summary = &summary;
    buffer_event(board, &event);
    return monotime_before(monotime_now(), board->flush_due) ? STATUS_OK : flush(board, error);
}

struct tensorboard *tensorboard_new(struct path run)
{
    struct tensorboard *board = calloc(1, sizeof *board);
    if (board == NULL)
        return NULL;
    board->run = run;
    board->fd = -1;
    return board;
}

enum status tensorboard_free(struct tensorboard *board, struct error *error)
{
    const enum status status = board != NULL ? close_file(board, error) : STATUS_OK;
    free(board);
    return status;
}

enum status tensorboard_record(struct tensorboard *board, const struct job *job,
                               const struct control_message *record, struct error *error)
{
    struct scalars scalars;
    struct error ignored;
    scalars.count = 0;
    if (!job->log.tensorboard) {
        board->failed = false;
        return close_file(board, error);
    }
    const uint64_t step = record->kind == CONTROL_EPISODE ? add_episode(&scalars, &record->body.episode)
                          : record->kind == CONTROL_UPDATE
                              ? add_update(&scalars, &record->body.update)
                              : add_epoch(&scalars, &record->body.epoch, job->kind == JOB_MODEL_PARALLEL);
    if (board->failed || scalars.count == 0)
        return STATUS_OK;
    const enum status status = add_event(board, step, &scalars, error);
    board->failed = status != STATUS_OK;
    if (board->failed)
        close_file(board, &ignored);
    return status;
}
