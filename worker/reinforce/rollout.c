/* The memory of one episode's rows, and the sums of its rewards. */
#include "worker/reinforce/rollout.h"

#include "worker/environment/environment_spec.h"
#include "worker/job/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- memory ---- */

static size_t row_bytes(const struct rollout_config *config)
{
    return config->observation_bytes + config->action_bytes + config->choices + sizeof(float) + 1 +
           config->dropout_words * sizeof(uint16_t) + sizeof(uint32_t) + sizeof(float) +
           (config->bootstraps ? 2 * sizeof(float) : 0);
}

/* The kernel grants more memory than there is, and kills whoever uses all of it: so this asks first. */
static enum status check_size(const struct rollout_config *config, uint64_t rows, struct error *error)
{
    const double bytes = (double)rows * (double)row_bytes(config);
    const double machine = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    if (rows == 0 || rows > JOB_ROLLOUT_ROWS_MAX)
        return error_set(
            error, STATUS_INVALID,
            "a rollout of %u environments with %u agents each and %u steps: expected 1..%d rows, got %llu",
            config->environments, config->agents, config->steps_max, JOB_ROLLOUT_ROWS_MAX,
            (unsigned long long)rows);
    if (bytes > machine)
        return error_set(
            error, STATUS_INVALID,
            "a rollout of %llu rows with %zu bytes each takes %.1f GiB: this machine has %.1f GiB",
            (unsigned long long)rows, row_bytes(config), bytes / 0x1p30, machine / 0x1p30);
    return STATUS_OK;
}

static bool open_rows(struct rollout *r, uint64_t rows)
{
    const struct rollout_config *config = &r->config;
    const uint64_t closed = rows + (config->bootstraps ? r->columns : 0);
    r->lengths = calloc(r->columns, sizeof *r->lengths);
    r->observations = calloc(closed, config->observation_bytes);
    r->actions = calloc(rows, config->action_bytes);
    r->allowed = config->choices > 0 ? calloc(closed, config->choices) : NULL;
    r->rewards = calloc(rows, sizeof *r->rewards);
    r->flags = calloc(rows, sizeof *r->flags);
    r->before = calloc(r->columns, sizeof *r->before);
    r->masks = calloc(rows * config->dropout_words + 1, sizeof *r->masks);
    r->order = calloc(rows, sizeof *r->order);
    r->coefficients = calloc(rows, sizeof *r->coefficients);
    if (config->bootstraps) {
        r->log_probabilities = calloc(rows, sizeof *r->log_probabilities);
        r->values = calloc(closed, sizeof *r->values);
    }
    return (!config->bootstraps || (r->log_probabilities != NULL && r->values != NULL)) &&
           r->lengths != NULL && r->observations != NULL && r->actions != NULL &&
           (r->allowed != NULL || config->choices == 0) && r->rewards != NULL && r->flags != NULL &&
           r->before != NULL && r->masks != NULL && r->order != NULL && r->coefficients != NULL;
}

enum status rollout_new(struct rollout **out, const struct rollout_config *config, struct error *error)
{
    const uint64_t columns = (uint64_t)config->environments * config->agents;
    const uint64_t rows = columns > JOB_ROLLOUT_ROWS_MAX ? columns : columns * config->steps_max;
    enum status status = check_size(config, rows, error);
    if (status != STATUS_OK)
        return status;
    struct rollout *r = calloc(1, sizeof *r);
    if (r == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a rollout");
    r->config = *config;
    r->columns = (uint32_t)columns;
    if (!open_rows(r, rows)) {
        rollout_free(r);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a rollout of %llu rows",
                         (unsigned long long)rows);
    }
    *out = r;
    return STATUS_OK;
}

void rollout_free(struct rollout *r)
{
    if (r == NULL)
        return;
    free(r->lengths);
    free(r->observations);
    free(r->actions);
    free(r->allowed);
    free(r->rewards);
    free(r->flags);
    free(r->before);
    free(r->masks);
    free(r->order);
    free(r->coefficients);
    free(r->log_probabilities);
    free(r->values);
    free(r->last_rows);
    free(r->last_observations);
    free(r->last_values);
    free(r);
}

/* ---- rows ---- */

