/* The policy. Whoever holds it (coalescer or learner thread, in turns) has it alone, so nothing is locked.
 *
 * The parameters live in params, in the backend's memory; `packed` is their copy for the fused kernel, taken
 * over after every step. The fused kernel gives loss and gradient in one pass over the rows, which the node's
 * forward makes chunk by chunk; the node's backward hands the gradient on. On a GPU there are `rows` and
 * `batch` instead of all that: nothing but observations, keys, masks and actions crosses over. */
#include "worker/model/policy.h"

#include "kernels/params/optim.h"
#include "worker/model/policy_batch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PARAMETERS = 4 };

struct policy {
    struct mlp *mlp;
    uint64_t seed;
    uint32_t inputs;
    struct backend *backend;
    struct params *params;
    struct gradients *gradients;
    struct optimizer *optimizer;
    struct tape *tape;
    struct policy_network network;
    struct policy_rows *rows;                 // a GPU's captured launches; NULL on a CPU
    struct policy_batch *batch;               // a GPU's rows to learn from; NULL on a CPU
    struct parameter *parameters[PARAMETERS]; // in mlp's order
    size_t count;                             // floats of all of them
    float *packed;                            // (count) the parameters, in mlp's order
    float *gradient;                          // (count) of the pass under way, in mlp's order
};

/* ---- the network ---- */

enum status policy_register(struct policy_network *network, const struct mlp_shape *shape,
                            struct params *params, struct error *error)
{
    const struct init first = {INIT_UNIFORM, 1 / sqrt(shape->inputs)};
    const struct init second = {INIT_UNIFORM, 1 / sqrt(shape->hidden)};
    const struct {
        const char *name;
        struct shape shape;
        struct init init;
        struct parameter **out;
    } entries[PARAMETERS] = {
        {"affine1.weight", SHAPE2(shape->hidden, shape->inputs), first, &network->weight1},
        {"affine1.bias", SHAPE1(shape->hidden), first, &network->bias1},
        {"affine2.weight", SHAPE2(shape->actions, shape->hidden), second, &network->weight2},
        {"affine2.bias", SHAPE1(shape->actions), second, &network->bias2},
    };
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < PARAMETERS && status == STATUS_OK; i++)
        status = params_add(params, entries[i].name, PARAMETER_TRAINED, entries[i].shape, entries[i].init,
                            entries[i].out, error);
    return status;
}

struct variable *policy_forward(const struct policy_network *network, struct tape *tape,
                                struct variable *observations, struct variable *rows, double dropout,
                                uint64_t seed)
{
    const struct draw draw = {.seed = seed};
    struct variable *affine1 = tape_linear(tape, observations, tape_parameter(tape, network->weight1),
                                           tape_parameter(tape, network->bias1), false);
    struct variable *dropped = tape_dropout(tape, affine1, dropout, &draw, rows);
    struct variable *hidden = tape_relu(tape, dropped);
    tape_drop(tape, dropped);
    struct variable *logits = tape_linear(tape, hidden, tape_parameter(tape, network->weight2),
                                          tape_parameter(tape, network->bias2), false);
    tape_drop(tape, hidden);
    struct variable *log_probabilities = tape_log_softmax(tape, logits);
    tape_drop(tape, logits);
    return log_probabilities;
}

/* ---- parameters ---- */

struct params *policy_params(struct policy *policy)
{
    return policy->params;
}

enum status policy_take_over(struct policy *policy, struct error *error)
{
    float *to = policy->packed;
    if (policy->rows != NULL)
        return STATUS_OK; // a launch reads the params themselves
    for (uint32_t i = 0; i < PARAMETERS; i++) {
        const struct parameter *parameter = policy->parameters[i];
        enum status status = params_read(policy->params, parameter, DTYPE_F32, to, error);
        if (status != STATUS_OK)
            return status;
        to += shape_elements(&parameter->tensor.shape);
    }
    mlp_load(policy->mlp, policy->packed);
    return STATUS_OK;
}

/* ---- acting ---- */

enum status policy_act(struct policy *policy, const struct mlp_batch *batch, uint32_t episode,
                       const uint32_t *environment, const uint32_t *step, struct error *error)
{
    if (policy->rows != NULL)
        return policy->backend->ops->policy_act(policy->backend, policy->rows, batch, policy->seed, episode,
                                                environment, step, NULL, error);
    mlp_act(policy->mlp, batch, policy->seed, episode, environment, step, NULL);
    return STATUS_OK;
}

/* ---- learning ---- */

