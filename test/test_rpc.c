/* The rpc between a server and its clients, all in one process and on one thread, so that every order of
 * events is the test's own: calls both ways, nested calls, answers that come later, failures that carry
 * their text, deadlines, what is made of futures, limits, deaths. How it treats peers that break the rules
 * is in test_rpc_hostile.c. Each test runs in a process of its own, which alone uses ZeroMQ. */
#include "test/net_fixture.h"

#include <signal.h>

/* ---- a service to call: METHOD_STEP doubles its rows, or does as args[0] says ---- */

enum { DO_ANSWER = 0, DO_FAIL = 1, DO_KEEP = 2, DO_NEST = 3, DO_REJECT = 4 };

struct service {
    struct net *net;
    struct rpc *self;
    struct rpc_request *kept[128];
    unsigned kept_count, calls, joined, left;
    uint16_t last_source;
    struct monotime last_deadline;
    enum status left_why;
    char left_text[128];
    float sum;
};

static void answer_doubled(struct rpc_request *request, const struct rpc_message *message)
{
    float rows[16];
    uint32_t count = message->tensors[0].dims[0];
    memcpy(rows, message->data[0], count * sizeof *rows);
    for (uint32_t i = 0; i < count; i++)
        rows[i] *= 2;
    struct rpc_message value = {.args = {message->args[1]}, .tensor_count = 1};
    value.tensors[0] = message->tensors[0];
    value.data[0] = rows;
    rpc_reply(request, &value);
}

/* A nested call's end completes the request that it was made for. */
static enum status pass_on(struct future *future, void *arg)
{
    struct rpc_request *request = arg;
    if (future_status(future) == STATUS_OK)
        rpc_reply(request, future_value(future));
    else
        rpc_fail(request, future_status(future), "nested: %s", future_text(future));
    return future_status(future);
}

static void nest(struct service *service, struct rpc_request *request, const struct rpc_message *message)
{
    struct future *call, *after;
    struct error error = {0};
    enum status status =
        rpc_call_async(service->self, rpc_request_source(request), METHOD_RUN_EPISODE,
                       &(struct rpc_message){.args = {message->args[1]}}, MONOTIME_NEVER, &call, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    ck_assert_int_eq(future_then(call, pass_on, request, &after), STATUS_OK);
    future_release(call);
    future_release(after);
}

static void on_step(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct service *service = context;
    service->calls++;
    service->last_source = rpc_request_source(request);
    service->last_deadline = rpc_request_deadline(request);
    switch (message->args[0]) {
    case DO_FAIL:
        rpc_fail(request, STATUS_CORRUPT, "row %d of worker %u is odd", 3, service->last_source);
        break;
    case DO_KEEP:
        service->kept[service->kept_count++] = request;
        break;
    case DO_NEST:
        nest(service, request, message);
        break;
    case DO_REJECT:
        rpc_reject(request, "environment %u is not yours", 7);
        break;
    default:
        answer_doubled(request, message);
    }
}

static void on_episode(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct service *service = context;
    service->calls++;
    ck_assert_uint_eq(message->tensor_count, 0);
    if (message->args[0] == 404)
        rpc_fail(request, STATUS_NOT_FOUND, "no episode %d", 404);
    else
        rpc_reply(request, &(struct rpc_message){.args = {message->args[0] + 1}});
}

static void on_joined(void *context, uint16_t worker)
{
    struct service *service = context;
    service->joined |= 1u << worker;
}

static void on_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct service *service = context;
    service->left |= 1u << worker;
    service->left_why = why;
    snprintf(service->left_text, sizeof service->left_text, "%s", text);
}

static const struct rpc_method server_methods[] = {{.method = METHOD_STEP,
                                                    .callers = WIRE_ROLE_OBSERVER,
                                                    .tensor_count = 1,
                                                    .tensors = {{WIRE_F32, 1, {0}}},
                                                    .handler = on_step}};
static const struct rpc_method client_methods[] = {
    {.method = METHOD_RUN_EPISODE, .callers = WIRE_ROLE_AGENT, .handler = on_episode}};

