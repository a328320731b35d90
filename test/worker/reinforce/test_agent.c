/* The agent against an observer that this test plays itself: its answers, its refusals, its reports. The
 * agent is the real binary; the test stands in for its supervisor and its only observer. */
#include "test/worker/bare_worker.h"
#include "test/worker/net/net_connect.h"
#include "test/workplace.h"
#include "worker/net/rpc.h"
#include "worker/worker.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ENVIRONMENTS = 3, STEPS = 5 };

#define JOB                                                                                                  \
    "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"observers\":{\"count\":%u,\"environments\":3},"            \
    "\"rollout\":{\"mode\":\"%s\",\"steps\":5},\"stop\":{\"episodes\":%u}}"

static char folder[64];
static struct bare_worker agent;
static uint32_t agent_workers;
static struct rpc *rpc;
static struct rpc *second;         /* of an observer that only joins */
static struct rpc_request *called; /* run_episode */
static uint64_t episode;

/* One step's rows, as a well-behaved observer would send them. */
static struct rows {
    uint64_t args[WIRE_ARGS];
    uint32_t count;
    uint32_t environments[ENVIRONMENTS];
    float observations[4 * ENVIRONMENTS], rewards[ENVIRONMENTS];
    uint8_t flags[ENVIRONMENTS];
} rows;

static void run_episode(void *context, struct rpc_request *request, const struct rpc_message *call)
{
    (void)context;
    called = request;
    episode = call->args[0];
}

static const struct rpc_method methods[] = {
    {.method = METHOD_RUN_EPISODE, .callers = WIRE_ROLE_AGENT, .handler = run_episode}};

static void start_agent_for(const char *mode, unsigned observers, unsigned episodes)
{
    char job[512];
    agent_workers = 1 + observers;
    agent.start = (struct control_start){.role = WIRE_ROLE_AGENT, .incarnation = 1, .generation = 1};
    snprintf(agent.start.address, sizeof agent.start.address, "ipc://%s/agent.sock", folder);
    snprintf(agent.start.run_dir, sizeof agent.start.run_dir, "%s", folder);
    snprintf(job, sizeof job, JOB, observers, mode, episodes);
    bare_worker_start(&agent, "agent", job);
}

static void start_agent(const char *mode)
{
    start_agent_for(mode, 1, 2);
}

static void setup(void)
{
    folder_make(folder);
    called = NULL;
}

static void teardown(void)
{
    rpc_free(rpc, "the test is over", 0);
    rpc_free(second, "the test is over", 0);
    rpc = second = NULL;
    bare_worker_kill(&agent);
    folder_remove(folder);
}

static void wait_for_call(void)
{
    struct monotime until = monotime_add_us(monotime_now(), 20000000);
    while (called == NULL && monotime_before(monotime_now(), until))
        ck_assert_int_eq(rpc_turn(rpc, until), STATUS_OK);
    ck_assert_ptr_nonnull(called);
}

