/* The ends of epochs: evaluation by the trainers, and the record. The first thread of pserver 0.
 *
 * Every trainer computes one part of the held-out data on the version that ended the epoch. The parts' sums
 * are added in the order of the parts, so that the result does not depend on who answered first. A trainer
 * that dies meanwhile, or answers with what cannot be, leaves its part to its successor, which is asked when
 * it comes. */
#include "worker/server/pserver.h"

#include <math.h>
#include <string.h>

void pserver_epoch_end(struct pserver *p)
{
    struct pserver_epoch *epoch = &p->epoch;
    epoch->open = true;
    epoch->evaluates = schedule_evaluates(&p->schedule, round_version(p->round));
    epoch->asked = monotime_now();
    for (uint32_t i = 0; i < p->trainers; i++)
        epoch->parts[i] = (struct pserver_part){0};
}

/* Who cannot be reached now is asked later. */
enum status pserver_epoch_ask(struct pserver *p, uint32_t trainer, struct error *error)
{
    const uint64_t version = round_version(p->round);
    struct pserver_part *part = &p->epoch.parts[trainer];
    uint32_t slot = 0;
    if (!p->epoch.open || !p->epoch.evaluates || part->answered || part->call != NULL ||
        !p->seats[trainer].joined)
        return STATUS_OK;
    round_slot_of(p->round, version, &slot);
    const bool shared = p->job->transport == JOB_TRANSPORT_SHARED;
    const struct rpc_message message = {
        .args = {[EVALUATE_VERSION] = version,
                 [EVALUATE_OFFSET] = shared ? slot * p->image_bytes : PARAMETER_SERVER_NOWHERE,
                 [EVALUATE_SHARE] = trainer,
                 [EVALUATE_SHARES] = p->trainers}};
    enum status status = rpc_call_async(p->rpc, p->seats[trainer].worker, METHOD_EVALUATE, &message,
                                        MONOTIME_NEVER, &part->call, error);
    return status == STATUS_NOT_FOUND || status == STATUS_BUSY ? STATUS_OK : status;
}

static bool bad_sums(const struct pserver *p, uint32_t part, const struct evaluation *sums)
{
    const uint64_t count = p->evaluation_samples, parts = p->trainers;
    const uint64_t samples = count * (part + 1) / parts - count * part / parts;
    return !isfinite(sums->loss_sum) || sums->samples > samples || sums->correct > sums->samples;
}

/* Takes an answer that has come. A trainer that says SHUTDOWN knows of an order that is still on its way to
 * us. */
static enum status take(struct pserver *p, uint32_t trainer, struct error *error)
{
    struct pserver_part *part = &p->epoch.parts[trainer];
    const unsigned worker = p->seats[trainer].worker;
    enum status status = future_status(part->call);
    if (status == STATUS_AGAIN || status == STATUS_SHUTDOWN)
        return STATUS_OK;
    if (status == STATUS_OK) {
        const uint64_t *args = future_value(part->call)->args;
        memcpy(&part->sums.loss_sum, &args[EVALUATED_LOSS], sizeof part->sums.loss_sum);
        part->sums.correct = args[EVALUATED_CORRECT];
        part->sums.samples = args[EVALUATED_SAMPLES];
        part->answered = !bad_sums(p, trainer, &part->sums);
        if (!part->answered)
            rpc_reject_worker(
                p->rpc, p->seats[trainer].worker,
                "trainer %u evaluated %llu samples, %llu of them right, with a loss of %g: that cannot be",
                worker, (unsigned long long)part->sums.samples, (unsigned long long)part->sums.correct,
                part->sums.loss_sum);
    } else if (status == STATUS_PEER_DIED) {
        status = STATUS_OK; /* its successor is asked */
    } else {
        error_set(error, status, "trainer %u cannot evaluate: %s", worker, future_text(part->call));
    }
    future_release(part->call);
    part->call = NULL;
    return status;
}

/* Asks and takes what can be. STATUS_AGAIN: some part has not come. */
static enum status evaluate(struct pserver *p, struct error *error)
{
    enum status status = STATUS_OK;
    bool all = true;
    for (uint32_t i = 0; i < p->trainers && status == STATUS_OK; i++) {
        struct pserver_part *part = &p->epoch.parts[i];
        status = part->call != NULL ? take(p, i, error) : pserver_epoch_ask(p, i, error);
        all = all && part->answered;
    }
    return status == STATUS_OK && !all ? STATUS_AGAIN : status;
}

static void report(struct pserver *p)
{
    struct pserver_epoch *epoch = &p->epoch;
    const uint64_t update = round_version(p->round), every = p->schedule.epoch_updates;
    const uint64_t number = (update + every - 1) / every;
    const struct monotime now = monotime_now();
    struct control_epoch record = {
        .epoch = number,
        .update = update,
        .loss = epoch->loss_sum / (double)(update - (number - 1) * every),
        .timing = {.epoch_s = (double)monotime_us_between(epoch->begin, now) * 1e-6},
    };
    for (uint32_t i = 0; epoch->evaluates && i < p->trainers; i++) {
        record.evaluation_loss += epoch->parts[i].sums.loss_sum;
        record.correct += epoch->parts[i].sums.correct;
        record.evaluated += epoch->parts[i].sums.samples;
    }
    if (record.evaluated > 0)
        record.evaluation_loss /= (double)record.evaluated;
    if (epoch->evaluates)
        record.timing.evaluation_s = (double)monotime_us_between(epoch->asked, now) * 1e-6;
    epoch->loss_sum = 0;
    epoch->begin = now;
    worker_report(CONTROL_EPOCH, &record, sizeof record);
}

enum status pserver_epoch_advance(struct pserver *p, struct error *error)
{
    if (!p->epoch.open)
        return STATUS_OK;
    enum status status = p->epoch.evaluates ? evaluate(p, error) : STATUS_OK;
    if (status != STATUS_OK)
        return status;
    p->epoch.open = false;
    report(p);
    return STATUS_OK;
}

void pserver_epoch_release(struct pserver *p)
{
    for (uint32_t i = 0; p->epoch.parts != NULL && i < p->trainers; i++) {
        future_release(p->epoch.parts[i].call);
        p->epoch.parts[i].call = NULL;
    }
    p->epoch.open = false;
}
