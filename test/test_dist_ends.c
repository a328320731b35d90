/* Deaths and distributed autograd (worker/net/dist.h): in a forward, in a backward, between the two; of the
 * callee, of one in the middle, of the root. The caller gets the status, and nothing is left anywhere. */
#include "test/dist_fixture.h"
#include "test/workplace.h"
#include "worker/net/dist_internal.h"

enum { ROWS = 2, ROOT = 0, MIDDLE = 1, FAR = 2 };

static struct tape *tape;
static struct dist_context *context;
static struct variable *x;

static void start(bool shared)
{
    dist_start(&ref_ops, shared, 3);
    for (unsigned name = 0; name < 3; name++)
        dist_object(name, "knot", name);
    tape = dist_tape(ROOT);
    context = dist_begin(ROOT, tape);
    x = tape_input(tape, SHAPE2(ROWS, WIDTH), DTYPE_F32, "x", (float[ROWS * WIDTH]){1, 2, 3});
    tape_want_gradient(x);
}

static enum status call_one(unsigned name, uint32_t function, uint64_t inner, uint32_t inner_function,
                            struct variable **out)
{
    const uint64_t numbers[2] = {inner, inner_function};
    return dist_call(context, stage.sides[ROOT].object[name], function, numbers, 2, &x, 1, out, 1);
}

static void expect_text(const struct error *error, enum status status, const char *words)
{
    ck_assert_int_eq(error->status, status);
    ck_assert_msg(strstr(error->text, words) != NULL, "\"%s\" does not say \"%s\"", error->text, words);
}

static void end(void)
{
    dist_context_free(context);
    dist_expect_nothing_left();
    tape_free(tape);
    dist_end();
}

/* The object never answers; its worker dies some turns later. Directly, and through the one in the middle. */
START_TEST(a_death_in_a_forward)
{
    struct variable *out;
    struct error error;
    start(_i & 1);
    stage.victim = _i < 2 ? MIDDLE : FAR;
    stage.kill_in = 200;
    enum status status = _i < 2 ? call_one(MIDDLE, KNOT_KEEP, 0, 0, &out)
                                : call_one(MIDDLE, KNOT_NESTED, FAR, KNOT_KEEP, &out);
    ck_assert_int_eq(status, STATUS_PEER_DIED);
    ck_assert_ptr_null(out);
    tape_status(tape, &error);
    expect_text(&error, STATUS_PEER_DIED, _i < 2 ? "" : "worker 1: knot: ");
    ck_assert_int_eq(dist_backward(context, out, &error), STATUS_PEER_DIED);
    end();
}
END_TEST

/* The middle dies while it waits for the far one, which then has nobody to answer. */
START_TEST(a_death_in_the_middle)
{
    struct variable *out;
    start(_i);
    stage.victim = MIDDLE;
    stage.kill_in = 200;
    ck_assert_int_eq(call_one(MIDDLE, KNOT_NESTED, FAR, KNOT_KEEP, &out), STATUS_PEER_DIED);
    UNTIL(dist_counts_of(FAR).contexts == 0, dist_wait());
    ck_assert_uint_eq(dist_counts_of(FAR).contexts, 0); // before the root has ended it
    end();
}
END_TEST

/* Between the two: the first one is there, the walk does not find it any more. */
START_TEST(a_death_before_the_backward)
{
    struct variable *out;
    struct error error = {0};
    start(_i & 1);
    ck_assert_int_eq(call_one(MIDDLE, KNOT_NESTED, FAR, KNOT_MAP, &out), STATUS_OK);
    dist_kill(_i < 2 ? MIDDLE : FAR);
    ck_assert_int_eq(dist_backward(context, tape_sum(tape, out, NULL, 1), &error), STATUS_PEER_DIED);
    expect_text(&error, STATUS_PEER_DIED, "worker");
    end();
}
END_TEST

/* While it is being walked: the far one is held up until it dies. */
START_TEST(a_death_in_a_backward)
{
    struct variable *out;
    struct error error = {0};
    start(_i & 1);
    ck_assert_int_eq(call_one(MIDDLE, KNOT_NESTED, FAR, KNOT_MAP, &out), STATUS_OK);
    struct variable *loss = tape_sum(tape, out, NULL, 1);
    stage.stalls[FAR] = true;
    stage.victim = _i < 2 ? FAR : MIDDLE;
    stage.kill_in = 300;
    ck_assert_int_eq(dist_backward(context, loss, &error), STATUS_PEER_DIED);
    expect_text(&error, STATUS_PEER_DIED, "");
    stage.stalls[FAR] = false;
    end();
}
END_TEST

