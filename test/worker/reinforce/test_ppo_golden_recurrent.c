/* An update of PPO, or of A2C, by a policy with memory, against PyTorch in float64
 * (test/golden/ppo_recurrent.py). The policy acts step by step: states and values. ppo_learn then updates it:
 * values to bootstrap from, advantages, returns, parameters. A second policy takes the same steps one by one:
 * minibatches, losses, gradients, parameters; its last bits are those of the first. */
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

enum { INPUTS = 3, UNITS = 4, HIDDEN = 5, OLD_ENDED = 1 /* the column whose episode ended before */ };

/* The record's options and sizes, in their order there. */
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
enum { COLUMNS, STEPS, BATCH_SIZE, MINIBATCHES, SEED, SIZES };

static const struct golden_case {
    const char *name;
    enum policy_cell cell;
    enum policy_critic critic;
    uint32_t layers, components, choices[2]; /* no choices: floats */
    bool is_padded, has_mask, explores;
} cases[] = {
    {"lstm", POLICY_LSTM, POLICY_CRITIC_OWN, 1, 1, {3}, false, false, false},
    {"lstm_padded", POLICY_LSTM, POLICY_CRITIC_OWN, 1, 2, {0}, true, false, false},
    {"lstm_round", POLICY_LSTM, POLICY_CRITIC_OWN, 1, 1, {3}, true, false, false},
    {"lstm_detached", POLICY_LSTM, POLICY_CRITIC_DETACHED, 1, 1, {3}, false, false, false},
    {"lstm_linear", POLICY_LSTM, POLICY_CRITIC_LINEAR, 1, 2, {0}, true, false, false},
    {"lstm_shared", POLICY_LSTM, POLICY_CRITIC_SHARED, 1, 1, {3}, false, false, false},
    {"lstm_layers", POLICY_LSTM, POLICY_CRITIC_OWN, 2, 1, {3}, true, false, false},
    {"lstm_sde", POLICY_LSTM, POLICY_CRITIC_OWN, 1, 2, {0}, false, false, true},
    {"lstm_a2c", POLICY_LSTM, POLICY_CRITIC_OWN, 1, 1, {3}, false, false, false},
    {"gru", POLICY_GRU, POLICY_CRITIC_OWN, 1, 2, {0}, false, false, false},
    {"gru_padded_masked", POLICY_GRU, POLICY_CRITIC_OWN, 1, 2, {3, 2}, true, true, false},
    {"gru_detached", POLICY_GRU, POLICY_CRITIC_DETACHED, 1, 2, {0}, true, false, false},
    {"gru_linear", POLICY_GRU, POLICY_CRITIC_LINEAR, 1, 1, {3}, false, false, false},
    {"gru_shared", POLICY_GRU, POLICY_CRITIC_SHARED, 1, 2, {0}, true, false, false},
    {"gru_long", POLICY_GRU, POLICY_CRITIC_OWN, 1, 1, {3}, false, false, false}, /* of more rows than a chunk
                                                                                    has */
    {"gru_layers", POLICY_GRU, POLICY_CRITIC_DETACHED, 3, 1, {3}, false, false, false},
};
enum { CASES = sizeof cases / sizeof cases[0] };

struct problem {
    const struct golden_case *of;
    struct ppo_record *record;
    float options[OPTIONS], sizes[SIZES];
    uint32_t columns, steps, rows;
    struct job job;
    struct error error;
};

static void must(struct problem *p, enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s: %s", p->of->name, p->error.text);
}

/* ---- opening ---- */

