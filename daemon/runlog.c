/* Writes lines to two files and stdout. Supervisor process; its only thread. */
#include "daemon/runlog.h"

#include "daemon/runlog_lines.h"
#include "daemon/runlog_replay.h"
#include "daemon/tensorboard.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "kernels/base/monotime.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
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
    bool wrote_text;        /* episodes.log has got a line since it was opened */
    struct monotime progress_due, begin;
    char tail[RUNLOG_TAIL_LINES][RUNLOG_TAIL_BYTES]; /* a ring */
    uint64_t tail_count;
    struct replay *replay;       /* of a resumed run; else NULL */
    uint64_t count;              /* the newest episode or update */
    uint64_t logged[LINE_KINDS]; /* the highest number of each kind that this process has logged */
    double running_reward;       /* after the last episode */
    struct tensorboard board;
    struct error lost; /* of a file that was left and could not be synced; STATUS_OK: none */
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

/* A file is synced when it is left: a checkpoint syncs the files that have the logs' names by then. */
static void leave_file(struct runlog *log, int fd, const char *name)
{
    if (fd < 0)
        return;
    if (fdatasync(fd) != 0)
        error_set_errno(&log->lost, errno, "cannot write %s/%s to the disk", log->path, name);
    close(fd);
}

/* Opens both files, and syncs their names. After an error neither is open. */
static enum status open_files(struct runlog *log, int *text, int *json, struct error *error)
{
    enum status status = open_file(log, "episodes.log", text, error);
    if (status != STATUS_OK)
        return status;
    status = open_file(log, "episodes.jsonl", json, error);
    if (status == STATUS_OK && fsync(log->dir_fd) != 0) {
        status = error_set_errno(error, errno, "cannot write the directory %s to the disk", log->path);
        close(*json);
    }
    if (status != STATUS_OK)
        close(*text);
    return status;
}

enum status runlog_reopen(struct runlog *log, struct error *error)
{
    int text, json;
    const enum status status = open_files(log, &text, &json, error);
    if (status != STATUS_OK)
        return status;
    leave_file(log, log->log_fd, "episodes.log");
    leave_file(log, log->jsonl_fd, "episodes.jsonl");
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
    tensorboard_init(&log->board, dir_fd, path);
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
    struct error error;
    if (log == NULL)
        return;
    runlog_clear_progress(log);
    if (tensorboard_fini(&log->board, &error) != STATUS_OK)
        log_warning("%s: the last events for TensorBoard are lost", error.text);
    replay_close(log->replay);
    close(log->log_fd);
    close(log->jsonl_fd);
    free(log);
}

static void cut_half_line(const struct runlog *log, int fd, const char *name, off_t whole)
{
    struct stat now;
    if ((fstat(fd, &now) != 0 || now.st_size != whole) && ftruncate(fd, whole) != 0)
        log_error("%s/%s ends in half a line: %s", log->path, name, strerror(errno));
}

/* Writes one line, whole or not at all. */
static enum status append_line(struct runlog *log, int fd, const char *name, const struct line *line,
                               struct error *error)
{
    struct stat before;
    if (fstat(fd, &before) != 0)
        return error_set_errno(error, errno, "cannot look at %s/%s", log->path, name);
    if (file_write(fd, line->text, line->length))
        return STATUS_OK;
    error_set_errno(error, errno, "cannot write %s/%s", log->path, name);
    cut_half_line(log, fd, name, before.st_size);
    return error->status;
}

static enum status append_json(struct runlog *log, struct error *error)
{
    return append_line(log, log->jsonl_fd, "episodes.jsonl", &log->json, error);
}

static enum status append_text(struct runlog *log, struct error *error)
{
    runlog_clear_progress(log);
    if (!log_output(log->text.text, log->text.length))
        show_text(log, log->text.text, log->text.length);
    log->wrote_text = true;
    char *tail = log->tail[log->tail_count++ % RUNLOG_TAIL_LINES];
    snprintf(tail, RUNLOG_TAIL_BYTES, "%.*s", (int)strcspn(log->text.text, "\n"), log->text.text);
    return append_line(log, log->log_fd, "episodes.log", &log->text, error);
}

unsigned runlog_tail(const struct runlog *log, const char *lines[RUNLOG_TAIL_LINES])
{
    const uint64_t count = log->tail_count < RUNLOG_TAIL_LINES ? log->tail_count : RUNLOG_TAIL_LINES;
    for (uint64_t i = 0; i < count; i++)
        lines[i] = log->tail[(log->tail_count - count + i) % RUNLOG_TAIL_LINES];
    return (unsigned)count;
}

/* ---- events ---- */

enum status runlog_start(struct runlog *log, struct error *error)
{
    line_write_start(&log->json, log->job);
    return append_json(log, error);
}

/* The last update up to `update` that has a line in episodes.jsonl. */
static uint64_t line_before(const struct job *job, uint64_t update)
{
    return job->kind == JOB_MODEL_PARALLEL ? update - update % job->log.every : update;
}

