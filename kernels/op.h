/* The operations: what each computes, and one call of one operation.
 *
 * op_forward and op_backward are the only entrances. op_forward checks the inputs against the operation's
 * rule (how many tensors, which dtype, which shapes), sets the outputs' shapes, and calls the backend's
 * table. The backend checks only what the data decide: an index out of range. Attributes are the caller's to
 * check.
 *
 * "rows" and the like are sizes that must agree; `?` marks a tensor that may be absent (NULL). Every
 * floating tensor has the backend's dtype, indices are DTYPE_I32. Means of losses are over all their terms.
 *
 * OP_LINEAR            x (rows, inputs), weight (outputs, inputs), bias? (outputs) -> y (rows, outputs)
 *                      y = x weight^T + bias
 *
 * OP_CONV2D            x (n, c, h, w), weight (o, c, kh, kw), bias? (o) -> y (n, o, h', w')
 *                      Cross-correlation with zero padding, plus the bias; w' as
 *                      h' = (h + 2 padding[0] - kh) / stride[0] + 1, rounded down.
 *
 * OP_BATCH_NORM        x (n, c, h, w), weight (c), bias (c), running mean? (c), running variance? (c)
 *                      -> y as x, batch mean (c), batch variance (c)
 *                      y = (x - mean) / sqrt(variance + epsilon) * weight + bias; with attributes.relu,
 *                      max(0, that). Training: mean and biased variance are the batch's own; the second and
 *                      third output are the mean and the *unbiased* variance, for the caller to move the
 *                      running ones with; the running ones are not read. One value per channel is
 *                      STATUS_INVALID. Outside of training the running ones are used and required; outputs
 *                      2 and 3 and the backward do not exist.
 *
 * OP_MAX_POOL          x (n, c, h, w) -> y (n, c, h', w')
 *                      Padding counts as minus infinity and is at most half of the kernel. The gradient goes
 *                      to the first maximum in row-major order.
 *
 * OP_AVG_POOL          x (n, c, h, w) -> y (n, c, h', w')
 *                      The mean over the kernel; padding counts as zeros (PyTorch's count_include_pad).
 *
 * OP_RELU              x -> y as x
 *                      The gradient at 0 is 0, everywhere in this file. A NaN stays a NaN, here and through
 *                      every fused ReLU and max pool, so that a loss shows it. Other elements of that
 *                      output may become NaN too. Exception: on a CPU, a batch norm outside of training
 *                      may lose a NaN of x.
 *
 * OP_ADD               a, b as a -> y as a
 *                      a + b; with attributes.relu, max(0, that).
 *
 * OP_RESHAPE           x -> y (attributes.shape, equally many elements), canonical order kept
 *
 * OP_DROPOUT           x, rows? (R, 3) int32 -> y as x
 *                      x keep / (1 - p), 0 <= p < 1; see "Draws".
 *
 * OP_LOG_SOFTMAX       x -> y as x, over the last dimension (rank >= 1)
 *
 * OP_EMBEDDING         indices (any shape of rank 1..3) int32, weight (vocabulary, width)
 *                      -> y (that shape, width)
 *                      An index out of range is STATUS_INVALID; the message names it. (GPU: the caller checks
 *                      before the upload; the kernel clamps the index and the result is undefined.)
 *
 * OP_LSTM_LAYER        x (steps, batch, inputs), h0 (batch, hidden), c0 (batch, hidden),
 *                      weight_ih (4 hidden, inputs), weight_hh (4 hidden, hidden), bias_ih (4 hidden),
 *                      bias_hh (4 hidden)
 *                      -> y (steps, batch, hidden), hn (batch, hidden), cn (batch, hidden)
 *                      PyTorch's equations and gate order i, f, g, o.
 *
 * OP_GRU_LAYER         x (steps, batch, inputs), h0 (batch, hidden), weight_ih (3 hidden, inputs),
 *                      weight_hh (3 hidden, hidden), bias_ih (3 hidden), bias_hh (3 hidden)
 *                      -> y (steps, batch, hidden), hn (batch, hidden)
 *                      PyTorch's equations and gate order r, z, n.
 *
 * OP_MSE               x, target as x -> scalar
 *                      Mean of (x - target)^2. No gradient for the target.
 *
 * OP_CROSS_ENTROPY     logits (n, classes) or (n, classes, m), target (n) or (n, m) int32 -> scalar
 *                      Mean of -log softmax over dimension 1 at the target. Index out of range: as
 *                      OP_EMBEDDING.
 *
 * OP_LOG_PROBABILITY   log-probabilities (rows, classes), actions (rows) int32 -> y (rows)
 *                      y[i] is row i at actions[i]. Index out of range: as OP_EMBEDDING.
 *
 * OP_SUM               x, coefficient? as x -> scalar
 *                      attributes.scale * sum of coefficient * x (absent: 1). No gradient for the
 *                      coefficient. A mean has scale 1 / elements.
 *
 * OP_TANH              x -> y as x
 *                      The gradient is dy (1 - y^2), by the output. A NaN stays a NaN.
 *
 * ---- Draws ----
 * Masks are functions of (seed, three words, element), by kernels/base/rng.h, so that every
 * backend draws the same bits. With `rows` (R, 3), whose R divides the elements of x, row r's words are
 * rows[r] = (environment, step, episode) and j counts elements within the row; without, the words are
 * attributes.draw.word = (trainer, iteration, module) and j counts all of x's elements in canonical order.
 * Element j is kept when its 16 bits are >= round(65536 p). With g = j / 128 and v = (j % 128) / 16, its bits
 * are half v % 2 (0: low) of word v / 2 of block 16 g + j % 16 of stream RNG_DROPOUT (as in
 * kernels/policy/mlp.h; at most 2^27 elements). */
