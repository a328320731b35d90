/* Normal draws in groups: the formula that kernels/lanes/normal.h gives, the same bits on every instruction
 * set, and a normal distribution. */
#include "kernels/lanes/isa.h"
#include "kernels/lanes/normal.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"baseline", "avx2", "avx512"};
enum { NAMES = 3 };

static const struct rng_key key = {.seed = 543, .environment = 99, .step = 7, .episode = 3};

/* NULL, and a line that says so, where this processor lacks it. */
static normal_group *choose(const char *name)
{
    struct error error;
    enum isa isa;
    setenv("COALESCED_ISA", name, 1);
    if (isa_choose(&isa, &error) == STATUS_OK)
        return normal_choose();
    printf("test_normal: %s is not tested: %s\n", name, error.text);
    return NULL;
}

/* One draw by its formula, in double, with its r. */
static double formula(uint64_t number, double *r)
{
    const uint32_t group = (uint32_t)(number / 64), k = number / 16 % 4, lane = number % 16;
    struct rng_key at = key;
    uint32_t words[4];
    at.environment = 16 * group + lane;
    rng_block(&at, RNG_DATA, 5, words);
    const uint32_t *pair = words + k / 2 * 2;
    const double u = ((pair[0] >> 1) + 0.5) * 0x1p-31, angle = 6.283185307179586 * (pair[1] * 0x1p-32);
    *r = sqrt(-2 * log(u));
    return *r * (k % 2 == 0 ? cos(angle) : sin(angle));
}

START_TEST(draws_follow_their_formula)
{
    enum { DRAWS = 1 << 15 };
    static float out[DRAWS];
    normal_group *lanes = choose(names[_i]);
    if (lanes == NULL)
        return;
    normal_fill(lanes, out, DRAWS, &key, RNG_DATA, 5);
    uint64_t wrong = DRAWS; // Check writes at each of its asserts: one, at the end
    for (uint64_t i = 0; i < DRAWS; i++) {
        double r, expected = formula(i, &r);
        if (!(fabs((double)out[i] - expected) <= 1e-6 * r + 6e-8 / r))
            wrong = i;
    }
    ck_assert_msg(wrong == DRAWS, "draw %llu: %.9g", (unsigned long long)wrong, (double)out[wrong % DRAWS]);
}
END_TEST

START_TEST(every_instruction_set_draws_the_same_bits)
{
    enum { DRAWS = 10000 };
    static float ours[DRAWS], theirs[DRAWS];
    normal_group *baseline = choose("baseline"), *lanes = choose(names[_i]);
    ck_assert_ptr_nonnull(baseline);
    if (lanes == NULL)
        return;
    normal_fill(baseline, ours, DRAWS, &key, RNG_DATA, 5);
    normal_fill(lanes, theirs, DRAWS, &key, RNG_DATA, 5);
    ck_assert_mem_eq(ours, theirs, sizeof ours);
}
END_TEST

/* However many are asked for, they are the first ones, and nothing behind them is touched. */
START_TEST(a_draw_does_not_depend_on_how_many_there_are)
{
    float many[200], few[201];
    normal_group *lanes = choose("baseline");
    ck_assert_ptr_nonnull(lanes);
    normal_fill(lanes, many, 200, &key, RNG_DATA, 5);
    for (int count = 0; count < 200; count++) {
        few[count] = 99;
        normal_fill(lanes, few, (uint64_t)count, &key, RNG_DATA, 5);
        ck_assert_mem_eq(few, many, (size_t)count * sizeof *few);
        ck_assert(few[count] == 99);
    }
}
END_TEST

static unsigned count_below(const float *draws, unsigned count, double bound)
{
    unsigned below = 0;
    for (unsigned i = 0; i < count; i++)
        below += (double)draws[i] < bound;
    return below;
}

/* The mean, the variance, a pair's correlation, and the distribution function at nine places, each within
 * four standard errors (this seed is fixed). */
START_TEST(draws_are_normal)
{
    enum { DRAWS = 1 << 18 };
    static float out[DRAWS];
    double sum = 0, squares = 0, products = 0;
    normal_group *lanes = choose("baseline");
    ck_assert_ptr_nonnull(lanes);
    normal_fill(lanes, out, DRAWS, &key, RNG_DATA, 0);
    for (unsigned i = 0; i < DRAWS; i++) {
        sum += (double)out[i];
        squares += (double)out[i] * (double)out[i];
        products += i / 16 % 2 == 0 ? (double)out[i] * (double)out[i + 16] : 0;
    }
    ck_assert(fabs(sum / DRAWS) < 4 * sqrt(1.0 / DRAWS));
    ck_assert(fabs(squares / DRAWS - 1) < 4 * sqrt(2.0 / DRAWS));
    ck_assert(fabs(products / DRAWS * 2) < 4 * sqrt(2.0 / DRAWS));
    for (int i = -4; i <= 4; i++) {
        const double bound = 0.75 * i, p = 0.5 * erfc(-bound / sqrt(2));
        ck_assert(fabs((double)count_below(out, DRAWS, bound) / DRAWS - p) < 4 * sqrt(p * (1 - p) / DRAWS));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("normal");
    TCase *draws = tcase_create("draws");
    tcase_add_loop_test(draws, draws_follow_their_formula, 0, NAMES);
    tcase_add_loop_test(draws, every_instruction_set_draws_the_same_bits, 0, NAMES);
    tcase_add_test(draws, a_draw_does_not_depend_on_how_many_there_are);
    tcase_add_test(draws, draws_are_normal);
    suite_add_tcase(suite, draws);
    return suite_run(suite);
}