/* Whoever called back into the root dies: what it had here goes, and the context has failed. */
START_TEST(a_death_of_one_who_called_back)
{
    struct variable *out;
    struct error error = {0};
    start(false);
    ck_assert_int_eq(call_one(MIDDLE, KNOT_NESTED, ROOT, KNOT_MAP, &out), STATUS_OK);
    ck_assert_uint_eq(dist_counts_of(ROOT).pieces, 1);
    dist_kill(MIDDLE);
    ck_assert_uint_eq(dist_counts_of(ROOT).pieces, 0);
    ck_assert_int_eq(call_one(FAR, KNOT_MAP, 0, 0, &out), STATUS_PEER_DIED);
    tape_status(tape, &error);
    expect_text(&error, STATUS_PEER_DIED, "worker 1 is gone");
    end();
}
END_TEST

/* A root's contexts go with it, also those of its calls' calls; the others' stay. */
START_TEST(a_death_of_the_root)
{
    struct variable *out, *mine;
    dist_start(&ref_ops, _i, 3);
    for (unsigned name = 0; name < 3; name++)
        dist_object(name, "knot", name);
    struct tape *other = dist_tape(FAR);
    struct dist_context *stays = dist_begin(FAR, other);
    mine = tape_input(other, SHAPE2(1, WIDTH), DTYPE_F32, "x", (float[WIDTH]){1});
    CK_DIST(dist_call(stays, stage.sides[FAR].object[MIDDLE], KNOT_MAP, NULL, 0, &mine, 1, &mine, 1));
    CK_DIST(tape_new(&tape, stage.sides[ROOT].backend, &stage.error));
    context = dist_begin(ROOT, tape);
    x = tape_input(tape, SHAPE2(ROWS, WIDTH), DTYPE_F32, "x", (float[ROWS * WIDTH]){1, 2, 3});
    ck_assert_int_eq(call_one(MIDDLE, KNOT_NESTED, FAR, KNOT_MAP, &out), STATUS_OK);
    ck_assert_uint_eq(dist_counts_of(MIDDLE).contexts, 2);
    const uint64_t id = dist_context_id(context);
    dist_kill(ROOT);
    UNTIL(dist_counts_of(MIDDLE).contexts + dist_counts_of(FAR).contexts <= 2, dist_wait());
    ck_assert_uint_eq(dist_counts_of(MIDDLE).contexts, 1);
    struct gradients *gone;
    ck_assert_int_eq(dist_gradients(stage.sides[FAR].dist, id, NULL, &gone, &stage.error), STATUS_NOT_FOUND);
    CK_DIST(dist_backward(stays, tape_sum(other, mine, NULL, 1), &stage.error));
    dist_context_free(stays);
    dist_expect_nothing_left();
    tape_free(other);
    tape_free(tape);
    dist_end();
}
END_TEST

/* Whoever has called itself goes on for nobody once its own caller is dead, though the root lives. */
START_TEST(a_death_before_one_who_called_itself)
{
    static const uint8_t workers[4] = {ROOT, MIDDLE, FAR, FAR};
    const uint64_t numbers[2] = {2, 1};
    struct variable *out;
    dist_start(&ref_ops, false, 3);
    for (unsigned name = 0; name < 4; name++)
        dist_object(workers[name], "knot", name);
    tape = dist_tape(ROOT);
    context = dist_begin(ROOT, tape);
    x = tape_input(tape, SHAPE2(1, WIDTH), DTYPE_F32, "x", (float[WIDTH]){1});
    CK_DIST(dist_call(context, stage.sides[ROOT].object[1], KNOT_DOWN, numbers, 2, &x, 1, &out, 1));
    ck_assert_uint_eq(dist_counts_of(FAR).pieces, 2);
    dist_kill(MIDDLE);
    dist_turns(20);
    ck_assert_uint_eq(dist_counts_of(FAR).contexts + dist_counts_of(FAR).pieces, 0);
    end();
}
END_TEST

/* The end of a worker with calls on their way: their futures tell after it. */
START_TEST(a_worker_ends_while_it_waits)
{
    struct variable *out;
    start(_i);
    stage.victim = FAR;
    stage.kill_in = 200;
    ck_assert_int_eq(call_one(MIDDLE, KNOT_NESTED, FAR, KNOT_KEEP, &out), STATUS_PEER_DIED);
    dist_context_free(context);
    tape_free(tape);
    dist_expect_nothing_left();
    tape = dist_tape(ROOT);
    context = dist_begin(ROOT, tape); // the workers that are left go on
    x = tape_input(tape, SHAPE2(1, WIDTH), DTYPE_F32, "x", (float[WIDTH]){1});
    ck_assert_int_eq(call_one(MIDDLE, KNOT_MAP, 0, 0, &out), STATUS_OK);
    CK_DIST(dist_backward(context, tape_sum(tape, out, NULL, 1), &stage.error));
    end();
}
END_TEST

