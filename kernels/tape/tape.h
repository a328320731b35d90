/* The room of the tape: it records the operations of a forward and walks back over them once for the
 * gradient.
 *
 *     variable   a tensor on the tape: an input, a parameter, or the result of an operation
 *     node       a recorded operation, or a call of a higher layer, with its inputs and outputs
 *     step       what happens between tape_begin and tape_finish: a forward, and perhaps one walk
 *     walk       the pass over the nodes in reverse order of recording, which computes gradients
 *     seed       the gradient of a variable with which a walk begins
 *     to drop    to release a variable's value before the step ends
 *     higher layer   a caller that records nodes of its own: distributed autograd
 *
 *     tape_begin(tape, TAPE_TRAIN, gradients);
 *     struct variable *x = tape_input(tape, SHAPE4(20, 3, 64, 64), DTYPE_F32, "images", images);
 *     struct variable *h = tape_linear(tape, x, tape_parameter(tape, w), tape_parameter(tape, b));
 *     …
 *     tape_backward(tape, loss);
 *     status = tape_finish(tape, &error);        the step is over; gradients hold the sums
 *
 * It includes kernels/ and kernels/params/; models and distributed autograd include it.
 *
 * Errors stick, so that a forward function reads like mathematics. The first call that fails leaves its
 * status and message in the tape and returns NULL. Every later call on that tape, or with a NULL variable,
 * does nothing and returns NULL. tape_finish and tape_status return the failure.
 *
 * Activations, saved tensors and gradients of activations are in the tape's own arena (kernels/base/arena.h).
 * The walk releases each when no later node needs it; tape_finish releases the rest. After the walk only
 * values that no operation took (a loss, batch statistics) and constants can be read. To keep a value beyond
 * the step, copy it: tape_read, or backend_download of variable_tensor. Parameters' gradients outlive the
 * step: they are in the `struct gradients` given to tape_begin. After the first of a series of equal steps a
 * step allocates nothing.
 *
 * Any number of tapes live at once, each with its own arena, on one backend or on several. A tape and its
 * variables belong to one thread at a time. No call waits for anything but arithmetic.
 *
 * ---- Order ----
 * The walk visits nodes in reverse order of recording, so consumers come before producers. The gradient of a
 * variable with several consumers is their sum in that order: the same bits each time.
 *
 * ---- Nodes of a higher layer, and pausing ----
 * tape_node records a node whose forward the caller computed (a remote call). Its backward may return
 * STATUS_AGAIN: the walk stops there and tape_backward returns STATUS_AGAIN. tape_resume calls the same
 * node's backward again with the same arguments, and the walk goes on after STATUS_OK. Meanwhile other tapes
 * may record, walk and resume. tape_finish may end a paused step and releases its memory. */
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

/* As tape_new, with the arena's memory from `source`, which is copied and gives the backend's memory. */
enum status tape_new_in(struct tape **out, struct backend *backend, const struct arena_source *source,
                        struct error *error);

/* Begins a step, and ends an unfinished one. `gradients` (kernels/params/gradients.h) receives the
 * parameters' gradients and belongs to the params whose parameters are used; NULL in TAPE_INFER, or when no
 * parameter's gradient is wanted. */
void tape_begin(struct tape *tape, enum tape_mode mode, struct gradients *gradients);

/* As tape_begin in TAPE_TRAIN, but the gradients are added to those that other steps have left in `gradients`
 * since gradients_begin, which the caller calls: the steps of several tapes have one sum. The walks may pause
 * between each other. */
void tape_begin_adding(struct tape *tape, struct gradients *gradients);

/* STATUS_OK, or the first failure since tape_begin with its message (error may be NULL). */
enum status tape_status(const struct tape *tape, struct error *error);

/* Ends the step and returns tape_status. Variables, saved tensors and activations' gradients are gone,
 * poisoned in a debug build. */
enum status tape_finish(struct tape *tape, struct error *error);

