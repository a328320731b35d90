/* Calls between a server and its clients, all in one process and on one thread, so that every order of events
 * is the test's own: both ways, nested, answered later, failed with a text, and up to every limit. Futures
 * and deadlines are in test_rpc_future.c, the ends of sessions in test_rpc_ends.c, peers that break the rules
 * in test_rpc_hostile.c and test_rpc_hello.c. Each test runs in a process of its own, which alone uses
 * ZeroMQ. */
#include "test/worker/net/net_service.h"
#include "test/workplace.h"

/* ---- calls ---- */

START_TEST(test_join_brings_the_job)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 2);
    size_t bytes;
    ck_assert_str_eq(rpc_welcome(net.clients[0], &bytes), "{\"kind\":\"reinforce\"}");
    ck_assert_uint_eq(bytes, strlen("{\"kind\":\"reinforce\"}"));
    ck_assert_uint_eq(server.joined, 1u << 1 | 1u << 2);
    net_free(&net);
}
END_TEST

START_TEST(test_async_both_directions)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 3);
    struct future *up[3], *down[3];
    for (unsigned i = 0; i < 3; i++) {
        up[i] = step(net.clients[i], DO_ANSWER, MONOTIME_NEVER);
        down[i] = episode(net.server, (uint16_t)(i + 1), 10 * i);
        ck_assert(!future_done(up[i]));
        ck_assert_int_eq(future_status(up[i]), STATUS_AGAIN);
    }
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_int_eq(net_await(&net, up[i]), STATUS_OK);
        expect_doubled(up[i]);
        ck_assert_int_eq(net_await(&net, down[i]), STATUS_OK);
        ck_assert_uint_eq(future_value(down[i])->args[0], 10 * i + 1);
        ck_assert_str_eq(future_text(down[i]), "");
        future_release(down[i]);
    }
    ck_assert_uint_eq(server.calls, 3);
    ck_assert_uint_eq(client.calls, 3);
    net_free(&net);
}
END_TEST

START_TEST(test_sync_call)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    struct net_turner turner;
    net_turner_start(&turner, net.server);
    struct rpc_message message = rows_message(rows, 3, DO_ANSWER);
    for (unsigned i = 0; i < 200; i++) {
        struct future *future;
        struct error error = {0};
        enum status status =
            rpc_call(net.clients[0], 0, METHOD_STEP, &message, net_in_ms(5000), &future, &error);
        ck_assert_msg(status == STATUS_OK, "%s", error.text);
        expect_doubled(future);
    }
    net_turner_stop(&turner);
    ck_assert_uint_eq(server.calls, 200);
    net_free(&net);
}
END_TEST

/* The client's blocking call serves the server's nested call while it waits. */
START_TEST(test_nested_call)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    struct net_turner turner;
    net_turner_start(&turner, net.server);
    struct rpc_message message = rows_message(rows, 3, DO_NEST);
    struct future *future;
    struct error error = {0};
    ck_assert_int_eq(rpc_call(net.clients[0], 0, METHOD_STEP, &message, MONOTIME_NEVER, &future, &error),
                     STATUS_OK);
    ck_assert_uint_eq(future_value(future)->args[0], 42);
    future_release(future);
    message.args[1] = 404;
    ck_assert_int_eq(rpc_call(net.clients[0], 0, METHOD_STEP, &message, MONOTIME_NEVER, &future, &error),
                     STATUS_NOT_FOUND);
    ck_assert_str_eq(error.text, "nested: no episode 404");
    ck_assert_ptr_null(future);
    net_turner_stop(&turner);
    net_free(&net);
}
END_TEST

