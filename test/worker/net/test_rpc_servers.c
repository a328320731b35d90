/* A worker with several servers, and servers with each other: calls of all sessions at a time, in both
 * directions; a server that dies, refuses, is silent or is late; the reports to each worker. */
#include "test/worker/net/net_cluster.h"
#include "test/workplace.h"
#include "worker/job/job.h"

_Static_assert((int)RPC_DIALED_MAX >= (int)JOB_SERVERS_MAX, "a trainer can dial every server of a job");

/* ---- calls ---- */

START_TEST(test_calls_of_all_servers_at_a_time)
{
    struct cluster cluster;
    cluster_start(&cluster, CLIENTS);
    for (unsigned round = 0; round < 100; round++) {
        struct future *futures[CLIENTS][SERVERS];
        for (unsigned c = 0; c < CLIENTS; c++) {
            struct member *client = &cluster.members[SERVERS + c];
            for (unsigned s = 0; s < SERVERS; s++)
                futures[c][s] = call(client, (uint16_t)((s + round) % SERVERS), METHOD_GET_MODEL, round);
        }
        for (unsigned c = 0; c < CLIENTS; c++)
            for (unsigned s = 0; s < SERVERS; s++)
                cluster_expect(&cluster, futures[c][s], (uint16_t)((s + round) % SERVERS), round);
    }
    for (unsigned i = 0; i < MEMBERS; i++) {
        struct rpc_counters counters = counters_of_member(&cluster.members[i]);
        ck_assert_uint_eq(counters.bad + counters.stale + counters.duplicates + counters.strangers, 0);
        ck_assert_uint_eq(cluster.members[i].left, 0);
    }
    cluster_free(&cluster);
}
END_TEST

/* Servers call their clients and each other, whichever of the two has dialed. */
START_TEST(test_calls_both_ways)
{
    struct cluster cluster;
    cluster_start(&cluster, CLIENTS);
    for (unsigned i = 0; i < MEMBERS; i++)
        ck_assert_uint_eq(cluster.members[i].joined, 0x1f & ~((2u << i) - 1));
    for (unsigned from = 0; from < SERVERS; from++) {
        struct member *server = &cluster.members[from];
        for (unsigned to = 0; to < MEMBERS; to++) {
            if (to == from)
                continue;
            enum wire_method method = to < SERVERS ? METHOD_SAVE_SHARD : METHOD_EVALUATE;
            cluster_expect(&cluster, call(server, to, method, 100u * from + to), to, 100u * from + to);
            ck_assert_uint_eq(cluster.members[to].last_source, from);
        }
    }
    cluster_free(&cluster);
}
END_TEST

/* What a role may not call costs it the session with that server and no other. */
START_TEST(test_roles_of_the_roster)
{
    struct cluster cluster;
    cluster_start(&cluster, CLIENTS);
    struct member *client = &cluster.members[SERVERS];
    cluster_expect_failure(&cluster, call(client, 1, METHOD_SAVE_SHARD, 0), STATUS_PEER_DIED,
                           "not permitted");
    cluster_expect_failure(&cluster, call(&cluster.members[2], 1, METHOD_GET_MODEL, 0), STATUS_PEER_DIED,
                           "not permitted");
    ck_assert_uint_eq(cluster.members[1].left, 1u << SERVERS | 1u << 2);
    ck_assert_int_eq(cluster.members[1].left_why, STATUS_INVALID);
    cluster_expect(&cluster, call(client, 0, METHOD_GET_MODEL, 5), 0, 5);
    cluster_expect(&cluster, call(client, 2, METHOD_GET_MODEL, 6), 2, 6);
    cluster_expect(&cluster, call(&cluster.members[2], 0, METHOD_SAVE_SHARD, 7), 0, 7);
    cluster_expect(&cluster, call(&cluster.members[SERVERS + 1], 1, METHOD_GET_MODEL, 8), 1, 8);
    cluster_free(&cluster);
}
END_TEST

