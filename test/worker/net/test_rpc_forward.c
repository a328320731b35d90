/* Calls between clients by way of the server: order, bodies, what is lent, who is not here yet, no room,
 * and peers that get it wrong. Clients 1 and 2 are ours, 3 is a bare socket where a test needs one. */
#include "test/worker/net/forward_stage.h"
#include "test/workplace.h"

#include <fcntl.h>
#include <sys/mman.h>

enum { BODY_BYTES = (2 << 20) + 3, SEGMENT_BYTES = 1 << 20 };

/* ---- calls ---- */

START_TEST(test_both_ways)
{
    enum { CALLS = 150 };
    struct future *up[CALLS], *down[CALLS], *other;
    start(2, NULL);
    for (unsigned i = 0; i < CALLS; i++) {
        up[i] = ask(1, 2, DO_ANSWER, 1 + i, &i, sizeof i);
        down[i] = ask(2, 1, DO_ANSWER, 1 + i, NULL, 0);
    }
    other = echo(client(1), 0);
    for (unsigned i = 0; i < CALLS; i++) {
        ck_assert_int_eq(net_await(&net, up[i]), STATUS_OK);
        ck_assert_mem_eq(future_value(up[i])->data[0], &i, sizeof i);
        expect_answer(up[i], 1 + i);
        expect_answer(down[i], 1 + i);
    }
    ck_assert_int_eq(net_await(&net, other), STATUS_OK);
    future_release(other);
    ck_assert(ends[1].is_in_order && ends[2].is_in_order);
    ck_assert_uint_eq(ends[1].source, 2);
    ck_assert_uint_eq(ends[2].source, 1);
    ck_assert_uint_eq(ends[0].calls, 0);
    ck_assert_uint_eq(net.server->pairs[1 * net.server->config.workers + 2].asked, 0);
    for (unsigned i = 1; i <= 2; i++) {
        struct rpc_counters counters = counters_of(client((uint16_t)i));
        ck_assert_uint_eq(counters.bad + counters.stale + counters.strangers + counters.duplicates, 0);
    }
    net_free(&net);
}
END_TEST

/* Both in pieces, at the same time as the server's own to the same client. */
START_TEST(test_bodies)
{
    static uint8_t bytes[2][BODY_BYTES];
    start(3, NULL);
    for (unsigned i = 0; i < BODY_BYTES; i++)
        bytes[0][i] = (uint8_t)(bytes[1][BODY_BYTES - 1 - i] = (uint8_t)(i % 251));
    struct rpc_message own = {.tensor_count = 1, .tensors = {{WIRE_U8, 1, {BODY_BYTES}}}, .data = {bytes[1]}};
    struct future *futures[4];
    struct error error = {0};
    futures[0] = ask(1, 2, DO_ANSWER, 1, bytes[0], BODY_BYTES);
    futures[1] = ask(3, 2, DO_ANSWER, 1, bytes[1], BODY_BYTES);
    ck_assert_int_eq(rpc_call_async(net.server, 2, METHOD_ECHO, &own, MONOTIME_NEVER, &futures[2], &error),
                     STATUS_OK);
    futures[3] = ask(2, 1, DO_ANSWER, 1, bytes[1], BODY_BYTES);
    for (unsigned i = 0; i < 4; i++) {
        ck_assert_int_eq(net_await(&net, futures[i]), STATUS_OK);
        ck_assert_mem_eq(future_value(futures[i])->data[0], bytes[i != 0], BODY_BYTES);
        future_release(futures[i]);
    }
    net_free(&net);
}
END_TEST

START_TEST(test_lent_between_clients)
{
    struct segment segments[3];
    struct error error = {0};
    for (uint16_t i = 0; i < 3; i++) {
        int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING), place = SEGMENT_FD_FIRST + i;
        ck_assert(fd == place || (fcntl(place, F_GETFD) < 0 && dup2(fd, place) == place && close(fd) == 0));
        ck_assert_int_eq(segment_create(&segments[i], i, SEGMENT_BYTES, &error), STATUS_OK);
    }
    start(2, segments);
    memset(segments[1].data, 77, SEGMENT_BYTES);
    memset(segments[2].data, 88, SEGMENT_BYTES);
    struct future *future = ask(1, 2, DO_KEEP, 1, segments[1].data + 64, RPC_LEND_BYTES);
    turn_until_kept(2);
    ck_assert_uint_eq(ends[2].lent, 1);
    struct rpc_message value = *rpc_request_message(ends[2].kept);
    ck_assert_uint_eq(((const uint8_t *)value.data[0])[RPC_LEND_BYTES - 1], 77);
    value.data[0] = segments[2].data + 128;
    rpc_reply(ends[2].kept, &value);
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    ck_assert_uint_eq(future_value(future)->lent, 1);
    ck_assert_uint_eq(((const uint8_t *)future_value(future)->data[0])[0], 88);
    future_release(future);
    net_free(&net);
}
END_TEST

