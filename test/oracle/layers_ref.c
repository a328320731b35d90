/* The oracle of a chain of dense layers. Written for reading beside the formulas in kernels/policy/layers.h.
 */
#include "test/oracle/layers_ref.h"

#include <math.h>
#include <string.h>

/* A layer of the chain; its bias follows its weight. */
struct place {
    uint32_t inputs, outputs;
    const double *weight;
    size_t offset;
};

static struct place place_of(const struct layers_shape *shape, const double *parameters, uint32_t layer)
{
    struct place place = {.outputs = shape->inputs};
    size_t used = 0;
    for (uint32_t l = 0; l <= layer; l++) {
        place.offset = used;
        place.inputs = place.outputs;
        place.outputs = l < shape->layers ? shape->width[l] : shape->outputs;
        used += (size_t)(place.inputs + 1) * place.outputs;
    }
    place.weight = parameters + place.offset;
    return place;
}

enum function { IDENTITY, TANH, RELU };

static enum function function_of(const struct layers_shape *shape, uint32_t layer)
{
    if (layer == shape->layers && shape->last == LAYERS_LINEAR)
        return IDENTITY;
    if (layer == shape->layers && shape->last == LAYERS_TANH)
        return TANH;
    return shape->activation == DENSE_TANH ? TANH : RELU;
}

static double apply(enum function function, double x)
{
    return function == TANH ? tanh(x) : function == IDENTITY || x > 0 ? x : 0;
}

/* By the function's result. */
static double slope(enum function function, double y)
{
    return function == TANH ? 1 - y * y : function == IDENTITY || y > 0;
}

void layers_ref_forward(const struct layers_shape *shape, const double *parameters, const double *x,
                        struct layers_ref_row *out)
{
    for (uint32_t l = 0; l <= shape->layers; l++) {
        const struct place place = place_of(shape, parameters, l);
        const double *from = l == 0 ? x : out->of[l - 1],
                     *bias = place.weight + (size_t)place.inputs * place.outputs;
        for (uint32_t j = 0; j < place.outputs; j++) {
            double sum = bias[j];
            for (uint32_t i = 0; i < place.inputs; i++)
                sum += place.weight[(size_t)j * place.inputs + i] * from[i];
            out->of[l][j] = apply(function_of(shape, l), sum);
        }
    }
}

/* Adds layer `place`'s part: `pull` (outputs) is dL/d of its sums, `from` (inputs) what it has read. */
static void layer_backward(const struct place *place, const double *from, const double *pull,
                           double *gradient, double *before)
{
    for (uint32_t j = 0; j < place->outputs; j++) {
        const size_t row = (size_t)j * place->inputs;
        for (uint32_t i = 0; i < place->inputs && gradient != NULL; i++)
            gradient[place->offset + row + i] += pull[j] * from[i];
        for (uint32_t i = 0; i < place->inputs && before != NULL; i++)
            before[i] += pull[j] * place->weight[row + i];
        if (gradient != NULL)
            gradient[place->offset + (size_t)place->inputs * place->outputs + j] += pull[j];
    }
}

void layers_ref_backward(const struct layers_shape *shape, const double *parameters, const double *x,
                         const struct layers_ref_row *row, const double *pull, double *gradient, double *dx)
{
    double own[LAYERS_REF_WIDEST];
    memcpy(own, pull, shape->outputs * sizeof *own);
    for (uint32_t l = shape->layers + 1; l-- > 0;) {
        const struct place place = place_of(shape, parameters, l);
        double before[LAYERS_REF_WIDEST] = {0};
        for (uint32_t j = 0; j < place.outputs; j++)
            own[j] *= slope(function_of(shape, l), row->of[l][j]);
        layer_backward(&place, l == 0 ? x : row->of[l - 1], own, gradient, l == 0 ? dx : before);
        memcpy(own, before, sizeof own);
    }
}