/* Waiting for one server serves the others' calls. */
START_TEST(test_waiting_call_serves_the_others)
{
    struct cluster cluster;
    cluster_start(&cluster, 1);
    struct member *client = &cluster.members[SERVERS];
    struct future *asked = call(&cluster.members[2], SERVERS, METHOD_EVALUATE, 9), *value;
    struct error error = {0};
    cluster_turner_start(&cluster, SERVERS);
    for (unsigned i = 0; i < 10000 && client->calls == 0; i++) {
        enum status status = rpc_call(client->rpc, 0, METHOD_GET_MODEL, &(struct rpc_message){.args = {0, i}},
                                      MONOTIME_NEVER, &value, &error);
        ck_assert_msg(status == STATUS_OK, "%s", error.text);
        ck_assert_uint_eq(future_value(value)->args[1], i);
        future_release(value);
    }
    cluster_turner_stop(&cluster);
    ck_assert_uint_eq(client->calls, 1);
    cluster_expect(&cluster, asked, SERVERS, 9);
    cluster_free(&cluster);
}
END_TEST

/* A client that sleeps is woken by any of its servers. */
START_TEST(test_any_server_wakes)
{
    struct cluster cluster;
    cluster_start(&cluster, 1);
    struct member *client = &cluster.members[SERVERS];
    for (unsigned round = 0; round < 50; round++) {
        uint16_t from = (uint16_t)(round * 2 % SERVERS);
        struct future *asked = call(&cluster.members[from], SERVERS, METHOD_EVALUATE, round);
        while (client->calls == round)
            ck_assert_int_eq(rpc_turn(client->rpc, MONOTIME_NEVER), STATUS_OK);
        cluster_expect(&cluster, asked, SERVERS, round);
    }
    cluster_free(&cluster);
}
END_TEST

/* More answers than the queues hold, to a server that takes none: they wait, each for its own socket. */
START_TEST(test_answers_wait_for_their_socket)
{
    enum { CALLS = 300, FLOATS = 20000 };
    static float floats[FLOATS];
    struct cluster cluster;
    cluster_make_addresses(&cluster);
    for (unsigned i = 0; i < SERVERS; i++) {
        struct rpc_config config = cluster_config(&cluster.members[i]);
        config.pending_max = config.incoming_max = CALLS;
        cluster_serve(&cluster, i, &config);
    }
    struct rpc_message message = {
        .tensor_count = 1, .tensors = {{WIRE_F32, 1, .dims = {FLOATS}}}, .data = {floats}};
    struct future *futures[CALLS];
    struct error error = {0};
    struct member *dialing = &cluster.members[2];
    for (unsigned sent = 0, refused = 0; sent < CALLS;) {
        message.args[1] = sent;
        enum status status = rpc_call_async(cluster.members[0].rpc, 2, METHOD_ECHO, &message, MONOTIME_NEVER,
                                            &futures[sent], &error);
        ck_assert(status == STATUS_OK || status == STATUS_BUSY);
        sent += status == STATUS_OK;
        if (status == STATUS_BUSY)
            rpc_turn(++refused % 16 == 0 ? cluster.members[0].rpc : dialing->rpc, net_in_ms(1));
    }
    cluster_expect(&cluster, call(&cluster.members[1], 2, METHOD_SAVE_SHARD, 3), 2, 3);
    for (unsigned i = 0; i < CALLS; i++) {
        ck_assert_int_eq(cluster_await(&cluster, futures[i]), STATUS_OK);
        ck_assert_uint_eq(future_value(futures[i])->args[1], i);
        future_release(futures[i]);
    }
    cluster_free(&cluster);
}
END_TEST

/* ---- ends ---- */

