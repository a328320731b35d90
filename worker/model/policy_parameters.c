/* Lists the parameters of the three networks, and gives each its first values. */
#include "worker/model/policy_parameters.h"

#include "kernels/base/rng.h"
#include "kernels/policy/orthogonal.h"
#include "worker/environment/environment_spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

_Static_assert((int)POLICY_NAME_BYTES >= (int)DENSE_NAME_BYTES, "names of dense layers have room");

/* Of the layer or parameter `name`. */
static double gain_of(const char *name)
{
    if (strncmp(name, "action_net", 10) == 0)
        return 0.01;
    return strncmp(name, "value_net", 9) == 0 ? 1 : sqrt(2);
}

/* The weight and bias of a layer. */
static void list_layer(struct policy_parameter out[2], const char *name, struct shape weight)
{
    const uint32_t outputs = weight.size[0];
    const double bound = 1 / sqrt((double)shape_elements(&weight) / outputs), gain = gain_of(name);
    out[0] = (struct policy_parameter){.shape = weight, .bound = bound, .gain = gain};
    out[1] = (struct policy_parameter){.shape = SHAPE1(outputs), .bound = bound, .gain = gain};
    snprintf(out[0].name, sizeof out[0].name, "%s.weight", name);
    snprintf(out[1].name, sizeof out[1].name, "%s.bias", name);
}

static uint32_t tutorial_list(struct policy_parameter out[POLICY_PARAMETERS_MAX], struct mlp_shape shape)
{
    list_layer(&out[0], "affine1", SHAPE2(shape.hidden, shape.inputs));
    list_layer(&out[2], "affine2", SHAPE2(shape.actions, shape.hidden));
    return 4;
}

static uint32_t dense_list(struct policy_parameter out[DENSE_PARAMETERS_MAX], struct dense_shape shape,
                           double log_std)
{
    struct dense_parameter list[DENSE_PARAMETERS_MAX];
    const uint32_t count = dense_parameters(&shape, list);
    for (uint32_t p = 0; p < count; p++) {
        out[p].shape =
            list[p].rank == 1 ? SHAPE1(list[p].shape[0]) : SHAPE2(list[p].shape[0], list[p].shape[1]);
        out[p] =
            (struct policy_parameter){.shape = out[p].shape,
                                      .bound = list[p].kind == DENSE_LOG_SIGMA ? 0 : 1 / sqrt(list[p].inputs),
                                      .gain = gain_of(list[p].name),
                                      .first = list[p].kind == DENSE_LOG_SIGMA ? log_std : 0};
        memcpy(out[p].name, list[p].name, DENSE_NAME_BYTES);
    }
    return count;
}

/* Height or width behind the three convolutions. */
static uint32_t convolved(uint32_t size)
{
    return ((size - 8) / 4 + 1 - 4) / 2 + 1 - 2;
}

/* The layers that make an image's features. */
static void list_extractor(struct policy_parameter out[POLICY_EXTRACTOR_PARAMETERS], const char *name,
                           const uint32_t image[3], uint32_t features)
{
    static const char *const layers[] = {"cnn.0", "cnn.2", "cnn.4", "linear.0"};
    const struct shape weights[] = {SHAPE4(32, image[2], 8, 8), SHAPE4(64, 32, 4, 4), SHAPE4(64, 64, 3, 3),
                                    SHAPE2(features, 64 * convolved(image[0]) * convolved(image[1]))};
    for (size_t l = 0; l < POLICY_EXTRACTOR_PARAMETERS / 2; l++) {
        char layer[POLICY_LAYER_BYTES];
        snprintf(layer, sizeof layer, "%s.%s", name, layers[l]);
        list_layer(&out[2 * l], layer, weights[l]);
    }
}

/* The extractors `name`: that of the only image, or one for each image among the parts. Returns how many
 * parameters they have. */
static uint32_t list_extractors(struct policy_parameter *out, const char *name,
                                const struct policy_config *config)
{
    uint32_t count = 0;
    if (!policy_joins_parts(config)) {
        list_extractor(out, name, config->observation.shape, POLICY_CNN_FEATURES);
        return POLICY_EXTRACTOR_PARAMETERS;
    }
    for (uint32_t i = 0; i < config->part_count; i++) {
        char extractor[POLICY_LAYER_BYTES];
        if (!environment_part_is_image(&config->parts[i]))
            continue;
        snprintf(extractor, sizeof extractor, "%s.extractors.%s", name, config->parts[i].name);
        list_extractor(&out[count], extractor, config->parts[i].space.shape, POLICY_PART_FEATURES);
        count += POLICY_EXTRACTOR_PARAMETERS;
    }
    return count;
}

