/* The coalescer's three modes: the time and the order of launches, and the counters. */
#include "test/workplace.h"
#include "worker/reinforce/coalescer.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { LAUNCHES_MAX = 32, SLOTS_MAX = 16 };

/* What the launches were, in order. */
static struct {
    size_t count;
    struct {
        size_t requests;
        uint32_t rows;
        int tokens[SLOTS_MAX];
    } launch[LAUNCHES_MAX];
    size_t dropped;
} seen;

static int tokens[SLOTS_MAX];

static void record(void *context, const struct coalescer_slot *slots, size_t count, uint32_t rows)
{
    ck_assert_ptr_eq(context, &seen);
    ck_assert_uint_lt(seen.count, LAUNCHES_MAX);
    seen.launch[seen.count].requests = count;
    seen.launch[seen.count].rows = rows;
    for (size_t i = 0; i < count; i++)
        seen.launch[seen.count].tokens[i] = (int)((int *)slots[i].request - tokens);
    seen.count++;
}

static struct coalescer_stats stats;

static struct coalescer *make(enum coalescer_mode mode, uint32_t max_batch, uint64_t max_delay_us)
{
    struct coalescer_config config = {.mode = mode,
                                      .slots_max = SLOTS_MAX,
                                      .max_batch = max_batch,
                                      .max_delay_us = max_delay_us,
                                      .launch = record,
                                      .context = &seen,
                                      .stats = &stats};
    struct coalescer *coalescer;
    memset(&stats, 0, sizeof stats);
    seen.count = seen.dropped = 0;
    ck_assert_int_eq(coalescer_new(&coalescer, &config), STATUS_OK);
    return coalescer;
}

static struct monotime at_us(uint64_t us)
{
    return (struct monotime){us * 1000};
}

static void add(struct coalescer *coalescer, int token, uint32_t rows, uint64_t us)
{
    ck_assert_int_eq(coalescer_add(coalescer, &tokens[token], rows, at_us(us)), STATUS_OK);
}

START_TEST(off_launches_each_request_alone)
{
    struct coalescer *c = make(COALESCER_OFF, 64, 0);
    ck_assert(monotime_is_never(coalescer_due(c)));
    add(c, 3, 2, 10);
    add(c, 1, 5, 20);
    coalescer_run(c, at_us(30));
    ck_assert_uint_eq(seen.count, 2);
    ck_assert_int_eq(seen.launch[0].tokens[0], 3);
    ck_assert_uint_eq(seen.launch[0].rows, 2);
    ck_assert_int_eq(seen.launch[1].tokens[0], 1);
    ck_assert_uint_eq(seen.launch[1].rows, 5);
    coalescer_run(c, at_us(40));
    ck_assert_uint_eq(seen.count, 2);
    coalescer_free(c);
}
END_TEST

START_TEST(barrier_waits_for_every_live_row)
{
    struct coalescer *c = make(COALESCER_BARRIER, 1, 0);
    coalescer_set_live(c, 6);
    add(c, 0, 2, 1);
    add(c, 1, 3, 2);
    ck_assert(monotime_is_never(coalescer_due(c)));
    coalescer_run(c, at_us(1000000));
    ck_assert_uint_eq(seen.count, 0);
    add(c, 2, 1, 3);
    coalescer_run(c, at_us(4));
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_uint_eq(seen.launch[0].requests, 3);
    ck_assert_uint_eq(seen.launch[0].rows, 6);
    coalescer_free(c);
}
END_TEST

START_TEST(barrier_follows_environments_that_finish)
{
    struct coalescer *c = make(COALESCER_BARRIER, 1, 0);
    coalescer_set_live(c, 3);
    add(c, 0, 1, 1);
    add(c, 1, 1, 1);
    coalescer_run(c, at_us(2));
    ck_assert_uint_eq(seen.count, 0);
    coalescer_set_live(c, 2);
    coalescer_run(c, at_us(3));
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_uint_eq(seen.launch[0].rows, 2);
    coalescer_set_live(c, 0);
    add(c, 2, 1, 4);
    coalescer_run(c, at_us(5));
    ck_assert_uint_eq(seen.count, 1);
    coalescer_free(c);
}
END_TEST

