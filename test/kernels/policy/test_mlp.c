/* The policy's forward on every instruction set of this machine: against the oracle in double
 * (test/oracle), against itself in other batches, and the instruction sets against each other. */
#include "test/kernels/lanes/function_lanes.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/oracle/mlp_ref.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Ones, primes, both sides of a multiple of 16 and of 128, the maxima, and CartPole's. */
static const struct mlp_case cases[] = {
    {{4, 128, 2}, 0.6, 300}, {{4, 128, 2}, 0, 40},      {{1, 1, 1}, 0.5, 33},    {{1, 1, 2}, 0.25, 17},
    {{2, 15, 3}, 0.1, 50},   {{3, 16, 5}, 0.6, 64},     {{5, 17, 2}, 0.999, 47}, {{4, 127, 2}, 0.6, 31},
    {{4, 129, 2}, 0.6, 16},  {{4, 31, 16}, 0.5, 19},    {{16, 113, 7}, 0.3, 23}, {{7, 256, 11}, 0.75, 37},
    {{4, 1024, 2}, 0.6, 20}, {{16, 1024, 16}, 0.5, 18}, {{13, 509, 13}, 0.9, 1}, {{4, 64, 2}, 0.99999, 21},
};
enum { CASES = sizeof cases / sizeof *cases };

static struct mlp_problem problem;
static struct mlp *mlp;

static bool open_case(int number)
{
    return mlp_case_open(cases, number, 1, &problem, &mlp);
}

static void close_case(void)
{
    mlp_case_close(&problem, mlp);
}

static struct rng_key key_of(uint32_t i)
{
    return (struct rng_key){.seed = problem.seed,
                            .environment = problem.environment[i],
                            .step = problem.step[i],
                            .episode = problem.episode};
}

START_TEST(masks_are_the_oracles_bit_for_bit)
{
    if (!open_case(_i))
        return;
    const uint32_t words = mlp_mask_words(&problem.shape);
    memset(problem.batch.masks, 0xa5, (size_t)problem.rows * words * sizeof(uint16_t));
    mlp_problem_act(&problem, mlp);
    for (uint32_t i = 0; i < problem.rows; i++) {
        uint16_t expected[MLP_HIDDEN_MAX / 16];
        struct rng_key key = key_of(i);
        mlp_ref_draw(&problem.shape, problem.dropout, &key, expected);
        ck_assert_mem_eq(problem.batch.masks + (size_t)problem.row[i] * words, expected,
                         words * sizeof *expected);
    }
    close_case();
}
END_TEST

/* The bound is 4 times what rounding 1 to float may cost; the kernels stay within 2 on these cases. An action
 * may differ from the oracle's only where the uniform lies as near as that to the border between two. */
START_TEST(probabilities_and_actions_are_the_oracles)
{
    if (!open_case(_i))
        return;
    const double bound = 4 * 0x1p-24;
    const uint32_t words = mlp_mask_words(&problem.shape), actions = problem.shape.actions;
    mlp_problem_act(&problem, mlp);
    uint32_t near_border = 0;
    for (uint32_t i = 0; i < problem.rows; i++) {
        const size_t row = problem.row[i];
        double expected[MLP_ACTIONS_MAX], margin;
        struct rng_key key = key_of(i);
        mlp_ref_forward(&problem.shape, problem.dropout, problem.exact,
                        problem.batch.observations + row * problem.shape.inputs,
                        problem.batch.masks + row * words, expected, NULL);
        for (uint32_t a = 0; a < actions; a++)
            ck_assert_double_eq_tol((double)problem.probabilities[(size_t)i * actions + a], expected[a],
                                    bound);
        uint32_t action = mlp_ref_sample(&problem.shape, expected, &key, &margin);
        if (margin > actions * bound)
            ck_assert_uint_eq(problem.batch.actions[row], action);
        else
            near_border++;
    }
    ck_assert_uint_le(near_border, 1);
    close_case();
}
END_TEST

