/* The command `list`: shows all runs in a table, those that go on and those that have ended. The command's
 * process; its only thread; blocks. */
#include "daemon/commands/commands.h"

#include "daemon/commands/found_runs.h"
#include "daemon/log/run_summary.h"
#include "kernels/base/log.h"
#include "kernels/base/text.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct listing {
    struct run_summary *of;
    size_t count;
};

/* ---- collecting ---- */

/* The unit of a run that answers, as struct progress names it. NULL: none is known. */
static const char *unit_of(const cJSON *progress)
{
    static const char *const units[] = {"step", "episode", "update"};
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strcmp(json_text(progress, "unit"), units[i]) == 0)
            return units[i];
    return NULL;
}

/* The supervisor's answer is newer than the log. The run's folder may be unreadable. */
static void add_answer(struct run_summary *s, const struct found_run *run)
{
    const cJSON *progress = cJSON_GetObjectItemCaseSensitive(run->status, "progress");
    const double reward = json_number(progress, "running_reward");
    struct progress *p = &s->progress;
    s->state = "running";
    s->reason[0] = '\0';
    s->pid = run->pid;
    s->is_resumable = false;
    if (unit_of(progress) == NULL)
        return;
    p->unit = unit_of(progress);
    p->done = json_count(progress, "done");
    p->total = json_count(progress, "total");
    p->eta_s = json_number(progress, "eta_s");
    if (p->figure == NULL) {
        p->figure = isnan(reward) ? "loss" : "running reward";
        p->value = isnan(reward) ? json_number(progress, "loss") : reward;
    }
}

/* Finds the run whose lock the process holds: after a move, the answer still has the earlier path. Otherwise
 * finds the run of that path, if no process is seen to hold the lock. NULL: the run is not listed. */
static struct run_summary *listed(const struct listing *listing, const struct found_run *run)
{
    struct run_summary *found = NULL;
    for (size_t i = 0; i < listing->count; i++) {
        struct run_summary *s = &listing->of[i];
        if (s->pid > 0 && s->pid == run->pid)
            return s;
        if (s->pid == 0 && strcmp(s->path, json_text(run->status, "run")) == 0)
            found = s;
    }
    return found;
}

/* Without a path, nothing is read. */
static void add_unlisted(struct listing *listing, const struct found_run *run)
{
    struct error unused;
    const char *path = json_text(run->status, "run");
    struct run_summary *s = &listing->of[listing->count++];
    if (run_summary_read(s, run->is_stranger ? "" : path, &unused) != STATUS_OK) {
        snprintf(s->path, sizeof s->path, "%s", path);
        snprintf(s->name, sizeof s->name, "%s", json_text(run->status, "name"));
    }
    add_answer(s, run);
}

/* Sorts by the time of the newest line. Runs without a line come first, running runs last. */
static int compare_times(const void *a, const void *b)
{
    const struct run_summary *one = a, *other = b;
    const double at = one->pid > 0 ? INFINITY : isnan(one->ended_unix_s) ? -INFINITY : one->ended_unix_s;
    const double then = other->pid > 0               ? INFINITY
                        : isnan(other->ended_unix_s) ? -INFINITY
                                                     : other->ended_unix_s;
    return at < then ? -1 : at > then ? 1 : strcmp(one->path, other->path);
}

static void keep_running(struct listing *listing)
{
    size_t kept = 0;
    for (size_t i = 0; i < listing->count; i++)
        if (strcmp(listing->of[i].state, "running") == 0)
            listing->of[kept++] = listing->of[i];
    listing->count = kept;
}

