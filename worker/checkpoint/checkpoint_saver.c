/* The state machine of a checkpoint; the header has its picture. The loop's thread, but for the three
 * functions under "the thread": the background thread runs one of them at a time, and owns `saving`
 * meanwhile. */
#include "worker/checkpoint/checkpoint_saver.h"

#include <assert.h>

/* ---- the thread ---- */

static enum status saver_make_folder(void *arg, struct error *error)
{
    const struct checkpoint_saver *saver = arg;
    return checkpoint_begin(saver->config.run_dir, saver->saving.counters.update, error);
}

static enum status saver_write_files(void *arg, struct error *error)
{
    const struct checkpoint_saver *saver = arg;
    const struct checkpoint_saving *saving = &saver->saving;
    const char *run_dir = saver->config.run_dir;
    if (!saver->config.publishes)
        return checkpoint_write_shard(run_dir, saving->counters.update, &saving->values, error);
    return checkpoint_write(run_dir, &saving->counters, &saving->values, saving->extra, error);
}

static enum status saver_publish_folder(void *arg, struct error *error)
{
    const struct checkpoint_saver *saver = arg;
    return checkpoint_publish(saver->config.run_dir, saver->saving.counters.update,
                              saver->config.job->checkpoint.keep, error);
}

/* ---- opening and closing ---- */

enum status checkpoint_saver_open(struct checkpoint_saver *saver,
                                  const struct checkpoint_saver_config *config, struct error *error)
{
    *saver = (struct checkpoint_saver){.config = *config, .saved = config->saved, .last = monotime_now()};
    return background_open(&saver->thread, config->rpc, error);
}

static void saver_remove_unfinished(struct checkpoint_saver *saver)
{
    if (saver->folder)
        checkpoint_abandon(saver->config.run_dir, saver->saving.counters.update);
    saver->folder = false;
    saver->state = CHECKPOINT_IDLE;
}

void checkpoint_saver_close(struct checkpoint_saver *saver)
{
    background_close(&saver->thread);
    saver_remove_unfinished(saver);
}

bool checkpoint_saver_busy(const struct checkpoint_saver *saver)
{
    return background_busy(&saver->thread);
}

/* ---- from state to state ---- */

bool checkpoint_saver_due(const struct checkpoint_saver *saver, uint64_t update, bool last)
{
    const struct job *job = saver->config.job;
    if (!saver->config.publishes || update == saver->saved)
        return false;
    if (last || (job->checkpoint.has_every && update % job->checkpoint.every == 0))
        return true;
    return job->checkpoint.has_every_s && saver->state == CHECKPOINT_IDLE &&
           (double)monotime_us_between(saver->last, monotime_now()) >= job->checkpoint.every_s * 1e6;
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
    saver->folder = saver->config.publishes;
    if (saver->config.publishes)
        saver_run_on_thread(saver, CHECKPOINT_MAKING, saver_make_folder);
    else
        saver->state = CHECKPOINT_GATHERING;
}

static enum status saver_after_making(struct checkpoint_saver *saver, uint64_t logged, struct error *error)
{
    (void)logged;
    const enum status status = background_end(&saver->thread, error);
    if (status == STATUS_OK)
        saver->state = CHECKPOINT_GATHERING;
    return status;
}

static enum status saver_after_gathering(struct checkpoint_saver *saver, uint64_t logged, struct error *error)
{
    (void)logged;
    const struct checkpoint_saver_config *config = &saver->config;
    const enum status status = config->gather != NULL ? config->gather(config->context, error) : STATUS_OK;
    if (status == STATUS_OK)
        saver_run_on_thread(saver, CHECKPOINT_WRITING, saver_write_files);
    return status;
}

static enum status saver_after_writing(struct checkpoint_saver *saver, uint64_t logged, struct error *error)
{
    (void)logged;
    const enum status status = background_end(&saver->thread, error);
    if (status == STATUS_OK)
        saver->state = saver->config.publishes ? CHECKPOINT_LOGGING : CHECKPOINT_IDLE;
    return status;
}

static enum status saver_after_logging(struct checkpoint_saver *saver, uint64_t logged, struct error *error)
{
    (void)error;
    if (logged < saver->saving.line)
        return STATUS_AGAIN;
    saver_run_on_thread(saver, CHECKPOINT_PUBLISHING, saver_publish_folder);
    return STATUS_OK;
}

static enum status saver_after_publishing(struct checkpoint_saver *saver, uint64_t logged,
                                          struct error *error)
{
    (void)logged;
    const enum status status = background_end(&saver->thread, error);
    if (status != STATUS_OK)
        return status;
    saver->folder = false;
    saver->saved = saver->saving.counters.update;
    saver->last = monotime_now();
    saver->state = CHECKPOINT_IDLE;
    return STATUS_OK;
}

enum status checkpoint_saver_advance(struct checkpoint_saver *saver, uint64_t logged, struct error *error)
{
    static enum status (*const after[])(struct checkpoint_saver *, uint64_t, struct error *) = {
        [CHECKPOINT_MAKING] = saver_after_making,         [CHECKPOINT_GATHERING] = saver_after_gathering,
        [CHECKPOINT_WRITING] = saver_after_writing,       [CHECKPOINT_LOGGING] = saver_after_logging,
        [CHECKPOINT_PUBLISHING] = saver_after_publishing,
    };
    enum status status = STATUS_OK;
    while (status == STATUS_OK && saver->state != CHECKPOINT_IDLE)
        status = after[saver->state](saver, logged, error);
    if (status != STATUS_OK && status != STATUS_AGAIN)
        saver_remove_unfinished(saver);
    return status;
}
