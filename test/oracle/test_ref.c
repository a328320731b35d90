/* The oracle against PyTorch in float64 (test/golden/ref.txt, by ref.py beside it), and by hand where
 * PyTorch has no say: ties, zeros, indices, memory. */
#include "kernels/base/rng.h"
#include "test/kernels/op_fixture.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the recorded cases ---- */

static FILE *golden;

static void golden_open(void)
{
    op_fixture_open();
    golden = fopen("test/golden/ref.txt", "r");
    ck_assert_msg(golden != NULL, "test/golden/ref.txt: cannot be opened");
    ck_assert_int_ne(fscanf(golden, "#%*[^\n]\n"), EOF);
}

static void golden_close(void)
{
    fclose(golden);
    op_fixture_close();
}

/* One case of the file: the call, its tensors, and what is expected of them (in the arena; NULL: nothing). */
struct recorded {
    unsigned number;
    uint64_t state; // of the generator
    struct op_call call;
    struct tensor in[OP_INPUTS_MAX], out[OP_OUTPUTS_MAX], dout[OP_OUTPUTS_MAX], din[OP_INPUTS_MAX];
    struct shape shape[OP_OUTPUTS_MAX];
    double *expected[OP_OUTPUTS_MAX], *expected_din[OP_INPUTS_MAX];
};

static struct shape read_shape(void)
{
    struct shape shape = {0};
    ck_assert_int_eq(fscanf(golden, "%u", &shape.rank), 1);
    ck_assert_uint_le(shape.rank, SHAPE_RANK_MAX);
    for (uint32_t i = 0; i < shape.rank; i++)
        ck_assert_int_eq(fscanf(golden, "%u", &shape.size[i]), 1);
    return shape;
}

static double *read_values(size_t count)
{
    double *values = arena_take(op_fixture.arena, count * sizeof *values);
    ck_assert_ptr_nonnull(values);
    for (size_t i = 0; i < count; i++)
        ck_assert_int_eq(fscanf(golden, "%lf", &values[i]), 1);
    return values;
}

static void read_attributes(struct op_call *call)
{
    struct op_attributes *set = &call->attributes;
    int op, relu, training;
    ck_assert_int_eq(fscanf(golden, "%d %d %d %lf", &op, &relu, &training, &set->epsilon), 4);
    ck_assert_int_eq(fscanf(golden, "%u %u %u %u %u %u", &set->kernel[0], &set->kernel[1], &set->stride[0],
                            &set->stride[1], &set->padding[0], &set->padding[1]),
                     6);
    ck_assert_int_eq(fscanf(golden, "%lf %lu %u %u %u %lf", &set->dropout, &set->draw.seed,
                            &set->draw.word[0], &set->draw.word[1], &set->draw.word[2], &set->scale),
                     6);
    ck_assert_int_eq(fscanf(golden, " shape"), 0);
    set->shape = read_shape();
    set->relu = relu != 0;
    set->training = training != 0;
    call->op = (enum op)op;
}

static void draw_input(struct recorded *recorded, int i)
{
    struct shape shape = read_shape();
    unsigned limit;
    ck_assert_int_eq(fscanf(golden, "%u", &limit), 1);
    struct tensor *in = &recorded->in[i];
    *in = limit > 0 ? op_fixture_integers(shape, "golden", NULL) : op_fixture_doubles(shape, "golden", NULL);
    for (size_t k = 0; k < shape_elements(&shape); k++) {
        double number = (double)mlp_problem_number(&recorded->state);
        if (recorded->call.op == OP_BATCH_NORM && i == 4)
            number = fabs(number) + 0.5;
        if (limit > 0)
            ((int32_t *)in->data)[k] = (int32_t)floor((number + 1) / 2 * limit);
        else
            ((double *)in->data)[k] = number;
    }
    recorded->call.in[i] = in;
}

static void draw_output_gradient(struct recorded *recorded, int i)
{
    recorded->dout[i] = op_fixture_doubles(recorded->shape[i], "gradient", NULL);
    double *value = recorded->dout[i].data;
    for (size_t k = 0; k < shape_elements(&recorded->shape[i]); k++)
        value[k] = (double)mlp_problem_number(&recorded->state);
    recorded->call.dout[i] = &recorded->dout[i];
}

