/* References: requests that are refused, peers that break the protocol, full tables and queues. No object and
 * no use is lost in any of these. */
#include "test/worker/reference/rref_fixture.h"
#include "test/workplace.h"

static void expect_error(enum status got, enum status expected, const struct error *error, const char *text)
{
    ck_assert_int_eq(got, expected);
    ck_assert_msg(strstr(error->text, text) != NULL, "\"%s\" is not in \"%s\"", text, error->text);
}

/* What `worker` is told of a wish for an object of class `name` with `number`. */
static void expect_not_made(unsigned from, uint16_t owner, const char *name, uint64_t number,
                            enum status status, const char *text)
{
    struct rref *rref;
    struct future *future;
    struct error error = {0};
    struct rpc_message message = {.args = {0, number}};
    uint32_t before = rref_counts_of(owner).objects;
    ck_assert_int_eq(rpc_remote(sides[from].rrefs, owner, name, &message, &rref, &error), STATUS_OK);
    expect_error(rref_await(rref, &error), status, &error, text);
    expect_error(rref_call(rref, 0, NULL, MONOTIME_NEVER, &future, &error), status, &error, text);
    expect_error(rref_share(rref, 0, 0, &future, &error), status, &error, text);
    ck_assert_ptr_null(rref_local(rref));
    rref_release(rref);
    ck_assert_uint_eq(rref_counts_of(owner).objects, before);
}

START_TEST(test_what_cannot_be_made)
{
    rref_start(0);
    struct rref *rref;
    struct error error = {0};
    for (uint16_t owner = 0; owner < 2; owner++) {
        expect_not_made(0, owner, "sell", 1, STATUS_NOT_FOUND, "no constructor \"sell\"; it has: cell, mute");
        expect_not_made(0, owner, "private", 1, STATUS_NOT_FOUND, "no constructor \"private\"");
        expect_not_made(0, owner, "cell", CELL_UNLUCKY, STATUS_INVALID, "a cell cannot have the number 13");
    }
    char name[RREF_NAME_BYTES + 2];
    memset(name, 'x', sizeof name);
    name[RREF_NAME_BYTES + 1] = '\0';
    expect_error(rpc_remote(sides[0].rrefs, 1, name, NULL, &rref, &error), STATUS_INVALID, &error,
                 "1 to 64 bytes");
    expect_error(rpc_remote(sides[0].rrefs, 1, "", NULL, &rref, &error), STATUS_INVALID, &error, "64");
    expect_error(rpc_remote(sides[0].rrefs, 4, "cell", NULL, &rref, &error), STATUS_NOT_FOUND, &error,
                 "worker 4");
    rref_end();
}
END_TEST

static void expect_failure(struct future *future, enum status status, const char *text)
{
    cluster_expect_failure(&cluster, future, status, text);
}

START_TEST(test_what_cannot_be_done)
{
    rref_start(0);
    struct future *future;
    struct error error = {0};
    struct rref *rref = cell_ask(0, 1, 20), *mute;
    expect_error(rref_call(rref, 0, NULL, MONOTIME_NEVER, &future, &error), STATUS_BUSY, &error, "not ready");
    expect_error(rref_share(rref, 2, 0, &future, &error), STATUS_BUSY, &error, "not ready");
    ck_assert_uint_eq(rref_object(rref), 0);
    ck_assert_int_eq(rref_await(rref, &error), STATUS_OK);
    expect_failure(cell_call(rref, CELL_FUNCTIONS, 0), STATUS_INVALID,
                   "function 4 of class cell, which has 4, from 0");
    expect_failure(cell_call(rref, UINT32_MAX, 0), STATUS_INVALID, "function 4294967295 of class cell");
    ck_assert_int_eq(
        rpc_remote(sides[0].rrefs, 1, "mute", &(struct rpc_message){.args = {0, 21}}, &mute, &error),
        STATUS_OK);
    ck_assert_int_eq(rref_await(mute, &error), STATUS_OK);
    expect_failure(cell_call(mute, 0, 0), STATUS_INVALID, "function 0 of class mute, which has 0");
    expect_error(rref_share(rref, 4, 0, &future, &error), STATUS_NOT_FOUND, &error, "worker 4");
    rref_release(rref);
    rref_release(mute);
    rref_end();
}
END_TEST

