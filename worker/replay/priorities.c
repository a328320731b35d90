/* The tree of sums over the priorities of a replay buffer's rows.
 *
 * Node 1 is the root; node i has the children 2 i and 2 i + 1; leaf s, of the rows with number % capacity =
 * s, is node width + s. Draws and updates go through the levels side by side: the reads of one level do not
 * wait for each other. */
#include "worker/replay/priorities.h"

#include "kernels/base/rng.h"
#include "worker/replay/power.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOGETHER = 256 }; /* draws or updates that go through the tree side by side */

static const float error_floor = 1e-6f, error_limit = 1e18f;

struct priorities {
    uint64_t capacity, width; /* width: leaves, a power of two */
    double alpha;
    float greatest;
    struct replay_window window;
    double *nodes; /* (2 width) */
};

enum status priorities_new(struct priorities **out, uint64_t capacity, double alpha, struct error *error)
{
    struct priorities *p = *out = calloc(1, sizeof *p);
    uint64_t width = 1;
    assert(capacity > 0 && capacity < UINT64_C(1) << 48 && alpha >= 0 && alpha <= 1);
    while (width < capacity)
        width *= 2;
    if (p == NULL || (p->nodes = calloc(2 * width, sizeof *p->nodes)) == NULL) {
        priorities_free(p);
        *out = NULL;
        return error_set(error, STATUS_NO_MEMORY, "no memory for the priorities of %llu rows",
                         (unsigned long long)capacity);
    }
    p->capacity = capacity;
    p->width = width;
    p->alpha = alpha;
    p->greatest = 1;
    return STATUS_OK;
}

void priorities_free(struct priorities *priorities)
{
    if (priorities == NULL)
        return;
    free(priorities->nodes);
    free(priorities);
}

static double *leaf_of(const struct priorities *p, uint64_t row)
{
    return p->nodes + p->width + row % p->capacity;
}

float priorities_leaf(const struct priorities *priorities, uint64_t row)
{
    return (float)*leaf_of(priorities, row);
}

double priorities_total(const struct priorities *priorities)
{
    return priorities->nodes[1];
}

/* ---- sums ---- */

static void node_sum(struct priorities *p, uint64_t node)
{
    p->nodes[node] = p->nodes[2 * node] + p->nodes[2 * node + 1];
}

/* Sums all that stands above `count` leaves from slot `first` on. */
static void sum_above(struct priorities *p, uint64_t first, uint64_t count)
{
    uint64_t low = p->width + first, high = p->width + first + count - 1;
    while (count > 0 && low > 1) {
        low /= 2;
        high /= 2;
        for (uint64_t node = low; node <= high; node++)
            node_sum(p, node);
    }
}

/* The same for rows first … end - 1, whose slots may go around. */
static void sum_above_rows(struct priorities *p, uint64_t first, uint64_t end)
{
    const uint64_t slot = first % p->capacity, count = end > first ? end - first : 0;
    const uint64_t straight = count < p->capacity - slot ? count : p->capacity - slot;
    sum_above(p, slot, straight);
    sum_above(p, 0, count - straight);
}

void priorities_follow(struct priorities *priorities, const struct replay *replay,
                       struct replay_window window)
{
    struct priorities *p = priorities;
    const struct replay_window old = p->window;
    const uint64_t left_end = old.end < window.first ? old.end : window.first;
    const uint64_t entered = old.end > window.first ? old.end : window.first;
    assert(window.first >= old.first && window.end >= old.end && window.end - window.first <= p->capacity);
    for (uint64_t row = old.first; row < left_end; row++)
        *leaf_of(p, row) = 0;
    for (uint64_t row = entered; row < window.end; row++)
        *leaf_of(p, row) = replay_is_transition(replay, row) ? (double)p->greatest : 0;
    sum_above_rows(p, old.first, left_end);
    sum_above_rows(p, entered, window.end);
    p->window = window;
}

/* ---- errors ---- */

static float leaf_of_error(const struct priorities *p, float td)
{
    const float size = fabsf(td) < error_limit ? fabsf(td) : error_limit; // of a NaN, too
    return (float)power((double)size + (double)error_floor, p->alpha);
}

/* At most TOGETHER rows. */
static void set_together(struct priorities *p, uint32_t count, const uint64_t *rows, const float *td)
{
    uint64_t nodes[TOGETHER];
    uint32_t set = 0;
    for (uint32_t i = 0; i < count; i++) {
        double *leaf = leaf_of(p, rows[i]);
        if (rows[i] < p->window.first || rows[i] >= p->window.end || *leaf == 0)
            continue;
        const float priority = leaf_of_error(p, td[i]);
        *leaf = (double)priority;
        p->greatest = priority > p->greatest ? priority : p->greatest;
        nodes[set++] = (uint64_t)(leaf - p->nodes);
    }
    for (uint64_t width = p->width; width > 1; width /= 2)
        for (uint32_t i = 0; i < set; i++)
            node_sum(p, nodes[i] /= 2);
}

void priorities_set(struct priorities *priorities, uint32_t count, const uint64_t *rows, const float *td)
{
    for (uint32_t i = 0; i < count; i += TOGETHER)
        set_together(priorities, count - i < TOGETHER ? count - i : TOGETHER, rows + i, td + i);
}

/* ---- drawing ---- */

/* Goes from the root to the leaf where the sum of the leaves before reaches each rest. A subtree of zeros is
 * never entered, whatever the roundings. */
