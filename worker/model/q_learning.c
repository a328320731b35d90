/* The arrays, networks, rows and draws of the policies that learn from a replay buffer. */
#include "worker/model/q_learning.h"

#include "kernels/base/rng.h"
#include "kernels/norm.h"
#include "worker/environment/environment_spec.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

enum status q_open(struct q_learning *p, const struct policy_config *config, struct error *error)
{
    p->config = *config;
    p->inputs = (uint32_t)environment_space_elements(&config->observation);
    p->components = policy_components(config);
    p->noise = calloc((size_t)POLICY_CHUNK_ROWS * p->components, sizeof *p->noise);
    if (p->noise == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the noise of %u numbers", p->components);
    p->normals = normal_choose();
    const enum status status = q_matrix(p, &p->input, p->inputs + p->components, error);
    return status == STATUS_OK ? policy_arrays_open(&p->arrays, config, error) : status;
}

void q_close(void *self)
{
    struct q_learning *p = self;
    for (const struct q_network *n = p->network; n < p->network + Q_NETWORKS_MAX; n++) {
        layers_work_free(n->work);
        layers_work_free(n->target_work);
        layers_free(n->layers);
        layers_free(n->target);
    }
    for (uint32_t i = 0; i < p->matrices; i++)
        free(p->matrix[i]);
    policy_arrays_close(&p->arrays);
    free(p->noise);
}

enum status q_matrix(struct q_learning *p, struct dense_matrix *matrix, uint32_t columns, struct error *error)
{
    matrix->stride = product_stride(columns);
    const size_t bytes = POLICY_CHUNK_ROWS * matrix->stride * sizeof *matrix->at;
    matrix->at = aligned_alloc(64, bytes);
    if (matrix->at == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %d rows of %u numbers", POLICY_CHUNK_ROWS,
                         columns);
    assert(p->matrices < Q_MATRICES_MAX);
    p->matrix[p->matrices++] = memset(matrix->at, 0, bytes);
    return STATUS_OK;
}

/* ---- networks ---- */

static size_t offset_of(const struct q_learning *p, const char *name)
{
    uint32_t number = 0;
    while (number < p->arrays.parameter_count && strcmp(p->arrays.parameters[number].name, name) != 0)
        number++;
    assert(number < p->arrays.parameter_count);
    return p->arrays.parameters[number].offset;
}

struct layers_shape q_shape(const struct q_learning *p, uint32_t inputs, uint32_t layers,
                            const uint32_t width[])
{
    struct layers_shape shape = {.inputs = inputs,
                                 .layers = layers,
                                 .activation = p->config.activation == POLICY_TANH ? DENSE_TANH : DENSE_RELU};
    memcpy(shape.width, width, layers * sizeof *width);
    return shape;
}

/* Computes with the values and the target's values as they are now. */
static void load(const struct q_network *n, const struct q_learning *p)
{
    layers_load(n->layers, p->arrays.values + n->offset);
    if (n->target != NULL)
        layers_load(n->target, p->arrays.values + n->target_offset);
}

enum status q_network_open(struct q_network **out, struct q_learning *p, const struct layers_shape *shape,
                           const char *first, const char *target, struct error *error)
{
    assert(p->networks < Q_NETWORKS_MAX);
    struct layers_shape still = *shape;
    struct q_network *n = *out = &p->network[p->networks];
    still.forward_only = true;
    still.pulls_inputs = false;
    n->offset = offset_of(p, first);
    n->count = layers_parameters(shape);
    enum status status = layers_new(&n->layers, shape, error);
    if (status == STATUS_OK)
        status = layers_work_new(&n->work, n->layers, error);
    if (status == STATUS_OK && target != NULL) {
        n->target_offset = offset_of(p, target);
        status = layers_new(&n->target, &still, error);
        if (status == STATUS_OK)
            status = layers_work_new(&n->target_work, n->target, error);
    }
    if (status != STATUS_OK)
        return status;
    load(n, p);
    p->networks++;
    return STATUS_OK;
}

struct dense_matrix q_network_forward(const struct q_network *n, const struct q_learning *p, uint32_t count,
                                      bool of_target)
{
    return layers_forward(of_target ? n->target : n->layers, of_target ? n->target_work : n->work, count,
                          p->input);
}

void q_network_backward(const struct q_network *n, const struct q_learning *p, struct dense_matrix pull,
                        bool adds)
{
    layers_backward(n->layers, n->work, pull, p->arrays.gradient + n->offset, adds, (struct dense_matrix){0});
}

void q_step(const struct q_learning *p, size_t offset, size_t count, double lr, uint64_t step, float scale)
{
    struct adam_settings settings = p->config.adam;
    struct adam_factors factors;
    settings.lr = lr;
    adam_factors(&settings, step, &factors);
    policy_arrays_step(&p->arrays, &factors, offset, count, scale);
}

void q_network_step(const struct q_network *n, const struct q_learning *p, double lr, uint64_t step,
                    float scale)
{
    q_step(p, n->offset, n->count, lr, step, scale);
    layers_load(n->layers, p->arrays.values + n->offset);
}

void q_follow(const struct q_learning *p)
{
    const float part = (float)p->config.q.tau;
    for (const struct q_network *n = p->network; n < p->network + p->networks; n++) {
        const float *from = p->arrays.values + n->offset;
        float *to = p->arrays.values + n->target_offset;
        if (n->target == NULL)
            continue;
        if (part >= 1)
            memcpy(to, from, n->count * sizeof *to);
        for (size_t i = 0; i < n->count && part < 1; i++)
            to[i] += part * (from[i] - to[i]);
        layers_load(n->target, to);
    }
}

/* ---- what acting computes with ---- */

size_t q_acting_floats(const struct q_learning *p)
{
    const struct policy_arrays *arrays = &p->arrays;
    uint32_t number = 0;
    while (number < arrays->parameter_count && !arrays->parameters[number].is_target &&
           strncmp(arrays->parameters[number].name, "critic.", 7) != 0)
        number++;
    return number < arrays->parameter_count ? arrays->parameters[number].offset : arrays->count;
}

void q_keep_acting(const struct q_learning *p, float *out)
{
    memcpy(out, p->arrays.values, q_acting_floats(p) * sizeof *out);
}

void q_load_acting(struct q_learning *p, const float *kept)
{
    const size_t floats = q_acting_floats(p);
    memcpy(p->arrays.values, kept, floats * sizeof *kept);
    for (const struct q_network *n = p->network; n < p->network + p->networks; n++)
        if (n->offset < floats)
            load(n, p);
}

/* ---- rows ---- */

static void read_row(const struct q_learning *p, const void *observations, size_t row, float *to)
{
    const size_t at = row * p->inputs;
    if (p->config.observation.dtype != ENVIRONMENT_U8) {
        memcpy(to, (const float *)observations + at, p->inputs * sizeof *to);
        return;
    }
    const uint8_t *from = (const uint8_t *)observations + at;
    for (uint32_t i = 0; i < p->inputs; i++)
        to[i] = (float)from[i] / 255;
}

void q_read_rows(const struct q_learning *p, const struct policy_rows *chunk)
{
    for (uint32_t i = 0; i < chunk->count; i++)
        read_row(p, chunk->observations, chunk->row[i], p->input.at + i * p->input.stride);
}

void q_read_observations(const struct q_learning *p, const struct policy_transitions *batch, bool next,
                         uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        read_row(p, next ? batch->next_observations : batch->observations, first + i,
                 p->input.at + i * p->input.stride);
}

void q_read_actions(const struct q_learning *p, const float *actions, size_t stride, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        memcpy(p->input.at + i * p->input.stride + p->inputs, actions + i * stride,
               p->components * sizeof *actions);
}

bool q_is_finite(struct dense_matrix x, uint32_t rows, uint32_t columns)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < columns; c++)
            if (!isfinite(x.at[r * x.stride + c]))
                return false;
    return true;
}

