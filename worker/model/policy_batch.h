/* A rollout's rows as tensors on the tape: how the policy learns where the host cannot reach into the device.
 *
 * Rows are gathered in the batch's order into host memory that is taken once, and go up as the tape's inputs.
 * Nothing of what acting left behind is needed but observations and actions: masks are drawn again from the
 * rows' keys. To keep the device from planning for every number of rows that an episode may have, a batch is
 * filled up to the next power of two, of at least MLP_CHUNK_ROWS, with rows of zeros whose coefficient is 0:
 * they add exactly nothing to loss and gradient. A very large rollout goes up in pieces.
 *
 * One thread at a time. */
#ifndef WORKER_MODEL_POLICY_BATCH_H
#define WORKER_MODEL_POLICY_BATCH_H

#include "worker/model/policy.h"

struct policy_batch;

/* For rollouts of config->rows_max rows at the most. STATUS_NO_MEMORY. */
enum status policy_batch_new(struct policy_batch **out, const struct policy_config *config,
                             struct error *error);
void policy_batch_free(struct policy_batch *rows);

/* Records L = sum_i -coefficient[i] * log P(action of row i), over all of the rollout's rows. Errors stick in
 * the tape. */
struct variable *policy_batch_loss(struct policy_batch *rows, const struct policy_network *network,
                                   struct tape *tape, const struct mlp_batch *batch, const float *coefficient,
                                   uint32_t episode);

#endif
