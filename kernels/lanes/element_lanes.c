/* Element-wise passes, compiled once per instruction set; any thread.
 *
 * The compiler vectorizes these plain loops at -O3. It contracts nothing, so that a vectorized body and its
 * scalar tail agree to the bit. Only tanh and the sums are written in lanes: tanh is a polynomial of lanes,
 * and the order of a sum is part of the result. */
#include "kernels/lanes/element_lanes.h"

#include "kernels/lanes/exp_log_tanh.h"

#include <stdbool.h>

static void pass_add(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const float *a = arrays->a + first, *b = arrays->b + first;
    for (size_t i = 0; i < count; i++)
        to[i] = a[i] + b[i];
}

static void pass_add_relu(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const float *a = arrays->a + first, *b = arrays->b + first;
    for (size_t i = 0; i < count; i++) {
        float sum = a[i] + b[i];
        to[i] = sum <= 0 ? 0 : sum;
    }
}

static void pass_relu(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const float *a = arrays->a + first;
    for (size_t i = 0; i < count; i++)
        to[i] = a[i] <= 0 ? 0 : a[i];
}

static void pass_mask(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const float *a = arrays->a + first, *b = arrays->b + first;
    for (size_t i = 0; i < count; i++) {
        float gradient = b[i]; // read in any case: the loop then has no branch
        to[i] = a[i] > 0 ? gradient : 0;
    }
}

static void pass_tanh(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const float *a = arrays->a + first;
    for (size_t i = 0; i < count; i += LANES_WIDTH) {
        const size_t left = count - i, bytes = (left < LANES_WIDTH ? left : LANES_WIDTH) * sizeof *a;
        float lane[LANES_WIDTH] = {0};
        memcpy(lane, a + i, bytes);
        lanes_store(lane, lanes_tanh(lanes_load(lane)));
        memcpy(to + i, lane, bytes);
    }
}

static void pass_tanh_slope(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const float *a = arrays->a + first, *b = arrays->b + first;
    for (size_t i = 0; i < count; i++)
        to[i] = b[i] * (1 - a[i] * a[i]);
}

static void pass_accumulate(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const float *a = arrays->a + first;
    for (size_t i = 0; i < count; i++)
        to[i] += a[i];
}

static void pass_fill(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const float factor = arrays->factor;
    for (size_t i = 0; i < count; i++)
        to[i] = factor;
}

static void pass_scale(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const float factor = arrays->factor;
    for (size_t i = 0; i < count; i++)
        to[i] *= factor;
}

static void pass_multiply(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const float *a = arrays->a + first, factor = arrays->factor;
    for (size_t i = 0; i < count; i++)
        to[i] = factor * a[i];
}

static void pass_difference(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const float *a = arrays->a + first, *b = arrays->b + first, factor = arrays->factor;
    for (size_t i = 0; i < count; i++)
        to[i] = factor * (a[i] - b[i]);
}

static void pass_copy(const struct elements *arrays, size_t first, size_t count)
{
    memcpy(arrays->to + first, arrays->a + first, count * sizeof(float));
}

static void pass_narrow(const struct elements *arrays, size_t first, size_t count)
{
    float *to = arrays->to + first;
    const double *wide = arrays->wide + first;
    for (size_t i = 0; i < count; i++)
        to[i] = (float)wide[i];
}

/* ---- sums ---- */

/* `term` is an expression of i. */
#define SUM_OF(term)                                                                                         \
    double lane[LANES_COUNT] = {0}, total = 0;                                                               \
    size_t body = count - count % LANES_COUNT;                                                               \
    for (size_t first = 0; first < body; first += LANES_COUNT)                                               \
        for (size_t l = 0; l < LANES_COUNT; l++) {                                                           \
            const size_t i = first + l;                                                                      \
            lane[l] += (term);                                                                               \
        }                                                                                                    \
    for (size_t i = body; i < count; i++)                                                                    \
        lane[i - body] += (term);                                                                            \
    for (size_t l = 0; l < LANES_COUNT; l++)                                                                 \
        total += lane[l];                                                                                    \
    return total

static double sum_squares(const float *a, const float *b, size_t count)
{
    (void)b;
    SUM_OF((double)a[i] * (double)a[i]);
}

static double sum_values(const float *a, const float *b, size_t count)
{
    (void)b;
    SUM_OF((double)a[i]);
}

static double sum_products(const float *a, const float *b, size_t count)
{
    SUM_OF((double)a[i] * (double)b[i]);
}

static double sum_square_distances(const float *a, const float *b, size_t count)
{
    SUM_OF(((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]));
}

/* ---- looking and converting ---- */

static bool is_finite(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7f800000u) != 0x7f800000u;
}

/* Whole blocks are looked through without a branch for each element; only a block with a find is searched. */
static size_t element_first_not_finite(const float *x, size_t count)
{
    enum { BLOCK = 256 };
    for (size_t first = 0; first < count; first += BLOCK) {
        const size_t end = count - first < BLOCK ? count : first + BLOCK;
        uint32_t found = 0;
        for (size_t i = first; i < end; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            found |= (bits & 0x7f800000u) == 0x7f800000u;
        }
        for (size_t i = first; found != 0 && i < end; i++)
            if (!is_finite(x[i]))
                return i;
    }
    return count;
}

static void element_add_to_double(double *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += (double)from[i];
}

static void element_to_double(double *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (double)from[i];
}

const struct element_lanes LANES_NAME(element_lanes) = {
    .add = pass_add,
    .add_relu = pass_add_relu,
    .relu = pass_relu,
    .mask = pass_mask,
    .tanh = pass_tanh,
    .tanh_slope = pass_tanh_slope,
    .accumulate = pass_accumulate,
    .fill = pass_fill,
    .scale = pass_scale,
    .multiply = pass_multiply,
    .difference = pass_difference,
    .copy = pass_copy,
    .narrow = pass_narrow,
    .square_sum = sum_squares,
    .sum = sum_values,
    .dot = sum_products,
    .square_distance = sum_square_distances,
    .first_not_finite = element_first_not_finite,
    .add_to_double = element_add_to_double,
    .to_double = element_to_double,
};
