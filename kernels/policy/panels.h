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

/* Names all arrays of the struct `of`. */
typedef void places_list(struct places *places, void *of);

/* Takes memory for the arrays that `list` names: zeros, from a cache line's begin. The caller frees *memory.
 * STATUS_NO_MEMORY; `what` ends "the bytes of a policy's …". */
enum status places_take(float **memory, places_list *list, void *of, const char *what, struct error *error);

/* ---- weights ---- */

/* panel (depth, 16)[k][n] = from[n][k], for at most 16 rows of `from`. */
void panels_transpose(float *panel, const float *from, uint32_t rows, uint32_t depth);

/* panels (blocks of columns, depth, 16)[n / 16][first + k][n % 16] = from[k][n], for `rows` rows of `from`.
 */
void panels_pack(float *panels, const float *from, uint32_t columns, uint32_t depth, uint32_t first,
                 uint32_t rows);

/* A weight W (outputs, inputs) as b of two products: forward b[k][n] = W[n][k], backward b[k][n] = W[k][n].
 */
struct panels {
    float *forward;  // (blocks of outputs, inputs, 16)
    float *backward; // (blocks of inputs, outputs, 16); NULL: not wanted
};

void panels_place(struct places *places, struct panels *panels, uint32_t outputs, uint32_t inputs,
                  bool goes_back);
void panels_load(const struct panels *panels, const float *weight, uint32_t outputs, uint32_t inputs);

/* to = begin + a b, for rows of `a` (rows, depth) and of b `columns` columns, whose first block of 16 is at
 * `panel`, and each next one `block` floats on. begin NULL: on to what is there. */
void panels_multiply(product_function *product, uint32_t rows, struct dense_matrix a, uint32_t depth,
                     const float *panel, size_t block, uint32_t columns, const float *begin,
                     struct dense_matrix to);

/* ---- sums over rows ---- */

/* What they are computed with. */
struct summing {
    product_function *product;
    const struct dense_lanes *lanes;
    float *zeros;              // (SUM_COLUMNS)
    float *ones;               // (DENSE_CHUNK_ROWS)
    struct dense_matrix piece; // (SUM_ROWS, SUM_COLUMNS)
};

enum { SUM_ROWS = 64, SUM_COLUMNS = 256 }; // of a matrix of sums that is computed at a time

void summing_place(struct places *places, struct summing *summing);

/* Once its memory is there. */
void summing_begin(struct summing *summing, product_function *product, const struct dense_lanes *lanes);

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

/* The gradient of a bias: the sums of the columns of x, over at most DENSE_CHUNK_ROWS rows. */
void summing_add_columns(const struct summing *summing, uint32_t rows, struct dense_matrix x,
                         uint32_t columns, float *to, bool adds);

#endif
