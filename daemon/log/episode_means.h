/* Writes the metrics of ended episodes as text for people. Pure; any thread. */
#ifndef DAEMON_LOG_EPISODE_MEANS_H
#define DAEMON_LOG_EPISODE_MEANS_H

#include "worker/control.h"

enum { EPISODE_MEANS_BYTES = CONTROL_METRICS_MAX * (2 * CONTROL_METRIC_NAME_BYTES + 330) };

/* Writes "\tNAME: MEAN" for each metric, "-" where no episode has ended, and a zero. Names are made fit to
 * show (kernels/base/text.h). A count or a name that no worker should send is cut. */
void episode_means_text(char out[EPISODE_MEANS_BYTES], const struct control_metrics *metrics);

#endif
