/* The bounds of a general policy's shape. Pure functions. */
#include "kernels/policy/dense_shape.h"

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
