/* Rows of words, padded by column. The command's process. */
#include "daemon/commands/status_table.h"

#include "kernels/base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { CELL_BYTES = 64, COLUMNS = 12 };

/* ---- numbers for people ---- */

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
}

/* A run of another user may answer: what it says is made fit to show. */
static void write_word(char *shown, size_t bytes, const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    const char *text = cJSON_IsString(item) ? item->valuestring : "";
    text_show(shown, bytes, text, strlen(text), bytes - 1);
}

void status_table_word(FILE *out, const cJSON *object, const char *name)
{
    char shown[4096];
    write_word(shown, sizeof shown, object, name);
    fputs(shown, out);
}

/* 12345678 is "12.3M". */
static void write_count(char cell[CELL_BYTES], double value)
{
    static const struct {
        double least;
        const char *unit;
    } units[] = {{1e9, "G"}, {1e6, "M"}, {1e4, "k"}};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        const double scaled = value / (i == 2 ? 1e3 : units[i].least);
        if (value >= units[i].least) {
            snprintf(cell, CELL_BYTES, "%.1f%s", scaled, units[i].unit);
            return;
        }
    }
    snprintf(cell, CELL_BYTES, value < 10 && value != floor(value) ? "%.2f" : "%.0f", value);
}

static void write_time(char cell[CELL_BYTES], double seconds)
{
    if (seconds < 1e-3)
        snprintf(cell, CELL_BYTES, "%.0f us", seconds * 1e6);
    else if (seconds < 1)
        snprintf(cell, CELL_BYTES, "%.1f ms", seconds * 1e3);
    else if (seconds < 120)
        snprintf(cell, CELL_BYTES, "%.1f s", seconds);
    else if (seconds < 7200)
        snprintf(cell, CELL_BYTES, "%.0f min", seconds / 60);
    else
        snprintf(cell, CELL_BYTES, "%.1f h", seconds / 3600);
}

static void write_bytes(char cell[CELL_BYTES], double bytes)
{
    if (bytes >= 0x1p30)
        snprintf(cell, CELL_BYTES, "%.1f GiB", bytes / 0x1p30);
    else
        snprintf(cell, CELL_BYTES, "%.1f MiB", bytes / 0x1p20);
}

static void write_share(char cell[CELL_BYTES], double cores)
{
    snprintf(cell, CELL_BYTES, "%.0f %%", 100 * cores);
}

/* ---- the job ---- */

static void show_number(FILE *out, const cJSON *progress, const char *name, const char *label, int decimals)
{
    const double value = number(progress, name);
    if (isfinite(value))
        fprintf(out, "%s %.*f", label, decimals, value);
}

static void show_rate(FILE *out, const cJSON *progress, const char *name, const char *unit)
{
    char cell[CELL_BYTES];
    const double value = number(progress, name);
    if (!isfinite(value))
        return;
    write_count(cell, value);
    fprintf(out, ", %s %s/s", cell, unit);
}

static void show_progress(FILE *out, const cJSON *progress)
{
    show_number(out, progress, "episode", "episode", 0);
    show_number(out, progress, "update", "update", 0);
    show_number(out, progress, "running_reward", ", running reward", 2);
    show_number(out, progress, "loss", ", loss", 4);
    show_number(out, progress, "accuracy", ", accuracy", 4);
    show_number(out, progress, "perplexity", ", perplexity", 2);
    show_rate(out, progress, "steps_per_s", "steps");
    show_rate(out, progress, "samples_per_s", "samples");
    show_rate(out, progress, "tokens_per_s", "tokens");
}

static void show_checkpoint(FILE *out, const cJSON *status)
{
    char age[CELL_BYTES];
    if (!isfinite(number(status, "checkpoint_age_s"))) {
        fprintf(out, "no checkpoint yet");
        return;
    }
    write_time(age, number(status, "checkpoint_age_s"));
    fprintf(out, "checkpoint %.0f, %s old", number(status, "checkpoint"), age);
}

void status_table_line(FILE *out, const cJSON *status)
{
    status_table_word(out, status, "name");
    fputc('\t', out);
    status_table_word(out, status, "state");
    fprintf(out, "\t%.0f\t", number(status, "pid"));
    show_progress(out, cJSON_GetObjectItemCaseSensitive(status, "progress"));
}

