/* The picture of a run (daemon/watch/run_status.h): the sums over its records, and its JSON. */
#include "daemon/watch/run_status.h"
#include "test/workplace.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct control_message record;
static struct run_totals totals;
static struct job job;

static struct monotime second(unsigned s)
{
    return (struct monotime){(uint64_t)(100 + s) * 1000000000u};
}

static void add_episode(uint64_t number, unsigned s)
{
    record = (struct control_message){.kind = CONTROL_EPISODE};
    struct control_episode *episode = &record.body.episode;
    episode->episode = number;
    episode->reward = 10;
    episode->running_reward = 12.5;
    episode->env_steps = 500;
    episode->timing.launches = 50;
    episode->timing.requests = 100;
    episode->timing.batch_mean = 10;
    episode->timing.wait_s = 0.25;
    episode->timing.batches[0] = 1;
    episode->timing.batches[4] = 49;
    episode->timing.waits[2] = 90;
    episode->timing.waits[CONTROL_WAIT_BUCKETS - 1] = 10;
    run_totals_add(&totals, &record, second(s));
}

static void add_update(uint64_t number, double wait_s, unsigned s)
{
    record = (struct control_message){.kind = CONTROL_UPDATE};
    record.body.update = (struct control_update){.update = number,
                                                 .loss = 0.5,
                                                 .samples = 40,
                                                 .late = 1,
                                                 .trainers = 3,
                                                 .staleness = {0, -1, 40},
                                                 .timing = {.wait_s = wait_s}};
    run_totals_add(&totals, &record, second(s));
}

START_TEST(episodes_add_up)
{
    for (unsigned i = 0; i < 4; i++)
        add_episode(7 + i, i);
    ck_assert_uint_eq(totals.episodes, 4);
    ck_assert_uint_eq(totals.environment_steps, 2000);
    ck_assert_uint_eq(totals.launches, 200);
    ck_assert_uint_eq(totals.launched_rows, 2000);
    ck_assert_uint_eq(totals.batches[0], 4);
    ck_assert_uint_eq(totals.batches[4], 196);
    ck_assert_uint_eq(totals.waits[2], 360);
    ck_assert_uint_eq(totals.waits[CONTROL_WAIT_BUCKETS - 1], 40);
    ck_assert_double_eq(totals.wait_s, 1);
    ck_assert_double_eq(totals.per_s, 500);
    ck_assert_uint_eq(totals.episode.episode, 10);
}
END_TEST

/* Most updates have no evaluation; the newest one stays known until the next. */
START_TEST(an_evaluation_stays)
{
    add_episode(1, 0);
    ck_assert(!totals.has_evaluation);
    record.body.episode.has_figures = record.body.episode.figures.has_evaluation = true;
    record.body.episode.figures.evaluation.mean_reward = 42;
    run_totals_add(&totals, &record, second(1));
    add_episode(3, 2);
    ck_assert(totals.has_evaluation);
    ck_assert_double_eq(totals.evaluation.mean_reward, 42);
}
END_TEST

START_TEST(updates_add_up)
{
    add_update(1, 0.00001, 0);
    add_update(2, 0.0003, 0);
    add_update(3, 70, 2);
    ck_assert_uint_eq(totals.updates, 3);
    ck_assert_uint_eq(totals.samples, 120);
    ck_assert_uint_eq(totals.late, 3);
    ck_assert_uint_eq(totals.round_waits[0], 1); /* 10 us are within the first */
    ck_assert_uint_eq(totals.round_waits[1], 1); /* 300 us are not */
    ck_assert_uint_eq(totals.round_waits[RUN_ROUND_BUCKETS - 1], 1);
    ck_assert_uint_eq(totals.staleness[0], 3);
    ck_assert_uint_eq(totals.staleness[RUN_STALENESS_BUCKETS - 1], 3);
    ck_assert_uint_eq(totals.staleness_sum, 120);
    ck_assert_double_eq(totals.per_s, 40);
}
END_TEST

/* A model-parallel job has a line for several updates, and no rounds. */
START_TEST(lines_that_skip_updates_count_them)
{
    record = (struct control_message){.kind = CONTROL_UPDATE};
    record.body.update = (struct control_update){.update = 20, .samples = 100};
    run_totals_add(&totals, &record, second(0));
    record.body.update.update = 40;
    run_totals_add(&totals, &record, second(1));
    ck_assert_uint_eq(totals.updates, 21);
    ck_assert_uint_eq(totals.rounds, 0);
}
END_TEST

START_TEST(an_epoch_that_was_evaluated_stays)
{
    record = (struct control_message){.kind = CONTROL_EPOCH};
    record.body.epoch = (struct control_epoch){.epoch = 1, .evaluated = 10, .correct = 5};
    run_totals_add(&totals, &record, second(0));
    record.body.epoch = (struct control_epoch){.epoch = 2};
    run_totals_add(&totals, &record, second(1));
    ck_assert_uint_eq(totals.epoch.epoch, 1);
}
END_TEST