/* The node's forward: L of all rows, and its gradient by the way. */
static double pass_over_rows(struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                             policy_progress *progress, void *context)
{
    double sum = 0;
    memset(policy->gradient, 0, policy->count * sizeof *policy->gradient);
    for (uint32_t first = 0; first < batch->count; first += MLP_CHUNK_ROWS) {
        struct mlp_batch chunk = *batch;
        uint32_t left = batch->count - first;
        chunk.count = left < MLP_CHUNK_ROWS ? left : MLP_CHUNK_ROWS;
        chunk.row += first;
        sum += mlp_gradient(policy->mlp, &chunk, coefficient + first, policy->gradient);
        if (progress != NULL)
            progress(context);
    }
    return sum;
}

/* The node's backward: the chain rule's last factor is the loss's own gradient. */
static enum status hand_on(void *context, struct tape *tape, bool first, const struct tensor *const dout[],
                           struct tensor *const din[], struct error *error)
{
    const struct policy *policy = context;
    const float *gradient = policy->gradient;
    double factor = 0;
    (void)first;
    enum status status = backend_download(policy->backend, dout[0], DTYPE_F64, &factor, error);
    for (uint32_t i = 0; i < PARAMETERS && status == STATUS_OK; i++) {
        if (din[i]->data == NULL)
            status = tensor_new(din[i], tape_arena(tape), din[i]->shape, din[i]->dtype, din[i]->name, error);
        if (status == STATUS_OK)
            status = backend_upload(policy->backend, din[i], DTYPE_F32, gradient, error);
        if (status == STATUS_OK)
            status = backend_scale(policy->backend, din[i], factor, error);
        gradient += shape_elements(&din[i]->shape);
    }
    return status;
}

static struct variable *record(struct policy *policy, double loss)
{
    struct tape *tape = policy->tape;
    struct tape_node node = {
        .name = "policy", .context = policy, .backward = hand_on, .inputs = PARAMETERS, .outputs = 1};
    struct variable *out = NULL;
    struct error error = {0};
    for (uint32_t i = 0; i < PARAMETERS; i++)
        node.in[i] = tape_parameter(tape, policy->parameters[i]);
    enum status status =
        tensor_new(&node.out[0], tape_arena(tape), SHAPE0(), policy->backend->ops->dtype, "loss", &error);
    if (status == STATUS_OK)
        status = backend_upload(policy->backend, &node.out[0], DTYPE_F64, &loss, &error);
    if (status != STATUS_OK)
        return tape_fail(tape, status, "%s", error.text);
    tape_node(tape, &node, &out);
    return out;
}

static void fail_at(const struct policy *policy, double loss, const char *what, uint32_t row, uint32_t rows)
{
    tape_fail(policy->tape, STATUS_INTERNAL,
              "the loss is %g; the first tensor that holds a NaN or an infinity is the %s, row %u of %u",
              loss, what, row, rows);
}

/* What came in from outside is looked at first: observations, then what rewards became. */
static void check_rows(const struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                       double loss)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const float *observation = batch->observations + (size_t)batch->row[i] * policy->inputs;
        for (uint32_t j = 0; j < policy->inputs; j++)
            if (!isfinite(observation[j]))
                return fail_at(policy, loss, "observations", i, batch->count);
    }
    for (uint32_t i = 0; i < batch->count; i++)
        if (!isfinite(coefficient[i]))
            return fail_at(policy, loss, "returns", i, batch->count);
}

/* The one node of the CPU. *loss is in double, the node's output is not. */
static struct variable *fused_loss(struct policy *policy, const struct mlp_batch *batch,
                                   const float *coefficient, double *loss, policy_progress *progress,
                                   void *context)
{
    double rounded = 0;
    *loss = pass_over_rows(policy, batch, coefficient, progress, context);
    if (!isfinite(*loss))
        check_rows(policy, batch, coefficient, *loss);
    struct variable *out = record(policy, *loss);
    tape_loss(policy->tape, out, &rounded);
    return out;
}

/* One step of the tape, without an update. `*loss` is the batch's. */
static enum status walk(struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                        uint32_t episode, double *loss, policy_progress *progress, void *context,
                        struct error *error)
{
    struct variable *out;
    tape_begin(policy->tape, TAPE_TRAIN, policy->gradients);
    if (policy->batch != NULL) {
        tape_on_progress(policy->tape, progress, context);
        out = policy_batch_loss(policy->batch, &policy->network, policy->tape, batch, coefficient, episode);
        tape_loss(policy->tape, out, loss);
    } else {
        out = fused_loss(policy, batch, coefficient, loss, progress, context);
    }
    tape_backward(policy->tape, out);
    return tape_finish(policy->tape, error);
}

