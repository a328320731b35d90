/* An update of PPO, or of A2C, against PyTorch in float64 (test/golden/ppo.py): values to bootstrap from,
 * advantages and returns, then the losses, the gradient and the parameters of three minibatches. */
#include "test/worker/model/policy_hidden.h"
#include "test/worker/model/policy_inside.h"
#include "test/worker/reinforce/ppo_record.h"
#include "test/workplace.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/ppo.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 3, STEPS = 5, INPUTS = 3, ROWS = COLUMNS * STEPS, NUMBERS_MAX = 512 };

/* ---- the problem ---- */

enum {
    CLIP,
    VALUE_CLIP,
    VALUE_COEFFICIENT,
    ENTROPY_COEFFICIENT,
    HALVED,
    NORMALIZES,
    MAX_NORM,
    BOOTSTRAPS,
    PLAIN,
    OPTIONS
};

static const struct golden_case {
    const char *name;
    uint32_t components, choices[2]; /* no choices: floats */
    bool has_mask, explores, shares;
    bool apart; /* the value has other hidden layers than the policy */
} cases[] = {
    {"choice", .components = 1, .choices = {3}},
    {"choice_value_clipped", .components = 1, .choices = {3}},
    {"choice_halved", .components = 1, .choices = {3}},
    {"choices_masked", .components = 2, .choices = {3, 2}, .has_mask = true},
    {"floats", .components = 2},
    {"floats_value_clipped", .components = 2},
    {"choice_a2c", .components = 1, .choices = {3}},
    {"floats_a2c", .components = 2},
    {"floats_sde", .components = 2, .explores = true},
    {"choice_shared", .components = 1, .choices = {3}, .shares = true},
    {"floats_shared", .components = 2, .shares = true},
    {"choices_apart", .components = 2, .choices = {3, 2}, .apart = true},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static struct policy *open_policy(const struct golden_case *of, const struct ppo_record *record, bool plain)
{
    static const double low[] = {-1, -1}, high[] = {1, 1};
    const struct adam_settings adam = {.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-5};
    const struct adam_settings rms_prop = {.lr = 1, .beta2 = 0.99, .epsilon = 1e-5, .uncorrected = true};
    const bool floats = of->choices[0] == 0;
    const struct policy_config config = {
        .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {INPUTS}},
        .action = {.dtype = floats ? ENVIRONMENT_F32 : ENVIRONMENT_I32,
                   .rank = 1,
                   .shape = {of->components},
                   .low = floats ? low : NULL,
                   .high = floats ? high : NULL,
                   .choices = floats ? NULL : of->choices},
        .has_mask = of->has_mask,
        .shared_value = of->shares,
        POLICY_HIDDEN_POLICY(8, 6),
        .value_layers = of->apart ? 1 : 2,
        .value_width = {of->apart ? 4 : 8, 6},
        .activation = POLICY_TANH,
        .adam = plain ? rms_prop : adam,
        .has_value = true,
        .state_dependent = of->explores,
        .rows_max = ROWS,
    };
    struct policy *policy;
    struct error error;
    ck_assert_msg(policy_new(&policy, &config, NULL, &error) == STATUS_OK, "%s", error.text);
    ppo_record_take(record, "parameters", policy_inside(policy)->values,
                    (uint32_t)policy_inside(policy)->count);
    policy_inside_load(policy);
    return policy;
}

/* Floats as they are; choices as int32. */
static void take_actions(const struct golden_case *of, const struct ppo_record *record, void *actions)
{
    float *floats = actions;
    int32_t *choices = actions;
    ppo_record_take(record, "actions", floats, ROWS * of->components);
    for (uint32_t i = 0; i < ROWS * of->components && of->choices[0] > 0; i++)
        choices[i] = (int32_t)floats[i];
}

static struct rollout *open_rollout(const struct golden_case *of, const struct ppo_record *record)
{
    const uint32_t choices = of->has_mask ? of->choices[0] + of->choices[1] : 0;
    const struct rollout_config config = {.environments = COLUMNS,
                                          .agents = 1,
                                          .steps_max = STEPS,
                                          .observation_bytes = INPUTS * sizeof(float),
                                          .action_bytes = of->components * sizeof(float),
                                          .choices = choices,
                                          .bootstraps = true};
    struct rollout *r;
    float numbers[NUMBERS_MAX], rows[2];
    ck_assert_int_eq(rollout_new(&r, &config, NULL), STATUS_OK);
    rollout_begin(r, 1);
    ppo_record_take(record, "observations", (void *)r->observations, (ROWS + COLUMNS) * INPUTS);
    ppo_record_take(record, "rewards", r->rewards, ROWS);
    ppo_record_take(record, "log_probabilities", r->log_probabilities, ROWS);
    ppo_record_take(record, "values", r->values, ROWS);
    ppo_record_take(record, "flags", numbers, ROWS);
    for (uint32_t i = 0; i < ROWS; i++)
        r->flags[i] = (uint8_t)numbers[i];
    for (uint32_t c = 0; c < COLUMNS; c++)
        r->lengths[c] = STEPS;
    take_actions(of, record, r->actions);
    if (of->has_mask)
        ppo_record_take(record, "masks", numbers, ROWS * choices);
    for (uint32_t i = 0; i < ROWS * choices; i++)
        r->allowed[i] = (uint8_t)numbers[i];
    ppo_record_take(record, "last_rows", rows, 2);
    ppo_record_take(record, "last", numbers, 2 * INPUTS);
    for (uint32_t i = 2; i-- > 0;) { /* in another order than the rows' */
        const uint32_t row = (uint32_t)rows[i], environment = row % COLUMNS;
        const uint8_t flags = ENVIRONMENT_TRUNCATED;
        const struct step step = {.number = row / COLUMNS + 1,
                                  .count = 1,
                                  .agents = 1,
                                  .rows = 1,
                                  .ended = 1,
                                  .flags_bytes = 1,
                                  .observation_bytes = config.observation_bytes,
                                  .numbers = &environment,
                                  .last = (const char *)(numbers + i * INPUTS),
                                  .flags = &flags};
        ck_assert_int_eq(rollout_record_last(r, &step, NULL), STATUS_OK);
    }
    return r;
}