static struct job job_of(const struct problem *p)
{
    const float *options = p->options;
    return (struct job){
        .seed = (uint64_t)p->sizes[SEED],
        .returns.gamma = 0.98,
        .rollout.steps = p->steps,
        .optimizer.lr = 0.01,
        .policy.has_recurrent = true,
        .algorithm = {.name = options[PLAIN] != 0 ? JOB_ALGORITHM_A2C : JOB_ALGORITHM_PPO,
                      .n_epochs = 1,
                      .batch_size = (uint32_t)p->sizes[BATCH_SIZE],
                      .has_sequences = true,
                      .sequences = p->of->is_padded ? JOB_SEQUENCES_PADDED : JOB_SEQUENCES_WHOLE,
                      .gae_lambda = 0.9,
                      .clip_range = (double)options[CLIP],
                      .has_clip_range_vf = options[VALUE_CLIP] != 0,
                      .clip_range_vf = (double)options[VALUE_CLIP],
                      .vf_coef = (double)options[VALUE_COEFFICIENT],
                      .ent_coef = (double)options[ENTROPY_COEFFICIENT],
                      .value_loss = options[HALVED] != 0 ? JOB_VALUE_LOSS_HALF_MSE : JOB_VALUE_LOSS_MSE,
                      .normalize_advantage = options[NORMALIZES] != 0,
                      .has_max_grad_norm = true,
                      .max_grad_norm = (double)options[MAX_NORM],
                      .bootstrap_truncated = options[BOOTSTRAPS] != 0}};
}

static void open_problem(struct problem *p, const struct golden_case *of)
{
    *p = (struct problem){.of = of, .record = ppo_record_open("test/golden/ppo_recurrent.txt", of->name)};
    ppo_record_take(p->record, "options", p->options, OPTIONS);
    ppo_record_take(p->record, "sizes", p->sizes, SIZES);
    p->columns = (uint32_t)p->sizes[COLUMNS];
    p->steps = (uint32_t)p->sizes[STEPS];
    p->rows = p->columns * p->steps;
    p->job = job_of(p);
}

static struct policy *open_policy(struct problem *p, uint32_t threads)
{
    static const double low[] = {-1, -1}, high[] = {1, 1};
    const struct adam_settings adam = {.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-5};
    const struct adam_settings rms_prop = {.lr = 1, .beta2 = 0.99, .epsilon = 1e-5, .uncorrected = true};
    const struct golden_case *of = p->of;
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
        .has_value = true,
        .shared_value = of->critic == POLICY_CRITIC_SHARED,
        POLICY_HIDDEN(HIDDEN),
        .activation = POLICY_TANH,
        .memory = of->cell,
        .memory_units = UNITS,
        .memory_layers = of->layers,
        .critic = of->critic,
        .adam = p->options[PLAIN] != 0 ? rms_prop : adam,
        .state_dependent = of->explores,
        .rows_max = p->rows,
        .minibatch_rows = (uint32_t)p->sizes[BATCH_SIZE],
        .environments = p->columns,
        .threads = threads,
    };
    struct policy *policy;
    must(p, policy_new(&policy, &config, NULL, &p->error));
    ppo_record_take(p->record, "parameters", policy_inside(policy)->values,
                    (uint32_t)policy_inside(policy)->count);
    policy_inside_load(policy);
    return policy;
}

/* Numbers that become bytes. */
static void take_bytes(const struct problem *p, const char *name, uint8_t *out, uint32_t count)
{
    float *numbers = calloc(count, sizeof *numbers);
    ck_assert_ptr_nonnull(numbers);
    ppo_record_take(p->record, name, numbers, count);
    for (uint32_t i = 0; i < count; i++)
        out[i] = (uint8_t)numbers[i];
    free(numbers);
}

