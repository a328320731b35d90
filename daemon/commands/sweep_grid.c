/* Values, their product, and its names. Pure. */
#include "daemon/commands/sweep_grid.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one --over ---- */

/* The length of the value at `text`, up to a comma that is in no string, array or object, or to the end. */
static size_t value_length(const char *text)
{
    unsigned depth = 0;
    bool in_string = false;
    size_t i = 0;
    for (; text[i] != '\0' && (in_string || depth > 0 || text[i] != ','); i++) {
        if (in_string && text[i] == '\\' && text[i + 1] != '\0')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        else if (!in_string && (text[i] == '[' || text[i] == '{'))
            depth++;
        else if (!in_string && depth > 0 && (text[i] == ']' || text[i] == '}'))
            depth--;
    }
    return i;
}

static enum status add_value(struct sweep_axis *axis, const char *text, size_t length, struct error *error)
{
    for (size_t i = 0; i < axis->count; i++)
        if (strlen(axis->values[i]) == length && strncmp(axis->values[i], text, length) == 0)
            return error_set(error, STATUS_INVALID, "--over %.150s: the value %.100s is given twice",
                             axis->pointer, axis->values[i]);
    if (axis->count == SWEEP_RUNS_MAX)
        return error_set(error, STATUS_INVALID, "--over %.150s: expected at most %d values", axis->pointer,
                         SWEEP_RUNS_MAX);
    char **values = realloc(axis->values, (axis->count + 1) * sizeof *values);
    if (values != NULL)
        axis->values = values;
    char *copy = values != NULL ? strndup(text, length) : NULL;
    if (copy == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the values of %.150s", axis->pointer);
    axis->values[axis->count++] = copy;
    return STATUS_OK;
}

/* Reads an integer as people write it, "-12", up to `*end`. */
static bool read_integer(const char *text, const char **end, long long *value)
{
    char *behind;
    if (!isdigit((unsigned char)text[*text == '-']))
        return false;
    errno = 0;
    *value = strtoll(text, &behind, 10);
    *end = behind;
    return errno == 0;
}

/* Whether the value is A..B. */
static bool is_range(const char *text, size_t length, long long *first, long long *last)
{
    const char *end;
    return read_integer(text, &end, first) && end + 2 < text + length && end[0] == '.' && end[1] == '.' &&
           read_integer(end + 2, &end, last) && end == text + length;
}

static enum status add_range(struct sweep_axis *axis, long long first, long long last, struct error *error)
{
    enum status status = STATUS_OK;
    if (first > last)
        return error_set(error, STATUS_INVALID,
                         "--over %.150s: %lld..%lld has no value: expected A..B with A <= B", axis->pointer,
                         first, last);
    for (long long value = first; status == STATUS_OK; value++) {
        char text[32];
        const int length = snprintf(text, sizeof text, "%lld", value);
        status = add_value(axis, text, (size_t)length, error);
        if (value == last)
            break;
    }
    return status;
}

static enum status read_values(struct sweep_axis *axis, const char *text, struct error *error)
{
    enum status status = STATUS_OK;
    for (bool is_more = true; is_more && status == STATUS_OK;) {
        const size_t length = value_length(text);
        long long first, last;
        if (length == 0)
            return error_set(
                error, STATUS_INVALID,
                "--over %.150s: a value is empty: expected values with commas between them, or A..B",
                axis->pointer);
        status = is_range(text, length, &first, &last) ? add_range(axis, first, last, error)
                                                       : add_value(axis, text, length, error);
        is_more = text[length] == ',';
        text += length + is_more;
    }
    return status;
}

static enum status read_axis(struct sweep_grid *grid, const char *text, struct error *error)
{
    const size_t length = strcspn(text, "=");
    if (text[0] != '/' || text[length] != '=')
        return error_set(error, STATUS_INVALID, "--over %.200s: expected /POINTER=VALUES", text);
    if (grid->axis_count == SWEEP_AXES_MAX)
        return error_set(error, STATUS_INVALID, "--over is given more than %d times", SWEEP_AXES_MAX);
    for (size_t i = 0; i < grid->axis_count; i++)
        if (strlen(grid->axes[i].pointer) == length && strncmp(grid->axes[i].pointer, text, length) == 0)
            return error_set(error, STATUS_INVALID, "--over %.200s is given twice", grid->axes[i].pointer);
    struct sweep_axis *axis = &grid->axes[grid->axis_count];
    axis->pointer = strndup(text, length);
    if (axis->pointer == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for --over");
    grid->axis_count++;
    return read_values(axis, text + length + 1, error);
}

/* ---- names ---- */

static size_t add_letters(char *name, size_t length, const char *text, char slash)
{
    for (; *text != '\0'; text++) {
        const char letter = *text == ','                                              ? '+'
                            : *text == '/'                                            ? slash
                            : isalnum((unsigned char)*text) || strchr(".+=_-", *text) ? *text
                                                                                      : '_';
        if (strchr("\"[]{}", *text) != NULL)
            continue;
        if (length < SWEEP_NAME_BYTES)
            name[length] = letter;
        length++;
    }
    return length;
}

static const char *key_of(const struct sweep_grid *grid, size_t axis)
{
    const char *last = strrchr(grid->axes[axis].pointer, '/');
    for (size_t i = 0; i < grid->axis_count; i++)
        if (i != axis && strcmp(strrchr(grid->axes[i].pointer, '/'), last) == 0)
            return grid->axes[axis].pointer + 1;
    return last + 1;
}

/* Returns its length, which may be greater than what has room. */
static size_t write_name(const struct sweep_grid *grid, size_t run, char name[SWEEP_NAME_BYTES])
{
    size_t length = 0;
    for (size_t axis = 0; axis < grid->axis_count; axis++) {
        if (axis > 0 && length < SWEEP_NAME_BYTES)
            name[length] = ',';
        length += axis > 0;
        length = add_letters(name, length, key_of(grid, axis), '.');
        length = add_letters(name, length, "=", '_');
        length = add_letters(name, length, sweep_grid_value(grid, run, axis), '_');
    }
    name[length < SWEEP_NAME_BYTES ? length : SWEEP_NAME_BYTES - 1] = '\0';
    return length;
}

void sweep_grid_name(const struct sweep_grid *grid, size_t run, char name[SWEEP_NAME_BYTES])
{
    write_name(grid, run, name);
}

/* Two values of an axis may have the same letters. */
static enum status check_axis_names(const struct sweep_axis *axis, struct error *error)
{
    char a[SWEEP_NAME_BYTES], b[SWEEP_NAME_BYTES];
    for (size_t i = 0; i < axis->count; i++)
        for (size_t j = i + 1; j < axis->count; j++) {
            const size_t length = add_letters(a, 0, axis->values[i], '_');
            if (add_letters(b, 0, axis->values[j], '_') == length && length < SWEEP_NAME_BYTES &&
                memcmp(a, b, length) == 0)
                return error_set(
                    error, STATUS_INVALID,
                    "--over %.150s: a run's folder would have one name with %.80s and with %.80s: "
                    "expected values that differ in letters or digits",
                    axis->pointer, axis->values[i], axis->values[j]);
        }
    return STATUS_OK;
}

static enum status check_names(const struct sweep_grid *grid, struct error *error)
{
    char name[SWEEP_NAME_BYTES];
    enum status status = STATUS_OK;
    for (size_t axis = 0; axis < grid->axis_count && status == STATUS_OK; axis++)
        status = check_axis_names(&grid->axes[axis], error);
    for (size_t run = 0; run < grid->runs && status == STATUS_OK; run++) {
        const size_t length = write_name(grid, run, name);
        if (length >= SWEEP_NAME_BYTES)
            status = error_set(error, STATUS_INVALID,
                               "the name of the run %.100s... has %zu bytes: expected at most %d", name,
                               length, SWEEP_NAME_BYTES - 1);
    }
    return status;
}

/* ---- the product ---- */

enum status sweep_grid_read(struct sweep_grid *grid, const char *const *overs, size_t count,
                            struct error *error)
{
    enum status status = STATUS_OK;
    *grid = (struct sweep_grid){.runs = 1};
    for (size_t i = 0; i < count && status == STATUS_OK; i++) {
        status = read_axis(grid, overs[i], error);
        grid->runs *= status == STATUS_OK ? grid->axes[i].count : 1;
        if (grid->runs > SWEEP_RUNS_MAX)
            status =
                error_set(error, STATUS_INVALID, "--over: the product has more than %d runs", SWEEP_RUNS_MAX);
    }
    return status == STATUS_OK ? check_names(grid, error) : status;
}

void sweep_grid_fini(struct sweep_grid *grid)
{
    for (size_t i = 0; i < grid->axis_count; i++) {
        for (size_t j = 0; j < grid->axes[i].count; j++)
            free(grid->axes[i].values[j]);
        free(grid->axes[i].values);
        free(grid->axes[i].pointer);
    }
    *grid = (struct sweep_grid){0};
}

const char *sweep_grid_value(const struct sweep_grid *grid, size_t run, size_t axis)
{
    for (size_t faster = grid->axis_count - 1; faster > axis; faster--)
        run /= grid->axes[faster].count;
    return grid->axes[axis].values[run % grid->axes[axis].count];
}

char *sweep_grid_override(const struct sweep_grid *grid, size_t run, size_t axis)
{
    char *text;
    const int length = asprintf(&text, "%s=%s", grid->axes[axis].pointer, sweep_grid_value(grid, run, axis));
    return length >= 0 ? text : NULL;
}
