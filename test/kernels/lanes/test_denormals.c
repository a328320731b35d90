/* Denormal numbers end alike on every instruction set, and in every thread. suite_run has flushed them. */
#include "kernels/adam.h"
#include "kernels/base/team.h"
#include "kernels/lanes/isa.h"
#include "kernels/lanes/product_lanes.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/workplace.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"baseline", "avx2", "avx512"};

/* false, and a line that says so, where this processor lacks the instruction set. */
static bool choose(int which, enum isa *out)
{
    struct error error;
    setenv("COALESCED_ISA", names[which], 1);
    if (isa_choose(out, &error) == STATUS_OK)
        return true;
    printf("test_denormals: %s is not tested: %s\n", names[which], error.text);
    return false;
}

/* A denormal number compares as 0 here, so fpclassify would take it for one. */
static int kind_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits <<= 1; // without the sign
    return bits == 0 ? FP_ZERO : bits < 1U << 24 ? FP_SUBNORMAL : FP_NORMAL;
}

/* A unit that gets no gradient any more. Without the flush, 0.9 times the smallest denormal is itself. */
START_TEST(a_dead_units_moments_become_zero)
{
    enum { COUNT = 21, STEPS = 2000 };
    static const struct adam_settings settings = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
    static const float none[COUNT];
    float parameters[COUNT] = {0}, first[COUNT] = {0}, second[COUNT] = {0}, gradient[COUNT];
    enum isa isa;
    if (!choose(_i, &isa))
        return;
    for (int i = 0; i < COUNT; i++)
        gradient[i] = ldexpf(i % 2 ? 1 : -1, -i);
    adam_update(&settings, 1, parameters, first, second, gradient, COUNT);
    for (uint64_t step = 2; step < STEPS; step++)
        adam_update(&settings, step, parameters, first, second, none, COUNT);
    for (int i = 0; i < COUNT; i++) {
        ck_assert(parameters[i] != 0);
        ck_assert_int_eq(kind_of(first[i]), FP_ZERO);
        ck_assert_int_eq(kind_of(second[i]), FP_ZERO);
    }
}
END_TEST

enum { ROWS = 40, DEPTH = 30, COLUMNS = 48 };

/* Factors whose products and sums lie around the smallest normal number, and some that are denormal. */
static void fill(float *values, size_t count, int exponent, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        values[i] = ldexpf(mlp_problem_number(&seed), exponent + (int)(i * 7 % 12));
}

START_TEST(every_instruction_set_flushes_alike)
{
    static product_function *const products[ISA_COUNT] = {
        [ISA_BASELINE] = product_baseline, [ISA_AVX2] = product_avx2, [ISA_AVX512] = product_avx512};
    static float a[ROWS * DEPTH], b[DEPTH * COLUMNS], begin[COLUMNS], c[2][ROWS * COLUMNS];
    uint32_t zeros = 0, normals = 0;
    enum isa isa;
    fill(a, ROWS * DEPTH, -140, 1); // a third of them denormal
    fill(b, DEPTH * COLUMNS, 2, 2);
    fill(begin, COLUMNS, -136, 3);
    if (!choose(_i, &isa))
        return;
    for (int set = 0; set < 2; set++)
        products[set == 0 ? ISA_BASELINE : isa](&(struct product){.rows = ROWS,
                                                                  .depth = DEPTH,
                                                                  .columns = COLUMNS,
                                                                  .a = a,
                                                                  .a_row = DEPTH,
                                                                  .a_depth = 1,
                                                                  .b = b,
                                                                  .b_depth = COLUMNS,
                                                                  .b_block = PRODUCT_BLOCK,
                                                                  .begin = begin,
                                                                  .c = c[set],
                                                                  .c_row = COLUMNS});
    ck_assert_mem_eq(c[0], c[1], sizeof c[0]);
    for (size_t i = 0; i < ROWS * COLUMNS; i++) {
        const int kind = kind_of(c[0][i]);
        ck_assert_int_ne(kind, FP_SUBNORMAL);
        zeros += kind == FP_ZERO;
        normals += kind == FP_NORMAL;
    }
    ck_assert_uint_gt(zeros, 10);
    ck_assert_uint_gt(normals, 10);
}
END_TEST

/* The last bit before the smallest normal number: rounded first, flushed then, on every set. */
START_TEST(what_rounds_to_a_normal_number_stays)
{
    static product_function *const products[ISA_COUNT] = {
        [ISA_BASELINE] = product_baseline, [ISA_AVX2] = product_avx2, [ISA_AVX512] = product_avx512};
    static const float factors[][2] = {{1 + 0x1p-13f, 1 - 0x1p-13f}, {1 - 0x1p-24f, 1 - 0x1p-24f},
                                       {1 - 0x1p-24f, 1 + 0x1p-23f}, {1, 1 - 0x1p-24f},
                                       {1 + 0x1p-12f, 1 - 0x1p-12f}, {1, 1}};
    enum { FACTORS = sizeof factors / sizeof *factors };
    enum isa isa;
    for (size_t i = 0; i < FACTORS && choose(_i, &isa); i++) {
        float a = factors[i][0] * FLT_MIN * 4, b[PRODUCT_BLOCK] = {factors[i][1] / 4},
              c[2][PRODUCT_BLOCK] = {{0}};
        for (int set = 0; set < 2; set++)
            products[set == 0 ? ISA_BASELINE : isa](&(struct product){.rows = 1,
                                                                      .depth = 1,
                                                                      .columns = PRODUCT_BLOCK,
                                                                      .a = &a,
                                                                      .a_row = 1,
                                                                      .a_depth = 1,
                                                                      .b = b,
                                                                      .b_depth = PRODUCT_BLOCK,
                                                                      .b_block = PRODUCT_BLOCK,
                                                                      .c = c[set],
                                                                      .c_row = PRODUCT_BLOCK});
        ck_assert(i > 0 || c[0][0] == FLT_MIN);
        ck_assert_mem_eq(c[0], c[1], sizeof c[0]);
    }
}
END_TEST

enum { PIECES = 64 };

static void halve(void *context, uint32_t piece)
{
    volatile float *halves = context;
    halves[piece] = halves[piece] * 0.5f;
}

START_TEST(threads_flush_as_their_creator)
{
    float halves[PIECES];
    struct error error;
    struct team *team;
    for (int i = 0; i < PIECES; i++)
        halves[i] = FLT_MIN;
    ck_assert_msg(team_new(&team, 3, &error) == STATUS_OK, "%s", error.text);
    team_run(team, PIECES, halve, halves);
    team_free(team);
    for (int i = 0; i < PIECES; i++)
        ck_assert_int_eq(kind_of(halves[i]), FP_ZERO);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("denormals");
    TCase *denormals = tcase_create("flushing");
    tcase_add_loop_test(denormals, a_dead_units_moments_become_zero, 0, 3);
    tcase_add_loop_test(denormals, every_instruction_set_flushes_alike, 0, 3);
    tcase_add_loop_test(denormals, what_rounds_to_a_normal_number_stays, 0, 3);
    tcase_add_test(denormals, threads_flush_as_their_creator);
    suite_add_tcase(suite, denormals);
    return suite_run(suite);
}
