/* Starts a child in Python that has environments, and turns environment.h's calls into requests to the child.
 * The thread that owns the environments. */
#include "worker/environment/python_environments.h"

#include "kernels/base/program_files.h"
#include "worker/environment/environment_description.h"
#include "worker/environment/environment_spec.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
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
    RESET = 1,
    STEP = 2,
    RENDER = 3,
    ANSWER_BYTES_MAX = 1 << 30,
    CLOSE_MS = 2000, /* for the user's close */
};

struct bytes {
    char *at;
    size_t size, capacity;
};

struct python {
    pid_t pid; /* 0: it has ended, and was waited for */
    int pidfd; /* readable where it has ended; -1: this kernel has none */
    int socket;
    struct error failure; /* of the newest call that failed */
    struct environment_description description;
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

static enum status append(struct bytes *bytes, const void *from, size_t size, struct error *error)
{
    const size_t before = bytes->size;
    const enum status status = set_size(bytes, before + size, error);
    if (status == STATUS_OK && size > 0)
        memcpy(bytes->at + before, from, size);
    return status;
}

/* ---- the child ---- */

static enum status start(struct python *p, const char *interpreter, int socket, struct error *error)
{
    char script[PATH_MAX], program[PATH_MAX];
    enum status status = program_find(script, PROGRAM_WORKER, "command_environments.py", error);
    if (status != STATUS_OK)
        return status;
    snprintf(program, sizeof program, "%s", interpreter);
    char *const argv[] = {program, script, NULL};
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, socket, CHILD_DESCRIPTOR);
    posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);
    const int errnum = posix_spawnp(&p->pid, program, &files, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&files);
    p->pidfd = errnum == 0 ? (int)syscall(SYS_pidfd_open, p->pid, 0) : -1;
    if (errnum == ENOENT)
        return error_set(error, STATUS_NOT_FOUND,
                         "%.300s: expected a Python interpreter, a path or a name in PATH", interpreter);
    return errnum == 0 ? STATUS_OK : error_set_errno(error, errnum, "cannot execute %.300s", interpreter);
}

/* Waits for the child, which has closed its socket or is to close it, and kills it if that lasts too long.
 * Returns waitpid's status. */
static int reap(struct python *p)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    int how = 0;
    for (int i = 0; p->pid > 0; i++) {
        const pid_t ended = waitpid(p->pid, &how, WNOHANG);
        if (ended == p->pid || (ended < 0 && errno != EINTR))
            p->pid = 0;
        else if (i == CLOSE_MS)
            kill(p->pid, SIGKILL);
        else
            nanosleep(&pause, NULL);
    }
    return how;
}

