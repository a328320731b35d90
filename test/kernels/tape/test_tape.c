/* The tape on the oracle: gradients against hand-worked values and finite differences, ownership of
 * memory, the first error, and a series of equal steps, which allocates no memory. */
#include "kernels/params/gradients.h"
#include "test/kernels/tape/tape_fixture.h"
#include "test/workplace.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

/* ---- a backend that shares memory wherever it may ---- */

static struct backend_ops sharing;

static void share(struct op_call *call, struct tensor *to, const struct tensor *from)
{
    arena_share(call->arena, from->data);
    to->data = from->data;
    to->bytes = from->bytes;
    to->layout = from->layout;
}

static enum status sharing_reshape(struct backend *backend, struct op_call *call, struct error *error)
{
    (void)backend;
    (void)error;
    share(call, call->out[0], call->in[0]);
    return STATUS_OK;
}

static enum status sharing_reshape_backward(struct backend *backend, struct op_call *call,
                                            struct error *error)
{
    if (call->din[0]->data != NULL)
        return ref_ops.backward[OP_RESHAPE](backend, call, error);
    share(call, call->din[0], call->dout[0]);
    return STATUS_OK;
}

static enum status sharing_add_backward(struct backend *backend, struct op_call *call, struct error *error)
{
    struct op_call own = *call;
    for (int i = 0; i < 2; i++) {
        if (call->din[i] == NULL || call->din[i]->data != NULL || call->attributes.relu)
            continue;
        share(call, call->din[i], call->dout[0]);
        own.din[i] = NULL;
    }
    return own.din[0] != NULL || own.din[1] != NULL ? ref_ops.backward[OP_ADD](backend, &own, error)
                                                    : STATUS_OK;
}

/* Loop index 0: the oracle, which copies; 1: the one that shares. */
static void open_variant(int variant)
{
    sharing = ref_ops;
    sharing.forward[OP_RESHAPE] = sharing_reshape;
    sharing.backward[OP_RESHAPE] = sharing_reshape_backward;
    sharing.backward[OP_ADD] = sharing_add_backward;
    fixture_open_with(variant == 0 ? &ref_ops : &sharing);
}

static size_t in_use(void)
{
    return arena_in_use(tape_arena(fixture.tape));
}

/* ---- gradients ---- */

/* y = x w^T + b = (3, 7.5), target (1, 6): loss = (4 + 2.25) / 2; dy = y - target = (2, 1.5). */
START_TEST(a_linear_fit_by_hand)
{
    fixture_open();
    struct parameter *w = fixture_add("w", SHAPE2(1, 2)), *b = fixture_add("b", SHAPE1(1));
    fixture_build(0);
    fixture_write(w, (double[]){1, 0.5});
    fixture_write(b, (double[]){1});
    fixture_begin();
    struct variable *x = fixture_input(SHAPE2(2, 2), "x", (double[]){1, 2, 4, 5});
    struct variable *target = fixture_input(SHAPE2(2, 1), "target", (double[]){1, 6});
    struct variable *y = tape_linear(fixture.tape, x, fixture_use(w), fixture_use(b));
    struct variable *loss = tape_mse(fixture.tape, y, target);
    double value = 0;
    CK_OK(tape_loss(fixture.tape, loss, &value));
    ck_assert(value == 3.125);
    CK_OK(tape_backward(fixture.tape, loss));
    CK_OK(tape_finish(fixture.tape, &fixture.error));
    fixture_expect_gradient(w, (double[]){2 * 1 + 1.5 * 4, 2 * 2 + 1.5 * 5});
    fixture_expect_gradient(b, (double[]){3.5});
    fixture_close();
}
END_TEST

enum { NET_ROWS = 3, NET_IN = 4, NET_HIDDEN = 5 };
static struct parameter *net[4];

