/* The role `trainer` in a model-parallel job: iterations, with the ends of epochs and checkpoints between
 * them; at the end every reference is released before any worker leaves. The process's first thread. */
#include "worker/model_parallel/parallel_trainer_internal.h"

/* ---- the end ---- */

/* Returns when this trainer has released everything; in the lead, when every trainer has, and reports
 * FINISHED.
 *
 * A worker destroys unused objects at the end of a turn, after it has answered the echoes that came in that
 * turn. A RELEASE that finds no room is sent in a later turn. So one echo is not enough; TURNS are plenty. */
static enum status parallel_trainer_finish(struct parallel_trainer *t, struct error *error)
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
    if (status == STATUS_OK && leads)
        status = parallel_trainer_wait_for_logs(t, 0, error);
    if (status != STATUS_OK)
        return status;
    t->over = true;
    parallel_peer_answer(t);
    if (leads)
        worker_report(CONTROL_FINISHED, &finished, sizeof finished);
    return STATUS_OK;
}

/* Ends without a checkpoint; releases its references where it can. */
static void parallel_trainer_give_up(struct parallel_trainer *t)
{
    const struct control_finished finished = {.end = CONTROL_END_STOPPED, .updates = t->iteration};
    parallel_trainer_release(t);
    t->over = true;
    parallel_peer_answer(t);
    if (parallel_trainer_leads(t) && !t->base.worker->leave)
        worker_report(CONTROL_FINISHED, &finished, sizeof finished);
}

/* Waits for the order to leave. Other workers may have it already, and be gone. */
static enum status parallel_trainer_await_leave(struct parallel_trainer *t, struct error *error)
{
    const enum status status = parallel_turn(&t->base, MONOTIME_NEVER, error);
    return status == STATUS_PEER_DIED ? STATUS_OK : status;
}

/* ---- the loop ---- */

static enum status parallel_trainer_advance(struct parallel_trainer *t, struct error *error)
{
    enum status status = parallel_checkpoint_advance(t, error);
    if (status != STATUS_OK && status != STATUS_AGAIN)
        return status;
    if (t->over)
        return parallel_trainer_await_leave(t, error);
    if (t->is_paused)
        return parallel_peer_wait(t, error);
    if (t->epoch_open)
        return parallel_trainer_epoch(t, error);
    if (t->last)
        return parallel_trainer_finish(t, error);
    status = parallel_trainer_step(t, error);
    if (status == STATUS_OK)
        status = parallel_trainer_line(t, error);
    return status == STATUS_OK ? parallel_checkpoint_begin(t, error) : status;
}

/* A peer may obey an order to hurry, and be gone, before this worker has read its own. */
static enum status parallel_trainer_judge(struct parallel_trainer *t, enum status status)
{
    if (status == STATUS_PEER_DIED)
        parallel_read_orders_after_end(&t->base);
    const bool ends = status == STATUS_OK || status == STATUS_PEER_DIED;
    return ends && parallel_trainer_ending(t) ? STATUS_SHUTDOWN : status;
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
        status = parallel_trainer_judge(&trainer, status);
        if (status == STATUS_SHUTDOWN) {
            if (!trainer.over)
                parallel_trainer_give_up(&trainer);
            status = STATUS_OK;
        }
        if (status != STATUS_OK || (worker->leave && !checkpoint_saver_busy(&trainer.saver)))
            break;
        status = parallel_trainer_advance(&trainer, error);
    }
    if (status == STATUS_OK && trainer.base.dist != NULL)
        parallel_report(&trainer.base);
    parallel_trainer_close(&trainer, status == STATUS_OK ? WORKER_FINISHED : error->text);
    return status;
}
