/* Gives a trainer's gradient to the servers, from the tape on. The trainer's one thread runs this.
 *
 * A backward pass finishes the entries roughly from the last to the first. Between two of its nodes,
 * trainer_progress finds how far down all entries are complete. It copies them to the mirror if there is one,
 * and sends their chunks, which travel while the pass goes on. A ResNet uses each parameter once, so an entry
 * is complete once it is written.
 *
 * In two cases the gradient leaves after the pass. If all servers are on this host, sending would take
 * processors from the pass. If the device has memory of its own, a copy would wait for the computation. */
#include "kernels/base/profile.h"
#include "kernels/params/gradients.h"
#include "worker/data_parallel/trainer.h"

/* ---- entries ---- */

/* Copies the gradient of the net's entry number `i` to the mirror. */
static enum status mirror_write_gradient(struct trainer *t, uint32_t i, const struct tensor *from,
                                         struct error *error)
{
    bool fresh;
    struct tensor *gradient = gradients_take(t->mirror.gradients, params_at(t->mirror.params, i), &fresh);
    float *values = gradient->layout == NULL ? gradient->data : t->scratch;
    enum status status = backend_download(t->net.backend, from, DTYPE_F32, values, error);
    if (status == STATUS_OK && values == t->scratch)
        status = backend_upload(t->mirror.backend, gradient, DTYPE_F32, values, error);
    return status;
}

/* Moves `given` down over the entries that are complete. */
static enum status give_entries(struct trainer *t, struct error *error)
{
    enum status status = STATUS_OK;
    for (; t->given > 0 && status == STATUS_OK; t->given--) {
        const struct parameter *entry = params_at(t->net.params, t->given - 1);
        if (entry->kind != PARAMETER_TRAINED)
            continue;
        const struct tensor *gradient = gradients_written(t->net.gradients, entry);
        if (gradient == NULL)
            break;
        if (t->placed == &t->mirror)
            status = mirror_write_gradient(t, t->given - 1, gradient, error);
    }
    return status;
}

/* The element from which on all parameters are given. */
static size_t given_element(const struct trainer *t)
{
    for (uint32_t i = t->given; i < params_count(t->net.params); i++) {
        const struct parameter *entry = params_at(t->net.params, i);
        if (entry->kind == PARAMETER_TRAINED)
            return entry->offset;
    }
    return t->parameters;
}

/* Whether chunks leave during the backward pass. */
static bool gives_early(const struct trainer *t)
{
    bool elsewhere = false;
    for (uint32_t server = 0; server < t->servers; server++)
        elsewhere = elsewhere || rpc_is_far(t->rpc, (uint16_t)server);
    return elsewhere && t->net.backend->ops->host;
}

/* ---- a step ---- */

void trainer_model_begin_giving(struct trainer *t)
{
    t->given = params_count(t->net.params);
    if (t->far > 0)
        trainer_push_begin(t);
}

void trainer_progress(void *arg)
{
    struct trainer *t = arg;
    struct error error = {0};
    worker_beat(t->worker);
    worker_read_orders(t->worker);
    if (t->worker->leave || t->worker->hurry) {
        tape_fail(t->net.tape, STATUS_SHUTDOWN, "the job is ending");
        return;
    }
    if (!t->transfer.push || !gives_early(t))
        return;
    enum status status = give_entries(t, &error);
    if (status == STATUS_OK)
        status = trainer_push_from(t, given_element(t), &error);
    if (status != STATUS_OK)
        tape_fail(t->net.tape, status, "%s", error.text);
}

enum status trainer_model_give(struct trainer *t, struct error *error)
{
    const enum profile_kind before = profile_enter(PROFILE_TRANSPORT);
    enum status status = gradients_complete(t->net.gradients, error);
    if (status == STATUS_OK)
        status = give_entries(t, error);
    profile_leave(before);
    return status == STATUS_OK && t->far > 0 ? trainer_push_finish(t, error) : status;
}
