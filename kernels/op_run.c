/* Runs one operation on a backend: checks the call, then hands it to the backend's table. What a failed call
 * took from the arena goes back. */
#include "kernels/op.h"

#include "kernels/backend.h"
#include "kernels/op_check.h"

#include <string.h>

/* Bit i: tensors[i] is there and has no memory yet. */
static uint32_t without_memory(struct tensor *const tensors[], uint32_t count)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < count; i++)
        if (tensors[i] != NULL && tensors[i]->data == NULL)
            bits |= 1u << i;
    return bits;
}

static void forget_memory(struct tensor *const tensors[], uint32_t count, uint32_t bits)
{
    for (uint32_t i = 0; i < count; i++) {
        if (!(bits >> i & 1))
            continue;
        tensors[i]->data = NULL;
        tensors[i]->layout = NULL;
        tensors[i]->bytes = 0;
    }
}

static enum status not_there(const struct backend *backend, const char *what, struct error *error)
{
    return error_set(error, STATUS_UNAVAILABLE, "the %s backend has no %s", backend->ops->name, what);
}

enum status op_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    enum status status = op_check_forward(backend, call, error);
    if (status != STATUS_OK)
        return status;
    if (backend->ops->forward[call->op] == NULL)
        return not_there(backend, op_rule(call->op)->name, error);
    memset(call->saved, 0, sizeof call->saved);
    const uint64_t mark = arena_mark(call->arena);
    const uint32_t fresh = without_memory(call->out, OP_OUTPUTS_MAX);
    status = backend->ops->forward[call->op](backend, call, error);
    if (status == STATUS_OK)
        return STATUS_OK;
    arena_rollback(call->arena, mark);
    forget_memory(call->out, OP_OUTPUTS_MAX, fresh);
    memset(call->saved, 0, sizeof call->saved);
    return status;
}

enum status op_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    enum status status = op_check_backward(backend, call, error);
    if (status != STATUS_OK)
        return status;
    if (backend->ops->backward[call->op] == NULL)
        return not_there(backend, op_rule(call->op)->name, error);
    const uint64_t mark = arena_mark(call->arena);
    const uint32_t fresh = without_memory(call->din, OP_INPUTS_MAX);
    status = backend->ops->backward[call->op](backend, call, error);
    if (status == STATUS_OK)
        return STATUS_OK;
    arena_rollback(call->arena, mark);
    forget_memory(call->din, OP_INPUTS_MAX, fresh);
    return status;
}
