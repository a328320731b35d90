/* The agent against an observer that this test plays itself: its answers, its refusals, its reports. */
#include "test/worker/reinforce/agent_stage.h"

START_TEST(two_good_episodes_end_the_job)
{
    const uint8_t flags[] = {0, 1, 0};
    start_agent("steps");
    join();
    for (uint64_t n = 1; n <= 2; n++) {
        wait_for_call();
        ck_assert_uint_eq(episode, n);
        play_steps(0, STEPS);
        answer_episode(ones, flags, five);
        bare_worker_expect(&agent, CONTROL_EPISODE);
        ck_assert_uint_eq(agent.message.body.episode.episode, n);
        ck_assert_uint_eq(agent.message.body.episode.env_steps, ENVIRONMENTS * STEPS);
        ck_assert_double_eq(agent.message.body.episode.reward, STEPS);
        ck_assert_uint_eq(agent.message.body.episode.timing.launches, STEPS);
        ck_assert_uint_eq(agent.message.body.episode.timing.batch_max, ENVIRONMENTS);
        ck_assert(isfinite(agent.message.body.episode.loss));
        bare_worker_logged(&agent, n);
    }
    bare_worker_expect(&agent, CONTROL_FINISHED);
    ck_assert_uint_eq(agent.message.body.finished.end, CONTROL_END_FINISHED);
    bare_worker_order(&agent, CONTROL_EXIT);
    ck_assert_int_eq(bare_worker_wait(&agent), 0);
}
END_TEST

/* In `episode` mode environments end one by one, and the barrier waits for the others only. */
START_TEST(environments_that_end_leave_the_barrier)
{
    uint32_t actions[ENVIRONMENTS];
    struct error error;
    const uint8_t flags[] = {1, 2, 3};
    const uint32_t steps[] = {3, 1, 2};
    start_agent("episode");
    join();
    wait_for_call();
    good_rows(0);
    ck_assert_int_eq(step(actions, &error), STATUS_OK);
    good_rows(1);
    rows.count = 2;
    rows.environments[1] = 2;
    ck_assert_int_eq(step(actions, &error), STATUS_OK);
    good_rows(2);
    rows.count = 1;
    ck_assert_int_eq(step(actions, &error), STATUS_OK);
    answer_episode(ones, flags, steps);
    bare_worker_expect(&agent, CONTROL_EPISODE);
    ck_assert_uint_eq(agent.message.body.episode.env_steps, 6);
    ck_assert_double_eq(agent.message.body.episode.reward, 2); /* the mean of 3, 1 and 2 */
}
END_TEST

/* What each bad step does to good rows, and what the agent says of it. */
static void wrong_episode(void)
{
    rows.args[0]++;
}
static void step_ahead(void)
{
    rows.args[1]++;
}
static void step_behind(void)
{
    rows.args[1] = 0;
}
static void foreign_environment(void)
{
    rows.environments[2] = 3;
}
static void twice_the_same(void)
{
    rows.environments[1] = 0;
}
static void nan_observation(void)
{
    rows.observations[7] = NAN;
}
static void infinite_reward(void)
{
    rows.rewards[1] = INFINITY;
}
static void unknown_flags(void)
{
    rows.flags[0] = 64;
}

static const struct {
    void (*spoil)(void);
    const char *wanted;
} bad_steps[] = {
    {wrong_episode, "expected the running episode, 1"},
    {step_ahead, "step 3: expected step 2"},
    {step_behind, "step 0: expected step 2"},
    {too_few_rows, "2 rows: expected one for each of 3"},
    {foreign_environment, "row 2 is of environment 3"},
    {unordered_environments, "row 1 is of environment 0"},
    {twice_the_same, "row 1 is of environment 0"},
    {nan_observation, "not finite"},
    {infinite_reward, "not finite"},
    {unknown_flags, "row 0 has flags 64"},
};

