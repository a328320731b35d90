/* SAC and TD3 on the CPU: an actor gives actions for observations, and critics judge them.
 *
 * SAC (Haarnoja et al., "Soft actor-critic algorithms and applications", arXiv 1812.05905): the actor draws
 * from a Gaussian that tanh squashes (kernels/policy/squashed.h), and the entropy of the draws is part of the
 * return. Without gSDE the actor's last layer gives means and logarithms of deviations. With gSDE the last
 * layer gives the means alone, and the last hidden layer gives the deviations. One matrix of draws is then
 * the noise of a whole gradient step, or of one environment for some steps.
 *
 * TD3 (Fujimoto, van Hoof and Meger, "Addressing function approximation error in actor-critic methods",
 * 2018): the actor has one action for each observation, and a target. With one critic, a delay of 1 and no
 * noise at the targets it is DDPG (Lillicrap et al., arXiv 1509.02971).
 *
 * Several critics estimate the return of an observation and an action, and each has a target. The least of
 * their estimates counts (clipped double Q-learning, in TD3's paper). */
#include "kernels/lanes/isa.h"
#include "kernels/lanes/row_lanes.h"
#include "kernels/policy/squashed.h"
#include "worker/model/q_learning.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct actor_critic {
    struct q_learning base;        // the first member
    uint32_t actor_steps_interval; // gradient steps to a step of the actor
    uint32_t follow_interval;      // and to one of the targets

    /* The actor. */
    struct q_network *trunk;    // all layers; with gSDE the hidden ones
    struct q_network *mean;     // with gSDE: the last layer; else NULL
    struct squashed *squashed;  // SAC's distribution; NULL: TD3
    size_t deviations;          // floats of log_std, which with gSDE are the first parameter
    float *draws;               // (deviations) with gSDE
    struct squashed_rows rows;  // of the last draw
    struct dense_matrix action; // (a chunk's rows, components) the last actions
    struct dense_matrix outputs_pull, features_pull;
    size_t log_coefficient; // where the arrays have the logarithm of the entropy's weight, if it is learned
    const struct row_lanes *lanes;

    /* The critics. */
    uint32_t critics;
    struct q_network *critic[POLICY_CRITICS_MAX];
    struct dense_matrix value[POLICY_CRITICS_MAX]; // (a chunk's rows, 1) of the last forward
    struct dense_matrix pull;                      // (a chunk's rows, 1)
    struct dense_matrix input_pull;                // (a chunk's rows, inputs + components)
    struct dense_matrix action_pull;               // (a chunk's rows, components)
    double *target;                                // (batch rows), the return that critics should estimate
};

// The noise comes from state-dependent exploration (gSDE): one matrix of draws times the actor's last hidden
// layer.
static bool has_gsde(const struct actor_critic *ac)
{
    return ac->mean != NULL;
}

/* ---- opening ---- */

static struct layers_shape hidden_shape(const struct actor_critic *ac)
{
    const struct policy_config *config = &ac->base.config;
    return q_shape(&ac->base, ac->base.inputs, config->layers, config->width);
}

static enum status open_td3_actor(struct actor_critic *ac, struct error *error)
{
    struct layers_shape shape = hidden_shape(ac);
    shape.outputs = ac->base.components;
    shape.last = LAYERS_TANH;
    return q_network_open(&ac->trunk, &ac->base, &shape, "actor.mu.0.weight", "actor_target.mu.0.weight",
                          error);
}

/* Means and deviations come from one chain. */
static enum status open_plain_actor(struct actor_critic *ac, struct error *error)
{
    struct layers_shape shape = hidden_shape(ac);
    shape.outputs = 2 * ac->base.components;
    const char *first = shape.layers > 0 ? "actor.latent_pi.0.weight" : "actor.mu.weight";
    const enum status status = q_network_open(&ac->trunk, &ac->base, &shape, first, NULL, error);
    return status == STATUS_OK ? q_matrix(&ac->base, &ac->outputs_pull, shape.outputs, error) : status;
}

/* The hidden layers' outputs are read by the means and by the deviations. policy_check asks for a hidden
 * layer. */