/* Records a failure of the caller's, which sticks like any other. Returns NULL. */
struct variable *tape_fail(struct tape *tape, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- leaves ---- */

/* Copies canonical host values (`dtype` is the host's; a floating one becomes the backend's). No gradient
 * unless tape_want_gradient. `name` must outlive the step. */
struct variable *tape_input(struct tape *tape, struct shape shape, enum dtype dtype, const char *name,
                            const void *values);

/* Uses the tensor without a copy, in the backend's memory and its layout. It must not change until
 * tape_finish. */
struct variable *tape_constant(struct tape *tape, const struct tensor *tensor);

/* A parameter of the params to which `gradients` belongs. The gradients of two uses add up. */
struct variable *tape_parameter(struct tape *tape, struct parameter *parameter);

/* Asks for the gradient of a variable that no operation has taken yet. It can be read between the walk and
 * tape_finish. */
void tape_want_gradient(struct variable *variable);

/* Keeps the variable's memory until tape_finish, even where the walk would release it. False: the memory is
 * not the tape's (a parameter, a constant, an output of a node of a higher layer). */
bool tape_keep(struct variable *variable);

/* ---- operations: kernels/op.h says what each computes; NULL for an absent optional tensor ---- */

struct variable *tape_linear(struct tape *tape, struct variable *x, struct variable *weight,
                             struct variable *bias);
struct variable *tape_conv2d(struct tape *tape, struct variable *x, struct variable *weight,
                             struct variable *bias, uint32_t stride, uint32_t padding);
struct batch_statistics {
    struct tensor mean, variance; /* (c) each, canonical; the variance is the unbiased one */
};
/* Training: `running_*` are not read and may be NULL; those of this batch are written to the memory of
 * *statistics (if not NULL), which lives until tape_finish. */
struct variable *tape_batch_norm(struct tape *tape, struct variable *x, struct variable *weight,
                                 struct variable *bias, struct variable *running_mean,
                                 struct variable *running_variance, bool training, double epsilon, bool relu,
                                 const struct batch_statistics *statistics);
struct variable *tape_max_pool(struct tape *tape, struct variable *x, uint32_t kernel, uint32_t stride,
                               uint32_t padding);
/* The mean over height and width: (n, c, h, w) -> (n, c), as AdaptiveAvgPool2d(1) and flatten. */
struct variable *tape_global_avg_pool(struct tape *tape, struct variable *x);
struct variable *tape_relu(struct tape *tape, struct variable *x);
struct variable *tape_tanh(struct tape *tape, struct variable *x);
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
    struct variable *h, *c; /* (batch, hidden) each */
};
/* `layers` layers of OP_LSTM_LAYER or OP_GRU_LAYER on each other; between two of them dropout p, keyed by
 * *draw with word[2] + layer. `state` has `layers` entries: it goes in as the first state, and comes out as
 * the last one. A GRU does not read `c`. */
struct variable *tape_recurrent(struct tape *tape, enum op op, struct variable *x, uint32_t layers,
                                const struct lstm_parameters *parameters, struct lstm_state *state, double p,
                                const struct draw *draw);
struct variable *tape_mse(struct tape *tape, struct variable *x, struct variable *target);
struct variable *tape_cross_entropy(struct tape *tape, struct variable *logits, struct variable *target);
struct variable *tape_log_probability(struct tape *tape, struct variable *log_probabilities,
                                      struct variable *actions);
struct variable *tape_sum(struct tape *tape, struct variable *x, struct variable *coefficient, double scale);

/* Applies any operation by its number; the functions above call it, and so do table-driven tests. `in` has
 * op_rule's inputs, `out` receives its outputs (op_outputs). */
enum status tape_apply(struct tape *tape, enum op op, const struct op_attributes *attributes,
                       struct variable *const in[], struct variable *out[]);

/* The same, with output i written to the memory of into[i] where that is not NULL. The memory is the caller's
 * until tape_finish. */
enum status tape_apply_into(struct tape *tape, enum op op, const struct op_attributes *attributes,
                            struct variable *const in[], const struct tensor *const into[],
                            struct variable *out[]);

