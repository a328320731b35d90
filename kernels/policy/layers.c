/* A chain of dense layers: its weights, in the order in which the products read them, and the forward and
 * backward of a chunk of rows as products (kernels/lanes/product_lanes.h). Activations are dense_lanes.c's.
 *
 * Layer by layer, all rows of a chunk. */
#include "kernels/policy/layers.h"

#include "kernels/policy/panels.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct layer {
    struct layers_place place;
    bool bends; // its sums pass through `activation`
    enum dense_activation activation;
    float *begin; // (blocks of outputs, 16) the bias
    struct panels panels;
};

struct layers {
    struct layers_shape shape;
    struct layer layer[DENSE_LAYERS_MAX + 1]; // (layers + 1)
    const struct dense_lanes *lanes;
    product_function *product;
    float *memory; // all of the above
};

struct layers_work {
    const struct layers *layers;
    uint32_t rows;                                    // last passed forward
    struct dense_matrix inputs;                       // of layers_forward
    struct dense_matrix output[DENSE_LAYERS_MAX + 1]; // (rows, outputs) of each layer
    float *pull[2];          // (rows, width) dL/d of a hidden layer, and of the one before it
    struct dense_matrix end; // (rows, outputs of the first layer) dL/d of its sums
    float *zeros;            // as many as a layer that pulls has inputs
    struct summing summing;
    float *memory; // all of the above
};

/* ---- the shape ---- */

struct layers_place layers_place(const struct layers_shape *shape, uint32_t layer)
{
    struct layers_place place = {.inputs = shape->inputs};
    for (uint32_t l = 0;; l++) {
        place.outputs = l < shape->layers ? shape->width[l] : shape->outputs;
        place.bias = place.weight + (size_t)place.inputs * place.outputs;
        if (l == layer)
            return place;
        place.weight = place.bias + place.outputs;
        place.inputs = place.outputs;
    }
}

size_t layers_parameters(const struct layers_shape *shape)
{
    const struct layers_place last = layers_place(shape, shape->layers);
    return last.bias + last.outputs;
}

/* ---- the weights ---- */

static void place_layers(struct places *places, void *of)
{
    struct layers *layers = of;
    const struct layers_shape *shape = &layers->shape;
    for (uint32_t l = 0; l <= shape->layers; l++) {
        struct layer *layer = &layers->layer[l];
        places_floats(places, &layer->begin, layer->place.outputs);
        panels_place(places, &layer->panels, layer->place.outputs, layer->place.inputs,
                     !shape->forward_only && (l > 0 || shape->pulls_inputs));
    }
}

static void describe_layers(struct layers *layers)
{
    const struct layers_shape *shape = &layers->shape;
    for (uint32_t l = 0; l <= shape->layers; l++)
        layers->layer[l] = (struct layer){
            .place = layers_place(shape, l),
            .bends = l < shape->layers || shape->last != LAYERS_LINEAR,
            .activation = l == shape->layers && shape->last == LAYERS_TANH ? DENSE_TANH : shape->activation};
}

static void assert_bounds(const struct layers_shape *shape)
{
    assert(shape->inputs >= 1 && shape->inputs <= DENSE_INPUTS_MAX);
    assert(shape->outputs >= 1 && shape->outputs <= DENSE_OUTPUTS_MAX);
    assert(shape->layers <= DENSE_LAYERS_MAX);
    for (uint32_t l = 0; l < shape->layers; l++)
        assert(shape->width[l] >= 1 && shape->width[l] <= DENSE_WIDTH_MAX);
    (void)shape;
}

