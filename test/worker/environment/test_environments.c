/* The caller's side of a plug-in: counting, truncation, resets keyed by position, rows made uniform, faults
 * told by name, and results that do not depend on how environments are spread over objects. */
#include "worker/environment/environments.h"

#include "kernels/base/rng.h"
#include "test/worker/environment/preloads.h"
#include "test/workplace.h"
#include "worker/environment/cartpole.h"
#include "worker/environment/classic.h"
#include "worker/environment/environment_spec.h"

#include <stdlib.h>

enum { SIZE = CARTPOLE_STATE_SIZE };

static struct error error;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static enum status open_of(struct environments **out, const struct environment_plugin *plugin,
                           const char *name, uint32_t count)
{
    const struct environments_config config = {
        .plugin = plugin, .name = name, .options = "{}", .seed = 9, .first = 10, .count = count};
    return environments_open(out, &config, &error);
}

static struct environments *make(uint64_t seed, uint32_t first, uint32_t count)
{
    struct environments *environments = NULL;
    const struct environments_config config = {.plugin = &classic_environments,
                                               .name = CARTPOLE_NAME,
                                               .options = "{}",
                                               .seed = seed,
                                               .first = first,
                                               .count = count};
    must(environments_open(&environments, &config, &error));
    return environments;
}

/* ---- CartPole ---- */

static const float *observation_of(const struct environments *environments, uint32_t index)
{
    return (const float *)environments_buffers(environments)->observation + (size_t)index * SIZE;
}

static uint8_t step_one(struct environments *environments, uint32_t index, int32_t action)
{
    const struct environment_buffers *buffers = environments_buffers(environments);
    ((int32_t *)environments_actions(environments))[index] = action;
    must(environments_step(environments, 1, &index, &error));
    ck_assert_float_eq(buffers->reward[index], 1.0f);
    ck_assert_int_eq(environments_is_over(environments, index), buffers->flags[index] != 0);
    return buffers->flags[index];
}

/* Holds the pole up and the cart near the middle for as long as one likes. */
static int32_t balance(const float observation[SIZE])
{
    return observation[2] + 0.5f * observation[3] + 0.05f * observation[0] + 0.1f * observation[1] > 0;
}

/* CartPole's first state, as classic.h says. */
static void draw_first(double state[SIZE], const struct rng_key *key)
{
    for (uint32_t value = 0; value < SIZE; value++) {
        uint32_t words[4];
        rng_block(key, RNG_RESET, value / 2, words);
        state[value] =
            -CARTPOLE_RESET_MAX +
            2 * CARTPOLE_RESET_MAX * rng_uniform_double(words[value % 2 * 2], words[value % 2 * 2 + 1]);
    }
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
        const uint32_t index = 2;
        must(environments_reset(environments, 1, &index, keys[k].episode, keys[k].step, &error));
        memcpy(seen[k], observation_of(environments, 2), sizeof seen[k]);
        double state[SIZE];
        draw_first(state, &keys[k]);
        for (int value = 0; value < SIZE; value++)
            ck_assert_float_eq(seen[k][value], (float)state[value]);
        for (size_t other = 0; other < k; other++)
            for (int value = 0; value < SIZE; value++)
                ck_assert_float_ne(seen[k][value], seen[other][value]);
        environments_close(environments);
    }
}
END_TEST

START_TEST(truncated_at_500_and_not_before)
{
    struct environments *environments = make(543, 0, 2);
    const uint32_t index = 1;
    for (uint32_t episode = 0; episode < 3; episode++) {
        must(environments_reset(environments, 1, &index, episode, 0, &error));
        for (int step = 1; step <= 500; step++) {
            const uint8_t flags = step_one(environments, 1, balance(observation_of(environments, 1)));
            ck_assert_msg(flags == (step == 500 ? ENVIRONMENT_TRUNCATED : 0), "step %d: flags %u", step,
                          flags);
        }
    }
    environments_close(environments);
}
END_TEST

START_TEST(reset_in_the_middle_counts_anew)
{
    struct environments *environments = make(543, 0, 1);
    must(environments_reset(environments, 1, NULL, 0, 0, &error));
    int steps = 0;
    for (uint8_t flags = 0; flags == 0; steps++) {
        if (steps == 300)
            must(environments_reset(environments, 1, NULL, 0, 300, &error));
        flags = step_one(environments, 0, balance(observation_of(environments, 0)));
    }
    ck_assert_int_eq(steps, 800);
    environments_close(environments);
}
END_TEST