/* ---- nodes of a higher layer ---- */

/* dout[i] is the gradient of output i, NULL for zero. din[i] is that of input i, NULL where it is not wanted;
 * its shape and dtype are set, its `data` is NULL. The node takes memory from tape_arena (tensor_new), which
 * the tape then owns; or passes on the memory of a dout; or leaves `data` NULL for a zero gradient. `first`
 * is false when the walk resumes; dout and din stay the same while the node returns STATUS_AGAIN. The node's
 * inputs and outputs stay readable until its backward has returned something else. */
typedef enum status tape_node_backward(void *context, struct tape *tape, bool first,
                                       const struct tensor *const dout[], struct tensor *const din[],
                                       struct error *error);

/* Called exactly once for each node, when the tape releases it, whether its backward ran or not. May be NULL.
 */
typedef void tape_node_release(void *context);

/* `out` are tensors in the backend's memory (most often from tape_arena) that live until tape_finish. In
 * TAPE_INFER the node is not recorded, and it is released by tape_finish. */
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

/* Whether the step is one of TAPE_TRAIN. */
bool tape_records(const struct tape *tape);

/* ---- the walk ---- */

/* Gives a variable an output gradient to start from, or ones (NULL). The tensor is not copied and must live
 * until the walk has ended. Seeds of one variable add up. */
enum status tape_seed(struct tape *tape, struct variable *variable, const struct tensor *gradient);

/* Walks back from all seeds. STATUS_OK: the gradients are complete. STATUS_AGAIN: a node waits; call
 * tape_resume later. Any other status is a failure, which sticks. A second walk of one step is
 * STATUS_INVALID. */
enum status tape_walk(struct tape *tape);
enum status tape_resume(struct tape *tape);

/* tape_seed(variable, NULL) and tape_walk. The variable is a scalar, or STATUS_INVALID. */
enum status tape_backward(struct tape *tape, struct variable *loss);

/* ---- looking ---- */

const struct tensor *variable_tensor(const struct variable *variable);

/* Whether a walk brings the variable a gradient: it was computed from a parameter or from a variable with
 * tape_want_gradient. */
bool variable_needs_gradient(const struct variable *variable);

/* The gradient of an input with tape_want_gradient after the walk; NULL: none arrived (it is zero). */
const struct tensor *variable_gradient(const struct variable *variable);

/* backend_download of all of it; `values` has room for shape_elements. Sticks on failure. */
enum status tape_read(struct tape *tape, const struct variable *variable, enum dtype dtype, void *values);

/* As tape_read, but tape_wait or tape_finish fills `values`, which must exist until then: several reads share
 * one wait for the device. tape_wait checks the loss, too. */
enum status tape_read_later(struct tape *tape, const struct variable *variable, enum dtype dtype,
                            void *values);
enum status tape_wait(struct tape *tape);

/* Reads the scalar `loss`, in TAPE_TRAIN, before the walk. *value is there after tape_finish, and exists
 * until then. STATUS_INTERNAL, sticking, if the loss is not finite: the message names the loss and the first
 * tensor, in order of recording, that holds a NaN or an infinity: a parameter or an input by its name, else
 * "output of conv2d of layer1.0.conv1.weight".
 *
 * On the CPU the loss is read and checked at once, on a GPU at the next tape_wait, tape_read or tape_finish:
 * the walk need not wait for it. After the walk the message names no tensor that the walk has released. */
enum status tape_loss(struct tape *tape, struct variable *loss, double *value);

/* In TAPE_INFER: releases the variable's memory for the next operations. In TAPE_TRAIN, and for NULL, it does
 * nothing, so that one forward function serves both. */
void tape_drop(struct tape *tape, struct variable *variable);

/* Called between operations, forward and backward, so that a worker can beat to its supervisor. It may end
 * the step with tape_fail: the rest of the step is not computed. */
typedef void tape_progress(void *context);
void tape_on_progress(struct tape *tape, tape_progress *progress, void *context);

#endif