void rollout_begin(struct rollout *r, uint32_t episode)
{
    r->episode = episode;
    r->last_count = 0;
    memset(r->lengths, 0, r->columns * sizeof *r->lengths);
}

bool rollout_is_absent(const struct rollout *r, uint32_t step, uint32_t column)
{
    if (step == 0)
        return r->before[column] != 0;
    if ((r->flags[rollout_row(r, step - 1, column)] & ENVIRONMENT_ABSENT) == 0)
        return false;
    const uint32_t agents = r->config.agents, first = column / agents * agents;
    return !environment_is_over(r->flags + rollout_row(r, step - 1, first), agents);
}

/* ---- last observations ---- */

static char *last_at(const struct rollout *r, uint32_t i)
{
    return r->last_observations + i * r->config.observation_bytes;
}

/* Makes room for more; false: no memory, and all is as it was. */
static bool grow_last(struct rollout *r, uint32_t capacity)
{
    uint32_t *rows = realloc(r->last_rows, capacity * sizeof *rows);
    if (rows == NULL)
        return false;
    r->last_rows = rows;
    char *observations = realloc(r->last_observations, capacity * r->config.observation_bytes);
    if (observations == NULL)
        return false;
    r->last_observations = observations;
    float *values = realloc(r->last_values, capacity * sizeof *values);
    if (values == NULL)
        return false;
    r->last_values = values;
    r->last_capacity = capacity;
    return true;
}

enum status rollout_add_last(struct rollout *r, uint32_t row, const void *observation, struct error *error)
{
    if (r->last_count == r->last_capacity && !grow_last(r, r->last_capacity * 2 + 16))
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u last observations", r->last_count + 1);
    memcpy(last_at(r, r->last_count), observation, r->config.observation_bytes);
    r->last_rows[r->last_count++] = row;
    return STATUS_OK;
}

void rollout_forget_last(struct rollout *r, uint32_t first, uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < r->last_count; i++) {
        if (r->last_rows[i] % r->columns - first < count)
            continue;
        r->last_rows[kept] = r->last_rows[i];
        memmove(last_at(r, kept++), last_at(r, i), r->config.observation_bytes);
    }
    r->last_count = kept;
}

static int compare_last(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

enum status rollout_sort_last(struct rollout *r, struct error *error)
{
    const size_t bytes = r->config.observation_bytes;
    if (r->last_count < 2)
        return STATUS_OK;
    uint64_t *keys = malloc(r->last_count * sizeof *keys);
    char *sorted = malloc(r->last_capacity * bytes);
    if (keys == NULL || sorted == NULL) {
        free(keys);
        free(sorted);
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u last observations", r->last_count);
    }
    for (uint32_t i = 0; i < r->last_count; i++)
        keys[i] = (uint64_t)r->last_rows[i] << 32 | i;
    qsort(keys, r->last_count, sizeof *keys, compare_last);
    for (uint32_t i = 0; i < r->last_count; i++) {
        r->last_rows[i] = (uint32_t)(keys[i] >> 32);
        memcpy(sorted + i * bytes, last_at(r, (uint32_t)keys[i]), bytes);
    }
    free(keys);
    free(r->last_observations);
    r->last_observations = sorted;
    return STATUS_OK;
}

uint64_t rollout_rows(const struct rollout *r)
{
    uint64_t rows = 0;
    for (uint32_t column = 0; column < r->columns; column++)
        rows += r->lengths[column];
    return rows;
}

static double first_segment_reward(const struct rollout *r, uint32_t column)
{
    double sum = 0;
    for (uint32_t step = 0; step < r->lengths[column]; step++) {
        uint32_t row = rollout_row(r, step, column);
        sum += (double)r->rewards[row];
        if (r->flags[row] != 0)
            break;
    }
    return sum;
}

double rollout_reward_min(const struct rollout *r)
{
    double least = first_segment_reward(r, 0);
    for (uint32_t column = 1; column < r->columns; column++)
        least = fmin(least, first_segment_reward(r, column));
    return least;
}

double rollout_reward_mean(const struct rollout *r)
{
    double sum = 0;
    for (uint32_t column = 0; column < r->columns; column++)
        sum += first_segment_reward(r, column);
    return sum / r->columns;
}
