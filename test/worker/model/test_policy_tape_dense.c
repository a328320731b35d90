/* Dense layers on a backend beside the same policy on the CPU: what they do, what they learn, and which bits
 * stay. test_policy_dense.c tests the CPU's. */
#include "test/training.h"
#include "test/values.h"
#include "test/worker/model/policy_world.h"
#include "test/workplace.h"
#include "worker/model/policy.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct environment_space vector = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {6}},
                                      bytes = {.dtype = ENVIRONMENT_U8, .rank = 2, .shape = {5, 4}};

static const struct policy_case {
    enum world_head head;
    const struct environment_space *observation;
    uint32_t layers, width[POLICY_LAYERS_MAX];
    enum policy_activation activation;
    bool value, shared, normalizes, explores, rms;
    bool apart; /* the value has these layers instead of the policy's: */
    uint32_t value_layers, value_width[POLICY_LAYERS_MAX];
} cases[] = {
    {WORLD_CHOICE, &vector, 2, {64, 64}, POLICY_TANH, .value = true},
    {WORLD_MASKED, &bytes, 1, {33}, POLICY_RELU, .value = true, .shared = true},
    {WORLD_CHOICES, &bytes, 3, {17, 40, 5}, POLICY_TANH, .value = true, .rms = true},
    {WORLD_MASKED_CHOICES, &vector, 0, {0}, POLICY_TANH, .value = true, .normalizes = true},
    {WORLD_FLOATS, &vector, 2, {64, 64}, POLICY_TANH, .value = true, .normalizes = true},
    {WORLD_FLOATS, &vector, 2, {33, 20}, POLICY_TANH, .value = true, .explores = true},
    {WORLD_FLOATS, &bytes, 2, {16, 7}, POLICY_RELU, .value = true, .shared = true, .explores = true},
    {WORLD_CHOICE, &vector, 8, {16, 16, 16, 16, 16, 16, 16, 16}, POLICY_TANH, .value = true},
    {WORLD_MASKED,
     &vector,
     1,
     {8},
     POLICY_TANH,
     .value = true,
     .apart = true,
     .value_layers = 3,
     .value_width = {16, 4, 33}},
    {WORLD_FLOATS, &vector, 2, {33, 20}, POLICY_RELU, .value = true, .explores = true, .apart = true},
    {WORLD_CHOICES, &bytes, 0, {0}, .value = true, .apart = true, .value_layers = 1, .value_width = {20}},
    {WORLD_MASKED, &vector, 2, {64, 64}, POLICY_TANH, .value = false},
    {WORLD_FLOATS, &vector, 1, {20}, POLICY_RELU, .value = false},
};
enum { CASES = sizeof cases / sizeof *cases, ROWS = 300, MINIBATCH = 100 };

static struct policy_world world;
static struct backend *backend;
static struct policy *cpu, *other; // the other one computes on the backend
static struct policy_values values[2];
static float *advantages, *returns;
static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* ---- begin and end ---- */

static void open_world(const struct policy_case *c)
{
    policy_world_init(&world, c->head, *c->observation, ROWS, 5 + (uint64_t)(c - cases));
    struct policy_config *config = &world.config;
    config->layers = c->layers;
    memcpy(config->width, c->width, sizeof c->width);
    config->value_layers = c->apart ? c->value_layers : c->layers;
    memcpy(config->value_width, c->apart ? c->value_width : c->width, sizeof c->width);
    config->activation = c->activation;
    config->has_value = config->orthogonal = c->value;
    config->shared_value = c->shared;
    config->normalizes = c->normalizes;
    config->clip = 1.5;
    config->state_dependent = c->explores;
    config->noise_steps = 4;
    config->log_std_init = -0.5;
    config->minibatch_rows = MINIBATCH;
    if (c->rms)
        config->adam =
            (struct adam_settings){.lr = 0.01, .beta2 = 0.99, .epsilon = 1e-5, .uncorrected = true};
    world.batch.log_probabilities = c->value ? values_memory(ROWS, sizeof(float)) : NULL;
    world.batch.values = c->value ? values_memory(ROWS, sizeof(float)) : NULL;
    for (uint32_t r = 0; r < ROWS; r++) {
        world.environment[r] = world.row[r];
        world.step[r] = r % 9;
    }
}

