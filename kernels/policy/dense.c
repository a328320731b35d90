/* A policy of dense layers: its weights, in the order in which the products read them, and the forward and
 * backward of a chunk of rows as products (kernels/lanes/product_lanes.h). Activations and heads are
 * dense_lanes.c's.
 *
 * Layer by layer, all rows of a chunk. Observations wider than DENSE_INPUT_BLOCK pass in pieces of so many
 * columns, gathered from their rows; each product takes up where the piece before left off. */
#include "kernels/policy/dense.h"

#include "kernels/lanes/isa.h"
#include "kernels/policy/linear.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Columns of the observations that are multiplied at a time: rows of that many stay in the cache. */
enum { DENSE_INPUT_BLOCK = 256 };

struct dense {
    struct dense_shape shape;
    uint32_t outputs;
    struct linear layer[DENSE_NETWORKS][DENSE_LAYERS_MAX + 1]; // (networks, layers + 1): the head is last
    uint32_t parameter_count;
    struct dense_parameter parameters[DENSE_PARAMETERS_MAX]; // (parameter_count)
    size_t log_sigma;                                        // in the flat array
    struct dense_sigma sigma;
    struct dense_exploration exploration; // where dense_explores
    const struct dense_lanes *lanes;
    product_function *product;
    float *memory; // all of the above
};

struct dense_work {
    struct dense_batch batch;                                         // last evaluated
    struct dense_matrix inputs;                                       // (rows, input block)
    struct dense_matrix output[DENSE_NETWORKS][DENSE_LAYERS_MAX + 1]; // (rows, outputs) of each layer
    struct dense_matrix head_pull[DENSE_NETWORKS]; // (rows, outputs) dL/d of the heads' sums
    float *pull[2];                // (rows, width) dL/d of a hidden layer, and of the one before it
    struct dense_matrix log_sigma; // (rows, components) dL/d log_std
    /* Where dense_explores: the features' squares (rows, features), the variances (rows, components), and a
     * chunk's sums (features, components). */
    struct dense_matrix squares, variance;
    float *exploration_sums;
    struct summing summing;
    float *scratch;                    // struct dense_head's
    float *zeros, *ones;               // (DENSE_OUTPUTS_MAX), (DENSE_CHUNK_ROWS)
    bool adds;                         // dense_gradient's, while it runs
    struct dense_matrix features_pull; // likewise; at NULL: not wanted
    float *memory;                     // all of the above
};

/* ---- the shape ---- */

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

/* Whether network n has layer l, of which the heads are the last. */
static bool dense_has_layer(const struct dense_shape *shape, uint32_t n, uint32_t l)
{
    return n == DENSE_POLICY || (shape->value && (l == shape->layers || !shape->shared));
}

/* ---- the weights ---- */

static void place_deviations(struct places *places, struct dense *dense)
{
    const size_t features = dense_features(&dense->shape), components = dense->shape.components;
    struct dense_exploration *exploration = &dense->exploration;
    places_floats(places, &dense->sigma.sigma, components);
    places_floats(places, &dense->sigma.inverse, components);
    places_floats(places, &dense->sigma.shift, components);
    if (!dense_explores(&dense->shape))
        return;
    places_floats(places, &exploration->sigma, features * components);
    places_floats(places, &exploration->squares, features * components);
    places_floats(places, &exploration->panels, product_stride(dense->shape.components) * features);
    places_floats(places, &exploration->begin, product_stride(dense->shape.components));
}

static void place_dense(struct places *places, struct dense *dense)
{
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++)
        for (uint32_t l = 0; l <= dense->shape.layers; l++)
            if (dense_has_layer(&dense->shape, n, l))
                linear_place(places, &dense->layer[n][l], l > 0 || dense->shape.pulls_inputs);
    place_deviations(places, dense);
}