/* The last observations come in another order than the rows'. */
static void record_last(struct problem *p, struct rollout *r)
{
    const uint32_t count = ppo_record_count(p->record, "last_rows");
    float rows[16], last[16 * INPUTS];
    ck_assert_uint_le(count, 16);
    ppo_record_take(p->record, "last_rows", rows, count);
    ppo_record_take(p->record, "last", last, count * INPUTS);
    for (uint32_t i = count; i-- > 0;) {
        const uint32_t row = (uint32_t)rows[i], environment = row % p->columns;
        const uint8_t flags = ENVIRONMENT_TRUNCATED;
        const struct step step = {.number = row / p->columns + 1,
                                  .count = 1,
                                  .agents = 1,
                                  .rows = 1,
                                  .ended = 1,
                                  .flags_bytes = 1,
                                  .observation_bytes = r->config.observation_bytes,
                                  .numbers = &environment,
                                  .last = (const char *)(last + i * INPUTS),
                                  .flags = &flags};
        must(p, rollout_record_last(r, &step, &p->error));
    }
}

/* Before the policy acts. The states of the first step come from the rollout before. */
static struct rollout *open_rollout(struct problem *p, struct policy *policy)
{
    const uint32_t choices = p->of->has_mask ? p->of->choices[0] + p->of->choices[1] : 0;
    const uint32_t floats = (uint32_t)policy_state_floats(policy);
    const struct rollout_config config = {.environments = p->columns,
                                          .agents = 1,
                                          .steps_max = p->steps,
                                          .observation_bytes = INPUTS * sizeof(float),
                                          .action_bytes = p->of->components * sizeof(float),
                                          .choices = choices,
                                          .bootstraps = true,
                                          .state_floats = floats};
    struct rollout *r;
    must(p, rollout_new(&r, &config, &p->error));
    ppo_record_take(p->record, "begin", r->states + (size_t)p->rows * floats, p->columns * floats);
    r->before[p->rows + OLD_ENDED] = ENVIRONMENT_TERMINATED;
    rollout_begin(r, 1);
    ppo_record_take(p->record, "observations", (void *)r->observations, (p->rows + p->columns) * INPUTS);
    ppo_record_take(p->record, "rewards", r->rewards, p->rows);
    take_bytes(p, "flags", r->flags, p->rows);
    if (choices > 0)
        take_bytes(p, "masks", r->allowed, p->rows * choices);
    for (uint32_t c = 0; c < p->columns; c++)
        r->lengths[c] = p->steps;
    record_last(p, r);
    return r;
}

/* ---- acting ---- */

/* The actions are then those of the record, and so is what the policy is said to have found for them. */
static void act(struct problem *p, struct policy *policy, struct rollout *r)
{
    const uint32_t components = p->of->components;
    for (uint32_t step = 0; step < p->steps; step++) {
        for (uint32_t c = 0; c < p->columns; c++) {
            r->batch_row[c] = rollout_row(r, step, c);
            r->batch_column[c] = c;
            r->batch_step[c] = step;
        }
        r->batch_rows = p->columns;
        must(p, rollout_act(r, policy, &p->error));
    }
    ppo_record_expect(p->record, "=states", r->states,
                      (p->rows + p->columns) * (uint32_t)r->config.state_floats);
    ppo_record_expect(p->record, "=values", r->values, p->rows);
    ppo_record_take(p->record, "values", r->values, p->rows);
    ppo_record_take(p->record, "log_probabilities", r->log_probabilities, p->rows);
    ppo_record_take(p->record, "actions", (void *)r->actions, p->rows * components);
    for (uint32_t i = 0; i < p->rows * components && p->of->choices[0] > 0; i++)
        ((int32_t *)(void *)r->actions)[i] = (int32_t)((const float *)(const void *)r->actions)[i];
}

/* ---- the update ---- */

static void expect_parameters(const struct problem *p, const char *name, const struct policy *policy)
{
    ppo_record_expect(p->record, name, policy_inside(policy)->values, (uint32_t)policy_inside(policy)->count);
}

static void no_progress(void *context)
{
    (void)context;
}

