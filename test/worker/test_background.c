/* The hand-off to a thread beside a loop: work and its result go to another thread and back, together with
 * the memory that belongs to them. A race there would be the thread sanitizer's to report. */
#include "test/worker/net/net_fixture.h"
#include "test/workplace.h"
#include "worker/background.h"

#include <signal.h>

enum { HANDOFFS = 2000 };

static struct net net;
static struct background background;

static struct {
    uint64_t numbers[16]; /* plain memory: the loop's, or the thread's while it works */
    bool fails;
    uint32_t sleeps_us;
} shared;

static enum status add_one(void *arg, struct error *error)
{
    ck_assert_ptr_eq(arg, &shared);
    if (shared.sleeps_us > 0)
        usleep(shared.sleeps_us);
    for (unsigned i = 0; i < 16; i++)
        shared.numbers[i]++;
    return shared.fails ? error_set(error, STATUS_IO, "disk %u is full", 3u) : STATUS_OK;
}

static void setup(void)
{
    const struct rpc_config config = net_server_config(NULL, 0, NULL);
    struct error error = {0};
    memset(&shared, 0, sizeof shared);
    net_serve(&net, &config);
    ck_assert_int_eq(background_open(&background, net.server, "a thread", &error), STATUS_OK);
}

static void teardown(void)
{
    background_close(&background);
    rpc_free(net.server, "the test is over", 0);
    rmdir(net.folder);
}

/* Turns the loop until the work is done. */
static enum status finish(struct error *error)
{
    enum status status;
    while ((status = background_end(&background, error)) == STATUS_AGAIN)
        ck_assert_int_eq(rpc_turn(net.server, MONOTIME_NEVER), STATUS_OK);
    return status;
}

START_TEST(work_and_memory_go_there_and_back)
{
    struct error error = {0};
    for (uint64_t n = 1; n <= HANDOFFS; n++) {
        ck_assert(!background_busy(&background));
        background_start(&background, add_one, &shared);
        ck_assert_int_eq(finish(&error), STATUS_OK);
        for (unsigned i = 0; i < 16; i++)
            ck_assert_uint_eq(shared.numbers[i], n);
    }
}
END_TEST

START_TEST(a_failure_comes_with_its_text)
{
    struct error error = {0};
    shared.fails = true;
    background_start(&background, add_one, &shared);
    ck_assert_int_eq(finish(&error), STATUS_IO);
    ck_assert_str_eq(error.text, "disk 3 is full");
    shared.fails = false;
    background_start(&background, add_one, &shared);
    ck_assert_int_eq(finish(&error), STATUS_OK);
}
END_TEST

START_TEST(closing_waits_for_the_work)
{
    shared.sleeps_us = _i == 0 ? 0 : 50000;
    background_start(&background, add_one, &shared);
    background_close(&background);
    ck_assert_uint_eq(shared.numbers[0], 1);
    background_close(&background);
}
END_TEST

START_TEST(two_pieces_at_a_time_are_a_bug)
{
    unlink(net.address + strlen("ipc://"));
    rmdir(net.folder);
    background_start(&background, add_one, &shared);
    background_start(&background, add_one, &shared);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("background");
    TCase *tests = tcase_create("hand-off");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, work_and_memory_go_there_and_back);
    tcase_add_test(tests, a_failure_comes_with_its_text);
    tcase_add_loop_test(tests, closing_waits_for_the_work, 0, 2);
    tcase_add_test_raise_signal(tests, two_pieces_at_a_time_are_a_bug, SIGABRT);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
