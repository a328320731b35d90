/* Applies the optimizer: a full round becomes the next version of the model. Reports its record. The
 * pserver's loop.
 *
 * Results are written beside their inputs: parameters and statistics into a free slot, velocity into the
 * buffer of the other parity. So a round with a bad contribution has changed nothing. */
#include "worker/data_parallel/pserver.h"

#include "kernels/base/profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- parameters ---- */

static enum status update_move_parameters(struct pserver *p, float *next, const float *now,
                                          struct error *error)
{
    const uint64_t version = p->round.version;
    const size_t first = p->shard.first;
    struct sgd_round round = {
        .sgd = {.lr = schedule_lr(&p->schedule, version + 1), .momentum = p->job->optimizer.momentum},
        .first = version == 0,
        .count = p->shard.end - first,
        .contributions = p->member_count,
        .gradients = p->gradients,
        .parameters = now + first,
        .parameters_out = next + first,
        .threads = p->threads};
    for (uint32_t m = 0; m < p->member_count; m++)
        p->gradients[m] = p->seats[p->members[m]].image + first;
    if (p->momentum != NULL) {
        round.velocity = pserver_velocity(p, version) + first;
        round.velocity_out = pserver_velocity(p, version + 1) + first;
    }
    enum status status = backend_sgd_round(p->backend, &round, error);
    if (status != STATUS_OK || round.not_finite == UINT32_MAX)
        return status;
    if (round.not_finite == round.contributions) {
        size_t at = pserver_first_not_finite(next + first, round.count);
        return error_set(error, STATUS_INTERNAL,
                         "update %llu: %s is not finite after a step with lr %g along finite gradients",
                         (unsigned long long)version + 1, pserver_entry_at(p, PARAMETER_TRAINED, first + at),
                         round.sgd.lr);
    }
    pserver_expel_not_finite(p, p->members[round.not_finite], PARAMETER_TRAINED, first, round.count);
    return STATUS_AGAIN;
}

/* ---- the record ---- */

struct pass {
    struct monotime begin, end;
};

static double update_seconds_between(struct monotime from, struct monotime to)
{
    return (double)monotime_us_between(from, to) * 1e-6;
}

/* From the first member's contribution to the last one's. */
static double update_gathered_s(const struct pserver *p)
{
    struct monotime first = MONOTIME_NEVER, last = {0};
    for (uint32_t m = 0; m < p->member_count; m++) {
        struct monotime arrived = p->seats[p->members[m]].arrived;
        first = monotime_earliest(first, arrived);
        last = monotime_before(last, arrived) ? arrived : last;
    }
    return update_seconds_between(first, last);
}

/* The members' gradients; of one that travels as bfloat16 the parameters have 2 bytes each. */
static uint64_t update_gradient_bytes(const struct pserver *p)
{
    const bool is_rounded = p->job->precision == JOB_PRECISION_BFLOAT16;
    uint64_t bytes = 0;
    for (uint32_t m = 0; m < p->member_count; m++) {
        bytes += p->elements * sizeof(float);
        if (is_rounded && p->seats[p->members[m]].travels)
            bytes -= p->parameters * (sizeof(float) - sizeof(uint16_t));
    }
    return bytes;
}

static void update_report(struct pserver *p, const struct pass *pass)
{
    const uint64_t version = p->round.version, late = p->round.late;
    static struct control_update record; /* 2 KiB: one thread reports */
    record = (struct control_update){
        .update = version,
        .lr = schedule_lr(&p->schedule, version),
        .samples = (uint64_t)p->member_count * p->job->trainers.batch,
        .late = late - p->late_reported,
        .trainers = p->trainers,
        .timing = {.round_s = update_seconds_between(p->last_update, pass->end),
                   .wait_s = update_gathered_s(p),
                   .update_s = update_seconds_between(pass->begin, pass->end),
                   .bytes = update_gradient_bytes(p) + p->models_given * p->elements * sizeof(float)},
    };
    for (uint32_t i = 0; i < p->trainers; i++)
        record.losses[i] = NAN;
    memset(record.staleness, -1, sizeof record.staleness);
    for (uint32_t m = 0; m < p->member_count; m++) {
        const uint64_t behind = version - 1 - p->round.seat[p->members[m]].base;
        record.staleness[p->members[m]] = (int16_t)(behind < INT16_MAX ? behind : INT16_MAX);
        record.losses[p->members[m]] = p->seats[p->members[m]].loss;
        record.loss += p->seats[p->members[m]].loss;
    }
    record.loss /= p->member_count;
    p->worker->work++;
    p->epoch.loss_sum += record.loss;
    p->late_reported = late;
    p->models_given = 0;
    p->last_update = pass->end;
    if (p->number != 0)
        return;
    worker_record(p->worker, CONTROL_UPDATE, &record, sizeof record);
    worker_keep_place(p->worker); /* a checkpoint of this version: a resumed run ends its epoch again */
}

enum status pserver_update(struct pserver *p, uint32_t slot, struct error *error)
{
    struct pass pass = {.begin = monotime_now()};
    const enum profile_kind before = profile_enter(PROFILE_UPDATE);
    float *next = pserver_image(p, slot);
    const float *now = pserver_image(p, p->round.newest);
    enum status status = STATUS_AGAIN;
    if (pserver_statistics_move(p, next, now))
        status = update_move_parameters(p, next, now, error);
    profile_leave(before);
    if (status != STATUS_OK)
        return status;
    round_advance(&p->round, slot, p->members, p->member_count);
    pserver_statistics_count(p);
    pass.end = monotime_now();
    update_report(p, &pass);
    return STATUS_OK;
}
