/* Policies that learn from a replay buffer, behind policy.h: how they act, what they keep, what they refuse.
 * Their gradient steps are test_q_golden.c's. */
#include "test/kernels/policy/mlp_problem.h"
#include "test/worker/model/q_problem.h"
#include "test/workplace.h"
#include "worker/model/policy_parameters.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 600, NUMBERS = ROWS * Q_ACTIONS, BATCH = 40, ALL_FLOATS = 2048 };
#define LR 1e-3

static struct error error;
static struct q_problem problem;
static struct policy *policy;

/* Rows to act on; the last of them lie in the arrays' begin. */
static struct {
    uint32_t row[ROWS], environment[ROWS], step[ROWS];
    float observations[ROWS * Q_INPUTS];
    union {
        float floats[NUMBERS];
        int32_t choices[ROWS];
    } actions;
    uint8_t allowed[NUMBERS];
} world;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void open_policy(enum policy_learning learning)
{
    q_problem_init(&problem, learning, BATCH, 5);
    must(policy_new(&policy, &problem.config, NULL, &error));
}

static void reopen_policy(void)
{
    policy_free(policy);
    must(policy_new(&policy, &problem.config, NULL, &error));
}

static void setup(void)
{
    uint64_t state = 9;
    for (uint32_t i = 0; i < ROWS; i++) {
        world.row[i] = ROWS - 1 - i;
        world.environment[i] = i / 2;
        world.step[i] = 7 + i % 2;
    }
    for (uint32_t i = 0; i < ROWS * Q_INPUTS; i++)
        world.observations[i] = 2 * mlp_problem_number(&state);
    for (uint32_t i = 0; i < NUMBERS; i++)
        world.allowed[i] = mlp_problem_number(&state) > 0 || i % Q_ACTIONS == i / Q_ACTIONS % Q_ACTIONS;
    memset(&world.actions, 0, sizeof world.actions);
}

static void teardown(void)
{
    policy_free(policy);
    policy = NULL;
}

/* `count` of the rows from `first` on. */
static struct policy_rows rows_from(uint32_t first, uint32_t count, bool masked)
{
    return (struct policy_rows){.count = count,
                                .row = world.row + first,
                                .observations = world.observations,
                                .actions = &world.actions,
                                .allowed = masked ? world.allowed : NULL};
}

static void act_from(uint32_t first, uint32_t count, bool masked, uint32_t episode)
{
    const struct policy_rows rows = rows_from(first, count, masked);
    must(policy_act(policy, &rows, episode, world.environment + first, world.step + first, &error));
}

static void act(struct policy_exploration exploration, bool masked, uint32_t episode)
{
    policy_explore(policy, &exploration);
    act_from(0, ROWS, masked, episode);
}

static void choose(bool masked)
{
    const struct policy_rows rows = rows_from(0, ROWS, masked);
    must(policy_choose(policy, &rows, &error));
}

/* Copies of all rows' actions. */
static void take_choices(int32_t to[ROWS])
{
    memcpy(to, world.actions.choices, sizeof world.actions.choices);
}

static void take_floats(float to[NUMBERS])
{
    memcpy(to, world.actions.floats, sizeof world.actions.floats);
}

/* ---- parameters ---- */

static struct policy_parameter list[POLICY_PARAMETERS_MAX];

/* Opens a copy of the policy's values. */
static void save_values(struct policy_values *values)
{
    *values = (struct policy_values){0};
    must(policy_values_open(values, &problem.config, &error));
    must(policy_save(policy, values, &error));
}

/* A copy of all floats of an array. Returns how many there are. */
static size_t take_parameters(float to[ALL_FLOATS], enum policy_array array)
{
    struct policy_values values;
    save_values(&values);
    const uint32_t count = policy_parameters(list, &problem.config);
    const size_t floats = list[count - 1].offset + list[count - 1].count;
    ck_assert_uint_le(floats, ALL_FLOATS);
    for (uint32_t p = 0; p < count; p++)
        memcpy(to + list[p].offset, policy_values_at(&values, p, array), list[p].count * sizeof *to);
    policy_values_close(&values);
    return floats;
}

/* Writes the last number of a parameter. */
static void spoil_parameter(uint32_t number, float value)
{
    struct policy_values values;
    save_values(&values);
    policy_values_at(&values, number, POLICY_VALUES)[list[number].count - 1] = value;
    must(policy_restore(policy, &values, &error));
    policy_values_close(&values);
}

