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

enum { LINE_KINDS = LINE_EPOCH + 1 };

struct reader {
    FILE *file;
    char *text; /* the line that was read last */
    size_t capacity;
};

/* One log as a whole. */
struct summary {
    uint64_t last[LINE_KINDS]; /* the highest number of each kind */
    struct line_key epoch;     /* the epoch's line that came last */
    bool evaluated;            /* episodes.jsonl: that line has an evaluation */
    uint32_t epoch_lines;      /* that epoch's lines at the file's end, in a row */
};

struct replay {
    bool compares;
    bool linear; /* the learning rate depends on /stop */
    struct summary of_json, of_text;
    struct reader json;
    bool reaches_back;    /* the file has lines older than the first line that was computed again */
    struct line_key next; /* of the line in json.text; LINE_OTHER at the file's end */
};

/* ---- lines ---- */

static void reader_close(struct reader *reader)
{
    if (reader->file != NULL)
        fclose(reader->file);
    free(reader->text);
    *reader = (struct reader){0};
}

static enum status reader_open(struct reader *reader, int dir_fd, const char *path, const char *name,
                               struct error *error)
{
    int fd = openat(dir_fd, name, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    reader->file = fd < 0 ? NULL : fdopen(fd, "r+");
    if (reader->file != NULL)
        return STATUS_OK;
    int errnum = errno;
    if (fd >= 0)
        close(fd);
    return error_set_errno(error, errnum, "cannot read %s/%s", path, name);
}

/* The next line's length with its '\n'; -1: there is none. */
static ssize_t reader_next(struct reader *reader)
{
    return getline(&reader->text, &reader->capacity, reader->file);
}

/* Cuts off the last line, in whose middle the writer was killed or the machine stopped. */
static enum status cut_torn_line(struct reader *reader, off_t whole, const char *path, const char *name,
                                 struct error *error)
{
    if (ftruncate(fileno(reader->file), whole) != 0)
        return error_set_errno(error, errno, "cannot cut the torn last line off %s/%s", path, name);
    log_warning("%s/%s ended in half a line, which is cut off", path, name);
    return STATUS_OK;
}

static void summary_add(struct summary *summary, struct line_key key, const char *text)
{
    size_t bytes;
    if (key.number > summary->last[key.kind])
        summary->last[key.kind] = key.number;
    if (key.kind != LINE_EPOCH)
        return;
    summary->epoch_lines = key.epoch == summary->epoch.epoch ? summary->epoch_lines + 1 : 1;
    summary->epoch = key;
    summary->evaluated = line_evaluated(text, &bytes);
}

static enum status read_all(struct reader *reader, struct line_key (*key_of)(const char *),
                            struct summary *summary, const char *path, const char *name, struct error *error)
{
    ssize_t length;
    off_t whole = 0;
    while ((length = reader_next(reader)) > 0) {
        if (reader->text[length - 1] != '\n')
            return cut_torn_line(reader, whole, path, name, error);
        summary_add(summary, key_of(reader->text), reader->text);
        whole += length;
    }
    return ferror(reader->file) ? error_set_errno(error, errno, "cannot read %s/%s", path, name) : STATUS_OK;
}

/* ---- the two files ---- */

static enum status open_text(struct replay *replay, int dir_fd, const char *path, struct error *error)
{
    static const char name[] = "episodes.log";
    struct reader text = {0};
    enum status status = reader_open(&text, dir_fd, path, name, error);
    if (status == STATUS_OK)
        status = read_all(&text, line_key_of_text, &replay->of_text, path, name, error);
    reader_close(&text);
    return status;
}

static void next_record(struct replay *replay)
{
    replay->next = (struct line_key){.kind = LINE_OTHER};
    while (replay->next.kind == LINE_OTHER && reader_next(&replay->json) > 0)
        replay->next = line_key_of_json(replay->json.text);
}

static enum status open_json(struct replay *replay, int dir_fd, const char *path, struct error *error)
{
    static const char name[] = "episodes.jsonl";
    enum status status = reader_open(&replay->json, dir_fd, path, name, error);
    if (status == STATUS_OK)
        status = read_all(&replay->json, line_key_of_json, &replay->of_json, path, name, error);
    if (status != STATUS_OK)
        return status;
    rewind(replay->json.file);
    next_record(replay);
    return STATUS_OK;
}

enum status replay_open(struct replay **out, int dir_fd, const char *path, const struct job *job,
                        struct error *error)
{
    struct replay *replay = calloc(1, sizeof *replay);
    if (replay == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to read the logs");
    replay->linear = job->optimizer.schedule == JOB_SCHEDULE_LINEAR;
    replay->compares = job->server.round.rule == JOB_ROUND_ALL;
    enum status status = open_text(replay, dir_fd, path, error);
    if (status == STATUS_OK)
        status = open_json(replay, dir_fd, path, error);
    if (status != STATUS_OK) {
        replay_close(replay);
        return status;
    }
    *out = replay;
    return STATUS_OK;
}

void replay_close(struct replay *replay)
{
    if (replay == NULL)
        return;
    reader_close(&replay->json);
    free(replay);
}

uint64_t replay_last_update(const struct replay *replay)
{
    return replay->of_json.last[LINE_UPDATE];
}

/* Both logs have the same epochs in the same order, unless a kill between the two writes lost one of
 * episodes.log. */
static bool lost_last_epoch(const struct replay *replay)
{
    const struct summary *json = &replay->of_json, *text = &replay->of_text;
    return json->epoch.epoch != text->epoch.epoch || json->epoch_lines > text->epoch_lines;
}

bool replay_has_text(const struct replay *replay, const struct line *json, const struct line *text)
{
    const struct summary *summary = &replay->of_json;
    const struct line_key key = line_key_of_json(json->text), text_key = line_key_of_text(text->text);
    size_t bytes;
    if (text_key.number > replay->of_text.last[text_key.kind])
        return false;
    const bool came_last = key.kind == LINE_EPOCH && key.number == summary->epoch.number &&
                           line_evaluated(json->text, &bytes) == summary->evaluated;
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
                     was + name, replay_last_update(replay));
}

static enum status fail_difference(const struct replay *replay, const struct line *line, struct error *error)
{
    const char *now = line->text, *there = replay->json.text;
    const size_t at = differing_member(there, now);
    if (replay->linear && strncmp(now + at, LINE_LR, strlen(LINE_LR)) == 0)
        return fail_other_stop(replay, now + at, there + at, line_key_of_json(now).number, error);
    return error_set(error, STATUS_INTERNAL,
                     "update %" PRIu64
                     ", computed again, is not what the log says: it is now %.*s, it was %.*s",
                     line_key_of_json(now).number, excerpt_bytes(now + at), now + at,
                     excerpt_bytes(there + at), there + at);
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
enum status replay_compare(struct replay *replay, const struct line *line, bool *known, struct error *error)
{
    const struct line_key key = line_key_of_json(line->text);
    *known = key.number <= replay->of_json.last[key.kind];
    if (!*known)
        return STATUS_OK;
    for (; replay->next.kind != LINE_OTHER && key_before(replay->next, key); next_record(replay))
        replay->reaches_back = true;
    if (key.kind == LINE_EPOCH && replay->reaches_back) {
        find_line(replay, key);
        *known = next_is(replay, key);
    }
    while (next_is(replay, key)) {
        if (replay->compares && !lines_agree(replay->json.text, line->text))
            return fail_difference(replay, line, error);
        *known = !adds_evaluation(line->text, replay->json.text);
        if (*known)
            return STATUS_OK;
        next_record(replay);
        find_line(replay, key);
    }
    return STATUS_OK;
}
