/* The policy of dense layers behind policy.h, with every head. What the kernel computes is
 * test/kernels/policy/test_dense*.c's; here are the way to it and what the policy learns. */
#include "test/worker/model/policy_inside.h"
#include "test/worker/model/policy_world.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct environment_space vector = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {6}},
                                      bytes = {.dtype = ENVIRONMENT_U8, .rank = 2, .shape = {5, 4}};

static struct policy_world world;
static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void open_world(enum world_head head, struct environment_space observation, uint32_t rows)
{
    policy_world_init(&world, head, observation, rows, 5 + head);
    world.config.layers = 2;
    world.config.width[0] = 33;
    world.config.width[1] = 16;
    world.config.activation = head % 2 == 0 ? POLICY_TANH : POLICY_RELU;
}

/* ---- gradients ---- */

/* Replaces one parameter. */
static void set_value(struct policy *policy, size_t at, float value)
{
    policy_inside(policy)->values[at] = value;
    policy_inside_load(policy);
}

/* L of the rows, by a step of which nothing stays. */
static double loss_of(struct policy *policy, const float *values)
{
    const double loss = policy_world_learn(&world, policy);
    memcpy(policy_inside(policy)->values, values, policy_inside(policy)->count * sizeof *values);
    policy_inside_load(policy);
    return loss;
}

/* Of all heads, by central differences: of some weights, of all biases of the last layer, and of log_std. The
 * differences of a float32 loss are good to some thousandths. */
START_TEST(the_gradient_is_the_slope_of_the_loss)
{
    const enum world_head head = _i;
    open_world(head, head % 2 == 0 ? vector : bytes, 300);
    world.config.activation = POLICY_TANH; // without corners
    struct policy *policy = policy_world_open(&world, NULL);
    for (size_t d = 0; d < (head == WORLD_FLOATS ? 3 : 0); d++)
        policy_inside(policy)->values[d] = 0.25f * (float)d - 0.5f;
    policy_inside_load(policy);
    float *values = malloc(policy_inside(policy)->count * sizeof *values),
          *gradient = malloc(policy_inside(policy)->count * sizeof *values);
    double largest = 0;
    ck_assert(values != NULL && gradient != NULL);
    memcpy(values, policy_inside(policy)->values, policy_inside(policy)->count * sizeof *values);
    loss_of(policy, values);
    memcpy(gradient, policy_inside(policy)->gradient, policy_inside(policy)->count * sizeof *values);
    for (size_t at = 0; at < policy_inside(policy)->count; at++)
        largest = fmax(largest, fabs((double)gradient[at]));
    for (size_t at = 0; at < policy_inside(policy)->count;
         at += at < 3 || at > policy_inside(policy)->count - 40 ? 1 : 37) {
        const float step = 0x1p-6f;
        set_value(policy, at, values[at] + step);
        const double above = loss_of(policy, values);
        set_value(policy, at, values[at] - step);
        const double slope = (above - loss_of(policy, values)) / (2 * (double)step);
        ck_assert_msg(fabs(slope - (double)gradient[at]) <= 3e-3 * largest, "%zu: %g, expected %g", at,
                      (double)gradient[at], slope);
    }
    free(values);
    free(gradient);
    policy_free(policy);
    policy_world_fini(&world);
}
END_TEST

/* ---- the same bits ---- */

/* Acts and learns three times on an instruction set. False where the processor does not have it. */
static bool play_on(const char *isa, int32_t *actions, float *values)
{
    struct policy *policy = NULL;
    setenv("COALESCED_ISA", isa, 1);
    enum status status = mlp_check_isa(&error);
    if (status == STATUS_OK)
        status = policy_new(&policy, &world.config, NULL, &error);
    unsetenv("COALESCED_ISA");
    if (status == STATUS_UNAVAILABLE)
        return false;
    must(status);
    for (uint32_t episode = 0; episode < 3; episode++) {
        policy_world_act(&world, policy, episode);
        policy_world_learn(&world, policy);
    }
    memcpy(actions, world.actions, policy_world_action_bytes(&world));
    memcpy(values, policy_inside(policy)->values, policy_inside(policy)->count * sizeof *values);
    policy_free(policy);
    return true;
}

