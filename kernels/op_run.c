/* The operations' rules as one table, and the run of one operation: checks the inputs, sets the
 * results' shapes, and calls the backend's table. A failed call returns its memory to the arena. */
#include "kernels/op.h"

#include "kernels/backend.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* OP_READ names the tensors that the backward of at least one backend
 * reads: the tape keeps them on every backend. The backward of an operation with a fused ReLU reads the
 * output, whose zeros say where the ReLU was closed. */
enum {
    GRADIENT = OP_GRADIENT,
    INTEGERS = OP_INTEGERS,
    OPTIONAL = OP_OPTIONAL,
    READ = OP_READ,
    OFFERED = OP_OFFERED
};

static const struct op_rule rules[OP_COUNT] = {
    [OP_LINEAR] = {"linear", .inputs = 3, .outputs = 1,
                   .in = {{"x", "ri", GRADIENT | READ},
                          {"weight", "oi", GRADIENT | READ},
                          {"bias", "o", GRADIENT | OPTIONAL}},
                   .out = {{"y", "ro", 0}}},
    [OP_CONV2D] = {"conv2d", .inputs = 3, .outputs = 1,
                   .in = {{"x", "nchw", GRADIENT | READ},
                          {"weight", "ockl", GRADIENT | READ},
                          {"bias", "o", GRADIENT | OPTIONAL}},
                   .out = {{"y", "noHW", 0}}},
    [OP_BATCH_NORM] = {"batch norm", .inputs = 5, .outputs = 3,
                       .in = {{"x", "nchw", GRADIENT | READ},
                              {"weight", "c", GRADIENT | READ},
                              {"bias", "c", GRADIENT | READ},
                              {"running mean", "c", OPTIONAL},
                              {"running variance", "c", OPTIONAL}},
                       .out = {{"y", "nchw", READ},
                               {"batch mean", "c", OFFERED},
                               {"batch variance", "c", OFFERED}}},
    [OP_MAX_POOL] = {"max pool", .inputs = 1, .outputs = 1, .in = {{"x", "nchw", GRADIENT | READ}},
                     .out = {{"y", "ncHW", READ}}},
    [OP_AVG_POOL] = {"average pool", .inputs = 1, .outputs = 1, .in = {{"x", "nchw", GRADIENT}},
                     .out = {{"y", "ncHW", 0}}},
    [OP_RELU] = {"relu", .inputs = 1, .outputs = 1, .in = {{"x", "+", GRADIENT}}, .out = {{"y", "+", READ}}},
    [OP_ADD] = {"add", .inputs = 2, .outputs = 1, .in = {{"a", "+", GRADIENT}, {"b", "+", GRADIENT}},
                .out = {{"y", "+", READ}}},
    [OP_RESHAPE] = {"reshape", .inputs = 1, .outputs = 1, .in = {{"x", "+", GRADIENT}},
                    .out = {{"y", "+", 0}}},
    [OP_DROPOUT] = {"dropout", .inputs = 2, .outputs = 1,
                    .in = {{"x", "+", GRADIENT}, {"rows", "r3", INTEGERS | OPTIONAL | READ}},
                    .out = {{"y", "+", 0}}},
    [OP_LOG_SOFTMAX] = {"log-softmax", .inputs = 1, .outputs = 1, .in = {{"x", "+c", GRADIENT}},
                        .out = {{"y", "+c", READ}}},
    [OP_EMBEDDING] = {"embedding", .inputs = 2, .outputs = 1,
                      .in = {{"indices", "+", INTEGERS | READ}, {"weight", "vw", GRADIENT}},
                      .out = {{"y", "+w", 0}}},
    [OP_LSTM_LAYER] = {"lstm", .inputs = 7, .outputs = 3,
                       .in = {{"x", "tbi", GRADIENT | READ},
                              {"h0", "bh", GRADIENT | READ},
                              {"c0", "bh", GRADIENT | READ},
                              {"weight_ih", "gi", GRADIENT | READ},
                              {"weight_hh", "gh", GRADIENT | READ},
                              {"bias_ih", "g", GRADIENT | READ},
                              {"bias_hh", "g", GRADIENT | READ}},
                       .out = {{"y", "tbh", READ}, {"hn", "bh", READ}, {"cn", "bh", READ}}},
    [OP_MSE] = {"mean-squared error", .inputs = 2, .outputs = 1,
                .in = {{"x", "+", GRADIENT | READ}, {"target", "+", READ}}, .out = {{"loss", "", 0}}},
    [OP_CROSS_ENTROPY] = {"cross entropy", .inputs = 2, .outputs = 1,
                          .in = {{"logits", "nc+", GRADIENT | READ}, {"target", "n+", INTEGERS | READ}},
                          .out = {{"loss", "", 0}}},
    [OP_LOG_PROBABILITY] = {"log-probability", .inputs = 2, .outputs = 1,
                            .in = {{"log-probabilities", "rc", GRADIENT}, {"actions", "r", INTEGERS | READ}},
                            .out = {{"y", "r", 0}}},
    [OP_SUM] = {"sum", .inputs = 2, .outputs = 1,
                .in = {{"x", "+", GRADIENT}, {"coefficient", "+", OPTIONAL | READ}}, .out = {{"y", "", 0}}},
    [OP_GRU_LAYER] = {"gru", .inputs = 6, .outputs = 2,
                      .in = {{"x", "tbi", GRADIENT | READ},
                             {"h0", "bh", GRADIENT | READ},
                             {"weight_ih", "gi", GRADIENT | READ},
                             {"weight_hh", "gh", GRADIENT | READ},
                             {"bias_ih", "g", GRADIENT},
                             {"bias_hh", "g", GRADIENT}},
                      .out = {{"y", "tbh", READ}, {"hn", "bh", 0}}},
    [OP_TANH] = {"tanh", .inputs = 1, .outputs = 1, .in = {{"x", "+", GRADIENT}}, .out = {{"y", "+", READ}}},
};

