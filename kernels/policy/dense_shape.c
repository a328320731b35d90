/* The bounds of a policy's shape, the list of its parameters, and their first values. */
#include "kernels/policy/dense_shape.h"

#include "kernels/base/rng.h"
#include "kernels/policy/orthogonal.h"

#include <math.h>
#include <stdio.h>

static enum status check_bound(const char *what, uint64_t value, uint32_t least, uint32_t most,
                               struct error *error)
{
    if (value >= least && value <= most)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "policy: expected %u..%u %s, got %llu", least, most, what,
                     (unsigned long long)value);
}

static enum status check_layers(const struct dense_shape *shape, struct error *error)
{
    const bool needs_layer = shape->gaussian && shape->state_dependent;
    enum status status = check_bound("inputs", shape->inputs, 1, DENSE_INPUTS_MAX, error);
    if (status == STATUS_OK)
        status = check_bound("hidden layers", shape->layers, needs_layer, DENSE_LAYERS_MAX, error);
    for (uint32_t l = 0; l < shape->layers && status == STATUS_OK; l++)
        status = check_bound("units in a hidden layer", shape->width[l], 1, DENSE_WIDTH_MAX, error);
    if (status == STATUS_OK && shape->activation != DENSE_TANH && shape->activation != DENSE_RELU)
        status =
            error_set(error, STATUS_INVALID, "policy: expected the activation tanh or relu, got number %d",
                      (int)shape->activation);
    return status;
}

enum status dense_check_shape(const struct dense_shape *shape, struct error *error)
{
    enum status status = check_layers(shape, error);
    if (status == STATUS_OK)
        status = check_bound("components of an action", shape->components, 1, DENSE_COMPONENTS_MAX, error);
    if (status != STATUS_OK || shape->gaussian)
        return status;
    uint64_t all = 0;
    for (uint32_t c = 0; c < shape->components && status == STATUS_OK; c++) {
        status = check_bound("choices of a component", shape->choices[c], 1, DENSE_OUTPUTS_MAX, error);
        all += shape->choices[c];
    }
    if (status == STATUS_OK)
        status = check_bound("choices of an action's components together", all, 1, DENSE_OUTPUTS_MAX, error);
    return status;
}

uint32_t dense_features(const struct dense_shape *shape)
{
    return shape->layers == 0 ? shape->inputs : shape->width[shape->layers - 1];
}

bool dense_explores(const struct dense_shape *shape)
{
    return shape->gaussian && shape->state_dependent;
}

uint32_t dense_outputs(const struct dense_shape *shape)
{
    if (shape->gaussian)
        return shape->components;
    uint32_t all = 0;
    for (uint32_t c = 0; c < shape->components; c++)
        all += shape->choices[c];
    return all;
}

/* ---- the list of parameters ---- */

struct list {
    struct dense_parameter *out;
    uint32_t count;
    size_t offset;
};

static struct dense_parameter *list_add(struct list *list, enum dense_parameter_kind kind, uint32_t rank,
                                        uint32_t first, uint32_t second)
{
    struct dense_parameter *parameter = &list->out[list->count++];
    *parameter = (struct dense_parameter){
        .kind = kind, .rank = rank, .shape = {first, second}, .offset = list->offset};
    parameter->count = (size_t)first * second;
    list->offset += parameter->count;
    return parameter;
}

/* The weight and bias of one Linear of PyTorch's. */
static void list_linear(struct list *list, enum dense_network_kind network, uint32_t layer, uint32_t outputs,
                        uint32_t inputs, const char *name)
{
    for (int bias = 0; bias < 2; bias++) {
        struct dense_parameter *parameter =
            list_add(list, bias ? DENSE_BIAS : DENSE_WEIGHT, bias ? 1 : 2, outputs, bias ? 1 : inputs);
        parameter->network = network;
        parameter->layer = layer;
        parameter->inputs = inputs;
        snprintf(parameter->name, sizeof parameter->name, "%s.%s", name, bias ? "bias" : "weight");
    }
}

static uint32_t layer_inputs(const struct dense_shape *shape, uint32_t layer)
{
    return layer == 0 ? shape->inputs : shape->width[layer - 1];
}

static void list_hidden(struct list *list, const struct dense_shape *shape, enum dense_network_kind network,
                        const char *of)
{
    for (uint32_t l = 0; l < shape->layers; l++) {
        char name[DENSE_NAME_BYTES - 8];
        snprintf(name, sizeof name, "mlp_extractor.%s.%u", of, 2 * l);
        list_linear(list, network, l, shape->width[l], layer_inputs(shape, l), name);
    }
}

uint32_t dense_parameters(const struct dense_shape *shape, struct dense_parameter out[DENSE_PARAMETERS_MAX])
{
    struct list list = {.out = out};
    const uint32_t last = shape->layers, features = dense_features(shape);
    const bool explores = dense_explores(shape);
    if (shape->gaussian)
        snprintf(list_add(&list, DENSE_LOG_SIGMA, explores ? 2 : 1, explores ? features : shape->components,
                          explores ? shape->components : 1)
                     ->name,
                 DENSE_NAME_BYTES, "log_std");
    list_hidden(&list, shape, DENSE_POLICY, shape->shared ? "shared_net" : "policy_net");
    if (shape->value && !shape->shared)
        list_hidden(&list, shape, DENSE_VALUE, "value_net");
    list_linear(&list, DENSE_POLICY, last, dense_outputs(shape), features, "action_net");
    if (shape->value)
        list_linear(&list, DENSE_VALUE, last, 1, features, "value_net");
    return list.count;
}

/* ---- first values ---- */

static void fill(float *values, size_t count, double value)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)value;
}

static void draw_uniform(float *values, const struct dense_parameter *parameter, uint32_t number,
                         uint64_t seed)
{
    const double bound = 1 / sqrt(parameter->inputs);
    for (size_t e = 0; e < parameter->count; e++)
        values[e] = rng_initial_uniform(seed, number, (uint32_t)e, bound);
}

static double gain_of(const struct dense_shape *shape, const struct dense_parameter *parameter,
                      const struct dense_initial *initial)
{
    if (parameter->layer < shape->layers)
        return initial->gain_hidden;
    return parameter->network == DENSE_POLICY ? initial->gain_policy : initial->gain_value;
}

enum status dense_begin(float *parameters, const struct dense_shape *shape,
                        const struct dense_initial *initial, uint64_t seed, struct error *error)
{
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    const uint32_t count = dense_parameters(shape, list);
    enum status status = STATUS_OK;
    for (uint32_t p = 0; p < count && status == STATUS_OK; p++) {
        const struct dense_parameter *parameter = &list[p];
        float *values = parameters + parameter->offset;
        if (parameter->kind == DENSE_LOG_SIGMA) {
            fill(values, parameter->count, initial->log_sigma);
        } else if (!initial->orthogonal) {
            draw_uniform(values, parameter, p, seed);
        } else if (parameter->kind == DENSE_BIAS) {
            fill(values, parameter->count, 0);
        } else {
            status = orthogonal_draw(values, parameter->shape[0], parameter->shape[1],
                                     gain_of(shape, parameter, initial), seed, p, error);
        }
    }
    return status;
}
