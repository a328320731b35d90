/* Distributed autograd (worker/autograd/dist.h): one call and many, nested calls, several contexts at once,
 * steady memory. Failures: test_dist_errors.c; deaths: test_dist_ends.c. */
#include "kernels/params/gradients.h"
#include "test/worker/autograd/dist_fixture.h"
#include "test/workplace.h"

#include <malloc.h>

enum { ROOT = 0, ROWS = 2 };

static struct tape *tape;
static struct dist_context *context;

static void begin(void)
{
    tape = dist_tape(ROOT);
    context = dist_begin(ROOT, tape);
}

static void end(void)
{
    dist_context_free(context);
    dist_expect_nothing_left();
    tape_free(tape);
}

static struct variable *rows(double scale)
{
    float values[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++)
        values[i] = (float)((i + 1) * scale);
    struct variable *x = tape_input(tape, SHAPE2(ROWS, WIDTH), DTYPE_F32, "x", values);
    tape_want_gradient(x);
    return x;
}

static struct variable *call_one(unsigned name, uint32_t function, struct variable *x)
{
    struct variable *out;
    CK_DIST(dist_call(context, stage.sides[ROOT].object[name], function, NULL, 0, &x, 1, &out, 1));
    return out;
}

/* Row 0 of the table `name`. */
static struct variable *look_up(unsigned name)
{
    return call_one(name, 0, tape_input(tape, SHAPE1(1), DTYPE_I32, "tokens", (int32_t[]){0}));
}

static struct knot *local(unsigned worker, unsigned name)
{
    return rref_local(stage.sides[worker].object[name]);
}

/* The first gradient of the weight of an object on `worker`; 0 without any. */
static double weight_gradient(unsigned worker, unsigned name, uint64_t id)
{
    struct gradients *gradients;
    double values[TABLE_ROWS * WIDTH];
    struct knot *knot = local(worker, name);
    enum status status = dist_gradients(stage.sides[worker].dist, id, knot, &gradients, &stage.error);
    ck_assert(status == STATUS_OK || status == STATUS_NOT_FOUND);
    if (status != STATUS_OK || gradients == NULL)
        return 0;
    CK_DIST(gradients_read(gradients, knot->weight, DTYPE_F64, values, &stage.error));
    return values[0];
}

/* ---- one call ---- */

/* y = x W' + b on another worker: against the same by hand. */
START_TEST(a_call_is_a_node)
{
    float weight[WIDTH * WIDTH], bias[WIDTH], got[ROWS * WIDTH];
    dist_start(&ref_ops, _i & 1, 2);
    dist_object((unsigned)_i / 2, "knot", 0);
    struct knot *knot = local((unsigned)_i / 2, 0);
    CK_DIST(params_read(knot->params, knot->weight, DTYPE_F32, weight, &stage.error));
    CK_DIST(params_read(knot->params, knot->bias, DTYPE_F32, bias, &stage.error));
    begin();
    struct variable *x = rows(1), *y = call_one(0, KNOT_MAP, x);
    CK_DIST(tape_read(tape, y, DTYPE_F32, got));
    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < WIDTH; j++) {
            double sum = bias[j];
            for (int k = 0; k < WIDTH; k++)
                sum += (double)weight[j * WIDTH + k] * (r * WIDTH + k + 1);
            ck_assert_float_eq_tol(got[r * WIDTH + j], (float)sum, 1e-5f);
        }
    CK_DIST(dist_backward(context, tape_sum(tape, y, NULL, 1), &stage.error));
    CK_DIST(tape_read(tape, y, DTYPE_F32, got)); // what was answered stays
    ck_assert(weight_gradient((unsigned)_i / 2, 0, dist_context_id(context)) == 1 + (WIDTH + 1));
    CK_DIST(backend_download(tape_backend(tape), variable_gradient(x), DTYPE_F32, got, &stage.error));
    for (int k = 0; k < WIDTH; k++) {
        double sum = 0;
        for (int j = 0; j < WIDTH; j++)
            sum += (double)weight[j * WIDTH + k];
        ck_assert_float_eq_tol(got[k], (float)sum, 1e-6f);
    }
    end();
    dist_end();
}
END_TEST

