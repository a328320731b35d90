/* Proximal policy optimization (Schulman et al., arXiv 1707.06347): from a rollout that bootstraps to the
 * policy's next parameters.
 *
 *     rewards     scaled, if the job normalizes them                                       normalizers.c
 *     values      of the closing observations and of the last ones of truncated episodes   policy_estimate
 *     advantages  and returns                                                              advantages.c
 *     epochs      minibatches of a permutation of the rows                                 minibatches.c
 *     steps       the clipped objective, one step for each minibatch                       policy_improve
 *
 * A2C (Mnih et al., arXiv 1602.01783) is PPO with one epoch, whose one minibatch is the whole rollout, and
 * with the plain policy loss (Huang et al., arXiv 2205.09123).
 *
 * The log-probabilities and values of the rows themselves are those that acting wrote into the rollout or, of
 * a policy that policy_needs_review, those of one pass over the rollout before the first epoch, in its
 * minibatches: in the first minibatch every probability ratio is exactly 1. The agent's thread. */
#ifndef WORKER_REINFORCE_PPO_H
#define WORKER_REINFORCE_PPO_H

#include "worker/control.h"
#include "worker/model/policy.h"
#include "worker/reinforce/advantages.h"
#include "worker/reinforce/minibatches.h"
#include "worker/reinforce/normalizers.h"
#include "worker/reinforce/recent_episodes.h"

struct ppo {
    const struct job *job;
    uint64_t steps;   /* of all environments, in all rollouts that were learned from */
    uint64_t updates; /* epochs so far: Stable-Baselines3's n_updates */
    struct recent_episodes recent;
    struct normalizers normalizers;
    struct minibatches minibatches;
    uint32_t *order;                       /* (rows_max) of the rollout */
    uint32_t *plain;                       /* (columns or more) 0, 1, …: a batch of rows that lie densely */
    float *rewards, *advantages, *returns; /* by row; rewards as they are learned from */
};

/* `job` outlives *ppo. The rollout is the one that all calls get. STATUS_NO_MEMORY. ppo_close also follows a
 * failure. */
enum status ppo_open(struct ppo *ppo, const struct job *job, const struct rollout *rollout,
                     struct error *error);
void ppo_close(struct ppo *ppo);

/* Learns from the rollout, and fills *figures. `progress` is called between two minibatches. Errors:
 * policy_improve's; STATUS_NO_MEMORY. */
enum status ppo_learn(struct ppo *ppo, struct policy *policy, struct rollout *rollout,
                      policy_progress *progress, void *context, struct control_ppo *figures,
                      struct error *error);

/* The unfinished episodes of columns first … first + count - 1 have come to nothing. */
void ppo_forget(struct ppo *ppo, uint32_t first, uint32_t count);

/* All that the next update depends on beside the policy, as bytes for a checkpoint. Read answers how many of
 * the `bytes` it has read; 0: they are of other normalizers or of another window of recent episodes, and *ppo
 * is good for ppo_close alone. They may have another number of columns, as normalizers.h says. */
size_t ppo_bytes(const struct ppo *ppo);
void ppo_write(const struct ppo *ppo, char *out);
size_t ppo_read(struct ppo *ppo, const char *from, size_t bytes);

#endif
