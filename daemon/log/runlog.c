/* Writes a run's lines to its two logs and to stdout. Supervisor process; its only thread. */
#include "daemon/log/runlog.h"

#include "daemon/log/log_file.h"
#include "daemon/log/runlog_lines.h"
#include "daemon/log/tensorboard.h"
#include "kernels/base/log.h"
#include "kernels/base/monotime.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <sodium.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct runlog {
    const char *path;
    const struct job *job;
    struct run_identity identity;
    bool knows_id; /* the log has named the run's id */
    struct log_file *files[RUN_LOGS];
    struct line text, json; /* the newest of each file */
    bool terminal;          /* stdout is a terminal */
    bool silent;            /* stdout is gone */
    bool progress;          /* a progress line stands on the terminal */
    struct monotime progress_due, begin;
    char tail[RUNLOG_TAIL_LINES][RUNLOG_TAIL_BYTES]; /* a ring */
    uint64_t tail_count;
    uint64_t cut[RUN_LOGS][LINE_KINDS]; /* the highest number of each kind that was cut off the log */
    uint64_t count;                     /* the newest episode or update */
    double running_reward;              /* after the last episode */
    struct tensorboard *board;
};

/* ---- opening and closing ---- */

enum status runlog_open(struct runlog **out, struct path run, const struct job *job,
                        const struct run_identity *identity, struct error *error)
{
    struct runlog *log = calloc(1, sizeof *log);
    if (log == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the logs");
    log->path = run.text;
    log->job = job;
    log->identity = *identity;
    log->terminal = isatty(STDOUT_FILENO) == 1;
    log->begin = monotime_now();
    log->board = tensorboard_new(run);
    enum status status =
        log->board != NULL ? STATUS_OK : error_set(error, STATUS_NO_MEMORY, "no memory for the logs");
    for (int i = 0; i < RUN_LOGS && status == STATUS_OK; i++)
        status = log_file_open(&log->files[i], run, i, error);
    if (status != STATUS_OK) {
        runlog_close(log);
        return status;
    }
    log->knows_id = log_file_run_id(log->files[RUN_LOG_JSON], log->identity.id);
    *out = log;
    return STATUS_OK;
}

void runlog_close(struct runlog *log)
{
    struct error error;
    if (log == NULL)
        return;
    runlog_clear_progress(log);
    if (tensorboard_free(log->board, &error) != STATUS_OK)
        log_warning("%s: the last events for TensorBoard are lost", error.text);
    for (int i = 0; i < RUN_LOGS; i++)
        log_file_close(log->files[i]);
    free(log);
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

static enum status append_json(struct runlog *log, struct error *error)
{
    return log_file_append(log->files[RUN_LOG_JSON], &log->json, error);
}

static void print_text(struct runlog *log)
{
    if (!log_output(log->text.text, log->text.length))
        show_text(log, log->text.text, log->text.length);
}

/* A line that was printed, and then cut off the log, is not printed again. */
static enum status append_text(struct runlog *log, struct error *error)
{
    const struct line_key key = line_key_of(log->text.text);
    runlog_clear_progress(log);
    if (key.kind == LINE_OTHER || key.number > log->cut[RUN_LOG_TEXT][key.kind])
        print_text(log);
    char *tail = log->tail[log->tail_count++ % RUNLOG_TAIL_LINES];
    snprintf(tail, RUNLOG_TAIL_BYTES, "%.*s", (int)strcspn(log->text.text, "\n"), log->text.text);
    return log_file_append(log->files[RUN_LOG_TEXT], &log->text, error);
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
    line_write_start(&log->json, log->job, log->identity.id);
    return append_json(log, error);
}

enum status runlog_restart(struct runlog *log, const struct line_restart *restart, struct error *error)
{
    line_write_restarted(&log->json, restart);
    return append_json(log, error);
}

/* What people read about the run's end. A run that is resumed at its end has the line. */
static enum status append_verdict(struct runlog *log, const struct control_finished *finished,
                                  struct error *error)
{
    const bool has_goal = log->job->stop.has_running_reward || log->job->stop.has_evaluation_reward;
    if (finished->end == CONTROL_END_SOLVED)
        line_write_solved(&log->text, log->job, finished->reward);
    else if (finished->end == CONTROL_END_FINISHED && has_goal)
        line_write_not_solved(&log->text, log->job, finished->reward, log->count);
    else
        return STATUS_OK;
    return log_file_ends_with(log->files[RUN_LOG_TEXT], &log->text) ? STATUS_OK : append_text(log, error);
}

/* The event comes last: behind the event of its end a run is over. */
enum status runlog_finish(struct runlog *log, const char *why, const struct control_finished *finished,
                          const struct control_status *holdings, struct error *error)
{
    if (finished->updates > log->count)
        log->count = finished->updates;
    const struct line_end end = {why, log->count, log->running_reward,
                                 (double)monotime_us_between(log->begin, monotime_now()) * 1e-6};
    const enum status status = append_verdict(log, finished, error);
    if (status != STATUS_OK)
        return status;
    line_write_end(&log->json, log->job, &end, holdings);
    return append_json(log, error);
}

/* ---- records ---- */

/* Whether /log/every lets the record into episodes.log. */
static bool is_for_text(const struct runlog *log, const struct control_message *record)
{
    if (record->kind == CONTROL_EPOCH || log->job->kind == JOB_MODEL_PARALLEL)
        return true;
    return control_record_number(record) % log->job->log.every == 0;
}

/* The logs are what a run must not lose; events for TensorBoard may be lost. */
static void show_in_tensorboard(struct runlog *log, const struct control_message *record)
{
    struct error error;
    if (tensorboard_record(log->board, log->job, record, &error) == STATUS_OK)
        return;
    runlog_clear_progress(log);
    log_warning("%s: TensorBoard gets no more of this run; the logs go on", error.text);
}

/* Writes a record's two lines, episodes.jsonl's first. TensorBoard has the events of lines that were cut. */
static enum status append_record(struct runlog *log, const struct control_message *record,
                                 const struct control_status *holdings, struct error *error)
{
    line_write_json(&log->json, log->job, record, holdings);
    line_write_text(&log->text, log->job, record);
    const struct line_key key = line_key_of(log->json.text);
    const enum status status = append_json(log, error);
    if (status != STATUS_OK)
        return status;
    if (key.number > log->cut[RUN_LOG_JSON][key.kind])
        show_in_tensorboard(log, record);
    return is_for_text(log, record) ? append_text(log, error) : STATUS_OK;
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
    const enum status status = append_record(log, record, holdings, error);
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

/* ---- places ---- */

void runlog_place(const struct runlog *log, struct run_place *place)
{
    place->run = log->identity;
    for (int i = 0; i < RUN_LOGS; i++)
        place->logs[i] = log_file_place(log->files[i]);
}

enum status runlog_owns(const struct runlog *log, const struct run_place *place, struct error *why)
{
    const struct run_identity *own = &log->identity, *other = &place->run;
    if (own->seed != other->seed)
        return error_set(why, STATUS_CORRUPT, "its run had the seed %" PRIu64 ", expected %" PRIu64,
                         other->seed, own->seed);
    if (memcmp(own->numbers, other->numbers, sizeof own->numbers) != 0)
        return error_set(why, STATUS_CORRUPT, "its run had another job, expected the one of %s/job.json",
                         log->path);
    return STATUS_OK;
}

/* The beginning of a log confirms nothing: any log has one. The log's id may be damaged; it explains only. */
enum status runlog_confirm(const struct runlog *log, const struct run_place *place, unsigned least,
                           struct error *why)
{
    unsigned confirmed = 0;
    for (int i = 0; i < RUN_LOGS; i++) {
        const bool is_beginning = place->logs[i].lines == 0;
        const enum status status =
            is_beginning ? STATUS_OK : log_file_confirm(log->files[i], &place->logs[i], place->run.id, why);
        if (status != STATUS_OK && status != STATUS_CORRUPT)
            return status;
        confirmed += status == STATUS_OK && (!is_beginning || least == RUN_LOGS);
    }
    if (confirmed >= least)
        return STATUS_OK;
    if (log->knows_id && memcmp(log->identity.id, place->run.id, sizeof place->run.id) != 0)
        error_set(why, STATUS_CORRUPT, "it comes from another run of this job");
    return STATUS_CORRUPT;
}

/* ---- going on ---- */

/* The lines that are cut off one log. */
struct cutting {
    struct runlog *log;
    enum run_log which;
    uint64_t update; /* the checkpoint's */
    uint64_t lines[RUN_LOGS];
};

/* A damaged line may have any number. One that so few lines cannot reach is none. */
static void cutting_note(void *context, const char *text)
{
    struct cutting *cutting = context;
    const struct line_key key = line_key_of(text);
    uint64_t *highest = &cutting->log->cut[cutting->which][key.kind];
    const uint64_t lines = ++cutting->lines[cutting->which];
    if (key.number > *highest && key.number <= cutting->update + lines * cutting->log->job->log.every)
        *highest = key.number;
}

static void say_cut(const struct runlog *log, const struct cutting *cutting)
{
    for (int i = 0; i < RUN_LOGS; i++)
        if (cutting->lines[i] > 0)
            log_info("lines behind the checkpoint are cut: %" PRIu64 " are moved to %s/%s.cut",
                     cutting->lines[i], log->path, run_log_name(i));
}

/* Lines that were cut before were printed, too. */
static enum status cut_logs(struct runlog *log, const struct run_place *place, uint64_t update,
                            struct error *error)
{
    struct cutting earlier = {.log = log, .update = update}, cutting = earlier;
    const struct log_cut before = {cutting_note, &earlier}, cut = {cutting_note, &cutting};
    enum status status = STATUS_OK;
    for (int i = 0; i < RUN_LOGS && status == STATUS_OK; i++) {
        earlier.which = cutting.which = i;
        status = log_file_show_cut(log->files[i], &before, error);
        if (status == STATUS_OK)
            status = log_file_cut(log->files[i], &place->logs[i], place->run.id, &cut, error);
    }
    if (status == STATUS_OK)
        say_cut(log, &cutting);
    return status;
}

enum status runlog_resume(struct runlog *log, const struct run_place *place, uint64_t update,
                          double running_reward, const struct line_restart *cause, struct error *error)
{
    const struct run_place beginning = {.run = log->identity};
    enum status status = cut_logs(log, place != NULL ? place : &beginning, update, error);
    if (status != STATUS_OK)
        return status;
    if (place != NULL)
        memcpy(log->identity.id, place->run.id, sizeof log->identity.id);
    log->count = update;
    log->running_reward = running_reward;
    if (log_file_place(log->files[RUN_LOG_JSON]).lines == 0)
        status = runlog_start(log, error);
    if (status != STATUS_OK)
        return status;
    line_write_resumed(&log->json, log->job, update, cause);
    return append_json(log, error);
}

bool runlog_is_moved(const struct runlog *log)
{
    return log_file_is_moved(log->files[RUN_LOG_JSON]) || log_file_is_moved(log->files[RUN_LOG_TEXT]);
}

enum status runlog_continue(struct runlog *log, const struct run_place *place, struct error *error)
{
    struct error second;
    const enum status status =
        log_file_continue(log->files[RUN_LOG_JSON], &place->logs[RUN_LOG_JSON], log->identity.id, error);
    const enum status of_text = log_file_continue(log->files[RUN_LOG_TEXT], &place->logs[RUN_LOG_TEXT],
                                                  log->identity.id, status == STATUS_OK ? error : &second);
    return status == STATUS_OK ? of_text : status;
}
