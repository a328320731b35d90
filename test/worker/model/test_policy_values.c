/* The copy of a policy's values: a policy that is given them goes on as the one that they were taken from,
 * and a checkpoint of them is PyTorch's (test/golden/policy_files.py is the other end). The policy on a GPU
 * is test_policy_mlp_gpu.c's. */
#include "test/kernels/policy/mlp_problem.h"
#include "test/process.h"
#include "test/worker/model/policy_inside.h"
#include "test/worker/model/policy_problem.h"
#include "test/workplace.h"
#include "worker/checkpoint/checkpoint.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 40, SKIPPED = 77 };

static const struct mlp_shape tutorial = {4, 128, 2};
static const struct policy_config config = {
    POLICY_PROBLEM_SPACES(4, 128, 2), .dropout = 0.6, .seed = 543,
    .adam = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8}};

static struct error error;
static struct mlp_problem problem;
static struct policy *policy;
static struct policy_values values;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void setup(void)
{
    workplace_open();
    mlp_problem_init(&problem, tutorial, config.dropout, ROWS, 3);
    must(policy_new(&policy, &config, NULL, &error));
    must(policy_values_open(&values, &config, &error));
}

static void teardown(void)
{
    policy_values_close(&values);
    policy_free(policy);
    mlp_problem_fini(&problem);
    workplace_close();
}

static void learn(struct policy *pupil, unsigned steps)
{
    double loss;
    must(policy_problem_act(pupil, &problem, 1, &error));
    for (unsigned i = 0; i < steps; i++)
        must(policy_problem_learn(pupil, &problem, 1, &loss, NULL, NULL, &error));
}

static void expect_equal(const struct policy *a, const struct policy *b)
{
    const size_t bytes = policy_inside(a)->count * sizeof *policy_inside(a)->values;
    ck_assert_mem_eq(policy_inside(a)->values, policy_inside(b)->values, bytes);
    ck_assert_mem_eq(policy_inside(a)->first, policy_inside(b)->first, bytes);
    ck_assert_mem_eq(policy_inside(a)->second, policy_inside(b)->second, bytes);
    ck_assert_uint_eq(policy_inside(a)->steps, policy_inside(b)->steps);
}

/* Through a checkpoint's values: the other policy has taken fewer steps. */
START_TEST(another_policy_goes_on_with_them)
{
    struct policy *other;
    must(policy_new(&other, &config, NULL, &error));
    learn(other, 2);
    learn(policy, 3);
    must(policy_save(policy, &values, &error));
    ck_assert_uint_eq(values.steps, 3);
    learn(policy, 1);
    must(policy_restore(other, &values, &error));
    learn(other, 1);
    expect_equal(policy, other);
    policy_free(other);
}
END_TEST

/* The saved values stay while the policy moves on. */
START_TEST(the_copy_is_one)
{
    float before[512];
    learn(policy, 1);
    must(policy_save(policy, &values, &error));
    memcpy(before, policy_values_at(&values, 0, POLICY_SECOND_MOMENT), sizeof before);
    ck_assert_mem_eq(before, policy_inside(policy)->second, sizeof before);
    learn(policy, 1);
    ck_assert_mem_eq(before, policy_values_at(&values, 0, POLICY_SECOND_MOMENT), sizeof before);
    ck_assert_mem_ne(before, policy_inside(policy)->second, sizeof before);
}
END_TEST

/* A file has the entries that are trained. */
START_TEST(a_file_of_rmsprop_has_its_mean_of_squares_alone)
{
    struct policy_config other = config;
    struct policy_values of = {0};
    char names[512] = "";
    other.adam.uncorrected = true;
    must(policy_values_open(&of, &other, &error));
    for (uint32_t i = 0; i < params_count(of.moments); i++) {
        const struct parameter *entry = params_at(of.moments, i);
        if (entry->kind == PARAMETER_TRAINED)
            strcat(strcat(names, entry->name), " ");
    }
    ck_assert_str_eq(names, "affine1.weight.square_avg affine1.bias.square_avg affine2.weight.square_avg "
                            "affine2.bias.square_avg ");
    policy_values_close(&of);
}
END_TEST

/* ---- in PyTorch ---- */

static void write_checkpoint(void)
{
    const struct checkpoint_counters counters = {
        .update = 3, .trainers = 1, .steps = {3}, .score = {CHECKPOINT_RUNNING_REWARD, 9.5}};
    const struct checkpoint_values of = {.params = values.params, .moments = values.moments};
    must(checkpoint_begin(path_of(workplace.folder), 3, &error));
    must(checkpoint_write(path_of(workplace.folder), &counters, &(struct run_place){0}, &of, NULL, &error));
    must(checkpoint_publish(path_of(workplace.folder), 3, 1, &error));
}

/* Four numbers a line: the observation; and two: the probabilities, without dropout. */
static void write_rows(void)
{
    float probabilities[2 * ROWS];
    struct mlp *mlp;
    char path[128];
    must(mlp_new(&mlp, &tutorial, 0, &error));
    mlp_load(mlp, policy_inside(policy)->values);
    mlp_act(mlp, &problem.batch, config.seed, 1, problem.environment, problem.step, probabilities);
    mlp_free(mlp);
    snprintf(path, sizeof path, "%s/rows", workplace.folder);
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *row = problem.batch.observations + (size_t)4 * problem.row[i];
        fprintf(file, "%.9g %.9g %.9g %.9g %.9g %.9g\n", (double)row[0], (double)row[1], (double)row[2],
                (double)row[3], (double)probabilities[2 * i], (double)probabilities[2 * i + 1]);
    }
    ck_assert_int_eq(fclose(file), 0);
}

START_TEST(a_checkpoint_loads_strictly_in_pytorch)
{
    static const char venv[] = "build/python-venv/bin/python";
    const char *python = access(venv, X_OK) == 0 ? venv : "/usr/bin/python3";
    const char *argv[] = {python, "test/golden/policy_files.py", workplace.folder, NULL};
    struct process process;
    if (access(python, X_OK) != 0) {
        printf("skipped: there is no %s (scripts/deps python installs it)\n", python);
        return;
    }
    learn(policy, 3);
    must(policy_save(policy, &values, &error));
    write_checkpoint();
    write_rows();
    const int code = process_run(&process, workplace.folder, argv, NULL, 100);
    char *out = process_out(&process), *err = process_err(&process);
    ck_assert_msg(code == 0 || code == SKIPPED, "%s%s", out, err);
    if (code == SKIPPED)
        printf("%s", out);
    free(out);
    free(err);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_values");
    TCase *tests = tcase_create("policy_values");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, another_policy_goes_on_with_them);
    tcase_add_test(tests, the_copy_is_one);
    tcase_add_test(tests, a_file_of_rmsprop_has_its_mean_of_squares_alone);
    tcase_add_test(tests, a_checkpoint_loads_strictly_in_pytorch);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
