/* The agent when its observers die: their successors play the episode again. */
#include "test/worker/reinforce/agent_stage.h"

/* ---- a successor ---- */

/* It gets the actions that its predecessor got, and goes on from there. The record is the same. */
START_TEST(a_successor_plays_the_episode_again)
{
    uint32_t first[STEPS][ENVIRONMENTS], again[ENVIRONMENTS];
    struct error error;
    start_agent("steps");
    join();
    wait_for_call();
    for (uint32_t died_at = 0; died_at <= STEPS; died_at++) {
        for (uint64_t i = 0; i < died_at; i++) {
            good_rows(i);
            ck_assert_int_eq(step(again, &error), STATUS_OK);
            if (i + 1 < died_at)
                ck_assert_mem_eq(again, first[i], sizeof again);
            else
                memcpy(first[i], again, sizeof again);
        }
        replace_observer(died_at + 2);
    }
    play_steps(0, STEPS);
    answer_episode(ones, (const uint8_t[]){0, 0, 0}, five);
    bare_worker_expect(&agent, CONTROL_EPISODE);
    ck_assert_uint_eq(agent.message.body.episode.env_steps, ENVIRONMENTS * STEPS);
    ck_assert_uint_eq(agent.message.body.episode.timing.launches, STEPS);
}
END_TEST

/* Environments that had ended are absent from the later steps that are played again, too. */
START_TEST(a_successor_plays_ended_environments_again)
{
    uint32_t actions[ENVIRONMENTS];
    struct error error;
    start_agent("episode");
    join();
    wait_for_call();
    for (uint32_t turn = 0; turn < 2; turn++) {
        good_rows(0);
        ck_assert_int_eq(step(actions, &error), STATUS_OK);
        good_rows(1);
        rows.count = 1;
        rows.environments[0] = 1;
        memmove(rows.observations, rows.observations + 4, 4 * sizeof(float));
        ck_assert_int_eq(step(actions, &error), STATUS_OK);
        if (turn == 0)
            replace_observer(2);
    }
    answer_episode(ones, (const uint8_t[]){1, 1, 1}, (const uint32_t[]){1, 2, 1});
    bare_worker_expect(&agent, CONTROL_EPISODE);
    ck_assert_uint_eq(agent.message.body.episode.env_steps, 4);
}
END_TEST

/* An environment that cannot be seeded: its successor's rows take the place of the predecessor's. */
START_TEST(a_successor_of_what_cannot_be_seeded_begins_anew)
{
    char *seeds = strstr(text_of_cartpole, "\"can_seed\":true, ");
    memcpy(seeds, "\"can_seed\":false,", 17);
    start_agent("steps");
    join();
    wait_for_call();
    play_steps(0, 3);
    replace_observer(2);
    shown = 0.5f; /* other observations than before */
    play_steps(0, STEPS);
    answer_episode(ones, (const uint8_t[]){0, 0, 0}, five);
    bare_worker_expect(&agent, CONTROL_EPISODE);
    ck_assert_uint_eq(agent.message.body.episode.env_steps, ENVIRONMENTS * STEPS);
}
END_TEST

static void other_observation(void)
{
    rows.observations[11] += 0.5f;
}
static void other_reward(void)
{
    rows.rewards[2] = 3;
}
static void other_flags(void)
{
    rows.flags[0] = 1;
}
static void (*const other_steps[])(void) = {other_observation, other_reward, other_flags, too_few_rows,
                                            unordered_environments};

START_TEST(a_successor_that_plays_something_else_is_refused)
{
    uint32_t actions[ENVIRONMENTS];
    struct error error;
    start_agent("steps");
    join();
    wait_for_call();
    play_steps(0, 3);
    replace_observer(2);
    play_steps(0, 1);
    good_rows(1);
    other_steps[_i]();
    ck_assert_int_ne(step(actions, &error), STATUS_OK);
    ck_assert_msg(strstr(error.text, "step 1 of episode 1, played again after a death, is another one") !=
                      NULL,
                  "%s", error.text);
}
END_TEST

/* An answer before all recorded steps were played again does not match them. */
START_TEST(a_successor_that_stops_early_is_refused)
{
    start_agent("steps");
    join();
    wait_for_call();
    play_steps(0, STEPS);
    replace_observer(2);
    play_steps(0, STEPS - 1);
    answer_episode(ones, (const uint8_t[]){0, 0, 0}, five);
    expect_no_session();
}
END_TEST

/* Takes a message there and back: the agent has seen all that this observer sent before. */
static void echo(void)
{
    struct error error = {0};
    struct future *answer = NULL;
    const enum status status = rpc_call(rpc, 0, METHOD_ECHO, &(struct rpc_message){0},
                                        monotime_add_us(monotime_now(), 20000000), &answer, &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    future_release(answer);
}

/* A step waits for another observer's; the observer that sent it dies, and so does its successor, which has
 * sent the step again. The one after that may send it, too. */
START_TEST(a_successor_that_dies_while_its_step_waits_has_a_successor)
{
    start_agent_for("steps", 2, 2);
    bare_worker_expect(&agent, CONTROL_BOUND);
    join_as(&second, 2, 1);
    bare_worker_expect(&agent, CONTROL_READY);
    join_as(&rpc, 1, 1);
    wait_for_call();
    good_rows(0);
    for (uint32_t successor = 2; successor <= 5; successor++) {
        struct future *waits = send_step();
        echo();
        ck_assert_int_eq(future_status(waits), STATUS_AGAIN);
        replace_observer(successor);
    }
}
END_TEST

/* An order to hurry gives up an episode that no observer could begin: it has no record. */
START_TEST(an_episode_that_lacks_its_observer_is_given_up)
{
    const uint8_t flags[] = {0, 0, 0};
    start_agent_for("steps", 1, 3);
    join();
    for (uint64_t n = 1; n <= 2; n++) {
        wait_for_call();
        play_steps(0, STEPS);
        answer_episode(ones, flags, five);
    }
    echo(); /* the agent has the second answer: the news of a death could overtake it */
    bare_worker_expect(&agent, CONTROL_EPISODE);
    end_observer(1); /* before the second record, which waits for the first one's line */
    bare_worker_logged(&agent, 1);
    bare_worker_expect(&agent, CONTROL_EPISODE);
    bare_worker_logged(&agent, 2);
    bare_worker_expect(&agent, CONTROL_BEAT); /* the third episode has begun */
    bare_worker_order(&agent, CONTROL_HURRY);
    bare_worker_expect(&agent, CONTROL_FINISHED);
    ck_assert_uint_eq(agent.message.body.finished.end, CONTROL_END_STOPPED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("agent deaths");
    TCase *episodes = tcase_create("episodes");
    tcase_add_checked_fixture(episodes, setup, teardown);
    tcase_set_timeout(episodes, 60);
    tcase_add_test(episodes, a_successor_plays_the_episode_again);
    tcase_add_test(episodes, a_successor_plays_ended_environments_again);
    tcase_add_loop_test(episodes, a_successor_that_plays_something_else_is_refused, 0,
                        sizeof other_steps / sizeof other_steps[0]);
    tcase_add_test(episodes, a_successor_that_stops_early_is_refused);
    tcase_add_test(episodes, a_successor_that_dies_while_its_step_waits_has_a_successor);
    tcase_add_test(episodes, an_episode_that_lacks_its_observer_is_given_up);
    tcase_add_test(episodes, a_successor_of_what_cannot_be_seeded_begins_anew);
    suite_add_tcase(suite, episodes);
    return suite_run(suite);
}