/* Two layers with a residual around the second: h = relu(l1 x); y = relu(h + l2 h), in another shape. */
static struct variable *net_forward(struct tape *tape)
{
    static const double rows[NET_ROWS * NET_IN] = {0.3,  -1.2, 0.7,  0.1, 1.1, 0.4,
                                                   -0.6, 2,    -0.2, 0.9, 1.5, -1};
    static const double targets[NET_ROWS * NET_HIDDEN] = {1,    0.5, -1, 2, 0.25, 0, 1, 1,
                                                          -0.5, 3,   2,  0, 0.1,  1, 1};
    struct variable *x = tape_input(tape, SHAPE2(NET_ROWS, NET_IN), DTYPE_F64, "x", rows);
    struct variable *target = tape_input(tape, SHAPE1(NET_ROWS * NET_HIDDEN), DTYPE_F64, "target", targets);
    struct variable *h =
        tape_relu(tape, tape_linear(tape, x, tape_parameter(tape, net[0]), tape_parameter(tape, net[1])));
    struct variable *inner = tape_linear(tape, h, tape_parameter(tape, net[2]), tape_parameter(tape, net[3]));
    struct variable *y = tape_add(tape, h, inner, true);
    return tape_mse(tape, tape_reshape(tape, y, SHAPE1(NET_ROWS * NET_HIDDEN)), target);
}

static void net_open(int variant)
{
    static const struct init uniform = {INIT_UNIFORM, 0.8};
    static const struct shape shapes[] = {
        {2, {NET_HIDDEN, NET_IN}}, {1, {NET_HIDDEN}}, {2, {NET_HIDDEN, NET_HIDDEN}}, {1, {NET_HIDDEN}}};
    static const char *const names[] = {"l1.weight", "l1.bias", "l2.weight", "l2.bias"};
    open_variant(variant);
    for (int i = 0; i < 4; i++)
        CK_OK(params_add(fixture.params, names[i], PARAMETER_TRAINED, shapes[i], uniform, &net[i],
                         &fixture.error));
    fixture_build(7);
}

static double net_loss(void)
{
    double loss = 0;
    tape_begin(fixture.tape, TAPE_INFER, NULL);
    CK_OK(tape_read(fixture.tape, net_forward(fixture.tape), DTYPE_F64, &loss));
    CK_OK(tape_finish(fixture.tape, &fixture.error));
    return loss;
}

static double net_difference(struct parameter *parameter, size_t element)
{
    const double h = 1e-6;
    double values[64], at[2];
    CK_OK(params_read(fixture.params, parameter, DTYPE_F64, values, &fixture.error));
    const double middle = values[element];
    for (int side = 0; side < 2; side++) {
        values[element] = middle + (side == 0 ? -h : h);
        fixture_write(parameter, values);
        at[side] = net_loss();
    }
    values[element] = middle;
    fixture_write(parameter, values);
    return (at[1] - at[0]) / (2 * h);
}

START_TEST(a_residual_net_against_finite_differences)
{
    net_open(_i);
    fixture_begin();
    CK_OK(tape_backward(fixture.tape, net_forward(fixture.tape)));
    CK_OK(tape_finish(fixture.tape, &fixture.error));
    unsigned moved = 0;
    for (int p = 0; p < 4; p++) {
        double got[64];
        CK_OK(gradients_read(fixture.gradients, net[p], DTYPE_F64, got, &fixture.error));
        for (size_t e = 0; e < shape_elements(&net[p]->tensor.shape); e++) {
            double expected = net_difference(net[p], e);
            ck_assert_msg(fabs(got[e] - expected) <= 1e-8, "%s[%zu]: %.10g, expected %.10g", net[p]->name, e,
                          got[e], expected);
            moved += fabs(expected) > 1e-3;
        }
    }
    ck_assert_uint_ge(moved, 20);
    fixture_close();
}
END_TEST

/* p is used by four operations, one of them twice; q shares p's memory through a reshape. */
START_TEST(shared_variables_add_up)
{
    open_variant(_i);
    struct parameter *p = fixture_add("p", SHAPE2(1, 2)), *unused = fixture_add("unused", SHAPE1(3));
    fixture_build(0);
    fixture_write(p, (double[]){3, 5});
    for (int step = 0; step < 2; step++) {
        fixture_begin();
        struct variable *v = fixture_use(p), *again = fixture_use(p);
        struct variable *coefficient = fixture_input(SHAPE2(1, 2), "c", (double[]){10, 100});
        struct variable *q =
            tape_reshape(fixture.tape, tape_reshape(fixture.tape, v, SHAPE1(2)), SHAPE2(1, 2));
        struct variable *twice = tape_add(fixture.tape, q, q, false);       // 2
        struct variable *sum = tape_add(fixture.tape, twice, again, false); // 3
        struct variable *more = tape_add(fixture.tape, sum, q, false);      // 4
        struct variable *both = tape_add(fixture.tape, v, again, false);    // 2
        fixture_expect_value(more, (double[]){12, 20});
        struct variable *a = tape_sum(fixture.tape, more, NULL, 1);
        struct variable *b = tape_sum(fixture.tape, both, coefficient, 1);
        CK_OK(tape_backward(fixture.tape, tape_add(fixture.tape, a, b, false)));
        ck_assert_uint_eq(in_use(), 64); // the loss, which nobody took
        CK_OK(tape_finish(fixture.tape, &fixture.error));
        fixture_expect_gradient(p, (double[]){4 + 20, 4 + 200});
        fixture_expect_gradient(unused, (double[]){0, 0, 0});
    }
    fixture_close();
}
END_TEST

