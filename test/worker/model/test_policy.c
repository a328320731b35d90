/* The policy on the CPU: how it begins, that it acts with its own seed, and its learning against PyTorch
 * (test/golden/policy.txt, by policy.py beside it). */
#include "kernels/base/rng.h"
#include "kernels/params/gradients.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/oracle/mlp_ref.h"
#include "test/worker/model/policy_inside.h"
#include "test/worker/model/policy_problem.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct mlp_shape tutorial = {4, 128, 2};
static const struct policy_config cartpole = {
    POLICY_PROBLEM_SPACES(4, 128, 2), .dropout = 0.6, .seed = 543,
    .adam = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}};

static struct policy *open_policy(const struct policy_config *config)
{
    struct policy *policy = NULL;
    struct error error = {0};
    ck_assert_msg(policy_new(&policy, config, NULL, &error) == STATUS_OK, "%s", error.text);
    return policy;
}

static void replace_all(struct policy *policy, const float *from)
{
    memcpy(policy_inside(policy)->values, from, policy_inside(policy)->count * sizeof *from);
    policy_inside_load(policy);
}

static void expect_all(const struct policy *policy, const float *expected)
{
    ck_assert_mem_eq(policy_inside(policy)->values, expected,
                     policy_inside(policy)->count * sizeof *expected);
}

/* ---- how it begins ---- */

START_TEST(parameters_are_named_and_shaped_as_in_pytorch)
{
    static const struct {
        const char *name;
        struct shape shape;
    } expected[] = {{"affine1.weight", {2, {128, 4}}},
                    {"affine1.bias", {1, {128}}},
                    {"affine2.weight", {2, {2, 128}}},
                    {"affine2.bias", {1, {2}}}};
    struct policy_parameter parameters[POLICY_PARAMETERS_MAX];
    ck_assert_uint_eq(policy_parameters(parameters, &cartpole), 4);
    for (uint32_t i = 0; i < 4; i++) {
        ck_assert_str_eq(parameters[i].name, expected[i].name);
        ck_assert(shape_equal(&parameters[i].shape, &expected[i].shape));
    }
}
END_TEST

/* Uniform in ±1 / sqrt(fan-in): inside, nearly touching both ends, mean and variance as they should be. */
START_TEST(parameters_begin_as_a_linear_layer_does)
{
    struct policy *policy = open_policy(&cartpole);
    static const size_t counts[] = {512, 128, 256, 2};
    const float *values = policy_inside(policy)->values;
    for (uint32_t i = 0; i < 4; values += counts[i++]) {
        const size_t count = counts[i];
        double bound = i < 2 ? 0.5 : 1 / sqrt(128), low = 0, high = 0, sum = 0, squares = 0;
        double n = (double)count;
        for (size_t e = 0; e < count; e++) {
            double value = (double)values[e];
            low = fmin(low, value);
            high = fmax(high, value);
            sum += value;
            squares += value * value;
        }
        ck_assert_double_le(high, bound);
        ck_assert_double_ge(low, -bound);
        if (i == 3) // two numbers have no distribution
            continue;
        ck_assert_double_gt(high, 0.9 * bound);
        ck_assert_double_lt(low, -0.9 * bound);
        ck_assert_double_eq_tol(sum / n, 0, 4 * bound / sqrt(3 * n));
        ck_assert_double_eq_tol(squares / n, bound * bound / 3, 4 * bound * bound * sqrt(4.0 / 45 / n));
    }
    policy_free(policy);
}
END_TEST

/* Any one parameter by the header's words, and the same again from the same seed only. */
START_TEST(parameters_are_drawn_by_position)
{
    struct policy_config other = cartpole;
    other.seed++;
    struct policy *policy = open_policy(&cartpole), *again = open_policy(&cartpole),
                  *differs = open_policy(&other);
    struct rng_key key = {.seed = 543, .environment = 77, .episode = 2};
    uint32_t words[4];
    rng_block(&key, RNG_INIT, 0, words);
    ck_assert_uint_eq(policy_inside(policy)->count, 898);
    double expected = (2 * (double)rng_uniform_float(words[0]) - 1) / sqrt(128);
    ck_assert_float_eq_tol(policy_inside(policy)->values[640 + 77], (float)expected, 1e-9f);
    expect_all(again, policy_inside(policy)->values);
    unsigned same = 0;
    for (size_t p = 0; p < 898; p++)
        same += policy_inside(policy)->values[p] == policy_inside(differs)->values[p];
    ck_assert_uint_lt(same, 3);
    policy_free(policy);
    policy_free(again);
    policy_free(differs);
}
END_TEST

