/* An operation that runs out of memory leaves nothing taken, and a tensor that cannot be is refused by name.
 */
#include "kernels/kernels.h"
#include "test/kernels/op_fixture.h"
#include "test/workplace.h"

#include <check.h>

/* ---- running out of memory ---- */

static const struct {
    enum op op;
    const char *shapes;
    struct op_attributes attributes;
} good[] = {
    {OP_LINEAR, "3x5 4x5 4", {0}},
    {OP_CONV2D, "2x3x4x4 2x3x3x3", {.stride = {1, 1}}},
    {OP_BATCH_NORM, "2x3x2x2 3 3", {.relu = true, .training = true, .epsilon = 1e-5}},
    {OP_MAX_POOL, "2x3x4x4", {.kernel = {2, 2}, .stride = {2, 2}}},
    {OP_AVG_POOL, "2x3x4x4", {.kernel = {2, 2}, .stride = {2, 2}}},
    {OP_RELU, "3", {0}},
    {OP_TANH, "3", {0}},
    {OP_ADD, "3 3", {.relu = true}},
    {OP_RESHAPE, "3x4", {.shape = {2, {2, 6}}}},
    {OP_DROPOUT, "3x4", {.dropout = 0.5}},
    {OP_LOG_SOFTMAX, "3x4", {0}},
    {OP_EMBEDDING, "i3 4x5", {0}},
    {OP_LSTM_LAYER, "2x3x4 3x2 3x2 8x4 8x2 8 8", {0}},
    {OP_MSE, "3 3", {0}},
    {OP_CROSS_ENTROPY, "3x4 i3", {0}},
    {OP_LOG_PROBABILITY, "3x4 i3", {0}},
    {OP_SUM, "3", {.scale = 1}},
    {OP_GRU_LAYER, "2x3x4 3x2 6x4 6x2 6 6", {0}},
};

/* A source that gives so many chunks and no more. */
static int chunks_left;

static void *scarce_take(void *context, size_t bytes)
{
    return chunks_left-- > 0 ? arena_host.take(context, bytes) : NULL;
}

/* Runs forward or backward with 0, 1, 2, … chunks until that is enough; how many it needed. */
static int run_scarce(struct described *d, bool backward, struct tensor *const made[], int count)
{
    const size_t before = arena_in_use(d->call.arena);
    for (int chunks = 0; chunks < 20; chunks++) {
        chunks_left = chunks;
        enum status status = backward ? op_backward(op_fixture.backend, &d->call, &op_fixture.error)
                                      : op_forward(op_fixture.backend, &d->call, &op_fixture.error);
        if (status == STATUS_OK)
            return chunks;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(op_fixture.error.status, STATUS_NO_MEMORY);
        ck_assert_uint_eq(arena_in_use(d->call.arena), before);
        for (int i = 0; i < count; i++)
            if (made[i] != NULL)
                made[i]->data = NULL;
    }
    ck_abort_msg("%s: 20 chunks are not enough", op_rule(d->call.op)->name);
}

START_TEST(what_fails_for_want_of_memory_leaves_nothing_taken)
{
    const struct op_rule *rule = op_rule(good[_i].op);
    struct arena_source source = arena_host;
    struct described d = {0};
    source.take = scarce_take;
    op_fixture_describe(&d, good[_i].op, good[_i].shapes, true);
    d.call.attributes = good[_i].attributes;
    chunks_left = 1;
    ck_assert_int_eq(arena_new(&d.call.arena, &source, NULL), STATUS_OK);
    ck_assert_ptr_nonnull(arena_take(d.call.arena, 1)); // what was there before
    ck_assert_int_ge(run_scarce(&d, false, d.call.out, OP_OUTPUTS_MAX), 1);
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX; i++)
        if (i < rule->outputs && (i == 0 || d.call.op == OP_LSTM_LAYER || d.call.op == OP_GRU_LAYER))
            d.dout[i] = op_fixture_doubles(d.out[i].shape, "dout", NULL), d.call.dout[i] = &d.dout[i];
    for (uint32_t i = 0; i < rule->inputs; i++)
        if (rule->in[i].flags & OP_GRADIENT && d.call.in[i] != NULL)
            d.call.din[i] = &d.din[i];
    ck_assert_int_ge(run_scarce(&d, true, d.call.din, OP_INPUTS_MAX), 1);
    for (int i = 0; i < OP_INPUTS_MAX; i++)
        ck_assert(d.call.din[i] == NULL || shape_equal(&d.din[i].shape, &d.in[i].shape));
    arena_free(d.call.arena);
}
END_TEST

/* ---- memory and small things ---- */

START_TEST(a_new_tensor_is_refused_by_name)
{
    struct tensor tensor = {.name = "as it was"};
    struct error *error = &op_fixture.error;
    op_fixture_refused(tensor_new(&tensor, op_fixture.arena, SHAPE2(0, 5), DTYPE_F32, "fc", error),
                       "tensor \"fc\" of shape 0x5", "no size to be 0");
    op_fixture_refused(
        tensor_new(&tensor, op_fixture.arena, SHAPE2(1 << 16, 1 << 16), DTYPE_F32, "fc", error),
        "tensor \"fc\" of shape 65536x65536", "at most 2147483647 elements");
    op_fixture_refused(tensor_new(&tensor, op_fixture.arena, SHAPE1(1), (enum dtype)0, "fc", error),
                       "tensor \"fc\" of shape 1", "unknown dtype 0");
    struct arena *scarce = NULL;
    struct arena_source source = arena_host;
    source.take = scarce_take;
    chunks_left = 0;
    ck_assert_int_eq(arena_new(&scarce, &source, NULL), STATUS_OK);
    ck_assert_int_eq(tensor_new(&tensor, scarce, SHAPE2(3, 5), DTYPE_F32, "fc", error), STATUS_NO_MEMORY);
    ck_assert_str_eq(error->text, "no memory for the 60 bytes of tensor \"fc\" of shape 3x5");
    arena_free(scarce);
    ck_assert_str_eq(tensor.name, "as it was");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels, memory");
    TCase *memory = tcase_create("memory");
    tcase_add_checked_fixture(memory, op_fixture_open, op_fixture_close);
    tcase_add_loop_test(memory, what_fails_for_want_of_memory_leaves_nothing_taken, 0,
                        sizeof good / sizeof *good);
    tcase_add_test(memory, a_new_tensor_is_refused_by_name);
    suite_add_tcase(suite, memory);
    return suite_run(suite);
}
