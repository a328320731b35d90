/* The ends of sessions: cancelled calls, deaths, BYE from either side; and the watches and the beat of a
 * turn. */
#include "test/worker/net/net_service.h"
#include "test/workplace.h"

#include <signal.h>

/* ---- ends ---- */

START_TEST(test_cancel_all)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 2);
    struct future *a = episode(net.server, 1, 1), *b = episode(net.server, 2, 2);
    rpc_cancel_all(net.server, STATUS_SHUTDOWN, "the job is ending");
    net_expect_failure(&net, a, STATUS_SHUTDOWN, "the job is ending");
    net_expect_failure(&net, b, STATUS_SHUTDOWN, "the job is ending");
    struct future *c = episode(net.server, 2, 3);
    ck_assert_int_eq(net_await(&net, c), STATUS_OK);
    future_release(c);
    net_free(&net);
}
END_TEST

/* One worker's death takes its calls and its requests, and nobody else's. */
START_TEST(test_peer_died)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 2);
    struct future *kept = step(net.clients[0], DO_KEEP, MONOTIME_NEVER);
    UNTIL(server.kept_count >= 1, net_turn(&net));
    struct future *a = episode(net.server, 1, 1), *b = episode(net.server, 2, 2);
    rpc_peer_died(net.server, 1, UINT32_MAX, "killed by signal 9");
    net_expect_failure(&net, a, STATUS_PEER_DIED, "killed by signal 9");
    ck_assert_uint_eq(server.left, 1u << 1);
    ck_assert_int_eq(server.left_why, STATUS_PEER_DIED);
    ck_assert_str_eq(server.left_text, "killed by signal 9");
    answer_doubled(server.kept[0], rpc_request_message(server.kept[0]));
    ck_assert_int_eq(net_await(&net, b), STATUS_OK);
    future_release(b);
    net_expect_failure(&net, kept, STATUS_PEER_DIED, "killed by signal 9");
    ck_assert_int_eq(rpc_turn(net.clients[0], net_in_ms(0)), STATUS_PEER_DIED);
    rpc_peer_died(net.server, 1, UINT32_MAX, "again");
    ck_assert_str_eq(server.left_text, "killed by signal 9");
    net_free(&net);
}
END_TEST

START_TEST(test_reject_worker)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 2);
    struct future *pending = episode(net.server, 1, 1);
    rpc_reject_worker(net.server, 1, "%d of %d samples", 9, 8);
    net_expect_failure(&net, pending, STATUS_PEER_DIED, "9 of 8 samples");
    ck_assert_uint_eq(server.left, 1u << 1);
    ck_assert_int_eq(server.left_why, STATUS_INVALID);
    UNTIL(client.left != 0, net_turn(&net));
    ck_assert_str_eq(client.left_text, "9 of 8 samples");
    struct rpc_counters counters;
    rpc_reject_worker(net.server, 1, "again");
    rpc_counters(net.server, &counters);
    ck_assert_uint_eq(counters.bad, 1);
    struct future *other = episode(net.server, 2, 3);
    ck_assert_int_eq(net_await(&net, other), STATUS_OK);
    future_release(other);
    net_free(&net);
}
END_TEST

START_TEST(test_server_says_bye)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    struct future *kept = step(net.clients[0], DO_KEEP, MONOTIME_NEVER);
    UNTIL(server.kept_count >= 1, net_turn(&net));
    rpc_free(net.server, "round finished", 1000);
    net.server = NULL;
    enum status status = STATUS_OK;
    UNTIL(status != STATUS_OK, status = rpc_turn(net.clients[0], net_in_ms(1)));
    ck_assert_int_eq(status, STATUS_PEER_DIED);
    ck_assert_int_eq(future_status(kept), STATUS_PEER_DIED);
    ck_assert_str_eq(future_text(kept), "round finished");
    ck_assert_uint_eq(client.left, 1);
    struct future *future;
    struct error error;
    ck_assert_int_eq(rpc_call_async(net.clients[0], 0, METHOD_ECHO, NULL, MONOTIME_NEVER, &future, &error),
                     STATUS_NOT_FOUND);
    future_release(kept);
    net_free(&net);
}
END_TEST

START_TEST(test_client_says_bye)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 2);
    struct future *call = episode(net.server, 1, 1);
    rpc_free(net.clients[0], "done", 1000);
    net.clients[0] = NULL;
    net_expect_failure(&net, call, STATUS_PEER_DIED, "done");
    ck_assert_uint_eq(server.left, 1u << 1);
    ck_assert_str_eq(server.left_text, "done");
    struct rpc_counters counters;
    rpc_counters(net.server, &counters);
    ck_assert_uint_eq(counters.bad, 0);
    net_free(&net);
}
END_TEST

static void count_shutdown(struct future *future, void *arg)
{
    *(unsigned *)arg += future_status(future) == STATUS_SHUTDOWN;
}

START_TEST(test_free_completes_what_is_pending)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    unsigned runs = 0;
    step_then(net.clients[0], DO_KEEP, MONOTIME_NEVER, count_shutdown, &runs);
    rpc_free(net.clients[0], "enough", 0);
    net.clients[0] = NULL;
    ck_assert_uint_eq(runs, 1);
    net_free(&net);
}
END_TEST

