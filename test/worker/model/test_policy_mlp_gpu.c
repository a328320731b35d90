/* The policy on a GPU, without one: the oracle's backend with a stand-in for the captured launches. Its
 * steps move the parameters like the CPU's, and the launches read the parameters that the tape updates. */
#include "kernels/kernels.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/oracle/ref.h"
#include "test/worker/model/policy_inside.h"
#include "test/worker/model/policy_problem.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ENVIRONMENTS = 7, ROWS = 300, EPISODE = 5, PARAMETERS = 898 };

static const struct mlp_shape tutorial = {4, 128, 2};
static const struct policy_config config = {
    POLICY_PROBLEM_SPACES(4, 128, 2),
    .dropout = 0.6,
    .seed = 543,
    .adam = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
    .environments = ENVIRONMENTS,
    .rows_max = ROWS};

/* ---- the stand-in ---- */

struct policy_launch {
    struct policy_launch_settings settings;
    struct mlp *mlp;
};

static struct policy_launch *opened;

static enum status stand_in_new(struct backend *backend, const struct policy_launch_settings *settings,
                                struct policy_launch **out, struct error *error)
{
    (void)backend;
    ck_assert_uint_eq(settings->rows_max, ENVIRONMENTS);
    ck_assert(settings->layers == 2 && settings->layer[1].from == 1);
    *out = opened = calloc(1, sizeof **out);
    ck_assert_ptr_nonnull(opened);
    opened->settings = *settings;
    return mlp_new(&opened->mlp, &tutorial, settings->layer[0].dropout, error);
}

static void stand_in_free(struct backend *backend, struct policy_launch *launch)
{
    (void)backend;
    mlp_free(launch->mlp);
    free(launch);
}

/* The parameters as they are in the backend's memory, which is the oracle's. */
static void read_gpu(float *to)
{
    for (int i = 0; i < 4; i++) {
        const struct policy_launch_layer *layer = &opened->settings.layer[i / 2];
        const struct tensor *tensor = i % 2 == 0 ? &layer->weight : &layer->bias;
        for (size_t e = 0; e < shape_elements(&tensor->shape); e++)
            *to++ = (float)((const double *)tensor->data)[e];
    }
}

static enum status stand_in_run(struct backend *backend, struct policy_launch *launch, uint32_t rows,
                                const float *observations, const int32_t *keys, void *const results[],
                                struct error *error)
{
    float values[PARAMETERS];
    uint16_t masks[8];
    (void)backend;
    (void)error;
    read_gpu(values);
    mlp_load(launch->mlp, values);
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t environment = (uint32_t)keys[3 * r], step = (uint32_t)keys[3 * r + 1];
        const struct mlp_batch row = {.count = 1,
                                      .row = (const uint32_t[]){0},
                                      .observations = observations + (size_t)r * tutorial.inputs,
                                      .masks = masks,
                                      .actions = (int32_t *)results[0] + r};
        mlp_act(launch->mlp, &row, launch->settings.seed, (uint32_t)keys[3 * r + 2], &environment, &step,
                NULL);
    }
    return STATUS_OK;
}

/* ---- the tests ---- */

static struct backend_ops ops;
static struct backend *backend;
static struct policy *cpu, *gpu;
static struct mlp_problem problem;
static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* Rows by (step, environment), as a rollout has them. */
static void setup(void)
{
    ops = ref_ops;
    ops.launch_new = stand_in_new;
    ops.launch_free = stand_in_free;
    ops.launch_run = stand_in_run;
    mlp_problem_init(&problem, tutorial, config.dropout, ROWS, 3);
    for (uint32_t i = 0; i < ROWS; i++) {
        problem.environment[i] = problem.row[i] % ENVIRONMENTS;
        problem.step[i] = problem.row[i] / ENVIRONMENTS;
    }
    must(backend_open(&backend, &ops, &(struct backend_settings){.threads = 1}, &error));
    must(policy_new(&gpu, &config, backend, &error));
    must(policy_new(&cpu, &config, NULL, &error));
}

static void teardown(void)
{
    policy_free(cpu);
    policy_free(gpu);
    backend_close(backend);
    mlp_problem_fini(&problem);
}

/* Float32 against double: both gradients are off by parts in a million, and Adam divides by their size. */
static void expect_near(double bound)
{
    const float *a = policy_inside(cpu)->values;
    float b[PARAMETERS];
    read_gpu(b);
    for (size_t i = 0; i < PARAMETERS; i++)
        ck_assert_msg(fabs((double)a[i] - (double)b[i]) <= bound, "%zu: %.9g, gpu %.9g", i, (double)a[i],
                      (double)b[i]);
}

