/* A policy of dense layers: its chains of layers, and its heads. Both networks are a chain of hidden layers
 * and a head, which is a chain of one layer (layers.c). What distributions compute is dense_lanes.c's.
 *
 * Observations wider than LAYERS_PIECE pass in pieces of so many columns, gathered from their rows. */
#include "kernels/policy/dense.h"

#include "kernels/lanes/isa.h"
#include "kernels/policy/panels.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A network's chains, and where their parameters begin in the flat array. */
struct network {
    struct layers *hidden; // NULL: its head reads the inputs, or the policy's hidden layers
    struct layers *head;   // NULL: there is no value network
    size_t hidden_at, head_at;
};

struct dense {
    struct dense_shape shape;
    uint32_t outputs;
    struct network network[DENSE_NETWORKS];
    uint32_t parameter_count;
    struct dense_parameter parameters[DENSE_PARAMETERS_MAX]; // (parameter_count)
    size_t log_sigma;                                        // in the flat array
    struct dense_sigma sigma;
    struct dense_exploration exploration; // where dense_explores
    const struct dense_lanes *lanes;
    product_function *product;
    float *memory; // of the deviations
};

struct dense_work {
    const struct dense *dense;
    struct dense_batch batch;   // last evaluated
    struct dense_matrix inputs; // (rows, piece)
    struct layers_work *hidden[DENSE_NETWORKS], *head[DENSE_NETWORKS];
    struct dense_matrix features[DENSE_NETWORKS];  // (rows, features) what each head has read
    struct dense_matrix output[DENSE_NETWORKS];    // (rows, outputs) of the heads
    struct dense_matrix head_pull[DENSE_NETWORKS]; // (rows, outputs) dL/d of the heads' sums
    struct dense_matrix pull;                      // (rows, features) dL/d of a last hidden layer
    struct dense_matrix log_sigma;                 // (rows, components) dL/d log_std
    /* Where dense_explores: the features' squares (rows, features), the variances (rows, components), and a
     * chunk's sums (features, components). */
    struct dense_matrix squares, variance;
    float *exploration_sums;
    struct summing summing;
    float *scratch;                    // struct dense_head's
    bool adds;                         // dense_gradient's, while it runs
    struct dense_matrix features_pull; // likewise; at NULL: not wanted
    float *memory;                     // of the matrices that are not the chains'
};

/* ---- the shape ---- */

static uint32_t networks_of(const struct dense_shape *shape)
{
    return shape->value ? DENSE_NETWORKS : 1;
}

/* The hidden layers that a network's head reads. */
struct hidden {
    uint32_t layers;
    const uint32_t *width;
};

static struct hidden hidden_of(const struct dense_shape *shape, enum dense_network_kind network)
{
    return network == DENSE_POLICY || shape->shared
               ? (struct hidden){shape->layers, shape->width}
               : (struct hidden){shape->value_layers, shape->value_width};
}

uint32_t dense_layers(const struct dense_shape *shape, enum dense_network_kind network)
{
    return hidden_of(shape, network).layers;
}

/* What layer `layer` of a network reads. */
static uint32_t layer_inputs(const struct dense_shape *shape, enum dense_network_kind network, uint32_t layer)
{
    return layer == 0 ? shape->inputs : hidden_of(shape, network).width[layer - 1];
}

