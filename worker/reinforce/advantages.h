/* Generalised advantage estimation (Schulman et al., arXiv 1506.02438), backward in time along each column:
 *
 *     delta_t = r_t + gamma V(s_{t+1}) (1 - terminated_t) - V(s_t)
 *     A_t = delta_t + gamma lambda (1 - ended_t) A_{t+1}          R_t = A_t + V(s_t)
 *
 * V(s) is rollout->values. V(s_{t+1}) is the value of the next row. Behind the rollout's last step it is that
 * of the closing observation. Behind a truncated episode it is rollout->last_values, of the observation that
 * the reset has replaced. With /algorithm/bootstrap_truncated false a truncated episode counts as terminated,
 * as in CleanRL's ppo.py. Rows of absent agents, and segments that end with ENVIRONMENT_FAILED, are left out.
 * Sums are in double, and rounded once. Pure functions. */
#ifndef WORKER_REINFORCE_ADVANTAGES_H
#define WORKER_REINFORCE_ADVANTAGES_H

#include "worker/job/job.h"
#include "worker/reinforce/rollout.h"

/* Arrays of (rows_max) elements, by row. */
struct advantages {
    float *rewards;  /* in: r, which may be scaled, or its sign */
    float *values;   /* out: A, of the rows in `order` */
    float *returns;  /* out: R, of the same rows */
    uint32_t *order; /* out: the rows that are learned from, by (column, step) */
};

/* Returns the number of rows in a->order. */
uint32_t advantages_estimate(struct advantages *a, const struct job *job, const struct rollout *rollout);

#endif