const struct op_rule *op_rule(enum op op)
{
    assert((unsigned)op < OP_COUNT);
    return &rules[op];
}

uint32_t op_outputs(enum op op, const struct op_attributes *attributes)
{
    return op == OP_BATCH_NORM && !attributes->training ? 1 : op_rule(op)->outputs;
}

/* ---- shapes, by the patterns of the rule ---- */

/* The size that each sign of the patterns stands for, learned from the inputs in turn. */
struct sizes {
    uint32_t of[128];  /* by letter or digit; 0: not known yet */
    uint8_t from[128]; /* the input that told it */
    struct shape rest; /* `+` */
    bool rest_known;
};

/* The shape that a pattern describes; a size that is not known is 0. A rank beyond SHAPE_RANK_MAX is only
 * counted. */
static struct shape shape_of_pattern(const char *pattern, const struct sizes *sizes)
{
    struct shape shape = {0};
    for (; *pattern != '\0'; pattern++)
        for (uint32_t i = 0; i < (*pattern == '+' ? sizes->rest.rank : 1); i++, shape.rank++)
            if (shape.rank < SHAPE_RANK_MAX)
                shape.size[shape.rank] =
                    *pattern == '+' ? sizes->rest.size[i] : sizes->of[(unsigned char)*pattern];
    return shape;
}

/* Learns the open sizes of input i's pattern from its shape. Returns the input that the shape contradicts: an
 * earlier one, or i itself if the rank or a digit does not fit; OP_INPUTS_MAX: the shape fits. */
static uint32_t sizes_learn(struct sizes *sizes, const char *pattern, const struct shape *shape, uint32_t i)
{
    const char *plus = strchr(pattern, '+');
    const uint32_t letters = (uint32_t)strlen(pattern) - (plus != NULL);
    if (plus != NULL && !sizes->rest_known && shape->rank >= letters) {
        sizes->rest = (struct shape){.rank = shape->rank - letters};
        memcpy(sizes->rest.size, shape->size + (plus - pattern), sizes->rest.rank * sizeof *shape->size);
        sizes->rest_known = true;
        sizes->from['+'] = (uint8_t)i;
    }
    if (shape->rank != letters + (plus != NULL ? sizes->rest.rank : 0))
        return sizes->rest_known && plus != NULL ? sizes->from['+'] : i;
    for (uint32_t d = 0; *pattern != '\0'; pattern++) {
        const unsigned char sign = (unsigned char)*pattern;
        const uint32_t count = sign == '+' ? sizes->rest.rank : 1;
        if (sign != '+' && sizes->of[sign] == 0) {
            sizes->of[sign] = shape->size[d];
            sizes->from[sign] = (uint8_t)i;
        }
        if (memcmp(sign == '+' ? sizes->rest.size : &sizes->of[sign], shape->size + d,
                   count * sizeof *shape->size) != 0)
            return sign == '3' ? i : sizes->from[sign]; // no other input tells a digit
        d += count;
    }
    return OP_INPUTS_MAX;
}