static enum status name_end(struct python *p, struct error *error)
{
    const int how = reap(p);
    return error_set(
        error, STATUS_UNAVAILABLE, "Python has ended with %s %d: expected it to step environments",
        WIFSIGNALED(how) ? "signal" : "exit code", WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
}

/* Waits until the socket is ready. False: the child has ended. A process that the user's code has forked may
 * hold the socket's other end open. */
static bool wait_ready(const struct python *p, short events)
{
    struct pollfd fds[] = {{.fd = p->socket, .events = events}, {.fd = p->pidfd, .events = POLLIN}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR)
        ;
    return (fds[0].revents & events) != 0;
}

static enum status send_request(struct python *p, struct error *error)
{
    for (size_t done = 0; done < p->request.size;) {
        const ssize_t sent =
            wait_ready(p, POLLOUT)
                ? send(p->socket, p->request.at + done, p->request.size - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                : 0;
        if (sent == 0 || (sent < 0 && errno != EINTR && errno != EAGAIN))
            return name_end(p, error);
        done += sent > 0 ? (size_t)sent : 0;
    }
    return STATUS_OK;
}

static enum status receive(struct python *p, void *bytes, size_t size, struct error *error)
{
    for (size_t done = 0; done < size;) {
        const ssize_t got = wait_ready(p, POLLIN) ? recv(p->socket, (char *)bytes + done, size - done, 0) : 0;
        if (got == 0 || (got < 0 && errno != EINTR))
            return name_end(p, error);
        done += got > 0 ? (size_t)got : 0;
    }
    return STATUS_OK;
}

/* Sends the request and reads its answer. A status in the answer is the environments' own. */
static enum status exchange(struct python *p, struct error *error)
{
    uint32_t head[2];
    enum status status = send_request(p, error);
    if (status == STATUS_OK)
        status = receive(p, head, sizeof head, error);
    if (status == STATUS_OK && head[1] > ANSWER_BYTES_MAX)
        return error_set(error, STATUS_CORRUPT, "Python answers with %u bytes: expected at most %d", head[1],
                         ANSWER_BYTES_MAX);
    if (status == STATUS_OK)
        status = set_size(&p->answer, head[1] + 1, error);
    if (status == STATUS_OK)
        status = receive(p, p->answer.at, --p->answer.size, error);
    if (status != STATUS_OK)
        return status;
    p->answer.at[p->answer.size] = '\0';
    if (head[0] == STATUS_OK)
        return STATUS_OK;
    return error_set(error, head[0] < STATUS_COUNT ? (enum status)head[0] : STATUS_CORRUPT, "%.450s",
                     p->answer.at);
}

/* ---- opening and closing ---- */

static void python_close(void *self)
{
    struct python *p = self;
    close(p->socket);
    reap(p);
    if (p->pidfd >= 0)
        close(p->pidfd);
    environment_description_fini(&p->description);
    free(p->request.at);
    free(p->answer.at);
    free(p);
}

static enum status greet(struct python *p, const struct python_environments_config *config,
                         struct error *error)
{
    const size_t bytes = strlen(config->job);
    const uint32_t head[3] = {config->count, (uint32_t)config->rendering, (uint32_t)bytes};
    enum status status = append(&p->request, head, sizeof head, error);
    if (status == STATUS_OK)
        status = append(&p->request, config->job, bytes, error);
    if (status == STATUS_OK)
        status = exchange(p, error);
    if (status != STATUS_OK)
        return status;
    struct error why;
    status = environment_description_read(&p->description, p->answer.at, p->answer.size, &why);
    return status == STATUS_OK
               ? status
               : error_set(error, status, "Python's description of the environment: %.400s", why.text);
}

enum status python_environments_open(void **self, const struct environment_spec **spec, const char **name,
                                     const struct python_environments_config *config, struct error *error)
{
    int sockets[2];
    struct python *p = calloc(1, sizeof *p);
    *self = NULL;
    if (p == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for environments in Python");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
        free(p);
        return error_set_errno(error, errno, "cannot make a socket for Python");
    }
    signal(SIGCHLD, SIG_DFL); /* a caller may have left it ignored, and then nothing can be waited for */
    p->socket = sockets[0];
    p->pidfd = -1;
    enum status status = start(p, config->interpreter, sockets[1], error);
    close(sockets[1]);
    if (status == STATUS_OK)
        status = greet(p, config, error);
    if (status != STATUS_OK) {
        python_close(p);
        return status;
    }
    *self = p;
    *spec = &p->description.spec;
    *name = p->description.name;
    return STATUS_OK;
}

/* ---- requests ---- */

const struct error *python_environments_failure(const void *self)
{
    const struct python *p = self;
    return &p->failure;
}

/* What a call of environment.h's returns. Its sentence is python_environments_failure's. */
static int outcome(struct python *p, enum status status, const struct error *why)
{
    if (status != STATUS_OK)
        p->failure = *why;
    return status != STATUS_OK;
}

/* Begins a request for n environments. */
static enum status begin(struct python *p, uint32_t kind, uint32_t n, const uint32_t *which,
                         struct error *error)
{
    enum status status = set_size(&p->request, 0, error);
    if (status == STATUS_OK)
        status = append(&p->request, (uint32_t[2]){kind, n}, 2 * sizeof(uint32_t), error);
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++)
        status = append(&p->request, (uint32_t[1]){environment_rows_at(which, i)}, sizeof(uint32_t), error);
    return status;
}

/* Copies n environments' rows from the place `at` of the answer to a buffer, which may be NULL. Returns the
 * place behind them. */
static const char *scatter(const struct python *p, const char *at, void *buffer, size_t row_bytes, uint32_t n,
                           const uint32_t *which)
{
    const size_t bytes = p->description.spec.agents * row_bytes;
    for (uint32_t i = 0; i < n && buffer != NULL; i++)
        memcpy((char *)buffer + environment_rows_at(which, i) * bytes, at + i * bytes, bytes);
    return buffer != NULL ? at + n * bytes : at;
}

static enum status take_rows(struct python *p, const struct environment_buffers *buffers, bool stepped,
                             uint32_t n, const uint32_t *which, struct error *error)
{
    const struct environment_spec *spec = &p->description.spec;
    const size_t observation = environment_space_bytes(&spec->observation),
                 mask = spec->has_mask != 0 ? environment_choices(spec) : 0,
                 metrics = spec->metric_count * sizeof *buffers->metrics,
                 row = observation + mask + (stepped ? sizeof(float) + 1 + metrics : 0);
    const enum status status = exchange(p, error);
    if (status != STATUS_OK)
        return status;
    if (p->answer.size != (size_t)n * spec->agents * row)
        return error_set(error, STATUS_CORRUPT, "Python answers with %zu bytes: expected %zu", p->answer.size,
                         (size_t)n * spec->agents * row);
    const char *at = scatter(p, p->answer.at, buffers->observation, observation, n, which);
    at = scatter(p, at, buffers->mask, mask, n, which);
    if (!stepped)
        return STATUS_OK;
    at = scatter(p, at, buffers->reward, sizeof *buffers->reward, n, which);
    at = scatter(p, at, buffers->flags, sizeof *buffers->flags, n, which);
    scatter(p, at, buffers->metrics, metrics, n, which);
    return STATUS_OK;
}

static int python_reset(void *self, const struct environment_buffers *buffers, uint32_t n,
                        const uint32_t *which, const struct environment_seed *seeds,
                        char error[ENVIRONMENT_ERROR_BYTES])
{
    struct python *p = self;
    struct error why;
    enum status status = begin(p, RESET, n, which, &why);
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++)
        status =
            append(&p->request, (uint32_t[2]){seeds[i].episode, seeds[i].step}, 2 * sizeof(uint32_t), &why);
    if (status == STATUS_OK)
        status = take_rows(p, buffers, false, n, which, &why);
    (void)error;
    return outcome(p, status, &why);
}