/* Objects that were freed, never were, or are another's; asked for by hand, as no reference can. */
START_TEST(test_objects_that_are_not_there)
{
    rref_start(0);
    struct rref *rref = cell_make_on(0, 1, 20), *freed = cell_make_on(0, 1, 21);
    uint64_t number = rref_object(rref), gone = rref_object(freed);
    rref_release(freed);
    await_destroyed(21);
    const uint64_t absent[] = {number + 100, 0, gone + (UINT64_C(1) << 40)};
    const enum wire_method methods[] = {METHOD_OBJECT, METHOD_CLAIM};
    for (unsigned i = 0; i < 2; i++) {
        struct member *asks = &cluster.members[2];
        uint64_t second = methods[i] == METHOD_CLAIM ? 2 : 0;
        expect_failure(call_with(asks, 1, methods[i], number, second, MONOTIME_NEVER), STATUS_PERMISSION,
                       "worker 2 holds no reference to object 1 of worker 1");
        expect_failure(call_with(asks, 1, methods[i], gone, second, MONOTIME_NEVER), STATUS_NOT_FOUND,
                       "object 2 of worker 1 was freed");
        for (unsigned a = 0; a < 3; a++)
            expect_failure(call_with(asks, 1, methods[i], absent[a], second, MONOTIME_NEVER),
                           STATUS_NOT_FOUND, "of worker 1 does not exist");
    }
    ck_assert_uint_eq(cluster.members[1].left, 0);
    ck_assert_uint_eq(rref_counts_of(1).users, 1);
    rref_release(rref);
    rref_end();
}
END_TEST

/* ---- a peer that breaks the protocol ---- */

/* It loses its session, and with that its references; others keep theirs. */
static void expect_rejected(enum wire_method method, const struct rpc_message *message, const char *text)
{
    rref_start(0);
    struct future *future;
    struct error error = {0};
    struct rref *its = cell_make_on(2, 1, 20), *other = cell_make_on(0, 1, 21);
    struct rpc_message full = *message;
    if (full.args[0] == 0)
        full.args[0] = rref_object(its);
    ck_assert_int_eq(
        rpc_call_async(cluster.members[2].rpc, 1, method, &full, MONOTIME_NEVER, &future, &error), STATUS_OK);
    expect_failure(future, STATUS_INVALID, text);
    cluster_await_left(&cluster, 2, 1u << 1);
    ck_assert_int_eq(cluster.members[1].left_why, STATUS_INVALID);
    await_destroyed(20);
    expect_error(rref_ready(its, &error), STATUS_PEER_DIED, &error, "worker 1, which had object 1, is gone");
    cell_expect(other, 21);
    rref_release(its);
    rref_release(other);
    rref_end();
}

START_TEST(test_liars)
{
    static const uint32_t long_name[RREF_NAME_BYTES + 1];
    struct rpc_message message = {.args = {0, 2}};
    expect_rejected(METHOD_RELEASE, &message, "2 uses of object 1 given back, of 1");
    message.args[1] = 0;
    expect_rejected(METHOD_RELEASE, &message, "0 uses of object 1 given back, of 1");
    message = (struct rpc_message){.args = {77, 1}};
    expect_rejected(METHOD_RELEASE, &message, "1 uses of object 77 given back, of 0");
    message.args[1] = MEMBERS;
    expect_rejected(METHOD_CLAIM, &message, "given by worker 5, of 5");
    expect_rejected(METHOD_SHARE, &message, "to an object of worker 5, of 5");
    message = (struct rpc_message){0};
    expect_rejected(METHOD_REMOTE, &message, "a tensor of 1 to 64 bytes");
    message.tensor_count = 1;
    message.data[0] = long_name;
    message.tensors[0] = (struct wire_tensor){WIRE_U8, 1, .dims = {RREF_NAME_BYTES + 1}};
    expect_rejected(METHOD_REMOTE, &message, "a tensor of 1 to 64 bytes");
    message.tensors[0] = (struct wire_tensor){WIRE_U32, 1, .dims = {4}};
    expect_rejected(METHOD_REMOTE, &message, "a tensor of 1 to 64 bytes");
    message.tensors[0] = (struct wire_tensor){WIRE_U8, 2, .dims = {4, 1}};
    expect_rejected(METHOD_REMOTE, &message, "a tensor of 1 to 64 bytes");
}
END_TEST

