/* Asks runs for their status. The command's process; its only thread; blocks. */
#include "daemon/commands/commands.h"

#include "daemon/commands/status_table.h"
#include "daemon/process/socket_folder.h"
#include "kernels/base/log.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <limits.h>
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

enum { ANSWER_BYTES_MAX = 16 << 20, PATIENCE_S = 2 };

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
    char *text = NULL;
    size_t capacity = 0;
    *length = 0;
    for (;;) {
        if (capacity - *length < 65536) {
            char *more = capacity < ANSWER_BYTES_MAX ? realloc(text, capacity + 262144) : NULL;
            if (more == NULL)
                break;
            text = more;
            capacity += 262144;
        }
        const ssize_t got = recv(fd, text + *length, capacity - *length, 0);
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
        status_table_write(stdout, runs->of[i].status, width);
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
        status_table_line(stdout, runs.of[i].status);
        printf("\t");
        status_table_word(stdout, runs.of[i].status, "run");
        printf("\n");
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
