/* PPO's objective, row by row in double. Only exp computes in lanes. */
#include "kernels/policy/surrogate.h"

#include "kernels/policy/lanes_internal.h"

#include <assert.h>
#include <math.h>

static double clamp(double x, double bound)
{
    return x > bound ? bound : x < -bound ? -bound : x;
}

/* ratio (a whole number of lanes) = exp(log P - log P_old) */
static void find_ratios(const struct surrogate *m, uint32_t count, const uint32_t *row,
                        const float *log_probability, float *ratio)
{
    for (uint32_t i = 0; i < count; i++)
        ratio[i] = log_probability[i] - m->rows.log_probabilities[row[i]];
    for (uint32_t i = count; i % POLICY_LANES != 0; i++)
        ratio[i] = 0;
    for (uint32_t i = 0; i < count; i += POLICY_LANES) // in place: each number by itself
        m->lanes->exp(ratio + i, ratio + i);
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

/* One row has no deviation. */
static void find_scaling(struct surrogate *m)
{
    const struct surrogate_rows *rows = &m->rows;
    double sum = 0, squares = 0;
    if (!rows->normalizes || rows->count < 2)
        return;
    for (uint32_t i = 0; i < rows->count; i++)
        sum += (double)rows->advantages[rows->row[i]];
    m->shift = sum / rows->count;
    for (uint32_t i = 0; i < rows->count; i++) {
        const double apart = (double)rows->advantages[rows->row[i]] - m->shift;
        squares += apart * apart;
    }
    m->factor = 1 / (sqrt(squares / (rows->count - 1)) + 1e-8);
}

void surrogate_begin(struct surrogate *m, const struct surrogate_objective *objective,
                     const struct surrogate_rows *rows)
{
    *m = (struct surrogate){
        .lanes = policy_lanes_choose()->dense, .objective = objective, .rows = *rows, .factor = 1};
    find_scaling(m);
}

void surrogate_judge_actions(const struct surrogate *m, uint32_t count, const uint32_t *row,
                             const float *log_probability, const float *entropy,
                             const struct dense_pulls *pulls, struct surrogate_sums *sums)
{
    const struct surrogate_objective *o = m->objective;
    const uint32_t batch = m->rows.count;
    float ratios[SURROGATE_ROWS_MAX];
    assert(count <= SURROGATE_ROWS_MAX);
    find_ratios(m, count, row, log_probability, ratios);
    for (uint32_t i = 0; i < count; i++) {
        const double now = (double)log_probability[i], ratio = (double)ratios[i];
        const float advantage = (float)(((double)m->rows.advantages[row[i]] - m->shift) * m->factor);
        const double pull = policy_term(o, ratio, now, (double)advantage, sums);
        sums->entropy += (double)entropy[i];
        sums->kl += ratio - 1 - (now - (double)m->rows.log_probabilities[row[i]]);
        pulls->log_probability[i] = (float)(pull / batch);
        pulls->entropy[i] = (float)(-o->entropy_coefficient / batch);
    }
}

void surrogate_judge_values(const struct surrogate *m, uint32_t count, const uint32_t *row,
                            const float *value, const struct dense_pulls *pulls, struct surrogate_sums *sums)
{
    const struct surrogate_objective *o = m->objective;
    assert(count <= SURROGATE_ROWS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        const double old = (double)m->rows.values[row[i]], target = (double)m->rows.returns[row[i]];
        const double pull = value_term(o, (double)value[i], old, target, sums);
        pulls->value[i] = (float)(o->value_coefficient * pull / m->rows.count);
    }
}

void surrogate_add(struct surrogate_sums *to, const struct surrogate_sums *more)
{
    to->policy += more->policy;
    to->value += more->value;
    to->entropy += more->entropy;
    to->kl += more->kl;
    to->clipped += more->clipped;
}

struct surrogate_losses surrogate_losses(const struct surrogate *m)
{
    const double n = m->rows.count;
    struct surrogate_losses losses = {.policy = m->sums.policy / n,
                                      .value = m->sums.value / n,
                                      .entropy = m->sums.entropy / n,
                                      .kl = m->sums.kl / n,
                                      .clip_fraction = (double)m->sums.clipped / n};
    losses.loss = losses.policy + m->objective->value_coefficient * losses.value -
                  m->objective->entropy_coefficient * losses.entropy;
    return losses;
}
