/* Runs operations as loops of our own: brings all inputs into one layout, and makes the results in that
 * layout. Also sums in one fixed order, and sets the number of threads. */
#include "kernels/onednn/onednn.h"

#include <string.h>

/* ---- threads ---- */

/* The library brings OpenMP with it. Weak, because a build without OpenMP of our own (under the thread
 * sanitizer) does not link it; then too the library's regions must be as wide as was asked. */
extern void omp_set_num_threads(int threads) __attribute__((weak));
extern int omp_get_max_threads(void) __attribute__((weak));
extern int omp_pause_resource_all(int kind) __attribute__((weak));
enum { OMP_PAUSE_HARD = 2 }; /* OpenMP 5.0's omp_pause_hard */

void onednn_use_threads(const struct onednn *onednn)
{
    if (omp_get_max_threads != NULL && omp_get_max_threads() != onednn->threads)
        omp_set_num_threads(onednn->threads);
}

void onednn_end_threads(void)
{
    if (omp_pause_resource_all != NULL)
        omp_pause_resource_all(OMP_PAUSE_HARD);
}

/* ---- loops ---- */

enum { LOOP_COPIES_MAX = OP_INPUTS_MAX + 2 * OP_OUTPUTS_MAX };

struct loop {
    struct backend *backend;
    struct op_call plain; /* the call that the loop sees */
    const void *layout;
    struct tensor copy[LOOP_COPIES_MAX];
    uint32_t copies;
};

/* ReLU, tanh and add work on whatever layout comes: padding holds zeros, and all make zeros of it again. */
static const void *loop_layout(const struct op_call *call, enum pass pass)
{
    if (call->op != OP_RELU && call->op != OP_TANH && call->op != OP_ADD)
        return NULL;
    if (pass == PASS_BACKWARD)
        return call->out[0]->layout;
    return call->op == OP_ADD && call->in[0]->layout == NULL ? call->in[1]->layout : call->in[0]->layout;
}

/* Puts a copy in the loop's layout in the tensor's stead, unless the tensor lies so. */
static enum status loop_read(struct loop *loop, struct tensor **tensor, struct error *error)
{
    if (*tensor == NULL || (*tensor)->dtype == DTYPE_I32 || (*tensor)->layout == loop->layout)
        return STATUS_OK;
    struct tensor *copy = &loop->copy[loop->copies++];
    *copy = **tensor;
    enum status status = onednn_take(&loop->plain, copy, loop->layout,
                                     layout_bytes(&copy->shape, copy->dtype, loop->layout), error);
    if (status == STATUS_OK)
        status = onednn_reorder(loop->backend, copy, *tensor, error);
    *tensor = copy;
    return status;
}

static enum status loop_read_all(struct loop *loop, enum pass pass, struct error *error)
{
    const struct op_rule *rule = op_rule(loop->plain.op);
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < OP_INPUTS_MAX && status == STATUS_OK; i++)
        if (pass == PASS_FORWARD || (rule->in[i].flags & OP_READ))
            status = loop_read(loop, &loop->plain.in[i], error);
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX && pass == PASS_BACKWARD && status == STATUS_OK; i++) {
        if (rule->out[i].flags & OP_READ)
            status = loop_read(loop, &loop->plain.out[i], error);
        if (status == STATUS_OK)
            status = loop_read(loop, &loop->plain.dout[i], error);
    }
    return status;
}

static enum status loop_run(struct backend *backend, struct op_call *call, enum pass pass,
                            struct error *error)
{
    struct loop loop = {.backend = backend, .plain = *call, .layout = loop_layout(call, pass)};
    struct tensor **made = pass == PASS_FORWARD ? call->out : call->din;
    const uint32_t count = pass == PASS_FORWARD ? OP_OUTPUTS_MAX : OP_INPUTS_MAX;
    onednn_use_threads(onednn_of(backend));
    enum status status = loop_read_all(&loop, pass, error);
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++)
        if (made[i] != NULL && (made[i]->data == NULL || made[i]->layout != loop.layout))
            status = onednn_take(call, made[i], loop.layout,
                                 layout_bytes(&made[i]->shape, made[i]->dtype, loop.layout), error);
    if (status == STATUS_OK)
        status = (pass == PASS_FORWARD ? onednn_operations[call->op].forward
                                       : onednn_operations[call->op].backward)(backend, &loop.plain, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < loop.copies; i++)
        arena_release(call->arena, loop.copy[i].data);
    memcpy(call->saved, loop.plain.saved, sizeof call->saved);
    return STATUS_OK;
}

enum status onednn_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    onednn_op *library = onednn_operations[call->op].library_forward;
    return library != NULL ? library(backend, call, error) : loop_run(backend, call, PASS_FORWARD, error);
}

enum status loop_run_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    return loop_run(backend, call, PASS_BACKWARD, error);
}

enum status onednn_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    onednn_op *library = onednn_operations[call->op].library_backward;
    return library != NULL ? library(backend, call, error) : loop_run_backward(backend, call, error);
}

/* ---- flat memory ---- */

size_t loop_elements(const struct tensor *tensor)
{
    return layout_bytes(&tensor->shape, tensor->dtype, tensor->layout) / sizeof(float);
}

void loop_pass(const struct backend *backend, element_pass *pass, const struct elements *arrays, size_t count)
{
    const size_t pieces = loop_pieces(count);
    onednn_use_threads(onednn_of(backend));
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++)
        pass(arrays, i * LOOP_PIECE, loop_piece(count, i));
}

double loop_sum(element_sum *term, const float *a, const float *b, size_t count)
{
    enum { PIECES_MAX = 1024 };
    double sums[PIECES_MAX], total = 0;
    size_t piece = (count / PIECES_MAX + LOOP_PIECE) / LOOP_PIECE * LOOP_PIECE;
    const size_t pieces = (count + piece - 1) / piece;
#pragma omp parallel for schedule(static) if (pieces > 1)
    for (size_t i = 0; i < pieces; i++) {
        const size_t first = i * piece, left = count - first;
        sums[i] = term(a + first, b == NULL ? NULL : b + first, left < piece ? left : piece);
    }
    for (size_t i = 0; i < pieces; i++)
        total += sums[i];
    return total;
}
