/* Points in time: order, saturation, rounding (kernels/base/monotime.h). */
#include "kernels/base/monotime.h"
#include "test/workplace.h"

#include <check.h>
#include <stdint.h>

static struct monotime at_ns(uint64_t ns)
{
    return (struct monotime){ns};
}

static const struct monotime latest = {UINT64_MAX - 1};

START_TEST(never_is_later_than_every_time)
{
    ck_assert(monotime_is_never(MONOTIME_NEVER));
    ck_assert(!monotime_is_never(latest));
    ck_assert(!monotime_is_never(at_ns(0)));
    ck_assert(monotime_before(latest, MONOTIME_NEVER));
    ck_assert(!monotime_before(MONOTIME_NEVER, latest));
    ck_assert(!monotime_before(MONOTIME_NEVER, MONOTIME_NEVER));
}
END_TEST

START_TEST(before_is_strict)
{
    ck_assert(monotime_before(at_ns(6), at_ns(7)));
    ck_assert(!monotime_before(at_ns(7), at_ns(7)));
    ck_assert(!monotime_before(at_ns(8), at_ns(7)));
}
END_TEST

START_TEST(the_earliest_is_the_smaller_whichever_comes_first)
{
    ck_assert_uint_eq(monotime_earliest(at_ns(5), at_ns(9)).ns, 5);
    ck_assert_uint_eq(monotime_earliest(at_ns(9), at_ns(5)).ns, 5);
    ck_assert_uint_eq(monotime_earliest(MONOTIME_NEVER, at_ns(5)).ns, 5);
}
END_TEST

START_TEST(adding_counts_in_microseconds)
{
    ck_assert_uint_eq(monotime_add_us(at_ns(17), 0).ns, 17);
    ck_assert_uint_eq(monotime_add_us(at_ns(17), 3).ns, 3017);
    ck_assert_uint_eq(monotime_add_us(at_ns(1), 1000000000000).ns, 1000000000000001);
}
END_TEST

START_TEST(adding_too_much_is_never)
{
    ck_assert(monotime_is_never(monotime_add_us(at_ns(1), UINT64_MAX)));
    ck_assert(monotime_is_never(monotime_add_us(at_ns(1), UINT64_MAX / 1000)));
    ck_assert(monotime_is_never(monotime_add_us(MONOTIME_NEVER, 0)));
    ck_assert(monotime_is_never(monotime_add_us(MONOTIME_NEVER, 1)));
    ck_assert(monotime_is_never(monotime_add_us(at_ns(UINT64_MAX - 500), 1)));
    /* and just not too much */
    ck_assert_uint_eq(monotime_add_us(at_ns(0), UINT64_MAX / 1000 - 1).ns, (UINT64_MAX / 1000 - 1) * 1000);
}
END_TEST

START_TEST(between_rounds_down_and_is_never_negative)
{
    ck_assert_uint_eq(monotime_us_between(at_ns(1000), at_ns(2999)), 1);
    ck_assert_uint_eq(monotime_us_between(at_ns(1000), at_ns(3000)), 2);
    ck_assert_uint_eq(monotime_us_between(at_ns(1000), at_ns(1000)), 0);
    ck_assert_uint_eq(monotime_us_between(at_ns(9000), at_ns(1000)), 0);
}
END_TEST

/* A wait that is rounded down ends early and then spins until its time has come. */
START_TEST(a_polls_wait_is_rounded_up)
{
    const struct monotime now = at_ns(5000000000);
    ck_assert_int_eq(monotime_poll_ms(now, at_ns(now.ns + 1)), 1);
    ck_assert_int_eq(monotime_poll_ms(now, at_ns(now.ns + 999999)), 1);
    ck_assert_int_eq(monotime_poll_ms(now, at_ns(now.ns + 1000000)), 1);
    ck_assert_int_eq(monotime_poll_ms(now, at_ns(now.ns + 1000001)), 2);
    ck_assert_int_eq(monotime_poll_ms(now, at_ns(now.ns + 1234000000)), 1234);
}
END_TEST

START_TEST(a_polls_wait_for_what_has_come_is_none)
{
    ck_assert_int_eq(monotime_poll_ms(at_ns(7), at_ns(7)), 0);
    ck_assert_int_eq(monotime_poll_ms(at_ns(8), at_ns(7)), 0);
}
END_TEST

START_TEST(a_polls_wait_for_never_has_no_end_and_any_other_is_an_hour_at_most)
{
    const struct monotime now = at_ns(5000000000);
    ck_assert_int_eq(monotime_poll_ms(now, MONOTIME_NEVER), -1);
    ck_assert_int_eq(monotime_poll_ms(now, latest), 3600000);
    ck_assert_int_eq(monotime_poll_ms(now, at_ns(now.ns + 3600000000000)), 3600000);
    ck_assert_int_eq(monotime_poll_ms(now, at_ns(now.ns + 3600000000001)), 3600000);
    ck_assert_int_eq(monotime_poll_ms(now, at_ns(now.ns + 3599999000000)), 3599999);
}
END_TEST

START_TEST(now_does_not_run_backwards)
{
    struct monotime last = monotime_now();
    for (unsigned i = 0; i < 1000; i++) {
        struct monotime now = monotime_now();
        ck_assert(!monotime_before(now, last));
        last = now;
    }
    ck_assert_uint_gt(last.ns, 0);
    ck_assert(monotime_before(last, latest));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("monotime");
    TCase *time = tcase_create("monotime");
    tcase_add_test(time, never_is_later_than_every_time);
    tcase_add_test(time, before_is_strict);
    tcase_add_test(time, the_earliest_is_the_smaller_whichever_comes_first);
    tcase_add_test(time, adding_counts_in_microseconds);
    tcase_add_test(time, adding_too_much_is_never);
    tcase_add_test(time, between_rounds_down_and_is_never_negative);
    tcase_add_test(time, a_polls_wait_is_rounded_up);
    tcase_add_test(time, a_polls_wait_for_what_has_come_is_none);
    tcase_add_test(time, a_polls_wait_for_never_has_no_end_and_any_other_is_an_hour_at_most);
    tcase_add_test(time, now_does_not_run_backwards);
    suite_add_tcase(suite, time);
    return suite_run(suite);
}
