/* The checked entry points where memory is concerned: an operation that runs out of it leaves nothing taken;
 * tensors, copies and optimizers refuse what does not fit, by name. */
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
    {OP_LINEAR, "3x5 4x5 4", {.relu = true}},
    {OP_CONV2D, "2x3x4x4 2x3x3x3 2", {.relu = true, .stride = {1, 1}}},
    {OP_BATCH_NORM, "2x3x2x2 3 3", {.relu = true, .training = true, .epsilon = 1e-5}},
    {OP_MAX_POOL, "2x3x4x4", {.kernel = {2, 2}, .stride = {2, 2}}},
    {OP_AVG_POOL, "2x3x4x4", {.kernel = {2, 2}, .stride = {2, 2}}},
    {OP_RELU, "3", {0}},
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
};

/* A source that gives so many chunks and no more. */
static int chunks_left;

static void *scarce_take(void *context, size_t bytes)
{
    return chunks_left-- > 0 ? arena_host.take(context, bytes) : NULL;
}

static size_t in_use(const struct arena *arena)
{
    struct arena_stats stats;
    arena_stats(arena, &stats);
    return stats.in_use;
}

/* Runs forward or backward with 0, 1, 2, … chunks until that is enough; how many it needed. */
static int run_scarce(struct described *d, bool backward, struct tensor *const made[], int count)
{
    const size_t before = in_use(d->call.arena);
    for (int chunks = 0; chunks < 20; chunks++) {
        chunks_left = chunks;
        enum status status = backward ? op_backward(op_fixture.backend, &d->call, &op_fixture.error)
                                      : op_forward(op_fixture.backend, &d->call, &op_fixture.error);
        if (status == STATUS_OK)
            return chunks;
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(op_fixture.error.status, STATUS_NO_MEMORY);
        ck_assert_uint_eq(in_use(d->call.arena), before);
        for (int i = 0; i < count; i++)
            ck_assert(made[i] == NULL || (made[i]->data == NULL && made[i]->bytes == 0));
        for (int i = 0; i < OP_SAVED_MAX && !backward; i++)
            ck_assert_ptr_null(d->call.saved[i].data);
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
        if (i < rule->outputs && (i == 0 || d.call.op == OP_LSTM_LAYER))
            d.dout[i] = op_fixture_doubles(d.out[i].shape, "dout", NULL), d.call.dout[i] = &d.dout[i];
    for (uint32_t i = 0; i < rule->inputs; i++)
        if (rule->gradient >> i & 1 && d.call.in[i] != NULL)
            d.call.din[i] = &d.din[i];
    if (rule->gradient != 0)
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

START_TEST(copies_between_kinds_are_refused)
{
    struct tensor a = op_fixture_doubles(SHAPE1(3), "a", NULL), i = op_fixture_integers(SHAPE1(3), "i", NULL);
    struct backend *ref = op_fixture.backend;
    struct error *error = &op_fixture.error;
    double values[3] = {0};
    op_fixture_refused(backend_upload(ref, &a, DTYPE_I32, values, error), "\"a\" of shape 3 is float64",
                       "host's values are int32");
    op_fixture_refused(backend_upload(ref, &i, DTYPE_F32, values, error), "\"i\" of shape 3 is int32",
                       "host's values are float32");
    op_fixture_refused(backend_download(ref, &i, DTYPE_F64, values, error), "\"i\" of shape 3 is int32",
                       "host's values are float64");
    op_fixture_refused(backend_download(ref, &a, (enum dtype)9, values, error), "\"a\" of shape 3 is float64",
                       "unknown dtype");
    a.data = NULL;
    op_fixture_refused(backend_upload(ref, &a, DTYPE_F64, values, error), "\"a\" of shape 3 has no memory",
                       "upload");
}
END_TEST

START_TEST(small_things_are_refused_by_name)
{
    struct tensor a = op_fixture_doubles(SHAPE1(3), "a", NULL), b = op_fixture_doubles(SHAPE1(4), "b", NULL);
    struct tensor i = op_fixture_integers(SHAPE1(3), "i", NULL);
    struct backend *ref = op_fixture.backend;
    struct error *error = &op_fixture.error;
    double sum;
    size_t index;
    op_fixture_refused(backend_fill(ref, &i, 0, error), "fill: tensor \"i\" of shape 3 is int32", "float64");
    op_fixture_refused(backend_scale(ref, &i, 2, error), "scale: tensor \"i\" of shape 3 is int32",
                       "float64");
    op_fixture_refused(backend_square_sum(ref, &i, &sum, error), "\"i\" of shape 3 is int32", "float64");
    op_fixture_refused(backend_first_not_finite(ref, &i, &index, error), "\"i\" of shape 3 is int32",
                       "float64");
    op_fixture_refused(backend_accumulate(ref, op_fixture.arena, &a, &b, error),
                       "\"b\" of shape 4 does not fit", "\"a\" of shape 3");
}
END_TEST

START_TEST(optimizers_refuse_what_is_not_parallel)
{
    struct tensor p = op_fixture_doubles(SHAPE1(6), "p", NULL), g = op_fixture_doubles(SHAPE1(6), "g", NULL);
    struct tensor flat = op_fixture_doubles(SHAPE2(2, 3), "flat", NULL),
                  v = op_fixture_doubles(SHAPE1(5), "v", NULL);
    struct backend *ref = op_fixture.backend;
    struct error *error = &op_fixture.error;
    const struct sgd_settings heavy = {.lr = 1, .momentum = 0.5}, plain = {.lr = 1};
    ck_assert_int_eq(backend_sgd(ref, &heavy, 1, &p, &g, &flat, error), STATUS_OK);
    op_fixture_refused(backend_sgd(ref, &heavy, 1, &p, &g, &v, error),
                       "momentum \"v\" of shape 5 does not fit", "parameters \"p\" of shape 6");
    op_fixture_refused(backend_sgd(ref, &plain, 1, &p, &v, NULL, error),
                       "gradient \"v\" of shape 5 does not fit", "parameters \"p\" of shape 6");
    op_fixture_refused(backend_sgd(ref, &heavy, 1, &p, &g, NULL, error), "a momentum of 0.5 needs a tensor",
                       "");
    op_fixture_refused(backend_sgd(ref, &plain, 1, &p, &g, &flat, error), "a momentum of 0 takes no tensor",
                       "");
    op_fixture_refused(backend_adam(ref, &ADAM_DEFAULTS, 1, &p, &g, &flat, &v, error),
                       "second moment \"v\" of shape 5 does not fit", "parameters \"p\" of shape 6");
    op_fixture_refused(backend_adam(ref, &ADAM_DEFAULTS, 1, &p, &g, &v, &flat, error),
                       "first moment \"v\" of shape 5 does not fit", "parameters \"p\" of shape 6");
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
    tcase_add_test(memory, copies_between_kinds_are_refused);
    tcase_add_test(memory, small_things_are_refused_by_name);
    tcase_add_test(memory, optimizers_refuse_what_is_not_parallel);
    suite_add_tcase(suite, memory);
    return suite_run(suite);
}
