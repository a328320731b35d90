/* The tape: records what a forward computes, and walks it back once for the gradient.
 *
 *     tape_begin(tape, TAPE_TRAIN, gradients);
 *     struct variable *x = tape_input(tape, SHAPE4(20, 3, 64, 64), DTYPE_F32, "images", images);
 *     struct variable *h = tape_linear(tape, x, tape_parameter(tape, w), tape_parameter(tape, b), false);
 *     …
 *     tape_backward(tape, loss);
 *     status = tape_finish(tape, &error);        everything above is gone, gradients hold the sums
 *
 * A forward function reads like mathematics because errors stick: the first call that fails leaves its
 * status and sentence in the tape, returns NULL, and every later call that is given NULL, or a tape that has
 * failed, does nothing and returns NULL. tape_finish (or tape_status before) tells.
 *
 * Activations, saved tensors and gradients of activations lie in the tape's own arena (kernels/base/arena.h);
 * a backward gives back what is not needed any more as it goes, and tape_finish ends all of it at once. After
 * the walk only values that no operation took (a loss, batch statistics) and constants can still be read.
 * What is to outlive the step is copied out before: tape_read, or backend_download of variable_tensor.
 * Parameters' gradients outlive it: they lie in the `struct gradients` given to tape_begin. After the first
 * of a series of equal steps nothing of this allocates.
 *
 * Any number of tapes live at once, each with its own arena, on one backend or on several. A tape and what it
 * recorded belong to one thread at a time. Nothing here waits for anything but the arithmetic.
 *
 * ---- Order ----
 * The walk visits nodes strictly in reverse order of recording, so consumers come before producers, and where
 * several consumers share a variable its gradient is their sum in that order: one order, the same bits each
 * time.
 *
 * ---- Nodes of a higher layer, and pausing ----
 * tape_node records a node whose forward somebody else computed (a remote call, a fused kernel). Its backward
 * may answer STATUS_AGAIN: the walk stops there and tape_backward returns STATUS_AGAIN; tape_resume calls the
 * same node's backward again, with the same arguments, and goes on when it answers STATUS_OK. Between the
 * two, other tapes may record, walk and resume. A paused tape may be ended by tape_finish: what it held is
 * released. */
#ifndef KERNELS_TAPE_TAPE_H
#define KERNELS_TAPE_TAPE_H

#include "kernels/kernels.h"

struct gradients;
struct parameter;
struct tape;
struct variable; /* a tensor on the tape; valid until tape_finish or the next tape_begin */

enum tape_mode {
    TAPE_TRAIN, /* record */
    TAPE_INFER, /* compute, record nothing; a variable lives until tape_finish or tape_drop */
};

/* The backend outlives the tape. STATUS_NO_MEMORY. */
enum status tape_new(struct tape **out, struct backend *backend, struct error *error);
void tape_free(struct tape *tape);
struct backend *tape_backend(const struct tape *tape);

/* The same, with its arena's memory from `source` (copied; its memory the backend's). */
enum status tape_new_in(struct tape **out, struct backend *backend, const struct arena_source *source,
                        struct error *error);

/* Begins a step. Ends one that was not finished. `gradients` (kernels/params/params.h) takes the parameters'
 * gradients and must belong to the params whose parameters will be used; NULL in TAPE_INFER, or when no
 * parameter's gradient is wanted. */
void tape_begin(struct tape *tape, enum tape_mode mode, struct gradients *gradients);

/* As tape_begin in TAPE_TRAIN, but the gradients are added to what other steps have left in `gradients` since
 * gradients_begin (kernels/params/params.h), which the caller calls: several tapes' steps have one sum. Their
 * walks may pause in between each other; a node of a higher layer is then given no place for a parameter's
 * gradient (din->data is NULL), since others may add to it while the node waits. */
void tape_begin_adding(struct tape *tape, struct gradients *gradients);

/* STATUS_OK, or the first failure since tape_begin, with its sentence (error may be NULL). */
enum status tape_status(const struct tape *tape, struct error *error);

/* Ends the step: tape_status; then variables, saved tensors and activations' gradients are gone, poisoned in
 * a debug build. */
enum status tape_finish(struct tape *tape, struct error *error);

