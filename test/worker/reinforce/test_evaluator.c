/* Evaluations by observers: sums that do not depend on the spread, a successor that begins again, and every
 * kind of request and answer that is refused. The world has two agents, masks and a metric; its episodes are
 * made up. */
#include "test/workplace.h"
#include "worker/environment/environment_description.h"
#include "worker/reinforce/evaluator.h"
#include "worker/reinforce/job_open.h"
#include "worker/worker.h"

#include <check.h>
#include <math.h>

#define JOB                                                                                                  \
    "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"algorithm\":{\"name\":\"ppo\"},"                           \
    "\"policy\":{\"hidden\":[4]},\"environment\":{\"gymnasium\":\"World-v0\"},"                              \
    "\"evaluation\":{\"every\":1}}"

#define WORLD                                                                                                \
    "{\"name\":\"World-v0\",\"agents\":2,\"steps_max\":0,\"mask\":true,\"can_seed\":true,"                   \
    "\"can_save\":true,\"singleton\":false,\"metrics\":[\"is_success\"],\"observation\":{\"dtype\":"         \
    "\"float32\","                                                                                           \
    "\"shape\":[2]},"                                                                                        \
    "\"action\":{\"dtype\":\"int32\",\"shape\":[],\"choices\":3}}"

enum { EPISODES = 5, AGENTS = 2, CHOICES = 3, LONGEST = 3, ROWS = EPISODES * AGENTS };

static struct error error;
static struct worker worker;
static struct environment_description world;
static struct evaluator *evaluator;
static struct share {
    uint32_t first, count;
} shares[8]; /* as the evaluator asks for them */

/* One request, or one answer, and its arrays. */
static struct {
    struct rpc_message message;
    uint32_t numbers[EPISODES], lengths[EPISODES];
    float observations[2 * ROWS * 2], rewards[2 * ROWS];
    uint8_t flags[ROWS][1 + CHOICES], last[ROWS];
} sent;