enum status runlog_resume(struct runlog *log, uint64_t update, double running_reward,
                          const struct line_restart *cause, struct error *error)
{
    const char *unit = log->job->kind == JOB_REINFORCE ? "episode" : "update";
    replay_close(log->replay);
    log->replay = NULL;
    enum status status = cause != NULL ? runlog_reopen(log, error) : STATUS_OK;
    if (status == STATUS_OK)
        status = replay_open(&log->replay, log->dir_fd, log->path, log->job, error);
    if (status != STATUS_OK)
        return status;
    if (cause == NULL && replay_last_number(log->replay) < line_before(log->job, update))
        log_warning("%s/episodes.jsonl ends at %s %" PRIu64 ", before the checkpoint's", log->path, unit,
                    replay_last_number(log->replay));
    log->count = update;
    log->running_reward = running_reward;
    line_write_resumed(&log->json, log->job, update, cause);
    return append_json(log, error);
}

enum status runlog_restart(struct runlog *log, const struct line_restart *restart, struct error *error)
{
    line_write_restarted(&log->json, restart);
    return append_json(log, error);
}

/* Whether the run has ended before with the line that is to be written, and did nothing since. */
static bool has_end(const struct runlog *log)
{
    return log->replay != NULL && !log->wrote_text && replay_ends_with(log->replay, log->text.text);
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
        line_write_solved(&log->text, log->job, finished->reward);
    else if (finished->end == CONTROL_END_FINISHED &&
             (log->job->stop.has_running_reward || log->job->stop.has_evaluation_reward))
        line_write_not_solved(&log->text, log->job, finished->reward, log->count);
    else
        return STATUS_OK;
    return has_end(log) ? STATUS_OK : append_text(log, error);
}

/* ---- records ---- */

/* Whether /log/every lets the record into episodes.log. */
static bool is_for_text(const struct runlog *log, const struct control_message *record)
{
    if (record->kind == CONTROL_EPOCH || log->job->kind == JOB_MODEL_PARALLEL)
        return true;
    return control_record_number(record) % log->job->log.every == 0;
}

/* Whether a resumed run finds the record's line in episodes.log. An epoch that is not in episodes.jsonl may
 * have an evaluation that its older line lacks. */
static bool has_text(const struct runlog *log, const struct control_message *record, bool has_json)
{
    return log->replay != NULL && (has_json || record->kind != CONTROL_EPOCH) &&
           replay_has_text(log->replay, log->json.text, log->text.text);
}

/* The logs are what a run must not lose; events for TensorBoard may be lost. */
static void show_in_tensorboard(struct runlog *log, const struct control_message *record)
{
    struct error error;
    if (tensorboard_record(&log->board, log->job, record, &error) == STATUS_OK)
        return;
    runlog_clear_progress(log);
    log_warning("%s: TensorBoard gets no more of this run; the logs go on", error.text);
}

/* Writes a record's two lines, episodes.jsonl's first. A line that a resumed run finds in its logs is
 * compared instead. A line that this process has logged may be in a file that was moved away since. */
static enum status append_record(struct runlog *log, const struct control_message *record,
                                 const struct control_status *holdings, struct error *error)
{
    bool has_json = false;
    enum status status = STATUS_OK;
    line_write_json(&log->json, log->job, record, holdings);
    line_write_text(&log->text, log->job, record);
    const struct line_key key = line_key_of_json(log->json.text);
    if (log->replay != NULL)
        status = replay_compare(log->replay, log->json.text, &has_json, error);
    if (status != STATUS_OK || key.number <= log->logged[key.kind])
        return status;
    log->logged[key.kind] = key.number;
    if (!has_json)
        status = append_json(log, error);
    if (!has_json && status == STATUS_OK)
        show_in_tensorboard(log, record);
    if (status != STATUS_OK || !is_for_text(log, record) || has_text(log, record, has_json))
        return status;
    return append_text(log, error);
}

/* The line of such an epoch has null in the loss's place. */
static void warn_of_held_out_loss(struct runlog *log, const struct control_epoch *epoch)
{
    if (epoch->evaluated == 0 || isfinite(epoch->evaluation_loss))
        return;
    runlog_clear_progress(log);
    log_warning("epoch %" PRIu64 ", update %" PRIu64
                ": the loss on held-out data is %s: expected a finite number; training goes on",
                epoch->epoch, epoch->update, isnan(epoch->evaluation_loss) ? "not a number" : "infinite");
}

enum status runlog_record(struct runlog *log, const struct control_message *record,
                          const struct control_status *holdings, struct error *error)
{
    enum status status = append_record(log, record, holdings, error);
    if (status == STATUS_OK && log->lost.status != STATUS_OK) {
        *error = log->lost;
        status = error->status;
    }
    if (record->kind == CONTROL_EPOCH) {
        warn_of_held_out_loss(log, &record->body.epoch);
        return status;
    }
    log->count = control_record_number(record);
    if (record->kind == CONTROL_EPISODE)
        log->running_reward = record->body.episode.running_reward;
    if (progress_is_due(log))
        draw_progress(log, record);
    return status;
}