/* A gradient of zero is one that was not written: what an earlier step left there is gone. */
START_TEST(a_parameter_out_of_reach_has_no_gradient)
{
    fixture_open();
    struct parameter *p = fixture_add("p", SHAPE1(2)), *q = fixture_add("q", SHAPE1(2));
    fixture_build(0);
    for (int step = 0; step < 2; step++) {
        fixture_begin();
        struct variable *used = fixture_use(step == 0 ? p : q), *idle = fixture_use(step == 0 ? q : p);
        tape_relu(fixture.tape, idle);
        CK_OK(tape_backward(fixture.tape, tape_sum(fixture.tape, used, NULL, 2)));
        CK_OK(tape_finish(fixture.tape, &fixture.error));
        fixture_expect_gradient(step == 0 ? p : q, (double[]){2, 2});
        fixture_expect_gradient(step == 0 ? q : p, (double[]){0, 0});
    }
    fixture_close();
}
END_TEST

START_TEST(an_inputs_gradient_can_be_had)
{
    open_variant(_i);
    fixture_build(0);
    fixture_begin();
    struct variable *x = fixture_input(SHAPE1(2), "x", (double[]){-1, 2});
    struct variable *idle = fixture_input(SHAPE1(2), "idle", (double[]){1, 1});
    struct variable *plain = fixture_input(SHAPE1(2), "plain", (double[]){1, 1});
    tape_want_gradient(x);
    tape_want_gradient(idle);
    struct variable *y = tape_add(fixture.tape, tape_relu(fixture.tape, x), plain, false);
    struct variable *z = tape_add(fixture.tape, y, x, false);
    CK_OK(tape_backward(fixture.tape, tape_sum(fixture.tape, z, NULL, 0.5)));
    double got[2];
    ck_assert_ptr_nonnull(variable_gradient(x));
    CK_OK(backend_download(fixture.backend, variable_gradient(x), DTYPE_F64, got, &fixture.error));
    fixture_expect(got, (double[]){0.5, 1}, 2, "gradient");
    ck_assert_ptr_null(variable_gradient(idle));
    ck_assert_ptr_null(variable_gradient(plain));
    CK_OK(tape_finish(fixture.tape, &fixture.error));
    fixture_begin();
    x = fixture_input(SHAPE1(2), "late", (double[]){-1, 2});
    tape_relu(fixture.tape, x);
    tape_want_gradient(x);
    fixture_expect_failure(STATUS_INVALID, "late");
    fixture_close();
}
END_TEST

/* Seeds of one variable add up, and what they point to stays the caller's. */
START_TEST(seeds_add_up_and_stay_as_they_are)
{
    open_variant(_i);
    struct parameter *p = fixture_add("p", SHAPE1(2));
    fixture_build(0);
    fixture_begin();
    struct variable *v = tape_add(fixture.tape, fixture_use(p), fixture_use(p), false),
                    *w = tape_reshape(fixture.tape, v, SHAPE2(1, 2));
    double first[2] = {1, 2}, second[2] = {10, 20};
    const struct tensor a = {.shape = SHAPE1(2), .dtype = DTYPE_F64, .data = first, .bytes = sizeof first};
    const struct tensor b = {.shape = SHAPE1(2), .dtype = DTYPE_F64, .data = second, .bytes = sizeof second};
    CK_OK(tape_seed(fixture.tape, v, &a));
    CK_OK(tape_seed(fixture.tape, v, &b));
    CK_OK(tape_seed(fixture.tape, v, &b));
    CK_OK(tape_seed(fixture.tape, v, NULL));
    CK_OK(tape_seed(fixture.tape, w, NULL));
    CK_OK(tape_walk(fixture.tape));
    CK_OK(tape_finish(fixture.tape, &fixture.error));
    fixture_expect_gradient(p, (double[]){2 * (1 + 20 + 2), 2 * (2 + 40 + 2)});
    fixture_expect(first, (double[]){1, 2}, 2, "first seed");
    fixture_expect(second, (double[]){10, 20}, 2, "second seed");
    fixture_begin();
    CK_OK(tape_seed(fixture.tape, fixture_use(p), &a));
    CK_OK(tape_walk(fixture.tape));
    fixture_expect_gradient(p, (double[]){1, 2});
    tape_seed(fixture.tape, fixture_use(p), &(struct tensor){.shape = SHAPE1(3), .dtype = DTYPE_F64});
    fixture_expect_failure(STATUS_INVALID, "not walked yet");
    fixture_begin();
    tape_seed(fixture.tape, fixture_use(p), &(struct tensor){.shape = SHAPE1(3), .dtype = DTYPE_F64});
    fixture_expect_failure(STATUS_INVALID, "a seed of shape 3 for a variable of shape 2");
    fixture_close();
}
END_TEST