/* ---- draws ---- */

/* Blocks of RNG_ACTION. A policy's own draws, SAC's, begin at block 0. */
enum { EVEN_BLOCK = 1 << 20, NOISE_BLOCK = 1 << 21 };

void q_learning_noise(const struct q_learning *p, uint32_t which, uint32_t first, uint32_t count)
{
    const struct rng_key key = {.seed = p->config.seed, .step = which, .episode = (uint32_t)p->arrays.steps};
    normal_fill_from(p->normals, p->noise, (uint64_t)first * p->components, count * p->components, &key,
                     RNG_LEARNING, 0);
}

void q_acting_noise(const struct q_learning *p, const struct rng_key *key, float *noise)
{
    normal_fill_from(p->normals, noise, (uint64_t)key->environment * p->components, p->components, key,
                     RNG_ACTION, 0);
}

static void draw_evenly(const struct q_learning *p, const struct rng_key *key, float *action)
{
    uint32_t words[4];
    for (uint32_t c = 0; c < p->components; c++) {
        if (c % 4 == 0)
            rng_block(key, RNG_ACTION, EVEN_BLOCK + c / 4, words);
        action[c] = 2 * rng_uniform_float(words[c % 4]) - 1;
    }
}

/* The next state of Ornstein's and Uhlenbeck's process, with Stable-Baselines3's constants. */
static float go_on(float before, float normal, double deviation)
{
    const double theta = 0.15, dt = 1e-2, root_dt = 0.1;
    return (float)((1 - theta * dt) * (double)before + deviation * root_dt * (double)normal);
}