START_TEST(test_one_server_dies)
{
    struct cluster cluster;
    cluster_start(&cluster, CLIENTS);
    struct member *client = &cluster.members[SERVERS];
    struct future *kept[SERVERS];
    for (unsigned s = 0; s < SERVERS; s++)
        kept[s] = call_with(client, s, METHOD_GET_MODEL, DO_KEEP, s, MONOTIME_NEVER);
    for (unsigned s = 0; s < SERVERS; s++)
        cluster_await_kept(&cluster, s);
    rpc_peer_died(client->rpc, 1, UINT32_MAX, "killed by signal 9");
    cluster_expect_failure(&cluster, kept[1], STATUS_PEER_DIED, "killed by signal 9");
    ck_assert_uint_eq(client->left, 1u << 1);
    ck_assert_int_eq(rpc_turn(client->rpc, net_in_ms(0)), STATUS_PEER_DIED);
    for (unsigned s = 0; s < SERVERS; s += 2) {
        ck_assert(!future_done(kept[s]));
        rpc_reply(cluster.members[s].kept, &(struct rpc_message){.args = {s, s}});
        cluster_expect(&cluster, kept[s], s, s);
        cluster_expect(&cluster, call(client, s, METHOD_GET_MODEL, 40), s, 40);
    }
    struct future *none;
    struct error error = {0};
    ck_assert_int_eq(rpc_call_async(client->rpc, 1, METHOD_ECHO, NULL, MONOTIME_NEVER, &none, &error),
                     STATUS_NOT_FOUND);
    ck_assert_str_eq(error.text, "worker 1 has no session");
    cluster_expect(&cluster, call(&cluster.members[SERVERS + 1], 1, METHOD_GET_MODEL, 41), 1, 41);
    cluster_free(&cluster);
}
END_TEST

START_TEST(test_a_server_says_bye)
{
    struct cluster cluster;
    cluster_start(&cluster, CLIENTS);
    cluster_end(&cluster, 1, "the checkpoint failed", 1000);
    for (unsigned i = 0; i < MEMBERS; i++) {
        if (i == 1)
            continue;
        cluster_await_left(&cluster, i, 1u << 1);
        ck_assert_str_eq(cluster.members[i].left_text[1], "the checkpoint failed");
        ck_assert_int_eq(cluster.members[i].left_why, STATUS_PEER_DIED);
        ck_assert_int_eq(rpc_turn(cluster.members[i].rpc, net_in_ms(0)),
                         i < 1 ? STATUS_OK : STATUS_PEER_DIED);
    }
    cluster_free(&cluster);
}
END_TEST

START_TEST(test_bye_to_all)
{
    struct cluster cluster;
    cluster_start(&cluster, CLIENTS);
    cluster_end(&cluster, SERVERS, "trained enough", 1000);
    cluster_end(&cluster, 2, "served enough", 1000);
    for (unsigned i = 0; i < 2; i++) {
        cluster_await_left(&cluster, i, 1u << SERVERS | 1u << 2);
        ck_assert_str_eq(cluster.members[i].left_text[SERVERS], "trained enough");
        ck_assert_str_eq(cluster.members[i].left_text[2], "served enough");
    }
    cluster_await_left(&cluster, SERVERS + 1, 1u << SERVERS | 1u << 2);
    ck_assert_uint_eq(cluster.members[SERVERS + 1].left, 1u << SERVERS | 1u << 2);
    cluster_free(&cluster);
}
END_TEST

START_TEST(test_a_deadline_is_one_calls)
{
    struct cluster cluster;
    cluster_start(&cluster, 1);
    struct member *client = &cluster.members[SERVERS];
    struct future *silent = call_with(client, 1, METHOD_GET_MODEL, DO_KEEP, 0, net_in_ms(100));
    struct future *slow = call_with(client, 2, METHOD_GET_MODEL, DO_KEEP, 0, MONOTIME_NEVER);
    struct rpc_request *first = cluster_await_kept(&cluster, 1), *second = cluster_await_kept(&cluster, 2);
    cluster_expect(&cluster, call_with(client, 0, METHOD_GET_MODEL, DO_ANSWER, 8, net_in_ms(60000)), 0, 8);
    cluster_expect_failure(&cluster, silent, STATUS_TIMEOUT, "no answer before the deadline");
    ck_assert(!future_done(slow));
    rpc_reply(second, &(struct rpc_message){.args = {2, 4}});
    cluster_expect(&cluster, slow, 2, 4);
    rpc_reply(first, NULL);
    cluster_expect(&cluster, call(client, 1, METHOD_GET_MODEL, 9), 1, 9);
    ck_assert_uint_eq(counters_of_member(client).stale, 1);
    ck_assert_uint_eq(client->left, 0);
    cluster_free(&cluster);
}
END_TEST

