/* Deadlines, and what is made of futures: then, all, chains, and futures that nobody keeps. */
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

static enum status note_order(struct future *future, void *arg)
{
    order[order_count++] = (uintptr_t)arg;
    return future_status(future);
}

/* Deadlines given in a scrambled order pass in the order of time, and answered calls leave in between. */
START_TEST(test_deadlines_in_order)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    struct future *calls[36], *after[36], *quick[18];
    struct monotime base = net_in_ms(50);
    order_count = 0;
    for (uintptr_t i = 0; i < 36; i++) {
        uintptr_t rank = i * 17 % 36;
        calls[i] = step(net.clients[0], DO_KEEP, monotime_add_us(base, 100 * rank));
        ck_assert_int_eq(future_then(calls[i], note_order, (void *)rank, &after[i]), STATUS_OK);
        if (i % 2 == 0)
            quick[i / 2] = step(net.clients[0], DO_ANSWER, monotime_add_us(base, 60000000 - 1000 * rank));
    }
    for (unsigned i = 0; i < 18; i++) {
        ck_assert_int_eq(net_await(&net, quick[i]), STATUS_OK);
        future_release(quick[i]);
    }
    for (unsigned i = 0; i < 36; i++) {
        ck_assert_int_eq(net_await(&net, after[i]), STATUS_TIMEOUT);
        future_release(calls[i]);
        future_release(after[i]);
    }
    ck_assert_uint_eq(order_count, 36);
    for (unsigned i = 0; i < 36; i++)
        ck_assert_uint_eq(order[i], i);
    net_free(&net);
}
END_TEST

/* ---- what is made of futures ---- */

static enum status add_status(struct future *future, void *arg)
{
    *(unsigned *)arg += 1;
    return future_status(future);
}

static enum status forgive(struct future *future, void *arg)
{
    (void)future;
    *(unsigned *)arg += 1;
    return STATUS_OK;
}

START_TEST(test_then)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    struct future *call = step(net.clients[0], DO_ANSWER, MONOTIME_NEVER), *first, *second, *late;
    unsigned runs = 0;
    ck_assert_int_eq(future_then(call, add_status, &runs, &first), STATUS_OK);
    ck_assert_int_eq(future_then(first, add_status, &runs, &second), STATUS_OK);
    future_release(call);
    future_release(first);
    ck_assert_uint_eq(runs, 0);
    ck_assert_int_eq(net_await(&net, second), STATUS_OK);
    ck_assert_uint_eq(runs, 2);
    ck_assert_int_eq(future_then(second, add_status, &runs, &late), STATUS_OK);
    ck_assert_uint_eq(runs, 3);
    ck_assert(future_done(late));
    future_release(second);
    expect_doubled(late);
    net_free(&net);
}
END_TEST

START_TEST(test_then_of_a_failure)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    struct future *call = step(net.clients[0], DO_FAIL, MONOTIME_NEVER), *same, *forgiven;
    unsigned runs = 0;
    ck_assert_int_eq(future_then(call, add_status, &runs, &same), STATUS_OK);
    ck_assert_int_eq(future_then(call, forgive, &runs, &forgiven), STATUS_OK);
    future_release(call);
    ck_assert_int_eq(net_await(&net, forgiven), STATUS_OK);
    ck_assert_ptr_null(future_value(forgiven));
    ck_assert_str_eq(future_text(forgiven), "");
    future_release(forgiven);
    net_expect_failure(&net, same, STATUS_CORRUPT, "row 3 of worker 1 is odd");
    ck_assert_uint_eq(runs, 2);
    net_free(&net);
}
END_TEST

START_TEST(test_all)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    struct future *calls[6], *all, *none, *again;
    for (unsigned i = 0; i < 6; i++)
        calls[i] = step(net.clients[0], i == 2 || i == 4 ? DO_FAIL : DO_ANSWER, MONOTIME_NEVER);
    ck_assert_int_eq(future_all(net.clients[0], calls, 6, &all), STATUS_OK);
    ck_assert(!future_done(all));
    ck_assert_int_eq(net_await(&net, all), STATUS_CORRUPT);
    ck_assert_str_eq(future_text(all), "row 3 of worker 1 is odd");
    future_release(all);
    ck_assert_int_eq(future_all(net.clients[0], calls, 2, &again), STATUS_OK);
    ck_assert_int_eq(future_status(again), STATUS_OK);
    ck_assert_uint_eq(future_value(again)->tensor_count, 0);
    future_release(again);
    ck_assert_int_eq(future_all(net.clients[0], NULL, 0, &none), STATUS_OK);
    ck_assert_int_eq(future_status(none), STATUS_OK);
    future_release(none);
    for (unsigned i = 0; i < 6; i++)
        future_release(calls[i]);
    net_free(&net);
}
END_TEST