START_TEST(dynamic_launches_full_batches_at_once)
{
    struct coalescer *c = make(COALESCER_DYNAMIC, 4, 1000);
    add(c, 0, 3, 0);
    coalescer_run(c, at_us(1));
    ck_assert_uint_eq(seen.count, 0);
    add(c, 1, 2, 2);
    coalescer_run(c, at_us(3));
    ck_assert_uint_eq(seen.count, 1); /* the first alone: both would be 5 rows */
    ck_assert_uint_eq(seen.launch[0].rows, 3);
    add(c, 2, 2, 4);
    coalescer_run(c, at_us(5));
    ck_assert_uint_eq(seen.count, 2);
    ck_assert_uint_eq(seen.launch[1].requests, 2);
    ck_assert_int_eq(seen.launch[1].tokens[0], 1);
    ck_assert_int_eq(seen.launch[1].tokens[1], 2);
    coalescer_free(c);
}
END_TEST

/* A trickle must not postpone the launch: the delay counts from the oldest request. */
START_TEST(dynamic_delay_is_anchored_to_the_oldest)
{
    struct coalescer *c = make(COALESCER_DYNAMIC, 64, 100);
    for (int i = 0; i < 5; i++) {
        add(c, i, 1, (uint64_t)i * 30);
        coalescer_run(c, at_us((uint64_t)i * 30));
        if (i < 4) {
            ck_assert_uint_eq(seen.count, 0);
            ck_assert_uint_eq(coalescer_due(c).ns, 100000);
        }
    }
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_uint_eq(seen.launch[0].requests, 5);
    coalescer_free(c);
}
END_TEST

/* Nothing more can come: to wait out the delay would only stand still. */
START_TEST(dynamic_does_not_wait_when_every_live_row_is_in)
{
    struct coalescer *c = make(COALESCER_DYNAMIC, 64, 5000);
    coalescer_set_live(c, 3);
    add(c, 0, 1, 0);
    add(c, 1, 1, 1);
    coalescer_run(c, at_us(2));
    ck_assert_uint_eq(seen.count, 0);
    ck_assert_uint_eq(coalescer_due(c).ns, 5000000);
    add(c, 2, 1, 3);
    coalescer_run(c, at_us(3));
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_uint_eq(seen.launch[0].rows, 3);
    add(c, 0, 1, 4);
    add(c, 1, 1, 5);
    coalescer_set_live(c, 2); /* the third one's episode is over */
    coalescer_run(c, at_us(6));
    ck_assert_uint_eq(seen.count, 2);
    ck_assert_uint_eq(seen.launch[1].rows, 2);
    coalescer_free(c);
}
END_TEST

START_TEST(dynamic_without_delay_takes_what_is_pending)
{
    struct coalescer *c = make(COALESCER_DYNAMIC, 64, 0);
    add(c, 0, 1, 5);
    add(c, 1, 1, 6);
    coalescer_run(c, at_us(6));
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_uint_eq(seen.launch[0].requests, 2);
    coalescer_free(c);
}
END_TEST

START_TEST(dynamic_lets_one_request_exceed_the_batch)
{
    struct coalescer *c = make(COALESCER_DYNAMIC, 4, 0);
    add(c, 0, 9, 5);
    add(c, 1, 1, 5);
    coalescer_run(c, at_us(5));
    ck_assert_uint_eq(seen.count, 2);
    ck_assert_uint_eq(seen.launch[0].rows, 9);
    ck_assert_uint_eq(seen.launch[1].rows, 1);
    coalescer_free(c);
}
END_TEST

START_TEST(counts_launches_rows_and_waits)
{
    struct coalescer *c = make(COALESCER_BARRIER, 1, 0);
    coalescer_set_live(c, 3);
    add(c, 0, 1, 100);
    add(c, 1, 2, 110);
    coalescer_run(c, at_us(112));
    ck_assert_uint_eq(stats.launches, 1);
    ck_assert_uint_eq(stats.requests, 2);
    ck_assert_uint_eq(stats.rows, 3);
    ck_assert_uint_eq(stats.batch_max, 3);
    ck_assert_uint_eq(coalescer_wait_us(&stats, 0.5), 2);
    ck_assert_uint_eq(coalescer_wait_us(&stats, 1.0), 12);
    coalescer_free(c);
}
END_TEST

static void drop(void *context, void *request)
{
    ck_assert_ptr_eq(context, &seen);
    ck_assert_ptr_eq(request, &tokens[seen.dropped]);
    seen.dropped++;
}