static void act_alike(void)
{
    int32_t actions[ROWS];
    must(policy_problem_act(cpu, &problem, EPISODE, &error));
    memcpy(actions, problem.batch.actions, sizeof actions);
    for (uint32_t first = 0; first < ROWS; first += ENVIRONMENTS) {
        struct policy_rows rows = policy_problem_rows(&problem.batch);
        rows.row += first;
        rows.count = ROWS - first < ENVIRONMENTS ? ROWS - first : ENVIRONMENTS;
        must(policy_act(gpu, &rows, EPISODE, problem.environment + first, problem.step + first, &error));
    }
    ck_assert_mem_eq(actions, problem.batch.actions, sizeof actions);
}

static void count_call(void *context)
{
    ++*(unsigned *)context;
}

START_TEST(it_learns_what_the_cpu_learns)
{
    unsigned calls = 0;
    expect_near(0);
    act_alike();
    for (int pass = 0; pass < 3; pass++) {
        double loss[2];
        must(policy_problem_learn(cpu, &problem, EPISODE, &loss[0], NULL, NULL, &error));
        must(policy_problem_learn(gpu, &problem, EPISODE, &loss[1], count_call, &calls, &error));
        ck_assert_double_eq_tol(loss[0], loss[1], 1e-3);
        expect_near(1e-4);
    }
    ck_assert_uint_gt(calls, 3);
}
END_TEST

static void choose(struct policy *policy, int32_t *actions)
{
    const struct policy_rows rows = {
        .count = ROWS, .row = problem.row, .observations = problem.batch.observations, .actions = actions};
    must(policy_choose(policy, &rows, &error));
}

/* Without a draw; of equal probabilities the first. More rows than a piece has. */
START_TEST(it_chooses_what_the_cpu_chooses)
{
    int32_t actions[2][ROWS], ones = 0;
    struct policy_values values = {0};
    choose(cpu, actions[0]);
    choose(gpu, actions[1]);
    ck_assert_mem_eq(actions[0], actions[1], sizeof actions[0]);
    for (uint32_t i = 0; i < ROWS; i++)
        ones += actions[1][i];
    ck_assert(ones > 0 && ones < ROWS);
    must(policy_values_open(&values, &config, &error)); // all zero
    must(policy_restore(gpu, &values, &error));
    choose(gpu, actions[1]);
    for (uint32_t i = 0; i < ROWS; i++)
        ck_assert_int_eq(actions[1][i], 0);
    policy_values_at(&values, 2, POLICY_VALUES)[0] = NAN;
    must(policy_restore(gpu, &values, &error));
    const struct policy_rows one = {
        .count = 1, .row = problem.row, .observations = problem.batch.observations, .actions = actions[1]};
    ck_assert_int_eq(policy_choose(gpu, &one, &error), STATUS_CORRUPT);
    policy_values_close(&values);
}
END_TEST

/* Told by name, and nothing has moved. */
START_TEST(what_is_not_finite_changes_nothing)
{
    float before[PARAMETERS], after[PARAMETERS];
    double loss = -1;
    act_alike();
    read_gpu(before);
    problem.coefficient[290] = NAN;
    ck_assert_int_eq(policy_problem_learn(gpu, &problem, EPISODE, &loss, NULL, NULL, &error),
                     STATUS_INTERNAL);
    ck_assert_msg(strstr(error.text, "the input returns") != NULL, "%s", error.text);
    read_gpu(after);
    ck_assert_mem_eq(before, after, sizeof before);
    ck_assert_double_eq(loss, -1);
}
END_TEST

static void learn(struct policy *policy)
{
    double loss;
    must(policy_problem_learn(policy, &problem, EPISODE, &loss, NULL, NULL, &error));
}

/* A policy on the CPU goes on from a checkpoint of one on a GPU, and the other way round. */
START_TEST(its_values_are_the_cpus)
{
    struct policy_values values = {0};
    must(policy_values_open(&values, &config, &error));
    act_alike();
    learn(gpu);
    learn(gpu);
    must(policy_save(gpu, &values, &error));
    ck_assert_uint_eq(values.steps, 2);
    must(policy_restore(cpu, &values, &error));
    ck_assert_uint_eq(policy_inside(cpu)->steps, 2);
    expect_near(1e-7);
    learn(cpu);
    learn(gpu);
    expect_near(1e-4);
    must(policy_save(cpu, &values, &error));
    learn(gpu);
    must(policy_restore(gpu, &values, &error));
    expect_near(0);
    act_alike();
    learn(cpu);
    learn(gpu);
    expect_near(1e-4);
    policy_values_close(&values);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_mlp_gpu");
    TCase *tests = tcase_create("policy_mlp_gpu");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, it_learns_what_the_cpu_learns);
    tcase_add_test(tests, it_chooses_what_the_cpu_chooses);
    tcase_add_test(tests, what_is_not_finite_changes_nothing);
    tcase_add_test(tests, its_values_are_the_cpus);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
