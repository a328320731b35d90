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

/* Sums over the rows of a chunk, or of a minibatch: of the policy network, of the value network. */
struct network_sums {
    struct surrogate_sums of[2];
};

/* A minibatch, of which each network learns by itself where they share no parameter: no loss of one depends
 * on the other's outputs. */
struct minibatch {
    struct policy *policy;
    const struct policy_rows *rows;
    const struct policy_targets *targets;
    const struct surrogate_objective *objective;
    struct scaling scaling;
    uint32_t wave_first;                          // the first row of the wave's chunks
    struct network_sums wave[POLICY_WAVE_CHUNKS]; // of each of these
    struct network_sums sums;                     // of all chunks before
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

/* One network's part of the chunk, or of networks that share layers the whole; `adds` as dense_gradient has
 * it. */
static void learn_chunk(const struct minibatch *m, uint32_t slot, uint32_t network,
                        const struct policy_rows *rows, float *gradient, bool adds, struct network_sums *sums)
{
    struct policy *policy = m->policy;
    const bool shares = policy->networks == 1, of_policy = network == 0, of_value = network == 1 || shares;
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
    policy->flat->evaluate(policy, slot, rows, of_policy ? chunk.log_probability : NULL,
                           of_policy ? chunk.entropy : NULL, of_value ? chunk.value : NULL);
    if (of_policy) {
        gather_policy_targets(m, rows, &chunk);
        surrogate_policy(policy->surrogate, m->objective, &learned, m->rows->count, &sums->of[0], &pulls);
    }
    if (of_value) {
        gather_value_targets(m, rows, &chunk);
        surrogate_value(m->objective, &learned, m->rows->count, &sums->of[1], &pulls);
    }
    policy->flat->pull(policy, slot, &pulls, gradient, adds);
}

static void add_sums(struct surrogate_sums *to, const struct surrogate_sums *more)
{
    to->policy += more->policy;
    to->value += more->value;
    to->entropy += more->entropy;
    to->kl += more->kl;
    to->clipped += more->clipped;
}

/* A network, chunk by chunk. */
static void learn_network(void *context, uint32_t network)
{
    struct minibatch *m = context;
    for (uint32_t first = 0; first < m->rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows rows = policy_chunk(m->rows, first);
        struct network_sums sums = {0};
        learn_chunk(m, network, network, &rows, m->policy->gradient, first > 0, &sums);
        add_sums(&m->sums.of[network], &sums.of[network]);
        if (m->policy->networks == 1)
            add_sums(&m->sums.of[1], &sums.of[1]);
    }
}

/* A network's part of one chunk of the wave. */
static void learn_piece(void *context, uint32_t piece)
{
    struct minibatch *m = context;
    const uint32_t networks = m->policy->networks, chunk = piece / networks;
    const struct policy_rows rows = policy_chunk(m->rows, m->wave_first + chunk * POLICY_CHUNK_ROWS);
    learn_chunk(m, piece, piece % networks, &rows, m->policy->wave + chunk * m->policy->count, false,
                &m->wave[chunk]);
}

/* The chunks a wave at a time. */
static void learn_waves(struct minibatch *m)
{
    struct policy *policy = m->policy;
    while (m->wave_first < m->rows->count) {
        const uint32_t left = (m->rows->count - m->wave_first + POLICY_CHUNK_ROWS - 1) / POLICY_CHUNK_ROWS;
        const uint32_t chunks = left < policy->wave_chunks ? left : policy->wave_chunks;
        memset(m->wave, 0, chunks * sizeof *m->wave);
        team_run(policy->team, chunks * policy->networks, learn_piece, m);
        policy_flat_add_wave(policy, chunks, m->wave_first > 0);
        for (uint32_t chunk = 0; chunk < chunks; chunk++)
            for (int n = 0; n < 2; n++)
                add_sums(&m->sums.of[n], &m->wave[chunk].of[n]);
        m->wave_first += chunks * POLICY_CHUNK_ROWS;
    }
}

/* Fills policy->gradient and m->sums. The same bits whoever computes what: each chunk is summed by itself,
 * and the chunks' sums are added in their order. */
static void learn_minibatch(struct minibatch *m)
{
    struct policy *policy = m->policy;
    if (policy->wave_chunks > 0 && m->rows->count > POLICY_CHUNK_ROWS) {
        learn_waves(m);
        return;
    }
    if (policy->team != NULL)
        team_run(policy->team, policy->networks, learn_network, m);
    for (uint32_t network = 0; policy->team == NULL && network < policy->networks; network++)
        learn_network(m, network);
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
    learn_minibatch(&m);
    const struct surrogate_sums *of_policy = &m.sums.of[0], *of_value = &m.sums.of[1];
    *losses = (struct policy_losses){.policy = of_policy->policy / n,
                                     .value = of_value->value / n,
                                     .entropy = of_policy->entropy / n,
                                     .kl = of_policy->kl / n,
                                     .clip_fraction = (double)of_policy->clipped / n};
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