/* A worker of the roster that has not joined yet is waited for. */
START_TEST(test_before_it_has_joined)
{
    start(1, NULL);
    struct future *futures[3];
    for (unsigned i = 0; i < 3; i++)
        futures[i] = ask(1, 2, DO_ANSWER, 1 + i, NULL, 0);
    turn_some();
    ck_assert(!future_done(futures[0]));
    join(2, NULL);
    for (unsigned i = 0; i < 3; i++)
        expect_answer(futures[i], 1 + i);
    ck_assert(ends[2].is_in_order);
    ck_assert_uint_eq(net.server->held_total, 0);
    net_free(&net);
}
END_TEST

/* ---- peers that get it wrong: worker 3 is a bare socket ---- */

static struct wire_header to_client(uint64_t id, uint16_t destination)
{
    return (struct wire_header){.kind = WIRE_REQUEST,
                                .method = METHOD_OBJECT,
                                .source = 3,
                                .destination = destination,
                                .incarnation = 1,
                                .generation = 1,
                                .request = id,
                                .left_us = UINT64_MAX};
}

static void bad_method(struct wire_header *header)
{
    header->method = METHOD_STEP;
}

static void bad_place(struct wire_header *header)
{
    header->tensor_count = 1;
    header->tensors[0] = (struct wire_tensor){WIRE_U8, 1, {64}};
    header->places[0] = 1;
}

static void bad_body(struct wire_header *header)
{
    header->tensor_count = 1;
    header->tensors[0] = (struct wire_tensor){WIRE_U8, 1, {2 << 20}};
    header->body_bytes = 2 << 20;
}

static void bad_piece(struct wire_header *header)
{
    *header = (struct wire_header){.kind = WIRE_PIECE,
                                   .source = 3,
                                   .destination = 1,
                                   .incarnation = 1,
                                   .generation = 1,
                                   .request = 2,
                                   .body_bytes = 2 << 20,
                                   .args = {4, WIRE_REQUEST},
                                   .payload_bytes = 4};
}

static const struct {
    void (*spoil)(struct wire_header *header);
    const char *says;
} bad_messages[] = {
    {bad_method, "not permitted"},
    {bad_place, "is lent"},
    {bad_body, "has not come"},
    {bad_piece, "has not begun"},
};

/* It costs the sender its session with that client, and neither anything else. */
START_TEST(test_bad_message_to_a_client)
{
    struct raw raw;
    struct answer answer;
    start(2, NULL);
    raw_join(&raw, &net, 3);
    struct wire_header good = to_client(1, 1), bad = to_client(2, 1);
    raw_send(&raw, &good);
    UNTIL(ends[1].calls != 0, net_turn(&net));
    struct future *pending = ask(1, 3, DO_ANSWER, 1, NULL, 0);
    bad_messages[_i].spoil(&bad);
    raw_send(&raw, &bad);
    net_expect_failure(&net, pending, STATUS_PEER_DIED, bad_messages[_i].says);
    turn_some();
    raw_expect(&raw, WIRE_REPLY, "");
    raw_expect(&raw, WIRE_REQUEST, "");
    raw_await(&raw, &answer);
    ck_assert_int_eq(answer.header.kind, WIRE_BYE);
    ck_assert_uint_eq(answer.header.source, 1);
    ck_assert_ptr_nonnull(strstr(answer.text, bad_messages[_i].says));
    ck_assert_uint_eq(ends[1].left_count, 1);
    ck_assert_uint_eq(ends[1].left, 3);
    ck_assert_int_eq(ends[1].why, STATUS_INVALID);
    struct wire_header again = to_client(3, 1);
    raw_send(&raw, &again);
    turn_some();
    ck_assert_uint_eq(ends[1].calls, 1);
    ck_assert_uint_eq(ends[0].left_count, 0);
    struct wire_header other = to_client(1, 2);
    raw_send(&raw, &other);
    UNTIL(ends[2].calls != 0, net_turn(&net));
    raw_expect(&raw, WIRE_REPLY, "");
    raw_close(&raw);
    net_free(&net);
}
END_TEST

