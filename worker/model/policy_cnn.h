/* The CNN of a policy for images, as operations of the tape: that of Mnih et al., "Human-level control
 * through deep reinforcement learning" (Nature 518, 2015).
 *
 *     images (rows, channels, height, width)
 *     -> conv 32 of 8x8, stride 4 -> ReLU -> conv 64 of 4x4, stride 2 -> ReLU -> conv 64 of 3x3 -> ReLU
 *     -> flatten -> linear 512 -> ReLU -> linear: logits or means
 *
 * No padding; every layer has a bias. Parameters have the names of Stable-Baselines3's ActorCriticPolicy with
 * its NatureCNN:
 *
 *     log_std                                (components)         Gaussian only
 *     features_extractor.cnn.0.weight        (32, channels, 8, 8)  … .0.bias (32)
 *     features_extractor.cnn.2.weight        (64, 32, 4, 4)        … .2.bias (64)
 *     features_extractor.cnn.4.weight        (64, 64, 3, 3)        … .4.bias (64)
 *     features_extractor.linear.0.weight     (512, 64 h w)         … .0.bias (512)
 *     action_net.weight                      (outputs, 512)        action_net.bias (outputs)
 *
 * with (h, w) of the last convolution's output. Its smallest image is POLICY_CNN_SIZE_MIN high and wide. The
 * tape's thread; policy_cnn_parameters is pure. */
#ifndef WORKER_MODEL_POLICY_CNN_H
#define WORKER_MODEL_POLICY_CNN_H

#include "kernels/params/params.h"
#include "kernels/tape/tape.h"
#include "worker/model/policy_parameters.h"

/* Registers the parameters of a POLICY_CNN, by policy_parameters, with their first values; before
 * params_build. STATUS_INVALID: a weight has too many elements; STATUS_NO_MEMORY. */
enum status policy_cnn_register(struct params *params, const struct policy_config *config,
                                struct error *error);

/* images -> logits or means (rows, outputs); `params` holds what policy_cnn_register registered. */
struct variable *policy_cnn_forward(struct params *params, struct tape *tape, struct variable *images);

#endif