/* A constructor may end the session of the worker that asked: nobody is counted, nothing stays. */
START_TEST(test_caller_lost_while_making)
{
    rref_start(0);
    struct error error = {0};
    struct rref *rref = cell_ask(2, 1, CELL_SUICIDE);
    expect_error(rref_await(rref, &error), STATUS_PEER_DIED, &error, "its constructor says so");
    await_destroyed(CELL_SUICIDE);
    rref_release(rref);
    rref_end();
}
END_TEST

/* ---- a full house ---- */

START_TEST(test_objects_max)
{
    rref_start(0);
    struct error error = {0};
    struct rref *rrefs[OBJECTS_MAX], *own;
    for (unsigned i = 0; i < OBJECTS_MAX; i++)
        rrefs[i] = cell_make_on(i % 2 == 0 ? 0 : 2, 1, 20 + i);
    expect_not_made(0, 1, "cell", 90, STATUS_BUSY, "worker 1 has 16 objects, at most 16");
    ck_assert_uint_eq(cells_made[90], 0);
    struct cell *cell = cell_new(1, 91);
    expect_error(rref_own(sides[1].rrefs, &cell_class, cell, &own, &error), STATUS_BUSY, &error,
                 "16 objects");
    ck_assert_uint_eq(rref_counts_of(1).references, 0);
    cell_destroy(cell);
    rref_release(rrefs[3]);
    await_destroyed(23);
    rrefs[3] = cell_make_on(0, 1, 92);
    for (unsigned i = 0; i < OBJECTS_MAX; i++)
        rref_release(rrefs[i]);
    rref_end();
}
END_TEST

/* Neither made nor taken; a grant that finds no place is given back. */
START_TEST(test_references_max)
{
    rref_start(0);
    struct error error = {0};
    struct rref *rrefs[REFERENCES_MAX], *more;
    for (unsigned i = 0; i < REFERENCES_MAX; i++)
        rrefs[i] = cell_make_on(0, i % SERVERS, 20 + i);
    expect_error(rpc_remote(sides[0].rrefs, 1, "cell", NULL, &more, &error), STATUS_BUSY, &error,
                 "worker 0 holds 16 references, the limit");
    struct rref *foreign = cell_make_on(2, 1, 50);
    expect_failure(cell_share(foreign, 0, 0), STATUS_BUSY, "worker 0 holds 16 references");
    struct cell *cell = cell_new(0, 51);
    expect_error(rref_own(sides[0].rrefs, &cell_class, cell, &more, &error), STATUS_BUSY, &error, "16");
    cell_destroy(cell);
    struct future *future = cell_call(rrefs[1], CELL_MAKE, 52);
    ck_assert_int_eq(cluster_await(&cluster, future), STATUS_OK);
    expect_error(rref_accept(sides[0].rrefs, 1, future_value(future)->args[0], &cell_class, &more, &error),
                 STATUS_BUSY, &error, "16 references");
    future_release(future);
    await_destroyed(52);
    ck_assert_uint_eq(rref_counts_of(0).references, REFERENCES_MAX);
    rref_release(foreign);
    for (unsigned i = 0; i < REFERENCES_MAX; i++)
        rref_release(rrefs[i]);
    rref_end();
}
END_TEST

/* More grants than there may be references: all are given back. */
START_TEST(test_grants_beyond_the_limit)
{
    enum { GRANTS = 2 * (OBJECTS_MAX - 1) };
    struct error error = {0};
    struct rref *rrefs[REFERENCES_MAX], *more;
    struct future *futures[GRANTS];
    uint64_t numbers[GRANTS];
    rref_start(0);
    for (unsigned i = 0; i < REFERENCES_MAX; i++)
        rrefs[i] = cell_make_on(0, i < 2 ? i + 1 : 0, 20 + i);
    for (unsigned i = 0; i < GRANTS; i++)
        futures[i] = cell_call(rrefs[i % 2], CELL_MAKE, 50 + i);
    for (unsigned i = 0; i < GRANTS; i++) {
        ck_assert_int_eq(cluster_await(&cluster, futures[i]), STATUS_OK);
        numbers[i] = future_value(futures[i])->args[0];
        future_release(futures[i]);
    }
    for (unsigned i = 0; i < GRANTS; i++)
        expect_error(
            rref_accept(sides[0].rrefs, (uint16_t)(1 + i % 2), numbers[i], &cell_class, &more, &error),
            STATUS_BUSY, &error, "worker 0 holds 16 references, the limit");
    for (unsigned i = 0; i < GRANTS; i++)
        await_destroyed(50 + i);
    ck_assert_uint_eq(rref_counts_of(0).references, REFERENCES_MAX);
    for (unsigned i = 0; i < REFERENCES_MAX; i++)
        rref_release(rrefs[i]);
    rref_end();
}
END_TEST

