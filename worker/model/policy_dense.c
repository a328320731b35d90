/* Dense layers on the CPU (kernels/policy/dense.h). */
#include "kernels/policy/dense.h"

#include "worker/model/policy_flat.h"

#include <math.h>
#include <stdlib.h>

_Static_assert((int)POLICY_CHUNK_ROWS == (int)DENSE_CHUNK_ROWS, "a chunk of rows is one of the kernel's");

struct policy_dense {
    struct dense *dense;      // holds a packed copy of `values`
    struct dense_work **work; // (works) one for each slot; the first one also acts
    uint32_t works;
    const float *values; // the policy's parameters
    const struct dense_normalizer *normalizer;
    bool bytes, gaussian;
    uint64_t seed;
    uint32_t noise_steps; // struct dense_draw's
    float log_probability[POLICY_CHUNK_ROWS], pull[POLICY_CHUNK_ROWS], value[POLICY_CHUNK_ROWS]; // of a chunk
};

static struct dense_batch batch_of(const struct policy_dense *own, const struct policy_rows *rows)
{
    return (struct dense_batch){.count = rows->count,
                                .row = rows->row,
                                .observations = own->bytes ? NULL : rows->observations,
                                .bytes = own->bytes ? rows->observations : NULL,
                                .normalizer = own->normalizer,
                                .mask = rows->allowed,
                                .choices = own->gaussian ? NULL : rows->actions,
                                .actions = own->gaussian ? rows->actions : NULL};
}

/* ---- acting ---- */

/* Numbers in the batch's order to where the rows have theirs. */
static void scatter(const struct policy_rows *rows, const float *from, float *to)
{
    for (uint32_t i = 0; i < rows->count; i++)
        to[rows->row[i]] = from[i];
}

static void dense_network_act(void *network, const struct policy_rows *rows, uint32_t episode,
                              const uint32_t *environment, const uint32_t *step)
{
    struct policy_dense *own = network;
    const bool keeps = rows->values != NULL;
    const struct dense_results results = {.log_probability = keeps ? own->log_probability : NULL,
                                          .value = keeps ? own->value : NULL};
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        const struct dense_batch batch = batch_of(own, &chunk);
        const struct dense_draw draw = {.seed = own->seed,
                                        .episode = episode,
                                        .environment = environment + first,
                                        .step = step + first,
                                        .noise_steps = own->noise_steps};
        dense_act(own->dense, own->work[0], &batch, &draw, &results);
        if (!keeps)
            continue;
        scatter(&chunk, own->log_probability, rows->log_probabilities);
        scatter(&chunk, own->value, rows->values);
    }
}

static void dense_network_estimate(void *network, const struct policy_rows *chunk)
{
    struct policy_dense *own = network;
    const struct dense_batch batch = batch_of(own, chunk);
    dense_value(own->dense, own->work[0], &batch, own->value);
    scatter(chunk, own->value, chunk->values);
}

static bool dense_network_choose(void *network, const struct policy_rows *chunk)
{
    struct policy_dense *own = network;
    const struct dense_batch batch = batch_of(own, chunk);
    dense_act(own->dense, own->work[0], &batch, NULL,
              &(struct dense_results){.log_probability = own->log_probability});
    for (uint32_t i = 0; i < chunk->count; i++)
        if (!isfinite(own->log_probability[i]))
            return false;
    return true;
}

/* ---- learning ---- */

static void dense_network_load(void *network)
{
    const struct policy_dense *own = network;
    dense_load(own->dense, own->values);
}

static void dense_network_load_parameter(void *network, uint32_t parameter)
{
    const struct policy_dense *own = network;
    dense_load_parameter(own->dense, own->values, parameter);
}

static double dense_network_gradient(void *network, const struct policy_rows *chunk, const float *coefficient,
                                     float *gradient)
{
    struct policy_dense *own = network;
    const struct dense_batch batch = batch_of(own, chunk);
    double loss = 0;
    dense_evaluate(own->dense, own->work[0], &batch,
                   &(struct dense_results){.log_probability = own->log_probability});
    for (uint32_t i = 0; i < chunk->count; i++) {
        own->pull[i] = -coefficient[i];
        loss -= (double)coefficient[i] * (double)own->log_probability[i];
    }
    dense_gradient(own->dense, own->work[0], &(struct dense_pulls){.log_probability = own->pull}, gradient,
                   true);
    return loss;
}

static void dense_network_evaluate(void *network, uint32_t slot, const struct policy_rows *chunk,
                                   float *log_probability, float *entropy, float *value)
{
    const struct policy_dense *own = network;
    const struct dense_batch batch = batch_of(own, chunk);
    dense_evaluate(
        own->dense, own->work[slot], &batch,
        &(struct dense_results){.log_probability = log_probability, .entropy = entropy, .value = value});
}

static void dense_network_pull(void *network, uint32_t slot, const struct surrogate_pulls *pulls,
                               float *gradient, bool adds)
{
    const struct policy_dense *own = network;
    dense_gradient(own->dense, own->work[slot],
                   &(struct dense_pulls){.log_probability = pulls->log_probability,
                                         .entropy = pulls->entropy,
                                         .value = pulls->value},
                   gradient, adds);
}

/* ---- opening ---- */

static enum status dense_network_open(void **network, const struct policy_config *config,
                                      const struct dense_normalizer *normalizer, float *values,
                                      uint32_t slots, struct error *error)
{
    const struct dense_shape shape = policy_dense_shape(config);
    const struct dense_initial initial = {.orthogonal = config->orthogonal,
                                          .gain_hidden = sqrt(2),
                                          .gain_policy = 0.01,
                                          .gain_value = 1,
                                          .log_sigma = config->log_std_init};
    struct policy_dense *own = *network = calloc(1, sizeof *own);
    if (own == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    own->values = values;
    own->normalizer = normalizer;
    own->bytes = config->observation.dtype == ENVIRONMENT_U8;
    own->gaussian = shape.gaussian;
    own->seed = config->seed;
    own->noise_steps = config->noise_steps;
    own->work = calloc(slots, sizeof *own->work);
    if (own->work == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    enum status status = dense_new(&own->dense, &shape, error);
    for (; own->works < slots && status == STATUS_OK; own->works++)
        status = dense_work_new(&own->work[own->works], own->dense, error);
    if (status == STATUS_OK)
        status = dense_begin(values, &shape, &initial, config->seed, error);
    if (status == STATUS_OK)
        dense_load(own->dense, values);
    return status;
}

static void dense_network_free(void *network)
{
    struct policy_dense *own = network;
    for (uint32_t i = 0; i < own->works; i++)
        dense_work_free(own->work[i]);
    free(own->work);
    dense_free(own->dense);
    free(own);
}

const struct flat_network policy_dense_network = {.open = dense_network_open,
                                                  .free = dense_network_free,
                                                  .load = dense_network_load,
                                                  .load_parameter = dense_network_load_parameter,
                                                  .act = dense_network_act,
                                                  .choose = dense_network_choose,
                                                  .estimate = dense_network_estimate,
                                                  .gradient = dense_network_gradient,
                                                  .evaluate = dense_network_evaluate,
                                                  .pull = dense_network_pull};
