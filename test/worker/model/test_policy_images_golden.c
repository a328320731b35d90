/* Steps of PPO and of A2C on images, held to PyTorch's (test/golden/ppo_images.py): losses, the clipped
 * gradient, and how the parameters move. */
#include "test/kernels/policy/mlp_problem.h"
#include "test/training.h"
#include "test/values.h"
#include "test/workplace.h"
#include "worker/model/policy.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_parameters.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEIGHT = 36, WIDTH = 44, CHANNELS = 2, ROWS = 10, MINIBATCH = 7, STEPS = 3, COMPONENTS = 2 };
enum { UNITS = 8, COLUMNS = 2 }; /* of a memory */

static const struct golden_case {
    const char *name;
    bool floats, shared, plain;
    double max_norm;
    uint64_t seed;          /* of the generator */
    uint32_t memory_layers; /* 0: no memory */
    enum policy_critic critic;
    bool parts;
} cases[] = {
    {"choice_shared", false, true, false, 0.5, .seed = 14},
    {"choice_separate", false, false, false, 100, .seed = 7},
    {"floats_shared", true, true, false, 0.5, .seed = 18},
    {"floats_separate", true, false, false, 0.5, .seed = 17},
    {"choice_a2c", false, true, true, 0.5, .seed = 12},
    {"parts_shared", false, true, false, 0.5, .seed = 1, .parts = true},
    {"parts_separate", true, false, false, 0.5, .seed = 7, .parts = true},
    {"memory_own", false, false, false, 0.5, .seed = 30, .memory_layers = 1, .critic = POLICY_CRITIC_OWN},
    {"memory_linear", true, true, false, 0.5, .seed = 31, .memory_layers = 2, .critic = POLICY_CRITIC_LINEAR},
    {"memory_detached", false, true, false, 100, .seed = 38, .memory_layers = 1,
     .critic = POLICY_CRITIC_DETACHED},
    {"memory_shared", true, true, false, 0.5, .seed = 30, .memory_layers = 2,
     .critic = POLICY_CRITIC_SHARED}};
enum { CASES = sizeof cases / sizeof cases[0] };

static struct error error;
static const struct golden_case *of;
static struct policy_config config;
static struct backend *backend;
static struct policy *policy;
static struct policy_values values;
static struct golden *golden;

static void *observations;
static float *log_probabilities, *old_values, *advantages, *returns, *states;
static const uint8_t starts[ROWS] = {[3] = 1, [6] = 1};
static void *actions;

/* The image is one of bytes between two vectors. */
enum { BEFORE = 3, BEHIND = 2, IMAGE_BYTES = HEIGHT * WIDTH * CHANNELS };
enum { ROW_BYTES = (BEFORE + BEHIND) * 4 + IMAGE_BYTES, PART_UNITS = 6 };
static const struct environment_part parts[] = {
    {"before", {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {BEFORE}}},
    {"camera", {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {HEIGHT, WIDTH, CHANNELS}}},
    {"behind", {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {BEHIND}}}};

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* ---- the problem ---- */

/* Without a memory pieces of 4 rows: a minibatch has a whole piece, and one that is filled up. */
static void make_config(void)
{
    static const uint32_t choices[] = {3};
    static const double low[] = {-1, -1}, high[] = {1, 1};
    const struct environment_space choice = {.dtype = ENVIRONMENT_I32, .choices = choices};
    const struct environment_space floats = {
        .dtype = ENVIRONMENT_F32, .rank = 1, .shape = {COMPONENTS}, .low = low, .high = high};
    config = (struct policy_config){
        .observation = {.dtype = ENVIRONMENT_F32, .rank = 3, .shape = {HEIGHT, WIDTH, CHANNELS}},
        .action = of->floats ? floats : choice,
        .network = POLICY_CNN,
        .adam = {.lr = 1, .beta1 = of->plain ? 0 : 0.9, .beta2 = of->plain ? 0.99 : 0.999, .epsilon = 1e-5},
        .has_value = true,
        .shared_value = of->shared,
        .environments = ROWS,
        .rows_max = ROWS,
        .minibatch_rows = 4};
    config.adam.uncorrected = of->plain;
    if (of->parts) {
        config.observation =
            (struct environment_space){.dtype = ENVIRONMENT_U8, .rank = 1, .shape = {ROW_BYTES}};
        config.part_count = sizeof parts / sizeof parts[0];
        config.parts = parts;
        config.activation = POLICY_TANH;
        config.layers = config.value_layers = 1;
        config.width[0] = config.value_width[0] = PART_UNITS;
    }
    if (of->memory_layers == 0)
        return;
    config.memory = POLICY_LSTM;
    config.memory_units = UNITS;
    config.memory_layers = of->memory_layers;
    config.critic = of->critic;
    config.environments = COLUMNS;
    config.minibatch_rows = MINIBATCH;
}

