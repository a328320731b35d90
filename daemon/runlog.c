/* Writes lines to two files and stdout. Supervisor process; its only thread. */
#include "daemon/runlog.h"

#include "daemon/runlog_lines.h"
#include "daemon/runlog_replay.h"
#include "kernels/base/log.h"
#include "kernels/base/monotime.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct runlog {
    int dir_fd;
    const char *path;
    const struct job *job;
    int log_fd, jsonl_fd;
    struct line text, json; /* the newest of each file */
    bool terminal;          /* stdout is a terminal */
    bool silent;            /* stdout is gone */
    bool progress;          /* a progress line stands on the terminal */
    struct monotime progress_due, begin;
    struct replay *replay; /* of a resumed run; else NULL */
    uint64_t count;        /* the newest episode or update */
    double running_reward; /* after the last episode */
};

/* A fifo without a reader would block the open, and later a write. */
static enum status open_file(struct runlog *log, const char *name, int *fd, struct error *error)
{
    struct stat info;
    *fd = openat(log->dir_fd, name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (*fd >= 0 && fstat(*fd, &info) == 0 && S_ISREG(info.st_mode))
        return STATUS_OK;
    int errnum = errno;
    if (*fd < 0 && errnum != ENXIO && errnum != EISDIR)
        return error_set_errno(error, errnum, "cannot open %s/%s", log->path, name);
    if (*fd >= 0)
        close(*fd);
    return error_set(error, STATUS_IO, "cannot open %s/%s: expected a regular file", log->path, name);
}

enum status runlog_reopen(struct runlog *log, struct error *error)
{
    int text, json;
    enum status status = open_file(log, "episodes.log", &text, error);
    if (status != STATUS_OK)
        return status;
    status = open_file(log, "episodes.jsonl", &json, error);
    if (status != STATUS_OK) {
        close(text);
        return status;
    }
    if (log->log_fd >= 0)
        close(log->log_fd);
    if (log->jsonl_fd >= 0)
        close(log->jsonl_fd);
    log->log_fd = text;
    log->jsonl_fd = json;
    return STATUS_OK;
}

enum status runlog_open(struct runlog **out, int dir_fd, const char *path, const struct job *job,
                        struct error *error)
{
    struct runlog *log = calloc(1, sizeof *log);
    if (log == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the logs");
    log->dir_fd = dir_fd;
    log->path = path;
    log->job = job;
    log->log_fd = log->jsonl_fd = -1;
    log->terminal = isatty(STDOUT_FILENO) == 1;
    log->begin = monotime_now();
    enum status status = runlog_reopen(log, error);
    if (status != STATUS_OK) {
        free(log);
        return status;
    }
    *out = log;
    return STATUS_OK;
}

/* ---- stdout ---- */

/* A reader that has stopped reading (a pager, ctrl-S) must not stop the job: a line that would block is not
 * shown. A pipe or terminal that is ready takes a line of this size at once. */
static void show_text(struct runlog *log, const char *text, size_t bytes)
{
    struct pollfd ready = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (log->silent || poll(&ready, 1, 0) != 1)
        return;
    ssize_t written;
    do
        written = write(STDOUT_FILENO, text, bytes);
    while (written < 0 && errno == EINTR);
    if (written < 0 && errno != EAGAIN) {
        log->silent = true;
        log_warning("standard output is gone (%s); the lines go on in %s/episodes.log", strerror(errno),
                    log->path);
    }
}

void runlog_clear_progress(struct runlog *log)
{
    if (log->progress)
        show_text(log, LINE_CLEAR, strlen(LINE_CLEAR));
    log->progress = false;
}

/* At most ten times a second: drawing must not slow a fast job. */
static bool progress_is_due(struct runlog *log)
{
    enum { REDRAW_US = 100000 };
    struct monotime now = monotime_now();
    if (!log->terminal || monotime_before(now, log->progress_due))
        return false;
    log->progress_due = monotime_add_us(now, REDRAW_US);
    return true;
}

static void draw_progress(struct runlog *log, const struct control_message *record)
{
    line_write_progress(&log->text, log->job, record);
    show_text(log, log->text.text, log->text.length);
    log->progress = true;
}

void runlog_close(struct runlog *log)
{
    if (log == NULL)
        return;
    runlog_clear_progress(log);
    replay_close(log->replay);
    close(log->log_fd);
    close(log->jsonl_fd);
    free(log);
}

/* Writes one line, whole or not at all. */
static enum status append_line(struct runlog *log, int fd, const char *name, const struct line *line,
                               struct error *error)
{
    struct stat before;
    if (fstat(fd, &before) != 0)
        return error_set_errno(error, errno, "cannot look at %s/%s", log->path, name);
    ssize_t written;
    do
        written = write(fd, line->text, line->length);
    while (written < 0 && errno == EINTR);
    if (written == (ssize_t)line->length)
        return STATUS_OK;
    if (written < 0)
        return error_set_errno(error, errno, "cannot write %s/%s", log->path, name);
    if (written > 0 && ftruncate(fd, before.st_size) != 0)
        log_error("%s/%s ends in half a line: %s", log->path, name, strerror(errno));
    return error_set(error, STATUS_IO, "cannot write %s/%s: there was room for %zd of %zu bytes", log->path,
                     name, written, line->length);
}

static enum status append_json(struct runlog *log, struct error *error)
{
    return append_line(log, log->jsonl_fd, "episodes.jsonl", &log->json, error);
}

static enum status append_text(struct runlog *log, struct error *error)
{
    runlog_clear_progress(log);
    show_text(log, log->text.text, log->text.length);
    return append_line(log, log->log_fd, "episodes.log", &log->text, error);
}

/* ---- events ---- */

enum status runlog_start(struct runlog *log, struct error *error)
{
    line_write_start(&log->json, log->job, "start", "seed", log->job->seed);
    return append_json(log, error);
}

/* The last update up to `update` that has a line in episodes.jsonl. */
static uint64_t line_before(const struct job *job, uint64_t update)
{
    return job->kind == JOB_MODEL_PARALLEL ? update - update % job->log.every : update;
}

enum status runlog_resume(struct runlog *log, uint64_t update, struct error *error)
{
    enum status status = replay_open(&log->replay, log->dir_fd, log->path, log->job, error);
    if (status != STATUS_OK)
        return status;
    if (replay_last_update(log->replay) < line_before(log->job, update))
        log_warning("%s/episodes.jsonl ends at update %" PRIu64 ", before the checkpoint's", log->path,
                    replay_last_update(log->replay));
    log->count = update;
    line_write_start(&log->json, log->job, "resume", "update", update);
    return append_json(log, error);
}

enum status runlog_finish(struct runlog *log, const char *why, const struct control_finished *finished,
                          const struct control_status *holdings, struct error *error)
{
    if (finished->updates > log->count)
        log->count = finished->updates;
    const struct line_end end = {why, log->count, log->running_reward,
                                 (double)monotime_us_between(log->begin, monotime_now()) * 1e-6};
    line_write_end(&log->json, log->job, &end, holdings);
    const enum status status = append_json(log, error);
    if (status != STATUS_OK)
        return status;
    if (finished->end == CONTROL_END_SOLVED)
        line_write_solved(&log->text, finished->running_reward);
    else if (finished->end == CONTROL_END_FINISHED && log->job->stop.has_running_reward)
        line_write_not_solved(&log->text, log->running_reward, log->count, log->job->stop.running_reward);
    else
        return STATUS_OK;
    return append_text(log, error);
}

/* ---- records ---- */

/* Whether /log/every lets the record into episodes.log. */
static bool is_for_text(const struct runlog *log, const struct control_message *record)
{
    if (record->kind == CONTROL_EPOCH || log->job->kind == JOB_MODEL_PARALLEL)
        return true;
    return control_record_number(record) % log->job->log.every == 0;
}

/* Writes a record's two lines, episodes.jsonl's first. A line that a resumed run finds in its logs is
 * compared instead. */
static enum status append_record(struct runlog *log, const struct control_message *record,
                                 const struct control_status *holdings, struct error *error)
{
    bool has_json = false;
    enum status status = STATUS_OK;
    line_write_json(&log->json, log->job, record, holdings);
    line_write_text(&log->text, log->job, record);
    if (log->replay != NULL)
        status = replay_compare(log->replay, log->json.text, &has_json, error);
    if (status == STATUS_OK && !has_json)
        status = append_json(log, error);
    if (status != STATUS_OK || !is_for_text(log, record) ||
        (has_json && replay_has_text(log->replay, log->json.text, log->text.text)))
        return status;
    return append_text(log, error);
}

enum status runlog_record(struct runlog *log, const struct control_message *record,
                          const struct control_status *holdings, struct error *error)
{
    const enum status status = append_record(log, record, holdings, error);
    if (record->kind == CONTROL_EPOCH)
        return status;
    log->count = control_record_number(record);
    if (record->kind == CONTROL_EPISODE)
        log->running_reward = record->body.episode.running_reward;
    if (progress_is_due(log))
        draw_progress(log, record);
    return status;
}
