/* The policy for images: its log-probabilities and gradients against the oracle's (test/oracle/cnn_ref.h), on
 * oneDNN, a GPU and the tape's oracle; what it learns; what it saves. */
#include "test/oracle/cnn_ref.h"
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

/* Other than square, so that height and width cannot be exchanged. */
static const struct environment_space bytes = {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {36, 44, 2}},
                                      floats = {.dtype = ENVIRONMENT_F32, .rank = 3, .shape = {45, 36, 1}};

static struct policy_world world;
static struct backend *backend;
static struct policy_values values;
static struct error error;
static size_t count; /* of all parameters */

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

/* False where there is no such backend. */
static bool open_world(int number, enum world_head head, struct environment_space observation, uint32_t rows)
{
    backend = training_backend(number);
    if (backend == NULL)
        return false;
    policy_world_init(&world, head, observation, rows, 11 + head);
    world.config.network = POLICY_CNN;
    must(policy_values_open(&values, &world.config, &error));
    count = 0;
    for (uint32_t i = 0; i < params_count(values.params); i++)
        count += shape_elements(&params_at(values.params, i)->tensor.shape);
    return true;
}

static void close_world(void)
{
    policy_values_close(&values);
    policy_world_fini(&world);
    backend_close(backend);
}

/* All parameters, or their first moments, one behind the other. */
static double *read_values(enum policy_array array)
{
    double *all = values_memory(count, sizeof *all), *to = all;
    for (uint32_t i = 0; i < params_count(values.params); i++) {
        const float *from = policy_values_at(&values, i, array);
        const size_t elements = shape_elements(&params_at(values.params, i)->tensor.shape);
        for (size_t e = 0; e < elements; e++)
            *to++ = (double)from[e];
    }
    return all;
}

/* ---- against the oracle ---- */

static double oracle_loss(const double *parameters)
{
    double loss = 0;
    for (uint32_t i = 0; i < world.batch.count; i++)
        loss -= (double)world.coefficient[i] *
                cnn_ref_log_probability(&world.config, parameters, &world.batch, world.row[i]);
    return loss;
}

/* The slope of the oracle's loss by a central difference. A corner of a ReLU within it would be rare. */
static double slope(double *parameters, size_t at)
{
    const double step = 1e-5, kept = parameters[at];
    parameters[at] = kept + step;
    const double above = oracle_loss(parameters);
    parameters[at] = kept - step;
    const double below = oracle_loss(parameters);
    parameters[at] = kept;
    return (above - below) / (2 * step);
}

/* Some elements of each parameter. After the first step Adam's first moment is a tenth of the gradient. */
static void check_gradient(double *parameters)
{
    enum { ELEMENTS = 4 };
    double *moments = read_values(POLICY_FIRST_MOMENT);
    size_t first = 0;
    for (uint32_t i = 0; i < params_count(values.params); i++) {
        const size_t elements = shape_elements(&params_at(values.params, i)->tensor.shape);
        double largest = 0;
        ck_assert_uint_gt(elements, 0);
        for (size_t e = 0; e < elements; e++)
            largest = fmax(largest, fabs(moments[first + e]));
        for (size_t n = 0; n < ELEMENTS; n++) {
            const size_t at = first + (n * 7919 + 5) % elements;
            const double expected = slope(parameters, at) / 10;
            ck_assert_msg(fabs(moments[at] - expected) <= 2e-4 * largest + 1e-9, "%s: %g, expected %g",
                          params_at(values.params, i)->name, moments[at], expected);
        }
        ck_assert_msg(largest > 0, "%s has no gradient", params_at(values.params, i)->name);
        first += elements;
    }
    free(moments);
}

/* Three backends, all heads; bytes and floats in turn. */
START_TEST(loss_and_gradient_are_the_oracles)
{
    const enum world_head head = _i % WORLD_HEADS;
    if (!open_world(_i / WORLD_HEADS, head, head % 2 == 0 ? bytes : floats, 3))
        return;
    struct policy *policy = policy_world_open(&world, backend);
    must(policy_save(policy, &values, &error));
    double *parameters = read_values(POLICY_VALUES);
    for (size_t i = 0; i < (head == WORLD_FLOATS ? 3 : 0); i++) // log_std begins at 0: an easy number
        policy_values_at(&values, 0, POLICY_VALUES)[i] = (float)(parameters[i] = 0.25 * (double)i - 0.5);
    must(policy_restore(policy, &values, &error));
    const double loss = policy_world_learn(&world, policy);
    ck_assert_double_eq_tol(loss, oracle_loss(parameters), 1e-5);
    must(policy_save(policy, &values, &error));
    ck_assert_uint_eq(values.steps, 1);
    check_gradient(parameters);
    free(parameters);
    policy_free(policy);
    close_world();
}
END_TEST

/* ---- acting ---- */

/* More rows than a piece has: the same actions as each row alone has, as long as its probabilities are not
 * rounded otherwise next to a border. Masks hold. */
