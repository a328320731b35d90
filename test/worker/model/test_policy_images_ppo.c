/* PPO on images: what is the same however rows act together, what a review makes of them, first values, and
 * what takes no step. test_policy_images_golden.c has the numbers of a step. */
#include "test/training.h"
#include "test/values.h"
#include "test/worker/model/policy_world.h"
#include "test/workplace.h"
#include "worker/model/policy.h"
#include "worker/model/policy_parameters.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct environment_space bytes = {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {36, 36, 1}},
                                      floats = {.dtype = ENVIRONMENT_F32, .rank = 3, .shape = {36, 44, 2}};

static struct policy_world world;
static struct backend *backend;
static struct policy *policy;
static struct policy_values values;
static float *advantages, *returns;
static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* Rows that act all at once, and are learned from in minibatches of a third. False where there is no such
 * backend. */
static bool open_backend(int number, enum world_head head, struct environment_space observation,
                         uint32_t rows)
{
    backend = training_backend(number);
    if (backend == NULL)
        return false;
    policy_world_init(&world, head, observation, rows, 5 + head);
    world.config.network = POLICY_CNN;
    world.config.has_value = world.config.orthogonal = true;
    world.config.log_std_init = -0.5;
    world.config.minibatch_rows = rows / 3;
    world.batch.log_probabilities = values_memory(rows, sizeof(float));
    world.batch.values = values_memory(rows, sizeof(float));
    advantages = values_memory(rows, sizeof *advantages);
    returns = values_memory(rows, sizeof *returns);
    for (uint32_t r = 0; r < rows; r++) {
        world.environment[r] = world.row[r];
        advantages[r] = (float)(r % 5) - 1.5f;
        returns[r] = (float)(r % 3);
    }
    return true;
}

static void open_policy(bool shared)
{
    world.config.shared_value = shared;
    policy = policy_world_open(&world, backend);
    must(policy_values_open(&values, &world.config, &error));
}

static void close_all(void)
{
    policy_values_close(&values);
    policy_free(policy);
    free(world.batch.log_probabilities);
    free(world.batch.values);
    free(advantages);
    free(returns);
    policy_world_fini(&world);
    backend_close(backend);
}

/* The clip is so narrow that clip_fraction tells of every ratio that is not 1. */
static enum status improve(const struct policy_rows *rows, double kl_max, struct surrogate_losses *losses)
{
    const struct policy_targets targets = {advantages, returns, true};
    const struct policy_step step = {
        .objective = {.clip = 1e-12, .value_clip = (double)INFINITY, .value_coefficient = 0.5},
        .max_norm = 0.5,
        .lr = 0.001,
        .kl_max = kl_max};
    return policy_improve(policy, rows, &targets, &step, losses, &error);
}

/* ---- acting ---- */

/* Bytes of all that acting writes. */
static char *acted(void)
{
    const size_t rows = world.batch.count, actions = policy_world_action_bytes(&world);
    char *all = values_memory(actions + 2 * rows * sizeof(float), 1);
    memcpy(all, world.actions, actions);
    memcpy(all + actions, world.batch.log_probabilities, rows * sizeof(float));
    memcpy(all + actions + rows * sizeof(float), world.batch.values, rows * sizeof(float));
    return all;
}

/* The batch in pieces of `size` rows. */
static void act_in_pieces(uint32_t size)
{
    const uint32_t rows = world.batch.count;
    memset(world.actions, 0xff, policy_world_action_bytes(&world));
    memset(world.batch.values, 0xff, rows * sizeof(float));
    memset(world.batch.log_probabilities, 0xff, rows * sizeof(float));
    for (uint32_t first = 0; first < rows; first += size) {
        struct policy_rows piece = world.batch;
        piece.row += first;
        piece.count = rows - first < size ? rows - first : size;
        must(policy_act(policy, &piece, 3, world.environment + first, world.step + first, &error));
    }
}

/* To the last bit, of more rows than a piece of the backend has: floats too, which are not rounded to
 * choices.
 */
START_TEST(rows_act_the_same_in_any_company)
{
    enum { ROWS = 260 };
    if (!open_backend(_i / 2, _i % 2 == 0 ? WORLD_MASKED_CHOICES : WORLD_FLOATS, bytes, ROWS))
        return;
    open_policy(true);
    policy_world_act(&world, policy, 3);
    ck_assert(policy_world_is_allowed(&world));
    char *together = acted();
    for (uint32_t size = 7; size < ROWS; size *= 6) {
        act_in_pieces(size);
        char *apart = acted();
        ck_assert_mem_eq(together, apart,
                         policy_world_action_bytes(&world) + (size_t)2 * ROWS * sizeof(float));
        free(apart);
    }
    free(together);
    close_all();
}
END_TEST

