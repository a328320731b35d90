/* Advantages against values worked out by hand: what stands behind the end of a segment. */
#include "test/worker/reinforce/rollout_rows.h"
#include "test/workplace.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/advantages.h"

#include <check.h>
#include <math.h>

enum { STEPS = 3, ENDS = ENVIRONMENT_TERMINATED, CUT = ENVIRONMENT_TRUNCATED, LIFE = ENVIRONMENT_LIFE_LOST };

/* Rewards of 1, values of 10, and 100 behind a cut and behind the last step; gamma and lambda are 1/2. */
static const struct {
    uint8_t middle; /* the flags of the second of three steps */
    double second;  /* its advantage: 1 + gamma * next - 10 */
} cases[] = {
    {0, 1 + 5 - 10 + 0.25 * (1 + 50 - 10)}, {ENDS, -9}, {LIFE, -9}, {LIFE | CUT, -9}, {CUT, 1 + 50 - 10}};

START_TEST(a_segment_ends_in_a_value_or_in_none)
{
    const struct rollout_config config = {.environments = 1,
                                          .agents = 1,
                                          .steps_max = STEPS,
                                          .observation_bytes = 16,
                                          .action_bytes = 4,
                                          .bootstraps = true};
    const struct job job = {.returns.gamma = 0.5,
                            .algorithm = {.gae_lambda = 0.5, .bootstrap_truncated = true}};
    float rewards[STEPS] = {1, 1, 1}, values[STEPS], returns[STEPS];
    uint32_t order[STEPS], last_row = 1;
    float last_value = 100;
    struct advantages a = {rewards, values, returns, order};
    struct rollout *rollout;
    ck_assert_int_eq(rollout_new(&rollout, &config, NULL), STATUS_OK);
    rollout_begin(rollout, 1);
    rollout_fill(rollout, 0, (const uint8_t[]){0, cases[_i].middle, 0}, STEPS);
    for (uint32_t row = 0; row < STEPS; row++)
        rollout->values[row] = 10;
    rollout->values[STEPS] = 100;
    /* Where a learner finds what a cut episode has led to, also if nothing may ask for it. */
    uint32_t *const own_rows = rollout->last_rows;
    float *const own_values = rollout->last_values;
    rollout->last_rows = &last_row;
    rollout->last_values = &last_value;
    rollout->last_count = 1;
    ck_assert_uint_eq(advantages_estimate(&a, &job, rollout), STEPS);
    ck_assert_double_eq_tol((double)values[1], cases[_i].second, 1e-6);
    ck_assert_double_eq_tol((double)values[0], 1 + 5 - 10 + 0.25 * cases[_i].second, 1e-6);
    ck_assert_double_eq_tol((double)values[2], 1 + 50 - 10, 1e-6);
    rollout->last_rows = own_rows;
    rollout->last_values = own_values;
    rollout->last_count = 0;
    rollout_free(rollout);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("advantages");
    TCase *core = tcase_create("core");
    tcase_add_loop_test(core, a_segment_ends_in_a_value_or_in_none, 0, sizeof cases / sizeof cases[0]);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
