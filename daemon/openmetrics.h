/* A run's status as metrics, in the text format of Prometheus: names and units by its conventions.
 *
 * With `classic` the older format (version 0.0.4), which node_exporter reads from files, and
 * each sample has the run directory as the label `run`; else OpenMetrics 1.0.
 * https://github.com/prometheus/OpenMetrics/blob/v1.0.0/specification/OpenMetrics.md.
 * Counters begin at 0 when the supervisor begins. Pure; the supervisor's thread. */
#ifndef DAEMON_OPENMETRICS_H
#define DAEMON_OPENMETRICS_H

#include "daemon/run_status.h"

#define OPENMETRICS_TYPE "application/openmetrics-text; version=1.0.0; charset=utf-8"

/* The text, ended by a zero, and its length. The caller frees it. NULL: no memory. */
char *openmetrics_text(const struct run_status *status, bool classic, size_t *length);

#endif
