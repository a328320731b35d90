/* What the tests and benchmarks of the net layer share: a folder for sockets, a server and its clients in
 * one process, and turns for all of them. Everything runs on the test's thread; only while a client joins,
 * which blocks, another thread turns the server. */
#ifndef TEST_WORKER_NET_NET_FIXTURE_H
#define TEST_WORKER_NET_NET_FIXTURE_H

#include "test/until.h"
#include "test/worker/net/net_connect.h"
#include "worker/net/rpc.h"

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NET_CLIENTS_MAX = 8 };

#define NET_SECRET "the secret of a job, in 32 bytes"

/* One agent, and observers. */
static const uint8_t net_roster[1 + NET_CLIENTS_MAX] = {
    WIRE_ROLE_AGENT,    WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER,
    WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER};

struct net {
    char folder[64], address[96];
    struct rpc *server, *clients[NET_CLIENTS_MAX];
    unsigned client_count;
};

static inline struct monotime net_in_ms(uint64_t ms)
{
    return monotime_add_us(monotime_now(), ms * 1000);
}

static inline void net_make_address(struct net *net)
{
    snprintf(net->folder, sizeof net->folder, "/tmp/net-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(net->folder));
    snprintf(net->address, sizeof net->address, "ipc://%s/server", net->folder);
}

static inline struct rpc_config net_server_config(const struct rpc_method *methods, size_t count,
                                                  void *context)
{
    return (struct rpc_config){.role = WIRE_ROLE_AGENT,
                               .incarnation = 1,
                               .generation = 1,
                               .roster = net_roster,
                               .workers = sizeof net_roster,
                               .secret = NET_SECRET,
                               .pending_max = 64,
                               .incoming_max = 64,
                               .methods = methods,
                               .method_count = count,
                               .context = context,
                               .welcome = "{\"kind\":\"reinforce\"}",
                               .welcome_bytes = strlen("{\"kind\":\"reinforce\"}")};
}

static inline struct rpc_config net_client_config(uint16_t worker, const struct rpc_method *methods,
                                                  size_t count, void *context)
{
    return (struct rpc_config){.worker = worker,
                               .role = WIRE_ROLE_OBSERVER,
                               .incarnation = 1,
                               .generation = 1,
                               .roster = net_roster,
                               .workers = sizeof net_roster,
                               .secret = NET_SECRET,
                               .pending_max = 64,
                               .incoming_max = 64,
                               .methods = methods,
                               .method_count = count,
                               .context = context};
}

static inline void net_serve(struct net *net, const struct rpc_config *config)
{
    struct error error = {0};
    memset(net, 0, sizeof *net);
    net_make_address(net);
    enum status status = rpc_open(&net->server, config, net->address, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* Turns a server on a thread of its own until told to stop. */
struct net_turner {
    struct rpc *rpc;
    pthread_t thread;
    atomic_bool stop;
};

static inline void *net_turner_run(void *arg)
{
    struct net_turner *turner = arg;
    while (!atomic_load(&turner->stop))
        rpc_turn(turner->rpc, net_in_ms(2));
    return NULL;
}

static inline void net_turner_start(struct net_turner *turner, struct rpc *rpc)
{
    turner->rpc = rpc;
    atomic_init(&turner->stop, false);
    ck_assert_int_eq(pthread_create(&turner->thread, NULL, net_turner_run, turner), 0);
}

static inline void net_turner_stop(struct net_turner *turner)
{
    atomic_store(&turner->stop, true);
    pthread_join(turner->thread, NULL);
}

static inline enum status net_try_join(struct net *net, const struct rpc_config *config, struct rpc **out,
                                       struct error *error)
{
    struct net_turner turner;
    net_turner_start(&turner, net->server);
    struct rpc_address server = {.worker = 0, .address = net->address};
    enum status status = net_connect(out, config, &server, 1, net_in_ms(5000), error);
    net_turner_stop(&turner);
    return status;
}

static inline struct rpc *net_join(struct net *net, const struct rpc_config *config)
{
    struct error error = {0};
    struct rpc *client;
    enum status status = net_try_join(net, config, &client, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    ck_assert_uint_lt(net->client_count, NET_CLIENTS_MAX);
    net->clients[net->client_count++] = client;
    return client;
}

/* One turn of every end. */
static inline void net_turn(struct net *net)
{
    rpc_turn(net->server, net_in_ms(1));
    for (unsigned i = 0; i < net->client_count; i++)
        if (net->clients[i] != NULL)
            rpc_turn(net->clients[i], net_in_ms(1));
}

static inline enum status net_await(struct net *net, struct future *future)
{
    UNTIL(future_done(future), net_turn(net));
    return future_status(future);
}

static inline void net_free(struct net *net)
{
    for (unsigned i = 0; i < net->client_count; i++)
        rpc_free(net->clients[i], "the test is over", 0);
    rpc_free(net->server, "the test is over", 0);
    rmdir(net->folder);
}

/* The text of a future that must fail with `status`; released. */
static inline void net_expect_failure(struct net *net, struct future *future, enum status status,
                                      const char *text)
{
    ck_assert_int_eq(net_await(net, future), status);
    ck_assert_msg(strstr(future_text(future), text) != NULL, "\"%s\" is not in \"%s\"", text,
                  future_text(future));
    ck_assert_ptr_null(future_value(future));
    future_release(future);
}

enum { FUTURES_MAX = 1024 };

/* Takes all futures that the rpc has left, by calls to itself that are done and not released, so that it
 * cannot call anybody. */
static inline unsigned futures_take(struct rpc *rpc, struct future *futures[FUTURES_MAX])
{
    unsigned count = 0, before;
    do {
        before = count;
        while (count < FUTURES_MAX && rpc_call_async(rpc, rpc_worker(rpc), METHOD_ECHO, NULL, MONOTIME_NEVER,
                                                     &futures[count], NULL) == STATUS_OK)
            count++;
        for (unsigned i = 0; i < 4; i++)
            rpc_turn(rpc, (struct monotime){1});
    } while (count > before);
    ck_assert_uint_lt(count, FUTURES_MAX);
    return count;
}

static inline void futures_give(struct future *futures[FUTURES_MAX], unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        future_release(futures[i]);
}

#endif
