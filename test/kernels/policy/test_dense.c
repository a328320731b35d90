/* What a general policy chooses and how it judges it, on every instruction set of this machine: against the
 * oracle in double (test/oracle), against itself in other batches, and the instruction sets against each
 * other. */
#include "test/kernels/policy/dense_cases.h"
#include "test/kernels/policy/load_parameters.h"
#include "test/oracle/dense_ref.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct dense_problem problem;
static struct dense_ref_row expected; // large

static bool open_case(int number)
{
    return dense_problem_open(&problem, dense_cases, number);
}

static void close_case(void)
{
    dense_problem_close(&problem);
}

static struct rng_key key_of(uint32_t i)
{
    return (struct rng_key){.seed = problem.draw.seed,
                            .environment = problem.environment[i],
                            .step = dense_explores(&problem.shape) ? problem.step[i] - problem.step[i] % 4
                                                                   : problem.step[i],
                            .episode = problem.draw.episode};
}

static double worse(double worst, float got, double should)
{
    const double error = fabs((double)got - should) / (1 + fabs(should));
    return !(error <= worst) ? error : worst; // a NaN is worst
}

/* Results are within this of the oracle's, times 1 + |result|; they stay below a quarter of it. */
static const double near = 1.6e-6;

START_TEST(results_are_the_oracles)
{
    if (!open_case(_i))
        return;
    const struct dense_results results = dense_problem_results(&problem);
    double worst = 0;
    for (uint32_t first = 0; first < problem.rows; first += DENSE_CHUNK_ROWS) {
        const struct dense_batch chunk = dense_problem_piece(&problem, first, DENSE_CHUNK_ROWS);
        dense_evaluate(problem.dense, problem.work, &chunk, &results);
        for (uint32_t i = 0; i < chunk.count; i++) {
            dense_ref_evaluate(&problem.shape, problem.exact, &chunk, chunk.row[i], &expected);
            worst = worse(worst, results.log_probability[i], expected.log_probability);
            worst = worse(worst, results.entropy[i], expected.entropy);
            worst = problem.shape.value ? worse(worst, results.value[i], expected.value) : worst;
        }
    }
    ck_assert_msg(worst <= near, "%g", worst);
    close_case();
}
END_TEST

/* The number of row i's components that are not the oracle's and could not be by rounding. */
static uint32_t wrong_actions(uint32_t i)
{
    const struct dense_shape *shape = &problem.shape;
    const size_t row = problem.row[i], first = row * shape->components;
    const struct rng_key key = key_of(i);
    const double bound = dense_explores(shape) ? 4 * near : near; // noise is a sum over the features
    uint32_t wrong = 0;
    dense_ref_evaluate(shape, problem.exact, &problem.batch, (uint32_t)row, &expected);
    for (uint32_t c = 0; c < shape->components; c++) {
        double margin = 1;
        if (shape->gaussian)
            wrong += !(worse(0, problem.batch.actions[first + c],
                             dense_ref_action(shape, problem.exact, &expected, &key, c)) <= bound);
        else if ((uint32_t)problem.batch.choices[first + c] !=
                 dense_ref_choice(shape, &expected, &key, c, &margin))
            wrong += margin > near;
    }
    return wrong;
}

START_TEST(actions_are_the_oracles)
{
    if (!open_case(_i))
        return;
    uint32_t wrong = 0;
    dense_problem_act(&problem);
    for (uint32_t i = 0; i < problem.rows; i++)
        wrong += wrong_actions(i);
    ck_assert_uint_eq(wrong, 0);
    close_case();
}
END_TEST

/* A greedy choice's logit is, but for rounding, the greatest that the mask allows; a greedy Gaussian's is the
 * mean. */