static struct progress progress_so_far = {
    .unit = "update", .done = 119, .total = 940, .goal = (double)NAN, .eta_s = 151};

static struct run_status status_of(struct worker_status *workers, uint32_t count)
{
    return (struct run_status){.path = "/runs/\"one\"",
                               .job = &job,
                               .state = "training",
                               .pid = 4711,
                               .update = 10,
                               .running_reward = 12.5,
                               .checkpoint_age_s = (double)NAN,
                               .totals = &totals,
                               .progress = &progress_so_far,
                               .worker_count = count,
                               .workers = workers};
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    ck_assert_msg(cJSON_IsNumber(item), "%s", name);
    return item->valuedouble;
}

START_TEST(the_document_has_what_is_known)
{
    struct worker_status workers[2] = {{.role = "agent",
                                        .state = "running",
                                        .host_name = "",
                                        .pid = 12,
                                        .staleness = (double)NAN,
                                        .wait_s = 0.5},
                                       {.worker = 1,
                                        .role = "observer",
                                        .state = "gone",
                                        .host_name = "node \\2",
                                        .staleness = (double)NAN,
                                        .wait_s = (double)INFINITY,
                                        .has_use = true,
                                        .use = {.work = UINT64_C(1) << 40, .stale = 3}}};
    const struct run_status status = status_of(workers, 2);
    add_episode(10, 0);
    char *text = run_status_json(&status);
    ck_assert_ptr_nonnull(text);
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
    cJSON *root = cJSON_Parse(text);
    ck_assert_str_eq(cJSON_GetObjectItem(root, "run")->valuestring, "/runs/\"one\"");
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(root, "checkpoint")));
    const cJSON *progress = cJSON_GetObjectItem(root, "progress"),
                *list = cJSON_GetObjectItem(root, "workers");
    ck_assert_double_eq(number(progress, "episode"), 10);
    ck_assert_double_eq(number(progress, "running_reward"), 12.5);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(progress, "steps_per_s"))); /* of one episode */
    ck_assert_str_eq(cJSON_GetObjectItem(progress, "unit")->valuestring, "update");
    ck_assert_double_eq(number(progress, "done"), 119);
    ck_assert_double_eq(number(progress, "total"), 940);
    ck_assert_double_eq(number(progress, "eta_s"), 151);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(progress, "goal")));
    ck_assert_int_eq(cJSON_GetArraySize(list), 2);
    const cJSON *agent = cJSON_GetArrayItem(list, 0), *observer = cJSON_GetArrayItem(list, 1);
    ck_assert_double_eq(number(agent, "wait_s"), 0.5);
    ck_assert_ptr_null(cJSON_GetObjectItem(agent, "work")); /* it has not told */
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(observer, "pid")));
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(observer, "wait_s")));
    ck_assert_double_eq(number(observer, "work"), 0x1p40);
    ck_assert_double_eq(number(cJSON_GetObjectItem(observer, "dropped"), "stale"), 3);
    cJSON_Delete(root);
    cJSON_free(text);
}
END_TEST

static void expect_state(const char *state, const char *wanted, bool evaluates)
{
    struct run_status status = status_of(NULL, 0);
    status.state = state;
    char *text = run_status_json(&status);
    cJSON *root = cJSON_Parse(text);
    const cJSON *evaluating = cJSON_GetObjectItem(cJSON_GetObjectItem(root, "progress"), "evaluating");
    ck_assert_str_eq(cJSON_GetObjectItem(root, "state")->valuestring, wanted);
    ck_assert_int_eq(evaluating != NULL, evaluates);
    if (evaluates) {
        ck_assert_double_eq(number(evaluating, "done"), 37);
        ck_assert_double_eq(number(evaluating, "total"), 100);
    }
    cJSON_Delete(root);
    cJSON_free(text);
}

START_TEST(an_evaluation_is_a_state_with_numbers)
{
    expect_state("training", "training", false);
    progress_so_far.evaluating = (struct control_share){37, 100};
    expect_state("training", "evaluating 37/100", true);
    expect_state("stopping", "stopping", true);
    progress_so_far.evaluating.done = 100;
    expect_state("training", "training", false);
}
END_TEST

static void begin(void)
{
    memset(&totals, 0, sizeof totals);
    memset(&job, 0, sizeof job);
    job.kind = JOB_REINFORCE;
}

int main(void)
{
    Suite *suite = suite_create("run_status");
    TCase *tcase = tcase_create("sums");
    tcase_add_checked_fixture(tcase, begin, NULL);
    tcase_add_test(tcase, episodes_add_up);
    tcase_add_test(tcase, an_evaluation_stays);
    tcase_add_test(tcase, updates_add_up);
    tcase_add_test(tcase, lines_that_skip_updates_count_them);
    tcase_add_test(tcase, an_epoch_that_was_evaluated_stays);
    tcase_add_test(tcase, the_document_has_what_is_known);
    tcase_add_test(tcase, an_evaluation_is_a_state_with_numbers);
    suite_add_tcase(suite, tcase);
    return suite_run(suite);
}
