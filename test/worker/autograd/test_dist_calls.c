/* Calls by a piece's code (dist_call_async): two at a time, one that is answered after the piece itself, one
 * of an object whose handle is released at once, and very many. */
#include "kernels/params/gradients.h"
#include "test/worker/autograd/dist_fixture.h"
#include "test/workplace.h"

enum { ROOT = 0, MIDDLE = 1, FAR = 2, ROWS = 8, SLEEP_TURNS = 400 };

static struct tape *tape;
static struct dist_context *context;
static struct variable *x;

/* The root's object 0, whose pieces run `forward`, is the one in the middle's. In the arithmetic of jobs: the
 * oracle's sums hide their order. */
static void start(void (*forward)(struct knot *knot, struct dist_piece *piece))
{
    dist_start(NULL, false, 3);
    stage.forward = forward;
    stage.is_awake = stage.is_slow = true;
    dist_object(MIDDLE, "knot", 0);
}

static void begin(void)
{
    float values[ROWS * WIDTH];
    for (uint32_t i = 0; i < ROWS * WIDTH; i++)
        values[i] = (float)(mix(3, i) % 1000) / 300 - 1;
    tape = dist_tape(ROOT);
    context = dist_begin(ROOT, tape);
    x = tape_input(tape, SHAPE2(ROWS, WIDTH), DTYPE_F32, "x", values);
    tape_want_gradient(x);
}

static void end(void)
{
    dist_context_free(context);
    dist_expect_nothing_left();
    tape_free(tape);
}

static struct variable *call_test(void)
{
    struct variable *out;
    CK_DIST(dist_call(context, stage.sides[ROOT].object[0], KNOT_TEST, NULL, 0, &x, 1, &out, 1));
    return out;
}

static void input_gradient(float gradient[ROWS * WIDTH])
{
    CK_DIST(backend_download(tape_backend(tape), variable_gradient(x), DTYPE_F32, gradient, &stage.error));
}

/* ---- two at a time ---- */

static struct pair {
    struct knot *knot;
    struct variable *out[2];
    unsigned done, first;
} pair;

static void one_of_two(void *arg, struct dist_piece *piece, enum status status, struct variable *const out[],
                       uint32_t out_count)
{
    const unsigned which = (unsigned)((struct variable **)arg - pair.out);
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_uint_eq(out_count, 1);
    pair.out[which] = out[0];
    if (pair.done++ == 0) {
        pair.first = which;
        return;
    }
    struct tape *at = dist_piece_tape(piece);
    struct variable *sum = tape_add(at, pair.out[0], pair.out[1], false);
    sum = tape_add(at, sum, knot_map(pair.knot, at, dist_piece_given(piece)->in[0]), false);
    dist_return(piece, &sum, 1);
}

static void call_two(struct knot *knot, struct dist_piece *piece)
{
    struct variable *in = dist_piece_given(piece)->in[0];
    pair = (struct pair){.knot = knot};
    stage.sides[FAR].asleep = SLEEP_TURNS;
    for (unsigned i = 0; i < 2; i++)
        dist_call_async(piece, knot->side->object[1 + i], KNOT_MAP, NULL, 0, &in, 1, one_of_two,
                        &pair.out[i]);
}

/* The input's gradient is a sum of three; the one of the two objects that is on the far worker is answered
 * last. */
static void gradient_of_two(unsigned first, unsigned second, float gradient[ROWS * WIDTH])
{
    start(call_two);
    dist_object(first, "knot", 1);
    dist_object(second, "knot", 2);
    begin();
    CK_DIST(dist_backward(context, tape_sum(tape, call_test(), NULL, 1), &stage.error));
    input_gradient(gradient);
    end();
    dist_end();
}

START_TEST(two_calls_are_recorded_in_the_order_in_which_they_were_made)
{
    float one[ROWS * WIDTH], other[ROWS * WIDTH];
    gradient_of_two(ROOT, FAR, one);
    gradient_of_two(FAR, ROOT, other);
    ck_assert_mem_eq(one, other, sizeof one);
    ck_assert_uint_eq(pair.first, 0);
}
END_TEST

/* The second is answered and waits for the first when the worker ends: its code is told then. */
static void told_of_the_end(void *arg, struct dist_piece *piece, enum status status,
                            struct variable *const out[], uint32_t out_count)
{
    (void)arg;
    (void)piece;
    ck_assert_int_eq(status, STATUS_PEER_DIED);
    ck_assert_ptr_null(out);
    ck_assert_uint_eq(out_count, 0);
    pair.done++;
}