START_TEST(test_echo)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    uint8_t flags[5] = {1, 2, 3, 4, 5};
    uint32_t numbers[6] = {6, 5, 4, 3, 2, 1};
    struct rpc_message message = {.args = {1, 2, 3, UINT64_MAX},
                                  .tensor_count = 3,
                                  .tensors = {{WIRE_U8, 1, .dims = {5}},
                                              {WIRE_U32, 2, .dims = {2, 3}},
                                              {WIRE_F32, 3, .dims = {3, 1, 1}}},
                                  .data = {flags, numbers, rows}};
    struct future *future;
    struct error error;
    ck_assert_int_eq(rpc_call_async(net.server, 1, METHOD_ECHO, &message, MONOTIME_NEVER, &future, &error),
                     STATUS_OK);
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    const struct rpc_message *value = future_value(future);
    ck_assert_mem_eq(value->args, message.args, sizeof value->args);
    ck_assert_uint_eq(value->tensor_count, 3);
    for (unsigned i = 0; i < 3; i++) {
        ck_assert_uint_eq(value->tensors[i].dtype, message.tensors[i].dtype);
        ck_assert_uint_eq(value->tensors[i].rank, message.tensors[i].rank);
        ck_assert_mem_eq(value->tensors[i].dims, message.tensors[i].dims, sizeof value->tensors[i].dims);
    }
    ck_assert_mem_eq(value->data[0], flags, sizeof flags);
    ck_assert_mem_eq(value->data[1], numbers, sizeof numbers);
    ck_assert_mem_eq(value->data[2], rows, sizeof rows);
    future_release(future);
    net_free(&net);
}
END_TEST

START_TEST(test_answer_later_and_in_any_order)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 2);
    struct future *futures[8];
    for (unsigned i = 0; i < 8; i++)
        futures[i] = step(net.clients[i % 2], DO_KEEP, MONOTIME_NEVER);
    UNTIL(server.kept_count >= 8, net_turn(&net));
    ck_assert_uint_eq(server.kept_count, 8);
    for (unsigned i = 0; i < 8; i++)
        ck_assert(!future_done(futures[i]));
    for (unsigned i = 8; i-- > 0;)
        answer_doubled(server.kept[i], rpc_request_message(server.kept[i]));
    for (unsigned i = 0; i < 8; i++) {
        ck_assert_int_eq(net_await(&net, futures[i]), STATUS_OK);
        expect_doubled(futures[i]);
    }
    net_free(&net);
}
END_TEST

/* Calls that are pending, each with the number it carries. */
enum { MANY = 128 };

struct many {
    struct future *futures[MANY];
    uint64_t numbers[MANY], next;
};

/* Calls until MANY are pending. */
static void many_fill(struct many *many, struct net *net)
{
    for (unsigned i = 0; i < MANY; i++) {
        struct rpc_message message = rows_message(rows, 3, DO_KEEP);
        struct error error;
        message.args[1] = many->next;
        if (many->futures[i] != NULL)
            continue;
        many->numbers[i] = many->next++;
        while (rpc_call_async(net->clients[0], 0, METHOD_STEP, &message, MONOTIME_NEVER, &many->futures[i],
                              &error) != STATUS_OK)
            net_turn(net);
    }
}

/* Those that are done; each must carry its own number back. */
static unsigned many_take(struct many *many)
{
    unsigned done = 0;
    for (unsigned i = 0; i < MANY; i++) {
        if (many->futures[i] == NULL || !future_done(many->futures[i]))
            continue;
        ck_assert_int_eq(future_status(many->futures[i]), STATUS_OK);
        ck_assert_uint_eq(future_value(many->futures[i])->args[0], many->numbers[i]);
        future_release(many->futures[i]);
        many->futures[i] = NULL;
        done++;
    }
    return done;
}

/* Turns until `count` are done. */
static void many_collect(struct many *many, struct net *net, unsigned count)
{
    unsigned done = 0;
    UNTIL(done >= count, (net_turn(net), done += many_take(many)));
    ck_assert_uint_eq(done, count);
}

/* The table of pending calls half full, with answers and new calls in a scrambled order: none is mistaken for
 * another, and none is lost. */