static float scale_of(const struct parameter *parameter)
{
    const struct shape *shape = &parameter->tensor.shape;
    if (shape->rank > 1)
        return sqrtf(2.0f / ((float)shape_elements(shape) / (float)shape->size[0]));
    return strcmp(parameter->name, "log_std") == 0 ? 0.5f : 0.1f;
}

static void draw_parameters(uint64_t *state)
{
    for (uint32_t i = 0; i < values.count; i++) {
        const struct parameter *parameter = params_at(values.params, i);
        const size_t count = shape_elements(&parameter->tensor.shape);
        float *to = policy_values_at(&values, i, POLICY_VALUES);
        for (size_t e = 0; e < count; e++)
            to[e] = mlp_problem_number(state) * scale_of(parameter);
    }
}

/* Part by part, of all rows. */
static void *draw_parts(uint64_t *state)
{
    char *rows = values_memory(ROWS, ROW_BYTES);
    float *before = training_numbers(state, (size_t)ROWS * BEFORE, 1);
    int32_t *bytes = training_indices(state, (size_t)ROWS * IMAGE_BYTES, 256);
    float *behind = training_numbers(state, (size_t)ROWS * BEHIND, 1);
    for (size_t row = 0; row < ROWS; row++) {
        char *to = rows + row * ROW_BYTES, *image = to + BEFORE * sizeof *before;
        memcpy(to, before + row * BEFORE, BEFORE * sizeof *before);
        for (size_t i = 0; i < IMAGE_BYTES; i++)
            image[i] = (char)bytes[row * IMAGE_BYTES + i];
        memcpy(image + IMAGE_BYTES, behind + row * BEHIND, BEHIND * sizeof *behind);
    }
    free(before);
    free(bytes);
    free(behind);
    return rows;
}

static void draw_rows(uint64_t *state)
{
    observations =
        of->parts ? draw_parts(state) : training_numbers(state, (size_t)ROWS * HEIGHT * WIDTH * CHANNELS, 1);
    actions = of->floats ? (void *)training_numbers(state, ROWS * COMPONENTS, 1)
                         : (void *)training_indices(state, ROWS, 3);
    log_probabilities = training_numbers(state, ROWS, 0.2f);
    for (uint32_t i = 0; i < ROWS; i++)
        log_probabilities[i] -= of->floats ? 2.0f : 1.1f;
    old_values = training_numbers(state, ROWS, 1);
    advantages = training_numbers(state, ROWS, 1);
    returns = training_numbers(state, ROWS, 2);
    states = training_numbers(state, ROWS * policy_config_state_floats(&config), 1);
}

/* False where there is no such backend. */
static bool open_case(int number)
{
    char name[64];
    of = &cases[number % CASES];
    uint64_t state = of->seed;
    backend = training_backend(number / CASES);
    if (backend == NULL)
        return false;
    make_config();
    must(policy_new(&policy, &config, backend, &error));
    must(policy_values_open(&values, &config, &error));
    draw_parameters(&state);
    must(policy_restore(policy, &values, &error));
    draw_rows(&state);
    snprintf(name, sizeof name, "ppo_images_%s", of->name);
    golden = golden_open(name, state, false);
    return true;
}

static void close_case(void)
{
    golden_close(golden);
    policy_values_close(&values);
    policy_free(policy);
    backend_close(backend);
    free(observations);
    free(actions);
    free(log_probabilities);
    free(old_values);
    free(advantages);
    free(returns);
    free(states);
}