START_TEST(test_reject_ends_the_session)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 2);
    struct future *kept = step(net.clients[0], DO_KEEP, MONOTIME_NEVER);
    struct future *bad = step(net.clients[0], DO_REJECT, MONOTIME_NEVER);
    net_expect_failure(&net, bad, STATUS_INVALID, "environment 7 is not yours");
    net_expect_failure(&net, kept, STATUS_PEER_DIED, "environment 7 is not yours");
    ck_assert_uint_eq(server.left, 1u << 1);
    ck_assert_int_eq(server.left_why, STATUS_INVALID);
    struct future *fine = step(net.clients[1], DO_ANSWER, MONOTIME_NEVER);
    ck_assert_int_eq(net_await(&net, fine), STATUS_OK);
    expect_doubled(fine);
    net_free(&net);
}
END_TEST

/* ---- watches and beats ---- */

static unsigned watch_runs, beat_runs;

static void read_one(void *arg)
{
    char byte;
    ck_assert_int_eq(read(*(int *)arg, &byte, 1), 1);
    watch_runs++;
}

static struct monotime beat(void *arg)
{
    (void)arg;
    beat_runs++;
    return net_in_ms(5);
}

static struct monotime beat_seldom(void *arg)
{
    ++*(unsigned *)arg;
    return MONOTIME_NEVER;
}

/* A descriptor is seen both by an idle rpc and by one that is never idle; the beat wakes a long wait. */
START_TEST(test_watch_and_beat)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 1);
    int pipes[2];
    unsigned seldom_runs = 0;
    ck_assert_int_eq(pipe(pipes), 0);
    watch_runs = beat_runs = 0;
    ck_assert_int_eq(rpc_watch(net.server, pipes[0], read_one, &pipes[0]), STATUS_OK);
    ck_assert_int_eq(write(pipes[1], "x", 1), 1);
    UNTIL(watch_runs == 1, rpc_turn(net.server, MONOTIME_NEVER));
    rpc_on_turn(net.server, beat, NULL);
    rpc_on_turn(net.server, beat_seldom, &seldom_runs);
    for (unsigned i = 0; i < 5; i++)
        rpc_turn(net.server, MONOTIME_NEVER);
    ck_assert_uint_eq(beat_runs, 5);
    ck_assert_uint_eq(seldom_runs, 5);
    ck_assert_int_eq(write(pipes[1], "x", 1), 1);
    for (unsigned i = 0; i < 400 && watch_runs == 1; i++) {
        struct future *call = step(net.clients[0], DO_ANSWER, MONOTIME_NEVER);
        while (!future_done(call)) {
            rpc_turn(net.clients[0], net_in_ms(0));
            rpc_turn(net.server, net_in_ms(0));
        }
        future_release(call);
    }
    ck_assert_uint_eq(watch_runs, 2);
    for (unsigned i = 1; i < 4; i++)
        ck_assert_int_eq(rpc_watch(net.server, pipes[0], read_one, &pipes[0]), STATUS_OK);
    ck_assert_int_eq(rpc_watch(net.server, pipes[0], read_one, &pipes[0]), STATUS_BUSY);
    close(pipes[0]);
    close(pipes[1]);
    net_free(&net);
}
END_TEST

static void turn_inside(void *context, struct rpc_request *request, const struct rpc_message *message)
{
    (void)request;
    (void)message;
    rpc_turn(*(struct rpc **)context, net_in_ms(0));
}

static const struct rpc_method turning_methods[] = {
    {.method = METHOD_RUN_EPISODE, .callers = WIRE_ROLE_AGENT, .handler = turn_inside}};

/* Our own mistake, so an assertion: this test expects SIGABRT. */
START_TEST(test_no_turn_within_a_handler)
{
    struct net net;
    struct service server, client;
    service_start(&net, &server, &client, 0);
    static struct rpc *turning;
    struct rpc_config config = net_client_config(1, turning_methods, 1, &turning);
    turning = net_join(&net, &config);
    struct future *call = episode(net.server, 1, 1);
    net_await(&net, call);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_ends");
    TCase *ends = tcase_create("ends");
    tcase_add_test(ends, test_cancel_all);
    tcase_add_test(ends, test_peer_died);
    tcase_add_test(ends, test_reject_worker);
    tcase_add_test(ends, test_server_says_bye);
    tcase_add_test(ends, test_client_says_bye);
    tcase_add_test(ends, test_free_completes_what_is_pending);
    tcase_add_test(ends, test_reject_ends_the_session);
    tcase_set_timeout(ends, 60);
    suite_add_tcase(suite, ends);
    TCase *turns = tcase_create("turns");
    tcase_add_test(turns, test_watch_and_beat);
    tcase_add_test_raise_signal(turns, test_no_turn_within_a_handler, SIGABRT);
    tcase_set_timeout(turns, 60);
    suite_add_tcase(suite, turns);
    return suite_run(suite);
}