START_TEST(a_bad_step_costs_its_sender_the_session)
{
    uint32_t actions[ENVIRONMENTS];
    struct error error;
    start_agent("steps");
    join();
    wait_for_call();
    play_steps(0, 2);
    good_rows(2);
    bad_steps[_i].spoil();
    enum status status = step(actions, &error);
    ck_assert_msg(status == STATUS_INVALID || status == STATUS_PEER_DIED, "status %d", status);
    ck_assert_msg(strstr(error.text, bad_steps[_i].wanted) != NULL, "expected \"%s\" in: %s",
                  bad_steps[_i].wanted, error.text);
    ck_assert_int_ne(step(actions, &error), STATUS_OK);
    replace_observer(2); /* the rows that were refused changed nothing */
    play_steps(0, STEPS);
    answer_episode(ones, (const uint8_t[]){0, 0, 0}, five);
    bare_worker_expect(&agent, CONTROL_EPISODE);
}
END_TEST

/* An ended environment may not come back. */
START_TEST(a_row_of_an_ended_environment_is_refused)
{
    uint32_t actions[ENVIRONMENTS];
    struct error error;
    start_agent("episode");
    join();
    wait_for_call();
    play_steps(0, 1);
    good_rows(1);
    rows.count = 2;
    ck_assert_int_eq(step(actions, &error), STATUS_OK);
    good_rows(2);
    ck_assert_int_ne(step(actions, &error), STATUS_OK);
    ck_assert_ptr_nonnull(strstr(error.text, "environment 2, whose episode is over"));
}
END_TEST

static const struct {
    float reward;
    uint8_t flags;
    uint32_t steps;
} bad_answers[] = {{NAN, 0, STEPS}, {1, 64, STEPS}, {1, 0, STEPS - 1}, {1, 0, STEPS + 1}, {1, 0, 0}};

START_TEST(a_bad_answer_costs_its_sender_the_session)
{
    float rewards[] = {1, bad_answers[_i].reward, 1};
    uint8_t flags[] = {0, bad_answers[_i].flags, 0};
    uint32_t steps[] = {STEPS, bad_answers[_i].steps, STEPS};
    start_agent("steps");
    join();
    wait_for_call();
    play_steps(0, STEPS);
    answer_episode(rewards, flags, steps);
    expect_no_session();
    replace_observer(2);
    play_steps(0, STEPS);
    answer_episode(ones, (const uint8_t[]){0, 0, 0}, five);
    bare_worker_expect(&agent, CONTROL_EPISODE);
}
END_TEST

/* ---- descriptions ---- */

static const struct {
    const char *text, *wanted;
} bad_texts[] = {
    {"{", "the description of the environment"},
    {"{\"name\":\"X\"}", "agents"},
    {"[]", "the description of the environment"},
};

START_TEST(a_text_that_is_no_description_costs_the_session)
{
    struct error error = {0};
    start_agent("steps");
    bare_worker_expect(&agent, CONTROL_BOUND);
    connect_as(&rpc, 1, 1);
    const enum status status = describe(rpc, bad_texts[_i].text, &error);
    ck_assert_int_ne(status, STATUS_OK);
    ck_assert_msg(strstr(error.text, bad_texts[_i].wanted) != NULL, "%s", error.text);
    expect_no_session();
    const struct control_died died = {.worker = 1, .incarnation = 1, .text = "the test says so"};
    ck_assert_int_eq(control_send(agent.control, CONTROL_DIED, &died, sizeof died), STATUS_OK);
    rpc_free(rpc, "the test says so", 0);
    join_as(&rpc, 1, 2); /* a better one is taken */
    bare_worker_expect(&agent, CONTROL_READY);
    wait_for_call();
}
END_TEST

START_TEST(a_step_before_the_description_is_refused)
{
    uint32_t actions[ENVIRONMENTS];
    struct error error = {0};
    start_agent("steps");
    bare_worker_expect(&agent, CONTROL_BOUND);
    connect_as(&rpc, 1, 1);
    good_rows(0);
    ck_assert_int_ne(step(actions, &error), STATUS_OK);
    ck_assert_msg(strstr(error.text, "before the environment's description") != NULL, "%s", error.text);
}
END_TEST

