/* The oracle of a general policy's rows. Written for reading beside the formulas in kernels/policy/dense.h.
 */
#include "test/oracle/dense_ref.h"

#include "test/oracle/layers_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the networks ----
 *
 * Each is a chain of hidden layers and a head, a chain of one layer. */

/* A chain, and where its parameters begin; `inputs` 0: there is none. */
struct chain {
    struct layers_shape shape;
    size_t offset;
};

struct network {
    struct chain hidden, head;
};

static struct chain chain_next(size_t *used, struct layers_shape shape)
{
    const struct chain chain = {shape, *used};
    *used += layers_parameters(&shape);
    return chain;
}

/* What the head of network n reads: units of the last hidden layer, or the inputs. */
static uint32_t last_width(const struct dense_shape *shape, int n)
{
    const bool own = n == 1 && !shape->shared;
    const uint32_t layers = own ? shape->value_layers : shape->layers;
    return layers == 0 ? shape->inputs : (own ? shape->value_width : shape->width)[layers - 1];
}

/* The hidden layers that network n has of its own. */
static struct layers_shape hidden_shape(const struct dense_shape *shape, int n)
{
    struct layers_shape hidden = {.inputs = shape->inputs,
                                  .outputs = last_width(shape, n),
                                  .layers = (n == 0 ? shape->layers : shape->value_layers) - 1,
                                  .activation = shape->activation,
                                  .last = LAYERS_ACTIVATED};
    memcpy(hidden.width, n == 0 ? shape->width : shape->value_width, sizeof hidden.width);
    return hidden;
}

/* In the order that dense.h gives: log_std, the policy's hidden layers, the value network's, the policy's
 * head, the value network's. Shared hidden layers have one place. */
static void networks_of(const struct dense_shape *shape, struct network networks[2])
{
    const int count = shape->value ? 2 : 1;
    size_t used = shape->gaussian ? shape->components : 0;
    memset(networks, 0, 2 * sizeof *networks);
    if (dense_explores(shape))
        used *= last_width(shape, 0);
    for (int n = 0; n < count; n++)
        if (n == 1 && shape->shared)
            networks[n].hidden = networks[0].hidden;
        else if ((n == 0 ? shape->layers : shape->value_layers) > 0)
            networks[n].hidden = chain_next(&used, hidden_shape(shape, n));
    for (int n = 0; n < count; n++)
        networks[n].head =
            chain_next(&used, (struct layers_shape){.inputs = last_width(shape, n),
                                                    .outputs = n == 0 ? dense_outputs(shape) : 1});
}

/* ---- forward ---- */

/* What a network makes of a row. */
struct activations {
    double x[DENSE_INPUTS_MAX];
    struct layers_ref_row hidden, head;
};

/* What the head has read. */
static const double *features_of(const struct network *network, const struct activations *of)
{
    return network->hidden.shape.inputs > 0 ? of->hidden.of[network->hidden.shape.layers] : of->x;
}

static void network_forward(const struct network *network, const double *parameters, const float *x,
                            uint32_t inputs, struct activations *to)
{
    const struct chain *hidden = &network->hidden, *head = &network->head;
    for (uint32_t i = 0; i < inputs; i++)
        to->x[i] = (double)x[i];
    if (hidden->shape.inputs > 0)
        layers_ref_forward(&hidden->shape, parameters + hidden->offset, to->x, &to->hidden);
    layers_ref_forward(&head->shape, parameters + head->offset, features_of(network, to), &to->head);
}

/* A component's probabilities, its part of the log-probability, and its entropy, which is returned. */
static double evaluate_component(const double *z, const uint8_t *mask, uint32_t choices, uint32_t chosen,
                                 double *p, double *log_probability)
{
    double highest = -INFINITY, total = 0, entropy = 0;
    for (uint32_t a = 0; a < choices; a++)
        if (mask == NULL || mask[a])
            highest = fmax(highest, z[a]);
    for (uint32_t a = 0; a < choices; a++)
        total += p[a] = mask == NULL || mask[a] ? exp(z[a] - highest) : 0;
    for (uint32_t a = 0; a < choices; a++) {
        p[a] /= total;
        entropy -= p[a] > 0 ? p[a] * (z[a] - highest - log(total)) : 0;
    }
    *log_probability += mask == NULL || mask[chosen] ? z[chosen] - highest - log(total) : -INFINITY;
    return entropy;
}

/* Component d's variance over the features h. */
static double variance_of(const struct dense_shape *shape, const double *log_std, const double *h, uint32_t d)
{
    double sum = 1e-6;
    for (uint32_t f = 0; f < last_width(shape, 0); f++)
        sum += h[f] * h[f] * exp(2 * log_std[(size_t)f * shape->components + d]);
    return sum;
}

