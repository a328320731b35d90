/* op_forward and op_backward: bad input is a status and a sentence that names the tensor and both shapes. */
#include "kernels/kernels.h"
#include "test/kernels/op_fixture.h"
#include "test/workplace.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <string.h>

/* ---- calls that must fail ---- */

static const struct {
    enum op op;
    const char *shapes;
    struct op_attributes attributes;
    const char *first, *second; // both in the text
} bad[] = {
    /* absent, and of a wrong dtype */
    {OP_LINEAR, "3x5", {0}, "linear: there is no weight", ""},
    {OP_LINEAR, "- 4x5", {0}, "linear: there is no x", ""},
    {OP_ADD, "3", {0}, "add: there is no b", ""},
    {OP_EMBEDDING, "i3", {0}, "embedding: there is no weight", ""},
    {OP_CROSS_ENTROPY, "3x4", {0}, "cross entropy: there is no target", ""},
    {OP_LSTM_LAYER, "2x3x4 - - 8x4", {0}, "lstm: there is no weight_hh", ""},
    {OP_LINEAR, "i3x5 4x5", {0}, "x \"in0\" of shape 3x5 is int32", "expected float64"},
    {OP_EMBEDDING, "3 4x5", {0}, "indices \"in0\" of shape 3 is float64", "expected int32"},
    {OP_CROSS_ENTROPY, "3x4 3", {0}, "target \"in1\" of shape 3 is float64", "expected int32"},

    /* sizes of zero, and products that overflow */
    {OP_LINEAR, "0x5 4x5", {0}, "linear: x \"in0\" of shape 0x5", "no size to be 0"},
    {OP_LINEAR, "3x5 4x0", {0}, "linear: weight \"in1\" of shape 4x0", "no size to be 0"},
    {OP_RELU, "70000x70000", {0}, "relu: x \"in0\" of shape 70000x70000", "at most 2147483647 elements"},
    {OP_RELU, "4294967295x4294967295x4294967295x4294967295", {0}, "x \"in0\"", "at most 2147483647 elements"},
    {OP_LINEAR,
     "65536x2 65536x2",
     {0},
     "linear: y of shape 65536x65536 from x \"in0\" of shape 65536x2",
     "expected 1..2147483647 elements"},
    {OP_EMBEDDING,
     "i65536 5x65536",
     {0},
     "embedding: y of shape 65536x65536",
     "indices \"in0\" of shape 65536"},
    {OP_CONV2D,
     "1x1x2x2 2000000000x1x1x1",
     {.stride = {1, 1}},
     "conv2d: y of shape 1x2000000000x2x2",
     "x \"in0\" of shape 1x1x2x2"},
    {OP_CONV2D,
     "1x1x1x1 1x1x1x1",
     {.stride = {1, 1}, .padding = {32767, 32767}},
     "conv2d: y of shape 1x1x65535x65535",
     "x \"in0\" of shape 1x1x1x1"},
    {OP_LSTM_LAYER,
     "1000x1000x1 - - 4000x1 4000x1000",
     {0},
     "lstm: y of shape 1000x1000x4000",
     "x \"in0\" of shape 1000x1000x1"},
    {OP_LSTM_LAYER,
     "1x1x1 - - 1x1 1x1073741824",
     {0},
     "weight_hh \"in4\" of shape 1x1073741824",
     "four times"},

    /* shapes that do not fit */
    {OP_LINEAR, "5 4x5", {0}, "linear: x \"in0\" of shape 5, expected *x*", ""},
    {OP_LINEAR, "3x5 4x6", {0}, "weight \"in1\" of shape 4x6, expected *x5", "to fit x \"in0\" of shape 3x5"},
    {OP_LINEAR, "3x5 4x5 5", {0}, "bias \"in2\" of shape 5, expected 4", "weight \"in1\" of shape 4x5"},
    {OP_CONV2D, "1x3x4 2x3x3x3", {.stride = {1, 1}}, "x \"in0\" of shape 1x3x4, expected *x*x*x*", ""},
    {OP_CONV2D,
     "1x3x4x4 2x4x3x3",
     {.stride = {1, 1}},
     "weight \"in1\" of shape 2x4x3x3, expected *x3x*x*",
     "x \"in0\" of shape 1x3x4x4"},
    {OP_CONV2D,
     "1x3x4x4 2x3x3x3 3",
     {.stride = {1, 1}},
     "bias \"in2\" of shape 3, expected 2",
     "weight \"in1\" of shape 2x3x3x3"},
    {OP_CONV2D,
     "1x3x4x4 2x3x5x3",
     {.stride = {1, 1}},
     "kernel of 5x3 is larger than x \"in0\" of shape 1x3x4x4",
     "padding of 0x0"},
    {OP_BATCH_NORM, "2x3x1 3 3", {.training = true, .epsilon = 1}, "x \"in0\" of shape 2x3x1", "*x*x*x*"},
    {OP_BATCH_NORM,
     "2x3x1x1 4 3",
     {.training = true, .epsilon = 1},
     "weight \"in1\" of shape 4, expected 3",
     "x \"in0\" of shape 2x3x1x1"},
    {OP_BATCH_NORM,
     "2x3x1x1 3 3 3 2",
     {.epsilon = 1},
     "running variance \"in4\" of shape 2, expected 3",
     "x \"in0\" of shape 2x3x1x1"},
    {OP_MAX_POOL, "4x4", {.kernel = {1, 1}, .stride = {1, 1}}, "max pool: x \"in0\" of shape 4x4", "*x*x*x*"},
    {OP_AVG_POOL,
     "1x1x3x2",
     {.kernel = {3, 3}, .stride = {1, 1}},
     "kernel of 3x3 is larger than x \"in0\"",
     "shape 1x1x3x2"},
    {OP_ADD, "3x4 4x3", {0}, "add: b \"in1\" of shape 4x3, expected 3x4", "a \"in0\" of shape 3x4"},
    {OP_ADD, "3x4 3x4x1", {0}, "add: b \"in1\" of shape 3x4x1, expected 3x4", "a \"in0\" of shape 3x4"},
    {OP_RESHAPE, "3x4", {.shape = {2, {5, 2}}}, "reshape: x \"in0\" of shape 3x4 cannot become 5x2", ""},
    {OP_RESHAPE, "3x4", {.shape = {2, {0, 2}}}, "reshape: x \"in0\" of shape 3x4 cannot become 0x2", ""},
    {OP_RESHAPE, "3x4", {.shape = {9, {0}}}, "reshape: x \"in0\" of shape 3x4 cannot become rank 9", ""},
    {OP_DROPOUT, "3x4 i3x2", {0}, "dropout: rows \"in1\" of shape 3x2, expected *x3", ""},
    {OP_DROPOUT,
     "3x4 i5x3",
     {0},
     "dropout: rows \"in1\" of shape 5x3 does not divide",
     "x \"in0\" of shape 3x4"},
    {OP_DROPOUT, "134217729", {0}, "dropout: x \"in0\" of shape 134217729", "at most 134217728 elements"},
    {OP_LOG_SOFTMAX, "()", {0}, "log-softmax: x \"in0\" of shape scalar, expected *", ""},
    {OP_EMBEDDING, "i() 4x5", {0}, "embedding: indices \"in0\" of shape scalar", "rank 1..3"},
    {OP_EMBEDDING, "i1x1x1x1 4x5", {0}, "embedding: indices \"in0\" of shape 1x1x1x1", "rank 1..3"},
    {OP_EMBEDDING, "i3 5", {0}, "embedding: weight \"in1\" of shape 5, expected *x*", ""},
    {OP_LSTM_LAYER, "3x4 - - 8x4 8x2", {0}, "lstm: x \"in0\" of shape 3x4, expected *x*x*", ""},
    {OP_LSTM_LAYER, "2x3x4 - - 8x4 7x2", {0}, "weight_hh \"in4\" of shape 7x2", "four times"},
    {OP_LSTM_LAYER,
     "2x3x4 - - 8x5 8x2",
     {0},
     "weight_ih \"in3\" of shape 8x5, expected 8x4",
     "to fit x \"in0\" of shape 2x3x4"},
    {OP_LSTM_LAYER,
     "2x3x4 - - 9x4 8x2",
     {0},
     "weight_ih \"in3\" of shape 9x4, expected 8x4",
     "to fit weight_hh \"in4\" of shape 8x2"},
    {OP_LSTM_LAYER, "2x3x4 2x2 - 8x4 8x2", {0}, "h0 \"in1\" of shape 2x2, expected 3x2", "x \"in0\""},
    {OP_LSTM_LAYER, "2x3x4 - 3x4 8x4 8x2", {0}, "c0 \"in2\" of shape 3x4, expected 3x2", "x \"in0\""},
    {OP_LSTM_LAYER, "2x3x4 - - 8x4 8x2 8", {0}, "bias_ih \"in5\" of shape 8 comes without bias_hh", "none"},
    {OP_LSTM_LAYER, "2x3x4 - - 8x4 8x2 - 8", {0}, "bias_hh \"in6\" of shape 8 comes without bias_ih", "none"},
    {OP_LSTM_LAYER,
     "2x3x4 - - 8x4 8x2 8 2",
     {0},
     "bias_hh \"in6\" of shape 2, expected 8",
     "weight_hh \"in4\" of shape 8x2"},
    {OP_MSE, "3x4 12", {0}, "target \"in1\" of shape 12, expected 3x4", "x \"in0\" of shape 3x4"},
    {OP_CROSS_ENTROPY, "3 i3", {0}, "cross entropy: logits \"in0\" of shape 3, expected *x* or *x*x*", ""},
    {OP_CROSS_ENTROPY, "3x4 i4", {0}, "target \"in1\" of shape 4, expected 3", "logits \"in0\" of shape 3x4"},
    {OP_CROSS_ENTROPY, "3x4x5 i3x4", {0}, "target \"in1\" of shape 3x4, expected 3x5", "of shape 3x4x5"},
    {OP_LOG_PROBABILITY, "3x4 i4", {0}, "actions \"in1\" of shape 4, expected 3", "of shape 3x4"},
    {OP_LOG_PROBABILITY, "3 i3", {0}, "log-probabilities \"in0\" of shape 3, expected *x*", ""},
    {OP_SUM, "3x4 4x3", {0}, "sum: coefficient \"in1\" of shape 4x3, expected 3x4", "x \"in0\" of shape 3x4"},

    /* attributes */
    {OP_CONV2D,
     "1x3x4x4 2x3x3x3",
     {.stride = {0, 1}},
     "conv2d: expected a stride of 1..32767, got 0x1",
     "x \"in0\" of shape 1x3x4x4"},
    {OP_CONV2D, "1x3x4x4 2x3x3x3", {.stride = {1, 32768}}, "stride of 1..32767, got 1x32768", "\"in0\""},
    {OP_CONV2D,
     "1x3x4x4 2x3x3x3",
     {.stride = {1, 1}, .padding = {0, UINT32_MAX}},
     "padding of 0..32767",
     "\"in0\""},
    {OP_CONV2D, "1x1x1x40000 1x1x1x40000", {.stride = {1, 1}}, "kernel of 1..32767, got 1x40000", "\"in0\""},
    {OP_MAX_POOL,
     "1x1x4x4",
     {.stride = {1, 1}},
     "max pool: expected a kernel of 1..32767, got 0x0",
     "\"in0\""},
    {OP_MAX_POOL,
     "1x1x4x4",
     {.kernel = {2, 2}, .stride = {1, 0}},
     "expected a stride of 1..32767, got 1x0",
     "\"in0\" of shape 1x1x4x4"},
    {OP_MAX_POOL,
     "1x1x4x4",
     {.kernel = {3, 2}, .stride = {1, 1}, .padding = {1, 2}},
     "at most half of the kernel of 3x2, got 1x2",
     "x \"in0\" of shape 1x1x4x4"},
    {OP_AVG_POOL,
     "1x1x4x4",
     {.kernel = {3, 3}, .stride = {1, 1}, .padding = {2, 0}},
     "at most half of the kernel of 3x3, got 2x0",
     "x \"in0\" of shape 1x1x4x4"},
    {OP_BATCH_NORM,
     "1x3x1x1 3 3",
     {.training = true, .epsilon = 1},
     "x \"in0\" of shape 1x3x1x1 has one value",
     "expected more than one in training"},
    {OP_BATCH_NORM, "2x3x1x1 3 3", {.training = true}, "expected a finite epsilon > 0, got 0", "\"in0\""},
    {OP_BATCH_NORM, "2x3x1x1 3 3", {.training = true, .epsilon = NAN}, "epsilon > 0, got nan", "\"in0\""},
    {OP_BATCH_NORM,
     "2x3x1x1 3 3",
     {.training = true, .epsilon = INFINITY},
     "epsilon > 0, got inf",
     "\"in0\""},
    {OP_BATCH_NORM,
     "2x3x1x1 3 3 3",
     {.epsilon = 1},
     "there is no running variance, expected one of shape 3",
     "x \"in0\" of shape 2x3x1x1"},
    {OP_BATCH_NORM,
     "2x3x1x1 3 3",
     {.epsilon = 1},
     "there is no running mean, expected one of shape 3",
     "\"in0\""},
    {OP_DROPOUT, "3x4", {.dropout = 1}, "dropout: expected 0 <= p < 1, got 1", "x \"in0\" of shape 3x4"},
    {OP_DROPOUT, "3x4", {.dropout = -DBL_MIN}, "dropout: expected 0 <= p < 1, got -2", "\"in0\""},
    {OP_DROPOUT, "3x4", {.dropout = NAN}, "dropout: expected 0 <= p < 1, got nan", "\"in0\""},
    {OP_COUNT, "3x4", {0}, "there is no operation 16", ""},
    {(enum op) - 1, "3x4", {0}, "there is no operation -1", ""},
};

