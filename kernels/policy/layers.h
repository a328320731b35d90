/* A chain of dense layers: a critic, an actor, a Q-network, and the hidden layers and heads of dense.h.
 *
 *     h_0 = the inputs,   h_l = f(W_l h_{l-1} + b_l), f tanh or ReLU,   outputs = g(W h_last + b)
 *
 * with g the identity, f or tanh. The backward gives dL/d of every parameter, and dL/d inputs.
 *
 * The same bits. A row's outputs, and its dL/d inputs, depend on the parameters and on the row alone: not on
 * the number of rows, the rows around it, the thread or the instruction set. Each output of a layer is its
 * bias and then one chain of fused multiply-adds over the inputs, ascending; dL/d inputs is such a chain over
 * the outputs, from 0. A parameter's gradient is the sum over the rows, ascending, from 0. A NaN in a row's
 * inputs stays in that row's results. test/oracle/layers_ref.h is the oracle in double.
 *
 * A `struct layers` holds the parameters, a `struct layers_work` the activations of up to 256 rows. Any
 * number of threads may compute with one `layers`, each with a work of its own. Only the functions named _new
 * allocate; nothing blocks. */
#ifndef KERNELS_POLICY_LAYERS_H
#define KERNELS_POLICY_LAYERS_H

#include "kernels/base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DENSE_CHUNK_ROWS = 256 };

/* ---- the shape ---- */

enum {
    DENSE_INPUTS_MAX = 65536,
    DENSE_LAYERS_MAX = 8, /* hidden ones */
    DENSE_WIDTH_MAX = 1024,
    DENSE_OUTPUTS_MAX = 1024,
};

enum dense_activation { DENSE_TANH, DENSE_RELU };

/* What the last layer's sums pass through: nothing, the hidden layers' activation, or tanh. */
enum layers_last { LAYERS_LINEAR, LAYERS_ACTIVATED, LAYERS_TANH };

struct layers_shape {
    uint32_t inputs, outputs;
    uint32_t layers;                  /* hidden layers; 0: the last layer reads the inputs */
    uint32_t width[DENSE_LAYERS_MAX]; /* (layers) units of each */
    enum dense_activation activation;
    enum layers_last last;
    bool pulls_inputs; /* layers_backward may be asked for dL/d inputs */
    bool forward_only; /* layers_backward is never called: for a target network */
};

/* Where a layer's parameters begin in the flat array: the weight (outputs, inputs), then the bias (outputs).
 * The layers follow each other without gaps. Layer shape->layers is the last one. */
struct layers_place {
    uint32_t inputs, outputs;
    size_t weight, bias;
};

struct layers_place layers_place(const struct layers_shape *shape, uint32_t layer);

/* Floats of all parameters. */
size_t layers_parameters(const struct layers_shape *shape);

/* ---- the weights ---- */

struct layers;

/* `shape` is within its bounds (asserted), and is copied. Parameters are zeros until layers_load. Takes about
 * 8 bytes for each parameter, and 4 where forward_only. STATUS_NO_MEMORY. */
enum status layers_new(struct layers **out, const struct layers_shape *shape, struct error *error);
void layers_free(struct layers *layers);

/* Computes with these parameters from now on; they are copied. No other thread computes with `layers`
 * meanwhile. */
void layers_load(struct layers *layers, const float *parameters);

/* The same of one layer's weight or bias, which `from` points to. Several threads may do that at once, each
 * for others. */
void layers_load_weight(struct layers *layers, uint32_t layer, const float *from);
void layers_load_bias(struct layers *layers, uint32_t layer, const float *from);

/* ---- rows ---- */

/* A matrix of rows. Columns come in blocks of 16: a row has room for whole blocks, and functions may read and
 * write all of them. The numbers beyond the last column mean nothing. */
struct dense_matrix {
    float *at;
    size_t stride; // floats between rows
};

struct layers_work;

/* Belongs to `layers`, which outlives it. Takes up to 1 KiB for each unit of all layers, and up to 3 KiB for
 * each unit of the widest. STATUS_NO_MEMORY. */
enum status layers_work_new(struct layers_work **out, const struct layers *layers, struct error *error);
void layers_work_free(struct layers_work *work);

/* Returns the outputs (rows, outputs) of at most DENSE_CHUNK_ROWS rows (asserted), which lie in `work`, valid
 * until its next forward. The inputs (rows, inputs) are the caller's; they stay as they are until the
 * backward. */
struct dense_matrix layers_forward(const struct layers *layers, struct layers_work *work, uint32_t rows,
                                   struct dense_matrix inputs);

/* Of the rows that were last passed forward: `pull` (rows, outputs) is dL/d of what layers_forward returned,
 * and is overwritten. `gradient`, in the parameters' order, receives dL/d of every parameter: added to what
 * it holds, or, `adds` false, in its place. NULL: not wanted. `to` (rows, inputs) receives dL/d inputs, where
 * shape->pulls_inputs. to.at NULL: not wanted. May be called again for the same rows, with another pull.
 * `layers` still holds the same parameters. */
void layers_backward(const struct layers *layers, struct layers_work *work, struct dense_matrix pull,
                     float *gradient, bool adds, struct dense_matrix to);

/* Keeps of the rows that were last passed forward those that ascend in `row`, and forgets the others: the
 * backward is then of these alone, as if they had been the only ones; `gradient` is NULL there. Outputs are
 * moved, too. */
void layers_keep(const struct layers *layers, struct layers_work *work, uint32_t count, const uint32_t *row);

/* ---- inputs in pieces ----
 *
 * For a caller that gathers a piece of the inputs' columns at a time. The results have the bits of
 * layers_forward and layers_backward. */

enum { LAYERS_PIECE = 256 }; /* columns: rows of a piece stay in the cache */

/* Columns [first, first + width) of the inputs, which are x. Pieces ascend from 0. */
void layers_read(const struct layers *layers, struct layers_work *work, uint32_t rows, struct dense_matrix x,
                 uint32_t first, uint32_t width);

/* The rest of the forward, once all pieces are read; the outputs. */
struct dense_matrix layers_finish(const struct layers *layers, struct layers_work *work);

/* layers_backward but for the weight of the first layer and dL/d inputs. For both, `work` keeps dL/d of that
 * layer's sums, and `pull` may be where: it stays as it is until these functions are called. */
void layers_pull(const struct layers *layers, struct layers_work *work, struct dense_matrix pull,
                 float *gradient, bool adds);

/* The gradient of columns [first, first + width) of the first weight, whose inputs are x. */
void layers_pull_weight(const struct layers *layers, const struct layers_work *work, struct dense_matrix x,
                        uint32_t first, uint32_t width, float *gradient, bool adds);

/* to = dL/d inputs; `more`: added to what is there. */
void layers_pull_inputs(const struct layers *layers, const struct layers_work *work, struct dense_matrix to,
                        bool more);

#endif