static void evaluate_exploring(const struct dense_shape *shape, const double *parameters,
                               const float *actions, struct dense_ref_row *out)
{
    for (uint32_t d = 0; d < shape->components; d++) {
        const double variance = variance_of(shape, parameters, out->h, d), x = (double)actions[d] - out->z[d];
        out->log_probability += -x * x / variance / 2 - log(2 * M_PI * variance) / 2;
        out->entropy += log(2 * M_PI * M_E * variance) / 2;
    }
}

static void evaluate_head(const struct dense_shape *shape, const double *parameters,
                          const struct dense_batch *batch, uint32_t row, struct dense_ref_row *out)
{
    const size_t first = (size_t)row * shape->components;
    const uint8_t *mask = batch->mask == NULL ? NULL : batch->mask + (size_t)row * dense_outputs(shape);
    out->log_probability = out->entropy = 0;
    for (uint32_t c = 0, offset = 0; !shape->gaussian && c < shape->components; offset += shape->choices[c++])
        out->entropy +=
            evaluate_component(out->z + offset, mask == NULL ? NULL : mask + offset, shape->choices[c],
                               (uint32_t)batch->choices[first + c], out->p + offset, &out->log_probability);
    if (dense_explores(shape)) {
        evaluate_exploring(shape, parameters, batch->actions + first, out);
        return;
    }
    for (uint32_t d = 0; shape->gaussian && d < shape->components; d++) {
        const double t = ((double)batch->actions[first + d] - out->z[d]) / exp(parameters[d]);
        out->log_probability += -t * t / 2 - parameters[d] - log(2 * M_PI) / 2;
        out->entropy += parameters[d] + log(2 * M_PI * M_E) / 2;
    }
}

static void evaluate_row(const struct dense_shape *shape, const double *parameters,
                         const struct dense_batch *batch, uint32_t row, struct activations to[2],
                         struct dense_ref_row *out)
{
    struct network networks[2];
    const float *x = batch->observations + (size_t)row * shape->inputs;
    networks_of(shape, networks);
    for (int n = 0; n < (shape->value ? 2 : 1); n++)
        network_forward(&networks[n], parameters, x, shape->inputs, &to[n]);
    memcpy(out->z, to[0].head.of[0], dense_outputs(shape) * sizeof *out->z);
    if (dense_explores(shape))
        memcpy(out->h, features_of(&networks[0], &to[0]), last_width(shape, 0) * sizeof *out->h);
    out->value = shape->value ? to[1].head.of[0][0] : 0;
    evaluate_head(shape, parameters, batch, row, out);
}

void dense_ref_evaluate(const struct dense_shape *shape, const double *parameters,
                        const struct dense_batch *batch, uint32_t row, struct dense_ref_row *out)
{
    static struct activations activations[2];
    evaluate_row(shape, parameters, batch, row, activations, out);
}

/* ---- draws ---- */

uint32_t dense_ref_choice(const struct dense_shape *shape, const struct dense_ref_row *out,
                          const struct rng_key *key, uint32_t c, double *margin)
{
    uint32_t words[4], offset = 0, chosen = UINT32_MAX, last = 0;
    for (uint32_t i = 0; i < c; i++)
        offset += shape->choices[i];
    rng_block(key, RNG_ACTION, c, words);
    const double uniform = (double)rng_uniform_float(words[0]);
    double cumulated = 0;
    *margin = 1;
    for (uint32_t a = 0; a < shape->choices[c]; a++) {
        if (out->p[offset + a] <= 0)
            continue;
        if (cumulated > 0) // the border between this choice and the one before
            *margin = fmin(*margin, fabs(uniform - cumulated));
        cumulated += out->p[offset + a];
        last = a;
        if (uniform < cumulated && chosen == UINT32_MAX)
            chosen = a;
    }
    return chosen == UINT32_MAX ? last : chosen;
}

/* Number i of the block's four normal draws. */
static double normal_of(const struct rng_key *key, enum rng_stream stream, uint32_t block, uint32_t i)
{
    uint32_t words[4];
    rng_block(key, stream, block, words);
    const uint32_t *pair = words + i / 2 * 2;
    const double u = ((pair[0] >> 1) + 0.5) * 0x1p-31, angle = 2 * M_PI * (pair[1] * 0x1p-32);
    return sqrt(-2 * log(u)) * (i % 2 == 0 ? cos(angle) : sin(angle));
}

