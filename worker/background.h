/* Runs blocking work (on files) on a second thread while the role's loop goes on turning: the only hand-off
 * between threads in a worker.
 *
 * The thread lives from background_open to background_close and runs one piece of work at a time. All memory
 * that the work uses belongs to the thread from background_start until background_end returns something other
 * than STATUS_AGAIN. An eventfd, on which the rpc waits, ends the loop's turn when a piece of work is done.
 * All functions are called by the loop's thread. */
#ifndef WORKER_BACKGROUND_H
#define WORKER_BACKGROUND_H

#include "kernels/base/status.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

struct rpc;

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

/* Starts the thread and registers with the rpc, which outlives it. The struct must stay where it is.
 * STATUS_IO, STATUS_BUSY (rpc_watch); background_close also follows a failure. */
enum status background_open(struct background *background, struct rpc *rpc, struct error *error);

/* Waits for the work under way and ends the thread. Does nothing to a struct that is all zero. */
void background_close(struct background *background);

/* Hands `work` over; none may be running. Does not block. */
void background_start(struct background *background, background_work *work, void *arg);

/* The work's status and error; STATUS_AGAIN while it runs. Exactly once for each background_start. */
enum status background_end(struct background *background, struct error *error);

/* Whether the thread is at work: closing would wait for it. */
bool background_busy(const struct background *background);

#endif