uint32_t dense_features(const struct dense_shape *shape, enum dense_network_kind network)
{
    return layer_inputs(shape, network, dense_layers(shape, network));
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

static void list_hidden(struct list *list, const struct dense_shape *shape, enum dense_network_kind network,
                        const char *of)
{
    const struct hidden hidden = hidden_of(shape, network);
    for (uint32_t l = 0; l < hidden.layers; l++) {
        char name[DENSE_NAME_BYTES - 8];
        snprintf(name, sizeof name, "mlp_extractor.%s.%u", of, 2 * l);
        list_linear(list, network, l, hidden.width[l], layer_inputs(shape, network, l), name);
    }
}

/* The layer behind a network's hidden ones. */
static void list_head(struct list *list, const struct dense_shape *shape, enum dense_network_kind network,
                      uint32_t outputs, const char *name)
{
    list_linear(list, network, dense_layers(shape, network), outputs, dense_features(shape, network), name);
}

uint32_t dense_parameters(const struct dense_shape *shape, struct dense_parameter out[DENSE_PARAMETERS_MAX])
{
    struct list list = {.out = out};
    const uint32_t features = dense_features(shape, DENSE_POLICY);
    const bool explores = dense_explores(shape);
    if (shape->gaussian)
        snprintf(list_add(&list, DENSE_LOG_SIGMA, explores ? 2 : 1, explores ? features : shape->components,
                          explores ? shape->components : 1)
                     ->name,
                 DENSE_NAME_BYTES, "log_std");
    list_hidden(&list, shape, DENSE_POLICY, shape->shared ? "shared_net" : "policy_net");
    if (shape->value && !shape->shared)
        list_hidden(&list, shape, DENSE_VALUE, "value_net");
    list_head(&list, shape, DENSE_POLICY, dense_outputs(shape), "action_net");
    if (shape->value)
        list_head(&list, shape, DENSE_VALUE, 1, "value_net");
    return list.count;
}

/* ---- the weights ---- */

static void place_deviations(struct places *places, void *of)
{
    struct dense *dense = of;
    const size_t features = dense_features(&dense->shape, DENSE_POLICY), components = dense->shape.components;
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

/* A network's hidden layers; there is at least one. */
static struct layers_shape hidden_shape(const struct dense_shape *shape, enum dense_network_kind network)
{
    const struct hidden of = hidden_of(shape, network);
    struct layers_shape hidden = {.inputs = shape->inputs,
                                  .outputs = dense_features(shape, network),
                                  .layers = of.layers - 1,
                                  .activation = shape->activation,
                                  .last = LAYERS_ACTIVATED,
                                  .pulls_inputs = shape->pulls_inputs};
    memcpy(hidden.width, of.width, sizeof hidden.width);
    return hidden;
}

static struct layers_shape head_shape(const struct dense_shape *shape, enum dense_network_kind network)
{
    return (struct layers_shape){.inputs = dense_features(shape, network),
                                 .outputs = network == DENSE_POLICY ? dense_outputs(shape) : 1,
                                 .last = LAYERS_LINEAR,
                                 .pulls_inputs = dense_layers(shape, network) > 0 || shape->pulls_inputs};
}

static enum status networks_new(struct dense *dense, struct error *error)
{
    const struct dense_shape *shape = &dense->shape;
    enum status status = STATUS_OK;
    for (uint32_t n = 0; n < networks_of(shape) && status == STATUS_OK; n++) {
        struct network *network = &dense->network[n];
        const struct layers_shape head = head_shape(shape, n);
        if (dense_layers(shape, n) > 0 && (n == DENSE_POLICY || !shape->shared)) {
            const struct layers_shape hidden = hidden_shape(shape, n);
            status = layers_new(&network->hidden, &hidden, error);
        }
        if (status == STATUS_OK)
            status = layers_new(&network->head, &head, error);
    }
    return status;
}

static bool is_head(const struct dense *dense, const struct dense_parameter *parameter)
{
    return parameter->layer == dense_layers(&dense->shape, parameter->network);
}

/* Where the parameters of the chains and of the deviations begin. */
static void find_parameters(struct dense *dense)
{
    dense->parameter_count = dense_parameters(&dense->shape, dense->parameters);
    for (uint32_t p = 0; p < dense->parameter_count; p++) {
        const struct dense_parameter *parameter = &dense->parameters[p];
        struct network *network = &dense->network[parameter->network];
        if (parameter->kind == DENSE_LOG_SIGMA)
            dense->log_sigma = parameter->offset;
        else if (parameter->kind == DENSE_WEIGHT && is_head(dense, parameter))
            network->head_at = parameter->offset;
        else if (parameter->kind == DENSE_WEIGHT && parameter->layer == 0)
            network->hidden_at = parameter->offset;
    }
}

const struct policy_lanes *policy_lanes_choose(void)
{
    static const struct policy_lanes tables[ISA_COUNT] = {
        [ISA_BASELINE] = {&dense_lanes_baseline, &mlp_lanes_baseline, &squashed_lanes_baseline,
                          product_baseline},
        [ISA_AVX2] = {&dense_lanes_avx2, &mlp_lanes_avx2, &squashed_lanes_avx2, product_avx2},
        [ISA_AVX512] = {&dense_lanes_avx512, &mlp_lanes_avx512, &squashed_lanes_avx512, product_avx512}};
    return &tables[isa_or_baseline()];
}

/* policy_check refuses what breaks a bound (worker/model/policy_config.h). */
static void assert_bounds(const struct dense_shape *shape)
{
    assert(shape->inputs >= 1 && shape->inputs <= (shape->pulls_inputs ? DENSE_WIDTH_MAX : DENSE_INPUTS_MAX));
    assert(shape->layers >= dense_explores(shape));
    for (uint32_t n = 0; n < networks_of(shape); n++) {
        const struct hidden hidden = hidden_of(shape, n);
        assert(hidden.layers <= DENSE_LAYERS_MAX);
        for (uint32_t l = 0; l < hidden.layers; l++)
            assert(hidden.width[l] >= 1 && hidden.width[l] <= DENSE_WIDTH_MAX);
    }
    assert(shape->components >= 1 && shape->components <= DENSE_COMPONENTS_MAX);
    assert(dense_outputs(shape) <= DENSE_OUTPUTS_MAX);
    (void)shape;
}

enum status dense_new(struct dense **out, const struct dense_shape *shape, struct error *error)
{
    const struct policy_lanes *lanes = policy_lanes_choose();
    struct dense *dense = calloc(1, sizeof *dense);
    assert_bounds(shape);
    if (dense == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy");
    dense->shape = *shape;
    dense->outputs = dense_outputs(shape);
    dense->lanes = lanes->dense;
    dense->product = lanes->product;
    find_parameters(dense);
    enum status status = networks_new(dense, error);
    if (status == STATUS_OK)
        status = places_take(&dense->memory, place_deviations, dense, "deviations", error);
    if (status == STATUS_OK)
        *out = dense;
    else
        dense_free(dense);
    return status;
}

void dense_free(struct dense *dense)
{
    if (dense == NULL)
        return;
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++) {
        layers_free(dense->network[n].hidden);
        layers_free(dense->network[n].head);
    }
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
    const uint32_t features = dense_features(&dense->shape, DENSE_POLICY),
                   components = dense->shape.components;
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
    const struct network *network = &dense->network[parameter->network];
    const bool of_head = is_head(dense, parameter);
    struct layers *chain = of_head ? network->head : network->hidden;
    const float *from = parameters + parameter->offset;
    switch (parameter->kind) {
    case DENSE_WEIGHT:
        layers_load_weight(chain, of_head ? 0 : parameter->layer, from);
        return;
    case DENSE_BIAS:
        layers_load_bias(chain, of_head ? 0 : parameter->layer, from);
        return;
    case DENSE_LOG_SIGMA:
        load_deviations(dense, from);
    }
}

/* ---- the workspace ---- */

/* What the policy's head and log_std need. */
static void place_head_work(struct places *places, struct dense_work *work, const struct dense *dense)
{
    const uint32_t rows = DENSE_CHUNK_ROWS;
    if (dense->shape.gaussian)
        places_matrix(places, &work->log_sigma, rows, dense->shape.components);
    if (dense_explores(&dense->shape)) {
        places_matrix(places, &work->squares, rows, dense_features(&dense->shape, DENSE_POLICY));
        places_matrix(places, &work->variance, rows, dense->shape.components);
        places_floats(places, &work->exploration_sums,
                      (size_t)dense_features(&dense->shape, DENSE_POLICY) * dense->shape.components);
    }
    summing_place(places, &work->summing);
    places_floats(places, &work->scratch, 2 * dense->outputs * POLICY_LANES);
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Units of the wider one of the last hidden layers; 0: there is none. */
static uint32_t widest_features(const struct dense_shape *shape)
{
    uint32_t widest = 0;
    for (uint32_t n = 0; n < networks_of(shape); n++)
        if (dense_layers(shape, n) > 0 && dense_features(shape, n) > widest)
            widest = dense_features(shape, n);
    return widest;
}

static void place_work(struct places *places, void *of)
{
    struct dense_work *work = of;
    const struct dense *dense = work->dense;
    const uint32_t rows = DENSE_CHUNK_ROWS;
    places_matrix(places, &work->inputs, rows, smaller(dense->shape.inputs, LAYERS_PIECE));
    places_matrix(places, &work->head_pull[DENSE_POLICY], rows, dense->outputs);
    if (dense->shape.value)
        places_matrix(places, &work->head_pull[DENSE_VALUE], rows, 1);
    places_matrix(places, &work->pull, rows, widest_features(&dense->shape));
    place_head_work(places, work, dense);
}

static enum status network_works_new(struct dense_work *work, const struct dense *dense, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++) {
        const struct network *network = &dense->network[n];
        if (status == STATUS_OK && network->hidden != NULL)
            status = layers_work_new(&work->hidden[n], network->hidden, error);
        if (status == STATUS_OK && network->head != NULL)
            status = layers_work_new(&work->head[n], network->head, error);
    }
    return status;
}

enum status dense_work_new(struct dense_work **out, const struct dense *dense, struct error *error)
{
    struct dense_work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy's rows");
    work->dense = dense;
    enum status status = network_works_new(work, dense, error);
    if (status == STATUS_OK)
        status = places_take(&work->memory, place_work, work, "rows", error);
    if (status != STATUS_OK) {
        dense_work_free(work);
        return status;
    }
    summing_begin(&work->summing, dense->product, dense->lanes);
    *out = work;
    return STATUS_OK;
}

void dense_work_free(struct dense_work *work)
{
    if (work == NULL)
        return;
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++) {
        layers_work_free(work->hidden[n]);
        layers_work_free(work->head[n]);
    }
    free(work->memory);
    free(work);
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

/* A chain, and the rows that it computes. */
struct chain {
    const struct layers *layers;
    struct layers_work *work;
};

/* What of network n reads the observations: its hidden layers, its head, or, layers NULL, nothing. */
static struct chain reader_of(const struct dense *dense, const struct dense_work *work, uint32_t n)
{
    const struct network *network = &dense->network[n];
    if (dense_layers(&dense->shape, n) == 0)
        return (struct chain){network->head, work->head[n]};
    return (struct chain){network->hidden, work->hidden[n]};
}

/* Whether what of network n reads the observations is needed. */
static bool reads(const struct dense *dense, const struct heads *heads, uint32_t n)
{
    return dense->shape.shared && dense->shape.layers > 0 ? n == DENSE_POLICY : heads->of[n];
}

/* Fills work->features and work->output. */
static void forward(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                    const struct heads *heads)
{
    const uint32_t rows = batch->count, inputs = dense->shape.inputs;
    for (uint32_t first = 0; first < inputs; first += LAYERS_PIECE) {
        const uint32_t width = smaller(inputs - first, LAYERS_PIECE);
        gather(dense, work, batch, first, width);
        for (uint32_t n = 0; n < DENSE_NETWORKS; n++) {
            const struct chain reader = reader_of(dense, work, n);
            if (reads(dense, heads, n))
                layers_read(reader.layers, reader.work, rows, work->inputs, first, width);
        }
    }
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++) {
        const struct chain reader = reader_of(dense, work, n);
        struct dense_matrix *ends = dense_layers(&dense->shape, n) == 0 ? work->output : work->features;
        if (reads(dense, heads, n))
            ends[n] = layers_finish(reader.layers, reader.work);
    }
    /* One after the other: the processor overlaps their chains where there is one row. */
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++)
        if (heads->of[n] && dense_layers(&dense->shape, n) > 0)
            work->output[n] = layers_forward(dense->network[n].head, work->head[n], rows,
                                             work->features[dense->shape.shared ? DENSE_POLICY : n]);
}

