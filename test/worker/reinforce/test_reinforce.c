/* The learner: one rollout in, one step of the policy out; the message about a rollout with a NaN or an
 * infinity; returns and the order of rows, against values worked out by hand and by the tutorial's rules. */
#include "test/worker/model/policy_inside.h"
#include "test/worker/model/policy_problem.h"
#include "test/worker/reinforce/rollout_rows.h"
#include "test/workplace.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/reinforce.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { ENVIRONMENTS = 2, STEPS = 300, PARAMETERS = 898 };

static struct policy *policy;
static struct rollout *played;

static float *observations(void)
{
    void *memory = played->observations;
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
    ck_assert_int_eq(rollout_new(&played, &config, NULL), STATUS_OK);
    rollout_begin(played, 7);
    for (uint32_t e = 0; e < ENVIRONMENTS; e++)
        played->lengths[e] = STEPS;
    for (uint32_t row = 0; row < ENVIRONMENTS * STEPS; row++) {
        for (uint32_t i = 0; i < shape->inputs; i++)
            observations()[row * shape->inputs + i] = (float)((row + i) % 5) - 2;
        memset(played->masks + row * mlp_mask_words(shape), 0xff,
               mlp_mask_words(shape) * sizeof *played->masks);
        played->rewards[row] = 1;
        ((int32_t *)played->actions)[row] = 1;
        played->flags[row] = 0;
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
    rollout_free(played);
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

static struct job job_of(double gamma, bool normalizes)
{
    return (struct job){.returns = {.gamma = gamma, .normalize = normalizes},
                        .loss.reduction = JOB_REDUCTION_SUM};
}

static enum status learn(double *loss, struct error *error)
{
    const struct job job = job_of(0.5, false);
    progress = 0;
    return reinforce_learn(policy, played, &job, count_progress, &progress, loss, error);
}

START_TEST(what_paid_becomes_likelier)
{
    double first, loss;
    struct error error = {0};
    float before[PARAMETERS], after[PARAMETERS];
    read_parameters(before);
    ck_assert_int_eq(learn(&first, &error), STATUS_OK);
    ck_assert_uint_eq(progress, 3); // 600 rows in chunks of 256
    read_parameters(after);
    ck_assert_mem_ne(before, after, sizeof before);
    for (int pass = 0; pass < 5; pass++)
        ck_assert_int_eq(learn(&loss, &error), STATUS_OK);
    ck_assert_double_gt(first, 0);
    ck_assert_double_lt(loss, first);
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
    double loss;
    struct error error = {0};
    float before[PARAMETERS], after[PARAMETERS];
    read_parameters(before);
    const uint32_t row = rollout_row(played, 0, 1); // the second environment's first row: 300th in the order
    observations()[row * 4] = cases[_i].observation;
    played->rewards[row] = cases[_i].reward;
    ck_assert_int_eq(learn(&loss, &error), STATUS_INTERNAL);
    ck_assert_int_eq(status_exit_code(STATUS_INTERNAL), 70);
    ck_assert_str_eq(error.text, cases[_i].words);
    read_parameters(after);
    ck_assert_mem_eq(before, after, sizeof before);
    observations()[row * 4] = 0;
    played->rewards[row] = 1;
    ck_assert_int_eq(learn(&loss, &error), STATUS_OK);
}
END_TEST

/* ---- returns ---- */

static void expect(const struct rollout *rollout, uint32_t from, const double *wanted, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        ck_assert_msg(fabs((double)rollout->coefficients[from + i] - wanted[i]) < 1e-6,
                      "coefficient %u: %g, not %g", from + i, (double)rollout->coefficients[from + i],
                      wanted[i]);
}

static void expect_order(const struct rollout *rollout, const uint32_t *wanted, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        ck_assert_uint_eq(rollout->order[i], wanted[i]);
}

START_TEST(rows_are_ordered_by_environment_then_step)
{
    struct rollout *rollout = rollout_make(2, 3);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 1}, 2);
    rollout_fill(rollout, 1, (const uint8_t[]){0, 0, 1}, 3);
    const struct job config = job_of(1, false);
    ck_assert_uint_eq(reinforce_weigh(rollout, &config), 5);
    expect_order(rollout, (const uint32_t[]){0, 2, 1, 3, 5}, 5);
    ck_assert_uint_eq(rollout_rows(rollout), 5);
    rollout_free(rollout);
}
END_TEST

START_TEST(returns_are_discounted_and_end_with_a_segment)
{
    struct rollout *rollout = rollout_make(1, 5);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0, 1, 0, 0}, 5);
    const struct job config = job_of(0.5, false);
    reinforce_weigh(rollout, &config);
    expect(rollout, 0, (const double[]){1.75, 1.5, 1, 1.5, 1}, 5);
    rollout_free(rollout);
}
END_TEST

