/* Sessions between hosts: a listener that is bound twice, for its own host and with keys for others; hosts
 * that are not of the job, workers that are not on their host, and tensors that nobody can lend so far. */
#include "test/worker/net/net_far.h"
#include "test/workplace.h"
#include "worker/net/segment.h"

#include <sys/mman.h>

enum { PATIENCE_MS = 700 };

static void far_refuse(struct far *far, const struct host_keys *keys, uint16_t worker)
{
    struct rpc *client;
    struct error error = {0};
    ck_assert_int_eq(far_dial(far, keys, worker, client_methods, PATIENCE_MS, &client, &error),
                     STATUS_TIMEOUT);
    ck_assert_uint_eq(far->service.joined, 0);
}

/* Both sockets number their connections by themselves. */
START_TEST(test_near_and_far)
{
    struct far far;
    const struct host_keys keys = keys_of(FAR_HOST);
    far_start(&far, NULL);
    struct rpc_config near = net_client_config(NEAR_WORKER, client_methods, 1, &far.client);
    net_join(&far.net, &near);
    far_join(&far, &keys, FAR_WORKER, client_methods);
    ck_assert(!rpc_is_far(far.net.server, 0) && !rpc_is_far(far.net.server, NEAR_WORKER));
    ck_assert(rpc_is_far(far.net.server, FAR_WORKER));
    ck_assert(!rpc_is_far(far.net.clients[0], 0) && rpc_is_far(far.net.clients[1], 0));
    for (unsigned i = 0; i < 3; i++) {
        expect_step(&far, far.net.clients[0]);
        ck_assert_uint_eq(far.service.last_source, NEAR_WORKER);
        expect_step(&far, far.net.clients[1]);
        ck_assert_uint_eq(far.service.last_source, FAR_WORKER);
    }
    rpc_free(far.net.clients[0], "the near one leaves", 100);
    far.net.clients[0] = NULL;
    UNTIL(far.service.left != 0, net_turn(&far.net));
    ck_assert_uint_eq(far.service.left, 1u << NEAR_WORKER);
    ck_assert(!rpc_is_far(far.net.server, NEAR_WORKER));
    expect_step(&far, far.net.clients[1]);
    net_free(&far.net);
}
END_TEST

/* A key that no host has; a key of the job's hosts under another server key. */
START_TEST(test_strangers)
{
    struct far far;
    struct rpc_counters counters;
    struct host_keys stranger = keys_of(FAR_HOST), deceived = keys_of(FAR_HOST);
    const struct host_keys right = keys_of(FAR_HOST);
    far_start(&far, NULL);
    host_keys_draw(stranger.secret);
    host_keys_public(stranger.public_of_host[FAR_HOST], stranger.secret);
    far_refuse(&far, &stranger, FAR_WORKER);
    rpc_counters(far.net.server, &counters);
    ck_assert_uint_ge(counters.refused, 1);
    memcpy(deceived.public_of_host[0], deceived.public_of_host[2], HOST_KEY_BYTES);
    far_refuse(&far, &deceived, FAR_WORKER);
    UNTIL((rpc_counters(far.net.server, &counters), counters.unproven >= 1), net_turn(&far.net));
    far_join(&far, &right, FAR_WORKER, client_methods);
    expect_step(&far, far.net.clients[0]);
    net_free(&far.net);
}
END_TEST

/* The key says which host is there: a host cannot take the place of a worker that runs on another. */
START_TEST(test_worker_of_another_host)
{
    struct far far;
    const struct host_keys other = keys_of(2), right = keys_of(FAR_HOST);
    far_start(&far, NULL);
    far_refuse(&far, &other, FAR_WORKER);
    far_refuse(&far, &right, NEAR_WORKER);
    far_join(&far, &right, FAR_WORKER, client_methods);
    far.host_of_worker[FAR_WORKER] = 2;
    expect_step(&far, far.net.clients[0]);
    net_free(&far.net);
}
END_TEST

static void on_big(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct service *service = context;
    service->calls++;
    ck_assert_uint_eq(message->lent, 0);
    rpc_reply(request, message);
}

static const struct rpc_method big_methods[] = {
    {.method = METHOD_RUN_EPISODE, .callers = WIRE_ROLE_AGENT, .any_tensors = true, .handler = on_big}};

/* The outbox of a listener is no use to another host: its tensors travel. */
START_TEST(test_nothing_is_lent)
{
    enum { ELEMENTS = 1 << 20 };
    struct far far;
    struct segment outbox;
    struct future *future;
    struct error error = {0};
    const struct host_keys keys = keys_of(FAR_HOST);
    const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    ck_assert_int_eq(dup2(fd, SEGMENT_FD_FIRST), SEGMENT_FD_FIRST);
    ck_assert_int_eq(segment_create(&outbox, 0, ELEMENTS * 4, &error), STATUS_OK);
    float *values = (float *)(void *)outbox.data;
    for (unsigned i = 0; i < ELEMENTS; i++)
        values[i] = (float)i;
    far_start(&far, &outbox);
    far_join(&far, &keys, FAR_WORKER, big_methods);
    const struct rpc_message message = {
        .tensor_count = 1, .tensors = {{WIRE_F32, 1, .dims = {ELEMENTS}}}, .data = {values}};
    ck_assert_int_eq(rpc_call_async(far.net.server, FAR_WORKER, METHOD_RUN_EPISODE, &message, MONOTIME_NEVER,
                                    &future, &error),
                     STATUS_OK);
    ck_assert_int_eq(net_await(&far.net, future), STATUS_OK);
    ck_assert_int_eq(memcmp(future_value(future)->data[0], outbox.data, ELEMENTS * 4), 0);
    ck_assert_uint_eq(far.client.calls, 1);
    future_release(future);
    net_free(&far.net);
    segment_detach(&outbox);
}
END_TEST

START_TEST(test_keys)
{
    const struct host_keys a = keys_of(0), b = keys_of(2);
    struct host_keys none = {.count = HOSTS};
    uint8_t zero[HOST_KEY_BYTES] = {0}, public_key[HOST_KEY_BYTES];
    ck_assert_int_eq(memcmp(a.public_of_host, b.public_of_host, sizeof a.public_of_host), 0);
    ck_assert_int_ne(memcmp(a.secret, b.secret, sizeof a.secret), 0);
    host_keys_public(public_key, b.secret);
    ck_assert_int_eq(host_keys_find(&a, public_key), 2);
    ck_assert_int_eq(host_keys_find(&none, zero), -1);
    public_key[0] ^= 1;
    ck_assert_int_eq(host_keys_find(&a, public_key), -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_far");
    TCase *far = tcase_create("far");
    tcase_add_test(far, test_keys);
    tcase_add_test(far, test_near_and_far);
    tcase_add_test(far, test_strangers);
    tcase_add_test(far, test_worker_of_another_host);
    tcase_add_test(far, test_nothing_is_lent);
    tcase_set_timeout(far, 60);
    suite_add_tcase(suite, far);
    return suite_run(suite);
}
