/* One piece of work at a time on another thread. Everything but `run` is the loop's thread's. */
#include "worker/background.h"

#include "worker/net/rpc.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void *run(void *arg)
{
    struct background *background = arg;
    const uint64_t one = 1;
    background->status = background->work(background->arg, &background->error);
    atomic_store_explicit(&background->done, true, memory_order_release);
    while (write(background->event, &one, sizeof one) < 0 && errno == EINTR)
        ;
    return NULL;
}

static void woken(void *arg)
{
    struct background *background = arg; /* what follows is background_end's, behind the turn */
    uint64_t count;
    while (read(background->event, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

enum status background_open(struct background *background, struct rpc *rpc, struct error *error)
{
    background->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (background->event < 0)
        return error_set_errno(error, errno, "cannot open an eventfd");
    background->open = true;
    return rpc_watch(rpc, background->event, woken, background);
}

void background_close(struct background *background)
{
    if (background->running)
        pthread_join(background->thread, NULL);
    background->running = false;
    if (background->open)
        close(background->event);
    background->open = false;
}

enum status background_start(struct background *background, enum status (*work)(void *, struct error *),
                             void *arg, const char *what, struct error *error)
{
    assert(background->open && !background->running);
    background->work = work;
    background->arg = arg;
    atomic_store_explicit(&background->done, false, memory_order_relaxed);
    int failed = pthread_create(&background->thread, NULL, run, background);
    if (failed != 0)
        return error_set_errno(error, failed, "cannot start %s", what);
    background->running = true;
    return STATUS_OK;
}

enum status background_end(struct background *background, struct error *error)
{
    assert(background->running);
    if (!atomic_load_explicit(&background->done, memory_order_acquire))
        return STATUS_AGAIN;
    pthread_join(background->thread, NULL);
    background->running = false;
    if (background->status != STATUS_OK)
        *error = background->error;
    return background->status;
}

bool background_busy(const struct background *background)
{
    return background->running && !atomic_load_explicit(&background->done, memory_order_acquire);
}