static void descend_together(const struct priorities *p, uint32_t count, double *rest, uint64_t *nodes)
{
    for (uint32_t i = 0; i < count; i++)
        nodes[i] = 1;
    for (uint64_t width = p->width; width > 1; width /= 2)
        for (uint32_t i = 0; i < count; i++) {
            const double left = p->nodes[2 * nodes[i]], right = p->nodes[2 * nodes[i] + 1];
            const bool goes_right = (rest[i] >= left) & (right > 0);
            rest[i] -= left * goes_right; // exact, and no branch that half of the draws mispredict
            nodes[i] = 2 * nodes[i] + goes_right;
            __builtin_prefetch(p->nodes + (nodes[i] < p->width ? 2 * nodes[i] : 0)); // for the next level
        }
}

/* Draws first … first + count - 1 of an update's `all`. */
static void draw_together(const struct priorities *p, const struct rng_key *update, uint32_t first,
                          uint32_t count, uint32_t all, uint64_t *rows)
{
    const uint64_t begin = p->window.first % p->capacity;
    double rest[TOGETHER];
    struct rng_key key = *update;
    uint32_t words[4];
    for (uint32_t i = 0; i < count; i++) {
        key.environment = first + i;
        rng_block(&key, RNG_REPLAY, 0, words);
        rest[i] = ((double)(first + i) + rng_uniform_double(words[0], words[1])) / all * p->nodes[1];
    }
    descend_together(p, count, rest, rows);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t slot = rows[i] - p->width;
        rows[i] = p->window.first + (slot >= begin ? slot - begin : slot + p->capacity - begin);
    }
}

static void weigh(const struct priorities *p, double beta, uint32_t count, const uint64_t *rows,
                  float *weights)
{
    double least = INFINITY;
    for (uint32_t i = 0; i < count; i++) {
        const double leaf = *leaf_of(p, rows[i]);
        least = leaf < least ? leaf : least;
    }
    for (uint32_t i = 0; i < count; i++)
        weights[i] = (float)power(least / *leaf_of(p, rows[i]), beta);
}

bool priorities_draw(const struct priorities *priorities, uint64_t seed, uint32_t update, double beta,
                     uint32_t count, uint64_t *rows, float *weights)
{
    const struct rng_key key = {.seed = seed, .episode = update};
    if (!(priorities->nodes[1] > 0))
        return false;
    for (uint32_t i = 0; i < count; i += TOGETHER)
        draw_together(priorities, &key, i, count - i < TOGETHER ? count - i : TOGETHER, count, rows + i);
    weigh(priorities, beta, count, rows, weights);
    return true;
}

/* ---- checkpoints ---- */

struct saved {
    uint64_t capacity;
    double alpha;
    struct replay_window window;
    float greatest;
    uint32_t zero;
};

size_t priorities_save(const struct priorities *priorities, char *out)
{
    const struct priorities *p = priorities;
    const struct saved saved = {
        .capacity = p->capacity, .alpha = p->alpha, .window = p->window, .greatest = p->greatest};
    const size_t bytes = sizeof saved + (size_t)(p->window.end - p->window.first) * sizeof(float);
    if (out == NULL)
        return bytes;
    memcpy(out, &saved, sizeof saved);
    out += sizeof saved;
    for (uint64_t row = p->window.first; row < p->window.end; row++, out += sizeof(float)) {
        const float leaf = priorities_leaf(p, row);
        memcpy(out, &leaf, sizeof leaf);
    }
    return bytes;
}

/* Whether the counters explain the bytes behind them. */
static bool saved_is_sound(const struct saved *saved, size_t bytes)
{
    const uint64_t rows = saved->window.end - saved->window.first;
    return saved->window.first <= saved->window.end && rows <= saved->capacity &&
           rows <= bytes / sizeof(float) && saved->greatest >= 1 && isfinite(saved->greatest);
}

size_t priorities_load(struct priorities *priorities, const char *from, size_t bytes, struct error *error)
{
    struct priorities *p = priorities;
    struct saved saved = {0};
    if (bytes >= sizeof saved)
        memcpy(&saved, from, sizeof saved);
    if (bytes < sizeof saved || !saved_is_sound(&saved, bytes - sizeof saved)) {
        error_set(error, STATUS_CORRUPT, "the checkpoint's priorities are cut or contradict each other");
        return 0;
    }
    if (saved.capacity != p->capacity || saved.alpha != p->alpha) {
        error_set(
            error, STATUS_INVALID,
            "the checkpoint's priorities are of %llu rows with alpha %g: expected %llu rows with alpha %g",
            (unsigned long long)saved.capacity, saved.alpha, (unsigned long long)p->capacity, p->alpha);
        return 0;
    }
    const char *at = from + sizeof saved;
    for (uint64_t row = saved.window.first; row < saved.window.end; row++, at += sizeof(float)) {
        float leaf;
        memcpy(&leaf, at, sizeof leaf);
        if (!(leaf >= 0 && leaf <= saved.greatest)) {
            error_set(error, STATUS_CORRUPT, "the checkpoint's priority of row %llu is %g: expected 0 … %g",
                      (unsigned long long)row, (double)leaf, (double)saved.greatest);
            return 0;
        }
        *leaf_of(p, row) = (double)leaf;
    }
    p->window = saved.window;
    p->greatest = saved.greatest;
    sum_above_rows(p, saved.window.first, saved.window.end);
    return (size_t)(at - from);
}
