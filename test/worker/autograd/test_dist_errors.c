/* Failures in distributed autograd (worker/autograd/dist.h): their texts at the caller; and a peer that
 * breaks the protocol, which costs it a status or its session, and the other workers nothing. */
#include "kernels/params/gradients.h"
#include "test/worker/autograd/dist_fixture.h"
#include "test/workplace.h"

enum { ROWS = 2, ROOT = 0, OWNER = 1, PEER = 2 };

static struct tape *tape;
static struct dist_context *context;
static struct variable *x;

static void begin(void)
{
    tape = dist_tape(ROOT);
    context = dist_begin(ROOT, tape);
    x = tape_input(tape, SHAPE2(ROWS, WIDTH), DTYPE_F32, "x", (float[ROWS * WIDTH]){1, 2, 3});
    tape_want_gradient(x);
}

static void start(void)
{
    dist_start(&ref_ops, false, 3);
    for (unsigned name = 0; name < 3; name++)
        dist_object(name, "knot", name);
    begin();
}

static void end_context(void)
{
    dist_context_free(context);
    dist_expect_nothing_left();
    tape_free(tape);
}

static void end(void)
{
    end_context();
    dist_end();
}

static void expect_stuck(enum status status, const char *words)
{
    struct error error = {0};
    ck_assert_int_eq(tape_status(tape, &error), status);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" does not say \"%s\"", error.text, words);
}

/* ---- the caller's own ---- */

static const struct {
    unsigned object;
    uint32_t function;
    uint64_t numbers[2];
    uint32_t number_count, out_count;
    enum status status;
    const char *words;
} refused[] = {
    {1, KNOT_FAIL, {0}, 0, 1, STATUS_INVALID, "worker 1: knot: knot 1 has no such thing"},
    {1,
     KNOT_VAST,
     {0},
     0,
     1,
     STATUS_INVALID,
     "worker 1: knot: a tensor of shape 13422x1x10000 has more than the 536870912 bytes of a message"},
    {1, KNOT_WRONG, {0}, 0, 1, STATUS_INVALID, "worker 1: knot: linear"},
    {1, 99, {0}, 0, 1, STATUS_NOT_FOUND, "worker 1: knot: no such function"},
    {1, KNOT_NESTED, {2, KNOT_FAIL}, 2, 1, STATUS_INVALID, "worker 1: knot: worker 2: knot: knot 2 has no"},
    {1, KNOT_DOWN, {DIST_DEPTH_MAX, 1}, 2, 1, STATUS_INVALID, "calls nested deeper than 16"},
    {1, KNOT_MAP, {0}, 0, 2, STATUS_INVALID, "worker 1 has answered a call with 1 outputs, expected 2"},
    {3, KNOT_MAP, {0}, 0, 1, STATUS_INVALID, "worker 1: a stone cannot be called within a context"},
};

START_TEST(a_refused_call_says_why)
{
    struct variable *out[2] = {NULL, NULL};
    struct error error = {0};
    start();
    dist_object(OWNER, "stone", 3);
    stage.objects = 3;
    ck_assert_int_eq(dist_call(context, stage.sides[ROOT].object[refused[_i].object], refused[_i].function,
                               refused[_i].numbers, refused[_i].number_count, &x, 1, out,
                               refused[_i].out_count),
                     refused[_i].status);
    ck_assert_ptr_null(out[0]);
    expect_stuck(refused[_i].status, refused[_i].words);
    if (refused[_i].out_count == 1)
        ck_assert_uint_eq(dist_counts_of(OWNER).pieces, 0); // gone at once
    ck_assert_int_eq(dist_backward(context, x, &error), refused[_i].status);
    end_context();
    begin(); // the next context is none the worse
    CK_DIST(dist_call(context, stage.sides[ROOT].object[1], KNOT_MAP, NULL, 0, &x, 1, out, 1));
    CK_DIST(dist_backward(context, tape_sum(tape, out[0], NULL, 1), &stage.error));
    end();
}
END_TEST

START_TEST(a_failure_while_walking_reaches_the_root)
{
    struct variable *out;
    struct error error = {0};
    const uint64_t numbers[2] = {2, KNOT_MAP};
    start();
    CK_DIST(dist_call(context, stage.sides[ROOT].object[1], KNOT_NESTED, numbers, 2, &x, 1, &out, 1));
    ck_assert_int_eq(dist_backward(context, out, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "scalar"));
    end();
}
END_TEST

