/* Bare ZeroMQ sockets that send messages which no rpc sends, and a server that receives them. For test
 * programs, which each use what they need. */
#ifndef TEST_WORKER_NET_RAW_PEER_H
#define TEST_WORKER_NET_RAW_PEER_H

#include "test/worker/net/net_door.h"
#include "test/worker/net/net_fixture.h"

#include <zmq.h>

/* ---- a bare peer ---- */

struct raw {
    void *context, *socket;
    struct endpoint_zap *door; /* of a bare server */
    struct rpc *turned;        /* turned while an answer is awaited */
    uint8_t secret[WIRE_SECRET_BYTES];
    uint8_t nonce[WIRE_NONCE_BYTES]; /* of its own HELLO; a server's: of the HELLO that it took */
};

struct answer {
    struct wire_header header;
    char text[512];
};

/* `worker`: the listener, which a ROUTER pretends to be. */
static inline void raw_open_to(struct raw *raw, int type, const char *address, uint16_t worker,
                               struct rpc *turned)
{
    int linger = 0, queue = 2, none = 0;
    raw->context = zmq_ctx_new();
    raw->socket = zmq_socket(raw->context, type);
    raw->turned = turned;
    raw->door = NULL;
    memcpy(raw->secret, NET_SECRET, sizeof raw->secret);
    memset(raw->nonce, 7, sizeof raw->nonce);
    if (type == ZMQ_DEALER)
        door_show_pass(raw->socket, raw->secret, worker);
    else
        raw->door = door_serve(raw->context, raw->socket, raw->secret, worker);
    zmq_setsockopt(raw->socket, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(raw->socket, ZMQ_RCVHWM, &queue, sizeof queue); /* what it does not take waits with us */
    zmq_setsockopt(raw->socket, ZMQ_SNDHWM, &none, sizeof none);
    ck_assert_int_eq(type == ZMQ_DEALER ? zmq_connect(raw->socket, address) : zmq_bind(raw->socket, address),
                     0);
}

static inline void raw_open(struct raw *raw, int type, const char *address, struct rpc *turned)
{
    raw_open_to(raw, type, address, 0, turned);
}

static inline void raw_close(struct raw *raw)
{
    zmq_close(raw->socket);
    zmq_ctx_term(raw->context);
    endpoint_zap_free(raw->door);
}

static inline void raw_send_bytes(struct raw *raw, const void *header, size_t header_bytes,
                                  const void *payload, size_t payload_bytes)
{
    ck_assert_int_ge(zmq_send(raw->socket, header, header_bytes, ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(raw->socket, payload, payload_bytes, 0), 0);
}

enum { RAW_PAYLOAD_MAX = 4096 };

/* The payload of a message that carries `text`; a greeting's has its nonce and its proof too. */
static inline void raw_fill(const struct raw *raw, struct wire_header *header, const char *text,
                            uint8_t payload[RAW_PAYLOAD_MAX])
{
    const size_t first = header->kind == WIRE_HELLO     ? WIRE_HELLO_BYTES
                         : header->kind == WIRE_WELCOME ? WIRE_PROOF_BYTES
                                                        : 0;
    uint8_t encoded[WIRE_HEADER_BYTES];
    const struct proof_subject greeting = {encoded, raw->nonce, text, strlen(text)};
    memcpy(payload + first, text, strlen(text));
    if (first + strlen(text) > 0)
        header->payload_bytes = (uint32_t)(first + strlen(text));
    wire_encode(header, encoded);
    if (header->kind == WIRE_HELLO)
        memcpy(payload, raw->nonce, sizeof raw->nonce);
    if (first > 0)
        proof_make(&greeting, raw->secret, payload + first - WIRE_PROOF_BYTES);
}

static inline void raw_send_text(struct raw *raw, const struct wire_header *header, const char *text)
{
    struct wire_header whole = *header;
    uint8_t payload[RAW_PAYLOAD_MAX] = {0}, bytes[WIRE_HEADER_BYTES];
    raw_fill(raw, &whole, text, payload);
    wire_encode(&whole, bytes);
    raw_send_bytes(raw, bytes, sizeof bytes, payload, whole.payload_bytes);
}

static inline void raw_send(struct raw *raw, const struct wire_header *header)
{
    raw_send_text(raw, header, "");
}

/* A bare server takes a HELLO: its routing id, header and nonce. */
static inline size_t raw_take_greeting(struct raw *raw, uint8_t id[8], struct wire_header *header)
{
    uint8_t bytes[WIRE_HEADER_BYTES], payload[WIRE_HELLO_BYTES + 1];
    int id_bytes = zmq_recv(raw->socket, id, 8, 0);
    ck_assert_int_eq(id_bytes, 5);
    ck_assert_int_eq(zmq_recv(raw->socket, bytes, sizeof bytes, 0), WIRE_HEADER_BYTES);
    ck_assert_int_eq(zmq_recv(raw->socket, payload, sizeof payload, 0), WIRE_HELLO_BYTES);
    ck_assert_int_eq(wire_decode(header, bytes, sizeof bytes, WIRE_HELLO_BYTES, NULL), STATUS_OK);
    ck_assert_int_eq(header->kind, WIRE_HELLO);
    memcpy(raw->nonce, payload, sizeof raw->nonce);
    return (size_t)id_bytes;
}

/* One whole message, turning the rpc meanwhile. False: none came within `turns` turns of a millisecond. */
static inline bool raw_receive(struct raw *raw, struct answer *answer, unsigned turns)
{
    uint8_t frames[2][2048];
    int lengths[2] = {-1, -1};
    for (unsigned i = 0; i < turns; i++) {
        lengths[0] = zmq_recv(raw->socket, frames[0], sizeof frames[0], ZMQ_DONTWAIT);
        if (lengths[0] >= 0)
            break;
        if (raw->turned != NULL)
            rpc_turn(raw->turned, net_in_ms(1));
    }
    if (lengths[0] < 0)
        return false;
    lengths[1] = zmq_recv(raw->socket, frames[1], sizeof frames[1], ZMQ_DONTWAIT);
    ck_assert_int_ge(lengths[1], 0);
    struct error error = {0};
    enum status status =
        wire_decode(&answer->header, frames[0], (size_t)lengths[0], (size_t)lengths[1], &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    const int first = answer->header.kind == WIRE_WELCOME ? WIRE_PROOF_BYTES : 0;
    snprintf(answer->text, sizeof answer->text, "%.*s", lengths[1] - first, (const char *)frames[1] + first);
    const struct proof_subject greeting = {frames[0], raw->nonce, answer->text, strlen(answer->text)};
    ck_assert(first == 0 || proof_is_good(&greeting, raw->secret, frames[1]));
    return true;
}

static inline void raw_await(struct raw *raw, struct answer *answer)
{
    UNTIL(raw_receive(raw, answer, 1), (void)0);
}

static inline void raw_expect(struct raw *raw, enum wire_kind kind, const char *text)
{
    struct answer answer;
    raw_await(raw, &answer);
    ck_assert_int_eq(answer.header.kind, kind);
    ck_assert_msg(strstr(answer.text, text) != NULL, "\"%s\" does not say \"%s\"", answer.text, text);
}

static inline void raw_expect_silence(struct raw *raw)
{
    struct answer answer;
    ck_assert(!raw_receive(raw, &answer, 30));
}

static inline struct wire_header hello(uint16_t worker, uint32_t incarnation)
{
    return (struct wire_header){.kind = WIRE_HELLO,
                                .role = WIRE_ROLE_OBSERVER,
                                .source = worker,
                                .incarnation = incarnation,
                                .generation = 1};
}

/* A request to the server that nothing is wrong with: two numbers. */
static inline struct wire_header step_request(uint16_t worker, uint64_t id)
{
    return (struct wire_header){.kind = WIRE_REQUEST,
                                .method = METHOD_STEP,
                                .source = worker,
                                .incarnation = 1,
                                .generation = 1,
                                .request = id,
                                .left_us = UINT64_MAX,
                                .tensor_count = 1,
                                .tensors = {{WIRE_F32, 1, .dims = {2}}},
                                .payload_bytes = 8};
}

static inline void raw_join(struct raw *raw, struct net *net, uint16_t worker)
{
    struct wire_header header = hello(worker, 1);
    raw_open(raw, ZMQ_DEALER, net->address, net->server);
    raw_send(raw, &header);
    raw_expect(raw, WIRE_WELCOME, "reinforce");
}

/* ---- the server ---- */

struct service {
    unsigned calls, left_count;
    uint16_t left;
    enum status why;
};

static inline void on_step(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct service *service = context;
    (void)message;
    service->calls++;
    rpc_reply(request, NULL);
}

static inline void on_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct service *service = context;
    ck_assert_uint_gt(strlen(text), 0);
    service->left_count++;
    service->left = worker;
    service->why = why;
}

static const struct rpc_method raw_methods[] = {{.method = METHOD_STEP,
                                                 .callers = WIRE_ROLE_OBSERVER,
                                                 .dtype = WIRE_F32,
                                                 .elements_max = 16,
                                                 .handler = on_step}};

static inline void service_start(struct net *net, struct service *service, unsigned clients)
{
    memset(service, 0, sizeof *service);
    struct rpc_config config = net_server_config(raw_methods, 1, service);
    config.left = on_left;
    net_serve(net, &config);
    for (unsigned i = 1; i <= clients; i++) {
        struct rpc_config joining = net_client_config((uint16_t)i, NULL, 0, NULL);
        net_join(net, &joining);
    }
}

static inline struct rpc_counters counters_of(const struct rpc *rpc)
{
    struct rpc_counters counters;
    rpc_counters(rpc, &counters);
    return counters;
}

static inline struct future *echo(struct rpc *rpc, uint16_t worker)
{
    struct future *future = NULL;
    struct error error = {0};
    enum status status = rpc_call_async(rpc, worker, METHOD_ECHO, &(struct rpc_message){.args = {5}},
                                        MONOTIME_NEVER, &future, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return future;
}

#endif
