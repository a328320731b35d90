/* Greetings: HELLO that is refused, repeated, or of another incarnation; and a client whose server breaks the
 * rules from the first message on, or later. */
#include "test/worker/net/raw_peer.h"
#include "test/workplace.h"

/* ---- HELLO ---- */

START_TEST(test_hello_refused)
{
    struct net net;
    struct service service;
    service_start(&net, &service, 0);
    struct wire_header headers[] = {hello(0, 1), hello(NET_CLIENTS_MAX + 1, 1), hello(2, 1), hello(2, 1),
                                    hello(2, 1)};
    static const char *const says[] = {"no such worker", "no such worker", "role", "generation",
                                       "another worker"};
    headers[2].role = WIRE_ROLE_AGENT;
    headers[3].generation = 7;
    headers[4].destination = 3;
    for (unsigned i = 0; i < sizeof says / sizeof *says; i++) {
        struct raw raw;
        raw_open(&raw, ZMQ_DEALER, net.address, net.server);
        raw_send(&raw, &headers[i]);
        raw_expect(&raw, WIRE_BYE, says[i]);
        struct wire_header right = hello(2, 1);
        raw_send(&raw, &right);
        raw_expect_silence(&raw);
        raw_close(&raw);
    }
    ck_assert_uint_eq(service.left_count, 0);
    net_free(&net);
}
END_TEST

/* A program without the secret cannot take a worker's place: neither before the worker nor after it, under no
 * incarnation. The worker joins and works as if nobody had been there. */
START_TEST(test_hello_without_the_secret)
{
    struct net net;
    struct service service;
    struct raw before, worker, after;
    service_start(&net, &service, 0);
    struct wire_header same = hello(2, 1), later = hello(2, 7), request = step_request(2, 1);
    raw_open(&before, ZMQ_DEALER, net.address, net.server);
    before.secret[31] ^= 1;
    raw_send(&before, &same);
    raw_expect(&before, WIRE_BYE, "does not prove the job's secret");

    raw_join(&worker, &net, 2);
    raw_open(&after, ZMQ_DEALER, net.address, net.server);
    memset(after.secret, 0, sizeof after.secret);
    raw_send(&after, &later);
    raw_expect(&after, WIRE_BYE, "does not prove the job's secret");
    raw_send(&after, &request);
    raw_expect_silence(&after);

    raw_send(&worker, &request);
    raw_expect(&worker, WIRE_REPLY, "");
    ck_assert_uint_eq(service.calls, 1);
    ck_assert_uint_eq(service.left_count, 0);
    ck_assert_uint_eq(counters_of(net.server).strangers, 3);
    raw_close(&before);
    raw_close(&worker);
    raw_close(&after);
    net_free(&net);
}
END_TEST