/* The outputs of two hidden layers with ReLU and a last one, in double. `at`: the parameters. */
static void run_layers(const float *at, const float *x, uint32_t outputs, double y[])
{
    const uint32_t widths[] = {Q_INPUTS, 16, 8, outputs};
    double from[16], to[16];
    for (uint32_t i = 0; i < Q_INPUTS; i++)
        from[i] = (double)x[i];
    for (uint32_t l = 0; l < 3; l++) {
        const float *bias = at + (size_t)widths[l] * widths[l + 1];
        for (uint32_t o = 0; o < widths[l + 1]; o++) {
            to[o] = (double)bias[o];
            for (uint32_t i = 0; i < widths[l]; i++)
                to[o] += (double)at[o * widths[l] + i] * from[i];
            to[o] = l < 2 ? fmax(0, to[o]) : to[o];
        }
        memcpy(from, to, sizeof from);
        at = bias + widths[l + 1];
    }
    memcpy(y, to, outputs * sizeof *y);
}

/* ---- choosing ---- */

START_TEST(dqn_chooses_the_greatest_value_that_is_allowed)
{
    static float values[ALL_FLOATS];
    const bool masked = _i % 2 == 1;
    uint32_t seen[Q_ACTIONS] = {0};
    open_policy(POLICY_DQN);
    take_parameters(values, POLICY_VALUES);
    choose(masked);
    for (uint32_t r = 0; r < ROWS; r++) {
        const uint8_t *allowed = world.allowed + (size_t)r * Q_ACTIONS;
        const int32_t choice = world.actions.choices[r];
        double value[Q_ACTIONS];
        run_layers(values, world.observations + (size_t)r * Q_INPUTS, Q_ACTIONS, value);
        ck_assert(choice >= 0 && choice < Q_ACTIONS);
        ck_assert(!masked || allowed[choice]);
        for (uint32_t a = 0; a < Q_ACTIONS; a++)
            ck_assert_msg((masked && !allowed[a]) || value[a] <= value[choice] + 1e-6, "row %u", r);
        seen[choice]++;
    }
    ck_assert(seen[0] < ROWS && seen[1] < ROWS && seen[2] < ROWS);
}
END_TEST

START_TEST(td3_chooses_its_actors_action)
{
    static float values[ALL_FLOATS];
    open_policy(POLICY_TD3);
    take_parameters(values, POLICY_VALUES);
    choose(false);
    for (uint32_t r = 0; r < ROWS; r++) {
        double sums[Q_ACTIONS];
        run_layers(values, world.observations + (size_t)r * Q_INPUTS, Q_ACTIONS, sums);
        for (uint32_t a = 0; a < Q_ACTIONS; a++)
            ck_assert_double_eq_tol((double)world.actions.floats[r * Q_ACTIONS + a], tanh(sums[a]), 1e-6);
    }
}
END_TEST

/* The actor's last layer has the means' weights and the deviations', then the biases of both: one layer of 6
 * outputs, whose first three are means. */
START_TEST(sac_chooses_its_mean)
{
    static float values[ALL_FLOATS];
    open_policy(POLICY_SAC);
    take_parameters(values, POLICY_VALUES);
    choose(false);
    for (uint32_t r = 0; r < ROWS; r++) {
        double outputs[2 * Q_ACTIONS];
        run_layers(values, world.observations + (size_t)r * Q_INPUTS, 2 * Q_ACTIONS, outputs);
        for (uint32_t a = 0; a < Q_ACTIONS; a++)
            ck_assert_double_eq_tol((double)world.actions.floats[r * Q_ACTIONS + a], tanh(outputs[a]), 1e-6);
    }
}
END_TEST

/* ---- exploring ---- */

/* Pearson's statistic of counts that should be equal. */
static double chi_square(const uint32_t *count, uint32_t bins)
{
    double sum = 0, statistic = 0;
    for (uint32_t b = 0; b < bins; b++)
        sum += count[b];
    for (uint32_t b = 0; b < bins; b++)
        statistic += (count[b] - sum / bins) * (count[b] - sum / bins) / (sum / bins);
    return statistic;
}

