/* The policy on a GPU, without one: the oracle's backend with a stand-in for the captured launches. It learns
 * what the policy on the CPU learns, and its parameters are where the launches read them. */
#include "kernels/kernels.h"
#include "test/kernels/policy/mlp_problem.h"
#include "test/oracle/ref.h"
#include "test/workplace.h"
#include "worker/model/policy.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ENVIRONMENTS = 7, ROWS = 300, EPISODE = 5, PARAMETERS = 898 };

static const struct policy_config config = {
    .shape = {4, 128, 2},
    .dropout = 0.6,
    .seed = 543,
    .adam = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
    .environments = ENVIRONMENTS,
    .rows_max = ROWS};

/* ---- the stand-in ---- */

struct policy_rows {
    const double *slab; /* of the oracle; each parameter from a multiple of 64 bytes on */
    struct mlp *mlp;
};

static enum status stand_in_open(struct backend *backend, const struct mlp_shape *shape, double dropout,
                                 uint32_t rows_max, bool fixed, const struct tensor *slab,
                                 struct policy_rows **out, struct error *error)
{
    (void)backend;
    (void)fixed;
    ck_assert_uint_eq(rows_max, ENVIRONMENTS);
    *out = calloc(1, sizeof **out);
    ck_assert_ptr_nonnull(*out);
    (*out)->slab = slab->data;
    return mlp_new(&(*out)->mlp, shape, dropout, error);
}

static void stand_in_close(struct backend *backend, struct policy_rows *rows)
{
    (void)backend;
    mlp_free(rows->mlp);
    free(rows);
}

static enum status stand_in_act(struct backend *backend, struct policy_rows *rows,
                                const struct mlp_batch *batch, uint64_t seed, uint32_t episode,
                                const uint32_t *environment, const uint32_t *step, float *probabilities,
                                struct error *error)
{
    static const size_t counts[] = {512, 128, 256, 2};
    float values[PARAMETERS], *to = values;
    const double *from = rows->slab;
    (void)backend;
    (void)error;
    for (int i = 0; i < 4; i++) {
        for (size_t e = 0; e < counts[i]; e++)
            *to++ = (float)from[e];
        from += (counts[i] + 7) / 8 * 8;
    }
    mlp_load(rows->mlp, values);
    mlp_act(rows->mlp, batch, seed, episode, environment, step, probabilities);
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
    ops.policy_open = stand_in_open;
    ops.policy_close = stand_in_close;
    ops.policy_act = stand_in_act;
    mlp_problem_init(&problem, config.shape, config.dropout, ROWS, 3);
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
    float a[PARAMETERS], b[PARAMETERS];
    must(policy_read(cpu, a, &error));
    must(policy_read(gpu, b, &error));
    for (size_t i = 0; i < PARAMETERS; i++)
        ck_assert_msg(fabs((double)a[i] - (double)b[i]) <= bound, "%zu: %.9g, gpu %.9g", i, (double)a[i],
                      (double)b[i]);
}

static void act_alike(void)
{
    uint8_t actions[ROWS];
    must(policy_act(cpu, &problem.batch, EPISODE, problem.environment, problem.step, &error));
    memcpy(actions, problem.batch.actions, ROWS);
    must(policy_act(gpu, &problem.batch, EPISODE, problem.environment, problem.step, &error));
    ck_assert_mem_eq(actions, problem.batch.actions, ROWS);
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
        must(policy_learn(cpu, &problem.batch, problem.coefficient, EPISODE, &loss[0], NULL, NULL, &error));
        must(policy_learn(gpu, &problem.batch, problem.coefficient, EPISODE, &loss[1], count_call, &calls,
                          &error));
        ck_assert_double_eq_tol(loss[0], loss[1], 1e-3);
        expect_near(1e-4);
    }
    ck_assert_uint_gt(calls, 3);
}
END_TEST

START_TEST(written_parameters_act)
{
    float moved[PARAMETERS];
    must(policy_write(cpu, problem.parameters, &error));
    must(policy_write(gpu, problem.parameters, &error));
    must(policy_read(gpu, moved, &error));
    ck_assert_mem_eq(moved, problem.parameters, sizeof moved);
    act_alike();
}
END_TEST

/* Told by name, and nothing has moved. */
START_TEST(what_is_not_finite_changes_nothing)
{
    float before[PARAMETERS], after[PARAMETERS];
    double loss = -1;
    act_alike();
    must(policy_read(gpu, before, &error));
    problem.coefficient[290] = NAN;
    ck_assert_int_eq(
        policy_learn(gpu, &problem.batch, problem.coefficient, EPISODE, &loss, NULL, NULL, &error),
        STATUS_INTERNAL);
    ck_assert_msg(strstr(error.text, "the input returns") != NULL, "%s", error.text);
    must(policy_read(gpu, after, &error));
    ck_assert_mem_eq(before, after, sizeof before);
    ck_assert_double_eq(loss, -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_gpu");
    TCase *tests = tcase_create("policy_gpu");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, it_learns_what_the_cpu_learns);
    tcase_add_test(tests, written_parameters_act);
    tcase_add_test(tests, what_is_not_finite_changes_nothing);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
