/* Calls to oneself, and the additions of higher layers to an rpc: methods with a context of their own,
 * listeners, a context in every message, tensors of any number and shape. One rpc alone, but for the
 * listeners' test. */
#include "test/worker/net/net_fixture.h"
#include "test/workplace.h"

#include <dlfcn.h>
#include <errno.h>
#include <zmq.h>

enum { BIG_BYTES = RPC_LEND_BYTES, DO_ANSWER = 0, DO_KEEP, DO_FAIL, DO_REJECT, DO_NEST, DO_STARVE };

struct layer {
    struct rpc *rpc;
    unsigned calls, left;
    struct rpc_request *kept[8];
    uint16_t source;
    uint64_t context;
    const void *data[WIRE_TENSORS_MAX];
};

/* Between the library and the rpc: no memory for frames while `is_starved`. */
static bool is_starved;

int zmq_msg_init_size(zmq_msg_t *message, size_t size)
{
    int (*real)(zmq_msg_t *, size_t) = NULL;
    void *symbol = dlsym(RTLD_NEXT, "zmq_msg_init_size");
    memcpy(&real, &symbol, sizeof real);
    if (!is_starved)
        return real(message, size);
    errno = ENOMEM;
    return -1;
}

static void answer_nested(struct future *future, void *arg)
{
    rpc_reply(arg, future_value(future));
}

static void nest(struct layer *layer, struct rpc_request *request)
{
    struct future *call;
    struct error error = {0};
    struct rpc_message message = {.args = {DO_ANSWER, 33}};
    ck_assert_int_eq(rpc_call_then(layer->rpc, 0, METHOD_FORWARD, &message, MONOTIME_NEVER, answer_nested,
                                   request, &call, &error),
                     STATUS_OK);
    ck_assert(!future_done(call));
    future_release(call);
}

static void on_forward(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct layer *layer = context;
    layer->source = rpc_request_source(request);
    layer->context = message->context;
    memcpy(layer->data, message->data, sizeof layer->data);
    struct rpc_message value = *message;
    switch (message->args[0]) {
    case DO_KEEP:
        layer->kept[layer->calls] = request;
        break;
    case DO_FAIL:
        rpc_fail(request, STATUS_CORRUPT, "call %u is odd", layer->calls);
        break;
    case DO_REJECT:
        rpc_reject(request, "call %u is malformed", layer->calls);
        break;
    case DO_STARVE:
        is_starved = true;
        rpc_reply(request, message);
        is_starved = false;
        break;
    case DO_NEST:
        nest(layer, request);
        break;
    default:
        value.args[2] = 2 * message->args[1];
        value.context = message->context + 1;
        rpc_reply(request, &value);
    }
    layer->calls++;
}

static const struct rpc_method layer_methods[] = {
    {.method = METHOD_FORWARD, .callers = UINT8_MAX, .any_tensors = true, .handler = on_forward},
    {.method = METHOD_BACKWARD, .callers = WIRE_ROLE_OBSERVER, .any_tensors = true, .handler = on_forward}};

static void start(struct net *net, struct layer *layer)
{
    struct rpc_config config = net_server_config(NULL, 0, NULL);
    config.pending_max = config.incoming_max = 4;
    net_serve(net, &config);
    *layer = (struct layer){.rpc = net->server};
    rpc_add_methods(net->server, layer_methods, 2, layer);
}

