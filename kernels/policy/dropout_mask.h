/* Where the policy's dropout masks are drawn on a CPU. Only mlp_lanes.c includes this, once per instruction
 * set. */
#ifndef KERNELS_POLICY_DROPOUT_MASK_H
#define KERNELS_POLICY_DROPOUT_MASK_H

#include "kernels/lanes/lanes.h"
#include "kernels/policy/mlp_lanes.h"

/* Draws a row's mask, a bit for each hidden unit, 128 units at a time. `key` names the draw (rng.h); without
 * dropout all units are kept. The bits beyond the last unit are 0. */
LANES_INLINE void dropout_mask_draw(const struct mlp_packed *packed, const struct rng_key *key,
                                    uint16_t *words)
{
    const vu bound = lanes_set_u32(packed->draw_bound);
    if (!packed->draws)
        memset(words, 0xff, packed->blocks * sizeof *words);
    for (uint32_t group = 0; packed->draws && group * 8 < packed->blocks; group++) {
        uint32_t bits[8];
        lanes_draw_group(bits, key, group, bound);
        for (uint32_t v = 0; v < 8 && group * 8 + v < packed->blocks; v++)
            words[group * 8 + v] = (uint16_t)bits[v];
    }
    words[packed->blocks - 1] &= packed->last_word;
}

#endif
