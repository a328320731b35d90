/* One function per family of operations: it checks the inputs' shapes and the attributes, and computes the
 * outputs' shapes. The table is at the end. */
#include "kernels/op_shapes.h"

#include <math.h>
#include <stdio.h>

/* A pattern is a shape in which a size of zero stands for any size. */
static bool matches(const struct shape *shape, const struct shape *pattern)
{
    if (shape->rank != pattern->rank)
        return false;
    for (uint32_t i = 0; i < shape->rank; i++)
        if (pattern->size[i] != 0 && shape->size[i] != pattern->size[i])
            return false;
    return true;
}

static const char *pattern_text(const struct shape *pattern, char text[SHAPE_TEXT_BYTES])
{
    if (pattern->rank == 0)
        return shape_text(pattern, text);
    int length = 0;
    for (uint32_t i = 0; i < pattern->rank; i++) {
        const char *between = i == 0 ? "" : "x";
        const size_t room = SHAPE_TEXT_BYTES - (size_t)length;
        if (pattern->size[i] == 0)
            length += snprintf(text + length, room, "%s*", between);
        else
            length += snprintf(text + length, room, "%s%u", between, pattern->size[i]);
    }
    return text;
}

/* Input i must match the pattern. Input `because` is the reason for it (i itself: the operation is). */
static enum status expect_input(const struct op_call *call, uint32_t i, struct shape pattern,
                                uint32_t because, struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    char text[TENSOR_TEXT_BYTES], other[TENSOR_TEXT_BYTES], expected[SHAPE_TEXT_BYTES];
    if (matches(&call->in[i]->shape, &pattern))
        return STATUS_OK;
    tensor_text(rule->input[i], call->in[i], text);
    pattern_text(&pattern, expected);
    if (i == because)
        return error_set(error, STATUS_INVALID, "%s: %s, expected %s", rule->name, text, expected);
    return error_set(error, STATUS_INVALID, "%s: %s, expected %s to fit %s", rule->name, text, expected,
                     tensor_text(rule->input[because], call->in[because], other));
}

/* The same for an input that may be absent. */
static enum status expect_optional(const struct op_call *call, uint32_t i, struct shape pattern,
                                   uint32_t because, struct error *error)
{
    return call->in[i] != NULL ? expect_input(call, i, pattern, because, error) : STATUS_OK;
}

/* An output whose shape is computed may not overflow. */
static enum status check_output(const struct op_call *call, const struct shape *out, struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    char text[TENSOR_TEXT_BYTES], shape[SHAPE_TEXT_BYTES];
    if (shape_elements(out) != 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: %s of shape %s from %s: expected 1..2147483647 elements",
                     rule->name, rule->output[0], shape_text(out, shape),
                     tensor_text(rule->input[0], call->in[0], text));
}

static enum status shapes_of_linear(const struct op_call *call, struct shape out[], struct error *error)
{
    enum status status = expect_input(call, 0, SHAPE2(0, 0), 0, error);
    if (status != STATUS_OK)
        return status;
    status = expect_input(call, 1, SHAPE2(0, call->in[0]->shape.size[1]), 0, error);
    if (status != STATUS_OK)
        return status;
    const uint32_t outputs = call->in[1]->shape.size[0];
    out[0] = SHAPE2(call->in[0]->shape.size[0], outputs);
    status = expect_optional(call, 2, SHAPE1(outputs), 1, error);
    return status == STATUS_OK ? check_output(call, &out[0], error) : status;
}

static enum status check_window(const struct op_call *call, const char *what, const uint32_t value[2],
                                uint32_t least, struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    char text[TENSOR_TEXT_BYTES];
    for (int i = 0; i < 2; i++)
        if (value[i] < least || value[i] > OP_WINDOW_MAX)
            return error_set(error, STATUS_INVALID, "%s: expected a %s of %u..%d, got %ux%u, over %s",
                             rule->name, what, least, OP_WINDOW_MAX, value[0], value[1],
                             tensor_text(rule->input[0], call->in[0], text));
    return STATUS_OK;
}

