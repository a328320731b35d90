/* References when workers die: owners, users, givers and takers, at every moment. */
#include "test/worker/reference/rref_fixture.h"
#include "test/workplace.h"

static void expect_gone(struct rref *rref)
{
    struct error error = {0};
    struct future *future;
    ck_assert_int_eq(rref_ready(rref, &error), STATUS_PEER_DIED);
    ck_assert_ptr_nonnull(strstr(error.text, "is gone"));
    ck_assert_int_eq(rref_call(rref, 0, NULL, MONOTIME_NEVER, &future, &error), STATUS_PEER_DIED);
    ck_assert_int_eq(rref_share(rref, 1, 0, &future, &error), STATUS_PEER_DIED);
}

/* What was made, asked for and on its way ends with that status, and goes with its handles. */
START_TEST(test_owner_dies)
{
    rref_start(0);
    struct error error = {0};
    struct rref *ready = cell_make_on(0, 2, 20), *released = cell_make_on(0, 2, 21), *other;
    struct future *call = cell_call(ready, CELL_KEEP, 0);
    struct future *last = cell_call(released, CELL_KEEP, 0);
    rref_release(released);
    rref_turns(5);
    ck_assert_uint_eq(sides[2].kept_count, 2);
    struct rref *pending = cell_ask(0, 2, 22), *pending_too = cell_ask(0, 2, 23);
    struct future *share = cell_share(ready, 1, 0);
    rref_release(pending_too);
    other = cell_make_on(0, 1, 24);
    rref_kill(2);
    cluster_expect_failure(&cluster, call, STATUS_PEER_DIED, "");
    cluster_expect_failure(&cluster, last, STATUS_PEER_DIED, "");
    UNTIL(future_done(share), cluster_turn(&cluster));
    if (future_status(share) == STATUS_OK) {
        expect_gone(sides[1].taken[0].rref);
        rref_release(sides[1].taken[0].rref);
    } else {
        ck_assert_int_eq(future_status(share), STATUS_PEER_DIED);
        ck_assert_uint_eq(sides[1].taken_count, 0);
    }
    future_release(share);
    expect_gone(ready);
    ck_assert_int_eq(rref_await(pending, &error), STATUS_PEER_DIED);
    rref_release(ready);
    rref_release(pending);
    cell_expect(other, 24);
    rref_release(other);
    rref_end();
}
END_TEST

/* The one exception in rref.c's argument: who cancels his calls is counted for what they would have told him,
 * until the session ends. */
START_TEST(test_cancelled_while_making)
{
    rref_start(0);
    struct error error = {0};
    struct rref *rref = cell_ask(0, 1, 20);
    rpc_cancel_all(cluster.members[0].rpc, STATUS_SHUTDOWN, "the job is ending");
    ck_assert_int_eq(rref_ready(rref, &error), STATUS_SHUTDOWN);
    ck_assert_str_eq(error.text, "the job is ending");
    rref_release(rref);
    UNTIL(rref_counts_of(1).users != 0, cluster_turn(&cluster));
    rref_turns(20);
    ck_assert_uint_eq(rref_counts_of(1).users, 1);
    ck_assert_uint_eq(rref_counts_of(0).references, 0);
    rref_kill(0);
    await_destroyed(20);
    rref_end();
}
END_TEST

START_TEST(test_user_dies)
{
    rref_start(0);
    struct rref *alone = cell_make_on(2, 1, 20), *shared = cell_make_on(2, 1, 21), *copy;
    struct rref *local = cell_make_on(1, 1, 22);
    copy = cell_give(shared, 0);
    cell_give(local, 2);
    ck_assert_uint_eq(rrefs_of_peer(sides[1].rrefs, 2), 3);
    rref_release(local);
    (void)alone;
    rref_kill(2);
    await_destroyed(20);
    await_destroyed(22);
    ck_assert_uint_eq(rrefs_of_peer(sides[1].rrefs, 2), 0);
    cell_expect(copy, 21);
    rref_release(copy);
    rref_end();
}
END_TEST

/* A number in an answer that is older than its owner's death refers to nothing. */
START_TEST(test_owner_dies_before_its_grant_is_accepted)
{
    rref_start(0);
    struct error error = {0};
    struct rref *maker = cell_make_on(0, 2, 20), *made;
    struct future *future = cell_call(maker, CELL_MAKE, 21);
    ck_assert_int_eq(cluster_await(&cluster, future), STATUS_OK);
    uint64_t object = future_value(future)->args[0];
    future_release(future);
    ck_assert(rpc_reaches(cluster.members[0].rpc, 0));
    ck_assert(rpc_reaches(cluster.members[0].rpc, 2));
    rref_kill(2);
    ck_assert(!rpc_reaches(cluster.members[0].rpc, 2));
    ck_assert(!rpc_reaches(cluster.members[0].rpc, MEMBERS));
    ck_assert_int_eq(rref_accept(sides[0].rrefs, 2, object, &private_class, &made, &error), STATUS_PEER_DIED);
    ck_assert_str_eq(error.text, "worker 2, which had object 2, is gone");
    ck_assert_ptr_null(made);
    rref_release(maker);
    rref_end();
}
END_TEST

