/* The state machine of a checkpoint; the header has its picture. The loop's thread runs it. A second thread
 * does the work on files: the only hand-off between threads in a worker. It runs the three functions under
 * "the work", one at a time, and owns `saving` from background_start until background_end returns something
 * other than STATUS_AGAIN. A semaphore wakes the thread, an eventfd wakes the loop. */
#include "worker/checkpoint/checkpoint_saver.h"

#include "kernels/base/profile.h"
#include "kernels/base/thread.h"
#include "worker/net/rpc.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef enum status background_work(void *arg, struct error *error);

#define SOON_FIRST_S 0.25
#define SOON_LAST_S 16.0

/* ---- the thread ---- */

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

/* Starts the thread and registers with the rpc, which outlives it. STATUS_IO, STATUS_BUSY (rpc_watch);
 * background_close also follows a failure. */
static enum status background_open(struct background *background, struct rpc *rpc, struct error *error)
{
    background->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (background->event < 0)
        return error_set_errno(error, errno, "cannot open an eventfd");
    sem_init(&background->given, 0, 0);
    const enum status status = thread_start(&background->thread, background_thread, background,
                                            "the thread that writes files", error);
    if (status != STATUS_OK) {
        close(background->event);
        return status;
    }
    background->open = true;
    if (rpc_watch(rpc, background->event, background_woken, background) != STATUS_OK)
        return error_set(error, STATUS_BUSY, "the rpc can watch no further descriptor");
    return STATUS_OK;
}

static bool background_busy(const struct background *background)
{
    return background->running && !atomic_load_explicit(&background->done, memory_order_acquire);
}

/* Waits for the work under way and ends the thread. Does nothing to a struct that is all zero. */
static void background_close(struct background *background)
{
    struct pollfd end = {.fd = background->event, .events = POLLIN};
    if (!background->open)
        return;
    const enum profile_kind before = profile_enter(PROFILE_CHECKPOINT);
    while (background_busy(background))
        poll(&end, 1, -1);
    profile_leave(before);
    background->ends = true;
    sem_post(&background->given);
    pthread_join(background->thread, NULL);
    sem_destroy(&background->given);
    close(background->event);
    background->open = background->running = false;
}

/* Hands `work` over; none may be running. Does not block. */
static void background_start(struct background *background, background_work *work, void *arg)
{
    assert(background->open && !background->running);
    background->work = work;
    background->arg = arg;
    background->running = true;
    atomic_store_explicit(&background->done, false, memory_order_relaxed);
    sem_post(&background->given);
}

/* The work's status and error; STATUS_AGAIN while it runs. Exactly once for each background_start. */
static enum status background_end(struct background *background, struct error *error)
{
    assert(background->running);
    if (!atomic_load_explicit(&background->done, memory_order_acquire))
        return STATUS_AGAIN;
    background->running = false;
    if (background->status != STATUS_OK)
        *error = background->error;
    return background->status;
}

/* ---- the work ---- */

static enum status saver_make_folder(void *arg, struct error *error)
{
    const struct checkpoint_saver *saver = arg;
    return checkpoint_begin(saver->config.run_dir, saver->saving.counters.update, error);
}

static enum status saver_write_files(void *arg, struct error *error)
{
    const struct checkpoint_saver *saver = arg;
    const struct checkpoint_saving *saving = &saver->saving;
    const struct path run = saver->config.run_dir;
    const enum status status =
        saver->config.flush != NULL ? saver->config.flush(saver->config.context, error) : STATUS_OK;
    if (status != STATUS_OK)
        return status;
    if (!saver->config.publishes)
        return checkpoint_write_shard(run, saving->counters.update, &saving->values, error);
    return checkpoint_write(run, &saving->counters, &saving->place, &saving->values, saving->extra, error);
}

static enum status saver_publish_folder(void *arg, struct error *error)
{
    struct checkpoint_saver *saver = arg;
    const struct checkpoint_counters *counters = &saver->saving.counters;
    const struct path run_dir = saver->config.run_dir;
    enum status status = STATUS_OK;
    if (saver->config.job->checkpoint.best && saver->saving.competes &&
        checkpoint_score_better(&counters->score, &saver->best)) {
        status = checkpoint_keep_best(run_dir, counters->update, error);
        saver->best = counters->score;
    }
    return status == STATUS_OK
               ? checkpoint_publish(run_dir, counters->update, saver->config.job->checkpoint.keep, error)
               : status;
}

/* ---- opening and closing ---- */

enum status checkpoint_saver_open(struct checkpoint_saver *saver,
                                  const struct checkpoint_saver_config *config, struct error *error)
{
    *saver = (struct checkpoint_saver){.config = *config,
                                       .saved = config->saved,
                                       .last = monotime_now(),
                                       .soon_s = config->again ? SOON_FIRST_S : (double)INFINITY};
    enum status status = STATUS_OK;
    if (config->publishes && config->job->checkpoint.best)
        status = checkpoint_best_score(config->run_dir, &saver->best, error);
    return status == STATUS_OK ? background_open(&saver->thread, config->rpc, error) : status;
}