/* How many rows have another choice than the greedy one. */
static uint32_t count_others(double epsilon, bool masked)
{
    int32_t greedy[ROWS];
    uint32_t others = 0;
    choose(masked);
    take_choices(greedy);
    act((struct policy_exploration){.epsilon = epsilon}, masked, 3);
    for (uint32_t r = 0; r < ROWS; r++) {
        ck_assert(!masked || world.allowed[r * Q_ACTIONS + (uint32_t)world.actions.choices[r]]);
        others += world.actions.choices[r] != greedy[r];
    }
    return others;
}

/* Of three choices, a random one is another in two of three rows. */
START_TEST(epsilon_is_the_share_of_random_choices)
{
    open_policy(POLICY_DQN);
    ck_assert_uint_eq(count_others(0, false), 0);
    ck_assert_uint_eq(count_others(0, true), 0);
    ck_assert_double_eq_tol(count_others(1, false) / (double)ROWS, 2 / 3.0, 0.06);
    ck_assert_double_eq_tol(count_others(0.3, false) / (double)ROWS, 0.2, 0.05);
    ck_assert_uint_gt(count_others(1, true), ROWS / 6);
}
END_TEST

/* Of every set of choices that is allowed; 13.8 and 10.8 are exceeded once in 1,000. */
START_TEST(random_choices_are_even)
{
    uint32_t count[1 << Q_ACTIONS][Q_ACTIONS] = {{0}}, sets = 0;
    const bool by_epsilon = _i == 1;
    open_policy(POLICY_DQN);
    for (uint32_t episode = 0; episode < 10; episode++) {
        act((struct policy_exploration){.is_random = !by_epsilon, .epsilon = by_epsilon}, true, episode);
        for (uint32_t r = 0; r < ROWS; r++) {
            const uint8_t *allowed = world.allowed + (size_t)r * Q_ACTIONS;
            count[allowed[0] + 2 * allowed[1] + 4 * allowed[2]][world.actions.choices[r]]++;
        }
    }
    for (uint32_t set = 1; set < 1 << Q_ACTIONS; set++) {
        uint32_t mine[Q_ACTIONS], bins = 0;
        for (uint32_t a = 0; a < Q_ACTIONS; a++)
            if (set >> a & 1)
                mine[bins++] = count[set][a];
            else
                ck_assert_uint_eq(count[set][a], 0);
        ck_assert_uint_gt(mine[0], 100);
        ck_assert_msg(chi_square(mine, bins) < (bins == 3 ? 13.8 : 10.8), "set %u", set);
        sets += bins > 1;
    }
    ck_assert_uint_eq(sets, 4);
}
END_TEST

/* 20 bins: 43.8 is exceeded once in 1,000. */
START_TEST(random_floats_are_even)
{
    enum { BINS = 20 };
    uint32_t count[Q_ACTIONS][BINS] = {{0}};
    open_policy(_i == 0 ? POLICY_SAC : POLICY_TD3);
    for (uint32_t episode = 0; episode < 10; episode++) {
        act((struct policy_exploration){.is_random = true}, false, episode);
        for (uint32_t i = 0; i < NUMBERS; i++) {
            const double action = (double)world.actions.floats[i];
            ck_assert(action >= -1 && action <= 1);
            count[i % Q_ACTIONS][(uint32_t)fmin(BINS - 1, (action + 1) / 2 * BINS)]++;
        }
    }
    for (uint32_t a = 0; a < Q_ACTIONS; a++)
        ck_assert_msg(chi_square(count[a], BINS) < 43.8, "number %u: %g", a, chi_square(count[a], BINS));
}
END_TEST

/* Means, deviations and the correlation of two series. */
struct moments {
    double mean[2], deviation[2], correlation;
};

static struct moments moments_of(const double *x, const double *y, uint32_t count)
{
    double sum[2] = {0}, square[2] = {0}, product = 0;
    for (uint32_t i = 0; i < count; i++) {
        const double pair[2] = {x[i], y[i]};
        for (int s = 0; s < 2; s++) {
            sum[s] += pair[s] / count;
            square[s] += pair[s] * pair[s] / count;
        }
        product += x[i] * y[i] / count;
    }
    struct moments found = {{sum[0], sum[1]}, {0}, 0};
    for (int s = 0; s < 2; s++)
        found.deviation[s] = sqrt(square[s] - sum[s] * sum[s]);
    found.correlation = (product - sum[0] * sum[1]) / (found.deviation[0] * found.deviation[1]);
    return found;
}