/* The first policy's outputs hardly differ from state to state, so that other roundings would hide. log_std
 * differs from element to element. */
static void spread_values(struct policy_values *of)
{
    for (uint32_t i = 0; i < of->count; i++) {
        const struct parameter *parameter = params_at(of->params, i);
        float *value = policy_values_at(of, i, POLICY_VALUES);
        for (size_t e = 0; e < shape_elements(&parameter->tensor.shape); e++)
            if (strcmp(parameter->name, "action_net.weight") == 0)
                value[e] *= 100;
            else if (parameter->tensor.shape.rank == 1 || strcmp(parameter->name, "log_std") == 0)
                value[e] += 0.1f * (float)(e % 5) - 0.2f;
    }
}

/* Number `number` of CASES on each of TRAINING_PLUGINS. False where there is no such backend. */
static bool open_case(int number)
{
    const struct policy_case *c = &cases[number % CASES];
    float mean[20], variance[20];
    backend = training_backend(number / CASES);
    if (backend == NULL)
        return false;
    open_world(c);
    advantages = values_memory(ROWS, sizeof *advantages);
    returns = values_memory(ROWS, sizeof *returns);
    for (uint32_t r = 0; r < ROWS; r++) {
        advantages[r] = (float)(r % 5) - 1.5f;
        returns[r] = (float)(r % 3);
    }
    cpu = policy_world_open(&world, NULL);
    other = policy_world_open(&world, backend);
    for (size_t e = 0; e < world.elements; e++) {
        mean[e] = 0.25f * (float)(e % 3) - 0.2f;
        variance[e] = 0.1f + 0.1f * (float)(e % 5);
    }
    for (int p = 0; p < 2; p++)
        must(policy_values_open(&values[p], &world.config, &error));
    if (c->normalizes)
        policy_normalize(cpu, mean, variance);
    must(policy_save(cpu, &values[0], &error));
    spread_values(&values[0]);
    must(policy_restore(cpu, &values[0], &error));
    must(policy_restore(other, &values[0], &error));
    return true;
}

static void close_case(void)
{
    for (int p = 0; p < 2; p++)
        policy_values_close(&values[p]);
    policy_free(cpu);
    policy_free(other);
    free(world.batch.log_probabilities);
    free(world.batch.values);
    free(advantages);
    free(returns);
    policy_world_fini(&world);
    backend_close(backend);
}

/* ---- comparing ---- */

/* Of an array by rows: within `bound` of the largest. */
static void expect_near(const char *what, const float *expected, const float *got, size_t count, double bound)
{
    double largest = 0;
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)expected[i]));
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(fabs((double)expected[i] - (double)got[i]) <= bound * largest,
                      "%s %zu: %.9g, expected %.9g (of at most %g)", what, i, (double)got[i],
                      (double)expected[i], largest);
}

/* What acting writes: actions, log-probabilities, values. */
struct acted {
    void *actions;
    float *log_probabilities, *values;
};

static struct acted act(struct policy *policy, uint32_t rows_at_once)
{
    const size_t action_bytes = policy_world_action_bytes(&world), all = ROWS * sizeof(float);
    struct acted acted = {.actions = values_memory(action_bytes, 1)};
    memset(world.actions, 0xff, action_bytes);
    for (uint32_t first = 0; first < ROWS; first += rows_at_once) {
        struct policy_rows piece = world.batch;
        piece.row += first;
        piece.count = ROWS - first < rows_at_once ? ROWS - first : rows_at_once;
        must(policy_act(policy, &piece, 3, world.environment + first, world.step + first, &error));
    }
    memcpy(acted.actions, world.actions, action_bytes);
    if (world.batch.values == NULL)
        return acted;
    acted.log_probabilities = values_memory(ROWS, sizeof(float));
    acted.values = values_memory(ROWS, sizeof(float));
    memcpy(acted.log_probabilities, world.batch.log_probabilities, all);
    memcpy(acted.values, world.batch.values, all);
    return acted;
}

static void acted_free(struct acted *acted)
{
    free(acted->actions);
    free(acted->log_probabilities);
    free(acted->values);
}

static void expect_actions(const void *expected, const void *got)
{
    if (world.choices > 0)
        ck_assert_mem_eq(expected, got, policy_world_action_bytes(&world));
    else
        expect_near("action", expected, got, (size_t)ROWS * world.components, 1e-5);
}

