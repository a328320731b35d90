/* The agent where rollouts go on from the one before: it keeps the environments' states for a successor. */
#include "test/worker/reinforce/agent_stage.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/step_message.h"

/* The job's mode, and how its episodes begin. */
#define GOES_ON "steps\",\"begin\":\"continue"

/* The states of three environments: "a", nothing but a length, and "bc". */
static const char saved[] = "\1\0\0\0a\0\0\0\0\2\0\0\0bc";
enum { SAVED = sizeof saved - 1 };

static const uint8_t none[ENVIRONMENTS];

/* Plays the first episode, which ends in the saved states, and waits for the call of the second. */
static void play_first(const void *states_after, uint32_t bytes)
{
    start_agent(GOES_ON);
    join();
    wait_for_call();
    ck_assert_uint_eq(begins, BEGIN_RESET);
    play_steps(0, STEPS);
    answer_with_states(ones, none, five, states_after, bytes);
}

static void wait_for_second(void)
{
    bare_worker_expect(&agent, CONTROL_EPISODE);
    bare_worker_logged(&agent, 1);
    wait_for_call();
    ck_assert_uint_eq(episode, 2);
}

START_TEST(a_session_goes_on_by_itself)
{
    play_first(saved, SAVED);
    wait_for_second();
    ck_assert_uint_eq(begins, BEGIN_CONTINUE);
    ck_assert_uint_eq(state_bytes, 0);
}
END_TEST

/* Also one whose predecessor died within the episode: its steps are compared with the recorded ones. */
START_TEST(a_successor_gets_the_states)
{
    play_first(saved, SAVED);
    wait_for_second();
    play_steps(0, 2);
    for (uint32_t incarnation = 2; incarnation < 4; incarnation++) {
        replace_observer(incarnation);
        ck_assert_uint_eq(begins, BEGIN_STATES);
        ck_assert_uint_eq(state_bytes, SAVED);
        ck_assert_mem_eq(states, saved, SAVED);
    }
    play_steps(0, STEPS);
    answer_with_states(ones, none, five, saved, SAVED);
    bare_worker_expect(&agent, CONTROL_EPISODE);
    ck_assert_uint_eq(agent.message.body.episode.env_steps, ENVIRONMENTS * STEPS);
    ck_assert_double_eq(agent.message.body.episode.reward, 2 * STEPS);
}
END_TEST

/* Its rows take the place of the predecessor's, and the reward forgets the episodes that were under way. */
START_TEST(a_successor_without_states_begins_anew)
{
    play_first(NULL, 0);
    wait_for_second();
    play_steps(0, 2);
    replace_observer(2);
    ck_assert_uint_eq(begins, BEGIN_RESET);
    shown = 0.5f;
    play_steps(0, STEPS);
    answer_episode(ones, none, five);
    bare_worker_expect(&agent, CONTROL_EPISODE);
    ck_assert_double_eq(agent.message.body.episode.reward, STEPS);
}
END_TEST

/* One of its environments comes to another place by its state, and says so by a flag. Its episode so far has
 * come to nothing; those of the others go on. */
START_TEST(a_successor_whose_environment_fails_to_go_on)
{
    play_first(saved, SAVED);
    wait_for_second();
    play_steps(0, 2);
    for (uint32_t incarnation = 2; incarnation < 4; incarnation++) {
        uint32_t actions[ENVIRONMENTS];
        struct error error;
        replace_observer(incarnation);
        good_rows(0);
        rows.flags[1] = ENVIRONMENT_FAILED;
        rows.observations[4] = 0.5f;
        ck_assert_int_eq(step(actions, &error), STATUS_OK);
    }
    play_steps(1, STEPS);
    answer_with_states(ones, none, five, saved, SAVED);
    bare_worker_expect(&agent, CONTROL_EPISODE);
    ck_assert_uint_eq(agent.message.body.episode.env_steps, ENVIRONMENTS * STEPS);
    ck_assert_double_eq(agent.message.body.episode.reward, (2 * STEPS + STEPS + 2 * STEPS) / 3.0);
}
END_TEST

/* In the first episode there is nothing to go on from. */
START_TEST(a_successor_in_the_first_episode_is_reset)
{
    start_agent(GOES_ON);
    join();
    wait_for_call();
    play_steps(0, 2);
    replace_observer(2);
    ck_assert_uint_eq(begins, BEGIN_RESET);
    play_steps(0, STEPS);
    answer_with_states(ones, none, five, saved, SAVED);
    bare_worker_expect(&agent, CONTROL_EPISODE);
}
END_TEST

static const struct {
    const char *mode, *states;
    uint32_t bytes;
} bad[] = {
    {"steps", saved, SAVED},                              /* a job that resets wants none */
    {GOES_ON, saved, SAVED - 1},                          /* the last one is cut */
    {GOES_ON, saved, SAVED - 6},                          /* there are two */
    {GOES_ON, "\1\0\0\0a\0\0\0\0\2\0\0\0bc!", SAVED + 1}, /* one byte too many */
    {GOES_ON, "\1\0\0\0a\0\0\0\0\377\377\377\377bc", SAVED},
};

START_TEST(bad_states_cost_the_session)
{
    start_agent(bad[_i].mode);
    join();
    wait_for_call();
    play_steps(0, STEPS);
    answer_with_states(ones, none, five, bad[_i].states, bad[_i].bytes);
    expect_no_session();
}
END_TEST

/* At step 0 an agent may be absent since the rollout before; nothing else can have happened. */
START_TEST(flags_of_the_first_step)
{
    static const struct {
        const char *mode;
        uint8_t flags;
        bool good;
    } cases[] = {{GOES_ON, ENVIRONMENT_ABSENT, true},
                 {GOES_ON, ENVIRONMENT_FAILED, true},
                 {GOES_ON, ENVIRONMENT_TERMINATED, false},
                 {"steps", ENVIRONMENT_FAILED, false},
                 {"steps", ENVIRONMENT_ABSENT, false}};
    uint32_t actions[ENVIRONMENTS];
    struct error error;
    start_agent(cases[_i].mode);
    join();
    wait_for_call();
    good_rows(0);
    rows.flags[1] = cases[_i].flags;
    ck_assert((step(actions, &error) == STATUS_OK) == cases[_i].good);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("agent states");
    TCase *agents = tcase_create("agent");
    tcase_add_checked_fixture(agents, setup, teardown);
    tcase_set_timeout(agents, 60);
    tcase_add_test(agents, a_session_goes_on_by_itself);
    tcase_add_test(agents, a_successor_gets_the_states);
    tcase_add_test(agents, a_successor_without_states_begins_anew);
    tcase_add_test(agents, a_successor_whose_environment_fails_to_go_on);
    tcase_add_test(agents, a_successor_in_the_first_episode_is_reset);
    tcase_add_loop_test(agents, bad_states_cost_the_session, 0, (int)(sizeof bad / sizeof bad[0]));
    tcase_add_loop_test(agents, flags_of_the_first_step, 0, 5);
    suite_add_tcase(suite, agents);
    return suite_run(suite);
}
