/* Recurrent layers: the products of a whole sequence at once where they depend on no earlier step, and step
 * by step where they do. The gates are kernels/lanes/row_lanes.h's. */
#include "kernels/policy/recurrent.h"

#include "kernels/lanes/isa.h"
#include "kernels/lanes/row_lanes.h"
#include "kernels/policy/panels.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GATES_MAX = 4, PARTS_MAX = 2 };

/* Rows of a weight (outputs, inputs). */
struct part {
    uint32_t outputs, inputs;
    size_t offset; // of its first number in the flat array
    struct panels panels;
};

struct layer {
    uint32_t inputs;
    struct part of_input;            // panels.backward NULL: of the first layer
    struct part of_state[PARTS_MAX]; // of a GRU: r and z, then n, whose products stay apart
    size_t bias_offset[2];
    float *bias[2]; // (gates * hidden) of the input's products and of the state's
};

struct recurrent {
    struct recurrent_shape shape;
    uint32_t gates, parts;
    struct layer layer[RECURRENT_LAYERS_MAX];
    uint32_t parameter_count;
    struct recurrent_parameter parameters[RECURRENT_PARAMETERS_MAX];
    product_function *product;
    const struct dense_lanes *dense_lanes;
    const struct row_lanes *row_lanes;
    float *memory; // of all layers
};

/* What the forward of a layer keeps of each row. */
struct layer_work {
    struct dense_matrix x;         // (rows, inputs): the layer below's y
    struct dense_matrix gates;     // (rows, gates * hidden); after the backward dL/d of their sums
    struct dense_matrix candidate; // (rows, hidden) of a GRU: n's products of the state, with their bias
    struct dense_matrix h, c;      // (rows, hidden) before the row
    struct dense_matrix y, c_next; // (rows, hidden) after it; y is h'
    struct dense_matrix later_h, later_c; // (slots, hidden) dL/d of the state, from later steps
};

struct recurrent_work {
    const struct recurrent *recurrent;
    struct layer_work layer[RECURRENT_LAYERS_MAX];
    struct dense_matrix pulls;   // (rows, hidden) dL/d y of the layer that goes back
    struct dense_matrix through; // (slots, hidden) dL/d of the states of one step, through the products
    uint32_t rows_max, slots_max;
    struct summing summing;
    float *zeros; // begin of products
    float *memory;
};

/* ---- the shape ---- */

static uint32_t gates_of(const struct recurrent_shape *shape)
{
    static const uint32_t gates[] = {[RECURRENT_LSTM] = 4, [RECURRENT_GRU] = 3, [RECURRENT_LINEAR] = 1};
    return gates[shape->cell];
}

/* Arrays of (hidden) that a layer's state has. */
static uint32_t states_of(const struct recurrent_shape *shape)
{
    static const uint32_t states[] = {[RECURRENT_LSTM] = 2, [RECURRENT_GRU] = 1, [RECURRENT_LINEAR] = 0};
    return states[shape->cell];
}

static uint32_t layer_inputs(const struct recurrent_shape *shape, uint32_t layer)
{
    return layer == 0 ? shape->inputs : shape->hidden;
}

size_t recurrent_state_floats(const struct recurrent_shape *shape)
{
    return (size_t)shape->layers * shape->hidden * states_of(shape);
}

