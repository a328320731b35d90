/* The returns of episodes that span rollouts, against sums by hand; the window of recent episodes, in the
 * order of their ends; both through a checkpoint's bytes. */
#include "test/worker/reinforce/rollout_rows.h"
#include "test/workplace.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/recording.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

enum {
    LIFE = ENVIRONMENT_LIFE_LOST,
    ENDS = ENVIRONMENT_TERMINATED,
    CUT = ENVIRONMENT_TRUNCATED,
    BROKE = ENVIRONMENT_FAILED,
    WINDOW = 100
};

static const struct environment_description world = {.spec.agents = 1};
static const uint8_t none[4];
static struct control_episode record;

/* Of REINFORCE, or with a window, of PPO. */
static struct job job_of(int of, uint32_t window)
{
    return (struct job){.rollout.begin = JOB_BEGIN_CONTINUE,
                        .running_reward.of = of,
                        .algorithm = {.name = window > 0 ? JOB_ALGORITHM_PPO : JOB_ALGORITHM_REINFORCE,
                                      .batch_size = 1,
                                      .stats_window_size = window}};
}

static struct recording *make(const struct job *job, uint32_t columns, uint32_t steps)
{
    const struct rollout_config config = {.environments = columns,
                                          .agents = 1,
                                          .steps_max = steps,
                                          .observation_bytes = 16,
                                          .action_bytes = 4,
                                          .bootstraps = job_is_actor_critic(job)};
    struct recording *recording;
    ck_assert_int_eq(recording_new(&recording, job, &world, &config, NULL, NULL), STATUS_OK);
    recording_begin(recording, 1);
    return recording;
}

/* Plays what the rollout holds to its end, and learns from it. */
static bool take_rollout(struct recording *recording)
{
    recording_close(recording, &(struct control_episode){.episode = 1});
    ck_assert(recording_is_pending(recording));
    recording_learn(recording);
    ck_assert(!recording_is_pending(recording));
    return recording_report(recording, &record);
}

/* Takes a rollout of reward 1 per step in which two columns' steps have these flags. */
static double take(struct recording *recording, const uint8_t first[4], const uint8_t second[4], bool is_new)
{
    rollout_fill(recording_rollout(recording), 0, first, 4);
    rollout_fill(recording_rollout(recording), 1, second, 4);
    ck_assert(take_rollout(recording) == is_new);
    return record.reward;
}

/* Writes the bytes, unless `out` is NULL, and returns their number. */
static size_t save(struct recording *recording, char *out)
{
    struct archive archive = {.out = out};
    ck_assert(recording_archive(recording, &archive, NULL));
    return archive.moved;
}

/* How many of the bytes it has read; 0: they are not good. */
static size_t load(struct recording *recording, const char *from, size_t bytes, struct error *error)
{
    struct archive archive = {.from = from, .left = bytes};
    return recording_archive(recording, &archive, error) ? archive.moved : 0;
}

/* ---- returns ---- */

START_TEST(sums_go_on_over_rollouts)
{
    const struct job job = job_of(JOB_OF_MEAN, 0);
    struct recording *r = make(&job, 2, 4);
    ck_assert_double_eq(take(r, none, none, false), 4);
    ck_assert_double_eq(take(r, (uint8_t[]){0, ENDS, 0, 0}, none, true), 6);
    ck_assert_double_eq(take(r, none, none, false), 6); /* the latest */
    ck_assert_double_eq(take(r, (uint8_t[]){CUT, 0, ENDS, 0}, (uint8_t[]){0, 0, 0, ENDS}, true),
                        (7.0 + 2.0 + 16.0) / 3);
    recording_free(r);
}
END_TEST

START_TEST(the_least_of_them)
{
    const struct job job = job_of(JOB_OF_MIN, 0);
    struct recording *r = make(&job, 2, 4);
    ck_assert_double_eq(take(r, (uint8_t[]){0, 0, ENDS, 0}, (uint8_t[]){0, ENDS, 0, CUT}, true), 2);
    recording_free(r);
}
END_TEST

START_TEST(what_failed_counts_for_nothing)
{
    const struct job job = job_of(JOB_OF_MEAN, 0);
    struct recording *r = make(&job, 2, 4);
    ck_assert_double_eq(take(r, (uint8_t[]){0, BROKE, 0, ENDS}, (uint8_t[]){0, 0, 0, BROKE}, true), 2);
    recording_free(r);
}
END_TEST

START_TEST(a_lost_life_ends_no_episode)
{
    const struct job job = job_of(JOB_OF_MEAN, 0);
    struct recording *r = make(&job, 2, 4);
    ck_assert_double_eq(take(r, (uint8_t[]){0, LIFE, 0, ENDS}, (uint8_t[]){LIFE, 0, LIFE, 0}, true), 4);
    ck_assert_double_eq(take(r, none, (uint8_t[]){0, 0, 0, LIFE | CUT}, true), 8);
    recording_free(r);
}
END_TEST

