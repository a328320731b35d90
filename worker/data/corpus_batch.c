/* Cuts batches out of a corpus, and draws the tutorial's random ones. Pure functions, which a trainer calls
 * at each update. */
#include "kernels/base/rng.h"
#include "worker/data/corpus.h"

#include <assert.h>

enum { DRAW_SHIFT = 22 };

static uint64_t rows_of(const struct corpus_split *part, uint32_t columns)
{
    assert(columns > 0);
    return part->count / columns;
}

uint64_t corpus_batches(const struct corpus_split *part, uint32_t columns, uint32_t steps)
{
    const uint64_t rows = rows_of(part, columns);
    assert(steps > 0);
    return rows < 2 ? 0 : (rows - 2) / steps + 1;
}

uint32_t corpus_batch(const struct corpus_split *part, uint32_t columns, uint32_t first, uint32_t batch,
                      uint32_t steps, uint64_t index, int32_t *tokens, int32_t *targets)
{
    const uint64_t rows = rows_of(part, columns), begin = index * steps, left = rows - 1 - begin;
    const uint32_t taken = left < steps ? (uint32_t)left : steps;
    assert(index < corpus_batches(part, columns, steps) && first <= columns && batch <= columns - first);
    for (uint32_t step = 0; step < taken; step++)
        for (uint32_t i = 0; i < batch; i++) {
            const int32_t *at = part->tokens + (first + i) * rows + begin + step;
            tokens[(size_t)step * batch + i] = at[0];
            targets[(size_t)step * batch + i] = at[1];
        }
    return taken;
}

void corpus_random(uint64_t seed, uint32_t trainer, uint64_t update, enum corpus_draw draw, int32_t *values,
                   size_t count, uint32_t below)
{
    const uint32_t block = (uint32_t)draw << DRAW_SHIFT | (uint32_t)(update >> 32);
    struct rng_key key = {.seed = seed, .step = (uint32_t)update, .episode = trainer};
    uint32_t words[4] = {0};
    assert(update >> CORPUS_UPDATE_BITS_MAX == 0 && (draw == CORPUS_TOKENS || draw == CORPUS_TARGETS));
    for (size_t i = 0; i < count; i++) {
        const size_t at = i % 2 * 2;
        key.environment = (uint32_t)(i / 2);
        if (at == 0)
            rng_block(&key, RNG_DATA, block, words);
        values[i] = (int32_t)rng_below(words[at], words[at + 1], below);
    }
}

void corpus_random_state(uint64_t seed, uint32_t trainer, enum corpus_draw draw, float *values, size_t count)
{
    struct rng_key key = {.seed = seed, .episode = trainer};
    assert(draw == CORPUS_HIDDEN || draw == CORPUS_CELL);
    for (size_t i = 0; i < count; i++) {
        uint32_t words[4];
        key.environment = (uint32_t)i;
        rng_block(&key, RNG_DATA, (uint32_t)draw << DRAW_SHIFT, words);
        values[i] = (float)rng_normal(words, 1);
    }
}
