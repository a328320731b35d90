/* Checkpoints: a version is written while the loop goes on serving hellos, pings and questions for the model.
 *
 * What blocks on files is done by a thread that lives for one stage (worker/background.h): making the folder,
 * writing, renaming it. In between server 0 has the other servers write their parts, and waits until the log
 * has the update's line. The version that is being saved stays what it is: server 0 makes no update
 * meanwhile, and neither does a server that writes its part.
 *
 * Stages of server 0: BEGINNING, PARTS, WRITING, LOGGING, PUBLISHING. Of the others: WAITING, WRITING. */
#include "worker/server/pserver.h"

#include <assert.h>

/* ---- the thread ---- */

static enum status begin(void *arg, struct error *error)
{
    const struct pserver_saver *saver = arg;
    return checkpoint_begin(saver->run_dir, saver->version, error);
}

static enum status write_part(void *arg, struct error *error)
{
    const struct pserver_saver *saver = arg;
    return checkpoint_write_part(saver->run_dir, saver->version, &saver->part, error);
}

static enum status write_all(void *arg, struct error *error)
{
    const struct pserver_saver *saver = arg;
    return checkpoint_write(saver->run_dir, &saver->counters, &saver->part, error);
}

static enum status publish(void *arg, struct error *error)
{
    const struct pserver_saver *saver = arg;
    return checkpoint_publish(saver->run_dir, saver->version, saver->keep, error);
}

static enum status start(struct pserver_saver *saver, enum pserver_save state,
                         enum status (*work)(void *, struct error *), struct error *error)
{
    saver->state = state;
    return background_start(&saver->thread, work, saver, "the thread that writes a checkpoint", error);
}

enum status pserver_save_open(struct pserver *p, struct error *error)
{
    struct pserver_saver *saver = &p->saver;
    saver->run_dir = p->worker->self.run_dir;
    saver->keep = p->job->checkpoint.keep;
    saver->saved = p->begin_version;
    saver->last = monotime_now();
    return background_open(&saver->thread, p->rpc, error);
}

static void drop_parts(struct pserver_saver *saver)
{
    for (uint32_t i = 0; i < JOB_SERVERS_MAX; i++) {
        future_release(saver->parts[i]);
        saver->parts[i] = NULL;
    }
}

/* Gives up what is not published. */
static void abandon(struct pserver_saver *saver)
{
    drop_parts(saver);
    if (saver->begun)
        checkpoint_abandon(saver->run_dir, saver->version);
    saver->begun = false;
    saver->state = SAVE_IDLE;
}

void pserver_save_close(struct pserver *p)
{
    background_close(&p->saver.thread);
    abandon(&p->saver);
}

bool pserver_save_holds(const struct pserver *p)
{
    return p->saver.state != SAVE_IDLE && p->saver.state != SAVE_WAITING;
}

bool pserver_save_busy(const struct pserver *p)
{
    return background_busy(&p->saver.thread);
}

/* ---- server 0 ---- */

bool pserver_save_due(const struct pserver *p)
{
    const struct job *job = p->job;
    const uint64_t version = round_version(p->round);
    if (p->number != 0 || version == p->saver.saved)
        return false;
    if (version >= p->last_version)
        return true;
    if (job->checkpoint.has_every && version % job->checkpoint.every == 0)
        return true;
    return job->checkpoint.has_every_s &&
           (double)monotime_us_between(p->saver.last, monotime_now()) >= job->checkpoint.every_s * 1e6;
}

static void place_part(struct pserver *p)
{
    pserver_place(p, p->saver.version);
    p->saver.part = (struct checkpoint_part){
        .params = p->params, .momentum = p->momentum, .server = p->number, .servers = p->servers};
}

enum status pserver_save_begin(struct pserver *p, struct error *error)
{
    struct pserver_saver *saver = &p->saver;
    assert(saver->state == SAVE_IDLE);
    saver->version = round_version(p->round);
    saver->counters = (struct checkpoint_counters){.update = saver->version,
                                                   .trainers = p->trainers,
                                                   .late = p->late_before + round_late(p->round),
                                                   .epoch_loss = p->epoch.loss_sum};
    for (uint32_t i = 0; i < p->trainers; i++)
        saver->counters.steps[i] = round_step(p->round, i);
    place_part(p);
    saver->begun = true;
    return start(saver, SAVE_BEGINNING, begin, error);
}

