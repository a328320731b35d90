/* exp, log and tanh of floats of every size, against libm in double: the errors that
 * kernels/lanes/exp_log_tanh.h states, what is special, and the same bits on every instruction set. */
#include "test/kernels/lanes/function_lanes.h"
#include "test/workplace.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXP, LOG, TANH, FUNCTIONS };

static const char *const names[] = {"avx512", "avx2", "baseline"};
static double (*const exact[FUNCTIONS])(double) = {[EXP] = exp, [LOG] = log, [TANH] = tanh};
static const double ulps_max[FUNCTIONS] = {[EXP] = 1, [LOG] = 2, [TANH] = 5};

static function_of_16 *function_of(const struct function_lanes *lanes, int which)
{
    return which == EXP ? lanes->exp : which == LOG ? lanes->log : lanes->tanh;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float apply(function_of_16 *f, float x)
{
    float in[FUNCTION_LANES], out[FUNCTION_LANES];
    for (int i = 0; i < FUNCTION_LANES; i++)
        in[i] = x;
    f(in, out);
    return out[0];
}

/* Units of the last place. */
static double ulps(float got, double should)
{
    int exponent;
    frexp(should, &exponent);
    return fabs((double)got - should) / ldexp(1, exponent - 24);
}

/* Whether the result is near enough, or the special one that it should be: infinity also where a finite one
 * is too large for a float, and 0 where it is denormal, or would be for an error in the last place. */
static bool is_near(int which, float x, float got)
{
    const double should = exact[which](fabsf(x) < FLT_MIN ? 0 : (double)x);
    if (isnan(should))
        return isnan(got);
    if (isinf((float)should))
        return isinf(got) && (got > 0) == (should > 0);
    if (fabs(should) < (1 + 0x1p-22) * (double)FLT_MIN && bits_of(got) << 1 == 0)
        return true;
    return ulps(got, should) <= ulps_max[which] && (which != TANH || fabsf(got) <= 1);
}

/* Bits `first`, first + step, …: stops at the first that is wrong. */
static void check_range(int which, function_of_16 *f, uint64_t first, uint64_t end, uint64_t step)
{
    for (uint64_t bits = first; bits < end; bits += step * FUNCTION_LANES) {
        float x[FUNCTION_LANES], y[FUNCTION_LANES];
        for (uint64_t i = 0; i < FUNCTION_LANES; i++)
            x[i] = float_of((uint32_t)(bits + i * step));
        f(x, y);
        for (int i = 0; i < FUNCTION_LANES; i++)
            if (!is_near(which, x[i], y[i]))
                ck_abort_msg("function %d of %a: %a, expected %a", which, (double)x[i], (double)y[i],
                             exact[which]((double)x[i]));
    }
}

/* Every 4099th of all floats; NaNs and infinities are among them. Numbers of a loop: instruction set *
 * FUNCTIONS + function. */
START_TEST(errors_are_as_stated)
{
    const struct function_lanes *lanes = function_lanes_choose(names[_i / FUNCTIONS]);
    if (lanes != NULL)
        check_range(_i % FUNCTIONS, function_of(lanes, _i % FUNCTIONS), 0, UINT64_C(1) << 32, 4099);
}
END_TEST

/* Every float of the ranges where the error is largest or something changes. */
START_TEST(errors_are_as_stated_where_it_is_hard)
{
    static const struct {
        int which;
        float first, end;
    } ranges[] = {{EXP, 88.7f, 88.75f},        {EXP, -103.0f, -104.5f},     {EXP, -87.3f, -87.4f},
                  {LOG, 0.99f, 1.01f},         {LOG, 0x1p-149f, 0x1p-140f}, {LOG, 0x1.ffp-127f, 0x1.01p-126f},
                  {TANH, 8.0f, 8.2f},          {TANH, -8.0f, -8.2f},        {TANH, 4.2f, 4.22f},
                  {TANH, 0x1p-149f, 0x1p-140f}};
    const struct function_lanes *lanes = function_lanes_choose(names[_i]);
    for (size_t r = 0; lanes != NULL && r < sizeof ranges / sizeof *ranges; r++)
        check_range(ranges[r].which, function_of(lanes, ranges[r].which), bits_of(ranges[r].first),
                    bits_of(ranges[r].end), 1);
}
END_TEST

START_TEST(special_numbers_are_special)
{
    const struct function_lanes *lanes = function_lanes_choose(names[_i]);
    if (lanes == NULL)
        return;
    const struct {
        function_of_16 *f;
        float x, expected;
    } cases[] = {{lanes->exp, 0.0f, 1},
                 {lanes->exp, -0.0f, 1},
                 {lanes->exp, INFINITY, INFINITY},
                 {lanes->exp, -INFINITY, 0},
                 {lanes->exp, 3e38f, INFINITY},
                 {lanes->exp, -3e38f, 0},
                 {lanes->log, 1, 0},
                 {lanes->log, 0.0f, -INFINITY},
                 {lanes->log, -0.0f, -INFINITY},
                 {lanes->log, INFINITY, INFINITY},
                 {lanes->tanh, 0.0f, 0.0f},
                 {lanes->tanh, -0.0f, -0.0f},
                 {lanes->tanh, INFINITY, 1},
                 {lanes->tanh, -INFINITY, -1},
                 {lanes->tanh, 8.1067753f, 1},
                 {lanes->tanh, FLT_MIN, FLT_MIN},
                 {lanes->tanh, -0x1p-149f, -0.0f},
                 {lanes->log, -0x1p-149f, -INFINITY},
                 {lanes->exp, -87.4f, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_msg(bits_of(apply(cases[i].f, cases[i].x)) == bits_of(cases[i].expected), "case %zu: %a", i,
                      (double)apply(cases[i].f, cases[i].x));
    ck_assert(apply(lanes->tanh, 8.106774f) < 1);
    ck_assert(isnan(apply(lanes->exp, NAN)) && isnan(apply(lanes->log, NAN)) &&
              isnan(apply(lanes->tanh, NAN)));
    ck_assert(isnan(apply(lanes->log, -1)) && isnan(apply(lanes->log, -FLT_MIN)));
    ck_assert(isnan(apply(lanes->log, -INFINITY)));
}
END_TEST

START_TEST(instruction_sets_agree_bit_for_bit)
{
    const struct function_lanes *baseline = function_lanes_choose("baseline"),
                                *lanes = function_lanes_choose(names[_i]);
    for (int which = 0; lanes != NULL && which < FUNCTIONS; which++)
        for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += UINT64_C(65537) * FUNCTION_LANES) {
            float x[FUNCTION_LANES], ours[FUNCTION_LANES], theirs[FUNCTION_LANES];
            for (uint64_t i = 0; i < FUNCTION_LANES; i++)
                x[i] = float_of((uint32_t)(bits + i * 65537));
            function_of(baseline, which)(x, ours);
            function_of(lanes, which)(x, theirs);
            for (int i = 0; i < FUNCTION_LANES; i++)
                if (bits_of(ours[i]) != bits_of(theirs[i]) && !(isnan(ours[i]) && isnan(theirs[i])))
                    ck_abort_msg("function %d of %a: %a and %a", which, (double)x[i], (double)ours[i],
                                 (double)theirs[i]);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exp_log_tanh");
    TCase *functions = tcase_create("functions");
    tcase_set_timeout(functions, 120);
    tcase_add_loop_test(functions, errors_are_as_stated, 0, 3 * FUNCTIONS);
    tcase_add_loop_test(functions, errors_are_as_stated_where_it_is_hard, 0, 3);
    tcase_add_loop_test(functions, special_numbers_are_special, 0, 3);
    tcase_add_loop_test(functions, instruction_sets_agree_bit_for_bit, 0, 2);
    suite_add_tcase(suite, functions);
    return suite_run(suite);
}
