/* Acts on the steps that wait: gathers their rows into a batch, has the policy act on them where they lie in
 * the rollout, and replies with the actions. The agent's thread. */
#include "worker/reinforce/inference.h"

#include "kernels/base/profile.h"
#include "worker/reinforce/coalescer.h"

#include <stdlib.h>
#include <string.h>

/* A group's step that waits. */
struct waiting {
    struct rpc_request *request; /* NULL: none */
    struct rpc_request *repeat;  /* a successor's, for the same step; NULL: none */
    struct step step;            /* the request's */
};

struct inference {
    struct worker *worker;
    struct error *failure;
    uint32_t lines, groups;        /* groups of an observer; of all observers */
    struct coalescer **coalescers; /* (lines) for the groups of each number: the others' rows may be away */
    struct coalescer_stats stats;
    struct waiting *of; /* (groups) the coalescers' tokens */

    struct policy *policy;
    struct rollout *rollout;
    const struct environment_spec *spec;
    uint32_t *row, *column, *step; /* (columns) of one launch */
    void *actions;                 /* (columns, action_bytes) of one reply */
};

static coalescer_launch launch;

/* ---- opening ---- */

static enum status open_coalescers(struct inference *in)
{
    static const enum coalescer_mode modes[] = {[JOB_COALESCE_OFF] = COALESCER_OFF,
                                                [JOB_COALESCE_BARRIER] = COALESCER_BARRIER,
                                                [JOB_COALESCE_DYNAMIC] = COALESCER_DYNAMIC};
    const struct job *job = &in->worker->job;
    const struct coalescer_config config = {.mode = modes[job->coalesce.mode],
                                            .slots_max = job_observers(job),
                                            .max_batch = job->coalesce.max_batch,
                                            .max_delay_us = job->coalesce.max_delay_us,
                                            .launch = launch,
                                            .context = in,
                                            .stats = &in->stats};
    in->coalescers = calloc(in->lines, sizeof(struct coalescer *));
    enum status status = in->coalescers != NULL ? STATUS_OK : STATUS_NO_MEMORY;
    for (uint32_t i = 0; i < in->lines && status == STATUS_OK; i++)
        status = coalescer_new(&in->coalescers[i], &config);
    return status;
}

