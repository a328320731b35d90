/* The commands `status` and `stop`: ask runs for their status, and show it as tables; or show how a run has
 * ended. The command's process; its only thread; blocks. */
#include "daemon/commands/commands.h"

#include "daemon/commands/found_runs.h"
#include "daemon/log/run_summary.h"
#include "daemon/log/runlog.h"
#include "kernels/base/log.h"
#include "kernels/base/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WORD_BYTES = 32, COLUMNS = 12 };

/* ---- choosing ---- */

/* Keeps the run that is meant, by its directory if there is one of that path. After a move, the run still
 * answers with the earlier path, but the process holds the lock in the folder. */
static enum status choose(struct found_runs *runs, const char *wanted, struct error *error)
{
    char real[PATH_MAX];
    size_t count = 0;
    if (realpath(wanted, real) == NULL) /* this user may not look there */
        snprintf(real, sizeof real, "%s", wanted);
    const pid_t holder = run_lock_holder(real);
    for (size_t i = 0; i < runs->count; i++) {
        const struct found_run *run = &runs->of[i];
        if ((holder > 0 ? run->pid == holder : strcmp(json_text(run->status, "run"), real) == 0) ||
            strcmp(json_text(run->status, "name"), wanted) == 0)
            runs->of[count++] = *run;
        else
            cJSON_Delete(run->status);
    }
    runs->count = count;
    if (count == 1 && holder > 0 && runs->of[0].pid == holder)
        cJSON_ReplaceItemInObjectCaseSensitive(runs->of[0].status, "run", cJSON_CreateString(real));
    if (count > 1)
        return error_set(error, STATUS_INVALID,
                         "%zu runs have the name %.100s: expected a directory, as %.200s", count, wanted,
                         json_text(runs->of[0].status, "run"));
    return count == 1 ? STATUS_OK
                      : error_set(error, STATUS_NOT_FOUND,
                                  "%.200s is not running: expected the directory of a run that goes on, "
                                  "or the name of its job; `coalesced list` shows both",
                                  wanted);
}

static enum status find(struct found_runs *runs, const char *wanted, struct error *error)
{
    enum status status = found_runs_ask(runs, error);
    if (status == STATUS_OK && wanted != NULL)
        status = choose(runs, wanted, error);
    return status;
}

/* Finds the run that has ended, by its folder or else by its job's name. A previous run has a folder alone.
 */
static enum status find_ended(struct run_summary *found, const char *wanted, struct error *error)
{
    struct run_folders folders;
    struct run_summary other;
    struct error unused;
    size_t count = 0;
    enum status status = run_summary_read(found, wanted, error);
    if (status != STATUS_NOT_FOUND)
        return status;
    status = found_runs_folders(&folders, NULL, 0, NULL, error);
    found_runs_say_unread(&folders);
    for (size_t i = 0; status == STATUS_OK && i < folders.count; i++) {
        if (run_summary_read(&other, folders.of[i], &unused) != STATUS_OK || other.is_previous ||
            strcmp(other.name, wanted) != 0)
            continue;
        *found = other;
        count++;
    }
    run_folders_free(&folders);
    if (status != STATUS_OK || count == 1)
        return status;
    if (count > 1)
        return error_set(error, STATUS_INVALID,
                         "%zu runs have the name %.100s: expected a directory, as %.200s", count, wanted,
                         found->path);
    return error_set(error, STATUS_NOT_FOUND,
                     "no run is called %.200s: expected the directory of a run, or the name of its job; "
                     "`coalesced list` shows both",
                     wanted);
}

/* ---- numbers for people ---- */

/* A run of another user may answer: what it says is made fit to show. */
static void write_word(char *shown, size_t bytes, const cJSON *object, const char *name)
{
    const char *text = json_text(object, name);
    text_show(shown, bytes, text, strlen(text), bytes - 1);
}

static void show_word(const cJSON *object, const char *name)
{
    char shown[4096];
    write_word(shown, sizeof shown, object, name);
    fputs(shown, stdout);
}

