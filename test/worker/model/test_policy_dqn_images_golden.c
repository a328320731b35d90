/* Gradient steps of DQN on images, held to PyTorch's (test/golden/dqn_images.py): the loss, the errors, the
 * clipped gradient, and how the network and its target move. */
#include "test/kernels/policy/mlp_problem.h"
#include "test/training.h"
#include "test/values.h"
#include "test/workplace.h"
#include "worker/model/policy.h"
#include "worker/model/policy_internal.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEIGHT = 36, WIDTH = 44, CHANNELS = 2, ROWS = 8, CHOICES = 3, STEPS = 3 };
enum { ELEMENTS = HEIGHT * WIDTH * CHANNELS };

static const struct golden_case {
    const char *name;
    bool bytes, double_q, dueling, masks, weighs;
    double max_norm;
    uint64_t seed; /* of the generator */
} cases[] = {{"bytes", true, false, false, false, false, 0.5, 4},
             {"double", false, true, false, true, true, 100, 147},
             {"dueling", false, false, true, true, false, 0.5, 16},
             {"all", true, true, true, true, true, 0.5, 6}};
enum { CASES = sizeof cases / sizeof cases[0] };

static struct error error;
static const struct golden_case *of;
static struct policy_config config;
static struct backend *backend;
static struct policy *policy;
static struct policy_values values, moved; /* before and after a step */
static struct golden *golden;

static void *observations, *next_observations;
static int32_t *actions;
static float *rewards, *weights;
static float errors[ROWS];
static const uint8_t ends[ROWS] = {[2] = 1, [5] = 1};
static uint8_t allowed[ROWS * CHOICES];

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* ---- the problem ---- */

/* The batch is filled up to 11 rows. */
static void make_config(void)
{
    static const uint32_t choices[] = {CHOICES};
    config = (struct policy_config){.learning = POLICY_DQN,
                                    .q = {.gamma = 0.9,
                                          .tau = 0.25,
                                          .batch_rows = 11,
                                          .double_q = of->double_q,
                                          .dueling = of->dueling,
                                          .max_norm = of->max_norm},
                                    .observation = {.dtype = of->bytes ? ENVIRONMENT_U8 : ENVIRONMENT_F32,
                                                    .rank = 3,
                                                    .shape = {HEIGHT, WIDTH, CHANNELS}},
                                    .action = {.dtype = ENVIRONMENT_I32, .choices = choices},
                                    .network = POLICY_CNN,
                                    .adam = {.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8},
                                    .environments = 1};
}

static void draw_parameters(uint64_t *state)
{
    for (uint32_t i = 0; i < values.count; i++) {
        const struct shape *shape = &params_at(values.params, i)->tensor.shape;
        const size_t count = shape_elements(shape);
        const float scale = shape->rank > 1 ? sqrtf(2.0f / ((float)count / (float)shape->size[0])) : 0.1f;
        float *to = policy_values_at(&values, i, POLICY_VALUES);
        for (size_t e = 0; e < count; e++)
            to[e] = mlp_problem_number(state) * scale;
    }
}

static void *draw_images(uint64_t *state)
{
    const size_t count = (size_t)ROWS * ELEMENTS;
    if (!of->bytes)
        return training_numbers(state, count, 1);
    int32_t *numbers = training_indices(state, count, 256);
    uint8_t *bytes = values_memory(count, 1);
    for (size_t i = 0; i < count; i++)
        bytes[i] = (uint8_t)numbers[i];
    free(numbers);
    return bytes;
}

static void draw_rows(uint64_t *state)
{
    observations = draw_images(state);
    next_observations = draw_images(state);
    actions = training_indices(state, ROWS, CHOICES);
    rewards = training_numbers(state, ROWS, 2);
    weights = training_numbers(state, ROWS, 0.5f);
    for (uint32_t i = 0; i < ROWS; i++)
        weights[i] += 0.75f;
    for (uint32_t i = 0; i < ROWS * CHOICES; i++)
        allowed[i] = i % CHOICES != i / CHOICES % CHOICES;
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
    must(policy_values_open(&moved, &config, &error));
    draw_parameters(&state);
    must(policy_restore(policy, &values, &error));
    draw_rows(&state);
    snprintf(name, sizeof name, "dqn_images_%s", of->name);
    golden = golden_open(name, state, false);
    return true;
}

static void close_case(void)
{
    golden_close(golden);
    policy_values_close(&values);
    policy_values_close(&moved);
    policy_free(policy);
    backend_close(backend);
    free(observations);
    free(next_observations);
    free(actions);
    free(rewards);
    free(weights);
}

/* ---- a step ---- */

static void fit(uint32_t step)
{
    const struct policy_transitions batch = {.count = ROWS,
                                             .observations = observations,
                                             .next_observations = next_observations,
                                             .actions = actions,
                                             .next_allowed = of->masks ? allowed : NULL,
                                             .rewards = rewards,
                                             .terminated = ends,
                                             .weights = of->weighs ? weights : NULL,
                                             .errors = errors};
    struct policy_q_losses losses;
    must(policy_fit(policy, &batch, 0.001, &losses, &error));
    ck_assert(isnan(losses.actor) && policy_fits(policy) == step);
    golden_check(golden, step, GOLDEN_LOSS, "loss", &losses.critic, 1);
    double widened[ROWS];
    for (uint32_t i = 0; i < ROWS; i++)
        widened[i] = (double)errors[i];
    golden_check(golden, step, GOLDEN_OUTPUT, "errors", widened, ROWS);
}

static void check_gradient(uint32_t step)
{
    const struct policy_learner *net = policy->self; // the first member
    for (uint32_t i = 0; i < params_count(net->params); i++) {
        const struct parameter *parameter = params_at(net->params, i);
        double *got = values_memory(shape_elements(&parameter->tensor.shape), sizeof *got);
        must(gradients_read(net->gradients, parameter, DTYPE_F64, got, &error));
        golden_check(golden, step, GOLDEN_GRADIENT, parameter->name, got,
                     shape_elements(&parameter->tensor.shape));
        free(got);
    }
}

/* Of the parameters of the network, and those of its target. */
static void check_update(uint32_t step)
{
    for (uint32_t i = 0; i < values.count; i++) {
        const struct parameter *parameter = params_at(values.params, i);
        const size_t count = shape_elements(&parameter->tensor.shape);
        const float *before = policy_values_at(&values, i, POLICY_VALUES),
                    *after = policy_values_at(&moved, i, POLICY_VALUES);
        double *difference = values_memory(count, sizeof *difference);
        for (size_t e = 0; e < count; e++)
            difference[e] = (double)after[e] - (double)before[e];
        golden_check(golden, step, GOLDEN_UPDATE, parameter->name, difference, count);
        free(difference);
    }
}

START_TEST(three_steps_are_pytorchs)
{
    if (!open_case(_i))
        return;
    for (uint32_t step = 1; step <= STEPS; step++) {
        must(policy_save(policy, &values, &error));
        fit(step);
        check_gradient(step);
        must(policy_follow(policy, &error));
        must(policy_save(policy, &moved, &error));
        check_update(step);
    }
    golden_assert_all(golden);
    close_case();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_dqn_images_golden");
    TCase *tests = tcase_create("policy_dqn_images_golden");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, three_steps_are_pytorchs, 0, TRAINING_BACKENDS * CASES);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
