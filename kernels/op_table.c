/* The operations' rules, as one table. OP_READ names the tensors that the backward of at least one backend
 * reads: the tape keeps them on every backend. The backward of an operation with a fused ReLU reads the
 * output, whose zeros say where the ReLU was closed. */
#include "kernels/op.h"

#include <assert.h>

enum { GRADIENT = OP_GRADIENT, INTEGERS = OP_INTEGERS, OPTIONAL = OP_OPTIONAL, READ = OP_READ };

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
                       .out = {{"y", "nchw", READ}, {"batch mean", "c", 0}, {"batch variance", "c", 0}}},
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
