/* The rpc's server against peers that break the rules. Each bad message costs its sender the session, is
 * answered with BYE and a reason, and changes no other session. */
#include "test/worker/net/raw_peer.h"
#include "test/workplace.h"

/* ---- bad messages within a session ---- */

static void one_frame(struct raw *raw)
{
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header header = {.kind = WIRE_BYE, .source = 2, .incarnation = 1, .generation = 1};
    wire_encode(&header, bytes);
    zmq_send(raw->socket, bytes, sizeof bytes, 0);
}

static void many_frames(struct raw *raw)
{
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_header header = {.kind = WIRE_BYE, .source = 2, .incarnation = 1, .generation = 1};
    wire_encode(&header, bytes);
    zmq_send(raw->socket, bytes, sizeof bytes, ZMQ_SNDMORE);
    for (unsigned i = 0; i < 1000; i++)
        zmq_send(raw->socket, "", 0, ZMQ_SNDMORE);
    zmq_send(raw->socket, "", 0, 0);
}

static void short_header(struct raw *raw)
{
    raw_send_bytes(raw, "COAL", 4, "", 0);
}

static void long_payload(struct raw *raw)
{
    struct wire_header header = step_request(2, 1);
    uint8_t bytes[WIRE_HEADER_BYTES], *payload = calloc(1, WIRE_PAYLOAD_BYTES_MAX + 1);
    wire_encode(&header, bytes);
    raw_send_bytes(raw, bytes, sizeof bytes, payload, WIRE_PAYLOAD_BYTES_MAX + 1);
    free(payload);
}

static void other_payload(struct raw *raw)
{
    struct wire_header header = step_request(2, 1);
    uint8_t bytes[WIRE_HEADER_BYTES];
    wire_encode(&header, bytes);
    raw_send_bytes(raw, bytes, sizeof bytes, "xyz", 3);
}

static void send_with_byte(struct raw *raw, size_t at, uint8_t value)
{
    static const uint8_t payload[8];
    struct wire_header header = step_request(2, 1);
    uint8_t bytes[WIRE_HEADER_BYTES];
    wire_encode(&header, bytes);
    bytes[at] = value;
    raw_send_bytes(raw, bytes, sizeof bytes, payload, sizeof payload);
}

static void bad_magic(struct raw *raw)
{
    send_with_byte(raw, 0, 'c');
}

static void bad_version(struct raw *raw)
{
    send_with_byte(raw, 4, 9);
}

static void unknown_kind(struct raw *raw)
{
    send_with_byte(raw, 6, 77);
}

static void unknown_method(struct raw *raw)
{
    send_with_byte(raw, 8, METHOD_COUNT);
}

static void other_source(struct raw *raw)
{
    struct wire_header header = step_request(1, 1);
    raw_send(raw, &header);
}

static void other_incarnation(struct raw *raw)
{
    struct wire_header header = step_request(2, 1);
    header.incarnation = 2;
    raw_send(raw, &header);
}

static void other_destination(struct raw *raw)
{
    struct wire_header header = step_request(2, 1);
    header.destination = 99;
    raw_send(raw, &header);
}

static void to_itself(struct raw *raw)
{
    struct wire_header header = step_request(2, 1);
    header.destination = 2;
    raw_send(raw, &header);
}

static void greeting_to_another(struct raw *raw)
{
    struct wire_header header = hello(2, 1);
    header.destination = 1;
    raw_send(raw, &header);
}

static void other_role(struct raw *raw)
{
    struct wire_header header = hello(2, 1);
    header.role = WIRE_ROLE_AGENT;
    raw_send(raw, &header);
}

static void welcome_to_server(struct raw *raw)
{
    struct wire_header header = hello(2, 1);
    header.kind = WIRE_WELCOME;
    raw_send(raw, &header);
}

static void method_not_served(struct raw *raw)
{
    struct wire_header header = step_request(2, 1);
    header.method = METHOD_RUN_EPISODE;
    raw_send(raw, &header);
}

static void too_few_tensors(struct raw *raw)
{
    struct wire_header header = step_request(2, 1);
    header.tensor_count = 0;
    memset(&header.tensors[0], 0, sizeof header.tensors[0]);
    header.payload_bytes = 0;
    raw_send(raw, &header);
}

