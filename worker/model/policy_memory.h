/* One memory of a policy on the CPU: recurrent layers (kernels/policy/recurrent.h) between the observations
 * and the dense layers.
 *
 *     memory     the recurrent layers of the policy's network, or of the value's
 *     state      what a memory holds for one environment between two steps
 *     features   the output of a memory for a row, which the dense layers read
 *     sequence   rows of a minibatch that follow each other in one environment
 *
 * A row's features depend on the parameters, on the rows of its sequence up to it, and on the state before
 * them: so learning finds what acting found, to the last bit. One thread at a time uses a memory. Only
 * policy_memory_new allocates. */
#ifndef WORKER_MODEL_POLICY_MEMORY_H
#define WORKER_MODEL_POLICY_MEMORY_H

#include "worker/model/policy.h"

struct policy_memory;

/* Memory number `memory` of the configuration (policy_memories). STATUS_NO_MEMORY; errors as
 * recurrent_new. policy_memory_free also follows a failure; NULL is allowed. */
enum status policy_memory_new(struct policy_memory **out, const struct policy_config *config, uint32_t memory,
                              struct error *error);
void policy_memory_free(struct policy_memory *memory);

/* Computes with parameter number `number` of this memory's own `parameters` from now on, as
 * recurrent_load_parameter has it. */
void policy_memory_load_parameter(struct policy_memory *memory, const float *parameters, uint32_t number);

/* The features (rows, units) of at most POLICY_CHUNK_ROWS rows, each a step of another environment; valid
 * until the next call. `batch`: the same rows, with what the memory reads. `keeps`: writes the states after
 * the rows. */
struct dense_matrix policy_memory_step(struct policy_memory *memory, const struct policy_rows *rows,
                                       const struct dense_batch *batch, bool keeps);

/* ---- a minibatch ----
 *
 * begin, then forward again and again until it returns false; the features are there. Then the caller writes
 * the pulls, and calls backward likewise. Each call computes about POLICY_MEMORY_PRODUCTS multiplications, or
 * one step, so that the caller is not away for long. How a minibatch is cut depends on the shapes alone. */

#define POLICY_MEMORY_PRODUCTS (1 << 30)

/* Takes the rows of a minibatch, which ascend. A sequence goes on where the row before is in the minibatch
 * too, and else begins with the state that rows->states has. */
void policy_memory_begin(struct policy_memory *memory, const struct policy_rows *rows,
                         const struct dense_batch *batch);
bool policy_memory_forward(struct policy_memory *memory);

/* (rows, units), and where dL/d features is written, with the same stride. */
struct dense_matrix policy_memory_features(const struct policy_memory *memory);
struct dense_matrix policy_memory_pulls(const struct policy_memory *memory);

/* Writes dL/d of the memory's parameters into `gradient`. */
bool policy_memory_backward(struct policy_memory *memory, float *gradient);

#endif