static void start(struct net *net, struct service *server, struct service *client, unsigned clients)
{
    memset(server, 0, sizeof *server);
    memset(client, 0, sizeof *client);
    struct rpc_config config = net_server_config(server_methods, 1, server);
    config.joined = on_joined;
    config.left = on_left;
    net_serve(net, &config);
    server->net = net;
    server->self = net->server;
    for (unsigned i = 1; i <= clients; i++) {
        struct rpc_config joining = net_client_config((uint16_t)i, client_methods, 1, client);
        joining.left = on_left;
        net_join(net, &joining);
    }
}

static struct rpc_message rows_message(const float *rows, uint32_t count, uint64_t what)
{
    return (struct rpc_message){
        .args = {what, 41}, .tensor_count = 1, .tensors = {{WIRE_F32, 1, {count}}}, .data = {rows}};
}

static const float rows[3] = {1, -2, 3.5f};

static struct future *step(struct rpc *from, uint64_t what, struct monotime deadline)
{
    struct rpc_message message = rows_message(rows, 3, what);
    struct future *future = NULL;
    struct error error = {0};
    enum status status = rpc_call_async(from, 0, METHOD_STEP, &message, deadline, &future, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return future;
}

static struct future *episode(struct rpc *from, uint16_t worker, uint64_t number)
{
    struct future *future = NULL;
    struct error error = {0};
    enum status status =
        rpc_call_async(from, worker, METHOD_RUN_EPISODE, &(struct rpc_message){.args = {number}},
                       MONOTIME_NEVER, &future, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return future;
}

static void expect_doubled(struct future *future)
{
    const struct rpc_message *value = future_value(future);
    ck_assert_ptr_nonnull(value);
    ck_assert_uint_eq(value->tensor_count, 1);
    ck_assert_uint_eq(value->tensors[0].dims[0], 3);
    ck_assert_uint_eq(value->args[0], 41);
    float got[3];
    memcpy(got, value->data[0], sizeof got);
    for (unsigned i = 0; i < 3; i++)
        ck_assert(got[i] == 2 * rows[i]);
    future_release(future);
}

/* ---- calls ---- */

START_TEST(test_join_brings_the_job)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 2);
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
    start(&net, &server, &client, 3);
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
    start(&net, &server, &client, 1);
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
    start(&net, &server, &client, 1);
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
    start(&net, &server, &client, 1);
    uint8_t flags[5] = {1, 2, 3, 4, 5};
    uint32_t numbers[6] = {6, 5, 4, 3, 2, 1};
    struct rpc_message message = {
        .args = {1, 2, 3, UINT64_MAX},
        .tensor_count = 3,
        .tensors = {{WIRE_U8, 1, {5}}, {WIRE_U32, 2, {2, 3}}, {WIRE_F32, 3, {3, 1, 1}}},
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
    start(&net, &server, &client, 2);
    struct future *futures[8];
    for (unsigned i = 0; i < 8; i++)
        futures[i] = step(net.clients[i % 2], DO_KEEP, MONOTIME_NEVER);
    for (unsigned i = 0; i < 5000 && server.kept_count < 8; i++)
        net_turn(&net);
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

START_TEST(test_failure_carries_its_text)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 1);
    net_expect_failure(&net, step(net.clients[0], DO_FAIL, MONOTIME_NEVER), STATUS_CORRUPT,
                       "row 3 of worker 1 is odd");
    net_expect_failure(&net, episode(net.server, 1, 404), STATUS_NOT_FOUND, "no episode 404");
    ck_assert_uint_eq(server.left | client.left, 0);
    net_free(&net);
}
END_TEST

/* ---- deadlines ---- */