/* The layers' sizes, and where their parameters are. */
static void describe_layers(struct dense *dense)
{
    dense->parameter_count = dense_parameters(&dense->shape, dense->parameters);
    for (uint32_t p = 0; p < dense->parameter_count; p++) {
        const struct dense_parameter *parameter = &dense->parameters[p];
        struct linear *layer = &dense->layer[parameter->network][parameter->layer];
        if (parameter->kind == DENSE_LOG_SIGMA) {
            dense->log_sigma = parameter->offset;
        } else if (parameter->kind == DENSE_BIAS) {
            layer->bias = parameter->offset;
        } else {
            layer->weight = parameter->offset;
            layer->outputs = parameter->shape[0];
            layer->inputs = parameter->shape[1];
        }
    }
}

enum status policy_lanes_choose(struct policy_lanes *lanes, struct error *error)
{
    static const struct policy_lanes tables[ISA_COUNT] = {
        [ISA_BASELINE] = {&dense_lanes_baseline, &mlp_lanes_baseline, product_baseline},
        [ISA_AVX2] = {&dense_lanes_avx2, &mlp_lanes_avx2, product_avx2},
        [ISA_AVX512] = {&dense_lanes_avx512, &mlp_lanes_avx512, product_avx512}};
    enum isa isa = ISA_BASELINE;
    const enum status status = isa_choose(&isa, error);
    *lanes = tables[isa];
    return status;
}

/* policy_check refuses what breaks a bound (worker/model/policy_config.h). */
static void assert_bounds(const struct dense_shape *shape)
{
    assert(shape->inputs >= 1 && shape->inputs <= (shape->pulls_inputs ? DENSE_WIDTH_MAX : DENSE_INPUTS_MAX));
    assert(shape->layers >= dense_explores(shape) && shape->layers <= DENSE_LAYERS_MAX);
    for (uint32_t l = 0; l < shape->layers; l++)
        assert(shape->width[l] >= 1 && shape->width[l] <= DENSE_WIDTH_MAX);
    assert(shape->components >= 1 && shape->components <= DENSE_COMPONENTS_MAX);
    assert(dense_outputs(shape) <= DENSE_OUTPUTS_MAX);
    (void)shape;
}

