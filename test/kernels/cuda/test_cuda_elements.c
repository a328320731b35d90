/* The arithmetic of our GPU kernels (kernels/cuda/elements.h), run on the CPU: the operations are compared
 * with ref over the whole table, and functions that promise the CPU's bits with the CPU's own functions. */
#include "kernels/cuda/elements.h"
#include "test/kernels/cuda/elements_backend.h"
#include "test/kernels/op_run.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/oracle/mlp_ref.h"
#include "test/oracle/ref.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- the operations ---- */

static struct pair {
    struct backend *backend;
    struct arena *arena;
} ref, elements;

static void pair_open(struct pair *pair, const struct backend_ops *ops)
{
    struct error error = {0};
    ck_assert_int_eq(backend_open(&pair->backend, ops, &(struct backend_settings){0}, &error), STATUS_OK);
    ck_assert_int_eq(arena_new(&pair->arena, &pair->backend->source, &error), STATUS_OK);
}

static void backends_open(void)
{
    pair_open(&ref, &ref_ops);
    pair_open(&elements, &elements_ops);
}

static void backends_close(void)
{
    arena_free(ref.arena);
    arena_free(elements.arena);
    backend_close(ref.backend);
    backend_close(elements.backend);
}

static void compare(const struct op_case *op_case, const char *what, uint32_t i,
                    const struct values *expected, const struct values *got, double bound)
{
    char text[OP_CASE_TEXT_BYTES];
    size_t at = 0;
    if (expected->count == 0)
        return;
    const double deviation = values_deviation(expected, got, &at);
    ck_assert_msg(deviation <= bound, "%s: %s %u is off by %.2g at element %zu, expected at most %.2g",
                  op_case_text(op_case, text), what, i, deviation, at, bound);
}

static void run_case(const struct op_case *op_case)
{
    struct op_problem problem;
    struct op_answer expected = {0}, got = {0};
    struct error error = {0};
    op_problem_init(&problem, op_case, ref.backend);
    struct op_wish wish = op_wish_all(&problem);
    ck_assert_msg(op_run(&expected, &problem, &wish, ref.backend, ref.arena, &error) == STATUS_OK, "%s",
                  error.text);
    wish.forget = true;
    ck_assert_msg(op_run(&got, &problem, &wish, elements.backend, elements.arena, &error) == STATUS_OK, "%s",
                  error.text);
    for (uint32_t i = 0; i < OP_OUTPUTS_MAX; i++)
        compare(op_case, "output", i, &expected.out[i], &got.out[i], expected.out_bound);
    for (uint32_t i = 0; i < OP_INPUTS_MAX; i++)
        compare(op_case, "gradient", i, &expected.din[i], &got.din[i], expected.din_bound[i]);
    op_answer_fini(&expected);
    op_answer_fini(&got);
    op_problem_fini(&problem);
}

START_TEST(operations_agree_with_ref)
{
    unsigned cases = 0;
    if (elements_ops.forward[_i] == NULL)
        return;
    for (size_t i = 0; i < op_cases_count; i++)
        if (op_cases[i].op == (enum op)_i && (op_cases[i].use & OP_CASE_CHECK) != 0) {
            run_case(&op_cases[i]);
            cases++;
        }
    ck_assert_uint_ge(cases, 3);
}
END_TEST