START_TEST(what_cannot_be_is_refused)
{
    struct policy *none = NULL;
    struct error error = {0};
    struct policy_config config = cartpole;
    config.width[0] = 5000;
    ck_assert_int_eq(policy_new(&none, &config, NULL, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "units in a hidden layer, got 5000"));
    config = cartpole;
    config.adam.lr = NAN;
    ck_assert_int_eq(policy_new(&none, &config, NULL, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "lr"));
    ck_assert_ptr_null(none);
}
END_TEST

START_TEST(it_acts_as_its_parameters_and_seed_say)
{
    struct mlp_problem problem;
    mlp_problem_init(&problem, tutorial, cartpole.dropout, 50, 5);
    struct policy *policy = open_policy(&cartpole);
    ck_assert_int_eq(policy_problem_act(policy, &problem, 9, NULL), STATUS_OK);
    int32_t actions[50];
    memcpy(actions, problem.batch.actions, sizeof actions);
    struct mlp *mlp = mlp_problem_load(&problem, NULL);
    mlp_load(mlp, policy_inside(policy)->values);
    mlp_act(mlp, &problem.batch, 543, 9, problem.environment, problem.step, NULL);
    ck_assert_mem_eq(actions, problem.batch.actions, sizeof actions);
    replace_all(policy, problem.parameters);
    ck_assert_int_eq(policy_problem_act(policy, &problem, 9, NULL), STATUS_OK);
    memcpy(actions, problem.batch.actions, sizeof actions);
    mlp_load(mlp, problem.parameters);
    mlp_act(mlp, &problem.batch, 543, 9, problem.environment, problem.step, NULL);
    ck_assert_mem_eq(actions, problem.batch.actions, sizeof actions);
    mlp_free(mlp);
    policy_free(policy);
    mlp_problem_fini(&problem);
}
END_TEST

/* ---- against PyTorch ---- */

static FILE *golden;
static struct mlp_problem problem;

static void golden_open(void)
{
    golden = fopen("test/golden/policy.txt", "r");
    ck_assert_msg(golden != NULL, "test/golden/policy.txt: cannot be opened");
    ck_assert_int_ne(fscanf(golden, "#%*[^\n]\n"), EOF);
}

static void golden_close(void)
{
    fclose(golden);
}

/* The next case's problem, with the file's masks and actions. False at the file's end. */
static bool golden_case(void)
{
    struct mlp_shape shape;
    double dropout;
    uint32_t rows, seed;
    if (fscanf(golden, " case %u %u %u %lf %u %u", &shape.inputs, &shape.hidden, &shape.actions, &dropout,
               &rows, &seed) != 6)
        return false;
    mlp_problem_init(&problem, shape, dropout, rows, seed);
    uint64_t state = seed + 1000;
    for (uint32_t r = 0; r < rows; r++) {
        uint16_t *mask = problem.batch.masks + (size_t)r * mlp_mask_words(&shape);
        problem.row[r] = r;
        for (uint32_t j = 0; j < shape.hidden; j++)
            if (mlp_problem_number(&state) >= 0)
                mask[j / 16] |= (uint16_t)(1u << j % 16);
    }
    for (uint32_t r = 0; r < rows; r++)
        problem.batch.actions[r] = (int32_t)((mlp_problem_number(&state) + 1) / 2 * (float)shape.actions);
    return true;
}

/* Holds `got` to the line `name`: within five times what PyTorch's own float32 deviates from its float64,
 * and never less than 1e-6 of the line's largest value. */
static void golden_compare(const char *name, const float *got, size_t count)
{
    char found[32];
    size_t values;
    double deviation, largest = 0, worst = 0, expected;
    ck_assert_int_eq(fscanf(golden, " %31s %zu %lf", found, &values, &deviation), 3);
    ck_assert_str_eq(found, name);
    ck_assert_uint_eq(values, count);
    for (size_t i = 0; i < count; i++) {
        ck_assert_int_eq(fscanf(golden, "%lf", &expected), 1);
        largest = fmax(largest, fabs(expected));
        worst = fmax(worst, fabs((double)got[i] - expected));
        ck_assert(!isnan(got[i]));
    }
    double bound = fmax(5 * deviation, 1e-6 * largest);
    ck_assert_msg(worst <= bound, "%s: off by %.3g, allowed %.3g", name, worst, bound);
}

/* Of the file's masks, which no draw gives, by the oracle that test_mlp.c holds mlp_act to. */
static void oracle_probabilities(void)
{
    const uint32_t words = mlp_mask_words(&problem.shape), inputs = problem.shape.inputs;
    for (uint32_t r = 0; r < problem.rows; r++) {
        double probabilities[MLP_ACTIONS_MAX];
        mlp_ref_forward(&problem.shape, problem.dropout, problem.exact,
                        problem.batch.observations + (size_t)r * inputs,
                        problem.batch.masks + (size_t)r * words, probabilities, NULL);
        for (uint32_t a = 0; a < problem.shape.actions; a++)
            problem.probabilities[r * problem.shape.actions + a] = (float)probabilities[a];
    }
}