/* A client knows of incarnations that have been here, and of none but of clients. */
START_TEST(test_made_up_addressee)
{
    struct raw raw;
    start(2, NULL);
    raw_join(&raw, &net, 3);
    struct wire_header header = to_client(1, (uint16_t)_i);
    header.addressee = _i == 0 ? 1 : 2;
    raw_send(&raw, &header);
    raw_expect(&raw, WIRE_BYE, _i == 0 ? "not passed on" : "has not been here");
    ck_assert_uint_eq(ends[0].left, 3);
    turn_some();
    ck_assert_uint_eq(ends[1].calls + ends[0].calls, 0);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

/* Nobody speaks for another but the server. */
START_TEST(test_forged_source)
{
    struct raw raw;
    start(2, NULL);
    raw_join(&raw, &net, 3);
    struct wire_header forged = to_client(1, 1);
    if (_i == 0)
        forged.source = 2;
    else
        forged.incarnation = 2;
    raw_send(&raw, &forged);
    raw_expect(&raw, WIRE_BYE, _i == 0 ? "the source is not" : "the incarnation is not");
    turn_some();
    ck_assert_uint_eq(ends[1].calls, 0);
    ck_assert_uint_eq(ends[0].left, 3);
    expect_answer(ask(2, 1, DO_ANSWER, 1, NULL, 0), 1);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

START_TEST(test_repeated_request)
{
    struct raw raw;
    start(1, NULL);
    raw_join(&raw, &net, 3);
    struct wire_header header = to_client(1, 1);
    raw_send(&raw, &header);
    raw_send(&raw, &header);
    turn_some();
    ck_assert_uint_eq(ends[1].calls, 1);
    ck_assert_uint_eq(counters_of(client(1)).duplicates, 1);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

/* ---- no room ---- */

/* A destination that takes nothing: what waits for it is bounded, the rest is answered, others are served. */
START_TEST(test_a_destination_takes_nothing)
{
    enum { CALLS = 790, BYTES = 9000 };
    static const uint8_t bytes[BYTES];
    static struct future *futures[CALLS];
    struct raw raw;
    start(2, NULL);
    raw_join(&raw, &net, 3);
    for (unsigned i = 0; i < CALLS; i++) {
        futures[i] = ask(1, 3, DO_ANSWER, 1 + i, bytes, BYTES);
        if (i % 50 == 0)
            net_turn(&net);
    }
    UNTIL(future_done(futures[CALLS - 1]), net_turn(&net));
    net_expect_failure(&net, futures[CALLS - 1], STATUS_BUSY, "too much waits for worker 3");
    ck_assert_uint_eq(net.server->sessions[1].passing_held.messages, PASSING_MAX);
    expect_answer(ask(1, 2, DO_ANSWER, 1, NULL, 0), 1);
    raw_close(&raw);
    rpc_peer_died(net.server, 3, "killed");
    for (unsigned i = 0; i < CALLS - 1; i++) {
        enum status status = net_await(&net, futures[i]);
        ck_assert(status == STATUS_PEER_DIED || status == STATUS_BUSY);
        future_release(futures[i]);
    }
    ck_assert_uint_eq(net.server->sessions[1].passing_held.messages, 0);
    ck_assert_uint_eq(net.server->sessions[1].passing_held.bytes, 0);
    ck_assert_uint_eq(ends[1].left_count, 1);
    net_free(&net);
}
END_TEST

/* Whoever has all its room waiting for one that takes nothing can still end its session with that one. */
START_TEST(test_a_farewell_to_one_that_takes_nothing)
{
    enum { CALLS = 790, BYTES = 9000 };
    static const uint8_t bytes[BYTES];
    struct raw raw;
    start(2, NULL);
    raw_join(&raw, &net, 3);
    const struct rpc_session *source = &net.server->sessions[1], *idle = &net.server->sessions[3];
    for (unsigned i = 0; i < CALLS && source->passing_held.messages < PASSING_MAX; i++) {
        future_release(ask(1, 3, DO_ANSWER, 1 + i, bytes, BYTES));
        net_turn(&net);
    }
    ck_assert_uint_eq(source->passing_held.messages, PASSING_MAX);
    rpc_peer_died(client(1), 3, "not needed any more");
    UNTIL(source->passing_held.messages < PASSING_MAX || !source->is_live, net_turn(&net));
    ck_assert(source->is_live && idle->is_live);
    expect_answer(ask(1, 2, DO_ANSWER, 1, NULL, 0), 1);
    struct answer answer = {.header = {.kind = WIRE_REQUEST}};
    for (unsigned i = 0; i < CALLS && answer.header.kind == WIRE_REQUEST; i++) {
        net_turn(&net);
        uint8_t frames[2][BYTES];
        UNTIL(zmq_recv(raw.socket, frames[0], BYTES, ZMQ_DONTWAIT) >= 0, net_turn(&net));
        const int length = zmq_recv(raw.socket, frames[1], BYTES, ZMQ_DONTWAIT);
        ck_assert_int_ge(length, 0);
        ck_assert_int_eq(wire_decode(&answer.header, frames[0], WIRE_HEADER_BYTES, (size_t)length, NULL),
                         STATUS_OK);
    }
    ck_assert_int_eq(answer.header.kind, WIRE_BYE);
    ck_assert_uint_eq(source->passing_held.messages, 0);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

/* A body of which only the beginning found room: its request fails, what follows is not disturbed. */
START_TEST(test_no_room_for_a_body)
{
    static const uint8_t bytes[3 << 20];
    start(1, NULL);
    struct held_count *held = &net.server->sessions[1].passing_held;
    held->bytes = RPC_BODY_BYTES_MAX - (2 << 20);
    net_expect_failure(&net, ask(1, 2, DO_ANSWER, 1, bytes, sizeof bytes), STATUS_BUSY, "too much waits");
    ck_assert_uint_eq(held->messages, 2);
    held->bytes = 2 << 20;
    struct future *next = ask(1, 2, DO_ANSWER, 1, bytes, sizeof bytes);
    join(2, NULL);
    expect_answer(next, 1);
    ck_assert_uint_eq(ends[2].calls, 1);
    ck_assert_uint_eq(held->bytes + held->messages, 0);
    ck_assert_uint_eq(ends[1].left_count + ends[2].left_count, 0);
    net_free(&net);
}
END_TEST

/* An answer that is left out would strand whoever waits for it. */
START_TEST(test_no_room_for_an_answer)
{
    struct raw raw;
    start(1, NULL);
    raw_join(&raw, &net, 3);
    net.server->sessions[3].passing_held.messages = PASSING_MAX;
    struct wire_header reply = to_client(1, 2);
    reply.kind = WIRE_REPLY;
    reply.left_us = 0;
    raw_send(&raw, &reply);
    raw_expect(&raw, WIRE_BYE, "not taken");
    raw_close(&raw);
    net_free(&net);
}
END_TEST

/* A client that reads nothing fills the pool: each of its requests to one who is gone is answered, and the
 * answers wait. Whoever then needs an object of the pool pays nothing: worker 1, that is slow for a moment
 * and is to be told something too, and worker 4, whose answer to worker 1 has to wait. */
static size_t free_objects(void)
{
    size_t count = 0;
    for (const struct rpc_request *free = net.server->free_requests; free != NULL; free = free->next)
        count++;
    return count;
}

static void send_and_turn(struct raw *raw, const struct wire_header *header, size_t count)
{
    const uint64_t received = counters_of(net.server).received + count;
    for (size_t i = 0; i < count; i++)
        raw_send(raw, header);
    UNTIL(counters_of(net.server).received >= received, rpc_turn(net.server, net_in_ms(1)));
}

START_TEST(test_a_client_that_reads_nothing)
{
    struct raw raws[5];
    start(0, NULL);
    for (uint16_t i = 1; i <= 4; i++)
        raw_join(&raws[i], &net, i);
    rpc_peer_died(net.server, 2, "killed");
    const struct rpc_session *slow = &net.server->sessions[1], *idle = &net.server->sessions[3],
                             *other = &net.server->sessions[4];
    struct wire_header request = to_client(1, 2), reply = to_client(1, 1);
    request.source = 1;
    while (slow->held.count == 0)
        send_and_turn(&raws[1], &request, 20);
    request.source = 3;
    for (size_t left = free_objects(); left > 0; left = free_objects())
        send_and_turn(&raws[3], &request, left < 100 ? left : 100);
    ck_assert_uint_gt(idle->held.count, 1000);
    ck_assert_uint_eq(ends[0].left_count, 1);
    reply.kind = WIRE_REPLY;
    reply.source = 4;
    reply.left_us = 0;
    request.source = 1;
    if (_i == 0)
        send_and_turn(&raws[1], &request, 1);
    else
        send_and_turn(&raws[4], &reply, 1);
    UNTIL(ends[0].left_count >= 2, rpc_turn(net.server, net_in_ms(1)));
    ck_assert(slow->is_live && other->is_live);
    ck_assert_uint_eq(ends[0].left, 3);
    ck_assert_int_eq(ends[0].why, STATUS_INVALID);
    ck_assert_str_eq(ends[0].text, "its answers are not taken");
    for (unsigned i = 0; i < 100; i++)
        send_and_turn(&raws[3], &request, 1);
    while (slow->held.count > 0)
        raw_expect(&raws[1], WIRE_BYE, "");
    ck_assert(slow->is_live && other->is_live);
    ck_assert_uint_eq(ends[0].left_count, 2);
    for (unsigned i = 1; i <= 4; i++)
        raw_close(&raws[i]);
    net_free(&net);
}
END_TEST

/* Sends `count` requests, the first of number `id`; the number of the next. */
static uint64_t ask_client(struct raw *raw, uint16_t source, uint16_t destination, uint64_t id,
                           unsigned count)
{
    struct wire_header header = to_client(id, destination);
    header.source = source;
    header.tensor_count = 1;
    header.tensors[0] = (struct wire_tensor){WIRE_U8, 1, {64}};
    header.payload_bytes = 64;
    for (unsigned i = 0; i < count; i++, header.request++)
        raw_send(raw, &header);
    net_turn(&net);
    return header.request;
}

static void use_up_the_bytes(struct raw *slow, struct raw *idle)
{
    enum { ANSWERS = 300 };
    const struct rpc_session *asker = &net.server->sessions[2];
    const uint32_t wanted = asker->held.count + ANSWERS;
    ask_client(slow, 2, 3, 1, ANSWERS);
    turn_some();
    for (uint64_t id = 1; id <= ANSWERS; id++) {
        struct wire_header reply = to_client(id, 2);
        reply.kind = WIRE_REPLY;
        reply.left_us = 0;
        raw_send(idle, &reply);
    }
    UNTIL(asker->held.count >= wanted, net_turn(&net));
    net.server->sessions[1].returning_held.bytes = RPC_BODY_BYTES_MAX;
}

/* It asks other clients and takes no answer: whoever answers pays nothing. Many answers wait; or many bytes
 * of one who answers, and then those for worker 2, of which more wait, are not the cause: they are another's.
 */
START_TEST(test_a_client_that_takes_no_answers)
{
    struct raw slow, idle;
    struct answer answer = {.header = {.source = 0}};
    uint64_t id = 1, slow_id = 1;
    start(1, NULL);
    raw_join(&slow, &net, 2);
    raw_join(&idle, &net, 3);
    const struct rpc_session *sessions = net.server->sessions;
    while (sessions[2].held.count == 0)
        slow_id = ask_client(&slow, 2, 1, slow_id, 1);
    while (ends[0].left_count == 0 && (_i == 0 || sessions[3].held.count < 100))
        id = ask_client(&idle, 3, 1, id, 20);
    if (_i == 1) {
        use_up_the_bytes(&slow, &idle);
        slow_id = ask_client(&slow, 2, 1, slow_id, 1);
    }
    UNTIL(ends[0].left_count != 0, net_turn(&net));
    ck_assert_uint_eq(ends[0].left, 3);
    ck_assert_str_eq(ends[0].text, "its answers are not taken");
    for (uint64_t next = 1; next < slow_id; next += answer.header.source == 1) {
        net_turn(&net);
        ck_assert(raw_receive(&slow, &answer, 5000));
        ck_assert(answer.header.source == 3 || answer.header.kind == WIRE_REPLY);
        ck_assert(answer.header.source == 3 || answer.header.request == next);
    }
    ck_assert_uint_eq(ends[0].left_count, 1);
    ck_assert_uint_eq(ends[1].left_count, 1);
    raw_close(&slow);
    raw_close(&idle);
    net_free(&net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_forward");
    TCase *calls = tcase_create("calls"), *bad = tcase_create("bad");
    tcase_add_test(calls, test_both_ways);
    tcase_add_test(calls, test_bodies);
    tcase_add_test(calls, test_lent_between_clients);
    tcase_add_test(calls, test_before_it_has_joined);
    tcase_set_timeout(calls, 60);
    suite_add_tcase(suite, calls);
    tcase_add_loop_test(bad, test_bad_message_to_a_client, 0,
                        (int)(sizeof bad_messages / sizeof *bad_messages));
    tcase_add_loop_test(bad, test_forged_source, 0, 2);
    tcase_add_loop_test(bad, test_made_up_addressee, 0, 2);
    tcase_add_test(bad, test_repeated_request);
    tcase_add_test(bad, test_a_destination_takes_nothing);
    tcase_add_test(bad, test_a_farewell_to_one_that_takes_nothing);
    tcase_add_test(bad, test_no_room_for_a_body);
    tcase_add_test(bad, test_no_room_for_an_answer);
    tcase_add_loop_test(bad, test_a_client_that_reads_nothing, 0, 2);
    tcase_add_loop_test(bad, test_a_client_that_takes_no_answers, 0, 2);
    tcase_set_timeout(bad, 60);
    suite_add_tcase(suite, bad);
    return suite_run(suite);
}