static void saver_remove_unfinished(struct checkpoint_saver *saver)
{
    if (saver->config.publishes && saver->state != CHECKPOINT_IDLE)
        checkpoint_abandon(saver->config.run_dir, saver->saving.counters.update);
    saver->state = CHECKPOINT_IDLE;
}

void checkpoint_saver_close(struct checkpoint_saver *saver)
{
    background_close(&saver->thread);
    saver_remove_unfinished(saver);
}

bool checkpoint_saver_holds(const struct checkpoint_saver *saver)
{
    return saver->state != CHECKPOINT_IDLE && saver->saving.asked;
}

bool checkpoint_saver_busy(const struct checkpoint_saver *saver)
{
    return background_busy(&saver->thread);
}

/* ---- from state to state ---- */

/* The age of the newest checkpoint at which the next one is due. */
static double saver_interval_s(const struct checkpoint_saver *saver)
{
    const struct job *job = saver->config.job;
    const double usual = job->checkpoint.has_every_s ? job->checkpoint.every_s : (double)INFINITY;
    return fmin(saver->soon_s, usual);
}

bool checkpoint_saver_due(const struct checkpoint_saver *saver, uint64_t update, bool last)
{
    const struct job *job = saver->config.job;
    if (!saver->config.publishes || update == saver->saved)
        return false;
    if (last || (job->checkpoint.has_every && update % job->checkpoint.every == 0))
        return true;
    return saver->state == CHECKPOINT_IDLE &&
           (double)monotime_us_between(saver->last, monotime_now()) >= saver_interval_s(saver) * 1e6;
}

bool checkpoint_saver_improves(const struct checkpoint_saver *saver, const struct checkpoint_score *score)
{
    assert(saver->state == CHECKPOINT_IDLE);
    return saver->config.job->checkpoint.best && checkpoint_score_better(score, &saver->best);
}

static void saver_run_on_thread(struct checkpoint_saver *saver, enum checkpoint_saver_state state,
                                background_work *work)
{
    saver->state = state;
    background_start(&saver->thread, work, saver);
}

void checkpoint_saver_begin(struct checkpoint_saver *saver, const struct checkpoint_saving *saving)
{
    assert(saver->state == CHECKPOINT_IDLE);
    saver->saving = *saving;
    if (saver->config.publishes)
        saver_run_on_thread(saver, CHECKPOINT_MAKING, saver_make_folder);
    else
        saver->state = CHECKPOINT_GATHERING;
}

static enum status saver_gather(struct checkpoint_saver *saver, const struct run_place *place,
                                struct error *error)
{
    const struct checkpoint_saver_config *config = &saver->config;
    const enum status status = config->gather != NULL ? config->gather(config->context, error) : STATUS_OK;
    if (status != STATUS_OK || !config->publishes)
        return status;
    if (place == NULL)
        return STATUS_AGAIN;
    saver->saving.place = *place;
    return STATUS_OK;
}

static void saver_end(struct checkpoint_saver *saver)
{
    saver->saved = saver->saving.counters.update;
    saver->last = monotime_now();
    saver->soon_s = saver->soon_s < SOON_LAST_S ? 2 * saver->soon_s : (double)INFINITY;
    saver->state = CHECKPOINT_IDLE;
    if (saver->saving.asked)
        saver->config.published(&saver->saving.place);
}

/* Ends the state. STATUS_AGAIN: not yet. */
static enum status saver_step(struct checkpoint_saver *saver, const struct run_place *place,
                              struct error *error)
{
    const enum status status = saver->state == CHECKPOINT_GATHERING ? saver_gather(saver, place, error)
                                                                    : background_end(&saver->thread, error);
    if (status != STATUS_OK)
        return status;
    switch (saver->state) {
    case CHECKPOINT_MAKING:
        saver->state = CHECKPOINT_GATHERING;
        break;
    case CHECKPOINT_GATHERING:
        saver_run_on_thread(saver, CHECKPOINT_WRITING, saver_write_files);
        break;
    case CHECKPOINT_WRITING:
        if (saver->config.publishes)
            saver_run_on_thread(saver, CHECKPOINT_PUBLISHING, saver_publish_folder);
        else
            saver->state = CHECKPOINT_IDLE;
        break;
    default:
        saver_end(saver);
    }
    return STATUS_OK;
}

enum status checkpoint_saver_advance(struct checkpoint_saver *saver, const struct run_place *place,
                                     struct error *error)
{
    enum status status = STATUS_OK;
    while (status == STATUS_OK && saver->state != CHECKPOINT_IDLE)
        status = saver_step(saver, place, error);
    if (status != STATUS_OK && status != STATUS_AGAIN)
        saver_remove_unfinished(saver);
    return status;
}