START_TEST(greedy_actions_are_the_likeliest)
{
    if (!open_case(_i))
        return;
    const struct dense_results results = dense_problem_results(&problem);
    const struct dense_shape *shape = &problem.shape;
    uint32_t wrong = 0;
    dense_problem_act_rows(problem.dense, problem.work, &problem.batch, NULL, &results);
    for (uint32_t row = 0; row < problem.rows; row++) {
        dense_ref_evaluate(shape, problem.exact, &problem.batch, row, &expected);
        for (uint32_t c = 0, offset = 0; c < shape->components;
             offset += shape->gaussian ? 1 : shape->choices[c], c++) {
            const size_t at = (size_t)row * shape->components + c;
            if (shape->gaussian) {
                wrong += !(worse(0, problem.batch.actions[at], expected.z[c]) <= near);
                continue;
            }
            for (uint32_t a = 0; a < shape->choices[c]; a++)
                wrong +=
                    expected.p[offset + (uint32_t)problem.batch.choices[at]] < expected.p[offset + a] - near;
        }
    }
    ck_assert_uint_eq(wrong, 0);
    close_case();
}
END_TEST

START_TEST(the_first_of_equal_logits_is_the_greedy_one)
{
    const struct dense_case one = {{.inputs = 2, DENSE_CATEGORICALS(4)}, 20, true};
    dense_problem_init(&problem, &one, 5);
    memset(problem.parameters, 0, problem.count * sizeof *problem.parameters);
    ck_assert(dense_problem_load(&problem, NULL));
    dense_problem_act_rows(problem.dense, problem.work, &problem.batch, NULL, &(struct dense_results){0});
    for (uint32_t row = 0; row < problem.rows; row++) {
        const uint8_t *mask = problem.mask + (size_t)row * 4;
        const int32_t first = mask[0] ? 0 : mask[1] ? 1 : mask[2] ? 2 : 3;
        ck_assert_int_eq(problem.batch.choices[row], first);
    }
    close_case();
}
END_TEST

/* ---- the same bits ---- */

/* Everything that acting and judging give, of the whole batch. */
struct everything {
    float *numbers; // (4, rows)
    void *actions;
    size_t bytes;
};

static void judge(struct dense_results results)
{
    for (uint32_t first = 0; first < problem.rows; first += DENSE_CHUNK_ROWS) {
        const struct dense_batch chunk = dense_problem_piece(&problem, first, DENSE_CHUNK_ROWS);
        dense_evaluate(problem.dense, problem.work, &chunk, &results);
        results.log_probability += first == 0 ? DENSE_CHUNK_ROWS : 0;
        results.entropy += first == 0 ? DENSE_CHUNK_ROWS : 0;
    }
}

static struct everything compute_everything(void)
{
    const void *actions;
    struct everything all = {.numbers = calloc(4 * (size_t)problem.rows, sizeof(float))};
    dense_problem_act(&problem);
    all.bytes = dense_problem_actions(&problem, &actions);
    all.actions = malloc(all.bytes);
    ck_assert(all.numbers != NULL && all.actions != NULL && problem.rows <= 2 * DENSE_CHUNK_ROWS);
    memcpy(all.actions, actions, all.bytes);
    memcpy(all.numbers, problem.log_probability, problem.rows * sizeof(float));
    memcpy(all.numbers + problem.rows, problem.value, problem.rows * sizeof(float));
    judge((struct dense_results){all.numbers + 2 * (size_t)problem.rows,
                                 all.numbers + 3 * (size_t)problem.rows, NULL});
    return all;
}

static void free_everything(struct everything all)
{
    free(all.numbers);
    free(all.actions);
}

START_TEST(instruction_sets_agree_bit_for_bit)
{
    ck_assert(open_case(_i * DENSE_ISAS + DENSE_ISAS - 1));
    struct everything baseline = compute_everything();
    close_case();
    for (int j = 0; j < DENSE_ISAS - 1; j++) {
        if (!open_case(_i * DENSE_ISAS + j))
            continue;
        struct everything all = compute_everything();
        ck_assert_mem_eq(all.numbers, baseline.numbers, 4 * (size_t)problem.rows * sizeof(float));
        ck_assert_mem_eq(all.actions, baseline.actions, all.bytes);
        free_everything(all);
        close_case();
    }
    free_everything(baseline);
}
END_TEST

