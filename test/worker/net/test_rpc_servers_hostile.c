/* One server of several that breaks the rules, and workers that say HELLO to a server they have no business
 * with: each costs its own session alone. */
#include "test/worker/net/net_cluster.h"
#include "test/worker/net/raw_peer.h"
#include "test/workplace.h"

/* ---- HELLO to a server that has others below it ---- */

START_TEST(test_hello_refused)
{
    struct cluster cluster;
    cluster_start(&cluster, 1);
    static const struct {
        uint16_t source, destination;
        uint8_t role;
        const char *says;
    } cases[] = {
        {0, 1, WIRE_ROLE_PSERVER, "a worker dials only lower numbers"},
        {1, 1, WIRE_ROLE_PSERVER, "no such worker"},
        {MEMBERS, 1, WIRE_ROLE_TRAINER, "no such worker"},
        {UINT16_MAX, 1, WIRE_ROLE_TRAINER, "no such worker"},
        {4, 1, WIRE_ROLE_PSERVER, "not the role"},
        {4, 1, WIRE_ROLE_OBSERVER, "not the role"},
        {2, 1, WIRE_ROLE_TRAINER, "not the role"},
        {4, 0, WIRE_ROLE_TRAINER, "another worker of the job"},
        {4, 2, WIRE_ROLE_TRAINER, "another worker of the job"},
        {2, 1, WIRE_ROLE_PSERVER, "here already"},
        {3, 1, WIRE_ROLE_TRAINER, "here already"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct raw raw;
        struct wire_header header = hello(cases[i].source, 1);
        header.destination = cases[i].destination;
        header.role = cases[i].role;
        raw_open_to(&raw, ZMQ_DEALER, cluster.addresses[1], 1, cluster.members[1].rpc);
        raw_send(&raw, &header);
        raw_expect(&raw, WIRE_BYE, cases[i].says);
        raw_close(&raw);
    }
    ck_assert_uint_eq(cluster.members[1].left, 0);
    cluster_expect(&cluster, call(&cluster.members[SERVERS], 1, METHOD_GET_MODEL, 3), 1, 3);
    cluster_expect(&cluster, call(&cluster.members[0], 1, METHOD_SAVE_SHARD, 4), 1, 4);
    cluster_free(&cluster);
}
END_TEST

/* ---- a client of a real server 0 and of a bare socket that claims to be server 1 ---- */

struct bare {
    struct cluster cluster;
    struct raw raw; /* a ROUTER */
    uint8_t id[8];  /* the client's routing id there */
    size_t id_bytes;
    pthread_t thread;
    struct error error;
    enum status status;
};

static void *join_both(void *arg)
{
    struct bare *bare = arg;
    struct member *client = &bare->cluster.members[SERVERS];
    struct rpc_config config = cluster_config(client);
    struct rpc_address servers[] = {cluster_address(&bare->cluster, 0), cluster_address(&bare->cluster, 1)};
    bare->status = net_connect(&client->rpc, &config, servers, 2, net_in_ms(10000), &bare->error);
    return NULL;
}

/* Server 0 welcomes the client; its HELLO to server 1 is taken and not answered yet. */
static void bare_start(struct bare *bare)
{
    memset(bare, 0, sizeof *bare);
    cluster_make_addresses(&bare->cluster);
    struct member *server = &bare->cluster.members[0];
    struct rpc_config config = cluster_config(server);
    cluster_serve(&bare->cluster, 0, &config);
    raw_open_to(&bare->raw, ZMQ_ROUTER, bare->cluster.addresses[1], 1, NULL);
    ck_assert_int_eq(pthread_create(&bare->thread, NULL, join_both, bare), 0);
    while ((server->joined & 1u << SERVERS) == 0)
        rpc_turn(server->rpc, net_in_ms(10));
    struct wire_header header;
    bare->id_bytes = raw_take_greeting(&bare->raw, bare->id, &header);
    ck_assert_int_eq(header.role, WIRE_ROLE_TRAINER);
    ck_assert_uint_eq(header.source, SERVERS);
    ck_assert_uint_eq(header.destination, 1);
}

static void bare_send(struct bare *bare, const struct wire_header *header)
{
    ck_assert_int_ge(zmq_send(bare->raw.socket, bare->id, bare->id_bytes, ZMQ_SNDMORE), 0);
    raw_send(&bare->raw, header);
}

static struct wire_header bare_header(enum wire_kind kind)
{
    return (struct wire_header){
        .kind = (uint8_t)kind, .source = 1, .destination = SERVERS, .incarnation = 4, .generation = 1};
}

/* Answers the client's HELLO as server 1 should, and waits until it has joined. */
static void bare_welcome(struct bare *bare)
{
    struct wire_header welcome = bare_header(WIRE_WELCOME);
    welcome.role = WIRE_ROLE_PSERVER;
    bare_send(bare, &welcome);
    pthread_join(bare->thread, NULL);
    ck_assert_msg(bare->status == STATUS_OK, "%s", bare->error.text);
}

static void bare_finish(struct bare *bare)
{
    raw_close(&bare->raw);
    unlink(bare->cluster.addresses[1] + strlen("ipc://"));
    cluster_free(&bare->cluster);
}

/* WELCOME counts only from the worker that was dialed, in its role, to us. */
START_TEST(test_welcome_of_another)
{
    struct bare bare;
    bare_start(&bare);
    struct wire_header welcome = bare_header(WIRE_WELCOME);
    welcome.role = WIRE_ROLE_PSERVER;
    struct wire_header wrong[4] = {welcome, welcome, welcome, welcome};
    wrong[0].source = 0;
    wrong[1].role = WIRE_ROLE_AGENT;
    wrong[2].destination = SERVERS + 1;
    wrong[3].generation = 2;
    for (unsigned i = 0; i < 4; i++)
        bare_send(&bare, &wrong[i]);
    bare_welcome(&bare);
    ck_assert_uint_eq(counters_of(bare.cluster.members[SERVERS].rpc).stale, 4);
    bare_finish(&bare);
}
END_TEST

/* The same request id is pending with both servers: only the one that was asked can answer it. */
START_TEST(test_reply_of_another)
{
    struct bare bare;
    bare_start(&bare);
    bare_welcome(&bare);
    struct member *client = &bare.cluster.members[SERVERS];
    struct future *kept = call_with(client, 0, METHOD_GET_MODEL, DO_KEEP, 6, MONOTIME_NEVER);
    struct wire_header reply = bare_header(WIRE_REPLY);
    reply.method = METHOD_GET_MODEL;
    reply.request = 1;
    bare_send(&bare, &reply);
    UNTIL(counters_of(client->rpc).stale != 0, cluster_turn(&bare.cluster));
    ck_assert_uint_eq(counters_of(client->rpc).stale, 1);
    ck_assert(!future_done(kept));
    struct future *asked = call(client, 1, METHOD_GET_MODEL, 7);
    bare_send(&bare, &reply);
    ck_assert_int_eq(cluster_await(&bare.cluster, asked), STATUS_OK);
    ck_assert(!future_done(kept));
    rpc_reply(cluster_await_kept(&bare.cluster, 0), &(struct rpc_message){.args = {0, 6}});
    cluster_expect(&bare.cluster, kept, 0, 6);
    future_release(asked);
    bare_finish(&bare);
}
END_TEST

/* A server that speaks as another loses its own session, not the other's. */
START_TEST(test_source_of_another)
{
    struct bare bare;
    bare_start(&bare);
    bare_welcome(&bare);
    struct member *client = &bare.cluster.members[SERVERS];
    struct future *pending = call(client, 1, METHOD_GET_MODEL, 7);
    struct wire_header request = bare_header(WIRE_REQUEST);
    request.method = METHOD_EVALUATE;
    request.source = 0;
    request.incarnation = 1;
    request.request = 1;
    request.left_us = UINT64_MAX;
    bare_send(&bare, &request);
    cluster_expect_failure(&bare.cluster, pending, STATUS_PEER_DIED, "the source is not the connection's");
    ck_assert_uint_eq(client->left, 1u << 1);
    ck_assert_int_eq(client->left_why, STATUS_INVALID);
    ck_assert_uint_eq(client->calls, 0);
    ck_assert_int_eq(rpc_turn(client->rpc, net_in_ms(0)), STATUS_PEER_DIED);
    cluster_expect(&bare.cluster, call(client, 0, METHOD_GET_MODEL, 8), 0, 8);
    cluster_expect(&bare.cluster, call(&bare.cluster.members[0], SERVERS, METHOD_EVALUATE, 9), SERVERS, 9);
    bare_finish(&bare);
}
END_TEST

/* Something that is not even two frames, before and after WELCOME. */
START_TEST(test_frames_of_one)
{
    struct bare bare;
    bare_start(&bare);
    ck_assert_int_ge(zmq_send(bare.raw.socket, bare.id, bare.id_bytes, ZMQ_SNDMORE), 0);
    ck_assert_int_ge(zmq_send(bare.raw.socket, "x", 1, 0), 0);
    pthread_join(bare.thread, NULL);
    ck_assert_int_eq(bare.status, STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(bare.error.text, "worker 1 ("));
    ck_assert_ptr_nonnull(strstr(bare.error.text, "not two frames"));
    bare.cluster.members[SERVERS].rpc = NULL;
    cluster_await_left(&bare.cluster, 0, 1u << SERVERS);
    bare_finish(&bare);
}
END_TEST

/* ---- a bare socket that claims to be server 0, and speaks for others ---- */

static void *join_first(void *arg)
{
    struct bare *bare = arg;
    struct member *client = &bare->cluster.members[SERVERS];
    struct rpc_config config = cluster_config(client);
    struct rpc_address server = cluster_address(&bare->cluster, 0);
    bare->status = net_connect(&client->rpc, &config, &server, 1, net_in_ms(10000), &bare->error);
    return NULL;
}

static void first_start(struct bare *bare)
{
    struct wire_header header;
    memset(bare, 0, sizeof *bare);
    cluster_make_addresses(&bare->cluster);
    raw_open(&bare->raw, ZMQ_ROUTER, bare->cluster.addresses[0], NULL);
    ck_assert_int_eq(pthread_create(&bare->thread, NULL, join_first, bare), 0);
    bare->id_bytes = raw_take_greeting(&bare->raw, bare->id, &header);
    struct wire_header welcome = bare_header(WIRE_WELCOME);
    welcome.source = 0;
    welcome.role = WIRE_ROLE_PSERVER;
    bare_send(bare, &welcome);
    pthread_join(bare->thread, NULL);
    ck_assert_int_eq(bare->status, STATUS_OK);
}

static const struct {
    uint8_t kind;
    uint16_t source, destination;
    const char *says;
} bad_routes[] = {
    {WIRE_REQUEST, 4, SERVERS, "the source is not"},
    {WIRE_REQUEST, SERVERS, SERVERS, "the source is not"},
    {WIRE_REQUEST, UINT16_MAX, SERVERS, "the source is not"},
    {WIRE_HELLO, 4, SERVERS, "the source is not"},
    {WIRE_WELCOME, 4, SERVERS, "the source is not"},
    {WIRE_REQUEST, 0, 4, "the destination is another"},
    {WIRE_BYE, 0, 2, "the destination is another"},
};

START_TEST(test_message_of_or_for_another)
{
    struct bare bare;
    first_start(&bare);
    struct member *client = &bare.cluster.members[SERVERS];
    struct wire_header bad = bare_header(bad_routes[_i].kind);
    bad.source = bad_routes[_i].source;
    bad.destination = bad_routes[_i].destination;
    bad.method = bad.kind == WIRE_REQUEST ? METHOD_ECHO : METHOD_NONE;
    bad.request = bad.kind == WIRE_REQUEST;
    bad.role = bad.kind == WIRE_HELLO || bad.kind == WIRE_WELCOME ? WIRE_ROLE_TRAINER : 0;
    bare_send(&bare, &bad);
    UNTIL((client->left & 1) != 0, rpc_turn(client->rpc, net_in_ms(1)));
    ck_assert_uint_eq(client->left, 1);
    ck_assert_int_eq(client->left_why, STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(client->left_text[0], bad_routes[_i].says));
    cluster_end(&bare.cluster, SERVERS, "the test is over", 0);
    raw_close(&bare.raw);
    unlink(bare.cluster.addresses[0] + strlen("ipc://"));
    rmdir(bare.cluster.folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_servers_hostile");
    TCase *tcase = tcase_create("hostile");
    tcase_add_test(tcase, test_hello_refused);
    tcase_add_test(tcase, test_welcome_of_another);
    tcase_add_test(tcase, test_reply_of_another);
    tcase_add_test(tcase, test_source_of_another);
    tcase_add_test(tcase, test_frames_of_one);
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, test_message_of_or_for_another, 0,
                        (int)(sizeof bad_routes / sizeof *bad_routes));
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
