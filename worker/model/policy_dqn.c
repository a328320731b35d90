/* DQN on the CPU (Mnih et al., "Human-level control through deep reinforcement learning", 2015): a network
 * has a value for each choice of an action, and the greatest one is chosen. Options: double Q-learning, and
 * dueling outputs: with the state's value V and advantages A, Q_a = V + A_a - mean A. */
#include "kernels/norm.h"
#include "worker/model/dqn_head.h"
#include "worker/model/q_learning.h"

#include <math.h>

struct dqn {
    struct q_learning base; // the first member
    struct q_network *network;
    struct dqn_head head;
    struct dense_matrix pull; // (a chunk's rows, outputs)
};

static enum status dqn_open(void *self, const struct policy_config *config, struct backend *backend,
                            const struct dense_normalizer *normalizer, struct error *error)
{
    struct dqn *dqn = self;
    (void)backend;
    (void)normalizer;
    dqn->head = dqn_head_of(config);
    enum status status = q_open(&dqn->base, config, error);
    struct layers_shape shape = q_shape(&dqn->base, dqn->base.inputs, config->layers, config->width);
    shape.outputs = dqn_head_outputs(&dqn->head);
    if (status == STATUS_OK)
        status = q_matrix(&dqn->base, &dqn->pull, shape.outputs, error);
    return status == STATUS_OK ? q_network_open(&dqn->network, &dqn->base, &shape, "q_net.q_net.0.weight",
                                                "q_net_target.q_net.0.weight", error)
                               : status;
}

/* ---- acting ---- */

/* The values of the chunk's rows, which the input holds: the network's, or the target's. */
static struct dense_matrix find_values(const struct dqn *dqn, uint32_t count, bool of_target)
{
    return dqn_head_values(&dqn->head, q_network_forward(dqn->network, &dqn->base, count, of_target), count);
}

static void dqn_explore(void *self, const struct policy_exploration *exploration)
{
    ((struct dqn *)self)->head.exploration = *exploration;
}

static enum status dqn_act(void *self, const struct policy_rows *rows, const struct dense_draw *draw,
                           struct error *error)
{
    const struct dqn *dqn = self;
    struct dense_matrix values = {0};
    if (!dqn_head_is_random(&dqn->head, rows->count, draw)) {
        q_read_rows(&dqn->base, rows);
        values = find_values(dqn, rows->count, false);
    }
    return dqn_head_choose(&dqn->head, rows, values, draw, error);
}

/* ---- learning ---- */

/* Adds the chunk's part of the loss and of the gradient. */
static double learn_chunk(const struct dqn *dqn, const struct policy_transitions *batch, uint32_t first,
                          uint32_t count)
{
    double target[POLICY_CHUNK_ROWS];
    q_read_observations(&dqn->base, batch, true, first, count);
    const struct dense_matrix judge = find_values(dqn, count, true);
    dqn_head_targets(&dqn->head, batch, first, count, judge,
                     dqn->base.config.q.double_q ? find_values(dqn, count, false) : judge, target);
    q_read_observations(&dqn->base, batch, false, first, count);
    const double loss =
        dqn_head_loss(&dqn->head, batch, first, count, find_values(dqn, count, false), target, dqn->pull);
    q_network_backward(dqn->network, &dqn->base, dqn->pull, first > 0);
    return loss;
}

static enum status dqn_fit(void *self, const struct policy_transitions *batch, double lr,
                           struct policy_q_losses *losses, struct error *error)
{
    struct dqn *dqn = self;
    struct policy_arrays *arrays = &dqn->base.arrays;
    const struct q_network *network = dqn->network;
    *losses = (struct policy_q_losses){
        .actor = (double)NAN, .entropy_coefficient = (double)NAN, .entropy = (double)NAN};
    for (uint32_t first = 0, count; first < batch->count; first += count) {
        count = q_chunk(batch, first);
        losses->critic += learn_chunk(dqn, batch, first, count);
    }
    if (!isfinite(losses->critic))
        return q_explain_loss(&dqn->base, batch, losses->critic, error);
    const double norm = norm_of(arrays->gradient + network->offset, network->count);
    if (!isfinite(norm))
        return q_check_gradient(&dqn->base, network->offset, network->count, batch, error);
    q_network_step(network, &dqn->base, lr, ++arrays->steps,
                   (float)policy_clip_factor(norm, dqn->base.config.q.max_norm));
    return STATUS_OK;
}

static enum status dqn_follow(void *self, struct error *error)
{
    (void)error;
    q_follow(self);
    return STATUS_OK;
}

const struct policy_kind policy_dqn_kind = {.bytes = sizeof(struct dqn),
                                            .takes_chunks = true,
                                            .open = dqn_open,
                                            .close = q_close,
                                            .act = dqn_act,
                                            .explore = dqn_explore,
                                            .fit = dqn_fit,
                                            .fits = q_fits,
                                            .follow = dqn_follow,
                                            .save = policy_arrays_save,
                                            .restore = q_restore};