/* SAC draws by its actor's means and deviations, and other environments have other draws: those of the row
 * that is two further are of the same step. Draws that tanh has rounded are left out. */
START_TEST(sac_draws_from_its_distribution)
{
    static float values[ALL_FLOATS];
    static double draws[NUMBERS], others[NUMBERS];
    uint32_t count = 0;
    open_policy(POLICY_SAC);
    take_parameters(values, POLICY_VALUES);
    act((struct policy_exploration){0}, false, 1);
    for (uint32_t r = 0; r < ROWS; r++) {
        double outputs[2 * Q_ACTIONS];
        run_layers(values, world.observations + (size_t)r * Q_INPUTS, 2 * Q_ACTIONS, outputs);
        for (uint32_t a = 0; a < Q_ACTIONS; a++) {
            const double sum = atanh((double)world.actions.floats[r * Q_ACTIONS + a]);
            draws[r * Q_ACTIONS + a] = (sum - outputs[a]) / exp(outputs[Q_ACTIONS + a]);
        }
    }
    for (uint32_t i = 0; i + 2 * Q_ACTIONS < NUMBERS; i++)
        if (fabs(draws[i]) < 6 && fabs(draws[i + 2 * Q_ACTIONS]) < 6) {
            draws[count] = draws[i];
            others[count++] = draws[i + 2 * Q_ACTIONS];
        }
    const struct moments found = moments_of(draws, others, count);
    ck_assert_uint_gt(count, NUMBERS - 50);
    ck_assert_double_eq_tol(found.mean[0], 0, 0.07);
    ck_assert_double_eq_tol(found.deviation[0], 1, 0.06);
    ck_assert_msg(fabs(found.correlation) < 0.07, "%g", found.correlation);
}
END_TEST

/* Normal noise has the configuration's deviation, and SAC's own draws do not tell it. Of draws that keep away
 * from the clip. */
START_TEST(noise_is_added_to_the_action)
{
    static float chosen[NUMBERS], drawn[NUMBERS];
    static double own[NUMBERS], added[NUMBERS];
    const bool is_sac = _i == 1;
    uint32_t count = 0;
    open_policy(is_sac ? POLICY_SAC : POLICY_TD3);
    problem.config.q.noise = POLICY_NORMAL_NOISE;
    problem.config.q.noise_std = 0.05;
    reopen_policy();
    choose(false);
    take_floats(chosen);
    act((struct policy_exploration){0}, false, 1);
    take_floats(drawn);
    for (uint32_t i = 0; i < NUMBERS; i++)
        ck_assert(is_sac || (!(chosen[i] < drawn[i]) && !(chosen[i] > drawn[i])));
    act((struct policy_exploration){.has_noise = true}, false, 1);
    for (uint32_t i = 0; i < NUMBERS; i++) {
        ck_assert(fabsf(world.actions.floats[i]) <= 1);
        if (fabsf(drawn[i]) > 0.75f)
            continue;
        own[count] = is_sac ? atanh((double)drawn[i]) - atanh((double)chosen[i]) : (double)chosen[i];
        added[count++] = (double)world.actions.floats[i] - (double)drawn[i];
    }
    ck_assert_uint_gt(count, ROWS);
    const struct moments found = moments_of(own, added, count);
    ck_assert_double_eq_tol(found.mean[1], 0, 0.005);
    ck_assert_double_eq_tol(found.deviation[1], 0.05, 0.003);
    ck_assert_msg(fabs(found.correlation) < 0.1, "%g", found.correlation);
}
END_TEST

START_TEST(an_action_with_noise_is_clipped)
{
    uint32_t at_bound = 0;
    open_policy(POLICY_TD3);
    problem.config.q.noise = POLICY_NORMAL_NOISE;
    problem.config.q.noise_std = 2;
    reopen_policy();
    for (int random = 0; random < 2; random++) {
        act((struct policy_exploration){.has_noise = true, .is_random = random == 1}, false, 1);
        for (uint32_t i = 0; i < NUMBERS; i++) {
            ck_assert(fabsf(world.actions.floats[i]) <= 1);
            at_bound += fabsf(world.actions.floats[i]) >= 1;
        }
    }
    ck_assert_uint_gt(at_bound, NUMBERS / 2);
}
END_TEST

