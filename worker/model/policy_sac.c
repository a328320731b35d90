/* Soft actor-critic on the CPU (Haarnoja et al., "Soft actor-critic algorithms and applications", arXiv
 * 1812.05905): an actor draws actions from a Gaussian that tanh squashes, critics judge them, and the entropy
 * of the draws is part of the return. */
#include "kernels/lanes/isa.h"
#include "kernels/lanes/row_lanes.h"
#include "worker/model/q_critics.h"
#include "worker/model/sac_actor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sac {
    struct q_learning base; // the first member
    struct sac_actor actor;
    struct q_critics critics;
    const struct row_lanes *lanes;
    struct dense_matrix action_pull; // (a chunk's rows, components)
    double *target;                  // (batch rows)
    size_t log_coefficient;          // where the arrays have it, if it is learned
};

/* ---- opening ---- */

static enum status sac_open(void **self, const struct policy_config *config, struct backend *backend,
                            const struct dense_normalizer *normalizer, struct error *error)
{
    static const struct row_lanes *const tables[] = {
        [ISA_BASELINE] = &row_lanes_baseline, [ISA_AVX2] = &row_lanes_avx2, [ISA_AVX512] = &row_lanes_avx512};
    struct sac *sac = *self = calloc(1, sizeof *sac);
    (void)backend;
    (void)normalizer;
    if (sac == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    sac->lanes = tables[isa_or_baseline()];
    enum status status = q_open(&sac->base, config, error);
    if (status == STATUS_OK)
        status = sac_actor_open(&sac->actor, &sac->base, error);
    if (status == STATUS_OK)
        status = q_matrix(&sac->action_pull, sac->base.components, error);
    if (status == STATUS_OK)
        status = q_critics_open(&sac->critics, &sac->base, error);
    sac->log_coefficient = sac->base.count - 1;
    if (status == STATUS_OK && (sac->target = calloc(config->q.batch_rows, sizeof *sac->target)) == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %u rows", config->q.batch_rows);
    return status;
}

static void sac_free(void *self)
{
    struct sac *sac = self;
    sac_actor_close(&sac->actor);
    q_critics_close(&sac->critics);
    free(sac->action_pull.at);
    free(sac->target);
    q_close(&sac->base);
    free(sac);
}

/* ---- acting ---- */

static enum status sac_act(void *self, const struct policy_rows *rows, uint32_t episode,
                           const uint32_t *environment, const uint32_t *step, struct error *error)
{
    struct sac *sac = self;
    struct rng_key key = {.seed = sac->base.config.seed, .episode = episode};
    (void)error;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        sac_actor_act(&sac->actor, &sac->base, &chunk, &key, environment + first, step + first);
    }
    return STATUS_OK;
}

static enum status sac_choose(void *self, const struct policy_rows *rows, struct error *error)
{
    struct sac *sac = self;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        if (!sac_actor_choose(&sac->actor, &sac->base, &chunk))
            return error_set(error, STATUS_CORRUPT, "an action is not finite");
    }
    return STATUS_OK;
}

/* ---- learning ---- */

/* The entropy's weight. e^x, of a positive x by that of -x, has the same bits everywhere. */
static double coefficient_of(const struct sac *sac)
{
    if (!sac->base.config.q.learns_entropy)
        return sac->base.config.q.entropy_coefficient;
    const float log_coefficient = sac->base.values[sac->log_coefficient], exponent = -fabsf(log_coefficient);
    float found;
    sac->lanes->exp_scaled(&found, &exponent, 1, 0, 1);
    return log_coefficient > 0 ? 1 / (double)found : (double)found;
}

/* Writes the chunk's targets. */
static void find_targets(struct sac *sac, const struct policy_transitions *batch, uint32_t first,
                         uint32_t count, double coefficient)
{
    struct q_learning *base = &sac->base;
    double *target = sac->target + first;
    float log_probability[POLICY_CHUNK_ROWS];
    q_read_observations(base, batch, true, first, count);
    const struct dense_matrix action = sac_actor_draw(&sac->actor, base, 1, first, count, log_probability);
    q_read_actions(base, action.at, action.stride, count);
    q_critics_judge(&sac->critics, base, count, target);
    for (uint32_t i = 0; i < count; i++) {
        const double soft = target[i] - coefficient * (double)log_probability[i];
        const double following = batch->terminated[first + i] != 0 ? 0 : soft;
        target[i] = (double)batch->rewards[first + i] + base->config.q.gamma * following;
    }
}

