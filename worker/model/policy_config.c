/* From spaces to shapes. */
#include "worker/model/policy_config.h"

#include "worker/environment/environment_spec.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

uint32_t policy_components(const struct policy_config *config)
{
    return (uint32_t)environment_space_elements(&config->action);
}

enum policy_device policy_device(const struct policy_config *config)
{
    static const enum policy_device devices[] = {[POLICY_FORM_TUTORIAL] = POLICY_ON_EITHER,
                                                 [POLICY_FORM_DENSE] = POLICY_ON_CPU,
                                                 [POLICY_FORM_CNN] = POLICY_ON_BACKEND,
                                                 [POLICY_FORM_Q] = POLICY_ON_CPU,
                                                 [POLICY_FORM_Q_CNN] = POLICY_ON_BACKEND};
    return devices[policy_form(config)];
}

enum policy_form policy_form(const struct policy_config *config)
{
    const struct environment_space *seen = &config->observation, *action = &config->action;
    if (config->learning != POLICY_ON_ROLLOUTS)
        return config->network == POLICY_CNN && config->learning == POLICY_DQN ? POLICY_FORM_Q_CNN
                                                                               : POLICY_FORM_Q;
    if (config->network == POLICY_CNN)
        return POLICY_FORM_CNN;
    const bool vector = seen->dtype == ENVIRONMENT_F32 && seen->rank <= 1 &&
                        environment_space_elements(seen) <= MLP_INPUTS_MAX;
    const bool choice = action->choices != NULL && policy_components(config) == 1 &&
                        action->choices[0] <= MLP_ACTIONS_MAX && !config->has_mask;
    const bool layer = config->layers == 1 && config->activation == POLICY_RELU;
    return vector && choice && layer && !config->has_value ? POLICY_FORM_TUTORIAL : POLICY_FORM_DENSE;
}

struct mlp_shape policy_mlp_shape(const struct policy_config *config)
{
    return (struct mlp_shape){.inputs = (uint32_t)environment_space_elements(&config->observation),
                              .hidden = config->width[0],
                              .actions = config->action.choices[0]};
}

uint32_t policy_part_features(const struct environment_part *part)
{
    return environment_part_is_image(part) ? POLICY_PART_FEATURES
                                           : (uint32_t)environment_space_elements(&part->space);
}

uint32_t policy_features(const struct policy_config *config)
{
    uint32_t features = 0;
    for (uint32_t i = 0; policy_joins_parts(config) && i < config->part_count; i++)
        features += policy_part_features(&config->parts[i]);
    if (features > 0)
        return features;
    return config->network == POLICY_CNN ? (uint32_t)POLICY_CNN_FEATURES
                                         : (uint32_t)environment_space_elements(&config->observation);
}

uint32_t policy_normalized(const struct policy_config *config)
{
    return (uint32_t)(policy_joins_parts(config)
                          ? environment_part_floats(config->parts, config->part_count, NULL, NULL)
                          : environment_space_elements(&config->observation));
}

struct dense_shape policy_dense_shape(const struct policy_config *config)
{
    const bool remembers = config->memory != POLICY_NO_MEMORY;
    const bool alone = policy_form(config) == POLICY_FORM_CNN && !policy_joins_parts(config);
    struct dense_shape shape = {
        .inputs = remembers ? config->memory_units : policy_features(config),
        .pulls_inputs = remembers,
        .layers = alone ? 0 : config->layers,
        .value_layers = alone ? 0 : config->value_layers,
        .activation = config->activation == POLICY_TANH ? DENSE_TANH : DENSE_RELU,
        .value = config->has_value,
        .shared = config->shared_value &&
                  (remembers ? config->critic == POLICY_CRITIC_SHARED : !policy_joins_parts(config)),
        .gaussian = config->action.choices == NULL,
        .state_dependent = config->state_dependent,
        .components = policy_components(config)};
    for (uint32_t l = 0; l < shape.layers; l++)
        shape.width[l] = config->width[l];
    for (uint32_t l = 0; l < shape.value_layers; l++)
        shape.value_width[l] = config->value_width[l];
    for (uint32_t c = 0; !shape.gaussian && c < shape.components; c++)
        shape.choices[c] = config->action.choices[c];
    return shape;
}