/* ---- joining ---- */

START_TEST(test_the_first_server_brings_the_job)
{
    struct cluster cluster;
    cluster_start(&cluster, 1);
    size_t bytes;
    ck_assert_str_eq(rpc_welcome(cluster.members[SERVERS].rpc, &bytes), "{\"server\":0}");
    ck_assert_uint_eq(bytes, strlen("{\"server\":0}"));
    cluster_free(&cluster);
}
END_TEST

/* A server may call as soon as it has welcomed a client, which serves nobody before it has joined all. */
START_TEST(test_calls_wait_until_all_have_welcomed)
{
    struct cluster cluster;
    cluster_make_addresses(&cluster);
    for (unsigned i = 0; i < SERVERS; i++) {
        struct rpc_config config = cluster_config(&cluster.members[i]);
        cluster_serve(&cluster, i, &config);
    }
    for (unsigned i = 0; i < SERVERS; i++)
        cluster.members[i].calls_back = true;
    cluster_join(&cluster, SERVERS);
    ck_assert_uint_eq(cluster.members[SERVERS].calls, 0);
    for (unsigned i = 0; i < SERVERS; i++)
        cluster_expect(&cluster, cluster.members[i].call_back, SERVERS, 77);
    ck_assert_uint_eq(cluster.members[SERVERS].calls, SERVERS);
    cluster_free(&cluster);
}
END_TEST

/* One of three cannot be joined: the error names it, and the others are told. */
static void expect_no_join(struct cluster *cluster, struct rpc_config *config, struct monotime deadline,
                           enum status expected, const char *text)
{
    struct rpc *rpc = NULL;
    struct error error = {0};
    char server[128];
    snprintf(server, sizeof server, "worker 1 (%s): %s", cluster->addresses[1], text);
    ck_assert_int_eq(cluster_try_join(cluster, config, &rpc, deadline, &error), expected);
    ck_assert_msg(strstr(error.text, server) != NULL, "\"%s\" does not say \"%s\"", error.text, server);
    ck_assert_ptr_null(rpc);
    for (unsigned i = 0; i < SERVERS; i += 2) {
        cluster_await_left(cluster, i, 1u << SERVERS);
        ck_assert_str_eq(cluster->members[i].left_text[SERVERS],
                         "this worker could not join all of its peers");
    }
}

START_TEST(test_one_server_refuses)
{
    struct cluster cluster;
    cluster_start(&cluster, 0);
    cluster_end(&cluster, 1, "", 0);
    struct rpc_config config = cluster_config(&cluster.members[1]);
    config.generation = 2;
    struct error error = {0};
    ck_assert_int_eq(rpc_open(&cluster.members[1].rpc, &config, cluster.addresses[1], &error), STATUS_OK);
    config = cluster_config(&cluster.members[SERVERS]);
    expect_no_join(&cluster, &config, net_in_ms(5000), STATUS_PERMISSION,
                   "answered HELLO with BYE: the job has another generation");
    cluster_free(&cluster);
}
END_TEST

START_TEST(test_one_server_is_silent)
{
    struct cluster cluster;
    cluster_start(&cluster, 0);
    cluster_end(&cluster, 1, "", 0);
    struct rpc_config config = cluster_config(&cluster.members[SERVERS]);
    expect_no_join(&cluster, &config, net_in_ms(500), STATUS_TIMEOUT, "no answer to HELLO");
    config.incarnation = 2;
    expect_no_join(&cluster, &config, net_in_ms(500), STATUS_TIMEOUT, "no answer to HELLO");
    cluster_free(&cluster);
}
END_TEST

