/* A chain of dense layers: forward and backward of a chunk of rows. */
#include "kernels/policy/layers.h"

#include "kernels/policy/linear.h"

#include <assert.h>
#include <stdlib.h>

struct layers {
    struct layers_shape shape;
    struct linear layer[DENSE_LAYERS_MAX + 1]; // (layers + 1)
    const struct dense_lanes *lanes;
    product_function *product;
    float *memory; // of the layers
};

struct layers_work {
    uint32_t rows;                                    // last passed forward
    struct dense_matrix inputs;                       // the caller's
    struct dense_matrix output[DENSE_LAYERS_MAX + 1]; // (rows, outputs) of each layer
    float *pull[2];      // (rows, widest) dL/d of a hidden layer, and of the one before
    float *zeros, *ones; // (widest), (rows)
    struct summing summing;
    float *memory; // all of the above
};

/* ---- the weights ---- */

/* The layers' sizes, and where their parameters are. Returns the floats of all. */
static size_t describe(struct linear layer[DENSE_LAYERS_MAX + 1], const struct layers_shape *shape)
{
    size_t at = 0;
    for (uint32_t l = 0; l <= shape->layers; l++) {
        layer[l] = (struct linear){.inputs = l == 0 ? shape->inputs : shape->width[l - 1],
                                   .outputs = l == shape->layers ? shape->outputs : shape->width[l],
                                   .weight = at};
        layer[l].bias = at + (size_t)layer[l].inputs * layer[l].outputs;
        at = layer[l].bias + layer[l].outputs;
    }
    return at;
}

size_t layers_parameters(const struct layers_shape *shape)
{
    struct linear layer[DENSE_LAYERS_MAX + 1];
    return describe(layer, shape);
}

static void place_layers(struct places *places, struct layers *layers)
{
    const struct layers_shape *shape = &layers->shape;
    for (uint32_t l = 0; l <= shape->layers; l++)
        linear_place(places, &layers->layer[l], !shape->forward_only && (l > 0 || shape->pulls_inputs));
}