static void call_two_for_nothing(struct knot *knot, struct dist_piece *piece)
{
    struct variable *in = dist_piece_given(piece)->in[0];
    pair = (struct pair){.knot = knot};
    dist_call_async(piece, knot->side->object[1], KNOT_KEEP, NULL, 0, &in, 1, told_of_the_end, NULL);
    dist_call_async(piece, knot->side->object[0], KNOT_MAP, NULL, 0, &in, 1, told_of_the_end, NULL);
}

START_TEST(an_answer_that_waits_for_another_ends_with_the_piece)
{
    struct variable *out;
    start(call_two_for_nothing);
    dist_object(FAR, "knot", 1);
    begin();
    stage.victim = MIDDLE;
    stage.kill_in = SLEEP_TURNS;
    ck_assert_int_eq(dist_call(context, stage.sides[ROOT].object[0], KNOT_TEST, NULL, 0, &x, 1, &out, 1),
                     STATUS_PEER_DIED);
    ck_assert_uint_eq(pair.done, 2);
    end();
    dist_end();
}
END_TEST

/* ---- answered after the piece ---- */

static unsigned late, far_sleeps;

static void too_late(void *arg, struct dist_piece *piece, enum status status, struct variable *const out[],
                     uint32_t out_count)
{
    (void)arg;
    ck_assert_int_eq(status, STATUS_INVALID);
    ck_assert_ptr_null(out);
    ck_assert_uint_eq(out_count, 0);
    CK_DIST(tape_status(dist_piece_tape(piece), &stage.error));
    late++;
}

/* The far worker answers it either at once or while the piece is walked: then its answer comes before the
 * gradient for which the walk waits. */
static void answer_early(void *arg, struct dist_piece *piece, enum status status,
                         struct variable *const out[], uint32_t out_count)
{
    struct knot *knot = arg;
    struct variable *in = dist_piece_given(piece)->in[0], *y = out[0];
    ck_assert_int_eq(status, STATUS_OK);
    ck_assert_uint_eq(out_count, 1);
    stage.sides[FAR].asleep = far_sleeps;
    dist_call_async(piece, knot->side->object[1], KNOT_MAP, NULL, 0, &in, 1, too_late, NULL);
    dist_return(piece, &y, 1);
}

static void call_and_answer_early(struct knot *knot, struct dist_piece *piece)
{
    struct variable *in = dist_piece_given(piece)->in[0];
    dist_call_async(piece, knot->side->object[1], KNOT_MAP, NULL, 0, &in, 1, answer_early, knot);
}

/* 0: the answer comes while the piece waits for its backward; 1: while it is walked. */
START_TEST(an_answer_after_the_piece_s_own_is_not_recorded)
{
    late = 0;
    far_sleeps = _i == 0 ? 0 : SLEEP_TURNS;
    start(call_and_answer_early);
    dist_object(FAR, "knot", 1);
    begin();
    struct variable *y = call_test();
    if (_i == 0)
        UNTIL(late == 1, dist_wait());
    CK_DIST(dist_backward(context, tape_sum(tape, y, NULL, 1), &stage.error));
    ck_assert_ptr_nonnull(variable_gradient(x));
    ck_assert_uint_eq(late, 1);
    end();
    dist_end();
}
END_TEST

/* ---- the last handle ---- */

static void pass_on(void *arg, struct dist_piece *piece, enum status status, struct variable *const out[],
                    uint32_t out_count)
{
    (void)arg;
    if (status == STATUS_OK)
        dist_return(piece, out, out_count);
    else
        dist_return(piece, NULL, 0); /* fails with what has stuck */
}

static void call_and_let_go(struct knot *knot, struct dist_piece *piece)
{
    struct variable *in = dist_piece_given(piece)->in[0];
    struct rref **object = &knot->side->object[1];
    dist_call_async(piece, *object, KNOT_MAP, NULL, 0, &in, 1, pass_on, NULL);
    rref_release(*object);
    *object = NULL;
}

static uint32_t users_of(unsigned worker)
{
    struct rref_counts counts;
    rrefs_counts(stage.sides[worker].rrefs, &counts);
    return counts.users;
}