/* ---- the workers ---- */

/* Writes a cell; "": it says nothing. */
static void cell_of(const cJSON *worker, int column, char cell[CELL_BYTES])
{
    static const char *const names[COLUMNS] = {
        [3] = "pid",    [4] = "incarnation", [5] = "restarts", [6] = "work_per_s",     [7] = "queue",
        [8] = "wait_s", [9] = "staleness",   [10] = "cores",   [11] = "resident_bytes"};
    const double value = names[column] != NULL ? number(worker, names[column]) : (double)NAN;
    char text[32];
    cell[0] = '\0';
    switch (column) {
    case 0:
        write_word(text, sizeof text, worker, "role");
        snprintf(cell, CELL_BYTES, "%s %.0f", text, number(worker, "worker"));
        return;
    case 1:
        write_word(cell, CELL_BYTES, worker, "state");
        return;
    case 2:
        write_word(text, sizeof text, worker, "host_name");
        if (text[0] != '\0')
            snprintf(cell, CELL_BYTES, "%.0f %s", number(worker, "host"), text);
        return;
    default:
        break;
    }
    if (!isfinite(value))
        return;
    if (column == 8)
        write_time(cell, value);
    else if (column == 10)
        write_share(cell, value);
    else if (column == 11)
        write_bytes(cell, value);
    else if (column == 3 || column == 4)
        snprintf(cell, CELL_BYTES, "%.0f", value);
    else
        write_count(cell, value);
}

static const char *const titles[COLUMNS] = {"WORKER", "STATE", "HOST", "PID",   "INCARNATION", "RESTARTS",
                                            "PER S",  "QUEUE", "WAIT", "STALE", "CPU",         "MEMORY"};

/* The width of each column; 0: it says nothing in any line. */
static void measure(const cJSON *workers, int width[COLUMNS])
{
    const cJSON *worker;
    memset(width, 0, COLUMNS * sizeof width[0]);
    for (worker = workers->child; worker != NULL; worker = worker->next) {
        for (int i = 0; i < COLUMNS; i++) {
            char cell[CELL_BYTES];
            cell_of(worker, i, cell);
            const int length = (int)strlen(cell);
            if (length > 0 && width[i] < (int)strlen(titles[i]))
                width[i] = (int)strlen(titles[i]);
            width[i] = length > width[i] ? length : width[i];
        }
    }
}

static void write_row(FILE *out, const cJSON *worker, const int width[COLUMNS], int most)
{
    char line[COLUMNS * (CELL_BYTES + 2)], cell[CELL_BYTES];
    int at = 0;
    for (int i = 0; i < COLUMNS; i++) {
        if (width[i] == 0)
            continue;
        if (worker != NULL)
            cell_of(worker, i, cell);
        else
            snprintf(cell, sizeof cell, "%s", titles[i]);
        const char *gap = at > 0 ? "  " : "";
        at += snprintf(line + at, sizeof line - (size_t)at, i < 3 ? "%s%-*s" : "%s%*s", gap, width[i], cell);
    }
    fprintf(out, "%.*s\n", most > 0 && most < at ? most : at, line);
}

void status_table_write(FILE *out, const cJSON *status, int width)
{
    const cJSON *workers = cJSON_GetObjectItemCaseSensitive(status, "workers"), *worker;
    char up[CELL_BYTES];
    int columns[COLUMNS];
    write_time(up, number(status, "up_s"));
    status_table_word(out, status, "run");
    fputs(": ", out);
    status_table_word(out, status, "kind");
    fprintf(out, ", process %.0f, ", number(status, "pid"));
    status_table_word(out, status, "state");
    fprintf(out, " for %s\n", up);
    show_progress(out, cJSON_GetObjectItemCaseSensitive(status, "progress"));
    fprintf(out, "\n");
    show_checkpoint(out, status);
    fprintf(out, "\n\n");
    if (!cJSON_IsArray(workers))
        return;
    measure(workers, columns);
    write_row(out, NULL, columns, width);
    for (worker = workers->child; worker != NULL; worker = worker->next)
        write_row(out, worker, columns, width);
}
