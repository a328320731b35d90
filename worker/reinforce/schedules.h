/* What rises or falls with a job's steps: straight, up to /stop/steps. `steps`: those of all environments so
 * far; after /stop/steps each value stays. Pure functions of the job. */
#ifndef WORKER_REINFORCE_SCHEDULES_H
#define WORKER_REINFORCE_SCHEDULES_H

#include "worker/job/job.h"

/* /optimizer/lr, which falls to 0 by /algorithm/learning_rate_schedule "linear". */
double schedules_learning_rate(const struct job *job, uint64_t steps);

/* PPO's /algorithm/clip_range, which falls to 0 by /algorithm/clip_range_schedule "linear". */
double schedules_clip_range(const struct job *job, uint64_t steps);

/* DQN's probability of a random action: from exploration_initial_eps to exploration_final_eps within the
 * share exploration_fraction of the steps. 0: other algorithms. */
double schedules_exploration_rate(const struct job *job, uint64_t steps);

/* The exponent of a prioritized replay's importance weights: from prioritized_replay_beta to 1. */
double schedules_beta(const struct job *job, uint64_t steps);

#endif