/* One pass, beside two in double: values far from zero, and the first value far from the others. */
START_TEST(statistics_lose_nothing_far_from_zero)
{
    enum { COUNT = 4096 };
    const struct element_channels shape = {.channels = 1, .plane = COUNT, .values = COUNT};
    static float x[COUNT];
    double sum = 0, squares = 0;
    float mean, variance;
    for (uint32_t i = 0; i < COUNT; i++)
        sum += (double)(x[i] = 1e6f + (float)(i * 7919 % 17));
    if (_i == 1) {
        sum -= (double)x[0];
        x[0] = 0;
    }
    for (uint32_t i = 0; i < COUNT; i++)
        squares += ((double)x[i] - sum / COUNT) * ((double)x[i] - sum / COUNT);
    const struct element_sums sums = element_norm_lane(&shape, x, 0, 0, 1);
    const struct element_norm norm = element_norm_of(&shape, x, 0, &sums, 1e-5, &mean, &variance);
    ck_assert_double_eq_tol((double)mean, sum / COUNT, 0.0625);
    ck_assert_double_eq_tol((double)variance / (squares / (COUNT - 1)), 1, 1e-6);
    ck_assert_double_eq_tol((double)norm.inverse * sqrt(squares / COUNT + 1e-5), 1, 1e-6);
}
END_TEST

/* ---- draws ---- */

START_TEST(philox_is_rng_blocks)
{
    for (uint32_t i = 0; i < 1000; i++) {
        const struct rng_key key = {.seed = 0x9e3779b97f4a7c15u * (i + 1),
                                    .environment = i * 2654435761u,
                                    .step = ~i,
                                    .episode = i / 7};
        const uint32_t word[3] = {key.environment, key.step, key.episode}, block = i * 16769 % RNG_BLOCK_MAX;
        uint32_t expected[4], got[4];
        rng_block(&key, RNG_DROPOUT, block, expected);
        element_philox(key.seed, word, RNG_DROPOUT, block, got);
        ck_assert_mem_eq(got, expected, sizeof got);
    }
}
END_TEST

static const struct mlp_case policies[] = {
    {{4, 128, 2}, 0.6, 200}, {{1, 1, 1}, 0.5, 33},    {{2, 15, 3}, 0.1, 50},      {{4, 129, 2}, 0.6, 16},
    {{3, 300, 5}, 0.9, 31},  {{4, 1024, 16}, 0.3, 9}, {{7, 128, 11}, 0.0001, 40}, {{4, 64, 2}, 0, 21},
};
enum { POLICIES = sizeof policies / sizeof *policies };

/* The mask of one row, of the bits that 16 neighbouring blocks draw. */
static void draw_mask(const struct mlp_problem *problem, const uint32_t word[3], uint16_t *mask)
{
    const uint32_t hidden = problem->shape.hidden, words = mlp_mask_words(&problem->shape);
    memset(mask, 0, words * sizeof *mask);
    for (uint32_t block = 0; block < element_dropout_blocks(hidden); block++) {
        const uint32_t bits =
            element_keep_bits(problem->seed, word, block, element_dropout_threshold(problem->dropout));
        for (uint32_t v = 0; v < 8; v++)
            if (element_dropout_index(block, v) < hidden && (bits >> v & 1) != 0)
                mask[block / 16 * 8 + v] |= (uint16_t)(1u << block % 16);
    }
}

START_TEST(masks_and_actions_are_the_policys)
{
    struct mlp_problem problem;
    mlp_problem_init(&problem, policies[_i].shape, policies[_i].dropout, policies[_i].rows,
                     77 + (uint64_t)_i);
    const uint32_t words = mlp_mask_words(&problem.shape), actions = problem.shape.actions;
    for (uint32_t i = 0; i < problem.rows; i++) {
        const struct rng_key key = {.seed = problem.seed,
                                    .environment = problem.environment[i],
                                    .step = problem.step[i],
                                    .episode = problem.episode};
        const uint32_t word[3] = {key.environment, key.step, key.episode};
        const int32_t row[3] = {(int32_t)word[0], (int32_t)word[1], (int32_t)word[2]};
        uint16_t expected[MLP_HIDDEN_MAX / 16], got[MLP_HIDDEN_MAX / 16];
        double exact[MLP_ACTIONS_MAX], logs[MLP_ACTIONS_MAX], margin;
        float logits[MLP_ACTIONS_MAX] = {0};
        mlp_ref_draw(&problem.shape, problem.dropout, &key, expected);
        draw_mask(&problem, word, got);
        ck_assert_mem_eq(got, expected, words * sizeof *got);
        mlp_ref_forward(&problem.shape, problem.dropout, problem.exact,
                        problem.batch.observations + (size_t)problem.row[i] * problem.shape.inputs, expected,
                        exact, logs);
        for (uint32_t a = 0; a < actions; a++)
            logits[a] = (float)(logs[a] + 3);
        const uint32_t action = element_policy_action(problem.seed, row, logits, actions);
        const uint32_t sampled = mlp_ref_sample(&problem.shape, exact, &key, &margin);
        ck_assert(action == sampled || margin < 1e-6);
    }
    mlp_problem_fini(&problem);
}
END_TEST

