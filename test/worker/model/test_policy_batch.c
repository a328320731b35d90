/* A rollout as tensors on the tape (worker/model/policy_mlp_gpu.c), on the oracle's backend: loss and
 * gradient are those of test/oracle/mlp_ref.h, which reads the masks that acted, while these draw them again.
 */
#include "kernels/params/gradients.h"
#include "test/oracle/mlp_ref.h"
#include "test/oracle/ref.h"
#include "test/values.h"
#include "test/worker/model/policy_problem.h"
#include "test/workplace.h"
#include "worker/model/policy_internal.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

enum { PARAMETERS = 4, ENVIRONMENTS = 7, EPISODE = 5 };

static struct backend *backend;
static struct params *params;
static struct gradients *gradients;
static struct tape *tape;
static struct policy_batch *rows;
static struct mlp_problem problem;
static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* What an agent's rollout would hold: rows by (step, environment), acted on by the CPU. */
static void play(struct mlp_shape shape, double dropout, uint32_t count)
{
    mlp_problem_init(&problem, shape, dropout, count, 3);
    problem.episode = EPISODE;
    for (uint32_t i = 0; i < count; i++) {
        problem.environment[i] = problem.row[i] % ENVIRONMENTS;
        problem.step[i] = problem.row[i] / ENVIRONMENTS;
    }
    struct mlp *mlp = mlp_problem_load(&problem, NULL);
    mlp_problem_act(&problem, mlp);
    mlp_free(mlp);
}

static void open_model(uint32_t rows_max)
{
    struct policy_config config = policy_problem_config(problem.shape, problem.dropout, problem.seed);
    config.environments = ENVIRONMENTS;
    config.rows_max = rows_max;
    const double *exact = problem.exact;
    must(backend_open(&backend, &ref_ops, &(struct backend_settings){0}, &error));
    must(params_new(&params, backend, &error));
    must(policy_register(params, &config, &error));
    must(params_build(params, 1, &error));
    for (uint32_t i = 0; i < PARAMETERS; i++) {
        must(params_write(params, params_at(params, i), DTYPE_F64, exact, &error));
        exact += shape_elements(&params_at(params, i)->tensor.shape);
    }
    must(gradients_new(&gradients, params, &error));
    must(tape_new(&tape, backend, &error));
    must(policy_batch_new(&rows, &config, &error));
}

static void close_model(void)
{
    policy_batch_free(rows);
    tape_free(tape);
    gradients_free(gradients);
    params_free(params);
    backend_close(backend);
    mlp_problem_fini(&problem);
}

/* One step over the first `count` rows: the loss, and the gradient in mlp's order. */
static double learn(uint32_t count, double *gradient)
{
    double loss = NAN;
    struct mlp_batch batch = problem.batch;
    batch.count = count;
    tape_begin(tape, TAPE_TRAIN, gradients);
    struct variable *out =
        policy_batch_loss(rows, params, tape, &batch, problem.coefficient, problem.episode);
    tape_loss(tape, out, &loss);
    tape_backward(tape, out);
    must(tape_finish(tape, &error));
    for (uint32_t i = 0; i < PARAMETERS; i++) {
        must(gradients_read(gradients, params_at(params, i), DTYPE_F64, gradient, &error));
        gradient += shape_elements(&params_at(params, i)->tensor.shape);
    }
    return loss;
}

static void check_against_ref(uint32_t count)
{
    double *expected = values_memory(problem.count, sizeof *expected);
    double *got = values_memory(problem.count, sizeof *got), largest = 0;
    struct mlp_batch batch = problem.batch;
    batch.count = count;
    const double loss = mlp_ref_gradient(&problem.shape, problem.dropout, problem.exact, &batch,
                                         problem.coefficient, expected);
    const double learned = learn(count, got);
    ck_assert_double_le(fabs(learned - loss), 1e-10 * fmax(1, fabs(loss)));
    for (size_t i = 0; i < problem.count; i++)
        largest = fmax(largest, fabs(expected[i]));
    ck_assert_double_gt(largest, 0);
    for (size_t i = 0; i < problem.count; i++)
        ck_assert_double_le(fabs(got[i] - expected[i]), 1e-10 * largest);
    free(expected);
    free(got);
}

/* On both sides of a filled batch, up and down, so that nothing of a longer one may stay behind. */
START_TEST(loss_and_gradient_are_those_of_the_masks_that_acted)
{
    static const uint32_t counts[] = {600, 1, 255, 256, 257, 512, 3, 600};
    play((struct mlp_shape){4, 40, 3}, 0.6, 600);
    open_model(600);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        check_against_ref(counts[i]);
    close_model();
}
END_TEST

START_TEST(no_rows_are_a_loss_of_zero)
{
    double gradient[2 * 15 + 15 + 3 * 15 + 3];
    play((struct mlp_shape){2, 15, 3}, 0.5, 10);
    open_model(10);
    ck_assert_double_eq(learn(0, gradient), 0);
    for (size_t i = 0; i < problem.count; i++)
        ck_assert_double_eq(gradient[i], 0);
    close_model();
}
END_TEST

START_TEST(a_large_rollout_goes_up_in_pieces)
{
    enum { ROWS = (1 << 20) + 3 };
    play((struct mlp_shape){1, 2, 2}, 0.5, ROWS);
    open_model(ROWS);
    check_against_ref(ROWS);
    close_model();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_batch");
    TCase *tests = tcase_create("policy_batch");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, loss_and_gradient_are_those_of_the_masks_that_acted);
    tcase_add_test(tests, no_rows_are_a_loss_of_zero);
    tcase_add_test(tests, a_large_rollout_goes_up_in_pieces);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