enum status layers_new(struct layers **out, const struct layers_shape *shape, struct error *error)
{
    struct policy_lanes lanes;
    struct places places = {0};
    assert(shape->inputs >= 1 && shape->inputs <= LAYERS_INPUTS_MAX && shape->outputs >= 1);
    assert(shape->layers <= DENSE_LAYERS_MAX);
    struct layers *layers = calloc(1, sizeof *layers);
    if (layers == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a network");
    layers->shape = *shape;
    describe(layers->layer, shape);
    enum status status = policy_lanes_choose(&lanes, error);
    if (status == STATUS_OK) {
        layers->lanes = lanes.dense;
        layers->product = lanes.product;
        place_layers(&places, layers);
        status = places_take(&places, "weights", error);
    }
    if (status != STATUS_OK) {
        free(layers);
        return status;
    }
    layers->memory = places.memory;
    place_layers(&places, layers);
    *out = layers;
    return STATUS_OK;
}

void layers_free(struct layers *layers)
{
    if (layers == NULL)
        return;
    free(layers->memory);
    free(layers);
}

void layers_load(struct layers *layers, const float *parameters)
{
    for (uint32_t l = 0; l <= layers->shape.layers; l++) {
        linear_load_weight(&layers->layer[l], parameters + layers->layer[l].weight);
        linear_load_bias(&layers->layer[l], parameters + layers->layer[l].bias);
    }
}

/* ---- the workspace ---- */

/* The most inputs or outputs of a layer. */
static uint32_t widest(const struct layers *layers)
{
    uint32_t most = layers->shape.inputs;
    for (uint32_t l = 0; l <= layers->shape.layers; l++)
        most = layers->layer[l].outputs > most ? layers->layer[l].outputs : most;
    return most;
}

/* The most units of a hidden layer; 1 without one. */
static uint32_t widest_hidden(const struct layers *layers)
{
    uint32_t most = 1;
    for (uint32_t l = 0; l < layers->shape.layers; l++)
        most = layers->shape.width[l] > most ? layers->shape.width[l] : most;
    return most;
}

static void place_work(struct places *places, struct layers_work *work, const struct layers *layers)
{
    for (uint32_t l = 0; l <= layers->shape.layers; l++)
        places_matrix(places, &work->output[l], DENSE_CHUNK_ROWS, layers->layer[l].outputs);
    if (layers->shape.forward_only)
        return;
    for (int p = 0; p < 2; p++)
        places_floats(places, &work->pull[p], DENSE_CHUNK_ROWS * product_stride(widest_hidden(layers)));
    places_floats(places, &work->zeros, product_stride(widest(layers)));
    places_floats(places, &work->ones, DENSE_CHUNK_ROWS);
    summing_place(places, &work->summing);
}

enum status layers_work_new(struct layers_work **out, const struct layers *layers, struct error *error)
{
    struct places places = {0};
    struct layers_work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a network's rows");
    place_work(&places, work, layers);
    const enum status status = places_take(&places, "rows", error);
    if (status != STATUS_OK) {
        free(work);
        return status;
    }
    work->memory = places.memory;
    place_work(&places, work, layers);
    work->summing.product = layers->product;
    work->summing.lanes = layers->lanes;
    for (int i = 0; i < DENSE_CHUNK_ROWS && work->ones != NULL; i++)
        work->ones[i] = 1;
    *out = work;
    return STATUS_OK;
}

void layers_work_free(struct layers_work *work)
{
    if (work == NULL)
        return;
    free(work->memory);
    free(work);
}

/* ---- forward and backward ---- */

/* Whether the layer's sums pass through a function, and which. */
static bool is_activated(const struct layers *layers, uint32_t l, enum dense_activation *activation)
{
    const bool is_last = l == layers->shape.layers;
    *activation = is_last && layers->shape.last == LAYERS_TANH ? DENSE_TANH : layers->shape.activation;
    return !is_last || layers->shape.last != LAYERS_LINEAR;
}

struct dense_matrix layers_forward(const struct layers *layers, struct layers_work *work, uint32_t rows,
                                   struct dense_matrix inputs)
{
    enum dense_activation activation;
    assert(rows <= DENSE_CHUNK_ROWS);
    work->rows = rows;
    work->inputs = inputs;
    for (uint32_t l = 0; l <= layers->shape.layers; l++) {
        const struct linear *layer = &layers->layer[l];
        linear_forward(layers->product, layer, l == 0 ? inputs : work->output[l - 1], rows, 0, layer->inputs,
                       work->output[l]);
        if (is_activated(layers, l, &activation))
            layers->lanes->activate(activation, work->output[l], rows, product_blocks(layer->outputs));
    }
    return work->output[layers->shape.layers];
}

/* The layer's gradients, and dL/d of what it has read, by the pull at its outputs. */
static void layer_backward(const struct layers *layers, struct layers_work *work, uint32_t l,
                           struct dense_matrix pull, float *gradient, bool adds, struct dense_matrix to)
{
    const struct linear *layer = &layers->layer[l];
    enum dense_activation activation;
    if (is_activated(layers, l, &activation))
        layers->lanes->slope(activation, pull, work->output[l], work->rows, product_blocks(layer->outputs));
    if (gradient != NULL) {
        linear_add_bias(&work->summing, layer, pull, work->rows, work->ones, gradient, adds);
        linear_add_weight(&work->summing, layer, pull, work->rows,
                          l == 0 ? work->inputs : work->output[l - 1], 0, layer->inputs, gradient, adds);
    }
    if (to.at != NULL)
        linear_pull(layers->product, layer, pull, work->rows, work->zeros, to);
}

void layers_backward(const struct layers *layers, struct layers_work *work, struct dense_matrix pull,
                     float *gradient, bool adds, struct dense_matrix to)
{
    assert(!layers->shape.forward_only && (to.at == NULL || layers->shape.pulls_inputs));
    for (uint32_t l = layers->shape.layers; l > 0; l--) {
        const struct dense_matrix below = {work->pull[l % 2], product_stride(layers->layer[l].inputs)};
        layer_backward(layers, work, l, pull, gradient, adds, below);
        pull = below;
    }
    layer_backward(layers, work, 0, pull, gradient, adds, to);
}