START_TEST(each_of_several_agents_has_a_reward)
{
    static const struct environment_description pair = {.spec = {.agents = 2}};
    const struct rollout_config config = {
        .environments = 2, .agents = 2, .steps_max = 4, .observation_bytes = 16, .action_bytes = 4};
    static const uint8_t ends[4][4] = {{0, ENDS}, {0, 0, 0, ENDS}, {ENDS}, {0}};
    for (int begin = 0; begin < 2; begin++) {
        struct job job = job_of(JOB_OF_MEAN, 0);
        struct recording *r;
        job.rollout.begin = begin == 0 ? JOB_BEGIN_CONTINUE : JOB_BEGIN_RESET;
        ck_assert_int_eq(recording_new(&r, &job, &pair, &config, NULL, NULL), STATUS_OK);
        recording_begin(r, 1);
        for (uint32_t column = 0; column < 4; column++)
            rollout_fill(recording_rollout(r), column, ends[column], 4);
        take_rollout(r);
        ck_assert_uint_eq(record.metrics.count, 2);
        ck_assert_str_eq(record.metrics.of[1].name, "reward/agent_1");
        ck_assert_double_eq(record.metrics.of[0].mean, 1.5);
        ck_assert_double_eq(record.metrics.of[1].mean, 4); /* the second environment's goes on, or has 4 */
        recording_free(r);
    }
}
END_TEST

START_TEST(abandoned_columns_begin_anew)
{
    const struct job job = job_of(JOB_OF_MEAN, 0);
    struct recording *r = make(&job, 2, 4);
    take(r, none, none, false);
    recording_abandon(r, 1, 1);
    ck_assert_double_eq(take(r, (uint8_t[]){0, 0, 0, ENDS}, (uint8_t[]){0, 0, 0, ENDS}, true),
                        (8.0 + 4.0) / 2);
    recording_free(r);
}
END_TEST

/* A third column begins anew. */
START_TEST(bytes_bring_them_back)
{
    const struct job job = job_of(JOB_OF_MEAN, 0);
    struct recording *r = make(&job, 2, 4), *again = make(&job, 2, 4), *wider = make(&job, 3, 4);
    const size_t length = save(r, NULL);
    char *bytes = malloc(length);
    take(r, (uint8_t[]){0, ENDS, 0, 0}, none, true);
    ck_assert_uint_eq(save(r, bytes), length);
    ck_assert_uint_eq(load(again, bytes, length - 1, NULL), 0);
    ck_assert_uint_eq(load(again, bytes, length, NULL), length);
    ck_assert_uint_eq(load(wider, bytes, length, NULL), length);
    ck_assert_double_eq(take(again, none, none, false), 2);
    ck_assert_double_eq(take(again, (uint8_t[]){ENDS, 0, 0, 0}, none, true), 2 + 4 + 1);
    rollout_fill(recording_rollout(wider), 2, (uint8_t[]){ENDS, 0, 0, 0}, 4);
    ck_assert_double_eq(take(wider, (uint8_t[]){ENDS, 0, 0, 0}, (uint8_t[]){ENDS, 0, 0, 0}, true),
                        (3.0 + 5.0 + 1.0) / 3);
    recording_free(r);
    recording_free(again);
    recording_free(wider);
    free(bytes);
}
END_TEST

/* ---- recent episodes ---- */

static void expect_means(double reward, double length)
{
    ck_assert_double_eq_tol(record.figures.ep_rew_mean, reward, 1e-9);
    ck_assert_double_eq_tol(record.figures.ep_len_mean, length, 1e-9);
}

START_TEST(an_episode_spans_rollouts)
{
    const struct job job = job_of(JOB_OF_MEAN, WINDOW);
    struct recording *r = make(&job, 2, 4);
    struct rollout *rollout = recording_rollout(r);
    take(r, none, (uint8_t[]){0, 0, BROKE, 0}, false);
    ck_assert(isnan(record.figures.ep_rew_mean) && isnan(record.figures.ep_len_mean));
    rollout_fill(rollout, 0, (const uint8_t[]){0, ENDS, 0, 0}, 4);
    rollout_fill(rollout, 1, (const uint8_t[]){CUT, 0, 0, 0}, 4);
    rollout->rewards[rollout_row(rollout, 0, 1)] = 5;
    ck_assert(take_rollout(r));
    expect_means((6 + 6) / 2.0, (6 + 2) / 2.0);
    recording_abandon(r, 0, 2);
    take(r, (uint8_t[]){ENDS, 0, 0, 0}, none, true);
    expect_means((6 + 6 + 1) / 3.0, (6 + 2 + 1) / 3.0);
    recording_free(r);
}
END_TEST

