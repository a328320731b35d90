/* The policy's backward on every instruction set of this machine: against the oracle in double, the oracle
 * against finite differences of itself, and the promised order of summation. */
#include "test/kernels/policy/mlp_problem.h"
#include "test/oracle/mlp_ref.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static const struct mlp_case cases[] = {
    {{4, 128, 2}, 0.6, 600}, {{4, 128, 2}, 0, 256},   {{4, 128, 2}, 0.6, 1},   {{1, 1, 1}, 0.5, 33},
    {{2, 15, 3}, 0.1, 257},  {{3, 16, 5}, 0.6, 64},   {{5, 17, 2}, 0.9, 47},   {{4, 131, 2}, 0.6, 31},
    {{4, 31, 16}, 0.5, 19},  {{16, 113, 7}, 0.3, 23}, {{7, 256, 11}, 0.75, 9}, {{16, 1024, 16}, 0.5, 17},
};
enum { CASES = sizeof cases / sizeof *cases };

static struct mlp_problem problem;
static struct mlp *mlp;

static bool open_case(int number)
{
    if (!mlp_case_open(cases, number, 101, &problem, &mlp))
        return false;
    mlp_problem_act(&problem, mlp);
    return true;
}

static void close_case(void)
{
    mlp_case_close(&problem, mlp);
}

/* The error of a parameter is held to the sum of what its rows contributed in size, which is what rounding
 * in float grows with: the norm of one row's pull, at most 2 |coefficient|, times its largest activation. */
START_TEST(gradient_is_the_oracles)
{
    if (!open_case(_i))
        return;
    double loss = mlp_problem_learn(&problem, mlp), size = 0;
    double *expected = calloc(problem.count, sizeof *expected);
    ck_assert_ptr_nonnull(expected);
    double expected_loss = mlp_ref_gradient(&problem.shape, problem.dropout, problem.exact, &problem.batch,
                                            problem.coefficient, expected);
    for (uint32_t i = 0; i < problem.rows; i++)
        size += fabs((double)problem.coefficient[i]);
    ck_assert_double_eq_tol(loss, expected_loss, 1e-6 * size);
    double largest = 0;
    for (size_t p = 0; p < problem.count; p++) {
        ck_assert_double_eq_tol((double)problem.gradient[p], expected[p], 2e-6 * size);
        largest = fmax(largest, fabs(expected[p]));
    }
    if (problem.shape.actions > 1)
        ck_assert_double_gt(largest, 1e-3 * size); // far above the bound: a gradient of zeros would fail
    free(expected);
    close_case();
}
END_TEST

/* The oracle's formulas, by central differences in double: h^2 and the last bits of L leave about 1e-8. */
START_TEST(oracle_is_the_slope_of_its_loss)
{
    mlp_problem_init(&problem, cases[_i].shape, cases[_i].dropout, cases[_i].rows < 20 ? cases[_i].rows : 20,
                     (uint64_t)_i + 101);
    mlp = mlp_problem_load(&problem, NULL);
    mlp_problem_act(&problem, mlp);
    double *slope = calloc(problem.count, sizeof *slope);
    ck_assert_ptr_nonnull(slope);
    mlp_ref_gradient(&problem.shape, problem.dropout, problem.exact, &problem.batch, problem.coefficient,
                     slope);
    const double h = 1e-6;
    for (size_t p = 0; p < problem.count; p += 1 + problem.count / 300) {
        double kept = problem.exact[p];
        problem.exact[p] = kept + h;
        double above = mlp_ref_gradient(&problem.shape, problem.dropout, problem.exact, &problem.batch,
                                        problem.coefficient, NULL);
        problem.exact[p] = kept - h;
        double below = mlp_ref_gradient(&problem.shape, problem.dropout, problem.exact, &problem.batch,
                                        problem.coefficient, NULL);
        problem.exact[p] = kept;
        ck_assert_double_eq_tol((above - below) / (2 * h), slope[p], 1e-7);
    }
    free(slope);
    close_case();
}
END_TEST

START_TEST(instruction_sets_agree_bit_for_bit)
{
    struct mlp_problem expected;
    mlp_problem_init(&expected, cases[_i].shape, cases[_i].dropout, cases[_i].rows, (uint64_t)_i + 101);
    mlp = mlp_problem_load(&expected, "baseline");
    mlp_problem_act(&expected, mlp);
    double expected_loss = mlp_problem_learn(&expected, mlp);
    mlp_free(mlp);
    for (int j = 0; j < MLP_ISAS - 1; j++) {
        if (!open_case(_i * MLP_ISAS + j))
            continue;
        double loss = mlp_problem_learn(&problem, mlp);
        ck_assert_mem_eq(&loss, &expected_loss, sizeof loss);
        ck_assert_mem_eq(problem.gradient, expected.gradient, problem.count * sizeof(float));
        close_case();
    }
    mlp_problem_fini(&expected);
}
END_TEST