/* 12345678 is "12.3M". */
static void write_count(char cell[CELL_BYTES], double value)
{
    if (value >= 1e9)
        snprintf(cell, CELL_BYTES, "%.1fG", value / 1e9);
    else if (value >= 1e6)
        snprintf(cell, CELL_BYTES, "%.1fM", value / 1e6);
    else if (value >= 1e4)
        snprintf(cell, CELL_BYTES, "%.1fk", value / 1e3);
    else
        snprintf(cell, CELL_BYTES, value < 10 && value != floor(value) ? "%.2f" : "%.0f", value);
}

static void write_whole(char cell[CELL_BYTES], double value)
{
    snprintf(cell, CELL_BYTES, "%.0f", value);
}

static void write_share(char cell[CELL_BYTES], double cores)
{
    snprintf(cell, CELL_BYTES, "%.0f %%", 100 * cores);
}

/* ---- the tables ---- */

static void show_progress(const cJSON *status)
{
    static const struct {
        const char *member, *label;
        int decimals;
    } numbers[] = {
        {"episode", "episode", 0}, {"update", "update", 0},       {"running_reward", ", running reward", 2},
        {"loss", ", loss", 4},     {"accuracy", ", accuracy", 4}, {"perplexity", ", perplexity", 2}};
    static const char *const rates[] = {"steps", "samples", "tokens"};
    const cJSON *progress = cJSON_GetObjectItemCaseSensitive(status, "progress");
    char cell[CELL_BYTES], member[CELL_BYTES];
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (isfinite(json_number(progress, numbers[i].member)))
            printf("%s %.*f", numbers[i].label, numbers[i].decimals,
                   json_number(progress, numbers[i].member));
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        snprintf(member, sizeof member, "%s_per_s", rates[i]);
        if (!isfinite(json_number(progress, member)))
            continue;
        write_count(cell, json_number(progress, member));
        printf(", %s %s/s", cell, rates[i]);
    }
}

/* How much of /stop is done, on a line of its own. */
static void show_share(const cJSON *status)
{
    const cJSON *progress = cJSON_GetObjectItemCaseSensitive(status, "progress");
    char cell[CELL_BYTES];
    if (!isfinite(json_number(progress, "total")))
        return;
    write_word(cell, sizeof cell, progress, "unit");
    printf("\n%.0f of %.0f %ss", json_number(progress, "done"), json_number(progress, "total"), cell);
    printf(", %.0f %%", floor(100 * fmin(1, json_number(progress, "done") / json_number(progress, "total"))));
    write_time(cell, json_number(progress, "eta_s"));
    if (isfinite(json_number(progress, "eta_s")))
        printf(", done in %s", cell);
}

static void show_job(const cJSON *status)
{
    char cell[CELL_BYTES];
    show_word(status, "run");
    fputs(": ", stdout);
    show_word(status, "kind");
    printf(", process %.0f, ", json_number(status, "pid"));
    show_word(status, "state");
    write_time(cell, json_number(status, "up_s"));
    printf(", up %s\n", cell);
    show_progress(status);
    show_share(status);
    write_time(cell, json_number(status, "checkpoint_age_s"));
    if (isfinite(json_number(status, "checkpoint_age_s")))
        printf("\ncheckpoint %.0f, %s old\n\n", json_number(status, "checkpoint"), cell);
    else
        printf("\nno checkpoint yet\n\n");
}

static const struct {
    const char *title, *member;
    void (*write)(char cell[CELL_BYTES], double value); /* NULL: a word */
} columns[COLUMNS] = {{"WORKER", "role", NULL},
                      {"STATE", "state", NULL},
                      {"HOST", "host_name", NULL},
                      {"PID", "pid", write_whole},
                      {"INCARNATION", "incarnation", write_whole},
                      {"RESTARTS", "restarts", write_count},
                      {"PER S", "work_per_s", write_count},
                      {"QUEUE", "queue", write_count},
                      {"WAIT", "wait_s", write_time},
                      {"STALE", "staleness", write_count},
                      {"CPU", "cores", write_share},
                      {"MEMORY", "resident_bytes", write_bytes}};