/* The batch again in pieces of 1, 2, 3, … rows: other neighbours, other positions, the same bits. */
START_TEST(a_row_does_not_know_its_batch)
{
    if (!open_case(_i))
        return;
    const uint32_t words = mlp_mask_words(&problem.shape), actions = problem.shape.actions;
    const size_t mask_bytes = (size_t)problem.rows * words * sizeof(uint16_t);
    const size_t action_bytes = problem.rows * sizeof(int32_t);
    mlp_problem_act(&problem, mlp);
    uint16_t *masks = malloc(mask_bytes);
    int32_t *chosen = malloc(action_bytes);
    ck_assert(masks != NULL && chosen != NULL);
    memcpy(masks, problem.batch.masks, mask_bytes);
    memcpy(chosen, problem.batch.actions, action_bytes);
    memset(problem.batch.masks, 0, mask_bytes);
    memset(problem.batch.actions, 0xff, action_bytes);
    for (uint32_t first = 0, count = 1; first < problem.rows; first += count++) {
        struct mlp_batch piece = problem.batch;
        piece.row += first;
        piece.count = count < problem.rows - first ? count : problem.rows - first;
        float probabilities[32 * MLP_ACTIONS_MAX];
        ck_assert_uint_le(piece.count, 32);
        mlp_act(mlp, &piece, problem.seed, problem.episode, problem.environment + first, problem.step + first,
                probabilities);
        ck_assert_mem_eq(probabilities, problem.probabilities + (size_t)first * actions,
                         piece.count * actions * sizeof(float));
    }
    ck_assert_mem_eq(masks, problem.batch.masks, mask_bytes);
    ck_assert_mem_eq(chosen, problem.batch.actions, action_bytes);
    free(masks);
    free(chosen);
    close_case();
}
END_TEST

/* Everything mlp_act writes, on each set against the baseline, which every machine has. */
START_TEST(instruction_sets_agree_bit_for_bit)
{
    struct mlp_problem expected;
    mlp_problem_init(&expected, cases[_i].shape, cases[_i].dropout, cases[_i].rows, (uint64_t)_i + 1);
    mlp = mlp_problem_load(&expected, "baseline");
    mlp_problem_act(&expected, mlp);
    mlp_free(mlp);
    for (int j = 0; j < MLP_ISAS - 1; j++) {
        if (!open_case(_i * MLP_ISAS + j))
            continue;
        mlp_problem_act(&problem, mlp);
        ck_assert_mem_eq(problem.batch.masks, expected.batch.masks,
                         (size_t)problem.rows * mlp_mask_words(&problem.shape) * sizeof(uint16_t));
        ck_assert_mem_eq(problem.probabilities, expected.probabilities,
                         (size_t)problem.rows * problem.shape.actions * sizeof(float));
        ck_assert_mem_eq(problem.batch.actions, expected.batch.actions, problem.rows * sizeof(int32_t));
        close_case();
    }
    mlp_problem_fini(&expected);
}
END_TEST

/* One observation, 40,000 steps: each action as often as its probability says, within 5 standard deviations,
 * and each unit kept as often as 1 - p says. */
START_TEST(frequencies_follow_the_probabilities)
{
    enum { ROWS = 40000 };
    struct mlp_shape shape = {3, 24, 5};
    mlp_problem_init(&problem, shape, 0, ROWS, 7);
    mlp = mlp_problem_load(&problem, NULL);
    memset(problem.row, 0, ROWS * sizeof *problem.row);
    unsigned taken[5] = {0};
    for (uint32_t i = 0; i < ROWS; i++) {
        struct mlp_batch one = problem.batch;
        one.count = 1;
        mlp_act(mlp, &one, problem.seed, problem.episode, &problem.environment[i], &problem.step[i],
                problem.probabilities);
        taken[problem.batch.actions[0]]++;
    }
    for (int a = 0; a < 5; a++) {
        double p = (double)problem.probabilities[a];
        ck_assert_double_eq_tol(taken[a], ROWS * p, 5 * sqrt(ROWS * p * (1 - p)));
        ck_assert_double_gt(ROWS * p * (1 - p), 400); // else the test would say little
    }
    close_case();
}
END_TEST

