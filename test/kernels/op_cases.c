/* The table itself. The data of a row are test/kernels/op_inputs.c's, its bounds and costs
 * test/kernels/op_costs.c's.
 *
 * Sizes are chosen where code goes wrong: 1; primes and what no vector's width divides (3, 7, 13, 17, 31, 33,
 * 65); a little over a width; and what the models have: the policy 4-128-2, ResNet-50 at 64x64 images, the
 * tutorial's RNN and the one of 10,000 tokens and 200 units. Rows that ref would compute for seconds are only
 * timed; the same shape with fewer images is checked beside them. */
#include "test/kernels/op_cases.h"

enum {
    C = OP_CASE_CHECK,
    CD = OP_CASE_CHECK | OP_CASE_DIFFER,
    CT = OP_CASE_CHECK | OP_CASE_TIME,
    T = OP_CASE_TIME,
};

#define LINEAR(use_, name_, rows, inputs, outputs, bias)                                                     \
    .op = OP_LINEAR, .use = (use_), .name = (name_), .absent = (bias) ? 0 : 4,                               \
    .in = {SHAPE2(rows, inputs), SHAPE2(outputs, inputs), SHAPE1(outputs)}
/* sh, sw, ph, pw: stride and padding of height and of width */
#define CONV(use_, name_, n, c, h, w, o, kh, kw, sh, sw, ph, pw)                                             \
    .op = OP_CONV2D, .use = (use_), .name = (name_),                                                         \
    .attributes = {.stride = {(sh), (sw)}, .padding = {(ph), (pw)}}, .absent = 4,                            \
    .in = {SHAPE4(n, c, h, w), SHAPE4(o, c, kh, kw), SHAPE1(o)}
/* Square, with a bias, without padding */
#define CONV_BIAS(use_, name_, n, c, size, o, k, s)                                                          \
    .op = OP_CONV2D, .use = (use_), .name = (name_), .attributes = {.stride = {(s), (s)}},                   \
    .in = {SHAPE4(n, c, size, size), SHAPE4(o, c, k, k), SHAPE1(o)}
/* ResNet's convolutions: square */
#define RESNET(use, name, n, c, size, o, k, s)                                                               \
    CONV(use, name, n, c, size, size, o, k, k, s, s, (k) / 2, (k) / 2)
#define NORM(use_, name_, n, c, h, w, training_, relu_, running)                                             \
    .op = OP_BATCH_NORM, .use = (use_), .name = (name_),                                                     \
    .attributes = {.relu = (relu_), .training = (training_), .epsilon = 1e-5}, .absent = (running) ? 0 : 24, \
    .in = {SHAPE4(n, c, h, w), SHAPE1(c), SHAPE1(c), SHAPE1(c), SHAPE1(c)}
#define POOL(op_, use_, name_, n, c, h, w, kh, kw, sh, sw, ph, pw)                                           \
    .op = (op_), .use = (use_), .name = (name_),                                                             \
    .attributes = {.kernel = {(kh), (kw)}, .stride = {(sh), (sw)}, .padding = {(ph), (pw)}},                 \
    .in = {SHAPE4(n, c, h, w)}
#define UNARY(op_, use_, name_, shape_) .op = (op_), .use = (use_), .name = (name_), .in = {shape_}
#define TIES(op_, shape_) .op = (op_), .use = C, .name = "ties", .ties = true, .in = {shape_, shape_}
#define ADD(use_, name_, relu_, shape_)                                                                      \
    .op = OP_ADD, .use = (use_), .name = (name_), .attributes = {.relu = (relu_)}, .in = {shape_, shape_}
#define RESHAPE(use_, from, to)                                                                              \
    .op = OP_RESHAPE, .use = (use_), .name = "", .attributes = {.shape = (to)}, .in = {from}
#define DROPOUT(use_, name_, p, shape_)                                                                      \
    .op = OP_DROPOUT, .use = (use_), .name = (name_),                                                        \
    .attributes = {.dropout = (p), .draw = {.seed = 0x9e3779b97f4a7c15u, .word = {2, 11, 5}}}, .absent = 2,  \
    .in = {shape_}
#define DROPOUT_ROWS(use_, name_, p, shape_, rows)                                                           \
    .op = OP_DROPOUT, .use = (use_), .name = (name_), .attributes = {.dropout = (p), .draw = {.seed = 543}}, \
    .in = {shape_, SHAPE2(rows, 3)}