/* "3x*" where the second size is not known. */
static const char *pattern_text(const char *pattern, const struct sizes *sizes, char text[SHAPE_TEXT_BYTES])
{
    const struct shape shape = shape_of_pattern(pattern, sizes);
    int length = snprintf(text, SHAPE_TEXT_BYTES, "%s", shape.rank == 0 ? "scalar" : "");
    for (uint32_t i = 0; i < shape.rank && i < SHAPE_RANK_MAX; i++) {
        char size[16] = "*";
        if (shape.size[i] != 0)
            snprintf(size, sizeof size, "%u", shape.size[i]);
        length += snprintf(text + length, SHAPE_TEXT_BYTES - (size_t)length, "%s%s", i == 0 ? "" : "x", size);
    }
    return text;
}

static enum status check_input(const struct backend *backend, const struct op_call *call, uint32_t i,
                               struct sizes *sizes, struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    const struct op_tensor *role = &rule->in[i];
    const struct tensor *in = call->in[i];
    const enum dtype dtype = role->flags & OP_INTEGERS ? DTYPE_I32 : backend->ops->dtype;
    char text[TENSOR_TEXT_BYTES], other[TENSOR_TEXT_BYTES], expected[SHAPE_TEXT_BYTES];
    if (in == NULL && role->flags & OP_OPTIONAL)
        return STATUS_OK;
    if (in == NULL)
        return error_set(error, STATUS_INVALID, "%s: there is no %s", rule->name, role->name);
    if (in->dtype != dtype)
        return error_set(error, STATUS_INVALID, "%s: %s is %s, expected %s", rule->name,
                         tensor_text(role->name, in, text), dtype_name(in->dtype), dtype_name(dtype));
    const struct sizes before = *sizes;
    const uint32_t because = sizes_learn(sizes, role->shape, &in->shape, i);
    if (because == OP_INPUTS_MAX)
        return STATUS_OK;
    tensor_text(role->name, in, text);
    pattern_text(role->shape, &before, expected);
    if (because == i)
        return error_set(error, STATUS_INVALID, "%s: %s, expected %s", rule->name, text, expected);
    return error_set(error, STATUS_INVALID, "%s: %s, expected %s to fit %s", rule->name, text, expected,
                     tensor_text(rule->in[because].name, call->in[because], other));
}

/* The sizes of the output of a window that moves over x. */
static void slide_window(const struct op_call *call, const uint32_t kernel[2], struct sizes *sizes)
{
    const struct op_attributes *set = &call->attributes;
    for (int i = 0; i < 2; i++) {
        const uint64_t padded = call->in[0]->shape.size[2 + i] + 2 * (uint64_t)set->padding[i];
        assert(kernel[i] >= 1 && kernel[i] <= padded && set->stride[i] >= 1 && padded <= SHAPE_ELEMENTS_MAX);
        assert(call->op == OP_CONV2D || set->padding[i] <= kernel[i] / 2);
        sizes->of[i == 0 ? 'H' : 'W'] = (uint32_t)((padded - kernel[i]) / set->stride[i] + 1);
    }
}

