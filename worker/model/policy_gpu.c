/* The tutorial's policy on a GPU: parameters in the backend's memory, one captured launch to act (launch_new
 * in kernels/backend.h), operations of the tape to learn (worker/model/policy_batch.h). Only observations,
 * keys, actions and returns are copied between host and device. */
#include "kernels/params/optim.h"
#include "worker/model/policy_batch.h"
#include "worker/model/policy_config.h"
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

static struct mlp_batch batch_of(const struct policy_rows *rows)
{
    return (struct mlp_batch){.count = rows->count,
                              .row = rows->row,
                              .observations = rows->observations,
                              .masks = rows->dropout,
                              .actions = rows->actions};
}

static enum status gpu_act(struct policy *policy, const struct policy_rows *rows, uint32_t episode,
                           const uint32_t *environment, const uint32_t *step, struct error *error)
{
    const struct policy_gpu *gpu = policy->network;
    const struct mlp_batch batch = batch_of(rows);
    return gpu->backend->ops->launch_run(gpu->backend, gpu->launch, &batch, episode, environment, step,
                                         error);
}

static enum status gpu_choose(struct policy *policy, const struct policy_rows *rows, struct error *error)
{
    (void)policy;
    (void)rows;
    return error_set(error, STATUS_UNAVAILABLE, "this policy chooses its actions on the CPU only");
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

static enum status gpu_learn(struct policy *policy, const struct policy_rows *rows, const float *coefficient,
                             uint32_t episode, double *loss, policy_progress *progress, void *context,
                             struct error *error)
{
    struct policy_gpu *gpu = policy->network;
    const struct mlp_batch batch = batch_of(rows);
    double found = 0;
    enum status status = walk_tape(gpu, &batch, coefficient, episode, &found, progress, context, error);
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

static enum status gpu_save(struct policy *policy, struct policy_values *values, struct error *error)
{
    const struct policy_gpu *gpu = policy->network;
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

static enum status gpu_restore(struct policy *policy, const struct policy_values *values, struct error *error)
{
    struct policy_gpu *gpu = policy->network;
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
    const struct mlp_shape shape = policy_mlp_shape(config);
    enum status status = params_new(&gpu->params, gpu->backend, error);
    if (status == STATUS_OK)
        status = policy_network_register(&gpu->network, &shape, gpu->params, error);
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
    struct policy_launch_settings settings = {.shape = policy_mlp_shape(config),
                                              .dropout = config->dropout,
                                              .seed = config->seed,
                                              .rows_max = config->environments,
                                              .fixed = config->one_size};
    for (uint32_t i = 0; i < POLICY_PARAMETERS; i++)
        settings.parameter[i] = gpu->network.parameter[i]->tensor;
    return gpu->backend->ops->launch_new(gpu->backend, &settings, &gpu->launch, error);
}

static void gpu_free(struct policy *policy)
{
    struct policy_gpu *gpu = policy->network;
    if (gpu == NULL)
        return;
    if (gpu->launch != NULL)
        gpu->backend->ops->launch_free(gpu->backend, gpu->launch);
    policy_batch_free(gpu->batch);
    tape_free(gpu->tape);
    gradients_free(gpu->gradients);
    optimizer_free(gpu->optimizer);
    params_free(gpu->params);
    free(gpu);
}

static enum status gpu_open(struct policy *policy, const struct policy_config *config,
                            struct backend *backend, struct error *error)
{
    struct policy_gpu *gpu = policy->network = calloc(1, sizeof *gpu);
    if (gpu == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    const struct mlp_shape shape = policy_mlp_shape(config);
    gpu->backend = backend;
    policy->dropout_words = mlp_mask_words(&shape);
    enum status status = open_params(gpu, config, error);
    if (status == STATUS_OK)
        status = open_learning(gpu, config, error);
    if (status == STATUS_OK)
        status = open_launch(gpu, config, error);
    return status == STATUS_OK ? warm_up(gpu, error) : status;
}

const struct policy_kind policy_gpu_kind = {.open = gpu_open,
                                            .free = gpu_free,
                                            .act = gpu_act,
                                            .choose = gpu_choose,
                                            .learn = gpu_learn,
                                            .save = gpu_save,
                                            .restore = gpu_restore};
