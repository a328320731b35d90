/* What operations in loops of our own share: their tensors brought into one layout, and sums in one order. */
#include "kernels/onednn/onednn.h"

#include <assert.h>
#include <string.h>

/* The call's tensors that a pass writes, or (outputs false) those that it reads. */
struct loop_tensors {
    struct tensor **tensor[OP_INPUTS_MAX + 2 * OP_OUTPUTS_MAX];
    uint32_t count;
};

static void loop_add(struct loop_tensors *list, struct tensor **tensors, uint32_t count, uint32_t bits)
{
    for (uint32_t i = 0; i < count; i++)
        if (tensors[i] != NULL && (bits >> i & 1) != 0)
            list->tensor[list->count++] = &tensors[i];
}

static void loop_list(struct op_call *call, enum pass pass, bool outputs, struct loop_tensors *list)
{
    const struct op_rule *rule = op_rule(call->op);
    list->count = 0;
    if (pass == PASS_FORWARD) {
        if (outputs)
            loop_add(list, call->out, OP_OUTPUTS_MAX, UINT32_MAX);
        else
            loop_add(list, call->in, OP_INPUTS_MAX, UINT32_MAX);
        return;
    }
    if (outputs) {
        loop_add(list, call->din, OP_INPUTS_MAX, UINT32_MAX);
        return;
    }
    loop_add(list, call->in, OP_INPUTS_MAX, rule->reads_in);
    loop_add(list, call->out, OP_OUTPUTS_MAX, rule->reads_out);
    loop_add(list, call->dout, OP_OUTPUTS_MAX, UINT32_MAX);
}

enum { LOOP_COPIES_MAX = OP_INPUTS_MAX + 2 * OP_OUTPUTS_MAX + OP_INPUTS_MAX };

struct loop {
    struct backend *backend;
    struct op_call plain; /* the call that the body sees */
    const void *layout;
    struct tensor copy[LOOP_COPIES_MAX];
    struct tensor *original[LOOP_COPIES_MAX];
    bool is_output[LOOP_COPIES_MAX];
    uint32_t copies;
    size_t offset; /* of scratch in use */
};

static bool loop_lies(const struct loop *loop, const struct tensor *tensor)
{
    return tensor->dtype == DTYPE_I32 || tensor->layout == loop->layout;
}

/* Puts a copy with a place in scratch in the tensor's stead; addresses are set once scratch is large enough.
 */
static void loop_substitute(struct loop *loop, struct tensor **tensor, bool output)
{
    const uint32_t at = loop->copies++;
    loop->original[at] = *tensor;
    loop->is_output[at] = output;
    loop->copy[at] = **tensor;
    loop->copy[at].layout = loop->layout;
    loop->copy[at].bytes = layout_bytes(&(*tensor)->shape, (*tensor)->dtype, loop->layout);
    loop->offset += (loop->copy[at].bytes + 63) & ~(size_t)63;
    *tensor = &loop->copy[at];
}

static enum status loop_take(struct loop *loop, struct tensor *tensor, size_t bytes, struct error *error)
{
    tensor->data = arena_take(loop->plain.arena, bytes);
    if (tensor->data == NULL)
        return error_set(error, STATUS_NO_MEMORY, "%s: no memory for %zu bytes",
                         op_rule(loop->plain.op)->name, bytes);
    tensor->bytes = bytes;
    return STATUS_OK;
}

static enum status loop_prepare(struct loop *loop, enum pass pass, const size_t *saved_bytes,
                                struct error *error)
{
    struct loop_tensors list;
    enum status status = STATUS_OK;
    loop_list(&loop->plain, pass, false, &list);
    for (uint32_t i = 0; i < list.count; i++)
        if (!loop_lies(loop, *list.tensor[i]))
            loop_substitute(loop, list.tensor[i], false);
    loop_list(&loop->plain, pass, true, &list);
    for (uint32_t i = 0; i < list.count && status == STATUS_OK; i++) {
        struct tensor *tensor = *list.tensor[i];
        if (tensor->data == NULL) {
            tensor->layout = tensor->dtype == DTYPE_I32 ? NULL : loop->layout;
            status =
                loop_take(loop, tensor, layout_bytes(&tensor->shape, tensor->dtype, tensor->layout), error);
        } else if (!loop_lies(loop, tensor))
            loop_substitute(loop, list.tensor[i], true);
    }
    for (uint32_t i = 0; saved_bytes != NULL && saved_bytes[i] > 0 && status == STATUS_OK; i++)
        status = loop_take(loop, &loop->plain.saved[i], saved_bytes[i], error);
    if (status == STATUS_OK)
        status = scratch_reserve(&onednn_of(loop->backend)->copies, loop->offset, error);
    char *scratch = onednn_of(loop->backend)->copies.data;
    for (uint32_t i = 0; i < loop->copies && status == STATUS_OK; i++) {
        loop->copy[i].data = scratch;
        scratch += (loop->copy[i].bytes + 63) & ~(size_t)63;
        if (!loop->is_output[i])
            status = onednn_reorder(loop->backend, &loop->copy[i], loop->original[i], error);
    }
    return status;
}

enum status loop_run(struct backend *backend, struct op_call *call, enum pass pass, const void *layout,
                     const size_t *saved_bytes, loop_body *body, struct error *error)
{
    struct loop loop = {.backend = backend, .plain = *call, .layout = layout};
    onednn_use_threads(onednn_of(backend));
    enum status status = loop_prepare(&loop, pass, call->keep ? saved_bytes : NULL, error);
    if (status == STATUS_OK)
        status = body(backend, &loop.plain, error);
    for (uint32_t i = 0; i < loop.copies && status == STATUS_OK; i++)
        if (loop.is_output[i])
            status = onednn_reorder(backend, loop.original[i], &loop.copy[i], error);
    memcpy(call->saved, loop.plain.saved, sizeof call->saved);
    return status;
}

size_t loop_elements(const struct tensor *tensor)
{
    return layout_bytes(&tensor->shape, tensor->dtype, tensor->layout) / sizeof(float);
}

double loop_sum(loop_term *term, const float *a, const float *b, size_t count)
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
