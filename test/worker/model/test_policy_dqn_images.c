/* DQN on images: how it acts, by which names its parameters go, what it learns and saves, and what it says
 * of numbers that are not finite. test_policy_dqn_images_golden.c holds its steps to PyTorch's. */
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
                                      floats = {.dtype = ENVIRONMENT_F32, .rank = 3, .shape = {45, 36, 2}};

static struct policy_world world;
static struct backend *backend;
static struct policy *policy;
static struct policy_values values;
static struct error error;
static float *rewards;
static uint8_t *ends;

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
    policy_world_init(&world, head, observation, rows, 21 + head);
    for (uint32_t r = 0; r < rows; r++)
        world.environment[r] = (7 * r) % rows;
    world.config.learning = POLICY_DQN;
    world.config.network = POLICY_CNN;
    world.config.q = (struct policy_q_config){
        .gamma = 0.9, .tau = 1, .batch_rows = rows, .double_q = true, .dueling = true, .max_norm = 10};
    must(policy_values_open(&values, &world.config, &error));
    policy = policy_world_open(&world, backend);
    ends = values_memory(rows, sizeof *ends);
    rewards = values_memory(rows, sizeof *rewards);
    memcpy(rewards, world.coefficient, rows * sizeof *rewards);
    return true;
}

static void close_world(void)
{
    policy_free(policy);
    policy_values_close(&values);
    policy_world_fini(&world);
    backend_close(backend);
    free(rewards);
    free(ends);
}

/* Each row's next observation is its own. */
static enum status fit(struct policy *learner, double *loss)
{
    const struct policy_transitions batch = {.count = world.batch.count,
                                             .observations = world.observations,
                                             .next_observations = world.observations,
                                             .actions = world.actions,
                                             .next_allowed = world.allowed,
                                             .rewards = rewards,
                                             .terminated = ends};
    struct policy_q_losses losses = {.critic = -1};
    const enum status status = policy_fit(learner, &batch, 1e-3, &losses, &error);
    *loss = losses.critic;
    return status;
}

static double must_fit(struct policy *learner)
{
    double loss;
    must(fit(learner, &loss));
    return loss;
}

/* ---- acting ---- */

static int32_t *copy_actions(void)
{
    int32_t *copy = values_memory(world.batch.count, sizeof *copy);
    memcpy(copy, world.actions, world.batch.count * sizeof *copy);
    memset(world.actions, 0xff, world.batch.count * sizeof *copy);
    return copy;
}

static uint32_t count_equal(const int32_t *actions)
{
    uint32_t equal = 0;
    for (uint32_t r = 0; r < world.batch.count; r++)
        equal += ((const int32_t *)world.actions)[r] == actions[r];
    return equal;
}

/* Environments of two pieces. A row's action is the same whoever acts beside it; it is the greedy one, but
 * for a share of random ones; masks hold. */
START_TEST(a_row_acts_by_itself)
{
    enum { ROWS = 260 };
    if (!open_world(_i, WORLD_MASKED, bytes, ROWS))
        return;
    must(policy_choose(policy, &world.batch, &error));
    ck_assert(policy_world_is_allowed(&world));
    int32_t *greedy = copy_actions();
    policy_world_act(&world, policy, 3);
    ck_assert_uint_eq(count_equal(greedy), ROWS);
    policy_explore(policy, &(struct policy_exploration){.epsilon = 0.5});
    policy_world_act(&world, policy, 3);
    ck_assert(policy_world_is_allowed(&world));
    const uint32_t equal = count_equal(greedy);
    ck_assert_msg(equal > ROWS / 2 && equal < ROWS * 3 / 4, "%u of %d", equal, ROWS);
    int32_t *together = copy_actions();
    for (uint32_t first = 0; first < ROWS; first += 13) {
        struct policy_rows some = world.batch;
        some.row += first;
        some.count = 13;
        must(policy_act(policy, &some, 3, world.environment + first, world.step + first, &error));
    }
    ck_assert_uint_eq(count_equal(together), ROWS);
    policy_world_act(&world, policy, 4);
    ck_assert_uint_lt(count_equal(together), ROWS); // another episode has other draws
    free(greedy);
    free(together);
    close_world();
}
END_TEST

/* Each allowed choice about as often as the others, whatever the values are. */
START_TEST(a_random_policy_draws_evenly)
{
    enum { ROWS = 40, EPISODES = 50, CHOICES = 5 };
    uint32_t count[CHOICES] = {0};
    if (!open_world(0, WORLD_CHOICE, bytes, ROWS))
        return;
    policy_explore(policy, &(struct policy_exploration){.is_random = true});
    for (uint32_t episode = 0; episode < EPISODES; episode++) {
        policy_world_act(&world, policy, episode);
        for (uint32_t r = 0; r < ROWS; r++)
            count[((const int32_t *)world.actions)[r]]++;
    }
    for (uint32_t a = 0; a < CHOICES; a++)
        ck_assert_msg(abs((int)count[a] - ROWS * EPISODES / CHOICES) < 90, "%u: %u", a, count[a]);
    close_world();
}
END_TEST

