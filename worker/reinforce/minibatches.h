/* The minibatches of an epoch of PPO: a permutation of the rollout's rows, cut into pieces.
 *
 * Rows are sorted by (draw, row), where a row's draw is word 0 of block 0 of stream RNG_SHUFFLE at (seed,
 * row, epoch, update): a function of these numbers alone. Row numbers are below rows_max. The last minibatch
 * is smaller where the rows do not divide. Within a minibatch rows ascend, which changes no sum's meaning and
 * reads memory in order. Pure but for memory; one thread. */
#ifndef WORKER_REINFORCE_MINIBATCHES_H
#define WORKER_REINFORCE_MINIBATCHES_H

#include "kernels/base/status.h"

#include <stdint.h>

struct minibatches {
    uint32_t *row; /* (count) permuted: minibatch m is [m * size, m * size + size), or as many as there are */
    uint32_t rows_max;
    uint32_t *piece;        /* (rows_max) each row's minibatch */
    uint64_t *key, *sorted; /* (rows_max) draw and row */
};

/* STATUS_NO_MEMORY. minibatches_close also follows a failure. */
enum status minibatches_open(struct minibatches *minibatches, uint32_t rows_max, struct error *error);
void minibatches_close(struct minibatches *minibatches);

/* Permutes the `count` rows of `order` for epoch `epoch` (from 0) of update `update`, and cuts them. */
void minibatches_draw(struct minibatches *minibatches, const uint32_t *order, uint32_t count, uint32_t size,
                      uint64_t seed, uint32_t update, uint32_t epoch);

#endif
