/* The role pserver: holds a shard of the model, takes the trainers' gradients, gives out the next version.
 * The process's first thread.
 *
 * The loop: turn (wait, take messages), then advance. A round passes through the phases of enum
 * pserver_phase; only pserver_advance moves from one to the next. */
#include "worker/server/pserver.h"

/* ---- a round ---- */

/* At most two records may be unacknowledged: a slow supervisor slows the job down, and the control line to it
 * never fills up. */
static bool pserver_logs_follow(const struct pserver *p)
{
    const uint64_t version = round_version(p->round);
    return p->number != 0 || version <= p->begin_version + 1 || p->worker->logged + 1 >= version;
}

/* Makes the next version if a round is full, a slot is free, and no shard is being written. */
static enum status pserver_try_update(struct pserver *p, struct error *error)
{
    uint32_t slot;
    p->member_count = round_members(p->round, p->members);
    if (p->member_count == 0 || !round_free_slot(p->round, &slot) || pserver_checkpoint_holds(p) ||
        !pserver_logs_follow(p)) {
        p->member_count = 0;
        return STATUS_AGAIN;
    }
    enum status status = pserver_update(p, slot, error);
    if (status != STATUS_OK)
        p->member_count = 0;
    return status;
}

/* The round is complete, and saved if a checkpoint was due: ends the epoch if this version ends one, and
 * answers the members. A trainer computes its next step as soon as it is answered, so the evaluation is asked
 * for first. */
static enum status pserver_complete_round(struct pserver *p, struct error *error)
{
    enum status status = STATUS_OK;
    if (p->number == 0 && schedule_ends_epoch(&p->schedule, round_version(p->round))) {
        pserver_epoch_end(p);
        status = pserver_epoch_advance(p, error);
    }
    for (uint32_t m = 0; m < p->member_count; m++)
        pserver_answer(p, p->members[m], 0);
    p->member_count = 0;
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

/* After an order to stop, the running round is the last; without a contribution there is no running round. */
static void pserver_obey_drain(struct pserver *p)
{
    if (!p->worker->drain || p->draining || p->number != 0)
        return;
    p->draining = true;
    const uint64_t last = round_version(p->round) + (round_waiting(p->round) > 0);
    if (last < p->last_version)
        p->last_version = last;
}

/* ---- the phases ---- */

/* A server above 0 writes its shard beside its rounds. */
static enum status pserver_advance_shard(struct pserver *p, struct error *error)
{
    enum status status = pserver_checkpoint_advance(p, error);
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

static enum status pserver_after_gathering(struct pserver *p, struct error *error)
{
    enum status status = p->number == 0 ? pserver_epoch_advance(p, error) : pserver_advance_shard(p, error);
    if (status != STATUS_OK)
        return status;
    if (p->number == 0 && round_version(p->round) >= p->last_version) {
        p->end = round_version(p->round) >= p->schedule.updates ? CONTROL_END_FINISHED : CONTROL_END_STOPPED;
        p->phase = pserver_checkpoint_due(p) ? PSERVER_SAVING : PSERVER_CLOSING;
        if (p->phase == PSERVER_SAVING)
            pserver_checkpoint_begin(p);
        return STATUS_OK;
    }
    status = pserver_try_update(p, error);
    if (status != STATUS_OK)
        return status;
    if (pserver_checkpoint_due(p)) {
        p->phase = PSERVER_SAVING;
        pserver_checkpoint_begin(p);
        return STATUS_OK;
    }
    return pserver_complete_round(p, error);
}

static enum status pserver_after_saving(struct pserver *p, struct error *error)
{
    enum status status = pserver_checkpoint_advance(p, error);
    if (status != STATUS_OK)
        return status;
    p->phase = PSERVER_GATHERING;
    return p->member_count > 0 ? pserver_complete_round(p, error) : STATUS_OK;
}

static enum status pserver_after_closing(struct pserver *p, struct error *error)
{
    (void)error;
    const uint64_t version = round_version(p->round);
    if (version > p->begin_version && p->worker->logged < version)
        return STATUS_AGAIN;
    const struct control_finished finished = {.end = p->end};
    worker_report(CONTROL_FINISHED, &finished, sizeof finished);
    p->phase = PSERVER_OVER;
    return STATUS_OK;
}

static enum status pserver_after_over(struct pserver *p, struct error *error)
{
    (void)p;
    (void)error;
    return STATUS_AGAIN;
}

/* Ends without a further round or checkpoint: answers every trainer, and waits only for the log. */
static void pserver_give_up(struct pserver *p)
{
    pserver_dismiss(p);
    pserver_epoch_release(p);
    p->member_count = 0;
    p->end = CONTROL_END_STOPPED;
    p->phase = p->number == 0 ? PSERVER_CLOSING : PSERVER_OVER;
}

/* Runs phases until one has to wait. */
static enum status pserver_advance(struct pserver *p, struct error *error)
{
    static enum status (*const after[])(struct pserver *, struct error *) = {
        [PSERVER_GATHERING] = pserver_after_gathering,
        [PSERVER_SAVING] = pserver_after_saving,
        [PSERVER_CLOSING] = pserver_after_closing,
        [PSERVER_OVER] = pserver_after_over,
    };
    enum status status = STATUS_OK;
    if ((p->worker->hurry || p->worker->leave) && p->phase < PSERVER_CLOSING)
        pserver_give_up(p);
    pserver_obey_drain(p);
    while (status == STATUS_OK) {
        pserver_answer_late(p);
        status = after[p->phase](p, error);
    }
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

enum status pserver_run(struct worker *worker, struct error *error)
{
    struct pserver pserver = {0};
    enum status status = pserver_open(&pserver, worker, error);
    if (status == STATUS_OK && !worker->leave)
        worker_report(CONTROL_READY, NULL, 0);
    while (status == STATUS_OK && (!worker->leave || checkpoint_saver_busy(&pserver.saver))) {
        status = pserver_advance(&pserver, error);
        if (status != STATUS_OK)
            break;
        status = rpc_turn(pserver.rpc, MONOTIME_NEVER);
        if (status == STATUS_PEER_DIED)
            status = STATUS_OK; /* another pserver's end is the supervisor's to act on */
        if (status != STATUS_OK)
            error_set(error, status, "the socket of pserver %u failed", pserver.number);
    }
    pserver_close(&pserver, status == STATUS_OK ? WORKER_FINISHED : error->text);
    return status;
}
