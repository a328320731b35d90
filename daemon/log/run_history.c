/* Sorts the lines of a log, thins them out, and writes those that stay. */
#include "daemon/log/run_history.h"

#include "kernels/base/monotime.h"
#include "worker/checkpoint/checkpoint.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum kind { RECORDS, MILESTONES, EVENTS, KINDS };
enum { SEEN_BYTES = 256 /* a line's timing is among them */, JOB_BYTES_MAX = 1 << 20 };

/* Whether the text is JSON. A line that this process has written is. */
enum fitness { UNCHECKED, FIT, UNFIT };

struct entry {
    uint64_t place;  /* counts all lines: what stands first in the log has the lower one */
    uint64_t number; /* a record's or milestone's steps; the number of the record before an event */
    bool is_note;
    enum fitness fitness;
    char *text;
};

struct lines {
    struct entry of[HISTORY_LINES_MAX];
    unsigned count;
    size_t bytes;
    uint64_t seen, stride; /* every stride-th line is kept */
};

struct run_history {
    struct lines kinds[KINDS];
    struct entry newest; /* of the records and milestones; text NULL: there is none */
    uint64_t place, told, number, steps;
    uint64_t offset;       /* of the first byte of the file that is not taken */
    char seen[SEEN_BYTES]; /* (seen_bytes) what stands there before `offset` */
    size_t seen_bytes;
    dev_t device; /* of the file; with `inode` 0: none was read */
    ino_t inode;
};