/* ---- learning ---- */

/* The environment rewards one choice for each of two pictures. */
START_TEST(a_bandit_is_learned)
{
    enum { ROWS = 32, STEPS = 60 };
    if (!open_world(0, WORLD_CHOICE, bytes, ROWS))
        return;
    memset(ends, 1, ROWS);
    policy_explore(policy, &(struct policy_exploration){.is_random = true});
    for (uint32_t step = 0; step < STEPS; step++) {
        policy_world_show(&world);
        policy_world_act(&world, policy, step);
        policy_world_reward(&world, true);
        for (uint32_t i = 0; i < ROWS; i++)
            rewards[world.row[i]] = world.coefficient[i] * ROWS;
        must_fit(policy);
    }
    policy_world_show(&world);
    must(policy_choose(policy, &world.batch, &error));
    ck_assert_double_gt(policy_world_reward(&world, false), 0.95);
    ck_assert_uint_eq(policy_fits(policy), STEPS);
    close_world();
}
END_TEST

/* Every array, of the network and its target. */
static void expect_equal(struct policy *other)
{
    struct policy_values others = {0};
    must(policy_values_open(&others, &world.config, &error));
    must(policy_save(policy, &values, &error));
    must(policy_save(other, &others, &error));
    ck_assert_uint_eq(values.steps, others.steps);
    for (uint32_t i = 0; i < values.count; i++)
        for (int array = 0; array < POLICY_ARRAYS; array++)
            ck_assert_mem_eq(policy_values_at(&values, i, array), policy_values_at(&others, i, array),
                             shape_elements(&params_at(values.params, i)->tensor.shape) * sizeof(float));
    policy_values_close(&others);
}

/* With tau 1, and with a target that follows slowly. */
START_TEST(two_policies_learn_with_the_same_bits)
{
    if (!open_world(_i / 2, WORLD_MASKED, floats, 11))
        return;
    world.config.q.tau = _i % 2 == 0 ? 1 : 0.1;
    policy_free(policy);
    policy = policy_world_open(&world, backend);
    struct policy *other = policy_world_open(&world, backend);
    for (int step = 0; step < 4; step++) {
        ck_assert(must_fit(policy) == must_fit(other));
        must(policy_follow(policy, &error));
        must(policy_follow(other, &error));
    }
    expect_equal(other);
    policy_free(other);
    close_world();
}
END_TEST

/* Rows of two pieces: those of one piece, twice. */
START_TEST(two_pieces_are_one_batch)
{
    enum { ROWS = 260, HALF = ROWS / 2 };
    if (!open_world(_i, WORLD_MASKED, bytes, ROWS))
        return;
    struct policy *other = policy_world_open(&world, backend);
    memcpy((char *)world.observations + HALF * world.elements, world.observations, HALF * world.elements);
    memcpy((int32_t *)world.actions + HALF, world.actions, HALF * sizeof(int32_t));
    memcpy(world.allowed + (size_t)HALF * world.choices, world.allowed, (size_t)HALF * world.choices);
    memcpy(rewards + HALF, rewards, HALF * sizeof *rewards);
    const double loss = must_fit(policy);
    world.batch.count = HALF;
    ck_assert_double_eq_tol(must_fit(other), loss, 1e-6 * loss);
    must(policy_save(policy, &values, &error));
    float whole[8], half[8];
    memcpy(whole, policy_values_at(&values, 9, POLICY_FIRST_MOMENT),
           sizeof whole); // of the last layer's bias
    must(policy_save(other, &values, &error));
    memcpy(half, policy_values_at(&values, 9, POLICY_FIRST_MOMENT), sizeof half);
    for (uint32_t i = 0; i < 8; i++)
        ck_assert_float_eq_tol(whole[i], half[i], 1e-5f * fabsf(half[i]) + 1e-8f);
    policy_free(other);
    close_world();
}
END_TEST

/* The other policy began with other parameters. */
START_TEST(another_policy_goes_on_with_its_values)
{
    if (!open_world(_i, WORLD_MASKED, floats, 11))
        return;
    world.config.seed++;
    struct policy *other = policy_world_open(&world, backend);
    must_fit(policy);
    must(policy_follow(policy, &error));
    must_fit(policy);
    must(policy_save(policy, &values, &error));
    must(policy_restore(other, &values, &error));
    ck_assert_uint_eq(policy_fits(other), 2);
    ck_assert(must_fit(policy) == must_fit(other));
    expect_equal(other);
    policy_free(other);
    close_world();
}
END_TEST