/* ---- the heads ---- */

static struct dense_head head_of(const struct dense *dense, const struct dense_work *work,
                                 const struct dense_batch *batch)
{
    return (struct dense_head){.shape = &dense->shape,
                               .outputs = dense->outputs,
                               .batch = *batch,
                               .z = work->output[DENSE_POLICY],
                               .scratch = work->scratch,
                               .sigma = &dense->sigma,
                               .exploration = dense_explores(&dense->shape) ? &dense->exploration : NULL,
                               .features = dense_features(&dense->shape, DENSE_POLICY),
                               .features_at = work->features[DENSE_POLICY],
                               .variance = work->variance};
}

/* The variances of rows whose forward is done, where they depend on the state. */
static void find_variances(const struct dense *dense, const struct dense_work *work, uint32_t rows)
{
    const struct dense_matrix from = work->features[DENSE_POLICY], to = work->squares;
    const uint32_t features = dense_features(&dense->shape, DENSE_POLICY);
    if (!dense_explores(&dense->shape))
        return;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t f = 0; f < features; f++)
            to.at[r * to.stride + f] = from.at[r * from.stride + f] * from.at[r * from.stride + f];
    panels_multiply(dense->product, rows, to, features, dense->exploration.panels,
                    (size_t)features * PRODUCT_BLOCK, dense->shape.components, dense->exploration.begin,
                    work->variance);
}