/* ---- learning ---- */

/* The first policy's outputs hardly differ from state to state, so that other roundings would hide. */
static void scale_outputs(void)
{
    must(policy_save(policy, &values, &error));
    for (uint32_t i = 0; i < values.count; i++) {
        const struct parameter *parameter = params_at(values.params, i);
        float *weight = policy_values_at(&values, i, POLICY_VALUES);
        if (strcmp(parameter->name, "action_net.weight") != 0)
            continue;
        for (size_t e = 0; e < shape_elements(&parameter->tensor.shape); e++)
            weight[e] *= 300;
    }
    must(policy_restore(policy, &values, &error));
}

/* Of two networks and one; of rows in one piece of the backend and in several, the last one filled up. */
START_TEST(ratios_of_a_reviewed_minibatch_are_exactly_1)
{
    const uint32_t rows = _i % 4 < 2 ? 20 : 900;
    struct surrogate_losses losses;
    if (!open_backend(_i / 4, _i % 2 == 0 ? WORLD_CHOICES : WORLD_FLOATS, bytes, rows))
        return;
    open_policy(_i % 2 == 0);
    scale_outputs();
    policy_world_act(&world, policy, 1);
    struct policy_rows minibatch = world.batch;
    minibatch.count = rows / 3;
    minibatch.row += rows / 2;
    ck_assert(policy_needs_review(policy));
    const float before = world.batch.values[minibatch.row[0]];
    must(policy_review(policy, &minibatch, NULL, NULL, &error));
    ck_assert_float_eq_tol(world.batch.values[minibatch.row[0]], before, 1e-4);
    must(improve(&minibatch, (double)INFINITY, &losses));
    ck_assert(losses.stepped && losses.kl == 0 && losses.clip_fraction == 0);
    must(improve(&minibatch, (double)INFINITY, &losses));
    ck_assert_double_gt(losses.clip_fraction, 0.5);
    close_all();
}
END_TEST

static void fill(float *numbers, float by)
{
    for (uint32_t r = 0; r < world.batch.count; r++)
        numbers[r] = by;
}

/* A value of a state is the same by every function, up to rounding. */
START_TEST(estimates_are_the_values_of_acting)
{
    enum { ROWS = 12 };
    float of_acting[ROWS];
    if (!open_backend(_i / 2, WORLD_CHOICE, floats, ROWS))
        return;
    open_policy(_i % 2 == 0);
    policy_world_act(&world, policy, 1);
    memcpy(of_acting, world.batch.values, sizeof of_acting);
    ck_assert(of_acting[0] != of_acting[1]);
    fill(world.batch.values, NAN);
    must(policy_estimate(policy, &world.batch, &error));
    for (uint32_t r = 0; r < ROWS; r++)
        ck_assert_float_eq_tol(world.batch.values[r], of_acting[r], 1e-5);
    fill(world.batch.values, NAN);
    must(policy_review(policy, &world.batch, NULL, NULL, &error));
    for (uint32_t r = 0; r < ROWS; r++)
        ck_assert_float_eq_tol(world.batch.values[r], of_acting[r], 1e-5);
    close_all();
}
END_TEST

/* Of a shared value, and of a network of its own. */
START_TEST(another_policy_goes_on_with_its_values)
{
    struct surrogate_losses mine, others;
    if (!open_backend(0, WORLD_FLOATS, floats, 12))
        return;
    open_policy(_i == 0);
    ck_assert_double_eq_tol(policy_deviation(policy), exp(-0.5), 1e-6);
    policy_world_act(&world, policy, 1);
    must(improve(&world.batch, (double)INFINITY, &mine));
    must(policy_save(policy, &values, &error));
    ck_assert_uint_eq(values.steps, 1);
    must(improve(&world.batch, (double)INFINITY, &mine));
    must(improve(&world.batch, (double)INFINITY, &mine));
    const double deviation = policy_deviation(policy);
    policy_free(policy);
    world.config.seed++;
    policy = policy_world_open(&world, backend);
    must(policy_restore(policy, &values, &error));
    must(improve(&world.batch, (double)INFINITY, &others));
    must(improve(&world.batch, (double)INFINITY, &others));
    ck_assert(mine.loss == others.loss && mine.gradient_norm == others.gradient_norm);
    ck_assert(deviation == policy_deviation(policy) && fabs(deviation - exp(-0.5)) > 1e-6);
    close_all();
}
END_TEST

