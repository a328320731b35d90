/* The learner: one rollout in, one step of the policy out; and the message about a rollout with a NaN or
 * an infinity. */
#include "test/worker/model/policy_inside.h"
#include "test/worker/model/policy_problem.h"
#include "test/workplace.h"
#include "worker/reinforce/learner.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { ENVIRONMENTS = 2, STEPS = 300, PARAMETERS = 898 };

static struct policy *policy;
static struct rollout *rollout;

static float *observations(void)
{
    void *memory = rollout->observations;
    return memory;
}

/* Episode 7: every environment was steered for all steps by one and the same action, to a reward of 1 each.
 */
static void fill_rollout(const struct mlp_shape *shape)
{
    const struct rollout_config config = {.environments = ENVIRONMENTS,
                                          .agents = 1,
                                          .steps_max = STEPS,
                                          .observation_bytes = shape->inputs * sizeof(float),
                                          .action_bytes = sizeof(int32_t),
                                          .dropout_words = mlp_mask_words(shape)};
    ck_assert_int_eq(rollout_new(&rollout, &config, NULL), STATUS_OK);
    rollout_begin(rollout, 7);
    for (uint32_t e = 0; e < ENVIRONMENTS; e++)
        rollout->lengths[e] = STEPS;
    for (uint32_t row = 0; row < ENVIRONMENTS * STEPS; row++) {
        for (uint32_t i = 0; i < shape->inputs; i++)
            observations()[row * shape->inputs + i] = (float)((row + i) % 5) - 2;
        memset(rollout->masks + row * mlp_mask_words(shape), 0xff,
               mlp_mask_words(shape) * sizeof *rollout->masks);
        rollout->rewards[row] = 1;
        ((int32_t *)rollout->actions)[row] = 1;
        rollout->flags[row] = 0;
    }
}

static void setup(void)
{
    const struct mlp_shape shape = {4, 128, 2};
    struct policy_config config = policy_problem_config(shape, 0.6, 3);
    config.adam = ADAM_DEFAULTS;
    struct error error = {0};
    ck_assert_int_eq(policy_new(&policy, &config, NULL, &error), STATUS_OK);
    fill_rollout(&shape);
}

static void teardown(void)
{
    rollout_free(rollout);
    policy_free(policy);
}

static void read_parameters(float *to)
{
    memcpy(to, policy_inside(policy)->values, PARAMETERS * sizeof *to);
}

static void count_progress(void *context)
{
    ++*(unsigned *)context;
}

static unsigned progress;

static enum status learn(struct learner_result *result, struct error *error)
{
    const struct returns_config returns = {.gamma = 0.5, .scale = 1};
    progress = 0;
    return learner_run(policy, rollout, &returns, count_progress, &progress, result, error);
}

START_TEST(what_paid_becomes_likelier)
{
    struct learner_result first, result;
    struct error error = {0};
    float before[PARAMETERS], after[PARAMETERS];
    read_parameters(before);
    ck_assert_int_eq(learn(&first, &error), STATUS_OK);
    ck_assert_uint_eq(progress, 3); // 600 rows in chunks of 256
    read_parameters(after);
    ck_assert_mem_ne(before, after, sizeof before);
    for (int pass = 0; pass < 5; pass++)
        ck_assert_int_eq(learn(&result, &error), STATUS_OK);
    ck_assert_double_gt(first.loss, 0);
    ck_assert_double_lt(result.loss, first.loss);
    ck_assert_double_ge(result.seconds, 0);
}
END_TEST

START_TEST(a_loss_that_is_not_finite_names_episode_and_tensor)
{
    static const struct {
        float observation, reward;
        const char *words;
    } cases[] = {
        {0, NAN,
         "learning from episode 7: the loss is nan; the first tensor that holds a NaN or an infinity is the "
         "returns, row 300 of 600"},
        {NAN, NAN,
         "learning from episode 7: the loss is nan; the first tensor that holds a NaN or an infinity is the "
         "observations, row 300 of 600"},
    };
    struct learner_result result = {.loss = 5};
    struct error error = {0};
    float before[PARAMETERS], after[PARAMETERS];
    read_parameters(before);
    const uint32_t row = rollout_row(rollout, 0, 1); // the second environment's first row: 300th in the order
    observations()[row * 4] = cases[_i].observation;
    rollout->rewards[row] = cases[_i].reward;
    ck_assert_int_eq(learn(&result, &error), STATUS_INTERNAL);
    ck_assert_int_eq(status_exit_code(STATUS_INTERNAL), 70);
    ck_assert_str_eq(error.text, cases[_i].words);
    ck_assert_double_eq(result.loss, 5);
    read_parameters(after);
    ck_assert_mem_eq(before, after, sizeof before);
    observations()[row * 4] = 0;
    rollout->rewards[row] = 1;
    ck_assert_int_eq(learn(&result, &error), STATUS_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("learner");
    TCase *passes = tcase_create("passes");
    tcase_add_checked_fixture(passes, setup, teardown);
    tcase_add_test(passes, what_paid_becomes_likelier);
    tcase_add_loop_test(passes, a_loss_that_is_not_finite_names_episode_and_tensor, 0, 2);
    suite_add_tcase(suite, passes);
    return suite_run(suite);
}