/* ---- the update ---- */

static void estimate(struct policy *policy, const void *observations, uint32_t count, float *values)
{
    static const uint32_t plain[] = {0, 1, 2};
    const struct policy_rows rows = {
        .count = count, .row = plain, .observations = observations, .values = values};
    ck_assert_int_eq(policy_estimate(policy, &rows, NULL), STATUS_OK);
}

/* Of a job that outlives the result. */
static struct ppo check_advantages(const struct ppo_record *record, const struct job *job,
                                   struct policy *policy, struct rollout *r)
{
    float *closing = r->values + ROWS;
    struct ppo ppo;
    ck_assert_int_eq(ppo_open(&ppo, job, r, NULL), STATUS_OK);
    memcpy(ppo.advantages.rewards, r->rewards, ROWS * sizeof *ppo.advantages.rewards);
    estimate(policy, r->observations + ROWS * r->config.observation_bytes, COLUMNS, closing);
    estimate(policy, r->last_observations, r->last_count, r->last_values);
    ppo_record_expect(record, "=closing", closing, COLUMNS);
    ppo_record_expect(record, "=truncated", r->last_values, 2);
    ck_assert_uint_eq(advantages_estimate(&ppo.advantages, ppo.job, r), ROWS);
    for (uint32_t i = 0; i < ROWS; i++)
        ck_assert_uint_eq(ppo.advantages.order[i], i % STEPS * COLUMNS + i / STEPS);
    ppo_record_expect(record, "=advantages", ppo.advantages.values, ROWS);
    ppo_record_expect(record, "=returns", ppo.advantages.returns, ROWS);
    return ppo;
}

static void check_losses(const struct ppo_record *record, const char *name, const struct surrogate_losses *l)
{
    const float got[] = {(float)l->loss, (float)l->policy,        (float)l->value,        (float)l->entropy,
                         (float)l->kl,   (float)l->clip_fraction, (float)l->gradient_norm};
    ppo_record_expect(record, name, got, sizeof got / sizeof got[0]);
    ck_assert(l->stepped);
}

static void check_minibatch(const struct ppo_record *record, struct policy *policy, const struct rollout *r,
                            const struct ppo *ppo, const float options[], int number)
{
    char name[32];
    float order[ROWS / 3];
    uint32_t row[ROWS / 3];
    struct surrogate_losses losses;
    const struct policy_targets targets = {ppo->advantages.values, ppo->advantages.returns,
                                           options[NORMALIZES] != 0};
    const struct policy_step step = {
        .objective = {.clip = (double)options[CLIP],
                      .value_clip = options[VALUE_CLIP] != 0 ? (double)options[VALUE_CLIP] : (double)INFINITY,
                      .value_coefficient = (double)options[VALUE_COEFFICIENT],
                      .entropy_coefficient = (double)options[ENTROPY_COEFFICIENT],
                      .halved = options[HALVED] != 0,
                      .plain = options[PLAIN] != 0},
        .max_norm = (double)options[MAX_NORM],
        .lr = 0.01,
        .kl_max = (double)INFINITY};
    snprintf(name, sizeof name, "order%d", number);
    ppo_record_take(record, name, order, ROWS / 3);
    for (uint32_t i = 0; i < ROWS / 3; i++)
        row[i] = (uint32_t)order[i];
    const struct policy_rows rows = {.count = ROWS / 3,
                                     .row = row,
                                     .observations = r->observations,
                                     .actions = r->actions,
                                     .allowed = r->allowed,
                                     .log_probabilities = r->log_probabilities,
                                     .values = r->values};
    ck_assert_int_eq(policy_improve(policy, &rows, &targets, &step, &losses, NULL), STATUS_OK);
    snprintf(name, sizeof name, "=losses%d", number);
    check_losses(record, name, &losses);
    snprintf(name, sizeof name, "=gradient%d", number);
    ppo_record_expect(record, name, policy_inside(policy)->gradient, (uint32_t)policy_inside(policy)->count);
    snprintf(name, sizeof name, "=parameters%d", number);
    ppo_record_expect(record, name, policy_inside(policy)->values, (uint32_t)policy_inside(policy)->count);
}

START_TEST(three_minibatches_are_pytorchs)
{
    const struct golden_case *of = &cases[_i];
    float options[OPTIONS];
    struct ppo_record *record = ppo_record_open("test/golden/ppo.txt", of->name);
    ppo_record_take(record, "options", options, OPTIONS);
    struct policy *policy = open_policy(of, record, options[PLAIN] != 0);
    struct rollout *rollout = open_rollout(of, record);
    const struct job job = {.returns.gamma = 0.98,
                            .algorithm = {.batch_size = ROWS / 3,
                                          .gae_lambda = 0.9,
                                          .bootstrap_truncated = options[BOOTSTRAPS] != 0}};
    struct ppo ppo = check_advantages(record, &job, policy, rollout);
    for (int i = 0; i < 3; i++)
        check_minibatch(record, policy, rollout, &ppo, options, i);
    ppo_close(&ppo);
    rollout_free(rollout);
    policy_free(policy);
    ppo_record_close(record);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ppo_golden");
    TCase *core = tcase_create("core");
    tcase_add_loop_test(core, three_minibatches_are_pytorchs, 0, CASES);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
