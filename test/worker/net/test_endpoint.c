/* Sockets: addresses that are refused, files that are cleaned up, messages of two frames and of other
 * numbers, full queues, moves and waits. Each test is a process. */
#include "worker/net/endpoint.h"

#include "test/until.h"
#include "test/workplace.h"
#include "worker/net/wire.h"

#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

static const struct wire_pass pass = {"0", "let me in"};
static const struct endpoint_credentials with_pass = {.pass = &pass};

struct place {
    char folder[64], path[160], address[192];
};

static struct place place_new(void)
{
    struct place place;
    snprintf(place.folder, sizeof place.folder, "/tmp/endpoint-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(place.folder));
    snprintf(place.path, sizeof place.path, "%s/server", place.folder);
    snprintf(place.address, sizeof place.address, "ipc://%s", place.path);
    return place;
}

static struct monotime in_ms(uint64_t ms)
{
    return monotime_add_us(monotime_now(), ms * 1000);
}

static struct endpoint *bound(const char *address)
{
    struct endpoint *endpoint;
    struct error error = {0};
    enum status status = endpoint_bind(&endpoint, NULL, address, &with_pass, 8, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return endpoint;
}

static struct endpoint *connected(const char *address)
{
    struct endpoint *endpoint;
    struct error error = {0};
    enum status status = endpoint_connect(&endpoint, NULL, address, &with_pass, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    return endpoint;
}

/* Waits for one endpoint. */
static enum status wait_one(struct endpoint *endpoint, struct endpoint_watch *watches, size_t count,
                            bool sending, struct monotime until, bool *readable)
{
    return endpoint_wait(&endpoint, 1, watches, count, sending, until, readable);
}

static void expect_nothing(struct endpoint *endpoint, struct monotime deadline)
{
    struct endpoint_message none;
    bool readable;
    ck_assert_int_eq(endpoint_receive(endpoint, &none), STATUS_AGAIN);
    wait_one(endpoint, NULL, 0, false, deadline, &readable);
}

static enum status send_text(struct endpoint *endpoint, uint32_t peer, const char *header,
                             const char *payload)
{
    struct endpoint_message message;
    ck_assert_int_eq(
        endpoint_prepare(&message, peer, (const uint8_t *)header, strlen(header), strlen(payload)),
        STATUS_OK);
    memcpy(message.payload, payload, strlen(payload));
    enum status status = endpoint_send(endpoint, &message);
    if (status != STATUS_OK)
        endpoint_release(&message);
    return status;
}

/* Waits as its callers do: only after a receive that found nothing. */
static enum status receive(struct endpoint *endpoint, struct endpoint_message *message)
{
    struct monotime deadline = in_ms(10000);
    enum status status;
    while ((status = endpoint_receive(endpoint, message)) == STATUS_AGAIN &&
           monotime_before(monotime_now(), deadline)) {
        bool readable;
        ck_assert_int_eq(wait_one(endpoint, NULL, 0, false, deadline, &readable), STATUS_OK);
    }
    return status;
}

static void expect_text(struct endpoint *endpoint, const char *header, const char *payload, uint32_t *peer)
{
    struct endpoint_message message;
    ck_assert_int_eq(receive(endpoint, &message), STATUS_OK);
    ck_assert_uint_eq(message.header_bytes, strlen(header));
    ck_assert_mem_eq(message.header, header, strlen(header));
    ck_assert_uint_eq(message.payload_bytes, strlen(payload));
    ck_assert_mem_eq(message.payload, payload, strlen(payload));
    if (peer != NULL)
        *peer = message.peer;
    endpoint_release(&message);
}

/* ---- addresses and files ---- */

static void expect_bind_refused(const char *address, enum status status, const char *says)
{
    struct endpoint *endpoint = NULL;
    struct error error = {0};
    ck_assert_int_eq(endpoint_bind(&endpoint, NULL, address, &with_pass, 8, &error), status);
    ck_assert_ptr_null(endpoint);
    ck_assert_msg(strstr(error.text, says) != NULL, "\"%s\" does not say \"%s\"", error.text, says);
}

START_TEST(test_addresses)
{
    static const char *const invalid[] = {
        "", "server", "inproc://server", "ipc://", "ipc://server", "ipc://@abstract", "tcp://127.0.0.1:5555"};
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++)
        expect_bind_refused(invalid[i], STATUS_INVALID, invalid[i]);
    char address[256], path[128];
    memset(path, 'x', sizeof path);
    path[0] = '/';
    path[108] = '\0';
    snprintf(address, sizeof address, "ipc://%s", path);
    expect_bind_refused(address, STATUS_INVALID, "108 bytes");
    expect_bind_refused("ipc:///nowhere/at/all/server", STATUS_IO, "/nowhere/at/all/server");
    struct endpoint *endpoint = NULL;
    struct error error = {0};
    ck_assert_int_eq(endpoint_connect(&endpoint, NULL, "carrier-pigeon://x", &with_pass, &error),
                     STATUS_INVALID);
    ck_assert_ptr_null(endpoint);
    endpoint_free(NULL, 0);
}
END_TEST

START_TEST(test_file_that_exists)
{
    struct place place = place_new();
    FILE *file = fopen(place.path, "w");
    fputs("precious", file);
    fclose(file);
    expect_bind_refused(place.address, STATUS_BUSY, place.address);
    struct stat info;
    ck_assert_int_eq(stat(place.path, &info), 0);
    ck_assert_int_eq(info.st_size, 8);
    unlink(place.path);
    ck_assert_int_eq(symlink("/nowhere", place.path), 0);
    expect_bind_refused(place.address, STATUS_BUSY, "exists");
    unlink(place.path);
    rmdir(place.folder);
}
END_TEST

START_TEST(test_file_is_removed)
{
    struct place place = place_new();
    struct stat info;
    struct endpoint *endpoint = bound(place.address);
    ck_assert_int_eq(lstat(place.path, &info), 0);
    ck_assert(S_ISSOCK(info.st_mode));
    expect_bind_refused(place.address, STATUS_BUSY, "exists");
    endpoint_free(endpoint, 0);
    ck_assert_int_eq(lstat(place.path, &info), -1);
    ck_assert_int_eq(rmdir(place.folder), 0);
}
END_TEST

/* ---- messages ---- */

/* A connection that shows another pass is not heard, and is counted. One that shows the pass is. */
START_TEST(test_wrong_pass)
{
    static const struct wire_pass wrong[] = {
        {"0", "let me im"}, {"0", "let me in!"}, {"1", "let me in"}, {"0", "l"}};
    struct place place = place_new();
    struct endpoint *router = bound(place.address), *strangers[4], *dealer;
    for (unsigned i = 0; i < 4; i++) {
        ck_assert_int_eq(endpoint_connect(&strangers[i], NULL, place.address,
                                          &(struct endpoint_credentials){.pass = &wrong[i]}, NULL),
                         STATUS_OK);
        send_text(strangers[i], 0, "hello", "");
    }
    UNTIL(endpoint_counts(router).refused == 4, sched_yield());
    dealer = connected(place.address);
    send_text(dealer, 0, "a peer's", "");
    expect_text(router, "a peer's", "", NULL);
    struct endpoint_message message;
    ck_assert_int_eq(endpoint_receive(router, &message), STATUS_AGAIN);
    for (unsigned i = 0; i < 4; i++)
        endpoint_free(strangers[i], 0);
    endpoint_free(dealer, 0);
    endpoint_free(router, 0);
    rmdir(place.folder);
}
END_TEST

static struct host_keys keys_of(uint16_t host)
{
    static const uint8_t shared[HOST_KEY_BYTES] = "the hosts of a test share this";
    struct host_keys keys;
    host_keys_derive(&keys, shared, host, 2);
    return keys;
}

/* A host that dials before the listener has its key is not turned away for good. */
START_TEST(test_key_that_comes_late)
{
    struct error error = {0};
    struct endpoint *server, *client;
    char address[64];
    const struct host_keys all = keys_of(0), own = keys_of(1);
    struct host_keys early = all;
    memset(early.public_of_host[1], 0, HOST_KEY_BYTES);
    ck_assert_int_eq(endpoint_bind(&server, NULL, "tcp://127.0.0.1:*",
                                   &(struct endpoint_credentials){.keys = &early}, 8, &error),
                     STATUS_OK);
    snprintf(address, sizeof address, "tcp://127.0.0.1:%u", endpoint_port(server));
    ck_assert_int_eq(
        endpoint_connect(&client, NULL, address, &(struct endpoint_credentials){.keys = &own}, &error),
        STATUS_OK);
    send_text(client, 0, "hello", "");
    UNTIL(endpoint_counts(server).unproven >= 1, sched_yield());
    endpoint_admit(server, &all);
    expect_text(server, "hello", "", NULL);
    ck_assert_uint_eq(endpoint_counts(server).refused, 0);
    endpoint_free(client, 0);
    endpoint_free(server, 0);
}
END_TEST

START_TEST(test_messages_both_ways)
{
    struct place place = place_new();
    struct endpoint *router = bound(place.address), *a = connected(place.address),
                    *b = connected(place.address);
    uint32_t peer_a, peer_b;
    ck_assert_int_eq(send_text(a, 0, "from a", "payload of a"), STATUS_OK);
    expect_text(router, "from a", "payload of a", &peer_a);
    ck_assert_int_eq(send_text(b, 0, "from b", ""), STATUS_OK);
    expect_text(router, "from b", "", &peer_b);
    ck_assert_uint_ne(peer_a, peer_b);
    ck_assert_int_eq(send_text(router, peer_b, "to b", "hello b"), STATUS_OK);
    ck_assert_int_eq(send_text(router, peer_a, "to a", "hello a"), STATUS_OK);
    expect_text(a, "to a", "hello a", NULL);
    expect_text(b, "to b", "hello b", NULL);
    ck_assert_int_eq(send_text(router, peer_a + peer_b + 12345, "to nobody", ""), STATUS_NOT_FOUND);
    struct endpoint_message none;
    ck_assert_int_eq(endpoint_receive(router, &none), STATUS_AGAIN);
    endpoint_free(a, 0);
    endpoint_free(b, 0);
    endpoint_free(router, 0);
    rmdir(place.folder);
}
END_TEST

/* A message that is released never, or twice, ends the process with its last endpoint. */
START_TEST(test_released_wrongly)
{
    struct place place = place_new();
    struct endpoint *router = bound(place.address), *dealer = connected(place.address);
    struct endpoint_message message;
    ck_assert_int_eq(send_text(dealer, 0, "header", "payload"), STATUS_OK);
    ck_assert_int_eq(receive(router, &message), STATUS_OK);
    for (int i = 0; i < _i; i++)
        endpoint_release(&message);
    endpoint_free(dealer, 0);
    unlink(place.path);
    rmdir(place.folder);
    endpoint_free(router, 0);
}
END_TEST

/* After the peer is gone a send says so, when there was a receive in between. */
START_TEST(test_peer_gone)
{
    struct place place = place_new();
    struct endpoint *router = bound(place.address), *dealer = connected(place.address);
    uint32_t peer;
    send_text(dealer, 0, "x", "y");
    expect_text(router, "x", "y", &peer);
    endpoint_free(dealer, 0);
    UNTIL(send_text(router, peer, "still there?", "") == STATUS_NOT_FOUND, expect_nothing(router, in_ms(1)));
    endpoint_free(router, 0);
    rmdir(place.folder);
}
END_TEST

/* A peer that does not read fills its queue, and no other's; all that was sent arrives, in order. */
START_TEST(test_full_queue)
{
    enum { BYTES = 1 << 18 };
    struct place place = place_new();
    struct endpoint *router = bound(place.address), *slow = connected(place.address),
                    *quick = connected(place.address);
    uint32_t slow_peer, quick_peer, sent = 0;
    send_text(slow, 0, "slow", "");
    expect_text(router, "slow", "", &slow_peer);
    send_text(quick, 0, "quick", "");
    expect_text(router, "quick", "", &quick_peer);
    struct endpoint_message message;
    for (;;) {
        ck_assert_int_eq(endpoint_prepare(&message, slow_peer, (const uint8_t *)&sent, sizeof sent, BYTES),
                         STATUS_OK);
        memset(message.payload, 0, BYTES);
        enum status status = endpoint_send(router, &message);
        if (status == STATUS_AGAIN)
            break;
        ck_assert_int_eq(status, STATUS_OK);
        ck_assert_uint_lt(++sent, 3 * WIRE_QUEUE_MAX);
    }
    ck_assert_uint_ge(sent, WIRE_QUEUE_MAX);
    ck_assert_int_eq(send_text(router, quick_peer, "you", "can go"), STATUS_OK);
    expect_text(quick, "you", "can go", NULL);
    for (uint32_t i = 0; i <= sent; i++) {
        struct endpoint_message got;
        ck_assert_int_eq(receive(slow, &got), STATUS_OK);
        ck_assert_mem_eq(got.header, &i, sizeof i);
        ck_assert_uint_eq(got.payload_bytes, BYTES);
        endpoint_release(&got);
        bool readable;
        if (i + 1 == sent)
            UNTIL(endpoint_send(router, &message) == STATUS_OK,
                  wait_one(router, NULL, 0, true, in_ms(10000), &readable));
    }
    endpoint_free(slow, 0);
    endpoint_free(quick, 0);
    endpoint_free(router, 0);
    rmdir(place.folder);
}
END_TEST

START_TEST(test_payload_over_the_limit)
{
    struct place place = place_new();
    struct endpoint *router = bound(place.address), *dealer = connected(place.address);
    struct endpoint_message message, got;
    for (unsigned over = 0; over < 2; over++) {
        size_t bytes = WIRE_PAYLOAD_BYTES_MAX + over;
        ck_assert_int_eq(endpoint_prepare(&message, 0, (const uint8_t *)"h", 1, bytes), STATUS_OK);
        memset(message.payload, 7, bytes);
        ck_assert_int_eq(endpoint_send(dealer, &message), STATUS_OK);
        enum status status = receive(router, &got);
        ck_assert_int_eq(status, over == 0 ? STATUS_OK : STATUS_INVALID);
        if (status == STATUS_OK)
            endpoint_release(&got);
    }
    ck_assert_uint_ne(got.peer, 0);
    endpoint_free(dealer, 0);
    endpoint_free(router, 0);
    rmdir(place.folder);
}
END_TEST

/* ---- waiting ---- */

START_TEST(test_wait)
{
    struct place place = place_new();
    struct endpoint *router = bound(place.address), *dealer = connected(place.address);
    struct endpoint_message message;
    bool readable;
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    struct endpoint_watch watches[2] = {{.fd = pipes[0]}, {.fd = pipes[0]}};
    struct monotime until = in_ms(20);
    do {
        ck_assert_int_eq(endpoint_receive(router, &message), STATUS_AGAIN);
        ck_assert_int_eq(wait_one(router, watches, 2, false, until, &readable), STATUS_OK);
        ck_assert(!watches[0].ready && !watches[1].ready);
    } while (monotime_before(monotime_now(), until));
    ck_assert_int_eq(write(pipes[1], "x", 1), 1);
    ck_assert_int_eq(wait_one(router, watches, 2, false, MONOTIME_NEVER, &readable), STATUS_OK);
    ck_assert(watches[0].ready && watches[1].ready);
    send_text(dealer, 0, "a", "b");
    char byte;
    ck_assert_int_eq(read(pipes[0], &byte, 1), 1);
    UNTIL(readable, wait_one(router, watches, 2, false, MONOTIME_NEVER, &readable));
    ck_assert_int_eq(write(pipes[1], "x", 1), 1);
    ck_assert_int_eq(wait_one(router, watches, 2, false, (struct monotime){0}, &readable), STATUS_OK);
    ck_assert(readable && watches[0].ready);
    expect_text(router, "a", "b", NULL);
    close(pipes[0]);
    close(pipes[1]);
    endpoint_free(dealer, 0);
    endpoint_free(router, 0);
    rmdir(place.folder);
}
END_TEST

/* Two that share a context: a sleep ends for a message to either, and one outlives the other. */
START_TEST(test_wait_any)
{
    struct place place = place_new();
    struct endpoint *router = bound(place.address), *dealers[2] = {connected(place.address), NULL};
    struct endpoint_message message;
    struct error error = {0};
    bool readable = false;
    uint32_t peers[2];
    ck_assert_int_eq(endpoint_connect(&dealers[1], dealers[0], place.address, &with_pass, &error), STATUS_OK);
    for (unsigned i = 0; i < 2; i++) {
        send_text(dealers[i], 0, "hello", "");
        expect_text(router, "hello", "", &peers[i]);
    }
    for (unsigned i = 0; i < 200; i++) {
        unsigned to = i / 3 % 2;
        for (unsigned j = 0; j < 2; j++)
            ck_assert_int_eq(endpoint_receive(dealers[j], &message), STATUS_AGAIN);
        send_text(router, peers[to], "a", "b");
        for (enum status status = STATUS_AGAIN; status == STATUS_AGAIN;) {
            ck_assert_int_eq(endpoint_wait(dealers, 2, NULL, 0, false, MONOTIME_NEVER, &readable), STATUS_OK);
            status = endpoint_receive(dealers[to], &message);
        }
        endpoint_release(&message);
        ck_assert_int_eq(endpoint_receive(dealers[1 - to], &message), STATUS_AGAIN);
    }
    endpoint_free(dealers[0], 0);
    send_text(router, peers[1], "still", "here");
    expect_text(dealers[1], "still", "here", NULL);
    endpoint_free(dealers[1], 0);
    endpoint_free(router, 0);
    rmdir(place.folder);
}
END_TEST

/* Small frames lie in the struct itself, large ones behind a pointer: neither is left where it was. */
START_TEST(test_a_moved_message_leaves_nothing_behind)
{
    static const size_t sizes[] = {3, 1000};
    struct endpoint_message from, to;
    const uint8_t header[4] = {1, 2, 3, 4};
    ck_assert_int_eq(endpoint_prepare(&from, 7, header, sizeof header, sizes[_i]), STATUS_OK);
    memset(from.payload, 'x', sizes[_i]);
    endpoint_move(&to, &from);
    for (unsigned i = 0; i < 2; i++)
        ck_assert_uint_eq(zmq_msg_size((zmq_msg_t *)from.frames[i]), 0);
    ck_assert_uint_eq(to.peer, 7);
    ck_assert_uint_eq(to.header_bytes, sizeof header);
    ck_assert_mem_eq(to.header, header, sizeof header);
    ck_assert_uint_eq(to.payload_bytes, sizes[_i]);
    ck_assert_uint_eq(to.payload[sizes[_i] - 1], 'x');
    endpoint_release(&to);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("endpoint");
    TCase *tcase = tcase_create("endpoint");
    tcase_add_test(tcase, test_wrong_pass);
    tcase_add_test(tcase, test_key_that_comes_late);
    tcase_add_test(tcase, test_addresses);
    tcase_add_test(tcase, test_file_that_exists);
    tcase_add_test(tcase, test_file_is_removed);
    tcase_add_test(tcase, test_messages_both_ways);
    tcase_add_loop_test_raise_signal(tcase, test_released_wrongly, SIGABRT, 0, 1);
    tcase_add_loop_test(tcase, test_released_wrongly, 1, 2);
    tcase_add_loop_test_raise_signal(tcase, test_released_wrongly, SIGABRT, 2, 3);
    tcase_add_test(tcase, test_peer_gone);
    tcase_add_test(tcase, test_full_queue);
    tcase_add_test(tcase, test_payload_over_the_limit);
    tcase_add_test(tcase, test_wait);
    tcase_add_test(tcase, test_wait_any);
    tcase_add_loop_test(tcase, test_a_moved_message_leaves_nothing_behind, 0, 2);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