/* The output of a window that moves over x, the first input. */
static enum status slide_window(const struct op_call *call, const uint32_t kernel[2], uint32_t channels,
                                struct shape *out, struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    const struct op_attributes *set = &call->attributes;
    const uint32_t *x = call->in[0]->shape.size;
    char text[TENSOR_TEXT_BYTES];
    enum status status = check_window(call, "kernel", kernel, 1, error);
    if (status == STATUS_OK)
        status = check_window(call, "stride", set->stride, 1, error);
    if (status == STATUS_OK)
        status = check_window(call, "padding", set->padding, 0, error);
    if (status != STATUS_OK)
        return status;
    *out = SHAPE4(x[0], channels, 0, 0);
    for (int i = 0; i < 2; i++) {
        const uint64_t padded = (uint64_t)x[2 + i] + 2 * set->padding[i];
        if (padded < kernel[i])
            return error_set(error, STATUS_INVALID,
                             "%s: a kernel of %ux%u is larger than %s with its padding of %ux%u", rule->name,
                             kernel[0], kernel[1], tensor_text(rule->input[0], call->in[0], text),
                             set->padding[0], set->padding[1]);
        out->size[2 + i] = (uint32_t)((padded - kernel[i]) / set->stride[i] + 1);
    }
    return check_output(call, out, error);
}

static enum status shapes_of_conv2d(const struct op_call *call, struct shape out[], struct error *error)
{
    enum status status = expect_input(call, 0, SHAPE4(0, 0, 0, 0), 0, error);
    if (status != STATUS_OK)
        return status;
    status = expect_input(call, 1, SHAPE4(0, call->in[0]->shape.size[1], 0, 0), 0, error);
    if (status != STATUS_OK)
        return status;
    const uint32_t *weight = call->in[1]->shape.size;
    status = expect_optional(call, 2, SHAPE1(weight[0]), 1, error);
    return status == STATUS_OK ? slide_window(call, weight + 2, weight[0], &out[0], error) : status;
}

static enum status shapes_of_pool(const struct op_call *call, struct shape out[], struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    const struct op_attributes *set = &call->attributes;
    char text[TENSOR_TEXT_BYTES];
    enum status status = expect_input(call, 0, SHAPE4(0, 0, 0, 0), 0, error);
    if (status != STATUS_OK)
        return status;
    for (int i = 0; i < 2; i++)
        if (set->padding[i] > set->kernel[i] / 2)
            return error_set(
                error, STATUS_INVALID,
                "%s: expected a padding of at most half of the kernel of %ux%u, got %ux%u, over %s",
                rule->name, set->kernel[0], set->kernel[1], set->padding[0], set->padding[1],
                tensor_text(rule->input[0], call->in[0], text));
    return slide_window(call, set->kernel, call->in[0]->shape.size[1], &out[0], error);
}

static enum status shapes_of_batch_norm(const struct op_call *call, struct shape out[], struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    const double epsilon = call->attributes.epsilon;
    char text[TENSOR_TEXT_BYTES];
    enum status status = expect_input(call, 0, SHAPE4(0, 0, 0, 0), 0, error);
    if (status != STATUS_OK)
        return status;
    const struct shape *x = &call->in[0]->shape;
    for (uint32_t i = 1; i < 5; i++) {
        status = expect_optional(call, i, SHAPE1(x->size[1]), 0, error);
        if (status != STATUS_OK)
            return status;
    }
    if (!(epsilon > 0) || !isfinite(epsilon))
        return error_set(error, STATUS_INVALID, "%s: expected a finite epsilon > 0, got %g, over %s",
                         rule->name, epsilon, tensor_text(rule->input[0], call->in[0], text));
    for (uint32_t i = 3; i < 5; i++)
        if (!call->attributes.training && call->in[i] == NULL)
            return error_set(error, STATUS_INVALID, "%s: there is no %s, expected one of shape %u for %s",
                             rule->name, rule->input[i], x->size[1],
                             tensor_text(rule->input[0], call->in[0], text));
    if (call->attributes.training && shape_elements(x) == x->size[1])
        return error_set(error, STATUS_INVALID,
                         "%s: %s has one value per channel, expected more than one in training", rule->name,
                         tensor_text(rule->input[0], call->in[0], text));
    out[0] = *x;
    out[1] = out[2] = SHAPE1(x->size[1]);
    return STATUS_OK;
}