#define EMBEDDING(use_, name_, indices, vocabulary, width)                                                   \
    .op = OP_EMBEDDING, .use = (use_), .name = (name_), .in = {indices, SHAPE2(vocabulary, width)}
#define LSTM(use_, name_, steps, batch, inputs, hidden)                                                      \
    .op = OP_LSTM_LAYER, .use = (use_), .name = (name_),                                                     \
    .in = {SHAPE3(steps, batch, inputs), SHAPE2(batch, hidden),        SHAPE2(batch, hidden),                \
           SHAPE2(4 * (hidden), inputs), SHAPE2(4 * (hidden), hidden), SHAPE1(4 * (hidden)),                 \
           SHAPE1(4 * (hidden))}
#define GRU(use_, name_, steps, batch, inputs, hidden)                                                       \
    .op = OP_GRU_LAYER, .use = (use_), .name = (name_),                                                      \
    .in = {SHAPE3(steps, batch, inputs), SHAPE2(batch, hidden), SHAPE2(3 * (hidden), inputs),                \
           SHAPE2(3 * (hidden), hidden), SHAPE1(3 * (hidden)),  SHAPE1(3 * (hidden))}
#define BINARY(op_, use_, name_, first, second)                                                              \
    .op = (op_), .use = (use_), .name = (name_), .in = {first, second}
#define SUM(use_, name_, scale_, coefficient, shape_)                                                        \
    .op = OP_SUM, .use = (use_), .name = (name_), .attributes = {.scale = (scale_)},                         \
    .absent = (coefficient) ? 0 : 2, .in = {shape_, shape_}

