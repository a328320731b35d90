/* A general policy's weights: memory, and their order for the products. */
#include "kernels/policy/dense_internal.h"

#include "kernels/lanes/isa.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

/* ---- memory ----
 *
 * A first pass over what a struct needs counts the floats; a second one, with memory, sets the pointers. */

struct places {
    float *memory; // NULL: count only
    size_t used;
};

static void place(struct places *places, float **at, size_t floats)
{
    if (places->memory != NULL)
        *at = places->memory + places->used;
    places->used += (floats + PRODUCT_BLOCK - 1) / PRODUCT_BLOCK * PRODUCT_BLOCK;
}

/* Zeros, from a cache line's begin. */
static enum status take_places(struct places *places, const char *what, struct error *error)
{
    const size_t bytes = places->used * sizeof(float);
    *places = (struct places){.memory = aligned_alloc(64, bytes)};
    if (places->memory == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the %zu bytes of a policy's %s", bytes,
                         what);
    memset(places->memory, 0, bytes);
    return STATUS_OK;
}

static void place_matrix(struct places *places, struct dense_matrix *matrix, size_t rows, uint32_t columns)
{
    matrix->stride = product_stride(columns);
    place(places, &matrix->at, rows * matrix->stride);
}

/* ---- the weights ---- */

static void place_layer(struct places *places, struct dense_layer *layer, bool first)
{
    const size_t out_blocks = product_blocks(layer->outputs), in_blocks = product_blocks(layer->inputs);
    place(places, &layer->begin, out_blocks * PRODUCT_BLOCK);
    place(places, &layer->forward, out_blocks * layer->inputs * PRODUCT_BLOCK);
    if (!first)
        place(places, &layer->backward, in_blocks * layer->outputs * PRODUCT_BLOCK);
}

static void place_exploration(struct places *places, struct dense *dense)
{
    const size_t features = dense_features(&dense->shape), components = dense->shape.components;
    struct dense_exploration *exploration = &dense->exploration;
    if (!dense_explores(&dense->shape))
        return;
    place(places, &exploration->sigma, features * components);
    place(places, &exploration->squares, features * components);
    place(places, &exploration->panels, product_stride(dense->shape.components) * features);
    place(places, &exploration->begin, product_stride(dense->shape.components));
}

static void place_dense(struct places *places, struct dense *dense)
{
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++)
        for (uint32_t l = 0; l <= dense->shape.layers; l++)
            if (dense_has_layer(&dense->shape, n, l))
                place_layer(places, &dense->layer[n][l], l == 0);
    place_exploration(places, dense);
    place(places, &dense->sigma.sigma, dense->shape.components);
    place(places, &dense->sigma.inverse, dense->shape.components);
    place(places, &dense->sigma.shift, dense->shape.components);
}

