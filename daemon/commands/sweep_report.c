/* Tables and sweep.json. The sweep's process; one thread. */
#include "daemon/commands/sweep_report.h"

#include "daemon/run/rundir.h"
#include "kernels/base/file.h"
#include "worker/job/json_document.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { ROW_BYTES = 512 };

/* ---- rows ---- */

static int name_width(const struct sweep_report *report)
{
    int width = (int)strlen("run");
    for (size_t i = 0; i < report->count; i++)
        if ((int)strlen(report->runs[i].name) > width)
            width = (int)strlen(report->runs[i].name);
    return width;
}

static bool is_loss(const struct sweep_report *report)
{
    return strcmp(report->keys.y, "loss") == 0;
}

static void write_head(char row[ROW_BYTES], const struct sweep_report *report, int width)
{
    snprintf(row, ROW_BYTES, "%-*s  %10s  %14s  %s", width, "run", report->keys.x, report->keys.y, "state");
}

static void write_row(char row[ROW_BYTES], const struct sweep_report *report, const struct sweep_run *run,
                      int width)
{
    char x[32] = "-", y[48] = "-";
    if (run->curve.count > 0) {
        snprintf(x, sizeof x, "%.0f", run->curve.newest.x);
        snprintf(y, sizeof y, "%.*f", is_loss(report) ? 4 : 2, run->curve.newest.y);
    }
    snprintf(row, ROW_BYTES, "%-*s  %10s  %14s  %s", width, run->name, x, y,
             run->state == SWEEP_RUNNING && run->stops > 0 ? "stopping" : sweep_state_name(run->state));
}

/* ---- the screen ---- */

void sweep_report_clear(struct sweep_report *report)
{
    if (report->rows > 0)
        printf("\033[%uA\033[J", report->rows);
    report->rows = 0;
    fflush(stdout);
}

static void draw_row(struct sweep_report *report, const char *row, int columns)
{
    printf("%.*s\n", columns, row);
    report->rows++;
}

/* The runs that are, or are not, running, up to `most` rows. */
static void draw_runs(struct sweep_report *report, bool are_running, int width, unsigned most, int columns)
{
    char row[ROW_BYTES];
    for (size_t i = 0; i < report->count && report->rows < most; i++) {
        if ((report->runs[i].state == SWEEP_RUNNING) != are_running)
            continue;
        write_row(row, report, &report->runs[i], width);
        draw_row(report, row, columns);
    }
}

void sweep_report_draw(struct sweep_report *report)
{
    struct winsize window = {0};
    char row[ROW_BYTES];
    const int width = name_width(report);
    if (!report->is_screen)
        return;
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &window);
    const unsigned most = window.ws_row > 4 ? window.ws_row - 2U : 22;
    const int columns = window.ws_col > 0 ? window.ws_col - 1 : 79;
    if (report->rows > 0)
        printf("\033[%uA\033[J", report->rows);
    report->rows = 0;
    write_head(row, report, width);
    draw_row(report, row, columns);
    if (report->count < most) {
        for (size_t i = 0; i < report->count; i++) {
            write_row(row, report, &report->runs[i], width);
            draw_row(report, row, columns);
        }
    } else {
        draw_runs(report, true, width, most, columns);
        draw_runs(report, false, width, most, columns);
        snprintf(row, sizeof row, "%zu runs in all", report->count);
        draw_row(report, row, columns);
    }
    fflush(stdout);
}

/* ---- lines ---- */

static void print_change(const struct sweep_report *report, const struct sweep_run *run)
{
    printf("%s: %s", run->name, sweep_state_name(run->state));
    if (run->state > SWEEP_RUNNING && run->curve.count > 0)
        printf("\t%s: %.0f\t%s: %.*f", report->keys.x, run->curve.newest.x, report->keys.y,
               is_loss(report) ? 4 : 2, run->curve.newest.y);
    if (run->state == SWEEP_FAILED)
        printf("\t%s", run->reason);
    putchar('\n');
    fflush(stdout);
}

enum status sweep_report_change(struct sweep_report *report, const struct sweep_run *run, struct error *error)
{
    if (!report->is_screen)
        print_change(report, run);
    return sweep_report_write(report, error);
}

/* The run with the best newest number, of those that have reached their end: the others have learned less.
 * NULL: none has. */
static const struct sweep_run *best_run(const struct sweep_report *report)
{
    const struct sweep_run *best = NULL;
    for (size_t i = 0; i < report->count; i++) {
        const struct sweep_run *run = &report->runs[i];
        const bool has_ended = run->state == SWEEP_FINISHED || run->state == SWEEP_SOLVED;
        if (has_ended && run->curve.count > 0 &&
            (best == NULL || (is_loss(report) ? run->curve.newest.y < best->curve.newest.y
                                              : run->curve.newest.y > best->curve.newest.y)))
            best = run;
    }
    return best;
}

void sweep_report_print(struct sweep_report *report)
{
    char row[ROW_BYTES];
    const int width = name_width(report);
    const struct sweep_run *best = best_run(report);
    sweep_report_clear(report);
    write_head(row, report, width);
    puts(row);
    for (size_t i = 0; i < report->count; i++) {
        write_row(row, report, &report->runs[i], width);
        puts(row);
    }
    if (best != NULL)
        printf("Best: %s\t%s: %.*f\n", best->name, report->keys.y, is_loss(report) ? 4 : 2,
               best->curve.newest.y);
    for (size_t i = 0; i < report->count && report->is_screen; i++)
        if (report->runs[i].state == SWEEP_FAILED)
            printf("%s: %s\n", report->runs[i].name, report->runs[i].reason);
    fflush(stdout);
}