/* Two observers with two environments: the job cannot go on, and says why. */
START_TEST(observers_with_different_environments_end_the_job)
{
    char other[sizeof CARTPOLE_TEXT] = CARTPOLE_TEXT;
    struct error error = {0};
    *strstr(other, "500") = '4';
    start_agent_for("steps", 2, 2);
    bare_worker_expect(&agent, CONTROL_BOUND);
    join_as(&second, 2, 1);
    bare_worker_expect(&agent, CONTROL_READY);
    connect_as(&rpc, 1, 1);
    ck_assert_int_ne(describe(rpc, other, &error), STATUS_OK);
    bare_worker_expect(&agent, CONTROL_FAILED);
    ck_assert_msg(strstr(agent.message.body.failed.text, "observer 1 has another environment") != NULL, "%s",
                  agent.message.body.failed.text);
    ck_assert_int_ne(bare_worker_wait(&agent), 0);
}
END_TEST

/* Whole episodes of no greatest length fit into no memory: the agent names the key before it is ready. */
START_TEST(an_environment_that_does_not_fit_the_job_ends_it)
{
    static const char text[] =
        "{\"name\":\"Force\",\"agents\":1,\"steps_max\":0,\"mask\":false,\"can_seed\":true,"
        "\"can_save\":true,\"singleton\":false,\"metrics\":[],\"observation\":{\"dtype\":\"float32\","
        "\"shape\":[4]},"
        "\"action\":{\"dtype\":\"float32\",\"shape\":[],\"low\":-1,\"high\":1}}";
    struct error error = {0};
    start_agent("episode");
    bare_worker_expect(&agent, CONTROL_BOUND);
    connect_as(&rpc, 1, 1);
    ck_assert_int_ne(describe(rpc, text, &error), STATUS_OK);
    bare_worker_expect(&agent, CONTROL_FAILED);
    ck_assert_msg(strstr(agent.message.body.failed.text, "/rollout/mode") != NULL, "%s",
                  agent.message.body.failed.text);
    ck_assert_int_ne(bare_worker_wait(&agent), 0);
}
END_TEST

START_TEST(drain_finishes_the_episode_and_hurry_gives_it_up)
{
    const uint8_t flags[] = {0, 0, 0};
    start_agent("steps");
    join();
    wait_for_call();
    play_steps(0, 2);
    bare_worker_order(&agent, CONTROL_DRAIN);
    play_steps(2, STEPS);
    answer_episode(ones, flags, five);
    bare_worker_expect(&agent, CONTROL_EPISODE);
    bare_worker_logged(&agent, 1);
    bare_worker_expect(&agent, CONTROL_FINISHED);
    teardown();
    setup();
    start_agent("steps");
    join();
    wait_for_call();
    play_steps(0, 2);
    bare_worker_order(&agent, CONTROL_HURRY);
    bare_worker_expect(&agent, CONTROL_FINISHED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("agent");
    TCase *episodes = tcase_create("episodes");
    tcase_add_checked_fixture(episodes, setup, teardown);
    tcase_set_timeout(episodes, 60);
    tcase_add_test(episodes, two_good_episodes_end_the_job);
    tcase_add_test(episodes, environments_that_end_leave_the_barrier);
    tcase_add_loop_test(episodes, a_bad_step_costs_its_sender_the_session, 0,
                        sizeof bad_steps / sizeof bad_steps[0]);
    tcase_add_test(episodes, a_row_of_an_ended_environment_is_refused);
    tcase_add_loop_test(episodes, a_bad_answer_costs_its_sender_the_session, 0,
                        sizeof bad_answers / sizeof bad_answers[0]);
    tcase_add_loop_test(episodes, a_text_that_is_no_description_costs_the_session, 0,
                        sizeof bad_texts / sizeof bad_texts[0]);
    tcase_add_test(episodes, a_step_before_the_description_is_refused);
    tcase_add_test(episodes, observers_with_different_environments_end_the_job);
    tcase_add_test(episodes, an_environment_that_does_not_fit_the_job_ends_it);
    tcase_add_test(episodes, drain_finishes_the_episode_and_hurry_gives_it_up);
    suite_add_tcase(suite, episodes);
    return suite_run(suite);
}