START_TEST(line_is_bounded_and_can_be_cleared)
{
    struct coalescer *c = make(COALESCER_BARRIER, 1, 0);
    coalescer_set_live(c, 100);
    for (int i = 0; i < SLOTS_MAX; i++)
        add(c, i, 1, 0);
    ck_assert_int_eq(coalescer_add(c, &tokens[0], 1, at_us(0)), STATUS_BUSY);
    coalescer_clear(c, drop);
    ck_assert_uint_eq(seen.dropped, SLOTS_MAX);
    ck_assert_uint_eq(seen.count, 0);
    ck_assert(monotime_is_never(coalescer_due(c)));
    coalescer_free(c);
}
END_TEST

START_TEST(a_request_can_be_removed)
{
    struct coalescer *c = make(COALESCER_BARRIER, 1, 0);
    coalescer_set_live(c, 6);
    for (int i = 0; i < 3; i++)
        add(c, i, 2, 0);
    coalescer_remove(c, &tokens[1]);
    coalescer_remove(c, &tokens[1]); /* it is gone already */
    ck_assert(monotime_is_never(coalescer_due(c)));
    add(c, 3, 2, 0);
    coalescer_run(c, at_us(0));
    ck_assert_uint_eq(seen.count, 1);
    ck_assert_uint_eq(seen.launch[0].rows, 6);
    ck_assert_mem_eq(seen.launch[0].tokens, ((int[]){0, 2, 3}), 3 * sizeof(int));
    coalescer_free(c);
}
END_TEST

/* Requests that come one after the other, and wait so long each. */
static void wait_for(struct coalescer *c, uint64_t wait_us)
{
    add(c, 0, 1, 0);
    coalescer_run(c, at_us(wait_us));
    seen.count = 0;
}

START_TEST(short_waits_are_exact)
{
    struct coalescer *c = make(COALESCER_OFF, 64, 0);
    ck_assert_uint_eq(coalescer_wait_us(&stats, 0.5), 0);
    for (uint64_t wait = 1; wait <= 20; wait++)
        wait_for(c, wait);
    ck_assert_uint_eq(coalescer_wait_us(&stats, 0.5), 10);
    ck_assert_uint_eq(coalescer_wait_us(&stats, 0.99), 20);
    ck_assert_uint_eq(coalescer_wait_us(&stats, 0.01), 1);
    ck_assert_uint_eq(coalescer_waits_up_to(&stats, 5), 5);
    ck_assert_uint_eq(stats.wait_us, 210);
    coalescer_free(c);
}
END_TEST

START_TEST(every_wait_is_within_a_sixteenth_and_never_understated)
{
    struct coalescer *c = make(COALESCER_OFF, 64, 0);
    for (uint64_t wait = 1; wait < UINT32_MAX; wait = wait * 17 / 16 + 1) {
        memset(&stats, 0, sizeof stats);
        wait_for(c, wait);
        const uint64_t told = coalescer_wait_us(&stats, 1);
        ck_assert_uint_ge(told, wait);
        ck_assert_uint_le(told, wait + wait / 16 + 1);
    }
    coalescer_free(c);
}
END_TEST

START_TEST(huge_waits_count_as_the_largest)
{
    struct coalescer *c = make(COALESCER_OFF, 64, 0);
    wait_for(c, UINT64_MAX / 1000);
    wait_for(c, 3);
    ck_assert_uint_eq(coalescer_wait_us(&stats, 0.5), 3);
    ck_assert_uint_eq(coalescer_wait_us(&stats, 1), UINT32_MAX);
    coalescer_free(c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("coalescer");
    TCase *modes = tcase_create("modes");
    tcase_add_test(modes, off_launches_each_request_alone);
    tcase_add_test(modes, barrier_waits_for_every_live_row);
    tcase_add_test(modes, barrier_follows_environments_that_finish);
    tcase_add_test(modes, dynamic_launches_full_batches_at_once);
    tcase_add_test(modes, dynamic_delay_is_anchored_to_the_oldest);
    tcase_add_test(modes, dynamic_does_not_wait_when_every_live_row_is_in);
    tcase_add_test(modes, dynamic_without_delay_takes_what_is_pending);
    tcase_add_test(modes, dynamic_lets_one_request_exceed_the_batch);
    tcase_add_test(modes, counts_launches_rows_and_waits);
    tcase_add_test(modes, line_is_bounded_and_can_be_cleared);
    tcase_add_test(modes, a_request_can_be_removed);
    tcase_add_test(modes, short_waits_are_exact);
    tcase_add_test(modes, every_wait_is_within_a_sixteenth_and_never_understated);
    tcase_add_test(modes, huge_waits_count_as_the_largest);
    suite_add_tcase(suite, modes);
    return suite_run(suite);
}