static void turn_two(void)
{
    for (unsigned i = 0; i < 2; i++)
        rpc_turn(cluster.members[i].rpc, (struct monotime){0});
}

START_TEST(test_takes_no_references)
{
    memset(cells_made, 0, sizeof cells_made);
    memset(cells_destroyed, 0, sizeof cells_destroyed);
    cluster_make_addresses(&cluster);
    for (unsigned i = 0; i < SERVERS; i++) {
        struct rpc_config config = cluster_config(&cluster.members[i]);
        cluster_serve(&cluster, (uint16_t)i, &config);
        rref_side_start(i, i != 2);
    }
    struct rref *rref = cell_make_on(0, 1, 20);
    expect_failure(cell_share(rref, 2, 0), STATUS_PERMISSION, "worker 2 takes no references");
    rref_release(rref);
    rref_end();
}
END_TEST

static uint64_t sent_of(unsigned worker)
{
    struct rpc_counters counters;
    rpc_counters(cluster.members[worker].rpc, &counters);
    return counters.sent;
}

/* RELEASE when no more calls may be pending here (caller 0): in a later turn, and once. When as many calls as
 * may be are open at the owner (caller 2): at once all the same. */
START_TEST(test_release_when_all_is_full)
{
    rref_start(0);
    struct future *futures[64];
    struct error error = {0};
    for (unsigned caller = 0; caller <= 2; caller += 2) {
        struct rref *busy = cell_make_on(caller, 1, 20 + caller), *rref = cell_make_on(0, 1, 30 + caller);
        sides[1].kept_count = 0;
        for (unsigned i = 0; i < 64; i++)
            futures[i] = cell_call(busy, CELL_KEEP, 0);
        if (caller == 0)
            expect_error(rref_call(rref, 0, NULL, MONOTIME_NEVER, &futures[0], &error), STATUS_BUSY, &error,
                         "64 calls are pending");
        UNTIL(sides[1].kept_count >= 64, cluster_turn(&cluster));
        const uint64_t sent = sent_of(0);
        rref_release(rref);
        if (caller == 0)
            for (unsigned i = 0; i < 200; i++)
                turn_two();
        else
            await_destroyed(30 + caller);
        ck_assert_uint_eq(sent_of(0) - sent, caller == 0 ? 0 : 1);
        ck_assert_uint_eq(sides[1].kept_count, 64);
        ck_assert_uint_eq(cells_destroyed[30 + caller], caller != 0);
        for (unsigned i = 0; i < 64; i++)
            rpc_reply(sides[1].kept[i], NULL);
        await_destroyed(30 + caller);
        for (unsigned i = 0; i < 64; i++) {
            ck_assert_int_eq(cluster_await(&cluster, futures[i]), STATUS_OK);
            future_release(futures[i]);
        }
        rref_release(busy);
    }
    rref_end();
}
END_TEST

/* No future is left for a RELEASE, and later there is one, without a message that would end the wait. */
START_TEST(test_a_release_without_a_future_wakes_the_next_turn)
{
    static struct future *futures[FUTURES_MAX];
    rref_start(0);
    struct rpc *rpc = cluster.members[0].rpc;
    struct rref *rref = cell_make_on(0, 1, 20);
    for (unsigned i = 0; i < 10; i++)
        cluster_turn(&cluster);
    const unsigned count = futures_take(rpc, futures);
    rref_release(rref);
    futures_give(futures, count);
    rpc_turn(rpc, MONOTIME_NEVER);
    await_destroyed(20);
    rref_end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rref_errors");
    TCase *tcase = tcase_create("errors");
    tcase_add_test(tcase, test_what_cannot_be_made);
    tcase_add_test(tcase, test_what_cannot_be_done);
    tcase_add_test(tcase, test_objects_that_are_not_there);
    tcase_add_test(tcase, test_liars);
    tcase_add_test(tcase, test_caller_lost_while_making);
    tcase_add_test(tcase, test_objects_max);
    tcase_add_test(tcase, test_references_max);
    tcase_add_test(tcase, test_grants_beyond_the_limit);
    tcase_add_test(tcase, test_takes_no_references);
    tcase_add_test(tcase, test_release_when_all_is_full);
    tcase_add_test(tcase, test_a_release_without_a_future_wakes_the_next_turn);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