START_TEST(a_bad_call_is_refused_by_name)
{
    struct described d = {0};
    op_fixture_describe(&d, bad[_i].op, bad[_i].shapes, false);
    d.call.attributes = bad[_i].attributes;
    op_fixture_refused(op_forward(op_fixture.backend, &d.call, &op_fixture.error), bad[_i].first,
                       bad[_i].second);
    ck_assert_int_eq(op_forward(op_fixture.backend, &d.call, NULL), STATUS_INVALID);
    for (int i = 0; i < OP_OUTPUTS_MAX; i++)
        ck_assert_ptr_null(d.out[i].data);
}
END_TEST

/* A call of OP_LINEAR, sound but for what a test does to it. */
static void describe_linear(struct described *d)
{
    memset(d, 0, sizeof *d);
    op_fixture_describe(d, OP_LINEAR, "3x5 4x5 4", true);
}

static void forward_refused(struct described *d, const char *first, const char *second)
{
    op_fixture_refused(op_forward(op_fixture.backend, &d->call, &op_fixture.error), first, second);
}

static void backward_refused(struct described *d, const char *first, const char *second)
{
    op_fixture_refused(op_backward(op_fixture.backend, &d->call, &op_fixture.error), first, second);
}

START_TEST(memory_that_is_not_there_or_too_small_is_refused)
{
    struct described d;
    describe_linear(&d);
    d.in[1].data = NULL;
    forward_refused(&d, "weight \"in1\" of shape 4x5 has no memory", "linear");
    describe_linear(&d);
    d.in[1].bytes = 159;
    forward_refused(&d, "weight \"in1\" of shape 4x5 has 159 bytes of memory, expected 160", "linear");
    describe_linear(&d);
    d.in[0].dtype = (enum dtype)9;
    forward_refused(&d, "x \"in0\" of shape 3x5 has the unknown dtype 9", "linear");
    describe_linear(&d);
    d.in[0].shape.rank = 5;
    forward_refused(&d, "x \"in0\" of shape rank 5", "at most rank 4");
    describe_linear(&d);
    d.call.out[0] = NULL;
    forward_refused(&d, "linear: there is no y", "");
}
END_TEST

