/* The tutorial's policy as operations of the tape, and a rollout's rows as its inputs: how this policy learns
 * on a GPU.
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

#include "kernels/params/params.h"
#include "kernels/tape/tape.h"
#include "worker/model/policy_config.h"

/* observations (rows, inputs) -> log-probabilities (rows, actions). `params` holds the network's four
 * parameters (policy_register). `rows` (rows, 3) int32 holds each row's (environment, step, episode), which
 * key its dropout together with the seed. On a tape that does not record, nothing is dropped. */
struct variable *policy_batch_forward(struct params *params, struct tape *tape, struct variable *observations,
                                      struct variable *rows, double dropout, uint64_t seed);

struct policy_batch;

/* For rollouts of config->rows_max rows at the most. STATUS_NO_MEMORY. */
enum status policy_batch_new(struct policy_batch **out, const struct policy_config *config,
                             struct error *error);
void policy_batch_free(struct policy_batch *rows);

/* Records L = sum_i -coefficient[i] * log P(action of row i), over all of the rollout's rows. Errors stick in
 * the tape. */
struct variable *policy_batch_loss(struct policy_batch *rows, struct params *params, struct tape *tape,
                                   const struct mlp_batch *batch, const float *coefficient, uint32_t episode);

#endif
