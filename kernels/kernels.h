/* The operations that a backend computes, forward and backward, and how a backend is had.
 *
 *     ref      plain C in double (test/oracle/ref.h): the oracle of the conformance test, linked into tests
 *     onednn   CPU, float32: a plug-in, libcoalesced-onednn.so
 *     cuda     NVIDIA GPU, float32: a plug-in, libcoalesced-cuda.so
 *
 * All operations go through two functions, op_forward and op_backward. They check the call against the
 * operation's rule (how many tensors, which dtype, which shapes fit), set the outputs' shapes, and hand a
 * call that is known to be sound to the backend's table. A backend checks nothing again but what only data
 * can show (an index out of range). The tape (kernels/tape/tape.h) is what a model calls; only tests,
 * benchmarks and the tape call the operations directly.
 *
 * A backend belongs to one thread at a time. Operations on the CPU have finished when they return. On the
 * GPU they are queued on the backend's one stream, in order; backend_download, backend_square_sum and
 * backend_first_not_finite wait for it. An error of the device is told by the call that meets it.
 *
 * ---- The operations ----
 * "rows" and the like are sizes that must agree; `?` marks a tensor that may be absent (NULL). Every
 * floating tensor has the backend's dtype, indices are DTYPE_I32. Means of losses are over all their terms.
 *
 * OP_LINEAR            x (rows, inputs), weight (outputs, inputs), bias? (outputs) -> y (rows, outputs)
 *                      y = x weight^T + bias; with attributes.relu, max(0, that).
 *
 * OP_CONV2D            x (n, c, h, w), weight (o, c, kh, kw), bias? (o) -> y (n, o, h', w')
 *                      Cross-correlation with zero padding: h' = (h + 2 padding[0] - kh) / stride[0] + 1,
 *                      rounded down; w' alike. With attributes.relu, max(0, that).
 *
 * OP_BATCH_NORM        x (n, c, h, w), weight (c), bias (c), running mean? (c), running variance? (c)
 *                      -> y as x, batch mean (c), batch variance (c)
 *                      y = (x - mean) / sqrt(variance + epsilon) * weight + bias; with attributes.relu,
 *                      max(0, that). Training: mean and biased variance are the batch's own; the second and
 *                      third output are the mean and the *unbiased* variance, to move the running ones
 *                      with, which are not read. One value per channel is STATUS_INVALID.
 *                      Otherwise: the running ones are used and must be there; outputs 2 and 3 are absent
 *                      and so is a backward.
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
 *                      every fused ReLU and max pool, so that a loss shows it (then other elements of that
 *                      output may be NaN too; a batch norm that does not train may lose those of x, and
 *                      a GPU those under a fused ReLU that its library offers no other way).
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
 *                      An index out of range is STATUS_INVALID that names it. (GPU: checked on upload by the
 *                      caller; the kernel clamps and the result is then undefined.)
 *
 * OP_LSTM_LAYER        x (steps, batch, inputs), h0? (batch, hidden), c0? (batch, hidden),
 *                      weight_ih (4 hidden, inputs), weight_hh (4 hidden, hidden), bias_ih? (4 hidden),
 *                      bias_hh? (4 hidden; both or none)
 *                      -> y (steps, batch, hidden), hn (batch, hidden), cn (batch, hidden)
 *                      PyTorch's equations and gate order i, f, g, o. An absent h0 or c0 is zero.
 *
 * OP_MSE               x, target as x -> scalar
 *                      Mean of (x - target)^2. No gradient for the target.
 *
 * OP_CROSS_ENTROPY     logits (n, classes) or (n, classes, m), target (n) or (n, m) int32 -> scalar
 *                      Mean of -log softmax over dimension 1 at the target. An index out of range as in
 *                      OP_EMBEDDING.
 *
 * OP_LOG_PROBABILITY   log-probabilities (rows, classes), actions (rows) int32 -> y (rows)
 *                      The picked ones. An index out of range as in OP_EMBEDDING.
 *
 * OP_SUM               x, coefficient? as x -> scalar
 *                      attributes.scale * sum of coefficient * x (absent: 1). No gradient for the
 *                      coefficient. A mean has scale 1 / elements.
 *
 * ---- Draws ----
 * Masks are functions of (seed, three words, element), by kernels/base/rng.h, so that every
 * backend draws the same bits. With `rows` (R, 3), whose R divides the elements of x, row r's words are
 * rows[r] = (environment, step, episode) and j counts elements within the row; without, the words are
 * attributes.draw.word = (trainer, iteration, module) and j counts all of x's elements in canonical order.
 * Element j is kept when its 16 bits are >= round(65536 p). With g = j / 128 and v = (j % 128) / 16 they are
 * half v % 2 (0: low) of word v / 2 of block 16 g + j % 16 of stream RNG_DROPOUT (as in kernels/policy/mlp.h;
 * at most 2^27 elements). */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "kernels/adam.h"