START_TEST(units_are_kept_as_often_as_asked)
{
    enum { ROWS = 20000, HIDDEN = 160 };
    struct mlp_shape shape = {1, HIDDEN, 1};
    mlp_problem_init(&problem, shape, 0.6, ROWS, 8);
    mlp = mlp_problem_load(&problem, NULL);
    mlp_problem_act(&problem, mlp);
    unsigned kept[HIDDEN] = {0}, both = 0;
    for (uint32_t i = 0; i < ROWS; i++) {
        const uint16_t *mask = problem.batch.masks + (size_t)i * (HIDDEN / 16);
        for (uint32_t j = 0; j < HIDDEN; j++)
            kept[j] += mask[j / 16] >> j % 16 & 1;
        both += mask[0] & mask[1] & 1; // units 0 and 16 share a word
    }
    for (uint32_t j = 0; j < HIDDEN; j++)
        ck_assert_double_eq_tol(kept[j], ROWS * 0.4, 5 * sqrt(ROWS * 0.4 * 0.6));
    ck_assert_double_eq_tol(both, ROWS * 0.16, 5 * sqrt(ROWS * 0.16 * 0.84));
    close_case();
}
END_TEST

static double ulps(float got, double expected)
{
    int exponent;
    frexp(expected, &exponent);
    return fabs((double)got - expected) / ldexp(1, exponent - 24);
}

START_TEST(exp_and_log_are_near_the_true_ones)
{
    const struct function_lanes *lanes = function_lanes_choose(mlp_isas[_i]);
    if (lanes == NULL)
        return;
    double worst_exp = 0, worst_log = 0;
    for (uint32_t n = 0; n < 20000; n++) {
        float x[FUNCTION_LANES], e[FUNCTION_LANES], l[FUNCTION_LANES], y[FUNCTION_LANES];
        for (uint32_t i = 0; i < FUNCTION_LANES; i++) {
            float t = (float)(n * FUNCTION_LANES + i) / (20000 * FUNCTION_LANES);
            x[i] = -87.0f * t * t;
            y[i] = n % 8 == 0 ? ldexpf(1 + t, (int)n / 100 - 100) : 1 + 15 * t;
        }
        lanes->short_exp(x, e);
        lanes->short_log(y, l);
        for (uint32_t i = 0; i < FUNCTION_LANES; i++) {
            worst_exp = fmax(worst_exp, ulps(e[i], exp((double)x[i])));
            worst_log = fmax(worst_log, y[i] == 1 ? fabs((double)l[i]) : ulps(l[i], log((double)y[i])));
        }
    }
    ck_assert_msg(worst_exp <= 1.0, "exp: %g ulp", worst_exp);
    ck_assert_msg(worst_log <= 2.0, "log: %g ulp", worst_log);
}
END_TEST

START_TEST(exp_ends_where_it_says)
{
    const struct function_lanes *lanes = function_lanes_choose(mlp_isas[_i]);
    if (lanes == NULL)
        return;
    float x[FUNCTION_LANES] = {0.0f, -0.0f, -87.0f, -87.0001f, -1000.0f, -INFINITY, NAN}, y[FUNCTION_LANES];
    lanes->short_exp(x, y);
    ck_assert(y[0] == 1 && y[1] == 1);
    ck_assert(y[2] > 0 && ulps(y[2], exp(-87)) <= 1);
    ck_assert(y[3] == 0 && y[4] == 0 && y[5] == 0);
    ck_assert(isnan(y[6]));
}
END_TEST

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void fma_equals_libms(const struct function_lanes *lanes, const float a[FUNCTION_LANES],
                             const float b[FUNCTION_LANES], const float c[FUNCTION_LANES])
{
    float y[FUNCTION_LANES];
    lanes->fma(a, b, c, y);
    for (uint32_t i = 0; i < FUNCTION_LANES; i++) {
        float expected = fmaf(a[i], b[i], c[i]);
        ck_assert_msg(bits_of(y[i]) == bits_of(expected), "fma(%a, %a, %a): got %a, expected %a",
                      (double)a[i], (double)b[i], (double)c[i], (double)y[i], (double)expected);
    }
}

/* Numbers of all sizes, and what a sum in double would round twice: a product half way between two floats,
 * from which an addend far below double's last bit must still tip it, to either side. */
