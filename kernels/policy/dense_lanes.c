/* Activations, heads and sums of a general policy, compiled once per instruction set; any thread.
 *
 * At a head the rows lie across the lanes, as many as one register holds, and every sum over choices or
 * components runs in ascending order within a lane. Lanes without a row hold zeros. */
#include "kernels/policy/lanes_internal.h"

#include "kernels/lanes/exp_log_tanh.h"
#include "kernels/lanes/normal_pair.h"

#include <assert.h>
#include <math.h>

/* ---- activations and sums ---- */

LANES_INLINE void activate_rows(struct dense_matrix h, uint32_t rows, uint32_t blocks, bool is_tanh)
{
    for (uint32_t r = 0; r < rows; r++) {
        float *row = h.at + r * h.stride;
        for (uint32_t i = 0; i < blocks * LANES_COUNT; i += LANES_WIDTH) {
            const vf x = lanes_load(row + i);
            lanes_store(row + i, is_tanh ? lanes_tanh(x) : lanes_max((vf){}, x));
        }
    }
}

static void activate(enum dense_activation activation, struct dense_matrix h, uint32_t rows, uint32_t blocks)
{
    if (activation == DENSE_TANH)
        activate_rows(h, rows, blocks, true);
    else
        activate_rows(h, rows, blocks, false);
}

LANES_INLINE void slope_rows(struct dense_matrix dh, struct dense_matrix h, uint32_t rows, uint32_t blocks,
                             bool is_tanh)
{
    for (uint32_t r = 0; r < rows; r++) {
        float *to = dh.at + r * dh.stride;
        const float *from = h.at + r * h.stride;
        for (uint32_t i = 0; i < blocks * LANES_COUNT; i += LANES_WIDTH) {
            const vf x = lanes_load(from + i), d = lanes_load(to + i);
            lanes_store(to + i,
                        is_tanh ? d * lanes_fma(-x, x, lanes_set(1.0f)) : lanes_where_less((vf){}, x, d));
        }
    }
}

static void slope(enum dense_activation activation, struct dense_matrix dh, struct dense_matrix h,
                  uint32_t rows, uint32_t blocks)
{
    if (activation == DENSE_TANH)
        slope_rows(dh, h, rows, blocks, true);
    else
        slope_rows(dh, h, rows, blocks, false);
}

LANES_INLINE void add_rows(float *to, size_t row_step, size_t column_step, struct dense_matrix sums,
                           uint32_t rows, uint32_t columns, bool adds)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < columns; c++) {
            float *at = &to[r * row_step + c * column_step];
            *at = (adds ? *at : 0) + sums.at[r * sums.stride + c];
        }
}

static void add(float *to, size_t row_step, size_t column_step, struct dense_matrix sums, uint32_t rows,
                uint32_t columns, bool adds)
{
    if (column_step == 1 && adds)
        add_rows(to, row_step, 1, sums, rows, columns, true);
    else if (column_step == 1)
        add_rows(to, row_step, 1, sums, rows, columns, false);
    else
        add_rows(to, row_step, column_step, sums, rows, columns, adds);
}

/* ---- rows across the lanes ---- */

/* Rows [first, first + rows) of the batch, row first + l in lane l. */
struct tile {
    const struct dense_head *head;
    uint32_t first, rows;
};

static struct tile tile_of(const struct dense_head *head, uint32_t first)
{
    const uint32_t left = head->batch.count - first;
    return (struct tile){head, first, left < LANES_WIDTH ? left : LANES_WIDTH};
}

/* values[first + l] in lane l; zeros if `values` is NULL. */
LANES_INLINE vf tile_load(const struct tile *tile, const float *values)
{
    float lane[LANES_WIDTH] = {0};
    if (values != NULL)
        memcpy(lane, values + tile->first, tile->rows * sizeof *lane);
    return lanes_load(lane);
}

