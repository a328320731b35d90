/* The policy on a GPU: parameters in the backend's memory, one captured launch to act (launch_new in
 * kernels/backend.h), operations of the tape to learn (worker/model/policy_batch.h). Only observations, keys,
 * actions and returns are copied between host and device. */
#include "kernels/params/optim.h"
#include "kernels/policy/mlp.h"
#include "worker/model/policy_batch.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_network.h"

#include <stdlib.h>

struct policy_gpu {
    struct backend *backend;
    struct params *params;
    struct gradients *gradients;
    struct optimizer *optimizer;
    struct tape *tape;
    struct policy_network network;
    struct policy_launch *launch; // by which it acts
    struct policy_batch *batch;   // the rows to learn from
};

enum status policy_gpu_act(struct policy_gpu *gpu, const struct mlp_batch *batch, uint32_t episode,
                           const uint32_t *environment, const uint32_t *step, struct error *error)
{
    return gpu->backend->ops->launch_run(gpu->backend, gpu->launch, batch, episode, environment, step, error);
}

/* ---- learning ---- */

/* Loss and gradients of the batch; no update. */
static enum status walk_tape(struct policy_gpu *gpu, const struct mlp_batch *batch, const float *coefficient,
                             uint32_t episode, double *loss, policy_progress *progress, void *context,
                             struct error *error)
{
    tape_begin(gpu->tape, TAPE_TRAIN, gpu->gradients);
    tape_on_progress(gpu->tape, progress, context);
    struct variable *out =
        policy_batch_loss(gpu->batch, &gpu->network, gpu->tape, batch, coefficient, episode);
    tape_loss(gpu->tape, out, loss);
    tape_backward(gpu->tape, out);
    return tape_finish(gpu->tape, error);
}

enum status policy_gpu_learn(struct policy_gpu *gpu, const struct mlp_batch *batch, const float *coefficient,
                             uint32_t episode, double *loss, policy_progress *progress, void *context,
                             struct error *error)
{
    double found = 0;
    enum status status = walk_tape(gpu, batch, coefficient, episode, &found, progress, context, error);
    if (status == STATUS_OK) // a NaN in a parameter would stay
        status = gradients_check(gpu->gradients, error);
    if (status == STATUS_OK)
        status = optimizer_step(gpu->optimizer, gpu->gradients, error);
    if (status == STATUS_OK)
        *loss = found;
    return status;
}

/* Steps over no rows, so that the tape has all the memory it will need before the first episode, and the GPU
 * has loaded its kernels. */
static enum status warm_up(struct policy_gpu *gpu, struct error *error)
{
    const struct mlp_batch nothing = {0};
    enum status status = STATUS_OK;
    for (int step = 0; step < 2 && status == STATUS_OK; step++) {
        double loss;
        status = walk_tape(gpu, &nothing, NULL, 0, &loss, NULL, NULL, error);
    }
    return status;
}

/* ---- values ---- */

/* The optimizer's moment that an array of policy_values is. */
static struct gradients *moment_of(const struct policy_gpu *gpu, int array)
{
    return optimizer_moment(gpu->optimizer, array == POLICY_SECOND_MOMENT);
}

enum status policy_gpu_save(struct policy_gpu *gpu, struct policy_values *values, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++)
        for (int array = 0; array < POLICY_ARRAYS && status == STATUS_OK; array++) {
            const struct parameter *parameter = gpu->network.parameter[i];
            float *to = policy_values_at(values, i, array);
            status = array == POLICY_VALUES
                         ? params_read(gpu->params, parameter, DTYPE_F32, to, error)
                         : gradients_read(moment_of(gpu, array), parameter, DTYPE_F32, to, error);
        }
    values->steps = optimizer_steps(gpu->optimizer);
    return status;
}

enum status policy_gpu_restore(struct policy_gpu *gpu, const struct policy_values *values,
                               struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++)
        for (int array = 0; array < POLICY_ARRAYS && status == STATUS_OK; array++) {
            struct parameter *parameter = gpu->network.parameter[i];
            const float *from = policy_values_at(values, i, array);
            status = array == POLICY_VALUES
                         ? params_write(gpu->params, parameter, DTYPE_F32, from, error)
                         : gradients_write(moment_of(gpu, array), parameter, DTYPE_F32, from, error);
        }
    optimizer_steps_set(gpu->optimizer, values->steps);
    return status;
}

/* ---- opening ---- */

static enum status open_params(struct policy_gpu *gpu, const struct policy_config *config,
                               struct error *error)
{
    enum status status = params_new(&gpu->params, gpu->backend, error);
    if (status == STATUS_OK)
        status = policy_network_register(&gpu->network, &config->shape, gpu->params, error);
    return status == STATUS_OK ? params_build(gpu->params, config->seed, error) : status;
}

static enum status open_learning(struct policy_gpu *gpu, const struct policy_config *config,
                                 struct error *error)
{
    const struct optimizer_settings settings = {.kind = OPTIMIZER_ADAM, .adam = config->adam};
    enum status status = optimizer_new(&gpu->optimizer, &settings, gpu->params, error);
    if (status == STATUS_OK)
        status = gradients_new(&gpu->gradients, gpu->params, error);
    if (status == STATUS_OK)
        status = tape_new(&gpu->tape, gpu->backend, error);
    return status == STATUS_OK ? policy_batch_new(&gpu->batch, config, error) : status;
}

static enum status open_launch(struct policy_gpu *gpu, const struct policy_config *config,
                               struct error *error)
{
    struct policy_launch_settings settings = {.shape = config->shape,
                                              .dropout = config->dropout,
                                              .seed = config->seed,
                                              .rows_max = config->environments,
                                              .fixed = config->one_size};
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++)
        settings.parameter[i] = gpu->network.parameter[i]->tensor;
    return gpu->backend->ops->launch_new(gpu->backend, &settings, &gpu->launch, error);
}

void policy_gpu_free(struct policy_gpu *gpu)
{
    if (gpu->launch != NULL)
        gpu->backend->ops->launch_free(gpu->backend, gpu->launch);
    policy_batch_free(gpu->batch);
    tape_free(gpu->tape);
    gradients_free(gpu->gradients);
    optimizer_free(gpu->optimizer);
    params_free(gpu->params);
    free(gpu);
}

enum status policy_gpu_new(struct policy_gpu **out, const struct policy_config *config,
                           struct backend *backend, struct error *error)
{
    enum status status = mlp_check_shape(&config->shape, config->dropout, error);
    if (status != STATUS_OK)
        return status;
    struct policy_gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    gpu->backend = backend;
    status = open_params(gpu, config, error);
    if (status == STATUS_OK)
        status = open_learning(gpu, config, error);
    if (status == STATUS_OK)
        status = open_launch(gpu, config, error);
    if (status == STATUS_OK)
        status = warm_up(gpu, error);
    if (status != STATUS_OK) {
        policy_gpu_free(gpu);
        return status;
    }
    *out = gpu;
    return STATUS_OK;
}
