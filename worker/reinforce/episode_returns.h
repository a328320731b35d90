/* The returns of the environments' episodes, where these span several of the job's: the sum of rewards from
 * an environment's reset to its end. Pure, but for memory; one thread. */
#ifndef WORKER_REINFORCE_EPISODE_RETURNS_H
#define WORKER_REINFORCE_EPISODE_RETURNS_H

#include "worker/reinforce/rollout.h"

struct episode_returns {
    uint32_t columns;
    double *so_far;    /* (columns) of the unfinished episodes; undiscounted */
    uint64_t episodes; /* that have ended so far, of all columns */
    double latest;     /* of the last rollout in which one ended: their mean, or the least */
};

/* STATUS_NO_MEMORY. episode_returns_close also follows a failure. */
enum status episode_returns_open(struct episode_returns *returns, uint32_t columns, struct error *error);
void episode_returns_close(struct episode_returns *returns);

/* Takes a rollout's rewards, column by column. An episode ends with its agent's; one that failed counts for
 * nothing. Returns how many have ended in this rollout. *reward: their mean or, with `least`, the least. If
 * none has ended: that of the latest which have; before the first: of the unfinished ones. */
uint64_t episode_returns_take(struct episode_returns *returns, const struct rollout *rollout, bool least,
                              double *reward);

/* The unfinished episodes of columns first … first + count - 1 have come to nothing. */
void episode_returns_forget(struct episode_returns *returns, uint32_t first, uint32_t count);

/* All of it as bytes, for a checkpoint. Read answers how many of the `bytes` it has read; 0, and nothing is
 * changed: they are none of these. They may have another number of columns (observers were added, or have
 * left): a column that they do not have begins anew. */
size_t episode_returns_bytes(const struct episode_returns *returns);
void episode_returns_write(const struct episode_returns *returns, char *out);
size_t episode_returns_read(struct episode_returns *returns, const char *from, size_t bytes);

#endif
