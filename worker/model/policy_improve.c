/* One step of PPO on the CPU: the objective's gradient through each network, then the norm and Adam. */
#include "kernels/base/team.h"
#include "kernels/norm.h"
#include "worker/model/policy_internal.h"
#include "worker/model/policy_objective.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* A minibatch, of which each network learns by itself where they share no parameter: no loss of one depends
 * on the other's outputs. */
struct improvement {
    struct policy *policy;
    const struct policy_rows *rows;
    const struct policy_step *step;
    struct policy_minibatch minibatch;
    struct policy_sums networks[2];                 // of each network's chunks so far
    uint32_t first;                                 // the first row of the chunks under way
    struct policy_sums wave[POLICY_WAVE_CHUNKS][2]; // of each of these, by network
};

/* One network's part of the chunk, or of networks that share layers the whole; `adds` as dense_gradient has
 * it. */
static void learn_chunk(const struct improvement *m, uint32_t slot, uint32_t network,
                        const struct policy_rows *rows, float *gradient, bool adds, struct policy_sums *sums)
{
    struct policy *policy = m->policy;
    float log_probability[POLICY_CHUNK_ROWS], entropy[POLICY_CHUNK_ROWS], value[POLICY_CHUNK_ROWS];
    float pull[3][POLICY_CHUNK_ROWS];
    const bool of_policy = network == 0, of_value = network == 1 || policy->networks == 1;
    const struct surrogate_pulls pulls = {.log_probability = of_policy ? pull[0] : NULL,
                                          .entropy = of_policy ? pull[1] : NULL,
                                          .value = of_value ? pull[2] : NULL};
    policy->flat->evaluate(policy, slot, rows, of_policy ? log_probability : NULL, of_policy ? entropy : NULL,
                           of_value ? value : NULL);
    if (of_policy)
        policy_minibatch_judge_actions(&m->minibatch, rows, log_probability, entropy, &pulls, sums);
    if (of_value)
        policy_minibatch_judge_values(&m->minibatch, rows, value, &pulls, sums);
    policy->flat->pull(policy, slot, &pulls, gradient, adds);
}

/* How many chunks are learned from before the next call of progress, at most `most`. */
static uint32_t next_chunks(const struct improvement *m, uint32_t most)
{
    const uint32_t left = (m->rows->count - m->first + POLICY_CHUNK_ROWS - 1) / POLICY_CHUNK_ROWS;
    return left < most ? left : most;
}

static void finish_chunks(struct improvement *m, uint32_t chunks)
{
    m->first += chunks * POLICY_CHUNK_ROWS;
    if (m->step->progress != NULL)
        m->step->progress(m->step->context);
}

/* A network's part of the next POLICY_WAVE_CHUNKS chunks, chunk by chunk. */
static void learn_network(void *context, uint32_t network)
{
    struct improvement *m = context;
    for (uint32_t chunk = 0; chunk < next_chunks(m, POLICY_WAVE_CHUNKS); chunk++) {
        const uint32_t first = m->first + chunk * POLICY_CHUNK_ROWS;
        const struct policy_rows rows = policy_chunk(m->rows, first);
        struct policy_sums sums = {0};
        learn_chunk(m, network, network, &rows, m->policy->gradient, first > 0, &sums);
        policy_sums_add(&m->networks[network], &sums);
    }
}

/* A network's part of one chunk of the wave. */
static void learn_piece(void *context, uint32_t piece)
{
    struct improvement *m = context;
    const uint32_t networks = m->policy->networks, chunk = piece / networks, network = piece % networks;
    const struct policy_rows rows = policy_chunk(m->rows, m->first + chunk * POLICY_CHUNK_ROWS);
    learn_chunk(m, piece, network, &rows, m->policy->wave + chunk * m->policy->count, false,
                &m->wave[chunk][network]);
}

/* The chunks a wave at a time. */
static void learn_waves(struct improvement *m)
{
    struct policy *policy = m->policy;
    while (m->first < m->rows->count) {
        const uint32_t chunks = next_chunks(m, policy->wave_chunks);
        memset(m->wave, 0, chunks * sizeof *m->wave);
        team_run(policy->team, chunks * policy->networks, learn_piece, m);
        policy_flat_add_wave(policy, chunks, m->first > 0);
        for (uint32_t chunk = 0; chunk < chunks; chunk++)
            for (int network = 0; network < 2; network++)
                policy_sums_add(&m->networks[network], &m->wave[chunk][network]);
        finish_chunks(m, chunks);
    }
}

/* Each network by itself. */
static void learn_networks(struct improvement *m)
{
    struct policy *policy = m->policy;
    while (m->first < m->rows->count) {
        if (policy->team != NULL)
            team_run(policy->team, policy->networks, learn_network, m);
        else
            for (uint32_t network = 0; network < policy->networks; network++)
                learn_network(m, network);
        finish_chunks(m, next_chunks(m, POLICY_WAVE_CHUNKS));
    }
}

/* Fills policy->gradient and the minibatch's sums. The same bits whoever computes what: each chunk is summed
 * by itself, and the chunks' sums are added in their order. */
static void learn_minibatch(struct improvement *m)
{
    struct policy *policy = m->policy;
    if (policy->wave_chunks > 0 && m->rows->count > POLICY_CHUNK_ROWS)
        learn_waves(m);
    else
        learn_networks(m);
    for (int network = 0; network < 2; network++)
        policy_sums_add(&m->minibatch.sums, &m->networks[network]);
}

enum status policy_flat_improve(struct policy *policy, const struct policy_rows *rows,
                                const struct policy_targets *targets, const struct policy_step *step,
                                struct policy_losses *losses, struct error *error)
{
    struct improvement m = {.policy = policy, .rows = rows, .step = step};
    assert(policy->surrogate != NULL);
    policy_minibatch_begin(&m.minibatch, policy->surrogate, rows, targets, &step->objective);
    learn_minibatch(&m);
    *losses = policy_minibatch_losses(&m.minibatch);
    if (!isfinite(losses->loss))
        return policy_flat_explain(policy, rows, NULL, losses->loss, error);
    if (losses->kl > step->kl_max)
        return STATUS_OK;
    losses->gradient_norm = norm_of(policy->gradient, policy->count);
    if (!isfinite(losses->gradient_norm))
        return policy_flat_check_gradient(policy, error);
    policy_flat_step(policy, step->lr, (float)policy_clip_factor(losses->gradient_norm, step->max_norm));
    losses->stepped = true;
    return STATUS_OK;
}