static void must(enum status status)
{
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void setup(void)
{
    char *problems = NULL;
    ck_assert_int_eq(job_parse(&worker.job, JOB, strlen(JOB), "job.json", NULL, 0, &problems), STATUS_OK);
    must(environment_description_read(&world, WORLD, strlen(WORLD), &error));
    worker.job.evaluation.episodes = EPISODES;
    worker.job.evaluation.steps = LONGEST;
    worker.job.evaluation.deterministic = true;
}

static void teardown(void)
{
    evaluator_free(evaluator);
    environment_description_fini(&world);
    evaluator = NULL;
}

static void open_shares(uint32_t count)
{
    worker.job.observers.count = count;
    must(evaluator_new(&evaluator, &worker, &world.spec, &error));
}

/* ---- the made-up episodes ---- */

/* Episode e ends with step 1 + e % 3: the third one is cut, and no flag says so. */
static uint32_t length_of(uint32_t episode)
{
    return 1 + episode % LONGEST;
}

static float reward_of(uint32_t episode, uint32_t agent, uint32_t step)
{
    return (float)episode + 0.5f * (float)agent + 0.25f * (float)step;
}

/* The request of step `step`, with the rows of those of `count` episodes from `first` on that go on. */
static const struct rpc_message *request_of(uint32_t first, uint32_t count, uint32_t step)
{
    uint32_t n = 0;
    memset(&sent, 0, sizeof sent);
    for (uint32_t e = first; e < first + count; e++) {
        if (step >= length_of(e))
            continue;
        for (uint32_t a = 0; a < AGENTS; a++) {
            sent.rewards[n * AGENTS + a] = step > 0 ? reward_of(e, a, step - 1) : 0;
            sent.flags[n * AGENTS + a][1 + (e + step) % CHOICES] = 1; /* one choice is left */
        }
        sent.numbers[n++] = e;
    }
    sent.message = (struct rpc_message){.args = {0, step, 0},
                                        .tensor_count = STEP_TENSORS,
                                        .data = {sent.numbers, sent.observations, sent.rewards, sent.flags}};
    step_tensors(sent.message.tensors, &world.spec, n, 0);
    return &sent.message;
}

/* The answer that ends the episodes: both agents of one that is not cut have ended, with the goal e. */
static const struct rpc_message *answer_of(uint32_t first, uint32_t count)
{
    uint32_t floats = count * AGENTS;
    memset(&sent, 0, sizeof sent);
    for (uint32_t i = 0; i < count * AGENTS; i++) {
        const uint32_t e = first + i / AGENTS;
        sent.lengths[i / AGENTS] = length_of(e);
        sent.rewards[i] = reward_of(e, i % AGENTS, length_of(e) - 1);
        sent.last[i] = length_of(e) < LONGEST ? ENVIRONMENT_TERMINATED : 0;
        if (sent.last[i] != 0)
            sent.rewards[floats++] = (float)e;
    }
    sent.message = (struct rpc_message){.tensor_count = RETURN_STATES,
                                        .tensors = {{.dtype = WIRE_F32, .rank = 1, .dims = {floats}},
                                                    {.dtype = WIRE_U8, .rank = 1, .dims = {count * AGENTS}},
                                                    {.dtype = WIRE_U32, .rank = 1, .dims = {count}}},
                                        .data = {sent.rewards, sent.last, sent.lengths}};
    return &sent.message;
}

/* Decodes the request, and takes it as one of share `index`. */
static enum status take(uint32_t index, const struct rpc_message *request, struct rpc_message *answer)
{
    struct step step;
    const enum status status = step_decode(&step, request, &world.spec, EPISODES, &error);
    return status == STATUS_OK ? evaluator_step(evaluator, index, &step, answer, &error) : status;
}

/* Begins share `index`, and plays its first `steps` steps. */
static void play_steps(uint32_t index, uint32_t steps)
{
    struct rpc_message call, answer;
    struct share *share = &shares[index];
    *share = (struct share){0};
    if (!evaluator_begin_share(evaluator, index, &call))
        return;
    *share = (struct share){(uint32_t)call.args[EVALUATION_FIRST], (uint32_t)call.args[EVALUATION_EPISODES]};
    for (uint32_t step = 0; step < steps; step++) {
        const struct rpc_message *request = request_of(share->first, share->count, step);
        const uint32_t n = request->tensors[STEP_ENVIRONMENT].dims[0];
        must(take(index, request, &answer));
        ck_assert_uint_eq(answer.tensors[0].dims[0], n * AGENTS);
        for (uint32_t i = 0; i < n * AGENTS; i++)
            ck_assert_uint_eq(((const uint32_t *)answer.data[0])[i],
                              (sent.numbers[i / AGENTS] + step) % CHOICES);
    }
}

/* The steps of the longest of the share's episodes. */
static uint32_t longest_of(uint32_t index)
{
    uint32_t longest = 0;
    for (uint32_t e = shares[index].first; e < shares[index].first + shares[index].count; e++)
        longest = length_of(e) > longest ? length_of(e) : longest;
    return longest;
}

static void play_share(uint32_t index)
{
    play_steps(index, 0);
    play_steps(index, longest_of(index));
    if (shares[index].count > 0)
        must(evaluator_end_share(evaluator, index, answer_of(shares[index].first, shares[index].count)));
}

static void expect_sums(void)
{
    const struct control_evaluation found = evaluator_end(evaluator);
    double mean = 0, length = 0;
    for (uint32_t e = 0; e < EPISODES; e++) {
        length += length_of(e) / (double)EPISODES;
        for (uint32_t step = 0; step < length_of(e); step++)
            mean += (double)(reward_of(e, 0, step) + reward_of(e, 1, step)) / 2 / EPISODES;
    }
    ck_assert_double_eq_tol(found.mean_reward, mean, 1e-12);
    ck_assert_double_eq_tol(found.mean_ep_length, length, 1e-12);
    ck_assert_double_eq(found.success_rate, (0 + 1 + 3 + 4) / 4.0); /* episode 2 is cut */
}

/* ---- what they come to ---- */

START_TEST(sums_do_not_depend_on_the_spread)
{
    open_shares((uint32_t)_i);
    for (uint32_t i = (uint32_t)_i; i-- > 0;) /* in any order */
        play_share(i);
    expect_sums();
}
END_TEST

START_TEST(a_second_evaluation_begins_from_nothing)
{
    open_shares(2);
    for (uint32_t i = 0; i < 4; i++)
        play_share(i % 2);
    expect_sums();
}
END_TEST

START_TEST(a_successor_begins_the_share_again)
{
    open_shares(2);
    play_share(0);
    for (uint32_t steps = 0; steps < 3; steps++)
        play_steps(1, steps);
    play_share(1);
    expect_sums();
}
END_TEST

static void expect_done(uint32_t done)
{
    ck_assert_uint_eq(worker.evaluation.done, done);
    ck_assert_uint_eq(worker.evaluation.total, EPISODES);
}

/* An episode counts from the step on that does not ask for it. A share that begins again loses its count. */
START_TEST(ended_episodes_are_counted)
{
    const struct policy_config config = policy_config_of(&worker.job, &world.spec);
    struct policy *policy;
    open_shares(2);
    must(policy_new(&policy, &config, NULL, &error));
    for (int i = 0; i < 2; i++) {
        must(evaluator_begin(evaluator, policy, NULL, NULL, &error));
        expect_done(0);
        play_share(0); /* episodes 0 and 1 */
        expect_done(2);
        play_steps(1, 2); /* episode 3 has one step, 4 has two, and 2 has three */
        expect_done(3);
        play_steps(1, 0);
        expect_done(2);
        play_steps(1, 3);
        expect_done(4);
        must(evaluator_end_share(evaluator, 1, answer_of(2, 3)));
        expect_done(5);
    }
    policy_free(policy);
}
END_TEST

/* ---- what is refused ---- */

static void refuse(const struct rpc_message *request, const char *words)
{
    struct rpc_message answer;
    ck_assert_int_eq(take(1, request, &answer), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, words) != NULL, "\"%s\" has no \"%s\"", error.text, words);
}

