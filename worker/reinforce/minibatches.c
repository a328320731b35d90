/* Sorts a rollout's rows by their draws. Both sorts are by counting: the comparisons of qsort took as long as
 * a tenth of an update. */
#include "worker/reinforce/minibatches.h"

#include "kernels/base/rng.h"

#include <stdlib.h>
#include <string.h>

enum status minibatches_open(struct minibatches *m, uint32_t rows_max, struct error *error)
{
    m->rows_max = rows_max;
    m->row = calloc(rows_max, sizeof *m->row);
    m->piece = calloc(rows_max, sizeof *m->piece);
    m->key = calloc(rows_max, sizeof *m->key);
    m->sorted = calloc(rows_max, sizeof *m->sorted);
    if (m->row == NULL || m->piece == NULL || m->key == NULL || m->sorted == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the order of %u rows", rows_max);
    return STATUS_OK;
}

void minibatches_close(struct minibatches *m)
{
    free(m->row);
    free(m->piece);
    free(m->key);
    free(m->sorted);
    *m = (struct minibatches){0};
}

/* One pass of a radix sort, stable, by 8 bits of the key. */
static void sort_by_digit(const uint64_t *from, uint64_t *to, uint32_t count, unsigned shift)
{
    uint32_t place[257] = {0};
    for (uint32_t i = 0; i < count; i++)
        place[(from[i] >> shift & 255) + 1]++;
    for (int digit = 0; digit < 256; digit++)
        place[digit + 1] += place[digit];
    for (uint32_t i = 0; i < count; i++)
        to[place[from[i] >> shift & 255]++] = from[i];
}

/* Sorts the keys, whose lower halves are rows, below rows_max. */
static void sort_keys(struct minibatches *m, uint32_t count)
{
    uint32_t bytes = 1; // of a row
    while (bytes < 4 && (m->rows_max - 1) >> (8 * bytes) != 0)
        bytes++;
    for (unsigned digit = 0; digit < 8; digit++) {
        if (digit >= bytes && digit < 4)
            continue;
        sort_by_digit(m->key, m->sorted, count, 8 * digit);
        uint64_t *sorted = m->sorted;
        m->sorted = m->key;
        m->key = sorted;
    }
}

/* Writes the rows minibatch by minibatch, ascending within each: row by row to where its minibatch goes on.
 */
static void cut(struct minibatches *m, uint32_t count, uint32_t size)
{
    const uint32_t none = UINT32_MAX;
    memset(m->piece, 0xff, m->rows_max * sizeof *m->piece);
    for (uint32_t i = 0; i < count; i++)
        m->piece[(uint32_t)m->key[i]] = i / size;
    for (uint32_t i = 0; i < count; i += size)
        m->key[i / size] = i; // where the minibatch goes on
    for (uint32_t row = 0; row < m->rows_max; row++)
        if (m->piece[row] != none)
            m->row[m->key[m->piece[row]]++] = row;
}

/* A key for each row: its draw, then the row. */
static void draw_keys(struct minibatches *m, const uint32_t *order, uint32_t count, uint64_t seed,
                      uint32_t update, uint32_t epoch)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct rng_key key = {.seed = seed, .environment = order[i], .step = epoch, .episode = update};
        uint32_t words[4];
        rng_block(&key, RNG_SHUFFLE, 0, words);
        m->key[i] = (uint64_t)words[0] << 32 | order[i];
    }
}

void minibatches_draw(struct minibatches *m, const uint32_t *order, uint32_t count, uint32_t size,
                      uint64_t seed, uint32_t update, uint32_t epoch)
{
    if (count > size) {
        draw_keys(m, order, count, seed, update, epoch);
        sort_keys(m, count);
    } else { /* one minibatch, in which rows ascend whatever the draws */
        for (uint32_t i = 0; i < count; i++)
            m->key[i] = order[i];
    }
    cut(m, count, size);
}
