/* Checkpoints: the lead gathers the values of all owners and the states of all trainers; a saver writes them
 * while the loop goes on (worker/checkpoint/checkpoint_saver.h). The trainer's thread.
 *
 * A checkpoint is taken after an iteration and before the changes at an epoch's end, so that a resumed run
 * makes these changes itself. It is published when the log has the last line before it. */
#include "worker/parallel/parallel_trainer.h"

/* ---- gathering ---- */

static enum status checkpoint_fetch_values(struct parallel_trainer *t, bool momentum, struct error *error)
{
    struct whole *whole = &t->values.whole;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < t->parameter_count && status == STATUS_OK; i++) {
        const size_t count = whole_count(whole, i);
        if (momentum)
            status =
                dist_optimizer_moment_get(t->optimizer, i, DIST_MOMENT_FIRST, whole->values, count, error);
        else
            status = dist_parameter_get(t->base.dist, t->parameters[i], whole->values, count, error);
        if (status == STATUS_OK)
            status = whole_write(whole, i, momentum, error);
    }
    return status;
}

static enum status checkpoint_write_state(struct parallel_trainer *t, uint32_t number, const float *h,
                                          const float *c, struct error *error)
{
    struct params *state = t->values.hidden;
    enum status status = params_write(state, params_at(state, 2 * number), DTYPE_F32, h, error);
    return status == STATUS_OK ? params_write(state, params_at(state, 2 * number + 1), DTYPE_F32, c, error)
                               : status;
}

/* The others' states arrive in the buffers of the next iteration's state. steps[i]: trainer i's iteration. */
static enum status checkpoint_fetch_states(struct parallel_trainer *t, uint64_t steps[], struct error *error)
{
    enum status status = checkpoint_write_state(t, 0, t->h, t->c, error);
    for (uint32_t i = 1; i < t->trainers && status == STATUS_OK; i++) {
        status = parallel_peer_state(t, i, t->h_next, t->c_next, &steps[i], error);
        if (status == STATUS_OK)
            status = checkpoint_write_state(t, i, t->h_next, t->c_next, error);
    }
    return status;
}

/* ---- the saver ---- */

enum status parallel_checkpoint_begin(struct parallel_trainer *t, struct error *error)
{
    struct parallel_values *values = &t->values;
    if (!parallel_trainer_leads(t) || !checkpoint_saver_due(&t->saver, t->iteration, t->last))
        return STATUS_OK;
    enum status status = parallel_checkpoint_wait(t, error);
    if (status != STATUS_OK)
        return status;
    values->extra = (struct checkpoint_extra){.text = values->text,
                                              .vocabulary = values->vocabulary,
                                              .vocabulary_bytes = values->vocabulary_bytes,
                                              .state = values->hidden};
    struct checkpoint_saving saving = {
        .counters = {.update = t->iteration,
                     .trainers = t->trainers,
                     .steps = {t->iteration},
                     .epoch_loss = t->epoch_loss,
                     .line_loss = t->line_loss,
                     .lr = t->plateau.lr,
                     .best_loss = t->plateau.best_loss},
        .values = {.params = values->whole.params, .momentum = values->whole.momentum},
        .extra = &values->extra,
        .line = t->lines[0]};
    status =
        checkpoint_fetch_states(t, saving.counters.steps, error); // first: with `async` it pauses the others
    if (status == STATUS_OK)
        status = checkpoint_fetch_values(t, false, error);
    if (status == STATUS_OK && values->whole.momentum != NULL)
        status = checkpoint_fetch_values(t, true, error);
    if (status == STATUS_OK)
        status = parallel_peer_resume(t, error);
    if (status == STATUS_OK)
        checkpoint_saver_begin(&t->saver, &saving);
    return status;
}

enum status parallel_checkpoint_advance(struct parallel_trainer *t, struct error *error)
{
    return checkpoint_saver_advance(&t->saver, t->base.worker->logged, error);
}

enum status parallel_checkpoint_wait(struct parallel_trainer *t, struct error *error)
{
    enum status status = parallel_checkpoint_advance(t, error);
    while (status == STATUS_AGAIN) {
        status = parallel_peer_wait(t, error);
        if (status == STATUS_OK)
            status = parallel_checkpoint_advance(t, error);
    }
    return status;
}

enum status parallel_checkpoint_open(struct parallel_trainer *t, struct error *error)
{
    const struct checkpoint_saver_config config = {.run_dir = t->base.worker->self.run_dir,
                                                   .job = t->job,
                                                   .rpc = t->base.rpc,
                                                   .publishes = true,
                                                   .saved = t->iteration};
    return parallel_trainer_leads(t) ? checkpoint_saver_open(&t->saver, &config, error) : STATUS_OK;
}
