/* The role pserver: holds a shard of the model, takes the trainers' gradients, gives out the next version.
 * The process's first thread. The loop: turn (wait, take messages), then advance. */
#include "worker/data_parallel/pserver.h"

/* ---- a round ---- */

/* Makes the next version if a round is full, a slot is free, and no shard is being written. */
static enum status pserver_try_update(struct pserver *p, struct error *error)
{
    uint32_t slot;
    p->member_count = round_members(&p->round, p->members);
    if (p->member_count == 0 || !round_free_slot(&p->round, &slot) || pserver_checkpoint_holds(p) ||
        worker_logs_lag(p->worker, 1)) {
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
    if (p->number == 0 && schedule_ends_epoch(&p->schedule, p->round.version)) {
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
    const uint64_t last = p->round.version + (round_waiting(&p->round) > 0);
    if (last < p->last_version)
        p->last_version = last;
}

/* Ends without a further round or checkpoint: answers every trainer, and waits only for the log. */
static void pserver_give_up(struct pserver *p)
{
    pserver_dismiss(p);
    pserver_epoch_release(p);
    p->member_count = 0;
    p->end = CONTROL_END_STOPPED;
    p->done = true;
    p->over = p->number > 0;
}

/* Takes the round one step further. STATUS_AGAIN: something else has to come first. */
static enum status pserver_continue_round(struct pserver *p, struct error *error)
{
    enum status status = pserver_checkpoint_advance(p, error);
    if (status != STATUS_OK)
        return status;
    if (p->member_count > 0)
        return pserver_complete_round(p, error);
    const bool ended = p->number == 0 && p->round.version >= p->last_version;
    status = pserver_epoch_advance(p, error);
    const bool saves_first = p->job->checkpoint.best && pserver_checkpoint_due(p);
    if (status == STATUS_OK && !ended && !saves_first)
        status = pserver_try_update(p, error);
    if (status != STATUS_OK)
        return status;
    if (pserver_checkpoint_due(p)) {
        pserver_checkpoint_begin(p);
        return STATUS_OK;
    }
    if (!ended)
        return pserver_complete_round(p, error);
    p->end = p->round.version >= p->schedule.updates ? CONTROL_END_FINISHED : CONTROL_END_STOPPED;
    p->done = true;
    return STATUS_OK;
}

/* Server 0: reports the job's end when the log has the last update. */
static void pserver_finish(struct pserver *p)
{
    const struct control_finished finished = {.end = p->end};
    if (p->over || worker_logs_lag(p->worker, 0))
        return;
    worker_report(CONTROL_FINISHED, &finished, sizeof finished);
    p->over = true;
}

/* Goes on until something has to come first. */
static enum status pserver_advance(struct pserver *p, struct error *error)
{
    enum status status = STATUS_OK;
    if ((p->worker->hurry || p->worker->leave) && !p->done)
        pserver_give_up(p);
    pserver_obey_drain(p);
    while (status == STATUS_OK && !p->done) {
        pserver_answer_late(p);
        status = pserver_continue_round(p, error);
    }
    if (p->done)
        pserver_finish(p);
    return status == STATUS_AGAIN ? STATUS_OK : status;
}

enum status pserver_run(struct worker *worker, struct error *error)
{
    static struct pserver pserver; /* too much for a stack; one to a process */
    enum status status = pserver_open(&pserver, worker, error);
    if (status == STATUS_OK && !worker->leave)
        worker_report(CONTROL_READY, NULL, 0);
    while (status == STATUS_OK && (!worker->leave || checkpoint_saver_busy(&pserver.saver))) {
        status = pserver_advance(&pserver, error);
        if (status != STATUS_OK)
            break;
        worker->queue = round_waiting(&pserver.round);
        status = rpc_turn(pserver.rpc, MONOTIME_NEVER);
        if (status == STATUS_PEER_DIED)
            status = STATUS_OK; /* another pserver's end is the supervisor's to act on */
        if (status != STATUS_OK)
            error_set(error, status, "the socket of pserver %u failed", pserver.number);
    }
    pserver_close(&pserver, status == STATUS_OK ? WORKER_FINISHED : error->text);
    return status;
}