static enum status collect(struct listing *listing, const struct arguments *arguments,
                           const struct found_runs *running, struct error *error)
{
    struct run_folders folders = {0};
    struct error unread;
    struct run_summary *s;
    const bool is_filtered = arguments->running && arguments->folder_count > 0;
    const enum status status =
        arguments->running && !is_filtered
            ? STATUS_OK
            : found_runs_folders(&folders, arguments->folders, arguments->folder_count, running, error);
    found_runs_say_unread(&folders);
    listing->of =
        status == STATUS_OK ? calloc(folders.count + running->count + 1, sizeof *listing->of) : NULL;
    for (size_t i = 0; listing->of != NULL && i < folders.count; i++) {
        if (run_summary_read(&listing->of[listing->count], folders.of[i], &unread) == STATUS_OK)
            listing->count++;
        else
            log_warning("%s is not shown: %s", folders.of[i], unread.text);
    }
    for (size_t i = 0; listing->of != NULL && i < running->count; i++)
        if ((s = listed(listing, &running->of[i])) != NULL)
            add_answer(s, &running->of[i]);
        else if (!is_filtered)
            add_unlisted(listing, &running->of[i]);
    if (is_filtered)
        keep_running(listing);
    run_folders_free(&folders);
    if (status == STATUS_OK && listing->of == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the runs");
    if (status == STATUS_OK)
        qsort(listing->of, listing->count, sizeof *listing->of, compare_times);
    return status;
}

/* ---- the table ---- */

enum { RUN, STATE, PROGRESS, FIGURES, WHEN, SIZE, WHY, COLUMNS, LIST_CELL_BYTES = PATH_MAX };
static const char *const titles[COLUMNS] = {"RUN", "STATE", "PROGRESS", "FIGURES", "WHEN", "SIZE", "WHY"};

/* "update 119/940  13 %", and of a run that goes on "ETA 2:31". */
static void write_progress(char cells[COLUMNS][LIST_CELL_BYTES], const struct run_summary *s)
{
    struct progress progress = s->progress;
    char text[PROGRESS_TEXT_BYTES], cell[CELL_BYTES];
    progress.value = NAN;
    progress.per_s = 0;
    progress.eta_s = s->pid > 0 ? progress.eta_s : (double)NAN;
    progress_text(text, &progress, sizeof text);
    char *eta = strstr(text, "  ETA ");
    if (eta != NULL)
        *eta = '\0';
    write_date(cell, s->pid > 0 ? (double)NAN : s->ended_unix_s);
    snprintf(cells[PROGRESS], LIST_CELL_BYTES, "%s", text);
    snprintf(cells[WHEN], LIST_CELL_BYTES, "%s", eta != NULL ? eta + 2 : cell);
}

static void write_cells(char cells[COLUMNS][LIST_CELL_BYTES], const struct run_summary *s)
{
    char sum[PROGRESS_TEXT_BYTES];
    write_progress(cells, s);
    progress_sum_up(sum, &s->progress);
    const char *figures = strstr(sum, ", ");
    write_path(cells[RUN], LIST_CELL_BYTES, s->path);
    snprintf(cells[STATE], LIST_CELL_BYTES, "%s", s->state);
    snprintf(cells[FIGURES], LIST_CELL_BYTES, "%s", figures != NULL ? figures + 2 : "");
    if (s->bytes > 0)
        write_bytes(cells[SIZE], (double)s->bytes);
    else
        cells[SIZE][0] = '\0'; /* nobody has read the folder */
    text_show(cells[WHY], LIST_CELL_BYTES, s->reason, strlen(s->reason), LIST_CELL_BYTES - 1);
}

/* A terminal has `most` columns: the line is cut there, after a whole character. `most` 0: standard output is
 * no terminal. */
static void show_line(char cells[COLUMNS][LIST_CELL_BYTES], const int widths[COLUMNS], int most)
{
    char line[COLUMNS * (LIST_CELL_BYTES + 2)];
    int at = 0, end = 0;
    for (int i = 0; i < COLUMNS; i++)
        if (most == 0)
            printf("%s%s", cells[i], i + 1 < COLUMNS ? "\t" : "\n");
        else if (widths[i] > 0)
            at += snprintf(line + at, sizeof line - (size_t)at, "%s%-*s", i == 0 ? "" : "  ", widths[i],
                           cells[i]);
    while (at > 0 && line[at - 1] == ' ')
        at--;
    for (int columns = 0; end < at && columns < most; columns++) {
        const size_t bytes = text_character(line + end, (size_t)(at - end));
        end += bytes > 0 ? (int)bytes : 1;
    }
    if (most > 0)
        printf("%.*s\n", end, line);
}

/* A column that says nothing in any line is left out on a terminal. */
static void show_table(const struct listing *listing)
{
    char cells[COLUMNS][LIST_CELL_BYTES];
    int widths[COLUMNS] = {0};
    const int most = terminal_width();
    for (size_t i = 0; i < listing->count; i++) {
        write_cells(cells, &listing->of[i]);
        for (int column = 0; column < COLUMNS; column++) {
            const int length = (int)strlen(cells[column]), least = (int)strlen(titles[column]);
            if (length > widths[column])
                widths[column] = length > least ? length : least;
        }
    }
    for (int column = 0; column < COLUMNS; column++)
        snprintf(cells[column], LIST_CELL_BYTES, "%s", titles[column]);
    if (most > 0)
        show_line(cells, widths, most);
    for (size_t i = 0; i < listing->count; i++) {
        write_cells(cells, &listing->of[i]);
        show_line(cells, widths, most);
    }
}

enum status list_runs(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    struct listing listing = {0};
    struct found_runs running;
    enum status status = found_runs_ask(&running, error);
    if (status == STATUS_OK)
        status = collect(&listing, arguments, &running, error);
    if (status == STATUS_OK && arguments->json) {
        cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "runs");
        for (size_t i = 0; i < listing.count; i++)
            cJSON_AddItemToArray(list, run_summary_json(&listing.of[i]));
        print_document(root);
        cJSON_Delete(root);
    } else if (status == STATUS_OK && listing.count > 0)
        show_table(&listing);
    else if (status == STATUS_OK)
        log_info("no run is found");
    if (status == STATUS_OK)
        found_runs_say_hidden();
    free(listing.of);
    found_runs_forget(&running);
    return status;
}
