/* Bodies of any size: tensors that are lent, bodies that come in pieces, order behind them, and peers that
 * get either wrong. Client 1 lends out of its own segment; the test's process holds the memory of both ends.
 * It sets counts inside of the rpc, so it includes the files that have them. */
#include "test/worker/net/raw_peer.h"
#include "test/workplace.h"
#include "worker/net/rpc.c"          // NOLINT(bugprone-suspicious-include): counts inside are set
#include "worker/net/rpc_sessions.c" // NOLINT(bugprone-suspicious-include): counts inside are set

#include <fcntl.h>
#include <sys/mman.h>

enum { SEGMENT_BYTES = 1 << 20, LENT_BYTES = RPC_LEND_BYTES, BODY_BYTES = (3 << 20) + 5, SEEN_MAX = 512 };

/* ---- a server that looks at what comes ---- */

struct seen {
    unsigned calls, left_count;
    uint64_t order[SEEN_MAX];
    const void *data[WIRE_TENSORS_MAX];
    uint8_t lent;
    uint32_t sum;
    struct rpc_request *kept;
    bool keeps;
};

static uint32_t sum_of(const void *data, size_t bytes)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < bytes; i++)
        sum = sum * 31 + ((const uint8_t *)data)[i];
    return sum;
}

static uint32_t sum_of_message(const struct rpc_message *message)
{
    uint32_t sum = 0;
    for (unsigned i = 0; i < message->tensor_count; i++)
        sum = sum * 17 + sum_of(message->data[i], wire_tensor_bytes(&message->tensors[i]));
    return sum;
}

static void on_object(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    struct seen *seen = context;
    seen->order[seen->calls++ % SEEN_MAX] = message->args[0];
    memcpy(seen->data, message->data, sizeof seen->data);
    seen->lent = message->lent;
    seen->sum = sum_of_message(message);
    if (seen->keeps)
        seen->kept = request;
    else
        rpc_reply(request, message);
}

static void on_seen_left(void *context, uint16_t worker, enum status why, const char *text)
{
    struct seen *seen = context;
    (void)worker, (void)why, (void)text;
    seen->left_count++;
}

static const struct rpc_method any_method[] = {
    {.method = METHOD_OBJECT, .callers = UINT8_MAX, .any_tensors = true, .handler = on_object}};

/* The memory files of workers 0 to 2, where the supervisor puts them; before any socket is made. */
static void make_segments(struct segment *segments)
{
    struct error error = {0};
    for (uint16_t i = 0; i < 3; i++) {
        int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING), place = SEGMENT_FD_FIRST + i;
        ck_assert(fd == place || fcntl(place, F_GETFD) < 0);
        if (fd != place) {
            ck_assert_int_eq(dup2(fd, place), place);
            close(fd);
        }
        ck_assert_int_eq(segment_create(&segments[i], i, SEGMENT_BYTES, &error), STATUS_OK);
    }
}

static void start(struct net *net, struct seen *seen, struct segment *segments, unsigned pending_max)
{
    *seen = (struct seen){0};
    struct rpc_config config = net_server_config(NULL, 0, seen);
    config.left = on_seen_left;
    config.outbox = segments == NULL ? NULL : &segments[0];
    config.pending_max = config.incoming_max = pending_max;
    net_serve(net, &config);
    rpc_add_methods(net->server, any_method, 1, seen);
    config = net_client_config(1, NULL, 0, NULL);
    config.outbox = segments == NULL ? NULL : &segments[1];
    config.pending_max = config.incoming_max = pending_max;
    net_join(net, &config);
    rpc_add_methods(net->clients[0], any_method, 1, seen);
}

