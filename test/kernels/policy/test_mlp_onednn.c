/* The policy's rows against oneDNN's primitives, which share no code with them. */
#include "test/baseline/mlp_onednn.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

static const struct {
    struct mlp_shape shape;
    double dropout;
    uint32_t rows;
} cases[] = {
    {{4, 128, 2}, 0.6, 1},  {{4, 128, 2}, 0.6, 10}, {{4, 128, 2}, 0.6, 500},  {{4, 128, 2}, 0, 64},
    {{3, 20, 5}, 0.25, 37}, {{1, 17, 2}, 0.5, 19},  {{16, 256, 16}, 0.5, 33}, {{7, 1024, 3}, 0.9, 300},
};
enum { CASES = sizeof cases / sizeof *cases };

/* What mlp_onednn wants instead of bits: a factor for each unit of each row. */
static float *keep_factors(const struct mlp_problem *problem)
{
    const uint32_t hidden = problem->shape.hidden, words = mlp_mask_words(&problem->shape);
    float *keep = malloc((size_t)problem->rows * hidden * sizeof *keep);
    ck_assert_ptr_nonnull(keep);
    for (size_t row = 0; row < problem->rows; row++)
        for (uint32_t j = 0; j < hidden; j++) {
            bool kept = problem->batch.masks[row * words + j / 16] >> j % 16 & 1;
            keep[row * hidden + j] = kept ? (float)(1 / (1 - problem->dropout)) : 0;
        }
    return keep;
}

/* The bounds are oneDNN's: its exponential in log-softmax is off by up to 3e-6, where ours keeps to 1.2e-7 of
 * the oracle in double (test_mlp.c). */
START_TEST(forward_and_backward_agree)
{
    struct mlp_problem problem;
    struct mlp_onednn *onednn = NULL;
    struct error error = {0};
    mlp_problem_init(&problem, cases[_i].shape, cases[_i].dropout, cases[_i].rows, (uint64_t)_i + 31);
    for (uint32_t i = 0; i < problem.rows; i++)
        problem.row[i] = i;
    struct mlp *mlp = mlp_problem_load(&problem, NULL);
    mlp_problem_act(&problem, mlp);
    double size = 0, loss = mlp_problem_learn(&problem, mlp), other_loss;
    float *keep = keep_factors(&problem), *gradient = calloc(problem.count, sizeof *gradient);
    const size_t outputs = (size_t)problem.rows * problem.shape.actions;
    float *log_probabilities = calloc(outputs, sizeof *log_probabilities);
    ck_assert(gradient != NULL && log_probabilities != NULL);
    ck_assert_msg(mlp_onednn_new(&onednn, &problem.shape, problem.rows, &error) == STATUS_OK, "%s",
                  error.text);
    ck_assert_int_eq(mlp_onednn_load(onednn, problem.parameters), STATUS_OK);
    ck_assert_int_eq(mlp_onednn_forward(onednn, problem.batch.observations, keep, log_probabilities),
                     STATUS_OK);
    for (size_t i = 0; i < outputs; i++)
        ck_assert_double_eq_tol((double)problem.probabilities[i], exp((double)log_probabilities[i]), 5e-6);
    ck_assert_int_eq(mlp_onednn_gradient(onednn, problem.batch.observations, keep, problem.batch.actions,
                                         problem.coefficient, gradient, &other_loss),
                     STATUS_OK);
    for (uint32_t i = 0; i < problem.rows; i++)
        size += fabs((double)problem.coefficient[i]);
    ck_assert_double_eq_tol(loss, other_loss, 1e-5 * size);
    for (size_t p = 0; p < problem.count; p++)
        ck_assert_double_eq_tol((double)problem.gradient[p], (double)gradient[p], 1e-5 * size);
    mlp_onednn_free(onednn);
    mlp_free(mlp);
    free(keep);
    free(gradient);
    free(log_probabilities);
    mlp_problem_fini(&problem);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("mlp_onednn");
    TCase *conformance = tcase_create("conformance");
    tcase_set_timeout(conformance, 60);
    tcase_add_loop_test(conformance, forward_and_backward_agree, 0, CASES);
    suite_add_tcase(suite, conformance);
    return suite_run(suite);
}
