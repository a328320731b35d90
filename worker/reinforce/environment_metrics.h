/* The metrics that environments report of ended episodes (environment.h's `metrics`), summed column by column
 * (rollout.h). The values of a column come in the order of its steps, so the sums do not depend on how the
 * environments are spread over observers and groups. Pure, but for memory; one thread. */
#ifndef WORKER_REINFORCE_ENVIRONMENT_METRICS_H
#define WORKER_REINFORCE_ENVIRONMENT_METRICS_H

#include "kernels/base/region.h"
#include "worker/control.h"
#include "worker/reinforce/step_message.h"

struct environment_metrics {
    struct region region;
    uint32_t columns, count;
    const char *const *names; /* (count) the spec's */
    double *sums;             /* (columns, count) over the ended episodes */
    uint32_t *ended;          /* (columns) how many there are */
};

/* The spec's metrics, of `columns` columns; its names are kept, not copied. STATUS_NO_MEMORY.
 * environment_metrics_close also follows a failure. */
enum status environment_metrics_open(struct environment_metrics *metrics, const struct environment_spec *spec,
                                     uint32_t columns, struct error *error);
void environment_metrics_close(struct environment_metrics *metrics);

/* Forgets the episodes of columns first … first + columns - 1. */
void environment_metrics_clear(struct environment_metrics *metrics, uint32_t first, uint32_t columns);

/* Adds an ended episode of the column, with its (count) values. */
void environment_metrics_add(struct environment_metrics *metrics, uint32_t column, const message_f32 *values);

/* Adds the rows that the step before has ended; of an answer's step, which has no numbers, those of
 * environments from `first` on. */
void environment_metrics_take(struct environment_metrics *metrics, const struct step *step, uint32_t first);

/* Writes the names, and the means over the ended episodes of columns first … first + columns - 1; NaN where
 * none has ended. Columns are added in ascending order. */
void environment_metrics_mean(const struct environment_metrics *metrics, uint32_t first, uint32_t columns,
                              struct control_metrics *means);

#endif
