/* Policies with memory on a backend: dense layers beside the same policy on the CPU, and the CNN beside
 * itself, for its review of a rollout has to find what its steps found. test_policy_images_golden.c has the
 * numbers of a CNN's step. */
#include "test/training.h"
#include "test/values.h"
#include "test/worker/model/policy_world.h"
#include "test/workplace.h"
#include "worker/environment/environment_spec.h"
#include "worker/model/policy.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct environment_space vector = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {6}},
                                      bytes = {.dtype = ENVIRONMENT_U8, .rank = 2, .shape = {5, 4}},
                                      image = {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {36, 36, 1}};

static const struct memory_case {
    enum world_head head;
    const struct environment_space *observation;
    uint32_t layers, width[POLICY_LAYERS_MAX];
    enum policy_critic critic;
    uint32_t units, memory_layers;
    bool shared, normalizes, explores, gru;
    bool apart; // the value has these layers instead of the policy's:
    uint32_t value_layers, value_width[POLICY_LAYERS_MAX];
} cases[] = {
    {WORLD_CHOICE, &vector, 2, {64, 64}, POLICY_CRITIC_OWN, 32, .memory_layers = 1, .normalizes = true},
    {WORLD_MASKED, &bytes, 1, {33}, POLICY_CRITIC_SHARED, 17, .memory_layers = 2, .shared = true},
    {WORLD_CHOICES, &bytes, 0, {0}, POLICY_CRITIC_DETACHED, 40, .memory_layers = 1},
    {WORLD_FLOATS, &vector, 1, {20}, POLICY_CRITIC_LINEAR, 24, .memory_layers = 3},
    {WORLD_FLOATS, &vector, 2, {16, 7}, POLICY_CRITIC_OWN, 9, .memory_layers = 2, .explores = true},
    {WORLD_MASKED, &vector, 1, {16}, POLICY_CRITIC_OWN, 21, .memory_layers = 2, .gru = true},
    {WORLD_CHOICE,
     &vector,
     1,
     {16},
     POLICY_CRITIC_SHARED,
     32,
     .memory_layers = 1,
     .shared = true,
     .gru = true},
    {WORLD_CHOICE,
     &vector,
     1,
     {8},
     POLICY_CRITIC_OWN,
     14,
     .memory_layers = 1,
     .apart = true,
     .value_layers = 2,
     .value_width = {16, 4}},
    {WORLD_FLOATS,
     &bytes,
     1,
     {20},
     POLICY_CRITIC_DETACHED,
     12,
     .memory_layers = 1,
     .gru = true,
     .apart = true},
    {WORLD_CHOICES, &image, 0, {0}, POLICY_CRITIC_OWN, 16, .memory_layers = 1},
    {WORLD_FLOATS, &image, 0, {0}, POLICY_CRITIC_OWN, 12, .memory_layers = 2, .shared = true},
    {WORLD_MASKED, &image, 0, {0}, POLICY_CRITIC_DETACHED, 8, .memory_layers = 1, .shared = true},
    {WORLD_CHOICE, &image, 0, {0}, POLICY_CRITIC_LINEAR, 8, .memory_layers = 1},
    {WORLD_CHOICE, &image, 0, {0}, POLICY_CRITIC_OWN, 20, .memory_layers = 1, .shared = true, .gru = true},
    {WORLD_CHOICE, &image, 0, {0}, POLICY_CRITIC_SHARED, 20, .memory_layers = 1, .shared = true},
};
enum {
    DENSE_CASES = 9,
    REFUSED_CASES = 10,
    CASES = sizeof cases / sizeof *cases,
    COLUMNS = 5,
    STEPS_MAX = 280
};
enum { ROWS_MAX = COLUMNS * STEPS_MAX };

static struct policy_world world;
static struct backend *backend;
static struct policy *cpu, *other; // the other one computes on the backend; there is no CNN on the CPU
static struct policy_values values[2];
static uint32_t steps, rows, minibatch_rows;
static uint32_t plain[ROWS_MAX], minibatch[ROWS_MAX];
static uint8_t starts[ROWS_MAX];
static float advantages[ROWS_MAX], returns[ROWS_MAX];
static float *states; // (rows + COLUMNS, floats)
static size_t floats; // of a row's state
static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* ---- begin and end ---- */

