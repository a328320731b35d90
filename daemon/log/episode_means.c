/* Writes the means of an evaluation's metrics as text. Pure; any thread. */
#include "daemon/log/episode_means.h"

#include "kernels/base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void episode_means_text(char out[EPISODE_MEANS_BYTES], const struct control_metrics *metrics)
{
    char name[2 * CONTROL_METRIC_NAME_BYTES];
    size_t at = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < metrics->count && i < CONTROL_METRICS_MAX; i++) {
        const double mean = metrics->of[i].mean;
        text_show(name, sizeof name, metrics->of[i].name,
                  strnlen(metrics->of[i].name, CONTROL_METRIC_NAME_BYTES), CONTROL_METRIC_NAME_BYTES);
        at += (size_t)snprintf(out + at, EPISODE_MEANS_BYTES - at, isfinite(mean) ? "\t%s: %.2f" : "\t%s: -",
                               name, mean);
    }
}