/* Rows of two steps of each environment: row r + 300 follows row r. A process that has just begun has one
 * normal draw's deviation, std sqrt(dt); then each state follows from the one before and another such draw.
 */
START_TEST(ornsteins_and_uhlenbecks_noise_goes_on)
{
    enum { HALF = ROWS / 2, LATER = HALF * Q_ACTIONS };
    static float states[NUMBERS + LATER], chosen[NUMBERS];
    static double first[LATER], second[LATER];
    uint8_t starts[ROWS] = {0};
    open_policy(POLICY_TD3);
    problem.config.q.noise = POLICY_ORNSTEIN_UHLENBECK;
    problem.config.q.noise_std = 0.5;
    reopen_policy();
    ck_assert_uint_eq(policy_state_floats(policy), Q_ACTIONS);
    choose(false);
    take_floats(chosen);
    for (uint32_t i = 0; i < LATER; i++)
        states[i] = i % 2 == 0 ? 0.3f : NAN;
    for (uint32_t r = 0; r < HALF; r++) {
        world.row[r] = r;
        world.environment[r] = r;
        world.step[r] = 1;
        starts[r] = 1; // what stands there counts as zeros
    }
    struct policy_rows rows = rows_from(0, HALF, false);
    rows.states = states;
    rows.starts = starts;
    rows.next = HALF;
    policy_explore(policy, &(struct policy_exploration){.has_noise = true});
    must(policy_act(policy, &rows, 1, world.environment, world.step, &error));
    for (uint32_t r = 0; r < HALF; r++) {
        world.row[r] += HALF;
        world.step[r]++;
    }
    must(policy_act(policy, &rows, 1, world.environment, world.step, &error));
    for (uint32_t i = 0; i < LATER; i++) {
        const double begun = (double)states[LATER + i], went_on = (double)states[2 * LATER + i];
        const float sum = chosen[LATER + i] + states[2 * LATER + i];
        ck_assert(world.actions.floats[LATER + i] == fmaxf(-1, fminf(1, sum)));
        first[i] = begun;
        second[i] = went_on - (1 - 0.15 * 0.01) * begun;
    }
    const struct moments found = moments_of(first, second, LATER);
    for (int s = 0; s < 2; s++) {
        ck_assert_double_eq_tol(found.mean[s], 0, 0.005);
        ck_assert_double_eq_tol(found.deviation[s], 0.05, 0.004);
    }
    ck_assert(fabs(found.correlation) < 0.12);
}
END_TEST

/* ---- the same actions ---- */

static const enum policy_learning kinds[] = {POLICY_DQN, POLICY_SAC, POLICY_TD3};
enum { KINDS = 3 };

static const struct policy_exploration explorations[] = {
    {0}, {.epsilon = 0.5, .has_noise = true}, {.is_random = true}};

/* In pieces of 1, 2, 3, … rows, the last ones first: the same actions. Another episode has others. */
START_TEST(a_row_acts_by_itself)
{
    static float together[NUMBERS];
    const bool masked = kinds[_i] == POLICY_DQN;
    open_policy(kinds[_i]);
    problem.config.q.noise = POLICY_NORMAL_NOISE;
    problem.config.q.noise_std = 0.2;
    reopen_policy();
    for (size_t e = 0; e < sizeof explorations / sizeof *explorations; e++) {
        const size_t bytes = kinds[_i] == POLICY_DQN ? sizeof world.actions.choices : sizeof together;
        act(explorations[e], masked, 4);
        take_floats(together);
        memset(&world.actions, 0, sizeof world.actions);
        for (uint32_t left = ROWS, count = 1; left > 0; left -= count) {
            count = count + 1 < left ? count + 1 : left;
            act_from(left - count, count, masked, 4);
        }
        ck_assert_mem_eq(&world.actions, together, bytes);
        act_from(0, ROWS, masked, 5);
        ck_assert_int_eq(memcmp(&world.actions, together, bytes) == 0, kinds[_i] != POLICY_SAC && e == 0);
    }
}
END_TEST