enum status run_history_new(struct run_history **out, struct error *error)
{
    *out = calloc(1, sizeof **out);
    if (*out == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the page's curves");
    for (int i = 0; i < KINDS; i++)
        (*out)->kinds[i].stride = 1;
    return STATUS_OK;
}

static void lines_clear(struct lines *lines)
{
    for (unsigned i = 0; i < lines->count; i++)
        free(lines->of[i].text);
    *lines = (struct lines){.stride = 1};
}

void run_history_free(struct run_history *history)
{
    for (int i = 0; history != NULL && i < KINDS; i++)
        lines_clear(&history->kinds[i]);
    if (history != NULL)
        free(history->newest.text);
    free(history);
}

/* ---- keeping lines ---- */

/* A line of the file ends with no zero. NULL: no memory. */
static char *copy_of(const char *line, size_t length)
{
    char *text = malloc(length + 1);
    if (text == NULL)
        return NULL;
    memcpy(text, line, length);
    text[length] = '\0';
    return text;
}

/* Drops the lines that do not stay. */
static void lines_filter(struct lines *lines, bool (*stays)(const struct lines *lines, unsigned i))
{
    unsigned kept = 0;
    for (unsigned i = 0; i < lines->count; i++) {
        if (stays(lines, i)) {
            lines->of[kept++] = lines->of[i];
        } else {
            lines->bytes -= strlen(lines->of[i].text);
            free(lines->of[i].text);
        }
    }
    lines->count = kept;
}

static bool is_even(const struct lines *lines, unsigned i)
{
    (void)lines;
    return i % 2 == 0;
}

static bool is_of_newer_half(const struct lines *lines, unsigned i)
{
    return i >= lines->count / 2;
}

static bool is_note(const struct lines *lines, unsigned i)
{
    return lines->of[i].is_note;
}

/* Keeps a copy of the entry's text, or not. */
static void lines_add(struct lines *lines, struct entry entry, const char *text, size_t length, bool ages)
{
    if (lines->seen++ % lines->stride != 0)
        return;
    while (lines->count == HISTORY_LINES_MAX ||
           (lines->count > 1 && lines->bytes + length > HISTORY_BYTES_MAX)) {
        lines_filter(lines, ages ? is_of_newer_half : is_even);
        lines->stride *= ages ? 1 : 2;
    }
    entry.text = copy_of(text, length);
    if (entry.text == NULL)
        return;
    lines->bytes += length;
    lines->of[lines->count++] = entry;
}

/* ---- sorting ---- */

/* The count behind `"name":` in a line; 0: there is none. */
static uint64_t count_of(const char *line, size_t length, const char *name)
{
    const char *at = memmem(line, length, name, strlen(name));
    uint64_t count = 0;
    for (at = at != NULL ? at + strlen(name) : NULL;
         at != NULL && at < line + length && *at >= '0' && *at <= '9'; at++)
        count = 10 * count + (uint64_t)(*at - '0');
    return count;
}

static bool begins_with(const char *line, size_t length, const char *word)
{
    return length >= strlen(word) && memcmp(line, word, strlen(word)) == 0;
}

static void take(struct run_history *history, const char *line, size_t length, struct entry entry)
{
    if (length > 0 && line[length - 1] == '\n')
        length--;
    if (length < 2 || line[0] != '{' || line[length - 1] != '}' || memchr(line, '\0', length) != NULL)
        return; /* no line of a log */
    const bool is_event = begins_with(line, length, "{\"event\":");
    const bool is_epoch = begins_with(line, length, "{\"epoch\":");
    entry.place = ++history->place;
    entry.number = history->number;
    if (is_event) {
        lines_add(&history->kinds[EVENTS], entry, line, length, true);
        return;
    }
    if (!is_epoch) {
        const bool is_update = begins_with(line, length, "{\"update\":");
        history->number = count_of(line, length, is_update ? "{\"update\":" : "{\"episode\":");
        history->steps += count_of(line, length, is_update ? "\"samples\":" : "\"env_steps\":");
    }
    entry.number = history->steps;
    const bool is_milestone = is_epoch || memmem(line, length, "\"eval\":{", 8) != NULL;
    lines_add(&history->kinds[is_milestone ? MILESTONES : RECORDS], entry, line, length, false);
    entry.text = is_epoch ? NULL : copy_of(line, length);
    if (entry.text == NULL)
        return;
    free(history->newest.text);
    history->newest = entry;
}

void run_history_take(struct run_history *history, const char *line, size_t length)
{
    take(history, line, length, (struct entry){.fitness = FIT});
}

void run_history_note(struct run_history *history, const char *event, const char *text)
{
    cJSON *object = cJSON_CreateObject(), *timing;
    cJSON_AddStringToObject(object, "event", event);
    cJSON_AddStringToObject(object, "text", text);
    timing = cJSON_AddObjectToObject(object, "timing");
    cJSON_AddNumberToObject(timing, "unix_s", unix_time_s());
    char *line = cJSON_PrintUnformatted(object);
    if (line != NULL)
        take(history, line, strlen(line), (struct entry){.fitness = FIT, .is_note = true});
    cJSON_free(line);
    cJSON_Delete(object);
}

/* ---- the file ---- */

void run_history_clear(struct run_history *history)
{
    lines_filter(&history->kinds[EVENTS], is_note);
    lines_clear(&history->kinds[RECORDS]);
    lines_clear(&history->kinds[MILESTONES]);
    free(history->newest.text);
    history->newest = (struct entry){0};
    history->number = history->steps = history->offset = history->told = 0;
    history->inode = 0;
    history->seen_bytes = 0;
}

/* Whether the file is the one of the last call, and has the same bytes before `offset`: a resume cuts a log
 * where it is, and the log may have grown again since. */
static bool goes_on(const struct run_history *history, int fd, const struct stat *info)
{
    char now[SEEN_BYTES];
    const size_t bytes = history->seen_bytes;
    return info->st_dev == history->device && info->st_ino == history->inode &&
           file_read_at(fd, now, bytes, history->offset - bytes) == (ssize_t)bytes &&
           memcmp(now, history->seen, bytes) == 0;
}

static enum status read_lines(struct run_history *history, int fd, char *block, struct error *error)
{
    for (;;) {
        const ssize_t got = file_read_at(fd, block, HISTORY_BLOCK_BYTES, history->offset);
        if (got < 0)
            return error_set_errno(error, errno, "cannot read episodes.jsonl");
        const char *end = block + got, *line = block;
        for (const char *next; (next = memchr(line, '\n', (size_t)(end - line))) != NULL; line = next + 1)
            take(history, line, (size_t)(next - line), (struct entry){0});
        const bool is_full = got == HISTORY_BLOCK_BYTES;
        const size_t used = (size_t)(is_full && line == block ? got : line - block);
        if (used > 0) {
            history->seen_bytes = used < SEEN_BYTES ? used : SEEN_BYTES;
            memcpy(history->seen, block + used - history->seen_bytes, history->seen_bytes);
        }
        history->offset += used;
        if (!is_full)
            return STATUS_OK;
    }
}

enum status run_history_read(struct run_history *history, struct path run, struct error *error)
{
    struct stat info;
    int fd;
    enum status status = file_open_below(&fd, run, "episodes.jsonl", 0, error);
    if (status != STATUS_OK)
        return status;
    if (fstat(fd, &info) != 0) {
        status = error_set_errno(error, errno, "cannot look at episodes.jsonl");
    } else if (!goes_on(history, fd, &info)) {
        run_history_clear(history);
        history->device = info.st_dev;
        history->inode = info.st_ino;
    }
    char *block = status == STATUS_OK ? malloc(HISTORY_BLOCK_BYTES) : NULL;
    if (status == STATUS_OK)
        status = block != NULL ? read_lines(history, fd, block, error)
                               : error_set(error, STATUS_NO_MEMORY, "no memory to read episodes.jsonl");
    free(block);
    close(fd);
    return status;
}

/* ---- telling ---- */

/* Writes `[NUMBER,LINE]`, behind a comma unless it is the first one. A file may be damaged: a line that is no
 * JSON would spoil the document. */
static void write_entry(struct entry *entry, bool *is_first, FILE *out)
{
    if (entry->fitness == UNCHECKED) {
        cJSON *parsed = cJSON_Parse(entry->text);
        entry->fitness = parsed != NULL ? FIT : UNFIT;
        cJSON_Delete(parsed);
    }
    if (entry->fitness != FIT)
        return;
    fprintf(out, "%s[%" PRIu64 ",%s]", *is_first ? "" : ",", entry->number, entry->text);
    *is_first = false;
}

/* Records and milestones in the log's order. */
static void write_records(struct run_history *history, uint64_t since, FILE *out)
{
    struct lines *records = &history->kinds[RECORDS], *milestones = &history->kinds[MILESTONES];
    bool is_first = true;
    uint64_t last = 0;
    for (unsigned i = 0, m = 0; i < records->count || m < milestones->count;) {
        const bool is_record =
            m == milestones->count || (i < records->count && records->of[i].place < milestones->of[m].place);
        struct entry *entry = is_record ? &records->of[i++] : &milestones->of[m++];
        if (entry->place <= since)
            continue;
        write_entry(entry, &is_first, out);
        last = entry->place;
    }
    if (history->newest.text != NULL && history->newest.place > last && history->newest.place > since)
        write_entry(&history->newest, &is_first, out);
}

static void write_checkpoints(struct path run, FILE *out)
{
    struct checkpoint_found *found;
    const size_t count = checkpoint_find(&found, run);
    const char *before = "";
    for (size_t i = 0; i < count; i++) {
        if (isnan(found[i].unix_s))
            continue;
        fprintf(out, "%s[%" PRIu64 ",%.3f]", before, found[i].number, found[i].unix_s);
        before = ",";
    }
    free(found);
}

/* A job's text may have several lines. */
static void write_job(struct path run, FILE *out)
{
    char *text = NULL, *line = NULL;
    struct error error;
    struct stat info;
    int fd;
    if (file_open_below(&fd, run, "job.json", O_RDONLY, &error) == STATUS_OK) {
        const size_t bytes = fstat(fd, &info) == 0 && info.st_size < JOB_BYTES_MAX ? (size_t)info.st_size : 0;
        text = malloc(bytes + 1);
        const ssize_t got = text != NULL ? file_read_at(fd, text, bytes, 0) : -1;
        cJSON *job = got > 0 ? cJSON_ParseWithLength(text, (size_t)got) : NULL;
        line = job != NULL ? cJSON_PrintUnformatted(job) : NULL;
        cJSON_Delete(job);
        close(fd);
    }
    fputs(line != NULL ? line : "null", out);
    cJSON_free(line);
    free(text);
}

void run_history_write(struct run_history *history, struct path run, bool whole, FILE *out)
{
    struct lines *events = &history->kinds[EVENTS];
    const uint64_t since = whole ? 0 : history->told;
    bool is_first = true;
    fputs("\"records\":[", out);
    write_records(history, since, out);
    fputs("],\"events\":[", out);
    for (unsigned i = 0; i < events->count; i++)
        if (events->of[i].place > since)
            write_entry(&events->of[i], &is_first, out);
    fputs("],\"checkpoints\":[", out);
    write_checkpoints(run, out);
    fputc(']', out);
    if (!whole)
        return;
    fputs(",\"job\":", out);
    write_job(run, out);
}

void run_history_told(struct run_history *history)
{
    history->told = history->place;
}