/* Short episodes in some columns, long ones in others. */
static void draw_starts(void)
{
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t column = r % COLUMNS, step = r / COLUMNS;
        starts[r] = column == 0 ? 0 : column == 1 ? step % 3 == 0 : (step + 5 * column) % (8 * column) == 0;
        plain[r] = r;
        advantages[r] = (float)(r % 5) - 1.5f;
        returns[r] = (float)(r % 3);
    }
}

/* Rows by (column, step) from the middle of column 2 on, and round to that column's begin, as ppo_draw has
 * pieces. A row in front of a start is away. */
static void draw_minibatch(void)
{
    minibatch_rows = 0;
    for (uint32_t r = 0; r < rows; r++) {
        const uint32_t column = r % COLUMNS, step = r / COLUMNS;
        const bool away = column == 3 && r + COLUMNS < rows && starts[r + COLUMNS];
        const bool inside = column == 2 ? step < steps / 4 || step >= steps / 2 : true;
        if (inside && !away)
            minibatch[minibatch_rows++] = r;
    }
}

/* One case has a sequence of more rows than the head takes at once. */
static void open_world(const struct memory_case *c)
{
    steps = c->observation == &image ? 10 : c->critic == POLICY_CRITIC_LINEAR ? STEPS_MAX : 60;
    rows = steps * COLUMNS;
    policy_world_init(&world, c->head, *c->observation, rows, 5 + (uint64_t)(c - cases));
    draw_starts();
    draw_minibatch();
    struct policy_config *config = &world.config;
    config->network = c->observation == &image ? POLICY_CNN : POLICY_MLP;
    config->layers = c->layers;
    memcpy(config->width, c->width, sizeof c->width);
    config->value_layers = c->apart ? c->value_layers : c->layers;
    memcpy(config->value_width, c->apart ? c->value_width : c->width, sizeof c->width);
    config->activation = POLICY_TANH;
    config->memory = c->gru ? POLICY_GRU : POLICY_LSTM;
    config->memory_units = c->units;
    config->memory_layers = c->memory_layers;
    config->critic = c->critic;
    config->has_value = config->orthogonal = true;
    config->shared_value = c->shared;
    config->normalizes = c->normalizes;
    config->clip = 1.5;
    config->state_dependent = c->explores;
    config->noise_steps = 4;
    config->log_std_init = -0.5;
    config->environments = COLUMNS;
    config->minibatch_rows = minibatch_rows;
    floats = policy_config_state_floats(config);
    states = values_memory((rows + COLUMNS) * floats, sizeof *states);
    world.batch.log_probabilities = values_memory(rows, sizeof(float));
    world.batch.values = values_memory(rows, sizeof(float));
    world.batch.row = plain;
    world.batch.states = states;
    world.batch.next = COLUMNS;
    world.batch.starts = starts;
    for (uint32_t r = 0; r < rows; r++) {
        world.environment[r] = r % COLUMNS;
        world.step[r] = r / COLUMNS;
    }
}

/* As in test_policy_tape_dense.c: so that other roundings do not hide. */
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
    const struct memory_case *c = &cases[number % CASES];
    backend = training_backend(number / CASES);
    if (backend == NULL)
        return false;
    open_world(c);
    cpu = c->observation == &image ? NULL : policy_world_open(&world, NULL);
    other = policy_world_open(&world, backend);
    for (int p = 0; p < 2; p++)
        must(policy_values_open(&values[p], &world.config, &error));
    must(policy_save(other, &values[0], &error));
    spread_values(&values[0]);
    if (c->normalizes)
        for (size_t e = 0; e < world.elements; e++) {
            policy_values_statistic(&values[0], POLICY_MEAN)[e] = 0.25f * (float)(e % 3) - 0.2f;
            policy_values_statistic(&values[0], POLICY_VARIANCE)[e] = 0.1f + 0.1f * (float)(e % 5);
        }
    must(policy_restore(other, &values[0], &error));
    if (cpu != NULL)
        must(policy_restore(cpu, &values[0], &error));
    return true;
}

