/* Draws a weight's values and makes them orthonormal. */
#include "kernels/policy/orthogonal.h"

#include "kernels/base/rng.h"
#include "kernels/lanes/normal.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { ORTHOGONAL_BLOCK = 1 };

/* Eight sums at once: number i goes to sum i mod 8. */
typedef double eight __attribute__((vector_size(64)));

static double dot(const double *a, const double *b, size_t count)
{
    eight sums = {0};
    size_t i = 0;
    double total = 0;
    for (; i + 8 <= count; i += 8) {
        eight x, y;
        memcpy(&x, a + i, sizeof x);
        memcpy(&y, b + i, sizeof y);
        sums += x * y;
    }
    for (int s = 0; s < 8; s++)
        total += sums[s];
    for (; i < count; i++)
        total += a[i] * b[i];
    return total;
}

/* to += factor * from */
static void add_multiple(double *to, const double *from, double factor, size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        eight x, y;
        memcpy(&x, to + i, sizeof x);
        memcpy(&y, from + i, sizeof y);
        x += factor * y;
        memcpy(to + i, &x, sizeof x);
    }
    for (; i < count; i++)
        to[i] += factor * from[i];
}

/* Makes `count` vectors of `length` orthonormal. Normal draws are almost surely
 * independent. */
static void make_orthonormal(double *vectors, size_t count, size_t length)
{
    for (size_t i = 0; i < count; i++) {
        double *unit = vectors + i * length;
        const double norm = sqrt(dot(unit, unit, length));
        for (size_t e = 0; e < length; e++)
            unit[e] /= norm;
        for (size_t j = i + 1; j < count; j++) {
            double *other = vectors + j * length;
            add_multiple(other, unit, -dot(unit, other, length), length);
        }
    }
}

/* A weight (rows, columns), which holds its draws. */
static enum status make_orthogonal(float *weight, size_t rows, size_t columns, double gain,
                                   struct error *error)
{
    const bool wide = columns > rows;
    const size_t count = wide ? rows : columns, length = wide ? columns : rows;
    double *vectors = malloc(count * length * sizeof *vectors);
    if (vectors == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory to make %zu values orthogonal", count * length);
    for (size_t v = 0; v < count; v++)
        for (size_t e = 0; e < length; e++)
            vectors[v * length + e] = (double)(wide ? weight[v * columns + e] : weight[e * columns + v]);
    make_orthonormal(vectors, count, length);
    for (size_t v = 0; v < count; v++)
        for (size_t e = 0; e < length; e++)
            *(wide ? &weight[v * columns + e] : &weight[e * columns + v]) =
                (float)(gain * vectors[v * length + e]);
    free(vectors);
    return STATUS_OK;
}

enum status orthogonal_draw(float *weight, size_t rows, size_t columns, double gain, uint64_t seed,
                            uint32_t parameter, struct error *error)
{
    const struct rng_key key = {.seed = seed, .episode = parameter};
    normal_fill(normal_choose(), weight, rows * columns, &key, RNG_INIT, ORTHOGONAL_BLOCK);
    return make_orthogonal(weight, rows, columns, gain, error);
}