/* False at the file's end. */
static bool read_case(struct recorded *recorded, unsigned number)
{
    char word[8];
    *recorded = (struct recorded){.number = number, .state = number, .call.keep = true};
    if (fscanf(golden, "%7s", word) != 1)
        return false;
    ck_assert_str_eq(word, "case");
    read_attributes(&recorded->call);
    while (fscanf(golden, "%7s", word) == 1 && strcmp(word, "end") != 0) {
        int i;
        ck_assert_int_eq(fscanf(golden, "%d", &i), 1);
        ck_assert(i >= 0 && i < (word[0] == 'i' || word[1] == 'i' ? OP_INPUTS_MAX : OP_OUTPUTS_MAX));
        if (strcmp(word, "in") == 0) {
            draw_input(recorded, i);
        } else if (strcmp(word, "out") == 0) {
            recorded->shape[i] = read_shape();
            recorded->expected[i] = read_values(shape_elements(&recorded->shape[i]));
            recorded->call.out[i] = &recorded->out[i];
        } else if (strcmp(word, "dout") == 0) {
            draw_output_gradient(recorded, i);
        } else {
            ck_assert_str_eq(word, "din");
            recorded->expected_din[i] = read_values(shape_elements(&recorded->in[i].shape));
            recorded->call.din[i] = &recorded->din[i];
        }
    }
    return true;
}

/* Both are double, so only the order of a few additions may differ. */
static void hold(const struct recorded *recorded, const char *what, int i, const struct tensor *tensor,
                 const double *expected)
{
    for (size_t k = 0; k < shape_elements(&tensor->shape); k++) {
        const double got = tensor->dtype == DTYPE_I32 ? ((const int32_t *)tensor->data)[k]
                                                      : ((const double *)tensor->data)[k];
        ck_assert_msg(fabs(got - expected[k]) <= 1e-14 + 1e-12 * fabs(expected[k]),
                      "case %u, %s: %s %d, element %zu: got %.17g, expected %.17g", recorded->number,
                      op_rule(recorded->call.op)->name, what, i, k, got, expected[k]);
    }
}

static void run_case(struct recorded *recorded)
{
    struct op_call *call = &recorded->call;
    bool backward = false;
    op_fixture_forward(call);
    for (int i = 0; i < OP_OUTPUTS_MAX; i++) {
        if (call->out[i] == NULL)
            continue;
        ck_assert(shape_equal(&recorded->out[i].shape, &recorded->shape[i]));
        hold(recorded, "output", i, &recorded->out[i], recorded->expected[i]);
        backward = backward || call->dout[i] != NULL;
    }
    if (!backward)
        return;
    op_fixture_backward(call);
    for (int i = 0; i < OP_INPUTS_MAX; i++)
        if (call->din[i] != NULL)
            hold(recorded, "gradient of input", i, &recorded->din[i], recorded->expected_din[i]);
}

