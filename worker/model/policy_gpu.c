/* The tutorial's policy on a GPU: parameters in the backend's memory, one captured launch to act (launch_new
 * in kernels/backend.h), operations of the tape to learn (policy_batch.h). Only observations, keys, actions
 * and returns are copied between host and device. */
#include "worker/model/policy_batch.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_learner.h"

#include <stdlib.h>

struct policy_gpu {
    struct policy_learner learner;
    struct backend *backend;
    struct policy_launch *launch; // by which it acts
    struct policy_batch *batch;   // the rows to learn from
};

static enum status gpu_act(void *self, const struct policy_rows *rows, uint32_t episode,
                           const uint32_t *environment, const uint32_t *step, struct error *error)
{
    const struct policy_gpu *gpu = self;
    const struct mlp_batch batch = policy_mlp_batch(rows);
    return gpu->backend->ops->launch_run(gpu->backend, gpu->launch, &batch, episode, environment, step,
                                         error);
}

static enum status gpu_choose(void *self, const struct policy_rows *rows, struct error *error)
{
    (void)self;
    (void)rows;
    return error_set(error, STATUS_UNAVAILABLE, "this policy chooses its actions on the CPU only");
}

/* ---- learning ---- */

/* Loss and gradients of the batch; no update. */
static enum status walk_tape(struct policy_gpu *gpu, const struct mlp_batch *batch, const float *coefficient,
                             uint32_t episode, double *loss, policy_progress *progress, void *context,
                             struct error *error)
{
    tape_begin(gpu->learner.tape, TAPE_TRAIN, gpu->learner.gradients);
    tape_on_progress(gpu->learner.tape, progress, context);
    struct variable *out =
        policy_batch_loss(gpu->batch, gpu->learner.params, gpu->learner.tape, batch, coefficient, episode);
    tape_loss(gpu->learner.tape, out, loss);
    tape_backward(gpu->learner.tape, out);
    return tape_finish(gpu->learner.tape, error);
}

static enum status gpu_learn(void *self, const struct policy_rows *rows, const float *coefficient,
                             uint32_t episode, double *loss, policy_progress *progress, void *context,
                             struct error *error)
{
    struct policy_gpu *gpu = self;
    const struct mlp_batch batch = policy_mlp_batch(rows);
    double found = 0;
    enum status status = walk_tape(gpu, &batch, coefficient, episode, &found, progress, context, error);
    if (status == STATUS_OK) // a NaN in a parameter would stay
        status = gradients_check(gpu->learner.gradients, error);
    if (status == STATUS_OK)
        status = optimizer_step(gpu->learner.optimizer, gpu->learner.gradients, error);
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

static enum status gpu_save(void *self, struct policy_values *values, struct error *error)
{
    const struct policy_gpu *gpu = self;
    return policy_values_take(values, gpu->learner.params, gpu->learner.optimizer, error);
}

static enum status gpu_restore(void *self, const struct policy_values *values, struct error *error)
{
    struct policy_gpu *gpu = self;
    return policy_values_give(values, gpu->learner.params, gpu->learner.optimizer, error);
}

/* ---- opening ---- */

static enum status open_launch(struct policy_gpu *gpu, const struct policy_config *config,
                               struct error *error)
{
    struct policy_launch_settings settings = {.shape = policy_mlp_shape(config),
                                              .dropout = config->dropout,
                                              .seed = config->seed,
                                              .rows_max = config->environments,
                                              .fixed = config->one_size};
    for (uint32_t i = 0; i < params_count(gpu->learner.params); i++)
        settings.parameter[i] = params_at(gpu->learner.params, i)->tensor;
    return gpu->backend->ops->launch_new(gpu->backend, &settings, &gpu->launch, error);
}

static void gpu_free(void *self)
{
    struct policy_gpu *gpu = self;
    if (gpu->launch != NULL)
        gpu->backend->ops->launch_free(gpu->backend, gpu->launch);
    policy_batch_free(gpu->batch);
    policy_learner_close(&gpu->learner);
    free(gpu);
}

static enum status gpu_open(void **self, const struct policy_config *config, struct backend *backend,
                            const struct dense_normalizer *normalizer, struct error *error)
{
    struct policy_gpu *gpu = *self = calloc(1, sizeof *gpu);
    (void)normalizer;
    if (gpu == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    gpu->backend = backend;
    enum status status = policy_learner_open(&gpu->learner, config, backend, error);
    if (status == STATUS_OK)
        status = policy_batch_new(&gpu->batch, config, error);
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