/* What dense_act said of an action is what dense_evaluate says, and the value is the value. */
START_TEST(judging_gives_the_bits_of_acting)
{
    if (!open_case(_i))
        return;
    struct everything all = compute_everything();
    ck_assert_mem_eq(all.numbers, all.numbers + 2 * (size_t)problem.rows, problem.rows * sizeof(float));
    if (problem.shape.value) {
        for (uint32_t first = 0; first < problem.rows; first += DENSE_CHUNK_ROWS) {
            const struct dense_batch chunk = dense_problem_piece(&problem, first, DENSE_CHUNK_ROWS);
            dense_evaluate(problem.dense, problem.work, &chunk,
                           &(struct dense_results){.value = problem.value + first});
        }
        ck_assert_mem_eq(problem.value, all.numbers + problem.rows, problem.rows * sizeof(float));
        judge((struct dense_results){problem.log_probability, problem.entropy, NULL});
    }
    free_everything(all);
    close_case();
}
END_TEST

/* The batch again in pieces of 1, 2, 3, … rows, each from its end to its begin: other neighbours, other
 * places. */
START_TEST(a_row_does_not_know_its_batch)
{
    if (!open_case(_i))
        return;
    const void *actions;
    struct everything all = compute_everything();
    memset(problem.batch.choices, 0, (size_t)problem.rows * problem.shape.components * sizeof(int32_t));
    memset(problem.batch.actions, 0, (size_t)problem.rows * problem.shape.components * sizeof(float));
    for (uint32_t first = 0, count = 1; first < problem.rows; first += count++) {
        struct dense_batch piece = dense_problem_piece(&problem, first, count);
        uint32_t row[32], environment[32], step[32];
        float log_probability[32], value[32];
        ck_assert_uint_le(piece.count, 32);
        for (uint32_t i = 0; i < piece.count; i++) {
            const uint32_t from = first + piece.count - 1 - i;
            row[i] = problem.row[from];
            environment[i] = problem.environment[from];
            step[i] = problem.step[from];
        }
        piece.row = row;
        const struct dense_draw draw = {problem.draw.seed, problem.draw.episode, environment, step,
                                        problem.draw.noise_steps};
        const struct dense_results results = {log_probability, NULL, problem.shape.value ? value : NULL};
        dense_problem_act_rows(problem.dense, problem.work, &piece, &draw, &results);
        for (uint32_t i = 0; i < piece.count; i++) {
            const uint32_t from = first + piece.count - 1 - i;
            ck_assert_mem_eq(&log_probability[i], &all.numbers[from], sizeof(float));
            if (problem.shape.value)
                ck_assert_mem_eq(&value[i], &all.numbers[problem.rows + from], sizeof(float));
        }
    }
    dense_problem_actions(&problem, &actions);
    ck_assert_mem_eq(actions, all.actions, all.bytes);
    free_everything(all);
    close_case();
}
END_TEST

static void *act_alone(void *context)
{
    struct dense_work *work = NULL;
    struct error error;
    (void)context;
    if (dense_work_new(&work, problem.dense, &error) != STATUS_OK)
        return NULL;
    float *log_probability = calloc(problem.rows, sizeof *log_probability);
    const struct dense_results results = {log_probability, NULL, NULL};
    struct dense_batch batch = problem.batch;
    batch.choices = calloc((size_t)problem.rows * problem.shape.components, sizeof *batch.choices);
    if (log_probability != NULL && batch.choices != NULL)
        dense_problem_act_rows(problem.dense, work, &batch, &problem.draw, &results);
    dense_work_free(work);
    free(batch.choices);
    return log_probability;
}

START_TEST(threads_share_the_weights)
{
    pthread_t threads[3];
    ck_assert(open_case(0 * DENSE_ISAS + DENSE_ISAS - 1));
    dense_problem_act(&problem);
    for (int t = 0; t < 3; t++)
        ck_assert_int_eq(pthread_create(&threads[t], NULL, act_alone, NULL), 0);
    for (int t = 0; t < 3; t++) {
        void *log_probability;
        ck_assert_int_eq(pthread_join(threads[t], &log_probability), 0);
        ck_assert_ptr_nonnull(log_probability);
        ck_assert_mem_eq(log_probability, problem.log_probability, problem.rows * sizeof(float));
        free(log_probability);
    }
    close_case();
}
END_TEST

/* ---- masks ---- */

