/* Reads the logs of a run line by line, and cuts them at the first wrong one. Supervisor process; its only
 * thread. */
#include "daemon/runlog_coverage.h"

#include "daemon/runlog_sequence.h"
#include "kernels/base/file.h"
#include "kernels/base/log.h"
#include "kernels/base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { SHOWN_BYTES = 200, SHOWN_CHARACTERS = 60 };

/* A line's place in its file, and its beginning. */
struct place {
    off_t offset;
    uint64_t number; /* from 1 */
    char shown[SHOWN_BYTES];
};

/* One log, being read. */
struct reading {
    int dir_fd;
    const char *path, *name; /* of the directory, of the file */
    FILE *file;              /* NULL: it is not there */
    char *line, *before;     /* this line and the one before it */
    size_t capacity, before_capacity;
    struct place at;   /* of `line` */
    struct place late; /* of the newest line, if the sequence says so */
    struct sequence sequence;
    const struct sequence *limit; /* episodes.log: the other file's; NULL: none */
    bool is_beyond;               /* the wrong line is beyond `limit` */
    char expected[SEQUENCE_EXPECTED_BYTES];
};

/* ---- one line ---- */

static void reading_show(struct reading *reading, struct place *place)
{
    text_show(place->shown, sizeof place->shown, reading->line, strcspn(reading->line, "\n"),
              SHOWN_CHARACTERS);
}

static bool reading_is_wrong(struct reading *reading, const char *expected)
{
    snprintf(reading->expected, sizeof reading->expected, "%s", expected);
    return false;
}

static bool text_ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* A run that begins or goes on at the file's first line. After a death, lines between the checkpoint and the
 * death may be in a file that was moved away. */
static void reading_begin(struct sequence *sequence, const char *event)
{
    static const char *const units[] = {"update", "episode"};
    uint64_t number;
    if (strncmp(event, "{\"event\":\"start\"", strlen("{\"event\":\"start\"")) == 0)
        sequence_begin(sequence, 0);
    for (unsigned i = 0; i < 2 && !sequence->begun; i++) {
        char begin[48];
        const int length = snprintf(begin, sizeof begin, "{\"event\":\"resumed\",\"%s\":", units[i]);
        if (strncmp(event, begin, (size_t)length) == 0 && strstr(event, ",\"generation\":") == NULL &&
            sscanf(event + length, "%20" SCNu64, &number) == 1)
            sequence_begin(sequence, number);
    }
}

/* An epoch's line out of order is wrong where another record follows. */
static bool reading_take(struct reading *reading, struct line_key key)
{
    struct sequence *sequence = &reading->sequence;
    if (sequence->late) {
        reading->at = reading->late;
        return reading_is_wrong(reading, "it in its place, or an event behind it");
    }
    if (!sequence_take(sequence, key, reading->expected))
        return false;
    if (sequence->late) {
        reading->late = reading->at;
        reading_show(reading, &reading->late);
    }
    return true;
}

static bool reading_take_json(struct reading *reading, size_t length)
{
    const char *line = reading->line;
    const struct line_key key = line_key_of_json(line);
    if (strlen(line) != length || !text_ends_with(line, "}}\n") || line[0] != '{')
        return reading_is_wrong(reading, "a JSON object");
    if (key.kind != LINE_OTHER)
        return reading_take(reading, key);
    if (strncmp(line, "{\"event\":\"", strlen("{\"event\":\"")) != 0)
        return reading_is_wrong(reading, "an episode, an update, an epoch or an event");
    if (!reading->sequence.begun)
        reading_begin(&reading->sequence, line);
    sequence_take_event(&reading->sequence);
    return true;
}

static bool reading_take_text(struct reading *reading, size_t length)
{
    const char *line = reading->line;
    const struct line_key key = line_key_of_text(line);
    const struct sequence *limit = reading->limit;
    if (strlen(line) != length)
        return reading_is_wrong(reading, "a line of text");
    if (key.kind == LINE_OTHER)
        return strncmp(line, "Solved! ", 8) == 0 || strncmp(line, "Not solved: ", 12) == 0 ||
               reading_is_wrong(reading, "an episode, an update or an epoch");
    reading->is_beyond =
        limit->begun && (key.kind == LINE_EPOCH ? key.epoch > limit->epoch : key.number > limit->last);
    if (reading->before != NULL && strcmp(line, reading->before) == 0)
        return reading_is_wrong(reading, "another line than the one before it");
    if (reading->is_beyond)
        return reading_is_wrong(reading, "no line that episodes.jsonl does not have");
    return reading_take(reading, key);
}

/* ---- cutting ---- */

/* Copies what stands behind `offset` to the end of `to`. */
static bool copy_rest(int from, int to, off_t offset)
{
    char block[1 << 16];
    ssize_t bytes;
    for (; (bytes = file_read_at(from, block, sizeof block, (uint64_t)offset)) > 0; offset += bytes)
        if (!file_write(to, block, (size_t)bytes))
            return false;
    return bytes == 0 && fdatasync(to) == 0;
}