START_TEST(actions_are_stretched_to_the_environments_bounds)
{
    const float nan = NAN;
    float actions[] = {-1, -1, -1, 1, 1, 1, 0, 0, 0, 0.5f, -0.5f, 0.25f, -2, 3, nan};
    static const float expected[] = {-2, 0, -1, 2, 1, 3, 0, 0.5f, 1, 1, 0.25f, 1.5f, -2, 1, -1};
    open_policy(_i == 0 ? POLICY_SAC : POLICY_TD3);
    policy_bound(policy, actions, 5);
    ck_assert_mem_eq(actions, expected, sizeof expected);
}
END_TEST

/* ---- learning ---- */

static struct policy_q_losses fit(void)
{
    struct policy_q_losses losses;
    q_problem_draw(&problem);
    must(policy_fit(policy, &problem.batch, LR, &losses, &error));
    if (problem.config.learning == POLICY_DQN)
        must(policy_follow(policy, &error));
    return losses;
}

static void expect_same_parameters(struct policy *other)
{
    static float mine[ALL_FLOATS], others[ALL_FLOATS];
    struct policy *const own = policy;
    for (int array = 0; array < POLICY_ARRAYS; array++) {
        const size_t floats = take_parameters(mine, array);
        policy = other;
        take_parameters(others, array);
        policy = own;
        ck_assert_mem_eq(mine, others, floats * sizeof *mine);
    }
    ck_assert_uint_eq(policy_fits(own), policy_fits(other));
}

/* The other policy has taken other steps before. With a delay of 2 the values are saved between two steps of
 * TD3's actor. */
START_TEST(another_policy_goes_on_with_its_values)
{
    struct policy_values values;
    struct policy *other, *own;
    open_policy(kinds[_i]);
    own = policy;
    must(policy_new(&other, &problem.config, NULL, &error));
    policy = other;
    fit();
    policy = own;
    for (int step = 0; step < 3; step++)
        fit();
    save_values(&values);
    ck_assert_uint_eq(values.steps, 3);
    must(policy_restore(other, &values, &error));
    policy_values_close(&values);
    expect_same_parameters(other);
    for (int step = 0; step < 3; step++) {
        const uint64_t state = problem.state;
        const struct policy_q_losses expected = fit();
        problem.state = state;
        policy = other;
        const struct policy_q_losses found = fit();
        policy = own;
        ck_assert_mem_eq(&found.critic, &expected.critic, sizeof found.critic);
    }
    expect_same_parameters(other);
    policy_free(other);
}
END_TEST

/* Acts and learns three times on an instruction set. False where the processor does not have it. */
static bool play_on(const char *isa, float values[ALL_FLOATS], float actions[NUMBERS])
{
    setenv("COALESCED_ISA", isa, 1);
    enum status status = mlp_check_isa(&error);
    if (status == STATUS_OK)
        status = policy_new(&policy, &problem.config, NULL, &error);
    unsetenv("COALESCED_ISA");
    if (status == STATUS_UNAVAILABLE)
        return false;
    must(status);
    problem.state = 1;
    for (int step = 0; step < 3; step++)
        fit();
    act((struct policy_exploration){.epsilon = 0.1, .has_noise = true}, false, 2);
    take_floats(actions);
    take_parameters(values, POLICY_VALUES);
    teardown();
    return true;
}

START_TEST(instruction_sets_agree_bit_for_bit)
{
    static const char *const sets[] = {"avx2", "avx512"};
    static float values[ALL_FLOATS], expected[ALL_FLOATS], actions[NUMBERS], expected_actions[NUMBERS];
    q_problem_init(&problem, kinds[_i], Q_ROWS_MAX, 5);
    problem.config.q.noise = POLICY_NORMAL_NOISE;
    problem.config.q.noise_std = 0.2;
    ck_assert(play_on("baseline", expected, expected_actions));
    for (size_t set = 0; set < 2; set++)
        if (play_on(sets[set], values, actions)) {
            ck_assert_mem_eq(values, expected, sizeof values);
            ck_assert_mem_eq(actions, expected_actions, sizeof actions);
        }
}
END_TEST

/* DQN's errors, by which rows are drawn: of the values before the step, without weights. A policy whose rate
 * is almost 0 has the same loss again, which one row alone then has as f(its error). */
