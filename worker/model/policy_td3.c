/* TD3 on the CPU (Fujimoto, van Hoof and Meger, "Addressing function approximation error in actor-critic
 * methods", 2018): an actor gives one action for each observation, critics judge it. With one critic, a delay
 * of 1 and no noise at the targets it is DDPG (Lillicrap et al., arXiv 1509.02971). */
#include "worker/model/q_critics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct td3 {
    struct q_learning base; // the first member
    struct q_network actor;
    struct q_critics critics;
    struct dense_matrix action_pull; // (a chunk's rows, components)
    double *target;                  // (batch rows)
};

/* ---- opening ---- */

static enum status td3_open(void **self, const struct policy_config *config, struct backend *backend,
                            const struct dense_normalizer *normalizer, struct error *error)
{
    struct td3 *td3 = *self = calloc(1, sizeof *td3);
    (void)backend;
    (void)normalizer;
    if (td3 == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the policy");
    enum status status = q_open(&td3->base, config, error);
    struct layers_shape shape = {.inputs = td3->base.inputs,
                                 .outputs = td3->base.components,
                                 .layers = config->layers,
                                 .activation = config->activation == POLICY_TANH ? DENSE_TANH : DENSE_RELU,
                                 .last = LAYERS_TANH};
    memcpy(shape.width, config->width, shape.layers * sizeof shape.width[0]);
    if (status == STATUS_OK)
        status = q_network_open(&td3->actor, &td3->base, &shape, "actor.mu.0.weight",
                                "actor_target.mu.0.weight", error);
    if (status == STATUS_OK)
        status = q_critics_open(&td3->critics, &td3->base, error);
    if (status == STATUS_OK)
        status = q_matrix(&td3->action_pull, td3->base.components, error);
    if (status == STATUS_OK && (td3->target = calloc(config->q.batch_rows, sizeof *td3->target)) == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %u rows", config->q.batch_rows);
    return status;
}

static void td3_free(void *self)
{
    struct td3 *td3 = self;
    q_network_close(&td3->actor);
    q_critics_close(&td3->critics);
    free(td3->action_pull.at);
    free(td3->target);
    q_close(&td3->base);
    free(td3);
}

/* ---- acting ---- */

/* The actions of the chunk in the input. */
static struct dense_matrix actions_of(struct td3 *td3, uint32_t count)
{
    return layers_forward(td3->actor.layers, td3->actor.work, count, td3->base.input);
}

static enum status td3_act(void *self, const struct policy_rows *rows, uint32_t episode,
                           const uint32_t *environment, const uint32_t *step, struct error *error)
{
    struct td3 *td3 = self;
    struct rng_key key = {.seed = td3->base.config.seed, .episode = episode};
    (void)error;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        q_read_rows(&td3->base, &chunk);
        const struct dense_matrix action = actions_of(td3, chunk.count);
        for (uint32_t i = 0; i < chunk.count; i++) {
            key.environment = environment[first + i];
            key.step = step[first + i];
            q_store_action(&td3->base, &chunk, i, action.at + i * action.stride, &key);
        }
    }
    return STATUS_OK;
}

static enum status td3_choose(void *self, const struct policy_rows *rows, struct error *error)
{
    struct td3 *td3 = self;
    for (uint32_t first = 0; first < rows->count; first += POLICY_CHUNK_ROWS) {
        const struct policy_rows chunk = policy_chunk(rows, first);
        q_read_rows(&td3->base, &chunk);
        if (!q_store_chosen(&td3->base, &chunk, actions_of(td3, chunk.count)))
            return error_set(error, STATUS_CORRUPT, "an action is not finite");
    }
    return STATUS_OK;
}

/* ---- learning ---- */

/* Moves the chunk's next actions by clipped noise, within [-1, 1]. A NaN stays, and is told. */
static void blur(struct td3 *td3, uint32_t first, uint32_t count, struct dense_matrix action)
{
    const struct policy_q_config *q = &td3->base.config.q;
    const uint32_t components = td3->base.components;
    const float most = (float)q->target_noise_clip;
    q_learning_noise(&td3->base, 1, first, count);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t c = 0; c < components; c++) {
            const float draw = (float)q->target_noise * td3->base.noise[(size_t)i * components + c];
            float *to = action.at + i * action.stride + c;
            const float moved = *to + fmaxf(-most, fminf(most, draw));
            *to = isnan(moved) ? moved : fmaxf(-1, fminf(1, moved));
        }
}