static enum status open_exploring_actor(struct actor_critic *ac, struct error *error)
{
    struct q_learning *base = &ac->base;
    struct layers_shape trunk = hidden_shape(ac);
    trunk.outputs = trunk.width[--trunk.layers];
    trunk.last = LAYERS_ACTIVATED;
    const struct layers_shape mean = {
        .inputs = trunk.outputs, .outputs = base->components, .pulls_inputs = true};
    ac->deviations = (size_t)trunk.outputs * base->components;
    ac->draws = calloc(ac->deviations, sizeof *ac->draws);
    if (ac->draws == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %zu draws", ac->deviations);
    enum status status = q_network_open(&ac->trunk, base, &trunk, "actor.latent_pi.0.weight", NULL, error);
    if (status == STATUS_OK)
        status = q_network_open(&ac->mean, base, &mean, "actor.mu.0.weight", NULL, error);
    if (status == STATUS_OK)
        status = q_matrix(base, &ac->outputs_pull, base->components, error);
    return status == STATUS_OK ? q_matrix(base, &ac->features_pull, trunk.outputs, error) : status;
}

static enum status open_sac_actor(struct actor_critic *ac, struct error *error)
{
    static const struct row_lanes *const lanes[] = ISA_EACH(&row_lanes);
    const struct policy_config *config = &ac->base.config;
    const bool gsde = config->state_dependent;
    const struct squashed_shape shape = {.components = ac->base.components,
                                         .features = gsde ? config->width[config->layers - 1] : 0,
                                         .expln = config->q.expln,
                                         .clip_mean = gsde ? POLICY_CLIP_MEAN : 0};
    ac->lanes = lanes[isa_or_baseline()];
    ac->log_coefficient = ac->base.arrays.count - 1;
    enum status status = q_matrix(&ac->base, &ac->action, ac->base.components, error);
    if (status == STATUS_OK)
        status = gsde ? open_exploring_actor(ac, error) : open_plain_actor(ac, error);
    return status == STATUS_OK ? squashed_new(&ac->squashed, &shape, error) : status;
}

static enum status open_critics(struct actor_critic *ac, struct error *error)
{
    struct q_learning *base = &ac->base;
    const struct policy_q_config *q = &base->config.q;
    struct layers_shape shape =
        q_shape(base, base->inputs + base->components, q->critic_layers, q->critic_width);
    shape.outputs = 1;
    shape.pulls_inputs = true;
    enum status status = q_matrix(base, &ac->pull, 1, error);
    if (status == STATUS_OK)
        status = q_matrix(base, &ac->input_pull, shape.inputs, error);
    if (status == STATUS_OK)
        status = q_matrix(base, &ac->action_pull, base->components, error);
    for (; ac->critics < q->critics && status == STATUS_OK; ac->critics++) {
        char first[POLICY_NAME_BYTES], target[POLICY_NAME_BYTES];
        snprintf(first, sizeof first, "critic.qf%u.0.weight", ac->critics);
        snprintf(target, sizeof target, "critic_target.qf%u.0.weight", ac->critics);
        status = q_network_open(&ac->critic[ac->critics], base, &shape, first, target, error);
    }
    return status;
}

static enum status ac_open(void *self, const struct policy_config *config, struct backend *backend,
                           const struct dense_normalizer *normalizer, struct error *error)
{
    struct actor_critic *ac = self;
    const bool is_sac = config->learning == POLICY_SAC;
    (void)backend;
    (void)normalizer;
    ac->actor_steps_interval = is_sac ? 1 : config->q.policy_delay;
    ac->follow_interval = is_sac ? config->q.target_interval : config->q.policy_delay;
    enum status status = q_open(&ac->base, config, error);
    if (status == STATUS_OK)
        status = is_sac ? open_sac_actor(ac, error) : open_td3_actor(ac, error);
    if (status == STATUS_OK)
        status = open_critics(ac, error);
    if (status == STATUS_OK && (ac->target = calloc(config->q.batch_rows, sizeof *ac->target)) == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %u rows", config->q.batch_rows);
    return status;
}

static void ac_close(void *self)
{
    struct actor_critic *ac = self;
    squashed_free(ac->squashed);
    free(ac->draws);
    free(ac->target);
    q_close(&ac->base);
}

/* ---- acting ---- */

/* The actor's forward of the rows in the input: TD3's actions, or what SAC draws from. */
static void find_distribution(struct actor_critic *ac, uint32_t count)
{
    const struct q_learning *base = &ac->base;
    const struct dense_matrix outputs = q_network_forward(ac->trunk, base, count, false);
    if (ac->squashed == NULL) {
        ac->action = outputs;
        return;
    }
    ac->rows = (struct squashed_rows){.count = count, .z = outputs};
    if (!has_gsde(ac)) {
        ac->rows.noise = (struct dense_matrix){base->noise, base->components};
        return;
    }
    ac->rows.features = outputs;
    ac->rows.z = layers_forward(ac->mean->layers, ac->mean->work, count, outputs);
}

static struct rng_key key_of(const struct dense_draw *draw, uint32_t i)
{
    return (struct rng_key){.seed = draw->seed,
                            .environment = draw->environment[i],
                            .step = draw->step[i],
                            .episode = draw->episode};
}

static float *action_of(const struct actor_critic *ac, uint32_t i)
{
    return ac->action.at + i * ac->action.stride;
}

/* Has the row's action come from the draws of its environment, which it keeps for some steps. */
static void explore_row(const struct actor_critic *ac, uint32_t i, const struct dense_draw *draw)
{
    const struct q_learning *base = &ac->base;
    struct rng_key key = key_of(draw, i);
    struct squashed_rows row = ac->rows;
    key.step = draw->noise_steps > 0 ? key.step - key.step % draw->noise_steps : 0;
    normal_fill(base->normals, ac->draws, ac->deviations, &key, RNG_NOISE, key.environment);
    squashed_load(ac->squashed, base->arrays.values, ac->draws);
    row.count = 1;
    row.z.at += i * row.z.stride;
    row.features.at += i * row.features.stride;
    squashed_act(ac->squashed, &row, (struct dense_matrix){action_of(ac, i), ac->action.stride}, NULL);
}

/* SAC's actions of the rows; `draw` NULL: without noise. */
static void draw_actions(struct actor_critic *ac, uint32_t count, const struct dense_draw *draw)
{
    const struct q_learning *base = &ac->base;
    for (uint32_t i = 0; i < count && draw != NULL; i++) {
        const struct rng_key key = key_of(draw, i);
        if (has_gsde(ac))
            explore_row(ac, i, draw);
        else
            q_acting_noise(base, &key, base->noise + (size_t)i * base->components);
    }
    if (draw != NULL && has_gsde(ac))
        return;
    if (draw == NULL)
        ac->rows.noise.at = NULL;
    if (has_gsde(ac))
        squashed_load(ac->squashed, base->arrays.values, NULL);
    squashed_act(ac->squashed, &ac->rows, ac->action, NULL);
}

static enum status ac_act(void *self, const struct policy_rows *rows, const struct dense_draw *draw,
                          struct error *error)
{
    struct actor_critic *ac = self;
    q_read_rows(&ac->base, rows);
    find_distribution(ac, rows->count);
    if (ac->squashed != NULL)
        draw_actions(ac, rows->count, draw);
    for (uint32_t i = 0; i < rows->count && draw != NULL; i++) {
        const struct rng_key key = key_of(draw, i);
        q_store_action(&ac->base, rows, i, action_of(ac, i), &key);
    }
    if (draw == NULL && !q_store_chosen(&ac->base, rows, ac->action))
        return error_set(error, STATUS_CORRUPT, "an action is not finite");
    return STATUS_OK;
}

/* ---- the critics ---- */

static float value_at(const struct actor_critic *ac, uint32_t critic, uint32_t row)
{
    return ac->value[critic].at[row * ac->value[critic].stride];
}

/* The critic with the least value of the row; the first of equal ones. A NaN is the least, as for PyTorch's
 * min: the loss then tells it. */
static uint32_t least_of(const struct actor_critic *ac, uint32_t used, uint32_t row)
{
    uint32_t least = 0;
    for (uint32_t j = 1; j < used; j++)
        if (value_at(ac, j, row) < value_at(ac, least, row) || isnan(value_at(ac, j, row)))
            least = j;
    return least;
}

/* Writes, for each row in base->input, the least value of the target critics. */
static void find_least_target_value(struct actor_critic *ac, uint32_t count, double *least)
{
    for (uint32_t j = 0; j < ac->critics; j++)
        ac->value[j] = q_network_forward(ac->critic[j], &ac->base, count, true);
    for (uint32_t i = 0; i < count; i++)
        least[i] = (double)value_at(ac, least_of(ac, ac->critics, i), i);
}

/* Adds the chunk's part of the critics' loss and its gradient: of the batch's own actions, for rows first …
 * first + count - 1. Returns that part. SAC's is halved. */
static double learn_critics(struct actor_critic *ac, const struct policy_transitions *batch, uint32_t first,
                            uint32_t count)
{
    const struct q_learning *base = &ac->base;
    const double *target = ac->target + first, share = (ac->squashed != NULL ? 0.5 : 1) / batch->count;
    double loss = 0;
    q_read_observations(base, batch, false, first, count);
    q_read_actions(base, (const float *)batch->actions + (size_t)first * base->components, base->components,
                   count);
    for (uint32_t j = 0; j < ac->critics; j++) {
        ac->value[j] = q_network_forward(ac->critic[j], base, count, false);
        for (uint32_t i = 0; i < count; i++) {
            const double error = (double)value_at(ac, j, i) - target[i];
            loss += share * error * error;
            ac->pull.at[i * ac->pull.stride] = (float)(2 * share * error);
        }
        q_network_backward(ac->critic[j], base, ac->pull, first > 0);
    }
    return loss;
}

/* Adam's step of every critic, after the whole batch. */
static enum status step_critics(const struct actor_critic *ac, const struct policy_transitions *batch,
                                double lr, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t j = 0; j < ac->critics && status == STATUS_OK; j++)
        status = q_check_gradient(&ac->base, ac->critic[j]->offset, ac->critic[j]->count, batch, error);
    for (uint32_t j = 0; j < ac->critics && status == STATUS_OK; j++)
        q_network_step(ac->critic[j], &ac->base, lr, ac->base.arrays.steps, 1);
    return status;
}

/* Writes dL/d the actions of the rows that critic j has judged, of all that went forward. */
static void pull_critic(struct actor_critic *ac, uint32_t j, uint32_t count, const uint32_t *row, float slope)
{
    const struct q_network *critic = ac->critic[j];
    const struct dense_matrix to = ac->action_pull;
    layers_keep(critic->layers, critic->work, count, row);
    for (uint32_t i = 0; i < count; i++)
        ac->pull.at[i * ac->pull.stride] = slope;
    layers_backward(critic->layers, critic->work, ac->pull, NULL, false, ac->input_pull);
    for (uint32_t i = 0; i < count; i++)
        memcpy(to.at + row[i] * to.stride, ac->input_pull.at + i * ac->input_pull.stride + ac->base.inputs,
               ac->base.components * sizeof *to.at);
}

/* Writes for each row of the chunk in the input the least value of the critics; for TD3 that of the first
 * critic. Writes dL/d the actions, too: `slope` is dL/d each of those values. */
static void pull_critics(struct actor_critic *ac, uint32_t count, float slope, double *least)
{
    const uint32_t used = ac->squashed != NULL ? ac->critics : 1;
    uint32_t chosen[POLICY_CHUNK_ROWS];
    for (uint32_t j = 0; j < used; j++)
        ac->value[j] = q_network_forward(ac->critic[j], &ac->base, count, false);
    for (uint32_t i = 0; i < count; i++) {
        chosen[i] = least_of(ac, used, i);
        least[i] = (double)value_at(ac, chosen[i], i);
    }
    for (uint32_t j = 0; j < used; j++) {
        uint32_t row[POLICY_CHUNK_ROWS], rows = 0;
        for (uint32_t i = 0; i < count; i++)
            if (chosen[i] == j)
                row[rows++] = i;
        if (rows > 0)
            pull_critic(ac, j, rows, row, slope);
    }
}

/* ---- learning ---- */

/* The entropy's weight; TD3's is 0. e^x, of a positive x by that of -x, has the same bits everywhere. */
static double coefficient_of(const struct actor_critic *ac)
{
    const struct policy_q_config *q = &ac->base.config.q;
    if (ac->squashed == NULL || !q->learns_entropy)
        return ac->squashed == NULL ? 0 : q->entropy_coefficient;
    const float log_coefficient = ac->base.arrays.values[ac->log_coefficient];
    const float exponent = -fabsf(log_coefficient);
    float found;
    ac->lanes->exp_scaled(&found, &exponent, 1, 0, 1);
    return log_coefficient > 0 ? 1 / (double)found : (double)found;
}

/* Draws the noise of the running gradient step, where it is one for all rows. */
static void begin_step(const struct actor_critic *ac)
{
    const struct q_learning *base = &ac->base;
    const struct rng_key key = {.seed = base->config.seed, .episode = (uint32_t)base->arrays.steps};
    if (!has_gsde(ac))
        return;
    normal_fill(base->normals, ac->draws, ac->deviations, &key, RNG_LEARNING, 0);
    squashed_load(ac->squashed, base->arrays.values, ac->draws);
}

/* Finds the actions for rows first … first + count - 1 of the batch, and writes their log-probabilities. The
 * rows' observations are in the input. TD3 has no log-probabilities: they are zeros. `which` as
 * q_learning_noise. */
static void find_actions(struct actor_critic *ac, uint32_t which, uint32_t first, uint32_t count,
                         float *log_probability)
{
    if (ac->squashed != NULL && !has_gsde(ac))
        q_learning_noise(&ac->base, which, first, count);
    find_distribution(ac, count);
    if (ac->squashed != NULL)
        squashed_act(ac->squashed, &ac->rows, ac->action, log_probability);
    else
        memset(log_probability, 0, count * sizeof *log_probability);
}

/* TD3's next actions: those of the target, moved by clipped noise within [-1, 1]. A NaN stays, and is told.
 */
static void blur_target(struct actor_critic *ac, uint32_t first, uint32_t count)
{
    const struct policy_q_config *q = &ac->base.config.q;
    const uint32_t components = ac->base.components;
    const float most = (float)q->target_noise_clip;
    ac->action = q_network_forward(ac->trunk, &ac->base, count, true);
    q_learning_noise(&ac->base, 1, first, count);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t c = 0; c < components; c++) {
            const float draw = (float)q->target_noise * ac->base.noise[(size_t)i * components + c];
            float *to = action_of(ac, i) + c;
            const float moved = *to + fmaxf(-most, fminf(most, draw));
            *to = isnan(moved) ? moved : fmaxf(-1, fminf(1, moved));
        }
}

