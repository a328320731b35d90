/* One dense layer, x W^T + b: its weight in the order in which the products read it, and its three products.
 * Private to kernels/policy/.
 *
 * Every sum is one chain of fused multiply-adds (kernels/lanes/product_lanes.h), the same bits for any batch.
 */
#ifndef KERNELS_POLICY_LINEAR_H
#define KERNELS_POLICY_LINEAR_H

#include "kernels/policy/panels.h"

/* A weight W (outputs, inputs) as b of two products: forward b[k][n] = W[n][k], backward b[k][n] = W[k][n].
 * Both are in panels of 16 columns, (blocks of n, k, 16), with zeros beyond the last column. */
struct linear {
    uint32_t inputs, outputs;
    size_t weight, bias; // where the parameters begin in a flat array
    float *begin;        // (blocks of outputs, 16) the bias
    float *forward;      // (blocks of outputs, inputs, 16)
    float *backward;     // (blocks of inputs, outputs, 16); NULL: nothing pulls at the inputs
};

/* Takes room; `pulls`: for the backward panels, too. */
void linear_place(struct places *places, struct linear *layer, bool pulls);

/* Computes with these values of its weight, and of its bias, from now on. */
void linear_load_weight(const struct linear *layer, const float *weight);
void linear_load_bias(const struct linear *layer, const float *bias);

/* to = begin + a b, for rows of `a` and columns of `b` in panels (blocks of columns, depth, 16); begin NULL:
 * on to what is there. `skipped`: of the panels' depth, in front; `width`: of it that `a` has. */
void linear_multiply(product_function *product, uint32_t rows, struct dense_matrix a, uint32_t width,
                     const float *panels, uint32_t depth, uint32_t skipped, uint32_t columns,
                     const float *begin, struct dense_matrix to);

/* to = x W^T + b of the layer's inputs [first, first + width), which x holds. */
void linear_forward(product_function *product, const struct linear *layer, struct dense_matrix x,
                    uint32_t rows, uint32_t first, uint32_t width, struct dense_matrix to);

/* to = dL/d inputs by the pull at the sums, (rows, outputs); `zeros` is as long as a row of `to`. NULL: on to
 * what is there. */
void linear_pull(product_function *product, const struct linear *layer, struct dense_matrix pull,
                 uint32_t rows, const float *zeros, struct dense_matrix to);

/* The gradient of the bias, in a flat array: the sum of pull's rows. */
void linear_add_bias(const struct summing *summing, const struct linear *layer, struct dense_matrix pull,
                     uint32_t rows, const float *ones, float *gradient, bool adds);

/* The gradient of the weight's columns [first, first + width), whose inputs are x, in a flat array. */
void linear_add_weight(const struct summing *summing, const struct linear *layer, struct dense_matrix pull,
                       uint32_t rows, struct dense_matrix x, uint32_t first, uint32_t width, float *gradient,
                       bool adds);

#endif