#ifndef KERNELS_OP_H
#define KERNELS_OP_H

#include "kernels/tensor.h"

enum op {
    OP_LINEAR,
    OP_CONV2D,
    OP_BATCH_NORM,
    OP_MAX_POOL,
    OP_AVG_POOL,
    OP_RELU,
    OP_ADD,
    OP_RESHAPE,
    OP_DROPOUT,
    OP_LOG_SOFTMAX,
    OP_EMBEDDING,
    OP_LSTM_LAYER,
    OP_MSE,
    OP_CROSS_ENTROPY,
    OP_LOG_PROBABILITY,
    OP_SUM,
    OP_TANH,
    OP_GRU_LAYER,
    OP_COUNT
};

enum { OP_INPUTS_MAX = 7, OP_OUTPUTS_MAX = 3, OP_SAVED_MAX = 6 };

/* The words of a draw that is not made row by row: (trainer, iteration, module). */
struct draw {
    uint64_t seed;
    uint32_t word[3];
};

/* One operation's settings; each reads its own and ignores the rest. */
struct op_attributes {
    bool relu;           /* batch norm, add */
    bool training;       /* batch norm */
    double epsilon;      /* batch norm; > 0 */
    uint32_t kernel[2];  /* pools: height, width */
    uint32_t stride[2];  /* conv2d, pools */
    uint32_t padding[2]; /* conv2d, pools: on both sides */
    double dropout;      /* dropout: p */
    struct draw draw;    /* dropout */
    double scale;        /* sum */
    struct shape shape;  /* reshape */
};

/* One call, forward or backward. The caller owns the struct and every struct tensor in it.
 *
 * The backend takes the memory of what a call writes (out, saved, din) from `arena` and chooses the layout.
 * A parameter's din may offer memory in `data`: the backend writes there, in the tensor's layout, or ignores
 * the offer. An output whose rule says OP_OFFERED may offer canonical memory, and the backend writes there. A
 * result may also be the `data` of an input (forward) or of a dout (backward), or two din may share a block.
 * The backend then calls arena_share for the block's other owner; reshape and add do this. Outputs are
 * overwritten, never added to. After a failure the call holds nothing of the arena, and out, saved and din
 * are undefined; a backend's function just returns. After a success a backend's function has released its own
 * scratch. */
struct op_call {
    enum op op;
    struct op_attributes attributes;
    struct arena *arena;
    struct tensor *in[OP_INPUTS_MAX];
    struct tensor *out[OP_OUTPUTS_MAX];

    /* Tensors that the backward needs beside in and out: private to the backend, filled by the forward,
     * passed unchanged to the backward. `keep` false (inference): none. */
    bool keep;
    struct tensor saved[OP_SAVED_MAX];

    /* Backward: a dout of NULL is a zero gradient, and at least one is not NULL; a din of NULL is not wanted.
     * op_backward sets the shape and the dtype of a din without data. */
    struct tensor *dout[OP_OUTPUTS_MAX];
    struct tensor *din[OP_INPUTS_MAX];
};

/* One input or output in an operation's rule. */
struct op_tensor {
    const char *name; /* for messages: "weight" */

    /* The shape as a pattern, one sign for each dimension. A letter is a size, the same wherever the rule has
     * it; a digit is itself; `+` is any number of dimensions, the same ones wherever the rule has it. */
    const char *shape;
    uint32_t flags;
};
enum {
    OP_OPTIONAL = 1, /* the input may be absent */
    OP_INTEGERS = 2, /* the input is int32; all others have the backend's dtype */
    OP_GRADIENT = 4, /* the input can have a gradient */
    OP_READ = 8,     /* the backward reads the tensor's data; the tape may release the others before it */
    OP_OFFERED = 16, /* the output may offer memory */
};

/* The facts about an operation that hold on every backend. */
struct op_rule {
    const char *name; /* "conv2d" */
    uint32_t inputs, outputs;
    struct op_tensor in[OP_INPUTS_MAX], out[OP_OUTPUTS_MAX];
};
const struct op_rule *op_rule(enum op op);

/* The outputs that the operation has under these attributes: a batch norm has 1 outside of training. */
uint32_t op_outputs(enum op op, const struct op_attributes *attributes);

struct backend;

/* The shapes of the operation's outputs, by call->in and the attributes. STATUS_INVALID: an absent input, a
 * wrong dtype, shapes that do not fit, an output of more than SHAPE_ELEMENTS_MAX elements. The message names
 * the operation, the tensor, its shape, and the expected shape or the tensor that it has to fit. */
enum status op_shapes(const struct backend *backend, const struct op_call *call,
                      struct shape out[OP_OUTPUTS_MAX], struct error *error);

/* Computes call->out. Errors as op_shapes; STATUS_NO_MEMORY; STATUS_INTERNAL with the library call that
 * failed and the shape.
 *
 * On the CPU the operation has finished when the call returns. On the GPU it is queued on the backend's one
 * stream, in order; backend_download, backend_square_sum and backend_first_not_finite wait for it, and the
 * call that notices an error of the device returns it. */
enum status op_forward(struct backend *backend, struct op_call *call, struct error *error);

/* Computes the gradients of call->in from those of call->out. in, out, attributes and saved are as op_forward
 * left them, with call->keep true. Errors as op_forward, without those of op_shapes. */
enum status op_backward(struct backend *backend, struct op_call *call, struct error *error);

/* For backends: every element of int32 input `input`, in canonical host memory, is in 0..limit-1. */
enum status op_check_indices(const struct op_call *call, uint32_t input, uint32_t limit, struct error *error);

#endif
