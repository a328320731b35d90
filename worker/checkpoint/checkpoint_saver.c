/* The state machine of a checkpoint; the header has its picture. The loop's thread runs it. A second thread
 * (worker/background.h) does the work on files: the three functions under "the work", one at a time. It owns
 * `saving` meanwhile. */
#include "worker/checkpoint/checkpoint_saver.h"

#include "kernels/base/profile.h"

#include <assert.h>
#include <math.h>

#define SOON_FIRST_S 0.25
#define SOON_LAST_S 16.0

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
    return status == STATUS_OK
               ? background_open(&saver->thread, config->rpc, "the thread that writes files", error)
               : status;
}

static void saver_remove_unfinished(struct checkpoint_saver *saver)
{
    if (saver->config.publishes && saver->state != CHECKPOINT_IDLE)
        checkpoint_abandon(saver->config.run_dir, saver->saving.counters.update);
    saver->state = CHECKPOINT_IDLE;
}

void checkpoint_saver_close(struct checkpoint_saver *saver)
{
    const enum profile_kind before = profile_enter(PROFILE_CHECKPOINT);
    background_close(&saver->thread);
    profile_leave(before);
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

bool checkpoint_saver_due(const struct checkpoint_saver *saver, uint64_t update, bool last)
{
    const struct job *job = saver->config.job;
    const double usual_s = job->checkpoint.has_every_s ? job->checkpoint.every_s : (double)INFINITY;
    if (!saver->config.publishes || update == saver->saved)
        return false;
    if (last || (job->checkpoint.has_every && update % job->checkpoint.every == 0))
        return true;
    return saver->state == CHECKPOINT_IDLE &&
           (double)monotime_us_between(saver->last, monotime_now()) >= fmin(saver->soon_s, usual_s) * 1e6;
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