START_TEST(returns_of_signs_end_with_a_life)
{
    struct rollout *rollout = rollout_make(1, 5);
    rollout_fill(rollout, 0, (const uint8_t[]){0, ENVIRONMENT_LIFE_LOST, 0, 0, 0}, 5);
    memcpy(rollout->rewards, (const float[]){7, -0.5f, 0, 1e-3f, 1}, 5 * sizeof(float));
    rollout->config.clips_rewards = true;
    const struct job config = job_of(0.5, false);
    reinforce_weigh(rollout, &config);
    expect(rollout, 0, (const double[]){0.5, -1, 0.75, 1.5, 1}, 5);
    ck_assert_double_eq_tol(rollout_reward(rollout, false), 7.501, 1e-6); /* the log's */
    rollout_free(rollout);
}
END_TEST

START_TEST(one_environment_does_not_leak_into_the_next)
{
    struct rollout *rollout = rollout_make(2, 2);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0}, 2);
    rollout_fill(rollout, 1, (const uint8_t[]){0, 0}, 2);
    struct job config = job_of(1, false);
    config.loss.reduction = JOB_REDUCTION_MEAN_OVER_ENVIRONMENTS;
    reinforce_weigh(rollout, &config);
    expect(rollout, 0, (const double[]){1, 0.5, 1, 0.5}, 4);
    rollout_free(rollout);
}
END_TEST

/* Returns 3, 2, 1: mean 2, unbiased deviation 1, to which the tutorial adds float32's epsilon. */
START_TEST(normalizing_uses_the_unbiased_deviation)
{
    struct rollout *rollout = rollout_make(1, 3);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0, 1}, 3);
    const struct job config = job_of(1, true);
    reinforce_weigh(rollout, &config);
    expect(rollout, 0, (const double[]){1, 0, -1}, 3);
    rollout_free(rollout);
}
END_TEST

START_TEST(a_single_row_has_no_deviation_and_counts_nothing)
{
    struct rollout *rollout = rollout_make(1, 3);
    rollout_fill(rollout, 0, (const uint8_t[]){1}, 1);
    const struct job config = job_of(1, true);
    ck_assert_uint_eq(reinforce_weigh(rollout, &config), 1);
    ck_assert(rollout->coefficients[0] == 0);
    rollout_free(rollout);
}
END_TEST

/* Segments of 2, 2 and 1 rows; the environment failed in the second. */
START_TEST(a_segment_that_failed_is_not_learned_from)
{
    struct rollout *rollout = rollout_make(1, 5);
    rollout_fill(rollout, 0, (const uint8_t[]){0, ENVIRONMENT_TERMINATED, 0, ENVIRONMENT_FAILED, 0}, 5);
    const struct job config = job_of(1, false);
    ck_assert_uint_eq(reinforce_weigh(rollout, &config), 3);
    expect(rollout, 0, (const double[]){2, 1, 1}, 3);
    expect_order(rollout, (const uint32_t[]){0, 1, 4}, 3);
    rollout_free(rollout);
}
END_TEST

/* Of two agents the second one ends at step 0, and the environment at step 2. */
START_TEST(an_absent_agent_is_not_learned_from)
{
    enum { ENDS = ENVIRONMENT_TERMINATED, GONE = ENVIRONMENT_ABSENT };
    const struct rollout_config config = {
        .environments = 1, .agents = 2, .steps_max = 4, .observation_bytes = 4, .action_bytes = 4};
    const struct job plain = job_of(1, false);
    struct rollout *rollout;
    ck_assert_int_eq(rollout_new(&rollout, &config, NULL), STATUS_OK);
    rollout_begin(rollout, 1);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0, ENDS, 0}, 4);
    rollout_fill(rollout, 1, (const uint8_t[]){ENDS | GONE, GONE, GONE, 0}, 4);
    ck_assert_uint_eq(reinforce_weigh(rollout, &plain), 6);
    expect(rollout, 0, (const double[]){3, 2, 1, 1, 1, 1}, 6);
    expect_order(rollout, (const uint32_t[]){0, 2, 4, 6, 1, 7}, 6);
    rollout_free(rollout);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("learner");
    TCase *passes = tcase_create("passes"), *returns = tcase_create("returns");
    tcase_add_checked_fixture(passes, setup, teardown);
    tcase_add_test(passes, what_paid_becomes_likelier);
    tcase_add_loop_test(passes, a_loss_that_is_not_finite_names_episode_and_tensor, 0, 2);
    suite_add_tcase(suite, passes);
    tcase_add_test(returns, rows_are_ordered_by_environment_then_step);
    tcase_add_test(returns, returns_are_discounted_and_end_with_a_segment);
    tcase_add_test(returns, returns_of_signs_end_with_a_life);
    tcase_add_test(returns, one_environment_does_not_leak_into_the_next);
    tcase_add_test(returns, normalizing_uses_the_unbiased_deviation);
    tcase_add_test(returns, a_single_row_has_no_deviation_and_counts_nothing);
    tcase_add_test(returns, a_segment_that_failed_is_not_learned_from);
    tcase_add_test(returns, an_absent_agent_is_not_learned_from);
    suite_add_tcase(suite, returns);
    return suite_run(suite);
}
