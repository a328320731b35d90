/* The norm: its value, its bits, and what is not finite. */
#include "kernels/norm.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1001 };

static void fill(float *x)
{
    for (int i = 0; i < COUNT; i++)
        x[i] = (float)((i * 7919 % 1000) - 500) * 1e-3f;
}

START_TEST(it_is_the_root_of_the_sum_of_squares)
{
    float x[COUNT];
    double sum = 0;
    fill(x);
    for (int i = 0; i < COUNT; i++)
        sum += (double)x[i] * (double)x[i];
    ck_assert_double_eq_tol(norm_of(x, COUNT), sqrt(sum), 1e-12);
    ck_assert_double_eq(norm_of((const float[]){3, -4}, 2), 5);
    ck_assert_double_eq(norm_of(x, 0), 0);
}
END_TEST

START_TEST(every_instruction_set_gives_the_same_bits)
{
    static const char *const sets[] = {"baseline", "avx2", "avx512"};
    float x[COUNT];
    double first = 0;
    fill(x);
    for (int set = 0; set < 3; set++) {
        setenv("COALESCED_ISA", sets[set], 1);
        const double norm = norm_of(x, COUNT);
        first = set == 0 ? norm : first;
        ck_assert_double_eq(norm, first);
    }
    unsetenv("COALESCED_ISA");
}
END_TEST

START_TEST(it_shows_what_is_not_finite)
{
    float x[COUNT];
    fill(x);
    x[1000] = INFINITY;
    ck_assert(isinf(norm_of(x, COUNT)));
    x[17] = NAN;
    ck_assert(isnan(norm_of(x, COUNT)));
    ck_assert(isfinite(norm_of((const float[]){3e38f, 3e38f}, 2)));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("norm");
    TCase *core = tcase_create("core");
    tcase_add_test(core, it_is_the_root_of_the_sum_of_squares);
    tcase_add_test(core, every_instruction_set_gives_the_same_bits);
    tcase_add_test(core, it_shows_what_is_not_finite);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