START_TEST(limits_are_told)
{
    struct tape *more[16];
    struct dist_context *contexts[16], *refused_one;
    start();
    for (int i = 0; i < 15; i++) {
        more[i] = dist_tape(ROOT);
        contexts[i] = dist_begin(ROOT, more[i]);
    }
    more[15] = dist_tape(ROOT);
    ck_assert_int_eq(
        dist_context_new(&refused_one, stage.sides[ROOT].dist, TAPE_TRAIN, more[15], &stage.error),
        STATUS_BUSY);
    for (int i = 0; i < 15; i++)
        dist_context_free(contexts[i]);
    for (int i = 0; i < 16; i++)
        tape_free(more[i]);
    end();
}
END_TEST

START_TEST(the_pieces_limit_is_told)
{
    struct variable *out;
    dist_start_with(&ref_ops, false, 3, 1);
    dist_object(OWNER, "knot", 0);
    begin();
    CK_DIST(dist_call(context, stage.sides[ROOT].object[0], KNOT_MAP, NULL, 0, &x, 1, &out, 1));
    ck_assert_int_eq(dist_call(context, stage.sides[ROOT].object[0], KNOT_MAP, NULL, 0, &x, 1, &out, 1),
                     STATUS_BUSY);
    expect_stuck(STATUS_BUSY, "worker 1 computes 1 calls of its objects: no more than 1 fit");
    end();
}
END_TEST

/* ---- a peer without rules ---- */

static struct future *send_raw(enum wire_method method, const struct rpc_message *message)
{
    struct future *future;
    CK_DIST(rpc_call_async(stage.cluster.members[PEER].rpc, OWNER, method, message, MONOTIME_NEVER, &future,
                           &stage.error));
    UNTIL(future_done(future), dist_wait());
    return future;
}

static void expect_raw(enum wire_method method, const struct rpc_message *message, enum status status,
                       const char *words)
{
    struct future *future = send_raw(method, message);
    ck_assert_msg(future_status(future) == status, "%s: %s", status_name(future_status(future)),
                  future_text(future));
    ck_assert_msg(strstr(future_text(future), words) != NULL, "\"%s\" does not say \"%s\"",
                  future_text(future), words);
    future_release(future);
}

enum { DEPTH = 1, TRAINS = 1 << 8, ONE_INPUT = 1 << 12, PRESENT = 1 << 16, WANTED = 1 << 20 };
enum { GOOD = DEPTH | TRAINS | ONE_INPUT | PRESENT | WANTED };

static const float ones[ROWS * WIDTH] = {1, 1, 1, 1, 1, 1, 1, 1};

/* A call of worker 2's, in a context of its own; what is wrong with it is the case's. */
static struct rpc_message forward(uint64_t flags, uint8_t dtype)
{
    return (struct rpc_message){.context = (uint64_t)PEER << 48 | 77,
                                .args = {rref_object(stage.sides[PEER].object[1]), KNOT_MAP, 5, flags},
                                .tensor_count = 1,
                                .tensors = {{dtype, 2, .dims = {ROWS, WIDTH}}},
                                .data = {ones}};
}

static const struct {
    uint64_t flags;
    uint8_t dtype;
} malformed[] = {
    {GOOD & ~(uint64_t)DEPTH, WIRE_F32},           /* at no depth */
    {GOOD | (uint64_t)1 << 60, WIRE_F32},          /* unknown bits */
    {GOOD | PRESENT << 1, WIRE_F32},               /* an input beyond those given */
    {GOOD & ~(uint64_t)PRESENT, WIRE_F32},         /* wanted, but absent */
    {GOOD & ~(uint64_t)TRAINS, WIRE_F32},          /* wanted, but nothing is recorded */
    {GOOD | (uint64_t)1 << 24, WIRE_F32},          /* a scalar of eight */
    {GOOD | (uint64_t)2 << 32, WIRE_F32},          /* numbers that are not there */
    {GOOD | (uint64_t)17 << 32, WIRE_F32},         /* too many of them */
    {GOOD, WIRE_U32},                              /* the gradient of integers */
    {(GOOD & ~(uint64_t)WANTED), WIRE_U8},         /* bytes */
    {DEPTH | TRAINS | (uint64_t)1 << 12, WIRE_F32} /* a tensor that nobody names */
};

