/* Dense layers on the CPU: kernels/policy/dense.h over flat arrays. */
#include "kernels/policy/dense.h"
#include "kernels/policy/dense_parameters.h"
#include "worker/model/policy_config.h"
#include "worker/model/policy_internal.h"

#include <math.h>
#include <stdlib.h>

_Static_assert((int)POLICY_CHUNK_ROWS == (int)DENSE_CHUNK_ROWS, "a chunk of rows is one of the kernel's");

struct policy_dense {
    struct dense *dense;      // holds a packed copy of policy->values
    struct dense_work **work; // (works) the first one also acts
    uint32_t works;
    uint32_t noise_steps; // struct dense_draw's
    float log_probability[POLICY_CHUNK_ROWS], pull[POLICY_CHUNK_ROWS], value[POLICY_CHUNK_ROWS]; // of a chunk
};

static struct dense_batch batch_of(const struct policy *policy, const struct policy_rows *rows)
{
    const bool gaussian = policy->low != NULL;
    return (struct dense_batch){.count = rows->count,
                                .row = rows->row,
                                .observations = policy->bytes ? NULL : rows->observations,
                                .bytes = policy->bytes ? rows->observations : NULL,
                                .normalizer = policy_normalizer(policy),
                                .mask = rows->allowed,
                                .choices = gaussian ? NULL : rows->actions,
                                .actions = gaussian ? rows->actions : NULL};
}

/* ---- acting ---- */

/* Numbers in the batch's order to where the rows have theirs. */
static void scatter(const struct policy_rows *rows, const float *from, float *to)
{
    for (uint32_t i = 0; i < rows->count; i++)
        to[rows->row[i]] = from[i];
}

static enum status dense_kind_act(struct policy *policy, const struct policy_rows *rows, uint32_t episode,
                                  const uint32_t *environment, const uint32_t *step, struct error *error)
{
    struct policy_dense *network = policy->network;
    const bool keeps = rows->values != NULL;
    const struct dense_results results = {.log_probability = keeps ? network->log_probability : NULL,
                                          .value = keeps ? network->value : NULL};
    (void)error;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        const struct dense_batch batch = batch_of(policy, &chunk);
        const struct dense_draw draw = {.seed = policy->seed,
                                        .episode = episode,
                                        .environment = environment + first,
                                        .step = step + first,
                                        .noise_steps = network->noise_steps};
        dense_act(network->dense, network->work[0], &batch, &draw, &results);
        if (!keeps)
            continue;
        scatter(&chunk, network->log_probability, rows->log_probabilities);
        scatter(&chunk, network->value, rows->values);
    }
    return STATUS_OK;
}

static enum status dense_kind_estimate(struct policy *policy, const struct policy_rows *rows,
                                       struct error *error)
{
    struct policy_dense *network = policy->network;
    (void)error;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        const struct dense_batch batch = batch_of(policy, &chunk);
        dense_value(network->dense, network->work[0], &batch, network->value);
        scatter(&chunk, network->value, rows->values);
    }
    return STATUS_OK;
}

static enum status dense_kind_choose(struct policy *policy, const struct policy_rows *rows,
                                     struct error *error)
{
    struct policy_dense *network = policy->network;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        const struct dense_batch batch = batch_of(policy, &chunk);
        dense_act(network->dense, network->work[0], &batch, NULL,
                  &(struct dense_results){.log_probability = network->log_probability});
        for (uint32_t i = 0; i < chunk.count; i++)
            if (!isfinite(network->log_probability[i]))
                return error_set(error, STATUS_CORRUPT, "the probability of an action is not finite");
    }
    return STATUS_OK;
}

/* ---- learning ---- */

static void dense_flat_load(struct policy *policy)
{
    const struct policy_dense *network = policy->network;
    dense_load(network->dense, policy->values);
}

static void dense_flat_load_parameter(struct policy *policy, uint32_t parameter)
{
    const struct policy_dense *network = policy->network;
    dense_load_parameter(network->dense, policy->values, parameter);
}