/* ---- several tapes ---- */

START_TEST(tapes_live_side_by_side)
{
    net_open(0);
    double alone[NET_HIDDEN * NET_IN], beside[NET_HIDDEN * NET_IN];
    fixture_begin();
    CK_OK(tape_backward(fixture.tape, net_forward(fixture.tape)));
    CK_OK(tape_finish(fixture.tape, &fixture.error));
    CK_OK(gradients_read(fixture.gradients, net[0], DTYPE_F64, alone, &fixture.error));
    struct tape *other = NULL;
    struct gradients *others = NULL;
    CK_OK(tape_new(&other, fixture.backend, &fixture.error));
    CK_OK(gradients_new(&others, fixture.params, &fixture.error));
    fixture_begin();
    tape_begin(other, TAPE_TRAIN, others);
    struct variable *loss = net_forward(fixture.tape), *other_loss = net_forward(other);
    CK_OK(tape_backward(fixture.tape, loss));
    CK_OK(tape_finish(fixture.tape, &fixture.error));
    ck_assert_int_eq(tape_backward(other, other_loss), STATUS_OK);
    ck_assert_int_eq(tape_finish(other, NULL), STATUS_OK);
    CK_OK(gradients_read(others, net[0], DTYPE_F64, beside, &fixture.error));
    ck_assert_mem_eq(alone, beside, sizeof alone);
    CK_OK(gradients_read(fixture.gradients, net[0], DTYPE_F64, beside, &fixture.error));
    ck_assert_mem_eq(alone, beside, sizeof alone);
    fixture_begin();
    tape_relu(fixture.tape, tape_input(other, SHAPE1(1), DTYPE_F64, "x", (double[]){1}));
    fixture_expect_failure(STATUS_INVALID, "relu: a variable of another tape");
    tape_free(other);
    gradients_free(others);
    fixture_close();
}
END_TEST

/* ---- memory ---- */

START_TEST(inference_keeps_what_is_not_dropped)
{
    open_variant(_i);
    struct parameter *p = fixture_add("p", SHAPE1(64));
    fixture_build(0);
    tape_begin(fixture.tape, TAPE_INFER, NULL);
    struct variable *a = tape_relu(fixture.tape, fixture_use(p)), *b = tape_relu(fixture.tape, a);
    ck_assert_uint_eq(in_use(), 2 * 512);
    tape_drop(fixture.tape, a);
    tape_drop(fixture.tape, a);
    tape_drop(fixture.tape, NULL);
    ck_assert_uint_eq(in_use(), 512);
    struct variable *c = tape_reshape(fixture.tape, b, SHAPE2(8, 8));
    size_t before = in_use();
    ck_assert_uint_eq(before, _i == 0 ? 2 * 512 : 512);
    tape_drop(fixture.tape, b);
    ck_assert_uint_eq(in_use(), 512);
    double zeros[64] = {0};
    fixture_expect_value(c, zeros); // not poisoned with b
    tape_drop(fixture.tape, c);
    ck_assert_uint_eq(in_use(), 0);
    ck_assert_int_eq(tape_read(fixture.tape, c, DTYPE_F64, zeros), STATUS_INVALID);
    fixture_expect_failure(STATUS_INVALID, "released already");
    ck_assert_int_eq(tape_walk(fixture.tape), STATUS_INVALID);
    fixture_close();
}
END_TEST

