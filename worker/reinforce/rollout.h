/* The record of one episode of the job: every environment's observations, actions, masks and rewards.
 *
 * A step request's rows are copied here from the wire, once: the policy acts on them here, and the learner
 * reads them here. Row (step, environment) stands at step * environments + environment, so that one launch
 * touches one stretch of memory.
 *
 * An environment's rows fall into segments. A segment ends with a row whose flags are not 0, or with the
 * environment's last row. In `episode` mode there is one segment; in `steps` mode a segment ends where the
 * environment was reset. Pure: no I/O, no clock. One thread. */
#ifndef WORKER_REINFORCE_ROLLOUT_H
#define WORKER_REINFORCE_ROLLOUT_H

#include "kernels/base/status.h"

#include <stddef.h>
#include <stdint.h>

struct rollout {
    uint32_t environments, steps_max, observation_size, mask_words;
    uint32_t episode;    /* of the job, from 1: keys every draw */
    uint32_t *lengths;   /* (environments) rows so far */
    float *observations; /* (steps_max, environments, observation_size) */
    float *rewards;      /* (steps_max, environments): the reward that the row's action earned */
    uint8_t *flags;      /* (steps_max, environments): what the row's action ended */
    uint8_t *actions;    /* (steps_max, environments) */
    uint16_t *masks;     /* (steps_max, environments, mask_words): dropout's keep bits */
    uint32_t *order;     /* (rows_max) row indices by (environment, step): returns_coefficients fills it */
    float *coefficients; /* (rows_max) in the same order; returns_coefficients fills it */
};

/* Allocates all memory. STATUS_INVALID when environments * steps_max is 0 or above JOB_ROLLOUT_ROWS_MAX
 * (worker/job/job.h); STATUS_NO_MEMORY names the rows. */
enum status rollout_new(struct rollout **out, uint32_t environments, uint32_t steps_max,
                        uint32_t observation_size, uint32_t mask_words, struct error *error);
void rollout_free(struct rollout *rollout);

/* Forgets all rows and begins episode `episode`. */
void rollout_begin(struct rollout *rollout, uint32_t episode);

static inline uint32_t rollout_row(const struct rollout *rollout, uint32_t step, uint32_t environment)
{
    return step * rollout->environments + environment;
}

/* Rows in all. */
uint64_t rollout_rows(const struct rollout *rollout);

/* The sum of rewards of the environment's first segment, over environments: the least, or the mean. */
double rollout_reward_min(const struct rollout *rollout);
double rollout_reward_mean(const struct rollout *rollout);

#endif
