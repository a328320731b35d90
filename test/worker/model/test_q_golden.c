/* Gradient steps of DQN, SAC and TD3 against PyTorch in float64 (test/golden/off_policy.py): the losses of
 * five steps, then all parameters with the targets. The policies of the record explore, mask, weigh and clip
 * in every way that their configurations have. */
#include "test/worker/model/q_problem.h"
#include "test/worker/reinforce/ppo_record.h"
#include "test/workplace.h"
#include "worker/model/policy_parameters.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 5, LOSSES = 4 };

/* ---- the problem ---- */

/* As off_policy.py's OPTIONS. */
enum {
    LEARNING,
    ROWS,
    SEED,
    BATCH_SEED,
    LEARNING_RATE,
    WIDTH0,
    WIDTH1,
    TANH,
    BYTES,
    DOUBLE,
    DUELING,
    WEIGHTS,
    MASKS,
    MAX_NORM,
    FOLLOW_AFTER,
    CRITICS,
    CRITIC_WIDTH0,
    CRITIC_WIDTH1,
    LEARNS_ENTROPY,
    ENT_COEF,
    TARGET_INTERVAL,
    SDE,
    EXPLN,
    LOG_STD_INIT,
    POLICY_DELAY,
    TARGET_NOISE,
    TARGET_NOISE_CLIP,
    OPTIONS
};

static const char *const cases[] = {
    "dqn",           "dqn_double",     "dqn_dueling", "dqn_double_dueling", "dqn_weights", "dqn_clipped",
    "dqn_masks",     "dqn_bytes",      "dqn_follow",  "dqn_tanh",           "dqn_linear",  "dqn_chunks",
    "sac_auto",      "sac_auto_0.1",   "sac_fixed",   "sac_critic",         "sac_critics", "sac_layers",
    "sac_tanh",      "sac_interval",   "sac_bytes",   "sac_linear",         "sac_chunks",  "td3",
    "td3_clipped",   "ddpg",           "td3_linear",  "td3_chunks",         "sac_sde",     "sac_sde_tanh",
    "sac_sde_expln", "sac_sde_chunks",
};

enum { CASES = sizeof cases / sizeof *cases };

static struct error error;
static struct q_problem problem;
static struct ppo_record *record;
static float option[OPTIONS];

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* The shortest decimal fraction of an option, which float32 has rounded: 0.2, not 0.200000003. */
static double exactly(unsigned number)
{
    char text[32];
    snprintf(text, sizeof text, "%.7g", (double)option[number]);
    return strtod(text, NULL);
}

/* Returns how many hidden layers there are. */
static uint32_t take_widths(unsigned number, uint32_t width[])
{
    uint32_t layers = 0;
    for (; layers < 2 && option[number + layers] > 0; layers++)
        width[layers] = (uint32_t)option[number + layers];
    return layers;
}

static void open_problem(const char *name)
{
    record = ppo_record_open("test/golden/off_policy.txt", name);
    ppo_record_take(record, "options", option, OPTIONS);
    q_problem_init(&problem, (enum policy_learning)option[LEARNING], (uint32_t)option[ROWS],
                   (uint64_t)option[BATCH_SEED]);
    struct policy_config *config = &problem.config;
    struct policy_q_config *q = &config->q;
    config->seed = (uint64_t)option[SEED];
    config->layers = take_widths(WIDTH0, config->width);
    config->activation = option[TANH] > 0 ? POLICY_TANH : POLICY_RELU;
    config->observation.dtype = option[BYTES] > 0 ? ENVIRONMENT_U8 : ENVIRONMENT_F32;
    q->double_q = option[DOUBLE] > 0;
    q->dueling = option[DUELING] > 0;
    problem.has_weights = option[WEIGHTS] > 0;
    problem.has_masks = config->has_mask = option[MASKS] > 0;
    q->max_norm = exactly(MAX_NORM);
    q->critics = (uint32_t)option[CRITICS];
    q->critic_layers = take_widths(CRITIC_WIDTH0, q->critic_width);
    q->learns_entropy = option[LEARNS_ENTROPY] > 0;
    q->entropy_coefficient = exactly(ENT_COEF);
    q->target_interval = (uint32_t)option[TARGET_INTERVAL];
    config->state_dependent = option[SDE] > 0;
    q->expln = option[EXPLN] > 0;
    config->log_std_init = exactly(LOG_STD_INIT);
    q->policy_delay = (uint32_t)option[POLICY_DELAY];
    q->target_noise = exactly(TARGET_NOISE);
    q->target_noise_clip = exactly(TARGET_NOISE_CLIP);
}

/* ---- against the record ---- */

static void expect_losses(unsigned step, const struct policy_q_losses *losses)
{
    static const char *const names[LOSSES] = {"critic", "actor", "entropy_coefficient", "entropy"};
    const double got[LOSSES] = {losses->critic, losses->actor, losses->entropy_coefficient, losses->entropy};
    float expected[STEPS * LOSSES];
    ppo_record_take(record, "=losses", expected, STEPS * LOSSES);
    for (unsigned i = 0; i < LOSSES; i++) {
        const double wanted = (double)expected[step * LOSSES + i], found = isnan(got[i]) ? 0 : got[i];
        ck_assert_msg(fabs(found - wanted) <= 1e-5 * fabs(wanted), "step %u, loss %s: %.9g, not %.9g",
                      step + 1, names[i], found, wanted);
    }
}

static void expect_parameters(struct policy *policy)
{
    static struct policy_parameter list[POLICY_PARAMETERS_MAX];
    const uint32_t count = policy_parameters(list, &problem.config);
    const uint32_t floats = ppo_record_count(record, "=parameters");
    struct policy_values values = {0};
    float *expected = calloc(floats, sizeof *expected);
    ck_assert_ptr_nonnull(expected);
    ck_assert_uint_eq(floats, list[count - 1].offset + list[count - 1].count);
    ppo_record_take(record, "=parameters", expected, floats);
    must(policy_values_open(&values, &problem.config, &error));
    must(policy_save(policy, &values, &error));
    for (uint32_t p = 0; p < count; p++)
        for (size_t e = 0; e < list[p].count; e++) {
            const double found = (double)policy_values_at(&values, p, POLICY_VALUES)[e];
            const double wanted = (double)expected[list[p].offset + e];
            ck_assert_msg(fabs(found - wanted) <= 1e-6, "%s[%zu]: %.9g, not %.9g", list[p].name, e, found,
                          wanted);
        }
    policy_values_close(&values);
    free(expected);
}

START_TEST(five_steps_are_those_of_pytorch)
{
    struct policy *policy;
    open_problem(cases[_i]);
    must(policy_new(&policy, &problem.config, NULL, &error));
    for (unsigned step = 0; step < STEPS; step++) {
        struct policy_q_losses losses;
        q_problem_draw(&problem);
        must(policy_fit(policy, &problem.batch, exactly(LEARNING_RATE), &losses, &error));
        expect_losses(step, &losses);
        if (step + 1 == (unsigned)option[FOLLOW_AFTER])
            must(policy_follow(policy, &error));
    }
    expect_parameters(policy);
    policy_free(policy);
    ppo_record_close(record);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("q_golden");
    TCase *tests = tcase_create("q_golden");
    tcase_add_loop_test(tests, five_steps_are_those_of_pytorch, 0, CASES);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
