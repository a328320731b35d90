/* Deadlines, functions that run when a call is done, and futures that are released before
 * they are done. */
#include "test/worker/net/net_service.h"
#include "test/workplace.h"

/* ---- deadlines ---- */

START_TEST(test_deadline_passes)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    struct monotime deadline = net_in_ms(30);
    struct future *future = step(net.clients[0], DO_KEEP, deadline);
    net_expect_failure(&net, future, STATUS_TIMEOUT, "deadline");
    ck_assert(!monotime_before(monotime_now(), deadline));
    struct rpc_counters counters;
    rpc_counters(net.clients[0], &counters);
    ck_assert_uint_eq(counters.timeouts, 1);
    UNTIL(server.kept_count >= 1, net_turn(&net));
    answer_doubled(server.kept[0], rpc_request_message(server.kept[0]));
    UNTIL(counters.stale == 1, (net_turn(&net), rpc_counters(net.clients[0], &counters)));
    net_free(&net);
}
END_TEST

START_TEST(test_deadline_already_passed)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    net_expect_failure(&net, step(net.clients[0], DO_ANSWER, (struct monotime){1}), STATUS_TIMEOUT,
                       "deadline");
    for (unsigned i = 0; i < 50; i++)
        net_turn(&net);
    ck_assert_uint_eq(server.calls, 0);
    net_free(&net);
}
END_TEST

static unsigned order_count;
static uint64_t order[64];

static void note_order(struct future *future, void *arg)
{
    (void)future;
    order[order_count++] = (uintptr_t)arg;
}

/* Deadlines given in a scrambled order pass in the order of time, and answered calls leave in between. */
START_TEST(test_deadlines_in_order)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    struct future *calls[36], *quick[18];
    struct monotime base = net_in_ms(50);
    order_count = 0;
    for (uintptr_t i = 0; i < 36; i++) {
        uintptr_t rank = i * 17 % 36;
        calls[i] =
            step_then(net.clients[0], DO_KEEP, monotime_add_us(base, 100 * rank), note_order, (void *)rank);
        if (i % 2 == 0)
            quick[i / 2] = step(net.clients[0], DO_ANSWER, monotime_add_us(base, 60000000 - 1000 * rank));
    }
    for (unsigned i = 0; i < 18; i++) {
        ck_assert_int_eq(net_await(&net, quick[i]), STATUS_OK);
        future_release(quick[i]);
    }
    for (unsigned i = 0; i < 36; i++) {
        ck_assert_int_eq(net_await(&net, calls[i]), STATUS_TIMEOUT);
        future_release(calls[i]);
    }
    ck_assert_uint_eq(order_count, 36);
    for (unsigned i = 0; i < 36; i++)
        ck_assert_uint_eq(order[i], i);
    net_free(&net);
}
END_TEST

/* ---- functions ---- */

static struct net *calling_net;

/* The function may call again: the next call goes out from within the turn. */
static void call_again(struct future *future, void *arg)
{
    unsigned *left = arg;
    ck_assert_int_eq(future_status(future), STATUS_OK);
    if (--*left > 0)
        future_release(step_then(calling_net->clients[0], DO_ANSWER, MONOTIME_NEVER, call_again, left));
}

START_TEST(test_then_calls_again)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    calling_net = &net;
    unsigned left = 500;
    future_release(step_then(net.clients[0], DO_ANSWER, MONOTIME_NEVER, call_again, &left));
    UNTIL(left == 0, net_turn(&net));
    ck_assert_uint_eq(server.calls, 500);
    net_free(&net);
}
END_TEST

START_TEST(test_released_before_it_is_done)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    for (unsigned round = 0; round < 300; round++) {
        future_release(step(net.clients[0], DO_ANSWER, MONOTIME_NEVER));
        net_turn(&net);
        net_turn(&net);
    }
    UNTIL(server.calls >= 300, net_turn(&net));
    ck_assert_uint_eq(server.calls, 300);
    net_free(&net);
}
END_TEST

static void count_in(struct future *future, void *arg)
{
    (void)future;
    ++*(unsigned *)arg;
}