START_TEST(learning_is_pytorchs)
{
    int cases = 0;
    for (; golden_case(); cases++) {
        const struct policy_config config = policy_problem_config(problem.shape, problem.dropout, 543);
        struct policy *policy = open_policy(&config);
        replace_all(policy, problem.parameters);
        struct mlp *mlp = mlp_problem_load(&problem, NULL);
        oracle_probabilities();
        golden_compare("probabilities", problem.probabilities, (size_t)problem.rows * problem.shape.actions);
        double loss;
        struct error error = {0};
        mlp_problem_learn(&problem, mlp);
        mlp_free(mlp);
        for (int step = 1; step <= 3; step++) {
            ck_assert_int_eq(policy_problem_learn(policy, &problem, 0, &loss, NULL, NULL, &error), STATUS_OK);
            if (step == 1) {
                float rounded = (float)loss;
                golden_compare("loss", &rounded, 1);
                golden_compare("gradient", problem.gradient, problem.count);
                golden_compare("parameters1", policy_inside(policy)->values, problem.count);
            }
        }
        golden_compare("parameters3", policy_inside(policy)->values, problem.count);
        policy_free(policy);
        mlp_problem_fini(&problem);
    }
    ck_assert_int_eq(cases, 3);
}
END_TEST

/* ---- learning ---- */

static void count_call(void *context)
{
    ++*(int *)context;
}

START_TEST(progress_is_told_per_chunk_and_the_loss_falls)
{
    static const uint32_t rows[] = {1, 256, 257, 1000};
    mlp_problem_init(&problem, tutorial, cartpole.dropout, rows[_i], 11);
    struct policy *policy = open_policy(&cartpole);
    struct error error = {0};
    double first = 0, loss = 0;
    for (uint32_t i = 0; i < problem.rows; i++)
        problem.coefficient[i] = fabsf(problem.coefficient[i]) + 0.1f; // a loss with a floor
    ck_assert_int_eq(policy_problem_act(policy, &problem, 0, NULL), STATUS_OK);
    for (int pass = 0; pass < 10; pass++) {
        int calls = 0;
        ck_assert_int_eq(policy_problem_learn(policy, &problem, 0, &loss, count_call, &calls, &error),
                         STATUS_OK);
        ck_assert_int_eq(calls, (int)((problem.rows + 255) / 256));
        if (pass == 0)
            first = loss;
    }
    ck_assert_double_lt(loss, 0.99 * first);
    policy_free(policy);
    mlp_problem_fini(&problem);
}
END_TEST

/* What makes the loss or a gradient not finite, and what is said of it. */
static const struct {
    enum { BREAK_RETURN, BREAK_GRADIENT, BREAK_OBSERVATION, BREAK_PARAMETER } what;
    float value;
    const char *words;
} breaks[] = {
    {BREAK_RETURN, NAN,
     "the loss is nan; the first tensor that holds a NaN or an infinity is the returns, row 290 of 300"},
    {BREAK_RETURN, INFINITY,
     "the loss is inf; the first tensor that holds a NaN or an infinity is the returns, row 290"},
    {BREAK_GRADIENT, 3e38f, "the gradient of affine1.weight holds a NaN or an infinity"},
    {BREAK_OBSERVATION, NAN, "the observations, row 290 of 300"},
    {BREAK_PARAMETER, NAN,
     "the loss is nan; the first tensor that holds a NaN or an infinity is the parameter affine2.bias"},
};

static void learn_equally(struct policy *policy, struct policy *spared)
{
    double loss, other;
    for (int pass = 0; pass < 2; pass++) {
        ck_assert_int_eq(policy_problem_learn(policy, &problem, 0, &loss, NULL, NULL, NULL), STATUS_OK);
        ck_assert_int_eq(policy_problem_learn(spared, &problem, 0, &other, NULL, NULL, NULL), STATUS_OK);
        ck_assert_mem_eq(&loss, &other, sizeof loss);
    }
    expect_all(policy, policy_inside(spared)->values);
}