uint32_t policy_memories(const struct policy_config *config)
{
    if (config->memory == POLICY_NO_MEMORY)
        return 0;
    return config->critic == POLICY_CRITIC_OWN || config->critic == POLICY_CRITIC_LINEAR ? 2 : 1;
}

struct recurrent_shape policy_memory_shape(const struct policy_config *config, uint32_t memory)
{
    const bool linear = memory == 1 && config->critic == POLICY_CRITIC_LINEAR;
    return (struct recurrent_shape){.cell = linear                          ? RECURRENT_LINEAR
                                            : config->memory == POLICY_LSTM ? RECURRENT_LSTM
                                                                            : RECURRENT_GRU,
                                    .inputs = policy_features(config),
                                    .hidden = config->memory_units,
                                    .layers = linear ? 1 : config->memory_layers};
}

size_t policy_config_state_floats(const struct policy_config *config)
{
    size_t floats = config->q.noise == POLICY_ORNSTEIN_UHLENBECK ? policy_components(config) : 0;
    for (uint32_t memory = 0; memory < policy_memories(config); memory++) {
        const struct recurrent_shape shape = policy_memory_shape(config, memory);
        floats += recurrent_state_floats(&shape);
    }
    return floats;
}

/* ---- checks ---- */

static enum status check_components(const struct policy_config *config, struct error *error)
{
    const uint32_t components = policy_components(config);
    if (components > DENSE_COMPONENTS_MAX)
        return error_set(error, STATUS_INVALID,
                         "the environment's action has %u components: expected at most %d", components,
                         DENSE_COMPONENTS_MAX);
    const struct dense_shape shape = policy_dense_shape(config);
    const uint32_t outputs = dense_outputs(&shape);
    if (outputs > DENSE_OUTPUTS_MAX)
        return error_set(error, STATUS_INVALID,
                         "the environment's action has %u choices in all: expected at most %d", outputs,
                         DENSE_OUTPUTS_MAX);
    return STATUS_OK;
}

static enum status check_widths(const char *key, uint32_t layers, const uint32_t width[], struct error *error)
{
    for (uint32_t l = 0; l < layers; l++)
        if (width[l] < 1 || width[l] > DENSE_WIDTH_MAX)
            return error_set(error, STATUS_INVALID, "%s: expected 1..%d units in a hidden layer, got %u", key,
                             DENSE_WIDTH_MAX, width[l]);
    return STATUS_OK;
}

static enum status check_layers(const struct policy_config *config, struct error *error)
{
    const size_t bytes = config->layers * sizeof config->width[0];
    enum status status = check_widths("/policy/hidden", config->layers, config->width, error);
    if (status == STATUS_OK && config->has_value)
        status = check_widths("/policy/hidden", config->value_layers, config->value_width, error);
    if (status != STATUS_OK || !config->has_value)
        return status;
    if (policy_dense_shape(config).shared &&
        (config->value_layers != config->layers || memcmp(config->value_width, config->width, bytes) != 0))
        return error_set(error, STATUS_INVALID,
                         "/policy/hidden: expected the same layers in \"pi\" and \"vf\": with a "
                         "value_network of \"shared\" policy and value have one list");
    return STATUS_OK;
}