START_TEST(one_allowed_choice_is_certain)
{
    if (!open_case(3 * DENSE_ISAS + _i))
        return;
    for (uint32_t row = 0; row < problem.rows; row++) {
        memset(problem.mask + (size_t)row * 5, 0, 5);
        problem.mask[(size_t)row * 5 + row % 5] = 1;
    }
    dense_problem_act(&problem);
    struct dense_results results = dense_problem_results(&problem);
    for (uint32_t i = 0; i < problem.rows; i++) {
        ck_assert_int_eq(problem.batch.choices[i], i % 5);
        ck_assert(results.log_probability[i] == 0);
    }
    dense_evaluate(problem.dense, problem.work, &problem.batch, &results);
    for (uint32_t i = 0; i < problem.rows; i++)
        ck_assert(results.log_probability[i] == 0 && results.entropy[i] == 0);
    close_case();
}
END_TEST

/* The forbidden choices are the likely ones: an allowed one has a probability far below the uniform's steps.
 */
START_TEST(a_forbidden_choice_is_never_made)
{
    const struct dense_case one = {{.inputs = 1, DENSE_CATEGORICALS(20)}, 400, true};
    const float biases[] = {0, 50, -50, 120, NAN, INFINITY, -INFINITY};
    dense_problem_init(&problem, &one, 9);
    memset(problem.parameters, 0, problem.count * sizeof *problem.parameters);
    ck_assert(dense_problem_load(&problem, dense_isas[_i]) || _i < DENSE_ISAS - 1);
    for (uint32_t b = 0; problem.dense != NULL && b < sizeof biases / sizeof *biases; b++) {
        for (uint32_t a = 0; a < 20; a++)
            problem.parameters[20 + a] = a % 3 == 1 ? biases[b] : -0.5f * (float)a;
        load_dense(problem.dense, &problem.shape, problem.parameters);
        for (int greedy = 0; greedy < 2; greedy++) {
            uint32_t wrong = 0;
            dense_problem_act_rows(problem.dense, problem.work, &problem.batch, greedy ? NULL : &problem.draw,
                                   &(struct dense_results){.log_probability = problem.log_probability});
            for (uint32_t row = 0; row < problem.rows; row++)
                wrong += problem.mask[row * 20 + (uint32_t)problem.batch.choices[row]] == 0;
            ck_assert_msg(wrong == 0, "bias %g: %u", (double)biases[b], wrong);
        }
    }
    close_case();
}
END_TEST

START_TEST(a_forbidden_action_has_no_probability)
{
    ck_assert(open_case(3 * DENSE_ISAS + DENSE_ISAS - 1));
    struct dense_results results = dense_problem_results(&problem);
    const uint32_t row = problem.row[7];
    problem.batch.choices[row] = 2;
    memcpy(problem.mask + (size_t)row * 5, (uint8_t[]){1, 1, 0, 1, 0}, 5);
    dense_evaluate(problem.dense, problem.work, &problem.batch, &results);
    ck_assert(isinf(results.log_probability[7]) && results.log_probability[7] < 0);
    ck_assert(isfinite(results.entropy[7]));
    close_case();
}
END_TEST

/* One observation, 40,000 steps: each choice as often as its probability says, within 5 standard deviations,
 * and the components independent of each other. */
START_TEST(frequencies_follow_the_probabilities)
{
    enum { ROWS = 40000 };
    const struct dense_case one = {{.inputs = 3, DENSE_HIDDEN(24), DENSE_CATEGORICALS(5, 2)}, ROWS, false};
    dense_problem_init(&problem, &one, 7);
    for (uint32_t i = 0; i < ROWS; i++)
        memcpy(problem.observations + (size_t)i * 3, problem.observations, 3 * sizeof(float));
    ck_assert(dense_problem_load(&problem, NULL));
    dense_problem_act(&problem);
    dense_ref_evaluate(&problem.shape, problem.exact, &problem.batch, 0, &expected);
    unsigned taken[5][2] = {{0}};
    for (uint32_t i = 0; i < ROWS; i++)
        taken[problem.batch.choices[2 * i]][problem.batch.choices[2 * i + 1]]++;
    for (int a = 0; a < 5; a++)
        for (int b = 0; b < 2; b++) {
            const double p = expected.p[a] * expected.p[5 + b];
            ck_assert_double_eq_tol(taken[a][b], ROWS * p, 5 * sqrt(ROWS * p * (1 - p)));
            ck_assert_double_gt(ROWS * p * (1 - p), 100); // else the test would say little
        }
    close_case();
}
END_TEST