/* ---- sums, searches, sorts ---- */

static void draw_numbers(float *x, size_t count, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        x[i] = mlp_problem_number(&seed);
}

START_TEST(sums_take_every_term_once)
{
    enum { COUNT_MAX = 3000 };
    float x[COUNT_MAX], c[COUNT_MAX];
    draw_numbers(x, COUNT_MAX, 1);
    draw_numbers(c, COUNT_MAX, 2);
    for (size_t count = 1; count <= COUNT_MAX; count = count * 5 / 3 + 1) {
        double product = 0, plain = 0, square = 0, difference = 0;
        for (size_t i = 0; i < count; i++) {
            const double a = (double)x[i], b = (double)c[i];
            plain += a;
            product += a * b;
            square += a * a;
            difference += (a - b) * (a - b);
        }
        ck_assert_double_eq_tol(elements_sum(ELEMENT_PRODUCT, x, NULL, count), plain, 1e-14 * (double)count);
        ck_assert_double_eq_tol(elements_sum(ELEMENT_PRODUCT, x, c, count), product, 1e-14 * (double)count);
        ck_assert_double_eq_tol(elements_sum(ELEMENT_SQUARE, x, NULL, count), square, 1e-14 * (double)count);
        ck_assert_double_eq_tol(elements_sum(ELEMENT_DIFFERENCE, x, c, count), difference,
                                1e-14 * (double)count);
    }
}
END_TEST

START_TEST(the_first_that_is_not_finite_is_found)
{
    enum { COUNT = 1000, LANES = 64 };
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float x[COUNT];
    for (size_t place = 0; place <= COUNT; place += 37) {
        size_t found = SIZE_MAX;
        draw_numbers(x, COUNT, place);
        x[0] = 3.40282347e38f; // the largest that is finite
        x[1] = -3.40282347e38f;
        for (size_t i = place; i < COUNT; i += 101)
            x[i] = bad[(i + place) % 4];
        for (size_t lane = 0; lane < LANES; lane++) {
            const size_t first = element_not_finite_lane(x, COUNT, lane, LANES);
            found = first < found ? first : found;
        }
        ck_assert_uint_eq(found, place < COUNT ? place : SIZE_MAX);
    }
}
END_TEST

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

START_TEST(keys_are_sorted)
{
    uint64_t keys[1024], expected[1024], state = 3;
    for (size_t padded = 2; padded <= 1024; padded *= 2) {
        for (size_t i = 0; i < padded; i++) {
            mlp_problem_number(&state);
            keys[i] = expected[i] = (state >> 60) << 32 | i;
        }
        qsort(expected, padded, sizeof *expected, by_value);
        elements_sort(keys, padded);
        ck_assert_mem_eq(keys, expected, padded * sizeof *keys);
    }
}
END_TEST

START_TEST(indices_stay_in_the_table)
{
    ck_assert_uint_eq(element_clamp(-1, 5), 0);
    ck_assert_uint_eq(element_clamp(INT32_MIN, 5), 0);
    ck_assert_uint_eq(element_clamp(4, 5), 4);
    ck_assert_uint_eq(element_clamp(5, 5), 4);
    ck_assert_uint_eq(element_clamp(INT32_MAX, 1), 0);
}
END_TEST

