/* Reads a run's logs back and compares. Supervisor process; its only thread. */
#include "daemon/runlog_replay.h"

#include "kernels/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { END_BYTES = 512 };

/* One log as a whole. */
struct summary {
    uint64_t last[LINE_KINDS]; /* the highest number of each kind */
    struct line_key epoch;     /* the epoch's line that came last */
    bool evaluated;            /* episodes.jsonl: that line has an evaluation */
    uint32_t epoch_lines;      /* that epoch's lines at the file's end, in a row */
    char end[END_BYTES];       /* the last line, if it is none of a record; else "" */
};

struct replay {
    const char *path;
    bool compares;
    const struct job *job;
    bool resized; /* a part of the run had another number of observers or trainers, and other numbers */
    bool linear;  /* the learning rate depends on /stop */
    struct summary of_json, of_text;
    FILE *json;
    char *line; /* the line that was read last */
    size_t capacity;
    bool reaches_back;    /* the file has lines older than the first line that was computed again */
    struct line_key next; /* of `line`; LINE_OTHER at the file's end, or where it cannot be read further */
    int read_error;       /* errno of the read that failed; else 0 */
};

/* ---- the two files ---- */

static void summary_add(struct summary *summary, struct line_key key, const char *text)
{
    size_t bytes;
    snprintf(summary->end, sizeof summary->end, "%s", key.kind == LINE_OTHER ? text : "");
    if (key.number > summary->last[key.kind])
        summary->last[key.kind] = key.number;
    if (key.kind != LINE_EPOCH)
        return;
    summary->epoch_lines = key.epoch == summary->epoch.epoch ? summary->epoch_lines + 1 : 1;
    summary->epoch = key;
    summary->evaluated = line_evaluated(text, &bytes);
}

/* Cuts off the last line, in whose middle the writer was killed or the machine stopped. */
static enum status cut_torn_line(const struct replay *replay, FILE *file, off_t whole, const char *name,
                                 struct error *error)
{
    if (ftruncate(fileno(file), whole) != 0)
        return error_set_errno(error, errno, "cannot cut the torn last line off %s/%s", replay->path, name);
    log_warning("%s/%s ended in half a line, which is cut off", replay->path, name);
    return STATUS_OK;
}

static uint32_t clients_of(const struct job *job)
{
    return job->kind == JOB_REINFORCE ? job_observers(job) : job_trainers(job);
}

static enum status read_file(struct replay *replay, FILE *file, const char *name,
                             struct line_key (*key_of)(const char *), struct summary *summary,
                             struct error *error)
{
    ssize_t length;
    off_t whole = 0;
    while ((length = getline(&replay->line, &replay->capacity, file)) > 0) {
        if (replay->line[length - 1] != '\n')
            return cut_torn_line(replay, file, whole, name, error);
        const struct line_key key = key_of(replay->line);
        const uint32_t clients = key.kind == LINE_OTHER ? line_clients(replay->line, replay->job) : 0;
        replay->resized |= clients != 0 && clients != clients_of(replay->job);
        summary_add(summary, key, replay->line);
        whole += length;
    }
    return feof(file) ? STATUS_OK : error_set_errno(error, errno, "cannot read %s/%s", replay->path, name);
}

/* NULL: failed. */
static FILE *open_file(const struct replay *replay, int dir_fd, const char *name, struct error *error)
{
    const int fd = openat(dir_fd, name, O_RDWR | O_CLOEXEC);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "r+");
    if (file == NULL)
        error_set_errno(error, errno, "cannot read %s/%s", replay->path, name);
    if (file == NULL && fd >= 0)
        close(fd);
    return file;
}

static void next_record(struct replay *replay)
{
    replay->next = (struct line_key){.kind = LINE_OTHER};
    while (replay->next.kind == LINE_OTHER && getline(&replay->line, &replay->capacity, replay->json) > 0)
        replay->next = line_key_of_json(replay->line);
    if (replay->next.kind == LINE_OTHER && !feof(replay->json))
        replay->read_error = errno;
}

