/* A general policy's weights and workspace as structs: for kernels/policy/dense*.c. */
#ifndef KERNELS_POLICY_DENSE_INTERNAL_H
#define KERNELS_POLICY_DENSE_INTERNAL_H

#include "kernels/lanes/product_lanes.h"
#include "kernels/policy/dense_lanes.h"
#include "kernels/policy/dense_parameters.h"

/* Columns of the observations that are multiplied at a time: rows of that many stay in the cache. */
enum { DENSE_INPUT_BLOCK = 256 };

/* A piece of a weight's gradient that is summed at a time. */
enum { DENSE_PIECE_ROWS = 64, DENSE_PIECE_COLUMNS = 256 };

/* A weight W (outputs, inputs) as b of two products: forward b[k][n] = W[n][k], backward b[k][n] = W[k][n].
 * Both are in panels of 16 columns, (blocks of n, k, 16), with zeros beyond the last column. */
struct dense_layer {
    uint32_t inputs, outputs;
    size_t weight, bias; // where the parameters begin in the flat array
    float *begin;        // (blocks of outputs, 16) the bias
    float *forward;      // (blocks of outputs, inputs, 16)
    float *backward;     // (blocks of inputs, outputs, 16); NULL for the first layer, which pulls at nothing
};

struct dense {
    struct dense_shape shape;
    uint32_t outputs;
    struct dense_layer layer[DENSE_NETWORKS]
                            [DENSE_LAYERS_MAX + 1]; // (networks, layers + 1): the head is last
    uint32_t parameter_count;
    struct dense_parameter parameters[DENSE_PARAMETERS_MAX]; // (parameter_count)
    size_t log_sigma;                                        // in the flat array
    struct dense_sigma sigma;
    struct dense_exploration exploration; // where dense_explores
    const struct dense_lanes *lanes;
    product_function *product;
    float *memory; // all of the above
};

struct dense_work {
    struct dense_batch batch;                                         // last evaluated
    struct dense_matrix inputs;                                       // (rows, input block)
    struct dense_matrix output[DENSE_NETWORKS][DENSE_LAYERS_MAX + 1]; // (rows, outputs) of each layer
    struct dense_matrix head_pull[DENSE_NETWORKS]; // (rows, outputs) dL/d of the heads' sums
    float *pull[2];                // (rows, width) dL/d of a hidden layer, and of the one before it
    struct dense_matrix log_sigma; // (rows, components) dL/d log_std
    /* Where dense_explores: the features' squares (rows, features), the variances (rows, components), and a
     * chunk's sums (features, components). */
    struct dense_matrix squares, variance;
    float *exploration_sums;
    struct dense_matrix piece; // (DENSE_PIECE_ROWS, DENSE_PIECE_COLUMNS)
    float *scratch;            // struct dense_head's
    float *zeros, *ones;       // (DENSE_OUTPUTS_MAX), (DENSE_CHUNK_ROWS)
    bool adds;                 // dense_gradient's, while it runs
    float *memory;             // all of the above
};

/* The tables of the instruction set that isa_choose picks; `product` may be NULL. Errors: isa_choose's. */
enum status dense_choose(const struct dense_lanes **lanes, product_function **product, struct error *error);

/* Fills *sigma by log_std (components). */
void dense_sigma_load(struct dense_sigma *sigma, const struct dense_lanes *lanes, const float *log_std,
                      uint32_t components);

/* Whether network n has layer l, of which the heads are the last. */
static inline bool dense_has_layer(const struct dense_shape *shape, uint32_t n, uint32_t l)
{
    return n == DENSE_POLICY || (shape->value && (l == shape->layers || !shape->shared));
}

#endif
