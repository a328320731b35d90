/* Prioritized replay (Schaul, Quan, Antonoglou, Silver: "Prioritized Experience Replay", ICLR 2016): draws
 * transitions in proportion to their priorities.
 *
 *     leaf       a row's (|td| + 1e-6)^alpha, as a float; 0 outside of the window, and where the row is no
 *                transition
 *     greatest   the largest leaf that there was so far, at first 1: the leaf of new transitions
 *     total      the sum of all leaves
 *
 * A binary tree of sums in memory: every node is the sum of its two children, computed anew whenever one
 * changes. So the tree is a function of its leaves, and not of their history. All arithmetic is double, in
 * one order, without libm: the bits are the same everywhere. Takes 16 bytes for each leaf, a power of
 * two of them.
 *
 * One thread, the one that draws. Only priorities_new allocates; nothing blocks. */
#ifndef WORKER_REPLAY_PRIORITIES_H
#define WORKER_REPLAY_PRIORITIES_H

#include "kernels/base/status.h"
#include "worker/replay/replay.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct priorities;

/* `capacity`: rows of the largest window, such as replay_config.rows; `alpha`: 0 … 1, where 0 is uniform.
 * STATUS_NO_MEMORY. */
enum status priorities_new(struct priorities **out, uint64_t capacity, double alpha, struct error *error);
void priorities_free(struct priorities *priorities);

/* Moves on to a window whose ends are not below the ones before. Transitions that enter get the greatest
 * leaf; rows that leave get 0. */
void priorities_follow(struct priorities *priorities, const struct replay *replay,
                       struct replay_window window);

/* Draws `count` transitions of the window last followed. Stratified: draw i falls into the i-th of `count`
 * equal parts of the total. It is uniform there, by words 0 and 1 of block 0 of RNG_REPLAY at the key {seed,
 * environment i, step 0, episode update}. weights: (count) w_i = (N P(i))^-beta / max_j w_j over this draw,
 * which is (least leaf of the draw / leaf i)^beta. False: the window has no transition. */
bool priorities_draw(const struct priorities *priorities, uint64_t seed, uint32_t update, double beta,
                     uint32_t count, uint64_t *rows, float *weights);

/* Gives rows the leaves of their errors. Of a row that comes twice the later error counts. Rows that have
 * left the window are passed over. An error that is not finite counts as 1e18. */
void priorities_set(struct priorities *priorities, uint32_t count, const uint64_t *rows, const float *td);

/* The row's leaf; and the total. */
float priorities_leaf(const struct priorities *priorities, uint64_t row);
double priorities_total(const struct priorities *priorities);

/* The window's leaves and the greatest as a checkpoint's bytes, 4 a row. save: returns the bytes; `out` NULL:
 * only that. load: into new priorities; returns the bytes read, or 0 with a sentence. */
size_t priorities_save(const struct priorities *priorities, char *out);
size_t priorities_load(struct priorities *priorities, const char *from, size_t bytes, struct error *error);

#endif
