/* Asks runs at their sockets, and finds the folders of others. The command's process; its only thread. */
#include "daemon/commands/found_runs.h"

#include "daemon/log/runlog.h"
#include "daemon/process/socket_folder.h"
#include "kernels/base/log.h"
#include "kernels/base/monotime.h"
#include "kernels/base/text.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { ANSWER_BYTES_MAX = 16 << 20, PATIENCE_S = 2 };

/* ---- asking ---- */

static int connect_to(const char *path)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const struct timeval patience = {.tv_sec = PATIENCE_S}; /* for connect(2): the backlog may be full */
    if (strlen(path) >= sizeof name.sun_path)
        return -1;
    memcpy(name.sun_path, path, strlen(path) + 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(fd, (const struct sockaddr *)&name, sizeof name) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Reads to the end of the stream. NULL: no end came before `until`, or the stream is too long. */
static char *read_all(int fd, struct monotime until, size_t *length)
{
    char *text = malloc(ANSWER_BYTES_MAX);
    struct pollfd answer = {.fd = fd, .events = POLLIN};
    *length = 0;
    while (text != NULL && *length < ANSWER_BYTES_MAX && monotime_before(monotime_now(), until)) {
        poll(&answer, 1, monotime_poll_ms(monotime_now(), until));
        const ssize_t got = recv(fd, text + *length, ANSWER_BYTES_MAX - *length, MSG_DONTWAIT);
        if (got == 0)
            return text;
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            break;
        *length += got > 0 ? (size_t)got : 0;
    }
    free(text);
    return NULL;
}

/* An answer may name any folder, so a stranger's answer needs a proof. */
static bool is_believed(const struct found_run *run, uid_t user)
{
    char shown[PATH_MAX];
    struct stat info;
    const char *path = json_text(run->status, "run");
    const bool is_seen = stat(path, &info) == 0;
    if (!run->is_stranger || (!is_seen && errno == EACCES) || (is_seen && info.st_uid == user) ||
        run_lock_holder(path) == run->pid)
        return true;
    text_show(shown, sizeof shown, path, strlen(path), 400);
    log_warning(
        "process %d of user %ju is not shown: the process says that it runs %s, but the folder belongs "
        "to another user, and the process does not hold the lock there",
        run->pid, (uintmax_t)user, shown);
    return false;
}

/* False: nobody answers at this socket, or the answer is not believed. */
static bool ask(const char *path, struct found_run *run)
{
    const struct monotime until = monotime_add_us(monotime_now(), PATIENCE_S * UINT64_C(1000000));
    struct ucred peer;
    socklen_t bytes = sizeof peer;
    size_t length = 0;
    const int fd = connect_to(path);
    if (fd < 0)
        return false;
    const bool has_peer = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0;
    char *text = has_peer ? read_all(fd, until, &length) : NULL;
    close(fd);
    if (has_peer && text == NULL)
        log_warning("the run of process %d does not answer within %d s: it may be stopped or hang", peer.pid,
                    PATIENCE_S);
    cJSON *status = text != NULL ? cJSON_ParseWithLength(text, length) : NULL;
    free(text);
    *run = (struct found_run){
        .pid = peer.pid, .is_stranger = has_peer && peer.uid != geteuid() && peer.uid != 0, .status = status};
    if (cJSON_IsObject(status) && is_believed(run, peer.uid))
        return true;
    cJSON_Delete(status);
    return false;
}

static int compare_runs(const void *a, const void *b)
{
    const struct found_run *one = a, *other = b;
    return strcmp(json_text(one->status, "run"), json_text(other->status, "run"));
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

enum status found_runs_ask(struct found_runs *runs, struct error *error)
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

void found_runs_forget(struct found_runs *runs)
{
    for (size_t i = 0; i < runs->count; i++)
        cJSON_Delete(runs->of[i].status);
    free(runs->of);
    *runs = (struct found_runs){0};
}

/* The kernel lists the sockets of all users. */
void found_runs_say_hidden(void)
{
    char line[512], path[PATH_MAX];
    unsigned flags, hidden = 0;
    const unsigned listens = 1 << 16; /* __SO_ACCEPTCON of linux/net.h */
    FILE *sockets = fopen("/proc/net/unix", "re");
    while (sockets != NULL && fgets(line, sizeof line, sockets) != NULL) {
        const char *end = strstr(line, ".sock.status\n");
        if (end != NULL && sscanf(line, "%*x: %*x %*x %x %*x %*x %*u %511[^\n]", &flags, path) == 2 &&
            (flags & listens) != 0 && access(path, W_OK) != 0 && errno == EACCES)
            hidden++;
    }
    if (sockets != NULL)
        fclose(sockets);
    if (hidden > 0)
        log_info("%u run%s of other users %s not shown: expected root, or a member of the group coalesced",
                 hidden, hidden == 1 ? "" : "s", hidden == 1 ? "is" : "are");
}

/* ---- folders ---- */

/* The usual places, as far as they can be read: a copy of each, in a list that run_folders_free frees. */
static enum status usual_folders(struct run_folders *out, const struct found_runs *running,
                                 struct error *error)
{
    char parent[PATH_MAX];
    const char *state = getenv("STATE_DIRECTORY");
    /* A unit with DynamicUser= has its folder below private, where only root looks. */
    const char *const usual[] = {"runs", state, "/var/lib/coalesced", "/var/lib/private/coalesced"};
    const size_t fixed = sizeof usual / sizeof usual[0], count = running != NULL ? running->count : 0;
    *out = (struct run_folders){.of = calloc(fixed + count, sizeof *out->of)};
    for (size_t i = 0; out->of != NULL && i < fixed + count; i++) {
        const char *path = i < fixed ? usual[i]
                           : running->of[i - fixed].is_stranger
                               ? NULL
                               : json_text(running->of[i - fixed].status, "run");
        const char *end = path == NULL ? NULL : i >= fixed ? strrchr(path, '/') : path + strcspn(path, ":");
        if (end == NULL ||
            (size_t)snprintf(parent, sizeof parent, "%.*s", (int)(end - path), path) >= sizeof parent ||
            access(parent, R_OK | X_OK) != 0)
            continue;
        out->of[out->count] = strdup(parent);
        out->count += out->of[out->count] != NULL;
    }
    return out->of != NULL ? STATUS_OK : error_set(error, STATUS_NO_MEMORY, "no memory for the folders");
}

enum status found_runs_folders(struct run_folders *out, const char *const *folders, size_t count,
                               const struct found_runs *running, struct error *error)
{
    struct run_folders usual;
    *out = (struct run_folders){0};
    if (count > 0)
        return run_folders_find(out, folders, count, error);
    enum status status = usual_folders(&usual, running, error);
    if (status == STATUS_OK)
        status = run_folders_find(out, (const char *const *)usual.of, usual.count, error);
    run_folders_free(&usual);
    return status;
}

void found_runs_say_unread(const struct run_folders *folders)
{
    if (folders->unread[0] != '\0')
        log_warning("%s", folders->unread);
}

/* ---- words ---- */

void write_time(char cell[CELL_BYTES], double seconds)
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

void write_bytes(char cell[CELL_BYTES], double bytes)
{
    if (bytes >= 0x1p30)
        snprintf(cell, CELL_BYTES, "%.1f GiB", bytes / 0x1p30);
    else
        snprintf(cell, CELL_BYTES, "%.1f MiB", bytes / 0x1p20);
}

void write_date(char cell[CELL_BYTES], double unix_s)
{
    struct tm local;
    const time_t seconds = unix_s > 0 && unix_s < 1e11 ? (time_t)unix_s : 0;
    cell[0] = '\0';
    if (seconds > 0 && localtime_r(&seconds, &local) != NULL)
        strftime(cell, CELL_BYTES, "%Y-%m-%d %H:%M", &local);
}

void write_path(char *out, size_t bytes, const char *path)
{
    const char *shown = runlog_short_path(path);
    text_show(out, bytes, shown, strlen(shown), bytes - 1);
}

void print_document(const cJSON *document)
{
    char *text = cJSON_PrintUnformatted(document);
    if (text != NULL)
        printf("%s\n", text);
    cJSON_free(text);
}

int terminal_width(void)
{
    struct winsize size;
    return isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}