START_TEST(an_output_with_memory_must_be_described_as_what_is_written)
{
    struct described d;
    describe_linear(&d);
    d.out[0] = op_fixture_doubles(SHAPE2(3, 5), "target", NULL);
    forward_refused(&d, "y \"target\" of shape 3x5, expected 3x4", "linear");
    d.out[0] = op_fixture_integers(SHAPE2(3, 4), "target", NULL);
    forward_refused(&d, "y \"target\" of shape 3x4 is int32, expected float64", "linear");
    d.out[0] = op_fixture_doubles(SHAPE2(3, 4), "target", NULL);
    d.out[0].bytes -= 1;
    forward_refused(&d, "y \"target\" of shape 3x4 has 95 bytes of memory, expected 96", "linear");
}
END_TEST

START_TEST(a_bad_backward_is_refused_by_name)
{
    struct described d;
    describe_linear(&d);
    op_fixture_forward(&d.call);
    d.call.din[0] = &d.din[0];
    backward_refused(&d, "linear: there is no gradient of any output", "");
    d.call.dout[0] = &d.dout[0];
    d.dout[0] = op_fixture_doubles(SHAPE2(4, 3), "dy", NULL);
    backward_refused(&d, "gradient of y \"dy\" of shape 4x3, expected 3x4", "linear");
    d.dout[0] = op_fixture_integers(SHAPE2(3, 4), "dy", NULL);
    backward_refused(&d, "gradient of y \"dy\" of shape 3x4 is int32", "expected float64");
    d.dout[0] = (struct tensor){.shape = SHAPE2(3, 4), .dtype = DTYPE_F64, .name = "dy"};
    backward_refused(&d, "gradient of y \"dy\" of shape 3x4 has no memory", "linear");
    d.dout[0] = op_fixture_doubles(SHAPE2(3, 4), "dy", NULL);
    d.din[0] = op_fixture_doubles(SHAPE2(5, 3), "dx", NULL);
    backward_refused(&d, "gradient for x \"dx\" of shape 5x3, expected 3x5", "linear");
    d.din[0] = (struct tensor){0};
    d.call.din[5] = &d.din[5];
    backward_refused(&d, "linear: there is no gradient for an input that is not there", "");
    d.call.din[5] = NULL;
    d.call.dout[1] = &d.dout[0];
    backward_refused(&d, "linear: an output that is not there takes no gradient", "");
    d.call.dout[1] = NULL;
    d.call.keep = false;
    backward_refused(&d, "linear: its forward kept nothing for a backward", "");
    d.call.keep = true;
    op_fixture_backward(&d.call);
}
END_TEST

