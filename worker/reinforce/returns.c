/* The arithmetic of returns: discounting, normalizing and scaling, in double; results are stored as float32.
 */
#include "worker/reinforce/returns.h"

#include "worker/environment/environment.h"

#include <float.h>
#include <math.h>

/* The column's rows that say something, in order. Returns how many there are. */
static uint32_t select_rows(const struct rollout *r, uint32_t column, uint32_t *rows)
{
    uint32_t count = 0;
    for (uint32_t step = 0; step < r->lengths[column]; step++)
        if (!rollout_is_absent(r, step, column))
            rows[count++] = rollout_row(r, step, column);
    return count;
}

/* Leaves out the rows of segments that ended with a failure of the environment. Returns how many stay. */
static uint32_t drop_failed(const struct rollout *r, uint32_t *rows, uint32_t count)
{
    uint32_t kept = 0, begin = 0;
    for (uint32_t i = 0; i < count; i++) {
        rows[kept++] = rows[i];
        if ((r->flags[rows[i]] & ENVIRONMENT_FAILED) != 0)
            kept = begin;
        if (r->flags[rows[i]] != 0)
            begin = kept;
    }
    return kept;
}

/* Writes the discounted returns of a column's rows into coefficients[0 .. count), unscaled. */
static void discount_rewards(const struct rollout *r, const uint32_t *rows, uint32_t count, double gamma,
                             float *coefficients)
{
    double following = 0;
    for (uint32_t i = count; i-- > 0;) {
        if (r->flags[rows[i]] != 0)
            following = 0;
        following = (double)r->rewards[rows[i]] + gamma * following;
        coefficients[i] = (float)following;
    }
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

uint32_t returns_coefficients(struct rollout *r, const struct returns_config *config)
{
    uint32_t rows = 0;
    for (uint32_t column = 0; column < r->columns; column++) {
        float *mine = r->coefficients + rows;
        const uint32_t count = drop_failed(r, r->order + rows, select_rows(r, column, r->order + rows));
        discount_rewards(r, r->order + rows, count, config->gamma, mine);
        if (config->normalize)
            normalize_returns(mine, count);
        for (uint32_t i = 0; i < count; i++)
            mine[i] = (float)((double)mine[i] * config->scale);
        rows += count;
    }
    return rows;
}
