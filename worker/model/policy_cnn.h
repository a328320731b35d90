/* The CNN of a policy for images, as operations of the tape: that of Mnih et al., "Human-level control
 * through deep reinforcement learning" (Nature 518, 2015).
 *
 *     images (rows, channels, height, width)
 *     -> conv 32 of 8x8, stride 4 -> ReLU -> conv 64 of 4x4, stride 2 -> ReLU -> conv 64 of 3x3 -> ReLU
 *     -> flatten -> linear 512 -> ReLU = the features
 *     features -> linear: logits or means
 *     features -> linear: the value; of the same features where it is shared, else of a second CNN's
 *
 * No padding; every layer has a bias. Parameters have the names of Stable-Baselines3's ActorCriticCnnPolicy,
 * in the order of its named_parameters():
 *
 *     log_std                                (components)         Gaussian only
 *     features_extractor.cnn.0.weight        (32, channels, 8, 8)  … .0.bias (32)
 *     features_extractor.cnn.2.weight        (64, 32, 4, 4)        … .2.bias (64)
 *     features_extractor.cnn.4.weight        (64, 64, 3, 3)        … .4.bias (64)
 *     features_extractor.linear.0.weight     (512, 64 h w)         … .0.bias (512)
 *     vf_features_extractor.…                the same once more; a value network of its own only
 *     action_net.weight                      (outputs, 512)        action_net.bias (outputs)
 *     value_net.weight                       (1, 512)              value_net.bias (1); with values only
 *
 * with (h, w) of the last convolution's output. Stable-Baselines3's state_dict() lists some of these tensors
 * again by another name: pi_features_extractor.* is features_extractor.*, and so is vf_features_extractor.*
 * where the value is shared (share_features_extractor=True, its default). Checkpoints hold each tensor once;
 * load_state_dict takes them with strict=True once these aliases have been added.
 *
 * The smallest image is POLICY_CNN_SIZE_MIN high and wide. The tape's thread. */
#ifndef WORKER_MODEL_POLICY_CNN_H
#define WORKER_MODEL_POLICY_CNN_H

#include "kernels/params/params.h"
#include "kernels/tape/tape.h"
#include "worker/model/policy_config.h"

/* After params_build: gives the parameters the first values of a configuration with values, which are those
 * of kernels/policy/dense_shape.h: log_std_init; weights as `orthogonal` says. STATUS_NO_MEMORY. */
enum status policy_cnn_begin(struct params *params, const struct policy_config *config, struct error *error);

/* Logits or means (rows, outputs); values (rows, 1). */
struct policy_cnn_outputs {
    struct variable *action, *value;
};

enum policy_cnn_wanted { POLICY_CNN_ACTION = 1, POLICY_CNN_VALUE = 2 };

/* Computes the outputs that are `wanted`, a set; the others are NULL. `params` holds the parameters of a
 * POLICY_CNN (policy_register). */
struct policy_cnn_outputs policy_cnn_forward(struct params *params, struct tape *tape,
                                             struct variable *images, unsigned wanted);

#endif
