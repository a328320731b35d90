/* Starts a child in Python, and exchanges requests and answers with it. The thread that owns the child. */
#include "worker/python/python_child.h"

#include "kernels/base/program_files.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    CHILD_DESCRIPTOR = 3,
    ANSWER_BYTES_MAX = 1 << 30,
    CLOSE_MS = 2000, /* for the user's close */
};

struct bytes {
    char *at;
    size_t size, capacity;
};

struct python_child {
    pid_t pid; /* 0: it has ended, and was waited for */
    int pidfd; /* readable where it has ended; -1: this kernel has none */
    int socket;
    const char *task;
    struct bytes request, answer; /* the newest; the answer is zero-terminated */
};

/* ---- bytes ---- */

static enum status set_size(struct bytes *bytes, size_t size, struct error *error)
{
    if (size > bytes->capacity) {
        char *more = realloc(bytes->at, 2 * size);
        if (more == NULL)
            return error_set(error, STATUS_NO_MEMORY, "no memory for a message of %zu bytes to Python", size);
        bytes->at = more;
        bytes->capacity = 2 * size;
    }
    bytes->size = size;
    return STATUS_OK;
}

/* ---- the child ---- */

static enum status spawn_child(struct python_child *child, const char *interpreter, const char *script,
                               int socket, struct error *error)
{
    char path[PATH_MAX], program[PATH_MAX];
    enum status status = program_find(path, PROGRAM_WORKER, script, error);
    if (status != STATUS_OK)
        return status;
    snprintf(program, sizeof program, "%s", interpreter);
    char *const argv[] = {program, path, NULL};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, socket, CHILD_DESCRIPTOR);
    posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    const int errnum = posix_spawnp(&child->pid, program, &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    child->pidfd = errnum == 0 ? (int)syscall(SYS_pidfd_open, child->pid, 0) : -1;
    if (errnum == ENOENT)
        return error_set(error, STATUS_NOT_FOUND,
                         "%.300s: expected a Python interpreter, a path or a name in PATH", interpreter);
    return errnum == 0 ? STATUS_OK : error_set_errno(error, errnum, "cannot execute %.300s", interpreter);
}

/* Waits for the child, which has closed its socket or is to close it, and kills it if that lasts too long.
 * Returns waitpid's status. */
static int reap(struct python_child *child)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int how = 0;
    for (int i = 0; child->pid > 0; i++) {
        const pid_t ended = waitpid(child->pid, &how, WNOHANG);
        if (ended == child->pid || (ended < 0 && errno != EINTR))
            child->pid = 0;
        else if (i == CLOSE_MS)
            kill(child->pid, SIGKILL);
        else
            nanosleep(&pause, NULL);
    }
    return how;
}

static enum status name_end(struct python_child *child, struct error *error)
{
    const int how = reap(child);
    return error_set(error, STATUS_UNAVAILABLE, "Python has ended with %s %d: expected it to %s",
                     WIFSIGNALED(how) ? "signal" : "exit code",
                     WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how), child->task);
}

/* Waits until the socket is ready. False: the child has ended. A process that the user's code has forked may
 * hold the socket's other end open. */
static bool wait_ready(const struct python_child *child, short events)
{
    struct pollfd fds[] = {{.fd = child->socket, .events = events}, {.fd = child->pidfd, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR)
        ;
    return (fds[0].revents & events) != 0;
}

static enum status send_request(struct python_child *child, struct error *error)
{
    for (size_t done = 0; done < child->request.size;) {
        const ssize_t sent = wait_ready(child, POLLOUT)
                                 ? send(child->socket, child->request.at + done, child->request.size - done,
                                        MSG_NOSIGNAL | MSG_DONTWAIT)
                                 : 0;
        if (sent == 0 || (sent < 0 && errno != EINTR && errno != EAGAIN))
            return name_end(child, error);
        done += sent > 0 ? (size_t)sent : 0;
    }
    return STATUS_OK;
}

static enum status receive(struct python_child *child, void *bytes, size_t size, struct error *error)
{
    for (size_t done = 0; done < size;) {
        const ssize_t got =
            wait_ready(child, POLLIN) ? recv(child->socket, (char *)bytes + done, size - done, 0) : 0;
        if (got == 0 || (got < 0 && errno != EINTR))
            return name_end(child, error);
        done += got > 0 ? (size_t)got : 0;
    }
    return STATUS_OK;
}

enum status python_child_ask(struct python_child *child, struct error *error)
{
    uint32_t head[2];
    enum status status = send_request(child, error);
    if (status == STATUS_OK)
        status = receive(child, head, sizeof head, error);
    if (status == STATUS_OK && head[1] > ANSWER_BYTES_MAX)
        return error_set(error, STATUS_CORRUPT, "Python answers with %u bytes: expected at most %d", head[1],
                         ANSWER_BYTES_MAX);
    if (status == STATUS_OK)
        status = set_size(&child->answer, head[1] + 1, error);
    if (status == STATUS_OK)
        status = receive(child, child->answer.at, --child->answer.size, error);
    if (status != STATUS_OK)
        return status;
    child->answer.at[child->answer.size] = '\0';
    if (head[0] == STATUS_OK)
        return STATUS_OK;
    return error_set(error, head[0] < STATUS_COUNT ? (enum status)head[0] : STATUS_CORRUPT, "%.450s",
                     child->answer.at);
}

/* ---- opening and closing ---- */

enum status python_child_open(struct python_child **out, const char *interpreter, const char *script,
                              const char *task, struct error *error)
{
    int sockets[2];
    struct python_child *child = calloc(1, sizeof *child);
    *out = NULL;
    if (child == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a child in Python");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
        free(child);
        return error_set_errno(error, errno, "cannot make a socket for Python");
    }
    signal(SIGCHLD, SIG_DFL); /* a caller may have left it ignored, and then nothing can be waited for */
    child->socket = sockets[0];
    child->pidfd = -1;
    child->task = task;
    const enum status status = spawn_child(child, interpreter, script, sockets[1], error);
    close(sockets[1]);
    if (status != STATUS_OK) {
        python_child_close(child);
        return status;
    }
    *out = child;
    return STATUS_OK;
}

void python_child_close(struct python_child *child)
{
    if (child == NULL)
        return;
    close(child->socket);
    reap(child);
    if (child->pidfd >= 0)
        close(child->pidfd);
    free(child->request.at);
    free(child->answer.at);
    free(child);
}

/* ---- requests and answers ---- */

void python_child_begin(struct python_child *child)
{
    child->request.size = 0;
}

enum status python_child_append(struct python_child *child, const void *bytes, size_t size,
                                struct error *error)
{
    const size_t before = child->request.size;
    const enum status status = set_size(&child->request, before + size, error);
    if (status == STATUS_OK && size > 0)
        memcpy(child->request.at + before, bytes, size);
    return status;
}

const char *python_child_answer(const struct python_child *child, size_t *size)
{
    *size = child->answer.size;
    return child->answer.at;
}