enum status dense_new(struct dense **out, const struct dense_shape *shape, struct error *error)
{
    struct policy_lanes lanes;
    enum status status = policy_lanes_choose(&lanes, error);
    assert_bounds(shape);
    if (status != STATUS_OK)
        return status;
    struct dense *dense = calloc(1, sizeof *dense);
    if (dense == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy");
    dense->shape = *shape;
    dense->outputs = dense_outputs(shape);
    dense->lanes = lanes.dense;
    dense->product = lanes.product;
    describe_layers(dense);
    struct places places = {0};
    place_dense(&places, dense);
    status = places_take(&places, "weights", error);
    if (status != STATUS_OK) {
        free(dense);
        return status;
    }
    dense->memory = places.memory;
    place_dense(&places, dense);
    *out = dense;
    return STATUS_OK;
}

void dense_free(struct dense *dense)
{
    if (dense == NULL)
        return;
    free(dense->memory);
    free(dense);
}

static void load_sigma(struct dense_sigma *sigma, const struct dense_lanes *lanes, const float *log_std,
                       uint32_t components)
{
    const double half_log_two_pi = 0.918938533204672741780;
    double entropy = 0;
    memcpy(sigma->sigma, log_std, components * sizeof *log_std);
    for (uint32_t d = 0; d < components; d += POLICY_LANES) // in place: each number by itself
        lanes->exp(sigma->sigma + d, sigma->sigma + d);
    for (uint32_t d = 0; d < components; d++) {
        sigma->inverse[d] = 1 / sigma->sigma[d];
        sigma->shift[d] = (float)((double)log_std[d] + half_log_two_pi);
        entropy += (double)log_std[d] + half_log_two_pi + 0.5;
    }
    sigma->entropy = (float)entropy;
}

static void load_exploration(struct dense *dense, const float *log_std)
{
    const struct dense_exploration *exploration = &dense->exploration;
    const uint32_t features = dense_features(&dense->shape), components = dense->shape.components;
    const size_t count = (size_t)features * components;
    memcpy(exploration->sigma, log_std, count * sizeof *log_std);
    for (size_t i = 0; i < count; i += POLICY_LANES) // in place: each number by itself
        dense->lanes->exp(exploration->sigma + i, exploration->sigma + i);
    for (size_t i = 0; i < count; i++)
        exploration->squares[i] = exploration->sigma[i] * exploration->sigma[i];
    panels_pack(exploration->panels, exploration->squares, components, features, 0, features);
    for (uint32_t d = 0; d < components; d++)
        exploration->begin[d] = 1e-6f;
}

static void load_deviations(struct dense *dense, const float *log_std)
{
    if (dense_explores(&dense->shape))
        load_exploration(dense, log_std);
    else
        load_sigma(&dense->sigma, dense->lanes, log_std, dense->shape.components);
}

void dense_load_parameter(struct dense *dense, const float *parameters, uint32_t number)
{
    const struct dense_parameter *parameter = &dense->parameters[number];
    const struct linear *layer = &dense->layer[parameter->network][parameter->layer];
    const float *from = parameters + parameter->offset;
    switch (parameter->kind) {
    case DENSE_WEIGHT:
        linear_load_weight(layer, from);
        return;
    case DENSE_BIAS:
        linear_load_bias(layer, from);
        return;
    case DENSE_LOG_SIGMA:
        load_deviations(dense, from);
    }
}

void dense_load(struct dense *dense, const float *parameters)
{
    for (uint32_t number = 0; number < dense->parameter_count; number++)
        dense_load_parameter(dense, parameters, number);
}

/* ---- the workspace ---- */

/* The most outputs of a layer. */
static uint32_t widest(const struct dense *dense)
{
    uint32_t most = dense->outputs;
    for (uint32_t l = 0; l < dense->shape.layers; l++)
        most = dense->shape.width[l] > most ? dense->shape.width[l] : most;
    return most;
}

/* What the policy's head and log_std need. */
static void place_head_work(struct places *places, struct dense_work *work, const struct dense *dense)
{
    const uint32_t rows = DENSE_CHUNK_ROWS;
    if (dense->shape.gaussian)
        places_matrix(places, &work->log_sigma, rows, dense->shape.components);
    if (dense_explores(&dense->shape)) {
        places_matrix(places, &work->squares, rows, dense_features(&dense->shape));
        places_matrix(places, &work->variance, rows, dense->shape.components);
        places_floats(places, &work->exploration_sums,
                      (size_t)dense_features(&dense->shape) * dense->shape.components);
    }
    summing_place(places, &work->summing);
    places_floats(places, &work->scratch, 2 * dense->outputs * POLICY_LANES);
    places_floats(places, &work->zeros, DENSE_OUTPUTS_MAX);
}

static void place_work(struct places *places, struct dense_work *work, const struct dense *dense)
{
    const uint32_t inputs = dense->shape.inputs, rows = DENSE_CHUNK_ROWS;
    places_matrix(places, &work->inputs, rows, inputs < DENSE_INPUT_BLOCK ? inputs : DENSE_INPUT_BLOCK);
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++)
        for (uint32_t l = 0; l <= dense->shape.layers; l++)
            if (dense_has_layer(&dense->shape, n, l))
                places_matrix(places, &work->output[n][l], rows, dense->layer[n][l].outputs);
    places_matrix(places, &work->head_pull[DENSE_POLICY], rows, dense->outputs);
    if (dense->shape.value)
        places_matrix(places, &work->head_pull[DENSE_VALUE], rows, 1);
    for (int p = 0; p < 2; p++)
        places_floats(places, &work->pull[p], rows * product_stride(widest(dense)));
    place_head_work(places, work, dense);
    places_floats(places, &work->ones, rows);
}

