/* Generalised advantage estimation (Schulman et al., arXiv 1506.02438), backward in time along each column:
 *
 *     delta_t = r_t + gamma V(s_{t+1}) (1 - terminated_t) - V(s_t)
 *     A_t = delta_t + gamma lambda (1 - ended_t) A_{t+1}          R_t = A_t + V(s_t)
 *
 * V(s_{t+1}) is the value of the next row; behind the rollout's last step, of the closing observation; where
 * the episode was truncated, of the last observation, which the reset has replaced (rollout.h). Rows of
 * absent agents, and segments that end with ENVIRONMENT_FAILED, are left out. Sums are in double, and rounded
 * once. Pure functions. */
#ifndef WORKER_REINFORCE_ADVANTAGES_H
#define WORKER_REINFORCE_ADVANTAGES_H

#include "worker/reinforce/rollout.h"

struct advantages_config {
    double gamma, lambda;
    bool bootstrap_truncated; /* false: a truncation counts as a termination, as in CleanRL's ppo.py */
};

/* What the rollout is judged by. Arrays by row are (rollout's rows); a row is rollout_row's number. */
struct advantages {
    float *reward;              /* by row: as learned from, which may be scaled */
    float *value;               /* by row: of the observation on which the row's action was drawn */
    const float *closing;       /* (columns) of the observation behind the last step */
    const float *truncated;     /* (rollout->last_count) of rollout->last's observations, in their order */
    float *advantage, *returns; /* by row: written for the rows in `order` */
    uint32_t *order;            /* (rows) written: the rows that are learned from, by (column, step) */
};

/* Fills advantage, returns and order; returns the number of rows in `order`. */
uint32_t advantages_estimate(const struct rollout *rollout, const struct advantages_config *config,
                             const struct advantages *a);

#endif