START_TEST(a_malformed_call_costs_its_sender_the_session)
{
    struct variable *out;
    start();
    const struct rpc_message message = forward(malformed[_i].flags, malformed[_i].dtype);
    future_release(send_raw(METHOD_FORWARD, &message));
    UNTIL(stage.cluster.members[OWNER].left >> PEER & 1, dist_wait());
    ck_assert_uint_eq(stage.cluster.members[OWNER].left, 1u << PEER);
    ck_assert_uint_eq(dist_counts_of(OWNER).contexts, 0);
    ck_assert_int_eq(dist_call(context, stage.sides[ROOT].object[1], KNOT_MAP, NULL, 0, &x, 1, &out, 1),
                     STATUS_PEER_DIED);
    expect_stuck(STATUS_PEER_DIED, "worker 1: worker 2 is gone");
    end();
}
END_TEST

/* Well-formed, and wrong. */
START_TEST(a_wrong_request_is_told_so)
{
    start();
    struct rpc_message good = forward(GOOD, WIRE_F32), other = good;
    other.args[0] += 1000;
    expect_raw(METHOD_FORWARD, &other, STATUS_NOT_FOUND, "does not exist");
    other = forward(GOOD - DEPTH + 200, WIRE_F32);
    expect_raw(METHOD_FORWARD, &other, STATUS_INVALID, "calls nested deeper than 16");
    other = good;
    other.context = (uint64_t)OWNER << 48 | 9;
    expect_raw(METHOD_FORWARD, &other, STATUS_NOT_FOUND, "context 1000000000009 has ended");
    other.context = (uint64_t)MEMBERS << 48 | 9;
    expect_raw(METHOD_FORWARD, &other, STATUS_INVALID,
               "context 5000000000009 of worker 5: expected a worker below 5");
    expect_raw(METHOD_FORWARD, &good, STATUS_OK, "");
    expect_raw(METHOD_FORWARD, &good, STATUS_INVALID, "call 5 of worker 2 came before");
    struct rpc_message back = {.context = good.context,
                               .args = {6, 1},
                               .tensor_count = 1,
                               .tensors = {{WIRE_F32, 2, .dims = {ROWS, WIDTH}}},
                               .data = {ones}};
    expect_raw(METHOD_BACKWARD, &back, STATUS_NOT_FOUND, "no call 6 of worker 2");
    back.args[0] = 5;
    back.args[1] = 2;
    expect_raw(METHOD_BACKWARD, &back, STATUS_INVALID,
               "a backward of call 5: expected gradients of its 1 outputs");
    back.args[1] = 1;
    expect_raw(METHOD_BACKWARD, &back, STATUS_OK, "");
    expect_raw(METHOD_BACKWARD, &back, STATUS_INVALID, "a backward of call 5: it had one before");
    other = good;
    other.args[2] = 8;
    expect_raw(METHOD_FORWARD, &other, STATUS_OK, "");
    back.args[0] = 8;
    back.tensors[0].dims[0] = 1;
    expect_raw(METHOD_BACKWARD, &back, STATUS_INVALID, "worker 1: knot: a seed of shape 1x4");
    const struct rpc_message over = {.context = good.context};
    expect_raw(METHOD_END_CONTEXT, &over, STATUS_OK, "");
    expect_raw(METHOD_END_CONTEXT, &over, STATUS_OK, "");
    expect_raw(METHOD_BACKWARD, &back, STATUS_NOT_FOUND, "this worker has no c");
    expect_raw(METHOD_FORWARD, &good, STATUS_OK,
               ""); // a call that comes late: its caller's end comes behind it
    expect_raw(METHOD_END_CONTEXT, &over, STATUS_OK, "");
    end();
}
END_TEST