/* Told by name, and nothing has moved, the optimizer's moments and count included. */
START_TEST(what_is_not_finite_changes_nothing)
{
    mlp_problem_init(&problem, tutorial, cartpole.dropout, 300, 12);
    struct policy *policy = open_policy(&cartpole), *spared = open_policy(&cartpole);
    struct error error = {0};
    double loss = -1;
    float whole[1000] = {0}, broken[1000];
    ck_assert_int_eq(policy_problem_act(policy, &problem, 0, NULL), STATUS_OK);
    memcpy(whole, policy_inside(policy)->values, problem.count * sizeof *whole);
    memcpy(broken, whole, sizeof broken);
    broken[problem.count - 1] = NAN;
    if (breaks[_i].what == BREAK_PARAMETER)
        replace_all(policy, broken);
    float *culprit = breaks[_i].what == BREAK_OBSERVATION
                         ? &((float *)(uintptr_t)problem.batch.observations)[problem.row[290] * 4]
                         : &problem.coefficient[290];
    const float kept = *culprit;
    float coefficients[300];
    memcpy(coefficients, problem.coefficient, sizeof coefficients);
    *culprit = breaks[_i].what == BREAK_PARAMETER ? kept : breaks[_i].value;
    for (uint32_t i = 0; breaks[_i].what == BREAK_GRADIENT && i < 300; i++) // the loss cancels, it does not
        problem.coefficient[i] = problem.batch.actions[problem.row[i]] == 0 ? 3e38f : -3e38f;
    ck_assert_int_eq(policy_problem_learn(policy, &problem, 0, &loss, NULL, NULL, &error), STATUS_INTERNAL);
    ck_assert_msg(strstr(error.text, breaks[_i].words) != NULL, "%s", error.text);
    ck_assert_double_eq(loss, -1);
    *culprit = kept;
    memcpy(problem.coefficient, coefficients, sizeof coefficients);
    if (breaks[_i].what == BREAK_PARAMETER)
        replace_all(policy, whole);
    expect_all(policy, whole);
    learn_equally(policy, spared);
    policy_free(policy);
    policy_free(spared);
    mlp_problem_fini(&problem);
}
END_TEST

/* ---- threads ---- */

static void count_progress(void *context)
{
    ++*(unsigned *)context;
}

/* Three steps on 20,001 rows: two waves of chunks, the last chunk not full. */
static struct policy *learn_with_threads(uint32_t threads, double losses[3], unsigned *progress)
{
    struct mlp_problem rollout;
    struct policy_config config = cartpole;
    config.rows_max = 20001;
    config.threads = threads;
    mlp_problem_init(&rollout, tutorial, cartpole.dropout, config.rows_max, 7);
    struct policy *policy = open_policy(&config);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(policy_problem_act(policy, &rollout, (uint32_t)i, NULL), STATUS_OK);
        ck_assert_int_eq(
            policy_problem_learn(policy, &rollout, (uint32_t)i, &losses[i], count_progress, progress, NULL),
            STATUS_OK);
    }
    mlp_problem_fini(&rollout);
    return policy;
}

START_TEST(any_number_of_threads_learns_the_same_bits)
{
    double expected[3], losses[3];
    unsigned chunks = 0, waves = 0;
    struct policy *one = learn_with_threads(1, expected, &chunks);
    struct policy *several = learn_with_threads((uint32_t)_i, losses, &waves);
    ck_assert_ptr_null(policy_inside(one)->team);
    ck_assert_ptr_nonnull(policy_inside(several)->team);
    ck_assert_mem_eq(losses, expected, sizeof losses);
    expect_all(several, policy_inside(one)->values);
    ck_assert_uint_eq(chunks, 3 * 79);
    ck_assert_uint_eq(waves, 3 * 2);
    policy_free(one);
    policy_free(several);
}
END_TEST

START_TEST(a_small_rollout_starts_no_threads)
{
    struct policy_config config = cartpole;
    config.threads = 8;
    config.rows_max = 2 * POLICY_THREAD_ROWS - 1;
    struct policy *policy = open_policy(&config);
    ck_assert_ptr_null(policy_inside(policy)->team);
    policy_free(policy);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy");
    TCase *begin = tcase_create("begin");
    tcase_add_test(begin, parameters_are_named_and_shaped_as_in_pytorch);
    tcase_add_test(begin, parameters_begin_as_a_linear_layer_does);
    tcase_add_test(begin, parameters_are_drawn_by_position);
    tcase_add_test(begin, what_cannot_be_is_refused);
    tcase_add_test(begin, it_acts_as_its_parameters_and_seed_say);
    suite_add_tcase(suite, begin);
    TCase *pytorch = tcase_create("pytorch");
    tcase_add_checked_fixture(pytorch, golden_open, golden_close);
    tcase_add_test(pytorch, learning_is_pytorchs);
    suite_add_tcase(suite, pytorch);
    TCase *learning = tcase_create("learning");
    tcase_add_loop_test(learning, progress_is_told_per_chunk_and_the_loss_falls, 0, 4);
    tcase_add_loop_test(learning, any_number_of_threads_learns_the_same_bits, 2, 5);
    tcase_add_test(learning, a_small_rollout_starts_no_threads);
    tcase_add_loop_test(learning, what_is_not_finite_changes_nothing, 0, sizeof breaks / sizeof *breaks);
    suite_add_tcase(suite, learning);
    return suite_run(suite);
}