enum status policy_learn(struct policy *policy, const struct mlp_batch *batch, const float *coefficient,
                         uint32_t episode, double *loss, policy_progress *progress, void *context,
                         struct error *error)
{
    double found = 0;
    enum status status = walk(policy, batch, coefficient, episode, &found, progress, context, error);
    if (status == STATUS_OK) // a parameter that is lost to a NaN is lost for good
        status = gradients_check(policy->gradients, error);
    if (status == STATUS_OK)
        status = optimizer_step(policy->optimizer, policy->gradients, error);
    if (status == STATUS_OK)
        status = policy_take_over(policy, error);
    if (status == STATUS_OK)
        *loss = found;
    return status;
}

/* Steps over no rows, so that the tape has all the memory it will need before the first episode, and a GPU
 * has loaded what it computes with. */
static enum status warm_up(struct policy *policy, struct error *error)
{
    const struct mlp_batch nothing = {0};
    enum status status = STATUS_OK;
    for (int step = 0; step < 2 && status == STATUS_OK; step++) {
        double loss;
        status = walk(policy, &nothing, NULL, 0, &loss, NULL, NULL, error);
    }
    return status;
}

/* ---- opening ---- */

static enum status open_params(struct policy *policy, const struct policy_config *config, struct error *error)
{
    const struct policy_network *network = &policy->network;
    enum status status = params_new(&policy->params, policy->backend, error);
    if (status == STATUS_OK)
        status = policy_register(&policy->network, &config->shape, policy->params, error);
    if (status == STATUS_OK)
        status = params_build(policy->params, config->seed, error);
    if (status != STATUS_OK)
        return status;
    policy->parameters[0] = network->weight1;
    policy->parameters[1] = network->bias1;
    policy->parameters[2] = network->weight2;
    policy->parameters[3] = network->bias2;
    return STATUS_OK;
}

static enum status open_learning(struct policy *policy, const struct policy_config *config,
                                 struct error *error)
{
    const struct optimizer_settings settings = {.kind = OPTIMIZER_ADAM, .adam = config->adam};
    enum status status = optimizer_new(&policy->optimizer, &settings, policy->params, error);
    if (status == STATUS_OK)
        status = gradients_new(&policy->gradients, policy->params, error);
    if (status == STATUS_OK)
        status = tape_new(&policy->tape, policy->backend, error);
    return status;
}

static enum status open_fused(struct policy *policy, const struct policy_config *config, struct error *error)
{
    policy->count = mlp_parameter_count(&config->shape);
    policy->packed = calloc(policy->count, sizeof *policy->packed);
    policy->gradient = calloc(policy->count, sizeof *policy->gradient);
    if (policy->packed == NULL || policy->gradient == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy's %zu parameters", policy->count);
    return policy_take_over(policy, error);
}

static enum status open_launches(struct policy *policy, const struct policy_config *config,
                                 struct error *error)
{
    enum status status = policy_batch_new(&policy->batch, config, error);
    if (status != STATUS_OK)
        return status;
    return policy->backend->ops->policy_open(policy->backend, &config->shape, config->dropout,
                                             config->environments, config->one_size,
                                             params_slab(policy->params), &policy->rows, error);
}

enum status policy_new(struct policy **out, const struct policy_config *config, struct backend *backend,
                       struct error *error)
{
    struct policy *policy = calloc(1, sizeof *policy);
    if (policy == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    policy->backend = backend;
    policy->seed = config->seed;
    policy->inputs = config->shape.inputs;
    enum status status = mlp_new(&policy->mlp, &config->shape, config->dropout, error);
    if (status == STATUS_OK)
        status = open_params(policy, config, error);
    if (status == STATUS_OK)
        status = open_learning(policy, config, error);
    if (status != STATUS_OK)
        goto fail;
    status = backend->ops->policy_open != NULL ? open_launches(policy, config, error)
                                               : open_fused(policy, config, error);
    if (status == STATUS_OK)
        status = warm_up(policy, error);
    if (status != STATUS_OK)
        goto fail;
    *out = policy;
    return STATUS_OK;
fail:
    policy_free(policy);
    return status;
}

void policy_free(struct policy *policy)
{
    if (policy == NULL)
        return;
    if (policy->rows != NULL)
        policy->backend->ops->policy_close(policy->backend, policy->rows);
    policy_batch_free(policy->batch);
    tape_free(policy->tape);
    gradients_free(policy->gradients);
    optimizer_free(policy->optimizer);
    params_free(policy->params);
    mlp_free(policy->mlp);
    free(policy->packed);
    free(policy->gradient);
    free(policy);
}
