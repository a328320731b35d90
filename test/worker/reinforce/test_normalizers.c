/* Running statistics against one pass over all that they have seen; what does not count; what a policy reads.
 */
#include "test/worker/model/policy_hidden.h"
#include "test/worker/model/policy_inside.h"
#include "test/worker/reinforce/rollout_rows.h"
#include "test/workplace.h"
#include "worker/environment/environment.h"
#include "worker/reinforce/normalizers.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 3, STEPS = 5, ELEMENTS = 4, ROLLOUTS = 4, ROWS = COLUMNS * STEPS * ROLLOUTS };

static const struct job job = {.returns.gamma = 0.9,
                               .normalize = {true, true, .clip_observations = 2, .clip_rewards = 1.5}};
static struct error error;

static struct policy *make_policy(void)
{
    static const double low = -1, high = 1;
    const struct policy_config config = {
        .observation = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {ELEMENTS}},
        .action = {.dtype = ENVIRONMENT_F32, .rank = 1, .shape = {1}, .low = &low, .high = &high},
        POLICY_HIDDEN(4),
        .activation = POLICY_TANH,
        .adam = {.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-5},
        .has_value = true,
        .normalizes = true,
        .clip = 2,
        .rows_max = ROWS,
        .environments = COLUMNS};
    struct policy *policy;
    ck_assert_msg(policy_new(&policy, &config, NULL, &error) == STATUS_OK, "%s", error.text);
    return policy;
}

/* What a rollout's rows hold: a function of their number. */
static void fill(struct rollout *rollout, uint32_t number)
{
    float *observations = (void *)rollout->observations;
    for (uint32_t column = 0; column < COLUMNS; column++)
        rollout_fill(rollout, column, (const uint8_t[STEPS]){0}, STEPS);
    for (uint32_t i = 0; i < COLUMNS * STEPS; i++) {
        const uint32_t n = number * COLUMNS * STEPS + i;
        rollout->rewards[i] = (float)(n % 7) - 2;
        rollout->flags[i] = n % 4 == 3 ? ENVIRONMENT_TRUNCATED : 0;
        for (uint32_t e = 0; e < ELEMENTS; e++)
            observations[i * ELEMENTS + e] = 10 * (float)e + (float)((n * (e + 3)) % 11);
    }
}

/* Mean and variance of the first `count` numbers and of 1e-4 of one with mean 0 and variance 1. */
static void moments_of(const double *x, uint32_t count, double *mean, double *variance)
{
    const double total = count + 1e-4;
    double sum = 0, squares = 1e-4;
    for (uint32_t i = 0; i < count; i++) {
        sum += x[i];
        squares += x[i] * x[i];
    }
    *mean = sum / total;
    *variance = squares / total - *mean * *mean;
}

/* As an update does. */
static void take_in(struct normalizers *n, const struct rollout *rollout, struct policy *policy)
{
    float scaled[ROWS];
    normalizers_scale(n, rollout, scaled);
    normalizers_take(n, rollout, policy);
}

START_TEST(the_statistics_are_those_of_all_rows_so_far)
{
    struct rollout *rollout = rollout_make(COLUMNS, STEPS);
    struct policy *policy = make_policy();
    struct normalizers n;
    double x[ELEMENTS][ROWS], returns[ROWS], so_far[COLUMNS] = {0}, mean, variance;
    const float *observations = (const void *)rollout->observations;
    uint32_t count = 0;
    ck_assert_int_eq(normalizers_open(&n, &job, rollout, &error), STATUS_OK);
    for (uint32_t number = 0; number < ROLLOUTS; number++) {
        fill(rollout, number);
        for (uint32_t i = 0; i < COLUMNS * STEPS; i++, count++) {
            returns[count] = 0.9 * so_far[i % COLUMNS] + (double)rollout->rewards[i];
            so_far[i % COLUMNS] = rollout->flags[i] == 0 ? returns[count] : 0;
            for (uint32_t e = 0; e < ELEMENTS; e++)
                x[e][count] = (double)observations[i * ELEMENTS + e];
        }
        take_in(&n, rollout, policy);
        for (uint32_t e = 0; e < ELEMENTS; e++) {
            moments_of(x[e], count, &mean, &variance);
            ck_assert_double_eq_tol(n.observations.mean[e], mean, 1e-9);
            ck_assert_double_eq_tol(n.observations.variance[e], variance, 1e-9);
            ck_assert_float_eq(policy->normalizer.mean[e], (float)n.observations.mean[e]);
            ck_assert_float_eq_tol(policy->normalizer.scale[e], (float)(1 / sqrt(variance + 1e-8)), 1e-6f);
        }
        moments_of(returns, count, &mean, &variance);
        ck_assert_double_eq_tol(n.returns.mean[0], mean, 1e-9);
        ck_assert_double_eq_tol(n.returns.variance[0], variance, 1e-9);
    }
    normalizers_close(&n);
    policy_free(policy);
    rollout_free(rollout);
}
END_TEST