static struct net *calling_net;

/* A `then` may call again: the next call goes out from within the turn. */
static enum status call_again(struct future *future, void *arg)
{
    unsigned *left = arg;
    ck_assert_int_eq(future_status(future), STATUS_OK);
    if (--*left == 0)
        return STATUS_OK;
    struct future *next = step(calling_net->clients[0], DO_ANSWER, MONOTIME_NEVER), *after;
    ck_assert_int_eq(future_then(next, call_again, left, &after), STATUS_OK);
    future_release(next);
    future_release(after);
    return STATUS_OK;
}

START_TEST(test_then_calls_again)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    calling_net = &net;
    unsigned left = 500;
    struct future *first = step(net.clients[0], DO_ANSWER, MONOTIME_NEVER), *after;
    ck_assert_int_eq(future_then(first, call_again, &left, &after), STATUS_OK);
    future_release(first);
    future_release(after);
    UNTIL(left == 0, net_turn(&net));
    ck_assert_uint_eq(server.calls, 500);
    net_free(&net);
}
END_TEST

/* A chain far longer than a stack is deep, in a pool that is just large enough. */
START_TEST(test_long_chain)
{
    enum { LENGTH = 50000 };
    struct net net;
    struct service server, client;
    memset(&server, 0, sizeof server);
    memset(&client, 0, sizeof client);
    struct rpc_config config = net_server_config(server_methods, 1, &server);
    net_serve(&net, &config);
    config = net_client_config(1, client_methods, 1, &client);
    config.pending_max = LENGTH / 2;
    net_join(&net, &config);
    unsigned runs = 0;
    struct future *last = step(net.clients[0], DO_ANSWER, MONOTIME_NEVER);
    for (unsigned i = 0; i < LENGTH; i++) {
        struct future *next;
        ck_assert_int_eq(future_then(last, add_status, &runs, &next), STATUS_OK);
        future_release(last);
        last = next;
    }
    ck_assert_int_eq(net_await(&net, last), STATUS_OK);
    ck_assert_uint_eq(runs, LENGTH);
    expect_doubled(last);
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

static enum status count_in(struct future *future, void *arg)
{
    ++*(unsigned *)arg;
    return future_status(future);
}

/* A call and what follows it: both, or neither when the futures do not suffice for both. */
START_TEST(test_call_then)
{
    struct net net;
    struct service server, client;
    struct future *all[256], *after;
    struct error error = {0};
    unsigned runs = 0, taken = 0;
    service_start(&net, &server, &client, 1);
    struct rpc *rpc = net.server;
    struct rpc_message ask = {.args = {5}};
    ck_assert_int_eq(
        rpc_call_then(rpc, 1, METHOD_RUN_EPISODE, &ask, MONOTIME_NEVER, count_in, &runs, &after, &error),
        STATUS_OK);
    ck_assert_int_eq(net_await(&net, after), STATUS_OK);
    ck_assert_uint_eq(future_value(after)->args[0], 6);
    ck_assert_uint_eq(runs, 1);
    future_release(after);
    while (future_all(rpc, NULL, 0, &all[taken]) == STATUS_OK)
        taken++;
    future_release(all[--taken]);
    ck_assert_int_eq(
        rpc_call_then(rpc, 1, METHOD_RUN_EPISODE, &ask, MONOTIME_NEVER, count_in, &runs, NULL, &error),
        STATUS_BUSY);
    future_release(all[--taken]);
    ck_assert_int_eq(
        rpc_call_then(rpc, 1, METHOD_RUN_EPISODE, &ask, MONOTIME_NEVER, count_in, &runs, NULL, &error),
        STATUS_OK);
    UNTIL(runs >= 2, net_turn(&net));
    ck_assert_uint_eq(runs, 2);
    ck_assert_uint_eq(client.calls, 2);
    while (taken > 0)
        future_release(all[--taken]);
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
    rpc_peer_died(net.server, 2, "the test says so");
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
    tcase_add_test(futures, test_then);
    tcase_add_test(futures, test_then_of_a_failure);
    tcase_add_test(futures, test_all);
    tcase_add_test(futures, test_then_calls_again);
    tcase_add_test(futures, test_long_chain);
    tcase_add_test(futures, test_released_before_it_is_done);
    tcase_add_test(futures, test_call_then);
    tcase_add_test(futures, test_on_answer);
    tcase_set_timeout(futures, 60);
    suite_add_tcase(suite, futures);
    return suite_run(suite);
}
