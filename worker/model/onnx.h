/* A model as an ONNX file (worker/model/onnx_graph.h), from params in host memory that hold its values
 * (kernels/backend.h). Constants have the parameters' names, and a layer's node the layer's.
 *
 * A policy has the input `observations` (batch, shape…), float32 or uint8 as the environment's space says,
 * and the scaling of bytes and the normalizer are part of the graph. Its outputs are float32:
 *
 *     logits (batch, sum of choices)     of choices, component after component; a mask is the caller's to
 * apply mean, std (batch, components)      of a Gaussian; actions are not clipped to the space's bounds value
 * (batch, 1)                   of a policy with values
 *
 * An image classifier has the input `images` (batch, channels, size, size) float32, as the job's data gives
 * them to training, and the output `logits` (batch, classes). Batch norms use the running statistics.
 *
 * Blocks on the disk. One thread. */
#ifndef WORKER_MODEL_ONNX_H
#define WORKER_MODEL_ONNX_H

#include "kernels/base/status.h"
#include "kernels/params/params.h"
#include "worker/job/job.h"
#include "worker/model/policy_config.h"

/* `params`: struct policy_values'. Errors as onnx_graph_new and onnx_graph_write. */
enum status onnx_write_policy(const char *path, const struct policy_config *config, struct params *params,
                              struct error *error);

/* `params`: those that classifier_new has registered. Errors as onnx_graph_new and onnx_graph_write. */
enum status onnx_write_classifier(const char *path, const struct job *job, struct params *params,
                                  struct error *error);

#endif