/* Writes the returns that the critics should estimate for the chunk's rows. */
static void find_targets(struct actor_critic *ac, const struct policy_transitions *batch, uint32_t first,
                         uint32_t count, double coefficient)
{
    const struct q_learning *base = &ac->base;
    float log_probability[POLICY_CHUNK_ROWS] = {0};
    double *target = ac->target + first;
    q_read_observations(base, batch, true, first, count);
    if (ac->squashed != NULL)
        find_actions(ac, 1, first, count, log_probability);
    else
        blur_target(ac, first, count);
    q_read_actions(base, ac->action.at, ac->action.stride, count);
    find_least_target_value(ac, count, target);
    for (uint32_t i = 0; i < count; i++) {
        const double soft = target[i] - coefficient * (double)log_probability[i];
        const double following = batch->terminated[first + i] != 0 ? 0 : soft;
        target[i] = (double)batch->rewards[first + i] + base->config.q.gamma * following;
    }
}

/* Computes the gradient of SAC's whole actor for the rows last drawn. Their actions have pulls of their own;
 * all log-probabilities have the same one. `adds`: to the gradient that is there, else in its place. */
static void pull_sac_actor(const struct actor_critic *ac, float d_log_probability, bool adds)
{
    float *all = ac->base.arrays.gradient;
    const struct squashed_pulls pulls = {
        .z = ac->outputs_pull, .features = ac->features_pull, .log_std = all, .adds = adds};
    squashed_pull(ac->squashed, &ac->rows, ac->action, ac->action_pull, d_log_probability, &pulls);
    if (has_gsde(ac)) {
        const struct q_network *mean = ac->mean;
        float *gradient = all + mean->offset;
        layers_pull(mean->layers, mean->work, ac->outputs_pull, gradient, adds);
        layers_pull_weight(mean->layers, mean->work, ac->rows.features, 0,
                           (uint32_t)(ac->deviations / ac->base.components), gradient, adds);
        layers_pull_inputs(mean->layers, mean->work, ac->features_pull, true);
    }
    q_network_backward(ac->trunk, &ac->base, has_gsde(ac) ? ac->features_pull : ac->outputs_pull, adds);
}

