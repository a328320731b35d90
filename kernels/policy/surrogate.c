/* The objective, row by row in double. The vector part is exp alone. */
#include "kernels/policy/surrogate.h"

#include "kernels/policy/dense_internal.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

struct surrogate {
    const struct dense_lanes *lanes;
};

enum status surrogate_new(struct surrogate **out, struct error *error)
{
    struct surrogate *surrogate = calloc(1, sizeof *surrogate);
    if (surrogate == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for PPO's objective");
    const enum status status = dense_choose(&surrogate->lanes, NULL, error);
    if (status != STATUS_OK)
        surrogate_free(surrogate);
    else
        *out = surrogate;
    return status;
}

void surrogate_free(struct surrogate *surrogate)
{
    free(surrogate);
}

static double clamp(double x, double bound)
{
    return x > bound ? bound : x < -bound ? -bound : x;
}

static void find_ratios(const struct surrogate *surrogate, const struct surrogate_rows *rows, float *ratio)
{
    for (uint32_t i = 0; i < rows->count; i++)
        ratio[i] = rows->log_probability[i] - rows->old_log_probability[i];
    for (uint32_t i = rows->count; i % DENSE_LANES != 0; i++)
        ratio[i] = 0;
    for (uint32_t i = 0; i < rows->count; i += DENSE_LANES) // in place: each number by itself
        surrogate->lanes->exp(ratio + i, ratio + i);
}

/* Returns dL_policy / d log P, times the batch's rows. */
static double policy_term(const struct surrogate_objective *o, double ratio, double log_probability,
                          double advantage, struct surrogate_sums *sums)
{
    const double near = 1 + clamp(ratio - 1, o->clip);
    const double term = ratio * advantage, clipped = near * advantage;
    sums->clipped += fabs(ratio - 1) > o->clip;
    if (o->plain) {
        sums->policy -= log_probability * advantage;
        return -advantage;
    }
    sums->policy -= term > clipped ? clipped : term;
    return term > clipped ? 0 : -term;
}

/* Returns d(value loss)/dv, times the batch's rows. */
static double value_term(const struct surrogate_objective *o, double value, double old, double target,
                         struct surrogate_sums *sums)
{
    const double half = o->halved ? 0.5 : 1, step = value - old;
    const double near = old + clamp(step, o->value_clip);
    const double plain = value - target, clipped = near - target;
    const bool takes_plain = isinf(o->value_clip) || (o->halved && plain * plain > clipped * clipped);
    sums->value += half * (takes_plain ? plain * plain : clipped * clipped);
    if (takes_plain)
        return 2 * half * plain;
    return fabs(step) > o->value_clip ? 0 : 2 * half * clipped;
}

void surrogate_policy(const struct surrogate *surrogate, const struct surrogate_objective *o,
                      const struct surrogate_rows *rows, uint32_t batch, struct surrogate_sums *sums,
                      const struct surrogate_pulls *pulls)
{
    float ratios[SURROGATE_ROWS_MAX];
    assert(rows->count <= SURROGATE_ROWS_MAX);
    find_ratios(surrogate, rows, ratios);
    for (uint32_t i = 0; i < rows->count; i++) {
        const double log_probability = (double)rows->log_probability[i];
        const double ratio = (double)ratios[i];
        const double pull = policy_term(o, ratio, log_probability, (double)rows->advantage[i], sums);
        sums->entropy += (double)rows->entropy[i];
        sums->kl += ratio - 1 - (log_probability - (double)rows->old_log_probability[i]);
        pulls->log_probability[i] = (float)(pull / batch);
        pulls->entropy[i] = (float)(-o->entropy_coefficient / batch);
    }
}

void surrogate_value(const struct surrogate_objective *o, const struct surrogate_rows *rows, uint32_t batch,
                     struct surrogate_sums *sums, const struct surrogate_pulls *pulls)
{
    assert(rows->count <= SURROGATE_ROWS_MAX);
    for (uint32_t i = 0; i < rows->count; i++) {
        const double pull =
            value_term(o, (double)rows->value[i], (double)rows->old_value[i], (double)rows->returns[i], sums);
        pulls->value[i] = (float)(o->value_coefficient * pull / batch);
    }
}