static enum status shapes_of_unary(const struct op_call *call, struct shape out[], struct error *error)
{
    (void)error;
    out[0] = call->in[0]->shape;
    return STATUS_OK;
}

static enum status shapes_of_add(const struct op_call *call, struct shape out[], struct error *error)
{
    out[0] = call->in[0]->shape;
    return expect_input(call, 1, out[0], 0, error);
}

static enum status shapes_of_reshape(const struct op_call *call, struct shape out[], struct error *error)
{
    char text[TENSOR_TEXT_BYTES], wanted[SHAPE_TEXT_BYTES];
    out[0] = call->attributes.shape;
    if (shape_elements(&out[0]) == shape_elements(&call->in[0]->shape))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s: %s cannot become %s: expected equally many elements",
                     op_rule(call->op)->name, tensor_text("x", call->in[0], text),
                     shape_text(&out[0], wanted));
}

static enum status shapes_of_dropout(const struct op_call *call, struct shape out[], struct error *error)
{
    enum { ELEMENTS_MAX = 1 << 27 }; // as many as the blocks of a stream have bits for
    const struct op_rule *rule = op_rule(call->op);
    const double p = call->attributes.dropout;
    const size_t elements = shape_elements(&call->in[0]->shape);
    char text[TENSOR_TEXT_BYTES], other[TENSOR_TEXT_BYTES];
    out[0] = call->in[0]->shape;
    tensor_text(rule->input[0], call->in[0], text);
    if (!(p >= 0 && p < 1))
        return error_set(error, STATUS_INVALID, "%s: expected 0 <= p < 1, got %g, over %s", rule->name, p,
                         text);
    enum status status = expect_optional(call, 1, SHAPE2(0, 3), 1, error);
    if (status != STATUS_OK)
        return status;
    const uint32_t rows = call->in[1] != NULL ? call->in[1]->shape.size[0] : 1;
    if (elements % rows != 0)
        return error_set(error, STATUS_INVALID, "%s: %s does not divide the elements of %s", rule->name,
                         tensor_text(rule->input[1], call->in[1], other), text);
    if (elements / rows > ELEMENTS_MAX)
        return error_set(error, STATUS_INVALID, "%s: %s: expected at most %d elements in a row's draw",
                         rule->name, text, ELEMENTS_MAX);
    return STATUS_OK;
}

static enum status shapes_of_log_softmax(const struct op_call *call, struct shape out[], struct error *error)
{
    out[0] = call->in[0]->shape;
    return out[0].rank >= 1 ? STATUS_OK : expect_input(call, 0, SHAPE1(0), 0, error);
}

static enum status shapes_of_embedding(const struct op_call *call, struct shape out[], struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    const struct shape *indices = &call->in[0]->shape;
    char text[TENSOR_TEXT_BYTES];
    if (indices->rank < 1 || indices->rank > 3)
        return error_set(error, STATUS_INVALID, "%s: %s: expected rank 1..3", rule->name,
                         tensor_text(rule->input[0], call->in[0], text));
    enum status status = expect_input(call, 1, SHAPE2(0, 0), 1, error);
    if (status != STATUS_OK)
        return status;
    out[0] = *indices;
    out[0].size[out[0].rank++] = call->in[1]->shape.size[1];
    return check_output(call, &out[0], error);
}