START_TEST(what_has_no_gradient_is_refused_by_name)
{
    struct described d = {0};
    op_fixture_describe(&d, OP_BATCH_NORM, "2x3x1x1 3 3 3 3", true);
    d.call.attributes.epsilon = 1;
    op_fixture_forward(&d.call);
    ck_assert_ptr_null(d.out[1].data);
    backward_refused(&d, "batch norm has no backward outside of training", "");
    d.call.attributes.training = true;
    op_fixture_forward(&d.call);
    d.dout[1] = op_fixture_doubles(SHAPE1(3), "dmean", NULL);
    d.call.dout[1] = &d.dout[1];
    backward_refused(&d, "batch norm: batch mean takes no gradient", "");
    d.call.dout[1] = NULL;
    d.dout[0] = op_fixture_doubles(SHAPE4(2, 3, 1, 1), "dy", NULL);
    d.call.dout[0] = &d.dout[0];
    d.call.din[3] = &d.din[3];
    backward_refused(&d, "batch norm: there is no gradient for running mean", "");
    memset(&d, 0, sizeof d);
    describe_linear(&d);
    d.call.in[2] = NULL;
    op_fixture_forward(&d.call);
    d.dout[0] = op_fixture_doubles(SHAPE2(3, 4), "dy", NULL);
    d.call.dout[0] = &d.dout[0];
    d.call.din[2] = &d.din[2];
    backward_refused(&d, "linear: there is no gradient for bias", "");
}
END_TEST