/* A policy that normalizes reads as one that gets what it reads. */
START_TEST(observations_are_normalized)
{
    enum { ROWS = 6 };
    float raw[ROWS];
    if (!open_backend(0, WORLD_CHOICE, floats, ROWS))
        return;
    world.config.normalizes = true;
    world.config.clip = 1.5;
    open_policy(true);
    float *mean = values_memory(world.elements, sizeof *mean), *variance = values_memory(world.elements, 4);
    for (size_t e = 0; e < world.elements; e++) {
        mean[e] = 0.25f * (float)(e % 7) - 0.5f;
        variance[e] = 0.1f + 0.1f * (float)(e % 11);
    }
    policy_normalize(policy, mean, variance);
    must(policy_save(policy, &values, &error));
    ck_assert_mem_eq(policy_values_statistic(&values, POLICY_MEAN), mean, world.elements * sizeof *mean);
    must(policy_estimate(policy, &world.batch, &error));
    memcpy(raw, world.batch.values, sizeof raw);
    policy_free(policy);
    world.config.normalizes = false;
    policy = policy_world_open(&world, backend);
    float *x = world.observations;
    for (size_t i = 0; i < ROWS * world.elements; i++) {
        const size_t e = i % world.elements;
        const double by = 1 / sqrt((double)variance[e] + 1e-8);
        x[i] = (float)fmax(-1.5, fmin(1.5, ((double)x[i] - (double)mean[e]) * by));
    }
    must(policy_estimate(policy, &world.batch, &error));
    for (uint32_t r = 0; r < ROWS; r++)
        ck_assert_float_eq_tol(world.batch.values[r], raw[r], 1e-5);
    free(mean);
    free(variance);
    close_all();
}
END_TEST

START_TEST(a_policy_that_moved_too_far_takes_no_step)
{
    struct surrogate_losses losses;
    if (!open_backend(0, WORLD_CHOICE, bytes, 6))
        return;
    open_policy(true);
    policy_world_act(&world, policy, 1);
    world.batch.log_probabilities[2] -= 1;
    must(improve(&world.batch, 0.01, &losses));
    ck_assert(!losses.stepped && losses.kl > 0.01 && losses.gradient_norm == 0);
    must(policy_save(policy, &values, &error));
    ck_assert_uint_eq(values.steps, 0);
    close_all();
}
END_TEST

START_TEST(what_is_not_finite_changes_nothing)
{
    struct surrogate_losses losses;
    if (!open_backend(0, WORLD_CHOICE, floats, 6))
        return;
    open_policy(false);
    policy_world_act(&world, policy, 1);
    returns[1] = NAN;
    ck_assert_int_eq(improve(&world.batch, (double)INFINITY, &losses), STATUS_INTERNAL);
    ck_assert_msg(strstr(error.text, "values' pull") != NULL, "%s", error.text);
    returns[1] = 0;
    world.batch.log_probabilities[0] = NAN;
    ck_assert_int_eq(improve(&world.batch, (double)INFINITY, &losses), STATUS_INTERNAL);
    ck_assert_msg(strstr(error.text, "log-probabilities' pull") != NULL, "%s", error.text);
    must(policy_save(policy, &values, &error));
    ck_assert_uint_eq(values.steps, 0);
    close_all();
}
END_TEST

/* ---- first values ---- */

/* The product of two rows of the weight (rows, columns), or of two columns where it is tall. */
static double product(const float *weight, size_t rows, size_t columns, size_t a, size_t b)
{
    const bool wide = columns > rows;
    double sum = 0;
    for (size_t e = 0; e < (wide ? columns : rows); e++)
        sum += wide ? (double)weight[a * columns + e] * (double)weight[b * columns + e]
                    : (double)weight[e * columns + a] * (double)weight[e * columns + b];
    return sum;
}