enum status dense_work_new(struct dense_work **out, const struct dense *dense, struct error *error)
{
    struct places places = {0};
    struct dense_work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy's rows");
    place_work(&places, work, dense);
    const enum status status = places_take(&places, "rows", error);
    if (status != STATUS_OK) {
        free(work);
        return status;
    }
    work->memory = places.memory;
    place_work(&places, work, dense);
    work->summing.product = dense->product;
    work->summing.lanes = dense->lanes;
    for (int i = 0; i < DENSE_CHUNK_ROWS; i++)
        work->ones[i] = 1;
    *out = work;
    return STATUS_OK;
}

void dense_work_free(struct dense_work *work)
{
    if (work == NULL)
        return;
    free(work->memory);
    free(work);
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* ---- forward ---- */

static void normalize(const struct dense_normalizer *n, const float *from, uint32_t first, uint32_t width,
                      float *to)
{
    const float limit = n->limit;
    for (uint32_t i = 0; i < width; i++) {
        float x = (from[i] - n->mean[first + i]) * n->scale[first + i];
        x = x > limit ? limit : x;
        to[i] = x < -limit ? -limit : x;
    }
}

/* A few numbers, which a call of memcpy would take longer to copy. */
static void copy(float *to, const float *from, uint32_t count)
{
    uint32_t i = 0;
    for (; count - i >= 4; i += 4)
        memcpy(to + i, from + i, 4 * sizeof *to);
    for (; i < count; i++)
        to[i] = from[i];
}

void dense_gather(const struct dense_batch *batch, uint32_t inputs, uint32_t first, uint32_t width, float *at,
                  size_t stride)
{
    for (uint32_t r = 0; r < batch->count; r++) {
        float *to = at + r * stride;
        const size_t from = (size_t)batch->row[r] * inputs + first;
        if (batch->features != NULL)
            copy(to, batch->features + r * batch->stride + first, width);
        else if (batch->observations != NULL && batch->normalizer != NULL)
            normalize(batch->normalizer, batch->observations + from, first, width, to);
        else if (batch->observations != NULL)
            copy(to, batch->observations + from, width);
        else
            for (uint32_t i = 0; i < width; i++)
                to[i] = (float)batch->bytes[from + i] / 255;
    }
}

/* Columns [first, first + width) of what the batch's networks read. */
static void gather(const struct dense *dense, const struct dense_work *work, const struct dense_batch *batch,
                   uint32_t first, uint32_t width)
{
    dense_gather(batch, dense->shape.inputs, first, width, work->inputs.at, work->inputs.stride);
}

/* Which networks' heads are computed. */
struct heads {
    bool of[DENSE_NETWORKS];
};

static struct heads heads_of(bool policy, bool value)
{
    return (struct heads){{[DENSE_POLICY] = policy, [DENSE_VALUE] = value}};
}

/* The network whose hidden layers network n's head reads. */
static uint32_t trunk_of(const struct dense *dense, uint32_t n)
{
    return dense->shape.shared ? DENSE_POLICY : n;
}

/* Whether network n's own hidden layers are needed. */
static bool needs_hidden(const struct dense *dense, const struct heads *heads, uint32_t n)
{
    return dense->shape.shared ? n == DENSE_POLICY : heads->of[n];
}

/* The sums of the layers that read the observations. */
static void first_layers(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                         const struct heads *heads)
{
    const uint32_t inputs = dense->shape.inputs;
    for (uint32_t first = 0; first < inputs; first += DENSE_INPUT_BLOCK) {
        const uint32_t width = smaller(inputs - first, DENSE_INPUT_BLOCK);
        gather(dense, work, batch, first, width);
        for (uint32_t n = 0; n < DENSE_NETWORKS; n++)
            if (dense->shape.layers == 0 ? heads->of[n] : needs_hidden(dense, heads, n))
                linear_forward(dense->product, &dense->layer[n][0], work->inputs, batch->count, first, width,
                               work->output[n][0]);
    }
}

static void next_layer(const struct dense *dense, const struct dense_work *work, uint32_t rows, uint32_t n,
                       uint32_t l, struct dense_matrix from)
{
    const struct linear *layer = &dense->layer[n][l];
    linear_forward(dense->product, layer, from, rows, 0, layer->inputs, work->output[n][l]);
}

/* Fills work->output: the hidden layers' activations and the heads' sums. */
static void forward(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                    const struct heads *heads)
{
    const uint32_t rows = batch->count, layers = dense->shape.layers;
    first_layers(dense, work, batch, heads);
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++)
        for (uint32_t l = 0; l < layers && needs_hidden(dense, heads, n); l++) {
            const struct dense_matrix h = work->output[n][l];
            dense->lanes->activate(dense->shape.activation, h, rows, product_blocks(dense->shape.width[l]));
            if (l + 1 < layers)
                next_layer(dense, work, rows, n, l + 1, h);
        }
    for (uint32_t n = 0; n < DENSE_NETWORKS && layers > 0; n++)
        if (heads->of[n])
            next_layer(dense, work, rows, n, layers, work->output[trunk_of(dense, n)][layers - 1]);
}

