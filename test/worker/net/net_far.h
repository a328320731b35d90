/* A listener that is bound twice: for its own host, and with keys for others. For test programs, which each
 * use what they need. */
#ifndef TEST_WORKER_NET_NET_FAR_H
#define TEST_WORKER_NET_NET_FAR_H

#include "test/worker/net/net_service.h"

#include <sodium.h>

enum { HOSTS = 3, NEAR_WORKER = 1, FAR_WORKER = 2, FAR_HOST = 1 };

static inline struct host_keys keys_of(uint16_t host)
{
    static const uint8_t shared[HOST_KEY_BYTES] = "the hosts of a test share this";
    struct host_keys keys;
    ck_assert_int_ge(sodium_init(), 0);
    host_keys_derive(&keys, shared, host, HOSTS);
    return keys;
}

struct far {
    struct net net;
    struct service service, client;
    struct host_keys keys;
    int16_t host_of_worker[1 + NET_CLIENTS_MAX];
    char address[64];
};

static inline void far_start(struct far *far, struct segment *outbox)
{
    *far = (struct far){.keys = keys_of(HOST_LEADER)};
    struct rpc_config config = net_server_config(server_methods, 1, &far->service);
    config.joined = on_joined;
    config.left = on_left;
    memset(far->host_of_worker, -1, sizeof far->host_of_worker);
    far->host_of_worker[FAR_WORKER] = FAR_HOST;
    config.keys = &far->keys;
    config.host_of_worker = far->host_of_worker;
    config.far_address = "tcp://127.0.0.1:*";
    config.outbox = outbox;
    net_serve(&far->net, &config);
    far->service.net = &far->net;
    far->service.self = far->net.server;
    ck_assert_uint_gt(rpc_far_port(far->net.server), 0);
    snprintf(far->address, sizeof far->address, "tcp://127.0.0.1:%u", rpc_far_port(far->net.server));
}

/* Dials from another host, as worker `worker`; *out is NULL after a failure. */
static inline enum status far_dial(struct far *far, const struct host_keys *keys, uint16_t worker,
                                   const struct rpc_method *method, unsigned patience_ms, struct rpc **out,
                                   struct error *error)
{
    struct net_turner turner;
    struct rpc_config config = net_client_config(worker, method, 1, &far->client);
    const struct rpc_address server = {.worker = 0, .address = far->address, .is_far = true};
    config.keys = keys;
    net_turner_start(&turner, far->net.server);
    const enum status status = net_connect(out, &config, &server, 1, net_in_ms(patience_ms), error);
    net_turner_stop(&turner);
    return status;
}

static inline void far_join(struct far *far, const struct host_keys *keys, uint16_t worker,
                            const struct rpc_method *method)
{
    struct error error = {0};
    struct rpc *client;
    const enum status status = far_dial(far, keys, worker, method, 10000, &client, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    far->net.clients[far->net.client_count++] = client;
}

static inline void expect_step(struct far *far, struct rpc *client)
{
    struct error error = {0};
    struct future *future;
    const struct rpc_message message = rows_message(rows, 3, DO_ANSWER);
    ck_assert_int_eq(rpc_call_async(client, 0, METHOD_STEP, &message, MONOTIME_NEVER, &future, &error),
                     STATUS_OK);
    ck_assert_int_eq(net_await(&far->net, future), STATUS_OK);
    float doubled[3];
    memcpy(doubled, future_value(future)->data[0], sizeof doubled);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_float_eq(doubled[i], 2 * rows[i]);
    future_release(future);
}

#endif
