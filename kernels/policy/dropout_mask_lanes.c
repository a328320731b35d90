/* Draws the policy's dropout masks, 128 units at a time; compiled once per instruction set. */
#include "kernels/policy/dropout_mask_lanes.h"

#include "kernels/lanes/lanes.h"

LANES_INLINE void draw_row(const struct dropout_mask *mask, const struct rng_key *key, uint16_t *words)
{
    const vu bound = lanes_set_u32(mask->draw_bound);
    for (uint32_t group = 0; group * 8 < mask->words; group++) {
        uint32_t bits[8];
        lanes_draw_group(bits, key, group, bound);
        for (uint32_t v = 0; v < 8 && group * 8 + v < mask->words; v++)
            words[group * 8 + v] = (uint16_t)bits[v];
    }
    words[mask->words - 1] &= mask->last_word;
}

void LANES_NAME(dropout_mask_draw)(const struct dropout_mask *mask, const struct mlp_batch *batch,
                                   uint32_t first, uint32_t rows, uint64_t seed, uint32_t episode,
                                   const uint32_t *environment, const uint32_t *step)
{
    for (uint32_t i = first; i < first + rows; i++) {
        const struct rng_key key = {seed, environment[i], step[i], episode};
        uint16_t *words = batch->masks + (size_t)batch->row[i] * mask->words;
        if (mask->draws) {
            draw_row(mask, &key, words);
            continue;
        }
        memset(words, 0xff, mask->words * sizeof *words);
        words[mask->words - 1] = mask->last_word;
    }
}