static enum status check_dense(const struct policy_config *config, struct error *error)
{
    const size_t inputs = environment_space_elements(&config->observation);
    if (inputs > DENSE_INPUTS_MAX)
        return error_set(error, STATUS_INVALID,
                         "the environment's observation has %zu elements: expected at most %d", inputs,
                         DENSE_INPUTS_MAX);
    if (config->state_dependent && config->action.choices != NULL)
        return error_set(error, STATUS_INVALID,
                         "/algorithm/use_sde: expected false: the environment's action is a choice");
    if (config->state_dependent && config->layers == 0)
        return error_set(error, STATUS_INVALID,
                         "/algorithm/use_sde: expected false: /policy/hidden has no layer, whose units the "
                         "deviations would depend on");
    if (config->dropout > 0)
        return error_set(error, STATUS_INVALID,
                         "/policy/dropout: expected 0, got %g: only a policy of one hidden layer with ReLU "
                         "has dropout, over a float32 vector of at most %d elements and one choice of at "
                         "most %d, without a mask",
                         config->dropout, MLP_INPUTS_MAX, MLP_ACTIONS_MAX);
    return check_layers(config, error);
}

static enum status check_image(const struct environment_space *image, struct error *error)
{
    if (image->rank != 3)
        return error_set(error, STATUS_INVALID,
                         "/policy/network: expected \"mlp\": \"cnn\" reads images of height, width and "
                         "channels, and the environment's observation has rank %u",
                         image->rank);
    if (image->shape[0] < POLICY_CNN_SIZE_MIN || image->shape[1] < POLICY_CNN_SIZE_MIN)
        return error_set(
            error, STATUS_INVALID,
            "/policy/network: expected \"mlp\": \"cnn\" reads images of at least %dx%d, and the "
            "environment's are %ux%u, of %u channels; channels stand last, and /environment/frames "
            "joins frames as channels",
            POLICY_CNN_SIZE_MIN, POLICY_CNN_SIZE_MIN, image->shape[0], image->shape[1], image->shape[2]);
    return STATUS_OK;
}

/* Of an image among parts: it is read by a CNN, or not at all. */
static enum status check_part(const struct policy_config *config, const struct environment_part *part,
                              struct error *error)
{
    const uint32_t *shape = part->space.shape;
    if (config->learning == POLICY_SAC || config->learning == POLICY_TD3)
        return error_set(
            error, STATUS_INVALID,
            "/algorithm/name: \"sac\" and \"td3\" read no images, and the observation's part %s is "
            "one: expected \"ppo\", \"a2c\" or \"dqn\"",
            part->name);
    if (shape[0] < POLICY_CNN_SIZE_MIN || shape[1] < POLICY_CNN_SIZE_MIN)
        return error_set(
            error, STATUS_INVALID,
            "the observation's part %s is an image of %ux%u, of %u channels; channels stand last: "
            "expected at least %dx%d",
            part->name, shape[0], shape[1], shape[2], POLICY_CNN_SIZE_MIN, POLICY_CNN_SIZE_MIN);
    if (config->network != POLICY_CNN)
        return error_set(
            error, STATUS_INVALID,
            "/policy/network: expected \"cnn\", got \"mlp\": the observation's part %s is an image "
            "among other parts",
            part->name);
    return STATUS_OK;
}

static enum status check_parts(const struct policy_config *config, struct error *error)
{
    uint32_t images = 0;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < config->part_count && status == STATUS_OK; i++)
        if (environment_part_is_image(&config->parts[i])) {
            status = check_part(config, &config->parts[i], error);
            images++;
        }
    if (status != STATUS_OK || !policy_joins_parts(config))
        return status;
    if (images == 0)
        return error_set(
            error, STATUS_INVALID,
            "/policy/network: expected \"mlp\": the environment's observation has no image among its "
            "parts, which \"cnn\" would read");
    if (images > POLICY_IMAGES_MAX)
        return error_set(error, STATUS_INVALID,
                         "the environment's observation has %u images among its parts: expected at most %d",
                         images, POLICY_IMAGES_MAX);
    if (policy_features(config) > POLICY_JOINED_MAX)
        return error_set(
            error, STATUS_INVALID,
            "the parts of the environment's observation make %u features, %d of each image: expected "
            "at most %d",
            policy_features(config), POLICY_PART_FEATURES, POLICY_JOINED_MAX);
    return STATUS_OK;
}

