/* The policy on the tape: three steps of Adam held to PyTorch's (test/golden/policy_tape.py), whose masks are
 * drawn row by row by a Philox written there anew. */
#include "kernels/base/rng.h"
#include "test/training.h"
#include "test/worker/model/policy_problem.h"
#include "test/workplace.h"
#include "worker/model/policy_internal.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INPUTS = 4, HIDDEN = 128, ACTIONS = 2, ROWS = 300, STEPS = 3, SEED = 7 };

static const double DROPOUT = 0.6;
static const uint64_t DRAW_SEED = 0x123456789ABCDEF;

static struct training training;
static struct golden *golden;
static struct tape *tape;
static float *observations, *coefficient;
static int32_t *actions;
static uint32_t words[ROWS][3]; // environment, step, episode

static float scale(const struct parameter *parameter, bool *constant)
{
    (void)constant;
    return strncmp(parameter->name, "affine1", 7) == 0 ? sqrtf(1.0f / INPUTS) : sqrtf(1.0f / HIDDEN);
}

static bool golden_run_open(int number)
{
    struct backend *backend = training_backend(number);
    if (backend == NULL)
        return false;
    const struct optimizer_settings adam = {.kind = OPTIMIZER_ADAM, .adam = {0.01, 0.9, 0.999, 1e-8}};
    const struct policy_config config = {POLICY_PROBLEM_SPACES(INPUTS, HIDDEN, ACTIONS), .adam = adam.adam};
    struct error error = {0};
    uint64_t state = SEED;
    training_init(&training, backend, 1);
    training_ok(policy_register(training.params[0], &config, &error), &error);
    training_build(&training, &adam);
    training_take(&training, 0, 0, UINT32_MAX);
    training_draw(&training, &state, scale);
    observations = training_numbers(&state, (size_t)ROWS * INPUTS, 1);
    coefficient = training_numbers(&state, ROWS, 2);
    actions = training_indices(&state, ROWS, ACTIONS);
    for (uint32_t i = 0; i < ROWS; i++)
        memcpy(words[i], (const uint32_t[3]){i % 5, i / 5, 3}, sizeof words[i]);
    golden = golden_open("policy_tape", state, backend->ops->dtype == DTYPE_F64);
    training_ok(tape_new(&tape, backend, &error), &error);
    return true;
}

static void golden_run_close(void)
{
    tape_free(tape);
    golden_close(golden);
    free(observations);
    free(coefficient);
    free(actions);
    training_fini(&training);
    backend_close(training.backend);
}

static struct variable *keys(void)
{
    return tape_input(tape, SHAPE2(ROWS, 3), DTYPE_I32, "rows", words);
}

/* The masks: what dropout makes of (1 - p), as 0 and 1. */
static void check_masks(uint32_t step)
{
    static double kept[ROWS * HIDDEN];
    static double seen[ROWS * HIDDEN];
    const struct draw draw = {.seed = DRAW_SEED};
    struct error error = {0};
    for (size_t i = 0; i < (size_t)ROWS * HIDDEN; i++)
        kept[i] = 1 - DROPOUT;
    struct variable *x = tape_input(tape, SHAPE2(ROWS, HIDDEN), DTYPE_F64, "kept", kept);
    struct variable *masked = tape_dropout(tape, x, DROPOUT, &draw, keys());
    training_ok(tape_read(tape, masked, DTYPE_F64, seen), &error);
    golden_check(golden, step, GOLDEN_OUTPUT, "keep", seen, (size_t)ROWS * HIDDEN);
}

static void golden_step(uint32_t step, bool update)
{
    static double probabilities[ROWS * ACTIONS];
    double value = NAN;
    struct error error = {0};
    tape_begin(tape, TAPE_TRAIN, training.gradients[0]);
    check_masks(step);
    struct variable *x = tape_input(tape, SHAPE2(ROWS, INPUTS), DTYPE_F32, "observations", observations);
    struct variable *log_probabilities =
        policy_batch_forward(training.params[0], tape, x, keys(), DROPOUT, DRAW_SEED);
    struct variable *picked = tape_log_probability(
        tape, log_probabilities, tape_input(tape, SHAPE1(ROWS), DTYPE_I32, "actions", actions));
    struct variable *loss =
        tape_sum(tape, picked, tape_input(tape, SHAPE1(ROWS), DTYPE_F32, "coefficient", coefficient), -1);
    tape_loss(tape, loss, &value);
    training_ok(tape_status(tape, &error), &error);
    training_ok(tape_read(tape, log_probabilities, DTYPE_F64, probabilities), &error);
    for (size_t i = 0; i < (size_t)ROWS * ACTIONS; i++)
        probabilities[i] = exp(probabilities[i]);
    golden_check(golden, step, GOLDEN_OUTPUT, "probabilities", probabilities, (size_t)ROWS * ACTIONS);
    golden_check(golden, step, GOLDEN_LOSS, "loss", &value, 1);
    tape_backward(tape, loss);
    training_ok(tape_finish(tape, &error), &error);
    training_step(&training, golden, step, update);
}

START_TEST(it_trains_as_pytorchs_does)
{
    if (!golden_run_open(_i))
        return;
    for (uint32_t step = 1; step <= STEPS; step++)
        golden_step(step, true);
    golden_assert_all(golden);
    golden_run_close();
}
END_TEST

START_TEST(a_run_without_updates_is_seen)
{
    if (!golden_run_open(_i))
        return;
    for (uint32_t step = 1; step <= STEPS; step++)
        golden_step(step, false);
    training_expect_unmoved(&training, golden, STEPS);
    golden_run_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_mlp_gpu_golden");
    TCase *pytorch = tcase_create("pytorch");
    tcase_set_timeout(pytorch, 120);
    tcase_add_loop_test(pytorch, it_trains_as_pytorchs_does, 0, TRAINING_BACKENDS);
    tcase_add_loop_test(pytorch, a_run_without_updates_is_seen, 0, TRAINING_BACKENDS);
    suite_add_tcase(suite, pytorch);
    return suite_run(suite);
}