enum status layers_new(struct layers **out, const struct layers_shape *shape, struct error *error)
{
    const struct policy_lanes *lanes = policy_lanes_choose();
    struct layers *layers = calloc(1, sizeof *layers);
    assert_bounds(shape);
    if (layers == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy's layers");
    layers->shape = *shape;
    layers->lanes = lanes->dense;
    layers->product = lanes->product;
    describe_layers(layers);
    const enum status status = places_take(&layers->memory, place_layers, layers, "weights", error);
    if (status == STATUS_OK)
        *out = layers;
    else
        layers_free(layers);
    return status;
}

void layers_free(struct layers *layers)
{
    if (layers == NULL)
        return;
    free(layers->memory);
    free(layers);
}

void layers_load_weight(struct layers *layers, uint32_t layer, const float *from)
{
    const struct layer *of = &layers->layer[layer];
    panels_load(&of->panels, from, of->place.outputs, of->place.inputs);
}

void layers_load_bias(struct layers *layers, uint32_t layer, const float *from)
{
    const struct layer *of = &layers->layer[layer];
    memcpy(of->begin, from, of->place.outputs * sizeof *from);
}

void layers_load(struct layers *layers, const float *parameters)
{
    for (uint32_t l = 0; l <= layers->shape.layers; l++) {
        layers_load_weight(layers, l, parameters + layers->layer[l].place.weight);
        layers_load_bias(layers, l, parameters + layers->layer[l].place.bias);
    }
}

/* ---- the workspace ---- */

static void place_backward(struct places *places, struct layers_work *work, const struct layers_shape *shape)
{
    uint32_t widest = 0;
    for (uint32_t l = 0; l < shape->layers; l++)
        widest = shape->width[l] > widest ? shape->width[l] : widest;
    for (uint32_t p = 0; p < 2 && p < shape->layers; p++)
        places_floats(places, &work->pull[p], DENSE_CHUNK_ROWS * product_stride(widest));
    if (shape->pulls_inputs && shape->inputs > widest)
        widest = shape->inputs;
    places_floats(places, &work->zeros, widest);
    summing_place(places, &work->summing);
}

static void place_work(struct places *places, void *of)
{
    struct layers_work *work = of;
    const struct layers *layers = work->layers;
    for (uint32_t l = 0; l <= layers->shape.layers; l++)
        places_matrix(places, &work->output[l], DENSE_CHUNK_ROWS, layers->layer[l].place.outputs);
    if (!layers->shape.forward_only)
        place_backward(places, work, &layers->shape);
}

enum status layers_work_new(struct layers_work **out, const struct layers *layers, struct error *error)
{
    struct layers_work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy's rows");
    work->layers = layers;
    const enum status status = places_take(&work->memory, place_work, work, "rows", error);
    if (status != STATUS_OK) {
        free(work);
        return status;
    }
    if (!layers->shape.forward_only)
        summing_begin(&work->summing, layers->product, layers->lanes);
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

/* ---- forward ---- */

/* to = x W^T + b of a layer's inputs [first, first + width), which x holds. */
static void layer_forward(const struct layers *layers, struct layers_work *work, uint32_t l,
                          struct dense_matrix x, uint32_t first, uint32_t width)
{
    const struct layer *layer = &layers->layer[l];
    panels_multiply(layers->product, work->rows, x, width,
                    layer->panels.forward + (size_t)first * PRODUCT_BLOCK,
                    (size_t)layer->place.inputs * PRODUCT_BLOCK, layer->place.outputs,
                    first == 0 ? layer->begin : NULL, work->output[l]);
}

void layers_read(const struct layers *layers, struct layers_work *work, uint32_t rows, struct dense_matrix x,
                 uint32_t first, uint32_t width)
{
    assert(rows <= DENSE_CHUNK_ROWS);
    work->rows = rows;
    layer_forward(layers, work, 0, x, first, width);
}

struct dense_matrix layers_finish(const struct layers *layers, struct layers_work *work)
{
    for (uint32_t l = 0;; l++) {
        const struct layer *layer = &layers->layer[l];
        if (layer->bends)
            layers->lanes->activate(layer->activation, work->output[l], work->rows,
                                    product_blocks(layer->place.outputs));
        if (l == layers->shape.layers)
            return work->output[l];
        layer_forward(layers, work, l + 1, work->output[l], 0, layer->place.outputs);
    }
}

struct dense_matrix layers_forward(const struct layers *layers, struct layers_work *work, uint32_t rows,
                                   struct dense_matrix inputs)
{
    const uint32_t all = layers->shape.inputs;
    work->inputs = inputs;
    for (uint32_t first = 0; first < all; first += LAYERS_PIECE)
        layers_read(layers, work, rows, (struct dense_matrix){inputs.at + first, inputs.stride}, first,
                    all - first < LAYERS_PIECE ? all - first : LAYERS_PIECE);
    return layers_finish(layers, work);
}

/* ---- backward ---- */

/* to = dL/d of what layer l reads, by the pull at its sums; or, `more`, adds that to `to`. */
static void pull_back(const struct layers *layers, const struct layers_work *work, uint32_t l,
                      struct dense_matrix pull, struct dense_matrix to, bool more)
{
    const struct layers_place *place = &layers->layer[l].place;
    panels_multiply(layers->product, work->rows, pull, place->outputs, layers->layer[l].panels.backward,
                    (size_t)place->outputs * PRODUCT_BLOCK, place->inputs, more ? NULL : work->zeros, to);
}

void layers_pull(const struct layers *layers, struct layers_work *work, struct dense_matrix pull,
                 float *gradient, bool adds)
{
    assert(!layers->shape.forward_only);
    for (uint32_t l = layers->shape.layers;; l--) {
        const struct layer *layer = &layers->layer[l];
        const uint32_t inputs = layer->place.inputs, outputs = layer->place.outputs;
        if (layer->bends)
            layers->lanes->slope(layer->activation, pull, work->output[l], work->rows,
                                 product_blocks(outputs));
        if (gradient != NULL)
            summing_add_columns(&work->summing, work->rows, pull, outputs, gradient + layer->place.bias,
                                adds);
        if (l == 0)
            break;
        if (gradient != NULL)
            summing_add_weight(&work->summing, work->rows, pull, outputs, work->output[l - 1], inputs,
                               gradient + layer->place.weight, inputs, adds);
        const struct dense_matrix to = {work->pull[(l - 1) % 2], product_stride(inputs)};
        pull_back(layers, work, l, pull, to, false);
        pull = to;
    }
    work->end = pull;
}

void layers_pull_weight(const struct layers *layers, const struct layers_work *work, struct dense_matrix x,
                        uint32_t first, uint32_t width, float *gradient, bool adds)
{
    const struct layers_place *place = &layers->layer[0].place;
    summing_add_weight(&work->summing, work->rows, work->end, place->outputs, x, width,
                       gradient + place->weight + first, place->inputs, adds);
}

void layers_pull_inputs(const struct layers *layers, const struct layers_work *work, struct dense_matrix to,
                        bool more)
{
    assert(layers->shape.pulls_inputs);
    pull_back(layers, work, 0, work->end, to, more);
}

void layers_keep(const struct layers *layers, struct layers_work *work, uint32_t count, const uint32_t *row)
{
    for (uint32_t l = 0; l <= layers->shape.layers; l++) {
        const struct dense_matrix output = work->output[l];
        const size_t bytes = layers->layer[l].place.outputs * sizeof *output.at;
        for (uint32_t i = 0; i < count; i++)
            if (row[i] != i) /* and so is above it */
                memcpy(output.at + i * output.stride, output.at + row[i] * output.stride, bytes);
    }
    work->rows = count;
}

void layers_backward(const struct layers *layers, struct layers_work *work, struct dense_matrix pull,
                     float *gradient, bool adds, struct dense_matrix to)
{
    layers_pull(layers, work, pull, gradient, adds);
    if (gradient != NULL)
        layers_pull_weight(layers, work, work->inputs, 0, layers->shape.inputs, gradient, adds);
    if (to.at != NULL)
        layers_pull_inputs(layers, work, to, false);
}
