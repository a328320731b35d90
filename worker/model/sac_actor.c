/* SAC's actor: opens its networks, draws, and hands the pulls back through them. */
#include "worker/model/sac_actor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

static struct layers_shape hidden_shape(const struct q_learning *p)
{
    const struct policy_config *config = &p->config;
    struct layers_shape shape = {.inputs = p->inputs,
                                 .layers = config->layers,
                                 .activation = config->activation == POLICY_TANH ? DENSE_TANH : DENSE_RELU};
    memcpy(shape.width, config->width, shape.layers * sizeof shape.width[0]);
    return shape;
}

/* Means and deviations come from one chain. */
static enum status open_plain(struct sac_actor *actor, const struct q_learning *p, struct error *error)
{
    struct layers_shape shape = hidden_shape(p);
    shape.outputs = 2 * p->components;
    const char *first = shape.layers > 0 ? "actor.latent_pi.0.weight" : "actor.mu.weight";
    const enum status status = q_network_open(&actor->trunk, p, &shape, first, NULL, error);
    return status == STATUS_OK ? q_matrix(&actor->outputs_pull, shape.outputs, error) : status;
}

/* The hidden layers' outputs are read by the means and by the deviations. policy_check asks for a hidden
 * layer. */
static enum status open_exploring(struct sac_actor *actor, const struct q_learning *p, struct error *error)
{
    struct layers_shape trunk = hidden_shape(p);
    trunk.outputs = trunk.width[--trunk.layers];
    trunk.last = LAYERS_ACTIVATED;
    const struct layers_shape mean = {
        .inputs = trunk.outputs, .outputs = p->components, .pulls_inputs = true};
    actor->deviations = (size_t)trunk.outputs * p->components;
    actor->draws = calloc(actor->deviations, sizeof *actor->draws);
    if (actor->draws == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu draws", actor->deviations);
    enum status status = q_network_open(&actor->trunk, p, &trunk, "actor.latent_pi.0.weight", NULL, error);
    if (status == STATUS_OK)
        status = q_network_open(&actor->mean, p, &mean, "actor.mu.0.weight", NULL, error);
    if (status == STATUS_OK)
        status = q_matrix(&actor->outputs_pull, p->components, error);
    return status == STATUS_OK ? q_matrix(&actor->features_pull, trunk.outputs, error) : status;
}

enum status sac_actor_open(struct sac_actor *actor, const struct q_learning *p, struct error *error)
{
    const struct policy_config *config = &p->config;
    actor->explores = config->state_dependent;
    enum status status = q_matrix(&actor->action, p->components, error);
    if (status == STATUS_OK)
        status = actor->explores ? open_exploring(actor, p, error) : open_plain(actor, p, error);
    const struct squashed_shape shape = {
        .components = p->components,
        .features = actor->explores && status == STATUS_OK ? config->width[config->layers - 1] : 0,
        .expln = config->q.expln,
        .clip_mean = actor->explores ? POLICY_CLIP_MEAN : 0};
    return status == STATUS_OK ? squashed_new(&actor->squashed, &shape, error) : status;
}

void sac_actor_close(struct sac_actor *actor)
{
    q_network_close(&actor->trunk);
    q_network_close(&actor->mean);
    squashed_free(actor->squashed);
    free(actor->draws);
    free(actor->action.at);
    free(actor->outputs_pull.at);
    free(actor->features_pull.at);
}

void sac_actor_load(struct sac_actor *actor, const struct q_learning *p)
{
    q_network_load(&actor->trunk, p);
    if (actor->explores)
        q_network_load(&actor->mean, p);
}

/* ---- drawing ---- */

/* Forward of the rows in the input. */
static void find_distribution(struct sac_actor *actor, const struct q_learning *p, uint32_t count)
{
    const struct dense_matrix outputs =
        layers_forward(actor->trunk.layers, actor->trunk.work, count, p->input);
    actor->rows = (struct squashed_rows){.count = count, .z = outputs};
    if (!actor->explores) {
        actor->rows.noise = (struct dense_matrix){p->noise, p->components};
        return;
    }
    actor->rows.features = outputs;
    actor->rows.z = layers_forward(actor->mean.layers, actor->mean.work, count, outputs);
}

/* Has the row's action come from the draws of its environment, which it keeps for some steps. */
static void explore_row(struct sac_actor *actor, const struct q_learning *p, uint32_t i, struct rng_key key)
{
    const uint32_t steps = p->config.noise_steps;
    struct squashed_rows row = actor->rows;
    key.step = steps > 0 ? key.step - key.step % steps : 0;
    q_draw_normals(p, &key, RNG_NOISE, key.environment, 0, (uint32_t)actor->deviations, actor->draws);
    squashed_load(actor->squashed, p->values, actor->draws);
    row.count = 1;
    row.z.at += i * row.z.stride;
    row.features.at += i * row.features.stride;
    squashed_act(actor->squashed, &row,
                 (struct dense_matrix){actor->action.at + i * actor->action.stride, actor->action.stride},
                 NULL);
}

void sac_actor_act(struct sac_actor *actor, const struct q_learning *p, const struct policy_rows *chunk,
                   struct rng_key *key, const uint32_t *environment, const uint32_t *step)
{
    q_read_rows(p, chunk);
    find_distribution(actor, p, chunk->count);
    for (uint32_t i = 0; i < chunk->count; i++) {
        key->environment = environment[i];
        key->step = step[i];
        if (actor->explores)
            explore_row(actor, p, i, *key);
        else
            q_acting_noise(p, key, p->noise + (size_t)i * p->components);
    }
    if (!actor->explores)
        squashed_act(actor->squashed, &actor->rows, actor->action, NULL);
    for (uint32_t i = 0; i < chunk->count; i++) {
        key->environment = environment[i];
        key->step = step[i];
        q_store_action(p, chunk, i, actor->action.at + i * actor->action.stride, key);
    }
}

bool sac_actor_choose(struct sac_actor *actor, const struct q_learning *p, const struct policy_rows *chunk)
{
    q_read_rows(p, chunk);
    find_distribution(actor, p, chunk->count);
    actor->rows.noise.at = NULL;
    if (actor->explores)
        squashed_load(actor->squashed, p->values, NULL);
    squashed_act(actor->squashed, &actor->rows, actor->action, NULL);
    return q_store_chosen(p, chunk, actor->action);
}

void sac_actor_begin_step(struct sac_actor *actor, const struct q_learning *p)
{
    const struct rng_key key = {.seed = p->config.seed, .episode = (uint32_t)p->steps};
    if (!actor->explores)
        return;
    q_draw_normals(p, &key, RNG_LEARNING, 0, 0, (uint32_t)actor->deviations, actor->draws);
    squashed_load(actor->squashed, p->values, actor->draws);
}

struct dense_matrix sac_actor_draw(struct sac_actor *actor, const struct q_learning *p, uint32_t which,
                                   uint32_t first, uint32_t count, float *log_probability)
{
    if (!actor->explores)
        q_learning_noise(p, which, first, count);
    find_distribution(actor, p, count);
    squashed_act(actor->squashed, &actor->rows, actor->action, log_probability);
    return actor->action;
}

/* ---- learning ---- */

void sac_actor_pull(struct sac_actor *actor, const struct q_learning *p, struct dense_matrix d_actions,
                    float d_log_probability, bool adds)
{
    const struct squashed_pulls pulls = {
        .z = actor->outputs_pull, .features = actor->features_pull, .log_std = p->gradient, .adds = adds};
    struct dense_matrix trunk_pull = actor->outputs_pull;
    squashed_pull(actor->squashed, &actor->rows, actor->action, d_actions, d_log_probability, &pulls);
    if (actor->explores) {
        float *gradient = p->gradient + actor->mean.offset;
        layers_pull(actor->mean.layers, actor->mean.work, actor->outputs_pull, gradient, adds);
        layers_pull_weight(actor->mean.layers, actor->mean.work, actor->rows.features, 0,
                           actor->trunk.outputs, gradient, adds);
        layers_pull_inputs(actor->mean.layers, actor->mean.work, actor->features_pull, true);
        trunk_pull = actor->features_pull;
    }
    layers_backward(actor->trunk.layers, actor->trunk.work, trunk_pull, p->gradient + actor->trunk.offset,
                    adds, (struct dense_matrix){0});
}

enum status sac_actor_check(const struct sac_actor *actor, const struct q_learning *p,
                            const struct policy_transitions *batch, struct error *error)
{
    const struct q_network deviations = {.parameters = 1, .count = actor->deviations};
    enum status status = q_check_gradient(p, &actor->trunk, batch, error);
    if (status == STATUS_OK && actor->explores)
        status = q_check_gradient(p, &actor->mean, batch, error);
    return status == STATUS_OK && actor->explores ? q_check_gradient(p, &deviations, batch, error) : status;
}

void sac_actor_step(struct sac_actor *actor, const struct q_learning *p, double lr)
{
    q_network_step(&actor->trunk, p, lr, p->steps, 1);
    if (!actor->explores)
        return;
    q_network_step(&actor->mean, p, lr, p->steps, 1);
    q_step(p, 0, actor->deviations, lr, p->steps, 1);
}
