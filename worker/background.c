/* A thread beside a loop. A semaphore wakes the thread, an eventfd wakes the loop. */
#include "worker/background.h"

#include "kernels/base/thread.h"
#include "worker/net/rpc.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void *background_thread(void *arg)
{
    struct background *background = arg;
    const uint64_t one = 1;
    for (;;) {
        while (sem_wait(&background->given) != 0) // EINTR
            ;
        if (background->ends)
            return NULL;
        background->status = background->work(background->arg, &background->error);
        atomic_store_explicit(&background->done, true, memory_order_release);
        while (write(background->event, &one, sizeof one) < 0 && errno == EINTR)
            ;
    }
}

/* Ends the turn, and does no more: the owner calls background_end after each turn. */
static void background_woken(void *arg)
{
    struct background *background = arg;
    uint64_t count;
    while (read(background->event, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

enum status background_open(struct background *background, struct rpc *rpc, const char *what,
                            struct error *error)
{
    background->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (background->event < 0)
        return error_set_errno(error, errno, "cannot open an eventfd");
    sem_init(&background->given, 0, 0);
    const enum status status = thread_start(&background->thread, background_thread, background, what, error);
    if (status != STATUS_OK) {
        close(background->event);
        return status;
    }
    background->open = true;
    if (rpc_watch(rpc, background->event, background_woken, background) != STATUS_OK)
        return error_set(error, STATUS_BUSY, "the rpc can watch no further descriptor");
    return STATUS_OK;
}

bool background_busy(const struct background *background)
{
    return background->running && !atomic_load_explicit(&background->done, memory_order_acquire);
}

void background_close(struct background *background)
{
    struct pollfd end = {.fd = background->event, .events = POLLIN};
    if (!background->open)
        return;
    while (background_busy(background))
        poll(&end, 1, -1);
    background->ends = true;
    sem_post(&background->given);
    pthread_join(background->thread, NULL);
    sem_destroy(&background->given);
    close(background->event);
    background->open = background->running = false;
}

void background_start(struct background *background, background_work *work, void *arg)
{
    assert(background->open && !background->running);
    background->work = work;
    background->arg = arg;
    background->running = true;
    atomic_store_explicit(&background->done, false, memory_order_relaxed);
    sem_post(&background->given);
}

enum status background_end(struct background *background, struct error *error)
{
    assert(background->running);
    if (!atomic_load_explicit(&background->done, memory_order_acquire))
        return STATUS_AGAIN;
    background->running = false;
    if (background->status != STATUS_OK)
        *error = background->error;
    return background->status;
}

bool background_runs(const struct background *background)
{
    return background->running;
}