enum status inference_new(struct inference **out, struct worker *worker, struct error *failure,
                          struct error *error)
{
    struct inference *in = *out = calloc(1, sizeof *in);
    if (in == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the coalescer");
    *in = (struct inference){.worker = worker, .failure = failure, .lines = worker->job.observers.groups};
    in->groups = job_observers(&worker->job) * in->lines;
    in->of = calloc(in->groups + 1, sizeof *in->of);
    return in->of != NULL && open_coalescers(in) == STATUS_OK
               ? STATUS_OK
               : error_set(error, STATUS_NO_MEMORY, "no memory for the coalescer");
}

enum status inference_open(struct inference *in, struct policy *policy, struct rollout *rollout,
                           const struct environment_spec *spec, struct error *error)
{
    const uint32_t columns = rollout->columns;
    in->policy = policy;
    in->rollout = rollout;
    in->spec = spec;
    in->row = calloc(columns, sizeof *in->row);
    in->column = calloc(columns, sizeof *in->column);
    in->step = calloc(columns, sizeof *in->step);
    in->actions = calloc(columns, rollout->config.action_bytes);
    if (in->row == NULL || in->column == NULL || in->step == NULL || in->actions == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u rows", columns);
    return STATUS_OK;
}

void inference_free(struct inference *in)
{
    if (in == NULL)
        return;
    for (uint32_t i = 0; in->coalescers != NULL && i < in->lines; i++)
        coalescer_free(in->coalescers[i]);
    free(in->coalescers);
    free(in->of);
    free(in->row);
    free(in->column);
    free(in->step);
    free(in->actions);
    free(in);
}

/* ---- acting ---- */

/* Fills the batch's arrays from `begin` on with the rows of one step. */
static void gather_rows(struct inference *in, const struct step *step, uint32_t begin)
{
    for (uint32_t i = 0; i < step->count; i++)
        for (uint32_t a = 0; a < step->agents; a++, begin++) {
            const uint32_t column = step->numbers[i] * step->agents + a;
            in->column[begin] = column;
            in->step[begin] = step->number;
            in->row[begin] = rollout_row(in->rollout, step->number, column);
        }
}

/* One pass of the policy over the batch's first `rows` rows. */
static enum status act_on_batch(struct inference *in, uint32_t rows, struct error *error)
{
    const struct rollout *rollout = in->rollout;
    const struct policy_rows batch = {.count = rows,
                                      .row = in->row,
                                      .observations = rollout->observations,
                                      .actions = rollout->actions,
                                      .allowed = rollout->allowed,
                                      .dropout = rollout->masks,
                                      .log_probabilities = rollout->log_probabilities,
                                      .values = rollout->values};
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    const enum status status = policy_act(in->policy, &batch, rollout->episode, in->column, in->step, error);
    profile_leave(before);
    return status;
}

/* The actions of the step's rows, from the rollout to in->actions, within their bounds. */
static void collect_actions(struct inference *in, const struct step *step)
{
    const size_t bytes = in->rollout->config.action_bytes;
    for (uint32_t i = 0, run; i < step->count; i += run) {
        const uint32_t column = step->numbers[i] * step->agents;
        run = step_run(step, i);
        memcpy((char *)in->actions + i * step->agents * bytes,
               in->rollout->actions + rollout_row(in->rollout, step->number, column) * bytes,
               run * step->agents * bytes);
    }
    policy_bound(in->policy, in->actions, step->rows);
}

enum status inference_act(struct inference *in, const struct step *step, const void **actions,
                          struct error *error)
{
    gather_rows(in, step, 0);
    const enum status status = act_on_batch(in, step->rows, error);
    if (status == STATUS_OK)
        collect_actions(in, step);
    *actions = in->actions;
    return status;
}

void inference_reply(struct inference *in, struct rpc_request *request, const struct step *step)
{
    if (rollout_is_closing(in->rollout, step)) {
        rpc_reply(request, &(struct rpc_message){0});
        return;
    }
    collect_actions(in, step);
    const struct wire_tensor tensor = step_action_tensor(in->spec, step->count);
    rpc_reply(request, &(struct rpc_message){.tensor_count = 1, .tensors = {tensor}, .data = {in->actions}});
}

/* The coalescer's launch: one pass of the policy over the batch, then every request's reply. */
static void launch(void *context, const struct coalescer_slot *slots, size_t count, uint32_t rows)
{
    struct inference *in = context;
    uint32_t begin = 0;
    for (size_t i = 0; i < count; begin += slots[i++].rows)
        gather_rows(in, &((const struct waiting *)slots[i].request)->step, begin);
    const enum status status = act_on_batch(in, rows, in->failure);
    in->worker->work += status == STATUS_OK ? rows : 0;
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    for (size_t i = 0; i < count; i++) {
        struct waiting *waiting = slots[i].request;
        if (status != STATUS_OK) {
            rpc_fail(waiting->request, STATUS_SHUTDOWN, "the job is ending");
            continue;
        }
        if (waiting->repeat != NULL) /* first: the step lies in the message of `request` */
            inference_reply(in, waiting->repeat, &waiting->step);
        inference_reply(in, waiting->request, &waiting->step);
        waiting->request = waiting->repeat = NULL;
    }
    profile_leave(before);
}

/* ---- a group's step ---- */

enum status inference_add(struct inference *in, uint32_t group, struct rpc_request *request,
                          const struct step *step)
{
    struct waiting *waiting = &in->of[group];
    const enum status status =
        coalescer_add(in->coalescers[group % in->lines], waiting, step->rows, monotime_now());
    if (status == STATUS_OK)
        *waiting = (struct waiting){.request = request, .step = *step};
    return status;
}

bool inference_waits(const struct inference *in, uint32_t group)
{
    return in->of[group].request != NULL;
}

void inference_repeat(struct inference *in, uint32_t group, struct rpc_request *request)
{
    in->of[group].repeat = request;
}

bool inference_repeats(const struct inference *in, uint32_t group)
{
    return in->of[group].repeat != NULL;
}

void inference_withdraw(struct inference *in, uint32_t group)
{
    struct waiting *waiting = &in->of[group];
    if (waiting->request == NULL)
        return;
    coalescer_remove(in->coalescers[group % in->lines], waiting);
    rpc_fail(waiting->request, STATUS_PEER_DIED, "the observer that sent it is gone");
    waiting->request = NULL;
}

static void fail_repeat(struct waiting *waiting, enum status status, const char *why)
{
    if (waiting->repeat != NULL)
        rpc_fail(waiting->repeat, status, "%s", why);
    waiting->repeat = NULL;
}

void inference_withdraw_repeat(struct inference *in, uint32_t group)
{
    fail_repeat(&in->of[group], STATUS_PEER_DIED, "the observer that sent it is gone");
}

/* ---- the lines ---- */

void inference_set_live(struct inference *in, uint32_t number, uint32_t environments)
{
    coalescer_set_live(in->coalescers[number], environments * in->spec->agents);
}

void inference_run(struct inference *in)
{
    in->worker->queue = 0;
    for (uint32_t i = 0; i < in->lines; i++) {
        coalescer_run(in->coalescers[i], monotime_now());
        in->worker->queue += (uint32_t)coalescer_waiting(in->coalescers[i]);
    }
}

struct monotime inference_due(const struct inference *in)
{
    struct monotime next = MONOTIME_NEVER;
    for (uint32_t i = 0; i < in->lines; i++)
        next = monotime_earliest(next, coalescer_due(in->coalescers[i]));
    return next;
}

static void drop_request(void *context, void *waiting)
{
    (void)context;
    rpc_fail(((struct waiting *)waiting)->request, STATUS_SHUTDOWN, "the job is ending");
    ((struct waiting *)waiting)->request = NULL;
}

void inference_clear(struct inference *in)
{
    for (uint32_t i = 0; in->coalescers != NULL && i < in->lines; i++)
        if (in->coalescers[i] != NULL)
            coalescer_clear(in->coalescers[i], drop_request);
    for (uint32_t i = 0; in->of != NULL && i < in->groups; i++)
        fail_repeat(&in->of[i], STATUS_SHUTDOWN, "the job is ending");
}

/* ---- figures ---- */

void inference_begin(struct inference *in)
{
    memset(&in->stats, 0, sizeof in->stats);
}

void inference_report(const struct inference *in, struct control_episode *record)
{
    const struct coalescer_stats *stats = &in->stats;
    const double launches = (double)stats->launches;
    uint64_t below = 0;
    record->timing.launches = stats->launches;
    record->timing.requests = stats->requests;
    record->timing.batch_mean = launches > 0 ? (double)stats->rows / launches : 0;
    record->timing.batch_max = stats->batch_max;
    record->timing.wait_us_p50 = (double)histogram_percentile(&stats->wait_us, 0.50);
    record->timing.wait_us_p99 = (double)histogram_percentile(&stats->wait_us, 0.99);
    record->timing.wait_s = (double)stats->wait_us.sum * 1e-6;
    _Static_assert((int)COALESCER_BATCH_BUCKETS == (int)CONTROL_BATCH_BUCKETS, "the same buckets");
    memcpy(record->timing.batches, stats->batches, sizeof record->timing.batches);
    for (unsigned i = 0; i < CONTROL_WAIT_BUCKETS; i++) { /* these add up over episodes */
        const bool is_last = i == CONTROL_WAIT_BUCKETS - 1;
        const uint64_t up_to =
            is_last ? stats->wait_us.count : histogram_up_to(&stats->wait_us, control_wait_limits_us[i]);
        record->timing.waits[i] = (uint32_t)(up_to - below);
        below = up_to;
    }
}