/* The function of a call runs once; a call that no future is left for is not sent. */
START_TEST(test_call_then)
{
    struct net net;
    struct service server, client;
    struct future *futures[FUTURES_MAX], *kept;
    struct error error = {0};
    unsigned runs = 0;
    service_start(&net, &server, &client, 1);
    struct rpc *rpc = net.server;
    struct rpc_message ask = {.args = {5}};
    ck_assert_int_eq(
        rpc_call_then(rpc, 1, METHOD_RUN_EPISODE, &ask, MONOTIME_NEVER, count_in, &runs, &kept, &error),
        STATUS_OK);
    ck_assert_int_eq(net_await(&net, kept), STATUS_OK);
    ck_assert_uint_eq(future_value(kept)->args[0], 6);
    ck_assert_uint_eq(runs, 1);
    future_release(kept);
    unsigned taken = futures_take(rpc, futures);
    ck_assert_int_eq(
        rpc_call_then(rpc, 1, METHOD_RUN_EPISODE, &ask, MONOTIME_NEVER, count_in, &runs, NULL, &error),
        STATUS_BUSY);
    future_release(futures[--taken]);
    ck_assert_int_eq(
        rpc_call_then(rpc, 1, METHOD_RUN_EPISODE, &ask, MONOTIME_NEVER, count_in, &runs, NULL, &error),
        STATUS_OK);
    UNTIL(runs >= 2, net_turn(&net));
    ck_assert_uint_eq(runs, 2);
    ck_assert_uint_eq(client.calls, 2);
    futures_give(futures, taken);
    net_free(&net);
}
END_TEST

static void note_number(void *context, uint64_t number)
{
    *(uint64_t *)context += number;
}

/* Who asked for it is told of the answer, also when that goes nowhere, and when there is none. */
START_TEST(test_on_answer)
{
    struct net net;
    struct service server, client;
    uint64_t sum = 0;
    service_start(&net, &server, &client, 2);
    struct future *first = step(net.clients[0], DO_KEEP, MONOTIME_NEVER);
    struct future *second = step(net.clients[1], DO_KEEP, MONOTIME_NEVER);
    UNTIL(server.kept_count >= 2, net_turn(&net));
    unsigned of_first = rpc_request_source(server.kept[0]) == 1 ? 0 : 1;
    struct rpc_request *kept = server.kept[of_first], *lost = server.kept[1 - of_first];
    rpc_on_answer(kept, note_number, &sum, 1);
    rpc_on_answer(lost, note_number, &sum, 10);
    ck_assert(rpc_request_is_live(lost));
    rpc_peer_died(net.server, 2, UINT32_MAX, "the test says so");
    ck_assert(!rpc_request_is_live(lost));
    ck_assert_uint_eq(sum, 0);
    rpc_fail(lost, STATUS_IO, "to nobody");
    ck_assert_uint_eq(sum, 10);
    answer_doubled(kept, rpc_request_message(kept));
    ck_assert_uint_eq(sum, 11);
    ck_assert_int_eq(net_await(&net, first), STATUS_OK);
    future_release(first);
    future_release(second);
    first = step(net.clients[0], DO_KEEP, MONOTIME_NEVER);
    UNTIL(server.kept_count >= 3, net_turn(&net));
    rpc_on_answer(server.kept[2], note_number, &sum, 100);
    future_release(first);
    net_free(&net);
    ck_assert_uint_eq(sum, 111);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_future");
    TCase *deadlines = tcase_create("deadlines");
    tcase_add_test(deadlines, test_deadline_passes);
    tcase_add_test(deadlines, test_deadline_already_passed);
    tcase_add_test(deadlines, test_deadlines_in_order);
    tcase_set_timeout(deadlines, 60);
    suite_add_tcase(suite, deadlines);
    TCase *futures = tcase_create("futures");
    tcase_add_test(futures, test_then_calls_again);
    tcase_add_test(futures, test_released_before_it_is_done);
    tcase_add_test(futures, test_call_then);
    tcase_add_test(futures, test_on_answer);
    tcase_set_timeout(futures, 60);
    suite_add_tcase(suite, futures);
    return suite_run(suite);
}
