/* Keeps the requests that wait, and launches those that make a batch.
 *
 * Requests stand in one array in order of arrival. A launch takes a prefix, and the rest moves to the front.
 * A batch is usually the whole line, so that usually nothing moves. */
#include "worker/reinforce/coalescer.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct coalescer {
    struct coalescer_config config;
    uint32_t live; /* rows that can come: see coalescer_set_live */
    uint32_t rows; /* rows in line */
    size_t count;  /* requests in line */
    struct coalescer_slot line[];
};

enum status coalescer_new(struct coalescer **out, const struct coalescer_config *config)
{
    struct coalescer *c = calloc(1, sizeof *c + config->slots_max * sizeof c->line[0]);
    if (c == NULL)
        return STATUS_NO_MEMORY;
    c->config = *config;
    *out = c;
    return STATUS_OK;
}

void coalescer_free(struct coalescer *coalescer)
{
    free(coalescer);
}

void coalescer_set_live(struct coalescer *c, uint32_t rows)
{
    c->live = rows;
}

enum status coalescer_add(struct coalescer *c, void *request, uint32_t rows, struct monotime now)
{
    if (c->count == c->config.slots_max)
        return STATUS_BUSY;
    c->line[c->count++] = (struct coalescer_slot){request, rows, now};
    c->rows += rows;
    return STATUS_OK;
}

void coalescer_remove(struct coalescer *c, const void *request)
{
    size_t at = 0;
    while (at < c->count && c->line[at].request != request)
        at++;
    if (at == c->count)
        return;
    c->rows -= c->line[at].rows;
    c->count--;
    memmove(c->line + at, c->line + at + 1, (c->count - at) * sizeof c->line[0]);
}

struct monotime coalescer_due(const struct coalescer *c)
{
    const struct monotime at_once = {0};
    const bool all_in = c->live > 0 && c->rows >= c->live;
    if (c->count == 0)
        return MONOTIME_NEVER;
    switch (c->config.mode) {
    case COALESCER_OFF:
        return at_once;
    case COALESCER_BARRIER:
        return all_in ? at_once : MONOTIME_NEVER;
    case COALESCER_DYNAMIC:
        return all_in || c->rows >= c->config.max_batch
                   ? at_once
                   : monotime_add_us(c->line[0].arrived, c->config.max_delay_us);
    }
    return MONOTIME_NEVER;
}

/* How many requests, from the oldest on, make the next batch, and their rows. */
static size_t measure_batch(const struct coalescer *c, uint32_t *rows)
{
    size_t count = 1;
    *rows = c->line[0].rows;
    if (c->config.mode == COALESCER_OFF)
        return count;
    for (; count < c->count; count++) {
        uint32_t more = c->line[count].rows;
        if (c->config.mode == COALESCER_DYNAMIC && *rows + more > c->config.max_batch)
            break;
        *rows += more;
    }
    return count;
}

static unsigned batch_bucket(uint32_t rows)
{
    const unsigned power = rows < 2 ? 0 : 32u - (unsigned)__builtin_clz(rows - 1);
    return power < COALESCER_BATCH_BUCKETS ? power : COALESCER_BATCH_BUCKETS - 1;
}

/* ---- waits: the WAIT_BITS bits below a time's leading one choose the bucket ---- */

enum { WAIT_BITS = 4, WAIT_STEPS = 1 << WAIT_BITS };
_Static_assert((int)COALESCER_WAIT_BUCKETS == (32 - WAIT_BITS + 1) << WAIT_BITS, "a bucket for every uint32");

static unsigned wait_bucket(uint64_t wait_us)
{
    const uint32_t value = wait_us > UINT32_MAX ? UINT32_MAX : (uint32_t)wait_us;
    if (value < WAIT_STEPS)
        return value;
    const unsigned shift = 31u - (unsigned)__builtin_clz(value) - WAIT_BITS;
    return (shift << WAIT_BITS) + (value >> shift);
}

/* The longest wait of the bucket: a percentile never understates. */
static uint64_t longest_wait(unsigned bucket)
{
    if (bucket < 2 * WAIT_STEPS)
        return bucket;
    const unsigned shift = (bucket >> WAIT_BITS) - 1;
    return (((uint64_t)(bucket & (WAIT_STEPS - 1)) + WAIT_STEPS + 1) << shift) - 1;
}

uint64_t coalescer_wait_us(const struct coalescer_stats *stats, double fraction)
{
    const uint64_t wanted = (uint64_t)ceil(fraction * (double)stats->requests);
    uint64_t seen = 0;
    for (unsigned i = 0; i < COALESCER_WAIT_BUCKETS; i++) {
        seen += stats->waits[i];
        if (seen >= wanted && seen > 0)
            return longest_wait(i);
    }
    return 0;
}

uint64_t coalescer_waits_up_to(const struct coalescer_stats *stats, uint32_t limit_us)
{
    uint64_t count = 0;
    for (unsigned i = 0; i <= wait_bucket(limit_us); i++)
        count += stats->waits[i];
    return count;
}

/* ---- launching ---- */

static void launch_batch(struct coalescer *c, struct monotime now)
{
    struct coalescer_stats *stats = c->config.stats;
    uint32_t rows;
    const size_t count = measure_batch(c, &rows);
    stats->launches++;
    stats->batches[batch_bucket(rows)]++;
    stats->requests += count;
    stats->rows += rows;
    if (rows > stats->batch_max)
        stats->batch_max = rows;
    for (size_t i = 0; i < count; i++) {
        const uint64_t wait_us = monotime_us_between(c->line[i].arrived, now);
        stats->wait_us += wait_us;
        stats->waits[wait_bucket(wait_us)]++;
    }
    c->config.launch(c->config.context, c->line, count, rows);
    c->count -= count;
    c->rows -= rows;
    memmove(c->line, c->line + count, c->count * sizeof c->line[0]);
}

void coalescer_run(struct coalescer *c, struct monotime now)
{
    for (;;) {
        struct monotime due = coalescer_due(c);
        if (monotime_is_never(due) || monotime_before(now, due))
            return;
        launch_batch(c, now);
    }
}

size_t coalescer_waiting(const struct coalescer *c)
{
    return c->count;
}

void coalescer_clear(struct coalescer *c, void (*drop)(void *context, void *request))
{
    for (size_t i = 0; i < c->count; i++)
        drop(c->config.context, c->line[i].request);
    c->count = 0;
    c->rows = 0;
}
