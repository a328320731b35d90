/* DQN on the CPU (Mnih et al., "Human-level control through deep reinforcement learning", 2015): a network
 * has a value for each choice of an action, and the greatest one is chosen. Options: double Q-learning, and
 * dueling outputs: with the state's value V and advantages A, Q_a = V + A_a - mean A. */
#include "kernels/base/rng.h"
#include "kernels/norm.h"
#include "worker/model/q_learning.h"

#include <math.h>
#include <stdlib.h>

struct dqn {
    struct q_learning base; // the first member
    struct q_network network;
    uint32_t choices;
    struct dense_matrix pull; // (a chunk's rows, outputs)
};

/* ---- opening ---- */

static enum status dqn_open(void **self, const struct policy_config *config, struct backend *backend,
                            const struct dense_normalizer *normalizer, struct error *error)
{
    struct dqn *dqn = *self = calloc(1, sizeof *dqn);
    (void)backend;
    (void)normalizer;
    if (dqn == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    dqn->choices = config->action.choices[0];
    struct layers_shape shape = {.inputs = 0,
                                 .outputs = dqn->choices + config->q.dueling,
                                 .layers = config->layers,
                                 .activation = config->activation == POLICY_TANH ? DENSE_TANH : DENSE_RELU};
    for (uint32_t l = 0; l < config->layers; l++)
        shape.width[l] = config->width[l];
    enum status status = q_open(&dqn->base, config, error);
    shape.inputs = dqn->base.inputs;
    if (status == STATUS_OK)
        status = q_matrix(&dqn->pull, shape.outputs, error);
    return status == STATUS_OK ? q_network_open(&dqn->network, &dqn->base, &shape, "q_net.q_net.0.weight",
                                                "q_net_target.q_net.0.weight", error)
                               : status;
}

static void dqn_free(void *self)
{
    struct dqn *dqn = self;
    q_network_close(&dqn->network);
    free(dqn->pull.at);
    q_close(&dqn->base);
    free(dqn);
}

/* ---- values ---- */

/* Turns the rows' outputs of a dueling network into values, in place; the first output is then of no use.
 * Returns the values. */
static struct dense_matrix values_of(const struct dqn *dqn, struct dense_matrix outputs, uint32_t rows)
{
    if (!dqn->base.config.q.dueling)
        return outputs;
    const struct dense_matrix values = {outputs.at + 1, outputs.stride};
    for (uint32_t r = 0; r < rows; r++) {
        float *value = values.at + r * values.stride;
        double sum = 0;
        for (uint32_t a = 0; a < dqn->choices; a++)
            sum += (double)value[a];
        const float shift = (float)((double)value[-1] - sum / dqn->choices);
        for (uint32_t a = 0; a < dqn->choices; a++)
            value[a] += shift;
    }
    return values;
}

/* The first of the greatest values among those that are allowed; `allowed` NULL: all are. A NaN is the
 * greatest, so that it is told, as PyTorch's max has it. */
static uint32_t greatest(const struct dqn *dqn, const float *value, const uint8_t *allowed)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t a = 0; a < dqn->choices; a++)
        if ((allowed == NULL || allowed[a] != 0) &&
            (best == UINT32_MAX || value[a] > value[best] || isnan(value[a])))
            best = a;
    return best;
}

/* ---- acting ---- */

/* The choice that is number `number` of those that are allowed. */
static uint32_t allowed_choice(const struct dqn *dqn, const uint8_t *allowed, uint32_t number)
{
    uint32_t choice = 0;
    for (; allowed != NULL && choice < dqn->choices; choice++)
        if (allowed[choice] != 0 && number-- == 0)
            return choice;
    return number;
}

static uint32_t count_allowed(const struct dqn *dqn, const uint8_t *allowed)
{
    uint32_t count = 0;
    for (uint32_t a = 0; a < dqn->choices && allowed != NULL; a++)
        count += allowed[a] != 0;
    return allowed == NULL ? dqn->choices : count;
}

/* A random choice, or the one that is given. */
static uint32_t explore(const struct dqn *dqn, const struct rng_key *key, const uint8_t *allowed,
                        uint32_t choice)
{
    const struct policy_exploration *exploration = &dqn->base.exploration;
    uint32_t words[4];
    rng_block(key, RNG_ACTION, 0, words);
    if (!exploration->is_random && (double)rng_uniform_float(words[0]) >= exploration->epsilon)
        return choice;
    return allowed_choice(dqn, allowed, (uint32_t)rng_below(words[1], words[2], count_allowed(dqn, allowed)));
}

/* Writes the chunk's choices; `key` NULL: none is random. False: a value is not finite. */
static bool choose_chunk(struct dqn *dqn, const struct policy_rows *chunk, struct rng_key *key,
                         const uint32_t *environment, const uint32_t *step)
{
    q_read_rows(&dqn->base, chunk);
    const struct dense_matrix values =
        values_of(dqn, layers_forward(dqn->network.layers, dqn->network.work, chunk->count, dqn->base.input),
                  chunk->count);
    for (uint32_t i = 0; i < chunk->count; i++) {
        const uint8_t *allowed =
            chunk->allowed != NULL ? chunk->allowed + (size_t)chunk->row[i] * dqn->choices : NULL;
        uint32_t choice = greatest(dqn, values.at + i * values.stride, allowed);
        if (key != NULL) {
            key->environment = environment[i];
            key->step = step[i];
            choice = explore(dqn, key, allowed, choice);
        }
        ((int32_t *)chunk->actions)[chunk->row[i]] = (int32_t)choice;
    }
    return q_is_finite(values, chunk->count, dqn->choices);
}