static void store_values(const struct dense_work *work, uint32_t rows, float *value)
{
    const struct dense_matrix v = work->output[DENSE_VALUE];
    for (uint32_t r = 0; r < rows; r++)
        value[r] = v.at[r * v.stride];
}

void dense_act(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
               const struct dense_draw *draw, const struct dense_results *results)
{
    const struct heads heads = heads_of(true, results->value != NULL);
    assert(batch->count <= DENSE_CHUNK_ROWS && (results->value == NULL || dense->shape.value));
    forward(dense, work, batch, &heads);
    find_variances(dense, work, batch->count);
    const struct dense_head head = head_of(dense, work, batch);
    dense->lanes->act(&head, draw, results->log_probability);
    if (results->value != NULL)
        store_values(work, batch->count, results->value);
}

void dense_evaluate(const struct dense *dense, struct dense_work *work, const struct dense_batch *batch,
                    const struct dense_results *results)
{
    assert(batch->count <= DENSE_CHUNK_ROWS && (results->value == NULL || dense->shape.value));
    const struct heads heads =
        heads_of(results->log_probability != NULL || results->entropy != NULL, results->value != NULL);
    work->batch = *batch;
    forward(dense, work, batch, &heads);
    if (heads.of[DENSE_POLICY]) {
        find_variances(dense, work, batch->count);
        const struct dense_head head = head_of(dense, work, batch);
        dense->lanes->evaluate(&head, results->log_probability, results->entropy);
    }
    if (results->value != NULL)
        store_values(work, batch->count, results->value);
}