LANES_INLINE void tile_store(const struct tile *tile, float *values, vf x)
{
    float lane[LANES_WIDTH];
    lanes_store(lane, x);
    if (values != NULL)
        memcpy(values + tile->first, lane, tile->rows * sizeof *lane);
}

LANES_INLINE vu tile_load_u32(const struct tile *tile, const uint32_t *values)
{
    uint32_t lane[LANES_WIDTH] = {0};
    memcpy(lane, values + tile->first, tile->rows * sizeof *lane);
    return lanes_load_u32(lane);
}

/* Column `column` of the tile's rows. */
LANES_INLINE vf tile_column(const struct tile *tile, struct dense_matrix matrix, uint32_t column)
{
    float lane[LANES_WIDTH] = {0};
    for (uint32_t l = 0; l < tile->rows; l++)
        lane[l] = matrix.at[(tile->first + l) * matrix.stride + column];
    return lanes_load(lane);
}

LANES_INLINE void tile_store_column(const struct tile *tile, struct dense_matrix matrix, uint32_t column,
                                    vf x)
{
    float lane[LANES_WIDTH];
    lanes_store(lane, x);
    for (uint32_t l = 0; l < tile->rows; l++)
        matrix.at[(tile->first + l) * matrix.stride + column] = lane[l];
}

/* Block `block` of a stream, of each lane's row at the step `step`. */
LANES_INLINE void tile_draw_at(const struct tile *tile, const struct dense_draw *draw, enum rng_stream stream,
                               uint32_t block, vu step, vu words[4])
{
    words[0] = lanes_set_u32((uint32_t)stream << RNG_STREAM_SHIFT | block);
    words[1] = tile_load_u32(tile, draw->environment);
    words[2] = step;
    words[3] = lanes_set_u32(draw->episode);
    lanes_philox(words, (uint32_t)draw->seed, (uint32_t)(draw->seed >> 32));
}

/* Block `block` of RNG_ACTION, of each lane's row. */
LANES_INLINE void tile_draw(const struct tile *tile, const struct dense_draw *draw, uint32_t block,
                            vu words[4])
{
    tile_draw_at(tile, draw, RNG_ACTION, block, tile_load_u32(tile, draw->step), words);
}

/* ---- Categorical ---- */

/* One component of a tile: choice a of lane l at a * LANES_WIDTH + l. */
struct component {
    uint32_t number, offset, choices; // its first output
    float *z;                         // less the greatest; -infinity where the mask forbids
    float *e;                         // exp(z)
    vf total, log_total;              // of e
};

static bool allows(const struct tile *tile, const struct component *component, uint32_t l, uint32_t choice)
{
    const struct dense_batch *batch = &tile->head->batch;
    const size_t row = batch->row[tile->first + l];
    return batch->mask == NULL || batch->mask[row * tile->head->outputs + component->offset + choice] != 0;
}

/* z as the network gave it, and -infinity where the mask forbids. */
LANES_INLINE void load_logits(const struct tile *tile, const struct component *component)
{
    const struct dense_matrix z = tile->head->z;
    if (tile->rows < LANES_WIDTH)
        memset(component->z, 0, (size_t)component->choices * LANES_WIDTH * sizeof *component->z);
    for (uint32_t l = 0; l < tile->rows; l++) {
        const float *logits = z.at + (tile->first + l) * z.stride + component->offset;
        for (uint32_t a = 0; a < component->choices; a++)
            component->z[a * LANES_WIDTH + l] = logits[a];
    }
    if (tile->head->batch.mask == NULL)
        return;
    for (uint32_t l = 0; l < tile->rows; l++)
        for (uint32_t a = 0; a < component->choices; a++)
            if (!allows(tile, component, l, a))
                component->z[a * LANES_WIDTH + l] = -INFINITY;
}