static struct future *send_to(struct rpc *from, uint16_t to, const struct rpc_message *message)
{
    struct future *future = NULL;
    struct error error = {0};
    enum status status = rpc_call_async(from, to, METHOD_OBJECT, message, MONOTIME_NEVER, &future, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return future;
}

static void fill(uint8_t *bytes, size_t count, uint32_t seed)
{
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
}

/* ---- lent ---- */

/* Lent are the bytes at a multiple of 64 in the outbox, from 64 KiB on; everything else travels. */
START_TEST(test_lent)
{
    static uint8_t outside[LENT_BYTES];
    struct segment segments[3];
    struct net net;
    struct seen seen;
    make_segments(segments);
    start(&net, &seen, segments, 4);
    uint8_t *mine = segments[1].data;
    fill(mine, SEGMENT_BYTES, 1);
    struct rpc_message message = {.tensor_count = 4,
                                  .tensors = {{WIRE_U8, 1, .dims = {LENT_BYTES}},
                                              {WIRE_U8, 1, .dims = {LENT_BYTES - 1}},
                                              {WIRE_F32, 2, .dims = {2, LENT_BYTES / 8}},
                                              {WIRE_U8, 1, .dims = {LENT_BYTES}}},
                                  .data = {mine + 64, mine + 128, mine + 4 * LENT_BYTES + 4, outside}};
    struct future *future = send_to(net.clients[0], 0, &message);
    uint8_t at_first = mine[64];
    mine[64] ^= 0xff; // the owner's memory is what is looked at
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    ck_assert_uint_eq(seen.lent, 1);
    ck_assert_uint_eq(seen.sum, sum_of_message(&message));
    ck_assert_uint_ne(at_first, mine[64]);
    const struct rpc_message *value = future_value(future);
    ck_assert_uint_eq(value->lent, 0); // it answered with the memory of another
    ck_assert_uint_eq(sum_of_message(value), sum_of_message(&message));
    future_release(future);
    ck_assert_uint_eq(counters_of(net.server).bad, 0);
    net_free(&net);
}
END_TEST

START_TEST(test_lent_reply_and_all_four)
{
    struct segment segments[3];
    struct net net;
    struct seen seen;
    make_segments(segments);
    start(&net, &seen, segments, 4);
    fill(segments[0].data, SEGMENT_BYTES, 2);
    seen.keeps = true;
    struct future *future = send_to(net.clients[0], 0, &(struct rpc_message){0});
    while (seen.kept == NULL)
        net_turn(&net);
    struct rpc_message message = {.args = {9}, .tensor_count = 4};
    for (unsigned i = 0; i < 4; i++) {
        message.tensors[i] = (struct wire_tensor){WIRE_U8, 1, .dims = {SEGMENT_BYTES - 64 * i}};
        message.data[i] = segments[0].data + 64 * i;
    }
    rpc_reply(seen.kept, &message);
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    const struct rpc_message *value = future_value(future);
    ck_assert_uint_eq(value->lent, 15);
    ck_assert_uint_eq(value->args[0], 9);
    ck_assert_uint_eq(sum_of_message(value), sum_of_message(&message));
    future_release(future);
    net_free(&net);
}
END_TEST

/* An answer that no message can carry is a failure, whoever made it so large: the one who asked is told why,
 * and the session stands. Nobody looks at the bytes. */
START_TEST(test_answers_larger_than_messages)
{
    enum { HALF = 300 << 20 };
    static const struct {
        struct rpc_message value;
        const char *words;
    } answers[] = {
        {{.tensor_count = 1, .tensors = {{WIRE_F32, 3, .dims = {13422, 1, 10000}}}},
         "an answer of worker 0 cannot be sent: tensor 0: more than 536870912 bytes"},
        {{.tensor_count = 2, .tensors = {{WIRE_U8, 1, .dims = {HALF}}, {WIRE_U8, 2, .dims = {1, HALF}}}},
         "cannot be sent: 629145600 bytes travel, at most 536870912"}};
    struct segment segments[3];
    struct net net;
    struct seen seen;
    make_segments(segments);
    start(&net, &seen, segments, 4);
    for (unsigned i = 0; i < 2; i++) {
        seen.keeps = true;
        seen.kept = NULL;
        struct future *future = send_to(net.clients[0], 0, &(struct rpc_message){0});
        while (seen.kept == NULL)
            net_turn(&net);
        struct rpc_message value = answers[i].value;
        for (unsigned n = 0; n < value.tensor_count; n++)
            value.data[n] = segments[0].data + SEGMENT_BYTES - 64;
        rpc_reply(seen.kept, &value);
        net_expect_failure(&net, future, STATUS_INVALID, answers[i].words);
    }
    struct error error = {0};
    struct future *none;
    struct rpc_message large = answers[0].value;
    large.data[0] = segments[1].data;
    ck_assert_int_eq(rpc_call_async(net.clients[0], 0, METHOD_OBJECT, &large, MONOTIME_NEVER, &none, &error),
                     STATUS_INVALID);
    ck_assert_str_eq(error.text, "a request to worker 0 cannot be sent: tensor 0: more than 536870912 bytes");
    ck_assert_uint_eq(seen.left_count, 0);
    net_free(&net);
}
END_TEST

static struct wire_header lending_request(uint64_t place, uint32_t bytes)
{
    return (struct wire_header){.kind = WIRE_REQUEST,
                                .method = METHOD_OBJECT,
                                .source = 2,
                                .incarnation = 1,
                                .generation = 1,
                                .request = 1,
                                .left_us = UINT64_MAX,
                                .tensor_count = 1,
                                .tensors = {{WIRE_U8, 1, .dims = {bytes}}},
                                .places = {place + 1}};
}

static const struct {
    uint64_t place;
    uint32_t bytes;
} outside_places[] = {
    {SEGMENT_BYTES, 1},    {64, SEGMENT_BYTES},    {SEGMENT_BYTES - 64, 65},
    {UINT64_MAX - 63, 64}, {UINT64_C(1) << 63, 1}, {0, 512 << 20},
};

START_TEST(test_lent_outside)
{
    struct segment segments[3];
    struct net net;
    struct seen seen;
    struct raw raw;
    make_segments(segments);
    start(&net, &seen, segments, 4);
    raw_join(&raw, &net, 2);
    struct wire_header header = lending_request(outside_places[_i].place, outside_places[_i].bytes);
    raw_send(&raw, &header);
    raw_expect(&raw, WIRE_BYE, "outside of the segment");
    ck_assert_uint_eq(seen.calls, 0);
    ck_assert_uint_eq(seen.left_count, 1);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

START_TEST(test_lent_where_nothing_is)
{
    struct net net;
    struct seen seen;
    struct raw raw;
    start(&net, &seen, NULL, 4);
    raw_join(&raw, &net, 2);
    struct wire_header header = lending_request(0, 64);
    raw_send(&raw, &header);
    raw_expect(&raw, WIRE_BYE, "is lent");
    ck_assert_uint_eq(seen.calls, 0);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

/* ---- pieces ---- */

START_TEST(test_pieces_both_ways)
{
    struct net net;
    struct seen seen;
    start(&net, &seen, NULL, 8);
    uint8_t *bytes = malloc(BODY_BYTES);
    float small[3] = {1, 2, 3};
    fill(bytes, BODY_BYTES, 3);
    struct rpc_message message = {.tensor_count = 3,
                                  .tensors = {{WIRE_F32, 1, .dims = {3}},
                                              {WIRE_U8, 1, .dims = {BODY_BYTES}},
                                              {WIRE_U8, 2, .dims = {5, 200000}}},
                                  .data = {small, bytes, bytes + 1000}};
    for (unsigned i = 0; i < 4; i++) {
        struct future *up = send_to(net.clients[0], 0, &message), *down = send_to(net.server, 1, &message);
        ck_assert_int_eq(net_await(&net, up), STATUS_OK);
        ck_assert_int_eq(net_await(&net, down), STATUS_OK);
        ck_assert_uint_eq(seen.sum, sum_of_message(&message));
        ck_assert_uint_eq(sum_of_message(future_value(up)), sum_of_message(&message));
        ck_assert_uint_eq(sum_of_message(future_value(down)), sum_of_message(&message));
        future_release(up);
        future_release(down);
    }
    ck_assert_uint_eq(counters_of(net.server).bad + counters_of(net.clients[0]).bad, 0);
    free(bytes);
    net_free(&net);
}
END_TEST

/* A queue that is full already: the body waits whole, and what is sent after it stays behind it; likewise the
 * answers. */
START_TEST(test_order_behind_a_body)
{
    enum { BEFORE = 250, AFTER = 20, CALLS = BEFORE + 1 + AFTER, SMALL_BYTES = 9000 };
    struct net net;
    struct seen seen;
    start(&net, &seen, NULL, CALLS);
    uint8_t *bytes = malloc(BODY_BYTES);
    fill(bytes, BODY_BYTES, 4);
    struct future *futures[CALLS];
    for (uint64_t i = 0; i < CALLS; i++) {
        uint32_t count = i == BEFORE ? BODY_BYTES : SMALL_BYTES;
        struct rpc_message message = {
            .args = {i}, .tensor_count = 1, .tensors = {{WIRE_U8, 1, .dims = {count}}}, .data = {bytes}};
        futures[i] = send_to(net.clients[0], 0, &message);
    }
    ck_assert_uint_gt(net.clients[0]->sessions->held_total, AFTER);
    uint32_t sum = sum_of(bytes, BODY_BYTES);
    memset(bytes, 0, BODY_BYTES);
    for (unsigned i = 0; i < CALLS; i++) {
        ck_assert_int_eq(net_await(&net, futures[i]), STATUS_OK);
        ck_assert_uint_eq(future_value(futures[i])->args[0], i);
    }
    ck_assert_uint_eq(sum_of_message(future_value(futures[BEFORE])), sum);
    for (unsigned i = 0; i < CALLS; i++) {
        ck_assert_uint_eq(seen.order[i], i);
        future_release(futures[i]);
    }
    free(bytes);
    net_free(&net);
}
END_TEST

/* ---- limits ---- */

static struct future *send_body(struct rpc *from, uint16_t to)
{
    static const uint8_t bytes[2 << 20];
    return send_to(from, to,
                   &(struct rpc_message){
                       .tensor_count = 1, .tensors = {{WIRE_U8, 1, .dims = {2 << 20}}}, .data = {bytes}});
}

/* More bodies than a session may have at a time: a status, and nobody loses anything. What others take up is
 * set rather than sent. */
START_TEST(test_bodies_beyond_the_allowance)
{
    struct net net;
    struct seen seen;
    struct error error = {0};
    struct future *future = NULL;
    start(&net, &seen, NULL, 16);
    struct bodies *of_client = &net.server->peers[1].bodies, *of_server = &net.clients[0]->peers[0].bodies;
    struct session *to_client = &net.server->sessions->table[1],
                   *to_server = &net.clients[0]->sessions->table[0];
    of_client->bytes = RPC_BODY_BYTES_MAX - (2 << 20) + 1;
    net_expect_failure(&net, send_body(net.clients[0], 0), STATUS_BUSY, "no room for a body of 2097152");
    ck_assert_uint_eq(seen.calls, 0);
    of_client->bytes--;
    of_server->bytes = RPC_BODY_BYTES_MAX;
    net_expect_failure(&net, send_body(net.clients[0], 0), STATUS_BUSY, "no room for the reply's body");
    ck_assert_uint_eq(seen.calls, 1);
    ck_assert_uint_eq(of_client->bytes, RPC_BODY_BYTES_MAX - (2 << 20));
    of_server->bytes = 0;
    to_client->body_bytes = RPC_BODY_BYTES_MAX;
    net_expect_failure(&net, send_body(net.clients[0], 0), STATUS_BUSY,
                       "too many bytes of answers wait already");
    to_client->body_bytes = 0;
    to_server->body_bytes = RPC_BODY_BYTES_MAX - 1;
    ck_assert_int_eq(rpc_call_async(net.clients[0], 0, METHOD_OBJECT,
                                    &(struct rpc_message){.tensor_count = 1,
                                                          .tensors = {{WIRE_U8, 1, .dims = {2 << 20}}},
                                                          .data = {&net}},
                                    MONOTIME_NEVER, &future, &error),
                     STATUS_BUSY);
    to_server->body_bytes = 0;
    future = send_body(net.clients[0], 0);
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    future_release(future);
    ck_assert_uint_eq(of_server->bytes, 0);
    ck_assert_uint_eq(seen.left_count, 0);
    net_free(&net);
}
END_TEST

/* ---- pieces that are wrong ---- */

static void send_piece(struct raw *raw, uint64_t id, uint64_t offset, uint32_t bytes, uint32_t total)
{
    struct wire_header piece = {.kind = WIRE_PIECE,
                                .source = 2,
                                .incarnation = 1,
                                .generation = 1,
                                .request = id,
                                .body_bytes = total,
                                .args = {offset, WIRE_REQUEST},
                                .payload_bytes = bytes};
    raw_send(raw, &piece);
}

static void send_pieced_request(struct raw *raw, uint64_t id, uint32_t total)
{
    struct wire_header request = lending_request(0, total);
    request.request = id;
    request.places[0] = 0;
    request.body_bytes = total;
    raw_send(raw, &request);
}

static void not_from_the_beginning(struct raw *raw)
{
    send_piece(raw, 1, 16, 16, 2 << 20);
}

static void a_gap(struct raw *raw)
{
    send_piece(raw, 1, 0, 16, 2 << 20);
    send_piece(raw, 1, 32, 16, 2 << 20);
}

static void an_overlap(struct raw *raw)
{
    send_piece(raw, 1, 0, 16, 2 << 20);
    send_piece(raw, 1, 8, 16, 2 << 20);
}

static void the_same_again(struct raw *raw)
{
    send_piece(raw, 1, 0, 16, 2 << 20);
    send_piece(raw, 1, 0, 16, 2 << 20);
}

static void another_length(struct raw *raw)
{
    send_piece(raw, 1, 0, 16, 2 << 20);
    send_piece(raw, 1, 16, 16, 3 << 20);
}

static void of_another_request(struct raw *raw)
{
    send_piece(raw, 1, 0, 16, 2 << 20);
    send_piece(raw, 2, 16, 16, 2 << 20);
}

static void not_whole(struct raw *raw)
{
    send_piece(raw, 1, 0, 16, 2 << 20);
    send_pieced_request(raw, 1, 2 << 20);
}

static void no_pieces(struct raw *raw)
{
    send_pieced_request(raw, 1, 2 << 20);
}

static void beyond_the_end(struct raw *raw)
{
    struct wire_header piece = {.kind = WIRE_PIECE,
                                .source = 2,
                                .incarnation = 1,
                                .generation = 1,
                                .request = 1,
                                .body_bytes = 2 << 20,
                                .args = {(2 << 20) - 16, WIRE_REQUEST},
                                .payload_bytes = 16};
    uint8_t bytes[WIRE_HEADER_BYTES], payload[17] = {0};
    wire_encode(&piece, bytes);
    bytes[80] = 17;
    raw_send_bytes(raw, bytes, sizeof bytes, payload, sizeof payload);
}

static void of_the_reply(struct raw *raw)
{
    struct wire_header reply = {.kind = WIRE_REPLY,
                                .method = METHOD_ECHO,
                                .source = 2,
                                .incarnation = 1,
                                .generation = 1,
                                .request = 1,
                                .tensor_count = 1,
                                .tensors = {{WIRE_U8, 1, .dims = {2 << 20}}},
                                .body_bytes = 2 << 20};
    raw_send(raw, &reply);
}

static const struct {
    void (*send)(struct raw *raw);
    const char *says;
} bad_pieces[] = {
    {not_from_the_beginning, "has not begun"},
    {a_gap, "out of order"},
    {an_overlap, "out of order"},
    {the_same_again, "out of order"},
    {another_length, "has not begun"},
    {of_another_request, "has not begun"},
    {not_whole, "has not come"},
    {no_pieces, "has not come"},
    {beyond_the_end, "a piece of 17 bytes"},
    {of_the_reply, "has not come"},
};

/* A body that never ends is dropped when something else comes; no offence. */
START_TEST(test_a_body_that_never_ends)
{
    struct net net;
    struct seen seen;
    struct raw raw;
    start(&net, &seen, NULL, 4);
    raw_join(&raw, &net, 2);
    send_piece(&raw, 1, 0, 16, RPC_BODY_BYTES_MAX);
    struct wire_header small = lending_request(0, 4);
    small.request = 2;
    small.places[0] = 0;
    small.payload_bytes = 4;
    raw_send(&raw, &small);
    raw_expect(&raw, WIRE_REPLY, "");
    ck_assert_uint_eq(net.server->peers[2].bodies.bytes, 0);
    send_piece(&raw, 3, 0, 16, RPC_BODY_BYTES_MAX);
    send_piece(&raw, 4, 0, 16, 2 << 20);
    while (net.server->peers[2].bodies.arriving.request != 4)
        net_turn(&net);
    ck_assert_uint_eq(net.server->peers[2].bodies.bytes, 2 << 20);
    rpc_peer_died(net.server, 2, UINT32_MAX, "killed");
    ck_assert_uint_eq(net.server->peers[2].bodies.bytes, 0);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

START_TEST(test_bad_pieces)
{
    struct net net;
    struct seen seen;
    struct raw raw;
    start(&net, &seen, NULL, 4);
    raw_join(&raw, &net, 2);
    struct future *pending = echo(net.server, 2), *good;
    raw_expect(&raw, WIRE_REQUEST, "");
    bad_pieces[_i].send(&raw);
    raw_expect(&raw, WIRE_BYE, bad_pieces[_i].says);
    net_expect_failure(&net, pending, STATUS_PEER_DIED, bad_pieces[_i].says);
    ck_assert_uint_eq(seen.calls, 0);
    ck_assert_uint_eq(seen.left_count, 1);
    ck_assert_uint_eq(counters_of(net.server).bad, 1);
    good = echo(net.clients[0], 0);
    ck_assert_int_eq(net_await(&net, good), STATUS_OK);
    future_release(good);
    raw_close(&raw);
    net_free(&net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_body");
    TCase *lent = tcase_create("lent"), *pieces = tcase_create("pieces");
    tcase_add_test(lent, test_lent);
    tcase_add_test(lent, test_lent_reply_and_all_four);
    tcase_add_test(lent, test_answers_larger_than_messages);
    tcase_add_loop_test(lent, test_lent_outside, 0, (int)(sizeof outside_places / sizeof *outside_places));
    tcase_add_test(lent, test_lent_where_nothing_is);
    suite_add_tcase(suite, lent);
    tcase_add_test(pieces, test_pieces_both_ways);
    tcase_add_test(pieces, test_order_behind_a_body);
    tcase_add_test(pieces, test_bodies_beyond_the_allowance);
    tcase_add_test(pieces, test_a_body_that_never_ends);
    tcase_add_loop_test(pieces, test_bad_pieces, 0, (int)(sizeof bad_pieces / sizeof *bad_pieces));
    tcase_set_timeout(pieces, 60);
    suite_add_tcase(suite, pieces);
    return suite_run(suite);
}