/* Of images among other parts the dense layers stand first, as those of a policy without images. */
static uint32_t cnn_list(struct policy_parameter out[POLICY_PARAMETERS_MAX],
                         const struct policy_config *config)
{
    struct policy_parameter dense[DENSE_PARAMETERS_MAX];
    const struct dense_shape shape = policy_dense_shape(config);
    const uint32_t all = dense_list(dense, shape, config->log_std_init);
    const uint32_t before = policy_joins_parts(config) ? all : shape.gaussian;
    uint32_t count = before;
    memcpy(out, dense, before * sizeof *out);
    count += list_extractors(&out[count], "features_extractor", config);
    if (config->has_value && !config->shared_value)
        count += list_extractors(&out[count], "vf_features_extractor", config);
    memcpy(&out[count], dense + before, (all - before) * sizeof *out);
    return count + all - before;
}

/* Returns how many parameters the memory has. */
static uint32_t memory_list(struct policy_parameter out[RECURRENT_PARAMETERS_MAX],
                            const struct policy_config *config, uint32_t memory)
{
    struct recurrent_parameter list[RECURRENT_PARAMETERS_MAX];
    const struct recurrent_shape shape = policy_memory_shape(config, memory);
    const bool linear = shape.cell == RECURRENT_LINEAR;
    const uint32_t count = recurrent_parameters(&shape, list);
    for (uint32_t p = 0; p < count; p++) {
        const uint32_t *size = list[p].shape;
        out[p] =
            (struct policy_parameter){.shape = list[p].rank == 1 ? SHAPE1(size[0]) : SHAPE2(size[0], size[1]),
                                      .bound = 1 / sqrt(linear ? shape.inputs : shape.hidden),
                                      .gain = config->critic == POLICY_CRITIC_SHARED};
        snprintf(out[p].name, sizeof out[p].name, "%s%s.%.*s",
                 linear                          ? ""
                 : config->memory == POLICY_LSTM ? "lstm_"
                                                 : "gru_",
                 memory == 0 ? "actor" : "critic", RECURRENT_NAME_BYTES, list[p].name);
    }
    return count;
}

/* ---- what learns from a replay buffer ---- */

/* A chain of dense layers, whose last one has `outputs`. Returns how many parameters it has. */
static uint32_t list_chain(struct policy_parameter out[POLICY_CHAIN_MAX], const char *name, uint32_t inputs,
                           uint32_t layers, const uint32_t width[], uint32_t outputs)
{
    for (uint32_t l = 0; l <= layers; l++) {
        char layer[POLICY_LAYER_BYTES];
        const uint32_t units = l == layers ? outputs : width[l];
        snprintf(layer, sizeof layer, "%s.%u", name, 2 * l);
        list_layer(&out[2 * (size_t)l], layer, SHAPE2(units, inputs));
        inputs = units;
    }
    return 2 * (layers + 1);
}

/* The targets of `count` parameters, with `name` in the place of their names' first part. */
static uint32_t list_targets(struct policy_parameter *to, const struct policy_parameter *of, uint32_t count,
                             const char *name)
{
    for (uint32_t i = 0; i < count; i++) {
        to[i] = (struct policy_parameter){.shape = of[i].shape, .is_target = true};
        snprintf(to[i].name, sizeof to[i].name, "%s%.*s", name, POLICY_NAME_BYTES - 16,
                 strchr(of[i].name, '.'));
    }
    return count;
}

/* SAC's actor: the means and, without gSDE, the logarithms of the deviations. */
static uint32_t list_sac_actor(struct policy_parameter *out, const struct policy_config *config,
                               uint32_t inputs)
{
    const uint32_t components = policy_components(config), layers = config->layers;
    const uint32_t features = layers > 0 ? config->width[layers - 1] : inputs;
    uint32_t count = 0;
    if (config->state_dependent)
        out[count++] = (struct policy_parameter){
            .name = "actor.log_std", .shape = SHAPE2(features, components), .first = config->log_std_init};
    if (layers > 0)
        count += list_chain(&out[count], "actor.latent_pi", inputs, layers - 1, config->width, features);
    list_layer(&out[count], config->state_dependent ? "actor.mu.0" : "actor.mu",
               SHAPE2(components, features));
    if (config->state_dependent)
        return count + 2;
    list_layer(&out[count + 2], "actor.log_std", SHAPE2(components, features));
    const struct policy_parameter mu_bias = out[count + 1];
    out[count + 1] = out[count + 2]; // both weights are one matrix, and both biases one array
    out[count + 2] = mu_bias;
    return count + 4;
}

