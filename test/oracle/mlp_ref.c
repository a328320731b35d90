/* The oracle of the policy's rows. Written for reading beside the formulas in kernels/policy/mlp.h. */
#include "test/oracle/mlp_ref.h"

#include <math.h>
#include <stdbool.h>

static bool kept(const uint16_t *mask, uint32_t unit)
{
    return mask[unit / 16] >> unit % 16 & 1;
}

void mlp_ref_draw(const struct mlp_shape *shape, double dropout, const struct rng_key *key, uint16_t *mask)
{
    const long threshold = lrint(65536 * dropout);
    for (uint32_t word = 0; word < mlp_mask_words(shape); word++)
        mask[word] = 0;
    for (uint32_t j = 0; j < shape->hidden; j++) {
        uint32_t group = j / 128, v = j % 128 / 16, words[4];
        rng_block(key, RNG_DROPOUT, 16 * group + j % 16, words);
        long bits = words[v / 2] >> 16 * (v % 2) & 0xffff;
        if (bits >= threshold)
            mask[j / 16] |= (uint16_t)(1u << j % 16);
    }
}

/* affine1, dropout, relu. hidden: (hidden). */
static void hidden_layer(const struct mlp_shape *shape, double dropout, const double *parameters,
                         const float *x, const uint16_t *mask, double *hidden)
{
    const double *w1 = parameters, *b1 = w1 + (size_t)shape->hidden * shape->inputs;
    for (uint32_t j = 0; j < shape->hidden; j++) {
        double a = b1[j];
        for (uint32_t i = 0; i < shape->inputs; i++)
            a += w1[(size_t)j * shape->inputs + i] * (double)x[i];
        hidden[j] = kept(mask, j) && a > 0 ? a / (1 - dropout) : 0;
    }
}

/* affine2, log-softmax. */
static void output_layer(const struct mlp_shape *shape, const double *parameters, const double *hidden,
                         double *log_probabilities)
{
    const double *w2 = parameters + (size_t)shape->hidden * (shape->inputs + 1);
    const double *b2 = w2 + (size_t)shape->actions * shape->hidden;
    double highest = -INFINITY, total = 0;
    for (uint32_t a = 0; a < shape->actions; a++) {
        double z = b2[a];
        for (uint32_t j = 0; j < shape->hidden; j++)
            z += w2[(size_t)a * shape->hidden + j] * hidden[j];
        log_probabilities[a] = z;
        highest = fmax(highest, z);
    }
    for (uint32_t a = 0; a < shape->actions; a++)
        total += exp(log_probabilities[a] - highest);
    for (uint32_t a = 0; a < shape->actions; a++)
        log_probabilities[a] -= highest + log(total);
}

void mlp_ref_forward(const struct mlp_shape *shape, double dropout, const double *parameters, const float *x,
                     const uint16_t *mask, double *probabilities, double *log_probabilities)
{
    double hidden[MLP_HIDDEN_MAX], logs[MLP_ACTIONS_MAX];
    hidden_layer(shape, dropout, parameters, x, mask, hidden);
    output_layer(shape, parameters, hidden, logs);
    for (uint32_t a = 0; a < shape->actions; a++) {
        if (probabilities != NULL)
            probabilities[a] = exp(logs[a]);
        if (log_probabilities != NULL)
            log_probabilities[a] = logs[a];
    }
}

uint32_t mlp_ref_sample(const struct mlp_shape *shape, const double *probabilities, const struct rng_key *key,
                        double *margin)
{
    uint32_t words[4], action = shape->actions - 1;
    rng_block(key, RNG_ACTION, 0, words);
    double uniform = (double)rng_uniform_float(words[0]), cumulated = 0, nearest = 1;
    for (uint32_t a = 0; a + 1 < shape->actions; a++) {
        cumulated += probabilities[a];
        nearest = fmin(nearest, fabs(uniform - cumulated));
        if (uniform < cumulated && action == shape->actions - 1)
            action = a;
    }
    if (margin != NULL)
        *margin = nearest;
    return action;
}

/* Adds one row's share; dz is dL/dz. */
static void backward_row(const struct mlp_shape *shape, double dropout, const double *parameters,
                         const float *x, const double *hidden, const double *dz, double *gradient)
{
    const size_t b1 = (size_t)shape->hidden * shape->inputs, w2 = b1 + shape->hidden;
    const size_t b2 = w2 + (size_t)shape->actions * shape->hidden;
    for (uint32_t a = 0; a < shape->actions; a++)
        gradient[b2 + a] += dz[a];
    for (uint32_t j = 0; j < shape->hidden; j++) {
        double pull = 0;
        for (uint32_t a = 0; a < shape->actions; a++) {
            size_t weight = w2 + (size_t)a * shape->hidden + j;
            gradient[weight] += dz[a] * hidden[j];
            pull += dz[a] * parameters[weight];
        }
        if (hidden[j] <= 0)
            continue;
        pull /= 1 - dropout;
        gradient[b1 + j] += pull;
        for (uint32_t i = 0; i < shape->inputs; i++)
            gradient[(size_t)j * shape->inputs + i] += pull * (double)x[i];
    }
}

double mlp_ref_gradient(const struct mlp_shape *shape, double dropout, const double *parameters,
                        const struct mlp_batch *batch, const float *coefficient, double *gradient)
{
    double hidden[MLP_HIDDEN_MAX], logs[MLP_ACTIONS_MAX], dz[MLP_ACTIONS_MAX], loss = 0;
    for (uint32_t r = 0; r < batch->count; r++) {
        size_t row = batch->row[r];
        const float *x = batch->observations + row * shape->inputs;
        hidden_layer(shape, dropout, parameters, x, batch->masks + row * mlp_mask_words(shape), hidden);
        output_layer(shape, parameters, hidden, logs);
        loss -= (double)coefficient[r] * logs[batch->actions[row]];
        if (gradient == NULL)
            continue;
        for (uint32_t a = 0; a < shape->actions; a++)
            dz[a] = (double)coefficient[r] * (exp(logs[a]) - ((int32_t)a == batch->actions[row]));
        backward_row(shape, dropout, parameters, x, hidden, dz, gradient);
    }
    return loss;
}
