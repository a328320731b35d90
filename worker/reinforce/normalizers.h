/* The running statistics of a job that normalizes: of each element of the observations, or of the floats
 * among their parts, and of the discounted returns, as Stable-Baselines3's VecNormalize has them.
 *
 * They are frozen within a rollout, so that neither the observers' pace nor their number has a say. The
 * returns take the rollout in before its update, which learns from scaled rewards; the observations behind
 * it, for the policy has acted on them as they were. Rows are taken by (step, column), in double, as one
 * batch (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
 * variances", 1979). Of c observations with mean m and variance v, and a batch of b with mean m' and variance
 * v':
 *
 *     d = m' - m      m <- m + d b / (c + b)      v <- (v c + v' b + d^2 c b / (c + b)) / (c + b)
 *
 * At first c is 1e-4, m is 0 and v is 1. A column's discounted return is G <- gamma G + r, and 0 behind an
 * episode's end; a reward is learned from as r / sqrt(v + 1e-8), clipped. Rows of absent agents, and steps
 * that FAILED, count for nothing. Pure but for memory; one thread. */
#ifndef WORKER_REINFORCE_NORMALIZERS_H
#define WORKER_REINFORCE_NORMALIZERS_H

#include "kernels/base/archive.h"
#include "worker/job/job.h"
#include "worker/model/policy.h"
#include "worker/reinforce/rollout.h"

struct moments {
    uint32_t elements; /* 0: nothing is counted */
    double count;
    double *mean, *variance; /* (elements) */
    double *sum, *squares;   /* (elements) of the batch that is taken in */
};

struct normalizers {
    struct region region;
    const struct job *job;
    uint32_t columns;
    struct moments observations, returns; /* returns: one element */
    double *so_far;                       /* (columns) discounted returns of the episodes that go on */
    double *path;                         /* (rows) the rollout's, while it is taken in */
    float *statistics;                    /* (2, elements) for policy_normalize */
    float *floats;                        /* (elements) among the parts of a row */
};

/* Of a job that does not normalize, all of this does nothing. `job` outlives *n. STATUS_NO_MEMORY.
 * normalizers_close also follows a failure. */
enum status normalizers_open(struct normalizers *n, const struct job *job, const struct rollout *rollout,
                             struct error *error);
void normalizers_close(struct normalizers *n);

/* Takes the rollout's returns in, and writes the rewards that are learned from, by row. Once for a rollout.
 */
void normalizers_scale(struct normalizers *n, const struct rollout *rollout, float *rewards);

/* Takes the rollout's observations in, and gives the policy their new statistics. */
void normalizers_take(struct normalizers *n, const struct rollout *rollout, struct policy *policy);

/* The unfinished episodes of columns first … first + count - 1 have come to nothing. */
void normalizers_forget(struct normalizers *n, uint32_t first, uint32_t count);

/* All of it, for a checkpoint. False: the bytes are of another job's, and *n is good for normalizers_close
 * alone. They may have another number of columns (observers were added, or have left): a column that they do
 * not have begins anew. The policy has its statistics from its own values. */
bool normalizers_archive(struct normalizers *n, struct archive *archive);

#endif
