/* References between workers: each function, and the lifetime of an object. */
#include "test/worker/reference/rref_fixture.h"
#include "test/workplace.h"

/* ---- making and using ---- */

START_TEST(test_made_called_released)
{
    rref_start(0);
    uint64_t number = 20;
    for (unsigned from = 0; from < SERVERS; from++) {
        for (unsigned owner = 0; owner < SERVERS; owner++, number++) {
            struct rref *rref = cell_ask(from, owner, number);
            ck_assert_int_eq(rref_ready(rref, NULL), STATUS_AGAIN);
            ck_assert_uint_eq(rref_owner(rref), owner);
            ck_assert_int_eq(rref_await(rref, NULL), STATUS_OK);
            ck_assert_ptr_eq(rref_class_of(rref), &cell_class);
            struct cell *local = rref_local(rref);
            ck_assert_int_eq(local != NULL, from == owner);
            ck_assert(local == NULL || local->number == number);
            cell_expect(rref, number);
            ck_assert_uint_eq(rref_counts_of(owner).objects, 1);
            ck_assert_uint_eq(rref_counts_of(from).references, 1);
            ck_assert_uint_eq(rref_counts_of(owner).users, from != owner);
            ck_assert_uint_eq(rrefs_of_peer(sides[owner].rrefs, (uint16_t)from), 1);
            rref_release(rref);
            ck_assert_uint_eq(cells_destroyed[number], 0);
            await_destroyed(number);
        }
    }
    rref_end();
}
END_TEST

/* What of a message is the constructor's and the function's arrives. */
START_TEST(test_what_travels)
{
    rref_start(0);
    struct rref *rref;
    struct future *future;
    struct error error = {0};
    uint64_t sum = 1000;
    struct rpc_message make = {.args = {0, 3}, .tensor_count = 2};
    make.tensors[1] = (struct wire_tensor){WIRE_U64, 1, .dims = {1}};
    make.data[1] = &sum;
    ck_assert_int_eq(rpc_remote(sides[0].rrefs, 1, "cell", &make, &rref, &error), STATUS_OK);
    ck_assert_int_eq(rref_await(rref, &error), STATUS_OK);
    struct rpc_message add = {.args = {77, 78, 5, 6}, .context = 7};
    ck_assert_int_eq(rref_call(rref, CELL_ADD, &add, MONOTIME_NEVER, &future, &error), STATUS_OK);
    ck_assert_int_eq(cluster_await(&cluster, future), STATUS_OK);
    ck_assert_uint_eq(future_value(future)->args[0], 1005);
    ck_assert_uint_eq(future_value(future)->args[1], 6);
    ck_assert_uint_eq(future_value(future)->args[2], 7);
    future_release(future);
    future = cell_call(rref, CELL_GET, 0);
    ck_assert_int_eq(cluster_await(&cluster, future), STATUS_OK);
    ck_assert_uint_eq(future_value(future)->args[0], 3);
    ck_assert_uint_eq(future_value(future)->args[1], 1005);
    future_release(future);
    rref_release(rref);
    rref_release(NULL);
    rref_end();
}
END_TEST

/* An object handed in by its owner; copies are the same reference; destroyed at a turn's end, not before. */
START_TEST(test_own_and_copy)
{
    rref_start(0);
    struct rref *rref;
    struct error error = {0};
    struct cell *cell = cell_new(1, 9);
    ck_assert_int_eq(rref_own(sides[1].rrefs, &private_class, cell, &rref, &error), STATUS_OK);
    ck_assert_int_eq(rref_ready(rref, NULL), STATUS_OK);
    ck_assert_ptr_eq(rref_local(rref), cell);
    struct rref *again = rref_copy(rref);
    ck_assert_uint_eq(rref_object(again), rref_object(rref));
    ck_assert_uint_eq(rref_counts_of(1).references, 1);
    rref_release(rref);
    rref_turns(3);
    ck_assert_uint_eq(cells_destroyed[9], 0);
    cell_expect(again, 9);
    rref_release(again);
    ck_assert_uint_eq(cells_destroyed[9], 0);
    cell->sum++;
    await_destroyed(9);
    rref_end();
}
END_TEST

/* Released before the owner has answered: made, and destroyed. */
START_TEST(test_released_before_it_is_ready)
{
    rref_start(0);
    for (unsigned owner = 0; owner < SERVERS; owner++) {
        rref_release(cell_ask(1, owner, 30u + owner));
        ck_assert_uint_eq(rref_counts_of(1).references, 1);
        await_destroyed(30u + owner);
    }
    rref_end();
}
END_TEST

