/* Ends an epoch: has the trainers evaluate the model, and reports the epoch's record. Pserver 0's loop runs
 * this.
 *
 * Every trainer of the job file (those that were added have no share) evaluates one share of the held-out
 * data on the version that ended the epoch. The shares' sums are added in the order of the shares, so the
 * result does not depend on the order of the answers. The share of a trainer that dies meanwhile, or that
 * sends impossible sums, goes to its successor when that has joined. */
#include "worker/data_parallel/pserver.h"

#include <string.h>

static uint32_t shares_of(const struct pserver *p)
{
    return p->job->trainers.count;
}

void pserver_epoch_end(struct pserver *p)
{
    struct pserver_epoch *epoch = &p->epoch;
    epoch->open = true;
    epoch->evaluates = schedule_evaluates(&p->schedule, p->round.version);
    epoch->asked = monotime_now();
    for (uint32_t i = 0; i < shares_of(p); i++)
        epoch->shares[i] = (struct pserver_share){0};
}

/* A trainer that cannot be reached now is asked later. */
enum status pserver_epoch_ask(struct pserver *p, uint32_t trainer, struct error *error)
{
    const uint64_t version = p->round.version;
    struct pserver_share *share = &p->epoch.shares[trainer];
    if (trainer >= shares_of(p) || !p->epoch.open || !p->epoch.evaluates || share->answered ||
        share->call != NULL || !p->seats[trainer].joined)
        return STATUS_OK;
    const bool travels = p->seats[trainer].travels;
    const struct rpc_message message = {
        .args = {[EVALUATE_VERSION] = version,
                 [EVALUATE_OFFSET] = travels ? PARAMETER_SERVER_NOWHERE : p->round.newest * p->image_bytes,
                 [EVALUATE_SHARE] = trainer,
                 [EVALUATE_SHARES] = shares_of(p)}};
    enum status status = rpc_call_async(p->rpc, p->seats[trainer].worker, METHOD_EVALUATE, &message,
                                        MONOTIME_NEVER, &share->call, error);
    return status == STATUS_NOT_FOUND || status == STATUS_BUSY ? STATUS_OK : status;
}

/* The loss is not checked: that of a sound model may be infinite or NaN on held-out data. */
static bool evaluation_is_impossible(const struct pserver *p, uint32_t share, const struct evaluation *sums)
{
    const uint64_t count = p->evaluation_samples, shares = shares_of(p);
    const uint64_t samples = count * (share + 1) / shares - count * share / shares;
    return sums->samples > samples || sums->correct > sums->samples;
}

/* Takes an answer. STATUS_SHUTDOWN from a trainer: the order to stop has reached it, and reaches this server
 * soon. */
static enum status epoch_take_share(struct pserver *p, uint32_t trainer, struct error *error)
{
    struct pserver_share *share = &p->epoch.shares[trainer];
    const unsigned worker = p->seats[trainer].worker;
    enum status status = future_status(share->call);
    if (status == STATUS_AGAIN || status == STATUS_SHUTDOWN)
        return STATUS_OK;
    if (status == STATUS_OK) {
        const uint64_t *args = future_value(share->call)->args;
        memcpy(&share->sums.loss_sum, &args[EVALUATED_LOSS], sizeof share->sums.loss_sum);
        share->sums.correct = args[EVALUATED_CORRECT];
        share->sums.samples = args[EVALUATED_SAMPLES];
        share->answered = !evaluation_is_impossible(p, trainer, &share->sums);
        if (!share->answered)
            rpc_reject_worker(
                p->rpc, p->seats[trainer].worker,
                "trainer %u evaluated %llu samples, %llu of them right, with a loss of %g: that cannot be",
                worker, (unsigned long long)share->sums.samples, (unsigned long long)share->sums.correct,
                share->sums.loss_sum);
    } else if (status == STATUS_PEER_DIED) {
        status = STATUS_OK; /* the successor is asked */
    } else {
        error_set(error, status, "trainer %u cannot evaluate: %s", worker, future_text(share->call));
    }
    future_release(share->call);
    share->call = NULL;
    return status;
}

/* Asks trainers and takes answers without waiting. STATUS_AGAIN: a share is missing. */
static enum status epoch_evaluate(struct pserver *p, struct error *error)
{
    enum status status = STATUS_OK;
    bool all = true;
    for (uint32_t i = 0; i < shares_of(p) && status == STATUS_OK; i++) {
        struct pserver_share *share = &p->epoch.shares[i];
        status = share->call != NULL ? epoch_take_share(p, i, error) : pserver_epoch_ask(p, i, error);
        all = all && share->answered;
    }
    return status == STATUS_OK && !all ? STATUS_AGAIN : status;
}

static void epoch_report(struct pserver *p)
{
    struct pserver_epoch *epoch = &p->epoch;
    const uint64_t update = p->round.version, every = p->schedule.epoch_updates;
    const uint64_t number = (update + every - 1) / every;
    const struct monotime now = monotime_now();
    struct control_epoch record = {
        .epoch = number,
        .update = update,
        .loss = epoch->loss_sum / (double)(update - (number - 1) * every),
        .timing = {.epoch_s = (double)monotime_us_between(epoch->begin, now) * 1e-6},
    };
    for (uint32_t i = 0; epoch->evaluates && i < shares_of(p); i++) {
        record.evaluation_loss += epoch->shares[i].sums.loss_sum;
        record.correct += epoch->shares[i].sums.correct;
        record.evaluated += epoch->shares[i].sums.samples;
    }
    if (record.evaluated > 0)
        record.evaluation_loss /= (double)record.evaluated;
    if (epoch->evaluates)
        record.timing.evaluation_s = (double)monotime_us_between(epoch->asked, now) * 1e-6;
    epoch->ended.version = update;
    epoch->ended.loss_sum = epoch->loss_sum;
    epoch->ended.score = (struct checkpoint_score){0};
    if (p->job->checkpoint.best && record.evaluated > 0)
        epoch->ended.score =
            (struct checkpoint_score){CHECKPOINT_ACCURACY, (double)record.correct / (double)record.evaluated};
    epoch->loss_sum = 0;
    epoch->begin = now;
    worker_record(p->worker, CONTROL_EPOCH, &record, sizeof record);
}

enum status pserver_epoch_advance(struct pserver *p, struct error *error)
{
    if (!p->epoch.open)
        return STATUS_OK;
    enum status status = p->epoch.evaluates ? epoch_evaluate(p, error) : STATUS_OK;
    if (status != STATUS_OK)
        return status;
    p->epoch.open = false;
    epoch_report(p);
    return STATUS_OK;
}

void pserver_epoch_release(struct pserver *p)
{
    for (uint32_t i = 0; i < shares_of(p); i++) {
        future_release(p->epoch.shares[i].call);
        p->epoch.shares[i].call = NULL;
    }
    p->epoch.open = false;
}
