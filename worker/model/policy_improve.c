/* A step of PPO on the CPU: chunk by chunk through the network and the objective, then the norm and Adam. */
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

/* A chunk's numbers, in its order. */
struct chunk {
    float log_probability[POLICY_CHUNK_ROWS], entropy[POLICY_CHUNK_ROWS], value[POLICY_CHUNK_ROWS];
    float old_log_probability[POLICY_CHUNK_ROWS], old_value[POLICY_CHUNK_ROWS];
    float advantage[POLICY_CHUNK_ROWS], returns[POLICY_CHUNK_ROWS];
    float pull_log_probability[POLICY_CHUNK_ROWS], pull_entropy[POLICY_CHUNK_ROWS],
        pull_value[POLICY_CHUNK_ROWS];
};

static void gather(struct chunk *chunk, const struct policy_rows *rows, const struct policy_targets *targets,
                   struct scaling scaling)
{
    for (uint32_t i = 0; i < rows->count; i++) {
        const uint32_t row = rows->row[i];
        chunk->old_log_probability[i] = rows->log_probabilities[row];
        chunk->old_value[i] = rows->values[row];
        chunk->advantage[i] = (float)(((double)targets->advantages[row] - scaling.shift) * scaling.factor);
        chunk->returns[i] = targets->returns[row];
    }
}

/* Adds the chunk's losses to *sums, and its gradient to policy->gradient. */
static void learn_chunk(struct policy *policy, const struct policy_rows *rows, struct chunk *chunk,
                        const struct surrogate_objective *objective, uint32_t batch,
                        struct surrogate_sums *sums)
{
    const struct surrogate_pulls pulls = {chunk->pull_log_probability, chunk->pull_entropy,
                                          chunk->pull_value};
    policy->flat->evaluate(policy, rows, chunk->log_probability, chunk->entropy, chunk->value);
    surrogate_chunk(policy->surrogate, objective,
                    &(struct surrogate_rows){.count = rows->count,
                                             .log_probability = chunk->log_probability,
                                             .entropy = chunk->entropy,
                                             .value = chunk->value,
                                             .old_log_probability = chunk->old_log_probability,
                                             .old_value = chunk->old_value,
                                             .advantage = chunk->advantage,
                                             .returns = chunk->returns},
                    batch, sums, &pulls);
    policy->flat->pull(policy, &pulls, policy->gradient);
}

/* As torch.nn.utils.clip_grad_norm_; returns the norm before. */
static double clip_gradient(struct policy *policy, double max_norm)
{
    double squares = 0;
    for (size_t i = 0; i < policy->count; i++)
        squares += (double)policy->gradient[i] * (double)policy->gradient[i];
    const double norm = sqrt(squares), factor = max_norm / (norm + 1e-6);
    for (size_t i = 0; i < policy->count && factor < 1; i++)
        policy->gradient[i] = (float)((double)policy->gradient[i] * factor);
    return norm;
}

enum status policy_flat_improve(struct policy *policy, const struct policy_rows *rows,
                                const struct policy_targets *targets, const struct policy_step *step,
                                struct policy_losses *losses, struct error *error)
{
    const struct scaling scaling = find_scaling(rows, targets);
    const double n = rows->count;
    struct surrogate_sums sums = {0};
    struct chunk chunk;
    assert(policy->surrogate != NULL);
    memset(policy->gradient, 0, policy->count * sizeof *policy->gradient);
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows part = policy_chunk(rows, first);
        gather(&chunk, &part, targets, scaling);
        learn_chunk(policy, &part, &chunk, &step->objective, rows->count, &sums);
    }
    *losses = (struct policy_losses){.policy = sums.policy / n,
                                     .value = sums.value / n,
                                     .entropy = sums.entropy / n,
                                     .kl = sums.kl / n,
                                     .clip_fraction = (double)sums.clipped / n};
    losses->loss = losses->policy + step->objective.value_coefficient * losses->value -
                   step->objective.entropy_coefficient * losses->entropy;
    if (!isfinite(losses->loss))
        return policy_flat_explain(policy, rows, NULL, losses->loss, error);
    if (losses->kl > step->kl_max)
        return STATUS_OK;
    losses->gradient_norm = clip_gradient(policy, step->max_norm);
    losses->stepped = true;
    return policy_flat_step(policy, step->lr, error);
}