#include "kernels/base/arena.h"
#include "kernels/base/status.h"
#include "kernels/policy/mlp_batch.h"
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
    OP_COUNT
};

enum { OP_INPUTS_MAX = 7, OP_OUTPUTS_MAX = 3, OP_SAVED_MAX = 6 };

/* The largest kernel, stride or padding of a convolution or pool, in either direction: a limit so that no
 * backend's arithmetic on them overflows. */
enum { OP_WINDOW_MAX = 32767 };

/* The words of a draw that is not made row by row: (trainer, iteration, module). */
struct draw {
    uint64_t seed;
    uint32_t word[3];
};

/* One operation's settings; each reads its own and ignores the rest. */
struct op_attributes {
    bool relu;           /* linear, conv2d, batch norm, add */
    bool training;       /* batch norm */
    double epsilon;      /* batch norm; > 0 */
    uint32_t kernel[2];  /* pools: height, width, 1..OP_WINDOW_MAX */
    uint32_t stride[2];  /* conv2d, pools: 1..OP_WINDOW_MAX */
    uint32_t padding[2]; /* conv2d, pools: on both sides, 0..OP_WINDOW_MAX */
    double dropout;      /* dropout: p */
    struct draw draw;    /* dropout */
    double scale;        /* sum */
    struct shape shape;  /* reshape */
};

/* One call, forward or backward. The caller owns the struct and every struct tensor in it.
 *
 * Whatever an output is (out, a saved tensor, din), one rule holds: with `data` NULL the backend takes a
 * block from `arena` and chooses the layout; otherwise it writes there, in the layout that stands in the
 * struct. It may also answer with memory that is there already, the same `data` as an input (forward) or
 * as a dout (backward), or one block for two din: reshape and add do. Outputs are overwritten, never added
 * to. On failure nothing that the call took from the arena stays taken: op_forward and op_backward see to it,
 * a backend's function just returns. What it takes for itself it releases where it succeeds. */
struct op_call {
    enum op op;
    struct op_attributes attributes;
    struct arena *arena;
    struct tensor *in[OP_INPUTS_MAX];
    struct tensor *out[OP_OUTPUTS_MAX];

    /* What the backward will need beside in and out: private to the backend, filled by the forward, given
     * back unchanged to the backward. `keep` false (inference): nothing is saved. */
    bool keep;
    struct tensor saved[OP_SAVED_MAX];

    /* Backward: dout NULL is a zero gradient (at least one is there); din NULL is not wanted. A din has the
     * shape and the dtype of its input; op_backward sets them. */
    struct tensor *dout[OP_OUTPUTS_MAX];
    struct tensor *din[OP_INPUTS_MAX];
};

/* What is true of an operation on every backend. */
struct op_rule {
    const char *name; /* "conv2d" */
    uint32_t inputs, outputs;
    const char *input[OP_INPUTS_MAX]; /* names for messages: "weight" */
    const char *output[OP_OUTPUTS_MAX];
    uint32_t optional;  /* bit i: input i may be absent */
    uint32_t integers;  /* bit i: input i is int32, all others have the backend's dtype */
    uint32_t gradient;  /* bit i: input i can have a gradient; at least one can */
    uint32_t reads_in;  /* bit i: the backward reads input i's data ... */
    uint32_t reads_out; /* ... and output i's; the tape may release the others before it */
};
const struct op_rule *op_rule(enum op op);

/* The outputs that the operation has under these attributes: a batch norm has 1 outside of training. */
uint32_t op_outputs(enum op op, const struct op_attributes *attributes);

struct backend;

/* Checks call->in and attributes, sets the outputs' shape and dtype, computes. STATUS_INVALID: shapes that
 * do not fit, a zero size, a product beyond SHAPE_ELEMENTS_MAX, a wrong dtype, an absent input: the text
 * names the operation, the tensor at fault, its shape, and the shape that was expected or the one that it
 * has to fit. STATUS_NO_MEMORY; STATUS_INTERNAL with the library call that failed and the shape. */
enum status op_forward(struct backend *backend, struct op_call *call, struct error *error);

/* The gradients of call->in, by those of call->out. in, out, attributes and saved must be as op_forward
 * left them; call->keep was true. Errors as op_forward, for the shapes of dout and of a din with data. */