START_TEST(dqn_tells_each_rows_error)
{
    static float errors[BATCH];
    struct policy_q_losses losses;
    double expected = 0;
    open_policy(POLICY_DQN);
    problem.has_weights = true;
    q_problem_draw(&problem);
    problem.batch.errors = errors;
    must(policy_fit(policy, &problem.batch, 1e-20, &losses, &error));
    for (uint32_t r = 0; r < BATCH; r++) {
        const double size = (double)errors[r];
        expected += (double)problem.weights[r] * (size < 1 ? size * size / 2 : size - 0.5) / BATCH;
    }
    ck_assert_double_eq_tol(losses.critic, expected, 1e-6 * expected);
}
END_TEST

/* ---- what is not finite ---- */

/* The step fails, and nothing has changed. */
static void expect_refusal(const char *tensor)
{
    static float before[ALL_FLOATS], after[ALL_FLOATS];
    struct policy_q_losses losses;
    const uint64_t steps = policy_fits(policy);
    for (int array = 0; array < POLICY_ARRAYS; array++) {
        const size_t floats = take_parameters(before, array);
        ck_assert_int_eq(policy_fit(policy, &problem.batch, LR, &losses, &error), STATUS_INTERNAL);
        ck_assert_msg(strstr(error.text, tensor) != NULL, "\"%s\" does not name %s", error.text, tensor);
        take_parameters(after, array);
        ck_assert_mem_eq(before, after, floats * sizeof *before);
    }
    ck_assert_uint_eq(policy_fits(policy), steps);
}

START_TEST(a_batch_that_is_not_finite_is_told)
{
    enum { ROW = BATCH - 1 };
    const float nan = NAN;
    open_policy(kinds[_i]);
    problem.has_weights = kinds[_i] == POLICY_DQN;
    fit();
    struct {
        const char *name;
        float *at, value;
    } tensors[] = {
        {"is the observations", &problem.observations.floats[ROW * Q_INPUTS + 1], nan},
        {"is the next observations", &problem.next_observations.floats[ROW * Q_INPUTS], nan},
        {"is the rewards", &problem.rewards[ROW], INFINITY},
        {kinds[_i] == POLICY_DQN ? "is the weights" : "is the actions",
         kinds[_i] == POLICY_DQN ? &problem.weights[ROW] : &problem.actions.floats[ROW * Q_ACTIONS + 2],
         nan}};
    problem.terminated[ROW] = 0;
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++) {
        const float kept = *tensors[t].at;
        *tensors[t].at = tensors[t].value;
        expect_refusal(tensors[t].name);
        *tensors[t].at = kept;
    }
    fit();
}
END_TEST

/* Of every parameter, the targets among them, a NaN as its last number. TD3's actor learns with each second
 * step alone, so the first one may pass. */
START_TEST(a_parameter_that_is_not_finite_is_told)
{
    open_policy(kinds[_i]);
    const uint32_t count = policy_parameters(list, &problem.config);
    for (uint32_t p = 0; p < count; p++) {
        struct policy_q_losses losses;
        char expected[POLICY_NAME_BYTES + 16];
        enum status status = STATUS_OK;
        snprintf(expected, sizeof expected, "parameter %s", list[p].name);
        reopen_policy();
        spoil_parameter(p, NAN);
        for (int step = 0; step < 2 && status == STATUS_OK; step++) {
            q_problem_draw(&problem);
            status = policy_fit(policy, &problem.batch, LR, &losses, &error);
        }
        ck_assert_msg(status == STATUS_INTERNAL, "%s passes", list[p].name);
        ck_assert_msg(strstr(error.text, expected) != NULL, "\"%s\", not of %s", error.text, list[p].name);
    }
}
END_TEST

START_TEST(a_choice_that_is_not_finite_is_told)
{
    open_policy(kinds[_i]);
    const uint32_t count = policy_parameters(list, &problem.config);
    const struct policy_rows rows = rows_from(0, ROWS, false);
    uint32_t last = 0; // of the network that acts
    while (last + 1 < count && !list[last + 1].is_target && strncmp(list[last + 1].name, "critic.", 7) != 0)
        last++;
    spoil_parameter(kinds[_i] == POLICY_SAC ? last - 1 : last, NAN); // SAC's last one is of the deviations
    ck_assert_int_eq(policy_choose(policy, &rows, &error), STATUS_CORRUPT);
    ck_assert_str_eq(error.text, kinds[_i] == POLICY_DQN ? "the value of an action is not finite"
                                                         : "an action is not finite");
}
END_TEST

/* ---- refused configurations ---- */

