/* The room of the CPU backend: a plug-in over oneDNN. No other room includes oneDNN's headers. This header is
 * private to the room, which includes kernels/, kernels/lanes/ and kernels/base/. All of it runs on the
 * thread that calls the backend, and on as many OpenMP threads as the backend was opened with.
 *
 *     library     oneDNN
 *     primitive   one computation of the library, made for given shapes and layouts
 *     plan        the prepared work of one call: primitives in order, and their arguments
 *     layout      a token for a memory descriptor of the library; NULL is canonical
 *     reorder     a copy of a tensor into another layout
 *     scratch     memory that a primitive needs while it runs
 *     loop        an operation that our own code computes, row by row or element by element
 *
 * Layouts. A tensor's layout token is a pointer to an interned memory descriptor of the library: equal
 * descriptors have one address, and canonical order has the token NULL.
 *
 * Plans. The work of one call is prepared once and kept: its primitives in order, the tensor or piece of
 * scratch behind each argument, the layouts of allocated tensors. A plan is found again by operation,
 * attributes, shapes and layouts; running it allocates nothing but the outputs. */
#ifndef KERNELS_ONEDNN_ONEDNN_H
#define KERNELS_ONEDNN_ONEDNN_H

#include "kernels/kernels.h"
#include "kernels/lanes/element_lanes.h"
#include "kernels/lanes/row_lanes.h"
#include "kernels/lanes/sgd_round_lanes.h"

#include <oneapi/dnnl/dnnl.h>

struct layout {
    dnnl_memory_desc_t desc; /* first, so that a token is a pointer to one of these */
    size_t bytes;
    struct layout *next;
};

/* Memory that grows to the largest need and is never given back before the end. */
struct scratch {
    void *data;
    size_t bytes;
};

enum { PLAN_BUCKETS = 512 };

struct onednn {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attributes; /* scratchpad by the user, nothing else */
    const struct element_lanes *element;
    const struct row_lanes *row;
    sgd_round_lanes_update *update;
    int threads;
    struct layout *layouts;
    struct plan *plans[PLAN_BUCKETS];
    uint32_t plan_count;
    struct scratch copies; /* tensors in the layout that a step wants */
    struct scratch terms;  /* what a loop sums up at its end */
    struct scratch pad;    /* the primitives' own scratchpad: one at a time */
};

static inline struct onednn *onednn_of(const struct backend *backend)
{
    return backend->state;
}

/* ---- layout.c ---- */

/* Turns a failure of the library into one of ours; `shape` may be NULL. */
enum status onednn_check(dnnl_status_t result, const char *call, const char *op, const struct shape *shape,
                         struct error *error);

/* c (rows, columns) = a b + keep c, for a call of a recurrent layer; a is (rows, inner) or, transposed ('T'),
 * (inner, rows); b alike. */
enum status onednn_product(const struct op_call *call, char a_form, char b_form, size_t rows, size_t columns,
                           size_t inner, const float *a, const float *b, float keep, float *c,
                           struct error *error);

/* Canonical order of the shape (a scalar counts as one element of rank 1), or the tensor's layout. */
dnnl_memory_desc_t layout_canonical(const struct shape *shape, enum dtype dtype);
dnnl_memory_desc_t layout_of(const struct tensor *tensor);

/* The token of a descriptor: NULL for canonical order. STATUS_NO_MEMORY. */
enum status layout_intern(struct onednn *onednn, const dnnl_memory_desc_t *desc, const void **token,
                          struct error *error);

/* Whether memory that one describes can be read as the other. */
bool layout_same(const dnnl_memory_desc_t *a, const dnnl_memory_desc_t *b);

/* Bytes of a tensor of this shape in that layout, its padding counted. */
size_t layout_bytes(const struct shape *shape, enum dtype dtype, const void *token);

/* The table's layout_hash: of a token that is not NULL. */
uint64_t onednn_layout_hash(const void *token);

void layouts_free(struct onednn *onednn);

/* At least `bytes`, aligned to 64. What was there before is gone when it grows. */
enum status scratch_reserve(struct scratch *scratch, size_t bytes, struct error *error);
void scratch_free(struct scratch *scratch);

/* ---- plan.c ---- */

enum pass { PASS_FORWARD, PASS_BACKWARD, PASS_REORDER };

struct builder;

/* Describes what the call comes to, with the functions below; failures stick to the builder. */
typedef void plan_build(struct builder *builder, const struct op_call *call);

/* Finds or builds the call's plan and runs it: allocates the outputs that have no data, in the plan's
 * layouts, brings inputs into the layouts that the steps want, and results into those of the caller's. */
enum status plan_run(struct backend *backend, struct op_call *call, enum pass pass, plan_build *build,
                     struct error *error);

void plans_free(struct onednn *onednn);

/* `to` = `from`, float32, of equal shapes, whatever their layouts. Uses no scratch but the pad. */
enum status onednn_reorder(struct backend *backend, struct tensor *to, const struct tensor *from,
                           struct error *error);

/* Which array of the call a tensor stands in. */
enum place { PLACE_IN, PLACE_OUT, PLACE_SAVED, PLACE_DOUT, PLACE_DIN, PLACE_SCRATCH, PLACE_PAD };

