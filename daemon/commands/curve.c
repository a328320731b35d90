/* Lines of a log into points. The command's process; one thread. */
#include "daemon/commands/curve.h"

#include "daemon/log/runlog_lines.h"
#include "daemon/run/rundir.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void curve_init(struct curve *curve, struct curve_keys keys)
{
    *curve = (struct curve){.keys = keys, .stride = 1, .ascends = true, .begun_s = NAN};
}

void curve_fini(struct curve *curve)
{
    free(curve->points);
    curve->points = NULL;
    curve->count = curve->capacity = 0;
}

/* ---- members of a line ----
 * A tree of cJSON for each of ten million lines would take minutes. */

/* The first byte behind the string that begins at `at`; NULL: it has no end. */
static const char *skip_string(const char *at)
{
    for (at++; *at != '"'; at++)
        if (*at == '\0' || (*at == '\\' && *++at == '\0'))
            return NULL;
    return at + 1;
}

/* The ',', '}' or ']' behind the value that begins at `at`; NULL: there is none. */
static const char *skip_value(const char *at)
{
    for (unsigned depth = 0; *at != '\0'; at++) {
        if (*at == '"') {
            at = skip_string(at);
            if (at == NULL)
                return NULL;
            at--;
        } else if (*at == '{' || *at == '[') {
            depth++;
        } else if (depth == 0 && (*at == ',' || *at == '}' || *at == ']')) {
            return at;
        } else if (*at == '}' || *at == ']') {
            depth--;
        }
    }
    return NULL;
}

/* The value of the object's member with the name of `bytes`; NULL: there is none. The logs have no white
 * space between tokens. */
static const char *find_member(const char *object, const char *name, size_t bytes)
{
    if (*object != '{')
        return NULL;
    for (const char *at = object + 1; *at == '"';) {
        const char *key = at + 1, *end = skip_string(at);
        if (end == NULL || *end != ':')
            return NULL;
        if ((size_t)(end - 1 - key) == bytes && memcmp(key, name, bytes) == 0)
            return end + 1;
        at = skip_value(end + 1);
        if (at == NULL || *at != ',')
            return NULL;
        at++;
    }
    return NULL;
}

/* A metric's own name may have a dot: the whole name is tried before its parts. */
static const char *find_path(const char *object, const char *name)
{
    const char *value = find_member(object, name, strlen(name)), *dot = name;
    while (value == NULL && (dot = strchr(dot, '.')) != NULL) {
        const char *inner = find_member(object, name, (size_t)(dot - name));
        dot++;
        if (inner != NULL)
            value = find_path(inner, dot);
    }
    return value;
}

/* The number of that name; NAN: there is none, or it is null. */
static double number_of(const char *line, const char *name)
{
    const char *value = find_path(line, name);
    if (value == NULL || !isdigit((unsigned char)value[*value == '-']))
        return NAN;
    return strtod(value, NULL);
}

/* ---- points ---- */

static void merge(struct curve_point *point, const struct curve_point *other)
{
    const double lines = (double)(point->lines + other->lines);
    point->x += (other->x - point->x) * ((double)other->lines / lines);
    point->y += (other->y - point->y) * ((double)other->lines / lines);
    point->lines += other->lines;
}

static void halve(struct curve *curve)
{
    for (uint32_t i = 0; i < curve->count / 2; i++) {
        curve->points[i] = curve->points[2 * i];
        merge(&curve->points[i], &curve->points[2 * i + 1]);
    }
    curve->count /= 2;
    curve->stride *= 2;
}