/* Adds the chunk's part of the actor's loss and gradient, and of the sum of log-probabilities. TD3 sums each
 * chunk's loss by itself. */
static void pull_actor(struct actor_critic *ac, const struct policy_transitions *batch, uint32_t first,
                       uint32_t count, double coefficient, double *loss, double *sum)
{
    const struct q_learning *base = &ac->base;
    float log_probability[POLICY_CHUNK_ROWS];
    double value[POLICY_CHUNK_ROWS], part = ac->squashed != NULL ? *loss : 0;
    q_read_observations(base, batch, false, first, count);
    find_actions(ac, 0, first, count, log_probability);
    q_read_actions(base, ac->action.at, ac->action.stride, count);
    pull_critics(ac, count, -1.0f / (float)batch->count, value);
    for (uint32_t i = 0; i < count; i++) {
        part += (coefficient * (double)log_probability[i] - value[i]) / batch->count;
        *sum += (double)log_probability[i];
    }
    *loss = ac->squashed != NULL ? part : *loss + part;
    if (ac->squashed != NULL)
        pull_sac_actor(ac, (float)(coefficient / batch->count), first > 0);
    else
        q_network_backward(ac->trunk, base, ac->action_pull, first > 0);
}

static enum status check_actor(const struct actor_critic *ac, const struct policy_transitions *batch,
                               struct error *error)
{
    const struct q_learning *base = &ac->base;
    enum status status = q_check_gradient(base, ac->trunk->offset, ac->trunk->count, batch, error);
    if (status == STATUS_OK && has_gsde(ac))
        status = q_check_gradient(base, ac->mean->offset, ac->mean->count, batch, error);
    return status == STATUS_OK && has_gsde(ac) ? q_check_gradient(base, 0, ac->deviations, batch, error)
                                               : status;
}

