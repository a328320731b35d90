/* The policy's network as operations of the tape, on the oracle's backend, against the fused kernel. */
#include "kernels/params/gradients.h"
#include "test/oracle/ref.h"
#include "test/worker/model/policy_problem.h"
#include "test/workplace.h"
#include "worker/model/policy_internal.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct mlp_problem problem;
static struct backend *backend;
static struct tape *tape;
static struct params *params;
static struct gradients *gradients;

static void open_network(void)
{
    const float *from = problem.parameters;
    ck_assert_int_eq(backend_open(&backend, &ref_ops, &(struct backend_settings){.threads = 1}, NULL),
                     STATUS_OK);
    ck_assert_int_eq(params_new(&params, backend, NULL), STATUS_OK);
    const struct policy_config config = policy_problem_config(problem.shape, problem.dropout, problem.seed);
    ck_assert_int_eq(policy_register(params, &config, NULL), STATUS_OK);
    ck_assert_int_eq(params_build(params, 1, NULL), STATUS_OK);
    ck_assert_int_eq(gradients_new(&gradients, params, NULL), STATUS_OK);
    ck_assert_int_eq(tape_new(&tape, backend, NULL), STATUS_OK);
    for (uint32_t i = 0; i < params_count(params); i++) {
        struct parameter *parameter = params_at(params, i);
        ck_assert_int_eq(params_write(params, parameter, DTYPE_F32, from, NULL), STATUS_OK);
        from += shape_elements(&parameter->tensor.shape);
    }
}

static void close_network(void)
{
    tape_free(tape);
    gradients_free(gradients);
    params_free(params);
    backend_close(backend);
}

/* The problem's rows in the batch's order, as inputs of the tape. */
static struct variable *forward_rows(struct variable **actions, struct variable **coefficients)
{
    const uint32_t rows = problem.rows, inputs = problem.shape.inputs;
    float *observations = calloc((size_t)rows * inputs, sizeof *observations);
    int32_t *keys = calloc((size_t)rows * 3, sizeof *keys), *taken = calloc(rows, sizeof *taken);
    for (uint32_t i = 0; i < rows; i++) {
        const uint32_t row = problem.row[i];
        memcpy(observations + (size_t)i * inputs, problem.batch.observations + (size_t)row * inputs,
               inputs * sizeof *observations);
        keys[3 * i] = (int32_t)problem.environment[i];
        keys[3 * i + 1] = (int32_t)problem.step[i];
        keys[3 * i + 2] = (int32_t)problem.episode;
        taken[i] = problem.batch.actions[row];
    }
    struct variable *x = tape_input(tape, SHAPE2(rows, inputs), DTYPE_F32, "observations", observations);
    struct variable *by = tape_input(tape, SHAPE2(rows, 3), DTYPE_I32, "rows", keys);
    *actions = tape_input(tape, SHAPE1(rows), DTYPE_I32, "actions", taken);
    *coefficients = tape_input(tape, SHAPE1(rows), DTYPE_F32, "coefficients", problem.coefficient);
    free(observations);
    free(keys);
    free(taken);
    return policy_batch_forward(params, tape, x, by, problem.dropout, problem.seed);
}

static void expect_gradients(void)
{
    const float *expected = problem.gradient;
    for (uint32_t p = 0; p < params_count(params); p++) {
        const struct parameter *parameter = params_at(params, p);
        const size_t count = shape_elements(&parameter->tensor.shape);
        double got[4096], largest = 0;
        ck_assert_uint_le(count, 4096);
        ck_assert_int_eq(gradients_read(gradients, parameter, DTYPE_F64, got, NULL), STATUS_OK);
        for (size_t e = 0; e < count; e++)
            largest = fmax(largest, fabs(got[e]));
        ck_assert_double_gt(largest, 0);
        for (size_t e = 0; e < count; e++)
            ck_assert_msg(fabs(got[e] - (double)expected[e]) <= 1e-5 * largest, "%s[%zu]: %.9g, fused %.9g",
                          parameter->name, e, got[e], (double)expected[e]);
        expected += count;
    }
}

/* Rows, masks, log-probabilities and the whole gradient of the fused kernel, from the operations. */
START_TEST(operations_give_what_the_fused_kernel_gives)
{
    static const struct mlp_shape shapes[] = {{4, 128, 2}, {3, 37, 5}, {1, 200, 1}};
    mlp_problem_init(&problem, shapes[_i], _i == 2 ? 0 : 0.6, 70, 21);
    struct mlp *mlp = mlp_problem_load(&problem, NULL);
    mlp_problem_act(&problem, mlp);
    const double loss = mlp_problem_learn(&problem, mlp);
    open_network();
    for (int step = 0; step < 2; step++) {
        struct variable *actions, *coefficients;
        double values[70 * 5], value = 0;
        tape_begin(tape, TAPE_TRAIN, gradients);
        struct variable *log_probabilities = forward_rows(&actions, &coefficients);
        ck_assert_int_eq(tape_read(tape, log_probabilities, DTYPE_F64, values), STATUS_OK);
        for (size_t i = 0; i < (size_t)problem.rows * problem.shape.actions; i++)
            ck_assert_double_eq_tol(exp(values[i]), (double)problem.probabilities[i], 1e-6);
        struct variable *picked = tape_log_probability(tape, log_probabilities, actions);
        struct variable *sum = tape_sum(tape, picked, coefficients, -1);
        ck_assert_int_eq(tape_loss(tape, sum, &value), STATUS_OK);
        ck_assert_double_eq_tol(value, loss, 1e-5 * fabs(loss) + 1e-6);
        if (problem.shape.actions > 1) {
            ck_assert_int_eq(tape_backward(tape, sum), STATUS_OK);
            expect_gradients();
        }
        ck_assert_int_eq(tape_finish(tape, NULL), STATUS_OK);
    }
    close_network();
    mlp_free(mlp);
    mlp_problem_fini(&problem);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_network");
    TCase *operations = tcase_create("operations");
    tcase_add_loop_test(operations, operations_give_what_the_fused_kernel_gives, 0, 3);
    suite_add_tcase(suite, operations);
    return suite_run(suite);
}