/* ---- the heads ---- */

/* What the policy's head has read. */
static struct dense_matrix features_of(const struct dense *dense, const struct dense_work *work)
{
    const uint32_t layers = dense->shape.layers;
    return layers == 0 ? work->inputs : work->output[DENSE_POLICY][layers - 1];
}

static struct dense_head head_of(const struct dense *dense, const struct dense_work *work,
                                 const struct dense_batch *batch)
{
    return (struct dense_head){.shape = &dense->shape,
                               .outputs = dense->outputs,
                               .batch = *batch,
                               .z = work->output[DENSE_POLICY][dense->shape.layers],
                               .scratch = work->scratch,
                               .sigma = &dense->sigma,
                               .exploration = dense_explores(&dense->shape) ? &dense->exploration : NULL,
                               .features = dense_features(&dense->shape),
                               .features_at = features_of(dense, work),
                               .variance = work->variance};
}

/* The variances of rows whose forward is done, where they depend on the state. */
static void find_variances(const struct dense *dense, const struct dense_work *work, uint32_t rows)
{
    const struct dense_matrix from = features_of(dense, work), to = work->squares;
    const uint32_t features = dense_features(&dense->shape);
    if (!dense_explores(&dense->shape))
        return;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t f = 0; f < features; f++)
            to.at[r * to.stride + f] = from.at[r * from.stride + f] * from.at[r * from.stride + f];
    linear_multiply(dense->product, rows, to, features, dense->exploration.panels, features, 0,
                    dense->shape.components, dense->exploration.begin, work->variance);
}

static void store_values(const struct dense *dense, const struct dense_work *work, uint32_t rows,
                         float *value)
{
    const struct dense_matrix v = work->output[DENSE_VALUE][dense->shape.layers];
    for (uint32_t r = 0; r < rows; r++)
        value[r] = v.at[r * v.stride];
}

void dense_act(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
               const struct dense_draw *draw, const struct dense_results *results)
{
    const struct heads heads = heads_of(true, results->value != NULL);
    const struct dense_head head = head_of(dense, work, batch);
    assert(batch->count <= DENSE_CHUNK_ROWS && (results->value == NULL || dense->shape.value));
    forward(dense, work, batch, &heads);
    find_variances(dense, work, batch->count);
    dense->lanes->act(&head, draw, results->log_probability);
    if (results->value != NULL)
        store_values(dense, work, batch->count, results->value);
}

void dense_value(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                 float *value)
{
    const struct heads heads = heads_of(false, true);
    assert(batch->count <= DENSE_CHUNK_ROWS && dense->shape.value);
    forward(dense, work, batch, &heads);
    store_values(dense, work, batch->count, value);
}