/* An object that holds a reference gives it back when it is destroyed, here and elsewhere. */
START_TEST(test_objects_hold_references)
{
    rref_start(0);
    struct rref *far = cell_make_on(0, 1, 1), *near = cell_make_on(0, 0, 2), *top = cell_make_on(0, 0, 3);
    ((struct cell *)rref_local(near))->held = far;
    ((struct cell *)rref_local(top))->held = near;
    rref_turns(5);
    ck_assert_uint_eq(cells_destroyed[1] + cells_destroyed[2], 0);
    rref_release(top);
    await_destroyed(3);
    await_destroyed(2);
    await_destroyed(1);
    rref_end();
}
END_TEST

/* ---- passing on ---- */

static void share_once(unsigned giver, unsigned taker, unsigned owner, uint64_t number)
{
    struct side *side = &sides[taker];
    struct rref *rref = cell_make_on(giver, owner, number);
    uint64_t object = rref_object(rref);
    struct future *future = cell_share(rref, taker, 1000 + number);
    rref_release(rref);
    ck_assert_int_eq(cluster_await(&cluster, future), STATUS_OK);
    future_release(future);
    ck_assert_uint_eq(side->taken_count, 1);
    ck_assert_uint_eq(side->taken[0].from, giver);
    ck_assert_uint_eq(side->taken[0].tag, 1000 + number);
    rref = side->taken[0].rref;
    side->taken_count = 0;
    ck_assert_uint_eq(rref_object(rref), object);
    ck_assert_ptr_eq(rref_class_of(rref), &cell_class);
    rref_turns(3);
    cell_expect(rref, number);
    ck_assert_uint_eq(rrefs_of_peer(sides[owner].rrefs, (uint16_t)taker), 1);
    rref_release(rref);
    UNTIL(rref_all_zero(), cluster_turn(&cluster));
}

/* Every giver, taker and owner, each also the same as another; the giver lets go at once. */
static void share_among(unsigned members)
{
    uint64_t number = 100;
    for (unsigned giver = 0; giver < members; giver++)
        for (unsigned taker = 0; taker < members; taker++)
            for (unsigned owner = 0; owner < members; owner++)
                share_once(giver, taker, owner, number++);
}

START_TEST(test_share_among_servers)
{
    rref_start(0);
    share_among(SERVERS);
    rref_end();
}
END_TEST

/* The same where at least two of the three are clients, who speak by way of server 0. */
START_TEST(test_share_among_clients)
{
    uint64_t number = 100;
    rref_start(CLIENTS);
    for (unsigned giver = 0; giver < MEMBERS; giver++)
        for (unsigned taker = 0; taker < MEMBERS; taker++)
            for (unsigned owner = 0; owner < MEMBERS; owner++)
                if ((giver >= SERVERS) + (taker >= SERVERS) + (owner >= SERVERS) >= 2)
                    share_once(giver, taker, owner, number++);
    rref_end();
}
END_TEST

/* A worker that has a reference already is given the same one again: two handles, counted twice. */
START_TEST(test_shared_twice)
{
    rref_start(0);
    struct rref *rref = cell_make_on(0, 1, 50);
    struct rref *first = cell_give(rref, 2), *second = cell_give(first, 0);
    ck_assert_ptr_eq(second, rref);
    struct rref *third = cell_give(rref, 2);
    ck_assert_ptr_eq(third, first);
    ck_assert_uint_eq(rref_counts_of(1).users, 2);
    rref_release(rref);
    rref_release(second);
    rref_release(first);
    rref_turns(5);
    ck_assert_uint_eq(rrefs_of_peer(sides[1].rrefs, 0), 0);
    ck_assert_uint_eq(cells_destroyed[50], 0);
    cell_expect(third, 50);
    rref_release(third);
    await_destroyed(50);
    rref_end();
}
END_TEST

/* A function answers with a new object; another caller of the same kind is gone when it is answered. */
START_TEST(test_granted_in_a_reply)
{
    rref_start(0);
    struct error error = {0};
    struct rref *maker = cell_make_on(0, 1, 60), *made, *again;
    struct future *future = cell_call(maker, CELL_MAKE, 61);
    ck_assert_int_eq(cluster_await(&cluster, future), STATUS_OK);
    uint64_t object = future_value(future)->args[0];
    future_release(future);
    rref_turns(3);
    ck_assert_uint_eq(cells_destroyed[61], 0);
    ck_assert_int_eq(rref_accept(sides[0].rrefs, 1, object, &private_class, &made, &error), STATUS_OK);
    ck_assert_ptr_eq(rref_class_of(made), &private_class);
    cell_expect(made, 61);
    rref_release(made);
    await_destroyed(61);
    future = cell_call(maker, CELL_MAKE, 62);
    ck_assert_int_eq(cluster_await(&cluster, future), STATUS_OK);
    ck_assert_int_eq(rref_accept(sides[0].rrefs, 1, future_value(future)->args[0], NULL, &again, &error),
                     STATUS_OK);
    ck_assert_ptr_null(rref_class_of(again));
    future_release(future);
    rref_release(again);
    rref_release(maker);
    rref_end();
}
END_TEST

