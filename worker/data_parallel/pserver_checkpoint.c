/* Takes checkpoints of the servers' shards, with the saver of worker/checkpoint/checkpoint_saver.h. Server 0
 * begins a checkpoint at a round's boundary, and asks the other servers to write their shards. Each of them
 * first waits for the version to save. The loop's thread runs this.
 *
 * The version that is being saved stays as it is: server 0 makes no update meanwhile, and a server that
 * writes its shard makes none either (pserver_checkpoint_holds). */
#include "worker/data_parallel/pserver.h"

#include "kernels/base/profile.h"

#include <assert.h>

/* ---- the values ---- */

void pserver_place(struct pserver *p, uint64_t version)
{
    uint32_t slot = 0;
    bool lies = round_slot_of(&p->round, version, &slot);
    assert(lies);
    (void)lies;
    const float *image = pserver_image(p, slot);
    params_place(p->params, p->shard.entry_first, p->shard.entry_end, image);
    if (p->number == 0)
        params_place_buffers(p->params, image + p->parameters);
    if (p->momentum != NULL)
        gradients_place(p->momentum, pserver_velocity(p, version));
}

struct checkpoint_values pserver_checkpoint_values(const struct pserver *p)
{
    return (struct checkpoint_values){.params = p->params,
                                      .momentum = p->momentum,
                                      .shards = p->ranges,
                                      .server = p->number,
                                      .servers = p->servers};
}

/* ---- server 0 ---- */

/* The newest version's evaluation has ended, or there is none; then the epoch's line is reported, too. */
static bool pserver_has_ended_epoch(const struct pserver *p)
{
    return p->epoch.ended.version == p->round.version;
}

bool pserver_checkpoint_due(const struct pserver *p)
{
    const uint64_t version = p->round.version;
    const bool evaluates = p->number == 0 && p->job->checkpoint.best &&
                           schedule_ends_epoch(&p->schedule, version) &&
                           schedule_evaluates(&p->schedule, version);
    if (version == p->saver.saved || (evaluates && !pserver_has_ended_epoch(p)))
        return false;
    return checkpoint_saver_due(&p->saver, version, version >= p->last_version || p->worker->save) ||
           (evaluates && checkpoint_saver_improves(&p->saver, &p->epoch.ended.score));
}

void pserver_checkpoint_begin(struct pserver *p)
{
    const uint64_t version = p->round.version;
    struct checkpoint_saving saving = {.counters = {.update = version,
                                                    .trainers = p->trainers,
                                                    .late = p->late_before + p->round.late,
                                                    .epoch_loss = p->epoch.loss_sum},
                                       .values = pserver_checkpoint_values(p),
                                       .asked = p->worker->save,
                                       .competes = true};
    if (pserver_has_ended_epoch(p)) { /* a resumed run ends the epoch again */
        saving.counters.epoch_loss = p->epoch.ended.loss_sum;
        saving.counters.score = p->epoch.ended.score;
    }
    for (uint32_t i = 0; i < p->trainers; i++)
        saving.counters.steps[i] = p->round.seat[i].step;
    pserver_place(p, version);
    p->worker->save = false;
    checkpoint_saver_begin(&p->saver, &saving);
}

static void pserver_release_shard_calls(struct pserver *p)
{
    for (uint32_t i = 0; i < JOB_SERVERS_MAX; i++) {
        future_release(p->shard_calls[i]);
        p->shard_calls[i] = NULL;
    }
}

/* Has the other servers write their shards: asks each once, then waits for all. */
static enum status pserver_gather_shards(struct pserver *p, struct error *error)
{
    const uint64_t version = p->saver.saving.counters.update;
    const struct rpc_message message = {.args = {[SAVE_VERSION] = version}};
    enum status status = STATUS_OK;
    for (uint32_t i = 1; i < p->servers && status == STATUS_OK; i++)
        if (p->shard_calls[i] == NULL)
            status = rpc_call_async(p->rpc, (uint16_t)i, METHOD_SAVE_SHARD, &message, MONOTIME_NEVER,
                                    &p->shard_calls[i], error);
    for (uint32_t i = 1; i < p->servers && status == STATUS_OK; i++)
        status = future_done(p->shard_calls[i]) ? STATUS_OK : STATUS_AGAIN;
    for (uint32_t i = 1; i < p->servers && status == STATUS_OK; i++) {
        status = future_status(p->shard_calls[i]);
        if (status != STATUS_OK)
            error_set(error, status, "pserver %u, checkpoint %llu: %s", i, (unsigned long long)version,
                      future_text(p->shard_calls[i]));
    }
    if (status != STATUS_AGAIN)
        pserver_release_shard_calls(p);
    return status;
}