/* Nobody but the piece's worker has the object, which is another's or its own. */
START_TEST(a_call_keeps_its_object_until_it_is_answered)
{
    const unsigned owner = _i == 0 ? FAR : MIDDLE;
    start(call_and_let_go);
    dist_object(owner, "knot", 1);
    const uint32_t users = users_of(owner);
    for (unsigned w = 0; w < 3; w++)
        if (w != MIDDLE) {
            rref_release(stage.sides[w].object[1]);
            stage.sides[w].object[1] = NULL;
        }
    UNTIL(users_of(owner) == users - (owner == MIDDLE ? 2 : 1), dist_wait());
    begin();
    CK_DIST(dist_backward(context, tape_sum(tape, call_test(), NULL, 1), &stage.error));
    ck_assert_uint_eq(stage.knots_alive, 2); // the context keeps it further
    end();
    UNTIL(stage.knots_alive == 1, dist_wait());
    ck_assert_uint_eq(stage.knots_alive, 1);
    dist_end();
}
END_TEST

/* ---- many ---- */

enum { MANY = 300 }; /* more than the fixture's pending_max */

static struct many {
    struct knot *knot;
    unsigned done;
    struct variable *sum;
} many;

static struct variable *token(struct tape *at)
{
    return tape_input(at, SHAPE1(1), DTYPE_I32, "token", (int32_t[]){0});
}

static void call_next(void *arg, struct dist_piece *piece, enum status status, struct variable *const out[],
                      uint32_t out_count)
{
    struct tape *at = dist_piece_tape(piece);
    (void)arg;
    ck_assert_int_eq(status, STATUS_OK);
    if (out_count == 1)
        many.sum = many.sum == NULL ? out[0] : tape_add(at, many.sum, out[0], false);
    if (out_count == 1 && ++many.done == MANY) {
        dist_return(piece, &many.sum, 1);
        return;
    }
    struct variable *in = token(at);
    dist_call_async(piece, many.knot->side->object[1], 0, NULL, 0, &in, 1, call_next, NULL);
}

static void call_many(struct knot *knot, struct dist_piece *piece)
{
    many = (struct many){.knot = knot};
    call_next(NULL, piece, STATUS_OK, NULL, 0);
}

static struct variable *root_calls_many(void)
{
    struct variable *sum = NULL;
    for (unsigned i = 0; i < MANY; i++) {
        struct variable *in = token(tape), *out;
        CK_DIST(dist_call(context, stage.sides[ROOT].object[1], 0, NULL, 0, &in, 1, &out, 1));
        sum = sum == NULL ? out : tape_add(tape, sum, out, false);
    }
    return sum;
}

/* Rows of a table: the root's calls, and a piece's. */
START_TEST(more_calls_than_may_be_pending)
{
    struct gradients *gradients;
    double values[TABLE_ROWS * WIDTH];
    start(call_many);
    stage.is_slow = false;
    dist_object(FAR, "table", 1);
    begin();
    struct variable *sum = _i == 0 ? root_calls_many() : call_test();
    CK_DIST(dist_backward(context, tape_sum(tape, sum, NULL, 1), &stage.error));
    struct knot *table = rref_local(stage.sides[FAR].object[1]);
    CK_DIST(dist_gradients(stage.sides[FAR].dist, dist_context_id(context), table, &gradients, &stage.error));
    CK_DIST(gradients_read(gradients, table->weight, DTYPE_F64, values, &stage.error));
    ck_assert_double_eq(values[0], MANY);
    end();
    dist_end();
}
END_TEST

int main(void)
{
    dist_reserve_descriptors();
    Suite *suite = suite_create("dist_calls");
    TCase *calls = tcase_create("calls");
    tcase_set_timeout(calls, 60);
    tcase_add_test(calls, two_calls_are_recorded_in_the_order_in_which_they_were_made);
    tcase_add_test(calls, an_answer_that_waits_for_another_ends_with_the_piece);
    tcase_add_loop_test(calls, an_answer_after_the_piece_s_own_is_not_recorded, 0, 2);
    tcase_add_loop_test(calls, a_call_keeps_its_object_until_it_is_answered, 0, 2);
    tcase_add_loop_test(calls, more_calls_than_may_be_pending, 0, 2);
    suite_add_tcase(suite, calls);
    return suite_run(suite);
}
