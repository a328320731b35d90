/* Deaths and distributed autograd (worker/autograd/dist.h): a callee, a worker in the middle or the root
 * dies in a forward, in a backward, or between the two. Callers get STATUS_PEER_DIED, and no worker keeps
 * a record of the context. */
#include "test/worker/autograd/dist_fixture.h"
#include "test/workplace.h"
#include "worker/autograd/dist_message.h"

enum { ROWS = 2, ROOT = 0, MIDDLE = 1, FAR = 2, CLIENT = SERVERS, OTHER = SERVERS + 1 };

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

static void start(bool shared)
{
    dist_start(&ref_ops, shared, 3);
    for (unsigned name = 0; name < 3; name++)
        dist_object(name, "knot", name);
    begin();
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

/* ---- requests by hand ---- */

static struct future *send_raw(unsigned from, unsigned to, enum wire_method method,
                               const struct rpc_message *message)
{
    struct future *future;
    CK_DIST(rpc_call_async(stage.cluster.members[from].rpc, (uint16_t)to, method, message, MONOTIME_NEVER,
                           &future, &stage.error));
    return future;
}

static enum status await(struct future *future, struct error *error)
{
    UNTIL(future_done(future), dist_wait());
    error_set(error, future_status(future), "%s", future_text(future));
    future_release(future);
    return error->status;
}

/* A call of object 1, without input. */
static struct rpc_message forward(unsigned from, uint32_t function, uint64_t id)
{
    static uint64_t calls;
    return (struct rpc_message){.context = id,
                                .args = {rref_object(stage.sides[from].object[1]), function, ++calls, 1}};
}

static struct rpc_message backward(uint64_t id, uint64_t call)
{
    static const float ones[ROWS * WIDTH] = {1, 1, 1, 1, 1, 1, 1, 1};
    return (struct rpc_message){.context = id,
                                .args = {call, 1},
                                .tensor_count = 1,
                                .tensors = {{WIRE_F32, 2, .dims = {ROWS, WIDTH}}},
                                .data = {ones}};
}

static void end(void)
{
    dist_context_free(context);
    UNTIL(dist_left() == 0, dist_wait());
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
    expect_text(&error, STATUS_PEER_DIED, _i < 2 ? "" : "worker 1: worker 2 is gone");
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
    end();
}
END_TEST

/* A worker that has called back into the root dies: the context has failed. */
START_TEST(a_death_of_one_who_called_back)
{
    struct variable *out;
    struct error error = {0};
    start(false);
    ck_assert_int_eq(call_one(MIDDLE, KNOT_NESTED, ROOT, KNOT_MAP, &out), STATUS_OK);
    ck_assert_uint_eq(dist_counts_of(ROOT).pieces, 1);
    dist_kill(MIDDLE);
    ck_assert_int_eq(call_one(FAR, KNOT_MAP, 0, 0, &out), STATUS_PEER_DIED);
    tape_status(tape, &error);
    expect_text(&error, STATUS_PEER_DIED, "worker 1 is gone");
    end();
}
END_TEST

/* A root's contexts go with it, also those of its calls' calls, and those of other roots. */
START_TEST(a_death_of_the_root)
{
    struct variable *out, *mine;
    dist_start(&ref_ops, _i, 3);
    for (unsigned name = 0; name < 3; name++)
        dist_object(name, "knot", name);
    struct tape *other = dist_tape(FAR);
    struct dist_context *its_own = dist_begin(FAR, other);
    mine = tape_input(other, SHAPE2(1, WIDTH), DTYPE_F32, "x", (float[WIDTH]){1});
    CK_DIST(dist_call(its_own, stage.sides[FAR].object[MIDDLE], KNOT_MAP, NULL, 0, &mine, 1, &mine, 1));
    CK_DIST(tape_new(&tape, stage.sides[ROOT].backend, &stage.error));
    context = dist_begin(ROOT, tape);
    x = tape_input(tape, SHAPE2(ROWS, WIDTH), DTYPE_F32, "x", (float[ROWS * WIDTH]){1, 2, 3});
    ck_assert_int_eq(call_one(MIDDLE, KNOT_NESTED, FAR, KNOT_MAP, &out), STATUS_OK);
    ck_assert_uint_eq(dist_counts_of(MIDDLE).contexts, 2);
    const uint64_t id = dist_context_id(context);
    dist_kill(ROOT);
    UNTIL(dist_counts_of(MIDDLE).contexts + dist_counts_of(FAR).contexts <= 1, dist_wait());
    ck_assert_uint_eq(dist_counts_of(MIDDLE).contexts, 0);
    struct gradients *gone;
    ck_assert_int_eq(dist_gradients(stage.sides[FAR].dist, id, NULL, &gone, &stage.error), STATUS_PEER_DIED);
    ck_assert_int_eq(dist_backward(its_own, tape_sum(other, mine, NULL, 1), &stage.error), STATUS_PEER_DIED);
    dist_context_free(its_own);
    dist_expect_nothing_left();
    tape_free(other);
    tape_free(tape);
    dist_end();
}
END_TEST

/* What was called in the first place: each calls the next. The first dies, and though the root lives, those
 * behind it end: they go on for nobody, also where they call each other in a ring. */
static const struct {
    unsigned count, contexts;
    uint8_t workers[6];
} chains[] = {
    {3, 2, {MIDDLE, FAR, FAR}},                       /* itself */
    {4, 3, {MIDDLE, FAR, CLIENT, FAR}},               /* a ring of two */
    {4, 3, {MIDDLE, CLIENT, OTHER, CLIENT}},          /* of clients */
    {5, 4, {MIDDLE, FAR, CLIENT, OTHER, FAR}},        /* of three */
    {5, 4, {MIDDLE, CLIENT, FAR, OTHER, FAR}},        /* behind one who tells them of it */
    {6, 4, {MIDDLE, FAR, CLIENT, FAR, OTHER, CLIENT}} /* two, that touch */
};

START_TEST(a_death_before_a_ring)
{
    const unsigned count = chains[_i].count;
    struct variable *out;
    dist_start(&ref_ops, false, MEMBERS);
    for (unsigned name = 0; name < count; name++)
        dist_object(chains[_i].workers[name], "knot", name);
    const uint64_t numbers[2] = {count - 1, 0};
    begin();
    CK_DIST(dist_call(context, stage.sides[ROOT].object[0], KNOT_DOWN, numbers, 2, &x, 1, &out, 1));
    ck_assert_uint_eq(dist_left(), count + chains[_i].contexts + 1);
    dist_kill(MIDDLE);
    UNTIL(dist_left() <= 1, dist_wait());
    ck_assert_uint_eq(dist_left(), 1); // the root's own
    ck_assert_uint_eq(dist_counts_of(ROOT).contexts, 1);
    end();
}
END_TEST

/* A graph of calls over all workers, in which many call each other; one dies sooner or later: every second
 * time the one through whom all have come. */
START_TEST(a_death_at_any_point)
{
    const uint64_t numbers[2] = {mix(_i, 1), 3}, first = mix(_i, 4) % KNOTS_MAX;
    struct variable *out[2];
    struct error error = {0};
    dist_start(&ref_ops, _i & 1, MEMBERS);
    for (unsigned name = 0; name < KNOTS_MAX; name++)
        dist_object(mix(_i, 10 + name) % MEMBERS, "knot", name);
    begin();
    stage.victim = mix(_i, 10 + (_i & 2 ? first : (uint64_t)_i)) % MEMBERS;
    if (stage.victim == ROOT)
        stage.victim = MIDDLE;
    stage.kill_in = 1 + mix(_i, 3) % 250;
    enum status status =
        dist_call(context, stage.sides[ROOT].object[first], KNOT_GRAPH, numbers, 2, &x, 1, out, 2);
    if (status == STATUS_OK) {
        struct variable *loss = tape_sum(tape, tape_add(tape, out[0], out[1], false), NULL, 1);
        status = dist_backward(context, loss, &error);
    }
    ck_assert_msg(status == STATUS_OK || status == STATUS_PEER_DIED, "%d: %s", status, error.text);
    if (stage.kill_in > 0) // it has survived the backward
        dist_kill(stage.victim);
    stage.kill_in = 0;
    end();
}
END_TEST

/* ---- how a death is told ---- */

/* One whom the root has called dies: the context has failed, with calls of others too. */
START_TEST(a_death_ends_the_roots_calls_of_others)
{
    struct variable *out;
    struct error error = {0};
    start(false);
    ck_assert_int_eq(call_one(MIDDLE, KNOT_MAP, 0, 0, &out), STATUS_OK);
    dist_kill(MIDDLE);
    ck_assert_int_eq(call_one(FAR, KNOT_MAP, 0, 0, &out), STATUS_PEER_DIED);
    tape_status(tape, &error);
    expect_text(&error, STATUS_PEER_DIED, "worker 1 is gone");
    end();
}
END_TEST

/* One who has been walked, so that his gradients are lost, dies before the walk has come to its end: the
 * root's (0), and that of one in the middle, whom alone the dead was known to (1). */
START_TEST(a_death_behind_the_walk)
{
    struct variable *out, *first;
    struct error error = {0};
    dist_start(&ref_ops, false, MEMBERS);
    for (unsigned name = 0; name < MEMBERS; name++)
        dist_object(name, "knot", name);
    begin();
    if (_i == 0) {
        ck_assert_int_eq(call_one(FAR, KNOT_MAP, 0, 0, &first), STATUS_OK);
        CK_DIST(dist_call(context, stage.sides[ROOT].object[CLIENT], KNOT_MAP, NULL, 0, &first, 1, &out, 1));
    } else {
        ck_assert_int_eq(call_one(MIDDLE, KNOT_BOTH, FAR, CLIENT, &out), STATUS_OK);
    }
    struct variable *loss = tape_sum(tape, out, NULL, 1);
    stage.stalls[FAR] = true;
    stage.victim = CLIENT;
    stage.kill_in = 1000;
    ck_assert_int_eq(dist_backward(context, loss, &error), STATUS_PEER_DIED);
    expect_text(&error, STATUS_PEER_DIED, "worker 3");
    end();
}
END_TEST

/* A context that a death has ended here is not begun anew: its gradients are lost, and are not taken for
 * zero. */
START_TEST(a_context_that_was_lost)
{
    struct variable *out;
    struct error error = {0};
    struct gradients *lost;
    dist_start(&ref_ops, false, MEMBERS);
    dist_object(MIDDLE, "knot", 0);
    dist_object(FAR, "knot", 1);
    begin();
    ck_assert_int_eq(call_one(0, KNOT_NESTED, 1, KNOT_MAP, &out), STATUS_OK);
    const uint64_t id = dist_context_id(context);
    dist_kill(MIDDLE);
    UNTIL(dist_counts_of(FAR).contexts == 0, dist_wait());
    const struct rpc_message on = forward(CLIENT, KNOT_NUMBER, id), back = backward(id, 1);
    await(send_raw(CLIENT, FAR, METHOD_FORWARD, &on), &error);
    expect_text(&error, STATUS_PEER_DIED, "worker 1 is gone");
    await(send_raw(CLIENT, FAR, METHOD_BACKWARD, &back), &error);
    expect_text(&error, STATUS_PEER_DIED, "worker 1 is gone");
    ck_assert_int_eq(dist_gradients(stage.sides[FAR].dist, id, NULL, &lost, &error), STATUS_PEER_DIED);
    ck_assert_uint_eq(dist_counts_of(FAR).contexts, 0);
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
    struct error error;
    tape = dist_tape(ROOT);
    ck_assert_int_eq(dist_context_new(&context, stage.sides[ROOT].dist, TAPE_TRAIN, tape, &error),
                     STATUS_PEER_DIED);
    expect_text(&error, STATUS_PEER_DIED, "worker 2 is gone");
    tape_free(tape);
    dist_end();
}
END_TEST

/* ---- leaving ---- */

/* Its part is over, in order, while others' contexts are still there. */
static void leave(unsigned worker)
{
    dist_side_free(worker);
    cluster_end(&stage.cluster, (uint16_t)worker, "it has finished", 5000);
    for (unsigned i = 0; i < stage.workers; i++)
        if (i != worker)
            UNTIL(stage.cluster.members[i].left >> worker & 1, dist_wait());
}

/* Whoever has called back into the root leaves: that is no offence. */
START_TEST(one_who_called_back_leaves)
{
    struct variable *out;
    const struct member *root = &stage.cluster.members[ROOT];
    start(false);
    ck_assert_int_eq(call_one(MIDDLE, KNOT_NESTED, ROOT, KNOT_MAP, &out), STATUS_OK);
    leave(MIDDLE);
    ck_assert_str_eq(root->left_text[MIDDLE], "it has finished");
    ck_assert_int_eq(root->left_why, STATUS_PEER_DIED);
    ck_assert_uint_eq(dist_counts_of(ROOT).contexts, 1);
    ck_assert_int_eq(call_one(FAR, KNOT_MAP, 0, 0, &out), STATUS_PEER_DIED);
    end();
}
END_TEST

/* One in the middle leaves: to those behind it and to those who wait for it that is its death. */
START_TEST(one_in_the_middle_leaves)
{
    struct variable *out;
    struct error error = {0};
    start(false);
    ck_assert_int_eq(call_one(MIDDLE, KNOT_NESTED, FAR, KNOT_MAP, &out), STATUS_OK);
    const uint64_t id = dist_context_id(context);
    const struct rpc_message waits = forward(FAR, KNOT_KEEP, id), on = forward(ROOT, KNOT_NUMBER, id);
    struct future *future = send_raw(FAR, MIDDLE, METHOD_FORWARD, &waits);
    UNTIL(dist_counts_of(MIDDLE).pieces == 2, dist_wait());
    leave(MIDDLE);
    await(future, &error);
    expect_text(&error, STATUS_PEER_DIED, "worker 1: it has left the job");
    UNTIL(dist_counts_of(FAR).contexts == 0, dist_wait());
    await(send_raw(ROOT, FAR, METHOD_FORWARD, &on), &error);
    expect_text(&error, STATUS_PEER_DIED, "worker 1 is gone");
    end();
}
END_TEST

int main(void)
{
    dist_reserve_descriptors();
    Suite *suite = suite_create("dist_ends");
    TCase *deaths = tcase_create("deaths");
    tcase_set_timeout(deaths, 30);
    tcase_add_loop_test(deaths, a_death_in_a_forward, 0, 4);
    tcase_add_loop_test(deaths, a_death_in_the_middle, 0, 2);
    tcase_add_loop_test(deaths, a_death_before_the_backward, 0, 4);
    tcase_add_loop_test(deaths, a_death_in_a_backward, 0, 4);
    tcase_add_test(deaths, a_death_of_one_who_called_back);
    tcase_add_loop_test(deaths, a_death_of_the_root, 0, 2);
    tcase_add_loop_test(deaths, a_death_before_a_ring, 0, (int)(sizeof chains / sizeof chains[0]));
    tcase_add_loop_test(deaths, a_death_at_any_point, 0, 32);
    tcase_add_test(deaths, a_death_ends_the_roots_calls_of_others);
    tcase_add_loop_test(deaths, a_death_behind_the_walk, 0, 2);
    tcase_add_test(deaths, a_context_that_was_lost);
    tcase_add_loop_test(deaths, a_worker_ends_while_it_waits, 0, 2);
    tcase_add_test(deaths, one_who_called_back_leaves);
    tcase_add_test(deaths, one_in_the_middle_leaves);
    suite_add_tcase(suite, deaths);
    return suite_run(suite);
}
