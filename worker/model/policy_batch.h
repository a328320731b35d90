/* A rollout's rows as tensors on the tape: how the tutorial's policy learns on a GPU.
 *
 * Rows are gathered in the batch's order into host memory that is taken once, and are uploaded as the tape's
 * inputs. Of a row only the observation and the action are uploaded: the masks are drawn again from the rows'
 * keys. A batch is filled up to the next power of two, of at least MLP_CHUNK_ROWS, so that the device need
 * not plan for every number of rows that an episode may have. The filling is rows of zeros with coefficient
 * 0, which add exactly nothing to loss and gradient. A rollout of more than 2^20 rows is uploaded in pieces.
 *
 * One thread at a time. */
#ifndef WORKER_MODEL_POLICY_BATCH_H
#define WORKER_MODEL_POLICY_BATCH_H

#include "kernels/policy/mlp_batch.h"
#include "worker/model/policy.h"
#include "worker/model/policy_network.h"

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
