/* The parameters of a policy's network: their names, their shapes, and their first values. Pure functions;
 * any thread.
 *
 * Names and shapes are those of PyTorch's module of the same network: the tutorial's own module,
 * Stable-Baselines3's ActorCriticPolicy (kernels/policy/dense.h) or, of the CNN, the named_parameters() of
 * ActorCriticCnnPolicy:
 *
 *     log_std                                (components)          Gaussian only
 *     features_extractor.cnn.0.weight        (32, channels, 8, 8)  … .0.bias (32)
 *     features_extractor.cnn.2.weight        (64, 32, 4, 4)        … .2.bias (64)
 *     features_extractor.cnn.4.weight        (64, 64, 3, 3)        … .4.bias (64)
 *     features_extractor.linear.0.weight     (512, 64 h w)         … .0.bias (512)
 *     vf_features_extractor.…                the same once more; a value network of its own only
 *     action_net.weight                      (outputs, 512)        action_net.bias (outputs)
 *     value_net.weight                       (1, 512)              value_net.bias (1); with values only
 *
 * with (h, w) of the last convolution's output. Of images among other parts these are the extractors of
 * MultiInputPolicy; the hidden layers, mlp_extractor.…, and the outputs stand first, as without images:
 *
 *     features_extractor.extractors.NAME.…   as above, with 256 for 512; for each image, NAME its part's
 *     vf_features_extractor.extractors.NAME.…
 *
 * Behind the last one come those of a memory, as in
 * sb3-contrib's RecurrentActorCriticPolicy, with the names of PyTorch's LSTM; a GRU's begin with gru:
 *
 *     lstm_actor.weight_ih_l0                (4 units, features)   … .weight_hh_l0, .bias_ih_l0, .bias_hh_l0
 *     lstm_critic.…                          the same once more; a memory of the value's own only
 *     critic.weight                          (units, features)     critic.bias (units); POLICY_CRITIC_LINEAR
 *
 * The heads' 512 inputs are then the memory's units.
 *
 * What learns from a replay buffer has the names of Stable-Baselines3's DQN, SAC and TD3. A target's stand
 * behind those that it follows, under q_net_target, critic_target and actor_target.
 *
 *     DQN
 *     q_net.q_net.0.weight …                 (width, inputs)       the last one (choices, width); if dueling
 *                                            (1 + choices, width): the state's value, then the advantages
 *     q_net.features_extractor.cnn.0.weight … of the CNN, as above; then q_net.q_net.0.weight (outputs, 512)
 *     SAC
 *     actor.log_std                          (width, components)   with gSDE only
 *     actor.latent_pi.0.weight …             (width, inputs)
 *     actor.mu.weight                        (components, width)   then actor.log_std.weight, actor.mu.bias,
 *                                            actor.log_std.bias; with gSDE actor.mu.0.weight, actor.mu.0.bias
 *     critic.qf0.0.weight …                  (width, inputs + components)   the last one (1, width); qf1, …
 *     log_ent_coef                           (1)                   behind the targets, where it is learned
 *     TD3
 *     actor.mu.0.weight …                    (width, inputs)       the last one (components, width)
 *     critic.qf0.0.weight …                  as of SAC
 *
 * The state_dict() of a CNN lists some tensors again by another name:
 * pi_features_extractor.* is features_extractor.*, and so is vf_features_extractor.* where the value is
 * shared (share_features_extractor=True, its default). A checkpoint holds each tensor once; load_state_dict
 * takes it with strict=True once these aliases have been added. */
#ifndef WORKER_MODEL_POLICY_PARAMETERS_H
#define WORKER_MODEL_POLICY_PARAMETERS_H

#include "kernels/tensor.h"
#include "worker/model/policy_config.h"

enum {
    POLICY_CRITICS_MAX = 8,
    POLICY_EXTRACTOR_PARAMETERS = 8,                /* of the CNN in front of an image's features */
    POLICY_CHAIN_MAX = 2 * (POLICY_LAYERS_MAX + 1), /* parameters of one chain of dense layers */
    POLICY_Q_PARAMETERS_MAX = 2 * (POLICY_CRITICS_MAX + 1) * POLICY_CHAIN_MAX + 4,
    POLICY_PARAMETERS_MAX =
        POLICY_Q_PARAMETERS_MAX + 2 * RECURRENT_PARAMETERS_MAX, /* more than other forms have */
    POLICY_NAME_BYTES = 128,
    POLICY_LAYER_BYTES = POLICY_NAME_BYTES - 8, /* of a layer's name, without ".weight" */
};

struct policy_parameter {
    char name[POLICY_NAME_BYTES]; /* "affine1.weight" */
    struct shape shape;
    double bound; /* begins uniform in ±bound: 1 / sqrt(fan-in), for weight and bias alike, as PyTorch's
                     Linear and Conv2d, or of a memory 1 / sqrt(units), as its LSTM, unless the configuration
                     says otherwise. 0: all of it begins with `first` */
    double first;
    bool is_target; /* follows another parameter, and has no gradient; begins as that one */
    double gain;    /* of a weight that the configuration asks to be orthogonal; a bias then is 0. 0: this
                       parameter is uniform even then */
    size_t offset, count; /* floats: where it begins in a flat array of all of them, and how many it has */
};

/* All of them, in the order in which a flat array has them. Returns how many there are. */
uint32_t policy_parameters(struct policy_parameter out[POLICY_PARAMETERS_MAX],
                           const struct policy_config *config);

/* Gives parameter number `number` of the list its first values, with the same bits on every machine: one that
 * has a `first`, or is a target, that number; a weight with a gain, if config->orthogonal, orthogonal_draw's
 * (kernels/policy/orthogonal.h) by its gain and number, and a bias then 0; else element e is
 * rng_initial_uniform(seed, number, e, bound). STATUS_NO_MEMORY. */
enum status policy_begin_parameter(float *values, const struct policy_parameter *parameter, uint32_t number,
                                   const struct policy_config *config, struct error *error);

#endif
