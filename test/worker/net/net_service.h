/* A service for the rpc's tests: a server whose METHOD_STEP doubles rows, or does as its first argument says,
 * and clients whose METHOD_RUN_EPISODE adds one. For test programs, which each use what they need. */
#ifndef TEST_WORKER_NET_NET_SERVICE_H
#define TEST_WORKER_NET_NET_SERVICE_H

#include "test/worker/net/net_fixture.h"

/* What METHOD_STEP's args[0] asks for. */

enum { DO_ANSWER = 0, DO_FAIL = 1, DO_KEEP = 2, DO_NEST = 3, DO_REJECT = 4 };

struct service {
    struct net *net;
    struct rpc *self;
    struct rpc_request *kept[128];
    unsigned kept_count, calls, joined, left;
    uint16_t last_source;
    enum status left_why;
    char left_text[128];
    float sum;
};

static inline void answer_doubled(struct rpc_request *request, const struct rpc_message *message)
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
static inline void pass_on(struct future *future, void *arg)
{
    struct rpc_request *request = arg;
    if (future_status(future) == STATUS_OK)
        rpc_reply(request, future_value(future));
    else
        rpc_fail(request, future_status(future), "nested: %s", future_text(future));
}

static inline void nest(struct service *service, struct rpc_request *request,
                        const struct rpc_message *message)
{
    struct error error = {0};
    enum status status = rpc_call_then(service->self, rpc_request_source(request), METHOD_RUN_EPISODE,
                                       &(struct rpc_message){.args = {message->args[1]}}, MONOTIME_NEVER,
                                       pass_on, request, NULL, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static inline void on_step(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct service *service = context;
    service->calls++;
    service->last_source = rpc_request_source(request);
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

static inline void on_episode(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct service *service = context;
    service->calls++;
    ck_assert_uint_eq(message->tensor_count, 0);
    if (message->args[0] == 404)
        rpc_fail(request, STATUS_NOT_FOUND, "no episode %d", 404);
    else
        rpc_reply(request, &(struct rpc_message){.args = {message->args[0] + 1}});
}

static inline void on_joined(void *context, uint16_t worker)
{
    struct service *service = context;
    service->joined |= 1u << worker;
}

static inline void on_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct service *service = context;
    service->left |= 1u << worker;
    service->left_why = why;
    snprintf(service->left_text, sizeof service->left_text, "%s", text);
}

static const struct rpc_method server_methods[] = {{.method = METHOD_STEP,
                                                    .callers = WIRE_ROLE_OBSERVER,
                                                    .dtype = WIRE_F32,
                                                    .elements_max = 16,
                                                    .handler = on_step}};
static const struct rpc_method client_methods[] = {
    {.method = METHOD_RUN_EPISODE, .callers = WIRE_ROLE_AGENT, .handler = on_episode}};

static inline void service_start(struct net *net, struct service *server, struct service *client,
                                 unsigned clients)
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

static inline struct rpc_message rows_message(const float *rows, uint32_t count, uint64_t what)
{
    return (struct rpc_message){
        .args = {what, 41}, .tensor_count = 1, .tensors = {{WIRE_F32, 1, .dims = {count}}}, .data = {rows}};
}

static const float rows[3] = {1, -2, 3.5f};

static inline struct future *step_then(struct rpc *from, uint64_t what, struct monotime deadline,
                                       future_then_function *then, void *arg)
{
    struct rpc_message message = rows_message(rows, 3, what);
    struct future *future = NULL;
    struct error error = {0};
    enum status status = rpc_call_then(from, 0, METHOD_STEP, &message, deadline, then, arg, &future, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return future;
}

static inline struct future *step(struct rpc *from, uint64_t what, struct monotime deadline)
{
    return step_then(from, what, deadline, NULL, NULL);
}

static inline struct future *episode(struct rpc *from, uint16_t worker, uint64_t number)
{
    struct future *future = NULL;
    struct error error = {0};
    enum status status =
        rpc_call_async(from, worker, METHOD_RUN_EPISODE, &(struct rpc_message){.args = {number}},
                       MONOTIME_NEVER, &future, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return future;
}

static inline void expect_doubled(struct future *future)
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

#endif