START_TEST(instruction_sets_agree_bit_for_bit)
{
    enum { ROWS = 261, VALUES_MAX = 4000 };
    static const char *const sets[] = {"avx2", "avx512"};
    int32_t actions[3 * ROWS] = {0}, expected_actions[3 * ROWS] = {0};
    float values[VALUES_MAX] = {0}, expected[VALUES_MAX] = {0};
    open_world(_i, _i % 2 == 0 ? vector : bytes, ROWS);
    ck_assert(play_on("baseline", expected_actions, expected));
    for (size_t set = 0; set < 2; set++)
        if (play_on(sets[set], actions, values)) {
            ck_assert_mem_eq(actions, expected_actions, policy_world_action_bytes(&world));
            ck_assert_mem_eq(values, expected, sizeof values);
        }
    policy_world_fini(&world);
}
END_TEST

/* In pieces of 1, 2, 3, … rows: the same actions. Masks hold, drawn and greedily. */
START_TEST(a_row_acts_by_itself)
{
    enum { ROWS = 600 };
    int32_t together[3 * ROWS];
    open_world(_i, vector, ROWS);
    struct policy *policy = policy_world_open(&world, NULL);
    policy_world_act(&world, policy, 4);
    ck_assert(policy_world_is_allowed(&world));
    memcpy(together, world.actions, policy_world_action_bytes(&world));
    memset(world.actions, 0xff, policy_world_action_bytes(&world));
    for (uint32_t first = 0, size = 1; first < ROWS; first += size++) {
        struct policy_rows piece = world.batch;
        piece.row += first;
        piece.count = size < ROWS - first ? size : ROWS - first;
        must(policy_act(policy, &piece, 4, world.environment + first, world.step + first, &error));
    }
    ck_assert_mem_eq(together, world.actions, policy_world_action_bytes(&world));
    policy_world_act(&world, policy, 5);
    ck_assert_mem_ne(together, world.actions, policy_world_action_bytes(&world));
    must(policy_choose(policy, &world.batch, &error));
    ck_assert(policy_world_is_allowed(&world));
    policy_free(policy);
    policy_world_fini(&world);
}
END_TEST

/* A byte is its 255th part. */
START_TEST(bytes_are_floats)
{
    open_world(WORLD_CHOICES, bytes, 70);
    struct policy_world same = world;
    float as_floats[70 * 20];
    same.config.observation.dtype = ENVIRONMENT_F32;
    for (size_t i = 0; i < 70 * 20; i++)
        as_floats[i] = (float)((const uint8_t *)world.observations)[i] / 255;
    same.batch.observations = as_floats;
    struct policy *of_bytes = policy_world_open(&world, NULL), *of_floats = policy_world_open(&same, NULL);
    for (int pass = 0; pass < 2; pass++)
        ck_assert(policy_world_learn(&world, of_bytes) == policy_world_learn(&same, of_floats));
    ck_assert_mem_eq(policy_inside(of_bytes)->values, policy_inside(of_floats)->values,
                     policy_inside(of_bytes)->count * sizeof(float));
    policy_free(of_bytes);
    policy_free(of_floats);
    policy_world_fini(&world);
}
END_TEST

/* ---- learning ---- */

/* The tutorial's network too, where it is the one: with one hidden layer of ReLU, and one choice of 5. */
START_TEST(each_head_learns_a_bandit)
{
    const enum world_head head = _i % WORLD_HEADS;
    open_world(head, vector, 64);
    world.config.layers = _i < WORLD_HEADS ? 2 : 1;
    world.config.activation = POLICY_RELU;
    uint16_t keep_bits[64 * 3];
    struct policy *policy = policy_world_open(&world, NULL);
    const bool tutorial = head == WORLD_CHOICE && world.config.layers == 1;
    ck_assert_uint_eq(policy_dropout_words(policy), tutorial ? 3 : 0);
    world.batch.dropout = tutorial ? keep_bits : NULL;
    const double before = policy_world_train(&world, policy, 0);
    const double after = policy_world_train(&world, policy, head == WORLD_FLOATS ? 400 : 150);
    ck_assert_msg(after > before && after > (head == WORLD_FLOATS ? -0.02 : 0.95), "%g, then %g", before,
                  after);
    policy_free(policy);
    policy_world_fini(&world);
}
END_TEST

/* ---- saving ---- */

