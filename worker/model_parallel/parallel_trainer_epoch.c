/* Lines for the logs, and the end of an epoch. */
#include "worker/model_parallel/parallel_trainer_internal.h"

static double epoch_seconds_since(struct monotime begin)
{
    return (double)monotime_us_between(begin, monotime_now()) * 1e-6;
}

/* ---- lines ---- */

enum status parallel_trainer_wait_for_logs(struct parallel_trainer *t, uint64_t most, struct error *error)
{
    enum status status = STATUS_OK;
    while (status == STATUS_OK && worker_logs_lag(t->base.worker, most))
        status = parallel_peer_wait(t, error);
    return status;
}

enum status parallel_trainer_line(struct parallel_trainer *t, struct error *error)
{
    const uint64_t every = t->job->log.every, first = t->iteration - every;
    if (!parallel_trainer_leads(t) || t->iteration % every != 0)
        return STATUS_OK;
    const uint64_t begun = t->begun > first ? t->begun : first;
    const double loss = t->line_loss / (double)every;
    struct control_update record = {
        .update = t->iteration,
        .loss = loss,
        .lr = t->plateau.lr,
        .samples = t->trainers * parallel_data_tokens(&t->data, first, t->iteration),
        .trainers = 1,
        .losses = {loss},
        .timing = {.round_s = epoch_seconds_since(t->line_begin),
                   .samples_before = t->trainers * parallel_data_tokens(&t->data, first, begun)},
    };
    t->line_loss = 0;
    t->line_begin = monotime_now();
    enum status status = parallel_trainer_wait_for_logs(t, 1, error);
    if (status != STATUS_OK)
        return status;
    worker_record(t->base.worker, CONTROL_UPDATE, &record, sizeof record);
    return STATUS_OK;
}

/* ---- epochs ---- */

static uint64_t epoch_number(const struct parallel_trainer *t)
{
    return (t->iteration + t->data.epoch_updates - 1) / t->data.epoch_updates;
}

bool parallel_trainer_evaluates(const struct parallel_trainer *t)
{
    const struct job *job = t->job;
    return job->evaluation.has_every && t->data.held_out_batches > 0 &&
           (epoch_number(t) % job->evaluation.every == 0 || t->iteration >= t->data.updates);
}

static enum status epoch_evaluate(struct parallel_trainer *t, struct control_epoch *record,
                                  struct error *error)
{
    const struct monotime begin = monotime_now();
    enum status status = held_out_loss(&t->data, parallel_trainer_forward, t, &record->evaluation_loss,
                                       &record->evaluated, error);
    record->unigram_perplexity = t->data.corpus.unigram_perplexity;
    record->timing.evaluation_s = epoch_seconds_since(begin);
    if (status == STATUS_OK)
        status = parallel_checkpoint_begin_evaluated(t, record->evaluation_loss, error);
    if (status == STATUS_OK && t->job->optimizer.schedule == JOB_SCHEDULE_PLATEAU)
        plateau_see(&t->plateau, record->evaluation_loss, t->job->sequence.decay);
    return status;
}

static enum status epoch_lead(struct parallel_trainer *t, struct error *error)
{
    const uint64_t epoch = epoch_number(t), first = (epoch - 1) * t->data.epoch_updates;
    struct control_epoch record = {.epoch = epoch,
                                   .update = t->iteration,
                                   .loss = t->epoch_loss / (double)(t->iteration - first),
                                   .timing = {.epoch_s = epoch_seconds_since(t->epoch_begin)}};
    enum status status = parallel_trainer_evaluates(t) ? epoch_evaluate(t, &record, error) : STATUS_OK;
    if (status == STATUS_OK)
        status = parallel_peer_holdings(t, epoch, error);
    if (status != STATUS_OK)
        return status;
    worker_record(t->base.worker, CONTROL_EPOCH, &record, sizeof record);
    return parallel_peer_rate(t, epoch, error);
}

enum status parallel_trainer_epoch(struct parallel_trainer *t, struct error *error)
{
    const struct monotime begin = monotime_now();
    enum status status =
        parallel_trainer_leads(t) ? epoch_lead(t, error) : parallel_peer_follow(t, epoch_number(t), error);
    if (status != STATUS_OK)
        return status;
    if (!t->last)
        hidden_state_end_epoch(&t->hidden, &t->data);
    t->epoch_loss = 0;
    t->epoch_begin = monotime_now();
    t->line_begin = monotime_add_us(t->line_begin, monotime_us_between(begin, t->epoch_begin));
    t->epoch_open = false;
    return STATUS_OK;
}
