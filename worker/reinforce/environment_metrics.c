/* Sums the metrics of ended episodes, and takes their means. Runs on the thread that owns the object. */
#include "worker/reinforce/environment_metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum status environment_metrics_open(struct environment_metrics *metrics, const struct environment_spec *spec,
                                     uint32_t columns, struct error *error)
{
    *metrics =
        (struct environment_metrics){.columns = columns, .count = spec->metric_count, .names = spec->metrics};
    metrics->sums = region_take(&metrics->region, columns, metrics->count * sizeof *metrics->sums);
    metrics->ended = region_take(&metrics->region, columns, sizeof *metrics->ended);
    if (metrics->region.failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the metrics of %u rows", columns);
    return STATUS_OK;
}

void environment_metrics_close(struct environment_metrics *metrics)
{
    region_free(&metrics->region);
}

void environment_metrics_clear(struct environment_metrics *metrics, uint32_t first, uint32_t columns)
{
    const size_t count = metrics->count;
    memset(metrics->sums + first * count, 0, columns * count * sizeof *metrics->sums);
    memset(metrics->ended + first, 0, columns * sizeof *metrics->ended);
}

void environment_metrics_add(struct environment_metrics *metrics, uint32_t column, const message_f32 *values)
{
    double *sums = metrics->sums + (size_t)column * metrics->count;
    for (uint32_t i = 0; i < metrics->count; i++)
        sums[i] += (double)values[i];
    metrics->ended[column]++;
}

void environment_metrics_take(struct environment_metrics *metrics, const struct step *step, uint32_t first)
{
    const message_f32 *values = step->metrics;
    for (uint32_t i = 0; i < step->rows && metrics->count > 0; i++) {
        const uint32_t at = i / step->agents, agent = i % step->agents;
        if (!step_ended(step_flags(step, i)))
            continue;
        const uint32_t environment = step->numbers != NULL ? step->numbers[at] : first + at;
        environment_metrics_add(metrics, environment * step->agents + agent, values);
        values += metrics->count;
    }
}

static double mean_of(const struct environment_metrics *metrics, uint32_t first, uint32_t columns,
                      uint32_t metric)
{
    double sum = 0;
    uint64_t ended = 0;
    for (uint32_t column = first; column < first + columns; column++) {
        sum += metrics->sums[(size_t)column * metrics->count + metric];
        ended += metrics->ended[column];
    }
    return ended > 0 ? sum / (double)ended : (double)NAN;
}

void environment_metrics_mean(const struct environment_metrics *metrics, uint32_t first, uint32_t columns,
                              struct control_metrics *means)
{
    means->count = metrics->count;
    for (uint32_t i = 0; i < metrics->count; i++) {
        snprintf(means->of[i].name, sizeof means->of[i].name, "%s", metrics->names[i]);
        means->of[i].mean = mean_of(metrics, first, columns, i);
    }
}
