/* The checks that all operations share. op_shapes.c has those of single operations. */
#include "kernels/op_check.h"

#include "kernels/op_shapes.h"

#include <assert.h>
#include <stdio.h>

static enum status check_dtype(const char *what, const char *role, const struct tensor *tensor,
                               enum dtype expected, struct error *error)
{
    char text[TENSOR_TEXT_BYTES];
    if (tensor->dtype == expected)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: %s is %s, expected %s", what,
                     tensor_text(role, tensor, text), dtype_name(tensor->dtype), dtype_name(expected));
}

/* Required inputs are present and have the right dtype. `data`, bit i: input i must have memory, for it is
 * read. */
static enum status check_inputs(const struct backend *backend, const struct op_call *call, uint32_t data,
                                struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    for (uint32_t i = 0; i < rule->inputs; i++) {
        const struct tensor *in = call->in[i];
        if (in == NULL && !(rule->optional >> i & 1))
            return error_set(error, STATUS_INVALID, "%s: there is no %s", rule->name, rule->input[i]);
        if (in == NULL)
            continue;
        enum dtype dtype = rule->integers >> i & 1 ? DTYPE_I32 : backend->ops->dtype;
        enum status status = tensor_check(rule->name, rule->input[i], in, data >> i & 1, error);
        if (status == STATUS_OK)
            status = check_dtype(rule->name, rule->input[i], in, dtype, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* A target with memory must have the shape and the dtype of the result. */
static enum status check_target(const char *what, const char *role, const struct tensor *to,
                                const struct shape *shape, enum dtype dtype, struct error *error)
{
    char text[TENSOR_TEXT_BYTES], expected[SHAPE_TEXT_BYTES];
    if (!shape_equal(&to->shape, shape))
        return error_set(error, STATUS_INVALID, "%s: %s, expected %s", what, tensor_text(role, to, text),
                         shape_text(shape, expected));
    enum status status = check_dtype(what, role, to, dtype, error);
    return status == STATUS_OK ? tensor_check(what, role, to, true, error) : status;
}

/* A target with memory is checked, one without gets its description. */
static enum status prepare_target(const char *what, const char *role, struct tensor *to,
                                  const struct shape *shape, enum dtype dtype, struct error *error)
{
    if (to->data != NULL)
        return check_target(what, role, to, shape, dtype, error);
    to->shape = *shape;
    to->dtype = dtype;
    to->layout = NULL;
    to->bytes = 0;
    return STATUS_OK;
}

static enum status check_op(const struct op_call *call, struct error *error)
{
    assert(call->arena != NULL);
    if ((unsigned)call->op < OP_COUNT)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "there is no operation %d", (int)call->op);
}

enum status op_check_forward(const struct backend *backend, struct op_call *call, struct error *error)
{
    struct shape shape[OP_OUTPUTS_MAX];
    enum status status = check_op(call, error);
    if (status == STATUS_OK)
        status = check_inputs(backend, call, UINT32_MAX, error);
    if (status == STATUS_OK)
        status = op_shapes(call, shape, error);
    if (status != STATUS_OK)
        return status;
    const struct op_rule *rule = op_rule(call->op);
    const uint32_t outputs = op_outputs(call->op, &call->attributes);
    for (uint32_t i = 0; i < outputs && status == STATUS_OK; i++) {
        if (call->out[i] == NULL)
            return error_set(error, STATUS_INVALID, "%s: there is no %s", rule->name, rule->output[i]);
        status =
            prepare_target(rule->name, rule->output[i], call->out[i], &shape[i], backend->ops->dtype, error);
    }
    return status;
}

/* A batch norm's statistics take no gradient; every other output does. */
static enum status check_output_gradients(const struct backend *backend, const struct op_call *call,
                                          struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    const uint32_t differentiable = call->op == OP_BATCH_NORM ? 1 : rule->outputs;
    bool any = false;
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX; i++) {
        char role[64];
        if (call->dout[i] == NULL)
            continue;
        if (i >= differentiable)
            return error_set(error, STATUS_INVALID, "%s: %s takes no gradient", rule->name,
                             i < rule->outputs ? rule->output[i] : "an output that is not there");
        if (call->out[i] == NULL)
            return error_set(error, STATUS_INVALID, "%s: there is no %s", rule->name, rule->output[i]);
        any = true;
        snprintf(role, sizeof role, "gradient of %s", rule->output[i]);
        enum status status =
            check_target(rule->name, role, call->dout[i], &call->out[i]->shape, backend->ops->dtype, error);
        if (status != STATUS_OK)
            return status;
    }
    return any ? STATUS_OK
               : error_set(error, STATUS_INVALID, "%s: there is no gradient of any output", rule->name);
}

static enum status prepare_input_gradients(struct op_call *call, struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++) {
        char role[64];
        if (call->din[i] == NULL)
            continue;
        if (!(rule->gradient >> i & 1) || call->in[i] == NULL)
            return error_set(error, STATUS_INVALID, "%s: there is no gradient for %s", rule->name,
                             i < rule->inputs ? rule->input[i] : "an input that is not there");
        snprintf(role, sizeof role, "gradient for %s", rule->input[i]);
        enum status status =
            prepare_target(rule->name, role, call->din[i], &call->in[i]->shape, call->in[i]->dtype, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

enum status op_check_backward(const struct backend *backend, struct op_call *call, struct error *error)
{
    enum status status = check_op(call, error);
    if (status != STATUS_OK)
        return status;
    const struct op_rule *rule = op_rule(call->op);
    if (call->op == OP_BATCH_NORM && !call->attributes.training)
        return error_set(error, STATUS_INVALID, "%s has no backward outside of training", rule->name);
    if (!call->keep)
        return error_set(error, STATUS_INVALID, "%s: its forward kept nothing for a backward", rule->name);
    status = check_inputs(backend, call, rule->reads_in, error);
    if (status == STATUS_OK)
        status = check_output_gradients(backend, call, error);
    if (status == STATUS_OK)
        status = prepare_input_gradients(call, error);
    return status;
}

enum status op_check_indices(const struct op_call *call, uint32_t input, uint32_t limit, struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    const struct tensor *in = call->in[input];
    const int32_t *index = in->data;
    const size_t count = shape_elements(&in->shape);
    for (size_t i = 0; i < count; i++) {
        char text[TENSOR_TEXT_BYTES];
        if ((uint32_t)index[i] >= limit) // a negative one is larger than every limit
            return error_set(error, STATUS_INVALID, "%s: element %zu of %s is %d, expected 0..%u", rule->name,
                             i, tensor_text(rule->input[input], in, text), index[i], limit - 1);
    }
    return STATUS_OK;
}