static enum status after_beginning(struct pserver *p, struct error *error)
{
    struct pserver_saver *saver = &p->saver;
    const struct rpc_message message = {.args = {[SAVE_VERSION] = saver->version}};
    enum status status = background_end(&saver->thread, error);
    for (uint32_t i = 1; i < p->servers && status == STATUS_OK; i++)
        status = rpc_call_async(p->rpc, (uint16_t)i, METHOD_SAVE_PART, &message, MONOTIME_NEVER,
                                &saver->parts[i], error);
    if (status == STATUS_OK)
        saver->state = SAVE_PARTS;
    return status;
}

static enum status after_parts(struct pserver *p, struct error *error)
{
    struct pserver_saver *saver = &p->saver;
    for (uint32_t i = 1; i < p->servers; i++)
        if (!future_done(saver->parts[i]))
            return STATUS_AGAIN;
    for (uint32_t i = 1; i < p->servers; i++) {
        enum status status = future_status(saver->parts[i]);
        if (status != STATUS_OK)
            return error_set(error, status, "pserver %u, checkpoint %llu: %s", i,
                             (unsigned long long)saver->version, future_text(saver->parts[i]));
    }
    drop_parts(saver);
    return start(saver, SAVE_WRITING, write_all, error);
}

static enum status after_writing(struct pserver *p, struct error *error)
{
    enum status status = background_end(&p->saver.thread, error);
    if (p->number == 0) {
        if (status == STATUS_OK)
            p->saver.state = SAVE_LOGGING;
        return status;
    }
    if (status == STATUS_AGAIN)
        return status;
    if (status == STATUS_OK)
        rpc_reply(p->saver.request, NULL);
    else
        rpc_fail(p->saver.request, status, "%s", error->text);
    p->saver.request = NULL;
    p->saver.state = SAVE_IDLE;
    return STATUS_OK; /* server 0 decides what a failure means */
}

static enum status after_logging(struct pserver *p, struct error *error)
{
    if (p->worker->logged < p->saver.version)
        return STATUS_AGAIN;
    return start(&p->saver, SAVE_PUBLISHING, publish, error);
}

static enum status after_publishing(struct pserver *p, struct error *error)
{
    struct pserver_saver *saver = &p->saver;
    enum status status = background_end(&saver->thread, error);
    if (status != STATUS_OK)
        return status;
    saver->begun = false;
    saver->saved = saver->version;
    saver->last = monotime_now();
    saver->state = SAVE_IDLE;
    return STATUS_OK;
}

/* ---- the other servers ---- */

/* The version is this server's newest, or the one before when trainers went on while server 0 stopped: that
 * one is still in its slot, and its velocity in its buffer; or else it comes with the round that is under
 * way. */
void pserver_save_part(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct pserver *p = context;
    struct pserver_saver *saver = &p->saver;
    const uint64_t version = message->args[SAVE_VERSION], newest = round_version(p->round);
    uint32_t slot;
    if (rpc_request_source(request) != 0 || p->number == 0) {
        rpc_reject(request, "pserver %u asks for a part of a checkpoint: expected pserver 0 to",
                   rpc_request_source(request));
    } else if (saver->state != SAVE_IDLE) {
        rpc_fail(request, STATUS_BUSY, "version %llu is being saved", (unsigned long long)saver->version);
    } else if (version == 0 || (version != newest + 1 && !round_slot_of(p->round, version, &slot))) {
        rpc_fail(request, STATUS_NOT_FOUND, "version %llu is not here: the newest is %llu",
                 (unsigned long long)version, (unsigned long long)newest);
    } else {
        saver->request = request;
        saver->version = version;
        saver->state = SAVE_WAITING;
    }
}

static enum status after_waiting(struct pserver *p, struct error *error)
{
    uint32_t slot;
    if (!round_slot_of(p->round, p->saver.version, &slot))
        return STATUS_AGAIN;
    place_part(p);
    return start(&p->saver, SAVE_WRITING, write_part, error);
}

/* ---- both ---- */

static enum status after_idle(struct pserver *p, struct error *error)
{
    (void)p;
    (void)error;
    return STATUS_OK;
}

enum status pserver_save_advance(struct pserver *p, struct error *error)
{
    static enum status (*const after[])(struct pserver *, struct error *) = {
        [SAVE_IDLE] = after_idle,
        [SAVE_WAITING] = after_waiting,
        [SAVE_BEGINNING] = after_beginning,
        [SAVE_PARTS] = after_parts,
        [SAVE_WRITING] = after_writing,
        [SAVE_LOGGING] = after_logging,
        [SAVE_PUBLISHING] = after_publishing,
    };
    enum status status = STATUS_OK;
    do
        status = after[p->saver.state](p, error);
    while (status == STATUS_OK && p->saver.state != SAVE_IDLE);
    if (status != STATUS_OK && status != STATUS_AGAIN)
        abandon(&p->saver);
    return status;
}