START_TEST(test_deadline_passes)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 1);
    struct monotime deadline = net_in_ms(30);
    struct future *future = step(net.clients[0], DO_KEEP, deadline);
    net_expect_failure(&net, future, STATUS_TIMEOUT, "deadline");
    ck_assert(!monotime_before(monotime_now(), deadline));
    struct rpc_counters counters;
    rpc_counters(net.clients[0], &counters);
    ck_assert_uint_eq(counters.timeouts, 1);
    for (unsigned i = 0; i < 5000 && server.kept_count < 1; i++)
        net_turn(&net);
    answer_doubled(server.kept[0], rpc_request_message(server.kept[0]));
    for (unsigned i = 0; i < 5000 && counters.stale == 0; i++) {
        net_turn(&net);
        rpc_counters(net.clients[0], &counters);
    }
    ck_assert_uint_eq(counters.stale, 1);
    net_free(&net);
}
END_TEST

START_TEST(test_deadline_travels_as_time_left)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 1);
    struct monotime deadline = net_in_ms(60000);
    struct future *future = step(net.clients[0], DO_ANSWER, deadline);
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    future_release(future);
    ck_assert(!monotime_is_never(server.last_deadline));
    ck_assert_uint_lt(server.last_deadline.ns, deadline.ns + UINT64_C(60000000000));
    ck_assert_uint_gt(server.last_deadline.ns, deadline.ns - 1000);
    future = step(net.clients[0], DO_ANSWER, MONOTIME_NEVER);
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    future_release(future);
    ck_assert(monotime_is_never(server.last_deadline));
    net_free(&net);
}
END_TEST

START_TEST(test_deadline_already_passed)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 1);
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
    start(&net, &server, &client, 1);
    struct future *calls[40], *after[40], *quick[20];
    struct monotime base = net_in_ms(50);
    order_count = 0;
    for (uintptr_t i = 0; i < 40; i++) {
        uintptr_t rank = i * 17 % 40;
        calls[i] = step(net.clients[0], DO_KEEP, monotime_add_us(base, 100 * rank));
        ck_assert_int_eq(future_then(calls[i], note_order, (void *)rank, &after[i]), STATUS_OK);
        if (i % 2 == 0)
            quick[i / 2] = step(net.clients[0], DO_ANSWER, monotime_add_us(base, 60000000 - 1000 * rank));
    }
    for (unsigned i = 0; i < 20; i++) {
        ck_assert_int_eq(net_await(&net, quick[i]), STATUS_OK);
        future_release(quick[i]);
    }
    for (unsigned i = 0; i < 40; i++) {
        ck_assert_int_eq(net_await(&net, after[i]), STATUS_TIMEOUT);
        future_release(calls[i]);
        future_release(after[i]);
    }
    ck_assert_uint_eq(order_count, 40);
    for (unsigned i = 0; i < 40; i++)
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
    start(&net, &server, &client, 1);
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
    start(&net, &server, &client, 1);
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
    start(&net, &server, &client, 1);
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
    start(&net, &server, &client, 1);
    calling_net = &net;
    unsigned left = 500;
    struct future *first = step(net.clients[0], DO_ANSWER, MONOTIME_NEVER), *after;
    ck_assert_int_eq(future_then(first, call_again, &left, &after), STATUS_OK);
    future_release(first);
    future_release(after);
    for (unsigned i = 0; i < 20000 && left > 0; i++)
        net_turn(&net);
    ck_assert_uint_eq(left, 0);
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
    start(&net, &server, &client, 1);
    for (unsigned round = 0; round < 300; round++) {
        future_release(step(net.clients[0], DO_ANSWER, MONOTIME_NEVER));
        net_turn(&net);
        net_turn(&net);
    }
    for (unsigned i = 0; i < 5000 && server.calls < 300; i++)
        net_turn(&net);
    ck_assert_uint_eq(server.calls, 300);
    net_free(&net);
}
END_TEST

/* ---- limits ---- */

START_TEST(test_pending_max)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 1);
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
    for (unsigned i = 0; i < 5000 && server.kept_count < 64; i++)
        net_turn(&net);
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