START_TEST(rewards_are_scaled_by_all_returns_so_far_and_clipped)
{
    struct rollout *rollout = rollout_make(COLUMNS, STEPS);
    struct policy *policy = make_policy();
    struct normalizers n;
    float scaled[COLUMNS * STEPS];
    ck_assert_int_eq(normalizers_open(&n, &job, rollout, &error), STATUS_OK);
    for (uint32_t number = 0; number < 2; number++) {
        fill(rollout, number);
        normalizers_scale(&n, rollout, scaled);
        for (uint32_t i = 0; i < COLUMNS * STEPS; i++)
            ck_assert_float_eq_tol(
                scaled[i],
                (float)fmin(fmax((double)rollout->rewards[i] / sqrt(n.returns.variance[0] + 1e-8), -1.5),
                            1.5),
                1e-6f);
        ck_assert_double_eq_tol(n.returns.count, (number + 1) * COLUMNS * STEPS, 1e-3);
        normalizers_take(&n, rollout, policy);
    }
    ck_assert_double_gt(n.returns.variance[0], 1.5);
    normalizers_close(&n);
    policy_free(policy);
    rollout_free(rollout);
}
END_TEST

/* The returns are those of signs, and end with a life. */
START_TEST(signs_are_learned_from)
{
    struct rollout *rollout = rollout_make(1, 4);
    struct job plain = job;
    struct normalizers n;
    float learned[4];
    const double returns[] = {1, 0.9 - 1, 0, 1};
    double mean, variance;
    rollout_fill(rollout, 0, (const uint8_t[]){0, ENVIRONMENT_LIFE_LOST, 0, 0}, 4);
    memcpy(rollout->rewards, (const float[]){5, -0.25F, 0, 1e-3F}, sizeof learned);
    rollout->config.clips_rewards = true;
    ck_assert_int_eq(normalizers_open(&n, &job, rollout, &error), STATUS_OK);
    normalizers_scale(&n, rollout, learned);
    moments_of(returns, 4, &mean, &variance);
    ck_assert_double_eq_tol(n.returns.mean[0], mean, 1e-9);
    ck_assert_double_eq_tol(n.returns.variance[0], variance, 1e-9);
    normalizers_close(&n);
    plain.normalize.rewards = plain.normalize.observations = false;
    ck_assert_int_eq(normalizers_open(&n, &plain, rollout, &error), STATUS_OK);
    normalizers_scale(&n, rollout, learned);
    ck_assert_mem_eq(learned, ((const float[]){1, -1, 0, 1}), sizeof learned);
    normalizers_close(&n);
    rollout_free(rollout);
}
END_TEST

START_TEST(absent_and_failed_rows_count_for_nothing)
{
    struct rollout *rollout = rollout_make(COLUMNS, STEPS);
    struct policy *policy = make_policy();
    struct normalizers n;
    ck_assert_int_eq(normalizers_open(&n, &job, rollout, &error), STATUS_OK);
    rollout->config.agents = COLUMNS; /* of one environment */
    fill(rollout, 0);
    memset(rollout->flags, 0, COLUMNS * STEPS);
    rollout->flags[rollout_row(rollout, 1, 0)] = ENVIRONMENT_FAILED;
    rollout->flags[rollout_row(rollout, 2, 1)] = ENVIRONMENT_TERMINATED | ENVIRONMENT_ABSENT;
    rollout->flags[rollout_row(rollout, 3, 1)] = rollout->flags[rollout_row(rollout, 4, 1)] =
        ENVIRONMENT_ABSENT;
    take_in(&n, rollout, policy);
    ck_assert_double_eq_tol(n.observations.count, COLUMNS * STEPS - 3, 1e-3);
    ck_assert_double_eq_tol(n.returns.count, COLUMNS * STEPS - 3, 1e-3);
    ck_assert_double_eq(n.so_far[1], 0);
    normalizers_forget(&n, 0, 1);
    ck_assert(n.so_far[0] == 0 && n.so_far[2] != 0);
    normalizers_close(&n);
    policy_free(policy);
    rollout_free(rollout);
}
END_TEST

