/* A thread beside a loop: it does one piece of work at a time, and wakes the loop when a piece is done. For
 * work that blocks or takes long, while the loop serves its sockets. What a piece reads and writes is the
 * thread's from background_start until background_end has answered; nothing else is shared.
 *
 * The struct is embedded, all zero at first; its members are for this module alone. The loop's thread calls.
 */
#ifndef WORKER_BACKGROUND_H
#define WORKER_BACKGROUND_H

#include "kernels/base/status.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

struct rpc;

/* A piece of work, on the thread. */
typedef enum status background_work(void *arg, struct error *error);

struct background {
    pthread_t thread;
    sem_t given; /* posted for each piece of work, and to end the thread */
    int event;
    bool open, running; /* running: background_end has not answered yet */
    bool ends;          /* the next post is the end */
    background_work *work;
    void *arg;
    enum status status; /* the work's result; belongs to the loop once `done` */
    struct error error;
    atomic_bool done; /* released by the thread, acquired by the loop */
};

/* Starts the thread. A turn of the rpc, which outlives it, ends when a piece is done. `what` names the thread
 * in an error. STATUS_IO, STATUS_BUSY (rpc_watch); background_close also follows a failure. */
enum status background_open(struct background *background, struct rpc *rpc, const char *what,
                            struct error *error);

/* Waits for the piece under way and ends the thread. Does nothing to a struct that is all zero. */
void background_close(struct background *background);

/* Hands a piece over; none may be running (asserted). Does not block. */
void background_start(struct background *background, background_work *work, void *arg);

/* The piece's status and error; STATUS_AGAIN while it runs. Exactly once for each background_start
 * (asserted). */
enum status background_end(struct background *background, struct error *error);

/* Whether a piece was handed over, and background_end has not answered yet; and whether the thread is at
 * work. */
bool background_runs(const struct background *background);
bool background_busy(const struct background *background);

#endif
