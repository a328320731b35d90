/* Writes a model as an ONNX file, from params in host memory (kernels/backend.h). A layer's node has
 * the layer's name, and a constant the parameter's.
 *
 * A policy has the input `observations` (batch, shape…), float32 or uint8 as the environment's space says.
 * The graph scales bytes and normalizes. An observation of several parts (environment.h) has an input for
 * each, `observations.NAME`. The outputs are float32:
 *
 *     logits (batch, sum of choices)   of choices, component after component; the caller applies a mask
 *     mean, std (batch, components)    of a Gaussian; actions are not clipped to the space's bounds
 *     value (batch, 1)                 of a policy with values
 *     values (batch, choices)          of dqn: what each choice is worth; the caller takes the greatest
 *     action (batch, components)       of sac and td3: the one without exploration, within the space's bounds
 *
 * A policy with memory computes one step. Its state is an input, and the state behind the step an output; the
 * caller gives zeros where an episode begins, and then each output as the next step's input:
 *
 *     h, c              -> h_out, c_out              of the policy's memory
 *     value_h, value_c  -> value_h_out, value_c_out  of the value's own memory (POLICY_CRITIC_OWN)
 *
 * all (layers, batch, units) float32, as PyTorch's nn.LSTM and nn.GRU have them; c and value_c of an LSTM
 * alone. The constants are PyTorch's: the graph puts their gates into ONNX's order.
 *
 * An image classifier has the input `images` (batch, channels, size, size) float32, as the job's data gives
 * them to training, and the output `logits` (batch, classes). Batch norms use the running statistics.
 *
 * Both functions replace an older file, and block on the disk. STATUS_NO_MEMORY; STATUS_INVALID: the model is
 * larger than the 2 GiB of a file of protobuf; others by errno name the file, which may be there, cut short.
 * One thread. */
#ifndef WORKER_MODEL_ONNX_H
#define WORKER_MODEL_ONNX_H

#include "kernels/base/status.h"
#include "kernels/params/params.h"
#include "worker/job/job.h"
#include "worker/model/policy_config.h"

/* `params`: struct policy_values'. */
enum status onnx_write_policy(const char *path, const struct policy_config *config, struct params *params,
                              struct error *error);

/* `params`: those that classifier_new has registered. */
enum status onnx_write_classifier(const char *path, const struct job *job, struct params *params,
                                  struct error *error);

#endif