/* The layers' sizes, and where their parameters are. */
static void describe_layers(struct dense *dense)
{
    dense->parameter_count = dense_parameters(&dense->shape, dense->parameters);
    for (uint32_t p = 0; p < dense->parameter_count; p++) {
        const struct dense_parameter *parameter = &dense->parameters[p];
        struct dense_layer *layer = &dense->layer[parameter->network][parameter->layer];
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

enum status dense_choose(const struct dense_lanes **lanes, product_function **product, struct error *error)
{
    static const struct dense_lanes *const tables[ISA_COUNT] = {[ISA_BASELINE] = &dense_lanes_baseline,
                                                                [ISA_AVX2] = &dense_lanes_avx2,
                                                                [ISA_AVX512] = &dense_lanes_avx512};
    static product_function *const products[ISA_COUNT] = {
        [ISA_BASELINE] = product_baseline, [ISA_AVX2] = product_avx2, [ISA_AVX512] = product_avx512};
    enum isa isa = ISA_BASELINE;
    const enum status status = isa_choose(&isa, error);
    *lanes = tables[isa];
    if (product != NULL)
        *product = products[isa];
    return status;
}

enum status dense_new(struct dense **out, const struct dense_shape *shape, struct error *error)
{
    const struct dense_lanes *lanes;
    product_function *product;
    enum status status = dense_check_shape(shape, error);
    if (status == STATUS_OK)
        status = dense_choose(&lanes, &product, error);
    if (status != STATUS_OK)
        return status;
    struct dense *dense = calloc(1, sizeof *dense);
    if (dense == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy");
    dense->shape = *shape;
    dense->outputs = dense_outputs(shape);
    dense->lanes = lanes;
    dense->product = product;
    describe_layers(dense);
    struct places places = {0};
    place_dense(&places, dense);
    status = take_places(&places, "weights", error);
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

/* to[k][n] = from[n][k] for 4 by 4 numbers. */
static void transpose_four(float *to, const float *from, uint32_t depth)
{
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + depth);
    __m128 c = _mm_loadu_ps(from + 2 * (size_t)depth), d = _mm_loadu_ps(from + 3 * (size_t)depth);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_store_ps(to, a);
    _mm_store_ps(to + PRODUCT_BLOCK, b);
    _mm_store_ps(to + 2 * PRODUCT_BLOCK, c);
    _mm_store_ps(to + 3 * PRODUCT_BLOCK, d);
}

/* panel (depth, 16)[k][n] = from[n][k], for at most 16 rows of `from`. */
static void pack_transposed(float *panel, const float *from, uint32_t rows, uint32_t depth)
{
    const uint32_t whole_rows = rows - rows % 4, whole_depth = depth - depth % 4;
    for (uint32_t k = 0; k < whole_depth; k += 4)
        for (uint32_t n = 0; n < whole_rows; n += 4)
            transpose_four(panel + (size_t)k * PRODUCT_BLOCK + n, from + (size_t)n * depth + k, depth);
    for (uint32_t n = 0; n < rows; n++)
        for (uint32_t k = n < whole_rows ? whole_depth : 0; k < depth; k++)
            panel[(size_t)k * PRODUCT_BLOCK + n] = from[(size_t)n * depth + k];
}

/* panels (blocks of columns, depth, 16)[n / 16][k][n % 16] = from[k][n], for k of [first, end). */
static void pack(float *panels, const float *from, uint32_t columns, uint32_t depth, uint32_t first,
                 uint32_t end)
{
    const uint32_t whole = columns - columns % PRODUCT_BLOCK;
    for (uint32_t n = 0; n < whole; n += PRODUCT_BLOCK)
        for (uint32_t k = first; k < end; k++)
            memcpy(panels + (size_t)n * depth + (size_t)k * PRODUCT_BLOCK, from + (size_t)k * columns + n,
                   PRODUCT_BLOCK * sizeof *panels);
    for (uint32_t k = first; k < end && whole < columns; k++)
        memcpy(panels + (size_t)whole * depth + (size_t)k * PRODUCT_BLOCK, from + (size_t)k * columns + whole,
               (columns - whole) * sizeof *panels);
}

/* Both orders of a weight, 16 rows at a time: the second order finds them in the nearest cache. */
static void load_weight(const struct dense_layer *layer, const float *weight)
{
    const uint32_t inputs = layer->inputs, outputs = layer->outputs;
    for (uint32_t first = 0; first < outputs; first += PRODUCT_BLOCK) {
        const uint32_t end = outputs - first < PRODUCT_BLOCK ? outputs : first + PRODUCT_BLOCK;
        pack_transposed(layer->forward + (size_t)first * inputs, weight + (size_t)first * inputs, end - first,
                        inputs);
        if (layer->backward != NULL)
            pack(layer->backward, weight, inputs, outputs, first, end);
    }
}

void dense_sigma_load(struct dense_sigma *sigma, const struct dense_lanes *lanes, const float *log_std,
                      uint32_t components)
{
    const double half_log_two_pi = 0.918938533204672741780;
    double entropy = 0;
    memcpy(sigma->sigma, log_std, components * sizeof *log_std);
    for (uint32_t d = 0; d < components; d += DENSE_LANES) // in place: each number by itself
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
    for (size_t i = 0; i < count; i += DENSE_LANES) // in place: each number by itself
        dense->lanes->exp(exploration->sigma + i, exploration->sigma + i);
    for (size_t i = 0; i < count; i++)
        exploration->squares[i] = exploration->sigma[i] * exploration->sigma[i];
    pack(exploration->panels, exploration->squares, components, features, 0, features);
    for (uint32_t d = 0; d < components; d++)
        exploration->begin[d] = 1e-6f;
}

void dense_load_parameter(struct dense *dense, const float *parameters, uint32_t number)
{
    const struct dense_parameter *parameter = &dense->parameters[number];
    const struct dense_layer *layer = &dense->layer[parameter->network][parameter->layer];
    const float *from = parameters + parameter->offset;
    switch (parameter->kind) {
    case DENSE_WEIGHT:
        load_weight(layer, from);
        return;
    case DENSE_BIAS:
        memcpy(layer->begin, from, layer->outputs * sizeof *layer->begin);
        return;
    case DENSE_LOG_SIGMA:
        if (dense_explores(&dense->shape))
            load_exploration(dense, from);
        else
            dense_sigma_load(&dense->sigma, dense->lanes, from, dense->shape.components);
    }
}

void dense_load(struct dense *dense, const float *parameters)
{
    for (uint32_t number = 0; number < dense->parameter_count; number++)
        dense_load_parameter(dense, parameters, number);
}

const struct dense_shape *dense_shape(const struct dense *dense)
{
    return &dense->shape;
}

const char *dense_isa(const struct dense *dense)
{
    return dense->lanes->name;
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

static void place_work(struct places *places, struct dense_work *work, const struct dense *dense)
{
    const uint32_t inputs = dense->shape.inputs, rows = DENSE_CHUNK_ROWS;
    place_matrix(places, &work->inputs, rows, inputs < DENSE_INPUT_BLOCK ? inputs : DENSE_INPUT_BLOCK);
    for (uint32_t n = 0; n < DENSE_NETWORKS; n++)
        for (uint32_t l = 0; l <= dense->shape.layers; l++)
            if (dense_has_layer(&dense->shape, n, l))
                place_matrix(places, &work->output[n][l], rows, dense->layer[n][l].outputs);
    place_matrix(places, &work->head_pull[DENSE_POLICY], rows, dense->outputs);
    if (dense->shape.value)
        place_matrix(places, &work->head_pull[DENSE_VALUE], rows, 1);
    for (int p = 0; p < 2; p++)
        place(places, &work->pull[p], rows * product_stride(widest(dense)));
    if (dense->shape.gaussian)
        place_matrix(places, &work->log_sigma, rows, dense->shape.components);
    if (dense_explores(&dense->shape)) {
        place_matrix(places, &work->squares, rows, dense_features(&dense->shape));
        place_matrix(places, &work->variance, rows, dense->shape.components);
        place(places, &work->exploration_sums,
              (size_t)dense_features(&dense->shape) * dense->shape.components);
    }
    place_matrix(places, &work->piece, DENSE_PIECE_ROWS, DENSE_PIECE_COLUMNS);
    place(places, &work->scratch, 2 * dense->outputs * DENSE_LANES);
    place(places, &work->zeros, DENSE_OUTPUTS_MAX);
    place(places, &work->ones, DENSE_CHUNK_ROWS);
}

enum status dense_work_new(struct dense_work **out, const struct dense *dense, struct error *error)
{
    struct places places = {0};
    struct dense_work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy's rows");
    place_work(&places, work, dense);
    const enum status status = take_places(&places, "rows", error);
    if (status != STATUS_OK) {
        free(work);
        return status;
    }
    work->memory = places.memory;
    place_work(&places, work, dense);
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
