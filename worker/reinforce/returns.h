/* The returns of a rollout: from its rewards to the coefficients of the policy's loss. Pure functions. */
#ifndef WORKER_REINFORCE_RETURNS_H
#define WORKER_REINFORCE_RETURNS_H

#include "worker/reinforce/rollout.h"

#include <stdbool.h>
#include <stdint.h>

/* How returns become the loss's coefficients. */
struct returns_config {
    double gamma;
    bool normalize; /* per column: (R - mean) / (std + 1.19e-7), std with n - 1 */
    double scale;   /* 1, or 1 / columns */
};

/* Fills `order` with every row that is learned from, by (column, step), and `coefficients` with scale * the
 * row's return, the discounted sum of rewards to its segment's end: R_t = r_t + gamma R_(t+1), in double,
 * last row first. Rows of absent agents, and segments that end with ENVIRONMENT_FAILED, are left out.
 * Normalizing runs over all of one column's rows, so that it does not depend on how environments are spread;
 * a column with a single row has no standard deviation and gets coefficient 0. Returns the number of rows. */
uint32_t returns_coefficients(struct rollout *rollout, const struct returns_config *config);

#endif