/* The other policy began with other parameters. */
START_TEST(another_policy_goes_on_with_its_values)
{
    struct policy_values values = {0};
    open_world(_i, bytes, 30);
    struct policy *policy = policy_world_open(&world, NULL);
    world.config.seed++;
    struct policy *other = policy_world_open(&world, NULL);
    must(policy_values_open(&values, &world.config, &error));
    ck_assert_str_eq(params_at(values.params, 0)->name,
                     _i == WORLD_FLOATS ? "log_std" : "mlp_extractor.policy_net.0.weight");
    policy_world_learn(&world, policy);
    policy_world_learn(&world, policy);
    must(policy_save(policy, &values, &error));
    must(policy_restore(other, &values, &error));
    policy_world_learn(&world, policy);
    policy_world_learn(&world, other);
    ck_assert_mem_eq(policy_inside(policy)->values, policy_inside(other)->values,
                     policy_inside(policy)->count * sizeof *policy_inside(policy)->values);
    ck_assert_mem_eq(policy_inside(policy)->second, policy_inside(other)->second,
                     policy_inside(policy)->count * sizeof *policy_inside(policy)->values);
    ck_assert_uint_eq(policy_inside(other)->steps, 3);
    policy_values_close(&values);
    policy_free(policy);
    policy_free(other);
    policy_world_fini(&world);
}
END_TEST

/* ---- bounds, and what is not a number ---- */

START_TEST(actions_are_clipped_for_the_environment)
{
    open_world(WORLD_FLOATS, vector, 1); // -1 … 1, -0.5 … 2, 0 … 0.25
    float actions[] = {-3, 7, 0.125f, 0.5f, -0.5f, NAN, INFINITY, -INFINITY, -0.0f};
    const float expected[] = {-1, 2, 0.125f, 0.5f, -0.5f, 0, 1, -0.5f, 0};
    struct policy *policy = policy_world_open(&world, NULL);
    policy_bound(policy, actions, 3);
    for (size_t i = 0; i < 9; i++)
        ck_assert_msg(actions[i] == expected[i], "%zu: %g, expected %g", i, (double)actions[i],
                      (double)expected[i]);
    policy_free(policy);
    policy_world_fini(&world);
}
END_TEST

/* The nearest float of 0.1 is above it, that of 0.7 below. */
START_TEST(a_clipped_action_is_within_bounds_in_double)
{
    static const double lows[] = {-0.1, -0.7, -0.7}, highs[] = {0.1, 0.7, 0.1};
    open_world(WORLD_FLOATS, vector, 1);
    world.config.action.low = lows;
    world.config.action.high = highs;
    float actions[] = {-9, -9, -9, 9, 9, 9};
    struct policy *policy = policy_world_open(&world, NULL);
    policy_bound(policy, actions, 2);
    for (size_t i = 0; i < 3; i++) {
        ck_assert((double)actions[i] >= lows[i] && (double)actions[i] < lows[i] + 1e-7);
        ck_assert((double)actions[3 + i] <= highs[i] && (double)actions[3 + i] > highs[i] - 1e-7);
    }
    policy_free(policy);
    policy_world_fini(&world);
}
END_TEST

START_TEST(what_is_not_finite_is_told)
{
    double loss = -1;
    open_world(_i, vector, 300);
    struct policy *policy = policy_world_open(&world, NULL);
    world.coefficient[290] = NAN;
    ck_assert_int_eq(policy_learn(policy, &world.batch, world.coefficient, 1, &loss, NULL, NULL, &error),
                     STATUS_INTERNAL);
    ck_assert_msg(strstr(error.text, "returns, row 290 of 300") != NULL, "%s", error.text);
    ck_assert(loss == -1 && policy_inside(policy)->steps == 0);
    set_value(policy, policy_inside(policy)->count - 1, NAN);
    ck_assert_int_eq(policy_choose(policy, &world.batch, &error), STATUS_CORRUPT);
    ck_assert_str_eq(error.text, "the probability of an action is not finite");
    policy_free(policy);
    policy_world_fini(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy_dense");
    TCase *tests = tcase_create("policy_dense");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, the_gradient_is_the_slope_of_the_loss, 0, WORLD_HEADS);
    tcase_add_loop_test(tests, instruction_sets_agree_bit_for_bit, 0, WORLD_HEADS);
    tcase_add_loop_test(tests, a_row_acts_by_itself, 0, WORLD_HEADS);
    tcase_add_test(tests, bytes_are_floats);
    tcase_add_loop_test(tests, each_head_learns_a_bandit, 0, 2 * WORLD_HEADS);
    tcase_add_loop_test(tests, another_policy_goes_on_with_its_values, 0, WORLD_HEADS);
    tcase_add_test(tests, actions_are_clipped_for_the_environment);
    tcase_add_test(tests, a_clipped_action_is_within_bounds_in_double);
    tcase_add_loop_test(tests, what_is_not_finite_is_told, 0, WORLD_HEADS);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
