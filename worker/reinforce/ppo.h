/* Proximal policy optimization (Schulman et al., arXiv 1707.06347): from a rollout that bootstraps to the
 * policy's next parameters.
 *
 *     rewards     scaled by the returns so far, this rollout's too, if the job asks for it  normalizers.c
 *     values      of the closing observations and of the last ones of truncated episodes   policy_estimate
 *     advantages  and returns                                                              advantages.c
 *     epochs      minibatches of a permutation of the rows                                 ppo_draw
 *     steps       the clipped objective, one step for each minibatch                       policy_improve
 *
 * A2C (Mnih et al., arXiv 1602.01783) is PPO with one epoch, whose one minibatch is the whole rollout, and
 * with the plain policy loss (Huang et al., arXiv 2205.09123).
 *
 * The log-probabilities and values of the rows themselves are those that acting wrote into the rollout. Of a
 * policy that policy_needs_review, they are those of one pass over the rollout before the first epoch, in its
 * minibatches: in the first minibatch every probability ratio is exactly 1. Not so with /algorithm/overlap,
 * where other parameters have acted. One thread at a time (updates.h). */
#ifndef WORKER_REINFORCE_PPO_H
#define WORKER_REINFORCE_PPO_H

#include "worker/control.h"
#include "worker/model/policy.h"
#include "worker/reinforce/advantages.h"
#include "worker/reinforce/normalizers.h"

/* Arrays by row have (rows_max) elements; a row is rollout_row's number. */
struct ppo {
    struct region region;
    const struct job *job;
    uint64_t steps;   /* of all environments, in all rollouts that were learned from */
    uint64_t updates; /* epochs so far: Stable-Baselines3's n_updates */
    struct normalizers normalizers;
    uint32_t rows_max;
    struct advantages advantages;
    uint32_t *plain;        /* 0, 1, …: a batch of rows that lie densely */
    uint32_t *drawn;        /* the epoch's order: minibatch m has those from begins[m] to begins[m + 1] */
    uint32_t minibatches;   /* of the epoch; some may be empty where a policy has a memory */
    uint32_t *begins;       /* (minibatches + 1) */
    uint32_t *minibatch_of; /* by row */
    uint64_t *keys, *sorted_keys; /* draw and row */
};

/* `job` outlives *ppo. The rollout is the one that all calls get. STATUS_NO_MEMORY. ppo_close also follows a
 * failure. */
enum status ppo_open(struct ppo *ppo, const struct job *job, const struct rollout *rollout,
                     struct error *error);
void ppo_close(struct ppo *ppo);

/* Learns from the rollout, and fills *figures but for the means over episodes. `progress` is called between
 * two minibatches, unless it is NULL. Errors: policy_improve's; STATUS_NO_MEMORY. */
enum status ppo_learn(struct ppo *ppo, struct policy *policy, struct rollout *rollout,
                      policy_progress *progress, void *context, struct control_figures *figures,
                      struct error *error);

/* Cuts the first `count` rows of ppo->advantages.order into minibatches of /algorithm/batch_size for an epoch
 * (from 0) of an update, into ppo->drawn; the last one may be smaller. Which rows go together is drawn: word
 * 0 of block 0 of stream RNG_SHUFFLE at (seed, number, epoch, update), a function of these numbers alone.
 *
 *     without memory     rows, sorted by (draw of the row's number, row)
 *     whole sequences    columns, likewise, batch_size / n_steps of them; rows that are left out leave gaps
 *     padded sequences   batch_size rows at a time in the order of (column, step), from row draw * count /
 * 2^32 on and round to it; the draw is that of number 0
 *
 * Within a minibatch rows ascend, which changes no sum's meaning and reads memory in order. */
void ppo_draw(struct ppo *ppo, uint32_t count, uint32_t update, uint32_t epoch);

/* All that the next update depends on beside the policy, for a checkpoint. False: the bytes are of other
 * normalizers, and *ppo is good for ppo_close alone. They may have another number of columns, as
 * normalizers.h says. */
bool ppo_archive(struct ppo *ppo, struct archive *archive);

#endif
