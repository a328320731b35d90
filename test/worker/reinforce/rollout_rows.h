/* A rollout for tests: rows of reward 1, cut into segments by their flags. */
#ifndef TEST_WORKER_REINFORCE_ROLLOUT_ROWS_H
#define TEST_WORKER_REINFORCE_ROLLOUT_ROWS_H

#include "worker/reinforce/rollout.h"

#include <check.h>

static inline struct rollout *rollout_make(uint32_t environments, uint32_t steps)
{
    const struct rollout_config config = {.environments = environments,
                                          .agents = 1,
                                          .steps_max = steps,
                                          .observation_bytes = 16,
                                          .action_bytes = 4,
                                          .dropout_words = 8};
    struct rollout *rollout;
    ck_assert_int_eq(rollout_new(&rollout, &config, NULL), STATUS_OK);
    rollout_begin(rollout, 1);
    return rollout;
}

/* Gives the column `steps` rows with reward 1 and the flags `ends` (0: none) after each. */
static inline void rollout_fill(struct rollout *rollout, uint32_t column, const uint8_t *ends, uint32_t steps)
{
    rollout->lengths[column] = steps;
    for (uint32_t step = 0; step < steps; step++) {
        uint32_t row = rollout_row(rollout, step, column);
        rollout->rewards[row] = 1;
        rollout->flags[row] = ends[step];
    }
}

#endif
