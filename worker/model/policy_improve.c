/* A step of PPO on the CPU: each network through its part of the objective, then the norm and Adam. */
#include "kernels/base/team.h"
#include "kernels/norm.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_objective.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* A minibatch, of which each network learns by itself: they share no parameter, and no loss of one depends on
 * the other's outputs. */
struct improvement {
    struct policy *policy;
    const struct policy_rows *rows;
    struct policy_minibatch minibatch;
};

static void learn_policy_chunk(struct improvement *m, const struct policy_rows *rows)
{
    float log_probability[POLICY_CHUNK_ROWS], entropy[POLICY_CHUNK_ROWS];
    float pull[POLICY_CHUNK_ROWS], entropy_pull[POLICY_CHUNK_ROWS];
    const struct surrogate_pulls pulls = {.log_probability = pull, .entropy = entropy_pull};
    m->policy->flat->evaluate(m->policy, rows, log_probability, entropy, NULL);
    policy_minibatch_judge_actions(&m->minibatch, rows, log_probability, entropy, &pulls);
    m->policy->flat->pull(m->policy, &pulls, m->policy->gradient);
}

static void learn_value_chunk(struct improvement *m, const struct policy_rows *rows)
{
    float value[POLICY_CHUNK_ROWS], pull[POLICY_CHUNK_ROWS];
    const struct surrogate_pulls pulls = {.value = pull};
    m->policy->flat->evaluate(m->policy, rows, NULL, NULL, value);
    policy_minibatch_judge_values(&m->minibatch, rows, value, &pulls);
    m->policy->flat->pull(m->policy, &pulls, m->policy->gradient);
}

/* Network 0, the policy's, or 1, the value's, chunk by chunk. */
static void learn_network(void *context, uint32_t network)
{
    struct improvement *m = context;
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
    struct improvement m = {.policy = policy, .rows = rows};
    assert(policy->surrogate != NULL);
    policy_minibatch_begin(&m.minibatch, policy->surrogate, rows, targets, &step->objective);
    memset(policy->gradient, 0, policy->count * sizeof *policy->gradient);
    if (policy->team != NULL)
        team_run(policy->team, 2, learn_network, &m);
    for (uint32_t network = 0; policy->team == NULL && network < 2; network++)
        learn_network(&m, network);
    *losses = policy_minibatch_losses(&m.minibatch);
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
