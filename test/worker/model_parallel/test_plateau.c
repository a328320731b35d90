/* The plateau schedule: the losses that lower the rate, and the losses that do not. */
#include "worker/model_parallel/plateau.h"

#include "test/workplace.h"

#include <check.h>
#include <math.h>

START_TEST(the_rate_falls_when_the_loss_does_not)
{
    static const struct {
        double loss, lr, best;
    } seen[] = {{5, 20, 5}, {4, 20, 4}, {4, 5, 4}, {4.5, 1.25, 4}, {3, 1.25, 3}, {3.5, 0.3125, 3}};
    struct plateau plateau = {.lr = 20, .best_loss = INFINITY};
    for (unsigned i = 0; i < sizeof seen / sizeof *seen; i++) {
        plateau_see(&plateau, seen[i].loss, 0.25);
        ck_assert_double_eq(plateau.lr, seen[i].lr);
        ck_assert_double_eq(plateau.best_loss, seen[i].best);
    }
}
END_TEST

/* However long nothing gets better: an update with a rate of 0 would be refused, and end the job. */
START_TEST(the_rate_never_becomes_0)
{
    struct plateau plateau = {.lr = 20, .best_loss = 4};
    for (unsigned i = 0; i < 1200; i++) {
        const double before = plateau.lr;
        plateau_see(&plateau, 5, 0.25);
        ck_assert(plateau.lr > 0 && plateau.lr <= before);
    }
    const double last = plateau.lr;
    plateau_see(&plateau, 5, 0.25);
    ck_assert_double_eq(plateau.lr, last);
    ck_assert(last < 1e-300);
}
END_TEST

/* As in PyTorch, such a loss is no better than any other; the best one stays a number. */
START_TEST(a_loss_that_is_not_finite_is_no_better)
{
    static const double losses[] = {(double)NAN, (double)INFINITY, (double)-INFINITY};
    struct plateau plateau = {.lr = 20, .best_loss = 4};
    plateau_see(&plateau, losses[_i], 0.25);
    ck_assert_double_eq(plateau.lr, 5);
    ck_assert_double_eq(plateau.best_loss, 4);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("plateau");
    TCase *schedule = tcase_create("schedule");
    tcase_add_test(schedule, the_rate_falls_when_the_loss_does_not);
    tcase_add_test(schedule, the_rate_never_becomes_0);
    tcase_add_loop_test(schedule, a_loss_that_is_not_finite_is_no_better, 0, 3);
    suite_add_tcase(suite, schedule);
    return suite_run(suite);
}