static enum status dqn_act(void *self, const struct policy_rows *rows, uint32_t episode,
                           const uint32_t *environment, const uint32_t *step, struct error *error)
{
    struct dqn *dqn = self;
    struct rng_key key = {.seed = dqn->base.config.seed, .episode = episode};
    (void)error;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        choose_chunk(dqn, &chunk, &key, environment + first, step + first);
    }
    return STATUS_OK;
}

static enum status dqn_choose(void *self, const struct policy_rows *rows, struct error *error)
{
    struct dqn *dqn = self;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        if (!choose_chunk(dqn, &chunk, NULL, NULL, NULL))
            return error_set(error, STATUS_CORRUPT, "the value of an action is not finite");
    }
    return STATUS_OK;
}

/* ---- learning ---- */

/* Writes the chunk's targets. */
static void find_targets(struct dqn *dqn, const struct policy_transitions *batch, uint32_t first,
                         uint32_t count, double *target)
{
    const struct q_network *network = &dqn->network;
    const struct policy_q_config *q = &dqn->base.config.q;
    q_read_observations(&dqn->base, batch, true, first, count);
    const struct dense_matrix judge =
        values_of(dqn, layers_forward(network->target, network->target_work, count, dqn->base.input), count);
    struct dense_matrix chooser = judge;
    if (q->double_q)
        chooser =
            values_of(dqn, layers_forward(network->layers, network->work, count, dqn->base.input), count);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t row = first + i;
        const uint8_t *allowed =
            batch->next_allowed != NULL ? batch->next_allowed + (size_t)row * dqn->choices : NULL;
        const uint32_t choice = greatest(dqn, chooser.at + i * chooser.stride, allowed);
        const double following = batch->terminated[row] != 0 || choice == UINT32_MAX
                                     ? 0
                                     : (double)judge.at[i * judge.stride + choice];
        target[i] = (double)batch->rewards[row] + q->gamma * following;
    }
}

/* Writes the pull at the outputs of row i by dL/d of its action's value. */
static void pull_row(const struct dqn *dqn, uint32_t i, uint32_t choice, float slope)
{
    float *pull = dqn->pull.at + i * dqn->pull.stride;
    const bool dueling = dqn->base.config.q.dueling;
    for (uint32_t a = 0; a < dqn->choices; a++)
        pull[dueling + a] = dueling ? -slope / (float)dqn->choices : 0;
    pull[dueling + choice] += slope;
    if (dueling)
        pull[0] = slope;
}

/* Adds the chunk's part of the loss and of the gradient. */
static double learn_chunk(struct dqn *dqn, const struct policy_transitions *batch, uint32_t first,
                          uint32_t count)
{
    const struct q_network *network = &dqn->network;
    double target[POLICY_CHUNK_ROWS], loss = 0;
    find_targets(dqn, batch, first, count, target);
    q_read_observations(&dqn->base, batch, false, first, count);
    const struct dense_matrix values =
        values_of(dqn, layers_forward(network->layers, network->work, count, dqn->base.input), count);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t row = first + i, choice = (uint32_t)((const int32_t *)batch->actions)[row];
        const double error = (double)values.at[i * values.stride + choice] - target[i], size = fabs(error);
        const double weight = (batch->weights != NULL ? (double)batch->weights[row] : 1) / batch->count;
        loss += weight * (size < 1 ? 0.5 * error * error : size - 0.5);
        pull_row(dqn, i, choice, (float)(weight * (size < 1 ? error : copysign(1, error))));
        if (batch->errors != NULL)
            batch->errors[row] = (float)size;
    }
    layers_backward(network->layers, network->work, dqn->pull, dqn->base.gradient + network->offset,
                    first > 0, (struct dense_matrix){0});
    return loss;
}

static enum status dqn_fit(void *self, const struct policy_transitions *batch, double lr,
                           struct policy_q_losses *losses, struct error *error)
{
    struct dqn *dqn = self;
    struct q_network *network = &dqn->network;
    *losses = (struct policy_q_losses){
        .actor = (double)NAN, .entropy_coefficient = (double)NAN, .entropy = (double)NAN};
    for (uint32_t first = 0, count; first < batch->count; first += count) {
        count = q_chunk(batch, first);
        losses->critic += learn_chunk(dqn, batch, first, count);
    }
    if (!isfinite(losses->critic))
        return q_explain_loss(&dqn->base, batch, losses->critic, error);
    const double norm = norm_of(dqn->base.gradient + network->offset, network->count);
    if (!isfinite(norm))
        return q_check_gradient(&dqn->base, network, batch, error);
    q_network_step(network, &dqn->base, lr, ++dqn->base.steps,
                   (float)policy_clip_factor(norm, dqn->base.config.q.max_norm));
    return STATUS_OK;
}

void policy_dqn_follow(void *self)
{
    struct dqn *dqn = self;
    q_network_follow(&dqn->network, &dqn->base, dqn->base.config.q.tau);
}

static void dqn_load_acting(void *self)
{
    struct dqn *dqn = self;
    q_network_load(&dqn->network, &dqn->base);
}

static enum status dqn_restore(void *self, const struct policy_values *values, struct error *error)
{
    struct dqn *dqn = self;
    const enum status status = q_restore(self, values, error);
    q_network_load(&dqn->network, &dqn->base);
    return status;
}

const struct policy_kind policy_dqn_kind = {.open = dqn_open,
                                            .free = dqn_free,
                                            .act = dqn_act,
                                            .choose = dqn_choose,
                                            .fit = dqn_fit,
                                            .load_acting = dqn_load_acting,
                                            .save = q_save,
                                            .restore = dqn_restore};
