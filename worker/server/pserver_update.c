/* Applies the optimizer: a full round becomes the next version of the model. Reports its record. The
 * pserver's loop.
 *
 * Results are written beside their inputs: parameters and statistics into a free slot, velocity into the
 * buffer of the other parity. So a round with a bad contribution has changed nothing. */
#include "worker/server/pserver.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double STATISTICS_MOMENTUM = 0.1; /* the weight of the new; PyTorch's default of batch norms */

static size_t update_first_not_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return i;
    return SIZE_MAX;
}

/* The entry in which `element` of one of the slabs lies. */
static const char *update_entry_at(const struct pserver *p, enum parameter_kind kind, size_t element)
{
    const char *name = "";
    for (uint32_t i = 0; i < params_count(p->params); i++) {
        const struct parameter *parameter = params_at(p->params, i);
        if (parameter->kind == kind && parameter->offset <= element)
            name = parameter->name;
    }
    return name;
}

/* Rejects a contribution with a NaN or an infinity, and its sender. */
static void update_expel_member(struct pserver *p, uint32_t trainer, const char *what, const char *name)
{
    struct pserver_seat *seat = &p->seats[trainer];
    struct rpc_request *push = seat->push;
    uint64_t step = p->round.seat[trainer].step;
    round_withdraw(&p->round, trainer);
    seat->push = NULL;
    if (push != NULL)
        rpc_reject(push, "trainer %u, step %llu: its %s of %s is not finite", seat->worker,
                   (unsigned long long)step, what, name);
}

/* ---- running statistics, server 0's ---- */

/* running' = 0.9 running + 0.1 (s_0 + s_1 + …) / n for each element, in double, over the members in the order
 * of their numbers. False: a member's statistics are not finite. */
static bool update_move_statistics(struct pserver *p, float *next, const float *now)
{
    const size_t first = p->shard.statistics_first, count = p->shard.statistics_end - first;
    const double weight = STATISTICS_MOMENTUM;
    for (uint32_t m = 0; m < p->member_count; m++) {
        size_t bad = update_first_not_finite(p->seats[p->members[m]].image + first, count);
        if (bad == SIZE_MAX)
            continue;
        update_expel_member(p, p->members[m], "statistic", update_entry_at(p, PARAMETER_BUFFER, bad));
        return false;
    }
    for (size_t i = first; i < first + count; i++) {
        double sum = 0;
        for (uint32_t m = 0; m < p->member_count; m++)
            sum += (double)p->seats[p->members[m]].image[i];
        next[i] = (float)((1 - weight) * (double)now[i] + weight * (sum / p->member_count));
    }
    return true;
}

/* num_batches_tracked: the batches of a round count as one. */
static void update_count_batches(struct pserver *p)
{
    for (uint32_t i = 0; i < params_count(p->params); i++)
        if (params_at(p->params, i)->kind == PARAMETER_COUNTER)
            params_at(p->params, i)->counter++;
}

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
        size_t at = update_first_not_finite(next + first, round.count);
        return error_set(error, STATUS_INTERNAL,
                         "update %llu: %s is not finite after a step with lr %g along finite gradients",
                         (unsigned long long)version + 1, update_entry_at(p, PARAMETER_TRAINED, first + at),
                         round.sgd.lr);
    }
    size_t bad = update_first_not_finite(p->gradients[round.not_finite], round.count);
    update_expel_member(p, p->members[round.not_finite], "gradient",
                        update_entry_at(p, PARAMETER_TRAINED, first + bad));
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
                   .bytes = (p->member_count + p->models_given) * p->elements * sizeof(float)},
    };
    for (uint32_t i = 0; i < p->trainers; i++)
        record.losses[i] = NAN;
    for (uint32_t m = 0; m < p->member_count; m++) {
        record.losses[p->members[m]] = p->seats[p->members[m]].loss;
        record.loss += p->seats[p->members[m]].loss;
    }
    record.loss /= p->member_count;
    p->epoch.loss_sum += record.loss;
    p->late_reported = late;
    p->models_given = 0;
    p->last_update = pass->end;
    if (p->number == 0)
        worker_report(CONTROL_UPDATE, &record, sizeof record);
}

enum status pserver_update(struct pserver *p, uint32_t slot, struct error *error)
{
    struct pass pass = {.begin = monotime_now()};
    float *next = pserver_image(p, slot);
    const float *now = pserver_image(p, p->round.newest);
    if (!update_move_statistics(p, next, now))
        return STATUS_AGAIN;
    enum status status = update_move_parameters(p, next, now, error);
    if (status != STATUS_OK)
        return status;
    round_advance(&p->round, slot, p->members, p->member_count);
    update_count_batches(p);
    pass.end = monotime_now();
    update_report(p, &pass);
    return STATUS_OK;
}