/* ---- acting ---- */

START_TEST(it_acts_as_on_the_cpu)
{
    if (!open_case(_i))
        return;
    struct acted expected = act(cpu, ROWS), got = act(other, ROWS);
    ck_assert(policy_world_is_allowed(&world));
    expect_actions(expected.actions, got.actions);
    if (world.config.has_value) {
        expect_near("log-probability", expected.log_probabilities, got.log_probabilities, ROWS, 1e-5);
        expect_near("value", expected.values, got.values, ROWS, 1e-5);
        memset(world.batch.values, 0xff, ROWS * sizeof(float));
        must(policy_estimate(other, &world.batch, &error));
        expect_near("estimate", expected.values, world.batch.values, ROWS, 1e-5);
    }
    acted_free(&expected);
    acted_free(&got);
    close_case();
}
END_TEST

START_TEST(it_chooses_as_on_the_cpu)
{
    if (!open_case(_i))
        return;
    void *expected = values_memory(policy_world_action_bytes(&world), 1);
    must(policy_choose(cpu, &world.batch, &error));
    memcpy(expected, world.actions, policy_world_action_bytes(&world));
    memset(world.actions, 0xff, policy_world_action_bytes(&world));
    must(policy_choose(other, &world.batch, &error));
    expect_actions(expected, world.actions);
    struct policy_rows some = world.batch;
    some.row += ROWS / 2;
    some.count = 3;
    memcpy(expected, world.actions, policy_world_action_bytes(&world));
    must(policy_choose(other, &some, &error));
    ck_assert_mem_eq(expected, world.actions, policy_world_action_bytes(&world));
    free(expected);
    close_case();
}
END_TEST

/* To the last bit, with values: of more rows than a piece has. */
START_TEST(rows_act_the_same_in_any_company)
{
    if (!open_case(_i))
        return;
    struct acted together = act(other, ROWS);
    for (uint32_t size = 7; size < ROWS && world.config.has_value; size *= 6) {
        struct acted apart = act(other, size);
        ck_assert_mem_eq(together.actions, apart.actions, policy_world_action_bytes(&world));
        ck_assert_mem_eq(together.log_probabilities, apart.log_probabilities, ROWS * sizeof(float));
        ck_assert_mem_eq(together.values, apart.values, ROWS * sizeof(float));
        acted_free(&apart);
    }
    acted_free(&together);
    close_case();
}
END_TEST

/* ---- learning ---- */

/* `clip` small: clip_fraction tells of every ratio that is not 1. */
static enum status try_improving(struct policy *policy, double clip, struct surrogate_losses *losses)
{
    struct policy_rows minibatch = world.batch;
    const struct policy_targets targets = {advantages, returns, true};
    const struct policy_step step = {.objective = {.clip = clip,
                                                   .value_clip = (double)INFINITY,
                                                   .value_coefficient = 0.5,
                                                   .entropy_coefficient = 0.01},
                                     .max_norm = 0.5,
                                     .lr = 0.01,
                                     .kl_max = (double)INFINITY};
    minibatch.row += 50;
    minibatch.count = MINIBATCH;
    return policy_improve(policy, &minibatch, &targets, &step, losses, &error);
}

static struct surrogate_losses improve(struct policy *policy, double clip)
{
    struct surrogate_losses losses;
    must(try_improving(policy, clip, &losses));
    ck_assert(losses.stepped);
    return losses;
}

/* Adam's first moment is a tenth of the gradient; RMSprop's is the gradient. */
static void expect_same_gradients(void)
{
    must(policy_save(cpu, &values[0], &error));
    must(policy_save(other, &values[1], &error));
    ck_assert_uint_eq(values[0].steps, values[1].steps);
    for (uint32_t i = 0; i < values[0].count; i++) {
        const struct parameter *parameter = params_at(values[0].params, i);
        const size_t count = shape_elements(&parameter->tensor.shape);
        expect_near(parameter->name, policy_values_at(&values[0], i, POLICY_FIRST_MOMENT),
                    policy_values_at(&values[1], i, POLICY_FIRST_MOMENT), count, 1e-4);
    }
}