static enum status grow(struct curve *curve, struct error *error)
{
    const uint32_t capacity = curve->capacity == 0 ? 64 : 2 * curve->capacity;
    struct curve_point *points = realloc(curve->points, capacity * sizeof *points);
    if (points == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a curve of %u points", capacity);
    curve->points = points;
    curve->capacity = capacity;
    return STATUS_OK;
}

static enum status add_point(struct curve *curve, double x, double y, struct error *error)
{
    const struct curve_point point = {x, y, 1};
    curve->ascends = curve->ascends && (curve->count == 0 || x >= curve->newest.x);
    curve->newest = point;
    if (curve->count > 0 && curve->points[curve->count - 1].lines < curve->stride) {
        merge(&curve->points[curve->count - 1], &point);
        return STATUS_OK;
    }
    if (curve->count == CURVE_POINTS_MAX)
        halve(curve);
    if (curve->count == curve->capacity && grow(curve, error) != STATUS_OK)
        return error->status;
    curve->points[curve->count++] = point;
    return STATUS_OK;
}

/* ---- lines ---- */

static void take_event(struct curve *curve, const char *line)
{
    const char *event = find_member(line, "event", strlen("event"));
    curve->event[0] = '\0';
    if (event == NULL || *event != '"')
        return;
    const size_t length = strcspn(event + 1, "\"");
    if (length < sizeof curve->event) {
        memcpy(curve->event, event + 1, length);
        curve->event[length] = '\0';
    }
}

/* `ppo` and `a2c` write the sum themselves. */
static void count_steps(struct curve *curve, const char *line)
{
    const double total = number_of(line, "total_timesteps");
    double added = number_of(line, "env_steps");
    if (isnan(added))
        added = number_of(line, "samples");
    if (!isnan(total))
        curve->steps = total;
    else if (!isnan(added))
        curve->steps += added;
}

static double x_of(struct curve *curve, const char *line)
{
    const char *name = curve->keys.x;
    if (strcmp(name, "seconds") == 0)
        return number_of(line, "timing.unix_s") - curve->begun_s;
    if (strcmp(name, "steps") != 0)
        return number_of(line, name);
    count_steps(curve, line);
    return curve->steps;
}

enum status curve_take(struct curve *curve, const char *line, struct error *error)
{
    const size_t length = strlen(line);
    curve->lines++;
    if (length < 2 || line[0] != '{' || line[length - 1] != '}') {
        curve->first_wrong = curve->wrong++ == 0 ? curve->lines : curve->first_wrong;
        return STATUS_OK;
    }
    if (isnan(curve->begun_s) && strcmp(curve->keys.x, "seconds") == 0)
        curve->begun_s = number_of(line, "timing.unix_s");
    take_event(curve, line);
    if (curve->event[0] != '\0')
        return STATUS_OK;
    const bool is_epoch = strncmp(line, "{\"epoch\":", strlen("{\"epoch\":")) == 0;
    const double x = x_of(curve, line), y = number_of(line, curve->keys.y);
    if (!isfinite(x) || !isfinite(y) ||
        (is_epoch && curve->is_of_steps && strcmp(curve->keys.x, "epoch") != 0))
        return STATUS_OK;
    curve->is_of_steps = curve->is_of_steps || !is_epoch;
    return add_point(curve, x, y, error);
}

/* ---- the file ---- */

/* Takes each line that is whole in the buffer; *used: their bytes. */
static enum status take_lines(struct curve *curve, char *buffer, size_t bytes, size_t *used,
                              struct error *error)
{
    enum status status = STATUS_OK;
    char *end;
    *used = 0;
    while (status == STATUS_OK && (end = memchr(buffer + *used, '\n', bytes - *used)) != NULL) {
        *end = '\0';
        status = curve_take(curve, buffer + *used, error);
        *used = (size_t)(end + 1 - buffer);
    }
    return status;
}

static enum status read_lines(struct curve *curve, int fd, const char *path, char *buffer, size_t size,
                              struct error *error)
{
    ssize_t got;
    size_t used;
    while ((got = file_read_at(fd, buffer, size, curve->offset)) > 0) {
        if (take_lines(curve, buffer, (size_t)got, &used, error) != STATUS_OK)
            return error->status;
        curve->offset += used;
        if (used == 0 && (size_t)got == size)
            return error_set(error, STATUS_CORRUPT, "%.300s: line %ju is longer than %zu bytes", path,
                             (uintmax_t)curve->lines + 1, size);
        if ((size_t)got < size)
            break;
    }
    return got >= 0 ? STATUS_OK : error_set_errno(error, errno, "cannot read %.300s", path);
}

enum status curve_read(struct curve *curve, struct path path, struct error *error)
{
    int fd;
    uint64_t bytes;
    enum status status = file_open(&fd, &bytes, path, error);
    if (status != STATUS_OK)
        return status;
    const size_t size = LINE_BYTES;
    char *buffer = bytes > curve->offset ? malloc(size) : NULL;
    if (buffer != NULL)
        status = read_lines(curve, fd, path.text, buffer, size, error);
    else if (bytes > curve->offset)
        status = error_set(error, STATUS_NO_MEMORY, "no memory to read %.300s", path.text);
    free(buffer);
    close(fd);
    return status;
}

enum status curve_read_run(struct curve *curve, const char *run, struct error *error)
{
    char path[RUNDIR_PATH_BYTES + 32];
    const int length = snprintf(path, sizeof path, "%s/episodes.jsonl", run);
    if (length >= (int)sizeof path)
        return error_set(error, STATUS_INVALID,
                         "the path of a run's log has %d bytes: expected fewer than %zu", length,
                         sizeof path);
    return curve_read(curve, path_below(path_of(run), path), error);
}

/* ---- values ---- */

bool curve_at(const struct curve *curve, double x, double *y)
{
    const struct curve_point *points = curve->points;
    uint32_t low = 0, high = curve->count;
    if (!curve->ascends || high == 0 || !(x >= points[0].x) || x > points[high - 1].x)
        return false;
    while (high - low > 1) { /* points[low].x <= x, and x < points[high].x where there is one */
        const uint32_t middle = low + (high - low) / 2;
        if (points[middle].x <= x)
            low = middle;
        else
            high = middle;
    }
    *y = points[low].y;
    if (low + 1 < curve->count)
        *y += (points[low + 1].y - points[low].y) * (x - points[low].x) / (points[low + 1].x - points[low].x);
    return true;
}