START_TEST(test_hello_repeated)
{
    struct net net;
    struct service service;
    struct raw raw;
    service_start(&net, &service, 0);
    raw_join(&raw, &net, 2);
    struct wire_header again = hello(2, 1), request = step_request(2, 1);
    for (unsigned i = 0; i < 3; i++) {
        raw_send(&raw, &again);
        raw_expect(&raw, WIRE_WELCOME, "reinforce");
    }
    raw_send(&raw, &request);
    raw_expect(&raw, WIRE_REPLY, "");
    ck_assert_uint_eq(service.left_count, 0);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

/* The same incarnation from another connection is refused and changes nothing; a later one takes over. */
START_TEST(test_incarnations)
{
    struct net net;
    struct service service;
    struct raw first, second, third, fourth;
    service_start(&net, &service, 0);
    raw_join(&first, &net, 2);
    struct wire_header same = hello(2, 1), later = hello(2, 5), between = hello(2, 4),
                       request = step_request(2, 1);
    raw_open(&second, ZMQ_DEALER, net.address, net.server);
    raw_send(&second, &same);
    raw_expect(&second, WIRE_BYE, "here already");
    raw_send(&first, &request);
    raw_expect(&first, WIRE_REPLY, "");
    struct future *call = echo(net.server, 2);
    raw_expect(&first, WIRE_REQUEST, "");
    ck_assert_uint_eq(service.left_count, 0);

    raw_open(&third, ZMQ_DEALER, net.address, net.server);
    raw_send(&third, &later);
    raw_expect(&third, WIRE_WELCOME, "reinforce");
    raw_expect(&first, WIRE_BYE, "later incarnation");
    net_expect_failure(&net, call, STATUS_PEER_DIED, "later incarnation");
    ck_assert_uint_eq(service.left_count, 1);
    ck_assert_int_eq(service.why, STATUS_PEER_DIED);
    request.incarnation = 5;
    raw_send(&third, &request);
    raw_expect(&third, WIRE_REPLY, "");

    raw_open(&fourth, ZMQ_DEALER, net.address, net.server);
    raw_send(&fourth, &between);
    raw_expect(&fourth, WIRE_BYE, "here already");
    rpc_peer_died(net.server, 2, 4, "the one before");
    raw_send(&third, &later);
    raw_expect(&third, WIRE_WELCOME, "reinforce");
    rpc_peer_died(net.server, 2, 5, "killed");
    raw_expect(&third, WIRE_BYE, "killed");
    raw_close(&fourth);
    raw_open(&fourth, ZMQ_DEALER, net.address, net.server);
    raw_send(&fourth, &later);
    raw_expect(&fourth, WIRE_BYE, "has ended");
    raw_close(&first);
    raw_close(&second);
    raw_close(&third);
    raw_close(&fourth);
    net_free(&net);
}
END_TEST

/* ---- a client and a server that breaks the rules ---- */

struct joining {
    pthread_t thread;
    char address[96];
    struct rpc_config config;
    struct rpc *rpc;
    struct error error;
    enum status status;
};

static void *join_thread(void *arg)
{
    struct joining *joining = arg;
    struct rpc_address server = {.worker = 0, .address = joining->address};
    joining->status =
        net_connect(&joining->rpc, &joining->config, &server, 1, net_in_ms(10000), &joining->error);
    return NULL;
}

/* Starts a join on another thread and takes its HELLO; *id is its routing id. */
static void raw_take_hello(struct raw *raw, struct net *net, struct joining *joining, uint8_t id[8],
                           size_t *id_bytes)
{
    memset(net, 0, sizeof *net);
    memset(joining, 0, sizeof *joining);
    net_make_address(net);
    raw_open(raw, ZMQ_ROUTER, net->address, NULL);
    snprintf(joining->address, sizeof joining->address, "%s", net->address);
    joining->config = net_client_config(1, NULL, 0, NULL);
    ck_assert_int_eq(pthread_create(&joining->thread, NULL, join_thread, joining), 0);
    struct wire_header header;
    *id_bytes = raw_take_greeting(raw, id, &header);
    ck_assert_int_eq(header.role, WIRE_ROLE_OBSERVER);
    ck_assert_uint_eq(header.source, 1);
}

static void raw_send_to(struct raw *raw, const uint8_t *id, size_t id_bytes, const struct wire_header *header,
                        const char *text)
{
    ck_assert_int_ge(zmq_send(raw->socket, id, id_bytes, ZMQ_SNDMORE), 0);
    raw_send_text(raw, header, text);
}

static void finish(struct raw *raw, struct net *net, struct joining *joining)
{
    if (joining->status == STATUS_OK)
        rpc_free(joining->rpc, "over", 0);
    raw_close(raw);
    unlink(net->address + strlen("ipc://"));
    rmdir(net->folder);
}

START_TEST(test_join_refused)
{
    struct raw raw;
    struct net net;
    struct joining joining;
    uint8_t id[8];
    size_t id_bytes;
    raw_take_hello(&raw, &net, &joining, id, &id_bytes);
    struct wire_header bye = {.kind = WIRE_BYE, .destination = 1, .generation = 8};
    raw_send_to(&raw, id, id_bytes, &bye, "go\naway");
    pthread_join(joining.thread, NULL);
    ck_assert_int_eq(joining.status, STATUS_PERMISSION);
    ck_assert_ptr_nonnull(strstr(joining.error.text, "go?away"));
    finish(&raw, &net, &joining);
}
END_TEST

/* A stranger that has taken the server's address does not get to hand out a job: without the secret, nor with
 * a WELCOME that it has seen before, which answered another HELLO. */
START_TEST(test_join_an_impostor)
{
    struct raw raw;
    struct net net;
    struct joining joining;
    uint8_t id[8];
    size_t id_bytes;
    const struct wire_header welcome = {
        .kind = WIRE_WELCOME, .role = WIRE_ROLE_AGENT, .destination = 1, .incarnation = 1, .generation = 1};
    raw_take_hello(&raw, &net, &joining, id, &id_bytes);
    if (_i == 0)
        raw.secret[0] ^= 1;
    else
        raw.nonce[0] ^= 1;
    raw_send_to(&raw, id, id_bytes, &welcome, "{}");
    pthread_join(joining.thread, NULL);
    ck_assert_int_eq(joining.status, STATUS_PERMISSION);
    ck_assert_ptr_nonnull(strstr(joining.error.text, "its WELCOME does not prove the job's secret"));
    finish(&raw, &net, &joining);
}
END_TEST

START_TEST(test_join_answered_with_garbage)
{
    struct raw raw;
    struct net net;
    struct joining joining;
    uint8_t id[8];
    size_t id_bytes;
    raw_take_hello(&raw, &net, &joining, id, &id_bytes);
    zmq_send(raw.socket, id, id_bytes, ZMQ_SNDMORE);
    raw_send_bytes(&raw, "HTTP/1.1 400", 12, "", 0);
    pthread_join(joining.thread, NULL);
    ck_assert_int_eq(joining.status, STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(joining.error.text, "header of 12 bytes"));
    finish(&raw, &net, &joining);
}
END_TEST

START_TEST(test_join_with_nobody)
{
    struct net net = {0};
    struct rpc *rpc = NULL;
    struct error error = {0};
    net_make_address(&net);
    struct rpc_config config = net_client_config(1, NULL, 0, NULL);
    struct rpc_address server = {.worker = 0, .address = net.address};
    ck_assert_int_eq(net_connect(&rpc, &config, &server, 1, net_in_ms(60), &error), STATUS_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(error.text, net.address));
    ck_assert_ptr_null(rpc);
    rmdir(net.folder);
}
END_TEST

static void client_left(void *context, uint16_t worker, enum status why, const char *text)
{
    (void)context;
    (void)text;
    ck_assert_uint_eq(worker, 0);
    ck_assert_int_eq(why, STATUS_PEER_DIED);
}

/* What comes before WELCOME is dropped; a bad message after it ends the session from the client's side. */
START_TEST(test_bad_server)
{
    struct raw raw;
    struct net net;
    struct joining joining;
    uint8_t id[8];
    size_t id_bytes;
    raw_take_hello(&raw, &net, &joining, id, &id_bytes);
    struct wire_header early = {.kind = WIRE_REQUEST,
                                .method = METHOD_ECHO,
                                .destination = 1,
                                .incarnation = 4,
                                .generation = 1,
                                .request = 1};
    raw_send_to(&raw, id, id_bytes, &early, "");
    struct wire_header welcome = {
        .kind = WIRE_WELCOME, .role = WIRE_ROLE_AGENT, .destination = 1, .incarnation = 4, .generation = 1};
    raw_send_to(&raw, id, id_bytes, &welcome, "{}");
    pthread_join(joining.thread, NULL);
    ck_assert_int_eq(joining.status, STATUS_OK);
    ck_assert_str_eq(rpc_welcome(joining.rpc, NULL), "{}");
    ck_assert_uint_eq(counters_of(joining.rpc).stale, 1);
    struct future *call = echo(joining.rpc, 0);
    early.incarnation = 5;
    raw_send_to(&raw, id, id_bytes, &early, "");
    enum status status = STATUS_OK;
    UNTIL(status != STATUS_OK, status = rpc_turn(joining.rpc, net_in_ms(1)));
    ck_assert_int_eq(status, STATUS_PEER_DIED);
    ck_assert_int_eq(future_status(call), STATUS_PEER_DIED);
    ck_assert_str_eq(future_text(call), "the incarnation is not the connection's");
    ck_assert_uint_eq(counters_of(joining.rpc).bad, 1);
    future_release(call);
    finish(&raw, &net, &joining);
}
END_TEST

START_TEST(test_left_on_a_client)
{
    struct net net;
    struct service service;
    service_start(&net, &service, 0);
    struct rpc_config config = net_client_config(1, NULL, 0, NULL);
    config.left = client_left;
    config.pending_max = 2;
    struct rpc *client = net_join(&net, &config);
    struct error error;
    struct future *call;
    struct rpc_message message = {.tensor_count = 1, .tensors = {{WIRE_U8, 1, .dims = {1}}}, .data = {"x"}};
    ck_assert_int_eq(rpc_call_async(client, 0, METHOD_STEP, &message, MONOTIME_NEVER, &call, &error),
                     STATUS_OK);
    net_expect_failure(&net, call, STATUS_PEER_DIED, "dtype 3 of rank 1, expected 1 of rank 1");
    net_free(&net);
}
END_TEST

/* The next frame to a bare client that is a request, and the time left that it carries. */
static uint64_t time_left_of_call(struct net *net, struct raw *raw, struct monotime deadline)
{
    struct future *call;
    struct error error = {0};
    struct answer answer;
    enum status status =
        rpc_call_async(net->server, 1, METHOD_RUN_EPISODE, &(struct rpc_message){0}, deadline, &call, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    raw_await(raw, &answer);
    ck_assert_int_eq(answer.header.kind, WIRE_REQUEST);
    future_release(call);
    return answer.header.left_us;
}

/* Clocks of two hosts have nothing in common. */
START_TEST(test_deadline_travels_as_time_left)
{
    struct net net;
    struct service service;
    struct raw raw;
    service_start(&net, &service, 0);
    raw_join(&raw, &net, 1);
    uint64_t left_us = time_left_of_call(&net, &raw, net_in_ms(60000));
    ck_assert_uint_le(left_us, 60000000);
    ck_assert_uint_gt(left_us, 0);
    ck_assert_uint_eq(time_left_of_call(&net, &raw, MONOTIME_NEVER), UINT64_MAX);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_hello");
    TCase *server = tcase_create("server");
    tcase_add_test(server, test_hello_refused);
    tcase_add_test(server, test_hello_without_the_secret);
    tcase_add_test(server, test_hello_repeated);
    tcase_add_test(server, test_incarnations);
    tcase_add_test(server, test_deadline_travels_as_time_left);
    tcase_set_timeout(server, 60);
    suite_add_tcase(suite, server);
    TCase *client = tcase_create("client");
    tcase_add_test(client, test_join_refused);
    tcase_add_loop_test(client, test_join_an_impostor, 0, 2);
    tcase_add_test(client, test_join_answered_with_garbage);
    tcase_add_test(client, test_join_with_nobody);
    tcase_add_test(client, test_bad_server);
    tcase_add_test(client, test_left_on_a_client);
    tcase_set_timeout(client, 60);
    suite_add_tcase(suite, client);
    return suite_run(suite);
}