/* Mean, deviation and the correlation of neighbours, within 5 standard errors. */
START_TEST(gaussian_actions_have_their_moments)
{
    enum { ROWS = 40000, D = 6 };
    const struct dense_case one = {{.inputs = 1, .gaussian = true, .components = D}, ROWS, false};
    dense_problem_init(&problem, &one, 8);
    for (uint32_t i = 0; i < ROWS; i++)
        problem.observations[i] = 0.5f;
    ck_assert(dense_problem_load(&problem, NULL));
    dense_problem_act(&problem);
    dense_ref_evaluate(&problem.shape, problem.exact, &problem.batch, 0, &expected);
    double sum[D] = {0}, squares[D] = {0}, products[D] = {0};
    for (size_t i = 0; i < ROWS; i++) {
        double t[D];
        for (int d = 0; d < D; d++) {
            t[d] = ((double)problem.batch.actions[i * D + (size_t)d] - expected.z[d]) / exp(problem.exact[d]);
            sum[d] += t[d];
            squares[d] += t[d] * t[d];
            products[d] += d > 0 ? t[d] * t[d - 1] : 0;
        }
    }
    for (int d = 0; d < D; d++) {
        ck_assert_double_eq_tol(sum[d] / ROWS, 0, 5 * sqrt(1.0 / ROWS));
        ck_assert_double_eq_tol(squares[d] / ROWS, 1, 5 * sqrt(2.0 / ROWS));
        ck_assert_double_eq_tol(products[d] / ROWS, 0, 5 * sqrt(1.0 / ROWS));
    }
    close_case();
}
END_TEST

/* ---- what is not a number, and what is refused ---- */

/* A NaN in one row's observation is in that row's results, and in no other's. */
START_TEST(a_nan_is_neither_hidden_nor_spread)
{
    if (!open_case(_i))
        return;
    const struct dense_results results = dense_problem_results(&problem);
    problem.observations[(size_t)problem.row[1] * problem.shape.inputs + problem.shape.inputs / 2] = NAN;
    dense_problem_act(&problem);
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < problem.rows; i++) {
        wrong += isnan(results.log_probability[i]) != (i == 1);
        wrong += problem.shape.value && isnan(results.value[i]) != (i == 1);
    }
    ck_assert_uint_eq(wrong, 0);
    close_case();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("dense");
    TCase *acting = tcase_create("acting");
    tcase_set_timeout(acting, 120);
    tcase_add_loop_test(acting, results_are_the_oracles, 0, DENSE_CASES * DENSE_ISAS);
    tcase_add_loop_test(acting, actions_are_the_oracles, 0, DENSE_CASES * DENSE_ISAS);
    tcase_add_loop_test(acting, greedy_actions_are_the_likeliest, 0, DENSE_CASES * DENSE_ISAS);
    tcase_add_test(acting, the_first_of_equal_logits_is_the_greedy_one);
    tcase_add_loop_test(acting, instruction_sets_agree_bit_for_bit, 0, DENSE_CASES);
    tcase_add_loop_test(acting, judging_gives_the_bits_of_acting, 0, DENSE_CASES * DENSE_ISAS);
    tcase_add_loop_test(acting, a_row_does_not_know_its_batch, 0, DENSE_CASES * DENSE_ISAS);
    tcase_add_test(acting, threads_share_the_weights);
    tcase_add_loop_test(acting, one_allowed_choice_is_certain, 0, DENSE_ISAS);
    tcase_add_loop_test(acting, a_forbidden_choice_is_never_made, 0, DENSE_ISAS);
    tcase_add_test(acting, a_forbidden_action_has_no_probability);
    tcase_add_test(acting, frequencies_follow_the_probabilities);
    tcase_add_test(acting, gaussian_actions_have_their_moments);
    tcase_add_loop_test(acting, a_nan_is_neither_hidden_nor_spread, 0, DENSE_CASES * DENSE_ISAS);
    suite_add_tcase(suite, acting);
    return suite_run(suite);
}