START_TEST(pushed_one_way_it_terminates)
{
    struct environments *environments = make(9, 0, 1);
    for (uint8_t action = 0; action < 2; action++) {
        must(environments_reset(environments, 1, NULL, action, 0, &error));
        double values[SIZE];
        draw_first(values, &(struct rng_key){.seed = 9, .episode = action});
        struct cartpole_state state = {values[0], values[1], values[2], values[3]};
        for (bool terminated = false; !terminated;) {
            state = cartpole_transition(state, action);
            terminated = cartpole_terminated(state);
            ck_assert_uint_eq(step_one(environments, 0, action), terminated ? ENVIRONMENT_TERMINATED : 0);
            const float expected[] = {(float)state.x, (float)state.x_dot, (float)state.theta,
                                      (float)state.theta_dot};
            ck_assert_mem_eq(observation_of(environments, 0), expected, sizeof expected);
        }
        ck_assert((state.theta < 0) == (action == 1)); /* the pole falls against the push */
    }
    environments_close(environments);
}
END_TEST

enum { ALL = 8, STEPS = 700 };

/* What all eight environments showed and how their steps ended, in the order of their numbers. */
struct history {
    float observations[STEPS][ALL][SIZE];
    uint8_t flags[STEPS][ALL];
};

/* Steps `per_call` environments from `done` on, and resets those that end. Numbers 0 to 3 balance, the others
 * push by a fixed pattern and fall often. */
static void spread_step(struct history *history, struct environments *environments, uint32_t first,
                        uint32_t done, uint32_t per_call, uint32_t step)
{
    int32_t *actions = environments_actions(environments);
    uint32_t which[ALL], ended[ALL], count = 0;
    for (uint32_t i = 0; i < per_call; i++) {
        const uint32_t index = done + i, number = first + index;
        which[i] = index;
        memcpy(history->observations[step][number], observation_of(environments, index),
               SIZE * sizeof(float));
        actions[index] =
            number < 4 ? balance(observation_of(environments, index)) : (int32_t)(step * number >> 2) % 2;
    }
    must(environments_step(environments, per_call, which, &error));
    for (uint32_t i = 0; i < per_call; i++) {
        history->flags[step][first + which[i]] = environments_buffers(environments)->flags[which[i]];
        if (environments_is_over(environments, which[i]))
            ended[count++] = which[i];
    }
    if (count > 0)
        must(environments_reset(environments, count, ended, 1, step + 1, &error));
}

