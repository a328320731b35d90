/* Sorting by draws. */
#include "worker/reinforce/minibatches.h"

#include "kernels/base/rng.h"

#include <stdlib.h>

enum status minibatches_open(struct minibatches *m, uint32_t rows_max, struct error *error)
{
    m->row = calloc(rows_max, sizeof *m->row);
    m->key = calloc(rows_max, sizeof *m->key);
    if (m->row == NULL || m->key == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the order of %u rows", rows_max);
    return STATUS_OK;
}

void minibatches_close(struct minibatches *m)
{
    free(m->row);
    free(m->key);
    *m = (struct minibatches){0};
}

static int compare_keys(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static int compare_rows(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

void minibatches_draw(struct minibatches *m, const uint32_t *order, uint32_t count, uint32_t size,
                      uint64_t seed, uint32_t update, uint32_t epoch)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct rng_key key = {.seed = seed, .environment = order[i], .step = epoch, .episode = update};
        uint32_t words[4];
        rng_block(&key, RNG_SHUFFLE, 0, words);
        m->key[i] = (uint64_t)words[0] << 32 | order[i];
    }
    qsort(m->key, count, sizeof *m->key, compare_keys);
    for (uint32_t i = 0; i < count; i++)
        m->row[i] = (uint32_t)m->key[i];
    for (uint32_t first = 0; first < count; first += size)
        qsort(m->row + first, count - first < size ? count - first : size, sizeof *m->row, compare_rows);
}
