/* The memory of one episode's rows, and the sums of its rewards. */
#include "worker/reinforce/rollout.h"

#include "worker/job/job.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum status rollout_new(struct rollout **out, uint32_t environments, uint32_t steps_max,
                        uint32_t observation_size, uint32_t mask_words, struct error *error)
{
    uint64_t rows = (uint64_t)environments * steps_max;
    if (rows == 0 || rows > JOB_ROLLOUT_ROWS_MAX)
        return error_set(error, STATUS_INVALID,
                         "a rollout of %u environments and %u steps: expected 1..%d rows, got %llu",
                         environments, steps_max, JOB_ROLLOUT_ROWS_MAX, (unsigned long long)rows);
    struct rollout *r = calloc(1, sizeof *r);
    if (r == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a rollout");
    r->environments = environments;
    r->steps_max = steps_max;
    r->observation_size = observation_size;
    r->mask_words = mask_words;
    r->lengths = calloc(environments, sizeof *r->lengths);
    r->observations = calloc(rows * observation_size, sizeof *r->observations);
    r->rewards = calloc(rows, sizeof *r->rewards);
    r->flags = calloc(rows, sizeof *r->flags);
    r->actions = calloc(rows, sizeof *r->actions);
    r->masks = calloc(rows * mask_words, sizeof *r->masks);
    r->order = calloc(rows, sizeof *r->order);
    r->coefficients = calloc(rows, sizeof *r->coefficients);
    if (r->lengths == NULL || r->observations == NULL || r->rewards == NULL || r->flags == NULL ||
        r->actions == NULL || r->masks == NULL || r->order == NULL || r->coefficients == NULL) {
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
    free(r->rewards);
    free(r->flags);
    free(r->actions);
    free(r->masks);
    free(r->order);
    free(r->coefficients);
    free(r);
}

void rollout_begin(struct rollout *r, uint32_t episode)
{
    r->episode = episode;
    memset(r->lengths, 0, r->environments * sizeof *r->lengths);
}

uint64_t rollout_rows(const struct rollout *r)
{
    uint64_t rows = 0;
    for (uint32_t e = 0; e < r->environments; e++)
        rows += r->lengths[e];
    return rows;
}

static double first_segment_reward(const struct rollout *r, uint32_t environment)
{
    double sum = 0;
    for (uint32_t step = 0; step < r->lengths[environment]; step++) {
        uint32_t row = rollout_row(r, step, environment);
        sum += (double)r->rewards[row];
        if (r->flags[row] != 0)
            break;
    }
    return sum;
}

double rollout_reward_min(const struct rollout *r)
{
    double least = first_segment_reward(r, 0);
    for (uint32_t e = 1; e < r->environments; e++)
        least = fmin(least, first_segment_reward(r, e));
    return least;
}

double rollout_reward_mean(const struct rollout *r)
{
    double sum = 0;
    for (uint32_t e = 0; e < r->environments; e++)
        sum += first_segment_reward(r, e);
    return sum / r->environments;
}
