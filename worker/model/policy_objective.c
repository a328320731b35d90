/* Computes PPO's objective of a minibatch, chunk by chunk. */
#include "worker/model/policy_objective.h"

#include "worker/model/policy_internal.h"

#include <math.h>

/* (A - mean) / (std + 1e-8), as Stable-Baselines3 and CleanRL normalise. One row has no deviation. */
static void find_scaling(struct policy_minibatch *m, const struct policy_rows *rows)
{
    const float *advantages = m->targets->advantages;
    double sum = 0, squares = 0;
    m->shift = 0;
    m->factor = 1;
    if (!m->targets->normalizes || rows->count < 2)
        return;
    for (uint32_t i = 0; i < rows->count; i++)
        sum += (double)advantages[rows->row[i]];
    m->shift = sum / rows->count;
    for (uint32_t i = 0; i < rows->count; i++) {
        const double apart = (double)advantages[rows->row[i]] - m->shift;
        squares += apart * apart;
    }
    m->factor = 1 / (sqrt(squares / (rows->count - 1)) + 1e-8);
}

void policy_minibatch_begin(struct policy_minibatch *m, const struct surrogate *surrogate,
                            const struct policy_rows *rows, const struct policy_targets *targets,
                            const struct surrogate_objective *objective)
{
    *m = (struct policy_minibatch){
        .surrogate = surrogate, .count = rows->count, .targets = targets, .objective = objective};
    find_scaling(m, rows);
}

void policy_minibatch_judge_actions(const struct policy_minibatch *m, const struct policy_rows *rows,
                                    const float *log_probability, const float *entropy,
                                    const struct surrogate_pulls *pulls, struct policy_sums *sums)
{
    float old[POLICY_CHUNK_ROWS], advantage[POLICY_CHUNK_ROWS];
    for (uint32_t i = 0; i < rows->count; i++) {
        const uint32_t row = rows->row[i];
        old[i] = rows->log_probabilities[row];
        advantage[i] = (float)(((double)m->targets->advantages[row] - m->shift) * m->factor);
    }
    surrogate_policy(m->surrogate, m->objective,
                     &(struct surrogate_rows){.count = rows->count,
                                              .log_probability = log_probability,
                                              .entropy = entropy,
                                              .old_log_probability = old,
                                              .advantage = advantage},
                     m->count, &sums->actions, pulls);
}

void policy_minibatch_judge_values(const struct policy_minibatch *m, const struct policy_rows *rows,
                                   const float *value, const struct surrogate_pulls *pulls,
                                   struct policy_sums *sums)
{
    float old[POLICY_CHUNK_ROWS], returns[POLICY_CHUNK_ROWS];
    for (uint32_t i = 0; i < rows->count; i++) {
        old[i] = rows->values[rows->row[i]];
        returns[i] = m->targets->returns[rows->row[i]];
    }
    surrogate_value(
        m->objective,
        &(struct surrogate_rows){.count = rows->count, .value = value, .old_value = old, .returns = returns},
        m->count, &sums->values, pulls);
}

static void add(struct surrogate_sums *to, const struct surrogate_sums *more)
{
    to->policy += more->policy;
    to->value += more->value;
    to->entropy += more->entropy;
    to->kl += more->kl;
    to->clipped += more->clipped;
}

void policy_sums_add(struct policy_sums *to, const struct policy_sums *more)
{
    add(&to->actions, &more->actions);
    add(&to->values, &more->values);
}

struct policy_losses policy_minibatch_losses(const struct policy_minibatch *m)
{
    const double n = m->count;
    struct policy_losses losses = {.policy = m->sums.actions.policy / n,
                                   .value = m->sums.values.value / n,
                                   .entropy = m->sums.actions.entropy / n,
                                   .kl = m->sums.actions.kl / n,
                                   .clip_fraction = (double)m->sums.actions.clipped / n};
    losses.loss = losses.policy + m->objective->value_coefficient * losses.value -
                  m->objective->entropy_coefficient * losses.entropy;
    return losses;
}

double policy_clip_factor(double norm, double max_norm)
{
    const double factor = max_norm / (norm + 1e-6);
    return factor < 1 ? factor : 1;
}