/* ---- calls in progress ---- */

/* A call that has not been answered keeps its object beyond the last reference, also when the caller has
 * given up waiting or is gone. */
START_TEST(test_calls_keep_their_object)
{
    rref_start(0);
    struct error error = {0};
    struct rref *rref = cell_make_on(0, 1, 70);
    struct future *future = cell_call(rref, CELL_KEEP, 0);
    rref_release(rref);
    rref_turns(10);
    ck_assert_uint_eq(sides[1].kept_count, 1);
    ck_assert_uint_eq(cells_destroyed[70], 0);
    rpc_reply(sides[1].kept[0], NULL);
    await_destroyed(70);
    ck_assert_int_eq(cluster_await(&cluster, future), STATUS_OK);
    future_release(future);

    rref = cell_make_on(0, 1, 71);
    ck_assert_int_eq(rref_call(rref, CELL_KEEP, NULL, net_in_ms(20), &future, &error), STATUS_OK);
    ck_assert_int_eq(cluster_await(&cluster, future), STATUS_TIMEOUT);
    future_release(future);
    rref_release(rref);
    UNTIL(rref_counts_of(1).users == 0, cluster_turn(&cluster));
    rref_turns(3);
    ck_assert_uint_eq(sides[1].kept_count, 2);
    ck_assert_uint_eq(cells_destroyed[71], 0);
    rpc_fail(sides[1].kept[1], STATUS_IO, "too late");
    await_destroyed(71);

    rref = cell_make_on(2, 1, 72);
    future_release(cell_call(rref, CELL_KEEP, 0));
    rref_turns(10);
    rref_kill(2);
    rref_turns(3);
    ck_assert_uint_eq(rref_counts_of(1).users, 0);
    ck_assert_uint_eq(cells_destroyed[72], 0);
    rpc_reply(sides[1].kept[2], NULL);
    await_destroyed(72);
    rref_end();
}
END_TEST

/* The layer above keeps an object in the same way. */
START_TEST(test_object_use)
{
    rref_start(0);
    struct error error = {0};
    void *object;
    const struct rref_class *class;
    struct rref *rref = cell_make_on(0, 1, 80);
    uint64_t number = rref_object(rref);
    struct rrefs *owner = sides[1].rrefs;
    ck_assert_int_eq(rref_object_use(owner, 2, number, &object, &class, &error), STATUS_PERMISSION);
    ck_assert_str_eq(error.text, "worker 2 holds no reference to object 1 of worker 1");
    ck_assert_int_eq(rref_object_use(owner, 0, number + 1, &object, &class, &error), STATUS_NOT_FOUND);
    ck_assert_str_eq(error.text, "object 2 of worker 1 does not exist");
    ck_assert_int_eq(rref_object_use(owner, 0, number, &object, &class, &error), STATUS_OK);
    ck_assert_uint_eq(((struct cell *)object)->number, 80);
    ck_assert_ptr_eq(class, &cell_class);
    rref_release(rref);
    UNTIL(rref_counts_of(1).users == 0, cluster_turn(&cluster));
    rref_turns(3);
    ck_assert_uint_eq(cells_destroyed[80], 0);
    rref_object_done(owner, number);
    ck_assert_int_eq(rref_object_use(owner, 0, number, &object, &class, &error), STATUS_NOT_FOUND);
    ck_assert_str_eq(error.text, "object 1 of worker 1 was freed");
    await_destroyed(80);
    rref_end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rref");
    TCase *tcase = tcase_create("references");
    tcase_add_test(tcase, test_made_called_released);
    tcase_add_test(tcase, test_what_travels);
    tcase_add_test(tcase, test_own_and_copy);
    tcase_add_test(tcase, test_released_before_it_is_ready);
    tcase_add_test(tcase, test_objects_hold_references);
    tcase_add_test(tcase, test_share_among_servers);
    tcase_add_test(tcase, test_share_among_clients);
    tcase_add_test(tcase, test_shared_twice);
    tcase_add_test(tcase, test_granted_in_a_reply);
    tcase_add_test(tcase, test_calls_keep_their_object);
    tcase_add_test(tcase, test_object_use);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