/* In training a drop does nothing, and the walk gives back what operations took; a loss stays readable. */
START_TEST(the_walk_gives_memory_back)
{
    open_variant(_i);
    struct parameter *p = fixture_add("p", SHAPE1(64));
    fixture_build(0);
    fixture_begin();
    struct variable *a = tape_relu(fixture.tape, fixture_use(p)), *b = tape_relu(fixture.tape, a);
    tape_drop(fixture.tape, a);
    struct variable *loss = tape_sum(fixture.tape, b, NULL, 1), *aside = tape_relu(fixture.tape, b);
    ck_assert_uint_eq(in_use(), 3 * 512 + 64);
    CK_OK(tape_backward(fixture.tape, loss));
    ck_assert_uint_eq(in_use(), 512 + 64);
    double zeros[64] = {0};
    fixture_expect_value(loss, zeros);
    fixture_expect_value(aside, zeros);
    ck_assert_int_eq(tape_read(fixture.tape, b, DTYPE_F64, zeros), STATUS_INVALID);
    fixture_expect_failure(STATUS_INVALID, "p) that is released already");
    fixture_close();
}
END_TEST

START_TEST(what_is_used_after_the_end_is_poison)
{
    fixture_open();
    fixture_build(0);
    fixture_settle();
    fixture_begin();
    struct variable *x = fixture_input(SHAPE1(3), "x", (double[]){1, 2, 3});
    const double *kept = variable_tensor(x)->data;
    ck_assert(kept[1] == 2);
    CK_OK(tape_finish(fixture.tape, &fixture.error));
    ck_assert(isnan(kept[0]) && isnan(kept[1]) && isnan(kept[2]));
    fixture_begin();
    ck_assert_ptr_null(tape_relu(fixture.tape, x));
    fixture_expect_failure(STATUS_INVALID, "of an earlier step");
    fixture_close();
}
END_TEST

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
enum { COUNTS_ALLOCATIONS = 0 }; // these bring an allocator of their own
static atomic_uint allocations;
#else
enum { COUNTS_ALLOCATIONS = 1 };
static atomic_uint allocations;

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_calloc(count, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return __libc_memalign(alignment, bytes);
}
#endif

/* Check's own assertions allocate, so here are none. */
static bool three_steps(void)
{
    bool good = true;
    for (int step = 0; step < 3; step++) {
        fixture_begin();
        good = tape_backward(fixture.tape, net_forward(fixture.tape)) == STATUS_OK && good;
        good = tape_finish(fixture.tape, NULL) == STATUS_OK && good;
        tape_begin(fixture.tape, TAPE_INFER, NULL);
        good = net_forward(fixture.tape) != NULL && good;
    }
    return good;
}

START_TEST(equal_steps_allocate_nothing)
{
    net_open(_i);
    ck_assert(three_steps());
    unsigned before = atomic_load(&allocations);
    bool good = three_steps();
    unsigned after = atomic_load(&allocations);
    ck_assert(good);
    ck_assert_uint_eq(before, after);
    if (COUNTS_ALLOCATIONS)
        ck_assert_uint_gt(before, 0);
    CK_OK(tape_finish(fixture.tape, &fixture.error));
    ck_assert_uint_eq(in_use(), 0);
    fixture_close();
}
END_TEST

/* ---- failures ---- */

