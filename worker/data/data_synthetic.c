/* Random images and labels, in a trainer's loader thread. A pair of normal draws to each block makes them
 * cheap enough to run beside the math: see the loader's test for what they are. */
#include "worker/data/data_synthetic.h"

#include "kernels/base/rng.h"
#include "worker/data/reader.h"

#include <assert.h>

enum { STEP_BITS_MAX = 55 };

void data_synthetic_images(float *images, size_t count, uint64_t seed, uint64_t step, uint32_t trainer)
{
    assert(step >> STEP_BITS_MAX == 0 && count / 2 <= UINT32_MAX);
    struct rng_key key = {.seed = seed, .step = (uint32_t)step, .episode = trainer};
    for (size_t i = 0; i < count; i += 2) {
        uint32_t words[4];
        double pair[2];
        key.environment = (uint32_t)(i / 2);
        rng_block(&key, RNG_DATA, (uint32_t)(step >> 32), words);
        rng_normal_pair(words, pair);
        images[i] = (float)pair[0];
        if (i + 1 < count)
            images[i + 1] = (float)pair[1];
    }
}

void data_synthetic_labels(int32_t *labels, uint32_t count, uint64_t seed, uint32_t trainer, uint32_t classes)
{
    struct rng_key key = {.seed = seed, .episode = trainer};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t words[4];
        key.environment = i;
        rng_block(&key, RNG_DATA, RNG_BLOCK_MAX, words);
        labels[i] = (int32_t)rng_below(words[0], words[1], classes);
    }
}

/* ---- as a reader: there is nothing to read ---- */

static enum status probe(uint64_t counts[READER_SPLITS], const struct job *job, struct error *error)
{
    (void)job;
    (void)error;
    counts[DATASET_TRAIN] = counts[DATASET_EVALUATION] = 0;
    return STATUS_OK;
}

static enum status open_split(void **state, uint64_t *count, const struct job *job, enum dataset_split split,
                              struct error *error)
{
    (void)job;
    if (split == DATASET_EVALUATION)
        return error_set(error, STATUS_INVALID, "/data/kind: synthetic data has nothing to evaluate on");
    *state = NULL;
    *count = 0;
    return STATUS_OK;
}

static void close_split(void *state)
{
    (void)state;
}

const struct data_reader data_synthetic = {.probe = probe, .open = open_split, .close = close_split};