START_TEST(test_incoming_max)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 2);
    struct future *futures[65];
    for (unsigned i = 0; i < 65; i++)
        futures[i] = step(net.clients[i % 2], DO_KEEP, MONOTIME_NEVER);
    unsigned busy = 0;
    for (unsigned i = 0; i < 5000 && (server.kept_count < 64 || busy == 0); i++) {
        net_turn(&net);
        busy = 0;
        for (unsigned j = 0; j < 65; j++)
            busy += future_status(futures[j]) == STATUS_BUSY;
    }
    ck_assert_uint_eq(server.kept_count, 64);
    ck_assert_uint_eq(busy, 1);
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
    start(&net, &server, &client, 1);
    struct future *future = NULL;
    struct error error = {0};
    struct rpc_message message = rows_message(rows, 3, DO_ANSWER);
    ck_assert_int_eq(rpc_call_async(net.server, 5, METHOD_ECHO, &message, MONOTIME_NEVER, &future, &error),
                     STATUS_NOT_FOUND);
    ck_assert_int_eq(rpc_call_async(net.server, 500, METHOD_ECHO, &message, MONOTIME_NEVER, &future, &error),
                     STATUS_NOT_FOUND);
    ck_assert_int_eq(rpc_call_async(net.server, 0, METHOD_ECHO, &message, MONOTIME_NEVER, &future, &error),
                     STATUS_NOT_FOUND);
    message.tensors[0].dims[0] = WIRE_PAYLOAD_BYTES_MAX;
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

/* The largest messages the wire carries, more of them than the queues hold: what cannot leave is refused
 * to the caller and kept by the answerer, and everything comes through. */
START_TEST(test_full_queues)
{
    enum { CALLS = 600, FLOATS = 20000 };
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
    struct rpc_message message = {.tensor_count = 1, .tensors = {{WIRE_F32, 1, {FLOATS}}}, .data = {many}};
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

/* ---- ends ---- */

START_TEST(test_cancel_all)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 2);
    struct future *a = episode(net.server, 1, 1), *b = episode(net.server, 2, 2);
    rpc_cancel_all(net.server, STATUS_SHUTDOWN, "the job is ending");
    net_expect_failure(&net, a, STATUS_SHUTDOWN, "the job is ending");
    net_expect_failure(&net, b, STATUS_SHUTDOWN, "the job is ending");
    struct future *c = episode(net.server, 2, 3);
    ck_assert_int_eq(net_await(&net, c), STATUS_OK);
    future_release(c);
    net_free(&net);
}
END_TEST

/* One worker's death takes its calls and its requests, and nobody else's. */
START_TEST(test_peer_died)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 2);
    struct future *kept = step(net.clients[0], DO_KEEP, MONOTIME_NEVER);
    for (unsigned i = 0; i < 5000 && server.kept_count < 1; i++)
        net_turn(&net);
    struct future *a = episode(net.server, 1, 1), *b = episode(net.server, 2, 2);
    rpc_peer_died(net.server, 1, "killed by signal 9");
    net_expect_failure(&net, a, STATUS_PEER_DIED, "killed by signal 9");
    ck_assert_uint_eq(server.left, 1u << 1);
    ck_assert_int_eq(server.left_why, STATUS_PEER_DIED);
    ck_assert_str_eq(server.left_text, "killed by signal 9");
    answer_doubled(server.kept[0], rpc_request_message(server.kept[0]));
    ck_assert_int_eq(net_await(&net, b), STATUS_OK);
    future_release(b);
    net_expect_failure(&net, kept, STATUS_PEER_DIED, "killed by signal 9");
    ck_assert_int_eq(rpc_turn(net.clients[0], net_in_ms(0)), STATUS_PEER_DIED);
    rpc_peer_died(net.server, 1, "again");
    ck_assert_str_eq(server.left_text, "killed by signal 9");
    net_free(&net);
}
END_TEST

