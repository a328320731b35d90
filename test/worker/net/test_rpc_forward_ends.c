/* The ends of clients that call each other by way of the server: deaths, whoever comes after the dead, and
 * what was meant for the one and finds the other. */
#include "test/worker/net/forward_stage.h"
#include "test/workplace.h"

static void end_by_the_servers_order(void)
{
    rpc_peer_died(net.server, 2, "killed by signal 9");
}

static void end_by_its_own_bye(void)
{
    rpc_free(net.clients[1], "killed by signal 9", 1000);
    net.clients[1] = NULL;
}

static void end_by_the_callers_order(void)
{
    rpc_peer_died(client(1), 2, "killed by signal 9");
    rpc_peer_died(net.server, 2, "killed by signal 9");
}

static void (*const end_worker_2[])(void) = {end_by_the_servers_order, end_by_its_own_bye,
                                             end_by_the_callers_order};

START_TEST(test_a_client_dies)
{
    start(3, NULL);
    struct future *kept = ask(1, 2, DO_KEEP, 1, NULL, 0), *back = ask(2, 1, DO_ANSWER, 1, NULL, 0);
    expect_answer(back, 1);
    turn_until_kept(2);
    expect_answer(ask(1, 3, DO_ANSWER, 1, NULL, 0), 1);
    end_worker_2[_i]();
    net_expect_failure(&net, kept, STATUS_PEER_DIED, "killed by signal 9");
    turn_some();
    ck_assert_uint_eq(ends[1].left_count, 1);
    ck_assert_uint_eq(ends[1].left, 2);
    ck_assert_int_eq(ends[1].why, STATUS_PEER_DIED);
    ck_assert_uint_eq(ends[3].left_count, 0); // it never spoke with that one
    expect_refused(1, 2);
    net_expect_failure(&net, ask(3, 2, DO_ANSWER, 1, NULL, 0), STATUS_PEER_DIED, "no session");
    ck_assert_uint_eq(ends[3].left_count, 1);
    expect_answer(ask(1, 3, DO_ANSWER, 2, NULL, 0), 2);
    net_free(&net);
}
END_TEST

/* What the dead sent last comes before the news of its end, also where both wait. */
START_TEST(test_its_last_words_come_first)
{
    start(2, NULL);
    struct future *future = ask(1, 3, DO_KEEP, 1, NULL, 0), *answer = ask(2, 3, DO_ANSWER, 1, NULL, 0);
    turn_some();
    end_by_its_own_bye();
    turn_some();
    (void)answer;
    join(3, NULL);
    struct rpc *third = net.clients[2];
    UNTIL(ends[3].left_count != 0, net_turn(&net));
    ck_assert_uint_eq(ends[3].calls, 2);
    ck_assert_uint_eq(ends[3].left_count, 1);
    ck_assert_uint_eq(ends[3].left, 2);
    rpc_reply(ends[3].kept, NULL);
    ck_assert_int_eq(net_await(&net, future), STATUS_OK);
    future_release(future);
    ck_assert(third->sessions[1].is_live && !third->sessions[2].is_live);
    net_free(&net);
}
END_TEST

START_TEST(test_the_server_ends)
{
    start(2, NULL);
    struct future *kept = ask(1, 2, DO_KEEP, 1, NULL, 0);
    turn_until_kept(2);
    rpc_peer_died(client(1), 0, "killed");
    ck_assert_int_eq(future_status(kept), STATUS_PEER_DIED);
    future_release(kept);
    ck_assert_uint_eq(ends[1].left_count, 2);
    expect_refused(1, 2);
    expect_refused(1, 3);
    net_free(&net);
}
END_TEST

/* ---- who comes after it ---- */

static void join_again(uint16_t worker)
{
    struct rpc_config config = end_config(worker);
    struct error error = {0};
    config.incarnation = 2;
    ends[worker] = (struct end){0};
    ck_assert_int_eq(net_try_join(&net, &config, &net.clients[worker - 1], &error), STATUS_OK);
}

/* Worker 2 once more. Client 1 has no turn meanwhile: what it is told of the first one's end waits. */
static void start_again(void)
{
    join_again(2);
}

