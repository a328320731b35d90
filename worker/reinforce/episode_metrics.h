/* The metrics that environments report of ended episodes (environment.h's `metrics`), summed column by column
 * (rollout.h). The values of a column come in the order of its steps, so the sums do not depend on how the
 * environments are spread over observers and groups. Pure, but for memory; one thread. */
#ifndef WORKER_REINFORCE_EPISODE_METRICS_H
#define WORKER_REINFORCE_EPISODE_METRICS_H

#include "worker/control.h"
#include "worker/reinforce/step_message.h"

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

/* Adds the rows that the step before has ended; of an answer's step, which has no numbers, those of
 * environments from `first` on. */
void episode_metrics_take(struct episode_metrics *metrics, const struct step *step, uint32_t first);

/* Writes the names, and the means over the ended episodes of columns first … first + columns - 1; NaN where
 * none has ended. Columns are added in ascending order. */
void episode_metrics_mean(const struct episode_metrics *metrics, uint32_t first, uint32_t columns,
                          struct control_metrics *means);

#endif