/* Fills the noise of the row, and the state behind it. */
static void find_noise(const struct q_learning *p, const struct policy_rows *chunk, uint32_t row,
                       const struct rng_key *key, float *noise)
{
    const struct policy_q_config *q = &p->config.q;
    const bool begins = policy_starts_at(chunk, row);
    normal_fill_from(p->normals, noise, (uint64_t)key->environment * p->components, p->components, key,
                     RNG_ACTION, NOISE_BLOCK);
    for (uint32_t c = 0; c < p->components; c++) {
        float *state = chunk->states + (size_t)row * p->components + c;
        if (q->noise == POLICY_NORMAL_NOISE)
            noise[c] = (float)(q->noise_std * (double)noise[c]);
        else
            noise[c] = state[(size_t)chunk->next * p->components] =
                go_on(begins ? 0 : *state, noise[c], q->noise_std);
    }
}

void q_store_action(const struct q_learning *p, const struct policy_rows *chunk, uint32_t i,
                    const float *action, const struct rng_key *key)
{
    float noise[DENSE_COMPONENTS_MAX] = {0};
    const uint32_t row = chunk->row[i];
    float *to = (float *)chunk->actions + (size_t)row * p->components;
    if (p->exploration.is_random)
        draw_evenly(p, key, to);
    else
        memcpy(to, action, p->components * sizeof *to);
    if (!p->exploration.has_noise || p->config.q.noise == POLICY_NO_NOISE)
        return;
    find_noise(p, chunk, row, key, noise);
    for (uint32_t c = 0; c < p->components; c++)
        to[c] = fmaxf(-1, fminf(1, to[c] + noise[c]));
}

bool q_store_chosen(const struct q_learning *p, const struct policy_rows *chunk, struct dense_matrix actions)
{
    for (uint32_t i = 0; i < chunk->count; i++)
        memcpy((float *)chunk->actions + (size_t)chunk->row[i] * p->components,
               actions.at + i * actions.stride, p->components * sizeof *actions.at);
    return q_is_finite(actions, chunk->count, p->components);
}

/* ---- what is not finite ---- */

const char *q_lost_tensor(const struct policy_config *config, const struct policy_transitions *batch)
{
    const size_t seen = batch->count * environment_space_elements(&config->observation);
    const size_t acted = (size_t)batch->count * policy_components(config);
    const bool floats = config->observation.dtype != ENVIRONMENT_U8;
    if (floats && !policy_all_finite(batch->observations, seen))
        return "observations";
    if (floats && !policy_all_finite(batch->next_observations, seen))
        return "next observations";
    if (config->learning != POLICY_DQN && !policy_all_finite(batch->actions, acted))
        return "actions";
    if (!policy_all_finite(batch->rewards, batch->count))
        return "rewards";
    return batch->weights != NULL && !policy_all_finite(batch->weights, batch->count) ? "weights" : NULL;
}

/* "the loss is nan", or what else `what` says, and why; `rest` if neither the batch nor a parameter is why.
 */
static enum status explain(const struct q_learning *p, const struct policy_transitions *batch,
                           const char *what, const char *rest, struct error *error)
{
    const char *tensor = q_lost_tensor(&p->config, batch), *kind = "";
    if (tensor == NULL && (tensor = policy_arrays_lost(&p->arrays, p->arrays.values)) != NULL)
        kind = "parameter ";
    return error_set(error, STATUS_INTERNAL,
                     "the %s; the first tensor that holds a NaN or an infinity is the %s%s", what, kind,
                     tensor != NULL ? tensor : rest);
}

enum status q_explain_loss(const struct q_learning *p, const struct policy_transitions *batch, double loss,
                           struct error *error)
{
    char what[32];
    snprintf(what, sizeof what, "loss is %g", loss);
    return explain(p, batch, what, "values", error);
}

enum status q_check_gradient(const struct q_learning *p, size_t offset, size_t count,
                             const struct policy_transitions *batch, struct error *error)
{
    const float *gradient = p->arrays.gradient;
    const struct policy_parameter *lost = p->arrays.parameters;
    char text[POLICY_NAME_BYTES + 16];
    if (isfinite(norm_of(gradient + offset, count)))
        return STATUS_OK;
    while (lost->offset < offset || (lost->offset + lost->count < offset + count &&
                                     policy_all_finite(gradient + lost->offset, lost->count)))
        lost++;
    snprintf(text, sizeof text, "gradient of %s", lost->name);
    return explain(p, batch, "gradient is not finite", text, error);
}

/* ---- as the table of a kind has them ---- */

void q_explore(void *self, const struct policy_exploration *exploration)
{
    ((struct q_learning *)self)->exploration = *exploration;
}

uint64_t q_fits(const void *self)
{
    return ((const struct q_learning *)self)->arrays.steps;
}

enum status q_restore(void *self, const struct policy_values *values, struct error *error)
{
    struct q_learning *p = self;
    (void)error;
    policy_arrays_restore(&p->arrays, values);
    for (const struct q_network *n = p->network; n < p->network + p->networks; n++)
        load(n, p);
    return STATUS_OK;
}
