/* DQN on the CPU (Mnih et al., "Human-level control through deep reinforcement learning", 2015): a network
 * has a value for each choice of an action, and the greatest one is chosen. Options: double Q-learning, and
 * dueling outputs: with the state's value V and advantages A, Q_a = V + A_a - mean A. */
#include "kernels/norm.h"
#include "worker/model/dqn_head.h"
#include "worker/model/q_learning.h"

#include <math.h>
#include <stdlib.h>

struct dqn {
    struct q_learning base; // the first member
    struct q_network network;
    struct dqn_head head;
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
    dqn->head = dqn_head_of(config);
    struct layers_shape shape = {.inputs = 0,
                                 .outputs = dqn_head_outputs(&dqn->head),
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

/* ---- acting ---- */

/* The values of the chunk's rows, which p->input holds. */
static struct dense_matrix find_values(const struct dqn *dqn, const struct layers *layers,
                                       struct layers_work *work, uint32_t count)
{
    return dqn_head_values(&dqn->head, layers_forward(layers, work, count, dqn->base.input), count);
}

static struct dense_matrix own_values(const struct dqn *dqn, uint32_t count)
{
    return find_values(dqn, dqn->network.layers, dqn->network.work, count);
}

static void dqn_explore(void *self, const struct policy_exploration *exploration)
{
    ((struct dqn *)self)->head.exploration = *exploration;
}

static enum status dqn_act(void *self, const struct policy_rows *rows, uint32_t episode,
                           const uint32_t *environment, const uint32_t *step, struct error *error)
{
    struct dqn *dqn = self;
    (void)error;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        const struct dqn_actors actors = {episode, environment + first, step + first};
        struct dense_matrix values = {0};
        if (!dqn_head_is_random(&dqn->head, chunk.count, &actors)) {
            q_read_rows(&dqn->base, &chunk);
            values = own_values(dqn, chunk.count);
        }
        dqn_head_choose(&dqn->head, &chunk, values, &actors);
    }
    return STATUS_OK;
}

static enum status dqn_choose(void *self, const struct policy_rows *rows, struct error *error)
{
    struct dqn *dqn = self;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        q_read_rows(&dqn->base, &chunk);
        const struct dense_matrix values = own_values(dqn, chunk.count);
        if (!q_is_finite(values, chunk.count, dqn->head.choices))
            return error_set(error, STATUS_CORRUPT, "the value of an action is not finite");
        dqn_head_choose(&dqn->head, &chunk, values, NULL);
    }
    return STATUS_OK;
}

/* ---- learning ---- */

/* Adds the chunk's part of the loss and of the gradient. */
static double learn_chunk(struct dqn *dqn, const struct policy_transitions *batch, uint32_t first,
                          uint32_t count)
{
    const struct q_network *network = &dqn->network;
    double target[POLICY_CHUNK_ROWS];
    q_read_observations(&dqn->base, batch, true, first, count);
    const struct dense_matrix judge = find_values(dqn, network->target, network->target_work, count);
    dqn_head_targets(&dqn->head, batch, first, count, judge,
                     dqn->base.config.q.double_q ? own_values(dqn, count) : judge, target);
    q_read_observations(&dqn->base, batch, false, first, count);
    const double loss =
        dqn_head_loss(&dqn->head, batch, first, count, own_values(dqn, count), target, dqn->pull);
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

static enum status dqn_follow(void *self, struct error *error)
{
    struct dqn *dqn = self;
    (void)error;
    q_network_follow(&dqn->network, &dqn->base, dqn->base.config.q.tau);
    return STATUS_OK;
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
                                            .explore = dqn_explore,
                                            .fit = dqn_fit,
                                            .fits = q_fits,
                                            .follow = dqn_follow,
                                            .load_acting = dqn_load_acting,
                                            .save = q_save,
                                            .restore = dqn_restore};