START_TEST(test_server_says_bye)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 1);
    struct future *kept = step(net.clients[0], DO_KEEP, MONOTIME_NEVER);
    for (unsigned i = 0; i < 5000 && server.kept_count < 1; i++)
        net_turn(&net);
    rpc_free(net.server, "round finished", 1000);
    net.server = NULL;
    enum status status = STATUS_OK;
    for (unsigned i = 0; i < 5000 && status == STATUS_OK; i++)
        status = rpc_turn(net.clients[0], net_in_ms(1));
    ck_assert_int_eq(status, STATUS_PEER_DIED);
    ck_assert_int_eq(future_status(kept), STATUS_PEER_DIED);
    ck_assert_str_eq(future_text(kept), "round finished");
    ck_assert_uint_eq(client.left, 1);
    struct future *future;
    struct error error;
    ck_assert_int_eq(rpc_call_async(net.clients[0], 0, METHOD_ECHO, NULL, MONOTIME_NEVER, &future, &error),
                     STATUS_NOT_FOUND);
    future_release(kept);
    net_free(&net);
}
END_TEST

START_TEST(test_client_says_bye)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 2);
    struct future *call = episode(net.server, 1, 1);
    rpc_free(net.clients[0], "done", 1000);
    net.clients[0] = NULL;
    net_expect_failure(&net, call, STATUS_PEER_DIED, "done");
    ck_assert_uint_eq(server.left, 1u << 1);
    ck_assert_str_eq(server.left_text, "done");
    struct rpc_counters counters;
    rpc_counters(net.server, &counters);
    ck_assert_uint_eq(counters.bad, 0);
    net_free(&net);
}
END_TEST

static enum status count_shutdown(struct future *future, void *arg)
{
    *(unsigned *)arg += future_status(future) == STATUS_SHUTDOWN;
    return future_status(future);
}

START_TEST(test_free_completes_what_is_pending)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 1);
    unsigned runs = 0;
    struct future *call = step(net.clients[0], DO_KEEP, MONOTIME_NEVER), *after;
    ck_assert_int_eq(future_then(call, count_shutdown, &runs, &after), STATUS_OK);
    rpc_free(net.clients[0], "enough", 0);
    net.clients[0] = NULL;
    ck_assert_uint_eq(runs, 1);
    net_free(&net);
}
END_TEST

START_TEST(test_reject_ends_the_session)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 2);
    struct future *kept = step(net.clients[0], DO_KEEP, MONOTIME_NEVER);
    struct future *bad = step(net.clients[0], DO_REJECT, MONOTIME_NEVER);
    net_expect_failure(&net, bad, STATUS_INVALID, "environment 7 is not yours");
    net_expect_failure(&net, kept, STATUS_PEER_DIED, "environment 7 is not yours");
    ck_assert_uint_eq(server.left, 1u << 1);
    ck_assert_int_eq(server.left_why, STATUS_INVALID);
    struct future *fine = step(net.clients[1], DO_ANSWER, MONOTIME_NEVER);
    ck_assert_int_eq(net_await(&net, fine), STATUS_OK);
    expect_doubled(fine);
    net_free(&net);
}
END_TEST

/* ---- watches and beats ---- */

static unsigned watch_runs, beat_runs;

static void read_one(void *arg)
{
    char byte;
    ck_assert_int_eq(read(*(int *)arg, &byte, 1), 1);
    watch_runs++;
}

static struct monotime beat(void *arg)
{
    (void)arg;
    beat_runs++;
    return net_in_ms(5);
}