static enum status read_both(struct replay *replay, int dir_fd, struct error *error)
{
    static const char text_name[] = "episodes.log", json_name[] = "episodes.jsonl";
    FILE *text = open_file(replay, dir_fd, text_name, error);
    if (text == NULL)
        return error->status;
    enum status status = read_file(replay, text, text_name, line_key_of_text, &replay->of_text, error);
    fclose(text);
    if (status != STATUS_OK)
        return status;
    replay->json = open_file(replay, dir_fd, json_name, error);
    if (replay->json == NULL)
        return error->status;
    return read_file(replay, replay->json, json_name, line_key_of_json, &replay->of_json, error);
}

/* A policy acts on a GPU by launches of several sizes, except in the mode "barrier". */
static bool is_reproducible(const struct job *job)
{
    return job->kind == JOB_REINFORCE
               ? job->device == JOB_DEVICE_CPU || job->coalesce.mode == JOB_COALESCE_BARRIER
               : job->server.round.name == JOB_ROUND_ALL;
}

enum status replay_open(struct replay **out, int dir_fd, const char *path, const struct job *job,
                        struct error *error)
{
    struct replay *replay = calloc(1, sizeof *replay);
    if (replay == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to read the logs");
    replay->path = path;
    replay->job = job;
    replay->linear = job->optimizer.schedule == JOB_SCHEDULE_LINEAR;
    const enum status status = read_both(replay, dir_fd, error);
    replay->compares = is_reproducible(job) && !replay->resized;
    if (status != STATUS_OK) {
        replay_close(replay);
        return status;
    }
    rewind(replay->json);
    next_record(replay);
    *out = replay;
    return STATUS_OK;
}

void replay_close(struct replay *replay)
{
    if (replay == NULL)
        return;
    if (replay->json != NULL)
        fclose(replay->json);
    free(replay->line);
    free(replay);
}

uint64_t replay_last_number(const struct replay *replay)
{
    const uint64_t *last = replay->of_json.last;
    return last[LINE_EPISODE] > last[LINE_UPDATE] ? last[LINE_EPISODE] : last[LINE_UPDATE];
}

bool replay_ends_with(const struct replay *replay, const char *text)
{
    return strcmp(replay->of_text.end, text) == 0;
}

/* Both logs have the same epochs in the same order, unless a kill between the two writes lost one of
 * episodes.log. */
static bool lost_last_epoch(const struct replay *replay)
{
    const struct summary *json = &replay->of_json, *text = &replay->of_text;
    return json->epoch.epoch != text->epoch.epoch || json->epoch_lines > text->epoch_lines;
}

bool replay_has_text(const struct replay *replay, const char *json, const char *text)
{
    const struct summary *summary = &replay->of_json;
    const struct line_key key = line_key_of_json(json), text_key = line_key_of_text(text);
    size_t bytes;
    if (text_key.number > replay->of_text.last[text_key.kind])
        return false;
    const bool came_last = key.kind == LINE_EPOCH && key.number == summary->epoch.number &&
                           line_evaluated(json, &bytes) == summary->evaluated;
    return !came_last || !lost_last_epoch(replay);
}

/* ---- comparing ---- */

/* The file's order: by update, an epoch's line after its last update's. */
static bool key_before(struct line_key a, struct line_key b)
{
    return a.number != b.number ? a.number < b.number : a.kind < b.kind;
}

/* The offset at which the first differing member begins. */
static size_t differing_member(const char *a, const char *b)
{
    size_t at = 0, member = 0;
    for (; a[at] == b[at] && a[at] != '\0'; at++)
        if (a[at] == '"' && at > 0 && (a[at - 1] == ',' || a[at - 1] == '{'))
            member = at;
    return member;
}

/* The length of a line without `timing`. */
static size_t bytes_to_compare(const char *text)
{
    const char *timing = strstr(text, LINE_TIMING);
    return timing != NULL ? (size_t)(timing - text) : strcspn(text, "\n");
}

static bool lines_agree(const char *a, const char *b)
{
    size_t a_bytes, b_bytes;
    if (line_evaluated(a, &a_bytes) == line_evaluated(b, &b_bytes)) {
        a_bytes = bytes_to_compare(a);
        b_bytes = bytes_to_compare(b);
    }
    return a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0;
}

/* The length of an excerpt that fits a message. */
static int excerpt_bytes(const char *text)
{
    enum { EXCERPT_BYTES = 160 };
    const size_t bytes = bytes_to_compare(text);
    return (int)(bytes < EXCERPT_BYTES ? bytes : EXCERPT_BYTES);
}

/* The first line after the checkpoint already has another rate, before anything else can differ. */
static enum status fail_other_stop(const struct replay *replay, const char *now, const char *was,
                                   uint64_t update, struct error *error)
{
    const size_t name = strlen(LINE_LR);
    return error_set(error, STATUS_INVALID,
                     "update %" PRIu64
                     ", computed again, has another learning rate than in the log: it is now %.*s, it was "
                     "%.*s; with the schedule \"linear\" the rate depends on /stop: expected the former "
                     "/stop until a checkpoint is as far as the log, at update %" PRIu64,
                     update, (int)strcspn(now + name, ","), now + name, (int)strcspn(was + name, ","),
                     was + name, replay_last_number(replay));
}

static enum status fail_difference(const struct replay *replay, const char *now, struct error *error)
{
    const char *there = replay->line;
    const size_t at = differing_member(there, now);
    const struct line_key key = line_key_of_json(now);
    if (replay->linear && strncmp(now + at, LINE_LR, strlen(LINE_LR)) == 0)
        return fail_other_stop(replay, now + at, there + at, key.number, error);
    return error_set(error, STATUS_INTERNAL,
                     "%s %" PRIu64 ", computed again, is not what the log says: it is now %.*s, it was %.*s",
                     key.kind == LINE_EPISODE ? "episode" : "update", key.number, excerpt_bytes(now + at),
                     now + at, excerpt_bytes(there + at), there + at);
}

static bool adds_evaluation(const char *now, const char *there)
{
    size_t bytes;
    return line_evaluated(now, &bytes) && !line_evaluated(there, &bytes);
}

static bool next_is(const struct replay *replay, struct line_key key)
{
    return replay->next.kind == key.kind && replay->next.number == key.number;
}

/* Reads on to the next line of this update or epoch; to the end if there is none. */
static void find_line(struct replay *replay, struct line_key key)
{
    while (replay->next.kind != LINE_OTHER && !next_is(replay, key))
        next_record(replay);
}

/* An epoch's line may have been added out of order, at the end of an earlier run that evaluated it or cut it
 * short: it is looked for in the rest of the file, where nothing more is to be compared. */
static enum status compare_known(struct replay *replay, const char *line, struct line_key key, bool *known,
                                 struct error *error)
{
    for (; replay->next.kind != LINE_OTHER && key_before(replay->next, key); next_record(replay))
        replay->reaches_back = true;
    if (key.kind == LINE_EPOCH && replay->reaches_back) {
        find_line(replay, key);
        *known = next_is(replay, key);
    }
    while (next_is(replay, key)) {
        if (replay->compares && !lines_agree(replay->line, line))
            return fail_difference(replay, line, error);
        *known = !adds_evaluation(line, replay->line);
        if (*known)
            return STATUS_OK;
        next_record(replay);
        find_line(replay, key);
    }
    return STATUS_OK;
}

enum status replay_compare(struct replay *replay, const char *line, bool *known, struct error *error)
{
    const struct line_key key = line_key_of_json(line);
    *known = key.number <= replay->of_json.last[key.kind];
    if (!*known)
        return STATUS_OK;
    const enum status status = compare_known(replay, line, key, known, error);
    if (status == STATUS_OK && replay->read_error != 0)
        return error_set_errno(error, replay->read_error, "cannot read %s/episodes.jsonl", replay->path);
    return status;
}