/* A primitive descriptor from an operation's; NULL after a failure. Lives until the plan is built. `made`
 * is the status of the function that filled `operation`. */
dnnl_primitive_desc_t builder_describe(struct builder *builder, dnnl_status_t made, const void *operation,
                                       dnnl_primitive_desc_t hint);

/* The memory descriptor of a primitive's argument, such as DNNL_ARG_SRC. Of size 0: it has no such argument.
 */
const dnnl_memory_desc_t *builder_query(struct builder *builder, dnnl_primitive_desc_t descriptor,
                                        int argument);

/* What an argument of a step is: a tensor of the call, or scratch. A tensor that the call reads and that lies
 * otherwise than the primitive wants is reordered into scratch first. A tensor that it writes gets the layout
 * that the primitive wants; where the caller's memory lies otherwise it goes through scratch. */
struct binding {
    int argument; /* DNNL_ARG_SRC */
    enum place place;
    uint32_t index;                 /* in the call's array */
    const dnnl_memory_desc_t *want; /* NULL: as the primitive has it */
};

/* Adds a step with these arguments, up to an argument 0, and with its scratchpad. A binding that the
 * primitive does not have is left out. So is an absent tensor that the primitive would read. An absent tensor
 * that it would write is replaced by scratch. */
void builder_step(struct builder *builder, dnnl_primitive_desc_t descriptor, const struct binding *bindings);

/* After a run, in[index]->wanted says this layout if the input is canonical and as many bytes hold it. */
void builder_want(struct builder *builder, uint32_t index, const dnnl_memory_desc_t *desc);

/* Takes a block of the call's arena for a tensor in that layout. STATUS_NO_MEMORY. */
enum status onednn_take(struct op_call *call, struct tensor *tensor, const void *layout, size_t bytes,
                        struct error *error);

/* ---- the operations, by file ---- */

typedef enum status onednn_op(struct backend *backend, struct op_call *call, struct error *error);
onednn_op onednn_forward, onednn_backward;           /* loops.c: the operation that the call names */
onednn_op onednn_conv_forward, onednn_conv_backward; /* conv.c: linear, convolution */
onednn_op onednn_batch_norm_forward, onednn_batch_norm_backward; /* norm.c */
onednn_op onednn_pool_forward, onednn_pool_backward;             /* pool.c */
onednn_op onednn_reshape_forward, onednn_reshape_backward;       /* elements.c */
onednn_op onednn_add_backward;                                   /* elements.c */

/* All others are loops of our own: what a loop reads lies in one layout, the canonical one but for relu, tanh
 * and add, and what it writes has memory in that layout. */
onednn_op loop_run_backward;                                 /* loops.c */
onednn_op pass_forward, pass_backward;                       /* elements.c: relu, tanh, add */
onednn_op dropout_forward, dropout_backward;                 /* elements.c */
onednn_op log_softmax_forward, log_softmax_backward;         /* rows.c */
onednn_op embedding_forward, embedding_backward;             /* rows.c */
onednn_op log_probability_forward, log_probability_backward; /* rows.c */
onednn_op mse_forward, mse_backward;                         /* loss.c */
onednn_op cross_entropy_forward, cross_entropy_backward;     /* loss.c */
onednn_op sum_forward, sum_backward;                         /* loss.c */
onednn_op recurrent_forward, recurrent_backward;             /* recurrent.c: LSTM, GRU */

/* backend.c: what computes each operation. The library's operations choose layouts themselves; the others are
 * loops. */
struct onednn_operation {
    onednn_op *forward, *backward, *library_forward, *library_backward;
};
extern const struct onednn_operation onednn_operations[OP_COUNT];

/* ---- loops.c: threads, and flat memory ---- */

/* Makes the calling thread's parallel regions, the library's too, as wide as the backend was opened. */
void onednn_use_threads(const struct onednn *onednn);

/* Ends OpenMP's threads. They come back when another backend needs them. */
void onednn_end_threads(void);

/* Elements with the padding between them, of a tensor with that layout. */
size_t loop_elements(const struct tensor *tensor);

/* Cuts [0, count) into pieces of equal size, a multiple of 16, for the threads: for element-wise passes. */
enum { LOOP_PIECE = 16384 };
static inline size_t loop_pieces(size_t count)
{
    return (count + LOOP_PIECE - 1) / LOOP_PIECE;
}
static inline size_t loop_piece(size_t count, size_t piece)
{
    size_t left = count - piece * LOOP_PIECE;
    return left < LOOP_PIECE ? left : LOOP_PIECE;
}

/* Runs a pass over `count` elements, on all threads. */
void loop_pass(const struct backend *backend, element_pass *pass, const struct elements *arrays,
               size_t count);

/* The sum over pieces of two arrays (b may be NULL), in their order whatever thread computed them. */
double loop_sum(element_sum *term, const float *a, const float *b, size_t count);

/* ---- backend.c: two slots of the table ---- */

enum status onednn_fill(struct backend *backend, struct tensor *tensor, double value, struct error *error);
enum status onednn_first_not_finite(struct backend *backend, const struct tensor *tensor, size_t *index,
                                    struct error *error);

#endif
