/* A server and clients that call each other by way of it (worker/net/rpc_forward.c), in one process, and what
 * each of them was asked and told. For test programs, which each use what they need. */
#ifndef TEST_WORKER_NET_FORWARD_STAGE_H
#define TEST_WORKER_NET_FORWARD_STAGE_H

#include "test/worker/net/raw_peer.h"
#include "worker/net/rpc_internal.h"

enum { PENDING_MAX = 800, DO_ANSWER = 0, DO_KEEP = 1 };

struct end {
    unsigned calls, left_count;
    uint64_t last;
    bool is_in_order;
    uint16_t source, left;
    enum status why;
    char text[128];
    uint8_t lent;
    struct rpc_request *kept;
};

static struct end ends[4]; /* by worker */
static struct net net;

static inline void on_object(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct end *end = context;
    end->calls++;
    end->source = rpc_request_source(request);
    end->is_in_order &= message->args[1] == end->last + 1;
    end->last = message->args[1];
    end->lent = message->lent;
    if (message->args[0] == DO_KEEP)
        end->kept = request;
    else
        rpc_reply(request, message);
}

static inline void on_end_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct end *end = context;
    end->left_count++;
    end->left = worker;
    end->why = why;
    snprintf(end->text, sizeof end->text, "%s", text);
}

static const struct rpc_method object_method[] = {
    {.method = METHOD_OBJECT, .callers = WIRE_ROLE_OBSERVER, .any_tensors = true, .handler = on_object}};

static inline struct rpc_config end_config(uint16_t worker)
{
    struct rpc_config config = net_client_config(worker, object_method, 1, &ends[worker]);
    config.left = on_end_left;
    config.pending_max = config.incoming_max = PENDING_MAX;
    return config;
}

static inline void join(uint16_t worker, struct segment *outbox)
{
    struct rpc_config config = end_config(worker);
    config.outbox = outbox;
    net_join(&net, &config);
}

static inline void start(unsigned clients, struct segment *segments)
{
    for (unsigned i = 0; i < 4; i++)
        ends[i] = (struct end){.is_in_order = true};
    struct rpc_config config = net_server_config(NULL, 0, &ends[0]);
    config.left = on_end_left;
    config.outbox = segments;
    net_serve(&net, &config);
    for (unsigned i = 1; i <= clients; i++)
        join((uint16_t)i, segments == NULL ? NULL : &segments[i]);
}

static inline struct rpc *client(uint16_t worker)
{
    return net.clients[worker - 1];
}

static inline struct future *ask(uint16_t from, uint16_t to, uint64_t what, uint64_t number, const void *data,
                                 uint32_t bytes)
{
    struct future *future = NULL;
    struct error error = {0};
    struct rpc_message message = {.args = {what, number}, .tensor_count = bytes > 0};
    message.tensors[0] = (struct wire_tensor){WIRE_U8, 1, {bytes}};
    message.data[0] = data;
    enum status status =
        rpc_call_async(client(from), to, METHOD_OBJECT, &message, MONOTIME_NEVER, &future, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return future;
}

static inline void expect_refused(uint16_t from, uint16_t to)
{
    struct future *future = NULL;
    struct error error = {0};
    ck_assert_int_eq(rpc_call_async(client(from), to, METHOD_OBJECT, NULL, MONOTIME_NEVER, &future, &error),
                     STATUS_NOT_FOUND);
}

static inline void expect_answer(struct future *future, uint64_t number)
{
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    ck_assert_uint_eq(future_value(future)->args[1], number);
    future_release(future);
}

static inline void turn_until_kept(uint16_t worker)
{
    UNTIL(ends[worker].kept != NULL, net_turn(&net));
}

static inline void turn_some(void)
{
    for (unsigned i = 0; i < 20; i++)
        net_turn(&net);
}

#endif
