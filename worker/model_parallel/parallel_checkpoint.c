/* Checkpoints: the lead gathers the values of all owners and the states of all trainers; a saver writes them
 * while the loop goes on (worker/checkpoint/checkpoint_saver.h). The trainer's thread.
 *
 * A checkpoint is taken after an iteration and before the changes at an epoch's end, so that a resumed run
 * makes these changes itself; with /checkpoint/best it waits for the epoch's evaluation. Its place in the
 * logs is behind the last line that was reported before it. */
#include "worker/model_parallel/parallel_trainer_internal.h"

#include "kernels/base/profile.h"

#include <math.h>

/* ---- gathering ---- */

/* Fetches every parameter, or its momentum, from its owner. */
static enum status checkpoint_fetch_values(struct parallel_trainer *t, bool momentum, struct error *error)
{
    const struct whole *whole = &t->values.whole;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < t->parameter_count && status == STATUS_OK; i++) {
        float *values = whole_values(whole, i, momentum);
        const size_t count = whole_count(whole, i);
        status = dist_parameter_get(t->base.dist, t->parameters[i],
                                    momentum ? DIST_MOMENT_FIRST : DIST_VALUES, values, count, error);
    }
    return status;
}

/* steps[i]: trainer i's iteration. */
static enum status checkpoint_fetch_states(struct parallel_trainer *t, uint64_t steps[], struct error *error)
{
    enum status status = STATUS_OK;
    steps[0] = t->iteration;
    hidden_state_save(&t->hidden, 0);
    for (uint32_t i = 1; i < t->trainers && status == STATUS_OK; i++) {
        float *h, *c;
        hidden_state_saved(&t->hidden, i, &h, &c);
        status = parallel_peer_state(t, i, h, c, &steps[i], error);
    }
    return status;
}

/* ---- the saver ---- */

/* Gathers all values and begins to write them. */
static enum status checkpoint_begin_scored(struct parallel_trainer *t, struct checkpoint_score score,
                                           struct error *error)
{
    struct parallel_values *values = &t->values;
    enum status status = parallel_checkpoint_wait(t, error);
    if (status != STATUS_OK)
        return status;
    struct checkpoint_saving saving = {
        .counters = {.update = t->iteration,
                     .trainers = t->trainers,
                     .epoch_loss = t->epoch_loss,
                     .line_loss = t->line_loss,
                     .lr = t->plateau.lr,
                     .best_loss = t->plateau.best_loss,
                     .score = score},
        .values = {.params = values->whole.params, .momentum = values->whole.momentum},
        .extra = &values->extra,
        .asked = t->base.worker->save,
        .competes = true};
    const enum profile_kind before = profile_enter(PROFILE_CHECKPOINT);
    status =
        checkpoint_fetch_states(t, saving.counters.steps, error); // first: with `async` it pauses the others
    if (status == STATUS_OK)
        status = checkpoint_fetch_values(t, false, error);
    if (status == STATUS_OK && values->whole.momentum != NULL)
        status = checkpoint_fetch_values(t, true, error);
    profile_leave(before);
    if (status == STATUS_OK)
        status = parallel_peer_resume(t, error);
    if (status != STATUS_OK)
        return status;
    worker_keep_place(t->base.worker);
    t->base.worker->save = false;
    checkpoint_saver_begin(&t->saver, &saving);
    return saving.asked ? parallel_checkpoint_wait(t, error) : STATUS_OK;
}

static bool checkpoint_is_due(const struct parallel_trainer *t)
{
    return checkpoint_saver_due(&t->saver, t->iteration, t->last || t->base.worker->save);
}

enum status parallel_checkpoint_begin(struct parallel_trainer *t, struct error *error)
{
    const struct checkpoint_score unmeasured = {0};
    const bool waits = t->job->checkpoint.best && t->epoch_open && parallel_trainer_evaluates(t);
    if (!parallel_trainer_leads(t) || waits || !checkpoint_is_due(t))
        return STATUS_OK;
    return checkpoint_begin_scored(t, unmeasured, error);
}

enum status parallel_checkpoint_begin_evaluated(struct parallel_trainer *t, double held_out_loss,
                                                struct error *error)
{
    const int measure = isfinite(held_out_loss) ? CHECKPOINT_HELD_OUT_LOSS : CHECKPOINT_UNMEASURED;
    const struct checkpoint_score score = {measure, isfinite(held_out_loss) ? held_out_loss : 0};
    if (!t->job->checkpoint.best || t->saver.saved == t->iteration)
        return STATUS_OK;
    enum status status = parallel_checkpoint_wait(t, error);
    if (status == STATUS_OK && (checkpoint_is_due(t) || checkpoint_saver_improves(&t->saver, &score)))
        status = checkpoint_begin_scored(t, score, error);
    return status;
}

enum status parallel_checkpoint_advance(struct parallel_trainer *t, struct error *error)
{
    return checkpoint_saver_advance(&t->saver, worker_kept_place(t->base.worker), error);
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
    const struct checkpoint_saver_config config = {.run_dir = worker_run_dir(t->base.worker),
                                                   .job = t->job,
                                                   .rpc = t->base.rpc,
                                                   .publishes = true,
                                                   .saved = t->iteration,
                                                   .again = worker_goes_on(t->base.worker),
                                                   .published = worker_report_saved};
    return parallel_trainer_leads(t) ? checkpoint_saver_open(&t->saver, &config, error) : STATUS_OK;
}