void dense_evaluate(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                    const struct dense_results *results)
{
    assert(batch->count <= DENSE_CHUNK_ROWS && (results->value == NULL || dense->shape.value));
    const struct dense_head head = head_of(dense, work, batch);
    const struct heads heads =
        heads_of(results->log_probability != NULL || results->entropy != NULL, results->value != NULL);
    work->batch = *batch;
    forward(dense, work, batch, &heads);
    if (heads.of[DENSE_POLICY]) {
        find_variances(dense, work, batch->count);
        dense->lanes->evaluate(&head, results->log_probability, results->entropy);
    }
    if (results->value != NULL)
        store_values(dense, work, batch->count, results->value);
}

/* ---- backward ----
 *
 * The sums go to where work->adds says: onto the gradient, or in its place. */

/* summing_add over the batch's rows. */
static void sum_products(const struct dense_work *work, struct dense_matrix a, uint32_t m_count,
                         struct dense_matrix b, uint32_t n_count, float *to, size_t row_step,
                         size_t column_step)
{
    summing_add(&work->summing, work->batch.count, a, m_count, b, n_count, to, row_step, column_step,
                work->adds);
}

/* Adds the sums of the columns of x, over the batch's rows. */
static void add_columns(const struct dense_work *work, struct dense_matrix x, uint32_t columns, float *to)
{
    const struct dense_matrix ones = {work->ones, 1};
    sum_products(work, ones, 1, x, columns, to, 0, 1);
}

/* The first layer's; the inputs are gathered again unless one piece holds them all. */
static void add_first_weight(const struct dense *dense, const struct dense_work *work,
                             const struct linear *layer, struct dense_matrix pull, float *gradient)
{
    for (uint32_t first = 0; first < layer->inputs; first += DENSE_INPUT_BLOCK) {
        const uint32_t width = smaller(layer->inputs - first, DENSE_INPUT_BLOCK);
        if (layer->inputs > DENSE_INPUT_BLOCK)
            gather(dense, work, &work->batch, first, width);
        linear_add_weight(&work->summing, layer, pull, work->batch.count, work->inputs, first, width,
                          gradient, work->adds);
    }
}

/* The gradients of a layer's bias and weight, by what it has read; x NULL: the batch's inputs. */
static void add_parameters(const struct dense *dense, const struct dense_work *work,
                           const struct linear *layer, struct dense_matrix pull, const struct dense_matrix *x,
                           float *gradient)
{
    linear_add_bias(&work->summing, layer, pull, work->batch.count, work->ones, gradient, work->adds);
    if (x == NULL)
        add_first_weight(dense, work, layer, pull, gradient);
    else
        linear_add_weight(&work->summing, layer, pull, work->batch.count, *x, 0, layer->inputs, gradient,
                          work->adds);
}

/* to = dL/d of what `layer` reads, by the pull at its sums; or, `more`, adds that to `to`. Nothing where
 * there is no `to`: nobody asks what pulls at the first layer's inputs. */
static void pull_back(const struct dense *dense, const struct dense_work *work, const struct linear *layer,
                      struct dense_matrix pull, struct dense_matrix to, bool more)
{
    if (to.at != NULL)
        linear_pull(dense->product, layer, pull, work->batch.count, more ? NULL : work->zeros, to);
}

/* dL/d of hidden layer l, in one of two places by turns. */
static struct dense_matrix hidden_pull(const struct dense *dense, const struct dense_work *work, uint32_t l)
{
    return (struct dense_matrix){work->pull[l % 2], product_stride(dense->shape.width[l])};
}

/* The heads' weights and biases, by work->head_pull, and the pull at the last hidden layer of network n: of
 * the policy's head first. */
