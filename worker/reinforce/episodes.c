/* Sums the metrics and the returns of episodes, and writes the returns to checkpoints. Runs on the thread
 * that owns the object. */
#include "worker/reinforce/episodes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- metrics ---- */

enum status episode_metrics_open(struct episode_metrics *metrics, const struct environment_spec *spec,
                                 uint32_t columns, struct error *error)
{
    *metrics =
        (struct episode_metrics){.columns = columns, .count = spec->metric_count, .names = spec->metrics};
    metrics->sums = calloc((size_t)columns * metrics->count + 1, sizeof *metrics->sums);
    metrics->ended = calloc(columns, sizeof *metrics->ended);
    if (metrics->sums == NULL || metrics->ended == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the metrics of %u rows", columns);
    return STATUS_OK;
}

void episode_metrics_close(struct episode_metrics *metrics)
{
    free(metrics->sums);
    free(metrics->ended);
}

void episode_metrics_clear(struct episode_metrics *metrics, uint32_t first, uint32_t columns)
{
    const size_t count = metrics->count;
    memset(metrics->sums + first * count, 0, columns * count * sizeof *metrics->sums);
    memset(metrics->ended + first, 0, columns * sizeof *metrics->ended);
}

void episode_metrics_add(struct episode_metrics *metrics, uint32_t column, const message_f32 *values)
{
    double *sums = metrics->sums + (size_t)column * metrics->count;
    for (uint32_t i = 0; i < metrics->count; i++)
        sums[i] += (double)values[i];
    metrics->ended[column]++;
}

static double mean_of(const struct episode_metrics *metrics, uint32_t first, uint32_t columns,
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

void episode_metrics_mean(const struct episode_metrics *metrics, uint32_t first, uint32_t columns,
                          struct control_metrics *means)
{
    means->count = metrics->count;
    for (uint32_t i = 0; i < metrics->count; i++) {
        snprintf(means->of[i].name, sizeof means->of[i].name, "%s", metrics->names[i]);
        means->of[i].mean = mean_of(metrics, first, columns, i);
    }
}

/* ---- returns ---- */

enum status episodes_open(struct episodes *e, uint32_t columns, uint32_t window, struct error *error)
{
    *e = (struct episodes){.columns = columns, .window = window};
    e->so_far = calloc(columns, sizeof *e->so_far);
    e->before = calloc(columns, sizeof *e->before);
    e->recent = calloc((size_t)window + 1, sizeof *e->recent);
    if (e->so_far == NULL || e->before == NULL || e->recent == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the episodes of %u columns", columns);
    return STATUS_OK;
}

void episodes_close(struct episodes *e)
{
    free(e->so_far);
    free(e->before);
    free(e->recent);
    *e = (struct episodes){0};
}

/* The mean and the least of some returns. */
struct summary {
    uint64_t count;
    double sum, least;
};

static void summary_add(struct summary *summary, double value)
{
    summary->least = summary->count == 0 ? value : fmin(summary->least, value);
    summary->sum += value;
    summary->count++;
}

/* Adds a row to the column's unfinished episode. True: the row ends one that counts, *ended. */
static bool add_row(struct episode *so_far, const struct rollout *rollout, uint32_t step, uint32_t column,
                    struct episode *ended)
{
    const uint32_t row = rollout_row(rollout, step, column);
    if (step >= rollout->lengths[column] || rollout_is_absent(rollout, step, column))
        return false;
    so_far[column].reward += (double)rollout->rewards[row];
    so_far[column].length++;
    if (rollout->flags[row] == 0)
        return false;
    *ended = so_far[column];
    so_far[column] = (struct episode){0};
    return (rollout->flags[row] & ENVIRONMENT_FAILED) == 0;
}

/* Sums are formed column by column; the window is filled step by step. */
uint64_t episodes_take(struct episodes *e, const struct rollout *rollout, bool least, double *reward)
{
    struct summary ended = {0}, unfinished = {0};
    struct episode episode;
    memcpy(e->before, e->so_far, e->columns * sizeof *e->before);
    for (uint32_t column = 0; column < e->columns; column++) {
        for (uint32_t step = 0; step < rollout->lengths[column]; step++)
            if (add_row(e->so_far, rollout, step, column, &episode))
                summary_add(&ended, episode.reward);
        summary_add(&unfinished, e->so_far[column].reward);
    }
    for (uint32_t step = 0, number = 0; e->window > 0 && step < rollout->config.steps_max; step++)
        for (uint32_t column = 0; column < e->columns; column++)
            if (add_row(e->before, rollout, step, column, &episode))
                e->recent[(e->ended + number++) % e->window] = episode;
    const struct summary *of = ended.count > 0 ? &ended : &unfinished;
    const double value = least ? of->least : of->sum / (double)of->count;
    e->ended += ended.count;
    if (ended.count > 0)
        e->latest = value;
    *reward = e->ended > 0 ? e->latest : value;
    return ended.count;
}

void episodes_mean(const struct episodes *e, double *reward, double *length)
{
    const uint64_t count = e->ended < e->window ? e->ended : e->window;
    *reward = *length = count > 0 ? 0 : (double)NAN;
    for (uint64_t i = 0; i < count; i++) {
        *reward += e->recent[i].reward / (double)count;
        *length += (double)e->recent[i].length / (double)count;
    }
}

void episodes_forget(struct episodes *e, uint32_t first, uint32_t count)
{
    memset(e->so_far + first, 0, count * sizeof *e->so_far);
}

/* ---- bytes ---- */

static uint64_t fewer(uint64_t columns, const struct episodes *e)
{
    return columns < e->columns ? columns : e->columns;
}

/* What stands before the rewards of the unfinished episodes. */
struct returns_head {
    uint64_t columns, ended;
    double latest;
};

size_t episodes_save(const struct episodes *e, char *out)
{
    const struct returns_head head = {e->columns, e->ended, e->latest};
    if (out != NULL)
        memcpy(out, &head, sizeof head);
    for (uint32_t i = 0; i < e->columns && out != NULL; i++)
        memcpy(out + sizeof head + i * sizeof(double), &e->so_far[i].reward, sizeof(double));
    return sizeof head + e->columns * sizeof(double);
}

size_t episodes_load(struct episodes *e, const char *from, size_t bytes)
{
    struct returns_head head = {0};
    if (bytes >= sizeof head)
        memcpy(&head, from, sizeof head);
    if (head.columns == 0 || head.columns > (bytes - sizeof head) / sizeof(double))
        return 0;
    e->ended = head.ended;
    e->latest = head.latest;
    for (uint32_t i = 0; i < fewer(head.columns, e); i++)
        memcpy(&e->so_far[i].reward, from + sizeof head + i * sizeof(double), sizeof(double));
    return sizeof head + head.columns * sizeof(double);
}

/* What stands before the window and the unfinished episodes. */
struct window_head {
    uint64_t columns, window, ended;
};

size_t episodes_save_window(const struct episodes *e, char *out)
{
    const struct window_head head = {e->columns, e->window, e->ended};
    const size_t recent = e->window * sizeof *e->recent, so_far = e->columns * sizeof *e->so_far;
    if (out != NULL) {
        memcpy(out, &head, sizeof head);
        memcpy(out + sizeof head, e->recent, recent);
        memcpy(out + sizeof head + recent, e->so_far, so_far);
    }
    return sizeof head + recent + so_far;
}

size_t episodes_load_window(struct episodes *e, const char *from, size_t bytes)
{
    const size_t before = sizeof(struct window_head) + e->window * sizeof *e->recent;
    struct window_head head = {0};
    if (bytes >= before)
        memcpy(&head, from, sizeof head);
    if (head.columns == 0 || head.window != e->window || head.columns > (bytes - before) / sizeof *e->so_far)
        return 0;
    e->ended = head.ended;
    memcpy(e->recent, from + sizeof head, before - sizeof head);
    memcpy(e->so_far, from + before, fewer(head.columns, e) * sizeof *e->so_far);
    return before + head.columns * sizeof *e->so_far;
}