/* Share 1 of two has episodes 2 to 4, of 3, 1 and 2 steps. */
START_TEST(requests_that_do_not_follow_are_refused)
{
    open_shares(2);
    play_share(1);
    refuse(request_of(2, 3, 0), "from an observer with episodes to evaluate");
    play_steps(1, 1);
    request_of(2, 3, 1);
    sent.message.args[0] = 1;
    refuse(&sent.message, "a step of episode 1");
    request_of(2, 3, 1);
    sent.message.args[2] = 1;
    refuse(&sent.message, "group 1");
    refuse(request_of(2, 3, 0), "step 0 of an evaluation: expected step 1");
    refuse(request_of(2, 3, 2), "step 2 of an evaluation: expected step 1");
    request_of(2, 3, 1);
    sent.message.tensor_count = 0;
    refuse(&sent.message, "step 1 of an evaluation has no rows");
    struct rpc_message answer;
    must(take(1, request_of(2, 3, 1), &answer));
}
END_TEST

/* The agent of a job in C evaluates in its own process, and hears its observers meanwhile. */
START_TEST(a_step_is_refused_where_there_are_no_shares)
{
    static const char plain[] = "{\"kind\":\"reinforce\",\"device\":\"cpu\",\"algorithm\":{\"name\":\"ppo\"},"
                                "\"evaluation\":{\"every\":1}}";
    char *problems = NULL;
    ck_assert_int_eq(job_parse(&worker.job, plain, strlen(plain), "job.json", NULL, 0, &problems), STATUS_OK);
    open_shares(2);
    refuse(request_of(2, 3, 0), "from an observer with episodes to evaluate");
}
END_TEST

START_TEST(an_episode_without_a_first_step_is_refused)
{
    open_shares(2);
    play_steps(1, 0);
    request_of(2, 3, 0);
    step_tensors(sent.message.tensors, &world.spec, 2, 0);
    refuse(&sent.message, "2 rows at step 0: expected one for each of 3 episodes");
}
END_TEST

START_TEST(rows_that_the_share_does_not_have_are_refused)
{
    static const uint32_t wrong[][2] = {{1, 4}, {2, 5}, {4, 2}, {2, 2}, {2, 3}};
    open_shares(2);
    play_steps(1, 2); /* episode 3 is over, and so is 4 in the next step */
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        request_of(2, 3, 0);
        sent.message.args[1] = 2;
        step_tensors(sent.message.tensors, &world.spec, 2, 0);
        memcpy(sent.numbers, wrong[i], sizeof wrong[i]);
        refuse(&sent.message, "expected episodes that go on, ascending");
    }
}
END_TEST

/* Their sender could change them behind the check. Observations hold no number that is an index. */
START_TEST(numbers_in_shared_memory_are_refused)
{
    open_shares(2);
    for (unsigned t = 0; t < STEP_TENSORS; t++) {
        struct step step;
        request_of(2, 3, 0);
        sent.message.lent = (uint8_t)(1u << t);
        if (t != STEP_OBSERVATION)
            refuse(&sent.message, "in shared memory");
        else
            must(step_decode(&step, &sent.message, &world.spec, EPISODES, &error));
    }
}
END_TEST

/* The evaluator checks its own copy again: a refused step changes nothing. */
START_TEST(observations_that_change_behind_the_check_are_refused)
{
    struct rpc_message answer;
    struct step step;
    open_shares(1);
    play_steps(0, 0);
    request_of(0, EPISODES, 0);
    sent.message.lent = 1u << STEP_OBSERVATION;
    must(step_decode(&step, &sent.message, &world.spec, EPISODES, &error));
    sent.observations[1] = NAN;
    ck_assert_int_eq(evaluator_step(evaluator, 0, &step, &answer, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "that its sender has changed"));
    sent.observations[1] = 0;
    must(evaluator_step(evaluator, 0, &step, &answer, &error));
}
END_TEST

