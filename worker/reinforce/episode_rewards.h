/* The rewards of episodes that span rollouts. An episode's reward is its undiscounted sum from the
 * environment's reset on. The means over a window of the latest episodes are Stable-Baselines3's ep_rew_mean
 * and ep_len_mean. Columns are rollout.h's. The agent's thread. */
#ifndef WORKER_REINFORCE_EPISODE_REWARDS_H
#define WORKER_REINFORCE_EPISODE_REWARDS_H

#include "kernels/base/archive.h"
#include "worker/job/job.h"
#include "worker/reinforce/rollout.h"

/* One agent's episode: from the environment's reset to a row that has flags. */
struct episode {
    double reward; /* undiscounted */
    uint64_t length;
};

/* The mean and the least of some rewards. */
struct reward_summary {
    uint64_t count;
    double sum, least;
};

/* An episode that failed counts for nothing. */
struct episode_rewards {
    struct region region;
    uint32_t columns, agents;
    uint64_t ended;         /* so far, of all columns */
    double latest;          /* of the last rollout in which one ended: their mean reward, or the least */
    struct episode *so_far; /* (columns) the unfinished ones */
    struct episode *before; /* (columns) a copy of so_far, for the second pass of episode_rewards_take */
    struct reward_summary *by_agent; /* (agents) of the last rollout's ended episodes */
    uint32_t window;                 /* 0 of REINFORCE */
    struct episode
        *recent; /* (window) episode number e, from 0 in order of (step, column), at e mod window */
};

/* STATUS_NO_MEMORY; episode_rewards_close also follows a failure. */
enum status episode_rewards_open(struct episode_rewards *rewards, const struct job *job, uint32_t columns,
                                 uint32_t agents, struct error *error);
void episode_rewards_close(struct episode_rewards *rewards);

/* Takes a rollout's rewards in: sums column by column, the window step by step. *reward: the mean of the
 * episodes that have ended or, with `least`, the least. If none has (false): that of the latest which have;
 * before the first, of the unfinished ones. */
bool episode_rewards_take(struct episode_rewards *rewards, const struct rollout *rollout, bool least,
                          double *reward);

/* The mean of the agent's episodes that have ended in the last rollout; NaN: none has. */
double episode_rewards_of_agent(const struct episode_rewards *rewards, uint32_t agent);

/* Means over the window, or as many episodes as have ended; NaN: none. */
void episode_rewards_means(const struct episode_rewards *rewards, double *reward, double *length);

/* The unfinished episodes of columns first … first + count - 1 have come to nothing. */
void episode_rewards_forget(struct episode_rewards *rewards, uint32_t first, uint32_t count);

/* For a checkpoint: the unfinished rewards; and the window with its unfinished episodes. False: the bytes are
 * not such, or of another window. They may have another number of columns: a column that they do not have
 * begins anew. */
bool episode_rewards_archive(struct episode_rewards *rewards, struct archive *archive);
bool episode_rewards_archive_window(struct episode_rewards *rewards, struct archive *archive);

#endif
