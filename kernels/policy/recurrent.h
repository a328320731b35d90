/* Recurrent layers of a policy with memory: LSTM or GRU, on the CPU, forward and back through time. And the
 * linear layer that may stand in their place.
 *
 *     cell       the equations of one step of one layer: PyTorch's nn.LSTM or nn.GRU
 *     sequence   rows of one environment, step after step
 *     slot       the number of a sequence, and the place of its state
 *     state      what a cell remembers: h of each layer, and of an LSTM c
 *     start      a row that begins an episode: the state before it is zeros
 *     gate       one of the sigmoids and tanhs of a cell: 4 of an LSTM, 3 of a GRU
 *
 * LSTM, gates in the order i, f, g, o of PyTorch's weights:
 *     i, f, o = sigmoid(W x + b + V h + d),  g = tanh(W x + b + V h + d)
 *     c' = f c + i g,  h' = o tanh(c')
 * GRU, gates in the order r, z, n:
 *     r, z = sigmoid(W x + b + V h + d),  n = tanh(W x + b + r (V h + d))
 *     h' = (1 - z) n + z h
 * Linear, without a state, and always one layer: y = W x + b.
 * With W weight_ih, V weight_hh, b bias_ih, d bias_hh. Layer l + 1 reads h' of layer l; the results are h' of
 * the last layer.
 *
 * The tape has an LSTM too (kernels/op.h). It takes a whole layer as one operation of a backend, and serves
 * language models and policies on a backend. This one serves policies on the CPU, whose layers are small: it
 * knows starts, acts on a few rows in microseconds, and its rows have the same bits in every batch.
 *
 * The same bits. A row's result depends on the parameters, on its own sequence so far, and on that sequence's
 * first state. It does not depend on the other sequences, on the number of steps in a call, or on the
 * instruction set. So acting step by step and learning from the whole rollout compute the same numbers. Each
 * gate's sum is one chain of fused multiply-adds, over x and then over h; a GRU's n has two chains. A NaN
 * stays in its sequence up to the next start.
 *
 * Several threads may compute with one recurrent, each with a work of its own. Only the functions named _new
 * allocate; nothing blocks. */
#ifndef KERNELS_POLICY_RECURRENT_H
#define KERNELS_POLICY_RECURRENT_H

#include "kernels/policy/layers.h"

enum { RECURRENT_LAYERS_MAX = 4, RECURRENT_HIDDEN_MAX = 1024 };

enum recurrent_cell { RECURRENT_LSTM, RECURRENT_GRU, RECURRENT_LINEAR };

struct recurrent_shape {
    enum recurrent_cell cell;
    uint32_t inputs; // floats of a row
    uint32_t hidden; // units of each layer
    uint32_t layers;
};

/* Floats of one slot's state: of each layer h (hidden), and of an LSTM c (hidden) behind it. 0: linear. */
size_t recurrent_state_floats(const struct recurrent_shape *shape);

/* ---- parameters ----
 *
 * In the order of the state_dict of PyTorch's module: of each layer l weight_ih_l, weight_hh_l, bias_ih_l,
 * bias_hh_l, gate after gate, each in a row-major matrix. Linear: weight, bias. */

enum { RECURRENT_PARAMETERS_MAX = 4 * RECURRENT_LAYERS_MAX, RECURRENT_NAME_BYTES = 24 };

enum recurrent_parameter_kind {
    RECURRENT_INPUT_WEIGHT,
    RECURRENT_STATE_WEIGHT,
    RECURRENT_INPUT_BIAS,
    RECURRENT_STATE_BIAS,
    RECURRENT_PARAMETER_KINDS
};

struct recurrent_parameter {
    char name[RECURRENT_NAME_BYTES]; // "weight_ih_l0"
    enum recurrent_parameter_kind kind;
    uint32_t layer;
    uint32_t rank, shape[2]; // (gates * hidden, inputs or hidden), or (gates * hidden)
    size_t offset, count;    // floats: where it begins in the flat array, and how many it has
};

/* Fills `out`, ascending by offset and without gaps; returns how many there are. */
uint32_t recurrent_parameters(const struct recurrent_shape *shape,
                              struct recurrent_parameter out[RECURRENT_PARAMETERS_MAX]);

/* ---- weights ---- */

struct recurrent;

/* `shape` is within its bounds (asserted), and is copied. Parameters are zeros until
 * recurrent_load_parameter. STATUS_NO_MEMORY. */
enum status recurrent_new(struct recurrent **out, const struct recurrent_shape *shape, struct error *error);
void recurrent_free(struct recurrent *recurrent);

/* Computes with parameter number `number` of the list as it is in `parameters`, the flat array of all, from
 * now on; it is copied. Several threads may do that at once, each for other parameters. No other thread
 * computes meanwhile. */
void recurrent_load_parameter(struct recurrent *recurrent, const float *parameters, uint32_t number);

/* ---- rows ---- */

/* Rows of some sequences, step by step. No slot is twice in a step; a sequence may miss steps. */
struct recurrent_rows {
    uint32_t steps;
    const uint32_t *first; // (steps + 1) where each step's rows begin; the last is the number of rows
    const uint32_t *slot;  // (rows)
    const uint8_t *starts; // (rows) not 0: a start. NULL: none is
};

struct recurrent_work;

/* For at most `rows_max` rows of slots below `slots_max` in a call. Takes about 4 bytes * (inputs + 8 hidden
 * * layers) for a row. STATUS_NO_MEMORY. */
enum status recurrent_work_new(struct recurrent_work **out, const struct recurrent *recurrent,
                               uint32_t rows_max, uint32_t slots_max, struct error *error);
void recurrent_work_free(struct recurrent_work *work);

/* Where the caller writes the inputs before recurrent_forward (rows, inputs), and the pulls dL/d result
 * before recurrent_backward (rows, hidden). */
struct dense_matrix recurrent_inputs(const struct recurrent_work *work);
struct dense_matrix recurrent_pulls(const struct recurrent_work *work);

/* Some of the steps: from number `begin` up to, not including, `end`. */
struct recurrent_range {
    uint32_t begin, end;
};

/* Computes the results (rows, hidden) of the range, valid until the next call with its rows. Ranges ascend.
 * `state` (slots, recurrent_state_floats): where each sequence begins; in its place where the sequence then
 * stands. How steps are cut into ranges changes no bit. */
struct dense_matrix recurrent_forward(const struct recurrent *recurrent, struct recurrent_work *work,
                                      const struct recurrent_rows *rows, struct recurrent_range range,
                                      float *state);

/* dL/d of every parameter from the rows of the range, by the pulls at the results of recurrent_forward with
 * these rows; in `gradient`, which has the parameters' order: added to what that holds, or, `adds` false, in
 * its place. Ranges descend, from the last step on. A sequence's first state is a constant. A range's
 * rows are summed in chunks of 256, ascending, chunk by chunk. Each range needs a recurrent_forward before
 * the next call: this one overwrites what it reads. */
void recurrent_backward(const struct recurrent *recurrent, struct recurrent_work *work,
                        const struct recurrent_rows *rows, struct recurrent_range range, float *gradient,
                        bool adds);

/* Multiplications of a row, forward. */
size_t recurrent_products(const struct recurrent_shape *shape);

#endif