START_TEST(outcomes_that_cannot_be_are_refused)
{
    open_shares(2);
    play_steps(1, 0);
    request_of(2, 3, 0);
    sent.flags[0][0] = ENVIRONMENT_ABSENT;
    refuse(&sent.message, "has flags 16 at step 0");
    play_steps(1, 1);
    request_of(2, 3, 1);
    sent.flags[0][0] = sent.flags[1][0] = ENVIRONMENT_TERMINATED;
    step_tensors(sent.message.tensors, &world.spec, 2, 2);
    refuse(&sent.message, "episode 2 has flags 1 at step 1: expected an episode that goes on");
    request_of(2, 3, 1);
    sent.flags[2][0] = ENVIRONMENT_RESTARTED;
    refuse(&sent.message, "episode 4 has flags 4");
    request_of(2, 3, 1);
    memset(&sent.flags[3][1], 0, CHOICES);
    refuse(&sent.message, "an action mask that allows nothing");
    request_of(2, 3, 1);
    sent.rewards[1] = NAN;
    refuse(&sent.message, "not finite");
    play_steps(1, 3);
    request_of(2, 3, 2);
    sent.message.args[1] = 3;
    refuse(&sent.message, "step 3 of an evaluation: expected step 3, below 3");
}
END_TEST

/* An agent that has ended, while the other one goes on, reports its metric at once. */
START_TEST(an_agent_can_end_alone)
{
    struct rpc_message answer;
    open_shares(2);
    play_share(0);
    play_steps(1, 1);
    request_of(2, 3, 1);
    sent.flags[0][0] = ENVIRONMENT_TERMINATED | ENVIRONMENT_ABSENT;
    sent.rewards[4] = 100;
    step_tensors(sent.message.tensors, &world.spec, 2, 1);
    must(take(1, &sent.message, &answer));
    must(take(1, request_of(2, 3, 2), &answer));
    must(evaluator_end_share(evaluator, 1, answer_of(2, 3)));
    /* Two rows each of episodes 0, 1, 3 and 4, and one of episode 2. */
    ck_assert_double_eq(evaluator_end(evaluator).success_rate, (2 * (0 + 1 + 3 + 4) + 100) / 9.0);
}
END_TEST

static void refuse_end(void)
{
    ck_assert_int_eq(evaluator_end_share(evaluator, 1, &sent.message), STATUS_INVALID);
}

START_TEST(answers_that_do_not_match_are_refused)
{
    open_shares(2);
    play_steps(1, 2); /* a step too early */
    answer_of(2, 3);
    refuse_end();
    play_steps(1, 3);
    for (int t = 0; t < RETURN_STATES; t++) {
        answer_of(2, 3);
        sent.message.tensors[t].dims[0]--;
        refuse_end();
    }
    answer_of(2, 3);
    sent.message.tensors[RETURN_STATES] = (struct wire_tensor){.dtype = WIRE_U8, .rank = 1, .dims = {1}};
    sent.message.tensor_count++;
    refuse_end();
    answer_of(2, 3);
    sent.lengths[1]++;
    refuse_end();
    answer_of(2, 3);
    sent.last[2] = 0; /* episode 3 is not over */
    sent.message.tensors[RETURN_REWARD].dims[0]--;
    refuse_end();
    answer_of(2, 3);
    sent.rewards[0] = INFINITY;
    refuse_end();
    must(evaluator_end_share(evaluator, 1, answer_of(2, 3)));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("evaluator");
    TCase *all = tcase_create("shares");
    tcase_add_checked_fixture(all, setup, teardown);
    tcase_add_loop_test(all, sums_do_not_depend_on_the_spread, 1, 8);
    tcase_add_test(all, a_second_evaluation_begins_from_nothing);
    tcase_add_test(all, a_successor_begins_the_share_again);
    tcase_add_test(all, ended_episodes_are_counted);
    tcase_add_test(all, requests_that_do_not_follow_are_refused);
    tcase_add_test(all, a_step_is_refused_where_there_are_no_shares);
    tcase_add_test(all, an_episode_without_a_first_step_is_refused);
    tcase_add_test(all, rows_that_the_share_does_not_have_are_refused);
    tcase_add_test(all, numbers_in_shared_memory_are_refused);
    tcase_add_test(all, observations_that_change_behind_the_check_are_refused);
    tcase_add_test(all, outcomes_that_cannot_be_are_refused);
    tcase_add_test(all, an_agent_can_end_alone);
    tcase_add_test(all, answers_that_do_not_match_are_refused);
    suite_add_tcase(suite, all);
    return suite_run(suite);
}
