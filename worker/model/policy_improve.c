/* A step of PPO on the CPU: each network through its part of the objective, then the norm and Adam. */
#include "kernels/base/team.h"
#include "kernels/norm.h"
#include "worker/model/policy_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* What the advantages are shifted by, and multiplied by. */
struct scaling {
    double shift, factor;
};

/* (A - mean) / (std + 1e-8), as Stable-Baselines3 and CleanRL normalise. One row has no deviation. */
static struct scaling find_scaling(const struct policy_rows *rows, const struct policy_targets *targets)
{
    double sum = 0, squares = 0;
    if (!targets->normalizes || rows->count < 2)
        return (struct scaling){0, 1};
    for (uint32_t i = 0; i < rows->count; i++)
        sum += (double)targets->advantages[rows->row[i]];
    const double mean = sum / rows->count;
    for (uint32_t i = 0; i < rows->count; i++) {
        const double apart = (double)targets->advantages[rows->row[i]] - mean;
        squares += apart * apart;
    }
    return (struct scaling){mean, 1 / (sqrt(squares / (rows->count - 1)) + 1e-8)};
}

/* A minibatch, of which each network learns by itself: they share no parameter, and no loss of one depends on
 * the other's outputs. */
struct minibatch {
    struct policy *policy;
    const struct policy_rows *rows;
    const struct policy_targets *targets;
    const struct surrogate_objective *objective;
    struct scaling scaling;
    struct surrogate_sums sums[2]; // of the policy network, of the value network
};

static void learn_policy_chunk(struct minibatch *m, const struct policy_rows *rows)
{
    float log_probability[POLICY_CHUNK_ROWS], entropy[POLICY_CHUNK_ROWS], old[POLICY_CHUNK_ROWS];
    float advantage[POLICY_CHUNK_ROWS], pull[POLICY_CHUNK_ROWS], entropy_pull[POLICY_CHUNK_ROWS];
    const struct surrogate_pulls pulls = {.log_probability = pull, .entropy = entropy_pull};
    for (uint32_t i = 0; i < rows->count; i++) {
        const uint32_t row = rows->row[i];
        old[i] = rows->log_probabilities[row];
        advantage[i] = (float)(((double)m->targets->advantages[row] - m->scaling.shift) * m->scaling.factor);
    }
    m->policy->flat->evaluate(m->policy, rows, log_probability, entropy, NULL);
    surrogate_policy(m->policy->surrogate, m->objective,
                     &(struct surrogate_rows){.count = rows->count,
                                              .log_probability = log_probability,
                                              .entropy = entropy,
                                              .old_log_probability = old,
                                              .advantage = advantage},
                     m->rows->count, &m->sums[0], &pulls);
    m->policy->flat->pull(m->policy, &pulls, m->policy->gradient);
}

static void learn_value_chunk(struct minibatch *m, const struct policy_rows *rows)
{
    float value[POLICY_CHUNK_ROWS], old[POLICY_CHUNK_ROWS], returns[POLICY_CHUNK_ROWS],
        pull[POLICY_CHUNK_ROWS];
    const struct surrogate_pulls pulls = {.value = pull};
    for (uint32_t i = 0; i < rows->count; i++) {
        old[i] = rows->values[rows->row[i]];
        returns[i] = m->targets->returns[rows->row[i]];
    }
    m->policy->flat->evaluate(m->policy, rows, NULL, NULL, value);
    surrogate_value(
        m->objective,
        &(struct surrogate_rows){.count = rows->count, .value = value, .old_value = old, .returns = returns},
        m->rows->count, &m->sums[1], &pulls);
    m->policy->flat->pull(m->policy, &pulls, m->policy->gradient);
}

/* Network 0, the policy's, or 1, the value's, chunk by chunk. */
static void learn_network(void *context, uint32_t network)
{
    struct minibatch *m = context;
    for (uint32_t first = 0; first < m->rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(m->rows, first);
        (network == 0 ? learn_policy_chunk : learn_value_chunk)(m, &chunk);
    }
}

/* As torch.nn.utils.clip_grad_norm_; returns the norm before. */
static double clip_gradient(struct policy *policy, double max_norm)
{
    const double norm = norm_of(policy->gradient, policy->count), factor = max_norm / (norm + 1e-6);
    for (size_t i = 0; i < policy->count && factor < 1; i++)
        policy->gradient[i] *= (float)factor;
    return norm;
}

enum status policy_flat_improve(struct policy *policy, const struct policy_rows *rows,
                                const struct policy_targets *targets, const struct policy_step *step,
                                struct policy_losses *losses, struct error *error)
{
    struct minibatch m = {.policy = policy,
                          .rows = rows,
                          .targets = targets,
                          .objective = &step->objective,
                          .scaling = find_scaling(rows, targets)};
    const double n = rows->count;
    assert(policy->surrogate != NULL);
    memset(policy->gradient, 0, policy->count * sizeof *policy->gradient);
    if (policy->team != NULL)
        team_run(policy->team, 2, learn_network, &m);
    for (uint32_t network = 0; policy->team == NULL && network < 2; network++)
        learn_network(&m, network);
    *losses = (struct policy_losses){.policy = m.sums[0].policy / n,
                                     .value = m.sums[1].value / n,
                                     .entropy = m.sums[0].entropy / n,
                                     .kl = m.sums[0].kl / n,
                                     .clip_fraction = (double)m.sums[0].clipped / n};
    losses->loss = losses->policy + step->objective.value_coefficient * losses->value -
                   step->objective.entropy_coefficient * losses->entropy;
    if (!isfinite(losses->loss))
        return policy_flat_explain(policy, rows, NULL, losses->loss, error);
    if (losses->kl > step->kl_max)
        return STATUS_OK;
    losses->gradient_norm = clip_gradient(policy, step->max_norm);
    if (!isfinite(losses->gradient_norm))
        return policy_flat_check_gradient(policy, error);
    policy_flat_step(policy, step->lr);
    losses->stepped = true;
    return STATUS_OK;
}