/* A failure of the caller's own, to stick like any other. Returns NULL. */
struct variable *tape_fail(struct tape *tape, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- leaves ---- */

/* A copy of canonical host values (`dtype` is the host's; a floating one becomes the backend's). No gradient
 * unless tape_want_gradient. `name` must outlive the step. */
struct variable *tape_input(struct tape *tape, struct shape shape, enum dtype dtype, const char *name,
                            const void *values);

/* The tensor as it lies, in the backend's memory, not copied; it must stay unchanged until tape_finish. */
struct variable *tape_constant(struct tape *tape, const struct tensor *tensor);

/* A parameter of the params that `gradients` belongs to; used twice, its gradients add up. */
struct variable *tape_parameter(struct tape *tape, struct parameter *parameter);

/* Asks for the gradient of a variable that no operation has taken yet: to be read after the walk, before
 * tape_finish. */
void tape_want_gradient(struct variable *variable);

/* The variable's memory stays as it is until tape_finish, whatever the walk passes. False: it is not the
 * tape's (a parameter, a constant, what a node of a higher layer has brought). */
bool tape_keep(struct variable *variable);

/* ---- operations: kernels/kernels.h says what each computes; NULL for an absent optional tensor ---- */

struct variable *tape_linear(struct tape *tape, struct variable *x, struct variable *weight,
                             struct variable *bias, bool relu);
struct variable *tape_conv2d(struct tape *tape, struct variable *x, struct variable *weight,
                             struct variable *bias, uint32_t stride, uint32_t padding, bool relu);
struct batch_statistics {
    struct variable *mean, *variance; /* (c) of this batch; the variance is the unbiased one */
};
/* Training: `running_*` are not read and may be NULL; *statistics (if not NULL) is filled. */
struct variable *tape_batch_norm(struct tape *tape, struct variable *x, struct variable *weight,
                                 struct variable *bias, struct variable *running_mean,
                                 struct variable *running_variance, bool training, double epsilon, bool relu,
                                 struct batch_statistics *statistics);
struct variable *tape_max_pool(struct tape *tape, struct variable *x, uint32_t kernel, uint32_t stride,
                               uint32_t padding);
/* The mean over height and width: (n, c, h, w) -> (n, c), as AdaptiveAvgPool2d(1) and flatten. */
struct variable *tape_global_avg_pool(struct tape *tape, struct variable *x);
struct variable *tape_relu(struct tape *tape, struct variable *x);
struct variable *tape_add(struct tape *tape, struct variable *a, struct variable *b, bool relu);
struct variable *tape_reshape(struct tape *tape, struct variable *x, struct shape shape);
/* p = 0, or TAPE_INFER: x itself. `rows` (NULL, or int32 (R, 3)): see "Draws" in kernels.h. */
struct variable *tape_dropout(struct tape *tape, struct variable *x, double p, const struct draw *draw,
                              struct variable *rows);
struct variable *tape_log_softmax(struct tape *tape, struct variable *x);
struct variable *tape_embedding(struct tape *tape, struct variable *indices, struct variable *weight);
struct lstm_parameters {
    struct variable *weight_ih, *weight_hh, *bias_ih, *bias_hh;
};
struct lstm_state {
    struct variable *h, *c; /* (batch, hidden) each; both NULL: zeros */
};
/* `layers` layers on each other; between two of them dropout p, keyed by *draw with word[2] + layer. `state`
 * has `layers` entries: it goes in as the first state, and comes out as the last one. */
struct variable *tape_lstm(struct tape *tape, struct variable *x, uint32_t layers,
                           const struct lstm_parameters *parameters, struct lstm_state *state, double p,
                           const struct draw *draw);
struct variable *tape_mse(struct tape *tape, struct variable *x, struct variable *target);
struct variable *tape_cross_entropy(struct tape *tape, struct variable *logits, struct variable *target);
struct variable *tape_log_probability(struct tape *tape, struct variable *log_probabilities,
                                      struct variable *actions);
struct variable *tape_sum(struct tape *tape, struct variable *x, struct variable *coefficient, double scale);

/* Any operation by its number: what the functions above are made of, and what a table-driven test calls. `in`
 * has op_rule's inputs, `out` takes its outputs (those that exist). */
enum status tape_apply(struct tape *tape, enum op op, const struct op_attributes *attributes,
                       struct variable *const in[], struct variable *out[]);

/* ---- nodes of a higher layer ---- */

/* dout[i]: the gradient of output i, NULL for zero. din[i]: that of input i, NULL where it is not wanted; its
 * shape and dtype are set. With `data` set (a parameter's part of the gradient slab, canonical) the node
 * writes there; with `data` NULL it takes memory from tape_arena (tensor_new), which then is the tape's, or
 * passes a dout's own memory on, or leaves `data` NULL for a zero gradient. `first` is false when the walk
 * resumes; the dout and din stay the same while STATUS_AGAIN is answered. The values of the node's inputs and
 * outputs stay readable until its backward has answered. */
typedef enum status tape_node_backward(void *context, struct tape *tape, bool first,
                                       const struct tensor *const dout[], struct tensor *const din[],
                                       struct error *error);

/* Called exactly once for each node, when the tape lets go of it, whether its backward ran or not. May be
 * NULL. */
typedef void tape_node_release(void *context);

/* `outputs` describe tensors in the backend's memory (most often from tape_arena) that live until
 * tape_finish. In TAPE_INFER the node is not recorded and released at tape_finish. */
struct tape_node {
    const char *name; /* for messages */
    void *context;
    tape_node_backward *backward;
    tape_node_release *release;
    bool reaches_beyond;      /* parameters elsewhere have part in it: walked even if no input needs it */
    uint32_t inputs, outputs; /* <= OP_INPUTS_MAX, OP_OUTPUTS_MAX */
    struct variable *in[OP_INPUTS_MAX];
    struct tensor out[OP_OUTPUTS_MAX];
};
enum status tape_node(struct tape *tape, const struct tape_node *node, struct variable *out[]);

struct arena *tape_arena(struct tape *tape);

/* Whether its step is one of TAPE_TRAIN. */
bool tape_records(const struct tape *tape);

/* ---- the walk ---- */

/* Gives a variable an output gradient to start from: a copy is not made, the tensor must live until the walk
 * has ended; NULL: ones. Seeds of one variable add up. */
enum status tape_seed(struct tape *tape, struct variable *variable, const struct tensor *gradient);

/* Walks back from all seeds. STATUS_OK: done, the gradients are complete. STATUS_AGAIN: a node waits; call
 * tape_resume later. Else the failure, which sticks. A second walk of one step is STATUS_INVALID. */
enum status tape_walk(struct tape *tape);
enum status tape_resume(struct tape *tape);

/* tape_seed(variable, NULL) and tape_walk. The variable is a scalar, or STATUS_INVALID. */
enum status tape_backward(struct tape *tape, struct variable *loss);

/* ---- looking ---- */

const struct tensor *variable_tensor(const struct variable *variable);

/* Whether a walk has something to bring it: a parameter or a wanted gradient has part in it. */
bool variable_needs_gradient(const struct variable *variable);

/* The gradient of an input with tape_want_gradient after the walk; NULL: none arrived (it is zero). */
const struct tensor *variable_gradient(const struct variable *variable);

/* backend_download of all of it; `values` has room for shape_elements. Sticks on failure. */
enum status tape_read(struct tape *tape, const struct variable *variable, enum dtype dtype, void *values);

/* If the scalar `loss` is finite: STATUS_OK and *value. Otherwise STATUS_INTERNAL, sticking, and the text
 * names the loss and the first tensor, in order of recording, that holds a NaN or an infinity: a parameter or
 * an input by its name, else "output of conv2d of layer1.0.conv1.weight". TAPE_TRAIN only, before the walk.
 */
enum status tape_loss(struct tape *tape, struct variable *loss, double *value);

/* TAPE_INFER: the variable is not needed any more, its memory may serve the next operation. In TAPE_TRAIN and
 * for NULL it does nothing, so that one forward function serves both. */
void tape_drop(struct tape *tape, struct variable *variable);

/* Called between operations, forward and backward, so that a worker can beat to its supervisor. It may give
 * the step up with tape_fail: what is left of it is not computed. */
typedef void tape_progress(void *context);
void tape_on_progress(struct tape *tape, tape_progress *progress, void *context);

#endif