LANES_INLINE void softmax(const struct tile *tile, struct component *component)
{
    load_logits(tile, component);
    vf highest = lanes_load(component->z), total = {};
    for (uint32_t a = 1; a < component->choices; a++)
        highest = lanes_max(highest, lanes_load(component->z + a * LANES_WIDTH));
    for (uint32_t a = 0; a < component->choices; a++) {
        const vf z = lanes_load(component->z + a * LANES_WIDTH) - highest, e = lanes_exp(z);
        lanes_store(component->z + a * LANES_WIDTH, z);
        lanes_store(component->e + a * LANES_WIDTH, e);
        total += e;
    }
    component->total = total;
    component->log_total = lanes_log_full(total);
}

/* The component that follows, or the first. False behind the last. */
static bool next_component(const struct tile *tile, struct component *component)
{
    const struct dense_shape *shape = tile->head->shape;
    if (component->choices != 0) {
        component->offset += component->choices;
        component->number++;
    }
    if (component->number == shape->components)
        return false;
    component->choices = shape->choices[component->number];
    component->z = tile->head->scratch;
    component->e = tile->head->scratch + (size_t)component->choices * LANES_WIDTH;
    return true;
}

/* The last choice with P above 0 before which the sum of the P is not above the uniform: as the sums only
 * grow, that is the first whose own sum is above it, if any is. */
LANES_INLINE vf draw_choice(const struct tile *tile, const struct dense_draw *draw,
                            const struct component *component)
{
    vu words[4];
    tile_draw(tile, draw, component->number, words);
    const vf uniform = __builtin_convertvector((vi)(words[0] >> 8), vf) * 0x1p-24f;
    vf before = {}, chosen = {};
    for (uint32_t a = 0; a < component->choices; a++) {
        const vf e = lanes_load(component->e + a * LANES_WIDTH);
        const vf possible = lanes_where_less((vf){}, e, lanes_set((float)a));
        chosen = lanes_max(chosen, lanes_where_not_less(uniform, before, possible));
        before += e / component->total;
    }
    return chosen;
}

/* The first of the greatest logits: z is 0 there. */
LANES_INLINE vf greatest_choice(const struct component *component)
{
    vf chosen = {};
    for (uint32_t a = component->choices; a-- > 0;) {
        const vf z = lanes_load(component->z + a * LANES_WIDTH);
        chosen = lanes_choose_less(z, (vf){}, chosen, lanes_set((float)a));
    }
    return chosen;
}

/* A lane's choice as a number. After a NaN or an infinity it may be one that the mask forbids: then the first
 * that it allows. */
static uint32_t allowed_choice(const struct tile *tile, const struct component *component, uint32_t l,
                               float chosen)
{
    uint32_t choice = (uint32_t)chosen;
    if (allows(tile, component, l, choice))
        return choice;
    for (choice = 0; choice + 1 < component->choices; choice++)
        if (allows(tile, component, l, choice))
            break;
    return choice;
}

static int32_t *chosen_of(const struct tile *tile, const struct component *component, uint32_t l)
{
    const struct dense_batch *batch = &tile->head->batch;
    return &batch->choices[(size_t)batch->row[tile->first + l] * tile->head->shape->components +
                           component->number];
}

/* Each lane's log-probability of the batch's choice. */
LANES_INLINE vf log_probability_of_chosen(const struct tile *tile, const struct component *component)
{
    float z[LANES_WIDTH] = {0};
    for (uint32_t l = 0; l < tile->rows; l++) {
        const int32_t chosen = *chosen_of(tile, component, l);
        assert(chosen >= 0 && (uint32_t)chosen < component->choices);
        z[l] = component->z[(uint32_t)chosen * LANES_WIDTH + l];
    }
    return lanes_load(z) - component->log_total;
}

/* log total - sum P z, which is -sum P log P with z the logits less the greatest. */
LANES_INLINE vf entropy_of(const struct component *component)
{
    vf sum = {};
    for (uint32_t a = 0; a < component->choices; a++) {
        const vf z = lanes_load(component->z + a * LANES_WIDTH),
                 e = lanes_load(component->e + a * LANES_WIDTH);
        sum += lanes_where_less((vf){}, e, e * z);
    }
    return component->log_total - sum / component->total;
}

