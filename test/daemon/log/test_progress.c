/* How far a run has come: units, totals, the rest's time, and what a terminal of any width shows of them. */
#include "daemon/log/progress.h"
#include "test/workplace.h"

#include <check.h>
#include <math.h>
#include <string.h>

static struct progress progress;
static struct job job;
static struct monotime now;
static struct control_message record;

static void setup(void)
{
    memset(&progress, 0, sizeof progress);
    memset(&job, 0, sizeof job);
    memset(&record, 0, sizeof record);
    now.ns = 1000000000;
}

static void note(double seconds)
{
    now = monotime_add_us(now, (uint64_t)(seconds * 1e6));
    progress_note(&progress, &job, &record, now);
}

static void note_update(uint64_t update, double seconds)
{
    record.kind = CONTROL_UPDATE;
    record.body.update =
        (struct control_update){.update = update, .loss = 0.35118, .samples = 186, .timing = {.round_s = 2}};
    note(seconds);
}

static void note_steps(uint64_t steps, double reward, double seconds)
{
    record.kind = CONTROL_EPISODE;
    record.body.episode =
        (struct control_episode){.episode = steps / 256, .env_steps = 256, .has_figures = true};
    record.body.episode.timing.episode_s = 0.5;
    record.body.episode.figures.total_timesteps = steps;
    record.body.episode.figures.ep_rew_mean = reward;
    note(seconds);
}

static void note_episode(uint64_t episode, double running_reward)
{
    record.kind = CONTROL_EPISODE;
    record.body.episode = (struct control_episode){
        .episode = episode, .running_reward = running_reward, .env_steps = 20, .timing = {.episode_s = 4}};
    note(1);
}

static void expect(unsigned columns, const char *expected)
{
    char text[PROGRESS_TEXT_BYTES];
    progress_text(text, &progress, columns);
    ck_assert_str_eq(text, expected);
    ck_assert_uint_le(strlen(text), columns);
}

START_TEST(nothing_is_known_at_first)
{
    char sum[PROGRESS_TEXT_BYTES];
    expect(80, "");
    progress_sum_up(sum, &progress);
    ck_assert_str_eq(sum, "");
}
END_TEST

/* The first record says nothing of a rate. */
START_TEST(updates_count_to_their_end)
{
    job.kind = JOB_PARAMETER_SERVER;
    job.stop.has_updates = true;
    job.stop.updates = 940;
    note_update(20, 5);
    expect(80, "update 20/940  2 %  loss 0.3512  93 samples/s");
    note_update(119, 18.2);
    ck_assert_double_eq_tol(progress.eta_s, (940 - 119) / (99 / 18.2), 1e-9);
    expect(200, "update 119/940  12 %  loss 0.3512  93 samples/s  ETA 2:30");
    expect(80, "update 119/940  12 %  loss 0.3512  93 samples/s  ETA 2:30");
    expect(44, "update 119/940  12 %  loss 0.3512  ETA 2:30");
    expect(43, "update 119/940  12 %  loss 0.3512  ETA 2:30");
    expect(42, "update 119/940  12 %  ETA 2:30");
    expect(29, "update 119/940  ETA 2:30");
    expect(20, "update 119/940");
    expect(14, "update 119/940");
    expect(13, "update 119");
    expect(9, "update 11");
    note_update(940, 1);
    expect(80, "update 940/940  100 %  loss 0.3512  93 samples/s  ETA 0:00");
}
END_TEST

/* An epoch's updates are known once one has ended; the earlier of two ends counts. */
START_TEST(epochs_are_counted_in_updates)
{
    job.kind = JOB_PARAMETER_SERVER;
    job.stop.has_epochs = true;
    job.stop.epochs = 6;
    note_update(100, 1);
    expect(80, "update 100  loss 0.3512  93 samples/s");
    record.kind = CONTROL_EPOCH;
    record.body.epoch = (struct control_epoch){.epoch = 2, .update = 200};
    note(0);
    note_update(201, 1);
    ck_assert_uint_eq(progress.total, 600);
    job.stop.has_updates = true;
    job.stop.updates = 500;
    note_update(202, 1);
    ck_assert_uint_eq(progress.total, 500);
}
END_TEST

