/* The last episodes that have ended, as many as the window has: their returns and lengths, as
 * Stable-Baselines3's ep_rew_mean and ep_len_mean have them. Episodes end in the order of (step, column); one
 * that failed counts for nothing. Pure, but for memory; one thread. */
#ifndef WORKER_REINFORCE_RECENT_EPISODES_H
#define WORKER_REINFORCE_RECENT_EPISODES_H

#include "worker/reinforce/rollout.h"

struct recent_episode {
    double reward; /* undiscounted */
    uint64_t length;
};

struct recent_episodes {
    uint32_t columns, window;
    uint64_t ended;                /* so far */
    struct recent_episode *last;   /* (window) episode number e, from 0, at e mod window */
    struct recent_episode *so_far; /* (columns) the unfinished ones */
};

/* STATUS_NO_MEMORY. recent_episodes_close also follows a failure. */
enum status recent_episodes_open(struct recent_episodes *recent, uint32_t columns, uint32_t window,
                                 struct error *error);
void recent_episodes_close(struct recent_episodes *recent);

void recent_episodes_take(struct recent_episodes *recent, const struct rollout *rollout);

/* The unfinished episodes of columns first … first + count - 1 have come to nothing. */
void recent_episodes_forget(struct recent_episodes *recent, uint32_t first, uint32_t count);

/* Means over the window, or as many episodes as there are; NaN: none. */
void recent_episodes_mean(const struct recent_episodes *recent, double *reward, double *length);

/* All of it as bytes, for a checkpoint. Read answers how many of the `bytes` it has read; 0, and nothing is
 * changed: they are of another window. They may have another number of columns (observers were added, or have
 * left): a column that they do not have begins anew. */
size_t recent_episodes_bytes(const struct recent_episodes *recent);
void recent_episodes_write(const struct recent_episodes *recent, char *out);
size_t recent_episodes_read(struct recent_episodes *recent, const char *from, size_t bytes);

#endif