/* No input, a scalar out of nothing but numbers: nothing is kept for it. */
START_TEST(a_call_of_numbers_alone)
{
    const uint64_t numbers[DIST_NUMBERS_MAX] = {1, 2, 3, [DIST_NUMBERS_MAX - 1] = 10};
    struct variable *out;
    double value;
    dist_start(&ref_ops, false, 2);
    dist_object(1, "knot", 0);
    begin();
    CK_DIST(dist_call(context, stage.sides[ROOT].object[0], KNOT_NUMBER, numbers, DIST_NUMBERS_MAX, NULL, 0,
                      &out, 1));
    ck_assert_uint_eq(variable_tensor(out)->shape.rank, 0);
    ck_assert(!variable_needs_gradient(out));
    CK_DIST(tape_loss(tape, out, &value));
    ck_assert(value == 16);
    CK_DIST(dist_backward(context, out, &stage.error));
    end();
    dist_end();
}
END_TEST

/* What is passed on is nobody's own: the gradients of both still arrive. */
START_TEST(an_input_or_a_parameter_may_be_an_output)
{
    struct variable *out[2];
    double got[WIDTH * WIDTH], weight[WIDTH * WIDTH];
    dist_start(&ref_ops, _i & 1, 2);
    dist_object((unsigned)_i / 2, "knot", 0);
    begin();
    struct variable *x = rows(1);
    CK_DIST(dist_call(context, stage.sides[ROOT].object[0], KNOT_PASS, NULL, 0, &x, 1, out, 2));
    struct knot *knot = local((unsigned)_i / 2, 0);
    CK_DIST(tape_read(tape, out[0], DTYPE_F64, got));
    ck_assert(got[0] == 1 && got[7] == 8);
    struct variable *loss =
        tape_add(tape, tape_sum(tape, out[0], NULL, 3), tape_sum(tape, out[1], NULL, 5), false);
    CK_DIST(dist_backward(context, loss, &stage.error));
    ck_assert(weight_gradient((unsigned)_i / 2, 0, dist_context_id(context)) == 5);
    CK_DIST(backend_download(tape_backend(tape), variable_gradient(x), DTYPE_F64, got, &stage.error));
    ck_assert(got[0] == 3 && got[7] == 3);
    CK_DIST(tape_read(tape, out[1], DTYPE_F64, weight));
    CK_DIST(params_read(knot->params, knot->weight, DTYPE_F64, got, &stage.error));
    ck_assert(weight[0] == (double)(float)got[0]);
    end();
    dist_end();
}
END_TEST

/* A forward alone: nothing is kept but what was answered. */
START_TEST(inference_keeps_nothing)
{
    dist_start(&ref_ops, false, 2);
    dist_object(1, "knot", 0);
    tape = dist_tape(ROOT);
    CK_DIST(dist_context_new(&context, stage.sides[ROOT].dist, TAPE_INFER, tape, &stage.error));
    struct variable *y = call_one(0, KNOT_MAP, call_one(0, KNOT_MAP, rows(1)));
    ck_assert(!variable_needs_gradient(y));
    ck_assert_uint_eq(dist_counts_of(1).pieces, 2);
    end();
    dist_end();
}
END_TEST

/* ---- several calls ---- */

/* 0 calls 1 calls 2 calls 0 …: sixteen deep, then the gradient back through all. */
START_TEST(calls_nest_as_deep_as_the_limit)
{
    dist_start(&ref_ops, _i, 3);
    for (unsigned name = 0; name < 3; name++)
        dist_object(name, "knot", name);
    begin();
    struct variable *x = rows(0.5), *out;
    const uint64_t numbers[2] = {DIST_DEPTH_MAX - 1, 1};
    CK_DIST(dist_call(context, stage.sides[ROOT].object[1], KNOT_DOWN, numbers, 2, &x, 1, &out, 1));
    CK_DIST(dist_backward(context, tape_sum(tape, out, NULL, 1), &stage.error));
    ck_assert_ptr_nonnull(variable_gradient(x));
    ck_assert(weight_gradient(1, 1, dist_context_id(context)) != 0); // the last of sixteen
    ck_assert(weight_gradient(2, 2, dist_context_id(context)) == 0);
    end();
    dist_end();
}
END_TEST

