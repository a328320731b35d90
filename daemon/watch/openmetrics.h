/* Writes a run's status as metrics, in the text format of Prometheus: names and units by its conventions.
 *
 * OpenMetrics 1.0 is https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md.
 * Counters begin at 0 when the supervisor begins. Pure; the supervisor's thread. */
#ifndef DAEMON_WATCH_OPENMETRICS_H
#define DAEMON_WATCH_OPENMETRICS_H

#include "daemon/watch/run_status.h"

enum openmetrics_form {
    OPENMETRICS,          /* version 1.0 */
    OPENMETRICS_CLASSIC,  /* the older text, version 0.0.4 */
    OPENMETRICS_TEXTFILE, /* the same for node_exporter: each sample has the run directory as the label `run`
                           */
};

/* The text, ended by a zero, and its length. The caller frees it. NULL: no memory. */
char *openmetrics_text(const struct run_status *status, enum openmetrics_form form, size_t *length);

#endif