static void join_as(struct rpc **joined, uint16_t worker, uint32_t incarnation)
{
    static const uint8_t roster[] = {WIRE_ROLE_AGENT, WIRE_ROLE_OBSERVER, WIRE_ROLE_OBSERVER};
    char address[CONTROL_ADDRESS_BYTES + 8];
    bare_worker_address(&agent, address);
    struct rpc_address server = {0, address};
    struct rpc_config config = {.worker = worker,
                                .role = WIRE_ROLE_OBSERVER,
                                .incarnation = incarnation,
                                .generation = 1,
                                .roster = roster,
                                .workers = agent_workers,
                                .pending_max = 4,
                                .incoming_max = 4,
                                .rows_max = 8,
                                .methods = methods,
                                .method_count = 1};
    struct error error;
    enum status status =
        net_connect(joined, &config, &server, 1, monotime_add_us(monotime_now(), 20000000), &error);
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void join(void)
{
    bare_worker_expect(&agent, CONTROL_BOUND);
    bare_worker_expect(&agent, CONTROL_READY);
    join_as(&rpc, 1, 1);
}

/* The observer dies without a word. */
static void end_observer(uint32_t incarnation)
{
    struct control_died died = {.worker = 1, .incarnation = incarnation, .text = "the test says so"};
    ck_assert_int_eq(control_send(agent.control, CONTROL_DIED, &died, sizeof died), STATUS_OK);
    rpc_free(rpc, "the test says so", 0);
    rpc = NULL;
    called = NULL;
}

/* The observer dies; its successor joins, and is asked to play the same episode. */
static void replace_observer(uint32_t successor)
{
    const uint64_t running = episode;
    end_observer(successor - 1);
    join_as(&rpc, 1, successor);
    wait_for_call();
    ck_assert_uint_eq(episode, running);
}

static void good_rows(uint64_t step)
{
    rows = (struct rows){.args = {episode, step}, .count = ENVIRONMENTS};
    for (uint32_t i = 0; i < ENVIRONMENTS; i++) {
        rows.environments[i] = i;
        rows.rewards[i] = step > 0 ? 1 : 0;
        for (uint32_t j = 0; j < 4; j++)
            rows.observations[4 * i + j] = 0.01f * (float)(step + i + j);
    }
}

/* Sends `rows`. The caller releases the future. */
static struct future *send_step(void)
{
    struct rpc_message request = {.tensor_count = 4,
                                  .tensors = {{.dtype = WIRE_U32, .rank = 1, .dims = {rows.count}},
                                              {.dtype = WIRE_F32, .rank = 2, .dims = {rows.count, 4}},
                                              {.dtype = WIRE_F32, .rank = 1, .dims = {rows.count}},
                                              {.dtype = WIRE_U8, .rank = 1, .dims = {rows.count}}},
                                  .data = {rows.environments, rows.observations, rows.rewards, rows.flags}};
    struct future *answer = NULL;
    struct error error = {0};
    memcpy(request.args, rows.args, sizeof request.args);
    rpc_call_async(rpc, 0, METHOD_STEP, &request, monotime_add_us(monotime_now(), 20000000), &answer, &error);
    return answer;
}

/* Sends `rows`; the answer's status, its actions into `actions`, its error into `error`. */
static enum status step(uint8_t actions[ENVIRONMENTS], struct error *error)
{
    struct future *answer = send_step();
    if (answer == NULL)
        return STATUS_PEER_DIED;
    enum status status = rpc_wait(rpc, answer, error);
    if (status != STATUS_OK) {
        future_release(answer);
        return status;
    }
    const struct rpc_message *value = future_value(answer);
    ck_assert_uint_eq(value->tensor_count, 1);
    ck_assert_uint_eq(value->tensors[0].dims[0], rows.count);
    memcpy(actions, value->data[0], rows.count);
    future_release(answer);
    return STATUS_OK;
}

static void play_steps(uint64_t from, uint64_t to)
{
    uint8_t actions[ENVIRONMENTS];
    struct error error = {0};
    for (uint64_t i = from; i < to; i++) {
        good_rows(i);
        enum status status = step(actions, &error);
        ck_assert_msg(status == STATUS_OK, "step %d: %s", (int)i, error.text);
        for (uint32_t e = 0; e < rows.count; e++)
            ck_assert_uint_le(actions[e], 1);
    }
}

static void answer_episode(const float *rewards, const uint8_t *flags, const uint32_t *steps)
{
    struct rpc_message value = {.tensor_count = 3,
                                .tensors = {{.dtype = WIRE_F32, .rank = 1, .dims = {ENVIRONMENTS}},
                                            {.dtype = WIRE_U8, .rank = 1, .dims = {ENVIRONMENTS}},
                                            {.dtype = WIRE_U32, .rank = 1, .dims = {ENVIRONMENTS}}},
                                .data = {rewards, flags, steps}};
    rpc_reply(called, &value);
    called = NULL;
    for (int i = 0; i < 3; i++)
        rpc_turn(rpc, (struct monotime){1});
}

static void expect_no_session(void)
{
    struct monotime until = monotime_add_us(monotime_now(), 20000000);
    while (!rpc_is_gone(rpc, 0) && monotime_before(monotime_now(), until))
        rpc_turn(rpc, until);
    ck_assert(rpc_is_gone(rpc, 0));
}

static const float ones[] = {1, 1, 1};
static const uint32_t five[] = {STEPS, STEPS, STEPS};

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
    uint8_t actions[ENVIRONMENTS];
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
static void too_few_rows(void)
{
    rows.count = 2;
}
static void foreign_environment(void)
{
    rows.environments[2] = 3;
}
static void unordered_environments(void)
{
    rows.environments[0] = 1;
    rows.environments[1] = 0;
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
    rows.flags[0] = 4;
}

static const struct {
    void (*spoil)(void);
    const char *wanted;
} bad_steps[] = {
    {wrong_episode, "expected the running episode, 1"},
    {step_ahead, "step 3: expected 2"},
    {step_behind, "step 0: expected 2"},
    {too_few_rows, "2 rows: expected one for each of 3"},
    {foreign_environment, "row 2 is of environment 3"},
    {unordered_environments, "row 1 is of environment 0"},
    {twice_the_same, "row 1 is of environment 0"},
    {nan_observation, "not finite"},
    {infinite_reward, "not finite"},
    {unknown_flags, "row 0 has flags 4"},
};

START_TEST(a_bad_step_costs_its_sender_the_session)
{
    uint8_t actions[ENVIRONMENTS];
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
    uint8_t actions[ENVIRONMENTS];
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
} bad_answers[] = {{NAN, 0, STEPS}, {1, 4, STEPS}, {1, 0, STEPS - 1}, {1, 0, STEPS + 1}, {1, 0, 0}};

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

/* ---- a successor ---- */

/* It gets the actions that its predecessor got, and goes on from there. The record is the same. */
START_TEST(a_successor_plays_the_episode_again)
{
    uint8_t first[STEPS][ENVIRONMENTS], again[ENVIRONMENTS];
    struct error error;
    start_agent("steps");
    join();
    wait_for_call();
    for (uint32_t died_at = 0; died_at <= STEPS; died_at++) {
        for (uint64_t i = 0; i < died_at; i++) {
            good_rows(i);
            ck_assert_int_eq(step(again, &error), STATUS_OK);
            if (i + 1 < died_at)
                ck_assert_mem_eq(again, first[i], ENVIRONMENTS);
            else
                memcpy(first[i], again, ENVIRONMENTS);
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
    uint8_t actions[ENVIRONMENTS];
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
    uint8_t actions[ENVIRONMENTS];
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
    bare_worker_expect(&agent, CONTROL_READY);
    join_as(&second, 2, 1);
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
    tcase_add_test(episodes, a_successor_plays_the_episode_again);
    tcase_add_test(episodes, a_successor_plays_ended_environments_again);
    tcase_add_loop_test(episodes, a_successor_that_plays_something_else_is_refused, 0,
                        sizeof other_steps / sizeof other_steps[0]);
    tcase_add_test(episodes, a_successor_that_stops_early_is_refused);
    tcase_add_test(episodes, a_successor_that_dies_while_its_step_waits_has_a_successor);
    tcase_add_test(episodes, an_episode_that_lacks_its_observer_is_given_up);
    tcase_add_test(episodes, environments_that_end_leave_the_barrier);
    tcase_add_loop_test(episodes, a_bad_step_costs_its_sender_the_session, 0,
                        sizeof bad_steps / sizeof bad_steps[0]);
    tcase_add_test(episodes, a_row_of_an_ended_environment_is_refused);
    tcase_add_loop_test(episodes, a_bad_answer_costs_its_sender_the_session, 0,
                        sizeof bad_answers / sizeof bad_answers[0]);
    tcase_add_test(episodes, drain_finishes_the_episode_and_hurry_gives_it_up);
    suite_add_tcase(suite, episodes);
    return suite_run(suite);
}
