/* SAC's distributions over actions. Matrices' columns are packed into flat arrays, which squashed_lanes.c
 * computes number by number; what gSDE sums over features and rows are products. */
#include "kernels/policy/squashed.h"

#include "kernels/policy/panels.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* log_std as its deviations s, all (features, components). */
struct exploration {
    float *std, *slope;            // s, ds/dlog_std
    float *noise;                  // n
    float *step, *square;          // s n, s^2
    struct panels steps, squares;  // of both: backward b[f][d], forward b[d][f]
    float *epsilon;                // (components) 1e-6
    float *sums, *square_sums;     // (components, features) over the rows: h dL/de, h^2 2 dL/dv
    float *zeros;                  // (features), and (components)
    struct dense_matrix h_squares; // (rows, features)
    struct dense_matrix e, v;      // (rows, components) as in squashed.h; in the backward dL/de, 2 dL/dv
    struct summing summing;
};

struct squashed {
    struct squashed_shape shape;
    const struct squashed_lanes *lanes;
    product_function *product;
    /* Arrays (rows, components) without gaps; `count` and what is not an array are those of a call: */
    struct squashed_numbers numbers;
    struct exploration exploration;
    float *memory; // all of the above
};

/* ---- memory ---- */

static void place_exploration(struct places *places, struct exploration *at,
                              const struct squashed_shape *shape)
{
    const uint32_t rows = DENSE_CHUNK_ROWS, features = shape->features, components = shape->components;
    float **const parameters[] = {&at->std,    &at->slope, &at->noise,      &at->step,
                                  &at->square, &at->sums,  &at->square_sums};
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++)
        places_floats(places, parameters[i], (size_t)features * components);
    panels_place(places, &at->steps, features, components, true);
    panels_place(places, &at->squares, features, components, true);
    places_floats(places, &at->epsilon, components);
    places_floats(places, &at->zeros, features > components ? features : components);
    places_matrix(places, &at->h_squares, rows, features);
    places_matrix(places, &at->e, rows, components);
    places_matrix(places, &at->v, rows, components);
    summing_place(places, &at->summing);
}

static void place_squashed(struct places *places, void *of)
{
    struct squashed *s = of;
    struct squashed_numbers *n = &s->numbers;
    float **const numbers[] = {&n->mean,      &n->log_std,         &n->noise,     &n->variance,
                               &n->action,    &n->log_probability, &n->d_action,  &n->d_mean,
                               &n->d_log_std, &n->d_noise,         &n->d_variance};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        places_floats(places, numbers[i], (size_t)DENSE_CHUNK_ROWS * s->shape.components);
    if (s->shape.features > 0)
        place_exploration(places, &s->exploration, &s->shape);
}

enum status squashed_new(struct squashed **out, const struct squashed_shape *shape, struct error *error)
{
    const struct policy_lanes *lanes = policy_lanes_choose();
    assert(shape->components >= 1 && shape->components <= SQUASHED_COMPONENTS_MAX);
    assert(shape->features <= DENSE_WIDTH_MAX && shape->clip_mean >= 0);
    struct squashed *s = calloc(1, sizeof *s);
    if (s == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a policy's distribution");
    s->shape = *shape;
    s->lanes = lanes->squashed;
    s->product = lanes->product;
    const enum status status = places_take(&s->memory, place_squashed, s, "distribution", error);
    if (status != STATUS_OK) {
        free(s);
        return status;
    }
    if (shape->features > 0) {
        summing_begin(&s->exploration.summing, lanes->product, lanes->dense);
        for (uint32_t d = 0; d < shape->components; d++)
            s->exploration.epsilon[d] = 1e-6f;
    }
    *out = s;
    return STATUS_OK;
}

void squashed_free(struct squashed *s)
{
    if (s == NULL)
        return;
    free(s->memory);
    free(s);
}

void squashed_load(struct squashed *s, const float *log_std, const float *noise)
{
    const struct exploration *at = &s->exploration;
    const uint32_t features = s->shape.features, components = s->shape.components;
    const size_t count = (size_t)features * components;
    assert(features > 0);
    memcpy(at->step, log_std, count * sizeof *log_std); /* whose place has room for whole blocks */
    s->lanes->deviations(at->step, (count + POLICY_LANES - 1) / POLICY_LANES * POLICY_LANES, s->shape.expln,
                         at->std, at->slope);
    for (size_t i = 0; i < count; i++) {
        at->noise[i] = noise == NULL ? 0 : noise[i];
        at->step[i] = at->std[i] * at->noise[i];
        at->square[i] = at->std[i] * at->std[i];
    }
    panels_load(&at->steps, at->step, features, components);
    panels_load(&at->squares, at->square, features, components);
}

/* ---- columns ---- */

/* Columns [first, first + components) of a matrix, without gaps; zeros of a matrix that is not given. */
static void pack(const struct squashed *s, uint32_t rows, struct dense_matrix from, uint32_t first, float *to)
{
    const uint32_t components = s->shape.components;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t d = 0; d < components; d++)
            *to++ = from.at == NULL ? 0 : from.at[r * from.stride + first + d];
}

static void unpack(const struct squashed *s, uint32_t rows, const float *from, struct dense_matrix to,
                   uint32_t first)
{
    const uint32_t components = s->shape.components;
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t d = 0; d < components; d++)
            to.at[r * to.stride + first + d] = *from++;
}

/* The flat arrays of these rows, filled but for what the caller adds. Numbers beyond the rows are those of
 * earlier calls. */
