/* Matrix products, compiled once per instruction set; any thread.
 *
 * The innermost loop holds a tile of c in registers: a few rows by a few blocks of columns. For each k it
 * loads one vector of b for each of the tile's columns and one number of a for each of its rows. The tile is
 * as large as the registers allow: with AVX-512 8 rows by 32 columns in 16 of 32 registers, with AVX2 6 rows
 * by 16 columns in 12 of 16. The last rows go through tiles of fewer rows, with the same bits. Those tiles
 * are wider: a chain waits for its last sum, and only other chains fill that time.
 *
 * Blocks of columns are the outer loop, so that the columns of b, 32 * depth floats, stay in the nearest
 * cache while all rows pass by. */
#include "kernels/lanes/product_lanes.h"

#include "kernels/lanes/lanes.h"

#include <assert.h>
#include <stdbool.h>

#if defined(__AVX512F__)
enum { TILE_ROWS = 8, TILE_BLOCKS = 2 };
#elif defined(__AVX2__)
enum { TILE_ROWS = 6, TILE_BLOCKS = 1 };
#else
enum { TILE_ROWS = 2, TILE_BLOCKS = 1 };
#endif

enum { PAIR_BLOCKS = 2, LONE_BLOCKS = 4 }; /* of tiles of two rows and of one */
enum { TILE_VECTORS = LONE_BLOCKS * LANES_PARTS };

/* A tile of `rows` by `blocks`, both constants to the compiler, as is which of a's distances is 1. */
LANES_INLINE void multiply_tile(const struct product *p, uint32_t row, uint32_t block, uint32_t rows,
                                uint32_t blocks, bool row_major)
{
    const uint32_t vectors = blocks * LANES_PARTS, depth = p->depth;
    const size_t a_row = row_major ? p->a_row : 1, a_depth = row_major ? 1 : p->a_depth;
    const size_t b_depth = p->b_depth, b_block = p->b_block, c_row = p->c_row;
    const float *a = p->a + row * a_row, *b = p->b + block * b_block;
    float *c = p->c + row * c_row + (size_t)block * LANES_COUNT;
    const float *begin = p->begin != NULL ? p->begin + (size_t)block * LANES_COUNT : c;
    const size_t begin_row = p->begin != NULL ? 0 : c_row;
    vf sum[TILE_ROWS][TILE_VECTORS];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (uint32_t v = 0; v < vectors; v++)
            sum[r][v] = lanes_load(begin + r * begin_row + v * LANES_WIDTH);
    for (uint32_t k = 0; k < depth; k++, b += b_depth, a += a_depth) {
        vf column[TILE_VECTORS];
#pragma GCC unroll 16
        for (uint32_t v = 0; v < vectors; v++)
            column[v] = lanes_load(b + v / LANES_PARTS * b_block + v % LANES_PARTS * LANES_WIDTH);
#pragma GCC unroll 16
        for (uint32_t r = 0; r < rows; r++) {
            const vf x = lanes_set(a[r * a_row]);
#pragma GCC unroll 16
            for (uint32_t v = 0; v < vectors; v++)
                sum[r][v] = lanes_fma(column[v], x, sum[r][v]);
        }
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; r++)
#pragma GCC unroll 16
        for (uint32_t v = 0; v < vectors; v++)
            lanes_store(c + r * c_row + v * LANES_WIDTH, sum[r][v]);
}

/* Rows [first, end), a multiple of tile_rows. */
LANES_INLINE void multiply_rows(const struct product *p, uint32_t first, uint32_t end, uint32_t tile_rows,
                                uint32_t tile_blocks, bool row_major)
{
    const uint32_t blocks = product_blocks(p->columns);
    uint32_t block = 0;
    for (; blocks - block >= tile_blocks; block += tile_blocks)
        for (uint32_t row = first; row < end; row += tile_rows)
            multiply_tile(p, row, block, tile_rows, tile_blocks, row_major);
    for (; block < blocks; block++)
        for (uint32_t row = first; row < end; row += tile_rows)
            multiply_tile(p, row, block, tile_rows, 1, row_major);
}

LANES_INLINE void multiply(const struct product *p, bool row_major)
{
    uint32_t row = p->rows - p->rows % TILE_ROWS;
    multiply_rows(p, 0, row, TILE_ROWS, TILE_BLOCKS, row_major);
    if (TILE_ROWS > 4 && p->rows - row >= 4) {
        multiply_rows(p, row, row + 4, TILE_ROWS > 4 ? 4 : 1, TILE_BLOCKS, row_major);
        row += 4;
    }
    if (TILE_ROWS > 2 && p->rows - row >= 2) {
        multiply_rows(p, row, row + 2, TILE_ROWS > 2 ? 2 : 1, PAIR_BLOCKS, row_major);
        row += 2;
    }
    if (row < p->rows)
        multiply_rows(p, row, p->rows, 1, LONE_BLOCKS, row_major);
}

/* ---- half a block ---- */

#if defined(__AVX2__)
enum { HALF = 8, HALF_ROWS = 8 };

LANES_INLINE void multiply_half_tile(const struct product *p, uint32_t row, uint32_t rows)
{
    const float *a = p->a + row * p->a_row, *b = p->b;
    float *c = p->c + row * p->c_row;
    const float *begin = p->begin != NULL ? p->begin : c;
    const size_t a_row = p->a_row, begin_row = p->begin != NULL ? 0 : p->c_row;
    __m256 sum[HALF_ROWS];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; r++)
        sum[r] = _mm256_loadu_ps(begin + r * begin_row);
    for (uint32_t k = 0; k < p->depth; k++, b += p->b_depth, a += p->a_depth) {
        const __m256 column = _mm256_loadu_ps(b);
#pragma GCC unroll 16
        for (uint32_t r = 0; r < rows; r++)
            sum[r] = _mm256_fmadd_ps(column, _mm256_set1_ps(a[r * a_row]), sum[r]);
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < rows; r++)
        _mm256_storeu_ps(c + r * p->c_row, sum[r]);
}

static bool multiply_half(const struct product *p)
{
    uint32_t row = 0;
    if (p->columns > HALF)
        return false;
    for (; p->rows - row >= HALF_ROWS; row += HALF_ROWS)
        multiply_half_tile(p, row, HALF_ROWS);
    for (; row < p->rows; row++)
        multiply_half_tile(p, row, 1);
    return true;
}
#else
static bool multiply_half(const struct product *p)
{
    (void)p; /* a register holds a quarter of a block, and fused operations take all the time */
    return false;
}
#endif

void LANES_NAME(product)(const struct product *product)
{
    assert(product->a_row == 1 || product->a_depth == 1);
    if (multiply_half(product))
        return;
    if (product->a_depth == 1)
        multiply(product, true);
    else
        multiply(product, false);
}