enum status op_backward(struct backend *backend, struct op_call *call, struct error *error);

/* ---- optimizers, in place on flat memory: layouts do not matter as long as all arguments share them ---- */

/* v = momentum v + g (the first step: v = g); p -= lr v. Without momentum, p -= lr g and v is NULL. */
struct sgd_settings {
    double lr, momentum;
};

/* One update of a parameter server: a single pass over everything, out of place, so that a round which turns
 * out bad has changed nothing. For each element, in this order of operations:
 *     g = (g_0 + g_1 + … + g_{n-1}) / n;  v' = momentum v + g (first: v' = g);  p' = p - lr v'
 * n = 1 divides by nothing. Without momentum (0), velocity and velocity_out are NULL and p' = p - lr g. */
struct sgd_round {
    struct sgd_settings sgd;
    bool first;                   /* no velocity yet: `velocity` is not read */
    size_t count;                 /* elements */
    uint32_t contributions;       /* n >= 1 */
    const void *const *gradients; /* (n) in the order of summation; all in the backend's dtype, host memory */
    const void *parameters, *velocity;
    /* Overlap none of the others; aligned to 64 bytes like all of them. */
    void *parameters_out, *velocity_out;
    uint32_t threads; /* 0: one per processor of this process's affinity */
    /* Out. UINT32_MAX: every p' is finite. Else who is at fault: the first contribution with a NaN or an
     * infinity, or `contributions` where all of them are finite and a p' is not (steps that are too long). */
    uint32_t not_finite;
};

/* ---- a backend ---- */

struct backend_settings {
    uint32_t threads; /* math threads of a CPU backend; 0: one per processor of this process's affinity */
};

struct policy_rows; /* cuda: a captured policy; see backend_ops.policy_open */

/* A backend's table. What is marked "optional" may be NULL. Slots may rely on what the public functions of
 * this header check. */
struct backend_ops {
    const char *name; /* "onednn" */
    enum dtype dtype; /* of parameters and activations */
    bool host;        /* its memory may be read and written by the CPU */

    enum status (*open)(struct backend *backend, const struct backend_settings *settings,
                        struct error *error);
    void (*close)(struct backend *backend);

    enum status (*forward[OP_COUNT])(struct backend *backend, struct op_call *call, struct error *error);
    enum status (*backward[OP_COUNT])(struct backend *backend, struct op_call *call, struct error *error);

    enum status (*upload)(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                          struct error *error);
    enum status (*download)(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                            struct error *error);
    enum status (*fill)(struct backend *backend, struct tensor *tensor, double value, struct error *error);
    enum status (*accumulate)(struct backend *backend, struct arena *arena, struct tensor *to,
                              const struct tensor *from, struct error *error);
    enum status (*scale)(struct backend *backend, struct tensor *tensor, double factor, struct error *error);
    enum status (*square_sum)(struct backend *backend, const struct tensor *tensor, double *sum,
                              struct error *error);
    enum status (*first_not_finite)(struct backend *backend, const struct tensor *tensor, size_t *index,
                                    struct error *error);
    enum status (*sgd)(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                       struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                       struct error *error);
    enum status (*adam)(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                        struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                        struct tensor *second, struct error *error);

    /* Optional: one update of a parameter server. */
    enum status (*sgd_round)(struct backend *backend, struct sgd_round *round, struct error *error);

    /* Optional: NULL where a parameter has no other layout than the canonical one. A number that tells
     * layouts (not NULL) apart, the same in every process on equal machines. */
    uint64_t (*layout_hash)(const void *layout);

    /* Optional: the policy's whole act as one launch (kernels/policy/mlp.h says what it computes). A CPU
     * backend has none: there kernels/policy/mlp.c itself is it. `slab` is the policy's params_slab
     * (kernels/params/params.h): mlp's four tensors in mlp's order, each from a multiple of 64 bytes on, in
     * the backend's memory; it stays where it is and is read anew by every policy_act. A policy_rows has host
     * buffers (pinned) for `rows_max` rows and one captured graph for each padded batch size 1, 2, 4, …
     * rows_max. With `fixed` there is rows_max alone, and a batch's row i stands at place environment[i],
     * which must be below rows_max: a row's result then depends neither on which others came nor on how many.
     * policy_act is mlp_act: it fills batch->masks and batch->actions, and `probabilities` if not NULL, and
     * waits until they are there. */
    enum status (*policy_open)(struct backend *backend, const struct mlp_shape *shape, double dropout,
                               uint32_t rows_max, bool fixed, const struct tensor *slab,
                               struct policy_rows **out, struct error *error);
    void (*policy_close)(struct backend *backend, struct policy_rows *rows);
    enum status (*policy_act)(struct backend *backend, struct policy_rows *rows,
                              const struct mlp_batch *batch, uint64_t seed, uint32_t episode,
                              const uint32_t *environment, const uint32_t *step, float *probabilities,
                              struct error *error);
};