static void begin_rows(struct squashed *s, const struct squashed_rows *rows)
{
    const uint32_t components = s->shape.components;
    const size_t count = (size_t)rows->count * components;
    assert(rows->count <= DENSE_CHUNK_ROWS);
    pack(s, rows->count, rows->z, 0, s->numbers.mean);
    if (s->shape.features == 0) {
        pack(s, rows->count, rows->z, components, s->numbers.log_std);
        pack(s, rows->count, rows->noise, 0, s->numbers.noise);
    }
    const float clip = s->shape.clip_mean > 0 ? s->shape.clip_mean : INFINITY;
    s->numbers.count = (count + POLICY_LANES - 1) / POLICY_LANES * POLICY_LANES;
    s->numbers.clip_mean = clip;
    s->numbers.inner_mean = nextafterf(clip, 0);
}

/* ---- state-dependent deviations ---- */

static void multiply_row(const float *a, const float *b, uint32_t count, float *to)
{
    for (uint32_t i = 0; i < count; i++)
        to[i] = a[i] * b[i];
}

/* e and v of the rows, in s->numbers.noise and s->numbers.variance, and the squares of h. */
static void explore(const struct squashed *s, const struct squashed_rows *rows)
{
    const struct exploration *at = &s->exploration;
    const struct dense_matrix h = rows->features, squares = at->h_squares;
    const uint32_t features = s->shape.features, components = s->shape.components;
    const size_t block = (size_t)features * PRODUCT_BLOCK;
    for (uint32_t r = 0; r < rows->count; r++) {
        const float *row = h.at + r * h.stride;
        multiply_row(row, row, features, squares.at + r * squares.stride);
    }
    panels_multiply(s->product, rows->count, h, features, at->steps.backward, block, components, at->zeros,
                    at->e);
    panels_multiply(s->product, rows->count, squares, features, at->squares.backward, block, components,
                    at->epsilon, at->v);
    pack(s, rows->count, at->e, 0, s->numbers.noise);
    pack(s, rows->count, at->v, 0, s->numbers.variance);
}

/* dL/dh_f = h_f sum_d 2 dL/dv_d s_fd^2 + sum_d dL/de_d s_fd n_fd */
static void pull_features(const struct squashed *s, const struct squashed_rows *rows, struct dense_matrix to)
{
    const struct exploration *at = &s->exploration;
    const struct dense_matrix h = rows->features;
    const uint32_t features = s->shape.features, components = s->shape.components;
    const size_t block = (size_t)components * PRODUCT_BLOCK;
    panels_multiply(s->product, rows->count, at->v, components, at->squares.forward, block, features,
                    at->zeros, to);
    for (uint32_t r = 0; r < rows->count; r++) {
        float *row = to.at + r * to.stride;
        multiply_row(row, h.at + r * h.stride, features, row);
    }
    panels_multiply(s->product, rows->count, at->e, components, at->steps.forward, block, features, NULL, to);
}

/* dL/dlog_std_fd = ds/dlog_std (n_fd sum h_f dL/de_d + s_fd sum h_f^2 2 dL/dv_d). Features, of which there
 * are more than components, lie across the lanes. */
static void pull_log_std(const struct squashed *s, const struct squashed_rows *rows, float *to, bool adds)
{
    const struct exploration *at = &s->exploration;
    const uint32_t features = s->shape.features, components = s->shape.components;
    summing_add(&at->summing, rows->count, at->e, components, rows->features, features, at->sums, features, 1,
                false);
    summing_add(&at->summing, rows->count, at->v, components, at->h_squares, features, at->square_sums,
                features, 1, false);
    for (uint32_t f = 0; f < features; f++)
        for (uint32_t d = 0; d < components; d++) {
            const size_t i = (size_t)f * components + d, sum = (size_t)d * features + f;
            to[i] = (adds ? to[i] : 0) +
                    at->slope[i] * (at->noise[i] * at->sums[sum] + at->std[i] * at->square_sums[sum]);
        }
}

/* ---- rows ---- */

void squashed_act(struct squashed *s, const struct squashed_rows *rows, struct dense_matrix actions,
                  float *log_probability)
{
    const uint32_t components = s->shape.components;
    begin_rows(s, rows);
    if (s->shape.features > 0)
        explore(s, rows);
    (s->shape.features > 0 ? s->lanes->act_exploring : s->lanes->act)(&s->numbers);
    unpack(s, rows->count, s->numbers.action, actions, 0);
    for (uint32_t r = 0; r < rows->count && log_probability != NULL; r++) {
        log_probability[r] = 0;
        for (uint32_t d = 0; d < components; d++)
            log_probability[r] += s->numbers.log_probability[(size_t)r * components + d];
    }
}

void squashed_pull(struct squashed *s, const struct squashed_rows *rows, struct dense_matrix actions,
                   struct dense_matrix d_actions, float d_log_probability, const struct squashed_pulls *pulls)
{
    const uint32_t count = rows->count;
    begin_rows(s, rows);
    s->numbers.d_log_probability = d_log_probability;
    pack(s, count, actions, 0, s->numbers.action);
    pack(s, count, d_actions, 0, s->numbers.d_action);
    if (s->shape.features == 0) {
        s->lanes->pull(&s->numbers);
        unpack(s, count, s->numbers.d_log_std, pulls->z, s->shape.components);
    } else {
        explore(s, rows);
        s->lanes->pull_exploring(&s->numbers);
        unpack(s, count, s->numbers.d_noise, s->exploration.e, 0);
        unpack(s, count, s->numbers.d_variance, s->exploration.v, 0);
        pull_log_std(s, rows, pulls->log_std, pulls->adds);
        pull_features(s, rows, pulls->features);
    }
    unpack(s, count, s->numbers.d_mean, pulls->z, 0);
}