START_TEST(an_operation_that_a_backend_lacks_is_unavailable)
{
    struct backend_ops poor = ref_ops;
    struct backend backend = *op_fixture.backend;
    struct described d;
    poor.forward[OP_LINEAR] = NULL;
    backend.ops = &poor;
    describe_linear(&d);
    ck_assert_int_eq(op_forward(&backend, &d.call, &op_fixture.error), STATUS_UNAVAILABLE);
    ck_assert_str_eq(op_fixture.error.text, "the ref backend has no linear");
    poor = ref_ops;
    poor.backward[OP_LINEAR] = NULL;
    op_fixture_forward(&d.call);
    d.dout[0] = op_fixture_doubles(SHAPE2(3, 4), "dy", NULL);
    d.call.dout[0] = &d.dout[0];
    ck_assert_int_eq(op_backward(&backend, &d.call, &op_fixture.error), STATUS_UNAVAILABLE);
}
END_TEST

/* The tape may have released what a rule says that no backward reads. */
START_TEST(a_backward_asks_only_for_what_its_rule_says_it_reads)
{
    struct described d = {0};
    op_fixture_describe(&d, OP_SUM, "3x4", true);
    d.call.attributes.scale = 2;
    op_fixture_forward(&d.call);
    d.in[0].data = NULL;
    d.dout[0] = op_fixture_doubles(SHAPE0(), "dy", NULL);
    d.call.dout[0] = &d.dout[0];
    d.call.din[0] = &d.din[0];
    op_fixture_backward(&d.call);
    memset(&d, 0, sizeof d);
    op_fixture_describe(&d, OP_MSE, "3x4 3x4", true);
    op_fixture_forward(&d.call);
    d.in[1].data = NULL;
    d.dout[0] = op_fixture_doubles(SHAPE0(), "dy", NULL);
    d.call.dout[0] = &d.dout[0];
    backward_refused(&d, "target \"in1\" of shape 3x4 has no memory", "mean-squared error");
}
END_TEST