START_TEST(a_window_is_kept)
{
    const struct job job = job_of(JOB_OF_MEAN, WINDOW), narrow = job_of(JOB_OF_MEAN, WINDOW - 1);
    struct recording *r = make(&job, 1, 1), *again = make(&job, 2, 1), *other = make(&narrow, 1, 1);
    rollout_fill(recording_rollout(r), 0, (const uint8_t[]){ENDS}, 1);
    for (int i = 0; i < 250; i++) {
        recording_rollout(r)->rewards[0] = (float)i;
        ck_assert(take_rollout(r));
    }
    expect_means(199.5, 1);
    const size_t length = save(r, NULL);
    char *bytes = malloc(length);
    save(r, bytes);
    ck_assert_uint_eq(load(other, bytes, length, NULL), 0);
    ck_assert_uint_eq(load(again, bytes, length - 1, NULL), 0);
    ck_assert_uint_eq(load(again, bytes, length, NULL), length);
    rollout_fill(recording_rollout(again), 0, none, 1);
    rollout_fill(recording_rollout(again), 1, (const uint8_t[]){0}, 1);
    ck_assert(!take_rollout(again));
    expect_means(199.5, 1);
    rollout_fill(recording_rollout(again), 0, (const uint8_t[]){ENDS},
                 1); /* reward 1, in the place of 150's */
    ck_assert(take_rollout(again));
    expect_means((199.5 * WINDOW - 150 + 2) / WINDOW, (WINDOW + 1.0) / WINDOW);
    free(bytes);
    recording_free(r);
    recording_free(again);
    recording_free(other);
}
END_TEST

/* ---- a rollout that is pending ---- */

/* A recording whose rollout is played, with a truncated episode. */
static struct recording *make_pending(const struct job *job)
{
    static const uint32_t numbers[] = {0, 1};
    static const uint8_t flags[] = {0, CUT};
    static const float rewards[2], observations[3][4] = {{1}, {2}, {3}};
    const struct step step = {.number = 1,
                              .count = 2,
                              .agents = 1,
                              .rows = 2,
                              .ended = 1,
                              .flags_bytes = 1,
                              .observation_bytes = sizeof observations[0],
                              .numbers = numbers,
                              .observations = (const char *)observations,
                              .last = (const char *)observations[2],
                              .rewards = rewards,
                              .flags = flags};
    struct recording *r = make(job, 2, 4);
    ck_assert_int_eq(recording_step(r, &step, false, NULL), STATUS_OK);
    rollout_fill(recording_rollout(r), 0, none, 4);
    rollout_fill(recording_rollout(r), 1, (uint8_t[]){CUT, 0, 0, 0}, 4);
    recording_close(r, &(struct control_episode){.episode = 7, .timing.launches = 3});
    return r;
}

static void expect_pending(struct recording *r)
{
    const struct rollout *rollout = recording_rollout(r);
    ck_assert(recording_is_pending(r));
    ck_assert_uint_eq(rollout_rows(rollout), 8);
    ck_assert_uint_eq(rollout->last_count, 1);
    ck_assert_uint_eq(rollout->last_rows[0], 1);
    ck_assert_float_eq(((const float *)(const void *)rollout->last_observations)[0], 3);
    recording_learn(r);
    recording_report(r, &record);
    ck_assert_uint_eq(record.episode, 7);
    ck_assert_uint_eq(record.timing.launches, 0);
    ck_assert_uint_eq(record.env_steps, 8);
}

START_TEST(it_is_in_a_checkpoint)
{
    const struct job job = job_of(JOB_OF_MEAN, WINDOW);
    struct recording *r = make_pending(&job), *again = make(&job, 2, 4), *wider = make(&job, 3, 4);
    struct error error = {0};
    const size_t length = save(r, NULL);
    char *bytes = malloc(length);
    ck_assert_uint_eq(save(r, bytes), length);
    ck_assert_uint_eq(load(again, bytes, length - 1, &error), 0);
    ck_assert(!recording_is_pending(again));
    ck_assert_uint_eq(load(again, bytes, length, &error), length);
    expect_pending(again);
    ck_assert_uint_eq(load(wider, bytes, length, &error), length);
    ck_assert(!recording_is_pending(wider)); /* it is played again */
    recording_learn(r);
    ck_assert_uint_lt(save(r, NULL), length - 8 * 16); /* it has no rows */
    free(bytes);
    recording_free(r);
    recording_free(again);
    recording_free(wider);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("recording");
    TCase *sums = tcase_create("returns"), *recent = tcase_create("recent"),
          *pending = tcase_create("pending");
    tcase_add_test(sums, sums_go_on_over_rollouts);
    tcase_add_test(sums, the_least_of_them);
    tcase_add_test(sums, what_failed_counts_for_nothing);
    tcase_add_test(sums, a_lost_life_ends_no_episode);
    tcase_add_test(sums, each_of_several_agents_has_a_reward);
    tcase_add_test(sums, abandoned_columns_begin_anew);
    tcase_add_test(sums, bytes_bring_them_back);
    suite_add_tcase(suite, sums);
    tcase_add_test(recent, an_episode_spans_rollouts);
    tcase_add_test(recent, a_window_is_kept);
    suite_add_tcase(suite, recent);
    tcase_add_test(pending, it_is_in_a_checkpoint);
    suite_add_tcase(suite, pending);
    return suite_run(suite);
}