/* Adds the chunk's part of the actor's loss and gradient, and of the sum of log-probabilities. */
static void pull_actor(struct sac *sac, const struct policy_transitions *batch, uint32_t first,
                       uint32_t count, double coefficient, double *loss, double *sum)
{
    struct q_learning *base = &sac->base;
    float log_probability[POLICY_CHUNK_ROWS];
    double value[POLICY_CHUNK_ROWS];
    q_read_observations(base, batch, false, first, count);
    const struct dense_matrix action = sac_actor_draw(&sac->actor, base, 0, first, count, log_probability);
    q_read_actions(base, action.at, action.stride, count);
    q_critics_pull(&sac->critics, base, sac->critics.count, count, -1.0f / (float)batch->count, value,
                   sac->action_pull);
    for (uint32_t i = 0; i < count; i++) {
        *loss += (coefficient * (double)log_probability[i] - value[i]) / batch->count;
        *sum += (double)log_probability[i];
    }
    sac_actor_pull(&sac->actor, base, sac->action_pull, (float)(coefficient / batch->count), first > 0);
}

/* Moves the entropy's weight by the mean log-probability of the actor's draws. */
static void step_coefficient(struct sac *sac, double mean, double lr, struct policy_q_losses *losses)
{
    struct q_learning *base = &sac->base;
    const double pull = -(mean + base->config.q.target_entropy);
    if (!base->config.q.learns_entropy)
        return;
    losses->entropy = (double)base->values[sac->log_coefficient] * pull;
    base->gradient[sac->log_coefficient] = (float)pull;
    q_step(base, sac->log_coefficient, 1, lr, base->steps, 1);
}

static enum status step_actor(struct sac *sac, const struct policy_transitions *batch, double lr,
                              struct policy_q_losses *losses, struct error *error)
{
    struct q_learning *base = &sac->base;
    double sum = 0;
    losses->actor = 0;
    for (uint32_t first = 0, count; first < batch->count; first += count) {
        count = q_chunk(batch, first);
        pull_actor(sac, batch, first, count, losses->entropy_coefficient, &losses->actor, &sum);
    }
    const enum status status = isfinite(losses->actor) ? sac_actor_check(&sac->actor, base, batch, error)
                                                       : q_explain_loss(base, batch, losses->actor, error);
    if (status != STATUS_OK)
        return status;
    sac_actor_step(&sac->actor, base, lr);
    step_coefficient(sac, sum / batch->count, lr, losses);
    return STATUS_OK;
}

static enum status sac_fit(void *self, const struct policy_transitions *batch, double lr,
                           struct policy_q_losses *losses, struct error *error)
{
    struct sac *sac = self;
    struct q_learning *base = &sac->base;
    base->steps++;
    *losses = (struct policy_q_losses){.entropy_coefficient = coefficient_of(sac), .entropy = (double)NAN};
    sac_actor_begin_step(&sac->actor, base);
    for (uint32_t first = 0, count; first < batch->count; first += count) {
        count = q_chunk(batch, first);
        find_targets(sac, batch, first, count, losses->entropy_coefficient);
        losses->critic += q_critics_learn(&sac->critics, base, batch, first, count, sac->target + first, 0.5);
    }
    enum status status = isfinite(losses->critic) ? q_critics_step(&sac->critics, base, batch, lr, error)
                                                  : q_explain_loss(base, batch, losses->critic, error);
    if (status == STATUS_OK)
        status = step_actor(sac, batch, lr, losses, error);
    if (status == STATUS_OK && base->steps % base->config.q.target_interval == 0)
        q_critics_follow(&sac->critics, base);
    if (status != STATUS_OK)
        base->steps--; // it was none
    return status;
}

static void sac_load_acting(void *self)
{
    struct sac *sac = self;
    sac_actor_load(&sac->actor, &sac->base);
}

static enum status sac_restore(void *self, const struct policy_values *values, struct error *error)
{
    struct sac *sac = self;
    const enum status status = q_restore(self, values, error);
    sac_actor_load(&sac->actor, &sac->base);
    q_critics_load(&sac->critics, &sac->base);
    return status;
}

const struct policy_kind policy_sac_kind = {.open = sac_open,
                                            .free = sac_free,
                                            .act = sac_act,
                                            .choose = sac_choose,
                                            .explore = q_explore,
                                            .fit = sac_fit,
                                            .fits = q_fits,
                                            .load_acting = sac_load_acting,
                                            .save = q_save,
                                            .restore = sac_restore};