/* Runs the eight as objects of `per_object`, stepped from last to first, `per_call` of them in one call. */
static void run_spread(struct history *history, uint32_t per_object, uint32_t per_call)
{
    for (uint32_t first = 0; first < ALL; first += per_object) {
        struct environments *environments = make(77, first, per_object);
        must(environments_reset(environments, per_object, NULL, 1, 0, &error));
        for (uint32_t step = 0; step < STEPS; step++)
            for (uint32_t left = per_object; left > 0; left -= per_call)
                spread_step(history, environments, first, left - per_call, per_call, step);
        environments_close(environments);
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

/* ---- a plug-in's rows, made uniform ---- */

enum { TOY_STEPS = 400 };

static struct environments *make_toy(const char *name, uint32_t count)
{
    struct environments *toy = NULL;
    must(open_of(&toy, preload("environment_toy"), name, count));
    must(environments_reset(toy, count, NULL, 0, 0, &error));
    return toy;
}

/* Steps all with the choice 1, and resets those that are over. */
static void step_toy(struct environments *toy, uint32_t count, uint32_t step)
{
    const size_t elements = environment_space_elements(&environments_spec(toy)->action);
    int32_t *actions = environments_actions(toy);
    for (uint32_t i = 0; i < count * environments_spec(toy)->agents * elements; i++)
        actions[i] = (int32_t)(step >> 2) % 2;
    must(environments_step(toy, count, NULL, &error));
}

static void reset_over(struct environments *toy, uint32_t count, uint32_t step)
{
    for (uint32_t i = 0; i < count; i++)
        if (environments_is_over(toy, i))
            must(environments_reset(toy, 1, &i, 0, step + 1, &error));
}

/* Of the two agents the one that ends first is absent until the other ends, too. */
START_TEST(an_agent_that_has_ended_is_absent_until_all_have)
{
    enum { ENDED = ENVIRONMENT_TERMINATED, WAITS = ENVIRONMENT_TERMINATED | ENVIRONMENT_ABSENT };
    struct environments *toy = make_toy("Pair-v0", 1);
    const struct environment_buffers *rows = environments_buffers(toy);
    const float *observation = rows->observation;
    unsigned waits = 0, absent = 0;
    for (uint32_t step = 0; step < TOY_STEPS; step++) {
        step_toy(toy, 1, step);
        for (uint32_t row = 0; row < 2; row++) {
            const uint8_t mine = rows->flags[row], other = rows->flags[1 - row];
            ck_assert(mine == 0 || mine == ENDED || mine == WAITS || mine == ENVIRONMENT_ABSENT);
            ck_assert(mine != WAITS || other == 0);
            ck_assert(mine != ENDED || other != 0);
            ck_assert(mine != ENVIRONMENT_ABSENT ||
                      (observation[2 * row] == 0 && observation[2 * row + 1] == 0 && rows->reward[row] == 0));
            ck_assert(mine != WAITS || observation[2 * row] != 0); /* its last observation */
            waits += mine == WAITS;
            absent += mine == ENVIRONMENT_ABSENT;
        }
        reset_over(toy, 1, step);
    }
    ck_assert_uint_gt(waits, 1);
    ck_assert_uint_gt(absent, waits);
    environments_close(toy);
}
END_TEST

/* In each state between two resets: one agent lives, both do, or one has just ended or is absent. */
START_TEST(a_loaded_environment_shows_the_rows_that_were_saved)
{
    struct environments *toy = make_toy("Pair-v0", 1), *successor = make_toy("Pair-v0", 1);
    const struct environment_buffers *rows = environments_buffers(toy);
    const struct environment_buffers *loaded = environments_buffers(successor);
    char state[1024];
    for (uint32_t step = 0; step < TOY_STEPS; step++) {
        step_toy(toy, 1, step);
        reset_over(toy, 1, step);
        const size_t bytes = environments_save(toy, 0, state, sizeof state);
        ck_assert_uint_le(bytes, sizeof state);
        must(environments_load(successor, 0, state, bytes, &error));
        ck_assert_mem_eq(loaded->flags, rows->flags, 2);
        ck_assert_mem_eq(loaded->observation, rows->observation, 4 * sizeof(float));
    }
    environments_close(toy);
    environments_close(successor);
}
END_TEST

START_TEST(an_environment_that_failed_is_over_and_shows_nothing)
{
    struct environments *toy = make_toy("Frail-v0", 3);
    const struct environment_buffers *rows = environments_buffers(toy);
    const float *observation = rows->observation;
    unsigned failed = 0;
    for (uint32_t step = 0; step < TOY_STEPS; step++) {
        step_toy(toy, 3, step);
        for (uint32_t i = 0; i < 3; i++)
            if ((rows->flags[i] & ENVIRONMENT_FAILED) != 0) {
                ck_assert(environments_is_over(toy, i));
                ck_assert_float_eq(observation[2 * i], 0);
                ck_assert_float_eq(rows->reward[i], 0);
                failed++;
            }
        reset_over(toy, 3, step);
    }
    ck_assert_uint_gt(failed, 3);
    environments_close(toy);
}
END_TEST

START_TEST(the_third_life_ends_the_episode)
{
    struct environments *toy = make_toy("Lives-v0", 1);
    unsigned lost = 0, over = 0;
    for (uint32_t step = 0; step < 10 * TOY_STEPS; step++) {
        step_toy(toy, 1, step);
        const uint8_t flags = environments_buffers(toy)->flags[0];
        ck_assert(flags == 0 || flags == (lost < 2 ? ENVIRONMENT_LIFE_LOST : ENVIRONMENT_TERMINATED));
        ck_assert(environments_is_over(toy, 0) == (flags == ENVIRONMENT_TERMINATED));
        over += environments_is_over(toy, 0);
        lost = environments_is_over(toy, 0) ? 0 : lost + (flags != 0);
        reset_over(toy, 1, step);
    }
    ck_assert_uint_gt(over, 1);
    environments_close(toy);
}
END_TEST

START_TEST(an_environment_that_restarts_itself_is_never_over)
{
    struct environments *toy = make_toy("Again-v0", 2);
    unsigned restarted = 0;
    for (uint32_t step = 0; step < TOY_STEPS; step++) {
        step_toy(toy, 2, step);
        for (uint32_t i = 0; i < 2; i++) {
            restarted += environments_buffers(toy)->flags[i] != 0;
            ck_assert(!environments_is_over(toy, i));
        }
    }
    ck_assert_uint_gt(restarted, 3);
    environments_close(toy);
}
END_TEST

START_TEST(an_action_out_of_bounds_is_refused)
{
    struct environments *walk = make_toy("Walk-v0", 2), *push = make_toy("Push-v0", 2);
    int32_t *choices = environments_actions(walk);
    float *forces = environments_actions(push);
    choices[3] = 2; /* the second element of environment 11, which has two choices */
    ck_assert_int_eq(environments_step(walk, 2, NULL, &error), STATUS_INVALID);
    ck_assert_str_eq(error.text, "Walk-v0: environment 11: element 1 of its action is 2: expected 0..1");
    choices[3] = -1;
    ck_assert_int_eq(environments_step(walk, 2, NULL, &error), STATUS_INVALID);
    choices[3] = 1;
    must(environments_step(walk, 2, NULL, &error));
    forces[1] = 9.5f;
    ck_assert_int_eq(environments_step(push, 2, NULL, &error), STATUS_INVALID);
    ck_assert_str_eq(error.text, "Push-v0: environment 11: element 0 of its action is 9.5: expected -9..9");
    environments_close(walk);
    environments_close(push);
}
END_TEST

/* ---- faults ---- */

static const struct {
    const char *fault, *sentence;
} refused[] = {
    {"open-fails", "open-fails: open: the licence has expired"},
    {"open-fails-silently", "open-fails-silently: open: it gave no reason"},
    {"open-without-spec", "open-without-spec: open wrote no spec"},
    {"spec-size", "spec-size: its spec: spec.size is "},
    {"observation-shape", "observation-shape: its spec: observation.shape[0] is 0"},
    {"action-infinite", "action-infinite: its spec: action has the bounds"},
    {"metric-without-name", "metric-without-name: its spec: metrics[0] has no name"},
    {"metric-long-name", "metric-long-name: its spec: metrics[0] has a name of more than 63 bytes"},
    {"metric-twice", "metric-twice: its spec: metrics[1] has the name of metrics[0]"},
};

START_TEST(what_cannot_be_opened_is_told)
{
    struct environments *broken = NULL;
    ck_assert_int_ne(open_of(&broken, preload("environment_broken"), refused[_i].fault, 3), STATUS_OK);
    ck_assert_ptr_null(broken);
    ck_assert_msg(strncmp(error.text, refused[_i].sentence, strlen(refused[_i].sentence)) == 0, "%s",
                  error.text);
}
END_TEST

static const struct {
    const char *fault, *sentence;
} broken_steps[] = {
    {"observation-nan", "observation-nan: environment 10: element 0 of its observation is nan"},
    {"reward-infinite", "reward-infinite: environment 10: element 0 of its reward is inf"},
    {"flags-unknown", "flags-unknown: environment 10: its flags are 0x40, which has bits without a meaning"},
    {"flags-restarted", "flags-restarted: environment 10: its flags say RESTARTED, and neither TERMINATED"},
    {"flags-life", "flags-life: environment 10: its flags say ABSENT, and LIFE_LOST"},
    {"flags-absent", "flags-absent: environment 10: no agent is present"},
    {"mask-empty", "mask-empty: environment 10: its mask allows no choice of element 0"},
    {"mask-two", "mask-two: environment 10: its mask is 2 at choice "},
    {"metric-nan", "metric-nan: environment 1"},
    {"step-fails", "step-fails: step: the joint 4 came off"},
    {"step-fails-silently", "step-fails-silently: step: it gave no reason"},
};

START_TEST(what_breaks_the_contract_is_told)
{
    struct environments *broken = NULL;
    must(open_of(&broken, preload("environment_broken"), broken_steps[_i].fault, 3));
    enum status status = environments_reset(broken, 3, NULL, 0, 0, &error);
    for (uint32_t step = 0; step < TOY_STEPS && status == STATUS_OK; step++) {
        status = environments_step(broken, 3, NULL, &error);
        if (status == STATUS_OK)
            reset_over(broken, 3, step);
    }
    ck_assert_int_ne(status, STATUS_OK);
    ck_assert_msg(strncmp(error.text, broken_steps[_i].sentence, strlen(broken_steps[_i].sentence)) == 0,
                  "%s", error.text);
    environments_close(broken);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("environments");
    TCase *cartpole = tcase_create("CartPole");
    tcase_add_test(cartpole, reset_is_keyed_by_seed_number_episode_step);
    tcase_add_test(cartpole, truncated_at_500_and_not_before);
    tcase_add_test(cartpole, reset_in_the_middle_counts_anew);
    tcase_add_test(cartpole, pushed_one_way_it_terminates);
    tcase_add_test(cartpole, spreading_changes_no_bit);
    suite_add_tcase(suite, cartpole);
    TCase *rows = tcase_create("rows");
    tcase_add_test(rows, an_agent_that_has_ended_is_absent_until_all_have);
    tcase_add_test(rows, a_loaded_environment_shows_the_rows_that_were_saved);
    tcase_add_test(rows, an_environment_that_failed_is_over_and_shows_nothing);
    tcase_add_test(rows, the_third_life_ends_the_episode);
    tcase_add_test(rows, an_environment_that_restarts_itself_is_never_over);
    tcase_add_test(rows, an_action_out_of_bounds_is_refused);
    suite_add_tcase(suite, rows);
    TCase *faults = tcase_create("faults");
    tcase_add_loop_test(faults, what_cannot_be_opened_is_told, 0, sizeof refused / sizeof refused[0]);
    tcase_add_loop_test(faults, what_breaks_the_contract_is_told, 0,
                        sizeof broken_steps / sizeof broken_steps[0]);
    suite_add_tcase(suite, faults);
    return suite_run(suite);
}