uint32_t recurrent_parameters(const struct recurrent_shape *shape,
                              struct recurrent_parameter out[RECURRENT_PARAMETERS_MAX])
{
    static const char *const names[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh"};
    static const char *const linear_names[] = {"weight", NULL, "bias", NULL};
    const bool linear = shape->cell == RECURRENT_LINEAR;
    const uint32_t rows = gates_of(shape) * shape->hidden;
    uint32_t count = 0;
    size_t offset = 0;
    for (uint32_t i = 0; i < shape->layers * RECURRENT_PARAMETER_KINDS; i++) {
        const uint32_t layer = i / RECURRENT_PARAMETER_KINDS, kind = i % RECURRENT_PARAMETER_KINDS;
        const uint32_t columns = kind == RECURRENT_INPUT_WEIGHT   ? layer_inputs(shape, layer)
                                 : kind == RECURRENT_STATE_WEIGHT ? shape->hidden
                                                                  : 1;
        if (linear && linear_names[kind] == NULL)
            continue;
        out[count] = (struct recurrent_parameter){.kind = kind,
                                                  .layer = layer,
                                                  .rank = kind < RECURRENT_INPUT_BIAS ? 2 : 1,
                                                  .shape = {rows, columns},
                                                  .offset = offset,
                                                  .count = (size_t)rows * columns};
        if (linear)
            snprintf(out[count].name, sizeof out[count].name, "%s", linear_names[kind]);
        else
            snprintf(out[count].name, sizeof out[count].name, "%s_l%u", names[kind], layer);
        offset += out[count++].count;
    }
    return count;
}

size_t recurrent_products(const struct recurrent_shape *shape)
{
    struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
    const uint32_t last = recurrent_parameters(shape, list) - 1;
    return list[last].offset + list[last].count;
}

/* ---- weights ---- */

static void place_part(struct places *places, struct part *part, bool goes_back)
{
    panels_place(places, &part->panels, part->outputs, part->inputs, goes_back);
}

static void place_weights(struct places *places, void *of)
{
    struct recurrent *r = of;
    for (uint32_t l = 0; l < r->shape.layers; l++) {
        struct layer *layer = &r->layer[l];
        place_part(places, &layer->of_input, l > 0);
        for (uint32_t p = 0; p < r->parts; p++)
            place_part(places, &layer->of_state[p], true);
        for (int b = 0; b < 2; b++)
            places_floats(places, &layer->bias[b], product_stride(r->gates * r->shape.hidden));
    }
}

static void describe_part(struct part *part, uint32_t outputs, uint32_t inputs, size_t offset)
{
    *part = (struct part){.outputs = outputs, .inputs = inputs, .offset = offset};
}

static void describe_layers(struct recurrent *r)
{
    static const uint32_t parts[] = {[RECURRENT_LSTM] = 1, [RECURRENT_GRU] = 2, [RECURRENT_LINEAR] = 0};
    const uint32_t hidden = r->shape.hidden;
    r->gates = gates_of(&r->shape);
    r->parts = parts[r->shape.cell];
    r->parameter_count = recurrent_parameters(&r->shape, r->parameters);
    for (uint32_t p = 0; p < r->parameter_count; p++) {
        const struct recurrent_parameter *of = &r->parameters[p];
        const uint32_t first = (r->parts == 1 ? 4 : 2) * hidden;
        struct layer *layer = &r->layer[of->layer];
        if (of->kind == RECURRENT_INPUT_WEIGHT) {
            layer->inputs = of->shape[1];
            describe_part(&layer->of_input, of->shape[0], of->shape[1], of->offset);
        } else if (of->kind == RECURRENT_STATE_WEIGHT) {
            describe_part(&layer->of_state[0], first, hidden, of->offset);
            describe_part(&layer->of_state[1], hidden, hidden, of->offset + (size_t)first * hidden);
        } else {
            layer->bias_offset[of->kind - RECURRENT_INPUT_BIAS] = of->offset;
        }
    }
}

enum status recurrent_new(struct recurrent **out, const struct recurrent_shape *shape, struct error *error)
{
    static const struct row_lanes *const row_lanes[ISA_COUNT] = ISA_EACH(&row_lanes);
    const struct policy_lanes *lanes = policy_lanes_choose();
    assert(shape->inputs >= 1 && shape->hidden >= 1 && shape->hidden <= RECURRENT_HIDDEN_MAX);
    assert(shape->layers >= 1 && shape->layers <= RECURRENT_LAYERS_MAX);
    assert(shape->layers == 1 || shape->cell != RECURRENT_LINEAR);
    struct recurrent *r = calloc(1, sizeof *r);
    if (r == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy's recurrent layers");
    r->shape = *shape;
    r->product = lanes->product;
    r->dense_lanes = lanes->dense;
    r->row_lanes = row_lanes[isa_or_baseline()];
    describe_layers(r);
    const enum status status = places_take(&r->memory, place_weights, r, "recurrent weights", error);
    if (status == STATUS_OK)
        *out = r;
    else
        free(r);
    return status;
}

void recurrent_free(struct recurrent *r)
{
    if (r == NULL)
        return;
    free(r->memory);
    free(r);
}

static void load_part(const struct part *part, const float *parameters)
{
    panels_load(&part->panels, parameters + part->offset, part->outputs, part->inputs);
}

void recurrent_load_parameter(struct recurrent *r, const float *parameters, uint32_t number)
{
    const struct recurrent_parameter *parameter = &r->parameters[number];
    const struct layer *layer = &r->layer[parameter->layer];
    if (parameter->kind == RECURRENT_INPUT_WEIGHT)
        load_part(&layer->of_input, parameters);
    else if (parameter->kind == RECURRENT_STATE_WEIGHT)
        for (uint32_t p = 0; p < r->parts; p++)
            load_part(&layer->of_state[p], parameters);
    else
        memcpy(layer->bias[parameter->kind - RECURRENT_INPUT_BIAS], parameters + parameter->offset,
               parameter->count * sizeof *parameters);
}

/* ---- the workspace ---- */

static void place_layer_work(struct places *places, struct layer_work *work, const struct recurrent *r,
                             uint32_t rows, uint32_t slots)
{
    const uint32_t hidden = r->shape.hidden;
    places_matrix(places, &work->gates, rows, r->gates * hidden);
    places_matrix(places, &work->h, rows, hidden);
    places_matrix(places, &work->y, rows, hidden);
    places_matrix(places, &work->later_h, slots, hidden);
    places_matrix(places, &work->later_c, slots, hidden);
    if (r->shape.cell == RECURRENT_GRU)
        places_matrix(places, &work->candidate, rows, hidden);
    if (r->shape.cell != RECURRENT_LSTM)
        return;
    places_matrix(places, &work->c, rows, hidden);
    places_matrix(places, &work->c_next, rows, hidden);
}

static void place_work(struct places *places, void *of)
{
    struct recurrent_work *work = of;
    const struct recurrent *r = work->recurrent;
    const uint32_t rows = work->rows_max, hidden = r->shape.hidden, outputs = r->gates * hidden;
    places_matrix(places, &work->layer[0].x, rows, r->shape.inputs);
    for (uint32_t l = 0; l < r->shape.layers; l++) {
        place_layer_work(places, &work->layer[l], r, rows, work->slots_max);
        if (l > 0)
            work->layer[l].x = work->layer[l - 1].y;
    }
    places_matrix(places, &work->pulls, rows, hidden);
    places_matrix(places, &work->through, work->slots_max, hidden);
    summing_place(places, &work->summing);
    places_floats(places, &work->zeros,
                  product_stride(outputs > r->shape.inputs ? outputs : r->shape.inputs));
}

enum status recurrent_work_new(struct recurrent_work **out, const struct recurrent *r, uint32_t rows_max,
                               uint32_t slots_max, struct error *error)
{
    struct recurrent_work *work = calloc(1, sizeof *work);
    if (work == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy's sequences");
    work->rows_max = rows_max;
    work->slots_max = slots_max;
    work->recurrent = r;
    const enum status status = places_take(&work->memory, place_work, work, "sequences", error);
    if (status != STATUS_OK) {
        free(work);
        return status;
    }
    summing_begin(&work->summing, r->product, r->dense_lanes);
    *out = work;
    return STATUS_OK;
}

void recurrent_work_free(struct recurrent_work *work)
{
    if (work == NULL)
        return;
    free(work->memory);
    free(work);
}

struct dense_matrix recurrent_inputs(const struct recurrent_work *work)
{
    return work->layer[0].x;
}

struct dense_matrix recurrent_pulls(const struct recurrent_work *work)
{
    return work->pulls;
}

static float *row_of(struct dense_matrix matrix, uint32_t row)
{
    return matrix.at + row * matrix.stride;
}

static struct dense_matrix rows_from(struct dense_matrix matrix, uint32_t first)
{
    return (struct dense_matrix){row_of(matrix, first), matrix.stride};
}

/* c = begin + a b for `rows` rows, b a panel of `depth` by `columns`; begin NULL: on to what is there. */
static void multiply(const struct recurrent *r, uint32_t rows, struct dense_matrix a, uint32_t depth,
                     const float *panels, uint32_t columns, const float *begin, struct dense_matrix c)
{
    panels_multiply(r->product, rows, a, depth, panels, (size_t)depth * PRODUCT_BLOCK, columns, begin, c);
}

static bool starts_at(const struct recurrent_rows *rows, uint32_t row)
{
    return rows->starts != NULL && rows->starts[row] != 0;
}

/* ---- forward ---- */

/* Where the layer's state of a row's slot stands in `state`. */
static float *state_of(const struct recurrent *r, const struct recurrent_rows *rows, uint32_t row, uint32_t l,
                       float *state)
{
    const size_t all = recurrent_state_floats(&r->shape);
    return state + rows->slot[row] * all + l * (all / r->shape.layers);
}

/* What the row's cell remembers. */
static void recall(const struct recurrent *r, const struct layer_work *work,
                   const struct recurrent_rows *rows, uint32_t row, const float *state)
{
    const size_t bytes = r->shape.hidden * sizeof *state;
    const bool starts = starts_at(rows, row);
    for (uint32_t i = 0; i < states_of(&r->shape); i++) {
        float *to = row_of(i == 0 ? work->h : work->c, row);
        if (starts)
            memset(to, 0, bytes);
        else
            memcpy(to, state + i * r->shape.hidden, bytes);
    }
}

static void lstm_row(const struct recurrent *r, const struct layer *layer, const struct layer_work *work,
                     uint32_t row, float *state)
{
    const uint32_t hidden = r->shape.hidden;
    r->row_lanes->lstm_forward(&(struct row_lstm){.hidden = hidden,
                                                  .gates = row_of(work->gates, row),
                                                  .bias = {layer->bias[0], layer->bias[1]},
                                                  .c_prev = row_of(work->c, row),
                                                  .c = row_of(work->c_next, row),
                                                  .h = row_of(work->y, row)});
    memcpy(state + hidden, row_of(work->c_next, row), hidden * sizeof *state);
}

static void gru_row(const struct recurrent *r, const struct layer *layer, const struct layer_work *work,
                    uint32_t row)
{
    r->row_lanes->gru_forward(&(struct row_gru){.hidden = r->shape.hidden,
                                                .gates = row_of(work->gates, row),
                                                .candidate = row_of(work->candidate, row),
                                                .bias = {layer->bias[0], layer->bias[1]},
                                                .h_prev = row_of(work->h, row),
                                                .h = row_of(work->y, row)});
}

/* Rows first … end - 1, of one step. */
static void step_forward(const struct recurrent *r, const struct recurrent_work *work,
                         const struct recurrent_rows *rows, uint32_t l, uint32_t first, uint32_t end,
                         float *state)
{
    const struct layer *layer = &r->layer[l];
    const struct layer_work *own = &work->layer[l];
    const uint32_t hidden = r->shape.hidden;
    const struct dense_matrix h = rows_from(own->h, first);
    for (uint32_t row = first; row < end; row++)
        recall(r, own, rows, row, state_of(r, rows, row, l, state));
    multiply(r, end - first, h, hidden, layer->of_state[0].panels.forward, layer->of_state[0].outputs, NULL,
             rows_from(own->gates, first));
    if (r->parts > 1)
        multiply(r, end - first, h, hidden, layer->of_state[1].panels.forward, hidden, work->zeros,
                 rows_from(own->candidate, first));
    for (uint32_t row = first; row < end; row++) {
        float *remembered = state_of(r, rows, row, l, state);
        if (r->shape.cell == RECURRENT_LSTM)
            lstm_row(r, layer, own, row, remembered);
        else
            gru_row(r, layer, own, row);
        memcpy(remembered, row_of(own->y, row), hidden * sizeof *remembered);
    }
}

struct dense_matrix recurrent_forward(const struct recurrent *r, struct recurrent_work *work,
                                      const struct recurrent_rows *rows, struct recurrent_range range,
                                      float *state)
{
    const uint32_t first = rows->first[range.begin], count = rows->first[range.end] - first;
    assert(rows->first[range.end] <= work->rows_max);
    for (uint32_t l = 0; l < r->shape.layers; l++) {
        const struct layer *layer = &r->layer[l];
        const bool linear = r->parts == 0;
        multiply(r, count, rows_from(work->layer[l].x, first), layer->inputs, layer->of_input.panels.forward,
                 layer->of_input.outputs, linear ? layer->bias[0] : work->zeros,
                 rows_from(linear ? work->layer[l].y : work->layer[l].gates, first));
        for (uint32_t step = range.begin; step < range.end && !linear; step++)
            step_forward(r, work, rows, l, rows->first[step], rows->first[step + 1], state);
    }
    return rows_from(work->layer[r->shape.layers - 1].y, first);
}

/* ---- backward ---- */

/* dL/d of the gates' sums in the gates' place, and of the state before the row in its slot's place: of h what
 * does not go through products. */
static void row_backward(const struct recurrent *r, const struct recurrent_work *work,
                         const struct layer_work *own, uint32_t row, uint32_t slot)
{
    float *gates = row_of(own->gates, row), *h = row_of(own->later_h, slot);
    const float *dy = row_of(work->pulls, row);
    if (r->shape.cell == RECURRENT_LSTM) {
        r->row_lanes->lstm_backward(&(struct row_lstm){.hidden = r->shape.hidden,
                                                       .gates = gates,
                                                       .c_prev = row_of(own->c, row),
                                                       .c = row_of(own->c_next, row),
                                                       .dy = dy,
                                                       .dh = h,
                                                       .dc = row_of(own->later_c, slot),
                                                       .dsums = gates});
        memset(h, 0, r->shape.hidden * sizeof *h);
        return;
    }
    float *candidate = row_of(own->candidate, row);
    r->row_lanes->gru_backward(&(struct row_gru){.hidden = r->shape.hidden,
                                                 .gates = gates,
                                                 .candidate = candidate,
                                                 .h_prev = row_of(own->h, row),
                                                 .dy = dy,
                                                 .dh = h,
                                                 .dsums = gates,
                                                 .dcandidate = candidate});
}

/* Hands what a row's state pulls at to the step before; nothing goes beyond a start. */
static void hand_back(const struct recurrent *r, const struct layer_work *own, uint32_t slot,
                      const float *through, bool starts)
{
    float *h = row_of(own->later_h, slot), *c = row_of(own->later_c, slot);
    const uint32_t hidden = r->shape.hidden;
    for (uint32_t i = 0; i < hidden; i++)
        h[i] = starts ? 0 : h[i] + through[i];
    if (starts)
        memset(c, 0, hidden * sizeof *c);
}

static void step_backward(const struct recurrent *r, const struct recurrent_work *work,
                          const struct recurrent_rows *rows, uint32_t l, uint32_t first, uint32_t end)
{
    const struct layer *layer = &r->layer[l];
    const struct layer_work *own = &work->layer[l];
    const uint32_t hidden = r->shape.hidden, count = end - first;
    for (uint32_t row = first; row < end; row++)
        row_backward(r, work, own, row, rows->slot[row]);
    multiply(r, count, rows_from(own->gates, first), layer->of_state[0].outputs,
             layer->of_state[0].panels.backward, hidden, work->zeros, work->through);
    if (r->parts > 1)
        multiply(r, count, rows_from(own->candidate, first), hidden, layer->of_state[1].panels.backward,
                 hidden, NULL, work->through);
    for (uint32_t row = first; row < end; row++)
        hand_back(r, own, rows->slot[row], row_of(work->through, row - first), starts_at(rows, row));
}

/* Adds the gradient of the layer's parameters over `count` rows from `first` on. */
static void add_chunk(const struct recurrent *r, const struct recurrent_work *work, uint32_t l,
                      uint32_t first, uint32_t count, float *gradient, bool adds)
{
    const struct layer *layer = &r->layer[l];
    const struct layer_work *own = &work->layer[l];
    const uint32_t hidden = r->shape.hidden;
    const struct dense_matrix x = rows_from(own->x, first);
    const struct dense_matrix gates = rows_from(own->gates, first), h = rows_from(own->h, first);
    summing_add_weight(&work->summing, count, gates, layer->of_input.outputs, x, layer->inputs,
                       gradient + layer->of_input.offset, layer->inputs, adds);
    summing_add_columns(&work->summing, count, gates, layer->of_input.outputs,
                        gradient + layer->bias_offset[0], adds);
    float *bias = gradient + layer->bias_offset[1];
    for (uint32_t p = 0; p < r->parts; p++) {
        const struct part *part = &layer->of_state[p];
        const struct dense_matrix sums = p == 0 ? gates : rows_from(own->candidate, first);
        summing_add_weight(&work->summing, count, sums, part->outputs, h, hidden, gradient + part->offset,
                           hidden, adds);
        summing_add_columns(&work->summing, count, sums, part->outputs, bias, adds);
        bias += part->outputs;
    }
}

/* The layer's steps of the range, last one first, and its gradient. */
static void layer_backward(const struct recurrent *r, const struct recurrent_work *work,
                           const struct recurrent_rows *rows, struct recurrent_range range, uint32_t l,
                           float *gradient, bool adds)
{
    const uint32_t begin = rows->first[range.begin], end = rows->first[range.end];
    const struct layer_work *own = &work->layer[l];
    if (range.end == rows->steps) {
        memset(own->later_h.at, 0, work->slots_max * own->later_h.stride * sizeof(float));
        memset(own->later_c.at, 0, work->slots_max * own->later_c.stride * sizeof(float));
    }
    for (uint32_t step = range.end; r->parts > 0 && step-- > range.begin;)
        step_backward(r, work, rows, l, rows->first[step], rows->first[step + 1]);
    for (uint32_t first = begin; first < end; first += DENSE_CHUNK_ROWS)
        add_chunk(r, work, l, first, end - first < DENSE_CHUNK_ROWS ? end - first : DENSE_CHUNK_ROWS,
                  gradient, adds || first > begin);
}

void recurrent_backward(const struct recurrent *r, struct recurrent_work *work,
                        const struct recurrent_rows *rows, struct recurrent_range range, float *gradient,
                        bool adds)
{
    const uint32_t first = rows->first[range.begin], count = rows->first[range.end] - first;
    const struct dense_matrix pulls = rows_from(work->pulls, first);
    if (r->parts == 0)
        memcpy(row_of(work->layer[0].gates, first), pulls.at, count * pulls.stride * sizeof(float));
    for (uint32_t l = r->shape.layers; l-- > 0;) {
        const struct part *part = &r->layer[l].of_input;
        const struct dense_matrix gates = rows_from(work->layer[l].gates, first);
        layer_backward(r, work, rows, range, l, gradient, adds);
        if (l > 0)
            multiply(r, count, gates, part->outputs, part->panels.backward, part->inputs, work->zeros, pulls);
    }
}