static void heads_backward(const struct dense *dense, const struct dense_work *work,
                           const struct heads *heads, uint32_t n, float *gradient)
{
    const uint32_t layers = dense->shape.layers;
    bool more = false;
    for (uint32_t head = 0; head < DENSE_NETWORKS; head++) {
        const struct linear *layer = &dense->layer[head][layers];
        const struct dense_matrix pull = work->head_pull[head];
        if (!heads->of[head])
            continue;
        add_parameters(dense, work, layer, pull, layers == 0 ? NULL : &work->output[n][layers - 1], gradient);
        pull_back(dense, work, layer, pull,
                  layers == 0 ? work->features_pull : hidden_pull(dense, work, layers - 1),
                  layers == 0 || more);
        more = true;
    }
}

/* The backward of network n's hidden layers and of the heads that read them. */
static void backward(const struct dense *dense, const struct dense_work *work, const struct heads *heads,
                     uint32_t n, float *gradient)
{
    heads_backward(dense, work, heads, n, gradient);
    for (uint32_t l = dense->shape.layers; l-- > 0;) {
        const struct linear *layer = &dense->layer[n][l];
        const struct dense_matrix pull = hidden_pull(dense, work, l);
        dense->lanes->slope(dense->shape.activation, pull, work->output[n][l], work->batch.count,
                            product_blocks(layer->outputs));
        add_parameters(dense, work, layer, pull, l == 0 ? NULL : &work->output[n][l - 1], gradient);
        pull_back(dense, work, layer, pull, l == 0 ? work->features_pull : hidden_pull(dense, work, l - 1),
                  l == 0);
    }
}

/* Adds dL/d log_std (features, components). */
static void add_exploration(const struct dense *dense, const struct dense_work *work, float *gradient)
{
    const uint32_t features = dense_features(&dense->shape), components = dense->shape.components;
    const size_t count = (size_t)features * components;
    float *sums = work->exploration_sums;
    if (work->adds) /* onto these */
        memset(sums, 0, count * sizeof *sums);
    sum_products(work, work->squares, features, work->log_sigma, components, sums, components, 1);
    for (size_t i = 0; i < count; i++)
        gradient[i] = (work->adds ? gradient[i] : 0) + dense->exploration.squares[i] * sums[i];
}

/* Fills the pulls at the sums of the policy's head, and takes what log_std pulls. */
static void pull_policy(const struct dense *dense, const struct dense_work *work,
                        const struct dense_pulls *pulls, float *gradient)
{
    const struct dense_head head = head_of(dense, work, &work->batch);
    dense->lanes->pull(&head, pulls, work->head_pull[DENSE_POLICY], work->log_sigma);
    if (dense_explores(&dense->shape))
        add_exploration(dense, work, gradient + dense->log_sigma);
    else if (dense->shape.gaussian)
        add_columns(work, work->log_sigma, dense->shape.components, gradient + dense->log_sigma);
}

static void pull_value(const struct dense_work *work, const struct dense_pulls *pulls)
{
    const struct dense_matrix to = work->head_pull[DENSE_VALUE];
    for (uint32_t r = 0; r < work->batch.count; r++)
        to.at[r * to.stride] = pulls->value[r];
}

void dense_gradient(const struct dense *dense, struct dense_work *work, const struct dense_pulls *pulls,
                    float *gradient, bool adds)
{
    const struct heads heads =
        heads_of(pulls->log_probability != NULL || pulls->entropy != NULL, pulls->value != NULL);
    assert(!heads.of[DENSE_VALUE] || dense->shape.value);
    work->adds = adds;
    work->features_pull = (struct dense_matrix){pulls->features, work->batch.stride};
    if (pulls->features != NULL) /* all networks add to these */
        memset(pulls->features, 0, work->batch.count * work->batch.stride * sizeof *pulls->features);
    if (heads.of[DENSE_POLICY])
        pull_policy(dense, work, pulls, gradient);
    if (heads.of[DENSE_VALUE])
        pull_value(work, pulls);
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++) {
        const struct heads own = heads_of(n == DENSE_POLICY, n == DENSE_VALUE);
        if (!dense->shape.shared && heads.of[n])
            backward(dense, work, &own, n, gradient);
    }
    if (dense->shape.shared && (heads.of[DENSE_POLICY] || heads.of[DENSE_VALUE]))
        backward(dense, work, &heads, DENSE_POLICY, gradient);
}