/* Nothing but outputs, gradients and what was saved may stay taken of what a call took. */
static size_t bytes_of(const struct tensor *tensor)
{
    return tensor->data == NULL ? 0
                                : (tensor->bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
}

static size_t call_bytes(const struct recorded *recorded)
{
    size_t bytes = 0;
    for (int i = 0; i < OP_OUTPUTS_MAX; i++)
        bytes += bytes_of(&recorded->out[i]);
    for (int i = 0; i < OP_INPUTS_MAX; i++)
        bytes += bytes_of(&recorded->din[i]);
    for (int i = 0; i < OP_SAVED_MAX; i++)
        bytes += bytes_of(&recorded->call.saved[i]);
    return bytes;
}

START_TEST(every_operation_is_pytorchs)
{
    struct recorded recorded;
    bool forward[OP_COUNT] = {false}, backward[OP_COUNT] = {false};
    unsigned cases = 0;
    while (read_case(&recorded, cases + 1)) {
        const size_t before = arena_in_use(op_fixture.arena);
        run_case(&recorded);
        ck_assert_uint_eq(arena_in_use(op_fixture.arena) - before, call_bytes(&recorded));
        forward[recorded.call.op] = true;
        backward[recorded.call.op] |= recorded.din[0].data != NULL || recorded.din[1].data != NULL;
        arena_reset(op_fixture.arena);
        cases++;
    }
    ck_assert_uint_eq(cases, 39);
    for (int op = 0; op < OP_COUNT; op++) {
        ck_assert_msg(forward[op], "no case of %s", op_rule((enum op)op)->name);
        ck_assert_msg(backward[op], "no gradient of %s", op_rule((enum op)op)->name);
    }
}
END_TEST

/* A gradient by itself, and each of the inputs' in turn, are what all of them together are. */
START_TEST(each_gradient_can_be_had_alone)
{
    struct recorded recorded;
    for (unsigned number = 1; read_case(&recorded, number); number++) {
        if (recorded.call.dout[0] == NULL && recorded.call.dout[1] == NULL)
            continue;
        op_fixture_forward(&recorded.call);
        struct op_call alone = recorded.call;
        for (int i = 0; i < OP_INPUTS_MAX; i++) {
            if (recorded.call.din[i] == NULL)
                continue;
            memset(alone.din, 0, sizeof alone.din);
            alone.din[i] = &recorded.din[i];
            op_fixture_backward(&alone);
            hold(&recorded, "gradient of input", i, &recorded.din[i], recorded.expected_din[i]);
        }
        arena_reset(op_fixture.arena);
    }
}
END_TEST

START_TEST(an_inference_keeps_nothing)
{
    struct recorded recorded;
    for (unsigned number = 1; read_case(&recorded, number); number++) {
        struct op_call *call = &recorded.call;
        call->keep = false;
        op_fixture_forward(call);
        for (int i = 0; i < OP_SAVED_MAX; i++)
            ck_assert_ptr_null(call->saved[i].data);
        for (int i = 0; i < OP_OUTPUTS_MAX; i++)
            if (call->out[i] != NULL)
                hold(&recorded, "output", i, &recorded.out[i], recorded.expected[i]);
        arena_reset(op_fixture.arena);
    }
}
END_TEST

/* ---- by hand ---- */

/* The fixture's tensors of a call with one input and one output. */
struct unary {
    struct op_call call;
    struct tensor x, y, dy, dx;
};

static void unary_forward(struct unary *unary, enum op op, struct tensor x)
{
    unary->call.op = op;
    unary->call.keep = true;
    unary->x = x;
    unary->call.in[0] = &unary->x;
    unary->call.out[0] = &unary->y;
    op_fixture_forward(&unary->call);
}

static void unary_backward(struct unary *unary, const double *gradient)
{
    unary->dy = op_fixture_doubles(unary->y.shape, "dy", gradient);
    unary->call.dout[0] = &unary->dy;
    unary->call.din[0] = &unary->dx;
    op_fixture_backward(&unary->call);
}

START_TEST(a_relu_is_shut_at_zero_and_lets_a_nan_through)
{
    struct unary relu = {0};
    const double x[4] = {0, -1, 2, NAN}, dy[4] = {5, 6, 7, 8};
    unary_forward(&relu, OP_RELU, op_fixture_doubles(SHAPE1(4), "x", x));
    ck_assert(op_fixture_at(&relu.y, 0) == 0 && op_fixture_at(&relu.y, 1) == 0);
    ck_assert(op_fixture_at(&relu.y, 2) == 2 && isnan(op_fixture_at(&relu.y, 3)));
    unary_backward(&relu, dy);
    ck_assert(op_fixture_at(&relu.dx, 0) == 0 && op_fixture_at(&relu.dx, 1) == 0);
    ck_assert(op_fixture_at(&relu.dx, 2) == 7);
}
END_TEST

START_TEST(a_max_pools_gradient_goes_to_the_first_maximum)
{
    struct unary pool = {.call.attributes = {.kernel = {2, 2}, .stride = {2, 2}}};
    const double x[8] = {1, 3, 3, 3, 3, 2, 3, 3}, dy[2] = {5, 7}; // (1, 1, 2, 4): two windows
    const double expected[8] = {0, 5, 7, 0, 0, 0, 0, 0};
    unary_forward(&pool, OP_MAX_POOL, op_fixture_doubles(SHAPE4(1, 1, 2, 4), "x", x));
    ck_assert(op_fixture_at(&pool.y, 0) == 3 && op_fixture_at(&pool.y, 1) == 3);
    unary_backward(&pool, dy);
    for (size_t i = 0; i < 8; i++)
        ck_assert(op_fixture_at(&pool.dx, i) == expected[i]);
}
END_TEST

START_TEST(a_max_pool_lets_a_nan_through)
{
    struct unary pool = {.call.attributes = {.kernel = {1, 3}, .stride = {1, 1}}};
    const double x[4] = {1, NAN, -INFINITY, 2};
    unary_forward(&pool, OP_MAX_POOL, op_fixture_doubles(SHAPE4(1, 1, 1, 4), "x", x));
    ck_assert(isnan(op_fixture_at(&pool.y, 0)) && isnan(op_fixture_at(&pool.y, 1)));
}
END_TEST

START_TEST(dropout_of_nothing_and_of_almost_everything)
{
    struct unary none = {0}, all = {.call.attributes.dropout = 1 - 0x1p-20};
    double x[300];
    for (int i = 0; i < 300; i++)
        x[i] = i + 1;
    unary_forward(&none, OP_DROPOUT, op_fixture_doubles(SHAPE2(3, 100), "x", x));
    unary_forward(&all, OP_DROPOUT, op_fixture_doubles(SHAPE2(3, 100), "x", x));
    for (size_t i = 0; i < 300; i++) {
        ck_assert(op_fixture_at(&none.y, i) == x[i]);
        ck_assert(op_fixture_at(&all.y, i) == 0); // 65536 p rounds to 65536, which no 16 bits reach
    }
}
END_TEST

/* The words 3, 1, 4 by rows, and for the whole of an equally long tensor, are one draw. */
START_TEST(a_draw_by_rows_and_one_by_words_are_one)
{
    struct unary plain = {.call.attributes = {.dropout = 0.5, .draw = {77, {3, 1, 4}}}};
    struct unary rowed = {.call.attributes = {.dropout = 0.5, .draw = {77, {9, 9, 9}}}};
    const int32_t words[6] = {8, 8, 8, 3, 1, 4};
    double x[200];
    for (int i = 0; i < 200; i++)
        x[i] = 1;
    struct tensor rows = op_fixture_integers(SHAPE2(2, 3), "rows", words);
    rowed.call.in[1] = &rows;
    unary_forward(&plain, OP_DROPOUT, op_fixture_doubles(SHAPE1(100), "x", x));
    unary_forward(&rowed, OP_DROPOUT, op_fixture_doubles(SHAPE2(2, 100), "x", x));
    size_t kept = 0, differs = 0;
    for (size_t i = 0; i < 100; i++) {
        ck_assert(op_fixture_at(&plain.y, i) == op_fixture_at(&rowed.y, 100 + i));
        kept += op_fixture_at(&plain.y, i) != 0;
        differs += op_fixture_at(&rowed.y, i) != op_fixture_at(&rowed.y, 100 + i);
    }
    ck_assert(kept > 20 && kept < 80 && differs > 20);
}
END_TEST

/* An index of each operation that has any, in turn too large and negative. */
START_TEST(an_index_out_of_range_is_named)
{
    static const struct {
        enum op op;
        int indices;        // which input
        struct shape other; // of the other input
    } cases[] = {{OP_EMBEDDING, 0, {2, {4, 5}}},
                 {OP_CROSS_ENTROPY, 1, {2, {3, 4}}},
                 {OP_LOG_PROBABILITY, 1, {2, {3, 4}}}};
    static const struct {
        int32_t value;
        const char *text;
    } bad[] = {{4, "is 4, expected 0..3"}, {-1, "is -1, expected 0..3"}};
    const int32_t value = bad[_i % 2].value, indices[3] = {0, 3, value};
    struct tensor index = op_fixture_integers(SHAPE1(3), "targets", indices), out = {0};
    struct tensor other = op_fixture_doubles(cases[_i / 2].other, "table", NULL);
    struct op_call call = {.op = cases[_i / 2].op, .arena = op_fixture.arena, .out = {&out}, .keep = true};
    call.in[cases[_i / 2].indices] = &index;
    call.in[1 - cases[_i / 2].indices] = &other;
    op_fixture_refused(op_forward(op_fixture.backend, &call, &op_fixture.error), "element 2 of ",
                       bad[_i % 2].text);
    op_fixture_refused(STATUS_INVALID, "\"targets\" of shape 3", op_rule(call.op)->name);
    ck_assert_ptr_null(out.data);
}
END_TEST

/* ---- memory and optimizers ---- */

START_TEST(values_go_up_and_come_down_in_either_dtype)
{
    const float single[3] = {1.5f, -2, 0.1f};
    const double exact[3] = {1.5, -2, 0.1};
    const int32_t whole[3] = {7, -8, INT32_MAX};
    float single_back[3];
    double exact_back[3];
    int32_t whole_back[3];
    struct tensor tensor = op_fixture_doubles(SHAPE1(3), "t", NULL);
    struct tensor integers = op_fixture_integers(SHAPE1(3), "i", NULL);
    struct backend *ref = op_fixture.backend;
    struct error *error = &op_fixture.error;
    ck_assert_int_eq(backend_upload(ref, &tensor, DTYPE_F32, single, error), STATUS_OK);
    ck_assert_int_eq(backend_download(ref, &tensor, DTYPE_F32, single_back, error), STATUS_OK);
    ck_assert_mem_eq(single, single_back, sizeof single);
    ck_assert_int_eq(backend_download(ref, &tensor, DTYPE_F64, exact_back, error), STATUS_OK);
    ck_assert(exact_back[2] == (double)0.1f);
    ck_assert_int_eq(backend_upload(ref, &tensor, DTYPE_F64, exact, error), STATUS_OK);
    ck_assert_int_eq(backend_download(ref, &tensor, DTYPE_F64, exact_back, error), STATUS_OK);
    ck_assert_mem_eq(exact, exact_back, sizeof exact);
    ck_assert_int_eq(backend_upload(ref, &integers, DTYPE_I32, whole, error), STATUS_OK);
    ck_assert_int_eq(backend_download(ref, &integers, DTYPE_I32, whole_back, error), STATUS_OK);
    ck_assert_mem_eq(whole, whole_back, sizeof whole);
}
END_TEST

START_TEST(small_things_on_flat_memory)
{
    struct backend *ref = op_fixture.backend;
    struct error *error = &op_fixture.error;
    const double from[3] = {1, 2, 4};
    struct tensor a = op_fixture_doubles(SHAPE1(3), "a", NULL), b = op_fixture_doubles(SHAPE1(3), "b", from);
    double sum;
    size_t index;
    ck_assert_int_eq(backend_fill(ref, &a, 3, error), STATUS_OK);
    ck_assert_int_eq(backend_accumulate(ref, &a, &b, error), STATUS_OK); // 4, 5, 7
    ck_assert_int_eq(backend_scale(ref, &a, 4, error), STATUS_OK);       // 16, 20, 28
    ck_assert(op_fixture_at(&a, 0) == 16 && op_fixture_at(&a, 1) == 20 && op_fixture_at(&a, 2) == 28);
    ck_assert_int_eq(backend_square_sum(ref, &a, &sum, error), STATUS_OK);
    ck_assert(sum == 16 * 16 + 20 * 20 + 28 * 28);
    ck_assert_int_eq(backend_first_not_finite(ref, &a, &index, error), STATUS_OK);
    ck_assert_uint_eq(index, SIZE_MAX);
    ((double *)a.data)[2] = NAN;
    ((double *)a.data)[1] = -INFINITY;
    ck_assert_int_eq(backend_first_not_finite(ref, &a, &index, error), STATUS_OK);
    ck_assert_uint_eq(index, 1);
}
END_TEST

START_TEST(sgd_with_and_without_momentum)
{
    struct backend *ref = op_fixture.backend;
    struct error *error = &op_fixture.error;
    const double one[2] = {1, 1}, g[2] = {2, -4};
    struct tensor p = op_fixture_doubles(SHAPE1(2), "p", one), v = op_fixture_doubles(SHAPE1(2), "v", one);
    struct tensor gradient = op_fixture_doubles(SHAPE1(2), "g", g);
    const struct sgd_settings plain = {.lr = 0.5}, heavy = {.lr = 0.5, .momentum = 0.5};
    ck_assert_int_eq(backend_sgd(ref, &plain, 1, &p, &gradient, NULL, error), STATUS_OK);
    ck_assert(op_fixture_at(&p, 0) == 0 && op_fixture_at(&p, 1) == 3);
    ck_assert_int_eq(backend_sgd(ref, &heavy, 1, &p, &gradient, &v, error), STATUS_OK); // v = g: not what was
    ck_assert(op_fixture_at(&v, 0) == 2 && op_fixture_at(&p, 0) == -1);
    ck_assert_int_eq(backend_sgd(ref, &heavy, 2, &p, &gradient, &v, error), STATUS_OK); // v = 1 + 2
    ck_assert(op_fixture_at(&v, 0) == 3 && op_fixture_at(&p, 0) == -2.5);
    ck_assert(op_fixture_at(&v, 1) == -6 && op_fixture_at(&p, 1) == 8);
}
END_TEST

/* With b1 = b2 = 1/2, g = 2 twice: m = 1, 1.5; v = 2, 3; both corrections 1/2, 3/4, so that every step is
 * lr * 2 / (2 + epsilon). */
START_TEST(adam_corrects_its_moments)
{
    struct backend *ref = op_fixture.backend;
    struct error *error = &op_fixture.error;
    const double g[1] = {2};
    struct tensor p = op_fixture_doubles(SHAPE1(1), "p", NULL),
                  gradient = op_fixture_doubles(SHAPE1(1), "g", g);
    struct tensor m = op_fixture_doubles(SHAPE1(1), "m", NULL), v = op_fixture_doubles(SHAPE1(1), "v", NULL);
    const struct adam_settings set = {.lr = 0.125, .beta1 = 0.5, .beta2 = 0.5, .epsilon = 2};
    for (uint64_t step = 1; step <= 2; step++) {
        ck_assert_int_eq(backend_adam(ref, &set, step, &p, &gradient, &m, &v, error), STATUS_OK);
        ck_assert_double_eq_tol(op_fixture_at(&p, 0), -0.125 * 0.5 * (double)step, 1e-15);
    }
    ck_assert(op_fixture_at(&m, 0) == 1.5 && op_fixture_at(&v, 0) == 3);
}
END_TEST

/* RMSprop, with b2 = 1/2 and g = 4 twice: v = 8, 12, and m = g. */
START_TEST(adam_without_corrections_is_rms_prop)
{
    struct backend *ref = op_fixture.backend;
    struct error *error = &op_fixture.error;
    const double g[1] = {4};
    struct tensor p = op_fixture_doubles(SHAPE1(1), "p", NULL),
                  gradient = op_fixture_doubles(SHAPE1(1), "g", g);
    struct tensor m = op_fixture_doubles(SHAPE1(1), "m", NULL), v = op_fixture_doubles(SHAPE1(1), "v", NULL);
    const struct adam_settings set = {.lr = 0.125, .beta2 = 0.5, .epsilon = 2, .uncorrected = true};
    double expected = 0;
    for (uint64_t step = 1; step <= 2; step++) {
        ck_assert_int_eq(backend_adam(ref, &set, step, &p, &gradient, &m, &v, error), STATUS_OK);
        expected -= 0.125 * 4 / (sqrt(step == 1 ? 8 : 12) + 2);
        ck_assert_double_eq_tol(op_fixture_at(&p, 0), expected, 1e-15);
    }
    ck_assert(op_fixture_at(&m, 0) == 4 && op_fixture_at(&v, 0) == 12);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ref");
    TCase *recorded = tcase_create("recorded"), *hand = tcase_create("by hand"),
          *memory = tcase_create("memory");
    tcase_add_checked_fixture(recorded, golden_open, golden_close);
    tcase_add_test(recorded, every_operation_is_pytorchs);
    tcase_add_test(recorded, each_gradient_can_be_had_alone);
    tcase_add_test(recorded, an_inference_keeps_nothing);
    suite_add_tcase(suite, recorded);
    tcase_add_checked_fixture(hand, op_fixture_open, op_fixture_close);
    tcase_add_test(hand, a_relu_is_shut_at_zero_and_lets_a_nan_through);
    tcase_add_test(hand, a_max_pools_gradient_goes_to_the_first_maximum);
    tcase_add_test(hand, a_max_pool_lets_a_nan_through);
    tcase_add_test(hand, dropout_of_nothing_and_of_almost_everything);
    tcase_add_test(hand, a_draw_by_rows_and_one_by_words_are_one);
    tcase_add_loop_test(hand, an_index_out_of_range_is_named, 0, 6);
    suite_add_tcase(suite, hand);
    tcase_add_checked_fixture(memory, op_fixture_open, op_fixture_close);
    tcase_add_test(memory, values_go_up_and_come_down_in_either_dtype);
    tcase_add_test(memory, small_things_on_flat_memory);
    tcase_add_test(memory, sgd_with_and_without_momentum);
    tcase_add_test(memory, adam_corrects_its_moments);
    tcase_add_test(memory, adam_without_corrections_is_rms_prop);
    suite_add_tcase(suite, memory);
    return suite_run(suite);
}