/* What the attributes say of the outputs' sizes, and what no pattern says. */
static enum status finish_sizes(const struct op_call *call, struct sizes *sizes, struct error *error)
{
    enum { DRAWN_MAX = 1 << 27 }; // as many elements as the blocks of a stream have bits for
    const struct op_attributes *set = &call->attributes;
    const size_t elements = shape_elements(&call->in[0]->shape);
    size_t rows;
    struct shape gates;
    char text[TENSOR_TEXT_BYTES], wanted[SHAPE_TEXT_BYTES];
    switch (call->op) {
    case OP_CONV2D:
        assert(call->in[1] != NULL);
        slide_window(call, call->in[1]->shape.size + 2, sizes);
        return STATUS_OK;
    case OP_MAX_POOL:
    case OP_AVG_POOL:
        slide_window(call, set->kernel, sizes);
        return STATUS_OK;
    case OP_BATCH_NORM:
        assert(set->epsilon > 0 && (set->training || call->in[4] != NULL));
        if (!set->training || elements > sizes->of['c'])
            return STATUS_OK;
        return error_set(error, STATUS_INVALID,
                         "batch norm: %s has one value per channel, expected more than one in training",
                         tensor_text("x", call->in[0], text));
    case OP_RESHAPE:
        sizes->rest = set->shape;
        if (shape_elements(&set->shape) == elements)
            return STATUS_OK;
        return error_set(error, STATUS_INVALID,
                         "reshape: %s cannot become %s: expected equally many elements",
                         tensor_text("x", call->in[0], text), shape_text(&set->shape, wanted));
    case OP_DROPOUT:
        rows = call->in[1] == NULL ? 1 : sizes->of['r'];
        assert(rows > 0 && set->dropout >= 0 && set->dropout < 1 && elements % rows == 0);
        if (elements / rows <= DRAWN_MAX)
            return STATUS_OK;
        return error_set(error, STATUS_INVALID, "dropout: %s, expected at most %d elements in a row's draw",
                         tensor_text("x", call->in[0], text), DRAWN_MAX);
    case OP_CROSS_ENTROPY:
        assert(sizes->rest.rank <= 1);
        return STATUS_OK;
    case OP_LSTM_LAYER:
    case OP_GRU_LAYER:
        assert(sizes->of['g'] == (call->op == OP_LSTM_LAYER ? 4 : 3) * sizes->of['h']);
        gates = shape_of_pattern("tbg", sizes);
        if (shape_elements(&gates) != 0)
            return STATUS_OK;
        return error_set(error, STATUS_INVALID, "%s: gates of shape %s from %s: expected 1..%d elements",
                         op_rule(call->op)->name, shape_text(&gates, wanted),
                         tensor_text("x", call->in[0], text), SHAPE_ELEMENTS_MAX);
    default:
        return STATUS_OK;
    }
}

enum status op_shapes(const struct backend *backend, const struct op_call *call,
                      struct shape out[OP_OUTPUTS_MAX], struct error *error)
{
    const struct op_rule *rule = op_rule(call->op);
    struct sizes sizes = {.of = {['3'] = 3}};
    char text[TENSOR_TEXT_BYTES], shape[SHAPE_TEXT_BYTES];
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < rule->inputs && status == STATUS_OK; i++)
        status = check_input(backend, call, i, &sizes, error);
    if (status == STATUS_OK)
        status = finish_sizes(call, &sizes, error);
    for (uint32_t i = 0; i < rule->outputs && status == STATUS_OK; i++) {
        out[i] = shape_of_pattern(rule->out[i].shape, &sizes);
        if (shape_elements(&out[i]) == 0)
            status = error_set(error, STATUS_INVALID, "%s: %s of shape %s from %s: expected 1..%d elements",
                               rule->name, rule->out[i].name, shape_text(&out[i], shape),
                               tensor_text(rule->in[0].name, call->in[0], text), SHAPE_ELEMENTS_MAX);
    }
    return status;
}

/* ---- calls ---- */

/* A result of this shape and dtype, whose memory the backend takes. */
static void describe_result(struct tensor *result, const struct shape *shape, enum dtype dtype)
{
    *result = (struct tensor){.shape = *shape, .dtype = dtype, .name = result->name};
}

enum status op_forward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct shape shape[OP_OUTPUTS_MAX];
    enum status status = op_shapes(backend, call, shape, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < op_outputs(call->op, &call->attributes); i++) {
        const bool offered = op_rule(call->op)->out[i].flags & OP_OFFERED && call->out[i]->data != NULL;
        assert(!offered || (shape_equal(&call->out[i]->shape, &shape[i]) &&
                            call->out[i]->dtype == backend->ops->dtype && call->out[i]->layout == NULL));
        if (!offered)
            describe_result(call->out[i], &shape[i], backend->ops->dtype);
    }
    memset(call->saved, 0, sizeof call->saved);
    const uint64_t mark = arena_mark(call->arena);
    status = backend->ops->forward[call->op](backend, call, error);
    if (status != STATUS_OK)
        arena_rollback(call->arena, mark);
    return status;
}

enum status op_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    assert(call->keep);
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
        if (call->din[i] != NULL && call->din[i]->data == NULL)
            describe_result(call->din[i], &call->in[i]->shape, call->in[i]->dtype);
    const uint64_t mark = arena_mark(call->arena);
    enum status status = backend->ops->backward[call->op](backend, call, error);
    if (status != STATUS_OK)
        arena_rollback(call->arena, mark);
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
                             i, tensor_text(rule->in[input].name, in, text), index[i], limit - 1);
    }
    return STATUS_OK;
}
