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
    {OP_LSTM_LAYER, "2x3x4 3x2 3x2 8x4", {0}, "lstm: there is no weight_hh", ""},
    {OP_LINEAR, "i3x5 4x5", {0}, "x \"in0\" of shape 3x5 is int32", "expected float64"},
    {OP_EMBEDDING, "3 4x5", {0}, "indices \"in0\" of shape 3 is float64", "expected int32"},
    {OP_CROSS_ENTROPY, "3x4 3", {0}, "target \"in1\" of shape 3 is float64", "expected int32"},

    /* products that overflow */
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
     "1000x1000x1 1000x1000 1000x1000 4000x1 4000x1000 4000 4000",
     {0},
     "lstm: gates of shape 1000x1000x4000",
     "x \"in0\" of shape 1000x1000x1"},

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
    {OP_ADD, "3x4 4x3", {0}, "add: b \"in1\" of shape 4x3, expected 3x4", "a \"in0\" of shape 3x4"},
    {OP_ADD, "3x4 3x4x1", {0}, "add: b \"in1\" of shape 3x4x1, expected 3x4", "a \"in0\" of shape 3x4"},
    {OP_RESHAPE, "3x4", {.shape = {2, {5, 2}}}, "reshape: x \"in0\" of shape 3x4 cannot become 5x2", ""},
    {OP_RESHAPE, "3x4", {.shape = {2, {0, 2}}}, "reshape: x \"in0\" of shape 3x4 cannot become 0x2", ""},
    {OP_RESHAPE, "3x4", {.shape = {9, {0}}}, "reshape: x \"in0\" of shape 3x4 cannot become rank 9", ""},
    {OP_DROPOUT, "3x4 i3x2", {0}, "dropout: rows \"in1\" of shape 3x2, expected *x3", ""},
    {OP_DROPOUT, "134217729", {0}, "dropout: x \"in0\" of shape 134217729", "at most 134217728 elements"},
    {OP_LOG_SOFTMAX, "()", {0}, "log-softmax: x \"in0\" of shape scalar, expected *", ""},
    {OP_EMBEDDING, "i3 5", {0}, "embedding: weight \"in1\" of shape 5, expected *x*", ""},
    {OP_LSTM_LAYER, "3x4 3x2 3x2 8x4 8x2", {0}, "lstm: x \"in0\" of shape 3x4, expected *x*x*", ""},
    {OP_LSTM_LAYER,
     "2x3x4 3x2 3x2 8x5 8x2 8 8",
     {0},
     "weight_ih \"in3\" of shape 8x5, expected *x4",
     "to fit x \"in0\" of shape 2x3x4"},
    {OP_LSTM_LAYER,
     "2x3x4 3x2 3x2 9x4 8x2",
     {0},
     "weight_hh \"in4\" of shape 8x2, expected 9x2",
     "to fit weight_ih \"in3\" of shape 9x4"},
    {OP_LSTM_LAYER, "2x3x4 2x2 3x2 8x4 8x2", {0}, "h0 \"in1\" of shape 2x2, expected 3x*", "x \"in0\""},
    {OP_LSTM_LAYER, "2x3x4 3x2 3x4 8x4 8x2", {0}, "c0 \"in2\" of shape 3x4, expected 3x2", "h0 \"in1\""},
    {OP_LSTM_LAYER,
     "2x3x4 3x2 3x2 8x4 8x2 8 2",
     {0},
     "bias_hh \"in6\" of shape 2, expected 8",
     "weight_ih \"in3\" of shape 8x4"},
    {OP_GRU_LAYER, "2x3x4 2x2 6x4 6x2 6 6", {0}, "gru: h0 \"in1\" of shape 2x2, expected 3x*", "x \"in0\""},
    {OP_GRU_LAYER,
     "2x3x4 3x2 6x4 6x2 6 2",
     {0},
     "bias_hh \"in5\" of shape 2, expected 6",
     "weight_ih \"in2\" of shape 6x4"},
    {OP_GRU_LAYER,
     "1000x1000x1 1000x1000 3000x1 3000x1000 3000 3000",
     {0},
     "gru: gates of shape 1000x1000x3000",
     "x \"in0\" of shape 1000x1000x1"},
    {OP_MSE, "3x4 12", {0}, "target \"in1\" of shape 12, expected 3x4", "x \"in0\" of shape 3x4"},
    {OP_CROSS_ENTROPY, "3 i3", {0}, "cross entropy: logits \"in0\" of shape 3, expected *x*", ""},
    {OP_CROSS_ENTROPY, "3x4 i4", {0}, "target \"in1\" of shape 4, expected 3", "logits \"in0\" of shape 3x4"},
    {OP_CROSS_ENTROPY, "3x4x5 i3x4", {0}, "target \"in1\" of shape 3x4, expected 3x5", "of shape 3x4x5"},
    {OP_LOG_PROBABILITY, "3x4 i4", {0}, "actions \"in1\" of shape 4, expected 3", "of shape 3x4"},
    {OP_LOG_PROBABILITY, "3 i3", {0}, "log-probabilities \"in0\" of shape 3, expected *x*", ""},
    {OP_SUM, "3x4 4x3", {0}, "sum: coefficient \"in1\" of shape 4x3, expected 3x4", "x \"in0\" of shape 3x4"},

};

START_TEST(a_bad_call_is_refused_by_name)
{
    struct described d = {0};
    op_fixture_describe(&d, bad[_i].op, bad[_i].shapes, false);
    d.call.attributes = bad[_i].attributes;
    op_fixture_refused(op_forward(op_fixture.backend, &d.call, &op_fixture.error), bad[_i].first,
                       bad[_i].second);
    if (bad[_i].second[0] == '\0') /* no other input is to blame */
        ck_assert_ptr_null(strstr(op_fixture.error.text, "to fit"));
    ck_assert_int_eq(op_forward(op_fixture.backend, &d.call, NULL), STATUS_INVALID);
    for (int i = 0; i < OP_OUTPUTS_MAX; i++)
        ck_assert_ptr_null(d.out[i].data);
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
}
END_TEST

START_TEST(every_rule_is_whole)
{
    const struct op_rule *rule = op_rule((enum op)_i);
    ck_assert_ptr_nonnull(rule->name);
    ck_assert(rule->inputs >= 1 && rule->inputs <= OP_INPUTS_MAX);
    ck_assert(rule->outputs >= 1 && rule->outputs <= OP_OUTPUTS_MAX);
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
        ck_assert_int_eq(rule->in[i].name != NULL, i < rule->inputs);
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX; i++)
        ck_assert_int_eq(rule->out[i].name != NULL, i < rule->outputs);
    for (uint32_t i = 0; i < rule->inputs; i++)
        ck_assert((rule->in[i].flags & (OP_GRADIENT | OP_INTEGERS)) != (OP_GRADIENT | OP_INTEGERS));
    ck_assert_ptr_nonnull(ref_ops.backward[_i]);
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
    tcase_add_test(calls, a_backward_asks_only_for_what_its_rule_says_it_reads);
    suite_add_tcase(suite, calls);
    return suite_run(suite);
}
