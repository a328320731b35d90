/* The head of a DQN: from a network's outputs to choices, targets and the loss. policy_dqn.c has dense layers
 * on the CPU, policy_dqn_tape.c the CNN on a backend. Private to worker/model.
 *
 *     outputs   what the network finds for a row: a value for each choice. Of a dueling network 1 + choices:
 *               the state's value V and the advantages A, with Q_a = V + A_a - mean A
 *     judge     the values by which a choice is judged: the target's
 *     chooser   the values by which it is chosen: the target's, or with double Q-learning the network's
 *
 * Outputs are on the host. Sums are in double and in the order of rows, so equal outputs give equal bits. */
#ifndef WORKER_MODEL_DQN_HEAD_H
#define WORKER_MODEL_DQN_HEAD_H

#include "worker/model/policy_internal.h"

struct dqn_head {
    uint32_t choices;
    bool dueling;
    double gamma;
    struct policy_exploration exploration;
};

struct dqn_head dqn_head_of(const struct policy_config *config);

/* How many outputs a row has. */
uint32_t dqn_head_outputs(const struct dqn_head *head);

/* Turns the rows' outputs of a dueling network into values, in place; the first output is then of no use.
 * Returns the values. */
struct dense_matrix dqn_head_values(const struct dqn_head *head, struct dense_matrix outputs, uint32_t rows);

/* ---- acting ---- */

/* Whether all rows' choices are random: dqn_head_choose then reads no value. `draw` NULL: they are not. */
bool dqn_head_is_random(const struct dqn_head *head, uint32_t count, const struct dense_draw *draw);

/* Writes the rows' choices: the first of the greatest values among those that are allowed, or as the
 * exploration says a random one of those. values (rows->count, choices), row by row of the batch. `draw`
 * NULL: none is random. STATUS_CORRUPT: a value is not finite then. */
enum status dqn_head_choose(const struct dqn_head *head, const struct policy_rows *rows,
                            struct dense_matrix values, const struct dense_draw *draw, struct error *error);

/* ---- learning ---- */

/* Writes target[i] = r + gamma Q'(s', a') of row first + i of the batch, where a' is the chooser's choice;
 * r alone where nothing follows. */
void dqn_head_targets(const struct dqn_head *head, const struct policy_transitions *batch, uint32_t first,
                      uint32_t count, struct dense_matrix judge, struct dense_matrix chooser, double *target);

/* The part that rows first … first + count - 1 have of the loss: the mean over the batch of weight * Huber
 * loss. Writes dL/d of their outputs to `pull`, and the batch's errors. */
double dqn_head_loss(const struct dqn_head *head, const struct policy_transitions *batch, uint32_t first,
                     uint32_t count, struct dense_matrix values, const double *target,
                     struct dense_matrix pull);

#endif
