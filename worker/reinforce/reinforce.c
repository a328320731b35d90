/* Discounts, normalizes and scales rewards, in double, and stores them as float32; then takes the step. */
#include "worker/reinforce/reinforce.h"

#include "worker/environment/environment.h"

#include <float.h>
#include <math.h>

/* Turns the rewards of a segment into its discounted returns, unscaled. */
static void discount_segment(float *values, uint32_t count, double gamma)
{
    double following = 0;
    for (uint32_t i = count; i-- > 0;) {
        following = (double)values[i] + gamma * following;
        values[i] = (float)following;
    }
}

/* Writes the column's rows that say something, in order, and their discounted returns, unscaled. Leaves out
 * the segments that ended with a failure of the environment. Returns the number of rows. */
static uint32_t discount_column(const struct rollout *r, uint32_t column, double gamma, uint32_t *rows,
                                float *values)
{
    enum { STEPS_AHEAD = 16 };
    uint32_t count = 0, begin = 0; // rows written; the first one of the segment
    uint8_t flags = r->before[column];
    for (uint32_t step = 0; step < r->lengths[column]; step++) {
        const uint32_t row = rollout_row(r, step, column);
        const bool absent = (flags & ENVIRONMENT_ABSENT) != 0 && rollout_is_absent(r, step, column);
        const size_t later =
            row + (size_t)STEPS_AHEAD * r->columns; /* the column's rows lie apart in memory */
        __builtin_prefetch(r->rewards + later);
        __builtin_prefetch(r->flags + later);
        flags = r->flags[row];
        if (absent)
            continue;
        rows[count] = row;
        values[count++] = rollout_learned_reward(r, row);
        if (flags == 0)
            continue;
        if ((flags & ENVIRONMENT_FAILED) != 0)
            count = begin;
        discount_segment(values + begin, count - begin, gamma);
        begin = count;
    }
    discount_segment(values + begin, count - begin, gamma);
    return count;
}

/* The tutorial adds float32's epsilon to the deviation: np.finfo(np.float32).eps. */
static void normalize_returns(float *values, uint32_t count)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += (double)values[i];
    double mean = sum / count;
    for (uint32_t i = 0; i < count; i++)
        squares += ((double)values[i] - mean) * ((double)values[i] - mean);
    double deviation = count > 1 ? sqrt(squares / (count - 1)) : 0;
    for (uint32_t i = 0; i < count; i++)
        values[i] = (float)(((double)values[i] - mean) / (deviation + (double)FLT_EPSILON));
}

uint32_t reinforce_weigh(struct rollout *r, const struct job *job)
{
    const double scale = job->loss.reduction == JOB_REDUCTION_SUM ? 1.0 : 1.0 / r->columns;
    uint32_t rows = 0;
    for (uint32_t column = 0; column < r->columns; column++) {
        float *mine = r->coefficients + rows;
        const uint32_t count = discount_column(r, column, job->returns.gamma, r->order + rows, mine);
        if (job->returns.normalize)
            normalize_returns(mine, count);
        for (uint32_t i = 0; i < count; i++)
            mine[i] = (float)((double)mine[i] * scale);
        rows += count;
    }
    return rows;
}

enum status reinforce_learn(struct policy *policy, struct rollout *rollout, const struct job *job,
                            policy_progress *progress, void *context, double *loss, struct error *error)
{
    const struct policy_rows rows = rollout_batch(rollout, reinforce_weigh(rollout, job), rollout->order);
    struct error why = {0};
    const enum status status =
        policy_learn(policy, &rows, rollout->coefficients, rollout->episode, loss, progress, context, &why);
    return status == STATUS_OK
               ? status
               : error_set(error, status, "learning from episode %u: %.400s", rollout->episode, why.text);
}
