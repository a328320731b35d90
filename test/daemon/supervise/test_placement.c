/* On which host a worker starts: shares of hosts, hosts that are lost or unfit, workers that die again and
 * again on a host, and clients that a host has brought. */
#include "daemon/supervise/placement.h"

#include "daemon/hosts/hosts.c" // NOLINT(bugprone-suspicious-include): the state of a host is its own

#include <check.h>

enum { HOSTS = 4, CLIENTS = 9, SERVERS = 2, WORKERS = SERVERS + CLIENTS, LATE = 3 };

static struct job job;
static struct host of[HOSTS];
static struct rendezvous rendezvous;
static struct hosts hosts;
static struct roster roster;
static struct child children[WORKERS];
static struct placement placement;

/* Four hosts, three of them from the begin; nine clients, the last two of which host 3 has brought. */
static void set_up(void)
{
    memset(of, 0, sizeof of);
    memset(children, 0, sizeof children);
    job = (struct job){.kind = JOB_PARAMETER_SERVER, .added = 2};
    job.hosts.clients = JOB_SPREAD_EVEN;
    rendezvous = (struct rendezvous){.hosts = LATE};
    rendezvous.link.keys.count = HOSTS;
    for (int i = 1; i < HOSTS; i++)
        of[i].state = HOST_UP;
    of[LATE].brings = 2;
    hosts = (struct hosts){.rendezvous = &rendezvous, .job = &job, .of = of};
    roster = (struct roster){.servers = SERVERS, .clients = CLIENTS, .replaceable = SERVERS};
    for (unsigned i = 0; i < WORKERS; i++)
        children[i] = (struct child){.state = CHILD_GONE, .start = {.worker = (uint16_t)i}};
    placement = (struct placement){.job = &job,
                                   .hosts = &hosts,
                                   .roster = &roster,
                                   .children = children,
                                   .count = WORKERS,
                                   .generation = 1};
}

static uint16_t host_of(unsigned worker)
{
    return placement_choose_host(&placement, &children[worker], (uint16_t)worker);
}

static void expect_hosts(const char *expected)
{
    for (unsigned i = 0; i < WORKERS; i++)
        ck_assert_msg(host_of(i) == (unsigned)(expected[i] - '0'), "worker %u on host %u, expected %s", i,
                      host_of(i), expected);
}

START_TEST(one_host_runs_all)
{
    hosts = (struct hosts){.job = &job};
    expect_hosts("00000000000");
}
END_TEST

START_TEST(clients_are_spread_over_the_first_hosts_and_stay_with_those_that_bring_them)
{
    expect_hosts("00"
                 "0001122"
                 "33");
    job.hosts.clients = JOB_SPREAD_OTHERS;
    expect_hosts("00"
                 "1111222"
                 "33");
    job.hosts.servers = JOB_SERVERS_EVEN;
    expect_hosts("01"
                 "1111222"
                 "33");
    ck_assert_uint_eq(placement_own_clients(&placement), CLIENTS - 2);
}
END_TEST

START_TEST(a_host_that_is_lost_or_unfit_gets_nothing)
{
    of[1].state = HOST_AWAITED;
    expect_hosts("00"
                 "0000222"
                 "33");
    of[1].state = HOST_UP;
    of[2].unfit = true;
    expect_hosts("00"
                 "0000111"
                 "33");
    ck_assert_uint_eq(placement_fair_share(&placement, 1), (CLIENTS - 2) / 2);
    ck_assert_uint_eq(placement_fair_share(&placement, 2), 0);
    ck_assert_uint_eq(placement_fair_share(&placement, LATE), 0);
}
END_TEST

/* A second start in a generation: where the worker was, unless it has died there twice in a row. */
static void start_again(unsigned worker, uint16_t host, unsigned deaths)
{
    children[worker].start.generation = placement.generation;
    children[worker].host = host;
    children[worker].deaths = deaths;
}

START_TEST(a_worker_starts_again_where_it_was)
{
    start_again(4, 2, 1);
    ck_assert_uint_eq(host_of(4), 2);
    of[2].state = HOST_AWAITED; /* then where the fewest live; of equals the first: the leader's host */
    ck_assert_uint_eq(host_of(4), 0);
    children[5] = (struct child){.state = CHILD_READY, .host = 0};
    ck_assert_uint_eq(placement_load(&placement, 0), 1);
    ck_assert_uint_eq(host_of(4), 1);
}
END_TEST

START_TEST(a_worker_that_dies_again_on_a_host_is_tried_elsewhere)
{
    start_again(4, 2, 2);
    children[5] = (struct child){.state = CHILD_READY, .host = 0};
    children[6] = (struct child){.state = CHILD_READY, .host = 1};
    ck_assert_uint_eq(host_of(4), LATE);
    start_again(4, HOST_LEADER, 2); /* the leader's host is the last resort */
    ck_assert_uint_eq(host_of(4), HOST_LEADER);
}
END_TEST

START_TEST(clients_move_from_the_fullest_host_to_the_one_that_comes)
{
    for (unsigned i = SERVERS; i < WORKERS; i++)
        children[i] =
            (struct child){.state = CHILD_READY, .host = i < 8 ? 0 : 1, .start = {.worker = (uint16_t)i}};
    ck_assert_ptr_eq(placement_choose_mover(&placement, 2), &children[SERVERS]);
    ck_assert_ptr_eq(placement_choose_mover(&placement, 0), &children[8]);
    children[SERVERS].moves_to = 2;
    ck_assert_uint_eq(host_of(SERVERS), 2);
    of[2].state = HOST_AWAITED;
    ck_assert_uint_ne(host_of(SERVERS), 2);
    for (unsigned i = SERVERS; i < WORKERS; i++)
        children[i].state = CHILD_KILLED;
    ck_assert_ptr_null(placement_choose_mover(&placement, 2));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("placement");
    TCase *hosts_case = tcase_create("hosts");
    tcase_add_checked_fixture(hosts_case, set_up, NULL);
    tcase_add_test(hosts_case, one_host_runs_all);
    tcase_add_test(hosts_case, clients_are_spread_over_the_first_hosts_and_stay_with_those_that_bring_them);
    tcase_add_test(hosts_case, a_host_that_is_lost_or_unfit_gets_nothing);
    tcase_add_test(hosts_case, a_worker_starts_again_where_it_was);
    tcase_add_test(hosts_case, a_worker_that_dies_again_on_a_host_is_tried_elsewhere);
    tcase_add_test(hosts_case, clients_move_from_the_fullest_host_to_the_one_that_comes);
    suite_add_tcase(suite, hosts_case);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