/* Another incarnation of the same worker is another peer. */
START_TEST(test_a_later_incarnation)
{
    start(2, NULL);
    expect_answer(ask(2, 1, DO_ANSWER, 1, NULL, 0), 1);
    end_by_its_own_bye();
    turn_some();
    ck_assert_uint_eq(ends[1].left_count, 1);
    start_again();
    expect_answer(ask(2, 1, DO_ANSWER, 2, NULL, 0), 2);
    expect_answer(ask(1, 2, DO_ANSWER, 3, NULL, 0), 3);
    ck_assert_uint_eq(ends[1].left_count, 1);
    net_free(&net);
}
END_TEST

/* Whoever calls does not know yet that there is another: whole, and in pieces. */
START_TEST(test_a_request_meant_for_the_dead)
{
    static const uint8_t bytes[2 << 20];
    start(2, NULL);
    expect_answer(ask(1, 2, DO_ANSWER, 1, NULL, 0), 1);
    end_by_its_own_bye();
    start_again();
    struct future *late = ask(1, 2, DO_ANSWER, 2, bytes, _i == 0 ? 4 : sizeof bytes);
    net_expect_failure(&net, late, STATUS_PEER_DIED, "killed by signal 9");
    turn_some();
    ck_assert_uint_eq(ends[2].calls, 0);
    ck_assert(!client(2)->sessions[1].was_live);
    expect_answer(ask(2, 1, DO_ANSWER, 1, NULL, 0), 1);
    for (unsigned i = 1; i <= 3; i++)
        expect_answer(ask(1, 2, DO_ANSWER, i, NULL, 0), i);
    ck_assert_uint_eq(ends[1].left_count, 1);
    net_free(&net);
}
END_TEST

/* Its number and method are those of a call of the living one. */
START_TEST(test_an_answer_meant_for_the_dead)
{
    start(2, NULL);
    struct future *lost = ask(2, 1, DO_KEEP, 1, NULL, 0);
    turn_until_kept(1);
    (void)lost;
    end_by_its_own_bye();
    start_again();
    struct future *future = ask(2, 1, DO_ANSWER, 2, NULL, 0);
    rpc_reply(ends[1].kept, &(struct rpc_message){.args = {DO_ANSWER, 1}});
    expect_answer(future, 2);
    net_free(&net);
}
END_TEST

START_TEST(test_a_farewell_meant_for_the_dead)
{
    start(2, NULL);
    expect_answer(ask(1, 2, DO_ANSWER, 1, NULL, 0), 1);
    end_by_its_own_bye();
    start_again();
    struct future *future = ask(2, 1, DO_ANSWER, 1, NULL, 0);
    rpc_peer_died(client(1), 2, "not needed any more");
    expect_answer(future, 1);
    ck_assert_uint_eq(ends[2].left_count, 0);
    net_free(&net);
}
END_TEST

/* Whatever a server passes on: a client takes nothing that is meant for another incarnation. */
START_TEST(test_a_client_takes_only_what_is_meant_for_it)
{
    const char *fault;
    start(2, NULL);
    struct wire_header header = {
        .kind = WIRE_REQUEST, .method = METHOD_OBJECT, .source = 2, .incarnation = 1, .request = 1};
    header.addressee = 2;
    ck_assert_ptr_null(forward_find(client(1), &header, &fault));
    ck_assert_ptr_null(fault);
    ck_assert_uint_eq(counters_of(client(1)).stale, 1);
    header.addressee = 1;
    ck_assert_ptr_eq(forward_find(client(1), &header, &fault), &client(1)->sessions[2]);
    net_free(&net);
}
END_TEST

/* Whoever has not heard of the other yet cannot say which one it means: it is the one with whom something
 * went through the server before, in whichever direction, or the first that came. */
static void ask_before_it_joins(void)
{
    start(1, NULL);
    (void)ask(1, 2, DO_KEEP, 1, NULL, 0);
    rpc_turn(client(1), net_in_ms(1));
    rpc_turn(net.server, net_in_ms(1));
    join(2, NULL);
}

static void ask_it(void)
{
    start(2, NULL);
    (void)ask(1, 2, DO_KEEP, 1, NULL, 0);
    rpc_turn(client(1), net_in_ms(1));
    UNTIL(ends[2].kept != NULL, (rpc_turn(net.server, net_in_ms(1)), rpc_turn(client(2), net_in_ms(1))));
}

static void be_asked_by_it(void)
{
    start(2, NULL);
    const uint64_t received = counters_of(net.server).received;
    (void)ask(2, 1, DO_ANSWER, 1, NULL, 0);
    UNTIL(counters_of(net.server).received > received, rpc_turn(net.server, net_in_ms(1)));
}