static enum status check_cnn(const struct policy_config *config, struct error *error)
{
    const enum status status =
        policy_joins_parts(config) ? check_layers(config, error) : check_image(&config->observation, error);
    if (status != STATUS_OK)
        return status;
    if (config->dropout > 0)
        return error_set(error, STATUS_INVALID,
                         "/policy/dropout: expected 0, got %g: the network \"cnn\" has no dropout",
                         config->dropout);
    if (config->state_dependent)
        return error_set(error, STATUS_INVALID,
                         "/algorithm/use_sde: expected false: the network \"cnn\" does not explore by its "
                         "state");
    if (config->memory != POLICY_NO_MEMORY && config->critic == POLICY_CRITIC_DETACHED &&
        !config->shared_value)
        return error_set(error, STATUS_INVALID,
                         "/policy/shared_lstm: expected false: with a value_network of \"separate\" policy "
                         "and value have two CNNs, and cannot read one memory");
    return adam_check(&config->adam, error);
}

static enum status check_choice(const struct policy_config *config, struct error *error)
{
    if (config->action.choices == NULL || policy_components(config) != 1)
        return error_set(error, STATUS_INVALID,
                         "/algorithm/name: \"dqn\" has a value for each of one action's choices, and the "
                         "environment's action is %s: expected \"sac\", \"td3\", \"ppo\" or \"a2c\"",
                         config->action.choices == NULL ? "floats" : "several choices");
    return STATUS_OK;
}

static enum status check_bounded(const struct policy_config *config, struct error *error)
{
    if (config->action.choices != NULL)
        return error_set(
            error, STATUS_INVALID,
            "/algorithm/name: \"sac\" and \"td3\" act by floats, and the environment's action is a "
            "choice: expected \"dqn\", \"ppo\" or \"a2c\"");
    for (uint32_t c = 0; c < policy_components(config); c++)
        if (!isfinite(config->action.low[c]) || !isfinite(config->action.high[c]))
            return error_set(
                error, STATUS_INVALID,
                "number %u of the environment's action lies in %g..%g: \"sac\" and \"td3\" expect "
                "finite bounds",
                c, config->action.low[c], config->action.high[c]);
    return STATUS_OK;
}

/* Of a policy that learns from a replay buffer. */
static enum status check_q(const struct policy_config *config, struct error *error)
{
    enum status status =
        config->learning == POLICY_DQN ? check_choice(config, error) : check_bounded(config, error);
    if (status == STATUS_OK && config->network == POLICY_CNN)
        return config->learning == POLICY_DQN
                   ? check_cnn(config, error)
                   : error_set(error, STATUS_INVALID,
                               "/policy/network: expected \"mlp\": \"sac\" and \"td3\" have no CNN");
    if (status == STATUS_OK)
        status = check_dense(config, error);
    if (status == STATUS_OK && config->learning != POLICY_DQN)
        status = check_widths("/policy/hidden", config->q.critic_layers, config->q.critic_width, error);
    return status == STATUS_OK ? adam_check(&config->adam, error) : status;
}

static enum status check_normalizer(const struct policy_config *config, struct error *error)
{
    if (config->normalizes && config->observation.dtype == ENVIRONMENT_U8 &&
        !(policy_joins_parts(config) && policy_normalized(config) > 0))
        return error_set(
            error, STATUS_INVALID,
            "/normalize/norm_obs: expected false: the environment's observations are bytes, which "
            "are scaled by 1/255");
    return STATUS_OK;
}

enum status policy_check(const struct policy_config *config, struct error *error)
{
    enum status status = check_components(config, error);
    if (status == STATUS_OK)
        status = check_parts(config, error);
    if (status == STATUS_OK)
        status = check_normalizer(config, error);
    if (status != STATUS_OK)
        return status;
    if (config->learning != POLICY_ON_ROLLOUTS)
        return check_q(config, error);
    if (policy_form(config) == POLICY_FORM_CNN)
        return check_cnn(config, error);
    return policy_form(config) == POLICY_FORM_DENSE ? check_dense(config, error)
                                                    : check_layers(config, error);
}