START_TEST(test_many_pending)
{
    struct net net;
    struct service server = {0}, client = {0};
    struct many many = {0};
    uint64_t random = 1;
    struct rpc_config config = net_server_config(server_methods, 1, &server);
    config.incoming_max = MANY;
    net_serve(&net, &config);
    config = net_client_config(1, client_methods, 1, &client);
    config.pending_max = MANY;
    net_join(&net, &config);
    for (unsigned round = 0; round < 40; round++) {
        many_fill(&many, &net);
        UNTIL(server.kept_count >= MANY, net_turn(&net));
        ck_assert_uint_eq(server.kept_count, MANY);
        for (unsigned i = 0; i < 50; i++) {
            random = random * UINT64_C(6364136223846793005) + 1;
            unsigned at = (unsigned)(random >> 33) % server.kept_count;
            answer_doubled(server.kept[at], rpc_request_message(server.kept[at]));
            server.kept[at] = server.kept[--server.kept_count];
        }
        many_collect(&many, &net, 50);
    }
    net_free(&net);
}
END_TEST

START_TEST(test_failure_carries_its_text)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    net_expect_failure(&net, step(net.clients[0], DO_FAIL, MONOTIME_NEVER), STATUS_CORRUPT,
                       "row 3 of worker 1 is odd");
    net_expect_failure(&net, episode(net.server, 1, 404), STATUS_NOT_FOUND, "no episode 404");
    ck_assert_uint_eq(server.left | client.left, 0);
    net_free(&net);
}
END_TEST

/* ---- limits ---- */

START_TEST(test_pending_max)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    struct future *futures[64], *extra = NULL;
    struct error error = {0};
    struct rpc_message message = rows_message(rows, 3, DO_KEEP);
    for (unsigned i = 0; i < 64; i++) {
        futures[i] = step(net.clients[0], DO_KEEP, MONOTIME_NEVER);
        net_turn(&net);
    }
    ck_assert_int_eq(rpc_call_async(net.clients[0], 0, METHOD_STEP, &message, MONOTIME_NEVER, &extra, &error),
                     STATUS_BUSY);
    ck_assert_str_eq(error.text, "64 calls are pending, at most 64");
    UNTIL(server.kept_count >= 64, net_turn(&net));
    answer_doubled(server.kept[0], rpc_request_message(server.kept[0]));
    ck_assert_int_eq(net_await(&net, futures[0]), STATUS_OK);
    ck_assert_int_eq(rpc_call_async(net.clients[0], 0, METHOD_STEP, &message, MONOTIME_NEVER, &extra, &error),
                     STATUS_OK);
    for (unsigned i = 0; i < 64; i++)
        future_release(futures[i]);
    future_release(extra);
    net_free(&net);
}
END_TEST

static unsigned count_busy(struct future *const *futures, unsigned count)
{
    unsigned busy = 0;
    for (unsigned i = 0; i < count; i++)
        busy += future_status(futures[i]) == STATUS_BUSY;
    return busy;
}

START_TEST(test_incoming_max)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 2);
    struct future *futures[65];
    for (unsigned i = 0; i < 65; i++)
        futures[i] = step(net.clients[i % 2], DO_KEEP, MONOTIME_NEVER);
    UNTIL(server.kept_count >= 64 && count_busy(futures, 65) > 0, net_turn(&net));
    ck_assert_uint_eq(server.kept_count, 64);
    ck_assert_uint_eq(count_busy(futures, 65), 1);
    for (unsigned i = 0; i < 64; i++)
        answer_doubled(server.kept[i], rpc_request_message(server.kept[i]));
    unsigned ok = 0;
    for (unsigned i = 0; i < 65; i++) {
        ok += net_await(&net, futures[i]) == STATUS_OK;
        future_release(futures[i]);
    }
    ck_assert_uint_eq(ok, 64);
    struct rpc_counters counters;
    rpc_counters(net.server, &counters);
    ck_assert_uint_eq(counters.bad, 0);
    net_free(&net);
}
END_TEST