/* The address of one server under the number of another. */
START_TEST(test_addresses_crossed)
{
    struct cluster cluster;
    cluster_start(&cluster, 0);
    struct rpc_address crossed[] = {{.worker = 1, .address = cluster.addresses[2]}};
    struct rpc_config config = cluster_config(&cluster.members[SERVERS]);
    struct rpc *rpc = NULL;
    struct error error = {0};
    cluster_turner_start(&cluster, SERVERS);
    ck_assert_int_eq(net_connect(&rpc, &config, crossed, 1, net_in_ms(500), &error), STATUS_TIMEOUT);
    cluster_turner_stop(&cluster);
    ck_assert_ptr_nonnull(strstr(error.text, "no answer to HELLO"));
    crossed[0].address = "ipc://here";
    ck_assert_int_eq(net_connect(&rpc, &config, crossed, 1, net_in_ms(5000), &error), STATUS_INVALID);
    ck_assert_str_eq(error.text, "worker 1: ipc://here: expected ipc:// and an absolute path");
    cluster_free(&cluster);
}
END_TEST

/* A dial that fails leaves the server's clients out of it, and the rpc to be freed. */
START_TEST(test_dial_refused)
{
    struct cluster cluster;
    cluster_make_addresses(&cluster);
    struct rpc_config config = cluster_config(&cluster.members[0]);
    config.generation = 2;
    cluster_serve(&cluster, 0, &config);
    struct rpc *rpc;
    struct error error = {0};
    config = cluster_config(&cluster.members[1]);
    ck_assert_int_eq(rpc_open(&rpc, &config, cluster.addresses[1], &error), STATUS_OK);
    struct rpc_address below = cluster_address(&cluster, 0);
    cluster_turner_start(&cluster, SERVERS);
    ck_assert_int_eq(rpc_dial(rpc, &below, 1, net_in_ms(5000), &error), STATUS_PERMISSION);
    cluster_turner_stop(&cluster);
    ck_assert_ptr_nonnull(strstr(error.text, "worker 0 ("));
    ck_assert_ptr_nonnull(strstr(error.text, "the job has another generation"));
    rpc_free(rpc, "it could not dial", 0);
    cluster_free(&cluster);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_servers");
    TCase *calls = tcase_create("calls");
    tcase_add_test(calls, test_calls_of_all_servers_at_a_time);
    tcase_add_test(calls, test_calls_both_ways);
    tcase_add_test(calls, test_roles_of_the_roster);
    tcase_add_test(calls, test_waiting_call_serves_the_others);
    tcase_add_test(calls, test_any_server_wakes);
    tcase_add_test(calls, test_answers_wait_for_their_socket);
    tcase_set_timeout(calls, 60);
    suite_add_tcase(suite, calls);
    TCase *ends = tcase_create("ends");
    tcase_add_test(ends, test_one_server_dies);
    tcase_add_test(ends, test_a_server_says_bye);
    tcase_add_test(ends, test_bye_to_all);
    tcase_add_test(ends, test_a_deadline_is_one_calls);
    tcase_set_timeout(ends, 60);
    suite_add_tcase(suite, ends);
    TCase *joining = tcase_create("joining");
    tcase_add_test(joining, test_the_first_server_brings_the_job);
    tcase_add_test(joining, test_calls_wait_until_all_have_welcomed);
    tcase_add_test(joining, test_one_server_refuses);
    tcase_add_test(joining, test_one_server_is_silent);
    tcase_add_test(joining, test_addresses_crossed);
    tcase_add_test(joining, test_dial_refused);
    tcase_set_timeout(joining, 60);
    suite_add_tcase(suite, joining);
    return suite_run(suite);
}
