/* The role `trainer` in a model-parallel job: iterations, one after the other, with epochs and checkpoints
 * between them; in the end everything is given back before anybody leaves. The process's first thread. */
#include "worker/parallel/parallel_trainer.h"

/* ---- the end ---- */

/* Everybody has given everything back; the lead says so to the supervisor. An optimizer keeps parameters, and
 * they their parts, so that the last object goes some turns later. */
static enum status finish(struct parallel_trainer *t, struct error *error)
{
    enum { TURNS = 6 };
    const struct control_finished finished = {.end = t->iteration >= t->data.updates ? CONTROL_END_FINISHED
                                                                                     : CONTROL_END_STOPPED,
                                              .updates = t->iteration};
    const bool leads = parallel_trainer_leads(t);
    enum status status = leads ? parallel_checkpoint_wait(t, error) : STATUS_OK;
    if (status == STATUS_OK && leads)
        status = parallel_peer_dismiss(t, error);
    if (status != STATUS_OK)
        return status;
    parallel_trainer_release(t);
    status = parallel_peer_flush(t, TURNS, error);
    while (status == STATUS_OK && leads && t->base.worker->logged < t->lines[0])
        status = parallel_peer_wait(t, error);
    if (status != STATUS_OK)
        return status;
    t->over = true;
    parallel_peer_answer(t);
    parallel_report(&t->base);
    if (leads)
        worker_report(CONTROL_FINISHED, &finished, sizeof finished);
    return STATUS_OK;
}

/* No more work and no checkpoint: what is held is given back as far as it can be. */
static void give_up(struct parallel_trainer *t)
{
    const struct control_finished finished = {.end = CONTROL_END_STOPPED, .updates = t->iteration};
    parallel_trainer_release(t);
    t->over = true;
    parallel_peer_answer(t);
    if (parallel_trainer_leads(t) && !t->base.worker->leave)
        worker_report(CONTROL_FINISHED, &finished, sizeof finished);
}

/* ---- the loop ---- */

static enum status advance(struct parallel_trainer *t, struct error *error)
{
    enum status status = parallel_checkpoint_advance(t, error);
    if (status != STATUS_OK && status != STATUS_AGAIN)
        return status;
    if (t->over)
        return parallel_turn(&t->base, MONOTIME_NEVER, error);
    if (t->is_paused)
        return parallel_peer_wait(t, error);
    if (t->epoch_open)
        return parallel_trainer_epoch(t, error);
    if (t->last)
        return finish(t, error);
    status = parallel_trainer_step(t, error);
    if (status == STATUS_OK)
        status = parallel_trainer_line(t, error);
    return status == STATUS_OK ? parallel_checkpoint_begin(t, error) : status;
}

enum status parallel_trainer_run(struct worker *worker, struct error *error)
{
    static struct parallel_trainer trainer; /* too much for a stack; one to a process */
    enum status status = parallel_trainer_open(&trainer, worker, error);
    if (status == STATUS_OK && !worker->leave) {
        worker_report(CONTROL_READY, NULL, 0);
        status = parallel_trainer_meet(&trainer, error);
    }
    for (;;) {
        const bool ending =
            status == STATUS_SHUTDOWN || (status == STATUS_OK && parallel_trainer_ending(&trainer));
        if (ending && !trainer.over)
            give_up(&trainer);
        if (ending)
            status = STATUS_OK;
        if (status != STATUS_OK || (worker->leave && !checkpoint_saver_busy(&trainer.saver)))
            break;
        status = advance(&trainer, error);
    }
    if (worker->leave && status == STATUS_PEER_DIED)
        status = STATUS_OK; /* the others were told so too */
    if (status == STATUS_OK && trainer.base.dist != NULL)
        parallel_report(&trainer.base);
    parallel_trainer_close(&trainer, status == STATUS_OK ? WORKER_FINISHED : error->text);
    return status;
}