/* ---- sweep.json ---- */

/* A value is JSON, else a string, as with --set. */
static cJSON *value_of(const char *text)
{
    struct json_document document;
    struct json_error why;
    const bool is_json = json_document_parse(&document, text, strlen(text), &why) == STATUS_OK;
    cJSON *value = is_json ? cJSON_Duplicate(document.root, true) : cJSON_CreateString(text);
    json_document_fini(&document);
    return value;
}

static char *format_run(const struct sweep_report *report, const struct sweep_run *run, size_t number)
{
    cJSON *object = cJSON_CreateObject();
    cJSON_AddStringToObject(object, "run", run->name);
    cJSON *values = cJSON_AddObjectToObject(object, "values");
    for (size_t axis = 0; axis < report->grid->axis_count; axis++)
        cJSON_AddItemToObject(values, report->grid->axes[axis].pointer,
                              value_of(sweep_grid_value(report->grid, number, axis)));
    cJSON_AddStringToObject(object, "state", sweep_state_name(run->state));
    if (run->curve.count > 0) {
        cJSON_AddNumberToObject(object, report->keys.x, run->curve.newest.x);
        cJSON_AddNumberToObject(object, report->keys.y, run->curve.newest.y);
    }
    if (run->state == SWEEP_FAILED)
        cJSON_AddStringToObject(object, "reason", run->reason);
    char *text = cJSON_PrintUnformatted(object);
    cJSON_Delete(object);
    return text;
}

static bool write_runs(FILE *file, const struct sweep_report *report)
{
    bool written = fputs("[\n", file) >= 0;
    for (size_t i = 0; i < report->count && written; i++) {
        char *text = format_run(report, &report->runs[i], i);
        written = text != NULL && fprintf(file, "%s%s", i > 0 ? ",\n" : "", text) > 0;
        cJSON_free(text);
    }
    return written && fprintf(file, "%s\n]\n", report->others != NULL ? report->others : "") > 0;
}

enum status sweep_report_write(const struct sweep_report *report, struct error *error)
{
    char path[RUNDIR_PATH_BYTES + 32], temporary[RUNDIR_PATH_BYTES + 32];
    int fd;
    snprintf(path, sizeof path, "%s/sweep.json", report->dir);
    snprintf(temporary, sizeof temporary, "%s/sweep.json.tmp", report->dir);
    if (file_open_as(&fd, path_below(path_of(report->dir), temporary), O_WRONLY | O_CREAT | O_TRUNC, error) !=
        STATUS_OK)
        return error_of_output(error);
    FILE *file = fdopen(fd, "w");
    if (file == NULL)
        close(fd);
    const bool is_written = file != NULL && write_runs(file, report);
    const bool is_closed = file != NULL && fclose(file) == 0;
    if (is_written && is_closed && rename(temporary, path) == 0)
        return STATUS_OK;
    error_set_errno(error, errno, "cannot write %.300s", path);
    unlink(temporary);
    return error_of_output(error);
}

static char *read_whole(struct path path)
{
    struct error error;
    uint64_t bytes;
    int fd;
    if (file_open(&fd, &bytes, path, &error) != STATUS_OK)
        return NULL;
    char *text = bytes < 1U << 30 ? calloc(1, bytes + 1) : NULL;
    if (text != NULL && file_read_at(fd, text, bytes, 0) < 0)
        text[0] = '\0';
    close(fd);
    return text;
}

static struct sweep_run *find_run(struct sweep_run *runs, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(runs[i].name, name) == 0)
            return &runs[i];
    return NULL;
}

/* Adds ",\n" and the line of a run that is none of this command line. A run that was running has died with
 * its sweep. */
static bool keep_line(FILE *others, cJSON *object, const char *state)
{
    if (strcmp(state, sweep_state_name(SWEEP_RUNNING)) == 0)
        cJSON_SetValuestring(cJSON_GetObjectItem(object, "state"), sweep_state_name(SWEEP_STOPPED));
    char *line = cJSON_PrintUnformatted(object);
    const bool kept = line != NULL && fprintf(others, ",\n%s", line) > 0;
    cJSON_free(line);
    return kept;
}

static bool take_lines(FILE *others, cJSON *array, struct sweep_run *runs, size_t count)
{
    bool taken = true;
    cJSON *object;
    cJSON_ArrayForEach(object, array)
    {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItem(object, "run"));
        const char *state = cJSON_GetStringValue(cJSON_GetObjectItem(object, "state"));
        if (name == NULL || state == NULL)
            continue;
        struct sweep_run *run = find_run(runs, count, name);
        if (run != NULL)
            run->is_hopeless = strcmp(state, sweep_state_name(SWEEP_HOPELESS)) == 0;
        else
            taken = keep_line(others, object, state) && taken;
    }
    return taken;
}

enum status sweep_report_read(struct sweep_report *report, struct sweep_run *runs, struct error *error)
{
    char path[RUNDIR_PATH_BYTES + 32];
    size_t bytes;
    snprintf(path, sizeof path, "%s/sweep.json", report->dir);
    char *text = read_whole(path_below(path_of(report->dir), path));
    cJSON *array = text != NULL ? cJSON_Parse(text) : NULL;
    FILE *others = open_memstream(&report->others, &bytes);
    const bool is_taken = others != NULL && take_lines(others, array, runs, report->count);
    const bool is_closed = others != NULL && fclose(others) == 0;
    cJSON_Delete(array);
    free(text);
    return is_taken && is_closed ? STATUS_OK
                                 : error_set(error, STATUS_NO_MEMORY, "no memory for %.300s", path);
}

void sweep_report_fini(struct sweep_report *report)
{
    free(report->others);
    report->others = NULL;
}
