/* What kernels/policy/dense.h computes besides products: activations, heads, sums; a table for each
 * instruction set. Private to kernels/policy/dense*.c and their tests; dense.h is the manual. */
#ifndef KERNELS_POLICY_DENSE_INTERNAL_H
#define KERNELS_POLICY_DENSE_INTERNAL_H

#include "kernels/policy/dense.h"

#include <stdbool.h>

enum { DENSE_LANES = 16 };

/* A matrix of rows whose columns come in blocks of 16: whole blocks are read and written. */
struct dense_matrix {
    float *at;
    size_t stride; // floats between rows
};

/* A Gaussian's deviations, each array (components) by 16. */
struct dense_sigma {
    float *sigma, *inverse, *shift; // sigma, 1 / sigma, log sigma + log(2 pi) / 2
    float entropy;
};

/* State-dependent deviations: sigma = exp(log_std), (features, components), and its squares as they are and
 * as b of a product; what that begins with, the 1e-6. */
struct dense_exploration {
    float *sigma, *squares, *panels, *begin;
};

/* Rows at the policy's head, DENSE_CHUNK_ROWS at most. */
struct dense_head {
    const struct dense_shape *shape;
    uint32_t outputs;
    struct dense_batch batch;
    struct dense_matrix z;           // (rows, outputs) logits or means
    float *scratch;                  // (2, most choices of a component, 16)
    const struct dense_sigma *sigma; // of a Gaussian
    /* Where its deviations depend on the state: */
    const struct dense_exploration *exploration;
    uint32_t features;
    struct dense_matrix features_at; // (rows, features)
    struct dense_matrix variance;    // (rows, components)
};

struct dense_lanes {
    /* h = f(h), of whole blocks. */
    void (*activate)(enum dense_activation activation, struct dense_matrix h, uint32_t rows, uint32_t blocks);
    /* dh = dh f'(x), by h = f(x): dh (1 - h^2), or dh where h > 0. */
    void (*slope)(enum dense_activation activation, struct dense_matrix dh, struct dense_matrix h,
                  uint32_t rows, uint32_t blocks);
    /* to[r * row_step + c * column_step] += sums[r][c], or with `adds` false: = 0 + sums[r][c] */
    void (*add)(float *to, size_t row_step, size_t column_step, struct dense_matrix sums, uint32_t rows,
                uint32_t columns, bool adds);

    /* dense_act, dense_evaluate, and the head's part of dense_gradient, which writes dL/dz; with a Gaussian
     * also each row's part of dL/d log_std or, where that depends on the state, (dL/d log_std_fd) / (h_f^2
     * sigma_fd^2), which is the same for all f. */
    void (*act)(const struct dense_head *head, const struct dense_draw *draw, float *log_probability);
    void (*evaluate)(const struct dense_head *head, float *log_probability, float *entropy);
    void (*pull)(const struct dense_head *head, const struct dense_pulls *pulls, struct dense_matrix dz,
                 struct dense_matrix dlog_sigma);

    /* 16 numbers at a time, each by itself. log and tanh are for the tests. */
    void (*exp)(const float x[DENSE_LANES], float y[DENSE_LANES]);
    void (*log)(const float x[DENSE_LANES], float y[DENSE_LANES]);
    void (*tanh)(const float x[DENSE_LANES], float y[DENSE_LANES]);
};

/* The table of the instruction set in use. Errors: isa_choose's. */
enum status dense_lanes_choose(const struct dense_lanes **lanes, struct error *error);

/* Fills *sigma by log_std (components). */
void dense_sigma_load(struct dense_sigma *sigma, const struct dense_lanes *lanes, const float *log_std,
                      uint32_t components);

extern const struct dense_lanes dense_lanes_baseline, dense_lanes_avx2, dense_lanes_avx512;

#endif