static size_t save(struct normalizers *n, char *out)
{
    struct archive archive = {.out = out};
    ck_assert(normalizers_archive(n, &archive));
    return archive.moved;
}

/* How many of the bytes it has read; 0: they are not good. */
static size_t load(struct normalizers *n, const char *from, size_t bytes)
{
    struct archive archive = {.from = from, .left = bytes};
    return normalizers_archive(n, &archive) ? archive.moved : 0;
}

START_TEST(bytes_bring_all_of_it_back)
{
    struct rollout *rollout = rollout_make(COLUMNS, STEPS), *wider = rollout_make(COLUMNS + 1, STEPS);
    struct policy *policy = make_policy();
    struct normalizers n, again;
    ck_assert_int_eq(normalizers_open(&n, &job, rollout, &error), STATUS_OK);
    fill(rollout, 0);
    take_in(&n, rollout, policy);
    const size_t bytes = save(&n, NULL);
    char *first = malloc(bytes), *second = malloc(bytes);
    save(&n, first);
    ck_assert_int_eq(normalizers_open(&again, &job, wider, &error), STATUS_OK);
    ck_assert_uint_eq(load(&again, first, bytes - 1), 0);
    ck_assert_uint_eq(load(&again, first, bytes), bytes);
    ck_assert_mem_eq(again.so_far, n.so_far, COLUMNS * sizeof *n.so_far);
    ck_assert_double_eq(again.so_far[COLUMNS], 0);
    normalizers_close(&again);
    ck_assert_int_eq(normalizers_open(&again, &job, rollout, &error), STATUS_OK);
    ck_assert_uint_eq(load(&again, first, bytes), bytes);
    fill(rollout, 1);
    take_in(&n, rollout, policy);
    take_in(&again, rollout, policy);
    save(&n, first);
    save(&again, second);
    ck_assert_mem_eq(first, second, bytes);
    free(first);
    free(second);
    normalizers_close(&n);
    normalizers_close(&again);
    policy_free(policy);
    rollout_free(rollout);
    rollout_free(wider);
}
END_TEST

/* Values of raw observations under a normalizer are those of normalized ones without. */
START_TEST(a_policy_reads_normalized_observations)
{
    static const float mean[ELEMENTS] = {1, -2, 0, 30}, variance[ELEMENTS] = {4, 0.25f, 0, 100};
    static const float raw[2 * ELEMENTS] = {2, -2.5f, 0, 25, 11, 3, 1, -40};
    static const float ready[2 * ELEMENTS] = {0.5f, -1, 0, -0.5f, 2, 2, 2, -2};
    struct policy *policy = make_policy();
    float values[2][2];
    const uint32_t row[] = {0, 1};
    struct policy_rows rows = {.count = 2, .row = row, .observations = ready, .values = values[0]};
    ck_assert_int_eq(policy_estimate(policy, &rows, &error), STATUS_OK);
    policy_normalize(policy, mean, variance);
    rows.observations = raw;
    rows.values = values[1];
    ck_assert_int_eq(policy_estimate(policy, &rows, &error), STATUS_OK);
    for (int i = 0; i < 2; i++)
        ck_assert_float_eq_tol(values[0][i], values[1][i], 1e-6f);
    policy_free(policy);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("normalizers");
    TCase *core = tcase_create("core");
    tcase_add_test(core, the_statistics_are_those_of_all_rows_so_far);
    tcase_add_test(core, rewards_are_scaled_by_all_returns_so_far_and_clipped);
    tcase_add_test(core, signs_are_learned_from);
    tcase_add_test(core, absent_and_failed_rows_count_for_nothing);
    tcase_add_test(core, bytes_bring_all_of_it_back);
    tcase_add_test(core, a_policy_reads_normalized_observations);
    suite_add_tcase(suite, core);
    return suite_run(suite);
}