LANES_INLINE void act_categorical(const struct tile *tile, const struct dense_draw *draw,
                                  float *log_probability)
{
    vf log_sum = {};
    for (struct component component = {0}; next_component(tile, &component);) {
        float lane[LANES_WIDTH];
        softmax(tile, &component);
        lanes_store(lane, draw != NULL ? draw_choice(tile, draw, &component) : greatest_choice(&component));
        for (uint32_t l = 0; l < tile->rows; l++)
            *chosen_of(tile, &component, l) = (int32_t)allowed_choice(tile, &component, l, lane[l]);
        log_sum += log_probability_of_chosen(tile, &component);
    }
    tile_store(tile, log_probability, log_sum);
}

LANES_INLINE void evaluate_categorical(const struct tile *tile, float *log_probability, float *entropy)
{
    vf log_sum = {}, entropy_sum = {};
    for (struct component component = {0}; next_component(tile, &component);) {
        softmax(tile, &component);
        log_sum += log_probability_of_chosen(tile, &component);
        entropy_sum += entropy_of(&component);
    }
    tile_store(tile, log_probability, log_sum);
    tile_store(tile, entropy, entropy_sum);
}

/* dL/dz_a = dL/dlogp ([a chosen] - P(a)) - dL/dH P(a) (log P(a) + H) */
LANES_INLINE void pull_categorical(const struct tile *tile, vf of_log_probability, vf of_entropy,
                                   struct dense_matrix dz)
{
    for (struct component component = {0}; next_component(tile, &component);) {
        float lane[LANES_WIDTH] = {0};
        softmax(tile, &component);
        const vf entropy = entropy_of(&component);
        for (uint32_t l = 0; l < tile->rows; l++)
            lane[l] = (float)*chosen_of(tile, &component, l);
        const vf chosen = lanes_load(lane);
        for (uint32_t a = 0; a < component.choices; a++) {
            const vf p = lanes_load(component.e + a * LANES_WIDTH) / component.total;
            const vf z = lanes_load(component.z + a * LANES_WIDTH) - component.log_total;
            const vf number = lanes_set((float)a);
            const vf one = lanes_where_not_less(chosen, number, lanes_set(1.0f));
            const vf is_chosen = lanes_where_not_less(number, chosen, one);
            const vf bend = lanes_where_less((vf){}, p, p * (z + entropy));
            tile_store_column(tile, dz, component.offset + a,
                              lanes_fma(-of_entropy, bend, of_log_probability * (is_chosen - p)));
        }
    }
}

/* ---- Gaussian ---- */

static float *action_of(const struct tile *tile, uint32_t l)
{
    const struct dense_batch *batch = &tile->head->batch;
    return batch->actions + (size_t)batch->row[tile->first + l] * tile->head->shape->components;
}

/* a - z of component d, by the batch's actions. */
LANES_INLINE vf distance(const struct tile *tile, uint32_t d)
{
    float lane[LANES_WIDTH] = {0};
    for (uint32_t l = 0; l < tile->rows; l++)
        lane[l] = action_of(tile, l)[d];
    return lanes_load(lane) - tile_column(tile, tile->head->z, d);
}

/* t of component d. */
LANES_INLINE vf deviation(const struct tile *tile, uint32_t d)
{
    return distance(tile, d) * lanes_set(tile->head->sigma->inverse[d]);
}

LANES_INLINE void evaluate_gaussian(const struct tile *tile, float *log_probability, float *entropy)
{
    vf sum = {};
    for (uint32_t d = 0; d < tile->head->shape->components; d++) {
        const vf t = deviation(tile, d);
        sum = lanes_fma(t * lanes_set(-0.5f), t, sum - lanes_set(tile->head->sigma->shift[d]));
    }
    tile_store(tile, log_probability, sum);
    tile_store(tile, entropy, lanes_set(tile->head->sigma->entropy));
}