/* ---- backward ----
 *
 * The sums go to where work->adds says: onto the gradient, or in its place. */

/* The backward of a chain that reads the observations; they are gathered again unless one piece holds them
 * all. `gradient` is of the chain alone. Both networks add to what pulls at the inputs. */
static void reader_backward(const struct dense *dense, const struct dense_work *work, struct chain chain,
                            struct dense_matrix pull, float *gradient)
{
    const uint32_t inputs = dense->shape.inputs;
    layers_pull(chain.layers, chain.work, pull, gradient, work->adds);
    for (uint32_t first = 0; first < inputs; first += LAYERS_PIECE) {
        const uint32_t width = smaller(inputs - first, LAYERS_PIECE);
        if (inputs > LAYERS_PIECE)
            gather(dense, work, &work->batch, first, width);
        layers_pull_weight(chain.layers, chain.work, work->inputs, first, width, gradient, work->adds);
    }
    if (work->features_pull.at != NULL)
        layers_pull_inputs(chain.layers, chain.work, work->features_pull, true);
}

/* The backward of network n's hidden layers and of the heads that read them: the policy's head first. */
static void backward(const struct dense *dense, const struct dense_work *work, const struct heads *heads,
                     uint32_t n, float *gradient)
{
    const uint32_t layers = dense_layers(&dense->shape, n);
    bool more = false;
    for (uint32_t h = 0; h < DENSE_NETWORKS; h++) {
        const struct chain head = {dense->network[h].head, work->head[h]};
        float *of_head = gradient + dense->network[h].head_at;
        if (!heads->of[h])
            continue;
        if (layers == 0) {
            reader_backward(dense, work, head, work->head_pull[h], of_head);
            continue;
        }
        layers_pull(head.layers, head.work, work->head_pull[h], of_head, work->adds);
        layers_pull_weight(head.layers, head.work, work->features[n], 0, dense_features(&dense->shape, n),
                           of_head, work->adds);
        layers_pull_inputs(head.layers, head.work, work->pull, more);
        more = true;
    }
    if (layers > 0)
        reader_backward(dense, work, reader_of(dense, work, n), work->pull,
                        gradient + dense->network[n].hidden_at);
}

/* Adds dL/d log_std (features, components). */
static void add_exploration(const struct dense *dense, const struct dense_work *work, float *gradient)
{
    const uint32_t features = dense_features(&dense->shape, DENSE_POLICY),
                   components = dense->shape.components;
    const size_t count = (size_t)features * components;
    float *sums = work->exploration_sums;
    if (work->adds) /* onto these */
        memset(sums, 0, count * sizeof *sums);
    summing_add(&work->summing, work->batch.count, work->squares, features, work->log_sigma, components, sums,
                components, 1, work->adds);
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
        summing_add_columns(&work->summing, work->batch.count, work->log_sigma, dense->shape.components,
                            gradient + dense->log_sigma, work->adds);
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

static void place_head(struct places *places, void *of)
{
    struct head *head = of;
    place_deviations(places, &head->dense);
    place_head_work(places, &head->work, &head->dense);
}

enum status head_new(struct head **out, const struct dense_shape *shape, struct error *error)
{
    const struct policy_lanes *lanes = policy_lanes_choose();
    struct head *head = calloc(1, sizeof *head);
    if (head == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy's head");
    head->dense.shape = *shape;
    head->dense.outputs = dense_outputs(shape);
    head->dense.lanes = lanes->dense;
    head->dense.product = lanes->product;
    const enum status status = places_take(&head->memory, place_head, head, "head", error);
    if (status != STATUS_OK) {
        free(head);
        return status;
    }
    summing_begin(&head->work.summing, lanes->product, lanes->dense);
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
    assert(rows->batch.count <= DENSE_CHUNK_ROWS);
    work->batch = rows->batch;
    work->output[DENSE_POLICY] = given(rows->outputs, dense->outputs);
    work->features[DENSE_POLICY] = given(rows->features, dense_features(&dense->shape, DENSE_POLICY));
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