static void check_orthogonal(const struct parameter *parameter, const float *weight)
{
    const struct shape *shape = &parameter->tensor.shape;
    const size_t rows = shape->size[0], columns = shape_elements(shape) / rows;
    const size_t vectors = rows < columns ? rows : columns;
    const bool action = strstr(parameter->name, "action_net") != NULL,
               value = strstr(parameter->name, "value_net") != NULL;
    const double square = action ? 1e-4 : value ? 1 : 2;
    for (size_t v = 0; v < vectors; v++) {
        ck_assert_double_eq_tol(product(weight, rows, columns, v, v), square, 1e-5 * square);
        if (v > 0)
            ck_assert_double_eq_tol(product(weight, rows, columns, v, v / 2), 0, 1e-5 * square);
    }
}

START_TEST(first_weights_are_orthogonal)
{
    if (!open_backend(0, WORLD_FLOATS, floats, 3))
        return;
    open_policy(false);
    must(policy_save(policy, &values, &error));
    for (uint32_t i = 0; i < values.count; i++) {
        const struct parameter *parameter = params_at(values.params, i);
        const float *got = policy_values_at(&values, i, POLICY_VALUES);
        const size_t count = shape_elements(&parameter->tensor.shape);
        if (parameter->tensor.shape.rank > 1)
            check_orthogonal(parameter, got);
        for (size_t e = 0; e < count && parameter->tensor.shape.rank == 1; e++)
            ck_assert(got[e] == (i == 0 ? -0.5f : 0));
    }
    ck_assert(policy_values_at(&values, 1, POLICY_VALUES)[0] !=
              policy_values_at(&values, 9, POLICY_VALUES)[0]); // the two extractors are different draws
    close_all();
}
END_TEST

START_TEST(parameters_have_stable_baselines_names)
{
    static const char *const shared[] = {"features_extractor.linear.0.bias 512", "action_net.weight 5x512",
                                         "action_net.bias 5", "value_net.weight 1x512", "value_net.bias 1"};
    static const char *const separate[] = {"features_extractor.linear.0.bias 512",
                                           "vf_features_extractor.cnn.0.weight 32x2x8x8",
                                           "vf_features_extractor.cnn.0.bias 32",
                                           "vf_features_extractor.cnn.2.weight 64x32x4x4",
                                           "vf_features_extractor.cnn.2.bias 64",
                                           "vf_features_extractor.cnn.4.weight 64x64x3x3",
                                           "vf_features_extractor.cnn.4.bias 64",
                                           "vf_features_extractor.linear.0.weight 512x128",
                                           "vf_features_extractor.linear.0.bias 512",
                                           "action_net.weight 5x512",
                                           "action_net.bias 5",
                                           "value_net.weight 1x512",
                                           "value_net.bias 1"};
    const char *const *expected = _i == 0 ? shared : separate;
    const uint32_t count = (uint32_t)(_i == 0 ? sizeof shared : sizeof separate) / sizeof(char *);
    struct policy_parameter list[POLICY_PARAMETERS_MAX];
    policy_world_init(&world, WORLD_CHOICE, floats, 1, 1);
    world.config.network = POLICY_CNN;
    world.config.has_value = true;
    world.config.shared_value = _i == 0;
    ck_assert_uint_eq(policy_parameters(list, &world.config), 7 + count);
    for (uint32_t i = 0; i < count; i++) {
        char text[POLICY_NAME_BYTES + SHAPE_TEXT_BYTES], shape[SHAPE_TEXT_BYTES];
        snprintf(text, sizeof text, "%s %s", list[7 + i].name, shape_text(&list[7 + i].shape, shape));
        ck_assert_str_eq(text, expected[i]);
    }
    policy_world_fini(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_images_ppo");
    TCase *tests = tcase_create("policy_images_ppo");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, rows_act_the_same_in_any_company, 0, TRAINING_PLUGINS * 2);
    tcase_add_loop_test(tests, ratios_of_a_reviewed_minibatch_are_exactly_1, 0, TRAINING_PLUGINS * 4);
    tcase_add_loop_test(tests, estimates_are_the_values_of_acting, 0, TRAINING_PLUGINS * 2);
    tcase_add_loop_test(tests, another_policy_goes_on_with_its_values, 0, 2);
    tcase_add_test(tests, observations_are_normalized);
    tcase_add_test(tests, a_policy_that_moved_too_far_takes_no_step);
    tcase_add_test(tests, what_is_not_finite_changes_nothing);
    tcase_add_test(tests, first_weights_are_orthogonal);
    tcase_add_loop_test(tests, parameters_have_stable_baselines_names, 0, 2);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