LANES_INLINE void store_actions(const struct tile *tile, uint32_t d, vf x)
{
    float lane[LANES_WIDTH];
    lanes_store(lane, x);
    for (uint32_t l = 0; l < tile->rows; l++)
        action_of(tile, l)[d] = lane[l];
}

LANES_INLINE void act_gaussian(const struct tile *tile, const struct dense_draw *draw, float *log_probability)
{
    vf normal[4] = {};
    for (uint32_t d = 0; d < tile->head->shape->components; d++) {
        if (draw != NULL && d % 4 == 0) {
            vu words[4];
            tile_draw(tile, draw, d / 4, words);
            lanes_normal_pair(normal, words[0], words[1]);
            lanes_normal_pair(normal + 2, words[2], words[3]);
        }
        const vf mean = tile_column(tile, tile->head->z, d);
        store_actions(tile, d, lanes_fma(lanes_set(tile->head->sigma->sigma[d]), normal[d % 4], mean));
    }
    evaluate_gaussian(tile, log_probability, NULL);
}

/* dL/dz_d = dL/dlogp t_d / sigma_d,   dL/dlog_std_d = sum dL/dlogp (t_d^2 - 1) + dL/dH */
LANES_INLINE void pull_gaussian(const struct tile *tile, vf of_log_probability, vf of_entropy,
                                struct dense_matrix dz, struct dense_matrix dlog_sigma)
{
    for (uint32_t d = 0; d < tile->head->shape->components; d++) {
        const vf t = deviation(tile, d);
        tile_store_column(tile, dz, d, of_log_probability * t * lanes_set(tile->head->sigma->inverse[d]));
        tile_store_column(tile, dlog_sigma, d,
                          lanes_fma(of_log_probability, lanes_fma(t, t, lanes_set(-1.0f)), of_entropy));
    }
}

/* ---- Gaussian, with deviations that depend on the state ---- */

LANES_INLINE void evaluate_exploring(const struct tile *tile, float *log_probability, float *entropy)
{
    const vf half = lanes_set(0.5f), half_log_two_pi = lanes_set(0.918938533204672742f);
    vf log_sum = {}, entropy_sum = {};
    for (uint32_t d = 0; d < tile->head->shape->components; d++) {
        const vf variance = tile_column(tile, tile->head->variance, d), x = distance(tile, d);
        const vf half_log = half * lanes_log_full(variance);
        log_sum += lanes_fma(-half * x, x / variance, -half_log) - half_log_two_pi;
        entropy_sum += half_log + (half_log_two_pi + half);
    }
    tile_store(tile, log_probability, log_sum);
    tile_store(tile, entropy, entropy_sum);
}

/* The step at which each lane's noise was drawn. */
LANES_INLINE vu noise_step(const struct tile *tile, const struct dense_draw *draw)
{
    uint32_t lane[LANES_WIDTH] = {0};
    for (uint32_t l = 0; l < tile->rows && draw->noise_steps > 0; l++)
        lane[l] = draw->step[tile->first + l] - draw->step[tile->first + l] % draw->noise_steps;
    return lanes_load_u32(lane);
}

/* sum_f h_f sigma_fd n_fd */
LANES_INLINE vf noise_of(const struct tile *tile, const struct dense_draw *draw, vu step, uint32_t d)
{
    const struct dense_head *head = tile->head;
    const uint32_t features = head->features, first = d * ((features + 3) / 4);
    vf normal[4] = {}, sum = {};
    for (uint32_t f = 0; f < features; f++) {
        if (f % 4 == 0) {
            vu words[4];
            tile_draw_at(tile, draw, RNG_NOISE, first + f / 4, step, words);
            lanes_normal_pair(normal, words[0], words[1]);
            lanes_normal_pair(normal + 2, words[2], words[3]);
        }
        const vf h = tile_column(tile, head->features_at, f);
        const vf sigma = lanes_set(head->exploration->sigma[(size_t)f * head->shape->components + d]);
        sum = lanes_fma(h, sigma * normal[f % 4], sum);
    }
    return sum;
}