/* The same, of dense layers alone. */
static bool open_dense(int number)
{
    return open_case(number / DENSE_CASES * CASES + number % DENSE_CASES);
}

static void close_case(void)
{
    for (int p = 0; p < 2; p++)
        policy_values_close(&values[p]);
    policy_free(cpu);
    policy_free(other);
    free(world.batch.log_probabilities);
    free(world.batch.values);
    free(states);
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

/* What acting writes. */
struct acted {
    void *actions;
    float *log_probabilities, *values, *states;
};

/* A copy of an array. */
static void *copied(const void *from, size_t size)
{
    void *copy = values_memory(size, 1);
    memcpy(copy, from, size);
    return copy;
}

/* Step by step, of `together` columns at once. */
static struct acted act(struct policy *policy, uint32_t together)
{
    const size_t state_bytes = (rows + COLUMNS) * floats * sizeof *states;
    memset(world.actions, 0xff, policy_world_action_bytes(&world));
    memset(states, 0, state_bytes);
    for (size_t i = 0; i < COLUMNS * floats; i++)
        states[i] = 0.1f * (float)(i % 7) - 0.3f;
    for (uint32_t first = 0, count; first < rows; first += count) {
        struct policy_rows some = world.batch;
        const uint32_t left = COLUMNS - first % COLUMNS;
        count = left < together ? left : together;
        some.row += first;
        some.count = count;
        must(policy_act(policy, &some, 3, world.environment + first, world.step + first, &error));
    }
    return (struct acted){.actions = copied(world.actions, policy_world_action_bytes(&world)),
                          .log_probabilities = copied(world.batch.log_probabilities, rows * sizeof(float)),
                          .values = copied(world.batch.values, rows * sizeof(float)),
                          .states = copied(states, state_bytes)};
}

static void acted_free(struct acted *acted)
{
    free(acted->actions);
    free(acted->log_probabilities);
    free(acted->values);
    free(acted->states);
}

static void expect_actions(const void *expected, const void *got, uint32_t count)
{
    if (world.choices > 0)
        ck_assert_mem_eq(expected, got, count * world.components * sizeof(int32_t));
    else
        expect_near("action", expected, got, (size_t)count * world.components, 1e-4);
}

/* ---- acting ---- */

START_TEST(it_acts_as_on_the_cpu)
{
    if (!open_dense(_i))
        return;
    struct acted expected = act(cpu, COLUMNS), got = act(other, COLUMNS);
    ck_assert(policy_world_is_allowed(&world));
    expect_actions(expected.actions, got.actions, rows);
    expect_near("log-probability", expected.log_probabilities, got.log_probabilities, rows, 1e-4);
    expect_near("value", expected.values, got.values, rows, 1e-4);
    expect_near("state", expected.states, got.states, (rows + COLUMNS) * floats, 1e-4);
    acted_free(&expected);
    acted_free(&got);
    close_case();
}
END_TEST

/* To the last bit. */
START_TEST(rows_act_the_same_in_any_company)
{
    if (!open_case(_i))
        return;
    struct acted expected = act(other, COLUMNS), got = act(other, 2);
    ck_assert_mem_eq(expected.actions, got.actions, policy_world_action_bytes(&world));
    ck_assert_mem_eq(expected.log_probabilities, got.log_probabilities, rows * sizeof(float));
    ck_assert_mem_eq(expected.values, got.values, rows * sizeof(float));
    ck_assert_mem_eq(expected.states, got.states, (rows + COLUMNS) * floats * sizeof *states);
    acted_free(&expected);
    acted_free(&got);
    close_case();
}
END_TEST

/* A value is the same by every function, up to rounding; and an estimate changes no state. */
START_TEST(estimates_are_the_values_of_acting)
{
    if (!open_case(_i))
        return;
    struct acted expected = act(other, COLUMNS);
    memset(world.batch.values, 0xff, rows * sizeof(float));
    must(policy_estimate(other, &world.batch, &error));
    expect_near("estimate", expected.values, world.batch.values, rows, 1e-4);
    ck_assert_mem_eq(expected.states, states, (rows + COLUMNS) * floats * sizeof *states);
    acted_free(&expected);
    close_case();
}
END_TEST

/* Step by step, each environment's state in one place; and the policy's part of the states. */
static void *choose(struct policy *policy)
{
    const size_t step_bytes = COLUMNS * environment_space_bytes(&world.config.observation);
    const size_t action_bytes = (size_t)COLUMNS * world.components * sizeof(float);
    char *chosen = values_memory(steps, action_bytes);
    memset(states, 0, COLUMNS * floats * sizeof *states);
    for (uint32_t step = 0; step < steps; step++) {
        struct policy_rows one = world.batch;
        one.count = COLUMNS;
        one.next = 0;
        one.values = one.log_probabilities = NULL;
        one.observations = (const char *)world.observations + step * step_bytes;
        one.allowed = world.allowed != NULL ? world.allowed + (size_t)step * COLUMNS * world.choices : NULL;
        one.starts = starts + (size_t)step * COLUMNS;
        must(policy_choose(policy, &one, &error));
        memcpy(chosen + step * action_bytes, world.actions, action_bytes);
    }
    return chosen;
}

START_TEST(it_chooses_as_on_the_cpu)
{
    if (!open_dense(_i))
        return;
    void *expected = choose(cpu), *got = choose(other);
    expect_actions(expected, got, rows);
    free(expected);
    free(got);
    close_case();
}
END_TEST

/* ---- learning ---- */

static struct policy_rows minibatch_of(void)
{
    struct policy_rows some = world.batch;
    some.row = minibatch;
    some.count = minibatch_rows;
    return some;
}

/* `clip` small: clip_fraction tells of every ratio that is not 1. */
static enum status try_improving(struct policy *policy, double clip, struct surrogate_losses *losses)
{
    const struct policy_rows some = minibatch_of();
    const struct policy_targets targets = {advantages, returns, true};
    const struct policy_step step = {.objective = {.clip = clip,
                                                   .value_clip = (double)INFINITY,
                                                   .value_coefficient = 0.5,
                                                   .entropy_coefficient = 0.01},
                                     .max_norm = 0.5,
                                     .lr = 0.01,
                                     .kl_max = (double)INFINITY};
    return policy_improve(policy, &some, &targets, &step, losses, &error);
}

static struct surrogate_losses improve(struct policy *policy, double clip)
{
    struct surrogate_losses losses;
    must(try_improving(policy, clip, &losses));
    ck_assert(losses.stepped);
    return losses;
}

/* Adam's first moment is a tenth of the gradient. */
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
    if (!open_dense(_i))
        return;
    struct acted acted = act(cpu, COLUMNS);
    for (uint32_t pass = 0; pass < 3; pass++) {
        const struct surrogate_losses expected = improve(cpu, 0.2), got = improve(other, 0.2);
        ck_assert_double_eq_tol(got.policy, expected.policy, 1e-5);
        ck_assert_double_eq_tol(got.value, expected.value, 1e-5 * expected.value);
        ck_assert_double_eq_tol(got.entropy, expected.entropy, 1e-5);
        ck_assert_double_eq_tol(got.kl, expected.kl, 1e-5);
        ck_assert_double_eq_tol(got.gradient_norm, expected.gradient_norm, 1e-4 * expected.gradient_norm);
        expect_same_gradients();
        if (pass % 2 == 0)
            must(policy_restore(cpu, &values[1], &error));
        else
            must(policy_restore(other, &values[0], &error));
    }
    acted_free(&acted);
    close_case();
}
END_TEST

