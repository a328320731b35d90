/* The language model's layers as objects that other workers create and call (worker/reference/rref.h,
 * worker/autograd/dist.h): classes "embedding", "lstm" and "decoder". A call's numbers are (trainer,
 * iteration); the function's number is 0. */
#ifndef WORKER_PARALLEL_LAYER_OBJECT_H
#define WORKER_PARALLEL_LAYER_OBJECT_H

#include "worker/parallel/layer.h"

/* Rows for a worker's table of classes. The constructors' context is the worker's struct parallel. */
extern const struct rref_class layer_classes[JOB_LAYERS];

/* The arguments for rpc_remote that make a layer of these settings; `numbers` must stay until it has
 * returned. */
enum { LAYER_ARGUMENTS = 8 };
struct rpc_message layer_arguments(const struct layer_settings *settings, uint64_t numbers[LAYER_ARGUMENTS]);

#endif
