/* Work that blocks (files) on a thread of its own, beside a loop that goes on turning.
 *
 * The thread lives for one piece of work and says by an eventfd, on which the rpc waits, that it is done.
 * What it is given belongs to it from background_start until background_end has answered. */
#ifndef WORKER_BACKGROUND_H
#define WORKER_BACKGROUND_H

#include "kernels/base/status.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct rpc;

struct background {
    enum status (*work)(void *arg, struct error *error);
    void *arg;
    enum status status; /* the thread's until `done` */
    struct error error;
    pthread_t thread;
    bool open, running; /* running: the thread has not been joined */
    atomic_bool done;   /* it has nothing more to do */
    int event;
};

/* Registers with the rpc, whose turns end when a work is done. The struct must stay where it is. */
enum status background_open(struct background *background, struct rpc *rpc, struct error *error);

/* Waits for the thread. A struct that was not opened (all zero) is nothing. */
void background_close(struct background *background);

/* Begins `work`; none may be running. `what`: for the message ("the thread that writes checkpoint 12"). */
enum status background_start(struct background *background, enum status (*work)(void *, struct error *),
                             void *arg, const char *what, struct error *error);

/* What came of it; STATUS_AGAIN while the thread is at it. */
enum status background_end(struct background *background, struct error *error);

/* Whether the thread is at work: closing would wait for it. */
bool background_busy(const struct background *background);

#endif