/* Moves the entropy's weight by the mean log-probability of the actor's draws. */
static void step_coefficient(const struct actor_critic *ac, double mean, double lr,
                             struct policy_q_losses *losses)
{
    const struct policy_arrays *arrays = &ac->base.arrays;
    const double pull = -(mean + ac->base.config.q.target_entropy);
    if (ac->squashed == NULL || !ac->base.config.q.learns_entropy)
        return;
    losses->entropy = (double)arrays->values[ac->log_coefficient] * pull;
    arrays->gradient[ac->log_coefficient] = (float)pull;
    q_step(&ac->base, ac->log_coefficient, 1, lr, arrays->steps, 1);
}

static enum status step_actor(struct actor_critic *ac, const struct policy_transitions *batch,
                              double coefficient, double lr, struct policy_q_losses *losses,
                              struct error *error)
{
    const struct q_learning *base = &ac->base;
    const uint64_t step = base->arrays.steps / ac->actor_steps_interval;
    double sum = 0;
    losses->actor = 0;
    for (uint32_t first = 0, count; first < batch->count; first += count) {
        count = q_chunk(batch, first);
        pull_actor(ac, batch, first, count, coefficient, &losses->actor, &sum);
    }
    const enum status status = isfinite(losses->actor) ? check_actor(ac, batch, error)
                                                       : q_explain_loss(base, batch, losses->actor, error);
    if (status != STATUS_OK)
        return status;
    q_network_step(ac->trunk, base, lr, step, 1);
    if (has_gsde(ac)) {
        q_network_step(ac->mean, base, lr, step, 1);
        q_step(base, 0, ac->deviations, lr, step, 1);
    }
    step_coefficient(ac, sum / batch->count, lr, losses);
    return STATUS_OK;
}