/* A descriptor is seen both by an idle rpc and by one that is never idle; the beat wakes a long wait. */
START_TEST(test_watch_and_beat)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 1);
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    watch_runs = beat_runs = 0;
    ck_assert_int_eq(rpc_watch(net.server, pipes[0], NULL, read_one, &pipes[0]), STATUS_OK);
    ck_assert_int_eq(write(pipes[1], "x", 1), 1);
    for (unsigned i = 0; i < 100 && watch_runs == 0; i++)
        rpc_turn(net.server, MONOTIME_NEVER);
    ck_assert_uint_eq(watch_runs, 1);
    rpc_on_turn(net.server, beat, NULL);
    for (unsigned i = 0; i < 5; i++)
        rpc_turn(net.server, MONOTIME_NEVER);
    ck_assert_uint_eq(beat_runs, 5);
    ck_assert_int_eq(write(pipes[1], "x", 1), 1);
    for (unsigned i = 0; i < 400 && watch_runs == 1; i++) {
        struct future *call = step(net.clients[0], DO_ANSWER, MONOTIME_NEVER);
        while (!future_done(call)) {
            rpc_turn(net.clients[0], net_in_ms(0));
            rpc_turn(net.server, net_in_ms(0));
        }
        future_release(call);
    }
    ck_assert_uint_eq(watch_runs, 2);
    for (unsigned i = 1; i < 4; i++)
        ck_assert_int_eq(rpc_watch(net.server, pipes[0], NULL, read_one, &pipes[0]), STATUS_OK);
    ck_assert_int_eq(rpc_watch(net.server, pipes[0], NULL, read_one, &pipes[0]), STATUS_BUSY);
    close(pipes[0]);
    close(pipes[1]);
    net_free(&net);
}
END_TEST

static void turn_inside(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    (void)request;
    (void)message;
    rpc_turn(*(struct rpc **)context, net_in_ms(0));
}

static const struct rpc_method turning_methods[] = {
    {.method = METHOD_RUN_EPISODE, .callers = WIRE_ROLE_AGENT, .handler = turn_inside}};

/* Our own mistake, so an assertion: this test expects SIGABRT. */
START_TEST(test_no_turn_within_a_handler)
{
    struct net net;
    struct service server, client;
    start(&net, &server, &client, 0);
    static struct rpc *turning;
    struct rpc_config config = net_client_config(1, turning_methods, 1, &turning);
    turning = net_join(&net, &config);
    struct future *call = episode(net.server, 1, 1);
    net_await(&net, call);
}
END_TEST

static Suite *rpc_suite(void)
{
    Suite *suite = suite_create("rpc");
    TCase *calls = tcase_create("calls"), *futures = tcase_create("futures"), *ends = tcase_create("ends");
    tcase_add_test(calls, test_join_brings_the_job);
    tcase_add_test(calls, test_async_both_directions);
    tcase_add_test(calls, test_sync_call);
    tcase_add_test(calls, test_nested_call);
    tcase_add_test(calls, test_echo);
    tcase_add_test(calls, test_answer_later_and_in_any_order);
    tcase_add_test(calls, test_failure_carries_its_text);
    tcase_add_test(calls, test_pending_max);
    tcase_add_test(calls, test_incoming_max);
    tcase_add_test(calls, test_bad_calls_of_ours);
    tcase_add_test(calls, test_full_queues);
    tcase_add_test(futures, test_deadline_passes);
    tcase_add_test(futures, test_deadline_travels_as_time_left);
    tcase_add_test(futures, test_deadline_already_passed);
    tcase_add_test(futures, test_deadlines_in_order);
    tcase_add_test(futures, test_then);
    tcase_add_test(futures, test_then_of_a_failure);
    tcase_add_test(futures, test_all);
    tcase_add_test(futures, test_then_calls_again);
    tcase_add_test(futures, test_long_chain);
    tcase_add_test(futures, test_released_before_it_is_done);
    tcase_add_test(ends, test_cancel_all);
    tcase_add_test(ends, test_peer_died);
    tcase_add_test(ends, test_server_says_bye);
    tcase_add_test(ends, test_client_says_bye);
    tcase_add_test(ends, test_free_completes_what_is_pending);
    tcase_add_test(ends, test_reject_ends_the_session);
    tcase_add_test(ends, test_watch_and_beat);
    tcase_add_test_raise_signal(ends, test_no_turn_within_a_handler, SIGABRT);
    tcase_set_timeout(calls, 60);
    tcase_set_timeout(futures, 60);
    tcase_set_timeout(ends, 60);
    suite_add_tcase(suite, calls);
    suite_add_tcase(suite, futures);
    suite_add_tcase(suite, ends);
    return suite;
}

int main(void)
{
    SRunner *runner = srunner_create(rpc_suite());
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
