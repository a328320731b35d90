/* Where a thread's time goes: totals, nesting, the bound on spans, and a profile that is off
 * (kernels/base/profile.h). */
#include "kernels/base/profile.h"
#include "test/workplace.h"

#include <check.h>
#include <pthread.h>
#include <string.h>

static struct monotime at_us(uint64_t us)
{
    return (struct monotime){us * 1000};
}

static uint64_t sum_of(const struct profile *profile)
{
    uint64_t sum = 0;
    for (int kind = 0; kind < PROFILE_KINDS; kind++)
        sum += profile->ns[kind];
    return sum;
}

START_TEST(nothing_is_counted_when_off)
{
    ck_assert(!profile_is_on);
    ck_assert_int_eq(profile_enter(PROFILE_LEARNING), PROFILE_OTHER);
    profile_leave(PROFILE_WAITING);
    ck_assert_ptr_null(profile_end(at_us(5)));
}
END_TEST

START_TEST(each_kind_gets_its_time_and_the_sum_is_the_whole)
{
    profile_begin(at_us(100));
    profile_enter_at(PROFILE_WAITING, at_us(103));
    profile_enter_at(PROFILE_ENVIRONMENT, at_us(110));
    profile_enter_at(PROFILE_WAITING, at_us(150));
    const struct profile *profile = profile_end(at_us(250));
    ck_assert_uint_eq(profile->begin.ns, 100000);
    ck_assert_uint_eq(profile->ns[PROFILE_OTHER], 3000);
    ck_assert_uint_eq(profile->ns[PROFILE_WAITING], 107000);
    ck_assert_uint_eq(profile->ns[PROFILE_ENVIRONMENT], 40000);
    ck_assert_uint_eq(sum_of(profile), 150000);
    ck_assert(!profile_is_on);
}
END_TEST

/* The inner kind's time is not the outer one's, and the outer one goes on behind it. */
START_TEST(kinds_nest)
{
    profile_begin(at_us(0));
    const enum profile_kind outer = profile_enter_at(PROFILE_LEARNING, at_us(10));
    const enum profile_kind inner = profile_enter_at(PROFILE_TRANSPORT, at_us(30));
    ck_assert_int_eq(outer, PROFILE_OTHER);
    ck_assert_int_eq(inner, PROFILE_LEARNING);
    ck_assert_int_eq(profile_enter_at(PROFILE_TRANSPORT, at_us(35)), PROFILE_TRANSPORT);
    profile_enter_at(inner, at_us(40));
    profile_enter_at(outer, at_us(100));
    const struct profile *profile = profile_end(at_us(101));
    ck_assert_uint_eq(profile->ns[PROFILE_LEARNING], 80000);
    ck_assert_uint_eq(profile->ns[PROFILE_TRANSPORT], 10000);
    ck_assert_uint_eq(profile->ns[PROFILE_OTHER], 11000);
}
END_TEST

START_TEST(long_spans_are_kept_whole_and_short_ones_are_not)
{
    profile_begin(at_us(0));
    profile_enter_at(PROFILE_WAITING, (struct monotime){PROFILE_SPAN_NS_MIN - 1});
    profile_enter_at(PROFILE_WAITING, at_us(12)); /* goes on: no end of a span */
    profile_enter_at(PROFILE_INFERENCE, (struct monotime){2 * PROFILE_SPAN_NS_MIN - 1});
    const struct profile *profile = profile_end(at_us(500));
    ck_assert_uint_eq(profile->span_count, 2);
    ck_assert_int_eq(profile->spans[0].kind, PROFILE_WAITING);
    ck_assert_uint_eq(profile->spans[0].begin_ns, PROFILE_SPAN_NS_MIN - 1);
    ck_assert_uint_eq(profile->spans[0].ns, PROFILE_SPAN_NS_MIN);
    ck_assert_int_eq(profile->spans[1].kind, PROFILE_INFERENCE);
    ck_assert_uint_eq(profile->spans[1].ns, 500000 - 2 * PROFILE_SPAN_NS_MIN + 1);
}
END_TEST

START_TEST(the_newest_spans_are_kept)
{
    const uint64_t more = PROFILE_SPANS_MAX + 100;
    profile_begin(at_us(0));
    for (uint64_t i = 1; i <= more; i++)
        profile_enter_at(i % 2 == 1 ? PROFILE_WAITING : PROFILE_TRANSPORT, at_us(i * 20));
    const struct profile *profile = profile_end(at_us(more * 20));
    ck_assert_uint_eq(profile->span_count, more);
    ck_assert_uint_eq(profile_first_span(profile), 100);
    for (uint64_t i = 100; i < more; i++)
        ck_assert_uint_eq(profile->spans[i % PROFILE_SPANS_MAX].begin_ns, i * 20000);
    ck_assert_uint_eq(sum_of(profile), more * 20000);
}
END_TEST

START_TEST(a_second_profile_begins_anew)
{
    profile_begin(at_us(0));
    profile_enter_at(PROFILE_UPDATE, at_us(50));
    profile_end(at_us(100));
    profile_begin(at_us(1000));
    const struct profile *profile = profile_end(at_us(1001));
    ck_assert_uint_eq(sum_of(profile), 1000);
    ck_assert_uint_eq(profile->ns[PROFILE_UPDATE], 0);
    ck_assert_uint_eq(profile->span_count, 0);
}
END_TEST

START_TEST(the_clock_is_read)
{
    const struct monotime begin = monotime_now();
    profile_begin(begin);
    const enum profile_kind before = profile_enter(PROFILE_CHECKPOINT);
    while (monotime_us_between(begin, monotime_now()) < 2000)
        ;
    profile_leave(before);
    const struct monotime end = monotime_now();
    const struct profile *profile = profile_end(end);
    ck_assert_uint_eq(sum_of(profile), end.ns - begin.ns);
    ck_assert_uint_gt(profile->ns[PROFILE_CHECKPOINT], 0);
}
END_TEST

static void *enter_elsewhere(void *arg)
{
    profile_enter(PROFILE_DATA);
    const bool is_profiled = profile_is_on || profile_end(at_us(9)) != NULL;
    return is_profiled ? arg : NULL;
}

START_TEST(other_threads_are_not_profiled)
{
    pthread_t thread;
    void *said = NULL;
    profile_begin(at_us(0));
    ck_assert_int_eq(pthread_create(&thread, NULL, enter_elsewhere, &said), 0);
    ck_assert_int_eq(pthread_join(thread, &said), 0);
    ck_assert_ptr_null(said);
    const struct profile *profile = profile_end(at_us(10));
    ck_assert_uint_eq(profile->ns[PROFILE_OTHER], 10000);
}
END_TEST

START_TEST(kinds_have_names)
{
    for (int i = 0; i < PROFILE_KINDS; i++)
        for (int j = 0; j < i; j++)
            ck_assert_str_ne(profile_kind_name((enum profile_kind)i),
                             profile_kind_name((enum profile_kind)j));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("profile");
    TCase *core = tcase_create("core");
    tcase_add_test(core, nothing_is_counted_when_off);
    tcase_add_test(core, each_kind_gets_its_time_and_the_sum_is_the_whole);
    tcase_add_test(core, kinds_nest);
    tcase_add_test(core, long_spans_are_kept_whole_and_short_ones_are_not);
    tcase_add_test(core, the_newest_spans_are_kept);
    tcase_add_test(core, a_second_profile_begins_anew);
    tcase_add_test(core, the_clock_is_read);
    tcase_add_test(core, other_threads_are_not_profiled);
    tcase_add_test(core, kinds_have_names);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
