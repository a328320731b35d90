/* The policy's dropout masks, drawn: which hidden units of a row are kept (kernels/policy/mlp.h says from
 * which bits of which Philox block). Private to kernels/policy/mlp*.c and its tests. */
#ifndef KERNELS_POLICY_DROPOUT_MASK_LANES_H
#define KERNELS_POLICY_DROPOUT_MASK_LANES_H

#include "kernels/policy/mlp_batch.h"

#include <stdbool.h>

struct dropout_mask {
    uint32_t words;      /* uint16_t of one row: mlp_mask_words */
    uint32_t draw_bound; /* a 32-bit word with the unit's 16 bits on top is above it: kept */
    uint16_t last_word;  /* the bits of the last word that are units */
    bool draws;          /* false: the dropout is 0, every unit is kept and none drawn */
};

/* Writes the masks of rows [first, first + rows) of the batch. */
typedef void dropout_mask_draw(const struct dropout_mask *mask, const struct mlp_batch *batch, uint32_t first,
                               uint32_t rows, uint64_t seed, uint32_t episode, const uint32_t *environment,
                               const uint32_t *step);

dropout_mask_draw dropout_mask_draw_baseline, dropout_mask_draw_avx2, dropout_mask_draw_avx512;

#endif
