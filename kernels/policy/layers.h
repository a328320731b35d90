/* A chain of dense layers: the networks of DQN, SAC and TD3, which learn from a replay buffer.
 *
 *     h_0 = the inputs,   h_l = f(W_l h_{l-1} + b_l) for the hidden layers,   outputs = g(W h_last + b)
 *
 * with f tanh or ReLU, and g the identity, f, or tanh. dense.h has these layers with the heads of a policy,
 * for rows that a rollout keeps. Here the caller has the rows in a matrix, and says what pulls at the
 * outputs.
 *
 * The same bits, as in dense.h: an output is one chain of fused multiply-adds over a layer's inputs,
 * ascending, and depends on its own row and on the parameters alone. Gradients are summed over a chunk's
 * rows, ascending, and then added. test/oracle/dense_ref.h is the oracle in double.
 *
 * A `struct layers` holds the weights, a `struct layers_work` the activations of up to 256 rows. Any number
 * of threads may compute with one of the former, each with a work of its own. Only the functions named _new
 * allocate; nothing blocks. */
#ifndef KERNELS_POLICY_LAYERS_H
#define KERNELS_POLICY_LAYERS_H

#include "kernels/policy/dense.h"
#include "kernels/policy/matrix.h"

/* What the last layer's sums pass through: nothing, the hidden layers' function, or tanh. */
enum layers_last { LAYERS_LINEAR, LAYERS_ACTIVATED, LAYERS_TANH };

struct layers_shape {
    uint32_t inputs, outputs;         /* at least 1; inputs at most LAYERS_INPUTS_MAX */
    uint32_t layers;                  /* hidden ones, at most DENSE_LAYERS_MAX */
    uint32_t width[DENSE_LAYERS_MAX]; /* (layers) units of each */
    enum dense_activation activation;
    enum layers_last last;
    bool pulls_inputs; /* layers_backward may be asked for dL/d inputs */
    bool forward_only; /* there is no layers_backward: a target */
};

enum { LAYERS_INPUTS_MAX = DENSE_INPUTS_MAX + DENSE_COMPONENTS_MAX };

/* Floats of all parameters: of each layer the weight (outputs, inputs), then the bias, one layer behind the
 * other. */
size_t layers_parameters(const struct layers_shape *shape);

struct layers;

/* `shape` is copied. Parameters are zeros until layers_load. Takes about 8 bytes for each parameter, 4 of
 * forward_only. Errors: isa_choose's; STATUS_NO_MEMORY. */
enum status layers_new(struct layers **out, const struct layers_shape *shape, struct error *error);
void layers_free(struct layers *layers);

/* Computes with these parameters from now on; they are copied. No other thread computes with `layers`
 * meanwhile. */
void layers_load(struct layers *layers, const float *parameters);

struct layers_work;

/* Belongs to `layers`, which outlives it. Takes up to 1 KiB for each unit of all layers, and 1 MiB.
 * STATUS_NO_MEMORY.
 */
enum status layers_work_new(struct layers_work **out, const struct layers *layers, struct error *error);
void layers_work_free(struct layers_work *work);

/* Of at most DENSE_CHUNK_ROWS rows (asserted) of inputs. Returns the outputs, which lie in `work` until its
 * next forward. The inputs are the caller's, and stay as they are until the backward. */
struct dense_matrix layers_forward(const struct layers *layers, struct layers_work *work, uint32_t rows,
                                   struct dense_matrix inputs);

/* Of the rows that last went forward, by the pull (rows, outputs) at what layers_forward has returned; the
 * pull, and outputs that are not linear, may be overwritten. `gradient`: dL/d parameters, in their order,
 * added to what it holds or, `adds` false, in its place; NULL: not wanted. `to`: dL/d inputs; `to.at` NULL:
 * not wanted. */
void layers_backward(const struct layers *layers, struct layers_work *work, struct dense_matrix pull,
                     float *gradient, bool adds, struct dense_matrix to);

#endif