static void other_dtype(struct raw *raw)
{
    struct wire_header header = step_request(2, 1);
    header.tensors[0].dtype = WIRE_U32;
    raw_send(raw, &header);
}

static void other_rank(struct raw *raw)
{
    struct wire_header header = step_request(2, 1);
    header.tensors[0] = (struct wire_tensor){WIRE_F32, 2, .dims = {1, 2}};
    raw_send(raw, &header);
}

static void too_many_numbers(struct raw *raw)
{
    struct wire_header header = step_request(2, 1);
    header.tensors[0].dims[0] = 17;
    header.payload_bytes = 17 * 4;
    raw_send(raw, &header);
}

/* The server's call of worker 2 is its first: id 1, METHOD_ECHO. */
static void reply_of_other_method(struct raw *raw)
{
    struct wire_header header = {.kind = WIRE_REPLY,
                                 .method = METHOD_STEP,
                                 .source = 2,
                                 .incarnation = 1,
                                 .generation = 1,
                                 .request = 1};
    raw_send(raw, &header);
}

static const struct {
    void (*send)(struct raw *raw);
    const char *says;
} bad_messages[] = {
    {one_frame, "two frames"},
    {many_frames, "two frames"},
    {short_header, "header of 4 bytes"},
    {long_payload, "limits"},
    {other_payload, "3 came"},
    {bad_magic, "magic"},
    {bad_version, "version 9"},
    {unknown_kind, "kind 77"},
    {unknown_method, "method"},
    {other_source, "source"},
    {other_incarnation, "incarnation"},
    {other_destination, "the destination is another worker"},
    {to_itself, "the destination is another worker"},
    {greeting_to_another, "the destination is another worker"},
    {other_role, "greeting"},
    {welcome_to_server, "greeting"},
    {method_not_served, "not permitted"},
    {too_few_tensors, "0 tensors, expected 1"},
    {other_dtype, "dtype"},
    {other_rank, "of rank 2, expected 1 of rank 1"},
    {too_many_numbers, "at most 16"},
    {reply_of_other_method, "method"},
};

