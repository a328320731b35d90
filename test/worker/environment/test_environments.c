/* The interface of every environment: counting, truncation, resets keyed by position, and
 * results that do not depend on how environments are spread over objects. */
#include "worker/environment/environments.h"

#include "kernels/base/rng.h"
#include "test/workplace.h"
#include "worker/environment/cartpole.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = CARTPOLE_STATE_SIZE };

static struct environments *make(uint64_t seed, uint32_t first, uint32_t count)
{
    struct environments *environments = NULL;
    struct error error = {0};
    ck_assert_int_eq(environments_new(&environments, seed, first, count, &error), STATUS_OK);
    ck_assert_ptr_nonnull(environments);
    return environments;
}

static uint8_t step_one(struct environments *environments, uint32_t index, uint8_t action)
{
    float reward = -1;
    uint8_t flags = 99;
    environments_step(environments, 1, &index, &action, &reward, &flags);
    ck_assert_float_eq(reward, 1.0f);
    ck_assert_uint_eq(flags & ~(unsigned)ENVIRONMENT_FLAGS, 0);
    return flags;
}

static void observe_one(const struct environments *environments, uint32_t index, float observation[SIZE])
{
    environments_observe(environments, 1, &index, observation);
}

/* Holds the pole up and the cart near the middle for as long as one likes. */
static uint8_t balance(const float observation[SIZE])
{
    return observation[2] + 0.5f * observation[3] + 0.05f * observation[0] + 0.1f * observation[1] > 0;
}

START_TEST(reset_is_keyed_by_seed_number_episode_step)
{
    static const struct rng_key keys[] = {
        {.seed = 1, .environment = 5, .step = 3, .episode = 4},
        {.seed = 2, .environment = 5, .step = 3, .episode = 4},
        {.seed = 1 | 1ull << 32, .environment = 5, .step = 3, .episode = 4},
        {.seed = 1, .environment = 6, .step = 3, .episode = 4},
        {.seed = 1, .environment = 5, .step = 4, .episode = 4},
        {.seed = 1, .environment = 5, .step = 3, .episode = 5},
    };
    enum { KEYS = sizeof keys / sizeof keys[0] };
    float seen[KEYS][SIZE];
    for (size_t k = 0; k < KEYS; k++) {
        /* Number 5 as the third of those from 3: by number, not by place. */
        struct environments *environments = make(keys[k].seed, keys[k].environment - 2, 4);
        environments_reset(environments, 2, keys[k].episode, keys[k].step);
        observe_one(environments, 2, seen[k]);
        double state[SIZE];
        cartpole_reset(state, 1, 0, &keys[k]);
        for (int value = 0; value < SIZE; value++)
            ck_assert_float_eq(seen[k][value], (float)state[value]);
        for (size_t other = 0; other < k; other++)
            for (int value = 0; value < SIZE; value++)
                ck_assert_float_ne(seen[k][value], seen[other][value]);
        environments_free(environments);
    }
}
END_TEST

START_TEST(truncated_at_500_and_not_before)
{
    struct environments *environments = make(543, 0, 2);
    for (uint32_t episode = 0; episode < 3; episode++) {
        environments_reset(environments, 1, episode, 0);
        for (int step = 1; step <= 500; step++) {
            float observation[SIZE];
            observe_one(environments, 1, observation);
            uint8_t flags = step_one(environments, 1, balance(observation));
            ck_assert_msg(flags == (step == 500 ? ENVIRONMENT_TRUNCATED : 0), "step %d: flags %u", step,
                          flags);
        }
    }
    environments_free(environments);
}
END_TEST

START_TEST(reset_in_the_middle_counts_anew)
{
    struct environments *environments = make(543, 0, 1);
    environments_reset(environments, 0, 0, 0);
    int steps = 0;
    for (uint8_t flags = 0; flags == 0; steps++) {
        float observation[SIZE];
        if (steps == 300)
            environments_reset(environments, 0, 0, 300);
        observe_one(environments, 0, observation);
        flags = step_one(environments, 0, balance(observation));
    }
    ck_assert_int_eq(steps, 800);
    environments_free(environments);
}
END_TEST