/* ---- a root that is started again ---- */

enum { CLIENT = SERVERS, OTHER = SERVERS + 1 };

/* The status of a call of object 1 that `MIDDLE` makes in a context of its own choice. */
static enum status call_in_context(uint64_t id, struct error *error)
{
    static uint64_t calls;
    const struct rpc_message message = {
        .context = id, .args = {rref_object(stage.sides[MIDDLE].object[1]), KNOT_NUMBER, ++calls, 1}};
    struct future *future;
    CK_DIST(rpc_call_async(stage.cluster.members[MIDDLE].rpc, OTHER, METHOD_FORWARD, &message, MONOTIME_NEVER,
                           &future, &stage.error));
    UNTIL(future_done(future), dist_wait());
    error_set(error, future_status(future), "%s", future_text(future));
    future_release(future);
    return error->status;
}

/* A context of the one client's in which it has called the other. Its id. */
static uint64_t start_from_client(void)
{
    const uint64_t numbers[2] = {1, 2};
    struct variable *out;
    dist_start(&ref_ops, false, MEMBERS);
    dist_object(OTHER, "knot", 1);
    tape = dist_tape(CLIENT);
    context = dist_begin(CLIENT, tape);
    CK_DIST(dist_call(context, stage.sides[CLIENT].object[1], KNOT_NUMBER, numbers, 2, NULL, 0, &out, 1));
    return dist_context_id(context);
}

/* The other client hears of the second only by the one in the middle. */
START_TEST(a_root_that_is_started_again)
{
    const uint64_t id = start_from_client(), numbers[2] = {1, KNOT_MAP};
    struct error error = {0};
    struct variable *out;
    dist_context_free(context);
    tape_free(tape);
    dist_kill(CLIENT);
    ck_assert_int_eq(call_in_context(id, &error), STATUS_PEER_DIED);
    expect_text(&error, STATUS_PEER_DIED, "worker 3, the root of context");
    dist_client_again(CLIENT, 2);
    dist_object(MIDDLE, "knot", 0);
    tape = dist_tape(CLIENT);
    context = dist_begin(CLIENT, tape);
    x = tape_input(tape, SHAPE2(1, WIDTH), DTYPE_F32, "x", (float[WIDTH]){1});
    CK_DIST(dist_call(context, stage.sides[CLIENT].object[0], KNOT_NESTED, numbers, 2, &x, 1, &out, 1));
    ck_assert(rpc_is_gone(stage.cluster.members[OTHER].rpc, CLIENT, NULL)); // as far as it knows
    CK_DIST(dist_backward(context, tape_sum(tape, out, NULL, 1), &stage.error));
    end();
}
END_TEST

/* The end of the first reaches the other client behind a call within a context of the second. */
START_TEST(a_root_whose_end_is_told_late)
{
    const uint64_t first = start_from_client(), second = first + ((uint64_t)1 << INCARNATION_SHIFT);
    struct error error = {0};
    ck_assert_int_eq(call_in_context(second, &error), STATUS_OK);
    ck_assert_uint_eq(dist_counts_of(OTHER).contexts, 2);
    dist_context_free(context);
    tape_free(tape);
    dist_kill(CLIENT);
    dist_turns(20);
    ck_assert_int_eq(call_in_context(first, &error), STATUS_PEER_DIED);
    ck_assert_uint_eq(dist_counts_of(OTHER).contexts, 1);
    ck_assert_int_eq(call_in_context(second, &error), STATUS_OK); // it goes on
    dist_kill(MIDDLE);
    dist_end();
}
END_TEST

int main(void)
{
    dist_reserve_descriptors();
    Suite *suite = suite_create("dist_ends");
    TCase *deaths = tcase_create("deaths");
    tcase_set_timeout(deaths, 30);
    tcase_add_loop_test(deaths, a_death_in_a_forward, 0, 4);
    tcase_add_test(deaths, a_death_before_one_who_called_itself);
    tcase_add_loop_test(deaths, a_death_in_the_middle, 0, 2);
    tcase_add_loop_test(deaths, a_death_before_the_backward, 0, 4);
    tcase_add_loop_test(deaths, a_death_in_a_backward, 0, 4);
    tcase_add_test(deaths, a_death_of_one_who_called_back);
    tcase_add_loop_test(deaths, a_death_of_the_root, 0, 2);
    tcase_add_loop_test(deaths, a_worker_ends_while_it_waits, 0, 2);
    tcase_add_test(deaths, a_root_that_is_started_again);
    tcase_add_test(deaths, a_root_whose_end_is_told_late);
    suite_add_tcase(suite, deaths);
    return suite_run(suite);
}