START_TEST(test_bad_calls_of_ours)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    struct future *future = NULL;
    struct error error = {0};
    struct rpc_message message = rows_message(rows, 3, DO_ANSWER);
    ck_assert_int_eq(rpc_call_async(net.server, 5, METHOD_ECHO, &message, MONOTIME_NEVER, &future, &error),
                     STATUS_NOT_FOUND);
    ck_assert_int_eq(rpc_call_async(net.server, 500, METHOD_ECHO, &message, MONOTIME_NEVER, &future, &error),
                     STATUS_NOT_FOUND);
    message.tensors[0].dims[0] = RPC_BODY_BYTES_MAX;
    ck_assert_int_eq(rpc_call_async(net.server, 1, METHOD_ECHO, &message, MONOTIME_NEVER, &future, &error),
                     STATUS_INVALID);
    message = rows_message(rows, 3, DO_ANSWER);
    message.tensors[0].rank = 9;
    ck_assert_int_eq(rpc_call_async(net.server, 1, METHOD_ECHO, &message, MONOTIME_NEVER, &future, &error),
                     STATUS_INVALID);
    ck_assert_ptr_null(future);
    net_free(&net);
}
END_TEST

/* Large messages, more of them than the queues hold: what cannot leave is kept, up to a bound for the
 * caller's, then refused; and everything comes through. */
START_TEST(test_full_queues)
{
    enum { CALLS = 600, FLOATS = 40000 };
    struct net net;
    struct service server, client;
    memset(&server, 0, sizeof server);
    memset(&client, 0, sizeof client);
    struct rpc_config config = net_server_config(server_methods, 1, &server);
    config.pending_max = CALLS;
    net_serve(&net, &config);
    config = net_client_config(1, client_methods, 1, &client);
    config.incoming_max = CALLS;
    net_join(&net, &config);
    static float many[FLOATS];
    struct rpc_message message = {
        .tensor_count = 1, .tensors = {{WIRE_F32, 1, .dims = {FLOATS}}}, .data = {many}};
    struct future *futures[CALLS];
    unsigned sent = 0, refused = 0, turns_alone = 0;
    struct error error = {0};
    while (sent < CALLS) {
        message.args[0] = sent;
        enum status status =
            rpc_call_async(net.server, 1, METHOD_ECHO, &message, MONOTIME_NEVER, &futures[sent], &error);
        ck_assert(status == STATUS_OK || status == STATUS_BUSY);
        if (status == STATUS_OK) {
            sent++;
        } else {
            refused++;
            rpc_turn(net.clients[0], net_in_ms(1));
            if (++turns_alone % 16 == 0)
                rpc_turn(net.server, net_in_ms(1));
        }
    }
    ck_assert_uint_gt(refused, 0);
    for (unsigned i = 0; i < CALLS; i++) {
        ck_assert_int_eq(net_await(&net, futures[i]), STATUS_OK);
        ck_assert_uint_eq(future_value(futures[i])->args[0], i);
        future_release(futures[i]);
    }
    net_free(&net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc");
    TCase *calls = tcase_create("calls");
    tcase_add_test(calls, test_join_brings_the_job);
    tcase_add_test(calls, test_async_both_directions);
    tcase_add_test(calls, test_sync_call);
    tcase_add_test(calls, test_nested_call);
    tcase_add_test(calls, test_echo);
    tcase_add_test(calls, test_answer_later_and_in_any_order);
    tcase_add_test(calls, test_many_pending);
    tcase_add_test(calls, test_failure_carries_its_text);
    tcase_set_timeout(calls, 60);
    suite_add_tcase(suite, calls);
    TCase *limits = tcase_create("limits");
    tcase_add_test(limits, test_pending_max);
    tcase_add_test(limits, test_incoming_max);
    tcase_add_test(limits, test_bad_calls_of_ours);
    tcase_add_test(limits, test_full_queues);
    tcase_set_timeout(limits, 60);
    suite_add_tcase(suite, limits);
    return suite_run(suite);
}