START_TEST(test_bad_message_costs_the_session)
{
    struct net net;
    struct service service;
    struct raw raw;
    service_start(&net, &service, 1);
    raw_join(&raw, &net, 2);
    struct future *pending = echo(net.server, 2);
    raw_expect(&raw, WIRE_REQUEST, "");
    bad_messages[_i].send(&raw);
    raw_expect(&raw, WIRE_BYE, bad_messages[_i].says);
    net_expect_failure(&net, pending, STATUS_PEER_DIED, bad_messages[_i].says);
    ck_assert_uint_eq(service.left_count, 1);
    ck_assert_uint_eq(service.left, 2);
    ck_assert_int_eq(service.why, STATUS_INVALID);
    ck_assert_uint_eq(service.calls, 0);
    ck_assert_uint_eq(counters_of(net.server).bad, 1);

    struct wire_header fine = step_request(2, 7);
    raw_send(&raw, &fine);
    struct wire_header greeting = hello(2, 9);
    raw_send(&raw, &greeting);
    UNTIL(counters_of(net.server).strangers >= 2, rpc_turn(net.server, net_in_ms(1)));
    raw_expect_silence(&raw);
    ck_assert_uint_eq(service.calls, 0);

    struct future *good = echo(net.clients[0], 0), *back = echo(net.server, 1);
    ck_assert_int_eq(net_await(&net, good), STATUS_OK);
    ck_assert_int_eq(net_await(&net, back), STATUS_OK);
    future_release(good);
    future_release(back);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

START_TEST(test_other_generation_is_dropped)
{
    struct net net;
    struct service service;
    struct raw raw;
    service_start(&net, &service, 0);
    raw_join(&raw, &net, 2);
    struct wire_header header = step_request(2, 1);
    header.generation = 2;
    raw_send(&raw, &header);
    UNTIL(counters_of(net.server).stale == 1, rpc_turn(net.server, net_in_ms(1)));
    raw_expect_silence(&raw);
    header.generation = 1;
    raw_send(&raw, &header);
    raw_expect(&raw, WIRE_REPLY, "");
    ck_assert_uint_eq(service.calls, 1);
    ck_assert_uint_eq(counters_of(net.server).bad, 0);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

/* ---- repetition ---- */

/* Ids in any order within the window take effect once each; what lies behind it never does. */
START_TEST(test_repeated_requests)
{
    static const uint64_t ids[] = {1, 1,    3,    2,    2,    3,    4096,       4096, 4097,      2,
                                   1, 9000, 4904, 4905, 4905, 8999, UINT64_MAX, 9001, UINT64_MAX};
    static const bool fresh[] = {1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1, 0, 0};
    struct net net;
    struct service service;
    struct raw raw;
    unsigned wanted = 0, count = sizeof ids / sizeof *ids;
    service_start(&net, &service, 0);
    raw_join(&raw, &net, 2);
    for (unsigned i = 0; i < count; i++) {
        struct wire_header header = step_request(2, ids[i]);
        struct answer answer;
        raw_send(&raw, &header);
        wanted += fresh[i];
        if (fresh[i]) {
            raw_await(&raw, &answer);
            ck_assert_uint_eq(answer.header.request, ids[i]);
        } else {
            ck_assert(!raw_receive(&raw, &answer, 5));
        }
    }
    UNTIL(counters_of(net.server).duplicates == count - wanted, rpc_turn(net.server, net_in_ms(1)));
    ck_assert_uint_eq(service.calls, wanted);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

START_TEST(test_repeated_replies)
{
    struct net net;
    struct service service;
    struct raw raw;
    service_start(&net, &service, 0);
    raw_join(&raw, &net, 2);
    struct future *call = echo(net.server, 2);
    raw_expect(&raw, WIRE_REQUEST, "");
    struct wire_header reply = {.kind = WIRE_REPLY,
                                .method = METHOD_ECHO,
                                .source = 2,
                                .incarnation = 1,
                                .generation = 1,
                                .request = 1};
    reply.args[0] = 77;
    raw_send(&raw, &reply);
    reply.args[0] = 78;
    raw_send(&raw, &reply);
    reply.request = 1234;
    raw_send(&raw, &reply);
    ck_assert_int_eq(net_await(&net, call), STATUS_OK);
    UNTIL(counters_of(net.server).stale >= 2, rpc_turn(net.server, net_in_ms(1)));
    ck_assert_uint_eq(future_value(call)->args[0], 77);
    ck_assert_uint_eq(counters_of(net.server).stale, 2);
    ck_assert_uint_eq(service.left_count, 0);
    future_release(call);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

/* ---- strangers ---- */

START_TEST(test_strangers)
{
    enum { STRANGERS = 100 };
    struct net net;
    struct service service;
    struct raw raws[STRANGERS];
    service_start(&net, &service, 1);
    for (unsigned i = 0; i < STRANGERS; i++) {
        raw_open(&raws[i], ZMQ_DEALER, net.address, net.server);
        struct wire_header request = step_request(3, 1);
        if (i % 3 == 0)
            raw_send(&raws[i], &request);
        else if (i % 3 == 1)
            raw_send_bytes(&raws[i], "what is this", 12, "", 0);
        else
            zmq_send(raws[i].socket, "one", 3, 0);
        raw_expect(&raws[i], WIRE_BYE,
                   i % 3 == 0   ? "HELLO first"
                   : i % 3 == 1 ? "header of 12 bytes"
                                : "two frames");
        raw_send_bytes(&raws[i], "again", 5, "", 0);
        raw_expect_silence(&raws[i]);
    }
    UNTIL(counters_of(net.server).strangers == 2 * STRANGERS, rpc_turn(net.server, net_in_ms(1)));
    ck_assert_uint_eq(counters_of(net.server).bad, 0);
    ck_assert_uint_eq(service.left_count, 0);
    struct future *good = echo(net.clients[0], 0);
    ck_assert_int_eq(net_await(&net, good), STATUS_OK);
    future_release(good);
    for (unsigned i = 0; i < STRANGERS; i++)
        raw_close(&raws[i]);
    net_free(&net);
}
END_TEST

START_TEST(test_routing_id_of_its_own)
{
    struct net net;
    struct service service;
    struct raw raw;
    service_start(&net, &service, 1);
    raw.context = zmq_ctx_new();
    raw.socket = zmq_socket(raw.context, ZMQ_DEALER);
    raw.door = NULL;
    raw.turned = net.server;
    memcpy(raw.secret, NET_SECRET, sizeof raw.secret);
    door_show_pass(raw.socket, raw.secret, 0);
    zmq_setsockopt(raw.socket, ZMQ_ROUTING_ID, "me", 2);
    ck_assert_int_eq(zmq_connect(raw.socket, net.address), 0);
    struct wire_header header = hello(2, 1);
    raw_send(&raw, &header);
    UNTIL(counters_of(net.server).strangers == 1, rpc_turn(net.server, net_in_ms(1)));
    raw_expect_silence(&raw);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

/* A frame far over the limit: libzmq cuts the connection, and nobody else notices. */
START_TEST(test_huge_frame)
{
    struct net net;
    struct service service;
    struct raw raw;
    service_start(&net, &service, 1);
    raw_join(&raw, &net, 2);
    size_t bytes = 8 << 20;
    uint8_t *payload = calloc(1, bytes);
    raw_send_bytes(&raw, payload, WIRE_HEADER_BYTES, payload, bytes);
    free(payload);
    for (unsigned i = 0; i < 50; i++) {
        struct future *good = echo(net.clients[0], 0);
        ck_assert_int_eq(net_await(&net, good), STATUS_OK);
        future_release(good);
    }
    ck_assert_uint_eq(service.calls, 0);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

/* It calls and never takes an answer: its session ends before its answers fill the server, many or large. */
static const struct {
    uint32_t floats;
    uint64_t requests_max;
} untaken[] = {{1000, 20000}, {WIRE_PAYLOAD_BYTES_MAX / sizeof(float), 400}};

START_TEST(test_answers_not_taken)
{
    struct net net;
    struct service service;
    struct raw raw;
    service_start(&net, &service, 1);
    raw_join(&raw, &net, 2);
    static const float floats[WIRE_PAYLOAD_BYTES_MAX / sizeof(float)];
    const size_t floats_bytes = untaken[_i].floats * sizeof(float);
    uint8_t bytes[WIRE_HEADER_BYTES];
    for (uint64_t id = 1; id < untaken[_i].requests_max && service.left_count == 0; id++) {
        struct wire_header header = step_request(2, id);
        header.method = METHOD_ECHO;
        header.tensors[0].dims[0] = untaken[_i].floats;
        header.payload_bytes = (uint32_t)floats_bytes;
        wire_encode(&header, bytes);
        raw_send_bytes(&raw, bytes, sizeof bytes, floats, floats_bytes);
        rpc_turn(net.server, (struct monotime){1});
    }
    UNTIL(service.left_count != 0, rpc_turn(net.server, net_in_ms(1)));
    ck_assert_uint_eq(service.left_count, 1);
    ck_assert_uint_eq(service.left, 2);
    ck_assert_int_eq(service.why, STATUS_INVALID);
    struct future *good = echo(net.clients[0], 0);
    ck_assert_int_eq(net_await(&net, good), STATUS_OK);
    future_release(good);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_hostile");
    TCase *hostile = tcase_create("hostile");
    tcase_add_loop_test(hostile, test_bad_message_costs_the_session, 0,
                        (int)(sizeof bad_messages / sizeof *bad_messages));
    tcase_add_test(hostile, test_other_generation_is_dropped);
    tcase_add_test(hostile, test_repeated_requests);
    tcase_add_test(hostile, test_repeated_replies);
    tcase_add_test(hostile, test_strangers);
    tcase_add_test(hostile, test_routing_id_of_its_own);
    tcase_add_test(hostile, test_huge_frame);
    tcase_add_loop_test(hostile, test_answers_not_taken, 0, (int)(sizeof untaken / sizeof *untaken));
    tcase_set_timeout(hostile, 60);
    suite_add_tcase(suite, hostile);
    return suite_run(suite);
}
