/* The arithmetic of returns: discounting, normalizing and scaling, in double; results are stored as float32.
 */
#include "worker/reinforce/returns.h"

#include <float.h>
#include <math.h>

/* Writes the environment's discounted returns into coefficients[0 .. length), unscaled. */
static void discount_rewards(const struct rollout *r, uint32_t environment, double gamma, float *coefficients)
{
    double following = 0;
    for (uint32_t step = r->lengths[environment]; step-- > 0;) {
        uint32_t row = rollout_row(r, step, environment);
        if (r->flags[row] != 0)
            following = 0;
        following = (double)r->rewards[row] + gamma * following;
        coefficients[step] = (float)following;
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
    for (uint32_t e = 0; e < r->environments; e++) {
        float *mine = r->coefficients + rows;
        discount_rewards(r, e, config->gamma, mine);
        if (config->normalize)
            normalize_returns(mine, r->lengths[e]);
        for (uint32_t step = 0; step < r->lengths[e]; step++) {
            mine[step] = (float)((double)mine[step] * config->scale);
            r->order[rows + step] = rollout_row(r, step, e);
        }
        rows += r->lengths[e];
    }
    return rows;
}