/* 0: a backward of nothing, 1: one whose gradient is no float. */
START_TEST(a_malformed_gradient_costs_its_sender_the_session)
{
    start();
    struct rpc_message message = {.context = (uint64_t)PEER << 48 | 77,
                                  .args = {5, _i == 0 ? 0 : 1},
                                  .tensor_count = 1,
                                  .tensors = {{_i == 0 ? WIRE_F32 : WIRE_U32, 2, .dims = {ROWS, WIDTH}}},
                                  .data = {ones}};
    future_release(send_raw(METHOD_BACKWARD, &message));
    UNTIL(stage.cluster.members[OWNER].left >> PEER & 1, dist_wait());
    ck_assert_uint_eq(stage.cluster.members[OWNER].left, 1u << PEER);
    end();
}
END_TEST

/* Nobody but a root ends its context. */
START_TEST(a_strangers_end_ends_nothing)
{
    struct variable *out;
    start();
    CK_DIST(dist_call(context, stage.sides[ROOT].object[1], KNOT_MAP, NULL, 0, &x, 1, &out, 1));
    const struct rpc_message over = {.context = dist_context_id(context)};
    expect_raw(METHOD_END_CONTEXT, &over, STATUS_OK, "");
    ck_assert_uint_eq(dist_counts_of(OWNER).contexts, 1);
    CK_DIST(dist_backward(context, tape_sum(tape, out, NULL, 1), &stage.error));
    end();
}
END_TEST

/* Indices that are lent are looked at once: what their lender writes over them changes nothing that was found
 * to be within the table. */
START_TEST(lent_indices_are_those_that_were_checked)
{
    enum { TOKENS = 17000, ROW = 2, OTHER_ROW = 4 };
    static int32_t values[TOKENS];
    float got[TABLE_ROWS * WIDTH];
    struct variable *out;
    struct gradients *gradients = NULL;
    dist_start(&ref_ops, true, 2);
    dist_object(OWNER, "table", 0);
    begin();
    for (unsigned i = 0; i < TOKENS; i++)
        values[i] = ROW;
    struct variable *tokens = tape_input(tape, SHAPE1(TOKENS), DTYPE_I32, "tokens", values);
    int32_t *lent = variable_tensor(tokens)->data;
    ck_assert_ptr_eq(segment_at(&stage.sides[ROOT].outbox,
                                (uintptr_t)lent - (uintptr_t)stage.sides[ROOT].outbox.data, sizeof values),
                     lent);
    CK_DIST(dist_call(context, stage.sides[ROOT].object[0], 0, NULL, 0, &tokens, 1, &out, 1));
    for (unsigned i = 0; i < TOKENS; i++)
        lent[i] = OTHER_ROW;
    CK_DIST(dist_backward(context, tape_sum(tape, out, NULL, 1), &stage.error));
    struct knot *table = rref_local(stage.sides[OWNER].object[0]);
    CK_DIST(
        dist_gradients(stage.sides[OWNER].dist, dist_context_id(context), table, &gradients, &stage.error));
    CK_DIST(gradients_read(gradients, table->weight, DTYPE_F32, got, &stage.error));
    for (unsigned i = 0; i < TABLE_ROWS * WIDTH; i++)
        ck_assert_float_eq(got[i], i / WIDTH == ROW ? TOKENS : 0);
    end();
}
END_TEST

int main(void)
{
    dist_reserve_descriptors();
    Suite *suite = suite_create("dist_errors");
    TCase *errors = tcase_create("errors");
    tcase_set_timeout(errors, 30);
    tcase_add_loop_test(errors, a_refused_call_says_why, 0, (int)(sizeof refused / sizeof refused[0]));
    tcase_add_test(errors, a_failure_while_walking_reaches_the_root);
    tcase_add_test(errors, limits_are_told);
    tcase_add_test(errors, the_pieces_limit_is_told);
    suite_add_tcase(suite, errors);
    TCase *peers = tcase_create("peers");
    tcase_set_timeout(peers, 30);
    tcase_add_loop_test(peers, a_malformed_call_costs_its_sender_the_session, 0,
                        (int)(sizeof malformed / sizeof malformed[0]));
    tcase_add_loop_test(peers, a_malformed_gradient_costs_its_sender_the_session, 0, 2);
    tcase_add_test(peers, a_wrong_request_is_told_so);
    tcase_add_test(peers, a_strangers_end_ends_nothing);
    tcase_add_test(peers, lent_indices_are_those_that_were_checked);
    suite_add_tcase(suite, peers);
    return suite_run(suite);
}