static void expect_refused(const char *words)
{
    ck_assert_int_eq(policy_new(&policy, &problem.config, NULL, &error), STATUS_INVALID);
    ck_assert_ptr_null(policy);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" does not say \"%s\"", error.text, words);
}

START_TEST(actions_that_do_not_fit_are_refused)
{
    static const uint32_t choices[] = {3, 2};
    static const double low[] = {-1, -INFINITY, 0}, high[] = {1, 1, 1};
    q_problem_init(&problem, POLICY_SAC, BATCH, 5);
    problem.config.learning = POLICY_DQN;
    expect_refused("the environment's action is floats: expected \"sac\", \"td3\", \"ppo\" or \"a2c\"");
    problem.config.action =
        (struct environment_space){.dtype = ENVIRONMENT_I32, .rank = 1, .shape = {2}, .choices = choices};
    expect_refused("the environment's action is several choices: expected \"sac\"");
    for (int k = 1; k < KINDS; k++) {
        q_problem_init(&problem, POLICY_DQN, BATCH, 5);
        problem.config.learning = kinds[k];
        expect_refused("the environment's action is a choice: expected \"dqn\", \"ppo\" or \"a2c\"");
        q_problem_init(&problem, kinds[k], BATCH, 5);
        problem.config.action.low = low;
        problem.config.action.high = high;
        expect_refused("number 1 of the environment's action lies in -inf..1");
        expect_refused("expect finite bounds");
    }
}
END_TEST

START_TEST(networks_that_do_not_fit_are_refused)
{
    q_problem_init(&problem, kinds[_i], BATCH, 5);
    problem.config.width[1] = DENSE_WIDTH_MAX + 1;
    expect_refused("/policy/hidden: expected 1..1024 units in a hidden layer, got 1025");
    problem.config.width[1] = 0;
    expect_refused("/policy/hidden: expected 1..1024 units in a hidden layer, got 0");
    q_problem_init(&problem, kinds[_i], BATCH, 5);
    problem.config.dropout = 0.5;
    expect_refused("/policy/dropout: expected 0, got 0.5");
    q_problem_init(&problem, kinds[_i], BATCH, 5);
    problem.config.q.critic_width[1] = 1025;
    if (kinds[_i] != POLICY_DQN)
        expect_refused("/policy/hidden: expected 1..1024 units in a hidden layer, got 1025");
    q_problem_init(&problem, kinds[_i], BATCH, 5);
    problem.config.adam.beta1 = 1;
    ck_assert_int_eq(policy_new(&policy, &problem.config, NULL, &error), STATUS_INVALID);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("q_policy");
    TCase *tests = tcase_create("q_policy");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_loop_test(tests, dqn_chooses_the_greatest_value_that_is_allowed, 0, 2);
    tcase_add_test(tests, td3_chooses_its_actors_action);
    tcase_add_test(tests, sac_chooses_its_mean);
    tcase_add_test(tests, epsilon_is_the_share_of_random_choices);
    tcase_add_loop_test(tests, random_choices_are_even, 0, 2);
    tcase_add_loop_test(tests, random_floats_are_even, 0, 2);
    tcase_add_test(tests, sac_draws_from_its_distribution);
    tcase_add_loop_test(tests, noise_is_added_to_the_action, 0, 2);
    tcase_add_test(tests, an_action_with_noise_is_clipped);
    tcase_add_test(tests, ornsteins_and_uhlenbecks_noise_goes_on);
    tcase_add_loop_test(tests, a_row_acts_by_itself, 0, KINDS);
    tcase_add_loop_test(tests, actions_are_stretched_to_the_environments_bounds, 0, 2);
    tcase_add_loop_test(tests, another_policy_goes_on_with_its_values, 0, KINDS);
    tcase_add_loop_test(tests, instruction_sets_agree_bit_for_bit, 0, KINDS);
    tcase_add_test(tests, dqn_tells_each_rows_error);
    tcase_add_loop_test(tests, a_batch_that_is_not_finite_is_told, 0, KINDS);
    tcase_add_loop_test(tests, a_parameter_that_is_not_finite_is_told, 0, KINDS);
    tcase_add_loop_test(tests, a_choice_that_is_not_finite_is_told, 0, KINDS);
    tcase_add_test(tests, actions_that_do_not_fit_are_refused);
    tcase_add_loop_test(tests, networks_that_do_not_fit_are_refused, 0, KINDS);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