START_TEST(a_review_finds_what_acting_found)
{
    if (!open_case(_i))
        return;
    struct acted expected = act(other, COLUMNS);
    const struct policy_rows some = minibatch_of();
    for (uint32_t r = 0; r < rows; r++)
        world.batch.values[r] = world.batch.log_probabilities[r] = NAN;
    ck_assert(policy_needs_review(other));
    must(policy_review(other, &some, NULL, NULL, &error));
    for (uint32_t r = 0, i = 0; r < rows; r++) {
        const bool inside = i < some.count && minibatch[i] == r;
        i += inside;
        ck_assert(isnan(world.batch.values[r]) == !inside);
        if (!inside) {
            world.batch.values[r] = expected.values[r];
            world.batch.log_probabilities[r] = expected.log_probabilities[r];
        }
    }
    expect_near("log-probability", expected.log_probabilities, world.batch.log_probabilities, rows, 1e-4);
    expect_near("value", expected.values, world.batch.values, rows, 1e-4);
    ck_assert_mem_eq(expected.states, states, (rows + COLUMNS) * floats * sizeof *states);
    const struct surrogate_losses losses = improve(other, 1e-12);
    ck_assert(losses.kl == 0 && losses.clip_fraction == 0);
    ck_assert_double_gt(improve(other, 1e-12).clip_fraction, 0.5);
    acted_free(&expected);
    close_case();
}
END_TEST