START_TEST(the_first_failure_sticks)
{
    net_open(0);
    fixture_begin();
    struct variable *x = fixture_input(SHAPE2(2, 3), "x", (double[6]){0});
    struct variable *bad = tape_linear(fixture.tape, x, fixture_use(net[0]), fixture_use(net[1]));
    ck_assert_ptr_null(bad);
    fixture_expect_failure(STATUS_INVALID, "2x3");
    struct variable *out[OP_OUTPUTS_MAX];
    ck_assert_ptr_null(tape_relu(fixture.tape, bad));
    ck_assert_ptr_null(tape_relu(fixture.tape, x));
    ck_assert_ptr_null(fixture_use(net[0]));
    ck_assert_ptr_null(fixture_input(SHAPE1(1), "y", (double[]){1}));
    ck_assert_ptr_null(tape_sum(fixture.tape, bad, NULL, 1));
    ck_assert_ptr_null(tape_global_avg_pool(fixture.tape, bad));
    ck_assert_ptr_null(tape_fail(fixture.tape, STATUS_IO, "another"));
    tape_want_gradient(bad);
    const struct tape_node node = {.name = "node", .inputs = 1, .outputs = 1, .in = {x}};
    ck_assert_int_eq(tape_node(fixture.tape, &node, out), STATUS_INVALID);
    ck_assert_int_eq(tape_seed(fixture.tape, x, NULL), STATUS_INVALID);
    ck_assert_int_eq(tape_backward(fixture.tape, bad), STATUS_INVALID);
    ck_assert_int_eq(tape_resume(fixture.tape), STATUS_INVALID);
    double value = 5;
    ck_assert_int_eq(tape_read(fixture.tape, bad, DTYPE_F64, &value), STATUS_INVALID);
    ck_assert_int_eq(tape_loss(fixture.tape, bad, &value), STATUS_INVALID);
    ck_assert(value == 5);
    fixture_expect_failure(STATUS_INVALID, "2x3");
    struct error error = {0};
    ck_assert_int_eq(tape_finish(fixture.tape, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "2x3"));
    fixture_begin();
    CK_OK(tape_backward(fixture.tape, net_forward(fixture.tape)));
    CK_OK(tape_finish(fixture.tape, &fixture.error));
    fixture_close();
}
END_TEST

/* ---- progress ---- */

static void count_call(void *context)
{
    ++*(int *)context;
}

START_TEST(progress_is_told_between_operations)
{
    net_open(0);
    int calls = 0;
    tape_on_progress(fixture.tape, count_call, &calls);
    fixture_begin();
    struct variable *loss = net_forward(fixture.tape);
    ck_assert_int_eq(calls, 6);
    CK_OK(tape_backward(fixture.tape, loss));
    ck_assert_int_eq(calls, 12);
    tape_on_progress(fixture.tape, NULL, NULL);
    net_loss();
    ck_assert_int_eq(calls, 12);
    fixture_close();
}
END_TEST

static int calls_left;

static void give_up_in_time(void *context)
{
    (void)context;
    if (--calls_left == 0)
        tape_fail(fixture.tape, STATUS_SHUTDOWN, "enough");
}

START_TEST(progress_may_give_the_step_up)
{
    struct error error = {0};
    net_open(0);
    tape_on_progress(fixture.tape, give_up_in_time, NULL);
    for (int after = 1; after <= 12; after++) { // six operations forward, six back
        calls_left = after;
        fixture_begin();
        ck_assert_int_eq(tape_backward(fixture.tape, net_forward(fixture.tape)), STATUS_SHUTDOWN);
        ck_assert_int_eq(calls_left, 0); // nothing was computed afterwards
        ck_assert_int_eq(tape_finish(fixture.tape, &error), STATUS_SHUTDOWN);
    }
    tape_on_progress(fixture.tape, NULL, NULL);
    net_loss();
    fixture_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tape");
    TCase *gradients = tcase_create("gradients");
    tcase_add_test(gradients, a_linear_fit_by_hand);
    tcase_add_loop_test(gradients, a_residual_net_against_finite_differences, 0, 2);
    tcase_add_loop_test(gradients, shared_variables_add_up, 0, 2);
    tcase_add_test(gradients, a_parameter_out_of_reach_has_no_gradient);
    tcase_add_loop_test(gradients, an_inputs_gradient_can_be_had, 0, 2);
    tcase_add_loop_test(gradients, seeds_add_up_and_stay_as_they_are, 0, 2);
    tcase_add_test(gradients, tapes_live_side_by_side);
    suite_add_tcase(suite, gradients);
    TCase *memory = tcase_create("memory");
    tcase_add_loop_test(memory, inference_keeps_what_is_not_dropped, 0, 2);
    tcase_add_loop_test(memory, the_walk_gives_memory_back, 0, 2);
    tcase_add_test(memory, what_is_used_after_the_end_is_poison);
    tcase_add_loop_test(memory, equal_steps_allocate_nothing, 0, 2);
    suite_add_tcase(suite, memory);
    TCase *failures = tcase_create("failures");
    tcase_add_test(failures, the_first_failure_sticks);
    tcase_add_test(failures, progress_is_told_between_operations);
    tcase_add_test(failures, progress_may_give_the_step_up);
    suite_add_tcase(suite, failures);
    return suite_run(suite);
}