static double dense_flat_gradient(struct policy *policy, const struct policy_rows *rows,
                                  const float *coefficient, float *gradient)
{
    struct policy_dense *network = policy->network;
    const struct dense_batch batch = batch_of(policy, rows);
    double loss = 0;
    dense_evaluate(network->dense, network->work[0], &batch,
                   &(struct dense_results){.log_probability = network->log_probability});
    for (uint32_t i = 0; i < rows->count; i++) {
        network->pull[i] = -coefficient[i];
        loss -= (double)coefficient[i] * (double)network->log_probability[i];
    }
    dense_gradient(network->dense, network->work[0], &(struct dense_pulls){.log_probability = network->pull},
                   gradient, true);
    return loss;
}

static void dense_flat_evaluate(struct policy *policy, uint32_t slot, const struct policy_rows *rows,
                                float *log_probability, float *entropy, float *value)
{
    const struct policy_dense *network = policy->network;
    const struct dense_batch batch = batch_of(policy, rows);
    dense_evaluate(
        network->dense, network->work[slot], &batch,
        &(struct dense_results){.log_probability = log_probability, .entropy = entropy, .value = value});
}

static void dense_flat_pull(struct policy *policy, uint32_t slot, const struct surrogate_pulls *pulls,
                            float *gradient, bool adds)
{
    const struct policy_dense *network = policy->network;
    dense_gradient(network->dense, network->work[slot],
                   &(struct dense_pulls){.log_probability = pulls->log_probability,
                                         .entropy = pulls->entropy,
                                         .value = pulls->value},
                   gradient, adds);
}

/* ---- opening ---- */

static enum status begin_values(struct policy *policy, const struct policy_config *config,
                                const struct dense_shape *shape, struct error *error)
{
    const struct dense_initial initial = {.orthogonal = config->orthogonal,
                                          .gain_hidden = sqrt(2),
                                          .gain_policy = 0.01,
                                          .gain_value = 1,
                                          .log_sigma = config->log_std_init};
    return dense_begin(policy->values, shape, &initial, policy->seed, error);
}

/* One for each slot. */
static enum status open_works(struct policy *policy, struct error *error)
{
    struct policy_dense *network = policy->network;
    const uint32_t count = policy->networks * (policy->wave_chunks > 0 ? policy->wave_chunks : 1);
    enum status status = STATUS_OK;
    network->work = calloc(count, sizeof *network->work);
    if (network->work == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    for (; network->works < count && status == STATUS_OK; network->works++)
        status = dense_work_new(&network->work[network->works], network->dense, error);
    return status;
}

static enum status dense_kind_open(struct policy *policy, const struct policy_config *config,
                                   struct backend *backend, struct error *error)
{
    static const struct policy_flat flat = {.load = dense_flat_load,
                                            .load_parameter = dense_flat_load_parameter,
                                            .gradient = dense_flat_gradient,
                                            .evaluate = dense_flat_evaluate,
                                            .pull = dense_flat_pull};
    const struct dense_shape shape = policy_dense_shape(config);
    struct policy_dense *network = policy->network = calloc(1, sizeof *network);
    (void)backend;
    if (network == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    network->noise_steps = config->noise_steps;
    enum status status = dense_new(&network->dense, &shape, error);
    if (status == STATUS_OK)
        status = policy_flat_open(policy, config, &flat, error);
    if (status == STATUS_OK)
        status = open_works(policy, error);
    if (status == STATUS_OK)
        status = begin_values(policy, config, &shape, error);
    if (status == STATUS_OK)
        dense_flat_load(policy);
    return status;
}

static void dense_kind_free(struct policy *policy)
{
    struct policy_dense *network = policy->network;
    policy_flat_close(policy);
    if (network == NULL)
        return;
    for (uint32_t i = 0; i < network->works; i++)
        dense_work_free(network->work[i]);
    free(network->work);
    dense_free(network->dense);
    free(network);
}

const struct policy_kind policy_dense_kind = {.open = dense_kind_open,
                                              .free = dense_kind_free,
                                              .act = dense_kind_act,
                                              .choose = dense_kind_choose,
                                              .learn = policy_flat_learn,
                                              .estimate = dense_kind_estimate,
                                              .deviation = policy_flat_deviation,
                                              .improve = policy_flat_improve,
                                              .save = policy_flat_save,
                                              .restore = policy_flat_restore};