/* Each chunk is summed from zero and then added: the same bits as adding the chunks' own gradients. */
START_TEST(chunks_are_added_in_order)
{
    if (!open_case(_i))
        return;
    double loss = mlp_problem_learn(&problem, mlp), loss_of_chunks = 0;
    float *sum = calloc(problem.count, sizeof *sum), *own = calloc(problem.count, sizeof *own);
    ck_assert(sum != NULL && own != NULL);
    for (uint32_t first = 0; first < problem.rows; first += MLP_CHUNK_ROWS) {
        struct mlp_batch chunk = problem.batch;
        chunk.row += first;
        chunk.count = problem.rows - first < MLP_CHUNK_ROWS ? problem.rows - first : MLP_CHUNK_ROWS;
        memset(own, 0, problem.count * sizeof *own);
        loss_of_chunks += mlp_gradient(mlp, &chunk, problem.coefficient + first, own);
        for (size_t p = 0; p < problem.count; p++)
            sum[p] += own[p];
    }
    ck_assert_mem_eq(sum, problem.gradient, problem.count * sizeof *sum);
    ck_assert_mem_eq(&loss, &loss_of_chunks, sizeof loss);
    free(sum);
    free(own);
    close_case();
}
END_TEST

/* affine2.bias by hand, rows ascending, from the probabilities that acted. */
START_TEST(rows_are_added_in_order)
{
    if (!open_case(_i))
        return;
    mlp_problem_learn(&problem, mlp);
    const uint32_t actions = problem.shape.actions;
    for (uint32_t a = 0; a < actions; a++) {
        float total = 0;
        for (uint32_t first = 0; first < problem.rows; first += MLP_CHUNK_ROWS) {
            float sum = 0;
            for (uint32_t i = first; i < problem.rows && i < first + MLP_CHUNK_ROWS; i++) {
                float taken = problem.batch.actions[problem.row[i]] == (int32_t)a ? 1.0f : 0.0f;
                sum += problem.coefficient[i] * (problem.probabilities[(size_t)i * actions + a] - taken);
            }
            total += sum;
        }
        ck_assert_mem_eq(&total, &problem.gradient[problem.count - actions + a], sizeof total);
    }
    close_case();
}
END_TEST

/* What affine2.bias is owed by row i of `batch` when it counts once and the other rows not at all. That is
 * dL/dz_a = P(a) - [a = taken], and nothing on the way rounds it: 1 times a float is that float, and zeros,
 * of either sign, are all that is added to it. */
static void expect_pull_of_what_acted(const struct mlp_batch *batch, uint32_t i, const float *acted)
{
    const uint32_t actions = problem.shape.actions;
    float coefficient[MLP_CHUNK_ROWS] = {0};
    coefficient[i] = 1;
    memset(problem.gradient, 0, problem.count * sizeof *problem.gradient);
    mlp_gradient(mlp, batch, coefficient, problem.gradient);
    for (uint32_t a = 0; a < actions; a++) {
        float pull = batch->actions[batch->row[i]] == (int32_t)a ? acted[a] - 1.0f : acted[a];
        ck_assert_mem_eq(&problem.gradient[problem.count - actions + a], &pull, sizeof pull);
    }
}

/* The learner's own forward is bit for bit the one that acted: whatever batch a row acted in, its
 * probabilities stand in the gradient again when it learns alone, and when it learns among others. */
START_TEST(the_forward_that_learns_is_the_one_that_acted)
{
    if (!open_case(_i))
        return;
    for (uint32_t i = 0; i < problem.rows; i++) {
        const float *acted = problem.probabilities + (size_t)i * problem.shape.actions;
        struct mlp_batch part = problem.batch;
        part.count = 1;
        part.row += i;
        expect_pull_of_what_acted(&part, 0, acted);
        if (i % (1 + problem.rows / 7) != 0)
            continue;
        uint32_t first = i - i % MLP_CHUNK_ROWS, left = problem.rows - first;
        part.count = left < MLP_CHUNK_ROWS ? left : MLP_CHUNK_ROWS;
        part.row = problem.row + first;
        expect_pull_of_what_acted(&part, i - first, acted);
    }
    close_case();
}
END_TEST

START_TEST(no_rows_are_no_gradient)
{
    ck_assert(open_case(2)); // the baseline, which every machine has
    struct mlp_batch none = problem.batch;
    none.count = 0;
    memset(problem.gradient, 0, problem.count * sizeof(float));
    ck_assert_double_eq(mlp_gradient(mlp, &none, problem.coefficient, problem.gradient), 0);
    for (size_t p = 0; p < problem.count; p++)
        ck_assert(problem.gradient[p] == 0);
    close_case();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mlp_gradient");
    TCase *backward = tcase_create("backward");
    tcase_set_timeout(backward, 60);
    tcase_add_loop_test(backward, gradient_is_the_oracles, 0, CASES * MLP_ISAS);
    tcase_add_loop_test(backward, oracle_is_the_slope_of_its_loss, 0, CASES);
    tcase_add_loop_test(backward, instruction_sets_agree_bit_for_bit, 0, CASES);
    tcase_add_loop_test(backward, chunks_are_added_in_order, 0, CASES * MLP_ISAS);
    tcase_add_loop_test(backward, rows_are_added_in_order, 0, CASES * MLP_ISAS);
    tcase_add_loop_test(backward, the_forward_that_learns_is_the_one_that_acted, 0, CASES * MLP_ISAS);
    tcase_add_test(backward, no_rows_are_no_gradient);
    suite_add_tcase(suite, backward);
    return suite_run(suite);
}