static enum status ac_fit(void *self, const struct policy_transitions *batch, double lr,
                          struct policy_q_losses *losses, struct error *error)
{
    struct actor_critic *ac = self;
    struct q_learning *base = &ac->base;
    const double coefficient = coefficient_of(ac), none = (double)NAN;
    const uint64_t step = ++base->arrays.steps;
    *losses = (struct policy_q_losses){
        .actor = none, .entropy_coefficient = ac->squashed != NULL ? coefficient : none, .entropy = none};
    begin_step(ac);
    for (uint32_t first = 0, count; first < batch->count; first += count) {
        count = q_chunk(batch, first);
        find_targets(ac, batch, first, count, coefficient);
        losses->critic += learn_critics(ac, batch, first, count);
    }
    enum status status = isfinite(losses->critic) ? step_critics(ac, batch, lr, error)
                                                  : q_explain_loss(base, batch, losses->critic, error);
    if (status == STATUS_OK && step % ac->actor_steps_interval == 0)
        status = step_actor(ac, batch, coefficient, lr, losses, error);
    if (status == STATUS_OK && step % ac->follow_interval == 0)
        q_follow(base);
    if (status != STATUS_OK)
        base->arrays.steps--; // a failed step does not count, though the critics may have moved
    return status;
}

const struct policy_kind policy_actor_critic_kind = {.bytes = sizeof(struct actor_critic),
                                                     .takes_chunks = true,
                                                     .open = ac_open,
                                                     .close = ac_close,
                                                     .act = ac_act,
                                                     .explore = q_explore,
                                                     .fit = ac_fit,
                                                     .fits = q_fits,
                                                     .save = policy_arrays_save,
                                                     .restore = q_restore};
