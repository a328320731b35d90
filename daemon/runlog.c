/* Lines into two files and onto stdout. Supervisor process; its only thread. */
#include "daemon/runlog.h"

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
#include <time.h>
#include <unistd.h>

/* Room for every double that a worker may report, 1e308 written out included. */
enum { NUMBER_BYTES = 330, LINE_BYTES = 1024 + 10 * NUMBER_BYTES };

struct runlog {
    int dir_fd;
    const char *path;
    const struct job *job;
    int log_fd, jsonl_fd;
    bool terminal, silent; /* stdout is a terminal; stdout is gone */
    bool progress;         /* a progress line stands on the terminal */
    struct monotime progress_due, begin;
    uint64_t episodes;
    double running_reward; /* after the last of them */
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

enum status runlog_reopen(struct runlog *log, struct error *error)
{
    return open_files(log, error);
}

/* ---- stdout ---- */

/* A reader who has stopped reading (a pager, ctrl-S) must not stop the job: lines that would wait are left
 * out here. A pipe or terminal that is ready takes a line of this size without waiting. */
static void show(struct runlog *log, const char *text, size_t bytes)
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
    static const char clear[] = "\r\033[K";
    if (log->progress)
        show(log, clear, sizeof clear - 1);
    log->progress = false;
}

/* At most ten times a second: a fast job must not spend itself on its terminal. */
static void draw_progress(struct runlog *log, const struct control_episode *record)
{
    enum { REDRAW_US = 100000 };
    char line[LINE_BYTES];
    struct monotime now = monotime_now();
    if (!log->terminal || monotime_before(now, log->progress_due))
        return;
    log->progress_due = monotime_add_us(now, REDRAW_US);
    double rate = record->timing.episode_s > 0 ? (double)record->env_steps / record->timing.episode_s : 0;
    int length =
        snprintf(line, sizeof line, "\r\033[Kepisode %" PRIu64 "  reward %.2f  running %.2f  %.0f steps/s",
                 record->episode, record->reward, record->running_reward, rate);
    log->progress = true;
    show(log, line, (size_t)length);
}

void runlog_close(struct runlog *log)
{
    if (log == NULL)
        return;
    runlog_clear_progress(log);
    close(log->log_fd);
    close(log->jsonl_fd);
    free(log);
}

/* ---- files ---- */

/* One line, whole or not at all. */
static enum status append(struct runlog *log, int fd, const char *name, const char *line, size_t bytes,
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

enum { ALL_DIGITS = -1 };

/* JSON has no word for a number that is not one. */
static const char *number(char text[NUMBER_BYTES], double value, int decimals)
{
    if (!isfinite(value))
        snprintf(text, NUMBER_BYTES, "null");
    else if (decimals == ALL_DIGITS)
        snprintf(text, NUMBER_BYTES, "%.17g", value);
    else
        snprintf(text, NUMBER_BYTES, "%.*f", decimals, value);
    return text;
}

static double wall_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static enum status append_json(struct runlog *log, const char *line, int length, struct error *error)
{
    return append(log, log->jsonl_fd, "episodes.jsonl", line, (size_t)length, error);
}

static enum status append_text(struct runlog *log, const char *line, int length, struct error *error)
{
    runlog_clear_progress(log);
    show(log, line, (size_t)length);
    return append(log, log->log_fd, "episodes.log", line, (size_t)length, error);
}

enum status runlog_start(struct runlog *log, struct error *error)
{
    char line[LINE_BYTES];
    const struct job *job = log->job;
    int length = snprintf(line, sizeof line,
                          "{\"event\":\"start\",\"seed\":%" PRIu64 ",\"timing\":{\"unix_s\":%.3f,\"pid\":%ld,"
                          "\"version\":\"%s\",\"observers\":%u,\"environments\":%u}}\n",
                          job->seed, wall_s(), (long)getpid(), COALESCED_VERSION, job->observers.count,
                          job->observers.environments);
    return append_json(log, line, length, error);
}

static enum status episode_json(struct runlog *log, const struct control_episode *r, struct error *error)
{
    char line[LINE_BYTES], n[9][NUMBER_BYTES];
    double rate = r->timing.episode_s > 0 ? (double)r->env_steps / r->timing.episode_s : 0;
    int length = snprintf(
        line, sizeof line,
        "{\"episode\":%" PRIu64 ",\"reward\":%s,\"running_reward\":%s,\"loss\":%s,\"env_steps\":%" PRIu64
        ",\"timing\":{\"unix_s\":%.3f,\"episode_s\":%s,\"learn_s\":%s,\"env_steps_per_s\":%s,"
        "\"launches\":%" PRIu64 ",\"requests\":%" PRIu64
        ",\"batch_mean\":%s,\"batch_max\":%u,\"wait_us_p50\":%s,\"wait_us_p99\":%s}}\n",
        r->episode, number(n[0], r->reward, ALL_DIGITS), number(n[1], r->running_reward, ALL_DIGITS),
        number(n[2], r->loss, ALL_DIGITS), r->env_steps, wall_s(), number(n[3], r->timing.episode_s, 6),
        number(n[4], r->timing.learn_s, 6), number(n[5], rate, 1), r->timing.launches, r->timing.requests,
        number(n[6], r->timing.batch_mean, 3), r->timing.batch_max, number(n[7], r->timing.wait_us_p50, 0),
        number(n[8], r->timing.wait_us_p99, 0));
    return append_json(log, line, length, error);
}

enum status runlog_episode(struct runlog *log, const struct control_episode *record, struct error *error)
{
    char line[LINE_BYTES];
    enum status status = episode_json(log, record, error);
    log->episodes = record->episode;
    log->running_reward = record->running_reward;
    if (status == STATUS_OK && record->episode % log->job->log.every == 0) {
        int length =
            snprintf(line, sizeof line, "Episode %" PRIu64 "\tLast reward: %.2f\tAverage reward: %.2f\n",
                     record->episode, record->reward, record->running_reward);
        status = append_text(log, line, length, error);
    }
    draw_progress(log, record);
    return status;
}

enum status runlog_finish(struct runlog *log, const char *why, const struct control_finished *finished,
                          struct error *error)
{
    char line[LINE_BYTES], running[NUMBER_BYTES];
    int length = snprintf(line, sizeof line,
                          "{\"event\":\"%s\",\"episodes\":%" PRIu64 ",\"running_reward\":%s,"
                          "\"timing\":{\"unix_s\":%.3f,\"job_s\":%.6f}}\n",
                          why, log->episodes, number(running, log->running_reward, ALL_DIGITS), wall_s(),
                          (double)monotime_us_between(log->begin, monotime_now()) * 1e-6);
    enum status status = append_json(log, line, length, error);
    if (status != STATUS_OK || finished->end != CONTROL_END_SOLVED)
        return status;
    length = snprintf(line, sizeof line, "Solved! Running reward is now %.2f!\n", finished->running_reward);
    return append_text(log, line, length, error);
}