/* Writes a cell; "": it says nothing. `worker`: NULL: the column's title. */
static void write_cell(char cell[CELL_BYTES], const cJSON *worker, int column)
{
    const char *member = columns[column].member;
    char word[WORD_BYTES];
    cell[0] = '\0';
    if (worker == NULL) {
        snprintf(cell, CELL_BYTES, "%s", columns[column].title);
    } else if (columns[column].write != NULL) {
        if (isfinite(json_number(worker, member)))
            columns[column].write(cell, json_number(worker, member));
    } else if (column == 1) {
        write_word(cell, CELL_BYTES, worker, member);
    } else {
        write_word(word, sizeof word, worker, member);
        if (column == 0)
            snprintf(cell, CELL_BYTES, "%s %.0f", word, json_number(worker, "worker"));
        else if (word[0] != '\0')
            snprintf(cell, CELL_BYTES, "%.0f %s", json_number(worker, "host"), word);
    }
}

/* A column that says nothing in any line has the width 0. */
static void show_row(const cJSON *worker, const int widths[COLUMNS], int most)
{
    char line[COLUMNS * (CELL_BYTES + 2)], cell[CELL_BYTES];
    int at = 0;
    for (int i = 0; i < COLUMNS; i++) {
        if (widths[i] == 0)
            continue;
        write_cell(cell, worker, i);
        at += snprintf(line + at, sizeof line - (size_t)at, columns[i].write == NULL ? "%s%-*s" : "%s%*s",
                       at > 0 ? "  " : "", widths[i], cell);
    }
    printf("%.*s\n", most > 0 && most < at ? most : at, line);
}

/* Three lines about the job, then a line for each worker. `most`: columns of the terminal, beyond which lines
 * are cut; 0: they are not. */
static void show_table(const cJSON *status, int most)
{
    const cJSON *workers = cJSON_GetObjectItemCaseSensitive(status, "workers"), *worker;
    int widths[COLUMNS] = {0};
    show_job(status);
    if (!cJSON_IsArray(workers))
        return;
    for (worker = workers->child; worker != NULL; worker = worker->next)
        for (int i = 0; i < COLUMNS; i++) {
            char cell[CELL_BYTES];
            write_cell(cell, worker, i);
            const int length = (int)strlen(cell), least = (int)strlen(columns[i].title);
            if (length > widths[i])
                widths[i] = length > least ? length : least;
        }
    show_row(NULL, widths, most);
    for (worker = workers->child; worker != NULL; worker = worker->next)
        show_row(worker, widths, most);
}

/* ---- status ---- */

static void show_tables(const struct found_runs *runs)
{
    const int width = terminal_width();
    if (runs->count == 0)
        printf("no run on this host\n");
    for (size_t i = 0; i < runs->count; i++) {
        if (i > 0)
            printf("\n");
        show_table(runs->of[i].status, width);
    }
}

/* `seen`: the path of the run that is named, once it has answered. */
static enum status show(const struct arguments *arguments, bool clears, char seen[PATH_MAX],
                        struct error *error)
{
    struct found_runs runs;
    const enum status status = find(&runs, arguments->run, error);
    if (status == STATUS_OK && clears)
        printf("\033[H\033[J");
    if (status == STATUS_OK && arguments->run != NULL)
        snprintf(seen, PATH_MAX, "%s", json_text(runs.of[0].status, "run"));
    if (status == STATUS_OK && arguments->json && arguments->run != NULL)
        print_document(runs.of[0].status);
    else if (status == STATUS_OK && arguments->json) {
        cJSON *root = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(root, "runs");
        for (size_t i = 0; i < runs.count; i++)
            cJSON_AddItemReferenceToArray(list, runs.of[i].status);
        print_document(root);
        cJSON_Delete(root);
    } else if (status == STATUS_OK)
        show_tables(&runs);
    fflush(stdout);
    found_runs_forget(&runs);
    return status;
}

/* ---- the end of a run ---- */

enum { QUOTED_BYTES = 4 * PATH_MAX + 3 };

/* Writes the path as one word of a shell. */
static void write_quoted(char quoted[QUOTED_BYTES], const char *path)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./=,:@+-";
    const char *quote = path[strspn(path, plain)] == '\0' ? "" : "'";
    int at = sprintf(quoted, "%s", quote);
    for (; *path != '\0'; path++)
        at += sprintf(quoted + at, *path == '\'' ? "'\\''" : "%c", *path);
    sprintf(quoted + at, "%s", quote);
}