/* ---- optimizers and what is added by us where cuDNN does not fuse ---- */

START_TEST(adam_has_the_cpus_bits)
{
    enum { COUNT = 257, STEPS = 5 };
    static const struct adam_settings settings = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
    float p[2][COUNT], m[2][COUNT] = {{0}}, v[2][COUNT] = {{0}}, g[COUNT];
    draw_numbers(p[0], COUNT, 9);
    memcpy(p[1], p[0], sizeof p[0]);
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct adam_factors factors;
        draw_numbers(g, COUNT, step);
        g[step] = 0;
        adam_update(&settings, step, p[0], m[0], v[0], g, COUNT);
        adam_factors(&settings, step, &factors);
        for (size_t i = 0; i < COUNT; i++)
            element_adam(&factors, &p[1][i], &m[1][i], &v[1][i], g[i]);
        ck_assert_mem_eq(p[1], p[0], sizeof p[0]);
        ck_assert_mem_eq(m[1], m[0], sizeof m[0]);
        ck_assert_mem_eq(v[1], v[0], sizeof v[0]);
    }
}
END_TEST

START_TEST(sgd_begins_its_momentum_with_the_gradient)
{
    float p = 1, v = 1e30f; // what is there before the first step does not count
    element_sgd(0.5f, 0.25f, true, &p, 2, &v);
    ck_assert(v == 2 && p == 0);
    element_sgd(0.5f, 0.25f, false, &p, 1, &v);
    ck_assert(v == 1.5f && p == -0.75f);
    element_sgd(0.5f, 0, false, &p, -1, NULL);
    ck_assert(p == -0.25f);
}
END_TEST

START_TEST(bias_goes_by_channel)
{
    static const float bias[3] = {1, -10, 100};
    static const float expected[12] = {1, 2, -8, -7, 104, 105, 7, 8, -2, -1, 110, 111};
    for (size_t i = 0; i < 12; i++)
        ck_assert(element_bias((float)i, bias, i, 3, 2) == expected[i]);
}
END_TEST

START_TEST(a_nan_passes_relu_and_mask)
{
    static const int32_t key[3] = {1, 2, 3};
    static const float x[3] = {NAN, -2, 3};
    const struct element_dropout none = {
        .rows = key, .width = 3, .threshold = element_dropout_threshold(0), .scale = 1, .relu = true};
    float y[3];
    for (size_t i = 0; i < element_dropout_blocks(3); i++)
        element_drop(&none, i, x, y);
    ck_assert(isnan(y[0]) && y[1] == 0 && y[2] == 3);
    ck_assert(element_relu_backward(0, 1) == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_elements");
    TCase *operations = tcase_create("operations"), *parts = tcase_create("parts");
    tcase_set_timeout(operations, 60);
    tcase_add_checked_fixture(operations, backends_open, backends_close);
    tcase_add_loop_test(operations, operations_agree_with_ref, 0, OP_COUNT);
    tcase_add_loop_test(operations, statistics_lose_nothing_far_from_zero, 0, 2);
    suite_add_tcase(suite, operations);
    tcase_add_test(parts, philox_is_rng_blocks);
    tcase_add_loop_test(parts, masks_and_actions_are_the_policys, 0, POLICIES);
    tcase_add_test(parts, sums_take_every_term_once);
    tcase_add_test(parts, the_first_that_is_not_finite_is_found);
    tcase_add_test(parts, keys_are_sorted);
    tcase_add_test(parts, indices_stay_in_the_table);
    tcase_add_test(parts, adam_has_the_cpus_bits);
    tcase_add_test(parts, sgd_begins_its_momentum_with_the_gradient);
    tcase_add_test(parts, bias_goes_by_channel);
    tcase_add_test(parts, a_nan_passes_relu_and_mask);
    suite_add_tcase(suite, parts);
    return suite_run(suite);
}
