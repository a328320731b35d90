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

/* ---- a successor that takes another course ---- */

static void other_observation(void)
{
    rows.observations[11] += 0.5f;
}
static void other_rewards(void)
{
    rows.rewards[0] = rows.rewards[1] = rows.rewards[2] = 3;
}
static void other_end(void)
{
    rows.flags[2] = 2;
}
static void no_change(void)
{
}
static const struct {
    void (*change)(void);
    double reward;
} others[] = {{no_change, STEPS},
              {other_observation, STEPS},
              {other_rewards, STEPS + 2},
              {other_end, (2 * STEPS + 1) / 3.0}};

/* From the step on that differs, its rows take the place of the recorded ones, each once. The environments
 * that do not differ get the actions that they had. */
START_TEST(a_successor_that_takes_another_course_goes_on)
{
    uint32_t first[STEPS][ENVIRONMENTS], again[ENVIRONMENTS];
    struct error error;
    start_agent("steps");
    join();
    wait_for_call();
    for (uint64_t i = 0; i < STEPS; i++) {
        good_rows(i);
        ck_assert_int_eq(step(first[i], &error), STATUS_OK);
    }
    for (uint32_t successor = 2; successor < 4; successor++) {
        replace_observer(successor);
        for (uint64_t i = 0; i < STEPS; i++) {
            good_rows(i);
            if (i == 1)
                others[_i].change();
            ck_assert_int_eq(step(again, &error), STATUS_OK);
            ck_assert_mem_eq(again, first[i], 2 * sizeof again[0]);
        }
    }
    answer_episode(ones, (const uint8_t[]){0, 0, 0}, five);
    bare_worker_expect(&agent, CONTROL_EPISODE);
    ck_assert_uint_eq(agent.message.body.episode.env_steps, ENVIRONMENTS * STEPS);
    ck_assert_double_eq(agent.message.body.episode.reward, others[_i].reward);
}
END_TEST

/* In the mode episode, where environments that have ended send no rows. */
static void play_alone(uint64_t number)
{
    uint32_t actions[ENVIRONMENTS];
    struct error error;
    good_rows(number);
    rows.count = 1;
    rows.environments[0] = 1;
    memmove(rows.observations, rows.observations + 4, 4 * sizeof(float));
    ck_assert_int_eq(step(actions, &error), STATUS_OK);
}

static const struct {
    uint32_t common, alone;   /* steps of the predecessor: with all environments, then with one */
    uint32_t common2, alone2; /* of the successor */
} courses[] = {
    {1, 2, 3, 0}, /* episodes are longer this time */
    {3, 0, 1, 2}, /* shorter */
    {3, 2, 1, 0}, /* over at once: the answer tells of it */
    {2, 1, 2, 3},
};

START_TEST(a_successor_may_end_at_another_step)
{
    start_agent("episode");
    join();
    wait_for_call();
    play_steps(0, courses[_i].common);
    for (uint32_t i = 0; i < courses[_i].alone; i++)
        play_alone(courses[_i].common + i);
    replace_observer(2);
    const uint32_t common = courses[_i].common2, last = common + courses[_i].alone2;
    play_steps(0, common);
    for (uint32_t i = common; i < last; i++)
        play_alone(i);
    answer_episode(ones, (const uint8_t[]){1, 1, 1}, (const uint32_t[]){common, last, common});
    bare_worker_expect(&agent, CONTROL_EPISODE);
    ck_assert_uint_eq(agent.message.body.episode.env_steps, 2 * common + last);
}
END_TEST

static void (*const bad_steps[])(void) = {too_few_rows, unordered_environments};

START_TEST(a_successor_that_breaks_a_rule_is_refused)
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
    bad_steps[_i]();
    ck_assert_int_ne(step(actions, &error), STATUS_OK);
    expect_no_session();
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

/* The predecessor's waiting step differs from the successor's: it leaves the line, and the launch still waits
 * for the other observer. */
START_TEST(a_waiting_step_that_differs_leaves_the_line)
{
    start_agent_for("steps", 2, 2);
    bare_worker_expect(&agent, CONTROL_BOUND);
    join_as(&second, 2, 1);
    bare_worker_expect(&agent, CONTROL_READY);
    join_as(&rpc, 1, 1);
    wait_for_call();
    good_rows(0);
    struct future *waits = send_step();
    echo();
    replace_observer(2);
    good_rows(0);
    other_observation();
    waits = send_step();
    echo();
    ck_assert_int_eq(future_status(waits), STATUS_AGAIN);
    uint32_t actions[ENVIRONMENTS];
    struct error error;
    struct rpc *first = rpc;
    rpc = second;
    for (uint32_t i = 0; i < ENVIRONMENTS; i++)
        rows.environments[i] += ENVIRONMENTS;
    ck_assert_int_eq(step(actions, &error), STATUS_OK);
    rpc = first;
    ck_assert_int_eq(rpc_wait(rpc, waits, &error), STATUS_OK);
    future_release(waits);
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
    tcase_add_loop_test(episodes, a_successor_that_takes_another_course_goes_on, 0,
                        sizeof others / sizeof others[0]);
    tcase_add_loop_test(episodes, a_successor_may_end_at_another_step, 0, sizeof courses / sizeof courses[0]);
    tcase_add_loop_test(episodes, a_successor_that_breaks_a_rule_is_refused, 0, 2);
    tcase_add_test(episodes, a_successor_that_stops_early_is_refused);
    tcase_add_test(episodes, a_successor_that_dies_while_its_step_waits_has_a_successor);
    tcase_add_test(episodes, a_waiting_step_that_differs_leaves_the_line);
    tcase_add_test(episodes, an_episode_that_lacks_its_observer_is_given_up);
    tcase_add_test(episodes, a_successor_of_what_cannot_be_seeded_begins_anew);
    suite_add_tcase(suite, episodes);
    return suite_run(suite);
}