/* ---- a step ---- */

static int compare_rows(const void *a, const void *b)
{
    return (*(const uint32_t *)a > *(const uint32_t *)b) - (*(const uint32_t *)a < *(const uint32_t *)b);
}

/* Rows of a memory ascend: they are steps of COLUMNS environments. */
static struct surrogate_losses improve(uint32_t step)
{
    uint32_t row[MINIBATCH];
    for (uint32_t i = 0; i < MINIBATCH; i++)
        row[i] = (3 * i + step) % ROWS;
    if (of->memory_layers > 0)
        qsort(row, MINIBATCH, sizeof *row, compare_rows);
    const struct policy_rows rows = {.count = MINIBATCH,
                                     .row = row,
                                     .observations = observations,
                                     .actions = actions,
                                     .log_probabilities = log_probabilities,
                                     .values = old_values,
                                     .states = states,
                                     .next = COLUMNS,
                                     .starts = starts};
    const struct policy_targets targets = {advantages, returns, true};
    const struct policy_step how = {.objective = {.clip = 0.2,
                                                  .value_clip = 0.3,
                                                  .value_coefficient = 0.5,
                                                  .entropy_coefficient = 0.01,
                                                  .plain = of->plain},
                                    .max_norm = of->max_norm,
                                    .lr = of->plain ? 0.0001 : 0.001,
                                    .kl_max = (double)INFINITY};
    struct surrogate_losses losses;
    must(policy_improve(policy, &rows, &targets, &how, &losses, &error));
    ck_assert(losses.stepped);
    return losses;
}

static void check_losses(uint32_t step, const struct surrogate_losses *l)
{
    const double got[] = {l->loss, l->policy,        l->value,        l->entropy,
                          l->kl,   l->clip_fraction, l->gradient_norm};
    golden_check(golden, step, GOLDEN_OUTPUT, "losses", got, sizeof got / sizeof got[0]);
}

/* By the names of the values' copy, which the policy's own parameters share. */
static void check_gradient(uint32_t step)
{
    const struct policy_learner *net = policy->self; // the first member
    for (uint32_t i = 0; i < values.count; i++) {
        const struct parameter *parameter = params_at(net->params, i);
        const size_t count = shape_elements(&parameter->tensor.shape);
        double *got = values_memory(count, sizeof *got);
        must(gradients_read(net->gradients, parameter, DTYPE_F64, got, &error));
        golden_check(golden, step, GOLDEN_GRADIENT, params_at(values.params, i)->name, got, count);
        free(got);
    }
}

static double *read_parameter(uint32_t index)
{
    const struct policy_learner *net = policy->self; // the first member
    const struct parameter *parameter = params_at(net->params, index);
    double *got = values_memory(shape_elements(&parameter->tensor.shape), sizeof *got);
    must(params_read(net->params, parameter, DTYPE_F64, got, &error));
    return got;
}

static void check_step(uint32_t step)
{
    double *before[POLICY_PARAMETERS_MAX];
    const uint32_t parameters = values.count;
    for (uint32_t i = 0; i < parameters; i++)
        before[i] = read_parameter(i);
    const struct surrogate_losses losses = improve(step);
    check_losses(step, &losses);
    check_gradient(step);
    for (uint32_t i = 0; i < parameters; i++) {
        const struct parameter *parameter = params_at(values.params, i);
        const size_t count = shape_elements(&parameter->tensor.shape);
        double *after = read_parameter(i);
        for (size_t e = 0; e < count; e++)
            after[e] -= before[i][e];
        golden_check(golden, step, GOLDEN_UPDATE, parameter->name, after, count);
        free(after);
        free(before[i]);
    }
}

START_TEST(three_minibatches_are_pytorchs)
{
    if (!open_case(_i))
        return;
    for (uint32_t step = 1; step <= STEPS; step++)
        check_step(step);
    golden_assert_all(golden);
    close_case();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_images_golden");
    TCase *tests = tcase_create("policy_images_golden");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, three_minibatches_are_pytorchs, 0, TRAINING_BACKENDS * CASES);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