/* A generation that goes back to a checkpoint before this process's begin begins the rate anew. */
START_TEST(a_run_may_go_back)
{
    job.stop.has_updates = true;
    job.stop.updates = 100;
    note_update(50, 1);
    note_update(60, 10);
    ck_assert_double_eq(progress.eta_s, 40);
    note_update(41, 10);
    ck_assert(isnan(progress.eta_s));
    note_update(42, 1);
    ck_assert_double_eq(progress.eta_s, 58);
}
END_TEST

START_TEST(steps_count_and_the_goal_is_shown)
{
    char sum[PROGRESS_TEXT_BYTES];
    job.stop.steps = 51200;
    note_steps(256, 17.889, 1);
    expect(80, "step 256/51200  0 %  reward 17.89  512 steps/s");
    job.stop.has_evaluation_reward = true;
    job.stop.evaluation_reward = 475;
    note_steps(10240, 84.18, 2);
    expect(100, "step 10240/51200  20 %  reward 84.18 of 475  512 steps/s  ETA 0:08");
    record.body.episode.figures.has_evaluation = true;
    record.body.episode.figures.evaluation.mean_reward = 491.2;
    record.body.episode.figures.evaluation.std_reward = 30.387;
    note(0);
    expect(100, "step 10240/51200  20 %  evaluation 491.20 of 475  512 steps/s  ETA 0:08");
    note_steps(10496, NAN, 1); /* the newest evaluation stays */
    ck_assert_double_eq(progress.value, 491.2);
    progress_sum_up(sum, &progress);
    ck_assert_str_eq(sum, "10496 steps, evaluation 491.20 +- 30.39");
}
END_TEST

START_TEST(episodes_without_an_end_have_a_goal)
{
    job.stop.has_running_reward = true;
    job.stop.running_reward = 475;
    char sum[PROGRESS_TEXT_BYTES];
    note_episode(1, 12.345);
    progress_sum_up(sum, &progress);
    ck_assert_str_eq(sum, "1 episode, running reward 12.35 of 475");
    note_episode(3, 12.345);
    expect(80, "episode 3  running reward 12.35 of 475  5.0 steps/s");
    job.stop.has_episodes = true;
    job.stop.episodes = 1000000;
    note_episode(4, 12.345);
    expect(100, "episode 4/1000000  0 %  running reward 12.35 of 475  5.0 steps/s  ETA 7 d 17 h");
    job.stop.episodes = 10000;
    note_episode(5, 12.345);
    expect(100, "episode 5/10000  0 %  running reward 12.35 of 475  5.0 steps/s  ETA 2:04:56");
}
END_TEST

/* The evaluation stays when all else has no room; the record behind it ends it. */
START_TEST(an_evaluation_is_shown_with_and_without_records)
{
    progress.evaluating = (struct control_share){37, 100};
    expect(80, "evaluating 37/100");
    job.stop.steps = 51200;
    note_steps(256, 17.889, 1);
    expect(80, "step 256/51200  0 %  reward 17.89  512 steps/s");
    note_steps(10240, 17.889, 2);
    progress.evaluating = (struct control_share){37, 100};
    expect(200, "step 10240/51200  20 %  reward 17.89  512 steps/s  ETA 0:08  evaluating 37/100");
    expect(79, "step 10240/51200  20 %  reward 17.89  512 steps/s  ETA 0:08  evaluating 37/100");
    expect(45, "step 10240/51200  ETA 0:08  evaluating 37/100");
    expect(44, "step 10240/51200  evaluating 37/100");
    expect(19, "evaluating 37/100");
    expect(16, "evaluating 37");
    progress.evaluating.done = 100;
    expect(80, "step 10240/51200  20 %  reward 17.89  512 steps/s  ETA 0:08");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("progress");
    TCase *tests = tcase_create("progress");
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, nothing_is_known_at_first);
    tcase_add_test(tests, updates_count_to_their_end);
    tcase_add_test(tests, epochs_are_counted_in_updates);
    tcase_add_test(tests, a_run_may_go_back);
    tcase_add_test(tests, steps_count_and_the_goal_is_shown);
    tcase_add_test(tests, episodes_without_an_end_have_a_goal);
    tcase_add_test(tests, an_evaluation_is_shown_with_and_without_records);
    suite_add_tcase(suite, tests);
    return suite_run(suite);
}
