/* Updates: the policy learns from whole rollouts, by reinforce.h or ppo.h, once for each.
 *
 * Without overlap an update is done where it begins. With /algorithm/overlap 1 a thread
 * (worker/background.h) learns from a copy of the rollout, while a policy of its own plays the next rollout:
 *
 *     plays      1    2    3    4                rollout n + 1 is played while update n learns from
 *     learns          1    2    3    4           rollout n; both begin with the parameters of update n - 1
 *
 * So acting is exactly one update behind, whoever is faster (Huang et al., "Cleanba: A Reproducible and
 * Efficient Distributed Reinforcement Learning Platform", arXiv 2310.00036). The objective's ratio takes
 * account of that: its denominator is what acting wrote into the rollout. The agent's thread calls. */
#ifndef WORKER_REINFORCE_UPDATES_H
#define WORKER_REINFORCE_UPDATES_H

#include "worker/reinforce/recording.h"

struct updates;

/* All of it outlives the updates, but the rpc, which is freed behind them. */
struct updates_config {
    const struct job *job;
    struct rpc *rpc; /* a turn of it ends when an update is done */
    const struct policy_config *of;
    struct policy *policy, *acting; /* learns; and acts: the same one without overlap */
    struct recording *recording;
};

/* Errors as policy_values_open, rollout_new and background_open; STATUS_NO_MEMORY. updates_free also follows
 * a failure, and waits for the update under way; NULL is allowed. */
enum status updates_new(struct updates **out, const struct updates_config *config, struct error *error);
void updates_free(struct updates *updates);

/* The acting policy gets the parameters of the one that learns. No update is under way. Errors as policy_save
 * and policy_restore. */
enum status updates_share(struct updates *updates, struct error *error);

/* Begins the update from the recording's rollout, which recording_learn has handed over. Without overlap
 * blocks until the update is done; `progress` may serve meanwhile. Errors as reinforce_learn and ppo_learn;
 * STATUS_NO_MEMORY. */
enum status updates_begin(struct updates *updates, policy_progress *progress, void *context,
                          struct error *error);

/* Whether an update has begun that updates_end has not ended. */
bool updates_are_under_way(const struct updates *updates);

/* Ends the update: its loss, its seconds, and of ppo and a2c its figures. STATUS_AGAIN while it runs; errors
 * as reinforce_learn and ppo_learn. */
enum status updates_end(struct updates *updates, double *loss, double *seconds,
                        struct control_figures *figures, struct error *error);

#endif