static enum status lstm_biases(const struct op_call *call, struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    const uint32_t gates = call->in[4]->shape.size[0];
    char text[TENSOR_TEXT_BYTES];
    for (uint32_t i = 5; i < 7; i++) {
        const uint32_t other = 11 - i;
        if (call->in[i] != NULL && call->in[other] == NULL)
            return error_set(error, STATUS_INVALID, "%s: %s comes without %s, expected both or none",
                             rule->name, tensor_text(rule->input[i], call->in[i], text), rule->input[other]);
        enum status status = expect_optional(call, i, SHAPE1(gates), 4, error);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status shapes_of_lstm(const struct op_call *call, struct shape out[], struct error *error)
{
    enum { X, H0, C0, WEIGHT_IH, WEIGHT_HH };
    const struct op_rule *rule = op_rule(call->op);
    char text[TENSOR_TEXT_BYTES];
    enum status status = expect_input(call, X, SHAPE3(0, 0, 0), X, error);
    if (status == STATUS_OK)
        status = expect_input(call, WEIGHT_HH, SHAPE2(0, 0), WEIGHT_HH, error);
    if (status != STATUS_OK)
        return status;
    const uint32_t *x = call->in[X]->shape.size, *weight = call->in[WEIGHT_HH]->shape.size;
    const uint32_t gates = weight[0], hidden = weight[1];
    if (gates != 4 * (uint64_t)hidden)
        return error_set(error, STATUS_INVALID, "%s: %s: expected four times as many rows as columns",
                         rule->name, tensor_text(rule->input[WEIGHT_HH], call->in[WEIGHT_HH], text));
    status = expect_input(call, WEIGHT_IH, SHAPE2(gates, x[2]), WEIGHT_HH, error);
    if (status != STATUS_OK && matches(&call->in[WEIGHT_IH]->shape, &SHAPE2(gates, 0)))
        status = expect_input(call, WEIGHT_IH, SHAPE2(gates, x[2]), X,
                              error); // the weight fits the gates and not x
    if (status == STATUS_OK)
        status = lstm_biases(call, error);
    for (uint32_t i = H0; i <= C0 && status == STATUS_OK; i++)
        status = expect_optional(call, i, SHAPE2(x[1], hidden), X, error);
    if (status != STATUS_OK)
        return status;
    out[0] = SHAPE3(x[0], x[1], gates); // the gates of all steps are what backends keep
    status = check_output(call, &out[0], error);
    out[0].size[2] = hidden;
    out[1] = out[2] = SHAPE2(x[1], hidden);
    return status;
}

/* Two tensors of one shape, the second perhaps absent, make a scalar. */
static enum status shapes_of_pair(const struct op_call *call, struct shape out[], struct error *error)
{
    out[0] = SHAPE0();
    return expect_optional(call, 1, call->in[0]->shape, 0, error);
}

static enum status shapes_of_cross_entropy(const struct op_call *call, struct shape out[],
                                           struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    const struct shape *logits = &call->in[0]->shape;
    char text[TENSOR_TEXT_BYTES];
    out[0] = SHAPE0();
    if (logits->rank < 2 || logits->rank > 3)
        return error_set(error, STATUS_INVALID, "%s: %s, expected *x* or *x*x*", rule->name,
                         tensor_text(rule->input[0], call->in[0], text));
    struct shape target = {.rank = logits->rank - 1, .size = {logits->size[0], logits->size[2]}};
    return expect_input(call, 1, target, 0, error);
}

static enum status shapes_of_log_probability(const struct op_call *call, struct shape out[],
                                             struct error *error)
{
    enum status status = expect_input(call, 0, SHAPE2(0, 0), 0, error);
    if (status != STATUS_OK)
        return status;
    out[0] = SHAPE1(call->in[0]->shape.size[0]);
    return expect_input(call, 1, out[0], 0, error);
}

typedef enum status shapes_function(const struct op_call *call, struct shape out[], struct error *error);

static shapes_function *const functions[OP_COUNT] = {
    [OP_LINEAR] = shapes_of_linear,
    [OP_CONV2D] = shapes_of_conv2d,
    [OP_BATCH_NORM] = shapes_of_batch_norm,
    [OP_MAX_POOL] = shapes_of_pool,
    [OP_AVG_POOL] = shapes_of_pool,
    [OP_RELU] = shapes_of_unary,
    [OP_ADD] = shapes_of_add,
    [OP_RESHAPE] = shapes_of_reshape,
    [OP_DROPOUT] = shapes_of_dropout,
    [OP_LOG_SOFTMAX] = shapes_of_log_softmax,
    [OP_EMBEDDING] = shapes_of_embedding,
    [OP_LSTM_LAYER] = shapes_of_lstm,
    [OP_MSE] = shapes_of_pair,
    [OP_CROSS_ENTROPY] = shapes_of_cross_entropy,
    [OP_LOG_PROBABILITY] = shapes_of_log_probability,
    [OP_SUM] = shapes_of_pair,
};

enum status op_shapes(const struct op_call *call, struct shape out[OP_OUTPUTS_MAX], struct error *error)
{
    return functions[call->op](call, out, error);
}
