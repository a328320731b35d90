/* A rollout's rewards, against values worked out by hand, and the limit of its rows. */
#include "test/worker/reinforce/rollout_rows.h"
#include "test/workplace.h"
#include "worker/environment/environment.h"

#include <check.h>
#include <math.h>
#include <string.h>

START_TEST(rewards_are_those_of_the_first_segment)
{
    struct rollout *rollout = rollout_make(3, 5);
    rollout_fill(rollout, 0, (const uint8_t[]){0, 0, 1, 0, 0}, 5);
    rollout_fill(rollout, 1, (const uint8_t[]){0, ENVIRONMENT_LIFE_LOST, 0, 0, 0}, 5);
    rollout_fill(rollout, 2, (const uint8_t[]){0, 1, 0, 0, 1}, 5);
    ck_assert_double_eq(rollout_reward(rollout, true), 2);
    ck_assert_double_eq_tol(rollout_reward(rollout, false), 10.0 / 3, 1e-12);
    rollout_free(rollout);
}
END_TEST

START_TEST(too_many_rows_are_refused_by_name)
{
    struct rollout *rollout;
    struct error error = {0};
    struct rollout_config config = {
        .environments = 16384, .agents = 1, .steps_max = 100000, .observation_bytes = 16, .action_bytes = 4};
    ck_assert_int_eq(rollout_new(&rollout, &config, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "1638400000"));
    config.environments = 0;
    ck_assert_int_eq(rollout_new(&rollout, &config, &error), STATUS_INVALID);
    config.environments = config.agents = UINT32_MAX;
    ck_assert_int_eq(rollout_new(&rollout, &config, &error), STATUS_INVALID);
}
END_TEST

/* 2^24 rows of 16 MiB each: the kernel would promise them. */
START_TEST(more_memory_than_the_machine_has_is_refused)
{
    struct rollout *rollout;
    struct error error = {0};
    const struct rollout_config config = {.environments = 16384,
                                          .agents = 1,
                                          .steps_max = 1024,
                                          .observation_bytes = 1 << 24,
                                          .action_bytes = 4};
    ck_assert_int_eq(rollout_new(&rollout, &config, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "16777216 rows"));
    ck_assert_ptr_nonnull(strstr(error.text, "this machine has"));
}
END_TEST

/* Agent 1 of 2 ends at step 1; its environment goes on to step 3, and is reset. */
START_TEST(an_agent_is_absent_from_its_end_to_the_reset)
{
    enum { ENDS = ENVIRONMENT_TERMINATED, GONE = ENVIRONMENT_ABSENT };
    const struct rollout_config config = {
        .environments = 2, .agents = 2, .steps_max = 6, .observation_bytes = 4, .action_bytes = 4};
    const bool absent[] = {false, false, true, true, false, false};
    struct rollout *rollout;
    ck_assert_int_eq(rollout_new(&rollout, &config, NULL), STATUS_OK);
    rollout_begin(rollout, 1);
    rollout_fill(rollout, 2, (const uint8_t[]){0, 0, 0, ENDS, 0, 0}, 6);
    rollout_fill(rollout, 3, (const uint8_t[]){0, ENDS | GONE, GONE, GONE, 0, 0}, 6);
    for (uint32_t step = 0; step < 6; step++) {
        ck_assert(!rollout_is_absent(rollout, step, 2));
        ck_assert(rollout_is_absent(rollout, step, 3) == absent[step]);
    }
    rollout_free(rollout);
}
END_TEST

/* Observations of a step in shared memory, which their sender changes behind the check. */
START_TEST(a_copy_that_is_not_finite_is_refused)
{
    const struct rollout_config config = {.environments = 2,
                                          .agents = 1,
                                          .steps_max = 4,
                                          .observation_bytes = sizeof(float),
                                          .action_bytes = 4,
                                          .bootstraps = true};
    static const uint32_t numbers[] = {0, 1};
    static const uint8_t flags[] = {0, ENVIRONMENT_TRUNCATED};
    static const float rewards[2];
    float observations[3] = {1, 2, 3};
    const struct environment_spec spec = {.observation = {.dtype = ENVIRONMENT_F32}};
    struct rollout *rollout;
    struct error error;
    struct step step = {.number = 1,
                        .count = 2,
                        .agents = 1,
                        .rows = 2,
                        .ended = 1,
                        .flags_bytes = 1,
                        .observation_bytes = sizeof(float),
                        .numbers = numbers,
                        .observations = (const char *)observations,
                        .last = (const char *)(observations + 2),
                        .rewards = rewards,
                        .flags = flags,
                        .lent = &spec};
    ck_assert_int_eq(rollout_new(&rollout, &config, NULL), STATUS_OK);
    rollout_begin(rollout, 1);
    for (int i = 0; i < 3; i++) {
        const float before = observations[i];
        observations[i] = i == 1 ? INFINITY : NAN;
        ck_assert_int_eq(rollout_record(rollout, &step, &error), STATUS_INVALID);
        ck_assert_ptr_nonnull(strstr(error.text, "that its sender has changed"));
        ck_assert(rollout->lengths[0] == 0 && rollout->lengths[1] == 0);
        rollout_forget_last(rollout, 0, 2);
        observations[i] = before;
    }
    ck_assert_int_eq(rollout_record(rollout, &step, &error), STATUS_OK);
    ck_assert(rollout->lengths[0] == 2 && rollout->lengths[1] == 2 && rollout->last_count == 1);
    rollout_free(rollout);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("rollout");
    TCase *rollout = tcase_create("rollout");
    tcase_add_test(rollout, rewards_are_those_of_the_first_segment);
    tcase_add_test(rollout, too_many_rows_are_refused_by_name);
    tcase_add_test(rollout, more_memory_than_the_machine_has_is_refused);
    tcase_add_test(rollout, an_agent_is_absent_from_its_end_to_the_reset);
    tcase_add_test(rollout, a_copy_that_is_not_finite_is_refused);
    suite_add_tcase(suite, rollout);
    return suite_run(suite);
}
