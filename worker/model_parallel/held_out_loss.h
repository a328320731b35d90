/* One pass of a model over the held-out lines of a text. The lead of a running job and `coalesced evaluate`
 * share it, so their losses are equal bit for bit. */
#ifndef WORKER_MODEL_PARALLEL_HELD_OUT_LOSS_H
#define WORKER_MODEL_PARALLEL_HELD_OUT_LOSS_H

#include "worker/model_parallel/parallel_data.h"

/* One batch of a training or an evaluation. */
struct parallel_batch {
    uint32_t steps, columns;
    const int32_t *tokens, *targets;
    const float *h, *c;   /* (layers, columns, hidden): the state before */
    float *h_out, *c_out; /* the state after; may be the same memory */
};

/* Computes one batch without learning: its mean loss, and the state. */
typedef enum status held_out_forward(void *context, const struct parallel_batch *batch, double *loss,
                                     struct error *error);

/* *loss: the mean over all `*count` targets. The state begins at zero and is carried from batch to batch.
 * Allocates memory for the call. */
enum status held_out_loss(const struct parallel_data *data, held_out_forward *forward, void *context,
                          double *loss, uint64_t *count, struct error *error);

#endif