/* It is asked when it is gone, and nobody is there yet. */
static void ask_the_gone(void)
{
    start(2, NULL);
    end_by_its_own_bye();
    UNTIL(ends[0].left_count != 0, rpc_turn(net.server, net_in_ms(1)));
    const uint64_t received = counters_of(net.server).received;
    (void)ask(1, 2, DO_KEEP, 1, NULL, 0);
    UNTIL(counters_of(net.server).received > received, rpc_turn(net.server, net_in_ms(1)));
}

static void (*const meet_worker_2[])(void) = {ask_before_it_joins, ask_it, be_asked_by_it, ask_the_gone};

START_TEST(test_requests_before_it_was_heard_of)
{
    meet_worker_2[_i]();
    if (client(2) != NULL)
        end_by_its_own_bye();
    start_again();
    net_expect_failure(&net, ask(1, 2, DO_KEEP, 2, NULL, 0), STATUS_PEER_DIED, "");
    turn_some();
    ck_assert_uint_eq(ends[2].calls, 0);
    ck_assert(!client(2)->sessions[1].was_live);
    expect_answer(ask(2, 1, DO_ANSWER, 1, NULL, 0), 1);
    for (unsigned i = 1; i <= 3; i++)
        expect_answer(ask(1, 2, DO_ANSWER, i, NULL, 0), i);
    ck_assert_uint_eq(counters_of(client(2)).duplicates, 0);
    ck_assert_uint_eq(ends[1].left_count, 1);
    net_free(&net);
}
END_TEST

/* Whoever had nothing to do with the dead is not told of its end, which it would take for the successor's. */
START_TEST(test_the_first_request_reaches_the_successor)
{
    start(3, NULL);
    expect_answer(ask(1, 3, DO_ANSWER, 1, NULL, 0), 1);
    expect_answer(ask(2, 3, DO_ANSWER, 2, NULL, 0), 2);
    end_by_its_own_bye();
    start_again();
    expect_answer(ask(1, 2, DO_ANSWER, 1, NULL, 0), 1);
    turn_some();
    ck_assert(client(1)->sessions[2].is_live && client(2)->sessions[1].is_live);
    ck_assert_uint_eq(ends[1].left_count, 0);
    ck_assert_uint_eq(ends[3].left_count, 1);
    net_free(&net);
}
END_TEST

/* Whom the dead meant is nothing to their successors. */
START_TEST(test_two_successors)
{
    start(2, NULL);
    expect_answer(ask(2, 1, DO_ANSWER, 1, NULL, 0), 1);
    for (unsigned i = 0; i < 2; i++) {
        rpc_free(net.clients[i], "killed by signal 9", 1000);
        net.clients[i] = NULL;
    }
    join_again(1);
    join_again(2);
    expect_answer(ask(2, 1, DO_ANSWER, 1, NULL, 0), 1);
    expect_answer(ask(1, 2, DO_ANSWER, 1, NULL, 0), 1);
    ck_assert_uint_eq(ends[1].left_count + ends[2].left_count, 0);
    net_free(&net);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rpc_forward_ends");
    TCase *deaths = tcase_create("ends"), *after = tcase_create("after");
    tcase_add_loop_test(deaths, test_a_client_dies, 0, (int)(sizeof end_worker_2 / sizeof *end_worker_2));
    tcase_add_test(deaths, test_its_last_words_come_first);
    tcase_add_test(deaths, test_the_server_ends);
    tcase_set_timeout(deaths, 60);
    suite_add_tcase(suite, deaths);
    tcase_add_test(after, test_a_later_incarnation);
    tcase_add_loop_test(after, test_a_request_meant_for_the_dead, 0, 2);
    tcase_add_test(after, test_an_answer_meant_for_the_dead);
    tcase_add_test(after, test_a_farewell_meant_for_the_dead);
    tcase_add_test(after, test_a_client_takes_only_what_is_meant_for_it);
    tcase_add_loop_test(after, test_requests_before_it_was_heard_of, 0,
                        (int)(sizeof meet_worker_2 / sizeof *meet_worker_2));
    tcase_add_test(after, test_the_first_request_reaches_the_successor);
    tcase_add_test(after, test_two_successors);
    tcase_set_timeout(after, 60);
    suite_add_tcase(suite, after);
    return suite_run(suite);
}