LANES_INLINE void act_exploring(const struct tile *tile, const struct dense_draw *draw,
                                float *log_probability)
{
    const vu step = draw != NULL ? noise_step(tile, draw) : lanes_set_u32(0);
    for (uint32_t d = 0; d < tile->head->shape->components; d++) {
        const vf mean = tile_column(tile, tile->head->z, d);
        store_actions(tile, d, draw != NULL ? mean + noise_of(tile, draw, step, d) : mean);
    }
    evaluate_exploring(tile, log_probability, NULL);
}

/* dL/dz_d = dL/dlogp x / v,   dL/dlog_std_fd = sum h_f^2 sigma_fd^2 (dL/dlogp (x^2 / v - 1) + dL/dH) / v */
LANES_INLINE void pull_exploring(const struct tile *tile, vf of_log_probability, vf of_entropy,
                                 struct dense_matrix dz, struct dense_matrix dlog_sigma)
{
    for (uint32_t d = 0; d < tile->head->shape->components; d++) {
        const vf variance = tile_column(tile, tile->head->variance, d), x = distance(tile, d);
        const vf t = x / variance;
        tile_store_column(tile, dz, d, of_log_probability * t);
        tile_store_column(tile, dlog_sigma, d,
                          lanes_fma(of_log_probability, lanes_fma(x, t, lanes_set(-1.0f)), of_entropy) /
                              variance);
    }
}

/* ---- the table ---- */

static void act(const struct dense_head *head, const struct dense_draw *draw, float *log_probability)
{
    for (uint32_t first = 0; first < head->batch.count; first += LANES_WIDTH) {
        const struct tile tile = tile_of(head, first);
        if (head->exploration != NULL)
            act_exploring(&tile, draw, log_probability);
        else if (head->shape->gaussian)
            act_gaussian(&tile, draw, log_probability);
        else
            act_categorical(&tile, draw, log_probability);
    }
}

static void evaluate(const struct dense_head *head, float *log_probability, float *entropy)
{
    for (uint32_t first = 0; first < head->batch.count; first += LANES_WIDTH) {
        const struct tile tile = tile_of(head, first);
        if (head->exploration != NULL)
            evaluate_exploring(&tile, log_probability, entropy);
        else if (head->shape->gaussian)
            evaluate_gaussian(&tile, log_probability, entropy);
        else
            evaluate_categorical(&tile, log_probability, entropy);
    }
}

static void pull(const struct dense_head *head, const struct dense_pulls *pulls, struct dense_matrix dz,
                 struct dense_matrix dlog_sigma)
{
    for (uint32_t first = 0; first < head->batch.count; first += LANES_WIDTH) {
        const struct tile tile = tile_of(head, first);
        const vf of_log_probability = tile_load(&tile, pulls->log_probability);
        const vf of_entropy = tile_load(&tile, pulls->entropy);
        if (head->exploration != NULL)
            pull_exploring(&tile, of_log_probability, of_entropy, dz, dlog_sigma);
        else if (head->shape->gaussian)
            pull_gaussian(&tile, of_log_probability, of_entropy, dz, dlog_sigma);
        else
            pull_categorical(&tile, of_log_probability, of_entropy, dz);
    }
}

static void exp_16(const float x[POLICY_LANES], float y[POLICY_LANES])
{
    for (uint32_t i = 0; i < LANES_COUNT; i += LANES_WIDTH)
        lanes_store(y + i, lanes_exp_full(lanes_load(x + i)));
}

const struct dense_lanes LANES_NAME(dense_lanes) = {
    .activate = activate,
    .slope = slope,
    .add = add,
    .act = act,
    .evaluate = evaluate,
    .pull = pull,
    .exp = exp_16,
};
