/* The commands `status`, `list` and `stop`: ask runs for their status (daemon/watch/status_socket.h), and
 * show it as tables. The command's process; its only thread; blocks. */
#include "daemon/commands/commands.h"

#include "daemon/process/socket_folder.h"
#include "kernels/base/log.h"
#include "kernels/base/text.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_BYTES_MAX = 16 << 20, PATIENCE_S = 2, CELL_BYTES = 64, WORD_BYTES = 32, COLUMNS = 12 };

/* A run that has answered. */
struct found_run {
    pid_t pid; /* of the process at the socket's other end: the kernel says so */
    cJSON *status;
};

struct found_runs {
    struct found_run *of;
    size_t count;
};

/* ---- asking ---- */

static int connect_to(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const struct timeval patience = {.tv_sec = PATIENCE_S};
    if (strlen(path) >= sizeof name.sun_path)
        return -1;
    memcpy(name.sun_path, path, strlen(path) + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(fd, (const struct sockaddr *)&name, sizeof name) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Reads to the end of the stream. NULL: it did not come, or it is too long. */
static char *read_all(int fd, size_t *length)
{
    char *text = malloc(ANSWER_BYTES_MAX);
    for (*length = 0; text != NULL && *length < ANSWER_BYTES_MAX;) {
        const ssize_t got = recv(fd, text + *length, ANSWER_BYTES_MAX - *length, 0);
        if (got == 0)
            return text;
        if (got < 0 && errno != EINTR)
            break;
        *length += got > 0 ? (size_t)got : 0;
    }
    free(text);
    return NULL;
}

/* False: nobody answers at this socket. */
static bool ask(const char *path, struct found_run *run)
{
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    size_t length = 0;
    const int fd = connect_to(path);
    if (fd < 0)
        return false;
    const bool has_peer = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0;
    char *text = has_peer ? read_all(fd, &length) : NULL;
    close(fd);
    if (has_peer && text == NULL)
        log_warning("the run of process %d does not answer within %d s: it may be stopped or hang", peer.pid,
                    PATIENCE_S);
    cJSON *status = text != NULL ? cJSON_ParseWithLength(text, length) : NULL;
    free(text);
    if (!cJSON_IsObject(status)) {
        cJSON_Delete(status);
        return false;
    }
    *run = (struct found_run){.pid = peer.pid, .status = status};
    return true;
}

static const char *member(const struct found_run *run, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(run->status, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static int compare_runs(const void *a, const void *b)
{
    return strcmp(member(a, "run"), member(b, "run"));
}

/* Two patterns may find the same socket. */
static bool is_found_before(const glob_t *sockets, size_t which)
{
    struct stat mine, other;
    if (stat(sockets->gl_pathv[which], &mine) != 0)
        return true; /* it is gone */
    for (size_t i = 0; i < which; i++)
        if (stat(sockets->gl_pathv[i], &other) == 0 && other.st_dev == mine.st_dev &&
            other.st_ino == mine.st_ino)
            return true;
    return false;
}

static enum status ask_all(struct found_runs *runs, struct error *error)
{
    glob_t sockets;
    *runs = (struct found_runs){0};
    socket_folder_find_runs(&sockets);
    runs->of = calloc(sockets.gl_pathc + 1, sizeof *runs->of);
    for (size_t i = 0; runs->of != NULL && i < sockets.gl_pathc; i++) {
        if (!is_found_before(&sockets, i) && ask(sockets.gl_pathv[i], &runs->of[runs->count]))
            runs->count++;
    }
    globfree(&sockets);
    if (runs->of == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the runs");
    qsort(runs->of, runs->count, sizeof *runs->of, compare_runs);
    return STATUS_OK;
}

static void forget(struct found_runs *runs)
{
    for (size_t i = 0; i < runs->count; i++)
        cJSON_Delete(runs->of[i].status);
    free(runs->of);
    *runs = (struct found_runs){0};
}

/* ---- choosing ---- */

static bool is_meant(const struct found_run *run, const char *wanted, const char *real)
{
    return strcmp(member(run, "run"), real) == 0 || strcmp(member(run, "name"), wanted) == 0;
}

/* Keeps the run that is meant, by its directory if there is one of that path. */
static enum status choose(struct found_runs *runs, const char *wanted, struct error *error)
{
    char real[PATH_MAX];
    size_t count = 0;
    if (realpath(wanted, real) == NULL)
        real[0] = '\0';
    for (size_t i = 0; i < runs->count; i++) {
        if (is_meant(&runs->of[i], wanted, real))
            runs->of[count++] = runs->of[i];
        else
            cJSON_Delete(runs->of[i].status);
    }
    runs->count = count;
    if (count > 1)
        return error_set(error, STATUS_INVALID,
                         "%zu runs have the name %.100s: expected a directory, as %.200s", count, wanted,
                         member(&runs->of[0], "run"));
    return count == 1 ? STATUS_OK
                      : error_set(error, STATUS_NOT_FOUND,
                                  "%.200s is not running: expected the directory of a run that goes on, "
                                  "or its name as `coalesced list` shows it",
                                  wanted);
}

static enum status find(struct found_runs *runs, const char *wanted, struct error *error)
{
    enum status status = ask_all(runs, error);
    if (status == STATUS_OK && wanted != NULL)
        status = choose(runs, wanted, error);
    return status;
}

/* ---- numbers for people ---- */

static double number_of(const cJSON *object, const char *name)
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

static void show_word(const cJSON *object, const char *name)
{
    char shown[4096];
    write_word(shown, sizeof shown, object, name);
    fputs(shown, stdout);
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
        if (isfinite(number_of(progress, numbers[i].member)))
            printf("%s %.*f", numbers[i].label, numbers[i].decimals, number_of(progress, numbers[i].member));
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        snprintf(member, sizeof member, "%s_per_s", rates[i]);
        if (!isfinite(number_of(progress, member)))
            continue;
        write_count(cell, number_of(progress, member));
        printf(", %s %s/s", cell, rates[i]);
    }
}

/* How much of /stop is done, on a line of its own. */
static void show_share(const cJSON *status)
{
    const cJSON *progress = cJSON_GetObjectItemCaseSensitive(status, "progress");
    char cell[CELL_BYTES];
    if (!isfinite(number_of(progress, "total")))
        return;
    write_word(cell, sizeof cell, progress, "unit");
    printf("\n%.0f of %.0f %ss", number_of(progress, "done"), number_of(progress, "total"), cell);
    printf(", %.0f %%", floor(100 * fmin(1, number_of(progress, "done") / number_of(progress, "total"))));
    write_time(cell, number_of(progress, "eta_s"));
    if (isfinite(number_of(progress, "eta_s")))
        printf(", done in %s", cell);
}

static void show_job(const cJSON *status)
{
    char cell[CELL_BYTES];
    show_word(status, "run");
    fputs(": ", stdout);
    show_word(status, "kind");
    printf(", process %.0f, ", number_of(status, "pid"));
    show_word(status, "state");
    write_time(cell, number_of(status, "up_s"));
    printf(", up %s\n", cell);
    show_progress(status);
    show_share(status);
    write_time(cell, number_of(status, "checkpoint_age_s"));
    if (isfinite(number_of(status, "checkpoint_age_s")))
        printf("\ncheckpoint %.0f, %s old\n\n", number_of(status, "checkpoint"), cell);
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
        if (isfinite(number_of(worker, member)))
            columns[column].write(cell, number_of(worker, member));
    } else if (column == 1) {
        write_word(cell, CELL_BYTES, worker, member);
    } else {
        write_word(word, sizeof word, worker, member);
        if (column == 0)
            snprintf(cell, CELL_BYTES, "%s %.0f", word, number_of(worker, "worker"));
        else if (word[0] != '\0')
            snprintf(cell, CELL_BYTES, "%.0f %s", number_of(worker, "host"), word);
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

static int terminal_width(void)
{
    struct winsize size;
    return isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

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

static void show_json(struct found_runs *runs, bool all)
{
    cJSON *root = all ? cJSON_CreateObject() : runs->of[0].status;
    cJSON *list = all ? cJSON_AddArrayToObject(root, "runs") : NULL;
    for (size_t i = 0; all && i < runs->count; i++)
        cJSON_AddItemReferenceToArray(list, runs->of[i].status);
    char *text = cJSON_PrintUnformatted(root);
    if (text != NULL)
        printf("%s\n", text);
    cJSON_free(text);
    if (all)
        cJSON_Delete(root);
}

static enum status show(const struct arguments *arguments, bool clears, struct error *error)
{
    struct found_runs runs;
    const enum status status = find(&runs, arguments->run, error);
    if (status == STATUS_OK && clears)
        printf("\033[H\033[J");
    if (status == STATUS_OK && arguments->json)
        show_json(&runs, arguments->run == NULL);
    else if (status == STATUS_OK)
        show_tables(&runs);
    fflush(stdout);
    forget(&runs);
    return status;
}

enum status status_show(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    const bool clears = arguments->watch && !arguments->json && isatty(STDOUT_FILENO) == 1;
    enum status status = show(arguments, clears, error);
    while (status == STATUS_OK && arguments->watch && ferror(stdout) == 0) {
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        if (!clears && !arguments->json)
            printf("\n");
        status = show(arguments, clears, error);
        if (status == STATUS_NOT_FOUND) {
            log_info("%s has ended", arguments->run);
            return STATUS_OK;
        }
    }
    return status;
}

/* ---- list and stop ---- */

enum status status_list(const struct arguments *arguments, struct job *job, struct error *error)
{
    (void)job;
    struct found_runs runs;
    (void)arguments;
    const enum status status = ask_all(&runs, error);
    for (size_t i = 0; i < runs.count; i++) {
        const cJSON *run = runs.of[i].status;
        show_word(run, "name");
        putchar('\t');
        show_word(run, "state");
        printf("\t%.0f\t", number_of(run, "pid"));
        show_progress(run);
        putchar('\t');
        show_word(run, "run");
        putchar('\n');
    }
    forget(&runs);
    return status;
}

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
        log_info("stopping %s, process %d: its round is finished first", member(&runs.of[0], "run"),
                 runs.of[0].pid);
        status = end_run(&runs.of[0], error);
    }
    forget(&runs);
    return status;
}