/* ---- a head alone ----
 *
 * It is a dense and a work that compute nothing but the head: outputs and features are the caller's. */

struct head {
    struct dense dense;
    struct dense_work work;
    float *memory; // of both
};

static void place_head(struct places *places, struct head *head)
{
    place_deviations(places, &head->dense);
    place_head_work(places, &head->work, &head->dense);
}

enum status head_new(struct head **out, const struct dense_shape *shape, struct error *error)
{
    struct policy_lanes lanes;
    struct places places = {0};
    struct head *head = calloc(1, sizeof *head);
    if (head == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy's head");
    head->dense.shape = *shape;
    head->dense.outputs = dense_outputs(shape);
    place_head(&places, head);
    enum status status = policy_lanes_choose(&lanes, error);
    if (status == STATUS_OK)
        status = places_take(&places, "head", error);
    if (status != STATUS_OK) {
        free(head);
        return status;
    }
    head->dense.lanes = lanes.dense;
    head->dense.product = lanes.product;
    head->work.summing.product = lanes.product;
    head->work.summing.lanes = lanes.dense;
    head->memory = places.memory;
    place_head(&places, head);
    *out = head;
    return STATUS_OK;
}

void head_free(struct head *head)
{
    if (head == NULL)
        return;
    free(head->memory);
    free(head);
}

void head_load(struct head *head, const float *log_std)
{
    load_deviations(&head->dense, log_std);
}

/* The caller's arrays, which are only read. */
static struct dense_matrix given(const float *at, uint32_t columns)
{
    return (struct dense_matrix){(float *)(uintptr_t)at, columns};
}

static struct dense_head begin_head(struct head *head, const struct head_rows *rows)
{
    const struct dense *dense = &head->dense;
    struct dense_work *work = &head->work;
    const uint32_t layers = dense->shape.layers;
    assert(rows->batch.count <= DENSE_CHUNK_ROWS);
    work->batch = rows->batch;
    work->output[DENSE_POLICY][layers] = given(rows->outputs, dense->outputs);
    if (dense_explores(&dense->shape))
        work->output[DENSE_POLICY][layers - 1] = given(rows->features, dense_features(&dense->shape));
    find_variances(dense, work, rows->batch.count);
    return head_of(dense, work, &rows->batch);
}

void head_act(struct head *head, const struct head_rows *rows, const struct dense_draw *draw,
              float *log_probability)
{
    const struct dense_head lanes = begin_head(head, rows);
    head->dense.lanes->act(&lanes, draw, log_probability);
}

void head_evaluate(struct head *head, const struct head_rows *rows, float *log_probability, float *entropy)
{
    const struct dense_head lanes = begin_head(head, rows);
    head->dense.lanes->evaluate(&lanes, log_probability, entropy);
}

void head_pull(struct head *head, const struct head_rows *rows, const struct dense_pulls *pulls,
               float *d_outputs, float *d_log_std)
{
    const struct dense_head lanes = begin_head(head, rows);
    const struct dense_matrix each = head->work.log_sigma;
    const uint32_t components = head->dense.shape.components;
    head->dense.lanes->pull(&lanes, pulls, (struct dense_matrix){d_outputs, head->dense.outputs}, each);
    if (dense_explores(&head->dense.shape)) {
        add_exploration(&head->dense, &head->work, d_log_std);
        return;
    }
    for (uint32_t c = 0; c < components && head->dense.shape.gaussian; c++) {
        d_log_std[c] = 0;
        for (uint32_t r = 0; r < rows->batch.count; r++)
            d_log_std[c] += each.at[r * each.stride + c];
    }
}
