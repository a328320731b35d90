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
    bool terminal; /* stdout is a terminal */
    bool silent;   /* stdout is gone */
    bool progress; /* a progress line stands on the terminal */
    struct monotime progress_due, begin;
    struct replay *replay; /* of a resumed run; else NULL */
    uint64_t count;        /* the newest episode or update */
    double running_reward; /* after the last episode */
    struct line_holdings holdings;
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

static enum status open_files(struct runlog *log, struct error *error)
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
    *log = (struct runlog){.dir_fd = dir_fd,
                           .path = path,
                           .job = job,
                           .log_fd = -1,
                           .jsonl_fd = -1,
                           .terminal = isatty(STDOUT_FILENO) == 1,
                           .begin = monotime_now()};
    enum status status = open_files(log, error);
    if (status != STATUS_OK) {
        free(log);
        return status;
    }
    *out = log;
    return STATUS_OK;
}

void runlog_show_holdings(struct runlog *log, const struct control_status *holdings, uint32_t workers)
{
    log->holdings = (struct line_holdings){.of = holdings, .workers = workers};
}

enum status runlog_reopen(struct runlog *log, struct error *error)
{
    return open_files(log, error);
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

static const char clear_line[] = "\r\033[K";

void runlog_clear_progress(struct runlog *log)
{
    if (log->progress)
        show_text(log, clear_line, sizeof clear_line - 1);
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

static void draw_progress(struct runlog *log, const struct line *line)
{
    char text[sizeof clear_line + LINE_BYTES];
    int length = snprintf(text, sizeof text, "%s%s", clear_line, line->text);
    log->progress = true;
    show_text(log, text, (size_t)length);
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

/* ---- files ---- */

/* Writes one line, whole or not at all. */
static enum status append_line(struct runlog *log, int fd, const char *name, const char *line, size_t bytes,
                               struct error *error)
{
    struct stat before;
    if (fstat(fd, &before) != 0)
        return error_set_errno(error, errno, "cannot look at %s/%s", log->path, name);
    ssize_t written;
    do
        written = write(fd, line, bytes);
    while (written < 0 && errno == EINTR);
    if (written == (ssize_t)bytes)
        return STATUS_OK;
    if (written < 0)
        return error_set_errno(error, errno, "cannot write %s/%s", log->path, name);
    if (written > 0 && ftruncate(fd, before.st_size) != 0)
        log_error("%s/%s ends in half a line: %s", log->path, name, strerror(errno));
    return error_set(error, STATUS_IO, "cannot write %s/%s: there was room for %zd of %zu bytes", log->path,
                     name, written, bytes);
}

static enum status append_json(struct runlog *log, const struct line *line, struct error *error)
{
    return append_line(log, log->jsonl_fd, "episodes.jsonl", line->text, line->length, error);
}

static enum status append_text(struct runlog *log, const struct line *line, struct error *error)
{
    runlog_clear_progress(log);
    show_text(log, line->text, line->length);
    return append_line(log, log->log_fd, "episodes.log", line->text, line->length, error);
}

/* Writes a record's two lines, episodes.jsonl's first; `text` is NULL where /log/every skips the record. A
 * line that a resumed run finds in its logs is compared instead. */
static enum status append_record(struct runlog *log, const struct line *json, const struct line *text,
                                 struct error *error)
{
    bool has_json = false;
    enum status status = STATUS_OK;
    if (log->replay != NULL)
        status = replay_compare(log->replay, json, &has_json, error);
    bool has_text = text == NULL || (has_json && replay_has_text(log->replay, json, text));
    if (status == STATUS_OK && !has_json)
        status = append_json(log, json, error);
    return status == STATUS_OK && !has_text ? append_text(log, text, error) : status;
}

/* ---- events ---- */

enum status runlog_start(struct runlog *log, struct error *error)
{
    struct line line;
    line_start(&line, log->job);
    return append_json(log, &line, error);
}

/* The last update up to `update` that has a line in episodes.jsonl. */
static uint64_t line_before(const struct job *job, uint64_t update)
{
    return job->kind == JOB_MODEL_PARALLEL ? update - update % job->log.every : update;
}

enum status runlog_resume(struct runlog *log, uint64_t update, struct error *error)
{
    struct line line;
    enum status status = replay_open(&log->replay, log->dir_fd, log->path, log->job, error);
    if (status != STATUS_OK)
        return status;
    if (replay_last_update(log->replay) < line_before(log->job, update))
        log_warning("%s/episodes.jsonl ends at update %" PRIu64 ", before the checkpoint's", log->path,
                    replay_last_update(log->replay));
    log->count = update;
    line_resume(&line, log->job, update);
    return append_json(log, &line, error);
}

static enum status finish_line(struct runlog *log, const char *why, struct error *error)
{
    struct line line;
    double job_s = (double)monotime_us_between(log->begin, monotime_now()) * 1e-6;
    if (log->job->kind == JOB_MODEL_PARALLEL)
        line_language_finish(&line, why, log->count, &log->holdings, job_s);
    else if (log->job->kind == JOB_PARAMETER_SERVER)
        line_finish_updates(&line, why, log->count, job_s);
    else
        line_finish_episodes(&line, why, log->count, log->running_reward, job_s);
    return append_json(log, &line, error);
}

enum status runlog_finish(struct runlog *log, const char *why, const struct control_finished *finished,
                          struct error *error)
{
    struct line line;
    if (finished->updates > log->count)
        log->count = finished->updates;
    enum status status = finish_line(log, why, error);
    const bool solved = finished->end == CONTROL_END_SOLVED;
    const bool limited = finished->end == CONTROL_END_FINISHED && log->job->stop.has_running_reward;
    if (status != STATUS_OK || !(solved || limited))
        return status;
    if (solved)
        line_solved(&line, finished->running_reward);
    else
        line_not_solved(&line, log->running_reward, log->count, log->job->stop.running_reward);
    return append_text(log, &line, error);
}

/* ---- records ---- */

static bool is_for_text(const struct runlog *log, uint64_t number)
{
    return number % log->job->log.every == 0;
}

enum status runlog_episode(struct runlog *log, const struct control_episode *record, struct error *error)
{
    struct line json, text;
    line_episode_json(&json, record);
    line_episode_text(&text, record);
    enum status status = append_record(log, &json, is_for_text(log, record->episode) ? &text : NULL, error);
    log->count = record->episode;
    log->running_reward = record->running_reward;
    if (progress_is_due(log)) {
        line_episode_progress(&text, record);
        draw_progress(log, &text);
    }
    return status;
}

/* The lines of an update, in the two kinds of job that have updates. */
struct update_lines {
    void (*json)(struct line *line, const struct control_update *record);
    void (*text)(struct line *line, const struct control_update *record);
    void (*progress)(struct line *line, const struct control_update *record);
};
static const struct update_lines samples_lines = {line_update_json, line_update_text, line_update_progress};
static const struct update_lines language_lines = {line_language_update_json, line_language_update_text,
                                                   line_language_update_progress};

enum status runlog_update(struct runlog *log, const struct control_update *record, struct error *error)
{
    const bool language = log->job->kind == JOB_MODEL_PARALLEL;
    const struct update_lines *lines = language ? &language_lines : &samples_lines;
    struct line json, text;
    lines->json(&json, record);
    lines->text(&text, record);
    const bool in_text = language || is_for_text(log, record->update);
    enum status status = append_record(log, &json, in_text ? &text : NULL, error);
    log->count = record->update;
    if (progress_is_due(log)) {
        lines->progress(&text, record);
        draw_progress(log, &text);
    }
    return status;
}

enum status runlog_epoch(struct runlog *log, const struct control_epoch *record, struct error *error)
{
    struct line json, text;
    if (log->job->kind == JOB_MODEL_PARALLEL) {
        line_language_epoch_json(&json, record, &log->holdings);
        line_language_epoch_text(&text, record);
    } else {
        line_epoch_json(&json, record);
        line_epoch_text(&text, record);
    }
    return append_record(log, &json, &text, error);
}