START_TEST(pushed_one_way_it_terminates)
{
    struct environments *environments = make(9, 0, 1);
    for (uint8_t action = 0; action < 2; action++) {
        environments_reset(environments, 0, action, 0);
        double values[SIZE];
        cartpole_reset(values, 1, 0, &(struct rng_key){.seed = 9, .episode = action});
        struct cartpole_state state = {values[0], values[1], values[2], values[3]};
        for (bool terminated = false; !terminated;) {
            state = cartpole_transition(state, action);
            terminated = cartpole_terminated(state);
            ck_assert_uint_eq(step_one(environments, 0, action), terminated ? ENVIRONMENT_TERMINATED : 0);
            float observation[SIZE];
            observe_one(environments, 0, observation);
            const float expected[] = {(float)state.x, (float)state.x_dot, (float)state.theta,
                                      (float)state.theta_dot};
            ck_assert_mem_eq(observation, expected, sizeof expected);
        }
        ck_assert((state.theta < 0) == (action == 1)); /* the pole falls against the push */
    }
    environments_free(environments);
}
END_TEST

enum { ALL = 8, STEPS = 700 };

/* What all eight environments showed and how their steps ended, in the order of their numbers. */
struct history {
    float observations[STEPS][ALL][SIZE];
    uint8_t flags[STEPS][ALL];
};

/* Runs the eight as objects of `per_object`, stepped from last to first, `per_call` of them in one call,
 * and reset when they end. Numbers 0 to 3 balance, the others push by a fixed pattern and fall often. */
static void run_spread(struct history *history, uint32_t per_object, uint32_t per_call)
{
    for (uint32_t first = 0; first < ALL; first += per_object) {
        struct environments *environments = make(77, first, per_object);
        for (uint32_t i = 0; i < per_object; i++)
            environments_reset(environments, i, 1, 0);
        for (uint32_t step = 0; step < STEPS; step++)
            for (uint32_t done = 0; done < per_object; done += per_call) {
                uint32_t indices[ALL];
                float observations[ALL][SIZE], rewards[ALL];
                uint8_t actions[ALL], flags[ALL];
                for (uint32_t i = 0; i < per_call; i++)
                    indices[i] = per_object - 1 - done - i;
                environments_observe(environments, per_call, indices, observations[0]);
                for (uint32_t i = 0; i < per_call; i++) {
                    uint32_t number = first + indices[i];
                    actions[i] = number < 4 ? balance(observations[i]) : (step * number >> 2) % 2;
                }
                environments_step(environments, per_call, indices, actions, rewards, flags);
                for (uint32_t i = 0; i < per_call; i++) {
                    uint32_t number = first + indices[i];
                    memcpy(history->observations[step][number], observations[i], sizeof observations[i]);
                    history->flags[step][number] = flags[i];
                    if (flags[i] != 0)
                        environments_reset(environments, indices[i], 1, step + 1);
                }
            }
        environments_free(environments);
    }
}

START_TEST(spreading_changes_no_bit)
{
    static const struct {
        uint32_t per_object, per_call;
    } spreads[] = {{1, 1}, {2, 1}, {2, 2}, {4, 4}, {8, 2}, {8, 1}};
    static struct history whole, spread;
    run_spread(&whole, ALL, ALL);
    unsigned terminated = 0, truncated = 0;
    for (uint32_t step = 0; step < STEPS; step++)
        for (uint32_t i = 0; i < ALL; i++) {
            terminated += whole.flags[step][i] == ENVIRONMENT_TERMINATED;
            truncated += whole.flags[step][i] == ENVIRONMENT_TRUNCATED;
        }
    ck_assert_uint_ge(terminated, 20);
    ck_assert_uint_ge(truncated, 4);
    for (size_t i = 0; i < sizeof spreads / sizeof spreads[0]; i++) {
        memset(&spread, 0xff, sizeof spread);
        run_spread(&spread, spreads[i].per_object, spreads[i].per_call);
        ck_assert_mem_eq(&spread, &whole, sizeof whole);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("environment");
    TCase *tcase = tcase_create("contract");
    tcase_add_test(tcase, reset_is_keyed_by_seed_number_episode_step);
    tcase_add_test(tcase, truncated_at_500_and_not_before);
    tcase_add_test(tcase, reset_in_the_middle_counts_anew);
    tcase_add_test(tcase, pushed_one_way_it_terminates);
    tcase_add_test(tcase, spreading_changes_no_bit);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
