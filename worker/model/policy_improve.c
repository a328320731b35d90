/* A step of PPO on the CPU: each network through its part of the objective, then the norm and Adam. */
#include "kernels/base/team.h"
#include "kernels/norm.h"
#include "worker/model/policy_internal.h"

#include <assert.h>
#include <math.h>

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

/* A minibatch, of which each network learns by itself where they share no parameter: no loss of one depends
 * on the other's outputs. */
struct minibatch {
    struct policy *policy;
    const struct policy_rows *rows;
    const struct policy_targets *targets;
    const struct surrogate_objective *objective;
    struct scaling scaling;
    struct surrogate_sums sums[2]; // of the policy network, of the value network
};

/* What the rows of a chunk are learned from, and what comes of them. */
struct chunk {
    float log_probability[POLICY_CHUNK_ROWS], entropy[POLICY_CHUNK_ROWS], value[POLICY_CHUNK_ROWS];
    float old_log_probability[POLICY_CHUNK_ROWS], old_value[POLICY_CHUNK_ROWS];
    float advantage[POLICY_CHUNK_ROWS], returns[POLICY_CHUNK_ROWS];
    float pull[3][POLICY_CHUNK_ROWS];
};

static void gather_policy_targets(const struct minibatch *m, const struct policy_rows *rows,
                                  struct chunk *chunk)
{
    for (uint32_t i = 0; i < rows->count; i++) {
        const double advantage = (double)m->targets->advantages[rows->row[i]];
        chunk->old_log_probability[i] = rows->log_probabilities[rows->row[i]];
        chunk->advantage[i] = (float)((advantage - m->scaling.shift) * m->scaling.factor);
    }
}

static void gather_value_targets(const struct minibatch *m, const struct policy_rows *rows,
                                 struct chunk *chunk)
{
    for (uint32_t i = 0; i < rows->count; i++) {
        chunk->old_value[i] = rows->values[rows->row[i]];
        chunk->returns[i] = m->targets->returns[rows->row[i]];
    }
}

/* The chunk's gradient, of one network or of both; `adds` as dense_gradient has it. */
static void learn_chunk(struct minibatch *m, const struct policy_rows *rows, bool of_policy, bool of_value,
                        bool adds)
{
    struct policy *policy = m->policy;
    struct chunk chunk;
    const struct surrogate_rows learned = {.count = rows->count,
                                           .log_probability = chunk.log_probability,
                                           .entropy = chunk.entropy,
                                           .value = chunk.value,
                                           .old_log_probability = chunk.old_log_probability,
                                           .old_value = chunk.old_value,
                                           .advantage = chunk.advantage,
                                           .returns = chunk.returns};
    const struct surrogate_pulls pulls = {.log_probability = of_policy ? chunk.pull[0] : NULL,
                                          .entropy = of_policy ? chunk.pull[1] : NULL,
                                          .value = of_value ? chunk.pull[2] : NULL};
    policy->flat->evaluate(policy, rows, of_policy ? chunk.log_probability : NULL,
                           of_policy ? chunk.entropy : NULL, of_value ? chunk.value : NULL);
    if (of_policy) {
        gather_policy_targets(m, rows, &chunk);
        surrogate_policy(policy->surrogate, m->objective, &learned, m->rows->count, &m->sums[0], &pulls);
    }
    if (of_value) {
        gather_value_targets(m, rows, &chunk);
        surrogate_value(m->objective, &learned, m->rows->count, &m->sums[1], &pulls);
    }
    policy->flat->pull(policy, &pulls, policy->gradient, adds);
}

/* Network 0, the policy's, or 1, the value's, chunk by chunk; of networks that share layers both. */
static void learn_network(void *context, uint32_t network)
{
    struct minibatch *m = context;
    const bool shares = m->policy->networks == 1;
    for (uint32_t first = 0; first < m->rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows rows = policy_chunk(m->rows, first);
        learn_chunk(m, &rows, network == 0 || shares, network == 1 || shares, first > 0);
    }
}

/* What torch.nn.utils.clip_grad_norm_ multiplies a gradient of this norm by; 1: it leaves it as it is. */
static float clip_scale(double norm, double max_norm)
{
    const double factor = max_norm / (norm + 1e-6);
    return factor < 1 ? (float)factor : 1;
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
    if (policy->team != NULL)
        team_run(policy->team, policy->networks, learn_network, &m);
    for (uint32_t network = 0; policy->team == NULL && network < policy->networks; network++)
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
    losses->gradient_norm = norm_of(policy->gradient, policy->count);
    if (!isfinite(losses->gradient_norm))
        return policy_flat_check_gradient(policy, error);
    policy_flat_step(policy, step->lr, clip_scale(losses->gradient_norm, step->max_norm));
    losses->stepped = true;
    return STATUS_OK;
}