static struct future *ask_then(struct net *net, struct rpc_message message, uint64_t what,
                               future_then_function *then, void *arg)
{
    struct future *future = NULL;
    struct error error = {0};
    message.args[0] = what;
    enum status status =
        rpc_call_then(net->server, 0, METHOD_FORWARD, &message, MONOTIME_NEVER, then, arg, &future, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return future;
}

static struct future *ask(struct net *net, struct rpc_message message, uint64_t what)
{
    return ask_then(net, message, what, NULL, NULL);
}

START_TEST(test_served_in_the_next_turn)
{
    struct net net;
    struct layer layer;
    start(&net, &layer);
    struct future *future = ask(&net, (struct rpc_message){.args = {0, 21}, .context = 0x1234}, DO_ANSWER);
    ck_assert(!future_done(future));
    ck_assert_uint_eq(layer.calls, 0);
    rpc_turn(net.server, net_in_ms(60000)); // what waits is taken up at once
    ck_assert_int_eq(future_status(future), STATUS_OK);
    ck_assert_uint_eq(future_value(future)->args[2], 42);
    ck_assert_uint_eq(future_value(future)->context, 0x1235);
    ck_assert_uint_eq(layer.context, 0x1234);
    ck_assert_uint_eq(layer.source, 0);
    ck_assert_uint_eq(layer.calls, 1);
    future_release(future);
    struct rpc_counters counters;
    rpc_counters(net.server, &counters);
    ck_assert_uint_eq(counters.sent, 2);
    net_free(&net);
}
END_TEST

/* Small tensors are copied before the call returns, large ones stay where they are, both ways. */
START_TEST(test_tensors)
{
    static uint8_t big[BIG_BYTES], other[BIG_BYTES];
    struct net net;
    struct layer layer;
    start(&net, &layer);
    float small[3] = {1, 2, 3};
    uint64_t numbers[2] = {7, 8};
    struct rpc_message message = {.tensor_count = 4,
                                  .tensors = {{WIRE_U8, 2, .dims = {2, BIG_BYTES / 2}},
                                              {WIRE_F32, 1, .dims = {3}},
                                              {WIRE_U8, 1, .dims = {BIG_BYTES}},
                                              {WIRE_U64, 1, .dims = {2}}},
                                  .data = {big, small, other, numbers}};
    struct future *future = ask(&net, message, DO_ANSWER);
    memset(small, 0, sizeof small);
    memset(numbers, 0, sizeof numbers);
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    ck_assert_ptr_eq(layer.data[0], big);
    ck_assert_ptr_eq(layer.data[2], other);
    const struct rpc_message *value = future_value(future);
    ck_assert_uint_eq(value->tensor_count, 4);
    ck_assert_ptr_eq(value->data[0], big);
    ck_assert_ptr_eq(value->data[2], other);
    ck_assert_mem_eq(value->data[1], ((float[]){1, 2, 3}), sizeof small);
    ck_assert_mem_eq(value->data[3], ((uint64_t[]){7, 8}), sizeof numbers);
    ck_assert_uint_eq(value->tensors[0].dims[1], BIG_BYTES / 2);
    future_release(future);
    message.tensors[0] = (struct wire_tensor){WIRE_U8, 1, .dims = {BIG_BYTES - 1}};
    message.tensor_count = 1;
    future = ask(&net, message, DO_ANSWER);
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    ck_assert_ptr_ne(layer.data[0], big);
    future_release(future);
    net_free(&net);
}
END_TEST

START_TEST(test_failures_cost_no_session)
{
    struct net net;
    struct layer layer;
    start(&net, &layer);
    struct error error = {0};
    struct future *future;
    net_expect_failure(&net, ask(&net, (struct rpc_message){0}, DO_FAIL), STATUS_CORRUPT, "call 0 is odd");
    net_expect_failure(&net, ask(&net, (struct rpc_message){0}, DO_REJECT), STATUS_INVALID, "malformed");
    ck_assert_int_eq(rpc_call(net.server, 0, METHOD_BACKWARD, NULL, MONOTIME_NEVER, &future, &error),
                     STATUS_PERMISSION);
    ck_assert_ptr_null(future);
    ck_assert_ptr_nonnull(strstr(error.text, "not permitted"));
    ck_assert_int_eq(rpc_call(net.server, 0, METHOD_STEP, NULL, MONOTIME_NEVER, &future, &error),
                     STATUS_PERMISSION);
    rpc_peer_died(net.server, 0, UINT32_MAX, "it is oneself");
    rpc_reject_worker(net.server, 0, "it is oneself");
    ck_assert_int_eq(rpc_call(net.server, 0, METHOD_ECHO, NULL, MONOTIME_NEVER, &future, &error), STATUS_OK);
    future_release(future);
    net_free(&net);
}
END_TEST

START_TEST(test_limits_and_deadlines)
{
    struct net net;
    struct layer layer;
    start(&net, &layer);
    struct error error = {0};
    struct future *futures[4], *none = NULL, *late;
    struct rpc_message keep = {.args = {DO_KEEP}};
    ck_assert_int_eq(rpc_call(net.server, 0, METHOD_FORWARD, &keep, net_in_ms(5), &late, &error),
                     STATUS_TIMEOUT);
    for (unsigned i = 0; i < 4; i++)
        futures[i] = ask(&net, (struct rpc_message){0}, DO_KEEP);
    ck_assert_int_eq(rpc_call_async(net.server, 0, METHOD_FORWARD, NULL, MONOTIME_NEVER, &none, &error),
                     STATUS_BUSY);
    net_expect_failure(&net, futures[3], STATUS_BUSY, "calls are open"); // the late one is open still
    rpc_reply(layer.kept[0], NULL);
    for (unsigned i = 0; i < 3; i++) {
        ck_assert(!future_done(futures[i]));
        rpc_reply(layer.kept[1 + i], &(struct rpc_message){.args = {i}});
        ck_assert_int_eq(rpc_wait(net.server, futures[i], &error), STATUS_OK);
        ck_assert_uint_eq(future_value(futures[i])->args[0], i);
        future_release(futures[i]);
    }
    struct rpc_counters counters;
    rpc_counters(net.server, &counters);
    ck_assert_uint_eq(counters.stale, 1);
    ck_assert_uint_eq(counters.timeouts, 1);
    net_free(&net);
}
END_TEST

START_TEST(test_nested)
{
    struct net net;
    struct layer layer;
    start(&net, &layer);
    struct future *future = ask(&net, (struct rpc_message){0}, DO_NEST);
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    ck_assert_uint_eq(future_value(future)->args[2], 66);
    ck_assert_uint_eq(layer.calls, 2);
    future_release(future);
    net_free(&net);
}
END_TEST

/* The call ends when there is no memory for its answer, later than the handler, and others go on; one that
 * nobody waits for any more does no harm. */
START_TEST(test_no_memory_for_an_answer)
{
    struct net net;
    struct layer layer;
    struct future *late;
    struct error error = {0};
    start(&net, &layer);
    struct future *first = ask(&net, (struct rpc_message){0}, DO_STARVE);
    struct future *second = ask(&net, (struct rpc_message){.args = {0, 21}}, DO_ANSWER);
    for (unsigned i = 0; i < 100 && !(future_done(first) && future_done(second)); i++)
        rpc_turn(net.server, (struct monotime){0});
    ck_assert_uint_eq(layer.calls, 2);
    ck_assert_int_eq(future_status(second), STATUS_OK);
    ck_assert_uint_eq(future_value(second)->args[2], 42);
    ck_assert_int_eq(future_status(first), STATUS_NO_MEMORY);
    ck_assert_str_eq(future_text(first), "no memory for the answer");
    future_release(first);
    future_release(second);
    struct rpc_message starve = {.args = {DO_STARVE}};
    ck_assert_int_eq(rpc_call_async(net.server, 0, METHOD_FORWARD, &starve, MONOTIME_NEVER, &late, &error),
                     STATUS_OK);
    rpc_cancel_all(net.server, STATUS_SHUTDOWN, "enough");
    net_expect_failure(&net, late, STATUS_SHUTDOWN, "enough");
    for (unsigned i = 0; i < 4; i++)
        net_turn(&net);
    ck_assert_uint_eq(layer.calls, 3);
    future_release(ask(&net, (struct rpc_message){0}, DO_KEEP));
    net_turn(&net);
    is_starved = true;
    rpc_reply(layer.kept[3], NULL);
    is_starved = false;
    net_free(&net); // before the next turn
}
END_TEST

static void note_status(struct future *future, void *arg)
{
    *(enum status *)arg = future_status(future);
}

START_TEST(test_the_end_completes_them)
{
    struct net net;
    struct layer layer;
    start(&net, &layer);
    enum status ends[2] = {STATUS_OK, STATUS_OK};
    for (unsigned i = 0; i < 2; i++) {
        ask_then(&net, (struct rpc_message){0}, DO_KEEP, note_status, &ends[i]);
        if (i == 0)
            net_turn(&net);
    }
    ck_assert_uint_eq(layer.calls, 1);
    net_free(&net);
    ck_assert_int_eq(ends[0], STATUS_SHUTDOWN);
    ck_assert_int_eq(ends[1], STATUS_SHUTDOWN);
}
END_TEST

/* Calls to oneself that are cancelled still wait for their turn. However many there are, a peer's request
 * finds an object, and is answered. */
START_TEST(test_cancelled_calls_leave_room_for_a_peers)
{
    enum { ROUNDS = 40 };
    struct net net;
    struct error error = {0};
    struct future *call = NULL;
    struct rpc_config config = net_server_config(NULL, 0, NULL);
    net_serve(&net, &config);
    config = net_client_config(1, NULL, 0, NULL);
    struct rpc *client = net_join(&net, &config);
    for (unsigned i = 0; i < ROUNDS; i++) {
        while (rpc_call_async(net.server, 0, METHOD_ECHO, NULL, MONOTIME_NEVER, &call, &error) == STATUS_OK)
            future_release(call);
        rpc_cancel_all(net.server, STATUS_SHUTDOWN, "not needed any more");
    }
    ck_assert_int_eq(rpc_call_async(client, 0, METHOD_ECHO, NULL, MONOTIME_NEVER, &call, &error), STATUS_OK);
    ck_assert_int_eq(net_await(&net, call), STATUS_OK);
    future_release(call);
    net_free(&net);
}
END_TEST

/* ---- listeners ---- */

static unsigned order;

static void on_left_first(void *context, uint16_t worker, enum status why, const char *text)
{
    struct layer *layer = context;
    (void)why, (void)text;
    layer->left |= 1u << worker;
    ck_assert_uint_eq(order++, 0);
}

static void on_left_second(void *context, uint16_t worker, enum status why, const char *text)
{
    struct layer *layer = context;
    ck_assert_int_eq(why, STATUS_PEER_DIED);
    ck_assert_str_eq(text, "killed");
    layer->left |= 16u << worker;
    ck_assert_uint_eq(order++, 1);
}

START_TEST(test_listeners)
{
    struct net net;
    struct layer layer = {0};
    struct rpc_config config = net_server_config(NULL, 0, &layer);
    config.left = on_left_first;
    net_serve(&net, &config);
    rpc_on_left(net.server, on_left_second, &layer);
    config = net_client_config(2, NULL, 0, NULL);
    net_join(&net, &config);
    rpc_peer_died(net.server, 2, UINT32_MAX, "killed");
    ck_assert_uint_eq(layer.left, 4 | 64);
    net_free(&net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_self");
    TCase *tcase = tcase_create("self");
    tcase_add_test(tcase, test_served_in_the_next_turn);
    tcase_add_test(tcase, test_tensors);
    tcase_add_test(tcase, test_failures_cost_no_session);
    tcase_add_test(tcase, test_limits_and_deadlines);
    tcase_add_test(tcase, test_nested);
    tcase_add_test(tcase, test_no_memory_for_an_answer);
    tcase_add_test(tcase, test_the_end_completes_them);
    tcase_add_test(tcase, test_cancelled_calls_leave_room_for_a_peers);
    tcase_add_test(tcase, test_listeners);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
