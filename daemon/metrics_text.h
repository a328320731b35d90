/* The metrics of ended episodes, for people. Pure; any thread. */
#ifndef DAEMON_METRICS_TEXT_H
#define DAEMON_METRICS_TEXT_H

#include "worker/control.h"

enum { METRICS_TEXT_BYTES = CONTROL_METRICS_MAX * (2 * CONTROL_METRIC_NAME_BYTES + 330) };

/* Writes "\tNAME: MEAN" for each metric, "-" where no episode has ended, and a zero. Names are made fit to
 * show (kernels/base/text.h). A count or a name that no worker should send is cut. */
void metrics_text(char out[METRICS_TEXT_BYTES], const struct control_metrics *metrics);

#endif