/* ---- the other servers ---- */

/* The version to save is this server's newest; or the version before it, when trainers went on while server 0
 * stopped (its slot and its velocity's buffer are still unchanged); or the version that the running round
 * makes. */
void pserver_save_shard(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct pserver *p = context;
    const struct checkpoint_saving *running = &p->saver.saving;
    const uint64_t version = message->args[SAVE_VERSION], newest = p->round.version;
    uint32_t slot;
    if (rpc_request_source(request) != 0 || p->number == 0) {
        rpc_reject(request, "pserver %u asks for a shard of a checkpoint: expected pserver 0 to",
                   rpc_request_source(request));
    } else if (p->shard_request != NULL) {
        rpc_fail(request, STATUS_BUSY, "version %llu is being saved",
                 (unsigned long long)running->counters.update);
    } else if (version == 0 || (version != newest + 1 && !round_slot_of(&p->round, version, &slot))) {
        rpc_fail(request, STATUS_NOT_FOUND, "version %llu is not here: the newest is %llu",
                 (unsigned long long)version, (unsigned long long)newest);
    } else {
        const struct checkpoint_saving saving = {.counters.update = version,
                                                 .values = pserver_checkpoint_values(p)};
        p->shard_request = request;
        checkpoint_saver_begin(&p->saver, &saving);
    }
}

/* Waits for the version to save, then places the params on it. */
static enum status pserver_gather_version(struct pserver *p)
{
    const uint64_t version = p->saver.saving.counters.update;
    uint32_t slot;
    if (!round_slot_of(&p->round, version, &slot))
        return STATUS_AGAIN;
    pserver_place(p, version);
    return STATUS_OK;
}

/* Goes on with the shard beside the rounds, and answers server 0, which decides what a failure means. */
static void pserver_advance_shard(struct pserver *p)
{
    struct rpc_request *request = p->shard_request;
    struct error why = {0};
    const enum status status = checkpoint_saver_advance(&p->saver, NULL, &why);
    if (status == STATUS_AGAIN || request == NULL)
        return;
    p->shard_request = NULL;
    if (status == STATUS_OK)
        rpc_reply(request, NULL);
    else
        rpc_fail(request, status, "%s", why.text);
}

/* ---- both ---- */

static enum status pserver_gather(void *context, struct error *error)
{
    struct pserver *p = context;
    const enum profile_kind before = profile_enter(PROFILE_CHECKPOINT);
    const enum status status = p->number == 0 ? pserver_gather_shards(p, error) : pserver_gather_version(p);
    profile_leave(before);
    return status;
}

enum status pserver_checkpoint_advance(struct pserver *p, struct error *error)
{
    if (p->number == 0)
        return checkpoint_saver_advance(&p->saver, worker_kept_place(p->worker), error);
    pserver_advance_shard(p);
    return STATUS_OK;
}

bool pserver_checkpoint_holds(const struct pserver *p)
{
    return p->saver.state == CHECKPOINT_WRITING;
}

enum status pserver_checkpoint_open(struct pserver *p, struct error *error)
{
    const struct checkpoint_saver_config config = {.run_dir = worker_run_dir(p->worker),
                                                   .job = p->job,
                                                   .rpc = p->rpc,
                                                   .publishes = p->number == 0,
                                                   .saved = p->begin_version,
                                                   .again = worker_goes_on(p->worker),
                                                   .gather = pserver_gather,
                                                   .context = p,
                                                   .published = worker_report_saved};
    return checkpoint_saver_open(&p->saver, &config, error);
}

void pserver_checkpoint_close(struct pserver *p)
{
    checkpoint_saver_close(&p->saver);
    pserver_release_shard_calls(p);
}