START_TEST(fma_rounds_once)
{
    const struct function_lanes *lanes = function_lanes_choose(mlp_isas[_i]);
    if (lanes == NULL)
        return;
    uint64_t state = 99;
    for (int n = 0; n < 20000; n++) {
        float a[FUNCTION_LANES], b[FUNCTION_LANES], c[FUNCTION_LANES];
        for (uint32_t i = 0; i < FUNCTION_LANES; i++) {
            a[i] = ldexpf(mlp_problem_number(&state), n % 60 - 30);
            b[i] = mlp_problem_number(&state);
            c[i] = i % 5 == 0 ? -a[i] * b[i] : ldexpf(mlp_problem_number(&state), (n * 7 + (int)i) % 90 - 50);
        }
        fma_equals_libms(lanes, a, b, c);
    }
    for (int n = -140; n < 100; n++) {
        float a[FUNCTION_LANES], b[FUNCTION_LANES], c[FUNCTION_LANES];
        for (uint32_t i = 0; i < FUNCTION_LANES; i++) {
            a[i] = (i & 1 ? -1.0f : 1.0f) * (1 + (i & 8 ? 3 : 1) * 0x1p-12f);
            b[i] = 1 + 0x1p-12f;
            c[i] = (i & 2 ? -1.0f : 1.0f) * ldexpf(1, n) * (i & 4 ? 1.5f : 1.0f);
        }
        fma_equals_libms(lanes, a, b, c);
    }
    const float big[FUNCTION_LANES] = {3e38f, -3e38f, INFINITY, 1, 0, 1e-40f, -0.0f, 0x1p-75f};
    const float two[FUNCTION_LANES] = {2, 2, 2, INFINITY, 5, 0.5f, 1, 0x1p-75f};
    const float add[FUNCTION_LANES] = {1, 3e38f, 1, 1, 0, 1e-45f, -0.0f, -0.0f};
    fma_equals_libms(lanes, big, two, add);
}
END_TEST

/* A NaN weight must be seen in the result, not swallowed by relu's maximum. */
START_TEST(a_nan_is_not_hidden)
{
    if (!open_case(_i))
        return;
    problem.parameters[5] = NAN; // of affine1.weight, which every row reads
    mlp_load(mlp, problem.parameters);
    mlp_problem_act(&problem, mlp);
    uint32_t seen = 0;
    for (uint32_t i = 0; i < problem.rows; i++) {
        bool kept = problem.batch.masks[(size_t)problem.row[i] * mlp_mask_words(&problem.shape)] >> 1 & 1;
        ck_assert_int_eq(isnan(problem.probabilities[2 * i]), kept); // element 5 is unit 1's
        ck_assert_uint_lt(problem.batch.actions[problem.row[i]], 2);
        seen += kept;
    }
    ck_assert_uint_gt(seen, 0);
    close_case();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mlp");
    TCase *forward = tcase_create("forward");
    tcase_set_timeout(forward, 60);
    tcase_add_loop_test(forward, masks_are_the_oracles_bit_for_bit, 0, CASES * MLP_ISAS);
    tcase_add_loop_test(forward, probabilities_and_actions_are_the_oracles, 0, CASES * MLP_ISAS);
    tcase_add_loop_test(forward, a_row_does_not_know_its_batch, 0, CASES * MLP_ISAS);
    tcase_add_loop_test(forward, instruction_sets_agree_bit_for_bit, 0, CASES);
    tcase_add_loop_test(forward, a_nan_is_not_hidden, 0, MLP_ISAS);
    tcase_add_test(forward, frequencies_follow_the_probabilities);
    tcase_add_test(forward, units_are_kept_as_often_as_asked);
    tcase_add_loop_test(forward, exp_and_log_are_near_the_true_ones, 0, MLP_ISAS);
    tcase_add_loop_test(forward, fma_rounds_once, 0, MLP_ISAS);
    tcase_add_loop_test(forward, exp_ends_where_it_says, 0, MLP_ISAS);
    suite_add_tcase(suite, forward);
    return suite_run(suite);
}