/* The rest is on the disk in NAME.cut before the file is cut. */
static enum status reading_cut(const struct reading *reading, struct error *error)
{
    char name[64];
    const int from = fileno(reading->file);
    snprintf(name, sizeof name, "%s.cut", reading->name);
    const int to = openat(reading->dir_fd, name,
                          O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    const bool is_copied = to >= 0 && copy_rest(from, to, reading->at.offset) && fsync(reading->dir_fd) == 0;
    const int errnum = errno;
    if (to >= 0)
        close(to);
    if (!is_copied)
        return error_set_errno(error, errnum, "cannot move the wrong lines of %s/%s to %s", reading->path,
                               reading->name, name);
    if (ftruncate(from, reading->at.offset) != 0 || fdatasync(from) != 0)
        return error_set_errno(error, errno, "cannot cut %s/%s", reading->path, reading->name);
    log_warning("%s/%s:%" PRIu64 ": found %s, expected %s: this line and those behind it are moved to %s",
                reading->path, reading->name, reading->at.number, reading->at.shown, reading->expected, name);
    return STATUS_OK;
}

/* ---- one file ---- */

static enum status reading_open(struct reading *reading, struct error *error)
{
    const int fd = openat(reading->dir_fd, reading->name, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return STATUS_OK;
    reading->file = fd < 0 ? NULL : fdopen(fd, "r");
    if (reading->file != NULL)
        return STATUS_OK;
    error_set_errno(error, errno, "cannot read %s/%s", reading->path, reading->name);
    if (fd >= 0)
        close(fd);
    return error->status;
}

static void reading_swap_lines(struct reading *reading)
{
    char *line = reading->line;
    const size_t capacity = reading->capacity;
    reading->line = reading->before;
    reading->capacity = reading->before_capacity;
    reading->before = line;
    reading->before_capacity = capacity;
}

/* Reads up to the end, or to the first wrong line, at which the file is cut. A last line without its end is
 * left to the replay, which cuts it off. */
static enum status reading_read(struct reading *reading, bool (*take)(struct reading *, size_t), bool *is_cut,
                                struct error *error)
{
    ssize_t length;
    off_t offset = 0;
    *is_cut = false;
    while ((length = getline(&reading->line, &reading->capacity, reading->file)) > 0 &&
           reading->line[length - 1] == '\n') {
        reading->at = (struct place){.offset = offset, .number = reading->at.number + 1};
        *is_cut = !take(reading, (size_t)length);
        if (*is_cut && reading->at.offset == offset)
            reading_show(reading, &reading->at);
        if (*is_cut)
            return reading_cut(reading, error);
        offset += length;
        reading_swap_lines(reading);
    }
    return feof(reading->file)
               ? STATUS_OK
               : error_set_errno(error, errno, "cannot read %s/%s", reading->path, reading->name);
}

static enum status reading_run(struct reading *reading, bool (*take)(struct reading *, size_t), bool *is_cut,
                               struct error *error)
{
    enum status status = reading_open(reading, error);
    *is_cut = false;
    if (status == STATUS_OK && reading->file != NULL)
        status = reading_read(reading, take, is_cut, error);
    if (reading->file != NULL)
        fclose(reading->file);
    free(reading->line);
    free(reading->before);
    return status;
}

/* ---- both ---- */

/* /log/every thins episodes.log; in a model-parallel job it thins both files alike, and never changes. */
static struct sequence sequence_of(const struct job *job, uint64_t epoch_updates, bool is_json)
{
    const bool is_language = job->kind == JOB_MODEL_PARALLEL;
    return (struct sequence){.step = is_language ? job->log.every
                                     : is_json   ? 1
                                                 : 0,
                             .epoch_updates = epoch_updates,
                             .unit = job->kind == JOB_REINFORCE ? "episode" : "update",
                             .has_updates = is_json};
}

enum status runlog_covered(int dir_fd, const char *path, const struct job *job, uint64_t epoch_updates,
                           uint64_t *covered, struct error *error)
{
    struct reading json = {.dir_fd = dir_fd,
                           .path = path,
                           .name = "episodes.jsonl",
                           .sequence = sequence_of(job, epoch_updates, true)};
    struct reading text = {.dir_fd = dir_fd,
                           .path = path,
                           .name = "episodes.log",
                           .sequence = sequence_of(job, epoch_updates, false),
                           .limit = &json.sequence};
    bool is_cut;
    enum status status = reading_run(&json, reading_take_json, &is_cut, error);
    if (status == STATUS_OK)
        status = reading_run(&text, reading_take_text, &is_cut, error);
    if (status != STATUS_OK)
        return status;
    *covered = sequence_covered(&json.sequence);
    if (is_cut && !text.is_beyond && sequence_covered(&text.sequence) < *covered)
        *covered = sequence_covered(&text.sequence);
    return STATUS_OK;
}