/* Writes the chunk's targets. */
static void find_targets(struct td3 *td3, const struct policy_transitions *batch, uint32_t first,
                         uint32_t count)
{
    struct q_learning *base = &td3->base;
    double *target = td3->target + first;
    q_read_observations(base, batch, true, first, count);
    const struct dense_matrix action =
        layers_forward(td3->actor.target, td3->actor.target_work, count, base->input);
    blur(td3, first, count, action);
    q_read_actions(base, action.at, action.stride, count);
    q_critics_judge(&td3->critics, base, count, target);
    for (uint32_t i = 0; i < count; i++) {
        const double following = batch->terminated[first + i] != 0 ? 0 : target[i];
        target[i] = (double)batch->rewards[first + i] + base->config.q.gamma * following;
    }
}

/* Adds the chunk's part of the actor's loss and gradient. */
static double pull_actor(struct td3 *td3, const struct policy_transitions *batch, uint32_t first,
                         uint32_t count)
{
    struct q_learning *base = &td3->base;
    double value[POLICY_CHUNK_ROWS], loss = 0;
    q_read_observations(base, batch, false, first, count);
    const struct dense_matrix action = actions_of(td3, count);
    q_read_actions(base, action.at, action.stride, count);
    q_critics_pull(&td3->critics, base, 1, count, -1.0f / (float)batch->count, value, td3->action_pull);
    for (uint32_t i = 0; i < count; i++)
        loss -= value[i] / batch->count;
    layers_backward(td3->actor.layers, td3->actor.work, td3->action_pull, base->gradient + td3->actor.offset,
                    first > 0, (struct dense_matrix){0});
    return loss;
}

/* Steps the actor, and moves all targets. */
static enum status step_actor(struct td3 *td3, const struct policy_transitions *batch, double lr,
                              double *loss, struct error *error)
{
    struct q_learning *base = &td3->base;
    *loss = 0;
    for (uint32_t first = 0, count; first < batch->count; first += count) {
        count = q_chunk(batch, first);
        *loss += pull_actor(td3, batch, first, count);
    }
    const enum status status = isfinite(*loss) ? q_check_gradient(base, &td3->actor, batch, error)
                                               : q_explain_loss(base, batch, *loss, error);
    if (status != STATUS_OK)
        return status;
    q_network_step(&td3->actor, base, lr, base->steps / base->config.q.policy_delay, 1);
    q_critics_follow(&td3->critics, base);
    q_network_follow(&td3->actor, base, base->config.q.tau);
    return STATUS_OK;
}

static enum status td3_fit(void *self, const struct policy_transitions *batch, double lr,
                           struct policy_q_losses *losses, struct error *error)
{
    struct td3 *td3 = self;
    struct q_learning *base = &td3->base;
    base->steps++;
    *losses = (struct policy_q_losses){
        .actor = (double)NAN, .entropy_coefficient = (double)NAN, .entropy = (double)NAN};
    for (uint32_t first = 0, count; first < batch->count; first += count) {
        count = q_chunk(batch, first);
        find_targets(td3, batch, first, count);
        losses->critic += q_critics_learn(&td3->critics, base, batch, first, count, td3->target + first, 1);
    }
    enum status status = isfinite(losses->critic) ? q_critics_step(&td3->critics, base, batch, lr, error)
                                                  : q_explain_loss(base, batch, losses->critic, error);
    if (status == STATUS_OK && base->steps % base->config.q.policy_delay == 0)
        status = step_actor(td3, batch, lr, &losses->actor, error);
    if (status != STATUS_OK)
        base->steps--; // it was none
    return status;
}

static void td3_load_acting(void *self)
{
    struct td3 *td3 = self;
    q_network_load(&td3->actor, &td3->base);
}

static enum status td3_restore(void *self, const struct policy_values *values, struct error *error)
{
    struct td3 *td3 = self;
    const enum status status = q_restore(self, values, error);
    q_network_load(&td3->actor, &td3->base);
    q_critics_load(&td3->critics, &td3->base);
    return status;
}

const struct policy_kind policy_td3_kind = {.open = td3_open,
                                            .free = td3_free,
                                            .act = td3_act,
                                            .choose = td3_choose,
                                            .explore = q_explore,
                                            .fit = td3_fit,
                                            .fits = q_fits,
                                            .load_acting = td3_load_acting,
                                            .save = q_save,
                                            .restore = td3_restore};
