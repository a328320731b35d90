/* What the environments' episodes come to: the metrics that environments report of them (environment.h's
 * `metrics`), and the returns of episodes that span several rollouts. Both are kept by column (rollout.h).
 * Pure, but for memory; one thread. */
#ifndef WORKER_REINFORCE_EPISODES_H
#define WORKER_REINFORCE_EPISODES_H

#include "worker/control.h"
#include "worker/reinforce/rollout.h"

/* ---- metrics ---- */

/* Sums of metrics. The values of a column come in the order of its steps, so the sums do not depend on how
 * the environments are spread over observers and groups. */
struct episode_metrics {
    uint32_t columns, count;
    const char *const *names; /* (count) the spec's */
    double *sums;             /* (columns, count) over the ended episodes */
    uint32_t *ended;          /* (columns) how many there are */
};

/* The spec's metrics, of `columns` columns; its names are kept, not copied. STATUS_NO_MEMORY.
 * episode_metrics_close also follows a failure. */
enum status episode_metrics_open(struct episode_metrics *metrics, const struct environment_spec *spec,
                                 uint32_t columns, struct error *error);
void episode_metrics_close(struct episode_metrics *metrics);

/* Forgets the episodes of columns first … first + columns - 1. */
void episode_metrics_clear(struct episode_metrics *metrics, uint32_t first, uint32_t columns);

/* Adds an ended episode of the column, with its (count) values. */
void episode_metrics_add(struct episode_metrics *metrics, uint32_t column, const message_f32 *values);

/* Writes the names, and the means over the ended episodes of columns first … first + columns - 1; NaN where
 * none has ended. Columns are added in ascending order. */
void episode_metrics_mean(const struct episode_metrics *metrics, uint32_t first, uint32_t columns,
                          struct control_metrics *means);

/* ---- returns ---- */

struct episode {
    double reward; /* the sum of rewards from the environment's reset on, undiscounted */
    uint64_t length;
};

/* An agent's episode ends with a row that has flags; one that failed counts for nothing. */
struct episodes {
    uint32_t columns, window;
    uint64_t ended;         /* so far, of all columns */
    double latest;          /* of the last rollout in which one ended: their mean reward, or the least */
    struct episode *so_far; /* (columns) the unfinished ones */
    struct episode *before; /* (columns) so_far as it was before the rollout that is taken */
    struct episode *recent; /* (window) episode number e, from 0 in order of (step, column), at e mod window
                             */
};

/* `window`: how many ended episodes are kept for episodes_mean. STATUS_NO_MEMORY. episodes_close also follows
 * a failure. */
enum status episodes_open(struct episodes *episodes, uint32_t columns, uint32_t window, struct error *error);
void episodes_close(struct episodes *episodes);

/* Takes a rollout's rewards in. Returns how many episodes have ended in it. *reward: their mean or, with
 * `least`, the least. If none has ended: that of the latest which have; before the first: of the unfinished
 * ones. */
uint64_t episodes_take(struct episodes *episodes, const struct rollout *rollout, bool least, double *reward);

/* Means over the window, or as many episodes as have ended; NaN: none. They are Stable-Baselines3's
 * ep_rew_mean and ep_len_mean. */
void episodes_mean(const struct episodes *episodes, double *reward, double *length);

/* The unfinished episodes of columns first … first + count - 1 have come to nothing. */
void episodes_forget(struct episodes *episodes, uint32_t first, uint32_t count);

/* The returns as bytes, for a checkpoint; and the window. Save writes them, unless `out` is NULL, and returns
 * their number. Load returns how many of the `bytes` it has read; 0, and nothing is changed: they are none of
 * these, or of another window. They may have another number of columns (observers were added, or have left):
 * a column that they do not have begins anew. */
size_t episodes_save(const struct episodes *episodes, char *out);
size_t episodes_load(struct episodes *episodes, const char *from, size_t bytes);
size_t episodes_save_window(const struct episodes *episodes, char *out);
size_t episodes_load_window(struct episodes *episodes, const char *from, size_t bytes);

#endif