/* The parameters of the CPU's policy go on in the other one, and the other way round. */
START_TEST(it_learns_what_the_cpu_learns)
{
    if (!open_case(_i))
        return;
    policy_world_act(&world, cpu, 1);
    for (uint32_t pass = 0; pass < 3; pass++) {
        if (world.config.has_value) {
            const struct surrogate_losses expected = improve(cpu, 0.2), got = improve(other, 0.2);
            ck_assert_double_eq_tol(got.policy, expected.policy, 1e-5);
            ck_assert_double_eq_tol(got.value, expected.value, 1e-5 * expected.value);
            ck_assert_double_eq_tol(got.entropy, expected.entropy, 1e-5);
            ck_assert_double_eq_tol(got.kl, expected.kl, 1e-5);
            ck_assert_double_eq_tol(got.gradient_norm, expected.gradient_norm, 1e-4 * expected.gradient_norm);
        } else {
            const double expected = policy_world_learn(&world, cpu), got = policy_world_learn(&world, other);
            ck_assert_double_eq_tol(got, expected, 1e-5 * fabs(expected));
        }
        expect_same_gradients();
        if (pass % 2 == 0)
            must(policy_restore(cpu, &values[1], &error));
        else
            must(policy_restore(other, &values[0], &error));
    }
    if (world.config.has_value && world.choices == 0)
        ck_assert_double_eq_tol(policy_deviation(other), policy_deviation(cpu), 1e-6);
    close_case();
}
END_TEST

START_TEST(ratios_of_a_reviewed_minibatch_are_exactly_1)
{
    if (!open_case(_i))
        return;
    if (world.config.has_value) {
        struct policy_rows minibatch = world.batch;
        minibatch.row += 50;
        minibatch.count = MINIBATCH;
        policy_world_act(&world, other, 1);
        ck_assert(policy_needs_review(other) && !policy_needs_review(cpu));
        const float before = world.batch.values[minibatch.row[0]];
        must(policy_review(other, &minibatch, NULL, NULL, &error));
        ck_assert_float_eq_tol(world.batch.values[minibatch.row[0]], before, 1e-4);
        const struct surrogate_losses losses = improve(other, 1e-12);
        ck_assert(losses.kl == 0 && losses.clip_fraction == 0);
        ck_assert_double_gt(improve(other, 1e-12).clip_fraction, 0.5);
    }
    close_case();
}
END_TEST

/* ---- a NaN ---- */

START_TEST(what_is_not_finite_is_told)
{
    struct surrogate_losses losses;
    double loss;
    if (!open_case(_i))
        return;
    policy_world_act(&world, cpu, 1);
    world.coefficient[60] = returns[world.row[60]] = NAN;
    const enum status status = world.config.has_value ? try_improving(other, 0.2, &losses)
                                                      : policy_learn(other, &world.batch, world.coefficient,
                                                                     1, &loss, NULL, NULL, &error);
    ck_assert_msg(status == STATUS_INTERNAL && strstr(error.text, " pull") != NULL, "%s", error.text);
    must(policy_save(other, &values[1], &error));
    ck_assert_uint_eq(values[1].steps, 0);
    ((float *)params_find(values[1].params, "action_net.bias")->tensor.data)[0] = NAN;
    must(policy_restore(other, &values[1], &error));
    ck_assert_int_eq(policy_choose(other, &world.batch, &error), STATUS_CORRUPT);
    ck_assert_str_eq(error.text, "the probability of an action is not finite");
    close_case();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_tape_dense");
    TCase *tests = tcase_create("policy_tape_dense");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, it_acts_as_on_the_cpu, 0, TRAINING_PLUGINS * CASES);
    tcase_add_loop_test(tests, it_chooses_as_on_the_cpu, 0, TRAINING_PLUGINS * CASES);
    tcase_add_loop_test(tests, rows_act_the_same_in_any_company, 0, TRAINING_PLUGINS * CASES);
    tcase_add_loop_test(tests, it_learns_what_the_cpu_learns, 0, TRAINING_PLUGINS * CASES);
    tcase_add_loop_test(tests, ratios_of_a_reviewed_minibatch_are_exactly_1, 0, TRAINING_PLUGINS * CASES);
    tcase_add_loop_test(tests, what_is_not_finite_is_told, 0, TRAINING_PLUGINS * CASES);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