const struct op_case op_cases[] = {
    {LINEAR(CD, "", 1, 1, 1, true)},
    {LINEAR(CD, "", 1, 1, 1, false)},
    {LINEAR(CD, "", 1, 7, 3, true)},
    {LINEAR(CD, "", 3, 1, 7, false)},
    {LINEAR(CD, "", 7, 13, 1, true)},
    {LINEAR(CD, "", 13, 17, 31, true)},
    {LINEAR(CD, "", 31, 33, 17, false)},
    {LINEAR(CD, "", 2, 65, 33, false)},
    {LINEAR(CD, "", 65, 127, 65, true)},
    {LINEAR(CD, "", 257, 19, 129, true)},
    {LINEAR(CD, "policy affine1", 10, 4, 128, true)},
    {LINEAR(CD, "policy affine2", 10, 128, 2, true)},
    {LINEAR(CT, "policy affine1", 1024, 4, 128, true)},
    {LINEAR(CT, "policy affine2", 1024, 128, 2, true)},
    {LINEAR(CD, "tutorial decoder", 15, 3, 10, true)},
    {LINEAR(C, "decoder", 7, 200, 1000, true)},
    {LINEAR(T, "decoder", 700, 200, 10000, true)},
    {LINEAR(C, "resnet fc", 3, 2048, 30, true)},
    {LINEAR(T, "resnet fc", 20, 2048, 1000, true)},

    {CONV(CD, "", 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0)},
    {CONV(CD, "", 1, 1, 3, 3, 1, 3, 3, 1, 1, 1, 1)},
    {CONV(CD, "", 2, 3, 5, 7, 4, 3, 3, 1, 1, 0, 0)},
    {CONV(CD, "", 1, 3, 7, 7, 5, 3, 3, 2, 2, 1, 1)},
    {CONV(CD, "", 3, 7, 5, 5, 13, 1, 1, 1, 1, 0, 0)},
    {CONV(CD, "", 2, 17, 4, 3, 3, 3, 3, 1, 1, 1, 1)},
    {CONV(CD, "one tap of three", 1, 2, 1, 5, 3, 3, 3, 1, 1, 1, 1)},
    {CONV(CD, "oblong", 2, 3, 9, 6, 5, 3, 2, 2, 1, 1, 0)},
    {CONV(CD, "oblong", 1, 5, 8, 11, 2, 1, 5, 1, 3, 0, 2)},
    {CONV(CD, "rows left over", 1, 2, 8, 8, 3, 3, 3, 3, 3, 0, 0)},
    {CONV(CD, "padding wider than the image", 1, 2, 2, 2, 3, 5, 5, 1, 1, 3, 3)},
    {CONV(CD, "", 2, 31, 9, 9, 33, 3, 3, 1, 1, 1, 1)},
    {CONV(CD, "", 1, 65, 7, 7, 17, 1, 1, 2, 2, 0, 0)},
    {CONV(CD, "", 5, 13, 8, 8, 64, 3, 3, 2, 2, 1, 1)},
    {CONV(CD, "", 3, 16, 6, 6, 16, 3, 3, 1, 1, 1, 1)},
    {CONV_BIAS(CD, "bias", 1, 1, 1, 1, 1, 1)},
    {CONV_BIAS(CD, "bias", 2, 3, 5, 7, 3, 2)},
    {CONV_BIAS(CD, "bias", 3, 17, 4, 33, 2, 1)},
    {CONV_BIAS(C, "cnn 0", 3, 4, 84, 32, 8, 4)},
    {CONV_BIAS(C, "cnn 2", 3, 32, 20, 64, 4, 2)},
    {CONV_BIAS(C, "cnn 4", 3, 64, 9, 64, 3, 1)},
    {RESNET(C, "stem", 1, 3, 32, 64, 7, 2)},
    {CONV(C, "stem of one channel", 1, 1, 28, 28, 64, 7, 7, 2, 2, 3, 3)},
    {RESNET(C, "layer1 1x1", 1, 64, 16, 64, 1, 1)},
    {RESNET(C, "layer1 3x3", 1, 64, 6, 64, 3, 1)},
    {RESNET(C, "layer2 3x3/2", 1, 128, 6, 128, 3, 2)},
    {RESNET(C, "layer2 down", 2, 256, 6, 128, 1, 2)},
    {RESNET(C, "layer4 3x3", 1, 256, 2, 512, 3, 1)},
    {RESNET(C, "layer4 3x3/2", 1, 256, 4, 256, 3, 2)},
    {RESNET(C, "layer4 1x1", 1, 512, 2, 2048, 1, 1)},
    {RESNET(C, "layer4 1x1", 1, 2048, 2, 256, 1, 1)},
    {RESNET(C, "layer4 down", 1, 1024, 4, 256, 1, 2)},
    {RESNET(C, "one pixel", 2, 512, 1, 64, 1, 1)},
    {RESNET(C, "one pixel 3x3", 2, 64, 1, 64, 3, 1)},
    {RESNET(T, "stem", 20, 3, 64, 64, 7, 2)},
    {CONV_BIAS(T, "cnn 0", 256, 4, 84, 32, 8, 4)},
    {CONV_BIAS(T, "cnn 2", 256, 32, 20, 64, 4, 2)},
    {CONV_BIAS(T, "cnn 4", 256, 64, 9, 64, 3, 1)},
    {RESNET(T, "layer1 1x1", 20, 64, 16, 64, 1, 1)},
    {RESNET(T, "layer1 3x3", 20, 64, 16, 64, 3, 1)},
    {RESNET(T, "layer1 1x1", 20, 64, 16, 256, 1, 1)},
    {RESNET(T, "layer1 1x1", 20, 256, 16, 64, 1, 1)},
    {RESNET(T, "layer2 3x3/2", 20, 128, 16, 128, 3, 2)},
    {RESNET(T, "layer2 down", 20, 256, 16, 512, 1, 2)},
    {RESNET(T, "layer2 3x3", 20, 128, 8, 128, 3, 1)},
    {RESNET(T, "layer2 1x1", 20, 512, 8, 128, 1, 1)},
    {RESNET(T, "layer3 3x3", 20, 256, 4, 256, 3, 1)},
    {RESNET(T, "layer3 1x1", 20, 256, 4, 1024, 1, 1)},
    {RESNET(T, "layer4 3x3/2", 20, 512, 4, 512, 3, 2)},
    {RESNET(T, "layer4 3x3", 20, 512, 2, 512, 3, 1)},
    {RESNET(T, "layer4 1x1", 20, 512, 2, 2048, 1, 1)},
    {RESNET(T, "layer4 1x1", 20, 2048, 2, 512, 1, 1)},

    {NORM(CD, "", 3, 1, 1, 1, true, false, false)},
    {NORM(CD, "", 1, 3, 1, 5, true, false, true)},
    {NORM(CD, "", 2, 7, 3, 3, true, true, false)},
    {NORM(CD, "", 5, 13, 1, 1, true, false, false)},
    {NORM(CD, "", 2, 17, 3, 2, true, true, true)},
    {NORM(CD, "", 3, 33, 7, 5, true, false, false)},
    {NORM(CD, "", 2, 65, 4, 4, true, true, false)},
    {NORM(C, "", 2, 64, 31, 31, true, true, false)},
    {NORM(C, "layer4", 20, 512, 2, 2, true, true, false)},
    {NORM(C, "layer4", 3, 2048, 2, 2, true, false, false)},
    {NORM(C, "inference", 1, 1, 1, 1, false, false, true)},
    {NORM(C, "inference", 1, 7, 3, 5, false, true, true)},
    {NORM(C, "inference", 2, 17, 3, 3, false, false, true)},
    {NORM(C, "inference", 3, 65, 4, 4, false, true, true)},
    {NORM(C, "inference", 2, 64, 8, 8, false, false, true)},
    {NORM(T, "stem", 20, 64, 32, 32, true, true, false)},
    {NORM(T, "layer1", 20, 256, 16, 16, true, false, false)},
    {NORM(T, "layer2", 20, 128, 8, 8, true, true, false)},
    {NORM(T, "layer3", 20, 1024, 4, 4, true, false, false)},
    {NORM(T, "layer4", 20, 2048, 2, 2, true, false, false)},

    {POOL(OP_MAX_POOL, CD, "", 1, 1, 1, 1, 1, 1, 1, 1, 0, 0)},
    {POOL(OP_MAX_POOL, CD, "", 1, 3, 5, 5, 3, 3, 2, 2, 1, 1)},
    {POOL(OP_MAX_POOL, CD, "", 2, 7, 6, 5, 2, 2, 2, 2, 0, 0)},
    {POOL(OP_MAX_POOL, CD, "overlapping", 1, 2, 7, 7, 3, 3, 1, 1, 1, 1)},
    {POOL(OP_MAX_POOL, CD, "oblong", 2, 3, 7, 9, 2, 4, 1, 3, 1, 2)},
    {POOL(OP_MAX_POOL, CD, "gaps", 1, 2, 9, 9, 2, 2, 3, 3, 0, 0)},
    {POOL(OP_MAX_POOL, CD, "", 2, 17, 13, 13, 3, 3, 2, 2, 1, 1)},
    {POOL(OP_MAX_POOL, CD, "", 2, 65, 4, 4, 3, 3, 2, 2, 1, 1)},
    {POOL(OP_MAX_POOL, C, "stem", 1, 64, 16, 16, 3, 3, 2, 2, 1, 1)},
    {.op = OP_MAX_POOL,
     .use = C,
     .name = "ties",
     .ties = true,
     .attributes = {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}},
     .in = {SHAPE4(2, 5, 9, 9)}},
    {.op = OP_MAX_POOL,
     .use = C,
     .name = "ties",
     .ties = true,
     .attributes = {.kernel = {2, 3}, .stride = {1, 1}, .padding = {0, 1}},
     .in = {SHAPE4(1, 33, 7, 7)}},
    {POOL(OP_MAX_POOL, T, "stem", 20, 64, 32, 32, 3, 3, 2, 2, 1, 1)},
    {POOL(OP_AVG_POOL, CD, "", 1, 1, 1, 1, 1, 1, 1, 1, 0, 0)},
    {POOL(OP_AVG_POOL, CD, "", 1, 3, 5, 5, 3, 3, 2, 2, 1, 1)},
    {POOL(OP_AVG_POOL, CD, "", 2, 7, 6, 5, 2, 2, 2, 2, 0, 0)},
    {POOL(OP_AVG_POOL, CD, "oblong", 2, 3, 7, 9, 2, 4, 1, 3, 1, 2)},
    {POOL(OP_AVG_POOL, CD, "global", 2, 13, 3, 5, 3, 5, 1, 1, 0, 0)},
    {POOL(OP_AVG_POOL, CD, "", 2, 65, 7, 7, 3, 3, 2, 2, 1, 1)},
    {POOL(OP_AVG_POOL, C, "global", 3, 2048, 2, 2, 2, 2, 1, 1, 0, 0)},
    {POOL(OP_AVG_POOL, T, "global", 20, 2048, 2, 2, 2, 2, 1, 1, 0, 0)},

    {UNARY(OP_RELU, CD, "", SHAPE0())},
    {UNARY(OP_RELU, CD, "", SHAPE1(7))},
    {UNARY(OP_RELU, CD, "", SHAPE2(3, 13))},
    {UNARY(OP_RELU, CD, "", SHAPE3(5, 3, 7))},
    {UNARY(OP_RELU, CD, "", SHAPE4(2, 17, 5, 5))},
    {TIES(OP_RELU, SHAPE2(31, 33))},
    {UNARY(OP_RELU, T, "layer1", SHAPE4(20, 256, 16, 16))},
    {UNARY(OP_TANH, CD, "", SHAPE0())},
    {UNARY(OP_TANH, CD, "", SHAPE1(7))},
    {UNARY(OP_TANH, CD, "", SHAPE2(3, 13))},
    {UNARY(OP_TANH, CD, "", SHAPE4(2, 17, 5, 5))},
    {UNARY(OP_TANH, CT, "PPO", SHAPE2(256, 64))},
    {ADD(CD, "", false, SHAPE0())},
    {ADD(CD, "", true, SHAPE1(13))},
    {ADD(CD, "", false, SHAPE2(7, 3))},
    {ADD(CD, "", true, SHAPE4(2, 3, 5, 5))},
    {ADD(CD, "", true, SHAPE4(2, 65, 7, 7))},
    {ADD(CD, "", false, SHAPE3(5, 31, 17))},
    {.op = OP_ADD,
     .use = C,
     .name = "ties",
     .ties = true,
     .attributes = {.relu = true},
     .in = {SHAPE2(31, 33), SHAPE2(31, 33)}},
    {ADD(T, "layer1", true, SHAPE4(20, 256, 16, 16))},
    {ADD(T, "layer3", true, SHAPE4(20, 1024, 4, 4))},
    {RESHAPE(CD, SHAPE1(1), SHAPE0())},
    {RESHAPE(CD, SHAPE4(3, 7, 1, 1), SHAPE2(3, 7))},
    {RESHAPE(CD, SHAPE2(6, 5), SHAPE3(2, 3, 5))},
    {RESHAPE(CD, SHAPE4(2, 17, 3, 3), SHAPE2(2, 153))},
    {RESHAPE(CD, SHAPE3(13, 1, 11), SHAPE1(143))},

    {DROPOUT(CD, "", 0.5, SHAPE1(1))},
    {DROPOUT(CD, "", 0.25, SHAPE2(7, 13))},
    {DROPOUT(CD, "nothing dropped", 0, SHAPE2(3, 5))},
    {DROPOUT(CD, "over a group of 128", 0.6, SHAPE2(3, 129))},
    {DROPOUT(CD, "", 0.99, SHAPE3(17, 5, 31))},
    {DROPOUT(CD, "", 0.5, SHAPE4(2, 7, 5, 3))},
    {DROPOUT(T, "rnn", 0.5, SHAPE3(35, 20, 200))},
    {DROPOUT_ROWS(CD, "", 0.5, SHAPE2(5, 3), 5)},
    {DROPOUT_ROWS(CD, "one row", 0.25, SHAPE2(3, 13), 1)},
    {DROPOUT_ROWS(CD, "over a group of 128", 0.6, SHAPE2(7, 131), 7)},
    {DROPOUT_ROWS(CD, "rows of two dimensions", 0.3, SHAPE3(4, 5, 17), 4)},
    {DROPOUT_ROWS(CT, "policy", 0.6, SHAPE2(1024, 128), 1024)},
    {UNARY(OP_LOG_SOFTMAX, CD, "", SHAPE1(1))},
    {UNARY(OP_LOG_SOFTMAX, CD, "", SHAPE1(7))},
    {UNARY(OP_LOG_SOFTMAX, CD, "", SHAPE2(13, 3))},
    {UNARY(OP_LOG_SOFTMAX, CD, "", SHAPE3(5, 3, 33))},
    {UNARY(OP_LOG_SOFTMAX, CD, "", SHAPE4(2, 3, 4, 17))},
    {UNARY(OP_LOG_SOFTMAX, CD, "", SHAPE2(7, 1031))},
    {UNARY(OP_LOG_SOFTMAX, CT, "policy", SHAPE2(1024, 2))},

    {EMBEDDING(CD, "", SHAPE1(1), 1, 1)},
    {EMBEDDING(CD, "", SHAPE1(7), 3, 5)},
    {EMBEDDING(CD, "tutorial", SHAPE2(5, 3), 10, 2)},
    {EMBEDDING(CD, "", SHAPE3(2, 3, 5), 13, 17)},
    {EMBEDDING(CD, "many of one", SHAPE2(35, 20), 3, 65)},
    {EMBEDDING(C, "", SHAPE2(35, 20), 1000, 200)},
    {EMBEDDING(T, "rnn", SHAPE2(35, 20), 10000, 200)},
    {LSTM(CD, "", 1, 1, 1, 1)},
    {LSTM(CD, "", 2, 3, 5, 7)},
    {LSTM(CD, "", 3, 1, 7, 3)},
    {LSTM(CD, "", 3, 2, 3, 5)},
    {LSTM(CD, "", 2, 3, 4, 3)},
    {LSTM(CD, "tutorial", 5, 3, 2, 3)},
    {LSTM(CD, "tutorial, layer 2", 5, 3, 3, 3)},
    {LSTM(CD, "", 7, 5, 13, 17)},
    {LSTM(CD, "", 3, 17, 65, 33)},
    {LSTM(C, "", 5, 4, 32, 64)},
    {LSTM(C, "rnn", 3, 2, 200, 200)},
    {LSTM(T, "tutorial", 5, 3, 2, 3)},
    {LSTM(T, "rnn", 35, 20, 200, 200)},
    {GRU(CD, "", 1, 1, 1, 1)},
    {GRU(CD, "", 2, 3, 5, 7)},
    {GRU(CD, "", 3, 1, 7, 3)},
    {GRU(CD, "", 3, 2, 3, 5)},
    {GRU(CD, "", 7, 5, 13, 17)},
    {GRU(CD, "", 3, 17, 65, 33)},
    {GRU(C, "", 5, 4, 32, 64)},
    {GRU(T, "policy", 32, 8, 64, 64)},

    {BINARY(OP_MSE, CD, "", SHAPE0(), SHAPE0())},
    {BINARY(OP_MSE, CD, "", SHAPE2(7, 3), SHAPE2(7, 3))},
    {BINARY(OP_MSE, CD, "", SHAPE4(2, 17, 3, 5), SHAPE4(2, 17, 3, 5))},
    {BINARY(OP_MSE, CT, "parameter server", SHAPE2(20, 30), SHAPE2(20, 30))},
    {BINARY(OP_CROSS_ENTROPY, CD, "", SHAPE2(1, 1), SHAPE1(1))},
    {BINARY(OP_CROSS_ENTROPY, CD, "", SHAPE2(7, 3), SHAPE1(7))},
    {BINARY(OP_CROSS_ENTROPY, CD, "tutorial", SHAPE3(5, 3, 10), SHAPE2(5, 10))},
    {BINARY(OP_CROSS_ENTROPY, CD, "", SHAPE3(3, 17, 1), SHAPE2(3, 1))},
    {BINARY(OP_CROSS_ENTROPY, CD, "", SHAPE3(2, 33, 65), SHAPE2(2, 65))},
    {BINARY(OP_CROSS_ENTROPY, CD, "", SHAPE2(13, 1031), SHAPE1(13))},
    {BINARY(OP_CROSS_ENTROPY, T, "rnn", SHAPE2(700, 10000), SHAPE1(700))},
    {BINARY(OP_LOG_PROBABILITY, CD, "", SHAPE2(1, 1), SHAPE1(1))},
    {BINARY(OP_LOG_PROBABILITY, CD, "", SHAPE2(13, 3), SHAPE1(13))},
    {BINARY(OP_LOG_PROBABILITY, CT, "policy", SHAPE2(1024, 2), SHAPE1(1024))},
    {SUM(CD, "", 1, false, SHAPE0())},
    {SUM(CD, "", -0.75, true, SHAPE1(13))},
    {SUM(CD, "mean", 1.0 / 33, false, SHAPE2(3, 11))},
    {SUM(CD, "", 0.5, true, SHAPE3(7, 5, 17))},
    {SUM(CD, "mean", 1.0 / 10335, false, SHAPE4(3, 13, 53, 5))},
    {SUM(CT, "policy", -0.1, true, SHAPE1(1024))},
};
const size_t op_cases_count = sizeof op_cases / sizeof *op_cases;
