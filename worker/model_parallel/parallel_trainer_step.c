/* One iteration of training; a forward without learning. */
#include "worker/model_parallel/parallel_trainer_internal.h"

#include "kernels/base/profile.h"

/* Calls the three layers in turn and computes the loss; reads the new state. NULL on failure: the tape has
 * the error. An evaluation draws nothing, so its iteration number does not matter. */
static struct variable *trainer_forward(struct parallel_trainer *t, struct dist_context *context,
                                        const struct parallel_batch *batch, bool batch_classes)
{
    const struct rnn_config *rnn = &t->data.rnn;
    const uint64_t numbers[LAYER_NUMBERS] = {t->number, t->iteration};
    const struct shape state = SHAPE3(rnn->layers, batch->columns, rnn->hidden);
    const uint32_t steps = batch->steps, rows = steps * batch->columns;
    struct variable *tokens, *in[LAYER_VARIABLES_MAX] = {NULL}, *out[LAYER_VARIABLES_MAX] = {NULL};
    struct variable *logits = NULL;
    tokens = tape_input(t->tape, SHAPE2(steps, batch->columns), DTYPE_I32, "tokens", batch->tokens);
    dist_call(context, t->layers[JOB_LAYER_EMBEDDING], 0, numbers, LAYER_NUMBERS, &tokens, 1, &in[0], 1);
    in[1] = tape_input(t->tape, state, DTYPE_F32, "h", batch->h);
    in[2] = tape_input(t->tape, state, DTYPE_F32, "c", batch->c);
    dist_call(context, t->layers[JOB_LAYER_LSTM], 0, numbers, LAYER_NUMBERS, in, 3, out, 3);
    dist_call(context, t->layers[JOB_LAYER_DECODER], 0, numbers, LAYER_NUMBERS, out, 1, &logits, 1);
    if (tape_status(t->tape, NULL) != STATUS_OK ||
        tape_read(t->tape, out[1], DTYPE_F32, batch->h_out) != STATUS_OK ||
        tape_read(t->tape, out[2], DTYPE_F32, batch->c_out) != STATUS_OK)
        return NULL;
    if (batch_classes)
        return tape_cross_entropy(
            t->tape, logits,
            tape_input(t->tape, SHAPE2(steps, rnn->tokens), DTYPE_I32, "targets", batch->targets));
    return tape_cross_entropy(t->tape, tape_reshape(t->tape, logits, SHAPE2(rows, rnn->tokens)),
                              tape_input(t->tape, SHAPE1(rows), DTYPE_I32, "targets", batch->targets));
}

enum status parallel_trainer_forward(void *arg, const struct parallel_batch *batch, double *loss,
                                     struct error *error)
{
    struct parallel_trainer *t = arg;
    struct dist_context *context;
    enum status status = dist_context_new(&context, t->base.dist, TAPE_INFER, t->tape, NULL, error);
    if (status != STATUS_OK)
        return status;
    const enum profile_kind before = profile_enter(PROFILE_INFERENCE);
    const struct variable *variable = trainer_forward(t, context, batch, false);
    tape_read(t->tape, variable, DTYPE_F64, loss);
    profile_leave(before);
    status = tape_status(t->tape, error);
    dist_context_free(context);
    return status;
}

/* ---- learning ---- */

/* Loss, backward and step in an open context. */
static enum status trainer_learn(struct parallel_trainer *t, struct dist_context *context,
                                 const struct parallel_batch *batch, double *loss, struct error *error)
{
    const bool batch_classes = !t->data.text && t->job->sequence.classes == JOB_CLASSES_BATCH;
    struct variable *variable = trainer_forward(t, context, batch, batch_classes);
    tape_loss(t->tape, variable, loss);
    enum status status = tape_status(t->tape, error);
    if (status == STATUS_OK)
        status = dist_backward(context, variable, error);
    if (status != STATUS_OK)
        return status;
    struct dist_step step = {.lr = t->plateau.lr,
                             .max_norm = t->job->sequence.max_norm,
                             .last = t->iteration + 1 >= t->data.updates ||
                                     (parallel_trainer_leads(t) && t->base.worker->drain)};
    status = dist_optimizer_step(t->optimizer, context, &step, error);
    t->last = t->last || step.last || step.was_last;
    return status;
}

enum status parallel_trainer_step(struct parallel_trainer *t, struct error *error)
{
    struct dist_context *context;
    struct error why = {0};
    double loss = 0;
    struct parallel_batch batch = {.columns = t->job->trainers.batch,
                                   .tokens = t->tokens,
                                   .targets = t->targets,
                                   .h = t->hidden.h,
                                   .c = t->hidden.c,
                                   .h_out = t->hidden.h_next,
                                   .c_out = t->hidden.c_next};
    t->in_iteration = true;
    const enum profile_kind before = profile_enter(PROFILE_DATA);
    batch.steps = parallel_data_batch(&t->data, t->number, t->iteration, t->tokens, t->targets);
    profile_enter(PROFILE_LEARNING);
    enum status status = dist_context_new(&context, t->base.dist, TAPE_TRAIN, t->tape, NULL, &why);
    if (status == STATUS_OK) {
        status = trainer_learn(t, context, &batch, &loss, &why);
        dist_context_free(context);
    }
    profile_leave(before);
    if (status != STATUS_OK)
        return error_set(error, status, "trainer %u, iteration %llu: %s", t->base.worker->self.worker,
                         (unsigned long long)t->iteration + 1, why.text);
    hidden_state_advance(&t->hidden); // until here a question for the state is answered with the old one
    t->in_iteration = false;
    t->iteration++;
    t->epoch_loss += loss;
    t->line_loss += loss;
    t->epoch_open = parallel_data_ends_epoch(&t->data, t->iteration);
    parallel_peer_answer(t);
    return STATUS_OK;
}
