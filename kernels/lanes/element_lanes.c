/* Element-wise passes, compiled once per instruction set; any thread.
 *
 * Plain loops, which the compiler vectorizes (-O3; nothing is contracted, so a vectorized body and its scalar
 * tail agree to the bit). Only the sums are written in lanes, for their order is part of the result. */
#include "kernels/lanes/element_lanes.h"

#include "kernels/lanes/lanes.h"

static void element_add(float *y, const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] = a[i] + b[i];
}

static void element_add_relu(float *y, const float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float sum = a[i] + b[i];
        y[i] = sum <= 0 ? 0 : sum;
    }
}

static void element_relu(float *y, const float *x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] = x[i] <= 0 ? 0 : x[i];
}

static void element_mask(float *dx, const float *y, const float *dy, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float gradient = dy[i]; // read in any case: the loop then has no branch
        dx[i] = y[i] > 0 ? gradient : 0;
    }
}

static void element_accumulate(float *to, const float *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += from[i];
}

static void element_fill(float *x, float value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] = value;
}

static void element_scale(float *x, float factor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        x[i] *= factor;
}

static void element_multiply(float *y, const float *x, float factor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] = factor * x[i];
}

static void element_sgd(const struct element_sgd *settings, float *p, const float *g, float *v, size_t count)
{
    const float lr = settings->lr, momentum = settings->momentum;
    if (settings->first)
        for (size_t i = 0; i < count; i++) {
            v[i] = g[i];
            p[i] -= lr * g[i];
        }
    else
        for (size_t i = 0; i < count; i++) {
            float velocity = momentum * v[i] + g[i];
            v[i] = velocity;
            p[i] -= lr * velocity;
        }
}

static void element_sgd_plain(float lr, float *p, const float *g, size_t count)
{
    for (size_t i = 0; i < count; i++)
        p[i] -= lr * g[i];
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

static double element_square_sum(const float *a, const float *b, size_t count)
{
    (void)b;
    SUM_OF((double)a[i] * (double)a[i]);
}

static double element_sum(const float *a, const float *b, size_t count)
{
    (void)b;
    SUM_OF((double)a[i]);
}

static double element_dot(const float *a, const float *b, size_t count)
{
    SUM_OF((double)a[i] * (double)b[i]);
}

static double element_square_distance(const float *a, const float *b, size_t count)
{
    SUM_OF(((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]));
}

static void element_difference(float *y, const float *a, const float *b, float factor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        y[i] = factor * (a[i] - b[i]);
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

static void element_to_float(float *to, const double *from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (float)from[i];
}

const struct element_lanes LANES_NAME(element_lanes) = {
    .add = element_add,
    .add_relu = element_add_relu,
    .relu = element_relu,
    .mask = element_mask,
    .accumulate = element_accumulate,
    .fill = element_fill,
    .scale = element_scale,
    .multiply = element_multiply,
    .sgd = element_sgd,
    .sgd_plain = element_sgd_plain,
    .square_sum = element_square_sum,
    .sum = element_sum,
    .dot = element_dot,
    .square_distance = element_square_distance,
    .difference = element_difference,
    .first_not_finite = element_first_not_finite,
    .add_to_double = element_add_to_double,
    .to_double = element_to_double,
    .to_float = element_to_float,
};