/* The fields may be read by everyone; a backend's open sets source, state and text. */
struct backend {
    const struct backend_ops *ops;
    struct arena_source source; /* for arenas whose blocks this backend computes on */
    char text[128];             /* "oneDNN 2.6.3, AVX-512, 2 threads"; "NVIDIA H200, cuDNN 9.19" */
    void *state;                /* the backend's own */
};

/* Opens a backend whose table the caller links. STATUS_UNAVAILABLE: no such device here, with the reason. */
enum status backend_open(struct backend **out, const struct backend_ops *ops,
                         const struct backend_settings *settings, struct error *error);

/* Loads the plug-in libcoalesced-NAME.so ("onednn", "cuda") and opens it. It is looked for in the folder
 * $COALESCED_PLUGINS if that is set; else beside the running program, in the folder above, and in
 * ../lib/coalesced. STATUS_UNAVAILABLE: it is not there, a library that it needs is not, it is of another
 * version, or it finds no device; the text says which. A plug-in, once loaded, stays loaded. */
enum status backend_load(struct backend **out, const char *name, const struct backend_settings *settings,
                         struct error *error);

/* For a job's "device". AUTO: the GPU if one works, else the CPU, and *why (if not NULL) says in one sentence
 * why not the GPU. GPU: STATUS_UNAVAILABLE if none works. */
enum device { DEVICE_AUTO, DEVICE_CPU, DEVICE_GPU };
enum status backend_load_device(struct backend **out, enum device device,
                                const struct backend_settings *settings, struct error *why,
                                struct error *error);

void backend_close(struct backend *backend); /* NULL is nothing */

/* A plug-in exports this one symbol; NULL when it was built against another BACKEND_ABI. */
enum { BACKEND_ABI = 3 };
typedef const struct backend_ops *backend_plugin(uint32_t abi);
#define BACKEND_PLUGIN_SYMBOL "coalesced_backend"

/* ---- memory and small things; `error` as everywhere ---- */

/* A new tensor in the arena, canonical, not initialized. `name` is kept, not copied. */
enum status tensor_new(struct tensor *out, struct arena *arena, struct shape shape, enum dtype dtype,
                       const char *name, struct error *error);

/* Copies canonical host values of `dtype` into the tensor (converting dtype and layout), or out of it.
 * Between floating dtypes, or int32 to int32. When it returns, `from` may be changed and `to` holds the
 * values. */
enum status backend_upload(struct backend *backend, struct tensor *to, enum dtype dtype, const void *from,
                           struct error *error);
enum status backend_download(struct backend *backend, const struct tensor *from, enum dtype dtype, void *to,
                             struct error *error);

enum status backend_fill(struct backend *backend, struct tensor *tensor, double value, struct error *error);

/* to += from; layouts may differ. */
enum status backend_accumulate(struct backend *backend, struct arena *arena, struct tensor *to,
                               const struct tensor *from, struct error *error);

enum status backend_scale(struct backend *backend, struct tensor *tensor, double factor, struct error *error);

/* Sum of squares in double, in an order that depends on the tensor's layout and size alone. */
enum status backend_square_sum(struct backend *backend, const struct tensor *tensor, double *sum,
                               struct error *error);

/* *index: the first element in memory order that is not finite, or SIZE_MAX. */
enum status backend_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                     struct error *error);

/* `step` counts from 1. Same number of elements everywhere; each moves by itself. Adam: kernels/adam.h. */
enum status backend_sgd(struct backend *backend, const struct sgd_settings *settings, uint64_t step,
                        struct tensor *parameters, const struct tensor *gradient, struct tensor *momentum,
                        struct error *error);
enum status backend_adam(struct backend *backend, const struct adam_settings *settings, uint64_t step,
                         struct tensor *parameters, const struct tensor *gradient, struct tensor *first,
                         struct tensor *second, struct error *error);

/* struct sgd_round says what it computes; the bits depend neither on `threads` nor on where a range begins,
 * and with one contribution they are those of backend_sgd. Allocates nothing. STATUS_INVALID: a backend
 * without it, no contribution, a momentum without a velocity or the reverse. A contribution with a NaN is no
 * failure: not_finite tells, and the results are to be thrown away. */
enum status backend_sgd_round(struct backend *backend, struct sgd_round *round, struct error *error);

#endif
