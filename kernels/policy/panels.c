/* Memory in one piece, weights in panels, and sums over rows, for the policy's kernels. */
#include "kernels/policy/panels.h"

#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

/* ---- memory ---- */

void places_floats(struct places *places, float **at, size_t floats)
{
    if (places->memory != NULL)
        *at = places->memory + places->used;
    places->used += (floats + PRODUCT_BLOCK - 1) / PRODUCT_BLOCK * PRODUCT_BLOCK;
}

void places_matrix(struct places *places, struct dense_matrix *matrix, size_t rows, uint32_t columns)
{
    matrix->stride = product_stride(columns);
    places_floats(places, &matrix->at, rows * matrix->stride);
}

enum status places_take(float **memory, places_list *list, void *of, const char *what, struct error *error)
{
    struct places places = {0};
    list(&places, of);
    const size_t bytes = places.used * sizeof(float);
    places = (struct places){.memory = aligned_alloc(64, bytes)};
    if (places.memory == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the %zu bytes of a policy's %s", bytes,
                         what);
    *memory = memset(places.memory, 0, bytes);
    list(&places, of);
    return STATUS_OK;
}

/* ---- weights ---- */

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

void panels_transpose(float *panel, const float *from, uint32_t rows, uint32_t depth)
{
    const uint32_t whole_rows = rows - rows % 4, whole_depth = depth - depth % 4;
    for (uint32_t k = 0; k < whole_depth; k += 4)
        for (uint32_t n = 0; n < whole_rows; n += 4)
            transpose_four(panel + (size_t)k * PRODUCT_BLOCK + n, from + (size_t)n * depth + k, depth);
    for (uint32_t n = 0; n < rows; n++)
        for (uint32_t k = n < whole_rows ? whole_depth : 0; k < depth; k++)
            panel[(size_t)k * PRODUCT_BLOCK + n] = from[(size_t)n * depth + k];
}

void panels_pack(float *panels, const float *from, uint32_t columns, uint32_t depth, uint32_t first,
                 uint32_t rows)
{
    const uint32_t whole = columns - columns % PRODUCT_BLOCK;
    float *to = panels + (size_t)first * PRODUCT_BLOCK;
    for (uint32_t n = 0; n < whole; n += PRODUCT_BLOCK)
        for (uint32_t k = 0; k < rows; k++)
            memcpy(to + (size_t)n * depth + (size_t)k * PRODUCT_BLOCK, from + (size_t)k * columns + n,
                   PRODUCT_BLOCK * sizeof *panels);
    for (uint32_t k = 0; k < rows && whole < columns; k++)
        memcpy(to + (size_t)whole * depth + (size_t)k * PRODUCT_BLOCK, from + (size_t)k * columns + whole,
               (columns - whole) * sizeof *panels);
}

void panels_place(struct places *places, struct panels *panels, uint32_t outputs, uint32_t inputs,
                  bool goes_back)
{
    places_floats(places, &panels->forward, (size_t)product_blocks(outputs) * inputs * PRODUCT_BLOCK);
    if (goes_back)
        places_floats(places, &panels->backward, (size_t)product_blocks(inputs) * outputs * PRODUCT_BLOCK);
}

/* Both orders, 16 rows at a time: the second order finds them in the nearest cache. */
void panels_load(const struct panels *panels, const float *weight, uint32_t outputs, uint32_t inputs)
{
    for (uint32_t first = 0; first < outputs; first += PRODUCT_BLOCK) {
        const uint32_t rows = outputs - first < PRODUCT_BLOCK ? outputs - first : PRODUCT_BLOCK;
        const float *from = weight + (size_t)first * inputs;
        panels_transpose(panels->forward + (size_t)first * inputs, from, rows, inputs);
        if (panels->backward != NULL)
            panels_pack(panels->backward, from, inputs, outputs, first, rows);
    }
}

void panels_multiply(product_function *product, uint32_t rows, struct dense_matrix a, uint32_t depth,
                     const float *panel, size_t block, uint32_t columns, const float *begin,
                     struct dense_matrix to)
{
    product(&(struct product){.rows = rows,
                              .depth = depth,
                              .columns = columns,
                              .a = a.at,
                              .a_row = a.stride,
                              .a_depth = 1,
                              .b = panel,
                              .b_depth = PRODUCT_BLOCK,
                              .b_block = block,
                              .begin = begin,
                              .c = to.at,
                              .c_row = to.stride});
}

/* ---- sums over rows ---- */

void summing_place(struct places *places, struct summing *summing)
{
    places_floats(places, &summing->zeros, SUM_COLUMNS);
    places_floats(places, &summing->ones, DENSE_CHUNK_ROWS);
    places_matrix(places, &summing->piece, SUM_ROWS, SUM_COLUMNS);
}

void summing_begin(struct summing *summing, product_function *product, const struct dense_lanes *lanes)
{
    summing->product = product;
    summing->lanes = lanes;
    for (int i = 0; i < DENSE_CHUNK_ROWS; i++)
        summing->ones[i] = 1;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Whole blocks of columns need no piece of memory of their own where nothing is added to. */
void summing_add(const struct summing *summing, uint32_t rows, struct dense_matrix a, uint32_t m_count,
                 struct dense_matrix b, uint32_t n_count, float *to, size_t row_step, size_t column_step,
                 bool adds)
{
    const bool direct = !adds && column_step == 1 && n_count % PRODUCT_BLOCK == 0;
    struct product product = {.depth = rows,
                              .a_row = 1,
                              .a_depth = a.stride,
                              .b_depth = b.stride,
                              .b_block = PRODUCT_BLOCK,
                              .begin = summing->zeros};
    for (uint32_t n = 0; n < n_count; n += SUM_COLUMNS)
        for (uint32_t m = 0; m < m_count; m += SUM_ROWS) {
            float *part = to + m * row_step + n * column_step;
            product.rows = smaller(m_count - m, SUM_ROWS);
            product.columns = smaller(n_count - n, SUM_COLUMNS);
            product.a = a.at + m;
            product.b = b.at + n;
            product.c = direct ? part : summing->piece.at;
            product.c_row = direct ? row_step : summing->piece.stride;
            summing->product(&product);
            if (!direct)
                summing->lanes->add(part, row_step, column_step, summing->piece, product.rows,
                                    product.columns, adds);
        }
}

void summing_add_weight(const struct summing *summing, uint32_t rows, struct dense_matrix pull,
                        uint32_t outputs, struct dense_matrix x, uint32_t inputs, float *to, size_t row_step,
                        bool adds)
{
    if (outputs * product_blocks(inputs) <= inputs * product_blocks(outputs))
        summing_add(summing, rows, pull, outputs, x, inputs, to, row_step, 1, adds);
    else
        summing_add(summing, rows, x, inputs, pull, outputs, to, 1, row_step, adds);
}

void summing_add_columns(const struct summing *summing, uint32_t rows, struct dense_matrix x,
                         uint32_t columns, float *to, bool adds)
{
    const struct dense_matrix ones = {summing->ones, 1};
    summing_add(summing, rows, ones, 1, x, columns, to, 0, 1, adds);
}
