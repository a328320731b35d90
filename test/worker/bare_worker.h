/* A worker process of the real program whose supervisor is the test: the test holds the other end of its
 * control socket. Static inline functions; each test program uses some. */
#ifndef TEST_WORKER_BARE_WORKER_H
#define TEST_WORKER_BARE_WORKER_H

#include "test/process.h"
#include "worker/control.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct bare_worker {
    pid_t pid;
    int control; /* the supervisor's end */
    struct control_start start;
    struct control_message message; /* the last report */
};

/* The process has its run's directory where it looks for it. */
static inline void bare_worker_place_run(const char *run_dir)
{
    const int fd = open(run_dir, O_RDONLY | O_DIRECTORY);
    if (fd >= 0 && fd != CONTROL_RUN_FD) {
        dup2(fd, CONTROL_RUN_FD);
        close(fd);
    }
}

/* Starts `worker->start` as `role` with this job. */
static inline void bare_worker_start(struct bare_worker *worker, const char *role, const char *job)
{
    int line[2];
    char index[8];
    const char *program = daemon_path(); /* now: behind the fork, Check's own descriptor may be taken */
    snprintf(index, sizeof index, "%u", worker->start.worker);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, line), 0);
    worker->pid = fork();
    if (worker->pid == 0) {
        if (line[1] != CONTROL_FD)
            dup2(line[1], CONTROL_FD);
        bare_worker_place_run(worker->start.run_dir);
        execl(program, "coalesced", "worker", "--role", role, "--index", index, (char *)NULL);
        _exit(120);
    }
    close(line[1]);
    worker->control = line[0];
    size_t bytes = sizeof worker->start + strlen(job);
    char *body = malloc(bytes);
    memcpy(body, &worker->start, sizeof worker->start);
    memcpy(body + sizeof worker->start, job, strlen(job));
    ck_assert_int_eq(control_send(worker->control, CONTROL_START, body, bytes), STATUS_OK);
    free(body);
}

/* Where it listens. */
static inline void bare_worker_address(const struct bare_worker *worker,
                                       char address[CONTROL_ADDRESS_BYTES + 8])
{
    snprintf(address, CONTROL_ADDRESS_BYTES + 8, "%.*s.%u", CONTROL_ADDRESS_BYTES, worker->start.address,
             worker->start.worker);
}

static inline void bare_worker_order(struct bare_worker *worker, enum control_kind kind)
{
    ck_assert_int_eq(control_send(worker->control, kind, NULL, 0), STATUS_OK);
}

/* So many of its records are in the logs. */
static inline void bare_worker_logged(struct bare_worker *worker, uint64_t records)
{
    struct control_logged logged = {.records = records};
    ck_assert_int_eq(control_send(worker->control, CONTROL_LOGGED, &logged, sizeof logged), STATUS_OK);
}

/* Takes the next report, which must be of this kind; the beats between are passed over. */
static inline void bare_worker_expect(struct bare_worker *worker, enum control_kind kind)
{
    struct control_message *message = &worker->message;
    for (;;) {
        enum status status = control_receive(worker->control, true, message);
        ck_assert_int_eq(status, STATUS_OK);
        if (message->kind == kind)
            return;
        ck_assert_msg(message->kind == CONTROL_BEAT, "report %u, not %u: %.200s", message->kind, kind,
                      message->kind == CONTROL_FAILED ? message->body.failed.text : "");
    }
}

/* Its exit code, or 128 + the signal, when it is about to end. */
static inline int bare_worker_wait(struct bare_worker *worker)
{
    int status;
    ck_assert_int_eq(waitpid(worker->pid, &status, 0), worker->pid);
    close(worker->control);
    *worker = (struct bare_worker){0};
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Ends it if it runs. */
static inline void bare_worker_kill(struct bare_worker *worker)
{
    if (worker->pid == 0)
        return;
    kill(worker->pid, SIGKILL);
    bare_worker_wait(worker);
}

#endif
