/* Where the policy's dropout masks are drawn on a CPU. Only mlp_lanes.c includes this, once per instruction
 * set. */
#ifndef KERNELS_POLICY_DROPOUT_MASK_H
#define KERNELS_POLICY_DROPOUT_MASK_H

#include "kernels/lanes/lanes.h"

/* Draws a row's mask of `blocks` words, 16 hidden units to a word, 128 units at a time. `key` names the draw
 * (rng.h), `bound` is lanes_draw_group's. Without `draws` all units are kept. `last_word`: the bits of the
 * last word that are units. */
LANES_INLINE void dropout_mask_draw(uint16_t *words, uint32_t blocks, const struct rng_key *key, bool draws,
                                    uint32_t bound, uint16_t last_word)
{
    const vu bounds = lanes_set_u32(bound);
    if (!draws)
        memset(words, 0xff, blocks * sizeof *words);
    for (uint32_t group = 0; draws && group * 8 < blocks; group++) {
        uint32_t bits[8];
        lanes_draw_group(bits, key, group, bounds);
        for (uint32_t v = 0; v < 8 && group * 8 + v < blocks; v++)
            words[group * 8 + v] = (uint16_t)bits[v];
    }
    words[blocks - 1] &= last_word;
}

#endif