static void learn(struct problem *p, struct policy *policy, struct ppo *ppo, struct rollout *r)
{
    struct control_figures f;
    char name[32];
    must(p, ppo_learn(ppo, policy, r, no_progress, NULL, &f, &p->error));
    ppo_record_expect(p->record, "=closing", r->values + p->rows, p->columns);
    ppo_record_expect(p->record, "=truncated", r->last_values, r->last_count);
    ppo_record_expect(p->record, "=advantages", ppo->advantages.values, p->rows);
    ppo_record_expect(p->record, "=returns", ppo->advantages.returns, p->rows);
    snprintf(name, sizeof name, "=parameters%d", (int)p->sizes[MINIBATCHES] - 1);
    expect_parameters(p, name, policy);
    const float figures[] = {(float)f.loss,         (float)f.policy_loss,   (float)f.value_loss,
                             (float)f.entropy_loss, (float)f.clip_fraction, (float)f.approx_kl};
    ppo_record_expect(p->record, "=figures", figures, sizeof figures / sizeof figures[0]);
}

static void check_losses(const struct problem *p, const char *name, const struct surrogate_losses *l)
{
    const float got[] = {(float)l->loss, (float)l->policy,        (float)l->value,        (float)l->entropy,
                         (float)l->kl,   (float)l->clip_fraction, (float)l->gradient_norm};
    ppo_record_expect(p->record, name, got, sizeof got / sizeof got[0]);
    ck_assert(l->stepped);
}

/* The rows of a minibatch that ppo_draw has drawn are those of the record. */
static struct policy_rows take_rows(const struct problem *p, const struct rollout *r, const struct ppo *ppo,
                                    uint32_t number)
{
    const uint32_t *row = ppo->drawn + ppo->begins[number];
    const uint32_t count = ppo->begins[number + 1] - ppo->begins[number];
    float order[512];
    char name[32];
    snprintf(name, sizeof name, "order%u", number);
    ppo_record_take(p->record, name, order, count);
    for (uint32_t i = 0; i < count; i++)
        ck_assert_uint_eq(row[i], (uint32_t)order[i]);
    return rollout_batch(r, count, row);
}

static void take_step(struct problem *p, struct policy *policy, const struct rollout *r,
                      const struct ppo *ppo, uint32_t number)
{
    const float *options = p->options;
    struct surrogate_losses losses;
    char name[32];
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
    const struct policy_rows rows = take_rows(p, r, ppo, number);
    must(p, policy_improve(policy, &rows, &targets, &step, &losses, &p->error));
    snprintf(name, sizeof name, "=losses%u", number);
    check_losses(p, name, &losses);
    snprintf(name, sizeof name, "=gradient%u", number);
    ppo_record_expect(p->record, name, policy_inside(policy)->gradient,
                      (uint32_t)policy_inside(policy)->count);
    snprintf(name, sizeof name, "=parameters%u", number);
    expect_parameters(p, name, policy);
}

START_TEST(an_update_is_pytorchs)
{
    struct problem p;
    struct ppo ppo;
    open_problem(&p, &cases[_i]);
    struct policy *policy = open_policy(&p, 1), *stepwise = open_policy(&p, 2);
    struct rollout *rollout = open_rollout(&p, policy);
    must(&p, ppo_open(&ppo, &p.job, rollout, &p.error));
    act(&p, policy, rollout);
    learn(&p, policy, &ppo, rollout);
    ck_assert_uint_eq(ppo.minibatches, (uint32_t)p.sizes[MINIBATCHES]);
    for (uint32_t i = 0; i < ppo.minibatches; i++)
        take_step(&p, stepwise, rollout, &ppo, i);
    ck_assert_mem_eq(policy_inside(policy)->values, policy_inside(stepwise)->values,
                     policy_inside(policy)->count * sizeof(float));
    ppo_close(&ppo);
    rollout_free(rollout);
    policy_free(policy);
    policy_free(stepwise);
    ppo_record_close(p.record);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ppo_golden_recurrent");
    TCase *core = tcase_create("core");
    tcase_add_loop_test(core, an_update_is_pytorchs, 0, CASES);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