static uint32_t list_critics(struct policy_parameter *out, const struct policy_config *config,
                             uint32_t inputs)
{
    const struct policy_q_config *q = &config->q;
    uint32_t count = 0;
    for (uint32_t critic = 0; critic < q->critics; critic++) {
        char name[POLICY_NAME_BYTES / 2];
        snprintf(name, sizeof name, "critic.qf%u", critic);
        count += list_chain(&out[count], name, inputs + policy_components(config), q->critic_layers,
                            q->critic_width, 1);
    }
    return count;
}

static uint32_t dqn_list(struct policy_parameter out[POLICY_PARAMETERS_MAX],
                         const struct policy_config *config)
{
    const bool cnn = policy_form(config) == POLICY_FORM_Q_CNN;
    const uint32_t outputs = config->action.choices[0] + config->q.dueling;
    uint32_t count = 0, inputs = policy_features(config);
    if (cnn)
        count = list_extractors(out, "q_net.features_extractor", config);
    count += list_chain(&out[count], "q_net.q_net", inputs,
                        cnn && !policy_joins_parts(config) ? 0 : config->layers, config->width, outputs);
    return count + list_targets(&out[count], out, count, "q_net_target");
}

static uint32_t q_list(struct policy_parameter out[POLICY_PARAMETERS_MAX], const struct policy_config *config)
{
    const uint32_t inputs = (uint32_t)environment_space_elements(&config->observation);
    uint32_t actor, critics, count;
    if (config->learning == POLICY_DQN)
        return dqn_list(out, config);
    if (config->learning == POLICY_SAC) {
        actor = list_sac_actor(out, config, inputs);
        critics = list_critics(&out[actor], config, inputs);
        count = actor + critics;
        count += list_targets(&out[count], &out[actor], critics, "critic_target");
        if (config->q.learns_entropy)
            out[count++] = (struct policy_parameter){
                .name = "log_ent_coef", .shape = SHAPE1(1), .first = log(config->q.entropy_coefficient)};
        return count;
    }
    actor = list_chain(out, "actor.mu", inputs, config->layers, config->width, policy_components(config));
    critics = list_critics(&out[actor], config, inputs);
    count = actor + critics;
    count += list_targets(&out[count], out, actor, "actor_target");
    return count + list_targets(&out[count], &out[actor], critics, "critic_target");
}

uint32_t policy_parameters(struct policy_parameter out[POLICY_PARAMETERS_MAX],
                           const struct policy_config *config)
{
    const enum policy_form form = policy_form(config);
    uint32_t count = form == POLICY_FORM_TUTORIAL ? tutorial_list(out, policy_mlp_shape(config))
                     : form == POLICY_FORM_CNN    ? cnn_list(out, config)
                     : config->learning != POLICY_ON_ROLLOUTS
                         ? q_list(out, config)
                         : dense_list(out, policy_dense_shape(config), config->log_std_init);
    size_t offset = 0;
    for (uint32_t memory = 0; memory < policy_memories(config); memory++)
        count += memory_list(out + count, config, memory);
    for (uint32_t p = 0; p < count; p++) {
        out[p].offset = offset;
        out[p].count = shape_elements(&out[p].shape);
        offset += out[p].count;
    }
    return count;
}

enum status policy_begin_parameter(float *values, const struct policy_parameter *parameter, uint32_t number,
                                   const struct policy_config *config, struct error *error)
{
    const struct shape *shape = &parameter->shape;
    const bool is_constant = parameter->bound <= 0;
    const bool orthogonal = config->orthogonal && parameter->gain > 0;
    for (size_t e = 0; e < parameter->count; e++)
        values[e] = is_constant  ? (float)parameter->first
                    : orthogonal ? 0
                                 : rng_initial_uniform(config->seed, number, (uint32_t)e, parameter->bound);
    if (is_constant || !orthogonal || shape->rank < 2)
        return STATUS_OK;
    return orthogonal_draw(values, shape->size[0], parameter->count / shape->size[0], parameter->gain,
                           config->seed, number, error);
}