static void show_end(const struct run_summary *s)
{
    char path[PATH_MAX], quoted[QUOTED_BYTES], cell[CELL_BYTES], sum[PROGRESS_TEXT_BYTES],
        reason[sizeof s->reason];
    write_path(path, sizeof path, s->path);
    write_date(cell, s->ended_unix_s);
    text_show(reason, sizeof reason, s->reason, strlen(s->reason), sizeof reason - 1);
    progress_sum_up(sum, &s->progress);
    printf("%s: %s%s%s%s%s", path, s->kind, s->kind[0] != '\0' ? ", " : "", s->state,
           cell[0] != '\0' ? strcmp(s->state, "died") == 0 ? "; its last line is of " : " on " : "", cell);
    printf("%s%s\n", reason[0] != '\0' ? "\n" : "", reason);
    if (sum[0] != '\0')
        printf("%s\n", sum);
    if (s->checkpoint == 0) {
        printf("no checkpoint\n");
        return;
    }
    printf("checkpoint %" PRIu64 "%s\n", s->checkpoint, s->has_best ? ", and the best one so far" : "");
    write_quoted(quoted, path);
    if (s->is_resumable)
        printf("to go on: coalesced run %s/job.json --run-dir %s --resume\n", quoted, quoted);
    printf("to use it: coalesced %s %s\n", runlog_command(s->kind), quoted);
}

static void show_summary(const struct arguments *arguments, const struct run_summary *ended)
{
    if (!arguments->json) {
        show_end(ended);
        return;
    }
    cJSON *document = run_summary_json(ended);
    print_document(document);
    cJSON_Delete(document);
}

static enum status show_ended(const struct arguments *arguments, struct error *error)
{
    struct run_summary ended;
    const enum status status = find_ended(&ended, arguments->run, error);
    if (status != STATUS_OK)
        return status;
    if (ended.pid > 0)
        return error_set(error, STATUS_NOT_FOUND,
                         "process %d runs %.200s, and does not answer: expected an answer at its socket",
                         ended.pid, ended.path);
    show_summary(arguments, &ended);
    return STATUS_OK;
}

/* A run whose socket is gone may have its end to write still; a run that hangs may answer again. */
static enum status watch(const struct arguments *arguments, bool clears, char seen[PATH_MAX],
                         struct error *error)
{
    struct run_summary ended;
    enum status status = STATUS_OK;
    while ((status == STATUS_OK || status == STATUS_NOT_FOUND) && ferror(stdout) == 0) {
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        if (!clears && !arguments->json)
            printf("\n");
        status = show(arguments, clears, seen, error);
        if (status != STATUS_NOT_FOUND)
            continue;
        const bool is_read = run_summary_read(&ended, seen, error) == STATUS_OK;
        if (is_read && ended.pid > 0)
            continue;
        if (is_read)
            show_summary(arguments, &ended);
        else
            log_info("%s has ended", seen);
        return STATUS_OK;
    }
    return status;
}

enum status status_show(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    char seen[PATH_MAX];
    const bool clears = arguments->watch && !arguments->json && isatty(STDOUT_FILENO) == 1;
    const enum status status = show(arguments, clears, seen, error);
    if (status == STATUS_NOT_FOUND)
        return show_ended(arguments, error);
    if (arguments->run == NULL)
        found_runs_say_hidden();
    return status == STATUS_OK && arguments->watch ? watch(arguments, clears, seen, error) : status;
}

/* ---- stop ---- */

static enum status end_run(const struct found_run *run, struct error *error)
{
    const int fd = (int)syscall(SYS_pidfd_open, run->pid, 0);
    if (fd < 0 && errno == ESRCH)
        return STATUS_OK;
    if (fd < 0 || syscall(SYS_pidfd_send_signal, fd, SIGTERM, NULL, 0) != 0) {
        error_set_errno(error, errno, "cannot stop process %d", run->pid);
        if (fd >= 0)
            close(fd);
        return error->status;
    }
    struct pollfd end = {.fd = fd, .events = POLLIN};
    while (poll(&end, 1, -1) < 0 && errno == EINTR)
        ;
    close(fd);
    return STATUS_OK;
}

enum status status_stop(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    struct found_runs runs;
    enum status status = find(&runs, arguments->run, error);
    if (status == STATUS_OK) {
        log_info("stopping %s, process %d: its round is finished first", json_text(runs.of[0].status, "run"),
                 runs.of[0].pid);
        status = end_run(&runs.of[0], error);
    }
    found_runs_forget(&runs);
    return status;
}