START_TEST(every_rule_is_whole)
{
    const struct op_rule *rule = op_rule((enum op)_i);
    const uint32_t inputs = (1u << rule->inputs) - 1, outputs = (1u << rule->outputs) - 1;
    ck_assert_ptr_nonnull(rule->name);
    ck_assert(rule->inputs >= 1 && rule->inputs <= OP_INPUTS_MAX);
    ck_assert(rule->outputs >= 1 && rule->outputs <= OP_OUTPUTS_MAX);
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
        ck_assert_int_eq(rule->input[i] != NULL, i < rule->inputs);
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX; i++)
        ck_assert_int_eq(rule->output[i] != NULL, i < rule->outputs);
    ck_assert_uint_eq((rule->optional | rule->integers | rule->gradient | rule->reads_in) & ~inputs, 0);
    ck_assert_uint_eq(rule->reads_out & ~outputs, 0);
    ck_assert_uint_eq(rule->gradient & rule->integers, 0);
    ck_assert_int_eq(ref_ops.backward[_i] != NULL, rule->gradient != 0);
    ck_assert_ptr_nonnull(ref_ops.forward[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels");
    TCase *calls = tcase_create("calls");
    tcase_add_checked_fixture(calls, op_fixture_open, op_fixture_close);
    tcase_add_loop_test(calls, every_rule_is_whole, 0, OP_COUNT);
    tcase_add_loop_test(calls, a_bad_call_is_refused_by_name, 0, sizeof bad / sizeof *bad);
    tcase_add_test(calls, memory_that_is_not_there_or_too_small_is_refused);
    tcase_add_test(calls, an_output_with_memory_must_be_described_as_what_is_written);
    tcase_add_test(calls, a_bad_backward_is_refused_by_name);
    tcase_add_test(calls, what_has_no_gradient_is_refused_by_name);
    tcase_add_test(calls, an_operation_that_a_backend_lacks_is_unavailable);
    tcase_add_test(calls, a_backward_asks_only_for_what_its_rule_says_it_reads);
    suite_add_tcase(suite, calls);
    return suite_run(suite);
}