static int python_step(void *self, const struct environment_buffers *buffers, uint32_t n,
                       const uint32_t *which, char error[ENVIRONMENT_ERROR_BYTES])
{
    struct python *p = self;
    struct error why;
    const size_t bytes = p->description.spec.agents * environment_space_bytes(&p->description.spec.action);
    enum status status = begin(p, STEP, n, which, &why);
    for (uint32_t i = 0; i < n && status == STATUS_OK; i++)
        status = append(&p->request, (const char *)buffers->action + environment_rows_at(which, i) * bytes,
                        bytes, &why);
    if (status == STATUS_OK)
        status = take_rows(p, buffers, true, n, which, &why);
    (void)error;
    return outcome(p, status, &why);
}

static size_t python_render(void *self, uint32_t index, int kind, uint32_t *width, uint32_t *height,
                            void *out, size_t capacity)
{
    struct python *p = self;
    struct error why;
    (void)kind; /* the environments were made for one */
    enum { HEAD = 2 * sizeof(uint32_t) };
    enum status status = begin(p, RENDER, 1, &index, &why);
    if (status == STATUS_OK)
        status = exchange(p, &why);
    if (outcome(p, status, &why) != 0 || p->answer.size <= HEAD)
        return 0;
    memcpy(width, p->answer.at, sizeof *width);
    memcpy(height, p->answer.at + sizeof *width, sizeof *height);
    const size_t bytes = p->answer.size - HEAD;
    if (bytes <= capacity)
        memcpy(out, p->answer.at + HEAD, bytes);
    return bytes;
}

/* Nothing opens by a name: environments_config.opened is an instance. */
const struct environment_plugin python_environments_plugin = {.version = ENVIRONMENT_VERSION,
                                                              .size = sizeof python_environments_plugin,
                                                              .close = python_close,
                                                              .reset = python_reset,
                                                              .step = python_step,
                                                              .render = python_render};