START_TEST(a_row_acts_by_itself)
{
    enum { ROWS = 260 };
    const struct environment_space image = {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {36, 36, 1}};
    int32_t together[2 * ROWS];
    if (!open_world(_i, WORLD_MASKED_CHOICES, image, ROWS))
        return;
    struct policy *policy = policy_world_open(&world, backend);
    policy_world_act(&world, policy, 3);
    ck_assert(policy_world_is_allowed(&world));
    memcpy(together, world.actions, sizeof together);
    memset(world.actions, 0xff, sizeof together);
    for (uint32_t first = 0; first < ROWS; first += 13) {
        struct policy_rows piece = world.batch;
        piece.row += first;
        piece.count = 13;
        must(policy_act(policy, &piece, 3, world.environment + first, world.step + first, &error));
    }
    ck_assert_mem_eq(together, world.actions, sizeof together);
    must(policy_choose(policy, &world.batch, &error));
    ck_assert(policy_world_is_allowed(&world));
    policy_free(policy);
    close_world();
}
END_TEST

/* ---- learning ---- */

START_TEST(each_head_learns_a_bandit)
{
    const enum world_head head = _i;
    const struct environment_space image = {.dtype = ENVIRONMENT_U8, .rank = 3, .shape = {36, 36, 1}};
    if (!open_world(0, head, image, 32))
        return;
    world.config.adam.lr = 1e-3;
    struct policy *policy = policy_world_open(&world, backend);
    const double before = policy_world_train(&world, policy, 0);
    const double after = policy_world_train(&world, policy, head == WORLD_FLOATS ? 120 : 60);
    ck_assert_msg(after > before && after > (head == WORLD_FLOATS ? -0.05 : 0.95), "%g, then %g", before,
                  after);
    policy_free(policy);
    close_world();
}
END_TEST

/* ---- saving ---- */

/* The other policy began with other parameters. The oracle of the tape keeps double, of which a copy is
 * rounded. */
START_TEST(another_policy_goes_on_with_its_values)
{
    if (!open_world(_i, WORLD_FLOATS, floats, 5))
        return;
    struct policy *policy = policy_world_open(&world, backend);
    world.config.seed++;
    struct policy *other = policy_world_open(&world, backend);
    policy_world_learn(&world, policy);
    policy_world_learn(&world, policy);
    must(policy_save(policy, &values, &error));
    must(policy_restore(other, &values, &error));
    const double loss = policy_world_learn(&world, policy);
    ck_assert(policy_world_learn(&world, other) == loss);
    must(policy_save(policy, &values, &error));
    double *mine = read_values(POLICY_SECOND_MOMENT);
    must(policy_save(other, &values, &error));
    double *others = read_values(POLICY_SECOND_MOMENT);
    ck_assert_mem_eq(mine, others, count * sizeof *mine);
    ck_assert_uint_eq(values.steps, 3);
    free(mine);
    free(others);
    policy_free(policy);
    policy_free(other);
    close_world();
}
END_TEST

START_TEST(what_is_not_finite_changes_nothing)
{
    if (!open_world(0, WORLD_CHOICE, floats, 5))
        return;
    double loss = -1;
    struct policy *policy = policy_world_open(&world, backend);
    world.coefficient[3] = NAN;
    ck_assert_int_eq(policy_learn(policy, &world.batch, world.coefficient, 1, &loss, NULL, NULL, &error),
                     STATUS_INTERNAL);
    ck_assert_msg(strstr(error.text, "pull") != NULL, "%s", error.text);
    ck_assert_double_eq(loss, -1);
    must(policy_save(policy, &values, &error));
    ck_assert_uint_eq(values.steps, 0);
    policy_values_at(&values, 0, POLICY_VALUES)[0] = NAN;
    must(policy_restore(policy, &values, &error));
    ck_assert_int_eq(policy_choose(policy, &world.batch, &error), STATUS_CORRUPT);
    policy_free(policy);
    close_world();
}
END_TEST

START_TEST(parameters_have_stable_baselines_names)
{
    static const char *const expected[] = {"log_std 3",
                                           "features_extractor.cnn.0.weight 32x2x8x8",
                                           "features_extractor.cnn.0.bias 32",
                                           "features_extractor.cnn.2.weight 64x32x4x4",
                                           "features_extractor.cnn.2.bias 64",
                                           "features_extractor.cnn.4.weight 64x64x3x3",
                                           "features_extractor.cnn.4.bias 64",
                                           "features_extractor.linear.0.weight 512x128",
                                           "features_extractor.linear.0.bias 512",
                                           "action_net.weight 3x512",
                                           "action_net.bias 3"};
    policy_world_init(&world, WORLD_FLOATS, bytes, 1, 1);
    world.config.network = POLICY_CNN;
    struct policy_parameter list[POLICY_PARAMETERS_MAX];
    ck_assert_uint_eq(policy_parameters(list, &world.config), sizeof expected / sizeof *expected);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        char text[POLICY_NAME_BYTES + SHAPE_TEXT_BYTES], shape[SHAPE_TEXT_BYTES];
        snprintf(text, sizeof text, "%s %s", list[i].name, shape_text(&list[i].shape, shape));
        ck_assert_str_eq(text, expected[i]);
    }
    policy_world_fini(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_images");
    TCase *tests = tcase_create("policy_images");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, loss_and_gradient_are_the_oracles, 0, TRAINING_BACKENDS * WORLD_HEADS);
    tcase_add_loop_test(tests, a_row_acts_by_itself, 0, TRAINING_BACKENDS);
    tcase_add_loop_test(tests, each_head_learns_a_bandit, 0, WORLD_HEADS);
    tcase_add_loop_test(tests, another_policy_goes_on_with_its_values, 0, TRAINING_PLUGINS);
    tcase_add_test(tests, what_is_not_finite_changes_nothing);
    tcase_add_test(tests, parameters_have_stable_baselines_names);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