/* Every memory's parameters move, but for a linear layer's that is none. */
START_TEST(every_parameter_learns)
{
    if (!open_case(_i))
        return;
    struct acted acted = act(other, COLUMNS);
    improve(other, 0.2);
    must(policy_save(other, &values[1], &error));
    for (uint32_t i = 0; i < values[1].count; i++) {
        const struct parameter *parameter = params_at(values[1].params, i);
        const float *moment = policy_values_at(&values[1], i, POLICY_FIRST_MOMENT);
        double largest = 0;
        for (size_t e = 0; e < shape_elements(&parameter->tensor.shape); e++)
            largest = fmax(largest, fabs((double)moment[e]));
        ck_assert_msg(largest > 0, "the gradient of %s is 0", parameter->name);
    }
    acted_free(&acted);
    close_case();
}
END_TEST

/* ---- a NaN ---- */

/* Of dense layers, and of one CNN: how a step is refused does not depend on its layers. */
START_TEST(what_is_not_finite_is_told)
{
    struct surrogate_losses losses;
    if (!open_case(_i / REFUSED_CASES * CASES + _i % REFUSED_CASES))
        return;
    struct acted acted = act(other, COLUMNS);
    returns[minibatch[20]] = NAN;
    const enum status status = try_improving(other, 0.2, &losses);
    ck_assert_msg(status == STATUS_INTERNAL && strstr(error.text, " pull") != NULL, "%s", error.text);
    must(policy_save(other, &values[1], &error));
    ck_assert_uint_eq(values[1].steps, 0);
    acted_free(&acted);
    close_case();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_tape_memory");
    TCase *tests = tcase_create("policy_tape_memory");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, it_acts_as_on_the_cpu, 0, TRAINING_PLUGINS * DENSE_CASES);
    tcase_add_loop_test(tests, rows_act_the_same_in_any_company, 0, TRAINING_PLUGINS * CASES);
    tcase_add_loop_test(tests, estimates_are_the_values_of_acting, 0, TRAINING_PLUGINS * CASES);
    tcase_add_loop_test(tests, it_chooses_as_on_the_cpu, 0, TRAINING_PLUGINS * DENSE_CASES);
    tcase_add_loop_test(tests, it_learns_what_the_cpu_learns, 0, TRAINING_PLUGINS * DENSE_CASES);
    tcase_add_loop_test(tests, a_review_finds_what_acting_found, 0, TRAINING_PLUGINS * CASES);
    tcase_add_loop_test(tests, every_parameter_learns, 0, TRAINING_PLUGINS * CASES);
    tcase_add_loop_test(tests, what_is_not_finite_is_told, 0, TRAINING_PLUGINS * REFUSED_CASES);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