/* Results that the loss does not depend on get no gradient. */
START_TEST(what_has_no_part_has_no_gradient)
{
    struct variable *out[2];
    dist_start(&ref_ops, _i, 3);
    for (unsigned name = 0; name < 3; name++)
        dist_object(name, "knot", name);
    begin();
    struct variable *x = rows(1), *used = call_one(1, KNOT_MAP, x);
    const uint64_t numbers[2] = {2, KNOT_MAP};
    CK_DIST(dist_call(context, stage.sides[ROOT].object[1], KNOT_NESTED, numbers, 2, &x, 1, &out[0], 1));
    CK_DIST(dist_call(context, stage.sides[ROOT].object[1], KNOT_TWO, NULL, 0, &x, 1, out, 2));
    CK_DIST(dist_backward(context, tape_sum(tape, used, NULL, 1), &stage.error));
    ck_assert(weight_gradient(1, 1, dist_context_id(context)) == 1 + (WIDTH + 1)); // the used one's alone
    end();
    dist_end();
}
END_TEST

/* Contexts of two roots on the same object, recorded and walked crosswise. */
START_TEST(contexts_do_not_touch_each_other)
{
    struct tape *tapes[3];
    struct dist_context *contexts[3];
    struct variable *loss[3];
    static const unsigned roots[3] = {0, 0, 2};
    dist_start(&ref_ops, _i, 3);
    dist_object(1, "knot", 0);
    for (unsigned i = 0; i < 3; i++) {
        tapes[i] = dist_tape(roots[i]);
        contexts[i] = dist_begin(roots[i], tapes[i]);
    }
    for (unsigned i = 0; i < 3; i++) {
        tape = tapes[i];
        struct variable *x = rows(i + 1), *y;
        CK_DIST(dist_call(contexts[i], stage.sides[roots[i]].object[0], KNOT_MAP, NULL, 0, &x, 1, &y, 1));
        loss[i] = tape_sum(tape, y, NULL, 1);
    }
    ck_assert_uint_eq(dist_counts_of(1).contexts, 3);
    for (unsigned i = 3; i-- > 0;)
        CK_DIST(dist_backward(contexts[i], loss[i], &stage.error));
    for (unsigned i = 0; i < 3; i++) {
        ck_assert(weight_gradient(1, 0, dist_context_id(contexts[i])) == (i + 1) * (WIDTH + 2));
    }
    for (unsigned i = 0; i < 3; i++) {
        const uint64_t id = dist_context_id(contexts[i]);
        dist_context_free(contexts[i]);
        UNTIL(dist_counts_of(1).contexts <= 2 - i, dist_wait());
        struct gradients *gone;
        ck_assert_int_eq(dist_gradients(stage.sides[1].dist, id, local(1, 0), &gone, &stage.error),
                         STATUS_NOT_FOUND);
    }
    dist_expect_nothing_left();
    for (unsigned i = 0; i < 3; i++)
        tape_free(tapes[i]);
    dist_end();
}
END_TEST

/* The order in which a table's gradients are added up is that of the walk: c3, c2, the nested one, c1. Values
 * cancel such that every other order gives another sum. The table's worker sleeps, so that what was sent
 * ahead waits, whichever of its sockets it reads first. */