double dense_ref_action(const struct dense_shape *shape, const double *parameters,
                        const struct dense_ref_row *out, const struct rng_key *key, uint32_t d)
{
    const uint32_t features = last_width(shape, 0), blocks = (features + 3) / 4;
    double noise = 0;
    if (!dense_explores(shape))
        return out->z[d] + exp(parameters[d]) * normal_of(key, RNG_ACTION, d / 4, d % 4);
    for (uint32_t f = 0; f < features; f++)
        noise += out->h[f] * exp(parameters[(size_t)f * shape->components + d]) *
                 normal_of(key, RNG_NOISE, d * blocks + f / 4, f % 4);
    return out->z[d] + noise;
}

/* ---- backward ---- */

/* Adds one row's part; pull (outputs of the head) is dL/dz. */
static void network_backward(const struct network *network, const double *parameters,
                             const struct activations *of, const double *pull, double *gradient)
{
    const struct chain *hidden = &network->hidden, *head = &network->head;
    double before[LAYERS_REF_WIDEST] = {0};
    layers_ref_backward(&head->shape, parameters + head->offset, features_of(network, of), &of->head, pull,
                        gradient + head->offset, hidden->shape.inputs > 0 ? before : NULL);
    if (hidden->shape.inputs > 0)
        layers_ref_backward(&hidden->shape, parameters + hidden->offset, of->x, &of->hidden, before,
                            gradient + hidden->offset, NULL);
}

/* dL/dz of the row's head; adds to the gradient of log_std. */
static void pull_head(const struct dense_shape *shape, const double *parameters,
                      const struct dense_batch *batch, uint32_t row, const struct dense_ref_row *out,
                      double of_log_probability, double of_entropy, double *pull, double *gradient)
{
    const size_t first = (size_t)row * shape->components;
    for (uint32_t c = 0, offset = 0; !shape->gaussian && c < shape->components;
         offset += shape->choices[c++]) {
        double entropy = 0;
        for (uint32_t a = 0; a < shape->choices[c]; a++)
            entropy -= out->p[offset + a] > 0 ? out->p[offset + a] * log(out->p[offset + a]) : 0;
        for (uint32_t a = 0; a < shape->choices[c]; a++) {
            const double p = out->p[offset + a], chosen = (uint32_t)batch->choices[first + c] == a;
            pull[offset + a] =
                of_log_probability * (chosen - p) - (p > 0 ? of_entropy * p * (log(p) + entropy) : 0);
        }
    }
    for (uint32_t d = 0; dense_explores(shape) && d < shape->components; d++) {
        const double variance = variance_of(shape, parameters, out->h, d);
        const double x = (double)batch->actions[first + d] - out->z[d];
        pull[d] = of_log_probability * x / variance;
        for (uint32_t f = 0; f < last_width(shape, 0); f++) {
            const size_t at = (size_t)f * shape->components + d;
            gradient[at] += (of_log_probability * (x * x / variance - 1) + of_entropy) / variance *
                            out->h[f] * out->h[f] * exp(2 * parameters[at]);
        }
    }
    for (uint32_t d = 0; shape->gaussian && !dense_explores(shape) && d < shape->components; d++) {
        const double sigma = exp(parameters[d]), t = ((double)batch->actions[first + d] - out->z[d]) / sigma;
        pull[d] = of_log_probability * t / sigma;
        gradient[d] += of_log_probability * (t * t - 1) + of_entropy;
    }
}

static double pull_of(const float *pulls, uint32_t i)
{
    return pulls == NULL ? 0 : (double)pulls[i];
}

double dense_ref_gradient(const struct dense_shape *shape, const double *parameters,
                          const struct dense_batch *batch, const struct dense_pulls *pulls, double *gradient)
{
    static struct activations activations[2];
    static struct dense_ref_row out;
    struct network networks[2];
    double loss = 0;
    networks_of(shape, networks);
    for (uint32_t i = 0; i < batch->count; i++) {
        const double of_log_probability = pull_of(pulls->log_probability, i),
                     of_entropy = pull_of(pulls->entropy, i), of_value = pull_of(pulls->value, i);
        evaluate_row(shape, parameters, batch, batch->row[i], activations, &out);
        loss += of_log_probability * out.log_probability + of_entropy * out.entropy + of_value * out.value;
        if (gradient == NULL)
            continue;
        double pull[LAYERS_REF_WIDEST] = {0};
        pull_head(shape, parameters, batch, batch->row[i], &out, of_log_probability, of_entropy, pull,
                  gradient);
        network_backward(&networks[0], parameters, &activations[0], pull, gradient);
        pull[0] = of_value;
        if (shape->value)
            network_backward(&networks[1], parameters, &activations[1], pull, gradient);
    }
    return loss;
}