/* The target begins as the network, and stays until it follows. */
START_TEST(the_target_follows)
{
    if (!open_world(_i, WORLD_CHOICE, floats, 5))
        return;
    const uint32_t network = 0, target = values.count / 2;
    const size_t size = shape_elements(&params_at(values.params, 0)->tensor.shape) * sizeof(float);
    must(policy_save(policy, &values, &error));
    float *begin = values_memory(size, 1);
    memcpy(begin, policy_values_at(&values, network, POLICY_VALUES), size);
    ck_assert_mem_eq(policy_values_at(&values, target, POLICY_VALUES), begin, size);
    must_fit(policy);
    must(policy_save(policy, &values, &error));
    ck_assert_mem_eq(policy_values_at(&values, target, POLICY_VALUES), begin, size);
    ck_assert_mem_ne(policy_values_at(&values, network, POLICY_VALUES), begin, size);
    must(policy_follow(policy, &error));
    must(policy_save(policy, &values, &error));
    ck_assert_mem_eq(policy_values_at(&values, target, POLICY_VALUES),
                     policy_values_at(&values, network, POLICY_VALUES), size);
    free(begin);
    close_world();
}
END_TEST

/* ---- what is wrong ---- */

static void expect_failure(const char *words)
{
    double loss;
    ck_assert_int_eq(fit(policy, &loss), STATUS_INTERNAL);
    ck_assert_msg(strstr(error.text, words) != NULL, "%s", error.text);
    ck_assert_uint_eq(policy_fits(policy), 0);
}

START_TEST(what_is_not_finite_changes_nothing)
{
    if (!open_world(_i, WORLD_CHOICE, floats, 5))
        return;
    const uint32_t target = values.count / 2;
    must(policy_save(policy, &values, &error));
    rewards[3] = NAN;
    expect_failure("the loss is nan; the first tensor that holds a NaN or an infinity is the rewards");
    rewards[3] = 1;
    ((float *)world.observations)[7] = INFINITY;
    expect_failure("observations");
    ((float *)world.observations)[7] = 0;
    policy_values_at(&values, target, POLICY_VALUES)[0] = NAN;
    must(policy_restore(policy, &values, &error));
    expect_failure("parameter q_net_target.features_extractor.cnn.0.weight");
    policy_values_at(&values, target, POLICY_VALUES)[0] = 0;
    policy_values_at(&values, 0, POLICY_VALUES)[0] = NAN;
    must(policy_restore(policy, &values, &error));
    expect_failure("parameter q_net.features_extractor.cnn.0.weight");
    ck_assert_int_eq(policy_choose(policy, &world.batch, &error), STATUS_CORRUPT);
    close_world();
}
END_TEST

START_TEST(parameters_have_stable_baselines_names)
{
    static const char *const expected[] = {".features_extractor.cnn.0.weight 32x2x8x8",
                                           ".features_extractor.cnn.0.bias 32",
                                           ".features_extractor.cnn.2.weight 64x32x4x4",
                                           ".features_extractor.cnn.2.bias 64",
                                           ".features_extractor.cnn.4.weight 64x64x3x3",
                                           ".features_extractor.cnn.4.bias 64",
                                           ".features_extractor.linear.0.weight 512x128",
                                           ".features_extractor.linear.0.bias 512",
                                           ".q_net.0.weight 6x512",
                                           ".q_net.0.bias 6"};
    enum { COUNT = sizeof expected / sizeof *expected };
    policy_world_init(&world, WORLD_CHOICE, floats, 1, 1);
    world.config.network = POLICY_CNN;
    world.config.learning = POLICY_DQN;
    world.config.q.dueling = true;
    struct policy_parameter list[POLICY_PARAMETERS_MAX];
    ck_assert_uint_eq(policy_parameters(list, &world.config), 2 * COUNT);
    for (size_t i = 0; i < (size_t)2 * COUNT; i++) {
        char text[POLICY_NAME_BYTES + SHAPE_TEXT_BYTES], name[128], shape[SHAPE_TEXT_BYTES];
        snprintf(text, sizeof text, "%s %s", list[i].name, shape_text(&list[i].shape, shape));
        snprintf(name, sizeof name, "%s%s", i < COUNT ? "q_net" : "q_net_target", expected[i % COUNT]);
        ck_assert_str_eq(text, name);
        ck_assert_int_eq(list[i].is_target, i >= COUNT);
    }
    policy_world_fini(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_dqn_images");
    TCase *tests = tcase_create("policy_dqn_images");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, a_row_acts_by_itself, 0, TRAINING_BACKENDS);
    tcase_add_test(tests, a_random_policy_draws_evenly);
    tcase_add_test(tests, a_bandit_is_learned);
    tcase_add_loop_test(tests, two_policies_learn_with_the_same_bits, 0, 2 * TRAINING_PLUGINS);
    tcase_add_loop_test(tests, two_pieces_are_one_batch, 0, TRAINING_PLUGINS);
    tcase_add_loop_test(tests, another_policy_goes_on_with_its_values, 0, TRAINING_PLUGINS);
    tcase_add_loop_test(tests, the_target_follows, 0, TRAINING_PLUGINS);
    tcase_add_loop_test(tests, what_is_not_finite_changes_nothing, 0, TRAINING_PLUGINS);
    tcase_add_test(tests, parameters_have_stable_baselines_names);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