/* ---- in the middle of a share ---- */

enum { GIVER = 0, TAKER = 1, OWNER = 2, PARTS = 3 };

/* Turns one worker at a time, `steps` times, as the bits of `order` say. */
static void turn_some(unsigned order, unsigned steps)
{
    for (unsigned i = 0; i < steps; i++, order /= SERVERS)
        rpc_turn(cluster.members[order % SERVERS].rpc, net_in_ms(1));
}

/* Whoever is left at the end has the reference or has not; nobody has half of it. `workers`: which worker
 * plays which part. */
static void die_in_a_share(const unsigned workers[PARTS], unsigned dies, unsigned order, unsigned steps)
{
    rref_start(0);
    struct rref *rref = cell_make_on(workers[GIVER], workers[OWNER], 20);
    struct side *taker = &sides[workers[TAKER]];
    struct future *share = cell_share(rref, workers[TAKER], 3);
    rref_release(rref);
    turn_some(order, steps);
    rref_kill(workers[dies]);
    if (dies != GIVER) {
        enum status status = cluster_await(&cluster, share);
        ck_assert_msg(status == STATUS_OK || status == STATUS_PEER_DIED, "%s", future_text(share));
        if (dies == OWNER)
            ck_assert_int_eq(status == STATUS_OK, taker->taken_count == 1);
        future_release(share);
    }
    if (dies == GIVER) /* until its claim has been answered */
        UNTIL(rref_counts_of(workers[TAKER]).references == taker->taken_count, cluster_turn(&cluster));
    if (dies != TAKER && taker->taken_count == 1) {
        struct rref *taken = taker->taken[0].rref;
        if (dies == OWNER)
            expect_gone(taken);
        else
            cell_expect(taken, 20);
        rref_release(taken);
    }
    rref_end();
}

START_TEST(test_death_in_a_share)
{
    static const unsigned casts[][PARTS] = {{0, 1, 2}, {1, 0, 2}, {0, 2, 1}, {2, 0, 1}, {1, 2, 0}, {2, 1, 0}};
    unsigned order = (unsigned)_i * 7919;
    for (unsigned c = (unsigned)_i % 2; c < sizeof casts / sizeof casts[0]; c += 2)
        for (unsigned dies = 0; dies < PARTS; dies++)
            die_in_a_share(casts[c], dies, order += 104729, (unsigned)_i);
}
END_TEST

/* ---- an owner that lies ---- */

static void answer_seven(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    (void)context;
    (void)message;
    rpc_reply(request, &(struct rpc_message){.args = {7}});
}

static const struct rpc_method liar_methods[] = {
    {.method = METHOD_REMOTE, .callers = UINT8_MAX, .any_tensors = true, .handler = answer_seven},
    {.method = METHOD_CLAIM, .callers = UINT8_MAX, .handler = answer_seven}};

/* One number for two objects, or no class: it loses its session, and the references to it end. */
START_TEST(test_owner_that_lies)
{
    memset(cells_made, 0, sizeof cells_made);
    cluster_make_addresses(&cluster);
    for (unsigned i = 0; i < SERVERS; i++) {
        struct rpc_config config = cluster_config(&cluster.members[i]);
        if (i == 2) {
            config.methods = liar_methods;
            config.method_count = 2;
        }
        cluster_serve(&cluster, (uint16_t)i, &config);
        if (i < 2)
            rref_side_start(i, true);
    }
    struct error error = {0};
    struct rref *first = cell_make_on(0, 2, 1), *third = cell_make_on(1, 2, 1);
    struct future *share = cell_share(first, 1, 0);
    cluster_expect_failure(&cluster, share, STATUS_INVALID, "without its class");
    ck_assert_int_eq(cluster.members[1].left_why, STATUS_INVALID);
    expect_gone(third);
    struct rref *second = cell_ask(0, 2, 1);
    ck_assert_int_eq(rref_await(second, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "another object's number"));
    ck_assert_int_eq(cluster.members[0].left_why, STATUS_INVALID);
    expect_gone(first);
    rref_release(first);
    rref_release(second);
    rref_release(third);
    rref_end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rref_deaths");
    TCase *tcase = tcase_create("deaths");
    tcase_add_test(tcase, test_owner_dies);
    tcase_add_test(tcase, test_cancelled_while_making);
    tcase_add_test(tcase, test_user_dies);
    tcase_add_test(tcase, test_owner_dies_before_its_grant_is_accepted);
    tcase_add_loop_test(tcase, test_death_in_a_share, 0, 9);
    tcase_add_test(tcase, test_owner_that_lies);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