START_TEST(sums_are_in_the_order_of_the_walk)
{
    static const unsigned places[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    const unsigned root = places[_i][0], table = places[_i][2];
    struct variable *row[4], *loss = NULL;
    static const double scales[4] = {3, 1e17, 1, -1e17};
    const uint64_t numbers[1] = {0};
    dist_start(&ref_ops, false, 3);
    dist_object(table, "table", 0);
    dist_object(places[_i][1], "knot", 1);
    tape = dist_tape(root);
    context = dist_begin(root, tape);
    struct rref *const *object = stage.sides[root].object;
    for (int i = 0; i < 4; i++) {
        struct variable *in = tape_input(tape, SHAPE1(1), DTYPE_I32, "tokens", (int32_t[]){0});
        if (i == 1)
            CK_DIST(dist_call(context, object[1], KNOT_TABLE, numbers, 1, NULL, 0, &row[i], 1));
        else
            CK_DIST(dist_call(context, object[0], 0, NULL, 0, &in, 1, &row[i], 1));
    }
    for (int i = 0; i < 4; i++) {
        struct variable *part = tape_sum(tape, row[i], NULL, scales[i]);
        loss = loss == NULL ? part : tape_add(tape, loss, part, false);
    }
    stage.is_slow = true;
    stage.sides[table].asleep = 40;
    CK_DIST(dist_backward(context, loss, &stage.error));
    ck_assert_double_eq(weight_gradient(table, 0, dist_context_id(context)), 3);
    end();
    dist_end();
}
END_TEST

/* ---- memory ---- */

/* Some sanitizers have a heap of their own, which is not counted here, and take ten times as long. */
static bool counts_heap(void)
{
    const char *sanitizer = getenv("SAN");
    return sanitizer == NULL || (strcmp(sanitizer, "address") != 0 && strcmp(sanitizer, "thread") != 0);
}

static size_t heap_bytes(void)
{
    return mallinfo2().uordblks;
}

/* Every tenth: a nested call, and results without a part. */
static void step(uint32_t number)
{
    const uint64_t numbers[2] = {2, KNOT_MAP};
    context = dist_begin(ROOT, tape);
    struct variable *x = rows(1), *out = NULL;
    if (number % 10 == 0) {
        look_up(0);
        call_one(2, KNOT_MAP, x);
        CK_DIST(dist_call(context, stage.sides[ROOT].object[1], KNOT_NESTED, numbers, 2, &x, 1, &out, 1));
    } else {
        out = call_one(1 + number % 2, KNOT_MAP, x);
    }
    CK_DIST(dist_backward(context, tape_sum(tape, out, NULL, 1), &stage.error));
    dist_context_free(context);
}

START_TEST(ten_thousand_contexts_leave_memory_as_it_is)
{
    const uint32_t count = !counts_heap() ? 50 : _i == 0 ? 10000 : 200;
    dist_start(&ref_ops, _i, 3);
    dist_object(1, "table", 0);
    dist_object(1, "knot", 1);
    dist_object(2, "knot", 2);
    tape = dist_tape(ROOT);
    stage.is_awake = true;
    for (uint32_t i = 0; i < (counts_heap() ? 2000 : 50); i++)
        step(i);
    dist_expect_nothing_left();
    const size_t before = heap_bytes();
    for (uint32_t i = 0; i < count; i++)
        step(i);
    dist_expect_nothing_left();
    ck_assert_uint_le(heap_bytes(), before + 16384);
    tape_free(tape);
    dist_end();
}
END_TEST

int main(void)
{
    dist_reserve_descriptors();
    Suite *suite = suite_create("dist");
    TCase *calls = tcase_create("calls");
    tcase_set_timeout(calls, 60);
    tcase_add_loop_test(calls, a_call_is_a_node, 0, 4);
    tcase_add_test(calls, a_call_of_numbers_alone);
    tcase_add_loop_test(calls, an_input_or_a_parameter_may_be_an_output, 0, 4);
    tcase_add_test(calls, inference_keeps_nothing);
    tcase_add_loop_test(calls, calls_nest_as_deep_as_the_limit, 0, 2);
    tcase_add_loop_test(calls, what_has_no_part_has_no_gradient, 0, 2);
    tcase_add_loop_test(calls, contexts_do_not_touch_each_other, 0, 2);
    tcase_add_loop_test(calls, sums_are_in_the_order_of_the_walk, 0, 6);
    suite_add_tcase(suite, calls);
    TCase *memory = tcase_create("memory");
    tcase_set_timeout(memory, 120);
    tcase_add_loop_test(memory, ten_thousand_contexts_leave_memory_as_it_is, 0, 2);
    suite_add_tcase(suite, memory);
    return suite_run(suite);
}
