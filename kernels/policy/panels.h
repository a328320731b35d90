/* What the policy's kernels share: memory in one piece, weights in panels, and sums over rows. Private to
 * kernels/policy/.
 *
 * A panel is a matrix's 16 columns: panels (blocks of columns, depth, 16) are b of a product
 * (kernels/lanes/product_lanes.h), with zeros beyond the last column. */
#ifndef KERNELS_POLICY_PANELS_H
#define KERNELS_POLICY_PANELS_H

#include "kernels/policy/lanes_internal.h"

/* ---- memory ----
 *
 * A first pass over what a struct needs counts the floats; a second one, with memory, sets the pointers. */

struct places {
    float *memory; // NULL: count only
    size_t used;
};

void places_floats(struct places *places, float **at, size_t floats);
void places_matrix(struct places *places, struct dense_matrix *matrix, size_t rows, uint32_t columns);

/* Takes memory for what was counted: zeros, from a cache line's begin. The caller frees places->memory.
 * STATUS_NO_MEMORY; `what` ends "the bytes of a policy's …". */
enum status places_take(struct places *places, const char *what, struct error *error);

/* ---- weights ---- */

/* panel (depth, 16)[k][n] = from[n][k], for at most 16 rows of `from`. */
void panels_transpose(float *panel, const float *from, uint32_t rows, uint32_t depth);

/* panels (blocks of columns, depth, 16)[n / 16][first + k][n % 16] = from[k][n], for `rows` rows of `from`.
 */
void panels_pack(float *panels, const float *from, uint32_t columns, uint32_t depth, uint32_t first,
                 uint32_t rows);

/* ---- sums over rows ---- */

/* What they are computed with. */
struct summing {
    product_function *product;
    const struct dense_lanes *lanes;
    float *zeros;              // (SUM_COLUMNS)
    struct dense_matrix piece; // (SUM_ROWS, SUM_COLUMNS)
};

enum { SUM_ROWS = 64, SUM_COLUMNS = 256 }; // of a matrix of sums that is computed at a time

void summing_place(struct places *places, struct summing *summing);

/* to[m * row_step + n * column_step] += sum over `rows` rows of a[row][m] b[row][n], rows ascending, for
 * m_count by n_count numbers; `adds` false: = that sum. */
void summing_add(const struct summing *summing, uint32_t rows, struct dense_matrix a, uint32_t m_count,
                 struct dense_matrix b, uint32_t n_count, float *to, size_t row_step, size_t column_step,
                 bool adds);

/* The gradient of a weight (outputs, inputs), or of some of its columns: adds to to[m * row_step + k] the sum
 * over the rows of pull (rows, outputs) times x (rows, inputs). Either the inputs or the outputs lie across
 * the lanes, whichever leaves fewer lanes idle; the bits are the same. */
void summing_add_weight(const struct summing *summing, uint32_t rows, struct dense_matrix pull,
                        uint32_t outputs, struct dense_matrix x, uint32_t inputs, float *to, size_t row_step,
                        bool adds);

#endif
